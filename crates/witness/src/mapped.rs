//! A fragmented file in the memory zone of a device that nobody has mounted, mapped by the library: of which extents the mapping is made, and
//! how many page faults the kernel counts where it is touched.

use std::sync::Arc;

use serde_json::{Value, json};
use tandemfs_device::Drive;
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileMapping, FileSystem, Home, MountOptions, NewInode, WriteOptions};

use crate::plan::{Piece, content};

const PAGE: u64 = 4096;
const PIECE: u64 = 64 << 10;
const NAME: &[u8] = b"mapped";
/// The file ends in the middle of a page, and of a step of every device.
const END: u64 = 5000;

/// Makes such a file of `bytes` and a few, maps it, and stores a word to each page. Returns what was found.
pub fn map(device: &str, bytes: u64) -> Result<Value, String> {
    let (fs, drive) = mount(device)?;
    let end = bytes + END;
    let (file, other) = (create(&fs, NAME)?, create(&fs, b"other")?);
    for at in (0..end.div_ceil(PIECE)).rev().map(|piece| piece * PIECE) {
        write(&fs, file, at, &piece(at, end))?;
        write(&fs, other, at / 8, &[1; PIECE as usize / 8])?; // takes the place behind it
    }
    let before = fs.statistics().work.aligned_bytes;
    let mapping = fs.map(file, 0, end, true).map_err(text)?;
    let rewritten = fs.statistics().work.aligned_bytes - before;
    let start = faults()?;
    for at in (0..bytes).step_by(PAGE as usize) {
        mapping.store_word(at, word(at)).map_err(text)?;
    }
    let first_faults = faults()? - start;
    mapping.sync(0, end).map_err(text)?;
    compare(&mapping, end)?;
    let mut by_call = vec![0; PIECE as usize];
    for at in (0..end).step_by(PIECE as usize) {
        let count = fs.read(file, at, &mut by_call).map_err(text)?;
        if by_call[..count] != expected(at, end) {
            return Err(format!("a call reads other bytes than were stored, from byte {at} on"));
        }
    }
    let found = json!({
        "mapping_unit": drive.mapping_unit(),
        "bytes": end,
        "rewritten_bytes": rewritten,
        "faults": first_faults,
        "extents": mapping.extents().iter().map(|extent| [extent.file_offset, extent.device_offset, extent.bytes]).collect::<Vec<_>>(),
    });
    mapping.unmap().map_err(text)?;
    fs.unmount().map_err(text)?;
    Ok(found)
}

/// Maps the file again, after whatever has happened since, and compares it.
pub fn map_again(device: &str, bytes: u64) -> Result<Value, String> {
    let (fs, _) = mount(device)?;
    let file = fs.lookup(InodeNumber::ROOT, NAME).map_err(text)?.inode;
    let mapping = fs.map(file, 0, bytes + END, false).map_err(text)?;
    let start = faults()?;
    compare(&mapping, bytes + END)?;
    let found = json!({ "bytes": bytes + END, "faults": faults()? - start });
    drop(mapping);
    fs.unmount().map_err(text)?;
    Ok(found)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn mount(device: &str) -> Result<(FileSystem, Drive), String> {
    let device = open_device(device, &DeviceOptions { timing: false, ..DeviceOptions::default() }).map_err(text)?;
    let fs = FileSystem::mount(Drive::new(Arc::clone(&device)), &MountOptions::default()).map_err(text)?;
    fs.set_home(InodeNumber::ROOT, Home::Memory).map_err(text)?;
    Ok((fs, Drive::new(device)))
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(text)
}

fn write(fs: &FileSystem, file: InodeNumber, at: u64, bytes: &[u8]) -> Result<(), String> {
    fs.write(file, at, bytes, WriteOptions::default()).map(drop).map_err(text)
}

/// What is written at a multiple of a piece.
fn piece(at: u64, end: u64) -> Vec<u8> {
    content(&Piece { offset: at as usize, length: PIECE.min(end - at) as usize, seed: at / PIECE + 3 })
}

/// The word that is stored to a page.
fn word(at: u64) -> u64 {
    at ^ 0x5AFE_0000_0000_0001
}

/// What is there after that.
fn expected(at: u64, end: u64) -> Vec<u8> {
    let mut bytes = piece(at, end);
    for page in (at..(at + bytes.len() as u64).min(end - END)).step_by(PAGE as usize) {
        bytes[(page - at) as usize..][..8].copy_from_slice(&word(page).to_le_bytes());
    }
    bytes
}

fn compare(mapping: &FileMapping<'_>, end: u64) -> Result<(), String> {
    for at in (0..end).step_by(PIECE as usize) {
        let wanted = expected(at, end);
        let mut found = vec![0; wanted.len()];
        mapping.load(at, &mut found).map_err(text)?;
        if found != wanted {
            return Err(format!("the mapping has other bytes than it should, from byte {at} on"));
        }
    }
    Ok(())
}

/// Page faults of this thread so far.
fn faults() -> Result<u64, String> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").map_err(text)?;
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace().collect();
    let field = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    match (field(7), field(9)) {
        (Some(minor), Some(major)) => Ok(minor + major),
        _ => Err("/proc/thread-self/stat has no counts of page faults".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandemfs_fs::{FormatOptions, make_file_system};

    #[test]
    fn a_mapped_file_is_found_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("memory");
        std::fs::File::create(&path).and_then(|file| file.set_len(64 << 20)).expect("a file");
        let device = format!("memory={}", path.display());
        let drive = Drive::new(open_device(&device, &DeviceOptions::default()).expect("opens"));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        drop(drive);
        let found = map(&device, 4 << 20).expect("mapped");
        assert_eq!((found["mapping_unit"].as_u64(), found["bytes"].as_u64()), (Some(4096), Some((4 << 20) + END)));
        let extents = found["extents"].as_array().expect("extents");
        let mapped: u64 = extents.iter().filter_map(|extent| extent[2].as_u64()).sum();
        assert_eq!(mapped, ((4 << 20) + END).next_multiple_of(PAGE));
        assert!(extents.len() > 2, "a device of single pages maps it as it lies: {extents:?}");
        map_again(&device, 4 << 20).expect("the same bytes");
        assert!(map_again(&device, 8 << 20).is_err());
    }
}

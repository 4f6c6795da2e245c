//! A mapping of the end of a file beside a write behind a gap, under explored schedules, on a device that maps in steps of 2 MiB: the mapping has blocks
//! behind the end, and where the write has moved the end over them, what is stored there is read, and calls write there. And a write up to mapped
//! blocks beside a truncation.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

#[path = "support/bugs.rs"]
mod bugs;

use std::sync::Arc;

use bugs::{is_caught, is_sound};
use tandemfs_crash::{PausingDevice, Random, Setting, fill, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{FileSystem, NewInode, SetAttributes, WriteOptions};

const BLOCK: u64 = 64 << 10;
const STEP: u64 = 2 << 20;
/// The file at first.
const BEFORE: usize = 1000;

fn text(error: tandemfs_fs::Error) -> String {
    error.to_string()
}

fn read(fs: &FileSystem, file: InodeNumber, offset: u64, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![1; length];
    let count = fs.read(file, offset, &mut bytes).map_err(text)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: &[u8]) -> Result<(), String> {
    fs.write(file, offset, bytes, WriteOptions::default()).map(drop).map_err(text)
}

/// One maps the file, the other writes behind what is mapped.
fn maps_and_writes_behind(random: &mut Random) -> Result<(), String> {
    let small = Setting::small(PersistenceDomain::Gpf, BLOCK as u32);
    let setting = Setting { memory_bytes: 48 << 20, ..small }.with_memory_homes();
    let pausing = PausingDevice::new(setting.format().mapped_in_steps_of(STEP), shuttle::thread::yield_now);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let made = fs.create(InodeNumber::ROOT, b"file", &new).map_err(text)?;
    let file = made.inode;
    fs.remember(file, made.generation, 1).map_err(text)?;
    let (before, behind) = (fill(1, BEFORE), fill(2, 300));
    write(&fs, file, 0, &before)?;
    let gap = STEP + random.below(3) * BLOCK + 50;
    let (own, bytes) = (fs.clone(), behind.clone());
    let writer = shuttle::thread::spawn(move || write(&own, file, gap, &bytes));
    let mapping = fs.map(file, 0, BEFORE as u64, true).map_err(text)?;
    writer.join().map_err(|_| "a thread panicked".to_owned())??;
    // Now the file reaches beyond what is mapped.
    let (stored, written) = (fill(3, 640), fill(4, 700));
    mapping.memory().copy_in(3 * BLOCK, &stored).map_err(|error| error.to_string())?;
    write(&fs, file, 5 * BLOCK, &written)?;
    let whole = |fs: &FileSystem| -> Result<(), String> {
        let zeros = vec![0; 4096 - BEFORE];
        let parts = [(0, &before), (BEFORE as u64, &zeros), (3 * BLOCK, &stored), (5 * BLOCK, &written), (gap, &behind)];
        parts.into_iter().try_for_each(|(offset, expected)| match read(fs, file, offset, expected.len())? == *expected {
            true => Ok(()),
            false => Err(format!("other bytes at {offset}")),
        })
    };
    whole(&fs)?;
    mapping.unmap().map_err(text)?;
    whole(&fs)?;
    fs.forget(file, 1);
    fs.unmount().map_err(text)
}

/// A write before and over a mapped block, behind another one, and a truncation: the write is done whole, however they meet.
fn writes_and_truncates(_: &mut Random) -> Result<(), String> {
    const PAGE: u64 = 4096;
    let setting = Setting::small(PersistenceDomain::Gpf, PAGE as u32).with_memory_homes();
    let pausing = PausingDevice::new(setting.format(), shuttle::thread::yield_now);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let made = fs.create(InodeNumber::ROOT, b"file", &new).map_err(text)?;
    let file = made.inode;
    fs.remember(file, made.generation, 1).map_err(text)?;
    write(&fs, file, 0, &fill(1, 5 * PAGE as usize))?;
    let mappings = [PAGE, 4 * PAGE].map(|offset| fs.map(file, offset, PAGE, true));
    let own = fs.clone();
    let writer = shuttle::thread::spawn(move || {
        let bytes = fill(2, 2 * PAGE as usize);
        match own.write(file, 3 * PAGE, &bytes, WriteOptions::default()).map_err(text)? {
            written if written == bytes.len() => Ok(()),
            written => Err(format!("{written} B were written")),
        }
    });
    fs.set_attributes(file, &SetAttributes { size: Some(100), ..SetAttributes::default() }).map_err(text)?;
    writer.join().map_err(|_| "a thread panicked".to_owned())??;
    mappings.into_iter().try_for_each(|mapping| mapping?.unmap()).map_err(text)?;
    fs.forget(file, 1);
    fs.unmount().map_err(text)
}

#[test]
fn a_write_up_to_mapped_blocks_goes_on_beside_a_truncation() {
    is_sound(400, "a write beside a truncation", writes_and_truncates);
}

#[test]
fn met_midway_fails() {
    is_caught(Mutant::MetMidwayFails, "a write beside a truncation", writes_and_truncates);
}

#[test]
fn a_mapping_and_a_write_behind_a_gap_see_each_other() {
    is_sound(150, "a mapping beside a write behind a gap", maps_and_writes_behind);
}

#[test]
fn mapped_end_unlocked() {
    is_caught(Mutant::MappedEndUnlocked, "a mapping beside a write behind a gap", maps_and_writes_behind);
}

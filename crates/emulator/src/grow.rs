//! Grows an emulated drive without firmware in its file: while no process has it open, or by the process that has it ([GR6]). And makes one
//! smaller ([GR7]).
//!
//! [GR1] Nothing shrinks unless that is what is asked for. A drive with firmware cannot grow, because its flash was made for its size.
//! [GR2] The block region stays in place and grows at its end. The memory region grows at its end if nothing lies behind it; otherwise it
//!       is copied behind everything, because it is the smaller region.
//! [GR3] Before the header changes, no reader uses the new places, and no byte of the old places is written: the file is extended, space
//!       for the new memory region is reserved, the copy is made, and all of it is synced.
//! [GR4] One write of the header's first page makes the change; its copy follows. The fields that differ lie in its first 512 B, which a disk
//!       writes atomically.
//! [GR5] Then space that no region uses is returned to the host. If the process dies before that, the next growth returns it.
//! [GR6] In use a region grows at its end alone, or not at all: it cannot be copied while it is stored to. The header is durable before anybody
//!       hears of the new size, since a file system that is larger than its drive is refused.
//! [GR7] A region shrinks at its end, and nothing moves. The header has the smaller sizes before their space is returned to the host ([GR4], [GR5]).
//!       What was there is gone: whoever asks has made the file system smaller before.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use tandemfs_device::{DeviceDescription, DeviceError};
use tandemfs_format::UNIT_BYTES;
use tandemfs_format::size::size;

use crate::header::{ImageInfo, MEMORY_OFFSET, Places};
use crate::header_copy::read_header;
use crate::header_copy::write_header;
use crate::image_file::{OpenImage, OpenOptions, refused, reserve};

/// Why a drive with firmware does not grow.
const FIRMWARE: &str = "firmware, whose flash has the size that it was made with; make a larger drive and copy the files";

/// Refuses a growth in use of a drive with firmware ([GR1]).
pub(crate) fn refuse_firmware(now: &DeviceDescription, memory_bytes: Option<u64>, block_bytes: Option<u64>) -> Result<(), DeviceError> {
    let grows = |wanted: Option<u64>, has: u64| wanted.is_some_and(|wanted| wanted > has);
    match grows(memory_bytes, now.memory_bytes) || grows(block_bytes, now.block_bytes) {
        true => Err(DeviceError::Firmware { device: now.name.clone(), command: "growing", reason: format!("it has {FIRMWARE}") }),
        false => Ok(()),
    }
}

/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// Steps of a growth, for tests that stop after one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Lengthened,
    Reserved,
    CopiedSome,
    Synced,
    HeaderWritten,
    GivenBack,
}

/// Grows the regions of an image; a size that is not given stays. Returns what it was and what it is.
///
/// Errors ([`DeviceError::Open`]): a region would shrink, the drive has firmware, a size has no meaning, the host has no space; nothing was
/// changed then. [`DeviceError::Busy`] where the image is in use.
pub fn grow(path: &Path, memory_bytes: Option<u64>, block_bytes: Option<u64>) -> Result<(ImageInfo, ImageInfo), DeviceError> {
    grow_until(path, memory_bytes, block_bytes, &mut |_| true)
}

/// Makes the regions of an image smaller ([GR7]); a size that is not given stays, and one that is larger is none. Returns what it was and what it
/// is. A drive with firmware stays as it is.
///
/// Errors: as [`grow`].
pub fn shrink(path: &Path, memory_bytes: Option<u64>, block_bytes: Option<u64>) -> Result<(ImageInfo, ImageInfo), DeviceError> {
    let OpenImage { file, info: before, .. } = OpenImage::open(path, &OpenOptions::default())?;
    let smaller = |wanted: Option<u64>, has: u64| wanted.map_or(has, |wanted| wanted.min(has));
    let (memory_bytes, block_bytes) = (smaller(memory_bytes, before.memory_bytes), smaller(block_bytes, before.block_bytes));
    let mut after = ImageInfo { memory_bytes, block_bytes, ..before.clone() };
    if before.firmware.is_some() || after == before {
        return Ok((before.clone(), before));
    }
    ImageInfo::check_sizes(memory_bytes, block_bytes).map_err(|reason| refused(path, reason))?;
    let places = Places { memory: before.memory_offset(), blocks: before.block_offset() };
    after.places = Some(places).filter(|places| *places != Places::usual(memory_bytes));
    let written = write_header(&file, &after); // [GR4]
    written.map_err(|error| refused(path, format!("cannot write the header: {error}")))?;
    let _ = file.set_len(after.file_bytes()); // [GR5]
    give_back(&file, &after);
    Ok((before, after))
}

/// The same for a drive that this process has open and locked ([GR6]). What is smaller than the drive stays as it is. Returns what it is.
pub(crate) fn grow_in_use(file: &File, path: &Path, memory_bytes: Option<u64>, block_bytes: Option<u64>) -> Result<ImageInfo, DeviceError> {
    let (before, _) = read_header(path, file)?;
    let at_least = |wanted: Option<u64>, has: u64| wanted.filter(|wanted| *wanted > has);
    let (memory, block) = (at_least(memory_bytes, before.memory_bytes), at_least(block_bytes, before.block_bytes));
    let after = planned(&before, memory, block).map_err(|reason| refused(path, reason))?;
    if after == before {
        return Ok(before);
    }
    let has_moved =
        after.memory_offset() != before.memory_offset() || before.block_bytes > 0 && after.block_offset() != before.block_offset();
    if has_moved {
        let region = if memory.is_some() { "memory" } else { "block" };
        return Err(refused(path, format!("has no room behind its {region} region, so that one cannot grow in use")));
    }
    extend(file, path, &before, &after, &mut |_| true)?;
    Ok(after)
}

fn grow_until(
    path: &Path,
    memory_bytes: Option<u64>,
    block_bytes: Option<u64>,
    go_on: &mut dyn FnMut(Step) -> bool,
) -> Result<(ImageInfo, ImageInfo), DeviceError> {
    let OpenImage { file, info: before, .. } = OpenImage::open(path, &OpenOptions::default())?;
    let after = planned(&before, memory_bytes, block_bytes).map_err(|reason| refused(path, reason))?;
    if after == before {
        return Ok((before, after));
    }
    let is_done = extend(&file, path, &before, &after, go_on)?;
    let after = if is_done { after } else { before.clone() };
    Ok((before, after))
}

/// Makes a drive what was planned. False where a test ended it before that.
fn extend(
    file: &File,
    path: &Path,
    before: &ImageInfo,
    after: &ImageInfo,
    go_on: &mut dyn FnMut(Step) -> bool,
) -> Result<bool, DeviceError> {
    let old_bytes = file.metadata().map_err(|error| refused(path, format!("cannot be examined: {error}")))?.len();
    match prepare(file, before, after, old_bytes, go_on) {
        Ok(true) => {}
        Ok(false) => return Ok(false),
        Err(error) => {
            // No reader has used it; if the host cannot free it, it stays for the next growth.
            let _ = file.set_len(old_bytes);
            give_back(file, before);
            let why = match error.kind() {
                io::ErrorKind::StorageFull => "the host's disk has no room for the larger memory region".to_owned(),
                _ => format!("the host's file system takes no larger file: {error}"),
            };
            return Err(refused(path, format!("cannot grow: {why}; nothing was changed")));
        }
    }
    let written = write_header(file, after); // [GR4]
    written.map_err(|error| refused(path, format!("cannot write the header: {error}")))?;
    if go_on(Step::HeaderWritten) {
        give_back(file, after);
        give_back_grown_over(file, before, after);
        go_on(Step::GivenBack);
    }
    Ok(true)
}

/// Computes the new regions ([GR1], [GR2]).
fn planned(before: &ImageInfo, memory_bytes: Option<u64>, block_bytes: Option<u64>) -> Result<ImageInfo, String> {
    let mut after = ImageInfo {
        memory_bytes: memory_bytes.unwrap_or(before.memory_bytes),
        block_bytes: block_bytes.unwrap_or(before.block_bytes),
        ..before.clone()
    };
    for (region, old, new) in [("memory", before.memory_bytes, after.memory_bytes), ("block", before.block_bytes, after.block_bytes)] {
        if new < old {
            return Err(format!("the {region} region has {} and cannot shrink to {}; nothing was changed", size(old), size(new)));
        }
    }
    if after == *before {
        return Ok(after);
    }
    if before.firmware.is_some() {
        return Err(format!("is a drive with {FIRMWARE}"));
    }
    ImageInfo::check_sizes(after.memory_bytes, after.block_bytes)?;
    let memory = before.memory_offset();
    // A region of no bytes is nowhere yet.
    let blocks = if before.block_bytes > 0 { before.block_offset() } else { memory + after.memory_bytes };
    let (memory_end, blocks_end) = (memory + before.memory_bytes, blocks + after.block_bytes);
    let meets_blocks = |start: u64| start < blocks_end && blocks < start + after.memory_bytes;
    let memory = if meets_blocks(memory) { blocks_end.max(memory_end).next_multiple_of(UNIT_BYTES) } else { memory };
    // With the default places the header has no explicit ones.
    after.places = Some(Places { memory, blocks }).filter(|places| *places != Places::usual(after.memory_bytes));
    Ok(after)
}

/// Everything but the header ([GR3]). False where a test ended it.
fn prepare(file: &File, before: &ImageInfo, after: &ImageInfo, old_bytes: u64, go_on: &mut dyn FnMut(Step) -> bool) -> io::Result<bool> {
    file.set_len(old_bytes.max(after.file_bytes()))?;
    if !go_on(Step::Lengthened) {
        return Ok(false);
    }
    let (from, to) = (before.memory_offset(), after.memory_offset());
    let kept = if from == to { before.memory_bytes } else { 0 };
    if after.memory_bytes > kept {
        reserve(file, to + kept, after.memory_bytes - kept)?;
    }
    if !go_on(Step::Reserved) {
        return Ok(false);
    }
    if from != to {
        let mut buffer = vec![0; COPY_BYTES];
        for at in (0..before.memory_bytes).step_by(COPY_BYTES) {
            file.read_exact_at(&mut buffer, from + at)?;
            file.write_all_at(&buffer, to + at)?;
            if !go_on(Step::CopiedSome) {
                return Ok(false);
            }
        }
    }
    file.sync_all()?;
    Ok(go_on(Step::Synced))
}

/// Frees the space between header and regions ([GR5]). If the host does not support that, only space is lost.
fn give_back(file: &File, image: &ImageInfo) {
    let mut regions = [(image.memory_offset(), image.memory_bytes), (image.block_offset(), image.block_bytes)];
    regions.sort_unstable();
    let mut end = MEMORY_OFFSET;
    for (start, bytes) in regions {
        if start > end {
            let _ = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, end, start - end);
        }
        end = start + bytes;
    }
}

/// The memory region may have been where the block region is now; its old bytes there have no meaning ([GR5]).
fn give_back_grown_over(file: &File, before: &ImageInfo, after: &ImageInfo) {
    let start = before.memory_offset().max(before.block_offset() + before.block_bytes);
    let end = (before.memory_offset() + before.memory_bytes).min(after.block_offset() + after.block_bytes);
    if start < end && before.memory_offset() != after.memory_offset() {
        let _ = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    use tandemfs_device::{BlockPath, BlockRequest, BytePath};
    use tandemfs_format::Sector;
    use tempfile::TempDir;

    use super::*;
    use crate::{CreateOptions, ImageDevice, create, info};

    const MIB: u64 = 1 << 20;

    fn image() -> (TempDir, PathBuf) {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("disk.img");
        create(&path, &CreateOptions { profile: "off".into(), memory_bytes: 16 * MIB, block_bytes: 8 * MIB }).expect("created");
        mark(&path, 16, 8);
        (directory, path)
    }

    /// Every MiB of both regions says which one it is.
    fn mark(path: &Path, memory: u64, blocks: u64) {
        let device = ImageDevice::open(path, &OpenOptions::default()).expect("opened");
        (0..memory).for_each(|at| device.store(at * MIB, &(at + 1).to_le_bytes()).expect("stored"));
        for at in 0..blocks {
            let mut sector = vec![0; 4096];
            sector[..8].copy_from_slice(&(at + 1000).to_le_bytes());
            let mut requests = [BlockRequest::Write { sector: Sector::new(at * 256), buffer: (&sector).into() }];
            device.transfer(&mut requests, &mut || ()).expect("written");
        }
    }

    fn look(path: &Path, memory: u64, blocks: u64) {
        let device = ImageDevice::open(path, &OpenOptions::default()).expect("opened");
        for at in 0..memory {
            let mut found = [0; 8];
            device.load(at * MIB, &mut found).expect("loaded");
            assert_eq!(u64::from_le_bytes(found), at + 1, "memory at {at} MiB");
        }
        for at in 0..blocks {
            let mut sector = vec![0; 4096];
            let mut requests = [BlockRequest::Read { sector: Sector::new(at * 256), buffer: (&mut sector).into() }];
            device.transfer(&mut requests, &mut || ()).expect("read");
            assert_eq!(sector[..8], (at + 1000).to_le_bytes(), "blocks at {at} MiB");
        }
    }

    #[test]
    fn regions_grow_again_and_again_and_keep_what_they_hold() {
        let (_directory, path) = image();
        let (mut memory, mut blocks) = (16, 8);
        for (wanted_memory, wanted_blocks) in
            [(None, Some(9)), (Some(18), None), (Some(40), None), (None, Some(24)), (None, Some(300)), (Some(64), Some(301))]
        {
            let (before, after) = grow(&path, wanted_memory.map(|size| size * MIB), wanted_blocks.map(|size| size * MIB)).expect("grown");
            assert_eq!((before.memory_bytes, before.block_bytes), (memory * MIB, blocks * MIB));
            look(&path, memory, blocks);
            (memory, blocks) = (wanted_memory.unwrap_or(memory), wanted_blocks.unwrap_or(blocks));
            assert_eq!((after.memory_bytes, after.block_bytes), (memory * MIB, blocks * MIB));
            assert_eq!(info(&path).expect("an image"), after);
            mark(&path, memory, blocks);
            look(&path, memory, blocks);
        }
        let taken = fs::metadata(&path).expect("there").blocks() * 512;
        assert!(taken < (64 + 4) * MIB, "the old places are given back: {taken} B taken");
    }

    /// The place of a region of no bytes stood in the way of the memory.
    #[test]
    fn regression_memory_alone_was_moved_to_grow() {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("disk.img");
        create(&path, &CreateOptions { profile: "optane".into(), memory_bytes: 16 * MIB, block_bytes: 0 }).expect("created");
        mark(&path, 16, 0);
        let (before, after) = grow(&path, Some(40 * MIB), None).expect("grown");
        assert_eq!((before.memory_offset(), before.block_bytes), (after.memory_offset(), 0));
        look(&path, 16, 0);
        mark(&path, 40, 0);
        let (before, after) = grow(&path, None, Some(8 * MIB)).expect("grown");
        assert_eq!(before.memory_offset(), after.memory_offset());
        look(&path, 40, 0);
        mark(&path, 40, 8);
        look(&path, 40, 8);
    }

    #[test]
    fn a_drive_that_shrinks_keeps_what_it_has_and_gives_its_space_back() {
        let (_directory, path) = image();
        grow(&path, Some(24 * MIB), Some(12 * MIB)).expect("grown");
        mark(&path, 24, 12);
        for (memory, blocks) in [(None, Some(7)), (Some(20), None), (Some(18), Some(5))] {
            let (before, after) = shrink(&path, memory.map(|size| size * MIB), blocks.map(|size| size * MIB)).expect("shrunk");
            let (memory, blocks) = (memory.unwrap_or(before.memory_bytes / MIB), blocks.unwrap_or(before.block_bytes / MIB));
            assert_eq!((after.memory_bytes, after.block_bytes), (memory * MIB, blocks * MIB));
            assert_eq!(info(&path).expect("an image"), after);
            look(&path, memory, blocks);
        }
        let taken = fs::metadata(&path).expect("there").blocks() * 512;
        assert!(taken < (18 + 5 + 1) * MIB, "{taken} B");
        let (before, after) = shrink(&path, Some(30 * MIB), Some(8 * MIB)).expect("nothing to do");
        assert_eq!(before, after);
        grow(&path, Some(24 * MIB), Some(12 * MIB)).expect("grown");
        look(&path, 18, 5);
        mark(&path, 24, 12);
        look(&path, 24, 12);
    }

    /// A growth interrupted anywhere leaves the old drive or the new one with all its contents, and the next growth continues.
    #[test]
    fn a_growth_that_is_cut_off_leaves_the_old_sizes_or_the_new_ones() {
        for (wanted_memory, wanted_blocks) in [(Some(20), None), (None, Some(12)), (Some(20), Some(12))] {
            let sizes = |unit: Option<u64>| unit.map(|size| size * MIB);
            let mut cut = 0;
            loop {
                let (_directory, path) = image();
                let (mut steps, mut written) = (0, false);
                grow_until(&path, sizes(wanted_memory), sizes(wanted_blocks), &mut |step| {
                    steps += 1;
                    written |= step == Step::HeaderWritten;
                    steps <= cut
                })
                .expect("cut off");
                let found = info(&path).expect("an image");
                let expected = if written { (wanted_memory.unwrap_or(16), wanted_blocks.unwrap_or(8)) } else { (16, 8) };
                assert_eq!((found.memory_bytes, found.block_bytes), (expected.0 * MIB, expected.1 * MIB), "cut {cut}");
                look(&path, 16, 8);
                grow(&path, sizes(wanted_memory), sizes(wanted_blocks)).expect("grown");
                look(&path, 16, 8);
                if steps <= cut {
                    break;
                }
                cut += 1;
            }
            assert!(cut >= 5, "{cut} steps");
        }
    }

    #[test]
    fn what_cannot_grow_is_refused_and_left_alone() {
        let (directory, path) = image();
        let reason = |path: &Path, memory, blocks| match grow(path, memory, blocks) {
            Err(DeviceError::Open { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        let whole = fs::read(&path).expect("read");
        for (memory, blocks, said) in [
            (Some(14 * MIB), None, "cannot shrink"),
            (None, Some(4 * MIB), "cannot shrink"),
            (Some(17 * MIB), None, "not a multiple"),
            (Some(16 * MIB), Some(u64::MAX), "is too large"),
        ] {
            assert!(reason(&path, memory, blocks).contains(said), "{said}");
        }
        assert!(fs::read(&path).expect("read") == whole, "left alone");
        let (before, after) = grow(&path, Some(16 * MIB), None).expect("nothing to do");
        assert_eq!(before, after);

        let drive = directory.path().join("firmware.img");
        create(&drive, &CreateOptions { profile: "bytefs".into(), memory_bytes: 16 * MIB, block_bytes: 512 * MIB }).expect("created");
        assert!(reason(&drive, None, Some(1 << 30)).contains("firmware"));
        let held = ImageDevice::open(&path, &OpenOptions::default()).expect("opened");
        assert!(matches!(grow(&path, Some(20 * MIB), None), Err(DeviceError::Busy { .. })));
        drop(held);
    }
}

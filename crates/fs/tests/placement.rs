//! Which files get aligned extents of 2 MiB, and what creations and removals leave of them ([AR1] and [AR2] of `data/rows.rs`).

use std::sync::Arc;

use tandemfs_crash::{MemoryDevice, check_device};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    AllocateMode, FileSystem, FormatOptions, Home, LayoutOptions, LayoutPlace, MountOptions, NewInode, WriteOptions, make_file_system,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const UNIT: u64 = 2 * MIB;

fn mounted(block_bytes: u32) -> (Arc<MemoryDevice>, FileSystem) {
    let device = Arc::new(MemoryDevice::new(128 * MIB, 128 * MIB, PersistenceDomain::Gpf));
    let options = FormatOptions { block_bytes, ..FormatOptions::default() };
    make_file_system(&Drive::new(device.clone()), &options).expect("mkfs");
    let fs = FileSystem::mount(Drive::new(device.clone()), &MountOptions::default()).expect("mounts");
    (device, fs)
}

fn file(fs: &FileSystem, name: &str, home: Home) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, name.as_bytes(), &new).expect("made").inode;
    fs.set_home(file, home).expect("has a home");
    file
}

fn allocate(fs: &FileSystem, file: InodeNumber, bytes: u64) {
    fs.allocate(file, 0, bytes, AllocateMode::Allocate { keep_size: false }).expect("room");
}

fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: u64) {
    let text: Vec<u8> = (0..bytes).map(|at| (at / 511) as u8).collect();
    assert_eq!(fs.write(file, offset, &text, WriteOptions::default()).expect("written"), text.len());
}

/// Free aligned extents of a zone.
fn aligned(fs: &FileSystem, home: Home) -> u64 {
    let (memory, block) = fs.aligned_free_bytes();
    (if home == Home::Memory { memory } else { block }) / UNIT
}

/// Pieces of a file in the block zone: place and length in bytes.
fn pieces(fs: &FileSystem, file: InodeNumber, bytes: u64) -> Vec<(u64, u64)> {
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < bytes {
        let layout = fs.layout(file, at, bytes - at, LayoutOptions { settle: true }, || ()).expect("a layout");
        for extent in layout.extents() {
            let (LayoutPlace::Sectors { sector } | LayoutPlace::Unwritten { sector }) = extent.place else { panic!("{extent:?}") };
            match pieces.last_mut().filter(|(start, length)| start + *length == sector.offset_bytes()) {
                Some((_, length)) => *length += extent.bytes,
                None => pieces.push((sector.offset_bytes(), extent.bytes)),
            }
        }
        at = layout.next_offset().unwrap_or(bytes);
    }
    pieces
}

#[test]
fn whole_pieces_of_2_mib_get_aligned_extents_and_the_rest_comes_from_holes() {
    for (home, block_bytes) in [(Home::Block, 64 << 10), (Home::Block, 4 << 10), (Home::Memory, 64 << 10)] {
        let (device, fs) = mounted(block_bytes);
        let small = file(&fs, "small", home);
        allocate(&fs, small, 20 * KIB);
        let before = aligned(&fs, home);
        let large = file(&fs, "large", home);
        allocate(&fs, large, 3 * UNIT + 300 * KIB);
        assert_eq!(aligned(&fs, home), before - 3, "{home:?}: the end lies in the hole that the small file left");
        if home == Home::Block {
            let pieces = pieces(&fs, large, 3 * UNIT);
            assert!(pieces.iter().all(|(start, length)| start % UNIT == 0 && length % UNIT == 0), "{pieces:?}");
        }
        let written = file(&fs, "written", home);
        write(&fs, written, 0, 2 * UNIT);
        assert_eq!(aligned(&fs, home), before - 5, "{home:?}");
        if home == Home::Block {
            let pieces = pieces(&fs, written, 2 * UNIT);
            assert!(pieces.iter().all(|(start, length)| start % UNIT == 0 && length % UNIT == 0), "{pieces:?}");
        }
        for name in ["large", "written"] {
            fs.unlink(InodeNumber::ROOT, name.as_bytes()).expect("removed");
        }
        fs.checkpoint().expect("is durable");
        assert_eq!(aligned(&fs, home), before, "{home:?}");
        fs.unmount().expect("unmounts");
        drop(fs);
        check_device(&device, false).expect("check finds nothing");
    }
}

#[test]
fn small_files_fill_holes_before_an_aligned_extent_is_broken() {
    for home in [Home::Block, Home::Memory] {
        let (_device, fs) = mounted(64 << 10);
        let names: Vec<String> = (0..256).map(|index| format!("f{index}")).collect();
        for name in &names {
            let file = file(&fs, name, home);
            allocate(&fs, file, 128 * KIB);
        }
        let least = aligned(&fs, home);
        for name in names.iter().step_by(2) {
            fs.unlink(InodeNumber::ROOT, name.as_bytes()).expect("removed");
        }
        fs.checkpoint().expect("is durable");
        let with_holes = aligned(&fs, home);
        // 16 MiB of holes of 128 KiB.
        for index in 0..120 {
            let file = file(&fs, &format!("g{index}"), home);
            write(&fs, file, 0, 128 * KIB);
        }
        let after = aligned(&fs, home);
        assert!(after >= least && after + 1 >= with_holes, "{home:?}: {least} when full, {with_holes} with holes, {after} after that");
    }
}

#[test]
fn an_aligned_extent_that_is_not_to_be_had_is_no_error() {
    let (_device, fs) = mounted(64 << 10);
    let mut count = 0;
    while aligned(&fs, Home::Block) > 0 {
        let file = file(&fs, &format!("f{count}"), Home::Block);
        allocate(&fs, file, 640 * KIB);
        count += 1;
    }
    for index in (0..count).step_by(2) {
        fs.unlink(InodeNumber::ROOT, format!("f{index}").as_bytes()).expect("removed");
    }
    fs.checkpoint().expect("is durable");
    let large = file(&fs, "large", Home::Block);
    allocate(&fs, large, 4 * UNIT);
    write(&fs, large, 0, 4 * UNIT);
    let pieces = pieces(&fs, large, 4 * UNIT);
    assert_eq!(pieces.iter().map(|(_, length)| length).sum::<u64>(), 4 * UNIT);
}

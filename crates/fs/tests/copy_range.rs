//! Ranges copied between files: which are refused, which end short, which holes stay holes, and what a copy changes besides bytes.

use std::sync::Arc;

use tandemfs_crash::{MemoryDevice, fill};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::{Timestamp, file_type};
use tandemfs_fs::{
    AllocateMode, Error, FileSystem, FormatOptions, MountOptions, NewInode, SetAttributes, SetTime, WriteOptions, make_file_system,
};

const BLOCK: u64 = 64 << 10;
const PLAIN: WriteOptions = WriteOptions { keep_times: false, append: false, kill_set_id: false, compare: false, kept: false };

fn mounted() -> FileSystem {
    let drive = Drive::new(Arc::new(MemoryDevice::new(16 << 20, 64 << 20, PersistenceDomain::Gpf)));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    FileSystem::mount(drive, &MountOptions::default()).expect("mounts")
}

fn file(fs: &FileSystem, name: &str, bytes: &[u8]) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let inode = fs.create(InodeNumber::ROOT, name.as_bytes(), &new).expect("creates").inode;
    assert_eq!(fs.write(inode, 0, bytes, PLAIN).expect("writes"), bytes.len());
    inode
}

fn content(fs: &FileSystem, inode: InodeNumber) -> Vec<u8> {
    let mut bytes = vec![0; fs.attributes(inode).expect("there").size as usize];
    assert_eq!(fs.read(inode, 0, &mut bytes).expect("reads"), bytes.len());
    bytes
}

fn space_512(fs: &FileSystem, inode: InodeNumber) -> u64 {
    fs.attributes(inode).expect("there").space_512
}

#[test]
fn a_copy_ends_with_its_source() {
    let fs = mounted();
    let bytes = fill(1, 150_001);
    let (from, to) = (file(&fs, "from", &bytes), file(&fs, "to", &fill(2, 1000)));
    assert_eq!(fs.copy_range((from, 0), (to, 500), u64::MAX, PLAIN).expect("copies"), 150_001);
    assert!(content(&fs, to) == [&fill(2, 1000)[..500], &bytes].concat());
    assert_eq!(fs.copy_range((from, 100_000), (to, 7), 60_000, PLAIN).expect("copies"), 50_001);
    assert!(content(&fs, to)[7..50_008] == bytes[100_000..]);
    for (offset, length) in [(150_001, 10), (1 << 40, 10), (u64::MAX, 1), (3, 0)] {
        assert_eq!(fs.copy_range((from, offset), (to, 0), length, PLAIN).expect("copies"), 0, "{length} from {offset}");
    }
    assert!(content(&fs, from) == bytes, "the source is as it was");
}

#[test]
fn a_range_moves_within_a_file_but_not_onto_itself() {
    let fs = mounted();
    let bytes = fill(1, 3 << 20);
    let inode = file(&fs, "file", &bytes);
    for (from, to, length) in [(0, 1, 10), (1, 0, 10), (0, 0, 1), (5000, 4000, 1001), (0, 2 << 20, (2 << 20) + 1)] {
        let refused = fs.copy_range((inode, from), (inode, to), length, PLAIN);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{length} from {from} to {to}: {refused:?}");
    }
    assert!(content(&fs, inode) == bytes);
    // Bytes behind the end of the file are not copied, so they overlap nothing.
    assert_eq!(fs.copy_range((inode, (3 << 20) - 10), (inode, 3 << 20), 1000, PLAIN).expect("copies"), 10);
    assert_eq!(fs.copy_range((inode, 0), (inode, 1_500_000), 1_500_000, PLAIN).expect("copies"), 1_500_000);
    let mut expected = [&bytes[..], &bytes[(3 << 20) - 10..]].concat();
    expected.copy_within(0..1_500_000, 1_500_000);
    assert!(content(&fs, inode) == expected);
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let fs = mounted();
    let inode = file(&fs, "file", b"bytes");
    let new = |mode, target| NewInode { mode, uid: 0, gid: 0, rdev: 0, target };
    let link = fs.create(InodeNumber::ROOT, b"link", &new(file_type::SYMLINK | 0o777, &b"file"[..])).expect("creates").inode;
    let fifo = fs.create(InodeNumber::ROOT, b"fifo", &new(file_type::FIFO | 0o600, b"")).expect("creates").inode;
    for (from, to) in [(inode, InodeNumber::ROOT), (InodeNumber::ROOT, inode)] {
        assert!(matches!(fs.copy_range((from, 0), (to, 0), 5, PLAIN), Err(Error::IsDirectory)));
    }
    for (from, to) in [(inode, link), (link, inode), (inode, fifo), (fifo, inode)] {
        assert!(matches!(fs.copy_range((from, 0), (to, 0), 5, PLAIN), Err(Error::InvalidArgument(_))));
    }
    // `grow_over` set a size on inodes that cannot have one.
    assert!(matches!(fs.grow_over(InodeNumber::ROOT, 1 << 20), Err(Error::IsDirectory)));
    assert!([link, fifo].iter().all(|&number| matches!(fs.grow_over(number, 1 << 20), Err(Error::InvalidArgument(_)))));
    let append = WriteOptions { append: true, ..PLAIN };
    assert!(matches!(fs.copy_range((inode, 0), (inode, 100), 5, append), Err(Error::InvalidArgument(_))));
    assert!(matches!(fs.copy_range((inode, 0), (inode, i64::MAX as u64 - 2), 5, PLAIN), Err(Error::FileTooLarge)));
    assert!(content(&fs, inode) == b"bytes");
}

#[test]
fn whole_blocks_that_are_holes_stay_holes() {
    let fs = mounted();
    let from = file(&fs, "from", b"");
    for block in [1, 7] {
        fs.write(from, block * BLOCK, &fill(block, BLOCK as usize), PLAIN).expect("writes");
    }
    fs.set_attributes(from, &SetAttributes { size: Some(20 * BLOCK + 5), ..SetAttributes::default() }).expect("grows");
    let expected = content(&fs, from);
    assert_eq!(space_512(&fs, from), 2 * BLOCK / 512);
    // To an empty file, over data, and to another place in the block.
    let (empty, full) = (file(&fs, "empty", b""), file(&fs, "full", &fill(9, 21 * BLOCK as usize)));
    for to in [empty, full] {
        assert_eq!(fs.copy_range((from, 0), (to, 0), 1 << 30, PLAIN).expect("copies"), 20 * BLOCK + 5);
        assert!(content(&fs, to)[..expected.len()] == expected);
    }
    assert_eq!(fs.attributes(empty).expect("there").size, 20 * BLOCK + 5);
    assert_eq!(space_512(&fs, empty), 2 * BLOCK / 512);
    assert!(content(&fs, full)[expected.len()..] == fill(9, 21 * BLOCK as usize)[expected.len()..], "what lies behind the range stays");
    assert!(
        space_512(&fs, full) <= 3 * BLOCK / 512 + 1,
        "two blocks of data, the last, of which a part stays, and the zeros over its start"
    );
    let shifted = file(&fs, "shifted", b"");
    assert_eq!(fs.copy_range((from, 0), (shifted, 100), 1 << 30, PLAIN).expect("copies"), 20 * BLOCK + 5);
    assert!(content(&fs, shifted)[100..] == expected && content(&fs, shifted)[..100].iter().all(|byte| *byte == 0));
    assert!(space_512(&fs, shifted) <= 6 * BLOCK / 512, "{} x 512 B", space_512(&fs, shifted));
}

/// Allocated but unwritten space reads as zeros; it is copied as a hole.
#[test]
fn space_without_data_is_a_hole_to_a_copy() {
    let fs = mounted();
    let (from, to) = (file(&fs, "from", b"start"), file(&fs, "to", b""));
    fs.allocate(from, 0, 8 * BLOCK, AllocateMode::Allocate { keep_size: false }).expect("given");
    assert_eq!(fs.copy_range((from, 0), (to, 0), 1 << 30, PLAIN).expect("copies"), 8 * BLOCK);
    assert!(content(&fs, to) == content(&fs, from));
    assert!(space_512(&fs, to) <= BLOCK / 512);
}

#[test]
fn a_copy_changes_times_and_set_id_bits_as_a_write_does() {
    let fs = mounted();
    let data = file(&fs, "data", b"bytes");
    let hole = file(&fs, "hole", b"");
    fs.set_attributes(hole, &SetAttributes { size: Some(4 * BLOCK), ..SetAttributes::default() }).expect("grows");
    let long_ago = Timestamp { seconds: 1000, nanoseconds: 0 };
    for (from, kill_set_id, keep_times) in [(data, true, false), (hole, true, false), (data, false, true), (hole, false, true)] {
        let to = file(&fs, "to", b"");
        let set = SetAttributes { permissions: Some(0o6755), mtime: Some(SetTime::At(long_ago)), ..SetAttributes::default() };
        fs.set_attributes(to, &set).expect("sets");
        fs.copy_range((from, 0), (to, 0), 1 << 30, WriteOptions { kill_set_id, keep_times, ..PLAIN }).expect("copies");
        let after = fs.attributes(to).expect("there");
        assert_eq!(after.mode & 0o7777, if kill_set_id { 0o755 } else { 0o6755 });
        assert_eq!(after.mtime == long_ago, keep_times);
        // A copy of no bytes writes nothing.
        let set = SetAttributes { permissions: Some(0o6755), mtime: Some(SetTime::At(long_ago)), ..SetAttributes::default() };
        fs.set_attributes(to, &set).expect("sets");
        fs.copy_range((from, 1 << 40), (to, 0), 10, WriteOptions { kill_set_id: true, ..PLAIN }).expect("copies");
        let after = fs.attributes(to).expect("there");
        assert_eq!((after.mode & 0o7777, after.mtime), (0o6755, long_ago));
        fs.unlink(InodeNumber::ROOT, b"to").expect("unlinks");
    }
}

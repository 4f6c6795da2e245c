//! Space is given out and taken back in bounded transactions, and not at all if there is not enough of it.

use std::sync::Arc;

use tandemfs_crash::MemoryDevice;
use tandemfs_device::{Drive, PersistenceDomain, Structure};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    AllocateMode, Error, FileSystem, FormatOptions, MountOptions, NewInode, SeekTo, SetAttributes, WriteOptions, make_file_system,
};

const ALLOCATE: AllocateMode = AllocateMode::Allocate { keep_size: false };
const KEEP_SIZE: AllocateMode = AllocateMode::Allocate { keep_size: true };

fn mounted(memory_bytes: u64, block_zone_bytes: u64, block_bytes: u32) -> FileSystem {
    let drive = Drive::new(Arc::new(MemoryDevice::new(memory_bytes, block_zone_bytes, PersistenceDomain::Gpf)));
    make_file_system(&drive, &FormatOptions { block_bytes, ..FormatOptions::default() }).expect("mkfs");
    FileSystem::mount(drive, &MountOptions::default()).expect("mounts")
}

fn create(fs: &FileSystem, name: &str) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name.as_bytes(), &new).expect("creates").inode
}

fn transactions(fs: &FileSystem, work: impl FnOnce()) -> u64 {
    let before = fs.statistics().work.transactions;
    work();
    fs.statistics().work.transactions - before
}

#[test]
fn large_ranges_are_series_of_bounded_transactions() {
    let fs = mounted(64 << 20, 256 << 20, 4 << 10);
    let file = create(&fs, "file");
    let before = fs.space();
    const BYTES: u64 = 200 << 20; // 51,200 blocks
    let given = transactions(&fs, || fs.allocate(file, 0, BYTES, ALLOCATE).expect("room"));
    assert!((400..1200).contains(&given), "{given} transactions");
    let found = fs.attributes(file).expect("there");
    assert_eq!((found.size, found.space_512), (BYTES, BYTES / 512));
    assert_eq!(transactions(&fs, || fs.allocate(file, 0, BYTES, ALLOCATE).expect("is there")), 0, "doing it again does nothing");
    assert_eq!((fs.seek(file, 0, SeekTo::Data).expect("sought"), fs.seek(file, 5, SeekTo::Hole).expect("sought")), (None, Some(5)));

    fs.write(file, 100 << 20, &[7; 5000], WriteOptions::default()).expect("writes");
    let zeroed = transactions(&fs, || fs.allocate(file, 1, BYTES - 1, AllocateMode::Zero { keep_size: true }).expect("zeroed"));
    assert!((1..=3).contains(&zeroed), "{zeroed} transactions: only what was written changes");
    let mut bytes = [1; 5000];
    fs.read(file, 100 << 20, &mut bytes).expect("reads");
    assert_eq!(bytes, [0; 5000]);

    let punched = transactions(&fs, || fs.allocate(file, 4096, BYTES, AllocateMode::Punch).expect("punched"));
    assert!((2..40).contains(&punched), "{punched} transactions: pages of records go whole");
    assert_eq!(fs.attributes(file).expect("there").space_512, 8);
    fs.allocate(file, 0, 1, AllocateMode::Punch).expect("punched");
    fs.allocate(file, 0, 4096, AllocateMode::Punch).expect("punched");
    fs.checkpoint().expect("home");
    let after = fs.space();
    assert_eq!((after.block, after.inodes_used), (before.block, before.inodes_used));
    assert_eq!(fs.attributes(file).expect("there").size, BYTES);
    // The mapping tree is gone, so a file of holes costs nothing, however large: far offsets are found at once.
    assert_eq!(transactions(&fs, || fs.allocate(file, 0, 1 << 62, AllocateMode::Punch).expect("punched")), 0);
}

#[test]
fn without_room_nothing_stays_given_out() {
    let fs = mounted(16 << 20, 16 << 20, 64 << 10);
    // Pieces of nine sectors, every other one free: much space is free, but no run of sixteen sectors for a block.
    let mut pieces = Vec::new();
    loop {
        let name = format!("piece {}", pieces.len());
        let file = create(&fs, &name);
        if fs.allocate(file, 0, 9 * 4096, KEEP_SIZE).is_err() {
            break;
        }
        pieces.push(name);
    }
    let last_piece = fs.lookup(InodeNumber::ROOT, b"piece 0").expect("there");
    assert_eq!((last_piece.size, last_piece.space_512), (0, 72));
    for name in pieces.iter().step_by(2) {
        fs.unlink(InodeNumber::ROOT, name.as_bytes()).expect("removed");
    }
    for name in &pieces[pieces.len() - 40..] {
        let _removed = fs.unlink(InodeNumber::ROOT, name.as_bytes());
    }
    let file = create(&fs, "large");
    fs.write(file, 70_000, &[5; 300], WriteOptions::default()).expect("writes");
    let before = (fs.space().block, fs.attributes(file).expect("there").space_512);
    assert!(before.0.available_bytes > 6 << 20, "{before:?}");
    for mode in [ALLOCATE, KEEP_SIZE, AllocateMode::Zero { keep_size: false }] {
        for length in [before.0.available_bytes - 65_536, 1 << 40] {
            assert!(matches!(fs.allocate(file, 0, length, mode), Err(Error::NoSpace { zone: "block" })), "{mode:?} of {length}");
            let after = (fs.space().block, fs.attributes(file).expect("there"));
            // A block that had logs may keep its space; blocks that were holes do not.
            assert!(before.0.free_bytes - after.0.free_bytes <= 65_536, "{mode:?} of {length}: {before:?}, {after:?}");
            assert_eq!(after.1.size, 70_300);
        }
    }
    let mut bytes = [0; 300];
    fs.read(file, 70_000, &mut bytes).expect("reads");
    assert_eq!(bytes, [5; 300], "zeroing takes its room first");
}

/// A page of a partly written block found no room in a full block zone, although the memory zone had some: a store through a mapping into
/// such a page was lost.
#[test]
fn regression_a_block_with_data_is_written_whole_where_no_block_is_left() {
    let fs = mounted(16 << 20, 16 << 20, 4096);
    let (file, hole) = (create(&fs, "file"), create(&fs, "hole"));
    fs.write(file, 10, &[1; 100], WriteOptions::default()).expect("written");
    for grown in [file, hole] {
        fs.set_attributes(grown, &SetAttributes { size: Some(3 * 4096), ..SetAttributes::default() }).expect("grown");
    }
    let full = create(&fs, "full");
    let mut size = 0;
    while fs.allocate(full, size, 4096, ALLOCATE).is_ok() {
        size += 4096;
    }
    assert_eq!(fs.write(file, 0, &[2; 4096], WriteOptions::default()).expect("the block has data"), 4096);
    let mut found = vec![0; 3 * 4096];
    assert_eq!(fs.read(file, 0, &mut found).expect("read"), found.len());
    assert!(found[..4096].iter().all(|byte| *byte == 2) && found[4096..].iter().all(|byte| *byte == 0));
    assert!(matches!(fs.write(hole, 0, &[2; 4096], WriteOptions::default()), Err(Error::NoSpace { .. })), "a hole has no place");
}

#[test]
fn ranges_without_meaning_are_refused() {
    let fs = mounted(16 << 20, 16 << 20, 64 << 10);
    let file = create(&fs, "file");
    let unshare = AllocateMode::Unshare { keep_size: false };
    let zero = AllocateMode::Zero { keep_size: true };
    for mode in [ALLOCATE, KEEP_SIZE, AllocateMode::Punch, zero, AllocateMode::Collapse, AllocateMode::Insert, unshare] {
        assert!(matches!(fs.allocate(file, 5, 0, mode), Err(Error::InvalidArgument(_))));
        assert!(matches!(fs.allocate(file, u64::MAX, 2, mode), Err(Error::FileTooLarge)));
        assert!(matches!(fs.allocate(file, 1 << 63, 2, mode), Err(Error::FileTooLarge)));
        assert!(matches!(fs.allocate(InodeNumber::ROOT, 0, 1, mode), Err(Error::IsDirectory)));
    }
    assert!(matches!(fs.seek(InodeNumber::ROOT, 0, SeekTo::Data), Err(Error::InvalidArgument(_))));
    assert_eq!(fs.seek(file, 0, SeekTo::Hole).expect("sought"), None);
}

/// A file of 51,200 blocks, of which every 256th holds a byte of its own.
#[test]
fn blocks_of_any_number_move_in_one_transaction() {
    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = 51_200;
    let fs = mounted(64 << 20, 256 << 20, BLOCK as u32);
    let file = create(&fs, "file");
    let before = fs.space();
    fs.allocate(file, 0, BLOCKS * BLOCK, ALLOCATE).expect("room");
    for block in (0..BLOCKS).step_by(256) {
        fs.write(file, block * BLOCK, &[(block / 256) as u8; 16], WriteOptions::default()).expect("writes");
    }
    let byte_at = |block: u64| {
        let mut byte = [0];
        assert_eq!(fs.read(file, block * BLOCK, &mut byte).expect("reads"), 1);
        byte[0]
    };
    // New pages of a region raise its marks in transactions of their own: so the region gets its pages first.
    fs.allocate(file, 0, 256 * BLOCK, AllocateMode::Insert).expect("inserts");
    fs.allocate(file, 0, 256 * BLOCK, AllocateMode::Collapse).expect("collapses");
    fs.checkpoint().expect("home");
    let size = || fs.attributes(file).expect("there").size / BLOCK;
    assert_eq!(transactions(&fs, || fs.allocate(file, 10 * BLOCK, 256 * BLOCK, AllocateMode::Collapse).expect("collapses")), 1);
    assert_eq!((size(), byte_at(0), byte_at(256), byte_at(50_688)), (BLOCKS - 256, 0, 2, 199));
    fs.checkpoint().expect("home");
    assert_eq!(transactions(&fs, || fs.allocate(file, 300 * BLOCK, 7 * BLOCK, AllocateMode::Insert).expect("inserts")), 1);
    assert_eq!((size(), byte_at(256), byte_at(512), byte_at(519)), (BLOCKS - 249, 2, 0, 3));
    assert_eq!(fs.seek(file, 300 * BLOCK, SeekTo::Data).expect("sought"), Some(519 * BLOCK));
    // 192 x 192 blocks are one page of pages: those behind stay where they are on the device.
    let stored = || fs.drive().counters().snapshot().by_structure[Structure::Mapping as usize].byte_written_bytes;
    let before_shift = stored();
    fs.allocate(file, 0, 192 * 192 * BLOCK, AllocateMode::Insert).expect("inserts");
    let stored = stored() - before_shift;
    assert!(stored < 64 << 10, "{stored} B are stored for a shift by a whole page of pages");
    assert_eq!((byte_at(0), byte_at(36_864 + 519)), (0, 3));

    // Space beyond the end moves as well, and cannot move beyond the largest file size.
    let other = create(&fs, "other");
    fs.write(other, 0, &[1; 5000], WriteOptions::default()).expect("writes");
    fs.allocate(other, (1 << 62) + BLOCK, 1, KEEP_SIZE).expect("room");
    assert!(matches!(fs.allocate(other, 0, 1 << 62, AllocateMode::Insert), Err(Error::FileTooLarge)));
    assert_eq!(fs.attributes(other).expect("there").size, 5000);
    assert!(matches!(fs.allocate(other, 0, (1 << 63) - BLOCK, AllocateMode::Insert), Err(Error::FileTooLarge)));

    fs.unlink(InodeNumber::ROOT, b"file").expect("removed");
    fs.unlink(InodeNumber::ROOT, b"other").expect("removed");
    fs.checkpoint().expect("home");
    assert_eq!(fs.space().block, before.block);
}

#[test]
fn parts_of_blocks_do_not_move() {
    let fs = mounted(16 << 20, 16 << 20, 64 << 10);
    let file = create(&fs, "file");
    fs.write(file, 0, &[3; 200_000], WriteOptions::default()).expect("writes");
    let times = |file| fs.attributes(file).map(|found| (found.mtime, found.ctime, found.size, found.space_512)).expect("there");
    let before = times(file);
    for mode in [AllocateMode::Collapse, AllocateMode::Insert] {
        for (offset, length) in [(4096, 65_536), (0, 4096), (0, 65_537), (1, 65_536), (262_144, 65_536)] {
            assert!(matches!(fs.allocate(file, offset, length, mode), Err(Error::InvalidArgument(_))), "{mode:?} {offset} {length}");
        }
    }
    // A range up to the end or over it needs a truncation.
    for (offset, length) in [(131_072, 131_072), (0, 262_144), (196_608, 65_536)] {
        assert!(matches!(fs.allocate(file, offset, length, AllocateMode::Collapse), Err(Error::InvalidArgument(_))));
    }
    assert_eq!(times(file), before);
    fs.allocate(file, 196_608, 65_536, AllocateMode::Insert).expect("right before the last bytes");
    let before = fs.attributes(file).expect("there");
    assert_eq!(before.size, 265_536);
    // Nothing is shared, so `Unshare` gives what `Allocate` gives.
    fs.allocate(file, 196_608, 65_536, AllocateMode::Unshare { keep_size: true }).expect("room");
    assert_eq!(fs.attributes(file).expect("there").space_512, before.space_512 + 128);
}

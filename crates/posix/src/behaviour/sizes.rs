//! Sizes: sparse files, truncation, allocation, holes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use crate::scene::{Difference, Scene, refused};
use crate::sys::{self, Mapping};

const TEBIBYTE: u64 = 1 << 40;

pub(crate) fn open(scene: &Scene<'_>, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(scene.path(name)).expect("opened")
}

/// Bytes that repeat in no power of two, never 0.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|position| ((position + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 | 1).collect()
}

pub(crate) fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("open").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    bytes
}

pub(crate) fn sparse_to_16_tebibytes(scene: &Scene<'_>) {
    let file = open(scene, "file");
    // ext4's last byte with blocks of 4 KiB is that before 16 TiB less a block.
    let end = 16 * TEBIBYTE - 4096;
    for offset in [0, TEBIBYTE - 1, 5 * TEBIBYTE + 12_345, end - 10] {
        file.write_all_at(b"0123456789", offset).expect("written");
    }
    assert_eq!(file.metadata().expect("open").len(), end);
    let mut bytes = [1; 30];
    file.read_exact_at(&mut bytes, TEBIBYTE - 11).expect("read");
    assert_eq!(&bytes, b"\0\0\0\0\0\0\0\0\0\x000123456789\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(file.read_at(&mut bytes, end - 3).expect("read"), 3);
    file.sync_all().expect("synced");
    drop(file);
    assert!(fs::metadata(scene.path("file")).expect("there").blocks() * 512 < 4 << 20, "holes take no space");
    let file = open(scene, "file");
    file.set_len(TEBIBYTE).expect("truncated");
    file.set_len(3 * TEBIBYTE).expect("grown");
    assert_eq!(file.read_at(&mut bytes, 2 * TEBIBYTE).expect("read"), 30);
    assert_eq!(bytes, [0; 30]);
}

pub(crate) fn offsets_near_the_end_of_numbers(scene: &Scene<'_>) {
    let file = open(scene, "file");
    file.write_all_at(b"kept", 0).expect("written");
    refused(sys::truncate_raw(&file, -1), Errno::INVAL);
    refused(sys::write_at_raw(&file, b"x", -1), Errno::INVAL);
    refused(sys::write_at_raw(&file, b"x", i64::MAX), Errno::INVAL);
    refused(sys::allocate_raw(&file, 0, i64::MAX - 10, 11), Errno::FBIG);
    refused(sys::allocate_raw(&file, 0, -1, 1), Errno::INVAL);
    refused(sys::allocate_raw(&file, 0, 0, -1), Errno::INVAL);
    assert_eq!(file.read_at(&mut [0], i64::MAX as u64 - 1).expect("nothing there"), 0);
    if scene.differs(Difference::SixteenTebibytes) {
        sys::truncate_raw(&file, i64::MAX).expect("the largest file");
        assert_eq!(file.metadata().expect("open").len(), i64::MAX as u64);
        assert_eq!(sys::write_at_raw(&file, b"x", i64::MAX - 1).expect("the last byte"), 1);
        file.sync_all().expect("synced");
    } else {
        refused(sys::truncate_raw(&file, i64::MAX), Errno::FBIG);
        refused(sys::write_at_raw(&file, b"x", i64::MAX - 1), Errno::FBIG);
    }
    file.set_len(4).expect("truncated");
    assert_eq!(contents(&file), b"kept");
}

pub(crate) fn truncation_both_ways(scene: &Scene<'_>) {
    let bytes = pattern(3, 150_000);
    for (kept, grown) in [(100_001, 120_000), (65_536, 70_000), (65_535, 65_537), (4097, 8191), (5, 4096), (0, 10), (1, 140_000)] {
        let file = open(scene, "file");
        file.write_all_at(&bytes, 0).expect("written");
        file.set_len(150_000).expect("the size that it has");
        // What a mapping stored beyond the end is no part of the file.
        file.set_len(kept as u64).expect("shrunk");
        if kept % 4096 != 0 {
            let mapping = Mapping::new(&file, kept, true, true).expect("mapped");
            let last_page = kept / 4096 * 4096;
            let beyond = Mapping::at(&file, last_page as u64, 4096, true, true).expect("mapped");
            beyond.set(4095, b"!");
            mapping.sync().expect("synced");
        }
        file.set_len(grown as u64).expect("grown");
        let found = contents(&file);
        assert!(found[..kept] == bytes[..kept], "what was kept at {kept}");
        assert!(found[kept..].iter().all(|byte| *byte == 0), "zeros from {kept} to {grown}");
        // A write behind the end does the same.
        file.set_len(kept as u64).expect("shrunk");
        file.write_all_at(b"end", grown as u64).expect("written");
        let found = contents(&file);
        assert!(found[kept..grown].iter().all(|byte| *byte == 0) && found[grown..] == *b"end", "zeros before a write at {grown}");
    }
    fs::write(scene.path("file"), "").expect("O_TRUNC");
    assert_eq!(fs::metadata(scene.path("file")).expect("there").blocks(), 0);
}

pub(crate) fn allocation_modes(scene: &Scene<'_>) {
    let file = open(scene, "file");
    let mut expected = pattern(1, 300_000);
    file.write_all_at(&expected, 0).expect("written");
    let (keep, punch, zero) = (FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
    let mut same = |mode: FallocateFlags, offset: usize, length: usize| {
        rustix::fs::fallocate(&file, mode, offset as u64, length as u64).unwrap_or_else(|error| panic!("{mode:?} at {offset}: {error}"));
        let end = offset + length;
        if !mode.contains(keep) && end > expected.len() {
            expected.resize(end, 0);
        }
        let end = end.min(expected.len());
        if mode.intersects(punch | zero) && offset < end {
            expected[offset..end].fill(0);
        }
        assert_eq!(file.metadata().expect("open").len(), expected.len() as u64, "{mode:?} at {offset}: size");
        assert!(contents(&file) == expected, "{mode:?} at {offset}: bytes");
    };
    same(FallocateFlags::empty(), 100, 1000);
    same(FallocateFlags::empty(), 299_000, 70_001);
    same(keep, 360_000, 100_000);
    same(punch | keep, 65_536, 65_536);
    same(punch | keep, 10, 20);
    same(punch | keep, 4095, 4098);
    same(punch | keep, 360_000, 1 << 20);
    same(zero | keep, 131_000, 1000);
    same(zero | keep, 368_000, 100_000);
    same(zero, 200_000, 1);
    same(zero, 360_000, 40_000);
    same(punch | keep, 0, 400_000);
    drop(file);
    // Allocated ranges use space, punched ranges do not.
    let blocks = |name: &str| fs::metadata(scene.path(name)).expect("there").blocks() * 512;
    assert!(blocks("file") <= 132_000, "{} B are left of a punched file", blocks("file"));
    let given = open(scene, "given");
    rustix::fs::fallocate(&given, keep, 0, 8 << 20).expect("given out");
    drop(given);
    assert_eq!(fs::metadata(scene.path("given")).expect("there").len(), 0);
    assert!((8 << 20..9 << 20).contains(&blocks("given")), "{}", blocks("given"));
    open(scene, "given").set_len(0).expect("truncated");
    assert_eq!(blocks("given"), 0, "a truncation takes back what was given out behind the end");
}

pub(crate) fn allocation_refusals(scene: &Scene<'_>) {
    let file = open(scene, "file");
    file.write_all_at(&pattern(2, 131_072), 0).expect("written");
    let (keep, punch) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE);
    refused(sys::allocate_raw(&file, 0, 0, 0), Errno::INVAL);
    refused(sys::allocate_raw(&file, punch, 0, 4096), Errno::OPNOTSUPP);
    refused(sys::allocate_raw(&file, punch | keep | libc::FALLOC_FL_ZERO_RANGE, 0, 4096), Errno::OPNOTSUPP);
    refused(sys::allocate_raw(&file, 1 << 20, 0, 4096), Errno::OPNOTSUPP);
    refused(sys::allocate_raw(&File::open(scene.path("file")).expect("opened"), 0, 0, 4096), Errno::BADF);
    refused(sys::allocate_raw(&File::open(scene.directory()).expect("opened"), 0, 0, 4096), Errno::BADF);
    for mode in [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE] {
        let result = sys::allocate_raw(&file, mode, 0, 65_536);
        if scene.differs(Difference::NoCollapse) {
            refused(result, Errno::OPNOTSUPP);
        } else {
            result.expect("ext4 can");
        }
    }
    assert_eq!(file.metadata().expect("open").len(), 131_072);
}

pub(crate) fn holes_and_data(scene: &Scene<'_>) {
    let file = open(scene, "file");
    file.set_len(10 << 20).expect("grown");
    file.write_all_at(&pattern(1, 65_536), 2 << 20).expect("written");
    file.write_all_at(&pattern(1, 65_536), 5 << 20).expect("written");
    file.sync_all().expect("synced");
    let (data, hole) = (|offset| rustix::fs::seek(&file, SeekFrom::Data(offset)), |offset| rustix::fs::seek(&file, SeekFrom::Hole(offset)));
    let size = 10 << 20;
    refused(data(size), Errno::NXIO);
    refused(hole(size), Errno::NXIO);
    refused(data(size + 1), Errno::NXIO);
    if scene.differs(Difference::HolesAreData) {
        assert_eq!((data(0), data(7 << 20), hole(0)), (Ok(0), Ok(7 << 20), Ok(size)));
    } else {
        assert_eq!((data(0), data(2 << 20), data((2 << 20) + 100)), (Ok(2 << 20), Ok(2 << 20), Ok((2 << 20) + 100)));
        assert_eq!((data(3 << 20), hole(0), hole(2 << 20)), (Ok(5 << 20), Ok(0), Ok((2 << 20) + 65_536)));
        assert_eq!(hole((5 << 20) + 1), Ok((5 << 20) + 65_536));
        refused(data(6 << 20), Errno::NXIO);
    }
    let full = open(scene, "full");
    full.write_all_at(&pattern(1, 100_000), 0).expect("written");
    full.sync_all().expect("synced");
    assert_eq!(rustix::fs::seek(&full, SeekFrom::Hole(5)), Ok(100_000), "the end is a hole");
}

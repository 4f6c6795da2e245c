//! Reads: read-ahead and promoted copies are never older than the last write and take no space that is needed; damage is reported where it
//! is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tandemfs_crash::{MemoryDevice, check_device};
use tandemfs_device::{BlockPath, BlockRequest, BytePath, Drive, PersistenceDomain};
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{InodeNumber, Sector};
use tandemfs_fs::{
    AllocateMode, Error, FileSystem, FormatOptions, MountOptions, NewInode, Promote, SetAttributes, WriteOptions, make_file_system,
};

const SECTOR: usize = 4096;
const BLOCK: usize = 64 << 10;

fn formatted(checksum_kind: ChecksumKind) -> MemoryDevice {
    let device = MemoryDevice::new(32 << 20, 64 << 20, PersistenceDomain::Gpf);
    let options = FormatOptions { checksum_kind, ..FormatOptions::default() };
    make_file_system(&Drive::new(Arc::new(device.clone())), &options).expect("mkfs");
    device
}

fn mount(device: &MemoryDevice, promote: Promote, read_ahead_bytes: u32) -> FileSystem {
    let options = MountOptions { promote, read_ahead_bytes, ..MountOptions::default() };
    FileSystem::mount(Drive::new(Arc::new(device.clone())), &options).expect("mounts")
}

fn create(fs: &FileSystem, name: &str) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name.as_bytes(), &new).expect("creates").inode
}

fn content(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 13 + at / SECTOR * 31 + seed * 7) as u8).collect()
}

fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: &[u8]) {
    assert_eq!(fs.write(file, offset, bytes, WriteOptions::default()).expect("writes"), bytes.len());
}

fn read(fs: &FileSystem, file: InodeNumber, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; length];
    let read = fs.read(file, offset, &mut bytes).expect("reads");
    bytes.truncate(read);
    bytes
}

fn block_reads(fs: &FileSystem) -> u64 {
    fs.drive().counters().snapshot().block_reads
}

/// The place of the sector with this content.
fn place_of(device: &MemoryDevice, bytes: &[u8]) -> Sector {
    let mut sector = vec![0; SECTOR];
    (0..(64 << 20) / SECTOR as u64)
        .map(Sector::new)
        .find(|number| {
            device.transfer(&mut [BlockRequest::Read { sector: *number, buffer: (&mut sector).into() }], &mut || {}).expect("reads");
            sector == bytes
        })
        .expect("the content is on the device")
}

#[test]
fn a_sequential_reader_waits_for_the_drive_once_a_window() {
    let device = formatted(ChecksumKind::Crc32c);
    let data = content(1, 4 << 20);
    let mut requests = Vec::new();
    for read_ahead_bytes in [0, 1 << 20] {
        let fs = mount(&device, Promote::Off, read_ahead_bytes);
        let file = fs.lookup(InodeNumber::ROOT, b"file").map(|found| found.inode).unwrap_or_else(|_| {
            let file = create(&fs, "file");
            write(&fs, file, 0, &data);
            file
        });
        let before = block_reads(&fs);
        for (step, expected) in data.chunks(5000).enumerate() {
            assert!(read(&fs, file, step as u64 * 5000, 5000) == expected, "step {step}");
        }
        requests.push(block_reads(&fs) - before);
        let hits = fs.statistics().work.read_ahead_hits;
        assert_eq!(hits > 0, read_ahead_bytes > 0);
        assert!(fs.memory_bytes() <= MountOptions::default().memory_bytes);
        fs.unmount().expect("unmounts");
    }
    assert!(requests[0] >= 838 && requests[1] <= 16, "requests without and with read-ahead: {requests:?}");
}

#[test]
fn what_was_read_ahead_is_not_served_after_a_change() {
    let fs = mount(&formatted(ChecksumKind::Crc32c), Promote::Off, 1 << 20);
    let file = create(&fs, "file");
    let mut expected = content(1, 1 << 20);
    write(&fs, file, 0, &expected);
    let sequential = |expected: &[u8], from: usize| {
        for (step, bytes) in expected[from..].chunks(3000).enumerate().take(3) {
            assert!(read(&fs, file, (from + step * 3000) as u64, bytes.len()) == bytes, "step {step} from {from}");
        }
    };
    let change = |fs: &FileSystem, expected: &mut Vec<u8>, round: usize| match round {
        0 => {
            write(fs, file, 70_000, &content(2, 100)); // a log
            expected[70_000..70_100].copy_from_slice(&content(2, 100));
        }
        1 => {
            write(fs, file, BLOCK as u64, &content(3, 2 * BLOCK)); // blocks
            expected[BLOCK..3 * BLOCK].copy_from_slice(&content(3, 2 * BLOCK));
        }
        2 => {
            fs.allocate(file, 66_000, 40_000, AllocateMode::Punch).expect("punched");
            expected[66_000..106_000].fill(0);
        }
        3 => {
            fs.allocate(file, 2 * BLOCK as u64, BLOCK as u64, AllocateMode::Zero { keep_size: true }).expect("zeroed");
            expected[2 * BLOCK..3 * BLOCK].fill(0);
        }
        4 => {
            fs.write_back().expect("written back");
        }
        _ => {
            let size = SetAttributes { size: Some(100_000), ..SetAttributes::default() };
            fs.set_attributes(file, &size).expect("cut");
            write(fs, file, 150_000, b"behind the end");
            expected.truncate(100_000);
            expected.resize(150_000, 0);
            expected.extend_from_slice(b"behind the end");
        }
    };
    for round in 0..6 {
        sequential(&expected, 60_000);
        assert!(read(&fs, file, 69_000, 3000) == expected[69_000..72_000], "the window is there");
        change(&fs, &mut expected, round);
        sequential(&expected, 69_000);
        assert!(read(&fs, file, 0, expected.len() + 1) == expected, "round {round}");
    }
}

/// Readers race a writer that keeps every 4 KiB of the file equal to one number, over both paths; what they see never goes back.
#[test]
fn racing_readers_never_see_older_bytes() {
    for (promote, checksum_kind) in
        [(Promote::EveryRead, ChecksumKind::None), (Promote::Off, ChecksumKind::Crc32c), (Promote::Hot, ChecksumKind::Crc32c)]
    {
        let fs = mount(&formatted(checksum_kind), promote, 256 << 10);
        let file = create(&fs, "file");
        const PAGES: usize = 128;
        write(&fs, file, 0, &[0; PAGES * SECTOR]);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut seen = [0; PAGES];
                    while !ended.load(Relaxed) {
                        for (page, seen) in seen.iter_mut().enumerate() {
                            let found = read(&fs, file, (page * SECTOR) as u64, SECTOR);
                            assert!(found.iter().all(|byte| *byte == found[0]), "page {page} is of two writes");
                            assert!(found[0] >= *seen, "page {page} goes back from {seen} to {}", found[0]);
                            *seen = found[0];
                        }
                    }
                });
            }
            for round in 1..=60_u8 {
                match round % 3 {
                    0 => write(&fs, file, 0, &[round; PAGES * SECTOR]),
                    1 => (0..PAGES).step_by(16).for_each(|page| write(&fs, file, (page * SECTOR) as u64, &[round; BLOCK])),
                    _ => (0..PAGES).step_by(5).for_each(|page| write(&fs, file, (page * SECTOR) as u64, &[round; SECTOR])),
                }
                if round % 7 == 0 {
                    fs.write_back().expect("written back");
                }
            }
            ended.store(true, Relaxed);
        });
        fs.unmount().expect("unmounts");
    }
}

#[test]
fn a_hot_sector_is_copied_at_its_second_read_and_read_by_bytes_then() {
    let device = formatted(ChecksumKind::Crc32c);
    let fs = mount(&device, Promote::Hot, 0);
    let file = create(&fs, "file");
    let data = content(1, 6 * BLOCK);
    write(&fs, file, 0, &data);
    let free = fs.space().memory;
    let blocks_for = |count: usize| {
        let before = block_reads(&fs);
        for _ in 0..count {
            assert!(read(&fs, file, 9000, 5000) == data[9000..14_000]);
        }
        block_reads(&fs) - before
    };
    assert_eq!((blocks_for(1), fs.statistics().work.promotions), (1, 0));
    assert_eq!((blocks_for(1), fs.statistics().work.promotions), (1, 2));
    assert_eq!((blocks_for(5), fs.statistics().work.promoted_reads), (0, 5));
    let space = fs.space().memory;
    assert_eq!((space.promoted_bytes, space.free_bytes, space.data_log_bytes), (8192, free.free_bytes, free.data_log_bytes));
    for _ in 0..3 {
        assert!(read(&fs, file, 0, 5 * BLOCK) == data[..5 * BLOCK]);
    }
    assert_eq!(fs.statistics().work.promotions, 2, "a large read gains nothing by bytes");
    for blocks in [1, 1, 0] {
        let before = block_reads(&fs);
        assert!(read(&fs, file, 0, BLOCK) == data[..BLOCK]);
        assert_eq!(block_reads(&fs) - before, blocks);
    }
    assert_eq!(fs.statistics().work.promotions, 16, "the sectors of a block beside each other");
    fs.unmount().expect("unmounts");
    assert_eq!(fs.space().memory.promoted_bytes, 0);
    check_device(&device, false).expect("the saved maps know no copies");
    let again = mount(&device, Promote::Hot, 0);
    assert_eq!(again.space().memory, free);
    assert!(read(&again, create(&again, "other"), 0, 10).is_empty());
}

/// Without checksums nothing but [PR2] keeps an old copy from being read.
#[test]
fn a_copy_goes_with_its_sector() {
    for checksum_kind in [ChecksumKind::None, ChecksumKind::Crc32c] {
        let fs = mount(&formatted(checksum_kind), Promote::EveryRead, 0);
        let file = create(&fs, "file");
        let mut expected = content(1, 3 * BLOCK);
        write(&fs, file, 0, &expected);
        for round in 0..40 {
            assert!(read(&fs, file, 0, expected.len()) == expected, "before round {round}");
            assert!(fs.space().memory.promoted_bytes > 0);
            let at = round % 3 * BLOCK;
            match round % 5 {
                // Zeroed in place, then filled in place: the same sectors get other bytes.
                0 => {
                    fs.allocate(file, at as u64, BLOCK as u64, AllocateMode::Zero { keep_size: true }).expect("zeroed");
                    expected[at..at + BLOCK].fill(0);
                    assert!(read(&fs, file, 0, expected.len()) == expected, "zeroed in round {round}");
                    write(&fs, file, at as u64, &content(round, BLOCK));
                    expected[at..at + BLOCK].copy_from_slice(&content(round, BLOCK));
                }
                1 | 2 => {
                    write(&fs, file, at as u64, &content(round, BLOCK));
                    expected[at..at + BLOCK].copy_from_slice(&content(round, BLOCK));
                }
                3 => {
                    write(&fs, file, at as u64 + 100, &content(round, 9000));
                    expected[at + 100..at + 9100].copy_from_slice(&content(round, 9000));
                    fs.write_back().expect("written back");
                }
                _ => {
                    fs.allocate(file, at as u64, BLOCK as u64, AllocateMode::Punch).expect("punched");
                    write(&fs, file, at as u64, &content(round, BLOCK));
                    expected[at..at + BLOCK].copy_from_slice(&content(round, BLOCK));
                }
            }
            assert!(read(&fs, file, 0, expected.len()) == expected, "after round {round}");
        }
        fs.unlink(InodeNumber::ROOT, b"file").expect("unlinked");
        fs.checkpoint().expect("home");
        assert_eq!(fs.space().memory.promoted_bytes, 0, "nothing has those sectors any more");
    }
}

#[test]
fn copies_go_before_anything_fails_for_space_and_before_write_back() {
    let fs = mount(&formatted(ChecksumKind::Crc32c), Promote::EveryRead, 0);
    let (blocks, logs) = (create(&fs, "blocks"), create(&fs, "logs"));
    let data = content(1, 32 << 20);
    write(&fs, blocks, 0, &data);
    assert!(read(&fs, blocks, 0, data.len()) == data);
    let full = fs.space().memory;
    assert!(full.promoted_bytes > full.total_bytes / 4, "{full:?}");
    assert!(full.promoted_bytes * 100 < full.free_bytes * 86, "some space stays as it is: {full:?}");
    let mut written = 0;
    while fs.space().memory.free_bytes > full.free_bytes / 20 {
        write(&fs, logs, written * BLOCK as u64, &content(written as usize, SECTOR));
        written += 1;
    }
    assert_eq!(fs.space().memory.promoted_bytes, 0, "no copy is left");
    assert_eq!(fs.statistics().work.block_write_backs, 0, "and nothing had to be written back for it");
    for number in 0..written {
        assert!(read(&fs, logs, number * BLOCK as u64, SECTOR) == content(number as usize, SECTOR), "log {number}");
    }
    assert!(read(&fs, blocks, 0, data.len()) == data);
    assert_eq!(fs.space().memory.promoted_bytes, 0, "none is taken while space is short");
}

#[test]
fn a_copy_that_is_damaged_is_forgotten() {
    let device = formatted(ChecksumKind::Crc32c);
    let fs = mount(&device, Promote::EveryRead, 0);
    let file = create(&fs, "file");
    let data = content(5, BLOCK);
    write(&fs, file, 0, &data);
    for _ in 0..2 {
        assert!(read(&fs, file, 0, SECTOR) == data[..SECTOR]);
    }
    assert_eq!(fs.statistics().work.promoted_reads, 1);
    let mut page = vec![0; SECTOR];
    let at = (0..(32 << 20) / SECTOR as u64)
        .map(|page| page * SECTOR as u64)
        .find(|at| device.load(*at, &mut page).is_ok() && page == data[..SECTOR])
        .expect("the copy is in the memory zone");
    device.store(at + 77, &[0xff; 3]).expect("stored");
    assert!(read(&fs, file, 0, SECTOR) == data[..SECTOR]);
    assert_eq!(fs.statistics().work.promoted_reads, 1, "the sector was read");
    assert!(read(&fs, file, 0, SECTOR) == data[..SECTOR]);
    assert_eq!(fs.statistics().work.promoted_reads, 2, "and copied anew");
}

#[test]
fn damage_is_told_where_it_is_and_its_neighbours_are_read() {
    let device = formatted(ChecksumKind::Crc32c);
    let fs = mount(&device, Promote::Off, 1 << 20);
    let file = create(&fs, "file");
    let data = content(9, 12 * BLOCK);
    write(&fs, file, 0, &data);
    write(&fs, file, 100_000, &[7; 300]); // a log over block 1
    let mut bad = Vec::new();
    // In the first part of a request, in a later one, in the last sector.
    for index in [0, 50, 191] {
        let sector = place_of(&device, &data[index * SECTOR..(index + 1) * SECTOR]);
        device.transfer(&mut [BlockRequest::Write { sector, buffer: (&[0xdb; SECTOR]).into() }], &mut || {}).expect("written");
        bad.push(index);
    }
    let damage = |offset: usize, length: usize| match fs.read(file, offset as u64, &mut vec![0; length]) {
        Ok(read) => {
            assert_eq!(read, length);
            None
        }
        Err(Error::DamagedData { inode, offset }) if inode == file => Some(offset as usize),
        Err(other) => panic!("{other}"),
    };
    assert_eq!(damage(0, data.len()), Some(0), "the first of them");
    assert_eq!(damage(SECTOR, data.len() - SECTOR), Some(50 * SECTOR));
    assert_eq!(damage(51 * SECTOR + 5, 141 * SECTOR - 5), Some(191 * SECTOR));
    for sector in 0..data.len() / SECTOR {
        assert_eq!(damage(sector * SECTOR, SECTOR), bad.contains(&sector).then_some(sector * SECTOR), "sector {sector}");
    }
    // A sequential reader gets the error at the damaged sector, not earlier by read-ahead.
    let mut expected = data.clone();
    expected[100_000..100_300].fill(7);
    for step in 1..50 {
        assert!(read(&fs, file, (step * SECTOR) as u64, SECTOR) == expected[step * SECTOR..(step + 1) * SECTOR], "step {step}");
    }
    // The log.
    let mut line = vec![0; 256];
    let at = (0..(32 << 20) / 256_u64)
        .map(|slot| slot * 256)
        .find(|at| device.load(*at, &mut line).is_ok() && line == [7; 256])
        .expect("the log is in the memory zone");
    device.store(at + 99, &[8]).expect("stored");
    fs.drop_file_pages(file).expect("dropped");
    assert_eq!(damage(SECTOR, 40 * SECTOR), Some(100_000));
    assert_eq!(damage(100_299, 10), Some(100_000));
    assert_eq!((damage(99_000, 1000), damage(100_300, 1000)), (None, None));
}

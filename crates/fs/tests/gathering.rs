//! A memory half alone that is filled and filled again with something of another size: whole units come back from sparse ones
//! (`alloc/gathering.rs`), nothing leaks, and check finds nothing. And a file that moves to the memory zone beside sparse logs.

use std::sync::Arc;

use tandemfs_crash::{MemoryDevice, Recorded, check_device, fill};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, FormatOptions, Home, MountOptions, NewInode, SetAttributes, WriteOptions, make_file_system};

const ROOT: InodeNumber = InodeNumber::ROOT;
const MIB: u64 = 1 << 20;
const MEMORY: u64 = 96 * MIB;
/// Bytes of a small file: a slot of 1 KiB.
const SMALL: usize = 1000;

fn device(block_zone_bytes: u64, block_bytes: u32) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(MEMORY, block_zone_bytes, PersistenceDomain::Adr));
    let options = FormatOptions { block_bytes, ..FormatOptions::default() };
    make_file_system(&Drive::new(device.clone()), &options).expect("mkfs");
    device
}

fn mounted(device: &Arc<MemoryDevice>) -> FileSystem {
    FileSystem::mount(Drive::new(device.clone()), &MountOptions::default()).expect("mounts")
}

fn create(fs: &FileSystem, name: &str) -> Result<InodeNumber, Error> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(ROOT, name.as_bytes(), &new).map(|made| made.inode)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: &[u8]) -> Result<(), Error> {
    assert_eq!(fs.write(file, offset, bytes, WriteOptions::default())?, bytes.len());
    Ok(())
}

/// Makes small files until there is no room. Returns their number.
fn fill_with_small(fs: &FileSystem, name: &str, most: u64) -> u64 {
    for number in 0..most {
        let made = create(fs, &format!("{name}{number}"))
            .and_then(|file| write(fs, file, 0, &fill(number, SMALL)))
            .map_err(|error| assert!(matches!(error, Error::NoSpace { .. }), "{error}"));
        if made.is_err() {
            return number;
        }
    }
    most
}

/// Removes small files, but one of so many.
fn thin_out(fs: &FileSystem, name: &str, count: u64, one_in: u64) {
    for number in (0..count).filter(|number| number % one_in > 0) {
        fs.unlink(ROOT, format!("{name}{number}").as_bytes()).expect("removed");
    }
    fs.checkpoint().expect("home");
}

fn verify_small(fs: &FileSystem, name: &str, count: u64, one_in: u64) {
    let mut bytes = vec![0; SMALL + 1];
    for number in (0..count).filter(|number| number % one_in == 0) {
        let file = fs.lookup(ROOT, format!("{name}{number}").as_bytes()).expect("there").inode;
        assert_eq!(fs.read(file, 0, &mut bytes).expect("read"), SMALL, "{name}{number}");
        assert!(bytes[..SMALL] == fill(number, SMALL), "{name}{number}");
    }
}

/// Writes a file of 1 MiB pieces until there is no room. Returns its length.
fn fill_with_large(fs: &FileSystem, file: InodeNumber, each: usize) -> u64 {
    for piece in 0.. {
        if let Err(error) = write(fs, file, piece * each as u64, &fill(piece, each)) {
            assert!(matches!(error, Error::NoSpace { .. }), "{error}");
            return piece * each as u64;
        }
    }
    unreachable!("the zone is bounded")
}

fn verify_large(fs: &FileSystem, file: InodeNumber, length: u64, each: usize) {
    let mut bytes = vec![0; each];
    for piece in 0..length / each as u64 {
        assert_eq!(fs.read(file, piece * each as u64, &mut bytes).expect("read"), each);
        assert!(bytes == fill(piece, each), "piece {piece}");
    }
}

/// Free bytes once nothing waits for a checkpoint.
fn free(fs: &FileSystem) -> u64 {
    fs.checkpoint().expect("home");
    fs.space().memory.free_bytes
}

fn end(fs: FileSystem, device: &Arc<MemoryDevice>) {
    free(&fs);
    let space = fs.space().memory;
    fs.unmount().expect("unmounts");
    let counts = check_device(device, false).unwrap_or_else(|found| panic!("{found}"));
    assert_eq!((space.data_log_bytes, space.extent_bytes), (counts.log_slot_bytes, counts.pages * 4096), "what is counted is named");
}

/// A large file was refused beside units of data logs with one log in fifty.
#[test]
fn regression_a_large_file_gets_units_of_sparse_logs() {
    for block_bytes in [4 << 10, 64 << 10] {
        let device = device(0, block_bytes);
        let fs = mounted(&device);
        let count = fill_with_small(&fs, "s", u64::MAX);
        assert!(count > 50_000, "{count}");
        thin_out(&fs, "s", count, 50);
        let room = free(&fs);
        let large = create(&fs, "large").expect("room");
        let length = fill_with_large(&fs, large, MIB as usize);
        assert!(length + 12 * MIB > room, "{length} of {room} B, {block_bytes} B a block");
        verify_large(&fs, large, length, MIB as usize);
        verify_small(&fs, "s", count, 50);
        fs.unlink(ROOT, b"large").expect("removed");
        assert!(free(&fs) + MIB >= room, "{} of {room} B are free again", free(&fs));
        end(fs, &device);
        let fs = mounted(&device);
        verify_small(&fs, "s", count, 50);
        end(fs, &device);
    }
}

/// The reverse: names and inodes after what is left of large files, of which each unit keeps some pages.
#[test]
fn names_get_units_of_sparse_extents() {
    for block_bytes in [4 << 10, 16 << 10] {
        let device = device(0, block_bytes);
        let fs = mounted(&device);
        let each = block_bytes as usize;
        let (kept, removed) = (create(&fs, "kept").expect("room"), create(&fs, "removed").expect("room"));
        // The extents of both files lie among one another.
        let mut pieces = 0;
        for piece in 0.. {
            let file = if piece % 8 == 0 { kept } else { removed };
            let offset = if piece % 8 == 0 { piece / 8 } else { piece - piece / 8 - 1 };
            if write(&fs, file, offset * u64::from(block_bytes), &fill(offset, each)).is_err() {
                break;
            }
            pieces = piece + 1;
        }
        fs.unlink(ROOT, b"removed").expect("removed");
        let room = free(&fs);
        let length = pieces.div_ceil(8) * u64::from(block_bytes);
        let count = fill_with_small(&fs, "s", 4000);
        assert_eq!(count, 4000);
        // Names and inodes have no place in what is left of a unit: 192 B for each.
        let mut empty = 0;
        let new = |kind: u16| NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" };
        let directory = fs.create(ROOT, b"d", &new(file_type::DIRECTORY)).expect("room").inode;
        while fs.create(directory, format!("e{empty}").as_bytes(), &new(file_type::REGULAR)).is_ok() {
            empty += 1;
        }
        assert!(empty * 192 + count * 4288 + 16 * MIB > room, "{empty} files in {room} B, {block_bytes} B a block");
        verify_small(&fs, "s", count, 1);
        verify_large(&fs, kept, length, each);
        (0..empty).for_each(|number| fs.unlink(directory, format!("e{number}").as_bytes()).expect("removed"));
        fs.remove_directory(ROOT, b"d").expect("removed");
        (0..count).for_each(|number| fs.unlink(ROOT, format!("s{number}").as_bytes()).expect("removed"));
        let again = create(&fs, "again").expect("room");
        let length = fill_with_large(&fs, again, MIB as usize);
        assert!(length + 24 * MIB > room, "{length} of {room} B again");
        verify_large(&fs, again, length, MIB as usize);
        end(fs, &device);
    }
}

/// Work goes on while units are emptied: what is removed, appended to and overwritten meanwhile is neither lost nor leaks.
#[test]
fn units_are_emptied_beside_writers() {
    let device = device(0, 16 << 10);
    let fs = Arc::new(mounted(&device));
    let count = fill_with_small(&fs, "s", u64::MAX);
    thin_out(&fs, "s", count, 20);
    let large = create(&fs, "large").expect("room");
    let kept: Vec<u64> = (0..count).filter(|number| number % 20 == 0).collect();
    let length = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in &kept {
                let file = fs.lookup(ROOT, format!("s{number}").as_bytes()).expect("there").inode;
                let result = match number % 3 {
                    0 => write(&fs, file, 0, &fill(*number, SMALL)),
                    1 => write(&fs, file, SMALL as u64, &[7; 10]).and_then(|()| {
                        fs.set_attributes(file, &SetAttributes { size: Some(SMALL as u64), ..SetAttributes::default() }).map(drop)
                    }),
                    _ => Ok(()),
                };
                if let Err(error) = result {
                    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
                }
            }
        });
        let length = fill_with_large(&fs, large, MIB as usize);
        writer.join().expect("no panic");
        length
    });
    for number in &kept {
        let file = fs.lookup(ROOT, format!("s{number}").as_bytes()).expect("there").inode;
        let mut bytes = vec![0; SMALL];
        assert_eq!(fs.read(file, 0, &mut bytes).expect("read"), SMALL);
        assert!(bytes == fill(*number, SMALL), "s{number}");
    }
    verify_large(&fs, large, length, MIB as usize);
    let Ok(fs) = Arc::try_unwrap(fs) else { panic!("the writer has ended") };
    end(fs, &device);
}

/// On a drive with blocks: a file moves to the memory zone, where only sparse units of logs have room for it.
#[test]
fn a_file_moves_home_beside_sparse_logs() {
    let device = device(128 * MIB, 64 << 10);
    let fs = mounted(&device);
    let file = create(&fs, "file").expect("room");
    let length = fill_with_large_of(&fs, file, 40);
    let marker = create(&fs, "marker").expect("room");
    fs.set_home(marker, Home::Memory).expect("has a home");
    // Until a small write takes the block path.
    let mut count = 0;
    loop {
        let before = fs.space().memory.data_log_bytes;
        let made = create(&fs, &format!("s{count}")).expect("room");
        write(&fs, made, 0, &fill(count, SMALL)).expect("written");
        count += 1;
        if fs.space().memory.data_log_bytes <= before {
            break;
        }
    }
    thin_out(&fs, "s", count, 50);
    fs.set_home(file, Home::Memory).expect("units are emptied for it");
    while fs.bytes_from_home(file).expect("there") > 0 {
        let before = fs.bytes_from_home(file).expect("there");
        fs.retry_moves();
        while fs.move_homes().expect("moves") {}
        if fs.bytes_from_home(file).expect("there") == before {
            let mut block = Some(0);
            while let Some(at) = block {
                block = fs.move_home(file, at).expect("units are emptied for it");
            }
        }
    }
    verify_large(&fs, file, length, MIB as usize);
    verify_small(&fs, "s", count, 50);
    end(fs, &device);
}

fn fill_with_large_of(fs: &FileSystem, file: InodeNumber, mib: u64) -> u64 {
    (0..mib).for_each(|piece| write(fs, file, piece * MIB, &fill(piece, MIB as usize)).expect("room"));
    mib * MIB
}

/// Damage of a log in a sparse unit: it stays an error, at its place, and all else moves.
#[test]
fn a_damaged_log_stays_where_it_is() {
    let device = device(0, 16 << 10);
    let fs = mounted(&device);
    let count = fill_with_small(&fs, "s", 40_000);
    thin_out(&fs, "s", count, 100);
    fs.unmount().expect("unmounts");
    // The bytes of file s200, wherever its log is.
    let bytes = fill(200, SMALL);
    device.damage(|Recorded { memory, .. }| {
        let line = memory.chunks_exact_mut(64).find(|line| **line == bytes[..64]).expect("the log starts with a line");
        line[0] ^= 1;
    });
    let fs = mounted(&device);
    let file = fs.lookup(ROOT, b"s200").expect("there").inode;
    let read = |fs: &FileSystem| fs.read(file, 0, &mut [0; SMALL]);
    assert!(matches!(read(&fs), Err(Error::DamagedData { .. })));
    let large = create(&fs, "large").expect("room");
    fill_with_large(&fs, large, MIB as usize);
    assert!(fs.statistics().work.compacted_bytes > 0);
    assert!(matches!(read(&fs), Err(Error::DamagedData { .. })), "no new checksum");
    let other = fs.lookup(ROOT, b"s300").expect("there").inode;
    let mut bytes = [0; SMALL];
    assert_eq!(fs.read(other, 0, &mut bytes).expect("read"), SMALL);
    assert!(bytes[..] == fill(300, SMALL)[..]);
}

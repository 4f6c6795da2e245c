//! Everything moves beside readers, writers and changes of names, under explored schedules: each reads what it wrote, no space is freed twice,
//! and `tandemfs_check` finds nothing at the end.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

#[path = "support/bugs.rs"]
mod bugs;

use std::sync::Arc;

use bugs::{is_caught, is_sound};
use tandemfs_crash::{PausingDevice, Random, Setting, check_device, fill, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, FileSystem, NewInode, SetExtendedAttribute, WriteOptions};

/// Two sectors: a block has a vector.
const BLOCK: u64 = 8192;

fn text(error: tandemfs_fs::Error) -> String {
    error.to_string()
}

fn new(kind: u16) -> NewInode<'static> {
    NewInode { mode: kind | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" }
}

/// A step of a thread in a file of its own and in a common directory; `number` chooses which.
fn work(fs: &FileSystem, directory: InodeNumber, file: InodeNumber, number: u64) -> Result<(), String> {
    let write = |offset, bytes: &[u8]| fs.write(file, offset, bytes, WriteOptions::default()).map(drop).map_err(text);
    let holds = |offset, expected: &[u8]| {
        let mut found = vec![0; expected.len()];
        let count = fs.read(file, offset, &mut found).map_err(text)?;
        if count == expected.len() && found == expected { Ok(()) } else { Err(format!("{file} has other bytes at {offset}")) }
    };
    let name = format!("{file} {number}");
    match number % 5 {
        0 => {
            write(0, &fill(number, BLOCK as usize))?;
            holds(0, &fill(number, BLOCK as usize))
        }
        1 => {
            write(BLOCK + 100, &fill(number, 60))?;
            write(BLOCK + 3000, &fill(number, 60))?;
            holds(BLOCK + 100, &fill(number, 60))
        }
        2 => {
            fs.create(directory, name.as_bytes(), &new(file_type::REGULAR)).map_err(text)?;
            fs.lookup(directory, name.as_bytes()).map(drop).map_err(text)?;
            fs.unlink(directory, name.as_bytes()).map_err(text)
        }
        3 => {
            let value = fill(number, 1500);
            fs.set_extended_attribute(file, b"user.a", &value, SetExtendedAttribute::default()).map_err(text)?;
            let found = fs.extended_attribute(file, b"user.a").map_err(text)?;
            if found == value { Ok(()) } else { Err(format!("{file} has another attribute")) }
        }
        _ => fs.allocate(file, BLOCK, BLOCK, AllocateMode::Punch).map_err(text),
    }
}

fn beside_moves(random: &mut Random) -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, BLOCK as u32);
    let device = setting.format();
    let pausing = PausingDevice::new(device.clone(), shuttle::thread::yield_now);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let directory = fs.create(InodeNumber::ROOT, b"directory", &new(file_type::DIRECTORY)).map_err(text)?.inode;
    let mut threads = Vec::new();
    for name in ["a", "b"] {
        let file = fs.create(directory, name.as_bytes(), &new(file_type::REGULAR)).map_err(text)?.inode;
        work(&fs, directory, file, 0)?;
        work(&fs, directory, file, 1)?;
        let (own, numbers) = (fs.clone(), [random.below(40), random.below(40)]);
        threads.push(shuttle::thread::spawn(move || numbers.into_iter().try_for_each(|number| work(&own, directory, file, number))));
    }
    let own = fs.clone();
    threads
        .push(shuttle::thread::spawn(move || (0..2).try_for_each(|_| own.move_everything().and_then(|()| own.checkpoint()).map_err(text))));
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked".to_owned())??;
    }
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

#[test]
fn everything_moves_beside_other_work() {
    is_sound(300, "compaction", beside_moves);
}

#[test]
fn cz3_moved_under_readers() {
    is_caught(Mutant::MovedUnderReaders, "compaction", beside_moves);
}

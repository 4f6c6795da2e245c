//! File pages in host memory beside writes that are refused because they would wait: no reader gets bytes that the drive does not have.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

#[path = "support/bugs.rs"]
mod bugs;

use std::sync::Arc;

use bugs::{is_caught, is_sound};
use tandemfs_crash::{PausingDevice, Random, Setting, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Error, FileSystem, Kept, NewInode, ReadOptions, WriteOptions, no_wait};

const BYTES: usize = 6000;
const LENGTH: usize = 100;
const OPTIONS: ReadOptions = ReadOptions { kept: Kept::Here };

fn text(error: Error) -> String {
    error.to_string()
}

fn read(fs: &FileSystem, file: InodeNumber) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; 2 * BYTES];
    let length = fs.read_with(file, 0, &mut bytes, OPTIONS).map_err(text)?;
    bytes.truncate(length);
    Ok(bytes)
}

fn write(fs: &FileSystem, file: InodeNumber, byte: u8) -> Result<(), Error> {
    fs.write(file, 10, &[byte; LENGTH], WriteOptions::default()).map(drop)
}

/// One writes without waiting, one writes, and one looks at the file, whose lock may be what the first would have to wait for.
fn refused_writes(random: &mut Random) -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, 4096).with_memory_homes();
    let pausing = PausingDevice::new(setting.format(), shuttle::thread::yield_now);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).map_err(text)?.inode;
    fs.write(file, 0, &[7; BYTES], WriteOptions::default()).map_err(text)?;
    read(&fs, file)?;
    let looks = 1 + random.below(3);
    let mut threads = Vec::new();
    let own = fs.clone();
    threads.push(shuttle::thread::spawn(move || {
        for byte in [1, 2] {
            match no_wait(|| write(&own, file, byte)) {
                Ok(()) | Err(Error::WouldWait) => {}
                Err(error) => return Err(text(error)),
            }
        }
        Ok(())
    }));
    let own = fs.clone();
    threads.push(shuttle::thread::spawn(move || write(&own, file, 3).map_err(text)));
    let own = fs.clone();
    threads.push(shuttle::thread::spawn(move || (0..looks).try_for_each(|_| read(&own, file).map(drop))));
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked".to_owned())??;
    }
    let kept = read(&fs, file)?;
    fs.drop_file_pages(file).map_err(text)?;
    if kept != read(&fs, file)? {
        return Err("a page is not what the drive has".into());
    }
    fs.unmount().map_err(text)
}

/// A write over the end of the file, and readers: each has all of it or nothing.
fn ends_that_move(_: &mut Random) -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, 4096).with_memory_homes();
    let pausing = PausingDevice::new(setting.format(), shuttle::thread::yield_now);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).map_err(text)?.inode;
    let before = vec![7; 1000];
    fs.write(file, 0, &before, WriteOptions::default()).map_err(text)?;
    read(&fs, file)?;
    let after = [vec![7; 900], vec![8; 200]].concat();
    let own = fs.clone();
    let writer = shuttle::thread::spawn(move || own.write(file, 900, &[8; 200], WriteOptions::default()).map(drop).map_err(text));
    let own = fs.clone();
    let reader = shuttle::thread::spawn(move || {
        for _ in 0..3 {
            let found = read(&own, file)?;
            if found != before && found != after {
                return Err(format!("{} B, of which {} are new", found.len(), found.iter().filter(|byte| **byte == 8).count()));
            }
        }
        Ok(())
    });
    for thread in [writer, reader] {
        thread.join().map_err(|_| "a thread panicked".to_owned())??;
    }
    fs.unmount().map_err(text)
}

#[test]
fn a_read_has_all_of_a_write_or_nothing() {
    is_sound(400, "ends that move", ends_that_move);
}

#[test]
fn page_end_apart() {
    is_caught(Mutant::PageEndApart, "ends that move", ends_that_move);
}

#[test]
fn pages_are_what_the_drive_has() {
    is_sound(400, "refused writes", refused_writes);
}

#[test]
fn pages_back_behind_range() {
    is_caught(Mutant::PagesBackBehindRange, "refused writes", refused_writes);
}

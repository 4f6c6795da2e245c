//! Commits of which nobody knows whether they are durable, and changes beside an unmount.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use support::bugs::{alone, find_nothing, is_caught};
use tandemfs_crash::{Access, FaultDevice, Setting, comes_within, content, fill, mount, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Error, FileSystem, NewInode, WriteOptions};

const BLOCK: usize = 64 << 10;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, Error> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: usize, bytes: &[u8]) -> Result<(), Error> {
    fs.write(file, offset as u64, bytes, WriteOptions::default()).map(drop)
}

/// [TX6]: space that a record may name is not free, whichever store or COMMIT of an overwrite fails.
fn unknown() -> Result<(), String> {
    for (setting, access) in [
        (Setting::small(PersistenceDomain::Adr, BLOCK as u32), Access::Store),
        (Setting::small(PersistenceDomain::Adr, BLOCK as u32).with_firmware(), Access::Commit),
    ] {
        let prepare = |device: Arc<FaultDevice>| -> Result<(FileSystem, InodeNumber), String> {
            let fs = mount_device(device, &setting.mount).map_err(text)?;
            let file = create(&fs, b"f").map_err(text)?;
            write(&fs, file, 0, &fill(1, BLOCK)).map_err(text)?;
            Ok((fs, file))
        };
        let counting = Arc::new(FaultDevice::counting(setting.format()));
        let (fs, file) = prepare(counting.clone())?;
        let from = counting.count(access);
        write(&fs, file, 0, &fill(2, BLOCK)).map_err(text)?;
        let mut stopped = 0;
        for succeed in from..counting.count(access) {
            let faulty = Arc::new(FaultDevice::new(setting.format(), access, succeed, false));
            let Ok((fs, file)) = prepare(faulty.clone()) else { continue };
            let free = fs.zones().1.free_bytes;
            match write(&fs, file, 0, &fill(2, BLOCK)) {
                Err(Error::Stopped { .. }) => {}
                _ => continue,
            }
            stopped += 1;
            if fs.zones().1.free_bytes == free {
                return Err(format!("{access:?} {succeed} failed, and the block may be given to another file"));
            }
        }
        if stopped == 0 {
            return Err(format!("no {access:?} stopped the file system"));
        }
    }
    Ok(())
}

/// R1: what is acknowledged while the file system is unmounted is there at the next mount.
fn beside_an_unmount() -> Result<(), String> {
    for _ in 0..20 {
        let setting = Setting::small(PersistenceDomain::Process, 4096);
        let device = setting.format();
        let fs = mount(&device, &setting.mount)?;
        let made = AtomicU32::new(0);
        let ended = std::thread::scope(|scope| {
            let making = scope.spawn(|| {
                loop {
                    let number = made.load(Ordering::SeqCst);
                    match create(&fs, number.to_string().as_bytes()).and_then(|file| write(&fs, file, 0, &fill(number.into(), 300))) {
                        Ok(()) => made.store(number + 1, Ordering::SeqCst),
                        Err(Error::ReadOnly | Error::Unmounting) => return Ok(()),
                        Err(Error::NoSpace { .. }) => return Ok(()),
                        Err(error) => return Err(text(error)),
                    }
                }
            });
            assert!(comes_within(std::time::Duration::from_secs(60), || made.load(Ordering::SeqCst) > 20));
            let unmounted = fs.unmount().map_err(text);
            unmounted.and(making.join().map_err(|_| "it panicked".to_owned())?)
        });
        ended?;
        drop(fs);
        let fs = mount(&device, &setting.mount)?;
        for number in 0..made.into_inner() {
            let file = fs.lookup(InodeNumber::ROOT, number.to_string().as_bytes()).map_err(|error| format!("file {number}: {error}"))?;
            if content(&fs, file.inode).map_err(text)? != fill(number.into(), 300) {
                return Err(format!("file {number} has other bytes"));
            }
        }
    }
    Ok(())
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    find_nothing(&[unknown, beside_an_unmount]);
}

#[test]
fn tx6_unknown_gives_back() {
    is_caught(Mutant::UnknownGivesBack, &[unknown]);
}

#[test]
fn r1_unmount_closes_late() {
    is_caught(Mutant::UnmountClosesLate, &[beside_an_unmount]);
}

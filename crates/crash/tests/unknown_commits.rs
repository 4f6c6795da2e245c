//! Commits of which nobody knows whether they are durable, and changes beside an unmount.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use support::bugs::{alone, find_nothing, is_caught};
use tandemfs_crash::{Access, FaultDevice, PausingDevice, Setting, comes_within, fill, mount, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Error, FileSystem, NewInode, SetAttributes, WriteOptions};

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

thread_local! {
    /// Whether this thread's accesses to the device take long.
    static IS_SLOW: Cell<bool> = const { Cell::new(false) };
}

fn pause() {
    if IS_SLOW.get() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// R1: what is acknowledged while the file system is unmounted, slowly, is there at the next mount.
fn beside_an_unmount() -> Result<(), String> {
    for _ in 0..5 {
        let setting = Setting::small(PersistenceDomain::Process, 4096);
        let device = setting.format();
        let fs = mount_device(Arc::new(PausingDevice::new(device.clone(), pause)), &setting.mount).map_err(text)?;
        let file = create(&fs, b"f").map_err(text)?;
        let last = AtomicU32::new(0);
        let ended = std::thread::scope(|scope| {
            let counting = scope.spawn(|| {
                loop {
                    // So rarely that the ring is not full soon: who has to make room in it would bring home what the unmount leaves.
                    std::thread::sleep(Duration::from_micros(100));
                    let next = last.load(Ordering::SeqCst) + 1;
                    // A change that takes no space, and so no lock of the allocator.
                    match fs.set_attributes(file, &SetAttributes { uid: Some(next), ..SetAttributes::default() }) {
                        Ok(_) => last.store(next, Ordering::SeqCst),
                        Err(Error::ReadOnly | Error::Unmounting) => return Ok(()),
                        Err(error) => return Err(text(error)),
                    }
                }
            });
            assert!(comes_within(Duration::from_secs(60), || last.load(Ordering::SeqCst) > 20));
            IS_SLOW.set(true);
            let unmounted = fs.unmount().map_err(text);
            IS_SLOW.set(false);
            unmounted.and(counting.join().map_err(|_| "it panicked".to_owned())?)
        });
        ended?;
        drop(fs);
        let fs = mount(&device, &setting.mount)?;
        let (found, last) = (fs.attributes(file).map_err(text)?.uid, last.into_inner());
        if found != last {
            return Err(format!("{last} was acknowledged last, and {found} is there"));
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

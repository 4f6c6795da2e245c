//! Memory lent for stores beside readers and writers, under explored schedules: what a program has stored and acknowledged is what others read, whole
//! and no older, and its stores reach no other file.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

#[path = "support/bugs.rs"]
mod bugs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bugs::{is_caught, is_sound};
use tandemfs_crash::{PausingDevice, Random, Setting, Storing, Window, fill, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Borrower, FileSystem, NewInode, WriteOptions};

const BLOCK: usize = 4096;
/// Versions that the program writes of the block.
const WRITES: u64 = 4;
const READS: usize = 3;

fn text(error: tandemfs_fs::Error) -> String {
    error.to_string()
}

/// Which version was begun last, and which one was acknowledged last.
#[derive(Default)]
struct Written {
    begun: AtomicU64,
    done: AtomicU64,
}

fn version(number: u64) -> Vec<u8> {
    fill(1 + number, BLOCK)
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let made = fs.create(InodeNumber::ROOT, name, &new).map_err(text)?;
    fs.remember(made.inode, made.generation, 1).map_err(text)?;
    Ok(made.inode)
}

/// Stores a version if the lease has not ended; false if somebody else has to write it.
fn store(storing: &Storing, window: &Window, bytes: &[u8]) -> Result<bool, String> {
    if !storing.enter() {
        return Ok(false);
    }
    let half = BLOCK / 2;
    window.store(0, &bytes[..half])?;
    shuttle::thread::yield_now();
    window.store(half as u64, &bytes[half..])?;
    window.persist(0, BLOCK as u64)?;
    Ok(storing.leave())
}

fn program(fs: &Arc<FileSystem>, file: InodeNumber, written: &Written) -> Result<(), String> {
    let (borrower, mut held): (_, Option<(Arc<Storing>, Window)>) = (Arc::<Borrower>::default(), None);
    for number in 1..=WRITES {
        let bytes = version(number);
        written.begun.store(number, SeqCst);
        let is_stored = match &held {
            Some((storing, window)) => store(storing, window, &bytes)?,
            None => false,
        };
        if !is_stored {
            fs.write(file, 0, &bytes, WriteOptions::default()).map_err(text)?;
            let (storing, access) = Storing::new();
            let lease = fs.lend_stores(&borrower, &access, file, 0).map_err(text)?;
            held = match lease {
                Some(lease) => Some((storing, Window::of(fs.drive(), &lease)?)),
                None => None,
            };
        }
        written.done.store(number, SeqCst);
    }
    Ok(())
}

/// The program, a reader, and one who writes the other block, overwrites it as a whole and makes other files.
fn stores_and_calls(random: &mut Random) -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, BLOCK as u32).with_memory_homes();
    let pausing = PausingDevice::new(setting.format(), shuttle::thread::yield_now);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let written = Arc::<Written>::default();
    let file = create(&fs, b"file")?;
    fs.write(file, 0, &[version(0), fill(99, BLOCK)].concat(), WriteOptions::default()).map_err(text)?;
    fs.write_back_all().map_err(text)?;
    let closes = random.one_in(2);
    let mut threads = Vec::new();
    let (own, own_written) = (fs.clone(), written.clone());
    threads.push(shuttle::thread::spawn(move || program(&own, file, &own_written)));
    let (own, own_written) = (fs.clone(), written.clone());
    threads.push(shuttle::thread::spawn(move || {
        for _ in 0..READS {
            let least = own_written.done.load(SeqCst);
            let mut bytes = vec![0; BLOCK];
            own.read(file, 0, &mut bytes).map_err(text)?;
            let most = own_written.begun.load(SeqCst);
            if !(least..=most).any(|number| bytes == version(number)) {
                return Err(format!("what was read is none of the versions {least} to {most}"));
            }
        }
        Ok(())
    }));
    let own = fs.clone();
    threads.push(shuttle::thread::spawn(move || {
        for round in 0..2_u64 {
            let name = format!("other-{round}");
            let (other, bytes) = (create(&own, name.as_bytes())?, fill(9000 + round, 2 * BLOCK));
            own.write(other, 0, &bytes, WriteOptions::default()).map_err(text)?;
            own.write(file, BLOCK as u64, &fill(round, 100), WriteOptions::default()).map_err(text)?;
            if closes {
                own.close_open_pages().map_err(text)?;
            }
            let mut found = vec![0; 2 * BLOCK];
            own.read(other, 0, &mut found).map_err(text)?;
            if found != bytes {
                return Err("another file was stored to".into());
            }
            own.forget(other, 1);
        }
        Ok(())
    }));
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked".to_owned())??;
    }
    let mut bytes = vec![0; BLOCK];
    fs.read(file, 0, &mut bytes).map_err(text)?;
    if bytes != version(WRITES) {
        return Err("the last version is lost".into());
    }
    fs.forget(file, 1);
    fs.unmount().map_err(text)
}

/// A reader ends a lease, perhaps at the instant it is made.
fn lent_and_read(_: &mut Random) -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, BLOCK as u32).with_memory_homes();
    let pausing = PausingDevice::new(setting.format(), shuttle::thread::yield_now);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let file = create(&fs, b"file")?;
    fs.write(file, 0, &version(0), WriteOptions::default()).map_err(text)?;
    fs.write_back_all().map_err(text)?;
    let own = fs.clone();
    let reader = shuttle::thread::spawn(move || {
        for _ in 0..READS {
            own.read(file, 0, &mut [0; BLOCK]).map_err(text)?;
        }
        Ok::<_, String>(())
    });
    let (_storing, access) = Storing::new();
    let lease = fs.lend_stores(&Arc::default(), &access, file, 0).map_err(text)?;
    reader.join().map_err(|_| "a thread panicked".to_owned())??;
    if let Some(lease) = lease {
        fs.end_stores(&lease).map_err(text)?;
    }
    if fs.stores_lent().0 != 0 {
        return Err("a lease that has ended is on the list of all".into());
    }
    fs.forget(file, 1);
    fs.unmount().map_err(text)
}

#[test]
fn what_is_stored_is_what_others_read() {
    is_sound(400, "lent stores", stores_and_calls);
}

#[test]
fn stores_not_ended() {
    is_caught(Mutant::StoresNotEnded, "lent stores", stores_and_calls);
}

#[test]
fn a_lease_that_has_ended_is_on_no_list() {
    is_sound(400, "a lease that is read", lent_and_read);
}

#[test]
fn lease_listed_late() {
    is_caught(Mutant::LeaseListedLate, "a lease that is read", lent_and_read);
}

#[test]
fn stores_not_waited_for() {
    is_caught(Mutant::StoresNotWaitedFor, "lent stores", stores_and_calls);
}

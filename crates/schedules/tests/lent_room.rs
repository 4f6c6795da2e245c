//! Room lent behind the end of a file beside readers, others who append, and who asks for the size, under explored schedules: what a program has appended
//! and acknowledged is there once, whole and in order, and a size says nothing that is not there.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

#[path = "support/bugs.rs"]
mod bugs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bugs::{is_caught, is_sound};
use tandemfs_crash::{PausingDevice, Random, Setting, Storing, Window, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Borrower, FileSystem, NewInode, SetAttributes, WriteOptions};

const BLOCK: usize = 4096;
/// The file at first: some records of nobody, so that the block ends amid the appends.
const BEFORE: usize = BLOCK - 4 * RECORD;
const RECORD: usize = 16;
const APPENDS: u64 = 5;
const OTHERS: u64 = 2;
const LOOKS: usize = 3;
const PROGRAM: u64 = 1;
const OTHER: u64 = 2;

fn text(error: tandemfs_fs::Error) -> String {
    error.to_string()
}

fn record(who: u64, number: u64) -> Vec<u8> {
    [who.to_le_bytes(), number.to_le_bytes()].concat()
}

fn append(fs: &FileSystem, file: InodeNumber, bytes: &[u8]) -> Result<(), String> {
    fs.write(file, 0, bytes, WriteOptions { append: true, ..WriteOptions::default() }).map(drop).map_err(text)
}

/// Records of the program and of the other that a file has: each from the first on, in order.
fn counted(bytes: &[u8]) -> Result<(u64, u64), String> {
    let (records, rest) = bytes.as_chunks::<RECORD>();
    let mut counts = (0, 0);
    for (at, record) in records.iter().enumerate().skip(BEFORE / RECORD) {
        let [who, number] = [&record[..8], &record[8..]].map(|half| half.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
        let count = match who {
            PROGRAM => &mut counts.0,
            OTHER => &mut counts.1,
            _ => return Err(format!("record {at} is nobody's: {record:?}")),
        };
        *count += 1;
        if number != *count {
            return Err(format!("record {at} of {who} is {number}, expected {count}"));
        }
    }
    if rest.is_empty() { Ok(counts) } else { Err(format!("{} bytes", bytes.len())) }
}

fn content(fs: &FileSystem, file: InodeNumber) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; 2 * BLOCK];
    let length = fs.read(file, 0, &mut bytes).map_err(text)?;
    bytes.truncate(length);
    Ok(bytes)
}

struct Held {
    storing: Arc<Storing>,
    window: Window,
    end: u64,
    limit: u64,
}

fn program(fs: &Arc<FileSystem>, file: InodeNumber, done: &AtomicU64) -> Result<(), String> {
    let (borrower, mut held): (_, Option<Held>) = (Arc::<Borrower>::default(), None);
    for number in 1..=APPENDS {
        let bytes = record(PROGRAM, number);
        let has_room = held.as_ref().is_some_and(|held| held.end + RECORD as u64 <= held.limit);
        let is_stored = match held.as_mut().filter(|_| has_room) {
            Some(held) if held.storing.enter() => {
                held.window.store(held.end, &bytes)?;
                shuttle::thread::yield_now();
                held.window.persist(held.end, RECORD as u64)?;
                held.end += RECORD as u64;
                held.window.say(held.end, true)?;
                held.storing.leave()
            }
            _ => false,
        };
        if !is_stored {
            append(fs, file, &bytes)?;
            let (storing, access) = Storing::new();
            let lease = fs.lend_stores_to_append(&borrower, &access, file).map_err(text)?;
            held = match lease.and_then(|lease| Some((lease.room()?.clone(), lease))) {
                Some((room, lease)) => {
                    let (end, limit) = (room.size(), room.size() + room.bytes());
                    Some(Held { storing, window: Window::of(fs.drive(), &lease)?, end, limit })
                }
                None => None,
            };
        }
        done.store(number, SeqCst);
    }
    Ok(())
}

fn appends_and_calls(random: &mut Random) -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, BLOCK as u32).with_memory_homes();
    let pausing = PausingDevice::new(setting.format(), shuttle::thread::yield_now);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let made = fs.create(InodeNumber::ROOT, b"file", &new).map_err(text)?;
    let file = made.inode;
    fs.remember(file, made.generation, 1).map_err(text)?;
    fs.write(file, 0, &[7; BEFORE], WriteOptions::default()).map_err(text)?;
    let (done, asks) = (Arc::<AtomicU64>::default(), random.one_in(2));
    let mut threads = Vec::new();
    let (own, own_done) = (fs.clone(), done.clone());
    threads.push(shuttle::thread::spawn(move || program(&own, file, &own_done)));
    let (own, own_done) = (fs.clone(), done.clone());
    threads.push(shuttle::thread::spawn(move || {
        for _ in 0..LOOKS {
            let least = own_done.load(SeqCst);
            if asks {
                let size = own.attributes(file).map_err(text)?.size;
                if size < BEFORE as u64 + least * RECORD as u64 || !size.is_multiple_of(RECORD as u64) {
                    return Err(format!("{size} B with {least} records"));
                }
            } else {
                let (of_program, _) = counted(&content(&own, file)?)?;
                if of_program < least {
                    return Err(format!("{of_program} records, of which {least} were acknowledged"));
                }
            }
        }
        Ok(())
    }));
    let own = fs.clone();
    threads.push(shuttle::thread::spawn(move || (1..=OTHERS).try_for_each(|number| append(&own, file, &record(OTHER, number)))));
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked".to_owned())??;
    }
    match counted(&content(&fs, file)?)? {
        (APPENDS, OTHERS) => {}
        counts => return Err(format!("{counts:?} at last")),
    }
    fs.forget(file, 1);
    fs.unmount().map_err(text)
}

/// Somebody cuts the file, somebody asks for its size, and a program appends as long as it has the lease: nothing brings back what was cut.
fn cut_and_asked(_: &mut Random) -> Result<(), String> {
    const CUT: u64 = 100;
    let setting = Setting::small(PersistenceDomain::Gpf, BLOCK as u32).with_memory_homes();
    let pausing = PausingDevice::new(setting.format(), shuttle::thread::yield_now);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let made = fs.create(InodeNumber::ROOT, b"file", &new).map_err(text)?;
    let file = made.inode;
    fs.remember(file, made.generation, 1).map_err(text)?;
    fs.write(file, 0, &[7; BEFORE], WriteOptions::default()).map_err(text)?;
    let (storing, access) = Storing::new();
    let lease = fs.lend_stores_to_append(&Arc::default(), &access, file).map_err(text)?.ok_or("nothing is lent")?;
    let window = Window::of(fs.drive(), &lease)?;
    let mut threads = Vec::new();
    threads.push(shuttle::thread::spawn(move || {
        for number in 1..=3 {
            if !storing.enter() {
                break;
            }
            let end = BEFORE as u64 + (number - 1) * RECORD as u64;
            window.append(end, &record(PROGRAM, number))?;
            storing.leave();
        }
        Ok(())
    }));
    let own = fs.clone();
    threads.push(shuttle::thread::spawn(move || (0..LOOKS).try_for_each(|_| own.attributes(file).map(drop).map_err(text))));
    let own = fs.clone();
    let cut = SetAttributes { size: Some(CUT), ..SetAttributes::default() };
    threads.push(shuttle::thread::spawn(move || own.set_attributes(file, &cut).map(drop).map_err(text)));
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked".to_owned())??;
    }
    let size = fs.attributes(file).map_err(text)?.size;
    drop(lease);
    fs.forget(file, 1);
    fs.unmount().map_err(text)?;
    if size == CUT { Ok(()) } else { Err(format!("it was cut to {CUT} B and has {size}")) }
}

#[test]
fn what_was_cut_stays_away() {
    is_sound(400, "a cut beside lent room", cut_and_asked);
}

#[test]
fn lent_size_folded_late() {
    is_caught(Mutant::LentSizeFoldedLate, "a cut beside lent room", cut_and_asked);
}

#[test]
fn what_is_appended_is_what_others_see() {
    is_sound(400, "lent room", appends_and_calls);
}

#[test]
fn lent_size_forgotten() {
    is_caught(Mutant::LentSizeForgotten, "lent room", appends_and_calls);
}

#[test]
fn stores_not_ended() {
    is_caught(Mutant::StoresNotEnded, "lent room", appends_and_calls);
}

#[test]
fn stores_not_waited_for() {
    is_caught(Mutant::StoresNotWaitedFor, "lent room", appends_and_calls);
}

//! Lent memory beside writers, under explored schedules: what a program loads between two looks at the versions, both of which find them as they
//! were lent, is one whole version of the file, no older than what was acknowledged before and no newer than what was begun after.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

#[path = "support/bugs.rs"]
mod bugs;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use bugs::{is_caught, is_sound};
use tandemfs_crash::{PausingDevice, Random, Setting, fill, mount_device};
use tandemfs_device::{MemoryRange, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{FileSystem, NewInode, Versions, WriteOptions};

const BLOCK: u64 = 4096;
const BLOCKS: usize = 2;
/// Versions that the writer writes of each block, after the first one.
const WRITES: u64 = 2;
/// How often the program looks.
const LOOKS: usize = 3;

fn text(error: tandemfs_fs::Error) -> String {
    error.to_string()
}

/// A version for each thing. A look at it is one step, as a load is.
#[derive(Default)]
struct Words(Mutex<HashMap<u64, (u32, u64)>>);

impl Words {
    fn with<T>(&self, thing: u64, of: impl FnOnce(&mut (u32, u64)) -> T) -> T {
        let mut words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = words.len() as u32;
        of(words.entry(thing).or_insert((next, 0)))
    }

    fn agree(&self, seen: &[(u32, u64)]) -> bool {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !seen.is_empty() && seen.iter().all(|seen| words.values().any(|word| word == seen))
    }
}

struct Publishing(Arc<Words>);

impl Versions for Publishing {
    fn raise(&self, thing: u64) {
        self.0.with(thing, |(_, version)| *version += 1);
    }

    fn current(&self, thing: u64) -> (u32, u64) {
        self.0.with(thing, |word| *word)
    }
}

/// Which version of each block was begun last, and which one was acknowledged last.
#[derive(Default)]
struct Written {
    begun: [AtomicU64; BLOCKS],
    done: [AtomicU64; BLOCKS],
}

fn content(block: usize, version: u64) -> Vec<u8> {
    fill(1 + block as u64 * 1000 + version, BLOCK as usize)
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let made = fs.create(InodeNumber::ROOT, name, &new).map_err(text)?;
    fs.remember(made.inode, made.generation, 1).map_err(text)?;
    Ok(made.inode)
}

/// A program that loads. It keeps what it was lent while it is valid.
fn load(fs: &FileSystem, words: &Words, file: InodeNumber, written: &Written) -> Result<(), String> {
    let mut held = None;
    for _ in 0..LOOKS {
        let (extents, seen) = match held.take().filter(|(_, seen): &(Vec<_>, Vec<_>)| words.agree(seen)) {
            Some(held) => held,
            None => {
                let (extents, seen) = fs.noting(|| fs.lend(file, 0), |extents, noted| (extents, noted.versions(None).collect()));
                (extents.map_err(text)?, seen)
            }
        };
        for extent in &extents {
            for page in 0..extent.bytes / BLOCK {
                let block = (extent.file_offset / BLOCK + page) as usize;
                let least = written.done[block].load(SeqCst);
                shuttle::thread::yield_now();
                if !words.agree(&seen) {
                    break;
                }
                let range = MemoryRange { offset: extent.device_offset + page * BLOCK, length: BLOCK };
                let (mut loaded, half) = (vec![0; BLOCK as usize], BLOCK / 2);
                let memory = fs.drive().map(&[range], false).map_err(|error| error.to_string())?;
                for part in [0, half] {
                    let into = &mut loaded[part as usize..(part + half) as usize];
                    memory.copy_out(part, into).map_err(|error| error.to_string())?;
                    shuttle::thread::yield_now();
                }
                if !words.agree(&seen) {
                    break;
                }
                let most = written.begun[block].load(SeqCst);
                if !(least..=most).any(|version| loaded == content(block, version)) {
                    return Err(format!("block {block} is none of the versions {least} to {most}, and what was lent is valid"));
                }
            }
        }
        held = Some((extents, seen));
    }
    Ok(())
}

/// One program, one writer, and one who makes and removes other files, whose pages are those that the writer frees.
fn loads_and_writes(random: &mut Random) -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, BLOCK as u32).with_memory_homes();
    let pausing = PausingDevice::new(setting.format(), shuttle::thread::yield_now);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let (words, written) = (Arc::<Words>::default(), Arc::<Written>::default());
    if !fs.publish(Box::new(Publishing(words.clone()))) {
        return Err("somebody else publishes".into());
    }
    let file = create(&fs, b"file")?;
    let first: Vec<u8> = (0..BLOCKS).flat_map(|block| content(block, 0)).collect();
    fs.write(file, 0, &first, WriteOptions::default()).map_err(text)?;
    fs.write_back_all().map_err(text)?;
    let (removes, unlinks) = (random.one_in(3), random.one_in(2));
    let mut threads = Vec::new();
    let (own, own_words, own_written) = (fs.clone(), words, written.clone());
    threads.push(shuttle::thread::spawn(move || load(&own, &own_words, file, &own_written)));
    let (own, own_written) = (fs.clone(), written);
    threads.push(shuttle::thread::spawn(move || {
        for (version, block) in (1..=WRITES).flat_map(|version| (0..BLOCKS).map(move |block| (version, block))) {
            own_written.begun[block].store(version, SeqCst);
            own.write(file, block as u64 * BLOCK, &content(block, version), WriteOptions::default()).map_err(text)?;
            own_written.done[block].store(version, SeqCst);
        }
        Ok(())
    }));
    let own = fs.clone();
    threads.push(shuttle::thread::spawn(move || {
        for round in 0..2_u64 {
            let name = format!("other-{round}");
            let other = create(&own, name.as_bytes())?;
            own.write(other, 0, &fill(9000 + round, (2 * BLOCK) as usize), WriteOptions::default()).map_err(text)?;
            if unlinks {
                own.unlink(InodeNumber::ROOT, name.as_bytes()).map_err(text)?;
            }
            own.forget(other, 1);
        }
        Ok(())
    }));
    if removes {
        fs.unlink(InodeNumber::ROOT, b"file").map_err(text)?;
    }
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked".to_owned())??;
    }
    fs.forget(file, 1);
    fs.unmount().map_err(text)
}

#[test]
fn what_is_lent_stays_true_beside_writers() {
    is_sound(400, "lent", loads_and_writes);
}

#[test]
fn places_not_raised() {
    is_caught(Mutant::PlacesNotRaised, "lent", loads_and_writes);
}

#[test]
fn places_noted_late() {
    is_caught(Mutant::PlacesNotedLate, "lent", loads_and_writes);
}

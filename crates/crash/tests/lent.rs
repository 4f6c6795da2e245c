//! Lent memory: while its versions are as they were, loads from the memory zone are what `read` returns, after each kind of change and with the
//! pages that it freed in use by others; and the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use support::bugs::{alone, is_caught, run};
use tandemfs_crash::{MemoryDevice, Setting, check_device, fill, mount};
use tandemfs_device::{MemoryRange, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, FileSystem, Home, LENT_BYTES, LentExtent, NewInode, SetAttributes, Versions, WriteOptions};

const SIZE: usize = (2 * LENT_BYTES) as usize + 5000;
const PAGE: u64 = 4096;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn setting() -> Setting {
    Setting::small(PersistenceDomain::Gpf, 4096).with_memory_homes()
}

/// A version for each thing.
#[derive(Default)]
struct Words(Mutex<(HashMap<u64, u32>, Vec<u64>)>);

struct Publishing(Arc<Words>);

impl Words {
    fn of(fs: &FileSystem) -> Arc<Self> {
        let words = Arc::<Self>::default();
        assert!(fs.publish(Box::new(Publishing(words.clone()))), "nobody else publishes");
        words
    }

    fn with<T>(&self, thing: u64, of: impl FnOnce(u32, &mut u64) -> T) -> T {
        let (places, words) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = *places.entry(thing).or_insert(words.len() as u32);
        if place as usize == words.len() {
            words.push(0);
        }
        of(place, &mut words[place as usize])
    }

    fn at(&self, place: u32) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1[place as usize]
    }
}

impl Versions for Publishing {
    fn raise(&self, thing: u64) {
        self.0.with(thing, |_, version| *version += 1);
    }

    fn current(&self, thing: u64) -> (u32, u64) {
        self.0.with(thing, |place, version| (place, *version))
    }
}

/// A window, as a program holds it.
struct Held {
    extents: Vec<LentExtent>,
    seen: Vec<(u32, u64)>,
}

impl Held {
    fn lend(fs: &FileSystem, file: InodeNumber, offset: u64) -> Result<Self, String> {
        let (extents, seen) = fs.noting(|| fs.lend(file, offset), |extents, noted| (extents, noted.versions(None).collect()));
        Ok(Self { extents: extents.map_err(text)?, seen })
    }

    fn is_valid(&self, words: &Words) -> bool {
        !self.seen.is_empty() && self.seen.iter().all(|(place, version)| words.at(*place) == *version)
    }

    fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.bytes).sum()
    }

    /// That what the program loads is what it would read, if it may believe it.
    fn compare(&self, fs: &FileSystem, words: &Words, file: InodeNumber, what: &str) -> Result<(), String> {
        for extent in self.extents.iter().filter(|_| self.is_valid(words)) {
            let range = MemoryRange { offset: extent.device_offset, length: extent.bytes.next_multiple_of(PAGE) };
            let (mut loaded, mut read) = (vec![0; extent.bytes as usize], vec![0; extent.bytes as usize]);
            fs.drive().map(&[range], false).and_then(|memory| memory.copy_out(0, &mut loaded)).map_err(text)?;
            let count = fs.read(file, extent.file_offset, &mut read).map_err(text)?;
            if count != read.len() || loaded != read {
                return Err(format!("{what}: {extent:?} is valid and has other bytes than the file has"));
            }
        }
        Ok(())
    }
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let made = fs.create(InodeNumber::ROOT, name, &new).map_err(text)?;
    fs.remember(made.inode, made.generation, 1).map_err(text)?;
    Ok(made.inode)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: &[u8]) -> Result<(), String> {
    fs.write(file, offset, bytes, WriteOptions::default()).map(drop).map_err(text)
}

/// Takes all space that there is, and gives it back.
fn churn(fs: &FileSystem) -> Result<(), String> {
    let other = create(fs, b"other")?;
    let (mut offset, bytes) = (0, fill(77, 256 << 10));
    while fs.write(other, offset, &bytes, WriteOptions::default()).is_ok() {
        offset += bytes.len() as u64;
    }
    let mut one = 0;
    while fs.write(other, offset + one, &bytes[..PAGE as usize], WriteOptions::default()).is_ok() {
        one += PAGE;
    }
    Ok(())
}

type Change = fn(&FileSystem, InodeNumber) -> tandemfs_fs::Result<()>;

/// Changes of the first window, with whether the second one stays as it is.
const CHANGES: [(&str, bool, Change); 13] = [
    ("a block is overwritten", true, |fs, file| fs.write(file, 8192, &fill(9, 4096), WriteOptions::default()).map(drop)),
    ("bytes are overwritten", true, |fs, file| fs.write(file, 8200, &fill(9, 40), WriteOptions::default()).map(drop)),
    ("bytes are overwritten and written back", true, |fs, file| {
        fs.write(file, 8200, &fill(9, 40), WriteOptions::default())?;
        fs.write_back_all().map(drop)
    }),
    ("many blocks are overwritten", true, |fs, file| fs.write(file, 0, &fill(9, LENT_BYTES as usize), WriteOptions::default()).map(drop)),
    ("a hole is punched", true, |fs, file| fs.allocate(file, 4096, 8192, AllocateMode::Punch)),
    ("a range is zeroed", true, |fs, file| fs.allocate(file, 4096, 8192, AllocateMode::Zero { keep_size: true })),
    ("it is truncated", false, |fs, file| {
        fs.set_attributes(file, &SetAttributes { size: Some(5000), ..SetAttributes::default() }).map(drop)
    }),
    ("it is truncated and grows", false, |fs, file| {
        fs.set_attributes(file, &SetAttributes { size: Some(5000), ..SetAttributes::default() })?;
        fs.set_attributes(file, &SetAttributes { size: Some(SIZE as u64), ..SetAttributes::default() }).map(drop)
    }),
    ("a range is collapsed", false, |fs, file| fs.allocate(file, 4096, 8192, AllocateMode::Collapse)),
    ("a hole is inserted", false, |fs, file| fs.allocate(file, 4096, 8192, AllocateMode::Insert)),
    ("it moves to the block zone", false, |fs, file| {
        fs.set_home(file, Home::Block)?;
        while fs.move_homes()? {}
        Ok(())
    }),
    ("it is mapped and stored to", false, |fs, file| {
        let mapping = fs.map(file, 0, 8192, true)?;
        mapping.store(10, b"stored")?;
        mapping.sync(0, 8192)?;
        mapping.unmap()
    }),
    ("its name goes", true, |fs, _| fs.unlink(InodeNumber::ROOT, b"file").map(drop)),
];

fn mounted(setting: &Setting) -> Result<(MemoryDevice, FileSystem, Arc<Words>, InodeNumber), String> {
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let words = Words::of(&fs);
    let file = create(&fs, b"file")?;
    write(&fs, file, 0, &fill(1, SIZE))?;
    Ok((device, fs, words, file))
}

fn each_change() -> Result<(), String> {
    for (what, narrow, change) in CHANGES {
        let (device, fs, words, file) = mounted(&setting())?;
        fs.write_back_all().map_err(text)?;
        let windows = [0, LENT_BYTES, 2 * LENT_BYTES].map(|offset| Held::lend(&fs, file, offset + 1));
        let [first, second, third] = windows;
        let (first, second, third) = (first?, second?, third?);
        let lent = [first.bytes(), second.bytes(), third.bytes()];
        if lent != [LENT_BYTES, LENT_BYTES, PAGE] {
            // The last bytes are a data log.
            return Err(format!("{what}: {lent:?} B were lent"));
        }
        for held in [&first, &second, &third] {
            held.compare(&fs, &words, file, "before")?;
            if !held.is_valid(&words) {
                return Err(format!("{what}: looking has revoked something"));
            }
        }
        change(&fs, file).map_err(|error| format!("{what}: {error}"))?;
        let is_gone = what == "its name goes";
        if first.is_valid(&words) && !is_gone {
            return Err(format!("{what}: the first window is still valid"));
        }
        if second.is_valid(&words) != narrow {
            return Err(format!("{what}: the second window is valid: {}", !narrow));
        }
        churn(&fs)?;
        for held in [&first, &second, &third] {
            held.compare(&fs, &words, file, what)?;
        }
        for offset in [0, LENT_BYTES, 2 * LENT_BYTES] {
            let again = Held::lend(&fs, file, offset)?;
            again.compare(&fs, &words, file, what)?;
        }
        fs.forget(file, 1); // a file without a name ends here
        if is_gone && [&first, &second, &third].iter().any(|held| held.is_valid(&words)) {
            return Err("what was lent of a file is valid after its end".into());
        }
        fs.unmount().map_err(text)?;
        check_device(&device, false)?;
    }
    Ok(())
}

/// The pages of a truncated file go to another one.
fn given_out() -> Result<(), String> {
    let (_device, fs, words, file) = mounted(&setting())?;
    fs.write_back_all().map_err(text)?;
    let held = Held::lend(&fs, file, 0)?;
    fs.set_attributes(file, &SetAttributes { size: Some(0), ..SetAttributes::default() }).map_err(text)?;
    churn(&fs)?;
    fs.set_attributes(file, &SetAttributes { size: Some(LENT_BYTES), ..SetAttributes::default() }).map_err(text)?; // a hole of the same size
    held.compare(&fs, &words, file, "its pages are another file's")
}

/// Small overwrites lie in data logs over the pages, which are not lent.
fn below_logs() -> Result<(), String> {
    let (_device, fs, words, file) = mounted(&setting())?;
    fs.write_back_all().map_err(text)?;
    write(&fs, file, 5 * PAGE + 100, &fill(3, 64))?;
    let held = Held::lend(&fs, file, 0)?;
    held.compare(&fs, &words, file, "a data log")?;
    match held.bytes() {
        bytes if bytes == LENT_BYTES - PAGE => Ok(()),
        bytes => Err(format!("{bytes} B were lent beside a data log")),
    }
}

/// An inode leaves memory between the look-up and a change.
fn past_eviction() -> Result<(), String> {
    let (_device, fs, words, file) = mounted(&setting())?;
    fs.write_back_all().map_err(text)?;
    let held = Held::lend(&fs, file, 0)?;
    let mut made = 0_u32;
    while made < 12_000 && held.is_valid(&words) {
        let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
        fs.create(InodeNumber::ROOT, format!("n{made}").as_bytes(), &new).map_err(text)?;
        made += 1;
    }
    write(&fs, file, 0, &fill(5, 4096))?;
    held.compare(&fs, &words, file, &format!("{made} inodes came between"))
}

/// Bytes that the medium has changed are not lent.
fn verified() -> Result<(), String> {
    let (device, fs, _words, file) = mounted(&setting())?;
    fs.write_back_all().map_err(text)?;
    let held = Held::lend(&fs, file, 0)?;
    let at = held.extents[0].device_offset as usize + 3 * 4096 + 7;
    device.damage(|zones| zones.memory[at] ^= 4);
    let held = Held::lend(&fs, file, 0)?;
    let is_lent = |extent: &LentExtent| (extent.device_offset..extent.device_offset + extent.bytes).contains(&(at as u64));
    if held.extents.iter().any(is_lent) { Err("a damaged page is lent".into()) } else { Ok(()) }
}

#[test]
fn loads_are_what_read_returns_while_the_versions_stay() {
    let _alone = alone();
    run(Mutant::None, each_change).expect("sound");
}

#[test]
fn pages_that_others_have_are_not_believed() {
    let _alone = alone();
    run(Mutant::None, given_out).expect("sound");
}

#[test]
fn blocks_with_data_logs_are_not_lent() {
    let _alone = alone();
    run(Mutant::None, below_logs).expect("sound");
}

#[test]
fn what_is_lent_is_revoked_where_the_inode_leaves_memory() {
    let _alone = alone();
    run(Mutant::None, past_eviction).expect("sound");
}

#[test]
fn damaged_pages_are_not_lent() {
    let _alone = alone();
    run(Mutant::None, verified).expect("sound");
}

#[test]
fn places_not_raised() {
    is_caught(Mutant::PlacesNotRaised, &[each_change, given_out]);
}

#[test]
fn lent_below_logs() {
    is_caught(Mutant::LentBelowLogs, &[below_logs]);
}

#[test]
fn lent_past_eviction() {
    is_caught(Mutant::LentPastEviction, &[past_eviction]);
}

#[test]
fn lent_unverified() {
    is_caught(Mutant::LentUnverified, &[verified]);
}

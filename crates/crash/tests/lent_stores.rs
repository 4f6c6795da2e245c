//! Memory lent for stores: every cut of a lease that is made, stored to, flushed, stored to again and ended, in each domain, by its program or by
//! force; what a program that comes back late can reach; and the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use support::bugs::{alone, find_nothing, is_caught};
use support::work::in_every_domain;
use tandemfs_crash::{
    CrashState, Cut, MemoryDevice, Random, Setting, Storing, Window, check_device, comes_within, content, each_state, fill, mount,
};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{
    Borrower, Error, FileSystem, FormatOptions, MountOptions, NewInode, SetAttributes, SetExtendedAttribute, WriteOptions, make_file_system,
};

const WORD: usize = 8;
const STATES: u64 = 12;
/// The steps of a scenario, as they are marked in the recording.
const LEND: usize = 0;
const STORE: usize = 1;
const FLUSH: usize = 2;
const STORE_AGAIN: usize = 3;
const END: usize = 4;
const LATER: usize = 5;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn setting(domain: PersistenceDomain, block_bytes: u32) -> Setting {
    Setting::small(domain, block_bytes).with_memory_homes()
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(text)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: &[u8]) -> Result<(), String> {
    fs.write(file, offset, bytes, WriteOptions::default()).map(drop).map_err(text)
}

/// What the words of a file may be: its content before, after the first stores, after the second ones.
struct Versions {
    before: Vec<u8>,
    stored: Vec<u8>,
    at_last: Vec<u8>,
}

impl Versions {
    /// Checks a content found after a cut.
    fn allow(&self, cut: Cut, found: &[u8]) -> Result<(), String> {
        // From which version on, and up to which.
        let (from, to) = match (cut.call.unwrap_or(LEND), cut.between) {
            (LEND, _) => (0, 0),
            (STORE, _) | (FLUSH, false) => (0, 1),
            (FLUSH, true) => (1, 1),
            (STORE_AGAIN, _) | (END, false) => (1, 2),
            _ => (2, 2),
        };
        let versions = [&self.before, &self.stored, &self.at_last];
        if found.len() != self.before.len() {
            return Err(format!("{} B long", found.len()));
        }
        for (at, word) in (0..).step_by(WORD).zip(found.chunks(WORD)) {
            if !versions[from..=to].iter().any(|version| &version[at..at + word.len()] == word) {
                return Err(format!("byte {at} is of no version from {from} to {to}: {word:x?}"));
            }
        }
        Ok(())
    }
}

/// A file of written blocks with data logs over them; it ends within a page.
fn prepared(setting: &Setting) -> Result<(MemoryDevice, Vec<u8>), String> {
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let file = create(&fs, b"f")?;
    let mut bytes = fill(1, 150_000);
    write(&fs, file, 0, &bytes)?;
    write(&fs, file, 100, &[5; 300])?;
    bytes[100..400].fill(5);
    fs.unmount().map_err(text)?;
    Ok((device, bytes))
}

/// Lends, stores, flushes, stores again and ends the lease: the program does, or a reader does while the program is inside and stays there. Every
/// state of every cut is mounted and read, its open pages are closed, and it is checked.
fn cuts(domain: PersistenceDomain, block_bytes: u32, by_force: bool) -> Result<(), String> {
    let setting = setting(domain, block_bytes);
    let (device, before) = prepared(&setting)?;
    let fs = Arc::new(mount(&device, &setting.mount)?);
    let file = fs.lookup(InodeNumber::ROOT, b"f").map_err(text)?.inode;
    fs.checkpoint().map_err(text)?;
    let (start, length) = (device.fork(), before.len());
    let mut versions = Versions { stored: before.clone(), before: before.clone(), at_last: before };
    let (storing, access) = Storing::new();
    device.start_recording();
    device.mark(LEND);
    let lease = fs.lend_stores(&Arc::<Borrower>::default(), &access, file, 5000).map_err(text)?.ok_or("nothing is lent")?;
    device.mark_return(LEND);
    let window = Window::of(fs.drive(), &lease)?;
    if window.bytes() != (0..length as u64) {
        return Err(format!("{:?} is lent", window.bytes()));
    }
    if !storing.enter() {
        return Err("the lease has ended".into());
    }
    // Whole words, so that each is of one version. Some of the second stores lie over the first.
    let places = [(8, 16), (5000, 8), (length / 2 / 8 * 8, 200), (length - 992, 64)];
    device.mark(STORE);
    for (at, bytes) in places {
        let stored = fill(at as u64 + 100, bytes);
        window.store(at as u64, &stored)?;
        versions.stored[at..at + bytes].copy_from_slice(&stored);
    }
    device.mark_return(STORE);
    device.mark(FLUSH);
    for (at, bytes) in places {
        window.persist(at as u64, bytes as u64)?;
    }
    device.mark_return(FLUSH);
    versions.at_last.copy_from_slice(&versions.stored);
    device.mark(STORE_AGAIN);
    for (at, bytes) in [(16, 8), (8192, 128), (length - 960, 16)] {
        let stored = fill(at as u64 + 200, bytes);
        window.store(at as u64, &stored)?;
        versions.at_last[at..at + bytes].copy_from_slice(&stored);
    }
    device.mark_return(STORE_AGAIN);
    if !by_force {
        storing.leave();
    }
    device.mark(END);
    match by_force {
        true => fs.read(file, 0, &mut [0; 8]).map(drop).map_err(text)?,
        false => fs.end_stores(&lease).map_err(text)?,
    }
    device.mark_return(END);
    device.mark(LATER);
    if by_force {
        window.store(0, &vec![0xee; length])?;
        window.persist(0, length as u64)?;
        if storing.leave() {
            return Err("it was not told that its lease was taken away".into());
        }
    }
    fs.checkpoint().map_err(text)?;
    let events = device.stop_recording();
    if content(&fs, file).map_err(text)? != versions.at_last {
        return Err("it reads differently afterwards".into());
    }
    let mut failure = None;
    let mut states = 0;
    each_state(&start, &events, 0, STATES, &mut Random::new(7), &mut |cut, state| {
        if failure.is_none() {
            states += 1;
            failure = recover(&setting, state, cut, &versions).err().map(|what| format!("{cut:?}: {what}"));
        }
    });
    match failure {
        Some(what) => Err(what),
        None if states < 20 => Err(format!("{states} states are too few")),
        None => Ok(()),
    }
}

fn recover(setting: &Setting, state: CrashState, cut: Cut, versions: &Versions) -> Result<(), String> {
    let device = state.device;
    check_device(&device, true).map_err(|found| format!("check after the cut: {found}"))?;
    let fs = mount(&device, &setting.mount)?;
    let file = fs.lookup(InodeNumber::ROOT, b"f").map_err(text)?.inode;
    let found = content(&fs, file).map_err(text)?;
    versions.allow(cut, &found)?;
    fs.unmount().map_err(text)?;
    let counts = check_device(&device, false).map_err(|found| format!("check after an unmount: {found}"))?;
    if counts.open_pages > 0 {
        return Err(format!("{} pages stay open", counts.open_pages));
    }
    let fs = mount(&device, &setting.mount)?;
    if content(&fs, file).map_err(text)? != found {
        return Err("it reads differently when it is closed".into());
    }
    Ok(())
}

fn ended_by_the_program(domain: PersistenceDomain, block_bytes: u32) -> Result<(), String> {
    cuts(domain, block_bytes, false)
}

fn cuts_of_large_blocks() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 64 << 10, false)
}

fn cuts_of_single_pages() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 4096, false)
}

type Lent = (MemoryDevice, Arc<FileSystem>, InodeNumber, Arc<Storing>, Window);

/// A file with a lease on all of it.
fn lent(bytes: usize) -> Result<Lent, String> {
    let setting = setting(PersistenceDomain::Adr, 4096);
    let device = setting.format();
    let fs = Arc::new(mount(&device, &setting.mount)?);
    let file = create(&fs, b"f")?;
    write(&fs, file, 0, &fill(1, bytes))?;
    let (storing, access) = Storing::new();
    let lease = fs.lend_stores(&Arc::default(), &access, file, 0).map_err(text)?.ok_or("nothing is lent")?;
    let window = Window::of(fs.drive(), &lease)?;
    Ok((device, fs, file, storing, window))
}

/// Bytes of a unit of space.
const UNIT: u64 = 2 << 20;

/// Fills the file system by a file, to the last page that it gives; returns the file.
fn fill_up(fs: &FileSystem) -> Result<InodeNumber, String> {
    let (other, mut end) = (create(fs, b"other")?, 0);
    for length in [64 << 10, 4096] {
        while write(fs, other, end, &vec![7; length]).is_ok() {
            end += length as u64;
        }
    }
    Ok(other)
}

/// Whether the file that has filled it is as it was written.
fn is_filled(fs: &FileSystem, other: InodeNumber) -> Result<bool, String> {
    Ok(content(fs, other).map_err(text)?.iter().all(|byte| *byte == 7))
}

/// A truncation, and other files in the pages that it frees, beside a program that goes on as long as it may.
fn beside_others() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Adr, 4096);
    let fs = Arc::new(mount(&setting.format(), &setting.mount)?);
    let (file, borrower) = (create(&fs, b"f")?, Arc::default());
    // In several units, since a full file system keeps one back.
    write(&fs, file, 0, &fill(1, 3 * UNIT as usize))?;
    let lend = |at| {
        let (storing, access) = Storing::new();
        let lease = fs.lend_stores(&borrower, &access, file, at).map_err(text)?.ok_or("nothing is lent")?;
        Ok::<_, String>((storing, Window::of(fs.drive(), &lease)?))
    };
    let lent = [lend(0)?, lend(UNIT)?, lend(2 * UNIT)?];
    fs.set_attributes(file, &SetAttributes { size: Some(0), ..SetAttributes::default() }).map_err(text)?;
    let other = fill_up(&fs)?;
    for (storing, window) in lent {
        let Range { start, end } = window.bytes();
        if storing.enter() {
            window.store(start, &vec![0xee; (end - start) as usize])?;
            storing.leave();
        }
    }
    match is_filled(&fs, other)? {
        true => Ok(()),
        false => Err("another file was stored to".into()),
    }
}

/// A reader comes while a thread is in the middle of its stores, and stops soon.
fn amid_stores() -> Result<(), String> {
    let (device, fs, file, storing, window) = lent(100_000)?;
    if !storing.enter() {
        return Err("the lease has ended".into());
    }
    let bytes = [0x77; 100_000];
    std::thread::scope(|scope| {
        let own = &fs;
        let reader = scope.spawn(move || {
            let mut found = vec![0; 100_000];
            own.read(file, 0, &mut found).map(|_| found).map_err(text)
        });
        let (first, second) = bytes.split_at(50_000);
        window.store(0, first)?;
        while !storing.is_revoked() && !reader.is_finished() {
            std::thread::yield_now();
        }
        // A reader that does not wait is done within a small part of this.
        comes_within(Duration::from_millis(200), || reader.is_finished());
        window.store(first.len() as u64, second)?;
        storing.leave();
        match reader.join().map_err(|_| "a panic")?? {
            found if found == bytes => Ok(()),
            _ => Err("a read found a part of what was stored".to_owned()),
        }
    })?;
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

/// A program that was late stores to pages that were taken away, when others have all space that there is.
fn late() -> Result<(), String> {
    let (device, fs, file, storing, window) = lent(100_000)?;
    let before = fill(1, 100_000);
    if !storing.enter() {
        return Err("the lease has ended".into());
    }
    if content(&fs, file).map_err(text)? != before {
        return Err("nothing was stored".into());
    }
    let other = fill_up(&fs)?;
    window.store(0, &[0xee; 100_000])?;
    storing.leave();
    if !is_filled(&fs, other)? || content(&fs, file).map_err(text)? != before {
        return Err("a late store reached a file".into());
    }
    storing.unmap();
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

/// So many other inodes come into memory that one which nobody uses would leave it.
fn past_eviction() -> Result<(), String> {
    let (_device, fs, file, storing, window) = lent(100_000)?;
    for made in 0..6000_u32 {
        create(&fs, format!("n{made}").as_bytes())?;
    }
    let found = content(&fs, file).map_err(text)?;
    if storing.enter() {
        window.store(0, &[0xee; 8])?;
        storing.leave();
        return Err("it stores beside a reader".into());
    }
    if found == fill(1, 100_000) { Ok(()) } else { Err("it reads differently".into()) }
}

/// A daemon is killed, and the next one mounts while a program has the memory zone for stores still.
fn programs_left() -> Result<(), String> {
    let folder = tempfile::tempdir().map_err(text)?;
    let path = folder.path().join("memory");
    std::fs::File::create(&path).and_then(|file| file.set_len(64 << 20)).map_err(text)?;
    let opened = || {
        let device = open_device(&format!("memory={}", path.display()), &DeviceOptions::default()).map_err(text)?;
        Ok::<_, String>(Drive::new(device))
    };
    let drive = opened()?;
    make_file_system(&drive, &FormatOptions::default()).map_err(text)?;
    let fs = FileSystem::mount(drive, &MountOptions::default()).map_err(text)?;
    let (zone, _hold) = fs.drive().store_zone(5).ok_or("it lends nothing")?.map_err(text)?;
    drop(fs);
    match FileSystem::mount(opened()?, &MountOptions::default()) {
        Err(Error::ProgramsLeft { .. }) => {}
        _ => return Err("a program can store beside the next mount".into()),
    }
    FileSystem::mount(opened()?, &MountOptions { read_only: true, ..MountOptions::default() }).map_err(text)?;
    drop(zone);
    FileSystem::mount(opened()?, &MountOptions::default()).and_then(|fs| fs.unmount()).map_err(text)
}

/// The times after a lease that was used.
fn times() -> Result<(), String> {
    let (_device, fs, file, storing, window) = lent(5000)?;
    let before = fs.attributes(file).map_err(text)?;
    std::thread::sleep(Duration::from_millis(20));
    if !storing.enter() {
        return Err("the lease has ended".into());
    }
    window.store(0, b"stored")?;
    storing.leave();
    match fs.attributes(file).map_err(text)?.mtime > before.mtime {
        true => Ok(()),
        false => Err("the time of the last change is that of an earlier one".into()),
    }
}

/// A file that gives rights to who starts it is not lent, whether it had them before or gets them beside a program that stores.
fn rights() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Adr, 4096);
    let fs = Arc::new(mount(&setting.format(), &setting.mount)?);
    let capabilities =
        |file| fs.set_extended_attribute(file, b"security.capability", &[2; 20], SetExtendedAttribute::default()).map_err(text);
    let mode = |file, permissions| {
        fs.set_attributes(file, &SetAttributes { permissions: Some(permissions), ..SetAttributes::default() }).map(drop).map_err(text)
    };
    for (name, give) in [
        (b"u", &(|file| mode(file, 0o4755)) as &dyn Fn(InodeNumber) -> Result<(), String>),
        (b"g", &|file| mode(file, 0o2644)),
        (b"c", &capabilities),
    ] {
        let file = create(&fs, name)?;
        write(&fs, file, 0, &fill(1, 100_000))?;
        let (storing, access) = Storing::new();
        fs.lend_stores(&Arc::default(), &access, file, 0).map_err(text)?.ok_or("nothing is lent")?;
        mode(file, 0o755)?;
        if !storing.enter() || !storing.leave() {
            return Err("other permissions end a lease".into());
        }
        give(file)?;
        if storing.enter() {
            return Err("stores to a file with rights".into());
        }
        let (_storing, access) = Storing::new();
        if fs.lend_stores(&Arc::default(), &access, file, 0).map_err(text)?.is_some() {
            return Err("a file with rights is lent".into());
        }
    }
    match fs.stores_lent() {
        (0, 0) => fs.unmount().map_err(text),
        other => Err(format!("{other:?} are left")),
    }
}

/// Bytes that the medium has changed do not get a checksum by being lent.
fn damaged() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Adr, 4096);
    let device = setting.format();
    let fs = Arc::new(mount(&device, &setting.mount)?);
    let file = create(&fs, b"f")?;
    write(&fs, file, 0, &fill(1, 100_000))?;
    fs.write_back_all().map_err(text)?;
    let at = fs.lend(file, 0).map_err(text)?.first().ok_or("nothing is lent")?.device_offset as usize;
    device.damage(|zones| zones.memory[at + 3 * 4096 + 7] ^= 4);
    let (_storing, access) = Storing::new();
    if let Some(lease) = fs.lend_stores(&Arc::default(), &access, file, 0).map_err(text)? {
        fs.end_stores(&lease).map_err(text)?;
    }
    match fs.read(file, 0, &mut [0; 65_536]) {
        Err(Error::DamagedData { .. }) => Ok(()),
        other => Err(format!("a changed bit is not noticed: {other:?}")),
    }
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    in_every_domain(ended_by_the_program);
    for (domain, block_bytes) in [(PersistenceDomain::Adr, 4096), (PersistenceDomain::Adr, 64 << 10), (PersistenceDomain::Gpf, 16 << 10)] {
        cuts(domain, block_bytes, true).unwrap_or_else(|what| panic!("{domain}, blocks of {block_bytes}, by force: {what}"));
    }
    find_nothing(&[beside_others, amid_stores, late, past_eviction, programs_left, times, rights, damaged]);
}

#[test]
fn sl1_lent_unverified() {
    is_caught(Mutant::OpenedUnverified, &[damaged]);
}

#[test]
fn sl1_open_mark_forgotten() {
    is_caught(Mutant::OpenMarkForgotten, &[cuts_of_large_blocks, cuts_of_single_pages]);
}

#[test]
fn sl2_stores_not_ended() {
    is_caught(Mutant::StoresNotEnded, &[beside_others]);
}

#[test]
fn sl2_evicted_in_use() {
    is_caught(Mutant::EvictedInUse, &[past_eviction]);
}

#[test]
fn sl3_stores_not_waited_for() {
    is_caught(Mutant::StoresNotWaitedFor, &[amid_stores]);
}

#[test]
fn sl3_closed_unflushed() {
    is_caught(Mutant::ClosedUnflushed, &[cuts_of_large_blocks, cuts_of_single_pages]);
}

#[test]
fn sl5_taken_pages_freed() {
    is_caught(Mutant::TakenPagesFreed, &[late]);
}

#[test]
fn sl5_programs_left_ignored() {
    is_caught(Mutant::ProgramsLeftIgnored, &[programs_left]);
}

#[test]
fn sl6_stores_untimed() {
    is_caught(Mutant::StoresUntimed, &[times]);
}

#[test]
fn sl8_rights_lent() {
    is_caught(Mutant::RightsLent, &[rights]);
}

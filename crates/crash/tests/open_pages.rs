//! Every cut of a file that is mapped, stored to, synced and unmapped, in each domain; what finds pages without checksums after a crash; and
//! the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::bugs::{alone, find_nothing, is_caught};
use support::work::in_every_domain;
use tandemfs_crash::{
    Access, CrashState, Cut, FaultDevice, MemoryDevice, Place, Random, Setting, check_device, comes_within, content, each_state, fill,
    mount, mount_device,
};
use tandemfs_device::{Drive, PersistenceDomain, Structure};
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{InodeNumber, LineAddress};
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, Error, FileSystem, Home, NewInode, SetAttributes, WriteOptions};

const WORD: usize = 8;
const STATES: u64 = 12;
/// The calls of a scenario, as they are marked in the recording.
const MAP: usize = 0;
const STORE: usize = 1;
const SYNC: usize = 2;
const STORE_AGAIN: usize = 3;
const UNMAP: usize = 4;
const END: usize = 5;

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
        let call = cut.call.unwrap_or(0);
        // From which version on, and up to which.
        let (from, to) = match (call, cut.between) {
            (MAP, _) => (0, 0),
            (STORE, _) | (SYNC, false) => (0, 1),
            (SYNC, true) => (1, 1),
            (STORE_AGAIN, _) | (UNMAP, false) => (1, 2),
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

/// A file system with a file of written blocks, data logs, holes and given-out space, over pages that had other bytes before.
fn prepared(setting: &Setting) -> Result<(MemoryDevice, Vec<u8>), String> {
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let block = setting.format.block_bytes as usize;
    let length = if block == 4096 { 50 * block } else { 4 * block };
    // Until the zone is full, so that it does not matter from which pool pages are taken later.
    let other = create(&fs, b"other")?;
    fs.set_home(other, Home::Memory).map_err(text)?;
    let piece = fill(9, 64 << 10);
    let _until_it_is_full = (0..).find(|at| write(&fs, other, at * piece.len() as u64, &piece).is_err());
    fs.unlink(InodeNumber::ROOT, b"other").map_err(text)?;
    let file = create(&fs, b"f")?;
    let mut bytes = fill(1, length);
    write(&fs, file, 0, &bytes)?;
    write(&fs, file, 100, &[5; 300])?;
    bytes[100..400].fill(5);
    let size = length + 2 * block + 1000;
    fs.set_attributes(file, &SetAttributes { size: Some(size as u64), ..SetAttributes::default() }).map_err(text)?;
    bytes.resize(size, 0);
    fs.allocate(file, (length + block) as u64, block as u64, AllocateMode::Allocate { keep_size: true }).map_err(text)?;
    fs.unmount().map_err(text)?;
    Ok((device, bytes))
}

/// How a file is mapped.
#[derive(Debug, Clone, Copy, Default)]
struct Way {
    /// It is synced by the file, not as a mapping.
    by_file: bool,
    without_checksums: bool,
    /// Another mapping for stores has the same pages, and goes later.
    under_another: bool,
}

/// Maps, stores, syncs, stores again and unmaps. Every state of every cut is mounted and read, its open pages are closed, and it is checked.
fn cuts(domain: PersistenceDomain, block_bytes: u32) -> Result<(), String> {
    cuts_in(domain, block_bytes, Way::default())
}

fn cuts_in(domain: PersistenceDomain, block_bytes: u32, way: Way) -> Result<(), String> {
    let mut setting = setting(domain, block_bytes);
    if way.without_checksums {
        setting.format.checksum_kind = ChecksumKind::None;
    }
    let (device, before) = prepared(&setting)?;
    let fs = mount(&device, &setting.mount)?;
    let file = fs.lookup(InodeNumber::ROOT, b"f").map_err(text)?.inode;
    let map = || fs.map(file, 4096, before.len() as u64 - 4096, true).map_err(text);
    let _other = way.under_another.then(map).transpose()?;
    fs.checkpoint().map_err(text)?;
    let (start, length) = (device.fork(), before.len());
    device.start_recording();
    device.mark(MAP);
    let mapping = map()?;
    device.mark_return(MAP);
    let mut versions = Versions { stored: before.clone(), before: before.clone(), at_last: before };
    // Whole words, so that each is of one version. Some of the second stores lie over the first.
    let places = [(8, 16), (5000, 8), (length / 2 / 8 * 8, 200), (length - 4096 - 992, 64)];
    device.mark(STORE);
    for (at, bytes) in places {
        let stored = fill(at as u64 + 100, bytes);
        mapping.store(at as u64, &stored).map_err(text)?;
        versions.stored[4096 + at..][..bytes].copy_from_slice(&stored);
    }
    device.mark_return(STORE);
    device.mark(SYNC);
    match way.by_file {
        true => fs.sync_mapped(Some(file)).map_err(text)?,
        false => mapping.sync(0, mapping.length()).map_err(text)?,
    }
    device.mark_return(SYNC);
    versions.at_last.copy_from_slice(&versions.stored);
    device.mark(STORE_AGAIN);
    for (at, bytes) in [(16, 8), (8192, 128), (length - 4096 - 960, 16)] {
        let stored = fill(at as u64 + 200, bytes);
        mapping.store(at as u64, &stored).map_err(text)?;
        versions.at_last[4096 + at..][..bytes].copy_from_slice(&stored);
    }
    device.mark_return(STORE_AGAIN);
    device.mark(UNMAP);
    mapping.unmap().map_err(text)?;
    device.mark_return(UNMAP);
    device.mark(END);
    fs.checkpoint().map_err(text)?;
    let events = device.stop_recording();
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
    while fs.close_open_pages().map_err(text)? {}
    fs.checkpoint().map_err(text)?;
    let counts = check_device(&device, true).map_err(|found| format!("check of closed pages: {found}"))?;
    if counts.open_pages > 0 {
        return Err(format!("{} pages stay open", counts.open_pages));
    }
    fs.unmount().map_err(text)?;
    check_device(&device, false).map_err(|found| format!("check after an unmount: {found}"))?;
    let fs = mount(&device, &setting.mount)?;
    if content(&fs, file).map_err(text)? != found {
        return Err("it reads differently when it is closed".into());
    }
    Ok(())
}

/// Every cut of a write by a call to a mapped range: all of it or nothing, and stores of others stay.
fn cuts_of_writes(domain: PersistenceDomain, block_bytes: u32, writable: bool) -> Result<(), String> {
    let setting = setting(domain, block_bytes);
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let file = create(&fs, b"f")?;
    let mut before = fill(1, 70_000);
    write(&fs, file, 0, &before)?;
    let mapping = fs.map(file, 0, before.len() as u64, writable).map_err(text)?;
    if writable {
        mapping.store(19_990, &[8; 10]).and_then(|()| mapping.sync(0, 70_000)).map_err(text)?;
        before[19_990..20_000].fill(8);
    }
    fs.checkpoint().map_err(text)?;
    let (start, mut after) = (device.fork(), before.clone());
    after[20_000..29_003].copy_from_slice(&fill(5, 9003));
    device.start_recording();
    device.mark(0);
    write(&fs, file, 20_000, &after[20_000..29_003])?;
    device.mark_return(0);
    let events = device.stop_recording();
    let mut seen = vec![0; after.len()];
    mapping.load(0, &mut seen).map_err(text)?;
    if seen != after {
        return Err("the mapping does not see what the call wrote".into());
    }
    let mut failure = None;
    each_state(&start, &events, 0, STATES, &mut Random::new(7), &mut |cut, state| {
        let found = || -> Result<(), String> {
            check_device(&state.device, true).map_err(|found| format!("check after the cut: {found}"))?;
            let fs = mount(&state.device, &setting.mount)?;
            let file = fs.lookup(InodeNumber::ROOT, b"f").map_err(text)?.inode;
            let found = content(&fs, file).map_err(text)?;
            let is_answered = cut.call.is_some() && cut.between;
            if found != after && (is_answered || found != before) {
                return Err("it is neither as before nor as after the call".into());
            }
            fs.unmount().map_err(text)?;
            let counts = check_device(&state.device, false).map_err(|found| format!("check after an unmount: {found}"))?;
            if counts.open_pages == 0 { Ok(()) } else { Err("pages stay open".into()) }
        };
        if failure.is_none() {
            failure = found().err().map(|what| format!("{cut:?}: {what}"));
        }
    });
    failure.map_or(Ok(()), Err)
}

fn cuts_of_writes_to_pages() -> Result<(), String> {
    cuts_of_writes(PersistenceDomain::Adr, 4096, true)
}

fn cuts_of_writes_to_blocks() -> Result<(), String> {
    cuts_of_writes(PersistenceDomain::Gpf, 64 << 10, true)
}

fn cuts_of_large_blocks() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 64 << 10)
}

fn cuts_of_single_pages() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 4096)
}

/// In one size of blocks the pages of the holes may never have had other bytes: that depends on the pools of the CPUs.
fn cuts_of_filled_holes() -> Result<(), String> {
    [64 << 10, 16 << 10, 4096].into_iter().try_for_each(|block_bytes| cuts(PersistenceDomain::Adr, block_bytes))
}

/// Work in the background, and calls, meet a block that is mapped.
fn pinned() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Adr, 16 << 10);
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let file = create(&fs, b"f")?;
    let mut bytes = fill(1, 5 * 16_384);
    write(&fs, file, 0, &bytes)?;
    let mapping = fs.map(file, 0, bytes.len() as u64, true).map_err(text)?;
    write(&fs, file, 20_000, &[3; 100])?;
    bytes[20_000..20_100].fill(3);
    fs.set_home(file, Home::Block).map_err(text)?;
    while fs.move_homes().map_err(text)? {}
    fs.write_back_all().map_err(text)?;
    mapping.store(40_000, b"to its own pages").map_err(text)?;
    bytes[40_000..40_016].copy_from_slice(b"to its own pages");
    let mut seen = vec![0; bytes.len()];
    mapping.load(0, &mut seen).map_err(text)?;
    if seen != bytes {
        return Err("what a call wrote is not seen".into());
    }
    if content(&fs, file).map_err(text)? != bytes {
        return Err("a store is not seen".into());
    }
    drop(mapping);
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

/// After a crash: the mount notes open pages, a scrub meets them, and what changes them makes them whole.
fn unchecked() -> Result<(), String> {
    for block_bytes in [4096, 16 << 10, 64 << 10, 1 << 20] {
        let setting = setting(PersistenceDomain::Gpf, block_bytes);
        let (device, mut bytes) = prepared(&setting)?;
        let fs = mount(&device, &setting.mount)?;
        let file = fs.lookup(InodeNumber::ROOT, b"f").map_err(text)?.inode;
        let mapping = fs.map(file, 0, bytes.len() as u64, true).map_err(text)?;
        mapping.store(5000, b"before the crash").map_err(text)?;
        bytes[5000..5016].copy_from_slice(b"before the crash");
        let device = Arc::new(device.fork());
        drop(mapping);
        drop(fs);
        let fs = mount(&device, &setting.mount)?;
        let mut scrub = fs.scrub();
        while fs.scrub_step(&mut scrub) {}
        let pages = bytes.len().div_ceil(4096) as u64;
        if scrub.counts().open_pages < pages || !scrub.findings().is_empty() {
            return Err(format!("the scrub met {} of {pages} open pages, {:?}", scrub.counts().open_pages, scrub.findings()));
        }
        for (offset, length) in [(5010, 600), (0, block_bytes as usize)] {
            let new = fill(offset as u64 + 3, length);
            write(&fs, file, offset as u64, &new)?;
            bytes[offset..offset + length].copy_from_slice(&new);
        }
        fs.allocate(file, u64::from(block_bytes), 100, AllocateMode::Punch).map_err(text)?;
        bytes[block_bytes as usize..block_bytes as usize + 100].fill(0);
        fs.write_back_all().map_err(text)?;
        if content(&fs, file).map_err(text)? != bytes {
            return Err(format!("blocks of {block_bytes}: it reads differently"));
        }
        if fs.statistics().work.pages_closed > 0 {
            return Err("nobody has closed any yet".into());
        }
        fs.unmount().map_err(text)?;
        let counts = check_device(&device, false)?;
        if counts.open_pages > 0 {
            return Err(format!("{} pages are open after an unmount", counts.open_pages));
        }
        let fs = mount(&device, &setting.mount)?;
        if content(&fs, file).map_err(text)? != bytes {
            return Err(format!("blocks of {block_bytes}: it reads differently after an unmount"));
        }
    }
    Ok(())
}

/// [FM5]: stores by mappings are durable by a sync of the file.
fn cuts_of_a_sync_of_the_file() -> Result<(), String> {
    cuts_in(PersistenceDomain::Adr, 4096, Way { by_file: true, ..Way::default() })
}

/// [FM5]: an unmap makes stores durable, also where there is nothing to close.
fn cuts_of_an_unmap_without_checksums() -> Result<(), String> {
    cuts_in(PersistenceDomain::Adr, 16 << 10, Way { without_checksums: true, ..Way::default() })
}

fn cuts_of_an_unmap_under_another() -> Result<(), String> {
    cuts_in(PersistenceDomain::Adr, 4096, Way { under_another: true, ..Way::default() })
}

/// Flips a byte of a file on its device.
fn damage(fs: &FileSystem, device: &MemoryDevice, file: InodeNumber, at: u64) -> Result<(), String> {
    let mapping = fs.map(file, 0, fs.attributes(file).map_err(text)?.size, false).map_err(text)?;
    let extent = mapping.extents().iter().find(|extent| (extent.file_offset..extent.file_offset + extent.bytes).contains(&at));
    let extent = extent.ok_or("no such byte")?;
    let place = extent.device_offset + at - extent.file_offset;
    drop(mapping);
    device.damage(|zones| zones.memory[place as usize] ^= 1);
    Ok(())
}

/// [OG7]: damaged bytes never get a checksum, whether the file is mapped, or written to while it is mapped for loads.
fn damaged() -> Result<(), String> {
    for block_bytes in [4096, 64 << 10] {
        let setting = setting(PersistenceDomain::Adr, block_bytes);
        let device = setting.format();
        let fs = mount(&device, &setting.mount)?;
        for is_mapped in [true, false] {
            let file = create(&fs, if is_mapped { b"mapped" } else { b"written" })?;
            fs.set_home(file, Home::Memory).map_err(text)?;
            write(&fs, file, 0, &fill(1, 200_000))?;
            let at = if is_mapped { 150_000 } else { 1000 };
            let reading = if is_mapped { None } else { Some(fs.map(file, 0, 200_000, false).map_err(text)?) };
            damage(&fs, &device, file, at)?;
            let is_refused = |result: Result<(), Error>| match result {
                Err(Error::DamagedData { .. }) => Ok(()),
                other => Err(format!("blocks of {block_bytes}, mapped {is_mapped}: {other:?}")),
            };
            if is_mapped {
                is_refused(fs.map(file, 0, 200_000, true).map(drop))?;
            } else {
                is_refused(fs.write(file, 10, b"beside it", WriteOptions::default()).map(drop))?;
            }
            drop(reading);
            is_refused(fs.read(file, at, &mut [0; 10]).map(drop))?;
        }
        while fs.close_open_pages().map_err(text)? {}
        fs.unmount().map_err(text)?;
        let Err(found) = check_device(&device, false) else { return Err("check finds no damage".into()) };
        if found.matches("DataDamaged").count() > 2 {
            return Err(found);
        }
    }
    Ok(())
}

/// [MC3]: what is stored behind the end of a file does not become its bytes, though giving the last block its pages made its end zeros.
fn stored_behind_the_end() -> Result<(), String> {
    for (checksum_kind, is_cut) in [(ChecksumKind::None, false), (ChecksumKind::Crc32c, true), (ChecksumKind::Crc32c, false)] {
        let mut setting = setting(PersistenceDomain::Process, 16 << 10).without_blocks();
        setting.format.checksum_kind = checksum_kind;
        let device = setting.format();
        let fs = mount(&device, &setting.mount)?;
        let file = create(&fs, b"f")?;
        let set_size = |fs: &FileSystem, size| {
            let attributes = SetAttributes { size: Some(size), ..SetAttributes::default() };
            fs.set_attributes(file, &attributes).map(drop).map_err(text)
        };
        write(&fs, file, 0, &[7; 40_000])?;
        fs.write_back_all().map_err(text)?;
        set_size(&fs, 10_000)?;
        let mapping = fs.map(file, 8192, 1808, true).map_err(text)?;
        mapping.memory().copy_in(1808, &[9; 2288]).map_err(text)?;
        let device = if is_cut { Arc::new(device.fork()) } else { Arc::new(device.clone()) };
        drop(mapping);
        let fs = if is_cut { mount(&device, &setting.mount)? } else { fs };
        set_size(&fs, 20_000)?;
        let found = content(&fs, file).map_err(text)?;
        if found.len() != 20_000 || found[..10_000] != [7; 10_000] || found[10_000..] != [0; 10_000] {
            return Err(format!("{checksum_kind:?}, cut {is_cut}: the file has other bytes"));
        }
        fs.unmount().map_err(text)?;
        check_device(&device, false)?;
    }
    Ok(())
}

/// [MC6]: a write over the mapped end of a file that finds no space for all of its bytes leaves the file as long as it has written.
fn short_write_over_the_end() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Adr, 64 << 10).without_blocks();
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let (file, other) = (create(&fs, b"f")?, create(&fs, b"other")?);
    write(&fs, file, 0, &[1; 10_000])?;
    let mapping = fs.map(file, 0, 10_000, true).map_err(text)?;
    for piece in [64 << 10, 4096, 512, 64] {
        let bytes = vec![2; piece];
        let _until_it_is_full = (0..).find(|_| fs.append(other, &bytes, WriteOptions::default()).is_err());
    }
    let size = || fs.attributes(file).map(|found| found.size).map_err(text);
    let before = size()?;
    let written = fs.write(file, before, &[3; 200 << 10], WriteOptions::default());
    let expected = match &written {
        Ok(written) => before + *written as u64,
        Err(Error::NoSpace { .. } | Error::Mapped) => before,
        Err(error) => return Err(text(error)),
    };
    if expected == before + (200 << 10) || size()? != expected {
        return Err(format!("{written:?} at {before}, and the file has {} B", size()?));
    }
    drop(mapping);
    let found = content(&fs, file).map_err(text)?;
    if found[..10_000] != [1; 10_000] || found[10_000..].iter().any(|byte| *byte != 3) {
        return Err("it has other bytes".into());
    }
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

/// [MC5]: whichever store of a punch fails, what a mapping stores afterwards is the file's.
fn punched_with_failing_stores() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Process, 16 << 10).without_blocks();
    let prepare = |device: Arc<FaultDevice>| -> Result<(FileSystem, InodeNumber), String> {
        let fs = mount_device(device, &setting.mount).map_err(text)?;
        let file = create(&fs, b"f")?;
        write(&fs, file, 0, &fill(1, 10 << 14))?;
        fs.checkpoint().map_err(text)?;
        Ok((fs, file))
    };
    let counting = Arc::new(FaultDevice::counting(setting.format()));
    let (fs, file) = prepare(counting.clone())?;
    let mapping = fs.map(file, 0, 10 << 14, true).map_err(text)?;
    let from = counting.count(Access::Store);
    fs.allocate(file, 1 << 14, 8 << 14, AllocateMode::Punch).map_err(text)?;
    let to = counting.count(Access::Store);
    drop(mapping);
    drop(fs);
    let mut failed = 0;
    for succeed in from..to {
        let faulty = Arc::new(FaultDevice::new(setting.format(), Access::Store, succeed, false));
        let mapped = prepare(faulty.clone());
        let Ok((fs, file)) = mapped else { continue }; // the background stores when it likes
        let mapping = fs.map(file, 0, 10 << 14, true);
        let mapping = match mapping {
            _ if faulty.hit() => continue,
            mapping => mapping.map_err(text)?,
        };
        let punched = fs.allocate(file, 1 << 14, 8 << 14, AllocateMode::Punch);
        if matches!(punched, Err(Error::Stopped { .. })) {
            continue; // a record could not be stored
        }
        failed += u64::from(punched.is_err());
        let at = 5 << 14;
        mapping.store(at, b"behind the punch").map_err(text)?;
        let mut found = [0; 16];
        fs.read(file, at, &mut found).map_err(text)?;
        if found != *b"behind the punch" {
            return Err(format!("store {succeed} failed: {punched:?}, and then a call reads {found:?}"));
        }
    }
    if failed == 0 { Err(format!("none of {} stores failed the punch", to - from)) } else { Ok(()) }
}

/// [OG2]: a page that cannot be read stays open, and those behind it are closed.
fn unreadable() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Gpf, 16 << 10).without_blocks();
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let file = create(&fs, b"f")?;
    write(&fs, file, 0, &fill(1, 5 << 14))?;
    let (first, second) = (fs.map(file, 0, 1 << 14, true).map_err(text)?, fs.map(file, 3 << 14, 1 << 14, true).map_err(text)?);
    let page = first.extents()[0].device_offset;
    let device = device.fork();
    drop((first, second));
    let faulty = Arc::new(FaultDevice::at(device.clone(), Place::Memory(page..page + 64), false));
    let fs = mount_device(faulty, &setting.mount).map_err(text)?;
    fs.unmount().map_err(text)?;
    let counts = check_device(&device, false)?;
    if counts.open_pages == 4 { Ok(()) } else { Err(format!("{} pages are open, not those of one block", counts.open_pages)) }
}

/// Waits until the clock of the file system's times shows another time.
fn the_clock_moves() {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let begun = now();
    assert!(comes_within(Duration::from_secs(60), || now() != begun), "a clock that stands");
}

/// [FM5]: the end of a mapping for stores is a change of the file, whatever else it has to do.
fn timed() -> Result<(), String> {
    for checksum_kind in [ChecksumKind::Crc32c, ChecksumKind::None] {
        let mut setting = setting(PersistenceDomain::Adr, 4096);
        setting.format.checksum_kind = checksum_kind;
        let device = setting.format();
        let fs = mount(&device, &setting.mount)?;
        let file = create(&fs, b"f")?;
        write(&fs, file, 0, &fill(1, 20_000))?;
        let times = || fs.attributes(file).map(|found| (found.mtime, found.ctime)).map_err(text);
        let (under, reading) = (fs.map(file, 0, 20_000, true).map_err(text)?, fs.map(file, 0, 20_000, false).map_err(text)?);
        for (mapping, changes) in [(fs.map(file, 4096, 4096, true).map_err(text)?, true), (reading, false), (under, true)] {
            let before = times()?;
            the_clock_moves();
            drop(mapping);
            if (times()? != before) != changes {
                return Err(format!("{checksum_kind:?}: changed times: {}", !changes));
            }
        }
        fs.unmount().map_err(text)?;
        check_device(&device, false)?;
    }
    Ok(())
}

/// [FM8]: what a program stores after an unmount that has left its mapping.
fn left() -> Result<(), String> {
    for is_unlinked in [false, true] {
        let setting = setting(PersistenceDomain::Adr, 4096);
        let device = setting.format();
        let fs = Arc::new(mount(&device, &setting.mount)?);
        let file = create(&fs, b"f")?;
        write(&fs, file, 0, &[1; 40_960])?;
        let mapped = fs.map_elsewhere(file, 4096, 8192, true).map_err(text)?;
        let pages = mapped.extents().to_vec();
        if is_unlinked {
            fs.unlink(InodeNumber::ROOT, b"f").map_err(text)?;
        }
        mapped.leave();
        fs.unmount().map_err(text)?;
        check_device(&device, true).map_err(|found| format!("check after an unmount: {found}"))?;
        let drive = Drive::new(Arc::new(device.fork()));
        for page in pages {
            let line = LineAddress::new(page.device_offset / 64);
            let _durable = drive.persist(Structure::Data, line, &vec![9; page.bytes as usize]).map_err(text)?;
        }
        let fs = FileSystem::mount(drive, &setting.mount).map_err(text)?;
        if is_unlinked {
            if fs.attributes(file).is_ok() || fs.space().memory.extent_bytes > 0 {
                return Err("the removed file is still there".into());
            }
        } else {
            let found = content(&fs, file).map_err(text)?;
            if found[4096..12_288] != [9; 8192] || found[..4096] != [1; 4096] || found[12_288..] != [1; 28_672] {
                return Err("the bytes are not those that were stored".into());
            }
        }
        fs.unmount().map_err(text)?;
        if !fs.superblock().clean {
            return Err("it does not become clean".into());
        }
    }
    Ok(())
}

/// [FM8]: so many other inodes come into memory before the unmount that one which nobody uses would leave it.
fn left_past_eviction() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Adr, 4096);
    let device = setting.format();
    let fs = Arc::new(mount(&device, &setting.mount)?);
    write(&fs, create(&fs, b"before")?, 0, &[5; 4096])?; // so that the file's pages are in no place that they would keep
    let file = create(&fs, b"f")?;
    write(&fs, file, 0, &[1; 40_960])?;
    let mapped = fs.map_elsewhere(file, 4096, 8192, true).map_err(text)?;
    let pages = mapped.extents().to_vec();
    mapped.leave();
    for made in 0..6000_u32 {
        create(&fs, format!("n{made}").as_bytes())?;
    }
    write(&fs, file, 5000, &[2; 100])?;
    fs.write_back_all().map_err(text)?;
    let (other, expected) = (create(&fs, b"other")?, fill(3, 1 << 20));
    write(&fs, other, 0, &expected)?;
    for page in pages {
        let line = LineAddress::new(page.device_offset / 64);
        let _durable = fs.drive().persist(Structure::Data, line, &vec![9; page.bytes as usize]).map_err(text)?;
    }
    if content(&fs, other).map_err(text)? != expected {
        return Err("another file was stored to".into());
    }
    let found = content(&fs, file).map_err(text)?;
    if found[4096..12_288] == [9; 8192] { Ok(()) } else { Err("the pages are not the file's any more".into()) }
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    in_every_domain(cuts);
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for (block_bytes, writable) in [(4096, true), (64 << 10, true), (16 << 10, false)] {
            let found = cuts_of_writes(domain, block_bytes, writable);
            found.unwrap_or_else(|what| panic!("{domain}, blocks of {block_bytes}, {writable}: {what}"));
        }
    }
    find_nothing(&[pinned, unchecked, cuts_of_a_sync_of_the_file, timed, left, left_past_eviction]);
    find_nothing(&[cuts_of_an_unmap_without_checksums, cuts_of_an_unmap_under_another, damaged, stored_behind_the_end]);
    find_nothing(&[short_write_over_the_end, punched_with_failing_stores, unreadable]);
}

#[test]
fn og1_open_mark_forgotten() {
    is_caught(Mutant::OpenMarkForgotten, &[cuts_of_large_blocks, cuts_of_single_pages]);
}

#[test]
fn og2_unchecked_forgotten() {
    is_caught(Mutant::UncheckedForgotten, &[cuts_of_large_blocks]);
}

#[test]
fn og3_closed_unflushed() {
    is_caught(Mutant::ClosedUnflushed, &[cuts_of_large_blocks, cuts_of_single_pages]);
}

#[test]
fn mw2_mapped_home_first() {
    is_caught(Mutant::MappedHomeFirst, &[cuts_of_writes_to_pages, cuts_of_writes_to_blocks]);
}

#[test]
fn mw2_mapped_home_forgotten() {
    is_caught(Mutant::MappedHomeForgotten, &[cuts_of_writes_to_pages, cuts_of_writes_to_blocks]);
}

#[test]
fn fm2_pins_ignored() {
    is_caught(Mutant::PinsIgnored, &[pinned]);
}

#[test]
fn fm3_fill_not_fenced() {
    is_caught(Mutant::FillNotFenced, &[cuts_of_filled_holes]);
}

#[test]
fn fm5_mapped_not_synced() {
    is_caught(Mutant::MappedNotSynced, &[cuts_of_a_sync_of_the_file]);
}

#[test]
fn fm5_mappings_untimed() {
    is_caught(Mutant::MappingsUntimed, &[timed]);
}

#[test]
fn fm5_unmapped_unflushed() {
    is_caught(Mutant::UnmappedUnflushed, &[cuts_of_an_unmap_without_checksums, cuts_of_an_unmap_under_another]);
}

#[test]
fn og7_opened_unverified() {
    is_caught(Mutant::OpenedUnverified, &[damaged]);
}

#[test]
fn mc3_mapped_end_of_old_view() {
    is_caught(Mutant::MappedEndOfOldView, &[stored_behind_the_end]);
}

#[test]
fn mc6_grown_stays() {
    is_caught(Mutant::GrownStays, &[short_write_over_the_end]);
}

#[test]
fn mc5_unzeroed_stays_unwritten() {
    is_caught(Mutant::UnzeroedStaysUnwritten, &[punched_with_failing_stores]);
}

#[test]
fn og2_unreadable_ends_closing() {
    is_caught(Mutant::UnreadableEndsClosing, &[unreadable]);
}

#[test]
fn fm8_stores_left_unpinned() {
    is_caught(Mutant::StoresLeftUnpinned, &[left]);
}

#[test]
fn fm8_left_pin_evicted() {
    is_caught(Mutant::LeftPinEvicted, &[left_past_eviction]);
}

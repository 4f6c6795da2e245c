//! Every cut of a mapped file that is truncated, grown again, punched and appended to, in each domain, with stores of the program between;
//! and the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use support::bugs::{alone, is_caught, run};
use tandemfs_crash::{CrashState, Cut, MemoryDevice, Random, Setting, check_device, content, each_state, fill, mount};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, FileMapping, FileSystem, NewInode, SetAttributes, WriteOptions};

const STATES: u64 = 2;
const DOMAINS: [PersistenceDomain; 3] = [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process];

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(text)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: &[u8]) -> Result<(), String> {
    match fs.write(file, offset, bytes, WriteOptions::default()).map_err(text)? {
        written if written == bytes.len() => Ok(()),
        written => Err(format!("{written} B of {} were written", bytes.len())),
    }
}

fn set_size(fs: &FileSystem, file: InodeNumber, size: usize) -> Result<(), String> {
    fs.set_attributes(file, &SetAttributes { size: Some(size as u64), ..SetAttributes::default() }).map(drop).map_err(text)
}

/// What a file may hold in the crash states of a call.
struct Expected {
    before: Vec<u8>,
    after: Vec<u8>,
    way: Way,
}

/// What lies between `before` and `after`.
#[derive(Clone, Copy)]
enum Way {
    /// Every size between them, with the bytes of the longer one.
    Sizes,
    /// Every size, and zeros instead of the new bytes of pages.
    SizesAndZeros,
    /// Some words are new.
    Words,
    /// The bytes up to a multiple of a page are new.
    Front,
}

impl Expected {
    fn allow(&self, found: &[u8], is_answered: bool) -> Result<(), String> {
        let Self { before, after, way } = self;
        if found == after || !is_answered && found == before {
            return Ok(());
        }
        if is_answered {
            let at = found.iter().zip(after).position(|(one, other)| one != other);
            return Err(format!("it is not as the call left it: {} B of {}, differs at {at:?}", found.len(), after.len()));
        }
        let longer = if before.len() > after.len() { before } else { after };
        let sizes = before.len().min(after.len())..=longer.len();
        if !sizes.contains(&found.len()) {
            return Err(format!("{} B are not in {sizes:?}", found.len()));
        }
        match way {
            Way::Sizes if found == &longer[..found.len()] => Ok(()),
            Way::SizesAndZeros => {
                let (old, new) = found.split_at(before.len());
                let is_new = |at: usize| new[at] == 0 || new[at] == after[before.len() + at];
                if old == before && (0..new.len()).all(is_new) {
                    Ok(())
                } else {
                    Err("what it has grown by is neither zeros nor new".into())
                }
            }
            Way::Words => match (0..found.len()).step_by(8).find(|at| {
                let word = *at..found.len().min(at + 8);
                found[word.clone()] != before[word.clone()] && found[word.clone()] != after[word]
            }) {
                Some(at) => Err(format!("the word at {at} is of no version")),
                None => Ok(()),
            },
            Way::Front => {
                let old = found.iter().zip(before).rposition(|(one, other)| one != other).map_or(0, |at| at + 1);
                let border = if old == after.len() { old } else { old.next_multiple_of(4096).min(after.len()) };
                if found[..border] == after[..border] { Ok(()) } else { Err(format!("old bytes before {border}")) }
            }
            Way::Sizes => Err(format!("{} B, but not those of before or after", found.len())),
        }
    }
}

/// A mapped file whose calls are recorded.
struct Scene<'f> {
    fs: &'f FileSystem,
    device: &'f MemoryDevice,
    file: InodeNumber,
    calls: Vec<Expected>,
    bytes: Vec<u8>,
}

impl Scene<'_> {
    /// Records a call after which the file has `after`.
    fn call(&mut self, way: Way, after: Vec<u8>, work: impl FnOnce(&FileSystem, InodeNumber) -> Result<(), String>) -> Result<(), String> {
        let index = self.calls.len();
        self.device.mark(index);
        work(self.fs, self.file)?;
        self.device.mark_return(index);
        let found = content(self.fs, self.file).map_err(text)?;
        if found != after {
            let at = found.iter().zip(&after).position(|(one, other)| one != other);
            return Err(format!("call {index}: it reads otherwise, {} B of {}, first at {at:?}", found.len(), after.len()));
        }
        let before = std::mem::replace(&mut self.bytes, after.clone());
        self.calls.push(Expected { before, after, way });
        Ok(())
    }

    /// Asserts that the mapping shows the file, and zeros behind its end.
    fn is_seen(&self, mapping: &FileMapping<'_>) -> Result<(), String> {
        let mut seen = vec![1; mapping.length() as usize];
        mapping.load(0, &mut seen).map_err(text)?;
        let mut expected = self.bytes.clone();
        expected.resize(seen.len().max(expected.len()), 0);
        match seen.iter().zip(&expected).position(|(one, other)| one != other) {
            Some(at) => Err(format!("the mapping shows other bytes at {at} after call {}", self.calls.len())),
            None => Ok(()),
        }
    }
}

/// Truncates, grows, stores, punches, zeroes, appends and unmaps.
fn changes(scene: &mut Scene<'_>, block: usize, writable: bool) -> Result<(), String> {
    let length = scene.bytes.len();
    let mapping = scene.fs.map(scene.file, 0, length as u64, writable).map_err(text)?;
    let (short, long) = (2 * block + block / 2 + 300, length + 3 * block + 7);
    let cut = scene.bytes[..short].to_vec();
    scene.call(Way::Sizes, cut.clone(), |fs, file| set_size(fs, file, short))?;
    scene.is_seen(&mapping)?;
    if writable {
        // Behind the end: in its page, in its block, in a block behind it.
        scene.call(Way::Sizes, cut.clone(), |_, _| {
            for at in [short + 11, short.next_multiple_of(4096) + 5, 4 * block + 100, length - 100] {
                mapping.store(at as u64, &fill(at as u64, 90)).map_err(text)?;
            }
            mapping.sync(0, length as u64).map_err(text)
        })?;
    }
    let mut grown = cut;
    grown.resize(long, 0);
    scene.call(Way::Sizes, grown.clone(), |fs, file| set_size(fs, file, long))?;
    scene.is_seen(&mapping)?;
    if writable {
        let stores = [(16, 64), (short / 8 * 8 + 8, 200), (4 * block, 4096), (length / 8 * 8 - 800, 800)];
        stores.iter().for_each(|(at, bytes)| grown[*at..at + bytes].copy_from_slice(&fill(*at as u64 + 3, *bytes)));
        scene.call(Way::Words, grown.clone(), |_, _| {
            stores.iter().try_for_each(|(at, bytes)| mapping.store(*at as u64, &grown[*at..at + bytes])).map_err(text)?;
            mapping.sync(0, length as u64).map_err(text)
        })?;
    }
    for (from, to, mode) in [
        (block / 2 + 100, 2 * block + 200, AllocateMode::Punch),
        (3 * block + 50, 3 * block + 900, AllocateMode::Punch),
        (4 * block - 10, 6 * block, AllocateMode::Zero { keep_size: true }),
    ] {
        grown[from..to].fill(0);
        scene.call(Way::Front, grown.clone(), |fs, file| fs.allocate(file, from as u64, (to - from) as u64, mode).map_err(text))?;
        scene.is_seen(&mapping)?;
    }
    if writable {
        let (at, stored) = (block + 64, fill(77, 640));
        grown[at..at + 640].copy_from_slice(&stored);
        scene.call(Way::Words, grown.clone(), |_, _| {
            mapping.store(at as u64, &stored).and_then(|()| mapping.sync(at as u64, 640)).map_err(text)
        })?;
    }
    // An append, and a write behind the end, over blocks that are mapped.
    let (cut, appended, behind) = (grown[..short].to_vec(), fill(5, 5000), fill(6, 3000));
    scene.call(Way::Sizes, cut.clone(), |fs, file| set_size(fs, file, short))?;
    if writable {
        mapping.store(short as u64 + 2000, &[7; 100]).map_err(text)?;
    }
    let mut after = cut;
    after.extend_from_slice(&appended);
    scene.call(Way::SizesAndZeros, after.clone(), |fs, file| {
        match fs.append(file, &appended, WriteOptions::default()).map_err(text)? {
            (5000, end) if end == short as u64 + 5000 => Ok(()),
            other => Err(format!("{other:?} were appended")),
        }
    })?;
    scene.is_seen(&mapping)?;
    if writable {
        mapping.store(short as u64 + 6000, &[8; 100]).map_err(text)?;
    }
    after.resize(5 * block + 50, 0);
    after.extend_from_slice(&behind);
    scene.call(Way::SizesAndZeros, after.clone(), |fs, file| write(fs, file, 5 * block as u64 + 50, &behind))?;
    scene.is_seen(&mapping)?;
    let nothing = scene.bytes[..100].to_vec();
    scene.call(Way::Sizes, nothing.clone(), |fs, file| set_size(fs, file, 100))?;
    if writable {
        mapping.store(200, &[9; 50]).and_then(|()| mapping.store(5000, &[9; 50])).and_then(|()| mapping.sync(0, 8192)).map_err(text)?;
    }
    scene.call(Way::Sizes, nothing.clone(), |_, _| mapping.unmap().map_err(text))?;
    scene.call(Way::Sizes, nothing, |fs, _| fs.checkpoint().map_err(text))
}

fn cuts(domain: PersistenceDomain, block_bytes: u32, writable: bool) -> Result<(), String> {
    let setting = Setting::small(domain, block_bytes).with_memory_homes();
    let (device, block) = (setting.format(), block_bytes as usize);
    let fs = mount(&device, &setting.mount)?;
    let other = create(&fs, b"other")?;
    write(&fs, other, 0, &fill(9, 4 << 20))?; // its pages are given out again
    fs.unlink(InodeNumber::ROOT, b"other").map_err(text)?;
    let file = create(&fs, b"f")?;
    let bytes = fill(1, if block == 4096 { 103 * block + 1000 } else { 7 * block + 1000 });
    write(&fs, file, 0, &bytes)?;
    fs.checkpoint().map_err(text)?;
    let start = device.fork();
    device.start_recording();
    let mut scene = Scene { fs: &fs, device: &device, file, calls: Vec::new(), bytes };
    changes(&mut scene, block, writable)?;
    let calls = scene.calls;
    let events = device.stop_recording();
    let (mut failure, mut states) = (None, 0);
    each_state(&start, &events, 0, STATES, &mut Random::new(7), &mut |cut, state| {
        if failure.is_none() {
            states += 1;
            failure = recover(&setting, state, cut, &calls, 12 * block).err().map(|what| format!("{cut:?}: {what}"));
        }
    });
    drop(fs);
    match failure {
        Some(what) => Err(what),
        None if states < 100 => Err(format!("{states} states are too few")),
        None => Ok(()),
    }
}

/// Mounts, reads, grows, closes, unmounts and checks.
fn recover(setting: &Setting, state: CrashState, cut: Cut, calls: &[Expected], further: usize) -> Result<(), String> {
    let device = state.device;
    check_device(&device, true).map_err(|found| format!("check after the cut: {found}"))?;
    let fs = mount(&device, &setting.mount)?;
    let file = fs.lookup(InodeNumber::ROOT, b"f").map_err(text)?.inode;
    let mut found = content(&fs, file).map_err(text)?;
    match cut.call {
        Some(call) => calls[call].allow(&found, cut.between)?,
        None => calls[0].allow(&found, false)?,
    }
    if cut.event.is_multiple_of(2) {
        while fs.close_open_pages().map_err(text)? {}
    }
    // What was behind the end does not come back, by a write, nor by growth.
    let at = found.len() + if cut.event.is_multiple_of(3) { 3 } else { 5000 };
    write(&fs, file, at as u64, b"end")?;
    found.resize(at, 0);
    found.extend_from_slice(b"end");
    set_size(&fs, file, found.len() + further)?;
    found.resize(found.len() + further, 0);
    let read = content(&fs, file).map_err(text)?;
    if let Some(at) = read.iter().zip(&found).position(|(one, other)| one != other) {
        return Err(format!("old bytes come back at {at}, behind {} B", found.len() - further));
    }
    fs.unmount().map_err(text)?;
    let counts = check_device(&device, false).map_err(|found| format!("check after an unmount: {found}"))?;
    if counts.open_pages > 0 {
        return Err(format!("{} pages stay open", counts.open_pages));
    }
    let fs = mount(&device, &setting.mount)?;
    if content(&fs, file).map_err(text)? == found { Ok(()) } else { Err("it reads differently when it is closed".into()) }
}

fn cuts_of_pages() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 4096, true)
}

fn cuts_of_blocks() -> Result<(), String> {
    cuts(PersistenceDomain::Gpf, 16 << 10, true)
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    for domain in DOMAINS {
        for (block_bytes, writable) in [(4096, true), (16 << 10, true), (16 << 10, false), (64 << 10, true)] {
            let result = run(Mutant::None, || cuts(domain, block_bytes, writable));
            result.unwrap_or_else(|what| panic!("{domain}, blocks of {block_bytes}, {writable}: {what}"));
        }
    }
}

#[test]
fn mc1_mapped_end_later() {
    is_caught(Mutant::MappedEndLater, &[cuts_of_pages, cuts_of_blocks]);
}

#[test]
fn mc3_mapped_end_unmarked() {
    is_caught(Mutant::MappedEndUnmarked, &[cuts_of_blocks]);
}

#[test]
fn mc4_regrown_not_zeroed() {
    is_caught(Mutant::RegrownNotZeroed, &[cuts_of_pages, cuts_of_blocks]);
}

#[test]
fn mc5_punched_stays_unwritten() {
    is_caught(Mutant::PunchedStaysUnwritten, &[cuts_of_pages, cuts_of_blocks]);
}

#[test]
fn og4_closed_behind_end() {
    is_caught(Mutant::ClosedBehindEnd, &[cuts_of_blocks]);
}

#[test]
fn mc1_pins_ignored() {
    is_caught(Mutant::PinsIgnored, &[cuts_of_blocks]);
}

//! File pages in host memory ([FP1]–[FP6] of the file system's `cache/file_pages.rs`): what is read from them is what the drive has, beside every way to
//! change bytes, with and without calls; failures leave nothing; and the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use support::bugs::{Catcher, alone, find_nothing, is_caught};
use tandemfs_crash::{
    Access, FaultDevice, Harness, MemoryDevice, Model, Operation, Random, Setting, Storing, Window, fill, mount, mount_device,
};
use tandemfs_device::{BlockPath, BlockRequest, PersistenceDomain, SharedBytes, Sink};
use tandemfs_format::inode::file_type;
use tandemfs_format::{InodeNumber, Sector};
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Borrower, Error, FileSystem, Kept, NewInode, ReadOptions, SetAttributes, Versions, WriteOptions, no_wait};

use Operation::*;

const PAGE: usize = 4096;
const BLOCK: usize = 8 << 10;
const PAGES: usize = 12;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn holds(is_so: bool, otherwise: &str) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(otherwise.into()) }
}

fn setting() -> Setting {
    Setting::small(PersistenceDomain::Gpf, BLOCK as u32)
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(text)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: usize, bytes: &[u8]) -> Result<(), String> {
    fs.write(file, offset as u64, bytes, WriteOptions::default()).map(drop).map_err(text)
}

/// As a reader without a cache.
fn read(fs: &FileSystem, file: InodeNumber, offset: usize, length: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; length];
    let done = fs.read_with(file, offset as u64, &mut bytes, ReadOptions { kept: Kept::Here })?;
    bytes.truncate(done);
    Ok(bytes)
}

/// A file of some pages that are all in host memory.
fn kept_file(fs: &FileSystem) -> Result<(InodeNumber, Vec<u8>), String> {
    let (file, content) = (create(fs, b"file")?, fill(1, PAGES * PAGE));
    write(fs, file, 0, &content)?;
    for _ in 0..2 {
        holds(read(fs, file, 0, content.len()).map_err(text)? == content, "other bytes than written")?;
    }
    holds(fs.statistics().work.page_hits > 0, "nothing was kept")?;
    Ok((file, content))
}

/// Everything that changes bytes by a call, each behind a read that keeps them and before one that must not find them.
fn beside_the_model() -> Result<(), String> {
    let setting = setting();
    let device = setting.format();
    let mut harness = Harness::new(device, &setting.mount, Model::default())?;
    let mut random = Random::new(3);
    for operation in [Create("f"), Write("f", 0, 200_000, 1), Create("g"), Write("g", 0, 70_000, 2)] {
        harness.apply(&operation)?;
    }
    for round in 0..160_u64 {
        let (name, other) = *random.pick(&[("f", "g"), ("f", "g"), ("g", "f")]);
        let (at, length) = (random.below(200_000), 1 + random.below(20_000));
        let (block, blocks) = (at / BLOCK as u64 * BLOCK as u64, BLOCK as u64 * (1 + random.below(2)));
        let operation = match random.below(12) {
            0..=2 => Write(name, at, length as u32, round),
            3 => Write(name, block, BLOCK as u32, round),
            4 => Append(name, length as u32, round),
            5 => Truncate(name, at),
            6 => Punch(name, at, length),
            7 => Zero(name, at, length, round % 2 == 0),
            8 => Collapse(name, block, blocks),
            9 => Insert(name, block, blocks),
            10 => CopyRange(other, at / 2, name, at, length),
            _ => *random.pick(&[WriteBackAll, Checkpoint, Remount]),
        };
        harness.apply(&operation).and_then(|_| harness.compare()).map_err(|what| format!("round {round}, {operation:?}: {what}"))?;
    }
    Ok(())
}

/// A write that fails at any of its accesses has changed nothing, here neither.
fn a_write_that_fails() -> Result<(), String> {
    let mut failed = 0;
    for (access, succeed) in [Access::Write, Access::Flush, Access::Store].into_iter().flat_map(|access| (0..60).map(move |n| (access, n)))
    {
        let faulty = Arc::new(FaultDevice::new(setting().format(), access, succeed, false));
        let Ok(fs) = mount_device(faulty, &setting().mount) else { continue };
        let Ok((file, content)) = kept_file(&fs) else { continue };
        let (at, new) = (3 * PAGE, fill(2, 6 * PAGE));
        let mut expected = content.clone();
        match fs.write(file, at as u64, &new, WriteOptions::default()) {
            Ok(_) => expected[at..at + new.len()].copy_from_slice(&new),
            Err(Error::Stopped { .. }) => continue, // nobody knows what is on the drive
            Err(_) if fs.stopped().is_some() => continue,
            Err(_) => failed += 1,
        }
        holds(read(&fs, file, 0, content.len()).map_err(text)? == expected, &format!("{access:?} {succeed}: other bytes"))?;
    }
    holds(failed > 0, "no write failed")
}

/// Damaged sectors stay damaged, however often they are read.
fn damage_is_not_kept() -> Result<(), String> {
    let device = setting().format();
    let fs = mount(&device, &setting().mount)?;
    let (file, content) = (create(&fs, b"file")?, fill(1, 4 * BLOCK));
    write(&fs, file, 0, &content)?;
    damage(&device, &content[5 * PAGE..6 * PAGE])?;
    for _ in 0..3 {
        match read(&fs, file, 4 * PAGE, 4 * PAGE) {
            Err(Error::DamagedData { offset, .. }) => holds(offset as usize == 5 * PAGE, "another offset")?,
            other => return Err(format!("a damaged sector was read: {:?}", other.map(|bytes| bytes.len()))),
        }
        for page in [4, 6] {
            let found = read(&fs, file, page * PAGE + 100, 100).map_err(text)?;
            holds(found == content[page * PAGE + 100..page * PAGE + 200], "its neighbours have other bytes")?;
        }
    }
    write(&fs, file, 4 * PAGE, &content[4 * PAGE..6 * PAGE])?;
    holds(read(&fs, file, 0, content.len()).map_err(text)? == content, "what was written again has other bytes")
}

fn damage(device: &MemoryDevice, sector: &[u8]) -> Result<(), String> {
    let mut found = vec![0; PAGE];
    for number in (0..(32 << 20) / PAGE as u64).map(Sector::new) {
        let read = device.transfer(&mut [BlockRequest::Read { sector: number, buffer: (&mut found).into() }], &mut || {});
        if read.is_ok() && found == sector {
            let wrong = BlockRequest::Write { sector: number, buffer: (&[0xdb; PAGE]).into() };
            return device.transfer(&mut [wrong], &mut || {}).map_err(text);
        }
    }
    Err("the sector is not on the device".into())
}

fn in_memory() -> Result<(Arc<FileSystem>, InodeNumber, Vec<u8>), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, PAGE as u32).with_memory_homes();
    let fs = mount(&setting.format(), &setting.mount)?;
    let (file, content) = kept_file(&fs)?;
    Ok((Arc::new(fs), file, content))
}

/// Stores by a mapping, beside readers: they find each of them.
fn stores_by_a_mapping() -> Result<(), String> {
    let (fs, file, mut content) = in_memory()?;
    let mapping = fs.map(file, PAGE as u64, 4 * PAGE as u64, true).map_err(text)?;
    for round in 0..4 {
        let bytes = fill(10 + round, 300);
        mapping.store(PAGE as u64 - 100 + 8 * round, &bytes).map_err(text)?;
        let at = 2 * PAGE - 100 + 8 * round as usize;
        content[at..at + 300].copy_from_slice(&bytes);
        for _ in 0..2 {
            holds(read(&fs, file, 0, content.len()).map_err(text)? == content, "what was stored is not read")?;
        }
    }
    mapping.unmap().map_err(text)?;
    for _ in 0..2 {
        holds(read(&fs, file, 0, content.len()).map_err(text)? == content, "what was stored is not read afterwards")?;
    }
    let hits = fs.statistics().work.page_hits;
    read(&fs, file, 0, content.len()).map_err(text)?;
    holds(fs.statistics().work.page_hits > hits, "pages are kept again")
}

/// Stores by a lease, between reads that end it.
fn stores_by_a_lease() -> Result<(), String> {
    let (fs, file, mut content) = in_memory()?;
    let borrower = Arc::<Borrower>::default();
    for round in 0..3 {
        let (storing, access) = Storing::new();
        let lease = fs.lend_stores(&borrower, &access, file, 0).map_err(text)?.ok_or("nothing was lent")?;
        let window = Window::of(fs.drive(), &lease).map_err(text)?;
        let bytes = fill(20 + round, 500);
        holds(storing.enter(), "the lease has ended")?;
        window.store(3 * PAGE as u64 - 250, &bytes).map_err(text)?;
        storing.leave();
        content[3 * PAGE - 250..3 * PAGE + 250].copy_from_slice(&bytes);
        for _ in 0..2 {
            holds(read(&fs, file, 0, content.len()).map_err(text)? == content, "what was stored is not read")?;
        }
    }
    Ok(())
}

#[derive(Default)]
struct Words(Mutex<HashMap<u64, u64>>);

struct Publishing(Arc<Words>);

impl Versions for Publishing {
    fn raise(&self, thing: u64) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner).entry(thing).or_default() += 1;
    }

    fn current(&self, thing: u64) -> (u32, u64) {
        (thing as u32, self.0.0.lock().unwrap_or_else(PoisonError::into_inner).get(&thing).copied().unwrap_or_default())
    }
}

/// Who keeps an answer that came from pages learns when its bytes change.
fn answers_depend_on_bytes() -> Result<(), String> {
    let fs = mount(&setting().format(), &setting().mount)?;
    let words = Arc::<Words>::default();
    holds(fs.publish(Box::new(Publishing(words.clone()))), "somebody else publishes")?;
    let (file, _) = kept_file(&fs)?;
    let hits = fs.statistics().work.page_hits;
    let noted = || fs.noting(|| read(&fs, file, 100, 100), |_, noted| noted.versions(None).collect::<Vec<_>>());
    let before = noted();
    holds(fs.statistics().work.page_hits == hits + 1, "the answer did not come from pages")?;
    write(&fs, file, 150, b"new")?;
    holds(before != noted() && before.len() > 1, "the answer is kept although its bytes have changed")
}

const CATCHERS: [Catcher; 6] =
    [beside_the_model, a_write_that_fails, damage_is_not_kept, stores_by_a_mapping, stores_by_a_lease, answers_depend_on_bytes];

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    find_nothing(&CATCHERS);
}

#[test]
fn fp2_page_outlives_write() {
    is_caught(Mutant::PageOutlivesWrite, &[beside_the_model]);
}

#[test]
fn fp2_fp3_page_outlives_change() {
    is_caught(Mutant::PageOutlivesChange, &[beside_the_model, stores_by_a_mapping, stores_by_a_lease]);
}

#[test]
fn fp2_page_before_commit() {
    is_caught(Mutant::PageBeforeCommit, &[a_write_that_fails]);
}

#[test]
fn fp1_unverified_kept() {
    is_caught(Mutant::UnverifiedKept, &[damage_is_not_kept]);
}

#[test]
fn fp3_pages_of_mapped_kept() {
    is_caught(Mutant::PagesOfMappedKept, &[stores_by_a_mapping]);
}

#[test]
fn fp4_page_not_noted() {
    is_caught(Mutant::PageNotNoted, &[answers_depend_on_bytes]);
}

/// A number that is used again is another file ([FP5]), and what moves stays the same.
#[test]
fn pages_are_of_a_file_and_not_of_a_number_or_a_place() {
    let _alone = alone();
    let fs = mount(&setting().format(), &setting().mount).expect("mounts");
    let (file, content) = kept_file(&fs).expect("made");
    fs.write_back_all().expect("moved");
    fs.checkpoint().expect("home");
    let misses = fs.statistics().work.page_misses;
    assert!(read(&fs, file, 0, content.len()).expect("read") == content);
    assert_eq!(fs.statistics().work.page_misses, misses, "its bytes are the same");
    fs.unlink(InodeNumber::ROOT, b"file").expect("removed");
    for round in 0..20 {
        let other = create(&fs, b"other").expect("made");
        let size = SetAttributes { size: Some(content.len() as u64), ..SetAttributes::default() };
        fs.set_attributes(other, &size).expect("grown");
        assert!(read(&fs, other, 0, content.len()).expect("read").iter().all(|byte| *byte == 0), "round {round}");
        fs.unlink(InodeNumber::ROOT, b"other").expect("removed");
    }
}

/// Who does not wait is answered from pages where he would wait for the drive; shared memory gets copies, and nothing comes back from it.
#[test]
fn who_does_not_wait_is_answered_from_pages() {
    let _alone = alone();
    let fs = mount(&setting().format(), &setting().mount).expect("mounts");
    let (file, content) = (create(&fs, b"file").expect("made"), fill(1, PAGES * PAGE));
    write(&fs, file, 0, &content).expect("written");
    let options = ReadOptions { kept: Kept::Here };
    let memory: Vec<std::sync::atomic::AtomicU8> = (0..2 * PAGE).map(|_| 0.into()).collect();
    let into_shared = |offset: usize| fs.read_into(file, offset as u64, Sink::Shared(SharedBytes::new(&memory)), options);
    assert!(matches!(no_wait(|| into_shared(PAGE)), Err(Error::WouldWait)));
    assert_eq!(into_shared(PAGE).expect("read"), 2 * PAGE);
    memory.iter().for_each(|byte| byte.store(0xee, std::sync::atomic::Ordering::SeqCst));
    let before = fs.drive().counters().snapshot().block_reads;
    assert_eq!(no_wait(|| into_shared(PAGE)).expect("answered from pages"), 2 * PAGE);
    let found: Vec<u8> = memory.iter().map(|byte| byte.load(std::sync::atomic::Ordering::SeqCst)).collect();
    assert!(found == content[PAGE..3 * PAGE]);
    // A small read brings its whole page.
    assert_eq!(read(&fs, file, 5 * PAGE + 100, 10).expect("read"), content[5 * PAGE + 100..5 * PAGE + 110]);
    assert_eq!(fs.drive().counters().snapshot().block_reads, before + 1);
    assert_eq!(no_wait(|| read(&fs, file, 5 * PAGE, PAGE)).expect("answered from pages"), content[5 * PAGE..6 * PAGE]);
    // Who has a cache of his own, or wants none, leaves nothing here.
    for kept in [Kept::Nowhere, Kept::ToCompare] {
        let mut bytes = vec![0; PAGE];
        fs.read_with(file, 8 * PAGE as u64, &mut bytes, ReadOptions { kept }).expect("read");
        let is_kept = no_wait(|| read(&fs, file, 8 * PAGE, PAGE)).is_ok();
        assert_eq!(is_kept, kept == Kept::ToCompare, "{kept:?}");
    }
}

/// Writes from memory that others change: what is kept are the bytes that went to the drive.
#[test]
fn what_a_write_keeps_is_what_it_wrote() {
    let _alone = alone();
    let fs = mount(&setting().format(), &setting().mount).expect("mounts");
    let (file, mut content) = kept_file(&fs).expect("made");
    let bytes = fill(7, 3000);
    let memory: Vec<std::sync::atomic::AtomicU8> = bytes.iter().map(|byte| (*byte).into()).collect();
    let from = tandemfs_device::Source::Shared(SharedBytes::new(&memory));
    fs.write_from(file, Some(PAGE as u64 - 1000), from, WriteOptions::default()).expect("written");
    memory.iter().for_each(|byte| byte.store(0, std::sync::atomic::Ordering::SeqCst));
    content[PAGE - 1000..PAGE + 2000].copy_from_slice(&bytes);
    let misses = fs.statistics().work.page_misses;
    assert!(read(&fs, file, 0, content.len()).expect("read") == content);
    // A write that is refused, since its blocks go by requests, has changed nothing.
    let blocks = fill(8, 2 * BLOCK);
    assert!(matches!(no_wait(|| fs.write(file, BLOCK as u64, &blocks, WriteOptions::default())), Err(Error::WouldWait)));
    assert!(read(&fs, file, 0, content.len()).expect("read") == content);
    fs.write(file, BLOCK as u64, &blocks, WriteOptions::default()).expect("written");
    content[BLOCK..3 * BLOCK].copy_from_slice(&blocks);
    assert!(read(&fs, file, 0, content.len()).expect("read") == content);
    assert_eq!(fs.statistics().work.page_misses, misses, "the pages have stayed");
    fs.drop_file_pages(file).expect("dropped");
    assert!(read(&fs, file, 0, content.len()).expect("read") == content, "and the drive has the same");
}

//! Ranges punched inside of blocks, where the zeros before what is cut off find no data log: the block is written whole then, and has sectors
//! behind the range too. The ways to get there one by one, random changes compared with a byte array, and the deliberate bug.
//!
//!     TANDEMFS_SEED=N TANDEMFS_ROUNDS=200 cargo test --release -p tandemfs-crash --test punched_parts
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::ops::Range;

use support::bugs::{alone, find_nothing, is_caught};
use tandemfs_crash::{Random, Setting, check_device, content, fill, mount, rounds_or, seed_or};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_format::mapping::LEAF_ENTRIES_MAX;
use tandemfs_fs::inject::{Take, fail_allocation};
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, Error, FileSystem, NewInode, SetAttributes, Threshold, WriteOptions};

const PAGE: u64 = 4096;
const BLOCK: u64 = 64 << 10;
/// Blocks of a file that is changed at random.
const BLOCKS: u64 = 3;
/// Random changes of one file.
const STEPS: usize = 60;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn setting(block_bytes: u32) -> Setting {
    let mut setting = Setting::small(PersistenceDomain::Gpf, block_bytes);
    setting.mount.threshold = Threshold::BlockSize;
    setting
}

/// A file system, a file and the bytes that it should have.
struct Scene {
    fs: FileSystem,
    file: InodeNumber,
    bytes: Vec<u8>,
}

impl Scene {
    fn new(fs: FileSystem) -> Result<Self, String> {
        let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let file = fs.create(InodeNumber::ROOT, b"f", &new).map_err(text)?.inode;
        Ok(Self { fs, file, bytes: Vec::new() })
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        match self.fs.write(self.file, offset, bytes, WriteOptions::default()) {
            Ok(written) if written == bytes.len() => {}
            Err(Error::NoSpace { .. }) => return Ok(()),
            other => return Err(format!("a write of {} B: {other:?}", bytes.len())),
        }
        let (from, to) = (offset as usize, offset as usize + bytes.len());
        self.bytes.resize(self.bytes.len().max(to), 0);
        self.bytes[from..to].copy_from_slice(bytes);
        Ok(())
    }

    fn punch(&mut self, offset: u64, end: u64) -> Result<(), String> {
        self.fs.allocate(self.file, offset, end - offset, AllocateMode::Punch).map_err(text)?;
        self.zero(offset, end);
        Ok(())
    }

    fn zero(&mut self, offset: u64, end: u64) {
        let to = (end as usize).min(self.bytes.len());
        if (offset as usize) < to {
            self.bytes[offset as usize..to].fill(0);
        }
    }

    /// Blocks that were written whole, with the data logs that they had.
    fn composed(&self) -> u64 {
        self.fs.statistics().work.block_write_backs
    }

    /// As [`punch`](Self::punch); the zeros must find no data log.
    fn punch_whole(&mut self, offset: u64, end: u64) -> Result<(), String> {
        let before = self.composed();
        self.punch(offset, end)?;
        if self.composed() == before { Err("the zeros found a data log".into()) } else { self.compare() }
    }

    fn compare(&self) -> Result<(), String> {
        self.fs.drop_file_pages(self.file).map_err(text)?;
        let found = content(&self.fs, self.file).map_err(text)?;
        if found.len() != self.bytes.len() {
            return Err(format!("{} B instead of {}", found.len(), self.bytes.len()));
        }
        match found.iter().zip(&self.bytes).position(|(found, expected)| found != expected) {
            Some(at) => Err(format!("byte {at} is {} instead of {}", found[at], self.bytes[at])),
            None => Ok(()),
        }
    }
}

/// Two sectors, and 16 data logs over and behind them.
fn full_leaf() -> Result<(), String> {
    let setting = setting(BLOCK as u32);
    let mut scene = Scene::new(mount(&setting.format(), &setting.mount)?)?;
    scene.write(0, &fill(1, 2 * PAGE as usize))?;
    scene.fs.write_back_all().map_err(text)?;
    scene.write(2 * PAGE, &fill(2, 14 * PAGE as usize))?;
    scene.write(5000, &fill(3, 10))?;
    scene.write(6000, &fill(4, 10))?;
    scene.punch_whole(100, 3 * PAGE)
}

/// Two sectors and one data log behind them.
fn one_log(scene: &mut Scene) -> Result<(), String> {
    scene.write(0, &fill(1, 2 * PAGE as usize))?;
    scene.fs.write_back_all().map_err(text)?;
    scene.write(20_000, &fill(2, 100))
}

/// No slot is free.
fn no_slot() -> Result<(), String> {
    let setting = setting(BLOCK as u32);
    let mut scene = Scene::new(mount(&setting.format(), &setting.mount)?)?;
    one_log(&mut scene)?;
    fail_allocation(Some((Take::Slot, 0)));
    let punched = scene.punch_whole(100, 10_000);
    fail_allocation(None);
    punched
}

/// A mount that makes no data logs, after one that did.
fn blocks_only() -> Result<(), String> {
    let mut setting = setting(BLOCK as u32);
    let device = setting.format();
    let mut scene = Scene::new(mount(&device, &setting.mount)?)?;
    one_log(&mut scene)?;
    scene.fs.unmount().map_err(text)?;
    setting.mount.threshold = Threshold::BlocksOnly;
    scene.fs = mount(&device, &setting.mount)?;
    scene.punch_whole(100, 10_000)
}

/// One change.
#[derive(Debug, Clone, Copy)]
enum Step {
    Write(u64, u64),
    /// Small data logs in each page of a block.
    Logs(u64, u64),
    /// A last block of so many sectors, and small data logs in each page behind them.
    Short(u64, u64),
    /// The second number: how many slots are found before one is not.
    Punch(u64, u64, Option<u64>),
    Zero(u64, u64),
    Truncate(u64),
    WriteBack,
}

fn draw(random: &mut Random, block_bytes: u64) -> Step {
    let length = BLOCKS * block_bytes;
    let place = |random: &mut Random| {
        let border = random.below(length / PAGE + 1) * PAGE;
        match random.below(4) {
            0 => border,
            1 => border.saturating_sub(random.below(300)),
            _ => border + random.below(PAGE),
        }
    };
    let range = |random: &mut Random| {
        let in_front = random.below(BLOCKS) * block_bytes + random.below(3 * PAGE);
        let start = if random.one_in(2) { in_front } else { place(random) };
        let most = *random.pick(&[PAGE, block_bytes / 2, block_bytes, length]);
        (start, start + 1 + random.below(most))
    };
    match random.below(20) {
        16..=19 => Step::Short(random.below(BLOCKS), 1 + random.below(3)),
        0 | 1 => Step::Write(place(random), 1 + random.below(600)),
        2 | 3 => Step::Write(place(random), 1 + random.below(3 * PAGE)),
        4 => Step::Write(random.below(BLOCKS) * block_bytes, PAGE * (1 + random.below(block_bytes / PAGE))),
        5..=7 => Step::Logs(random.below(BLOCKS), random.below(PAGE - 100)),
        8..=11 => {
            let (from, to) = range(random);
            Step::Punch(from, to, random.one_in(2).then(|| random.below(3)))
        }
        12 => {
            let (from, to) = range(random);
            Step::Zero(from, to)
        }
        13 => Step::Truncate(place(random)),
        _ => Step::WriteBack,
    }
}

fn apply(scene: &mut Scene, step: Step, seed: u64, block_bytes: u64) -> Result<(), String> {
    let logs = |scene: &mut Scene, block: u64, mut pages: Range<u64>, within: u64| {
        let length = 1 + (seed % 90) as usize;
        pages.try_for_each(|page| scene.write(block * block_bytes + page * PAGE + within, &fill(seed + page, length)))
    };
    match step {
        Step::Write(offset, length) => scene.write(offset, &fill(seed, length as usize)),
        Step::Logs(block, within) => logs(scene, block, 0..block_bytes / PAGE, within),
        Step::Short(block, sectors) => {
            apply(scene, Step::Truncate(block * block_bytes), seed, block_bytes)?;
            apply(scene, Step::Write(block * block_bytes, sectors * PAGE), seed, block_bytes)?;
            apply(scene, Step::WriteBack, seed, block_bytes)?;
            logs(scene, block, sectors..block_bytes / PAGE, 50)
        }
        Step::Punch(from, to, slots) => {
            fail_allocation(slots.map(|slots| (Take::Slot, slots)));
            let punched = scene.fs.allocate(scene.file, from, to - from, AllocateMode::Punch);
            fail_allocation(None);
            match punched {
                Ok(()) => scene.zero(from, to),
                Err(Error::NoSpace { .. }) if slots.is_some() => scene.punch(from, to)?, // done again, it is completed
                Err(error) => return Err(text(error)),
            }
            Ok(())
        }
        Step::Zero(from, to) => match scene.fs.allocate(scene.file, from, to - from, AllocateMode::Zero { keep_size: true }) {
            Ok(()) => {
                scene.zero(from, to);
                Ok(())
            }
            Err(Error::NoSpace { .. }) => Ok(()),
            Err(error) => Err(text(error)),
        },
        Step::Truncate(size) => {
            match scene.fs.set_attributes(scene.file, &SetAttributes { size: Some(size), ..SetAttributes::default() }) {
                Ok(_) => scene.bytes.resize(size as usize, 0),
                Err(Error::NoSpace { .. }) if size > scene.bytes.len() as u64 => {}
                Err(error) => return Err(text(error)),
            }
            Ok(())
        }
        Step::WriteBack => match scene.fs.write_back_all() {
            Ok(_) | Err(Error::NoSpace { .. }) => Ok(()),
            Err(error) => Err(text(error)),
        },
    }
}

/// Data logs until growth finds no room for more of them.
fn fill_data_area(fs: &FileSystem) -> Result<(), String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"logs", &new).map_err(text)?.inode;
    let apart = u64::from(fs.superblock().geometry.block_bytes()) / LEAF_ENTRIES_MAX as u64;
    for log in 0..4000 {
        let before = fs.space().memory.data_log_bytes;
        match fs.write(file, log * apart, &[log as u8; 4000], WriteOptions::default()) {
            Ok(_) if fs.space().memory.data_log_bytes > before => {}
            Ok(_) | Err(Error::NoSpace { .. }) => return Ok(()),
            Err(error) => return Err(text(error)),
        }
    }
    Err("the data area does not become full".into())
}

/// Random changes of one file. Returns how many punches have written a block whole.
fn random_changes(setting: &Setting, is_crowded: bool, seed: u64) -> Result<u64, String> {
    let block_bytes = u64::from(setting.format.block_bytes);
    let mut setting = setting.clone();
    if is_crowded {
        setting.mount.write_back_percent = 1; // what is full stays so
    }
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    if is_crowded {
        fill_data_area(&fs)?;
    }
    let (mut scene, mut random, mut steps, mut whole) = (Scene::new(fs)?, Random::new(seed), Vec::new(), 0);
    for number in 0..STEPS {
        let step = draw(&mut random, block_bytes);
        steps.push(step);
        let before = scene.composed();
        let done = apply(&mut scene, step, seed * 1000 + number as u64, block_bytes).and_then(|()| scene.compare());
        done.map_err(|what| format!("TANDEMFS_SEED={seed}, {setting:?}, crowded: {is_crowded}, {steps:?}: {what}"))?;
        whole += u64::from(matches!(step, Step::Punch(..)) && scene.composed() > before);
    }
    scene.fs.unmount().map_err(text)?;
    check_device(&device, false).map_err(|what| format!("TANDEMFS_SEED={seed}, {setting:?}, {steps:?}: {what}"))?;
    scene.fs = mount(&device, &setting.mount)?;
    scene.compare().map_err(|what| format!("TANDEMFS_SEED={seed}, {setting:?}, after a mount: {what}"))?;
    Ok(whole)
}

fn rounds(most: u64) -> Result<u64, String> {
    let (seed, mut whole) = (seed_or(1), 0);
    for seed in seed..seed + rounds_or(most) {
        for block_bytes in [64 << 10, 128 << 10, 256 << 10] {
            whole += random_changes(&setting(block_bytes), seed.is_multiple_of(4), seed)?;
        }
        whole += random_changes(&setting(BLOCK as u32).with_memory_homes(), false, seed)?;
        whole += random_changes(&setting(BLOCK as u32).with_firmware(), false, seed)?;
    }
    Ok(whole)
}

fn at_random() -> Result<(), String> {
    rounds(12).map(drop)
}

#[test]
fn regression_a_punch_destroyed_bytes_behind_its_range() {
    let _alone = alone();
    find_nothing(&[full_leaf, no_slot, blocks_only]);
}

#[test]
fn punched_blocks_equal_a_byte_array() {
    let _alone = alone();
    let whole = rounds(12).unwrap_or_else(|what| panic!("{what}"));
    assert!(whole > 12, "only {whole} punches have written a block whole");
}

#[test]
fn al5_cut_decided_early() {
    is_caught(Mutant::CutDecidedEarly, &[full_leaf, no_slot, blocks_only, at_random]);
}

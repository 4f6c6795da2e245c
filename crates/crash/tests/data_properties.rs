//! The data path compared with byte arrays: any sequence of writes, truncations, punched, zeroed, allocated, collapsed and inserted ranges,
//! copies and reads, in both modes and on both kinds of drives, for every block size and several thresholds, while another thread writes
//! back and checkpoints continuously. The memory zone is almost full, so that logs merge, leaves overflow and blocks are redirected.
//!
//!     TANDEMFS_SEED=N TANDEMFS_ROUNDS=100 cargo test --release -p tandemfs-crash --test data_properties      100 rounds of all combinations

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tandemfs_crash::{Random, Setting, check_device, fill, mount, rounds_or, seed_or};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::{AllocateMode, Error, FileSystem, Kept, NewInode, ReadOptions, SeekTo, SetAttributes, SetTime, Threshold, WriteOptions};

const FILE_BYTES_MAX: u64 = 3 << 20;
const PAGE: u64 = 4096;
/// Bytes of the reads by which a file comes to host memory, and of those that find it there.
const PIECE: u64 = 50_000;
const PLAIN: WriteOptions = WriteOptions { keep_times: false, append: false, kill_set_id: false, compare: false, kept: false };
/// Operations of one combination.
const OPERATIONS: usize = 60;

/// One step on one of two files.
#[derive(Debug, Clone, Copy)]
enum Step {
    Write(usize, u64, u64, u64),
    /// At the end.
    Append(usize, u64, u64),
    Truncate(usize, u64),
    Allocate(usize, u64, u64, bool),
    Punch(usize, u64, u64),
    Zero(usize, u64, u64, bool),
    Collapse(usize, u64, u64),
    Insert(usize, u64, u64),
    /// From a file and offset to a file and offset, so many bytes.
    Copy(usize, u64, usize, u64, u64),
    Read(usize, u64, u64),
}

fn draw(random: &mut Random, block_bytes: u64) -> Step {
    let place = |random: &mut Random| {
        let unit = *random.pick(&[1, 64, PAGE, block_bytes, block_bytes]);
        let limit = *random.pick(&[20_000, 400_000, FILE_BYTES_MAX / 2]);
        let border = random.below(limit / unit + 1) * unit;
        match random.below(4) {
            0 => border.saturating_sub(random.below(70)),
            1 => border + random.below(70),
            _ => border,
        }
    };
    let length = |random: &mut Random| match random.below(7) {
        0 => 1 + random.below(64),
        1 | 2 => 1 + random.below(5000),
        3 => PAGE * (1 + random.below(8)),
        4 => block_bytes * (1 + random.below(3)),
        5 => 1 + random.below(2 * block_bytes),
        _ => 1 + random.below(1_300_000),
    };
    let length = |random: &mut Random| length(random).min(FILE_BYTES_MAX / 2);
    // One file is the scene, the other is where copies go and come from.
    let file = |random: &mut Random| usize::from(random.one_in(4));
    let blocks = |random: &mut Random| {
        let unit = if random.one_in(8) { PAGE } else { block_bytes };
        (random.below(400_000 / unit + 2) * unit, unit * (1 + random.below(3)))
    };
    match random.below(22) {
        0..=6 => Step::Write(file(random), place(random), length(random), random.next() % 1000),
        7 => Step::Truncate(file(random), place(random)),
        8 => Step::Allocate(file(random), place(random), length(random), random.one_in(2)),
        9 | 10 => Step::Punch(file(random), place(random), length(random)),
        11 => Step::Zero(file(random), place(random), length(random), random.one_in(2)),
        12 | 13 => Step::Copy(file(random), place(random), file(random), place(random), length(random)),
        19 | 20 => {
            let (offset, length) = blocks(random);
            Step::Collapse(file(random), offset, length)
        }
        21 => {
            let (offset, length) = blocks(random);
            Step::Insert(file(random), offset, length)
        }
        14..=16 => Step::Append(0, 1 + random.below(300), random.next() % 1000),
        _ => Step::Read(file(random), place(random), length(random)),
    }
}

/// Puts bytes into an array that grows.
fn put(array: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let end = offset as usize + bytes.len();
    if !bytes.is_empty() && array.len() < end {
        array.resize(end, 0);
    }
    array[offset as usize..end].copy_from_slice(bytes);
}

fn zero(array: &mut [u8], offset: u64, length: u64) {
    let end = (offset + length).min(array.len() as u64) as usize;
    if (offset as usize) < end {
        array[offset as usize..end].fill(0);
    }
}

struct Pair<'f> {
    fs: &'f FileSystem,
    inodes: [InodeNumber; 2],
    arrays: [Vec<u8>; 2],
    relaxed: bool,
    refused: u64,
    compared: AtomicUsize,
}

/// A sentence for what should not have happened.
fn because<T>(result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

impl Pair<'_> {
    /// A write as the mode brings it: in relaxed mode whole pages, as far as the file reaches, with the times apart.
    fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        let inode = self.inodes[file];
        if !self.relaxed {
            return self.fs.write(inode, offset, bytes, WriteOptions::default()).map(|done| done as u64);
        }
        let (start, end) = (offset / PAGE * PAGE, offset + bytes.len() as u64);
        let size = self.arrays[file].len() as u64;
        let mut pages = vec![0; (end.next_multiple_of(PAGE).min(size.max(end)) - start) as usize];
        self.fs.read_with(inode, start, &mut pages, ReadOptions { kept: Kept::ToCompare })?;
        pages[(offset - start) as usize..][..bytes.len()].copy_from_slice(bytes);
        let options = WriteOptions { keep_times: true, compare: true, ..WriteOptions::default() };
        let done = self.fs.write(inode, start, &pages, options)? as u64;
        self.fs.set_attributes(inode, &SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() })?;
        Ok(done.saturating_sub(offset - start).min(bytes.len() as u64))
    }

    /// Nothing has changed where there was no space; every other error is a failure.
    fn or_full<T>(&mut self, result: Result<T, Error>) -> Result<Option<T>, String> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(Error::NoSpace { .. }) => {
                self.refused += 1;
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn apply(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Write(file, offset, length, seed) => {
                let bytes = fill(seed, length as usize);
                let written = self.write(file, offset, &bytes);
                if let Some(done) = self.or_full(written)? {
                    put(&mut self.arrays[file], offset, &bytes[..done as usize]);
                }
            }
            Step::Append(file, length, seed) => return self.apply(Step::Write(file, self.arrays[file].len() as u64, length, seed)),
            Step::Truncate(file, size) => {
                let grows = size > self.arrays[file].len() as u64;
                let cut = self.fs.set_attributes(self.inodes[file], &SetAttributes { size: Some(size), ..SetAttributes::default() });
                match self.or_full(cut)? {
                    Some(_) => self.arrays[file].resize(size as usize, 0),
                    None if grows => {}
                    None => return Err("shrinking needs no space (R14)".into()),
                }
            }
            Step::Allocate(file, offset, length, keep_size) => {
                let given = self.fs.allocate(self.inodes[file], offset, length, AllocateMode::Allocate { keep_size });
                if self.or_full(given)?.is_some() && !keep_size {
                    let end = (offset + length).max(self.arrays[file].len() as u64);
                    self.arrays[file].resize(end as usize, 0);
                }
            }
            Step::Punch(file, offset, length) => {
                because(self.fs.allocate(self.inodes[file], offset, length, AllocateMode::Punch))?;
                zero(&mut self.arrays[file], offset, length);
            }
            Step::Zero(file, offset, length, keep_size) => {
                let zeroed = self.fs.allocate(self.inodes[file], offset, length, AllocateMode::Zero { keep_size });
                if self.or_full(zeroed)?.is_some() {
                    zero(&mut self.arrays[file], offset, length);
                    let end = (offset + length).max(self.arrays[file].len() as u64);
                    self.arrays[file].resize(if keep_size { self.arrays[file].len() } else { end as usize }, 0);
                }
            }
            Step::Collapse(file, offset, length) => {
                let legal = self.is_of_blocks(offset, length) && offset + length < self.arrays[file].len() as u64;
                let done = self.fs.allocate(self.inodes[file], offset, length, AllocateMode::Collapse);
                match done {
                    Err(Error::InvalidArgument(_)) if !legal => {}
                    other if legal => {
                        if self.or_full(other)?.is_some() {
                            self.arrays[file].drain(offset as usize..(offset + length) as usize);
                        }
                    }
                    other => return Err(format!("a collapse without meaning: {other:?}")),
                }
            }
            Step::Insert(file, offset, length) => {
                let legal = self.is_of_blocks(offset, length) && offset < self.arrays[file].len() as u64;
                let done = self.fs.allocate(self.inodes[file], offset, length, AllocateMode::Insert);
                match done {
                    Err(Error::InvalidArgument(_)) if !legal => {}
                    other if legal => {
                        if self.or_full(other)?.is_some() {
                            let at = offset as usize;
                            self.arrays[file].splice(at..at, std::iter::repeat_n(0, length as usize));
                        }
                    }
                    other => return Err(format!("an insert without meaning: {other:?}")),
                }
            }
            Step::Copy(from, from_offset, to, to_offset, length) => {
                let expected = length.min((self.arrays[from].len() as u64).saturating_sub(from_offset));
                let overlaps = from == to && expected > 0 && from_offset < to_offset + expected && to_offset < from_offset + expected;
                if overlaps {
                    let refused = self.fs.copy_range((self.inodes[from], from_offset), (self.inodes[to], to_offset), length, PLAIN);
                    return match refused {
                        Err(Error::InvalidArgument(_)) => Ok(()),
                        other => Err(format!("ranges of one file that overlap: {other:?}")),
                    };
                }
                // A short copy has a reason, which the next one says.
                let mut done = 0;
                while done < expected {
                    let (source, target) = ((self.inodes[from], from_offset + done), (self.inodes[to], to_offset + done));
                    let copied = self.fs.copy_range(source, target, length - done, PLAIN);
                    let Some(copied) = self.or_full(copied)? else { break };
                    if copied == 0 || copied > expected - done {
                        return Err(format!("copied {copied} of {} bytes", expected - done));
                    }
                    let bytes = self.arrays[from][(from_offset + done) as usize..][..copied as usize].to_vec();
                    put(&mut self.arrays[to], to_offset + done, &bytes);
                    done += copied;
                }
            }
            Step::Read(file, offset, length) => self.read(file, offset, length, Kept::Here)?,
        }
        (0..2).try_for_each(|file| self.compare(file))
    }

    fn is_of_blocks(&self, offset: u64, length: u64) -> bool {
        let block_bytes = u64::from(self.fs.superblock().geometry.block_bytes());
        offset.is_multiple_of(block_bytes) && length.is_multiple_of(block_bytes)
    }

    fn read(&self, file: usize, offset: u64, length: u64, kept: Kept) -> Result<(), String> {
        let array = &self.arrays[file];
        let mut bytes = vec![0xee; length as usize];
        let read = because(self.fs.read_with(self.inodes[file], offset, &mut bytes, ReadOptions { kept }))?;
        let expected = array.get(offset as usize..array.len().min((offset + length) as usize)).unwrap_or_default();
        if bytes[..read] != *expected {
            let at = bytes.iter().zip(expected).position(|(found, expected)| found != expected).unwrap_or(read.min(expected.len()));
            return Err(format!(
                "file {file}: {read} B from {offset}, {} expected; they differ from {} on",
                expected.len(),
                offset + at as u64
            ));
        }
        Ok(())
    }

    /// Size, every byte, and zeros in every hole.
    fn compare(&self, file: usize) -> Result<(), String> {
        let size = self.arrays[file].len() as u64;
        let found = because(self.fs.attributes(self.inodes[file]))?.size;
        if found != size {
            return Err(format!("file {file} has {found} B where {size} are right"));
        }
        if self.compared.fetch_add(1, Relaxed) % 8 < 2 {
            because(self.fs.drop_file_pages(self.inodes[file]))?;
            self.read(file, 0, size + 100, Kept::Nowhere)?; // from the drive
        } else {
            (0..=size / PIECE).try_for_each(|piece| self.read(file, piece * PIECE, PIECE, Kept::Here))?;
        }
        let mut at = 0;
        while at < size {
            let data = because(self.fs.seek(self.inodes[file], at, SeekTo::Data))?.unwrap_or(size);
            if self.arrays[file][at as usize..data as usize].iter().any(|byte| *byte != 0) {
                return Err(format!("file {file}: bytes {at}..{data} are no hole"));
            }
            at = because(self.fs.seek(self.inodes[file], data, SeekTo::Hole))?.unwrap_or(size);
        }
        Ok(())
    }
}

/// Fills the memory zone with logs until only some are left.
fn fill_memory(fs: &FileSystem, inode: InodeNumber) -> Result<(), String> {
    for log in 0.. {
        let zone = fs.space().memory;
        if zone.free_bytes * 100 / (zone.free_bytes + zone.data_log_bytes) < 12 {
            return Ok(());
        }
        match fs.write(inode, log * PAGE, &[log as u8; 4000], WriteOptions::default()) {
            Ok(_) => {}
            Err(Error::NoSpace { .. }) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

/// Counters that prove which situations the runs have reached.
#[derive(Debug, Default)]
struct Met {
    refused: u64,
    merges: u64,
    appends: u64,
    write_backs: u64,
    checkpoints: u64,
    by_lines: u64,
    in_place: u64,
}

fn run(setting: &Setting, relaxed: bool, steps: &[Step], met: &mut Met) -> Result<(), String> {
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let make = |name: &[u8]| {
        let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        because(fs.create(InodeNumber::ROOT, name, &new)).map(|made| made.inode)
    };
    let inodes = [make(b"0")?, make(b"1")?];
    if setting.block_zone_bytes < 32 << 20 {
        fill_memory(&fs, make(b"logs")?)?;
    }
    let done = AtomicBool::new(false);
    let (arrays, refused) = std::thread::scope(|scope| {
        let (fs, done) = (&fs, &done);
        let behind = scope.spawn(move || {
            let mut blocks = 0;
            while !done.load(Relaxed) {
                match fs.write_back() {
                    Ok(written) => blocks += written,
                    Err(Error::NoSpace { .. }) => {}
                    Err(error) => return Err(format!("write-back: {error}")),
                }
                fs.checkpoint().map_err(|error| format!("checkpoint: {error}"))?;
                std::thread::sleep(Duration::from_micros(200));
            }
            Ok(blocks)
        });
        let mut pair = Pair { fs, inodes, arrays: [Vec::new(), Vec::new()], relaxed, refused: 0, compared: AtomicUsize::default() };
        let result = catch_unwind(AssertUnwindSafe(|| {
            steps
                .iter()
                .enumerate()
                .try_for_each(|(index, step)| pair.apply(*step).map_err(|what| format!("step {index}, {step:?}: {what}")))
        }));
        done.store(true, Relaxed);
        behind.join().map_err(|_| "write-back panicked")??;
        result.map_err(|_| "a panic")??;
        Ok::<_, String>((pair.arrays, pair.refused))
    })?;
    let work = fs.statistics().work;
    met.refused += refused;
    met.merges += work.merges;
    met.appends += work.appends_in_place;
    met.write_backs += work.block_write_backs;
    met.checkpoints += work.checkpoints;
    met.by_lines += work.pages_by_lines;
    met.in_place += work.in_place_lines;
    because(fs.unmount())?;
    check_device(&device, false)?;
    let fs = mount(&device, &setting.mount)?;
    let pair = Pair { fs: &fs, inodes, arrays, relaxed, refused, compared: AtomicUsize::default() };
    (0..2).try_for_each(|file| pair.compare(file)).map_err(|what| format!("after a remount: {what}"))
}

/// Leaves out what is not needed to fail. Threads race, so each list gets some tries.
fn shrink(setting: &Setting, relaxed: bool, mut steps: Vec<Step>) -> Vec<Step> {
    let mut size = steps.len().div_ceil(2);
    loop {
        let mut start = 0;
        while start < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(start..(start + size).min(fewer.len()));
            if (0..3).any(|_| run(setting, relaxed, &fewer, &mut Met::default()).is_err()) { steps = fewer } else { start += size }
        }
        if size == 1 {
            return steps;
        }
        size = size.div_ceil(2);
    }
}

fn try_combination(seed: u64, block_bytes: u32, threshold: Threshold, relaxed: bool, firmware: bool, met: &mut Met) {
    let mut random = Random::new(seed ^ u64::from(block_bytes) << 20 ^ u64::from(relaxed) ^ u64::from(firmware) << 1);
    let domain = *random.pick(&[PersistenceDomain::Adr, PersistenceDomain::Gpf]);
    let mut setting = Setting::small(domain, block_bytes);
    setting.block_zone_bytes = *random.pick(&[16 << 20, 16 << 20, 32 << 20]);
    setting.mount.threshold = threshold;
    setting.mount.memory_bytes = *random.pick(&[256 << 10, 4 << 20]);
    setting.mount.write_back_percent = *random.pick(&[20, 90]);
    setting.has_firmware = firmware;
    if random.one_in(6) {
        setting.format.checksum_kind = ChecksumKind::None;
    }
    let steps: Vec<Step> = (0..OPERATIONS).map(|_| draw(&mut random, block_bytes.into())).collect();
    if let Err(what) = run(&setting, relaxed, &steps, met) {
        let steps = shrink(&setting, relaxed, steps);
        panic!("TANDEMFS_SEED={seed}, blocks of {block_bytes}, {threshold:?}, relaxed: {relaxed}: {what}\n{setting:?}\n{steps:?}");
    }
}

fn thresholds(block_bytes: u32) -> Vec<Threshold> {
    let mut thresholds = vec![Threshold::BlockSize, Threshold::BlocksOnly, Threshold::Auto];
    for bytes in [block_bytes * 4, 1 << 20] {
        if bytes > block_bytes && bytes <= 1 << 20 && !thresholds.contains(&Threshold::Bytes(bytes)) {
            thresholds.push(Threshold::Bytes(bytes));
        }
    }
    thresholds
}

/// All block sizes and thresholds in one mode.
fn in_mode(relaxed: bool, firmware: bool) {
    let (seed, rounds) = (seed_or(1), rounds_or(2));
    let (mut runs, mut met) = (0, Met::default());
    for seed in seed..seed + rounds {
        for block_bytes in (12..=20).map(|bits| 1_u32 << bits) {
            for threshold in thresholds(block_bytes) {
                try_combination(seed, block_bytes, threshold, relaxed, firmware, &mut met);
                runs += 1;
            }
        }
    }
    println!(
        "{runs} runs of {OPERATIONS} steps, relaxed: {relaxed}, firmware: {firmware}, TANDEMFS_SEED={seed} TANDEMFS_ROUNDS={rounds}: {met:?}"
    );
    // Whole pages are hardly ever appended to, and only they are compared; what goes in place is not merged, and not in the journal.
    let mut expected = vec![met.refused, met.merges, met.write_backs];
    expected.push(if relaxed { met.by_lines } else { met.appends });
    expected.push(if firmware { met.in_place } else { met.checkpoints });
    assert!(expected.iter().all(|count| *count > 50), "{met:?}");
}

#[test]
fn any_sequence_equals_a_byte_array_in_strict_mode() {
    in_mode(false, false);
}

#[test]
fn any_sequence_equals_a_byte_array_in_relaxed_mode() {
    in_mode(true, false);
}

#[test]
fn any_sequence_equals_a_byte_array_in_strict_mode_on_a_drive_with_firmware() {
    in_mode(false, true);
}

#[test]
fn any_sequence_equals_a_byte_array_in_relaxed_mode_on_a_drive_with_firmware() {
    in_mode(true, true);
}

/// Scattered writes of 64 B over data that is there: 256 B of the memory zone each, all told, slots, leaves and their growth.
#[test]
fn a_scattered_small_write_costs_at_most_256_bytes_of_the_memory_zone() {
    const BLOCK: u64 = 64 << 10;
    const BLOCKS: u64 = 200;
    let mut setting = Setting::small(PersistenceDomain::Adr, BLOCK as u32);
    setting.block_zone_bytes = 32 << 20;
    // Nothing is written back meanwhile: no thread runs behind.
    let device = setting.format();
    let fs = mount(&device, &setting.mount).expect("mounts");
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let inode = fs.create(InodeNumber::ROOT, b"file", &new).expect("made").inode;
    fs.allocate(inode, 0, BLOCKS * BLOCK, AllocateMode::Allocate { keep_size: false }).expect("given");
    for block in 0..BLOCKS {
        fs.write(inode, block * BLOCK, &fill(block, BLOCK as usize), WriteOptions::default()).expect("written");
    }
    // Bytes of data logs, and of all lines of metadata that are in use: a scrub reads each of them.
    let in_use = || {
        fs.checkpoint().expect("a checkpoint");
        let mut scrub = fs.scrub();
        while fs.scrub_step(&mut scrub) {}
        assert_eq!(scrub.findings(), []);
        (fs.space().memory.data_log_bytes, scrub.counts().lines * 64)
    };
    let before = in_use();
    for logs in 1..=16 {
        for block in 0..BLOCKS {
            let offset = block * BLOCK + (logs - 1) * 4096 + 128;
            fs.write(inode, offset, &[logs as u8; 64], WriteOptions::default()).expect("written");
        }
        let after = in_use();
        let [data, metadata] = [after.0 - before.0, after.1 - before.1].map(|bytes| bytes as f64 / (logs * BLOCKS) as f64);
        println!("{logs} logs a block: {data:.1} B of logs and {metadata:.1} B of leaves a write");
        assert_eq!(after.0 - before.0, logs * BLOCKS * 64, "every write is a log of its own");
        assert!(metadata > 0.0 && data + metadata <= 256.0, "{logs} logs a block: {data:.1} + {metadata:.1} B a write");
    }
}

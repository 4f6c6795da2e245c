//! Fig. 3: random writes by loads and stores and by blocks, by size and by threads: throughput, and CPU seconds a GiB.
//!
//! Threads of virtual time take turns on one thread of the host: the one whose clock is the earliest makes the next write.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use tandemfs_device::{BlockRequest, CacheMove, Device, MoveDirection, MoveState, VirtualTime};
use tandemfs_emulator::{CacheManagement, CreateOptions, ModelOptions, OpenOptions, Replacement, create_with, open_image};
use tandemfs_format::Sector;

use crate::arguments::Common;
use crate::failure::{Failure, Result};
use crate::figures::{bytes as size_of, three_digits};
use crate::measure::Jumps;
use crate::output::Outcome;
use crate::scene::{self, MIB, Scene};
use crate::table::Table;

const PAGE: u64 = 4096;
const MEMORY_BYTES: u64 = 16 * MIB;
/// Data that is written to at random where it is larger than the cache.
const DATA_BYTES: u64 = 256 * MIB;
const BLOCK_BYTES: u64 = DATA_BYTES + 64 * MIB;
const CACHE_BYTES: u64 = 32 * MIB;
/// Where everything that is written to is in the cache: half of it.
const HOT_BYTES: u64 = CACHE_BYTES / 2;
const SIZES: [u64; 8] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const THREADS: [u64; 5] = [1, 2, 4, 8, 16];
const THREADS_SIZE: u64 = 4 << 10;
/// Every wait for a MOVE is shorter.
const LONG: Duration = Duration::from_secs(3600);
const GIB: f64 = (1_u64 << 30) as f64;

/// How bytes are written, and on which kind of drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The host manages: stores to the cache.
    HostHit,
    /// The host manages: the page that was there leaves by MOVE, the page of the write comes by MOVE unless all of it is replaced, then it is
    /// stored to.
    HostMiss,
    /// The drive manages by clock: stores to pages that it has.
    DriveHit,
    /// The drive manages by clock: stores to pages of which it has an eighth.
    DriveMiss,
    /// Block writes; the same on both.
    Blocks,
}

impl Way {
    const ALL: [Self; 5] = [Self::HostHit, Self::DriveHit, Self::HostMiss, Self::DriveMiss, Self::Blocks];

    fn name(self) -> &'static str {
        match self {
            Self::HostHit => "host, cached",
            Self::HostMiss => "host, MOVE",
            Self::DriveHit => "drive, cached",
            Self::DriveMiss => "drive, missed",
            Self::Blocks => "blocks",
        }
    }

    fn is_of_drive(self) -> bool {
        matches!(self, Self::DriveHit | Self::DriveMiss)
    }

    fn takes(self, size: u64) -> bool {
        self != Self::Blocks || size >= PAGE
    }
}

/// One measured way.
#[derive(Debug, Serialize)]
struct Run {
    way: &'static str,
    size_bytes: u64,
    threads: u64,
    writes: u64,
    gb_per_s: f64,
    /// Time that processors stalled for stores.
    stalled_s_per_gib: f64,
    /// Time of the processor that ran everything, the emulator's work included.
    program_s_per_gib: f64,
}

/// What a table shows of a run.
type Figure = fn(&Run) -> f64;

/// Runs both tables.
pub fn run(common: &Common) -> Result<Outcome> {
    let title = "random writes by stores and by blocks, a cache that the host manages beside one that the drive manages (Fig. 3)";
    let mut outcome = Outcome::new("writes", title);
    scene::require_room(&common.directory, 2 * (MEMORY_BYTES + 2 * BLOCK_BYTES), "--quick does not need less")?;
    let scene = Scene::new(common)?;
    let drives = [CacheManagement::Host, CacheManagement::Drive(Replacement::Clock)];
    let [host, drive] = [made(&scene, "host", drives[0])?, made(&scene, "drive", drives[1])?];
    let by_size = SIZES.into_iter().map(|size| (size, 1));
    let runs = measured(common, [&*host, &*drive], by_size)?;
    publish(&mut outcome, "one thread, by size", &runs, |run| size_of(run.size_bytes as f64));
    let runs = measured(common, [&*host, &*drive], THREADS.into_iter().map(|threads| (THREADS_SIZE, threads)))?;
    publish(&mut outcome, "4 KiB, by threads", &runs, |run| run.threads.to_string());
    for note in [
        "host: MOVE commands of the host, nobody stalls for the flash; drive: a miss stalls the processor until the page is there (clock)",
        "cached: everything that is written to is in the cache; MOVE and missed: the cache holds an eighth of it",
        "stalled: processors that wait for a store, in the drive's time; a wait for a block command or a MOVE leaves the processor to others",
        "MOVE by several threads: they take turns once a write, so stores come out of order, with less throughput and more stalls than the model has",
        "program: CPU time of the whole run on this machine, which is mostly the emulator's own work; a kernel's and a driver's is not in it",
    ] {
        outcome.note(note);
    }
    Ok(outcome)
}

fn publish(outcome: &mut Outcome, part: &str, runs: &[Run], first: impl Fn(&Run) -> String) {
    let figures: [(&str, Figure); 3] =
        [("GB/s", |run| run.gb_per_s), ("s/GiB stalled", |run| run.stalled_s_per_gib), ("s/GiB program", |run| run.program_s_per_gib)];
    for (unit, figure) in figures {
        let mut table = Table::new([unit].into_iter().chain(Way::ALL.map(Way::name)));
        let mut rows: Vec<(String, HashMap<&str, f64>)> = Vec::new();
        for run in runs {
            let name = first(run);
            if rows.last().is_none_or(|(last, _)| *last != name) {
                rows.push((name, HashMap::new()));
            }
            if let Some((_, cells)) = rows.last_mut() {
                cells.insert(run.way, figure(run));
            }
        }
        for (name, cells) in rows {
            let shown = Way::ALL.map(|way| cells.get(way.name()).map_or_else(|| "–".to_owned(), |value| three_digits(*value)));
            table.row([name].into_iter().chain(shown));
        }
        outcome.table(format!("{unit}, {part}"), table);
    }
    runs.iter().filter_map(|run| serde_json::to_value(run).ok()).for_each(|record| outcome.record(record));
}

/// A drive whose data was written once.
fn made(scene: &Scene, name: &str, management: CacheManagement) -> Result<Arc<dyn Device>> {
    let chosen = ModelOptions { cache_bytes: Some(CACHE_BYTES), cache_management: Some(management), ..ModelOptions::default() };
    let options = CreateOptions { profile: "hybrid-cache".to_owned(), memory_bytes: MEMORY_BYTES, block_bytes: BLOCK_BYTES };
    create_with(&scene.path(name), &options, &chosen)?;
    let device = open_image(&scene.path(name), &OpenOptions { virtual_time: true, ..OpenOptions::default() })?;
    let bytes = vec![0x5a; MIB as usize];
    for part in 0..DATA_BYTES / MIB {
        let mut requests = [BlockRequest::Write { sector: Sector::new(part * (MIB / PAGE)), buffer: bytes[..].into() }];
        device.block_path().transfer(&mut requests, &mut || {})?;
    }
    Ok(device)
}

fn measured(common: &Common, devices: [&dyn Device; 2], settings: impl Iterator<Item = (u64, u64)>) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for (size, threads) in settings {
        for way in Way::ALL.into_iter().filter(|way| way.takes(size)) {
            let device = devices[usize::from(way.is_of_drive())];
            let count = (common.scaled(256) as u64 * MIB / size).clamp(256, common.scaled(100_000) as u64);
            runs.push(Writers::new(device, way, size, threads)?.run(count)?);
        }
    }
    Ok(runs)
}

/// Threads that write.
struct Writers<'d> {
    device: &'d dyn Device,
    time: &'d dyn VirtualTime,
    way: Way,
    size: u64,
    clocks: Vec<u64>,
    jumps: Jumps,
    bytes: Vec<u8>,
    stalled_ns: u64,
    /// Where the host manages: which sector the pages of each thread hold.
    held: Vec<Option<Sector>>,
}

impl<'d> Writers<'d> {
    fn new(device: &'d dyn Device, way: Way, size: u64, threads: u64) -> Result<Self> {
        let time = device.virtual_time().ok_or_else(|| Failure::new("the drive has no virtual time"))?;
        let begin = time.latest_ns() + 1_000_000_000; // all parts of the drive are idle
        Ok(Self {
            device,
            time,
            way,
            size,
            clocks: vec![begin; threads as usize],
            jumps: Jumps::new(size ^ threads),
            bytes: vec![0xa5; size as usize],
            stalled_ns: 0,
            held: vec![None; threads as usize],
        })
    }

    fn run(mut self, count: u64) -> Result<Run> {
        match self.way {
            Way::DriveHit => {
                self.time.set_now_ns(self.clocks[0]);
                (0..HOT_BYTES / PAGE).try_for_each(|page| self.store(MEMORY_BYTES + page * PAGE, &[0xa5; PAGE as usize]))?;
                self.clocks[0] = self.time.now_ns();
            }
            Way::DriveMiss | Way::HostMiss => self.writes(2 * CACHE_BYTES / self.size.max(PAGE))?,
            Way::HostHit | Way::Blocks => {}
        }
        let begin = self.clocks.iter().copied().max().unwrap_or(0);
        self.clocks.fill(begin);
        self.stalled_ns = 0;
        let program = program_ns();
        self.writes(count)?;
        let program = program_ns() - program;
        let end = self.clocks.iter().copied().max().unwrap_or(0);
        let bytes = (count * self.size) as f64;
        let per_gib = |ns: u64| ns as f64 / 1e9 / (bytes / GIB);
        Ok(Run {
            way: self.way.name(),
            size_bytes: self.size,
            threads: self.clocks.len() as u64,
            writes: count,
            gb_per_s: bytes / (end - begin) as f64,
            stalled_s_per_gib: per_gib(self.stalled_ns),
            program_s_per_gib: per_gib(program),
        })
    }

    fn writes(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            let Some(thread) = (0..self.clocks.len()).min_by_key(|thread| self.clocks[*thread]) else { break };
            self.time.set_now_ns(self.clocks[thread]);
            self.write(thread)?;
            self.clocks[thread] = self.time.now_ns();
        }
        Ok(())
    }

    /// A place that is a multiple of the size, below a limit.
    fn place(&mut self, limit: u64) -> u64 {
        self.jumps.below(limit / self.size) * self.size
    }

    fn write(&mut self, thread: usize) -> Result<()> {
        match self.way {
            Way::HostHit => {
                let at = self.place(HOT_BYTES);
                self.store_own(self.device.description().cache().offset + at)
            }
            Way::DriveHit => {
                let at = self.place(HOT_BYTES);
                self.store_own(MEMORY_BYTES + at)
            }
            Way::DriveMiss => {
                let at = self.place(DATA_BYTES);
                self.store_own(MEMORY_BYTES + at)
            }
            Way::Blocks => {
                let sector = Sector::new(self.place(DATA_BYTES) / PAGE);
                let mut requests = [BlockRequest::Write { sector, buffer: self.bytes[..].into() }];
                Ok(self.device.block_path().transfer(&mut requests, &mut || {})?)
            }
            Way::HostMiss => {
                let at = self.place(DATA_BYTES);
                let (pages, sector) = (self.size.div_ceil(PAGE), Sector::new(at / PAGE));
                let cache_page = thread as u64 * pages;
                if let Some(old) = self.held[thread].replace(sector) {
                    self.moved(CacheMove { direction: MoveDirection::ToFlash, cache_page, sector: old, count: pages as u32 })?;
                }
                if self.size < PAGE {
                    self.moved(CacheMove { direction: MoveDirection::ToCache, cache_page, sector, count: 1 })?;
                }
                self.store_own(self.device.description().cache().offset + cache_page * PAGE + at % PAGE)
            }
        }
    }

    /// Stores a write.
    fn store_own(&mut self, offset: u64) -> Result<()> {
        let bytes = std::mem::take(&mut self.bytes);
        let stored = self.store(offset, &bytes);
        self.bytes = bytes;
        stored
    }

    fn store(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let begin = self.time.now_ns();
        self.device.byte_path().store(offset, bytes)?;
        self.stalled_ns += self.time.now_ns() - begin;
        Ok(())
    }

    fn moved(&self, command: CacheMove) -> Result<()> {
        let moves = self.device.cache_moves().ok_or_else(|| Failure::new("the drive has no MOVE"))?;
        let ticket = moves.submit(&command)?.ok_or_else(|| Failure::new("the drive's queue is full"))?;
        match moves.wait(ticket, LONG) {
            MoveState::Done(result) => Ok(result?),
            MoveState::Pending(_) => Err(Failure::new("a MOVE took an hour")),
        }
    }
}

/// CPU time of this thread, in nanoseconds.
fn program_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

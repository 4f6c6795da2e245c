//! `tandemfs device bench`: latency and bandwidth of an emulated drive by request size and queue depth, next to the claims of its profile.
//!
//! [DB1] It writes only to the end of both zones and to the cache that a host manages, and discards the sectors when it is done. Existing data
//!       there is lost.
//! [DB2] Block reads read data that was written early enough to be on the flash; loads read data that was stored just before.
//! [DB3] Each row is measured for a fifth of a second, or up to a maximum number of times; in virtual time for a fixed number of MiB.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_device::{BlockRequest, CacheMove, CacheMoves, Device, DeviceError, Drive, MoveDirection, MoveState, MoveTicket, Sink, TxId};
use tandemfs_emulator::{Access, Claim, ImageInfo, OpenOptions, Staging};
use tandemfs_format::{SECTOR_BYTES, Sector};

use crate::arguments::DeviceBenchArguments;
use crate::failure::Failure;
use crate::output;

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Largest part of each zone that is used, in bytes.
const MEMORY_BYTES_MAX: u64 = 4 << 20;
const BLOCK_BYTES_MAX: u64 = 64 << 20;
const BYTE_SIZES: [usize; 4] = [64, 256, 1024, 4096];
const BLOCK_SIZES: [usize; 3] = [4096, 16 << 10, 64 << 10];
const DEPTHS: [usize; 4] = [1, 4, 16, 64];
/// How often a row is measured at most, and for how long.
const ROUNDS_MAX: u64 = 20_000;
const ROW_TIME: Duration = Duration::from_millis(200);
/// Bytes that a row moves in virtual time.
const VIRTUAL_BYTES: u64 = 16 << 20;
const VIRTUAL_ROUNDS: (u64, u64) = (8, 200);
/// Idle time of the drive between rows, in virtual time.
const REST_NS: u64 = 1_000_000_000;
/// How long a MOVE is waited for before it is waited for again.
const MOVE_TIME: Duration = Duration::from_secs(1);

/// A measured row.
struct Row {
    path: &'static str,
    operation: &'static str,
    size_bytes: usize,
    depth: usize,
    /// Until the last of a batch was done.
    latency_ns: f64,
    claim: Option<Claim>,
}

impl Row {
    fn bytes_per_second(&self) -> f64 {
        (self.size_bytes * self.depth) as f64 * 1e9 / self.latency_ns.max(1.0)
    }

    fn to_json(&self) -> Value {
        json!({
            "path": self.path,
            "operation": self.operation,
            "size_bytes": self.size_bytes,
            "depth": self.depth,
            "latency_ns": self.latency_ns,
            "bytes_per_second": self.bytes_per_second(),
            "claimed_latency_ns": self.claim.map(|claim| claim.latency_ns),
            "claimed_bytes_per_second": self.claim.map(|claim| claim.bytes_per_second),
        })
    }

    fn to_text(&self) -> String {
        let claimed = self.claim.map_or(["-".to_owned(), "-".to_owned()], |claim| {
            [format!("{:.2}", claim.latency_ns as f64 / 1e3), format!("{:.1}", claim.bytes_per_second as f64 / 1e6)]
        });
        format!(
            "{:<6} {:<14} {:>6} {:>6} {:>11.2} {:>11} {:>9.1} {:>9}\n",
            self.path,
            self.operation,
            self.size_bytes,
            self.depth,
            self.latency_ns / 1e3,
            claimed[0],
            self.bytes_per_second() / 1e6,
            claimed[1],
        )
    }
}

/// Measures a drive.
pub fn run(arguments: &DeviceBenchArguments) -> Result<u8, Failure> {
    let info = tandemfs_emulator::info(&arguments.image).map_err(Failure::because)?;
    if arguments.index {
        return index(arguments, &info);
    }
    let options = OpenOptions { timing: !arguments.no_timing, virtual_time: arguments.virtual_time, ..OpenOptions::default() };
    let device = tandemfs_emulator::open_image(&arguments.image, &options).map_err(Failure::because)?;
    if arguments.virtual_time && device.virtual_time().is_none() {
        let name = arguments.image.display();
        return Err(Failure::Failed(format!("{name}: the drive has no timing model; omit --virtual")));
    }
    if !arguments.force && tandemfs_fs::read_superblock(&Drive::new(Arc::clone(&device))).is_ok() {
        let name = arguments.image.display();
        return Err(Failure::Failed(format!(
            "{name}: contains a TandemFS, whose data the measurement would destroy; use --force to measure anyway"
        )));
    }
    let claims = (!arguments.no_timing).then_some(&info);
    let rows = Bench { device: &*device, info: claims }.rows().map_err(Failure::because)?;
    if arguments.json {
        output::print_json(&json!({
            "device": arguments.image.display().to_string(),
            "profile": info.profile,
            "timing": !arguments.no_timing && info.has_timing(),
            "virtual_time": arguments.virtual_time,
            "rows": rows.iter().map(Row::to_json).collect::<Vec<_>>(),
        }))?;
    } else {
        let head = format!(
            "{:<6} {:<14} {:>6} {:>6} {:>11} {:>11} {:>9} {:>9}\n",
            "path", "operation", "bytes", "depth", "latency us", "claimed us", "MB/s", "claimed"
        );
        output::print(&rows.iter().fold(head, |text, row| text + &row.to_text()))?;
    }
    Ok(0)
}

/// The index of a full log, with lines by themselves and with lines side by side.
fn index(arguments: &DeviceBenchArguments, info: &ImageInfo) -> Result<u8, Failure> {
    let Some(Staging::WriteLog { log_bytes, .. }) = info.firmware.map(|model| model.staging) else {
        return Err(Failure::Failed(format!("{}: profile '{}' has no write log", arguments.image.display(), info.profile)));
    };
    let mut found = Vec::new();
    for run_lines in [1, 8] {
        let logical_pages = (info.memory_bytes + info.block_bytes) / SECTOR;
        let figures = tandemfs_emulator::measure_log(log_bytes, logical_pages, run_lines).map_err(Failure::because)?;
        found.push(json!({
            "run_lines": run_lines,
            "lines": figures.lines,
            "pages": figures.pages,
            "hit_ns": figures.hit_ns,
            "miss_ns": figures.miss_ns,
            "append_ns": figures.append_ns,
            "load_ns": figures.load_ns,
            "index_bytes": figures.index_bytes,
            "open_seconds": figures.open_seconds,
            "recover_seconds": figures.recover_seconds,
        }));
    }
    if arguments.json {
        output::print_json(&json!({ "log_bytes": log_bytes, "indexes": found, "paper": { "hit_ns": 89, "index_bytes": 21_000_000 } }))?;
    } else {
        for figures in &found {
            output::print_rows(&output::rows(figures))?;
            output::print("\n")?;
        }
        output::print("ByteFS §4.3: 89 ns a look-up, 21 MB of index\n")?;
    }
    Ok(0)
}

struct Bench<'d> {
    device: &'d dyn Device,
    /// The model whose claims are shown.
    info: Option<&'d ImageInfo>,
}

impl Bench<'_> {
    fn rows(&self) -> Result<Vec<Row>, DeviceError> {
        let mut rows = Vec::new();
        self.byte_rows(&mut rows)?;
        self.transaction_rows(&mut rows)?;
        if self.device.description().block_bytes > 0 {
            self.block_rows(&mut rows)?;
        }
        Ok(rows)
    }

    fn byte_rows(&self, rows: &mut Vec<Row>) -> Result<(), DeviceError> {
        let memory_bytes = self.device.description().memory_bytes;
        let area = (memory_bytes / 2).min(MEMORY_BYTES_MAX);
        let first = memory_bytes - area;
        for size in BYTE_SIZES {
            let mut buffer = vec![0xa5; size];
            // Pages one after the other, so that no line is hot in the CPU's caches.
            let at = |round: u64| first + round * 4096 % area;
            let bytes = self.device.byte_path();
            let stored = self.measure(size as u64, |round| bytes.store(at(round), &buffer))?;
            rows.push(self.row("bytes", "store", Access::Store, size, 1, stored));
            let loaded = self.measure(size as u64, |round| bytes.load(at(round), &mut buffer))?;
            rows.push(self.row("bytes", "load", Access::Load, size, 1, loaded));
        }
        let fenced = self.measure(0, |_| {
            self.device.byte_path().fence();
            Ok(())
        })?;
        let verified = self.info.and_then(|info| info.firmware).filter(|model| !model.staging.is_host_cache());
        let verify_ns = verified.and_then(|model| model.timing).map(|timing| u64::from(timing.verify_read_ns));
        let claim = verify_ns.map(|latency_ns| Claim { latency_ns, bytes_per_second: 0 });
        rows.push(Row { path: "bytes", operation: "fence", size_bytes: 0, depth: 1, latency_ns: fenced, claim });
        Ok(())
    }

    /// A transaction of two lines: tagged stores, and COMMIT.
    fn transaction_rows(&self, rows: &mut Vec<Row>) -> Result<(), DeviceError> {
        let Some(firmware) = self.device.firmware() else { return Ok(()) };
        firmware.recover()?;
        let first = self.device.description().memory_bytes - 4096;
        let number = |round: u64| TxId::MIN.saturating_add(round as u32);
        let committed = self.measure(128, |round| {
            firmware.store_tagged(number(round), first, &[0x5a; 128])?;
            firmware.commit(number(round))
        })?;
        firmware.clean()?;
        let timing = self.info.and_then(|info| info.firmware?.timing);
        let claim = timing.map(|timing| {
            let latency_ns = u64::from(2 * timing.line_write_ns + timing.command_ns);
            Claim { latency_ns, bytes_per_second: 128 * 1_000_000_000 / latency_ns.max(1) }
        });
        rows.push(Row { path: "bytes", operation: "tagged, COMMIT", size_bytes: 128, depth: 1, latency_ns: committed, claim });
        Ok(())
    }

    fn block_rows(&self, rows: &mut Vec<Row>) -> Result<(), DeviceError> {
        let sectors = self.device.description().block_bytes / SECTOR;
        let area = (sectors / 2).min(BLOCK_BYTES_MAX / SECTOR);
        let (first, half) = (sectors - area, area / 2);
        let buffer = vec![0x5a; 64 << 10];
        let fill: Vec<u64> = (first..first + half).step_by(16).collect();
        for &sector in &fill {
            self.transfer(&mut [BlockRequest::Write { sector: Sector::new(sector), buffer: (&buffer).into() }])?;
        }
        for size in BLOCK_SIZES {
            let sectors_each = size as u64 / SECTOR;
            for depth in DEPTHS {
                let batch_sectors = sectors_each * depth as u64;
                let place = |from: u64, round: u64, index: usize| {
                    let batches = (half / batch_sectors).max(1);
                    Sector::new(from + (round % batches * batch_sectors + index as u64 * sectors_each) % (half - sectors_each + 1))
                };
                // Write only the second half, so that the first half stays on the flash.
                let written = self.measure(batch_sectors * SECTOR, |round| {
                    let write = |index| BlockRequest::Write { sector: place(first + half, round, index), buffer: (&buffer[..size]).into() };
                    self.transfer(&mut (0..depth).map(write).collect::<Vec<_>>())
                })?;
                rows.push(self.row("blocks", "write", Access::Write, size, depth, written));
                let mut buffers = vec![0; size * depth];
                let read = self.measure(batch_sectors * SECTOR, |round| {
                    let read = |(index, buffer)| BlockRequest::Read { sector: place(first, round, index), buffer };
                    self.transfer(&mut buffers.chunks_mut(size).map(Sink::Private).enumerate().map(read).collect::<Vec<_>>())
                })?;
                rows.push(self.row("blocks", "read", Access::Read, size, depth, read));
            }
        }
        self.move_rows(rows, first, half)?;
        self.device.block_path().discard(Sector::new(first), area)
    }

    /// MOVEs of a drive whose cache the host manages, as many at a time as `depth`: from `half` sectors that are on the flash, and to those
    /// behind them.
    fn move_rows(&self, rows: &mut Vec<Row>, on_flash: u64, half: u64) -> Result<(), DeviceError> {
        let Some(moves) = self.device.cache_moves() else { return Ok(()) };
        let cache_pages = self.device.description().cache_bytes / SECTOR;
        for (size, depth) in [(4 << 10, 1), (64 << 10, 1), (4 << 10, 16)] {
            let pages = size / SECTOR * depth;
            let places = cache_pages.min(half) / pages;
            if places == 0 {
                continue; // a cache of a few pages
            }
            for direction in [MoveDirection::ToFlash, MoveDirection::ToCache] {
                let moved = self.measure(size * depth, |round| {
                    let first = round % places * pages;
                    let from = if direction == MoveDirection::ToCache { on_flash } else { on_flash + half };
                    let submit = |index| {
                        let at = first + index * (size / SECTOR);
                        let count = (size / SECTOR) as u32;
                        moves.submit(&CacheMove { direction, cache_page: at, sector: Sector::new(from + at), count })
                    };
                    let tickets: Vec<Option<MoveTicket>> = (0..depth).map(submit).collect::<Result<_, _>>()?;
                    tickets.into_iter().flatten().try_for_each(|ticket| done(moves, ticket))
                })?;
                let operation = if direction == MoveDirection::ToCache { "MOVE to cache" } else { "MOVE to flash" };
                let claim = self.info.and_then(|info| info.firmware?.claim_move(direction, size, depth));
                rows.push(Row { path: "flash", operation, size_bytes: size as usize, depth: depth as usize, latency_ns: moved, claim });
            }
        }
        Ok(())
    }

    fn transfer(&self, requests: &mut [BlockRequest<'_>]) -> Result<(), DeviceError> {
        self.device.block_path().transfer(requests, &mut || {})
    }

    fn row(&self, path: &'static str, operation: &'static str, access: Access, size_bytes: usize, depth: usize, latency_ns: f64) -> Row {
        let claim = self.info.and_then(|info| {
            let (size, depth) = (size_bytes as u64, depth as u64);
            let is_of_bytes = matches!(access, Access::Load | Access::Store);
            match (&info.firmware, info.timing) {
                (Some(model), None) => model.timing.map(|timing| timing.claim(access, size, depth, model.die_count().into())),
                (Some(model), Some(_)) if !is_of_bytes => {
                    model.timing.map(|timing| timing.claim(access, size, depth, model.die_count().into()))
                }
                // What it takes depends on what is in the modelled cache.
                (None, Some(_)) if is_of_bytes && info.media.is_some() => None,
                (_, timing) => timing.map(|timing| timing.claim(access, size, depth)),
            }
        });
        Row { path, operation, size_bytes, depth, latency_ns, claim }
    }

    /// Mean time of an access that moves so many bytes, in nanoseconds of the drive's time ([DB3]).
    fn measure(&self, bytes: u64, mut access: impl FnMut(u64) -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        if let Some(time) = self.device.virtual_time() {
            time.set_now_ns(time.latest_ns() + REST_NS);
            let begun = time.now_ns();
            let rounds = (VIRTUAL_BYTES / bytes.max(1)).clamp(VIRTUAL_ROUNDS.0, VIRTUAL_ROUNDS.1);
            (0..rounds).try_for_each(&mut access)?;
            return Ok((time.now_ns() - begun) as f64 / rounds as f64);
        }
        let begun = Instant::now();
        let mut rounds = 0;
        while rounds < ROUNDS_MAX && (rounds % 16 != 0 || begun.elapsed() < ROW_TIME) {
            access(rounds)?;
            rounds += 1;
        }
        Ok(begun.elapsed().as_nanos() as f64 / rounds as f64)
    }
}

/// Waits for a MOVE, however long it takes.
fn done(moves: &dyn CacheMoves, mut ticket: MoveTicket) -> Result<(), DeviceError> {
    loop {
        match moves.wait(ticket, MOVE_TIME) {
            MoveState::Done(result) => return result,
            MoveState::Pending(pending) => ticket = pending,
        }
    }
}

//! The cost of the emulator itself with its timing model off, and of the parts for which the paper gives numbers.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::json;
use tandemfs_device::{BlockRequest, TxId, modified_lines};
use tandemfs_emulator::{LogFigures, measure_log};
use tandemfs_format::linearity::checksum_change;
use tandemfs_format::{LINE_BYTES, SECTOR_BYTES, Sector, checksum};

use super::rig::{Rig, Variant};
use super::setting::{PAPER_LOG_BYTES, Setting};
use crate::failure::{Failure, Result};
use crate::machine::Pinned;
use crate::measure::{Batch, Jumps, Samples, interleaved, repeated};
use crate::output::Outcome;
use crate::report::{Row, RowTarget, time};
use crate::scene::{MIB, Scene};
use crate::table::Table;

const STORE_NS_MAX: f64 = 200.0;
const BLOCK_WRITE_NS_MAX: f64 = 2000.0;
/// Operations per batch.
const BATCH: usize = 256;
/// Capacity of the paper's drive, in pages.
const PAPER_PAGES: u64 = (32 << 30) / 4096;
/// Number of consecutive lines in the log that is searched.
const RUNS: [u64; 2] = [1, 8];
/// Number of compared pages: more than fit in the CPU caches.
const COMPARED_PAGES: usize = 16_384;

/// Runs all parts.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("overhead", "what the emulator takes with its timing off, and parts of it");
    let mut rows = Vec::new();
    for variant in [Variant::Whole, Variant::Dual] {
        rows.extend(accesses(setting, variant)?);
    }
    outcome.rows("One access, host time", &rows);
    outcome.note("an access is timed by itself; reading the clock, some 20 ns, is in each. Limit: the same bytes copied within the host's memory (an image is such memory), to places as far apart");
    index(setting, &mut outcome)?;
    parts(setting, &mut outcome);
    Ok(outcome)
}

fn accesses(setting: &Setting, variant: Variant) -> Result<Vec<Row>> {
    let (memory_bytes, block_bytes) = (64 * MIB, 192 * MIB);
    // The run's accesses fill the log more than once, so log cleaning is included.
    let rig = Rig { staging_bytes: 16 * MIB, ..Rig::new(setting, variant) };
    setting.require(rig.image_bytes(memory_bytes, block_bytes))?;
    let scene = Scene::new(&setting.common)?;
    let image = rig.create(&scene, "drive", memory_bytes, block_bytes)?;
    let device = image.open_untimed()?;
    let rounds = setting.count(400) as usize;
    let (lines, sectors) = (memory_bytes / LINE_BYTES as u64, block_bytes / SECTOR_BYTES as u64);
    let (line, page) = ([7_u8; LINE_BYTES], vec![7_u8; SECTOR_BYTES]);
    let mut host = vec![0_u8; memory_bytes as usize];
    let mut host_pages = vec![0_u8; memory_bytes as usize];
    let has_transactions = device.firmware().is_some();
    let _pinned = Pinned::new();
    let (mut jumps, mut others, mut pages, mut other_pages) = (Jumps::new(3), Jumps::new(3), Jumps::new(5), Jumps::new(5));
    let (mut tagged_jumps, mut loads, mut reads) = (Jumps::new(7), Jumps::new(9), Jumps::new(11));
    let mut transaction = 0;
    let device = &*device;
    let line_at = |jumps: &mut Jumps| jumps.below(lines) * LINE_BYTES as u64;
    let mut next = 0;
    let pages_a_batch = BATCH / 4;
    let mut batches: Vec<Batch<'_>> = vec![
        repeated(BATCH, |recorder| {
            let offset = line_at(&mut jumps);
            Ok(recorder.time(0, || device.byte_path().store(offset, &line))?)
        }),
        repeated(BATCH, |recorder| {
            let offset = line_at(&mut others) as usize;
            recorder.time(1, || black_box(&mut host[offset..offset + LINE_BYTES]).copy_from_slice(&line));
            Ok(())
        }),
        repeated(pages_a_batch, |recorder| {
            let mut requests = [BlockRequest::Write { sector: Sector::new(pages.below(sectors)), buffer: &page }];
            Ok(recorder.time(2, || device.block_path().transfer(&mut requests, &mut || {}))?)
        }),
        repeated(pages_a_batch, |recorder| {
            let offset = other_pages.below(memory_bytes / SECTOR_BYTES as u64) as usize * SECTOR_BYTES;
            recorder.time(3, || black_box(&mut host_pages[offset..offset + SECTOR_BYTES]).copy_from_slice(&page));
            Ok(())
        }),
        repeated(BATCH, |recorder| {
            let (offset, mut into) = (line_at(&mut loads), [0; LINE_BYTES]);
            Ok(recorder.time(4, || device.byte_path().load(offset, black_box(&mut into)))?)
        }),
        repeated(pages_a_batch, |recorder| {
            let mut buffer = vec![0; SECTOR_BYTES];
            let mut requests = [BlockRequest::Read { sector: Sector::new(reads.below(sectors)), buffer: &mut buffer }];
            Ok(recorder.time(5, || device.block_path().transfer(&mut requests, &mut || {}))?)
        }),
        repeated(BATCH, |recorder| {
            next = (next + 1) % lines;
            Ok(recorder.time(6, || device.byte_path().store(next * LINE_BYTES as u64, &line))?)
        }),
    ];
    if let Some(firmware) = device.firmware() {
        // Eight lines and a COMMIT, like a small metadata change.
        batches.push(repeated(BATCH / 8, |recorder| {
            transaction += 1;
            if transaction % (1 << 20) == 0 {
                firmware.clean()?;
                transaction = 1;
            }
            let number = TxId::new(transaction).ok_or_else(|| Failure::new("a transaction without a number"))?;
            (0..8).try_for_each(|_| {
                let offset = line_at(&mut tagged_jumps);
                recorder.time(7, || firmware.store_tagged(number, offset, &line))
            })?;
            Ok(recorder.time(8, || firmware.commit(number))?)
        }));
    }
    let subjects = if has_transactions { 9 } else { 7 };
    let samples: Vec<Samples> = interleaved(subjects, rounds, &mut batches)?;
    let name = |what: &str| format!("{}, {what}", rig.profile);
    // Cleaning and garbage collection run in steps within accesses: the median excludes them, the mean includes them.
    let mean = |row: Row, index: usize| row.note(format!("mean of all {}", time(samples[index].mean_ns())));
    let judged = |what: &str, index: usize, target: f64| {
        mean(Row::beside(name(what), &samples[index], &samples[index + 1], RowTarget::Below(target)), index)
    };
    let stored =
        |what: &str, index: usize| mean(Row { target: RowTarget::Below(STORE_NS_MAX), ..Row::alone(name(what), &samples[index]) }, index);
    let mut rows = vec![stored("64 B store, line after line", 6), judged("64 B store, scattered", 0, STORE_NS_MAX)];
    rows.push(judged("4 KiB block write", 2, BLOCK_WRITE_NS_MAX));
    rows.push(Row::alone(name("64 B load"), &samples[4]));
    rows.push(Row::alone(name("4 KiB block read"), &samples[5]));
    if has_transactions {
        rows.push(stored("64 B tagged store, scattered", 7));
        rows.push(Row::alone(name("COMMIT of eight lines"), &samples[8]));
    }
    Ok(rows)
}

/// The index of a full log, compared with the paper's.
fn index(setting: &Setting, outcome: &mut Outcome) -> Result<()> {
    let log_bytes = if setting.is_tiny() { 4 * MIB } else { PAPER_LOG_BYTES };
    let mut found = Vec::new();
    for run_lines in RUNS {
        let figures = measure_log(log_bytes, PAPER_PAGES, run_lines)?;
        outcome.record(json!({
            "part": "index", "log_bytes": log_bytes, "run_lines": run_lines, "lines": figures.lines, "pages": figures.pages,
            "hit_ns": figures.hit_ns, "miss_ns": figures.miss_ns, "load_ns": figures.load_ns, "append_ns": figures.append_ns,
            "index_bytes": figures.index_bytes, "open_seconds": figures.open_seconds,
            "recover_seconds": figures.recover_seconds,
        }));
        found.push(figures);
    }
    let head = RUNS.map(|lines| if lines == 1 { "scattered lines".to_owned() } else { format!("runs of {lines} lines") });
    let mut table = Table::new(["write log".to_owned()].into_iter().chain(head).chain(["the paper".to_owned()]));
    let nanoseconds = |value: f64| format!("{value:.0} ns");
    let seconds = |value: f64| time(value * 1e9);
    let mut row = |name: &str, of: &dyn Fn(&LogFigures) -> String, paper: &str| {
        table.row([name.to_owned()].into_iter().chain(found.iter().map(of)).chain([paper.to_owned()]));
    };
    row("lines in the log", &|found| found.lines.to_string(), "4.19 M (256 MB)");
    row("pages that they belong to", &|found| found.pages.to_string(), "–");
    row("look-up of a line that is there", &|found| nanoseconds(found.hit_ns), "89 ns");
    row("look-up of a line that is not", &|found| nanoseconds(found.miss_ns), "–");
    row("load of a line that is there", &|found| nanoseconds(found.load_ns), "–");
    row("store, on the way to full", &|found| nanoseconds(found.append_ns), "–");
    row("memory of the index", &|found| format!("{:.1} MB", found.index_bytes as f64 / 1e6), "21 MB");
    row("opening: scan and index", &|found| seconds(found.open_seconds), "0.9 s to load the DRAM");
    row("RECOVER without a flash's time", &|found| seconds(found.recover_seconds), "2.7 s with it");
    outcome.table(format!("A log of {} MiB, full of lines at random places of 32 GiB; time of the processor", log_bytes / MIB), table);
    outcome.note("the paper's look-up is of an embedded ARM processor, and how its lines are spread over pages is not said: scattered, almost each has a page of its own, the worst case; a change of metadata leaves runs");
    Ok(())
}

/// The comparison of pages, and a checksum that uses linearity.
fn parts(setting: &Setting, outcome: &mut Outcome) {
    let rounds = setting.count(20).max(2);
    let old = vec![[0_u8; SECTOR_BYTES]; COMPARED_PAGES];
    let mut new = old.clone();
    new.iter_mut().step_by(3).for_each(|page| page[77] = 1);
    let best = |pages: usize, of: &mut dyn FnMut() -> u64| -> f64 {
        let mut best = Duration::MAX;
        for _ in 0..rounds {
            let start = Instant::now();
            black_box(of());
            best = best.min(start.elapsed());
        }
        best.as_nanos() as f64 / pages as f64
    };
    let compare = |range: std::ops::Range<usize>| -> u64 {
        range.map(|page| u64::from(modified_lines(black_box(&old[page]), black_box(&new[page])).count_ones())).sum()
    };
    let far_ns = best(COMPARED_PAGES, &mut || compare(0..COMPARED_PAGES));
    let near_ns = best(COMPARED_PAGES, &mut || (0..COMPARED_PAGES / 16).map(|_| compare(0..16)).sum());
    let mut line = [3; LINE_BYTES];
    let lines = 1 << 16;
    let linear_ns = best(lines, &mut || {
        (0..lines as u64).fold(0, |crc, number| {
            let before = line;
            line[..8].copy_from_slice(&number.to_le_bytes());
            crc ^ u64::from(checksum_change(number as usize % 64, black_box(&before), black_box(&line)))
        })
    });
    let whole_ns = best(lines, &mut || {
        (0..lines as u64).fold(0, |crc, number| crc ^ u64::from(checksum::crc32c(black_box(&old[number as usize % 16]))))
    });
    let rate = |page_ns: f64| format!("{:.1} GB/s", SECTOR_BYTES as f64 / page_ns);
    let mut table = Table::new(["part", "here", "the paper"]);
    table.row(["pages compared, in the processor's cache", &rate(near_ns), "14 GB/s, 936 cycles a page"]);
    table.row(["pages compared, in memory", &rate(far_ns), "–"]);
    table.row(["checksum of a sector renewed for one line", &format!("{linear_ns:.1} ns"), "–"]);
    table.row(["checksum of a sector anew", &format!("{whole_ns:.1} ns"), "–"]);
    outcome.table("Parts of a small write", table);
    outcome.record(json!({
        "part": "small write", "compare_cached_ns": near_ns, "compare_memory_ns": far_ns, "checksum_line_ns": linear_ns,
        "checksum_sector_ns": whole_ns,
    }));
    outcome.note(format!(
        "the fastest of {rounds} rounds each; bytes of a comparison are those of one of the two pages, as the paper's seem to be"
    ));
}

//! Effect of a long load of small random writes on the memory zone: merges, logs per block, write amplification, space over time.

use std::time::Instant;

use serde_json::json;
use tandemfs_check::CheckOptions;
use tandemfs_device::{CountersSnapshot, Drive, Structure};
use tandemfs_fs::MountOptions;

use super::requests::{Alignment, REQUEST_BYTES_MAX, Requests, Size};
use super::setting::{Setting, Variant, Volume, pattern};
use crate::failure::{Failure, Result};
use crate::machine;
use crate::output::Outcome;
use crate::plot::{self, Labels, Series};
use crate::scene::{MIB, Scene};
use crate::table::Table;

const SIZE: Size = Size::Below(16 << 10);
/// Size of the file, and of the load, in memory zones.
const FILE_RATIO: u64 = 5;
const LOAD_RATIO: u64 = 10;
const POINTS: u64 = 200;

/// The state of the load at one moment.
struct Point {
    seconds: f64,
    user_bytes: u64,
    byte_bytes: u64,
    block_bytes: u64,
    log_bytes: u64,
    in_use_bytes: u64,
    merges: u64,
    write_backs: u64,
}

/// Runs the load.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("fragmentation", format!("a long load of durable random writes of {} bytes", SIZE.name()));
    let (file_bytes, load_bytes) = (setting.file_bytes(FILE_RATIO), setting.load_bytes(LOAD_RATIO));
    setting.require(setting.timed_device_bytes(file_bytes))?;
    let scene = Scene::new(&setting.common)?;
    let device = setting.timed_device(&scene, "device", file_bytes)?;
    let volume = Volume::laid_out(&device, file_bytes, &Variant::Default.options())?;
    volume.settle();
    volume.fs.reset_statistics();
    let mut requests = Requests::new(23, SIZE, Alignment::Byte, file_bytes);
    let data = pattern(REQUEST_BYTES_MAX);
    let start = Instant::now();
    let (mut done, mut writes, mut next) = (0, 0_u64, 0);
    let mut points = Vec::new();
    while done < load_bytes {
        if done >= next {
            machine::check()?;
            points.push(point(&volume, start.elapsed().as_secs_f64(), done));
            next += load_bytes.div_ceil(POINTS);
        }
        let (offset, length) = requests.draw();
        volume.write(offset, &data[..length as usize])?;
        (done, writes) = (done + length, writes + 1);
    }
    // Logs are counted at the end of the load, before further write-back.
    let foreground = start.elapsed();
    let end = point(&volume, start.elapsed().as_secs_f64(), done);
    let counters = volume.fs.drive().counters().snapshot();
    let work = volume.fs.statistics().work;
    let (total, limit) = {
        let memory = volume.fs.space().memory;
        (memory.total_bytes, MountOptions::default().write_back_percent)
    };
    volume.fs.unmount()?;
    drop(volume);
    let options = CheckOptions { data: false, ..CheckOptions::default() };
    let counts = tandemfs_check::check(&Drive::new(device), &options, &mut |_| {})?.counts;

    let times = |bytes: u64| bytes as f64 / done as f64;
    let mut table = Table::new(["what", "figure"]);
    let mut row = |what: &str, figure: String| table.row([what.to_owned(), figure]);
    row("writes", format!("{writes}, {} MiB in {:.1} s", done / MIB, foreground.as_secs_f64()));
    row("logs merged, a write", format!("{:.3}", work.merges as f64 / writes as f64));
    row("logs extended in place, a write", format!("{:.3}", work.appends_in_place as f64 / writes as f64));
    row(
        "blocks written back",
        format!("{}, one for {:.1} writes", work.block_write_backs, writes as f64 / work.block_write_backs.max(1) as f64),
    );
    row(
        "data logs at the end",
        format!(
            "{} of {:.0} B in slots of {:.0} B",
            counts.logs,
            counts.log_bytes as f64 / counts.logs.max(1) as f64,
            counts.log_slot_bytes as f64 / counts.logs.max(1) as f64
        ),
    );
    row("logs a block of the file", format!("{:.2}", counts.logs as f64 / counts.blocks.max(1) as f64));
    row("byte path: bytes stored for a byte written", format!("{:.3}", times(end.byte_bytes)));
    row("of it data logs", format!("{:.3}", times(of(&counters, Structure::DataLog).byte_written_bytes)));
    row("of it the journal", format!("{:.3}", times(of(&counters, Structure::Journal).byte_written_bytes)));
    row("block path: bytes written for a byte written", format!("{:.3}", times(end.block_bytes)));
    row("block path: bytes read for a byte written", format!("{:.3}", times(of(&counters, Structure::Data).block_read_bytes)));
    row("memory zone in use, most", format!("{:.0} % of {} MiB", 100.0 * most(&points) as f64 / total as f64, total / MIB));
    outcome.table(format!("file of {} MiB, write-back below {limit} % of free space", file_bytes / MIB), table);
    outcome.record(json!({
        "writes": writes, "user_bytes": done, "seconds": foreground.as_secs_f64(), "merges": work.merges,
        "appends_in_place": work.appends_in_place, "block_write_backs": work.block_write_backs,
        "logs": counts.logs, "blocks": counts.blocks, "log_bytes": counts.log_bytes, "log_slot_bytes": counts.log_slot_bytes,
        "byte_amplification": times(end.byte_bytes), "block_amplification": times(end.block_bytes),
        "course": points.iter().chain([&end]).map(|point| json!({
            "seconds": point.seconds, "user_bytes": point.user_bytes, "byte_written_bytes": point.byte_bytes,
            "block_written_bytes": point.block_bytes, "data_log_bytes": point.log_bytes, "memory_in_use_bytes": point.in_use_bytes,
            "merges": point.merges, "block_write_backs": point.write_backs,
        })).collect::<Vec<_>>(),
    }));
    plots(&mut outcome, &points, total).map_err(|failure| Failure::new(format!("a plot could not be drawn: {failure}")))?;
    Ok(outcome)
}

fn plots(outcome: &mut Outcome, points: &[Point], total: u64) -> Result<()> {
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    let course = |value: &dyn Fn(&Point) -> f64| points.iter().map(|point| (point.seconds, value(point))).collect::<Vec<_>>();
    let end = points.last().map_or(0.0, |point| point.seconds);
    let series = [
        Series::new("in use", course(&|point| mib(point.in_use_bytes))),
        Series::new("of it data logs", course(&|point| mib(point.log_bytes))),
        Series::new("memory zone", [(0.0, mib(total)), (end, mib(total))]),
    ];
    outcome.plot("memory", plot::lines(&Labels::new("Memory zone under small random writes", "time [s]", "space [MiB]"), &series)?);
    let user = |point: &Point| point.user_bytes.max(1) as f64;
    let started: Vec<&Point> = points.iter().filter(|point| point.user_bytes > 0).collect();
    let course = |value: &dyn Fn(&Point) -> f64| started.iter().map(|point| (mib(point.user_bytes), value(point))).collect::<Vec<_>>();
    let series = [
        Series::new("byte path", course(&|point| point.byte_bytes as f64 / user(point))),
        Series::new("block path", course(&|point| point.block_bytes as f64 / user(point))),
    ];
    let labels = Labels::new("Write amplification since the start", "written by the user [MiB]", "bytes to the medium / bytes written");
    outcome.plot("amplification", plot::lines(&labels, &series)?);
    Ok(())
}

fn point(volume: &Volume, seconds: f64, user_bytes: u64) -> Point {
    let counters = volume.fs.drive().counters().snapshot();
    let work = volume.fs.statistics().work;
    Point {
        seconds,
        user_bytes,
        byte_bytes: counters.by_structure.iter().map(|bytes| bytes.byte_written_bytes).sum(),
        block_bytes: counters.by_structure.iter().map(|bytes| bytes.block_written_bytes).sum(),
        log_bytes: volume.fs.space().memory.data_log_bytes,
        in_use_bytes: volume.memory_in_use(),
        merges: work.merges,
        write_backs: work.block_write_backs,
    }
}

fn of(counters: &CountersSnapshot, structure: Structure) -> tandemfs_device::PathBytes {
    counters.by_structure[structure as usize]
}

fn most(points: &[Point]) -> u64 {
    points.iter().map(|point| point.in_use_bytes).max().unwrap_or_default()
}

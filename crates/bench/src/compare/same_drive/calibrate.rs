//! Adjusts the raw loop device to the latency of TandemFS's own block path ([SD2], [SD3]).
//!
//! [CB1] Both drives have the same settings and content; here the peers' drive has no cache, since hits would be measured instead.
//! [CB2] All requests are measured on one drive, then at once on the other, in turns of seconds, so that noise of the machine affects both.
//! [CB3] *Queue depth N* means N requests submitted together, until the last completes: by fio (libaio, one batch) and by the library (one
//!       call of `transfer`). In a continuous queue each request would also wait for earlier ones; the library's batches do not.
//! [CB4] The median of a batch is compared, from the least disturbed of three passes, since noise only adds time. The tolerance applies to
//!       every request and depth; a few that exceed it are measured once more; then one failure rejects all. Requests of 1 MiB are also
//!       measured and reported as not comparable if they differ, since the detour copies their bytes.
//!
//! [SD2]: super
//! [SD3]: super

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandemfs_device::{BlockRequest, Device};
use tandemfs_emulator::DeviceOptions;
use tandemfs_format::{SECTOR_BYTES, Sector};
use tempfile::TempDir;

use super::detour::{DEPTHS, Detour, Line, TOLERANCE, difference, is_equal};
use super::way::Carried;
use super::{Drive, Memory, Settings, start_with};
use crate::compare::backing::Backing;
use crate::compare::cases::fio::{self, JobResult};
use crate::compare::cases::programs;
use crate::compare::record::Calibration;
use crate::failure::{Failure, Result};
use crate::machine::{self, Pinned};
use crate::measure::{Jumps, Samples};

/// Size of both drives' block zones during calibration.
const BLOCK_BYTES: u64 = 128 << 20;
const MEMORY_BYTES: u64 = 32 << 20;
const SMALL: u64 = 4 << 10;
const LARGE: u64 = 64 << 10;
/// How long each request is measured on each drive.
const MEASURED: Duration = Duration::from_millis(60);
/// Number of passes; the least disturbed one counts.
const PASSES: usize = 3;
/// Adjustments of the detour before the result is judged.
const ROUGH_ATTEMPTS: u32 = 3;
/// Attempts to measure and judge before the machine is called too noisy; two minutes with the above.
const ATTEMPTS: u32 = 4;
/// Requests that may be measured again: if more exceed the tolerance, the detour is not found yet.
const AGAIN_MAX: usize = 5;
/// Share of a measured difference that is applied in one adjustment.
const BELIEVED: f64 = 0.8;
/// A longer detour is caused by other work of the machine (about 40 us are usual), so it is refused.
const DETOUR_NS_MAX: f64 = 150_000.0;

/// Kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    DurableWrite,
}

/// Kind, size and depth of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    kind: Kind,
    bytes: u64,
    depth: u32,
}

impl Shape {
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::DurableWrite => "write + flush",
        };
        format!("{} KiB {kind}, queue depth {}", self.bytes >> 10, self.depth)
    }
}

/// Result of the calibration.
#[derive(Debug, Clone)]
pub struct Calibrated {
    /// Settings of the common drive, including the detour.
    pub settings: Settings,
    /// Latency of every request on both drives; they differ by at most 5 %.
    pub calibrations: Vec<Calibration>,
    /// Sentences for the report on what was done.
    pub notes: Vec<String>,
}

/// What this machine takes for requests over FUSE and loop device while the drive takes no time, in a directory with room for two drives of
/// 192 MiB.
///
/// # Errors
/// The drives cannot be made, or the machine is busy with something else.
pub fn carried(directory: &Path, settings: &Settings) -> Result<Vec<Carried>> {
    let _pinned = Pinned::new();
    Both::new(directory, settings)?.carried()
}

/// Finds the detour for these settings.
///
/// # Errors
/// The machine is too noisy; the message has the difference.
pub fn calibrate(directory: &Path, settings: &Settings) -> Result<Calibrated> {
    let mut settings = Settings { detour: Detour::default(), ..settings.clone() };
    // The drive's server is on the first CPU, as for single clients.
    let _pinned = Pinned::new();
    let both = Both::new(directory, &settings)?;
    let (mut points, mut worst) = (Points::default(), (f64::INFINITY, String::new()));
    for attempt in 0..ROUGH_ATTEMPTS + ATTEMPTS {
        let found = if attempt < ROUGH_ATTEMPTS {
            both.measure_all(&plain_shapes())?
        } else {
            let found = both.measured_again(both.measure_all(&all_shapes())?)?;
            match worst_of(&found) {
                None => {
                    let notes = both.measure_all(&large_shapes())?.iter().filter_map(|(_, found)| large_note(found)).collect();
                    let calibrations = found.into_iter().map(|(_, calibration)| calibration).collect();
                    return Ok(Calibrated { settings, calibrations, notes });
                }
                Some(off) if off.0 < worst.0 => worst = off,
                Some(_) => {}
            }
            found
        };
        settings.detour = points.adjusted(&found);
        both.drive.set_detour(settings.detour)?;
    }
    Err(Failure::new(format!(
        "nothing is compared on it: at best the loop device and the drive's own block path differ by {:.0} % ({}), and {:.0} % is allowed; the \
         machine is too noisy or has too few CPUs for the drive",
        worst.0 * 100.0,
        worst.1,
        TOLERANCE * 100.0
    )))
}

/// A line of text for a calibration.
fn sentence_of(calibration: &Calibration) -> String {
    format!(
        "{}: loop device {:.1} us, drive {:.1} us ({:+.1} %)",
        calibration.request,
        calibration.loop_ns / 1e3,
        calibration.drive_ns / 1e3,
        difference(calibration.loop_ns, calibration.drive_ns) * 100.0
    )
}

/// The request with the largest difference, if it exceeds the tolerance.
fn worst_of(found: &[Found]) -> Option<(f64, String)> {
    let beyond = found.iter().map(|(_, found)| found).filter(|found| !is_equal(found.loop_ns, found.drive_ns));
    let off = |found: &Calibration| (difference(found.loop_ns, found.drive_ns).abs(), sentence_of(found));
    beyond.map(off).max_by(|one, other| one.0.total_cmp(&other.0))
}

/// Requests without a flush, from which the detour is computed.
fn plain_shapes() -> Vec<Shape> {
    all_shapes().into_iter().filter(|shape| shape.kind != Kind::DurableWrite).collect()
}

/// Requests whose bytes take longer on the detour than on the drive's link: reported, not judged.
fn large_shapes() -> Vec<Shape> {
    [Kind::Read, Kind::Write].map(|kind| Shape { kind, bytes: 1 << 20, depth: 1 }).into()
}

/// A note on such a request, if needed.
fn large_note(found: &Calibration) -> Option<String> {
    let is_off = !is_equal(found.loop_ns, found.drive_ns);
    is_off.then(|| {
        let so = "FUSE and loop device copy the bytes, so long transfers of large requests are no comparison on the same drive";
        format!("{}: {so}", sentence_of(found))
    })
}

fn all_shapes() -> Vec<Shape> {
    let sizes = |kind| [SMALL, LARGE].map(|bytes| (kind, bytes));
    let shapes = [Kind::Read, Kind::Write, Kind::DurableWrite].into_iter().flat_map(sizes);
    DEPTHS.into_iter().flat_map(|depth| shapes.clone().map(move |(kind, bytes)| Shape { kind, bytes, depth })).collect()
}

/// A request and its medians.
type Found = (Shape, Calibration);

/// The detour found so far, in nanoseconds: by direction, depth and size.
#[derive(Debug, Default)]
struct Points([[[f64; 2]; 3]; 2]);

impl Points {
    /// The detour, corrected by the present difference.
    fn adjusted(&mut self, found: &[Found]) -> Detour {
        for (shape, found) in found.iter().filter(|(shape, _)| shape.kind != Kind::DurableWrite) {
            let depth = DEPTHS.iter().position(|depth| *depth == shape.depth).unwrap_or_default();
            let point = &mut self.0[usize::from(shape.kind == Kind::Write)][depth][usize::from(shape.bytes == LARGE)];
            // A larger detour than the whole service has no effect, and would need many steps to be reduced again.
            *point = (*point + (found.loop_ns - found.drive_ns) * BELIEVED).clamp(0.0, found.drive_ns);
        }
        let line = |points: [f64; 2]| Line::through((SMALL, points[0]), (LARGE, points[1]));
        let [read, write] = self.0.map(|depths| depths.map(line));
        Detour { read, write }
    }
}

/// The two drives.
struct Both {
    drive: Drive,
    own: Arc<dyn Device>,
    directory: TempDir,
}

impl Both {
    fn new(directory: &Path, settings: &Settings) -> Result<Self> {
        let settings = Settings { memory_bytes: MEMORY_BYTES, ..settings.clone() };
        let drive = start_with(directory, BLOCK_BYTES, &settings, Memory::AsTandemfs)?;
        let directory = tempfile::Builder::new().prefix("tandemfs-calibration-").tempdir_in(directory)?;
        let image = directory.path().join("image");
        settings.create_own_image(&image, BLOCK_BYTES)?;
        let name = image.to_str().ok_or_else(|| Failure::new("the directory's name is not Unicode; name another with --directory"))?;
        let own = tandemfs_emulator::open_device(name, &DeviceOptions::default())?;
        let both = Self { drive, own, directory };
        both.fill()?;
        Ok(both)
    }

    /// Reads of unwritten sectors would not reach the flash.
    fn fill(&self) -> Result<()> {
        let bytes = vec![0x5a; 1 << 20];
        let mut file = OpenOptions::new().write(true).open(self.drive.block_device())?;
        for megabyte in 0..BLOCK_BYTES >> 20 {
            machine::check()?;
            file.write_all(&bytes)?;
            let sector = Sector::new((megabyte << 20) / SECTOR_BYTES as u64);
            self.own.block_path().transfer(&mut [BlockRequest::Write { sector, buffer: (&bytes).into() }], &mut || {})?;
        }
        Ok(file.sync_all()?)
    }

    /// Measures all on both drives: the minimum over [`PASSES`] passes of the medians ([CB2], [CB4]).
    fn measure_all(&self, shapes: &[Shape]) -> Result<Vec<Found>> {
        let mut times = vec![(Vec::new(), Vec::new()); shapes.len()];
        for _ in 0..PASSES {
            for ((shape, loop_ns), (loops, drives)) in shapes.iter().zip(self.on_loop(shapes)?).zip(&mut times) {
                machine::check()?;
                loops.push(loop_ns);
                drives.push(self.on_drive(shape)?);
            }
        }
        let found = |(shape, (loops, drives)): (&Shape, (Vec<f64>, Vec<f64>))| {
            Ok((*shape, Calibration { request: shape.name(), loop_ns: least(&loops)?, drive_ns: least(&drives)? }))
        };
        shapes.iter().zip(times).map(found).collect()
    }

    fn carried(&self) -> Result<Vec<Carried>> {
        // Replies are immediate, so the rest is the machine's own cost.
        self.drive.set_detour(Detour::endless())?;
        let mut carried = Vec::new();
        let shapes = plain_shapes();
        let mut passes = Vec::new();
        for _ in 0..PASSES {
            machine::check()?;
            passes.push(self.on_loop(&shapes)?);
        }
        for (index, shape) in shapes.iter().enumerate() {
            let took_ns = least(&passes.iter().map(|pass| pass[index]).collect::<Vec<_>>())?;
            if shape.depth == 1 && took_ns > DETOUR_NS_MAX {
                return Err(Failure::new(format!(
                    "nothing is compared on the same drive: the detour over FUSE and loop device takes {:.0} us, and some 40 us are usual; the \
                     machine is busy with something else",
                    took_ns / 1e3
                )));
            }
            carried.push(Carried { is_read: shape.kind == Kind::Read, bytes: shape.bytes, depth: shape.depth, took_ns });
        }
        Ok(carried)
    }

    /// Measures the requests that exceed the tolerance once more ([CB4]).
    fn measured_again(&self, mut all: Vec<Found>) -> Result<Vec<Found>> {
        let is_off = |(_, found): &&mut Found| !is_equal(found.loop_ns, found.drive_ns);
        let mut off: Vec<&mut Found> = all.iter_mut().filter(is_off).collect();
        if !off.is_empty() && off.len() <= AGAIN_MAX {
            let shapes: Vec<Shape> = off.iter().map(|(shape, _)| *shape).collect();
            for (before, again) in off.iter_mut().zip(self.measure_all(&shapes)?) {
                **before = again;
            }
        }
        Ok(all)
    }

    /// Median time of a batch through the library, in nanoseconds.
    fn on_drive(&self, shape: &Shape) -> Result<f64> {
        let path = self.own.block_path();
        let mut buffers = vec![vec![0x5a; shape.bytes as usize]; shape.depth as usize];
        let places = BLOCK_BYTES / shape.bytes;
        let (mut jumps, mut samples, start) = (Jumps::new(7), Samples::new(), Instant::now());
        while start.elapsed() < MEASURED {
            let sectors = shape.bytes / SECTOR_BYTES as u64;
            let mut requests: Vec<_> = buffers
                .iter_mut()
                .map(|buffer| match (shape.kind, Sector::new(jumps.below(places) * sectors)) {
                    (Kind::Read, sector) => BlockRequest::Read { sector, buffer: buffer.into() },
                    (_, sector) => BlockRequest::Write { sector, buffer: (&buffer[..]).into() },
                })
                .collect();
            let begun = Instant::now();
            path.transfer(&mut requests, &mut || {})?;
            if shape.kind == Kind::DurableWrite {
                path.flush()?;
            }
            samples.add(begun.elapsed());
        }
        Ok(samples.median_ns())
    }

    /// Median times of batches with fio, in nanoseconds, in the order of the shapes.
    ///
    /// The flush after a batch is measured separately, after as many sequential writes: for asynchronous engines fio's flush time starts at
    /// the writes before it, which would count these twice.
    fn on_loop(&self, shapes: &[Shape]) -> Result<Vec<f64>> {
        let mut command = programs::command("fio", self.directory.path())?;
        command.args([format!("--filename={}", self.drive.block_device().display()), format!("--runtime={}ms", MEASURED.as_millis())]);
        command.args(["--direct=1", "--time_based", "--norandommap", "--thread", "--allow_file_create=0", "--stonewall"]);
        command.args(["--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50", "--output-format=json"]);
        for (shape, is_flush) in jobs(shapes) {
            let depth = shape.depth;
            let direction = if shape.kind == Kind::Read { "randread" } else { "randwrite" };
            command.args(["--name=calibration".to_owned(), format!("--rw={direction}"), format!("--bs={}", shape.bytes)]);
            if is_flush {
                command.args(["--ioengine=psync".to_owned(), format!("--fsync={depth}")]);
            } else {
                command.args(["--ioengine=libaio".to_owned(), format!("--iodepth={depth}")]);
                command.args([format!("--iodepth_batch_submit={depth}"), format!("--iodepth_batch_complete_min={depth}")]);
            }
        }
        times_of(&fio::parse(&programs::run(&mut command, self.directory.path())?)?, shapes)
    }
}

/// The fio jobs for the shapes: requests of each, and for durable ones the flushes after them.
fn jobs(shapes: &[Shape]) -> impl Iterator<Item = (&Shape, bool)> {
    shapes
        .iter()
        .flat_map(|shape| [(shape, false), (shape, true)])
        .filter(|(shape, is_flush)| !is_flush || shape.kind == Kind::DurableWrite)
}

/// The medians of fio's [`jobs`] by shape; infinite if no request completed because the machine stalled during the whole job.
fn times_of(said: &[JobResult], shapes: &[Shape]) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for (index, (shape, is_flush)) in jobs(shapes).enumerate() {
        let job = said.get(index).ok_or_else(|| Failure::new("fio says nothing of some jobs"))?;
        let median_ns = match (is_flush, shape.kind) {
            (true, _) => job.sync.median_ns(),
            (false, Kind::Read) => job.read.median_ns(),
            (false, _) => job.write.median_ns(),
        };
        let time = if median_ns > 0.0 { median_ns } else { f64::INFINITY };
        match times.last_mut().filter(|_| is_flush) {
            Some(requests) => *requests += time,
            None => times.push(time),
        }
    }
    Ok(times)
}

/// The least disturbed pass.
fn least(times: &[f64]) -> Result<f64> {
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    if least.is_finite() { Ok(least) } else { Err(Failure::new("fio ended no request in any pass; the machine stands still")) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(shape: Shape, loop_us: f64, drive_us: f64) -> Found {
        (shape, Calibration { request: shape.name(), loop_ns: loop_us * 1e3, drive_ns: drive_us * 1e3 })
    }

    /// Simulates a loop device over a drive that serves two requests at once in 50 us; each earlier request adds delay.
    fn simulated(detour: Detour) -> Vec<Found> {
        let one = |shape: Shape| {
            let (is_read, size) = (shape.kind == Kind::Read, if shape.bytes == LARGE { 10.0 } else { 1.0 });
            let drive_us = f64::from(shape.depth.div_ceil(2)) * 50.0 + size;
            let others = f64::from(shape.depth - 1);
            let way_us = if is_read { 20.0 } else { 25.0 } + 1.5 * size + others * (1.0 + 0.2 * size);
            let back_us = detour.of(is_read, shape.bytes, shape.depth as usize - 1) as f64 / 1e3;
            found(shape, (drive_us - back_us).max(0.0) + way_us, drive_us)
        };
        plain_shapes().into_iter().map(one).collect()
    }

    #[test]
    fn the_detour_is_found_where_it_is_shorter_than_the_service() {
        let (mut points, mut detour) = (Points::default(), Detour::default());
        assert!(worst_of(&simulated(detour)).is_some());
        for _ in 0..ROUGH_ATTEMPTS {
            detour = points.adjusted(&simulated(detour));
        }
        assert_eq!(worst_of(&simulated(detour)), None, "{detour:?}");
    }

    #[test]
    fn the_worst_request_is_named() {
        let shape = Shape { kind: Kind::DurableWrite, bytes: SMALL, depth: 4 };
        let calibrations = [found(shape, 52.0, 50.0), found(shape, 60.0, 50.0), found(shape, 45.0, 50.0)];
        let (off, sentence) = worst_of(&calibrations).expect("one is off");
        assert!((off - 0.2).abs() < 1e-9);
        assert_eq!(sentence, "4 KiB write + flush, queue depth 4: loop device 60.0 us, drive 50.0 us (+20.0 %)");
        assert_eq!(worst_of(&calibrations[..1]), None);
        assert_eq!(large_note(&calibrations[0].1), None);
        assert!(large_note(&calibrations[1].1).is_some_and(|note| note.starts_with("4 KiB write + flush") && note.ends_with("same drive")));
    }

    #[test]
    fn what_fio_says_is_understood() {
        let shape = |kind| Shape { kind, bytes: SMALL, depth: 4 };
        let shapes = [Kind::Read, Kind::DurableWrite, Kind::Write].map(shape);
        let job = |part: &str, time: u32| json!({ part: { "lat_ns": { "percentile": { "50.000000": time } } } });
        let times = |jobs: &[Value], shapes: &[Shape]| times_of(&fio::parse(&json!({ "jobs": jobs }).to_string())?, shapes);
        let said = [job("read", 40), job("write", 50), job("sync", 7), job("write", 51)];
        assert_eq!(times(&said, &shapes).expect("times"), [40.0, 57.0, 51.0]);
        assert!(times(&[], &shapes).is_err());
        let stalled = times(&[job("read", 0)], &shapes[..1]).expect("fio says 0 where it ended nothing")[0];
        assert_eq!(least(&[stalled, 40.0]).expect("one pass was well"), 40.0);
        assert!(least(&[stalled]).is_err(), "no pass was");
    }

    #[test]
    fn every_depth_size_and_kind_is_measured_once() {
        let names: std::collections::BTreeSet<_> = all_shapes().iter().map(Shape::name).collect();
        assert_eq!(names.len(), 18);
        assert!(names.contains("64 KiB write + flush, queue depth 16"));
        assert_eq!(plain_shapes().len(), 12);
    }
}

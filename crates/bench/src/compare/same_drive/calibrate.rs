//! Making the raw loop device take what TandemFS' own block path takes ([SD2], [SD3]).
//!
//! [K1] Both drives are made from the same settings and hold the same; the peers' has no cache here, as a hit would be measured in its place.
//! [K2] A request is measured on one and at once on the other, so that what the machine does meanwhile happens to both.
//! [K3] *Queue depth N* is N requests handed over together, until the last is done: by fio (libaio, one batch) and by the library (one call of
//!      `transfer`). Of N requests in a row each would wait for another's end, which the library's batches do not.
//! [K4] What is compared is the median of a batch. The tolerance holds for every request and depth; one that is beyond it refuses all.
//!      Requests of 1 MiB are measured beside them and said to be no comparison where they are not, since the way copies their bytes.
//!
//! [SD2]: super
//! [SD3]: super

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tandemfs_device::{BlockRequest, Device};
use tandemfs_emulator::DeviceOptions;
use tandemfs_format::{SECTOR_BYTES, Sector};
use tempfile::TempDir;

use super::detour::{Detour, Line, TOLERANCE, difference, is_equal};
use super::{Drive, Memory, Settings, start_with};
use crate::compare::backing::Backing;
use crate::compare::record::Calibration;
use crate::failure::{Failure, Result};
use crate::machine;
use crate::measure::{Jumps, Samples};

/// Size of both drives' block zones while they are compared.
const BLOCK_BYTES: u64 = 128 << 20;
const MEMORY_BYTES: u64 = 32 << 20;
const SMALL: u64 = 4 << 10;
const LARGE: u64 = 64 << 10;
const DEPTHS: [u32; 3] = [1, 4, 16];
/// How long a request is measured on either.
const MEASURED: Duration = Duration::from_millis(400);
/// Times that the detour is adjusted before it is taken as it is.
const ADJUSTMENTS: u32 = 5;
/// Times that everything is measured before the machine is called too noisy.
const VERIFICATIONS: u32 = 3;
/// A way that is made longer is longer than needed by this share, so that noise does not ask for less than nothing.
const MARGIN: f64 = 0.15;

/// A detour beyond this is the machine's other work: some 40 us are usual. A drive of such a command would be none.
const DETOUR_NS_MAX: f64 = 150_000.0;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    DurableWrite,
}

/// A shape of request.
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

/// What the calibration found.
#[derive(Debug, Clone)]
pub struct Calibrated {
    /// With the detour; what drives of everybody are to be made from.
    pub settings: Settings,
    /// Every request on both. They are within 5 %.
    pub calibrations: Vec<Calibration>,
    /// What was done, for the report: sentences.
    pub notes: Vec<String>,
}

/// Finds the detour for these settings in a directory that has room for two drives of 192 MiB.
///
/// With `longer_way` a drive whose block commands are faster than the detour is put at the end of a longer way ([SD3]), and serves as many
/// requests at once as this machine carries; without, such a drive is refused.
///
/// # Errors
/// A sentence: the drive is too fast for the detour, or the machine too noisy; how far off it was.
///
/// [SD3]: super
pub fn calibrate(directory: &Path, settings: &Settings, longer_way: bool, say: &mut dyn FnMut(&str)) -> Result<Calibrated> {
    let mut settings = Settings { detour: Detour::default(), ..settings.clone() };
    let mut notes = Vec::new();
    let both = Both::new(directory, &settings)?;
    let bare = both.measure_all(&basic_shapes())?;
    let needed = needed_command_ns(&bare, &settings)?;
    let both = match needed {
        None => both,
        Some((_, sentence)) if !longer_way => return Err(Failure::new(sentence)),
        Some((command_ns, sentence)) => {
            say(&sentence);
            notes.push(sentence);
            settings.command_ns_min = Some(command_ns);
            // Answers at once: what is left is what the machine carries.
            let idle = Line { base_ns: 1e9, byte_ns: 0.0 };
            both.drive.set_detour(Detour { read: idle, write: idle })?;
            let deep = both.measure_all(&deep_shapes())?;
            if let Some(channels) = carried_channels(&deep, command_ns, &settings)? {
                let sentence = format!("the drive of all serves {channels} block requests at once: more are not carried by this machine");
                say(&sentence);
                notes.push(sentence);
                settings.channel_count = Some(channels);
            }
            drop(both);
            Both::new(directory, &settings)?
        }
    };
    let mut points = Points::default();
    for _ in 0..ADJUSTMENTS {
        let found = both.measure_all(&basic_shapes())?;
        if found.iter().all(|(_, calibration)| is_equal(calibration.loop_ns, calibration.drive_ns)) {
            break;
        }
        settings.detour = points.adjusted(&found);
        both.drive.set_detour(settings.detour)?;
    }
    let mut worst = (f64::INFINITY, String::new());
    for _ in 0..VERIFICATIONS {
        let found = both.measure_all(&all_shapes())?;
        let calibrations: Vec<_> = found.into_iter().map(|(_, calibration)| calibration).collect();
        match worst_of(&calibrations) {
            Some(off) => worst = if off.0 < worst.0 { off } else { worst },
            None => {
                calibrations.iter().for_each(|calibration| say(&sentence_of(calibration)));
                for (_, found) in both.measure_all(&large_shapes())? {
                    if let Some(sentence) = large_note(&found) {
                        say(&sentence);
                        notes.push(sentence);
                    }
                }
                return Ok(Calibrated { settings, calibrations, notes });
            }
        }
        let found: Vec<_> =
            basic_shapes().into_iter().zip(calibrations.iter().filter(|found| found.request.ends_with("depth 1")).cloned()).collect();
        settings.detour = points.adjusted(&found);
        both.drive.set_detour(settings.detour)?;
    }
    Err(Failure::new(format!(
        "nothing is compared on the same drive: after {VERIFICATIONS} attempts the loop device and the drive's own block path differ by {:.0} % \
         ({}), and {:.0} % is allowed; the machine is too noisy or has too few CPUs for the drive",
        worst.0 * 100.0,
        worst.1,
        TOLERANCE * 100.0
    )))
}

/// A line for people.
pub fn sentence_of(calibration: &Calibration) -> String {
    format!(
        "{}: loop device {:.1} us, drive {:.1} us ({:+.1} %)",
        calibration.request,
        calibration.loop_ns / 1e3,
        calibration.drive_ns / 1e3,
        difference(calibration.loop_ns, calibration.drive_ns) * 100.0
    )
}

/// The request that is farthest off, if one is beyond the tolerance.
fn worst_of(calibrations: &[Calibration]) -> Option<(f64, String)> {
    let beyond = calibrations.iter().filter(|found| !is_equal(found.loop_ns, found.drive_ns));
    let off = |found: &Calibration| (difference(found.loop_ns, found.drive_ns).abs(), sentence_of(found));
    beyond.map(off).max_by(|one, other| one.0.total_cmp(&other.0))
}

/// One at a time and without a flush, in the order of [`all_shapes`] up to their depths: what the detour is found from.
fn basic_shapes() -> Vec<Shape> {
    let sizes = |kind| [SMALL, LARGE].map(|bytes| Shape { kind, bytes, depth: 1 });
    [Kind::Read, Kind::Write].into_iter().flat_map(sizes).collect()
}

/// Requests whose bytes take longer on the way than on the drive's link: shown, not judged.
fn large_shapes() -> Vec<Shape> {
    [Kind::Read, Kind::Write].map(|kind| Shape { kind, bytes: 1 << 20, depth: 1 }).into()
}

/// What has to be said of such a request, if anything.
fn large_note(found: &Calibration) -> Option<String> {
    let is_off = !is_equal(found.loop_ns, found.drive_ns);
    is_off.then(|| {
        let so = "FUSE and loop device copy the bytes, so long transfers of large requests are no comparison on the same drive";
        format!("{}: {so}", sentence_of(found))
    })
}

fn deep_shapes() -> Vec<Shape> {
    let depths = |kind| [4, 16].map(|depth| Shape { kind, bytes: SMALL, depth });
    [Kind::Read, Kind::Write].into_iter().flat_map(depths).collect()
}

fn all_shapes() -> Vec<Shape> {
    let sizes = |kind| [SMALL, LARGE].map(|bytes| (kind, bytes));
    let shapes = [Kind::Read, Kind::Write, Kind::DurableWrite].into_iter().flat_map(sizes);
    DEPTHS.into_iter().flat_map(|depth| shapes.clone().map(move |(kind, bytes)| Shape { kind, bytes, depth })).collect()
}

/// A shape and its medians.
type Found = (Shape, Calibration);

/// The command time that lets the detour disappear, and why; none where the drive is slow enough as it is.
fn needed_command_ns(bare: &[Found], settings: &Settings) -> Result<Option<(u32, String)>> {
    let mut needed: Option<(f64, String)> = None;
    for (shape, found) in bare {
        let detour_ns = found.loop_ns - found.drive_ns;
        if detour_ns > DETOUR_NS_MAX {
            return Err(Failure::new(format!(
                "nothing is compared on the same drive: the detour over FUSE and loop device takes {:.0} us, and some 40 us are usual; the \
                 machine is busy with something else",
                detour_ns / 1e3
            )));
        }
        if detour_ns <= found.drive_ns * (1.0 + TOLERANCE / 2.0) {
            continue;
        }
        let rest_ns = found.drive_ns - f64::from(settings.command_ns(shape.kind == Kind::Read)?);
        let command_ns = detour_ns * (1.0 + MARGIN) - rest_ns.max(0.0);
        let sentence = format!(
            "a {} KiB {} takes {:.1} us on the block path of '{}' and the detour over FUSE and loop device alone {:.1} us, which cannot be taken \
             back from it; compared is a drive whose block commands take at least {:.0} us for everybody",
            shape.bytes >> 10,
            if shape.kind == Kind::Read { "read" } else { "write" },
            found.drive_ns / 1e3,
            settings.profile,
            detour_ns / 1e3,
            (command_ns / 1e3).ceil(),
        );
        if needed.as_ref().is_none_or(|(other, _)| command_ns > *other) {
            needed = Some((command_ns, sentence));
        }
    }
    Ok(needed.map(|(command_ns, sentence)| ((command_ns / 1e3).ceil().max(1.0) as u32 * 1000, sentence)))
}

/// How many requests at once the drive may serve so that its queue is longer than the machine's; none where the profile's number is.
fn carried_channels(deep: &[Found], command_ns: u32, settings: &Settings) -> Result<Option<u32>> {
    let Some(own) = settings.channels()? else { return Ok(None) };
    let mut channels = own;
    for (shape, found) in deep {
        let service_ns = f64::from(settings.command_ns(shape.kind == Kind::Read)?.max(command_ns));
        let carried = |channels: u32| f64::from(shape.depth.div_ceil(channels)) * service_ns >= found.loop_ns * (1.0 + MARGIN);
        channels = (1..=channels).rev().find(|channels| carried(*channels)).unwrap_or(1);
    }
    Ok((channels < own).then_some(channels))
}

/// What was found of the detour so far, in nanoseconds: reads and writes of either size.
#[derive(Debug, Default)]
struct Points {
    read: [f64; 2],
    write: [f64; 2],
}

impl Points {
    /// The detour, corrected by how far apart both are now.
    fn adjusted(&mut self, found: &[Found]) -> Detour {
        for (shape, found) in found {
            let points = match shape.kind {
                Kind::Read => &mut self.read,
                Kind::Write => &mut self.write,
                Kind::DurableWrite => continue,
            };
            let point = &mut points[usize::from(shape.bytes == LARGE)];
            *point = (*point + found.loop_ns - found.drive_ns).max(0.0);
        }
        let line = |points: [f64; 2]| Line::through((SMALL, points[0]), (LARGE, points[1]));
        Detour { read: line(self.read), write: line(self.write) }
    }
}

/// The two drives.
struct Both {
    drive: Drive,
    own: Arc<dyn Device>,
    _directory: TempDir,
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
        let both = Self { drive, own, _directory: directory };
        both.fill()?;
        Ok(both)
    }

    /// Reads of what was never written would not reach the flash.
    fn fill(&self) -> Result<()> {
        let bytes = vec![0x5a; 1 << 20];
        let mut file = OpenOptions::new().write(true).open(self.drive.block_device())?;
        for megabyte in 0..BLOCK_BYTES >> 20 {
            machine::check()?;
            file.write_all(&bytes)?;
            let sector = Sector::new((megabyte << 20) / SECTOR_BYTES as u64);
            self.own.block_path().transfer(&mut [BlockRequest::Write { sector, buffer: &bytes }], &mut || {})?;
        }
        Ok(file.sync_all()?)
    }

    /// [K2]
    fn measure_all(&self, shapes: &[Shape]) -> Result<Vec<Found>> {
        let measure = |shape: &Shape| {
            machine::check()?;
            let (drive_ns, loop_ns) = (self.on_drive(shape)?, on_loop(self.drive.block_device(), shape)?);
            Ok((*shape, Calibration { request: shape.name(), loop_ns, drive_ns }))
        };
        shapes.iter().map(measure).collect()
    }

    /// Median of a batch by the library, in nanoseconds.
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
                    (Kind::Read, sector) => BlockRequest::Read { sector, buffer },
                    (_, sector) => BlockRequest::Write { sector, buffer },
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
}

/// Median of a batch by fio, in nanoseconds.
fn on_loop(device: &Path, shape: &Shape) -> Result<f64> {
    let depth = shape.depth;
    let mut arguments = vec![
        "--name=calibration".to_owned(),
        format!("--filename={}", device.display()),
        format!("--rw={}", if shape.kind == Kind::Read { "randread" } else { "randwrite" }),
        format!("--bs={}", shape.bytes),
        format!("--iodepth={depth}"),
        format!("--iodepth_batch_submit={depth}"),
        format!("--iodepth_batch_complete_min={depth}"),
        format!("--runtime={}ms", MEASURED.as_millis()),
    ];
    arguments.extend(
        ["--ioengine=libaio", "--direct=1", "--time_based", "--norandommap", "--thread", "--allow_file_create=0"].map(str::to_owned),
    );
    arguments.extend(["--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50", "--output-format=json"].map(str::to_owned));
    if shape.kind == Kind::DurableWrite {
        arguments.push(format!("--fsync={depth}"));
    }
    let mut command = Command::new("fio");
    let output =
        command.args(&arguments).stdin(Stdio::null()).output().map_err(|error| Failure::new(format!("fio: {error}; install fio")))?;
    if !output.status.success() {
        return Err(Failure::new(format!("fio: {}", String::from_utf8_lossy(&output.stderr).trim())));
    }
    median_of(&serde_json::from_slice(&output.stdout)?, shape.kind)
}

/// What fio says: the median of a request, and of the flush behind it.
fn median_of(said: &Value, kind: Kind) -> Result<f64> {
    let median = |part: &str| said["jobs"][0][part]["lat_ns"]["percentile"]["50.000000"].as_f64().filter(|median| *median > 0.0);
    let request = median(if kind == Kind::Read { "read" } else { "write" });
    let flush = if kind == Kind::DurableWrite { median("sync") } else { Some(0.0) };
    match (request, flush) {
        (Some(request), Some(flush)) => Ok(request + flush),
        _ => Err(Failure::new("fio says no median of what it did")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(shape: Shape, loop_us: f64, drive_us: f64) -> Found {
        (shape, Calibration { request: shape.name(), loop_ns: loop_us * 1e3, drive_ns: drive_us * 1e3 })
    }

    fn each(times: [(f64, f64); 4]) -> Vec<Found> {
        basic_shapes().into_iter().zip(times).map(|(shape, (loop_us, drive_us))| found(shape, loop_us, drive_us)).collect()
    }

    /// A loop device that takes what the drive takes, never less than its way, plus what the way takes.
    fn simulated(detour: Detour, way_us: [f64; 4], drive_us: [f64; 4]) -> Vec<Found> {
        let one = |(index, shape): (usize, Shape)| {
            let line = if shape.kind == Kind::Read { detour.read } else { detour.write };
            let served = (drive_us[index] - line.at(shape.bytes) as f64 / 1e3).max(0.0);
            found(shape, served + way_us[index], drive_us[index])
        };
        basic_shapes().into_iter().enumerate().map(one).collect()
    }

    #[test]
    fn the_detour_is_found_where_it_is_shorter_than_the_service() {
        let (way, drive) = ([40.0, 55.0, 44.0, 70.0], [50.6, 59.6, 60.0, 76.0]);
        let mut points = Points::default();
        let mut detour = Detour::default();
        for _ in 0..2 {
            detour = points.adjusted(&simulated(detour, way, drive));
        }
        let found = simulated(detour, way, drive);
        assert!(found.iter().all(|(_, found)| is_equal(found.loop_ns, found.drive_ns)), "{found:?}");
        assert_eq!(worst_of(&found.into_iter().map(|(_, found)| found).collect::<Vec<_>>()), None);
    }

    #[test]
    fn a_drive_that_is_faster_than_the_detour_is_named_with_what_it_needs() {
        let settings = Settings::new("romefs-a", MEMORY_BYTES);
        assert_eq!(
            needed_command_ns(&each([(90.0, 50.6), (100.0, 59.6), (50.0, 26.0), (60.0, 31.0)]), &settings).expect("a profile"),
            None
        );
        let bare = each([(90.6, 50.6), (100.0, 59.6), (54.0, 11.0), (86.0, 26.0)]);
        let (command_ns, sentence) = needed_command_ns(&bare, &settings).expect("a profile").expect("too fast");
        // 60 us for a write of 64 KiB, of which 16 us are its bytes' way: 69 - 16.
        assert_eq!(command_ns, 53_000);
        let busy = each([(90.6, 50.6), (100.0, 59.6), (4_054.0, 11.0), (86.0, 26.0)]);
        assert!(needed_command_ns(&busy, &settings).expect_err("no drive").to_string().contains("takes 4043 us"));
        assert!(sentence.contains("64 KiB write takes 26.0 us") && sentence.contains("at least 53 us"), "{sentence}");
    }

    #[test]
    fn the_drive_serves_no_more_at_once_than_the_machine_carries() {
        let settings = Settings::new("romefs-a", MEMORY_BYTES);
        let deep = |us: [f64; 4]| deep_shapes().into_iter().zip(us).map(|(shape, us)| found(shape, us, 50.0)).collect::<Vec<_>>();
        assert_eq!(carried_channels(&deep([20.0, 30.0, 20.0, 30.0]), 50_000, &settings).expect("a profile"), None);
        // 16 in 300 us: eight rounds of 50 us are longer than that by far, seven as well; so two at once, or one more.
        assert_eq!(carried_channels(&deep([80.0, 300.0, 80.0, 300.0]), 50_000, &settings).expect("a profile"), Some(2));
        assert_eq!(carried_channels(&deep([80.0, 9000.0, 80.0, 300.0]), 50_000, &settings).expect("a profile"), Some(1));
        assert_eq!(carried_channels(&deep([80.0, 300.0, 80.0, 300.0]), 50_000, &Settings::new("bytefs", 1)).expect("a profile"), None);
    }

    #[test]
    fn the_worst_request_is_named() {
        let shape = Shape { kind: Kind::DurableWrite, bytes: SMALL, depth: 4 };
        let calibrations = [found(shape, 52.0, 50.0).1, found(shape, 60.0, 50.0).1, found(shape, 45.0, 50.0).1];
        let (off, sentence) = worst_of(&calibrations).expect("one is off");
        assert!((off - 0.2).abs() < 1e-9);
        assert_eq!(sentence, "4 KiB write + flush, queue depth 4: loop device 60.0 us, drive 50.0 us (+20.0 %)");
        assert_eq!(worst_of(&calibrations[..1]), None);
        assert_eq!(large_note(&calibrations[0]), None);
        assert!(large_note(&calibrations[1]).is_some_and(|note| note.starts_with("4 KiB write + flush") && note.ends_with("same drive")));
    }

    #[test]
    fn what_fio_says_is_understood() {
        let said = json!({ "jobs": [{
            "read": { "lat_ns": { "percentile": { "50.000000": 40 } } },
            "write": { "lat_ns": { "percentile": { "50.000000": 50 } } },
            "sync": { "lat_ns": { "percentile": { "50.000000": 7 } } },
        }] });
        let median = |kind| median_of(&said, kind).expect("a median");
        assert_eq!([Kind::Read, Kind::Write, Kind::DurableWrite].map(median), [40.0, 50.0, 57.0]);
        assert!(median_of(&json!({ "jobs": [{ "read": {} }] }), Kind::Read).is_err());
    }

    #[test]
    fn every_depth_size_and_kind_is_measured_once() {
        let names: std::collections::BTreeSet<_> = all_shapes().iter().map(Shape::name).collect();
        assert_eq!(names.len(), 18);
        assert!(names.contains("64 KiB write + flush, queue depth 16"));
        let first: Vec<_> = all_shapes().into_iter().filter(|shape| shape.depth == 1).take(4).collect();
        assert_eq!(first, basic_shapes(), "the detour is corrected from the first of all");
    }
}

//! Fig. 7: time and bytes of a write by part, with enough memory zone and with a load of five times its size.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tandemfs_device::Structure;
use tandemfs_format::PairSeed;

use super::requests::{Alignment, REQUEST_BYTES_MAX, Requests, SIZES, Size};
use super::setting::{Setting, Variant, Volume, pattern};
use crate::failure::{Failure, Result};
use crate::figures::time;
use crate::machine;
use crate::output::Outcome;
use crate::scene::Scene;
use crate::stopwatch::{Purpose, Purposes, Stopwatch};
use crate::table::Table;

const RATIO: u64 = 5;
/// The first five in the order of [`Purpose`].
const PARTS: [&str; 6] = ["log write", "block write", "write-back", "journal", "index", "the rest"];

/// Runs both loads.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("breakdown", "where time and bytes of durable unaligned random writes go (Fig. 7)");
    setting.require(setting.device_bytes(setting.file_bytes(RATIO)))?;
    one_load(setting, &mut outcome, "sufficient", "enough memory zone for all data logs")?;
    one_load(setting, &mut outcome, "1-5", "memory zone : load = 1 : 5")?;
    outcome.note(
        "logs are stored while blocks are on their way: *block write* is what is waited for beyond that, so that parts add up to the mean",
    );
    outcome.note("*write-back* of a request is reading a block to compose it anew; *behind* is what the other thread spent on the device meanwhile, a request, and is no part of the mean");
    outcome.note("*the rest* is the processor: planning, checksums, index, locks, record; *index* is metadata stored and loaded, zeroed pages included");
    Ok(outcome)
}

/// Means per request.
struct Broken {
    size: Size,
    mean_ns: f64,
    requests: f64,
    foreground: Purposes,
    behind: Purposes,
}

impl Broken {
    fn a_request(&self, amount: u64) -> f64 {
        amount as f64 / self.requests
    }

    /// In the order of [`PARTS`]; nanoseconds.
    fn times(&self) -> [f64; 6] {
        let parts = self.foreground.map(|spent| self.a_request(spent.ns));
        let rest = (self.mean_ns - parts.iter().sum::<f64>()).max(0.0);
        let [logs, blocks, reads, journal, index] = parts;
        [logs, blocks, reads, journal, index, rest]
    }

    /// The first five of [`PARTS`]; bytes to the device, of both sides. Blocks that the background writes are write-back.
    fn bytes(&self) -> [f64; 5] {
        let mut bytes: [u64; 5] = std::array::from_fn(|part| self.foreground[part].bytes + self.behind[part].bytes);
        bytes[Purpose::BlockWrite as usize] = self.foreground[Purpose::BlockWrite as usize].bytes;
        bytes[Purpose::BlockRead as usize] = self.behind[Purpose::BlockWrite as usize].bytes;
        bytes.map(|bytes| self.a_request(bytes))
    }

    fn behind_ns(&self) -> f64 {
        self.a_request(self.behind.iter().map(|spent| spent.ns).sum())
    }

    fn json(&self, part: &str) -> Value {
        let named =
            |values: &[f64]| -> Value { PARTS.iter().zip(values).map(|(name, value)| ((*name).to_owned(), json!(value))).collect() };
        json!({
            "part": part, "size": self.size.name(), "requests": self.requests, "mean_ns": self.mean_ns,
            "time_ns": named(&self.times()), "bytes": named(&self.bytes()), "behind_ns": self.behind_ns(),
        })
    }
}

fn one_load(setting: &Setting, outcome: &mut Outcome, part: &str, caption: &str) -> Result<()> {
    let sizes: Vec<Broken> = SIZES.into_iter().map(|size| measure(setting, size, part == "sufficient")).collect::<Result<_>>()?;
    let mut times = Table::new(["time", "mean"].into_iter().chain(PARTS).chain(["behind"]));
    let mut bytes = Table::new(["bytes a request", "all"].into_iter().chain(PARTS[..5].iter().copied()));
    for broken in &sizes {
        let parts = broken.times();
        let share = |part: &f64| format!("{} ({:.0} %)", time(*part), 100.0 * part / broken.mean_ns);
        times.row([broken.size.name(), time(broken.mean_ns)].into_iter().chain(parts.iter().map(share)).chain([time(broken.behind_ns())]));
        let parts = broken.bytes();
        let all: f64 = parts.iter().sum();
        let share = |part: &f64| format!("{part:.0} ({:.1} %)", 100.0 * part / all.max(1.0));
        bytes.row([broken.size.name(), format!("{all:.0}")].into_iter().chain(parts.iter().map(share)));
        outcome.record(broken.json(part));
    }
    outcome.table(format!("Time, {caption}"), times);
    outcome.table(format!("Bytes to the device, {caption}"), bytes);
    Ok(())
}

fn measure(setting: &Setting, size: Size, sufficient: bool) -> Result<Broken> {
    let file_bytes = setting.file_bytes(RATIO);
    let scene = Scene::new(&setting.common)?;
    let inner = setting.timed_device(&scene, "device", file_bytes)?;
    let watch = Arc::new(Stopwatch::new(inner));
    let volume = Volume::laid_out(&(watch.clone() as _), file_bytes, &Variant::Default.options())?;
    let mut requests = Requests::new(17, size, Alignment::Byte, file_bytes);
    let data = pattern(REQUEST_BYTES_MAX);
    let load_bytes =
        if sufficient { file_bytes.min(setting.load_bytes(1) * size.mean_bytes().div_ceil(64 << 10)) } else { setting.load_bytes(RATIO) };
    // Log space of an unaligned request: at most about one block, in slots a third larger.
    let enough_until = volume.fs.space().memory.free_bytes / 3;

    let superblock = volume.fs.superblock();
    let counters = volume.fs.drive().counters();
    let (mut count, mut done, mut busy) = (0_u64, 0, 0);
    volume.settle();
    volume.fs.reset_statistics();
    watch.start(&superblock.geometry);
    while done < load_bytes {
        if count % 64 == 0 {
            machine::check()?;
            if sufficient && volume.fs.space().memory.free_bytes < enough_until {
                break;
            }
        }
        let (offset, length) = requests.draw();
        let start = Instant::now();
        volume.write(offset, &data[..length as usize])?;
        busy += start.elapsed().as_nanos() as u64;
        (count, done) = (count + 1, done + length);
    }
    volume.settle();
    let sides = watch.stop();
    let counted = counters.snapshot();
    volume.fs.checkpoint()?;
    let [foreground, behind] = watch.purposes(sides, &superblock.geometry, PairSeed::new(superblock.pair))?;
    volume.fs.unmount()?;
    let logs = counted.by_structure[Structure::DataLog as usize].byte_written_bytes;
    let blocks = counted.by_structure[Structure::Data as usize].block_written_bytes;
    let of_both = |purpose: Purpose| foreground[purpose as usize].bytes + behind[purpose as usize].bytes;
    let seen = (of_both(Purpose::Log), of_both(Purpose::BlockWrite));
    if seen != (logs, blocks) {
        return Err(Failure::new(format!("the watch saw {seen:?} bytes of logs and blocks, the drive counted {:?}", (logs, blocks))));
    }
    Ok(Broken { size, mean_ns: busy as f64 / count as f64, requests: count as f64, foreground, behind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stopwatch::Spent;

    #[test]
    fn parts_add_up_to_the_mean() {
        let spent = |ns, bytes| Spent { ns, bytes };
        let nothing = Spent::default();
        let foreground = [spent(400, 8192), spent(1000, 65536), nothing, spent(100, 512), nothing];
        let behind = [nothing, spent(200, 65536), spent(600, 65536), nothing, nothing];
        let broken = Broken { size: Size::About(4096), mean_ns: 1000.0, requests: 2.0, foreground, behind };
        assert_eq!(broken.times(), [200.0, 500.0, 0.0, 50.0, 0.0, 250.0]);
        assert_eq!(broken.bytes(), [4096.0, 32768.0, 32768.0, 256.0, 0.0]);
        assert_eq!(broken.behind_ns(), 400.0);
    }
}

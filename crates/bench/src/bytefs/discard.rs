//! What discards of freed sectors are worth to a drive with flash (RULES R7, `fs/src/volume/discard.rs`): a drive that is filled in part and
//! then overwritten several times over, with and without.
//!
//! Every overwrite of a block goes to fresh sectors. Without discards the drive takes the old ones for valid, and after one pass over the
//! zone it holds all of it valid, however little the files take.

use serde::Serialize;
use tandemfs_device::FlashCounts;
use tandemfs_device::sync::workers::ModelledHost;
use tandemfs_format::InodeNumber;
use tandemfs_fs::{Discard, FileSystem, MountOptions, WriteOptions};

use super::rig::{Rig, Variant};
use super::setting::Setting;
use crate::failure::{Failure, Result};
use crate::output::Outcome;
use crate::scene::{self, MIB, virtual_time};
use crate::table::Column;
use crate::workloads::random::Random;
use crate::workloads::{Actor, Behind};

/// Share of the block zone that the files take.
const FILLS_PERCENT: [u64; 3] = [50, 75, 90];
/// Overwritten bytes, in block zones.
const PASSES: u64 = 3;
/// Bytes of an overwrite.
const WRITE_BYTES: u64 = 16 << 10;
const FILE_BYTES: u64 = 4 * MIB;
/// A mount discards once a second; here as often as a drive a hundred times as large would, [Y1].
///
/// [Y1]: super
const DISCARD_EVERY_NS: u64 = 10_000_000;
/// The zones at the default scale. The memory zone is on the same flash; what nothing was written to is spare space of the drive.
const BLOCK_ZONE_BYTES: u64 = 512 * MIB;
const MEMORY_ZONE_BYTES: u64 = 32 * MIB;

/// What a run came to.
#[derive(Serialize)]
struct Overwritten {
    fill_percent: u64,
    discard: &'static str,
    zone_bytes: u64,
    user_written_bytes: u64,
    reckoned_ns: u64,
    discarded_bytes: u64,
    pages_programmed: u64,
    pages_moved: u64,
    pages_written: u64,
    blocks_erased: u64,
    erasures_mean: f64,
    erasures_max: u32,
    /// Of an overwrite in microseconds, p50, p99 and p99.9: of those beside no discard, and of those beside one.
    latency_us: [[f64; 3]; 2],
}

impl Overwritten {
    /// An amount for each byte written, which is of so many bytes itself.
    fn a_byte(&self, amount: u64, bytes: f64) -> String {
        format!("{:.2}", amount as f64 * bytes / self.user_written_bytes as f64)
    }

    fn latency(&self, side: usize) -> String {
        match self.latency_us[side] {
            [p50, ..] if p50.is_nan() => "–".to_owned(),
            [p50, p99, p999] => format!("{p50:.0}, {p99:.0}, {p999:.0}"),
        }
    }
}

/// Runs each fill without and with discards.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("discard", "overwrites of a drive with and without discards of freed sectors");
    let zone_bytes = setting.share(BLOCK_ZONE_BYTES).max(64 * MIB).next_multiple_of(2 * MIB);
    let mut runs = Vec::new();
    for fill_percent in FILLS_PERCENT {
        for (name, discard) in [("none", Discard::None), ("batched", Discard::Batched)] {
            runs.push(overwrite(setting, zone_bytes, fill_percent, (name, discard))?);
        }
    }
    let caption = format!(
        "block zone of {} MiB, {PASSES} times its size in durable aligned overwrites of {} KiB at random places",
        zone_bytes / MIB,
        WRITE_BYTES >> 10
    );
    let columns: [Column<'_, Overwritten>; 10] = [
        ("files take", &|run| format!("{} %", run.fill_percent)),
        ("discard", &|run| run.discard.to_owned()),
        ("MB/s, reckoned", &|run| format!("{:.1}", run.user_written_bytes as f64 * 1e3 / run.reckoned_ns as f64)),
        ("flash bytes programmed / written", &|run| run.a_byte(run.pages_programmed, 4096.0)),
        ("pages moved / written", &|run| run.a_byte(run.pages_moved, 4096.0)),
        ("blocks erased, a GiB written", &|run| {
            format!("{:.0}", run.blocks_erased as f64 * (1 << 30) as f64 / run.user_written_bytes as f64)
        }),
        ("erasures of a block, mean (most)", &|run| format!("{:.1} ({})", run.erasures_mean, run.erasures_max)),
        ("discarded / written", &|run| run.a_byte(run.discarded_bytes, 1.0)),
        ("an overwrite alone, us: p50, p99, p99.9", &|run| run.latency(0)),
        ("beside a discard", &|run| run.latency(1)),
    ];
    outcome.listed(caption, &runs, &columns)?;
    outcome.note("counted from the first overwrite on; one writer; batched: what was freed is discarded at intervals of reckoned time, scaled from a mount's one second, on a clock of its own");
    outcome.note("discards themselves take the time of their commands, and the flash no time; a real drive may differ in both");
    Ok(outcome)
}

fn overwrite(setting: &Setting, zone_bytes: u64, fill_percent: u64, (name, discard): (&'static str, Discard)) -> Result<Overwritten> {
    let rig = Rig::new(setting, Variant::Whole);
    let _host = ModelledHost::new();
    let (_scene, image, device) = rig.formatted(setting, MEMORY_ZONE_BYTES, zone_bytes)?;
    let clock = virtual_time(&*device)?;
    let options = MountOptions { discard, ..rig.mount_options() };
    let fs = rig.mount_with(device.clone(), &options)?;
    let files = lay_out(&fs, zone_bytes * fill_percent / 100)?;

    let before = flash(&fs)?;
    let discard_every_ns = (discard == Discard::Batched).then(|| setting.share(DISCARD_EVERY_NS));
    let mut behind = Behind::new(&fs, clock, 1);
    behind.discard_every_ns = discard_every_ns;
    let (mut random, data) = (Random::new(7, 0), vec![0x5a; WRITE_BYTES as usize]);
    let (mut left, mut took_ns) = (PASSES * zone_bytes / WRITE_BYTES, [Vec::new(), Vec::new()]);
    let user_written_bytes = left * WRITE_BYTES;
    let writer: Actor<'_> = Box::new(|| {
        let file = files[random.below(files.len() as u64) as usize];
        let offset = random.below(FILE_BYTES / WRITE_BYTES) * WRITE_BYTES;
        let (begun, was_discarding) = (clock.now_ns(), behind.is_discarding());
        scene::write(&fs, file, offset, &data, WriteOptions::default())?;
        took_ns[usize::from(was_discarding || behind.is_discarding())].push(clock.now_ns() - begun);
        behind.tend()?;
        left -= 1;
        Ok(left > 0)
    });
    let reckoned_ns = behind.beside(vec![writer])?;
    let flash = flash(&fs)?.since(&before);
    let discarded_bytes = behind.discarded_bytes();
    drop(behind);
    fs.unmount()?;
    drop((fs, device));
    let wear = image.wear()?;
    let latency_us = took_ns.map(|mut took_ns| {
        took_ns.sort_unstable();
        let share = |parts: usize| took_ns.get(took_ns.len() * parts / 1000).map_or(f64::NAN, |ns| *ns as f64 / 1e3);
        [share(500), share(990), share(999)]
    });
    Ok(Overwritten {
        fill_percent,
        discard: name,
        zone_bytes,
        user_written_bytes,
        reckoned_ns,
        discarded_bytes,
        pages_programmed: flash.pages_programmed,
        pages_moved: flash.pages_moved,
        pages_written: flash.pages_written,
        blocks_erased: flash.blocks_erased,
        erasures_mean: wear.erasures_mean,
        erasures_max: wear.erasures_max,
        latency_us,
    })
}

/// Makes files that take this many bytes.
fn lay_out(fs: &FileSystem, bytes: u64) -> Result<Vec<InodeNumber>> {
    let data = vec![0xa5; MIB as usize];
    (0..bytes / FILE_BYTES)
        .map(|number| {
            let file = fs.create(InodeNumber::ROOT, format!("{number}").as_bytes(), &scene::new_file())?.inode;
            for offset in (0..FILE_BYTES).step_by(MIB as usize) {
                scene::write(fs, file, offset, &data, WriteOptions::default())?;
            }
            Ok(file)
        })
        .collect()
}

fn flash(fs: &FileSystem) -> Result<FlashCounts> {
    fs.drive().drive_counts().map(|counts| counts.flash).ok_or_else(|| Failure::new("the drive counts nothing"))
}

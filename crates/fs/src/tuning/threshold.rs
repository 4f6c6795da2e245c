//! Where a write is split between the paths (RomeFS §3.3). The paper fixes the threshold by hand, where the latencies of its paths are
//! closest, and leaves the choice to future work; `threshold=auto` chooses:
//!
//! [TH1] At the mount, and when a mount in use is told `auto`, both paths write the sizes from a block to 1 MiB into free space that is given back, so no data can be harmed. The
//!       threshold is the smallest size that the block path writes at least as fast; if there is none, the largest one measured.
//! [TH2] The fuller the memory zone, the lower the threshold: it halves in even steps from half of the zone free to the limit of
//!       write-back, where it is the block size. Large writes then go by blocks, and leave room to writes that suit only the byte path.
//! [TH3] One write uses one threshold, read once. The setting may change between two writes (`settings.rs`).

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tandemfs_device::{BlockRequest, Source, Structure};
use tandemfs_format::mapping::{LOG_BYTES_MAX, SlotClass};
use tandemfs_format::{LineAddress, SECTOR_BYTES, Sector};

use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::settings::Settings;
use crate::space;
use crate::sync::Mutex;
use crate::types::Threshold;
use crate::volume::Volume;

/// Largest threshold that is chosen.
const BYTES_MAX: u32 = 1 << 20;
/// Free share of the data area below which the threshold is lowered, in percent ([TH2]).
const AMPLE_PERCENT: u64 = 50;
/// Writes per size; the median counts.
pub(super) const ROUNDS: usize = 5;
/// No further size is measured after this time, so that a slow drive does not delay the mount.
const TIME_MAX: Duration = Duration::from_millis(50);
/// Slots that the byte path writes to, in turn.
const SLOTS: usize = 16;

/// The latencies of one size, as measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathLatency {
    /// Bytes written.
    pub size_bytes: u32,
    /// Median of the byte path: stores, flushed and fenced, in nanoseconds.
    pub byte_path_ns: u64,
    /// Median of the block path, flushed, in nanoseconds.
    pub block_path_ns: u64,
}

/// The threshold, and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThresholdReport {
    /// The threshold in force for the next write, in bytes; 0 if everything goes by blocks.
    pub bytes: u32,
    /// The value that the mount chose or was given, in bytes.
    pub chosen_bytes: u32,
    /// Measured latencies, smallest size first; empty if nothing was measured.
    pub measured: Vec<PathLatency>,
    /// One sentence for users.
    pub reason: String,
}

/// The threshold of a mount.
#[derive(Debug)]
pub(crate) struct Splitting {
    block_bytes: u32,
    /// What `Auto` has chosen; the block size before it was measured.
    auto_bytes: AtomicU32,
    measured: Mutex<Measured>,
}

/// What the last measurement found.
#[derive(Debug, Default)]
struct Measured {
    latencies: Vec<PathLatency>,
    /// Why nothing was measured.
    unmeasured: Option<String>,
}

impl Splitting {
    /// Nothing is measured yet.
    pub(crate) fn new(block_bytes: u32) -> Self {
        Self { block_bytes, auto_bytes: AtomicU32::new(block_bytes), measured: Mutex::default() }
    }

    /// Whether a threshold suits blocks of this size.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not a multiple of the block size.
    pub(crate) fn check(threshold: Threshold, block_bytes: u32) -> Result<()> {
        match threshold {
            Threshold::Bytes(bytes) if bytes == 0 || bytes % block_bytes != 0 => {
                Err(Error::InvalidArgument("the threshold is not a multiple of the block size"))
            }
            _ => Ok(()),
        }
    }

    /// Measures both paths, for `Auto` ([TH1]). Writes to free space of the device only. What an earlier measurement has chosen stays if this one fails.
    pub(crate) fn calibrate(&self, volume: &Volume) {
        let found = measure(volume, self.block_bytes);
        let mut measured = self.measured.lock();
        match found {
            Ok(latencies) => {
                self.auto_bytes.store(meeting_point(&latencies, self.block_bytes), Relaxed);
                *measured = Measured { latencies, unmeasured: None };
            }
            Err(error) if measured.latencies.is_empty() => measured.unmeasured = Some(error.to_string()),
            Err(error) => tracing::warn!(%error, "the paths could not be measured again: the threshold stays as it was measured before"),
        }
        let Measured { latencies, unmeasured } = &*measured;
        tracing::info!(bytes = self.auto_bytes.load(Relaxed), measured = ?latencies, unmeasured, "threshold");
    }

    /// The threshold of the next write ([TH3]); `None` if everything goes by blocks.
    pub(crate) fn bytes(&self, volume: &Volume, settings: &Settings) -> Option<u32> {
        self.bytes_of(settings.threshold(), volume, settings)
    }

    fn bytes_of(&self, threshold: Threshold, volume: &Volume, settings: &Settings) -> Option<u32> {
        match threshold {
            Threshold::BlocksOnly => None,
            Threshold::BlockSize => Some(self.block_bytes),
            Threshold::Bytes(bytes) => Some(bytes),
            Threshold::Auto => {
                let chosen = self.auto_bytes.load(Relaxed);
                let free = || volume.memory.free_data_percent();
                let is_above = chosen > self.block_bytes;
                Some(if is_above { lowered(chosen, self.block_bytes, free(), settings.write_back_percent().into()) } else { chosen })
            }
        }
    }

    pub(crate) fn report(&self, volume: &Volume, settings: &Settings) -> ThresholdReport {
        let measured = self.measured.lock();
        let (threshold, free) = (settings.threshold(), volume.memory.free_data_percent());
        let chosen = match threshold {
            Threshold::Bytes(bytes) => bytes,
            Threshold::Auto => self.auto_bytes.load(Relaxed),
            Threshold::BlockSize | Threshold::BlocksOnly => self.block_bytes,
        };
        let bytes = self.bytes_of(threshold, volume, settings).unwrap_or(0);
        let at = |size| measured.latencies.iter().find(|latency| latency.size_bytes == size);
        let reason = match (threshold, &measured.unmeasured, at(chosen)) {
            (Threshold::BlockSize, ..) => "the block size".to_owned(),
            (Threshold::Bytes(_), ..) => "as the mount was told".to_owned(),
            (Threshold::BlocksOnly, ..) => "everything goes by blocks, as the mount was told".to_owned(),
            (Threshold::Auto, Some(error), _) => format!("the block size, since the paths could not be measured: {error}"),
            (Threshold::Auto, None, None) => "the block size, since the mount is read-only".to_owned(),
            (Threshold::Auto, None, Some(latency)) => {
                let PathLatency { byte_path_ns, block_path_ns, .. } = latency;
                let met = if byte_path_ns >= block_path_ns { "the smallest size" } else { "no smaller size" };
                format!("{met} that the block path writes as fast: {block_path_ns} ns for {chosen} B, {byte_path_ns} ns by bytes")
            }
        };
        let lowered = format!("; lowered since {free} % of the data area is free");
        ThresholdReport {
            bytes,
            chosen_bytes: chosen,
            measured: measured.latencies.clone(),
            reason: if bytes != 0 && bytes < chosen { reason + &lowered } else { reason },
        }
    }
}

/// The smallest size that the block path writes as fast as the byte path ([TH1]).
fn meeting_point(measured: &[PathLatency], block_bytes: u32) -> u32 {
    let met = measured.iter().find(|latency| latency.block_path_ns <= latency.byte_path_ns);
    met.or(measured.last()).map_or(block_bytes, |latency| latency.size_bytes)
}

/// [TH2]: `chosen`, halved in even steps on the way from ample free space down to the limit.
fn lowered(chosen: u32, block_bytes: u32, free_percent: u64, limit_percent: u64) -> u32 {
    let halvings = u64::from((chosen / block_bytes).ilog2());
    let way = AMPLE_PERCENT.saturating_sub(limit_percent).max(1);
    let gone = AMPLE_PERCENT.saturating_sub(free_percent).min(way);
    (chosen >> (halvings * gone).div_ceil(way)).max(block_bytes)
}

/// Latencies of sizes from a block to 1 MiB, as far as free space and time allow.
fn measure(volume: &Volume, block_bytes: u32) -> Result<Vec<PathLatency>> {
    if !volume.geometry.has_block_zone() {
        return Err(Error::NotSupported("there is no block zone"));
    }
    let mut held = Held { volume, slots: Vec::new(), sectors: None };
    for _ in 0..SLOTS {
        held.slots.push(volume.memory.take_slot(SlotClass::Page, Need::Growth)?);
    }
    let mut count = BYTES_MAX.max(block_bytes) as usize / SECTOR_BYTES;
    let sector = loop {
        match volume.sectors.take(count as u64, Need::Growth) {
            Ok(sector) => break sector,
            Err(_) if count * SECTOR_BYTES > block_bytes as usize => count /= 2,
            Err(error) => return Err(error),
        }
    };
    held.sectors = Some((sector, count as u64));
    let bytes = vec![0x5a; count * SECTOR_BYTES]; // a drive may answer zeros without writing them
    let now_ns = || volume.drive.now_ns();
    let (end, mut measured) = (now_ns() + TIME_MAX.as_nanos() as u64, Vec::new());
    let mut size = block_bytes as usize;
    while size <= bytes.len() && now_ns() < end {
        let byte_path_ns = median_ns(volume, || by_bytes(volume, &held.slots, &bytes[..size]))?;
        let block_path_ns = median_ns(volume, || by_blocks(volume, sector, &bytes[..size], block_bytes as usize))?;
        measured.push(PathLatency { size_bytes: size as u32, byte_path_ns, block_path_ns });
        size *= 2;
    }
    Ok(measured)
}

/// How long something takes on the drive's clock, in nanoseconds: the median of some rounds.
pub(super) fn median_ns(volume: &Volume, mut run: impl FnMut() -> Result<()>) -> Result<u64> {
    let mut times = [0; ROUNDS];
    for time in &mut times {
        let start = volume.drive.now_ns();
        run()?;
        *time = volume.drive.now_ns() - start;
    }
    times.sort_unstable();
    Ok(times[ROUNDS / 2])
}

fn by_bytes(volume: &Volume, slots: &[LineAddress], bytes: &[u8]) -> Result<()> {
    let mut in_flight = tandemfs_device::Lines::none();
    for (slot, piece) in slots.iter().cycle().zip(bytes.chunks(LOG_BYTES_MAX)) {
        let lines = volume.drive.store(Structure::DataLog, *slot, piece)?;
        in_flight = in_flight.and(volume.drive.flush_lines(lines));
    }
    drop(volume.drive.fence(in_flight));
    Ok(())
}

fn by_blocks(volume: &Volume, sector: Sector, bytes: &[u8], block_bytes: usize) -> Result<()> {
    let request = |(index, bytes)| {
        let sector = sector.nth((index * block_bytes / SECTOR_BYTES) as u64);
        BlockRequest::Write { sector, buffer: Source::Private(bytes) }
    };
    let mut requests: Vec<_> = bytes.chunks(block_bytes).enumerate().map(request).collect();
    let written = volume.drive.transfer(Structure::Data, &mut requests, &mut || {})?;
    drop(volume.drive.flush_blocks(written)?);
    Ok(())
}

/// Space that the measurement writes to; freed on drop.
struct Held<'v> {
    volume: &'v Volume,
    slots: Vec<LineAddress>,
    sectors: Option<(Sector, u64)>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for slot in &self.slots {
            self.volume.give_back(space::slot(*slot, SlotClass::Page.lines()));
        }
        if let Some((sector, count)) = self.sectors {
            self.volume.give_back(space::sectors(sector, count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u32 = 1 << 10;

    fn latency(size_bytes: u32, byte_path_ns: u64, block_path_ns: u64) -> PathLatency {
        PathLatency { size_bytes, byte_path_ns, block_path_ns }
    }

    #[test]
    fn the_paths_meet_at_the_smallest_size_that_blocks_write_as_fast() {
        let measured = [latency(16 * KIB, 7, 14), latency(32 * KIB, 12, 18), latency(64 * KIB, 23, 23), latency(128 * KIB, 40, 30)];
        assert_eq!(meeting_point(&measured, 16 * KIB), 64 * KIB);
        assert_eq!(meeting_point(&measured[..2], 16 * KIB), 32 * KIB, "they do not meet: the largest");
        assert_eq!(meeting_point(&[], 16 * KIB), 16 * KIB);
    }

    #[test]
    fn the_threshold_falls_to_the_block_size_as_the_zone_fills() {
        let at = |free| lowered(512 * KIB, 64 * KIB, free, 10);
        assert_eq!([at(100), at(50)], [512 * KIB; 2]);
        assert_eq!([at(49), at(37), at(36), at(23), at(10), at(0)].map(|bytes| bytes / KIB), [256, 256, 128, 64, 64, 64]);
        for free in 0..100 {
            assert!(at(free) <= at(free + 1) && at(free) % (64 * KIB) == 0, "{free}");
        }
        assert_eq!(lowered(64 * KIB, 64 * KIB, 3, 10), 64 * KIB);
    }

    #[test]
    fn a_threshold_is_a_multiple_of_the_block_size() {
        for bytes in [0, 4 * KIB, 65 * KIB] {
            assert!(Splitting::check(Threshold::Bytes(bytes), 64 * KIB).is_err(), "{bytes}");
        }
        for threshold in [Threshold::Bytes(192 * KIB), Threshold::BlockSize, Threshold::Auto, Threshold::BlocksOnly] {
            assert!(Splitting::check(threshold, 64 * KIB).is_ok(), "{threshold:?}");
        }
    }
}

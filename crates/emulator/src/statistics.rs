//! Statistics of an emulated drive with firmware: counters of its whole life, wear, staged data.

use std::path::Path;

use tandemfs_device::{DeviceError, DriveCounts, MediaCounts};

use crate::image_file::{OpenImage, OpenOptions, refused};
use crate::media::Lifetime;
use crate::open::{open_firmware, open_host_cache};
use crate::write_log;

/// Wear of the flash.
#[derive(Debug, Clone, PartialEq)]
pub struct WearStatistics {
    /// Erasures of the block that was erased least, of those in use.
    pub erasures_min: u32,
    /// Of the one that was erased most.
    pub erasures_max: u32,
    /// The mean.
    pub erasures_mean: f64,
    /// Erasures after which a block is taken out of use.
    pub endurance_erasures: u32,
    /// Blocks, bad ones included.
    pub blocks: u32,
    /// Blocks that are erased and wait for pages.
    pub free_blocks: u32,
    /// Blocks that were bad when the drive was made.
    pub bad_blocks_from_factory: u32,
    /// Blocks taken out of use since.
    pub bad_blocks_grown: u32,
    /// Erasures that one part of the histogram spans.
    pub histogram_step_erasures: u32,
    /// Blocks in use by erasures.
    pub histogram: Vec<u32>,
}

/// Fill of the write log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogStatistics {
    /// Lines that take room in the log, valid or not.
    pub lines: u64,
    /// Lines that it has room for.
    pub capacity_lines: u64,
    /// Lines of transactions that are not committed.
    pub uncommitted_lines: u64,
    /// Pages that have lines in the log.
    pub pages: u64,
    /// Transactions that the TxLog names.
    pub transactions: u64,
    /// Transactions that it has room for.
    pub capacity_transactions: u64,
    /// Host memory of the index, in bytes.
    pub index_bytes: u64,
}

/// Statistics of a drive.
#[derive(Debug, Clone, PartialEq)]
pub struct DriveStatistics {
    /// Since the drive was made.
    pub lifetime: DriveCounts,
    /// Of the flash.
    pub wear: WearStatistics,
    /// Pages in the write buffer, that wait to be programmed.
    pub buffered_pages: u32,
    /// Of the write log, where there is one.
    pub log: Option<LogStatistics>,
    /// Pages in the page cache, and how many it has room for, where there is one.
    pub cached_pages: Option<(u64, u64)>,
    /// The reason why the drive is read-only, if it is.
    pub read_only_reason: Option<String>,
}

impl DriveStatistics {
    /// Flash pages programmed for each that was written (by the host or from the log); none where nothing was written. Below 1 where pages
    /// are written again while they wait in the write buffer.
    pub fn write_amplification(&self) -> Option<f64> {
        let flash = &self.lifetime.flash;
        (flash.pages_written > 0).then(|| flash.pages_programmed as f64 / flash.pages_written as f64)
    }
}

/// Statistics of an image's drive. No process may have it open for writing.
///
/// Errors: those of opening it; a drive without firmware.
pub fn statistics(path: &Path) -> Result<DriveStatistics, DeviceError> {
    let options = OpenOptions { read_only: true, shared: true, timing: false, ..OpenOptions::default() };
    let image = OpenImage::open(path, &options)?;
    let condition = match image.info.firmware {
        None => return Err(refused(path, format!("profile '{}' has no firmware that counts anything", image.info.profile))),
        Some(model) if model.staging.is_host_cache() => open_host_cache(image, &options)?.condition(),
        Some(_) => open_firmware(image, &options)?.condition(),
    };
    let wear = condition.wear;
    Ok(DriveStatistics {
        lifetime: condition.lifetime,
        wear: WearStatistics {
            erasures_min: wear.erasures_min,
            erasures_max: wear.erasures_max,
            erasures_mean: wear.erasures_mean,
            endurance_erasures: wear.endurance_erasures,
            blocks: wear.blocks,
            free_blocks: wear.free_blocks,
            bad_blocks_from_factory: wear.bad_blocks_from_factory,
            bad_blocks_grown: wear.bad_blocks_grown,
            histogram_step_erasures: wear.histogram_step_erasures,
            histogram: wear.histogram.to_vec(),
        },
        buffered_pages: condition.buffered_pages,
        log: condition.log.map(|fill| LogStatistics {
            lines: fill.lines,
            capacity_lines: fill.capacity_lines,
            uncommitted_lines: fill.uncommitted_lines,
            pages: fill.pages,
            transactions: fill.transactions,
            capacity_transactions: fill.capacity_transactions,
            index_bytes: fill.index_bytes,
        }),
        cached_pages: condition.cached_pages,
        read_only_reason: condition.read_only_reason,
    })
}

/// What the model of CPU caches and persistent memory of an image's drive has counted since it was made, or `None` where it has no such model. No process
/// may have it open for writing.
///
/// Errors: those of opening it.
pub fn media_statistics(path: &Path) -> Result<Option<MediaCounts>, DeviceError> {
    let options = OpenOptions { read_only: true, shared: true, timing: false, ..OpenOptions::default() };
    let image = OpenImage::open(path, &options)?;
    let unread = |error| refused(path, format!("its counters cannot be read: {error}"));
    image.info.media.map(|_| Lifetime::read(&image.file)).transpose().map_err(unread)
}

/// How fast the index of a full write log is and what it takes, in time of the CPU (ByteFS §4.3 has 89 ns and 21 MB).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogFigures {
    /// Lines in the log.
    pub lines: u64,
    /// Pages that they belong to.
    pub pages: u64,
    /// A store of a line, its place in the index included: the mean while the log filled up.
    pub append_ns: f64,
    /// A look-up of a line that the log has.
    pub hit_ns: f64,
    /// Of one that it has not.
    pub miss_ns: f64,
    /// A load of a line that it has: look-up and copy.
    pub load_ns: f64,
    /// Host memory of the index, in bytes.
    pub index_bytes: u64,
    /// Opening the full log: scan and index.
    pub open_seconds: f64,
    /// RECOVER of it, without the time of a flash.
    pub recover_seconds: f64,
}

/// Fills a log of this size in host memory, with runs of `run_lines` lines at random places of a drive of so many pages, and measures it.
pub fn measure_log(log_bytes: u64, logical_pages: u64, run_lines: u64) -> Result<LogFigures, DeviceError> {
    let figures = write_log::measure(log_bytes, logical_pages, run_lines)?;
    Ok(LogFigures {
        lines: figures.lines,
        pages: figures.pages,
        append_ns: figures.append_ns,
        hit_ns: figures.hit_ns,
        miss_ns: figures.miss_ns,
        load_ns: figures.load_ns,
        index_bytes: figures.index_bytes,
        open_seconds: figures.open_seconds,
        recover_seconds: figures.recover_seconds,
    })
}

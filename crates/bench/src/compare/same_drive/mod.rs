//! The same drive for all file systems: the block path of an emulated drive becomes a kernel block device, so that kernel file systems are
//! measured on the same drive as TandemFS.
//!
//! [SD1] The peers' drive is a second emulated drive with the same parameters, in its own process (`server.rs`). Its block path is a file
//!       of a FUSE server, with a loop device with O_DIRECT over that file.
//! [SD2] The detour through FUSE and loop device is measured (`calibrate.rs`) and subtracted from each reply (`detour.rs`). On the raw loop
//!       device fio must see the latency of TandemFS's own block path within 5 %; otherwise nothing is compared.
//! [SD3] A detour cannot be subtracted from a shorter service time. So the common drive of *all* is compared at several latencies of a block
//!       command, each with its own way ([`Way`]): a least time for each block command, for TandemFS too (and for COMMIT on a drive with
//!       transactions), and a limit on concurrent commands and on bandwidth that this machine can sustain. The byte path is unchanged. A
//!       latency that the machine cannot carry is left out.
//! [SD4] The peers use the drive's memory too. For them it is a cache in front of the block path (RomeFS §4.1, transparent cache), as large
//!       as TandemFS's memory zone or staging, and as durable as the byte path: a write is complete when it is in the cache.
//!       - Without firmware (`romefs-a`, `cmm-h`): a write costs a store of its size into the memory (RomeFS Table 3: 2.56 us for 4 KiB), and a
//!         read hit a load (`cache.rs`), not a block command. The drive writes it back behind its answer. Writes that find the cache
//!         full of data that is still written back wait for a block command. The detour cannot be subtracted from so short a time,
//!         so on this machine a cached write takes as long as the detour: this favours TandemFS, and the report says how much.
//!         TandemFS's own block path has no such hits.
//!       - With firmware (`bytefs*`, `hybrid-cache`): the DRAM of the write log or page cache is a write buffer instead: pages rewritten
//!         there are programmed once, and reads of buffered pages do not access the flash.
//! [SD5] Traffic is counted at the drive.

pub mod answers;
pub mod cache;
pub mod calibrate;
pub mod detour;
pub mod kernel_threads;
pub mod loop_device;
pub mod protocol;
pub mod server;
pub mod way;

use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tandemfs_emulator::{CreateOptions, ModelOptions, Staging, default_host_cache_bytes};
use tandemfs_format::geometry::MEMORY_BYTES_MIN;
use tempfile::TempDir;

use self::detour::Detour;
use self::protocol::{Answer, Ask, Order};
use self::way::{Carried, Times, Way};
use super::awake;
use super::backing::Backing;
use super::child::{self, Child};
use super::record::Traffic;
use crate::failure::{Failure, Result};

/// How long the drive's process may take to answer, including loop device and mount.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const PAGE: u64 = 4096;
const MOUNTPOINT: &str = "mount";

/// Settings of the common drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Profile of the emulator.
    pub profile: String,
    /// TandemFS's memory zone, in bytes.
    pub memory_bytes: u64,
    /// The way to its block path ([SD3]); `None` for the profile's own.
    pub way: Option<Way>,
    /// The detour subtracted from the peers' replies; `calibrate` finds it.
    pub detour: Detour,
    /// Wake-up time of a CPU when the settings were made; `None` with one CPU.
    pub wake_up: Option<Duration>,
}

impl Settings {
    /// An unchanged profile.
    pub fn new(profile: &str, memory_bytes: u64) -> Self {
        Self { profile: profile.to_owned(), memory_bytes, way: None, detour: Detour::default(), wake_up: None }
    }

    /// Whether CPUs are kept from halting while a single client uses the peers' drive.
    pub fn is_kept_awake(&self) -> bool {
        awake::is_needed(self.wake_up)
    }

    fn model(&self) -> Result<&'static tandemfs_emulator::Profile> {
        let profile = tandemfs_emulator::profile(&self.profile).filter(|profile| profile.has_timing());
        profile.ok_or_else(|| {
            Failure::new(format!("the same drive needs a profile with a timing model, and '{}' has none; name romefs-a", self.profile))
        })
    }

    /// The latency of the profile's own block writes, in microseconds.
    ///
    /// # Errors
    /// A profile without timing.
    pub fn own_us(&self) -> Result<u32> {
        Ok((Self { way: None, ..self.clone() }.times(false)?.command_ns / 1_000).max(1))
    }

    /// These settings with block commands of so many microseconds; `None` if the machine does not carry them ([SD3]).
    ///
    /// # Errors
    /// A profile without timing.
    pub fn with_latency(&self, us: u32, carried: &[Carried]) -> Result<Option<Self>> {
        let (read, write) = (self.times(true)?, self.times(false)?);
        let way = way::carrying(carried, us * 1_000, |is_read| if is_read { read } else { write });
        Ok(way.map(|way| Self { way: Some(way), ..self.clone() }))
    }

    /// The times of a block request on this drive.
    pub fn times(&self, is_read: bool) -> Result<Times> {
        let profile = self.model()?;
        let plain = profile.timing.map(|timing| {
            let block = timing.block;
            let (command_ns, bytes_per_second) = match is_read {
                true => (block.read_latency_ns, block.read_bytes_per_second),
                false => (block.write_latency_ns, block.write_bytes_per_second),
            };
            Times { command_ns, bytes_per_second, commands_at_once: Some(block.channel_count), flash_ns: 0 }
        });
        let firmware = profile.firmware.and_then(|model| model.timing).map(|timing| Times {
            command_ns: timing.command_ns,
            bytes_per_second: if is_read { timing.read_bytes_per_second } else { timing.write_bytes_per_second },
            commands_at_once: Some(timing.commands_at_once).filter(|limit| *limit > 0),
            flash_ns: if is_read { timing.flash_read_ns } else { 0 },
        });
        let times = firmware.or(plain).ok_or_else(|| Failure::new(format!("'{}' has no times", self.profile)))?;
        Ok(self.way.map_or(times, |way| times.over(&way)))
    }

    /// Model options for an image of this drive.
    fn chosen(&self) -> ModelOptions {
        ModelOptions {
            block_command_ns_min: self.way.map(|way| way.command_ns),
            commands_at_once: self.way.map(|way| way.commands_at_once),
            link_bytes_per_second_max: self.way.map(|way| way.bytes_per_second),
            ..ModelOptions::default()
        }
    }

    /// Makes TandemFS's drive: the profile with the settings of the common drive ([SD3]), which are stored in the image.
    ///
    /// # Errors
    /// The profile has no timing model, or the image cannot be made.
    pub fn create_own_image(&self, path: &Path, block_bytes: u64) -> Result<()> {
        self.model()?; // a profile without times is refused
        let options = CreateOptions { profile: self.profile.clone(), memory_bytes: self.memory_bytes, block_bytes };
        tandemfs_emulator::create_with(path, &options, &self.chosen())?;
        Ok(())
    }

    /// Makes the peers' drive: the same, with memory as in [SD4]. Returns the bytes of the cache that the server models.
    fn create_peer_image(&self, path: &Path, block_bytes: u64) -> Result<u64> {
        let Some(model) = self.model()?.firmware else {
            // The memory region itself is unused: the cache is only a model, and all bytes are in the block region.
            let small = Self { memory_bytes: MEMORY_BYTES_MIN, ..self.clone() };
            small.create_own_image(path, block_bytes)?;
            return Ok(self.memory_bytes);
        };
        // The same flash. The staging DRAM of TandemFS's drive becomes write buffer; at least one page of staging remains.
        let staged = |bytes: u64| bytes.min((self.memory_bytes + block_bytes) / 4);
        let mut chosen = self.chosen();
        let dram_bytes = match model.staging {
            Staging::WriteLog { log_bytes, transaction_log_bytes, .. } => {
                (chosen.write_log_bytes, chosen.transaction_log_bytes) = (Some(PAGE), Some(PAGE));
                staged(log_bytes) + transaction_log_bytes - 2 * PAGE
            }
            Staging::Cache { cache_bytes, .. } => {
                chosen.cache_bytes = Some(PAGE);
                staged(cache_bytes) - PAGE
            }
            // Peers have no use for memory that the host manages.
            Staging::HostCache { .. } => {
                chosen.cache_bytes = Some(PAGE);
                default_host_cache_bytes(block_bytes) - PAGE
            }
        };
        chosen.write_buffer_pages = Some(model.write_buffer_pages + u32::try_from(dram_bytes / PAGE)?);
        let options = CreateOptions { profile: self.profile.clone(), memory_bytes: self.memory_bytes, block_bytes };
        tandemfs_emulator::create_with(path, &options, &chosen)?;
        Ok(0)
    }
}

/// A drive whose block path is a kernel block device; dropping removes everything.
pub struct Drive {
    loop_device: PathBuf,
    process: Mutex<Child>,
    /// Restored if the process was killed.
    kernel_threads: kernel_threads::Before,
    /// Removed after the process has exited.
    directory: TempDir,
}

/// Makes a fresh drive with a block zone of `bytes` in a directory and attaches it to the kernel.
///
/// # Errors
/// The profile cannot be used, there is no room, or this user cannot use FUSE or loop devices.
pub fn start(directory: &Path, bytes: u64, settings: &Settings) -> Result<Drive> {
    start_with(directory, bytes, settings, Memory::AsCache)
}

/// Use of the drive's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// A cache for the peers ([SD4]).
    AsCache,
    /// As for TandemFS: not visible on the block path.
    AsTandemfs,
}

fn start_with(directory: &Path, bytes: u64, settings: &Settings, memory: Memory) -> Result<Drive> {
    let named = |error| Failure::new(format!("{}: {error}", directory.display()));
    let directory = tempfile::Builder::new().prefix("tandemfs-drive-").tempdir_in(directory).map_err(named)?;
    let (image, mountpoint) = (directory.path().join("image"), directory.path().join(MOUNTPOINT));
    std::fs::create_dir(&mountpoint)?;
    let cache_bytes = match memory {
        Memory::AsCache => settings.create_peer_image(&image, bytes)?,
        Memory::AsTandemfs => settings.create_own_image(&image, bytes).map(|()| 0)?,
    };
    let order = Order { image, mountpoint, directory: directory.path().to_owned(), cache_bytes, detour: settings.detour };
    let mut process = Child::start(&mut child::Order::SameDrive(order).command()?, None)?;
    match process.hear(ANSWER_WITHIN)? {
        Answer::Ready { loop_device, kernel_threads } => Ok(Drive { loop_device, process: Mutex::new(process), kernel_threads, directory }),
        Answer::Failed(sentence) => Err(Failure::new(sentence)),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &Answer) -> Failure {
    Failure::new(format!("the drive's process answered {answer:?}"))
}

impl Drive {
    /// The process that emulates the drive: its CPU time is not the file system's.
    pub fn process_id(&self) -> u32 {
        self.process.lock().id()
    }

    /// Sets the detour that is subtracted from replies from now on.
    ///
    /// # Errors
    /// The process does not answer.
    pub fn set_detour(&self, detour: Detour) -> Result<()> {
        match self.asked(Ask::Detour(detour))? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn asked(&self, ask: Ask) -> Result<Answer> {
        let mut process = self.process.lock();
        process.ask(&ask)?;
        process.hear(ANSWER_WITHIN)
    }
}

impl Backing for Drive {
    fn block_device(&self) -> &Path {
        &self.loop_device
    }

    fn traffic(&self) -> Result<Traffic> {
        match self.asked(Ask::Traffic)? {
            Answer::Traffic(traffic) => Ok(traffic),
            other => Err(unexpected(&other)),
        }
    }

    fn process(&self) -> Option<u32> {
        Some(self.process_id())
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        // `End` says that the caller removes the files; the closed pipe ends the process in any case.
        let answer = self.asked(Ask::End);
        if let Ok(Answer::Failed(sentence)) = &answer {
            eprintln!("the drive was not taken down in order: {sentence}");
        }
        if self.process.get_mut().end() && matches!(answer, Ok(Answer::Done)) {
            return;
        }
        self.kernel_threads.restore();
        if let Err(failure) = loop_device::clear(&self.loop_device, &self.directory.path().join(MOUNTPOINT)) {
            eprintln!("the drive behind {} is not taken down: {failure}", self.loop_device.display());
        }
    }
}

#[cfg(test)]
mod tests;

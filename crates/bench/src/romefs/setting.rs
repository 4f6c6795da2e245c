//! Common settings of the experiments: sizes of a run, volumes, the file under test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandemfs_device::{Device, Drive};
use tandemfs_emulator::{ModelOptions, Timing};
use tandemfs_format::InodeNumber;
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, Promote, Threshold, WriteBackPolicy, WriteOptions, make_file_system};

use super::requests::{Alignment, Requests, Size};
use crate::arguments::{Common, RomefsArguments};
use crate::failure::{Failure, Result};
use crate::machine;
use crate::scene::{self, DeviceShape, MIB, Scene};

/// Profile of the paper's CXL-SSD A.
pub const PROFILE: &str = "romefs-a";
/// Write-back counts as idle after no traffic to the device for this long.
const QUIET: Duration = Duration::from_millis(5);
/// At this load average the machine counts as shared: the emulated drive's waits end late.
const BUSY: f64 = 0.5;
/// Smallest file that fits requests of all sizes.
const FILE_BYTES_MIN: u64 = 8 * MIB;

/// Sizes of a run.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Options common to all benchmarks.
    pub common: Common,
    /// Memory zone, in bytes.
    pub memory_bytes: u64,
    /// Share of the load that is run.
    pub scale: f64,
}

impl Setting {
    /// Settings from the arguments.
    pub fn new(arguments: &RomefsArguments) -> Result<Self> {
        let memory_bytes = arguments.memory.unwrap_or(if arguments.evaluation.common.quick { 32 * MIB } else { 256 * MIB });
        if !(24 * MIB..=64 << 30).contains(&memory_bytes) || !memory_bytes.is_multiple_of(2 * MIB) {
            return Err(Failure::new("--memory: a multiple of 2 MiB from 24M to 64G is needed"));
        }
        if !(arguments.scale > 0.0 && arguments.scale <= 1.0) {
            return Err(Failure::new("--scale: a share above 0 and up to 1 is needed"));
        }
        Ok(Self { common: arguments.evaluation.common.clone(), memory_bytes, scale: arguments.scale })
    }

    /// Bytes of a load of `times` the memory zone.
    pub fn load_bytes(&self, times: u64) -> u64 {
        (((self.memory_bytes * times) as f64 * self.scale) as u64).next_multiple_of(MIB).max(MIB)
    }

    /// Size of the file for such a load: the size of the load, as in the paper.
    pub fn file_bytes(&self, times: u64) -> u64 {
        self.load_bytes(times).max(FILE_BYTES_MIN)
    }

    /// A number of operations: `full`, or `quick` in a quick run.
    pub fn count(&self, full: usize, quick: usize) -> usize {
        ((if self.common.quick { quick } else { full } as f64 * self.scale) as usize).max(4)
    }

    /// Block zone for a file of this size: its blocks, and room for their replacements.
    pub fn block_bytes(file_bytes: u64) -> u64 {
        (file_bytes + file_bytes / 4 + 64 * MIB).next_multiple_of(2 * MIB)
    }

    /// Fails if the directory of the images has no room for this many bytes.
    pub fn require(&self, bytes: u64) -> Result<()> {
        scene::require_room(&self.common.directory, bytes, "a smaller memory zone with --memory or --quick")
    }

    /// One line for the head of the output.
    pub fn describe(&self) -> String {
        let quick = if self.common.quick { "; quick: fewer repetitions and a smaller memory zone, take no figure from it" } else { "" };
        let scale = if self.scale < 1.0 { "; scaled down to test the program: the figures mean nothing" } else { "" };
        let load = machine::load();
        let busy = if load > BUSY {
            format!("; the machine is busy (load {load:.1}), which breakdown and overhead show, as they take wall-clock time")
        } else {
            String::new()
        };
        format!("memory zone: {} MiB; profile: {PROFILE}{quick}{scale}{busy}", self.memory_bytes / MIB)
    }

    /// A device of the profile with timing, all pages touched ([BE1]).
    ///
    /// [BE1]: crate
    pub fn timed_device(&self, scene: &Scene, name: &str, file_bytes: u64) -> Result<Arc<dyn Device>> {
        let shape =
            DeviceShape { profile: PROFILE, timing: true, memory_bytes: self.memory_bytes, block_bytes: Self::block_bytes(file_bytes) };
        let device = scene.device(name, shape)?;
        scene::touch_blocks(&*device)?;
        Ok(device)
    }

    /// A new device of the profile in virtual time, and where it is.
    pub fn virtual_device(&self, file_bytes: u64) -> Result<(Scene, Arc<dyn Device>)> {
        let scene = Scene::new(&self.common)?;
        let device = scene.virtual_device(PROFILE, &ModelOptions::default(), self.memory_bytes, Self::block_bytes(file_bytes))?;
        Ok((scene, device))
    }

    /// Size of such devices in bytes.
    pub fn device_bytes(&self, file_bytes: u64) -> u64 {
        self.memory_bytes + Self::block_bytes(file_bytes)
    }
}

/// The timing model of the profile.
pub fn timing() -> Result<Timing> {
    let profile = tandemfs_emulator::profile(PROFILE).and_then(|profile| profile.timing);
    profile.ok_or_else(|| Failure::new(format!("the profile {PROFILE} has no timing model")))
}

/// Variants that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// With default mount options.
    Default,
    /// Everything over the block path, with read-modify-write.
    BlocksOnly,
    /// The same with blocks of 4 KiB, so that less is read and written beside what changes.
    SmallBlocksOnly,
    /// Everything through the memory zone, with blocks moved in and out in LRU order.
    LruCache,
}

impl Variant {
    /// All.
    pub const ALL: [Self; 4] = [Self::Default, Self::BlocksOnly, Self::SmallBlocksOnly, Self::LruCache];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "RomeFS",
            Self::BlocksOnly => "blocks only",
            Self::SmallBlocksOnly => "blocks only, 4 KiB",
            Self::LruCache => "LRU cache",
        }
    }

    /// Bytes of its blocks.
    pub fn block_bytes(self) -> u32 {
        if self == Self::SmallBlocksOnly { 4 << 10 } else { FormatOptions::default().block_bytes }
    }

    /// Its mount options.
    pub fn options(self) -> MountOptions {
        let default = MountOptions::default();
        match self {
            Self::Default => default,
            Self::BlocksOnly | Self::SmallBlocksOnly => MountOptions { threshold: Threshold::BlocksOnly, ..default },
            Self::LruCache => MountOptions {
                threshold: Threshold::Bytes(1 << 30),
                write_back: WriteBackPolicy::Coldest,
                promote: Promote::EveryRead,
                ..default
            },
        }
    }
}

/// A mounted file system and the file under test.
#[derive(Clone)]
pub struct Volume {
    /// The file system.
    pub fs: Arc<FileSystem>,
    /// The file.
    pub file: InodeNumber,
    /// Its size.
    pub file_bytes: u64,
}

impl Volume {
    /// Formats and mounts a device and creates an empty file.
    pub fn empty(device: Arc<dyn Device>, block_bytes: u32, options: &MountOptions) -> Result<Self> {
        make_file_system(&Drive::new(device.clone()), &FormatOptions { block_bytes, force: true, ..FormatOptions::default() })?;
        let fs = mount(&device, options)?;
        let file = fs.create(InodeNumber::ROOT, b"file", &scene::new_file())?.inode;
        Ok(Self { fs, file, file_bytes: 0 })
    }

    /// A device with a file whose blocks are all in the block zone, as at the start in the paper; then mounted with `options`.
    pub fn laid_out(device: &Arc<dyn Device>, file_bytes: u64, options: &MountOptions) -> Result<Self> {
        Self::laid_out_in(device, FormatOptions::default().block_bytes, file_bytes, options)
    }

    /// The same with blocks of another size.
    pub fn laid_out_in(device: &Arc<dyn Device>, block_bytes: u32, file_bytes: u64, options: &MountOptions) -> Result<Self> {
        let volume = Self::empty(device.clone(), block_bytes, &MountOptions::default())?;
        let data = pattern(MIB);
        for offset in (0..file_bytes).step_by(MIB as usize) {
            volume.write(offset, &data[..(file_bytes - offset).min(MIB) as usize])?;
        }
        Self { file_bytes, ..volume }.mounted_again(device, options)
    }

    /// Unmounts, then mounts with other options.
    pub fn mounted_again(self, device: &Arc<dyn Device>, options: &MountOptions) -> Result<Self> {
        self.fs.unmount()?;
        let Self { file, file_bytes, .. } = self;
        Ok(Self { fs: mount(device, options)?, file, file_bytes })
    }

    /// Random writes over both paths until almost the whole memory zone is data logs, just before write-back starts (Fig. 8).
    pub fn fill_memory(&self, size: Size) -> Result<()> {
        let mut requests = Requests::new(11, size, Alignment::Byte, self.file_bytes);
        let data = pattern(super::requests::REQUEST_BYTES_MAX);
        let least_percent = f64::from(MountOptions::default().write_back_percent) + 6.0;
        let mut left = self.file_bytes.saturating_mul(4);
        while left > 0 {
            machine::check()?;
            let memory = self.fs.space().memory;
            let free = memory.free_bytes as f64 / (memory.free_bytes + memory.data_log_bytes).max(1) as f64;
            if free * 100.0 < least_percent {
                break;
            }
            let (offset, length) = requests.draw();
            self.write(offset, &data[..length as usize])?;
            left = left.saturating_sub(length);
        }
        Ok(())
    }

    /// Writes all bytes durably.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        scene::write(&self.fs, self.file, offset, data, WriteOptions::default())?;
        Ok(self.fs.sync()?)
    }

    /// Reads all bytes.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let read = self.fs.read(self.file, offset, into)?;
        if read == into.len() { Ok(()) } else { Err(Failure::new("a short read")) }
    }

    /// Used bytes of the memory zone.
    pub fn memory_in_use(&self) -> u64 {
        let memory = self.fs.space().memory;
        memory.total_bytes - memory.free_bytes
    }

    /// Waits until the background thread is idle. Returns how long it worked.
    pub fn settle(&self) -> Duration {
        let start = Instant::now();
        let mut before = self.fs.drive().counters().snapshot();
        let mut changed = start;
        loop {
            std::thread::sleep(Duration::from_micros(200));
            let now = self.fs.drive().counters().snapshot();
            if now != before {
                (before, changed) = (now, Instant::now());
            } else if changed.elapsed() > QUIET {
                return changed - start;
            }
        }
    }
}

/// Mounts; in virtual time without the background thread, whose work is a worker's then ([RF2]).
///
/// [RF2]: super
fn mount(device: &Arc<dyn Device>, options: &MountOptions) -> Result<Arc<FileSystem>> {
    let drive = Drive::new(device.clone());
    if device.virtual_time().is_some() { Ok(Arc::new(FileSystem::mount(drive, options)?)) } else { scene::mount(drive, options) }
}

/// Nonzero bytes.
pub fn pattern(length: u64) -> Vec<u8> {
    (0..length).map(|byte| (byte / 7 + byte) as u8 | 1).collect()
}

//! The drive and the engine that a load runs on; the only file that knows how the emulator is told.

use std::path::PathBuf;
use std::sync::Arc;

use tandemfs_device::{Device, Drive};
use tandemfs_emulator::{CreateOptions, ModelOptions, OpenOptions};
use tandemfs_fs::{Engine, FileSystem, FormatOptions, MountOptions, make_file_system};

use super::setting::Setting;
use crate::failure::{Failure, Result};
use crate::scene::Scene;
use crate::workloads::Clock;

/// Parts of ByteFS that are there (Fig. 12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Both paths over a cache of pages in the drive; metadata by the journal (*ByteFS-Dual*).
    Dual,
    /// With the write log in the drive; metadata still by the journal (*ByteFS-Log*).
    Log,
    /// With the drive's transactions.
    Whole,
}

impl Variant {
    /// All, in the order of the figure.
    pub const ALL: [Self; 3] = [Self::Dual, Self::Log, Self::Whole];

    /// For tables and plots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dual => "dual interface only",
            Self::Log => "+ write log",
            Self::Whole => "+ transactions",
        }
    }
}

/// What the drive hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// 4.8/0.6 us a line.
    Pcie,
    /// 175 ns a line.
    Cxl,
}

/// A drive to be made, and how the file system on it is mounted.
#[derive(Debug, Clone)]
pub struct Rig {
    /// Which parts.
    pub variant: Variant,
    /// Profile of the emulator.
    pub profile: &'static str,
    /// Write log, or page cache, in bytes.
    pub staging_bytes: u64,
    /// Size of the file system's data blocks.
    pub block_bytes: u32,
    /// Read and program times of a flash page in nanoseconds, instead of the profile's.
    pub flash_ns: Option<(u32, u32)>,
}

/// An image that was made, to be opened as often as a test wants.
pub struct Image {
    path: PathBuf,
}

impl Rig {
    /// As in the paper's evaluation.
    pub fn new(setting: &Setting, variant: Variant) -> Self {
        let profile = if variant == Variant::Dual { "bytefs-dual" } else { "bytefs" };
        Self { variant, profile, staging_bytes: setting.own_log_bytes(), block_bytes: setting.block_bytes, flash_ns: None }
    }

    /// On another link; with the flash times of its profile. There is no drive with a cache of its own behind CXL.
    pub fn over(setting: &Setting, variant: Variant, link: Link) -> Option<Self> {
        let rig = Self::new(setting, variant);
        match (variant, link) {
            (Variant::Dual, Link::Cxl) => None,
            (_, Link::Pcie) => Some(rig),
            (_, Link::Cxl) => Some(Self { profile: "bytefs-cxl", ..rig }),
        }
    }

    /// Most bytes that an image of such zones takes: its flash is sparse, and has pages that garbage collection has not come to yet.
    pub fn image_bytes(&self, memory_bytes: u64, block_bytes: u64) -> u64 {
        (memory_bytes + block_bytes) * 5 / 4 + 2 * self.staging_bytes
    }

    /// How the file system is mounted.
    pub fn mount_options(&self) -> MountOptions {
        let engine = if self.variant == Variant::Whole { Engine::Firmware } else { Engine::Journal };
        MountOptions { engine, ..MountOptions::default() }
    }

    /// Makes a drive.
    pub fn create(&self, scene: &Scene, name: &str, memory_bytes: u64, block_bytes: u64) -> Result<Image> {
        let options = CreateOptions { profile: self.profile.to_owned(), memory_bytes, block_bytes };
        let staging = Some(self.staging_bytes);
        let chosen = ModelOptions {
            write_log_bytes: staging.filter(|_| self.variant != Variant::Dual),
            cache_bytes: staging.filter(|_| self.variant == Variant::Dual),
            flash_read_ns: self.flash_ns.map(|(read, _)| read),
            flash_program_ns: self.flash_ns.map(|(_, program)| program),
            ..ModelOptions::default()
        };
        let path = scene.path(name);
        tandemfs_emulator::create_with(&path, &options, &chosen)?;
        Ok(Image { path })
    }

    /// Makes a file system on a drive, without mounting it.
    pub fn format(&self, device: Arc<dyn Device>) -> Result<()> {
        make_file_system(&Drive::new(device), &FormatOptions { force: true, block_bytes: self.block_bytes, ..FormatOptions::default() })?;
        Ok(())
    }

    /// Mounts without the thread behind ([Y3]).
    ///
    /// [Y3]: super
    pub fn mount(&self, device: Arc<dyn Device>) -> Result<Arc<FileSystem>> {
        Ok(Arc::new(FileSystem::mount(Drive::new(device), &self.mount_options())?))
    }
}

impl Image {
    /// Opens it in reckoned time. The clock is that of the calling thread.
    pub fn open(&self) -> Result<(Arc<dyn Device>, ReckonedClock)> {
        let options = OpenOptions { timing: true, virtual_time: true, ..OpenOptions::default() };
        let device = tandemfs_emulator::open_image(&self.path, &options)?;
        let clock = ReckonedClock(device.clone());
        clock.time()?;
        Ok((device, clock))
    }

    /// Lines in its write log. Nobody may have it open.
    pub fn lines_in_log(&self) -> Result<u64> {
        Ok(tandemfs_emulator::statistics(&self.path)?.log.map_or(0, |log| log.lines))
    }

    /// Opens it without a timing model: accesses take what the host takes.
    pub fn open_untimed(&self) -> Result<Arc<dyn Device>> {
        Ok(tandemfs_emulator::open_image(&self.path, &OpenOptions { timing: false, ..OpenOptions::default() })?)
    }
}

/// The clock of a drive in reckoned time.
pub struct ReckonedClock(Arc<dyn Device>);

impl ReckonedClock {
    fn time(&self) -> Result<&dyn tandemfs_device::VirtualTime> {
        self.0.virtual_time().ok_or_else(|| Failure::new("the drive has no timing model to reckon with"))
    }
}

impl Clock for ReckonedClock {
    fn now_ns(&self) -> u64 {
        self.time().map_or(0, tandemfs_device::VirtualTime::now_ns)
    }

    fn set_now_ns(&self, now: u64) {
        if let Ok(time) = self.time() {
            time.set_now_ns(now);
        }
    }
}

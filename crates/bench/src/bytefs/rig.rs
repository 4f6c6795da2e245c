//! The drive and the engine that a load runs on; the only file that configures the emulator.

use std::path::PathBuf;
use std::sync::Arc;

use tandemfs_device::{Device, Drive};
use tandemfs_emulator::{CreateOptions, ModelOptions, OpenOptions, WearStatistics};
use tandemfs_fs::{Engine, FileSystem, FormatOptions, MountOptions, make_file_system};

use super::setting::Setting;
use crate::failure::Result;
use crate::scene::{Scene, virtual_time};

/// Variants of ByteFS by the parts they have (Fig. 12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Both paths over a page cache in the drive; metadata through the journal (*ByteFS-Dual*).
    Dual,
    /// With the write log in the drive; metadata still through the journal (*ByteFS-Log*).
    Log,
    /// With the drive's transactions too: complete ByteFS.
    Whole,
}

impl Variant {
    /// All, in the order of Fig. 12.
    pub const ALL: [Self; 3] = [Self::Dual, Self::Log, Self::Whole];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dual => "dual interface only",
            Self::Log => "+ write log",
            Self::Whole => "+ transactions",
        }
    }
}

/// Parameters of a drive, and how the file system on it is mounted.
#[derive(Debug, Clone)]
pub struct Rig {
    /// The variant of ByteFS.
    pub variant: Variant,
    /// Profile of the emulator.
    pub profile: &'static str,
    /// Size of the write log or page cache in bytes.
    pub staging_bytes: u64,
    /// Size of the file system's data blocks.
    pub block_bytes: u32,
    /// Read and program times of a flash page in nanoseconds; `None`: those of the profile.
    pub flash_ns: Option<(u32, u32)>,
}

/// An image that can be opened any number of times.
pub struct Image {
    path: PathBuf,
}

impl Rig {
    /// The rig of the paper's evaluation.
    pub fn new(setting: &Setting, variant: Variant) -> Self {
        let profile = if variant == Variant::Dual { "bytefs-dual" } else { "bytefs" };
        Self { variant, profile, staging_bytes: setting.own_log_bytes(), block_bytes: setting.block_bytes, flash_ns: None }
    }

    /// Largest size of an image with such zones: its flash is sparse, and contains pages that garbage collection has not erased yet.
    pub fn image_bytes(&self, memory_bytes: u64, block_bytes: u64) -> u64 {
        (memory_bytes + block_bytes) * 5 / 4 + 2 * self.staging_bytes
    }

    /// How the file system is mounted.
    pub fn mount_options(&self) -> MountOptions {
        let engine = if self.variant == Variant::Whole { Engine::Firmware } else { Engine::Journal };
        MountOptions { engine, ..MountOptions::default() }
    }

    /// Creates a drive.
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

    /// A new drive, open and formatted, if there is room for its image; it is gone with the scene.
    pub fn formatted(&self, setting: &Setting, memory_bytes: u64, block_bytes: u64) -> Result<(Scene, Image, Arc<dyn Device>)> {
        setting.require(self.image_bytes(memory_bytes, block_bytes))?;
        let scene = Scene::new(&setting.common)?;
        let image = self.create(&scene, "drive", memory_bytes, block_bytes)?;
        let device = image.open()?;
        let options = FormatOptions { force: true, block_bytes: self.block_bytes, ..FormatOptions::default() };
        make_file_system(&Drive::new(device.clone()), &options)?;
        Ok((scene, image, device))
    }

    /// Mounts without the background thread ([Y3]).
    ///
    /// [Y3]: super
    pub fn mount(&self, device: Arc<dyn Device>) -> Result<Arc<FileSystem>> {
        self.mount_with(device, &self.mount_options())
    }

    /// Mounts with options of the caller's, without the background thread.
    pub fn mount_with(&self, device: Arc<dyn Device>, options: &MountOptions) -> Result<Arc<FileSystem>> {
        Ok(Arc::new(FileSystem::mount(Drive::new(device), options)?))
    }
}

impl Image {
    /// Opens the drive in virtual time.
    pub fn open(&self) -> Result<Arc<dyn Device>> {
        let options = OpenOptions { timing: true, virtual_time: true, ..OpenOptions::default() };
        let device = tandemfs_emulator::open_image(&self.path, &options)?;
        virtual_time(&*device)?;
        Ok(device)
    }

    /// Number of lines in the write log. The image must not be open.
    pub fn lines_in_log(&self) -> Result<u64> {
        Ok(tandemfs_emulator::statistics(&self.path)?.log.map_or(0, |log| log.lines))
    }

    /// Wear of the flash. The image must not be open.
    pub fn wear(&self) -> Result<WearStatistics> {
        Ok(tandemfs_emulator::statistics(&self.path)?.wear)
    }
}

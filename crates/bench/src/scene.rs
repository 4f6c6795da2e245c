//! Devices and file systems for measurements; dropping a scene removes all of them ([BE4]).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{statfs, statvfs};
use tandemfs_device::{BlockRequest, Device, Drive, Structure, VirtualTime};
use tandemfs_emulator::{CreateOptions, DeviceOptions, ModelOptions, OpenOptions};
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{InodeNumber, LINE_BYTES, LineAddress, SECTOR_BYTES, Sector};
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};
use tempfile::TempDir;

use crate::arguments::Common;
use crate::failure::{Failure, Result};
use crate::machine;

pub const MIB: u64 = 1 << 20;
const TMPFS: i64 = 0x0102_1994;

/// A directory for images and mountpoints.
pub struct Scene {
    directory: TempDir,
}

/// Parameters of an emulated device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceShape {
    /// Profile of the emulator.
    pub profile: &'static str,
    /// Whether its timing model is enabled.
    pub timing: bool,
    /// Size of the memory zone.
    pub memory_bytes: u64,
    /// Size of the block zone.
    pub block_bytes: u64,
}

impl DeviceShape {
    /// A device without a timing model.
    pub fn plain(memory_bytes: u64, block_bytes: u64) -> Self {
        Self { profile: "off", timing: false, memory_bytes, block_bytes }
    }
}

impl Scene {
    /// A new directory inside the one named by the arguments.
    pub fn new(arguments: &Common) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("tandemfs-bench-").tempdir_in(&arguments.directory).map_err(|error| {
            Failure::new(format!("{}: {error}; name a directory to write to with --directory", arguments.directory.display()))
        })?;
        Ok(Self { directory })
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A new device whose memory zone has been written once, page by page.
    pub fn device(&self, name: &str, shape: DeviceShape) -> Result<Arc<dyn Device>> {
        let image = self.path(name);
        let DeviceShape { profile, timing, memory_bytes, block_bytes } = shape;
        tandemfs_emulator::create(&image, &CreateOptions { profile: profile.to_owned(), memory_bytes, block_bytes })?;
        let device = open(path_text(&image)?, timing)?;
        touch_memory(&*device)?;
        Ok(device)
    }

    /// A new drive of a profile in virtual time, formatted.
    pub fn virtual_device(&self, profile: &str, chosen: &ModelOptions, memory_bytes: u64, block_bytes: u64) -> Result<Arc<dyn Device>> {
        let (image, profile) = (self.path("drive"), profile.to_owned());
        tandemfs_emulator::create_with(&image, &CreateOptions { profile, memory_bytes, block_bytes }, chosen)?;
        let options = OpenOptions { virtual_time: true, ..OpenOptions::default() };
        let device = tandemfs_emulator::open_image(&image, &options)?;
        make_file_system(&Drive::new(device.clone()), &FormatOptions { force: true, ..FormatOptions::default() })?;
        Ok(device)
    }

    /// The same from two files, opened as a real pair. Here a flush does write cache lines back; on an image it does not, since the image's
    /// memory is the host's page cache.
    pub fn pair(&self, name: &str, memory_bytes: u64, block_bytes: u64) -> Result<Arc<dyn Device>> {
        let [memory, block] = ["memory", "block"].map(|half| self.path(&format!("{name}-{half}")));
        File::create_new(&memory)?.set_len(memory_bytes)?;
        File::create_new(&block)?.set_len(block_bytes)?;
        let device = open(&format!("memory={},block={}", path_text(&memory)?, path_text(&block)?), false)?;
        touch_memory(&*device)?;
        Ok(device)
    }
}

/// Fails if a directory has no room for images of this many bytes; `or_else` says how to make them smaller.
pub fn require_room(directory: &Path, bytes: u64, or_else: &str) -> Result<()> {
    let free = room(directory).map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
    if bytes + bytes / 20 <= free {
        return Ok(());
    }
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    Err(Failure::new(format!(
        "{} has {:.1} GiB to spare and this needs {:.1} GiB; name another directory with --directory, or {or_else}",
        directory.display(),
        gib(free),
        gib(bytes + bytes / 20)
    )))
}

/// Bytes that can still be written below a directory. For tmpfs this is limited by available memory.
fn room(directory: &Path) -> std::io::Result<u64> {
    let space = statvfs(directory)?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let is_memory = statfs(directory)?.f_type as i64 == TMPFS;
    Ok(if is_memory { free.min(machine::available_memory_bytes()) } else { free })
}

/// Opens a device by name.
pub fn open(name: &str, timing: bool) -> Result<Arc<dyn Device>> {
    Ok(tandemfs_emulator::open_device(name, &DeviceOptions { timing, ..DeviceOptions::default() })?)
}

/// The clock of a drive in virtual time.
pub fn virtual_time(device: &dyn Device) -> Result<&dyn VirtualTime> {
    device.virtual_time().ok_or_else(|| Failure::new("the drive has no timing model to reckon with"))
}

/// A path as the name of a device.
pub fn path_text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Failure::new("the directory's name is not Unicode; name another with --directory"))
}

fn touch_memory(device: &dyn Device) -> Result<()> {
    let zeros = vec![0; MIB as usize];
    let size = device.description().memory_bytes;
    for offset in (0..size).step_by(zeros.len()) {
        device.byte_path().store(offset, &zeros[..zeros.len().min((size - offset) as usize)])?;
    }
    Ok(())
}

/// Writes every sector of the block zone once, so that the file below has all its pages.
pub fn touch_blocks(device: &dyn Device) -> Result<()> {
    let zeros = vec![0; MIB as usize];
    let size = device.description().block_bytes;
    for offset in (0..size).step_by(zeros.len()) {
        let buffer = &zeros[..zeros.len().min((size - offset) as usize)];
        let mut requests = [BlockRequest::Write { sector: Sector::new(offset / SECTOR_BYTES as u64), buffer: buffer.into() }];
        device.block_path().transfer(&mut requests, &mut || {})?;
    }
    Ok(())
}

/// Formats and mounts, with the background thread that a mount has.
pub fn make(device: Arc<dyn Device>, checksum_kind: ChecksumKind) -> Result<Arc<FileSystem>> {
    let drive = Drive::new(device);
    make_file_system(&drive, &FormatOptions { checksum_kind, force: true, ..FormatOptions::default() })?;
    mount(drive, &MountOptions::default())
}

/// Mounts, with the background thread.
pub fn mount(drive: Drive, options: &MountOptions) -> Result<Arc<FileSystem>> {
    let file_system = Arc::new(FileSystem::mount(drive, options)?);
    file_system.start_background()?;
    Ok(file_system)
}

/// Attributes of a new regular file.
pub fn new_file() -> NewInode<'static> {
    NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" }
}

/// Attributes of a new directory.
pub fn new_directory() -> NewInode<'static> {
    NewInode { mode: file_type::DIRECTORY | 0o755, ..new_file() }
}

/// Writes all bytes.
pub fn write(fs: &FileSystem, file: InodeNumber, offset: u64, data: &[u8], options: WriteOptions) -> Result<()> {
    match fs.write(file, offset, data, options)? == data.len() {
        true => Ok(()),
        false => Err(Failure::new("a short write: a zone is full")),
    }
}

/// Copies, flushes and fences: the minimum work of the byte path ([BE2]).
pub fn persist(drive: &Drive, offset: u64, bytes: &[u8]) -> Result<()> {
    drop(drive.persist(Structure::DataLog, LineAddress::new(offset / LINE_BYTES as u64), bytes)?);
    Ok(())
}

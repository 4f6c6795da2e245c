//! The file of an emulated drive: creating it, reading its header, opening and locking it ([EM1], [EM3]).
//!
//! [EM1]: crate
//! [EM3]: crate

use std::fs::{File, OpenOptions as FileOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstatvfs};
use rustix::io::Errno;
use tandemfs_device::{DeviceDescription, DeviceError, Mapping, MappingOptions, MemoryNodes, PersistenceDomain, open_patiently};

use tandemfs_format::size::size;

use crate::controller::Controller;
use crate::header::{ImageInfo, MEMORY_OFFSET};
use crate::header_copy::{HeaderState, read_header, renew_copy, write_header};
use crate::host_cache;
use crate::image_medium::ImageMedium;
use crate::media::{MediaModel, MediaOptions};
use crate::model::ModelOptions;
use crate::open::not_opened;
use crate::profiles::{Profile, profile, profiles};

/// Larger requests are split over the channels of the emulated drive, in bytes.
const REQUEST_BYTES: u32 = 64 << 10;
/// Largest DRAM of a drive with firmware for which host space is reserved, in bytes.
const DRAM_RESERVED_BYTES_MAX: u64 = 1 << 30;

/// What image to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateOptions {
    /// Name of a profile.
    pub profile: String,
    /// Size of the memory region in bytes, a multiple of 2 MiB; 0 for the profile's default.
    pub memory_bytes: u64,
    /// Size of the block region in bytes, a multiple of 4 KiB; 0 for the profile's default, [`NO_BLOCKS`] for none.
    pub block_bytes: u64,
}

/// The size of a block region that is not there. Drives with firmware have one.
pub const NO_BLOCKS: u64 = u64::MAX;

/// How to open an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// Loads and reads only; works on a file without write permission.
    pub read_only: bool,
    /// Share the image with others that only read. Means nothing without `read_only`.
    pub shared: bool,
    /// Lower the persistence domain to this; raising it is refused.
    pub domain: Option<PersistenceDomain>,
    /// Use the image's timing model; otherwise accesses take what the host takes.
    pub timing: bool,
    /// Use virtual time, so that nothing waits. Ignored without `timing`, or on an image without a model.
    pub virtual_time: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { read_only: false, shared: false, domain: None, timing: true, virtual_time: false }
    }
}

pub(crate) fn refused(path: &Path, reason: impl Into<String>) -> DeviceError {
    DeviceError::Open { path: path.display().to_string(), reason: reason.into() }
}

/// Creates an image that only its owner may read. Space for the memory region is reserved; the block region is sparse.
///
/// Errors ([`DeviceError::Open`]): the file exists, the profile is unknown, a size has no meaning, the host has no space. Nothing is left
/// behind then.
pub fn create(path: &Path, options: &CreateOptions) -> Result<ImageInfo, DeviceError> {
    create_with(path, options, &ModelOptions::default())
}

/// As [`create`], with choices for a drive with firmware. A profile without firmware accepts none of them.
pub fn create_with(path: &Path, options: &CreateOptions, chosen: &ModelOptions) -> Result<ImageInfo, DeviceError> {
    let Some(profile) = profile(&options.profile) else {
        let names: Vec<_> = profiles().iter().map(|profile| profile.name).collect();
        return Err(refused(path, format!("there is no profile '{}'; name one of {}", options.profile, names.join(", "))));
    };
    let or_default = |size, default| if size == 0 { default } else { size };
    let mut image = ImageInfo {
        profile: profile.name.to_owned(),
        memory_bytes: or_default(options.memory_bytes, profile.default_memory_bytes),
        block_bytes: if options.block_bytes == NO_BLOCKS { 0 } else { or_default(options.block_bytes, profile.default_block_bytes) },
        domain: profile.domain,
        timing: profile.timing.filter(|_| !chosen.no_timing),
        line_latency: profile.line_latency.filter(|_| !chosen.no_timing),
        firmware: None,
        media: None,
        places: None,
    };
    if let Some(options) = &chosen.media {
        image.media = Some(media_of(profile, options, chosen.no_timing).map_err(|reason| refused(path, reason))?);
        if options.persistent_caches {
            image.domain = PersistenceDomain::Gpf;
        }
    }
    ImageInfo::check_sizes(image.memory_bytes, image.block_bytes).map_err(|reason| refused(path, reason))?;
    if image.block_bytes == 0 && profile.firmware.is_some() {
        return Err(refused(path, format!("profile '{}' is a drive with flash, which has a block region", profile.name)));
    }
    match profile.firmware {
        Some(model) => {
            image.firmware = Some(model.chosen(chosen, image.memory_bytes, image.block_bytes).map_err(|reason| refused(path, reason))?)
        }
        None if !chosen.is_for_plain(profile.timing.is_some()) => {
            return Err(refused(
                path,
                format!("profile '{}' has no firmware whose parts could be chosen; name another profile", profile.name),
            ));
        }
        None => {
            image.timing = image.timing.map(|timing| timing.chosen(chosen));
            if image.timing.is_some_and(|timing| !timing.is_sane()) {
                return Err(refused(path, "that many requests at once are served by no drive; name 1 to 1024 channels"));
            }
        }
    }
    let file = FileOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => refused(path, "exists already; name another file or remove this one"),
        _ => refused(path, format!("cannot be created: {error}")),
    })?;
    let made = fill(&file, &image).map_err(|reason| refused(path, reason)).and_then(|()| finish(path, file, &image));
    if made.is_err() {
        // The name is ours: nobody else can have created it.
        let _ = std::fs::remove_file(path);
    }
    made.map(|()| image)
}

/// The model of persistent memory of a profile, with these choices.
fn media_of(profile: &Profile, options: &MediaOptions, no_timing: bool) -> Result<MediaModel, String> {
    let Some(model) = profile.media else {
        let names: Vec<_> = profiles().iter().filter(|profile| profile.media.is_some()).map(|profile| profile.name).collect();
        return Err(format!("profile '{}' has no model of CPU caches and media; name one of {}", profile.name, names.join(", ")));
    };
    if no_timing {
        return Err("a model of CPU caches and media is part of the timing model; name one of both choices".into());
    }
    model.chosen(options)
}

fn fill(file: &File, image: &ImageInfo) -> Result<(), String> {
    let space = fstatvfs(file).map_err(|error| format!("cannot ask for free space: {error}"))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let no_space = |free: u64| {
        format!(
            "the {} needs {} on the host's disk and {} MiB are free; make space or name a smaller size",
            if image.firmware.is_some() { "drive's DRAM" } else { "memory region" },
            size(image.mapped_bytes()),
            free >> 20
        )
    };
    // Checking first avoids filling the host's disk only to find that it is too small.
    if free < image.mapped_bytes() && is_reserved(image) {
        return Err(no_space(free));
    }
    file.set_len(image.file_bytes())
        .map_err(|error| format!("the host's file system takes no file of {}: {error}", size(image.file_bytes())))?;
    if is_reserved(image) {
        match reserve(file, MEMORY_OFFSET, image.mapped_bytes()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Err(no_space(free)),
            Err(error) => return Err(format!("cannot reserve space for the memory region: {error}")),
        }
    }
    Ok(())
}

/// Formats the file as a drive. The header is written last: without it the file is no image.
fn finish(path: &Path, file: File, image: &ImageInfo) -> Result<(), DeviceError> {
    let copied = file.try_clone().map_err(|error| refused(path, format!("cannot be opened twice: {error}")))?;
    if let (Some(model), Some(layout)) = (&image.firmware, image.dram()) {
        let is_host_cache = model.staging.is_host_cache();
        let name = path.display().to_string();
        let open = OpenImage { file: copied, info: image.clone(), name: name.clone() };
        let medium = Arc::new(ImageMedium::new(open, &layout, false)?);
        let formatted = if is_host_cache {
            host_cache::format(&medium, model, image.memory_bytes, image.logical_pages())
        } else {
            Controller::format(&medium, model, image.memory_pages(), image.logical_pages())
        };
        formatted.map_err(|error| match error {
            DeviceError::Block { source, .. } if source.kind() == io::ErrorKind::StorageFull => refused(
                path,
                "the host's disk has no room for the flash that the memory zone and garbage collection need; make space or name smaller sizes",
            ),
            error => not_opened(&name, error),
        })?;
    }
    write_header(&file, image).map_err(|error| refused(path, format!("cannot write the header: {error}")))
}

/// The DRAM of a drive with firmware is reserved unless it is huge: then most of it (tables of flash that is never written) would waste
/// space, and a full host disk becomes an error of the access that needs space ([DV4] of `device`).
///
/// [DV4]: tandemfs_device
fn is_reserved(image: &ImageInfo) -> bool {
    // Where it is memory of the host's address space, processes may map it: stores of theirs are to find space.
    image.firmware.is_none_or(|model| model.staging.is_host_cache()) || image.mapped_bytes() <= DRAM_RESERVED_BYTES_MAX
}

pub(crate) fn reserve(file: &File, offset: u64, length: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), offset, length) {
        Err(Errno::OPNOTSUPP) => {
            // A host file system that cannot reserve can still be written to.
            let zeros = vec![0; 1 << 20];
            (0..length / zeros.len() as u64).try_for_each(|index| file.write_all_at(&zeros, offset + index * zeros.len() as u64))
        }
        other => Ok(other?),
    }
}

/// Reads an image's header. Needs no lock, so it works on an image in use.
///
/// Errors: [`DeviceError::Open`] where the file is no whole image.
pub fn info(path: &Path) -> Result<ImageInfo, DeviceError> {
    Ok(read_header(path, &open_file(path, true)?)?.0)
}

fn open_file(path: &Path, read_only: bool) -> Result<File, DeviceError> {
    // A named pipe would block an ordinary open.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    FileOptions::new().read(true).write(!read_only).custom_flags(flags).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => refused(path, "does not exist; create an image with 'tandemfs device create'"),
        io::ErrorKind::PermissionDenied if !read_only => {
            refused(path, "may not be written; ask its owner for permission, or open it read-only")
        }
        io::ErrorKind::IsADirectory => refused(path, "is a directory, not an image; name a file"),
        _ => refused(path, format!("cannot be opened: {error}")),
    })
}

/// Locks an image ([EM3]), waiting a moment while it is in use.
pub(crate) fn lock(path: &Path, file: &File, is_shared: bool) -> Result<(), DeviceError> {
    let lock = if is_shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    open_patiently(|| {
        flock(file, lock).map_err(|error| match error {
            Errno::WOULDBLOCK => DeviceError::Busy { path: path.display().to_string() },
            error => refused(path, format!("cannot be locked: {error}")),
        })
    })
}

/// An image that was opened and locked.
#[derive(Debug)]
pub(crate) struct OpenImage {
    /// Holds the lock ([EM3]).
    pub(crate) file: File,
    pub(crate) info: ImageInfo,
    /// Its path.
    pub(crate) name: String,
}

impl OpenImage {
    /// Errors: [`DeviceError::Busy`] where another process has it, [`DeviceError::Open`] where the file is no whole image.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, DeviceError> {
        let file = open_file(path, options.read_only)?;
        lock(path, &file, options.read_only && options.shared)?;
        let (info, state) = read_header(path, &file)?;
        if state == HeaderState::Whole && !options.read_only {
            renew_copy(&file);
        }
        Ok(Self { file, info, name: path.display().to_string() })
    }

    /// Maps the memory region, or the drive's DRAM.
    pub(crate) fn map(&self, read_only: bool) -> Result<Mapping, DeviceError> {
        self.map_range(self.info.memory_offset(), self.info.mapped_bytes(), read_only)
    }

    /// Maps the flash of a drive with firmware.
    pub(crate) fn map_flash(&self, read_only: bool) -> Result<Mapping, DeviceError> {
        let offset = self.info.block_offset();
        self.map_range(offset, self.info.file_bytes() - offset, read_only)
    }

    fn map_range(&self, offset: u64, length: u64, read_only: bool) -> Result<Mapping, DeviceError> {
        let options = MappingOptions { offset, length, read_only, ..MappingOptions::default() };
        Mapping::new(&self.name, &self.file, options).map_err(|error| refused(Path::new(&self.name), format!("cannot be mapped: {error}")))
    }

    /// What the drive can do.
    pub(crate) fn describe(&self, options: &OpenOptions) -> Result<DeviceDescription, DeviceError> {
        let mut description = DeviceDescription {
            name: self.name.clone(),
            memory_bytes: self.info.memory_bytes,
            block_bytes: self.info.block_bytes,
            cache_bytes: self.info.host_cache_bytes(),
            domain: self.info.domain,
            volatile_write_cache: false,
            overlapping: self.info.firmware.is_some_and(|model| !model.staging.is_host_cache()),
            discard: !options.read_only && self.info.block_bytes > 0,
            discard_zeroes: self.info.firmware.is_some() && !options.read_only,
            request_bytes: REQUEST_BYTES,
            nodes: MemoryNodes::default(),
        };
        description.lower_domain(options.domain)?;
        Ok(description)
    }
}

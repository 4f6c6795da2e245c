//! An emulated drive in one file ([E1]–[E4]).

use std::fs::{File, OpenOptions as FileOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstatvfs};
use rustix::io::Errno;
use tandemfs_device::{
    BlockPath, BlockRequest, BytePath, Device, DeviceDescription, DeviceError, Mapping, MappingOptions, PersistenceDomain,
};
use tandemfs_format::Sector;

use crate::block_region::BlockRegion;
use crate::header::{HEADER_BYTES, ImageInfo, MEMORY_OFFSET};
use crate::profiles::{profile, profiles};
use crate::timing::{Clock, Direction, now_ns, wait_until};

/// Requests beyond this are split over the channels of the emulated drive, in bytes: what its smallest channel count needs to overlap.
const REQUEST_BYTES: u32 = 64 << 10;

/// What image to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateOptions {
    /// Name of a profile.
    pub profile: String,
    /// Size of the memory region in bytes, a multiple of 2 MiB; 0 for the profile's default.
    pub memory_bytes: u64,
    /// Size of the block region in bytes, a multiple of 4 KiB; 0 for the profile's default.
    pub block_bytes: u64,
}

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
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { read_only: false, shared: false, domain: None, timing: true }
    }
}

/// An emulated drive in use.
#[derive(Debug)]
pub struct ImageDevice {
    description: DeviceDescription,
    memory: Mapping,
    /// Holds the file, and with it the lock ([E3]).
    blocks: BlockRegion,
    clock: Option<Clock>,
}

fn refused(path: &Path, reason: impl Into<String>) -> DeviceError {
    DeviceError::Open { path: path.display().to_string(), reason: reason.into() }
}

/// Creates an image that only its owner may read. Space for the memory region is reserved, the block region is sparse.
///
/// Errors ([`DeviceError::Open`]): the file exists, the profile is unknown, a size has no meaning, the host has no space. Nothing is left
/// behind then.
pub fn create(path: &Path, options: &CreateOptions) -> Result<ImageInfo, DeviceError> {
    let Some(profile) = profile(&options.profile) else {
        let names: Vec<_> = profiles().iter().map(|profile| profile.name).collect();
        return Err(refused(path, format!("there is no profile '{}'; name one of {}", options.profile, names.join(", "))));
    };
    let or_default = |size, default| if size == 0 { default } else { size };
    let image = ImageInfo {
        profile: profile.name.to_owned(),
        memory_bytes: or_default(options.memory_bytes, profile.default_memory_bytes),
        block_bytes: or_default(options.block_bytes, profile.default_block_bytes),
        domain: profile.domain,
        timing: profile.timing,
    };
    ImageInfo::check_sizes(image.memory_bytes, image.block_bytes).map_err(|reason| refused(path, reason))?;
    let file = FileOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => refused(path, "exists already; name another file or remove this one"),
        _ => refused(path, format!("cannot be created: {error}")),
    })?;
    fill(&file, &image).map_err(|reason| {
        // The name is ours: nobody else can have created it.
        let _ = std::fs::remove_file(path);
        refused(path, reason)
    })?;
    Ok(image)
}

fn fill(file: &File, image: &ImageInfo) -> Result<(), String> {
    let space = fstatvfs(file).map_err(|error| format!("cannot ask for free space: {error}"))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let no_space = |free: u64| {
        format!(
            "the memory region needs {} B on the host's disk and {free} B are free; make space or name a smaller size",
            image.memory_bytes
        )
    };
    // Asking first spares the host's disk from being filled up to learn that it is too small.
    if free < image.memory_bytes {
        return Err(no_space(free));
    }
    file.set_len(image.file_bytes())
        .map_err(|error| format!("the host's file system takes no file of {} B: {error}", image.file_bytes()))?;
    match reserve(file, MEMORY_OFFSET, image.memory_bytes) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::StorageFull => return Err(no_space(free)),
        Err(error) => return Err(format!("cannot reserve space for the memory region: {error}")),
    }
    // The header comes last: without it nothing is an image.
    file.write_all_at(&image.encode(), 0).and_then(|()| file.sync_all()).map_err(|error| format!("cannot write the header: {error}"))
}

fn reserve(file: &File, offset: u64, length: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), offset, length) {
        Err(Errno::OPNOTSUPP) => {
            // A host file system that cannot reserve can still be written to.
            let zeros = vec![0; 1 << 20];
            (0..length / zeros.len() as u64).try_for_each(|index| file.write_all_at(&zeros, offset + index * zeros.len() as u64))
        }
        other => Ok(other?),
    }
}

/// What an image is. Needs no lock, so it works on an image in use.
///
/// Errors: [`DeviceError::Open`] where the file is no whole image.
pub fn info(path: &Path) -> Result<ImageInfo, DeviceError> {
    read_header(path, &open_file(path, true)?)
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

fn read_header(path: &Path, file: &File) -> Result<ImageInfo, DeviceError> {
    let metadata = file.metadata().map_err(|error| refused(path, format!("cannot be examined: {error}")))?;
    if metadata.is_dir() {
        return Err(refused(path, "is a directory, not an image; name a file"));
    }
    if !metadata.is_file() {
        return Err(refused(path, "is not a regular file, so it is no image; name a real pair as memory=PATH,block=PATH"));
    }
    if metadata.len() == 0 {
        return Err(refused(path, "is an empty file, not an image; remove it and use 'tandemfs device create'"));
    }
    let mut page = [0; HEADER_BYTES];
    let readable = (metadata.len() as usize).min(HEADER_BYTES);
    file.read_exact_at(&mut page[..readable], 0).map_err(|error| refused(path, format!("cannot be read: {error}")))?;
    let image = ImageInfo::decode(&page).map_err(|reason| refused(path, reason))?;
    if metadata.len() < image.file_bytes() {
        let reason =
            format!("was cut short: it has {} B, its header says {} B; restore it from a copy", metadata.len(), image.file_bytes());
        return Err(refused(path, reason));
    }
    Ok(image)
}

impl ImageDevice {
    /// Opens an image and locks it.
    ///
    /// Errors: [`DeviceError::Busy`] where another process has it, [`DeviceError::Open`] where the file is no whole image of this version.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, DeviceError> {
        let file = open_file(path, options.read_only)?;
        let lock = if options.read_only && options.shared {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        flock(&file, lock).map_err(|error| match error {
            Errno::WOULDBLOCK => DeviceError::Busy { path: path.display().to_string() },
            error => refused(path, format!("cannot be locked: {error}")),
        })?;
        let image = read_header(path, &file)?;
        let name = path.display().to_string();
        let options_memory =
            MappingOptions { offset: MEMORY_OFFSET, length: image.memory_bytes, read_only: options.read_only, synchronous: false };
        let memory = Mapping::new(&name, &file, options_memory).map_err(|error| refused(path, format!("cannot be mapped: {error}")))?;
        let mut description = DeviceDescription {
            name: name.clone(),
            memory_bytes: image.memory_bytes,
            block_bytes: image.block_bytes,
            domain: image.domain,
            volatile_write_cache: false,
            overlapping: false,
            discard: !options.read_only,
            request_bytes: REQUEST_BYTES,
        };
        description.lower_domain(options.domain)?;
        let blocks = BlockRegion { name, file, start: image.block_offset(), length: image.block_bytes, read_only: options.read_only };
        let clock = image.timing.filter(|_| options.timing).map(Clock::new);
        Ok(Self { description, memory, blocks, clock })
    }

    /// Brings the memory region into the process's page table, so that first loads do not fault.
    pub fn populate(&self) -> io::Result<()> {
        self.memory.populate(0, self.description.memory_bytes)
    }
}

impl Device for ImageDevice {
    fn byte_path(&self) -> &dyn BytePath {
        self
    }

    fn block_path(&self) -> &dyn BlockPath {
        self
    }

    fn description(&self) -> &DeviceDescription {
        &self.description
    }
}

impl BytePath for ImageDevice {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let Some(clock) = &self.clock else { return self.memory.load(offset, into) };
        let arrival = now_ns();
        self.memory.load(offset, into)?;
        clock.finish_load(arrival, into.len());
        Ok(())
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let Some(clock) = &self.clock else { return self.memory.store(offset, from) };
        let arrival = now_ns();
        self.memory.store(offset, from)?;
        clock.finish_store(arrival, from.len());
        Ok(())
    }

    /// Nothing to do: the page cache of the host is the drive's memory, and the CPU's caches are coherent with it ([E2]).
    fn flush(&self, _offset: u64, _length: u64) {}

    fn fence(&self) {
        self.memory.fence();
    }
}

impl BlockPath for ImageDevice {
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        // When each would be done, and which it is.
        let mut order: Vec<(u64, usize)> = match &self.clock {
            None => (0..requests.len()).map(|index| (0, index)).collect(),
            Some(clock) => {
                let arrival = now_ns();
                let submit = |(index, request): (usize, &BlockRequest<'_>)| {
                    let direction = match request {
                        BlockRequest::Read { .. } => Direction::Read,
                        BlockRequest::Write { .. } => Direction::Write,
                    };
                    (clock.submit(arrival, direction, request.bytes().len() as u64), index)
                };
                requests.iter().enumerate().map(submit).collect()
            }
        };
        order.sort_unstable();
        if self.clock.is_none() {
            meanwhile();
        }
        // As on a drive, a failed request does not keep the others of its batch from being done.
        let mut results = Ok(());
        let mut failed = Vec::new();
        for (_, index) in &order {
            match self.blocks.transfer(&mut requests[*index]) {
                // Without a clock the request is done now, while its bytes are in the CPU's caches.
                Ok(()) if self.clock.is_none() => completed(*index, &requests[*index]),
                Ok(()) => {}
                Err(error) => {
                    failed.push(*index);
                    results = results.and(Err(error));
                }
            }
        }
        if self.clock.is_some() {
            meanwhile();
            for (done, index) in order {
                wait_until(done);
                if !failed.contains(&index) {
                    completed(index, &requests[index]);
                }
            }
        }
        results
    }

    /// Nothing to do: what was written is in the page cache of the host, which survives the process ([E2]).
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        self.blocks.discard(sector, count)
    }
}

//! The attached device: a pair of real devices. The memory half is mapped (`/dev/daxX.Y`, a file on a DAX mount, any file or block device).
//! The block half is accessed through io_uring with `O_DIRECT` (NVMe, any block device or file).
//!
//! [AT1] The persistence domain is what the kernel reports for the memory half: `gpf` if the platform saves CPU caches at a power failure,
//!       `adr` if only flushed lines survive, `process` if stores go to a page cache.
//! [AT2] Both halves are locked exclusively while in use. Readers may share the lock if they ask for it. A block device that is mounted or
//!       part of another device is refused.
//! [AT3] The domain decides whether FLUSH is needed. In `process` nothing survives a power failure, so FLUSH does nothing. In every other
//!       domain, `none` included (there only blocks survive), written blocks must survive a power failure: a drive's volatile cache is
//!       flushed, and a file is always synced, since its extents reach the medium only with fdatasync.
//! [AT4] The last bytes of the memory half may be a cache that the host manages, as many as the opening says: nothing on the halves says so.
//!       Between it and the block half the host moves (`mover.rs`).
//! [AT5] A half that its owner has made larger is taken into use as a whole, when somebody asks: its space is there and its size durable before the
//!       description says so. With a cache, which would no longer be at the end, both halves stay as they are.

mod block_half;
mod memory_half;
mod mover;
mod rings;
mod sysfs;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use block_half::BlockHalf;
use memory_half::MemoryHalf;
use mover::{Halves, Mover};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::{
    BlockPath, BlockRequest, BytePath, CacheMoves, Device, DeviceDescription, DeviceError, LentZone, MappedMemory, MemoryRange,
    PersistenceDomain, REQUEST_BYTES, Replaced, StoreWay, StoreZone, Structure, ZoneHold, open_patiently,
};
use tandemfs_format::size::size;
use tandemfs_format::{SECTOR_BYTES, UNIT_BYTES};

/// How to open a pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PairOptions {
    /// Loads and reads only; works without write permission.
    pub read_only: bool,
    /// Share both halves with other readers. Ignored without `read_only`.
    pub shared: bool,
    /// Lower the persistence domain to this; raising it is refused.
    pub domain: Option<PersistenceDomain>,
    /// How many of the last bytes of the memory half are a cache that the host manages ([AT4]); 0: none. Needs a block half.
    pub cache_bytes: u64,
}

/// A memory device and a block device that serve as one hybrid SSD, or a memory device alone.
#[derive(Debug)]
pub struct PairDevice {
    description: Replaced<DeviceDescription>,
    memory: Arc<MemoryHalf>,
    /// `None`: there are no sectors.
    block: Option<Arc<BlockHalf>>,
    /// `None`: there is no cache.
    mover: Option<Mover>,
}

impl PairDevice {
    /// Opens and locks both halves.
    ///
    /// # Errors
    /// `Open` with one sentence if a half cannot be used, `Busy` if another process has it open.
    pub fn open(memory: &Path, block: &Path, options: &PairOptions) -> Result<Self, DeviceError> {
        let mut name = format!("memory={},block={}", memory.display(), block.display());
        if options.cache_bytes > 0 {
            name += &format!(",cache={}", options.cache_bytes);
        }
        if is_same(memory, block) {
            return Err(DeviceError::Open { path: name, reason: "both halves are the same file; name two".into() });
        }
        Self::open_halves(name, memory, Some(block), options)
    }

    /// Opens and locks a memory half that has no other half: a device without sectors.
    ///
    /// # Errors
    /// As [`PairDevice::open`].
    pub fn open_memory(memory: &Path, options: &PairOptions) -> Result<Self, DeviceError> {
        Self::open_halves(format!("memory={}", memory.display()), memory, None, options)
    }

    fn open_halves(name: String, memory: &Path, block: Option<&Path>, options: &PairOptions) -> Result<Self, DeviceError> {
        let access = Access { read_only: options.read_only, shared: options.read_only && options.shared };
        let memory = Arc::new(MemoryHalf::open(memory, access)?);
        let block = block.map(|block| BlockHalf::open(block, access).map(Arc::new)).transpose()?;
        let cache_bytes = options.cache_bytes;
        if let Err(reason) = check_cache(cache_bytes, &memory, block.is_some()) {
            return Err(DeviceError::Open { path: name, reason });
        }
        let mut description = DeviceDescription {
            name,
            memory_bytes: memory.bytes() - cache_bytes,
            block_bytes: block.as_deref().map_or(0, BlockHalf::bytes),
            cache_bytes,
            domain: memory.domain(),
            volatile_write_cache: false,
            overlapping: false,
            discard: block.as_deref().is_some_and(BlockHalf::can_discard) && !options.read_only,
            discard_zeroes: false,
            request_bytes: block.as_deref().map_or(REQUEST_BYTES, BlockHalf::request_bytes),
            nodes: memory.nodes(),
        };
        description.lower_domain(options.domain)?;
        // [AT3]
        let has_cache = block.as_deref().is_some_and(BlockHalf::has_volatile_cache);
        description.volatile_write_cache = has_cache && description.domain != PersistenceDomain::Process;
        let halves = |block: &Arc<BlockHalf>| Halves {
            name: description.name.clone(),
            domain: description.domain,
            memory: Arc::clone(&memory),
            block: Arc::clone(block),
        };
        let mover =
            block.as_ref().filter(|_| cache_bytes > 0).map(|block| Mover::new(halves(block), description.clone(), options.read_only));
        Ok(Self { description: Replaced::new(description), memory, block, mover })
    }

    /// The block half, for an access to so many bytes from a sector on.
    fn block(&self, sector: tandemfs_format::Sector, length: u64) -> Result<&BlockHalf, DeviceError> {
        let offset = sector.number().saturating_mul(SECTOR_BYTES as u64);
        self.block.as_deref().ok_or_else(|| DeviceError::OutOfRange { device: self.description.name.clone(), offset, length, size: 0 })
    }
}

/// One sentence that says why the memory half has no such cache, if so ([AT4]).
fn check_cache(cache_bytes: u64, memory: &MemoryHalf, has_blocks: bool) -> Result<(), String> {
    let unit = memory.unit().max(UNIT_BYTES);
    if cache_bytes == 0 {
        Ok(())
    } else if !has_blocks {
        Err("a cache is moved to and from a block half; name one, or leave cache= away".into())
    } else if !cache_bytes.is_multiple_of(unit) {
        Err(format!("cache={cache_bytes} is no multiple of {}, in which the memory half is mapped; name another size", size(unit)))
    } else if cache_bytes >= memory.bytes() {
        Err(format!(
            "a cache of {} leaves no memory zone: the memory half has {}; name a smaller one",
            size(cache_bytes),
            size(memory.bytes())
        ))
    } else {
        Ok(())
    }
}

/// Access mode of a half.
#[derive(Debug, Clone, Copy)]
struct Access {
    read_only: bool,
    /// Others may read at the same time; only with `read_only`.
    shared: bool,
}

/// An opened half.
struct Opened {
    file: File,
    metadata: std::fs::Metadata,
    /// Whether I/O bypasses the page cache (O_DIRECT).
    direct: bool,
}

/// Opens and locks a half, waiting a moment while it is in use.
fn open_half(path: &Path, access: Access, want_direct: bool) -> Result<Opened, DeviceError> {
    open_patiently(|| try_open_half(path, access, want_direct))
}

/// Opens and locks a half ([AT2]), with O_DIRECT if the caller wants it and the file system supports it.
fn try_open_half(path: &Path, access: Access, want_direct: bool) -> Result<Opened, DeviceError> {
    let refuse = |reason: String| DeviceError::Open { path: path.display().to_string(), reason };
    let busy = || DeviceError::Busy { path: path.display().to_string() };
    let metadata = std::fs::metadata(path).map_err(|error| refuse(describe(&error, access)))?;
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() && !kind.is_char_device() {
        let what = if kind.is_dir() { "a directory" } else { "no device and no file" };
        return Err(refuse(format!("is {what}; a half is a device or a file")));
    }
    // O_EXCL on a block device: the kernel refuses one that is mounted or part of another, and every second holder.
    let is_exclusive = kind.is_block_device() && !access.shared;
    let flags = if is_exclusive { OFlags::EXCL } else { OFlags::empty() };
    let open = |flags: OFlags| OpenOptions::new().read(true).write(!access.read_only).custom_flags(flags.bits() as i32).open(path);
    let opened = if want_direct { open(flags | OFlags::DIRECT) } else { open(flags) };
    let (file, direct) = match opened {
        Ok(file) => (file, want_direct),
        // The file system has no O_DIRECT: I/O through the page cache is slower but correct.
        Err(error) if want_direct && error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            (open(flags).map_err(|error| refuse(describe(&error, access)))?, false)
        }
        Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => return Err(busy()),
        Err(error) => return Err(refuse(describe(&error, access))),
    };
    let lock = if access.shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    match flock(&file, lock) {
        Ok(()) => Ok(Opened { file, metadata, direct }),
        Err(Errno::WOULDBLOCK) => Err(busy()),
        Err(error) => Err(refuse(format!("cannot be locked: {error}"))),
    }
}

/// Whether two paths name one file or one device.
fn is_same(a: &Path, b: &Path) -> bool {
    let (Ok(a), Ok(b)) = (std::fs::metadata(a), std::fs::metadata(b)) else { return false };
    let is_device = |metadata: &std::fs::Metadata| metadata.file_type().is_block_device() || metadata.file_type().is_char_device();
    if is_device(&a) && is_device(&b) {
        (a.file_type(), a.rdev()) == (b.file_type(), b.rdev())
    } else {
        (a.dev(), a.ino()) == (b.dev(), b.ino())
    }
}

fn describe(error: &std::io::Error, access: Access) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "does not exist; name a device or a file of the size that the half shall have".to_owned(),
        std::io::ErrorKind::PermissionDenied if !access.read_only => {
            "may not be written; ask its owner for permission, or open it read-only".to_owned()
        }
        _ => format!("cannot be opened: {error}"),
    }
}

impl Device for PairDevice {
    fn byte_path(&self) -> &dyn BytePath {
        self
    }

    fn block_path(&self) -> &dyn BlockPath {
        self
    }

    fn description(&self) -> &DeviceDescription {
        &self.description
    }

    fn cache_moves(&self) -> Option<&dyn CacheMoves> {
        self.mover.as_ref().map(|mover| mover as &dyn CacheMoves)
    }

    fn mapping_unit(&self) -> Option<u64> {
        Some(self.memory.unit())
    }

    fn map(&self, ranges: &[MemoryRange], writable: bool) -> Result<Box<dyn MappedMemory>, DeviceError> {
        self.memory.map(ranges, writable)
    }

    fn lent_zone(&self) -> Option<std::io::Result<LentZone>> {
        Some(self.memory.lent(self.description.memory_bytes))
    }

    fn store_zone(&self, program: u32) -> Option<std::io::Result<(StoreZone, ZoneHold)>> {
        Some(self.memory.for_stores(self.description.memory_bytes, program))
    }

    fn is_zone_held(&self) -> bool {
        self.memory.is_held()
    }

    /// [AT5]
    fn grow(&self, _memory_bytes: Option<u64>, _block_bytes: Option<u64>) -> Result<(), DeviceError> {
        if self.description.cache_bytes > 0 {
            let reason = "has a cache at the end of its memory half, so it cannot grow in use".into();
            return Err(DeviceError::Open { path: self.description.name.clone(), reason });
        }
        self.memory.grow()?;
        self.block.as_deref().map_or(Ok(()), BlockHalf::grow)?;
        let (memory_bytes, block_bytes) = (self.memory.bytes(), self.block.as_deref().map_or(0, BlockHalf::bytes));
        self.description.replace(DeviceDescription { memory_bytes, block_bytes, ..self.description.clone() });
        Ok(())
    }
}

impl BytePath for PairDevice {
    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.mapping().load(offset, into)
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.memory.store(offset, from, self.description.domain)
    }

    fn store_by(&self, _structure: Structure, way: StoreWay, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        match way {
            StoreWay::NonTemporal => self.memory.mapping().store_streaming(offset, from),
            StoreWay::Cached | StoreWay::Pinned => self.memory.mapping().store(offset, from),
        }
    }

    fn flush(&self, offset: u64, length: u64) {
        self.memory.mapping().flush(offset, length);
    }

    fn fence(&self) {
        self.memory.mapping().fence();
    }

    fn flushed(&self) -> Result<(), DeviceError> {
        self.memory.mapping().flushed()
    }
}

impl BlockPath for PairDevice {
    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        let Some(first) = requests.first() else {
            meanwhile();
            return Ok(());
        };
        let (sector, length) = (first.sector(), first.bytes().len() as u64);
        self.block(sector, length)?.transfer_each(requests, meanwhile, completed)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.block.as_deref().map_or(Ok(()), BlockHalf::flush)
    }

    fn discard(&self, sector: tandemfs_format::Sector, count: u64) -> Result<(), DeviceError> {
        self.block(sector, count.saturating_mul(SECTOR_BYTES as u64))?.discard(sector, count)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use tandemfs_format::{SECTOR_BYTES, Sector};

    use super::*;
    use crate::{CacheMove, MoveDirection, MoveState, MoveTicket};

    fn pair(folder: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
        let (memory, block) = (folder.join("memory"), folder.join("block"));
        File::create(&memory).and_then(|file| file.set_len(4 << 20)).expect("a file");
        File::create(&block).and_then(|file| file.set_len(8 << 20)).expect("a file");
        (memory, block)
    }

    #[test]
    fn files_serve_as_a_pair_with_requests_of_any_alignment() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, block) = pair(folder.path());
        let device = PairDevice::open(&memory, &block, &PairOptions::default()).expect("opens");
        assert_eq!((device.description().memory_bytes, device.description().block_bytes), (4 << 20, 8 << 20));
        assert_eq!(device.description().domain, PersistenceDomain::Process);
        device.store(77, b"by bytes").expect("stores");
        let mut bytes = [0; 8];
        device.load(77, &mut bytes).expect("loads");
        assert_eq!(&bytes, b"by bytes");
        // 200 requests, more than a ring takes at once, from memory that is aligned to nothing.
        let data: Vec<u8> = (0..201 * SECTOR_BYTES).map(|i| (i / 61) as u8).collect();
        let mut requests: Vec<BlockRequest<'_>> = (0..200)
            .map(|i| BlockRequest::Write {
                sector: Sector::new(i * 3),
                buffer: (&data[1 + i as usize * SECTOR_BYTES..][..SECTOR_BYTES]).into(),
            })
            .collect();
        let mut called = 0;
        device.transfer(&mut requests, &mut || called += 1).expect("writes");
        device.block_path().flush().expect("flushes");
        assert_eq!(called, 1);
        for i in 0..200 {
            let mut sector = vec![0; SECTOR_BYTES + 3];
            let mut request = [BlockRequest::Read { sector: Sector::new(i * 3), buffer: (&mut sector[3..]).into() }];
            device.transfer(&mut request, &mut || {}).expect("reads");
            assert_eq!(sector[3..], data[1 + i as usize * SECTOR_BYTES..][..SECTOR_BYTES]);
        }
        let mut sector = vec![0; SECTOR_BYTES];
        let mut beyond = [BlockRequest::Read { sector: Sector::new(2048), buffer: (&mut sector).into() }];
        assert!(matches!(device.transfer(&mut beyond, &mut || {}), Err(DeviceError::OutOfRange { .. })));
    }

    #[test]
    fn ranges_of_the_memory_half_are_mapped_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, block) = pair(folder.path());
        let device = PairDevice::open(&memory, &block, &PairOptions::default()).expect("opens");
        assert_eq!(device.mapping_unit(), Some(4096));
        let range = |page: u64| MemoryRange { offset: page * 4096, length: 4096 };
        let map = device.map(&[range(700), range(3)], true).expect("mapped");
        device.store(700 * 4096 + 10, b"by call").expect("stored");
        map.copy_in(4096, b"by address").expect("stored");
        let (mut by_call, mut by_address) = ([0; 10], [0; 7]);
        device.load(3 * 4096, &mut by_call).expect("loaded");
        map.copy_out(10, &mut by_address).expect("loaded");
        assert_eq!((&by_call, &by_address), (b"by address", b"by call"));
        drop(device);
        map.copy_out(4096, &mut by_call).expect("a map outlives the device's own");
        assert!(matches!(PairDevice::open(&memory, &block, &PairOptions::default()), Err(DeviceError::Busy { .. })), "it is in use");
        drop(map);
        let reading = PairDevice::open(&memory, &block, &PairOptions { read_only: true, ..PairOptions::default() }).expect("opens");
        assert!(matches!(reading.map(&[range(3)], true), Err(DeviceError::Block { operation: "store", .. })));
        reading.map(&[range(3)], false).expect("mapped").copy_out(0, &mut by_call).expect("loaded");
        assert_eq!(&by_call, b"by address");
    }

    #[test]
    fn a_memory_half_alone_has_no_sectors() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, _) = pair(folder.path());
        let device = PairDevice::open_memory(&memory, &PairOptions::default()).expect("opens");
        let description = device.description();
        assert_eq!((description.memory_bytes, description.block_bytes, description.discard), (4 << 20, 0, false));
        assert_eq!(description.name, format!("memory={}", memory.display()));
        device.store(77, b"by bytes").expect("stores");
        let (mut called, mut sector) = (0, vec![0; SECTOR_BYTES]);
        device.transfer(&mut [], &mut || called += 1).expect("nothing to do");
        let mut read = [BlockRequest::Read { sector: Sector::new(0), buffer: (&mut sector).into() }];
        assert!(matches!(device.transfer(&mut read, &mut || {}), Err(DeviceError::OutOfRange { size: 0, .. })));
        assert!(matches!(device.block_path().discard(Sector::new(0), 1), Err(DeviceError::OutOfRange { .. })));
        device.block_path().flush().expect("nothing to flush");
        assert_eq!(called, 1);
        assert!(matches!(PairDevice::open_memory(&memory, &PairOptions::default()), Err(DeviceError::Busy { .. })));
    }

    #[test]
    fn halves_that_cannot_be_used_are_refused_in_a_sentence() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, block) = pair(folder.path());
        let _used = PairDevice::open(&memory, &block, &PairOptions::default()).expect("opens");
        assert!(matches!(PairDevice::open(&memory, &block, &PairOptions::default()), Err(DeviceError::Busy { .. })));
        let refused = |memory: &Path, block: &Path| {
            PairDevice::open(memory, block, &PairOptions::default()).map(drop).expect_err("refused").to_string()
        };
        assert!(refused(&block, &block).contains("same file"));
        assert!(refused(&folder.path().join("nothing"), &block).contains("nothing: does not exist"));
        assert!(refused(folder.path(), &block).contains("directory"));
        let empty = folder.path().join("empty");
        File::create(&empty).expect("a file");
        assert!(refused(&empty, &block).contains("empty"));
    }

    /// A mount that followed a `kill -9` of the daemon at once failed with 'in use': the dead process's block half was still locked.
    #[test]
    fn regression_a_half_that_a_dying_daemon_still_holds_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, block) = pair(folder.path());
        let opens_while_held = || {
            let held = File::open(&block).expect("opens");
            flock(&held, FlockOperation::NonBlockingLockExclusive).expect("locks");
            let freed = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                drop(held);
            });
            let opened = PairDevice::open(&memory, &block, &PairOptions::default()).map(drop);
            freed.join().expect("freed");
            opened
        };
        // A busy machine may free it too late, but not each time.
        let tries: Vec<_> = (0..20).map(|_| opens_while_held()).take_while(Result::is_err).collect();
        assert!(tries.len() < 20, "{tries:?}");
    }

    #[test]
    fn opening_for_reading_writes_nothing_and_can_be_shared() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, block) = pair(folder.path());
        let shared = PairOptions { read_only: true, shared: true, ..PairOptions::default() };
        let device = PairDevice::open(&memory, &block, &shared).expect("opens");
        let _beside = PairDevice::open(&memory, &block, &shared).expect("opens beside it");
        assert!(matches!(PairDevice::open(&memory, &block, &PairOptions::default()), Err(DeviceError::Busy { .. })));
        let alone = PairOptions { shared: false, ..shared };
        assert!(matches!(PairDevice::open(&memory, &block, &alone), Err(DeviceError::Busy { .. })));
        let page = vec![0; SECTOR_BYTES];
        let mut write = [BlockRequest::Write { sector: Sector::new(0), buffer: (&page).into() }];
        assert!(matches!(device.transfer(&mut write, &mut || {}), Err(DeviceError::Block { operation: "write", .. })));
        assert!(matches!(device.store(0, &page), Err(DeviceError::Block { operation: "store", .. })));
        assert!(device.block_path().discard(Sector::new(0), 1).is_err());
    }

    #[test]
    fn flushes_are_asked_for_where_blocks_must_outlive_the_power() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, block) = pair(folder.path());
        let open = |domain| PairDevice::open(&memory, &block, &PairOptions { domain, ..PairOptions::default() });
        assert!(!open(None).expect("opens").description().volatile_write_cache);
        assert!(open(Some(PersistenceDomain::None)).expect("opens").description().volatile_write_cache);
        let error = open(Some(PersistenceDomain::Adr)).expect_err("refused").to_string();
        assert!(error.contains("it has 'process'"), "{error}");
    }

    #[test]
    fn sparse_memory_is_reserved_and_blocks_are_discarded() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, block) = pair(folder.path());
        let taken = |path: &Path| std::fs::metadata(path).expect("there").blocks() * 512;
        let device = PairDevice::open(&memory, &block, &PairOptions::default()).expect("opens");
        assert!(taken(&memory) >= 4 << 20);
        let data = vec![1; 1 << 20];
        device.transfer(&mut [BlockRequest::Write { sector: Sector::new(0), buffer: (&data).into() }], &mut || {}).expect("writes");
        device.block_path().flush().expect("flushes");
        let before = taken(&block);
        device.block_path().discard(Sector::new(0), 256).expect("discards");
        assert!(taken(&block) < before);
        assert!(matches!(device.block_path().discard(Sector::new(u64::MAX), 1), Err(DeviceError::OutOfRange { .. })));
    }

    #[test]
    fn many_threads_drive_the_block_half_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (memory, block) = pair(folder.path());
        let device = PairDevice::open(&memory, &block, &PairOptions::default()).expect("opens");
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let device = &device;
                scope.spawn(move || {
                    for round in 0..50_u8 {
                        let sector = Sector::new(thread * 16 + u64::from(round) % 16);
                        let bytes = vec![round ^ thread as u8; SECTOR_BYTES];
                        device.transfer(&mut [BlockRequest::Write { sector, buffer: (&bytes).into() }], &mut || {}).expect("writes");
                        let mut read = vec![0; SECTOR_BYTES];
                        device.transfer(&mut [BlockRequest::Read { sector, buffer: (&mut read).into() }], &mut || {}).expect("reads");
                        assert_eq!(read, bytes);
                    }
                });
            }
        });
    }

    fn with_cache(folder: &Path, cache_bytes: u64) -> Result<PairDevice, DeviceError> {
        let (memory, block) = pair(folder);
        PairDevice::open(&memory, &block, &PairOptions { cache_bytes, ..PairOptions::default() })
    }

    fn done(device: &PairDevice, command: &CacheMove) -> Result<(), DeviceError> {
        let moves = device.cache_moves().expect("a cache");
        let mut ticket = moves.submit(command)?.expect("a place");
        loop {
            match moves.wait(ticket, Duration::from_millis(50)) {
                MoveState::Done(result) => return result,
                MoveState::Pending(pending) => ticket = pending,
            }
        }
    }

    #[test]
    fn the_host_moves_between_the_halves_of_a_pair() {
        let folder = tempfile::tempdir().expect("a folder");
        let device = with_cache(folder.path(), 2 << 20).expect("opens");
        let description = device.description();
        assert_eq!((description.memory_bytes, description.cache_bytes), (2 << 20, 2 << 20));
        assert!(description.name.ends_with(",cache=2097152"));
        // More pages than one part has, and more commands than threads.
        let data: Vec<u8> = (0..100 * SECTOR_BYTES).map(|i| (i / 67) as u8).collect();
        device.store((2 << 20) + 3 * 4096, &data).expect("stores");
        let out = CacheMove { direction: MoveDirection::ToFlash, cache_page: 3, sector: Sector::new(500), count: 100 };
        done(&device, &out).expect("moved");
        let mut read = vec![0; data.len()];
        device.transfer(&mut [BlockRequest::Read { sector: Sector::new(500), buffer: (&mut read[..]).into() }], &mut || {}).expect("reads");
        assert!(read == data);
        let moves = device.cache_moves().expect("a cache");
        let tickets: Vec<_> = (0..64)
            .map(|index| CacheMove {
                direction: MoveDirection::ToCache,
                cache_page: 200 + index,
                sector: Sector::new(500 + index),
                count: 1,
            })
            .map(|command| moves.submit(&command).expect("inside").expect("a place"))
            .collect();
        assert!(moves.submit(&out).expect("inside").is_none(), "as many as the queue has");
        for mut ticket in tickets {
            while let MoveState::Pending(pending) = moves.poll(ticket) {
                ticket = pending;
                std::thread::yield_now();
            }
        }
        let mut loaded = vec![0; 64 * SECTOR_BYTES];
        device.load((2 << 20) + 200 * 4096, &mut loaded).expect("loads");
        assert!(loaded == data[..64 * SECTOR_BYTES]);
    }

    #[test]
    fn a_move_on_a_pair_that_fails_says_so_and_what_is_no_cache_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let device = with_cache(folder.path(), 2 << 20).expect("opens");
        let command = |sector, count| CacheMove { direction: MoveDirection::ToCache, cache_page: 0, sector: Sector::new(sector), count };
        assert!(matches!(device.cache_moves().expect("a cache").submit(&command(2048, 1)), Err(DeviceError::OutOfRange { .. })));
        File::options().write(true).open(folder.path().join("block")).and_then(|file| file.set_len(4 << 20)).expect("cut short");
        let error = done(&device, &command(2000, 2)).expect_err("nothing is there").to_string();
        assert!(error.contains("move to cache of 8192 B at byte 8192000 failed"), "{error}");
        let wrong = device.cache_moves().map(|moves| moves.poll(MoveTicket::new(99)));
        assert!(matches!(wrong, Some(MoveState::Done(Err(DeviceError::Firmware { command: "MOVE", .. })))));
        drop(device);
        let refused = |cache_bytes| with_cache(folder.path(), cache_bytes).expect_err("refused").to_string();
        assert!(refused(4 << 20).contains("leaves no memory zone"));
        assert!(refused(4096).contains("is no multiple of 2 MiB"));
        let (memory, block) = pair(folder.path());
        let alone = PairDevice::open_memory(&memory, &PairOptions { cache_bytes: 2 << 20, ..PairOptions::default() });
        assert!(alone.expect_err("refused").to_string().contains("a cache is moved to and from a block half"));
        let reading = PairOptions { read_only: true, cache_bytes: 2 << 20, ..PairOptions::default() };
        let device = PairDevice::open(&memory, &block, &reading).expect("opens");
        let refused = device.cache_moves().expect("a cache").submit(&command(0, 1)).expect_err("it would store").to_string();
        assert!(refused.contains("Read-only file system"), "{refused}");
    }

    /// A device that is closed amid MOVEs ends its threads, so that both halves are free.
    #[test]
    fn a_pair_is_closed_amid_moves() {
        let folder = tempfile::tempdir().expect("a folder");
        for _ in 0..10 {
            let device = with_cache(folder.path(), 2 << 20).expect("opens: nobody has it");
            let moves = device.cache_moves().expect("a cache");
            let command = CacheMove { direction: MoveDirection::ToFlash, cache_page: 0, sector: Sector::new(0), count: 128 };
            let tickets: Vec<_> = (0..40).filter_map(|_| moves.submit(&command).expect("inside")).collect();
            assert_eq!(tickets.len(), 40);
        }
    }
}

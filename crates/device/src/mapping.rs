//! Device memory mapped into the process, shared by the emulated and the attached byte path.
//!
//! No reference and no pointer into a mapping leaves this module, so every access uses the copy routines that survive a fault (RULES R23).

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use tandemfs_format::LINE_BYTES;

use crate::copy::{self, Fault};
use crate::ranges::{MappedRanges, RangeOptions};
use crate::{DeviceError, MappedMemory, MemoryRange, PersistenceDomain};

/// No flush has failed so far.
const NOWHERE: u64 = u64::MAX;

/// What to map, and how.
#[derive(Debug, Clone, Copy, Default)]
pub struct MappingOptions {
    /// Offset of the mapping in the file, in bytes; a multiple of the page size (2 MiB on a devdax).
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Map for loads only: a store is refused.
    pub read_only: bool,
    /// Request MAP_SYNC: the file system keeps its metadata durable for mapped stores (fsdax). If it is refused, the mapping is an
    /// ordinary shared one; [`Mapping::is_synchronous`] says which it became.
    pub synchronous: bool,
    /// Forked children do not get it.
    pub not_inherited: bool,
}

/// A shared mapping of a file or a device.
#[derive(Debug)]
pub struct Mapping {
    name: String,
    start: NonNull<u8>,
    /// Where it begins in the file.
    file_offset: u64,
    length: u64,
    read_only: bool,
    synchronous: bool,
    /// Where a flush first failed. A flush cannot return an error, so the next load or store returns it. One for all that follow each other
    /// ([`Mapping::larger`]).
    flush_failed_at: Arc<AtomicU64>,
}

// SAFETY: the mapping is shared memory that lives until drop. It is accessed only through copies in assembly (volatile accesses elsewhere),
// never through references, so accesses of several threads are races of the device's bytes, not of Rust objects.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part of `file`. `name` is the device's name in errors.
    ///
    /// The mapping stays when the file is closed.
    pub fn new(name: &str, file: &File, options: MappingOptions) -> io::Result<Self> {
        copy::install()?;
        let length = usize::try_from(options.length).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let protection = if options.read_only { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
        let map = |flags| {
            // SAFETY: the kernel chooses an address range that nothing uses.
            unsafe { mmap(std::ptr::null_mut(), length, protection, flags, file, options.offset) }
        };
        let synchronous_start = options.synchronous.then(|| map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC).ok()).flatten();
        let start = match synchronous_start {
            Some(start) => start,
            None => map(MapFlags::SHARED)?,
        };
        // SAFETY: advice about the range just mapped; it changes no contents. Refused where huge pages make no sense, which is no error.
        let _ = unsafe { madvise(start, length, Advice::LinuxHugepage) };
        if options.not_inherited {
            // SAFETY: advice about the same range; it changes what a later fork does, not the range.
            let _ = unsafe { madvise(start, length, Advice::LinuxDontFork) };
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        Ok(Self {
            name: name.to_owned(),
            start,
            file_offset: options.offset,
            length: options.length,
            read_only: options.read_only,
            synchronous: synchronous_start.is_some(),
            flush_failed_at: Arc::new(AtomicU64::new(NOWHERE)),
        })
    }

    /// A larger one of the same file from the same place on, for a file that has grown; this one stays. A flush that failed by one of them has
    /// failed by both.
    ///
    /// # Errors
    /// What the kernel refuses; `Unsupported` where it does not grant MAP_SYNC again.
    pub fn larger(&self, file: &File, length: u64, not_inherited: bool) -> io::Result<Self> {
        let options =
            MappingOptions { offset: self.file_offset, length, read_only: self.read_only, synchronous: self.synchronous, not_inherited };
        let mut larger = Self::new(&self.name, file, options)?;
        if larger.synchronous != self.synchronous {
            return Err(io::ErrorKind::Unsupported.into());
        }
        larger.flush_failed_at = Arc::clone(&self.flush_failed_at);
        Ok(larger)
    }

    /// Maps ranges of it once more, one behind the other, from the file that it was made of. `unit` is the granule of that file's mappings.
    ///
    /// # Errors
    /// [`DeviceError::Map`], [`DeviceError::OutOfRange`]; [`DeviceError::Block`] with EROFS to store to a mapping for loads only.
    pub fn map_ranges(&self, file: &File, unit: u64, ranges: &[MemoryRange], writable: bool) -> Result<Box<dyn MappedMemory>, DeviceError> {
        if writable && self.read_only {
            let (source, length) = (io::Error::from_raw_os_error(libc::EROFS), 0);
            return Err(DeviceError::Block { device: self.name.clone(), operation: "store", offset: 0, length, source });
        }
        let options =
            RangeOptions { name: &self.name, zone: (self.file_offset, self.length), unit, writable, synchronous: self.synchronous };
        Ok(Box::new(MappedRanges::new(file, options, ranges)?))
    }

    /// The device's name in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it begins in the file, in bytes.
    pub fn file_offset(&self) -> u64 {
        self.file_offset
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether the kernel granted MAP_SYNC.
    pub fn is_synchronous(&self) -> bool {
        self.synchronous
    }

    /// The best domain that this processor's instructions can keep on memory of domain `device`.
    pub fn reachable_domain(device: PersistenceDomain) -> PersistenceDomain {
        if device.needs_flush() && !copy::CAN_FLUSH { PersistenceDomain::Process } else { device }
    }

    /// Copies `into.len()` bytes from `offset`. Errors: [`DeviceError::OutOfRange`], [`DeviceError::Poisoned`].
    #[inline]
    pub fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let source = self.at(offset, into.len())?;
        // SAFETY: `at` has checked the range; `into` is host memory, which no mapping overlaps.
        unsafe { copy::copy(into.as_mut_ptr(), source, into.len()) }.map_err(|fault| self.poisoned(offset, fault))
    }

    /// Copies `from` to `offset`. Errors: [`DeviceError::OutOfRange`], [`DeviceError::Poisoned`], and [`DeviceError::Block`] with EROFS on
    /// a mapping for loads only.
    #[inline]
    pub fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let target = self.writable_at(offset, from.len())?;
        // SAFETY: `writable_at` has checked range and protection; `from` is host memory, which no mapping overlaps.
        unsafe { copy::copy(target, from.as_ptr(), from.len()) }.map_err(|fault| self.poisoned(offset, fault))
    }

    /// As [`Mapping::store`], but bypasses the CPU's caches: for bytes that are not read soon and would need a flush. Only whole aligned
    /// 32 B pieces bypass them, so the range still needs [`Mapping::flush`], and always [`Mapping::fence`].
    pub fn store_streaming(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let target = self.writable_at(offset, from.len())?;
        // SAFETY: as in `store`.
        unsafe { copy::copy_streaming(target, from.as_ptr(), from.len()) }.map_err(|fault| self.poisoned(offset, fault))
    }

    /// Starts writing the lines of a range back from the CPU's caches. A range outside the mapping is cut. A failure is reported by
    /// [`Mapping::flushed`] and by every store from then on.
    pub fn flush(&self, offset: u64, length: u64) {
        let line = LINE_BYTES as u64;
        let first = offset.min(self.length) / line * line;
        let end = offset.saturating_add(length).min(self.length);
        if end <= first || self.read_only {
            return;
        }
        // SAFETY: `first` is the start of a line (mappings start at a page) and both ends lie in the mapping.
        let flushed = unsafe { copy::flush(self.start.as_ptr().add(first as usize), (end - first) as usize) };
        if flushed.is_err() {
            let _ = self.flush_failed_at.compare_exchange(NOWHERE, first, Relaxed, Relaxed);
        }
    }

    /// Whether all lines were written back so far.
    ///
    /// # Errors
    /// [`DeviceError::Poisoned`] at the first line that was not.
    #[inline]
    pub fn flushed(&self) -> Result<(), DeviceError> {
        match self.flush_failed_at.load(Relaxed) {
            NOWHERE => Ok(()),
            offset => Err(DeviceError::Poisoned { device: self.name.clone(), offset }),
        }
    }

    /// Waits until all earlier flushed or streamed lines have left the CPU's caches.
    #[inline]
    pub fn fence(&self) {
        copy::fence();
    }

    /// Populates the process's page table for a range, so that the first loads do not fault. Stores still fault once for each page on a
    /// file system that tracks dirty pages. Fails where a page cannot be read.
    pub fn populate(&self, offset: u64, length: u64) -> io::Result<()> {
        let page = rustix::param::page_size() as u64;
        let first = offset.min(self.length) / page * page;
        let end = offset.saturating_add(length).min(self.length);
        if end <= first {
            return Ok(());
        }
        // SAFETY: the range lies in the mapping; populating changes no contents.
        let populated = unsafe {
            let start = self.start.as_ptr().add(first as usize);
            madvise(start.cast(), (end - first) as usize, Advice::LinuxPopulateRead)
        };
        match populated {
            // Kernels before 5.14 do not know the advice; pages then come one by one.
            Err(rustix::io::Errno::INVAL) => Ok(()),
            other => Ok(other?),
        }
    }

    #[inline]
    fn at(&self, offset: u64, length: usize) -> Result<*mut u8, DeviceError> {
        match offset.checked_add(length as u64) {
            // SAFETY: the offset lies inside the mapping, or at its end where nothing is accessed.
            Some(end) if end <= self.length => Ok(unsafe { self.start.as_ptr().add(offset as usize) }),
            _ => Err(DeviceError::OutOfRange { device: self.name.clone(), offset, length: length as u64, size: self.length }),
        }
    }

    #[inline]
    fn writable_at(&self, offset: u64, length: usize) -> Result<*mut u8, DeviceError> {
        if self.read_only {
            let source = io::Error::from_raw_os_error(libc::EROFS);
            return Err(DeviceError::Block { device: self.name.clone(), operation: "store", offset, length: length as u64, source });
        }
        self.flushed()?;
        self.at(offset, length)
    }

    #[cold]
    fn poisoned(&self, offset: u64, fault: Fault) -> DeviceError {
        // The fault may be in the host buffer (shared memory): then report the start of the access.
        let within = fault.address.checked_sub(self.start.as_ptr() as usize).map(|within| within as u64);
        let offset = within.filter(|within| *within < self.length).unwrap_or(offset);
        DeviceError::Poisoned { device: self.name.clone(), offset }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own, and no pointer into it was given away.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 64 << 10;

    fn mapped(read_only: bool) -> (File, Mapping) {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(LENGTH).expect("sized");
        let options = MappingOptions { length: LENGTH, read_only, ..MappingOptions::default() };
        let mapping = Mapping::new("test", &file, options).expect("mapped");
        (file, mapping)
    }

    #[test]
    fn stores_are_loaded_again_and_reach_the_file() {
        use std::os::unix::fs::FileExt;
        let (file, mapping) = mapped(false);
        mapping.store(4090, b"twelve bytes").expect("stored");
        mapping.store_streaming(8192 + 7, &[9; 300]).expect("stored");
        mapping.flush(0, LENGTH);
        mapping.flush(LENGTH - 1, u64::MAX);
        mapping.fence();
        let mut found = [0; 12];
        mapping.load(4090, &mut found).expect("loaded");
        assert_eq!(&found, b"twelve bytes");
        let mut found = [0; 302];
        file.read_exact_at(&mut found, 8192 + 6).expect("read");
        assert!(found[0] == 0 && found[301] == 0 && found[1..301].iter().all(|&byte| byte == 9));
    }

    #[test]
    fn accesses_outside_are_refused() {
        let (_file, mapping) = mapped(false);
        for (offset, length) in [(LENGTH, 1), (LENGTH - 1, 2), (u64::MAX, 1), (u64::MAX - 3, 8)] {
            assert!(matches!(mapping.load(offset, &mut vec![0; length]), Err(DeviceError::OutOfRange { .. })));
            assert!(matches!(mapping.store(offset, &vec![0; length]), Err(DeviceError::OutOfRange { .. })));
        }
        mapping.store(LENGTH, &[]).expect("nothing at the end is inside");
    }

    #[test]
    fn a_mapping_for_loads_refuses_stores() {
        let (_file, mapping) = mapped(true);
        assert!(matches!(mapping.store(0, &[1]), Err(DeviceError::Block { operation: "store", .. })));
        mapping.load(0, &mut [0; 8]).expect("loaded");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_file_cut_short_poisons_accesses_and_the_process_lives() {
        let (file, mapping) = mapped(false);
        mapping.store(0, &[7; 8192]).expect("stored");
        file.set_len(4096).expect("cut");
        for length in [1, 8, 64, 1000, 5000, 9000] {
            let error = mapping.load(8192, &mut vec![0; length]).expect_err("no page there");
            assert!(matches!(error, DeviceError::Poisoned { offset: 8192, .. }), "{error}");
            assert!(matches!(mapping.store(8192, &vec![1; length]), Err(DeviceError::Poisoned { .. })));
            assert!(matches!(mapping.store_streaming(8192, &vec![1; length]), Err(DeviceError::Poisoned { .. })));
        }
        let error = mapping.load(4000, &mut [0; 200]).expect_err("runs past the cut");
        assert!(matches!(error, DeviceError::Poisoned { offset: 4096, .. }), "{error}");
        let mut found = [0; 64];
        mapping.load(64, &mut found).expect("the rest still works");
        assert_eq!(found, [7; 64]);
        assert!(mapping.populate(0, LENGTH).is_err());
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn threads_fault_side_by_side() {
        let (file, mapping) = mapped(false);
        file.set_len(4096).expect("cut");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        assert!(mapping.load(LENGTH - 4096, &mut [0; 128]).is_err());
                        mapping.load(0, &mut [0; 128]).expect("loaded");
                    }
                });
            }
        });
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn after_a_failed_flush_nothing_is_stored_and_all_else_is_loaded() {
        let (file, mapping) = mapped(false);
        file.set_len(4096).expect("cut");
        mapping.flushed().expect("nothing has failed");
        mapping.flush(4096, 64);
        assert!(matches!(mapping.flushed(), Err(DeviceError::Poisoned { offset: 4096, .. })));
        assert!(matches!(mapping.store(0, &[1]), Err(DeviceError::Poisoned { offset: 4096, .. })));
        mapping.load(0, &mut [0; 64]).expect("loaded");
    }

    /// A fault outside the copies still ends the process: the handler hides nothing.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_fault_elsewhere_is_passed_on() {
        use std::os::unix::process::ExitStatusExt;
        if std::env::var_os("TANDEMFS_TEST_FAULT").is_some() {
            let (file, mapping) = mapped(false);
            file.set_len(0).expect("cut");
            // SAFETY: the address is mapped; that the access fails is the test.
            let byte = unsafe { mapping.start.as_ptr().read_volatile() };
            panic!("read {byte}");
        }
        let name = "mapping::tests::a_fault_elsewhere_is_passed_on";
        let child = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", name, "--nocapture"])
            .env("TANDEMFS_TEST_FAULT", "1")
            .output()
            .expect("runs");
        assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{child:?}");
    }
}

//! Ranges of the memory zone, mapped one behind the other into the process: a file's extents as one range of addresses.
//!
//! [MM1] The whole range is reserved first (without access and without backing), and the pieces take the place of its parts. So no piece
//!       replaces anything else of the process, and a map that fails, or is dropped, leaves nothing behind.
//! [MM2] What is mapped is changed by others at any time: by other mappings, by calls, by other processes. No reference into it leaves this
//!       module; it is accessed by copies that survive a fault (RULES R23), and by stores of whole words.
//! [MM3] The kernel maps 2 MiB at once only where address and offset agree modulo 2 MiB. The place of the range is chosen so that as many
//!       bytes as possible do. Pieces that follow each other on the device as well are one mapping.
//! [MM4] Addresses of a map stay valid until it is dropped, also while the file system gives its pages away: who makes one keeps the pages
//!       meanwhile. The kernel keeps the file open that long, so the device stays locked.
//! [MM5] A mapping that is refused at its place may leave addresses there that any thread gets for something else. So the way is tried elsewhere
//!       first, and such addresses are not given back.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use tandemfs_format::{LINE_BYTES, UNIT_BYTES};

use crate::DeviceError;
use crate::copy::{self, Fault};

/// Bytes of a huge page.
const HUGE_BYTES: u64 = UNIT_BYTES;

/// A range of the memory zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRange {
    /// Offset in the memory zone, in bytes; a multiple of the device's [`mapping_unit`](crate::Device::mapping_unit).
    pub offset: u64,
    /// Length in bytes, a multiple of the same unit and at least that.
    pub length: u64,
}

/// Mapped ranges of a memory zone. Offsets are bytes from the start of the first of them, over all of them.
pub trait MappedMemory: Send + Sync + fmt::Debug {
    /// Length of all ranges, in bytes.
    fn length(&self) -> u64;

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::Poisoned`].
    fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies bytes into it. Aligned words of 8 bytes are stored whole.
    ///
    /// # Errors
    /// As [`copy_out`](Self::copy_out); [`DeviceError::Block`] with EROFS where it is mapped for loads only.
    fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError>;

    /// Stores 8 bytes at a multiple of 8, at once.
    ///
    /// # Errors
    /// As [`copy_in`](Self::copy_in); [`DeviceError::OutOfRange`] at another offset.
    fn store_word(&self, offset: u64, word: u64) -> Result<(), DeviceError>;

    /// Starts writing the lines of a range back from the CPU's caches. A range outside is cut.
    ///
    /// # Errors
    /// [`DeviceError::Poisoned`].
    fn flush(&self, offset: u64, length: u64) -> Result<(), DeviceError>;

    /// Waits until all lines flushed before have left the CPU's caches.
    fn fence(&self);

    /// The address of its first byte in this process; `None` where loads and stores go by calls. Others change what is there at any time.
    fn address(&self) -> Option<NonNull<u8>>;
}

/// How ranges are to be mapped, and of what they are parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RangeOptions<'n> {
    /// The device's name in errors.
    pub(crate) name: &'n str,
    /// Where the memory zone begins in the file, and its length, in bytes.
    pub(crate) zone: (u64, u64),
    /// Granule of the device, in bytes.
    pub(crate) unit: u64,
    /// Whether stores are possible.
    pub(crate) writable: bool,
    /// Ask for MAP_SYNC; without it the file system below would not keep its metadata for mapped stores.
    pub(crate) synchronous: bool,
}

impl RangeOptions<'_> {
    fn access(&self) -> (ProtFlags, MapFlags) {
        let protection = if self.writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = if self.synchronous { MapFlags::SHARED_VALIDATE | MapFlags::SYNC } else { MapFlags::SHARED };
        (protection, flags)
    }
}

/// Ranges of a file or a device, mapped.
pub(crate) struct MappedRanges {
    name: String,
    /// What is reserved: start and bytes.
    reserved: (NonNull<u8>, u64),
    /// Addresses of it that may be somebody else's by now, from the start of what is reserved ([MM5]).
    lost: Range<u64>,
    start: NonNull<u8>,
    length: u64,
    writable: bool,
}

// SAFETY: shared memory that lives until drop. It is accessed by copies in assembly (volatile accesses elsewhere), never through references.
unsafe impl Send for MappedRanges {}
// SAFETY: as above.
unsafe impl Sync for MappedRanges {}

impl fmt::Debug for MappedRanges {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MappedRanges").field("name", &self.name).field("length", &self.length).finish_non_exhaustive()
    }
}

impl MappedRanges {
    /// Maps ranges of `file`.
    pub(crate) fn new(file: &File, options: RangeOptions<'_>, ranges: &[MemoryRange]) -> Result<Self, DeviceError> {
        let refused = |reason: String| DeviceError::Map { device: options.name.to_owned(), reason };
        let length = verified(&options, ranges)?;
        copy::install().map_err(|error| refused(error.to_string()))?;
        let pieces = joined(options.zone.0, ranges);
        if let Some(first) = pieces.first() {
            probe(file, &options, first).map_err(|error| refused(error.to_string()))?;
        }
        let huge = HUGE_BYTES.max(options.unit); // a device of larger steps is mapped at multiples of these
        let phase = best_phase(&pieces, huge);
        // One huge page more, so that any phase fits.
        let bytes = usize::try_from(length + huge).map_err(|_| refused(format!("{length} B are more than this process can map")))?;
        // SAFETY: the kernel chooses addresses that nothing uses; nothing can be accessed there yet ([MM1]).
        let reserved = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE) };
        let reserved = reserved.ok().and_then(|start| NonNull::new(start.cast::<u8>()));
        let reserved = reserved.ok_or_else(|| refused(format!("there are no {length} B of addresses free in this process")))?;
        let address = reserved.as_ptr() as u64;
        let skip = (phase + huge - address % huge) % huge; // [MM3]
        // SAFETY: less than a huge page, which was reserved in addition.
        let start = unsafe { reserved.add(skip as usize) };
        let name = options.name.to_owned();
        // From here on a failure drops it, which unmaps everything.
        let mut mapped = Self { name, reserved: (reserved, bytes as u64), lost: 0..0, start, length, writable: options.writable };
        let mut at = 0;
        for piece in pieces {
            if let Err(error) = mapped.place(file, &options, at, piece) {
                mapped.lost = skip + at..skip + at + piece.length; // [MM5]
                return Err(refused(error.to_string()));
            }
            at += piece.length;
        }
        Ok(mapped)
    }

    /// Puts a piece into its place.
    fn place(&self, file: &File, options: &RangeOptions<'_>, at: u64, piece: MemoryRange) -> io::Result<()> {
        let (protection, flags) = options.access();
        // SAFETY: the pieces have `length` bytes together, all of them reserved behind `start` and nowhere else in use ([MM1]).
        unsafe {
            let place = self.start.as_ptr().add(at as usize).cast();
            mmap(place, piece.length as usize, protection, flags | MapFlags::FIXED, file, piece.offset)?;
            // Advice about the piece just mapped; it changes no contents. Refused where huge pages make no sense, which is no error.
            let _ = madvise(place, piece.length as usize, Advice::LinuxHugepage);
        }
        Ok(())
    }

    /// Forked children do not inherit it.
    pub(crate) fn keep_from_children(&self) -> io::Result<()> {
        let (start, bytes) = self.reserved;
        // SAFETY: the range is this map's own; this process sees no difference.
        unsafe { madvise(start.as_ptr().cast(), bytes as usize, Advice::LinuxDontFork)? };
        Ok(())
    }

    fn at(&self, offset: u64, length: usize) -> Result<*mut u8, DeviceError> {
        match offset.checked_add(length as u64) {
            // SAFETY: inside of what is mapped, or at its end where nothing is accessed.
            Some(end) if end <= self.length => Ok(unsafe { self.start.as_ptr().add(offset as usize) }),
            _ => Err(self.outside(offset, length as u64)),
        }
    }

    fn outside(&self, offset: u64, length: u64) -> DeviceError {
        DeviceError::OutOfRange { device: self.name.clone(), offset, length, size: self.length }
    }

    fn writable_at(&self, offset: u64, length: usize) -> Result<*mut u8, DeviceError> {
        if self.writable {
            return self.at(offset, length);
        }
        let source = io::Error::from_raw_os_error(libc::EROFS);
        Err(DeviceError::Block { device: self.name.clone(), operation: "store", offset, length: length as u64, source })
    }

    #[cold]
    fn poisoned(&self, offset: u64, fault: Fault) -> DeviceError {
        let within = fault.address.checked_sub(self.start.as_ptr() as usize).map(|within| within as u64);
        let offset = within.filter(|within| *within < self.length).unwrap_or(offset);
        DeviceError::Poisoned { device: self.name.clone(), offset }
    }
}

impl MappedMemory for MappedRanges {
    fn length(&self) -> u64 {
        self.length
    }

    fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let source = self.at(offset, into.len())?;
        // SAFETY: `at` has checked the range; `into` is host memory, which no mapping overlaps.
        unsafe { copy::copy(into.as_mut_ptr(), source, into.len()) }.map_err(|fault| self.poisoned(offset, fault))
    }

    fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let target = self.writable_at(offset, from.len())?;
        // SAFETY: `writable_at` has checked range and protection; `from` is host memory, which no mapping overlaps.
        unsafe { copy::copy(target, from.as_ptr(), from.len()) }.map_err(|fault| self.poisoned(offset, fault))
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<(), DeviceError> {
        let (word, bytes) = (word.to_le(), size_of::<u64>());
        if !offset.is_multiple_of(bytes as u64) {
            return Err(self.outside(offset, bytes as u64));
        }
        let target = self.writable_at(offset, bytes)?;
        // SAFETY: as in `copy_in`. Both are aligned (the map starts at a page), so it is one store (`copy.rs`).
        unsafe { copy::copy(target, std::ptr::from_ref(&word).cast(), bytes) }.map_err(|fault| self.poisoned(offset, fault))
    }

    fn flush(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let line = LINE_BYTES as u64;
        let first = offset.min(self.length) / line * line;
        let end = offset.saturating_add(length).min(self.length);
        if end <= first || !self.writable {
            return Ok(());
        }
        // SAFETY: `first` is the start of a line (the map starts at a page), and both ends lie in it.
        let flushed = unsafe { copy::flush(self.start.as_ptr().add(first as usize), (end - first) as usize) };
        flushed.map_err(|fault| self.poisoned(offset, fault))
    }

    fn fence(&self) {
        copy::fence();
    }

    fn address(&self) -> Option<NonNull<u8>> {
        Some(self.start)
    }
}

impl Drop for MappedRanges {
    fn drop(&mut self) {
        let (start, bytes) = self.reserved;
        for own in [0..self.lost.start, self.lost.end..bytes] {
            if !own.is_empty() {
                // SAFETY: the range is this map's own, pieces and what is left of the reservation ([MM1], [MM4], [MM5]).
                let _ = unsafe { munmap(start.as_ptr().add(own.start as usize).cast(), (own.end - own.start) as usize) };
            }
        }
    }
}

/// Whether a range can be mapped in this way, tried where nothing is ([MM5]).
fn probe(file: &File, options: &RangeOptions<'_>, range: &MemoryRange) -> io::Result<()> {
    let ((protection, flags), bytes) = (options.access(), range.length.min(options.unit) as usize);
    // SAFETY: a new mapping, at a place that the kernel chooses, which nobody uses.
    unsafe {
        let probed = mmap(std::ptr::null_mut(), bytes, protection, flags, file, range.offset)?;
        munmap(probed, bytes)?;
    }
    Ok(())
}

/// The length of ranges that can be mapped.
fn verified(options: &RangeOptions<'_>, ranges: &[MemoryRange]) -> Result<u64, DeviceError> {
    let mut length = 0_u64;
    for range in ranges {
        let end = range.offset.checked_add(range.length).filter(|end| *end <= options.zone.1);
        let Some(total) = end.and(length.checked_add(range.length)) else {
            let (device, offset, size) = (options.name.to_owned(), range.offset, options.zone.1);
            return Err(DeviceError::OutOfRange { device, offset, length: range.length, size });
        };
        if !range.offset.is_multiple_of(options.unit) || !range.length.is_multiple_of(options.unit) || range.length == 0 {
            let reason = format!("{} B at byte {} are not whole units of {} B", range.length, range.offset, options.unit);
            return Err(DeviceError::Map { device: options.name.to_owned(), reason });
        }
        length = total;
    }
    if length == 0 {
        return Err(DeviceError::Map { device: options.name.to_owned(), reason: "nothing is to be mapped".to_owned() });
    }
    Ok(length)
}

/// The ranges as parts of the file, in which the zone begins there, joined where one follows another.
fn joined(zone: u64, ranges: &[MemoryRange]) -> Vec<MemoryRange> {
    let mut pieces: Vec<MemoryRange> = Vec::new();
    for range in ranges {
        let range = MemoryRange { offset: zone + range.offset, ..*range };
        match pieces.last_mut().filter(|last| last.offset + last.length == range.offset) {
            Some(last) => last.length += range.length,
            None => pieces.push(range),
        }
    }
    pieces
}

/// The address of the first byte modulo `huge` bytes for which most bytes in pieces of that size can be mapped by huge pages ([MM3]).
fn best_phase(pieces: &[MemoryRange], huge: u64) -> u64 {
    let (mut at, mut phases) = (0, std::collections::HashMap::<u64, u64>::new());
    for piece in pieces {
        // The whole huge pages of the file in this piece.
        let (first, end) = (piece.offset.next_multiple_of(huge), (piece.offset + piece.length) / huge * huge);
        let phase = (piece.offset % huge + huge - at % huge) % huge;
        *phases.entry(phase).or_default() += end.saturating_sub(first);
        at += piece.length;
    }
    phases.into_iter().max_by_key(|(phase, bytes)| (*bytes, std::cmp::Reverse(*phase))).map_or(0, |(phase, _)| phase)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const ZONE: u64 = 8 * HUGE_BYTES;

    fn file() -> File {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(PAGE + ZONE).expect("sized");
        for page in 0..64_u64 {
            file.write_all_at(&[page as u8 + 1; PAGE as usize], PAGE + page * PAGE).expect("written");
        }
        file
    }

    /// The zone begins one page behind the start of the file.
    fn options(writable: bool) -> RangeOptions<'static> {
        RangeOptions { name: "test", zone: (PAGE, ZONE), unit: PAGE, writable, synchronous: false }
    }

    fn range(page: u64, pages: u64) -> MemoryRange {
        MemoryRange { offset: page * PAGE, length: pages * PAGE }
    }

    #[test]
    fn ranges_are_seen_one_behind_the_other_and_stores_reach_the_file() {
        use std::os::unix::fs::FileExt;
        let file = file();
        let ranges = [range(9, 1), range(3, 2), range(5, 1), range(40, 3)];
        let map = MappedRanges::new(&file, options(true), &ranges).expect("mapped");
        assert_eq!(map.length(), 7 * PAGE);
        for (at, page) in [9_u64, 3, 4, 5, 40, 41, 42].into_iter().enumerate() {
            let mut bytes = [0; PAGE as usize];
            map.copy_out(at as u64 * PAGE, &mut bytes).expect("loaded");
            assert_eq!(bytes, [page as u8 + 1; PAGE as usize]);
        }
        map.copy_in(PAGE - 3, b"across").expect("stored");
        map.store_word(4 * PAGE + 8, u64::from_le_bytes(*b"a word .")).expect("stored");
        map.flush(0, u64::MAX).expect("flushed");
        map.fence();
        let mut found = [0; 8];
        file.read_exact_at(&mut found[..3], PAGE + 10 * PAGE - 3).expect("read");
        file.read_exact_at(&mut found[3..6], PAGE + 3 * PAGE).expect("read");
        assert_eq!(&found[..6], b"across");
        file.read_exact_at(&mut found, PAGE + 40 * PAGE + 8).expect("read");
        assert_eq!(&found, b"a word .");
    }

    #[test]
    fn what_cannot_be_mapped_is_refused_in_a_sentence() {
        let file = file();
        let map = |unit, ranges: &[MemoryRange]| {
            MappedRanges::new(&file, RangeOptions { unit, ..options(true) }, ranges).expect_err("refused").to_string()
        };
        assert!(map(HUGE_BYTES, &[range(512, 1)]).contains("4096 B at byte 2097152 are not whole units of 2097152 B"));
        assert!(map(PAGE, &[]).contains("nothing is to be mapped"));
        assert!(map(PAGE, &[range(1, 1), range(0, 0)]).contains("not whole units"));
        assert!(map(PAGE, &[range(ZONE / PAGE - 1, 2)]).contains("outside"));
        assert!(map(PAGE, &[MemoryRange { offset: u64::MAX - 4095, length: PAGE }]).contains("outside"));
        let map = MappedRanges::new(&file, options(false), &[range(1, 2)]).expect("mapped");
        assert!(matches!(map.copy_in(0, &[1]), Err(DeviceError::Block { operation: "store", .. })));
        assert!(matches!(map.store_word(0, 1), Err(DeviceError::Block { .. })));
        assert!(matches!(map.store_word(4, 1), Err(DeviceError::OutOfRange { .. })));
        for (offset, length) in [(2 * PAGE, 1), (2 * PAGE - 1, 2), (u64::MAX, 1)] {
            assert!(matches!(map.copy_out(offset, &mut vec![0; length]), Err(DeviceError::OutOfRange { .. })));
        }
        map.copy_out(2 * PAGE, &mut []).expect("nothing at the end is inside");
    }

    /// [MM3]: what begins at a multiple of 2 MiB of the device begins at one of the process, wherever it lies in the range.
    #[test]
    fn most_bytes_lie_where_huge_pages_can() {
        let huge = |unit: u64, units: u64| MemoryRange { offset: unit * HUGE_BYTES, length: units * HUGE_BYTES };
        assert_eq!(best_phase(&[huge(3, 2)], HUGE_BYTES), 0);
        assert_eq!(best_phase(&[range(7, 1), huge(3, 2)], HUGE_BYTES), HUGE_BYTES - PAGE);
        assert_eq!(best_phase(&[huge(1, 1), range(7, 1), huge(3, 2)], HUGE_BYTES), HUGE_BYTES - PAGE);
        assert_eq!(best_phase(&[range(7, 1)], HUGE_BYTES), 7 * PAGE);
        assert_eq!(best_phase(&[MemoryRange { offset: HUGE_BYTES - PAGE, length: HUGE_BYTES + PAGE }], HUGE_BYTES), HUGE_BYTES - PAGE);
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(ZONE).expect("sized");
        let map = MappedRanges::new(&file, RangeOptions { zone: (0, ZONE), ..options(true) }, &[range(7, 1), huge(3, 2)]).expect("mapped");
        assert_eq!((map.address().expect("mapped").as_ptr() as u64 + PAGE) % HUGE_BYTES, 0);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_file_cut_short_poisons_accesses_and_the_process_lives() {
        let file = file();
        let map = MappedRanges::new(&file, options(true), &[range(20, 1), range(2, 2)]).expect("mapped");
        file.set_len(PAGE + 4 * PAGE).expect("cut");
        assert!(matches!(map.copy_in(0, &[1; 64]), Err(DeviceError::Poisoned { offset: 0, .. })));
        assert!(matches!(map.copy_out(64, &mut [0; 64]), Err(DeviceError::Poisoned { offset: 64, .. })));
        assert!(map.flush(0, 64).is_err());
        map.copy_in(PAGE, &[1; 64]).expect("the rest still works");
    }

    /// [MM5]: where a mapping was refused, another thread may have got the addresses.
    #[test]
    fn a_map_that_failed_takes_away_nothing_of_others() {
        let file = file();
        let mut map = MappedRanges::new(&file, options(true), &[range(1, 1), range(3, 1), range(5, 1)]).expect("mapped");
        // SAFETY: the second piece, which nobody uses; what takes its place is the test's own.
        let other = unsafe {
            let place = map.start.as_ptr().add(PAGE as usize).cast();
            mmap_anonymous(place, PAGE as usize, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED).expect("mapped")
        };
        let at = other as u64 - map.reserved.0.as_ptr() as u64;
        map.lost = at..at + PAGE;
        drop(map);
        // SAFETY: mapped above, and unmapped here alone.
        unsafe {
            other.cast::<u8>().write_volatile(7);
            assert_eq!(other.cast::<u8>().read_volatile(), 7);
            munmap(other, PAGE as usize).expect("unmapped");
        }
    }

    /// [MM1]: dropping a map takes the whole reservation away; this many would not fit otherwise.
    #[test]
    fn a_map_leaves_nothing_behind() {
        let file = file();
        let lines = || std::fs::read_to_string("/proc/self/maps").expect("read").lines().filter(|line| line.contains("deleted")).count();
        let map = MappedRanges::new(&file, options(false), &[range(1, 1), range(3, 1), range(5, 1)]).expect("mapped");
        let with = lines();
        drop(map);
        assert!(lines() < with);
    }
}

//! The memory zone for programs of other processes, for loads.
//!
//! [LZ1] Each program gets an open file description of its own, opened for reading: it cannot be mapped for stores, and it does not carry the
//!       lock of the device, so who keeps it does not keep the device from the next daemon. Whether a program can open the same file for
//!       writing is decided by the permissions of that file, as without it.
//! [LZ2] The description is of the whole file: who has it can read everything in it, of every file on the drive.
//! [LZ3] Only a drive whose loads are those of memory has one: not one whose accesses are timed or have a meaning beyond their bytes.
//! [LZ4] A map of it is loaded by copies that survive a fault, as every map of a device (RULES R23): a file that was cut short, or a poisoned
//!       line, is an error. It is not inherited by forked children, where nobody looks whether the loads still mean anything. The same holds
//!       for maps of single ranges.
//! [LZ5] Whether any process may still load by a description is told by a lock of that description (F_OFD_SETLK) on a byte of its own behind
//!       everything in the file, taken before it is sent. A mapping keeps the description, and the lock with it, however the process that
//!       made it has ended, and as long as a child of it that shares the memory lives.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;

use rustix::fs::{Mode, OFlags, open};

use crate::ranges::{MappedRanges, RangeOptions};
use crate::{DeviceError, MappedMemory, Mapping, MappingOptions, MemoryRange};

/// Bytes of a page.
const PAGE: u64 = tandemfs_format::PAGE_BYTES as u64;
/// Where the bytes begin that are locked ([LZ5]); no file is so long.
const LOCKS: u64 = 1 << 62;

/// The memory zone in an open file description of its own, for loads.
#[derive(Debug)]
pub struct LentZone {
    file: File,
    start: u64,
    length: u64,
}

impl LentZone {
    /// Of an open device, whose memory zone begins at a byte of `file`.
    ///
    /// # Errors
    /// What the kernel refuses: `/proc` is needed, and the permission to read the file.
    pub fn of(file: &File, start: u64, length: u64) -> io::Result<Self> {
        Ok(Self { file: opened_again(file, OFlags::RDONLY)?, start, length }) // [LZ1]
    }

    /// As another process has sent it.
    pub fn received(descriptor: OwnedFd, start: u64, length: u64) -> Self {
        Self { file: descriptor.into(), start, length }
    }

    /// What is sent to another process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where the zone begins in the file, in bytes.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Length of the zone in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Locks a byte, 0 to 2^61 - 1, by this description ([LZ5]), for loads like others'.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn hold(&self, byte: u64) -> io::Result<()> {
        self.lock(libc::F_OFD_SETLK, libc::F_RDLCK, byte).map(drop)
    }

    /// Whether another description has locked this byte ([LZ5]).
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn is_held(&self, byte: u64) -> io::Result<bool> {
        Ok(i32::from(self.lock(libc::F_OFD_GETLK, libc::F_WRLCK, byte)?.l_type) != libc::F_UNLCK)
    }

    fn lock(&self, command: libc::c_int, kind: libc::c_int, byte: u64) -> io::Result<libc::flock> {
        let start = LOCKS | byte & (LOCKS - 1) >> 1;
        let mut lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: start.cast_signed(),
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open, and the structure is this function's own.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut lock) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(lock),
        }
    }

    /// Maps ranges of whole pages one behind the other, for loads ([LZ4]).
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] for ranges outside of the zone, [`DeviceError::Map`] for others that cannot be mapped.
    pub fn map_ranges(&self, ranges: &[MemoryRange]) -> Result<Box<dyn MappedMemory>, DeviceError> {
        let zone = (self.start, self.length);
        let options = RangeOptions { name: "the memory zone", zone, unit: PAGE, writable: false, synchronous: false };
        let mapped = MappedRanges::new(&self.file, options, ranges)?;
        let refused = |error: io::Error| DeviceError::Map { device: "the memory zone".to_owned(), reason: error.to_string() };
        mapped.keep_from_children().map_err(refused)?;
        Ok(Box::new(mapped))
    }

    /// Maps it for loads. The map stays when the description is closed ([LZ4]).
    ///
    /// # Errors
    /// `InvalidData` for what is no device or is shorter than the zone; what the kernel refuses.
    pub fn map(&self) -> io::Result<Mapping> {
        let options =
            MappingOptions { offset: self.start, length: self.length, read_only: true, not_inherited: true, ..MappingOptions::default() };
        map_zone(&self.file, options)
    }
}

/// A descriptor of the same file with a description of its own.
pub(crate) fn opened_again(file: &File, flags: OFlags) -> io::Result<File> {
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(open(again, flags | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Maps a memory zone, if the file has one at that place.
///
/// # Errors
/// `InvalidData` for what is no device or is shorter than the zone; what the kernel refuses.
pub(crate) fn map_zone(file: &File, options: MappingOptions) -> io::Result<Mapping> {
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    let end = options.offset.checked_add(options.length).filter(|_| options.length > 0);
    let end = end.ok_or_else(|| invalid("a memory zone without a place"))?;
    match () {
        () if kind.is_file() && metadata.len() < end => Err(invalid("a file that is shorter than its memory zone")),
        () if kind.is_file() || kind.is_char_device() || kind.is_block_device() => Mapping::new("the memory zone", file, options),
        () => Err(invalid("a memory zone in what is no device and no file")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::copies::comes_without_copies;

    fn file() -> File {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(9 * PAGE).expect("sized");
        file.write_all_at(b"in the zone", 2 * PAGE + 5).expect("written");
        file
    }

    /// [LZ1]
    #[test]
    fn it_can_be_loaded_and_not_stored_to() {
        let file = file();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("locked");
        let zone = LentZone::of(&file, PAGE, 8 * PAGE).expect("opened");
        let received = LentZone::received(zone.descriptor().try_clone_to_owned().expect("cloned"), zone.start(), zone.length());
        let map = received.map().expect("mapped");
        let mut bytes = [0; 11];
        map.load(PAGE + 5, &mut bytes).expect("loaded");
        assert_eq!(&bytes, b"in the zone");
        file.write_all_at(b"at the same", 2 * PAGE + 5).expect("written");
        map.load(PAGE + 5, &mut bytes).expect("loaded");
        assert_eq!(&bytes, b"at the same");
        assert!(map.store(PAGE, &[1]).is_err() && map.load(8 * PAGE - 1, &mut [0; 2]).is_err());
        let writable = MappingOptions { offset: PAGE, length: PAGE, ..MappingOptions::default() };
        assert!(Mapping::new("again", &received.file, writable).is_err(), "mapped for stores");
        assert!(received.file.write_at(&[1], PAGE).is_err() && received.file.set_len(0).is_err());
        drop(file);
        let path = format!("/proc/self/fd/{}", received.file.as_raw_fd());
        let next = File::options().read(true).write(true).open(path).expect("its own file");
        let locks = || rustix::fs::flock(&next, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok();
        assert!(comes_without_copies(locks), "nobody has the lock any more");
    }

    /// [LZ4]
    #[test]
    fn ranges_are_mapped_one_behind_the_other_for_loads() {
        let file = file();
        file.write_all_at(b"elsewhere", 6 * PAGE).expect("written");
        let zone = LentZone::of(&file, PAGE, 8 * PAGE).expect("opened");
        let range = |page, pages| MemoryRange { offset: page * PAGE, length: pages * PAGE };
        let map = zone.map_ranges(&[range(5, 1), range(1, 2)]).expect("mapped");
        let mut bytes = [0; 11];
        map.copy_out(PAGE + 5, &mut bytes).expect("loaded");
        assert_eq!(&bytes, b"in the zone");
        map.copy_out(0, &mut bytes[..9]).expect("loaded");
        assert_eq!(&bytes[..9], b"elsewhere");
        assert!(map.copy_in(0, &[1]).is_err() && map.copy_out(3 * PAGE, &mut [0]).is_err());
        for wrong in [range(8, 1), range(7, 2), range(0, 0), MemoryRange { offset: 5, length: PAGE }, range(u64::MAX / PAGE, 1)] {
            assert!(zone.map_ranges(&[range(0, 1), wrong]).is_err(), "{wrong:?}");
        }
    }

    /// [LZ5]
    #[test]
    fn a_description_is_held_until_its_last_mapping_is_gone() {
        let file = file();
        let (zone, other) = (LentZone::of(&file, PAGE, 8 * PAGE).expect("opened"), LentZone::of(&file, PAGE, 8 * PAGE).expect("opened"));
        zone.hold(7).expect("locked");
        let is_held = |byte| other.is_held(byte).expect("asked");
        assert!(is_held(7) && !is_held(6) && !is_held(8));
        let map = zone.map_ranges(&[MemoryRange { offset: 0, length: PAGE }]).expect("mapped");
        drop(zone);
        assert!(is_held(7), "the mapping has it");
        drop(map);
        assert!(comes_without_copies(|| !is_held(7)));
    }

    #[test]
    fn what_is_no_zone_is_refused() {
        let map = |start, length| LentZone::of(&file(), start, length).expect("opened").map().map_err(|error| error.kind()).map(drop);
        assert_eq!(map(PAGE, 8 * PAGE), Ok(()));
        for (start, length) in [(PAGE, 9 * PAGE), (0, 0), (u64::MAX, 2), (u64::MAX - 1, 1)] {
            assert_eq!(map(start, length), Err(io::ErrorKind::InvalidData), "{start} {length}");
        }
        assert!(map(5, PAGE).is_err(), "not at a page");
        let (reader, _writer) = io::pipe().expect("a pipe");
        assert!(LentZone::received(reader.into(), 0, PAGE).map().is_err());
    }

    /// [LZ4]
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_file_cut_short_is_an_error() {
        let file = file();
        let map = LentZone::of(&file, PAGE, 8 * PAGE).expect("opened").map().expect("mapped");
        file.set_len(2 * PAGE).expect("cut");
        assert!(map.load(PAGE + 5, &mut [0; 11]).is_err());
        map.load(5, &mut [0; 11]).expect("the rest still works");
    }
}

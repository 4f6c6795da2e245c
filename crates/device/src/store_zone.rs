//! The memory zone for programs of other processes, for stores.
//!
//! [SZ1] Each program gets an open file description of its own, opened for reading and writing; its number is locked in it, by a lock for writing of open file
//!       descriptions on one byte far behind every device, before anybody else has the description. The kernel keeps the lock as long as there is a
//!       descriptor or a mapping of that description, in whatever process: children of `vfork` and `clone` are counted, the end of the
//!       process that asked is not. So who has closed its own descriptor learns from the lock whether anybody can store to the zone for that program.
//! [SZ2] The description does not carry the lock of the device, so a program does not keep the device from the next daemon. That one
//!       looks whether any number is locked: then somebody can still store to pages that it knows nothing about.
//! [SZ3] Locks are of an inode: a node of the same device that was made elsewhere shows others. The daemon and its successor go by the same node
//!       where they are given the same path.
//! [SZ5] Ranges of it that a program maps for a file are inherited by forked children, as other shared mappings are: their lock says when the
//!       last of them is gone. They are mapped with MAP_SYNC where the kernel grants it, as the device itself is.
//! [SZ4] What was said of loads holds: the description is of the whole file ([LZ2] of `lent_zone.rs`), only some drives have one ([LZ3]), a map of all of
//!       it is not inherited by forked children ([LZ4]). Who can store to the zone can destroy everything on the drive.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;

use crate::lent_zone::{map_zone, opened_again};
use crate::ranges::{MappedRanges, RangeOptions};
use crate::{DeviceError, MappedMemory, Mapping, MappingOptions, MemoryRange};

/// Bytes of a page.
const PAGE: u64 = tandemfs_format::PAGE_BYTES as u64;

/// The byte of program 0; no device is that large. Behind those of descriptions for loads ([LZ5] of `lent_zone.rs`).
const FIRST_BYTE: i64 = (1 << 62) + (1 << 61);

fn bytes_of(kind: libc::c_int, start: i64, length: i64) -> libc::flock {
    libc::flock { l_type: kind as libc::c_short, l_whence: libc::SEEK_SET as libc::c_short, l_start: start, l_len: length, l_pid: 0 }
}

fn byte_of(program: u32) -> i64 {
    FIRST_BYTE + i64::from(program)
}

/// The memory zone in an open file description of its own, for stores ([SZ1]).
#[derive(Debug)]
pub struct StoreZone {
    file: File,
    start: u64,
    length: u64,
}

impl StoreZone {
    /// Of an open device, whose memory zone begins at a byte of `file`, for a program by its number, and what says whether anybody has it.
    ///
    /// # Errors
    /// `ResourceBusy`: somebody has one of that number. What the kernel refuses: `/proc` is needed, and the permission to write the file.
    pub fn of(file: &File, start: u64, length: u64, program: u32) -> io::Result<(Self, ZoneHold)> {
        let (own, hold) = (opened_again(file, OFlags::RDWR)?, ZoneHold { file: opened_again(file, OFlags::RDONLY)?, program });
        let lock = bytes_of(libc::F_WRLCK, byte_of(program), 1);
        // SAFETY: the descriptor is open, the argument a `flock` that lives across the call.
        if unsafe { libc::fcntl(own.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } < 0 {
            return Err(match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => io::ErrorKind::ResourceBusy.into(),
                error => error,
            });
        }
        Ok((Self { file: own, start, length }, hold))
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

    /// Maps ranges of whole pages one behind the other, for loads and stores ([SZ5]). The map stays, and keeps the lock, when the description is
    /// closed.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] for ranges outside of the zone, [`DeviceError::Map`] for others that cannot be mapped.
    pub fn map_ranges(&self, ranges: &[MemoryRange]) -> Result<Box<dyn MappedMemory>, DeviceError> {
        let options =
            RangeOptions { name: "the memory zone", zone: (self.start, self.length), unit: PAGE, writable: true, synchronous: true };
        let mapped = MappedRanges::new(&self.file, options, ranges);
        let mapped = mapped.or_else(|_| MappedRanges::new(&self.file, RangeOptions { synchronous: false, ..options }, ranges))?;
        Ok(Box::new(mapped))
    }

    /// Maps it for loads and stores, as the daemon does: with MAP_SYNC where there is such. The map stays, and keeps the lock, when the description is closed.
    ///
    /// # Errors
    /// `InvalidData` for what is no device or is shorter than the zone; what the kernel refuses.
    pub fn map(&self) -> io::Result<Mapping> {
        map_zone(
            &self.file,
            MappingOptions { offset: self.start, length: self.length, not_inherited: true, synchronous: true, ..MappingOptions::default() },
        )
    }
}

/// Says whether anybody has the memory zone for a program.
#[derive(Debug)]
pub struct ZoneHold {
    file: File,
    program: u32,
}

impl ZoneHold {
    /// Whether there is a descriptor or a mapping of the program's description ([SZ1]).
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn is_held(&self) -> io::Result<bool> {
        is_locked(&self.file, byte_of(self.program), 1)
    }
}

/// Whether anybody has the memory zone of a device for stores, for any program, also of an earlier daemon ([SZ2]). False where there are no such
/// locks: then nobody got one. True where it cannot be told.
pub fn is_zone_held(file: &File) -> bool {
    is_locked(file, FIRST_BYTE, 1 << 32)
        .unwrap_or_else(|error| !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOLCK)))
}

/// Whether another open file description has locked some of these bytes for writing, which only one can that may store ([SZ1]).
fn is_locked(file: &File, start: i64, length: i64) -> io::Result<bool> {
    let mut lock = bytes_of(libc::F_RDLCK, start, length); // which no lock for loads is in the way of
    // SAFETY: as above; the kernel writes into the `flock`.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::copies::comes_without_copies;

    fn file() -> File {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(9 * PAGE).expect("sized");
        file
    }

    /// As the program has it.
    fn sent(zone: &StoreZone) -> StoreZone {
        StoreZone::received(zone.descriptor().try_clone_to_owned().expect("cloned"), zone.start(), zone.length())
    }

    #[test]
    fn what_a_program_stores_is_in_the_file() {
        let file = file();
        let (zone, _hold) = StoreZone::of(&file, PAGE, 8 * PAGE, 3).expect("opened");
        let map = sent(&zone).map().expect("mapped");
        map.store(PAGE + 5, b"in the zone").expect("stored");
        let mut bytes = [0; 11];
        file.read_exact_at(&mut bytes, 2 * PAGE + 5).expect("read");
        assert_eq!(&bytes, b"in the zone");
        assert!(map.store(8 * PAGE - 1, &[0; 2]).is_err(), "behind the zone");
        assert!(StoreZone::of(&file, PAGE, 9 * PAGE, 4).expect("opened").0.map().is_err(), "a zone behind the file");
    }

    /// [SZ1]
    #[test]
    fn it_is_held_as_long_as_a_descriptor_or_a_mapping_is_there() {
        let file = file();
        let (zone, hold) = StoreZone::of(&file, PAGE, 8 * PAGE, 7).expect("opened");
        let (other, other_hold) = StoreZone::of(&file, PAGE, 8 * PAGE, 8).expect("opened");
        let held = || (hold.is_held().expect("known"), other_hold.is_held().expect("known"), is_zone_held(&file));
        let comes = |expected| comes_without_copies(|| held() == expected);
        assert_eq!(held(), (true, true, true));
        let refused = StoreZone::of(&file, PAGE, 8 * PAGE, 7).map(drop).map_err(|error| error.kind());
        assert_eq!(refused, Err(io::ErrorKind::ResourceBusy));
        let program = sent(&zone);
        drop((zone, other));
        assert!(comes((true, false, true)), "a descriptor: {:?}", held());
        let map = program.map().expect("mapped");
        drop(program);
        assert_eq!(held(), (true, false, true), "a mapping alone");
        drop(map);
        assert!(comes((false, false, false)), "{:?}", held());
        assert!(StoreZone::of(&file, PAGE, 8 * PAGE, 7).is_ok(), "the number is free");
    }

    /// [SZ5]
    #[test]
    fn ranges_are_mapped_for_stores_and_keep_the_lock() {
        let file = file();
        let (zone, hold) = StoreZone::of(&file, PAGE, 8 * PAGE, 7).expect("opened");
        let range = |page, pages| MemoryRange { offset: page * PAGE, length: pages * PAGE };
        let map = zone.map_ranges(&[range(5, 1), range(1, 2)]).expect("mapped");
        drop(zone);
        map.copy_in(PAGE - 2, b"across").expect("stored");
        map.flush(PAGE - 2, 6).expect("flushed");
        map.fence();
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes[..2], 7 * PAGE - 2).expect("read");
        file.read_exact_at(&mut bytes[2..], 2 * PAGE).expect("read");
        assert_eq!(&bytes, b"across");
        assert!(hold.is_held().expect("known"), "the mapping has it");
        drop(map);
        assert!(comes_without_copies(|| !hold.is_held().expect("known")));
        let zone = StoreZone::of(&file, PAGE, 8 * PAGE, 7).expect("the number is free").0;
        for wrong in [range(8, 1), range(7, 2), range(0, 0), MemoryRange { offset: 5, length: PAGE }, range(u64::MAX / PAGE, 1)] {
            assert!(zone.map_ranges(&[range(0, 1), wrong]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn who_may_load_does_not_count_as_one_who_may_store() {
        let file = file();
        let zone = crate::LentZone::of(&file, PAGE, 8 * PAGE).expect("opened");
        for byte in [0, 7, u32::MAX.into(), (1 << 61) - 1, u64::MAX] {
            zone.hold(byte).expect("locked");
        }
        assert!(!is_zone_held(&file));
        let (_stores, hold) = StoreZone::of(&file, PAGE, 8 * PAGE, 7).expect("nobody has the number");
        assert!(hold.is_held().expect("known") && is_zone_held(&file));
    }

    /// [SZ1]: whoever may read the file can lock any bytes of it for reading.
    #[test]
    fn a_lock_for_reading_is_not_one_of_a_program_that_may_store() {
        let file = file();
        let (zone, hold) = StoreZone::of(&file, PAGE, 8 * PAGE, 7).expect("opened");
        drop(zone);
        assert!(comes_without_copies(|| !is_zone_held(&file)));
        let loads = crate::LentZone::of(&file, PAGE, 8 * PAGE).expect("opened");
        let lock = bytes_of(libc::F_RDLCK, FIRST_BYTE, 1 << 32);
        // SAFETY: the descriptor is open, the argument a `flock` that lives across the call.
        assert_eq!(unsafe { libc::fcntl(loads.descriptor().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }, 0);
        assert!(!is_zone_held(&file) && !hold.is_held().expect("known"));
    }

    /// [SZ1]: another process has the description, and the one that asked has not.
    #[test]
    fn it_is_held_by_whichever_process_has_it() {
        let file = file();
        let (zone, hold) = StoreZone::of(&file, 0, 9 * PAGE, 0).expect("opened");
        let inherited = Stdio::from(zone.descriptor().try_clone_to_owned().expect("cloned"));
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(inherited).spawn().expect("started");
        drop(zone);
        assert!(hold.is_held().expect("known"));
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(comes_without_copies(|| !hold.is_held().expect("known")));
    }
}

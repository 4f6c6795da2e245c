//! What an operation does when it finds no space, before it returns `NoSpace`: it uses space that is free already or soon will be.
//!
//! [NS1] An operation that can fail for lack of space runs inside [`FileSystem::with_room`], from before its first lock. It changes nothing
//!       when it fails, so it can run again.
//! [NS2] In this order: sectors of returned leases (`lease.rs`), inodes whose last holder has gone ([NW5] of `wait.rs`) and quarantined space (`quarantine.rs`) are freed; empty units leave their
//!       regions (`alloc/departure.rs`), then sparse ones are emptied, and those of the data area too where files may lie in the memory zone
//!       (`compaction/`); without a block zone, logs are written back; units of the data area are emptied if metadata is short of units
//!       ([WB6] of `data/write_back.rs`); the operation waits for other threads that are about to free space.
//! [NS3] A thread that frees an inode or a range of a file is *leaving*, from before it plans its transaction until the commit is done and
//!       the space is in the maps. A thread that gives back what it took itself is not: its failure would look like new space. A waiter
//!       holds no lock, so leaving threads never wait for it. It waits at most [`LEAVING_MAX`]: removals may never end.
//! [NS4] Freed metadata lines that wait for the watermark are not handled here: the allocator forces the checkpoint ([ME1] of
//!       `alloc/memory.rs`).
//! [NS5] The disk under an image is full: sectors that were freed, or all that are free, are discarded, so that the disk has their space
//!       again. If that does not help, the block zone counts as full.
//!
//! Only an outside caller can release an inode without names that it holds; [`FileSystem::inodes_without_names`] lists them for it.

use std::time::{Duration, Instant};

use tandemfs_device::DeviceError;
use tandemfs_format::InodeNumber;
use tandemfs_format::size::size;

use crate::alloc::departure::Pace;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::quota::unbound;
use crate::sync::EXPLORED;
use crate::sync::atomic::Ordering::Relaxed;
use crate::tuning::compaction::{COMPACTIONS_MAX, GATHERINGS_MAX};
use crate::types::Space;
use crate::wait::may_wait;

/// How long an operation waits for leaving threads; in an explored schedule, where time does not pass, until they have left.
const LEAVING_MAX: Duration = Duration::from_millis(if EXPLORED { 600_000 } else { 500 });

/// The log says that a zone is full once in this time.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// What an operation has given back to the disk under an image ([NS5]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GivenBack {
    Nothing,
    /// What was freed during this mount.
    Freed,
    All,
}

impl FileSystem {
    /// Runs an operation that holds no lock yet, and runs it again if it found no space and some was freed ([NS1], [NS2]).
    pub(crate) fn with_room<T>(&self, operation: impl Fn() -> Result<T>) -> Result<T> {
        let mut is_released = false;
        let mut is_shrunk = false;
        let mut compactions: u32 = 0;
        let mut is_written_back = false;
        let mut is_emptied = false;
        let mut given_back = GivenBack::Nothing;
        let mut is_host = false;
        let mut end = None;
        let mut waits = None;
        loop {
            let before = self.leaving.ended.load(Relaxed);
            let given = self.units_given_back();
            self.volume.live.waits.space.end(waits.take());
            let zone = match operation() {
                Err(Error::NoSpace { .. }) if !self.volume.geometry.has_block_zone() => "memory",
                Err(Error::NoSpace { zone }) => zone,
                Err(error) if is_host_full(&error) => {
                    may_wait()?;
                    waits = Some(Instant::now());
                    if self.give_back_to_host(&mut given_back) {
                        continue;
                    }
                    self.volume.tell_host_is_full(&error);
                    is_host = true;
                    "block"
                }
                other => return other,
            };
            may_wait()?;
            let since = *waits.get_or_insert_with(Instant::now);
            if self.volume.release_returned()
                || self.remove_late_orphans()
                || !std::mem::replace(&mut is_released, true) && self.volume.release_quarantine()
            {
                continue;
            }
            // Once: a long operation that failed may have emptied the units itself.
            if zone == "memory" && !std::mem::replace(&mut is_shrunk, true) && self.volume.give_back_units(Pace::Short)? > 0 {
                continue;
            }
            let (most, wanted) = if self.volume.has_memory_homes() { (GATHERINGS_MAX, 1 << compactions) } else { (COMPACTIONS_MAX, 1) };
            if zone == "memory" && compactions < most {
                compactions += 1;
                if unbound(|| self.compact_for_space(given, wanted))? {
                    continue;
                }
            }
            // Extents and slots share the zone: logs over extents that are written back free slots, and units are emptied anew.
            if zone == "memory" && !self.volume.geometry.has_block_zone() && !std::mem::replace(&mut is_written_back, true) {
                compactions = 0;
                if unbound(|| self.write_back_for_units())? {
                    continue;
                }
            }
            if zone == "memory"
                && self.volume.memory.is_metadata_short()
                && !std::mem::replace(&mut is_emptied, true)
                && matches!(unbound(|| self.empty_units()), Ok(true))
            {
                continue;
            }
            let now = Instant::now();
            let left = end.get_or_insert_with(|| now + LEAVING_MAX).saturating_duration_since(now);
            let has_left = || self.leaving.ended.load(Relaxed) != before || self.leaving.wait(left);
            if left.is_zero() || !has_left() {
                if !is_host {
                    self.tell_shortage(zone); // else the log has said what is full
                }
                self.volume.live.waits.space.record(since.elapsed());
                return Err(Error::NoSpace { zone });
            }
            given_back = GivenBack::Nothing; // what was freed meanwhile may have room on the host's disk
        }
    }

    /// Says from time to time which zone is full and what helps, and once why space that looks unused is not given out ([HB1] of
    /// `held_back.rs`).
    fn tell_shortage(&self, zone: &str) {
        let mut told = self.told_full.lock();
        if told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            *told = Some(Instant::now());
            tracing::warn!("{}", self.full_zone_sentence(zone));
        }
        drop(told);
        if self.volume.held_back.tell_shortage() {
            let held = self.volume.held_back.report();
            let (memory, block) = (size(held.held_memory_bytes), size(held.held_block_bytes));
            tracing::error!(
                "no space left in the {zone} zone: {memory} of the memory zone and {block} of the block zone are held back, because \
                 damaged metadata may name them; delete files, or unmount and run tandemfs check --repair"
            );
        }
    }

    /// What an operation that found no space in a zone should say to an administrator.
    fn full_zone_sentence(&self, zone: &str) -> String {
        let Space { memory, block, .. } = self.space();
        match zone {
            "memory" => {
                let metadata = memory.total_bytes.saturating_sub(memory.free_bytes + memory.data_log_bytes + memory.extent_bytes);
                format!(
                    "no space left in the memory zone ({}: metadata {}, small writes {}); delete files, or enlarge it: \
                     tandemfs resize --memory",
                    size(memory.total_bytes),
                    size(metadata),
                    size(memory.data_log_bytes)
                )
            }
            _ => format!(
                "no space left in the block zone ({}, {} free for large files); delete files, or enlarge it: tandemfs resize --block",
                size(block.total_bytes),
                size(block.available_bytes)
            ),
        }
    }

    /// Gives the host's disk the space of sectors that were freed during this mount, or the next time of all that are free. Whether there were
    /// any ([NS5]).
    fn give_back_to_host(&self, given_back: &mut GivenBack) -> bool {
        let _leaving = self.leaving.enter();
        if *given_back == GivenBack::Nothing {
            *given_back = GivenBack::Freed;
            self.volume.release_quarantine();
            if self.volume.discard_freed(LEAVING_MAX) > 0 {
                return true;
            }
        }
        std::mem::replace(given_back, GivenBack::All) == GivenBack::Freed && self.volume.discard_all(LEAVING_MAX) > 0
    }

    /// Inodes without names that are held from outside ([`FileSystem::remember`]). [`FileSystem::forget`] frees their space.
    pub fn inodes_without_names(&self) -> Vec<InodeNumber> {
        let orphans: Vec<u64> = self.orphans.lock().iter().copied().collect();
        orphans.into_iter().map(InodeNumber::new).filter(|number| self.inodes.is_held(*number)).collect()
    }

    /// Whether an operation that was refused for space might succeed a little later: there are inodes without names, another thread is
    /// about to free space, or freed metadata waits for a checkpoint. Cheap enough for every refusal.
    pub fn space_may_return(&self) -> bool {
        !self.orphans.lock().is_empty() || self.leaving.is_any() || self.volume.memory.is_any_pending()
    }
}

/// Whether a block write found no room on the disk that holds the image.
fn is_host_full(error: &Error) -> bool {
    matches!(error, Error::Device(DeviceError::Block { source, .. }) if source.kind() == std::io::ErrorKind::StorageFull)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain};
    use tandemfs_format::inode::file_type;

    use super::*;
    use crate::alloc::Need;
    use crate::space;
    use crate::{AllocateMode, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

    const NEW_FILE: NewInode<'_> = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    const BLOCK: u64 = 64 << 10;
    const ALLOCATE: AllocateMode = AllocateMode::Allocate { keep_size: false };

    fn with_file(memory_bytes: u64, block_zone_bytes: u64) -> (FileSystem, InodeNumber) {
        let drive = Drive::new(Arc::new(MemoryDevice::new(memory_bytes, block_zone_bytes, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        let file = fs.create(InodeNumber::ROOT, b"file", &NEW_FILE).expect("made").inode;
        (fs, file)
    }

    #[test]
    fn an_inode_without_names_is_named_until_its_holder_forgets_it() {
        let (fs, file) = with_file(16 << 20, 32 << 20);
        fs.write(file, 0, &[1; BLOCK as usize], WriteOptions::default()).expect("written");
        let free = fs.space().block.free_bytes;
        assert_eq!(fs.inodes_without_names(), []);
        let generation = fs.attributes(file).expect("there").generation;
        fs.remember(file, generation, 1).expect("held");
        assert_eq!(fs.inodes_without_names(), []);
        fs.unlink(InodeNumber::ROOT, b"file").expect("removed");
        assert_eq!(fs.inodes_without_names(), [file]);
        assert!(fs.space_may_return());
        assert!(!fs.leaving.wait(Duration::ZERO), "its holder is not leaving by itself");
        fs.forget(file, 1);
        assert_eq!(fs.inodes_without_names(), []);
        assert_eq!(fs.space().block.free_bytes, free + BLOCK);
        assert!(fs.space_may_return(), "its lines wait for a checkpoint");
        fs.checkpoint().expect("home");
        fs.space();
        assert!(!fs.space_may_return());
    }

    #[test]
    fn who_leaves_wakes_who_waits() {
        let (fs, _) = with_file(16 << 20, 32 << 20);
        let leaving = [fs.leaving.enter(), fs.leaving.enter()];
        assert!(fs.space_may_return());
        assert!(!fs.leaving.wait(Duration::from_millis(1)), "nobody has left");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| fs.leaving.wait(Duration::from_secs(600)));
            let [one, other] = leaving;
            // The waiter may start after one or both have left: it ends in every case.
            drop(one);
            while !waiter.is_finished() && fs.leaving.ended.load(Relaxed) < 1 {
                std::thread::yield_now();
            }
            drop(other);
            let _either = waiter.join().expect("no panic");
        });
        assert!(!fs.leaving.wait(Duration::from_secs(600)), "nobody is left");
    }

    #[test]
    fn an_operation_runs_again_when_somebody_has_left_meanwhile() {
        let (fs, _) = with_file(16 << 20, 32 << 20);
        let attempts = Cell::new(0);
        let result = fs.with_room(|| {
            attempts.set(attempts.get() + 1);
            if attempts.get() > 3 {
                return Ok(attempts.get());
            }
            drop(fs.leaving.enter());
            Err(Error::NoSpace { zone: "block" })
        });
        assert!(matches!(result, Ok(4)), "{result:?}");
        let refused: Result<()> = fs.with_room(|| {
            attempts.set(attempts.get() + 1);
            Err(Error::NoSpace { zone: "block" })
        });
        assert!(refused.is_err() && attempts.get() == 5, "where nobody leaves it is refused at once");
    }

    /// Space held back after one failed access was lost to `fallocate` for ever, while a write took it back.
    #[test]
    fn regression_space_that_was_held_back_serves_an_allocation() {
        let (fs, file) = with_file(16 << 20, 32 << 20);
        let each = BLOCK / 4096;
        for _ in 0..100 {
            let sector = fs.volume.sectors.take(each, Need::Growth).expect("room");
            fs.volume.quarantine(space::sectors(sector, each));
        }
        let bytes = fs.space().block.available_bytes / BLOCK * BLOCK;
        fs.allocate(file, 0, bytes + 50 * BLOCK, ALLOCATE).expect("held back, but free");
    }

    /// A failed `fallocate` gives back what it took; that is no reason to try again.
    #[test]
    fn an_allocation_that_cannot_fit_is_refused_at_once() {
        let (fs, file) = with_file(16 << 20, 32 << 20);
        let taken = fs.statistics().work.transactions;
        let refused = fs.allocate(file, 0, 1 << 40, ALLOCATE);
        assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
        assert_eq!(fs.statistics().work.transactions, taken);
    }

    /// A write whose mapping found no room had the units of data logs emptied; `fallocate` was refused beside a zone full of logs.
    #[test]
    fn regression_an_allocation_has_units_emptied_for_its_mapping() {
        let (fs, logs) = with_file(16 << 20, 256 << 20);
        let before = |fs: &FileSystem| fs.space().memory.data_log_bytes;
        for block in 0.. {
            let had = before(&fs);
            fs.write(logs, block * BLOCK, &[1; 20_000], WriteOptions::default()).expect("written");
            if had > 0 && before(&fs) <= had {
                break; // the write took the block path
            }
        }
        let sparse = fs.create(InodeNumber::ROOT, b"sparse", &NEW_FILE).expect("made").inode;
        // Each allocation needs a page of the mapping.
        let refused = (0..).find_map(|page| fs.allocate(sparse, page * 192 * BLOCK, 4096, ALLOCATE).err());
        assert!(matches!(refused, Some(Error::NoSpace { zone: "memory" })), "{refused:?}");
        assert_eq!(before(&fs), 0, "data logs have no units that metadata could have");
    }
}

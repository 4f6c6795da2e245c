//! The struct of a mounted file system. The modules above it add the operations: data, names, space, mount and unmount.

use std::time::Instant;

use hashbrown::HashSet;
use tandemfs_device::{Drive, DriveCounts, KindTimes, LatencyCounts};
use tandemfs_format::error_counters::ErrorCounters;
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{InodeNumber, PAGE_BYTES};

use crate::error::{Error, Result};
use crate::held_back::DamageReport;
use crate::inodes::InodeTable;
use crate::inodes::read_ahead::ReadAhead;
use crate::leaving::Leaving;
use crate::numa::NumaReport;
use crate::recovery::RecoveryReport;
use crate::settings::Settings;
use crate::statistics::{self, Statistics};
use crate::store_lease::{LentRooms, StoreLeases};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use crate::tuning::admission::Admission;
use crate::tuning::compaction::Compaction;
use crate::tuning::mappings::Mappings;
use crate::tuning::moves::Moves;
use crate::tuning::threshold::{Splitting, ThresholdReport};
use crate::tuning::unchecked::Unchecked;
use crate::tuning::write_back::WriteBack;
use crate::types::{MountOptions, Space, WriteBackReport, ZoneSpace};
use crate::versions::{Noted, Versions};
use crate::volume::Volume;
use crate::wait::{LongMutex, may_wait};

/// A mounted file system. Dropping it without [`FileSystem::unmount`] leaves the device as a crash would.
pub struct FileSystem {
    pub(crate) volume: Volume,
    pub(crate) inodes: InodeTable,
    pub(crate) settings: Settings,
    pub(crate) splitting: Splitting,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) promotion: Admission,
    /// Held while a directory moves to another directory, so that only one such move runs at a time (RULES R4).
    pub(crate) rename_lock: LongMutex<()>,
    /// Orphans: inodes without names that are held from outside.
    pub(crate) orphans: Mutex<HashSet<u64>>,
    /// Orphans created by `O_TMPFILE`; `linkat` may still give them a name.
    pub(crate) nameable: Mutex<HashSet<u64>>,
    pub(crate) late_orphans: Mutex<Vec<InodeNumber>>,
    pub(crate) generation: AtomicU32,
    /// Generations that were taken back.
    pub(crate) spare_generations: Mutex<Vec<u32>>,
    pub(crate) spare_generations_count: AtomicUsize,
    pub(crate) leaving: Leaving,
    pub(crate) write_back: WriteBack,
    pub(crate) compaction: Mutex<Compaction>,
    /// Files that move to their homes (`data/moves.rs`).
    pub(crate) moves: Mutex<Moves>,
    /// Files with pages that have no checksums and are not mapped (`data/open_pages.rs`).
    pub(crate) unchecked: Mutex<Unchecked>,
    /// Mappings of files (`data/mapped.rs`).
    pub(crate) mappings: Mappings,
    /// Leases for stores (`data/lent_stores.rs`).
    pub(crate) store_leases: StoreLeases,
    /// Room behind the ends of files that is lent with them (`data/lent_room.rs`).
    pub(crate) lent_rooms: LentRooms,
    /// When the background thread last looked for empty units of metadata.
    pub(crate) looked_for_units: Mutex<Option<Instant>>,
    /// When the log last said that a zone is full.
    pub(crate) told_full: Mutex<Option<Instant>>,
    pub(crate) background: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Whether an unmount has succeeded. Held by one, and while the zones grow ([ON5] of `growing.rs`).
    pub(crate) unmounted: LongMutex<bool>,
    pub(crate) recovery: RecoveryReport,
}

impl FileSystem {
    /// The superblock as it is on the device.
    pub fn superblock(&self) -> Superblock {
        self.volume.journal.superblock()
    }

    /// The drive below.
    pub fn drive(&self) -> &Drive {
        &self.volume.drive
    }

    /// What the mount recovered.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.recovery
    }

    /// The options in force: as mounted, with the settings that were changed since ([`FileSystem::change_settings`]). Read-ahead is what the memory
    /// option allows of it.
    pub fn options(&self) -> MountOptions {
        let options = self.settings.in_force();
        MountOptions { read_ahead_bytes: ReadAhead::window_bytes_max(options.memory_bytes, options.read_ahead_bytes) as u32, ..options }
    }

    /// Whether the mount writes nothing.
    pub fn is_read_only(&self) -> bool {
        self.volume.health.is_read_only()
    }

    /// Why the file system stopped writing, if it did (RULES R15).
    pub fn stopped(&self) -> Option<String> {
        self.volume.health.first_cause()
    }

    /// Reports whether the file system has stopped. Nothing is left to write: every acknowledged operation is durable (RULES R8).
    ///
    /// # Errors
    /// `Stopped`.
    pub fn sync(&self) -> Result<()> {
        let _counted = statistics::counted(&self.volume.live.operations.fsync);
        match self.volume.health.check_writable() {
            Err(Error::ReadOnly) => Ok(()),
            other => other,
        }
    }

    /// Writes all dirty metadata home now. Inodes whose removal was left to others ([NW5] of `wait.rs`) are gone before.
    ///
    /// # Errors
    /// `Stopped` if the device failed.
    pub fn checkpoint(&self) -> Result<()> {
        may_wait()?;
        self.remove_late_orphans();
        self.volume.checkpoint()
    }

    /// Publishes versions of what answers depend on, from now on. False if versions are published already.
    pub fn publish(&self, versions: Box<dyn Versions>) -> bool {
        self.volume.versions.set(versions)
    }

    /// Runs an operation, and then hands on its result with what its answer depends on; nothing where no versions are published. Calls do
    /// not nest.
    pub fn noting<T, R>(&self, operation: impl FnOnce() -> T, then: impl FnOnce(T, &Noted) -> R) -> R {
        self.volume.versions.noting(operation, then)
    }

    /// Whoever keeps bytes of a file has to ask anew: somebody may have newer ones, and says so to those who ask from now on.
    pub fn revoke_bytes(&self, number: InodeNumber) {
        self.volume.versions.bytes_change(number);
    }

    /// Whoever keeps answers has to ask anew: something has changed that the file system does not know.
    pub fn revoke_all_answers(&self) {
        self.volume.versions.everything_changes();
    }

    /// Somebody may be told by the kernel of what happens to files, from the moment on that the caller goes on.
    pub fn watchers_come(&self) {
        self.volume.versions.watchers_come();
    }

    /// What is noted now depends on it that nobody is told by the kernel; the caller finds that out behind this call.
    pub fn note_watchers(&self) {
        self.volume.versions.note_watchers();
    }

    /// Space of both zones and inodes.
    pub fn space(&self) -> Space {
        self.volume.release_pending();
        self.volume.release_returned();
        let (inodes_used, inodes_free) = self.volume.memory.inodes();
        Space { memory: self.volume.memory.space(), block: self.volume.sectors.space(), inodes_used, inodes_free }
    }

    /// Space of the memory zone and of the block zone, from the counters: cheap enough for every write.
    pub fn zones(&self) -> (ZoneSpace, ZoneSpace) {
        (self.volume.memory.space(), self.volume.sectors.space())
    }

    /// Free bytes in whole units of 2 MiB of the memory zone, and in free pieces of 2 MiB at multiples of 2 MiB of the block zone: what aged
    /// file systems run out of first (WineFS §2.2).
    pub fn aligned_free_bytes(&self) -> (u64, u64) {
        (self.volume.memory.free_unit_bytes(), self.volume.sectors.aligned_free_bytes())
    }

    /// Free bytes of the memory zone in whole ranges of so many bytes (a multiple of 2 MiB) at multiples of them: what can become large extents
    /// ([`MountOptions::large_extent_bytes`](crate::MountOptions::large_extent_bytes)), also on a mount that keeps none.
    pub fn free_bytes_in_ranges_of(&self, bytes: u64) -> u64 {
        self.volume.memory.free_bytes_in_ranges_of(bytes)
    }

    /// Runs operations for a thread of a program, by its number as the kernel gives it to this process (0: unknown). Where the memory zone lies
    /// on several nodes, what they write goes to the home node of its process.
    #[inline]
    pub fn for_caller<T>(&self, thread: u32, operations: impl FnOnce() -> T) -> T {
        self.volume.memory.numa.for_caller(thread, operations)
    }

    /// Learns of a thread that will call where nobody may wait ([`crate::no_wait`]); reads `/proc`.
    pub fn introduce_caller(&self, thread: u32) {
        self.volume.memory.numa.introduce(thread);
    }

    /// The nodes of memory that the memory zone lies on, and what processes have written where since the mount or the last reset.
    pub fn numa(&self) -> NumaReport {
        let memory = &self.volume.memory;
        let free: Vec<u64> = memory.free_on_nodes().into_iter().map(|pages| pages * PAGE_BYTES as u64).collect();
        memory.numa.report(&free, memory.space().total_bytes)
    }

    /// The calling process writes or creates: it gets a home node if it has none ([NH1] of `numa.rs`).
    #[inline]
    pub(crate) fn note_writer(&self) {
        let memory = &self.volume.memory;
        memory.numa.note_writer(|| memory.free_on_nodes());
    }

    /// What the mount knows about damaged metadata, and what is held back because of it.
    pub fn damage(&self) -> DamageReport {
        self.volume.held_back.report()
    }

    /// Pieces of space that are held back because the device failed an access to them; the next mount gives them out again.
    pub fn quarantined_pieces(&self) -> usize {
        self.volume.quarantine.count()
    }

    /// How far write-back is.
    pub fn write_back_report(&self) -> WriteBackReport {
        WriteBackReport { free_percent: self.volume.memory.free_data_percent(), limit_percent: self.settings.write_back_percent().into() }
    }

    /// Counters of errors since the file system was made.
    pub fn error_counters(&self) -> ErrorCounters {
        self.volume.errors.total(&self.volume.drive)
    }

    /// Inodes that are known to have damaged metadata.
    pub fn damaged_inodes(&self) -> Vec<InodeNumber> {
        self.volume.held_back.damaged()
    }

    /// Counts an inode whose damage an operation has reported. True if it was not known before.
    pub fn note_damage(&self, number: InodeNumber) -> bool {
        let is_new = self.volume.held_back.note(number);
        if is_new {
            self.volume.errors.metadata_damaged();
        }
        is_new
    }

    /// Counters since the mount or the last reset.
    pub fn statistics(&self) -> Statistics {
        let live = &self.volume().live;
        Statistics { operations: live.operations.snapshot(), work: live.work.snapshot() }
    }

    /// How long operations took since the mount or the last reset, by kind; of one in [`tandemfs_device::LATENCY_SAMPLED_1_IN`].
    pub fn latencies(&self) -> Vec<(&'static str, LatencyCounts)> {
        self.volume().live.operations.latencies()
    }

    /// How long threads waited since the mount or the last reset, by what for. Waits for locks are of all file systems of this process.
    pub fn waits(&self) -> [KindTimes; 6] {
        self.volume().live.waits.times()
    }

    /// The drive's own counters since the mount or the last reset; zeros if the drive has none.
    pub fn drive_counts(&self) -> DriveCounts {
        let earlier = *self.volume.live.drive_before.lock();
        let now = self.volume.drive.drive_counts().unwrap_or_default();
        DriveCounts { firmware: now.firmware.since(&earlier.firmware), flash: now.flash.since(&earlier.flash) }
    }

    /// Whether the drive's transactions make metadata durable; if not, the journal does.
    pub fn commits_on_drive(&self) -> bool {
        self.volume.journal.is_on_drive()
    }

    /// Sets all counters to zero, including the drive's.
    pub fn reset_statistics(&self) {
        *self.volume.live.drive_before.lock() = self.volume.drive.drive_counts().unwrap_or_default();
        self.volume.live.operations.reset();
        self.volume.live.work.reset();
        self.volume.live.waits.reset();
        self.volume.drive.counters().reset();
        self.volume.memory.numa.reset();
    }

    /// Frees the space of all promoted copies except those that are being read. Returns how many were freed.
    pub fn drop_promoted(&self) -> u64 {
        self.volume.memory.spare_pages.give_back(&self.volume.memory, usize::MAX) as u64
    }

    /// Drops the pages of a file from host memory, so that its next reads ask the drive.
    ///
    /// # Errors
    /// `Stale` if the number is not in use; `WouldWait`.
    pub fn drop_file_pages(&self, number: InodeNumber) -> Result<()> {
        self.inodes.get(&self.volume, number)?.pages.forget(0, u64::MAX);
        Ok(())
    }

    /// The current threshold at which writes are split, and its reason.
    pub fn threshold(&self) -> ThresholdReport {
        self.splitting.report(&self.volume, &self.settings)
    }

    /// Host memory of metadata pages, file pages, directory indexes and buffers, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.volume.pages.memory_bytes()
            + self.file_pages_bytes()
            + self.inodes.index_bytes.load(Relaxed) as u64
            + self.read_ahead.memory_bytes()
    }

    /// Host memory of file pages alone, in bytes.
    pub fn file_pages_bytes(&self) -> u64 {
        self.volume.pages.files.memory_bytes()
    }

    /// A generation for a new inode. No other inode with the same number has had it.
    pub(crate) fn next_generation(&self) -> u32 {
        if self.spare_generations_count.load(Relaxed) > 0
            && let Some(generation) = self.take_spare_generation()
        {
            return generation;
        }
        self.generation.fetch_add(1, Relaxed)
    }

    #[cold]
    fn take_spare_generation(&self) -> Option<u32> {
        let mut spare = self.spare_generations.lock();
        let generation = spare.pop();
        self.spare_generations_count.store(spare.len(), Relaxed);
        generation
    }

    /// Takes back a generation that was not used. If later ones were given out, the next new inode gets it: so as many generations are given
    /// out as transactions are committed, whatever is refused.
    fn return_generation(&self, generation: u32) {
        if self.generation.compare_exchange(generation.wrapping_add(1), generation, Relaxed, Relaxed).is_err() {
            let mut spare = self.spare_generations.lock();
            spare.push(generation);
            self.spare_generations_count.store(spare.len(), Relaxed);
        }
    }
}

/// A generation that was given out; it is taken back unless its transaction was written.
#[must_use = "dropped, it is taken back"]
pub(crate) struct NewGeneration<'f> {
    file_system: &'f FileSystem,
    number: u32,
    is_used: bool,
}

impl<'f> NewGeneration<'f> {
    pub(crate) fn of(file_system: &'f FileSystem) -> Self {
        Self { file_system, number: file_system.next_generation(), is_used: false }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn used(mut self) {
        self.is_used = true;
    }
}

impl Drop for NewGeneration<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.file_system.return_generation(self.number);
        }
    }
}

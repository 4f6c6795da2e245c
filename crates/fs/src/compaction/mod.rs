//! Compaction: units of metadata of which little is in use are emptied, so that they leave their regions and become data area
//! (`alloc/departure.rs`). Pages of mappings and of directory entries, leaves, checksum vectors and extended attributes move to other units
//! of their region (`alloc/emptying.rs`). Inodes stay: their place is their number. Where files may lie in the memory zone, data logs and
//! extents move out of sparse units too, if units are short (`alloc/gathering.rs`, `data/gather.rs`); and in both zones, if much of the
//! free space lies in holes, so that aligned extents stay (`alloc/scattered.rs`).
//!
//! [CZ1] Nothing names the owner of a line. So a pass goes over all inodes in use and looks at what each of them names: one pass empties all
//!       units that were chosen at its start. What was in use then, or came from a transaction that had begun before, moves in a second
//!       pass, or stays.
//! [CZ2] Each object moves in a transaction of its own: its copy is durable before the record (a page, a stream) or in it (a leaf, a
//!       vector), the record changes the pointer to it, and its old lines are free after the watermark has passed it (RULES R6). So a crash
//!       leaves one of the two, and nobody names the other.
//! [CZ3] The inode's lock is held from the look at the pointer until the commit (RULES R5). For a leaf or a vector the block's range is held
//!       too, exclusively: readers and writers keep their addresses from the look-up to the end of the call (RULES R7). Nobody waits for
//!       that range here; a block that is in use, or has a lease, stays.
//! [CZ4] What moves is verified first, and then sealed for its new place. An object with a damaged line stays where it is: damage never gets
//!       a new checksum, and what a repair may need is not freed. Vectors have no checksum, so damage to them moves with them. What is
//!       named where the maps have no such object stays as well: to free it would stop the file system.
//! [CZ5] Host memory that has addresses follows after the commit: the pages of a directory's index, the attributes of an inode, the root.
//! [CZ6] Neither the times nor the change count of an inode change when its metadata moves. A reader's buffers stay valid: no byte of a file
//!       changes.
//! [CZ7] No pass begins while space is held back (`held_back.rs`), and one that is under way ends: the maps are not exact.
//! [CZ8] The background thread works for a share of the time, and stops for whoever asks it for something else. What aligned extents lose by
//!       that it makes up for: then it rests nine times as long as it worked, not the whole interval. As long as there is no
//!       shortage it works only while few transactions are committed by others, or where free space is scattered ([SX1] of
//!       `alloc/scattered.rs`). An operation that found no space compacts until a unit has
//!       become data area since it failed, whoever did that. Between two steps it ends for an unmount, and does the checkpoint that is asked
//!       for: the thread that does it otherwise may be this one, or wait for it.
//! [CZ9] A page of entries is left empty, in the transaction that moves it: at most 64 lines. Its old lines would verify for the directory as
//!       long as nobody writes there, and whoever searches the pages of a damaged directory would take names from them that were removed.

mod moves;

use std::time::{Duration, Instant};

use tandemfs_format::segment::Region;
use tandemfs_format::{InodeNumber, LINE_BYTES, SECTOR_BYTES, UNIT_LINES};

use crate::alloc::departure::Pace;
use crate::alloc::gathering::Use;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::journal::Requests;
use crate::mutant::{Mutant, on};
use crate::statistics::count;
use crate::sync::atomic::Ordering::Relaxed;
use crate::tuning::compaction::{Compaction, CompactionRun, Pass};
use crate::wait::may_wait;
use moves::{Wanted, is_left};

/// Free inode numbers that one step passes.
const LOOK_NUMBERS: u64 = 1024;
/// How often the background thread looks for something to do as long as there is no shortage.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// It works once in this time, ...
const INTERVAL: Duration = Duration::from_secs(1);
/// ... for at most this time while there is a shortage, ...
const SHARE_SHORT: Duration = Duration::from_millis(250);
/// ... otherwise for at most this time, if others committed at most so many transactions since.
const SHARE_QUIET: Duration = Duration::from_millis(100);
const QUIET_TRANSACTIONS: u64 = 100;
/// What it works for aligned extents is a tenth of its time: it rests so many times as long.
const REST: u32 = 9;
const REST_LEAST: Duration = Duration::from_millis(1);
/// How often operations without space try regions again that were given up.
const ANEW_INTERVAL: Duration = Duration::from_secs(10);
/// How long a step by hand waits if an operation compacts.
const BUSY: Duration = Duration::from_millis(1);

/// What a pass is to do beside emptying units of metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aligning {
    Not,
    /// Units of extents are emptied too, where free space is scattered.
    Too,
    /// Nothing but that.
    Alone,
    /// Units of extents are emptied as far as they can be.
    ByHand,
}

impl Compaction {
    /// How long the background thread leaves compaction alone from now on ([CZ8]). A pass for aligned extents that was ended early, by what is
    /// asked for all the time while much is written, goes on early.
    fn rest(&self) -> Duration {
        let Some(at) = self.worked_at else { return Duration::ZERO };
        let aligns = self.pass.as_ref().is_some_and(|pass| pass.aligns);
        let interval = if aligns { self.worked.saturating_mul(REST).clamp(REST_LEAST, INTERVAL) } else { INTERVAL };
        interval.saturating_sub(at.elapsed())
    }
}

impl FileSystem {
    /// One step of a compaction by hand. False if nothing is left to do. Work goes on beside it.
    ///
    /// # Errors
    /// `ReadOnly`, `Stopped`, `Damaged` if damaged metadata holds space back.
    pub fn compact_step(&self, run: &mut CompactionRun) -> Result<bool> {
        may_wait()?;
        self.volume.health.check_writable()?;
        if self.volume.held_back.is_any() {
            let why = "damaged metadata may name free space, so nothing is compacted; unmount and run tandemfs check --repair";
            return Err(Error::NotSupported(why));
        }
        let Some(mut compaction) = self.compaction.try_lock() else {
            std::thread::sleep(BUSY); // the caller may be asked to end meanwhile
            return Ok(true);
        };
        let work = &self.volume.live.work;
        let (moved, given) = (work.compacted_bytes.value(), self.units_emptied());
        let goes_on = match &mut compaction.pass {
            Some(pass) => {
                pass.pace = Pace::Short;
                let before = pass.emptied_before;
                // After a pass of the background thread comes one of its own.
                let goes_on = self.step(&mut compaction)?;
                goes_on || self.units_emptied() > before && !on(Mutant::GatheringEndsEarly) || run.passes == 0 // [GA7] of `alloc/gathering.rs`
            }
            None => {
                let begins = self.begin(&mut compaction, Pace::Short, run.passes == 0, Aligning::ByHand)?;
                run.passes += u64::from(begins);
                begins
            }
        };
        run.moved_bytes += work.compacted_bytes.value().saturating_sub(moved);
        run.freed_bytes += self.units_emptied().saturating_sub(given) * UNIT_LINES * LINE_BYTES as u64;
        Ok(goes_on)
    }

    /// Inode numbers that the pass under way has passed, and all; `None` if there is none, or an operation waits for its end.
    pub fn compaction_progress(&self) -> Option<(u64, u64)> {
        let compaction = self.compaction.try_lock()?;
        let pass = compaction.pass.as_ref()?;
        let limit = self.volume.memory.inode_limit();
        Some((pass.next.min(limit), limit))
    }

    /// Units that have become free for any use since the mount, by leaving their regions or by being emptied.
    pub(crate) fn units_given_back(&self) -> u64 {
        self.volume.live.work.units_given_back.value() + self.volume.memory.gathered_units()
    }

    /// The same with those of the block zone that have become aligned extents.
    fn units_emptied(&self) -> u64 {
        self.units_given_back() + self.volume.sectors.gathered_units()
    }

    /// Whether units of a zone are to be emptied so that aligned extents stay ([SX1] of `alloc/scattered.rs`).
    fn is_scattered(&self, by_hand: bool) -> bool {
        self.volume.sectors.is_scattered() || self.volume.has_memory_homes() && self.volume.memory.is_scattered(by_hand)
    }

    /// Compacts for an operation that found no space, until `wanted` units have become free beside the `given` of before it ([CZ8]), or nothing
    /// is left to do, or the mount ends. False if no unit became free. The caller holds no lock.
    pub(crate) fn compact_for_space(&self, given: u64, wanted: u64) -> Result<bool> {
        let mut compaction = self.compaction.lock();
        let mut has_begun = false;
        while !self.write_back.stop.load(Relaxed) {
            if self.units_given_back() >= given + wanted {
                return Ok(true);
            }
            if let Some(pass) = &mut compaction.pass {
                pass.pace = Pace::Short;
                self.step(&mut compaction)?;
            } else if self.begin(&mut compaction, Pace::Short, false, Aligning::Not)? || !has_begun && self.begin_anew(&mut compaction)? {
                has_begun = true;
            } else {
                return Ok(self.units_given_back() > given);
            }
            self.checkpoint_between_batches()?;
        }
        Ok(self.units_given_back() > given)
    }

    /// Begins a pass in regions that were given up, once in a while: what was in use then may not be now ([EU4] of `alloc/emptying.rs`).
    fn begin_anew(&self, compaction: &mut Compaction) -> Result<bool> {
        if compaction.anew_at.is_some_and(|at| at.elapsed() < ANEW_INTERVAL) {
            return Ok(false);
        }
        compaction.anew_at = Some(Instant::now());
        self.begin(compaction, Pace::Short, true, Aligning::Not)
    }

    /// Moves every object of metadata that can move, wherever it is. For tests.
    ///
    /// # Errors
    /// `Stopped`.
    #[cfg(any(test, feature = "mutants"))]
    pub fn move_everything(&self) -> Result<()> {
        may_wait()?;
        let mut compaction = self.compaction.lock();
        compaction.pass = Some(Pass { everything: true, is_second: true, ..Pass::new(Pace::Short) });
        while self.step(&mut compaction)? {}
        Ok(())
    }

    /// A share of background work ([CZ8]).
    pub(crate) fn compact_behind(&self) -> Result<()> {
        let Some(mut compaction) = self.compaction.try_lock() else { return Ok(()) };
        let is_short = self.are_units_short() || self.do_homes_want_units();
        if !compaction.rest().is_zero() {
            return Ok(());
        }
        let transactions = self.volume.live.work.transactions.value();
        let is_quiet = transactions.saturating_sub(std::mem::replace(&mut compaction.transactions, transactions)) <= QUIET_TRANSACTIONS;
        compaction.worked_at = Some(Instant::now());
        let is_scattered = match &compaction.pass {
            Some(pass) => pass.aligns,
            None => self.is_scattered(false),
        };
        if !is_short && !is_quiet && !is_scattered {
            return Ok(());
        }
        let pace = if is_short { Pace::Short } else { Pace::Rested };
        match &mut compaction.pass {
            Some(pass) if is_short => pass.pace = pace,
            Some(_) => {}
            None => {
                if !is_short && !is_scattered && compaction.looked_at.is_some_and(|at| at.elapsed() < LOOK_INTERVAL) {
                    return Ok(());
                }
                compaction.looked_at = Some(Instant::now());
                let aligning = if is_short || is_quiet { Aligning::Too } else { Aligning::Alone };
                if !self.begin(&mut compaction, pace, false, aligning)? {
                    return Ok(());
                }
            }
        }
        let (start, share) = (Instant::now(), if is_short { SHARE_SHORT } else { SHARE_QUIET });
        while self.step(&mut compaction)? && start.elapsed() < share && !self.is_asked() {}
        compaction.transactions = self.volume.live.work.transactions.value();
        (compaction.worked_at, compaction.worked) = (Some(Instant::now()), start.elapsed());
        Ok(())
    }

    /// When the background thread goes on with a pass, if it has nothing else to do.
    pub(crate) fn compaction_rest(&self) -> Duration {
        self.compaction.try_lock().filter(|compaction| compaction.pass.is_some()).map_or(INTERVAL, |compaction| compaction.rest())
    }

    /// Whether the background thread has something else to do.
    pub(crate) fn is_asked(&self) -> bool {
        *self.volume.journal.notifier.requests.lock() != Requests::default()
    }

    /// Begins a pass, if units can be emptied. `anew`: also where that failed before.
    fn begin(&self, compaction: &mut Compaction, pace: Pace, anew: bool, aligning: Aligning) -> Result<bool> {
        let (volume, memory, sectors) = (&self.volume, &self.volume.memory, &self.volume.sectors);
        if volume.held_back.is_any() {
            return Ok(false); // [CZ7]
        }
        let by_hand = aligning == Aligning::ByHand;
        let gathered: &[Use] = match pace == Pace::Short && volume.has_memory_homes() {
            true if by_hand => &[Use::Slots], // extents are emptied by the rule of aligned extents, [GA6] of `alloc/gathering.rs`
            true => &[Use::Slots, Use::Extents],
            false => &[], // [GA5]
        };
        let (aligns, regions) =
            (aligning != Aligning::Not && self.is_scattered(by_hand), if aligning == Aligning::Alone { &[][..] } else { &Region::ALL[..] });
        if !(regions.iter().any(|region| memory.may_empty(*region, pace, anew)) || memory.may_gather(gathered, anew) || aligns) {
            return Ok(false);
        }
        // What waits for the watermark is free then, and units that are empty need no compaction.
        if memory.is_any_pending() {
            volume.checkpoint()?;
            volume.release_pending();
        }
        volume.give_back_units(if pace == Pace::Short { Pace::Short } else { Pace::Ends })?;
        let emptied_before = self.units_emptied();
        let lines: u64 = regions.iter().map(|region| memory.begin_emptying(*region, pace, anew)).sum();
        let mut data_lines = memory.begin_gathering(gathered, anew);
        if aligns && volume.has_memory_homes() && !gathered.contains(&Use::Extents) {
            data_lines += memory.begin_aligning(by_hand);
        }
        let count = if aligns { sectors.begin_gathering() } else { 0 };
        if lines + data_lines + count == 0 {
            return Ok(false);
        }
        let (bytes, data_bytes) = (lines * LINE_BYTES as u64, data_lines * LINE_BYTES as u64 + count * SECTOR_BYTES as u64);
        tracing::info!(units = memory.emptied_units().len(), bytes, data_bytes, "compaction begins");
        compaction.pass = Some(Pass { aligns, emptied_before, ..Pass::new(pace) });
        Ok(true)
    }

    /// Moves everything out of units and sectors that are doomed ([DZ1], [DZ2] of `alloc/shrinking.rs`), as long as something moves. Returns how
    /// many objects are left, or 1 if that is not known.
    pub(crate) fn empty_doomed(&self) -> Result<u64> {
        let work = &self.volume.live.work;
        loop {
            let moved = work.compacted_bytes.value();
            let mut pass = Pass::new(Pace::Short);
            loop {
                let wanted = self.wanted(false);
                if wanted.is_empty() || !self.advance(&mut pass, &wanted)? {
                    break;
                }
                self.checkpoint_between_batches()?;
            }
            self.volume.checkpoint()?;
            self.volume.release_pending();
            if !self.is_any_left() {
                return Ok(0);
            }
            if work.compacted_bytes.value() == moved {
                return Ok(pass.left.max(1));
            }
        }
    }

    /// A step of the pass. False if it has ended.
    fn step(&self, compaction: &mut Compaction) -> Result<bool> {
        let Some(pass) = &mut compaction.pass else { return Ok(false) };
        let wanted = self.wanted(pass.everything);
        let is_held = self.volume.held_back.is_any(); // [CZ7]
        let result = match !is_held && !wanted.is_empty() {
            true => self.advance(pass, &wanted),
            false => Ok(false),
        };
        if matches!(result, Ok(true)) {
            return Ok(true);
        }
        if result.is_ok() && !is_held && !pass.is_second && self.is_any_left() {
            *pass = Pass { is_second: true, aligns: pass.aligns, emptied_before: pass.emptied_before, ..Pass::new(pass.pace) };
            return Ok(true);
        }
        let (pace, left) = (pass.pace, pass.left);
        compaction.pass = None;
        let given = match result {
            Ok(_) => self.volume.give_back_units(if pace == Pace::Short { Pace::Short } else { Pace::Ends }),
            Err(error) => Err(error),
        };
        self.volume.memory.end_emptying(&Region::ALL);
        self.volume.memory.end_gathering();
        self.volume.sectors.end_gathering();
        count(&self.volume.live.work.compactions);
        tracing::info!(given = *given.as_ref().unwrap_or(&0), left, "compaction ends");
        given.map(|_| false)
    }

    /// Whether anything is left in units that are being emptied.
    fn is_any_left(&self) -> bool {
        let (memory, sectors) = (&self.volume.memory, &self.volume.sectors);
        memory.is_any_left_in_emptied() || memory.is_any_left_to_gather() || sectors.is_any_left_to_gather()
    }

    /// Looks at the next inode in use, or a part of it, and moves what is wanted. False if it was the last.
    fn advance(&self, pass: &mut Pass, wanted: &Wanted) -> Result<bool> {
        let memory = &self.volume.memory;
        let limit = memory.inode_limit();
        let end = pass.next.saturating_add(LOOK_NUMBERS).min(limit);
        while pass.next < end && !memory.is_inode_taken(InodeNumber::new(pass.next)) {
            pass.next += 1;
        }
        if pass.next >= end {
            return Ok(pass.next < limit);
        }
        let number = InodeNumber::new(pass.next);
        let next = match self.look(number, pass.within, wanted) {
            Ok(looked) => {
                for place in &looked.places {
                    self.move_one(pass, &looked, place)?;
                }
                looked.next.map(|block| (looked.owner.generation, block))
            }
            Err(error) => {
                pass.left += u64::from(is_left(error)?);
                None
            }
        };
        pass.within = next;
        pass.next += u64::from(next.is_none());
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain};
    use tandemfs_format::inode::file_type;
    use tandemfs_format::mapping::Record;
    use tandemfs_format::{LineAddress, PAGE_LINES};

    use super::*;
    use crate::alloc::Need;
    use crate::index::tree;
    use crate::{FormatOptions, MountOptions, NewInode, make_file_system};

    fn new(kind: u16) -> NewInode<'static> {
        NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" }
    }

    fn make(fs: &FileSystem, number: u64) -> Result<()> {
        let directory = fs.create(InodeNumber::ROOT, number.to_string().as_bytes(), &new(file_type::DIRECTORY))?.inode;
        fs.create(directory, b"file", &new(file_type::REGULAR)).map(drop)
    }

    /// Three units of directories, of which one in twenty is left.
    fn sparse() -> FileSystem {
        let drive = Drive::new(Arc::new(MemoryDevice::new(64 << 20, 64 << 20, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        (0..2000).for_each(|number| make(&fs, number).expect("made"));
        for number in (0..2000).filter(|number| number % 20 > 0) {
            let name = number.to_string();
            fs.unlink(fs.lookup(InodeNumber::ROOT, name.as_bytes()).expect("there").inode, b"file").expect("removed");
            fs.remove_directory(InodeNumber::ROOT, name.as_bytes()).expect("removed");
        }
        fs
    }

    /// Background work of another second.
    fn later(fs: &FileSystem) {
        fs.compaction.lock().worked_at = None;
        fs.compact_behind().expect("works");
    }

    fn given(fs: &FileSystem) -> u64 {
        fs.statistics().work.units_given_back
    }

    #[test]
    fn an_idle_mount_compacts_and_a_busy_one_does_not() {
        let fs = sparse();
        later(&fs);
        assert!(fs.compaction_progress().is_none(), "others commit");
        later(&fs);
        while fs.compaction_progress().is_some() {
            later(&fs);
        }
        assert!(given(&fs) > 0 && fs.statistics().work.compactions == 1);
        let moved = fs.statistics().work.compacted_bytes;
        later(&fs);
        fs.compaction.lock().looked_at = None;
        later(&fs);
        assert_eq!((fs.statistics().work.compacted_bytes, fs.statistics().work.compactions), (moved, 1), "nothing is left to do");
    }

    #[test]
    fn the_background_thread_stops_for_other_work() {
        let fs = sparse();
        later(&fs);
        fs.volume.journal.notifier.requests.lock().checkpoint = true;
        later(&fs);
        let (done, all) = fs.compaction_progress().expect("it has begun, and no more");
        assert!(done < all / 2, "{done} of {all}");
    }

    #[test]
    fn nothing_is_compacted_while_space_is_held_back() {
        let fs = sparse();
        fs.compact_step(&mut CompactionRun::default()).expect("begins");
        assert!(fs.compaction_progress().is_some());
        let moved = fs.statistics().work.compacted_bytes;
        fs.volume.held_back.begin();
        assert!(matches!(fs.compact_step(&mut CompactionRun::default()), Err(Error::NotSupported(_))));
        later(&fs);
        later(&fs);
        assert!(fs.compaction_progress().is_none() && fs.volume.memory.emptied_units().is_empty());
        assert!(!fs.compact_for_space(given(&fs), 1).expect("nothing to do"));
        assert_eq!((fs.statistics().work.compacted_bytes, given(&fs)), (moved, 0));
    }

    /// Another thread had emptied the units while the operation waited for the compaction to end: `ENOSPC` with megabytes free.
    #[test]
    fn regression_an_operation_runs_again_after_the_compaction_of_another_one() {
        let fs = sparse();
        let attempts = std::cell::Cell::new(0);
        let result = fs.with_room(|| {
            attempts.set(attempts.get() + 1);
            let mut run = CompactionRun::default();
            while attempts.get() == 1 && fs.compact_step(&mut run)? {} // as the other thread does
            if attempts.get() == 1 { Err(Error::NoSpace { zone: "memory" }) } else { Ok(()) }
        });
        assert!(result.is_ok() && attempts.get() == 2 && given(&fs) > 0, "{result:?}, {attempts:?}");
        let refused: Result<()> = fs.with_room(|| Err(Error::NoSpace { zone: "memory" }));
        assert!(refused.is_err(), "nothing is left to do");
    }

    /// It was done to its end, whoever asked for what meanwhile.
    #[test]
    fn regression_a_compaction_for_space_ends_with_the_mount_and_checkpoints() {
        let fs = sparse();
        fs.write_back.stop.store(true, Relaxed);
        assert!(!fs.compact_for_space(given(&fs), 1).expect("ends"));
        assert_eq!((fs.statistics().work.compacted_bytes, given(&fs)), (0, 0));
        fs.write_back.stop.store(false, Relaxed);
        fs.volume.journal.notifier.requests.lock().checkpoint = true;
        assert!(fs.compact_for_space(0, 1).expect("works"));
        assert!(given(&fs) > 0 && !fs.is_asked());
        let moved = fs.statistics().work.compacted_bytes;
        assert!(fs.compact_for_space(0, 1).expect("works"));
        assert_eq!(fs.statistics().work.compacted_bytes, moved, "units came back since");
    }

    /// Begins a pass, whose units are then taken from it.
    fn begin_in_vain(fs: &FileSystem) {
        assert!(fs.begin(&mut fs.compaction.lock(), Pace::Short, true, Aligning::Not).expect("works"));
        fs.volume.memory.end_emptying(&Region::ALL);
    }

    /// It ended with the pass that the background thread had begun, although that gave nothing back.
    #[test]
    fn regression_a_compaction_by_hand_has_a_pass_of_its_own() {
        let fs = sparse();
        begin_in_vain(&fs);
        let mut run = CompactionRun::default();
        while fs.compact_step(&mut run).expect("works") {}
        assert!(run.passes == 1 && run.freed_bytes > 0, "{run:?}");
    }

    /// What had been in use for a moment was left alone until an eighth of a unit was freed.
    #[test]
    fn regression_an_operation_without_space_tries_again_what_was_given_up() {
        let fs = sparse();
        begin_in_vain(&fs);
        assert!(fs.compact_for_space(given(&fs), 1).expect("works"));
        let fs = sparse();
        begin_in_vain(&fs);
        fs.compaction.lock().anew_at = Some(Instant::now());
        assert!(!fs.compact_for_space(given(&fs), 1).expect("works"), "not all the time");
    }

    /// Takes lines of leaves that nothing names.
    fn fill(fs: &FileSystem, lines: u64) -> Vec<LineAddress> {
        let take = || fs.volume.take_lines(Region::Leaves, PAGE_LINES, Need::Growth).expect("room");
        (0..lines / PAGE_LINES).map(|_| take()).collect()
    }

    /// The unit of the leaf of a file's first block.
    fn leaf_unit(fs: &FileSystem, file: InodeNumber) -> u64 {
        let known = fs.inodes.get(&fs.volume, file).expect("there");
        let state = known.state.read().expect("read");
        let record = tree::lookup(&fs.volume, state.owner(file), state.root(), 0).expect("a record");
        let Record::Block { leaf: Some(leaf), .. } = record else { panic!("no leaf: {record:?}") };
        leaf.address.unit()
    }

    /// [CZ1], [CZ3]: a block that is in use in the first pass moves in the second one.
    #[test]
    fn what_was_in_use_moves_in_the_second_pass() {
        let drive = Drive::new(Arc::new(MemoryDevice::new(64 << 20, 64 << 20, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        // A unit that is half full, one with nothing but the leaf, and one that has just begun.
        let full = fill(&fs, UNIT_LINES);
        let file = fs.create(InodeNumber::ROOT, b"file", &new(file_type::REGULAR)).expect("made").inode;
        for offset in [0, 1000] {
            fs.write(file, offset, &[7; 300], crate::WriteOptions::default()).expect("written");
        }
        let (unit, rest) = (leaf_unit(&fs, file), fill(&fs, UNIT_LINES));
        for page in full.iter().step_by(2).chain(&rest) {
            assert!(fs.volume.memory.free_now(Region::Leaves, *page, PAGE_LINES));
        }
        let known = fs.inodes.get(&fs.volume, file).expect("there");
        let mut reader = Some(known.ranges.exclusive(0, 0).expect("nobody else"));
        let mut run = CompactionRun::default();
        let mut was_left = false;
        while fs.compact_step(&mut run).expect("works") {
            if fs.compaction.lock().pass.as_ref().is_some_and(|pass| pass.is_second) && reader.is_some() {
                was_left = leaf_unit(&fs, file) == unit;
                reader = None;
            }
        }
        assert!(was_left, "the first pass has left the block alone");
        assert_ne!(leaf_unit(&fs, file), unit, "{run:?}");
        assert!(run.passes == 1 && run.moved_bytes == LINE_BYTES as u64 && run.freed_bytes > 0, "{run:?}");
        let mut bytes = [0; 300];
        fs.read(file, 1000, &mut bytes).expect("read");
        assert_eq!(bytes, [7; 300]);
    }

    #[test]
    fn times_and_change_counts_stay() {
        let fs = sparse();
        let look = |fs: &FileSystem| {
            let of = |number: InodeNumber| {
                fs.inodes.get(&fs.volume, number).map(|file| {
                    let state = file.state.read_waiting();
                    (state.inode.ctime, state.inode.mtime, state.inode.change_count, state.inode.space_512)
                })
            };
            (1..2100).map(|number| of(InodeNumber::new(number)).ok()).collect::<Vec<_>>()
        };
        let before = look(&fs);
        fs.move_everything().expect("moves");
        assert!(fs.statistics().work.compacted_bytes > 100 * 4096);
        assert_eq!(look(&fs), before);
    }
}

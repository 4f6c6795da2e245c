//! Write-back: frees memory-zone space when it runs short, by turning the data logs of blocks into sectors (RomeFS §3.5.2). It runs in the
//! background. [`rewrite`](super::rewrite) writes several blocks at once.
//!
//! [WB1] It starts when less than the limit is free, and stops when the limit plus [`ENOUGH_ABOVE_PERCENT`] is free.
//! [WB2] A pass scans a window of blocks with logs, keeps the best candidates by the policy, and writes them back best first. The next
//!       window starts at the end of the last one. This bounds host memory. *Best* means best of a window; if no more than
//!       [`WINDOW_BLOCKS`] blocks have logs, best of all. Candidates left over when enough is free come first in the next pass, without a
//!       new scan (except blocks used since, if the policy goes by age): scanning a window costs as much as writing thousands of blocks.
//! [WB3] The space that a block would free is read from its leaf, its age from a table in host memory ([`heat`](crate::tuning::heat)): a
//!       write does no device I/O for this.
//! [WB4] An inode is locked for [`LOOK_RECORDS`] records at a time, never while the device moves data (RULES R9).
//! [WB5] After a pass that freed nothing (a full block zone, damaged logs) the next write does not ask for another one: the thread retries
//!       by its timer.
//! [WB6] Metadata never loses its space to data. When metadata has taken half of the units that the data area leaves it, everything is
//!       written back once, so that units become empty and the reserve is full again; meanwhile new logs take the block path. The
//!       background thread does this; an operation that finds no unit earlier does it itself. Empty and sparse units of other regions
//!       are taken first (`alloc/departure.rs`, `compaction/`), and the reserve is a sixteenth of the zone, so this is rare.
//! [WB7] Candidates and the cursor can be out of date, and inode numbers are reused. Each holds the generation of its inode, which is
//!       compared under the inode's lock before each use. So the root of another inode (the text of a symlink, a device number) is never
//!       decoded as a record.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;

use super::rewrite::{Job, Rewrite, Scratch};
use super::target::Target;
use crate::alloc::departure::Pace;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::Block;
use crate::index::tree::{self, Found};
use crate::inodes::InCoreInode;
use crate::mutant::{Mutant, on};
use crate::statistics::count;
use crate::sync::EXPLORED;
use crate::sync::atomic::Ordering::Relaxed;
use crate::tuning::compaction::COMPACTIONS_MAX;
use crate::tuning::write_back::{Candidate, Cursor};
use crate::wait::may_wait;

/// Write-back stops at this much free space above its start limit, in percent of the data area.
const ENOUGH_ABOVE_PERCENT: u64 = 5;
/// All of the data area is free: write everything back.
const EVERYTHING_PERCENT: u64 = 100;
/// Maximum blocks with logs, and inodes, in one window.
const WINDOW_BLOCKS: u64 = 65_536;
const WINDOW_INODES: u64 = 65_536;
/// Blocks of a window that are kept as candidates.
const CANDIDATES_MAX: usize = 4096;
/// Records scanned under one hold of the inode lock.
const LOOK_RECORDS: usize = 256;
/// Maximum blocks and bytes in one batch. A writer of such a block waits for the whole batch, so a larger one costs more than it saves.
const BATCH_BLOCKS: u64 = 64;
const BATCH_BYTES: u64 = 512 << 10;

/// Time between two attempts to empty units of the data area.
const EMPTY_UNITS_INTERVAL: Duration = Duration::from_secs(10);

/// The result of a pass.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// Blocks that were written back.
    pub(crate) blocks: u64,
    /// The first device error, and the inode of its block.
    pub(crate) failed: Option<(InodeNumber, Error)>,
    /// The first damage found, and its inode.
    pub(crate) damaged: Option<(InodeNumber, Error)>,
}

impl Pass {
    fn result(self) -> Result<u64> {
        self.failed.map_or(Ok(self.blocks), |(_, error)| Err(error))
    }
}

impl FileSystem {
    /// Asks the background thread to write back, unless it was asked already.
    pub(crate) fn ask_write_back(&self) {
        let asked = &self.write_back.asked;
        if !asked.load(Relaxed) && !asked.swap(true, Relaxed) {
            self.volume.journal.ask(|requests| requests.write_back = true);
        }
    }

    /// After a write: notes the time, for a policy by age, and asks for write-back if too little is free ([WB1]).
    /// After a change of a block's logs: a block whose copy home had failed is open now ([BL7] of `index/block.rs`).
    pub(super) fn note_opened(&self, number: InodeNumber, old: &Block) {
        if old.base.is_overlaid() {
            self.unchecked.lock().add(number);
        }
    }

    pub(super) fn note_written(&self, file: &InCoreInode, targets: &[Target<'_>]) {
        let policy = self.settings.write_back();
        for target in targets {
            self.note_opened(file.number, &target.old);
            self.write_back.heat.written(policy, &self.volume.journal, file.number, target.block, !target.old.has_logs());
        }
        if self.is_data_area_low() {
            self.ask_write_back();
        }
    }

    pub(crate) fn is_data_area_low(&self) -> bool {
        !self.volume.memory.is_data_free(self.settings.write_back_percent().into())
    }

    /// Whether empty units of metadata should become data area at once: little of it is free, or metadata has nearly all units.
    pub(crate) fn are_units_short(&self) -> bool {
        self.is_data_area_low() || self.volume.memory.is_without_data_units()
    }

    /// Writes back until enough of the data area is free, at most one round over all inodes. Returns the number of blocks written back.
    ///
    /// # Errors
    /// A device error of one block, after all others were written; `Stopped`.
    pub fn write_back(&self) -> Result<u64> {
        self.write_back_pass().and_then(Pass::result)
    }

    /// Writes back every block that has logs now.
    ///
    /// # Errors
    /// As [`FileSystem::write_back`].
    pub fn write_back_all(&self) -> Result<u64> {
        self.write_back_until(EVERYTHING_PERCENT).and_then(Pass::result)
    }

    /// A pass that ends when enough is free.
    pub(crate) fn write_back_pass(&self) -> Result<Pass> {
        may_wait()?;
        let enough = u64::from(self.settings.write_back_percent()) + ENOUGH_ABOVE_PERCENT;
        self.write_back_until(if EXPLORED { EVERYTHING_PERCENT } else { enough })
    }

    /// If metadata is short of units: writes all logs back so that units of the data area become empty; new writes take the block path
    /// meanwhile ([WB6]). Runs at once, then at intervals, because a continuing load may keep units in use. A concurrent caller waits for
    /// the running attempt. True if there may be free units now. The caller holds no lock.
    pub(crate) fn empty_units(&self) -> Result<bool> {
        let mut emptied_at = self.write_back.emptied_at.lock();
        if !self.volume.memory.is_metadata_short() {
            return Ok(true);
        }
        if self.volume.give_back_units(Pace::Short)? > 0 && !self.volume.memory.is_metadata_short() {
            return Ok(true);
        }
        for _ in 0..COMPACTIONS_MAX {
            if !self.compact_for_space(self.units_given_back(), 1)? {
                break;
            }
            if !self.volume.memory.is_metadata_short() {
                return Ok(true);
            }
        }
        if emptied_at.is_some_and(|at| at.elapsed() < EMPTY_UNITS_INTERVAL) {
            return Ok(false);
        }
        let is_emptied = &self.volume.memory.is_emptied;
        is_emptied.store(true, Relaxed);
        let result = self.write_back_all();
        is_emptied.store(false, Relaxed);
        *emptied_at = Some(Instant::now());
        result.map(|blocks| blocks > 0)
    }

    /// On a file system without a block zone: writes all logs back to pages, at intervals, for who found no room ([WB6]). True if some were.
    /// The caller holds no lock.
    pub(crate) fn write_back_for_units(&self) -> Result<bool> {
        let mut emptied_at = self.write_back.emptied_at.lock();
        if emptied_at.is_some_and(|at| at.elapsed() < EMPTY_UNITS_INTERVAL) {
            return Ok(false);
        }
        let result = self.write_back_all();
        *emptied_at = Some(Instant::now());
        result.map(|blocks| blocks > 0)
    }

    fn write_back_until(&self, percent: u64) -> Result<Pass> {
        if self.are_units_short() {
            self.volume.give_back_units(Pace::Short)?; // costs less than what follows
        }
        let mut scratch = Scratch::default();
        let mut pass = Pass::default();
        let mut inodes_left = self.volume.memory.inode_limit() + 1; // the scan may start in the middle of the first inode
        let batch_blocks = self.batch_blocks();
        let mut candidates = std::mem::take(&mut *self.write_back.left.lock());
        candidates.retain(|candidate| self.is_as_old_as_it_was(candidate));
        loop {
            while !candidates.is_empty() {
                if self.volume.memory.is_data_free(percent) || self.write_back.stop.load(Relaxed) {
                    *self.write_back.left.lock() = candidates;
                    return Ok(pass);
                }
                let batch = candidates.split_off(candidates.len().saturating_sub(batch_blocks));
                self.write_back_batch(&batch, &mut scratch, &mut pass)?;
                self.checkpoint_between_batches()?;
            }
            if inodes_left == 0 || self.volume.memory.is_data_free(percent) {
                return Ok(pass);
            }
            candidates = self.look_for_candidates(&mut inodes_left, percent == EVERYTHING_PERCENT);
        }
    }

    /// Most blocks of one batch.
    pub(super) fn batch_blocks(&self) -> usize {
        (BATCH_BYTES / u64::from(self.volume.geometry.block_bytes())).clamp(1, BATCH_BLOCKS) as usize
    }

    /// Whether a block has not been used since its scan.
    fn is_as_old_as_it_was(&self, candidate: &Candidate) -> bool {
        self.write_back.heat.age(self.settings.write_back(), &self.volume.journal, candidate.owner().inode, candidate.block())
            >= candidate.age
    }

    /// The thread that writes back, or compacts, also checkpoints, so a long pass must not let the rings fill up.
    pub(crate) fn checkpoint_between_batches(&self) -> Result<()> {
        let asked = std::mem::take(&mut self.volume.journal.notifier.requests.lock().checkpoint);
        if asked { self.volume.checkpoint() } else { Ok(()) }
    }

    /// The best blocks of the next window, the best one last ([WB2]). If the order does not matter, all blocks of the window.
    fn look_for_candidates(&self, inodes_left: &mut u64, all: bool) -> Vec<Candidate> {
        let limit = self.volume.memory.inode_limit().max(2);
        let mut cursor = self.write_back.cursor.lock();
        let mut best: BinaryHeap<Reverse<Candidate>> = BinaryHeap::new();
        let (mut seen, mut inodes) = (0, 0);
        while *inodes_left > 0 && seen < WINDOW_BLOCKS && inodes < WINDOW_INODES && !(all && best.len() >= CANDIDATES_MAX) {
            let Cursor { inode, within } = if cursor.inode < limit { *cursor } else { Cursor::start_of(1) };
            let next = self.look_at(InodeNumber::new(inode), within, &mut |candidate| {
                seen += 1;
                best.push(Reverse(candidate));
                if best.len() > CANDIDATES_MAX && !all {
                    best.pop();
                }
            });
            *cursor = match next {
                Ok(Some(within)) => Cursor { inode, within: Some(within) },
                other => {
                    if let Err(error) = other
                        && !matches!(error, Error::Stale(_))
                    {
                        tracing::debug!(%error, inode, "write-back leaves the rest of a file alone");
                    }
                    inodes += 1;
                    *inodes_left -= 1;
                    Cursor::start_of(inode + 1)
                }
            };
        }
        best.into_sorted_vec().into_iter().rev().map(|Reverse(candidate)| candidate).collect()
    }

    /// Passes the blocks with logs among the next records of a file to `each`. Returns where to continue, if there is more ([WB4], [WB7]).
    fn look_at(&self, number: InodeNumber, within: Option<(u32, u64)>, each: &mut dyn FnMut(Candidate)) -> Result<Option<(u32, u64)>> {
        let volume = &self.volume;
        let file = self.inodes.get(volume, number)?;
        let state = file.state.read()?;
        if state.removed || !state.has_blocks() {
            return Ok(None);
        }
        let owner = state.owner(number);
        let from = within.filter(|(generation, _)| *generation == owner.generation).map_or(0, |(_, block)| block);
        let (mut looked, mut next) = (0, None);
        let _ended = tree::walk_range(volume, owner, state.root(), from..u64::MAX, &mut |found| {
            let Found::Block(block, record) = found else { return Ok(ControlFlow::Continue(())) };
            if looked == LOOK_RECORDS {
                next = Some(block);
                return Ok(ControlFlow::Break(()));
            }
            looked += 1;
            if Block::record_has_movable_logs(&record)
                && let Ok(found) = Block::of_record(volume, owner, record)
            {
                let lines = found.logs().map(|log| log.class.lines() as u32).sum();
                let age = self.write_back.heat.age(self.settings.write_back(), &volume.journal, number, block);
                each(Candidate { age, lines, place: Reverse((number.get(), block)), generation: owner.generation });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(next.map(|block| (owner.generation, block)))
    }

    /// Writes candidates back at once, those that are still blocks of their files.
    fn write_back_batch(&self, batch: &[Candidate], scratch: &mut Scratch, pass: &mut Pass) -> Result<()> {
        let blocks: Vec<(Arc<InCoreInode>, u64)> = batch
            .iter()
            .filter_map(|candidate| {
                let owner = candidate.owner();
                let file = self.inodes.get(&self.volume, owner.inode).ok()?;
                // From here on the in-core inode identifies the file: a new file with the same number has another in-core inode ([WB7]).
                let is_it = file.state.read_waiting().is_life_of(owner) || on(Mutant::CandidateOfAnotherInode);
                is_it.then(|| (file, candidate.block()))
            })
            .collect();
        self.volume.live.waits.write_back.timed(|| self.write_back_blocks(&blocks, scratch, pass))
    }

    /// Writes several blocks back at once; skips blocks whose range is locked or leased.
    pub(super) fn write_back_blocks(&self, blocks: &[(Arc<InCoreInode>, u64)], scratch: &mut Scratch, pass: &mut Pass) -> Result<()> {
        let mut jobs: Vec<Job<'_, '_>> = Vec::with_capacity(blocks.len());
        let mut may_use_room = true;
        let mut stopped = None;
        let mut note = |number: InodeNumber, result: Result<bool>| match result {
            Ok(was) => pass.blocks += u64::from(was),
            // The file was removed, no sectors are free, or a log is damaged: other blocks may still be written.
            Err(Error::Stale(_) | Error::NoSpace { .. }) => {}
            Err(error @ (Error::Damaged { .. } | Error::DamagedData { .. } | Error::LostData { .. })) => {
                count(&self.volume.live.work.write_back_damaged);
                pass.damaged.get_or_insert((number, error));
            }
            Err(error @ Error::Device(_)) => drop(pass.failed.get_or_insert((number, error))),
            Err(error) => stopped = Some(error),
        };
        let mut all_busy = true;
        for (file, block) in blocks {
            let Some(range) = file.ranges.try_exclusive(*block, *block) else {
                count(&self.volume.live.work.write_back_busy);
                continue;
            };
            all_busy = false;
            match self.view(file).and_then(|view| self.write_back_in_place(file, &view, *block)) {
                Ok(false) => {}
                result => {
                    note(file.number, result);
                    continue;
                }
            }
            let range = Some(range).filter(|_| jobs.is_empty() || !on(Mutant::BatchRangeNotLocked));
            match self.plan_rewrite(file, *block, Rewrite::WriteBack, range, &mut may_use_room) {
                Ok(job) => jobs.extend(job),
                Err(error) => note(file.number, Err(error)),
            }
        }
        if let Some((file, block)) = blocks.first().filter(|_| all_busy) {
            note(file.number, self.rewrite_block(file, *block, Rewrite::WriteBack)); // holds no other range lock while it waits
        } else if !jobs.is_empty() {
            count(&self.volume.live.work.write_back_batches);
            self.rewrite_all(jobs, scratch, &mut note);
        }
        stopped.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain};
    use tandemfs_format::LineAddress;
    use tandemfs_format::inode::file_type;
    use tandemfs_format::mapping::Record;
    use tandemfs_format::segment::Region;

    use super::*;
    use crate::{FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

    const NEW_FILE: NewInode<'_> = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };

    /// A file system with an empty file.
    fn with_file(memory_bytes: u64) -> (FileSystem, InodeNumber) {
        let drive = Drive::new(Arc::new(MemoryDevice::new(memory_bytes, 2 * memory_bytes, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        let file = fs.create(InodeNumber::ROOT, b"file", &NEW_FILE).expect("made").inode;
        (fs, file)
    }

    /// Gives one log each to blocks of a file, until `is_enough`.
    fn add_logs(
        fs: &FileSystem,
        file: InodeNumber,
        blocks: std::ops::RangeFrom<u64>,
        bytes: &[u8],
        is_enough: impl Fn(&FileSystem) -> bool,
    ) {
        for block in blocks {
            if is_enough(fs) {
                break;
            }
            fs.write(file, block << 16, bytes, WriteOptions::default()).expect("written");
        }
    }

    #[test]
    fn what_is_left_of_a_window_comes_first_in_the_next_pass() {
        let (fs, file) = with_file(16 << 20);
        add_logs(&fs, file, 0.., &[1; 20_000], FileSystem::is_data_area_low);
        assert!(fs.write_back().expect("works") > 0);
        let left = fs.write_back.left.lock().len();
        assert!(left > 0, "enough was free before all candidates were written");
        fs.checkpoint().expect("home");
        *fs.write_back.cursor.lock() = Cursor::start_of(7);
        add_logs(&fs, file, 1000.., &[1; 200], FileSystem::is_data_area_low);
        assert!(fs.write_back().expect("works") > 0);
        assert_eq!(*fs.write_back.cursor.lock(), Cursor::start_of(7), "no window was looked at");
        assert!(fs.write_back.left.lock().len() < left);
    }

    #[test]
    fn metadata_takes_half_of_its_reserve_before_all_logs_have_to_go() {
        let logs = std::cell::Cell::new(0);
        let (fs, file) = with_file(128 << 20);
        // Until a write takes the block path.
        add_logs(&fs, file, 0.., &[1; 20_000], |fs| {
            let now = fs.space().memory.data_log_bytes;
            logs.replace(now) == now && now > 0
        });
        let mut names = 0..;
        let mut create = |count: u64| {
            for number in names.by_ref().take(count as usize) {
                fs.create(InodeNumber::ROOT, format!("name-{number}").as_bytes(), &NEW_FILE).expect("made");
            }
        };
        create(25_000); // one of the four units
        assert!(!fs.volume.memory.is_metadata_short());
        create(15_000);
        assert!(fs.volume.memory.is_metadata_short());
    }

    #[test]
    fn sparse_units_of_metadata_go_before_logs() {
        let (fs, file) = with_file(32 << 20);
        let directory = NewInode { mode: file_type::DIRECTORY | 0o755, ..NEW_FILE };
        let parent = fs.create(InodeNumber::ROOT, b"parent", &directory).expect("made").inode;
        for name in (0..1500).map(|number| number.to_string()) {
            let made = fs.create(parent, name.as_bytes(), &directory).expect("made").inode;
            fs.create(made, b"file", &NEW_FILE).expect("made");
        }
        for name in (0..1500).filter(|number| number % 20 > 0).map(|number| number.to_string()) {
            fs.unlink(fs.lookup(parent, name.as_bytes()).expect("there").inode, b"file").expect("removed");
            fs.remove_directory(parent, name.as_bytes()).expect("removed");
        }
        // Until a write takes the block path; then mapping pages take the last units.
        let logs = std::cell::Cell::new(0);
        add_logs(&fs, file, 0.., &[1; 20_000], |fs| {
            let now = fs.space().memory.data_log_bytes;
            logs.replace(now) == now && now > 0
        });
        for page in 1.. {
            if fs.volume.memory.is_metadata_short() {
                break;
            }
            fs.allocate(file, (page * 192) << 16, 4096, crate::AllocateMode::Allocate { keep_size: false }).expect("mapped");
        }
        let before = fs.statistics().work;
        assert!(fs.empty_units().expect("works"));
        let after = fs.statistics().work;
        assert_eq!((before.block_write_backs, before.units_given_back), (after.block_write_backs, 0));
        assert!(after.units_given_back > 0 && after.compacted_bytes > 0 && !fs.volume.memory.is_metadata_short());
    }

    /// A removed file's number was reused for a symlink, and its text was decoded as a block's record: false damage was reported.
    #[test]
    fn regression_a_candidate_is_not_taken_for_what_has_its_number_now() {
        let pointer = Record::Pointer { page: LineAddress::new(0x40_41_42), height: 1 }.encode().to_bytes();
        let without_zeros = pointer.split(|byte| *byte == 0).next().expect("a part"); // the root ends in zeros by itself
        let link = |target| NewInode { mode: file_type::SYMLINK | 0o777, target, ..NEW_FILE };
        let [pointer, path] = [link(without_zeros), link(b"../some/where/else")];
        let device = NewInode { mode: file_type::CHARACTER | 0o600, rdev: 0x0c01, ..NEW_FILE };
        let directory = NewInode { mode: file_type::DIRECTORY | 0o755, ..NEW_FILE };
        for (what, new) in [("a pointer", pointer), ("a path", path), ("a device", device), ("a directory", directory)] {
            let (fs, file) = with_file(16 << 20);
            add_logs(&fs, file, 0.., &[1; 20_000], FileSystem::is_data_area_low);
            assert!(fs.write_back().expect("works") > 0);
            assert!(!fs.write_back.left.lock().is_empty(), "enough was free before all candidates were written");
            let other = fs.create(InodeNumber::ROOT, b"with a log", &NEW_FILE).expect("made").inode;
            fs.write(other, 0, &[1; 200], WriteOptions::default()).expect("written"); // otherwise all space is free, and nothing is done
            fs.unlink(InodeNumber::ROOT, b"file").expect("removed");
            fs.checkpoint().expect("its number is free");
            let made = fs.create(InodeNumber::ROOT, b"other", &new).expect("made");
            assert_eq!(made.inode, file, "{what}: the number is used again");
            let is_directory = fs.create(file, b"name", &NEW_FILE).is_ok();
            let before = fs.attributes(file).expect("there");
            let pass = fs.write_back_until(EVERYTHING_PERCENT).expect("works");
            assert!(pass.damaged.is_none() && pass.failed.is_none() && pass.blocks == 1, "{what}: {pass:?}");
            if new.mode & file_type::MASK == file_type::SYMLINK {
                assert_eq!(fs.read_link(file).expect("a link"), new.target, "{what}");
            }
            assert_eq!(fs.lookup(file, b"name").is_ok(), is_directory, "{what}");
            assert_eq!(fs.attributes(file).expect("there"), before, "{what}");
        }
    }

    /// RomeFS §3.5.2 keeps emptied leaves until the checkpoint; here RULES R6 asks for the same.
    #[test]
    fn emptied_leaves_come_back_together_at_the_checkpoint() {
        const BLOCK: u64 = 64 << 10;
        const BLOCKS: u64 = 100;
        let (fs, file) = with_file(16 << 20);
        let write = |offset, bytes: &[u8]| fs.write(file, offset, bytes, WriteOptions::default()).expect("written");
        for block in 0..BLOCKS {
            write(block * BLOCK, &[1; BLOCK as usize]); // with checksums, which write-back rewrites in place
            write(block * BLOCK, &[2; 60]);
        }
        fs.checkpoint().expect("home");
        fs.space();
        let (waiting, free) = fs.volume.memory.waiting_and_free(Region::Leaves);
        assert_eq!(waiting, 0);
        let checkpoints = fs.statistics().work.checkpoints;
        assert_eq!(fs.write_back_all().expect("works"), BLOCKS);
        assert_eq!(fs.volume.memory.waiting_and_free(Region::Leaves), (BLOCKS, free), "none is given out before the checkpoint");
        assert_eq!(fs.statistics().work.checkpoints, checkpoints, "and none is forced for them");
        fs.checkpoint().expect("home");
        write(100, &[3; 60]); // the next allocation of a leaf finds all of them
        assert_eq!(fs.volume.memory.waiting_and_free(Region::Leaves), (0, free + BLOCKS - 1));
    }
}

//! Rewrites blocks without new data: their logs and sectors become other sectors (RomeFS §3.5.2). Some callers rewrite one block;
//! write-back rewrites several at once, and a move of a file to its home commits several together.
//!
//! [RW1] Nothing is overwritten: a block goes to fresh sectors, or fills its own unwritten ones. One FLUSH serves all blocks that are
//!       written together, after the last of them and before the first of their transactions (RULES R8).
//! [RW2] Each block is its own transaction: a crash or failure concerns only one block. So each transaction is bounded (RULES R11). Pieces
//!       of a move have one for all their blocks ([MP1] of `move_pieces.rs`).
//! [RW3] The range of each block is locked from before its lookup until its commit (RULES R7, R9). No other lock is held while the device
//!       works, so writers of other blocks of the same files continue.
//! [RW4] No deadlock: a thread that holds ranges of several blocks never waits for another range. A block with a busy range is skipped; a
//!       thread waits for a range only if it holds no other. Foreground writers hold one range at a time. No thread that holds a pool, a
//!       region, an inode's lock, a ring or a checkpoint waits for a range.
//! [RW5] A block that fails gives back its allocations ([TX3] of the transaction). After a device error the bad sectors are unknown: all
//!       sectors just allocated are quarantined (`quarantine.rs`), and each block is tried once more alone.
//! [RW6] On a full device only one block of a batch takes transient room (RULES R14): writers need that room too, and the space that the
//!       block frees fills it again.
//! [RW7] Every byte is verified before it is rewritten ([CO1]): damaged data stays in place and never gets a new checksum.

use std::ops::Range;

use smallvec::SmallVec;
use tandemfs_device::{BlockRequest, Fenced, Flushed, Lines, Structure};
use tandemfs_format::inode::state;
use tandemfs_format::mapping::LEAF_ENTRIES_MAX;
use tandemfs_format::{DataAddress, InodeNumber, LINE_BYTES, SECTOR_BYTES, Sector};

use super::FileView;
use super::commit::{Durable, commit};
use super::compose::{base_to_read, load_logs, verify_found, verify_sectors};
use super::extent_io::{checksums_of, read_extents, store_pages};
use super::mutants;
use super::policy::{self, Mechanism};
use super::target::{Action, Bytes, Target};
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Block, NewExtent};
use crate::inodes::InCoreInode;
use crate::inodes::range_lock::RangeGuard;
use crate::mutant::{Mutant, on};
use crate::space::{self, Zone};
use crate::statistics::{add, count};
use crate::volume::{Tx, Volume};
use crate::wait::may_wait;

/// Why a block is rewritten without new data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rewrite {
    /// To free the memory-zone space of its logs.
    WriteBack,
    /// To leave the transient room.
    MoveOut,
    /// To have at least this many sectors, with zeros after its old content.
    Lengthen(u32),
    /// To lie in the zone that is the file's home ([HM3] of `home.rs`): there, if the caller's transaction took space for it.
    Home(Option<DataAddress>),
    /// To leave a unit that is being emptied: for another place in its zone, or pages that the caller's transaction took (`gather.rs`).
    Gather(Option<DataAddress>),
    /// To leave pages that a program may store to ([SL4] of `lent_stores.rs`): for fresh ones, and the old ones stay taken.
    TakeAway,
}

/// A block about to be rewritten, with its sectors allocated.
pub(super) struct Job<'v, 'f> {
    file: &'f InCoreInode,
    view: FileView,
    block: u64,
    /// Where the block starts in the file.
    start: u64,
    /// Bytes of the block inside the file.
    inside: usize,
    old: Block,
    at: DataAddress,
    sectors: u32,
    /// They are the block's own unwritten ones.
    fill: bool,
    tx: Tx<'v>,
    /// `None` if the caller holds the range lock.
    range: Option<RangeGuard<'f>>,
    /// Its bytes in the buffer of the batch.
    bytes: Range<usize>,
}

/// Blocks of a batch whose bytes are durable, and what they are now.
struct Stored<'v, 'f> {
    jobs: Vec<Job<'v, 'f>>,
    extents: SmallVec<[NewExtent; 1]>,
    durable: Durable,
}

/// Blocks that were copied and are durable, but not committed.
pub(super) struct Copied {
    targets: Vec<Target<'static>>,
    durable: Durable,
    rewritten: Vec<Rewritten>,
    /// Where the last of them ends in the file.
    end: Option<u64>,
}

/// A batch that the device failed.
struct NotStored<'v, 'f> {
    jobs: Vec<Job<'v, 'f>>,
    error: Error,
    /// It failed the new sectors or pages, and it is not known which ([RW5]).
    is_suspect: bool,
}

/// Host memory for a batch, reused for the next batch.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    blocks: Vec<u8>,
    logs: Vec<u8>,
}

impl<'v, 'f> Job<'v, 'f> {
    /// A block that becomes a whole one, with zeros behind the file's end, at a place that the caller's transaction took.
    pub(super) fn whole(volume: &'v Volume, file: &'f InCoreInode, view: FileView, block: u64, old: Block, at: DataAddress) -> Self {
        let (block_bytes, sectors) = (u64::from(volume.geometry.block_bytes()), volume.geometry.block_sectors_each() as u32);
        let start = block * block_bytes;
        let inside = view.size.saturating_sub(start).min(block_bytes);
        Self {
            file,
            view,
            block,
            start,
            inside: inside as usize,
            old,
            at,
            sectors,
            fill: false,
            tx: Tx::new(volume),
            range: None,
            bytes: 0..0,
        }
    }

    fn length(&self) -> usize {
        self.sectors as usize * SECTOR_BYTES
    }

    /// The old sectors or pages to read: the first one, and their place in the block's bytes ([CO2]).
    fn to_read(&self) -> Option<(DataAddress, Range<usize>)> {
        base_to_read(&self.old, &[], self.length().min(self.inside.next_multiple_of(SECTOR_BYTES)))
    }

    /// Verifies the bytes read, and copies zeros and the logs over them ([RW7]).
    fn compose(&self, volume: &Volume, into: &mut [u8], logs: &[u8]) -> Result<()> {
        verify_found(self.view.owner.inode, self.start, &self.old, &[], self.inside as u32)?;
        let read = self.to_read().map_or(0..0, |(_, bytes)| bytes);
        let bytes = (&into[read.clone()]).into();
        verify_sectors(volume, self.view.owner, self.start, &self.old, (read.start / SECTOR_BYTES) as u64, bytes)?;
        into[..read.start].fill(0);
        into[read.end..].fill(0);
        let mut rest = logs;
        for log in self.old.logs() {
            let (bytes, further) = rest.split_at(log.length as usize);
            rest = further;
            let (start, end) = ((log.offset as usize).min(into.len()), (log.end() as usize).min(into.len()));
            if on(Mutant::BatchLogsForgotten) && self.bytes.start > 0 {
                continue;
            }
            into[start..end].copy_from_slice(&bytes[..end - start]);
        }
        let inside = self.inside.min(into.len());
        into[inside..].fill(0);
        Ok(())
    }

    /// The block with its new sectors or pages, of which logs behind their end stay.
    fn into_target(self, new: NewExtent) -> (Target<'static>, Tx<'v>, Option<RangeGuard<'f>>) {
        let length = self.length();
        let slots = self.old.logs.map(|slot| slot.filter(|log| log.end() as usize > length));
        let action = Action::Extent { new, fill: self.fill, bytes: Bytes::Owned(Vec::new()), slots, stores: SmallVec::new() };
        (Target::changed(self.block, self.old, action), self.tx, self.range)
    }
}

/// What a rewritten block counts for.
struct Rewritten {
    bytes: u64,
    log_bytes: u64,
}

impl Rewritten {
    fn of(job: &Job<'_, '_>) -> Self {
        let lines: u64 = job.old.logs().map(|log| log.class.lines()).sum();
        Self { bytes: job.length() as u64, log_bytes: lines * LINE_BYTES as u64 }
    }

    fn count(&self, volume: &Volume) {
        let work = &volume.live.work;
        count(&work.block_write_backs);
        add(&work.write_back_bytes, self.bytes);
        add(&work.write_back_freed_bytes, self.log_bytes);
    }
}

impl FileSystem {
    /// Rewrites a block. True if there was work to do; a block with a lease stays as it is ([LY5] of `lease.rs`).
    pub(super) fn rewrite_block(&self, file: &InCoreInode, block: u64, why: Rewrite) -> Result<bool> {
        may_wait()?;
        let Some(_range) = file.ranges.exclusive_unless_leased(block, block) else { return Ok(false) };
        self.rewrite_locked(file, block, why)
    }

    /// Like `rewrite_block`, for a caller that holds the range lock.
    pub(super) fn rewrite_locked(&self, file: &InCoreInode, block: u64, why: Rewrite) -> Result<bool> {
        if why == Rewrite::WriteBack && self.write_back_in_place(file, &self.view(file)?, block)? {
            return Ok(true);
        }
        let mut may_use_room = true;
        let Some(job) = self.plan_rewrite(file, block, why, None, &mut may_use_room)? else { return Ok(false) };
        let mut result = Ok(true);
        self.rewrite_all(vec![job], &mut Scratch::default(), &mut |_, one| result = one);
        result
    }

    /// Looks a block up and allocates its new sectors; `None` if there is nothing to do. The caller holds the range lock or passes it in
    /// ([RW3]).
    pub(super) fn plan_rewrite<'f>(
        &self,
        file: &'f InCoreInode,
        block: u64,
        why: Rewrite,
        range: Option<RangeGuard<'f>>,
        may_use_room: &mut bool,
    ) -> Result<Option<Job<'_, 'f>>> {
        let volume = &self.volume;
        let block_bytes = u64::from(volume.geometry.block_bytes());
        let view = self.view(file)?;
        let old = self.block_of(file, &view, block)?;
        let count_before = old.base.sectors();
        let start = block * block_bytes;
        let inside = view.size.saturating_sub(start).min(block_bytes) as usize;
        let whole = self.whole_sectors(&view, &old, block);
        let (wanted, sectors) = match why {
            Rewrite::WriteBack => (old.has_logs(), whole),
            Rewrite::Home(_) => (old.base.is_in_memory() != (view.zone == Zone::Memory), whole),
            // Only its current size: the hole that it left has that size.
            Rewrite::MoveOut => {
                let sector = old.base.run().and_then(|run| run.at.sector());
                (sector.is_some_and(|sector| volume.sectors.is_in_room(sector)), count_before)
            }
            Rewrite::Lengthen(sectors) => (count_before < sectors, whole.max(sectors)),
            Rewrite::Gather(_) => (count_before > 0, count_before),
            Rewrite::TakeAway => (old.base.is_in_memory(), count_before),
        };
        if !wanted {
            return Ok(None);
        }
        let own = match policy::sectors(&old.base, count_before >= sectors) {
            Mechanism::Fill(run) => Some(run.at),
            _ => None,
        };
        let at = match own {
            Some(own) => own,
            None => self.take_anew(&view, &old, sectors, why, may_use_room)?,
        };
        let mut tx = Tx::new(volume);
        if own.is_none() && !matches!(why, Rewrite::Home(Some(_)) | Rewrite::Gather(Some(_))) {
            tx.took(space::data(at, sectors.into()));
        }
        Ok(Some(Job { file, view, block, start, inside, old, at, sectors, fill: own.is_some(), tx, range, bytes: 0..0 }))
    }

    /// Sectors that a block has once it is rewritten as a whole.
    pub(super) fn whole_sectors(&self, view: &FileView, old: &Block, block: u64) -> u32 {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let inside = view.size.saturating_sub(block * block_bytes).min(block_bytes);
        (inside.div_ceil(SECTOR_BYTES as u64) as u32).max(old.base.sectors())
    }

    /// Takes new sectors or pages for a block: in the file's home, or in the block zone if the memory zone has none.
    /// In the memory zone it stays on the node of what it replaces.
    fn take_anew(&self, view: &FileView, old: &Block, sectors: u32, why: Rewrite, may_use_room: &mut bool) -> Result<DataAddress> {
        let first = old.base.run().and_then(|run| run.at.page()).or_else(|| old.logs().next().map(|log| log.address));
        self.volume.memory.numa.near(first, || self.take_near(view, old, sectors, why, may_use_room))
    }

    fn take_near(&self, view: &FileView, old: &Block, sectors: u32, why: Rewrite, may_use_room: &mut bool) -> Result<DataAddress> {
        match why {
            Rewrite::Home(given) => return given.map_or_else(|| self.volume.take_data(view.zone, sectors.into(), Need::Growth), Ok),
            Rewrite::Gather(given) => {
                let zone = if old.base.is_in_memory() { Zone::Memory } else { Zone::Block };
                return given.map_or_else(|| self.volume.take_data(zone, sectors.into(), Need::Move), Ok);
            }
            Rewrite::TakeAway => return self.volume.take_data(Zone::Memory, sectors.into(), Need::Growth),
            Rewrite::WriteBack | Rewrite::MoveOut | Rewrite::Lengthen(_) => {}
        }
        let log_lines = old.logs().map(|log| log.class.lines()).sum();
        let to_memory = why != Rewrite::WriteBack || policy::writes_back_to_memory(&old.base, log_lines, sectors);
        if view.zone == Zone::Memory && why != Rewrite::MoveOut && to_memory {
            let memory = &self.volume.memory;
            let found = match memory.take_extent(sectors.into(), Need::Growth) {
                Err(Error::NoSpace { .. }) if policy::gives_back(&old.base, Zone::Memory, sectors) && std::mem::take(may_use_room) => {
                    memory.take_extent(sectors.into(), Need::Transient) // [RW6]
                }
                other => other,
            };
            match found {
                Err(Error::NoSpace { .. }) => {}
                other => return other.map(DataAddress::Page),
            }
        }
        self.take_sectors_anew(old, sectors, why, may_use_room).map(DataAddress::Sector)
    }

    fn take_sectors_anew(&self, old: &Block, count: u32, why: Rewrite, may_use_room: &mut bool) -> Result<Sector> {
        let (volume, gives_back) = (&self.volume, policy::gives_back(&old.base, Zone::Block, count));
        match why {
            // A whole block that takes room frees the same amount. The shorter last block of a file would fragment the room.
            Rewrite::WriteBack if gives_back && u64::from(count) == volume.geometry.block_sectors_each() => {
                match volume.sectors.take(count.into(), Need::Growth) {
                    Err(Error::NoSpace { .. }) if std::mem::take(may_use_room) => volume.sectors.take(count.into(), Need::Transient), // [RW6]
                    other => other,
                }
            }
            Rewrite::WriteBack | Rewrite::Lengthen(_) if !gives_back => volume.sectors.take(count.into(), Need::Growth),
            _ => volume.sectors.take_outside_room(count.into()).ok_or(Error::NoSpace { zone: "block" }),
        }
    }

    /// Rewrites a batch: one transfer reads all blocks, one writes them, one FLUSH, then one transaction each. `done` gets each result.
    pub(super) fn rewrite_all(&self, jobs: Vec<Job<'_, '_>>, scratch: &mut Scratch, done: &mut dyn FnMut(InodeNumber, Result<bool>)) {
        // Dropping the transaction of a block that fails frees its sectors ([RW5]).
        let Stored { jobs, extents, durable } = match self.store_all(jobs, scratch, &mut |job, error| done(job.file.number, Err(error))) {
            Ok(stored) => stored,
            Err(NotStored { jobs, error: error @ Error::Stopped { .. }, .. }) => return done(jobs[0].file.number, Err(error)), // RULES R15
            Err(NotStored { mut jobs, error, is_suspect }) => {
                jobs.iter_mut().filter(|_| is_suspect).for_each(|job| job.tx.suspect());
                return self.each_by_itself(jobs, error, done);
            }
        };
        let (fenced, flushed) = durable;
        for (job, extent) in jobs.into_iter().zip(extents) {
            let number = job.file.number;
            done(number, self.commit_anew(job, extent, (fenced.for_another(), flushed.for_another())).map(|()| true));
        }
    }

    /// Rewrites blocks of one file as `rewrite_all` does, but commits them by one transaction, which took their space. What fails is left out
    /// of it; the error is that of the last of them.
    pub(super) fn rewrite_together(&self, mut tx: Tx<'_>, file: &InCoreInode, jobs: Vec<Job<'_, '_>>) -> Result<()> {
        let mut result = Ok(());
        let mut leave_out = |job: Job<'_, '_>, error| {
            if !on(Mutant::PieceRestKept) {
                tx.free(space::data(job.at, job.sectors.into()));
            }
            result = Err(error);
        };
        let Stored { jobs, extents, durable } = match self.store_all(jobs, &mut Scratch::default(), &mut leave_out) {
            Ok(stored) => stored,
            Err(NotStored { error, is_suspect, .. }) => {
                if is_suspect {
                    tx.suspect();
                }
                return Err(error);
            }
        };
        if jobs.is_empty() {
            return result;
        }
        let end = jobs.iter().map(|job| job.start + job.length() as u64).max();
        let rewritten: Vec<Rewritten> = jobs.iter().map(Rewritten::of).collect();
        let mut targets: Vec<Target<'_>> = jobs.into_iter().zip(extents).map(|(job, new)| job.into_target(new).0).collect();
        commit(tx, file, &mut targets, durable, |inode| {
            if end >= Some(inode.size) {
                inode.state &= !state::TAIL_STALE;
            }
        })?;
        rewritten.iter().for_each(|one| one.count(&self.volume));
        result
    }

    /// Copies blocks to places that a transaction took, without committing them. If one of them fails, all do. Adds to `mismatches` how many
    /// were counted as damaged.
    pub(super) fn store_unlocked<'v>(&'v self, tx: &mut Tx<'v>, jobs: Vec<Job<'v, '_>>, mismatches: &mut u64) -> Result<Copied> {
        let mut failure = None;
        let stored = self.store_all(jobs, &mut Scratch::default(), &mut |_, error| {
            *mismatches += u64::from(matches!(error, Error::DamagedData { .. }));
            failure = Some(error);
        });
        let Stored { jobs, extents, durable } = match (stored, failure) {
            (Ok(stored), None) => stored,
            (Ok(_), Some(error)) => return Err(error),
            (Err(NotStored { error, is_suspect, .. }), _) => {
                if is_suspect {
                    tx.suspect();
                }
                return Err(error);
            }
        };
        let rewritten = jobs.iter().map(Rewritten::of).collect();
        let end = jobs.iter().map(|job| job.start + job.length() as u64).max();
        let targets = jobs.into_iter().zip(extents).map(|(job, new)| job.into_target(new).0).collect();
        Ok(Copied { targets, durable, rewritten, end })
    }

    /// Commits copied blocks, and `others` that need no bytes, by one transaction. The caller holds their range, and none of them has changed.
    pub(super) fn commit_copied(&self, tx: Tx<'_>, file: &InCoreInode, copied: Copied, others: Vec<Target<'static>>) -> Result<()> {
        let Copied { mut targets, durable, rewritten, end } = copied;
        targets.extend(others);
        targets.sort_unstable_by_key(|target| target.block);
        commit(tx, file, &mut targets, durable, |inode| {
            if end >= Some(inode.size) {
                inode.state &= !state::TAIL_STALE;
            }
        })?;
        rewritten.iter().for_each(|one| one.count(&self.volume));
        Ok(())
    }

    /// Reads the blocks of a batch, composes them and makes their new sectors or pages durable. `failed` gets what cannot be composed.
    fn store_all<'v, 'f>(
        &self,
        mut jobs: Vec<Job<'v, 'f>>,
        scratch: &mut Scratch,
        failed: &mut dyn FnMut(Job<'v, 'f>, Error),
    ) -> std::result::Result<Stored<'v, 'f>, NotStored<'v, 'f>> {
        let volume = &self.volume;
        let mut end = 0;
        for job in &mut jobs {
            job.bytes = end..end + job.length();
            end = job.bytes.end;
        }
        if scratch.blocks.len() < end {
            scratch.blocks.resize(end, 0);
        }
        let loaded = match load(volume, &jobs, scratch) {
            Ok(loaded) => loaded,
            Err(error) => return Err(NotStored { jobs, error, is_suspect: false }),
        };
        let mut composed = Vec::with_capacity(jobs.len());
        let mut rest = &scratch.logs[..];
        for (job, loaded) in jobs.into_iter().zip(loaded) {
            let (logs, further) = rest.split_at(job.old.logs().map(|log| log.length as usize).sum());
            rest = further;
            match loaded.and_then(|()| job.compose(volume, &mut scratch.blocks[job.bytes.clone()], logs)) {
                Ok(()) => composed.push(job),
                Err(error) => {
                    mutants::keep_sectors(volume, &job.old.base);
                    failed(job, error);
                }
            }
        }
        let (jobs, mut extents) = (composed, SmallVec::new());
        if jobs.is_empty() {
            return Ok(Stored { jobs, extents, durable: (Fenced::nothing_stored(), Flushed::nothing_written()) });
        }
        match self.store_anew(&jobs, &scratch.blocks, &mut extents) {
            Ok(durable) => {
                mutants::own_checksums(&mut extents);
                Ok(Stored { jobs, extents, durable })
            }
            Err(error) => Err(NotStored { jobs, is_suspect: matches!(error, Error::Device(_)), error }),
        }
    }

    /// Writes all blocks, computes their checksums while the writes are in flight, then FLUSHes ([RW1]).
    fn store_anew(&self, jobs: &[Job<'_, '_>], blocks: &[u8], extents: &mut SmallVec<[NewExtent; 1]>) -> Result<Durable> {
        let volume = &self.volume;
        let bytes_of = |job: &Job<'_, '_>| &blocks[job.bytes.clone()];
        let mut requests: SmallVec<[BlockRequest<'_>; 1]> = SmallVec::new();
        for job in jobs {
            requests.extend(job.at.sector().map(|sector| BlockRequest::Write { sector, buffer: bytes_of(job).into() }));
        }
        let mut stored: Result<_> = Ok(Lines::none());
        let mut store_all = || {
            stored = jobs.iter().try_fold(Lines::none(), |in_flight, job| {
                let mut new = NewExtent { at: job.at, count: job.sectors, checksums: SmallVec::new() };
                let in_flight = match job.at {
                    DataAddress::Page(page) => {
                        let bytes = bytes_of(job);
                        let update = volume.updates.of_move(job.file.number, job.start, bytes.len());
                        in_flight.and(store_pages(volume, update, page, &mut new, bytes)?)
                    }
                    DataAddress::Sector(_) => {
                        new.checksums = checksums_of(volume, bytes_of(job).into());
                        in_flight
                    }
                };
                extents.push(new);
                Ok(in_flight)
            });
        };
        let written = match requests.is_empty() {
            true => {
                store_all();
                None
            }
            false => Some(volume.drive.transfer(Structure::Data, &mut requests, &mut store_all)?),
        };
        let in_flight = stored?;
        let any_page = jobs.iter().any(|job| job.at.page().is_some()) && !on(Mutant::HomePagesNotFenced);
        let fenced = if any_page { volume.drive.fence(in_flight) } else { Fenced::nothing_stored() };
        let flushed = match written.filter(|_| !on(Mutant::BatchNotFlushed)) {
            None => Flushed::nothing_written(),
            // RULES R15
            Some(written) => volume.drive.flush_blocks(written).map_err(|error| volume.health.stop("flushing the drive", &error))?,
        };
        Ok((fenced, flushed))
    }

    /// Commits one block ([RW2]), then releases its range.
    fn commit_anew(&self, job: Job<'_, '_>, new: NewExtent, durable: Durable) -> Result<()> {
        let (file, end, rewritten) = (job.file, job.start + job.length() as u64, Rewritten::of(&job));
        let (target, tx, range) = job.into_target(new);
        commit(tx, file, &mut [target], durable, |inode| {
            if end >= inode.size {
                inode.state &= !state::TAIL_STALE;
            }
        })?;
        drop(range);
        rewritten.count(&self.volume);
        Ok(())
    }

    /// After a device error, retries each block of a batch alone ([RW5]). A block whose caller holds the range lock fails at once.
    fn each_by_itself(&self, jobs: Vec<Job<'_, '_>>, error: Error, done: &mut dyn FnMut(InodeNumber, Result<bool>)) {
        if let Some(job) = jobs.first().filter(|_| jobs.iter().all(|job| job.range.is_none())) {
            return done(job.file.number, Err(error));
        }
        let blocks: Vec<_> = jobs.iter().map(|job| (job.file, job.block)).collect();
        drop(jobs); // unlocks all ranges, frees all sectors
        for (file, block) in blocks {
            done(file.number, self.rewrite_block(file, block, Rewrite::WriteBack));
        }
    }
}

/// Reads the old sectors of all blocks in one transfer; meanwhile loads and verifies their logs. `Err` is a block-path error; errors of
/// logs are in the result, one per block.
fn load(volume: &Volume, jobs: &[Job<'_, '_>], scratch: &mut Scratch) -> Result<Vec<Result<()>>> {
    let Scratch { blocks, logs } = scratch;
    let mut parts: SmallVec<[(DataAddress, &mut [u8]); 1]> = SmallVec::new();
    let mut rest = &mut blocks[..];
    for job in jobs {
        let (bytes, further) = rest.split_at_mut(job.length());
        rest = further;
        if let Some((at, read)) = job.to_read() {
            parts.push((at, &mut bytes[read]));
        }
    }
    let bytes: usize = jobs.iter().flat_map(|job| job.old.logs()).map(|log| log.length as usize).sum();
    logs.resize(bytes, 0);
    let mut loaded = Vec::with_capacity(jobs.len());
    let mut load_all = || {
        let mut rest = &mut logs[..];
        for job in jobs {
            let of_job: SmallVec<[_; LEAF_ENTRIES_MAX]> = job.old.logs().map(|log| (job.start, *log)).collect();
            let length = of_job.iter().map(|(_, log)| log.length as usize).sum();
            let (bytes, further) = std::mem::take(&mut rest).split_at_mut(length);
            rest = further;
            loaded.push(load_logs(volume, job.view.owner.inode, &of_job, bytes));
        }
    };
    read_extents(volume, parts, &mut load_all)?;
    Ok(loaded)
}

//! Blocks written anew without new data: their logs and sectors become other sectors (RomeFS §3.5.2). One block for who needs just that one,
//! several at once for write-back.
//!
//! [RW1] Nothing is overwritten: a block goes to fresh sectors, or fills its own unwritten ones. One FLUSH serves all blocks that are
//!       written together, after the last of them and before the first of their transactions (RULES R8).
//! [RW2] Each block is a transaction: a cut between two of them, or one that fails, concerns no other block. So it is bounded (RULES R11).
//! [RW3] The range of each block is locked from before it is looked up until its transaction is committed (RULES R7, R9). No other lock is
//!       held while the device works, so who writes other blocks of the same files goes on.
//! [RW4] No dead-lock: who has ranges locked for several blocks never waits for another one; a block whose range is busy is left out, and
//!       waited for only where nothing else is locked. Foreground writers hold one range at a time, and whoever holds one waits for nothing
//!       that a range is needed for: pools and regions, an inode's lock, a ring and a checkpoint are all held without asking for a range.
//! [RW5] A block that fails gives back what it took ([TX3] of the transaction). After an error of the device nobody knows which sectors are
//!       bad: all that were taken are held back (`quarantine.rs`), and each block is tried once more by itself.
//! [RW6] On a full device one block of those written together takes from the transient room (RULES R14): writers need it too, and what the
//!       block gives back fills it again.
//! [RW7] Every byte is verified before it is written anew ([CO1]): damage stays where it is and is never given a new checksum.

use std::ops::Range;

use smallvec::SmallVec;
use tandemfs_device::{BlockRequest, Fenced, Flushed, Structure};
use tandemfs_format::inode::state;
use tandemfs_format::mapping::LEAF_ENTRIES_MAX;
use tandemfs_format::{InodeNumber, LINE_BYTES, SECTOR_BYTES, Sector};

use super::FileView;
use super::commit::commit;
use super::compose::{base_to_read, load_logs, verify_sectors};
use super::mutants;
use super::policy::{self, Mechanism};
use super::target::{Action, Bytes, Target};
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Block, NewSectors};
use crate::inodes::Handle;
use crate::inodes::range_lock::RangeGuard;
use crate::mutant::{Mutant, on};
use crate::space;
use crate::statistics::{add, count};
use crate::volume::{Tx, Volume};

/// Why a block is written anew without new data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rewrite {
    /// Its logs give memory-zone space back.
    WriteBack,
    /// It leaves the transient room.
    MoveOut,
    /// It is to have at least so many sectors, zeros behind what it has.
    Lengthen(u32),
}

/// A block that is about to be written anew: its sectors are taken.
pub(super) struct Job<'v, 'h> {
    handle: &'h Handle,
    view: FileView,
    block: u64,
    /// Where the block starts in the file.
    start: u64,
    /// Bytes of it that are inside the file.
    inside: usize,
    old: Block,
    sector: Sector,
    sectors: u32,
    /// The sectors are its own.
    fill: bool,
    tx: Tx<'v>,
    /// Where the caller has not locked it by itself.
    range: Option<RangeGuard<'h>>,
    /// Its bytes among those that are written together.
    bytes: Range<usize>,
}

/// Host memory for the blocks that are written together, kept from one time to the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    blocks: Vec<u8>,
    logs: Vec<u8>,
}

impl Job<'_, '_> {
    fn length(&self) -> usize {
        self.sectors as usize * SECTOR_BYTES
    }

    /// What is read of its old sectors: the first of them, and where they are in the block's bytes ([CO2]).
    fn to_read(&self) -> Option<(Sector, Range<usize>)> {
        base_to_read(&self.old, &[], self.length().min(self.inside.next_multiple_of(SECTOR_BYTES)))
    }

    /// Verifies what was read, and lays zeros and the logs over it ([RW7]).
    fn compose(&self, volume: &Volume, into: &mut [u8], logs: &[u8]) -> Result<()> {
        let read = self.to_read().map_or(0..0, |(_, bytes)| bytes);
        verify_sectors(volume, self.view.owner, self.start, &self.old, (read.start / SECTOR_BYTES) as u64, &into[read.clone()])?;
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
}

impl FileSystem {
    /// Writes a block anew. True where there was anything to do.
    pub(super) fn rewrite_block(&self, handle: &Handle, block: u64, why: Rewrite) -> Result<bool> {
        let _range = handle.ranges.exclusive(block, block);
        self.rewrite_locked(handle, block, why)
    }

    /// The same for a caller that has the range locked.
    pub(super) fn rewrite_locked(&self, handle: &Handle, block: u64, why: Rewrite) -> Result<bool> {
        let mut may_use_room = true;
        let Some(job) = self.plan_rewrite(handle, block, why, None, &mut may_use_room)? else { return Ok(false) };
        let mut result = Ok(true);
        self.rewrite_all(vec![job], &mut Scratch::default(), &mut |_, one| result = one);
        result
    }

    /// Looks a block up and takes the sectors that it goes to; `None` where there is nothing to do. The range is locked by the caller or
    /// handed over ([RW3]).
    pub(super) fn plan_rewrite<'h>(
        &self,
        handle: &'h Handle,
        block: u64,
        why: Rewrite,
        range: Option<RangeGuard<'h>>,
        may_use_room: &mut bool,
    ) -> Result<Option<Job<'_, 'h>>> {
        let volume = &self.volume;
        let block_bytes = u64::from(volume.geometry.block_bytes());
        let view = self.view(handle)?;
        let old = self.block_of(handle, &view, block)?;
        let count_before = old.base.sectors();
        let start = block * block_bytes;
        let inside = view.size.saturating_sub(start).min(block_bytes) as usize;
        let whole = (inside.div_ceil(SECTOR_BYTES) as u32).max(count_before);
        let (wanted, sectors) = match why {
            Rewrite::WriteBack => (old.has_logs(), whole),
            // What it has now and no more: that is what the hole which it left holds.
            Rewrite::MoveOut => (old.base.run().is_some_and(|run| volume.sectors.is_lent(run.sector)), count_before),
            Rewrite::Lengthen(sectors) => (count_before < sectors, whole.max(sectors)),
        };
        if !wanted {
            return Ok(None);
        }
        let gives_back = count_before >= sectors;
        let own = match policy::sectors(&old.base, gives_back) {
            Mechanism::Fill(run) => Some(run),
            _ => None,
        };
        let sector = match (own, why) {
            (Some(own), _) => own.sector,
            // A whole block that takes one from the room gives one back; the end of a file would leave it in pieces.
            (None, Rewrite::WriteBack) if gives_back && u64::from(sectors) == volume.geometry.block_sectors_each() => {
                match volume.sectors.take(sectors.into(), Need::Growth) {
                    Err(Error::NoSpace { .. }) if std::mem::take(may_use_room) => volume.sectors.take(sectors.into(), Need::Transient)?, // [RW6]
                    other => other?,
                }
            }
            (None, Rewrite::WriteBack | Rewrite::Lengthen(_)) if !gives_back => volume.sectors.take(sectors.into(), Need::Growth)?,
            _ => volume.sectors.take_outside_room(sectors.into()).ok_or(Error::NoSpace { zone: "block" })?,
        };
        let mut tx = Tx::new(volume);
        if own.is_none() {
            tx.took(space::sectors(sector, sectors.into()));
        }
        Ok(Some(Job { handle, view, block, start, inside, old, sector, sectors, fill: own.is_some(), tx, range, bytes: 0..0 }))
    }

    /// Writes blocks anew together: one transfer reads them, one writes them, one FLUSH, then a transaction each. `done` hears of each.
    pub(super) fn rewrite_all(&self, mut jobs: Vec<Job<'_, '_>>, scratch: &mut Scratch, done: &mut dyn FnMut(InodeNumber, Result<bool>)) {
        let volume = &self.volume;
        let mut end = 0;
        for job in &mut jobs {
            job.bytes = end..end + job.length();
            end = job.bytes.end;
        }
        if scratch.blocks.len() < end {
            scratch.blocks.resize(end, 0);
        }
        let mut composed = Vec::with_capacity(jobs.len());
        match load(volume, &jobs, scratch) {
            Err(error) => return self.each_by_itself(jobs, error, done),
            Ok(loaded) => {
                let mut rest = &scratch.logs[..];
                for (job, loaded) in jobs.into_iter().zip(loaded) {
                    let (logs, further) = rest.split_at(job.old.logs().map(|log| log.length as usize).sum());
                    rest = further;
                    match loaded.and_then(|()| job.compose(volume, &mut scratch.blocks[job.bytes.clone()], logs)) {
                        Ok(()) => composed.push(job),
                        Err(error) => {
                            mutants::keep_sectors(volume, &job.old.base);
                            done(job.handle.number, Err(error)); // its sectors go back with its transaction ([RW5])
                        }
                    }
                }
            }
        }
        let mut jobs = composed;
        if jobs.is_empty() {
            return;
        }
        let mut extents: SmallVec<[NewSectors; 1]> = SmallVec::new();
        let flushed = match self.store_anew(&jobs, &scratch.blocks, &mut extents) {
            Ok(flushed) => flushed,
            Err(error @ Error::Device(_)) => {
                for job in &mut jobs {
                    job.tx.suspect();
                }
                return self.each_by_itself(jobs, error, done);
            }
            Err(error) => return done(jobs[0].handle.number, Err(error)), // the file system has stopped (RULES R15)
        };
        mutants::own_checksums(&mut extents);
        for (job, extent) in jobs.into_iter().zip(extents) {
            let number = job.handle.number;
            done(number, self.commit_anew(job, extent, flushed.for_another()).map(|()| true));
        }
    }

    /// The write of all blocks, their checksums while it is on its way, and the FLUSH ([RW1]).
    fn store_anew(&self, jobs: &[Job<'_, '_>], blocks: &[u8], extents: &mut SmallVec<[NewSectors; 1]>) -> Result<Flushed> {
        let volume = &self.volume;
        let mut requests: SmallVec<[BlockRequest<'_>; 1]> =
            jobs.iter().map(|job| BlockRequest::Write { sector: job.sector, buffer: &blocks[job.bytes.clone()] }).collect();
        let written = volume.drive.transfer(Structure::Data, &mut requests, &mut || {
            extents.extend(jobs.iter().map(|job| {
                let sectors = blocks[job.bytes.clone()].chunks_exact(SECTOR_BYTES);
                let checksums = sectors.filter(|_| volume.checksums).map(|sector| volume.pair.data(sector)).collect();
                NewSectors { sector: job.sector, count: job.sectors, checksums }
            }));
        })?;
        if on(Mutant::BatchNotFlushed) {
            return Ok(Flushed::nothing_written());
        }
        volume.drive.flush_blocks(written).map_err(|error| volume.health.stop("flushing the drive", &error)) // RULES R15
    }

    /// One block's transaction ([RW2]). Its range is released after it.
    fn commit_anew(&self, job: Job<'_, '_>, new: NewSectors, flushed: Flushed) -> Result<()> {
        let Job { handle, block, start, old, fill, tx, range, bytes, .. } = job;
        let length = bytes.len();
        let lines: u64 = old.logs().map(|log| log.class.lines()).sum();
        let kept = old.logs.map(|slot| slot.filter(|log| log.end() as usize > length));
        let action = Action::Sectors { new, fill, bytes: Bytes::Owned(Vec::new()), kept };
        let mut targets = [Target::changed(block, old, action)];
        commit(tx, handle, &mut targets, (Fenced::nothing_stored(), flushed), |inode| {
            if start + length as u64 >= inode.size {
                inode.state &= !state::TAIL_STALE;
            }
        })?;
        drop(range);
        let work = &self.volume.live.work;
        count(&work.block_write_backs);
        add(&work.write_back_bytes, length as u64);
        add(&work.write_back_freed_bytes, lines * LINE_BYTES as u64);
        Ok(())
    }

    /// After an error of the device each block of a batch is tried by itself ([RW5]); a block whose caller has its range has failed.
    fn each_by_itself(&self, jobs: Vec<Job<'_, '_>>, error: Error, done: &mut dyn FnMut(InodeNumber, Result<bool>)) {
        if let Some(job) = jobs.first().filter(|_| jobs.iter().all(|job| job.range.is_none())) {
            return done(job.handle.number, Err(error));
        }
        let blocks: Vec<_> = jobs.iter().map(|job| (job.handle, job.block)).collect();
        drop(jobs); // all ranges are free, all sectors given back
        for (handle, block) in blocks {
            done(handle.number, self.rewrite_block(handle, block, Rewrite::WriteBack));
        }
    }
}

/// One transfer for the old sectors of all blocks; meanwhile their logs are loaded and verified. An error is the block path's; what it was
/// for each block's logs is in the answer.
fn load(volume: &Volume, jobs: &[Job<'_, '_>], scratch: &mut Scratch) -> Result<Vec<Result<()>>> {
    let Scratch { blocks, logs } = scratch;
    let mut requests: SmallVec<[BlockRequest<'_>; 1]> = SmallVec::new();
    let mut rest = &mut blocks[..];
    for job in jobs {
        let (bytes, further) = rest.split_at_mut(job.length());
        rest = further;
        if let Some((sector, read)) = job.to_read() {
            requests.push(BlockRequest::Read { sector, buffer: &mut bytes[read] });
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
    if requests.is_empty() {
        load_all();
    } else {
        drop(volume.drive.transfer(Structure::Data, &mut requests, &mut load_all)?);
    }
    Ok(loaded)
}

//! A write, from the caller's bytes to the device.
//!
//! 1. Lock the range of blocks (RULES R9): it stays locked over the I/O, nothing else does.
//! 2. Split at the threshold (RomeFS §3.3): whole blocks inside it go to fresh sectors by the **block path**; head and tail go to
//!    **data logs** by the byte path ([`log_plan`]). Where a leaf has no entry left, or no slot is free, the block is composed with its
//!    old content and goes by blocks as well. Of pages that come back from a page cache only what has changed may be left
//!    ([`super::modified`]). On a drive with transactions small pieces go **in place** ([`super::in_place`]): they need neither space nor
//!    steps 4 and 5.
//! 3. Take the space. Nothing is overwritten before the commit, so a failure here or below leaves everything as it was.
//! 4. Submit the block writes; while they are in flight store the logs and compute the checksums.
//! 5. Fence the logs, FLUSH the drive (RULES R8).
//! 6. Lock the inode, put records, leaves, checksums, lines that go in place and the inode into one [`Tx`], commit. The caller is answered
//!    after that: the write is durable and atomic.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::inode::{FILE_BYTES_MAX, Inode, file_type, state};
use tandemfs_format::journal::TX_DATA_MAX;
use tandemfs_format::mapping::{LOG_BYTES_MAX, LogEntry, RecordBytes};
use tandemfs_format::{InodeNumber, LINE_BYTES, SECTOR_BYTES, Sector};

use super::FileView;
use super::clean_pages::Taken;
use super::compose::compose;
use super::in_place::{Allowance, InPlace, LINES_MAX, take_parts};
use super::log_plan::{self, Part};
use super::modified::{Returned, leave_out_unmodified};
use super::range_lock::RangeGuard;
use super::rewrite::Rewrite;
use super::store::{Bytes, Store, take_logs, transfer};
use crate::alloc::Need;
use crate::index::block::{Base, BaseChange, Block, LogSlots, NewSectors, space_512_of};
use crate::index::tree;
use crate::journal::{Tx, tx_space as space};
use crate::mutant::{Mutant, on};
use crate::namespace::inodes::Handle;
use crate::statistics::{add, count};
use crate::types::WriteOptions;
use crate::volume::{Volume, now};
use crate::{Error, FileSystem, Result};

/// What goes over a stale tail; made once, since an array on the stack would be cleared for each write.
static ZEROS: [u8; SECTOR_BYTES] = [0; SECTOR_BYTES];

/// Where a write goes.
struct Span<'o> {
    offset: u64,
    end: u64,
    /// Where the file ends after it.
    file_end: u64,
    /// No new logs where sectors do.
    by_blocks: bool,
    /// Whole blocks inside multiples of this go by blocks; `None` where all do.
    threshold: Option<u32>,
    in_place: Allowance<'o>,
}

/// One block of a write.
pub(super) struct Target<'d> {
    pub(super) block: u64,
    pub(super) old: Block,
    pub(super) parts: SmallVec<[Part<'d>; 2]>,
    /// What the parts were before lines that had not changed were left out ([MR4] of `modified.rs`) and others taken out to go in place;
    /// empty where neither was.
    pub(super) as_it_came: Vec<Part<'d>>,
    /// Lines of its sectors that change in place.
    pub(super) in_place: InPlace,
    pub(super) action: Action<'d>,
}

pub(super) enum Action<'d> {
    /// Not decided yet.
    Undecided,
    /// Other logs over `base`, what becomes of the block's base. The slots are filled as the logs are stored.
    Logs { merges: u64, slots: LogSlots, stores: SmallVec<[Store<'d>; 2]>, base: Base },
    /// New sectors for the block, or its own unwritten ones; logs in `kept` stay over or behind them.
    Sectors { new: NewSectors, fill: bool, bytes: Bytes<'d>, kept: LogSlots },
}

impl FileSystem {
    /// Writes bytes. Durable when it returns; atomic for each piece of up to [`TX_DATA_MAX`] bytes.
    ///
    /// # Errors
    /// `NoSpace` where a zone is full, `FileTooLarge` beyond the largest file. After an error in a later piece of a long write the number
    /// of bytes written before it is returned instead.
    pub fn write(&self, number: InodeNumber, offset: u64, from: &[u8], options: WriteOptions) -> Result<usize> {
        count(&self.volume.live.operations.write);
        self.volume.health.check_writable()?;
        let handle = self.inodes.get(&self.volume, number)?;
        match handle.state.read().inode.file_type() {
            file_type::REGULAR => {}
            file_type::DIRECTORY => return Err(Error::IsDirectory),
            _ => return Err(Error::InvalidArgument("only regular files are written")),
        }
        let mut done = 0;
        while done < from.len() {
            let at = offset.checked_add(done as u64).ok_or(Error::FileTooLarge)?;
            let until_border = TX_DATA_MAX - at % TX_DATA_MAX;
            // An unaligned request of up to TX_DATA_MAX stays one transaction; longer ones are cut at its multiples.
            let piece = if ((from.len() - done) as u64) <= TX_DATA_MAX { from.len() - done } else { until_border as usize };
            let piece = if on(Mutant::SubWritesApart) {
                let block_bytes = u64::from(self.volume.geometry.block_bytes());
                piece.min((block_bytes - at % block_bytes) as usize)
            } else {
                piece
            };
            let bytes_after = if on(Mutant::SizeBeforePieces) { from.len() - done - piece } else { 0 };
            match self.with_room(|| self.write_piece(&handle, at, &from[done..done + piece], options, bytes_after as u64)) {
                Ok(()) => done += piece,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        add(&self.volume.live.work.user_written_bytes, done as u64);
        Ok(done)
    }

    /// `size_ahead` is 0 but for a deliberate bug.
    fn write_piece(&self, handle: &Arc<Handle>, offset: u64, data: &[u8], options: WriteOptions, size_ahead: u64) -> Result<()> {
        let volume = &self.volume;
        let (offset, view, range) = self.lock_range(handle, offset, data.len() as u64, options.append)?;
        let end = offset + data.len() as u64;
        let forgets_tail = on(Mutant::StaleTailInPlace) && volume.stores_in_place();
        let tail_zeros = if view.tail_stale && end > view.size && !forgets_tail {
            let sector_end = view.size.next_multiple_of(SECTOR_BYTES as u64);
            &ZEROS[..(sector_end.min(offset.max(view.size)) - view.size) as usize]
        } else {
            &ZEROS[..0]
        };
        let clean = &volume.pages.clean;
        let old_pages = clean.take(handle, offset, end);
        let mut tx = Tx::new(volume);
        let mut targets = self.split(handle, &view, offset, data, tail_zeros)?;
        let in_place = self.allowance(Some(&old_pages));
        let span = Span { offset, end, file_end: view.size.max(end), by_blocks: false, threshold: self.splitting.bytes(volume), in_place };
        let compares = options.compare && self.options.modified_lines > 0;
        if let Some(threshold) = span.threshold.filter(|_| compares) {
            let (lines_below, in_place) = (self.options.modified_lines, volume.stores_in_place());
            let write = Returned { offset, data, old: &old_pages, lines_below, threshold: threshold.into(), in_place };
            leave_out_unmodified(volume, &view, &write, &mut targets);
            if targets.is_empty() && end <= view.size && options.keep_times && !options.kill_set_id {
                clean.put_back(handle, view.size, offset, data, old_pages, true);
                return Ok(()); // not a byte has changed, and nothing else was to
            }
        }
        for target in &mut targets {
            self.decide(&mut tx, &view, target, &span)?;
        }
        let held = on(Mutant::InodeHeldOverIo).then(|| handle.state.write());
        let (fenced, flushed) = tx.suspect_if_failed(transfer(volume, &mut targets))?;
        drop(held);
        let range = (!on(Mutant::WriteRangeReleasedEarly)).then_some(range);
        let lent: SmallVec<[u64; 2]> = targets.iter().filter(|target| target.is_lent(volume)).map(|target| target.block).collect();
        self.commit_write(tx, handle, &mut targets, fenced, flushed, |inode| {
            inode.size = inode.size.max(end + size_ahead);
            if end >= view.size.next_multiple_of(SECTOR_BYTES as u64) {
                inode.state &= !state::TAIL_STALE; // nothing is left behind the end in its old last sector
            }
            touch(inode, options);
        })?;
        self.note_written(handle, &targets);
        clean.put_back(handle, span.file_end, offset, data, old_pages, compares);
        drop(range);
        for block in lent {
            // On a full device the block was lent room; the hole that it left is large enough for it. The write itself is done.
            if let Err(error) = self.rewrite_block(handle, block, Rewrite::MoveOut) {
                tracing::debug!(%error, block, "the transient room stays lent");
            }
        }
        Ok(())
    }

    /// 1. The range of a write, with the view of the inode that holds while it is locked. Growing a file with a stale tail also writes
    ///    its old last block.
    fn lock_range<'h>(&self, handle: &'h Handle, offset: u64, length: u64, append: bool) -> Result<(u64, FileView, RangeGuard<'h>)> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let end_of = |at: u64| at.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge);
        if !append {
            let end = end_of(offset)?;
            let range = handle.ranges.exclusive(offset / block_bytes, (end - 1) / block_bytes);
            let view = self.view(handle)?;
            if !view.tail_stale || end <= view.size {
                return Ok((offset, view, range));
            }
        }
        loop {
            let view = self.view(handle)?;
            let at = if append { view.size } else { offset };
            let end = end_of(at)?;
            let first = if view.tail_stale && end > view.size { at.min(view.size) } else { at };
            let last = if append { u64::MAX } else { (end - 1) / block_bytes };
            let range = handle.ranges.exclusive(first / block_bytes, last);
            let again = self.view(handle)?;
            if (again.size, again.tail_stale) == (view.size, view.tail_stale) {
                return Ok((at, again, range));
            }
        }
    }

    /// What the data paths need of the inode.
    pub(crate) fn view(&self, handle: &Handle) -> Result<FileView> {
        let state = handle.state.read();
        if state.removed {
            return Err(Error::Stale(handle.number));
        }
        Ok(FileView { owner: state.owner(handle.number), size: state.inode.size, tail_stale: state.inode.state & state::TAIL_STALE != 0 })
    }

    /// Calls `look` with the root of a file's mapping. The inode is locked meanwhile: pages on the way down are the file's, whatever other
    /// ranges of it become. What `look` finds of the range that the caller has locked stays true after it.
    pub(crate) fn mapped<T>(&self, handle: &Handle, view: &FileView, look: impl FnOnce(RecordBytes) -> Result<T>) -> Result<T> {
        let state = handle.state.read();
        if !state.is_life_of(view.owner) || !(state.has_blocks() || on(Mutant::CandidateOfAnotherInode)) {
            return Err(Error::Stale(handle.number));
        }
        look(state.root())
    }

    /// A block of a file ([`FileSystem::mapped`]).
    pub(super) fn block_of(&self, handle: &Handle, view: &FileView, block: u64) -> Result<Block> {
        self.mapped(handle, view, |root| Block::lookup(&self.volume, view.owner, root, block))
    }

    /// What of a write may go in place.
    fn allowance<'o>(&self, old: Option<&'o Taken>) -> Allowance<'o> {
        let modified_bytes = self.options.modified_lines.saturating_mul(LINE_BYTES as u32);
        Allowance { bytes: self.options.in_place_bytes, modified_bytes, lines_left: Cell::new(LINES_MAX), old }
    }

    /// 2a. Which bytes go to which block. `tail_zeros` go to the old end of the file.
    fn split<'d>(
        &self,
        handle: &Handle,
        view: &FileView,
        offset: u64,
        data: &'d [u8],
        tail_zeros: &'d [u8],
    ) -> Result<SmallVec<[Target<'d>; 2]>> {
        let volume = &self.volume;
        let block_bytes = u64::from(volume.geometry.block_bytes());
        let mut targets: SmallVec<[Target<'d>; 2]> = SmallVec::new();
        self.mapped(handle, view, |root| {
            for (start, bytes) in [(view.size, tail_zeros), (offset, data)] {
                if bytes.is_empty() {
                    continue;
                }
                let (first, end) = (start / block_bytes, (start + bytes.len() as u64).div_ceil(block_bytes));
                targets.reserve((end - first) as usize);
                let (mut at, mut rest) = (start, bytes);
                for (block, record) in (first..).zip(tree::lookup_range(volume, view.owner, root, first..end)?) {
                    let (piece, further) = rest.split_at((block_bytes - at % block_bytes).min(rest.len() as u64) as usize);
                    let part = Part { offset: (at % block_bytes) as u32, data: piece };
                    match targets.last_mut().filter(|target| target.block == block) {
                        Some(target) => target.parts.push(part),
                        None => {
                            let old = Block::of_record(volume, view.owner, record)?;
                            targets.push(Target::new(block, old, part));
                        }
                    }
                    (at, rest) = (at + piece.len() as u64, further);
                }
            }
            Ok(())
        })?;
        Ok(targets)
    }

    /// 2b and 3. Which path a block takes; its space is taken.
    fn decide<'d>(&self, tx: &mut Tx<'_>, view: &FileView, target: &mut Target<'d>, span: &Span<'_>) -> Result<()> {
        let volume = &self.volume;
        let block_bytes = u64::from(volume.geometry.block_bytes());
        let block_start = target.block * block_bytes;
        let inside = target.as_it_came.is_empty()
            && span.threshold.is_none_or(|threshold| {
                let threshold = u64::from(threshold);
                span.offset.next_multiple_of(threshold) <= block_start && block_start + block_bytes <= span.end / threshold * threshold
            });
        let grows = span.end > view.size;
        let to_logs = |tx: &mut Tx<'_>, target: &Target<'d>, forced: Option<Need>| -> Result<Option<Action<'d>>> {
            let Some(plan) = log_plan::plan(&target.old.logs, &target.parts) else { return Ok(None) };
            // A plan that merges logs frees their slots (RULES R14); one that adds to what is there is growth, also over sectors.
            let need = forced.unwrap_or(if plan.merges > 0 && !grows { Need::Transient } else { Need::Growth });
            match take_logs(tx, volume, view, target, plan, need) {
                Err(Error::NoSpace { .. }) => Ok(None),
                other => other.map(Some),
            }
        };
        if !inside && !span.by_blocks {
            take_parts(volume, view, block_start, target, &span.in_place);
            if target.parts.is_empty() {
                let (slots, base) = (target.old.logs, target.old.base);
                target.action = Action::Logs { merges: 0, slots, stores: SmallVec::new(), base };
                return Ok(());
            }
            if let Some(action) = to_logs(tx, target, None)? {
                target.action = action;
                return Ok(());
            }
            self.ask_write_back();
        }
        // The whole block goes by blocks: as it came, or composed with what it had.
        if !target.as_it_came.is_empty() {
            target.parts = std::mem::take(&mut target.as_it_came).into();
            target.in_place = InPlace::default();
        }
        let own_count = target.old.base.sectors();
        // Room that was kept beyond the end stays.
        let whole = ((span.file_end - block_start).min(block_bytes) as u32).div_ceil(SECTOR_BYTES as u32).max(own_count);
        let covered = target.parts.iter().map(Part::end).max().unwrap_or(0).div_ceil(SECTOR_BYTES as u32);
        // Its own sectors are enough. A log across their end would stay as well, so it must not hide new bytes.
        let enough = own_count > 0 && covered <= own_count && !target.hides(own_count * SECTOR_BYTES as u32);
        let (sector, sectors, fill) = match target.old.base {
            Base::Unwritten(own) if enough => (own.sector, own_count, true), // [BL4]
            Base::Sectors(own) if enough && on(Mutant::WrittenFilledInPlace) => (own.sector, own_count, true),
            _ => match take_sectors(volume, &target.old, whole) {
                Ok(sector) => (sector, whole, false),
                // Both zones are full, and the write replaces what is there (RULES R14): the way that gives back most comes first.
                Err(Error::NoSpace { .. }) if !grows && target.replaces() => {
                    // Only its sectors are written anew; logs behind them stay.
                    let again = if enough { Some(take_sectors(volume, &target.old, own_count)) } else { None };
                    match again {
                        Some(Ok(sector)) => (sector, own_count, false),
                        Some(Err(error)) if !span.by_blocks => return Err(error), // logs over sectors are growth, and were tried
                        tried => match to_logs(tx, target, tried.is_none().then_some(Need::Transient))? {
                            Some(action) => {
                                target.action = action;
                                return Ok(());
                            }
                            None => (volume.sectors.take(whole.into(), Need::Transient)?, whole, false),
                        },
                    }
                }
                // New bytes beside others of the block, inside the file: the byte path may have the room that the block path has not.
                Err(error @ Error::NoSpace { .. }) if !grows && inside && !span.by_blocks && need_of(&target.old) == Need::Transient => {
                    let Some(action) = to_logs(tx, target, Some(Need::Growth))? else { return Err(error) };
                    target.action = action;
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
        };
        if !fill {
            tx.took(space::sectors(sector, sectors.into()));
        }
        let length = sectors as usize * SECTOR_BYTES;
        let bytes = match target.parts.as_slice() {
            [part] if part.offset == 0 && part.data.len() == length => Bytes::Borrowed(part.data),
            parts => {
                let mut bytes = vec![0; length];
                compose(volume, view.owner, block_start, &target.old, parts, &mut bytes)?;
                // Bytes beyond the end that a truncation left are not taken over (RULES R13).
                let known = (view.size.saturating_sub(block_start)).min(length as u64) as usize;
                bytes[known..].fill(0);
                for part in parts {
                    bytes[part.offset as usize..part.end() as usize].copy_from_slice(part.data);
                }
                if target.old.has_logs() {
                    count(&volume.live.work.block_write_backs);
                }
                Bytes::Owned(bytes)
            }
        };
        let mut kept = target.old.logs;
        for slot in &mut kept {
            *slot = slot.filter(|log| log.end() as usize > length);
        }
        let new = NewSectors { sector, count: sectors, checksums: SmallVec::new() };
        target.action = Action::Sectors { new, fill, bytes, kept };
        Ok(())
    }

    /// 6. One transaction for all blocks and the inode.
    pub(super) fn commit_write(
        &self,
        mut tx: Tx<'_>,
        handle: &Handle,
        targets: &mut [Target<'_>],
        fenced: Fenced,
        flushed: Flushed,
        change: impl FnOnce(&mut Inode),
    ) -> Result<()> {
        let volume = &self.volume;
        let older = on(Mutant::InodeBeforeLock).then(|| handle.state.read().inode.clone());
        let mut state = handle.state.write();
        if state.removed {
            return Err(Error::Stale(handle.number));
        }
        let owner = state.owner(handle.number);
        let mut new = older.unwrap_or_else(|| state.inode.clone());
        let mut root = new.root_record();
        for target in targets {
            let before = target.old.space_512(volume);
            let need = need_of(&target.old);
            let (base, logs, after) = match &mut target.action {
                Action::Undecided => unreachable!("every block was decided on"),
                Action::Sectors { new, fill, kept, .. } => {
                    let change = if *fill { BaseChange::Fill } else { BaseChange::New };
                    (change(new.clone()), *kept, space_512_of(volume, new.count, kept))
                }
                Action::Logs { slots, base, .. } => {
                    if !target.in_place.is_empty() {
                        *base = target.in_place.put(&mut tx, volume, owner, &target.old)?;
                    }
                    (BaseChange::To(*base), *slots, space_512_of(volume, base.sectors(), slots))
                }
            };
            target.old.replace(&mut tx, volume, owner, &mut root, target.block, base, &logs, need)?;
            count_space(&mut new, before, after);
        }
        new.root = root.to_bytes();
        change(&mut new);
        handle.commit(tx, &mut state, new, fenced, flushed)?;
        Ok(())
    }

    /// Grows a file: the stale tail is zeroed, then the size is set. The caller holds the range from the old last block on.
    pub(crate) fn grow(&self, handle: &Handle, view: &FileView, size: u64, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let sector_end = view.size.next_multiple_of(SECTOR_BYTES as u64).min(size);
        let tail_zeros = if view.tail_stale { &ZEROS[..(sector_end - view.size) as usize] } else { &ZEROS[..0] };
        let mut tx = Tx::new(&self.volume);
        let mut targets = self.split(handle, view, size, &[], tail_zeros)?;
        // The zeros never reach beyond the file's new size, so a log may hold them.
        let threshold = self.splitting.bytes(&self.volume);
        let in_place = self.allowance(None);
        let span = Span { offset: view.size, end: sector_end, file_end: size, by_blocks: false, threshold, in_place };
        for target in &mut targets {
            self.decide(&mut tx, view, target, &span)?;
        }
        let (fenced, flushed) = tx.suspect_if_failed(transfer(&self.volume, &mut targets))?;
        self.commit_write(tx, handle, &mut targets, fenced, flushed, |inode| {
            inode.size = size;
            if size >= view.size.next_multiple_of(SECTOR_BYTES as u64) {
                inode.state &= !state::TAIL_STALE;
            }
            change(inode);
        })
    }

    /// Zeros over bytes of a block that has data there, inside the file: an overwrite (RULES R14). The caller has the range locked. Few of
    /// them are a log; more of them would cost the scarcer zone what the block itself does not, so the block is written anew.
    pub(super) fn write_zeros(&self, handle: &Handle, view: &FileView, block: u64, bytes: Range<u32>) -> Result<()> {
        let volume = &self.volume;
        let start = block * u64::from(volume.geometry.block_bytes());
        let zeros = vec![0; bytes.len()];
        let part = Part { offset: bytes.start, data: &zeros };
        let old = self.block_of(handle, view, block)?;
        let mut target = Target::new(block, old, part);
        let span = Span {
            offset: start + u64::from(bytes.start),
            end: start + u64::from(bytes.end),
            file_end: view.size,
            by_blocks: bytes.len() > LOG_BYTES_MAX,
            threshold: self.splitting.bytes(volume),
            in_place: self.allowance(None),
        };
        let mut tx = Tx::new(volume);
        self.decide(&mut tx, view, &mut target, &span)?;
        let mut targets = [target];
        let (fenced, flushed) = tx.suspect_if_failed(transfer(volume, &mut targets))?;
        self.commit_write(tx, handle, &mut targets, fenced, flushed, |inode| touch(inode, WriteOptions::default()))?;
        if targets[0].is_lent(volume)
            && let Err(error) = self.rewrite_locked(handle, block, Rewrite::MoveOut)
        {
            tracing::debug!(%error, block, "the transient room stays lent");
        }
        Ok(())
    }

    /// One transaction that leaves some logs of a block out, shortens some, and makes its base what `base` says. `moved` is a log whose
    /// bytes go to another slot (entry as it will be, slot of the leaf, bytes). The caller has the range locked.
    pub(super) fn change_block(
        &self,
        handle: &Handle,
        block: u64,
        old: Block,
        slots: LogSlots,
        moved: Option<(usize, LogEntry, Vec<u8>)>,
        base: impl FnOnce(&mut Tx<'_>, &Block) -> Result<Base>,
    ) -> Result<()> {
        let volume = &self.volume;
        let mut tx = Tx::new(volume);
        let mut stores = SmallVec::new();
        if let Some((slot, entry, bytes)) = moved {
            let address = volume.memory.take_slot(entry.class, Need::Transient)?; // its old slot comes back
            tx.took(space::slot(address, entry.class.lines()));
            stores.push(Store { slot, entry: LogEntry { address, ..entry }, skip: 0, bytes: Bytes::Owned(bytes) });
        }
        let base = base(&mut tx, &old)?;
        let action = Action::Logs { merges: 0, slots, stores, base };
        let mut targets = [Target::changed(block, old, action)];
        let (fenced, flushed) = tx.suspect_if_failed(transfer(volume, &mut targets))?;
        self.commit_write(tx, handle, &mut targets, fenced, flushed, |inode| touch(inode, WriteOptions::default()))
    }
}

impl<'d> Target<'d> {
    fn new(block: u64, old: Block, part: Part<'d>) -> Self {
        Self {
            block,
            old,
            parts: SmallVec::from_iter([part]),
            as_it_came: Vec::new(),
            in_place: InPlace::default(),
            action: Action::Undecided,
        }
    }

    /// A block that changes without new bytes of a caller.
    pub(super) fn changed(block: u64, old: Block, action: Action<'d>) -> Self {
        Self { block, old, parts: SmallVec::new(), as_it_came: Vec::new(), in_place: InPlace::default(), action }
    }

    /// Whether a log across `end` lies over bytes of the parts.
    fn hides(&self, end: u32) -> bool {
        let across = |log: &&LogEntry| log.offset < end && log.end() > end;
        let hides = |log: &LogEntry| self.parts.iter().any(|part| log.offset < part.end() && part.offset < log.end());
        self.old.logs().filter(across).any(hides)
    }

    /// Whether every byte of the parts has a place already. New bytes in the holes of a block are growth, whatever else the block has: a
    /// block of the transient room that they took would not come back (RULES R14).
    fn replaces(&self) -> bool {
        let of_base = self.old.base.bytes();
        self.parts.iter().all(|part| {
            let mut at = part.offset.max(of_base);
            while at < part.end() {
                match self.old.logs().find(|log| log.offset <= at && at < log.end()) {
                    Some(log) => at = log.end(),
                    None => return false,
                }
            }
            true
        })
    }

    fn is_lent(&self, volume: &Volume) -> bool {
        matches!(&self.action, Action::Sectors { new, .. } if volume.sectors.is_lent(new.sector))
    }
}

/// New data on a hole is growth; what replaces data gives metadata back as it takes it (RULES R14).
fn need_of(old: &Block) -> Need {
    if old.base != Base::Hole || old.has_logs() { Need::Transient } else { Need::Growth }
}

/// Sectors for a block. Only a block that gives as many back may use the transient room: so overwriting leaves the room as it was.
fn take_sectors(volume: &Volume, old: &Block, count: u32) -> Result<Sector> {
    let gives_back = old.base.sectors() >= count;
    if let Some(old) = old.base.run().filter(|_| on(Mutant::DataFreedBeforeCommit)) {
        let _the_bug = volume.sectors.free(old.sector, old.count.into());
    }
    volume.sectors.take(count.into(), if gives_back { Need::Transient } else { Need::Growth })
}

/// Counts a block's space anew, in units of 512 B. It may also become less where sectors are added: logs over them do not count.
pub(super) fn count_space(inode: &mut Inode, before: u64, after: u64) {
    inode.sectors = (inode.sectors + after).saturating_sub(before);
}

/// Times and permissions after a change of data.
fn touch(inode: &mut Inode, options: WriteOptions) {
    if !options.keep_times {
        let time = now();
        (inode.mtime, inode.ctime) = (time, time);
    }
    if options.kill_set_id {
        kill_set_id(inode);
    }
}

/// The set-group-id bit of a mode.
pub(crate) const SET_GROUP_ID: u16 = 0o2000;

/// Clears set-user-id, and set-group-id of a group-executable file.
pub(crate) fn kill_set_id(inode: &mut Inode) {
    inode.mode &= !0o4000;
    if inode.mode & 0o010 != 0 {
        inode.mode &= !SET_GROUP_ID;
    }
}

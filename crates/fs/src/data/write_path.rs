//! A write, from the caller's bytes to the device.
//!
//! 1. Lock the range of blocks (RULES R9). Only the range lock is held during I/O.
//! 2. Split into blocks ([`super::plan`]). For pages from a page cache, unchanged lines may be left out ([`super::modified`]).
//! 3. Plan each block as [`super::policy`] chooses. Whole blocks inside multiples of the threshold go to fresh sectors by the **block
//!    path**; head and tail go to **data logs** by the byte path ([`super::log_plan`]). If the leaf has no free entry, or no slot is free,
//!    the block is composed with its old content and takes the block path too. On a drive with transactions small pieces go **in place**
//!    ([`super::in_place`]): they need neither space nor steps 4 and 5. Space is allocated here. Nothing is overwritten before the commit,
//!    so a failure in this step or later changes nothing.
//! 4. Submit the block writes ([`super::transfer`]); while they are in flight, store the logs and compute the checksums.
//! 5. Fence the logs, FLUSH the drive (RULES R8).
//! 6. Lock the inode, put records, leaves, checksums, in-place lines and the inode into one [`Tx`], commit ([`super::commit`]). Then the
//!    write is durable and atomic, and the call returns.
//!
//! [SM3] What is shared with others ([`Source::Shared`]) is copied once where it goes by the byte path, or is composed with other bytes;
//!       checksum and stores are those of the copy. A whole block goes to the drive from where it is, and its checksums are of what was there
//!       while it was in flight. If somebody changed it, the drive may have other bytes: then the block is damaged, and whoever reads it
//!       gets an error, until it is written again. Nothing else is made of such bytes: no page of them is kept. A short write of which
//!       pages are kept is copied whole first, and they become those bytes.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tandemfs_device::Source;
use tandemfs_format::inode::{FILE_BYTES_MAX, Inode, state};
use tandemfs_format::journal::TX_DATA_MAX;
use tandemfs_format::mapping::{LOG_BYTES_MAX, LogEntry};
use tandemfs_format::{DataAddress, InodeNumber, PAGE_BYTES, SECTOR_BYTES};

use super::commit::{Durable, commit, touch};
use super::log_plan::Part;
use super::modified::{Returned, leave_out_unmodified};
use super::plan::{Planner, split, whole_blocks};
use super::policy::WritePolicy;
use super::rewrite::Rewrite;
use super::rows::Rows;
use super::target::{Action, Bytes, Store, Target, Targets};
use super::transfer::{transfer, update_of};
use super::{FileView, mutants};
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, Block, LogSlots};
use crate::index::tree;
use crate::inodes::InCoreInode;
use crate::inodes::range_lock::RangeGuard;
use crate::mutant::{Mutant, on};
use crate::space;
use crate::statistics::{add, counted};
use crate::types::{Update, WriteOptions};
use crate::volume::Tx;
use crate::wait::may_wait;

/// Zeros for a stale tail. Static, because an array on the stack would be cleared for each write.
static ZEROS: [u8; SECTOR_BYTES] = [0; SECTOR_BYTES];

/// What the pieces of one call have in common.
pub(super) struct Call<'w, 'v> {
    rows: RefCell<Rows<'v>>,
    /// As [`FileSystem::append_where`] says.
    may_go_to: RefCell<&'w mut dyn FnMut(Range<u64>) -> bool>,
    /// What they have grown the file by before they write there ([MC6] of `mapped_change.rs`).
    pub(super) grown: RefCell<Option<Range<u64>>>,
}

impl FileSystem {
    /// Writes bytes. Durable when it returns; atomic for each piece of up to [`TX_DATA_MAX`] bytes, of 32 KiB where blocks are mapped
    /// (`mapped_write.rs`).
    ///
    /// # Errors
    /// `NoSpace` if a zone is full, `FileTooLarge` beyond the largest file. `Mapped` if it grows a file over a mapped block that has not all of its
    /// pages. If a later piece of a long write fails, the call returns the
    /// number of bytes written before that piece.
    pub fn write(&self, number: InodeNumber, offset: u64, from: &[u8], options: WriteOptions) -> Result<usize> {
        self.write_pieces(number, offset, from.into(), options, &mut |_| true).map(|(written, _)| written)
    }

    /// As [`FileSystem::write`], or as [`FileSystem::append`] where there is no offset, also from memory that others change meanwhile: what
    /// is stored then is undefined, and may be damaged ([SM3] of `data/write_path.rs`).
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    pub fn write_from(&self, number: InodeNumber, offset: Option<u64>, from: Source<'_>, options: WriteOptions) -> Result<(usize, u64)> {
        let options = WriteOptions { append: offset.is_none(), ..options };
        self.write_pieces(number, offset.unwrap_or(0), from, options, &mut |_| true)
    }

    /// Writes bytes at the end of a file, as [`FileSystem::write`] with `append` does. Returns how many were written and the offset behind
    /// them, where the file may have grown further since.
    ///
    /// # Errors
    /// As [`FileSystem::write`].
    pub fn append(&self, number: InodeNumber, from: &[u8], options: WriteOptions) -> Result<(usize, u64)> {
        self.write_pieces(number, 0, from.into(), WriteOptions { append: true, ..options }, &mut |_| true)
    }

    /// As [`FileSystem::append`], also from memory that others change meanwhile. `may_go_to` is told where the bytes are about to go: when nobody can
    /// write there, and nothing has changed yet, but for earlier pieces of a long write. It must neither wait nor call the file system. Of a file
    /// with mapped pages it is not asked.
    ///
    /// # Errors
    /// As [`FileSystem::append`]; `WouldWait` if they may not go there.
    pub fn append_where(
        &self,
        number: InodeNumber,
        from: Source<'_>,
        options: WriteOptions,
        may_go_to: &mut dyn FnMut(Range<u64>) -> bool,
    ) -> Result<(usize, u64)> {
        self.write_pieces(number, 0, from, WriteOptions { append: true, ..options }, may_go_to)
    }

    /// The number of bytes written, and the offset behind them (0 if there are none).
    fn write_pieces(
        &self,
        number: InodeNumber,
        offset: u64,
        from: Source<'_>,
        options: WriteOptions,
        may_go_to: &mut dyn FnMut(Range<u64>) -> bool,
    ) -> Result<(usize, u64)> {
        let _counted = counted(&self.volume.live.operations.write);
        self.volume.health.check_writable()?;
        self.note_writer();
        if from.len() as u64 > TX_DATA_MAX {
            may_wait()?; // several transactions ([NW4] of `wait.rs`)
        }
        let file = self.inodes.get(&self.volume, number)?;
        file.must_be_regular("only regular files are written")?;
        let (mut done, mut end) = (0, 0);
        let call = Call { rows: RefCell::new(Rows::new(&self.volume)), may_go_to: RefCell::new(may_go_to), grown: RefCell::new(None) };
        let (mut options, mut first, mut failed) = (options, (0, offset), None);
        while done < from.len() {
            let at = first.1.checked_add((done - first.0) as u64).ok_or(Error::FileTooLarge)?;
            let rest = from.slice(done..from.len());
            // An unaligned request of up to TX_DATA_MAX stays one transaction; longer ones are cut at its multiples.
            let piece = if rest.len() as u64 <= TX_DATA_MAX { rest.len() } else { (TX_DATA_MAX - at % TX_DATA_MAX) as usize };
            let (data, later) = rest.split_at(mutants::piece(at, piece, &self.volume));
            match self.with_room(|| self.write_piece(&file, at, (data, later), options, &call)) {
                Ok(behind) => (done, end) = (done + data.len(), behind),
                Err(Error::Mapped) => match self.write_beside_pins(&file, at, (data, later), options, &call) {
                    Ok((start, written)) => {
                        (done, end) = (done + written, start + written as u64);
                        if options.append && written > 0 {
                            (options.append, first) = (false, (done, end)); // [MC6]
                        }
                    }
                    Err(error) => failed = Some(error),
                },
                Err(error) => failed = Some(error),
            }
            if failed.is_some() {
                break;
            }
        }
        if let Some(grown) = call.grown.take().filter(|grown| end < grown.end && !on(Mutant::GrownStays)) {
            self.cut_back_or_warn(&file, grown.end, end.max(grown.start)); // [MC6]
        }
        if let Some(error) = failed.filter(|_| done == 0) {
            return Err(error);
        }
        add(&self.volume.live.work.user_written_bytes, done as u64);
        self.note_growth(&file, end - done as u64..end);
        Ok((done, end))
    }

    /// Writes one transaction and returns the offset behind it. `later` are the bytes after `data`, which later transactions write.
    pub(super) fn write_piece(
        &self,
        file: &Arc<InCoreInode>,
        offset: u64,
        (data, later): (Source<'_>, Source<'_>),
        options: WriteOptions,
        call: &Call<'_, '_>,
    ) -> Result<u64> {
        let volume = &self.volume;
        let lock = || self.lock_range(file, offset, data.len() as u64, options.append);
        let (mut offset, mut view, mut range) = lock()?;
        if view.is_aligned {
            drop(range);
            self.take_aligned(file, &view, &(offset..offset.saturating_add((data.len() + later.len()) as u64)))?;
            (offset, view, range) = lock()?;
        }
        if options.append && !(call.may_go_to.borrow_mut())(offset..offset + (data.len() + later.len()) as u64) {
            return Err(Error::WouldWait);
        }
        let was_stale = view.tail_stale;
        if was_stale && offset + data.len() as u64 > view.size {
            view = self.with_settled_end(file, &view)?;
        }
        let (end, policy) = (offset + data.len() as u64, self.write_policy());
        let (file_end, compares) = (view.size.max(end), options.compare && policy.compares_pages());
        let (files, work) = (&volume.pages.files, &volume.live.work);
        let mut old = files.take(&file.pages, offset, end);
        let (mut copy, given) = (Vec::new(), data);
        let lengthens = end > view.size && (data.len() >= PAGE_BYTES || offset == 0);
        let keeps_pages = compares || options.kept && lengthens;
        let data = match (old.has_any() || keeps_pages && !compares) && files.keeps_written(data.len()) {
            true => Source::Private(data.stable(&mut copy)), // [SM3]
            false => data,
        };
        let compared = data.private().filter(|_| compares);
        let mut tx = Tx::new(volume);
        let tail_zeros = self.stale_tail(&view, &(offset..end));
        let mut targets = Targets::new();
        self.mapped(file, &view, |root| split(volume, &view, root, (offset, data), tail_zeros, &mut targets))?;
        if let Some(data) = compared {
            leave_out_unmodified(volume, &view, &Returned { offset, data, old: &old, policy: &policy }, &mut targets);
            if targets.is_empty() && end <= view.size && options.keep_times && !options.kill_set_id {
                files.put_back(&file.pages, view.size, (offset, data), old, true, work);
                return Ok(end); // no byte has changed, and no times or set-id bits must change
            }
        }
        let whole = whole_blocks(volume, &(offset..end + later.len() as u64));
        let before = self.place_before(file, &view, &whole);
        let keeps = policy.keeps_places((data.len() + later.len()) as u64) && end <= view.size;
        if keeps {
            self.make_entries(file, &view, &mut targets)?;
        }
        let planner = Planner::new(volume, &view, &policy, offset..end, file_end).with_pages(&old).keeping_places(keeps);
        let to_write_back = self.plan(planner.with_rows(&call.rows, whole, before), &mut tx, &mut targets)?;
        if let Some(data) = data.private().filter(|_| on(Mutant::PageBeforeCommit)) {
            files.put_back(&file.pages, file_end, (offset, data), std::mem::take(&mut old), keeps_pages, work);
        }
        let update = update_of(volume, file.number, offset..end, &targets)?;
        let durable = self.transfer(file, update, &mut tx, &mut targets)?;
        let _behind_range = on(Mutant::PagesBackBehindRange).then(|| std::mem::take(&mut old));
        let range = range.unless(Mutant::WriteRangeReleasedEarly);
        let old = old; // dropped before the range: a commit that is refused puts the pages back while it is held ([FP2])
        let in_room: SmallVec<[u64; 2]> = targets.iter().filter(|target| target.is_in_room(volume)).map(|target| target.block).collect();
        let apart = self.taken_apart(&view, &targets);
        commit(tx, file, &mut targets, durable, |inode| {
            inode.size = inode.size.max(end + mutants::size_ahead(later.len()));
            if was_stale && end >= view.size.next_multiple_of(SECTOR_BYTES as u64) {
                inode.state &= !state::TAIL_STALE; // no stale bytes are left in the old last sector; [MC8] of `mapped_change.rs`
            }
            touch(inode, options);
        })?;
        self.note_written(file, &targets);
        self.align_again(file, &apart);
        if let Some(data) = mutants::bytes_to_keep(given, data) {
            files.put_back(&file.pages, file_end, (offset, &data), old, keeps_pages, work); // [FP2] of `cache/file_pages.rs`
        }
        for block in to_write_back.into_iter().filter(|_| !on(Mutant::TransientLogsKept)) {
            if let Err(error) = self.write_back_in_place(file, &view, block) {
                tracing::debug!(%error, block, "data logs stay in the transient room");
            }
        }
        drop(range);
        for block in in_room {
            // On a full device the block took transient room; it fits the hole that it left. The write itself is complete.
            if let Err(error) = self.rewrite_block(file, block, Rewrite::MoveOut) {
                tracing::debug!(%error, block, "the block stays in the transient room");
            }
        }
        Ok(end)
    }

    /// 1. Locks the range of a write and returns the inode view that is valid under the lock. A write that extends a file with a stale tail
    ///    also locks the old last block.
    fn lock_range<'f>(&self, file: &'f InCoreInode, offset: u64, length: u64, append: bool) -> Result<(u64, FileView, RangeGuard<'f>)> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let end_of = |at: u64| at.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge);
        // [MC6] of `mapped_change.rs`
        let must_miss_pins = |view: &FileView, end: u64, range: &RangeGuard<'_>| {
            let is_over_pins = || !file.ranges.pins(view.size / block_bytes, (end - 1) / block_bytes).is_empty();
            if end > view.size && range.is_of_mapped && is_over_pins() { Err(Error::Mapped) } else { Ok(()) }
        };
        if !append {
            let end = end_of(offset)?;
            let range = file.ranges.exclusive(offset / block_bytes, (end - 1) / block_bytes)?;
            let view = self.view(file)?;
            must_miss_pins(&view, end, &range)?;
            if !view.tail_stale || end <= view.size {
                return Ok((offset, view, range));
            }
        }
        loop {
            let view = self.view(file)?;
            let at = if append { view.size } else { offset };
            let end = end_of(at)?;
            let first = if view.tail_stale && end > view.size { at.min(view.size) } else { at };
            let last = if append { u64::MAX } else { (end - 1) / block_bytes };
            let range = file.ranges.exclusive(first / block_bytes, last)?;
            let again = self.view(file)?;
            if (again.size, again.tail_stale) == (view.size, view.tail_stale) {
                must_miss_pins(&again, end, &range)?;
                return Ok((at, again, range));
            }
        }
    }

    /// Where the block before several whole blocks begins, if it is a whole one: they follow it where they can.
    fn place_before(&self, file: &InCoreInode, view: &FileView, whole: &Range<u64>) -> Option<DataAddress> {
        let before = whole.start.checked_sub(1).filter(|_| whole.start + 1 < whole.end)?;
        let look = |root| Base::of_record(&self.volume, view.owner, &tree::lookup(&self.volume, view.owner, root, before)?);
        self.mapped(file, view, look).ok()?.whole_run(&self.volume.geometry)
    }

    /// The policy for a write that starts now.
    fn write_policy(&self) -> WritePolicy {
        let volume = &self.volume;
        WritePolicy::new(
            &self.settings,
            self.splitting.bytes(volume, &self.settings),
            volume.geometry.block_bytes(),
            volume.stores_in_place(),
        )
    }

    /// Zeros for the old end of a file that grows over stale bytes left by a truncation (RULES R13).
    fn stale_tail(&self, view: &FileView, write: &Range<u64>) -> &'static [u8] {
        let forgets = on(Mutant::StaleTailInPlace) && self.volume.stores_in_place();
        if !view.tail_stale || write.end <= view.size || forgets {
            return &[];
        }
        let sector_end = view.size.next_multiple_of(SECTOR_BYTES as u64);
        &ZEROS[..(sector_end.min(write.start.max(view.size)) - view.size) as usize]
    }

    /// 3. Plans all blocks.
    ///
    /// Returns blocks that are to be written back ([KP4] of `kept_place.rs`).
    fn plan(&self, mut planner: Planner<'_, '_>, tx: &mut Tx<'_>, targets: &mut [Target<'_>]) -> Result<SmallVec<[u64; 2]>> {
        let planned = planner.plan_all(tx, targets);
        if planner.lacks_logs() {
            self.ask_write_back();
        }
        planned.map(|()| planner.into_in_room())
    }

    /// Steps 4 and 5. No inode lock is held during them (RULES R9).
    fn transfer(&self, file: &InCoreInode, update: Update, tx: &mut Tx<'_>, targets: &mut [Target<'_>]) -> Result<Durable> {
        let _held = on(Mutant::InodeHeldOverIo).then(|| file.state.write()).transpose()?;
        tx.suspect_if_failed(transfer(&self.volume, update, targets))
    }

    /// Grows a file: zeroes the stale tail, then sets the size. The caller holds the range lock from the old last block on.
    pub(crate) fn grow(&self, file: &InCoreInode, view: &FileView, size: u64, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let (volume, policy) = (&self.volume, self.write_policy());
        let view = &if view.tail_stale { self.with_settled_end(file, view)? } else { *view };
        let sector_end = view.size.next_multiple_of(SECTOR_BYTES as u64).min(size);
        let tail_zeros = if view.tail_stale { &ZEROS[..(sector_end - view.size) as usize] } else { &ZEROS[..0] };
        let mut tx = Tx::new(volume);
        let mut targets = Targets::new();
        self.mapped(file, view, |root| split(volume, view, root, (size, Source::Private(&[])), tail_zeros, &mut targets))?;
        // The zeros never go beyond the new file size, so a log may hold them.
        self.plan(Planner::new(volume, view, &policy, view.size..sector_end, size), &mut tx, &mut targets)?;
        let durable = self.transfer(file, volume.updates.of_cold(tail_zeros.len()), &mut tx, &mut targets)?;
        commit(tx, file, &mut targets, durable, |inode| {
            inode.size = size;
            if size >= view.size.next_multiple_of(SECTOR_BYTES as u64) {
                inode.state &= !state::TAIL_STALE;
            }
            change(inode);
        })?;
        for target in &targets {
            self.note_opened(file.number, &target.old);
            if target.is_in_room(volume)
                && let Err(error) = self.rewrite_locked(file, target.block, Rewrite::MoveOut)
            {
                tracing::debug!(%error, block = target.block, "the block stays in the transient room");
            }
        }
        Ok(())
    }

    /// Overwrites bytes of a block that has data there, inside the file, with zeros (RULES R14). The caller holds the range lock. A short
    /// range becomes a log. For a long range, logs would use the scarcer zone, so the block is rewritten.
    pub(super) fn write_zeros(&self, file: &InCoreInode, view: &FileView, block: u64, bytes: Range<u32>) -> Result<()> {
        let (volume, policy) = (&self.volume, self.write_policy());
        let start = block * u64::from(volume.geometry.block_bytes());
        let zeros = vec![0; bytes.len()];
        let old = self.block_of(file, view, block)?;
        // The bytes beside them that are lost cannot be composed to sectors.
        let by_blocks = bytes.len() > LOG_BYTES_MAX && !matches!(old.base, Base::Lost(_));
        let mut targets = [Target::new(block, old, Part { offset: bytes.start, data: (&zeros).into() })];
        let write = start + u64::from(bytes.start)..start + u64::from(bytes.end);
        let planner = Planner::new(volume, view, &policy, write, view.size).by_blocks(by_blocks);
        let mut tx = Tx::new(volume);
        self.plan(planner, &mut tx, &mut targets)?;
        let durable = self.transfer(file, volume.updates.of_cold(zeros.len()), &mut tx, &mut targets)?;
        commit(tx, file, &mut targets, durable, |inode| touch(inode, WriteOptions::default()))?;
        self.note_opened(file.number, &targets[0].old);
        if targets[0].is_in_room(volume)
            && let Err(error) = self.rewrite_locked(file, block, Rewrite::MoveOut)
        {
            tracing::debug!(%error, block, "the block stays in the transient room");
        }
        Ok(())
    }

    /// One transaction that drops some logs of a block, shortens some, and sets its base to the result of `base`. `moved` is a log whose
    /// bytes go to another slot (index in the leaf, new entry, bytes). The caller holds the range lock.
    pub(super) fn change_block(
        &self,
        file: &InCoreInode,
        block: u64,
        old: Block,
        slots: LogSlots,
        moved: Option<(usize, LogEntry, Vec<u8>)>,
        base: impl FnOnce(&mut Tx<'_>, &Block) -> Result<Base>,
    ) -> Result<()> {
        let volume = &self.volume;
        let mut tx = Tx::new(volume);
        let mut stores = SmallVec::new();
        let moved_bytes = moved.as_ref().map_or(0, |(_, _, bytes)| bytes.len());
        if let Some((slot, entry, bytes)) = moved {
            let address = volume.memory.take_slot(entry.class, Need::Transient)?; // the commit frees its old slot
            tx.took(space::slot(address, entry.class.lines()));
            stores.push(Store { slot, entry: LogEntry { address, ..entry }, skip: 0, bytes: Bytes::Owned(bytes) });
        }
        let base = base(&mut tx, &old)?;
        let mut targets = [Target::changed(block, old, Action::Logs { merges: 0, slots, stores, base })];
        let update = volume.updates.of_cold(moved_bytes);
        let durable = self.transfer(file, update, &mut tx, &mut targets)?;
        commit(tx, file, &mut targets, durable, |inode| touch(inode, WriteOptions::default()))?;
        self.note_opened(file.number, &targets[0].old);
        Ok(())
    }
}

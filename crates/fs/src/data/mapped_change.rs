//! Truncation, growth, punching and zeroing of files with mapped blocks. Mapped pages are zeroed in place, and stay the file's.
//!
//! [MC1] A mapped block behind a new end becomes an unwritten extent of the same pages, by the transaction that moves the end before it. So
//!       what its pages hold means nothing from then on, neither after a crash nor when the file grows again. A truncation of mapped blocks
//!       is a series of such transactions from the end to the front: a crash leaves a size between, and the old bytes before it. Damage of
//!       the mapping behind the new end stops it.
//! [MC2] Afterwards, with the range still locked, its pages are zeroed for who has them mapped. Later stores there are no bytes of the file.
//! [MC3] The mapped block that the end goes through stays written. It is open, and `TAIL_STALE`, set by the transaction that moves the end or
//!       before the mapping exists, says that *all its pages* may hold anything behind the end. Who grows the file, and who closes the
//!       block, zeroes them first, in place and durably. Nobody reads there, so that needs no transaction.
//! [MC4] Where a file grows over mapped blocks that are unwritten, their pages are zeroed, durably, and become written (and open) by the
//!       transaction that moves the end over them, front to back: a crash leaves a size between, and zeros.
//! [MC5] To punch or to zero whole mapped blocks a transaction makes them unwritten, which is zeros whatever the pages hold, then the pages
//!       are zeroed and fenced, then they are written again, before the call is answered: no replay undoes a store made after it. Of stores
//!       while it runs each may be lost. Parts of blocks are written with zeros as by [MW2]; where the
//!       zone has no slot for that they are zeroed in place, line by line, so that punching needs no room (RULES R14). Space is not freed.
//!       If pages cannot be zeroed, the blocks are written again with what they hold, and open, so that stores to them are the file's.
//! [MC6] A write over mapped blocks behind the end grows the file first, then it is one inside. An append takes its bytes so, and others come
//!       behind them. A crash between leaves zeros; a call that fails or is short takes back what it has not written.
//! [MC7] A mapping gives the last block of the file all its pages, so that there is room for growth. If the zone had none, growth
//!       into the missing pages is refused (`Mapped`) while the block is mapped.
//! [MC8] A write behind a gap holds its own blocks alone, all else that moves the end holds the blocks behind it. So who maps the end holds
//!       all behind it until the pin is set: such a write has moved the end before, or finds the pin ([MC6]). A write takes back only the
//!       `TAIL_STALE` that it has found.

use std::cell::RefCell;
use std::ops::Range;

use tandemfs_device::{Fenced, Flushed, Lines, Structure};
use tandemfs_format::inode::{FILE_BYTES_MAX, Inode, state};
use tandemfs_format::mapping::BlockChecksum;
use tandemfs_format::{DataAddress, LINE_BYTES, LineAddress, PAGE_BYTES};

use super::FileView;
use super::allocate::{FREE_STEP_BLOCKS, STEP_BLOCKS, Zeroed};
use super::commit::{changed, count_space};
use super::mapped::{Fill, in_rows, zero};
use super::mapped_write::PIECE_BYTES;
use super::truncate::{free_blocks, logs_before, put_cut_block};
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, BaseChange, Block, DataRun, space_512_of};
use crate::index::tree;
use crate::inodes::InCoreInode;
use crate::inodes::range_lock::{Pin, Pinning};
use crate::mutant::{Mutant, on};
use crate::types::WriteOptions;
use crate::volume::Tx;

const ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

impl FileSystem {
    // ---- truncation ------------------------------------------------------------------------------------------------------------------

    /// Shrinks a file, or frees the space behind its end. The caller holds the blocks from the new end on.
    pub(super) fn shrink_beside_pins(
        &self,
        file: &InCoreInode,
        view: &FileView,
        size: u64,
        pins: &[Pin],
        change: impl FnOnce(&mut Inode),
    ) -> Result<()> {
        if pins.is_empty() { self.shrink(file, view, size, change) } else { self.shrink_mapped(file, view, size, pins, change) }
    }

    /// Grows a file. The caller holds the blocks from the old end on.
    pub(super) fn grow_beside_pins(
        &self,
        file: &InCoreInode,
        view: &FileView,
        size: u64,
        pins: &[Pin],
        change: impl FnOnce(&mut Inode),
    ) -> Result<()> {
        if pins.is_empty() { self.grow(file, view, size, change) } else { self.grow_mapped(file, view, size, pins, change) }
    }

    /// [MC1]
    fn shrink_mapped(&self, file: &InCoreInode, view: &FileView, size: u64, pins: &[Pin], change: impl FnOnce(&mut Inode)) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        file.pages.forget(size, u64::MAX);
        let _leaving = self.leaving.enter();
        for (part, pinning) in Pinning::parts(pins, size.div_ceil(block_bytes)..u64::MAX).into_iter().rev() {
            match pinning {
                Pinning::None => self.cut_gap(file, &part)?,
                Pinning::Loads | Pinning::Stores => self.cut_mapped(file, &part)?,
            }
        }
        let block = size / block_bytes;
        let pinning = Pinning::of(pins, block);
        let cuts = pinning == Pinning::None || size.is_multiple_of(block_bytes);
        if cuts || size == view.size {
            return self.cut_last(file, view, size, cuts, change);
        }
        self.with_open(file, loaded(&block, pinning), || {
            self.end_within(file, block, size, |inode| {
                if !on(Mutant::MappedEndUnmarked) {
                    inode.state |= state::TAIL_STALE; // [MC3]
                }
                change(inode);
            })?;
            self.zero_behind_end(file, &self.view(file)?)
        })
    }

    /// Frees the blocks of a range that are not mapped, from the last on, and ends the file before them.
    fn cut_gap(&self, file: &InCoreInode, blocks: &Range<u64>) -> Result<()> {
        let mut end = blocks.end;
        while let Some(last) = self.last_step(file, blocks.start..end)? {
            let mut state = file.state.write()?;
            if state.removed {
                return Err(Error::Stale(file.number));
            }
            let (owner, mut root, mut tx) = (state.owner(file.number), state.root(), Tx::new(&self.volume));
            let freed_512 = free_blocks(&mut tx, self, owner, root, last.clone())?;
            tree::clear(&mut tx, owner, &mut root, &last)?;
            let mut new = state.inode.clone();
            new.root = root.to_bytes();
            new.space_512 = new.space_512.saturating_sub(freed_512);
            self.end_before(&mut new, last.start);
            file.commit(tx, &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
            end = last.start;
        }
        Ok(())
    }

    /// The last blocks of a range that have something, as many as one transaction frees, to the end of the range or of what is there.
    fn last_step(&self, file: &InCoreInode, blocks: Range<u64>) -> Result<Option<Range<u64>>> {
        let state = file.state.read()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let (owner, root) = (state.owner(file.number), state.root());
        let has_some = |blocks: Range<u64>| tree::first_found(&self.volume, owner, root, blocks).map(|found| found.is_some());
        let Range { mut start, mut end } = blocks;
        if start >= end || !has_some(start..end)? {
            return Ok(None);
        }
        while end - start > FREE_STEP_BLOCKS {
            let middle = start + (end - start) / 2;
            if has_some(middle..end)? { start = middle } else { end = middle }
        }
        Ok(Some(start.max((end - 1) / FREE_STEP_BLOCKS * FREE_STEP_BLOCKS)..end))
    }

    /// Makes mapped blocks unwritten, from the last on, and ends the file before them ([MC1]); then zeroes their pages ([MC2]).
    fn cut_mapped(&self, file: &InCoreInode, blocks: &Range<u64>) -> Result<()> {
        let mut end = blocks.end;
        while end > blocks.start {
            let step = blocks.start.max((end - 1) / STEP_BLOCKS * STEP_BLOCKS)..end;
            let emptied = self.unwrite_step(file, step.clone(), |inode| {
                if !on(Mutant::MappedEndLater) {
                    self.end_before(inode, step.start);
                }
            })?;
            self.zero_runs(&emptied)?;
            end = step.start;
        }
        Ok(())
    }

    /// Ends a file before a block, if it reaches that far.
    fn end_before(&self, inode: &mut Inode, block: u64) {
        let end = block.saturating_mul(self.volume.geometry.block_bytes().into());
        if inode.size > end {
            inode.size = end;
            inode.state &= !state::TAIL_STALE;
        }
    }

    /// Ends a file within a block, or before one, behind which nothing is left to free.
    fn cut_last(&self, file: &InCoreInode, view: &FileView, size: u64, cuts: bool, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let (mut tx, mut new, mut root) = (Tx::new(&self.volume), state.inode.clone(), state.root());
        if cuts {
            put_cut_block(&mut tx, self, view, &mut new, &mut root, size)?;
        }
        new.size = size;
        new.root = root.to_bytes();
        change(&mut new);
        file.commit(tx, &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        Ok(())
    }

    /// Ends a file within a mapped block, whose pages stay. Logs behind the end go: those of a copy home that failed ([MW6]).
    fn end_within(&self, file: &InCoreInode, block: u64, size: u64, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let volume = &self.volume;
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let (owner, mut root, mut tx, mut new) = (state.owner(file.number), state.root(), Tx::new(volume), state.inode.clone());
        let old = Block::lookup(volume, owner, root, block)?;
        let start = block * u64::from(volume.geometry.block_bytes());
        if old.has_logs() && !on(Mutant::MappedEndKeepsLogs) {
            let logs = logs_before(volume, owner, start, &old.logs, (size - start) as u32)?;
            let kept_512 = space_512_of(volume.log_counting, old.base.sectors(), &logs);
            count_space(&mut new, old.space_512(volume.log_counting), kept_512);
            old.replace(&mut tx, volume, owner, &mut root, block, BaseChange::To(old.base), &logs, Need::Transient)?;
            new.root = root.to_bytes();
        }
        new.size = size;
        change(&mut new);
        file.commit(tx, &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        Ok(())
    }

    pub(super) fn commit_size(&self, file: &InCoreInode, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let mut new = state.inode.clone();
        change(&mut new);
        file.commit(Tx::new(&self.volume), &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        Ok(())
    }

    // ---- growth ----------------------------------------------------------------------------------------------------------------------

    /// [MC4]
    fn grow_mapped(&self, file: &InCoreInode, view: &FileView, size: u64, pins: &[Pin], change: impl FnOnce(&mut Inode)) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let last = view.size / block_bytes;
        let pinning = Pinning::of(pins, last);
        if pinning != Pinning::None && !view.size.is_multiple_of(block_bytes) {
            let old = self.block_of(file, view, last)?;
            if old.has_logs() || u64::from(old.base.data_bytes()) < (size - last * block_bytes).min(block_bytes) {
                return Err(Error::Mapped); // [MC7]
            }
            if !on(Mutant::RegrownNotZeroed) {
                self.with_open(file, loaded(&last, pinning), || self.zero_behind_end(file, view))?; // [MC3]
            }
        } else if let Some(first) = pins.iter().map(|pin| pin.first.max(last)).min() {
            let before = size.min(first * block_bytes);
            if before > view.size {
                self.grow(file, view, before, |_| {})?;
            }
        }
        for (part, pinning) in Pinning::parts(pins, last..size.div_ceil(block_bytes)) {
            if pinning != Pinning::None {
                self.fill_blocks(file, part, Fill::Zeros { writable: pinning == Pinning::Stores, grows: Some(size) })?;
            }
        }
        let view = FileView { tail_stale: false, ..self.view(file)? };
        let is_stored_to = !size.is_multiple_of(block_bytes) && Pinning::of(pins, size / block_bytes) == Pinning::Stores;
        self.grow(file, &view, size.max(view.size), |inode| {
            if is_stored_to {
                inode.state |= state::TAIL_STALE; // [MC3]
            }
            change(inode);
        })
    }

    /// For a write that found mapped blocks: grows the file over those behind its end ([MC6]), and adds that to what the call has `grown` it by. Returns the
    /// offset of the write, for which an append has taken its bytes; `None` if an append is to be tried again.
    pub(super) fn grow_for_write(
        &self,
        file: &InCoreInode,
        offset: Option<u64>,
        length: u64,
        grown: &RefCell<Option<Range<u64>>>,
    ) -> Result<Option<u64>> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        loop {
            let before = self.view(file)?.size;
            let at = offset.unwrap_or(before);
            let end = at.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge)?;
            if end <= before {
                return Ok(Some(at));
            }
            let (_range, pins) = file.ranges.exclusive_beside_pins(before / block_bytes, u64::MAX)?;
            let view = self.view(file)?;
            if view.size != before {
                continue;
            }
            let is_behind = pins.iter().any(|pin| pin.first <= (end - 1) / block_bytes);
            return match offset {
                None if pins.is_empty() => Ok(None),
                Some(_) if !is_behind => Ok(Some(at)),
                _ => {
                    let result = self.grow_mapped(file, &view, end, &pins, |_| {});
                    let reached = self.view(file)?.size;
                    if reached > before {
                        let mut grown = grown.borrow_mut();
                        *grown = Some(grown.as_ref().map_or(before, |grown| grown.start)..reached);
                    }
                    result.map(|()| Some(at))
                }
            };
        }
    }

    /// Takes back what a write has grown a file by ([MC6]) and could not write, if nobody came behind it.
    pub(super) fn cut_back_or_warn(&self, file: &InCoreInode, taken: u64, size: u64) {
        if let Err(error) = self.with_room(|| self.cut_back(file, taken, size)) {
            tracing::warn!(%error, inode = file.number.get(), size, taken, "a write that failed leaves zeros");
        }
    }

    fn cut_back(&self, file: &InCoreInode, taken: u64, size: u64) -> Result<()> {
        let (_range, pins) = file.ranges.exclusive_beside_pins(size / u64::from(self.volume.geometry.block_bytes()), u64::MAX)?;
        let view = self.view(file)?;
        if view.size != taken { Ok(()) } else { self.shrink_beside_pins(file, &view, size, &pins, |_| {}) }
    }

    /// Zeroes what is behind the end of a file in the pages of its last block, in place and durably ([MC3]). The caller holds the block, of
    /// which no page has a checksum.
    pub(super) fn zero_behind_end(&self, file: &InCoreInode, view: &FileView) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let within = view.size % block_bytes;
        if within == 0 {
            return Ok(());
        }
        let old = self.block_of(file, view, view.size / block_bytes)?;
        match old.base {
            Base::Written(DataRun { at: DataAddress::Page(page), count, .. }) => self.zero_from(page, count.into(), within),
            _ => Ok(()),
        }
    }

    /// The view of a file that is about to grow, whose last block nobody has mapped: what open pages hold behind the end becomes zeros, in
    /// place ([MC3]). The caller holds the block.
    pub(super) fn with_settled_end(&self, file: &InCoreInode, view: &FileView) -> Result<FileView> {
        let block = view.size / u64::from(self.volume.geometry.block_bytes());
        match self.block_of(file, view, block)?.base {
            Base::Written(DataRun { at: DataAddress::Page(_), checksum: BlockChecksum::Open(_) | BlockChecksum::None, .. }) => {
                self.zero_behind_end(file, view)?;
                Ok(FileView { tail_stale: false, ..*view })
            }
            _ => Ok(*view),
        }
    }

    /// Zeroes an extent of pages from some byte on, in place and durably.
    pub(super) fn zero_from(&self, page: LineAddress, pages: u64, from: u64) -> Result<()> {
        self.zero_bytes(page.offset_bytes() + from..page.offset_bytes() + pages * PAGE_BYTES as u64)
    }

    fn zero_bytes(&self, bytes: Range<u64>) -> Result<()> {
        let drive = &self.volume.drive;
        let (mut at, mut in_flight) = (bytes.start, Lines::none());
        while at < bytes.end {
            let length = (bytes.end - at).min(PAGE_BYTES as u64 - at % PAGE_BYTES as u64);
            let (line, skip) = (LineAddress::new(at / LINE_BYTES as u64), at % LINE_BYTES as u64);
            let stored = drive.store_within(Structure::Data, line, skip, &ZEROS[..length as usize])?;
            in_flight = in_flight.and(drive.flush_lines(stored));
            at += length;
        }
        drop(drive.fence(in_flight));
        Ok(())
    }

    // ---- punching and zeroing --------------------------------------------------------------------------------------------------------

    /// As `zero`, where blocks are mapped ([MC5]).
    pub(super) fn zero_beside_pins(&self, file: &InCoreInode, offset: u64, end: u64, space: Zeroed, pins: &[Pin]) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        for (part, pinning) in Pinning::parts(pins, offset / block_bytes..end.div_ceil(block_bytes)) {
            let bytes = offset.max(part.start * block_bytes)..end.min(part.end.saturating_mul(block_bytes));
            match pinning {
                Pinning::None => self.zero(file, bytes.start, bytes.end, space)?,
                Pinning::Loads | Pinning::Stores => self.zero_mapped(file, bytes, pinning)?,
            }
        }
        Ok(())
    }

    fn zero_mapped(&self, file: &InCoreInode, bytes: Range<u64>, pinning: Pinning) -> Result<()> {
        let (block_bytes, size) = (u64::from(self.volume.geometry.block_bytes()), self.view(file)?.size);
        let end = bytes.end.min(size);
        if bytes.start >= end {
            return Ok(()); // what is behind the end is unwritten
        }
        let whole_end = if bytes.end >= size { size.div_ceil(block_bytes) } else { end / block_bytes };
        let whole = bytes.start.div_ceil(block_bytes)..whole_end;
        if whole.is_empty() {
            return self.write_zeros_to_mapped(file, bytes.start..end, pinning);
        }
        self.write_zeros_to_mapped(file, bytes.start..whole.start * block_bytes, pinning)?;
        let mut at = whole.start;
        while at < whole.end {
            let step = at..whole.end.min((at / STEP_BLOCKS + 1) * STEP_BLOCKS);
            self.unwrite_step(file, step.clone(), changed)?;
            if !on(Mutant::PunchedStaysUnwritten) {
                let zeros = Fill::Zeros { writable: pinning == Pinning::Stores, grows: None };
                self.fill_blocks(file, step.clone(), zeros).inspect_err(|_| self.keep_unwritten(file, step.clone()))?;
            }
            at = step.end;
        }
        self.write_zeros_to_mapped(file, (whole.end * block_bytes).min(end)..end, pinning)
    }

    /// Makes blocks written again that could not be zeroed, and are mapped ([MC5]).
    fn keep_unwritten(&self, file: &InCoreInode, blocks: Range<u64>) {
        if on(Mutant::UnzeroedStaysUnwritten) {
            return;
        }
        self.unchecked.lock().add(file.number);
        if let Err(error) = self.fill_blocks(file, blocks.clone(), Fill::Kept) {
            tracing::warn!(inode = file.number.get(), %error, ?blocks, "what mappings store to these blocks is not the file's");
        }
    }

    fn write_zeros_to_mapped(&self, file: &InCoreInode, bytes: Range<u64>, pinning: Pinning) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let mut at = bytes.start;
        while at < bytes.end {
            let to = bytes.end.min((at / PIECE_BYTES + 1) * PIECE_BYTES);
            let blocks = at / block_bytes..to.div_ceil(block_bytes);
            let to_close: Vec<u64> = if pinning == Pinning::Loads { blocks.collect() } else { Vec::new() };
            match self.write_pieces_home(file, at, &vec![0; (to - at) as usize], WriteOptions::default(), &to_close) {
                Err(error) if error.is_for_want_of_space() => self.zero_in_place(file, at..to, pinning)?,
                other => other?,
            }
            at = to;
        }
        Ok(())
    }

    /// Zeroes a piece without data logs ([MC5]).
    fn zero_in_place(&self, file: &InCoreInode, bytes: Range<u64>, pinning: Pinning) -> Result<()> {
        let (block_bytes, view) = (u64::from(self.volume.geometry.block_bytes()), self.view(file)?);
        for block in bytes.start / block_bytes..bytes.end.div_ceil(block_bytes) {
            let start = block * block_bytes;
            let inside = bytes.start.max(start) - start..bytes.end.min(start + block_bytes) - start;
            let old = self.block_of(file, &view, block)?;
            let Base::Written(DataRun { at: DataAddress::Page(page), .. }) = old.base else { return Err(Error::Mapped) };
            if old.has_logs() || u64::from(old.base.data_bytes()) < inside.end {
                return Err(Error::Mapped);
            }
            let bytes = page.offset_bytes() + inside.start..page.offset_bytes() + inside.end;
            self.with_open(file, loaded(&block, pinning), || self.zero_bytes(bytes))?;
        }
        self.commit_size(file, changed)
    }

    pub(super) fn zero_runs(&self, pages: &[(LineAddress, u64)]) -> Result<()> {
        in_rows(pages.iter().copied()).into_iter().try_for_each(|(page, count)| zero(self, page, count).map(drop))
    }
}

/// A block that is to be opened for a change, since it is mapped for loads alone.
fn loaded(block: &u64, pinning: Pinning) -> &[u64] {
    if pinning == Pinning::Loads { std::slice::from_ref(block) } else { &[] }
}

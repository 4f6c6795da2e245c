//! Allocates space before there is data for it, and frees space: `allocate`, `punch`, `zero`. Modes that move data are in `shift.rs`.
//!
//! Allocated space is *unwritten* sectors in the block's own record, with the checksum vector that they will need ([BL4] of
//! `index/block.rs`). It reads as zeros, survives a crash and an unmount, and a write fills it in place, also on a full device (RULES R14).
//!
//! [AL1] Each call is a series of bounded transactions (RULES R11), one after the other, front to back, under one range lock; so a repeated
//!       call completes an interrupted one. A crash during `allocate` leaves part of the new space and the old size. A crash during `punch`
//!       or `zero` leaves zeros from the start up to a multiple of 4 KiB, and old bytes after that. No other bytes ever appear.
//! [AL2] The size changes in the last transaction, after all space is allocated. `zero` allocates its space before it changes a byte. So a
//!       call that finds no space changes nothing readable, and frees what it allocated; it first checks whether there is enough.
//! [AL3] Whole blocks change only in their records: `punch` frees their space, `zero` makes written sectors unwritten. Both wait only for
//!       the record: freed space is reused only after the record is persistent (RULES R7), and unwritten sectors are written only by a
//!       later write with its own record.
//! [AL4] In a partly covered block, sectors from the range's start on are cut off if none of them must stay; otherwise zeros overwrite the
//!       old bytes like any overwrite (RULES R14). The block is the granule in which sectors are freed. Logs in the range are removed,
//!       unless sectors with data lie below them.
//! [AL5] Which of the two happens is decided by the block as it is when it is cut. Zeros before the first sector that goes are a transaction
//!       of their own; where they find no data log, it writes the whole block, which then has sectors behind the range too.

use std::ops::{ControlFlow, Range};

use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::inode::{FILE_BYTES_MAX, Inode};
use tandemfs_format::mapping::{LogEntry, PAGE_RECORDS};
use tandemfs_format::{DataAddress, InodeNumber, LineAddress, SECTOR_BYTES};

use super::FileView;
use super::commit::{changed, count_space};
use super::compose::load_log;
use super::policy;
use super::rewrite::Rewrite;
use super::rows::Rows;
use super::shift::Direction;
use super::truncate::free_blocks;
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, BaseChange, Block, DataRun, space_512_of};
use crate::index::tree::{self, Found};
use crate::inodes::InCoreInode;
use crate::inodes::range_lock::{Pin, RangeGuard};
use crate::mutant::{Mutant, on};
use crate::quota::unbound;
use crate::space::Zone;
use crate::statistics::counted;
use crate::types::AllocateMode;
use crate::volume::Tx;
use crate::wait::may_wait;

/// Blocks whose records one transaction changes: at most two lines each, plus the lines on the path to them.
pub(super) const STEP_BLOCKS: u64 = 96;
/// Blocks that one transaction frees: a whole page of records is freed through the line that points to it ([X3] of the tree).
pub(super) const FREE_STEP_BLOCKS: u64 = 16 * PAGE_RECORDS;
const SECTOR: u64 = SECTOR_BYTES as u64;

impl FileSystem {
    /// Allocates, frees or zeroes the space of a range of a file ([AL1]).
    ///
    /// # Errors
    /// `InvalidArgument` for an empty range, for a file that is not regular, and where `shift.rs` says so; `FileTooLarge`; `NoSpace`, after
    /// which nothing readable has changed.
    pub fn allocate(&self, number: InodeNumber, offset: u64, length: u64, mode: AllocateMode) -> Result<()> {
        may_wait()?;
        let _counted = counted(&self.volume.live.operations.fallocate);
        self.volume.health.check_writable()?;
        self.note_writer();
        if length == 0 {
            return Err(Error::InvalidArgument("an empty range"));
        }
        let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge)?;
        let file = self.inodes.get(&self.volume, number)?;
        file.must_be_regular("only regular files have space to give out")?;
        if let Some(direction) = Direction::of(mode) {
            return self.with_room(|| self.shift(&file, offset, length, direction)); // [SF4]
        }
        let mode = match mode {
            AllocateMode::Unshare { keep_size } => AllocateMode::Allocate { keep_size },
            mode => mode,
        };
        self.with_room(|| self.allocate_once(&file, offset, end, mode))
    }

    fn allocate_once(&self, file: &InCoreInode, offset: u64, end: u64, mode: AllocateMode) -> Result<()> {
        let grows = matches!(mode, AllocateMode::Allocate { keep_size: false } | AllocateMode::Zero { keep_size: false });
        let (_range, pins) = self.lock_for(file, offset, end, grows)?;
        if !matches!(mode, AllocateMode::Allocate { .. }) {
            file.pages.forget(offset, end);
        }
        if mode != AllocateMode::Punch {
            self.must_leave_mapped(file, &pins, offset, end)?;
        }
        match mode {
            AllocateMode::Punch => return unbound(|| self.zero_beside_pins(file, offset, end, Zeroed::Freed, &pins)),
            AllocateMode::Collapse | AllocateMode::Insert => unreachable!("they were done above"),
            AllocateMode::Allocate { .. } | AllocateMode::Unshare { .. } => self.reserve(file, offset, end)?,
            AllocateMode::Zero { .. } => {
                self.reserve(file, offset, end)?; // [AL2]
                self.zero_beside_pins(file, offset, end, Zeroed::Kept, &pins)?;
            }
        }
        let view = self.view(file)?;
        if grows && end > view.size { self.grow_beside_pins(file, &view, end, &pins, changed) } else { Ok(()) }
    }

    /// Refuses to lengthen mapped blocks, which would move them ([MC7] of `mapped_change.rs`): each is the last one of a mapping.
    fn must_leave_mapped(&self, file: &InCoreInode, pins: &[Pin], offset: u64, end: u64) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let view = self.view(file)?;
        for block in pins.iter().map(|pin| pin.last).filter(|block| (offset / block_bytes..end.div_ceil(block_bytes)).contains(block)) {
            if self.block_of(file, &view, block)?.base.sectors() < self.sectors_of(block, end) {
                return Err(Error::Mapped);
            }
        }
        Ok(())
    }

    /// Locks the blocks of a range, and all blocks from the end of the file on if its size may change. Also returns the pins on them.
    fn lock_for<'f>(&self, file: &'f InCoreInode, offset: u64, end: u64, grows: bool) -> Result<(RangeGuard<'f>, Vec<Pin>)> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        loop {
            let before = self.view(file)?.size;
            let (first, last) = match grows && end > before {
                true => (offset.min(before) / block_bytes, u64::MAX),
                false => (offset / block_bytes, (end - 1) / block_bytes),
            };
            let range = file.ranges.exclusive_beside_pins(first, last)?;
            if self.view(file)?.size >= end || self.view(file)?.size == before || !grows {
                return Ok(range);
            }
        }
    }

    // ---- giving out -----------------------------------------------------------------------------------------------------------------

    /// Allocates sectors for every block of a range. The caller has locked the range.
    pub(super) fn reserve(&self, file: &InCoreInode, offset: u64, end: u64) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let blocks = offset / block_bytes..end.div_ceil(block_bytes);
        self.check_room(file, &blocks, end)?;
        self.reserve_row(file, blocks, end, Rows::new(&self.volume))
    }

    /// Allocates sectors for these blocks, for bytes up to `end`, from `rows` first. The caller has locked them.
    pub(super) fn reserve_row(&self, file: &InCoreInode, blocks: Range<u64>, end: u64, mut rows: Rows<'_>) -> Result<()> {
        let mut taken: Vec<Range<u64>> = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let step = at..blocks.end.min((at / STEP_BLOCKS + 1) * STEP_BLOCKS);
            match self.reserve_step(file, step, end, (&mut taken, &mut rows)) {
                Ok(next) => at = next,
                Err(error) => {
                    // [AL2]: blocks that were holes become holes again.
                    for range in taken {
                        if let Err(error) = self.free_range(file, range, &mut || {}) {
                            tracing::warn!(%error, inode = file.number.get(), "room that is not needed stays given out");
                        }
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Refuses at once a request that cannot fit ([AL2]).
    pub(super) fn check_room(&self, file: &InCoreInode, blocks: &Range<u64>, end: u64) -> Result<()> {
        let volume = &self.volume;
        let each = volume.geometry.block_sectors_each();
        let of_home = if self.view(file)?.zone == Zone::Memory { volume.memory.available_for_extents() } else { 0 };
        let available = (volume.sectors.space().available_bytes + of_home) / SECTOR;
        let last = u64::from(self.sectors_of(blocks.end - 1, end));
        let wanted = (blocks.end - blocks.start - 1).saturating_mul(each).saturating_add(last);
        if wanted <= available {
            return Ok(());
        }
        let mut there = 0;
        let state = file.state.read()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let _ended = tree::walk_range(volume, state.owner(file.number), state.root(), blocks.clone(), &mut |found| {
            if let Found::Block(_, record) = found {
                there += u64::from(Base::of_record(volume, state.owner(file.number), &record)?.sectors());
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let zone = if volume.geometry.has_block_zone() { "block" } else { "memory" };
        if wanted - there.min(wanted) > available { Err(Error::NoSpace { zone }) } else { Ok(()) }
    }

    /// Number of sectors that a block needs for bytes up to `end`.
    fn sectors_of(&self, block: u64, end: u64) -> u32 {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        (end - block * block_bytes).min(block_bytes).div_ceil(SECTOR) as u32
    }

    /// One transaction for some blocks; returns the first block not done yet. Adds blocks that were holes to `taken`, and takes space in
    /// rows where it can.
    fn reserve_step(
        &self,
        file: &InCoreInode,
        blocks: Range<u64>,
        end: u64,
        (taken, rows): (&mut Vec<Range<u64>>, &mut Rows<'_>),
    ) -> Result<u64> {
        let volume = &self.volume;
        let mut tx = Tx::new(volume);
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let (owner, old_root, zone) = (state.owner(file.number), state.root(), self.zone_of(&state.inode));
        let mut new = state.inode.clone();
        let mut root = old_root;
        let mut next = blocks.end;
        let mut holes: Vec<u64> = Vec::new();
        let mut any = false;
        for block in blocks.clone() {
            let old = Block::lookup(volume, owner, old_root, block)?;
            let wanted = self.sectors_of(block, end);
            if old.base.sectors() >= wanted {
                continue;
            }
            if old.base.data_bytes() > 0 {
                // Existing data cannot be part of an unwritten extent: the block is rewritten with zeros after its data.
                if block == blocks.start {
                    drop(state);
                    drop(tx);
                    self.rewrite_locked(file, block, Rewrite::Lengthen(wanted))?;
                    return Ok(block + 1);
                }
                next = block;
                break;
            }
            let whole = block..end / u64::from(volume.geometry.block_bytes());
            let before = || {
                let record = tree::lookup(volume, owner, old_root, block.checked_sub(1)?).ok()?;
                Base::of_record(volume, owner, &record).ok()?.whole_run(&volume.geometry)
            };
            let place = if whole.is_empty() { None } else { rows.next(zone, whole, before) };
            let zones = (zone, policy::other_zone(&old.base, zone));
            let base = old.reserve(&mut tx, volume, zones, wanted, place)?;
            old.replace(&mut tx, volume, owner, &mut root, block, BaseChange::To(base), &old.logs, Need::Growth)?;
            count_space(&mut new, old.space_512(volume.log_counting), space_512_of(volume.log_counting, base.sectors(), &old.logs));
            any = true;
            if old == Block::HOLE {
                holes.push(block);
            }
        }
        if any {
            new.root = root.to_bytes();
            changed(&mut new);
            file.commit(tx, &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        }
        for block in holes {
            match taken.last_mut().filter(|range| range.end == block) {
                Some(range) => range.end += 1,
                None => taken.push(block..block + 1),
            }
        }
        Ok(next)
    }

    // ---- taking back ----------------------------------------------------------------------------------------------------------------

    /// Makes a range read as zeros, front to back ([AL1]). The caller has locked the range.
    pub(super) fn zero(&self, file: &InCoreInode, offset: u64, end: u64, space: Zeroed) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let (first, last) = (offset / block_bytes, end / block_bytes);
        let (from, to) = ((offset % block_bytes) as u32, (end % block_bytes) as u32);
        if first == last {
            return self.zero_part(file, first, from..to, space);
        }
        let mut whole = first..last;
        if from > 0 {
            self.zero_part(file, first, from..block_bytes as u32, space)?;
            whole.start += 1;
        }
        match space {
            Zeroed::Freed => {
                let mut leaving = None; // set when there is something to free ([NS3])
                self.free_range(file, whole, &mut || _ = leaving.get_or_insert_with(|| self.leaving.enter()))?;
            }
            Zeroed::Kept => self.unwrite_range(file, whole)?,
        }
        if to > 0 { self.zero_part(file, last, 0..to, space) } else { Ok(()) }
    }

    /// The bug: a collapse first punches the range.
    pub(super) fn zero_whole_blocks(&self, file: &InCoreInode, offset: u64, end: u64) -> Result<()> {
        self.zero(file, offset, end, Zeroed::Freed)
    }

    /// Frees whole blocks ([AL3]). Calls `begins` before the first is freed.
    pub(super) fn free_range(&self, file: &InCoreInode, blocks: Range<u64>, begins: &mut dyn FnMut()) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let mut state = file.state.write()?;
            if state.removed {
                return Err(Error::Stale(file.number));
            }
            let mut root = state.root();
            let owner = state.owner(file.number);
            let Some(first) = tree::first_found(&self.volume, owner, root, at..blocks.end)? else { break };
            begins();
            let step = first.start..blocks.end.min((first.start / FREE_STEP_BLOCKS + 1) * FREE_STEP_BLOCKS).max(first.end);
            let mut tx = Tx::new(&self.volume);
            let freed_512 = free_blocks(&mut tx, self, owner, root, step.clone())?;
            tree::clear(&mut tx, owner, &mut root, &step)?;
            let mut new = state.inode.clone();
            new.root = root.to_bytes();
            new.space_512 = new.space_512.saturating_sub(freed_512);
            changed(&mut new);
            file.commit(tx, &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
            at = step.end;
        }
        Ok(())
    }

    /// Makes the sectors of whole blocks unwritten ([AL3]).
    fn unwrite_range(&self, file: &InCoreInode, blocks: Range<u64>) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let step = at..blocks.end.min((at / STEP_BLOCKS + 1) * STEP_BLOCKS);
            self.unwrite_step(file, step.clone(), changed)?;
            at = step.end;
        }
        Ok(())
    }

    /// Makes blocks unwritten, of at most one step; one transaction. Returns the pages that those in the memory zone had.
    pub(super) fn unwrite_step(
        &self,
        file: &InCoreInode,
        blocks: Range<u64>,
        change: impl FnOnce(&mut Inode),
    ) -> Result<Vec<(LineAddress, u64)>> {
        let volume = &self.volume;
        let mut tx = Tx::new(volume);
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let (owner, old_root) = (state.owner(file.number), state.root());
        let mut new = state.inode.clone();
        let mut root = old_root;
        let (mut any, mut pages) = (false, Vec::new());
        for block in blocks {
            let old = Block::lookup(volume, owner, old_root, block)?;
            if !old.has_logs() && old.base.data_bytes() == 0 {
                continue;
            }
            let (base, no_logs) = (old.base.emptied(), Block::HOLE.logs);
            count_space(&mut new, old.space_512(volume.log_counting), space_512_of(volume.log_counting, base.sectors(), &no_logs));
            old.replace(&mut tx, volume, owner, &mut root, block, BaseChange::To(base), &no_logs, Need::Transient)?;
            if let Base::Unwritten(DataRun { at: DataAddress::Page(page), count, .. }) = base {
                pages.push((page, count.into()));
            }
            any = true;
        }
        if any {
            new.root = root.to_bytes();
            change(&mut new);
            file.commit(tx, &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        }
        Ok(pages)
    }

    /// Zeroes a part of a block ([AL4], [AL5]).
    fn zero_part(&self, file: &InCoreInode, block: u64, bytes: Range<u32>, space: Zeroed) -> Result<()> {
        let block_bytes = self.volume.geometry.block_bytes();
        let view = self.view(file)?;
        let old = self.block_of(file, &view, block)?;
        if old == Block::HOLE {
            return Ok(());
        }
        let inside = view.size.saturating_sub(block * u64::from(block_bytes)).min(block_bytes.into()) as u32;
        if let Base::Lost(_) = old.base {
            return self.zero_lost(file, &view, block, bytes.start..bytes.end.min(inside));
        }
        let (of_sectors, has_data) = (old.base.bytes(), old.base.data_bytes() > 0);
        // Bytes beyond the end of the file are invisible; space kept there stays unless the range covers it.
        let reaches_end = bytes.end >= inside && of_sectors <= inside.next_multiple_of(SECTOR_BYTES as u32);
        let end = if reaches_end { block_bytes } else { bytes.end };
        let cuts = space == Zeroed::Freed && end >= of_sectors;
        let mut start = bytes.start;
        if has_data && start < of_sectors {
            let stop = if cuts { start.next_multiple_of(SECTOR_BYTES as u32) } else { end.min(of_sectors) };
            if start < stop.min(inside) {
                self.write_zeros(file, &view, block, start..stop.min(inside))?;
                if cuts && !on(Mutant::CutDecidedEarly) {
                    // [AL5]; `stop` is a multiple of a sector, so this happens once.
                    return if stop < bytes.end { self.zero_part(file, block, stop..bytes.end, space) } else { Ok(()) };
                }
            }
            start = stop;
        }
        if start >= end {
            return Ok(());
        }
        self.clear_part(file, block, start..end, cuts)
    }

    /// Zeroes a part of a lost block: zeros are written over it, because the other bytes stay lost. A block without other bytes is freed.
    fn zero_lost(&self, file: &InCoreInode, view: &FileView, block: u64, bytes: Range<u32>) -> Result<()> {
        let reaches_end = block * u64::from(self.volume.geometry.block_bytes()) + u64::from(bytes.end) >= view.size;
        if bytes.start == 0 && reaches_end {
            return self.free_range(file, block..block + 1, &mut || {});
        }
        if bytes.is_empty() { Ok(()) } else { self.write_zeros(file, view, block, bytes) }
    }

    /// Removes logs and, if `cuts`, sectors from a part of a block below which no data stays; one transaction.
    fn clear_part(&self, file: &InCoreInode, block: u64, bytes: Range<u32>, cuts: bool) -> Result<()> {
        let volume = &self.volume;
        let view = self.view(file)?;
        let old = self.block_of(file, &view, block)?;
        let start = block * u64::from(volume.geometry.block_bytes());
        let mut slots = old.logs;
        let mut moved = None;
        for (index, slot) in slots.iter_mut().enumerate() {
            let Some(log) = slot.filter(|log| log.offset < bytes.end && bytes.start < log.end()) else { continue };
            if bytes.start <= log.offset && log.end() <= bytes.end {
                *slot = None;
                continue;
            }
            let mut content = vec![0; log.length as usize];
            load_log(volume, view.owner.inode, start, &log, &mut content)?;
            if log.end() <= bytes.end {
                // Shortened in place, as by a truncation.
                content.truncate((bytes.start - log.offset) as usize);
                *slot = Some(LogEntry { length: content.len() as u32, crc: volume.data_checksum(&content), ..log });
            } else {
                // At most one log reaches beyond the range: it moves to a new slot, with zeros in the range.
                let from = bytes.start.saturating_sub(log.offset) as usize;
                content[from..(bytes.end - log.offset) as usize].fill(0);
                *slot = None;
                moved = Some((index, log, content));
            }
        }
        let sectors = bytes.start.div_ceil(SECTOR_BYTES as u32);
        let cuts = cuts && sectors < old.base.sectors();
        if slots == old.logs && !cuts {
            return Ok(());
        }
        self.change_block(file, block, old, slots, moved, |tx, old| match cuts {
            true => old.cut_base(tx, volume, view.owner, sectors),
            false => Ok(old.base),
        })
    }
}

/// What happens to the space of zeroed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Zeroed {
    /// It is freed.
    Freed,
    /// The file keeps it.
    Kept,
}

//! Steps 2 and 3 of a write ([`super::write_path`]): splits bytes into blocks, plans the new state of each block and allocates its space.
//! [`super::policy`] chooses the mechanism; this file carries it out. Nothing is stored yet: a dropped transaction gives the space back.
//!
//! [LW1] A transaction is bounded (RULES R11). What a block's record, its checksums and the inode need of it is kept free for all blocks of the write; the
//!       rest may become lines of leaves. Blocks whose leaves do not fit any more take the block path.

use std::cell::RefCell;
use std::ops::Range;

use smallvec::SmallVec;
use tandemfs_device::Source;
use tandemfs_format::inode::INODE_LINES;
use tandemfs_format::journal::{TX_DATA_MAX, TX_LINES_MAX};
use tandemfs_format::mapping::{HEIGHT_MAX, LINE_RECORDS, LogEntry, RecordBytes, SlotClass, VECTOR_LINE_SECTORS};
use tandemfs_format::{DataAddress, LineAddress, SECTOR_BYTES};

use super::FileView;
use super::compose::{compose, verify_found};
use super::in_place::{InPlace, LINES_MAX, Place};
use super::kept_place::kept_place;
use super::log_plan::{self, LogPlan, Part, Step};
use super::mutants;
use super::policy::{self, FullZone, Mechanism, Overwrite, WritePolicy};
use super::rows::Rows;
use super::target::{Action, Bytes, Store, Target, Targets};
use crate::alloc::Need;
use crate::cache::file_pages::Taken;
use crate::error::{Error, Result};
use crate::index::block::{Base, Block, DataRun, NewExtent};
use crate::index::tree;
use crate::mutant::{Mutant, on};
use crate::quota;
use crate::space;
use crate::statistics::{add, count};
use crate::volume::{Tx, Volume};

/// 2. Splits a write into blocks of the file with this root. `tail_zeros` are written at the old end of the file. Fills `targets` where they
///    are: each has some kilobytes, and moving them takes as long as any step of a small write.
pub(super) fn split<'d>(
    volume: &Volume,
    view: &FileView,
    root: RecordBytes,
    (offset, data): (u64, Source<'d>),
    tail_zeros: &'d [u8],
    targets: &mut Targets<'d>,
) -> Result<()> {
    let block_bytes = u64::from(volume.geometry.block_bytes());
    for (start, bytes) in [(view.size, Source::Private(tail_zeros)), (offset, data)] {
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
}

/// The blocks that a range of bytes covers.
pub(super) fn whole_blocks(volume: &Volume, bytes: &Range<u64>) -> Range<u64> {
    let block_bytes = u64::from(volume.geometry.block_bytes());
    bytes.start.div_ceil(block_bytes)..bytes.end / block_bytes
}

/// 3. Plans the blocks of one write.
pub(super) struct Planner<'p, 'v> {
    volume: &'p Volume,
    view: &'p FileView,
    policy: &'p WritePolicy,
    /// The byte range of the write in the file.
    write: Range<u64>,
    /// The file size after the write.
    file_end: u64,
    /// Sectors instead of new logs where possible.
    by_blocks: bool,
    /// How slots of logs are reserved, if not by their effect.
    need_of_logs: Option<Need>,
    /// Blocks that keep their place get logs ([KP1] of `kept_place.rs`).
    keeps_places: bool,
    /// Those whose logs took the transient room ([KP4]).
    in_room: SmallVec<[u64; 2]>,
    /// Copies of old pages, if available.
    pages: Option<&'p Taken>,
    /// Lines that the transaction can still write in place ([IP7] of `in_place.rs`).
    lines_left: u32,
    /// Lines of leaves that it can still write ([LW1]).
    leaf_lines_left: u32,
    /// Logs of the block that was tried last were left out for want of them: write-back would help nobody.
    is_out_of_lines: bool,
    lacks_logs: bool,
    /// Places in a row for whole blocks, and where the block before the write's first whole block begins.
    rows: Option<&'p RefCell<Rows<'v>>>,
    before: Option<DataAddress>,
    /// The whole blocks of the write, and of what is written after it by the same call.
    whole: Range<u64>,
}

/// Sectors that a block has (`own`), and sectors that it needs up to the end of the file (`whole`).
#[derive(Debug, Clone, Copy)]
struct Counts {
    own: u32,
    whole: u32,
}

impl<'p, 'v> Planner<'p, 'v> {
    pub(super) fn new(volume: &'p Volume, view: &'p FileView, policy: &'p WritePolicy, write: Range<u64>, file_end: u64) -> Self {
        let in_place = if policy.stores_in_place() { LINES_MAX } else { 0 };
        let leaf_lines_left = leaf_lines(volume.geometry.block_bytes(), write.end - write.start, in_place);
        Self {
            volume,
            view,
            policy,
            write,
            file_end,
            by_blocks: false,
            need_of_logs: None,
            keeps_places: false,
            in_room: SmallVec::new(),
            pages: None,
            lines_left: LINES_MAX,
            leaf_lines_left,
            is_out_of_lines: false,
            lacks_logs: false,
            rows: None,
            before: None,
            whole: 0..0,
        }
    }

    /// Gives places that earlier writes of a call have taken for its whole blocks, and where the block before the first of these begins.
    pub(super) fn with_rows(self, rows: &'p RefCell<Rows<'v>>, whole: Range<u64>, before: Option<DataAddress>) -> Self {
        Self { rows: Some(rows), whole, before, ..self }
    }

    /// Adds available copies of old pages.
    pub(super) fn with_pages(self, pages: &'p Taken) -> Self {
        Self { pages: Some(pages), ..self }
    }

    /// Asks for sectors instead of new logs where possible.
    pub(super) fn by_blocks(self, by_blocks: bool) -> Self {
        Self { by_blocks, ..self }
    }

    /// Lets logs take the transient room: they go before the call ends.
    pub(super) fn with_transient_logs(self) -> Self {
        Self { need_of_logs: Some(Need::Transient), ..self }
    }

    /// Leaves blocks of aligned extents where they are.
    pub(super) fn keeping_places(self, keeps_places: bool) -> Self {
        Self { keeps_places, ..self }
    }

    /// Blocks that keep their place and whose logs took the transient room: they are to be written back.
    pub(super) fn into_in_room(self) -> SmallVec<[u64; 2]> {
        self.in_room
    }

    /// Whether a block got sectors because no logs were available for it; write-back must then free some.
    pub(super) fn lacks_logs(&self) -> bool {
        self.lacks_logs
    }

    /// Plans the new states of all blocks and allocates their space.
    pub(super) fn plan_all(&mut self, tx: &mut Tx<'_>, targets: &mut [Target<'_>]) -> Result<()> {
        targets.iter_mut().try_for_each(|target| self.plan(tx, target))
    }

    /// The place of a whole block, in a row with the others of the write.
    fn next_in_row(&self, block: u64) -> Option<DataAddress> {
        let blocks = block..self.whole.end;
        let before = || self.before.filter(|_| block == self.whole.start);
        let rows = self.rows.filter(|_| self.whole.contains(&block))?;
        rows.borrow_mut().next(self.view.zone, blocks, before)
    }

    /// Plans the new state of a block and allocates its space.
    fn plan(&mut self, tx: &mut Tx<'_>, target: &mut Target<'_>) -> Result<()> {
        let keeps = self.keeps_place(target);
        let is_whole = !keeps && target.as_it_came.is_empty() && self.policy.is_split_off(&self.write, self.start_of(target));
        if self.policy.tries_logs(is_whole, self.by_blocks) {
            self.take_in_place(target);
            if target.parts.is_empty() {
                let (slots, base) = (target.old.logs, target.old.base);
                target.action = Action::Logs { merges: 0, slots, stores: SmallVec::new(), base };
                return Ok(());
            }
            if self.carry_out_logs(tx, target, self.need_of_logs)? {
                return Ok(());
            }
            if keeps && self.carry_out_logs(tx, target, Some(Need::Transient))? {
                self.in_room.push(target.block);
                return Ok(());
            }
            self.lacks_logs |= !self.is_out_of_lines;
        }
        // The whole block takes the block path: as the caller wrote it, or composed with its old content.
        target.restore();
        self.plan_sectors(tx, target, is_whole)
    }

    fn keeps_place(&self, target: &Target<'_>) -> bool {
        self.keeps_places && target.fits() && !self.by_blocks && kept_place(self.volume, &target.old.base, target.block).is_some()
    }

    fn start_of(&self, target: &Target<'_>) -> u64 {
        target.block * u64::from(self.volume.geometry.block_bytes())
    }

    fn grows(&self) -> bool {
        self.write.end > self.view.size
    }

    /// Removes the parts of a block that are written in place, and plans their lines.
    fn take_in_place(&mut self, target: &mut Target<'_>) {
        if !self.policy.stores_in_place() {
            return;
        }
        let Base::Written(DataRun { at: DataAddress::Sector(first), .. }) = target.old.base else { return };
        let is_left_over = !target.as_it_came.is_empty();
        let goes = |part: &Part<'_>| {
            self.policy.goes_in_place(&Overwrite {
                bytes: part.data.len(),
                end: part.end(),
                written_bytes: target.old.base.data_bytes(),
                is_hidden: target.old.logs().any(|log| log.offset < part.end() && part.offset < log.end()),
                is_left_over,
            })
        };
        let (chosen, rest): (SmallVec<[Part<'_>; 2]>, SmallVec<[Part<'_>; 2]>) = target.parts.iter().copied().partition(goes);
        let block_start = self.start_of(target);
        let place = Place { volume: self.volume, view: self.view, block: &target.old, block_start, first, pages: self.pages };
        let Some(in_place) = InPlace::plan(&place, &chosen, self.lines_left) else { return };
        self.lines_left -= in_place.lines();
        target.in_place = in_place;
        let parts = std::mem::replace(&mut target.parts, rest);
        if !is_left_over {
            target.as_it_came = parts.into_vec();
        }
    }

    fn plan_sectors(&mut self, tx: &mut Tx<'_>, target: &mut Target<'_>, is_whole: bool) -> Result<()> {
        let own = target.old.base.sectors();
        let reach = (self.file_end - self.start_of(target)).min(self.volume.geometry.block_bytes().into()) as u32;
        // Space that was kept beyond the end of the file stays.
        let counts = Counts { own, whole: reach.div_ceil(SECTOR_BYTES as u32).max(own) };
        let fits = target.fits();
        let error = match self.carry_out(tx, target, policy::sectors(&target.old.base, fits), counts) {
            Err(error @ Error::NoSpace { .. }) => error,
            other => return other.map(drop),
        };
        let grows = self.grows();
        let full = FullZone {
            grows,
            replaces: !grows && target.replaces(),
            fits,
            is_whole,
            by_blocks: self.by_blocks,
            has_space: target.old.has_space(),
        };
        for mechanism in policy::when_full(&full) {
            match self.carry_out(tx, target, *mechanism, counts) {
                Ok(true) => return Ok(()),
                Ok(false) | Err(Error::NoSpace { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        Err(error)
    }

    /// Plans a block by one mechanism. False if there are no free entries or slots for logs; `NoSpace` if there are no sectors.
    fn carry_out(&mut self, tx: &mut Tx<'_>, target: &mut Target<'_>, mechanism: Mechanism, counts: Counts) -> Result<bool> {
        let Counts { own, whole } = counts;
        let (count, need) = match mechanism {
            Mechanism::Logs(chosen) => return self.carry_out_logs(tx, target, chosen),
            Mechanism::Fill(run) => return self.to_extent(target, run.at, run.count, true),
            Mechanism::WholeBlock => (whole, None),
            Mechanism::SameSectors if target.fits() => (own, None),
            Mechanism::SameSectors => return self.carry_out_both(tx, target, own),
            Mechanism::WholeBlockFromRoom => (whole, Some(Need::Transient)),
        };
        mutants::free_before_commit(self.volume, &target.old.base);
        let is_whole = need.is_none() && u64::from(count) == self.volume.geometry.block_sectors_each();
        let given = if is_whole { self.next_in_row(target.block) } else { None };
        let at = given.map_or_else(|| self.take_extent(&target.old.base, count, need), Ok)?;
        tx.took(space::data(at, count.into()));
        self.to_extent(target, at, count, false)
    }

    /// Takes sectors or pages in the file's home, or where that has none in the other zone ([`policy::other_zone`]).
    fn take_extent(&self, old: &Base, count: u32, need: Option<Need>) -> Result<DataAddress> {
        let zones = (self.view.zone, policy::other_zone(old, self.view.zone));
        self.volume.take_data_in(zones, count.into(), |zone| need.unwrap_or_else(|| policy::need_of_extent(old, zone, count)))
    }

    fn carry_out_logs(&mut self, tx: &mut Tx<'_>, target: &mut Target<'_>, chosen: Option<Need>) -> Result<bool> {
        self.is_out_of_lines = false;
        let Some(plan) = log_plan::plan(&target.old.logs, &target.parts) else { return Ok(false) };
        let lines = target.old.leaf_lines_for(plan.slots());
        self.is_out_of_lines = lines > self.leaf_lines_left && !on(Mutant::LeavesUnbounded); // [LW1]
        if self.is_out_of_lines || !self.may_take_logs(&plan) {
            return Ok(false);
        }
        let need = policy::need_of_logs(chosen, plan.merges, self.grows());
        match take_logs(tx, self.volume, self.view, target, plan, need) {
            Ok(action) => {
                self.leaf_lines_left = self.leaf_lines_left.saturating_sub(lines);
                target.action = action;
            }
            Err(Error::NoSpace { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Whether the limits of a caller leave room for new logs. Where they do not, the block path serves, as where the zone is full.
    fn may_take_logs(&self, plan: &LogPlan) -> bool {
        let quota = &self.volume.quota;
        if !quota.is_counting() || !quota::is_bound() || !self.volume.geometry.has_block_zone() {
            return true;
        }
        let bytes = |step: &Step| if let Step::Write { length, .. } = step { SlotClass::for_bytes(*length as usize).bytes() } else { 0 };
        let wanted = plan.steps.iter().map(|(_, step)| bytes(step) as u64).sum();
        quota.with_table(|table| table.has_room_for_logs(self.view.ids, wanted))
    }

    /// Plans the bytes of the whole block, stored in these sectors or pages.
    fn to_extent<'d>(&self, target: &mut Target<'d>, at: DataAddress, count: u32, fill: bool) -> Result<bool> {
        let length = count as usize * SECTOR_BYTES;
        let bytes = match target.parts.as_slice() {
            [Part { offset: 0, data }] if data.len() == length => match (data, at) {
                (Source::Shared(bytes), DataAddress::Sector(_)) => Bytes::Shared(*bytes),
                (data, _) => Bytes::private(*data),
            },
            _ => Bytes::Owned(self.composed(target, length)?),
        };
        let new = NewExtent { at, count, checksums: SmallVec::new() };
        target.action = Action::Extent { new, fill, bytes, slots: target.logs_behind(length as u32), stores: SmallVec::new() };
        Ok(true)
    }

    /// Fresh sectors, as many as the block has, for the bytes up to their end; logs for the new bytes behind them, in place of the logs that are
    /// there. So the block takes no more sectors than it frees, however full its leaf is.
    fn carry_out_both(&mut self, tx: &mut Tx<'_>, target: &mut Target<'_>, own: u32) -> Result<bool> {
        let length = own * SECTOR_BYTES as u32;
        let kept = target.logs_behind(length);
        // A log that crosses the end of the sectors hides their last bytes: new bytes for these go to the log.
        let border = kept.iter().flatten().map(|log| log.offset).fold(length, u32::min);
        let behind: SmallVec<[Part<'_>; 2]> = target.parts.iter().filter_map(|part| part.from(border)).collect();
        let Some(plan) = log_plan::plan(&kept, &behind).filter(|_| own > 0) else { return Ok(false) };
        let lines = target.old.leaf_lines_for(plan.slots());
        if lines > self.leaf_lines_left {
            return Ok(false); // [LW1]
        }
        let at = self.take_extent(&target.old.base, own, None)?;
        tx.took(space::data(at, own.into()));
        let bytes = self.composed(target, length as usize)?;
        let parts = std::mem::replace(&mut target.parts, behind);
        match take_logs(tx, self.volume, self.view, target, plan, Need::Transient) {
            Ok(Action::Logs { slots, stores, merges, .. }) => {
                self.leaf_lines_left -= lines;
                add(&self.volume.live.work.merges, merges);
                let new = NewExtent { at, count: own, checksums: SmallVec::new() };
                target.action = Action::Extent { new, fill: false, bytes: Bytes::Owned(bytes), slots, stores };
                Ok(true)
            }
            Err(Error::NoSpace { .. }) => {
                target.parts = parts;
                tx.free(space::data(at, own.into()));
                Ok(false)
            }
            other => other.map(|_| false),
        }
    }

    /// The parts laid over the block's old content (RomeFS Algorithm 2, line 10).
    fn composed(&self, target: &Target<'_>, length: usize) -> Result<Vec<u8>> {
        let block_start = self.start_of(target);
        let mut bytes = vec![0; length];
        let inside = self.view.size.saturating_sub(block_start).min(length as u64) as u32;
        verify_found(self.view.owner.inode, block_start, &target.old, &target.parts, inside)?;
        compose(self.volume, self.view.owner, block_start, &target.old, &target.parts, &mut bytes)?;
        // Stale bytes that a truncation left beyond the end are not copied (RULES R13).
        let known = (self.view.size.saturating_sub(block_start)).min(length as u64) as usize;
        bytes[known..].fill(0);
        for part in target.parts.iter().filter_map(|part| part.up_to(length as u32)) {
            part.data.copy_to(&mut bytes[part.offset as usize..part.end() as usize]); // [SM3]
        }
        if target.old.has_logs() {
            count(&self.volume.live.work.block_write_backs);
        }
        Ok(bytes)
    }
}

/// Lines that a write may need beside those that are counted: runs that it splits.
const SPARE_LINES: u32 = 16;

/// Lines of leaves that a write of this many bytes may change, where it stores up to so many lines in place ([LW1]).
fn leaf_lines(block_bytes: u32, write_bytes: u64, in_place: u32) -> u32 {
    // Head, tail, and the old last block.
    let blocks = (write_bytes.min(TX_DATA_MAX) / u64::from(block_bytes)) as u32 + 3;
    // Three lines on each level above the records: neighbouring blocks have neighbouring pages.
    let records = blocks.div_ceil(LINE_RECORDS as u32) + 2 + 3 * HEIGHT_MAX;
    let sectors = block_bytes / SECTOR_BYTES as u32;
    let vectors = if sectors > 1 { blocks * sectors.div_ceil(VECTOR_LINE_SECTORS as u32) } else { 0 };
    TX_LINES_MAX as u32 - (INODE_LINES as u32 + records + vectors + in_place + SPARE_LINES)
}

/// Allocates slots for a plan and records the source of each log's bytes.
fn take_logs<'d>(tx: &mut Tx<'_>, volume: &Volume, view: &FileView, target: &Target<'d>, plan: LogPlan, need: Need) -> Result<Action<'d>> {
    let mut stores = SmallVec::new();
    let mut taken: SmallVec<[_; 4]> = SmallVec::new();
    for (slot, step) in &plan.steps {
        match step {
            Step::Append { log, part } => {
                let data = target.parts[*part].data;
                let entry = LogEntry { length: log.length + data.len() as u32, ..*log };
                stores.push(Store { slot: *slot, entry, skip: log.length, bytes: Bytes::private(data) });
            }
            Step::Write { offset, length, merged } => {
                let end = offset + length;
                let bytes = match target.parts.iter().find(|part| part.offset <= *offset && end <= part.end()) {
                    Some(part) if merged.is_empty() => {
                        Bytes::private(part.data.slice((offset - part.offset) as usize..(end - part.offset) as usize))
                    }
                    _ => Bytes::Merged(view.owner.inode, merged.to_vec()),
                };
                let class = SlotClass::for_bytes(*length as usize);
                let address = match volume.memory.take_slot(class, need) {
                    Ok(address) => address,
                    Err(error) => {
                        for space in taken {
                            tx.free(space);
                        }
                        return Err(error);
                    }
                };
                tx.took(space::slot(address, class.lines()));
                taken.push(space::slot(address, class.lines()));
                stores.push(Store {
                    slot: *slot,
                    entry: LogEntry { address, crc: 0, offset: *offset, length: *length, class },
                    skip: 0,
                    bytes,
                });
            }
        }
    }
    if stores.len() > 1 {
        in_order(&mut stores);
    }
    Ok(Action::Logs { merges: plan.merges, slots: plan.kept, stores, base: target.old.base })
}

/// Sorts new pages by file offset: pools reuse the most recently freed slots first, so runs often come in descending order.
#[inline(never)]
fn in_order(stores: &mut [Store<'_>]) {
    let is_new_page = |store: &&mut Store<'_>| store.skip == 0 && store.entry.class == SlotClass::Page;
    let mut addresses: SmallVec<[LineAddress; 16]> = stores.iter_mut().filter(is_new_page).map(|store| store.entry.address).collect();
    addresses.sort_unstable();
    stores.iter_mut().filter(is_new_page).zip(addresses).for_each(|(store, address)| store.entry.address = address);
}

//! One block of a file: a base ([`super::base`]) and data logs over it.
//!
//! [BL1] No two logs of a block overlap; a log never leaves its block.
//! [BL2] A change of one log changes one line of the leaf; a leaf that grows is rewritten and the old one freed (RULES R6).
//! [BL3] A block that is a single log keeps the entry in its record: a million small files need no leaf (`docs/FORMAT.md`).
//! [BL4] Unwritten sectors are space reserved for their block, with the vector that they will need: filling them allocates nothing (RULES
//!       R14). They hold no data, so they are written *before* the record that marks them as written.
//! [BL5] A lost block stays lost below its logs until it gets sectors, or logs cover all of it: what is between them has no content.
//! [BL7] Checksums of pages *with the logs over them* ([KP2] of `data/kept_place.rs`) mean nothing with other logs: whoever changes these either
//!       has copied them into the pages, or the block becomes an open one.
//! [BL6] A block without logs has no leaf, so a leaf without logs was lost: what is below it may be older.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;
use tandemfs_device::Structure;
use tandemfs_format::mapping::{
    BlockChecksum, LEAF_ENTRIES_MAX, LINE_ENTRIES, LeafPointer, LogEntry, Record, RecordBytes, VECTOR_LINE_SECTORS, leaf_line,
    line_entries, set_vector_checksum, vector_checksum, vector_lines,
};
use tandemfs_format::segment::Region;
use tandemfs_format::space::LogCounting;
use tandemfs_format::{DataAddress, Line, LineAddress};

pub(crate) use super::base::{Base, DataRun};
use super::tree;
use crate::alloc::Need;
use crate::cache::{LineStore, Owner, damaged};
use crate::error::{Error, Result};
use crate::mutant::{Mutant, on};
use crate::space::{self, Zone};
use crate::volume::{Tx, Volume};

/// The logs of a block, indexed by leaf slot.
pub(crate) type LogSlots = [Option<LogEntry>; LEAF_ENTRIES_MAX];

/// The current state of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) base: Base,
    pub(crate) logs: LogSlots,
    leaf: Option<LeafPointer>,
}

/// New sectors or pages of a block, with one checksum each if the file system has checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewExtent {
    pub(crate) at: DataAddress,
    pub(crate) count: u32,
    pub(crate) checksums: SmallVec<[u32; 16]>,
}

/// The change of a block's base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BaseChange {
    /// Other sectors or pages replace it.
    New(NewExtent),
    /// Its unwritten sectors or pages are written now ([BL4]).
    Fill(NewExtent),
    /// This becomes the base, changed or not; the caller allocates and frees the difference.
    To(Base),
}

impl Block {
    pub(crate) const HOLE: Self = Self { base: Base::Hole, logs: [None; LEAF_ENTRIES_MAX], leaf: None };

    /// Reads the block that a file's record describes, leaf included.
    pub(crate) fn of_record(store: &LineStore, owner: Owner, record: Record) -> Result<Self> {
        let mut block = Self { base: Base::of_record(store, owner, &record)?, ..Self::HOLE };
        if let Record::SingleLog(entry) = record {
            block.logs[0] = Some(entry);
        }
        if let Record::Block { leaf: Some(leaf), .. } | Record::Lost { leaf: Some(leaf), .. } = record {
            if !store.geometry.holds_lines(leaf.address, leaf.lines()) {
                return Err(damaged(owner, leaf.address, "leaf"));
            }
            block.leaf = Some(leaf);
            let mut slots = block.logs.chunks_exact_mut(LINE_ENTRIES);
            store.lines(owner, Structure::Mapping, leaf.address, leaf.lines(), |address, line| {
                let entries = line_entries(line, address).map_err(|source| Error::Damaged { inode: owner.inode, source })?;
                slots.next().into_iter().for_each(|slots| slots.copy_from_slice(&entries));
                Ok(())
            })?;
            if !block.has_logs() && !on(Mutant::EmptyLeavesRead) {
                return Err(damaged(owner, leaf.address, "entries")); // [BL6]
            }
        }
        for log in block.logs() {
            if !store.geometry.holds_lines(log.address, log.class.lines()) || log.end() > store.geometry.block_bytes() {
                return Err(damaged(owner, log.address, "log"));
            }
        }
        Ok(block)
    }

    /// Makes it a block with this leaf, from which `logs` were read.
    pub(super) fn set_leaf(&mut self, leaf: LeafPointer) {
        self.leaf = Some(leaf);
    }

    /// Looks a block up in the tree.
    pub(crate) fn lookup(store: &LineStore, owner: Owner, root: RecordBytes, block: u64) -> Result<Self> {
        Self::of_record(store, owner, tree::lookup(store, owner, root, block)?)
    }

    /// Its logs, in no particular order.
    pub(crate) fn logs(&self) -> impl Iterator<Item = &LogEntry> {
        self.logs.iter().flatten()
    }

    pub(crate) fn has_logs(&self) -> bool {
        self.logs.iter().any(Option::is_some)
    }

    /// Whether it is not a hole: it has sectors, data logs, or both.
    pub(crate) fn has_space(&self) -> bool {
        self.base != Base::Hole || self.has_logs()
    }

    /// Its data space, in units of 512 B as the inode counts it.
    pub(crate) fn space_512(&self, counting: LogCounting) -> u64 {
        space_512_of(counting, self.base.sectors(), &self.logs)
    }

    /// The space of what differs between the block and one with these sectors and logs, before and after.
    pub(crate) fn space_512_change(&self, counting: LogCounting, sectors: u32, logs: &LogSlots) -> (u64, u64) {
        let old_sectors = self.base.sectors();
        if sectors != old_sectors {
            return (self.space_512(counting), space_512_of(counting, sectors, logs));
        }
        // Each log counts by itself, so those that stay count on neither side.
        let changed = || self.logs.iter().zip(logs).filter(|(old, new)| old != new);
        let space = |log: &Option<LogEntry>| log.as_ref().map_or(0, |log| counting.log_space_512(sectors, log));
        (changed().map(|(old, _)| space(old)).sum(), changed().map(|(_, new)| space(new)).sum())
    }

    /// Whether a record names data logs that can be written back. Logs over lost bytes cannot: nobody can compose the block.
    pub(crate) fn record_has_movable_logs(record: &Record) -> bool {
        matches!(record, Record::SingleLog(_) | Record::Block { leaf: Some(_), .. })
    }

    /// The first byte of a range that is lost ([`Base::Lost`]): no data log covers it, nor does `is_given`.
    pub(crate) fn first_lost(&self, bytes: Range<u32>, is_given: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let Base::Lost(_) = self.base else { return None };
        let mut at = bytes.start;
        while at < bytes.end {
            let of_log = self.logs().find(|log| log.offset <= at && at < log.end()).map(LogEntry::end);
            match of_log.or_else(|| is_given(at)) {
                Some(end) => at = end,
                None => return Some(at),
            }
        }
        None
    }

    /// The kind of its sector checksums; `None` if it has no sectors.
    fn checksum(&self) -> BlockChecksum {
        self.base.run().map_or(BlockChecksum::None, |run| run.checksum)
    }

    /// The checksum of one of its sectors; `None` if it has none.
    pub(crate) fn sector_checksum(&self, store: &LineStore, owner: Owner, index: u64) -> Result<Option<u32>> {
        match self.checksum() {
            BlockChecksum::None | BlockChecksum::Open(_) => Ok(None),
            BlockChecksum::Inline(crc) => Ok(Some(crc)),
            BlockChecksum::Vector(vector) => {
                let address = vector.nth(index / VECTOR_LINE_SECTORS);
                store.check_address(owner, address)?;
                Ok(Some(vector_checksum(&store.raw_line(Structure::Mapping, address)?, index)))
            }
        }
    }

    /// XORs checksums of its written sectors with the given changes, pairs of sector index and change (RULES R18). Returns the new base.
    /// The caller holds the inode lock.
    pub(crate) fn renew_checksums(&self, tx: &mut Tx<'_>, store: &LineStore, owner: Owner, changes: &[(u32, u32)]) -> Result<Base> {
        let Base::Written(mut run) = self.base else { return Ok(self.base) };
        match run.checksum {
            BlockChecksum::None | BlockChecksum::Open(_) => {}
            BlockChecksum::Inline(crc) => {
                run.checksum = BlockChecksum::Inline(changes.iter().fold(crc, |crc, (_, change)| crc ^ change));
            }
            BlockChecksum::Vector(vector) => {
                for (index, change) in changes {
                    let index = u64::from(*index);
                    let address = vector.nth(index / VECTOR_LINE_SECTORS);
                    store.check_address(owner, address)?;
                    let mut line = tx.raw_line(Structure::Mapping, address)?;
                    let crc = vector_checksum(&line, index);
                    set_vector_checksum(&mut line, index, crc ^ change);
                    tx.put(Structure::Mapping, address, line)?;
                }
            }
        }
        Ok(Base::Written(run))
    }

    /// Its base, not open any more, with these checksums of some of its pages, by index; the others have those that they had.
    pub(crate) fn with_checksums(&self, tx: &mut Tx<'_>, store: &LineStore, owner: Owner, checksums: &BTreeMap<u64, u32>) -> Result<Base> {
        let Base::Written(mut run) = self.base else { return Ok(self.base) };
        run.checksum = match run.checksum {
            BlockChecksum::None => BlockChecksum::None,
            BlockChecksum::Vector(vector) | BlockChecksum::Open(Some(vector)) => {
                for (index, crc) in checksums {
                    let address = vector.nth(index / VECTOR_LINE_SECTORS);
                    store.check_address(owner, address)?;
                    let mut line = tx.raw_line(Structure::Mapping, address)?;
                    set_vector_checksum(&mut line, *index, *crc);
                    tx.put(Structure::Mapping, address, line)?;
                }
                BlockChecksum::Vector(vector)
            }
            before @ (BlockChecksum::Inline(_) | BlockChecksum::Open(None)) => {
                checksums.get(&0).map_or(before, |crc| BlockChecksum::Inline(*crc))
            }
        };
        Ok(Base::Written(run))
    }

    /// Passes the checksums of `count` of its sectors from `first` on to `each`, with their indexes; nothing if it has none.
    pub(crate) fn sector_checksums(
        &self,
        store: &LineStore,
        owner: Owner,
        first: u64,
        count: u64,
        mut each: impl FnMut(u64, u32) -> Result<()>,
    ) -> Result<()> {
        match self.checksum() {
            BlockChecksum::None | BlockChecksum::Open(_) => Ok(()),
            BlockChecksum::Inline(crc) => (first..first + count).try_for_each(|index| each(index, crc)),
            BlockChecksum::Vector(vector) => {
                let (line, end) = (first / VECTOR_LINE_SECTORS, (first + count).div_ceil(VECTOR_LINE_SECTORS));
                if !store.geometry.holds_lines(vector.nth(line), end - line) {
                    return Err(damaged(owner, vector, "vector"));
                }
                let mut index = first;
                store.raw_lines(Structure::Mapping, vector.nth(line), end - line, |_, line| {
                    let line_end = (index / VECTOR_LINE_SECTORS + 1) * VECTOR_LINE_SECTORS;
                    while index < line_end.min(first + count) {
                        each(index, vector_checksum(line, index))?;
                        index += 1;
                    }
                    Ok(())
                })
            }
        }
    }

    /// Frees all space of the block, for the transaction that drops it.
    pub(crate) fn free_all(&self, tx: &mut Tx<'_>, store: &LineStore) {
        for log in self.logs() {
            tx.free(space::slot(log.address, log.class.lines()));
        }
        if let Some(leaf) = self.leaf {
            tx.free(space::region(Region::Leaves, leaf.address, leaf.lines()));
        }
        self.free_base(tx);
        self.free_vector(tx, store);
    }

    /// Frees its base, without the checksum vector.
    fn free_base(&self, tx: &mut Tx<'_>) {
        match self.base {
            Base::Hole | Base::Lost(_) => {}
            Base::Unwritten(run) | Base::Written(run) => tx.free(space::data(run.at, run.count.into())),
        }
    }

    /// Frees only the checksum vector.
    fn free_vector(&self, tx: &mut Tx<'_>, store: &LineStore) {
        if let Some(vector) = self.checksum().vector() {
            tx.free(space::region(Region::Leaves, vector, vector_lines_taken(store)));
        }
    }

    /// First line and number of lines of its leaf.
    pub(crate) fn leaf_lines(&self) -> Option<(LineAddress, u64)> {
        self.leaf.map(|leaf| (leaf.address, leaf.lines()))
    }

    /// The first lines of the leaf and of the vector in a record, which [`Block::relocate`] can move.
    pub(crate) fn relocatable(record: &Record) -> impl Iterator<Item = LineAddress> {
        let (leaf, extent) = match record {
            Record::Block { leaf, extent } => (*leaf, *extent),
            Record::Lost { leaf, .. } => (*leaf, None),
            Record::SingleLog(_) | Record::Run(_) | Record::Memory(_) | Record::Pointer { .. } => (None, None),
        };
        let vector = extent.and_then(|extent| extent.checksum.vector());
        leaf.map(|leaf| leaf.address).into_iter().chain(vector)
    }

    /// First line and number of lines of the checksum vector of its written sectors, if any.
    pub(crate) fn vector_lines(&self) -> Option<(LineAddress, u64)> {
        let Base::Written(written) = self.base else { return None };
        if self.base.is_open() {
            return None; // its content means nothing
        }
        Some((written.vector()?, u64::from(written.count).div_ceil(VECTOR_LINE_SECTORS)))
    }

    /// Visits each range of lines or sectors that the block uses, for recovery's maps.
    pub(crate) fn each_space(
        &self,
        store: &LineStore,
        mut visit: impl FnMut(Option<Region>, LineAddress, u64) -> bool,
    ) -> (bool, Option<DataRun>) {
        let mut all = true;
        for log in self.logs() {
            all &= visit(None, log.address, log.class.lines());
        }
        if let Some(leaf) = self.leaf {
            all &= visit(Some(Region::Leaves), leaf.address, leaf.lines());
        }
        if let Some(vector) = self.checksum().vector() {
            all &= visit(Some(Region::Leaves), vector, vector_lines_taken(store));
        }
        (all, self.base.run())
    }

    /// Puts the block's new state into a transaction: `logs` over the new base. Frees slots of dropped logs and replaced sectors; `tx` must
    /// have taken the slots of new logs. Returns the number of mapping pages added.
    #[expect(clippy::too_many_arguments, reason = "one call for each block of a transaction, all of them different things")]
    pub(crate) fn replace(
        &self,
        tx: &mut Tx<'_>,
        volume: &Volume,
        owner: Owner,
        root: &mut RecordBytes,
        block: u64,
        base: BaseChange,
        logs: &LogSlots,
        need: Need,
    ) -> Result<u64> {
        for (old, same_slot) in self.logs.iter().zip(logs) {
            let Some(old) = old else { continue };
            let is_it = |new: &LogEntry| new.address == old.address;
            // Most logs stay in their slot; a log can also move to another slot.
            if !same_slot.as_ref().is_some_and(is_it) && !logs.iter().flatten().any(is_it) {
                tx.free(space::slot(old.address, old.class.lines()));
            }
        }
        let base = match base {
            BaseChange::New(new) => {
                self.free_base(tx);
                Base::Written(self.replace_checksums(tx, volume, new, need)?)
            }
            BaseChange::Fill(new) => {
                if let DataAddress::Sector(sector) = new.at {
                    volume.memory.spare_pages.forget(&volume.memory, sector, new.count.into());
                }
                Base::Written(self.replace_checksums(tx, volume, new, need)?)
            }
            BaseChange::To(Base::Lost(bytes)) if logs.iter().flatten().map(|log| log.length).sum::<u32>() == bytes => Base::Hole, // [BL5]
            BaseChange::To(Base::Written(run)) if run.overlaid && *logs != self.logs && !on(Mutant::OverlaidByOthers) => {
                Base::Written(run.opened()) // [BL7]
            }
            BaseChange::To(base) => base,
        };
        let count = logs.iter().flatten().count();
        let single = match (base, count) {
            (Base::Hole, 1) => logs.iter().flatten().next(),
            _ => None,
        };
        let leaf = if count == 0 || single.is_some() {
            if let Some(old) = self.leaf {
                tx.free(space::region(Region::Leaves, old.address, old.lines()));
            }
            None
        } else {
            Some(self.replace_leaf(tx, volume, owner, logs, need)?)
        };
        let record = match single {
            Some(entry) => Record::SingleLog(*entry), // [BL3]
            None => base.record(leaf),
        };
        if record == Record::HOLE {
            tree::clear(tx, owner, root, &(block..block + 1))?;
            return Ok(0);
        }
        if record == self.record() {
            return Ok(0); // only a log changed in a leaf that stays: the most frequent write
        }
        tree::set(tx, volume, owner, root, block, record, need)
    }

    /// Its current record.
    fn record(&self) -> Record {
        match (self.base, self.leaf, self.logs().next()) {
            (Base::Hole, None, Some(single)) => Record::SingleLog(*single), // [BL3]
            (base, leaf, _) => base.record(leaf),
        }
    }

    /// Unwritten sectors or pages that replace the block's base, with their vector ([BL4]). The old ones are freed. `zones`: where they
    /// come from, and where if that is full.
    pub(crate) fn reserve(
        &self,
        tx: &mut Tx<'_>,
        volume: &Volume,
        zones: (Zone, Option<Zone>),
        count: u32,
        given: Option<DataAddress>,
    ) -> Result<Base> {
        let at = given.map_or_else(|| volume.take_data_in(zones, count.into(), |_| Need::Growth), Ok)?;
        tx.took(space::data(at, count.into()));
        self.free_base(tx);
        let old_vector = self.base.run().and_then(|run| run.vector());
        let checksum = match (volume.checksums && count > 1, old_vector) {
            (false, None) => BlockChecksum::None,
            (false, Some(_)) => {
                self.free_vector(tx, volume);
                BlockChecksum::None
            }
            (true, Some(vector)) => BlockChecksum::Vector(vector),
            (true, None) => {
                let lines = vector_lines_taken(volume);
                let vector = volume.take_lines(Region::Leaves, lines, Need::Growth)?;
                tx.took(space::region(Region::Leaves, vector, lines));
                BlockChecksum::Vector(vector)
            }
        };
        Ok(Base::Unwritten(DataRun { at, count, checksum, overlaid: false }))
    }

    /// Its base cut to the first `count` sectors (fewer than it has). Frees the others, and the vector if it is no longer needed.
    pub(crate) fn cut_base(&self, tx: &mut Tx<'_>, store: &LineStore, owner: Owner, count: u32) -> Result<Base> {
        let Some(run) = self.base.run() else { return Ok(self.base) };
        assert!(count < run.count, "{count} of {} sectors", run.count);
        tx.free(space::data(run.at.nth(count.into()), u64::from(run.count - count)));
        if count == 0 {
            self.free_vector(tx, store);
            return Ok(Base::Hole);
        }
        let inline = match run.checksum {
            BlockChecksum::Vector(_) if count == 1 => {
                let crc = self.sector_checksum(store, owner, 0)?;
                self.free_vector(tx, store);
                Some(crc.map_or(BlockChecksum::None, BlockChecksum::Inline))
            }
            BlockChecksum::Open(Some(_)) if count == 1 => {
                self.free_vector(tx, store);
                Some(BlockChecksum::Open(None))
            }
            _ => None,
        };
        let cut = DataRun { count, checksum: inline.unwrap_or(run.checksum), ..run };
        Ok(match self.base {
            Base::Hole => Base::Hole,
            Base::Lost(bytes) => Base::Lost(bytes),
            Base::Unwritten(_) => Base::Written(cut).emptied(),
            Base::Written(_) => Base::Written(cut),
        })
    }

    /// Moves its leaf and its vector, as far as `wants` says so of their addresses. Returns the number of lines moved. The caller holds the
    /// block's range, and the inode's lock; it writes the inode.
    pub(crate) fn relocate(
        &self,
        tx: &mut Tx<'_>,
        owner: Owner,
        root: &mut RecordBytes,
        block: u64,
        wants: &dyn Fn(LineAddress) -> bool,
    ) -> Result<u64> {
        let volume = tx.volume();
        let (mut moved, mut leaf, mut base) = (0, self.leaf, self.base);
        if let Some(old) = self.leaf.filter(|leaf| wants(leaf.address)) {
            volume.check_object(owner, Region::Leaves, old.address, old.lines())?;
            let new = LeafPointer { address: take_to_move(tx, old.lines())?, class: old.class };
            for line in 0..new.lines() {
                let address = new.address.nth(line);
                tx.put(Structure::Mapping, address, leaf_image(volume, owner, &self.logs, line, address))?;
            }
            tx.free(space::region(Region::Leaves, old.address, old.lines()));
            (leaf, moved) = (Some(new), old.lines());
        }
        if let Base::Unwritten(run) | Base::Written(run) = &mut base
            && let Some(old) = run.vector().filter(|vector| wants(*vector))
        {
            let lines = vector_lines_taken(volume);
            volume.check_object(owner, Region::Leaves, old, lines)?;
            let new = take_to_move(tx, lines)?;
            // The vector of unwritten sectors has no content. Its lines have no checksum of their own: damage to them moves with them.
            for line in (0..volume.geometry.vector_lines()).filter(|_| matches!(self.base, Base::Written(_))) {
                let image = volume.raw_line(Structure::Mapping, old.nth(line))?;
                tx.put(Structure::Mapping, new.nth(line), image)?;
            }
            run.checksum = if self.base.is_open() { BlockChecksum::Open(Some(new)) } else { BlockChecksum::Vector(new) };
            tx.free(space::region(Region::Leaves, old, lines));
            moved += lines;
        }
        if moved > 0 {
            tree::set(tx, volume, owner, root, block, base.record(leaf), Need::Move)?;
        }
        Ok(moved)
    }

    /// The checksums of new sectors, in the old vector if there is one.
    fn replace_checksums(&self, tx: &mut Tx<'_>, volume: &Volume, new: NewExtent, need: Need) -> Result<DataRun> {
        let mut old_vector = self.base.run().and_then(|run| run.vector());
        let lines = vector_lines_taken(volume);
        let checksum = match (volume.checksums, new.count) {
            (false, _) => BlockChecksum::None,
            (true, 1) => BlockChecksum::Inline(new.checksums[0]),
            (true, _) => {
                let vector = match old_vector.take() {
                    Some(vector) => vector,
                    None => {
                        let vector = volume.take_lines(Region::Leaves, lines, need)?;
                        tx.took(space::region(Region::Leaves, vector, lines));
                        vector
                    }
                };
                for (index, line) in (0..).zip(vector_lines(&new.checksums, volume.geometry.vector_lines())) {
                    tx.put(Structure::Mapping, vector.nth(index), line)?;
                }
                BlockChecksum::Vector(vector)
            }
        };
        if let Some(vector) = old_vector {
            tx.free(space::region(Region::Leaves, vector, lines));
        }
        Ok(DataRun { at: new.at, count: new.count, checksum, overlaid: false })
    }

    /// Lines of a leaf that change at most where the block gets logs in this many slots, counted up to the last one.
    pub(crate) fn leaf_lines_for(&self, slots: usize) -> u32 {
        let class = self.leaf.map_or(0, |old| old.class).max(LeafPointer::class_for(slots));
        1 << class
    }

    fn replace_leaf(&self, tx: &mut Tx<'_>, volume: &Volume, owner: Owner, logs: &LogSlots, need: Need) -> Result<LeafPointer> {
        let class = LeafPointer::class_for(logs.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        match self.leaf {
            Some(old) if old.class >= class => {
                for line in 0..old.lines() {
                    let at = line as usize * LINE_ENTRIES;
                    if self.logs[at..at + LINE_ENTRIES] != logs[at..at + LINE_ENTRIES] {
                        let address = old.address.nth(line);
                        tx.put(Structure::Mapping, address, leaf_image(volume, owner, logs, line, address))?; // [BL2]
                    }
                }
                Ok(old)
            }
            old => {
                let new = LeafPointer { address: volume.take_lines(Region::Leaves, 1 << class, need)?, class };
                tx.took(space::region(Region::Leaves, new.address, new.lines()));
                for line in 0..new.lines() {
                    let address = new.address.nth(line);
                    tx.put(Structure::Mapping, address, leaf_image(volume, owner, logs, line, address))?;
                }
                if let Some(old) = old {
                    tx.free(space::region(Region::Leaves, old.address, old.lines()));
                }
                Ok(new)
            }
        }
    }
}

/// Data space of a block with this many sectors and these logs, in units of 512 B as the inode counts it.
pub(crate) fn space_512_of(counting: LogCounting, sectors: u32, logs: &LogSlots) -> u64 {
    counting.block_space_512(sectors, logs.iter().flatten())
}

/// Takes lines for a leaf or a vector that moves.
fn take_to_move(tx: &mut Tx<'_>, lines: u64) -> Result<LineAddress> {
    let address = tx.volume().take_lines(Region::Leaves, lines, Need::Move)?;
    tx.took(space::region(Region::Leaves, address, lines));
    Ok(address)
}

fn leaf_image(store: &LineStore, owner: Owner, logs: &LogSlots, line: u64, address: LineAddress) -> Line {
    let at = line as usize * LINE_ENTRIES;
    let mut entries = [None; LINE_ENTRIES];
    entries.copy_from_slice(&logs[at..at + LINE_ENTRIES]);
    leaf_line(&entries, &store.place(owner, address))
}

/// Lines allocated for a checksum vector, rounded up to a power of two.
fn vector_lines_taken(store: &LineStore) -> u64 {
    store.geometry.vector_lines().next_power_of_two()
}

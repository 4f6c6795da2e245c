//! Moves data logs and extents out of units that are being emptied: those of the data area (`alloc/gathering.rs`), and extents of the block
//! zone (`alloc/scattered.rs`). `compaction/` finds them.
//!
//! [GT1] A block's range is locked from the lookup to the commit (RULES R7): readers and writers keep their addresses. Nobody waits for the
//!       range; a block that is in use, or has a lease, stays.
//! [GT2] What moves is stored anew and fenced before the transaction that names it, and what it leaves is free after the commit (RULES R8).
//!       So a crash leaves one of the two, with the same bytes, and the other is free.
//! [GT3] Logs and written extents are verified first, and get the checksum of the bytes that were verified: damage stays where it is
//!       ([CO1] of `compose.rs`).
//! [GT4] A log moves alone, as it is. An extent moves with the logs over it in it, as by write-back. A run moves as one where there are as
//!       many pages in a row, else in halves, at last block by block.
//! [GT5] What the maps do not have, as a forged image may name it, stays ([CZ4] of `compaction/`).

use smallvec::SmallVec;
use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::mapping::LogEntry;
use tandemfs_format::{DataAddress, PAGE_LINES};

use super::FileView;
use super::commit::commit;
use super::compose::load_log;
use super::interface::load_slots;
use super::rewrite::Rewrite;
use super::target::{Action, Bytes, Store, Target};
use super::transfer::transfer;
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, BaseChange, Block, DataRun};
use crate::index::tree;
use crate::inodes::InCoreInode;
use crate::mutant::{Mutant, on};
use crate::space::{self, Zone};
use crate::volume::{Owner, Tx, Volume};

impl FileSystem {
    /// Moves what a block, or the run that it is in, has at addresses that `wants` to be left. Returns the number of lines that moved; `None`
    /// if the block is in use ([GT1]).
    ///
    /// # Errors
    /// `NoSpace` if there is no room in other units: what moved before has moved. `DamagedData`, `LostData`, `Damaged`: it stays ([GT3]).
    pub(crate) fn gather_block(
        &self,
        file: &InCoreInode,
        owner: Owner,
        block: u64,
        wants: &dyn Fn(DataAddress) -> bool,
    ) -> Result<Option<u64>> {
        let volume = &self.volume;
        let run_now = |view: &FileView| self.mapped(file, view, |root| tree::run_of(volume, owner, root, block));
        let run = run_now(&self.view_of(file, owner)?)?;
        let (first, last) = run.map_or((block, block), |(first, run)| (first, first + u64::from(run.blocks) - 1));
        let Some(_range) = file.ranges.try_exclusive(first, last) else { return Ok(None) };
        let view = self.view_of(file, owner)?;
        if run_now(&view)? != run {
            return Ok(None); // it was split meanwhile
        }
        if let Some((first, run)) = run {
            let lines = u64::from(run.blocks) * volume.geometry.block_sectors_each() * PAGE_LINES;
            return match (wants(DataAddress::Page(run.first)), volume.memory.has_data(run.first, lines)) {
                (false, _) => Ok(Some(0)),
                (true, true) => self.gather_blocks(file, &(first..=last).collect::<Vec<_>>()).map(Some),
                (true, false) => Err(self.not_in_maps(owner, first)),
            };
        }
        let old = self.block_of(file, &view, block)?;
        let extent = old.base.run().filter(|run| wants(run.at));
        let moved = match extent {
            Some(extent) => self.gather_extent(file, &view, block, &old, extent)?,
            None => 0,
        };
        let old = if moved > 0 { self.block_of(file, &view, block)? } else { old };
        Ok(Some(moved + self.gather_logs(file, &view, block, old, wants)?))
    }

    fn view_of(&self, file: &InCoreInode, owner: Owner) -> Result<FileView> {
        self.view(file).and_then(|view| if view.owner == owner { Ok(view) } else { Err(Error::Stale(file.number)) })
    }

    /// [GT5]
    fn not_in_maps(&self, owner: Owner, block: u64) -> Error {
        Error::DamagedData { inode: owner.inode, offset: block * u64::from(self.volume.geometry.block_bytes()) }
    }

    /// Moves blocks of a run, whose range the caller holds ([GT4]).
    fn gather_blocks(&self, file: &InCoreInode, blocks: &[u64]) -> Result<u64> {
        let each = self.volume.geometry.block_sectors_each();
        let lines = blocks.len() as u64 * each * PAGE_LINES;
        if let [block] = blocks {
            return self.rewrite_locked(file, *block, Rewrite::Gather(None)).map(|was| if was { lines } else { 0 });
        }
        match self.volume.memory.take_extent(blocks.len() as u64 * each, Need::Move) {
            Ok(page) => self.rewrite_at(file, blocks, DataAddress::Page(page), |at| Rewrite::Gather(Some(at))).map(|()| lines),
            Err(Error::NoSpace { .. }) => {
                let (one, other) = blocks.split_at(blocks.len() / 2);
                Ok(self.gather_blocks(file, one)? + self.gather_blocks(file, other)?)
            }
            Err(error) => Err(error),
        }
    }

    /// Moves the extent of a block alone.
    fn gather_extent(&self, file: &InCoreInode, view: &FileView, block: u64, old: &Block, extent: DataRun) -> Result<u64> {
        let volume = &self.volume;
        let lines = u64::from(extent.count) * PAGE_LINES;
        if extent.at.sector().is_some_and(|sector| volume.sectors.is_in_room(sector)) {
            return Ok(0); // it leaves the room otherwise ([SE2] of `alloc/sectors.rs`)
        }
        let has_data = match extent.at {
            DataAddress::Page(page) => volume.memory.has_data(page, lines),
            DataAddress::Sector(sector) => volume.sectors.has_data(sector, extent.count.into()),
        };
        if !has_data {
            return Err(self.not_in_maps(view.owner, block));
        }
        if !matches!(old.base, Base::Unwritten(_)) {
            return self.rewrite_locked(file, block, Rewrite::Gather(None)).map(|was| if was { lines } else { 0 });
        }
        let mut tx = Tx::new(volume);
        let at = volume.take_data(Zone::of(extent.at), extent.count.into(), Need::Move)?;
        tx.took(space::data(at, extent.count.into()));
        tx.free(space::data(extent.at, extent.count.into()));
        let mut state = file.state.write()?;
        if !state.is_life_of(view.owner) {
            return Err(Error::Stale(file.number));
        }
        let mut new = state.inode.clone();
        let mut root = new.root_record();
        let base = BaseChange::To(Base::Unwritten(DataRun { at, ..extent }));
        old.replace(&mut tx, volume, view.owner, &mut root, block, base, &old.logs, Need::Transient)?;
        new.root = root.to_bytes();
        file.commit(tx, &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        Ok(lines)
    }

    /// Moves logs of a block to other slots.
    fn gather_logs(&self, file: &InCoreInode, view: &FileView, block: u64, old: Block, wants: &dyn Fn(DataAddress) -> bool) -> Result<u64> {
        let volume = &self.volume;
        let start = block * u64::from(volume.geometry.block_bytes());
        let mut tx = Tx::new(volume);
        let (mut lines, mut stores) = (0, SmallVec::new());
        for (slot, log) in old.logs.iter().enumerate() {
            let Some(log) =
                log.filter(|log| wants(DataAddress::Page(log.address)) && volume.memory.has_data(log.address, log.class.lines()))
            else {
                continue;
            };
            let mut bytes = vec![0; log.length as usize];
            load(volume, view.owner, start, &log, &mut bytes)?;
            let address = volume.memory.take_slot(log.class, Need::Move)?;
            tx.took(space::slot(address, log.class.lines()));
            stores.push(Store { slot, entry: LogEntry { address, ..log }, skip: 0, bytes: Bytes::Owned(bytes) });
            lines += log.class.lines();
        }
        if stores.is_empty() {
            return Ok(0);
        }
        let (slots, base) = (old.logs, old.base);
        let mut targets = [Target::changed(block, old, Action::Logs { merges: 0, slots, stores, base })];
        let update = volume.updates.of_cold(lines as usize * tandemfs_format::LINE_BYTES);
        let durable = transfer(volume, update, &mut targets).inspect_err(|error| {
            if matches!(error, Error::Device(_)) {
                tx.suspect();
            }
        })?;
        commit(tx, file, &mut targets, durable, |_| {})?;
        self.note_opened(file.number, &targets[0].old);
        Ok(lines)
    }
}

/// Loads a log and verifies it ([GT3]). The bug: it is not verified.
fn load(volume: &Volume, owner: Owner, at: u64, log: &LogEntry, into: &mut [u8]) -> Result<()> {
    match on(Mutant::GatheredUnverified) {
        true => load_slots(volume, tandemfs_device::Structure::DataLog, log.address, into),
        false => load_log(volume, owner.inode, at, log, into),
    }
}

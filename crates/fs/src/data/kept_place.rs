//! Write-back in place: data logs over an aligned extent are copied home, so that small overwrites leave a file as aligned as it was
//! (WineFS §3.4: the data journal is the data log).
//!
//! [KP1] A block *keeps its place* if its pages lie in their 2 MiB of the memory zone where its bytes lie in theirs of the file: only there
//!       does one huge page map it with its neighbours. Overwrites of less than 64 KiB of such blocks are data logs, also of whole blocks
//!       (`policy.rs`), and their write-back is in place. Longer ones, and blocks elsewhere, go to fresh pages; a file
//!       with the hint is made whole again behind them ([AS3] of `grown.rs`).
//! [KP2] First everything is verified that the new checksums are made of: the pages below the logs, and the logs (RULES R10). One transaction
//!       then moves the checksums of the pages below logs to what these hold *with the logs over them*, and the record says so (it is
//!       *overlaid*); the logs stay. Only their bytes are stored home, and fenced: whatever of that is durable, a page with the logs over it is
//!       the same, and has that checksum. A second transaction drops the logs and the mark, and leaves the checksums.
//! [KP3] So no page is without a checksum at any instant. A crash between leaves an overlaid block. It reads the same: whoever verifies one of its
//!       pages lays the logs over a copy first (`compose.rs` [CO1]). No replay copies anything.
//! [KP4] Where an overwrite finds no entry in the leaf, the block is written back first. Where it finds no slot, its logs take the transient
//!       room, and the block is written back before the call ends: so the room is there for the next overwrite too.
//! [KP5] Other logs over such pages would leave them without a checksum ([BL7] of `index/block.rs`). So before a mount serves anything it ends
//!       the copies that a crash interrupted: stores the logs' bytes again, and drops logs and mark. It verifies no page: one that was
//!       damaged has no fitting checksum after it either.

use std::collections::BTreeMap;

use tandemfs_device::{Fenced, Flushed, Lines, Structure};
use tandemfs_format::{DataAddress, InodeNumber, LINE_BYTES, LineAddress, PAGE_BYTES, UNIT_BYTES};

use super::FileView;
use super::commit::commit;
use super::compose::{load_log, verify_sectors};
use super::log_plan;
use super::target::{Action, Target};
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, BaseChange, Block, DataRun};
use crate::inodes::InCoreInode;
use crate::mutant::{Mutant, on};
use crate::statistics::{add, count};
use crate::volume::{Tx, Volume};

const PAGE: u64 = PAGE_BYTES as u64;

/// The first page of a block that keeps its place ([KP1]).
pub(super) fn kept_place(volume: &Volume, base: &Base, block: u64) -> Option<LineAddress> {
    let Base::Written(DataRun { at: DataAddress::Page(page), .. }) = base else { return None };
    let in_file = block * u64::from(volume.geometry.block_bytes()) % UNIT_BYTES;
    (page.offset_bytes() % UNIT_BYTES == in_file && !on(Mutant::PlacesLost)).then_some(*page)
}

/// The bytes of a log, and where they lie in the block.
type Bytes = (u64, Vec<u8>);

impl FileSystem {
    /// Writes back the blocks of an overwrite that keep their place and have no entries left for it ([KP4]). The caller holds them.
    pub(super) fn make_entries(&self, file: &InCoreInode, view: &FileView, targets: &mut [Target<'_>]) -> Result<()> {
        if on(Mutant::EntriesNotMade) {
            return Ok(());
        }
        for target in targets {
            if target.old.has_logs()
                && kept_place(&self.volume, &target.old.base, target.block).is_some()
                && log_plan::plan(&target.old.logs, &target.parts).is_none()
                && self.write_back_in_place(file, view, target.block)?
            {
                target.old = self.block_of(file, view, target.block)?;
            }
        }
        Ok(())
    }

    /// Copies the logs of a block home, if it keeps its place and has all of them over its pages. False, with no change, if not. The caller
    /// holds it, and nobody has it mapped.
    pub(super) fn write_back_in_place(&self, file: &InCoreInode, view: &FileView, number: u64) -> Result<bool> {
        let (volume, old) = (&self.volume, self.block_of(file, view, number)?);
        let Some(first) = kept_place(volume, &old.base, number).filter(|_| old.has_logs()) else { return Ok(false) };
        if old.logs().any(|log| log.end() > old.base.bytes()) {
            return Ok(false);
        }
        let logs = self.logs_of(view, number, &old)?;
        if volume.checksums && !old.base.is_open() && !old.base.is_overlaid() {
            self.overlay(file, view, number, first, &logs)?;
        }
        if let Err(error) = self.retire(file, view, number, first, &logs) {
            self.unchecked.lock().add(file.number); // the logs are there still; who changes them opens the block
            return Err(error);
        }
        count(&volume.live.work.kept_places);
        Ok(true)
    }

    /// The bytes of a block's logs, verified.
    fn logs_of(&self, view: &FileView, number: u64, block: &Block) -> Result<Vec<Bytes>> {
        let start = number * u64::from(self.volume.geometry.block_bytes());
        let logs = block.logs().map(|log| {
            let mut bytes = vec![0; log.length as usize];
            load_log(&self.volume, view.owner.inode, start, log, &mut bytes).map(|()| (u64::from(log.offset), bytes))
        });
        logs.collect()
    }

    /// Moves a block's checksums to its pages with the logs over them ([KP2]).
    fn overlay(&self, file: &InCoreInode, view: &FileView, number: u64, first: LineAddress, logs: &[Bytes]) -> Result<()> {
        let volume = &self.volume;
        let old = self.block_of(file, view, number)?;
        let start = number * u64::from(volume.geometry.block_bytes());
        let checksums = self.checksums_below(view, start, &old, first, logs)?;
        if on(Mutant::CopiedUnmarked) {
            return Ok(());
        }
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let (mut tx, mut new, mut root) = (Tx::new(volume), state.inode.clone(), state.root());
        let Base::Written(run) = old.with_checksums(&mut tx, volume, view.owner, &checksums)? else { return Ok(()) };
        let base = BaseChange::To(Base::Written(DataRun { overlaid: true, ..run }));
        old.replace(&mut tx, volume, view.owner, &mut root, number, base, &old.logs, Need::Transient)?;
        new.root = root.to_bytes();
        file.commit_moved(tx, &mut state, new, Fenced::nothing_stored())
    }

    /// Stores the logs' bytes home, then drops the logs and the mark.
    fn retire(&self, file: &InCoreInode, view: &FileView, number: u64, first: LineAddress, logs: &[Bytes]) -> Result<()> {
        let volume = &self.volume;
        let start = number * u64::from(self.volume.geometry.block_bytes());
        let fenced = self.copy_home((file.number, start), first, logs)?;
        let overlaid = self.block_of(file, view, number)?;
        let base = match overlaid.base {
            Base::Written(run) => Base::Written(DataRun { overlaid: false, ..run }),
            other => other,
        };
        let lines: u64 = overlaid.logs().map(|log| log.class.lines()).sum();
        let action = Action::Logs { merges: 0, slots: Block::HOLE.logs, stores: Default::default(), base };
        let mut targets = [Target::changed(number, overlaid, action)];
        commit(Tx::new(volume), file, &mut targets, (fenced, Flushed::nothing_written()), |_| {})?;
        add(&volume.live.work.write_back_freed_bytes, lines * LINE_BYTES as u64);
        Ok(())
    }

    /// Ends the copies of these files that a crash interrupted ([KP5]). What of them is damaged stays, and shows when it is read.
    ///
    /// # Errors
    /// Of the whole file system alone.
    pub(crate) fn end_copies<'n>(&self, files: impl Iterator<Item = &'n InodeNumber>) -> Result<()> {
        for number in files {
            match self.end_copies_of(*number) {
                Err(error @ (Error::Stopped { .. } | Error::ReadOnly)) => return Err(error),
                Err(error) => tracing::warn!(inode = number.get(), %error, "data logs that were being copied stay over their pages"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn end_copies_of(&self, number: InodeNumber) -> Result<()> {
        let file = self.inodes.get(&self.volume, number)?;
        let _range = file.ranges.exclusive(0, u64::MAX)?;
        let view = self.view(&file)?;
        for block in self.overlaid_blocks(&file)? {
            let old = self.block_of(&file, &view, block)?;
            let Base::Written(DataRun { at: DataAddress::Page(first), .. }) = old.base else { continue };
            let logs = self.logs_of(&view, block, &old)?;
            self.retire(&file, &view, block, first, &logs)?;
        }
        Ok(())
    }

    /// The checksums that the pages below logs have with the bytes of the logs; nothing without checksums. What of them the logs do not cover
    /// is verified.
    fn checksums_below(&self, view: &FileView, start: u64, old: &Block, first: LineAddress, logs: &[Bytes]) -> Result<BTreeMap<u64, u32>> {
        let (volume, mut checksums) = (&self.volume, BTreeMap::new());
        if !volume.checksums || on(Mutant::KeptChecksumsOld) {
            return Ok(checksums);
        }
        let mut page = vec![0; PAGE_BYTES];
        for index in logs.iter().flat_map(|(at, bytes)| at / PAGE..(at + bytes.len() as u64).div_ceil(PAGE)) {
            if checksums.contains_key(&index) {
                continue;
            }
            let (from, to) = (index * PAGE, (index + 1) * PAGE);
            let inside = |(at, bytes): &Bytes| (*at).max(from)..(at + bytes.len() as u64).min(to);
            let covered: u64 = logs.iter().map(inside).map(|inside| inside.end.saturating_sub(inside.start)).sum();
            if covered < PAGE {
                volume.drive.load(Structure::Data, first.nth(from / LINE_BYTES as u64), &mut page)?;
                if !on(Mutant::CopiedUnverified) {
                    verify_sectors(volume, view.owner, start, old, index, page[..].into())?;
                }
            }
            for log @ (at, bytes) in logs {
                let inside = inside(log);
                if inside.start < inside.end {
                    let of_log = (inside.start - at) as usize..(inside.end - at) as usize;
                    page[(inside.start - from) as usize..(inside.end - from) as usize].copy_from_slice(&bytes[of_log]);
                }
            }
            checksums.insert(index, volume.data_checksum(&page));
        }
        Ok(checksums)
    }

    fn copy_home(&self, (file, start): (InodeNumber, u64), first: LineAddress, logs: &[Bytes]) -> Result<Fenced> {
        let drive = &self.volume.drive;
        let mut in_flight = Lines::none();
        for (in_block, bytes) in logs {
            let at = first.offset_bytes() + in_block;
            let (line, skip) = (LineAddress::new(at / LINE_BYTES as u64), at % LINE_BYTES as u64);
            if on(Mutant::KeptHomeNotFenced) {
                let _dirty = drive.store_within(Structure::Data, line, skip, bytes)?;
            } else {
                let update = self.volume.updates.of_move(file, start + in_block, bytes.len());
                in_flight = in_flight.and(self.volume.store_data(update, Structure::Data, (line, skip), bytes)?);
            }
            add(&self.volume.live.work.home_written_bytes, bytes.len() as u64);
        }
        Ok(drive.fence(in_flight))
    }
}

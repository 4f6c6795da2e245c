//! Writes by calls to blocks that are mapped (WineFS §3.4: the data journal is the data log).
//!
//! [MW1] The bytes get to the block's own pages: what is mapped stays where it is (`mapped.rs` [FM2]), and its mappings see them.
//! [MW2] They are data logs first, by one transaction, which makes the call atomic like any write. Then they are copied home, flushed and
//!       fenced, and a second transaction drops the logs, all before the call is answered: no replay undoes a store that a program made
//!       through a mapping after it. A crash between leaves logs over the block, which nobody maps any more.
//! [MW3] Only the written bytes are copied, so stores to others of the same line are not undone. Stores to the same bytes while the call runs
//!       may be lost, or may be found beside its bytes: programs order what they share.
//! [MW4] Pages that change so are open (`open_pages.rs` [OG1]), also where they are mapped for loads alone: then they are opened for the call
//!       and closed before it ends, also if it fails. What cannot be closed then is noted as unchecked.
//! [MW5] A piece is at most what the logs of one block hold at any offset, so a longer write is several transactions. It does not move the end
//!       of the file, which has grown before ([MC6] of `mapped_change.rs`); if a truncation or a mapping comes between, it begins anew. Its
//!       logs take the transient room, since they go at once.
//! [MW6] If a copy home fails (a bad line, a host without space), the call fails and the logs stay: reads have its bytes, the mappings may not.
//!       Nobody makes up for it while the block is mapped, as programs may have stored to the same bytes since. Who has to change the block
//!       or maps it once more is refused (`Mapped`). A truncation takes the logs behind the new end away.

use std::sync::Arc;

use smallvec::SmallVec;
use tandemfs_device::{Fenced, Flushed, Lines, Source, Structure};
use tandemfs_format::{DataAddress, LINE_BYTES, LineAddress};

use super::commit::{commit, touch};
use super::log_plan::Part;
use super::plan::{Planner, split};
use super::policy::WritePolicy;
use super::target::{Action, Target, Targets};
use super::transfer::transfer;
use super::write_path::Call;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, Block, DataRun};
use crate::inodes::InCoreInode;
use crate::inodes::range_lock::Pinning;
use crate::mutant::{Mutant, on};
use crate::statistics::count;
use crate::types::WriteOptions;
use crate::volume::Tx;

/// Most bytes of a piece ([MW5]): eight pages, which are nine data logs at most.
pub(super) const PIECE_BYTES: u64 = 32 << 10;

impl FileSystem {
    /// Writes the first bytes of a range where blocks are mapped, or are mapped behind it. `later` are those that the same call writes after
    /// `data`. An append takes bytes for both. Returns where the range begins, and how much was written: 0 if it is to be tried again. What the call has
    /// grown the file by is the caller's to take back.
    pub(super) fn write_beside_pins(
        &self,
        file: &Arc<InCoreInode>,
        offset: u64,
        (data, later): (Source<'_>, Source<'_>),
        options: WriteOptions,
        call: &Call<'_, '_>,
    ) -> Result<(u64, usize)> {
        if !options.append {
            self.with_room(|| self.grow_for_write(file, Some(offset), data.len() as u64, &call.grown))?;
            let written = self.with_room(|| self.write_around_pins(file, offset, data, options, call))?;
            return Ok((offset, written));
        }
        let length = (data.len() + later.len()) as u64;
        let Some(start) = self.with_room(|| self.grow_for_write(file, None, length, &call.grown))? else { return Ok((offset, 0)) };
        let inside = WriteOptions { append: false, ..options };
        let write = || match self.write_around_pins(file, start, data, inside, call) {
            Ok(0) => self.write_piece(file, start, (data, later), inside, call).map(|_| data.len()),
            other => other,
        };
        Ok((start, self.with_room(write)?))
    }

    /// Writes the first bytes of a range of which some blocks are mapped: up to the first of them, or to mapped ones. Returns their number; 0
    /// if none is mapped any more.
    pub(super) fn write_around_pins(
        &self,
        file: &Arc<InCoreInode>,
        offset: u64,
        data: Source<'_>,
        options: WriteOptions,
        call: &Call<'_, '_>,
    ) -> Result<usize> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let (first, last) = (offset / block_bytes, (offset + data.len() as u64 - 1) / block_bytes);
        let pins = file.ranges.pins(first, last);
        let Some(next) = pins.iter().map(|pin| pin.first.max(first)).min() else { return Ok(0) };
        if next > first {
            let before = data.slice(0..(next * block_bytes - offset) as usize);
            return match self.write_piece(file, offset, (before, [].as_slice().into()), options, call) {
                Err(Error::Mapped) if !on(Mutant::MetMidwayFails) => Ok(0), // [MW5]: a truncation or a mapping came between
                other => other.map(|_| before.len()),
            };
        }
        let mut end = first + 1;
        while pins.iter().any(|pin| pin.first <= end && end <= pin.last) {
            end += 1;
        }
        let most = (end * block_bytes - offset).min(PIECE_BYTES - offset % PIECE_BYTES);
        let piece = data.slice(0..data.len().min(most as usize));
        // The log and the pages get the same bytes, whatever others do to shared ones meanwhile.
        let mut copy = Vec::new();
        let bytes = piece.stable(&mut copy);
        self.write_to_pinned(file, offset, bytes, options).map(|was| if was { bytes.len() } else { 0 })
    }

    /// Writes to blocks that are all mapped; false if they are not any more.
    fn write_to_pinned(&self, file: &InCoreInode, offset: u64, data: &[u8], options: WriteOptions) -> Result<bool> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let end = offset + data.len() as u64;
        let blocks = offset / block_bytes..end.div_ceil(block_bytes);
        let _range = file.ranges.exclusive_to_map(blocks.start, blocks.end - 1)?;
        let pins = file.ranges.pins(blocks.start, blocks.end - 1);
        let pinning = |block: &u64| Pinning::of(&pins, *block);
        if blocks.clone().any(|block| pinning(&block) == Pinning::None) || end > self.view(file)?.size {
            return Ok(false); // [MW5]: if a truncation came between, it grows again
        }
        let to_close: Vec<u64> = blocks.filter(|block| pinning(block) == Pinning::Loads).collect();
        self.write_pieces_home(file, offset, data, options, &to_close).map(|()| true)
    }

    /// Writes a piece inside the file to blocks that are all mapped, some of them, `to_close`, for loads alone ([MW4]). The caller holds them.
    pub(super) fn write_pieces_home(
        &self,
        file: &InCoreInode,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
        to_close: &[u64],
    ) -> Result<()> {
        file.pages.forget(offset, offset + data.len() as u64);
        self.with_open(file, to_close, || self.log_and_copy(file, offset, data, options))
    }

    /// Changes pages of blocks that are mapped for loads alone: they are open meanwhile, and closed again whether that fails or not ([MW4]).
    /// The caller holds them.
    pub(super) fn with_open(&self, file: &InCoreInode, blocks: &[u64], change: impl FnOnce() -> Result<()>) -> Result<()> {
        let opened = blocks.iter().try_for_each(|block| self.open_blocks(file, *block..*block + 1));
        let changed = opened.and_then(|()| change());
        if changed.is_err() && on(Mutant::FailedStaysOpen) {
            return changed;
        }
        for block in blocks {
            if let Err(error) = self.close_blocks(file, *block..*block + 1, false) {
                self.unchecked.lock().add(file.number);
                tracing::warn!(inode = file.number.get(), %error, block, "mapped pages have no checksums until they are closed");
            }
        }
        changed
    }

    /// [MW2]
    fn log_and_copy(&self, file: &InCoreInode, offset: u64, data: &[u8], options: WriteOptions) -> Result<()> {
        let (volume, end) = (&self.volume, offset + data.len() as u64);
        let (view, policy) = (self.view(file)?, WritePolicy::by_logs(&self.settings, volume.geometry.block_bytes()));
        let mut tx = Tx::new(volume);
        let mut targets = Targets::new();
        self.mapped(file, &view, |root| split(volume, &view, root, (offset, data.into()), &[], &mut targets))?;
        let copies = targets.iter().map(copies_of).collect::<Result<SmallVec<[_; 2]>>>()?;
        Planner::new(volume, &view, &policy, offset..end, view.size).with_transient_logs().plan_all(&mut tx, &mut targets)?;
        if !targets.iter().all(|target| matches!(target.action, Action::Logs { .. })) {
            return Err(Error::NoSpace { zone: "memory" }); // no slots, and a mapped block cannot go elsewhere
        }
        let update = volume.updates.of_write(file.number, offset, data.len());
        let durable = tx.suspect_if_failed(transfer(volume, update, &mut targets))?;
        let copy_home = || -> Result<_> {
            let mut in_flight = Lines::none();
            for (at, bytes) in copies.iter().flatten() {
                let (line, skip) = (LineAddress::new(at / LINE_BYTES as u64), at % LINE_BYTES as u64);
                in_flight = in_flight.and(volume.store_data(update, Structure::Data, (line, skip), bytes)?); // [MW3]
            }
            Ok(volume.drive.fence(in_flight))
        };
        if on(Mutant::MappedHomeFirst) {
            drop(copy_home()?);
        }
        commit(tx, file, &mut targets, durable, |inode| touch(inode, options))?;
        let fenced = if on(Mutant::MappedHomeForgotten) { Fenced::nothing_stored() } else { copy_home()? };
        let mut without_logs = targets
            .iter()
            .map(|target| {
                let old = self.block_of(file, &view, target.block)?;
                let action = Action::Logs { merges: 0, slots: Block::HOLE.logs, stores: SmallVec::new(), base: old.base };
                Ok(Target::changed(target.block, old, action))
            })
            .collect::<Result<Vec<_>>>()?;
        commit(Tx::new(volume), file, &mut without_logs, (fenced, Flushed::nothing_written()), |_| {})?;
        count(&volume.live.work.mapped_writes);
        Ok(())
    }
}

/// Pieces of a write, and where in the memory zone they belong, in bytes.
type Copies<'d> = SmallVec<[(u64, &'d [u8]); 2]>;

/// Where the bytes of a mapped block belong.
fn copies_of<'d>(target: &Target<'d>) -> Result<Copies<'d>> {
    let Base::Written(DataRun { at: DataAddress::Page(page), .. }) = target.old.base else { return Err(Error::Mapped) };
    if target.old.has_logs() {
        return Err(Error::Mapped); // a copy home failed before
    }
    let copy_of = |part: &Part<'d>| part.data.private().map(|bytes| (page.offset_bytes() + u64::from(part.offset), bytes));
    let copies = target.parts.iter().map(copy_of).collect::<Option<_>>();
    let Some(copies) = copies else { unreachable!("they were copied to private memory") };
    Ok(copies)
}

//! A block written anew without new data: its logs and sectors become other sectors, in one transaction (RomeFS §3.5.2).

use smallvec::SmallVec;
use tandemfs_format::SECTOR_BYTES;
use tandemfs_format::inode::state;

use super::compose::compose;
use super::write_path::{Action, Bytes, Target, transfer};
use crate::alloc::Need;
use crate::index::block::{Block, NewExtent};
use crate::journal::{Tx, tx_space as space};
use crate::namespace::inodes::Handle;
use crate::statistics::count;
use crate::{Error, FileSystem, Result};

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

impl FileSystem {
    /// Write-back of a block: its logs and sectors become new sectors, in one transaction (RomeFS §3.5.2). True where it had logs.
    pub(crate) fn write_back_block(&self, handle: &Handle, block: u64) -> Result<bool> {
        self.rewrite_block(handle, block, Rewrite::WriteBack)
    }

    pub(super) fn rewrite_block(&self, handle: &Handle, block: u64, why: Rewrite) -> Result<bool> {
        let _range = handle.ranges.exclusive(block, block);
        self.rewrite_locked(handle, block, why)
    }

    /// The same for a caller that has the range locked.
    pub(super) fn rewrite_locked(&self, handle: &Handle, block: u64, why: Rewrite) -> Result<bool> {
        let volume = &self.volume;
        let block_bytes = u64::from(volume.geometry.block_bytes());
        let view = self.view(handle)?;
        let old = Block::lookup(volume, view.owner, view.root, block)?;
        let count_before = old.extent.map_or(0, |extent| extent.count);
        let start = block * block_bytes;
        let inside = view.size.saturating_sub(start).min(block_bytes) as usize;
        let whole = (inside.div_ceil(SECTOR_BYTES) as u32).max(count_before);
        let (wanted, sectors) = match why {
            Rewrite::WriteBack => (old.has_logs(), whole),
            // What it has now and no more: that is what the hole which it left holds.
            Rewrite::MoveOut => (old.extent.is_some_and(|extent| volume.sectors.is_lent(extent.sector)), count_before),
            Rewrite::Lengthen(sectors) => (count_before < sectors, whole.max(sectors)),
        };
        if !wanted {
            return Ok(false);
        }
        let length = sectors as usize * SECTOR_BYTES;
        let mut tx = Tx::new(volume);
        let mut bytes = vec![0; length];
        compose(volume, view.owner, start, &old, &mut bytes)?;
        bytes[inside.min(length)..].fill(0);
        let gives_back = count_before >= sectors;
        let own = old.extent.filter(|extent| extent.unwritten && gives_back); // [B4]
        let sector = match (own, why) {
            (Some(own), _) => own.sector,
            // A whole block that takes one from the room gives one back; the end of a file would leave it in pieces.
            (None, Rewrite::WriteBack) if gives_back && u64::from(sectors) == volume.geometry.block_sectors_each() => {
                volume.sectors.take(sectors.into(), Need::Transient)?
            }
            (None, Rewrite::WriteBack | Rewrite::Lengthen(_)) if !gives_back => volume.sectors.take(sectors.into(), Need::Growth)?,
            _ => volume.sectors.take_outside_room(sectors.into()).ok_or(Error::NoSpace { zone: "block" })?,
        };
        if own.is_none() {
            tx.took(space::sectors(sector, sectors.into()));
        }
        let extent = NewExtent { sector, count: sectors, checksums: SmallVec::new() };
        let kept = old.logs.map(|slot| slot.filter(|log| log.end() as usize > length));
        let action = Action::Sectors { extent, fill: own.is_some(), bytes: Bytes::Owned(bytes), kept };
        let mut targets = [Target { block, old, parts: SmallVec::new(), action }];
        let (fenced, flushed) = tx.suspect_if_failed(transfer(volume, &mut targets))?;
        self.commit_write(tx, handle, &mut targets, fenced, flushed, |inode| {
            if start + length as u64 >= inode.size {
                inode.state &= !state::TAIL_STALE;
            }
        })?;
        count(&volume.live.work.block_write_backs);
        Ok(true)
    }
}

//! Finds data and holes from the mapping. Written sectors, data logs and what is lost are data, rounded to whole sectors. Holes, unwritten
//! sectors and the range beyond the end of the file are holes. Also tells whether a write to a range needs more space.

use std::ops::ControlFlow;

use tandemfs_format::inode::file_type;
use tandemfs_format::{InodeNumber, SECTOR_BYTES};

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::Block;
use crate::index::tree::{self, Found};
use crate::statistics::counted;
use crate::types::SeekTo;

const SECTOR: u64 = SECTOR_BYTES as u64;

impl FileSystem {
    /// The first offset from `offset` on that is data, or that is in a hole; the end of the file counts as a hole. `None` if there is none,
    /// or if `offset` is not inside the file.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not a regular file.
    pub fn seek(&self, number: InodeNumber, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        let _counted = counted(&self.volume.live.operations.lseek);
        self.seek_and_size(number, offset, to).map(|(found, _)| found)
    }

    /// As [`FileSystem::seek`], with the size that the file had then.
    pub(super) fn seek_and_size(&self, number: InodeNumber, offset: u64, to: SeekTo) -> Result<(Option<u64>, u64)> {
        let file = self.inodes.get(&self.volume, number)?;
        self.note_stores(&file)?; // [LR4] of `lent_room.rs`
        // The inode's lock protects the mapping; no data is read.
        let state = file.state.read()?;
        if state.removed {
            return Err(Error::Stale(number));
        }
        if state.inode.file_type() != file_type::REGULAR {
            return Err(Error::InvalidArgument("only regular files have holes"));
        }
        let size = state.inode.size;
        if offset >= size {
            return Ok((None, size));
        }
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let owner = state.owner(number);
        let mut at = offset; // where a hole would start
        let blocks = offset / block_bytes..size.div_ceil(block_bytes);
        let ended = tree::walk_range(&self.volume, owner, state.root(), blocks, &mut |found| {
            let (first, ranges) = match found {
                Found::Page { .. } | Found::Run(..) => return Ok(ControlFlow::Continue(())),
                Found::Lost(blocks) => (blocks.start * block_bytes, vec![(0, (blocks.end - blocks.start) * block_bytes)]),
                Found::Block(block, record) => {
                    let found = Block::of_record(&self.volume, owner, record)?;
                    (block * block_bytes, ranges(found.base.data_bytes(), &found))
                }
            };
            for (start, end) in ranges {
                let (start, end) = (first + start, first + end);
                if end <= at {
                    continue;
                }
                match to {
                    SeekTo::Hole if start > at => return Ok(ControlFlow::Break(())),
                    SeekTo::Hole => at = end,
                    SeekTo::Data => {
                        at = start.max(at);
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let found = match to {
            SeekTo::Hole => Some(at.min(size)),
            SeekTo::Data => Some(at).filter(|at| ended.is_break() && *at < size),
        };
        Ok((found, size))
    }

    /// Whether a write to a range of a file needs more space: some of the range has neither sectors (written or unwritten) nor data logs.
    ///
    /// # Errors
    /// `Stale`; damage of the mapping.
    pub fn needs_space(&self, number: InodeNumber, offset: u64, length: u64) -> Result<bool> {
        let file = self.inodes.get(&self.volume, number)?;
        let state = file.state.read()?;
        if state.removed {
            return Err(Error::Stale(number));
        }
        let (block_bytes, end) = (u64::from(self.volume.geometry.block_bytes()), offset.saturating_add(length));
        if length == 0 || !state.inode.has_mapping() {
            return Ok(length > 0);
        }
        let owner = state.owner(number);
        let mut at = offset; // where a gap would start
        let blocks = offset / block_bytes..end.div_ceil(block_bytes);
        let ended = tree::walk_range(&self.volume, owner, state.root(), blocks, &mut |found| {
            let (block, record) = match found {
                Found::Page { .. } | Found::Run(..) => return Ok(ControlFlow::Continue(())),
                Found::Block(block, record) => (block, record),
                Found::Lost(_) => return Ok(ControlFlow::Break(())),
            };
            let held = Block::of_record(&self.volume, owner, record)?;
            // Unwritten sectors count as space.
            for (start, end) in ranges(held.base.bytes(), &held) {
                let (start, end) = (block * block_bytes + start, block * block_bytes + end);
                if start > at {
                    return Ok(ControlFlow::Break(()));
                }
                at = at.max(end);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(ended.is_break() || at < end)
    }
}

/// The first `base_bytes` of a block and the ranges of its logs, in order and in whole sectors; they may overlap.
fn ranges(base_bytes: u32, block: &Block) -> Vec<(u64, u64)> {
    let base = (base_bytes > 0).then_some((0, u64::from(base_bytes)));
    let logs = block.logs().map(|log| (u64::from(log.offset) / SECTOR * SECTOR, u64::from(log.end()).next_multiple_of(SECTOR)));
    let mut ranges: Vec<(u64, u64)> = base.into_iter().chain(logs).collect();
    ranges.sort_unstable();
    ranges
}

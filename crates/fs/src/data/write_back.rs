//! Who gives memory-zone space back when it runs short: blocks whose data logs become sectors (RomeFS §3.5.2).
//!
//! A cursor goes round the inodes; of each file every block with logs is written back, the block of the longest logs first within the
//! file's order. It runs behind the foreground, or inside the operation that found the zone full where there is no background thread.

use tandemfs_format::InodeNumber;
use tandemfs_format::mapping::Record;

use crate::index::tree::{self, Found};
use crate::sync::EXPLORED;
use crate::{Error, FileSystem, Result};

/// Write-back stops when this much more is free than where it starts, in percent of the data area.
const ENOUGH_ABOVE_PERCENT: u64 = 5;
/// Blocks of one file that are gathered before they are written back.
const BATCH: usize = 64;

impl FileSystem {
    /// Asks the background thread to write back.
    pub(crate) fn ask_write_back(&self) {
        self.volume.journal.ask(|wake| wake.write_back = true);
    }

    /// Writes back until enough of the data area is free, at most once around all inodes. Returns the blocks written back.
    pub fn write_back(&self) -> Result<u64> {
        use crate::sync::atomic::Ordering::Relaxed;
        let limit = self.volume.memory.inode_limit();
        let enough_percent = if EXPLORED { 100 } else { u64::from(self.options.write_back_percent) + ENOUGH_ABOVE_PERCENT };
        let mut blocks = 0;
        for _ in 0..limit {
            if self.volume.memory.free_data_percent() >= enough_percent || self.stop_write_back.load(Relaxed) {
                break;
            }
            let number = self.write_back_cursor.fetch_add(1, Relaxed) % limit;
            match self.write_back_inode(InodeNumber::new(number.max(1))) {
                Ok(written) => blocks += written,
                Err(Error::Stale(_)) => {}
                // A full block zone, a damaged log: the rest may still go.
                Err(Error::NoSpace { .. } | Error::Damaged { .. } | Error::DamagedData { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(blocks)
    }

    fn write_back_inode(&self, number: InodeNumber) -> Result<u64> {
        let handle = self.inodes.get(&self.volume, number)?;
        let mut from = 0;
        let mut written = 0;
        loop {
            let candidates = {
                let state = handle.state.read();
                if state.removed || state.inode.is_directory() || !state.inode.has_mapping() {
                    return Ok(written);
                }
                let mut candidates = Vec::new();
                let owner = state.owner(number);
                tree::walk(&self.volume, owner, state.root(), from, &mut |found| {
                    if let Found::Block(block, Record::SingleLog(_) | Record::Block { leaf: Some(_), .. }) = found
                        && candidates.len() < BATCH
                    {
                        candidates.push(block);
                    }
                    Ok(())
                })?;
                candidates
            };
            let Some(last) = candidates.last().copied() else { return Ok(written) };
            for block in candidates {
                written += u64::from(self.write_back_block(&handle, block)?);
            }
            from = last + 1;
        }
    }
}

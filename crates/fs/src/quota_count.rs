//! Counting what all inodes use, and what one uses.
//!
//! [QC1] Usage is not stored: a mount with limits counts it from the metadata, before anything changes, and so does the first limit of a mount,
//!       while commits wait ([QT3] of `quota/`). So it is right whatever happened before, and a crash needs no recovery of its own.
//! [QC2] An inode whose own lines are damaged is not counted: nobody knows whose it is. Of other damaged ones everything is counted that can be
//!       found (`survey.rs`).

use tandemfs_device::Structure;
use tandemfs_format::inode::Inode;
use tandemfs_format::{InodeNumber, LineAddress, UNIT_LINES};

use crate::alloc::memory::INODE_LINES;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::inodes::InCoreInode;
use crate::quota::{Change, Ids, Table, change_of};
use crate::survey::survey;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Mutex, scan_threads};
use crate::volume::Volume;

/// Inodes that one step of a counting thread looks at.
const STEP_INODES: u64 = 4096;
/// Slots of a unit.
const UNIT_INODES: u64 = UNIT_LINES / INODE_LINES;

impl FileSystem {
    /// What all inodes use. No transaction commits meanwhile: the caller holds the journal's gate, or mounts.
    pub(crate) fn count_usage(&self) -> Result<Table> {
        let limit = self.volume.memory.inode_limit();
        let next = AtomicU64::new(0);
        let table = Mutex::new(Table::default());
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let count = || {
            loop {
                let first = next.fetch_add(STEP_INODES, Relaxed);
                if first >= limit || failure.lock().is_some() {
                    return;
                }
                match count_inodes(&self.volume, first, (first + STEP_INODES).min(limit)) {
                    Ok(found) => {
                        let mut table = table.lock();
                        found.into_iter().for_each(|(ids, usage)| table.count(ids, usage));
                    }
                    Err(error) => drop(failure.lock().get_or_insert(error)),
                }
            }
        };
        let threads = scan_threads().min(limit.div_ceil(STEP_INODES) as usize);
        if threads <= 1 {
            count();
        } else {
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(count);
                }
            });
        }
        match failure.into_inner() {
            Some(error) => Err(error),
            None => Ok(table.into_inner()),
        }
    }

    /// What an inode uses that the caller has locked.
    pub(crate) fn usage_of(&self, file: &InCoreInode) -> Result<Change> {
        Ok(usage_at(&self.volume, file.number, file.address)?.map_or([0; 3], |(_, usage)| usage))
    }
}

fn count_inodes(volume: &Volume, first: u64, end: u64) -> Result<Vec<(Ids, Change)>> {
    let mut found: Vec<(Ids, Change)> = Vec::new();
    let mut number = first.max(1); // slot 0 is no inode
    while number < end {
        let Some((address, slots)) = volume.memory.inode_slots_from(number) else {
            number = (number / UNIT_INODES + 1) * UNIT_INODES; // above the mark of its unit
            continue;
        };
        let count = slots.min(end - number);
        for index in 0..count {
            let Some((ids, usage)) = usage_at(volume, InodeNumber::new(number + index), address.nth(index * INODE_LINES))? else {
                continue;
            };
            // Most inodes beside each other have one owner.
            match found.last_mut() {
                Some((last, sum)) if *last == ids => (0..3).for_each(|resource| sum[resource] += usage[resource]),
                _ => found.push((ids, usage)),
            }
        }
        number += count;
    }
    Ok(found)
}

/// Whose an inode is and what it uses; `None` for a free slot, and for a damaged inode ([QC2]).
fn usage_at(volume: &Volume, number: InodeNumber, address: LineAddress) -> Result<Option<(Ids, Change)>> {
    let page = volume.page(Structure::Inode, address)?;
    let lines = (page.line(address), page.line(address.nth(1)));
    let Ok(Some(inode)) = Inode::decode(volume.pair, number, address, &lines.0, &lines.1) else { return Ok(None) };
    let mut usage = [0, 0, 1];
    survey(volume, number, address, (&lines.0, &lines.1), &mut |_, space| {
        let change = change_of(space);
        (0..3).for_each(|resource| usage[resource] += change[resource]);
        true
    })?;
    Ok(Some((Ids::of(&inode), usage)))
}

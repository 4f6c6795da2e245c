//! Counting what all inodes use, and what one uses.
//!
//! [QC1] Usage is not stored: a mount with limits counts it from the metadata, before anything changes, and so does the first limit of a mount,
//!       while commits wait ([QT3] of `quota/`). So it is right whatever happened before, and a crash needs no recovery of its own.
//! [QC2] An inode whose own lines are damaged, or cannot be read, is not counted: nobody knows whose it is. Of other damaged ones everything is counted
//!       that can be found (`survey.rs`).

use tandemfs_device::Structure;
use tandemfs_format::inode::{INODE_LINES, Inode};
use tandemfs_format::{InodeNumber, LineAddress};

use crate::error::Result;
use crate::file_system::FileSystem;
use crate::inode_scan::{Run, each_run};
use crate::inodes::InCoreInode;
use crate::quota::{Change, Ids, Table, add_change, change_of};
use crate::survey::survey;
use crate::sync::Mutex;
use crate::volume::Volume;

impl FileSystem {
    /// What all inodes use. No transaction commits meanwhile: the caller holds the journal's gate, or mounts.
    pub(crate) fn count_usage(&self) -> Result<Table> {
        let table = Mutex::new(Table::default());
        each_run(&self.volume, |run| {
            let found = count_inodes(&self.volume, run)?;
            let mut table = table.lock();
            found.into_iter().for_each(|(ids, usage)| table.count(ids, usage));
            Ok(())
        })?;
        Ok(table.into_inner())
    }

    /// What an inode uses that the caller has locked.
    pub(crate) fn usage_of(&self, file: &InCoreInode) -> Result<Change> {
        Ok(usage_at(&self.volume, file.number, file.address)?.map_or([0; 3], |(_, usage)| usage))
    }
}

fn count_inodes(volume: &Volume, Run { first, address, count }: Run) -> Result<Vec<(Ids, Change)>> {
    let mut found: Vec<(Ids, Change)> = Vec::new();
    // Slot 0 is no inode.
    for index in u64::from(first == 0)..count {
        let number = InodeNumber::new(first + index);
        let (ids, usage) = match usage_at(volume, number, address.nth(index * INODE_LINES)) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            Err(error) => {
                if volume.health.first_cause().is_some() {
                    return Err(error);
                }
                tracing::warn!(inode = number.get(), %error, "what an inode uses cannot be counted for quota"); // [QC2]
                continue;
            }
        };
        // Most inodes beside each other have one owner.
        match found.last_mut() {
            Some((last, sum)) if *last == ids => add_change(sum, usage),
            _ => found.push((ids, usage)),
        }
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
        add_change(&mut usage, change_of(space));
        true
    })?;
    Ok(Some((Ids::of(&inode), usage)))
}

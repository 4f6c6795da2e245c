//! READDIR and READDIRPLUS: names, without and with the attributes of their inodes.

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, Result};
use tandemfs_wire::{Directory, Reply};

use crate::attributes::{bare_entry, inode};
use crate::door::Door;

/// Entries per batch; 4 KiB, the smallest reply, holds about 25.
const ENTRIES_AT_A_TIME: usize = 32;

impl Door {
    /// Lists names.
    pub(crate) fn readdir(&self, node: u64, cookie: u64, size: u32, reply: Reply<'_>) {
        let mut list = reply.directory(size);
        let result = self.is_there(node).and_then(|()| {
            self.fs.read_directory(inode(node), cookie, &mut |entry| {
                list.add(entry.name, entry.inode.get(), entry.file_type.into(), entry.cookie)
            })
        });
        match result {
            // What was listed before the damage is sent; the error occurs again with the next request.
            Err(error) if list.is_empty() => list.error(self.failed("readdir", node, &error)),
            Ok(()) | Err(_) => list.send(),
        }
    }

    /// Lists names with attributes.
    pub(crate) fn readdirplus(&self, node: u64, cookie: u64, size: u32, reply: Reply<'_>) {
        let mut list = reply.directory(size);
        match self.is_there(node).and_then(|()| self.fill(node, cookie, &mut list)) {
            Ok(()) => list.send(),
            Err(error) => list.error(self.failed("readdirplus", node, &error)),
        }
    }

    /// A directory that was removed has no entries. The kernel knows that of those that it removed itself, and not of those that clients of the
    /// direct door did.
    fn is_there(&self, node: u64) -> Result<()> {
        if self.fs.attributes(inode(node))?.nlink == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Fills a list. The directory is not locked while attributes are read.
    fn fill(&self, node: u64, mut cookie: u64, list: &mut Directory<'_>) -> Result<()> {
        let mut entries: Vec<(InodeNumber, u8, u64, Vec<u8>)> = Vec::with_capacity(ENTRIES_AT_A_TIME);
        loop {
            entries.clear();
            let listed = self.fs.read_directory(inode(node), cookie, &mut |entry| {
                let room = entries.len() < ENTRIES_AT_A_TIME;
                if room {
                    entries.push((entry.inode, entry.file_type, entry.cookie, entry.name.to_vec()));
                }
                room
            });
            match listed {
                // The lookups of entries already in the list are counted, so the list must be sent. The error occurs again with the next
                // request.
                Err(_) if !entries.is_empty() => {}
                Err(_) if !list.is_empty() => return Ok(()),
                other => other?,
            }
            for (number, kind, next, name) in &entries {
                if !self.add_entry(list, *number, *kind, *next, name) {
                    return Ok(());
                }
                cookie = *next;
            }
            if entries.len() < ENTRIES_AT_A_TIME {
                return Ok(());
            }
        }
    }

    /// Adds one entry and counts its lookup if it fits ([DO2]); `false` if the list is full.
    fn add_entry(&self, list: &mut Directory<'_>, number: InodeNumber, kind: u8, cookie: u64, name: &[u8]) -> bool {
        let is_dot = matches!(name, b"." | b"..");
        let held = (!is_dot).then(|| self.fs.attributes(number).and_then(|attributes| self.remember(attributes)));
        match held {
            Some(Ok(attributes)) => {
                let added = list.add_plus(name, cookie, &self.entry(&attributes));
                if !added {
                    self.fs.forget(number, 1);
                }
                added
            }
            // Removed since it was listed.
            Some(Err(Error::Stale(_))) => true,
            // For `.` and `..` the kernel uses only the name. A damaged inode is listed too; a lookup then says more ([DO7]).
            None | Some(Err(_)) => list.add_plus(name, cookie, &bare_entry(number, kind)),
        }
    }
}

//! READDIRPLUS: names with the attributes of what they name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{Generation, INodeNo, ReplyDirectoryPlus};
use tandemfs_format::InodeNumber;
use tandemfs_fs::Error;

use crate::attributes::{file_attr, inode, placeholder};
use crate::door::Door;

/// Entries looked up at a time; 4 KiB, the smallest reply, holds some 25.
const ENTRIES_AT_A_TIME: usize = 32;

impl Door {
    /// Fills a reply with entries and their attributes. The directory is not held while inodes are looked at.
    pub(crate) fn fill(&self, node: INodeNo, mut cookie: u64, reply: &mut ReplyDirectoryPlus) -> tandemfs_fs::Result<()> {
        let mut entries: Vec<(InodeNumber, u8, u64, Vec<u8>)> = Vec::with_capacity(ENTRIES_AT_A_TIME);
        let mut any = false;
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
                // What is in the reply is remembered already; the error comes again with the next request.
                Err(_) if any => return Ok(()),
                other => other?,
            }
            for (number, kind, next, name) in &entries {
                if self.add_entry(reply, *number, *kind, *next, name) {
                    return Ok(());
                }
                cookie = *next;
                any = true;
            }
            if entries.len() < ENTRIES_AT_A_TIME {
                return Ok(());
            }
        }
    }

    /// Adds one entry, remembered where it fits ([DO2]); `true` when the reply is full.
    fn add_entry(&self, reply: &mut ReplyDirectoryPlus, number: InodeNumber, kind: u8, cookie: u64, name: &[u8]) -> bool {
        let name = OsStr::from_bytes(name);
        let is_dot = matches!(name.as_bytes(), b"." | b"..");
        let held = (!is_dot).then(|| self.fs.attributes(number).and_then(|attributes| self.remember(attributes)));
        match held {
            Some(Ok(attributes)) => {
                let attr = file_attr(&attributes);
                let full = reply.add(attr.ino, cookie, name, &self.valid(&attributes), &attr, Generation(attributes.generation.into()));
                if full {
                    self.fs.forget(number, 1);
                }
                full
            }
            // Removed meanwhile.
            Some(Err(Error::Stale(_))) => false,
            // Of `.` and `..` the kernel takes the name only. A damaged inode is listed too; looking at it says what is wrong.
            None | Some(Err(_)) => {
                let attr = placeholder(number.get(), u16::from(kind) << 12);
                reply.add(attr.ino, cookie, name, &Duration::ZERO, &attr, Generation(0))
            }
        }
    }
}

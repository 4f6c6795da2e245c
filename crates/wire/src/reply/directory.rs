//! Replies to READDIR and READDIRPLUS: as many entries as fit.

use std::mem::size_of;

use zerocopy::IntoBytes;

use super::{Entry, Reply, kind_of};
use crate::abi::{Dirent, Direntplus};
use crate::errno::Errno;

/// Directory entries, written directly where the kernel reads them. Dropped without [`Directory::send`], it answers `EIO` like any reply.
#[derive(Debug)]
#[must_use = "the kernel waits for a reply"]
pub struct Directory<'a> {
    reply: Reply<'a>,
    size: usize,
    filled: usize,
}

impl<'a> Directory<'a> {
    pub(super) fn new(reply: Reply<'a>, size: usize) -> Self {
        Self { reply, size, filled: 0 }
    }

    /// Adds an entry for READDIR; `false` = it did not fit. `next` is the offset at which the listing continues after it (never 0).
    pub fn add(&mut self, name: &[u8], ino: u64, kind: u32, next: u64) -> bool {
        self.push(dirent(name, ino, kind, next).as_bytes(), name)
    }

    /// Adds an entry for READDIRPLUS; it counts as a lookup of its node unless the node is 0. `false` = it did not fit.
    pub fn add_plus(&mut self, name: &[u8], next: u64, entry: &Entry) -> bool {
        let Entry { attributes, .. } = entry;
        let dirent = dirent(name, attributes.ino, kind_of(attributes.mode), next);
        self.push(Direntplus { entry_out: entry.to_kernel(), dirent }.as_bytes(), name)
    }

    /// Whether no entry was added yet.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Sends the entries. An empty reply marks the end of the directory.
    pub fn send(mut self) {
        let filled = self.filled;
        self.reply.send_body(filled);
    }

    /// Sends an error instead.
    pub fn error(self, error: Errno) {
        self.reply.error(error);
    }

    fn push(&mut self, fixed: &[u8], name: &[u8]) -> bool {
        let unpadded = fixed.len() + name.len();
        let padded = unpadded.next_multiple_of(size_of::<u64>());
        if padded > self.size - self.filled {
            return false;
        }
        let (from, to) = (self.filled, self.filled + padded);
        let Some(place) = self.reply.body(self.size).get_mut(from..to) else { return false };
        let (start, rest) = place.split_at_mut(fixed.len());
        let (middle, padding) = rest.split_at_mut(name.len());
        start.copy_from_slice(fixed);
        middle.copy_from_slice(name);
        padding.fill(0);
        self.filled = to;
        true
    }
}

fn dirent(name: &[u8], ino: u64, kind: u32, next: u64) -> Dirent {
    Dirent { ino, off: next, namelen: name.len() as u32, kind }
}

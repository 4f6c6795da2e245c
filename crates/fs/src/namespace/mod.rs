//! Names: look-up, creation, removal, renaming, listing. Each change is one transaction over the inodes that it touches, all of them
//! locked in the order of their numbers (RULES R4): resolve, lock, revalidate, retry.

pub(crate) mod directory;
pub(crate) mod inodes;

mod attributes;
mod create;
mod list;
mod remove;
mod rename;

use crate::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use tandemfs_format::dentry::NAME_MAX;
use tandemfs_format::inode::Inode;
use tandemfs_format::{InodeNumber, PAGE_BYTES};

use crate::statistics::count;
use crate::types::Attributes;
use crate::volume::{Volume, now};
use crate::{Error, FileSystem, Result};
use directory::{DirectoryIndex, FoundEntry, Insertion};
use inodes::{Handle, State};

/// Refuses names that no file can have.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|byte| *byte == b'/' || *byte == 0) {
        return Err(Error::InvalidName);
    }
    Ok(())
}

pub(crate) fn attributes_of(number: InodeNumber, inode: &Inode) -> Attributes {
    Attributes {
        inode: number,
        generation: inode.generation,
        mode: inode.mode,
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: if inode.has_mapping() || inode.file_type() == tandemfs_format::inode::file_type::SYMLINK { 0 } else { inode.rdev() },
        size: inode.size,
        sectors: inode.sectors,
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        birth: inode.birth,
    }
}

/// A directory after one of its entries changed: times, change count, and the page that an insertion added.
pub(crate) fn directory_changed(inode: &mut Inode, insertion: Option<&Insertion>) {
    let time = now();
    (inode.mtime, inode.ctime) = (time, time);
    inode.change_count += 1;
    if insertion.is_some_and(Insertion::adds_page) {
        inode.size += PAGE_BYTES as u64;
        inode.sectors += PAGE_BYTES as u64 / 512;
    }
}

impl FileSystem {
    /// The index of a locked directory, built if it is not in memory.
    pub(crate) fn index<'s>(&self, number: InodeNumber, state: &'s mut State) -> Result<&'s mut DirectoryIndex> {
        if state.removed {
            return Err(Error::Stale(number));
        }
        if !state.inode.is_directory() {
            return Err(Error::NotDirectory);
        }
        if state.directory.is_none() {
            let index = DirectoryIndex::load(&self.volume, state.owner(number), state.root(), state.inode.size)?;
            self.inodes.index_bytes.fetch_add(index.counted_bytes(), Relaxed);
            state.directory = Some(Box::new(index));
        }
        match &mut state.directory {
            Some(index) => Ok(index),
            None => unreachable!("it was just put there"),
        }
    }

    /// Finds a name in a directory that the caller does not hold.
    pub(crate) fn find(&self, parent: &Handle, name: &[u8]) -> Result<Option<FoundEntry>> {
        {
            let state = parent.state.read();
            if state.removed {
                return Err(Error::Stale(parent.number));
            }
            if let Some(index) = &state.directory {
                return index.find(&self.volume, state.owner(parent.number), name);
            }
        }
        let mut state = parent.state.write();
        let owner = state.owner(parent.number);
        self.index(parent.number, &mut state)?.find(&self.volume, owner, name)
    }

    /// Looks a name up in a directory. `.` and `..` are names too.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`.
    pub fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Attributes> {
        count(&self.volume.live.operations.lookup);
        let directory = self.handle(parent)?;
        let number = match name {
            b"." => parent,
            b".." => directory.state.read().inode.parent,
            name => {
                if name.len() > NAME_MAX {
                    return Err(Error::NameTooLong);
                }
                self.find(&directory, name)?.ok_or(Error::NotFound)?.dentry.inode
            }
        };
        match self.attributes(number) {
            Err(Error::Stale(_)) => Err(Error::NotFound),
            other => other,
        }
    }

    /// The handle of an inode.
    pub(crate) fn handle(&self, number: InodeNumber) -> Result<Arc<Handle>> {
        self.inodes.get(&self.volume, number)
    }

    /// Holds an inode from outside: a kernel's look-up, an open file. It must match [`FileSystem::forget`]. `generation` is from the
    /// attributes that made the caller want it.
    ///
    /// # Errors
    /// `Stale` where the inode was removed meanwhile.
    pub fn remember(&self, number: InodeNumber, generation: u32, count: u64) -> Result<()> {
        let handle = self.handle(number)?;
        let state = handle.state.read();
        if state.removed || state.inode.generation != generation {
            return Err(Error::Stale(number));
        }
        self.inodes.hold(number, count);
        Ok(())
    }

    /// Gives up `count` holds. An inode without names is removed with the last one.
    pub fn forget(&self, number: InodeNumber, count: u64) {
        if self.inodes.release(number, count)
            && self.orphans.lock().contains(&number.get())
            && let Err(error) = self.remove_orphan(number)
        {
            tracing::warn!(inode = number.get(), %error, "an unlinked file stays until the next recovery");
        }
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }
}

//! Names: look-up, creation, removal, renaming, listing. Each change is one transaction over the inodes that it touches. All of them are
//! locked in the order of their numbers (RULES R4): resolve, lock, revalidate, retry.

mod extended_attributes;

mod access_lists;
mod aligned_attribute;
mod attributes;
mod create;
mod home_attribute;
mod list;
mod paths;
mod project;
mod quota_limits;
mod remove;
mod rename;

pub use access_lists::AccessList;
pub use aligned_attribute::{ALIGNED_ATTRIBUTE, ALIGNED_LEFT_ATTRIBUTE};
pub use home_attribute::{HOME_ATTRIBUTE, HOME_LEFT_ATTRIBUTE};

use std::sync::Arc;

use tandemfs_format::dentry::NAME_MAX;
use tandemfs_format::inode::Inode;
use tandemfs_format::{InodeNumber, PAGE_BYTES};

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::inodes::directory::{DirectoryIndex, FoundEntry, Insertion};
use crate::inodes::{InCoreInode, State};
use crate::statistics::counted;
use crate::sync::atomic::Ordering::Relaxed;
use crate::types::Attributes;
use crate::volume::{Volume, now};
use crate::wait::{leaves_to_others, may_wait};

/// A directory of up to this many bytes is loaded by threads that do not wait, too: new ones are small.
const LOADED_WITHOUT_WAITING: u64 = 4 * PAGE_BYTES as u64;

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
        space_512: inode.space_512,
        atime: inode.atime,
        mtime: inode.mtime,
        ctime: inode.ctime,
        birth: inode.birth,
        has_extended_attributes: inode.attributes.address.number() != 0,
    }
}

/// Updates a directory after one of its entries changed: times, change count, and the page that an insertion added.
pub(crate) fn directory_changed(inode: &mut Inode, insertion: Option<&Insertion>) {
    let time = now();
    (inode.mtime, inode.ctime) = (time, time);
    inode.change_count += 1;
    if insertion.is_some_and(Insertion::adds_page) {
        inode.size += PAGE_BYTES as u64;
        inode.space_512 += PAGE_BYTES as u64 / 512;
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
            if state.inode.size > LOADED_WITHOUT_WAITING {
                may_wait()?;
            }
            let index = DirectoryIndex::load(&self.volume, state.owner(number), state.root(), state.inode.size)?;
            self.inodes.index_bytes.fetch_add(index.counted_bytes(), Relaxed);
            state.directory = Some(Box::new(index));
        }
        match &mut state.directory {
            Some(index) => Ok(index),
            None => unreachable!("it was just put there"),
        }
    }

    /// Finds a name in a directory that the caller has not locked.
    pub(crate) fn find(&self, parent: &InCoreInode, name: &[u8]) -> Result<Option<FoundEntry>> {
        {
            let state = parent.state.read()?;
            if state.removed {
                return Err(Error::Stale(parent.number));
            }
            if let Some(index) = &state.directory {
                return index.find(&self.volume, state.owner(parent.number), name);
            }
        }
        let mut state = parent.state.write()?;
        let owner = state.owner(parent.number);
        self.index(parent.number, &mut state)?.find(&self.volume, owner, name)
    }

    /// The inode of an entry that was found; `None` if inode and entry were removed meanwhile.
    pub(crate) fn inode_of(&self, parent: &InCoreInode, name: &[u8], found: &FoundEntry) -> Result<Option<Arc<InCoreInode>>> {
        match self.inode(found.dentry.inode) {
            Err(Error::Stale(_)) if self.find(parent, name)?.as_ref() != Some(found) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Looks a name up in a directory. `.` and `..` are names too.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`.
    pub fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Attributes> {
        let _counted = counted(&self.volume.live.operations.lookup);
        let directory = self.inode(parent)?;
        let number = match name {
            b"." => parent,
            b".." => {
                let state = directory.state.read()?;
                self.volume.versions.note_rights(parent);
                state.inode.parent
            }
            name => {
                if name.len() > NAME_MAX {
                    return Err(Error::NameTooLong);
                }
                return self.lookup_name(&directory, name);
            }
        };
        match self.attributes(number) {
            Err(Error::Stale(_)) => Err(Error::NotFound),
            other => other,
        }
    }

    /// Reads the attributes at the instant at which the name leads to the inode: both are read under the directory's lock. The lock order
    /// ([IN2] of `inodes/`) forbids waiting for the inode there. So the thread waits without the directory's lock, and then looks up again.
    fn lookup_name(&self, directory: &InCoreInode, name: &[u8]) -> Result<Attributes> {
        let _counted = counted(&self.volume.live.operations.getattr);
        let mut timed = None;
        loop {
            let state = directory.state.read()?;
            if state.removed {
                return Err(Error::Stale(directory.number));
            }
            let Some(index) = &state.directory else {
                drop(state);
                self.index(directory.number, &mut *directory.state.write()?)?;
                continue;
            };
            let found = index.find(&self.volume, state.owner(directory.number), name)?;
            self.volume.versions.note_name(directory.number, || self.volume.pair.name_hash(name));
            let found = found.ok_or(Error::NotFound)?;
            let target = match self.inode(found.dentry.inode) {
                Err(Error::Stale(_)) => return Err(Error::NotFound), // a damaged directory
                other => other?,
            };
            if target.ranges.has_store_leases() && timed != Some(target.number) {
                timed = Some(target.number);
                drop(state);
                self.note_stores(&target)?; // [SL6] of `data/lent_stores.rs`
                continue;
            }
            if let Some(target_state) = target.state.try_read() {
                self.volume.versions.note_inode(target.number, || target.ranges.has_store_leases());
                return Ok(attributes_of(target.number, &target_state.inode));
            }
            drop(state);
            drop(target.state.read()?);
        }
    }

    /// The in-core inode with this number; also of a directory.
    pub(crate) fn inode(&self, number: InodeNumber) -> Result<Arc<InCoreInode>> {
        self.inodes.get(&self.volume, number)
    }

    /// Holds an inode from outside, for a kernel's look-up or an open file. Each hold needs its [`FileSystem::forget`]. `generation` is
    /// from the attributes that the caller has seen.
    ///
    /// # Errors
    /// `Stale` if the inode was removed meanwhile.
    pub fn remember(&self, number: InodeNumber, generation: u32, count: u64) -> Result<()> {
        let file = self.inode(number)?;
        let state = file.state.read()?;
        if state.removed || state.inode.generation != generation {
            return Err(Error::Stale(number));
        }
        self.inodes.hold(number, count);
        Ok(())
    }

    /// A name that can be read and whose inode is damaged: its number and what the name says of its type, in the bits of a mode. Each call
    /// that finds one holds the number as [`FileSystem::remember`] does. `None` if the name or its directory is damaged, or nothing is.
    ///
    /// # Errors
    /// As [`FileSystem::lookup`].
    pub fn damaged_name(&self, parent: InodeNumber, name: &[u8]) -> Result<Option<(InodeNumber, u16)>> {
        let directory = self.inode(parent)?;
        let Some(found) = self.find(&directory, name)? else { return Ok(None) };
        match self.inode_of(&directory, name, &found) {
            Err(Error::Damaged { inode, .. }) if inode == found.dentry.inode => {
                self.inodes.hold(inode, 1);
                Ok(Some((inode, u16::from(found.dentry.file_type) << 12)))
            }
            Err(error) => Err(error),
            Ok(_) => Ok(None),
        }
    }

    /// Releases `count` holds. The last release removes an inode without names.
    pub fn forget(&self, number: InodeNumber, count: u64) {
        if !self.inodes.release(number, count) || !self.orphans.lock().contains(&number.get()) {
            return;
        }
        if leaves_to_others() {
            self.late_orphans.lock().push(number); // [NW5] of `wait.rs`
        } else if let Err(error) = self.remove_orphan(number) {
            tracing::warn!(inode = number.get(), %error, "an unlinked file stays until the next recovery");
        }
    }

    /// Whether somebody outside holds an inode ([`FileSystem::forget`] ends that). Does not wait, also after a commit.
    pub fn is_held(&self, number: InodeNumber) -> bool {
        self.inodes.is_held(number)
    }

    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }
}

//! Listing a directory. A cookie is a slot number + 3: it stays valid while its entry exists, also across a remount.

use tandemfs_format::InodeNumber;
use tandemfs_format::dentry::type_of_mode;
use tandemfs_format::inode::file_type;

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::inodes::InCoreInode;
use crate::mutant::{Mutant, on};
use crate::statistics::counted;
use crate::types::DirectoryEntry;
use crate::wait::may_wait;

/// Cookies of `.` and `..`.
const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// Cookie of slot 0.
const FIRST_SLOT: u64 = 3;

impl FileSystem {
    /// Visits the entries after `cookie` (0 = from the start), `.` and `..` first, until `visit` returns false; that entry counts as not
    /// taken. The directory is locked meanwhile: `visit` must not call the file system. Inside of [`FileSystem::noting`] what was listed is noted.
    ///
    /// # Errors
    /// `NotDirectory`.
    pub fn read_directory(&self, number: InodeNumber, cookie: u64, visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool) -> Result<()> {
        let _counted = counted(&self.volume.live.operations.readdir);
        let file = self.inode(number)?;
        if file.state.read()?.directory.is_none() {
            self.index(number, &mut *file.state.write()?)?;
        }
        let listed = self.list_noted(&file, cookie, visit);
        if on(Mutant::NotedBehindLock) {
            std::thread::yield_now();
            self.volume.versions.note_entries(number);
        }
        listed
    }

    fn list_noted(&self, file: &InCoreInode, cookie: u64, visit: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool) -> Result<()> {
        let number = file.number;
        let state = file.state.read()?;
        if state.removed {
            return Err(Error::Stale(number)); // its pages may be others' by now
        }
        if !on(Mutant::NotedBehindLock) {
            self.volume.versions.note_entries(number);
        }
        let owner = state.owner(number);
        let directory_type = type_of_mode(file_type::DIRECTORY);
        for (own_cookie, name, inode) in [(DOT, &b"."[..], number), (DOT_DOT, b"..", state.inode.parent)] {
            if cookie < own_cookie && !visit(&DirectoryEntry { inode, file_type: directory_type, cookie: own_cookie, name }) {
                return Ok(());
            }
        }
        let from = cookie.saturating_sub(FIRST_SLOT - 1);
        let mut each = |slot: u64, dentry: &tandemfs_format::dentry::Dentry| {
            visit(&DirectoryEntry { inode: dentry.inode, file_type: dentry.file_type, cookie: slot + FIRST_SLOT, name: &dentry.name })
        };
        match &state.directory {
            Some(index) => index.list(&self.volume, owner, from, &mut each),
            // Evicted between the two locks. This is rare, so the index is built for this one call.
            None => {
                may_wait()?;
                super::DirectoryIndex::load(&self.volume, owner, state.root(), state.inode.size)?.list(&self.volume, owner, from, &mut each)
            }
        }
    }
}

//! Projects: directory trees whose usage is counted together ([QT1] of `quota/`).
//!
//! [PJ1] What is made in a directory whose project is inherited has its project from its first transaction on, and directories pass it on.
//! [PJ2] Nothing of another project is moved or linked into such a directory, as XFS has it; programs then copy. So a tree keeps its project,
//!       and no name leads to space that the limits of the tree do not count.
//! [PJ3] A tree gets a project from the top down: a directory first, then what is in it. What is made meanwhile is made in a directory that
//!       passes the project on already, or is found in it later.

use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::{Inode, flags};

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::inodes::{InCoreInode, State};
use crate::mutant::{Mutant, on};
use crate::quota::{Ids, unbound};
use crate::types::DirectoryEntry;
use crate::volume::{Tx, now};
use crate::wait::may_wait;

/// Gives a new inode the project of its directory ([PJ1]).
pub(super) fn inherit_project(inode: &mut Inode, directory: &Inode) {
    if directory.flags & flags::PROJECT_INHERIT != 0 {
        inode.project = directory.project;
        if inode.is_directory() {
            inode.flags |= flags::PROJECT_INHERIT;
        }
    }
}

/// Refuses a file that cannot be moved or linked into a directory ([PJ2]).
pub(super) fn may_enter(directory: &Inode, file: &Inode) -> Result<()> {
    let is_closed = directory.flags & flags::PROJECT_INHERIT != 0 && directory.project != file.project;
    if is_closed && !on(Mutant::ProjectsMixed) { Err(Error::OtherProject) } else { Ok(()) }
}

impl FileSystem {
    /// The project of an inode, and whether what is made in it inherits that.
    ///
    /// # Errors
    /// `Stale`; damage of the inode.
    pub fn project(&self, number: InodeNumber) -> Result<(u32, bool)> {
        let file = self.inode(number)?;
        let state = file.state.read()?;
        if state.removed {
            return Err(Error::Stale(number));
        }
        Ok((state.inode.project, state.inode.flags & flags::PROJECT_INHERIT != 0))
    }

    /// Makes an inode, and if it is a directory everything below it, part of a project; 0 is no project. What is made there later inherits it.
    /// `goes_on` is called for each inode; false ends the work, and what is done stays. Returns how many inodes have the project now.
    ///
    /// # Errors
    /// `ReadOnly`, `Stopped`, `NoSpace`; damage of metadata: what was done before stays.
    pub fn set_project_of_tree(&self, number: InodeNumber, project: u32, goes_on: &mut dyn FnMut() -> bool) -> Result<u64> {
        may_wait()?;
        self.volume.health.check_writable()?;
        self.gain_quota()?;
        let (mut left, mut done) = (vec![number], 0);
        while let Some(number) = left.pop() {
            if !goes_on() {
                break;
            }
            let is_directory = match self.with_room(|| unbound(|| self.set_project(number, project))) {
                Err(Error::Stale(_)) => continue, // removed meanwhile
                other => other?,
            };
            done += 1;
            if is_directory {
                let mut take = |entry: &DirectoryEntry<'_>| {
                    if !matches!(entry.name, b"." | b"..") {
                        left.push(entry.inode);
                    }
                    true
                };
                match self.read_directory(number, 0, &mut take) {
                    Err(Error::Stale(_) | Error::NotDirectory) => {}
                    other => other?,
                }
            }
        }
        Ok(done)
    }

    /// Sets the project of one inode; true for a directory.
    fn set_project(&self, number: InodeNumber, project: u32) -> Result<bool> {
        let _owners = self.volume.quota.owners.read()?; // [QT6] of `quota/`
        let file = self.inode(number)?;
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(number));
        }
        let is_directory = state.inode.is_directory();
        let mut new = state.inode.clone();
        new.project = project;
        if is_directory {
            let inherits = if project > 0 { flags::PROJECT_INHERIT } else { 0 };
            new.flags = new.flags & !flags::PROJECT_INHERIT | inherits;
        }
        if (new.project, new.flags) != (state.inode.project, state.inode.flags) {
            new.ctime = now();
            let mut tx = Tx::new(&self.volume);
            self.note_new_ids(&mut tx, &file, &state, &new)?;
            file.commit(tx, &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        }
        Ok(is_directory)
    }

    /// Notes in a transaction that a locked inode gets other ids, with everything that it uses. The caller holds
    /// [`Quota::owners`](crate::quota::Quota::owners).
    pub(super) fn note_new_ids(&self, tx: &mut Tx<'_>, file: &InCoreInode, state: &State, new: &Inode) -> Result<()> {
        let (from, to) = (Ids::of(&state.inode), Ids::of(new));
        if from != to && self.volume.quota.is_counting() && !on(Mutant::ChownUncounted) {
            tx.moves_usage(from, to, self.usage_of(file)?);
        }
        Ok(())
    }
}

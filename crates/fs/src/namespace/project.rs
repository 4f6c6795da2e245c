//! Projects: directory trees whose usage is counted together ([QT1] of `quota/`).
//!
//! [PJ1] What is made in a directory whose project is inherited has its project from its first transaction on, and directories pass it on.
//! [PJ2] Nothing of another project is moved or linked into such a directory, as XFS has it; programs then copy. So a tree keeps its project,
//!       and no name leads to space that the limits of the tree do not count.
//! [PJ3] A tree gets a project from the top down: a directory first, then what is in it. What is made meanwhile is made in a directory that
//!       passes the project on already, or is found in it later.
//! [PJ4] An inode is only given the project while the name by which it was found stands for it, in a directory that has the project: what was
//!       moved out meanwhile, and an inode that was made under the number of a removed one, are not of the tree.

use std::collections::HashSet;
use std::sync::Arc;

use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::{Inode, flags};
use tandemfs_format::quota::QuotaKind;

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::inodes::{InCoreInode, Locked, State};
use crate::mutant::{Mutant, on};
use crate::quota::{Ids, QuotaEntry, seconds_now, unbound};
use crate::types::DirectoryEntry;
use crate::volume::{Tx, now};
use crate::wait::may_wait;

/// Names that are read from a directory before their inodes are changed.
const NAMES_AT_ONCE: usize = 256;

/// A name of a directory and what it stands for.
type Named = (Vec<u8>, InodeNumber);

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
    /// `goes_on` is called for each name; false ends the work, and what is done stays. Returns how many names lead to inodes of the project now.
    ///
    /// # Errors
    /// `ReadOnly`, `Stopped`, `NoSpace`; damage of metadata: what was done before stays.
    pub fn set_project_of_tree(&self, number: InodeNumber, project: u32, goes_on: &mut dyn FnMut() -> bool) -> Result<u64> {
        may_wait()?;
        self.volume.health.check_writable()?;
        if project > 0 {
            self.gain_quota()?;
        }
        let is_directory = self.with_room(|| unbound(|| self.set_project(number, project, project > 0)))?;
        // Each directory once: damage may have them name each other.
        let (mut left, mut seen, mut done) = (Vec::from_iter(is_directory.then_some(number)), HashSet::from([number]), 1);
        while let Some(directory) = left.pop() {
            let mut cookie = 0;
            loop {
                let (piece, next) = self.some_names(directory, cookie)?;
                if piece.is_empty() {
                    break;
                }
                cookie = next;
                for (name, number) in piece {
                    if !goes_on() {
                        return Ok(done);
                    }
                    let set = self.with_room(|| unbound(|| self.set_project_of_entry((directory, &name), number, project)))?;
                    done += u64::from(set.is_some());
                    left.extend(set.filter(|is_directory| *is_directory && seen.insert(number)).map(|_| number));
                }
            }
        }
        Ok(done)
    }

    /// Makes one inode part of a project, 0 for none, and says whether a directory passes that on, as its owner may (`FS_IOC_FSSETXATTR`).
    ///
    /// # Errors
    /// As [`FileSystem::set_project_of_tree`]; `QuotaExceeded` where what the inode uses does not fit there.
    pub fn set_project_of_inode(&self, number: InodeNumber, project: u32, inherits: bool) -> Result<()> {
        may_wait()?;
        self.volume.health.check_writable()?;
        if project > 0 || inherits {
            self.gain_quota()?;
        }
        self.with_room(|| self.set_project(number, project, inherits)).map(drop)
    }

    /// What a directory tree uses and may use, if the directory passes a project on that has limits.
    ///
    /// # Errors
    /// As [`FileSystem::project`].
    pub fn limits_of_project(&self, number: InodeNumber) -> Result<Option<QuotaEntry>> {
        if !self.volume.quota.is_counting() {
            return Ok(None);
        }
        let (project, inherits) = self.project(number)?;
        let entry = || self.volume.quota.with_table(|table| table.limited((QuotaKind::Project, project), seconds_now()));
        Ok((inherits && project > 0).then(entry).flatten())
    }

    /// Some names of a directory with their inodes, and the cookie of the last one; none at its end, and of a directory that was removed.
    fn some_names(&self, directory: InodeNumber, cookie: u64) -> Result<(Vec<Named>, u64)> {
        let (mut names, mut last) = (Vec::new(), cookie);
        let mut take = |entry: &DirectoryEntry<'_>| {
            let is_taken = names.len() < NAMES_AT_ONCE;
            if is_taken {
                last = entry.cookie;
                if !matches!(entry.name, b"." | b"..") {
                    names.push((entry.name.to_vec(), entry.inode));
                }
            }
            is_taken
        };
        match self.read_directory(directory, cookie, &mut take) {
            Err(Error::Stale(_) | Error::NotDirectory) => {}
            other => other?,
        }
        Ok((names, last))
    }

    /// Sets the project of one inode; true for a directory.
    fn set_project(&self, number: InodeNumber, project: u32, inherits: bool) -> Result<bool> {
        let _owners = self.volume.quota.owners.read()?; // [QT6] of `quota/`
        let file = self.inode(number)?;
        let mut state = file.state.write()?;
        self.set_project_of_locked(&file, &mut state, project, inherits)
    }

    /// Sets the project of what a name of a directory stands for ([PJ4]); `None` if name or directory do not belong there any more.
    fn set_project_of_entry(&self, (directory, name): (InodeNumber, &[u8]), number: InodeNumber, project: u32) -> Result<Option<bool>> {
        let _owners = self.volume.quota.owners.read()?; // [QT6] of `quota/`
        let (Some(parent), Some(file)) = (self.unless_stale(directory)?, self.unless_stale(number)?) else { return Ok(None) };
        let mut locked = Locked::new(vec![&parent, &file])?;
        let above = locked.get(directory);
        let is_of_tree =
            !above.removed && above.inode.project == project && (above.inode.flags & flags::PROJECT_INHERIT != 0) == (project > 0);
        if !is_of_tree && !on(Mutant::ProjectOfStaleName) {
            return Ok(None);
        }
        let owner = above.owner(directory);
        let found = self.index(directory, locked.get_mut(directory))?.find(&self.volume, owner, name)?;
        let is_there = found.is_some_and(|found| found.dentry.inode == number) || on(Mutant::ProjectOfStaleName);
        if !is_there || locked.get(number).removed {
            return Ok(None);
        }
        self.set_project_of_locked(&file, locked.get_mut(number), project, project > 0).map(Some)
    }

    fn unless_stale(&self, number: InodeNumber) -> Result<Option<Arc<InCoreInode>>> {
        match self.inode(number) {
            Err(Error::Stale(_)) => Ok(None),
            other => other.map(Some),
        }
    }

    fn set_project_of_locked(&self, file: &InCoreInode, state: &mut State, project: u32, inherits: bool) -> Result<bool> {
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let is_directory = state.inode.is_directory();
        let mut new = state.inode.clone();
        new.project = project;
        if is_directory {
            let inherits = if inherits { flags::PROJECT_INHERIT } else { 0 };
            new.flags = new.flags & !flags::PROJECT_INHERIT | inherits;
        }
        if (new.project, new.flags) != (state.inode.project, state.inode.flags) {
            new.ctime = now();
            let mut tx = Tx::new(&self.volume);
            self.note_new_ids(&mut tx, file, state, &new)?;
            file.commit(tx, state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
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

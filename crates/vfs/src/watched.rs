//! Files and directories that somebody watches through the kernel ([KV8] of `lib.rs`).

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;

use crate::caches::left;
use crate::credentials::Process;
use crate::file::OpenFile;
use crate::mutant::{Mutant, on};
use crate::permissions::kind;
use crate::refusal::{Result, Why};
use crate::walk::Node;
use crate::{Refused, Vfs};

/// Most inodes that one call concerns: both directories of a rename, the file, and the one that it replaces.
type Concerned = [Option<InodeNumber>; 4];

fn is_opened_here(kind: u16) -> bool {
    matches!(kind, file_type::REGULAR | file_type::DIRECTORY)
}

impl Vfs {
    /// Hands a call back that concerns something watched. Asked before anything has changed.
    fn leaves(&self, process: &Process, concerned: Concerned) -> Result<()> {
        let Some(caches) = self.caches.as_ref().filter(|_| process.leaves_watched) else { return Ok(()) };
        let mut inodes = [InodeNumber::ROOT; 4];
        let count = inodes.iter_mut().zip(concerned.into_iter().flatten()).map(|(slot, inode)| *slot = inode).count();
        match caches.is_watched(&inodes[..count])? && !on(Mutant::WatchersUntold) {
            true => Err(left(Why::Watched, inodes[0])),
            false => Ok(()),
        }
    }

    /// Whether an open may be repeated by who does not ask anew: as long as its versions stay, nobody has begun to be told of it. To be asked behind
    /// [`FileSystem::note_watchers`](tandemfs_fs::FileSystem::note_watchers).
    pub fn leaves_no_watchers(&self, process: &Process) -> bool {
        !(process.leaves_watched && self.caches.as_ref().is_some_and(|caches| caches.may_be_watched()))
    }

    /// What happens to an open file: its watchers are told, and those of the directory in which it was found.
    ///
    /// # Errors
    /// [`Why::Watched`]; `WouldWait`.
    pub fn leaves_watched_file(&self, process: &Process, file: &OpenFile) -> Result<()> {
        self.leaves(process, [Some(file.inode()), file.parent(), None, None])
    }

    /// The end of an open file that could be read or written. It is handed back once: who then has a descriptor of the kernel closed for it, ends
    /// the file afterwards.
    ///
    /// # Errors
    /// [`Why::Watched`]; `WouldWait`.
    pub fn leaves_watched_end(&self, process: &Process, file: &OpenFile) -> Result<()> {
        if !is_opened_here(file.kind()) || file.must_read().or(file.must_write()).is_err() || file.end_is_told() {
            return Ok(());
        }
        let left = self.leaves_watched_file(process, file);
        if matches!(left, Err(Refused::Crossed(_))) {
            file.tell_end();
        }
        left
    }

    /// What happens to a file that was found by its name, or that is open.
    pub(crate) fn leaves_watched_node(&self, process: &Process, node: &Node<'_>) -> Result<()> {
        self.leaves(process, [Some(node.number()), node.parent, None, None])
    }

    /// The opening of what was found. Special files are not opened here for what they contain.
    pub(crate) fn leaves_watched_opening(&self, process: &Process, node: &Node<'_>) -> Result<()> {
        if is_opened_here(kind(&node.attributes)) { self.leaves_watched_node(process, node) } else { Ok(()) }
    }

    /// A new name in a directory, and the file that gets it if there is one already.
    pub(crate) fn leaves_watched_name(&self, process: &Process, directory: InodeNumber, file: Option<InodeNumber>) -> Result<()> {
        self.leaves(process, [Some(directory), file, None, None])
    }

    /// A name that moves from one directory to another, and may replace a file there.
    pub(crate) fn leaves_watched_move(
        &self,
        process: &Process,
        directories: (InodeNumber, InodeNumber),
        (moved, replaced): (InodeNumber, Option<InodeNumber>),
    ) -> Result<()> {
        self.leaves(process, [Some(directories.0), Some(directories.1), Some(moved), replaced])
    }
}

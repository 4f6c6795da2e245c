//! Pages of files that somebody else keeps ([KV6] of `lib.rs`).

use std::ops::Range;
use std::sync::Arc;

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Result, leaves_to_others};

use crate::Vfs;
use crate::file::OpenFile;
use crate::mutant::{Mutant, on};
use crate::quick::owe;
use crate::refusal::{Crossed, Refused, Why};

/// A change in progress; dropping it ends it, and may wait.
pub trait Change: Send {
    /// It changes these bytes, or will, as those before it now end elsewhere. Does not wait, and calls nothing. False if writeback of them would have to be waited for: then it changes
    /// nothing there.
    fn moves_to(&mut self, _: Range<u64>) -> bool {
        true
    }

    /// Ends it if that needs no wait; then dropping it does nothing more. False if it goes on.
    fn ends_at_once(&mut self) -> bool;
}

/// Keeps pages of files, which may have been changed there: the kernel behind a mount of the same file system. It asks for names and
/// attributes each time, so only data is told, and names that are gone.
///
/// Calls may wait for requests of the mount, so they come from threads that serve none, and without locks of the file system. Inside of
/// `no_wait` they return `WouldWait` instead, before they have had anything written back or dropped ([KV7]).
pub trait Caches: Send + Sync {
    /// Has changed pages of a file written to the file system. What was stored there before the call can be read afterwards.
    ///
    /// # Errors
    /// `WouldWait`.
    fn settle(&self, file: InodeNumber) -> Result<()>;

    /// Begins a change of bytes by somebody else, which ends when the value is dropped. From then on nobody sees older bytes, and older bytes
    /// never reach the file system.
    ///
    /// # Errors
    /// `WouldWait`.
    fn change(self: Arc<Self>, file: InodeNumber, bytes: Range<u64>) -> Result<Box<dyn Change>>;

    /// Somebody else may append to a file by stores from now on, of which nobody is told. Does not wait.
    ///
    /// # Errors
    /// Errors of the device.
    fn appends_by_stores(&self, _: InodeNumber) -> Result<()> {
        Ok(())
    }

    /// Whether somebody has a file open, and has had pages of it, who learns of a new size by [`change`](Self::change) alone, as mappings do. Does not wait.
    fn goes_by_sizes(&self, _: InodeNumber) -> bool {
        false
    }

    /// Whether pages of a file may be kept, so that both calls above would drop some. Does not wait.
    fn has_pages(&self, file: InodeNumber) -> bool;

    /// Whether reads of a file are to be left to who keeps its pages, as their caller wants. Counts as one such read. Does not wait.
    fn keeps_reads(&self, file: InodeNumber) -> bool {
        self.has_pages(file)
    }

    /// Whether a file is open there so that pages of it may come at any moment; those who open it while it is mapped for stores keep none. Does not wait.
    fn is_open(&self, _: InodeNumber) -> bool {
        false
    }

    /// Whether somebody is told by the kernel of what happens to one of these inodes (inotify, fanotify), also where it may be so.
    ///
    /// # Errors
    /// `WouldWait`.
    fn is_watched(&self, inodes: &[InodeNumber]) -> Result<bool>;

    /// Whether somebody may be watching of whom that is not known yet. Where nobody is, whoever may begin raises the version of that first ([VS8] of the
    /// file system). Does not wait.
    fn may_be_watched(&self) -> bool {
        false
    }

    /// Somebody else has taken a name away: who knows a file by it gives it up soon, since a file that is known is not freed. Does not wait.
    fn name_gone(&self, directory: InodeNumber, name: &[u8]);
}

/// A change in progress, if somebody keeps pages.
pub(crate) struct Changing(Option<Box<dyn Change>>);

impl Changing {
    /// As [`Change::moves_to`].
    pub(crate) fn moves_to(&mut self, bytes: Range<u64>) -> bool {
        on(Mutant::AppendGuessed) || self.0.as_mut().is_none_or(|change| change.moves_to(bytes))
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let Some(mut change) = self.0.take() else { return };
        if leaves_to_others() && !on(Mutant::ChangeEndedInside) && !change.ends_at_once() {
            owe(change); // [KV7]
        }
    }
}

/// For the kernel; nothing remains of a path.
pub(crate) fn left(why: Why, inode: InodeNumber) -> Refused {
    Refused::Crossed(Box::new(Crossed { why, directory: inode, remaining: Vec::new(), argument: 0 }))
}

impl Vfs {
    pub(crate) fn settle(&self, file: InodeNumber) -> Result<()> {
        self.caches.as_ref().map_or(Ok(()), |caches| caches.settle(file))
    }

    /// A name does not stand for an inode any more. Nothing is told where nobody holds the inode. The change is committed, so nothing here
    /// waits ([KV7]).
    pub(crate) fn name_gone(&self, directory: InodeNumber, name: &[u8], inode: InodeNumber) {
        if let Some(caches) = &self.caches
            && self.fs.is_held(inode)
        {
            caches.name_gone(directory, name);
        }
    }

    /// Hands a call back whose bytes somebody else has pages of, for callers that can reach those. They may come a moment later: then they are
    /// dropped as for any other caller.
    ///
    /// # Errors
    /// [`Why::Cached`](crate::Why::Cached).
    pub fn leaves_pages(&self, file: &OpenFile) -> std::result::Result<(), Refused> {
        let has_pages = self.caches.as_ref().is_some_and(|caches| caches.has_pages(file.inode()));
        if has_pages { Err(left(Why::Cached, file.inode())) } else { Ok(()) }
    }

    /// As [`Vfs::leaves_pages`], for a read or write that the caller wants left to whoever has pages, as often as he wants that.
    ///
    /// # Errors
    /// [`Why::Cached`](crate::Why::Cached).
    pub fn leaves_reads(&self, file: &OpenFile) -> std::result::Result<(), Refused> {
        let keeps = self.caches.as_ref().is_some_and(|caches| caches.keeps_reads(file.inode()));
        if keeps { Err(left(Why::Cached, file.inode())) } else { Ok(()) }
    }

    /// Hands a mapping for stores back of a file that is open there ([KV9] of `lib.rs`).
    ///
    /// # Errors
    /// [`Why::Cached`](crate::Why::Cached).
    pub(crate) fn leaves_open(&self, inode: InodeNumber) -> std::result::Result<(), Refused> {
        let is_open = self.caches.as_ref().is_some_and(|caches| caches.is_open(inode));
        if is_open { Err(left(Why::Cached, inode)) } else { Ok(()) }
    }

    /// Hands a write back that would let the file grow, for callers whose kernel has to know the size.
    ///
    /// # Errors
    /// [`Why::Grows`](crate::Why::Grows), and damage.
    pub fn leaves_growth(&self, file: &OpenFile, offset: i64, length: u64) -> std::result::Result<(), Refused> {
        let size = self.fs.size(file.inode())?;
        let is_inside = u64::try_from(offset).is_ok_and(|offset| offset.checked_add(length).is_some_and(|end| end <= size));
        if is_inside { Ok(()) } else { Err(left(Why::Grows, file.inode())) }
    }

    pub(crate) fn changing(&self, file: InodeNumber, bytes: Range<u64>) -> Result<Changing> {
        let begun = self.caches.as_ref().map(|caches| Arc::clone(caches).change(file, bytes));
        Ok(Changing(begun.transpose()?))
    }
}

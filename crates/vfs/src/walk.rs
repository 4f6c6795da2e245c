//! From a path to an inode, as Linux walks: search permission in every directory, links, `.` and `..`, trailing slashes, limits.

use std::borrow::Cow;

use rustix::io::Errno;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Attributes, Error, FileSystem};

use crate::Vfs;
use crate::credentials::Process;
use crate::file::OpenFile;
use crate::mutant::{Mutant, on};
use crate::permissions::{EXECUTE, is_directory, kind};
use crate::quick::{QUICK_STEPS, bounded};
use crate::refusal::{Crossed, Refused, Result, Why};

/// Longest path, in bytes without the NUL.
const PATH_BYTES_MAX: usize = 4095;
/// Most links that a walk follows.
const LINKS_MAX: u32 = 40;
/// Most times that something is looked at anew because somebody else has changed it meanwhile.
pub(crate) const TRIES_MAX: usize = 64;

/// Where a relative path begins.
#[derive(Clone, Copy)]
pub enum At<'a> {
    /// In the root of the file system.
    Root,
    /// In an open directory; with an empty path, an open file itself.
    Open(&'a OpenFile),
}

/// An inode that is held ([KV2] of `lib.rs`).
pub(crate) struct Held<'f> {
    fs: &'f FileSystem,
    number: InodeNumber,
}

impl<'f> Held<'f> {
    /// Holds an inode that was seen with these attributes; `Stale` if it was removed since.
    pub(crate) fn new(fs: &'f FileSystem, seen: &Attributes) -> std::result::Result<Self, Error> {
        fs.remember(seen.inode, seen.generation, 1)?;
        Ok(Self { fs, number: seen.inode })
    }

    /// Takes over a hold that the file system has made already.
    pub(crate) fn made(fs: &'f FileSystem, number: InodeNumber) -> Self {
        Self { fs, number }
    }

    /// Passes the hold on to an owner that releases it.
    pub(crate) fn pass_on(self) -> InodeNumber {
        let number = self.number;
        if on(Mutant::OpenNotHeld) {
            self.fs.forget(number, 1);
        }
        std::mem::forget(self);
        number
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !on(Mutant::HoldKept) {
            self.fs.forget(self.number, 1);
        }
    }
}

/// A held inode and what was seen of it.
pub(crate) struct Node<'f> {
    pub(crate) held: Held<'f>,
    pub(crate) attributes: Attributes,
    /// The directory in which it was found by its name.
    pub(crate) parent: Option<InodeNumber>,
}

impl Node<'_> {
    pub(crate) fn number(&self) -> InodeNumber {
        self.attributes.inode
    }

    pub(crate) fn is_link(&self) -> bool {
        kind(&self.attributes) == file_type::SYMLINK
    }
}

/// The last component of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Last {
    /// There is none: an empty path.
    Nothing,
    /// `.`
    Dot,
    /// `..`
    DotDot,
    /// A name.
    Name(Vec<u8>),
}

impl Last {
    fn of(component: &[u8]) -> Self {
        match component {
            b"." => Self::Dot,
            b".." => Self::DotDot,
            name => Self::Name(name.to_vec()),
        }
    }
}

/// A walk in progress.
pub(crate) struct Walk<'w> {
    vfs: &'w Vfs,
    process: &'w Process,
    /// Where it stands: the directory of the last component once [`Walk::walk_to_last`] has returned.
    pub(crate) at: Node<'w>,
    path: Cow<'w, [u8]>,
    /// Start of the component that was taken last, and of the next.
    component: usize,
    next: usize,
    links: u32,
    /// Components so far.
    steps: u32,
}

impl<'w> Walk<'w> {
    /// A walk at its start. `may_be_empty`: AT_EMPTY_PATH.
    pub(crate) fn start(vfs: &'w Vfs, process: &'w Process, at: At<'_>, path: &'w [u8], may_be_empty: bool) -> Result<Self> {
        match path {
            [] if !may_be_empty => return Err(Errno::NOENT.into()),
            _ if path.len() > PATH_BYTES_MAX => return Err(Errno::NAMETOOLONG.into()),
            _ if path.contains(&0) => return Err(Errno::INVAL.into()),
            _ => {}
        }
        let start = match at {
            At::Root => InodeNumber::ROOT,
            At::Open(file) => file.inode(),
        };
        let attributes = vfs.fs.attributes(start)?;
        let at = Node { held: Held::new(&vfs.fs, &attributes)?, attributes, parent: None };
        let walk = Self { vfs, process, at, path: Cow::Borrowed(path), component: 0, next: 0, links: 0, steps: 0 };
        if path.first() == Some(&b'/') { Err(walk.crossed(Why::Absolute)) } else { Ok(walk) }
    }

    /// Walks to the last component and returns it, and whether slashes follow it.
    pub(crate) fn walk_to_last(&mut self) -> Result<(Last, bool)> {
        loop {
            let path = &self.path[self.next..];
            if path.is_empty() {
                return Ok((Last::Nothing, false));
            }
            if !is_directory(&self.at.attributes) {
                return Err(Errno::NOTDIR.into());
            }
            self.steps += 1;
            bounded(self.steps.into(), QUICK_STEPS.into())?; // [KV7]
            self.vfs.permit(&self.process.credentials, &self.at.attributes, EXECUTE)?;
            let end = path.iter().position(|byte| *byte == b'/').unwrap_or(path.len());
            let after = path[end..].iter().position(|byte| *byte != b'/').map_or(path.len(), |slashes| end + slashes);
            let (last, has_slash, is_end) = (Last::of(&path[..end]), after > end, after == path.len());
            (self.component, self.next) = (self.next, self.next + after);
            if is_end {
                return Ok((last, has_slash));
            }
            match last {
                Last::Nothing | Last::Dot => {}
                Last::DotDot => self.up()?,
                Last::Name(name) => {
                    let found = self.look_up(&name)?;
                    if found.is_link() {
                        self.follow(&found)?;
                    } else if is_directory(&found.attributes) {
                        self.at = found;
                    } else {
                        return Err(Errno::NOTDIR.into());
                    }
                }
            }
        }
    }

    /// Walks to the end. `follows`: also a link that is the last component; with a slash behind it, it is followed in any case.
    pub(crate) fn walk_to_end(mut self, mut follows: bool, mut must_be_directory: bool) -> Result<Node<'w>> {
        loop {
            let (last, has_slash) = self.walk_to_last()?;
            (follows, must_be_directory) = (follows || has_slash, must_be_directory || has_slash);
            match last {
                Last::Nothing | Last::Dot => break,
                Last::DotDot => {
                    self.up()?;
                    break;
                }
                Last::Name(name) => {
                    let found = self.look_up(&name)?;
                    if !(found.is_link() && follows) {
                        self.at = found;
                        break;
                    }
                    self.follow_last(&found)?;
                }
            }
        }
        if must_be_directory && !is_directory(&self.at.attributes) { Err(Errno::NOTDIR.into()) } else { Ok(self.at) }
    }

    /// Finds a name in the directory where the walk stands.
    pub(crate) fn look_up(&self, name: &[u8]) -> Result<Node<'w>> {
        for _ in 0..TRIES_MAX {
            let attributes = self.vfs.fs.lookup(self.at.number(), name)?;
            self.must_not_be_mounted_on(attributes.inode)?;
            match Held::new(&self.vfs.fs, &attributes) {
                Ok(held) => return Ok(Node { held, attributes, parent: Some(self.at.number()) }),
                Err(Error::Stale(_)) => {} // removed since, and perhaps replaced
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::NOENT.into())
    }

    /// As [`Walk::look_up`]; a name whose inode is damaged stands for a placeholder of which only the type is known, so that it can be
    /// removed and replaced. `None` if there is no such name.
    pub(crate) fn look_up_to_change(&self, name: &[u8]) -> Result<Option<Node<'w>>> {
        match self.look_up(name) {
            Ok(found) => Ok(Some(found)),
            Err(Refused::FileSystem(Error::NotFound)) => Ok(None),
            Err(Refused::FileSystem(error @ Error::Damaged { .. })) => match self.vfs.fs.damaged_name(self.at.number(), name)? {
                Some((inode, mode)) => {
                    let (held, directory) = (Held::made(&self.vfs.fs, inode), &self.at.attributes);
                    let attributes = Attributes { inode, mode, uid: 0, gid: 0, nlink: 1, size: 0, generation: 0, ..directory.clone() };
                    Ok(Some(Node { held, attributes, parent: Some(directory.inode) }))
                }
                None => Err(error.into()),
            },
            Err(other) => Err(other),
        }
    }

    /// Goes to the parent directory.
    pub(crate) fn up(&mut self) -> Result<()> {
        if self.at.number() == InodeNumber::ROOT {
            return Err(self.crossed(Why::AboveRoot));
        }
        for _ in 0..TRIES_MAX {
            if self.vfs.fs.attributes(self.at.number())?.nlink == 0 {
                break; // its parent may be another inode by now
            }
            let attributes = self.vfs.fs.lookup(self.at.number(), b"..")?;
            self.must_not_be_mounted_on(attributes.inode)?;
            if let Ok(held) = Held::new(&self.vfs.fs, &attributes) {
                self.at = Node { held, attributes, parent: None };
                return Ok(());
            }
        }
        Err(self.crossed(Why::RemovedDirectory))
    }

    /// Follows a link that is the last component.
    pub(crate) fn follow_last(&mut self, link: &Node<'_>) -> Result<()> {
        self.vfs.permit_following(&self.process.credentials, &self.at.attributes, &link.attributes)?;
        self.follow(link)
    }

    /// Puts the target of a link in front of the path that remains.
    fn follow(&mut self, link: &Node<'_>) -> Result<()> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let mut path = self.vfs.fs.read_link(link.number())?;
        let rest = &self.path[self.next..];
        if !rest.is_empty() {
            path.push(b'/');
            path.extend_from_slice(rest);
        }
        let is_absolute = path.first() == Some(&b'/') && !on(Mutant::AbsoluteStaysHere);
        (self.path, self.component, self.next) = (Cow::Owned(path), 0, 0);
        if is_absolute { Err(self.crossed(Why::Absolute)) } else { Ok(()) }
    }

    fn must_not_be_mounted_on(&self, inode: InodeNumber) -> Result<()> {
        if self.process.mount_points.contains(&inode) && !on(Mutant::MountPointPassed) {
            Err(self.crossed(Why::MountPoint))
        } else {
            Ok(())
        }
    }

    /// The component that was taken last, and what follows it, are for the kernel.
    pub(crate) fn crossed(&self, why: Why) -> Refused {
        let remaining = self.path[self.component..].to_vec();
        Refused::Crossed(Box::new(Crossed { why, directory: self.at.number(), remaining, argument: 0 }))
    }
}

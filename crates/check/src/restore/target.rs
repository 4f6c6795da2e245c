//! The directory that gets the copies.
//!
//! [TD1] Names come from a damaged image, so nobody trusts them. Every call names one component below an open directory, which was opened
//!       from its parent in the same way and without following a symbolic link: nothing outside of the directory is reached, whatever the
//!       names are and whatever links were restored before.
//! [TD2] Files are created exclusively. What has the name already is another run's (with `force`) or another file's of the image.
//! [TD3] A file gets its time of last change when it is complete, so a run that goes on knows what need not be copied again.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RawDir, Stat, Timespec, Timestamps, Uid, XattrFlags, makedev};
use rustix::io::Errno;
use tandemfs_format::inode::{Inode, Timestamp, file_type};

use crate::mutant::{Mutant, on};
use crate::namespace::is_name;
use crate::paths::printable;

/// Gets what the target refuses.
pub(crate) type Refusals<'r> = &'r mut dyn FnMut(&'static str, Errno);

/// Number of a directory of the target.
pub(crate) type NodeNumber = usize;
/// The target directory itself.
pub(crate) const TOP: NodeNumber = 0;

/// The directory for what has no name.
pub(crate) const LOST_FOUND: &[u8] = b"lost+found";

struct Node {
    parent: NodeNumber,
    name: Vec<u8>,
}

/// The directory and what was made below it.
pub(crate) struct Target {
    path: PathBuf,
    /// `None` in a dry run.
    top: Option<OwnedFd>,
    nodes: Vec<Node>,
    /// The directory used last, so that not each file opens the whole path anew.
    last: Option<(NodeNumber, OwnedFd)>,
    goes_on: bool,
}

/// What became of a file to be created.
pub(crate) enum Created<T> {
    New(T),
    /// An earlier run completed it.
    Complete,
}

fn name_of(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Target {
    /// Opens the directory, made if it does not exist. `Errno::NOTEMPTY` unless it is empty or `goes_on`.
    pub(crate) fn open(path: &Path, goes_on: bool, dry_run: bool) -> Result<Self, Errno> {
        let mut top = None;
        if !dry_run {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error));
                }
                _ => {}
            }
            // The user's own path may lead through symbolic links.
            let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
            if !goes_on && !is_empty(opened.as_fd())? {
                return Err(Errno::NOTEMPTY);
            }
            top = Some(opened);
        }
        Ok(Self { path: path.to_owned(), top, nodes: vec![Node { parent: TOP, name: Vec::new() }], last: None, goes_on })
    }

    /// The path of a name, for messages.
    pub(crate) fn path_of(&self, node: NodeNumber, name: &[u8]) -> String {
        let mut parts = vec![printable(name)];
        let mut at = node;
        while let Some(found) = self.nodes.get(at).filter(|_| at != TOP) {
            parts.push(printable(&found.name));
            at = found.parent;
        }
        parts.reverse();
        format!("/{}", parts.join("/"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The parent and the name of a directory.
    pub(crate) fn place_of(&self, node: NodeNumber) -> (NodeNumber, &[u8]) {
        self.nodes.get(node).map_or((TOP, &[]), |node| (node.parent, &node.name))
    }

    /// Opens a directory, component by component ([TD1]). `None` in a dry run.
    fn directory(&mut self, node: NodeNumber) -> Result<Option<BorrowedFd<'_>>, Errno> {
        let Some(top) = &self.top else { return Ok(None) };
        if node == TOP {
            return Ok(Some(top.as_fd()));
        }
        if self.last.as_ref().is_none_or(|(last, _)| *last != node) {
            let mut way = Vec::new();
            let mut at = node;
            while let Some(found) = self.nodes.get(at).filter(|_| at != TOP) {
                way.push(found);
                at = found.parent;
            }
            let mut opened: Option<OwnedFd> = None;
            for part in way.iter().rev() {
                let from = opened.as_ref().map_or(top.as_fd(), AsFd::as_fd);
                opened = Some(rustix::fs::openat(from, name_of(&part.name), DIRECTORY_FLAGS, Mode::empty())?);
            }
            self.last = opened.map(|opened| (node, opened));
        }
        Ok(self.last.as_ref().map(|(_, opened)| opened.as_fd()))
    }

    /// What has this name now.
    fn existing(&mut self, node: NodeNumber, name: &[u8]) -> Result<Option<Stat>, Errno> {
        // Whoever gives a name here has to have looked at it; this is the last place that can ([TD1]).
        if !is_name(name) && !on(Mutant::NamesTrusted) {
            return Err(Errno::INVAL);
        }
        let Some(directory) = self.directory(node)? else { return Ok(None) };
        match rustix::fs::statat(directory, name_of(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory, which only its owner may use until it is complete.
    pub(crate) fn make_directory(&mut self, node: NodeNumber, name: &[u8]) -> Result<NodeNumber, Errno> {
        // A new ext4 has this directory.
        let may_exist = self.goes_on || node == TOP && name == LOST_FOUND;
        if let Some(stat) = self.existing(node, name)? {
            if !may_exist {
                return Err(Errno::EXIST);
            }
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                self.remove(node, name)?;
            }
        }
        if let Some(directory) = self.directory(node)? {
            match rustix::fs::mkdirat(directory, name_of(name), Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) if may_exist => {
                    // An earlier run may have completed it already, so that it refuses new entries.
                    let opened = rustix::fs::openat(directory, name_of(name), DIRECTORY_FLAGS, Mode::empty())?;
                    let _ = rustix::fs::fchmod(&opened, Mode::RWXU);
                }
                Err(error) => return Err(error),
            }
        }
        self.nodes.push(Node { parent: node, name: name.to_vec() });
        Ok(self.nodes.len() - 1)
    }

    /// Takes an unfinished file of an earlier run away. A directory stays: the user's own files may be in it.
    fn remove(&mut self, node: NodeNumber, name: &[u8]) -> Result<(), Errno> {
        let Some(directory) = self.directory(node)? else { return Ok(()) };
        rustix::fs::unlinkat(directory, name_of(name), AtFlags::empty())
    }

    /// Whether a name is free, after an unfinished file of an earlier run was taken away.
    fn clear(&mut self, node: NodeNumber, name: &[u8], inode: &Inode) -> Result<bool, Errno> {
        let Some(stat) = self.existing(node, name)? else { return Ok(true) };
        if !self.goes_on {
            return Err(Errno::EXIST);
        }
        let is_file = matches!(inode.file_type(), file_type::REGULAR | file_type::SYMLINK);
        let is_same = stat.st_mode & 0o170_000 == u32::from(inode.file_type())
            && (!is_file || stat.st_size as u64 == inode.size)
            && stat.st_mtime == inode.mtime.seconds
            && stat.st_mtime_nsec == inode.mtime.nanoseconds.into();
        if is_same {
            return Ok(false); // [TD3]
        }
        self.remove(node, name)?;
        Ok(true)
    }

    /// Creates a regular file; `None` inside in a dry run.
    pub(crate) fn create_file(&mut self, node: NodeNumber, name: &[u8], inode: &Inode) -> Result<Created<Option<OwnedFd>>, Errno> {
        if !self.clear(node, name, inode)? {
            return Ok(Created::Complete);
        }
        let Some(directory) = self.directory(node)? else { return Ok(Created::New(None)) };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC; // [TD2]
        Ok(Created::New(Some(rustix::fs::openat(directory, name_of(name), flags, Mode::RUSR | Mode::WUSR)?)))
    }

    /// Makes a symbolic link. Nothing of this program ever follows it ([TD1]).
    pub(crate) fn make_link(&mut self, node: NodeNumber, name: &[u8], inode: &Inode, target: &[u8]) -> Result<Created<()>, Errno> {
        if !self.clear(node, name, inode)? {
            return Ok(Created::Complete);
        }
        if let Some(directory) = self.directory(node)? {
            rustix::fs::symlinkat(name_of(target), directory, name_of(name))?;
        }
        Ok(Created::New(()))
    }

    /// Makes a device, a FIFO or a socket.
    pub(crate) fn make_special(&mut self, node: NodeNumber, name: &[u8], inode: &Inode) -> Result<Created<()>, Errno> {
        if !self.clear(node, name, inode)? {
            return Ok(Created::Complete);
        }
        if let Some(directory) = self.directory(node)? {
            let kind = FileType::from_raw_mode(inode.file_type().into());
            // As the kernel packs a device number into 32 bits.
            let packed = inode.rdev();
            let device = match inode.file_type() {
                file_type::CHARACTER | file_type::BLOCK => makedev(packed >> 8 & 0xfff, packed & 0xff | packed >> 12 & 0xf_ff00),
                _ => 0,
            };
            rustix::fs::mknodat(directory, name_of(name), kind, Mode::RUSR | Mode::WUSR, device)?;
        }
        Ok(Created::New(()))
    }

    /// Gives a file that was restored another name.
    pub(crate) fn add_name(&mut self, from: (NodeNumber, &[u8]), node: NodeNumber, name: &[u8]) -> Result<(), Errno> {
        let Some(source) = self.directory(from.0)? else { return Ok(()) };
        let source = source.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        if let (Some(old), Some(first)) = (self.existing(node, name)?, self.existing(from.0, from.1)?) {
            if !self.goes_on {
                return Err(Errno::EXIST);
            }
            if (old.st_dev, old.st_ino) == (first.st_dev, first.st_ino) {
                return Ok(());
            }
            self.remove(node, name)?;
        }
        let Some(directory) = self.directory(node)? else { return Ok(()) };
        rustix::fs::linkat(source, name_of(from.1), directory, name_of(name), AtFlags::empty())
    }

    /// Gives a name of a directory the properties of its inode; what the target refuses goes to `refused`. Times come last ([TD3]).
    pub(crate) fn set_properties(
        &mut self,
        (node, name): (NodeNumber, &[u8]),
        inode: &Inode,
        attributes: &[(Vec<u8>, Vec<u8>)],
        refused: Refusals<'_>,
    ) -> Result<(), Errno> {
        let Some(directory) = self.directory(node)? else { return Ok(()) };
        let mut mode = inode.mode & 0o7777;
        let (owner, group) = (id(inode.uid).map(Uid::from_raw), id(inode.gid).map(Gid::from_raw));
        if let Err(error) = rustix::fs::chownat(directory, name_of(name), owner, group, AtFlags::SYMLINK_NOFOLLOW) {
            mode &= 0o1777; // as another owner's, the file must not run with rights that were not his to give
            refused("owner", error);
        }
        for (attribute, value) in attributes {
            // The way through /proc is the only one to a file that cannot be opened; the last component is not followed.
            let mut path = format!("/proc/self/fd/{}/", std::os::fd::AsRawFd::as_raw_fd(&directory)).into_bytes();
            path.extend_from_slice(name);
            if let Err(error) = rustix::fs::lsetxattr(name_of(&path), name_of(attribute), value, XattrFlags::empty()) {
                refused("extended attribute", error);
            }
        }
        if inode.file_type() != file_type::SYMLINK {
            // The kernel has no call that changes the mode of a name and follows no link but by a descriptor; files here are ours.
            let set = set_mode(directory, name, inode.file_type(), Mode::from_raw_mode(mode.into()));
            set.unwrap_or_else(|error| refused("mode", error));
        }
        let times = Timestamps { last_access: time(inode.atime), last_modification: time(inode.mtime) };
        let set = rustix::fs::utimensat(directory, name_of(name), &times, AtFlags::SYMLINK_NOFOLLOW);
        set.unwrap_or_else(|error| refused("time", error));
        Ok(())
    }

    /// Makes everything durable.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        self.top.as_ref().map_or(Ok(()), rustix::fs::syncfs)
    }
}

/// Regular files and directories by a descriptor; of the others the type is compared first.
fn set_mode(directory: BorrowedFd<'_>, name: &[u8], kind: u16, mode: Mode) -> Result<(), Errno> {
    match kind {
        file_type::REGULAR | file_type::DIRECTORY => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::fchmod(rustix::fs::openat(directory, name_of(name), flags, Mode::empty())?, mode)
        }
        _ => {
            let stat = rustix::fs::statat(directory, name_of(name), AtFlags::SYMLINK_NOFOLLOW)?;
            if stat.st_mode & 0o170_000 != u32::from(kind) {
                return Err(Errno::LOOP);
            }
            rustix::fs::chmodat(directory, name_of(name), mode, AtFlags::empty())
        }
    }
}

/// Owners for whom there is no number stay as they are.
fn id(number: u32) -> Option<u32> {
    (number != u32::MAX).then_some(number)
}

fn time(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.min(999_999_999).into() }
}

fn is_empty(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." && name != LOST_FOUND {
            return Ok(false);
        }
    }
    Ok(true)
}

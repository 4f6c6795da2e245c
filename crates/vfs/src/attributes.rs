//! stat, access, chmod, chown, utimens, truncate, readlink.

use rustix::io::Errno;
use tandemfs_format::inode::{Timestamp, file_type};
use tandemfs_fs::{Attributes, SetAttributes, SetTime};

use crate::Vfs;
use crate::credentials::{Capability, Credentials, Process};
use crate::file::{OpenFile, offset_of};
use crate::permissions::{WRITE, is_directory, kind};
use crate::privileges::Taken;
use crate::quick::{QUICK_FILE_BYTES, bounded};
use crate::refusal::Result;
use crate::walk::{At, Held, Node, Walk};

const SET_GROUP_ID: u16 = 0o2000;
const NANOSECONDS: i64 = 1_000_000_000;

/// A file of a call: by its path or by a descriptor.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// By a path. `follows`: also a link that is the last component. `may_be_empty`: AT_EMPTY_PATH.
    Path {
        /// Where the path begins.
        at: At<'a>,
        /// The path.
        path: &'a [u8],
        /// The file that a link at the end names, not the link.
        follows: bool,
        /// An empty path is the file itself.
        may_be_empty: bool,
    },
    /// By a descriptor, which must not be an O_PATH one.
    Open(&'a OpenFile),
}

impl<'a> Subject<'a> {
    /// A path with the flags AT_SYMLINK_NOFOLLOW and AT_EMPTY_PATH; AT_NO_AUTOMOUNT and AT_STATX_ bits mean nothing here.
    ///
    /// # Errors
    /// `EINVAL` for other flags.
    pub fn at(at: At<'a>, path: &'a [u8], flags: i32) -> Result<Self> {
        const IGNORED: i32 = libc::AT_NO_AUTOMOUNT | libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;
        if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | IGNORED) != 0 {
            return Err(Errno::INVAL.into());
        }
        let (follows, may_be_empty) = (flags & libc::AT_SYMLINK_NOFOLLOW == 0, flags & libc::AT_EMPTY_PATH != 0);
        Ok(Self::Path { at, path, follows, may_be_empty })
    }

    /// A path whose links are followed, all of them.
    pub fn followed(at: At<'a>, path: &'a [u8]) -> Self {
        Self::Path { at, path, follows: true, may_be_empty: false }
    }

    /// A path whose last component is not followed.
    pub fn unfollowed(at: At<'a>, path: &'a [u8]) -> Self {
        Self::Path { at, path, follows: false, may_be_empty: false }
    }
}

/// One of the two times of utimensat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeToSet {
    /// It stays (UTIME_OMIT).
    Omit,
    /// The time of the call (UTIME_NOW).
    Now,
    /// This time, in seconds and nanoseconds.
    At(i64, i64),
}

/// The times of utimensat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetTimes {
    /// Last read.
    pub atime: TimeToSet,
    /// Last change of data.
    pub mtime: TimeToSet,
}

impl SetTimes {
    /// Both the time of the call: a null pointer of utimensat(2).
    pub const NOW: Self = Self { atime: TimeToSet::Now, mtime: TimeToSet::Now };
}

impl TimeToSet {
    fn checked(self) -> Result<Option<SetTime>> {
        match self {
            Self::Omit => Ok(None),
            Self::Now => Ok(Some(SetTime::Now)),
            Self::At(seconds, nanoseconds) if (0..NANOSECONDS).contains(&nanoseconds) => {
                Ok(Some(SetTime::At(Timestamp { seconds, nanoseconds: nanoseconds as u32 })))
            }
            Self::At(..) => Err(Errno::INVAL.into()),
        }
    }
}

impl Vfs {
    /// Finds the file of a call.
    pub(crate) fn subject<'w>(&'w self, process: &'w Process, subject: Subject<'w>) -> Result<Node<'w>> {
        match subject {
            Subject::Path { at, path, follows, may_be_empty } => {
                Walk::start(self, process, at, path, may_be_empty)?.walk_to_end(follows, false)
            }
            Subject::Open(file) => {
                file.must_be_a_file()?;
                let attributes = file.attributes()?;
                Ok(Node { held: Held::new(&self.fs, &attributes)?, attributes, parent: file.parent() })
            }
        }
    }

    /// What stat(2) shows.
    ///
    /// # Errors
    /// As fstatat(2).
    pub fn stat(&self, process: &Process, subject: Subject<'_>) -> Result<Attributes> {
        Ok(self.subject(process, subject)?.attributes)
    }

    /// faccessat2(2): whether the process may do what the three bits of `mode` say. By its real ids, unless `effective` (AT_EACCESS).
    ///
    /// # Errors
    /// As faccessat2(2).
    pub fn access(&self, process: &Process, subject: Subject<'_>, mode: u32, effective: bool) -> Result<()> {
        if mode & !7 != 0 {
            return Err(Errno::INVAL.into());
        }
        let real;
        let process = if effective {
            process
        } else {
            real = Process { credentials: process.real.clone(), ..process.clone() };
            &real
        };
        let node = self.subject(process, subject)?;
        self.permit(&process.credentials, &node.attributes, mode as u16)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As readlinkat(2). An empty path is the link that `at` is, opened with O_PATH.
    pub fn read_link(&self, process: &Process, at: At<'_>, path: &[u8]) -> Result<Vec<u8>> {
        let node = Walk::start(self, process, at, path, true)?.walk_to_end(false, false)?;
        match node.is_link() {
            true => Ok(self.fs.read_link(node.number())?),
            false if path.is_empty() => Err(Errno::NOENT.into()),
            false => Err(Errno::INVAL.into()),
        }
    }

    /// chmod(2). Who is not in the file's group, and has no CAP_FSETID, does not set set-group-id.
    ///
    /// # Errors
    /// As fchmodat2(2).
    pub fn change_mode(&self, process: &Process, subject: Subject<'_>, mode: u32) -> Result<()> {
        let who = &process.credentials;
        let node = self.subject(process, subject)?;
        self.must_be_writable()?;
        // Linux compares the kind first.
        if node.is_link() {
            return Err(Errno::OPNOTSUPP.into());
        }
        if !who.owns(node.attributes.uid) {
            return Err(Errno::PERM.into());
        }
        self.leaves_watched_node(process, &node)?;
        let mode = (mode & 0o7777) as u16;
        let permissions = if who.may_keep_set_group_id(node.attributes.gid) { mode } else { mode & !SET_GROUP_ID };
        self.set(&node, &SetAttributes { permissions: Some(permissions), ..SetAttributes::default() })
    }

    /// chown(2); `None` leaves an id as it is. It takes set-id bits and capabilities from everything but directories.
    ///
    /// # Errors
    /// As fchownat(2).
    pub fn change_owner(&self, process: &Process, subject: Subject<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let who = &process.credentials;
        let node = self.subject(process, subject)?;
        self.must_be_writable()?;
        let (file, may_give) = (&node.attributes, who.has(Capability::Chown));
        let may_set_user = |uid: u32| may_give || who.uid == file.uid && uid == file.uid;
        let may_set_group = |gid: u32| may_give || who.uid == file.uid && (gid == file.gid || who.is_in_group(gid));
        if uid.is_some_and(|uid| !may_set_user(uid)) || gid.is_some_and(|gid| !may_set_group(gid)) {
            return Err(Errno::PERM.into());
        }
        let takes = !is_directory(file);
        let kill_set_group_id = takes && !who.may_keep_set_group_id(file.gid);
        self.leaves_watched_node(process, &node)?;
        if takes {
            self.take_capabilities(node.number())?;
        }
        self.set(&node, &SetAttributes { uid, gid, kill_set_id: takes, kill_set_group_id, ..SetAttributes::default() })
    }

    /// utimensat(2).
    ///
    /// # Errors
    /// As utimensat(2).
    pub fn set_times(&self, process: &Process, subject: Subject<'_>, times: SetTimes) -> Result<()> {
        let who = &process.credentials;
        let (atime, mtime) = (times.atime.checked()?, times.mtime.checked()?);
        if (atime, mtime) == (None, None) {
            return Ok(()); // Linux does not even look at the path
        }
        let node = self.subject(process, subject)?;
        self.must_be_writable()?;
        if !who.owns(node.attributes.uid) {
            match times {
                SetTimes::NOW => self.permit(who, &node.attributes, WRITE)?,
                _ => return Err(Errno::PERM.into()),
            }
        }
        self.leaves_watched_node(process, &node)?;
        self.set(&node, &SetAttributes { atime, mtime, ..SetAttributes::default() })
    }

    /// truncate(2) and ftruncate(2).
    ///
    /// # Errors
    /// As truncate(2).
    pub fn truncate(&self, process: &Process, subject: Subject<'_>, length: i64) -> Result<()> {
        let (who, length) = (&process.credentials, offset_of(length)?);
        if let Subject::Open(file) = subject {
            file.must_be_a_file()?;
            if file.kind() != file_type::REGULAR || file.must_write().is_err() {
                return Err(Errno::INVAL.into());
            }
            self.leaves_watched_file(process, file)?;
            return self.resize(who, &file.attributes()?, length).map(drop);
        }
        let node = self.subject(process, subject)?;
        match kind(&node.attributes) {
            file_type::DIRECTORY => return Err(Errno::ISDIR.into()),
            file_type::REGULAR => {}
            _ => return Err(Errno::INVAL.into()),
        }
        self.must_be_writable()?;
        self.permit(who, &node.attributes, WRITE)?;
        self.leaves_watched_node(process, &node)?;
        self.resize(who, &node.attributes, length).map(drop)
    }

    /// Sets the size of a file that may be written ([KV5] of `lib.rs`); returns what it is then.
    pub(crate) fn resize(&self, who: &Credentials, file: &Attributes, size: u64) -> Result<Attributes> {
        let old = self.fs.size(file.inode)?;
        bounded(old.saturating_sub(size), QUICK_FILE_BYTES)?; // [KV7]
        let _changing = self.changing(file.inode, size.min(old)..i64::MAX as u64)?; // [KV6]
        let taken = Taken::by(who, file);
        self.take_capabilities(file.inode)?;
        let (kill_set_id, kill_set_group_id) = (taken.set_id, taken.set_group_id);
        let set = SetAttributes { size: Some(size), kill_set_id, kill_set_group_id, ..SetAttributes::default() };
        Ok(self.fs.set_attributes(file.inode, &set)?)
    }

    fn set(&self, node: &Node<'_>, set: &SetAttributes) -> Result<()> {
        self.fs.set_attributes(node.number(), set)?;
        Ok(())
    }
}

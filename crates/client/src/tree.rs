//! Calls by path.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;
use tandemfs_protocol::{FirstListed, Handle, Operation, Place, TEXT_BYTES_MAX, TimeToSet};
use tandemfs_ring::{Answer, Attributes, Seen};

use crate::area::Piece;
use crate::connection::{Call, Connection};
use crate::directory::{FIRST_BYTES, FirstEntries};
use crate::idle::{Found, KnownOpen, Opening};
use crate::known::{Question, Told};
use crate::subject::{Name, Target};
use crate::whole::{WHOLE_BYTES, WholeFile};
use crate::{Directory, File, Mount, Result};

pub(crate) mod sealed {
    use std::sync::Arc;

    use tandemfs_protocol::Place;

    use crate::connection::Connection;

    /// Where paths begin.
    pub trait Base {
        #[doc(hidden)]
        fn connection(&self) -> &Arc<Connection>;
        #[doc(hidden)]
        fn place(&self) -> Place;
    }
}

fn bytes(path: &(impl AsRef<Path> + ?Sized)) -> &[u8] {
    path.as_ref().as_os_str().as_bytes()
}

fn raw(flags: AtFlags) -> i32 {
    flags.bits().cast_signed()
}

fn target<'a>(tree: &'a (impl Tree + ?Sized), path: &'a (impl AsRef<Path> + ?Sized), flags: AtFlags) -> Target<'a> {
    let name = Name::Path { at: tree.place(), path: bytes(path), flags: raw(flags) };
    Target { connection: tree.connection(), name }
}

/// Names of a list, each followed by NUL.
pub(crate) fn names_of(list: &[u8]) -> Vec<OsString> {
    list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(|name| OsString::from_vec(name.to_vec())).collect()
}

fn opened(tree: &(impl Tree + ?Sized), path: &[u8], flags: i32, mode: u32) -> Result<(File, Option<Attributes>)> {
    let (connection, at, spelled) = (tree.connection(), tree.place(), path);
    let absence = Question::absence(at, path, flags);
    if let Some(Told::Errno(Errno::NOENT)) = connection.told(absence.as_ref()) {
        return Err(Errno::NOENT.into());
    }
    let opening = if connection.idle_files.are_wanted() { Opening::of(at, path, flags) } else { None };
    if let Some(opening) = &opening {
        match connection.idle_files.take(connection.ring(), opening) {
            Found::Open(handle, open) => {
                let (attributes, ahead) = (open.attributes, open.whole.clone().map_or(Ahead::Nothing, Ahead::Whole));
                let file = File::new(Arc::clone(connection), handle, flags, attributes.size_bytes, ahead, Some(open));
                return Ok((file, Some(attributes)));
            }
            Found::Stale(handle) => connection.close_for_good(handle),
            Found::Nothing => {}
        }
    }
    let mut call = connection.begin()?;
    let path = call.text(path)?;
    let umask = connection.umask.load(Ordering::Relaxed);
    let room = match connection.known.is_wanted() {
        true if lists(flags) => FIRST_BYTES,
        true if connection.whole_files.are_wanted(flags) => WHOLE_BYTES,
        true if opening.is_some() => 1, // the words of the open alone ([KNW6] of the daemon)
        _ => 0,
    };
    let into = if room > 0 { call.room_at_once(room) } else { None }.unwrap_or(Piece::none());
    let (answer, seen) = call.send_and_see(&Operation::Open { at, path, flags, mode, umask, into: into.range });
    let ahead = answer.as_ref().map_or(Ahead::Nothing, |answer| Ahead::taken(connection, &mut call, into, answer, seen));
    drop(call);
    if let (Some(absence), Err(error)) = (&absence, &answer) {
        connection.known.keep_error(absence, error, seen);
    }
    let answer = answer?;
    if let Ahead::Entries(first) = &ahead
        && let Some((names, seen)) = first.all_names()
        && let Some(question) = Question::names(at, spelled)
    {
        connection.known.keep(&question, Told::Names(names), seen); // [KN7]
    }
    let handle = Handle::of(answer.value).ok_or(Errno::PROTO)?;
    let known = opening.zip(answer.attributes).filter(|_| is_open_known(&answer, seen));
    let known = known.map(|(opening, attributes)| Box::new(KnownOpen { opening, attributes, seen, whole: ahead.whole() }));
    let bytes = answer.attributes.as_ref().map_or(0, |found| found.size_bytes);
    Ok((File::new(Arc::clone(connection), handle, flags, bytes, ahead, known), answer.attributes))
}

/// Whether the words of an answer are also those of the open of a regular file.
fn is_open_known(answer: &Answer, seen: Seen) -> bool {
    let is_regular = answer.attributes.is_some_and(|found| FileType::from_raw_mode(found.mode) == FileType::RegularFile);
    is_regular && !seen.is_none() && FirstListed::decode(answer.further).is_some_and(|found| found.is_open_known)
}

/// What of a file came with its open.
#[derive(Debug)]
pub(crate) enum Ahead {
    Nothing,
    /// First entries of a directory.
    Entries(FirstEntries),
    /// All of a small file.
    Whole(Arc<WholeFile>),
}

impl Ahead {
    /// What an answer has, if that may be kept.
    fn taken(of: &Connection, call: &mut Call<'_>, into: Piece, answer: &Answer, seen: Seen) -> Self {
        let is_directory = answer.attributes.is_some_and(|found| FileType::from_raw_mode(found.mode) == FileType::Directory);
        let taken = match is_directory {
            true => FirstEntries::taken(call, into, answer, seen).map(Self::Entries),
            false => WholeFile::taken(&of.whole_files, call, into, answer, seen).map(|whole| Self::Whole(Arc::new(whole))),
        };
        taken.unwrap_or(Self::Nothing)
    }

    fn whole(&self) -> Option<Arc<WholeFile>> {
        if let Self::Whole(whole) = self { Some(Arc::clone(whole)) } else { None }
    }
}

/// Whether who opens with these flags surely wants a directory, and may list it.
fn lists(flags: i32) -> bool {
    let flags = OFlags::from_bits_retain(flags.cast_unsigned());
    let is_only_read = flags & OFlags::ACCMODE == OFlags::RDONLY;
    is_only_read && flags.contains(OFlags::DIRECTORY) && !flags.intersects(OFlags::PATH | OFlags::CREATE)
}

/// Where the paths of a call begin, decided when the program runs.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a> {
    /// In the root of a mount.
    Root(&'a Mount),
    /// In an open directory.
    Directory(&'a File),
}

impl sealed::Base for Start<'_> {
    fn connection(&self) -> &Arc<Connection> {
        match self {
            Self::Root(mount) => mount.connection(),
            Self::Directory(file) => file.connection(),
        }
    }

    fn place(&self) -> Place {
        match self {
            Self::Root(mount) => mount.place(),
            Self::Directory(file) => file.place(),
        }
    }
}

/// Calls by paths that begin at a [`Mount`](crate::Mount)'s root or in an open directory. Each is the system call of its documentation, with
/// its errors.
pub trait Tree: sealed::Base {
    /// A file by its path, with AT_SYMLINK_NOFOLLOW if a link at the end is meant itself.
    fn target<'a>(&'a self, path: &'a Path, flags: AtFlags) -> Target<'a> {
        target(self, path, flags)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As openat(2).
    fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, 0, 0)
    }

    /// Opens a file for writing; makes it if there is none, and empties it.
    ///
    /// # Errors
    /// As openat(2).
    fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        self.open_with(path, flags.bits().cast_signed(), 0o666)
    }

    /// openat(2) with its flags and mode.
    ///
    /// # Errors
    /// As openat(2).
    fn open_with(&self, path: impl AsRef<Path>, flags: i32, mode: u32) -> Result<File> {
        opened(self, bytes(&path), flags, mode).map(|(file, _)| file)
    }

    /// As [`Tree::open_with`]; returns also what the file was like when it was opened, by the same request.
    ///
    /// # Errors
    /// As openat(2).
    fn open_and_stat(&self, path: impl AsRef<Path>, flags: i32, mode: u32) -> Result<(File, Attributes)> {
        let (file, attributes) = opened(self, bytes(&path), flags, mode)?;
        Ok((file, attributes.ok_or(Errno::PROTO)?))
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// As openat(2).
    fn read_directory(&self, path: impl AsRef<Path>) -> Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        self.open_with(path, flags.bits().cast_signed(), 0).map(Directory::new)
    }

    /// stat(2).
    ///
    /// # Errors
    /// As stat(2).
    fn attributes(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        target(self, &path, AtFlags::empty()).attributes()
    }

    /// lstat(2): of a link itself.
    ///
    /// # Errors
    /// As lstat(2).
    fn attributes_of_link(&self, path: impl AsRef<Path>) -> Result<Attributes> {
        target(self, &path, AtFlags::SYMLINK_NOFOLLOW).attributes()
    }

    /// faccessat2(2): by the real ids of the process, or with `effective` by those of its accesses.
    ///
    /// # Errors
    /// As faccessat2(2).
    fn access(&self, path: impl AsRef<Path>, mode: u32, effective: bool) -> Result<()> {
        target(self, &path, AtFlags::empty()).access(mode, effective)
    }

    /// truncate(2).
    ///
    /// # Errors
    /// As truncate(2).
    fn set_length(&self, path: impl AsRef<Path>, length: u64) -> Result<()> {
        target(self, &path, AtFlags::empty()).set_length(length)
    }

    /// chmod(2).
    ///
    /// # Errors
    /// As chmod(2).
    fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        target(self, &path, AtFlags::empty()).set_mode(mode)
    }

    /// lchown(2): of a link itself; `None` leaves an id as it is.
    ///
    /// # Errors
    /// As lchown(2).
    fn set_owner(&self, path: impl AsRef<Path>, user: Option<u32>, group: Option<u32>) -> Result<()> {
        target(self, &path, AtFlags::SYMLINK_NOFOLLOW).set_owner(user, group)
    }

    /// utimensat(2).
    ///
    /// # Errors
    /// As utimensat(2).
    fn set_times(&self, path: impl AsRef<Path>, accessed: TimeToSet, modified: TimeToSet) -> Result<()> {
        target(self, &path, AtFlags::empty()).set_times(accessed, modified)
    }

    /// getxattr(2).
    ///
    /// # Errors
    /// As getxattr(2).
    fn extended_attribute(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<Vec<u8>> {
        target(self, &path, AtFlags::empty()).extended_attribute(name)
    }

    /// listxattr(2).
    ///
    /// # Errors
    /// As listxattr(2).
    fn extended_attributes(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        Ok(names_of(&target(self, &path, AtFlags::empty()).extended_attributes()?))
    }

    /// setxattr(2) with its flags.
    ///
    /// # Errors
    /// As setxattr(2).
    fn set_extended_attribute(&self, path: impl AsRef<Path>, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        target(self, &path, AtFlags::empty()).set_extended_attribute(name, value, flags)
    }

    /// removexattr(2).
    ///
    /// # Errors
    /// As removexattr(2).
    fn remove_extended_attribute(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<()> {
        target(self, &path, AtFlags::empty()).remove_extended_attribute(name)
    }

    /// unlink(2).
    ///
    /// # Errors
    /// As unlink(2).
    fn unlink(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut call = self.connection().begin()?;
        let path = call.text(bytes(&path))?;
        call.send(&Operation::Unlink { at: self.place(), path }).map(drop)
    }

    /// rmdir(2).
    ///
    /// # Errors
    /// As rmdir(2).
    fn remove_directory(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut call = self.connection().begin()?;
        let path = call.text(bytes(&path))?;
        call.send(&Operation::RemoveDirectory { at: self.place(), path }).map(drop)
    }

    /// mkdir(2).
    ///
    /// # Errors
    /// As mkdir(2).
    fn make_directory(&self, path: impl AsRef<Path>, mode: u32) -> Result<Attributes> {
        let umask = self.connection().umask.load(Ordering::Relaxed);
        let mut call = self.connection().begin()?;
        let path = call.text(bytes(&path))?;
        call.send_for_attributes(&Operation::MakeDirectory { at: self.place(), path, mode, umask })
    }

    /// mknod(2).
    ///
    /// # Errors
    /// As mknod(2).
    fn make_node(&self, path: impl AsRef<Path>, mode: u32, device: u32) -> Result<Attributes> {
        let umask = self.connection().umask.load(Ordering::Relaxed);
        let mut call = self.connection().begin()?;
        let path = call.text(bytes(&path))?;
        call.send_for_attributes(&Operation::MakeNode { at: self.place(), path, mode, umask, device })
    }

    /// symlink(2).
    ///
    /// # Errors
    /// As symlink(2).
    fn make_link(&self, link_target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Attributes> {
        let mut call = self.connection().begin()?;
        let path = call.text(bytes(&path))?;
        let link_target = call.text(bytes(&link_target))?;
        call.send_for_attributes(&Operation::MakeLink { at: self.place(), path, target: link_target })
    }

    /// readlink(2).
    ///
    /// # Errors
    /// As readlink(2).
    fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let mut call = self.connection().begin()?;
        let path = call.text(bytes(&path))?;
        let into = call.room(TEXT_BYTES_MAX as usize)?;
        let answer = call.send(&Operation::ReadLink { at: self.place(), path, into: into.range })?;
        Ok(OsString::from_vec(call.returned(&answer, into)?).into())
    }

    /// link(2): `path` becomes another name of `file`. A link is not followed.
    ///
    /// # Errors
    /// As link(2).
    fn link(&self, file: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let mut call = self.connection().begin()?;
        let (from, to) = (call.text(bytes(&file))?, call.text(bytes(&path))?);
        call.send(&Operation::Link { from: (self.place(), from), to: (self.place(), to), flags: 0 }).map(drop)
    }

    /// linkat(2) with its flags, to a path in another directory of the same connection.
    ///
    /// # Errors
    /// As linkat(2); `EXDEV` for a tree of another connection.
    fn link_with(&self, file: impl AsRef<Path>, tree: &(impl Tree + ?Sized), path: impl AsRef<Path>, flags: AtFlags) -> Result<()> {
        if !Arc::ptr_eq(self.connection(), tree.connection()) {
            return Err(Errno::XDEV.into());
        }
        let mut call = self.connection().begin()?;
        let (from, to) = (call.text(bytes(&file))?, call.text(bytes(&path))?);
        call.send(&Operation::Link { from: (self.place(), from), to: (tree.place(), to), flags: raw(flags) }).map(drop)
    }

    /// rename(2).
    ///
    /// # Errors
    /// As rename(2).
    fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, self, to, 0)
    }

    /// renameat2(2), with its flags, to a path in another directory of the same connection.
    ///
    /// # Errors
    /// As renameat2(2); `EXDEV` for a tree of another connection.
    fn rename_with(&self, from: impl AsRef<Path>, tree: &(impl Tree + ?Sized), to: impl AsRef<Path>, flags: u32) -> Result<()> {
        if !Arc::ptr_eq(self.connection(), tree.connection()) {
            return Err(Errno::XDEV.into());
        }
        let mut call = self.connection().begin()?;
        let (from, to) = (call.text(bytes(&from))?, call.text(bytes(&to))?);
        call.send(&Operation::Rename { from: (self.place(), from), to: (tree.place(), to), flags }).map(drop)
    }
}

impl<T: sealed::Base + ?Sized> Tree for T {}

//! A connection to a mount, and its properties.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tandemfs_protocol::{Hello, Number, Operation, Place, SPACE_BYTES, Space};

use crate::buffer::Buffer;
use crate::connect::{find, greet, mount_of};
use crate::connection::Connection;
use crate::known::KnownAnswers;
use crate::shared::connection;
use crate::tree::sealed::Base;
use crate::{ConnectError, Result};

/// What a connection asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Threads that may have a request in flight at once, 1 to 64; further ones wait for each other. The daemon may give fewer.
    pub slots: u32,
    /// Bytes of shared memory for data, in whole pages. The daemon may give less. Up to half of it, 20 KiB a slot at most, is for texts and small data of calls.
    pub data_bytes: u64,
    /// How long a call waits for shared memory that other calls have, before it fails with `ENOMEM`.
    pub memory_wait: Duration,
    /// Permissions that new files do not get; `None` for those of the process at the time of the connection (077 if `/proc` cannot be read).
    pub umask: Option<u16>,
    /// Least number of the descriptors that the connection keeps, where the process may have such numbers; 0 for any.
    pub descriptors_from: u32,
    /// Keep answers and give them again while the daemon's version words say that they are right: up to 3.3 MB of answers and 1.1 MB of bytes.
    pub keeps_answers: bool,
    /// Load bytes of files from the memory zone, where the mount trusts this process with reading the whole drive (`-o direct=GROUP`) and the drive
    /// is memory: see [`Mount::loads_by_itself`]. It installs a handler for SIGBUS, which passes on what is not its own; a program that
    /// installs another one later gets the faults of an image that is cut short (on other processors than x86-64 every program does).
    pub loads: bool,
    /// Store bytes to files in the memory zone, under leases, where the mount trusts this process with the whole drive (`-o direct_stores=GROUP`): see
    /// [`Mount::stores_by_itself`]. *A stray store of this process to that memory can destroy the file system.* As for `loads`, a handler for SIGBUS
    /// is installed.
    pub stores: bool,
    /// Map files from the memory zone ([`File::map`](crate::File::map)), where the mount trusts this process as for `loads`: see [`Mount::maps`];
    /// also for stores ([`File::map_writable`](crate::File::map_writable)) where it is trusted with those. The
    /// connection then keeps a descriptor of the drive's file or device.
    pub maps: bool,
    /// Hand calls back ([`Error::Crossed`](crate::Error::Crossed)) on files and directories that somebody watches by inotify or fanotify. The program
    /// then makes them by the mount, since the kernel tells watchers of calls by the mount alone. Where reads are answered without a request, nothing is said of
    /// them. A file that is dropped is closed in any case; [`File::finish`](crate::File::finish) says that it should be closed by the mount.
    pub leaves_watched: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slots: 32,
            data_bytes: 8 << 20,
            memory_wait: Duration::from_secs(1),
            umask: None,
            descriptors_from: 0,
            keeps_answers: true,
            loads: false,
            stores: false,
            maps: false,
            leaves_watched: false,
        }
    }
}

/// A connection to a mounted TandemFS, for all threads of this process. Clones share it; the last one, and the last file of it, ends it.
/// Paths of [`Tree`](crate::Tree) begin at the root of the mount.
#[derive(Debug, Clone)]
pub struct Mount(Arc<Connection>);

/// The umask of this process; if `/proc` does not say it, one by which new files are their owner's alone.
fn umask_of_process() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u16::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o077)
}

/// Where the direct door of a mount is, for who connects by [`Mount::over`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Door {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Who mounted, whose daemon must be at the other end.
    pub user: u32,
}

impl Door {
    /// Enters the door of the mount whose mountpoint is given, for who hands its place on: the connection is not the one that
    /// [`Mount::connect`] returns to others of this process, and ends theirs.
    ///
    /// # Errors
    /// Those of [`Mount::connect`].
    pub fn enter(directory: impl AsRef<Path>, options: &Options) -> std::result::Result<(Self, Mount), ConnectError> {
        let (mount, root) = mount_of(directory.as_ref())?;
        let (connected, socket) = find(directory.as_ref(), &mount)?;
        let entered = connect(connected, root.as_fd(), options).map_err(|error| of_mount(error, directory.as_ref()))?;
        Ok((Self { socket, user: mount.user }, Mount(Arc::new(entered))))
    }
}

/// What an error says of the mount. A daemon whose mount has ended had its device number before: then the mount has no door, or its socket would be newer.
fn of_mount(error: ConnectError, directory: &Path) -> ConnectError {
    match error {
        ConnectError::Refused { errno, .. } if errno == rustix::io::Errno::NOTCONN.raw_os_error() => ConnectError::NoDoor(directory.into()),
        other => other,
    }
}

fn connect(socket: OwnedFd, root: BorrowedFd<'_>, options: &Options) -> std::result::Result<Connection, ConnectError> {
    let hello = Hello::new(options.slots, options.data_bytes)
        .wanting_zone(options.loads || options.maps)
        .wanting_stores(options.stores)
        .leaving_watched(options.leaves_watched);
    let greeted = greet(socket, root, hello, options.descriptors_from)?;
    Ok(Connection::new(greeted, options, options.umask.unwrap_or_else(umask_of_process)))
}

impl Mount {
    /// Connects to the mount whose mountpoint is given. A process has one connection to a mount: if it has one already, that is returned.
    ///
    /// # Errors
    /// [`ConnectError`], each of which says what is the matter in a sentence. The mount itself can still be used.
    pub fn connect(directory: impl AsRef<Path>) -> std::result::Result<Self, ConnectError> {
        Self::connect_with(directory, &Options::default())
    }

    /// As [`Mount::connect`], with other options, which a connection that exists does not take over.
    ///
    /// # Errors
    /// As [`Mount::connect`].
    pub fn connect_with(directory: impl AsRef<Path>, options: &Options) -> std::result::Result<Self, ConnectError> {
        let directory = directory.as_ref();
        let (mount, root) = mount_of(directory)?;
        let entered = || connect(find(directory, &mount)?.0, root.as_fd(), options);
        connection(&mount, entered).map(Self).map_err(|error| of_mount(error, directory))
    }

    /// Connects by a socket to the daemon that nothing was said on yet. `root` is the root directory of the mount, opened with O_PATH.
    ///
    /// # Errors
    /// As [`Mount::connect`].
    pub fn over(socket: OwnedFd, root: impl AsFd, options: &Options) -> std::result::Result<Self, ConnectError> {
        connect(socket, root.as_fd(), options).map(|connection| Self(Arc::new(connection)))
    }

    /// Asks the daemon for nothing: whether it is there.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn ping(&self) -> Result<()> {
        self.0.begin()?.send(&Operation::Nothing).map(drop)
    }

    /// What statfs(2) shows.
    ///
    /// # Errors
    /// As statfs(2).
    pub fn space(&self) -> Result<Space> {
        let mut call = self.0.begin()?;
        let into = call.room(SPACE_BYTES)?;
        let answer = call.send(&Operation::FileSystemSpace { into: into.range })?;
        Ok(Space::decode(&call.returned(&answer, into)?)?)
    }

    /// syncfs(2).
    ///
    /// # Errors
    /// As syncfs(2).
    pub fn sync(&self) -> Result<()> {
        self.0.begin()?.send(&Operation::SyncFileSystem).map(drop)
    }

    /// Whether the daemon has ended this connection, or ended itself. Asks the kernel alone.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// The descriptors that the connection keeps. A forked child that does not use it may close them.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.descriptors()
    }

    /// Permissions that files made from now on do not get. The connection does not follow umask(2).
    pub fn set_umask(&self, umask: u16) {
        self.0.umask.store(umask & 0o777, Ordering::Relaxed);
    }

    /// What the connection knows, for who looks things up without waiting; `None` if it keeps no answers ([`Options::keeps_answers`]).
    pub fn known_answers(&self) -> Option<KnownAnswers> {
        self.0.known_answers()
    }

    /// Whether the daemon can open files by the mount and send them: [`File::descriptor`](crate::File::descriptor).
    pub fn sends_descriptors(&self) -> bool {
        self.0.serves(Number::Descriptor)
    }

    /// Whether the daemon has lent the memory zone ([`Options::loads`]): reads of what lies there are loads then, as long as nobody changes it.
    pub fn loads_by_itself(&self) -> bool {
        self.0.lent.is_some()
    }

    /// Whether the daemon has lent the memory zone for stores ([`Options::stores`]): bytes that are overwritten again and again are then stored to
    /// the file's own pages, until somebody else wants them.
    pub fn stores_by_itself(&self) -> bool {
        self.0.stores()
    }

    /// Whether files can be mapped ([`Options::maps`]).
    pub fn maps(&self) -> bool {
        self.0.maps()
    }

    /// Whether they can be mapped for stores, too: the mount is not read-only.
    pub fn maps_for_stores(&self) -> bool {
        self.0.maps() && self.0.serves(Number::MapForStores)
    }

    /// Memory for transfers without a copy, of at least one byte and at most [`Mount::transfer_bytes_max`].
    ///
    /// # Errors
    /// `EINVAL` for another length, `ENOMEM` if so much of the connection's memory is in use by others and stays so for
    /// [`Options::memory_wait`].
    pub fn buffer(&self, bytes: u32) -> Result<Buffer> {
        Buffer::new(&self.0, bytes)
    }

    /// Most bytes that one request reads or writes; longer transfers are several.
    pub fn transfer_bytes_max(&self) -> u32 {
        self.0.transfer_bytes
    }
}

impl Base for Mount {
    fn connection(&self) -> &Arc<Connection> {
        &self.0
    }

    fn place(&self) -> Place {
        Place::Root
    }
}

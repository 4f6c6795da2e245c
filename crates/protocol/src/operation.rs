//! The operations, typed. Flags, modes and errors are those of the system calls.

use std::num::NonZeroU64;

use tandemfs_ring::Range;

use crate::Number;
use crate::text::Text;

/// An open file of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub NonZeroU64);

impl Handle {
    /// The handle of an answer; none for zero.
    pub fn of(value: u64) -> Option<Self> {
        NonZeroU64::new(value).map(Self)
    }

    /// As a number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Where a relative path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the root of the file system.
    Root,
    /// In an open directory; with an empty path, at an open file itself.
    Open(Handle),
}

/// The file of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// By a path, with AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH and the like.
    Path {
        /// Where it begins.
        at: Place,
        /// The path.
        path: Text<'a>,
        /// Flags of the call.
        flags: i32,
    },
    /// By a descriptor.
    Open(Handle),
}

/// An offset from a program; the daemon refuses negative ones as the kernel does.
pub type Offset = i64;

/// Where bytes are left to the mount, for a client whose descriptors are the kernel's as well. The daemon then answers
/// [`Crossed`](crate::Crossed) and has changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unless {
    /// The kernel may have pages of the file, which would have to be dropped: [`Why::Cached`](crate::Why::Cached).
    pub cached: bool,
    /// The file would grow: [`Why::Grows`](crate::Why::Grows).
    pub grows: bool,
}

/// One of the times of utimensat(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeToSet {
    /// It stays.
    Omit,
    /// The time of the call.
    Now,
    /// This time.
    At {
        /// Seconds since 1970.
        seconds: i64,
        /// Below one second; the daemon refuses others.
        nanoseconds: u32,
    },
}

/// What is looked for behind an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// Data (SEEK_DATA).
    Data,
    /// A hole (SEEK_HOLE).
    Hole,
}

/// A request. What it returns beside attributes is said where it is not nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are those of the system call")]
pub enum Operation<'a> {
    /// Nothing.
    Nothing,
    /// Returns the handle, and the file's attributes. Of a directory that may be listed and searched, if `into` is not empty, its first
    /// entries, as [`Operation::ReadDirectory`] does, with a [`crate::FirstListed`] in [`tandemfs_ring::Answer::further`]: 0 where they cannot be had at once.
    /// They are right as long as the answer is. Of a regular file that may be read and has less bytes than there is room, all of them, in the same way.
    Open {
        at: Place,
        path: Text<'a>,
        flags: i32,
        mode: u32,
        umask: u16,
        into: Range,
    },
    /// The handle ends, whatever is returned.
    Close {
        handle: Handle,
    },
    /// Returns the number of bytes, 0 at the end. At most [`crate::TRANSFER_BYTES_MAX`].
    Read {
        handle: Handle,
        offset: Offset,
        into: Range,
        unless: Unless,
    },
    /// With the flags of pwritev2(2). Returns the number of bytes, and in [`tandemfs_ring::Answer::further`] the offset behind them: with
    /// O_APPEND or RWF_APPEND the client does not know it.
    Write {
        handle: Handle,
        offset: Offset,
        from: Range,
        flags: i32,
        unless: Unless,
    },
    /// Returns attributes.
    Stat {
        subject: Subject<'a>,
    },
    /// By the real ids; `effective` is AT_EACCESS.
    Access {
        subject: Subject<'a>,
        mode: u32,
        effective: bool,
    },
    Unlink {
        at: Place,
        path: Text<'a>,
    },
    RemoveDirectory {
        at: Place,
        path: Text<'a>,
    },
    /// Returns attributes.
    MakeDirectory {
        at: Place,
        path: Text<'a>,
        mode: u32,
        umask: u16,
    },
    /// Returns attributes. The device number is encoded as by `makedev` in 32 bits.
    MakeNode {
        at: Place,
        path: Text<'a>,
        mode: u32,
        umask: u16,
        device: u32,
    },
    /// symlink(2); returns attributes.
    MakeLink {
        at: Place,
        path: Text<'a>,
        target: Text<'a>,
    },
    /// With AT_SYMLINK_FOLLOW and AT_EMPTY_PATH.
    Link {
        from: (Place, Text<'a>),
        to: (Place, Text<'a>),
        flags: i32,
    },
    /// Returns the number of bytes; a longer target is cut, as by the system call.
    ReadLink {
        at: Place,
        path: Text<'a>,
        into: Range,
    },
    Rename {
        from: (Place, Text<'a>),
        to: (Place, Text<'a>),
        flags: u32,
    },
    /// Lists behind a cookie, 0 for the start. Returns the number of bytes of [`crate::Listing`], 0 at the end.
    ReadDirectory {
        handle: Handle,
        cookie: u64,
        into: Range,
    },
    Truncate {
        subject: Subject<'a>,
        length: Offset,
    },
    Allocate {
        handle: Handle,
        flags: u32,
        offset: Offset,
        length: Offset,
    },
    Sync {
        handle: Handle,
        data_only: bool,
    },
    /// Returns the number of bytes.
    CopyRange {
        from: (Handle, Offset),
        to: (Handle, Offset),
        length: u64,
        flags: u32,
    },
    /// Returns the offset.
    Seek {
        handle: Handle,
        offset: Offset,
        whence: Whence,
    },
    ChangeMode {
        subject: Subject<'a>,
        mode: u32,
    },
    ChangeOwner {
        subject: Subject<'a>,
        user: Option<u32>,
        group: Option<u32>,
    },
    SetTimes {
        subject: Subject<'a>,
        accessed: TimeToSet,
        modified: TimeToSet,
    },
    /// Returns the number of bytes. An empty range asks for it alone; a range that is too short is ERANGE.
    GetAttribute {
        subject: Subject<'a>,
        name: &'a [u8],
        into: Range,
    },
    SetAttribute {
        subject: Subject<'a>,
        name: &'a [u8],
        value: Range,
        flags: i32,
    },
    /// Names, each followed by NUL; otherwise as `GetAttribute`.
    ListAttributes {
        subject: Subject<'a>,
        into: Range,
    },
    RemoveAttribute {
        subject: Subject<'a>,
        name: &'a [u8],
    },
    /// Returns the number of bytes of [`crate::Space`].
    FileSystemSpace {
        into: Range,
    },
    SyncFileSystem,
    SetFlags {
        handle: Handle,
        flags: i32,
    },
    /// A descriptor of the mount for a regular file, with the access and the flags that the open file has and an offset of zero. It is on
    /// the socket before the answer, in a message of eight bytes: the handle. Only where the greeting names this operation.
    Descriptor {
        handle: Handle,
    },
    /// Where the window of [`crate::LENT_WINDOW_BYTES`] that has this offset lies in the memory zone, of a file that is open for reading. Returns
    /// the number of bytes of [`crate::LentRange`]s, in order; what is left out is read by requests. The ranges mean something while the
    /// version words that come with the answer are as they were ([`tandemfs_ring::Client::load_while_so`]). Only where the greeting names
    /// this operation, which is where it came with the memory zone.
    Lend {
        handle: Handle,
        offset: Offset,
        into: Range,
    },
    /// Keeps a range of a file that is open for reading where it is in the memory zone, for who maps it there for loads. It begins at a multiple of
    /// 4096 B (2 MiB on a device that maps in such steps) and ends with the file at the latest. Returns the number of bytes of
    /// [`crate::LentRange`]s ([`LentRange::decode_mapped`](crate::LentRange::decode_mapped)), and in [`tandemfs_ring::Answer::further`] the
    /// number of the mapping. `ENOMEM` if the list is longer than `into`. Only where the greeting names this operation.
    Map {
        handle: Handle,
        offset: Offset,
        length: u64,
        into: Range,
    },
    /// Ends a mapping, which is no longer mapped anywhere. One for stores ends when nothing maps it any more, whatever is said.
    Unmap {
        mapping: NonZeroU64,
    },
    /// Lends blocks around an offset of a file that is open for writing, for stores. Returns the number of bytes of [`crate::LentRange`]s, in order and
    /// without gaps, and in [`tandemfs_ring::Answer::further`] the lease ([`crate::StoreLease`]); no bytes where nothing is lent. The ranges mean
    /// something to threads inside of the lease ([`tandemfs_ring::Leases`]). Only where the greeting names this operation, which is
    /// where it came with the memory zone for stores.
    LendStores {
        handle: Handle,
        offset: Offset,
        into: Range,
    },
    /// Gives a lease back. One that has ended is no error.
    ReturnStores {
        lease: NonZeroU64,
    },
    /// As `LendStores`, the last bytes of a file with the room behind them, for appends; also of a file with O_APPEND. Returns the number of bytes of a
    /// [`crate::LentTail`], none where no room is lent. Only where the greeting names this operation.
    LendTail {
        handle: Handle,
        into: Range,
    },
    /// Asked by who has left a lease of `LendTail` that was taken away meanwhile: the size that the file got by it. Appends up to that count, others do not.
    /// Waits until the lease has ended. `EINVAL` for a lease that was not taken away.
    Appended {
        lease: NonZeroU64,
    },
    /// As `Map`, of a file that is open for reading and writing, for who maps it for stores, too. A description of the zone for this mapping alone is
    /// on the socket before the answer, in a [`crate::StoreMessage`]; the pages stay until nothing has that description. Only where the
    /// greeting names this operation.
    MapForStores {
        handle: Handle,
        offset: Offset,
        length: u64,
        into: Range,
    },
    /// As `Stat` of a path. Where that answers with attributes, it also returns the number of bytes of [`crate::Foretold`]s: answers to the same question
    /// about other names of the same directory, those behind a cookie, 0 for the start; and in [`tandemfs_ring::Answer::further`] the cookie
    /// behind which the next ones are, 0 at the end of the directory. Nothing is returned of what cannot be answered at once.
    StatAhead {
        subject: Subject<'a>,
        cookie: u64,
        into: Range,
    },
}

impl Operation<'_> {
    /// Its number.
    pub fn number(&self) -> Number {
        match self {
            Self::Nothing => Number::Nothing,
            Self::Open { .. } => Number::Open,
            Self::Close { .. } => Number::Close,
            Self::Read { .. } => Number::Read,
            Self::Write { .. } => Number::Write,
            Self::Stat { .. } => Number::Stat,
            Self::Access { .. } => Number::Access,
            Self::Unlink { .. } => Number::Unlink,
            Self::RemoveDirectory { .. } => Number::RemoveDirectory,
            Self::MakeDirectory { .. } => Number::MakeDirectory,
            Self::MakeNode { .. } => Number::MakeNode,
            Self::MakeLink { .. } => Number::MakeLink,
            Self::Link { .. } => Number::Link,
            Self::ReadLink { .. } => Number::ReadLink,
            Self::Rename { .. } => Number::Rename,
            Self::ReadDirectory { .. } => Number::ReadDirectory,
            Self::Truncate { .. } => Number::Truncate,
            Self::Allocate { .. } => Number::Allocate,
            Self::Sync { .. } => Number::Sync,
            Self::CopyRange { .. } => Number::CopyRange,
            Self::Seek { .. } => Number::Seek,
            Self::ChangeMode { .. } => Number::ChangeMode,
            Self::ChangeOwner { .. } => Number::ChangeOwner,
            Self::SetTimes { .. } => Number::SetTimes,
            Self::GetAttribute { .. } => Number::GetAttribute,
            Self::SetAttribute { .. } => Number::SetAttribute,
            Self::ListAttributes { .. } => Number::ListAttributes,
            Self::RemoveAttribute { .. } => Number::RemoveAttribute,
            Self::FileSystemSpace { .. } => Number::FileSystemSpace,
            Self::SyncFileSystem => Number::SyncFileSystem,
            Self::SetFlags { .. } => Number::SetFlags,
            Self::Descriptor { .. } => Number::Descriptor,
            Self::Lend { .. } => Number::Lend,
            Self::Map { .. } => Number::Map,
            Self::Unmap { .. } => Number::Unmap,
            Self::LendStores { .. } => Number::LendStores,
            Self::ReturnStores { .. } => Number::ReturnStores,
            Self::LendTail { .. } => Number::LendTail,
            Self::Appended { .. } => Number::Appended,
            Self::MapForStores { .. } => Number::MapForStores,
            Self::StatAhead { .. } => Number::StatAhead,
        }
    }
}

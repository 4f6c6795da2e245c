//! Answers that clients may keep: what they depend on, by version words (`versions.rs` of the ring, [VER1]–[VER8]; of the file system, [VS1]–[VS3]).
//!
//! [KNW1] An answer is kept by those to whom it was given, so it depends on nothing but what was noted while it was made, on the client's
//!        credentials ([KNW2]) and on what no client knows: the list of mounts ([KNW3]). Attributes and access are answered, and whether a path
//!        leads anywhere. What failed for any other reason than the path or the rights is not kept, nor what the kernel has to do.
//! [KNW2] Credentials are those of the connection, and what is kept goes with it. A client that answers itself is looked after like one
//!        that asks ([CRD1], [VER8]).
//! [KNW3] Where something is mounted or unmounted, all answers are revoked after every client has the new list: an answer that was made by
//!        the old one has the older version.
//! [KNW5] Bytes are kept of files that nobody maps and of whose pages the kernel has none, which is asked after their version was noted;
//!        whoever gets pages afterwards revokes them first (`Caches` of `vfs`). Descriptors with O_DIRECT keep none.
//!        The same holds of the places of bytes that are lent ([LM5] of the file system), and of an fdatasync, which need not be asked for again
//!        while nobody has written by a request, mapped the file or lent it anew ([VS6] of the file system): a client's stores under leases are durable
//!        when they count.
//! [KNW6] Who has opened a file for reading may open it again without a request, with the file that he has, while nothing that the open depends on has
//!        changed: where the path leads, the rights, the attributes, and that nobody is told of opens by the kernel ([WCH6] of the mount).
//! [KNW4] Reads do not change the time of access, so an answer with attributes stays right while the file is read.

use std::sync::{Arc, OnceLock, Weak};

use rustix::io::Errno;
use tandemfs_format::InodeNumber;
use tandemfs_fs::{Noted, Versions};
use tandemfs_protocol::{Handle, KEPT_READ_BYTES_MAX, Operation, Outcome};
use tandemfs_ring::{Seen, VersionWords};

use crate::clients::Shared;
use crate::mutant::{self, Mutant};

/// A server, once it is there.
pub(crate) type ServerToCome = Arc<OnceLock<Weak<Shared>>>;

/// The words of the ring as what the file system raises, and the server whose clients keep answers, once it is there.
pub(crate) struct Publishing {
    pub(crate) words: Arc<VersionWords>,
    pub(crate) server: ServerToCome,
}

impl Versions for Publishing {
    fn raise(&self, thing: u64) {
        self.words.raise(thing);
    }

    fn current(&self, thing: u64) -> (u32, u64) {
        self.words.current(thing)
    }

    fn is_nameless(&self, inode: InodeNumber) {
        if let Some(server) = self.server.get().and_then(Weak::upgrade) {
            server.take_idle_back(inode);
        }
    }
}

/// What of an operation's answer may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    Nothing,
    /// That the path leads nowhere.
    Absence,
    /// Where the path leads, with the first entries of a directory ([AHD4] of `calls/ahead.rs`) or the attributes of a file ([KNW6]), or that it leads nowhere.
    Opened,
    /// Everything that paths and rights decide.
    Access,
    /// The attributes as well.
    Attributes,
    /// The bytes of an open file, if they are few.
    Bytes(Handle),
    /// Where bytes of an open file lie in the memory zone.
    Places(Handle),
    /// That its data are durable, all that anybody has written.
    Synced(Handle),
}

impl Keeps {
    pub(crate) fn of(operation: &Operation<'_>) -> Self {
        match operation {
            Operation::Stat { .. } | Operation::StatAhead { .. } => Self::Attributes,
            Operation::Access { .. } => Self::Access,
            Operation::Read { handle, into, .. } if into.length <= KEPT_READ_BYTES_MAX => Self::Bytes(*handle),
            Operation::Lend { handle, .. } => Self::Places(*handle),
            Operation::Sync { handle, data_only: true } => Self::Synced(*handle),
            Operation::Open { flags, into, .. } if flags & (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) == 0 => match into.length
            {
                0 => Self::Absence,
                _ => Self::Opened,
            },
            _ => Self::Nothing,
        }
    }

    /// The words that an answer depends on ([KNW1]).
    pub(crate) fn seen(self, outcome: &Outcome, noted: &Noted) -> Seen {
        let is_one_of = |number: &i32, of: &[Errno]| of.iter().any(|errno| errno.raw_os_error() == *number);
        let attributes_of = match (self, outcome) {
            (Self::Attributes, Outcome::Done(answer)) => match answer.attributes {
                Some(attributes) => Some(InodeNumber::new(attributes.node)),
                None => return Seen::default(),
            },
            (Self::Opened, Outcome::Done(answer)) => {
                answer.attributes.filter(|found| found.mode & libc::S_IFMT == libc::S_IFREG).map(|found| InodeNumber::new(found.node))
            }
            (Self::Access | Self::Bytes(_) | Self::Places(_) | Self::Synced(_), Outcome::Done(_)) => None,
            (Self::Attributes | Self::Access, Outcome::Errno(number))
                if is_one_of(number, &[Errno::NOENT, Errno::NOTDIR, Errno::ACCESS]) =>
            {
                None
            }
            (Self::Absence | Self::Opened, Outcome::Errno(number)) if is_one_of(number, &[Errno::NOENT]) => None,
            _ => return Seen::default(),
        };
        Seen::of(noted.versions(attributes_of.filter(|_| !mutant::on(Mutant::AttributesNotSeen))))
    }
}

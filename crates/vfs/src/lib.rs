//! What a kernel does between a program and a file system: credentials, path walk, permissions, access control lists, sticky directories,
//! set-id bits, umask, open files with their offsets, and errno. For callers that reach the file system without the kernel. The rules and
//! their order are those of Linux 6.18; a test performs random operations as random users on a mount and here, and compares.
//!
//! [KV1] Every check is made with the credentials that the caller gives. This crate asks nobody who the caller is.
//! [KV2] A walk holds the inode at which it stands (`FileSystem::remember`), so that its number cannot be given to another file. A hold
//!       ends with its value ([`Held`]), on every path.
//! [KV3] A name is removed or replaced only while it stands for the inode that was checked: the file system compares under its locks
//!       (`unlink_inode`, by generation as well, since nobody holds the file then; `rename_inodes`). Without that, a file of somebody else could come under the name between check and removal.
//! [KV4] What only the kernel can decide is handed back ([`Crossed`]) before anything has changed: what lies behind an absolute link,
//!       above the root or behind a mount point, what a device, a pipe or a socket does when it is opened, and the move of a directory below
//!       which something is mounted.
//! [KV5] A change of data removes set-user-id, set-group-id and `security.capability` before the first byte changes.
//! [KV6] Somebody else may keep pages of a file, changed ones too: the kernel behind a mount ([`Caches`]). Before data is read, what was
//!       changed there is written to the file system; around a change of data those pages are dropped. No lock is held meanwhile.
//! [KV7] Inside of [`no_wait`] an operation is refused, before it has changed anything, where it would wait (RULES R29), where it is two
//!       changes (privileges that go before the data), and where it takes long by itself: more than [`QUICK_BYTES`] read or written,
//!       [`QUICK_FILE_BYTES`] freed, [`QUICK_STEPS`] components walked, [`QUICK_ENTRIES`] entries listed; copying, allocating, looking for
//!       holes, and moving directories always. After its change nothing of it waits: what [KV6] has still to drop is owed to the caller.
//! [KV8] The kernel alone tells who watches a file or its directory (inotify, fanotify). For a process that asks for it
//!       ([`Process::leaves_watched`]), what the watchers would be told of is handed back before anything has changed, so that the kernel does it:
//!       opens, changes, reads of open files, and closes of files that were open for writing (`watched.rs`).
//! [KV9] Stores by a mapping are told to nobody. So a file is mapped for stores only while nobody has it open there who may keep pages of it
//!       ([`Caches::is_open`]), which is asked once it is known that it is mapped; whoever opens it from then on keeps none.
//! [KV10] A mapping gives holes of its range space, and the file new times. So holes are mapped for who has the file open for writing, and
//!       leaves the reserve as it is; for loads, others have them by the kernel.
//!
//! Not here, because nothing below the kernel knows it: resource limits (RLIMIT_FSIZE), programs that are being executed (ETXTBSY), locks,
//! events (but [KV8]), security modules. The `fs.protected_*` rules belong to the machine; they are read where they would refuse ([`Protected`]).
//!
//! *Architecture invariant:* no transport, no thread, and no knowledge of how the file system stores data.

#![forbid(unsafe_code)]

mod attributes;
mod caches;
mod credentials;
mod errno;
mod extended_attributes;
mod file;
mod flags;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
pub mod mutant;
mod names;
mod open;
mod permissions;
mod privileges;
mod quick;
mod ranges;
mod refusal;
mod rename;
mod reserve;
mod space;
mod walk;
mod watched;

use std::sync::Arc;

use tandemfs_fs::FileSystem;

pub use attributes::{SetTimes, Subject, TimeToSet};
pub use caches::{Caches, Change};
pub use credentials::{Capabilities, Capability, Credentials, Process};
pub use errno::{errno, is_failure};
pub use extended_attributes::{attribute_mode, listed_names, permit_home};
pub use file::{OpenFile, Seek};
pub use flags::{allocate_mode, rename_mode};
pub use names::new_inode;
pub use permissions::Protected;
pub use privileges::keeps_set_group_id_for_its_group;
pub use quick::{Owed, QUICK_BYTES, QUICK_ENTRIES, QUICK_FILE_BYTES, QUICK_STEPS, no_wait};
pub use refusal::{Crossed, Refused, Result, Why};
pub use reserve::Reserve;
pub use space::{FileSystemSpace, NAME_BYTES_MAX, SPACE_UNIT_BYTES, statfs};
pub use walk::At;

/// Properties of the mount that operations depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Extended attributes and access control lists are supported.
    pub extended_attributes: bool,
    /// Space reserved for root.
    pub reserve: Reserve,
    /// The `fs.protected_*` rules; `None` for those that the machine has when they are asked about.
    pub protected: Option<Protected>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { extended_attributes: true, reserve: Reserve::new(0), protected: Some(Protected::default()) }
    }
}

/// A file system as programs use it.
#[derive(Clone)]
pub struct Vfs {
    fs: Arc<FileSystem>,
    settings: Settings,
    caches: Option<Arc<dyn Caches>>,
}

impl Vfs {
    /// A file system with the properties of its mount.
    pub fn new(fs: Arc<FileSystem>, settings: Settings) -> Self {
        Self { fs, settings, caches: None }
    }

    /// Beside somebody who keeps pages of files ([KV6]).
    #[must_use]
    pub fn beside(self, caches: Arc<dyn Caches>) -> Self {
        Self { caches: Some(caches), ..self }
    }

    /// The file system.
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.fs
    }

    /// As the kernel refuses a change of a file system that is mounted read-only, before it looks at permissions.
    fn must_be_writable(&self) -> Result<()> {
        if self.fs.is_read_only() { Err(rustix::io::Errno::ROFS.into()) } else { Ok(()) }
    }
}

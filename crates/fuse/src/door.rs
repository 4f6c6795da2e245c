//! The door: the file system with the state of one mount, how replies are built, and what is negotiated with the kernel. `operations.rs`
//! dispatches requests; each is translated into one call of the file system.
//!
//! [DO1] The daemon is the only writer of the device, so the kernel may cache entries and attributes, negative entries too ([`VALID`]).
//!       Only the space of a file changes without the kernel's knowledge, during writeback ([`VALID_WHILE_WRITTEN`]).
//! [DO2] For every entry in a reply, the lookup is counted in the file system *before* the reply is sent, and FORGET subtracts it. An
//!       unlinked inode stays until then (RULES R21). The kernel keeps a lookup for each open file, so opening counts nothing.
//! [DO3] No thread that serves requests tells the kernel to drop pages or names (RULES R21, [LT1] of `later.rs`).
//! [DO4] What a reply acknowledges is durable (RULES R8), except for reads. `fsync` has nothing left to write.
//! [DO5] The kernel checks permissions (default_permissions) and access control lists (POSIX_ACL); with the latter the file system applies
//!       the umask. The daemon clears set-id bits and `security.capability` (HANDLE_KILLPRIV_V2): the kernel marks the WRITE or SETATTR
//!       that clears the bits (a new size from a caller without CAP_FSETID, a new owner from anybody), and sends a SETATTR without any
//!       field before a FALLOCATE or COPY_FILE_RANGE that clears them. Otherwise it would ask for `security.capability` before every write.
//!       The kernel does not notice that a write cleared the bits, so it must not cache attributes of files that have them. Every change of
//!       data, size or owner removes `security.capability`, whoever makes it. Whether a file without group execute loses set-group-id
//!       depends on the caller's groups. The kernel checks them before that SETATTR but does not pass on the result, so the daemon checks
//!       them again. For an access control list the kernel passes the result on (SETXATTR_EXT, Linux 5.12).
//! [DO6] Mounts may be id-mapped (ALLOW_IDMAP, Linux 6.12). The kernel maps owners, permissions and access control lists; the file system
//!       sees its own ids alone. But then no request has the ids of its caller, whichever mount it came by: those that create an inode
//!       have the new owner, which may be user 0 of the file system for any user of the machine. So rights are those of the process
//!       (`caller.rs`), and without a process the caller has none.
//! [DO7] A look-up of an inode that is damaged itself succeeds, so that its name can be removed and replaced; nothing else of it does
//!       (`placeholders.rs`).

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Attributes, Error, FileSystem, Result};
use tandemfs_trace::Recorder;
use tandemfs_vfs::{Reserve, is_failure};
use tandemfs_wire::{Entry, Errno, InitFlags, OpenFlags, Reply, Wanted};

use crate::attributes::{inode, shown};
use crate::kernel::Kernel;
use crate::later::Later;
use crate::negotiation::wanted;
use crate::noted::Noted;
use crate::opens::Opens;
use crate::page_cache::PageCache;
use crate::placeholders::Placeholders;
use crate::private::Private;
use crate::returning_space::Forgets;
use crate::settings::{Mode, MountSettings};
use crate::watches::Watches;
use crate::writers::Writers;

/// How long the kernel may cache replies ([DO1]).
const VALID: Duration = Duration::from_secs(3600);
/// The same for attributes of a file that is open for writing with the write-back cache ([DO1], `writers.rs`).
const VALID_WHILE_WRITTEN: Duration = Duration::from_secs(1);
/// Below this much free space files are opened without the write-back cache, so that write() itself returns ENOSPC (RULES R20).
const LOW_SPACE_BYTES: u64 = 64 << 20;
/// How long a path in the log is reused for further lines about the same inode.
const PATH_HOLDS: Duration = Duration::from_secs(1);
/// Longest READ whose pages are copied in strict mode.
const KEPT_BYTES_MAX: u32 = 128 << 10;
/// Set-user-id and set-group-id.
const SET_ID: u16 = 0o6000;

/// The errno of an error, for a reply.
pub(crate) fn errno(error: &Error) -> Errno {
    tandemfs_vfs::errno(error).into()
}

/// The translation from FUSE to a file system.
pub(crate) struct Door {
    pub(crate) fs: Arc<FileSystem>,
    /// What a trace records.
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) mode: Mode,
    pub(crate) read_only: bool,
    /// Only root and who mounted may enter.
    pub(crate) private: Private,
    /// Extended attributes are supported.
    pub(crate) attributes: bool,
    pub(crate) writers: Writers,
    pub(crate) placeholders: Placeholders,
    /// The negotiated limit of WRITE and READ. No larger buffer is allocated, whatever a request asks for.
    pub(crate) request_bytes_max: u32,
    pub(crate) reserve: Reserve,
    pub(crate) page_cache: Arc<PageCache>,
    pub(crate) forgets: Forgets,
    pub(crate) kernel: Kernel,
    /// Files of which the kernel may have pages, if there are clients beside it (`noted.rs`).
    pub(crate) beside: Option<Arc<Noted>>,
    /// Which files are open, if programs may map them for stores ([FOP1] of `opens.rs`).
    pub(crate) opens: Option<Opens>,
    /// The kernel is to ask for each fsync ([BS12] of `beside.rs`).
    pub(crate) flushes_mapped: bool,
    /// Drops pages of files that programs have mapped for stores ([BS11] of `beside.rs`).
    pub(crate) mapped: Later,
    /// Who watches files, if there are clients whose changes the kernel does not see.
    pub(crate) watches: Option<Arc<Watches>>,
    /// Jobs that concern pages of the kernel ([LT2] of `later.rs`).
    pub(crate) pages: Later,
    /// Requests that wait for space.
    pub(crate) space: Later,
    /// Names that clients beside the kernel took away ([BS8] of `beside.rs`).
    pub(crate) names: Later,
    /// Inode and path of the last logged error: a program that meets damage often must not cause a path search for each line.
    pub(crate) logged: Mutex<Option<(InodeNumber, String, Instant)>>,
}

impl Door {
    pub(crate) fn new(fs: &Arc<FileSystem>, settings: &MountSettings, request_bytes_max: u32) -> io::Result<Self> {
        Ok(Self {
            fs: Arc::clone(fs),
            recorder: Arc::default(),
            mode: match settings.mode {
                Mode::Relaxed if settings.direct => Mode::Strict, // [BS2]
                mode => mode,
            },
            read_only: settings.read_only,
            private: Private(settings.is_private()),
            attributes: settings.attributes,
            writers: Writers::default(),
            placeholders: Placeholders::default(),
            request_bytes_max,
            reserve: Reserve::new(settings.reserved_percent),
            page_cache: Arc::default(),
            forgets: Forgets::default(),
            kernel: Kernel::new(fs)?,
            beside: settings.direct.then(Arc::<Noted>::default),
            opens: settings.maps_for_stores.then(Opens::default),
            flushes_mapped: settings.maps_for_stores && fs.drive().domain().needs_flush(),
            mapped: Later::start("mapped")?,
            watches: if settings.direct { Some(Watches::start()?) } else { None },
            pages: Later::start("pages")?,
            space: Later::start("space")?,
            names: Later::start("names")?,
            logged: Mutex::default(),
        })
    }

    /// What to negotiate with the kernel.
    pub(crate) fn wanted(&self) -> Wanted {
        let write_back = self.mode == Mode::Relaxed && !self.read_only;
        let mut wanted = wanted(write_back, self.attributes, self.request_bytes_max);
        if self.beside.is_some() {
            wanted.flags = wanted.flags - InitFlags::DIRECT_IO_ALLOW_MMAP;
        }
        wanted
    }

    /// Replies with an entry ([DO2]).
    pub(crate) fn reply_entry(&self, operation: &'static str, parent: u64, result: Result<Attributes>, reply: Reply<'_>) {
        match result.and_then(|attributes| self.remember(attributes)) {
            Ok(attributes) => reply.entry(&self.entry(&attributes)),
            Err(error) => reply.error(self.failed(operation, parent, &error)),
        }
    }

    /// An inode whose lookup is counted, as an entry.
    pub(crate) fn entry(&self, attributes: &Attributes) -> Entry {
        Entry {
            node: attributes.inode.get(),
            generation: attributes.generation.into(),
            entry_valid: self.names_valid(),
            attributes_valid: self.valid(attributes),
            attributes: shown(attributes),
        }
    }

    pub(crate) fn reply_empty(&self, operation: &'static str, node: u64, result: Result<()>, reply: Reply<'_>) {
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.failed(operation, node, &error)),
        }
    }

    /// Counts a lookup of the kernel ([DO2]). For an inode that was removed since it was looked up this is `Stale`, and the kernel looks it
    /// up again.
    pub(crate) fn remember(&self, attributes: Attributes) -> Result<Attributes> {
        self.fs.remember(attributes.inode, attributes.generation, 1)?;
        if self.beside.is_none() {
            return Ok(attributes);
        }
        let now = self.fs.attributes(attributes.inode); // [BS10]
        now.inspect_err(|_| self.fs.forget(attributes.inode, 1))
    }

    /// How long the kernel may cache attributes of a reply.
    pub(crate) fn valid(&self, attributes: &Attributes) -> Duration {
        let is_written = self.writers.told(attributes.inode, attributes.space_512);
        self.valid_where(attributes, is_written)
    }

    /// The same for the reply to a SETATTR. The kernel may ignore those attributes, since it also flushes timestamps by SETATTR; they do
    /// not count as told.
    pub(crate) fn valid_after_setattr(&self, attributes: &Attributes) -> Duration {
        self.valid_where(attributes, self.writers.contains(attributes.inode))
    }

    /// How long the kernel may cache a name, or that there is none.
    pub(crate) fn names_valid(&self) -> Duration {
        if self.beside.is_some() { Duration::ZERO } else { VALID } // [BS1]
    }

    fn valid_where(&self, attributes: &Attributes, is_written: bool) -> Duration {
        let is_directory = attributes.mode & file_type::MASK == file_type::DIRECTORY;
        let has_set_id = attributes.mode & SET_ID != 0 && !is_directory;
        if has_set_id || self.beside.is_some() {
            Duration::ZERO // [DO5], [BS1]
        } else if is_written {
            VALID_WHILE_WRITTEN
        } else {
            self.private.valid(attributes.mode, VALID)
        }
    }

    /// Whether a file opened with these flags writes through the write-back cache.
    pub(crate) fn writes_behind(&self, flags: u32) -> bool {
        self.mode == Mode::Relaxed && flags.cast_signed() & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Whether pages that the kernel reads now may be written back (RULES R20). In relaxed mode: pages of files that are open for writing.
    /// In strict mode opens are not reported and only mapped pages are written back; only pages of short READs are copied, since copying
    /// long ones is rarely of use.
    pub(crate) fn may_come_back(&self, inode: InodeNumber, size: u32) -> bool {
        match self.mode {
            Mode::Relaxed => self.writers.contains(inode),
            Mode::Strict => !self.read_only && size <= KEPT_BYTES_MAX,
            Mode::StrictAtomic => false, // bypasses the page cache
        }
    }

    /// The errno for the kernel. Failures are also logged.
    pub(crate) fn failed(&self, operation: &'static str, node: u64, error: &Error) -> Errno {
        if is_failure(error) {
            let asked = inode(node);
            let about = match error {
                Error::Damaged { inode, .. } | Error::DamagedData { inode, .. } | Error::LostData { inode, .. } | Error::Stale(inode) => {
                    *inode
                }
                _ => asked,
            };
            if matches!(error, Error::Damaged { .. }) {
                self.fs.note_damage(about);
            }
            let path = self.path_for_log(about, asked);
            tracing::error!(operation, inode = about.get(), path, "{error}");
        }
        errno(error)
    }

    /// The path of an inode for the log. The failed operation has released its locks by now.
    fn path_for_log(&self, inode: InodeNumber, near: InodeNumber) -> String {
        let logged = || self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let known = logged().clone().filter(|(number, _, at)| *number == inode && at.elapsed() < PATH_HOLDS);
        if let Some((_, path, _)) = known {
            return path;
        }
        let path = self.fs.path_text(inode, Some(near));
        *logged() = Some((inode, path.clone(), Instant::now()));
        path
    }

    /// The open flags of a reply to OPEN or CREATE.
    pub(crate) fn open_flags(&self, file: InodeNumber) -> OpenFlags {
        match self.mode {
            // One write is one request (RULES R19); other writers of the same file need not wait in the kernel.
            Mode::StrictAtomic => OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
            Mode::Relaxed if !self.read_only && (self.space_is_low() || self.fs.has_limits(file).unwrap_or(true)) => {
                OpenFlags::DIRECT_IO | OpenFlags::KEEP_CACHE
            }
            Mode::Relaxed | Mode::Strict => OpenFlags::KEEP_CACHE,
        }
    }

    fn space_is_low(&self) -> bool {
        let space = self.fs.space();
        let low = |zone: &tandemfs_fs::ZoneSpace| {
            zone.available_bytes < LOW_SPACE_BYTES.min(zone.total_bytes / 16) + self.reserve.bytes(zone.total_bytes)
        };
        low(&space.block) || low(&space.memory)
    }
}

//! A FUSE file system that keeps names and bytes only in its process's memory: it measures the cost of FUSE itself.
//!
//! [MS1] Its replies at mount match those of TandemFS in relaxed mode (`crates/fuse/src/door.rs`): capabilities, sizes, cache times of
//!       entries and attributes, ENOSYS for the same operations. So the kernel sends the same requests, and their cost here is the minimum.
//! [MS2] It runs in its own process, as a daemon does. The process ends with its mount, or when its standard input is closed, so a killed
//!       comparison leaves none behind.

mod table;

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FileType, RenameFlags};
use tandemfs_fuse::{Mode, MountSettings};
use tandemfs_wire::{
    Attributes, Entry, Errno, Handler, MountOptions, OpenFlags, Opened, Operation, Reply, Request, Statfs, Unmount, kind_of,
};

use self::table::{Answer, COOKIE_FIRST, Content, Directory, Node, Table};
use crate::compare::mounted::is_for_all;
use crate::failure::Result;
use crate::output::say;
use crate::served::Served;

const VALID: Duration = Duration::from_secs(3600);
const READ_AHEAD_KIB: u32 = 1024;
const COPY_BYTES_MAX: u64 = 16 << 20;
const OPENED: Opened = Opened { handle: 0, flags: OpenFlags::KEEP_CACHE };
/// Free space reported by statfs, in bytes.
const FREE_BYTES: u64 = 1 << 40;
/// Printed by [`serve`] once it is mounted.
pub const READY: &str = "ready";

/// Mounts, prints [`READY`], and serves until the mount ends ([MS2]).
///
/// # Errors
/// The mount cannot be made or served.
pub fn serve(mountpoint: &Path) -> Result<()> {
    let settings = MountSettings { mode: Mode::Relaxed, ..MountSettings::default() };
    let options = MountOptions {
        source: "null".into(),
        subtype: Some("null".into()),
        default_permissions: true,
        atime: false,
        allow_other: is_for_all(),
        ..MountOptions::default()
    };
    let wanted = tandemfs_fuse::wanted(true, true, tandemfs_fuse::request_bytes_max());
    let mounted = tandemfs_wire::mount(mountpoint, &options)?;
    let served = Served::start(mounted, NullFs::new(), &wanted, settings.serving())?;
    read_ahead(mountpoint);
    let path = PathBuf::from(mountpoint);
    std::thread::spawn(move || {
        let _ended = io::stdin().read_to_end(&mut Vec::new());
        let _may_be_gone = tandemfs_wire::unmount(&path, Unmount::Lazy);
    });
    say(&format!("{READY}\n"))?;
    served.join()
}

/// Sets the mount's read-ahead as TandemFS does.
fn read_ahead(mountpoint: &Path) {
    if let Ok(metadata) = std::fs::metadata(mountpoint) {
        let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
        let _only_root_may = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB.to_string());
    }
}

struct NullFs {
    table: Mutex<Table>,
}

fn entry_of(attributes: Attributes) -> Entry {
    Entry { node: attributes.ino, generation: 0, entry_valid: VALID, attributes_valid: VALID, attributes }
}

/// Answers a request by its result.
fn answer<T>(result: Answer<T>, reply: Reply<'_>, send: impl FnOnce(Reply<'_>, T)) {
    match result {
        Ok(value) => send(reply, value),
        Err(error) => reply.error(error),
    }
}

fn send_entry(reply: Reply<'_>, attributes: Attributes) {
    reply.entry(&entry_of(attributes));
}

fn send_attributes(reply: Reply<'_>, attributes: Attributes) {
    reply.attributes(&attributes, VALID);
}

fn send_ok(reply: Reply<'_>, (): ()) {
    reply.ok();
}

impl NullFs {
    fn new() -> Self {
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let root = Node::new(0o040_755, owner, 0, Directory::empty(1));
        Self { table: Mutex::new(Table::new(root)) }
    }

    /// The table is locked for `work` alone, not for the reply.
    fn with<T>(&self, work: impl FnOnce(&mut Table) -> Answer<T>) -> Answer<T> {
        work(&mut self.table.lock())
    }

    fn add(&self, request: &Request<'_>, name: &[u8], mode: u32, device: u32, content: Content) -> Answer<Attributes> {
        let node = Node::new(mode, (request.uid, request.gid), device, content);
        self.with(|table| table.add(request.node, name, node))
    }

    /// Creates an empty node of a type, with permissions masked by the umask.
    fn make(&self, request: &Request<'_>, name: &[u8], kind: FileType, mode: u32, umask: u32, device: u32) -> Answer<Attributes> {
        let content = match kind {
            FileType::Unknown => return Err(Errno::EINVAL),
            FileType::RegularFile => Content::File(Arc::default()),
            FileType::Directory => Directory::empty(request.node),
            _ => Content::Nothing,
        };
        self.add(request, name, mode & 0o7777 & !umask | kind.as_raw_mode(), device, content)
    }

    fn list(&self, number: u64, cookie: u64, size: u32, plus: bool, reply: Reply<'_>) {
        let mut directory = reply.directory(size);
        let listed = self.table.lock().list(number, cookie, |name, position, number, node| {
            if !plus {
                return directory.add(name, number, kind_of(node.mode), position);
            }
            let fits = directory.add_plus(name, position, &entry_of(node.attributes(number)));
            // For `.` and `..` the kernel uses only the name.
            if fits && position >= COOKIE_FIRST {
                node.looked_up += 1;
            }
            fits
        });
        match listed {
            Ok(()) => directory.send(),
            Err(error) => directory.error(error),
        }
    }

    /// Handles requests about names.
    fn names(&self, request: &Request<'_>, reply: Reply<'_>) {
        let node = request.node;
        match request.operation {
            Operation::Lookup { name } => answer(self.with(|table| table.lookup(node, name)), reply, |reply, found| {
                // The kernel may cache the negative entry.
                reply.entry(&found.map_or_else(|| Entry::absent(VALID), entry_of));
            }),
            Operation::Mknod { name, mode, umask, rdev } => {
                answer(self.make(request, name, FileType::from_raw_mode(mode), mode, umask, rdev), reply, send_entry);
            }
            Operation::Mkdir { name, mode, umask } => {
                answer(self.make(request, name, FileType::Directory, mode, umask, 0), reply, send_entry);
            }
            Operation::Symlink { name, target } => {
                let mode = 0o777 | FileType::Symlink.as_raw_mode();
                answer(self.add(request, name, mode, 0, Content::Link(target.to_vec())), reply, send_entry);
            }
            Operation::Create { name, mode, umask, .. } => {
                let made = self.make(request, name, FileType::RegularFile, mode, umask, 0);
                answer(made, reply, |reply, attributes| reply.create(&entry_of(attributes), OPENED));
            }
            Operation::Link { target, name } => answer(self.with(|table| table.link(target, node, name)), reply, send_entry),
            Operation::Unlink { name } | Operation::Rmdir { name } => {
                answer(self.with(|table| table.remove(node, name)), reply, send_ok);
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let flags = RenameFlags::from_bits_retain(flags);
                answer(self.with(|table| table.rename((node, name), (new_parent, new_name), flags)), reply, send_ok);
            }
            // No ACCESS, FLUSH, OPENDIR or LSEEK: after ENOSYS the kernel does not ask again.
            _ => reply.error(Errno::ENOSYS),
        }
    }
}

impl Handler for NullFs {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let node = request.node;
        match request.operation {
            Operation::Forget { count } => {
                self.table.lock().forget(node, count);
                reply.none();
            }
            Operation::BatchForget(forgets) => {
                let mut table = self.table.lock();
                forgets.iter().for_each(|(node, count)| table.forget(node, count));
                drop(table);
                reply.none();
            }
            Operation::Getattr { .. } => {
                answer(self.with(|table| Ok(table.node(node)?.attributes(node))), reply, send_attributes);
            }
            Operation::Setattr(set) => answer(self.with(|table| table.set(node, &set)), reply, send_attributes),
            Operation::Readlink => match self.table.lock().node(node).map(|found| &found.content) {
                Ok(Content::Link(target)) => reply.bytes(target),
                Ok(_) => reply.error(Errno::EINVAL),
                Err(error) => reply.error(error),
            },
            Operation::Open { .. } => reply.open(OPENED),
            Operation::Readdir { offset, size, .. } => self.list(node, offset, size, false, reply),
            Operation::Readdirplus { offset, size, .. } => self.list(node, offset, size, true, reply),
            Operation::Read { offset, size, .. } => answer(self.with(|table| table.file(node)), reply, |reply, file| {
                file.read(offset, size as usize, |data| reply.bytes(data));
            }),
            Operation::Write(write) => answer(self.with(|table| table.file(node)), reply, |reply, file| {
                file.write(write.offset, write.data);
                reply.written(write.data.len() as u32);
            }),
            Operation::CopyFileRange(copy) => {
                let files = self.with(|table| Ok((table.file(node)?, table.file(copy.target)?)));
                answer(files, reply, |reply, (from, to)| {
                    let data = from.read(copy.offset, copy.length.min(COPY_BYTES_MAX) as usize, <[u8]>::to_vec);
                    to.write(copy.target_offset, &data);
                    reply.copied(data.len() as u64);
                });
            }
            Operation::Statfs => {
                let (blocks, files) = (FREE_BYTES / 4096, 1 << 32);
                reply.statfs(&Statfs {
                    blocks,
                    blocks_free: blocks,
                    blocks_available: blocks,
                    files,
                    files_free: files,
                    block_bytes: 4096,
                    fragment_bytes: 4096,
                    name_bytes_max: 255,
                });
            }
            Operation::Fsync { .. } | Operation::Fsyncdir { .. } | Operation::Release { .. } | Operation::Releasedir { .. } => reply.ok(),
            Operation::Getxattr { .. } => reply.error(Errno::ENODATA),
            Operation::Listxattr { size } => reply.xattr(size, &[]),
            Operation::Setxattr { .. } => reply.error(Errno::EOPNOTSUPP),
            _ => self.names(request, reply),
        }
    }
}

//! A FUSE file system that keeps names and bytes only in its process's memory: it measures the cost of FUSE itself.
//!
//! [MS1] Its replies at mount match those of TandemFS in relaxed mode (`crates/fuse/src/door.rs`): capabilities, sizes, cache times of
//!       entries and attributes, ENOSYS for the same operations. So the kernel sends the same requests, and their cost here is the minimum.
//! [MS2] It runs in its own process, as a daemon does. The process ends with its mount, or when its standard input is closed, so a killed
//!       comparison leaves none behind.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use rustix::fs::{FileType, RenameFlags};
use tandemfs_fuse::{Mode, MountSettings};
use tandemfs_wire::{
    Attributes, Entry, Errno, Handler, MountOptions, OpenFlags, Opened, Operation, Reply, Request, SetAttributes, SetTime, Statfs, Time,
    Unmount, kind_of,
};

use crate::compare::child::answer as answer_starter;
use crate::compare::mounted::is_for_all;
use crate::failure::Result;
use crate::served::Served;

const VALID: Duration = Duration::from_secs(3600);
const READ_AHEAD_KIB: u32 = 1024;
const COPY_BYTES_MAX: u64 = 16 << 20;
const OPENED: Opened = Opened { handle: 0, flags: OpenFlags::KEEP_CACHE };
/// Free space reported by statfs, in bytes.
const FREE_BYTES: u64 = 1 << 40;
/// Places of `.` and `..` in a listing are 1 and 2.
const COOKIE_FIRST: u64 = 3;

/// Mounts, says so, and serves until the mount ends ([MS2]).
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
    answer_starter(&"ready")?;
    served.join()
}

/// As TandemFS's daemon does after its mount.
fn read_ahead(mountpoint: &Path) {
    if let Ok(metadata) = std::fs::metadata(mountpoint) {
        let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
        let _only_root_may = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB.to_string());
    }
}

type Answer<T> = std::result::Result<T, Errno>;

/// An inode. What it holds decides its size.
struct Node {
    attributes: Attributes,
    /// The kernel's references; a node without names stays until there are none.
    looked_up: u64,
    content: Content,
}

enum Content {
    /// Its own lock, so that requests of different files wait for the table only to find them.
    File(Arc<RwLock<Vec<u8>>>),
    Directory(Directory),
    Link(Vec<u8>),
    Nothing,
}

/// Names, and the entries in the order of their places, which never change: a listing may go on after removals.
struct Directory {
    parent: u64,
    names: HashMap<Vec<u8>, u64>,
    entries: BTreeMap<u64, (Vec<u8>, u64)>,
    next: u64,
}

impl Directory {
    fn empty(parent: u64) -> Content {
        Content::Directory(Self { parent, names: HashMap::new(), entries: BTreeMap::new(), next: COOKIE_FIRST })
    }

    fn find(&self, name: &[u8]) -> Option<u64> {
        Some(self.entries.get(self.names.get(name)?)?.1)
    }

    fn insert(&mut self, name: &[u8], number: u64) {
        self.names.insert(name.to_vec(), self.next);
        self.entries.insert(self.next, (name.to_vec(), number));
        self.next += 1;
    }

    fn remove(&mut self, name: &[u8]) {
        if let Some(place) = self.names.remove(name) {
            self.entries.remove(&place);
        }
    }
}

fn now() -> Time {
    SystemTime::now().into()
}

impl Node {
    fn new(mode: u32, (uid, gid): (u32, u32), rdev: u32, content: Content) -> Self {
        let (time, nlink) = (now(), 1 + u32::from(matches!(content, Content::Directory(_))));
        let times = Attributes { atime: time, mtime: time, ctime: time, block_bytes: 4096, ..Attributes::default() };
        Self { attributes: Attributes { mode, uid, gid, rdev, nlink, ..times }, looked_up: 0, content }
    }

    fn attributes(&self, ino: u64) -> Attributes {
        let size = match &self.content {
            Content::File(bytes) => bytes.read().len() as u64,
            Content::Directory(directory) => directory.entries.len() as u64 * 64,
            Content::Link(target) => target.len() as u64,
            Content::Nothing => 0,
        };
        Attributes { ino, size, blocks: size.div_ceil(512), ..self.attributes }
    }

    fn is_directory(&self) -> bool {
        matches!(self.content, Content::Directory(_))
    }
}

/// All nodes by number.
struct Table {
    nodes: HashMap<u64, Node>,
    last: u64,
}

impl Table {
    fn node(&mut self, number: u64) -> Answer<&mut Node> {
        self.nodes.get_mut(&number).ok_or(Errno::ESTALE)
    }

    fn directory(&mut self, number: u64) -> Answer<&mut Directory> {
        match &mut self.node(number)?.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn file(&mut self, number: u64) -> Answer<Arc<RwLock<Vec<u8>>>> {
        match &self.node(number)?.content {
            Content::File(bytes) => Ok(bytes.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn set(&mut self, number: u64, set: &SetAttributes) -> Answer<Attributes> {
        let node = self.node(number)?;
        if let (Some(size), Content::File(bytes)) = (set.size, &node.content) {
            bytes.write().resize(size as usize, 0);
        }
        let time = |wanted| match wanted {
            SetTime::At(time) => time,
            SetTime::Now => now(),
        };
        let Attributes { mode, uid, gid, atime, mtime, .. } = node.attributes;
        node.attributes.mode = set.mode.map_or(mode, |wanted| mode & !0o7777 | wanted & 0o7777);
        (node.attributes.uid, node.attributes.gid) = (set.uid.unwrap_or(uid), set.gid.unwrap_or(gid));
        node.attributes.atime = set.atime.map_or(atime, time);
        node.attributes.mtime = set.mtime.map_or_else(|| if set.size.is_some() { now() } else { mtime }, time);
        node.attributes.ctime = set.ctime.unwrap_or_else(now);
        Ok(node.attributes(number))
    }

    /// A node as the kernel learns of it.
    fn entry(&mut self, number: u64) -> Answer<Entry> {
        let node = self.node(number)?;
        node.looked_up += 1;
        Ok(entry_of(node.attributes(number)))
    }

    /// After a change of a directory's names, and of its subdirectories.
    fn touch(&mut self, directory: u64, links: i32) -> Answer<()> {
        let attributes = &mut self.node(directory)?.attributes;
        (attributes.mtime, attributes.ctime) = (now(), now());
        attributes.nlink = attributes.nlink.saturating_add_signed(links);
        Ok(())
    }

    fn add(&mut self, parent: u64, name: &[u8], node: Node) -> Answer<Entry> {
        if self.directory(parent)?.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        self.last += 1;
        let (number, links) = (self.last, i32::from(node.is_directory()));
        self.nodes.insert(number, node);
        self.directory(parent)?.insert(name, number);
        self.touch(parent, links)?;
        self.entry(number)
    }

    fn link(&mut self, number: u64, parent: u64, name: &[u8]) -> Answer<Entry> {
        if self.directory(parent)?.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        self.node(number)?.attributes.nlink += 1;
        self.directory(parent)?.insert(name, number);
        self.touch(parent, 0)?;
        self.entry(number)
    }

    fn remove(&mut self, parent: u64, name: &[u8]) -> Answer<()> {
        let number = self.directory(parent)?.find(name).ok_or(Errno::ENOENT)?;
        let node = self.node(number)?;
        let is_directory = node.is_directory();
        match &node.content {
            Content::Directory(directory) if !directory.entries.is_empty() => return Err(Errno::ENOTEMPTY),
            Content::Directory(_) => node.attributes.nlink = 0,
            _ => node.attributes.nlink -= 1,
        }
        self.directory(parent)?.remove(name);
        self.touch(parent, -i32::from(is_directory))?;
        self.forget(number, 0);
        Ok(())
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), flags: RenameFlags) -> Answer<()> {
        let number = self.directory(from.0)?.find(from.1).ok_or(Errno::ENOENT)?;
        let target = self.directory(to.0)?.find(to.1);
        match target {
            _ if flags.intersects(RenameFlags::EXCHANGE | RenameFlags::WHITEOUT) => return Err(Errno::EINVAL),
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST),
            Some(target) if target == number => return Ok(()),
            Some(_) => self.remove(to.0, to.1)?,
            None => {}
        }
        self.directory(from.0)?.remove(from.1);
        self.directory(to.0)?.insert(to.1, number);
        let links = match &mut self.node(number)?.content {
            Content::Directory(directory) => {
                directory.parent = to.0;
                1
            }
            _ => 0,
        };
        self.touch(from.0, -links)?;
        self.touch(to.0, links)
    }

    fn forget(&mut self, number: u64, count: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.looked_up = node.looked_up.saturating_sub(count);
            if node.looked_up == 0 && node.attributes.nlink == 0 {
                self.nodes.remove(&number);
            }
        }
    }

    /// Lists what is behind a place, until `add` has no room.
    fn list(&mut self, number: u64, place: u64, mut add: impl FnMut(&[u8], u64, u64, &mut Node) -> bool) -> Answer<()> {
        let parent = self.directory(number)?.parent;
        for (dot, node, name) in [(1, number, &b"."[..]), (2, parent, b"..")] {
            if place < dot && !add(name, dot, node, self.node(node)?) {
                return Ok(());
            }
        }
        let mut next = place.max(COOKIE_FIRST - 1) + 1;
        while let Some((found, (name, node))) = self.directory(number)?.entries.range(next..).next() {
            let (found, name, node) = (*found, name.clone(), *node);
            if !add(&name, found, node, self.node(node)?) {
                break;
            }
            next = found + 1;
        }
        Ok(())
    }
}

struct NullFs(Mutex<Table>);

fn entry_of(attributes: Attributes) -> Entry {
    Entry { node: attributes.ino, generation: 0, entry_valid: VALID, attributes_valid: VALID, attributes }
}

fn answer<T>(result: Answer<T>, reply: Reply<'_>, send: impl FnOnce(Reply<'_>, T)) {
    match result {
        Ok(value) => send(reply, value),
        Err(error) => reply.error(error),
    }
}

impl NullFs {
    fn new() -> Self {
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let root = Node::new(0o040_755, owner, 0, Directory::empty(1));
        Self(Mutex::new(Table { nodes: HashMap::from([(1, root)]), last: 1 }))
    }

    /// Works on the table, which is free again before anything is replied.
    fn with<T>(&self, work: impl FnOnce(&mut Table) -> Answer<T>) -> Answer<T> {
        work(&mut self.0.lock())
    }

    fn make(&self, request: &Request<'_>, name: &[u8], kind: FileType, mode: u32, device: u32) -> Answer<Entry> {
        let content = match kind {
            FileType::Unknown => return Err(Errno::EINVAL),
            FileType::RegularFile => Content::File(Arc::default()),
            FileType::Directory => Directory::empty(request.node),
            _ => Content::Nothing,
        };
        let node = Node::new(mode & 0o7777 | kind.as_raw_mode(), (request.uid, request.gid), device, content);
        self.with(|table| table.add(request.node, name, node))
    }

    fn list(&self, number: u64, place: u64, size: u32, plus: bool, reply: Reply<'_>) {
        let mut directory = reply.directory(size);
        let listed = self.0.lock().list(number, place, |name, place, number, node| {
            if !plus {
                return directory.add(name, number, kind_of(node.attributes.mode), place);
            }
            let fits = directory.add_plus(name, place, &entry_of(node.attributes(number)));
            // For `.` and `..` the kernel uses only the name.
            node.looked_up += u64::from(fits && place >= COOKIE_FIRST);
            fits
        });
        match listed {
            Ok(()) => directory.send(),
            Err(error) => directory.error(error),
        }
    }

    fn names(&self, request: &Request<'_>, reply: Reply<'_>) {
        let node = request.node;
        let send_entry = |reply: Reply<'_>, entry: Entry| reply.entry(&entry);
        match request.operation {
            Operation::Lookup { name } => {
                // The kernel may cache that there is none.
                let found = self.with(|table| match table.directory(node)?.find(name) {
                    Some(number) => table.entry(number),
                    None => Ok(Entry::absent(VALID)),
                });
                answer(found, reply, send_entry);
            }
            Operation::Mknod { name, mode, umask, rdev } => {
                answer(self.make(request, name, FileType::from_raw_mode(mode), mode & !umask, rdev), reply, send_entry);
            }
            Operation::Mkdir { name, mode, umask } => {
                answer(self.make(request, name, FileType::Directory, mode & !umask, 0), reply, send_entry);
            }
            Operation::Symlink { name, target } => {
                let mode = 0o777 | FileType::Symlink.as_raw_mode();
                let link = Node::new(mode, (request.uid, request.gid), 0, Content::Link(target.to_vec()));
                answer(self.with(|table| table.add(node, name, link)), reply, send_entry);
            }
            Operation::Create { name, mode, umask, .. } => {
                let made = self.make(request, name, FileType::RegularFile, mode & !umask, 0);
                answer(made, reply, |reply, entry| reply.create(&entry, OPENED));
            }
            Operation::Link { target, name } => answer(self.with(|table| table.link(target, node, name)), reply, send_entry),
            Operation::Unlink { name } | Operation::Rmdir { name } => {
                answer(self.with(|table| table.remove(node, name)), reply, |reply, ()| reply.ok());
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let flags = RenameFlags::from_bits_retain(flags);
                let renamed = self.with(|table| table.rename((node, name), (new_parent, new_name), flags));
                answer(renamed, reply, |reply, ()| reply.ok());
            }
            // No ACCESS, FLUSH, OPENDIR or LSEEK: after ENOSYS the kernel does not ask again.
            _ => reply.error(Errno::ENOSYS),
        }
    }

    fn file(&self, number: u64) -> Answer<Arc<RwLock<Vec<u8>>>> {
        self.with(|table| table.file(number))
    }
}

/// What a file has of so many bytes.
fn part(bytes: &[u8], offset: u64, length: u64) -> &[u8] {
    let end = (offset + length).min(bytes.len() as u64) as usize;
    bytes.get(offset as usize..end).unwrap_or_default()
}

fn write(file: &RwLock<Vec<u8>>, offset: u64, data: &[u8]) {
    let mut bytes = file.write();
    let (start, end) = (offset as usize, offset as usize + data.len());
    if bytes.len() < start {
        bytes.resize(start, 0);
    }
    let overlap = bytes.len().min(end) - start;
    bytes[start..start + overlap].copy_from_slice(&data[..overlap]);
    bytes.extend_from_slice(&data[overlap..]);
}

impl Handler for NullFs {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let node = request.node;
        match request.operation {
            Operation::Forget { count } => {
                self.0.lock().forget(node, count);
                reply.none();
            }
            Operation::BatchForget(forgets) => {
                let mut table = self.0.lock();
                forgets.iter().for_each(|(node, count)| table.forget(node, count));
                drop(table);
                reply.none();
            }
            Operation::Getattr { .. } => {
                let found = self.with(|table| Ok(table.node(node)?.attributes(node)));
                answer(found, reply, |reply, attributes| reply.attributes(&attributes, VALID));
            }
            Operation::Setattr(set) => {
                let set = self.with(|table| table.set(node, &set));
                answer(set, reply, |reply, attributes| reply.attributes(&attributes, VALID));
            }
            Operation::Readlink => match self.0.lock().node(node).map(|found| &found.content) {
                Ok(Content::Link(target)) => reply.bytes(target),
                Ok(_) => reply.error(Errno::EINVAL),
                Err(error) => reply.error(error),
            },
            Operation::Open { .. } => reply.open(OPENED),
            Operation::Readdir { offset, size, .. } => self.list(node, offset, size, false, reply),
            Operation::Readdirplus { offset, size, .. } => self.list(node, offset, size, true, reply),
            Operation::Read { offset, size, .. } => {
                answer(self.file(node), reply, |reply, file| reply.bytes(part(&file.read(), offset, size.into())));
            }
            Operation::Write(data) => answer(self.file(node), reply, |reply, file| {
                write(&file, data.offset, data.data);
                reply.written(data.data.len() as u32);
            }),
            Operation::CopyFileRange(copy) => {
                let files = self.file(node).and_then(|from| Ok((from, self.file(copy.target)?)));
                answer(files, reply, |reply, (from, to)| {
                    let data = part(&from.read(), copy.offset, copy.length.min(COPY_BYTES_MAX)).to_vec();
                    write(&to, copy.target_offset, &data);
                    reply.copied(data.len() as u64);
                });
            }
            Operation::Statfs => {
                let (blocks, files, fragment_bytes) = (FREE_BYTES / 4096, 1 << 32, 4096);
                let free = Statfs { blocks_free: blocks, blocks_available: blocks, files_free: files, ..Statfs::default() };
                reply.statfs(&Statfs { blocks, files, block_bytes: 4096, fragment_bytes, name_bytes_max: 255, ..free });
            }
            Operation::Fsync { .. } | Operation::Fsyncdir { .. } | Operation::Release { .. } | Operation::Releasedir { .. } => reply.ok(),
            Operation::Getxattr { .. } => reply.error(Errno::ENODATA),
            Operation::Listxattr { size } => reply.xattr(size, &[]),
            Operation::Setxattr { .. } => reply.error(Errno::EOPNOTSUPP),
            _ => self.names(request, reply),
        }
    }
}

//! A FUSE file system that keeps names and bytes in the memory of its process and nothing safe: what the way through FUSE costs by itself.
//!
//! [MS1] The kernel is told the same as by the mount of TandemFS in relaxed mode (`crates/fuse/src/door.rs`): abilities, sizes, how long entries
//!       and attributes hold, which operations it need not send. So it sends the same requests, and what they cost here is the least that
//!       they can cost.
//! [MS2] It runs in a process of its own, as a daemon does, and ends when its mount does, or when nobody holds its standard input any more:
//!       so none is left behind by a comparison that was killed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Config, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, Session, TimeOrNow, WriteFlags,
};
use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use tandemfs_fuse::{MountSettings, Unmount};

use crate::failure::{Failure, Result};
use crate::output::say;

const VALID: Duration = Duration::from_secs(3600);
const REQUEST_BYTES_MAX: u32 = 1 << 20;
const READ_AHEAD_KIB: u32 = 1024;
const COPY_BYTES_MAX: u64 = 16 << 20;
const HANDLE: FileHandle = FileHandle(0);
/// What `df` shows as free, in bytes.
const FREE_BYTES: u64 = 1 << 40;
/// Positions of `.` and `..` come before.
const COOKIE_FIRST: u64 = 3;
/// What [`serve`] says when it answers.
pub const READY: &str = "ready";

/// Mounts, says [`READY`], and serves until the mount ends ([MS2]).
///
/// # Errors
/// The mount cannot be made or served.
pub fn serve(mountpoint: &Path) -> Result<()> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("null".into()),
        MountOption::Subtype("null".into()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
    ];
    crate::fuser_session::set_threads(&mut config, &MountSettings::default());
    let session = Session::new(MemoryFs::new(), mountpoint, &config)?.spawn()?;
    read_ahead(mountpoint);
    let path = PathBuf::from(mountpoint);
    std::thread::spawn(move || {
        let _ended = io::stdin().read_to_end(&mut Vec::new());
        let _may_be_gone = tandemfs_fuse::unmount(&path, Unmount::Lazy);
    });
    say(&format!("{READY}\n"))?;
    session.join().map_err(|error| Failure::new(format!("the null file system: {error}")))
}

/// Of the mount, as TandemFS sets its own.
fn read_ahead(mountpoint: &Path) {
    if let Ok(metadata) = std::fs::metadata(mountpoint) {
        let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
        let _only_root_may = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB.to_string());
    }
}

struct MemoryFs {
    table: Mutex<Table>,
}

struct Table {
    nodes: HashMap<u64, Node>,
    last: u64,
}

struct Node {
    kind: FileType,
    permissions: u16,
    uid: u32,
    gid: u32,
    device: u32,
    links: u32,
    times: Times,
    /// Entries that the kernel was told of and has not forgotten.
    looked_up: u64,
    content: Content,
}

#[derive(Clone, Copy)]
struct Times {
    accessed: SystemTime,
    modified: SystemTime,
    changed: SystemTime,
}

enum Content {
    File(Arc<Bytes>),
    Directory(Box<Directory>),
    Link(Vec<u8>),
    Nothing,
}

/// Bytes of a file. What lies beyond those that are there is zero.
#[derive(Default)]
struct Bytes {
    size: AtomicU64,
    kept: RwLock<Vec<u8>>,
}

struct Directory {
    parent: u64,
    names: HashMap<OsString, u64>,
    entries: BTreeMap<u64, (OsString, u64)>,
    next: u64,
}

type Answer<T> = std::result::Result<T, Errno>;

impl Bytes {
    fn write(&self, offset: u64, data: &[u8]) {
        let mut kept = self.kept.write();
        let (start, end) = (offset as usize, offset as usize + data.len());
        if kept.len() < start {
            kept.resize(start, 0);
        }
        let overlap = kept.len().min(end) - start;
        kept[start..start + overlap].copy_from_slice(&data[..overlap]);
        kept.extend_from_slice(&data[overlap..]);
        self.size.fetch_max(end as u64, Relaxed);
    }

    /// Hands over what is there of a range, as one piece where it is kept.
    fn read<T>(&self, offset: u64, length: usize, then: impl FnOnce(&[u8]) -> T) -> T {
        let kept = self.kept.read();
        let end = self.size.load(Relaxed).min(offset + length as u64) as usize;
        let start = (offset as usize).min(end);
        if end <= kept.len() {
            return then(&kept[start..end]);
        }
        let mut padded = kept[start.min(kept.len())..].to_vec();
        padded.resize(end - start, 0);
        then(&padded)
    }

    fn resize(&self, size: u64) {
        let mut kept = self.kept.write();
        kept.truncate(size as usize);
        self.size.store(size, Relaxed);
    }
}

impl Directory {
    fn empty(parent: u64) -> Content {
        Content::Directory(Box::new(Self { parent, names: HashMap::new(), entries: BTreeMap::new(), next: COOKIE_FIRST }))
    }

    fn find(&self, name: &OsStr) -> Option<u64> {
        Some(self.entries.get(self.names.get(name)?)?.1)
    }

    fn insert(&mut self, name: &OsStr, number: u64) {
        self.names.insert(name.to_owned(), self.next);
        self.entries.insert(self.next, (name.to_owned(), number));
        self.next += 1;
    }

    fn remove(&mut self, name: &OsStr) -> Option<u64> {
        let cookie = self.names.remove(name)?;
        Some(self.entries.remove(&cookie)?.1)
    }
}

impl Node {
    fn new(kind: FileType, permissions: u16, owner: (u32, u32), device: u32, content: Content) -> Self {
        let now = SystemTime::now();
        let times = Times { accessed: now, modified: now, changed: now };
        let links = if kind == FileType::Directory { 2 } else { 1 };
        Self { kind, permissions, uid: owner.0, gid: owner.1, device, links, times, looked_up: 0, content }
    }

    fn attributes(&self, number: u64) -> FileAttr {
        let size = match &self.content {
            Content::File(bytes) => bytes.size.load(Relaxed),
            Content::Directory(directory) => directory.entries.len() as u64 * 64,
            Content::Link(target) => target.len() as u64,
            Content::Nothing => 0,
        };
        FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: self.times.accessed,
            mtime: self.times.modified,
            ctime: self.times.changed,
            crtime: self.times.changed,
            kind: self.kind,
            perm: self.permissions,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.device,
            blksize: 4096,
            flags: 0,
        }
    }
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

    fn file(&mut self, number: u64) -> Answer<Arc<Bytes>> {
        match &self.node(number)?.content {
            Content::File(bytes) => Ok(bytes.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Attributes for a reply that carries an entry: the kernel holds the node from now on.
    fn entry(&mut self, number: u64) -> Answer<FileAttr> {
        let node = self.node(number)?;
        node.looked_up += 1;
        Ok(node.attributes(number))
    }

    /// Time stamps of a directory whose names changed, and links where a directory came or went.
    fn touch(&mut self, directory: u64, links: i32) -> Answer<()> {
        let node = self.node(directory)?;
        node.times.modified = SystemTime::now();
        node.times.changed = node.times.modified;
        node.links = node.links.saturating_add_signed(links);
        Ok(())
    }

    fn add(&mut self, parent: u64, name: &OsStr, node: Node) -> Answer<FileAttr> {
        if self.directory(parent)?.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        self.last += 1;
        let number = self.last;
        let links = i32::from(node.kind == FileType::Directory);
        self.directory(parent)?.insert(name, number);
        self.nodes.insert(number, node);
        self.touch(parent, links)?;
        self.entry(number)
    }

    fn remove(&mut self, parent: u64, name: &OsStr) -> Answer<()> {
        let number = self.directory(parent)?.find(name).ok_or(Errno::ENOENT)?;
        self.release(number)?;
        self.directory(parent)?.remove(name);
        let was_directory = self.nodes.get(&number).is_some_and(|node| node.kind == FileType::Directory);
        self.touch(parent, -i32::from(was_directory))?;
        self.forget(number, 0);
        Ok(())
    }

    /// Takes a link; of a directory that is empty, all.
    fn release(&mut self, number: u64) -> Answer<()> {
        let node = self.node(number)?;
        match &node.content {
            Content::Directory(directory) if !directory.entries.is_empty() => return Err(Errno::ENOTEMPTY),
            Content::Directory(_) => node.links = 0,
            _ => node.links -= 1,
        }
        Ok(())
    }

    fn rename(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), flags: RenameFlags) -> Answer<()> {
        let number = self.directory(from.0)?.find(from.1).ok_or(Errno::ENOENT)?;
        let target = self.directory(to.0)?.find(to.1);
        if flags.intersects(RenameFlags::RENAME_EXCHANGE | RenameFlags::RENAME_WHITEOUT) {
            return Err(Errno::EINVAL);
        }
        if target.is_some() && flags.contains(RenameFlags::RENAME_NOREPLACE) {
            return Err(Errno::EEXIST);
        }
        if target == Some(number) {
            return Ok(());
        }
        if target.is_some() {
            self.remove(to.0, to.1)?;
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
            if node.looked_up == 0 && node.links == 0 {
                self.nodes.remove(&number);
            }
        }
    }
}

impl MemoryFs {
    fn new() -> Self {
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let root = Node::new(FileType::Directory, 0o755, owner, 0, Directory::empty(1));
        Self { table: Mutex::new(Table { nodes: HashMap::from([(1, root)]), last: 1 }) }
    }

    fn add(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        (mode, umask): (u32, u32),
        device: u32,
        content: Content,
    ) -> Answer<FileAttr> {
        let kind = kind(mode)?;
        let owner = (request.uid(), request.gid());
        let node = Node::new(kind, (mode & !umask & 0o7777) as u16, owner, device, content);
        self.table.lock().add(parent.0, name, node)
    }

    /// Hands every entry from a position on to `add`, with its attributes, until that is full.
    fn list(&self, node: INodeNo, cookie: u64, mut add: impl FnMut(&mut Table, u64, FileType, u64, &OsStr) -> bool) -> Answer<()> {
        let mut table = self.table.lock();
        let parent = table.directory(node.0)?.parent;
        for (position, number, name) in [(1, node.0, "."), (2, parent, "..")] {
            if cookie < position && add(&mut table, number, FileType::Directory, position, OsStr::new(name)) {
                return Ok(());
            }
        }
        let mut next = cookie.max(COOKIE_FIRST - 1) + 1;
        loop {
            let Some((position, (name, number))) = table.directory(node.0)?.entries.range(next..).next() else { return Ok(()) };
            let (position, name, number) = (*position, name.clone(), *number);
            let kind = table.node(number)?.kind;
            if add(&mut table, number, kind, position, &name) {
                return Ok(());
            }
            next = position + 1;
        }
    }
}

fn kind(mode: u32) -> Answer<FileType> {
    rustix_kind(mode).ok_or(Errno::EINVAL)
}

fn rustix_kind(mode: u32) -> Option<FileType> {
    use rustix::fs::FileType as Kind;
    Some(match Kind::from_raw_mode(mode) {
        Kind::RegularFile => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Unknown => return None,
    })
}

fn content(mode: u32, parent: u64) -> Content {
    match rustix_kind(mode) {
        Some(FileType::RegularFile) => Content::File(Arc::default()),
        Some(FileType::Directory) => Directory::empty(parent),
        _ => Content::Nothing,
    }
}

fn time(wanted: TimeOrNow) -> SystemTime {
    match wanted {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

fn reply_entry(result: Answer<FileAttr>, reply: ReplyEntry) {
    match result {
        Ok(attributes) => reply.entry(&VALID, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn reply_attributes(result: Answer<FileAttr>, reply: ReplyAttr) {
    match result {
        Ok(attributes) => reply.attr(&VALID, &attributes),
        Err(error) => reply.error(error),
    }
}

fn reply_empty(result: Answer<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for MemoryFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        crate::fuser_session::negotiate(config, true, true, REQUEST_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = {
            let mut table = self.table.lock();
            table
                .directory(parent.0)
                .map(|directory| directory.find(name))
                .and_then(|found| found.map(|number| table.entry(number)).transpose())
        };
        match found {
            // The kernel may keep that a name is absent.
            Ok(None) => reply.entry(&VALID, &Node::new(FileType::RegularFile, 0, (0, 0), 0, Content::Nothing).attributes(0), Generation(0)),
            Ok(Some(attributes)) => reply.entry(&VALID, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        self.table.lock().forget(node.0, count);
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.table.lock().node(node.0).map(|found| found.attributes(node.0));
        reply_attributes(found, reply);
    }

    fn setattr(
        &self,
        _request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _birth: Option<SystemTime>,
        _flagged: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = |found: &mut Node| {
            found.permissions = mode.map_or(found.permissions, |mode| (mode & 0o7777) as u16);
            (found.uid, found.gid) = (uid.unwrap_or(found.uid), gid.unwrap_or(found.gid));
            if let (Some(size), Content::File(bytes)) = (size, &found.content) {
                bytes.resize(size);
            }
            let now = SystemTime::now();
            found.times = Times {
                accessed: accessed.map_or(found.times.accessed, time),
                modified: modified.map_or(if size.is_some() { now } else { found.times.modified }, time),
                changed: changed.unwrap_or(now),
            };
            found.attributes(node.0)
        };
        let found = self.table.lock().node(node.0).map(set);
        reply_attributes(found, reply);
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        match self.table.lock().node(node.0).map(|found| &found.content) {
            Ok(Content::Link(target)) => reply.data(target),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, device: u32, reply: ReplyEntry) {
        reply_entry(self.add(request, parent, name, (mode, umask), device, content(mode, parent.0)), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let mode = mode & 0o7777 | rustix::fs::FileType::Directory.as_raw_mode();
        reply_entry(self.add(request, parent, name, (mode, umask), 0, content(mode, parent.0)), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let mode = 0o777 | rustix::fs::FileType::Symlink.as_raw_mode();
        let target = Content::Link(target.as_os_str().as_bytes().to_vec());
        reply_entry(self.add(request, parent, name, (mode, 0), 0, target), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let result = self.table.lock().remove(parent.0, name);
        reply_empty(result, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let result = self.table.lock().remove(parent.0, name);
        reply_empty(result, reply);
    }

    fn link(&self, _request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let result = {
            let mut table = self.table.lock();
            let mut link = || {
                if table.directory(parent.0)?.find(name).is_some() {
                    return Err(Errno::EEXIST);
                }
                table.node(node.0)?.links += 1;
                table.directory(parent.0)?.insert(name, node.0);
                table.touch(parent.0, 0)?;
                table.entry(node.0)
            };
            link()
        };
        reply_entry(result, reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let result = self.table.lock().rename((parent.0, name), (new_parent.0, new_name), flags);
        reply_empty(result, reply);
    }

    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _flags: i32, reply: ReplyCreate) {
        let mode = mode & 0o7777 | rustix::fs::FileType::RegularFile.as_raw_mode();
        match self.add(request, parent, name, (mode, umask), 0, content(mode, parent.0)) {
            Ok(added) => reply.created(&VALID, &added, Generation(0), HANDLE, FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(HANDLE, FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _request: &Request, node: INodeNo, _handle: FileHandle, cookie: u64, mut reply: ReplyDirectory) {
        let listed = self.list(node, cookie, |_, number, kind, position, name| reply.add(INodeNo(number), position, kind, name));
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(&self, _request: &Request, node: INodeNo, _handle: FileHandle, cookie: u64, mut reply: ReplyDirectoryPlus) {
        let listed = self.list(node, cookie, |table, number, _, position, name| {
            let Some(found) = table.nodes.get_mut(&number) else { return false };
            let full = reply.add(INodeNo(number), position, name, &VALID, &found.attributes(number), Generation(0));
            // Of `.` and `..` the kernel takes the name only.
            if !full && position >= COOKIE_FIRST {
                found.looked_up += 1;
            }
            full
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = self.table.lock().file(node.0);
        match file {
            Ok(bytes) => bytes.read(offset, size as usize, |data| reply.data(data)),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let file = self.table.lock().file(node.0);
        match file {
            Ok(bytes) => {
                bytes.write(offset, data);
                reply.written(data.len() as u32);
            }
            Err(error) => reply.error(error),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let files = {
            let mut table = self.table.lock();
            table.file(from.0).and_then(|from| Ok((from, table.file(to.0)?)))
        };
        match files {
            Ok((from, to)) => {
                let data = from.read(from_offset, length.min(COPY_BYTES_MAX) as usize, <[u8]>::to_vec);
                to.write(to_offset, &data);
                reply.written(data.len() as u32);
            }
            Err(error) => reply.error(error),
        }
    }

    fn lseek(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _offset: i64, _whence: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        let blocks = FREE_BYTES / 4096;
        reply.statfs(blocks, blocks, blocks, 1 << 32, 1 << 32, 4096, 255, 4096);
    }

    fn flush(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn getxattr(&self, _request: &Request, _node: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::NO_XATTR);
    }

    fn listxattr(&self, _request: &Request, _node: INodeNo, size: u32, reply: ReplyXattr) {
        if size == 0 { reply.size(0) } else { reply.data(&[]) }
    }

    fn setxattr(&self, _request: &Request, _node: INodeNo, _name: &OsStr, _value: &[u8], _flags: i32, _position: u32, reply: ReplyEmpty) {
        reply.error(Errno::EOPNOTSUPP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let Table { nodes, last } = MemoryFs::new().table.into_inner();
        Table { nodes, last }
    }

    fn file() -> Node {
        Node::new(FileType::RegularFile, 0o644, (0, 0), 0, Content::File(Arc::default()))
    }

    #[test]
    fn bytes_are_kept_and_gaps_are_zero() {
        let bytes = Bytes::default();
        bytes.write(3, b"abc");
        bytes.write(4, b"xyz");
        bytes.resize(9);
        assert_eq!(bytes.read(0, 100, <[u8]>::to_vec), b"\0\0\0axyz\0\0");
        assert_eq!(bytes.read(8, 100, <[u8]>::to_vec), b"\0");
        assert_eq!(bytes.read(9, 100, <[u8]>::to_vec), b"");
        bytes.resize(4);
        bytes.resize(6);
        assert_eq!(bytes.read(0, 100, <[u8]>::to_vec), b"\0\0\0a\0\0", "what was cut does not come back");
        bytes.write(5, b"!");
        assert_eq!(bytes.read(2, 100, <[u8]>::to_vec), b"\0a\0!");
    }

    #[test]
    fn names_are_taken_moved_and_given_back() {
        let mut table = table();
        let (a, b) = (OsStr::new("a"), OsStr::new("b"));
        let number = table.add(1, a, file()).expect("added").ino.0;
        assert!(table.add(1, a, file()).is_err(), "once");
        let directory = table.add(1, b, Node::new(FileType::Directory, 0o755, (0, 0), 0, Directory::empty(1))).expect("added").ino.0;
        assert_eq!(table.node(1).expect("root").links, 3);
        table.rename((1, a), (directory, b), RenameFlags::empty()).expect("moved");
        assert_eq!((table.directory(1).expect("root").find(a), table.directory(directory).expect("below").find(b)), (None, Some(number)));
        assert!(table.remove(1, b).is_err(), "not empty");
        table.remove(directory, b).expect("removed");
        assert!(table.nodes.contains_key(&number), "the kernel still holds it");
        table.forget(number, 1);
        assert!(!table.nodes.contains_key(&number));
        table.remove(1, b).expect("removed");
        assert_eq!(table.node(1).expect("root").links, 2);
    }

    #[test]
    fn a_rename_replaces() {
        let mut table = table();
        let (a, b) = (OsStr::new("a"), OsStr::new("b"));
        let kept = table.add(1, a, file()).expect("added").ino.0;
        let replaced = table.add(1, b, file()).expect("added").ino.0;
        assert!(table.rename((1, a), (1, b), RenameFlags::RENAME_NOREPLACE).is_err());
        table.rename((1, a), (1, b), RenameFlags::empty()).expect("moved");
        assert_eq!((table.directory(1).expect("root").find(b), table.node(replaced).expect("held").links), (Some(kept), 0));
    }
}

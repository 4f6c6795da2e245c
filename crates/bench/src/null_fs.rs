//! A FUSE file system that does nothing: the bare limit of the mount. It remembers names, kinds and sizes so that the kernel gets sensible
//! answers, and throws bytes away. It is mounted with the same settings, and answers ENOSYS and caches as the mount of TandemFS does, so that
//! the kernel sends the same requests to both; but it takes part in no access lists, set-id bits or export, which the limit need not know.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, ReplyXattr, Request, Session, TimeOrNow, WriteFlags,
};
use hashbrown::HashMap;
use parking_lot::Mutex;
use tandemfs_fuse::{Mode, MountSettings};

const VALID: Duration = Duration::from_secs(3600);
const REQUEST_BYTES_MAX: u32 = 1 << 20;
const HANDLE: FileHandle = FileHandle(0);

/// The file system.
///
/// It is the limit, so it makes no system call of its own: whose the files are is asked once.
struct NullFs {
    relaxed: bool,
    owner: (u32, u32),
    table: Mutex<Table>,
}

struct Table {
    names: HashMap<(u64, OsString), u64>,
    nodes: HashMap<u64, Node>,
    last: u64,
}

#[derive(Clone, Copy)]
struct Node {
    kind: FileType,
    size: u64,
}

/// Mounts it; unmounted when the session is dropped.
pub fn mount(mountpoint: &Path, settings: &MountSettings) -> io::Result<BackgroundSession> {
    let root = Node { kind: FileType::Directory, size: 0 };
    let table = Table { names: HashMap::new(), nodes: HashMap::from([(1, root)]), last: 1 };
    let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let file_system = NullFs { relaxed: settings.mode == Mode::Relaxed, owner, table: Mutex::new(table) };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("null".into()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    crate::fuser_session::set_threads(&mut config, settings);
    Session::new(file_system, mountpoint, &config)?.spawn()
}

impl NullFs {
    fn attributes(&self, number: u64, node: Node) -> FileAttr {
        FileAttr {
            ino: INodeNo(number),
            size: node.size,
            blocks: node.size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: node.kind,
            perm: if node.kind == FileType::Directory { 0o755 } else { 0o644 },
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn add(&self, parent: INodeNo, name: &OsStr, kind: FileType) -> FileAttr {
        let mut table = self.table.lock();
        table.last += 1;
        let (number, node) = (table.last, Node { kind, size: 0 });
        table.names.insert((parent.0, name.to_owned()), number);
        table.nodes.insert(number, node);
        self.attributes(number, node)
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut table = self.table.lock();
        match table.names.remove(&(parent.0, name.to_owned())) {
            Some(number) => {
                table.nodes.remove(&number);
                drop(table);
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open_flags(&self) -> FopenFlags {
        FopenFlags::FOPEN_KEEP_CACHE
    }
}

impl Filesystem for NullFs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without lists, of which it has none: the limit is the fewest requests.
        crate::fuser_session::negotiate(config, self.relaxed, false, REQUEST_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = {
            let table = self.table.lock();
            table.names.get(&(parent.0, name.to_owned())).and_then(|number| Some((*number, *table.nodes.get(number)?)))
        };
        match found {
            Some((number, node)) => reply.entry(&VALID, &self.attributes(number, node), Generation(0)),
            None => reply.entry(&VALID, &self.attributes(0, Node { kind: FileType::RegularFile, size: 0 }), Generation(0)),
        }
    }

    fn forget(&self, _request: &Request, _node: INodeNo, _count: u64) {}

    fn getattr(&self, _request: &Request, node: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.table.lock().nodes.get(&node.0).copied();
        match found {
            Some(found) => reply.attr(&VALID, &self.attributes(node.0, found)),
            None => reply.error(Errno::ESTALE),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        node: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _birth: Option<SystemTime>,
        _changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let found = self.table.lock().nodes.get_mut(&node.0).map(|found| {
            found.size = size.unwrap_or(found.size);
            *found
        });
        match found {
            Some(found) => reply.attr(&VALID, &self.attributes(node.0, found)),
            None => reply.error(Errno::ESTALE),
        }
    }

    fn mkdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        reply.entry(&VALID, &self.add(parent, name, FileType::Directory), Generation(0));
    }

    fn create(&self, _request: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, _flags: i32, reply: ReplyCreate) {
        let added = self.add(parent, name, FileType::RegularFile);
        reply.created(&VALID, &added, Generation(0), HANDLE, self.open_flags());
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut table = self.table.lock();
        match table.names.remove(&(parent.0, name.to_owned())) {
            Some(number) => {
                table.names.insert((new_parent.0, new_name.to_owned()), number);
                drop(table);
                reply.ok();
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.relaxed { reply.opened(HANDLE, self.open_flags()) } else { reply.error(Errno::ENOSYS) }
    }

    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // Made at the first read: as a constant it would be a MiB of the program.
        static NOTHING: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; REQUEST_BYTES_MAX as usize]);
        reply.data(&NOTHING[..(size as usize).min(NOTHING.len())]);
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
        if let Some(found) = self.table.lock().nodes.get_mut(&node.0) {
            found.size = found.size.max(offset + data.len() as u64);
        }
        reply.written(data.len() as u32);
    }

    fn flush(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        if self.relaxed { reply.ok() } else { reply.error(Errno::ENOSYS) }
    }

    fn getxattr(&self, _request: &Request, _node: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }
}

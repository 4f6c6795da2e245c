//! The requests of the kernel, one after the other: translate, call the file system, reply. Nothing is decided here that another door
//! would decide otherwise.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileHandle, Generation, INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags,
    PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{AllocateMode, Error, RenameMode, Result, SeekTo, SetAttributes, ZoneSpace};

use crate::attributes::{file_attr, file_kind, inode, set_time, timestamp};
use crate::door::Door;
use crate::settings::Mode;

const STATFS_UNIT_BYTES: u64 = 4096;
const NAME_BYTES_MAX: u32 = 255;
/// No state is kept for an open file ([DO2]), but for whether it may be written behind the write-back cache ([WR2] of `writers.rs`).
const READER: FileHandle = FileHandle(0);
const WRITER: FileHandle = FileHandle(1);

/// The door as fuser calls it.
pub(crate) struct Operations(pub(crate) Arc<Door>);

impl fuser::Filesystem for Operations {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.0.negotiate(config);
        Ok(())
    }

    fn destroy(&mut self) {
        self.0.space.stop();
        self.0.pages.stop();
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.0.fs.lookup(inode(parent), name.as_bytes()) {
            Err(Error::NotFound) => Door::reply_absent(reply),
            result => self.0.reply_entry("lookup", parent, result, reply),
        }
    }

    /// Also for the batches of BATCH_FORGET, which fuser takes apart.
    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        self.0.forgets.serve(|| self.0.fs.forget(inode(node), count));
    }

    fn getattr(&self, _request: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        if handle == Some(WRITER)
            && let Some(lost) = self.0.writers.take_lost(inode(node))
        {
            return reply.error(lost); // [WR2]
        }
        match self.0.fs.attributes(inode(node)) {
            Ok(attributes) => reply.attr(&self.0.valid(&attributes), &file_attr(&attributes)),
            Err(error) => reply.error(self.0.failed("getattr", node, &error)),
        }
    }

    fn statx(&self, _request: &Request, node: INodeNo, _handle: Option<FileHandle>, _flags: u32, _mask: u32, reply: ReplyStatx) {
        match self.0.fs.attributes(inode(node)) {
            Ok(attributes) => reply.statx(&self.0.valid(&attributes), &file_attr(&attributes)),
            Err(error) => reply.error(self.0.failed("statx", node, &error)),
        }
    }

    fn setattr_kill_suidgid(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _birth: Option<SystemTime>,
        _changed: Option<SystemTime>,
        _backed_up: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        kill_set_id: bool,
        reply: ReplyAttr,
    ) {
        let nothing = (mode, uid, gid, size) == (None, None, None, None) && atime.is_none() && mtime.is_none() && ctime.is_none();
        let file = inode(node);
        // A request that asks for nothing comes before the space of a file changes ([DO5]).
        let kill_set_id = kill_set_id || nothing;
        let kill_set_group_id = kill_set_id && self.0.loses_set_group_id(request, file).unwrap_or(false);
        let set = SetAttributes {
            permissions: mode.map(permissions),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(timestamp),
            kill_set_id,
            kill_set_group_id,
        };
        let kills = set.kill_set_id || uid.is_some() || gid.is_some() || size.is_some();
        let killed = if kills { self.0.fs.kill_capabilities(file) } else { Ok(()) };
        let before = size.and_then(|_| self.0.fs.size(file).ok());
        match killed.and_then(|()| self.0.fs.set_attributes(file, &set)) {
            Ok(attributes) => self.0.reply_resized(before, attributes, reply),
            Err(error) => reply.error(self.0.failed("setattr", node, &error)),
        }
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        match self.0.fs.read_link(inode(node)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.0.failed("readlink", node, &error)),
        }
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let kind = (mode as u16) & file_type::MASK;
        let kind = if kind == 0 { file_type::REGULAR } else { kind };
        let mode = kind | permissions(mode);
        self.0.reply_entry("mknod", parent, self.0.create(request, parent, name, (mode, permissions(umask)), rdev, &[]), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let mode = file_type::DIRECTORY | permissions(mode);
        self.0.reply_entry("mkdir", parent, self.0.create(request, parent, name, (mode, permissions(umask)), 0, &[]), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (mode, target) = (file_type::SYMLINK | 0o777, target.as_os_str().as_bytes());
        self.0.reply_entry("symlink", parent, self.0.create(request, parent, name, (mode, 0), 0, target), reply);
    }

    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate) {
        let mode = file_type::REGULAR | permissions(mode);
        let created = self.0.create(request, parent, name, (mode, permissions(umask)), 0, &[]);
        match created.and_then(|attributes| self.0.remember(attributes)) {
            Ok(attributes) => {
                // Creating gives one time for both, and entries may be kept either way.
                let handle = self.0.opened(attributes.inode, flags);
                let generation = Generation(attributes.generation.into());
                reply.created(&self.0.valid(&attributes), &file_attr(&attributes), generation, handle, self.0.open_flags());
            }
            Err(error) => reply.error(self.0.failed("create", parent, &error)),
        }
    }

    /// The file is held from its creation on, which is the look-up that the reply carries ([DO2]).
    fn tmpfile(&self, request: &Request, parent: INodeNo, mode: u32, umask: u32, flags: i32, reply: ReplyCreate) {
        let created = self
            .0
            .new_inode(request, parent, file_type::REGULAR | permissions(mode), 0, &[])
            .and_then(|new| self.0.fs.create_nameless(inode(parent), &new, permissions(umask)));
        match created {
            Ok(attributes) => {
                let handle = self.0.opened(attributes.inode, flags);
                let generation = Generation(attributes.generation.into());
                reply.created(&self.0.valid(&attributes), &file_attr(&attributes), generation, handle, self.0.open_flags());
            }
            Err(error) => reply.error(self.0.failed("tmpfile", parent, &error)),
        }
    }

    fn link(&self, _request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.0.reply_entry("link", node, self.0.fs.link(inode(node), inode(parent), name.as_bytes()), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.0.reply_empty("unlink", parent, self.0.fs.unlink(inode(parent), name.as_bytes()), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.0.reply_empty("rmdir", parent, self.0.fs.remove_directory(inode(parent), name.as_bytes()), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(mode) = rename_mode(flags - RenameFlags::RENAME_WHITEOUT) else { return reply.error(Errno::EINVAL) };
        let (from, to) = ((inode(parent), name.as_bytes()), (inode(new_parent), new_name.as_bytes()));
        let result = if flags.contains(RenameFlags::RENAME_WHITEOUT) {
            self.0.fs.rename_leaving_whiteout(from, to, mode, (request.uid(), request.gid()))
        } else {
            self.0.fs.rename(from.0, from.1, to.0, to.1, mode)
        };
        self.0.reply_empty("rename", parent, result, reply);
    }

    /// Strict mounts need nothing of an open: ENOSYS, and the kernel opens and closes files by itself from then on, keeping the cache.
    fn open(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.0.mode {
            Mode::Strict => reply.error(Errno::ENOSYS),
            Mode::Relaxed | Mode::StrictAtomic => reply.opened(self.0.opened(inode(node), flags.0), self.0.open_flags()),
        }
    }

    fn release(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if self.0.writes_behind(flags.0) {
            self.0.writers.remove(inode(node));
        }
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.read(node, offset, size, owner, reply);
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.0.write(request, (node, offset, data), write_flags, owner, reply);
    }

    /// Closing a file has nothing to do: the kernel has written its cache back, errors included, before it asks.
    fn flush(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _request: &Request, node: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.0.sync("fsync", node, reply);
    }

    fn fsyncdir(&self, _request: &Request, node: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.0.sync("fsyncdir", node, reply);
    }

    /// ENOSYS: the kernel opens directories by itself from then on and may keep their entries ([DO1]).
    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _request: &Request, node: INodeNo, _handle: FileHandle, cookie: u64, mut reply: ReplyDirectory) {
        let result = self.0.fs.read_directory(inode(node), cookie, &mut |entry| {
            let kind = file_kind(u16::from(entry.file_type) << 12);
            !reply.add(INodeNo(entry.inode.get()), entry.cookie, kind, OsStr::from_bytes(entry.name))
        });
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.0.failed("readdir", node, &error)),
        }
    }

    fn readdirplus(&self, _request: &Request, node: INodeNo, _handle: FileHandle, cookie: u64, mut reply: ReplyDirectoryPlus) {
        match self.0.fill(node, cookie, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.0.failed("readdirplus", node, &error)),
        }
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        let space = self.0.fs.space();
        let units = |memory: u64, block: u64| (memory + block) / STATFS_UNIT_BYTES;
        // Who asks what is available means to write a file, or to give it room.
        let large_file = ZoneSpace { available_bytes: self.0.fs.large_file_bytes(), ..space.block };
        reply.statfs(
            units(space.memory.total_bytes, space.block.total_bytes),
            units(space.memory.free_bytes, space.block.free_bytes),
            self.0.reserve.left(&large_file) / STATFS_UNIT_BYTES,
            space.inodes_used + space.inodes_free,
            space.inodes_free,
            STATFS_UNIT_BYTES as u32,
            NAME_BYTES_MAX,
            STATFS_UNIT_BYTES as u32,
        );
    }

    fn fallocate(&self, request: &Request, node: INodeNo, _handle: FileHandle, offset: u64, length: u64, mode: i32, reply: ReplyEmpty) {
        // One mode is not there, not all of them: EOPNOTSUPP, where ENOSYS would end all.
        let Some(mode) = allocate_mode(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        self.0.allocate(request, node, (offset, length), mode, reply);
    }

    /// The kernel answers SEEK_SET, SEEK_CUR and SEEK_END itself.0. It does not write its cache back before it asks for data or holes, so with
    /// the write-back cache only it knows them: after ENOSYS it takes every byte up to its own size for data.
    fn lseek(&self, _request: &Request, node: INodeNo, _handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        if self.0.mode == Mode::Relaxed && !self.0.read_only {
            return reply.error(Errno::ENOSYS);
        }
        let to = match whence {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        match self.0.fs.seek(inode(node), offset, to) {
            Ok(Some(found)) => reply.offset(found as i64),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(self.0.failed("lseek", node, &error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        to_offset: u64,
        length: u64,
        flags: fuser::CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        self.0.copy(request, (from, from_offset), (to, to_offset), length, reply);
    }

    fn getxattr(&self, _request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if !self.0.attributes {
            return reply.error(Errno::ENOSYS); // and the kernel asks no more
        }
        self.0.reply_bytes("getxattr", node, size, self.0.fs.extended_attribute(inode(node), name.as_bytes()), reply);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.0.attributes {
            return reply.error(Errno::ENOSYS); // and the kernel asks no more
        }
        self.0.reply_bytes("listxattr", node, size, self.0.attribute_names(request, node), reply);
    }

    fn setxattr(&self, request: &Request, node: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32, reply: ReplyEmpty) {
        if !self.0.attributes {
            return reply.error(Errno::ENOSYS); // and the kernel asks no more
        }
        let set = || self.0.set_attribute(request, node, name.as_bytes(), value, flags);
        let allowed = self.0.leaves_reserve_to_names(request);
        let result = allowed.and_then(|()| self.0.telling_of_space(inode(node), set));
        self.0.reply_empty("setxattr", node, result, reply);
    }

    fn removexattr(&self, _request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if !self.0.attributes {
            return reply.error(Errno::ENOSYS); // and the kernel asks no more
        }
        let remove = || self.0.fs.remove_extended_attribute(inode(node), name.as_bytes());
        self.0.reply_empty("removexattr", node, self.0.telling_of_space(inode(node), remove), reply);
    }

    // What the file system does not have.

    /// Every file can be read and written at once; after ENOSYS the kernel says so by itself.
    fn poll(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _output_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}

impl Door {
    /// Counts an opener; its handle.
    fn opened(&self, file: InodeNumber, flags: i32) -> FileHandle {
        if !self.writes_behind(flags) {
            return READER;
        }
        self.writers.add(file);
        WRITER
    }

    /// Runs what may change the space that an inode takes without the kernel's noticing.
    fn telling_of_space(&self, file: InodeNumber, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let before = self.fs.space_512(file)?;
        change()?;
        if self.fs.space_512(file)? != before {
            self.kernel.drop_attributes(file);
        }
        Ok(())
    }

    pub(crate) fn reply_empty(&self, operation: &'static str, node: INodeNo, result: Result<()>, reply: ReplyEmpty) {
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.failed(operation, node, &error)),
        }
    }

    /// In strict mode ENOSYS: the kernel stops asking, and fsync costs nothing ([DO4]). In relaxed mode the kernel has just written its
    /// cache back; what is left is to say whether the file system stopped, and to be there: cached pages that cannot be sent because the
    /// daemon has died are dropped in silence (Linux 6.18), and this request is the only one whose failure tells who synchronises.
    fn sync(&self, operation: &'static str, node: INodeNo, reply: ReplyEmpty) {
        match self.mode {
            Mode::Strict | Mode::StrictAtomic => reply.error(Errno::ENOSYS),
            Mode::Relaxed => {
                let file = inode(node);
                if self.fs.space_512(file).is_ok_and(|space| self.writers.must_drop_attributes(file, space)) {
                    self.kernel.drop_attributes(file); // [WR1]
                }
                self.reply_empty(operation, node, self.fs.sync(), reply);
            }
        }
    }
}

fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// What `allocate` does for these flags; `None` for those that the file system does not have.
fn allocate_mode(flags: i32) -> Option<AllocateMode> {
    let keep_size = flags & libc::FALLOC_FL_KEEP_SIZE != 0;
    match flags & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Some(AllocateMode::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(AllocateMode::Punch),
        libc::FALLOC_FL_ZERO_RANGE => Some(AllocateMode::Zero { keep_size }),
        _ => None,
    }
}

fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    if flags.is_empty() {
        Some(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Some(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Some(RenameMode::Exchange)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_knows_five_combinations_and_refuses_the_rest() {
        let (keep, punch, zero) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE);
        assert_eq!(allocate_mode(0), Some(AllocateMode::Allocate { keep_size: false }));
        assert_eq!(allocate_mode(keep), Some(AllocateMode::Allocate { keep_size: true }));
        assert_eq!(allocate_mode(punch | keep), Some(AllocateMode::Punch));
        assert_eq!(allocate_mode(zero), Some(AllocateMode::Zero { keep_size: false }));
        assert_eq!(allocate_mode(zero | keep), Some(AllocateMode::Zero { keep_size: true }));
        for refused in
            [punch, punch | zero | keep, libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, libc::FALLOC_FL_UNSHARE_RANGE]
        {
            assert_eq!(allocate_mode(refused), None, "{refused:#x}");
        }
    }

    #[test]
    fn rename_knows_two_flags_and_refuses_the_rest() {
        assert_eq!(rename_mode(RenameFlags::empty()), Some(RenameMode::Replace));
        assert_eq!(rename_mode(RenameFlags::RENAME_NOREPLACE), Some(RenameMode::NoReplace));
        assert_eq!(rename_mode(RenameFlags::RENAME_EXCHANGE), Some(RenameMode::Exchange));
        assert_eq!(rename_mode(RenameFlags::from_bits_retain(1 << 20)), None);
        assert_eq!(rename_mode(RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE), None);
    }
}

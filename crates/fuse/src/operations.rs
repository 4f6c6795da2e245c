//! The requests of the kernel, one after the other: translate, call the file system, reply. Nothing is decided here that another door
//! would decide otherwise.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileHandle, Generation, INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyStatx, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use tandemfs_format::inode::file_type;
use tandemfs_fs::{AllocateMode, Error, ReadOptions, RenameMode, SeekTo, SetAttributes, WriteOptions};

use crate::attributes::{file_attr, file_kind, inode, set_time, timestamp};
use crate::door::Door;
use crate::settings::Mode;

const STATFS_UNIT_BYTES: u64 = 4096;
const NAME_BYTES_MAX: u32 = 255;
/// Most bytes that one request copies.
const COPY_BYTES_MAX: u64 = 64 << 20;
/// No state is kept for an open file ([F2]).
const HANDLE: FileHandle = FileHandle(0);

impl fuser::Filesystem for Door {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.negotiate(config);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.fs.lookup(inode(parent), name.as_bytes()) {
            Err(Error::NotFound) => Self::reply_absent(reply),
            result => self.reply_entry("lookup", parent, result, reply),
        }
    }

    /// Also for the batches of BATCH_FORGET, which fuser takes apart.
    fn forget(&self, _request: &Request, node: INodeNo, count: u64) {
        self.fs.forget(inode(node), count);
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.fs.attributes(inode(node)) {
            Ok(attributes) => reply.attr(&self.valid(&attributes), &file_attr(&attributes)),
            Err(error) => reply.error(self.failed("getattr", node, &error)),
        }
    }

    fn statx(&self, _request: &Request, node: INodeNo, _handle: Option<FileHandle>, _flags: u32, _mask: u32, reply: ReplyStatx) {
        match self.fs.attributes(inode(node)) {
            Ok(attributes) => reply.statx(&self.valid(&attributes), &file_attr(&attributes)),
            Err(error) => reply.error(self.failed("statx", node, &error)),
        }
    }

    fn setattr_kill_suidgid(
        &self,
        _request: &Request,
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
        let set = SetAttributes {
            permissions: mode.map(permissions),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(timestamp),
            // A request that asks for nothing comes before the space of a file changes ([F5]).
            kill_set_id: kill_set_id || nothing,
        };
        let kills = set.kill_set_id || uid.is_some() || gid.is_some() || size.is_some();
        let killed = if kills { self.fs.kill_capabilities(inode(node)) } else { Ok(()) };
        match killed.and_then(|()| self.fs.set_attributes(inode(node), &set)) {
            Ok(attributes) => reply.attr(&self.valid(&attributes), &file_attr(&attributes)),
            Err(error) => reply.error(self.failed("setattr", node, &error)),
        }
    }

    fn readlink(&self, _request: &Request, node: INodeNo, reply: ReplyData) {
        match self.fs.read_link(inode(node)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.failed("readlink", node, &error)),
        }
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let kind = (mode as u16) & file_type::MASK;
        let kind = if kind == 0 { file_type::REGULAR } else { kind };
        let mode = kind | permissions(mode);
        self.reply_entry("mknod", parent, self.create(request, parent, name, (mode, permissions(umask)), rdev, &[]), reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let mode = file_type::DIRECTORY | permissions(mode);
        self.reply_entry("mkdir", parent, self.create(request, parent, name, (mode, permissions(umask)), 0, &[]), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (mode, target) = (file_type::SYMLINK | 0o777, target.as_os_str().as_bytes());
        self.reply_entry("symlink", parent, self.create(request, parent, name, (mode, 0), 0, target), reply);
    }

    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate) {
        let mode = file_type::REGULAR | permissions(mode);
        let created = self.create(request, parent, name, (mode, permissions(umask)), 0, &[]);
        match created.and_then(|attributes| self.remember(attributes)) {
            Ok(attributes) => {
                // Creating gives one time for both, and entries may be kept either way.
                if self.writes_behind(flags) {
                    self.writers.add(attributes.inode);
                }
                let generation = Generation(attributes.generation.into());
                reply.created(&self.valid(&attributes), &file_attr(&attributes), generation, HANDLE, self.open_flags());
            }
            Err(error) => reply.error(self.failed("create", parent, &error)),
        }
    }

    /// The file is held from its creation on, which is the look-up that the reply carries ([F2]).
    fn tmpfile(&self, request: &Request, parent: INodeNo, mode: u32, umask: u32, flags: i32, reply: ReplyCreate) {
        let created = self
            .new_inode(request, parent, file_type::REGULAR | permissions(mode), 0, &[])
            .and_then(|new| self.fs.create_nameless(inode(parent), &new, permissions(umask)));
        match created {
            Ok(attributes) => {
                if self.writes_behind(flags) {
                    self.writers.add(attributes.inode);
                }
                let generation = Generation(attributes.generation.into());
                reply.created(&self.valid(&attributes), &file_attr(&attributes), generation, HANDLE, self.open_flags());
            }
            Err(error) => reply.error(self.failed("tmpfile", parent, &error)),
        }
    }

    fn link(&self, _request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_entry("link", node, self.fs.link(inode(node), inode(parent), name.as_bytes()), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.reply_empty("unlink", parent, self.fs.unlink(inode(parent), name.as_bytes()), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.reply_empty("rmdir", parent, self.fs.remove_directory(inode(parent), name.as_bytes()), reply);
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
            self.fs.rename_leaving_whiteout(from, to, mode, (request.uid(), request.gid()))
        } else {
            self.fs.rename(from.0, from.1, to.0, to.1, mode)
        };
        self.reply_empty("rename", parent, result, reply);
    }

    /// Strict mounts need nothing of an open: ENOSYS, and the kernel opens and closes files by itself from then on, keeping the cache.
    fn open(&self, _request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.writes_behind(flags.0) {
            self.writers.add(inode(node));
        }
        match self.mode {
            Mode::Strict => reply.error(Errno::ENOSYS),
            Mode::Relaxed | Mode::StrictAtomic => reply.opened(HANDLE, self.open_flags()),
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
        if self.writes_behind(flags.0) {
            self.writers.remove(inode(node));
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
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = size.min(self.request_bytes_max);
        let options = ReadOptions { keep_pages: self.may_come_back(inode(node), size) };
        reply.fill(size as usize, |buffer| {
            self.fs.read_with(inode(node), offset, buffer, options).map_err(|error| self.failed("read", node, &error))
        });
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Past its cache the kernel leaves them to us ([F5]); else it has taken them away by REMOVEXATTR when the bytes came into the cache.
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let allowed = if from_cache { Ok(()) } else { self.leaves_reserve(request, node, offset, data.len() as u64, flags.0) };
        let killed = if !from_cache { allowed.and_then(|()| self.fs.kill_capabilities(inode(node))) } else { Ok(()) };
        match killed.and_then(|()| self.fs.write(inode(node), offset, data, write_options(self.mode, write_flags, flags))) {
            Ok(written) => reply.written(written as u32),
            Err(error) => reply.error(self.failed("write", node, &error)),
        }
    }

    /// Closing a file has nothing to do: the kernel has written its cache back, errors included, before it asks.
    fn flush(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _request: &Request, node: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.sync("fsync", node, reply);
    }

    fn fsyncdir(&self, _request: &Request, node: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.sync("fsyncdir", node, reply);
    }

    /// ENOSYS: the kernel opens directories by itself from then on and may keep their entries ([F1]).
    fn opendir(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _request: &Request, node: INodeNo, _handle: FileHandle, cookie: u64, mut reply: ReplyDirectory) {
        let result = self.fs.read_directory(inode(node), cookie, &mut |entry| {
            let kind = file_kind(u16::from(entry.file_type) << 12);
            !reply.add(INodeNo(entry.inode.get()), entry.cookie, kind, OsStr::from_bytes(entry.name))
        });
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.failed("readdir", node, &error)),
        }
    }

    fn readdirplus(&self, _request: &Request, node: INodeNo, _handle: FileHandle, cookie: u64, mut reply: ReplyDirectoryPlus) {
        match self.fill(node, cookie, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.failed("readdirplus", node, &error)),
        }
    }

    fn statfs(&self, _request: &Request, _node: INodeNo, reply: ReplyStatfs) {
        let space = self.fs.space();
        let units = |memory: u64, block: u64| (memory + block) / STATFS_UNIT_BYTES;
        reply.statfs(
            units(space.memory.total_bytes, space.block.total_bytes),
            units(space.memory.free_bytes, space.block.free_bytes),
            units(self.reserve.left(&space.memory), self.reserve.left(&space.block)),
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
        let allowed = if mode == AllocateMode::Punch { Ok(()) } else { self.leaves_reserve(request, node, offset, length, 0) };
        self.reply_empty("fallocate", node, allowed.and_then(|()| self.fs.allocate(inode(node), offset, length, mode)), reply);
    }

    /// The kernel answers SEEK_SET, SEEK_CUR and SEEK_END itself. It does not write its cache back before it asks for data or holes, so with
    /// the write-back cache only it knows them: after ENOSYS it takes every byte up to its own size for data.
    fn lseek(&self, _request: &Request, node: INodeNo, _handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        if self.mode == Mode::Relaxed && !self.read_only {
            return reply.error(Errno::ENOSYS);
        }
        let to = match whence {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        match self.fs.seek(inode(node), offset, to) {
            Ok(Some(found)) => reply.offset(found as i64),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(self.failed("lseek", node, &error)),
        }
    }

    /// The kernel has written both files back from the start of their ranges on, and drops what it holds of the target. One request copies a
    /// bounded part, so that a caller can be ended; every caller has to go on after a short copy anyway.
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
        let length = length.min(COPY_BYTES_MAX);
        let allowed = self.leaves_reserve(request, to, to_offset, length, 0);
        match allowed.and_then(|()| self.fs.copy_range((inode(from), from_offset), (inode(to), to_offset), length, WriteOptions::default()))
        {
            Ok(copied) => reply.written(copied as u32),
            Err(error) => reply.error(self.failed("copy_file_range", to, &error)),
        }
    }

    fn getxattr(&self, _request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if !self.attributes {
            return reply.error(Errno::ENOSYS); // and the kernel asks no more
        }
        self.reply_bytes("getxattr", node, size, self.fs.extended_attribute(inode(node), name.as_bytes()), reply);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.attributes {
            return reply.error(Errno::ENOSYS); // and the kernel asks no more
        }
        self.reply_bytes("listxattr", node, size, self.attribute_names(request, node), reply);
    }

    fn setxattr(&self, request: &Request, node: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32, reply: ReplyEmpty) {
        if !self.attributes {
            return reply.error(Errno::ENOSYS); // and the kernel asks no more
        }
        let set = || self.set_attribute(request, node, name.as_bytes(), value, flags);
        self.reply_empty("setxattr", node, self.leaves_reserve_to_names(request).and_then(|()| set()), reply);
    }

    fn removexattr(&self, _request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if !self.attributes {
            return reply.error(Errno::ENOSYS); // and the kernel asks no more
        }
        self.reply_empty("removexattr", node, self.fs.remove_extended_attribute(inode(node), name.as_bytes()), reply);
    }

    // What the file system does not have.

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
    fn reply_empty(&self, operation: &'static str, node: INodeNo, result: tandemfs_fs::Result<()>, reply: ReplyEmpty) {
        match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.failed(operation, node, &error)),
        }
    }

    /// In strict mode ENOSYS: the kernel stops asking, and fsync costs nothing ([F4]). In relaxed mode the kernel has just written its
    /// cache back; what is left is to say whether the file system stopped, and to be there: cached pages that cannot be sent because the
    /// daemon has died are dropped in silence (Linux 6.18), and this request is the only one whose failure tells who synchronises.
    fn sync(&self, operation: &'static str, node: INodeNo, reply: ReplyEmpty) {
        match self.mode {
            Mode::Strict | Mode::StrictAtomic => reply.error(Errno::ENOSYS),
            Mode::Relaxed => self.reply_empty(operation, node, self.fs.sync(), reply),
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

/// What a WRITE does beside the bytes. Pages that come late from the cache carry some opener's flags, not the writer's. With the
/// write-back cache the kernel sends the times itself (RULES R20); without it late pages come from mappings, and their times are the
/// file system's affair.
fn write_options(mode: Mode, write_flags: WriteFlags, flags: OpenFlags) -> WriteOptions {
    let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
    WriteOptions {
        keep_times: from_cache && mode == Mode::Relaxed,
        append: !from_cache && flags.0 & libc::O_APPEND != 0,
        kill_set_id: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        // Buffered and mapped pages alike come back whole, however little of them has changed (ByteFS §4.6).
        compare: from_cache,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_pages_change_neither_times_nor_the_end_of_the_file() {
        let append = OpenFlags(libc::O_APPEND | libc::O_WRONLY);
        let late = write_options(Mode::Relaxed, WriteFlags::FUSE_WRITE_CACHE, append);
        assert!(late.keep_times && !late.append && late.compare);
        let mapped = write_options(Mode::Strict, WriteFlags::FUSE_WRITE_CACHE, append);
        assert!(!mapped.keep_times && !mapped.append && mapped.compare);
        let direct = write_options(Mode::Relaxed, WriteFlags::empty(), append);
        assert!(!direct.keep_times && direct.append && !direct.compare);
        assert!(write_options(Mode::Strict, WriteFlags::FUSE_WRITE_KILL_SUIDGID, append).kill_set_id);
    }

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

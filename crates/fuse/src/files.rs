//! Requests about inodes and open files that do not involve the kernel's page cache: attributes, open, fsync, SEEK_DATA and SEEK_HOLE,
//! statfs.

use std::sync::Arc;
use std::time::Duration;

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, SeekTo, SetAttributes};
use tandemfs_vfs::{NAME_BYTES_MAX, SPACE_UNIT_BYTES, statfs};
use tandemfs_wire::{self as wire, Errno, Opened, Reply, Request, Statfs};

use crate::attributes::{inode, set_time, shown, timestamp};
use crate::door::Door;
use crate::mutant::{self, Mutant};
use crate::names::permissions;
use crate::page_cache::{PAGE_BYTES, WritingBack};
use crate::settings::Mode;

/// File handles. The only state of an open file ([DO2]) is whether it may write through the write-back cache ([WR2] of `writers.rs`).
const READER: u64 = 0;
const WRITER: u64 = 1;

/// What an fsync of the mount does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fsync {
    /// Nothing, and the kernel answers the next ones itself.
    Unasked,
    /// Flushes what programs have stored to mappings of the file, and gives it the times of what they store under leases ([BS12] of `beside.rs`).
    Mapped,
    /// Makes all durable.
    Whole,
}

impl Fsync {
    fn of(mode: Mode, flushes_mapped: bool, operation: &str) -> Self {
        match mode {
            Mode::Relaxed => Self::Whole,
            Mode::Strict if flushes_mapped && operation == "fsync" && !mutant::on(Mutant::FsyncUnasked) => Self::Mapped,
            Mode::Strict | Mode::StrictAtomic => Self::Unasked,
        }
    }
}

impl Door {
    pub(crate) fn getattr(&self, node: u64, handle: Option<u64>, reply: Reply<'_>) {
        if handle == Some(WRITER)
            && let Some(lost) = self.writers.take_lost(inode(node))
        {
            return reply.error(lost); // [WR2]
        }
        match self.fs.attributes(inode(node)) {
            Ok(attributes) => reply.attributes(&shown(&attributes), self.valid(&attributes)),
            Err(error) => match self.placeholder(node, &error) {
                Some(attributes) => reply.attributes(&attributes, Duration::ZERO),
                None => reply.error(self.failed("getattr", node, &error)),
            },
        }
    }

    pub(crate) fn statx(&self, node: u64, reply: Reply<'_>) {
        match self.fs.attributes(inode(node)) {
            Ok(attributes) => reply.statx(&shown(&attributes), self.valid(&attributes)),
            Err(error) => match self.placeholder(node, &error) {
                Some(attributes) => reply.statx(&attributes, Duration::ZERO),
                None => reply.error(self.failed("statx", node, &error)),
            },
        }
    }

    /// What there is to see of an inode that is damaged itself ([DO7]).
    fn placeholder(&self, node: u64, error: &Error) -> Option<wire::Attributes> {
        match error {
            Error::Damaged { inode: damaged, .. } if *damaged == inode(node) => self.placeholders.attributes(*damaged),
            _ => None,
        }
    }

    pub(crate) fn setattr(self: &Arc<Self>, request: &Request<'_>, given: &wire::SetAttributes, reply: Reply<'_>) {
        let wire::SetAttributes { mode, uid, gid, size, atime, mtime, ctime, .. } = *given;
        let nothing = (mode, uid, gid, size) == (None, None, None, None) && atime.is_none() && mtime.is_none() && ctime.is_none();
        let file = inode(request.node);
        // The kernel sends a SETATTR without fields before FALLOCATE and COPY_FILE_RANGE ([DO5]).
        let kill_set_id = given.kill_suidgid || nothing;
        let kill_set_group_id = kill_set_id && self.loses_set_group_id(request, file).unwrap_or(false);
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
        let killed = if kills { self.fs.kill_capabilities(file) } else { Ok(()) };
        if let Some(size) = size.filter(|size| given.handle.is_some() && self.keeps_what_clients_appended(file, request.pid, *size)) {
            tracing::debug!(inode = file.get(), size, "a direct write failed; what clients have appended since stays");
            return self.getattr(request.node, None, reply);
        }
        let before = size.and_then(|_| self.end_before(file));
        match killed.and_then(|()| self.fs.set_attributes(file, &set)) {
            Ok(attributes) => self.reply_resized(before, attributes, reply),
            Err(error) => reply.error(self.failed("setattr", request.node, &error)),
        }
    }

    /// The size before a SETATTR, and a registration of the rest of its page, in which clients then change nothing.
    fn end_before(&self, file: InodeNumber) -> Option<(u64, WritingBack)> {
        loop {
            let size = self.fs.size(file).ok()?;
            let changing = self.page_cache.begin_writing_back(file, size..size.next_multiple_of(PAGE_BYTES));
            if self.fs.size(file).ok()? == size {
                return Some((size, changing));
            }
        }
    }

    /// Whether the kernel cuts a file to the end that it knows, behind a direct WRITE of this thread that has failed, though clients may have reached behind
    /// that ([BS13] of `beside.rs`).
    fn keeps_what_clients_appended(&self, file: InodeNumber, thread: u32, size: u64) -> bool {
        let Some(noted) = self.beside.as_ref().filter(|noted| noted.take_failed(file, thread, size)) else { return false };
        self.fs.size_and_generation(file).is_ok_and(|(_, generation)| size < noted.end_by_clients(file, generation))
    }

    pub(crate) fn readlink(&self, node: u64, reply: Reply<'_>) {
        match self.fs.read_link(inode(node)) {
            Ok(target) => reply.bytes(&target),
            Err(error) => reply.error(self.failed("readlink", node, &error)),
        }
    }

    /// Strict mode needs no OPEN, unless programs may map files for stores ([FOP1] of `opens.rs`) or not everybody may open ([PRI1] of `private.rs`): after
    /// ENOSYS the kernel opens and closes files by itself and keeps the page cache.
    pub(crate) fn open(&self, request: &Request<'_>, flags: u32, reply: Reply<'_>) {
        match self.mode {
            Mode::Strict if self.opens.is_none() && !self.private.checks_opens() => reply.error(Errno::ENOSYS),
            _ => reply.open(self.opened(inode(request.node), request.pid, flags)),
        }
    }

    /// Counts an opener, with its thread; what the kernel is told of the open file.
    pub(crate) fn opened(&self, file: InodeNumber, thread: u32, flags: u32) -> Opened {
        if let Some(opens) = &self.opens {
            return opens.open(file, self.open_flags(file), || self.fs.is_mapped_for_stores(file));
        }
        let handle = if self.writes_behind(flags) { WRITER } else { READER };
        if handle == WRITER {
            self.writers.add(file, thread);
        }
        Opened { handle, flags: self.open_flags(file) }
    }

    pub(crate) fn release(&self, node: u64, (handle, flags): (u64, u32), reply: Reply<'_>) {
        if let Some(opens) = &self.opens {
            opens.release(inode(node), handle);
        } else if self.writes_behind(flags) {
            self.writers.remove(inode(node));
        }
        reply.ok();
    }

    /// Strict mode answers ENOSYS: the kernel stops sending FSYNC, and fsync costs nothing ([DO4]). In relaxed mode the kernel has just
    /// written back its cache. The request then has two uses: it reports a stopped file system, and it fails if the daemon has died. Linux
    /// 6.18 silently drops dirty pages that it cannot send to a dead daemon, so this failure is the only one that the caller of fsync sees.
    pub(crate) fn sync(&self, operation: &'static str, node: u64, data_only: bool, reply: Reply<'_>) {
        match Fsync::of(self.mode, self.flushes_mapped, operation) {
            Fsync::Unasked => reply.error(Errno::ENOSYS),
            Fsync::Mapped => {
                let file = inode(node);
                let timed = if data_only { Ok(()) } else { self.fs.note_times_of_stores(file) };
                self.reply_empty(operation, node, timed.and_then(|()| self.fs.sync_mapped(Some(file))), reply);
            }
            Fsync::Whole => {
                let file = inode(node);
                if self.fs.space_512(file).is_ok_and(|space| self.writers.must_drop_attributes(file, space)) {
                    self.kernel.drop_attributes(file); // [WR1]
                }
                self.reply_empty(operation, node, self.fs.sync(), reply);
            }
        }
    }

    /// The kernel answers SEEK_SET, SEEK_CUR and SEEK_END itself. It does not write back its cache before it asks for data or holes, so
    /// with the write-back cache only the kernel knows them. After ENOSYS it treats every byte up to its own size as data.
    pub(crate) fn lseek(&self, node: u64, offset: u64, whence: u32, reply: Reply<'_>) {
        if self.mode == Mode::Relaxed && !self.read_only {
            return reply.error(Errno::ENOSYS);
        }
        let to = match whence.cast_signed() {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        if i64::try_from(offset).is_err() {
            return reply.error(Errno::ENXIO);
        }
        match self.fs.seek(inode(node), offset, to) {
            Ok(Some(found)) => reply.offset(found),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(self.failed("lseek", node, &error)),
        }
    }

    pub(crate) fn statfs(&self, node: u64, reply: Reply<'_>) {
        let project = self.fs.limits_of_project(inode(node)).unwrap_or_default();
        let space = statfs(&self.fs, self.reserve, project.as_ref());
        reply.statfs(&Statfs {
            blocks: space.units,
            blocks_free: space.free,
            blocks_available: space.available,
            files: space.files,
            files_free: space.files_free,
            block_bytes: SPACE_UNIT_BYTES as u32,
            fragment_bytes: SPACE_UNIT_BYTES as u32,
            name_bytes_max: NAME_BYTES_MAX,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::is_caught;

    /// [BS12]
    fn stores_that_need_it_are_flushed_by_each_fsync() {
        let of = |mode, flushes_mapped| ["fsync", "fsyncdir"].map(|operation| Fsync::of(mode, flushes_mapped, operation));
        assert_eq!(of(Mode::Strict, true), [Fsync::Mapped, Fsync::Unasked]);
        assert_eq!((of(Mode::Strict, false), of(Mode::StrictAtomic, false)), ([Fsync::Unasked; 2], [Fsync::Unasked; 2]));
        assert_eq!(of(Mode::Relaxed, false), [Fsync::Whole; 2]);
    }

    #[test]
    fn syncs_and_their_bug() {
        is_caught(Mutant::FsyncUnasked, stores_that_need_it_are_flushed_by_each_fsync);
    }
}

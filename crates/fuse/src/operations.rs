//! Which request of the kernel is which operation. Nothing is decided here that another door would decide otherwise.

use std::sync::Arc;

use tandemfs_wire::{Errno, Handler, Interruption, Operation, Reply, Request};

use crate::door::Door;

/// The door as a session calls it.
pub(crate) struct Operations(pub(crate) Arc<Door>);

impl Handler for Operations {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let (door, node) = (&self.0, request.node);
        match request.operation {
            _ if is_behind_every_file(&request.operation) => reply.error(Errno::EINVAL),

            Operation::Lookup { name } => door.lookup(node, name, reply),
            Operation::Forget { count } => door.forget([(node, count)].into_iter(), reply),
            Operation::BatchForget(forgets) => door.forget(forgets.iter(), reply),
            Operation::Mknod { .. } | Operation::Mkdir { .. } | Operation::Symlink { .. } => door.make_entry(request, reply),
            Operation::Create { name, mode, umask, flags, .. } => door.create(request, name, (mode, umask, flags), reply),
            Operation::Tmpfile { mode, umask, flags, .. } => door.tmpfile(request, (mode, umask, flags), reply),
            Operation::Link { target, name } => door.link(target, node, name, reply),
            Operation::Unlink { name } => door.unlink(node, name, reply),
            Operation::Rmdir { name } => door.rmdir(node, name, reply),
            Operation::Rename { name, new_parent, new_name, flags } => door.rename(request, name, (new_parent, new_name), flags, reply),
            Operation::Readdir { offset, size, .. } => door.readdir(node, offset, size, reply),
            Operation::Readdirplus { offset, size, .. } => door.readdirplus(node, offset, size, reply),

            Operation::Getattr { handle } => door.getattr(node, handle, reply),
            Operation::Statx { .. } => door.statx(node, reply),
            Operation::Setattr(set) => door.setattr(request, &set, reply),
            Operation::Readlink => door.readlink(node, reply),
            Operation::Getxattr { .. } | Operation::Listxattr { .. } | Operation::Setxattr { .. } | Operation::Removexattr { .. } => {
                door.serve_extended_attribute(request, reply);
            }
            Operation::Statfs => door.statfs(reply),

            Operation::Open { flags, .. } => door.open(node, flags, reply),
            Operation::Release { flags, .. } => door.release(node, flags, reply),
            Operation::Read { offset, size, lock_owner, .. } => door.read(node, offset, size, lock_owner.is_some(), reply),
            Operation::Write(write) => door.write(request, &write, reply),
            Operation::Fsync { .. } => door.sync("fsync", node, reply),
            Operation::Fsyncdir { .. } => door.sync("fsyncdir", node, reply),
            Operation::Fallocate { offset, length, mode, .. } => door.allocate(request, (offset, length), mode, reply),
            Operation::CopyFileRange(copy) => door.copy(request, &copy, reply),
            Operation::Lseek { offset, whence, .. } => door.lseek(node, offset, whence, reply),

            Operation::Ioctl(_) => reply.error(Errno::ENOTTY),
            // OPENDIR: the kernel opens directories by itself from then on and may keep their entries ([DO1]). FLUSH: closing a file has nothing
            // to do, as the kernel has written its cache back, errors included, before it asks. POLL: every file can be read and written at
            // once, which the kernel then says by itself. Everything else the file system does not have.
            _ => reply.error(Errno::ENOSYS),
        }
    }

    /// No operation ends early; the kernel need not say.
    fn interrupted(&self, _unique: u64) -> Interruption {
        Interruption::Unsupported
    }
}

/// Whether a request names a place that no file can have. The kernel never does.
fn is_behind_every_file(operation: &Operation<'_>) -> bool {
    let is_behind = |offset: u64| i64::try_from(offset).is_err();
    match *operation {
        Operation::Read { offset, .. } => is_behind(offset),
        Operation::Write(write) => is_behind(write.offset),
        Operation::Fallocate { offset, length, .. } => is_behind(offset) || is_behind(length),
        Operation::CopyFileRange(copy) => is_behind(copy.offset) || is_behind(copy.target_offset),
        _ => false,
    }
}

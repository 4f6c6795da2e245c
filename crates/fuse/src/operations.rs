//! Dispatches each FUSE request to its operation. Decisions that every protocol would share belong to the file system.

use std::sync::Arc;

use tandemfs_fs::announcing;
use tandemfs_wire::{Errno, Handler, Interruption, Operation, Reply, Request, will_wait};

use crate::door::Door;
use crate::traced;

/// The door as the session's handler.
pub(crate) struct Operations(pub(crate) Arc<Door>);

impl Handler for Operations {
    /// Where the request has to wait, another thread serves in place of this one ([NW6] of the file system).
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let reply = traced::watched(&self.0.recorder, request, reply);
        let serve = || self.serve(request, reply);
        announcing(will_wait, || self.0.fs.for_caller(request.pid, || self.0.bound_by_quota(request, serve)));
    }

    /// Operations cannot be interrupted; the kernel need not send INTERRUPT.
    fn interrupted(&self, _unique: u64) -> Interruption {
        Interruption::Unsupported
    }
}

impl Operations {
    fn serve(&self, request: &Request<'_>, reply: Reply<'_>) {
        let (door, node) = (&self.0, request.node);
        match request.operation {
            _ if is_behind_every_file(&request.operation) => reply.error(Errno::EINVAL),
            // As other file systems answer a caller that an id-mapped mount maps to nobody. The kernel lets only whiteouts come here.
            operation if operation.creates() && request.new_owner().is_none() => reply.error(Errno::EOVERFLOW),

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

            Operation::Getattr { handle } => {
                // What is open is read already, not about to be watched ([WCH1] of `watches.rs`).
                if let (None, Some(watches)) = (handle, &door.watches) {
                    watches.note(request.pid);
                    door.fs.watchers_come(); // [WCH6]
                }
                door.getattr(node, handle, reply);
            }
            Operation::Statx { .. } => door.statx(node, reply),
            Operation::Setattr(set) => door.setattr(request, &set, reply),
            Operation::Readlink => door.readlink(node, reply),
            Operation::Getxattr { .. } | Operation::Listxattr { .. } | Operation::Setxattr { .. } | Operation::Removexattr { .. } => {
                door.serve_extended_attribute(request, reply);
            }
            Operation::Statfs => door.statfs(node, reply),

            Operation::Open { flags, .. } => door.open(request, flags, reply),
            Operation::Release { handle, flags, .. } => door.release(node, (handle, flags), reply),
            Operation::Read { offset, size, flags, lock_owner, .. } => door.read(request, offset, size, lock_owner.map(|_| flags), reply),
            Operation::Write(write) => door.write(request, &write, reply),
            Operation::Fsync { data_only, .. } => door.sync("fsync", node, data_only, reply),
            Operation::Fsyncdir { data_only, .. } => door.sync("fsyncdir", node, data_only, reply),
            Operation::Fallocate { offset, length, mode, .. } => door.allocate(request, (offset, length), mode, reply),
            Operation::CopyFileRange(copy) => door.copy(request, &copy, reply),
            Operation::Lseek { offset, whence, .. } => door.lseek(node, offset, whence, reply),

            Operation::Opendir { .. } => door.opendir(reply),
            Operation::Releasedir { .. } => reply.ok(),
            Operation::Ioctl(given) => door.ioctl(request, &given, reply),
            // FLUSH: closing a file needs
            // nothing, since the kernel writes back its cache and reports errors before it sends FLUSH. POLL: the kernel then reports every
            // file as readable and writable. All other operations are not supported.
            _ => reply.error(Errno::ENOSYS),
        }
    }
}

/// Whether an offset is beyond the largest file size. The kernel never sends such requests.
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

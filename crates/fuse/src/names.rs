//! Requests about names: lookup, create, link, rename and remove; and FORGET.

use std::sync::Arc;

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Attributes, Error, Result};
use tandemfs_vfs::{new_inode, rename_mode};
use tandemfs_wire::{Entry, Errno, Operation, Reply, Request};

use crate::attributes::inode;
use crate::caller::Caller;
use crate::door::Door;

/// What is created.
#[derive(Debug, Clone, Copy)]
struct New<'t> {
    mode: u16,
    umask: u32,
    rdev: u32,
    /// Of a symbolic link.
    target: &'t [u8],
}

impl New<'_> {
    fn of(mode: u16, umask: u32) -> Self {
        Self { mode, umask, rdev: 0, target: &[] }
    }
}

impl Door {
    pub(crate) fn lookup(&self, parent: u64, name: &[u8], reply: Reply<'_>) {
        match self.fs.lookup(inode(parent), name) {
            // The kernel may cache that the name does not exist ([DO1]).
            Err(Error::NotFound) => reply.entry(&Entry::absent(self.names_valid())),
            Err(error @ Error::Damaged { .. }) => self.lookup_damaged(parent, name, &error, reply),
            result => self.reply_entry("lookup", parent, result, reply),
        }
    }

    /// A name whose inode is damaged stands for a placeholder, so that the kernel can remove or replace it ([DO7]).
    fn lookup_damaged(&self, parent: u64, name: &[u8], error: &Error, reply: Reply<'_>) {
        let errno = self.failed("lookup", parent, error);
        match self.fs.damaged_name(inode(parent), name) {
            Ok(Some((number, kind))) if file_type::ALL.contains(&kind) => reply.entry(&self.placeholders.entry(number, kind)),
            Ok(Some((number, _))) => {
                self.fs.forget(number, 1);
                reply.error(errno);
            }
            Ok(None) | Err(_) => reply.error(errno),
        }
    }

    /// Serves FORGET, or the pairs of a BATCH_FORGET.
    pub(crate) fn forget(&self, nodes: impl Iterator<Item = (u64, u64)>, reply: Reply<'_>) {
        for (node, count) in nodes {
            self.forgets.serve(|| self.fs.forget(inode(node), count));
            self.forget_notes(inode(node));
        }
        reply.none();
    }

    /// Serves MKNOD, MKDIR and SYMLINK.
    pub(crate) fn make_entry(self: &Arc<Self>, request: &Request<'_>, reply: Reply<'_>) {
        let (operation, name, new) = match request.operation {
            Operation::Mknod { name, mode, umask, rdev } => {
                let kind = (mode as u16) & file_type::MASK;
                let kind = if kind == 0 { file_type::REGULAR } else { kind };
                ("mknod", name, New { rdev, ..New::of(kind | permissions(mode), umask) })
            }
            Operation::Mkdir { name, mode, umask } => ("mkdir", name, New::of(file_type::DIRECTORY | permissions(mode), umask)),
            Operation::Symlink { name, target } => ("symlink", name, New { target, ..New::of(file_type::SYMLINK | 0o777, 0) }),
            _ => return reply.error(Errno::ENOSYS),
        };
        let parent = request.node;
        self.make(request, Some(name), &new, reply, move |door, made, reply| door.reply_entry(operation, parent, made, reply));
    }

    pub(crate) fn create(self: &Arc<Self>, request: &Request<'_>, name: &[u8], (mode, umask, flags): (u32, u32, u32), reply: Reply<'_>) {
        let (parent, new, thread) = (request.node, New::of(file_type::REGULAR | permissions(mode), umask), request.pid);
        let is_exclusive = flags.cast_signed() & libc::O_EXCL != 0;
        self.make(request, Some(name), &new, reply, move |door, made, reply| match made {
            // A client has made it since the kernel looked: the kernel looks once more then, and opens what is there.
            Err(Error::Exists) if !is_exclusive => reply.error(Errno::ESTALE),
            made => door.reply_created("create", parent, made.and_then(|attributes| door.remember(attributes)), (thread, flags), reply),
        });
    }

    pub(crate) fn tmpfile(self: &Arc<Self>, request: &Request<'_>, (mode, umask, flags): (u32, u32, u32), reply: Reply<'_>) {
        let (parent, new, thread) = (request.node, New::of(file_type::REGULAR | permissions(mode), umask), request.pid);
        self.make(request, None, &new, reply, move |door, made, reply| {
            door.reply_created("tmpfile", parent, made, (thread, flags), reply);
        });
    }

    fn reply_created(&self, operation: &'static str, parent: u64, made: Result<Attributes>, opened: (u32, u32), reply: Reply<'_>) {
        let (thread, flags) = opened;
        match made {
            Ok(attributes) => {
                let opened = self.opened(attributes.inode, thread, flags);
                reply.create(&self.entry(&attributes), opened);
            }
            Err(error) => reply.error(self.failed(operation, parent, &error)),
        }
    }

    /// Creates an inode, with a name or without one, when there is room for it ([RTS1] of `returning_space.rs`).
    fn make(
        self: &Arc<Self>,
        request: &Request<'_>,
        name: Option<&[u8]>,
        new: &New<'_>,
        reply: Reply<'_>,
        finish: impl FnOnce(&Arc<Self>, Result<Attributes>, Reply<'_>) + Send + 'static,
    ) {
        let (parent, owner) = (inode(request.node), (request.uid, request.gid));
        let first = self.leaves_reserve_to_names(&Caller::of(request)).and_then(|()| self.make_now(parent, name, owner, new));
        let again = || {
            let may_use_reserve = Caller::of(request).may_use_reserve();
            let (name, target, New { mode, umask, rdev, .. }) = (name.map(<[u8]>::to_vec), new.target.to_vec(), *new);
            move |door: &Self| match door.reserve.reached(&door.fs) {
                Some(full) if !may_use_reserve => Err(full),
                _ => door.make_now(parent, name.as_deref(), owner, &New { mode, umask, rdev, target: &target }),
            }
        };
        self.or_with_returned_space(first, again, reply, finish);
    }

    /// The umask applies unless the directory has a default access control list. `create_nameless` also counts the lookup that the reply carries
    /// ([DO2]).
    fn make_now(&self, parent: InodeNumber, name: Option<&[u8]>, owner: (u32, u32), new: &New<'_>) -> Result<Attributes> {
        let inode = new_inode(&self.fs.attributes(parent)?, new.mode, owner, new.rdev, new.target);
        match name {
            Some(name) => self.fs.create_under_umask(parent, name, &inode, permissions(new.umask)),
            None => self.fs.create_nameless(parent, &inode, permissions(new.umask)),
        }
    }

    pub(crate) fn link(self: &Arc<Self>, target: u64, parent: u64, name: &[u8], reply: Reply<'_>) {
        let (file, parent) = (inode(target), inode(parent));
        let first = self.fs.link(file, parent, name);
        let again = || {
            let name = name.to_vec();
            move |door: &Self| door.fs.link(file, parent, &name)
        };
        self.or_with_returned_space(first, again, reply, move |door, linked, reply| door.reply_entry("link", target, linked, reply));
    }

    pub(crate) fn unlink(&self, parent: u64, name: &[u8], reply: Reply<'_>) {
        self.reply_empty("unlink", parent, self.fs.unlink(inode(parent), name), reply);
    }

    pub(crate) fn rmdir(&self, parent: u64, name: &[u8], reply: Reply<'_>) {
        self.reply_empty("rmdir", parent, self.fs.remove_directory(inode(parent), name), reply);
    }

    pub(crate) fn rename(self: &Arc<Self>, request: &Request<'_>, name: &[u8], to: (u64, &[u8]), flags: u32, reply: Reply<'_>) {
        let whiteout_of = (flags & libc::RENAME_WHITEOUT != 0).then_some((request.uid, request.gid));
        let Some(mode) = rename_mode(flags & !libc::RENAME_WHITEOUT) else { return reply.error(Errno::EINVAL) };
        let (node, parents, new_name) = (request.node, (inode(request.node), inode(to.0)), to.1);
        let rename = move |door: &Self, name: &[u8], new_name: &[u8]| match whiteout_of {
            Some(owner) => door.fs.rename_leaving_whiteout((parents.0, name), (parents.1, new_name), mode, owner),
            None => door.fs.rename(parents.0, name, parents.1, new_name, mode),
        };
        let again = || {
            let (name, new_name) = (name.to_vec(), new_name.to_vec());
            move |door: &Self| rename(door, &name, &new_name)
        };
        let finish = move |door: &Arc<Self>, result, reply: Reply<'_>| door.reply_empty("rename", node, result, reply);
        self.or_with_returned_space(rename(self, name, new_name), again, reply, finish);
    }
}

pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

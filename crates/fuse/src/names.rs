//! Requests about names: lookup, create, link, rename and remove; and FORGET.

use tandemfs_format::inode::file_type;
use tandemfs_fs::{Attributes, Error, NewInode, Result};
use tandemfs_vfs::{new_inode, rename_mode};
use tandemfs_wire::{Entry, Errno, Opened, Operation, Reply, Request};

use crate::attributes::inode;
use crate::door::Door;

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
    pub(crate) fn make_entry(&self, request: &Request<'_>, reply: Reply<'_>) {
        let (operation, made) = match request.operation {
            Operation::Mknod { name, mode, umask, rdev } => {
                let kind = (mode as u16) & file_type::MASK;
                let kind = if kind == 0 { file_type::REGULAR } else { kind };
                ("mknod", self.make(request, name, (kind | permissions(mode), permissions(umask)), rdev, &[]))
            }
            Operation::Mkdir { name, mode, umask } => {
                ("mkdir", self.make(request, name, (file_type::DIRECTORY | permissions(mode), permissions(umask)), 0, &[]))
            }
            Operation::Symlink { name, target } => ("symlink", self.make(request, name, (file_type::SYMLINK | 0o777, 0), 0, target)),
            _ => return reply.error(Errno::ENOSYS),
        };
        self.reply_entry(operation, request.node, made, reply);
    }

    pub(crate) fn create(&self, request: &Request<'_>, name: &[u8], (mode, umask, flags): (u32, u32, u32), reply: Reply<'_>) {
        let mode = file_type::REGULAR | permissions(mode);
        let made = self.make(request, name, (mode, permissions(umask)), 0, &[]);
        self.reply_created("create", request.node, made.and_then(|attributes| self.remember(attributes)), flags, reply);
    }

    /// `create_nameless` also counts the lookup that the reply carries ([DO2]).
    pub(crate) fn tmpfile(&self, request: &Request<'_>, (mode, umask, flags): (u32, u32, u32), reply: Reply<'_>) {
        let made = self
            .new_inode(request, file_type::REGULAR | permissions(mode), 0, &[])
            .and_then(|new| self.fs.create_nameless(inode(request.node), &new, permissions(umask)));
        self.reply_created("tmpfile", request.node, made, flags, reply);
    }

    fn reply_created(&self, operation: &'static str, parent: u64, made: Result<Attributes>, flags: u32, reply: Reply<'_>) {
        match made {
            Ok(attributes) => {
                let handle = self.opened(attributes.inode, flags);
                reply.create(&self.entry(&attributes), Opened { handle, flags: self.open_flags() });
            }
            Err(error) => reply.error(self.failed(operation, parent, &error)),
        }
    }

    /// Creates an inode and its name. The umask applies unless the directory has a default access control list.
    fn make(&self, request: &Request<'_>, name: &[u8], (mode, umask): (u16, u16), rdev: u32, target: &[u8]) -> Result<Attributes> {
        self.fs.create_under_umask(inode(request.node), name, &self.new_inode(request, mode, rdev, target)?, umask)
    }

    /// The attributes of a new inode.
    fn new_inode<'t>(&self, request: &Request<'_>, mode: u16, rdev: u32, target: &'t [u8]) -> Result<NewInode<'t>> {
        self.leaves_reserve_to_names(request)?;
        let directory = self.fs.attributes(inode(request.node))?;
        Ok(new_inode(&directory, mode, (request.uid, request.gid), rdev, target))
    }

    pub(crate) fn link(&self, target: u64, parent: u64, name: &[u8], reply: Reply<'_>) {
        self.reply_entry("link", target, self.fs.link(inode(target), inode(parent), name), reply);
    }

    pub(crate) fn unlink(&self, parent: u64, name: &[u8], reply: Reply<'_>) {
        self.reply_empty("unlink", parent, self.fs.unlink(inode(parent), name), reply);
    }

    pub(crate) fn rmdir(&self, parent: u64, name: &[u8], reply: Reply<'_>) {
        self.reply_empty("rmdir", parent, self.fs.remove_directory(inode(parent), name), reply);
    }

    pub(crate) fn rename(&self, request: &Request<'_>, name: &[u8], to: (u64, &[u8]), flags: u32, reply: Reply<'_>) {
        let leaves_whiteout = flags & libc::RENAME_WHITEOUT != 0;
        let Some(mode) = rename_mode(flags & !libc::RENAME_WHITEOUT) else { return reply.error(Errno::EINVAL) };
        let (from, to) = ((inode(request.node), name), (inode(to.0), to.1));
        let result = if leaves_whiteout {
            self.fs.rename_leaving_whiteout(from, to, mode, (request.uid, request.gid))
        } else {
            self.fs.rename(from.0, from.1, to.0, to.1, mode)
        };
        self.reply_empty("rename", request.node, result, reply);
    }
}

pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

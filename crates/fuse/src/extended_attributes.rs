//! The extended attribute requests.

use std::sync::Arc;

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Result, SetExtendedAttribute};
use tandemfs_vfs::{attribute_mode, listed_names, permit_home};
use tandemfs_wire::{Errno, Operation, Reply, Request};

use crate::attributes::inode;
use crate::caller::Caller;
use crate::door::Door;

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const SET_GID: u16 = 0o2000;

/// What SETXATTR asks for, beside the bytes of name and value.
#[derive(Clone, Copy)]
struct Set {
    file: InodeNumber,
    /// The flags of setxattr(2).
    flags: i32,
    /// Whether an access control list takes the set-group-id bit; an old kernel does not say.
    acl_kill_sgid: Option<bool>,
}

impl Door {
    /// Serves GETXATTR, LISTXATTR, SETXATTR and REMOVEXATTR.
    pub(crate) fn serve_extended_attribute(self: &Arc<Self>, request: &Request<'_>, reply: Reply<'_>) {
        if !self.attributes {
            return reply.error(Errno::ENOSYS); // the kernel sends no more of these
        }
        let (node, file) = (request.node, inode(request.node));
        match request.operation {
            Operation::Getxattr { name, size } => self.reply_bytes("getxattr", node, size, self.fs.extended_attribute(file, name), reply),
            Operation::Listxattr { size } => self.reply_bytes("listxattr", node, size, self.attribute_names(request), reply),
            Operation::Setxattr { name, value, flags, acl_kill_sgid } => {
                let set = Set { file, flags: flags.cast_signed(), acl_kill_sgid };
                let first = self.set_attribute(&Caller::of(request), &set, name, value);
                // There is room for it when a removed file gives its own back ([RTS1] of `returning_space.rs`).
                let again = || {
                    let (caller, name, value) = (Caller::of(request), name.to_vec(), value.to_vec());
                    move |door: &Self| door.set_attribute(&caller, &set, &name, &value)
                };
                self.or_with_returned_space(first, again, reply, move |door, result, reply| {
                    door.reply_empty("setxattr", node, result, reply)
                });
            }
            Operation::Removexattr { name } => {
                let remove = || self.fs.remove_extended_attribute(file, name);
                self.reply_empty("removexattr", node, self.telling_of_space(file, remove), reply);
            }
            _ => reply.error(Errno::ENOSYS),
        }
    }

    /// Replies with the bytes, or with their number if the caller asks with size 0.
    fn reply_bytes(&self, operation: &'static str, node: u64, size: u32, result: Result<Vec<u8>>, reply: Reply<'_>) {
        match result {
            Ok(bytes) => reply.xattr(size, &bytes),
            Err(error) => reply.error(self.failed(operation, node, &error)),
        }
    }

    /// Runs a change that may alter the space of an inode without the kernel's knowledge.
    fn telling_of_space(&self, file: InodeNumber, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let before = self.fs.space_512(file)?;
        change()?;
        if self.fs.space_512(file)? != before {
            self.kernel.drop_attributes(file);
        }
        Ok(())
    }

    /// The names of a file's attributes, each followed by NUL. Names in `trusted.` are only listed for callers that may read them: the
    /// kernel checks this for getxattr but leaves it to the file system for listxattr.
    fn attribute_names(&self, request: &Request<'_>) -> Result<Vec<u8>> {
        listed_names(&self.fs, inode(request.node), || Caller::of(request).is_trusted())
    }

    /// Sets an attribute, where the caller may, and tells the kernel if the file's space changes.
    fn set_attribute(&self, caller: &Caller, set: &Set, name: &[u8], value: &[u8]) -> Result<()> {
        let file = set.file;
        self.leaves_reserve_to_names(caller)?;
        self.telling_of_space(file, || {
            permit_home(&self.fs, file, name, value, |owner| caller.is_owner(owner))?;
            let mode = attribute_mode(&self.fs, file, name, set.flags)?;
            let kill_set_group_id = match set.acl_kill_sgid {
                _ if name != ACCESS_LIST => false,
                Some(kill) => kill,
                None => {
                    let attributes = self.fs.attributes(file)?;
                    attributes.mode & SET_GID != 0 && !caller.is_in_group(attributes.gid)
                }
            };
            self.fs.set_extended_attribute(file, name, value, SetExtendedAttribute { mode, kill_set_group_id })
        })
    }
}

//! The extended attribute requests.

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Result, SetExtendedAttribute};
use tandemfs_vfs::{attribute_mode, listed_names, permit_home};
use tandemfs_wire::{Errno, Operation, Reply, Request};

use crate::attributes::inode;
use crate::caller::Caller;
use crate::door::Door;

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const SET_GID: u16 = 0o2000;

impl Door {
    /// Serves GETXATTR, LISTXATTR, SETXATTR and REMOVEXATTR.
    pub(crate) fn serve_extended_attribute(&self, request: &Request<'_>, reply: Reply<'_>) {
        if !self.attributes {
            return reply.error(Errno::ENOSYS); // the kernel sends no more of these
        }
        let (node, file) = (request.node, inode(request.node));
        match request.operation {
            Operation::Getxattr { name, size } => self.reply_bytes("getxattr", node, size, self.fs.extended_attribute(file, name), reply),
            Operation::Listxattr { size } => self.reply_bytes("listxattr", node, size, self.attribute_names(request), reply),
            Operation::Setxattr { name, value, flags, acl_kill_sgid } => {
                let set = || self.set_attribute(request, (name, value), flags, acl_kill_sgid);
                let allowed = self.leaves_reserve_to_names(request);
                let result = allowed.and_then(|()| self.telling_of_space(file, set));
                self.reply_empty("setxattr", node, result, reply);
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

    /// Sets an attribute with the flags of setxattr(2). An old kernel does not say whether an access control list takes the set-group-id bit.
    fn set_attribute(&self, request: &Request<'_>, (name, value): (&[u8], &[u8]), flags: u32, acl_kill_sgid: Option<bool>) -> Result<()> {
        let (file, flags) = (inode(request.node), flags.cast_signed());
        permit_home(&self.fs, file, name, value, |owner| Caller::of(request).is_owner(owner))?;
        let mode = attribute_mode(&self.fs, file, name, flags)?;
        let kill_set_group_id = match acl_kill_sgid {
            _ if name != ACCESS_LIST => false,
            Some(kill) => kill,
            None => {
                let attributes = self.fs.attributes(file)?;
                attributes.mode & SET_GID != 0 && !Caller::of(request).is_in_group(attributes.gid)
            }
        };
        self.fs.set_extended_attribute(file, name, value, SetExtendedAttribute { mode, kill_set_group_id })
    }
}

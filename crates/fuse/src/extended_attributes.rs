//! Extended attributes for the kernel: sizes first, then bytes; names as `listxattr` has them.

use fuser::{Errno, INodeNo, ReplyXattr, Request};
use tandemfs_fs::{Error, Result, SetAttributeMode, SetExtendedAttribute};

use crate::attributes::inode;
use crate::caller::Caller;
use crate::door::Door;

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const TRUSTED: &[u8] = b"trusted.";
const SET_GID: u16 = 0o2000;

impl Door {
    /// Replies with bytes: with their number where the caller has no room at all, `ERANGE` where it has too little.
    pub(crate) fn reply_bytes(&self, operation: &'static str, node: INodeNo, size: u32, result: Result<Vec<u8>>, reply: ReplyXattr) {
        match result {
            Ok(bytes) if size == 0 => reply.size(bytes.len() as u32),
            Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(self.failed(operation, node, &error)),
        }
    }

    /// The names of a file's attributes, each with a NUL. Those of `trusted.` are for callers that may read them, which the kernel checks
    /// when it reads and leaves to the file system when it lists.
    pub(crate) fn attribute_names(&self, request: &Request, node: INodeNo) -> Result<Vec<u8>> {
        let (mut names, mut trusted) = (Vec::new(), Vec::new());
        self.fs.extended_attributes(inode(node), &mut |name, _| {
            let list = if name.starts_with(TRUSTED) { &mut trusted } else { &mut names };
            list.extend_from_slice(name);
            list.push(0);
        })?;
        if !trusted.is_empty() && Caller::of(request).is_trusted() {
            names.extend_from_slice(&trusted);
        }
        Ok(names)
    }

    /// Sets an attribute with the flags of setxattr(2).
    pub(crate) fn set_attribute(&self, request: &Request, node: INodeNo, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        let mode = match (flags & libc::XATTR_CREATE != 0, flags & libc::XATTR_REPLACE != 0) {
            (false, false) => SetAttributeMode::Any,
            (true, false) => SetAttributeMode::Create,
            (false, true) => SetAttributeMode::Replace,
            // It must be there and must not.
            (true, true) => return self.fs.extended_attribute(inode(node), name).and(Err(Error::Exists)),
        };
        let kill_set_group_id = name == ACCESS_LIST && {
            let attributes = self.fs.attributes(inode(node))?;
            attributes.mode & SET_GID != 0 && !Caller::of(request).is_in_group(attributes.gid)
        };
        self.fs.set_extended_attribute(inode(node), name, value, SetExtendedAttribute { mode, kill_set_group_id })
    }
}

//! Extended attributes: who may read and write which namespace. Access control lists have rules of their own: everybody reads them, the
//! owner sets them.

use rustix::io::Errno;
use tandemfs_format::InodeNumber;
use tandemfs_format::attributes::{ATTRIBUTE_NAME_MAX, ATTRIBUTE_VALUE_MAX};
use tandemfs_format::inode::file_type;
use tandemfs_fs::{AccessList, Attributes, Error, FileSystem, HOME_ATTRIBUTE, Home, SetAttributeMode, SetExtendedAttribute};

use crate::Vfs;
use crate::attributes::Subject;
use crate::credentials::{Capability, Credentials, Process};
use crate::permissions::{READ, WRITE, is_directory, kind};
use crate::refusal::Result;
use crate::walk::Node;

const STICKY: u16 = 0o1000;
const USER: &[u8] = b"user.";
const TRUSTED: &[u8] = b"trusted.";
const SECURITY: &[u8] = b"security.";
const SYSTEM: &[u8] = b"system.";
const CAPABILITY: &[u8] = b"security.capability";
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
/// Longest list that the kernel passes on, in bytes.
const LIST_BYTES_MAX: usize = 4096;

/// The mode for the flags of setxattr(2). XATTR_REPLACE requires that the attribute exists, XATTR_CREATE that it does not: with both, `Err`
/// is what the caller gets.
///
/// # Errors
/// `Exists` and those of reading the attribute.
pub fn attribute_mode(fs: &FileSystem, file: InodeNumber, name: &[u8], flags: i32) -> tandemfs_fs::Result<SetAttributeMode> {
    match (flags & libc::XATTR_CREATE != 0, flags & libc::XATTR_REPLACE != 0) {
        (false, false) => Ok(SetAttributeMode::Any),
        (true, false) => Ok(SetAttributeMode::Create),
        (false, true) => Ok(SetAttributeMode::Replace),
        (true, true) => fs.extended_attribute(file, name).and(Err(Error::Exists)),
    }
}

/// The names of a file's attributes, each followed by NUL, as listxattr(2) returns them. `is_trusted`, whether the caller sees those in
/// `trusted.`, is asked only if there are any.
///
/// # Errors
/// Those of reading the attributes.
pub fn listed_names(fs: &FileSystem, file: InodeNumber, is_trusted: impl FnOnce() -> bool) -> tandemfs_fs::Result<Vec<u8>> {
    let (mut names, mut trusted) = (Vec::new(), Vec::new());
    fs.extended_attributes(file, &mut |name, _| {
        let list = if name.starts_with(TRUSTED) { &mut trusted } else { &mut names };
        list.extend_from_slice(name);
        list.push(0);
    })?;
    if !trusted.is_empty() && is_trusted() {
        names.extend_from_slice(&trusted);
    }
    Ok(names)
}

/// Only the owner of a file gives it a place in the memory zone, which all users share. Whoever may write it may give it another home.
/// `is_owner`, whether the caller counts as this user, is asked only if it matters.
///
/// # Errors
/// `NotOwner` and those of reading the attributes.
pub fn permit_home(
    fs: &FileSystem,
    file: InodeNumber,
    name: &[u8],
    value: &[u8],
    is_owner: impl FnOnce(u32) -> bool,
) -> tandemfs_fs::Result<()> {
    let takes_memory = name == HOME_ATTRIBUTE && value == Home::Memory.name().as_bytes();
    if !takes_memory || is_owner(fs.attributes(file)?.uid) { Ok(()) } else { Err(Error::NotOwner) }
}

fn is_list(name: &[u8]) -> bool {
    matches!(name, ACCESS_LIST | DEFAULT_LIST)
}

impl Vfs {
    /// getxattr(2): the value. The caller holds it against its buffer: ERANGE.
    ///
    /// # Errors
    /// As getxattr(2).
    pub fn extended_attribute(&self, process: &Process, subject: Subject<'_>, name: &[u8]) -> Result<Vec<u8>> {
        check_name_length(name)?;
        let node = self.subject(process, subject)?;
        self.must_have_attributes()?;
        if is_list(name) {
            if node.is_link() {
                return Err(Errno::OPNOTSUPP.into());
            }
        } else {
            self.permit_attribute(&process.credentials, &node.attributes, name, READ)?;
        }
        Ok(self.fs.extended_attribute(node.number(), name)?)
    }

    /// listxattr(2): the names, each followed by NUL.
    ///
    /// # Errors
    /// As listxattr(2).
    pub fn list_extended_attributes(&self, process: &Process, subject: Subject<'_>) -> Result<Vec<u8>> {
        let node = self.subject(process, subject)?;
        self.must_have_attributes()?;
        Ok(listed_names(&self.fs, node.number(), || process.credentials.has(Capability::SysAdmin))?)
    }

    /// setxattr(2), with its flags.
    ///
    /// # Errors
    /// As setxattr(2).
    pub fn set_extended_attribute(&self, process: &Process, subject: Subject<'_>, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        let who = &process.credentials;
        if flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0 {
            return Err(Errno::INVAL.into());
        }
        check_name_length(name)?;
        if value.len() > ATTRIBUTE_VALUE_MAX {
            return Err(Errno::TOOBIG.into());
        }
        let node = self.subject(process, subject)?;
        self.must_be_writable()?;
        if is_list(name) {
            return self.set_list(process, &node, name, value);
        }
        if name == CAPABILITY && !value.is_empty() {
            check_capability(value)?;
        }
        self.permit_attribute(who, &node.attributes, name, WRITE)?;
        permit_security(who, name)?;
        self.must_have_attributes()?;
        self.leaves_reserve_to_names(who)?;
        permit_home(&self.fs, node.number(), name, value, |owner| who.owns(owner))?;
        self.leaves_watched_node(process, &node)?;
        let mode = attribute_mode(&self.fs, node.number(), name, flags)?;
        Ok(self.fs.set_extended_attribute(node.number(), name, value, SetExtendedAttribute { mode, kill_set_group_id: false })?)
    }

    /// removexattr(2).
    ///
    /// # Errors
    /// As removexattr(2).
    pub fn remove_extended_attribute(&self, process: &Process, subject: Subject<'_>, name: &[u8]) -> Result<()> {
        let who = &process.credentials;
        check_name_length(name)?;
        let node = self.subject(process, subject)?;
        self.must_be_writable()?;
        if is_list(name) {
            return self.set_list(process, &node, name, &[]);
        }
        self.permit_attribute(who, &node.attributes, name, WRITE)?;
        permit_security(who, name)?;
        self.must_have_attributes()?;
        self.leaves_watched_node(process, &node)?;
        Ok(self.fs.remove_extended_attribute(node.number(), name)?)
    }

    /// Sets an access control list, or removes it if the value is empty or has no entries.
    fn set_list(&self, process: &Process, node: &Node<'_>, name: &[u8], value: &[u8]) -> Result<()> {
        self.must_have_attributes()?;
        let (who, file) = (&process.credentials, &node.attributes);
        // Linux takes the bytes apart before it asks for the file's type and its owner, and looks at what they mean afterwards.
        let list = if value.is_empty() { Ok(None) } else { AccessList::decode(value) };
        let has_entries = match list {
            Ok(ref list) => list.is_some(),
            Err(Error::InvalidArgument(_)) if AccessList::is_taken_apart(value) => true,
            Err(error) => return Err(error.into()),
        };
        if node.is_link() {
            return Err(Errno::OPNOTSUPP.into());
        }
        if name == DEFAULT_LIST && !is_directory(file) {
            return if has_entries { Err(Errno::ACCESS.into()) } else { Ok(()) };
        }
        if !who.owns(file.uid) {
            return Err(Errno::PERM.into());
        }
        let list = list?;
        self.leaves_watched_node(process, node)?;
        if list.is_none() {
            return Ok(self.fs.remove_extended_attribute(node.number(), name)?);
        }
        if value.len() > LIST_BYTES_MAX {
            return Err(Errno::TOOBIG.into());
        }
        self.leaves_reserve_to_names(who)?;
        let kill_set_group_id = name == ACCESS_LIST && !who.may_keep_set_group_id(file.gid);
        let set = SetExtendedAttribute { mode: SetAttributeMode::Any, kill_set_group_id };
        Ok(self.fs.set_extended_attribute(node.number(), name, value, set)?)
    }

    /// Which namespaces are for whom. Nobody is refused to read `security.`, which security modules decide about.
    fn permit_attribute(&self, who: &Credentials, file: &Attributes, name: &[u8], want: u16) -> Result<()> {
        let refusal = if want == WRITE { Errno::PERM } else { Errno::NODATA };
        if name.starts_with(SECURITY) || name.starts_with(SYSTEM) {
            return Ok(());
        }
        if name.starts_with(TRUSTED) {
            return if who.has(Capability::SysAdmin) { Ok(()) } else { Err(refusal.into()) };
        }
        if name.starts_with(USER) {
            if !matches!(kind(file), file_type::REGULAR | file_type::DIRECTORY) {
                return Err(refusal.into());
            }
            let is_sticky = is_directory(file) && file.mode & STICKY != 0;
            if want == WRITE && is_sticky && !who.owns(file.uid) {
                return Err(refusal.into());
            }
        }
        self.permit(who, file, want)
    }

    fn must_have_attributes(&self) -> Result<()> {
        if self.settings.extended_attributes { Ok(()) } else { Err(Errno::OPNOTSUPP.into()) }
    }
}

fn check_name_length(name: &[u8]) -> Result<()> {
    if (1..=ATTRIBUTE_NAME_MAX).contains(&name.len()) { Ok(()) } else { Err(Errno::RANGE.into()) }
}

/// Who writes `security.`: holders of CAP_SETFCAP the capabilities of programs, of CAP_SYS_ADMIN the rest.
fn permit_security(who: &Credentials, name: &[u8]) -> Result<()> {
    let needed = if name == CAPABILITY { Capability::Setfcap } else { Capability::SysAdmin };
    if name.starts_with(SECURITY) && !who.has(needed) { Err(Errno::PERM.into()) } else { Ok(()) }
}

/// The value of `security.capability` begins with a revision, which determines its length.
fn check_capability(value: &[u8]) -> Result<()> {
    const REVISIONS: [(u8, usize); 2] = [(2, 20), (3, 24)];
    let is_valid = value.len() > 3 && REVISIONS.contains(&(value[3], value.len()));
    if is_valid { Ok(()) } else { Err(Errno::INVAL.into()) }
}

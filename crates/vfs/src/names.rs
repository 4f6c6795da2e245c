//! New names and removed ones: mkdir, mknod, symlink, link, unlink, rmdir. Checks come in the order of Linux, so that a call that could fail
//! for two reasons fails for the same one.

use rustix::io::Errno;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Attributes, Error, NewInode};

use crate::Vfs;
use crate::credentials::{Capability, Process};
use crate::mutant::{self, Mutant, Point, on};
use crate::permissions::{is_directory, kind};
use crate::quick::{QUICK_FILE_BYTES, bounded};
use crate::refusal::{Refused, Result};
use crate::walk::{At, Held, Last, Node, TRIES_MAX, Walk};

const SET_GROUP_ID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o010;
/// Longest target of a link, in bytes.
const TARGET_BYTES_MAX: usize = 4095;

/// The attributes of a new inode. From a directory with the set-group-id bit it inherits the group; a new directory also inherits the bit.
pub fn new_inode<'t>(directory: &Attributes, mode: u16, (uid, gid): (u32, u32), rdev: u32, target: &'t [u8]) -> NewInode<'t> {
    let inherits = directory.mode & SET_GROUP_ID != 0;
    let is_directory = mode & file_type::MASK == file_type::DIRECTORY;
    NewInode {
        mode: if inherits && is_directory { mode | SET_GROUP_ID } else { mode },
        uid,
        gid: if inherits { directory.gid } else { gid },
        rdev,
        target,
    }
}

/// A name to make, in the directory where a walk stands.
struct NewName<'w> {
    directory: Node<'w>,
    name: Vec<u8>,
}

impl Vfs {
    /// The mode of a new inode, and the umask that the file system applies unless the directory has a default access control list.
    /// A file that its group executes gets set-group-id in a directory with that bit only from who is in the directory's group.
    pub(crate) fn prepared(&self, process: &Process, directory: &Attributes, mode: u16) -> (u16, u16) {
        let is_for_group = mode & (SET_GROUP_ID | GROUP_EXECUTES) == SET_GROUP_ID | GROUP_EXECUTES;
        let inherits = directory.mode & SET_GROUP_ID != 0 && mode & file_type::MASK != file_type::DIRECTORY;
        let is_taken = is_for_group && inherits && !process.credentials.may_keep_set_group_id(directory.gid);
        let mode = if is_taken { mode & !SET_GROUP_ID } else { mode };
        match self.settings.extended_attributes {
            true => (mode, process.umask & 0o777),
            false => (mode & !(process.umask & 0o777), 0), // nobody looks at lists
        }
    }

    /// Makes an inode and its name. Permissions were checked.
    pub(crate) fn make(
        &self,
        process: &Process,
        directory: &Attributes,
        name: &[u8],
        mode: u16,
        rdev: u32,
        target: &[u8],
    ) -> Result<Attributes> {
        let who = &process.credentials;
        self.leaves_reserve_to_names(who)?;
        let (mode, umask) = self.prepared(process, directory, mode);
        let umask = if mode & file_type::MASK == file_type::SYMLINK { 0 } else { umask };
        let new = new_inode(directory, mode, (who.uid, who.gid), rdev, target);
        Ok(self.fs.create_under_umask(directory.inode, name, &new, umask)?)
    }

    /// Makes a regular file that is held. Permissions were checked.
    pub(crate) fn make_file(&self, process: &Process, directory: &Attributes, name: &[u8], mode: u16) -> Result<Node<'_>> {
        let who = &process.credentials;
        self.leaves_reserve_to_names(who)?;
        let (mode, umask) = self.prepared(process, directory, file_type::REGULAR | mode);
        let new = new_inode(directory, mode, (who.uid, who.gid), 0, &[]);
        let attributes = self.fs.create_held(directory.inode, name, &new, umask)?;
        Ok(Node { held: Held::made(&self.fs, attributes.inode), attributes, parent: Some(directory.inode) })
    }

    /// Walks to where a name is to be made: the name must be free. A slash behind it is for directories only.
    fn new_name<'w>(&'w self, process: &'w Process, at: At<'_>, path: &'w [u8], of_directory: bool) -> Result<NewName<'w>> {
        let mut walk = Walk::start(self, process, at, path, false)?;
        let (Last::Name(name), has_slash) = walk.walk_to_last()? else { return Err(Errno::EXIST.into()) };
        match walk.look_up_to_change(&name)? {
            Some(_) => return Err(Errno::EXIST.into()),
            None if has_slash && !of_directory => return Err(Errno::NOENT.into()),
            None => {}
        }
        self.must_be_writable()?;
        Ok(NewName { directory: walk.at, name })
    }

    /// mkdir(2).
    ///
    /// # Errors
    /// As mkdirat(2).
    pub fn make_directory(&self, process: &Process, at: At<'_>, path: &[u8], mode: u32) -> Result<Attributes> {
        let NewName { directory, name } = self.new_name(process, at, path, true)?;
        self.permit_new_name(&process.credentials, &directory.attributes)?;
        self.leaves_watched_name(process, directory.number(), None)?;
        let mode = file_type::DIRECTORY | (mode & 0o1777) as u16;
        self.make(process, &directory.attributes, &name, mode, 0, &[])
    }

    /// mknod(2); without a type, a regular file.
    ///
    /// # Errors
    /// As mknodat(2).
    pub fn make_node(&self, process: &Process, at: At<'_>, path: &[u8], mode: u32, rdev: u32) -> Result<Attributes> {
        let kind = match (mode & u32::from(file_type::MASK)) as u16 {
            0 => file_type::REGULAR,
            file_type::DIRECTORY => return Err(Errno::PERM.into()),
            file_type::SYMLINK => return Err(Errno::INVAL.into()),
            kind if file_type::ALL.contains(&kind) => kind,
            _ => return Err(Errno::INVAL.into()),
        };
        let NewName { directory, name } = self.new_name(process, at, path, false)?;
        self.permit_new_name(&process.credentials, &directory.attributes)?;
        let is_device = matches!(kind, file_type::CHARACTER | file_type::BLOCK);
        let is_whiteout = kind == file_type::CHARACTER && rdev == 0;
        if is_device && !is_whiteout && !process.credentials.has(Capability::Mknod) {
            return Err(Errno::PERM.into());
        }
        let rdev = if is_device { rdev } else { 0 };
        self.leaves_watched_name(process, directory.number(), None)?;
        self.make(process, &directory.attributes, &name, kind | (mode & 0o7777) as u16, rdev, &[])
    }

    /// symlink(2).
    ///
    /// # Errors
    /// As symlinkat(2).
    pub fn make_link(&self, process: &Process, target: &[u8], at: At<'_>, path: &[u8]) -> Result<Attributes> {
        match target {
            [] => return Err(Errno::NOENT.into()),
            _ if target.len() > TARGET_BYTES_MAX => return Err(Errno::NAMETOOLONG.into()),
            _ => {}
        }
        let NewName { directory, name } = self.new_name(process, at, path, false)?;
        self.permit_new_name(&process.credentials, &directory.attributes)?;
        self.leaves_watched_name(process, directory.number(), None)?;
        self.make(process, &directory.attributes, &name, file_type::SYMLINK | 0o777, 0, target)
    }

    /// linkat(2): a further name. `flags`: AT_SYMLINK_FOLLOW, AT_EMPTY_PATH.
    ///
    /// # Errors
    /// As linkat(2).
    pub fn link(&self, process: &Process, from: (At<'_>, &[u8]), to: (At<'_>, &[u8]), flags: i32) -> Result<()> {
        let who = &process.credentials;
        if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
            return Err(Errno::INVAL.into());
        }
        let (at, path) = from;
        // An open file is named by its opener, or by who may search everything.
        let is_foreign = matches!(at, At::Open(file) if file.opener() != who);
        if flags & libc::AT_EMPTY_PATH != 0 && is_foreign && !who.has(Capability::DacReadSearch) {
            return Err(Errno::NOENT.into());
        }
        let walk = Walk::start(self, process, at, path, flags & libc::AT_EMPTY_PATH != 0)?;
        let target = walk.walk_to_end(flags & libc::AT_SYMLINK_FOLLOW != 0, false)?;
        let NewName { directory, name } = self.new_name(process, to.0, to.1, false).map_err(Refused::of_second_path)?;
        self.permit_link_to(who, &target.attributes)?;
        self.permit_new_name(who, &directory.attributes)?;
        let is_refused = matches!(at, At::Open(file) if path.is_empty() && !file.is_linkable);
        match kind(&target.attributes) {
            file_type::DIRECTORY => Err(Errno::PERM.into()),
            _ if is_refused && self.fs.attributes(target.number())?.nlink == 0 => Err(Errno::NOENT.into()),
            _ => {
                self.leaves_watched_name(process, directory.number(), Some(target.number()))?;
                self.fs.link(target.number(), directory.number(), &name)?;
                Ok(())
            }
        }
    }

    /// unlink(2).
    ///
    /// # Errors
    /// As unlinkat(2).
    pub fn unlink(&self, process: &Process, at: At<'_>, path: &[u8]) -> Result<()> {
        let mut walk = Walk::start(self, process, at, path, false)?;
        let (Last::Name(name), has_slash) = walk.walk_to_last()? else { return Err(Errno::ISDIR.into()) };
        self.remove(process, &walk, &name, false, has_slash)
    }

    /// rmdir(2).
    ///
    /// # Errors
    /// As unlinkat(2) with AT_REMOVEDIR.
    pub fn remove_directory(&self, process: &Process, at: At<'_>, path: &[u8]) -> Result<()> {
        let mut walk = Walk::start(self, process, at, path, false)?;
        match walk.walk_to_last()? {
            (Last::Nothing, _) => Err(Errno::BUSY.into()),
            (Last::Dot, _) => Err(Errno::INVAL.into()),
            (Last::DotDot, _) => Err(Errno::NOTEMPTY.into()),
            (Last::Name(name), _) => self.remove(process, &walk, &name, true, false),
        }
    }

    fn remove(&self, process: &Process, walk: &Walk<'_>, name: &[u8], of_directory: bool, has_slash: bool) -> Result<()> {
        self.must_be_writable()?;
        let directory = &walk.at;
        for _ in 0..TRIES_MAX {
            let Some(victim) = walk.look_up_to_change(name)? else { return Err(Errno::NOENT.into()) };
            if has_slash {
                return Err(if is_directory(&victim.attributes) { Errno::ISDIR } else { Errno::NOTDIR }.into());
            }
            self.permit_removal(&process.credentials, &directory.attributes, &victim.attributes, of_directory)?;
            self.leaves_watched_name(process, directory.number(), Some(victim.number()))?;
            if victim.attributes.nlink < 2 {
                bounded(victim.attributes.size, QUICK_FILE_BYTES)?; // [KV7]
            }
            let Node { held, attributes: Attributes { inode, generation, .. }, .. } = victim;
            // A damaged inode has no generation to compare.
            let _held = (generation == 0).then_some(held);
            mutant::at(Point::Checked);
            let generation = if on(Mutant::GenerationIgnored) { self.fs.attributes(inode)?.generation } else { generation };
            // [KV3]
            let removed = match of_directory {
                false if on(Mutant::RemovedUnseen) => self.fs.unlink(directory.number(), name),
                true => self.fs.remove_directory_inode(directory.number(), name, inode, generation),
                false => self.fs.unlink_inode(directory.number(), name, inode, generation),
            };
            match removed {
                Err(Error::Changed) => {}
                Err(other) => return Err(other.into()),
                Ok(()) => {
                    self.name_gone(directory.number(), name, inode);
                    return Ok(());
                }
            }
        }
        Err(Errno::BUSY.into())
    }
}

//! Who may do what: permissions, access control lists, sticky directories, and the `fs.protected_*` rules.

use std::fs;

use rustix::io::Errno;
use tandemfs_format::inode::file_type;
use tandemfs_fs::Attributes;

use crate::credentials::{Capability, Credentials};
use crate::mutant::{Mutant, on};
use crate::{Result, Vfs};

/// Rights, as in three bits of a mode.
pub(crate) const READ: u16 = 4;
pub(crate) const WRITE: u16 = 2;
pub(crate) const EXECUTE: u16 = 1;

const SET_USER_ID: u16 = 0o4000;
const SET_GROUP_ID: u16 = 0o2000;
const STICKY: u16 = 0o1000;
const GROUP_EXECUTES: u16 = 0o010;
const GROUP_BITS: u16 = 0o070;

/// The `fs.protected_*` rules of the machine: 0 for off, as in `/proc/sys/fs`. They are the kernel's; here they are only applied, because a
/// caller who passes the kernel by must not pass them by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Protected {
    /// Links to files that the caller neither owns nor may read and write are refused.
    pub hardlinks: u8,
    /// Links of others in sticky directories that all may write are not followed.
    pub symlinks: u8,
    /// Regular files of others in such directories are not opened with O_CREAT.
    pub regular: u8,
    /// The same of pipes.
    pub fifos: u8,
}

/// One of the rules as this machine has it now: administrators change them while the mount stands, and at boot it may be older than they are. Off where
/// the machine says nothing.
fn of_this_machine(rule: &str) -> u8 {
    fs::read_to_string(format!("/proc/sys/fs/protected_{rule}")).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

pub(crate) fn kind(attributes: &Attributes) -> u16 {
    attributes.mode & file_type::MASK
}

pub(crate) fn is_directory(attributes: &Attributes) -> bool {
    kind(attributes) == file_type::DIRECTORY
}

/// Whether capabilities give all rights of `want`, whatever the permissions say.
fn passes(who: &Credentials, attributes: &Attributes, want: u16) -> bool {
    if is_directory(attributes) {
        return want & WRITE == 0 && who.has(Capability::DacReadSearch) || who.has(Capability::DacOverride);
    }
    let somebody_executes = attributes.mode & 0o111 != 0;
    want == READ && who.has(Capability::DacReadSearch) || (want & EXECUTE == 0 || somebody_executes) && who.has(Capability::DacOverride)
}

impl Vfs {
    /// Refuses what the permissions of an inode do not allow: EACCES, or EROFS for writing to a file of a read-only mount.
    pub(crate) fn permit(&self, who: &Credentials, attributes: &Attributes, want: u16) -> Result<()> {
        let is_stored = matches!(kind(attributes), file_type::REGULAR | file_type::DIRECTORY | file_type::SYMLINK);
        if want & WRITE != 0 && is_stored {
            self.must_be_writable()?;
        }
        let is_daemon = on(Mutant::RightsOfTheDaemon); // [KV1]
        if is_daemon || passes(who, attributes, want) || self.allows(who, attributes, want)? { Ok(()) } else { Err(Errno::ACCESS.into()) }
    }

    /// Whether mode or access control list give all rights of `want`. The owner's are those of the mode alone. Without any group bit in the
    /// mode (an empty mask) Linux does not look at the list, so the users that it names are others then; POSIX would give them nothing.
    fn allows(&self, who: &Credentials, attributes: &Attributes, want: u16) -> Result<bool> {
        let has = |mode: u16| mode & want == want;
        let mode = attributes.mode;
        if who.uid == attributes.uid {
            return Ok(has(mode >> 6));
        }
        if self.settings.extended_attributes && mode & GROUP_BITS != 0 {
            let (now, list) = self.fs.attributes_and_access_list(attributes.inode)?;
            if let Some(list) = list {
                return Ok(list.permits(who.uid, now.gid, &|group| who.is_in_group(group), want));
            }
        }
        Ok(has(if who.is_in_group(attributes.gid) { mode >> 3 } else { mode }))
    }

    /// Refuses a new name in a directory.
    pub(crate) fn permit_new_name(&self, who: &Credentials, directory: &Attributes) -> Result<()> {
        if directory.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        self.permit(who, directory, WRITE | EXECUTE)
    }

    /// Refuses the removal of a name from a directory, and of names that are of the wrong kind.
    pub(crate) fn permit_removal(&self, who: &Credentials, directory: &Attributes, victim: &Attributes, of_directory: bool) -> Result<()> {
        self.permit(who, directory, WRITE | EXECUTE)?;
        let is_kept = directory.mode & STICKY != 0 && who.uid != victim.uid && who.uid != directory.uid && !who.has(Capability::Fowner);
        match (of_directory, is_directory(victim)) {
            _ if is_kept => Err(Errno::PERM.into()),
            (true, false) => Err(Errno::NOTDIR.into()),
            (false, true) => Err(Errno::ISDIR.into()),
            _ => Ok(()),
        }
    }

    /// A rule of the machine; asked where it would refuse.
    fn protected(&self, rule: &str, of: impl FnOnce(&Protected) -> u8) -> u8 {
        self.settings.protected.as_ref().map_or_else(|| of_this_machine(rule), of)
    }

    /// `fs.protected_hardlinks`.
    pub(crate) fn permit_link_to(&self, who: &Credentials, file: &Attributes) -> Result<()> {
        if who.owns(file.uid) {
            return Ok(());
        }
        let is_privileged = file.mode & SET_USER_ID != 0 || file.mode & (SET_GROUP_ID | GROUP_EXECUTES) == SET_GROUP_ID | GROUP_EXECUTES;
        let is_safe = kind(file) == file_type::REGULAR && !is_privileged && self.permit(who, file, READ | WRITE).is_ok();
        let is_refused = !is_safe && self.protected("hardlinks", |rules| rules.hardlinks) != 0;
        if is_refused { Err(Errno::PERM.into()) } else { Ok(()) }
    }

    /// `fs.protected_symlinks`: a link in a sticky directory that all may write is followed by its owner, or if it is of the directory's
    /// owner.
    pub(crate) fn permit_following(&self, who: &Credentials, directory: &Attributes, link: &Attributes) -> Result<()> {
        let is_open_to_all = directory.mode & (STICKY | WRITE) == STICKY | WRITE;
        let is_of_somebody = link.uid != who.uid && link.uid != directory.uid;
        let is_refused = is_open_to_all && is_of_somebody && self.protected("symlinks", |rules| rules.symlinks) != 0;
        if is_refused { Err(Errno::ACCESS.into()) } else { Ok(()) }
    }

    /// `fs.protected_regular` and `fs.protected_fifos`: O_CREAT of a file that exists, of somebody else, in a sticky directory that others
    /// may write (1), or that its group may write (2). Linux always refuses it for devices and sockets.
    pub(crate) fn permit_opening_to_create(&self, who: &Credentials, directory: &Attributes, file: &Attributes) -> Result<()> {
        let is_own = file.uid == directory.uid || file.uid == who.uid;
        if directory.mode & STICKY == 0 || directory.mode & 0o022 == 0 || is_own {
            return Ok(());
        }
        let rule = match kind(file) {
            file_type::REGULAR => self.protected("regular", |rules| rules.regular),
            file_type::FIFO => self.protected("fifos", |rules| rules.fifos),
            _ => 1, // devices and sockets have no setting
        };
        if rule == 0 {
            return Ok(());
        }
        let is_refused = directory.mode & 0o002 != 0 || rule >= 2 && directory.mode & 0o020 != 0;
        if is_refused { Err(Errno::ACCESS.into()) } else { Ok(()) }
    }
}

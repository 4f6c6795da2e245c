//! What a change of a file's data takes from it: set-user-id, set-group-id, and the capabilities of a program ([KV5] of `lib.rs`).

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Attributes, SetAttributes, may_wait};

use crate::credentials::{Capability, Credentials};
use crate::mutant::{Mutant, on};
use crate::permissions::kind;
use crate::{Result, Vfs};

const SET_ID: u16 = 0o6000;

/// Whether a file has the set-group-id bit without group execute permission. Then a change takes the bit only if the caller is not in the
/// file's group; otherwise it takes the bit from everybody without CAP_FSETID.
pub fn keeps_set_group_id_for_its_group(mode: u16) -> bool {
    mode & 0o2010 == 0o2000
}

/// What the next change of data takes of the set-id bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Set-user-id, and set-group-id where the group executes the file.
    pub set_id: bool,
    /// Set-group-id in any case.
    pub set_group_id: bool,
}

impl Taken {
    pub(crate) fn by(who: &Credentials, attributes: &Attributes) -> Self {
        let set_id = !who.has(Capability::Fsetid) && kind(attributes) == file_type::REGULAR;
        let set_group_id = set_id && keeps_set_group_id_for_its_group(attributes.mode) && !who.is_in_group(attributes.gid);
        Self { set_id, set_group_id }
    }
}

impl Vfs {
    /// Takes the capabilities of a program, and of the set-id bits what a write does not take by itself.
    pub(crate) fn before_write(&self, who: &Credentials, file: InodeNumber) -> Result<Taken> {
        let taken = Taken::by(who, &self.fs.attributes(file)?);
        if !on(Mutant::DataBeforePrivileges) {
            self.take_capabilities(file)?;
        }
        if taken.set_group_id {
            may_wait()?; // [KV7]
            self.fs.set_attributes(file, &SetAttributes { kill_set_group_id: true, ..SetAttributes::default() })?;
        }
        Ok(taken)
    }

    /// Takes all of it, before a change that is no write.
    pub(crate) fn before_change(&self, who: &Credentials, file: InodeNumber) -> Result<()> {
        if on(Mutant::PrivilegesKept) {
            return Ok(());
        }
        let attributes = self.fs.attributes(file)?;
        let taken = Taken::by(who, &attributes);
        self.take_capabilities(file)?;
        if taken.set_id && attributes.mode & SET_ID != 0 {
            let (kill_set_id, kill_set_group_id) = (taken.set_id, taken.set_group_id);
            self.fs.set_attributes(file, &SetAttributes { kill_set_id, kill_set_group_id, ..SetAttributes::default() })?;
        }
        Ok(())
    }

    pub(crate) fn take_capabilities(&self, file: InodeNumber) -> Result<()> {
        Ok(self.fs.kill_capabilities(file)?)
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_format::inode::Timestamp;

    use super::*;
    use crate::credentials::Capabilities;

    fn file(mode: u16) -> Attributes {
        let time = Timestamp { seconds: 0, nanoseconds: 0 };
        let inode = InodeNumber::new(9);
        Attributes {
            inode,
            generation: 0,
            mode,
            nlink: 1,
            uid: 1,
            gid: 20,
            rdev: 0,
            size: 0,
            space_512: 0,
            atime: time,
            mtime: time,
            ctime: time,
            birth: time,
            has_extended_attributes: false,
        }
    }

    #[test]
    fn a_write_takes_what_the_writer_has_no_right_to_keep() {
        let taken = |groups: &[u32], capabilities, mode| {
            let taken = Taken::by(&Credentials::new(7, 7, groups, capabilities), &file(mode));
            (taken.set_id, taken.set_group_id)
        };
        let regular = file_type::REGULAR;
        assert_eq!(taken(&[], Capabilities::NONE, regular | 0o6755), (true, false), "a group that executes loses the bit with set-user-id");
        assert_eq!(taken(&[], Capabilities::NONE, regular | 0o2745), (true, true));
        assert_eq!(taken(&[20], Capabilities::NONE, regular | 0o2745), (true, false));
        assert_eq!(taken(&[], Capabilities::ALL, regular | 0o6755), (false, false));
        assert_eq!(taken(&[], Capabilities::NONE, file_type::DIRECTORY | 0o2745), (false, false));
    }
}

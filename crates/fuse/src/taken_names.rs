//! Names that clients beside the kernel took away: the kernel drops them, so that what they stood for can be freed.
//!
//! [TN1] A drop takes along what is mounted on the name. Something can be mounted only on what was looked up by the mount, and that look-up has replaced
//!       whatever the kernel had of the name. So nothing is dropped where the name stands for something that the kernel knows, by this name or, seldom, by
//!       another one; that clients have it says nothing. One moment is left, between this question and the drop.

use tandemfs_format::InodeNumber;
use tandemfs_fs::FileSystem;

use crate::door::Door;
use crate::mutant::{self, Mutant};

impl Door {
    /// A client took a name away.
    pub(crate) fn name_taken(&self, directory: InodeNumber, name: &[u8]) {
        let (kernel, fs, name) = (self.kernel.clone(), self.fs.clone(), name.to_vec());
        self.names.push(move || {
            if !is_there_again(&fs, |inode| kernel.knows(inode), directory, &name) {
                kernel.drop_name(directory, &name);
            }
        });
    }
}

/// Whether the name stands for something that the kernel knows ([TN1]).
fn is_there_again(fs: &FileSystem, knows: impl Fn(InodeNumber) -> bool, directory: InodeNumber, name: &[u8]) -> bool {
    let is_known = |inode| fs.is_held(inode) && (knows(inode) || mutant::on(Mutant::ClientsKeepNames));
    !mutant::on(Mutant::NamesDroppedAnew) && fs.lookup(directory, name).is_ok_and(|found| is_known(found.inode))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain};
    use tandemfs_format::inode::file_type;
    use tandemfs_fs::{FormatOptions, MountOptions, NewInode, make_file_system};

    use super::*;
    use crate::mutant::is_caught;

    fn what_was_looked_up_again_stays() {
        let device = Arc::new(MemoryDevice::new(32 << 20, 16 << 20, PersistenceDomain::Gpf));
        make_file_system(&Drive::new(device.clone()), &FormatOptions::default()).expect("formats");
        let fs = FileSystem::mount(Drive::new(device), &MountOptions::default()).expect("mounts");
        let new = NewInode { mode: file_type::DIRECTORY | 0o755, uid: 0, gid: 0, rdev: 0, target: b"" };
        let of = |knows: bool| is_there_again(&fs, |_| knows, InodeNumber::ROOT, b"name");
        let is_there = || of(true);
        assert!(!is_there());
        let made = fs.create(InodeNumber::ROOT, b"name", &new).expect("made");
        assert!(!is_there(), "nobody has it");
        let inode = made.inode;
        fs.remember(inode, made.generation, 1).expect("there");
        assert!(is_there());
        assert!(!of(false), "a client has it");
        fs.forget(inode, 1);
        assert!(!is_there());
    }

    #[test]
    fn a_name_that_somebody_has_again_is_not_dropped() {
        is_caught(Mutant::NamesDroppedAnew, what_was_looked_up_again_stays);
        is_caught(Mutant::ClientsKeepNames, what_was_looked_up_again_stays);
    }
}

//! Creation: a new inode and its name, or a further name of an inode, in one transaction.

use tandemfs_device::Structure;
use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::InodeNumber;
use tandemfs_format::attributes::AttributePointer;
use tandemfs_format::dentry::{Dentry, type_of_mode};
use tandemfs_format::inode::{INLINE_LINK_MAX, Inode, LINK_MAX, file_type, state};
use tandemfs_format::mapping::{LogEntry, Record, SlotClass};
use tandemfs_format::segment::Region;

use super::inodes::{Handle, Locked};
use super::{attributes_of, check_name, directory_changed};
use crate::alloc::Need;
use crate::data_space_512;
use crate::journal::{Tx, tx_space as space};
use crate::mutant::{Mutant, on};
use crate::statistics::count;
use crate::types::{Attributes, NewInode};
use crate::volume::{Owner, now};
use crate::{Error, FileSystem, Result};

/// Longest target of a symbolic link, in bytes.
const TARGET_MAX: usize = 4095;

impl FileSystem {
    /// Creates an inode of any type and gives it a name.
    ///
    /// # Errors
    /// `Exists`, `NoSpace`, `TooManyLinks` (too many subdirectories), `InvalidName`, `InvalidArgument` for a mode without a type or a link
    /// target of no or too many bytes.
    pub fn create(&self, parent: InodeNumber, name: &[u8], new: &NewInode<'_>) -> Result<Attributes> {
        self.create_under_umask(parent, name, new, 0)
    }

    /// The same with permissions that are cut: by the default access control list of the directory, which the new inode inherits in the same
    /// transaction, or by the umask where the directory has none.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub fn create_under_umask(&self, parent: InodeNumber, name: &[u8], new: &NewInode<'_>, umask: u16) -> Result<Attributes> {
        let volume = &self.volume;
        let kind = new.mode & file_type::MASK;
        count(match kind {
            file_type::DIRECTORY => &volume.live.operations.mkdir,
            file_type::SYMLINK => &volume.live.operations.symlink,
            file_type::REGULAR => &volume.live.operations.create,
            _ => &volume.live.operations.mknod,
        });
        volume.health.check_writable()?;
        check_name(name)?;
        if !file_type::ALL.contains(&kind) {
            return Err(Error::InvalidArgument("the mode names no type of file"));
        }
        self.with_metadata_room(|| self.create_entry(parent, name, new, umask))
    }

    fn create_entry(&self, parent: InodeNumber, name: &[u8], new: &NewInode<'_>, umask: u16) -> Result<Attributes> {
        let (volume, kind) = (&self.volume, new.mode & file_type::MASK);
        let directory = self.handle(parent)?;
        let mut locked = directory.state.write();
        self.index(parent, &mut locked)?;
        let owner = locked.owner(parent);
        let Some(index) = &locked.directory else { unreachable!("it was just built") };
        if locked.inode.nlink == 0 {
            return Err(Error::NotFound);
        }
        if index.find(volume, owner, name)?.is_some() {
            return Err(Error::Exists);
        }

        let mut tx = Tx::new(volume);
        let (number, address) = volume.memory.take_inode(volume)?;
        tx.took(space::region(Region::Inodes, address, 2));
        let time = now();
        let mut inode = Inode {
            mode: new.mode,
            state: state::IN_USE,
            nlink: if kind == file_type::DIRECTORY { 2 } else { 1 },
            generation: 0,
            size: 0,
            sectors: 0,
            atime: time,
            mtime: time,
            ctime: time,
            change_count: 1,
            uid: new.uid,
            gid: new.gid,
            project: 0,
            flags: 0,
            birth: time,
            parent,
            attributes: AttributePointer::NONE,
            root: [0; 20],
        };
        let inherited = self.plan_inheritance(&mut tx, (parent, &mut locked), &mut inode, umask)?;
        let parent_state = &mut *locked;
        let Some(index) = &mut parent_state.directory else { unreachable!("it was just built") };
        let mut stored = Fenced::nothing_stored();
        match kind {
            file_type::SYMLINK => stored = self.put_target(&mut tx, &mut inode, new.target)?,
            file_type::CHARACTER | file_type::BLOCK => inode.root[..4].copy_from_slice(&new.rdev.to_le_bytes()),
            _ => {}
        }
        let dentry = Dentry { inode: number, file_type: type_of_mode(new.mode), hash: volume.pair.name_hash(name), name: name.to_vec() };
        let mut parent_new = parent_state.inode.clone();
        let mut root = parent_new.root_record();
        let insertion = index.plan_insert(&mut tx, volume, owner, &mut root, &dentry)?;
        parent_new.root = root.to_bytes();
        directory_changed(&mut parent_new, Some(&insertion));
        if kind == file_type::DIRECTORY {
            parent_new.nlink = parent_new.nlink.checked_add(1).ok_or(Error::TooManyLinks)?;
        }
        // Taken last, so that a failed creation uses none up: generations never run ahead of transactions, which go on after a mount.
        inode.generation = self.next_generation();
        let mut attributes = None;
        if let Some(inherited) = inherited {
            let owner = Owner { inode: number, generation: inode.generation };
            match self.store_inheritance(&mut tx, owner, &mut inode, inherited) {
                Ok((set, fenced)) => (attributes, stored) = (Some(set), fenced), // a symbolic link, which has stored its target, inherits nothing
                Err(error) => {
                    self.return_generation(inode.generation);
                    return Err(error);
                }
            }
        }
        let handle = Handle::new(number, address, inode.clone());
        handle.put(&mut tx, volume, None, &inode)?;
        directory.put(&mut tx, volume, Some(&parent_state.inode), &parent_new)?;
        let mut new_state = handle.state.write();
        self.inodes.put_attributes(&mut new_state, attributes);
        self.inodes.add(handle.clone());
        if let Err(error) = tx.commit(stored, Flushed::nothing_written()) {
            new_state.removed = true;
            self.inodes.forget(&mut new_state);
            self.inodes.remove(&handle);
            return Err(error);
        }

        parent_state.inode = parent_new;
        index.inserted(insertion);
        self.inodes.recount_index(index);
        Ok(attributes_of(number, &inode))
    }

    /// The target of a symbolic link: inside the inode, or in a data log.
    fn put_target(&self, tx: &mut Tx<'_>, inode: &mut Inode, target: &[u8]) -> Result<Fenced> {
        let volume = &self.volume;
        if target.is_empty() || target.contains(&0) {
            return Err(Error::InvalidArgument("the target of a symbolic link is 1 to 4095 B without NUL"));
        }
        if target.len() > TARGET_MAX {
            return Err(Error::NameTooLong);
        }
        inode.size = target.len() as u64;
        if target.len() <= INLINE_LINK_MAX {
            inode.root[..target.len()].copy_from_slice(target);
            return Ok(Fenced::nothing_stored());
        }
        let class = SlotClass::for_bytes(target.len());
        let address = volume.memory.take_slot(class, Need::Growth)?;
        tx.took(space::slot(address, class.lines()));
        let stored = tx.suspect_if_failed(volume.drive.persist(Structure::DataLog, address, target).map_err(Error::from))?;
        let entry = LogEntry { address, crc: volume.data_checksum(target), offset: 0, length: target.len() as u32, class };
        inode.root = Record::SingleLog(entry).encode().to_bytes();
        inode.sectors = data_space_512(class);
        Ok(stored)
    }

    /// Gives an inode a further name.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for a directory, `TooManyLinks` at 65,000 names, `NoSpace`.
    pub fn link(&self, number: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Attributes> {
        count(&self.volume.live.operations.link);
        self.volume.health.check_writable()?;
        check_name(name)?;
        self.with_metadata_room(|| self.link_entry(number, parent, name))
    }

    fn link_entry(&self, number: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Attributes> {
        let volume = &self.volume;
        let (target, directory) = (self.handle(number)?, self.handle(parent)?);
        if target.state.read().inode.is_directory() {
            return Err(Error::NotPermitted);
        }
        let mut locked = Locked::new(vec![&target, &directory]);
        if locked.get(number).removed {
            return Err(Error::Stale(number));
        }
        let target_old = locked.get(number).inode.clone();
        if target_old.nlink == 0 {
            return Err(Error::NotFound);
        }
        if target_old.nlink >= LINK_MAX {
            return Err(Error::TooManyLinks);
        }
        let mut target_new = target_old.clone();
        target_new.nlink += u32::from(!on(Mutant::LinkCountKept));
        target_new.ctime = now();
        target_new.parent = parent;
        target_new.change_count += 1;

        self.index(parent, locked.get_mut(parent))?;
        let parent_state = locked.get_mut(parent);
        let owner = parent_state.owner(parent);
        let Some(index) = &mut parent_state.directory else { unreachable!("it was just built") };
        if parent_state.inode.nlink == 0 {
            return Err(Error::NotFound);
        }
        if index.find(volume, owner, name)?.is_some() {
            return Err(Error::Exists);
        }
        let mut tx = Tx::new(volume);
        let dentry =
            Dentry { inode: number, file_type: type_of_mode(target_old.mode), hash: volume.pair.name_hash(name), name: name.to_vec() };
        let mut parent_new = parent_state.inode.clone();
        let mut root = parent_new.root_record();
        let insertion = index.plan_insert(&mut tx, volume, owner, &mut root, &dentry)?;
        parent_new.root = root.to_bytes();
        directory_changed(&mut parent_new, Some(&insertion));
        directory.put(&mut tx, volume, Some(&parent_state.inode), &parent_new)?;
        target.put(&mut tx, volume, Some(&target_old), &target_new)?;
        tx.commit(Fenced::nothing_stored(), Flushed::nothing_written())?;

        parent_state.inode = parent_new;
        index.inserted(insertion);
        self.inodes.recount_index(index);
        let attributes = attributes_of(number, &target_new);
        locked.get_mut(number).inode = target_new;
        Ok(attributes)
    }
}

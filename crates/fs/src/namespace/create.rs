//! Creation: a new inode and its name, or a further name of an inode, in one transaction.

use std::sync::Arc;

use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::InodeNumber;
use tandemfs_format::dentry::{Dentry, type_of_mode};
use tandemfs_format::inode::{INLINE_LINK_MAX, Inode, LINK_MAX, file_type};
use tandemfs_format::segment::Region;

use super::project::{inherit_project, may_enter};
use super::{attributes_of, check_name, directory_changed};
use crate::data::store_link_target;
use crate::error::{Error, Result};
use crate::file_system::{FileSystem, NewGeneration};
use crate::inodes::attribute_set::{AttributeSet, Changed};
use crate::inodes::{InCoreInode, Locked, State, new_inode};
use crate::mutant::{Mutant, on};
use crate::quota::Ids;
use crate::space;
use crate::statistics::counted;
use crate::types::{Attributes, NewInode};
use crate::volume::{Owner, Tx, now};

/// Longest target of a symbolic link, in bytes.
const TARGET_MAX: usize = 4095;

impl FileSystem {
    /// Creates an inode of any type and gives it a name.
    ///
    /// # Errors
    /// `Exists`, `NoSpace`, `TooManyLinks` (too many subdirectories), `InvalidName`, `InvalidArgument` for a mode without a type or an
    /// empty link target, `NameTooLong` for a link target over 4095 B.
    pub fn create(&self, parent: InodeNumber, name: &[u8], new: &NewInode<'_>) -> Result<Attributes> {
        self.create_under_umask(parent, name, new, 0)
    }

    /// As [`FileSystem::create`], with reduced permissions: by the default access control list of the directory, which the new inode
    /// inherits in the same transaction, or by the umask if the directory has no such list.
    ///
    /// # Errors
    /// As [`FileSystem::create`].
    pub fn create_under_umask(&self, parent: InodeNumber, name: &[u8], new: &NewInode<'_>, umask: u16) -> Result<Attributes> {
        let volume = &self.volume;
        let kind = new.mode & file_type::MASK;
        let _counted = counted(match kind {
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
        self.note_writer();
        self.with_room(|| self.create_entry(parent, name, new, umask, 0))
    }

    /// As [`FileSystem::create_under_umask`], of a regular file for a holder, who releases it with [`FileSystem::forget`]: the file is held
    /// before anybody else can find it.
    ///
    /// # Errors
    /// As [`FileSystem::create_under_umask`]; `InvalidArgument` for any type but a regular file.
    pub fn create_held(&self, parent: InodeNumber, name: &[u8], new: &NewInode<'_>, umask: u16) -> Result<Attributes> {
        let _counted = counted(&self.volume.live.operations.create);
        self.volume.health.check_writable()?;
        check_name(name)?;
        if new.mode & file_type::MASK != file_type::REGULAR {
            return Err(Error::InvalidArgument("only a regular file is opened where it is made"));
        }
        self.note_writer();
        self.with_room(|| self.create_entry(parent, name, new, umask, 1))
    }

    /// Creates a file without a name (`O_TMPFILE`) for a holder, who releases it with [`FileSystem::forget`]. [`FileSystem::link`] names
    /// it. If it gets no name, the release by its last holder, or a crash, removes it.
    ///
    /// Its permissions are reduced as by [`FileSystem::create_under_umask`], and it inherits the same.
    ///
    /// # Errors
    /// `NotDirectory`, `NotFound` in a removed directory, `NoSpace`, `InvalidArgument` for any type but a regular file.
    pub fn create_nameless(&self, parent: InodeNumber, new: &NewInode<'_>, umask: u16) -> Result<Attributes> {
        let _counted = counted(&self.volume.live.operations.create);
        self.volume.health.check_writable()?;
        if new.mode & file_type::MASK != file_type::REGULAR {
            return Err(Error::InvalidArgument("only a regular file can be without a name"));
        }
        self.note_writer();
        self.with_room(|| self.create_orphan(parent, new, umask))
    }

    /// The inode is an orphan from the start (RULES R12): recovery removes it as any other.
    fn create_orphan(&self, parent: InodeNumber, new: &NewInode<'_>, umask: u16) -> Result<Attributes> {
        let volume = &self.volume;
        let directory = self.inode(parent)?;
        let mut tx = Tx::new(volume);
        let mut inode = new_inode(new, parent);
        inode.nlink = 0;
        let (number, address, inherited) = {
            let mut locked = directory.state.write()?;
            match (locked.removed, locked.inode.is_directory(), locked.inode.nlink) {
                (true, _, _) => return Err(Error::Stale(parent)),
                (_, false, _) => return Err(Error::NotDirectory),
                (_, _, 0) => return Err(Error::NotFound),
                _ => {}
            }
            inherit_project(&mut inode, &locked.inode);
            let (number, address) = volume.take_inode()?;
            tx.took(space::region(Region::Inodes, address, 2));
            (number, address, self.plan_inheritance(&mut tx, (parent, &mut locked), &mut inode, umask)?)
        };
        let generation = NewGeneration::of(self);
        inode.generation = generation.number();
        let (attributes, stored) = self.store_inherited(&mut tx, number, &mut inode, inherited)?;
        tx.charge_to(Ids::of(&inode));
        let file = InCoreInode::new(number, address, inode.clone());
        file.put(&mut tx, volume, None, &inode)?;
        let mut state = file.state.write()?;
        self.inodes.put_attributes(&mut state, attributes);
        if let Err(error) = self.commit_new(tx, &file, generation, stored) {
            self.abandon(&file, &mut state);
            return Err(error);
        }
        self.inodes.hold(number, 1);
        self.orphans.lock().insert(number.get());
        self.nameable.lock().insert(number.get());
        Ok(attributes_of(number, &inode))
    }

    /// Stores what a new inode inherits.
    fn store_inherited(
        &self,
        tx: &mut Tx<'_>,
        number: InodeNumber,
        inode: &mut Inode,
        inherited: Option<Changed>,
    ) -> Result<(Option<AttributeSet>, Fenced)> {
        let Some(inherited) = inherited else { return Ok((None, Fenced::nothing_stored())) };
        let owner = Owner { inode: number, generation: inode.generation };
        let (set, fenced) = self.store_inheritance(tx, owner, inode, inherited)?;
        Ok((Some(set), fenced))
    }

    /// Commits the creation of an inode that the caller has locked.
    fn commit_new(&self, tx: Tx<'_>, file: &Arc<InCoreInode>, generation: NewGeneration<'_>, stored: Fenced) -> Result<()> {
        self.inodes.add(file.clone())?;
        match tx.commit(stored, Flushed::nothing_written()) {
            refused @ Err(Error::WouldWait | Error::QuotaExceeded { .. }) => refused.map(drop),
            other => {
                generation.used(); // also where it is unknown whether the record is persistent
                other.map(drop)
            }
        }
    }

    /// A new inode whose creation failed: who has found it meanwhile sees that it was removed.
    fn abandon(&self, file: &InCoreInode, state: &mut State) {
        state.removed = true;
        self.inodes.forget(state);
        self.inodes.remove(file);
    }

    fn create_entry(&self, parent: InodeNumber, name: &[u8], new: &NewInode<'_>, umask: u16, holds: u64) -> Result<Attributes> {
        let (volume, kind) = (&self.volume, new.mode & file_type::MASK);
        let directory = self.inode(parent)?;
        let mut locked = directory.state.write()?;
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
        let (number, address) = volume.take_inode()?;
        tx.took(space::region(Region::Inodes, address, 2));
        let mut inode = new_inode(new, parent);
        inherit_project(&mut inode, &locked.inode);
        let inherited = self.plan_inheritance(&mut tx, (parent, &mut locked), &mut inode, umask)?;
        let parent_state = &mut *locked;
        let Some(index) = &mut parent_state.directory else { unreachable!("it was just built") };
        let mut stored = Fenced::nothing_stored();
        if kind == file_type::SYMLINK {
            stored = Self::put_target(&mut tx, &mut inode, new.target)?;
        }
        tx.charge_to(Ids::of(&inode));
        let dentry = Dentry { inode: number, file_type: type_of_mode(new.mode), hash: volume.pair.name_hash(name), name: name.to_vec() };
        let mut parent_new = parent_state.inode.clone();
        let mut root = parent_new.root_record();
        let insertion = index.plan_insert(&mut tx, volume, owner, &mut root, &dentry)?;
        tx.charge_to(Ids::of(&parent_new));
        parent_new.root = root.to_bytes();
        directory_changed(&mut parent_new, Some(&insertion));
        if kind == file_type::DIRECTORY {
            parent_new.nlink = parent_new.nlink.checked_add(1).ok_or(Error::TooManyLinks)?;
        }
        // Taken last, so that a failed creation uses none up: generations never get ahead of txids, from which the next mount goes on.
        let generation = NewGeneration::of(self);
        inode.generation = generation.number();
        // A symbolic link inherits nothing; its target is stored already.
        let (attributes, fenced) = self.store_inherited(&mut tx, number, &mut inode, inherited)?;
        if attributes.is_some() {
            stored = fenced;
        }
        let file = InCoreInode::new(number, address, inode.clone());
        file.put(&mut tx, volume, None, &inode)?;
        directory.put(&mut tx, volume, Some(&parent_state.inode), &parent_new)?;
        let mut new_state = file.state.write()?;
        self.inodes.put_attributes(&mut new_state, attributes);
        if let Err(error) = self.commit_new(tx, &file, generation, stored) {
            self.abandon(&file, &mut new_state);
            return Err(error);
        }

        if holds > 0 {
            self.inodes.hold(number, holds);
        }
        parent_state.inode = parent_new;
        index.inserted(insertion);
        self.inodes.recount_index(index);
        Ok(attributes_of(number, &inode))
    }

    /// Stores the target of a symbolic link: inside the inode, or as data.
    fn put_target(tx: &mut Tx<'_>, inode: &mut Inode, target: &[u8]) -> Result<Fenced> {
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
        store_link_target(tx, inode, target)
    }

    /// Gives an inode a further name.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for a directory, `TooManyLinks` at 65,000 names, `NoSpace`, `NotFound` for an inode that lost its last
    /// name.
    pub fn link(&self, number: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Attributes> {
        let _counted = counted(&self.volume.live.operations.link);
        self.volume.health.check_writable()?;
        check_name(name)?;
        self.with_room(|| self.link_entry(number, parent, name))
    }

    fn link_entry(&self, number: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Attributes> {
        let volume = &self.volume;
        let (target, directory) = (self.inode(number)?, self.inode(parent)?);
        if target.state.read()?.inode.is_directory() {
            return Err(Error::NotPermitted);
        }
        let mut locked = Locked::new(vec![&target, &directory])?;
        if locked.get(number).removed {
            return Err(Error::Stale(number));
        }
        let target_old = locked.get(number).inode.clone();
        may_enter(&locked.get(parent).inode, &target_old)?;
        // Only an inode that never had a name may get one.
        let was_nameless = target_old.nlink == 0;
        if was_nameless && !self.nameable.lock().contains(&number.get()) {
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
        tx.charge_to(Ids::of(&parent_new));
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
        if was_nameless {
            self.nameable.lock().remove(&number.get());
            self.orphans.lock().remove(&number.get());
        }
        Ok(attributes)
    }
}

//! Renaming: to a free name, over files and empty directories, without replacing, and exchanging two names. One transaction each.
//!
//! A directory that moves to another directory takes the rename lock first (RULES R4), so the check "not into itself" stays valid until the
//! move is done. All inodes involved are then locked in the order of their numbers, and everything is looked up again. Only then anything
//! is refused: two names seen before the locks may never have existed together.

use std::sync::Arc;

use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::InodeNumber;
use tandemfs_format::dentry::{Dentry, type_of_mode};
use tandemfs_format::inode::file_type;
use tandemfs_format::segment::Region;

use super::project::{inherit_project, may_enter};
use super::{check_name, directory_changed};
use crate::error::{Error, Result};
use crate::file_system::{FileSystem, NewGeneration};
use crate::inodes::directory::FoundEntry;
use crate::inodes::{InCoreInode, Locked, new_inode};
use crate::mutant::{Mutant, on};
use crate::quota::Ids;
use crate::space;
use crate::statistics::counted;
use crate::types::{NewInode, RenameMode};
use crate::volume::{Tx, now};
use crate::wait::may_wait;

/// Most directories between a directory and the root that are walked; a deeper tree is taken for damaged.
const DEPTH_MAX: usize = 1 << 16;

impl FileSystem {
    /// Moves a name.
    ///
    /// # Errors
    /// `NotFound`, `Exists` (`NoReplace`), `NotEmpty`, `IsDirectory` and `NotDirectory` (a file over a directory and the other way),
    /// `IntoItself`, `TooManyLinks`, `NoSpace`.
    pub fn rename(&self, parent: InodeNumber, name: &[u8], new_parent: InodeNumber, new_name: &[u8], mode: RenameMode) -> Result<()> {
        let _counted = counted(&self.volume.live.operations.rename);
        self.volume.health.check_writable()?;
        check_name(name)?;
        check_name(new_name)?;
        self.with_room(|| self.rename_entry((parent, name), (new_parent, new_name), mode, None, None))
    }

    /// As [`FileSystem::rename`], or [`FileSystem::rename_leaving_whiteout`] with an owner of the whiteout, if both names still stand for
    /// these inodes, which the caller holds; `None` for a target name that is free.
    ///
    /// # Errors
    /// As [`FileSystem::rename`]; `Changed`.
    pub fn rename_inodes(
        &self,
        (parent, name): (InodeNumber, &[u8]),
        (new_parent, new_name): (InodeNumber, &[u8]),
        mode: RenameMode,
        whiteout: Option<(u32, u32)>,
        inodes: (InodeNumber, Option<InodeNumber>),
    ) -> Result<()> {
        let _counted = counted(&self.volume.live.operations.rename);
        self.volume.health.check_writable()?;
        check_name(name)?;
        check_name(new_name)?;
        if whiteout.is_some() && mode == RenameMode::Exchange {
            return Err(Error::InvalidArgument("an exchange leaves no whiteout"));
        }
        self.with_room(|| self.rename_entry((parent, name), (new_parent, new_name), mode, whiteout, Some(inodes)))
    }

    /// Moves a name and leaves a whiteout in its place, in the same transaction: a character device 0:0 of `owner` (user, group), which
    /// hides the entry of an overlay's lower layer.
    ///
    /// # Errors
    /// As [`FileSystem::rename`]; `InvalidArgument` for an exchange.
    pub fn rename_leaving_whiteout(
        &self,
        (parent, name): (InodeNumber, &[u8]),
        (new_parent, new_name): (InodeNumber, &[u8]),
        mode: RenameMode,
        owner: (u32, u32),
    ) -> Result<()> {
        let _counted = counted(&self.volume.live.operations.rename);
        self.volume.health.check_writable()?;
        check_name(name)?;
        check_name(new_name)?;
        if mode == RenameMode::Exchange {
            return Err(Error::InvalidArgument("an exchange leaves no whiteout"));
        }
        self.with_room(|| self.rename_entry((parent, name), (new_parent, new_name), mode, Some(owner), None))
    }

    fn rename_entry(
        &self,
        (parent, name): (InodeNumber, &[u8]),
        (new_parent, new_name): (InodeNumber, &[u8]),
        mode: RenameMode,
        whiteout: Option<(u32, u32)>,
        expected: Option<(InodeNumber, Option<InodeNumber>)>,
    ) -> Result<()> {
        if whiteout.is_some() {
            may_wait()?; // it takes a generation, which a refusal would use up
        }
        let (from, to) = (self.inode(parent)?, self.inode(new_parent)?);
        loop {
            let source = self.find(&from, name)?.ok_or(Error::NotFound)?;
            let target = self.find(&to, new_name)?;
            // Both entries are found again under the locks, or searched anew.
            if expected.is_some_and(|inodes| inodes != (source.dentry.inode, target.as_ref().map(|target| target.dentry.inode))) {
                return Err(Error::Changed);
            }
            let moves_directory = parent != new_parent && (source.is_directory() || target.as_ref().is_some_and(FoundEntry::is_directory));
            let _rename_lock = moves_directory.then(|| self.rename_lock.lock()).transpose()?;
            let not_inside = || {
                if moves_directory {
                    self.check_not_inside(source.dentry.inode, new_parent)?;
                    if let (RenameMode::Exchange, Some(target)) = (mode, &target) {
                        self.check_not_inside(target.dentry.inode, parent)?;
                    }
                } else if source.is_directory() && source.dentry.inode == new_parent {
                    return Err(Error::IntoItself);
                }
                Ok(())
            };
            let not_inside = not_inside();
            let Some(source_file) = self.inode_of(&from, name, &source)? else { continue };
            // A target that is damaged itself loses its name only, as by `unlink` ([UN2] of `remove.rs`).
            let target_file = match target.as_ref().map(|target| (target, self.inode_of(&to, new_name, target))) {
                Some((_, Ok(Some(file)))) => Some(file),
                Some((_, Ok(None))) => continue,
                Some((target, Err(Error::Damaged { inode, .. }))) if inode == target.dentry.inode && mode != RenameMode::Exchange => None,
                Some((_, Err(error))) => return Err(error),
                None => None,
            };
            let mut files = vec![&from, &to, &source_file];
            files.extend(target_file.as_ref());
            let mut locked = Locked::new(files)?;
            // Revalidate under the locks (RULES R4).
            let (from_owner, to_owner) = (locked.get(parent).owner(parent), locked.get(new_parent).owner(new_parent));
            if self.index(parent, locked.get_mut(parent))?.find(&self.volume, from_owner, name)?.as_ref() != Some(&source)
                || self.index(new_parent, locked.get_mut(new_parent))?.find(&self.volume, to_owner, new_name)? != target
            {
                continue;
            }
            let is_removed = |file: &Arc<InCoreInode>| locked.get(file.number).removed;
            if is_removed(&source_file) || target_file.as_ref().is_some_and(is_removed) {
                continue;
            }
            if locked.get(new_parent).inode.nlink == 0 {
                return Err(Error::NotFound);
            }
            // Only now are both names known to be as found at one instant.
            match (mode, &target) {
                (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
                (RenameMode::Exchange, None) => return Err(Error::NotFound),
                (_, Some(target)) if target.dentry.inode == source.dentry.inode => return Ok(()),
                (RenameMode::Replace, Some(target)) => match (source.is_directory(), target.is_directory()) {
                    (true, false) => return Err(Error::NotDirectory),
                    (false, true) => return Err(Error::IsDirectory),
                    _ => {}
                },
                _ => {}
            }
            not_inside?;
            may_enter(&locked.get(new_parent).inode, &locked.get(source_file.number).inode)?;
            if let (RenameMode::Exchange, Some(target_file)) = (mode, &target_file) {
                may_enter(&locked.get(parent).inode, &locked.get(target_file.number).inode)?;
            }
            match (mode, target.map(|target| (target, target_file.as_ref()))) {
                (RenameMode::Exchange, Some((target, Some(target_file)))) => {
                    self.exchange(&mut locked, [(&from, &source, &source_file), (&to, &target, target_file)])
                }
                (_, target) => self.replace(&mut locked, (&from, &source, &source_file), (&to, new_name), target, whiteout),
            }?;
            drop(locked);
            if let Some(target_file) = target_file {
                self.tell_nameless(target_file.number);
            }
            self.remove_late_orphans_here();
            return Ok(());
        }
    }

    /// Refuses to move a directory below itself. The rename lock keeps the answer valid.
    fn check_not_inside(&self, moved: InodeNumber, into: InodeNumber) -> Result<()> {
        let mut at = into;
        for _ in 0..DEPTH_MAX {
            if at == moved {
                return Err(Error::IntoItself);
            }
            if at == InodeNumber::ROOT {
                return Ok(());
            }
            at = self.inode(at)?.state.read()?.inode.parent;
        }
        Err(Error::Stale(into))
    }

    fn replace(
        &self,
        locked: &mut Locked<'_>,
        (from, source, source_file): (&Arc<InCoreInode>, &FoundEntry, &Arc<InCoreInode>),
        (to, new_name): (&Arc<InCoreInode>, &[u8]),
        target: Option<(FoundEntry, Option<&Arc<InCoreInode>>)>,
        whiteout: Option<(u32, u32)>,
    ) -> Result<()> {
        let volume = &self.volume;
        let (parent, new_parent) = (from.number, to.number);
        if let Some((entry, Some(file))) = &target
            && entry.is_directory()
            && !self.index(file.number, locked.get_mut(file.number))?.is_empty(file.number)?
        {
            return Err(Error::NotEmpty);
        }
        let mut tx = Tx::new(volume);
        // The name in the new place.
        let to_owner = locked.get(new_parent).owner(new_parent);
        let dentry = Dentry {
            inode: source.dentry.inode,
            file_type: source.dentry.file_type,
            hash: volume.pair.name_hash(new_name),
            name: new_name.to_vec(),
        };
        let mut to_new = locked.get(new_parent).inode.clone();
        let mut root = to_new.root_record();
        let to_index = index_of(locked.get(new_parent));
        let insertion = match &target {
            Some((entry, _)) => {
                to_index.plan_retarget(&mut tx, volume, to_owner, entry.slot, &dentry)?;
                None
            }
            None => Some(to_index.plan_insert(&mut tx, volume, to_owner, &mut root, &dentry)?),
        };
        tx.charge_to(Ids::of(&to_new));
        to_new.root = root.to_bytes();
        directory_changed(&mut to_new, insertion.as_ref());
        if target.as_ref().is_some_and(|(entry, _)| entry.is_directory()) {
            to_new.nlink -= 1;
        }
        // The name in the old place.
        let (whiteout, generation) = match whiteout {
            Some(owner) => {
                self.plan_whiteout(&mut tx, locked, from, source, owner).map(|(file, generation)| (Some(file), Some(generation)))?
            }
            None => (None, None),
        };
        if whiteout.is_none() && !on(Mutant::RenameInTwoTransactions) {
            let state = locked.get(parent);
            index_of(state).plan_remove(&mut tx, state.owner(parent), source)?;
            tx.charge_to(Ids::of(&state.inode));
        }
        let from_new = if parent == new_parent {
            None
        } else {
            let mut from_new = locked.get(parent).inode.clone();
            directory_changed(&mut from_new, None);
            if source.is_directory() {
                from_new.nlink -= 1;
                to_new.nlink = to_new.nlink.checked_add(1).ok_or(Error::TooManyLinks)?;
            }
            from.put(&mut tx, volume, Some(&locked.get(parent).inode), &from_new)?;
            Some(from_new)
        };
        to.put(&mut tx, volume, Some(&locked.get(new_parent).inode), &to_new)?;
        // The inode that moves, and the one that it replaces.
        let mut source_new = locked.get(source_file.number).inode.clone();
        source_new.ctime = now();
        if !on(Mutant::ParentKept) {
            source_new.parent = new_parent;
        }
        source_new.change_count += 1;
        source_file.put(&mut tx, volume, Some(&locked.get(source_file.number).inode), &source_new)?;
        let removal = match &target {
            Some((_, Some(file))) => Some((*file, self.plan_unlink(&mut tx, file, locked.get_mut(file.number))?)),
            Some((_, None)) | None => None,
        };
        // A thread that finds the number in use must find this in-core inode, locked ([IN3] of the inodes).
        let whiteout_state = match &whiteout {
            Some(file) => {
                self.inodes.add(file.clone())?;
                Some(file.state.write()?)
            }
            None => None,
        };
        let committed = tx.commit(Fenced::nothing_stored(), Flushed::nothing_written());
        if let Some(generation) = generation.filter(|_| !matches!(committed, Err(Error::QuotaExceeded { .. }))) {
            generation.used(); // also where it is unknown whether the record is persistent
        }
        if let Err(error) = committed {
            if let (Some(file), Some(mut state)) = (&whiteout, whiteout_state) {
                state.removed = true;
                self.inodes.remove(file);
            }
            return Err(error);
        }
        drop(whiteout_state);
        if on(Mutant::RenameInTwoTransactions) {
            let mut second = Tx::new(volume);
            let state = locked.get(parent);
            index_of(state).plan_remove(&mut second, state.owner(parent), source)?;
            second.commit(Fenced::nothing_stored(), Flushed::nothing_written())?;
        }

        locked.get_mut(source_file.number).inode = source_new;
        if let Some(from_new) = from_new {
            locked.get_mut(parent).inode = from_new;
        }
        let to_state = locked.get_mut(new_parent);
        to_state.inode = to_new;
        if let (Some(index), Some(insertion)) = (&mut to_state.directory, insertion.filter(|_| !on(Mutant::NameNotIndexed))) {
            index.inserted(insertion);
            self.inodes.recount_index(index);
        }
        if let (Some(index), None) = (&mut locked.get_mut(parent).directory, &whiteout) {
            index.removed(source);
        }
        if let Some((file, removal)) = removal {
            self.unlinked(file, locked.get_mut(file.number), removal);
        }
        Ok(())
    }

    /// Adds a whiteout, and its entry in the slot of the moving entry, to a transaction.
    fn plan_whiteout(
        &self,
        tx: &mut Tx<'_>,
        locked: &Locked<'_>,
        from: &InCoreInode,
        source: &FoundEntry,
        (uid, gid): (u32, u32),
    ) -> Result<(Arc<InCoreInode>, NewGeneration<'_>)> {
        let volume = &self.volume;
        let new = NewInode { mode: file_type::CHARACTER, uid, gid, rdev: 0, target: &[] };
        let (number, address) = volume.take_inode()?;
        tx.took(space::region(Region::Inodes, address, 2));
        let mut inode = new_inode(&new, from.number);
        let generation = NewGeneration::of(self);
        inode.generation = generation.number();
        inherit_project(&mut inode, &locked.get(from.number).inode);
        tx.charge_to(Ids::of(&inode));
        let file = InCoreInode::new(number, address, inode.clone());
        file.put(tx, volume, None, &inode)?;
        let dentry = Dentry { inode: number, file_type: type_of_mode(new.mode), ..source.dentry.clone() };
        let state = locked.get(from.number);
        index_of(state).plan_retarget(tx, volume, state.owner(from.number), source.slot, &dentry)?;
        tx.charge_to(Ids::of(&state.inode));
        Ok((file, generation))
    }

    fn exchange(&self, locked: &mut Locked<'_>, sides: [(&Arc<InCoreInode>, &FoundEntry, &Arc<InCoreInode>); 2]) -> Result<()> {
        let volume = &self.volume;
        let [(from, source, source_file), (to, target, target_file)] = sides;
        let mut tx = Tx::new(volume);
        let mut changed = Vec::new();
        for (directory, entry, other) in [(from, source, target), (to, target, source)] {
            let owner = locked.get(directory.number).owner(directory.number);
            let dentry = Dentry { inode: other.dentry.inode, file_type: other.dentry.file_type, ..entry.dentry.clone() };
            index_of(locked.get(directory.number)).plan_retarget(&mut tx, volume, owner, entry.slot, &dentry)?;
            tx.charge_to(Ids::of(&locked.get(directory.number).inode));
        }
        let mut directories = vec![(from, i64::from(target.is_directory()) - i64::from(source.is_directory()))];
        if to.number != from.number {
            directories.push((to, -directories[0].1));
        } else {
            directories[0].1 = 0;
        }
        for (directory, links) in directories {
            let old = &locked.get(directory.number).inode;
            let mut new = old.clone();
            directory_changed(&mut new, None);
            new.nlink = u32::try_from(i64::from(new.nlink) + links).map_err(|_| Error::TooManyLinks)?;
            directory.put(&mut tx, volume, Some(old), &new)?;
            changed.push((directory.number, new));
        }
        for (file, parent) in [(source_file, to.number), (target_file, from.number)] {
            let old = &locked.get(file.number).inode;
            let mut new = old.clone();
            (new.ctime, new.parent) = (now(), parent);
            new.change_count += 1;
            file.put(&mut tx, volume, Some(old), &new)?;
            changed.push((file.number, new));
        }
        tx.commit(Fenced::nothing_stored(), Flushed::nothing_written())?;
        for (number, new) in changed {
            locked.get_mut(number).inode = new;
        }
        Ok(())
    }
}

fn index_of(state: &super::State) -> &super::DirectoryIndex {
    match &state.directory {
        Some(index) => index,
        None => unreachable!("the caller built it under the lock"),
    }
}

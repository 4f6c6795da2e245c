//! Removal of names, and of inodes without names.
//!
//! An inode without names stays while it is held from outside: it is an orphan, an in-use inode with `nlink` 0. The device has no list of
//! orphans; recovery's scan finds them (RULES R12). Removal of an inode of any size is one transaction (RULES R11).
//!
//! [UN1] Damage does not stop a removal: what can be found of the space is freed, the rest stays taken in the maps. So the maps are not
//!       exact any more ([HB4] of `held_back.rs`), and the next mount, which searches again, finds the rest free.
//! [UN2] If the inode itself is damaged, only the name is removed. Nobody knows how many names it has, so its slot stays in use; `check`
//!       finds it without a name. A directory of which names are damaged, and none can be read, counts as empty, unless a repair would find some ([DI5] of `directory.rs`).

use std::sync::Arc;

use tandemfs_device::{Fenced, Flushed, Structure};
use tandemfs_format::inode::Inode;
use tandemfs_format::segment::Region;
use tandemfs_format::{Corrupt, EMPTY_LINE, InodeNumber};

use super::{check_name, directory_changed};
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::salvage;
use crate::inodes::attribute_set::AttributeSet;
use crate::inodes::directory::FoundEntry;
use crate::inodes::{InCoreInode, Locked, State};
use crate::leaving::LeavingGuard;
use crate::mutant::{Mutant, on};
use crate::quota::Ids;
use crate::space;
use crate::statistics::counted;
use crate::volume::{Tx, now};
use crate::wait::{leaves_to_others, may_wait};

impl FileSystem {
    /// Removes a name of a file. The file is removed with its last name and its last holder.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`.
    pub fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        let _counted = counted(&self.volume.live.operations.unlink);
        self.remove_name(parent, name, None, false)
    }

    /// As [`FileSystem::unlink`], if the name still stands for this inode of this generation, so that the caller need not hold it: a file
    /// that nobody holds is removed by the same transaction. A damaged inode is compared by its number alone, so the caller holds it.
    ///
    /// # Errors
    /// As [`FileSystem::unlink`]; `Changed`.
    pub fn unlink_inode(&self, parent: InodeNumber, name: &[u8], inode: InodeNumber, generation: u32) -> Result<()> {
        let _counted = counted(&self.volume.live.operations.unlink);
        self.remove_name(parent, name, Some((inode, generation)), false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`.
    pub fn remove_directory(&self, parent: InodeNumber, name: &[u8]) -> Result<()> {
        let _counted = counted(&self.volume.live.operations.rmdir);
        self.remove_name(parent, name, None, true)
    }

    /// As [`FileSystem::remove_directory`], if the name still stands for this inode; see [`FileSystem::unlink_inode`].
    ///
    /// # Errors
    /// As [`FileSystem::remove_directory`]; `Changed`.
    pub fn remove_directory_inode(&self, parent: InodeNumber, name: &[u8], inode: InodeNumber, generation: u32) -> Result<()> {
        let _counted = counted(&self.volume.live.operations.rmdir);
        self.remove_name(parent, name, Some((inode, generation)), true)
    }

    fn remove_name(&self, parent: InodeNumber, name: &[u8], expected: Option<(InodeNumber, u32)>, want_directory: bool) -> Result<()> {
        let volume = &self.volume;
        volume.health.check_writable()?;
        check_name(name)?;
        let directory = self.inode(parent)?;
        loop {
            let Some(found) = self.find(&directory, name)? else { return Err(Error::NotFound) };
            // The entry that was found is found again under the locks, or searched anew.
            if expected.is_some_and(|(inode, _)| inode != found.dentry.inode) {
                return Err(Error::Changed);
            }
            let target = match self.inode_of(&directory, name, &found) {
                Ok(Some(target)) => target,
                Ok(None) => continue,
                Err(Error::Damaged { inode, .. }) if inode == found.dentry.inode => {
                    match self.remove_name_alone(&directory, name, &found)? {
                        true => return Ok(()),
                        false => continue,
                    }
                }
                Err(error) => return Err(error),
            };
            let mut locked = Locked::new(vec![&directory, &target])?;
            let owner = locked.get(parent).owner(parent);
            // Revalidate under the locks (RULES R4).
            let now = self.index(parent, locked.get_mut(parent))?.find(volume, owner, name)?;
            if (now.as_ref() != Some(&found) || locked.get(target.number).removed) && !on(Mutant::NamesNotRevalidated) {
                continue;
            }
            // The number may have been another file's when the caller looked.
            if expected.is_some_and(|(_, generation)| generation != locked.get(target.number).inode.generation) {
                return Err(Error::Changed);
            }
            let is_directory = locked.get(target.number).inode.is_directory();
            match (is_directory, want_directory) {
                (true, false) => return Err(Error::IsDirectory),
                (false, true) => return Err(Error::NotDirectory),
                (true, true) if !self.index(target.number, locked.get_mut(target.number))?.is_empty(target.number)? => {
                    return Err(Error::NotEmpty);
                }
                _ => {}
            }
            let mut tx = Tx::new(volume);
            let parent_state = locked.get_mut(parent);
            let Some(index) = &parent_state.directory else { unreachable!("it was just built") };
            index.plan_remove(&mut tx, owner, &found)?;
            tx.charge_to(Ids::of(&parent_state.inode));
            let mut parent_new = parent_state.inode.clone();
            directory_changed(&mut parent_new, None);
            if is_directory {
                parent_new.nlink -= 1;
            }
            directory.put(&mut tx, volume, Some(&parent_state.inode), &parent_new)?;
            let removal = self.plan_unlink(&mut tx, &target, locked.get_mut(target.number))?;
            tx.commit(Fenced::nothing_stored(), Flushed::nothing_written())?;

            let parent_state = locked.get_mut(parent);
            parent_state.inode = parent_new;
            if let Some(index) = &mut parent_state.directory {
                index.removed(&found);
            }
            self.unlinked(&target, locked.get_mut(target.number), removal);
            drop(locked);
            self.tell_nameless(target.number);
            self.remove_late_orphans_here();
            return Ok(());
        }
    }

    /// Removes the name of an inode that is damaged itself ([UN2]). False if the name has changed meanwhile.
    fn remove_name_alone(&self, directory: &Arc<InCoreInode>, name: &[u8], found: &FoundEntry) -> Result<bool> {
        let volume = &self.volume;
        let mut locked = Locked::new(vec![directory])?;
        let state = locked.get_mut(directory.number);
        let owner = state.owner(directory.number);
        let index = self.index(directory.number, state)?;
        if index.find(volume, owner, name)?.as_ref() != Some(found) {
            return Ok(false);
        }
        let mut tx = Tx::new(volume);
        index.plan_remove(&mut tx, owner, found)?;
        tx.charge_to(Ids::of(&state.inode));
        let mut new = state.inode.clone();
        directory_changed(&mut new, None);
        if found.is_directory() {
            new.nlink -= 1;
        }
        directory.put(&mut tx, volume, Some(&state.inode), &new)?;
        tx.commit(Fenced::nothing_stored(), Flushed::nothing_written())?;
        state.inode = new;
        if let Some(index) = &mut state.directory {
            index.removed(found);
        }
        Ok(true)
    }

    /// Adds to a transaction that a locked inode loses a name: `nlink` falls, and an unused inode without names is freed.
    pub(crate) fn plan_unlink(&self, tx: &mut Tx<'_>, target: &Arc<InCoreInode>, state: &mut State) -> Result<Removal<'_>> {
        let mut new = state.inode.clone();
        new.nlink = if new.is_directory() { 0 } else { new.nlink.saturating_sub(1) };
        new.ctime = now();
        new.change_count += 1;
        if new.nlink > 0 {
            target.put(tx, &self.volume, Some(&state.inode), &new)?;
            return Ok(Removal::Named(new));
        }
        // A read or write in progress holds the range lock and knows the addresses of the space (RULES R7).
        if self.inodes.is_held(target.number) || !target.ranges.is_idle() {
            target.put(tx, &self.volume, Some(&state.inode), &new)?;
            return Ok(Removal::Orphaned(new));
        }
        let leaving = self.leaving.enter();
        self.plan_free(tx, target, state)?;
        Ok(Removal::Removed(leaving))
    }

    /// Updates the inode in memory, after the removal is durable.
    pub(crate) fn unlinked(&self, target: &Arc<InCoreInode>, state: &mut State, removal: Removal<'_>) {
        match removal {
            Removal::Named(new) => state.inode = new,
            Removal::Orphaned(new) => {
                state.inode = new;
                self.orphans.lock().insert(target.number.get());
                // The last holder may have gone since the plan; then nobody else would remove the inode.
                if !self.inodes.is_held(target.number) && !on(Mutant::LateOrphanForgotten) {
                    self.late_orphans.lock().push(target.number);
                }
            }
            Removal::Removed(leaving) => {
                self.mark_removed(target, state);
                drop(leaving);
            }
        }
    }

    fn mark_removed(&self, target: &InCoreInode, state: &mut State) {
        state.removed = true;
        self.inodes.forget(state);
        self.inodes.remove(target);
    }

    /// Adds the removal of an inode and all its space to a transaction. Nobody reads its data: it has no names and no holders, and the
    /// caller has its lock.
    fn plan_free(&self, tx: &mut Tx<'_>, target: &InCoreInode, state: &State) -> Result<()> {
        let volume = &self.volume;
        volume.versions.inode_ends(target.number);
        let owner = state.owner(target.number);
        let mut damage = None;
        if state.inode.has_mapping() {
            let (found_512, first) = salvage::free_all(tx, volume, owner, state.root(), state.inode.is_directory())?;
            damage = first;
            let lost = AttributeSet::space_512(volume, owner, state).is_ok_and(|own| own + found_512 != state.inode.space_512);
            if lost && damage.is_none() {
                // Zeros where a line may be empty verify ([SY3] of `survey.rs`).
                damage = Some(Corrupt::Field { address: target.address, field: "space_512", found: state.inode.space_512 });
            }
        }
        if !on(Mutant::AttributesKept) {
            match AttributeSet::free(tx, owner, state) {
                Err(Error::Damaged { source, .. }) => damage = damage.or(Some(source)),
                Err(error) => damage = damage.or(Some(error.unreadable().ok_or(error)?)), // [SA5] of `index/salvage.rs`
                Ok(()) => {}
            }
        }
        if let Some(what) = damage {
            tracing::warn!(
                inode = target.number.get(),
                "removed with damage, some of its space stays taken until the next recovery: {what}"
            );
            volume.held_back.begin(); // [UN1]
        }
        tx.put(Structure::Inode, target.address, EMPTY_LINE)?;
        tx.put(Structure::Inode, target.address.nth(1), EMPTY_LINE)?;
        tx.free(space::region(Region::Inodes, target.address, 2));
        tx.charge_to(Ids::of(&state.inode));
        Ok(())
    }

    /// Removes an inode without names if nobody holds it.
    pub(crate) fn remove_orphan(&self, number: InodeNumber) -> Result<()> {
        may_wait()?;
        let target = match self.inode(number) {
            Err(Error::Stale(_)) => return Ok(()),
            other => other?,
        };
        let _leaving = self.leaving.enter(); // before it leaves the orphans ([NS3])
        let _range = target.ranges.exclusive(0, u64::MAX)?;
        let mut state = target.state.write()?;
        if state.removed || state.inode.nlink > 0 || self.inodes.is_held(number) {
            return Ok(());
        }
        let mut tx = Tx::new(&self.volume);
        self.plan_free(&mut tx, &target, &state)?;
        // Before the commit: after it the number may belong to another orphan.
        self.orphans.lock().remove(&number.get());
        self.nameable.lock().remove(&number.get());
        tx.commit(Fenced::nothing_stored(), Flushed::nothing_written())?;
        self.mark_removed(&target, &mut state);
        Ok(())
    }

    /// Whether files wait for [`FileSystem::remove_left_behind`].
    pub fn has_left_behind(&self) -> bool {
        !self.late_orphans.lock().is_empty()
    }

    /// Removes files whose last holder went inside of `no_wait` ([NW5] of `wait.rs`), for callers that may wait. Otherwise the background
    /// thread does it.
    pub fn remove_left_behind(&self) {
        self.remove_late_orphans();
    }

    /// Removes orphans whose last holder went while their last name was removed.
    /// True if there were any.
    pub(crate) fn remove_late_orphans(&self) -> bool {
        let late = std::mem::take(&mut *self.late_orphans.lock());
        let any = !late.is_empty();
        for number in late {
            if let Err(error) = self.remove_orphan(number) {
                tracing::warn!(inode = number.get(), %error, "an unlinked file stays until the next recovery");
            }
        }
        any
    }

    /// Behind the removal of a name: who holds the inode for later use alone gives it up ([VS9] of `versions.rs`).
    pub(super) fn tell_nameless(&self, number: InodeNumber) {
        if self.orphans.lock().contains(&number.get()) && !on(Mutant::NamelessUntold) {
            self.volume.versions.is_nameless(number);
        }
    }

    /// The same behind an operation, which leaves them to others if it does not wait ([NW5] of `wait.rs`).
    pub(super) fn remove_late_orphans_here(&self) {
        if !leaves_to_others() {
            self.remove_late_orphans();
        }
    }
}

/// What happens to an inode that loses a name.
pub(crate) enum Removal<'l> {
    /// It keeps other names.
    Named(Inode),
    /// It has no names left, but is in use.
    Orphaned(Inode),
    /// It is removed when the transaction commits ([NS3] of `shortage.rs`).
    Removed(LeavingGuard<'l>),
}

impl FoundEntry {
    /// Whether the entry stands for a directory.
    pub(crate) fn is_directory(&self) -> bool {
        u16::from(self.dentry.file_type) << 12 == tandemfs_format::inode::file_type::DIRECTORY
    }
}

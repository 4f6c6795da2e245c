//! Reading and setting the attributes of an inode.

use std::cell::Cell;

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::{INLINE_LINK_MAX, Inode, Timestamp, file_type};

use super::attributes_of;
use crate::data::{SET_GROUP_ID, SET_ID, kill_set_id};
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::mutant::{Mutant, on};
use crate::statistics::counted;
use crate::types::{Attributes, SetAttributes, SetTime};
use crate::volume::now;
use crate::wait::may_wait;

impl FileSystem {
    /// What `stat` shows of an inode.
    ///
    /// # Errors
    /// `Stale` if the number is not in use.
    pub fn attributes(&self, number: InodeNumber) -> Result<Attributes> {
        let _counted = counted(&self.volume.live.operations.getattr);
        let file = self.inode(number)?;
        self.note_stores(&file)?; // [SL6] of `data/lent_stores.rs`
        let state = file.state.read()?;
        if state.removed {
            return Err(Error::Stale(number));
        }
        let attributes = attributes_of(number, &state.inode);
        if on(Mutant::NotedBehindLock) {
            drop(state);
            std::thread::yield_now();
        }
        self.volume.versions.note_inode(number, || file.ranges.has_store_leases());
        Ok(attributes)
    }

    /// The size of a file, in bytes.
    ///
    /// # Errors
    /// `Stale` if the number is not in use.
    pub fn size(&self, number: InodeNumber) -> Result<u64> {
        self.of_inode(number, |inode| inode.size)
    }

    /// The size of a file in bytes, and its generation, which tells it from earlier files of its number.
    ///
    /// # Errors
    /// `Stale` if the number is not in use.
    pub fn size_and_generation(&self, number: InodeNumber) -> Result<(u64, u32)> {
        self.of_inode(number, |inode| (inode.size, inode.generation))
    }

    /// Space that a file takes in both zones, in units of 512 B, as in `st_blocks`.
    ///
    /// # Errors
    /// `Stale` if the number is not in use.
    pub fn space_512(&self, number: InodeNumber) -> Result<u64> {
        self.of_inode(number, |inode| inode.space_512)
    }

    fn of_inode<T>(&self, number: InodeNumber, get: impl FnOnce(&Inode) -> T) -> Result<T> {
        let file = self.inode(number)?;
        self.note_stores(&file)?; // [LR4] of `data/lent_room.rs`
        let state = file.state.read()?;
        if state.removed { Err(Error::Stale(number)) } else { Ok(get(&state.inode)) }
    }

    /// Changes attributes; a new size truncates or extends the file. All changes are one transaction, except a size and permissions at once
    /// on a file with extended attributes: there the size comes first, then the permissions with the access list that follows them.
    ///
    /// # Errors
    /// `IsDirectory` and `InvalidArgument` for the size of anything but a regular file; `FileTooLarge`.
    pub fn set_attributes(&self, number: InodeNumber, set: &SetAttributes) -> Result<Attributes> {
        match set.permissions {
            Some(permissions) if permissions & SET_ID != 0 => self.giving_rights(number, || self.change_attributes_of(number, set)),
            _ => self.change_attributes_of(number, set),
        }
    }

    /// A change that gives rights to who starts a file ([SL8] of `data/lent_stores.rs`).
    pub(crate) fn giving_rights<T>(&self, number: InodeNumber, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let file = self.inode(number)?;
        if file.ranges.has_store_leases() {
            may_wait()?; // a change, and the end of a lease ([NW4] of `wait.rs`)
        }
        let changed = change()?;
        if !on(Mutant::RightsLent) {
            self.end_stores_of(&file)?;
        }
        Ok(changed)
    }

    fn change_attributes_of(&self, number: InodeNumber, set: &SetAttributes) -> Result<Attributes> {
        let volume = &self.volume;
        let _counted = counted(&volume.live.operations.setattr);
        volume.health.check_writable()?;
        let file = self.inode(number)?;
        if let Some(size) = set.size {
            file.must_be_regular("only regular files have a size to set")?;
            // First the size and the other attributes; then the permissions, which an access list may have to follow.
            let with_size = SetAttributes { permissions: None, uid: None, gid: None, ..*set };
            let changes_owner = set.uid.is_some() || set.gid.is_some();
            let keeps_rights = |mode: u16| set.permissions.is_none_or(|permissions| (permissions ^ mode) & 0o777 == 0);
            let at_once = {
                let state = file.state.read()?;
                !changes_owner && (keeps_rights(state.inode.mode) || state.inode.attributes.is_none())
            };
            if !at_once {
                may_wait()?; // two transactions ([NW4] of `wait.rs`)
            }
            let after = Cell::new(None);
            self.truncate(&file, size, |inode| {
                inode.mtime = now();
                change(inode, if at_once { set } else { &with_size });
                after.set(Some(attributes_of(number, inode)));
            })?;
            if at_once && let Some(after) = after.take() {
                return Ok(after); // as it was committed, without another wait for its lock
            }
            if !at_once {
                let SetAttributes { permissions, uid, gid, ctime, .. } = *set;
                self.set_attributes(number, &SetAttributes { permissions, uid, gid, ctime, ..SetAttributes::default() })?;
            }
        } else {
            self.note_stores(&file)?; // what was stored before is not newer than what is set here ([SL6] of `data/lent_stores.rs`)
            return self.with_room(|| {
                let changes_owner = set.uid.is_some() || set.gid.is_some();
                let _owners = changes_owner.then(|| volume.quota.owners.read()).transpose()?; // [QT6] of `quota/`
                let mut state = file.state.write()?;
                if state.removed {
                    return Err(Error::Stale(number));
                }
                let mut new = state.inode.clone();
                change(&mut new, set);
                let without_ctime = Inode { ctime: state.inode.ctime, ..new.clone() };
                if state.inode.nlink == 0 && without_ctime == state.inode {
                    // Nobody sees it after a crash, and the kernel sends it for every file that loses its last name.
                    volume.versions.inode_changes(number, Some(&state.inode), &new); // [VS1] of `versions.rs`
                    state.inode = new;
                    return Ok(attributes_of(number, &state.inode));
                }
                self.commit_mode(&file, &mut state, new)?;
                Ok(attributes_of(number, &state.inode))
            });
        }
        let state = file.state.read()?;
        Ok(attributes_of(number, &state.inode))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not a symbolic link.
    pub fn read_link(&self, number: InodeNumber) -> Result<Vec<u8>> {
        let file = self.inode(number)?;
        let size = {
            let state = file.state.read()?;
            if state.inode.file_type() != file_type::SYMLINK {
                return Err(Error::InvalidArgument("not a symbolic link"));
            }
            let size = state.inode.size as usize;
            if size <= INLINE_LINK_MAX {
                return Ok(state.inode.root[..size].to_vec());
            }
            size
        };
        let mut target = vec![0; size.min(4096)];
        let length = self.read(number, 0, &mut target)?;
        target.truncate(length);
        Ok(target)
    }
}

/// Applies everything but the size.
fn change(inode: &mut Inode, set: &SetAttributes) {
    let time = now();
    let time_of = |set: SetTime| match set {
        SetTime::Now => time,
        SetTime::At(time) => representable(time),
    };
    if set.kill_set_id {
        kill_set_id(inode);
    }
    if set.kill_set_group_id && inode.file_type() != file_type::DIRECTORY {
        inode.mode &= !SET_GROUP_ID;
    }
    if let Some(permissions) = set.permissions {
        inode.mode = inode.mode & file_type::MASK | permissions & 0o7777;
    }
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    if let Some(atime) = set.atime {
        inode.atime = time_of(atime);
    }
    if let Some(mtime) = set.mtime {
        inode.mtime = time_of(mtime);
    }
    inode.ctime = set.ctime.map_or(time, representable);
}

/// The nearest time that the format can store, as Linux does it: `stat` shows the same time before and after a remount.
fn representable(time: Timestamp) -> Timestamp {
    match time.seconds {
        Timestamp::SECONDS_MIN..=Timestamp::SECONDS_MAX => time,
        seconds => Timestamp { seconds: seconds.clamp(Timestamp::SECONDS_MIN, Timestamp::SECONDS_MAX), nanoseconds: 0 },
    }
}

//! Reading, setting, removing and inheriting extended attributes.
//!
//! [EA1] A change is one transaction: new lines for the whole set, out of place ([ST1] of `index/stream.rs`), then the inode's two lines
//!       with the pointer to them, the mode from an access list, time and space. After a power cut the set is the old or the new one.
//! [EA2] The inode's lock owns all lines of its attributes (RULES R5). The transaction that frees the inode frees them too.
//! [EA3] A set that was read once stays in host memory with its inode: checks of access lists and attributes do not read the device. Only
//!       values over 1 KiB are read from the device, and verified, each time.
//! [EA4] A removal, and any change that does not enlarge a set, may take the transient room: it gives back what it takes (RULES R14).

use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::InodeNumber;
use tandemfs_format::attributes::{ATTRIBUTE_NAME_MAX, ATTRIBUTE_VALUE_MAX, AttributePointer, Namespace};
use tandemfs_format::inode::{Inode, file_type, flags};

use super::access_lists::AccessList;
use super::aligned_attribute::{ALIGNED_ATTRIBUTE, AlignedAttribute, NOT_ALIGNED};
use super::attributes_of;
use super::home_attribute::{HOME_ATTRIBUTE, HomeAttribute};
use crate::data::SET_ID;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::inodes::attribute_set::{AttributeSet, Change, Changed, value_bytes};
use crate::inodes::{InCoreInode, State};
use crate::mutant::{Mutant, on};
use crate::statistics::counted;
use crate::types::{Attributes, Home, SetAttributeMode, SetExtendedAttribute};
use crate::volume::{Owner, Tx, now};
use crate::wait::may_wait;

/// The file capabilities, which the kernel grants to a program when it is executed.
const CAPABILITY: (Namespace, &[u8]) = (Namespace::Security, b"capability");

/// Splits a full name, and refuses invalid names as Linux does.
fn split(name: &[u8]) -> Result<(Namespace, &[u8])> {
    if name.is_empty() || name.len() > ATTRIBUTE_NAME_MAX {
        return Err(Error::AttributeNameLength);
    }
    match Namespace::split(name) {
        None | Some((Namespace::Quota, _)) => Err(Error::NotSupported("no extended attribute has a name of this kind")),
        Some((namespace, [])) if namespace.is_prefix() => Err(Error::InvalidArgument("the name of an extended attribute is its prefix")),
        Some((_, rest)) if rest.contains(&0) => Err(Error::InvalidArgument("the name of an extended attribute holds a NUL")),
        Some(found) => Ok(found),
    }
}

/// Which file types may have which attributes.
fn check_type(inode: &Inode, namespace: Namespace) -> Result<()> {
    match (namespace, inode.file_type()) {
        (Namespace::User, file_type::REGULAR | file_type::DIRECTORY) => Ok(()),
        (Namespace::User, _) => Err(Error::NotPermitted),
        (Namespace::AccessAcl | Namespace::DefaultAcl, file_type::SYMLINK) => {
            Err(Error::NotSupported("symbolic links have no access control lists"))
        }
        _ => Ok(()),
    }
}

impl FileSystem {
    /// Calls `read` with an inode's attributes; the first call reads them from the device ([EA3]).
    pub(super) fn with_attributes<T>(&self, file: &InCoreInode, read: impl FnOnce(&State, &AttributeSet) -> Result<T>) -> Result<T> {
        {
            let state = file.state.read()?;
            if state.removed {
                return Err(Error::Stale(file.number));
            }
            if state.inode.attributes.is_none() {
                return read(&state, &AttributeSet::default());
            }
            if let Some(set) = &state.attributes {
                return read(&state, set);
            }
        }
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        self.load_attributes(file.number, &mut state)?;
        match &state.attributes {
            Some(set) => read(&state, set),
            None => read(&state, &AttributeSet::default()),
        }
    }

    /// Loads the attributes of a locked inode into host memory.
    pub(crate) fn load_attributes(&self, number: InodeNumber, state: &mut State) -> Result<()> {
        if state.attributes.is_none() && !state.inode.attributes.is_none() {
            let set = AttributeSet::load(&self.volume, state.owner(number), state.inode.attributes)?;
            self.inodes.put_attributes(state, Some(set));
        }
        Ok(())
    }

    /// The value of an extended attribute. `name` is the full name, such as `user.mime_type`.
    ///
    /// # Errors
    /// `NoData` if the inode has no attribute of that name; `AttributeNameLength`, `NotSupported` and `InvalidArgument` for invalid names.
    pub fn extended_attribute(&self, number: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        let _counted = counted(&self.volume.live.operations.getxattr);
        if let Some(which) = HomeAttribute::named(name) {
            return self.home_attribute(number, which);
        }
        if let Some(which) = AlignedAttribute::named(name) {
            return self.aligned_attribute(number, which);
        }
        let (namespace, name) = split(name)?;
        let file = self.inode(number)?;
        self.with_attributes(&file, |state, set| {
            let attribute = set.find(namespace, name).ok_or(Error::NoData)?;
            value_bytes(&self.volume, state.owner(number), &attribute.value)
        })
    }

    /// The attributes of an inode and its access control list at one instant; no list if the mode says all. A list that does not verify
    /// is damage, never a list that allows nothing or all.
    ///
    /// # Errors
    /// `Stale`, `Damaged`; `InvalidArgument` for a list that an older build stored and that is none.
    pub fn attributes_and_access_list(&self, number: InodeNumber) -> Result<(Attributes, Option<AccessList>)> {
        let file = self.inode(number)?;
        self.with_attributes(&file, |state, set| {
            let list = match set.find(Namespace::AccessAcl, b"") {
                Some(list) => AccessList::decode(&value_bytes(&self.volume, state.owner(number), &list.value)?)?,
                None => None,
            };
            self.volume.versions.note_rights(number);
            Ok((attributes_of(number, &state.inode), list))
        })
    }

    /// Calls `each` with the full name and the length of the value of every extended attribute, in no particular order.
    ///
    /// # Errors
    /// `Stale`, `Damaged`.
    pub fn extended_attributes(&self, number: InodeNumber, each: &mut dyn FnMut(&[u8], usize)) -> Result<()> {
        let _counted = counted(&self.volume.live.operations.listxattr);
        let file = self.inode(number)?;
        self.with_attributes(&file, |state, set| {
            if let Some(home) = HomeAttribute::listed(&state.inode) {
                each(HOME_ATTRIBUTE, home.name().len());
            }
            if let Some(value) = AlignedAttribute::listed(&state.inode) {
                each(ALIGNED_ATTRIBUTE, value.len());
            }
            for attribute in set.list.iter().filter(|attribute| attribute.namespace != Namespace::Quota) {
                let name = attribute.full_name();
                // [HX3]
                let is_flag = HomeAttribute::named(&name).is_some() || AlignedAttribute::named(&name).is_some();
                if !is_flag || on(Mutant::OldHomeShown) {
                    each(&name, attribute.value.length());
                }
            }
            Ok(())
        })
    }

    /// Sets an extended attribute; durable and complete when the call returns. An access control list also sets the mode. A list that only
    /// repeats the mode is not kept, and a list without entries removes the list.
    ///
    /// # Errors
    /// `Exists` and `NoData` according to `set.mode`; `AttributeTooLarge`, `AttributesFull`, `NoSpace`; `InvalidArgument` for an invalid
    /// access control list; `NotPermitted`, `NotForFiles` and `NotSupported` for file types that cannot have the attribute.
    pub fn set_extended_attribute(&self, number: InodeNumber, name: &[u8], value: &[u8], set: SetExtendedAttribute) -> Result<()> {
        let _counted = counted(&self.volume.live.operations.setxattr);
        self.volume.health.check_writable()?;
        if let Some(which) = HomeAttribute::named(name) {
            return self.set_home_attribute(number, which, value, set.mode);
        }
        if let Some(which) = AlignedAttribute::named(name) {
            return self.set_aligned_attribute(number, which, value, set.mode);
        }
        let (namespace, name) = split(name)?;
        if value.len() > ATTRIBUTE_VALUE_MAX {
            return Err(Error::AttributeTooLarge);
        }
        match (namespace, name) == CAPABILITY {
            true => self.giving_rights(number, || self.set_split(number, (namespace, name), value, set)),
            false => self.set_split(number, (namespace, name), value, set),
        }
    }

    fn set_split(&self, number: InodeNumber, (namespace, name): (Namespace, &[u8]), value: &[u8], set: SetExtendedAttribute) -> Result<()> {
        let is_list = matches!(namespace, Namespace::AccessAcl | Namespace::DefaultAcl);
        let list = if is_list { AccessList::decode(value)? } else { None };
        self.with_room(|| {
            let file = self.inode(number)?;
            let mut state = file.state.write()?;
            if state.removed {
                return Err(Error::Stale(number));
            }
            check_type(&state.inode, namespace)?;
            if namespace == Namespace::DefaultAcl && !state.inode.is_directory() {
                return if list.is_some() { Err(Error::NotForFiles) } else { Ok(()) };
            }
            self.load_attributes(number, &mut state)?;
            let exists = state.attributes.as_ref().is_some_and(|set| set.find(namespace, name).is_some());
            match set.mode {
                SetAttributeMode::Create if exists && !is_list => return Err(Error::Exists),
                SetAttributeMode::Replace if !exists && !is_list => return Err(Error::NoData),
                _ => {}
            }
            let mut new = state.inode.clone();
            let mut kept = (!is_list || list.is_some()).then_some(value);
            if let (Namespace::AccessAcl, Some(list)) = (namespace, &list) {
                new.mode = new.mode & !0o777 | list.mode_bits();
                if set.kill_set_group_id {
                    new.mode &= !crate::data::SET_GROUP_ID;
                }
                kept = kept.filter(|_| !list.is_minimal());
            }
            if kept.is_none() && !exists && new.mode == state.inode.mode {
                return Ok(()); // nothing to remove
            }
            new.ctime = now();
            self.change_attributes(&file, &mut state, new, &[(namespace, name, kept)])
        })
    }

    /// Removes an extended attribute. Removing an access control list leaves the mode as the list has set it.
    ///
    /// # Errors
    /// `NoData`, except for access control lists, as in Linux.
    pub fn remove_extended_attribute(&self, number: InodeNumber, name: &[u8]) -> Result<()> {
        let _counted = counted(&self.volume.live.operations.removexattr);
        self.volume.health.check_writable()?;
        if let Some(which) = HomeAttribute::named(name) {
            return self.set_home_attribute(number, which, Home::Auto.name().as_bytes(), SetAttributeMode::Replace);
        }
        if let Some(which) = AlignedAttribute::named(name) {
            return self.set_aligned_attribute(number, which, NOT_ALIGNED, SetAttributeMode::Replace);
        }
        let (namespace, name) = split(name)?;
        self.with_room(|| {
            let file = self.inode(number)?;
            let mut state = file.state.write()?;
            if state.removed {
                return Err(Error::Stale(number));
            }
            check_type(&state.inode, namespace)?;
            self.load_attributes(number, &mut state)?;
            if state.attributes.as_ref().is_none_or(|set| set.find(namespace, name).is_none()) {
                let is_list = matches!(namespace, Namespace::AccessAcl | Namespace::DefaultAcl);
                return if is_list { Ok(()) } else { Err(Error::NoData) };
            }
            let mut new = state.inode.clone();
            new.ctime = now();
            self.change_attributes(&file, &mut state, new, &[(namespace, name, None)])
        })
    }

    /// Changes attributes of a locked inode whose set is in memory, and the inode with them, in one transaction ([EA1]).
    pub(super) fn change_attributes(&self, file: &InCoreInode, state: &mut State, mut new: Inode, changes: &[Change<'_>]) -> Result<()> {
        let owner = state.owner(file.number);
        let mut tx = Tx::new(&self.volume);
        self.note_new_ids(&mut tx, file, state, &new)?;
        let nothing = AttributeSet::default();
        let changed = state.attributes.as_ref().unwrap_or(&nothing).plan(&mut tx, owner, state.inode.attributes, changes)?;
        let (set, stored) = changed.store(&mut tx, owner, &mut new)?;
        file.commit(tx, state, new, stored, Flushed::nothing_written())?;
        let set = (!set.list.is_empty()).then_some(set);
        self.inodes.put_attributes(state, set);
        Ok(())
    }

    /// Commits a change of a locked inode's mode, owner or times. The access list follows the mode ([AC2] of `access_lists.rs`).
    pub(crate) fn commit_mode(&self, file: &InCoreInode, state: &mut State, new: Inode) -> Result<()> {
        if (new.mode ^ state.inode.mode) & 0o777 != 0 && !state.inode.attributes.is_none() {
            self.load_attributes(file.number, state)?;
            let value = match state.attributes.as_ref().and_then(|set| set.find(Namespace::AccessAcl, b"")) {
                Some(list) => Some(value_bytes(&self.volume, state.owner(file.number), &list.value)?),
                None => None,
            };
            if let Some(list) = value.and_then(|value| AccessList::decode(&value).ok().flatten()) {
                let value = list.with_mode(new.mode).encode();
                return self.change_attributes(file, state, new, &[(Namespace::AccessAcl, b"", Some(&value))]);
            }
        }
        let mut tx = Tx::new(&self.volume);
        self.note_new_ids(&mut tx, file, state, &new)?;
        file.commit(tx, state, new, Fenced::nothing_stored(), Flushed::nothing_written())
    }

    /// Plans what a new inode in a locked directory inherits ([AC3] of `access_lists.rs`): reduces its mode and takes its lines.
    pub(crate) fn plan_inheritance(
        &self,
        tx: &mut Tx<'_>,
        parent: (InodeNumber, &mut State),
        inode: &mut Inode,
        umask: u16,
    ) -> Result<Option<Changed>> {
        if inode.file_type() == file_type::SYMLINK {
            return Ok(None);
        }
        let (number, parent) = parent;
        inode.flags |= parent.inode.flags
            & match inode.file_type() {
                _ if on(Mutant::HomeNotInherited) => 0,
                file_type::REGULAR => flags::INHERITED_BY_FILES,
                file_type::DIRECTORY if on(Mutant::HintInheritedByDirectories) => flags::INHERITED_BY_FILES, // [HN1] of `aligned_attribute.rs`
                file_type::DIRECTORY => flags::INHERITED_BY_DIRECTORIES,
                _ => 0,
            };
        self.load_attributes(number, parent)?;
        let Some(default) = parent.attributes.as_ref().and_then(|set| set.find(Namespace::DefaultAcl, b"")) else {
            inode.mode &= !(umask & 0o777);
            return Ok(None);
        };
        let default = value_bytes(&self.volume, parent.owner(number), &default.value)?;
        let Some(list) = AccessList::decode(&default).ok().flatten() else { return Ok(None) };
        let (access, bits) = list.inherited(inode.mode);
        inode.mode = inode.mode & !0o777 | bits;
        let access = access.encode();
        let mut changes: Vec<Change<'_>> = Vec::new();
        if !list.is_minimal() {
            changes.push((Namespace::AccessAcl, b"", Some(&access)));
        }
        if inode.is_directory() {
            changes.push((Namespace::DefaultAcl, b"", Some(&default)));
        }
        if changes.is_empty() {
            return Ok(None);
        }
        // The plan reads and frees no lines of the owner, so the owner need not be known yet.
        let nobody = Owner { inode: InodeNumber::new(0), generation: 0 };
        AttributeSet::default().plan(tx, nobody, AttributePointer::NONE, &changes).map(Some)
    }

    /// Stores inherited attributes for an inode whose generation is known now.
    pub(crate) fn store_inheritance(
        &self,
        tx: &mut Tx<'_>,
        owner: Owner,
        inode: &mut Inode,
        changed: Changed,
    ) -> Result<(AttributeSet, Fenced)> {
        changed.store(tx, owner, inode)
    }

    /// Whether a file gives rights to who starts it: by its mode or its capabilities.
    pub(crate) fn gives_rights(&self, file: &InCoreInode) -> Result<bool> {
        let (namespace, name) = CAPABILITY;
        self.with_attributes(file, |state, set| Ok(state.inode.mode & SET_ID != 0 || set.find(namespace, name).is_some()))
    }

    /// Drops the file capabilities, as a change of a program's bytes or its owner does. Directories are left alone.
    ///
    /// # Errors
    /// As [`FileSystem::remove_extended_attribute`], except `NoData`.
    pub fn kill_capabilities(&self, number: InodeNumber) -> Result<()> {
        let file = self.inode(number)?;
        let (namespace, name) = CAPABILITY;
        let found = |state: &State, set: &AttributeSet| Ok(!state.inode.is_directory() && set.find(namespace, name).is_some());
        if !self.with_attributes(&file, found)? {
            return Ok(());
        }
        may_wait()?; // a change follows, so these are two ([NW4] of `wait.rs`)
        match self.remove_extended_attribute(number, &[namespace.prefix().as_bytes(), name].concat()) {
            Err(Error::NoData) => Ok(()),
            other => other,
        }
    }
}

//! The home of a file as an extended attribute, which `cp -a`, `rsync -X` and `tar --xattrs` carry to another file system.
//!
//! [HX1] The attribute is not stored beside the home: it *is* the inode's flags (`data/home.rs`), in text. So setting it is one transaction of
//!       the inode, what is made in a directory has it from its first transaction on, and *auto* is the absence of the attribute.
//! [HX2] Setting the attribute never gives a file system the feature *memory home*: a program that copies attributes must not decide that
//!       older builds refuse the device. [`FileSystem::enable_homes`] does.
//! [HX3] A build that does not know homes stores an attribute of this name as any other. It has no effect afterwards, and is hidden.

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::{Inode, file_type};

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::mutant::{Mutant, on};
use crate::types::{Home, SetAttributeMode};

/// The extended attribute that names the home of a file or directory: `auto`, `memory` or `block`.
pub const HOME_ATTRIBUTE: &[u8] = b"user.tandemfs.home";
/// Read-only and never listed: how many bytes of the file are still to move to its home, in decimal digits.
pub const HOME_LEFT_ATTRIBUTE: &[u8] = b"user.tandemfs.home.left";

/// One of the attributes of this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HomeAttribute {
    Home,
    Left,
}

impl HomeAttribute {
    /// The attribute with a full name; `None` if it is one like all others.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        match name {
            _ if on(Mutant::HomesUnknown) => None, // [HX3]
            HOME_ATTRIBUTE => Some(Self::Home),
            HOME_LEFT_ATTRIBUTE => Some(Self::Left),
            _ => None,
        }
    }

    /// The home of an inode that has the attribute.
    pub(super) fn listed(inode: &Inode) -> Option<Home> {
        Some(Home::of(inode)).filter(|home| *home != Home::Auto)
    }
}

impl FileSystem {
    /// The text of an attribute; `NoData` without a home.
    pub(super) fn home_attribute(&self, number: InodeNumber, which: HomeAttribute) -> Result<Vec<u8>> {
        let home = self.home(number)?;
        match which {
            HomeAttribute::Left => self.bytes_from_home(number).map(|bytes| bytes.to_string().into_bytes()),
            HomeAttribute::Home if home == Home::Auto => Err(Error::NoData),
            HomeAttribute::Home => Ok(home.name().into()),
        }
    }

    /// Sets a home by its attribute.
    pub(super) fn set_home_attribute(&self, number: InodeNumber, which: HomeAttribute, value: &[u8], mode: SetAttributeMode) -> Result<()> {
        if which == HomeAttribute::Left {
            return Err(Error::NotSupported("what is still to move to a home cannot be set"));
        }
        let home = Home::named(value).ok_or(Error::InvalidArgument("the home of a file is auto, memory or block"))?;
        if !matches!(self.attributes(number)?.mode & file_type::MASK, file_type::REGULAR | file_type::DIRECTORY) {
            return Err(Error::NotPermitted); // as all attributes of this namespace
        }
        if home != Home::Auto && !self.has_homes() {
            self.check_home(number, home, mode)?; // what would be refused anyway must not make anyone ask for the feature
            if on(Mutant::FeatureByAttribute) {
                self.enable_homes()?;
            } else {
                return Err(Error::NotSupported("the file system has no homes of files yet; its administrator sets the first one")); // [HX2]
            }
        }
        self.put_home(number, home, mode)
    }
}

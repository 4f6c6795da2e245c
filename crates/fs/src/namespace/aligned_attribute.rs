//! The hint *aligned* of a file as an extended attribute, which `cp -a`, `rsync -X` and `tar --xattrs` carry to another file system.
//!
//! The rules are those of the home ([HX1]–[HX3] of `home_attribute.rs`): the attribute is the inode's flag (`data/hint.rs`), setting it gives
//! a file system no feature, and one that an older build stored has no effect and is hidden. But for one:
//!
//! [HN1] The files that are made in a directory inherit its hint, its subdirectories do not (WineFS §3.6): what lies below them is often
//!       small, and takes space in steps of 2 MiB with the hint.

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::{Inode, file_type, flags};

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::mutant::{Mutant, on};
use crate::types::SetAttributeMode;

/// The extended attribute of a file whose bytes are to lie in aligned extents of 2 MiB, and of a directory whose new files are to have it:
/// `yes`. `no` takes it away.
pub const ALIGNED_ATTRIBUTE: &[u8] = b"user.tandemfs.aligned";
/// Read-only and never listed: how many bytes of a file with the hint lie in no aligned extent yet, in decimal digits.
pub const ALIGNED_LEFT_ATTRIBUTE: &[u8] = b"user.tandemfs.aligned.left";

const ALIGNED: &[u8] = b"yes";
pub(super) const NOT_ALIGNED: &[u8] = b"no";

/// One of the attributes of this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AlignedAttribute {
    Hint,
    Left,
}

impl AlignedAttribute {
    /// The attribute with a full name; `None` if it is one like all others.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        match name {
            _ if on(Mutant::HomesUnknown) => None, // [HX3]
            ALIGNED_ATTRIBUTE => Some(Self::Hint),
            ALIGNED_LEFT_ATTRIBUTE => Some(Self::Left),
            _ => None,
        }
    }

    /// The value of an inode that has the attribute.
    pub(super) fn listed(inode: &Inode) -> Option<&'static [u8]> {
        (inode.flags & flags::ALIGNED != 0).then_some(ALIGNED)
    }
}

impl FileSystem {
    /// The text of an attribute; `NoData` without the hint.
    pub(super) fn aligned_attribute(&self, number: InodeNumber, which: AlignedAttribute) -> Result<Vec<u8>> {
        match which {
            AlignedAttribute::Left => self.bytes_not_aligned(number).map(|bytes| bytes.to_string().into_bytes()),
            AlignedAttribute::Hint if self.is_aligned(number)? => Ok(ALIGNED.into()),
            AlignedAttribute::Hint => Err(Error::NoData),
        }
    }

    /// Sets the hint by its attribute.
    pub(super) fn set_aligned_attribute(
        &self,
        number: InodeNumber,
        which: AlignedAttribute,
        value: &[u8],
        mode: SetAttributeMode,
    ) -> Result<()> {
        if which == AlignedAttribute::Left {
            return Err(Error::NotSupported("what is still to be aligned cannot be set"));
        }
        let is_aligned = match value {
            ALIGNED => true,
            NOT_ALIGNED => false,
            _ => return Err(Error::InvalidArgument("whether a file is to be aligned is yes or no")),
        };
        if !matches!(self.attributes(number)?.mode & file_type::MASK, file_type::REGULAR | file_type::DIRECTORY) {
            return Err(Error::NotPermitted); // as all attributes of this namespace
        }
        if is_aligned && !self.has_homes() {
            if on(Mutant::FeatureByAttribute) {
                self.enable_homes()?;
            } else {
                let reason = "the file system has no homes of files yet, which aligned files need; its administrator enables them";
                return Err(Error::NotSupported(reason)); // [HX2]
            }
        }
        self.put_aligned(number, is_aligned, mode)
    }
}

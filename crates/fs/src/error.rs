use tandemfs_device::DeviceError;
use tandemfs_format::geometry::GeometryError;
use tandemfs_format::identity::times_differ;
use tandemfs_format::quota::QuotaKind;
use tandemfs_format::size::size;
use tandemfs_format::superblock::SuperblockError;
use tandemfs_format::{Corrupt, InodeNumber, LINE_BYTES, LineAddress};

/// Why an operation failed. Each variant has one cause; the doors map it to the errors that their callers expect.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such name.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("the name exists")]
    Exists,
    /// A directory is needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory cannot be used here.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name over 255 B.
    #[error("a name has at most 255 B")]
    NameTooLong,
    /// A name that no file can have: empty, `.`, `..`, with a slash or a NUL.
    #[error("not a name for a file")]
    InvalidName,
    /// An invalid argument.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// A directory moved into itself.
    #[error("a directory cannot be moved into itself")]
    IntoItself,
    /// The file has 65,000 names already.
    #[error("the file has the largest number of names")]
    TooManyLinks,
    /// Not permitted on this kind of file.
    #[error("not permitted on this kind of file")]
    NotPermitted,
    /// Only the owner of the file may do this.
    #[error("only the owner of the file may do this")]
    NotOwner,
    /// No attribute of that name.
    #[error("the file has no such extended attribute")]
    NoData,
    /// The name of an attribute is empty, or over 255 B.
    #[error("the name of an extended attribute has 1 to 255 B")]
    AttributeNameLength,
    /// The value of an attribute is over 64 KiB.
    #[error("the value of an extended attribute has at most 64 KiB")]
    AttributeTooLarge,
    /// The attributes of one inode exceed what the format holds.
    #[error("the file has as many extended attributes as it can have")]
    AttributesFull,
    /// A feature that the file system does not have.
    #[error("{0}")]
    NotSupported(&'static str),
    /// Only for directories: the access control list of new files (default list) on a file of another type.
    #[error("only directories have a default access control list")]
    NotForFiles,
    /// A zone is full.
    #[error("no space left in the {zone} zone")]
    NoSpace {
        /// "memory" or "block".
        zone: &'static str,
    },
    /// A limit of quota is reached.
    #[error("the limit of {} {id} is reached: {resource}", kind.name())]
    QuotaExceeded {
        /// Whose limit: of a user, group or project.
        kind: QuotaKind,
        /// The id.
        id: u32,
        /// What is limited.
        resource: &'static str,
    },
    /// A file of another project cannot be moved or linked into a directory whose project is inherited.
    #[error("the directory is of another project; files of it are copied there, not moved or linked")]
    OtherProject,
    /// Beyond the largest file.
    #[error("beyond the largest file size")]
    FileTooLarge,
    /// The mount is read-only.
    #[error("the file system is mounted read-only")]
    ReadOnly,
    /// The file system stopped after a failed flush or metadata write (RULES R15).
    #[error("the file system stopped writing: {first_cause}; unmount and check it")]
    Stopped {
        /// The first failure.
        first_cause: String,
    },
    /// A record in the middle of a journal ring is damaged: a mount would lose what was acknowledged after it.
    #[error("{what}")]
    JournalDamaged {
        /// Which record, and what to do.
        what: String,
    },
    /// The inode is not in use, or its number was given to another file.
    #[error("inode {0} is not in use")]
    Stale(InodeNumber),
    /// A line of metadata is damaged.
    #[error("inode {inode}: {source}; run tandemfs check")]
    Damaged {
        /// The inode whose metadata it is.
        inode: InodeNumber,
        /// What is wrong.
        source: Corrupt,
    },
    /// File data does not match its checksum.
    #[error("inode {inode}: checksum mismatch of data at byte {offset}")]
    DamagedData {
        /// The file.
        inode: InodeNumber,
        /// Offset of the damaged sector or log in the file, in bytes.
        offset: u64,
    },
    /// File data was lost with its metadata, and a repair gave it up.
    #[error("inode {inode}: data at byte {offset} is lost since a repair; write it anew, or punch it out")]
    LostData {
        /// The file.
        inode: InodeNumber,
        /// Offset of the first lost byte that was asked for, in the file.
        offset: u64,
    },
    /// Some of the blocks are mapped, and stay as they are but for their bytes until the mapping is gone.
    #[error("the file is mapped there; this is possible when it is unmapped")]
    Mapped,
    /// Mappings are in use: the file system cannot be unmounted.
    #[error("{count} mappings of files are in use")]
    MappingsHeld {
        /// How many.
        count: usize,
    },
    /// A program of an earlier mount has the memory zone mapped for stores.
    #[error("{device}: a program of an earlier mount can still store to the memory; end it, then mount")]
    ProgramsLeft {
        /// The device's name.
        device: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device holds no file system that this build mounts.
    #[error("{device}: {source}")]
    Superblock {
        /// The device's name.
        device: String,
        /// What was found.
        source: SuperblockError,
    },
    /// The sizes do not make a valid file system.
    #[error("{device}: {source}")]
    Geometry {
        /// The device's name.
        device: String,
        /// What is wrong.
        source: GeometryError,
    },
    /// The device is smaller than its superblock says: a truncated image, or half of another pair.
    #[error(
        "{device}: the {zone} zone has {}, its superblock says {}; it was truncated, or belongs to another pair",
        size(.found),
        size(.expected)
    )]
    Truncated {
        /// The device's name.
        device: String,
        /// "memory" or "block".
        zone: &'static str,
        /// Size found in bytes.
        found: u64,
        /// Size expected in bytes.
        expected: u64,
    },
    /// A zone was asked to shrink.
    #[error("{device}: the {zone} zone has {} and cannot shrink to {}; nothing was changed", size(.current), size(.wanted))]
    Shrinks {
        /// The device's name.
        device: String,
        /// "memory" or "block".
        zone: &'static str,
        /// Its size in bytes.
        current: u64,
        /// The size asked for in bytes.
        wanted: u64,
    },
    /// A zone was asked to grow beyond the size of its device.
    #[error("{device}: the {zone} zone of the device has {}, less than {}; enlarge the device first", size(.found), size(.wanted))]
    BeyondDevice {
        /// The device's name.
        device: String,
        /// "memory" or "block".
        zone: &'static str,
        /// Size of the zone on the device, in bytes.
        found: u64,
        /// The size asked for in bytes.
        wanted: u64,
    },
    /// What a file system holds has no room in a zone of that size.
    #[error("{device}: what the {zone} zone holds does not fit into {}; delete files, or name a larger size", size(.wanted))]
    DoesNotFit {
        /// The device's name.
        device: String,
        /// "memory" or "block".
        zone: &'static str,
        /// The size asked for in bytes.
        wanted: u64,
    },
    /// A change of sizes that the device, or a zone as it is mounted, can make only while it is not mounted.
    #[error("{device} {reason}; unmount it and run tandemfs resize on the device")]
    GrowsUnmounted {
        /// The device's name.
        device: String,
        /// Why.
        reason: String,
    },
    /// No free run in the memory zone holds the allocation maps of the new size.
    #[error(
        "{device}: maps of that size need {units} free units of 2 MiB in a row, which the memory zone has not; delete files, or let it grow as well"
    )]
    NoRoomForMaps {
        /// The device's name.
        device: String,
        /// Length of the run that is needed, in units.
        units: u64,
    },
    /// The two halves belong to different pairs.
    #[error("{device}: the block half is of pair {found}, the memory half of pair {expected}; name two halves of one pair")]
    PairMismatch {
        /// The device's name.
        device: String,
        /// The pair that the block half names.
        found: uuid::Uuid,
        /// The pair that the memory half names.
        expected: uuid::Uuid,
    },
    /// The two halves are of one pair, and from different times.
    #[error("{device}: {}", times_differ(.found, .expected))]
    StampMismatch {
        /// The device's name.
        device: String,
        /// The stamp of the block half.
        found: u64,
        /// The stamp of the memory half.
        expected: u64,
    },
    /// The first sector of the block half names no pair.
    #[error(
        "{device}: the identity of the block half, in its first sector, is damaged or missing; if it is the block half of pair {pair}, \
         tandemfs check --repair writes its identity again"
    )]
    IdentityDamaged {
        /// The device's name.
        device: String,
        /// The pair that the memory half names.
        pair: uuid::Uuid,
    },
    /// A change that needs a clean unmount.
    #[error("{device}: was not unmounted cleanly; mount and unmount it first, or run tandemfs check --repair; nothing was changed")]
    NotClean {
        /// The device's name.
        device: String,
    },
    /// The file system lacks a feature.
    #[error("{device}: the file system lacks the feature '{feature}'; tandemfs upgrade adds it")]
    NeedsFeature {
        /// The device's name.
        device: String,
        /// The feature's name.
        feature: &'static str,
    },
    /// `mkfs` found something on the device.
    #[error("{device}: contains {found}; use --force to overwrite it")]
    Occupied {
        /// The device's name.
        device: String,
        /// What was found.
        found: String,
    },
    /// As many layouts as may be held, of one file or in all.
    #[error("{of} has {most} layouts, which is the most; return one first")]
    TooManyLayouts {
        /// How many.
        most: usize,
        /// "the file" or "the file system".
        of: &'static str,
    },
    /// An unmount recalled all layouts, and some were not returned. Nothing was changed.
    #[error("{count} layouts of files are still held; return them, then unmount again")]
    LayoutsHeld {
        /// How many.
        count: usize,
    },
    /// A program may still store to memory that was lent to it: the file system cannot be unmounted.
    #[error(
        "a program may still store to {bytes} bytes of the memory zone that were taken away from it, or is about to; end it, then unmount again"
    )]
    StoresHeld {
        /// How many are kept back.
        bytes: u64,
    },
    /// The file system is being unmounted, or was.
    #[error("the file system is being unmounted")]
    Unmounting,
    /// The name stands for another inode than the caller has seen; it looks again.
    #[error("the name stands for another file by now")]
    Changed,
    /// The operation would have waited, inside of [`crate::no_wait`], and has changed nothing. No user ever sees it: the caller repeats the
    /// operation where it may wait.
    #[error("the operation has to wait")]
    WouldWait,
    /// A label that is too long or holds a NUL.
    #[error("a label has at most 64 B and no NUL")]
    Label,
}

impl Error {
    /// The line that the device could not read, as damage; `None` for other errors. The address is exact to the page.
    pub(crate) fn unreadable(&self) -> Option<Corrupt> {
        match self {
            Self::Device(DeviceError::Poisoned { offset, .. }) => {
                Some(Corrupt::Unreadable { address: LineAddress::new(offset / LINE_BYTES as u64) })
            }
            _ => None,
        }
    }

    /// Whether there is no space: on the device, or below a limit. Who only wanted more than he needs goes on without.
    pub(crate) fn is_for_want_of_space(&self) -> bool {
        matches!(self, Self::NoSpace { .. } | Self::QuotaExceeded { .. })
    }
}

/// Result of a file-system operation.
pub type Result<T> = std::result::Result<T, Error>;

impl From<tandemfs_format::Corrupt> for Error {
    fn from(source: tandemfs_format::Corrupt) -> Self {
        Self::Damaged { inode: tandemfs_format::InodeNumber::new(0), source }
    }
}

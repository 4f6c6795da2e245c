use tandemfs_device::DeviceError;
use tandemfs_format::geometry::GeometryError;
use tandemfs_format::superblock::SuperblockError;
use tandemfs_format::{Corrupt, InodeNumber};

/// Why an operation was not done. Each variant is raised for one reason; doors map them to what their callers expect.
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
    /// An argument without meaning.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// A directory moved into itself.
    #[error("a directory cannot be moved into itself")]
    IntoItself,
    /// 65,000 names already.
    #[error("the file has the largest number of names")]
    TooManyLinks,
    /// Not permitted on this kind of file.
    #[error("not permitted on this kind of file")]
    NotPermitted,
    /// No attribute of that name.
    #[error("the file has no such extended attribute")]
    NoData,
    /// The name of an attribute is empty, or over 255 B.
    #[error("the name of an extended attribute has 1 to 255 B")]
    AttributeNameLength,
    /// The value of an attribute is over 64 KiB.
    #[error("the value of an extended attribute has at most 64 KiB")]
    AttributeTooLarge,
    /// The attributes of one inode are more than the format holds.
    #[error("the file has as many extended attributes as it can have")]
    AttributesFull,
    /// Something that the file system does not have.
    #[error("{0}")]
    NotSupported(&'static str),
    /// Not for this type of file, as the access control lists of new files are for directories only.
    #[error("only directories have a default access control list")]
    NotForFiles,
    /// A zone is full.
    #[error("no space left in the {zone} zone")]
    NoSpace {
        /// "memory" or "block".
        zone: &'static str,
    },
    /// Beyond the largest file.
    #[error("beyond the largest file size")]
    FileTooLarge,
    /// The mount is read-only.
    #[error("the file system is mounted read-only")]
    ReadOnly,
    /// The file system stopped after a failed flush or metadata write (RULES R15).
    #[error("the file system stopped writing: {first_cause}; unmount and check it")]
    Stopped {
        /// What happened first.
        first_cause: String,
    },
    /// The inode is not in use, or was given to another file.
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
    /// File data does not fit its checksum.
    #[error("inode {inode}: data at byte {offset} does not fit its checksum")]
    DamagedData {
        /// The file.
        inode: InodeNumber,
        /// Offset of the damaged sector or log in the file, in bytes.
        offset: u64,
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
    /// The sizes make no file system.
    #[error("{device}: {source}")]
    Geometry {
        /// The device's name.
        device: String,
        /// What is wrong.
        source: GeometryError,
    },
    /// The device is smaller than its superblock says: a truncated image, or half of another pair.
    #[error("{device}: the {zone} zone has {found} B, its superblock says {expected} B; it was truncated, or belongs to another pair")]
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
    /// A zone was asked to become smaller.
    #[error("{device}: the {zone} zone has {current} B and cannot shrink to {wanted} B; nothing was changed")]
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
    /// A zone was asked to become larger than the device's.
    #[error("{device}: the {zone} zone of the device has {found} B, less than {wanted} B; enlarge the device first")]
    BeyondDevice {
        /// The device's name.
        device: String,
        /// "memory" or "block".
        zone: &'static str,
        /// What the device has, in bytes.
        found: u64,
        /// The size asked for in bytes.
        wanted: u64,
    },
    /// The allocation maps of the new size have no place.
    #[error(
        "{device}: maps of that size need {units} free units of 2 MiB in a row, which the memory zone has not; delete files, or let it grow as well"
    )]
    NoRoomForMaps {
        /// The device's name.
        device: String,
        /// Units in a row.
        units: u64,
    },
    /// The two halves are of different pairs.
    #[error("{device}: the block half is of {found}, the memory half of pair {expected}; name two halves of one pair")]
    PairMismatch {
        /// The device's name.
        device: String,
        /// What the block half says.
        found: String,
        /// What the memory half says.
        expected: uuid::Uuid,
    },
    /// `mkfs` found something on the device.
    #[error("{device}: holds {found}; use --force to overwrite it")]
    Occupied {
        /// The device's name.
        device: String,
        /// What was found.
        found: String,
    },
    /// A label that does not fit.
    #[error("a label has at most 64 B and no NUL")]
    Label,
}

/// Result of a file-system operation.
pub type Result<T> = std::result::Result<T, Error>;

impl From<tandemfs_format::Corrupt> for Error {
    fn from(source: tandemfs_format::Corrupt) -> Self {
        Self::Damaged { inode: tandemfs_format::InodeNumber::new(0), source }
    }
}

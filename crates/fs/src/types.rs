//! Arguments and results of the file system's operations: options, attributes, entries.

use tandemfs_format::geometry::Geometry;
use tandemfs_format::inode::Timestamp;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{InodeNumber, Sector};

/// How to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Write nothing, not even the superblock; a journal is replayed in host memory only.
    pub read_only: bool,
    /// Where writes are split between the byte path and the block path.
    pub threshold: Threshold,
    /// Limit of the host memory for inodes, directory indexes, metadata pages, and file pages, in bytes.
    pub memory_bytes: u64,
    /// Which blocks are written back first.
    pub write_back: WriteBackPolicy,
    /// Write-back starts when less than this share of the data area is free, in percent (RomeFS §3.5.2: 10).
    pub write_back_percent: u8,
    /// Which reads leave copies in spare space of the memory zone.
    pub promote: Promote,
    /// Most bytes to read ahead for a sequential reader; 0 for none.
    pub read_ahead_bytes: u32,
    /// Longest piece of a write that is stored in place on a drive with transactions, in bytes (ByteFS §4.6: 512); 0 for none.
    pub in_place_bytes: u32,
    /// A page that a page cache writes back is written by lines if fewer than this many of its 64 lines changed (ByteFS §4.6: R < 1/8, so
    /// 8); 0 to write all pages whole.
    pub modified_lines: u32,
    /// How changes of metadata become durable.
    pub engine: Engine,
    /// Whether freed sectors are discarded.
    pub discard: Discard,
    /// How much of the memory zone files may take whose home it is.
    pub home_limit: HomeLimit,
    /// Aligned ranges of this many bytes of the memory zone are kept whole as long as other space serves, and files get them where all of
    /// such a range is asked for at once: a power of two from 4 MiB to 1 GiB; 0 for none.
    pub large_extent_bytes: u64,
    /// Where the memory zone lies on several nodes (NUMA): whether each process gets space on a home node of its own (WineFS §3.6).
    pub numa: bool,
    /// How stores reach the media of the memory zone.
    pub update: UpdateMode,
}

impl MountOptions {
    /// The defaults of a mount.
    pub const DEFAULT: Self = Self {
        read_only: false,
        threshold: Threshold::BlockSize,
        memory_bytes: 256 << 20,
        write_back: WriteBackPolicy::MostSpace,
        write_back_percent: 10,
        promote: Promote::Off,
        read_ahead_bytes: 1 << 20,
        in_place_bytes: 512,
        modified_lines: 8,
        engine: Engine::Auto,
        discard: Discard::None,
        home_limit: HomeLimit::Percent(100),
        large_extent_bytes: 0,
        numa: true,
        update: UpdateMode::Auto,
    };
}

impl Default for MountOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Which way stores to the memory zone take to its media (FusionFS §2.1). What is durable does not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpdateMode {
    /// `Adaptive` where the device has media with large lines, else whatever the device layer chooses.
    #[default]
    Auto,
    /// By how large and how hot the bytes are.
    Adaptive,
    /// Always the same way, to compare with.
    Always(Update),
}

/// A way of stores to the media.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// They stay in the CPU's caches until they are evicted, if these survive a power failure.
    InPlace,
    /// The same, in ways of the cache that are reserved for them.
    Pinned,
    /// They are flushed at once.
    Flush,
    /// They go past the caches.
    NonTemporal,
}

/// Where a write is split: whole blocks inside multiples of the threshold go by blocks, the rest by bytes (RomeFS §3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Threshold {
    /// The block size.
    #[default]
    BlockSize,
    /// This many bytes, a multiple of the block size.
    Bytes(u32),
    /// The size at which the latencies of the two paths meet, measured at the mount and lowered as the memory zone fills.
    Auto,
    /// All data by blocks, with read-modify-write (option `threshold=0`).
    BlocksOnly,
}

/// How transactions become durable. Both engines work on the same images, and may alternate from mount to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// By the drive's transactions where it has them, else by the journal.
    #[default]
    Auto,
    /// By the journal in the memory zone (RomeFS §3.6), also on a drive with transactions.
    Journal,
    /// By the drive's transactions (ByteFS §4.6); a drive without transactions is refused.
    Firmware,
}

/// Which zone the blocks of a file lie in, and of what is made in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Home {
    /// The file system chooses.
    #[default]
    Auto,
    /// The memory zone, while it has room.
    Memory,
    /// The block zone.
    Block,
}

impl Home {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Memory, Self::Block];

    /// Its name, as in the extended attribute [`HOME_ATTRIBUTE`](crate::HOME_ATTRIBUTE).
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Memory => "memory",
            Self::Block => "block",
        }
    }

    /// The home of a name.
    pub fn named(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|home| home.name().as_bytes() == name)
    }
}

/// How much of the memory zone files may take whose home it is. What the file system needs besides stays free, whatever the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HomeLimit {
    /// A size.
    Bytes(u64),
    /// A share of the zone, 0 to 100.
    Percent(u8),
}

impl HomeLimit {
    /// The limit in a zone of this size.
    pub fn of(self, zone_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.min(zone_bytes),
            Self::Percent(percent) => (u128::from(zone_bytes) * u128::from(percent.min(100)) / 100) as u64,
        }
    }
}

/// Files that are being moved to their homes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HomeMoves {
    /// Bytes that files take in the memory zone.
    pub bytes: u64,
    /// How many they may take.
    pub limit_bytes: u64,
    /// Files that are looked at next.
    pub files: u64,
    /// Files with blocks that could not move: they are in use, or their home has no room. They are tried again.
    pub waiting_files: u64,
    /// Inode numbers that a search for files to move has passed, and all; `None` if none is under way.
    pub search: Option<(u64, u64)>,
}

/// Whether the drive learns which sectors were freed (TRIM).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Discard {
    /// Only when asked ([`FileSystem::trim`](crate::FileSystem::trim)), and when the disk under an image is full.
    #[default]
    None,
    /// In the background, once a second what was freed, at most a quarter of the time.
    Batched,
}

/// Which blocks with data logs are written back first (RomeFS §3.5.2). Ages are kept in a table of fixed size in host memory: blocks that
/// share an entry have the age of the youngest. Blocks that were not used since the mount are the oldest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteBackPolicy {
    /// Blocks that free most of the memory zone.
    #[default]
    MostSpace,
    /// Blocks whose oldest log was written first.
    Oldest,
    /// Blocks that were not read from the drive or written for longest. A read that host memory answers is no use of them.
    Coldest,
}

/// Which data is copied into spare space of the memory zone when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Promote {
    /// Nothing: data is read where it is (RomeFS §3.3).
    #[default]
    Off,
    /// Data that is read again soon (option `promote=on`).
    Hot,
    /// Everything, like a cache in front of the block path (option `promote=always`).
    EveryRead,
}

/// Sizes that a file system shall grow to. If neither is given: to the sizes of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Growth {
    /// Size of the memory zone, in bytes; rounded down to units of 2 MiB.
    pub memory_bytes: Option<u64>,
    /// Size of the block zone, in bytes; rounded down to sectors.
    pub block_bytes: Option<u64>,
}

/// What a growth in use came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// The sizes before.
    pub before: Geometry,
    /// The sizes now; the same if there was nothing to do.
    pub after: Geometry,
    /// The device has more memory, and the memory zone can grow only while it is not mounted.
    pub is_memory_left: bool,
}

/// How to format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatOptions {
    /// Size of a data block, a power of two from 4 KiB to 1 MiB.
    pub block_bytes: u32,
    /// Checksums of file data.
    pub checksum_kind: ChecksumKind,
    /// Label, up to 64 B.
    pub label: String,
    /// Overwrite whatever is there.
    pub force: bool,
    /// Discard the whole block zone first.
    pub discard: bool,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            block_bytes: 64 << 10,
            checksum_kind: ChecksumKind::Crc32c,
            label: String::new(),
            force: false,
            discard: false,
            root_owner: (0, 0),
        }
    }
}

/// What `stat` shows of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Number.
    pub inode: InodeNumber,
    /// Generation.
    pub generation: u32,
    /// Type and permissions, as in `st_mode`.
    pub mode: u16,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 B.
    pub space_512: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub birth: Timestamp,
    /// It has extended attributes, access control lists among them.
    pub has_extended_attributes: bool,
}

/// Bytes of a file, and where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LentExtent {
    /// Offset in the file, in bytes; a multiple of 4096.
    pub file_offset: u64,
    /// Offset in the memory zone, in bytes; a multiple of 4096.
    pub device_offset: u64,
    /// Length in bytes; the last one may end with the file, in the middle of a page.
    pub bytes: u64,
}

/// A new inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewInode<'a> {
    /// Type and permissions.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device files.
    pub rdev: u32,
    /// Target, for symbolic links (1–4095 B).
    pub target: &'a [u8],
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the operation.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions (the lower twelve bits).
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of data.
    pub mtime: Option<SetTime>,
    /// Last change of the inode (a kernel with a write-back cache sends its own).
    pub ctime: Option<Timestamp>,
    /// Clear set-user-id, and set-group-id of an executable, as a change of data or owner does.
    pub kill_set_id: bool,
    /// Clear set-group-id of a file even if it is not executable: the caller is not in its group.
    pub kill_set_group_id: bool,
}

/// Whether an extended attribute may, must or must not exist when it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetAttributeMode {
    /// It may exist.
    #[default]
    Any,
    /// It must not exist (`XATTR_CREATE`). Ignored for access control lists, as in Linux.
    Create,
    /// It must exist (`XATTR_REPLACE`). Ignored for access control lists.
    Replace,
}

/// How an extended attribute is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetExtendedAttribute {
    /// Whether it may exist.
    pub mode: SetAttributeMode,
    /// Setting an access control list clears the set-group-id bit: the caller is not in the file's group and has no right to keep it.
    pub kill_set_group_id: bool,
}

/// An entry that `read_directory` yields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Inode.
    pub inode: InodeNumber,
    /// Bits 12–15 of the mode.
    pub file_type: u8,
    /// Where to go on after this entry. Valid while the entry exists, also across a remount. 1 and 2 are `.` and `..`.
    pub cookie: u64,
    /// The name.
    pub name: &'a [u8],
}

/// How `rename` treats the target name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenameMode {
    /// Replace it.
    #[default]
    Replace,
    /// Fail if it exists.
    NoReplace,
    /// Swap the two names.
    Exchange,
}

/// What `write` does besides storing the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Keep the times: late write-back from a kernel's cache (RULES R20).
    pub keep_times: bool,
    /// Write at the end of the file, whatever the offset.
    pub append: bool,
    /// Clear set-user-id, and set-group-id of an executable.
    pub kill_set_id: bool,
    /// The bytes come from a page cache that writes whole pages back. A page with an older copy in memory is compared with it; if few lines
    /// changed, only those are written (ByteFS §4.6, RULES R20).
    pub compare: bool,
    /// The writer has no cache: what lengthens a file by a page or more, or begins it, is kept in host memory for the next reader.
    pub kept: bool,
}

/// What `read` does besides returning the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadOptions {
    /// Who keeps the bytes.
    pub kept: Kept,
}

/// Who keeps bytes that were read, for the next read of them. A read is answered from what is kept here, whatever it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kept {
    /// The file system, in host memory: the reader has no cache.
    Here,
    /// A page cache, which may write them back changed: the file system keeps whole pages too, to compare them then.
    ToCompare,
    /// Nobody, or a page cache that sends nothing back: the file system does not.
    #[default]
    Nowhere,
}

/// What `allocate` does with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocateMode {
    /// Gives it space; parts that were not written read as zeros.
    Allocate {
        /// The size stays as it is, even if the range ends beyond it.
        keep_size: bool,
    },
    /// Makes it a hole: it reads as zeros, and its whole blocks are freed. The size stays.
    Punch,
    /// Makes it read as zeros and gives it space.
    Zero {
        /// The size stays as it is, even if the range ends beyond it.
        keep_size: bool,
    },
    /// Removes it from the file: the data behind it moves to its start. Whole blocks, ending before the end of the file.
    Collapse,
    /// Inserts a hole of this length at its start: the data from there on moves back. Whole blocks, starting before the end of the file.
    Insert,
    /// Gives it space of its own. Files never share space here, so it is the same as `Allocate`.
    Unshare {
        /// The size stays as it is, even if the range ends beyond it.
        keep_size: bool,
    },
}

/// What `seek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// Bytes that may have been written.
    Data,
    /// A hole, or the end of the file.
    Hole,
}

/// How `layout` treats data logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayoutOptions {
    /// Write data logs of the range back first, so that their blocks have sectors. Blocks that find no space for that, are damaged, or are
    /// written meanwhile keep their logs. No effect on a read-only mount.
    pub settle: bool,
}

/// Where the bytes of an extent are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutPlace {
    /// Nowhere: they are zeros.
    Hole,
    /// Nowhere yet: they are zeros, whatever the sectors hold, which may be bytes of removed files. The sectors are reserved for them.
    Unwritten {
        /// The first sector, as the drive's block path counts them.
        sector: Sector,
    },
    /// In these sectors of the block zone.
    Sectors {
        /// The first sector, as the drive's block path counts them.
        sector: Sector,
    },
    /// In data logs, at least in part: only `read` knows them. The layout promises nothing about their place.
    ThroughFileSystem,
}

/// A range of a file whose bytes are in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutExtent {
    /// Where it starts in the file, in bytes; a multiple of the sector.
    pub file_offset: u64,
    /// Its length, a multiple of the sector.
    pub bytes: u64,
    /// Where its bytes are.
    pub place: LayoutPlace,
}

/// Space of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZoneSpace {
    /// Total, in bytes.
    pub total_bytes: u64,
    /// Free, in bytes.
    pub free_bytes: u64,
    /// Free for growth: without the transient room (RULES R14), in bytes.
    pub available_bytes: u64,
    /// Taken by data logs, in bytes.
    pub data_log_bytes: u64,
    /// Memory zone: extents of files.
    pub extent_bytes: u64,
    /// Promoted copies, in bytes: free for any other use.
    pub promoted_bytes: u64,
}

/// What `statfs` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// The memory zone.
    pub memory: ZoneSpace,
    /// The block zone.
    pub block: ZoneSpace,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Files that could still be made, with names of up to 47 B.
    pub inodes_free: u64,
}

/// How far write-back is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteBackReport {
    /// Share of the memory zone's room for data logs that is free, in percent.
    pub free_percent: u64,
    /// It writes back when less than this is free, in percent.
    pub limit_percent: u64,
}

/// A zone with little space left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortZone {
    /// `memory` or `block`.
    pub zone: &'static str,
    /// What it means.
    pub what: &'static str,
    /// What helps.
    pub advice: &'static str,
}

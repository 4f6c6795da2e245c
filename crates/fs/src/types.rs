//! What callers of the file system say and hear: options, attributes, entries.

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::Timestamp;
use tandemfs_format::superblock::ChecksumKind;

/// How to mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Write nothing, not even the superblock; a journal is replayed in host memory only.
    pub read_only: bool,
    /// Where requests are split between the paths.
    pub threshold: Threshold,
    /// Bound of the host memory for metadata pages and directory indexes, in bytes.
    pub memory_bytes: u64,
    /// Which block is written back first.
    pub write_back: WriteBackPolicy,
    /// Blocks are written back when less than this share of the data area is free, in percent (RomeFS §3.5.2: 10).
    pub write_back_percent: u8,
    /// Copies of what is read often, in spare space of the memory zone.
    pub promote: Promote,
    /// Most bytes read ahead of a sequential reader; 0 for none.
    pub read_ahead_bytes: u32,
    /// Longest piece of a write that is stored in place, on a drive with transactions, in bytes (ByteFS §4.6: 512); 0 for none.
    pub in_place_bytes: u32,
    /// A page that comes back from a page cache goes by lines where fewer than so many of its 64 have changed (ByteFS §4.6: R < 1/8, so 8);
    /// 0 to write all pages as they come.
    pub modified_lines: u32,
    /// How changes of metadata become durable.
    pub engine: Engine,
}

impl MountOptions {
    /// What a mount that was told nothing does.
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
    };
}

impl Default for MountOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Where a write is split: whole blocks inside multiples of the threshold go by blocks, the rest by bytes (RomeFS §3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Threshold {
    /// The block size.
    #[default]
    BlockSize,
    /// This many bytes, a multiple of the block size.
    Bytes(u32),
    /// Where the latencies of the two paths meet, measured at the mount and moved as the memory zone fills.
    Auto,
    /// Everything by blocks, read, modified and written: to compare with.
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
    /// By the drive's transactions (ByteFS §4.6); a drive without is refused.
    Firmware,
}

/// Which blocks with data logs are written back first (RomeFS §3.5.2). Ages are in a table of fixed size in host memory: blocks that share
/// an entry look as young as the youngest of them, and what was not used since the mount is older than everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteBackPolicy {
    /// Those that free most of the memory zone.
    #[default]
    MostSpace,
    /// Those whose oldest log was written first.
    Oldest,
    /// Those that nobody has read or written for longest.
    Coldest,
}

/// What is copied into spare space of the memory zone when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Promote {
    /// Nothing: data is read where it is (RomeFS §3.3).
    #[default]
    Off,
    /// What is read again soon.
    Hot,
    /// Everything, as a cache before the block path would: to compare with.
    EveryRead,
}

/// What a file system shall grow to. Where neither size is given: to what its device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Growth {
    /// Size of the memory zone, in bytes; rounded down to units of 2 MiB.
    pub memory_bytes: Option<u64>,
    /// Size of the block zone, in bytes; rounded down to sectors.
    pub block_bytes: Option<u64>,
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
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { block_bytes: 64 << 10, checksum_kind: ChecksumKind::Crc32c, label: String::new(), force: false, root_owner: (0, 0) }
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
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in 512 B.
    pub sectors: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub birth: Timestamp,
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

/// What to change of an inode; `None` leaves it.
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
    /// Clear set-group-id of a file, also of one that is not executable: who changes it is not in its group.
    pub kill_set_group_id: bool,
}

/// Whether an extended attribute may, must or must not be there when it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetAttributeMode {
    /// It may be.
    #[default]
    Any,
    /// It must not (`XATTR_CREATE`). Access control lists do not ask, as in Linux.
    Create,
    /// It must (`XATTR_REPLACE`). Access control lists do not ask.
    Replace,
}

/// How an extended attribute is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetExtendedAttribute {
    /// Whether it may be there.
    pub mode: SetAttributeMode,
    /// An access control list takes the set-group-id bit away: its setter is not in the file's group and has no right to leave it.
    pub kill_set_group_id: bool,
}

/// An entry that `read_directory` yields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Inode.
    pub inode: InodeNumber,
    /// Bits 12–15 of the mode.
    pub file_type: u8,
    /// Where to go on after this entry. Stable while the entry lives, also over a remount. 1 and 2 are `.` and `..`.
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

/// What `write` does beside the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Leave times alone: late write-back from a kernel's cache (RULES R20).
    pub keep_times: bool,
    /// Write at the end of the file, whatever the offset.
    pub append: bool,
    /// Clear set-user-id, and set-group-id of an executable.
    pub kill_set_id: bool,
    /// The bytes come from a page cache that gives whole pages back: those of which an older copy is at hand are compared with it, and few
    /// changed lines are written alone (ByteFS §4.6, RULES R20).
    pub compare: bool,
}

/// What `read` does beside the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadOptions {
    /// Keep copies of whole pages to compare with: a page cache takes these bytes, and may give them back changed.
    pub keep_pages: bool,
}

/// What `allocate` does with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocateMode {
    /// Gives it space, which reads as zeros where nothing was written.
    Allocate {
        /// The size stays what it is, also where the range ends behind it.
        keep_size: bool,
    },
    /// Makes it a hole: it reads as zeros, and whole blocks of it come back. The size stays.
    Punch,
    /// Makes it read as zeros and gives it space.
    Zero {
        /// The size stays what it is, also where the range ends behind it.
        keep_size: bool,
    },
    /// Takes it out of the file: what lies behind moves to its start. Whole blocks, ending before the end of the file.
    Collapse,
    /// Puts a hole of this length before its start: what lies there and behind moves. Whole blocks, starting before the end of the file.
    Insert,
    /// Gives it space of its own. No file shares space with another here, so it is the same as `Allocate`.
    Unshare {
        /// The size stays what it is, also where the range ends behind it.
        keep_size: bool,
    },
}

/// What `seek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTo {
    /// Bytes that may have been written.
    Data,
    /// Bytes that were not, or the end of the file.
    Hole,
}

/// Space of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZoneSpace {
    /// All of it, in bytes.
    pub total_bytes: u64,
    /// Free, in bytes.
    pub free_bytes: u64,
    /// Free for growth: without the transient room (RULES R14), in bytes.
    pub available_bytes: u64,
    /// Taken by data logs, in bytes.
    pub data_log_bytes: u64,
    /// Copies of what is read often, in bytes: free for whoever needs it.
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
    /// Inodes that could still be made.
    pub inodes_free: u64,
}

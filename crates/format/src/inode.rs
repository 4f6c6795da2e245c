//! On-device inodes: a hot line (fields that change with every write) and a cold line.

use zerocopy::{FromBytes, IntoBytes};

use crate::attributes::AttributePointer;
use crate::checksum::Place;
use crate::integer::{U16, U32, U40, U48, U64};
use crate::mapping::RecordBytes;
use crate::{Corrupt, EMPTY_LINE, InodeNumber, Line, LineAddress, PairSeed};

/// Most names that one file has.
pub const LINK_MAX: u32 = 65_000;
/// Longest symbolic link that lies inside the inode, in bytes; a longer one is file data.
pub const INLINE_LINK_MAX: usize = 20;
/// Lines of an inode: the hot one and the cold one.
pub const INODE_LINES: u64 = 2;
/// Largest file, in bytes.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// State bits of the hot line.
pub mod state {
    /// The inode is in use. With `nlink` 0 it is an orphan (RULES R12).
    pub const IN_USE: u16 = 1 << 0;
    /// Bytes behind the end of the file in its last sector may be stale (RULES R13); growing the file zeroes them first.
    pub const TAIL_STALE: u16 = 1 << 1;
    /// All bits with a meaning.
    pub const KNOWN: u16 = IN_USE | TAIL_STALE;
}

/// File flags of the cold line.
pub mod flags {
    /// New extents go to the memory zone while it has room; inherited from the directory. Only with the feature *memory home*.
    pub const HOME_MEMORY: u32 = 1 << 0;
    /// New extents go to the block zone; inherited from the directory. Only with the feature *memory home*, never with [`HOME_MEMORY`].
    pub const HOME_BLOCK: u32 = 1 << 1;
    /// Each 2 MiB is to lie in an aligned extent; files inherit it from their directory, directories do not. Only with the feature *memory
    /// home*.
    pub const ALIGNED: u32 = 1 << 2;
    /// What is made in the directory has its project, and directories have this flag too; nothing of another project is moved into it or
    /// linked there. Only with the feature *quota*.
    pub const PROJECT_INHERIT: u32 = 1 << 3;
    /// What directories inherit from theirs, of the flags of homes.
    pub const INHERITED_BY_DIRECTORIES: u32 = HOME_MEMORY | HOME_BLOCK;
    /// What files inherit from their directory.
    pub const INHERITED_BY_FILES: u32 = OF_HOMES;
    /// Bits that need the feature *memory home*.
    pub const OF_HOMES: u32 = HOME_MEMORY | HOME_BLOCK | ALIGNED;
    /// Bits that need the feature *quota*.
    pub const OF_QUOTA: u32 = PROJECT_INHERIT;
    /// All bits with a meaning.
    pub const KNOWN: u32 = OF_HOMES | OF_QUOTA;
}

persistent! {
    /// The line of an inode that every change of its data touches.
    pub struct InodeHotLine [64] {
        /// CRC-32C, see *Checksums*.
        crc: U32 = 0,
        /// Type and permissions, as in `st_mode`.
        mode: U16 = 4,
        /// State bits.
        state: U16 = 6,
        /// Names.
        nlink: U32 = 8,
        /// Distinguishes files that had the same number; seeds the checksums of the lines that the inode owns.
        generation: U32 = 12,
        /// Size in bytes.
        size: U64 = 16,
        /// Space taken in either zone, in units of 512 B.
        space_512: U64 = 24,
        /// Time of the last read.
        atime: U64 = 32,
        /// Time of the last change of the data.
        mtime: U64 = 40,
        /// Time of the last change of the inode.
        ctime: U64 = 48,
        /// Raised with every change.
        change_count: U64 = 56,
    }
}

persistent! {
    /// The line of an inode that rarely changes.
    pub struct InodeColdLine [64] {
        /// CRC-32C, see *Checksums*.
        crc: U32 = 0,
        /// Owner.
        uid: U32 = 4,
        /// Group.
        gid: U32 = 8,
        /// Project, for quota.
        project: U32 = 12,
        /// File flags: [`flags`].
        flags: U32 = 16,
        /// Time of birth.
        birth: U64 = 20,
        /// Directory that held the newest name: `..` of a directory, and look-up by handle.
        parent: U48 = 28,
        /// First line of the extended attributes; 0 none.
        attributes: U40 = 34,
        /// Class of the piece that starts there.
        attributes_class: u8 = 39,
        /// Mapping: record of block 0, or pointer to the tree's root page; device number; or a short symbolic link.
        root: [u8; 20] = 40,
        /// Zero.
        zero: [u8; 4] = 60,
    }
}

/// An on-device time: 34 bits of seconds from 1901-12-13T20:45:52Z (-2^31), up to 2446; 30 bits of nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Earliest time, in seconds since 1970.
    pub const SECONDS_MIN: i64 = -(1 << 31);
    /// Latest time, in seconds since 1970.
    pub const SECONDS_MAX: i64 = Self::SECONDS_MIN + (1 << 34) - 1;

    /// The word on the medium; times out of range are clamped, as Linux does.
    pub fn encode(self) -> u64 {
        let seconds = (self.seconds.clamp(Self::SECONDS_MIN, Self::SECONDS_MAX) - Self::SECONDS_MIN) as u64;
        seconds << 30 | u64::from(self.nanoseconds.min(999_999_999))
    }

    /// The time of a word.
    pub fn decode(word: u64) -> Self {
        Self { seconds: (word >> 30) as i64 + Self::SECONDS_MIN, nanoseconds: (word & ((1 << 30) - 1)) as u32 }
    }
}

/// An inode in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Type and permissions.
    pub mode: u16,
    /// State bits of [`state`].
    pub state: u16,
    /// Names.
    pub nlink: u32,
    /// Generation.
    pub generation: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in 512 B.
    pub space_512: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Change count.
    pub change_count: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
    /// Flags.
    pub flags: u32,
    /// Birth.
    pub birth: Timestamp,
    /// Directory of the newest name.
    pub parent: InodeNumber,
    /// Where the extended attributes are.
    pub attributes: AttributePointer,
    /// Mapping root, device number or short link.
    pub root: [u8; 20],
}

/// File types, the upper bits of `mode`.
pub mod file_type {
    /// Mask of the type.
    pub const MASK: u16 = 0o170_000;
    /// FIFO.
    pub const FIFO: u16 = 0o010_000;
    /// Character device.
    pub const CHARACTER: u16 = 0o020_000;
    /// Directory.
    pub const DIRECTORY: u16 = 0o040_000;
    /// Block device.
    pub const BLOCK: u16 = 0o060_000;
    /// Regular file.
    pub const REGULAR: u16 = 0o100_000;
    /// Symbolic link.
    pub const SYMLINK: u16 = 0o120_000;
    /// Socket.
    pub const SOCKET: u16 = 0o140_000;
    /// All of them.
    pub const ALL: [u16; 7] = [FIFO, CHARACTER, DIRECTORY, BLOCK, REGULAR, SYMLINK, SOCKET];
}

impl Inode {
    /// The type bits of the mode.
    pub fn file_type(&self) -> u16 {
        self.mode & file_type::MASK
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.file_type() == file_type::DIRECTORY
    }

    /// Whether `root` is a mapping: of a directory, a regular file, or a long symbolic link.
    pub fn has_mapping(&self) -> bool {
        match self.file_type() {
            file_type::DIRECTORY | file_type::REGULAR => true,
            file_type::SYMLINK => self.size > INLINE_LINK_MAX as u64,
            _ => false,
        }
    }

    /// The mapping's root record.
    pub fn root_record(&self) -> RecordBytes {
        RecordBytes::from_bytes(self.root)
    }

    /// Device number of a device file.
    pub fn rdev(&self) -> u32 {
        u32::from_le_bytes([self.root[0], self.root[1], self.root[2], self.root[3]])
    }

    /// The place of one of the two lines of an inode.
    pub fn place(pair: PairSeed, number: InodeNumber, address: LineAddress) -> Place {
        Place { pair, address, inode: number, generation: 0 }
    }

    /// The sealed hot line.
    pub fn encode_hot(&self, place: &Place) -> Line {
        let bytes = InodeHotLine {
            crc: 0.into(),
            mode: self.mode.into(),
            state: self.state.into(),
            nlink: self.nlink.into(),
            generation: self.generation.into(),
            size: self.size.into(),
            space_512: self.space_512.into(),
            atime: self.atime.encode().into(),
            mtime: self.mtime.encode().into(),
            ctime: self.ctime.encode().into(),
            change_count: self.change_count.into(),
        };
        seal(place, bytes.as_bytes())
    }

    /// The sealed cold line.
    pub fn encode_cold(&self, place: &Place) -> Line {
        let bytes = InodeColdLine {
            crc: 0.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            project: self.project.into(),
            flags: self.flags.into(),
            birth: self.birth.encode().into(),
            parent: U48::new(self.parent.get()),
            attributes: U40::new(self.attributes.address.number()),
            attributes_class: self.attributes.class,
            root: self.root,
            zero: [0; 4],
        };
        seal(place, bytes.as_bytes())
    }

    /// Whether a slot that does not verify is a free one with a wrong bit: an inode in use has more than one bit in each of its lines.
    pub fn was_free(hot: &Line, cold: &Line) -> bool {
        hot.iter().chain(cold).map(|byte| byte.count_ones()).sum::<u32>() == 1
    }

    /// Verifies the two lines; `None` where the slot is free.
    pub fn decode(pair: PairSeed, number: InodeNumber, address: LineAddress, hot: &Line, cold: &Line) -> Result<Option<Self>, Corrupt> {
        if *hot == EMPTY_LINE && *cold == EMPTY_LINE {
            return Ok(None);
        }
        let field = |field, found| Corrupt::Field { address, field, found };
        // An empty line verifies anywhere, so an inode with one empty line is damaged.
        if *hot == EMPTY_LINE {
            return Err(field("state", 0));
        }
        if *cold == EMPTY_LINE {
            return Err(field("cold line", 0));
        }
        Self::place(pair, number, address).verify(hot)?;
        Self::place(pair, number, address.nth(1)).verify(cold)?;
        let (Ok(hot), Ok(cold)) = (InodeHotLine::read_from_bytes(hot), InodeColdLine::read_from_bytes(cold)) else {
            unreachable!("a line has the size of a line")
        };
        let inode = Self {
            mode: hot.mode.get(),
            state: hot.state.get(),
            nlink: hot.nlink.get(),
            generation: hot.generation.get(),
            size: hot.size.get(),
            space_512: hot.space_512.get(),
            atime: Timestamp::decode(hot.atime.get()),
            mtime: Timestamp::decode(hot.mtime.get()),
            ctime: Timestamp::decode(hot.ctime.get()),
            change_count: hot.change_count.get(),
            uid: cold.uid.get(),
            gid: cold.gid.get(),
            project: cold.project.get(),
            flags: cold.flags.get(),
            birth: Timestamp::decode(cold.birth.get()),
            parent: InodeNumber::new(cold.parent.get()),
            attributes: AttributePointer { address: LineAddress::new(cold.attributes.get()), class: cold.attributes_class },
            root: cold.root,
        };
        if inode.state & state::IN_USE == 0 || inode.state & !state::KNOWN != 0 {
            return Err(field("state", inode.state.into()));
        }
        if !file_type::ALL.contains(&inode.file_type()) {
            return Err(field("mode", inode.mode.into()));
        }
        if inode.size > FILE_BYTES_MAX {
            return Err(field("size", inode.size));
        }
        if inode.nlink > LINK_MAX && !inode.is_directory() {
            return Err(field("nlink", inode.nlink.into()));
        }
        Ok(Some(inode))
    }
}

fn seal(place: &Place, bytes: &[u8]) -> Line {
    let mut line = EMPTY_LINE;
    line.copy_from_slice(bytes);
    place.seal(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode() -> Inode {
        Inode {
            mode: file_type::REGULAR | 0o644,
            state: state::IN_USE,
            nlink: 1,
            generation: 9,
            size: 70_000,
            space_512: 144,
            atime: Timestamp { seconds: -5, nanoseconds: 7 },
            mtime: Timestamp { seconds: 1_800_000_000, nanoseconds: 999_999_999 },
            ctime: Timestamp::default(),
            change_count: 4,
            uid: 1000,
            gid: 100,
            project: 0,
            flags: 0,
            birth: Timestamp::default(),
            parent: InodeNumber::ROOT,
            attributes: AttributePointer { address: LineAddress::new(77), class: 0 },
            root: [0; 20],
        }
    }

    #[test]
    fn inode_round_trips_at_its_own_number_only() {
        let pair = PairSeed::new(uuid::Uuid::from_u128(1));
        let (number, address) = (InodeNumber::new(5), LineAddress::new(32_778));
        let hot = inode().encode_hot(&Inode::place(pair, number, address));
        let cold = inode().encode_cold(&Inode::place(pair, number, address.nth(1)));
        assert_eq!(Inode::decode(pair, number, address, &hot, &cold), Ok(Some(inode())));
        assert!(Inode::decode(pair, InodeNumber::new(6), address, &hot, &cold).is_err());
        assert!(Inode::decode(pair, number, address, &cold, &hot).is_err());
        assert_eq!(Inode::decode(pair, number, address, &EMPTY_LINE, &EMPTY_LINE), Ok(None));
        assert!(Inode::decode(pair, number, address, &hot, &EMPTY_LINE).is_err(), "half an inode");
        assert!(Inode::decode(pair, number, address, &EMPTY_LINE, &cold).is_err(), "half an inode");
        let mut bit = EMPTY_LINE;
        bit[7] = 16;
        assert!(Inode::was_free(&bit, &EMPTY_LINE) && Inode::was_free(&EMPTY_LINE, &bit));
        assert!(!Inode::was_free(&bit, &bit) && !Inode::was_free(&hot, &EMPTY_LINE) && !Inode::was_free(&EMPTY_LINE, &EMPTY_LINE));
    }

    #[test]
    fn times_reach_from_1901_to_2446() {
        for seconds in [Timestamp::SECONDS_MIN, -1, 0, 1, Timestamp::SECONDS_MAX] {
            let time = Timestamp { seconds, nanoseconds: 123_456_789 };
            assert_eq!(Timestamp::decode(time.encode()), time);
        }
        let beyond = Timestamp { seconds: i64::MAX, nanoseconds: 0 };
        assert_eq!(Timestamp::decode(beyond.encode()).seconds, Timestamp::SECONDS_MAX);
    }
}

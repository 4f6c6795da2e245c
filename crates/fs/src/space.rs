//! Names of space in both zones, for the allocators (`alloc/`) and for transactions that take and free space (`journal/tx.rs`).

use std::fmt;

use tandemfs_format::segment::Region;
use tandemfs_format::{DataAddress, LineAddress, Sector};

/// Consecutive sectors: the first one, and their number.
pub(crate) type Run = (Sector, u64);

/// Space of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// Lines of a region: metadata.
    Region { region: Region, address: LineAddress, lines: u64 },
    /// Lines of the data area: a data-log slot.
    Slot { address: LineAddress, lines: u64 },
    /// Pages of the data area: an extent of a file.
    Pages { address: LineAddress, count: u64 },
    /// Sectors of the block zone.
    Sectors { sector: Sector, count: u64 },
}

/// Where new extents of a file are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zone {
    /// Sectors of the block zone.
    Block,
    /// Pages of the memory zone.
    Memory,
}

impl Zone {
    /// The zone of an address.
    pub(crate) fn of(at: DataAddress) -> Self {
        match at {
            DataAddress::Sector(_) => Self::Block,
            DataAddress::Page(_) => Self::Memory,
        }
    }
}

pub(crate) fn region(region: Region, address: LineAddress, lines: u64) -> Space {
    Space::Region { region, address, lines }
}

pub(crate) fn slot(address: LineAddress, lines: u64) -> Space {
    Space::Slot { address, lines }
}

/// An extent of a file, in whichever zone.
pub(crate) fn data(at: DataAddress, count: u64) -> Space {
    match at {
        DataAddress::Sector(sector) => Space::Sectors { sector, count },
        DataAddress::Page(address) => Space::Pages { address, count },
    }
}

pub(crate) fn sectors(sector: Sector, count: u64) -> Space {
    Space::Sectors { sector, count }
}

/// Kinds of space, as a set: what a damaged line may hide.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

impl Kinds {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const DENTRIES: Self = Self(1);
    pub(crate) const MAPPINGS: Self = Self(2);
    pub(crate) const LEAVES: Self = Self(4);
    pub(crate) const ATTRIBUTES: Self = Self(8);
    /// Slots of data logs, and pages of files: the data area.
    pub(crate) const SLOTS: Self = Self(16);
    pub(crate) const SECTORS: Self = Self(32);
    /// What the mapping of a directory names.
    pub(crate) const OF_DIRECTORY: Self = Self::DENTRIES.and(Self::MAPPINGS);
    /// What the mapping of a file or of a link names.
    pub(crate) const OF_FILE: Self = Self::MAPPINGS.and(Self::LEAVES).and(Self::SLOTS).and(Self::SECTORS);
    /// What an inode names.
    pub(crate) const OF_INODE: Self = Self::OF_DIRECTORY.and(Self::OF_FILE).and(Self::ATTRIBUTES);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The kind of the lines of a region; none for inodes, whose slots name themselves.
    pub(crate) fn of_region(region: Region) -> Self {
        match region {
            Region::Inodes => Self::NONE,
            Region::Dentries => Self::DENTRIES,
            Region::Mappings => Self::MAPPINGS,
            Region::Leaves => Self::LEAVES,
            Region::Attributes => Self::ATTRIBUTES,
        }
    }
}

impl fmt::Display for Space {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region { region, address, lines } => write!(formatter, "{lines} lines from {address}, region {}", region.number()),
            Self::Slot { address, lines } => write!(formatter, "a slot of {lines} lines at {address}"),
            Self::Pages { address, count } => write!(formatter, "{count} pages from {address}"),
            Self::Sectors { sector, count } => write!(formatter, "{count} sectors from {sector}"),
        }
    }
}

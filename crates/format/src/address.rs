//! One type for each address space. None of them has arithmetic operators. Addresses come from [`crate::geometry::Geometry`], from a
//! verified persistent pointer, or from an allocator.

use std::fmt;

use crate::{LINE_BYTES, PAGE_LINES, SECTOR_BYTES, UNIT_LINES};

/// A line of the memory zone, in units of 64 B from the zone's start. Zero (the superblock) is never an address of metadata, so zero
/// means no pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineAddress(u64);

impl LineAddress {
    /// The line with this number.
    pub const fn new(line: u64) -> Self {
        Self(line)
    }

    /// The line's number.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Distance from the start of the memory zone, in bytes.
    pub const fn offset_bytes(self) -> u64 {
        self.0 * LINE_BYTES as u64
    }

    /// The line `lines` further on, within the structure that starts here.
    pub const fn nth(self, lines: u64) -> Self {
        Self(self.0 + lines)
    }

    /// The first line of the 4 KiB page that holds this line.
    pub const fn page(self) -> Self {
        Self(self.0 & !(PAGE_LINES - 1))
    }

    /// Position in its 4 KiB page, 0–63.
    pub const fn index_in_page(self) -> usize {
        (self.0 & (PAGE_LINES - 1)) as usize
    }

    /// The 2 MiB unit that holds this line.
    pub const fn unit(self) -> u64 {
        self.0 / UNIT_LINES
    }
}

impl fmt::Display for LineAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}

/// A sector of the block zone, counted in 4 KiB from the zone's start. Sector zero holds the pair's identity, so zero is no pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(u64);

impl Sector {
    /// The sector with this number.
    pub const fn new(sector: u64) -> Self {
        Self(sector)
    }

    /// The sector's number.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Distance from the start of the block zone, in bytes.
    pub const fn offset_bytes(self) -> u64 {
        self.0 * SECTOR_BYTES as u64
    }

    /// The sector `sectors` further on, within the extent that starts here.
    pub const fn nth(self, sectors: u64) -> Self {
        Self(self.0 + sectors)
    }
}

impl fmt::Display for Sector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

/// Where file data lies: pieces of 4 KiB in a row, sectors of the block zone or pages of the memory zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataAddress {
    /// The first sector.
    Sector(Sector),
    /// The first line of the first page, a multiple of 64.
    Page(LineAddress),
}

impl DataAddress {
    /// The address `pieces` sectors or pages further on, within the extent that starts here.
    pub const fn nth(self, pieces: u64) -> Self {
        match self {
            Self::Sector(sector) => Self::Sector(sector.nth(pieces)),
            Self::Page(page) => Self::Page(page.nth(pieces * PAGE_LINES)),
        }
    }

    /// The sector, if it is one.
    pub const fn sector(self) -> Option<Sector> {
        match self {
            Self::Sector(sector) => Some(sector),
            Self::Page(_) => None,
        }
    }

    /// The first line of the page, if it is one.
    pub const fn page(self) -> Option<LineAddress> {
        match self {
            Self::Sector(_) => None,
            Self::Page(page) => Some(page),
        }
    }
}

impl fmt::Display for DataAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sector(sector) => write!(formatter, "sector {sector}"),
            Self::Page(page) => write!(formatter, "page {page}"),
        }
    }
}

/// The number of an inode; also its slot in the inode region. Slot 0 is never used, the root directory is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNumber(u64);

impl InodeNumber {
    /// The root directory.
    pub const ROOT: Self = Self(1);

    /// The inode with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for InodeNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

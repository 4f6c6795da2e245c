//! Names of space in both zones, for the allocators (`alloc/`) and for transactions that take and free space (`journal/tx.rs`).

use std::fmt;

use tandemfs_format::segment::Region;
use tandemfs_format::{LineAddress, Sector};

/// Space of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// Lines of a region: metadata.
    Region { region: Region, address: LineAddress, lines: u64 },
    /// Lines of the data area: a data-log slot.
    Slot { address: LineAddress, lines: u64 },
    /// Sectors of the block zone.
    Sectors { sector: Sector, count: u64 },
}

pub(crate) fn region(region: Region, address: LineAddress, lines: u64) -> Space {
    Space::Region { region, address, lines }
}

pub(crate) fn slot(address: LineAddress, lines: u64) -> Space {
    Space::Slot { address, lines }
}

pub(crate) fn sectors(sector: Sector, count: u64) -> Space {
    Space::Sectors { sector, count }
}

impl fmt::Display for Space {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region { region, address, lines } => write!(formatter, "{lines} lines from {address}, region {}", region.number()),
            Self::Slot { address, lines } => write!(formatter, "a slot of {lines} lines at {address}"),
            Self::Sectors { sector, count } => write!(formatter, "{count} sectors from {sector}"),
        }
    }
}

//! Every persistent byte of TandemFS: structures, magic numbers, checksums, geometry. No I/O.
//!
//! All persistent types are in this crate. Their integers are little-endian, and their names say what they are on the medium
//! (`InodeHotLine`, `DentryHeadLine`). The corresponding types in host memory have plain names and live with their users (`Record`,
//! `LogEntry`). `docs/FORMAT.md` has the only table of persistent types; a test compares each of its rows with the code.
//!
//! The unit of the memory zone is the *line* of 64 B: a checksum covers a line, a lock owns lines (RULES R5), and a journal record contains
//! lines. The unit of the block zone is the *sector* of 4 KiB.
//!
//! *Architecture invariant:* this crate does no I/O and allocates no device space; it defines what bytes mean.

#![forbid(unsafe_code)]

#[macro_use]
mod layout;

pub mod address;
pub mod allocation_map;
pub mod attributes;
pub mod checksum;
pub mod dentry;
pub mod error_counters;
pub mod geometry;
pub mod hole_lines;
pub mod identity;
pub mod inode;
pub mod integer;
pub mod journal;
pub mod lent_room;
pub mod linearity;
pub mod mapping;
pub mod quota;
pub mod run;
pub mod segment;
pub mod size;
pub mod space;
pub mod superblock;

pub use address::{DataAddress, InodeNumber, LineAddress, Sector};
pub use checksum::{PairSeed, Place};
pub use layout::{Field, TABLES, Table};

/// Size of a line, the unit of the memory zone, in bytes.
pub const LINE_BYTES: usize = 64;
/// Size of a metadata page (dentries, mapping) and of the largest data-log slot, in bytes.
pub const PAGE_BYTES: usize = 4096;
/// Lines in a metadata page.
pub const PAGE_LINES: u64 = (PAGE_BYTES / LINE_BYTES) as u64;
/// Size of a sector, the unit of the block zone, in bytes.
pub const SECTOR_BYTES: usize = 4096;
/// Size of a unit, the granule in which the memory zone is given to regions and to the data area, in bytes (a huge page).
pub const UNIT_BYTES: u64 = 2 << 20;
/// Lines in a unit; also the bits of one piece of an allocation map.
pub const UNIT_LINES: u64 = UNIT_BYTES / LINE_BYTES as u64;

/// One line as it stands on the medium.
pub type Line = [u8; LINE_BYTES];
/// A line that was never written or was freed.
pub const EMPTY_LINE: Line = [0; LINE_BYTES];

/// Why bytes from a medium are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// The checksum of a line does not match its bytes and place.
    #[error("line {address}: checksum mismatch: stored {found:#010x}, computed {expected:#010x}")]
    Checksum {
        /// The line.
        address: LineAddress,
        /// The checksum stored in it.
        found: u32,
        /// The checksum computed from its bytes and place.
        expected: u32,
    },
    /// A field has a value that no version of the format allows.
    #[error("line {address}: invalid {field}: {found}")]
    Field {
        /// The line.
        address: LineAddress,
        /// The field's name in FORMAT.md.
        field: &'static str,
        /// The value found.
        found: u64,
    },
    /// The device cannot read the line.
    #[error("line {address}: cannot be read")]
    Unreadable {
        /// The line.
        address: LineAddress,
    },
}

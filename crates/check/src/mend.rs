//! What the checker would change where it stands: beside a finding it notes the record, line or inode that has to go, because only there
//! the place is known. Repair decides which of them it makes ([CK3], `repair/`).

use tandemfs_format::mapping::{Extent, LeafPointer, LogEntry, RecordBytes};
use tandemfs_format::{DataAddress, Line, LineAddress};

use crate::tree::{Site, Span};

/// Bytes of a file that a repair gives up: reading them fails afterwards, without *lost records* they read as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) inode: u64,
    /// Offset in the file in bytes.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// The inode whose lines a change seals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) inode: u64,
    pub(crate) generation: u32,
}

/// Where the checksum of a piece of data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Beside an extent: in its record or in its vector.
    Extent { site: Site, extent: Extent, leaf: Option<LeafPointer> },
    /// In a record that is one log.
    Single { site: Site, log: LogEntry },
    /// In a line of a leaf.
    Entry { line: LineAddress, log: LogEntry },
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mend {
    /// The slot of an inode becomes free.
    FreeInode { inode: u64, address: LineAddress },
    /// There is no usable root inode.
    Root,
    /// A line of a mapping page of this height loses its records.
    Line { owner: Owner, line: LineAddress, height: u32, span: Span, lost: Option<Lost> },
    /// A record is replaced, and with it lines of the block's leaf.
    Record { owner: Owner, site: Site, record: RecordBytes, leaf: Vec<(LineAddress, Line)>, lost: Option<Lost> },
    /// A run becomes records of its blocks ([FR2] of `runs.rs`).
    Dissolve { owner: Owner, site: Site },
    /// Everything below a record goes.
    Subtree { owner: Owner, site: Site, span: Span, lost: Option<Lost> },
    /// The block gets sectors of its own, with what the shared ones hold; `lost` if there are none.
    Clone { owner: Owner, site: Site, extent: Extent, leaf: Option<LeafPointer>, lost: Option<Lost> },
    /// The block gets checksum lines of its own, with what the shared ones hold; `lost` if there are none.
    CloneChecksums { owner: Owner, site: Site, extent: Extent, leaf: Option<LeafPointer>, lost: Option<Lost> },
    /// A log gets a slot of its own, with what the shared one holds; without one it is lost, and `lost` with it.
    CloneLog { owner: Owner, site: Site, origin: Origin, leaf: Option<LeafPointer>, lost: Option<Lost> },
    /// The mapping of a directory is made anew from these pages, and from others that are proved to be its own.
    Directory { owner: Owner, pages: Vec<LineAddress>, salvage: bool },
    /// Sectors or pages that do not fit their checksums become zeros.
    ZeroSectors { owner: Owner, origin: Origin, first: DataAddress, index: u64, count: u64, lost: Lost },
    /// A log that does not fit its checksum becomes zeros.
    ZeroLog { owner: Owner, origin: Origin, lost: Lost },
    /// A field of an inode gets the nearest value that it can have.
    Field { inode: u64, field: &'static str },
}

impl Mend {
    /// Whether it changes data only, so that it can wait until the metadata are whole.
    pub(crate) fn is_of_data(&self) -> bool {
        matches!(self, Self::ZeroSectors { .. } | Self::ZeroLog { .. })
    }
}

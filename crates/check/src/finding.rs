//! Everything that check can find, one variant for each rule of FORMAT.md. The fields of a variant are numbers from the medium, so that
//! tests can match them and scripts can read them.

use serde::Serialize;
use tandemfs_format::Corrupt;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// No data loss and no effect on operation.
    Warning,
    /// Data is lost, or the engine may refuse work or lose data.
    Error,
}

/// What is wrong with one line of metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// Its checksum does not match its bytes and place.
    #[error("checksum mismatch: stored {found:#010x}, computed {expected:#010x}")]
    Checksum {
        /// The checksum in the line.
        found: u32,
        /// The checksum that would match.
        expected: u32,
    },
    /// A field has an invalid value.
    #[error("invalid {field}: {found}")]
    Field {
        /// The field's name in FORMAT.md.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// The device could not read it.
    #[error("the device cannot read it")]
    Unreadable,
}

impl From<Corrupt> for Damage {
    fn from(corrupt: Corrupt) -> Self {
        match corrupt {
            Corrupt::Checksum { found, expected, .. } => Self::Checksum { found, expected },
            Corrupt::Field { field, found, .. } => Self::Field { field, found },
            Corrupt::Unreadable { .. } => Self::Unreadable,
        }
    }
}

/// A structure of the memory zone that a pointer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A page of mapping records.
    MappingPage,
    /// A page of directory entries.
    DentryPage,
    /// A leaf of data logs.
    Leaf,
    /// A checksum vector.
    Vector,
    /// The slot of a data log.
    Slot,
    /// Pages of the memory zone that hold a block.
    Pages,
}

impl std::fmt::Display for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::MappingPage => "mapping page",
            Self::DentryPage => "directory page",
            Self::Leaf => "leaf",
            Self::Vector => "checksum vector",
            Self::Slot => "data-log slot",
            Self::Pages => "data page",
        })
    }
}

/// Declares a finding: its sentence, fields, id, severity, and whether `repair` repairs it.
macro_rules! findings {
    ($( $(#[doc = $doc:literal])* #[error($($sentence:tt)*)] $variant:ident { $( $(#[doc = $field_doc:literal])* $field:ident : $type:ty ),* }
        = $id:literal $severity:ident $repairable:literal; )*) => {
        /// What check found.
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, thiserror::Error)]
        #[serde(rename_all = "snake_case", tag = "finding")]
        pub enum Finding {
            $( $(#[doc = $doc])* #[error($($sentence)*)] $variant { $( $(#[doc = $field_doc])* $field: $type ),* } ),*
        }

        impl Finding {
            /// The ids of all findings.
            pub const IDS: &[&str] = &[ $( $id ),* ];

            /// The finding's name in JSON.
            pub fn id(&self) -> &'static str {
                match self { $( Self::$variant { .. } => $id ),* }
            }

            /// How bad it is.
            pub fn severity(&self) -> Severity {
                match self { $( Self::$variant { .. } => Severity::$severity ),* }
            }

            /// Whether [`crate::CheckOptions::repair`] repairs it.
            pub fn repairable(&self) -> bool {
                match self { $( Self::$variant { .. } => $repairable ),* }
            }
        }
    };
}

findings! {
    /// A superblock copy does not verify.
    #[error("copy {copy} of the superblock is damaged")]
    SuperblockDamaged {
        /// 0 or 1.
        copy: u8
    } = "superblock_damaged" Error true;
    /// Both copies verify but differ: a power cut happened between the two writes.
    #[error("the copies of the superblock differ: sequence {first} and {second}")]
    SuperblocksDiffer {
        /// Sequence of copy 0.
        first: u64,
        /// Sequence of copy 1.
        second: u64
    } = "superblocks_differ" Warning true;
    /// The identity of the block zone does not verify.
    #[error("the identity in the block zone's first sector is damaged")]
    IdentityDamaged {} = "identity_damaged" Error true;
    /// A line of the segment table does not verify.
    #[error("line {segment} of the segment table is damaged: {damage}")]
    SegmentDamaged {
        /// Line of the table.
        segment: u64,
        /// What is wrong.
        damage: Damage
    } = "segment_damaged" Error false;
    /// A line of the table of lent room does not verify: what a program had appended may be lost. The next mount that writes clears it.
    #[error("slot {slot} of the table of lent room is damaged: {damage}")]
    LentRoomDamaged {
        /// Slot of the table.
        slot: u64,
        /// What is wrong.
        damage: Damage
    } = "lent_room_damaged" Error false;
    /// A slot is in use although the file system was unmounted cleanly.
    #[error("slot {slot} of the table of lent room is in use, for inode {inode}, on a file system that was unmounted cleanly")]
    LentRoomLeft {
        /// Slot of the table.
        slot: u64,
        /// Inode.
        inode: u64
    } = "lent_room_left" Error false;
    /// Two slots lend room behind one file.
    #[error("slot {slot} of the table of lent room is for inode {inode}, as an earlier one")]
    LentRoomTwice {
        /// Slot of the table.
        slot: u64,
        /// Inode.
        inode: u64
    } = "lent_room_twice" Error false;
    /// A slot names no file, or an earlier one of its number.
    #[error("slot {slot} of the table of lent room is for inode {inode}, which is no such file")]
    LentRoomOfNobody {
        /// Slot of the table.
        slot: u64,
        /// Inode.
        inode: u64
    } = "lent_room_of_nobody" Error false;
    /// The file does not end in the room.
    #[error("slot {slot} of the table of lent room is for inode {inode} from {expected} B on, which has {size} B")]
    LentRoomElsewhere {
        /// Slot of the table.
        slot: u64,
        /// Inode.
        inode: u64,
        /// Its size, in bytes.
        size: u64,
        /// Its size when room was lent.
        expected: u64
    } = "lent_room_elsewhere" Error false;
    /// A word says more bytes than were lent.
    #[error("slot {slot} of the table of lent room: more than the {most} B behind inode {inode} are said to be used")]
    LentRoomExceeded {
        /// Slot of the table.
        slot: u64,
        /// Inode.
        inode: u64,
        /// The room, in bytes.
        most: u64
    } = "lent_room_exceeded" Error false;
    /// A region that has a unit from the start has none.
    #[error("the segment table has no segment of the region {region}")]
    RegionMissing {
        /// The region's number.
        region: u8
    } = "region_missing" Error false;
    /// A unit that lines prove to be of a region, and that no segment names: its line of the table was lost.
    #[error("unit {unit} is of the region {region}, but no segment names it")]
    UnitLost {
        /// The unit.
        unit: u64,
        /// The region's number.
        region: u8
    } = "unit_lost" Error false;
    /// Two segments name one unit.
    #[error("segments {segment} and {other} both name unit {unit}")]
    SegmentsOverlap {
        /// Line of the table.
        segment: u64,
        /// Line of the table.
        other: u64,
        /// First unit that both name.
        unit: u64
    } = "segments_overlap" Error false;
    /// A segment names a unit of the fixed part.
    #[error("segment {segment} names unit {unit}, which is part of the fixed structures")]
    SegmentInFixedPart {
        /// Line of the table.
        segment: u64,
        /// The unit.
        unit: u64
    } = "segment_in_fixed_part" Error false;
    /// The segments of a region are not consecutive.
    #[error("segment {segment} starts at unit {found} of its region; expected unit {expected}")]
    SegmentGap {
        /// Line of the table.
        segment: u64,
        /// Its position in the region.
        found: u64,
        /// The position expected after the previous segment.
        expected: u64
    } = "segment_gap" Error false;
    /// A record changes a line that no record may change.
    #[error("record {txid} of journal ring {ring} changes line {line:#x}, which is outside segments and data")]
    RecordOutOfPlace {
        /// The ring.
        ring: u32,
        /// The transaction.
        txid: u64,
        /// The line.
        line: u64
    } = "record_out_of_place" Error false;
    /// A record waits for replay though the file system says it is clean.
    #[error("record {txid} of journal ring {ring} waits for replay though the file system was unmounted cleanly")]
    RecordAfterCleanUnmount {
        /// The ring.
        ring: u32,
        /// The transaction.
        txid: u64
    } = "record_after_clean_unmount" Error true;
    /// A record that no longer verifies: records of the same ring behind it do.
    #[error("a record at byte {offset} of journal ring {ring} is damaged: record {next} behind it is valid")]
    RecordDamaged {
        /// The ring.
        ring: u32,
        /// Where the record starts, in bytes from the start of the ring.
        offset: u32,
        /// The next valid transaction of the ring.
        next: u64
    } = "record_damaged" Error true;
    /// Two records have one transaction number.
    #[error("two journal records have the number {txid}")]
    RecordTwice {
        /// The transaction.
        txid: u64
    } = "record_twice" Error false;
    /// An inode does not verify.
    #[error("inode {inode} is damaged: {damage}")]
    InodeDamaged {
        /// Inode.
        inode: u64,
        /// What is wrong.
        damage: Damage
    } = "inode_damaged" Error true;
    /// A field of a valid inode has a value that it cannot have.
    #[error("inode {inode} has the invalid value {found} in its field {field}")]
    InodeField {
        /// Inode.
        inode: u64,
        /// The field's name in FORMAT.md.
        field: &'static str,
        /// Its value.
        found: u64
    } = "inode_field" Error true;
    /// There is no root directory.
    #[error("inode 1 is no directory: the file system has no root")]
    RootMissing {} = "root_missing" Error true;
    /// An orphan after a clean unmount.
    #[error("inode {inode} has no names and was left behind by a clean unmount")]
    OrphanLeft {
        /// Inode.
        inode: u64
    } = "orphan_left" Warning true;
    /// A mapping or leaf line does not verify, or a record in it has no meaning.
    #[error("inode {inode}: line {line:#x} of its mapping is damaged: {damage}")]
    MappingDamaged {
        /// Inode.
        inode: u64,
        /// The line; 0 for the record in the inode.
        line: u64,
        /// What is wrong.
        damage: Damage
    } = "mapping_damaged" Error true;
    /// A pointer leads out of its region, above a high-water mark, or to a misaligned place.
    #[error("inode {inode}, block {block}: the pointer to a {target} names line {line:#x}, where no {target} can be")]
    PointerMisplaced {
        /// Inode.
        inode: u64,
        /// First block below the pointer.
        block: u64,
        /// What it should lead to.
        target: Target,
        /// Where it leads.
        line: u64
    } = "pointer_misplaced" Error true;
    /// Lines that another structure uses.
    #[error("inode {inode}, block {block}: its {target} at line {line:#x} is also used by another structure")]
    LinesShared {
        /// Inode that came second.
        inode: u64,
        /// First block below the pointer.
        block: u64,
        /// Use of the lines by this inode.
        target: Target,
        /// First line.
        line: u64
    } = "lines_shared" Error true;
    /// A record whose level or type is wrong for its place.
    #[error("inode {inode}, block {block}: line {line:#x} holds a record of the wrong kind")]
    RecordKind {
        /// Inode.
        inode: u64,
        /// Block.
        block: u64,
        /// Line of the record; 0 for the one in the inode.
        line: u64
    } = "record_kind" Error true;
    /// A unit of the data area that holds both data logs and extents of files.
    #[error("inode {inode}, block {block}: its {target} is in unit {unit}, which has another use")]
    UnitMixed {
        /// Inode that came second.
        inode: u64,
        /// Block.
        block: u64,
        /// What it points to.
        target: Target,
        /// The unit.
        unit: u64
    } = "unit_mixed" Error true;
    /// A record beyond the end of the file.
    #[error("inode {inode}: block {block} is beyond the end of the file")]
    BlockPastEnd {
        /// Inode.
        inode: u64,
        /// Block.
        block: u64
    } = "block_past_end" Error true;
    /// A run of blocks that cannot be where it is, or as long as it is.
    #[error("inode {inode}, block {block}: a run of {count} blocks cannot be here")]
    RunMisplaced {
        /// Inode.
        inode: u64,
        /// Its first block.
        block: u64,
        /// Its blocks.
        count: u32
    } = "run_misplaced" Error true;
    /// A record within a run of blocks.
    #[error("inode {inode}: block {overlapped} has a record, and is in the run from block {block} on")]
    RunOverlapped {
        /// Inode.
        inode: u64,
        /// First block of the run.
        block: u64,
        /// The first of its blocks that has a record.
        overlapped: u64
    } = "run_overlapped" Error true;
    /// An extent outside the block zone.
    #[error("inode {inode}, block {block}: {count} sectors from {sector} are outside the block zone")]
    ExtentOutside {
        /// Inode.
        inode: u64,
        /// Block.
        block: u64,
        /// First sector.
        sector: u64,
        /// Sectors.
        count: u32
    } = "extent_outside" Error true;
    /// An extent with more sectors than the block, or than the file's size allows.
    #[error("inode {inode}, block {block}: has {count} sectors; at most {most} are allowed")]
    ExtentTooLong {
        /// Inode.
        inode: u64,
        /// Block.
        block: u64,
        /// Sectors.
        count: u32,
        /// Sectors that it may have.
        most: u64
    } = "extent_too_long" Error true;
    /// Bytes behind the end of a file, in pages without checksums, that would become visible if the file grows.
    #[error("inode {inode}, block {block}: open pages hold more than zeros behind the end of the file at {offset}, and the inode does not say so")]
    OpenEndNotZero {
        /// Inode.
        inode: u64,
        /// Block.
        block: u64,
        /// End of the file, in bytes.
        offset: u64
    } = "open_end_not_zero" Error true;
    /// Sectors that another block uses.
    #[error("inode {inode}, block {block}: sectors from {sector} are also used by another block")]
    SectorsShared {
        /// Inode that came second.
        inode: u64,
        /// Block.
        block: u64,
        /// First sector of the extent.
        sector: u64
    } = "sectors_shared" Error true;
    /// An extent whose use of checksums differs from the file system's setting.
    #[error("inode {inode}, block {block}: its use of checksums differs from the file system's setting")]
    ChecksumKindWrong {
        /// Inode.
        inode: u64,
        /// Block.
        block: u64
    } = "checksum_kind_wrong" Error true;
    /// A data log that crosses the end of its block.
    #[error("inode {inode}, block {block}: a data log of {length} B at {offset} crosses the end of the block")]
    LogOutsideBlock {
        /// Inode.
        inode: u64,
        /// Block.
        block: u64,
        /// Offset in the block in bytes.
        offset: u32,
        /// Length in bytes.
        length: u32
    } = "log_outside_block" Error true;
    /// Two data logs of one block overlap.
    #[error("inode {inode}, block {block}: two data logs overlap at {offset}")]
    LogsOverlap {
        /// Inode.
        inode: u64,
        /// Block.
        block: u64,
        /// First byte of the block that both cover.
        offset: u32
    } = "logs_overlap" Error true;
    /// A data log reaches beyond the end of the file.
    #[error("inode {inode}, block {block}: a data log of {length} B at {offset} reaches beyond the end of the file")]
    LogPastEnd {
        /// Inode.
        inode: u64,
        /// Block.
        block: u64,
        /// Offset in the block in bytes.
        offset: u32,
        /// Length in bytes.
        length: u32
    } = "log_past_end" Error true;
    /// The inode's space count is wrong.
    #[error("inode {inode} counts {found} x 512 B of space but uses {expected} x 512 B")]
    SpaceWrong {
        /// Inode.
        inode: u64,
        /// The inode's count, in 512 B.
        found: u64,
        /// The correct count, in 512 B.
        expected: u64
    } = "space_wrong" Error true;
    /// A line of an inode's extended attributes does not verify, or the set or value as a whole does not.
    #[error("inode {inode}: line {line:#x} of its extended attributes is damaged: {damage}")]
    AttributesDamaged {
        /// Inode.
        inode: u64,
        /// The line; the first of a set or value that does not verify as a whole.
        line: u64,
        /// What is wrong.
        damage: Damage
    } = "attributes_damaged" Error true;
    /// A pointer to attributes leads out of their region, above a high-water mark, or to a misaligned place.
    #[error("inode {inode}: a pointer to its extended attributes names line {line:#x}, where none can be")]
    AttributesMisplaced {
        /// Inode.
        inode: u64,
        /// Where it leads.
        line: u64
    } = "attributes_misplaced" Error true;
    /// Lines of attributes that another structure uses.
    #[error("inode {inode}: its extended attributes at line {line:#x} are also used by another structure")]
    AttributesShared {
        /// Inode that came second.
        inode: u64,
        /// First line.
        line: u64
    } = "attributes_shared" Error true;
    /// An attribute that verifies but is not allowed on this inode.
    #[error("inode {inode}: its extended attribute number {attribute} has an invalid {field}")]
    AttributeInvalid {
        /// Inode.
        inode: u64,
        /// Position in the set, from 0.
        attribute: u64,
        /// What is wrong: its name (used twice), its namespace, its ACL, or a mode that contradicts the ACL.
        field: &'static str
    } = "attribute_invalid" Error true;
    /// A directory lacks a page below its size.
    #[error("directory {inode} lacks its page {page}")]
    DirectoryPageMissing {
        /// Directory.
        inode: u64,
        /// First page that is missing.
        page: u64
    } = "directory_page_missing" Error true;
    /// A directory entry does not verify.
    #[error("directory {directory}: the name in slot {slot} is damaged: {damage}")]
    EntryDamaged {
        /// Directory.
        directory: u64,
        /// Slot.
        slot: u64,
        /// What is wrong.
        damage: Damage
    } = "entry_damaged" Error true;
    /// A continuation slot without a head slot.
    #[error("directory {directory}: slot {slot} continues a name that has no start")]
    EntryPartStray {
        /// Directory.
        directory: u64,
        /// Slot.
        slot: u64
    } = "entry_part_stray" Error true;
    /// An invalid name.
    #[error("directory {directory}: slot {slot} holds an invalid name")]
    NameInvalid {
        /// Directory.
        directory: u64,
        /// Slot.
        slot: u64
    } = "name_invalid" Error true;
    /// An entry for an inode that is not in use.
    #[error("directory {directory}: the name in slot {slot} refers to inode {inode}, which is not in use")]
    EntryDangling {
        /// Directory.
        directory: u64,
        /// Slot.
        slot: u64,
        /// Inode.
        inode: u64
    } = "entry_dangling" Error true;
    /// An entry's type differs from the inode's.
    #[error("directory {directory}: the name in slot {slot} has type {found}, but inode {inode} has type {expected}")]
    EntryType {
        /// Directory.
        directory: u64,
        /// Slot.
        slot: u64,
        /// Inode.
        inode: u64,
        /// Type in the entry.
        found: u8,
        /// Type of the inode.
        expected: u8
    } = "entry_type" Error true;
    /// An entry whose hash does not match its name.
    #[error("directory {directory}: the name in slot {slot} has a wrong hash")]
    EntryHash {
        /// Directory.
        directory: u64,
        /// Slot.
        slot: u64
    } = "entry_hash" Error true;
    /// One name twice in a directory.
    #[error("directory {directory}: slots {slot} and {other} hold the same name")]
    NameTwice {
        /// Directory.
        directory: u64,
        /// The slot of the first.
        slot: u64,
        /// The slot of the second.
        other: u64
    } = "name_twice" Error true;
    /// A directory with a second name.
    #[error("directory {directory}: slot {slot} gives a second name to directory {inode}")]
    DirectoryTwice {
        /// The directory with the entry.
        directory: u64,
        /// Its slot.
        slot: u64,
        /// The directory with two names.
        inode: u64
    } = "directory_twice" Error true;
    /// A directory's `..` is not the directory that names it.
    #[error("directory {inode} stores {found} as its parent, but directory {expected} names it")]
    ParentWrong {
        /// Directory.
        inode: u64,
        /// What it says.
        found: u64,
        /// The directory that names it.
        expected: u64
    } = "parent_wrong" Error true;
    /// A wrong link count.
    #[error("inode {inode} has link count {found}; the correct count is {expected}")]
    LinkCount {
        /// Inode.
        inode: u64,
        /// What it says.
        found: u32,
        /// The correct count.
        expected: u32
    } = "link_count" Error true;
    /// A removed directory that still has entries.
    #[error("directory {inode} is removed and still has entries")]
    OrphanWithEntries {
        /// Directory.
        inode: u64
    } = "orphan_with_entries" Error true;
    /// An inode in use that no directory names.
    #[error("inode {inode} is in use and has no name")]
    Unreachable {
        /// Inode.
        inode: u64
    } = "unreachable" Error true;
    /// A cycle of directories that is not reachable from the root.
    #[error("directory {inode} is part of a cycle of directories that is not reachable from the root")]
    DirectoryCircle {
        /// The smallest inode of the cycle.
        inode: u64
    } = "directory_circle" Error true;
    /// A map piece of a clean image that does not verify.
    #[error("piece {piece} of the saved allocation maps is damaged or of another mount")]
    MapDamaged {
        /// Piece.
        piece: u64
    } = "map_damaged" Warning true;
    /// A map piece of a clean image whose kind contradicts the segment table.
    #[error("piece {piece} of the saved allocation maps is of another kind than its unit")]
    MapKind {
        /// Piece.
        piece: u64
    } = "map_kind" Error true;
    /// A map piece of a clean image that differs from the space that the tree uses.
    #[error("piece {piece} of the saved allocation maps is wrong: {free_but_used} in use are marked free, {used_but_free} free are marked used")]
    MapWrong {
        /// Piece.
        piece: u64,
        /// Lines or sectors that are in use and marked free.
        free_but_used: u32,
        /// Lines or sectors that are free and marked used.
        used_but_free: u32
    } = "map_wrong" Error true;
    /// Sectors of file data that do not match their checksums.
    #[error("inode {inode}: checksum mismatch in {sectors} sectors of data at byte {offset}")]
    DataDamaged {
        /// Inode.
        inode: u64,
        /// Offset in the file in bytes.
        offset: u64,
        /// Sectors in a row.
        sectors: u64
    } = "data_damaged" Error true;
    /// A data log that does not match its checksum.
    #[error("inode {inode}: checksum mismatch in a data log of {length} B at byte {offset}")]
    LogDamaged {
        /// Inode.
        inode: u64,
        /// Offset in the file in bytes.
        offset: u64,
        /// Length in bytes.
        length: u32
    } = "log_damaged" Error true;
    /// File data that the device cannot read.
    #[error("inode {inode}: the device cannot read {bytes} B of data at byte {offset}")]
    DataUnreadable {
        /// Inode.
        inode: u64,
        /// Offset in the file in bytes.
        offset: u64,
        /// Bytes asked for.
        bytes: u64
    } = "data_unreadable" Error false;
}

impl Finding {
    /// Whether it is of the segment table, which [`crate::CheckOptions::rescue`] rebuilds.
    pub fn is_of_table(&self) -> bool {
        crate::rescue::is_of_table(self)
    }

    /// The inode of the finding, if it has one.
    pub fn inode(&self) -> Option<u64> {
        match *self {
            Self::InodeDamaged { inode, .. }
            | Self::InodeField { inode, .. }
            | Self::OrphanLeft { inode }
            | Self::MappingDamaged { inode, .. }
            | Self::PointerMisplaced { inode, .. }
            | Self::LinesShared { inode, .. }
            | Self::UnitMixed { inode, .. }
            | Self::RecordKind { inode, .. }
            | Self::BlockPastEnd { inode, .. }
            | Self::ExtentOutside { inode, .. }
            | Self::RunMisplaced { inode, .. }
            | Self::RunOverlapped { inode, .. }
            | Self::ExtentTooLong { inode, .. }
            | Self::OpenEndNotZero { inode, .. }
            | Self::SectorsShared { inode, .. }
            | Self::ChecksumKindWrong { inode, .. }
            | Self::LogOutsideBlock { inode, .. }
            | Self::LogsOverlap { inode, .. }
            | Self::LogPastEnd { inode, .. }
            | Self::SpaceWrong { inode, .. }
            | Self::AttributesDamaged { inode, .. }
            | Self::AttributesMisplaced { inode, .. }
            | Self::AttributesShared { inode, .. }
            | Self::AttributeInvalid { inode, .. }
            | Self::DirectoryPageMissing { inode, .. }
            | Self::ParentWrong { inode, .. }
            | Self::LinkCount { inode, .. }
            | Self::OrphanWithEntries { inode }
            | Self::Unreachable { inode }
            | Self::DirectoryCircle { inode }
            | Self::DataDamaged { inode, .. }
            | Self::LogDamaged { inode, .. }
            | Self::LentRoomLeft { inode, .. }
            | Self::LentRoomTwice { inode, .. }
            | Self::LentRoomOfNobody { inode, .. }
            | Self::LentRoomElsewhere { inode, .. }
            | Self::LentRoomExceeded { inode, .. }
            | Self::DataUnreadable { inode, .. } => Some(inode),
            Self::EntryDamaged { directory, .. }
            | Self::EntryPartStray { directory, .. }
            | Self::NameInvalid { directory, .. }
            | Self::EntryDangling { directory, .. }
            | Self::EntryType { directory, .. }
            | Self::EntryHash { directory, .. }
            | Self::NameTwice { directory, .. }
            | Self::DirectoryTwice { directory, .. } => Some(directory),
            Self::RootMissing {} => Some(1),
            Self::SuperblockDamaged { .. }
            | Self::SuperblocksDiffer { .. }
            | Self::IdentityDamaged {}
            | Self::SegmentDamaged { .. }
            | Self::SegmentsOverlap { .. }
            | Self::SegmentInFixedPart { .. }
            | Self::SegmentGap { .. }
            | Self::RecordOutOfPlace { .. }
            | Self::RecordAfterCleanUnmount { .. }
            | Self::RecordTwice { .. }
            | Self::RecordDamaged { .. }
            | Self::MapDamaged { .. }
            | Self::MapKind { .. }
            | Self::MapWrong { .. }
            | Self::RegionMissing { .. }
            | Self::UnitLost { .. }
            | Self::LentRoomDamaged { .. } => None,
        }
    }
}

//! The superblock: two copies in the memory zone. The identity of the pair in the block zone is in `identity.rs`.
//!
//! Every change writes both copies, one after the other with a fence between, so they are equal except during a change. A single damaged
//! copy therefore never brings back an older watermark, tail or clean flag (RULES R1, R25).

use uuid::Uuid;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::SECTOR_BYTES;
use crate::checksum::crc32c;
use crate::error_counters::{ErrorCounterBytes, ErrorCounters};
use crate::geometry::{Geometry, GeometryError, RING_COUNT_MAX};
use crate::hole_lines::HoleLines;
use crate::identity::Stamps;
use crate::integer::{U32, U64};
use crate::space::LogCounting;

/// First bytes of a superblock after its checksum, and of the block zone's identity.
pub const MAGIC: [u8; 8] = *b"TandemFS";
/// Version of the format. Format 1 is the first that is promised.
pub const VERSION: u32 = 1;
/// Version of images from before Format 1, which only the build that made them reads.
pub const VERSION_OF_DEVELOPMENT: u32 = 0;

/// Largest valid sequence, watermark, generation and transaction number: unreachable by counting, and far enough from overflow.
pub const COUNTER_MAX: u64 = u64::MAX / 2;

/// Incompatible feature bits: a build that lacks one refuses to mount.
pub mod incompat {
    // Bit 0 was set in images from before Format 1 and is not reused.

    /// Extents with several owners (reflink). Assigned, not yet used.
    pub const SHARED: u64 = 1 << 1;
    /// Snapshots. Assigned, not yet used.
    pub const SNAPSHOT: u64 = 1 << 2;
    /// Files that live in memory extents ([`DataAddress::Page`](crate::DataAddress::Page)), runs of blocks, and file systems without a block
    /// zone.
    pub const MEMORY_HOME: u64 = 1 << 3;
    /// File data without checksums (`mkfs --checksum=none`, pages mapped for direct stores).
    pub const UNCHECKED_DATA: u64 = 1 << 4;
    /// Limits of quota ([`crate::quota`]), and directories whose project is inherited ([`crate::inode::flags::PROJECT_INHERIT`]).
    pub const QUOTA: u64 = 1 << 5;
    /// The table of lent room is there ([`LentRoom`](crate::lent_room::LentRoom)). Only together with [`MEMORY_HOME`].
    pub const LENT_ROOM: u64 = 1 << 6;
    /// The bits that this build supports.
    pub const KNOWN: u64 = UNCHECKED_DATA | MEMORY_HOME | QUOTA | LENT_ROOM;
}

/// Feature bits that a build may ignore.
pub mod compat {
    /// The superblock counts errors ([`ErrorCounters`](crate::error_counters::ErrorCounters)).
    pub const ERROR_COUNTERS: u64 = 1 << 0;
    /// The bits that this build knows.
    pub const KNOWN: u64 = ERROR_COUNTERS;
}

/// Feature bits that a build must know to write: one that lacks one mounts read-only.
pub mod ro_compat {
    /// The `space_512` of an inode does not count data logs over sectors of their block ([`LogCounting`](crate::space::LogCounting)).
    pub const COVERED_LOGS_UNCOUNTED: u64 = 1 << 0;
    /// Superblock and identity have a stamp, which every mount that writes changes ([`Stamps`](crate::identity::Stamps)).
    pub const STAMP: u64 = 1 << 1;
    /// The UUID that users see is not that of the pair. Only together with [`STAMP`].
    pub const VOLUME_UUID: u64 = 1 << 2;
    /// Lines of mapping pages have their checksum also without records ([`HoleLines`](crate::hole_lines::HoleLines)).
    pub const SEALED_HOLES: u64 = 1 << 3;
    /// Records of lost parts of a file may occur ([`Record::Lost`](crate::mapping::Record::Lost)).
    pub const LOST_RECORDS: u64 = 1 << 4;
    /// The bits that this build supports.
    pub const KNOWN: u64 = COVERED_LOGS_UNCOUNTED | STAMP | VOLUME_UUID | SEALED_HOLES | LOST_RECORDS;
}

/// How file data is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumKind {
    /// Not at all.
    None,
    /// One CRC-32C a sector or data log.
    Crc32c,
}

persistent! {
    /// The superblock as it stands on the medium.
    pub struct SuperblockBytes [1024] {
        /// CRC-32C of bytes 4..1024.
        crc: U32 = 0,
        /// `TandemFS`.
        magic: [u8; 8] = 4,
        /// Version of the format.
        version: U32 = 12,
        /// Features that any build may ignore.
        compat: U64 = 16,
        /// Features that a build must know to write.
        ro_compat: U64 = 24,
        /// Features that a build must know to read.
        incompat: U64 = 32,
        /// UUID of the pair of halves.
        pair: [u8; 16] = 40,
        /// Label, UTF-8, padded with zeros.
        label: [u8; 64] = 56,
        /// Size of the memory zone in bytes.
        memory_bytes: U64 = 120,
        /// Size of the block zone in sectors of 4 KiB.
        block_sectors: U64 = 128,
        /// Size of a data block in bytes.
        block_bytes: U32 = 136,
        /// 0 none, 1 CRC-32C.
        checksum_kind: u8 = 140,
        /// 1 after a clean unmount: nothing to replay and the saved maps are valid.
        clean: u8 = 141,
        /// Zero.
        zero: [u8; 2] = 142,
        /// Number of journal rings.
        ring_count: U32 = 144,
        /// Size of a journal ring in bytes.
        ring_bytes: U32 = 148,
        /// Time of creation, seconds since 1970.
        created_seconds: U64 = 152,
        /// Raised with every write of the superblock; the valid copy with the larger value is used.
        sequence: U64 = 160,
        /// Watermark C: every record up to this txid is home.
        watermark: U64 = 168,
        /// Raised by every mount that writes; seeds the records of the journal.
        generation: U64 = 176,
        /// First unit of the map pieces; 0 where they follow the rings.
        map_unit: U32 = 184,
        /// The stamp of the identity from its next change on; else equal to `stamp`.
        stamp_pending: U64 = 188,
        /// The stamp of the identity.
        stamp: U64 = 196,
        /// UUID of the file system for users.
        volume_uuid: [u8; 16] = 204,
        /// Counters of errors.
        error_counters: ErrorCounterBytes = 220,
        /// Zero.
        reserved: [u8; 172] = 340,
        /// Where the oldest record above the watermark may start, for each ring.
        tails: [RingTail; 64] = 512,
    }
}

persistent! {
    /// A position in a journal ring.
    pub struct RingTail [8] {
        /// Offset in the ring, in bytes.
        offset_bytes: U32 = 0,
        /// Number of times the ring has wrapped.
        wrap: U32 = 4,
    }
}

/// Why a superblock is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// Neither copy has the magic number.
    #[error("there is no TandemFS on it (no superblock found)")]
    Foreign,
    /// A magic number, but no copy with a fitting checksum.
    #[error("both superblocks are damaged; tandemfs check --rescue may put one together, tandemfs restore copies files out if it can")]
    Damaged,
    /// From before Format 1.
    #[error("it was made while the format was under development; copy its files with the build that made it, then format it anew")]
    Development,
    /// A newer format.
    #[error("its format has version {found}, this build reads version {VERSION}; use a newer build")]
    Version {
        /// The version found.
        found: u32,
    },
    /// Features that this build lacks.
    #[error("it uses incompatible features {unknown:#x} that this build does not know; use a newer build")]
    Features {
        /// The unknown bits.
        unknown: u64,
    },
    /// Features that this build may read but not write.
    #[error("it uses features {unknown:#x} that this build cannot write; mount it read-only, or use a newer build")]
    WriteFeatures {
        /// The unknown bits.
        unknown: u64,
    },
    /// The sizes make no sense.
    #[error("its superblock is inconsistent: {0}")]
    Geometry(#[from] GeometryError),
    /// A field with a value that has no meaning.
    #[error("its superblock is inconsistent: {field} is {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// The value.
        found: u64,
    },
}

/// The superblock in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// UUID of the pair.
    pub pair: Uuid,
    /// Label.
    pub label: String,
    /// Sizes and places.
    pub geometry: Geometry,
    /// How file data is checked.
    pub checksum_kind: ChecksumKind,
    /// Incompatible feature bits.
    pub incompat: u64,
    /// Features that a build must know to write.
    pub ro_compat: u64,
    /// Features that may be ignored.
    pub compat: u64,
    /// Whether the last unmount was clean.
    pub clean: bool,
    /// Time of creation, seconds since 1970.
    pub created_seconds: u64,
    /// Number of this write.
    pub sequence: u64,
    /// Watermark C.
    pub watermark: u64,
    /// Mount generation.
    pub generation: u64,
    /// A tail for each ring.
    pub tails: Vec<Tail>,
    /// Stamps of the identity; zeros without the feature.
    pub stamps: Stamps,
    /// UUID for users; nil without the feature. [`Superblock::uuid`] is what to show.
    pub volume_uuid: Uuid,
    /// Counters of errors; zeros without the feature.
    pub error_counters: ErrorCounters,
}

/// A position in a ring, in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tail {
    /// Offset in bytes.
    pub offset_bytes: u32,
    /// Wrap count.
    pub wrap: u32,
}

impl Superblock {
    /// Features of it that this build may read but not write.
    pub fn unknown_to_write(&self) -> u64 {
        self.ro_compat & !ro_compat::KNOWN
    }

    /// How the space of files is counted.
    pub fn log_counting(&self) -> LogCounting {
        LogCounting::of(self.ro_compat)
    }

    /// Whether files may lie in memory extents.
    pub fn has_memory_homes(&self) -> bool {
        self.incompat & incompat::MEMORY_HOME != 0
    }

    /// Whether there is a table of lent room.
    pub fn has_lent_rooms(&self) -> bool {
        self.incompat & incompat::LENT_ROOM != 0
    }

    /// Whether there may be limits of quota and inherited projects.
    pub fn has_quota(&self) -> bool {
        self.incompat & incompat::QUOTA != 0
    }

    /// Whether records of lost parts may occur.
    pub fn has_lost_records(&self) -> bool {
        self.ro_compat & ro_compat::LOST_RECORDS != 0
    }

    /// How mapping lines without records are stored.
    pub fn hole_lines(&self) -> HoleLines {
        HoleLines::of(self.ro_compat)
    }

    /// The bytes of the superblock, sealed.
    pub fn encode(&self) -> SuperblockBytes {
        let mut bytes = SuperblockBytes::new_zeroed();
        bytes.magic = MAGIC;
        bytes.version = VERSION.into();
        bytes.compat = self.compat.into();
        bytes.ro_compat = self.ro_compat.into();
        bytes.incompat = self.incompat.into();
        bytes.pair = *self.pair.as_bytes();
        bytes.label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        bytes.memory_bytes = self.geometry.memory_bytes().into();
        bytes.block_sectors = self.geometry.block_sectors().into();
        bytes.block_bytes = self.geometry.block_bytes().into();
        bytes.checksum_kind = match self.checksum_kind {
            ChecksumKind::None => 0,
            ChecksumKind::Crc32c => 1,
        };
        bytes.clean = self.clean.into();
        bytes.ring_count = self.geometry.ring_count().into();
        bytes.ring_bytes = (self.geometry.ring_bytes() as u32).into();
        bytes.created_seconds = self.created_seconds.into();
        bytes.sequence = self.sequence.into();
        bytes.watermark = self.watermark.into();
        bytes.generation = self.generation.into();
        bytes.map_unit = (self.geometry.map_unit() as u32).into();
        if self.has(ro_compat::STAMP) {
            bytes.stamp_pending = self.stamps.pending.into();
            bytes.stamp = self.stamps.current.into();
        }
        if self.has(ro_compat::VOLUME_UUID) {
            bytes.volume_uuid = *self.volume_uuid.as_bytes();
        }
        for (slot, tail) in bytes.tails.iter_mut().zip(&self.tails) {
            *slot = RingTail { offset_bytes: tail.offset_bytes.into(), wrap: tail.wrap.into() };
        }
        if self.compat & compat::ERROR_COUNTERS != 0 {
            bytes.error_counters = self.error_counters.encode();
        }
        bytes.crc = crc32c(&bytes.as_bytes()[4..]).into();
        bytes
    }

    /// Chooses the newest valid one of the two copies.
    pub fn choose(copies: [&[u8]; 2]) -> Result<Self, SuperblockError> {
        let decoded = copies.map(Self::decode);
        let rank = |error: &SuperblockError| match error {
            SuperblockError::Foreign => 0,
            SuperblockError::Damaged => 1,
            _ => 2,
        };
        match decoded {
            [Ok(a), Ok(b)] => Ok(if b.sequence > a.sequence { b } else { a }),
            [Ok(only), Err(_)] | [Err(_), Ok(only)] => Ok(only),
            [Err(a), Err(b)] => Err(if rank(&b) > rank(&a) { b } else { a }),
        }
    }

    /// Verifies one copy.
    pub fn decode(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let Ok((bytes, _)) = SuperblockBytes::read_from_prefix(bytes) else { return Err(SuperblockError::Foreign) };
        if bytes.magic != MAGIC {
            return Err(SuperblockError::Foreign);
        }
        if crc32c(&bytes.as_bytes()[4..]) != bytes.crc.get() {
            return Err(SuperblockError::Damaged);
        }
        match bytes.version.get() {
            VERSION => {}
            VERSION_OF_DEVELOPMENT => return Err(SuperblockError::Development),
            found => return Err(SuperblockError::Version { found }),
        }
        let unknown = bytes.incompat.get() & !incompat::KNOWN;
        if unknown != 0 {
            return Err(SuperblockError::Features { unknown });
        }
        let has = |feature| bytes.ro_compat.get() & feature != 0;
        if has(ro_compat::VOLUME_UUID) && !has(ro_compat::STAMP) {
            return Err(SuperblockError::Field { field: "ro_compat", found: bytes.ro_compat.get() });
        }
        let stamps = Stamps { current: bytes.stamp.get(), pending: bytes.stamp_pending.get() };
        let checksum_kind = match bytes.checksum_kind {
            0 => ChecksumKind::None,
            1 => ChecksumKind::Crc32c,
            other => return Err(SuperblockError::Field { field: "checksum_kind", found: other.into() }),
        };
        let block_bytes_total = bytes
            .block_sectors
            .get()
            .checked_mul(SECTOR_BYTES as u64)
            .ok_or(SuperblockError::Field { field: "block_sectors", found: bytes.block_sectors.get() })?;
        let geometry = Geometry::with_map_at(
            bytes.map_unit.get().into(),
            bytes.memory_bytes.get(),
            block_bytes_total,
            bytes.block_bytes.get(),
            bytes.ring_count.get(),
            bytes.ring_bytes.get().into(),
        )?;
        if !geometry.has_block_zone() && bytes.incompat.get() & incompat::MEMORY_HOME == 0 {
            return Err(SuperblockError::Field { field: "block_sectors", found: 0 });
        }
        if geometry.memory_bytes() != bytes.memory_bytes.get() {
            return Err(SuperblockError::Field { field: "memory_bytes", found: bytes.memory_bytes.get() });
        }
        let tails: Vec<Tail> = bytes.tails[..geometry.ring_count() as usize]
            .iter()
            .map(|tail| Tail { offset_bytes: tail.offset_bytes.get(), wrap: tail.wrap.get() })
            .collect();
        if let Some(tail) = tails.iter().find(|tail| u64::from(tail.offset_bytes) >= geometry.ring_bytes() || tail.offset_bytes % 64 != 0) {
            return Err(SuperblockError::Field { field: "tails", found: tail.offset_bytes.into() });
        }
        for (field, found) in [("sequence", bytes.sequence), ("watermark", bytes.watermark), ("generation", bytes.generation)] {
            if found.get() > COUNTER_MAX {
                return Err(SuperblockError::Field { field, found: found.get() });
            }
        }
        let label_end = bytes.label.iter().position(|byte| *byte == 0).unwrap_or(bytes.label.len());
        let label = String::from_utf8(bytes.label[..label_end].to_vec())
            .map_err(|_| SuperblockError::Field { field: "label", found: bytes.label[0].into() })?;
        Ok(Self {
            pair: Uuid::from_bytes(bytes.pair),
            label,
            geometry,
            checksum_kind,
            incompat: bytes.incompat.get(),
            ro_compat: bytes.ro_compat.get(),
            compat: bytes.compat.get(),
            clean: bytes.clean == 1,
            created_seconds: bytes.created_seconds.get(),
            sequence: bytes.sequence.get(),
            watermark: bytes.watermark.get(),
            generation: bytes.generation.get(),
            tails,
            stamps: if has(ro_compat::STAMP) { stamps } else { Stamps::default() },
            volume_uuid: if has(ro_compat::VOLUME_UUID) { Uuid::from_bytes(bytes.volume_uuid) } else { Uuid::nil() },
            error_counters: match bytes.compat.get() & compat::ERROR_COUNTERS {
                0 => ErrorCounters::default(),
                _ => ErrorCounters::decode(&bytes.error_counters),
            },
        })
    }
}

const _: () = assert!(RING_COUNT_MAX == 64);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::geometry::RING_BYTES_MIN;

    pub(crate) fn superblock() -> Superblock {
        Superblock {
            pair: Uuid::from_u128(0x1234),
            label: "mail".into(),
            geometry: Geometry::new(16 << 20, 16 << 20, 64 << 10, 4, RING_BYTES_MIN).expect("fits"),
            checksum_kind: ChecksumKind::Crc32c,
            incompat: 0,
            ro_compat: 0,
            compat: 0,
            clean: true,
            created_seconds: 5,
            sequence: 9,
            watermark: 77,
            generation: 3,
            tails: vec![Tail { offset_bytes: 128, wrap: 2 }; 4],
            stamps: Stamps::default(),
            volume_uuid: Uuid::nil(),
            error_counters: ErrorCounters::default(),
        }
    }

    #[test]
    fn superblock_round_trips() {
        assert_eq!(Superblock::decode(superblock().encode().as_bytes()), Ok(superblock()));
    }

    #[test]
    fn a_map_elsewhere_round_trips_and_one_outside_is_refused() {
        let at = |unit| Geometry::with_map_at(unit, 64 << 20, 16 << 20, 64 << 10, 4, RING_BYTES_MIN);
        let moved = Superblock { geometry: at(9).expect("fits"), ..superblock() };
        assert_eq!(Superblock::decode(moved.encode().as_bytes()), Ok(moved.clone()));
        let mut outside = moved.encode();
        outside.map_unit = 32.into();
        outside.crc = crc32c(&outside.as_bytes()[4..]).into();
        assert!(matches!(Superblock::decode(outside.as_bytes()), Err(SuperblockError::Geometry(GeometryError::MapPlace { unit: 32, .. }))));
    }

    #[test]
    fn the_newest_valid_copy_counts() {
        let old = superblock();
        let new = Superblock { sequence: 10, watermark: 99, ..superblock() };
        let mut damaged = new.encode();
        damaged.watermark = 5.into();
        assert_eq!(Superblock::choose([old.encode().as_bytes(), new.encode().as_bytes()]), Ok(new));
        assert_eq!(Superblock::choose([old.encode().as_bytes(), damaged.as_bytes()]), Ok(old));
        assert_eq!(Superblock::choose([damaged.as_bytes(), damaged.as_bytes()]), Err(SuperblockError::Damaged));
        assert_eq!(Superblock::choose([&[0; 1024], &[]]), Err(SuperblockError::Foreign));
    }

    #[test]
    fn newer_formats_are_refused_by_name() {
        let mut newer = superblock().encode();
        newer.version = 9.into();
        newer.crc = crc32c(&newer.as_bytes()[4..]).into();
        assert_eq!(Superblock::decode(newer.as_bytes()), Err(SuperblockError::Version { found: 9 }));
        newer.version = VERSION_OF_DEVELOPMENT.into();
        newer.crc = crc32c(&newer.as_bytes()[4..]).into();
        assert_eq!(Superblock::decode(newer.as_bytes()), Err(SuperblockError::Development));
        // Bit 0, of development, is not known any more.
        let features = Superblock { incompat: 1, ..superblock() }.encode();
        assert_eq!(Superblock::decode(features.as_bytes()), Err(SuperblockError::Features { unknown: 1 }));
        let features = Superblock { incompat: 1 << 40, ..superblock() }.encode();
        assert_eq!(Superblock::decode(features.as_bytes()), Err(SuperblockError::Features { unknown: 1 << 40 }));
    }

    #[test]
    fn counters_that_nobody_counted_are_refused() {
        for (name, change) in [
            ("sequence", (|superblock| superblock.sequence = COUNTER_MAX + 1) as fn(&mut Superblock)),
            ("watermark", |superblock| superblock.watermark = u64::MAX),
            ("generation", |superblock| superblock.generation = u64::MAX),
        ] {
            let mut wrong = superblock();
            change(&mut wrong);
            let found = Superblock::decode(wrong.encode().as_bytes());
            assert!(matches!(found, Err(SuperblockError::Field { field, .. }) if field == name), "{name}: {found:?}");
        }
    }

    #[test]
    fn errors_are_counted_with_the_feature_only() {
        let error_counters = ErrorCounters { data_damaged: 3, ..ErrorCounters::default() };
        let counted = Superblock { compat: compat::ERROR_COUNTERS, error_counters, ..superblock() };
        assert_eq!(Superblock::decode(counted.encode().as_bytes()), Ok(counted.clone()));
        assert_eq!(Superblock { compat: 0, ..counted.clone() }.encode().error_counters.as_bytes(), [0; 120]);
        // A build that does not know them writes zeros there.
        let mut older = counted.encode();
        older.error_counters = ErrorCounterBytes::new_zeroed();
        older.crc = crc32c(&older.as_bytes()[4..]).into();
        let begun_anew = Superblock { error_counters: ErrorCounters::default(), ..counted };
        assert_eq!(Superblock::decode(older.as_bytes()), Ok(begun_anew));
    }

    #[test]
    fn stamps_and_uuid_are_there_with_their_features_only() {
        let stamps = Stamps { current: 3, pending: 4 };
        let both = ro_compat::STAMP | ro_compat::VOLUME_UUID;
        let full = Superblock { ro_compat: both, stamps, volume_uuid: Uuid::from_u128(5), ..superblock() };
        assert_eq!(Superblock::decode(full.encode().as_bytes()), Ok(full.clone()));
        let bytes = Superblock { ro_compat: 0, ..full.clone() }.encode();
        assert_eq!(bytes.as_bytes()[188..220], [0; 32]);
        assert_eq!(Superblock::decode(bytes.as_bytes()), Ok(superblock()));
        let alone = Superblock { ro_compat: ro_compat::VOLUME_UUID, ..full }.encode();
        assert_eq!(Superblock::decode(alone.as_bytes()), Err(SuperblockError::Field { field: "ro_compat", found: 4 }));
    }
}

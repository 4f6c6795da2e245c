//! Limits of quota: tables of records, stored as attributes of the root directory in the namespace [`Namespace::Quota`](crate::attributes::Namespace::Quota).
//!
//! A *chunk* holds the limits of up to [`CHUNK_RECORDS`] ids of one kind, ordered by id. The name of its attribute behind the prefix is its
//! [`ChunkName`]. Chunk 0 of a kind also has the kind's grace period. How much is used is not stored: a mount counts it.

use std::fmt;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::integer::{U32, U64};

/// Most records of a chunk.
pub const CHUNK_RECORDS: usize = 512;
/// Most chunks of a kind: 32,768 ids of each kind can have limits.
pub const CHUNKS_MAX: u32 = 64;
/// The grace period where none was set: seven days, in seconds, as `edquota` has it.
pub const GRACE_SECONDS_DEFAULT: u32 = 7 * 24 * 60 * 60;

persistent! {
    /// Start of a chunk; its records follow.
    pub struct QuotaChunkHead [8] {
        /// Grace period of the kind in seconds, in chunk 0; zero in others.
        grace_seconds: U32 = 0,
        /// Zero.
        zero: [u8; 4] = 4,
    }
}

persistent! {
    /// Limits of one id.
    pub struct QuotaRecordBytes [80] {
        /// User, group or project.
        id: U32 = 0,
        /// Zero.
        zero: [u8; 4] = 4,
        /// Soft and hard limit of bytes in the memory zone; 0 none.
        memory_bytes: [U64; 2] = 8,
        /// Soft and hard limit of bytes in the block zone; 0 none.
        block_bytes: [U64; 2] = 24,
        /// Soft and hard limit of inodes; 0 none.
        inodes: [U64; 2] = 40,
        /// Since when usage is above the soft limit, for memory, block and inodes, in seconds since 1970; 0 where it is not.
        over_since: [U64; 3] = 56,
    }
}

/// Whose usage is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuotaKind {
    /// The owner of a file.
    User,
    /// Its group.
    Group,
    /// Its project: a directory tree.
    Project,
}

impl QuotaKind {
    /// All of them, in the order of [`QuotaKind::index`].
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Project => "project",
        }
    }

    /// The kind of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its position in [`QuotaKind::ALL`].
    pub fn index(self) -> usize {
        match self {
            Self::User => 0,
            Self::Group => 1,
            Self::Project => 2,
        }
    }
}

/// Which chunk of which kind an attribute holds: the name behind the prefix, as in `user.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkName {
    /// The kind.
    pub kind: QuotaKind,
    /// Number of the chunk, below [`CHUNKS_MAX`].
    pub index: u32,
}

impl ChunkName {
    /// The chunk of a name; `None` if no chunk is called so.
    pub fn parse(name: &[u8]) -> Option<Self> {
        let (kind, index) = std::str::from_utf8(name).ok()?.split_once('.')?;
        let chunk = Self { kind: QuotaKind::named(kind)?, index: index.parse().ok()? };
        (chunk.index < CHUNKS_MAX && chunk.to_string().as_bytes() == name).then_some(chunk)
    }
}

impl fmt::Display for ChunkName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.kind.name(), self.index)
    }
}

/// A soft and a hard limit; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limit {
    /// May be passed for the grace period.
    pub soft: u64,
    /// Is never passed.
    pub hard: u64,
}

impl Limit {
    /// Whether nothing is limited.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Whether the two fit each other.
    pub fn is_possible(self) -> bool {
        self.hard == 0 || self.soft <= self.hard
    }
}

/// The limits of one id: of bytes in the memory zone, bytes in the block zone, and inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaRecord {
    /// User, group or project.
    pub id: u32,
    /// Limits by resource.
    pub limits: [Limit; 3],
    /// Since when usage is above the soft limit, in seconds since 1970; 0 where it is not.
    pub over_since: [u64; 3],
}

/// A chunk in memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QuotaChunk {
    /// Grace period of the kind in seconds, in chunk 0; 0 in others.
    pub grace_seconds: u32,
    /// Ordered by id.
    pub records: Vec<QuotaRecord>,
}

impl QuotaChunk {
    /// The value of the attribute.
    pub fn encode(&self) -> Vec<u8> {
        let head = QuotaChunkHead { grace_seconds: self.grace_seconds.into(), zero: [0; 4] };
        let mut value = head.as_bytes().to_vec();
        for record in &self.records {
            let mut bytes = QuotaRecordBytes::new_zeroed();
            bytes.id = record.id.into();
            let [memory, block, inodes] = record.limits.map(|limit| [limit.soft.into(), limit.hard.into()]);
            (bytes.memory_bytes, bytes.block_bytes, bytes.inodes) = (memory, block, inodes);
            bytes.over_since = record.over_since.map(Into::into);
            value.extend_from_slice(bytes.as_bytes());
        }
        value
    }

    /// The chunk of a value.
    ///
    /// # Errors
    /// What is wrong with it: `length`, `zero`, `order` of ids, or `limit`.
    pub fn decode(name: ChunkName, value: &[u8]) -> Result<Self, &'static str> {
        let (head, records) = QuotaChunkHead::read_from_prefix(value).map_err(|_| "length")?;
        if !records.len().is_multiple_of(size_of::<QuotaRecordBytes>()) || records.len() / size_of::<QuotaRecordBytes>() > CHUNK_RECORDS {
            return Err("length");
        }
        if head.zero != [0; 4] || (name.index > 0 && head.grace_seconds.get() != 0) {
            return Err("zero");
        }
        let mut chunk = Self { grace_seconds: head.grace_seconds.get(), records: Vec::new() };
        for bytes in records.chunks_exact(size_of::<QuotaRecordBytes>()) {
            let bytes = QuotaRecordBytes::read_from_bytes(bytes).map_err(|_| "length")?;
            let limit = |[soft, hard]: [U64; 2]| Limit { soft: soft.get(), hard: hard.get() };
            let record = QuotaRecord {
                id: bytes.id.get(),
                limits: [limit(bytes.memory_bytes), limit(bytes.block_bytes), limit(bytes.inodes)],
                over_since: bytes.over_since.map(U64::get),
            };
            if bytes.zero != [0; 4] {
                return Err("zero");
            }
            if chunk.records.last().is_some_and(|before| before.id >= record.id) {
                return Err("order");
            }
            if record.limits.iter().all(|limit| limit.is_none()) || !record.limits.iter().all(|limit| limit.is_possible()) {
                return Err("limit");
            }
            chunk.records.push(record);
        }
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: ChunkName = ChunkName { kind: QuotaKind::User, index: 0 };

    fn record(id: u32) -> QuotaRecord {
        let limits = [Limit { soft: 1, hard: 2 }, Limit { soft: 0, hard: 1 << 40 }, Limit { soft: 7, hard: 0 }];
        QuotaRecord { id, limits, over_since: [0, 1_800_000_000, 0] }
    }

    #[test]
    fn chunks_round_trip() {
        let chunk = QuotaChunk { grace_seconds: 3600, records: vec![record(0), record(7), record(u32::MAX)] };
        assert_eq!(QuotaChunk::decode(FIRST, &chunk.encode()), Ok(chunk));
        let empty = QuotaChunk { grace_seconds: 5, records: Vec::new() };
        assert_eq!(QuotaChunk::decode(FIRST, &empty.encode()), Ok(empty));
        let full = QuotaChunk { grace_seconds: 0, records: (0..CHUNK_RECORDS as u32).map(record).collect() };
        assert!(full.encode().len() <= crate::attributes::ATTRIBUTE_VALUE_MAX);
        assert_eq!(QuotaChunk::decode(FIRST, &full.encode()), Ok(full));
    }

    #[test]
    fn what_no_build_writes_is_refused() {
        let later = ChunkName { kind: QuotaKind::Group, index: 1 };
        let of = |records: Vec<QuotaRecord>| QuotaChunk { grace_seconds: 0, records }.encode();
        let mut unclean = of(vec![record(1)]);
        unclean[12] = 1;
        let above = QuotaRecord { limits: [Limit { soft: 3, hard: 2 }, Limit::default(), Limit::default()], ..record(1) };
        let none = QuotaRecord { limits: [Limit::default(); 3], ..record(1) };
        for (name, value, wrong) in [
            (FIRST, vec![0; 7], "length"),
            (FIRST, vec![0; 9], "length"),
            (FIRST, of((0..=CHUNK_RECORDS as u32).map(record).collect()), "length"),
            (FIRST, vec![0, 0, 0, 0, 1, 0, 0, 0], "zero"),
            (later, vec![1, 0, 0, 0, 0, 0, 0, 0], "zero"),
            (FIRST, unclean, "zero"),
            (FIRST, of(vec![record(2), record(1)]), "order"),
            (FIRST, of(vec![record(2), record(2)]), "order"),
            (FIRST, of(vec![above]), "limit"),
            (FIRST, of(vec![none]), "limit"),
        ] {
            assert_eq!(QuotaChunk::decode(name, &value), Err(wrong));
        }
    }

    #[test]
    fn chunks_have_one_name_each() {
        for kind in QuotaKind::ALL {
            let name = ChunkName { kind, index: 63 };
            assert_eq!(ChunkName::parse(name.to_string().as_bytes()), Some(name));
            assert_eq!(QuotaKind::ALL[kind.index()], kind);
        }
        for other in ["user", "user.", "user.64", "user.00", "user.+1", "nobody.0", ".0", "user.0.0"] {
            assert_eq!(ChunkName::parse(other.as_bytes()), None, "{other}");
        }
    }
}

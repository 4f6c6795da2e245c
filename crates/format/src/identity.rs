//! The identity of the block half: which pair it belongs to, and to which time of it.
//!
//! Every mount that writes draws a stamp and leaves it in both halves. A half that was copied at another time has another stamp, so it is
//! not taken for the partner of today's half. The superblock holds two stamps while the identity changes from one to the other; the order of
//! the writes is in `crates/fs/src/stamp.rs`.

use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use crate::checksum::crc32c;
use crate::integer::{U32, U64};
use crate::superblock::{MAGIC, Superblock, VERSION, ro_compat};

persistent! {
    /// First bytes of the block zone's first sector: which pair the half belongs to.
    pub struct BlockIdentity [64] {
        /// CRC-32C of bytes 4..64.
        crc: U32 = 0,
        /// `TandemFS`.
        magic: [u8; 8] = 4,
        /// Version of the format.
        version: U32 = 12,
        /// UUID of the pair of halves.
        pair: [u8; 16] = 16,
        /// Stamp of the last mount that wrote.
        stamp: U64 = 32,
        /// UUID of the file system for users.
        volume_uuid: [u8; 16] = 40,
        /// Zero.
        zero: [u8; 8] = 56,
    }
}

/// The stamps in a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamps {
    /// What the identity says between two changes.
    pub current: u64,
    /// What the identity says from the next change on; otherwise equal to `current`.
    pub pending: u64,
}

impl Stamps {
    /// Both equal.
    pub fn settled(stamp: u64) -> Self {
        Self { current: stamp, pending: stamp }
    }

    /// Whether the identity may be changing.
    pub fn is_changing(&self) -> bool {
        self.current != self.pending
    }

    /// Whether an identity with this stamp is of the same time.
    pub fn accepts(&self, stamp: u64) -> bool {
        stamp == self.current || stamp == self.pending
    }
}

/// What the first sector of a block half says, compared with the superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockHalf {
    /// It is the other half, of the same time.
    Partner {
        /// The stamp that it names; 0 without the feature.
        stamp: u64,
        /// Its UUID for users is that of the superblock.
        names_volume: bool,
    },
    /// It is the other half; a power cut or a kill tore its identity while its stamp was changed.
    Torn,
    /// It is of the pair, but of another time.
    OtherTime {
        /// The stamp that it names.
        stamp: u64,
    },
    /// It is of another pair.
    OtherPair {
        /// The pair that it names.
        pair: Uuid,
    },
    /// It has no valid identity.
    Damaged {
        /// The magic number or the pair is still there.
        resembles: bool,
    },
}

impl BlockIdentity {
    /// The identity that goes with a superblock.
    pub fn of(superblock: &Superblock) -> Self {
        Self::stamped(superblock, superblock.stamps.current)
    }

    /// The identity that goes with a superblock, with another stamp.
    pub fn stamped(superblock: &Superblock, stamp: u64) -> Self {
        let has = |bit| superblock.ro_compat & bit != 0;
        let mut identity = Self {
            crc: 0.into(),
            magic: MAGIC,
            version: VERSION.into(),
            pair: *superblock.pair.as_bytes(),
            stamp: if has(ro_compat::STAMP) { stamp } else { 0 }.into(),
            volume_uuid: if has(ro_compat::VOLUME_UUID) { *superblock.volume_uuid.as_bytes() } else { [0; 16] },
            zero: [0; 8],
        };
        identity.crc = crc32c(&identity.as_bytes()[4..]).into();
        identity
    }

    /// The identity in a sector, if it is valid.
    pub fn decode(sector: &[u8]) -> Option<Self> {
        let (identity, _) = Self::read_from_prefix(sector).ok()?;
        (identity.magic == MAGIC && crc32c(&identity.as_bytes()[4..]) == identity.crc.get()).then_some(identity)
    }

    /// The pair that it names.
    pub fn pair(&self) -> Uuid {
        Uuid::from_bytes(self.pair)
    }

    /// The UUID that users see: that of the volume, or that of the pair where it names no volume.
    pub fn uuid(&self) -> Uuid {
        if self.volume_uuid == [0; 16] { self.pair() } else { Uuid::from_bytes(self.volume_uuid) }
    }
}

impl Superblock {
    /// Whether it has a feature of `ro_compat`.
    pub fn has(&self, feature: u64) -> bool {
        self.ro_compat & feature != 0
    }

    /// The UUID that users see: that of the volume, or that of the pair without the feature.
    pub fn uuid(&self) -> Uuid {
        if self.has(ro_compat::VOLUME_UUID) { self.volume_uuid } else { self.pair }
    }

    /// Compares the first sector of the block half with this superblock.
    pub fn block_half(&self, sector: &[u8]) -> BlockHalf {
        let Some(identity) = BlockIdentity::decode(sector) else { return self.without_identity(sector) };
        if identity.pair() != self.pair {
            return BlockHalf::OtherPair { pair: identity.pair() };
        }
        let stamp = identity.stamp.get();
        if self.has(ro_compat::STAMP) && !self.stamps.accepts(stamp) {
            return BlockHalf::OtherTime { stamp };
        }
        BlockHalf::Partner {
            stamp,
            names_volume: !self.has(ro_compat::VOLUME_UUID) || identity.volume_uuid == *self.volume_uuid.as_bytes(),
        }
    }

    fn without_identity(&self, sector: &[u8]) -> BlockHalf {
        let Ok((remains, _)) = BlockIdentity::read_from_prefix(sector) else { return BlockHalf::Damaged { resembles: false } };
        let (has_magic, has_pair) = (remains.magic == MAGIC, remains.pair == *self.pair.as_bytes());
        // Such a change touches the stamp, the UUID and the checksum only.
        let is_torn = has_magic && has_pair && remains.version.get() == VERSION && remains.zero == [0; 8];
        match is_torn && self.has(ro_compat::STAMP) && self.stamps.is_changing() {
            true => BlockHalf::Torn,
            false => BlockHalf::Damaged { resembles: has_magic || has_pair },
        }
    }
}

/// That two halves are of one pair and from different times, as a sentence.
pub fn times_differ(block_stamp: &u64, memory_stamp: &u64) -> String {
    format!(
        "the two halves of the pair are from different times (stamp {memory_stamp:016x} in the memory half, {block_stamp:016x} in the block \
         half), so one of them is an older copy; put the halves back that belong together, or copy out what verifies with tandemfs restore"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::tests::superblock;

    fn stamped(current: u64, pending: u64) -> Superblock {
        let both = ro_compat::STAMP | ro_compat::VOLUME_UUID;
        Superblock { ro_compat: both, stamps: Stamps { current, pending }, volume_uuid: Uuid::from_u128(0x77), ..superblock() }
    }

    fn partner(stamp: u64) -> BlockHalf {
        BlockHalf::Partner { stamp, names_volume: true }
    }

    #[test]
    fn identity_names_the_pair() {
        let identity = BlockIdentity::of(&superblock());
        assert_eq!(BlockIdentity::decode(identity.as_bytes()), Some(identity));
        assert_eq!((identity.pair(), identity.uuid()), (superblock().pair, superblock().pair));
        let mut damaged = identity;
        damaged.pair[0] ^= 1;
        assert_eq!(BlockIdentity::decode(damaged.as_bytes()), None);
    }

    #[test]
    fn both_stamps_are_accepted_while_the_identity_changes_and_no_other_ever() {
        for (current, pending, stamp, is_partner) in
            [(5, 5, 5, true), (5, 5, 6, false), (5, 6, 5, true), (5, 6, 6, true), (5, 6, 7, false), (5, 5, 0, false)]
        {
            let identity = BlockIdentity::stamped(&stamped(current, pending), stamp);
            let expected = if is_partner { partner(stamp) } else { BlockHalf::OtherTime { stamp } };
            assert_eq!(stamped(current, pending).block_half(identity.as_bytes()), expected, "{current} {pending} {stamp}");
        }
    }

    #[test]
    fn without_the_features_stamp_and_uuid_mean_nothing() {
        let old = superblock();
        assert_eq!(BlockIdentity::of(&stamped(5, 5)).uuid(), Uuid::from_u128(0x77));
        let identity = BlockIdentity::of(&old);
        assert_eq!((identity.stamp.get(), identity.volume_uuid), (0, [0; 16]));
        assert_eq!(old.block_half(BlockIdentity::of(&stamped(5, 5)).as_bytes()), partner(5));
        assert_eq!((old.uuid(), stamped(5, 5).uuid()), (old.pair, Uuid::from_u128(0x77)));
    }

    #[test]
    fn another_pair_and_another_uuid_are_told_apart() {
        let other = Superblock { pair: Uuid::from_u128(9), ..stamped(5, 5) };
        let found = stamped(5, 5).block_half(BlockIdentity::of(&other).as_bytes());
        assert_eq!(found, BlockHalf::OtherPair { pair: Uuid::from_u128(9) });
        let renamed = Superblock { volume_uuid: Uuid::from_u128(8), ..stamped(5, 5) };
        let found = stamped(5, 5).block_half(BlockIdentity::of(&renamed).as_bytes());
        assert_eq!(found, BlockHalf::Partner { stamp: 5, names_volume: false });
    }

    /// Every mix of the bytes of two identities that differ as a mount makes them differ.
    #[test]
    fn a_torn_change_is_no_damage_while_it_may_happen() {
        let changing = stamped(5, u64::MAX / 3);
        let (old, new) = (BlockIdentity::stamped(&changing, 5), BlockIdentity::stamped(&changing, u64::MAX / 3));
        for cut in 1..64 {
            for (first, second) in [(&old, &new), (&new, &old)] {
                let torn = [&first.as_bytes()[..cut], &second.as_bytes()[cut..]].concat();
                let found = changing.block_half(&torn);
                assert!(matches!(found, BlockHalf::Torn | BlockHalf::Partner { .. }), "{cut}: {found:?}");
                let settled = stamped(5, 5).block_half(&torn);
                assert!(
                    settled == partner(5)
                        || settled == BlockHalf::Damaged { resembles: true }
                        || matches!(settled, BlockHalf::OtherTime { .. })
                );
            }
        }
        let mut foreign = BlockIdentity::of(&changing);
        foreign.pair[3] ^= 1;
        assert_eq!(changing.block_half(foreign.as_bytes()), BlockHalf::Damaged { resembles: true });
        assert_eq!(changing.block_half(&[0; 64]), BlockHalf::Damaged { resembles: false });
        assert_eq!(changing.block_half(&[]), BlockHalf::Damaged { resembles: false });
    }
}

//! A lease for stores as one number: the word of the ring that it is, and its epoch.

use std::num::NonZeroU64;

use tandemfs_ring::{LEASE_WORDS, LeaseToken};

use crate::Malformed;

/// A lease for stores: 0 the number of its word (4), 4 its epoch (4), which is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLease(pub LeaseToken);

impl StoreLease {
    /// As the number in an answer or a request.
    pub fn encode(self) -> u64 {
        u64::from(self.0.epoch) << 32 | u64::from(self.0.index)
    }

    /// From such a number.
    ///
    /// # Errors
    /// [`Malformed`] for a word or an epoch that no lease has.
    pub fn decode(number: u64) -> Result<Self, Malformed> {
        let (index, epoch) = (number as u32, (number >> 32) as u32);
        match index < LEASE_WORDS && epoch > 0 {
            true => Ok(Self(LeaseToken { index, epoch })),
            false => Err(Malformed::Field("a lease that is none")),
        }
    }

    /// As the field of [`crate::Operation::ReturnStores`]; none for an epoch of zero.
    pub fn number(self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_survive_their_number() {
        for (index, epoch) in [(0, 1), (LEASE_WORDS - 1, u32::MAX), (7, 9)] {
            let lease = StoreLease(LeaseToken { index, epoch });
            assert_eq!(StoreLease::decode(lease.encode()), Ok(lease));
            assert_eq!(lease.number().map(NonZeroU64::get), Some(lease.encode()));
        }
        for wrong in [0, 1, u64::from(LEASE_WORDS) | 1 << 32, u64::from(u32::MAX) | 1 << 32] {
            assert!(StoreLease::decode(wrong).is_err(), "{wrong:#x}");
        }
    }
}

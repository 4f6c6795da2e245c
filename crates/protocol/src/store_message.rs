//! What the daemon says on the socket with a description of the memory zone for one mapping: 16 bytes, 0 the number of the mapping (8), 8 flags (8): 1
//! where the lines of what was stored are to be flushed before they are durable.

use std::num::NonZeroU64;

use crate::Malformed;

const NEEDS_FLUSH: u64 = 1;

/// Bytes of the message. One with a descriptor of an open file has another length.
pub const STORE_MESSAGE_BYTES: usize = 16;

/// The message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreMessage {
    /// The mapping.
    pub mapping: NonZeroU64,
    /// Stores are durable only once their lines were flushed, and a fence has passed; elsewhere at once, or with the power that remains.
    pub needs_flush: bool,
}

impl StoreMessage {
    /// As bytes.
    pub fn encode(&self) -> [u8; STORE_MESSAGE_BYTES] {
        let flags = if self.needs_flush { NEEDS_FLUSH } else { 0 };
        let mut bytes = [0; STORE_MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&self.mapping.get().to_le_bytes());
        bytes[8..].copy_from_slice(&flags.to_le_bytes());
        bytes
    }

    /// From a message of the socket.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed::Field("a message that is none about a mapping");
        let (words, rest) = bytes.as_chunks::<8>();
        let [mapping, flags] = words else { return Err(malformed) };
        match (NonZeroU64::new(u64::from_le_bytes(*mapping)), u64::from_le_bytes(*flags)) {
            (Some(mapping), flags @ 0..=NEEDS_FLUSH) if rest.is_empty() => Ok(Self { mapping, needs_flush: flags == NEEDS_FLUSH }),
            _ => Err(malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_survives_its_bytes_and_nothing_else_is_one() {
        for (number, needs_flush) in [(1, false), (7, true), (u64::MAX, true)] {
            let message = StoreMessage { mapping: NonZeroU64::new(number).expect("a number"), needs_flush };
            assert_eq!(StoreMessage::decode(&message.encode()), Ok(message));
        }
        let with = |mapping: u64, flags: u64| [mapping.to_le_bytes(), flags.to_le_bytes()].concat();
        for wrong in [with(0, 0), with(1, 2), with(1, u64::MAX), with(1, 0)[..15].to_vec(), [with(1, 0), vec![0]].concat(), Vec::new()] {
            assert!(StoreMessage::decode(&wrong).is_err(), "{wrong:?}");
        }
    }
}

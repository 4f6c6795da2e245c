//! Little-endian integers of the widths that the format uses. The widths that have no machine type (40 and 48 bits) are made here.

pub use zerocopy::little_endian::{U16, U32, U64};

macro_rules! narrow {
    ($(#[$meta:meta])* $name:ident, $bytes:literal) => {
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Default,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout, zerocopy::Unaligned,
        )]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// The largest value.
            pub const MAX: u64 = (1 << ($bytes * 8)) - 1;

            /// Panics if `value` does not fit: such a value is a bug of the caller, never input.
            pub fn new(value: u64) -> Self {
                assert!(value <= Self::MAX, "{value} does not fit {} bits", $bytes * 8);
                let mut bytes = [0; $bytes];
                bytes.copy_from_slice(&value.to_le_bytes()[..$bytes]);
                Self(bytes)
            }

            /// The value.
            pub fn get(self) -> u64 {
                let mut bytes = [0; 8];
                bytes[..$bytes].copy_from_slice(&self.0);
                u64::from_le_bytes(bytes)
            }
        }
    };
}

narrow!(
    /// 40 bits: line addresses (64 TiB) and sectors (4 PiB).
    U40, 5
);
narrow!(
    /// 48 bits: inode numbers, and the packed part of a log entry.
    U48, 6
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_integers_round_trip() {
        for value in [0, 1, 255, 256, U40::MAX - 1, U40::MAX] {
            assert_eq!(U40::new(value).get(), value);
        }
        assert_eq!(U48::new(U48::MAX).get(), U48::MAX);
    }

    #[test]
    #[should_panic(expected = "does not fit 40 bits")]
    fn a_value_too_wide_is_refused() {
        let _ = U40::new(U40::MAX + 1);
    }
}

//! Texts of requests ([MSG3] of `lib.rs`).

use tandemfs_ring::Range;

use crate::Malformed;

/// Longest text: a path without its NUL.
pub const TEXT_BYTES_MAX: u32 = 4095;

/// A text of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text<'a> {
    /// In the slot; at most 255 bytes.
    Here(&'a [u8]),
    /// In the data area.
    There(Range),
}

impl<'a> Text<'a> {
    /// The range of the data area; none for a text in the slot.
    pub(crate) fn range(self) -> Range {
        match self {
            Self::Here(_) => Range::default(),
            Self::There(range) => range,
        }
    }

    /// The bytes in the slot; none for a text in the data area.
    pub(crate) fn here(self) -> &'a [u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::There(_) => &[],
        }
    }

    pub(crate) fn of(here: &'a [u8], range: Range) -> Result<Self, Malformed> {
        match range.length {
            0 => Ok(Self::Here(here)),
            _ if !here.is_empty() => Err(Malformed::Field("a text in two places")),
            1..=TEXT_BYTES_MAX => Ok(Self::There(range)),
            _ => Err(Malformed::Field("a text that is longer than any path")),
        }
    }
}

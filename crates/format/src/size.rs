//! Sizes in messages for people.

use std::borrow::Borrow;
use std::fmt;

/// A size in bytes that is shown exactly, in the largest unit that needs no fraction: `16 MiB`, `4097 B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(u64);

/// The size for a message.
pub fn size(bytes: impl Borrow<u64>) -> Size {
    Size(*bytes.borrow())
}

impl fmt::Display for Size {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match UNITS.iter().find(|(_, shift)| self.0 >> shift != 0 && self.0.is_multiple_of(1 << shift)) {
            Some((unit, shift)) => write!(to, "{} {unit}", self.0 >> shift),
            None => write!(to, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_and_short() {
        for (bytes, shown) in [
            (0, "0 B"),
            (512, "512 B"),
            (4096, "4 KiB"),
            (16 << 20, "16 MiB"),
            (3 << 29, "1536 MiB"),
            (1 << 46, "64 TiB"),
            ((1 << 30) + 1, "1073741825 B"),
            ((256 << 20) - 4096, "262140 KiB"),
        ] {
            assert_eq!(size(bytes).to_string(), shown);
            let borrowed: &u64 = &bytes;
            assert_eq!(size(borrowed).to_string(), shown);
        }
    }
}

//! Sizes in messages for people, and as people write them: `4096`, `64K`, `1.5G`, `2TiB`. Units are binary.

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

/// Parses a size into bytes. The error is a sentence.
///
/// # Errors
/// What is no size, or too large.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size; write a number with K, M, G or T, such as 64K or 1.5G");
    let end = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.strip_suffix("iB").or_else(|| unit.strip_suffix('B')).unwrap_or(unit);
    let shift = match unit {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let too_large = || format!("'{text}' is more than 16 EiB");
    let bytes = whole.checked_mul(1 << shift).ok_or_else(too_large)?;
    if fraction.is_empty() {
        return if number.ends_with('.') { Err(wrong()) } else { Ok(bytes) };
    }
    // A fraction of a byte is an error; 18 digits are exact in 128 bits.
    if fraction.len() > 18 || shift == 0 {
        return Err(wrong());
    }
    let digits: u128 = fraction.parse().map_err(|_| wrong())?;
    let part = (digits << shift) / 10u128.pow(fraction.len() as u32);
    bytes.checked_add(u64::try_from(part).map_err(|_| wrong())?).ok_or_else(too_large)
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

//! Sizes on the command line: `4096`, `64K`, `1.5G`, `2TiB`. Units are binary.

/// Parses a size into bytes.
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

/// A size for people.
pub fn show(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.iter().find(|(_, shift)| bytes >> shift != 0) {
        Some((unit, shift)) if bytes.is_multiple_of(1 << shift) => format!("{} {unit}", bytes >> shift),
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// A size for people, of what may be missing.
pub fn show_or_none(bytes: u64) -> String {
    if bytes == 0 { "none".into() } else { show(bytes) }
}

/// A size as [`parse`] takes it, exact: `64K`, `512`.
pub fn word(bytes: u64) -> String {
    let unit = [("T", 40), ("G", 30), ("M", 20), ("K", 10)].into_iter().find(|(_, shift)| bytes != 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_exact() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("3MiB", 3 << 20),
            ("5GB", 5 << 30),
            ("1.5G", 3 << 29),
            ("2T", 2 << 40),
            ("0.25K", 256),
            ("512B", 512),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_named() {
        for text in ["", "K", "1X", "-1", "1.5", "1.", "1.G", "1..5G", "1K2", "0x10", " 1K", "99999999999T", "18446744073709551616"] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(&format!("'{text}'")), "{error}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(1 << 30), "1 GiB");
        assert_eq!(show(3 << 29), "1.5 GiB");
        assert_eq!(show(1000), "1000 B");
        for bytes in [0, 512, 1 << 10, 3 << 20, 1 << 30, (1 << 30) + 1] {
            assert_eq!(parse(&word(bytes)), Ok(bytes));
        }
        assert_eq!((word(64 << 10), word(0)), ("64K".into(), "0".into()));
    }
}

//! Sizes on the command line: `4096`, `64K`, `1.5G`, `2TiB`. Units are binary.

pub use tandemfs_format::size::parse;

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

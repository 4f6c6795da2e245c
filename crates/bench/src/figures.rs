//! Formatting of numbers: three digits and a suitable unit.

/// Three digits: `1.23`, `12.3`, `123`. Callers use prefixes for larger or smaller values.
pub fn three_digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (2 - magnitude).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    // 9.996 rounds to 10.00, which has one digit too many.
    let digits = text.chars().filter(char::is_ascii_digit).collect::<String>();
    if digits.trim_start_matches('0').len() > 3 && decimals > 0 { format!("{value:.*}", decimals - 1) } else { text }
}

/// In the largest unit that is not above the value, or in the first unit.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    // A value that rounds up to the next unit is written in that unit: 1,000 us is 1 ms.
    let fits = |one: f64| value.abs() * 1.0005 >= one;
    let (one, unit) = units.iter().rev().find(|(one, _)| fits(*one)).or(units.first()).copied().unwrap_or((1.0, ""));
    let number = three_digits(value / one);
    if unit.is_empty() { number } else { format!("{number} {unit}") }
}

/// A time in nanoseconds.
pub fn time(nanoseconds: f64) -> String {
    scaled(nanoseconds, &[(1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s")])
}

/// A number of bytes.
pub fn bytes(bytes: f64) -> String {
    const KIB: f64 = 1024.0;
    scaled(bytes, &[(1.0, "B"), (KIB, "KiB"), (KIB * KIB, "MiB"), (KIB * KIB * KIB, "GiB"), (KIB * KIB * KIB * KIB, "TiB")])
}

/// A number of items.
pub fn count(value: f64) -> String {
    scaled(value, &[(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")])
}

/// Units per second: bytes, or other units, which the table's head names.
pub fn rate(value: f64, unit: &str) -> String {
    if unit == "bytes" { format!("{}/s", bytes(value)) } else { count(value) }
}

/// `3.21×`.
pub fn ratio(value: f64) -> String {
    if value.is_finite() { format!("{}×", three_digits(value)) } else { "–".to_owned() }
}

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{} %", three_digits(share * 100.0)) } else { "–".to_owned() }
}

/// The singular of a unit: `operation` for `operations`.
pub fn singular(unit: &str) -> String {
    match unit {
        "entries" | "queries" | "directories" => format!("{}y", &unit[..unit.len() - 3]),
        _ => unit.strip_suffix('s').unwrap_or(unit).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_three() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1.00"),
            (1.234, "1.23"),
            (9.996, "10.0"),
            (12.34, "12.3"),
            (99.96, "100"),
            (999.7, "1000"),
            (0.05, "0.0500"),
        ] {
            assert_eq!(three_digits(value), text, "{value}");
        }
        assert_eq!((three_digits(0.9999), three_digits(-3.456)), ("1.00".to_owned(), "-3.46".to_owned()));
    }

    #[test]
    fn units_make_numbers_short() {
        assert_eq!([time(12.0), time(1690.0), time(999_999.0), time(90e9)], ["12.0 ns", "1.69 us", "1.00 ms", "90.0 s"]);
        assert_eq!([bytes(512.0), bytes(4096.0), bytes(1.5 * 1_048_576.0), bytes(0.0)], ["512 B", "4.00 KiB", "1.50 MiB", "0 B"]);
        assert_eq!([count(0.25), count(1500.0), count(2e6)], ["0.250", "1.50 k", "2.00 M"]);
        assert_eq!([rate(1_048_576.0, "bytes"), rate(5000.0, "files")], ["1.00 MiB/s", "5.00 k"]);
    }

    #[test]
    fn what_is_no_number_is_a_dash() {
        assert_eq!([time(f64::NAN), ratio(f64::INFINITY), percent(f64::NAN)], ["–"; 3]);
    }

    #[test]
    fn units_have_a_singular() {
        assert_eq!(["operations", "queries", "bytes", "fish"].map(singular), ["operation", "query", "byte", "fish"]);
    }
}

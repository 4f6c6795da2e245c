//! The cost of the detour (FUSE and loop device) in addition to the drive itself, and how much of it is subtracted.

use serde::{Deserialize, Serialize};

/// Largest difference between both drives; otherwise nothing is compared.
pub const TOLERANCE: f64 = 0.05;

/// Time as a linear function of size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Time of a request without bytes, in nanoseconds.
    pub base_ns: f64,
    /// Time per byte, in nanoseconds.
    pub byte_ns: f64,
}

impl Line {
    /// The line through two points (bytes, nanoseconds), limited to a slope and values of at least zero.
    pub fn through(small: (u64, f64), large: (u64, f64)) -> Self {
        let byte_ns = ((large.1 - small.1) / (large.0 as f64 - small.0 as f64)).max(0.0);
        Self { base_ns: small.1 - byte_ns * small.0 as f64, byte_ns }
    }

    /// Time of a request, in nanoseconds.
    pub fn at(&self, bytes: u64) -> u64 {
        (self.base_ns + self.byte_ns * bytes as f64).max(0.0) as u64
    }
}

/// Numbers of outstanding requests, including the new one, for which the detour is known.
pub const DEPTHS: [u32; 3] = [1, 4, 16];

/// Time subtracted from the service of a request, by direction and number of outstanding requests: these wait for each other on the detour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Detour {
    /// Of reads, at each of [`DEPTHS`].
    pub read: [Line; 3],
    /// Of writes.
    pub write: [Line; 3],
}

impl Detour {
    /// An infinite detour: replies are sent at once.
    pub fn endless() -> Self {
        let endless = [Line { base_ns: 1e12, byte_ns: 0.0 }; 3];
        Self { read: endless, write: endless }
    }

    /// Detour of a request of `bytes` while `others` are outstanding, in nanoseconds: linear between known depths, constant beyond the
    /// deepest.
    pub fn of(&self, is_read: bool, bytes: u64, others: usize) -> u64 {
        let lines = if is_read { &self.read } else { &self.write };
        let depth = (others as f64 + 1.0).min(f64::from(DEPTHS[DEPTHS.len() - 1]));
        let after = DEPTHS.iter().position(|known| depth <= f64::from(*known)).unwrap_or_default().max(1);
        let (left, right) = (f64::from(DEPTHS[after - 1]), f64::from(DEPTHS[after]));
        let share = ((depth - left) / (right - left)).max(0.0);
        let [before, behind] = [after - 1, after].map(|index| lines[index].at(bytes) as f64);
        (before + (behind - before) * share) as u64
    }
}

/// Difference of two times relative to the drive's: positive if the loop device is slower.
pub fn difference(loop_ns: f64, drive_ns: f64) -> f64 {
    (loop_ns - drive_ns) / drive_ns
}

/// Whether the difference is within the tolerance.
pub fn is_equal(loop_ns: f64, drive_ns: f64) -> bool {
    drive_ns > 0.0 && difference(loop_ns, drive_ns).abs() <= TOLERANCE
}

/// When a reply is sent: earlier by the rest of the detour, but never before the request came. The drive itself stays busy for its full
/// time, so its throughput is unchanged.
pub fn release_ns(arrival_ns: u64, done_ns: u64, detour_ns: u64) -> u64 {
    done_ns.saturating_sub(detour_ns).max(arrival_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_meets_its_points_and_never_falls() {
        let line = Line::through((4096, 40_000.0), (65_536, 70_720.0));
        assert_eq!([line.at(4096), line.at(65_536)], [40_000, 70_720]);
        assert_eq!(line.at(0), 37_952);
        let flat = Line::through((4096, 40_000.0), (65_536, 30_000.0));
        assert_eq!([flat.at(4096), flat.at(65_536)], [40_000, 40_000], "noise does not make large requests cheaper");
        let negative = Line::through((4096, -100.0), (65_536, -100.0));
        assert_eq!(negative.at(4096), 0);
    }

    #[test]
    fn who_finds_others_on_the_drive_gets_what_their_number_gets() {
        let line = |base_ns| Line { base_ns, byte_ns: 1.0 };
        let detour = Detour { read: [line(10_000.0), line(13_000.0), line(25_000.0)], write: [line(5_000.0); 3] };
        let of_reads = |others| detour.of(true, 500, others);
        assert_eq!([0, 1, 3, 4, 15, 16, 99].map(of_reads), [10_500, 11_500, 13_500, 14_500, 25_500, 25_500, 25_500]);
        assert_eq!(detour.of(false, 0, 7), 5_000);
        assert!(Detour::endless().of(true, 4096, 0) > 1_000_000_000);
    }

    #[test]
    fn within_five_percent_is_equal_and_nothing_beyond() {
        assert!(is_equal(52_500.0, 50_000.0) && is_equal(47_500.0, 50_000.0));
        assert!(!is_equal(52_600.0, 50_000.0) && !is_equal(47_400.0, 50_000.0));
        assert!(!is_equal(f64::NAN, 50_000.0) && !is_equal(50_000.0, 0.0), "what was not measured is not equal");
        assert!(difference(60_000.0, 50_000.0) > 0.19, "slower is positive");
    }

    #[test]
    fn an_answer_never_leaves_before_its_request_came() {
        assert_eq!(release_ns(1_000, 51_000, 40_000), 11_000);
        assert_eq!(release_ns(1_000, 11_000, 40_000), 1_000);
        assert_eq!(release_ns(1_000, 51_000, 0), 51_000);
    }
}

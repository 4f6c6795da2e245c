//! Requests as in RomeFS §4.2: sizes around a mean or below 1 MiB, at random places in a file.

use std::ops::Range;

use tandemfs_format::SECTOR_BYTES;

use crate::measure::Jumps;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Sizes of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Uniform within 10 % of this many bytes.
    About(u64),
    /// Uniform in (0, this many bytes).
    Below(u64),
}

/// The six sizes of the paper.
pub const SIZES: [Size; 6] =
    [Size::About(4 * KIB), Size::About(16 * KIB), Size::About(64 * KIB), Size::About(256 * KIB), Size::About(MIB), Size::Below(MIB)];

/// Largest request of all sizes, rounded up to sectors.
pub const REQUEST_BYTES_MAX: u64 = (MIB + MIB / 10).next_multiple_of(SECTOR_BYTES as u64);

impl Size {
    /// Name in tables.
    pub fn name(self) -> String {
        let short = |bytes: u64| match bytes {
            MIB => "1 MiB".to_owned(),
            bytes => format!("{} KiB", bytes / KIB),
        };
        match self {
            Self::About(bytes) => short(bytes),
            Self::Below(bytes) => format!("(0, {})", short(bytes)),
        }
    }

    /// Mean, in bytes.
    pub fn mean_bytes(self) -> u64 {
        match self {
            Self::About(bytes) => bytes,
            Self::Below(bytes) => bytes / 2,
        }
    }

    fn range(self) -> Range<u64> {
        match self {
            Self::About(bytes) => bytes - bytes / 10..bytes + bytes / 10 + 1,
            Self::Below(bytes) => 1..bytes,
        }
    }
}

/// Alignment of start and end of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alignment {
    /// At any byte.
    Byte,
    /// At multiples of 4 KiB.
    Sector,
}

/// A sequence of requests, determined by the seed.
#[derive(Debug, Clone)]
pub struct Requests {
    jumps: Jumps,
    size: Size,
    alignment: Alignment,
    file_bytes: u64,
}

impl Requests {
    /// For a file of `file_bytes`, which holds at least one request.
    pub fn new(seed: u64, size: Size, alignment: Alignment, file_bytes: u64) -> Self {
        assert!(file_bytes > REQUEST_BYTES_MAX, "a file of {file_bytes} B");
        Self { jumps: Jumps::new(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)), size, alignment, file_bytes }
    }

    /// Offset and length of the next one.
    pub fn draw(&mut self) -> (u64, u64) {
        let range = self.size.range();
        let length = range.start + self.jumps.below(range.end - range.start);
        let sector = SECTOR_BYTES as u64;
        match self.alignment {
            Alignment::Byte => (self.jumps.below(self.file_bytes - length + 1), length),
            Alignment::Sector => {
                let sectors = ((length + sector / 2) / sector).max(1);
                (self.jumps.below(self.file_bytes / sector - sectors + 1) * sector, sectors * sector)
            }
        }
    }
}

/// Bytes of a request in whole, aligned pieces of `threshold` bytes: RomeFS §3.3 sends these over the block path.
pub fn aligned_bytes(offset: u64, length: u64, threshold: u64) -> u64 {
    ((offset + length) / threshold * threshold).saturating_sub(offset.next_multiple_of(threshold))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_keep_to_their_sizes_and_to_the_file() {
        for size in SIZES {
            for alignment in [Alignment::Byte, Alignment::Sector] {
                let mut requests = Requests::new(3, size, alignment, 8 * MIB);
                let mut sum = 0;
                for _ in 0..4000 {
                    let (offset, length) = requests.draw();
                    assert!(length > 0 && length <= REQUEST_BYTES_MAX && offset + length <= 8 * MIB, "{offset} {length}");
                    assert!(alignment == Alignment::Byte || (offset % 4096, length % 4096) == (0, 0));
                    sum += length;
                }
                let (mean, expected) = (sum as f64 / 4000.0, size.mean_bytes() as f64);
                assert!((mean / expected - 1.0).abs() < 0.03, "{size:?}, {alignment:?}: {mean}");
            }
        }
    }

    #[test]
    fn the_split_of_uniform_requests_is_that_of_the_model() {
        // E[(s - T)+] / E[s], for s uniform in (0, 1 MiB): (1 - T / 1 MiB)^2.
        let mut requests = Requests::new(5, Size::Below(MIB), Alignment::Byte, 64 * MIB);
        let (mut by_blocks, mut all) = (0, 0);
        for _ in 0..200_000 {
            let (offset, length) = requests.draw();
            by_blocks += aligned_bytes(offset, length, 256 * KIB);
            all += length;
        }
        let share = by_blocks as f64 / all as f64;
        assert!((share - 0.5625).abs() < 0.005, "{share}");
        assert_eq!([aligned_bytes(0, 4096, 4096), aligned_bytes(1, 4096, 4096), aligned_bytes(10, 3, 4096)], [4096, 0, 0]);
    }
}

//! Latencies drawn from a measured distribution, for a drive whose loads sometimes access its flash.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Quantiles of a distribution.
pub(crate) const QUANTILE_COUNT: usize = 6;

/// A quantile: so many accesses in a million take at most this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantile {
    /// Accesses, in a million.
    pub parts_per_million: u32,
    /// What they take at most, in nanoseconds.
    pub latency_ns: u32,
}

/// How long a load of one line takes: straight lines between the quantiles, as the first below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Distribution {
    /// In ascending order; the last is of a million.
    pub quantiles: [Quantile; QUANTILE_COUNT],
    /// Seed: the same loads in the same order take the same times.
    pub seed: u64,
}

impl Distribution {
    /// Whether every draw has one latency.
    pub(crate) fn is_sane(&self) -> bool {
        let ascend = |pair: &[Quantile]| pair[0].parts_per_million < pair[1].parts_per_million && pair[0].latency_ns <= pair[1].latency_ns;
        self.quantiles.windows(2).all(ascend) && self.quantiles[QUANTILE_COUNT - 1].parts_per_million == 1_000_000
    }

    /// The latency below which a share of accesses lies, in nanoseconds.
    pub fn latency_ns(&self, parts_per_million: u32) -> u64 {
        let at = |index: usize| (u64::from(self.quantiles[index].parts_per_million), u64::from(self.quantiles[index].latency_ns));
        let part = u64::from(parts_per_million.min(1_000_000));
        let above = self.quantiles.iter().position(|quantile| u64::from(quantile.parts_per_million) >= part).unwrap_or(QUANTILE_COUNT - 1);
        if above == 0 {
            return at(0).1;
        }
        let ((from, low), (to, high)) = (at(above - 1), at(above));
        low + (high - low) * (part - from) / (to - from)
    }
}

/// Draws from a distribution.
#[derive(Debug)]
pub(crate) struct Draws {
    distribution: Distribution,
    drawn: AtomicU64,
}

impl Draws {
    pub(crate) fn new(distribution: Distribution) -> Self {
        Self { distribution, drawn: AtomicU64::new(0) }
    }

    /// How much longer than the median a load takes now, in nanoseconds; negative where it is faster.
    pub(crate) fn beyond_median_ns(&self) -> i64 {
        let number = self.drawn.fetch_add(1, Relaxed).wrapping_add(self.distribution.seed);
        let part = (u128::from(mixed(number)) * 1_000_000) >> 64;
        self.distribution.latency_ns(part as u32 + 1) as i64 - self.distribution.latency_ns(500_000) as i64
    }
}

/// SplitMix64: turns consecutive numbers into pseudo-random ones.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

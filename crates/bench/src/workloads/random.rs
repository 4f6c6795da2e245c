//! Pseudo-random numbers, the same in each run.

/// SplitMix64: each seed gives its own sequence.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed; `stream` selects one of several sequences of the seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        random.next();
        random
    }

    /// A random number of 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A random number above 0, at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Log-normally distributed, as file sizes of users are; at least 1. The mean must exceed the median.
    pub fn log_normal(&mut self, median: f64, mean: f64) -> u64 {
        (median * ((2.0 * (mean / median).ln()).sqrt() * self.normal()).exp()).max(1.0) as u64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Gamma distributed with shape 1.5, as Filebench draws file sizes; at least 1.
    ///
    /// Gamma(1.5) = Gamma(1) + Gamma(0.5): an exponential variable plus half the square of a normal variable.
    pub fn gamma(&mut self, mean: u64) -> u64 {
        let exponential = -self.unit().ln();
        let normal = self.normal();
        ((exponential + normal * normal / 2.0) / 1.5 * mean as f64).max(1.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_and_the_spread_of_the_distribution() {
        let mut random = Random::new(1, 2);
        let count = 200_000;
        let sizes: Vec<f64> = (0..count).map(|_| random.gamma(16 << 10) as f64).collect();
        let mean = sizes.iter().sum::<f64>() / f64::from(count);
        let variance = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / f64::from(count);
        assert!((mean / 16384.0 - 1.0).abs() < 0.01, "{mean}");
        // Gamma of shape k has a variance of mean² / k.
        assert!((variance / (mean * mean / 1.5) - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn a_log_normal_size_has_the_median_and_the_mean() {
        let mut random = Random::new(1, 2);
        let mut sizes: Vec<u64> = (0..200_000).map(|_| random.log_normal(5120.0, 15360.0)).collect();
        sizes.sort_unstable();
        let mean = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
        let median = sizes[sizes.len() / 2] as f64;
        assert!((mean / 15360.0 - 1.0).abs() < 0.05 && (median / 5120.0 - 1.0).abs() < 0.02, "{mean} {median}");
    }

    #[test]
    fn streams_of_a_seed_differ_and_come_again() {
        let first: Vec<u64> = (0..4).map(|stream| Random::new(7, stream).next()).collect();
        let again: Vec<u64> = (0..4).map(|stream| Random::new(7, stream).next()).collect();
        assert_eq!(first, again);
        assert!((1..4).all(|stream| first[stream] != first[0]));
    }
}

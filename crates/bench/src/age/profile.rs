//! What an ageing run draws from: sizes, relative ages and depths of files.

use std::fs;

use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::workloads::random::Random;

/// The distributions of a file system that has been used for years.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Sizes of files in bytes, ascending, each with a weight by number of files. Sizes are drawn evenly between half of it and its double.
    sizes: Vec<(u64, u64)>,
    /// Ages of files, ascending, in any unit, each with a weight by number of files: so many are older than the age before, and at most this
    /// old. Only their ratios count: the last one is the age of the file system.
    ages: Vec<(f64, u64)>,
    /// Depths of directories, ascending; 0 is the directory where ageing happens.
    depths: Vec<Depth>,
}

/// Directories of one depth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Depth {
    /// 1: directly in the directory where ageing happens.
    pub depth: u32,
    /// Weight by number of files.
    pub weight: u64,
    /// Number of directories.
    pub directories: u32,
}

/// What the built-in profiles are, for the help text.
pub const BUILT_IN: [&str; 2] = ["agrawal", "wang-hpc"];

impl Profile {
    /// A built-in profile by its name, else a profile from a JSON file of that name.
    pub fn named(name: &str) -> Result<Self> {
        let profile = match name {
            "agrawal" => agrawal(),
            "wang-hpc" => wang_hpc(),
            file => {
                let text = fs::read_to_string(file).map_err(|error| {
                    Failure::new(format!("'{file}' is no profile ({}), and no file with one: {error}", BUILT_IN.join(", ")))
                })?;
                serde_json::from_str(&text).map_err(|error| Failure::new(format!("{file}: {error}")))?
            }
        };
        profile.check().map_err(|what| Failure::new(format!("profile {name}: {what}")))?;
        Ok(profile)
    }

    fn check(&self) -> std::result::Result<(), &'static str> {
        let weights = |weights: Vec<u64>| weights.into_iter().try_fold(0_u64, u64::checked_add).is_some_and(|sum| sum > 0);
        if !weights(self.sizes.iter().map(|size| size.1).collect()) || self.sizes.iter().any(|size| size.0 == 0 || size.0 > 1 << 40) {
            return Err("sizes are 1 B to 1 TiB, with a weight above 0 in all");
        }
        let ascends = self.ages.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !weights(self.ages.iter().map(|age| age.1).collect())
            || !ascends
            || self.ages.iter().any(|age| !age.0.is_finite() || age.0 <= 0.0)
        {
            return Err("ages are above 0 and ascend, with a weight above 0 in all");
        }
        let ascends = self.depths.windows(2).all(|pair| pair[0].depth < pair[1].depth);
        let is_odd = |depth: &Depth| depth.depth > 64 || (depth.depth > 0) != (depth.directories > 0) || depth.directories > 100_000;
        if !weights(self.depths.iter().map(|depth| depth.weight).collect()) || !ascends || self.depths.iter().any(is_odd) {
            return Err("depths ascend from 0 (which has no directories of its own) to 64, with a weight above 0 in all");
        }
        Ok(())
    }

    /// Draws the size of a file, in bytes.
    pub fn size(&self, random: &mut Random) -> u64 {
        let (size, _) = self.sizes[draw(random, self.sizes.iter().map(|size| size.1))];
        (size / 2 + 1 + random.below(size * 2 - size / 2)).max(1)
    }

    /// Draws the index of a depth.
    pub fn depth(&self, random: &mut Random) -> usize {
        draw(random, self.depths.iter().map(|depth| depth.weight))
    }

    /// The depths.
    pub fn depths(&self) -> &[Depth] {
        &self.depths
    }

    /// Each age group: its oldest age as a share of the file system's, and its share of the files.
    pub fn age_groups(&self) -> Vec<(f64, f64)> {
        let last = self.ages.last().map_or(1.0, |age| age.0);
        let sum: u64 = self.ages.iter().map(|age| age.1).sum();
        self.ages.iter().map(|(age, weight)| (age / last, *weight as f64 / sum as f64)).collect()
    }
}

/// Draws an index by weight.
fn draw(random: &mut Random, weights: impl Iterator<Item = u64> + Clone) -> usize {
    let mut left = random.below(weights.clone().sum());
    weights.take_while(|weight| left.checked_sub(*weight).inspect(|rest| left = *rest).is_some()).count()
}

fn depth((depth, weight, directories): (u32, u64, u32)) -> Depth {
    Depth { depth, weight, directories }
}

/// Agrawal, Bolosky, Douceur and Lorch, "A Five-Year Study of File-System Metadata" (TOS 2007), in the classes that Geriatrix (Kadekodi et al.,
/// ATC 2018) gives for it. Drawn as here, 57 % of the bytes are in files of 2 MiB or more (WineFS §5.1: 56 %).
fn agrawal() -> Profile {
    let sizes = [1, 7, 16, 40, 50, 46, 35, 20, 10, 4, 1].into_iter().enumerate().map(|(index, weight)| (8 << (2 * index), weight));
    let ages = [10.74, 31.0, 85.98, 240.0, 687.87, 1945.59, 5502.98, 15_768.0, 44_023.9, 122_640.0];
    let files = [1, 2, 14, 15, 23, 24, 42, 22, 15, 12, 7, 4, 3, 2, 1];
    let directories = [1, 5, 13, 19, 30, 36, 32, 26, 22, 17, 8, 5, 2, 1, 1];
    Profile {
        sizes: sizes.collect(),
        ages: ages.into_iter().zip([1, 2, 8, 20, 44, 75, 144, 146, 23, 1]).collect(),
        depths: (1..).zip(files).zip(directories).map(|((at, weight), directories)| depth((at, weight, directories))).collect(),
    }
}

/// Wang, "A Statistical Study for File System Meta Data on High Performance Computing Sites" (2012), in the classes that Geriatrix gives for
/// its site at Los Alamos: nearly all files have 64 KiB to 1 MiB, in one directory.
fn wang_hpc() -> Profile {
    let sizes = [(5, 1), (9, 1), (11, 1), (12, 1), (15, 1), (16, 1), (17, 47), (18, 20), (19, 10), (20, 1), (21, 1)];
    let ages = [1, 1, 1, 1, 3, 35, 51, 42, 47, 18, 1, 1];
    Profile {
        sizes: sizes.into_iter().map(|(power, weight)| (1 << power, weight)).collect(),
        ages: (1..).zip(ages).map(|(power, weight)| (f64::from(1 << power), weight)).collect(),
        depths: vec![depth((0, 1, 0))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_of_agrawal_hold_as_many_bytes_as_in_the_paper() {
        let (profile, mut random) = (Profile::named("agrawal").expect("built in"), Random::new(1, 0));
        let (mut all, mut large) = (0, 0);
        for _ in 0..400_000 {
            let bytes = profile.size(&mut random);
            all += bytes;
            large += if bytes >= 2 << 20 { bytes } else { 0 };
        }
        let share = large as f64 / all as f64;
        assert!((0.54..0.60).contains(&share), "{share}");
    }

    #[test]
    fn indices_are_drawn_by_weight() {
        let (mut random, mut drawn) = (Random::new(2, 0), [0; 3]);
        for _ in 0..10_000 {
            drawn[draw(&mut random, [1, 0, 3].into_iter())] += 1;
        }
        assert_eq!(drawn[1], 0);
        assert!((2200..2800).contains(&drawn[0]), "{drawn:?}");
    }

    #[test]
    fn profiles_that_mean_nothing_are_refused() {
        let good = agrawal();
        assert_eq!(good.check(), Ok(()));
        assert_eq!(wang_hpc().check(), Ok(()));
        let bad = [
            Profile { sizes: vec![(0, 1)], ..good.clone() },
            Profile { sizes: vec![(8, 0)], ..good.clone() },
            Profile { ages: vec![(2.0, 1), (1.0, 1)], ..good.clone() },
            Profile { ages: vec![], ..good.clone() },
            Profile { depths: vec![depth((1, 1, 0))], ..good.clone() },
            Profile { sizes: vec![(8, u64::MAX), (9, 1)], ..good.clone() },
        ];
        for profile in bad {
            assert!(profile.check().is_err(), "{profile:?}");
        }
        assert!(Profile::named("/nowhere").is_err_and(|failure| failure.to_string().contains("agrawal")));
    }
}

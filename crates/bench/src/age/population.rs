//! Which file is created or removed next: ageing as Geriatrix does it (Kadekodi et al., ATC 2018, §3), from the profile and a seed alone.
//!
//! Time is the number of files created. The file system is filled up to its utilisation; from then on each new file first has others removed
//! until there is room for it. Removed is a random file of the age group that exceeds its share most, so the ages of what is left become
//! those of the profile, whatever the number of files. Files are created all the time, so of two spans of the same length the older one never
//! has more files: a profile that says so (`wang-hpc`, of a site that works in bursts) is only approached. Samples say by how much.

use std::collections::BTreeMap;
use std::ops::Range;

use super::profile::Profile;
use crate::workloads::random::Random;

/// File systems give space in pages of this size.
const PAGE_BYTES: u64 = 4096;

/// A file of the population.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Its number, from 0 in the order of creation.
    pub number: u64,
    /// The index of its directory.
    pub directory: u32,
    /// Its size.
    pub bytes: u64,
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A file is created.
    Create(File),
    /// A file is removed.
    Remove(File),
}

/// The files that are there, and how they change.
#[derive(Debug, Clone)]
pub struct Population {
    profile: Profile,
    random: Random,
    /// Directories: each one's parent (none: the directory where ageing happens).
    directories: Vec<Option<u32>>,
    /// The directories of each depth of the profile.
    by_depth: Vec<Range<u32>>,
    /// Files by number, youngest group first. A file moves to the next group when it is too old for its own.
    groups: Vec<BTreeMap<u64, File>>,
    /// Oldest age and share of each group.
    limits: Vec<(f64, f64)>,
    /// Drawn, and waiting for room.
    waiting: Option<File>,
    born: u64,
    live: u64,
    live_bytes: u64,
    created_bytes: u64,
    most_bytes: u64,
}

impl Population {
    /// Nothing yet.
    pub fn new(profile: Profile, seed: u64) -> Self {
        let (directories, by_depth) = tree(&profile);
        let limits = profile.age_groups();
        Self {
            random: Random::new(seed, 0xa9e),
            groups: vec![BTreeMap::new(); limits.len()],
            profile,
            directories,
            by_depth,
            limits,
            waiting: None,
            born: 0,
            live: 0,
            live_bytes: 0,
            created_bytes: 0,
            most_bytes: 0,
        }
    }

    /// Sets how many bytes files take at most, in whole pages.
    pub fn set_most_bytes(&mut self, bytes: u64) {
        self.most_bytes = bytes;
    }

    /// The path of each directory, parents first.
    pub fn directories(&self) -> Vec<String> {
        (0..self.directories.len()).map(|index| self.directory(index as u32)).collect()
    }

    /// The path of a file below the directory where ageing happens.
    pub fn path(&self, file: &File) -> String {
        match self.directories.is_empty() {
            true => format!("f{:x}", file.number),
            false => format!("{}/f{:x}", self.directory(file.directory), file.number),
        }
    }

    fn directory(&self, index: u32) -> String {
        let parent = self.directories[index as usize];
        parent.map_or_else(|| format!("d{index}"), |parent| format!("{}/d{index}", self.directory(parent)))
    }

    /// Number of files, and their bytes in whole pages.
    pub fn live(&self) -> (u64, u64) {
        (self.live, self.live_bytes)
    }

    /// Bytes created so far, in whole pages.
    pub fn created_bytes(&self) -> u64 {
        self.created_bytes
    }

    /// Whether the next step is a removal or would be one: the file system is filled.
    pub fn is_filled(&self) -> bool {
        self.waiting.is_some_and(|file| self.live_bytes + pages(file.bytes) > self.most_bytes)
    }

    /// At most `count` files that are there, spread evenly over their ages.
    pub fn sample(&self, count: usize) -> Vec<File> {
        let every = (self.live as usize).div_ceil(count.max(1)).max(1);
        self.groups.iter().flat_map(BTreeMap::values).step_by(every).copied().collect()
    }

    /// The largest difference between the share of an age group and the profile's.
    pub fn age_error(&self) -> f64 {
        let share = |group: &BTreeMap<u64, File>| group.len() as f64 / self.live.max(1) as f64;
        self.groups.iter().zip(&self.limits).map(|(group, limit)| (share(group) - limit.1).abs()).fold(0.0, f64::max)
    }

    /// The next step. Endless.
    pub fn step(&mut self) -> Step {
        let file = match self.waiting.take() {
            Some(file) => file,
            None => self.draw(),
        };
        let step = if self.live > 0 && self.live_bytes + pages(file.bytes) > self.most_bytes {
            self.waiting = Some(file);
            Step::Remove(self.remove())
        } else {
            self.insert(file);
            Step::Create(file)
        };
        if self.waiting.is_none() {
            self.waiting = Some(self.draw());
        }
        step
    }

    fn draw(&mut self) -> File {
        let depth = self.profile.depth(&mut self.random);
        let of_depth = &self.by_depth[depth];
        let directory = if of_depth.is_empty() { 0 } else { of_depth.start + self.random.below(of_depth.len() as u64) as u32 };
        File { number: self.born, directory, bytes: self.profile.size(&mut self.random) }
    }

    fn insert(&mut self, file: File) {
        self.born += 1;
        self.live += 1;
        self.live_bytes += pages(file.bytes);
        self.created_bytes += pages(file.bytes);
        self.groups[0].insert(file.number, file);
        for younger in 0..self.groups.len() - 1 {
            let limit = (self.limits[younger].0 * self.born as f64) as u64;
            while let Some(oldest) = self.groups[younger].first_entry().filter(|entry| self.born - entry.key() > limit) {
                let file = oldest.remove();
                self.groups[younger + 1].insert(file.number, file);
            }
        }
    }

    /// Chooses the file to remove. There is one.
    fn remove(&mut self) -> File {
        let excess = |index: usize| self.groups[index].len() as f64 - self.limits[index].1 * self.live as f64;
        let with_files = (0..self.groups.len()).filter(|index| !self.groups[*index].is_empty());
        let fullest = with_files.max_by(|left, right| excess(*left).total_cmp(&excess(*right))).expect("there is a file");
        let group = &mut self.groups[fullest];
        let (first, last) = (*group.keys().next().expect("not empty"), *group.keys().next_back().expect("not empty"));
        let at = first + self.random.below(last - first + 1);
        let number = group.range(at..).next().map_or(last, |found| *found.0);
        let file = group.remove(&number).expect("found");
        self.live -= 1;
        self.live_bytes -= pages(file.bytes);
        file
    }
}

/// A size in whole pages.
pub fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}

/// The directories of a profile, parents first, and which ones have each depth. Depths that the profile leaves out get one directory.
fn tree(profile: &Profile) -> (Vec<Option<u32>>, Vec<Range<u32>>) {
    let (mut directories, mut by_depth) = (Vec::new(), Vec::new());
    let (mut above, mut reached) = (0..0_u32, 0);
    for depth in profile.depths() {
        for level in reached + 1..=depth.depth {
            let count = if level == depth.depth { depth.directories } else { 1 };
            let start = directories.len() as u32;
            let parent = |index: u32| (!above.is_empty()).then(|| above.start + index % above.len() as u32);
            directories.extend((0..count).map(parent));
            above = start..start + count;
        }
        reached = depth.depth;
        by_depth.push(above.clone());
    }
    (directories, by_depth)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn population(name: &str, seed: u64) -> Population {
        let mut population = Population::new(Profile::named(name).expect("built in"), seed);
        population.set_most_bytes(256 << 20);
        population
    }

    #[test]
    fn what_is_there_is_what_was_created_and_not_removed() {
        let mut population = population("agrawal", 3);
        let mut there = HashMap::new();
        for _ in 0..40_000 {
            match population.step() {
                Step::Create(file) => assert_eq!(there.insert(file.number, file), None),
                Step::Remove(file) => assert_eq!(there.remove(&file.number), Some(file)),
            }
            assert!(population.live().1 <= 256 << 20);
        }
        assert_eq!(population.live(), (there.len() as u64, there.values().map(|file| pages(file.bytes)).sum()));
        let mut sampled = population.sample(usize::MAX);
        sampled.sort_by_key(|file| file.number);
        let mut all: Vec<File> = there.into_values().collect();
        all.sort_by_key(|file| file.number);
        assert_eq!(sampled, all);
    }

    #[test]
    fn ages_become_those_of_the_profile() {
        for (name, error_max) in [("agrawal", 0.05), ("wang-hpc", 0.2)] {
            let mut population = population(name, 4);
            for _ in 0..150_000 {
                population.step();
            }
            assert!(population.age_error() < error_max, "{name}: {}", population.age_error());
        }
    }

    #[test]
    fn a_seed_gives_the_same_steps() {
        let (mut one, mut same, mut other) = (population("agrawal", 5), population("agrawal", 5), population("agrawal", 6));
        let steps: Vec<Step> = (0..5000).map(|_| one.step()).collect();
        assert!((0..5000).all(|index| same.step() == steps[index]));
        assert!((0..5000).any(|index| other.step() != steps[index]));
    }

    #[test]
    fn a_lower_utilisation_only_removes_until_it_is_reached() {
        let mut population = population("wang-hpc", 7);
        while !population.is_filled() {
            population.step();
        }
        population.set_most_bytes(64 << 20);
        while population.live().1 > 64 << 20 {
            assert!(matches!(population.step(), Step::Remove(_)));
        }
    }

    #[test]
    fn directories_have_the_depths_of_the_profile() {
        let population = population("agrawal", 8);
        let directories = population.directories();
        assert_eq!(directories.len(), 218);
        for (index, path) in directories.iter().enumerate() {
            let above = path.rsplit_once('/').map(|(above, _)| above.to_owned());
            assert!(above.is_none_or(|above| directories[..index].contains(&above)), "{path}");
        }
        assert_eq!(directories.iter().map(|path| path.split('/').count()).max(), Some(15));
    }
}

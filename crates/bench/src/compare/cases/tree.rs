//! A tree of source files like the kernel's, fully determined by its number of files.
//!
//! [TR1] A case also creates, compares and removes a tree outside the measured part, so the tree shrinks faster than the scale, with
//!       exponent 1.6: 2,000 files at scale 0.1. At scale 1 it has 80,000 files in about 5,000 directories, like Linux 6.1. Sizes are
//!       log-normal with a median of 5 KiB and a mean of 15 KiB, at most 4 MiB. Files are at most nine directories deep, most four or five.
//! [TR2] Directory sizes vary widely: some have hundreds of files, most a few.
//! [TR3] Files contain lines that look like C and compress like it; every [`NEEDLE_EVERY`]th file has one line with [`NEEDLE`].
//! [TR4] Names, sizes and bytes follow from the number of files, so a copy is compared with one in the host's memory, not with its
//!       source.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

use crate::failure::Result;
use crate::machine;
use crate::workloads::random::Random;

/// Files at scale 1.
pub const FILES: u64 = 80_000;
/// Exponent of the scale in the number of files.
pub const SHRINKS: f64 = 1.6;
/// Median size of a file in bytes.
const SIZE_MEDIAN: f64 = 5120.0;
/// Mean size of a file in bytes.
const SIZE_MEAN: f64 = 15_360.0;
/// Largest size of a file.
const SIZE_MAX: u64 = 4 << 20;
/// Average number of files per directory.
const FILES_A_DIRECTORY: u64 = 16;
/// Directories per 1,000 at each depth, from 1.
const DEPTHS: [u64; 9] = [5, 70, 230, 310, 220, 100, 45, 15, 5];
/// A word that occurs in no other line.
pub const NEEDLE: &str = "tandem_needle";
/// One of this many files contains it.
const NEEDLE_EVERY: u64 = 100;
/// Size of the text from which files are cut.
const TEXT_BYTES: usize = 4 << 20;

const WORDS: [&str; 48] = [
    "struct", "static", "int", "return", "device", "dev", "queue", "buffer", "lock", "unlock", "page", "inode", "init", "exit", "probe",
    "remove", "config", "enable", "disable", "read", "write", "register", "clock", "reset", "power", "state", "flags", "mask", "offset",
    "length", "count", "index", "list", "node", "parent", "driver", "bus", "irq", "handler", "status", "error", "value", "data", "size",
    "ctrl", "mode", "port", "map",
];
const ENDINGS: [&str; 10] = [".c", ".c", ".c", ".c", ".h", ".h", ".h", ".yaml", ".rst", ".S"];

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeFile {
    /// Path below the tree's root.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    number: u64,
}

/// A tree: names and sizes. Contents are generated on demand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Paths below the root, parents first.
    pub directories: Vec<String>,
    /// In the order of their directories, as an archiver's walk finds them.
    pub files: Vec<TreeFile>,
}

impl Tree {
    /// A tree at a scale ([TR1]).
    pub fn new(scale: f64) -> Self {
        Self::with_files(Self::count(scale))
    }

    /// Number of files of a tree at a scale.
    fn count(scale: f64) -> u64 {
        ((FILES as f64 * scale.powf(SHRINKS)).ceil() as u64).max(200)
    }

    /// A tree of this many files.
    pub fn with_files(count: u64) -> Self {
        let mut random = Random::new(0x7265_6531, 0);
        let mut directories = directories((count / FILES_A_DIRECTORY).max(DEPTHS.len() as u64), &mut random);
        directories.sort_unstable();
        let mut files: Vec<TreeFile> = (0..count)
            .map(|number| {
                // [TR2]: the cube of a uniform number is small in most cases.
                let even = random.below(1 << 20) as f64 / f64::from(1 << 20);
                let rank = (even.powi(3) * directories.len() as f64) as usize;
                // Spreads ranks over the tree, always in the same way.
                let directory = &directories[rank * 7919 % directories.len()];
                let ending = ENDINGS[random.below(ENDINGS.len() as u64) as usize];
                let path = format!("{directory}/{}-{}{number}{ending}", word(&mut random), word(&mut random));
                TreeFile { path, size: random.log_normal(SIZE_MEDIAN, SIZE_MEAN).clamp(120, SIZE_MAX), number }
            })
            .collect();
        files.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        Self { directories, files }
    }

    /// Number of lines with [`NEEDLE`].
    pub fn needles(&self) -> u64 {
        self.files.iter().filter(|file| file.has_needle()).count() as u64
    }

    /// Writes the tree below an existing directory.
    ///
    /// # Errors
    /// A call failed.
    pub fn lay_out(&self, root: &Path) -> Result<()> {
        let mut bytes = Vec::new();
        self.directories.iter().try_for_each(|directory| fs::create_dir(root.join(directory)))?;
        for file in &self.files {
            machine::check()?;
            file.fill(&mut bytes);
            fs::write(root.join(&file.path), &bytes)?;
        }
        Ok(())
    }
}

impl TreeFile {
    fn has_needle(&self) -> bool {
        self.number.is_multiple_of(NEEDLE_EVERY)
    }

    /// Generates its content ([TR3]).
    fn fill(&self, into: &mut Vec<u8>) {
        let text = text();
        let mut at = Random::new(self.number, 0).below(text.len() as u64) as usize;
        into.clear();
        let _vectors_take_all = writeln!(into, "/* SPDX-License-Identifier: none. File {} */", self.number);
        if self.has_needle() {
            let _vectors_take_all = writeln!(into, "static int {NEEDLE}_{};", self.number);
        }
        let size = self.size as usize;
        while into.len() < size {
            let piece = &text[at..text.len().min(at + size - into.len())];
            into.extend_from_slice(piece);
            at = 0;
        }
        into.truncate(size);
    }
}

fn word(random: &mut Random) -> &'static str {
    WORDS[random.below(WORDS.len() as u64) as usize]
}

/// Paths of directories, by depth ([TR1]).
fn directories(count: u64, random: &mut Random) -> Vec<String> {
    let mut all = Vec::new();
    let mut above: Vec<String> = Vec::new();
    for (depth, share) in DEPTHS.into_iter().enumerate() {
        let level: Vec<String> = (0..(count * share / 1000).max(1))
            .map(|number| match above.len() as u64 {
                0 => format!("{}{number}", word(random)),
                // Some parents have many children, most have none.
                parents => {
                    format!("{}/{}{depth}{number}", above[(random.below(parents).min(random.below(parents))) as usize], word(random))
                }
            })
            .collect();
        all.extend(level.iter().cloned());
        above = level;
    }
    all
}

/// Lines that look like C.
fn text() -> &'static [u8] {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut random = Random::new(0x7465_7874, 0);
        let mut text = String::with_capacity(TEXT_BYTES + 200);
        while text.len() < TEXT_BYTES {
            let indent = "\t".repeat(random.below(4) as usize);
            let [one, two, three, four] = [(); 4].map(|()| word(&mut random));
            let number = random.below(4096);
            text += &match random.below(5) {
                0 => format!("{indent}if ({one}->{two} & {three}_{four})\n"),
                1 => format!("{indent}{one}_{two}({three}, {number});\n"),
                2 => format!("{indent}{one}->{two} = {three}[{number}] | {four};\n"),
                3 => format!("{indent}/* {one} the {two} of a {three} before {four} */\n"),
                _ => format!("#define {}_{} {number:#06x}\n", one.to_uppercase(), two.to_uppercase()),
            };
        }
        text.truncate(TEXT_BYTES);
        text.into_bytes()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    /// Linux 6.1: 79 thousand files, 5 thousand directories, 1.2 GB.
    #[test]
    fn at_full_scale_it_is_as_large_and_as_deep_as_a_kernel() {
        let tree = Tree::new(1.0);
        let files = tree.files.len() as u64;
        assert_eq!(files, FILES);
        assert!((4500..5500).contains(&tree.directories.len()), "{}", tree.directories.len());
        let mean = tree.files.iter().map(|file| file.size).sum::<u64>() as f64 / files as f64;
        assert!((14_500.0..16_000.0).contains(&mean), "mean {mean}");
        let mut sizes: Vec<u64> = tree.files.iter().map(|file| file.size).collect();
        sizes.sort_unstable();
        let median = sizes[sizes.len() / 2];
        assert!((4900..5400).contains(&median), "median {median}");
        let depths: Vec<usize> = tree.files.iter().map(|file| file.path.matches('/').count()).collect();
        let mean_depth = depths.iter().sum::<usize>() as f64 / files as f64;
        assert!((3.5..5.0).contains(&mean_depth) && depths.iter().max() <= Some(&9), "depth {mean_depth}");
        let mut widths: HashMap<&str, u64> = HashMap::new();
        tree.files.iter().for_each(|file| *widths.entry(file.path.rsplit_once('/').expect("a directory").0).or_default() += 1);
        let widest = widths.values().max().copied().unwrap_or_default();
        let mut sorted: Vec<u64> = widths.values().copied().collect();
        sorted.sort_unstable();
        assert!((200..5000).contains(&widest) && sorted[sorted.len() / 2] < 16, "widest {widest}, median {}", sorted[sorted.len() / 2]);
    }

    #[test]
    fn a_small_tree_has_the_same_mean_and_names_are_unique() {
        let tree = Tree::new(0.1);
        let mean = tree.files.iter().map(|file| file.size).sum::<u64>() as f64 / tree.files.len() as f64;
        assert!((2000..2020).contains(&tree.files.len()) && (12_000.0..19_000.0).contains(&mean), "{mean}");
        assert_eq!(tree.files.iter().map(|file| &file.path).collect::<BTreeSet<_>>().len(), tree.files.len());
        assert_eq!(tree, Tree::new(0.1));
        let parents: BTreeSet<&String> = tree.directories.iter().collect();
        assert!(tree.directories.iter().all(|path| path.rsplit_once('/').is_none_or(|(parent, _)| parents.contains(&parent.to_owned()))));
    }
}

//! Random operations on one file compared with an array of bytes, like fsx, but also with zeroed ranges and with O_DIRECT together with the
//! page cache, which the crate fsx lacks. A failure prints its seed and the last operations. `TANDEMFS_EXERCISER_OPERATIONS=N` runs N
//! operations, 50,000 for each seed, from seed `TANDEMFS_EXERCISER_SEED` (1) on; `make fsx` uses this.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::FallocateFlags;

use crate::scene::Scene;
use crate::sys::{ALIGNMENT, Aligned, Mapping};

const LENGTH_MAX: u64 = 256 << 10;
const OPERATION_BYTES_MAX: u64 = 64 << 10;

const OPERATIONS_OF_SEED: u64 = 50_000;

/// Numbers that a seed decides.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }

    /// A range with its start in the file's largest length, borders of pages and blocks more often than others.
    fn range(&mut self) -> (u64, u64) {
        let offset = self.below(LENGTH_MAX);
        let length = 1 + self.below(OPERATION_BYTES_MAX);
        let (offset, length) = match self.below(4) {
            0 => (offset / ALIGNMENT * ALIGNMENT, length),
            1 => (offset / ALIGNMENT * ALIGNMENT, length.next_multiple_of(ALIGNMENT)),
            2 => (offset, 1 + length % 300),
            _ => (offset, length),
        };
        (offset, length.min(LENGTH_MAX - offset))
    }
}

struct Exerciser {
    path: std::path::PathBuf,
    file: File,
    direct: File,
    model: Vec<u8>,
    random: Random,
    done: Vec<String>,
}

impl Exerciser {
    fn open(path: &std::path::Path, flags: i32) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path).expect("opened")
    }

    fn grow(&mut self, end: u64) {
        let length = self.model.len().max(end as usize);
        self.model.resize(length, 0);
    }

    fn fresh(&mut self, length: u64) -> Vec<u8> {
        let seed = self.random.below(251);
        (0..length).map(|index| (index * 7 + seed + index / 251) as u8 | 1).collect()
    }

    fn clip(&self, offset: u64, length: u64) -> u64 {
        length.min((self.model.len() as u64).saturating_sub(offset))
    }

    fn compare(&self, what: &str, offset: u64, found: &[u8]) {
        if found.is_empty() {
            return;
        }
        let expected = &self.model[offset as usize..][..found.len()];
        if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
            panic!("{what}: byte {} is {:#x}, not {:#x}", offset + at as u64, found[at], expected[at]);
        }
    }

    fn step(&mut self) {
        let (offset, length) = self.random.range();
        let end = offset + length;
        let kind = self.random.below(17);
        self.done.push(format!("{kind}: {offset} + {length}, size {}", self.model.len()));
        let allocate = |file: &File, mode| rustix::fs::fallocate(file, mode, offset, length).expect("allocated");
        match kind {
            0..=2 => {
                let bytes = self.fresh(length);
                self.file.write_all_at(&bytes, offset).expect("written");
                self.grow(end);
                self.model[offset as usize..end as usize].copy_from_slice(&bytes);
            }
            3 | 4 => {
                let mut found = vec![0; length as usize];
                let read = self.file.read_at(&mut found, offset).expect("read") as u64;
                assert_eq!(read, self.clip(offset, length), "a read ends where the file does");
                self.compare("read", offset, &found[..read as usize]);
            }
            5 => {
                let length = self.clip(offset, length);
                if length > 0 {
                    let mapping = Mapping::new(&self.file, self.model.len(), true, false).expect("mapped");
                    self.compare("loaded", offset, &mapping.get(offset as usize, length as usize));
                }
            }
            6 | 7 => {
                let length = self.clip(offset, length);
                if length > 0 {
                    let bytes = self.fresh(length);
                    let mapping = Mapping::new(&self.file, self.model.len(), true, true).expect("mapped");
                    mapping.set(offset as usize, &bytes);
                    if kind == 6 {
                        mapping.sync().expect("synced");
                    }
                    self.model[offset as usize..(offset + length) as usize].copy_from_slice(&bytes);
                }
            }
            8 => {
                self.file.set_len(offset).expect("truncated");
                self.model.resize(offset as usize, 0);
            }
            9 | 10 => {
                let mode = if kind == 9 { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
                allocate(&self.file, mode | FallocateFlags::KEEP_SIZE);
                let end = end.min(self.model.len() as u64).max(offset.min(self.model.len() as u64));
                let start = offset.min(end);
                self.model[start as usize..end as usize].fill(0);
            }
            11 => {
                allocate(&self.file, FallocateFlags::ZERO_RANGE);
                self.grow(end);
                self.model[offset as usize..end as usize].fill(0);
            }
            12 => {
                allocate(&self.file, FallocateFlags::empty());
                self.grow(end);
            }
            13 => {
                let target = self.random.below(LENGTH_MAX);
                let length = self.clip(offset, length).min(LENGTH_MAX - target);
                if length > 0 && (target + length <= offset || offset + length <= target) {
                    let copied =
                        rustix::fs::copy_file_range(&self.file, Some(&mut { offset }), &self.file, Some(&mut { target }), length as usize);
                    let copied = copied.expect("copied");
                    self.grow(target + copied as u64);
                    self.model.copy_within(offset as usize..offset as usize + copied, target as usize);
                }
            }
            14 => {
                let (offset, length) = (offset / ALIGNMENT * ALIGNMENT, length.next_multiple_of(ALIGNMENT).min(OPERATION_BYTES_MAX));
                let end = (offset + length).min(LENGTH_MAX);
                let mut buffer = Aligned::new((end - offset) as usize);
                let bytes = self.fresh(end - offset);
                buffer.slice().copy_from_slice(&bytes);
                self.direct.write_all_at(buffer.slice(), offset).expect("written past the cache");
                self.grow(end);
                self.model[offset as usize..end as usize].copy_from_slice(&bytes);
            }
            15 => {
                let offset = offset / ALIGNMENT * ALIGNMENT;
                let mut buffer = Aligned::new(length.next_multiple_of(ALIGNMENT) as usize);
                let read = self.direct.read_at(buffer.slice(), offset).expect("read past the cache");
                assert_eq!(read as u64, self.clip(offset, length.next_multiple_of(ALIGNMENT)), "a direct read ends where the file does");
                self.compare("read past the cache", offset, &buffer.slice()[..read]);
            }
            _ => {
                self.file.sync_data().expect("synced");
                (self.file, self.direct) = (Self::open(&self.path, 0), Self::open(&self.path, libc::O_DIRECT));
            }
        }
        assert_eq!(self.file.metadata().expect("open").len(), self.model.len() as u64, "size");
    }
}

pub(crate) fn random_operations(scene: &Scene<'_>) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap_or_else(|error| panic!("{name}: {error}")));
    let first = number("TANDEMFS_EXERCISER_SEED").unwrap_or(1).max(1);
    let (seeds, operations) = match number("TANDEMFS_EXERCISER_OPERATIONS") {
        Some(all) => (all.div_ceil(OPERATIONS_OF_SEED).max(1), all.min(OPERATIONS_OF_SEED)),
        None if crate::whole_size() => (20, OPERATIONS_OF_SEED),
        None => (3, 1200),
    };
    for seed in first..first + seeds {
        let path = scene.path(&format!("file-{seed}"));
        let (file, direct) = (Exerciser::open(&path, 0), Exerciser::open(&path, libc::O_DIRECT));
        let random = Random::of(seed);
        let mut exerciser = Exerciser { path, file, direct, model: Vec::new(), random, done: Vec::new() };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (0..operations).for_each(|_| exerciser.step())));
        if let Err(panic) = result {
            let done = &exerciser.done;
            eprintln!("seed {seed}, operation {}; the last of them:\n{}", done.len(), done[done.len().saturating_sub(12)..].join("\n"));
            std::panic::resume_unwind(panic);
        }
        exerciser.file.sync_all().expect("synced");
        let found = std::fs::read(&exerciser.path).expect("read");
        exerciser.compare("at the end", 0, &found);
    }
}

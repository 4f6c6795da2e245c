//! Operations that tests apply to both the file system and the model. They are literals, so that a printed list of a failure can be copied
//! into a named test.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use tandemfs_fs::{Home, RenameMode};

use crate::random::Random;

/// One step of a workload. Paths are relative to the root, parts parted by slashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Makes an empty file.
    Create(&'static str),
    /// Makes a directory.
    MakeDirectory(&'static str),
    /// Makes a symbolic link (path, length of its target in bytes).
    Symlink(&'static str, u16),
    /// Gives the file at the first path a second name.
    Link(&'static str, &'static str),
    /// Removes a name of a file.
    Unlink(&'static str),
    /// Removes an empty directory.
    RemoveDirectory(&'static str),
    /// Moves a name.
    Rename(&'static str, &'static str, RenameMode),
    /// Writes at an offset: path, offset, length, seed of the bytes.
    Write(&'static str, u64, u32, u64),
    /// Writes at the end: path, length, seed of the bytes.
    Append(&'static str, u32, u64),
    /// Sets the size.
    Truncate(&'static str, u64),
    /// Allocates a range: path, offset, length, whether the size stays.
    Allocate(&'static str, u64, u64, bool),
    /// Makes a range a hole: path, offset, length.
    Punch(&'static str, u64, u64),
    /// Zeroes and allocates a range: path, offset, length, whether the size stays.
    Zero(&'static str, u64, u64, bool),
    /// Collapses a range: path, offset, length.
    Collapse(&'static str, u64, u64),
    /// Inserts a hole: path, offset, length.
    Insert(&'static str, u64, u64),
    /// Copies a range: path and offset of the source, path and offset of the target, length.
    CopyRange(&'static str, u64, &'static str, u64, u64),
    /// Sets an extended attribute: path, name, length of the value, seed of its bytes.
    SetAttribute(&'static str, &'static str, u32, u64),
    /// Removes an extended attribute.
    RemoveAttribute(&'static str, &'static str),
    /// Sets a default ACL on a directory, which new files in it inherit: path, a user that the list names.
    SetDefaultList(&'static str, u32),
    /// Sets the home of a file, or of a directory for what is made in it.
    SetHome(&'static str, Home),
    /// Gives a file or directory the hint *aligned*, or takes it away.
    SetAligned(&'static str, bool),
    /// Rewrites everything with the hint that is not aligned, and moves everything that can move to its home.
    MoveHomes,
    /// Syncs.
    Sync,
    /// Writes all metadata home.
    Checkpoint,
    /// Writes data logs back to blocks if the memory zone is short of space.
    WriteBack,
    /// Writes all data logs back to blocks.
    WriteBackAll,
    /// Discards what was freed since the mount.
    Discard,
    /// Unmounts and mounts again.
    Remount,
    /// Cuts the power after the last acknowledged operation, and mounts again.
    Crash,
    /// Opens a file and keeps it open: slot, path.
    Hold(usize, &'static str),
    /// Creates a file without a name (O_TMPFILE) and keeps it open: slot, directory.
    CreateNameless(usize, &'static str),
    /// Links an open file that never had a name: slot, path.
    LinkHeld(usize, &'static str),
    /// Moves a name and leaves a whiteout in its place.
    LeaveWhiteout(&'static str, &'static str),
    /// Writes to an open file, which may be unlinked: slot, offset, length, seed.
    WriteHeld(usize, u64, u32, u64),
    /// Closes the file.
    Forget(usize),
    /// Writes of one length, one after each stride: path, first offset, number, stride, length, seed. They fill the memory zone with logs.
    Scatter(&'static str, u64, u32, u64, u32, u64),
    /// Makes files with numbered names and a few bytes each: directory, first number, how many.
    CreateMany(&'static str, u32, u32),
    /// Removes such files.
    UnlinkMany(&'static str, u32, u32),
}

impl Operation {
    /// The single operations of which this one consists; itself alone where it is one.
    pub fn parts(&self) -> Vec<Operation> {
        match *self {
            Self::Scatter(path, offset, count, stride, length, seed) => {
                (0..u64::from(count)).map(|index| Self::Write(path, offset + index * stride, length, seed + index)).collect()
            }
            Self::CreateMany(directory, first, count) => (first..first + count)
                .flat_map(|number| {
                    let path = numbered(directory, number);
                    [Self::Create(path), Self::Write(path, 0, 1 + number % 90, u64::from(number))]
                })
                .collect(),
            Self::UnlinkMany(directory, first, count) => {
                (first..first + count).map(|number| Self::Unlink(numbered(directory, number))).collect()
            }
            single => vec![single],
        }
    }
}

/// A `'static` path, one for each directory and number.
fn numbered(directory: &str, number: u32) -> &'static str {
    static NAMES: OnceLock<Mutex<HashMap<String, &'static str>>> = OnceLock::new();
    let mut names = NAMES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let parent = if directory.is_empty() { String::new() } else { format!("{directory}/") };
    names.entry(format!("{parent}{number}")).or_insert_with_key(|name| Box::leak(name.clone().into_boxed_str()))
}

/// Slots for held files.
pub const SLOTS: usize = 3;

/// A name of 200 B: its entry takes four slots.
pub const LONG: &str = concat!(
    "long-name-of-two-hundred-bytes-01234567890123456789",
    "01234567890123456789012345678901234567890123456789",
    "01234567890123456789012345678901234567890123456789",
    "0123456789012345678901234567890123456789012345678"
);

const PATHS: [&str; 20] =
    ["a", "b", "c", "d", "e", LONG, "d/a", "d/b", "d/c", "d/d", "d/d/a", "d/d/b", "e/a", "e/b", "e/e", "e/e/a", "f", "g", "e/f", "d/g"];

const DIRECTORIES: [&str; 3] = ["", "d", "e"];

const ATTRIBUTES: [&str; 3] = ["user.a", "user.b", "trusted.c"];

/// Draws operations with weights that are drawn anew for each run, some of them zero.
#[derive(Debug, Clone)]
pub struct Mix {
    weights: [u64; 33],
    largest_write: u64,
    file_bytes_max: u64,
}

impl Mix {
    /// Weights of one run. `room_bytes` is the space that the run may try to fill.
    pub fn draw(random: &mut Random, room_bytes: u64) -> Self {
        let mut weights = [6, 4, 2, 3, 5, 2, 6, 20, 8, 8, 1, 1, 1, 1, 1, 2, 3, 2, 1, 1, 1, 4, 5, 3, 4, 5, 2, 2, 3, 3, 1, 2, 2];
        for weight in &mut weights {
            match random.below(6) {
                0 => *weight = 0,
                1 => *weight *= 4,
                _ => {}
            }
        }
        weights[0] = weights[0].max(3);
        weights[7] = weights[7].max(4);
        if random.one_in(2) {
            // Greedy: the zones get full and stay so.
            (weights[4], weights[8], weights[9], weights[18], weights[19]) = (1, 20, 2, 6, 4);
            (weights[21], weights[22]) = (weights[21].max(4), weights[22].min(4));
            return Self { weights, largest_write: room_bytes / 8, file_bytes_max: room_bytes };
        }
        let largest_write = *random.pick(&[300, 5000, 70_000, 300_000, 1_500_000]);
        Self { weights, largest_write: largest_write.min(room_bytes / 4), file_bytes_max: room_bytes / 2 }
    }

    /// The next operation.
    pub fn next(&self, random: &mut Random) -> Operation {
        let path = |random: &mut Random| *random.pick(&PATHS);
        let mut at = random.below(self.weights.iter().sum());
        let mut kind = 0;
        while at >= self.weights[kind] {
            at -= self.weights[kind];
            kind += 1;
        }
        let seed = random.next() % 1000;
        match kind {
            0 => Operation::Create(path(random)),
            1 => Operation::MakeDirectory(path(random)),
            2 => Operation::Symlink(path(random), *random.pick(&[1, 20, 21, 64, 65, 300, 4095])),
            3 => Operation::Link(path(random), path(random)),
            4 => Operation::Unlink(path(random)),
            5 => Operation::RemoveDirectory(path(random)),
            6 => {
                let mode = *random.pick(&[RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange]);
                Operation::Rename(path(random), path(random), mode)
            }
            7 => Operation::Write(path(random), self.offset(random), self.length(random), seed),
            8 => Operation::Append(path(random), self.length(random), seed),
            9 => Operation::Truncate(path(random), self.offset(random)),
            10 => Operation::Sync,
            11 => Operation::Checkpoint,
            12 => Operation::WriteBack,
            13 => Operation::Remount,
            14 => Operation::Crash,
            15 => Operation::Hold(random.below(SLOTS as u64) as usize, path(random)),
            16 => Operation::WriteHeld(random.below(SLOTS as u64) as usize, self.offset(random), self.length(random), seed),
            17 => Operation::Forget(random.below(SLOTS as u64) as usize),
            18 => {
                let (stride, length) = *random.pick(&[(4096, 4096), (4096, 4000), (65_536, 64), (8192, 300), (100, 100), (70_000, 1000)]);
                let count = (self.file_bytes_max / stride).clamp(1, 1000) as u32;
                Operation::Scatter(path(random), *random.pick(&[0, 0, 100, 5000]), count, stride, length, seed)
            }
            19 => Operation::CreateMany(DIRECTORIES[random.below(3) as usize], random.below(2) as u32 * 200, 200),
            20 => Operation::UnlinkMany(DIRECTORIES[random.below(3) as usize], random.below(2) as u32 * 200, 200),
            21 => Operation::Allocate(path(random), self.offset(random), self.range(random), random.one_in(2)),
            22 => Operation::Punch(path(random), self.offset(random), self.range(random)),
            23 => Operation::Zero(path(random), self.offset(random), self.range(random), random.one_in(2)),
            24 => Operation::CopyRange(path(random), self.offset(random), path(random), self.offset(random), self.range(random)),
            25 => {
                let length = *random.pick(&[0, 7, 44, 60, 1000, 1025, 3840, 3841, 9000, 65_536]);
                Operation::SetAttribute(path(random), random.pick::<&str>(&ATTRIBUTES), length, seed)
            }
            26 => Operation::RemoveAttribute(path(random), random.pick::<&str>(&ATTRIBUTES)),
            27 => Operation::SetDefaultList(path(random), random.below(3) as u32),
            28 => {
                let (offset, length) = self.blocks(random);
                Operation::Collapse(path(random), offset, length)
            }
            29 => {
                let (offset, length) = self.blocks(random);
                Operation::Insert(path(random), offset, length)
            }
            30 => Operation::CreateNameless(random.below(SLOTS as u64) as usize, random.pick::<&str>(&DIRECTORIES)),
            31 => Operation::LinkHeld(random.below(SLOTS as u64) as usize, path(random)),
            _ => Operation::LeaveWhiteout(path(random), path(random)),
        }
    }

    /// An operation of homes.
    pub fn of_homes(random: &mut Random) -> Operation {
        match random.below(8) {
            0..=2 => Operation::MoveHomes,
            3 => Operation::SetAligned(random.pick::<&str>(&PATHS), random.one_in(2)),
            _ => Operation::SetHome(random.pick::<&str>(&PATHS), *random.pick(&Home::ALL)),
        }
    }

    /// Borders of lines, sectors and blocks, places beside them, and anywhere.
    fn offset(&self, random: &mut Random) -> u64 {
        let unit = *random.pick(&[1, 64, 256, 4096, 4096, 65_536]);
        let limit = match random.below(4) {
            0 => self.file_bytes_max,
            1 => 1000,
            _ => 200_000,
        };
        let border = random.below(limit / unit + 1) * unit;
        match random.below(4) {
            0 => border.saturating_sub(random.below(70)),
            1 => border + random.below(70),
            _ => border,
        }
    }

    /// Lengths of ranges: those of writes, and up to the largest file.
    fn range(&self, random: &mut Random) -> u64 {
        if random.one_in(4) { 1 + self.offset(random) } else { self.length(random).into() }
    }

    /// Ranges that are mostly whole blocks, and often inside a file.
    fn blocks(&self, random: &mut Random) -> (u64, u64) {
        let unit = *random.pick(&[4096, 65_536, 65_536]);
        let most = if random.one_in(4) { 40 } else { 3 };
        let length = unit * (1 + random.below(most));
        match random.below(12) {
            0 => (self.offset(random), self.length(random).into()),
            1..=4 => (0, length),
            _ => (self.offset(random) / unit * unit, length),
        }
    }

    fn length(&self, random: &mut Random) -> u32 {
        let length = match random.below(6) {
            0 => 1 + random.below(64),
            1 => 1 + random.below(300),
            2 => 4096 * (1 + random.below(4)),
            3 => 65_536,
            4 => 1 + random.below(10_000),
            _ => 1 + random.below(self.largest_write),
        };
        length.min(self.largest_write) as u32
    }
}

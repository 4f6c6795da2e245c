//! The operations of a writer, and the resulting contents of its directory.
//!
//! Operation N is a function of the seed, N and the model after the operations before it. So a log needs only the numbers of acknowledged
//! operations, and the verifier can compute the one operation that was in flight when everything stopped.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;

/// Directories that a writer makes before its first promise.
pub const DIRECTORIES: usize = 4;

const MIB: usize = 1 << 20;

/// What kind of program a writer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Everything, on files of up to 1 MiB.
    Mixed,
    /// Many small files and names: mail, build trees.
    Small,
    /// Appends with fdatasync, rotated by rename: logs, queues.
    Log,
    /// Few large files, written in sequence and overwritten by large requests.
    Large,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Mixed, Self::Small, Self::Log, Self::Large];

    /// The name in a log's first line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Small => "small",
            Self::Log => "log",
            Self::Large => "large",
        }
    }

    fn names_max(self) -> usize {
        match self {
            Self::Mixed => 60,
            Self::Small => 250,
            Self::Log => 8,
            Self::Large => 7,
        }
    }

    fn file_bytes_max(self) -> usize {
        match self {
            Self::Mixed | Self::Log => MIB,
            Self::Small => 16 << 10,
            Self::Large => 6 * MIB,
        }
    }

    /// Kinds with their shares.
    fn shares(self) -> &'static [(Kind, u32)] {
        use Kind::{Append, Create, Link, Map, MkDir, Move, MoveOver, Replace, RmDir, Symlink, Truncate, Unlink, Write};
        match self {
            Self::Mixed => &[
                (Create, 5),
                (Write, 8),
                (Map, 3),
                (Append, 5),
                (Truncate, 3),
                (Replace, 3),
                (Move, 2),
                (MoveOver, 2),
                (Unlink, 2),
                (Link, 2),
                (Symlink, 1),
                (MkDir, 2),
                (RmDir, 1),
            ],
            Self::Small => &[
                (Create, 20),
                (Write, 4),
                (Append, 3),
                (Truncate, 1),
                (Replace, 5),
                (Move, 4),
                (MoveOver, 2),
                (Unlink, 8),
                (Link, 4),
                (Symlink, 2),
                (MkDir, 3),
                (RmDir, 3),
            ],
            Self::Log => &[(Create, 1), (Append, 30), (Move, 1), (MoveOver, 1), (Truncate, 1)],
            Self::Large => &[(Create, 3), (Write, 5), (Append, 3), (Replace, 1), (Truncate, 1), (Unlink, 1)],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Create,
    Write,
    Map,
    Append,
    Truncate,
    Replace,
    Move,
    MoveOver,
    Unlink,
    Link,
    Symlink,
    MkDir,
    RmDir,
}

/// How data is asked to be durable where `write` alone does not make it so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// fsync(2) after the writes.
    Fsync,
    /// fdatasync(2) after the writes.
    Fdatasync,
    /// The file is opened with O_DSYNC.
    Dsync,
    /// The bytes are stored through a shared mapping; msync(2) with MS_SYNC after them.
    Msync,
}

/// Bytes for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where they go.
    pub offset: usize,
    /// How many.
    pub length: usize,
    /// Which: see [`content`].
    pub seed: u64,
}

/// One operation: what happens between two acknowledgements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// A new file with data.
    Create {
        /// Its name.
        name: String,
        /// What it holds.
        pieces: Vec<Piece>,
        /// How that becomes durable.
        sync: Sync,
    },
    /// Data into a file.
    Write {
        /// One of its names.
        name: String,
        /// In this order.
        pieces: Vec<Piece>,
        /// How they become durable.
        sync: Sync,
        /// The file is opened with O_APPEND.
        append: bool,
    },
    /// Another size.
    Truncate {
        /// One of its names.
        name: String,
        /// The size.
        size: usize,
    },
    /// A rename of a file, a link or a directory; a file may be replaced.
    Rename {
        /// The old name.
        from: String,
        /// The new name.
        to: String,
    },
    /// Removes a name of a file.
    Unlink {
        /// The name.
        name: String,
    },
    /// A second name.
    Link {
        /// A name that is there.
        from: String,
        /// The new one.
        to: String,
    },
    /// A symbolic link.
    Symlink {
        /// Its target.
        target: String,
        /// Its name.
        name: String,
    },
    /// A directory.
    MkDir {
        /// Its name.
        name: String,
    },
    /// Removes an empty directory.
    RmDir {
        /// Its name.
        name: String,
    },
}

impl Operation {
    /// A word for people.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Write { append: true, .. } => "append",
            Self::Write { sync: Sync::Msync, .. } => "mapped write",
            Self::Write { .. } => "write",
            Self::Truncate { .. } => "truncate",
            Self::Rename { .. } => "rename",
            Self::Unlink { .. } => "unlink",
            Self::Link { .. } => "link",
            Self::Symlink { .. } => "symlink",
            Self::MkDir { .. } => "mkdir",
            Self::RmDir { .. } => "rmdir",
        }
    }
}

/// The object that a name refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink(String),
    /// A file; names with one number are links to the same.
    File(u64),
}

/// What a writer's directory holds after some operations.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// Paths from the writer's directory.
    pub names: BTreeMap<String, Node>,
    /// Contents of files.
    pub files: BTreeMap<u64, Arc<Vec<u8>>>,
    /// A file that was made to replace another, and which.
    replacement: Option<(String, String)>,
}

impl Model {
    /// The directory before the first operation.
    pub fn new() -> Self {
        let names = (0..DIRECTORIES).map(|index| (format!("d{index}"), Node::Directory)).collect();
        Self { names, ..Self::default() }
    }

    /// The file that a name stands for.
    pub fn file(&self, name: &str) -> Option<(u64, &Arc<Vec<u8>>)> {
        match self.names.get(name) {
            Some(Node::File(file)) => Some((*file, self.files.get(file)?)),
            _ => None,
        }
    }

    /// Names of a file.
    pub fn links(&self, file: u64) -> usize {
        self.names.values().filter(|node| **node == Node::File(file)).count()
    }

    fn directories(&self) -> usize {
        self.names.values().filter(|node| **node == Node::Directory).count()
    }

    fn pick<'m>(&'m self, random: &mut Rng, wanted: impl Fn(&str, &Node) -> bool) -> Option<&'m str> {
        let found: Vec<&str> = self.names.iter().filter(|(name, node)| wanted(name, node)).map(|(name, _)| name.as_str()).collect();
        (!found.is_empty()).then(|| found[random.usize(..found.len())])
    }

    fn pick_file(&self, random: &mut Rng) -> Option<&str> {
        self.pick(random, |_, node| matches!(node, Node::File(_)))
    }

    fn is_empty_directory(&self, name: &str) -> bool {
        let below = format!("{name}/");
        !self.names.range(below.clone()..).next().is_some_and(|(other, _)| other.starts_with(&below))
    }

    fn new_name(&self, random: &mut Rng, letter: char, number: u64) -> String {
        let directory = self.pick(random, |_, node| *node == Node::Directory).unwrap_or("d0");
        format!("{directory}/{letter}{number:06}")
    }

    /// Puts data into the file behind a name.
    pub fn put(&mut self, name: &str, piece: &Piece) {
        let Some((file, _)) = self.file(name) else { return };
        let bytes = Arc::make_mut(self.files.get_mut(&file).expect("a name's file"));
        if bytes.len() < piece.offset + piece.length {
            bytes.resize(piece.offset + piece.length, 0);
        }
        bytes[piece.offset..][..piece.length].copy_from_slice(&content(piece));
    }

    /// Makes a file without data.
    pub fn make(&mut self, name: &str) {
        let file = self.files.last_key_value().map_or(0, |(last, _)| last + 1);
        self.files.insert(file, Arc::default());
        self.names.insert(name.to_owned(), Node::File(file));
    }

    fn remove(&mut self, name: &str) {
        if let Some(Node::File(file)) = self.names.remove(name)
            && self.links(file) == 0
        {
            self.files.remove(&file);
        }
    }

    /// What an operation leaves.
    pub fn apply(&mut self, operation: &Operation, number: u64) {
        match operation {
            Operation::Create { name, pieces, .. } => {
                self.make(name);
                pieces.iter().for_each(|piece| self.put(name, piece));
            }
            Operation::Write { name, pieces, .. } => pieces.iter().for_each(|piece| self.put(name, piece)),
            Operation::Truncate { name, size } => {
                if let Some((file, _)) = self.file(name) {
                    Arc::make_mut(self.files.get_mut(&file).expect("a name's file")).resize(*size, 0);
                }
            }
            Operation::Rename { from, to } => {
                let below = format!("{from}/");
                let children: Vec<String> =
                    self.names.range(below.clone()..).map(|(name, _)| name.clone()).take_while(|name| name.starts_with(&below)).collect();
                for child in children {
                    if let Some(node) = self.names.remove(&child) {
                        self.names.insert(format!("{to}/{}", &child[below.len()..]), node);
                    }
                }
                self.remove(to);
                if let Some(node) = self.names.remove(from) {
                    self.names.insert(to.clone(), node);
                }
            }
            Operation::Unlink { name } => self.remove(name),
            Operation::Link { from, to } => {
                if let Some(node) = self.names.get(from).cloned() {
                    self.names.insert(to.clone(), node);
                }
            }
            Operation::Symlink { target, name } => drop(self.names.insert(name.clone(), Node::Symlink(target.clone()))),
            Operation::MkDir { name } => drop(self.names.insert(name.clone(), Node::Directory)),
            Operation::RmDir { name } => drop(self.names.remove(name)),
        }
        // [`Model::next`] made the replacement under a name that tells its number.
        self.replacement = match (operation, self.replacement.take()) {
            (Operation::Create { name, .. }, Some((made, target))) if *name == made && name.ends_with(&format!("r{number:06}")) => {
                Some((made, target))
            }
            _ => None,
        };
    }

    /// The operation of this number. It changes nothing but the choice of a file to be replaced.
    pub fn next(&mut self, seed: u64, profile: Profile, can_map: bool, number: u64) -> Operation {
        if let Some((from, to)) = self.replacement.clone() {
            return Operation::Rename { from, to };
        }
        let mut random = Rng::with_seed(seed.wrapping_mul(0x100_0000_01b3) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let total: u32 = profile.shares().iter().map(|(_, share)| share).sum();
        let mut at = random.u32(..total);
        let mut kind = Kind::Create;
        for (candidate, share) in profile.shares() {
            if at < *share {
                kind = *candidate;
                break;
            }
            at -= share;
        }
        if kind == Kind::Map && !can_map {
            kind = Kind::Write;
        }
        // Directories go only when they are empty, so without a limit they end up with all the names.
        if kind == Kind::MkDir && self.directories() > profile.names_max() / 4 {
            kind = Kind::RmDir;
        }
        if self.names.len() > profile.names_max() && matches!(kind, Kind::Create | Kind::Link | Kind::Symlink | Kind::MkDir) {
            kind = Kind::Unlink;
        }
        self.of_kind(kind, profile, number, &mut random).unwrap_or_else(|| self.create(profile, 'f', number, &mut random))
    }

    fn create(&self, profile: Profile, letter: char, number: u64, random: &mut Rng) -> Operation {
        let name = self.new_name(random, letter, number);
        let length = some_length(profile, random);
        let sync = if random.bool() { Sync::Fsync } else { Sync::Fdatasync };
        // Large files come in sequence.
        let step = if profile == Profile::Large { MIB } else { usize::MAX };
        let pieces = (0..length).step_by(step).map(|offset| Piece { offset, length: step.min(length - offset), seed: random.u64(..) });
        Operation::Create { name, pieces: pieces.collect(), sync }
    }

    fn of_kind(&mut self, kind: Kind, profile: Profile, number: u64, random: &mut Rng) -> Option<Operation> {
        let file_bytes_max = profile.file_bytes_max();
        Some(match kind {
            Kind::Create => self.create(profile, 'f', number, random),
            Kind::Replace => {
                let target = self.pick_file(random)?.to_owned();
                let made = self.create(profile, 'r', number, random);
                if let Operation::Create { name, .. } = &made {
                    self.replacement = Some((name.clone(), target));
                }
                made
            }
            Kind::Write | Kind::Append => {
                let append = kind == Kind::Append;
                let name = self.pick_file(random)?.to_owned();
                let mut size = self.file(&name)?.1.len();
                let sync = if append { [Sync::Fdatasync, Sync::Dsync] } else { [Sync::Fsync, Sync::Dsync] };
                let sync = if random.u8(..3) == 0 { sync[1] } else { sync[0] };
                let mut pieces = Vec::new();
                for _ in 0..1 + random.usize(..3) / 2 * 2 {
                    let mut offset = if append { size } else { random.usize(..=size) };
                    if !append && random.bool() {
                        offset &= !4095;
                    }
                    let length = if append && profile != Profile::Large { 1 + random.usize(..3000) } else { some_length(profile, random) };
                    let length = length.min(file_bytes_max.saturating_sub(offset)).min(MIB - 4096);
                    if length > 0 {
                        pieces.push(Piece { offset, length, seed: random.u64(..) });
                        size = size.max(offset + length);
                    }
                }
                // A full log begins anew.
                if pieces.is_empty() {
                    return Some(Operation::Truncate { name, size: 0 });
                }
                Operation::Write { name, pieces, sync, append }
            }
            Kind::Map => {
                let name = self.pick(random, |_, node| matches!(node, Node::File(file) if !self.files[file].is_empty()))?.to_owned();
                let size = self.file(&name)?.1.len();
                let offset = random.usize(..size);
                let length = some_length(profile, random).min(size - offset).min(65_536);
                Operation::Write { name, pieces: vec![Piece { offset, length, seed: random.u64(..) }], sync: Sync::Msync, append: false }
            }
            Kind::Truncate => {
                let name = self.pick_file(random)?.to_owned();
                let size = self.file(&name)?.1.len();
                let size = if random.bool() { random.usize(..=size) } else { (size + random.usize(..100_000)).min(file_bytes_max) };
                Operation::Truncate { name, size }
            }
            Kind::Move => {
                // A directory of ours now and then, but none of the first ones.
                let from = self.pick(random, |name, node| *node != Node::Directory || name.contains('/'))?.to_owned();
                let letter = if self.names[&from] == Node::Directory { 's' } else { 'm' };
                let to = self.new_name(random, letter, number);
                if to.starts_with(&format!("{from}/")) {
                    return None;
                }
                Operation::Rename { from, to }
            }
            Kind::MoveOver => {
                let from = self.pick_file(random)?.to_owned();
                let to = self.pick_file(random)?.to_owned();
                // A rename between two names of one file does nothing, and removes neither.
                if self.names[&from] == self.names[&to] {
                    return None;
                }
                Operation::Rename { from, to }
            }
            Kind::Unlink => Operation::Unlink { name: self.pick(random, |_, node| *node != Node::Directory)?.to_owned() },
            Kind::Link => {
                let from = self.pick_file(random)?.to_owned();
                Operation::Link { from, to: self.new_name(random, 'l', number) }
            }
            Kind::Symlink => {
                let target = "t".repeat(1 + random.usize(..300));
                Operation::Symlink { target, name: self.new_name(random, 'y', number) }
            }
            Kind::MkDir => {
                // Two deep at most, so that paths stay short.
                let parent = self.pick(random, |name, node| *node == Node::Directory && !name.contains('/'))?;
                Operation::MkDir { name: format!("{parent}/s{number:06}") }
            }
            Kind::RmDir => {
                let empty = |name: &str, node: &Node| *node == Node::Directory && name.contains('/') && self.is_empty_directory(name);
                Operation::RmDir { name: self.pick(random, empty)?.to_owned() }
            }
        })
    }
}

/// Sizes on both sides of every limit of the splitting: a line, a log page, a sector, a block, a request.
fn some_length(profile: Profile, random: &mut Rng) -> usize {
    let about: &[usize] = match profile {
        Profile::Mixed => &[1, 64, 1000, 4096, 5000, 16_384, 65_536, 70_000, 131_072, 300_000],
        Profile::Small => &[1, 64, 200, 500, 2000, 4096, 9000],
        Profile::Log => &[1, 100, 1000],
        Profile::Large => &[200_000, 1 << 20, 2 << 20, 5 << 20],
    };
    let about = about[random.usize(..about.len())];
    if random.bool() { about } else { 1 + random.usize(..about) }
}

/// The bytes of a piece; they differ for each place and write, so that a misplaced piece is detected.
pub fn content(piece: &Piece) -> Vec<u8> {
    let mut bytes = vec![0; piece.length];
    Rng::with_seed(piece.seed).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_operations_and_every_kind_occurs() {
        for profile in Profile::ALL {
            let (mut one, mut other) = (Model::new(), Model::new());
            let mut words = std::collections::BTreeSet::new();
            for number in 0..3000 {
                let operation = one.next(7, profile, true, number);
                assert_eq!(operation, other.next(7, profile, true, number));
                words.insert(operation.word());
                one.apply(&operation, number);
                other.apply(&operation, number);
                assert!(one.names.len() < 400 && one.files.values().all(|bytes| bytes.len() <= profile.file_bytes_max()));
            }
            assert_eq!((&one.names, &one.files), (&other.names, &other.files));
            let kinds = match profile {
                Profile::Mixed => 11,
                Profile::Small => 10,
                Profile::Log | Profile::Large => 4,
            };
            assert!(words.len() >= kinds, "{profile:?}: {words:?}");
        }
    }

    #[test]
    fn a_writer_is_of_one_kind_for_as_long_as_it_works() {
        for (profile, files_least, bytes_least) in
            [(Profile::Mixed, 30, 1 << 20), (Profile::Small, 100, 200_000), (Profile::Log, 1, 1000), (Profile::Large, 1, 1 << 20)]
        {
            let mut model = Model::new();
            let mut bytes = 0;
            for number in 0..12_000 {
                let operation = model.next(7, profile, true, number);
                model.apply(&operation, number);
                if number % 100 == 99 && number > 9_000 {
                    let files = model.names.values().filter(|node| matches!(node, Node::File(_))).count();
                    assert!(files >= files_least, "{profile:?}: {files} of {} names are files' after {number}", model.names.len());
                    bytes += model.files.values().map(|bytes| bytes.len()).sum::<usize>() / 30;
                }
            }
            assert!(bytes >= bytes_least, "{profile:?}: {bytes} bytes on average");
        }
    }
}

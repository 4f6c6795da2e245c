//! Exploration: a workload is recorded, cut in every way that the fault model allows, and every state that is left is mounted, compared,
//! worked on and checked.
//!
//! The oracle: a cut between two operations leaves everything that was answered; a cut inside one leaves the tree before it or after it
//! (or after a piece of a long write); a cut during recovery changes nothing of that. After recovery the file system works, and
//! `tandemfs_check`, which shares no code with the engine, finds nothing.

use std::collections::HashMap;
use std::sync::Arc;

use tandemfs_check::{CheckOptions, Finding, Severity, check};
use tandemfs_device::Drive;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileSystem, NewInode, WriteOptions};

use crate::harness::{Harness, Setting, mount};
use crate::memory_device::{MemoryDevice, Recorded};
use crate::model::Model;
use crate::operation::{Mix, Operation};
use crate::random::{Random, fill};
use crate::states::{CrashState, Cut, each_state};
use crate::tree::Tree;

/// How thorough.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// States of each cut.
    pub states: u64,
    /// One of so many states is also cut during its recovery; 0 for none.
    pub recovery_one_in: u64,
    /// How many recoveries in a row are cut.
    pub recovery_depth: u32,
    /// States of each cut during recovery.
    pub recovery_states: u64,
    /// One of so many states is worked on and checked after its recovery; 0 for none.
    pub work_one_in: u64,
}

impl Effort {
    /// What fits into `make test`.
    pub const QUICK: Self = Self { states: 6, recovery_one_in: 150, recovery_depth: 2, recovery_states: 2, work_one_in: 6 };
    /// All states of a call up to 2^12.
    pub const EXHAUSTIVE: Self = Self { states: 1 << 12, recovery_one_in: 300, recovery_depth: 2, recovery_states: 8, work_one_in: 20 };
}

/// States of one recovery that are tried, roughly.
const RECOVERY_STATES_MAX: u64 = 40;

/// What was tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tried {
    /// Workloads.
    pub sequences: u64,
    /// Places at which the power was cut.
    pub cuts: u64,
    /// States, equal ones included.
    pub states: u64,
    /// States that differed and were mounted.
    pub mounted: u64,
    /// States of cuts during recovery that were mounted.
    pub mounted_in_recovery: u64,
    /// States that were worked on and checked.
    pub worked_on: u64,
}

/// A file system that is prepared once and explored many times.
pub struct Explorer {
    base: Arc<Recorded>,
    setting: Setting,
    model: Model,
    effort: Effort,
    random: Random,
    /// What was tried so far.
    pub tried: Tried,
}

impl Explorer {
    /// Formats, does the preparation, and unmounts.
    ///
    /// # Errors
    /// Where the preparation itself disagrees with the model.
    pub fn new(setting: &Setting, preparation: &[Operation], effort: Effort, seed: u64) -> Result<Self, String> {
        let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
        for operation in preparation {
            harness.apply(operation)?;
        }
        harness.compare()?;
        harness.fs.unmount().map_err(|error| format!("unmount: {error}"))?;
        let base = Arc::new(harness.device.zones());
        Ok(Self { base, setting: setting.clone(), model: harness.model, effort, random: Random::new(seed), tried: Tried::default() })
    }

    /// Does the operations on the prepared file system and explores every cut in those from `first` on.
    ///
    /// # Errors
    /// What went wrong, with the cut, in sentences.
    pub fn explore(&mut self, operations: &[Operation], first: usize) -> Result<(), String> {
        let device = MemoryDevice::over(self.base.clone(), self.setting.domain);
        let start = device.fork();
        device.start_recording();
        let mut harness = Harness::new(device, &self.setting.mount, self.model.clone())?;
        let mut inside: Vec<Vec<Tree>> = Vec::new();
        let mut between: Vec<Tree> = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            inside.push(if index < first { Vec::new() } else { harness.model.allowed(operation) });
            harness.device.mark(index);
            harness.apply(operation)?;
            between.push(if index + 1 < first { Tree::default() } else { harness.model.tree() });
        }
        harness.compare()?;
        let events = harness.device.stop_recording();
        drop(harness);
        self.tried.sequences += 1;

        let mut known: HashMap<u64, Arc<Tree>> = HashMap::new();
        let mut failure = None;
        let mut last_cut = None;
        let mut random = self.random.clone();
        each_state(&start, &events, first, self.effort.states, &mut random, &mut |cut, state| {
            if failure.is_some() {
                return;
            }
            if last_cut != Some(cut) {
                last_cut = Some(cut);
                self.tried.cuts += 1;
            }
            self.tried.states += 1;
            let Some(call) = cut.call else { return };
            let allowed = if cut.between { std::slice::from_ref(&between[call]) } else { &inside[call] };
            let hash = state.hash;
            let result = match known.get(&hash) {
                Some(tree) => Ok(tree.clone()),
                None => self.recover(state).map(Arc::new),
            };
            let result = result.and_then(|tree| {
                known.insert(hash, tree.clone());
                if allowed.contains(&tree) {
                    return Ok(());
                }
                let differences: Vec<String> = allowed.iter().filter_map(|allowed| tree.difference(allowed)).collect();
                Err(format!("the tree is none of {} allowed: {}", allowed.len(), differences.join("; or ")))
            });
            failure = result.err().map(|what| format!("{what}\n{}", self.describe(operations, cut, &events)));
        });
        self.random = random;
        failure.map_or(Ok(()), Err)
    }

    /// Does random operations on the prepared file system and explores every cut in the last `count_last` of them.
    ///
    /// # Errors
    /// As [`Explorer::explore`].
    pub fn explore_random(&mut self, count: usize, count_last: usize) -> Result<(), String> {
        let mix = Mix::draw(&mut self.random, self.setting.block_zone_bytes);
        let operations: Vec<Operation> = (0..count).map(|_| mix.next(&mut self.random)).collect();
        // Operations of many parts are not one transaction: their parts stand for themselves.
        let parts: Vec<Operation> = operations.iter().flat_map(Operation::parts).filter(|part| *part != Operation::Crash).collect();
        let first = parts.len().saturating_sub(count_last);
        self.explore(&parts, first)
    }

    fn describe(&self, operations: &[Operation], cut: Cut, events: &[crate::Event]) -> String {
        let near: Vec<String> = events[cut.event.saturating_sub(3)..events.len().min(cut.event + 2)]
            .iter()
            .map(|event| format!("{event:.60?}").chars().take(90).collect())
            .collect();
        format!(
            "{cut:?} of {} events, near {near:?}\n{:?}, blocks of {}\n{operations:?}",
            events.len(),
            self.setting.domain,
            self.setting.format.block_bytes
        )
    }

    /// Mounts a state, says what is there, and tries what the effort asks for.
    fn recover(&mut self, state: CrashState) -> Result<Tree, String> {
        self.tried.mounted += 1;
        let device = state.device;
        let nested = self.effort.recovery_one_in > 0 && self.random.one_in(self.effort.recovery_one_in);
        let start = device.fork();
        if nested {
            device.start_recording();
        }
        let fs = mount(&device, &self.setting.mount)?;
        let tree = Tree::read(&fs)?;
        if nested {
            self.cut_recovery(&start, &device.stop_recording(), &tree, self.effort.recovery_depth)?;
        }
        if self.effort.work_one_in > 0 && self.random.one_in(self.effort.work_one_in) {
            self.tried.worked_on += 1;
            check_device(&start, true).map_err(|what| format!("check before recovery: {what}"))?;
            works(&fs, &tree)?;
            fs.unmount().map_err(|error| format!("unmount after recovery: {error}"))?;
            drop(fs);
            check_device(&device, false).map_err(|what| format!("check after recovery: {what}"))?;
            let again = mount(&device, &self.setting.mount)?;
            if !again.recovery().clean {
                return Err("not clean after recovery and unmount".into());
            }
            if let Some(difference) = Tree::read(&again)?.difference(&tree) {
                return Err(format!("after recovery, unmount and mount: {difference}"));
            }
        }
        Ok(tree)
    }

    /// Cuts a recovery anywhere: the next one must come to the same tree.
    fn cut_recovery(&mut self, start: &MemoryDevice, events: &[crate::Event], expected: &Tree, depth: u32) -> Result<(), String> {
        let mut failure = None;
        let mut random = self.random.clone();
        random.next();
        let states = self.effort.recovery_states;
        // A recovery of many stores has too many places to cut: about so many of them are tried.
        let one_in = (events.len() as u64 * states / RECOVERY_STATES_MAX).max(1);
        let mut chosen = random.clone();
        each_state(start, events, 0, states, &mut random, &mut |_, state| {
            if failure.is_some() || !chosen.one_in(one_in) {
                return;
            }
            self.tried.mounted_in_recovery += 1;
            failure = self.recover_again(state, expected, depth).err();
        });
        self.random = random;
        failure.map_or(Ok(()), |what| Err(format!("cut during recovery: {what}")))
    }

    fn recover_again(&mut self, state: CrashState, expected: &Tree, depth: u32) -> Result<(), String> {
        let start = state.device.fork();
        let nested = depth > 1 && self.random.one_in(20);
        if nested {
            state.device.start_recording();
        }
        let fs = mount(&state.device, &self.setting.mount)?;
        if let Some(difference) = Tree::read(&fs)?.difference(expected) {
            return Err(difference);
        }
        drop(fs);
        if nested {
            self.cut_recovery(&start, &state.device.stop_recording(), expected, depth - 1)?;
        }
        Ok(())
    }
}

/// The file system goes on working: makes, writes, reads and removes.
fn works(fs: &FileSystem, tree: &Tree) -> Result<(), String> {
    let what = |error: tandemfs_fs::Error| format!("it does not work any more: {error}");
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let mut bytes = fill(77, 70_000);
    let name = b"made after recovery";
    let inode = fs.create(InodeNumber::ROOT, name, &new).map_err(what)?.inode;
    for (offset, length) in [(0, 100), (100, 300), (5000, 64_900), (4090, 4096)] {
        match fs.write(inode, offset as u64, &bytes[offset..offset + length], WriteOptions::default()) {
            Ok(done) if done == length => {}
            Ok(done) => return Err(format!("it does not work any more: {done} B of {length} written")),
            Err(tandemfs_fs::Error::NoSpace { .. }) => bytes.clear(),
            Err(error) => return Err(what(error)),
        }
        if bytes.is_empty() {
            break;
        }
    }
    if !bytes.is_empty() {
        bytes.truncate(69_900);
        bytes[400..4090].fill(0);
        if crate::tree::content(fs, inode).map_err(what)? != bytes {
            return Err("what was written after recovery reads differently".into());
        }
    }
    fs.unlink(InodeNumber::ROOT, name).map_err(what)?;
    match Tree::read(fs)?.difference(tree) {
        None => Ok(()),
        Some(difference) => Err(format!("work after recovery changed something else: {difference}")),
    }
}

/// Nothing for `tandemfs_check` to say, not even a warning. Right after a cut, one copy of the superblock may be torn or older: the next mount writes it anew.
///
/// # Errors
/// Its first findings.
pub fn check_device(device: &MemoryDevice, after_cut: bool) -> Result<(), String> {
    let options = CheckOptions { threads: 1, ..CheckOptions::default() };
    let drive = Drive::new(Arc::new(device.fork()));
    let report = check(&drive, &options, &mut |_| {}).map_err(|error| error.to_string())?;
    let counts =
        |finding: &Finding| !after_cut || finding.severity() == Severity::Error && !matches!(finding, Finding::SuperblockDamaged { .. });
    let findings: Vec<String> =
        report.findings.iter().filter(|located| counts(&located.finding)).take(3).map(|located| format!("{located:?}")).collect();
    if findings.is_empty() { Ok(()) } else { Err(findings.join("; ")) }
}

/// A small tree with every kind of file: what the sequences of operations start from.
pub const PREPARATION: &[Operation] = &[
    Operation::MakeDirectory("d"),
    Operation::MakeDirectory("e"),
    Operation::Create("a"),
    Operation::Write("a", 0, 300, 1),
    Operation::Create("b"),
    Operation::Write("b", 0, 70_000, 2),
    Operation::Write("b", 500, 100, 3),
    Operation::Link("a", "d/a"),
    Operation::Create("d/b"),
    Operation::Append("d/b", 5000, 4),
    Operation::Symlink("s", 40),
];

/// The bounded set from which sequences are made, in the manner of ACE.
pub const ALPHABET: &[Operation] = &[
    Operation::Create("c"),
    Operation::Create("d/c"),
    Operation::Create(crate::LONG),
    Operation::MakeDirectory("f"),
    Operation::MakeDirectory("d/d"),
    Operation::Symlink("c", 10),
    Operation::Symlink("d/s", 300),
    Operation::Link("a", "c"),
    Operation::Link("d/b", "e/b"),
    Operation::Unlink("a"),
    Operation::Unlink("b"),
    Operation::Unlink("d/b"),
    Operation::Unlink("s"),
    Operation::RemoveDirectory("e"),
    Operation::Rename("a", "c", tandemfs_fs::RenameMode::Replace),
    Operation::Rename("a", "b", tandemfs_fs::RenameMode::Replace),
    Operation::Rename("d/b", "e/b", tandemfs_fs::RenameMode::NoReplace),
    Operation::Rename("d", "e", tandemfs_fs::RenameMode::Exchange),
    Operation::Rename("d", "e/d", tandemfs_fs::RenameMode::Replace),
    Operation::Rename("b", "d/b", tandemfs_fs::RenameMode::Exchange),
    Operation::Write("b", 0, 65_536, 10),
    Operation::Write("b", 4096, 64, 11),
    Operation::Write("b", 65_000, 2000, 12),
    Operation::Write("a", 100, 50, 13),
    Operation::Write("a", 200_000, 64, 14),
    Operation::Append("a", 100, 15),
    Operation::Append("d/b", 9000, 16),
    Operation::Truncate("b", 1000),
    Operation::Truncate("b", 66_000),
    Operation::Truncate("a", 0),
    Operation::Truncate("d/b", 90_000),
    Operation::Allocate("a", 195_000, 20_000, false),
    Operation::Allocate("d/b", 3_000, 100_000, true),
    Operation::Punch("b", 3_000, 9_000),
    Operation::Punch("b", 40_000, 90_000),
    Operation::Zero("b", 66_000, 140_000, false),
    Operation::Checkpoint,
    Operation::Remount,
    Operation::Hold(0, "a"),
    Operation::Forget(0),
];

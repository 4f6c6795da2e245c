//! Exploration: a workload is recorded and cut in every way that the fault model allows. Every resulting state is mounted, compared, used
//! and checked.
//!
//! The oracle: a cut between two operations leaves everything that was acknowledged. A cut inside an operation leaves the tree before it or
//! after it (or after a piece of a long write). A cut during recovery changes nothing of that. After recovery the file system works, and
//! `tandemfs_check`, which shares no code with the engine, finds nothing.

use std::collections::HashMap;
use std::sync::Arc;

use tandemfs_fs::Promote;

use crate::harness::{Harness, Setting, mount};
use crate::memory_device::{MemoryDevice, Recorded};
use crate::model::Model;
use crate::operation::{Mix, Operation};
use crate::random::Random;
use crate::scenes::Scene;
use crate::soundness::{Fresh, check_device, compare_space, reads_only, works};
use crate::states::{CrashState, Cut, each_state};
use crate::tree::Tree;

/// Limits of an exploration.
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
    /// One of so many of those is emptied and filled again; 0 for none.
    pub empty_one_in: u64,
}

impl Effort {
    /// The limits of `make test`.
    pub const QUICK: Self =
        Self { states: 6, recovery_one_in: 150, recovery_depth: 2, recovery_states: 2, work_one_in: 6, empty_one_in: 20 };
    /// All states of a call up to 2^12.
    pub const EXHAUSTIVE: Self =
        Self { states: 1 << 12, recovery_one_in: 300, recovery_depth: 2, recovery_states: 8, work_one_in: 20, empty_one_in: 20 };
}

/// States of one recovery that are tried, roughly.
const RECOVERY_STATES_MAX: u64 = 40;

/// Bytes of files above which a tree counts as large.
const LARGE_TREE_BYTES: u64 = 4 << 20;

/// Statistics of explorations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    /// States that were emptied and filled again.
    pub emptied: u64,
}

impl Tried {
    /// Adds the statistics of another exploration.
    pub fn add(&mut self, other: &Self) {
        self.sequences += other.sequences;
        self.cuts += other.cuts;
        self.states += other.states;
        self.mounted += other.mounted;
        self.mounted_in_recovery += other.mounted_in_recovery;
        self.worked_on += other.worked_on;
        self.emptied += other.emptied;
    }
}

/// A file system that is prepared once and explored many times.
pub struct Explorer {
    base: Arc<Recorded>,
    setting: Setting,
    model: Model,
    prefix: Vec<Operation>,
    /// The same file system right after its format.
    fresh: Fresh,
    effort: Effort,
    random: Random,
    /// Statistics so far.
    pub tried: Tried,
}

impl Explorer {
    /// Prepares a scene.
    ///
    /// # Errors
    /// Where the preparation itself disagrees with the model.
    pub fn new(scene: &Scene, effort: Effort, seed: u64) -> Result<Self, String> {
        let fresh = Fresh::new(&scene.setting)?;
        let (model, device) = scene.prepare()?;
        Ok(Self {
            base: Arc::new(device.zones()),
            setting: scene.setting.clone(),
            model,
            prefix: scene.prefix.clone(),
            fresh,
            effort,
            random: Random::new(seed),
            tried: Tried::default(),
        })
    }

    /// Does the operations on the prepared file system and explores every cut in those from `first` on.
    ///
    /// # Errors
    /// A description of the failure and the cut.
    pub fn explore(&mut self, operations: &[Operation], first: usize) -> Result<(), String> {
        let first = first + self.prefix.len();
        let operations = &[&self.prefix, operations].concat()[..];
        let device = self.setting.over(self.base.clone());
        let start = device.fork();
        device.start_recording();
        let mut harness =
            Harness::new(device, &self.setting.mount, self.model.clone())?.with_write_back_cache(self.setting.write_back_cache);
        let mut inside: Vec<Vec<Tree>> = Vec::new();
        let mut between: Vec<Tree> = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            inside.push(if index < first { Vec::new() } else { harness.model.allowed(operation) });
            harness.device.mark(index);
            if self.setting.mount.promote != Promote::Off {
                harness.compare()?; // copies are made here, and cut
            }
            harness.apply(operation)?;
            between.push(if index + 1 < first { Tree::default() } else { harness.model.tree() });
        }
        harness.compare()?;
        // Each state is read whole, so states of large trees are fewer.
        let states = (self.effort.states / (1 + harness.model.file_bytes() / LARGE_TREE_BYTES)).max(2);
        let events = harness.device.stop_recording();
        drop(harness);
        self.tried.sequences += 1;

        // Many states share few trees, so each tree is kept once.
        let mut trees: Vec<Tree> = Vec::new();
        let mut known: HashMap<u64, usize> = HashMap::new();
        let mut failure = None;
        let mut last_cut = None;
        let mut random = self.random.clone();
        each_state(&start, &events, first, states, &mut random, &mut |cut, state| {
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
            let found = match known.get(&hash) {
                Some(index) => Ok(*index),
                None => self.recover(state).map(|tree| {
                    let index = trees.iter().position(|known| *known == tree).unwrap_or_else(|| {
                        trees.push(tree);
                        trees.len() - 1
                    });
                    known.insert(hash, index);
                    index
                }),
            };
            let result = found.and_then(|index| {
                let tree = &trees[index];
                if allowed.contains(tree) {
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
        let mix = Mix::draw(&mut self.random, self.setting.room_bytes());
        let operations: Vec<Operation> = (0..count).map(|_| mix.next(&mut self.random)).collect();
        // Operations with many parts are several transactions, so each part is an operation of its own.
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

    /// Mounts a state, returns its tree, and makes the checks that the limits ask for.
    fn recover(&mut self, state: CrashState) -> Result<Tree, String> {
        self.tried.mounted += 1;
        let device = state.device;
        let nested = self.effort.recovery_one_in > 0 && self.random.one_in(self.effort.recovery_one_in);
        let start = device.fork();
        if nested {
            device.start_recording();
        }
        let fs = mount(&device, &self.setting.mount_again(&mut self.random))?;
        let tree = Tree::read(&fs)?;
        if nested {
            self.cut_recovery(&start, &device.stop_recording(), &tree, self.effort.recovery_depth)?;
        }
        if self.effort.work_one_in > 0 && self.random.one_in(self.effort.work_one_in) {
            self.tried.worked_on += 1;
            check_device(&start, true).map_err(|what| format!("check before recovery: {what}"))?;
            reads_only(&start, &self.setting, &tree)?;
            works(&fs, &tree)?;
            fs.unmount().map_err(|error| format!("unmount after recovery: {error}"))?;
            let space = fs.space();
            drop(fs);
            let counts = check_device(&device, false).map_err(|what| format!("check after recovery: {what}"))?;
            compare_space(&space, &counts, &tree)?;
            let again = mount(&device, &self.setting.mount_again(&mut self.random))?;
            if !again.recovery().clean {
                return Err("not clean after recovery and unmount".into());
            }
            if let Some(difference) = Tree::read(&again)?.difference(&tree) {
                return Err(format!("after recovery, unmount and mount: {difference}"));
            }
            again.drop_promoted();
            if again.space() != space {
                return Err(format!("space before an unmount {space:?}, after it {:?}", again.space()));
            }
            if self.effort.empty_one_in > 0 && self.random.one_in(self.effort.empty_one_in) {
                self.tried.emptied += 1;
                drop(again);
                self.fresh.comes_back(&device, &self.setting).map_err(|what| format!("emptied after recovery: {what}"))?;
            }
        }
        Ok(tree)
    }

    /// Cuts a recovery at any point: the next recovery must produce the same tree.
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
        let fs = mount(&state.device, &self.setting.mount_again(&mut self.random))?;
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
    Operation::SetAttribute("a", "user.a", 100, 5),
    Operation::SetAttribute("b", "user.b", 4000, 6),
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
    Operation::Collapse("b", 0, 65_536),
    Operation::Insert("b", 65_536, 131_072),
    Operation::CopyRange("b", 1_000, "a", 0, 70_000),
    Operation::CopyRange("a", 0, "d/b", 5_000, 200_000),
    Operation::SetAttribute("a", "trusted.c", 40, 20),
    Operation::SetAttribute("b", "user.b", 5000, 21),
    Operation::RemoveAttribute("a", "user.a"),
    Operation::SetDefaultList("d", 22),
    Operation::Checkpoint,
    Operation::WriteBackAll,
    Operation::Discard,
    Operation::Remount,
    Operation::Hold(0, "a"),
    Operation::Forget(0),
    Operation::CreateNameless(1, "d"),
    Operation::LinkHeld(1, "d/n"),
    Operation::LeaveWhiteout("d/b", "a"),
];

//! A drive that returns wrong bytes: every load and every read of a workload (recovery, mount, reads, read-modify-write, writeback,
//! unmount) in its own run. The result is the right data or an error, never wrong bytes, and no wrong bytes are written to the medium.
//!
//! Damage that the format cannot detect has a name here ([`Blind`]) and is counted: an older valid version, zeros instead of lines that may
//! be empty (names, entries of logs; never a line of a mapping, RULES R27), and an invalid last record of a ring, which is taken for its
//! torn end.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use support::{Start, almost_full};
use tandemfs_crash::{
    Harness, Lie, LyingDevice, MemoryDevice, Model, Operation, PREPARATION, Place, Recorded, Setting, Told, Tree, check_device, chosen,
    mount, mount_device,
};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::{ChecksumKind, Superblock};
use tandemfs_format::{LINE_BYTES, Line, LineAddress, PairSeed};
use tandemfs_fs::{Error, FileSystem, MountOptions};

use Operation::*;

/// What the format cannot notice, by its nature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Blind {
    /// A line of metadata was answered with an older version of itself, which is valid: as after a lost write (SEMANTICS, *Checksums*).
    OlderLine,
    /// Lines of metadata that may be empty were answered with zeros: as after a lost first write.
    EmptyLine,
    /// The last record of a ring did not prove itself, so its ring ended there: as after a power cut during its store.
    RingEnd,
}

/// What one lie did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The wrong answer equalled the right one, or the access did not happen.
    NoLie,
    /// The result was right anyway: another copy, a rebuild, or bytes that were not needed.
    Right,
    MountRefused,
    CallFailed,
    ReadFailed,
    UnmountFailed,
    /// Something was wrong, and could not be noticed.
    Unnoticed(Blind),
}

struct Scene {
    start: Start,
    older: Arc<Recorded>,
    /// The trees after each operation whose record is in the journal.
    prefixes: Vec<Tree>,
}

const WORKLOAD: &[Operation] = &[
    Append("a", 20, 1),
    Write("b", 65_000, 3000, 2),
    Create("d/n"),
    Append("d/n", 300, 3),
    Append("d/n", 50, 4),
    Write("d/b", 4000, 200, 5),
    Scatter("b", 100, 15, 3500, 60, 6),
    Write("b", 70_100, 8000, 7),
    Truncate("b", 66_000),
    Rename("a", "d/b", tandemfs_fs::RenameMode::Exchange),
    Symlink("e/t", 200),
    Unlink("d/a"),
    WriteBack,
    Checkpoint,
    Append("d/b", 10, 8),
];

/// An image that a power cut left after a checkpoint, with older versions of everything in `older`. One thread on one processor fills one
/// ring, so what a lost record takes with it is what came after it.
fn scene(checksum_kind: ChecksumKind) -> Scene {
    use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one).expect("stays on its processor");
    let mut setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    setting.format.checksum_kind = checksum_kind;
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    for operation in PREPARATION.iter().chain(&[Checkpoint]) {
        harness.apply(operation).expect("prepared");
    }
    let older = Arc::new(harness.device.zones());
    for operation in [Write("b", 0, 70_000, 20), Append("a", 100, 21), Unlink("s"), Symlink("s", 60), Write("d/b", 100, 4000, 22)] {
        harness.apply(&operation).expect("prepared");
    }
    harness.apply(&Checkpoint).expect("prepared");
    let mut prefixes = vec![harness.model.tree()];
    for operation in [Append("d/b", 100, 23), Create("e/new"), Hold(0, "d/b"), Unlink("d/b"), Create("d/b"), Append("d/b", 8000, 24)] {
        harness.apply(&operation).expect("prepared");
        prefixes.push(harness.model.tree());
    }
    let mut model = harness.model.clone();
    model.apply(&Crash).expect("always possible");
    let base = Arc::new(harness.device.zones());
    let workload = WORKLOAD.iter().flat_map(Operation::parts).collect();
    Scene { start: Start { base, model, setting, workload, is_full: false }, older, prefixes }
}

fn almost_full_scene() -> Scene {
    let start = almost_full();
    Scene { older: start.base.clone(), prefixes: vec![start.model.tree()], start }
}

fn superblock_of(zones: &Recorded) -> Superblock {
    Superblock::choose([&zones.memory[..1024], &zones.memory[65_536..66_560]]).expect("a superblock")
}

/// The region that a unit of the memory zone belongs to.
fn region_of(zones: &Recorded, unit: u64) -> Option<Region> {
    let superblock = superblock_of(zones);
    let (geometry, pair) = (superblock.geometry, PairSeed::new(superblock.pair));
    (0..64).find_map(|index| {
        let address = geometry.segment_line(index);
        let line: Line = zones.memory[address.offset_bytes() as usize..][..LINE_BYTES].try_into().expect("a line");
        let segment = Segment::decode(&line, pair, address, geometry.memory_units()).expect("valid")?;
        (segment.start_unit..segment.start_unit + segment.unit_count).contains(&unit).then_some(segment.region)
    })
}

fn unit_of(range: &std::ops::Range<u64>) -> u64 {
    LineAddress::new(range.start / LINE_BYTES as u64).unit()
}

/// Whether a place of the memory zone holds data logs (or nothing).
fn is_data(zones: &Recorded, place: &Place) -> bool {
    let Place::Memory(range) = place else { return range_is_data(place) };
    let unit = unit_of(range);
    unit >= superblock_of(zones).geometry.fixed_units() && region_of(zones, unit).is_none()
}

/// The block zone holds data, but for the identity.
fn range_is_data(place: &Place) -> bool {
    !matches!(place, Place::Blocks(range) if range.start == 0)
}

/// What a lie could hide behind, where it was about metadata.
fn blind_to(told: &Told, now: &Recorded) -> Option<Blind> {
    if is_data(now, &told.place) {
        return None;
    }
    let Place::Memory(range) = &told.place else { return None };
    let geometry = superblock_of(now).geometry;
    let rings = geometry.ring(0).offset_bytes()..geometry.piece(0).offset_bytes();
    if rings.contains(&range.start) {
        return Some(Blind::RingEnd);
    }
    if SUPERBLOCK_OFFSETS.contains(&range.start)
        || rings.end <= range.start && range.start < geometry.unit(geometry.fixed_units()).offset_bytes()
    {
        return None; // there are two copies; saved maps carry checksums and the generation
    }
    if region_of(now, unit_of(range)) == Some(Region::Mappings) {
        return None; // lines of holes are sealed
    }
    let mut lines = told.truth.chunks(LINE_BYTES).zip(told.answer.chunks(LINE_BYTES));
    lines.any(|(truth, answer)| truth != answer && answer.iter().all(|byte| *byte == 0)).then_some(Blind::EmptyLine)
}

struct Run<'s> {
    scene: &'s Scene,
    lie: Lie,
    device: MemoryDevice,
    lying: Arc<LyingDevice>,
    first: Outcome,
    what: String,
}

impl Run<'_> {
    fn note(&mut self, outcome: Outcome) {
        assert!(self.lying.told().is_some(), "{}: {outcome:?} without a lie", self.what);
        if self.first == Outcome::NoLie {
            self.first = outcome;
        }
    }

    /// Something is wrong: either it could not be noticed, or the test fails.
    fn wrong(&mut self, what: String) {
        let told = self.lying.told().unwrap_or_else(|| panic!("{}: {what} without a lie", self.what));
        let blind = match self.lie {
            Lie::Older if !is_data(&self.device.zones(), &told.place) => Some(Blind::OlderLine),
            _ => blind_to(&told, &self.device.zones()),
        };
        match blind {
            Some(blind) => self.first = Outcome::Unnoticed(blind),
            None => panic!("{}: {what}; the lie was about {:x?}", self.what, told.place),
        }
    }

    /// An error must say that something is damaged.
    fn is_honest(error: &Error) -> bool {
        matches!(
            error,
            Error::Damaged { .. }
                | Error::DamagedData { .. }
                | Error::Stopped { .. }
                | Error::Superblock { .. }
                | Error::PairMismatch { .. }
                | Error::StampMismatch { .. }
                | Error::IdentityDamaged { .. }
                | Error::JournalDamaged { .. }
                | Error::Stale(_)
        )
    }

    /// True where everything that can be read is right.
    fn compare(&mut self, fs: &FileSystem, expected: &Tree) -> bool {
        match Tree::read(fs) {
            Ok(found) => match found.difference(expected) {
                Some(difference) => {
                    self.wrong(difference);
                    false
                }
                None => true,
            },
            Err(error) => {
                let honest = ["run tandemfs check", "checksum", "not in use"].iter().any(|word| error.contains(word));
                if honest {
                    self.note(Outcome::ReadFailed)
                } else {
                    self.wrong(error)
                }
                false
            }
        }
    }

    fn all(mut self) -> Outcome {
        let start = &self.scene.start;
        let mut allowed = vec![start.model.tree()];
        match mount_device(self.lying.clone(), &start.setting.mount) {
            Err(error) => {
                assert!(Self::is_honest(&error), "{}: mount: {error}", self.what);
                self.note(Outcome::MountRefused);
            }
            Ok(fs) => {
                // Cold reads first, then the workload, reading back after each step.
                self.compare(&fs, &start.model.tree());
                let mut harness = Harness::over(self.device.clone(), fs, &start.setting.mount, start.model.clone());
                for operation in &start.workload {
                    if matches!(self.first, Outcome::Unnoticed(_)) {
                        break; // from here on the model knows nothing
                    }
                    match harness.perform(operation) {
                        Ok(done) => match harness.model.apply_piece(operation, done) {
                            Ok(()) => allowed = vec![harness.model.tree()],
                            Err(refusal) if self.first == Outcome::NoLie => {
                                self.wrong(format!("{operation:?} should fail with {refusal:?}"))
                            }
                            Err(_) => {}
                        },
                        Err(error) if Self::is_honest(&error) => {
                            self.note(Outcome::CallFailed);
                            if harness.fs.stopped().is_some() {
                                allowed.extend(harness.model.allowed(operation));
                                break;
                            }
                        }
                        // A lost line may name any free space (RULES R26).
                        Err(Error::NoSpace { .. }) if harness.fs.damage().holds_back => self.note(Outcome::CallFailed),
                        Err(error) => {
                            let expected = harness.model.clone().apply(operation).err();
                            if tandemfs_crash::Refusal::of(&error) != expected {
                                self.wrong(format!("{operation:?}: {error}"));
                            }
                        }
                    }
                }
                if !matches!(self.first, Outcome::Unnoticed(_)) {
                    self.compare(&harness.fs, &harness.model.tree());
                }
                if let Err(error) = harness.fs.unmount() {
                    assert!(Self::is_honest(&error), "{}: unmount: {error}", self.what);
                    self.note(Outcome::UnmountFailed);
                }
            }
        }
        if matches!(self.first, Outcome::Unnoticed(_)) {
            return self.first; // records that are lost are lost; the test of the journal compares what is left
        }
        // The medium is right: the wrong answer was not written to it.
        let found = check_device(&self.device, true)
            .and_then(|_counts| mount(&self.device, &start.setting.mount))
            .and_then(|fs| Tree::read(&fs))
            .and_then(|found| {
                let differences: Vec<_> = allowed.iter().filter_map(|tree| found.difference(tree)).collect();
                if allowed.contains(&found) { Ok(()) } else { Err(format!("{differences:?}")) }
            });
        if let Err(what) = found {
            self.wrong(format!("on the medium: {what}"));
        }
        if self.first == Outcome::NoLie && self.lying.told().is_some() {
            self.first = Outcome::Right;
        }
        self.first
    }
}

fn run(scene: &Scene, lie: Lie, succeed: u64) -> (Outcome, Arc<LyingDevice>) {
    let device = scene.start.setting.over(scene.start.base.clone());
    let older = scene.start.setting.over(scene.older.clone());
    let lying = Arc::new(LyingDevice::new(device.clone(), older, lie, succeed));
    let what = format!("{lie:?} instead of answer {succeed}");
    let outcome = Run { scene, lie, device, lying: lying.clone(), first: Outcome::NoLie, what }.all();
    (outcome, lying)
}

fn every_answer_is_wrong_once(name: &str, scene: &Scene, most: u64) {
    let (outcome, truthful) = run(scene, Lie::Zeros, u64::MAX);
    assert_eq!(outcome, Outcome::NoLie);
    for lie in [Lie::FlippedBit(1), Lie::FlippedBit(2), Lie::Zeros, Lie::Older, Lie::Elsewhere] {
        let mut outcomes: BTreeMap<Outcome, u32> = BTreeMap::new();
        let mut runs = 0;
        for succeed in chosen(&format!("{name}, {lie:?}"), truthful.count(), most) {
            *outcomes.entry(run(scene, lie, succeed).0).or_default() += 1;
            runs += 1;
        }
        println!("{name}, {lie:?}: {runs} wrong answers: {outcomes:?}");
        if matches!(lie, Lie::FlippedBit(_)) {
            let blind = |outcome: &Outcome| matches!(outcome, Outcome::Unnoticed(Blind::OlderLine | Blind::EmptyLine));
            assert!(!outcomes.keys().any(blind), "{outcomes:?}");
        }
    }
}

#[test]
fn wrong_answers_become_right_data_or_errors() {
    every_answer_is_wrong_once("checksums", &scene(ChecksumKind::Crc32c), 400);
}

/// A misread inode was taken for a damaged one, so `unlink` removed its name alone and left its link count too high.
#[test]
fn regression_a_misread_inode_is_read_again() {
    let scene = scene(ChecksumKind::Crc32c);
    let mut misread = 0;
    for seed in 0..40 {
        for succeed in 0..16 {
            let (outcome, lying) = run(&scene, Lie::FlippedBit(seed), succeed);
            let Some(told) = lying.told() else { continue };
            let Place::Memory(range) = &told.place else { continue };
            if region_of(&scene.start.base, unit_of(range)) == Some(Region::Inodes) {
                assert_eq!(outcome, Outcome::Right, "FlippedBit({seed}) instead of answer {succeed}");
                misread += 1;
            }
        }
    }
    assert!(misread >= 40, "only {misread} inodes were misread");
}

#[test]
fn wrong_answers_to_write_back_become_right_data_or_errors() {
    every_answer_is_wrong_once("almost full", &almost_full_scene(), 40);
}

/// A record that does not prove itself ends its ring: what was acknowledged before it is there, and nothing is half done. If others follow
/// it, that is damage: nothing but a read-only mount shows that state.
#[test]
fn a_wrong_answer_for_the_journal_leaves_a_state_that_once_was() {
    let scene = scene(ChecksumKind::Crc32c);
    let (mut found, mut refused) = ([0; 16], 0);
    for seed in 0..60 {
        for succeed in 0..8 {
            let device = scene.start.setting.over(scene.start.base.clone());
            let lying = || Arc::new(LyingDevice::new(device.clone(), device.fork(), Lie::FlippedBit(seed), succeed));
            let first = lying();
            let fs = mount_device(first.clone(), &scene.start.setting.mount);
            if first.told().is_none_or(|told| told.truth.len() < 256 << 10) {
                continue; // not about a ring
            }
            let fs = match fs {
                Err(Error::JournalDamaged { .. }) => {
                    refused += 1;
                    mount_device(lying(), &MountOptions { read_only: true, ..scene.start.setting.mount.clone() })
                }
                other => other,
            };
            let fs = fs.expect("what is left can be mounted");
            let tree = Tree::read(&fs).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let position = scene.prefixes.iter().position(|prefix| *prefix == tree);
            let position = position.unwrap_or_else(|| panic!("seed {seed}: a state that never was"));
            found[position] += 1;
        }
    }
    println!("a flipped bit in the journal: {refused} refused; states after so many operations: {found:?}");
    assert!(refused > 0, "records in front of others were damaged too");
    assert!(found.iter().filter(|count| **count > 0).count() > 3, "{found:?}");
}

/// Without checksums of data only metadata is held to that: names, sizes, types and link counts are right.
#[test]
fn without_checksums_metadata_is_still_verified() {
    let scene = scene(ChecksumKind::None);
    let (outcome, truthful) = run(&scene, Lie::Zeros, u64::MAX);
    assert_eq!(outcome, Outcome::NoLie);
    let mut wrong_data = 0;
    for succeed in 0..truthful.count() {
        let device = scene.start.setting.over(scene.start.base.clone());
        let lying = Arc::new(LyingDevice::new(device.clone(), device.fork(), Lie::FlippedBit(3), succeed));
        let Ok(fs) = mount_device(lying.clone(), &scene.start.setting.mount) else { continue };
        let expected = scene.start.model.tree();
        let Ok(found) = Tree::read(&fs) else { continue };
        let Some(told) = lying.told() else { continue };
        if told.truth.len() >= 256 << 10 {
            continue; // the journal: the test above
        }
        if found != expected {
            assert!(is_data(&scene.start.base, &told.place), "answer {succeed}: {:?}", found.difference(&expected));
            let shape = |tree: &Tree| -> Vec<_> {
                let size = |kind: &tandemfs_crash::Kind| if let tandemfs_crash::Kind::File(bytes) = kind { bytes.len() } else { 0 };
                tree.0.iter().map(|(path, entry)| (path.clone(), size(&entry.kind), entry.nlink)).collect()
            };
            assert!(shape(&found) == shape(&expected), "answer {succeed}");
            wrong_data += 1;
        }
    }
    println!("without checksums: {} answers, {wrong_data} with wrong data", truthful.count());
    assert!(wrong_data > 0, "no answer with data was wrong");
}

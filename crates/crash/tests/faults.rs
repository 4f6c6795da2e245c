//! Every access of a workload fails once, for a moment or for good (RULES R15).

use std::sync::Arc;

use tandemfs_crash::{Access, FaultDevice, Harness, Model, Operation, Setting, Tree, check_device, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_fs::{Error, FileSystem, RenameMode};

use Operation::*;

const WORKLOAD: &[Operation] = &[
    MakeDirectory("d"),
    Create("a"),
    Write("a", 0, 300, 1),
    Create("d/b"),
    Write("d/b", 0, 150_000, 2),
    Write("d/b", 70_000, 100, 3),
    Write("d/b", 0, 65_536, 4),
    Append("a", 20_000, 5),
    Allocate("a", 65_536, 65_536, true),
    Write("a", 65_536, 65_536, 6),
    Punch("a", 65_536, 65_536),
    Zero("a", 65_600, 100, true),
    Link("a", "d/a"),
    Checkpoint,
    Truncate("d/b", 70_050),
    Rename("a", "d/b", RenameMode::Exchange),
    Rename("a", "d/a", RenameMode::Replace),
    Unlink("d/a"),
    Checkpoint,
];

/// What one fault did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    NotReached,
    MountFailed,
    CallFailed,
    Stopped,
}

fn stopped(fs: &FileSystem) -> bool {
    fs.stopped().is_some()
}

fn run(access: Access, succeed: u64, lasting: bool) -> Outcome {
    let setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    let device = setting.format();
    let faulty = Arc::new(FaultDevice::new(device.clone(), access, succeed, lasting));
    let what = format!("{access:?} {succeed}, lasting: {lasting}");
    let mut harness = Harness::new(device.fork(), &setting.mount, Model::default()).expect("mounts");
    harness.exchange(match mount_device(faulty.clone(), &setting.mount) {
        Ok(fs) => fs,
        Err(_) => {
            assert!(faulty.hit(), "{what}");
            let again = Harness::new(device, &setting.mount, Model::default()).expect("mounts without the fault");
            again.compare().expect("is empty still");
            return Outcome::MountFailed;
        }
    });
    let mut outcome = Outcome::NotReached;
    let mut allowed = vec![harness.model.tree()];
    for operation in WORKLOAD {
        let before = harness.model.clone();
        match harness.perform(operation) {
            Ok(done) => {
                harness.model.apply_piece(operation, done).unwrap_or_else(|refusal| panic!("{what}: {operation:?}: {refusal:?}"));
                allowed = vec![harness.model.tree()];
            }
            Err(error) if stopped(&harness.fs) => {
                assert!(faulty.hit(), "{what}: {operation:?}: {error}");
                assert!(matches!(error, Error::Stopped { .. }), "{what}: {operation:?}: {error}");
                allowed.extend(before.allowed(operation));
                outcome = Outcome::Stopped;
                break;
            }
            Err(Error::Device(_)) if faulty.hit() => {
                // Nothing has changed, and the next call may succeed.
                outcome = Outcome::CallFailed;
                if lasting {
                    allowed = vec![harness.model.tree()];
                    break;
                }
                assert_eq!(Tree::read(&harness.fs).unwrap_or_else(|error| panic!("{what}: {operation:?}: {error}")), before.tree());
                if let Err(error) = harness.perform(operation) {
                    panic!("{what}: {operation:?} again: {error}");
                }
                harness.model.apply(operation).expect("as before");
                allowed = vec![harness.model.tree()];
            }
            Err(error) => panic!("{what}: {operation:?}: {error}"),
        }
    }
    if outcome == Outcome::Stopped {
        let cause = harness.fs.stopped();
        for operation in [Create("late"), MakeDirectory("late"), Write("a", 0, 10, 9), Unlink("a"), Checkpoint, Sync] {
            assert!(
                matches!(harness.perform(&operation), Err(Error::Stopped { .. } | Error::NotFound)),
                "{what}: {operation:?} after the stop"
            );
        }
        assert_eq!(harness.fs.stopped(), cause, "the first cause is kept");
        if !lasting {
            let seen = Tree::read(&harness.fs).unwrap_or_else(|error| panic!("{what}: reading after the stop: {error}"));
            assert!(allowed.contains(&seen), "{what}: reads go on after the stop");
        }
    }
    // The power goes; the device is replaced by one without faults.
    drop(harness);
    check_device(&device, true).unwrap_or_else(|findings| panic!("{what}: {findings}"));
    let fs = tandemfs_crash::mount(&device, &setting.mount).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = Tree::read(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
    let differences: Vec<_> = allowed.iter().filter_map(|tree| found.difference(tree)).collect();
    assert!(allowed.contains(&found), "{what}: {differences:?}");
    outcome
}

fn every_access_fails(access: Access, lasting: bool) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for succeed in 0.. {
        let outcome = run(access, succeed, lasting);
        if outcome == Outcome::NotReached {
            println!("{access:?}: {succeed} faults, {:?}", Summary::of(&outcomes));
            return outcomes;
        }
        outcomes.push(outcome);
    }
    outcomes
}

#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Summary {
    mount_failed: usize,
    call_failed: usize,
    stopped: usize,
}

impl Summary {
    fn of(outcomes: &[Outcome]) -> Self {
        let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
        Self { mount_failed: count(Outcome::MountFailed), call_failed: count(Outcome::CallFailed), stopped: count(Outcome::Stopped) }
    }
}

#[test]
fn after_a_failed_flush_nothing_is_written_any_more() {
    for lasting in [false, true] {
        let outcomes = every_access_fails(Access::Flush, lasting);
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Stopped), "{outcomes:?}");
        assert!(!outcomes.is_empty());
    }
}

#[test]
fn after_a_failed_data_write_the_call_failed_and_nothing_changed() {
    for lasting in [false, true] {
        let outcomes = every_access_fails(Access::Write, lasting);
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::CallFailed), "{outcomes:?}");
        assert!(!outcomes.is_empty());
    }
}

#[test]
fn after_a_failed_store_the_call_failed_or_the_file_system_stopped() {
    for lasting in [false, true] {
        let outcomes = every_access_fails(Access::Store, lasting);
        assert!(outcomes.contains(&Outcome::CallFailed) && outcomes.contains(&Outcome::Stopped));
    }
}

#[test]
fn after_a_failed_load_or_read_nothing_changed() {
    for access in [Access::Load, Access::Read] {
        every_access_fails(access, false);
    }
}

//! Each allocation of a workload fails in its own run, as on a full zone: the call returns `NoSpace` and changes nothing, or the bytes take
//! another path; no space is lost; the next attempt succeeds.

mod support;

use support::{Start, almost_full, fresh, full_blocks, small, small_in_memory, small_on_firmware};
use tandemfs_crash::{Harness, Operation, Tree, check_device, chosen, mount, stay_on_one_cpu};
use tandemfs_fs::Error;
use tandemfs_fs::inject::{Take, allocations, fail_allocation};

/// What one failed allocation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    NotReached,
    Refused,
    OtherWay,
}

/// Space as the file system knows it must be what a rebuild from the medium finds.
fn no_space_is_lost(start: &Start, harness: &Harness, what: &str) {
    harness.fs.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
    let rebuilt = mount(&harness.device.fork(), &start.setting.mount).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(harness.fs.space(), rebuilt.space(), "{what}: live, then rebuilt");
}

fn run(start: &Start, plan: Option<(Take, u64)>) -> Outcome {
    let device = start.setting.over(start.base.clone());
    let mut harness = Harness::new(device, &start.setting.mount, start.model.clone()).expect("mounts");
    let mut outcome = Outcome::NotReached;
    fail_allocation(plan);
    let is_reached = || plan.is_some_and(|(take, succeed)| allocations(take) > succeed);
    for operation in &start.workload {
        let what = format!("{plan:?}: {operation:?}");
        let was_reached = is_reached();
        match harness.perform(operation) {
            Ok(done) => harness.model.apply_piece(operation, done).unwrap_or_else(|refusal| panic!("{what}: {refusal:?}")),
            Err(Error::NoSpace { .. }) if is_reached() && !was_reached => {
                outcome = Outcome::Refused;
                assert!(
                    !matches!(
                        operation,
                        Operation::Unlink(_)
                            | Operation::Truncate(..)
                            | Operation::Checkpoint
                            | Operation::WriteBack
                            | Operation::WriteBackAll
                            | Operation::Discard
                    ),
                    "{what}: gives back what it takes, but was refused (R14)"
                );
                harness.compare().unwrap_or_else(|difference| panic!("{what}: {difference}"));
                no_space_is_lost(start, &harness, &what);
                harness.apply(operation).unwrap_or_else(|error| panic!("{what} again: {error}"));
                assert_eq!(harness.refused_for_space, 0, "{what} again");
            }
            Err(error) => panic!("{what}: {error}"),
        }
        if is_reached() && !was_reached {
            if outcome == Outcome::NotReached {
                outcome = Outcome::OtherWay;
            }
            no_space_is_lost(start, &harness, &what);
        }
    }
    fail_allocation(None);
    harness.compare().unwrap_or_else(|difference| panic!("{plan:?}: {difference}"));
    harness.compare_space().unwrap_or_else(|difference| panic!("{plan:?}: {difference}"));
    assert!(Tree::read(&harness.fs).is_ok_and(|tree| tree == harness.model.tree()));
    harness.fs.unmount().expect("unmounts");
    check_device(&harness.device, false).unwrap_or_else(|findings| panic!("{plan:?}: {findings}"));
    outcome
}

#[test]
fn after_any_allocation_that_fails_nothing_has_changed_and_nothing_is_lost() {
    stay_on_one_cpu().expect("bound"); // elsewhere other pools would make other allocations than were counted
    for (name, start) in [
        ("fresh", fresh()),
        ("small", small()),
        ("memory zone almost full", almost_full()),
        ("block zone full", full_blocks()),
        ("drive with firmware", small_on_firmware()),
        ("files in the memory zone", small_in_memory()),
    ] {
        for take in Take::ALL {
            fail_allocation(None);
            let device = start.setting.over(start.base.clone());
            let mut harness = Harness::new(device, &start.setting.mount, start.model.clone()).expect("mounts");
            for operation in &start.workload {
                harness.apply(operation).expect("without a fault");
            }
            let count = allocations(take);
            let mut outcomes = Vec::new();
            for succeed in chosen(&format!("{name}, {take:?}"), count, 150) {
                let outcome = run(&start, Some((take, succeed)));
                assert_ne!(outcome, Outcome::NotReached, "{take:?} {succeed}");
                outcomes.push(outcome);
            }
            let refused = outcomes.iter().filter(|outcome| **outcome == Outcome::Refused).count();
            println!(
                "{name}: {take:?}: {} failed allocations, {refused} refused, {} went another way",
                outcomes.len(),
                outcomes.len() - refused
            );
        }
    }
}

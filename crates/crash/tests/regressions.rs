//! What the random tests have found, each with its operations as a literal list.

use tandemfs_crash::{Harness, Model, Operation, Setting};
use tandemfs_device::PersistenceDomain;

use Operation::*;

fn run(setting: &Setting, operations: &[Operation]) {
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    for operation in operations {
        if let Err(what) = harness.apply(operation).and_then(|()| harness.compare()) {
            panic!("{what}");
        }
    }
    harness.compare_space().expect("space");
}

fn small(block_bytes: u32) -> Setting {
    Setting::small(PersistenceDomain::Adr, block_bytes)
}

/// A short append into a sector whose end a truncation had cut off forgot that the rest of the sector was stale.
#[test]
fn regression_stale_tail_after_short_append() {
    run(&small(64 << 10), &[Create("f"), Append("f", 10_000, 1), Truncate("f", 387), Append("f", 59, 2), Write("f", 196_597, 100, 3)]);
}

/// Growing by truncation within the last sector forgot the same.
#[test]
fn regression_stale_tail_after_growing_within_a_sector() {
    run(&small(64 << 10), &[Create("f"), Append("f", 10_000, 1), Truncate("f", 387), Truncate("f", 400), Truncate("f", 5000)]);
}

/// Inode slots that wait for the watermark were not counted as free until someone took one.
#[test]
fn regression_free_inodes_after_checkpoint() {
    run(&small(64 << 10), &[Create("f"), Create("g"), Unlink("f"), Unlink("g"), Checkpoint]);
}

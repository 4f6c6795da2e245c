//! What the random tests have found, each with its operations as a literal list.

use tandemfs_crash::{Harness, Model, Operation, Random, Setting, each_state, mount};
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
    run(&small(64 << 10), &[Create("f"), Append("f", 65_536, 1), Truncate("f", 387), Append("f", 59, 2), Write("f", 196_597, 100, 3)]);
}

/// Growing by truncation within the last sector forgot the same.
#[test]
fn regression_stale_tail_after_growing_within_a_sector() {
    run(&small(64 << 10), &[Create("f"), Append("f", 65_536, 1), Truncate("f", 387), Truncate("f", 400), Truncate("f", 5000)]);
}

/// Inode slots that wait for the watermark were not counted as free until someone took one.
#[test]
fn regression_free_inodes_after_checkpoint() {
    run(&small(64 << 10), &[Create("f"), Create("g"), Unlink("f"), Unlink("g"), Checkpoint]);
}

/// A cut tore one copy of the superblock; the next mount wrote the other one first, and a cut there left none.
#[test]
fn regression_both_superblocks_torn_by_two_cuts() {
    for copy in [0, 65_536] {
        let setting = small(64 << 10);
        let device = setting.format();
        device.damage(|zones| zones.memory[copy + 100] ^= 1);
        let start = device.fork();
        device.start_recording();
        drop(mount(&device, &setting.mount).expect("mounts"));
        let mut states = 0;
        each_state(&start, &device.stop_recording(), 0, 100, &mut Random::new(1), &mut |_, state| {
            mount(&state.device, &setting.mount).expect("mounts again");
            states += 1;
        });
        assert!(states > 100);
    }
}

/// New bytes in the holes of a block with logs took blocks of the transient room, which never came back; then overwrites were refused.
#[test]
fn regression_transient_room_given_to_holes_of_a_block() {
    let setting = Setting { block_zone_bytes: 16 << 20, ..small(1 << 20) };
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    for operation in [
        Create("a"),
        Create("c"),
        Write("c", 15_249_408, 33, 398),
        Scatter("a", 100, 1000, 8192, 300, 257),
        Scatter("c", 0, 1000, 8192, 300, 590),
        Scatter("a", 100, 256, 65_536, 64, 948),
    ] {
        harness.apply(&operation).expect("agrees");
    }
    assert!(harness.refused_for_space > 100, "the zone is full");
    assert_eq!(harness.overwrites_refused, 0);
}

//! Shared workload of the fault tests.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod bugs;
pub mod quota;
pub mod waiting;
pub mod work;

use std::sync::Arc;

use tandemfs_crash::{Harness, Model, Operation, PREPARATION, Recorded, Setting};
use tandemfs_device::PersistenceDomain;
use tandemfs_fs::RenameMode;

use Operation::*;

/// Both paths, read-modify-write, merges, growth of every structure, and removal.
pub const WORKLOAD: &[Operation] = &[
    MakeDirectory("f"),
    Create("f/g"),
    Write("f/g", 0, 300, 1),
    Create("f/h"),
    Write("f/h", 0, 150_000, 2),
    Write("f/h", 70_000, 100, 3),
    Write("f/h", 69_950, 200, 31),
    Write("f/h", 0, 65_536, 4),
    Append("f/g", 20_000, 5),
    Append("f/g", 40, 51),
    Append("f/g", 40, 52),
    Allocate("f/h", 196_608, 131_072, true),
    Write("f/h", 196_608, 65_536, 9),
    Punch("f/h", 70_000, 30_000),
    Zero("f/h", 65_600, 100, true),
    // Both paths and both kinds of pieces in one call.
    Write("f/h", 300_001, 300_000, 10),
    CopyRange("f/h", 1_000, "f/g", 30_000, 400_000),
    Truncate("f/g", 60_000),
    Link("f/g", "d/g"),
    // Sets in lines and in pages, replaced and removed, and a list that is inherited.
    SetAttribute("f/h", "user.a", 900, 11),
    SetAttribute("f/h", "user.b", 9000, 12),
    SetAttribute("f/h", "user.a", 50, 13),
    RemoveAttribute("f/h", "user.b"),
    SetDefaultList("f", 5),
    Create("f/i"),
    Checkpoint,
    // More logs than a leaf has entries: the last one makes the block go by blocks, composed with what it had.
    Scatter("b", 0, 17, 3000, 60, 6),
    Write("b", 60_000, 8000, 7),
    Truncate("f/h", 70_050),
    Append("f/h", 10, 8),
    Rename("f/g", "f/h", RenameMode::Exchange),
    Rename("f/g", "d/g", RenameMode::Replace),
    Rename("d", "e/d", RenameMode::Replace),
    Symlink("t", 100),
    Unlink("e/d/g"),
    WriteBackAll,
    Checkpoint,
];

/// Write-back on a memory zone that is almost full, and overwriting beside it.
pub const WRITE_BACK: &[Operation] = &[WriteBack, Write("logs", 5000, 64, 2), WriteBack, Write("logs", 100, 70_000, 3), Checkpoint];

/// Where a run starts: an image that a power cut left, with records to replay and a file without names to remove.
pub struct Start {
    pub base: Arc<Recorded>,
    pub model: Model,
    pub setting: Setting,
    pub workload: Vec<Operation>,
    /// Whether free memory-zone space is so short that write-back does something.
    pub is_full: bool,
}

pub fn crashed(setting: Setting, preparation: &[Operation], workload: &[Operation], is_full: bool) -> Start {
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    for operation in preparation {
        harness.apply(operation).expect("prepared");
    }
    if is_full {
        harness.apply(&Create("logs")).expect("prepared");
    }
    for log in (0..).take_while(|_| is_full) {
        let zone = harness.fs.space().memory;
        if zone.free_bytes * 100 / (zone.free_bytes + zone.data_log_bytes) < 14 {
            break;
        }
        harness.apply(&Write("logs", log * 4096, 4096, log)).expect("prepared");
        assert_eq!(harness.refused_for_space, 0);
    }
    for operation in [Create("gone"), Append("gone", 9000, 1), Write("gone", 65_536, 4096, 2), Hold(0, "gone"), Unlink("gone")] {
        harness.apply(&operation).expect("prepared");
    }
    let mut model = harness.model.clone();
    model.apply(&Crash).expect("always possible");
    let base = Arc::new(harness.device.zones());
    Start { base, model, setting, workload: workload.iter().flat_map(Operation::parts).collect(), is_full }
}

pub fn small() -> Start {
    crashed(Setting::small(PersistenceDomain::Adr, 64 << 10), PREPARATION, WORKLOAD, false)
}

/// The same on a drive with firmware, whose transactions serve.
pub fn small_on_firmware() -> Start {
    crashed(Setting::small(PersistenceDomain::Adr, 64 << 10).with_firmware(), PREPARATION, WORKLOAD, false)
}

/// The same where all files lie in the memory zone.
pub fn small_in_memory() -> Start {
    crashed(Setting::small(PersistenceDomain::Adr, 64 << 10).with_memory_homes(), PREPARATION, WORKLOAD, false)
}

pub fn almost_full() -> Start {
    let mut setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    setting.block_zone_bytes = 8 << 20;
    crashed(setting, &[Create("a"), Append("a", 100, 7)], WRITE_BACK, true)
}

/// A write that both paths share, and a copy of it: few enough for every access to fail.
pub fn split() -> Start {
    let workload = [Write("b", 1_003, 307_200, 2), CopyRange("b", 500, "a", 7_000, 280_000)];
    crashed(Setting::small(PersistenceDomain::Adr, 64 << 10), PREPARATION, &workload, false)
}

/// A full block zone, whose blocks are overwritten.
pub fn full_blocks() -> Start {
    const BLOCK: u32 = 64 << 10;
    let setting = Setting::small(PersistenceDomain::Adr, BLOCK);
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    harness.apply(&Create("a")).expect("prepared");
    let mut blocks = 0;
    while harness.refused_for_space == 0 {
        harness.apply(&Write("a", blocks * u64::from(BLOCK), BLOCK, blocks)).expect("prepared");
        blocks += 1;
    }
    let workload = vec![
        Write("a", 0, BLOCK, 1),
        Write("a", 3 * u64::from(BLOCK), 2 * BLOCK, 2),
        Write("a", 100, BLOCK, 3),
        Truncate("a", 5 * u64::from(BLOCK) + 77),
        Write("a", 5 * u64::from(BLOCK), 70, 5),
        Checkpoint,
    ];
    Start { base: Arc::new(harness.device.zones()), model: harness.model.clone(), setting, workload, is_full: true }
}

/// An empty file system: the first unit of every region and pool is taken in the workload.
pub fn fresh() -> Start {
    let setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    let workload = PREPARATION.iter().chain(WORKLOAD).flat_map(Operation::parts).collect();
    Start { base: Arc::new(setting.format().zones()), model: Model::default(), setting, workload, is_full: false }
}

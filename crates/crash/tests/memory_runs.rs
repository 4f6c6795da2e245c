//! Runs of blocks in the memory zone: random work in every block size against the model, with cuts, checks and counted space; every cut of
//! what makes, splits and drops a run; and the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use support::bugs::{alone, is_caught, run};
use support::work::{self, BLOCK_SIZES, checked, in_every_domain};
use tandemfs_crash::{Effort, Explorer, Harness, Model, Operation, Random, Scene, Setting, rounds_or, seed_or};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::mutant::Mutant;

use Operation::*;

const MIB: u64 = 1 << 20;

fn setting(block_bytes: u32) -> Setting {
    let small = Setting::small(PersistenceDomain::Gpf, block_bytes).with_memory_homes();
    Setting { memory_bytes: 64 << 20, block_zone_bytes: 32 << 20, ..small }
}

/// One operation on a file of up to 5 MiB: large writes make runs, the others take them apart.
fn drawn(random: &mut Random, block: u64) -> Operation {
    let file = *random.pick(&["a", "b"]);
    let any = |random: &mut Random| random.below(4 * MIB);
    let whole = |random: &mut Random| random.below(4 * MIB) / block * block;
    let length = |random: &mut Random| {
        let most = *random.pick(&[9000, 600_000]);
        1 + random.below(most)
    };
    match random.below(20) {
        0..=4 => Write(file, whole(random), (MIB + random.below(2) * block) as u32, random.next()),
        5 => Write(file, random.below(3) * MIB, MIB as u32, random.next()),
        6..=9 => Write(file, any(random), length(random) as u32, random.next()),
        10 => Truncate(file, any(random)),
        11 => Truncate(file, whole(random)),
        12 => Punch(file, any(random), length(random)),
        13 => Punch(file, whole(random), block * (1 + random.below(9))),
        14 => Zero(file, any(random), length(random), true),
        15 => Allocate(file, any(random), length(random), random.one_in(2)),
        16 => Collapse(file, whole(random), block * (1 + random.below(3))),
        17 => Insert(file, whole(random), block * (1 + random.below(3))),
        18 => WriteBackAll,
        _ => *random.pick(&[Crash, Remount, Checkpoint]),
    }
}

fn random_work(setting: &Setting, seed: u64) -> Result<u64, String> {
    let block_bytes = setting.format.block_bytes;
    let mut random = Random::new(seed);
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
    for file in ["a", "b"] {
        harness.apply(&Create(file))?;
    }
    let mut runs = 0;
    let next = |step: usize, harness: &mut Harness| {
        if step % 16 == 7 {
            harness.fs.move_everything().map_err(|error| format!("step {step}, moving everything: {error}"))?;
        }
        Ok(drawn(&mut random, block_bytes.into()))
    };
    work::random_work(&mut harness, 40, next, |counts| runs += counts.runs)?;
    let counts = checked(&harness.device, "emptied")?;
    if (counts.pages, counts.runs) == (0, 0) { Ok(runs) } else { Err(format!("{counts:?}")) }
}

#[test]
fn random_work_in_every_block_size() {
    let _alone = alone();
    let seed = seed_or(7);
    for block_bytes in BLOCK_SIZES {
        for round in 0..rounds_or(2) {
            let runs = random_work(&setting(block_bytes), seed + round)
                .unwrap_or_else(|what| panic!("blocks of {block_bytes}, TANDEMFS_SEED={seed}: {what}"));
            assert!(runs > 0 || block_bytes > 256 << 10, "blocks of {block_bytes}: no run was made");
        }
    }
}

#[test]
fn random_work_without_checksums_and_on_a_drive_with_firmware() {
    let _alone = alone();
    let seed = seed_or(70);
    for block_bytes in [4 << 10, 64 << 10] {
        let mut unchecked = setting(block_bytes);
        unchecked.format.checksum_kind = ChecksumKind::None;
        for setting in [unchecked, setting(block_bytes).with_firmware()] {
            let runs = random_work(&setting, seed).unwrap_or_else(|what| panic!("blocks of {block_bytes}, TANDEMFS_SEED={seed}: {what}"));
            assert!(runs > 0, "blocks of {block_bytes}: no run was made");
        }
    }
}

/// Every cut of a write that makes a run, and of what splits, shortens or drops one.
fn cuts(domain: PersistenceDomain, block_bytes: u32) -> Result<(), String> {
    let block = u64::from(block_bytes);
    let length = block * if block_bytes == 4096 { 64 } else { 5 };
    let preparation = vec![Create("f"), Write("f", 0, length as u32, 1)];
    let scene = Scene { preparation, ..Scene::small(&Setting::small(domain, block_bytes).with_memory_homes()) };
    let effort = Effort { states: 16, recovery_one_in: 60, recovery_depth: 1, recovery_states: 4, work_one_in: 20, empty_one_in: 0 };
    let mut explorer = Explorer::new(&scene, effort, 3)?;
    for last in [
        Write("f", length, length as u32, 2),
        Write("f", 0, length as u32, 3),
        Write("f", 2 * block + 100, 3000, 4),
        Write("f", 2 * block, block as u32, 5),
        Punch("f", block, 2 * block),
        Punch("f", block + 10, 2 * block),
        Truncate("f", 3 * block - 7),
        Collapse("f", block, block),
        Unlink("f"),
    ] {
        explorer.explore(&[last], 0)?;
    }
    Ok(())
}

fn cuts_of_large_blocks() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 64 << 10)
}

fn cuts_of_single_pages() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 4096)
}

/// Runs of single pages that are taken apart, shortened and dropped: the maps that an unmount saves are those of the tree.
fn taken_apart() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Adr, 4096).with_memory_homes();
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
    for name in ["a", "b"] {
        harness.apply(&Create(name))?;
        harness.apply(&Write(name, 0, 256 << 10, 1))?;
    }
    for operation in
        [Write("a", 40_000, 8192, 2), Write("b", 0, 256 << 10, 3), Punch("b", 100_000, 9000), Truncate("a", 150_000), Unlink("b")]
    {
        harness.apply(&operation)?;
    }
    harness.compare()?;
    let Harness { fs, device, .. } = harness;
    fs.unmount().map_err(|error| error.to_string())?;
    checked(&device, "unmounted").map(drop)
}

/// Every request of a program for a whole aligned extent of 2 MiB, wherever it lies in the file, is few records.
#[test]
fn an_aligned_extent_is_few_runs_in_every_block_size() {
    let _alone = alone();
    for block_bytes in BLOCK_SIZES {
        let setting = setting(block_bytes);
        let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
        harness.apply(&Create("f")).expect("made");
        for extent in [1, 0, 2, 7] {
            let before = checked(&harness.device, "before").expect("clean").runs;
            harness.apply(&Write("f", extent * 2 * MIB, 2 * MIB as u32, extent)).expect("written");
            harness.apply(&Checkpoint).expect("done");
            let counts = checked(&harness.device, "after").expect("clean");
            let expected = match block_bytes {
                4096 | 8192 => 4,
                _ if block_bytes <= 512 << 10 => 2,
                _ => 0, // a transaction writes one block of 1 MiB
            };
            assert_eq!(counts.runs - before, expected, "blocks of {block_bytes}, extent {extent}");
        }
        harness.compare().expect("agrees");
        harness.apply(&Crash).and_then(|()| harness.compare()).expect("agrees after a crash");
    }
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    in_every_domain(cuts);
    run(Mutant::None, taken_apart).expect("nothing is lost");
}

#[test]
fn br4_run_not_split() {
    is_caught(Mutant::RunNotSplit, &[cuts_of_large_blocks, cuts_of_single_pages]);
}

#[test]
fn br3_run_lines_kept() {
    is_caught(Mutant::RunLinesKept, &[taken_apart]);
}

#[test]
fn r8_home_pages_not_fenced() {
    is_caught(Mutant::HomePagesNotFenced, &[cuts_of_large_blocks, cuts_of_single_pages]);
}

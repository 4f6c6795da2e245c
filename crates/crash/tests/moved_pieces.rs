//! Files that move to their homes in pieces: what a piece costs in lines of mapping and in flushes, random work between the two zones, every cut
//! of a move, and the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::collections::BTreeSet;

use support::bugs::{alone, is_caught, run};
use support::work::{self, BLOCK_SIZES, checked, in_every_domain};
use tandemfs_check::Dump;
use tandemfs_crash::{Effort, Explorer, Harness, Model, Operation, Random, Scene, Setting, fill, rounds_or, seed_or};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::mapping::{LINE_RECORDS, PAGE_RECORDS};
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{InodeNumber, UNIT_BYTES, UNIT_LINES};
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Home, HomeLimit, MountOptions};

use Operation::*;

const MIB: u64 = 1 << 20;

/// Both zones hold what the tests write; files lie in the block zone at first.
fn setting(block_bytes: u32) -> Setting {
    Setting { memory_bytes: 64 << 20, block_zone_bytes: 48 << 20, ..Setting::small(PersistenceDomain::Gpf, block_bytes) }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A record of a file that names pages of the memory zone: its first block, its blocks, its first line.
#[derive(Debug)]
struct Named {
    block: u64,
    blocks: u64,
    line: u64,
}

/// The records of a file that name pages, as `tandemfs dump` shows them.
fn named(harness: &Harness, path: &str) -> Vec<Named> {
    let inode = harness.fs.lookup(InodeNumber::ROOT, path.as_bytes()).expect("there").inode;
    let drive = Drive::new(std::sync::Arc::new(harness.device.fork()));
    let mut out = Vec::new();
    Dump::open(&drive).expect("opens").inode(inode.get(), &mut out).expect("prints");
    let out = String::from_utf8(out).expect("text");
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex.split(|c: char| !c.is_ascii_hexdigit()).next()?, 16).ok(),
        None => text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok(),
    };
    let after = |line: &str, what: &str| line.split_once(what).and_then(|(_, rest)| number(rest));
    let record = |line: &str| {
        let blocks = after(line, ": run of ").or(line.contains(" pages from line ").then_some(1))?;
        Some(Named { block: after(line, "block ")?, blocks, line: after(line, "from line ")? })
    };
    out.lines().filter(|line| !line.contains(" sectors from ")).filter_map(record).collect()
}

/// An aligned extent of 2 MiB costs at most two lines of mapping from blocks of 16 KiB on, four below; and lies in an aligned extent.
#[test]
fn a_moved_extent_is_few_lines_of_mapping_in_every_block_size() {
    let _alone = alone();
    for block_bytes in BLOCK_SIZES {
        let setting = setting(block_bytes);
        let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
        harness.apply(&Create("f")).expect("made");
        let extents = [0, 1, 2, 5];
        for extent in extents {
            harness.apply(&Write("f", extent * UNIT_BYTES, UNIT_BYTES as u32, extent)).expect("written");
        }
        for operation in [SetHome("f", Home::Memory), MoveHomes, Checkpoint] {
            harness.apply(&operation).expect("done");
        }
        let (records, each) = (named(&harness, "f"), UNIT_BYTES / u64::from(block_bytes));
        assert_eq!(records.iter().map(|record| record.blocks).sum::<u64>(), extents.len() as u64 * each, "blocks of {block_bytes}");
        for extent in extents {
            let inside: Vec<_> = records.iter().filter(|record| record.block / each == extent).collect();
            let lines: BTreeSet<_> =
                inside.iter().map(|record| (record.block / PAGE_RECORDS, record.block % PAGE_RECORDS / LINE_RECORDS as u64)).collect();
            let most = if block_bytes < 16 << 10 { 4 } else { 2 };
            assert!(lines.len() <= most, "blocks of {block_bytes}, extent {extent}: {} lines", lines.len());
            let start = inside.first().map(|record| record.line).expect("is there");
            assert_eq!(start % UNIT_LINES, 0, "blocks of {block_bytes}, extent {extent}: an aligned extent");
            let in_a_row = |record: &&Named| record.line - start == (record.block - extent * each) * u64::from(block_bytes) / 64;
            assert!(inside.iter().all(in_a_row), "blocks of {block_bytes}, extent {extent}: {inside:?}");
        }
        harness.compare().expect("agrees");
        harness.apply(&Crash).and_then(|()| harness.compare()).expect("agrees after a crash");
    }
}

#[test]
fn a_piece_that_moves_to_the_block_zone_is_flushed_once() {
    let _alone = alone();
    for block_bytes in [4 << 10, 64 << 10] {
        let setting = setting(block_bytes).with_memory_homes();
        let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
        harness.apply(&Create("f")).expect("made");
        harness.apply(&Write("f", 0, 3 * UNIT_BYTES as u32, 1)).expect("written");
        harness.apply(&SetHome("f", Home::Block)).expect("has a home");
        let before = harness.fs.drive().counters().snapshot();
        harness.apply(&MoveHomes).expect("moves");
        let flushes = harness.fs.drive().counters().snapshot().block_flushes - before.block_flushes;
        assert_eq!(flushes, 3, "blocks of {block_bytes}: three pieces");
        harness.apply(&Crash).and_then(|()| harness.compare()).expect("agrees after a crash");
        assert_eq!(checked(&harness.device, "moved").expect("clean").pages, 0);
    }
}

/// One operation on a file of up to 5 MiB that is to move.
fn drawn(random: &mut Random) -> Operation {
    let file = *random.pick(&["a", "b"]);
    let (offset, most) = (random.below(4 * MIB), *random.pick(&[9000, 600_000, 2_000_000]));
    let length = 1 + random.below(most);
    match random.below(12) {
        0 => Write(file, offset / MIB * MIB, MIB as u32, random.next()),
        1..=3 => Write(file, offset, length as u32, random.next()),
        4 => Truncate(file, offset),
        5 => Punch(file, offset, length),
        6 => Allocate(file, offset, length, random.one_in(2)),
        7 => *random.pick(&[Crash, Remount, WriteBackAll]),
        8 | 9 => SetHome(file, *random.pick(&[Home::Memory, Home::Block, Home::Auto])),
        _ => MoveHomes,
    }
}

fn random_work(setting: &Setting, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
    for file in ["a", "b"] {
        harness.apply(&Create(file))?;
        harness.apply(&Write(file, 0, 3 * MIB as u32, 1))?;
        harness.apply(&SetHome(file, Home::Memory))?;
    }
    work::random_work(&mut harness, 40, |_, _| Ok(drawn(&mut random)), |_| ())
}

#[test]
fn random_work_between_the_zones() {
    let _alone = alone();
    let seed = seed_or(11);
    for block_bytes in BLOCK_SIZES {
        for round in 0..rounds_or(2) {
            random_work(&setting(block_bytes), seed + round)
                .unwrap_or_else(|what| panic!("blocks of {block_bytes}, TANDEMFS_SEED={seed}: {what}"));
        }
        let mut unchecked = setting(block_bytes);
        unchecked.format.checksum_kind = ChecksumKind::None;
        random_work(&unchecked, seed).unwrap_or_else(|what| panic!("no checksums, blocks of {block_bytes}, TANDEMFS_SEED={seed}: {what}"));
    }
    random_work(&setting(64 << 10).with_firmware(), seed).unwrap_or_else(|what| panic!("firmware, TANDEMFS_SEED={seed}: {what}"));
}

/// A memory zone that has room for a few blocks in a row only, and at last for none.
#[test]
fn a_piece_without_space_in_a_row_moves_in_parts() {
    let _alone = alone();
    let block_bytes = 64 << 10;
    let setting = setting(block_bytes);
    let mount = MountOptions { home_limit: HomeLimit::Bytes(5 * UNIT_BYTES / 2), ..setting.mount };
    let mut harness = Harness::new(setting.format(), &mount, Model::default()).expect("mounts");
    for (name, length) in [("f", 2 * UNIT_BYTES), ("g", UNIT_BYTES)] {
        harness.apply(&Create(name)).expect("made");
        harness.apply(&Write(name, 0, length as u32, 1)).expect("written");
    }
    for operation in [SetHome("f", Home::Memory), SetHome("g", Home::Memory), MoveHomes] {
        harness.apply(&operation).expect("done");
    }
    assert_eq!(harness.fs.home_moves().bytes, 5 * UNIT_BYTES / 2, "up to the limit");
    assert!(harness.fs.home_moves().waiting_files > 0);
    harness.compare().and_then(|()| harness.compare_space()).expect("agrees");
}

/// Every cut of a move of pieces to the memory zone and back.
fn cuts(domain: PersistenceDomain, block_bytes: u32) -> Result<(), String> {
    let setting = Setting { memory_bytes: 32 << 20, ..Setting::small(domain, block_bytes) };
    let length = if block_bytes == 4096 { 70 * 4096 } else { 5 * block_bytes };
    let preparation = vec![Create("f"), Write("f", 0, length + 9000, 1), Scatter("f", 0, 3, 3000, 60, 6), Checkpoint];
    let scene = Scene { preparation, ..Scene::small(&setting) };
    let effort = Effort { states: 20, recovery_one_in: 60, recovery_depth: 1, recovery_states: 4, work_one_in: 15, empty_one_in: 0 };
    let there_and_back = [SetHome("f", Home::Memory), MoveHomes, SetHome("f", Home::Block), MoveHomes];
    Explorer::new(&scene, effort, 5)?.explore(&there_and_back, 0)
}

fn cuts_of_large_blocks() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 64 << 10)
}

fn cuts_of_single_pages() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 4096)
}

/// A piece with a block that is damaged: the others move, and nothing stays taken for it.
fn with_damage() -> Result<(), String> {
    let setting = setting(64 << 10);
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
    harness.apply(&Create("f"))?;
    harness.apply(&Write("f", 0, 6 << 16, 1))?;
    let block = &fill(1, 6 << 16)[3 << 16..(3 << 16) + 4096];
    harness.device.damage(|zones| {
        let found = zones.blocks.chunks_exact_mut(4096).find(|sector| sector == &block);
        found.expect("in the block zone")[77] ^= 1;
    });
    harness.apply(&SetHome("f", Home::Memory))?;
    harness.apply(&MoveHomes)?;
    let file = harness.fs.lookup(InodeNumber::ROOT, b"f").map_err(text)?.inode;
    let left = harness.fs.bytes_from_home(file).map_err(text)?;
    if left != 1 << 16 {
        return Err(format!("{left} B are left"));
    }
    harness.apply(&Write("f", 3 << 16, 1 << 16, 2))?;
    harness.apply(&MoveHomes)?;
    harness.compare()?;
    harness.compare_space()
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    in_every_domain(cuts);
    run(Mutant::None, with_damage).expect("nothing stays taken");
}

#[test]
fn mp3_piece_rest_kept() {
    is_caught(Mutant::PieceRestKept, &[with_damage]);
}

#[test]
fn r8_home_pages_not_fenced() {
    is_caught(Mutant::HomePagesNotFenced, &[cuts_of_large_blocks, cuts_of_single_pages]);
}

#[test]
fn r8_batch_not_flushed() {
    is_caught(Mutant::BatchNotFlushed, &[cuts_of_large_blocks, cuts_of_single_pages]);
}

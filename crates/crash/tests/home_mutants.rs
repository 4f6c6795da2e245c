//! Deliberate bugs of files in the memory zone, each caught; and cuts of what sets a home and moves blocks to it.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use support::bugs::{Catcher, alone, is_caught, run};
use tandemfs_crash::{Effort, Explorer, Harness, Model, Operation, Random, Scene, Setting, cut_everywhere};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{FileSystem, Home};

use Operation::*;

const BLOCK: u64 = 64 << 10;

/// Every cut of a fresh block, of an overwrite of one, and of a write-back into pages.
fn writes(domain: PersistenceDomain) -> Result<(), String> {
    let preparation = vec![Create("f"), Write("f", 0, 2 * BLOCK as u32, 1), Scatter("f", 0, 6, 3000, 60, 6)];
    let scene = Scene { preparation, ..Scene::small(&Setting::small(domain, BLOCK as u32).with_memory_homes()) };
    let effort = Effort { states: 24, recovery_one_in: 60, recovery_depth: 1, recovery_states: 4, work_one_in: 10, empty_one_in: 0 };
    let mut explorer = Explorer::new(&scene, effort, 3)?;
    for last in [Write("f", 2 * BLOCK, BLOCK as u32, 2), Write("f", 0, BLOCK as u32, 3), WriteBackAll] {
        explorer.explore(&[last], 0)?;
    }
    Ok(())
}

/// Every cut of a home that is set for the first time, and of the move of a file to it and back. Its tree never changes.
fn moves(setting: &Setting) -> Result<(), String> {
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
    for operation in [
        Create("f"),
        Write("f", 0, 2 * BLOCK as u32 + 9000, 1),
        Scatter("f", 0, 3, 3000, 60, 6),
        Allocate("f", 4 * BLOCK, 2 * BLOCK, false),
        Checkpoint,
    ] {
        harness.apply(&operation)?;
    }
    let tree = harness.model.tree();
    let (start, text) = (harness.device.fork(), |error: tandemfs_fs::Error| error.to_string());
    let mut move_there_and_back = |drive: &Drive| {
        let fs = FileSystem::mount(drive.clone(), &setting.mount).map_err(text)?;
        let file = fs.lookup(InodeNumber::ROOT, b"f").map_err(text)?.inode;
        for (home, is_in_memory) in [(Home::Memory, true), (Home::Block, false)] {
            fs.set_home(file, home).map_err(text)?;
            let mut block = Some(0);
            while let Some(at) = block {
                block = fs.move_home(file, at).map_err(text)?;
            }
            let pages = fs.space().memory.extent_bytes / 4096;
            if (pages > 0) != is_in_memory {
                return Err(format!("{pages} pages after a move to {home:?}"));
            }
        }
        Ok(())
    };
    cut_everywhere(&start, &mut move_there_and_back, &tree, 0, &mut Random::new(5), &mut |_| Ok(())).map(drop)
}

fn moves_adr() -> Result<(), String> {
    moves(&Setting { memory_bytes: 32 << 20, ..Setting::small(PersistenceDomain::Adr, BLOCK as u32) })
}

fn moves_gpf() -> Result<(), String> {
    moves(&Setting { memory_bytes: 32 << 20, ..Setting::small(PersistenceDomain::Gpf, 4096) })
}

/// Homes in a memory zone that is full: blocks are overwritten, and what was freed is free only after its transaction.
fn full() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Adr, BLOCK as u32).with_memory_homes();
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
    harness.apply(&Create("f"))?;
    let mut blocks = 0;
    while harness.refused_for_space == 0 {
        harness.apply(&Write("f", blocks * BLOCK, BLOCK as u32, blocks))?;
        blocks += 1;
    }
    for block in [0, 7, 30, 7, blocks - 3] {
        harness.apply(&Write("f", block * BLOCK, BLOCK as u32, 100 + block))?;
        harness.apply(&Write("f", block * BLOCK + 100, 5000, 200 + block))?;
    }
    if harness.overwrites_refused > 0 {
        return Err("an overwrite found no room".into());
    }
    harness.apply(&Crash)?;
    harness.compare()
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    let catchers: [Catcher; 6] = [
        || writes(PersistenceDomain::Adr),
        || writes(PersistenceDomain::Gpf),
        || writes(PersistenceDomain::Process),
        moves_adr,
        moves_gpf,
        full,
    ];
    for (index, catcher) in catchers.into_iter().enumerate() {
        if let Err(what) = run(Mutant::None, catcher) {
            panic!("catcher {index}: {what}");
        }
    }
}

#[test]
fn r8_home_pages_not_fenced() {
    is_caught(Mutant::HomePagesNotFenced, &[|| writes(PersistenceDomain::Adr)]);
}

#[test]
fn hm1_home_bit_forgotten() {
    is_caught(Mutant::HomeBitForgotten, &[moves_adr, moves_gpf]);
}

#[test]
fn r7_data_freed_before_commit() {
    is_caught(Mutant::DataFreedBeforeCommit, &[full]);
}

#[test]
fn r8_written_filled_in_place() {
    is_caught(Mutant::WrittenFilledInPlace, &[|| writes(PersistenceDomain::Adr), || writes(PersistenceDomain::Gpf)]);
}

//! Deliberate bugs of files in the memory zone, each caught; and cuts of what sets a home and moves blocks to it.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use support::bugs::{Catcher, alone, is_caught, run};
use tandemfs_crash::{Effort, Explorer, Harness, Model, Operation, Scene, Setting};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{HOME_ATTRIBUTE, Home, HomeLimit, LayoutOptions, MountOptions, SetExtendedAttribute};

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

/// Every cut of a home that is set for the first time, and of the move of a file to it and back.
fn moves(setting: &Setting) -> Result<(), String> {
    let preparation = vec![
        Create("f"),
        Write("f", 0, 2 * BLOCK as u32 + 9000, 1),
        Scatter("f", 0, 3, 3000, 60, 6),
        Allocate("f", 4 * BLOCK, 2 * BLOCK, false),
        Checkpoint,
    ];
    let scene = Scene { preparation, ..Scene::small(setting) };
    let effort = Effort { states: 24, recovery_one_in: 60, recovery_depth: 1, recovery_states: 4, work_one_in: 10, empty_one_in: 0 };
    let there_and_back = [SetHome("f", Home::Memory), MoveHomes, SetHome("f", Home::Block), MoveHomes];
    Explorer::new(&scene, effort, 5)?.explore(&there_and_back, 0)
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

/// A file system with one file of so many blocks, without homes.
fn with_file(mount: &MountOptions, blocks: u64) -> Result<(Harness, InodeNumber), String> {
    let setting = Setting { memory_bytes: 32 << 20, ..Setting::small(PersistenceDomain::Adr, BLOCK as u32) };
    let mut harness = Harness::new(setting.format(), &MountOptions { home_limit: mount.home_limit, ..setting.mount }, Model::default())?;
    harness.apply(&Create("f"))?;
    harness.apply(&Write("f", 0, (blocks * BLOCK) as u32, 1))?;
    let file = harness.fs.lookup(InodeNumber::ROOT, b"f").map_err(text)?.inode;
    Ok((harness, file))
}

fn text(error: tandemfs_fs::Error) -> String {
    error.to_string()
}

fn is_at_home(harness: &Harness, file: InodeNumber) -> Result<(), String> {
    match harness.fs.bytes_from_home(file).map_err(text)? {
        0 => harness.compare(),
        left => Err(format!("{left} B are left")),
    }
}

/// A move that ends after its first step, and goes on after the next mount.
fn interrupted() -> Result<(), String> {
    for end in [Remount, Crash] {
        let (mut harness, file) = with_file(&MountOptions::default(), 40)?;
        harness.apply(&SetHome("f", Home::Memory))?;
        harness.fs.move_homes().map_err(text)?;
        if is_at_home(&harness, file).is_ok() {
            return Err("the first step moved everything".into());
        }
        harness.apply(&end)?;
        harness.apply(&MoveHomes)?;
        is_at_home(&harness, file)?;
    }
    Ok(())
}

/// A block that has a lease when the others move.
fn leased() -> Result<(), String> {
    let (mut harness, file) = with_file(&MountOptions::default(), 4)?;
    let layout = harness.fs.layout(file, 0, BLOCK, LayoutOptions::default(), || {}).map_err(text)?;
    harness.apply(&SetHome("f", Home::Memory))?;
    harness.apply(&MoveHomes)?;
    drop(layout);
    harness.apply(&MoveHomes)?;
    is_at_home(&harness, file)
}

/// A file that is written when the memory zone has no room, which comes later.
fn without_room() -> Result<(), String> {
    let mount = MountOptions { home_limit: HomeLimit::Bytes(4 * BLOCK), ..MountOptions::default() };
    let (mut harness, file) = with_file(&mount, 0)?;
    for operation in [SetHome("f", Home::Memory), MoveHomes, Create("other"), SetHome("other", Home::Memory), MoveHomes] {
        harness.apply(&operation)?;
    }
    for operation in [Write("other", 0, 4 * BLOCK as u32, 1), Write("f", 0, 3 * BLOCK as u32, 2), Unlink("other"), MoveHomes] {
        harness.apply(&operation)?;
    }
    is_at_home(&harness, file)
}

/// Writes to a file in the memory zone, and a move to it, beyond the limit of the mount.
fn limited() -> Result<(), String> {
    let limit = 10 * BLOCK;
    let mount = MountOptions { home_limit: HomeLimit::Bytes(limit), ..MountOptions::default() };
    let (mut harness, _) = with_file(&mount, 9)?;
    harness.apply(&SetHome("", Home::Memory))?;
    for operation in [Create("new"), Write("new", 0, 20 * BLOCK as u32, 2), SetHome("f", Home::Memory), MoveHomes] {
        harness.apply(&operation)?;
    }
    match harness.fs.home_moves().bytes {
        found if found == limit => harness.compare(),
        found => Err(format!("{found} B instead of {limit}")),
    }
}

/// Homes of what is made in a directory that has one.
fn inherited() -> Result<(), String> {
    let (mut harness, _) = with_file(&MountOptions::default(), 1)?;
    for operation in [MakeDirectory("d"), SetHome("d", Home::Memory), Create("d/file"), MakeDirectory("d/d"), Symlink("d/s", 20), Remount] {
        harness.apply(&operation)?;
    }
    harness.compare()
}

/// An attribute that a program copies to a file system without homes.
fn copied() -> Result<(), String> {
    let (harness, file) = with_file(&MountOptions::default(), 1)?;
    let before = harness.fs.superblock().incompat;
    let set = harness.fs.set_extended_attribute(file, HOME_ATTRIBUTE, b"memory", SetExtendedAttribute::default());
    match (set, harness.fs.superblock().incompat == before) {
        (Err(_), true) => harness.compare(),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    let catchers: [Catcher; 12] = [
        || writes(PersistenceDomain::Adr),
        || writes(PersistenceDomain::Gpf),
        || writes(PersistenceDomain::Process),
        moves_adr,
        moves_gpf,
        full,
        interrupted,
        leased,
        without_room,
        limited,
        inherited,
        copied,
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

#[test]
fn mv1_interrupted_move_forgotten() {
    is_caught(Mutant::InterruptedMoveForgotten, &[interrupted]);
}

#[test]
fn mv2_waiting_move_forgotten() {
    is_caught(Mutant::WaitingMoveForgotten, &[leased, without_room]);
}

#[test]
fn fx4_home_limit_ignored() {
    is_caught(Mutant::HomeLimitIgnored, &[limited]);
}

#[test]
fn hx1_home_not_inherited() {
    is_caught(Mutant::HomeNotInherited, &[inherited]);
}

#[test]
fn hx2_feature_by_attribute() {
    is_caught(Mutant::FeatureByAttribute, &[copied]);
}

//! File systems on a memory half alone: everything that files do, against the model; every cut of random work in each persistence domain; a
//! full zone; and what needs a block zone is refused in a sentence.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::sync::Arc;

use support::bugs::{alone, is_caught, run};
use tandemfs_check::{CheckOptions, Dump, check};
use tandemfs_crash::{
    Effort, Explorer, Harness, MemoryDevice, Mix, Model, Operation, Random, Scene, Setting, check_device, compare_space, rounds_or, seed_or,
};
use tandemfs_device::{Drive, PersistenceDomain, Structure};
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{InodeNumber, LineAddress};
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Error, Growth, Home, grow, read_superblock, set_uuid};

use Operation::*;

const MIB: u64 = 1 << 20;

fn setting(domain: PersistenceDomain, block_bytes: u32) -> Setting {
    Setting::small(domain, block_bytes).without_blocks()
}

fn checked(device: &MemoryDevice) -> tandemfs_check::Counts {
    check_device(device, false).unwrap_or_else(|found| panic!("{found}"))
}

fn random_work(setting: &Setting, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
    let fresh = harness.fs.space();
    let mix = Mix::draw(&mut random, setting.room_bytes());
    for step in 0..120 {
        let operation = mix.next(&mut random);
        harness.apply(&operation).map_err(|error| format!("step {step}, {operation:?}: {error}"))?;
        if step % 10 == 9 {
            harness.compare().map_err(|error| format!("step {step}: {error}"))?;
        }
    }
    if harness.overwrites_refused > 0 {
        return Err(format!("{} overwrites refused, space {:?}", harness.overwrites_refused, harness.fs.space()));
    }
    harness.compare_space()?;
    compare_space(&harness.fs.space(), &check_device(&harness.device, false)?, &harness.model.tree())?;
    harness.remove_everything()?;
    harness.compare_space()?;
    let empty = harness.fs.space();
    if (empty.inodes_used, empty.memory.extent_bytes, empty.memory.data_log_bytes) != (fresh.inodes_used, 0, 0) {
        return Err(format!("space was lost: {fresh:?} when fresh, {empty:?} when empty again"));
    }
    Ok(())
}

#[test]
fn random_work_agrees_with_the_model() {
    let _alone = alone();
    let seed = seed_or(31);
    for block_bytes in [4 << 10, 16 << 10, 64 << 10, 1 << 20] {
        for round in 0..rounds_or(3) {
            let mut setting = setting(PersistenceDomain::Gpf, block_bytes);
            if round == 2 {
                setting.format.checksum_kind = ChecksumKind::None;
            }
            random_work(&setting, seed + round)
                .unwrap_or_else(|what| panic!("blocks of {block_bytes}, TANDEMFS_SEED={}: {what}", seed + round));
        }
    }
}

#[test]
fn every_cut_is_recovered_in_each_domain() {
    let _alone = alone();
    let seed = seed_or(41);
    let effort = Effort { states: 10, recovery_one_in: 40, recovery_depth: 1, recovery_states: 3, work_one_in: 20, empty_one_in: 40 };
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for block_bytes in [4 << 10, 64 << 10] {
            let scene = Scene::small(&setting(domain, block_bytes));
            for round in 0..rounds_or(2) {
                let mut explorer = Explorer::new(&scene, effort, seed + round).expect("prepares");
                explorer.explore_random(30, 6).unwrap_or_else(|what| panic!("{domain}, TANDEMFS_SEED={}: {what}", seed + round));
            }
        }
    }
}

/// Fills the zone with blocks, then with small writes; overwrites and removals succeed all the same (RULES R14).
#[test]
fn a_full_zone_takes_overwrites_and_gives_everything_back() {
    let _alone = alone();
    for block_bytes in [4 << 10, 64 << 10] {
        let setting = setting(PersistenceDomain::Adr, block_bytes);
        let (mut harness, block) =
            (Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts"), u64::from(block_bytes));
        harness.apply(&Create("f")).expect("made");
        let piece = block.max(64 << 10);
        let mut written = 0;
        while harness.refused_for_space == 0 {
            harness.apply(&Write("f", written, piece as u32, written)).expect("agrees");
            written += piece;
        }
        assert!(written > 8 * MIB, "{written} B");
        let refused = harness.refused_for_space;
        for at in [0, 7 * block, 30 * block, 7 * block, written - 3 * piece] {
            harness.apply(&Write("f", at, block_bytes, 100 + at)).expect("agrees");
            harness.apply(&Write("f", at + 100, 3000, 200 + at)).expect("agrees");
        }
        assert_eq!((harness.overwrites_refused, harness.fs.large_file_bytes() / (256 << 10)), (0, 0), "{refused} refused");
        harness.apply(&Crash).and_then(|()| harness.compare()).expect("agrees after a crash");
        harness.remove_everything().and_then(|()| harness.compare_space()).expect("gives back");
        let most = harness.fs.large_file_bytes();
        assert!(most > 8 * MIB, "{most} B fit");
        harness.apply(&Create("large")).and_then(|()| harness.apply(&Allocate("large", 0, most, false))).expect("what statfs says fits");
        assert_eq!(harness.refused_for_space, refused);
    }
}

/// A file without a home of its own.
fn of_no_home() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Adr, 64 << 10);
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
    for operation in [SetHome("", Home::Auto), Create("f"), Write("f", 0, 1 << 20, 1)] {
        harness.apply(&operation)?;
    }
    if harness.refused_for_space > 0 { Err("no room for it".into()) } else { harness.compare() }
}

#[test]
fn hm4_missing_zone_ignored() {
    is_caught(Mutant::MissingZoneIgnored, &[of_no_home]);
    let _alone = alone();
    run(Mutant::None, of_no_home).expect("lies in memory");
}

#[test]
fn what_needs_a_block_zone_is_refused_in_a_sentence() {
    let _alone = alone();
    let setting = setting(PersistenceDomain::Adr, 64 << 10);
    let harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    let fs = &harness.fs;
    assert!(matches!(fs.set_home(InodeNumber::ROOT, Home::Block), Err(Error::NotSupported("the file system has no block zone"))));
    let home = fs.set_extended_attribute(InodeNumber::ROOT, tandemfs_fs::HOME_ATTRIBUTE, b"block", Default::default());
    assert!(matches!(home, Err(Error::NotSupported(_))));
    let trimmed = fs.trim_step(&mut fs.trim(0)).expect_err("nothing to discard").to_string();
    assert!(trimmed.contains("no block zone"), "{trimmed}");
    assert_eq!((fs.space().block.total_bytes, fs.discard_freed()), (0, 0));
    assert!(fs.short_zones().is_empty(), "{:?}", fs.short_zones());
    let mut scrub = fs.scrub();
    while fs.scrub_step(&mut scrub) {}
    assert_eq!(scrub.findings().len(), 0);
}

/// The superblock says that there is no other half: nothing of the identity is read, and what a device has there is not touched.
#[test]
fn it_grows_and_is_named_and_repaired_without_another_half() {
    let _alone = alone();
    let setting = setting(PersistenceDomain::Adr, 64 << 10);
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    harness.apply(&Create("f")).and_then(|()| harness.apply(&Write("f", 0, 3 << 20, 1))).expect("written");
    let Harness { fs, device, model, .. } = harness;
    fs.unmount().expect("unmounts");
    let mut zones = device.zones();
    zones.memory.resize(zones.memory.len() + (32 << 20), 0xee);
    zones.blocks = vec![0x77; 8 << 20];
    let larger = MemoryDevice::from_zones(zones, PersistenceDomain::Adr);
    let drive = Drive::new(Arc::new(larger.clone()));
    let refused = grow(&drive, &Growth { memory_bytes: None, block_bytes: Some(8 << 20) }).expect_err("gets none").to_string();
    assert!(refused.contains("without a block zone gets none"), "{refused}");
    let (before, after) = grow(&drive, &Growth::default()).expect("grows");
    assert_eq!((after.memory_bytes() - before.memory_bytes(), after.block_sectors()), (32 << 20, 0));
    let uuid = read_superblock(&drive).expect("there").pair;
    set_uuid(&drive, uuid).expect("named");
    assert_eq!(read_superblock(&drive).expect("there").uuid(), uuid);
    let mut text = Vec::new();
    Dump::open(&drive).expect("opens").superblock(&mut text).expect("prints");
    assert!(String::from_utf8_lossy(&text).contains("blocks       none"), "{}", String::from_utf8_lossy(&text));
    // One copy of the superblock is damaged: the repair writes it again, and no identity.
    drop(drive.persist(Structure::Superblock, LineAddress::new(1), &[0xff; 64]).expect("stores"));
    let options = CheckOptions { repair: true, ..CheckOptions::default() };
    let report = check(&drive, &options, &mut |_| {}).expect("checks");
    assert_eq!((report.repaired.len(), report.findings.len()), (1, 0), "{:?} {:?}", report.repaired, report.findings);
    checked(&larger);
    assert!(larger.zones().blocks.iter().all(|byte| *byte == 0x77));
    let harness = Harness::new(larger, &setting.mount, model).expect("mounts");
    harness.compare().expect("agrees");
}

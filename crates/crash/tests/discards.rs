//! Sectors that were freed are discarded between operations, after each of them and at every cut: nothing that is in use is discarded, and
//! what is discarded is used again as any free sector.

use tandemfs_crash::{ALPHABET, Effort, Explorer, Harness, Model, Operation, Scene, Setting};
use tandemfs_device::PersistenceDomain;

use Operation::*;

#[test]
fn every_change_may_be_followed_by_discards_and_cut() {
    let effort = Effort { states: 6, recovery_one_in: 200, recovery_depth: 1, recovery_states: 2, work_one_in: 40, empty_one_in: 400 };
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for setting in [Setting::small(domain, 64 << 10), Setting::small(domain, 4 << 10).with_firmware()] {
            let mut explorer = Explorer::new(&Scene::small(&setting), effort, 11).unwrap_or_else(|what| panic!("{setting:?}: {what}"));
            for (index, change) in (0..).zip(ALPHABET) {
                // The block path for what is written next, so that discarded sectors are taken again.
                let operations = [*change, Discard, Create("new"), Write("new", 0, 70_000, 100 + index), Discard];
                explorer.explore(&operations, 0).unwrap_or_else(|what| panic!("{setting:?}, {change:?}: {what}"));
            }
        }
    }
}

#[test]
fn a_zone_is_filled_emptied_and_discarded_again_and_again() {
    for block in [4 << 10, 64 << 10] {
        let setting = Setting::small(PersistenceDomain::Gpf, block);
        let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
        let before = harness.fs.statistics().work.discarded_bytes;
        for round in 0..4 {
            harness.refused_for_space = 0;
            let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
            for (index, name) in (0..).zip(names) {
                harness.apply(&Create(name)).unwrap_or_else(|what| panic!("{what}"));
                harness.apply(&Write(name, 0, 400_000, round * 100 + index)).unwrap_or_else(|what| panic!("{what}"));
                harness.apply(&Discard).unwrap_or_else(|what| panic!("{what}"));
            }
            assert!(harness.refused_for_space > 0, "it was not full");
            harness.compare().unwrap_or_else(|what| panic!("{what}"));
            for name in names {
                harness.apply(&Unlink(name)).unwrap_or_else(|what| panic!("{what}"));
            }
            harness.apply(&Discard).unwrap_or_else(|what| panic!("{what}"));
            harness.apply(&Checkpoint).unwrap_or_else(|what| panic!("{what}"));
        }
        let discarded = harness.fs.statistics().work.discarded_bytes - before;
        assert!(discarded > 8 << 20, "{discarded}");
        harness.apply(&Crash).unwrap_or_else(|what| panic!("{what}"));
        harness.apply(&Remount).unwrap_or_else(|what| panic!("{what}"));
        harness.compare().unwrap_or_else(|what| panic!("{what}"));
    }
}

#[test]
fn a_trim_discards_what_is_free_and_nothing_else() {
    let setting = Setting::small(PersistenceDomain::Gpf, 64 << 10);
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default()).expect("mounts");
    for operation in [Create("a"), Write("a", 0, 900_000, 1), Create("b"), Write("b", 0, 300_000, 2), Unlink("a")] {
        harness.apply(&operation).unwrap_or_else(|what| panic!("{what}"));
    }
    let free = harness.fs.space().block.free_bytes;
    let mut trim = harness.fs.trim(0);
    while harness.fs.trim_step(&mut trim).expect("the device discards") {}
    // The transient room is not touched.
    assert!(trim.discarded_bytes() <= free && trim.discarded_bytes() >= free / 2, "{} of {free}", trim.discarded_bytes());
    assert_eq!(harness.fs.space().block.free_bytes, free);
    assert_eq!(harness.fs.trim_progress(&trim).0, 4 << 20);
    let mut none = harness.fs.trim(1 << 30);
    while harness.fs.trim_step(&mut none).expect("the device discards") {}
    assert_eq!(none.discarded_bytes(), 0, "no run is as long");
    harness.compare().unwrap_or_else(|what| panic!("{what}"));
    harness.apply(&Crash).unwrap_or_else(|what| panic!("{what}"));
    harness.compare().unwrap_or_else(|what| panic!("{what}"));
}

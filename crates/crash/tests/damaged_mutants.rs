//! Deliberate bugs in what damage holds back: the runs of `damaged_metadata.rs` must catch each (`docs/TESTING.md`).
//!
//! A mutant is global to the process, so all of this is one test.

mod damage;

use std::sync::Arc;

use damage::lines::What;
use damage::{How, bytes_of, journalled, mount, run, scene};
use tandemfs_check::{CheckOptions, check};
use tandemfs_crash::{MemoryDevice, Random};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_fs::FileSystem;
use tandemfs_fs::mutant::{self, Mutant};

/// What the runs find with a bug, where the first line of a kind is damaged: of a mapping, one with records.
fn caught(bug: Mutant, how: How, what: What) -> Option<String> {
    let scene = scene(false);
    let (object, what, address) = *scene.lines().iter().find(|(object, found, _)| *object == 0 && *found == what).expect("there is one");
    mutant::select(bug);
    let result = std::panic::catch_unwind(|| run(&scene, &[(object, what, address, how)], 2, &mut Random::new(2)));
    mutant::select(Mutant::None);
    match result {
        Ok(Ok(_)) => None,
        Ok(Err(what)) => Some(what),
        Err(_) => Some("panic".into()),
    }
}

/// What can be read of a part that a repair gave up.
fn lost_that_reads(bug: Mutant) -> Option<Vec<u8>> {
    let scene = scene(true);
    let (_, _, address) = *scene.lines().iter().find(|(object, what, _)| *object == 0 && *what == What::Mapping(2)).expect("there");
    let mut zones = scene.zones.clone();
    How::Noise.apply(bytes_of(&mut zones, address), &mut Random::new(2));
    let device = MemoryDevice::from_zones(zones, PersistenceDomain::Gpf);
    let options = CheckOptions { threads: 1, repair: true, ..CheckOptions::default() };
    let report = check(&Drive::new(Arc::new(device.clone())), &options, &mut |_| {}).expect("runs");
    let lost = report.lost.first().expect("something is lost");
    mutant::select(bug);
    let fs = FileSystem::mount(Drive::new(Arc::new(device)), &damage::options()).expect("mounts");
    let mut bytes = vec![0; 100];
    let read = fs.read(scene.objects[0].1, lost.offset, &mut bytes);
    mutant::select(Mutant::None);
    read.ok().map(|_| bytes)
}

/// Whether a file can be read whose only leaf became zeros.
fn empty_leaf_reads(bug: Mutant) -> bool {
    let scene = scene(true);
    let (_, _, address) = *scene.lines().iter().find(|(object, what, _)| *object == 1 && *what == What::Leaf).expect("there");
    let mut zones = scene.zones.clone();
    How::Zeros.apply(bytes_of(&mut zones, address), &mut Random::new(2));
    mutant::select(bug);
    let reads = mount(&zones).1.expect("mounts").read(scene.objects[1].1, 0, &mut [0; 5000]).is_ok();
    mutant::select(Mutant::None);
    reads
}

/// Whether a directory is removed whose names are lost by one wrong bit.
fn full_directory_is_removed(bug: Mutant) -> bool {
    let scene = scene(true);
    let (_, _, address) = *scene.lines().iter().find(|(object, what, _)| *object == 4 && *what == What::Mapping(1)).expect("there");
    let mut zones = scene.zones.clone();
    How::Bit.apply(bytes_of(&mut zones, address), &mut Random::new(2));
    mutant::select(bug);
    let removed = mount(&zones).1.expect("mounts").remove_directory(InodeNumber::ROOT, b"names").is_ok();
    mutant::select(Mutant::None);
    removed
}

#[test]
fn space_that_damage_hides_is_not_given_out_and_an_unmount_is_not_clean() {
    for (how, what) in [(How::Noise, What::Hot), (How::Noise, What::Mapping(1)), (How::Bit, What::Mapping(1)), (How::Bit, What::Cold)] {
        assert_eq!(caught(Mutant::None, how, what), None, "{how:?} of a line {what:?}");
        for bug in [Mutant::HiddenSpaceGiven, Mutant::CleanWhileHeldBack] {
            let found = caught(bug, how, what);
            println!("{bug:?}: {how:?} of a line {what:?}: {found:?}");
            assert!(found.is_some(), "{bug:?} escaped {how:?} of a line {what:?}");
        }
    }
    assert_eq!(lost_that_reads(Mutant::None), None);
    assert!(lost_that_reads(Mutant::LostReadsAsHole).is_some(), "with the bug what is lost reads as zeros");
    assert!(!empty_leaf_reads(Mutant::None) && empty_leaf_reads(Mutant::EmptyLeavesRead));
    assert!(!full_directory_is_removed(Mutant::None) && full_directory_is_removed(Mutant::CorrectableIsEmpty));
    let (mut zones, _, starts) = journalled();
    zones.memory[starts[1] as usize + 50] ^= 1;
    assert!(mount(&zones).1.is_err());
    mutant::select(Mutant::DamagedRecordEndsRing);
    let mounted = mount(&zones).1.is_ok();
    mutant::select(Mutant::None);
    assert!(mounted, "with the bug the damage goes unnoticed");
}

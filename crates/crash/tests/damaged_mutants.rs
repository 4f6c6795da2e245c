//! Deliberate bugs in what damage holds back: the runs of `damaged_metadata.rs` must catch each (`docs/TESTING.md`).
//!
//! A mutant is global to the process, so all of this is one test.

mod damage;

use damage::lines::What;
use damage::{How, journalled, mount, places, run, scene};
use tandemfs_crash::Random;
use tandemfs_fs::mutant::{self, Mutant};

/// What the runs find with a bug.
fn caught(bug: Mutant, how: How, what: What) -> Option<String> {
    let scene = scene(false);
    let (object, what, address) =
        *places(&scene, 1).iter().find(|(object, found, _)| *object == 0 && *found == what).expect("there is one");
    mutant::select(bug);
    let result = std::panic::catch_unwind(|| run(&scene, &[(object, what, address, how)], 2, &mut Random::new(2)));
    mutant::select(Mutant::None);
    match result {
        Ok(Ok(_)) => None,
        Ok(Err(what)) => Some(what),
        Err(_) => Some("panic".into()),
    }
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
    let (mut zones, _, starts) = journalled();
    zones.memory[starts[1] as usize + 50] ^= 1;
    assert!(mount(&zones).1.is_err());
    mutant::select(Mutant::DamagedRecordEndsRing);
    let mounted = mount(&zones).1.is_ok();
    mutant::select(Mutant::None);
    assert!(mounted, "with the bug the damage goes unnoticed");
}

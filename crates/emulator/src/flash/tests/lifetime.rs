//! Wear over the life of a drive: levelling, blocks that go bad, and the end.

use super::rig::{Draw, Rig, Step, small_geometry, small_options};
use crate::flash::{FlashGeometry, FlashOptions};

/// Cold data fills most of the drive, a few pages are overwritten: difference between the most and the least worn block.
pub(super) fn wear_spread(threshold_erasures: u32) -> u32 {
    let geometry = FlashGeometry::for_capacity(256, 2, 1, 1, 8, 20);
    let mut rig = Rig::new(geometry, FlashOptions { levelling_threshold_erasures: threshold_erasures, ..small_options() }).unwrap();
    for page in 0..256 {
        rig.write(page).unwrap();
    }
    let mut draw = Draw::new(1);
    for _ in 0..20_000 {
        rig.write(draw.below(24)).unwrap();
        rig.step(Step::Settle).unwrap();
    }
    rig.compare().unwrap();
    let wear = rig.flash().wear();
    assert_eq!(wear.histogram.iter().sum::<u32>(), wear.blocks);
    wear.erasures_max - wear.erasures_min
}

/// Levelled wear stays within a few times the threshold; without levelling the cold blocks are never erased.
pub(super) fn levelling_works() -> Result<(), String> {
    let (levelled, not_levelled) = (wear_spread(8), wear_spread(0));
    if not_levelled > 100 && levelled <= 40 {
        return Ok(());
    }
    Err(format!("a spread of {levelled} erasures with levelling, {not_levelled} without"))
}

#[test]
fn cold_data_is_moved_so_that_all_blocks_wear() {
    levelling_works().unwrap();
}

/// Writes until the drive is read-only; all that was written is still there, then and when it is opened again.
pub(super) fn wears_out(options: FlashOptions) -> Result<(), String> {
    let geometry = small_geometry();
    let mut rig = Rig::new(geometry, options).map_err(|error| error.to_string())?;
    let mut draw = Draw::new(2);
    let enough = u64::from(options.endurance_erasures) * geometry.physical_pages() * 2;
    let error = (0..enough).find_map(|_| rig.write(draw.below(geometry.logical_pages)).err());
    let Some(error) = error else { return Err(format!("it is not worn out after {enough} writes: {:?}", rig.flash().wear())) };
    let reason = rig.flash().read_only_reason().ok_or("no reason is given")?.to_string();
    if !reason.contains("blocks of flash are bad") || !error.to_string().contains(&reason) {
        return Err(format!("the reason is unclear: {reason}; {error}"));
    }
    rig.flash().settle().map_err(|error| error.to_string())?;
    rig.compare()?;
    rig.reopen().map_err(|error| error.to_string())?;
    rig.compare()?;
    // Each write is refused or kept, and soon each is refused.
    let mut refused = 0;
    for _ in 0..100 {
        refused += u32::from(rig.write(draw.below(geometry.logical_pages)).is_err());
        rig.compare()?;
    }
    if refused < 50 { Err(format!("only {refused} of 100 writes were refused")) } else { Ok(()) }
}

#[test]
fn a_worn_out_drive_is_read_only_and_keeps_everything() {
    wears_out(FlashOptions { endurance_erasures: 20, ..small_options() }).unwrap();
    wears_out(FlashOptions { endurance_erasures: 1, ..small_options() }).unwrap();
    for seed in 0..8 {
        wears_out(FlashOptions { endurance_erasures: 200, program_failures_ppm: 20_000, seed, ..small_options() }).unwrap();
    }
}

#[test]
fn blocks_are_bad_from_the_factory_as_the_seed_says() {
    let geometry = FlashGeometry::for_capacity(4000, 2, 2, 1, 4, 28);
    let options = FlashOptions { factory_bad_blocks_ppm: 20_000, ..small_options() };
    let bad = |seed| Rig::new(geometry, FlashOptions { seed, ..options }).unwrap().flash().wear().bad_blocks_from_factory;
    for seed in 0..5 {
        assert!((5..60).contains(&bad(seed)), "{} of {}", bad(seed), geometry.blocks());
        assert_eq!(bad(seed), bad(seed));
    }
    let mut rig = Rig::new(geometry, options).unwrap();
    let before = rig.flash().wear();
    rig.reopen().unwrap();
    assert_eq!(rig.flash().wear(), before);
    // Too many of them are no drive.
    let few = FlashGeometry::for_capacity(4000, 2, 2, 1, 4, 1);
    let Err(error) = Rig::new(few, FlashOptions { factory_bad_blocks_ppm: 200_000, ..options }) else { panic!("it was made") };
    assert!(error.to_string().contains("bad from the start"), "{error}");
}

/// Programs fail; each costs its block, for good, and no page.
pub(super) fn failed_programs_are_remembered() -> Result<(), String> {
    // Blocks so large that emptying one takes several steps.
    let geometry = FlashGeometry { blocks_per_plane: 40, pages_per_block: 32, logical_pages: 600, ..small_geometry() };
    let options = FlashOptions { program_failures_ppm: 2_000, ..small_options() };
    let mut rig = Rig::new(geometry, options).map_err(|error| error.to_string())?;
    let mut draw = Draw::new(3);
    for number in 0..4000 {
        let before = rig.flash().wear();
        rig.write(draw.below(600)).and_then(|()| rig.step(Step::Settle)).map_err(|error| format!("write {number}: {error}"))?;
        let after = rig.flash().wear();
        if after.bad_blocks_grown == before.bad_blocks_grown {
            continue;
        }
        // Its pages may not even be moved yet.
        rig.reopen().map_err(|error| error.to_string())?;
        let opened = rig.flash().wear();
        if (opened.bad_blocks_grown, opened.erasures_mean) != (after.bad_blocks_grown, after.erasures_mean) {
            return Err(format!("write {number}: {after:?} is {opened:?} once it is opened again"));
        }
        rig.compare()?;
    }
    rig.reopen().map_err(|error| error.to_string())?;
    match (rig.flash().wear().bad_blocks_grown, rig.done[2]) {
        (bad @ 3.., retired @ 3..) if retired <= u64::from(bad) => rig.compare(),
        counts => Err(format!("bad and retired blocks: {counts:?}")),
    }
}

#[test]
fn a_failed_program_costs_its_block_and_no_page() {
    failed_programs_are_remembered().unwrap();
}

#[test]
fn most_of_the_endurance_is_used_before_the_end() {
    for settles in [false, true] {
        let geometry = FlashGeometry::for_capacity(3200, 2, 1, 1, 8, 7);
        let options = FlashOptions { endurance_erasures: 60, ..small_options() };
        let mut rig = Rig::new(geometry, options).unwrap();
        let mut draw = Draw::new(4);
        let mut written = 0;
        while rig.write(draw.below(3200)).is_ok() {
            written += 1;
            if settles {
                rig.step(Step::Settle).unwrap();
            }
        }
        rig.compare().unwrap();
        // All spare blocks were used up, and the others were nearly as worn.
        let wear = rig.flash().wear();
        assert!(rig.flash().read_only_reason().unwrap().contains("no spare block"), "{:?}", rig.flash().read_only_reason());
        assert!(wear.erasures_mean > 45.0, "{wear:?}");
        assert!(written > 30_000, "{written}");
    }
}

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

#[test]
fn a_failed_program_costs_its_block_and_no_page() {
    let geometry = FlashGeometry { blocks_per_plane: 40, ..small_geometry() };
    let mut rig = Rig::new(geometry, FlashOptions { program_failures_ppm: 2_000, ..small_options() }).unwrap();
    let mut draw = Draw::new(3);
    for _ in 0..4000 {
        rig.write(draw.below(100)).unwrap();
        rig.step(Step::Settle).unwrap();
    }
    rig.compare().unwrap();
    let (wear, counts) = (rig.flash().wear(), rig.flash().counts());
    assert!(wear.bad_blocks_grown > 0 && counts.blocks_retired > 0, "{wear:?}");
    let erasures = wear.erasures_mean;
    rig.reopen().unwrap();
    assert_eq!(rig.flash().wear().bad_blocks_grown, wear.bad_blocks_grown);
    assert_eq!(rig.flash().wear().erasures_mean, erasures, "wear survives");
}

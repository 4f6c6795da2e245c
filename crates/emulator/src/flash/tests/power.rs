//! Power failures: after every step of the medium, in a long sequence and in the repairs of an open.

use super::rig::{Draw, Rig, Step, small_geometry, small_options};
use crate::flash::{FlashGeometry, FlashOptions, VictimPolicy};

/// Runs a random sequence in which the power fails again and again, after `gap(draw)` steps of the medium; after each failure the drive is
/// opened, also with the power failing after every possible step of that, and compared.
pub(super) fn run_with_cuts(
    geometry: FlashGeometry,
    options: FlashOptions,
    seed: u64,
    cut_count: u64,
    gap: impl Fn(&mut Draw) -> u64,
) -> Result<Rig, String> {
    let mut rig = Rig::new(geometry, options).map_err(|error| error.to_string())?;
    let mut draw = Draw::new(seed);
    for cut in 0..cut_count {
        let steps_before = rig.medium.steps();
        let steps_left = gap(&mut draw);
        rig.medium.cut_after(Some(steps_left));
        let mut is_read_only = false;
        while rig.medium.steps() - steps_before < steps_left {
            let step = Step::draw(&mut draw, geometry.logical_pages);
            if rig.step(step).is_err() {
                is_read_only = rig.flash.as_ref().is_some_and(|flash| flash.read_only_reason().is_some());
                break;
            }
        }
        // The power comes back for longer each time, until it lasts.
        for steps in 0.. {
            rig.medium.cut_after(Some(steps));
            if rig.reopen().is_ok() {
                break;
            }
            if steps > 200 {
                rig.medium.cut_after(None);
                return Err(format!("seed {seed}, cut {cut}: it does not open: {:?}", rig.reopen()));
            }
        }
        rig.medium.cut_after(None);
        rig.compare().map_err(|what| format!("seed {seed}, cut {cut} after {steps_left} steps: {what}"))?;
        if is_read_only {
            break;
        }
    }
    Ok(rig)
}

/// Steps of the medium that a page of the buffer takes, about: enough for some writes between two failures.
fn few_steps(draw: &mut Draw) -> u64 {
    match draw.below(3) {
        0 => draw.below(40),
        1 => draw.below(600),
        _ => draw.below(6000),
    }
}

#[test]
fn a_power_failure_anywhere_loses_nothing_that_was_acknowledged() {
    for seed in 0..16 {
        let victim = if seed % 2 == 0 { VictimPolicy::Greedy } else { VictimPolicy::CostBenefit };
        let rig = run_with_cuts(small_geometry(), FlashOptions { victim, seed, ..small_options() }, seed, 150, few_steps).unwrap();
        assert!(rig.medium.steps() > 10_000);
    }
}

#[test]
fn a_power_failure_on_flash_that_fails_loses_nothing() {
    for seed in 0..16 {
        let geometry = FlashGeometry { blocks_per_plane: 40, ..small_geometry() };
        let options =
            FlashOptions { factory_bad_blocks_ppm: 30_000, program_failures_ppm: 10_000, endurance_erasures: 12, seed, ..small_options() };
        run_with_cuts(geometry, options, seed, 150, few_steps).unwrap();
    }
}

/// The same sequence is cut after each of its steps but those that only copy bytes to a slot: a window of a drive that collects, levels and
/// retires.
#[test]
fn every_step_of_a_window_may_be_the_last() {
    let geometry = FlashGeometry { logical_pages: 20, blocks_per_plane: 6, pages_per_block: 4, ..small_geometry() };
    let options = FlashOptions { program_failures_ppm: 4_000, endurance_erasures: 60, write_buffer_pages: 2, seed: 3, ..small_options() };
    // One run to see where the window lies.
    let window = |cut_at: Option<u64>| -> Result<(Rig, Vec<u64>), String> {
        let mut rig = Rig::new(geometry, options).map_err(|error| error.to_string())?;
        let mut draw = Draw::new(11);
        for _ in 0..400 {
            rig.step(Step::draw(&mut draw, 20)).map_err(|error| error.to_string())?;
        }
        let before = rig.medium.steps();
        rig.medium.cut_after(cut_at);
        let mut ends = vec![0];
        for _ in 0..40 {
            if rig.step(Step::draw(&mut draw, 20)).is_err() {
                break;
            }
            ends.push(rig.medium.steps() - before);
        }
        rig.medium.cut_after(None);
        rig.reopen().map_err(|error| error.to_string())?;
        rig.compare()?;
        Ok((rig, ends))
    };
    let (rig, ends) = window(None).unwrap();
    assert!(rig.medium.steps() > 0);
    let mut cuts = 0;
    for pair in ends.windows(2) {
        for steps in pair[0]..pair[1] {
            // A store of a page to a slot is 512 steps that no entry names: their middle stands for them.
            let into = steps - pair[0];
            if pair[1] - pair[0] > 512 && (4..=500).contains(&into) && into % 61 != 0 {
                continue;
            }
            window(Some(steps)).unwrap_or_else(|what| panic!("cut after {steps} steps: {what}"));
            cuts += 1;
        }
    }
    assert!(cuts > 400, "{cuts} cuts");
}

/// The power fails so often that no block is ever emptied in one go: that must not use up the free blocks.
#[test]
fn failures_in_quick_succession_do_not_use_up_the_flash() {
    let geometry = FlashGeometry::for_capacity(128, 2, 1, 1, 8, 0);
    let mut rig = Rig::new(geometry, small_options()).unwrap();
    for page in 0..128 {
        rig.write(page).unwrap();
    }
    let mut draw = Draw::new(5);
    let mut written = 0;
    for _ in 0..3000 {
        // A write is 515 steps; with a stripe and some moves it is a little more.
        rig.medium.cut_after(Some(500 + draw.below(60)));
        written += u64::from(rig.write(draw.below(128)).is_ok());
        rig.medium.cut_after(None);
        rig.reopen().unwrap();
        assert_eq!(rig.flash().read_only_reason(), None);
        if let Some((page, state)) = rig.in_flight.take() {
            let found = rig.flash.as_ref().map(|flash| crate::medium::Pages::stamp(flash, page).unwrap());
            if found == Some(state.1) {
                rig.model.insert(page, state);
            }
        }
    }
    assert!(written > 500, "{written} writes got through");
    rig.compare().unwrap();
}

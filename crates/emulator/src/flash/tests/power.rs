//! Power failures: after every step of the medium, in a long sequence and in the repairs of an open.

use super::rig::{Draw, Rig, Step, small_geometry, small_options};
use crate::flash::{FlashGeometry, FlashOptions, VictimPolicy};

/// Runs a random sequence on a full drive, in which the power fails again and again: after some operations and then a number of steps of
/// the medium, within what follows. After each failure the drive is opened, also with the power failing after every possible step of that,
/// and compared.
pub(super) fn run_with_cuts(geometry: FlashGeometry, options: FlashOptions, seed: u64, cut_count: u64) -> Result<Rig, String> {
    let mut rig = Rig::new(geometry, options).map_err(|error| error.to_string())?;
    for page in 0..geometry.logical_pages {
        rig.write(page).map_err(|error| error.to_string())?;
    }
    let mut draw = Draw::new(seed);
    'cuts: for cut in 0..cut_count {
        for _ in 0..draw.below(20) {
            let step = Step::draw(&mut draw, geometry.logical_pages);
            if let Err(error) = rig.step(step) {
                match &rig.flash {
                    Some(flash) if flash.read_only_reason().is_some() => break 'cuts,
                    _ => return Err(format!("seed {seed}, cut {cut}, {step:?}: {error}")),
                }
            }
        }
        // Most steps fill slots of the buffer. What comes before, a stripe and collection, takes some dozens.
        let steps_left = match draw.below(4) {
            0 => draw.below(1200),
            1 => 512 + draw.below(10),
            _ => draw.below(70),
        };
        let end = rig.medium.steps() + steps_left;
        rig.medium.cut_after(Some(steps_left));
        while rig.medium.steps() < end && rig.step(Step::draw(&mut draw, geometry.logical_pages)).is_ok() {}
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
    }
    rig.reopen().map_err(|error| error.to_string())?;
    rig.compare()?;
    Ok(rig)
}

#[test]
fn a_power_failure_anywhere_loses_nothing_that_was_acknowledged() {
    for seed in 0..16 {
        let victim = if seed % 2 == 0 { VictimPolicy::Greedy } else { VictimPolicy::CostBenefit };
        let rig = run_with_cuts(small_geometry(), FlashOptions { victim, seed, ..small_options() }, seed, 150).unwrap();
        let [moved, erased, _] = rig.done;
        assert!(moved > 500 && erased > 100, "there was little to be cut: {:?}", rig.done);
    }
}

#[test]
fn a_power_failure_on_flash_that_fails_loses_nothing() {
    let mut retired = 0;
    for seed in 0..16 {
        let geometry = FlashGeometry { blocks_per_plane: 40, ..small_geometry() };
        let options =
            FlashOptions { factory_bad_blocks_ppm: 30_000, program_failures_ppm: 10_000, endurance_erasures: 12, seed, ..small_options() };
        retired += run_with_cuts(geometry, options, seed, 150).unwrap().done[2];
    }
    assert!(retired > 100, "{retired}");
}

/// The same sequence is cut after each of its steps but most of those that only fill a slot, while the drive collects, levels and retires.
#[test]
fn every_step_of_a_window_may_be_the_last() {
    let geometry = FlashGeometry { logical_pages: 48, blocks_per_plane: 11, pages_per_block: 4, ..small_geometry() };
    let mut done = [0; 3];
    let mut cuts = 0;
    // Seeds with which blocks fail within the window.
    for seed in [11, 12, 13, 14] {
        let options = FlashOptions { program_failures_ppm: 12_000, write_buffer_pages: 2, seed, ..small_options() };
        // Without a cut it says where the operations end, and what they did.
        let window = |cut_after: Option<u64>| -> Result<(Rig, Vec<u64>, [u64; 3]), String> {
            let mut rig = Rig::new(geometry, options).map_err(|error| error.to_string())?;
            let mut draw = Draw::new(seed);
            for number in 0..200 {
                let step = if number < 48 { Step::Write(number) } else { Step::draw(&mut draw, 48) };
                rig.step(step).map_err(|error| error.to_string())?;
            }
            rig.reopen().map_err(|error| error.to_string())?;
            let (before, done_before) = (rig.medium.steps(), rig.done);
            rig.medium.cut_after(cut_after);
            let mut ends = vec![0];
            for _ in 0..40 {
                if rig.step(Step::draw(&mut draw, 48)).is_err() {
                    break;
                }
                ends.push(rig.medium.steps() - before);
            }
            rig.medium.cut_after(None);
            rig.reopen().map_err(|error| error.to_string())?;
            rig.compare()?;
            let done = [0, 1, 2].map(|kind| rig.done[kind] - done_before[kind]);
            Ok((rig, ends, done))
        };
        let (_, ends, done_here) = window(None).unwrap();
        assert_eq!(ends.len(), 41, "no operation fails of itself");
        (0..3).for_each(|kind| done[kind] += done_here[kind]);
        for pair in ends.windows(2) {
            for steps in pair[0]..pair[1] {
                // A slot takes 512 steps to fill, at the end of a write. Before it are a stripe and collection.
                let left = pair[1] - steps;
                if (6..=512).contains(&left) && left % 61 != 0 {
                    continue;
                }
                window(Some(steps)).unwrap_or_else(|what| panic!("seed {seed}, cut after {steps} steps: {what}"));
                cuts += 1;
            }
        }
    }
    let [moved, erased, retired] = done;
    assert!(cuts > 1000 && moved > 20 && erased > 20 && retired > 1, "{cuts} cuts of {done:?}");
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

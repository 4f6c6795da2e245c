//! Write amplification, printed: `cargo test --release -p tandemfs-emulator amplification -- --ignored --nocapture`.

use super::rig::{Draw, Rig, Step, small_options};
use crate::flash::{FlashGeometry, FlashOptions, VictimPolicy};

/// Flash programs for each page written, once the drive is in its steady state.
fn amplification(over_provisioning_percent: u32, victim: VictimPolicy, is_skewed: bool) -> f64 {
    let logical_pages = 16_384;
    let geometry = FlashGeometry::for_capacity(logical_pages, 4, 1, 1, 64, over_provisioning_percent);
    // Without levelling: it is victims that are compared. A small buffer, so that it absorbs nothing.
    let options = FlashOptions { victim, write_buffer_pages: 16, levelling_threshold_erasures: 0, ..small_options() };
    let mut rig = Rig::new(geometry, options).unwrap();
    let mut draw = Draw::new(9);
    for page in 0..logical_pages {
        rig.write(page).unwrap();
    }
    let mut before = rig.flash().counts();
    for round in 0..logical_pages * 6 {
        if round == logical_pages * 3 {
            before = rig.flash().counts();
        }
        // Skewed: nine of ten writes go to a tenth of the pages.
        let page = match is_skewed && draw.below(10) != 0 {
            true => draw.below(logical_pages / 10) * 10,
            false => draw.below(logical_pages),
        };
        rig.write(page).unwrap();
        rig.step(Step::Settle).unwrap();
    }
    let counts = rig.flash().counts().since(&before);
    counts.pages_programmed as f64 / counts.pages_written as f64
}

#[test]
#[ignore = "prints figures; a minute"]
fn print_amplification() {
    println!("over-provisioning | overwrites | greedy | cost-benefit");
    for percent in [7, 28] {
        for (name, is_skewed) in [("uniform", false), ("90 % to 10 %", true)] {
            let [greedy, cost_benefit] =
                [VictimPolicy::Greedy, VictimPolicy::CostBenefit].map(|victim| amplification(percent, victim, is_skewed));
            println!("{percent:2} % | {name:12} | {greedy:.2} | {cost_benefit:.2}");
        }
    }
}

/// The least that can be said of them without a benchmark: collection does not cost more than theory allows it, and skew helps.
#[test]
fn amplification_is_within_reason() {
    let uniform = amplification(28, VictimPolicy::Greedy, false);
    assert!((1.3..3.0).contains(&uniform), "{uniform}");
}

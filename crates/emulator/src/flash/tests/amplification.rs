//! Write amplification, printed: `cargo test --release -p tandemfs-emulator amplification -- --ignored --nocapture`.

use std::sync::Arc;

use super::hollow::Hollow;
use super::rig::{Draw, small_options};
use crate::flash::{Flash, FlashGeometry, FlashOptions, VictimPolicy};
use crate::medium::Pages;

/// Flash programs for each page written, once the drive is in its steady state.
fn amplification(logical_pages: u64, over_provisioning_percent: u32, victim: VictimPolicy, is_skewed: bool) -> f64 {
    let geometry = FlashGeometry::for_capacity(logical_pages, 8, 1, 1, 64, over_provisioning_percent);
    // A small buffer, so that it absorbs nothing. Without levelling: it is victims that are compared.
    let options = FlashOptions { victim, write_buffer_pages: 16, levelling_threshold_erasures: 0, ..small_options() };
    let mut flash = Flash::format(Arc::new(Hollow::new(&geometry, &options)), 0, geometry, options).unwrap();
    let page = [1; 4096];
    for logical in 0..logical_pages {
        flash.write(logical, &page, 1).unwrap();
    }
    let mut draw = Draw::new(9);
    let mut before = flash.counts();
    for round in 0..logical_pages * 6 {
        if round == logical_pages * 3 {
            before = flash.counts();
        }
        // Skewed: nine of ten writes go to a tenth of the pages, which lie among the others.
        let logical = match is_skewed && draw.below(10) != 0 {
            true => draw.below(logical_pages / 10) * 10,
            false => draw.below(logical_pages),
        };
        flash.write(logical, &page, 1).unwrap();
        flash.settle().unwrap();
    }
    let counts = flash.counts().since(&before);
    counts.pages_programmed as f64 / counts.pages_written as f64
}

#[test]
#[ignore = "prints figures; a minute"]
fn print_amplification() {
    println!("over-provisioning | overwrites | greedy | cost-benefit");
    for percent in [7, 28] {
        for (name, is_skewed) in [("uniform", false), ("90 % to 10 %", true)] {
            let [greedy, cost_benefit] =
                [VictimPolicy::Greedy, VictimPolicy::CostBenefit].map(|victim| amplification(1 << 18, percent, victim, is_skewed));
            println!("{percent:2} % | {name:12} | {greedy:.2} | {cost_benefit:.2}");
        }
    }
}

/// Theory has (1 + r) / 2r for uniform overwrites with a share r of spare flash, about; what is free or open takes from r. Cost-benefit is
/// there because it gains where overwrites are skewed.
#[test]
fn amplification_is_what_theory_says() {
    let pages = 1 << 14;
    let uniform = amplification(pages, 28, VictimPolicy::Greedy, false);
    assert!((1.28 / 0.56 * 0.9..3.2).contains(&uniform), "{uniform}");
    let [greedy, cost_benefit] = [VictimPolicy::Greedy, VictimPolicy::CostBenefit].map(|victim| amplification(pages, 28, victim, true));
    assert!(cost_benefit < greedy * 0.85, "{cost_benefit} with cost-benefit, {greedy} without");
}

//! Deliberate bugs: each must be caught (`docs/TESTING.md`).

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::full_host::a_full_disk_refuses_new_pages_alone;
use super::lifetime::{failed_programs_are_remembered, levelling_works, wears_out};
use super::rig::{small_geometry, small_options};
use super::{model, power};
use crate::flash::FlashOptions;
use crate::mutant::{self, Mutant};

/// The error or panic that detected the bug, if any.
fn found(mutant: Mutant, test: impl Fn() -> Result<(), String>) -> Option<String> {
    mutant::select(mutant);
    let result = catch_unwind(AssertUnwindSafe(&test));
    mutant::select(Mutant::None);
    match result {
        Ok(Ok(())) => None,
        Ok(Err(what)) => Some(what),
        Err(panic) => Some(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".into())),
    }
}

fn assert_caught(mutant: Mutant, test: impl Fn() -> Result<(), String>) {
    test().unwrap_or_else(|what| panic!("without the bug: {what}"));
    let what = found(mutant, test).unwrap_or_else(|| panic!("{mutant:?} was not caught"));
    println!("{mutant:?}: {what}");
}

fn sequences() -> Result<(), String> {
    (0..8).try_for_each(|seed| model::run(small_geometry(), small_options(), seed, 2000).map(drop))
}

fn power_failures() -> Result<(), String> {
    (0..12).try_for_each(|seed| power::run_with_cuts(small_geometry(), small_options(), seed, 150).map(drop))
}

#[test]
fn switched_before_programmed() {
    assert_caught(Mutant::SwitchedBeforeProgrammed, power_failures);
}

#[test]
fn buffered_page_overwritten() {
    assert_caught(Mutant::BufferedPageOverwritten, power_failures);
}

#[test]
fn begun_not_noted() {
    assert_caught(Mutant::BegunNotNoted, sequences);
}

#[test]
fn cut_erasure_forgotten() {
    assert_caught(Mutant::CutErasureForgotten, power_failures);
}

#[test]
fn dead_page_revived() {
    assert_caught(Mutant::DeadPageRevived, sequences);
}

#[test]
fn moved_page_loses_stamp() {
    assert_caught(Mutant::MovedPageLosesStamp, sequences);
}

#[test]
fn discard_stamp_lost() {
    assert_caught(Mutant::DiscardStampLost, sequences);
}

#[test]
fn failed_block_forgotten() {
    assert_caught(Mutant::FailedBlockForgotten, failed_programs_are_remembered);
}

#[test]
fn worn_block_kept() {
    assert_caught(Mutant::WornBlockKept, || wears_out(FlashOptions { endurance_erasures: 20, ..small_options() }));
}

#[test]
fn host_space_ignored() {
    assert_caught(Mutant::HostSpaceIgnored, a_full_disk_refuses_new_pages_alone);
}

#[test]
fn cold_data_stays() {
    assert_caught(Mutant::ColdDataStays, levelling_works);
}

//! A scene under explored schedules, without a bug and with deliberate ones. A mutant is global to the process, so the tests of a program run
//! one after the other.

use std::sync::{Mutex, PoisonError};

use tandemfs_crash::Random;
use tandemfs_fs::mutant::{self, Mutant};
use tandemfs_schedules::{Explored, explore, rounds_or};

/// More schedules than any bug needs, by a factor of several.
const SCHEDULES_MAX: u64 = 3000;

/// What is played in each schedule; the error is what is wrong.
pub type Body = fn(&mut Random) -> Result<(), String>;

fn played(bug: Mutant, schedules: u64, name: &str, body: Body) -> Result<Explored, String> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    mutant::select(bug);
    let result = explore(name, schedules, body);
    mutant::select(Mutant::None);
    result
}

/// Asserts that so many schedules find nothing without a bug, or as many as `TANDEMFS_SCHEDULES` says.
pub fn is_sound(schedules: u64, name: &str, body: Body) {
    let explored = played(Mutant::None, rounds_or(schedules), name, body).unwrap_or_else(|what| panic!("{what}"));
    println!("{explored:?}");
}

/// Asserts that a schedule finds a bug.
pub fn is_caught(bug: Mutant, name: &str, body: Body) {
    match played(bug, SCHEDULES_MAX, name, body) {
        Err(what) => println!("{bug:?}: {}", what.lines().next().unwrap_or_default()),
        Ok(explored) => panic!("{bug:?} escaped: {explored:?}"),
    }
}

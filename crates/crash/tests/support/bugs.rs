//! Runs scenarios with deliberate bugs. The bug is one of the whole process, so scenarios run one at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tandemfs_crash::Setting;
use tandemfs_fs::mutant::{self, Mutant};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Until this is dropped, no other test of the program runs a scenario.
pub fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a scenario with a bug; a panic is a find as well. The caller is [`alone`].
pub fn run(bug: Mutant, scenario: impl Fn() -> Result<(), String>) -> Result<(), String> {
    mutant::select(bug);
    let result = catch_unwind(AssertUnwindSafe(scenario));
    mutant::select(Mutant::None);
    result.unwrap_or_else(|panic| Err(format!("panic: {}", panic.downcast_ref::<String>().map_or("?", String::as_str))))
}

/// Finds something where a bug is.
pub type Catcher = fn() -> Result<(), String>;

/// Asserts that no catcher finds anything where there is no bug. The caller is [`alone`].
pub fn find_nothing(catchers: &[Catcher]) {
    for (index, catcher) in catchers.iter().enumerate() {
        run(Mutant::None, catcher).unwrap_or_else(|what| panic!("catcher {index}: {what}"));
    }
}

/// Asserts that each catcher finds the bug.
pub fn is_caught(bug: Mutant, catchers: &[Catcher]) {
    let _alone = alone();
    for (index, catcher) in catchers.iter().enumerate() {
        match run(bug, catcher) {
            Err(what) => println!("{bug:?}: {}", what.lines().next().unwrap_or_default()),
            Ok(()) => panic!("{bug:?} escaped catcher {index}"),
        }
    }
}

/// Asserts that a scenario finds nothing in any of these settings.
pub fn sound(settings: &[Setting], scenario: impl Fn(&Setting) -> Result<(), String>) {
    let _alone = alone();
    for setting in settings {
        run(Mutant::None, || scenario(setting)).unwrap_or_else(|what| panic!("{setting:?}: {what}"));
    }
}

/// Asserts that a scenario finds the bug.
pub fn caught(bug: Mutant, setting: &Setting, scenario: impl Fn(&Setting) -> Result<(), String>) {
    let _alone = alone();
    match run(bug, || scenario(setting)) {
        Err(what) => println!("{bug:?}: {what}"),
        Ok(()) => panic!("{bug:?} escaped"),
    }
}

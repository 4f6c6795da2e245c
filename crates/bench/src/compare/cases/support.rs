//! Test support shared by cases: a stage for any directory, with a clock that counts its calls.

use crate::compare::case::{Case, Outcome, Stage, StageClock};
use crate::compare::command::find;
use crate::failure::{Failure, Result};

/// Counts the calls to a case's clock.
#[derive(Default)]
pub struct TestClock {
    /// Number of measured parts begun.
    pub begun: u32,
    /// Number of measured parts ended.
    pub ended: u32,
    /// Number of times that caches were dropped.
    pub cold: u32,
    /// Whether beginning a measured part fails.
    pub fails: bool,
}

impl StageClock for TestClock {
    fn make_cold(&mut self) -> Result<()> {
        self.cold += 1;
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        self.begun += 1;
        if self.fails { Err(Failure::new("it cannot begin")) } else { Ok(()) }
    }

    fn end(&mut self) -> Result<()> {
        self.ended += 1;
        Ok(())
    }
}

/// Runs each case once in its own directory, in memory, and gives what came of it to `check`. Says so and goes on if a program is not
/// installed.
pub fn run_all(cases: &[Case], scale: f64, check: impl Fn(&Case, Outcome, TestClock)) {
    for case in cases {
        if let Some(program) = case.programs.iter().find(|program| find(program).is_none()) {
            eprintln!("{program} is not installed: {} is not tested", case.name);
            continue;
        }
        for is_durable in [true, false].into_iter().filter(|is_durable| *is_durable || case.is_durable) {
            let [directory, scratch] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
            let (directory, scratch, mut clock) = (directory.path(), scratch.path(), TestClock::default());
            let mut stage = Stage { directory, scratch, library: None, seed: 7, scale, is_durable, clock: &mut clock };
            let outcome = (case.run)(&mut stage).unwrap_or_else(|failure| panic!("{}: {failure}", case.name));
            assert_eq!((clock.begun, clock.ended), (1, 1), "{}", case.name);
            check(case, outcome, clock);
        }
    }
}

//! Test support shared by cases: a stage for any directory, with a clock that counts its calls.

use crate::compare::case::{Case, Outcome, Stage, StageClock};
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

/// Runs a case once in its own directory, in memory.
pub fn run_once(case: &dyn Case, scale: f64) -> Result<(Outcome, TestClock)> {
    let (directory, scratch) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let mut clock = TestClock::default();
    let outcome =
        case.run(&mut Stage { directory: directory.path(), scratch: scratch.path(), library: None, seed: 7, scale, clock: &mut clock })?;
    Ok((outcome, clock))
}

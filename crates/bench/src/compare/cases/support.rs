//! What tests of cases share: a stage over any directory, with a clock that counts.

use crate::compare::case::{Case, Outcome, Stage, StageClock};
use crate::failure::{Failure, Result};

/// Counts what a case asks of its clock.
#[derive(Default)]
pub struct TestClock {
    /// Measured parts begun.
    pub begun: u32,
    /// Measured parts ended.
    pub ended: u32,
    /// Times that caches were dropped.
    pub cold: u32,
    /// Whether a measured part cannot begin.
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

/// Runs a case once in a directory of its own, in the tests' memory.
pub fn run_once(case: &dyn Case, scale: f64) -> Result<(Outcome, TestClock)> {
    let (directory, scratch) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let mut clock = TestClock::default();
    let outcome =
        case.run(&mut Stage { directory: directory.path(), scratch: scratch.path(), library: None, seed: 7, scale, clock: &mut clock })?;
    Ok((outcome, clock))
}

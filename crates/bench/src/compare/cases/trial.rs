//! A case on a plain directory, for tests: no file system is made, and being cold is only noted.

use std::cell::Cell;
use std::fs;

use tempfile::TempDir;

use crate::compare::case::{Case, Outcome, Stage, StageClock};
use crate::failure::{Failure, Result};

/// Directories of a trial, and what was asked of its clock.
pub struct Trial {
    place: TempDir,
    scale: f64,
    timed: Cell<u32>,
    cold: Cell<u32>,
}

impl Trial {
    /// Of a scale, with empty directories.
    pub fn new(scale: f64) -> Self {
        let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory");
        for name in ["directory", "scratch"] {
            fs::create_dir(place.path().join(name)).expect("a directory");
        }
        Self { place, scale, timed: Cell::default(), cold: Cell::default() }
    }

    /// Runs a case once.
    pub fn run(&self, case: &dyn Case) -> Result<Outcome> {
        let mut clock = TrialClock { trial: self, running: false };
        let (directory, scratch) = (self.place.path().join("directory"), self.place.path().join("scratch"));
        let mut stage =
            Stage { directory: &directory, scratch: &scratch, library: None, seed: 7, scale: self.scale, clock: &mut clock };
        case.run(&mut stage)
    }

    /// Measured parts so far.
    pub fn timed(&self) -> u32 {
        self.timed.get()
    }

    /// How often caches were made cold.
    pub fn cold(&self) -> u32 {
        self.cold.get()
    }
}

struct TrialClock<'t> {
    trial: &'t Trial,
    running: bool,
}

impl StageClock for TrialClock<'_> {
    fn make_cold(&mut self) -> Result<()> {
        if self.running {
            return Err(Failure::new("made cold in the measured part"));
        }
        self.trial.cold.set(self.trial.cold.get() + 1);
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.running, true) {
            return Err(Failure::new("begun twice"));
        }
        self.trial.timed.set(self.trial.timed.get() + 1);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.running, false) {
            true => Ok(()),
            false => Err(Failure::new("ended before it began")),
        }
    }
}

#[test]
#[ignore = "manual"]
fn manual() {
    let words: Vec<String> = std::env::var("CASES").expect("CASES").split(',').map(str::to_owned).collect();
    let scale: f64 = std::env::var("SCALE").expect("SCALE").parse().expect("number");
    let root = std::path::PathBuf::from(std::env::var("ROOT").expect("ROOT"));
    struct Clock(std::path::PathBuf, std::time::Instant, f64, f64, f64);
    fn cpu() -> f64 {
        let t = fs::read_to_string("/proc/stat").expect("stat");
        let v: Vec<f64> = t.lines().next().expect("line").split_whitespace().skip(1).map(|w| w.parse().expect("n")).collect();
        (v[0] + v[1] + v[2] + v[5] + v[6]) / 100.0
    }
    impl StageClock for Clock {
        fn make_cold(&mut self) -> Result<()> {
            if let Ok(script) = std::env::var("COLD") {
                assert!(std::process::Command::new("sh").args(["-c", &script]).status().expect("sh").success());
            } else {
                rustix::fs::sync();
                fs::write("/proc/sys/vm/drop_caches", "3").expect("dropped");
            }
            Ok(())
        }
        fn begin(&mut self) -> Result<()> {
            self.3 = cpu();
            self.1 = std::time::Instant::now();
            Ok(())
        }
        fn end(&mut self) -> Result<()> {
            self.2 = self.1.elapsed().as_secs_f64();
            self.4 = cpu() - self.3;
            Ok(())
        }
    }
    for case in crate::compare::cases::all() {
        if !words.iter().any(|word| case.name().starts_with(word)) {
            continue;
        }
        let scratch = tempfile::tempdir_in("/dev/shm").expect("scratch");
        let directory = root.join("work");
        fs::create_dir(&directory).expect("made");
        let start = std::time::Instant::now();
        let mut clock = Clock(root.clone(), std::time::Instant::now(), 0.0, 0.0, 0.0);
        let result = {
            let mut stage =
                Stage { directory: &directory, scratch: scratch.path(), library: None, seed: 7, scale, clock: &mut clock };
            case.run(&mut stage)
        };
        let all = start.elapsed().as_secs_f64();
        match result {
            Ok(outcome) => {
                let seconds = outcome.own_time.map_or(clock.2, |time| time.as_secs_f64());
                println!("{:24} {:12.1} {}/s  timed {:.3} s own {:.3} cpu {:.2} all {:.2}", case.name(), outcome.units / seconds, outcome.unit, clock.2, seconds, clock.4, all);
            }
            Err(failure) => println!("{:24} FAILED {failure}", case.name()),
        }
        fs::remove_dir_all(&directory).expect("removed");
    }
}

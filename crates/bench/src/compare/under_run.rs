//! Cases under `tandemfs run`, for the peers of the direct door.
//!
//! [URN1] Programs get the environment that `tandemfs run` gives to a shell, asked for anew after each mount. So its own start, 2 ms, is in no
//!       result.
//! [URN2] A case runs in a process of its own with that environment, also what it lays out and checks. The process that measures keeps the
//!       clock: it is told by a pipe when the measured part begins and ends, and when caches are to be cold. Where a case leaves the time to the
//!       clock, its own process takes it, so the pipe is in no result either.
//! [URN3] Where the door cannot be entered nothing is measured: `tandemfs run` would go on by the mount.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::case::{Case, Outcome, Stage, StageClock};
use super::cases::programs::{self, ENVIRONMENT};
use super::child::{self, Child, answer};
use super::command::tandemfs;
use crate::failure::{Failure, Result};
use crate::machine;

/// Time limit of a case's process.
const CASE_MAX: Duration = Duration::from_secs(3600);
const LIBRARY: &str = "libtandemfs_preload.so";

/// Puts the environment for programs on a mount into a scratch directory ([URN1]), with a copy of the library that other users can read.
///
/// # Errors
/// The door cannot be entered ([URN3]); the message is that of `tandemfs run`.
pub fn enter(mountpoint: &Path, scratch: &Path) -> Result<()> {
    let said = tandemfs().env_remove("LD_PRELOAD").args(["run", "--mount"]).arg(mountpoint).args(["--", "env"]).output()?;
    let environment = String::from_utf8_lossy(&said.stdout);
    let library = environment.lines().find_map(|line| line.strip_prefix("LD_PRELOAD="));
    let library = library.ok_or_else(|| {
        let errors = String::from_utf8_lossy(&said.stderr);
        Failure::new(errors.lines().last().unwrap_or("tandemfs run does not enter the direct door").trim_start_matches("tandemfs: "))
    })?;
    let copy = scratch.join(LIBRARY);
    // The loader takes these as separators.
    let name = copy.to_str().filter(|name| !name.contains([':', ' ']));
    let name =
        name.ok_or_else(|| Failure::new(format!("{}: no library can be loaded from there; name another --directory", copy.display())))?;
    // Behind a new mount the process of the case still runs with the copy.
    if !copy.exists() {
        fs::copy(library, &copy)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    }
    let ours = environment.lines().filter(|line| line.starts_with("TANDEMFS_RUN_"));
    let lines: Vec<&str> = ours.collect();
    Ok(fs::write(scratch.join(ENVIRONMENT), format!("LD_PRELOAD={name}\n{}\n", lines.join("\n")))?)
}

/// What the process of a case is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    case: String,
    directory: PathBuf,
    scratch: PathBuf,
    seed: u64,
    scale: f64,
}

/// What it says, a line each.
#[derive(Serialize, Deserialize)]
enum Said {
    MakeCold,
    Begin,
    End,
    Done(std::result::Result<Outcome, String>),
}

/// Runs a case in a process under `tandemfs run` ([URN2]).
///
/// # Errors
/// Those of the case, or a signal came.
pub fn run(case: &Case, stage: &mut Stage<'_>) -> Result<Outcome> {
    let order = Order {
        case: case.name.clone(),
        directory: stage.directory.to_owned(),
        scratch: stage.scratch.to_owned(),
        seed: stage.seed,
        scale: stage.scale,
    };
    let mut command = child::Order::UnderRun(order).command()?;
    let mut process = Child::start(command.envs(programs::environment(stage.scratch)), Some(Signal::TERM))?;
    stage.clock.runs_in(process.id());
    loop {
        if !programs::wait_for(process.answers(), CASE_MAX)? {
            return Err(Failure::new(format!("{} takes longer than {} minutes", case.name, CASE_MAX.as_secs() / 60)));
        }
        let done = match process.hear(CASE_MAX)? {
            Said::MakeCold => stage.clock.make_cold(),
            Said::Begin => stage.clock.begin(),
            Said::End => stage.clock.end(),
            Said::Done(result) => return result.map_err(Failure::new),
        };
        process.ask(&done.map_err(|failure| failure.to_string()))?;
    }
}

/// Runs the case of an order.
///
/// # Errors
/// Nobody listens; an error of the case is said by the pipe.
pub fn serve(order: &Order) -> Result<()> {
    machine::listen_for_signals()?;
    let cases = super::cases::all();
    let case = cases.iter().find(|case| case.name == order.case).ok_or_else(|| Failure::new("there is no such case"))?;
    let mut clock = RemoteClock::default();
    let Order { directory, scratch, seed, scale, .. } = order;
    let mut stage = Stage { directory, scratch, library: None, seed: *seed, scale: *scale, is_durable: true, clock: &mut clock };
    let result = (case.run)(&mut stage);
    let result = result.map(|outcome| Outcome { own_time: outcome.own_time.or(clock.took), ..outcome });
    answer(&Said::Done(result.map_err(|failure| failure.to_string())))
}

/// The clock in the process that measures.
#[derive(Default)]
struct RemoteClock {
    began: Option<Instant>,
    took: Option<Duration>,
}

fn ask(said: &Said) -> Result<()> {
    answer(said)?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    serde_json::from_str::<std::result::Result<(), String>>(&line)?.map_err(Failure::new)
}

impl StageClock for RemoteClock {
    fn make_cold(&mut self) -> Result<()> {
        ask(&Said::MakeCold)
    }

    fn begin(&mut self) -> Result<()> {
        ask(&Said::Begin)?;
        self.began = Some(Instant::now());
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.took = self.began.map(|began| began.elapsed());
        ask(&Said::End)
    }
}

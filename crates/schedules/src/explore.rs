//! Runs a test body under many schedules.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use tandemfs_crash::{Random, seed_or};

use crate::scheduler::Seeded;

/// Step limit, above the need of any workload here: a schedule that exceeds it does not terminate.
const STEPS_MAX: usize = 20_000_000;
/// The engine keeps pages of metadata on its stack.
const STACK_BYTES: usize = 1 << 20;

/// Statistics of an exploration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explored {
    /// Schedules.
    pub schedules: u64,
    /// The seed of the first; each further one is larger by one.
    pub first_seed: u64,
}

/// The schedules that `TANDEMFS_SCHEDULES` asks of each exploration, or `default`.
pub fn rounds_or(default: u64) -> u64 {
    std::env::var("TANDEMFS_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs `body` under `schedules` schedules, each with its own seed, which decides the schedule and what the body draws. The body is the
/// first thread of its schedule. `TANDEMFS_SEED` names the first seed.
///
/// # Errors
/// The error of the body, a panic or a deadlock, with the seed that repeats it.
pub fn explore(
    name: &str,
    schedules: u64,
    body: impl Fn(&mut Random) -> Result<(), String> + Send + Sync + 'static,
) -> Result<Explored, String> {
    let first_seed = seed_or(1);
    let body = Arc::new(body);
    for seed in first_seed..first_seed + schedules {
        let verdict: Arc<Mutex<Option<Result<(), String>>>> = Arc::default();
        let (said, run) = (verdict.clone(), body.clone());
        let mut config = Config::new();
        config.stack_size = STACK_BYTES;
        config.failure_persistence = FailurePersistence::None;
        config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
        config.silence_warnings = true;
        let runner = Runner::new(Seeded::new(seed), config);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            runner.run(move || {
                let result = run(&mut Random::new(seed ^ 0x5c4e_d01e));
                *said.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            })
        }));
        let result = match ended {
            Ok(_) => verdict.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_else(|| Err("it did not end".into())),
            Err(panic) => Err(format!("panic: {}", text_of(panic.as_ref()))),
        };
        result.map_err(|what| format!("{name}, TANDEMFS_SEED={seed} TANDEMFS_SCHEDULES=1: {what}"))?;
    }
    Ok(Explored { schedules, first_seed })
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?")
}

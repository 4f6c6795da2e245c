//! Keeps CPUs from halting during a measurement, on machines where a wake-up is slow.
//!
//! On some machines waking a halted virtual CPU takes 25 to 60 us, as long as a block command. Whether it happens depends on how long the
//! CPU was idle, so no fixed time could be subtracted as the detour. On such machines one process for each CPU spins at the lowest priority
//! (SCHED_IDLE) while the peers' drive is calibrated and while a single client uses it. The kernel option `idle=poll` has the same effect,
//! but needs a reboot.
//!
//! [AW1] Only where needed: the wake-up time is measured once per comparison. On a machine with wake-ups of 2 to 7 us the processes raised
//!       the detour of a block command from 5 to 14 us, and the shortest comparable block command from 50 to 90 us.
//! [AW2] They yield continuously. The drive's server polls and yields so that the loop device's thread can run; otherwise the server gets
//!       its CPU back a tick later (appends on ext4: 684 a second instead of 13,000).
//! [AW3] Not with several clients: a busy CPU does not pull waiting tasks from another CPU, which slowed all file systems (pgbench 4,050
//!       instead of 4,980 transactions a second on XFS, varmail 71,000 instead of 92,000 operations, oltp 88,000 instead of 164,000).
//! [AW4] Not with a FUSE daemon: one client and its daemon share a CPU, so there are no wake-ups across CPUs.
//!
//! [SD2]: super::same_drive

use std::hint::spin_loop;
use std::io::Read;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::{spawn, yield_now};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::child::{Child, Order};
use super::command::find;
use crate::failure::Result;
use crate::machine::{allowed_cpus, keep_on};

/// The program that sets the policy.
const CHRT: &str = "chrt";
/// Their own time counts as *nice* in `/proc/stat`, separate from all other work; that of the kernel for them does not.
const NICENESS: i32 = 19;
/// Number of timed wake-ups.
const WAKE_UPS: usize = 101;
/// Idle time before each wake-up: as long as a slow block command, so that the CPU halts.
const LEFT_ALONE: Duration = Duration::from_micros(300);
/// If wake-ups take longer, CPUs are kept awake ([AW1]): a quarter of the shortest compared block command.
const WAKE_UP_MAX: Duration = Duration::from_micros(10);

/// Keeps the CPUs from halting until dropped. Best effort: without `chrt` they halt.
pub struct Awake(Vec<Child>);

impl Awake {
    /// Starts a process for each CPU that this thread may use.
    pub fn new() -> Self {
        let Some(chrt) = find(CHRT) else { return Self(Vec::new()) };
        let start = |cpu: usize| {
            let order = Order::Awake(cpu).command().ok()?;
            let mut command = Command::new(&chrt);
            command.args(["--idle", "0"]).arg(order.get_program()).args(order.get_args());
            Child::start(&mut command, Some(Signal::KILL)).ok()
        };
        Self(allowed_cpus().into_iter().filter_map(start).collect())
    }

    /// The processes.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(Child::id)
    }
}

/// Median time from sending to an idle thread on another CPU until that thread runs. `None` if there is one CPU.
pub fn wake_up() -> Option<Duration> {
    let [first, second, ..] = allowed_cpus()[..] else { return None };
    let (sender, receiver) = channel::<Instant>();
    let sleeper = spawn(move || {
        keep_on(second);
        let mut took: Vec<Duration> = receiver.iter().map(|sent| sent.elapsed()).collect();
        took.sort();
        took.get(took.len() / 2).copied()
    });
    let waker = spawn(move || {
        keep_on(first);
        for _ in 0..WAKE_UPS {
            let since = Instant::now();
            while since.elapsed() < LEFT_ALONE {
                spin_loop();
            }
            let _nobody_sleeps = sender.send(Instant::now());
        }
    });
    waker.join().ok()?;
    sleeper.join().ok()?
}

/// Whether CPUs with this wake-up time must be kept awake ([AW1]).
pub fn is_needed(wake_up: Option<Duration>) -> bool {
    wake_up.is_some_and(|took| took > WAKE_UP_MAX)
}

/// Runs the process until the other end of its standard input is closed.
pub fn serve(cpu: usize) -> Result<()> {
    keep_on(cpu);
    let _best_effort = rustix::process::setpriority_process(None, NICENESS);
    let ended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ended);
    spawn(move || {
        let _until_the_end = std::io::stdin().read_to_end(&mut Vec::new());
        seen.store(true, Relaxed);
    });
    while !ended.load(Relaxed) {
        yield_now(); // [AW2]
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_kept_awake_where_waking_one_takes_long() {
        assert!(!is_needed(None) && !is_needed(Some(Duration::from_micros(7))) && is_needed(Some(Duration::from_micros(25))));
        assert_eq!(wake_up().is_some(), allowed_cpus().len() > 1);
    }
}

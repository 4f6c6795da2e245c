//! CPUs that do not halt while something is measured.
//!
//! A halted virtual CPU takes 25 to 50 us to be woken, a deep-sleeping real one some microseconds: as much as a block command, and it happens
//! or not by how long somebody waited before, so that no time could be taken back from the detour ([SD2]). So on the same drive
//! one process for each CPU computes at the lowest priority (SCHED_IDLE), which leaves the CPU at once to whoever has work. Everybody is
//! measured so, with one client. On the free drive CPUs do what the machine lets them do.
//!
//! [A1] Beside the server of the peers' drive it yields all the time: the server polls and yields, so that the loop device's thread can run, and
//!      else gets its CPU back a tick later (appends on ext4 684 a second instead of 13,000).
//! [A2] Beside a daemon of FUSE it never does: the scheduler (EEVDF) would let it have a turn between a client's sleep and its daemon's start,
//!      4 us a request, whenever the daemon takes longer than the client (strict overwrites 83,000 a second instead of 124,000).
//! [A3] With several clients nothing keeps them awake: a CPU that has something to do takes no waiting task from another one, which made
//!      everybody slower (pgbench 4,050 instead of 4,980 transactions a second on XFS, 5,850 instead of 10,870 in strict mode; varmail 71,000
//!      instead of 92,000 operations on XFS, 107,000 and 105,000 in strict mode; oltp 88,000 instead of 164,000, 67,000 instead of 227,000).
//!      `idle=poll` of the kernel would keep both, but a boot decides that.
//!
//! [SD2]: super::same_drive

use std::hint::spin_loop;
use std::io::Read;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::yield_now;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

use super::command::find;
use crate::failure::Result;

/// The program that sets the policy.
const CHRT: &str = "chrt";
/// Their time counts as *nice* in `/proc/stat`, apart from everybody's work.
const NICENESS: i32 = 19;

/// Keeps the CPUs awake until it is dropped. Best effort: without `chrt` they halt.
pub struct Awake(Vec<(Child, Option<ChildStdin>)>);

impl Awake {
    /// For what uses the server of the peers' drive ([A1]).
    pub fn beside_server() -> Self {
        Self::new(true)
    }

    /// For what does not ([A2]).
    pub fn beside_daemon() -> Self {
        Self::new(false)
    }

    /// Starts a process for each CPU that this thread may use.
    fn new(yields: bool) -> Self {
        let Some(chrt) = find(CHRT) else { return Self(Vec::new()) };
        let start = |cpu: usize| {
            let order = json!({ "awake": cpu, "yields": yields }).to_string();
            let mut command = Command::new(&chrt);
            command.args(["--idle", "0"]).arg(std::env::current_exe().ok()?).args(["bench", "--child", &order]);
            let mut process = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().ok()?;
            let held = process.stdin.take();
            Some((process, held))
        };
        let allowed = sched_getaffinity(None).unwrap_or_default();
        // A test's program knows no orders.
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu) && !cfg!(test));
        Self(cpus.filter_map(start).collect())
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for (process, held) in &mut self.0 {
            *held = None;
            drop(process.kill());
            drop(process.wait());
        }
    }
}

/// The order of `--child` for such a process: its CPU, and whether it yields.
pub fn order(text: &str) -> Option<(usize, bool)> {
    let order: Value = serde_json::from_str(text).ok()?;
    let cpu = order["awake"].as_u64().and_then(|cpu| usize::try_from(cpu).ok()).filter(|cpu| *cpu < CpuSet::MAX_CPU)?;
    Some((cpu, order["yields"].as_bool()?))
}

/// The process: until the other end of its standard input is gone.
pub fn serve(cpu: usize, yields: bool) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _best_effort = (sched_setaffinity(None, &set), rustix::process::nice(NICENESS));
    let ended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ended);
    std::thread::spawn(move || {
        let _until_the_end = std::io::stdin().read_to_end(&mut Vec::new());
        seen.store(true, Relaxed);
    });
    while !ended.load(Relaxed) {
        if yields { yield_now() } else { spin_loop() }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_orders_are_taken() {
        assert_eq!(order(r#"{"awake":1,"yields":true}"#), Some((1, true)));
        for other in ["", r#"{"awake":4096000,"yields":true}"#, r#"{"null_file_system":"m"}"#, r#"{"awake":1}"#] {
            assert_eq!(order(other), None, "{other}");
        }
    }
}

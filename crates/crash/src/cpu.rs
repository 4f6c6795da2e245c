//! Pins threads: a thread's CPU selects its journal ring and its pools of space, so a run is repeatable only if its thread stays on one
//! CPU.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Pins the calling thread to a CPU. Threads are spread over the CPUs in the order of their calls.
///
/// # Errors
/// The error of the system call.
pub fn stay_on_one_cpu() -> Result<(), String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static IS_PINNED: Cell<bool> = const { Cell::new(false) });
    if IS_PINNED.get() {
        return Ok(());
    }
    let what = |error| format!("binding a thread to a CPU: {error}");
    let allowed = rustix::thread::sched_getaffinity(None).map_err(what)?;
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut one = rustix::thread::CpuSet::new();
    one.set(cpus[NEXT.fetch_add(1, Relaxed) % cpus.len()]);
    rustix::thread::sched_setaffinity(None, &one).map_err(what)?;
    IS_PINNED.set(true);
    Ok(())
}

//! Facts about the machine (CPU, memory, load), CPU pinning and signals.

use std::fs;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use procfs::process::Process;
use procfs::{CpuInfo, Current, LoadAverage, Meminfo};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::failure::{Failure, Result};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// After this call SIGINT and SIGTERM make the next [`check`] fail; they no longer end the process before it has cleaned up.
pub fn listen_for_signals() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(())
}

/// Fails after a SIGINT or SIGTERM.
pub fn check() -> Result<()> {
    match INTERRUPTED.get() {
        Some(flag) if flag.load(Relaxed) => Err(Failure::new("interrupted; what was made for the measurement is removed")),
        _ => Ok(()),
    }
}

/// Looks every few milliseconds, for so long, whether something has come about. Returns whether it has.
pub fn comes_about(within: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > within {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Facts of the machine that help to read the results: name and value.
pub fn facts() -> Vec<(&'static str, String)> {
    let cpu = CpuInfo::current().ok();
    let flags = cpu.as_ref().and_then(|cpu| cpu.flags(0)).unwrap_or_default();
    let has = |name: &str| flags.contains(&name);
    let flush = if has("clwb") {
        "clwb"
    } else if has("clflushopt") {
        "clflushopt"
    } else {
        "clflush"
    };
    let read = |file: &str| fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default();
    vec![
        ("cpu", cpu.as_ref().and_then(|cpu| cpu.model_name(0)).unwrap_or(std::env::consts::ARCH).to_owned()),
        ("cpus", std::thread::available_parallelism().map_or(1, usize::from).to_string()),
        ("virtual", if has("hypervisor") { "yes" } else { "no" }.to_owned()),
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("memory", Meminfo::current().map_or_else(|_| String::new(), |memory| format!("{} kB", memory.mem_total >> 10))),
        ("line write-back", flush.to_owned()),
        ("clock", read("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        ("fuse over io_uring", if read("/sys/module/fuse/parameters/enable_uring") == "Y" { "allowed" } else { "off" }.to_owned()),
        ("load", format!("{:.2}", load())),
    ]
}

/// Load average of the last minute.
pub fn load() -> f64 {
    LoadAverage::current().map_or(0.0, |load| load.one.into())
}

/// `MemAvailable` of the machine, in bytes.
pub fn available_memory_bytes() -> u64 {
    Meminfo::current().ok().and_then(|memory| memory.mem_available).unwrap_or(u64::MAX)
}

/// CPUs that the calling thread may use, in ascending order; empty if the affinity is unknown.
pub fn allowed_cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// Pins the calling thread to a CPU. Best effort.
pub fn keep_on(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _best_effort = sched_setaffinity(None, &set);
}

/// Pins the calling thread to the last CPU until dropped; threads that it starts meanwhile inherit this. Best effort.
pub struct Pinned(Option<CpuSet>);

impl Pinned {
    /// Pins the calling thread.
    pub fn new() -> Self {
        let before = sched_getaffinity(None).ok();
        if let Some(last) = allowed_cpus().last() {
            keep_on(*last);
        }
        Self(before)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _best_effort = sched_setaffinity(None, before);
        }
    }
}

/// Private host memory of this process: resident memory without shared file mappings (the mapped image), in bytes.
pub fn own_memory_bytes() -> u64 {
    let pages = Process::myself().and_then(|process| process.statm()).map_or(0, |memory| memory.resident.saturating_sub(memory.shared));
    pages * rustix::param::page_size() as u64
}

//! The machine's possible CPUs, and those that this process may use.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that the kernel has queues for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cpus {
    /// The number of possible CPUs; the kernel has one queue for each.
    pub(crate) possible: usize,
    /// The CPUs that this process may run on.
    pub(crate) allowed: Vec<usize>,
}

pub(crate) fn cpus() -> io::Result<Cpus> {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let possible = count(&text).ok_or_else(|| io::Error::other(format!("no list of CPUs: {text:?}")))?;
    let allowed = sched_getaffinity(None)?;
    let allowed = (0..possible.min(CpuSet::MAX_CPU)).filter(|&cpu| allowed.is_set(cpu)).collect();
    Ok(Cpus { possible, allowed })
}

/// The number of CPUs in a list such as `0-3,8`.
fn count(text: &str) -> Option<usize> {
    let mut count = 0_usize;
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Binds this thread to a CPU. If that fails, the thread serves the CPU's queue from another CPU.
pub(crate) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(cpu, %error, "a thread is not kept on its CPU");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!([count("0\n"), count("0-3\n"), count("0-1,4,6-7")], [Some(1), Some(4), Some(5)]);
        for wrong in ["", "a", "3-1", "0-", "0-18446744073709551615"] {
            assert_eq!(count(wrong), None, "{wrong}");
        }
        let cpus = cpus().expect("this machine's");
        assert!(!cpus.allowed.is_empty() && cpus.allowed.len() <= cpus.possible);
    }
}

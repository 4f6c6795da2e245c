//! What this process was started with and a program that it runs is to have as well: ignored signals, the limit of open descriptors, and how many filters its
//! system calls go through.
//!
//! Rust ignores SIGPIPE before `main`, so what was inherited is read before that, and given to a program again behind what the standard library sets.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

static IGNORES_BROKEN_PIPES: AtomicBool = AtomicBool::new(false);

/// Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

extern "C" fn at_start() {
    // SAFETY: all-zero is a value of this plain structure.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills in the structure.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) };
    IGNORES_BROKEN_PIPES.store(asked == 0 && action.sa_sigaction == libc::SIG_IGN, Relaxed);
}

/// The program ignores SIGPIPE if this process was told to.
pub fn keep_broken_pipes(command: &mut Command) {
    if IGNORES_BROKEN_PIPES.load(Relaxed) {
        let ignore = || {
            // SAFETY: a plain call, which also a forked child may make.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: it makes that call alone.
        unsafe { command.pre_exec(ignore) };
    }
}

/// The limit of open descriptors that this process was started with.
static DESCRIPTORS: OnceLock<Rlimit> = OnceLock::new();

/// As many descriptors as the system lets this process have: a daemon has one or more for each of its clients.
pub fn raise_descriptors() {
    let given = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: given.maximum, maximum: given.maximum };
    if given.current != given.maximum && setrlimit(Resource::Nofile, raised).is_ok() {
        let _known_already = DESCRIPTORS.set(given);
    }
}

/// The program has the limit that this process was started with: some take a higher one for what they may clear, or call select(2).
pub fn keep_descriptors(command: &mut Command) {
    if let Some(given) = DESCRIPTORS.get() {
        let give_back = || Ok(setrlimit(Resource::Nofile, *given)?);
        // SAFETY: it makes a system call alone, which a forked child may make.
        unsafe { command.pre_exec(give_back) };
    }
}

/// The value of a line of `/proc/self/status`.
fn status(name: &str) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(|value| value.trim().to_owned())
}

/// Whether a signal is ignored now, which nobody has changed but for SIGPIPE.
pub fn is_ignored(signal: c_int) -> bool {
    let ignored = status("SigIgn").and_then(|ignored| u64::from_str_radix(&ignored, 16).ok()).unwrap_or(0);
    ignored >> (signal - 1) & 1 == 1
}

/// Filters of this process's system calls (seccomp); none if the kernel does not say.
pub fn filters() -> Option<u32> {
    status("Seccomp_filters")?.parse().ok()
}

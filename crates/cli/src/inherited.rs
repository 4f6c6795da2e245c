//! What this process was started with and a program that it runs is to have as well: ignored signals, and how many filters its system calls go through.
//!
//! Rust ignores SIGPIPE before `main`, so what was inherited is read before that, and given to a program again behind what the standard library sets.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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

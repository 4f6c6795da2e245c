//! Space of removed files that the kernel has closed but not yet forgotten.
//!
//! After `unlink` and the last `close` have returned, a program expects the space to be free. The file system frees it when it serves the
//! kernel's FORGET, which comes a moment later.
//!
//! [RTS1] An operation that finds no space is retried after each FORGET, as long as removed files are left. The kernel is asked which of
//!        them are closed: if it no longer has a file in memory, its FORGET is waited for.
//! [RTS2] If the kernel still has a removed file in memory, the file is open or its RELEASE is under way: it is waited for once, and
//!        briefly.
//! [RTS3] The wait is bounded, and no thread that serves requests waits.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, OnBehalf, Result};
use tandemfs_wire::Reply;

use crate::door::Door;

/// Longest wait for FORGETs.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A queued RELEASE is served within this time ([RTS2]).
const RELEASES_WITHIN: Duration = Duration::from_millis(50);

/// Counts served FORGETs, for operations that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Forgets {
    running: AtomicUsize,
    waiting: AtomicUsize,
    served: Mutex<u64>,
    changed: Condvar,
    /// Removed files that stayed open during an earlier wait ([RTS2]).
    open: Mutex<HashSet<InodeNumber>>,
}

impl Forgets {
    /// Serves one FORGET.
    pub(crate) fn serve(&self, forget: impl FnOnce()) {
        self.running.fetch_add(1, SeqCst);
        forget();
        self.running.fetch_sub(1, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            *self.served.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            self.changed.notify_all();
        }
    }

    /// Waits until a FORGET was served since `seen`; false if `until` came first.
    fn wait(&self, seen: u64, until: Instant) -> bool {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.saturating_duration_since(Instant::now());
        let (served, _) = self.changed.wait_timeout_while(served, left, |served| *served == seen).unwrap_or_else(PoisonError::into_inner);
        *served != seen
    }

    fn seen(&self) -> u64 {
        *self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Door {
    /// Finishes an operation with its first result. If that is "no space" and space may be returned, retries it on another thread and
    /// finishes with the later result ([RTS1]). `again` makes the operation to retry.
    pub(crate) fn or_with_returned_space<T, A>(
        self: &Arc<Self>,
        first: Result<T>,
        again: impl FnOnce() -> A,
        reply: Reply<'_>,
        finish: impl FnOnce(&Arc<Self>, Result<T>, Reply<'_>) + Send + 'static,
    ) where
        T: Send + 'static,
        A: Fn(&Self) -> Result<T> + Send + 'static,
    {
        if !matches!(first, Err(Error::NoSpace { .. })) || !self.may_return() {
            return finish(self, first, reply);
        }
        match reply.try_park() {
            Err(reply) => finish(self, first, reply),
            Ok(parked) => {
                let (door, caller, again) = (Arc::clone(self), OnBehalf::current(), again());
                self.space.push(move || {
                    let result = caller.run(|| door.try_while_space_returns(again));
                    parked.finish(|reply| finish(&door, result, reply));
                });
            }
        }
    }

    fn may_return(&self) -> bool {
        self.forgets.running.load(SeqCst) > 0 || self.fs.space_may_return()
    }

    /// Runs on the thread for space ([RTS3]).
    fn try_while_space_returns<T>(&self, operation: impl Fn(&Door) -> Result<T>) -> Result<T> {
        let started = Instant::now();
        self.forgets.waiting.fetch_add(1, SeqCst);
        let result = loop {
            let seen = self.forgets.seen();
            // Read before the operation: if a file is forgotten between the two, the operation finds its space.
            let wait = self.wait_for_forgets();
            let result = operation(self);
            let Some(wait) = wait.filter(|_| matches!(result, Err(Error::NoSpace { .. }))) else { break result };
            if !self.forgets.wait(seen, started + wait) {
                self.forgets.open.lock().unwrap_or_else(PoisonError::into_inner).extend(self.fs.inodes_without_names());
                break result;
            }
        };
        self.forgets.waiting.fetch_sub(1, SeqCst);
        result
    }

    /// How long to wait for the next FORGET that frees space; `None` if none is expected.
    fn wait_for_forgets(&self) -> Option<Duration> {
        let files = self.fs.inodes_without_names();
        if self.forgets.running.load(SeqCst) > 0 || files.iter().any(|file| !self.kernel.knows(*file)) {
            return Some(WAIT_MAX); // [RTS1]
        }
        let mut open = self.forgets.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|file| files.contains(file));
        files.iter().any(|file| !open.contains(file)).then_some(RELEASES_WITHIN) // [RTS2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_woken_by_the_next_forget_and_not_by_an_earlier_one() {
        let forgets = Forgets::default();
        forgets.waiting.fetch_add(1, SeqCst);
        forgets.serve(|| {});
        let seen = forgets.seen();
        assert!(!forgets.wait(seen, Instant::now() + Duration::from_millis(10)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| forgets.wait(seen, Instant::now() + Duration::from_secs(60)));
            forgets.serve(|| {});
            assert!(waits.join().expect("no panic"));
        });
    }
}

//! Space of removed files that the kernel has closed but not yet forgotten.
//!
//! After `unlink` and the last `close` have returned, a program expects the space to be free. The file system frees it when it serves the
//! kernel's FORGET, which comes a moment later.
//!
//! [RTS1] An operation that finds no space is retried after each FORGET, as long as removed files are left. The kernel is asked which of
//!        them are closed: if it no longer has a file in memory, its FORGET is waited for.
//! [RTS2] If the kernel still has a removed file in memory, the file is open or its RELEASE is under way: it is waited for once, and
//!        briefly.
//! [RTS3] The wait is bounded, and no thread that serves requests waits, but for [RTS5].
//! [RTS4] A removed file that the kernel does not have, and of which no FORGET came for as long as an operation waits, is held by somebody else, as a client
//!        of the direct door. It is waited for once.
//! [RTS5] Where no more replies can be parked ([LT3] of `later.rs`), a WRITE from the kernel's cache waits on the thread that serves it: an error would
//!        take pages that were acknowledged.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;
use tandemfs_fs::{Error, OnBehalf, Result};
use tandemfs_wire::Reply;

use crate::door::Door;
use crate::mutant::{self, Mutant};

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
    in_vain: Mutex<InVain>,
}

/// Removed files that an operation has waited for in vain.
#[derive(Debug, Default)]
struct InVain {
    /// They stayed open ([RTS2]).
    open: HashSet<InodeNumber>,
    /// The kernel did not have them ([RTS4]).
    elsewhere: HashSet<InodeNumber>,
}

impl InVain {
    /// How long to wait for the next FORGET that frees one of the removed files; `None` if none is expected. `absent` are those that the kernel does not have.
    fn wait(&mut self, files: &[InodeNumber], absent: &[InodeNumber], is_running: bool) -> Option<Duration> {
        self.open.retain(|file| files.contains(file));
        self.elsewhere.retain(|file| files.contains(file));
        let is_elsewhere = |file: &InodeNumber| self.elsewhere.contains(file);
        if is_running || absent.iter().any(|file| !is_elsewhere(file)) {
            return Some(WAIT_MAX); // [RTS1]
        }
        files.iter().any(|file| !self.open.contains(file) && !is_elsewhere(file)).then_some(RELEASES_WITHIN) // [RTS2]
    }

    /// Nothing has come of a wait that began with some of them absent.
    fn note(&mut self, files: &[InodeNumber], absent: &[InodeNumber], absent_at_first: &[InodeNumber]) {
        self.open.extend(files);
        if !mutant::on(Mutant::AbsentAwaitedEachTime) {
            self.elsewhere.extend(absent.iter().filter(|file| absent_at_first.contains(file)));
        }
    }
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
        self.or_with_returned(first, again, reply, false, finish);
    }

    /// The same for a WRITE from the kernel's cache ([RTS5]).
    pub(crate) fn or_with_returned_space_in_any_case<T, A>(
        self: &Arc<Self>,
        first: Result<T>,
        again: impl FnOnce() -> A,
        reply: Reply<'_>,
        finish: impl FnOnce(&Arc<Self>, Result<T>, Reply<'_>) + Send + 'static,
    ) where
        T: Send + 'static,
        A: Fn(&Self) -> Result<T> + Send + 'static,
    {
        self.or_with_returned(first, again, reply, true, finish);
    }

    fn or_with_returned<T, A>(
        self: &Arc<Self>,
        first: Result<T>,
        again: impl FnOnce() -> A,
        reply: Reply<'_>,
        waits: bool,
        finish: impl FnOnce(&Arc<Self>, Result<T>, Reply<'_>) + Send + 'static,
    ) where
        T: Send + 'static,
        A: Fn(&Self) -> Result<T> + Send + 'static,
    {
        if !matches!(first, Err(Error::NoSpace { .. })) || !self.may_return() {
            return finish(self, first, reply);
        }
        let (door, caller) = (Arc::clone(self), OnBehalf::current());
        match reply.try_park() {
            Err(reply) if waits => {
                let again = again();
                let result = self.space.run_and_wait(WAIT_MAX, move || caller.run(|| door.try_while_space_returns(again)));
                finish(self, result.unwrap_or(first), reply);
            }
            Err(reply) => finish(self, first, reply),
            Ok(parked) => {
                let again = again();
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
        let mut absent_at_first = None;
        self.forgets.waiting.fetch_add(1, SeqCst);
        let result = loop {
            let seen = self.forgets.seen();
            // Read before the operation: if a file is forgotten between the two, the operation finds its space.
            let (files, absent) = self.removed();
            let is_running = self.forgets.running.load(SeqCst) > 0;
            let wait = self.in_vain().wait(&files, &absent, is_running);
            let at_first = absent_at_first.get_or_insert(absent);
            let result = operation(self);
            let Some(wait) = wait.filter(|_| matches!(result, Err(Error::NoSpace { .. }))) else { break result };
            if !self.forgets.wait(seen, started + wait) {
                let (files, absent) = self.removed();
                self.in_vain().note(&files, if wait == WAIT_MAX { &absent } else { &[] }, at_first);
                break result;
            }
        };
        self.forgets.waiting.fetch_sub(1, SeqCst);
        result
    }

    /// Removed files that somebody has, and those of them that the kernel does not have.
    fn removed(&self) -> (Vec<InodeNumber>, Vec<InodeNumber>) {
        let files = self.fs.inodes_without_names();
        let absent = files.iter().copied().filter(|file| !self.kernel.knows(*file)).collect();
        (files, absent)
    }

    fn in_vain(&self) -> MutexGuard<'_, InVain> {
        self.forgets.in_vain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::is_caught;

    /// A file of a client of the direct door, one that is open, and one whose FORGET is under way.
    const ELSEWHERE: InodeNumber = InodeNumber::new(7);
    const OPEN: InodeNumber = InodeNumber::new(8);
    const CLOSED: InodeNumber = InodeNumber::new(9);

    /// [RTS4]
    fn each_file_is_waited_for_once() {
        let mut in_vain = InVain::default();
        assert_eq!(in_vain.wait(&[ELSEWHERE], &[ELSEWHERE], false), Some(WAIT_MAX));
        in_vain.note(&[ELSEWHERE], &[ELSEWHERE], &[ELSEWHERE]);
        assert_eq!(in_vain.wait(&[ELSEWHERE], &[ELSEWHERE], false), None);
        assert_eq!(in_vain.wait(&[ELSEWHERE, OPEN], &[ELSEWHERE], false), Some(RELEASES_WITHIN));
        in_vain.note(&[ELSEWHERE, OPEN], &[], &[ELSEWHERE]);
        assert_eq!(in_vain.wait(&[ELSEWHERE, OPEN], &[ELSEWHERE], false), None);
        assert_eq!(in_vain.wait(&[ELSEWHERE, OPEN], &[ELSEWHERE, OPEN], false), Some(WAIT_MAX), "it was closed since");
        // One that was closed while another was waited for has a wait of its own.
        in_vain.note(&[ELSEWHERE, CLOSED], &[ELSEWHERE, CLOSED], &[ELSEWHERE]);
        assert_eq!(in_vain.wait(&[ELSEWHERE, CLOSED], &[ELSEWHERE, CLOSED], false), Some(WAIT_MAX));
        assert_eq!(in_vain.wait(&[], &[], false), None);
        assert_eq!(in_vain.wait(&[ELSEWHERE], &[ELSEWHERE], false), Some(WAIT_MAX), "another file of the number");
    }

    #[test]
    fn waits_and_their_bug() {
        is_caught(Mutant::AbsentAwaitedEachTime, each_file_is_waited_for_once);
    }

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

//! Work that begins at once in a thread of its own, beside work that may be stuck ([OT3] of `overtaken.rs`).
//!
//! [AO1] A job waits for no other: it gets a thread that is idle, or a new one. One idle thread is kept, from the mount on. Where no thread can be
//!       started, the job is the next one of whichever thread is idle first, so it is behind no queue in which every job waits for the one before it
//!       ([LT5] of `later.rs`).
//! [AO2] When it is stopped, it takes no more jobs, and returns when all have ended: nothing changes the file system behind the end of the session.
//!       It is stopped when the connection is gone, so what a job waits for in the kernel comes to an end.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::mutant::{self, Mutant};

type Job = Box<dyn FnOnce() + Send>;

/// Threads, one of which is idle or will be. Dropping it ends them without waiting.
#[derive(Debug)]
pub(crate) struct AtOnce(Arc<Pool>);

#[derive(Debug, Default)]
struct Pool {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job, also those that were woken for one and have not taken it yet.
    idle: usize,
    is_stopped: bool,
    /// Callers of `stop` that wait.
    stopping: usize,
    #[cfg(test)]
    starts_none: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("State").field("jobs", &self.jobs.len()).field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl AtOnce {
    /// Starts the thread that is kept.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        let pool = Arc::<Pool>::default();
        pool.start_thread(&mut pool.lock())?;
        Ok(Self(pool))
    }

    /// Runs a job ([AO1]). False after [`AtOnce::stop`]: then it is dropped, and with it the reply that it holds.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.lock();
        if state.is_stopped {
            return false;
        }
        state.jobs.push_back(Box::new(job));
        if state.jobs.len() > state.idle
            && let Err(error) = self.0.start_thread(&mut state)
        {
            tracing::warn!("no thread for work on the kernel's pages, so it waits for one: {error}");
        }
        drop(state);
        self.0.changed.notify_all();
        true
    }

    /// Accepts no more jobs, without waiting for those that were accepted.
    pub(crate) fn close(&self) {
        self.0.lock().is_stopped = true;
        self.0.changed.notify_all();
    }

    /// Accepts no more jobs, and waits for those that were accepted ([AO2]).
    pub(crate) fn stop(&self) {
        self.close();
        if mutant::on(Mutant::JobsOutliveTheEnd) {
            return;
        }
        let mut state = self.0.lock();
        state.stopping += 1;
        state = self.0.changed.wait_while(state, |state| state.threads > 0).unwrap_or_else(PoisonError::into_inner);
        state.stopping -= 1;
    }
}

impl Drop for AtOnce {
    fn drop(&mut self) {
        self.close();
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        #[cfg(test)]
        if state.starts_none {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (pool, is_kept) = (Arc::clone(self), !mutant::on(Mutant::NoThreadKept));
        std::thread::Builder::new().name("drop-pages".into()).spawn(move || pool.work(is_kept))?;
        state.threads += 1;
        Ok(())
    }

    /// What a thread does: jobs, as long as there are any or no other thread is idle.
    fn work(&self, is_kept: bool) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                let _panicked = catch_unwind(AssertUnwindSafe(job)); // The thread is counted.
                state = self.lock();
            } else if state.is_stopped || state.idle > 0 || !is_kept {
                state.threads -= 1;
                return self.changed.notify_all();
            } else {
                state.idle += 1;
                state = self
                    .changed
                    .wait_while(state, |state| state.jobs.is_empty() && !state.is_stopped)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::ThreadId;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::mutant::is_caught;

    fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not come about");
            std::thread::yield_now();
        }
    }

    /// Idle threads, and all.
    fn threads(at_once: &AtOnce) -> (usize, usize) {
        let state = at_once.0.lock();
        (state.idle, state.threads)
    }

    fn ran_in(at_once: &AtOnce) -> ThreadId {
        let (sender, receiver) = channel();
        assert!(at_once.run(move || sender.send(std::thread::current().id()).expect("somebody listens")));
        receiver.recv().expect("it runs")
    }

    /// A job that runs until what is returned is dropped.
    fn stuck(at_once: &AtOnce) -> Sender<()> {
        let (release, stuck) = channel();
        let (begins, begun) = channel();
        assert!(at_once.run(move || {
            begins.send(()).expect("somebody listens");
            assert!(stuck.recv().is_err());
        }));
        begun.recv().expect("it runs");
        release
    }

    #[test]
    fn work_begins_beside_one_that_is_stuck() {
        let at_once = AtOnce::start().expect("a thread");
        let first = stuck(&at_once);
        let second = stuck(&at_once);
        ran_in(&at_once);
        drop((first, second));
    }

    #[test]
    fn one_idle_thread_is_kept_and_ends_with_its_owner() {
        let at_once = AtOnce::start().expect("a thread");
        eventually("an idle thread", || threads(&at_once) == (1, 1));
        let first = ran_in(&at_once);
        eventually("an idle thread", || threads(&at_once) == (1, 1));
        assert_eq!(ran_in(&at_once), first);
        drop((stuck(&at_once), stuck(&at_once)));
        eventually("the end of those that are too many", || threads(&at_once) == (1, 1));
        let kept = Arc::downgrade(&at_once.0);
        drop(at_once);
        eventually("its end", || kept.strong_count() == 0);
    }

    fn a_thread_is_there_where_none_can_be_started() {
        let at_once = AtOnce::start().expect("a thread");
        at_once.0.lock().starts_none = true;
        eventually("its start", || matches!(threads(&at_once), (1, _) | (_, 0)));
        assert_eq!(threads(&at_once).1, 1);
        let release = stuck(&at_once);
        let (sender, receiver) = channel();
        assert!(at_once.run(move || sender.send(()).expect("somebody listens")));
        assert_eq!(at_once.0.lock().jobs.len(), 1, "it waits for a thread");
        drop(release);
        receiver.recv().expect("it runs");
    }

    fn nothing_runs_behind_the_end() {
        let at_once = Arc::new(AtOnce::start().expect("a thread"));
        let weak = Arc::downgrade(&at_once.0);
        let (begins, begun) = channel();
        assert!(at_once.run(move || {
            begins.send(()).expect("somebody listens");
            // It ends when it is waited for, or when nobody is there who could.
            eventually("a stop", || weak.upgrade().is_none_or(|pool| pool.lock().stopping > 0 || Arc::strong_count(&pool) == 2));
        }));
        begun.recv().expect("it runs");
        at_once.stop();
        assert_eq!(threads(&at_once).1, 0);
        assert!(!at_once.run(|| panic!("nothing runs behind the end")));
    }

    #[test]
    fn jobs_that_have_begun_or_wait_run_before_the_end() {
        let at_once = AtOnce::start().expect("a thread");
        let (sender, receiver) = channel();
        let release = stuck(&at_once);
        at_once.0.lock().starts_none = true;
        for number in 0..10 {
            let sender = sender.clone();
            assert!(at_once.run(move || sender.send(number).expect("somebody listens")));
        }
        drop((release, sender));
        at_once.stop();
        assert_eq!(receiver.iter().sum::<i32>(), 45);
    }

    #[test]
    fn a_job_that_panics_is_an_end_of_it_alone() {
        let at_once = AtOnce::start().expect("a thread");
        assert!(at_once.run(|| panic!("as it should")));
        at_once.stop();
        assert_eq!(at_once.0.lock().threads, 0);
    }

    #[test]
    fn threads_and_their_bugs() {
        is_caught(Mutant::NoThreadKept, a_thread_is_there_where_none_can_be_started);
        is_caught(Mutant::JobsOutliveTheEnd, nothing_runs_behind_the_end);
    }
}

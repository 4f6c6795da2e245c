//! Work for which a thread that serves requests must not wait: requests to the kernel to drop or change pages, and operations that depend
//! on requests still to come.
//!
//! [LT1] The kernel locks a page during a READ or WRITE of it. A notification that needs the page waits for that lock, and so for another
//!       request of this mount. It is sent by a thread that serves no requests, so that a thread remains to serve that request.
//! [LT2] One thread runs all jobs that concern pages, in order: a job begins when all earlier ones have ended.
//! [LT3] A request whose reply has to wait is parked, so that it blocks no thread. Over io_uring a parked request occupies an entry of the
//!       kernel's queue. Some entries are reserved for the requests that it waits for ([UR6] of `wire/src/ring.rs`). If only those are
//!       left, the request is not parked and continues without waiting.
//! [LT6] Who waits for a job, and gives up before it has begun, is sure that it never runs; once it has begun it is waited for.
//! [LT5] What answers a WRITE through the page cache, or a SETATTR, runs at once, in a thread of its own ([`AtOnce`](crate::at_once::AtOnce)): a drop before
//!       it in a queue might wait for the page of that very WRITE, or for one of a WRITE that the kernel sends behind the SETATTR.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::mutant::{self, Mutant};

type Job = Box<dyn FnOnce() + Send>;

/// A thread with a queue of jobs.
#[derive(Debug)]
pub(crate) struct Later {
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Later {
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let (sender, receiver) = channel::<Job>();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || receiver.into_iter().for_each(|job| job()))?;
        Ok(Self { jobs: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    /// Appends a job to the queue. After the end of the mount the job is dropped, and with it the reply that it holds.
    pub(crate) fn push(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(sender) = &*self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = sender.send(Box::new(job));
        }
    }

    /// Appends a job to the queue and waits for it, unless it has not begun within this time ([LT6]) or the mount ends.
    pub(crate) fn run_and_wait<T: Send + 'static>(&self, begins_within: Duration, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let is_decided = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = channel();
        let is_given_up = Arc::clone(&is_decided);
        let always = mutant::on(Mutant::RunsThoughGivenUp);
        self.push(move || {
            if !is_given_up.swap(true, SeqCst) || always {
                let _left = sender.send(job());
            }
        });
        match receiver.recv_timeout(begins_within) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) if is_decided.swap(true, SeqCst) => receiver.recv().ok(),
            Err(_) => None,
        }
    }

    /// Accepts no more jobs and waits for those in the queue.
    pub(crate) fn stop(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::is_caught;

    fn a_job_that_was_given_up_never_runs() {
        let later = Later::start("test").expect("a thread");
        assert_eq!(later.run_and_wait(Duration::from_secs(60), || 7), Some(7));
        let (release, stuck) = channel::<()>();
        later.push(move || assert!(stuck.recv().is_err()));
        let has_run = Arc::new(AtomicBool::new(false));
        let runs = Arc::clone(&has_run);
        assert_eq!(later.run_and_wait(Duration::from_millis(1), move || runs.store(true, SeqCst)), None);
        drop(release);
        later.stop();
        assert!(!has_run.load(SeqCst));
        assert_eq!(later.run_and_wait(Duration::from_secs(60), || 7), None, "nothing runs after the end");
    }

    #[test]
    fn waiting_and_its_bug() {
        is_caught(Mutant::RunsThoughGivenUp, a_job_that_was_given_up_never_runs);
    }

    #[test]
    fn jobs_run_in_their_order_and_all_before_the_end() {
        let later = Later::start("test").expect("a thread");
        let ran = Arc::new(Mutex::new(Vec::new()));
        for number in 0..100 {
            let ran = Arc::clone(&ran);
            later.push(move || ran.lock().expect("no panic").push(number));
        }
        later.stop();
        assert_eq!(*ran.lock().expect("no panic"), (0..100).collect::<Vec<_>>());
        later.push(|| panic!("nothing runs after the end"));
    }
}

//! Work that begins at once in a thread of its own, beside work that may be stuck ([OT3] of `overtaken.rs`). The thread that ended last is kept
//! for the next work, so that there are more of them only while some are stuck.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::later::Later;

type Job = Box<dyn FnOnce() + Send>;

/// Threads, one of which is kept.
#[derive(Debug, Default)]
pub(crate) struct AtOnce(Arc<Kept>);

/// The way to the kept thread, which ends when it is dropped.
#[derive(Debug, Default)]
struct Kept(Mutex<Option<Sender<Job>>>);

impl Kept {
    fn replace(&self, other: Option<Sender<Job>>) -> Option<Sender<Job>> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), other)
    }
}

impl AtOnce {
    /// Runs a job in a thread of its own, or as the next work of `otherwise` if no thread can be started.
    pub(crate) fn run_or_later(&self, job: impl FnOnce() + Send + 'static, otherwise: &Later) {
        if let Err((_, job)) = self.start(Box::new(job)) {
            otherwise.push(job);
        }
    }

    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.start(Box::new(job)).map_err(|(error, _)| error)
    }

    /// Gives the job back where no thread can be started.
    fn start(&self, mut job: Job) -> Result<(), (io::Error, Job)> {
        if let Some(thread) = self.0.replace(None) {
            match thread.send(job) {
                Ok(()) => return Ok(()),
                Err(unsent) => job = unsent.0,
            }
        }
        let (kept, (sender, receiver)) = (Arc::downgrade(&self.0), channel());
        match std::thread::Builder::new().name("drop-pages".into()).spawn(move || run(receiver, &kept)) {
            Ok(_) => sender.send(job).map_err(|unsent| (io::ErrorKind::BrokenPipe.into(), unsent.0)),
            Err(error) => Err((error, job)),
        }
    }
}

/// Runs what comes, until the owner of the way to it is gone.
fn run(mut jobs: Receiver<Job>, kept: &Weak<Kept>) {
    while let Ok(job) = jobs.recv() {
        job();
        let (sender, receiver) = channel();
        let Some(kept) = kept.upgrade() else { return };
        drop(kept.replace(Some(sender)));
        jobs = receiver;
        // `kept` ends here, before the wait, so that the end of its owner ends that.
    }
}

#[cfg(test)]
mod tests {
    use std::thread::ThreadId;
    use std::time::{Duration, Instant};

    use super::*;

    fn ran_in(at_once: &AtOnce) -> ThreadId {
        let (sender, receiver) = channel();
        at_once.run(move || sender.send(std::thread::current().id()).expect("somebody listens")).expect("a thread");
        receiver.recv().expect("it runs")
    }

    #[test]
    fn work_waits_for_none_that_is_stuck() {
        let at_once = AtOnce::default();
        let (release, stuck) = channel::<()>();
        at_once.run(move || assert!(stuck.recv().is_err())).expect("a thread");
        ran_in(&at_once);
        drop(release);
    }

    #[test]
    fn one_thread_is_kept_and_ends_with_its_owner() {
        let at_once = AtOnce::default();
        let is_kept = || at_once.0.0.lock().expect("no panic").is_some();
        let first = ran_in(&at_once);
        let begun = Instant::now();
        while !is_kept() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is not kept");
            std::thread::yield_now();
        }
        assert_eq!(ran_in(&at_once), first);
        let kept = Arc::downgrade(&at_once.0);
        drop(at_once);
        let begun = Instant::now();
        while kept.strong_count() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "somebody holds it");
            std::thread::yield_now();
        }
    }
}

//! Work that a thread which serves requests must not wait for: what asks the kernel to drop or change pages, and what waits for requests
//! that are still to come.
//!
//! [LT1] The kernel locks a page while a READ or WRITE of it is under way. A notification that needs the page waits for that lock, and so for
//!       another request of this mount. It is sent by a thread that serves no requests, so that some thread can always serve that one.
//! [LT2] One thread sends what concerns pages, one after the other: a later job begins when all earlier ones have ended.
//! [LT3] Over io_uring a request that waits keeps the thread that took it. No more than [`WAITING_MAX_OVER_RING`] may wait, fewer than a
//!       queue has threads; a request that finds no place says so, and its work goes on without it.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Requests over io_uring that may wait at a time ([LT3]); below `RING_THREADS_PER_CPU` of `settings.rs`, with room for those that serve.
pub(crate) const WAITING_MAX_OVER_RING: usize = 10;
const _: () = assert!(WAITING_MAX_OVER_RING < crate::settings::RING_THREADS_PER_CPU, "[LT3]");

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

    /// Puts a job at the end of the queue. After the end of the mount it is dropped, with the reply that it would have given.
    pub(crate) fn push(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(sender) = &*self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = sender.send(Box::new(job));
        }
    }

    /// Takes no more jobs and waits for those that are queued.
    pub(crate) fn stop(&self) {
        drop(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Places for requests that wait ([LT3]).
#[derive(Debug)]
pub(crate) struct Places {
    taken: Arc<AtomicUsize>,
    max: AtomicUsize,
}

impl Default for Places {
    fn default() -> Self {
        Self { taken: Arc::default(), max: AtomicUsize::new(usize::MAX) }
    }
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Places {
    /// Before the first request.
    pub(crate) fn limit(&self, max: usize) {
        self.max.store(max, Relaxed);
    }

    pub(crate) fn take(&self) -> Option<Place> {
        let one_more = |taken: usize| (taken < self.max.load(Relaxed)).then_some(taken + 1);
        self.taken.fetch_update(Relaxed, Relaxed, one_more).ok().map(|_| Place(Arc::clone(&self.taken)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn places_are_given_back() {
        let places = Places::default();
        places.limit(2);
        let (one, two) = (places.take(), places.take());
        assert!(one.is_some() && two.is_some() && places.take().is_none());
        drop(one);
        assert!(places.take().is_some());
    }
}

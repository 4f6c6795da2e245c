//! A bounded number of threads for what may wait ([D10]). The queue is bounded by the slots of all clients: each has one request in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_ended: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    has_jobs: Condvar,
}

/// Threads that run jobs.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Pool {
    pub(crate) fn start(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let pool = Self { shared, threads: Mutex::default() };
        for _ in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name("direct-pool".into()).spawn(move || shared.work())?;
            pool.threads.lock().push(thread);
        }
        Ok(pool)
    }

    /// Runs a job, after those that wait already. After [`Pool::stop`] it is dropped.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.queue.lock();
        if !queue.is_ended {
            queue.jobs.push_back(Box::new(job));
            drop(queue);
            self.shared.has_jobs.notify_one();
        }
    }

    /// Runs what is queued, then ends the threads.
    pub(crate) fn stop(&self) {
        self.shared.queue.lock().is_ended = true;
        self.shared.has_jobs.notify_all();
        for thread in self.threads.lock().drain(..) {
            let _ended = thread.join();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            let job = loop {
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None if queue.is_ended => return,
                    None => self.has_jobs.wait(&mut queue),
                }
            };
            drop(queue);
            job();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn all_jobs_run_before_the_end_and_none_behind_it() {
        let (pool, ran) = (Pool::start(3).expect("threads"), Arc::new(AtomicUsize::new(0)));
        for _ in 0..1000 {
            let ran = Arc::clone(&ran);
            pool.run(move || {
                ran.fetch_add(1, SeqCst);
            });
        }
        pool.stop();
        assert_eq!(ran.load(SeqCst), 1000);
        pool.run(|| panic!("nothing runs after the end"));
    }
}

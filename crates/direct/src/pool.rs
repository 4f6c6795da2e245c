//! A bounded number of threads for what may wait ([D10]), of which one polls. The queue is bounded by the slots of all clients: each has one request in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that wait for jobs.
    idle: usize,
    is_ended: bool,
}

impl Queue {
    /// Whether a thread has nothing to do.
    fn has_idle(&self) -> bool {
        self.idle > self.jobs.len()
    }
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
    pub(crate) fn run(&self, job: Job) {
        let mut queue = self.shared.queue.lock();
        if !queue.is_ended {
            queue.jobs.push_back(job);
            drop(queue);
            self.shared.has_jobs.notify_one();
        }
    }

    /// Runs the job that is made of `what` if a thread has nothing to do; otherwise `what` comes back.
    pub(crate) fn run_if_idle<T>(&self, what: T, job: impl FnOnce(T) -> Job) -> Result<(), T> {
        let mut queue = self.shared.queue.lock();
        if queue.is_ended || !queue.has_idle() {
            return Err(what);
        }
        queue.jobs.push_back(job(what));
        drop(queue);
        self.shared.has_jobs.notify_one();
        Ok(())
    }

    /// Whether a thread has nothing to do.
    pub(crate) fn has_idle(&self) -> bool {
        self.shared.queue.lock().has_idle()
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
                    None => {
                        queue.idle += 1;
                        self.has_jobs.wait(&mut queue);
                        queue.idle -= 1;
                    }
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
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn all_jobs_run_before_the_end_and_none_behind_it() {
        let (pool, ran) = (Pool::start(3).expect("threads"), Arc::new(AtomicUsize::new(0)));
        for _ in 0..1000 {
            let ran = Arc::clone(&ran);
            pool.run(Box::new(move || {
                ran.fetch_add(1, SeqCst);
            }));
        }
        pool.stop();
        assert_eq!(ran.load(SeqCst), 1000);
        pool.run(Box::new(|| panic!("nothing runs after the end")));
    }

    #[test]
    fn a_thread_is_idle_until_there_is_a_job_for_it() {
        let pool = Pool::start(1).expect("threads");
        let until_idle = || {
            while !pool.has_idle() {
                std::thread::yield_now()
            }
        };
        until_idle();
        let (go_on, goes_on) = channel::<()>();
        pool.run(Box::new(move || goes_on.recv().expect("told")));
        assert!(!pool.has_idle(), "even before it wakes");
        assert_eq!(pool.run_if_idle(7, |_| Box::new(|| panic!("nobody is idle"))), Err(7));
        go_on.send(()).expect("it waits");
        until_idle();
        pool.stop();
    }
}

//! Runs a load: on one thread with a simulated clock, or on one thread per worker.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::target::Target;
use super::worker::{Done, Worker};
use crate::failure::{Failure, Result};
use crate::machine;

/// The simulated clock of a drive, for the calling thread.
pub trait Clock {
    /// Now, in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Sets the clock, forward or backward.
    fn set_now_ns(&self, now: u64);
}

/// Interleaves `actors` on the calling thread: the actor with the earliest clock makes the next call; equal clocks take turns. Ends when
/// every actor has returned false. Returns the nanoseconds until the last call ended.
pub fn interleave(actors: usize, clock: &dyn Clock, call: &mut dyn FnMut(usize) -> Result<bool>) -> Result<u64> {
    let start = clock.now_ns();
    let mut queue: BinaryHeap<Reverse<(u64, u64, usize)>> = (0..actors).map(|index| Reverse((start, index as u64, index))).collect();
    let (mut turn, mut end) = (actors as u64, start);
    while let Some(Reverse((at, _, index))) = queue.pop() {
        if turn % 256 == 0 {
            machine::check()?;
        }
        clock.set_now_ns(at);
        if call(index)? {
            queue.push(Reverse((clock.now_ns(), turn, index)));
            turn += 1;
        }
        end = end.max(clock.now_ns());
    }
    clock.set_now_ns(end);
    Ok(end - start)
}

/// Runs all workers on the calling thread until none has more to do ([WO2]). `behind` runs after each call. Returns the totals and the
/// nanoseconds until the last call ended.
///
/// [WO2]: super
pub fn run_interleaved(
    workers: &mut [Worker],
    target: &dyn Target,
    clock: &dyn Clock,
    behind: &mut dyn FnMut() -> Result<()>,
) -> Result<(Done, u64)> {
    let elapsed_ns = interleave(workers.len(), clock, &mut |index| {
        let goes_on = workers[index].step(target)?;
        if !goes_on {
            workers[index].end(target)?;
        }
        behind()?;
        Ok(goes_on)
    })?;
    let done = workers.iter().fold(Done::default(), |done, worker| done.and(worker.done()));
    Ok((done, elapsed_ns))
}

/// Runs each worker on its own thread. Returns the totals, and the time from the first start to the last end.
pub fn run_on_threads(workers: &mut [Worker], target: &dyn Target) -> Result<(Done, Duration)> {
    let barrier = Barrier::new(workers.len() + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let barrier = &barrier;
                scope.spawn(move || -> Result<Done> {
                    barrier.wait();
                    while worker.step(target)? {
                        machine::check()?;
                    }
                    worker.end(target)?;
                    Ok(*worker.done())
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let mut done = Done::default();
        for thread in threads {
            done = done.and(&thread.join().map_err(|_| Failure::new("a worker panicked"))??);
        }
        Ok((done, start.elapsed()))
    })
}

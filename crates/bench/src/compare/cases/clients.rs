//! Concurrent clients: one thread each, with its own files, all started together.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use crate::compare::case::Stage;
use crate::failure::{Failure, Result};
use crate::machine;
use crate::measure::Samples;

/// Times single operations of one client.
pub struct Watch(Samples);

impl Watch {
    /// Runs an operation and records its time. A signal ends the work here.
    #[inline]
    pub fn time<T>(&mut self, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        machine::check()?;
        let start = Instant::now();
        let result = operation();
        self.0.add(start.elapsed());
        result
    }
}

/// Runs the work of all clients in the measured part; `clients` holds each one's data. A single client runs in the calling thread, which is
/// pinned. Returns the times of all.
pub fn timed<C: Send>(stage: &mut Stage<'_>, clients: &mut [C], work: impl Fn(&mut C, &mut Watch) -> Result<()> + Sync) -> Result<Samples> {
    let new_watch = || Watch(Samples::new());
    if let [client] = clients {
        let mut watch = new_watch();
        stage.time(|| work(client, &mut watch))?;
        return Ok(watch.0);
    }
    let (barrier, called_off) = (Barrier::new(clients.len() + 1), AtomicBool::new(false));
    thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .map(|client| {
                let (barrier, called_off, work) = (&barrier, &called_off, &work);
                let mut watch = new_watch();
                scope.spawn(move || {
                    barrier.wait();
                    if !called_off.load(Relaxed) {
                        work(client, &mut watch)?;
                    }
                    Ok(watch.0)
                })
            })
            .collect();
        let mut threads = Some(threads);
        let result = stage.time(|| {
            barrier.wait();
            join(threads.take().unwrap_or_default())
        });
        if threads.is_some() {
            // The measured part could not begin; this releases the waiting clients.
            called_off.store(true, Relaxed);
            barrier.wait();
        }
        result
    })
}

fn join(threads: Vec<thread::ScopedJoinHandle<'_, Result<Samples>>>) -> Result<Samples> {
    let mut all = Samples::new();
    for thread in threads {
        all.merge(&thread.join().unwrap_or_else(|_| Err(Failure::new("a client of the measurement panicked")))?);
    }
    Ok(all)
}

/// The number of operations of one client, of `total`; at least one.
pub fn share(total: u64, clients: u32) -> u64 {
    (total / u64::from(clients)).max(1)
}

/// `full` times `scale`, at least `least`.
pub fn scaled(full: u64, scale: f64, least: u64) -> u64 {
    ((full as f64 * scale) as u64).max(least)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::compare::case::StageClock;
    use crate::compare::cases::support::TestClock;

    fn with_stage<T>(clock: &mut dyn StageClock, then: impl FnOnce(&mut Stage<'_>) -> T) -> T {
        let directory = tempfile::tempdir().expect("a directory");
        then(&mut Stage {
            directory: directory.path(),
            scratch: directory.path(),
            library: None,
            seed: 1,
            scale: 1.0,
            is_durable: true,
            clock,
        })
    }

    #[test]
    fn all_clients_work_inside_the_measured_part() {
        for count in [1, 3] {
            let mut clock = TestClock::default();
            let samples = with_stage(&mut clock, |stage| {
                timed(stage, &mut vec![(); count], |(), watch| {
                    watch.time(|| {
                        thread::sleep(Duration::from_millis(1));
                        Ok(())
                    })
                })
            });
            assert_eq!(samples.expect("measured").count(), count as u64);
            assert_eq!((clock.begun, clock.ended), (1, 1));
        }
    }

    #[test]
    fn a_part_that_cannot_begin_leaves_no_client_waiting() {
        let mut clock = TestClock { fails: true, ..TestClock::default() };
        assert!(with_stage(&mut clock, |stage| timed(stage, &mut [(), ()], |(), _| Ok(()))).is_err());
    }

    #[test]
    fn an_error_of_one_client_is_that_of_all() {
        let mut clock = TestClock::default();
        let work = |number: &mut u32, _: &mut Watch| if *number == 2 { Err(Failure::new("no")) } else { Ok(()) };
        assert!(with_stage(&mut clock, |stage| timed(stage, &mut [1, 2, 3], work)).is_err());
    }
}

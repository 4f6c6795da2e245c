//! Concurrent clients: one thread each, with its own files, all started together.

use std::time::{Duration, Instant};

use crate::compare::case::{Outcome, Stage};
use crate::failure::Result;
use crate::machine;
use crate::measure::{Samples, on_threads};

/// Times single operations of one client.
pub struct Watch {
    samples: Samples,
    /// The time of all operations.
    total: Duration,
}

impl Watch {
    /// Runs an operation and records its time. A signal ends the work here.
    #[inline]
    pub fn time<T>(&mut self, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        machine::check()?;
        let start = Instant::now();
        let result = operation();
        let took = start.elapsed();
        self.samples.add(took);
        self.total += took;
        result
    }
}

/// Runs the work of all clients in the measured part; `clients` holds each one's data. The outcome has the times of all operations, and
/// the time from when all threads were there until the last had ended.
pub fn timed<C: Send>(stage: &mut Stage<'_>, clients: &mut [C], work: impl Fn(&mut C, &mut Watch) -> Result<()> + Sync) -> Result<Outcome> {
    let (outcome, elapsed, _) = timed_both(stage, clients, work)?;
    Ok(Outcome { own_time: Some(elapsed), ..outcome })
}

/// As [`timed`]; the time is that of the operations alone, of the client that needed most: what is prepared between them does not count.
pub fn timed_alone<C: Send>(
    stage: &mut Stage<'_>,
    clients: &mut [C],
    work: impl Fn(&mut C, &mut Watch) -> Result<()> + Sync,
) -> Result<Outcome> {
    let (outcome, _, operations) = timed_both(stage, clients, work)?;
    Ok(Outcome { own_time: Some(operations), ..outcome })
}

fn timed_both<C: Send>(
    stage: &mut Stage<'_>,
    clients: &mut [C],
    work: impl Fn(&mut C, &mut Watch) -> Result<()> + Sync,
) -> Result<(Outcome, Duration, Duration)> {
    let new = || Watch { samples: Samples::new(), total: Duration::ZERO };
    let watched = clients.iter_mut().map(|client| (client, new())).collect();
    let run = |(client, mut watch): (&mut C, Watch)| work(client, &mut watch).map(|()| watch);
    let (each, elapsed) = stage.time(|| on_threads(watched, run))?;
    let mut all = Samples::new();
    each.iter().for_each(|watch| all.merge(&watch.samples));
    let operations = each.iter().map(|watch| watch.total).max().unwrap_or_default();
    Ok((Outcome::timed(&all), elapsed, operations))
}

/// `full` times `scale`, at least `least`.
pub fn scaled(full: u64, scale: f64, least: u64) -> u64 {
    ((full as f64 * scale) as u64).max(least)
}

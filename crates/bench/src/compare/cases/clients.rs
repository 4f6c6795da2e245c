//! Concurrent clients: one thread each, with its own files, all started together.

use std::time::Instant;

use crate::compare::case::{Outcome, Stage};
use crate::failure::Result;
use crate::machine;
use crate::measure::{Samples, on_threads};

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

/// Runs the work of all clients in the measured part; `clients` holds each one's data. The outcome has the times of all operations, and
/// the time from when all threads were there until the last had ended.
pub fn timed<C: Send>(stage: &mut Stage<'_>, clients: &mut [C], work: impl Fn(&mut C, &mut Watch) -> Result<()> + Sync) -> Result<Outcome> {
    let watched = clients.iter_mut().map(|client| (client, Watch(Samples::new()))).collect();
    let run = |(client, mut watch): (&mut C, Watch)| work(client, &mut watch).map(|()| watch.0);
    let (each, elapsed) = stage.time(|| on_threads(watched, run))?;
    let mut all = Samples::new();
    each.iter().for_each(|samples| all.merge(samples));
    Ok(Outcome { own_time: Some(elapsed), ..Outcome::timed(&all) })
}

/// `full` times `scale`, at least `least`.
pub fn scaled(full: u64, scale: f64, least: u64) -> u64 {
    ((full as f64 * scale) as u64).max(least)
}

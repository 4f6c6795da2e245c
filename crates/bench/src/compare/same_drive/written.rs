//! Write counters per sector, from which the bytes of each structure are computed.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// A run of sectors that were written equally often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run(
    /// The first sector.
    pub u64,
    /// Number of sectors.
    pub u64,
    /// Writes of each sector.
    pub u32,
);

/// Write counters of all sectors of a drive.
#[derive(Debug)]
pub struct Written(Box<[AtomicU32]>);

impl Written {
    /// For this many sectors, none written yet.
    pub fn new(sector_count: u64) -> Self {
        Self((0..sector_count).map(|_| AtomicU32::new(0)).collect())
    }

    /// Adds a write.
    pub fn add(&self, first: u64, count: u64) {
        for counter in self.0.iter().skip(first as usize).take(count as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Sets all to zero.
    pub fn clear(&self) {
        self.0.iter().for_each(|counter| counter.store(0, Relaxed));
    }

    /// Runs of the sectors that were written.
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (sector, counter) in (0..).zip(&self.0) {
            match (counter.load(Relaxed), runs.last_mut()) {
                (0, _) => {}
                (times, Some(run)) if run.0 + run.1 == sector && run.2 == times => run.1 += 1,
                (times, _) => runs.push(Run(sector, 1, times)),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_were_written_equally_often_are_one_run() {
        let written = Written::new(16);
        assert_eq!(written.runs(), []);
        written.add(0, 3);
        written.add(1, 1);
        written.add(5, 2);
        written.add(7, 1);
        assert_eq!(written.runs(), [Run(0, 1, 1), Run(1, 1, 2), Run(2, 1, 1), Run(5, 3, 1)]);
        written.add(15, 4);
        assert_eq!(written.runs().last(), Some(&Run(15, 1, 1)), "beyond the end is nothing");
        written.clear();
        assert_eq!(written.runs(), []);
    }
}

//! What a client has had done, for whoever looks (`tandemfs stats`, `tandemfs top`). Counters are of its whole connection.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tandemfs_device::{Latencies, LatencyCounts};
use tandemfs_protocol::{Number, Outcome};

/// Numbers of operations lie below this: they are bits of a word of the greeting.
const NUMBERS: usize = u64::BITS as usize;

#[derive(Default)]
struct OfOperation {
    answered: AtomicU64,
    latencies: Latencies,
}

/// Live counters.
pub(crate) struct Tally {
    operations: [OfOperation; NUMBERS],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    to_pool: AtomicU64,
    to_mount: AtomicU64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            operations: std::array::from_fn(|_| OfOperation::default()),
            read_bytes: AtomicU64::default(),
            written_bytes: AtomicU64::default(),
            to_pool: AtomicU64::default(),
            to_mount: AtomicU64::default(),
        }
    }
}

/// A request that is being served.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    number: Number,
    since: Option<Instant>,
}

impl Tally {
    /// A request has come.
    pub(crate) fn begin(&self, number: Number) -> Begun {
        Begun { number, since: Latencies::start(self.operations[number as usize].answered.load(Relaxed)) }
    }

    /// One needs the pool, or its end does.
    pub(crate) fn goes_to_pool(&self) {
        self.to_pool.fetch_add(1, Relaxed);
    }

    /// One is about to be answered.
    pub(crate) fn end(&self, begun: Begun, outcome: &Outcome) {
        let of = &self.operations[begun.number as usize];
        of.answered.fetch_add(1, Relaxed);
        if let Some(since) = begun.since {
            of.latencies.record(since.elapsed());
        }
        match (outcome, begun.number) {
            (Outcome::Done(answer), Number::Read) => self.read_bytes.fetch_add(answer.value, Relaxed),
            (Outcome::Done(answer), Number::Write) => self.written_bytes.fetch_add(answer.value, Relaxed),
            (Outcome::Crossed(_), _) => self.to_mount.fetch_add(1, Relaxed),
            _ => 0,
        };
    }

    /// The counters now.
    pub(crate) fn counts(&self) -> Counts {
        let operations = Number::ALL.iter().filter_map(|number| {
            let of = &self.operations[*number as usize];
            let count = of.answered.load(Relaxed);
            (count > 0).then(|| OperationCount { number: *number, count, latency: of.latencies.counts() })
        });
        Counts {
            operations: operations.collect(),
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            to_pool: self.to_pool.load(Relaxed),
            to_mount: self.to_mount.load(Relaxed),
        }
    }
}

/// Answered requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationCount {
    /// Which operation.
    pub number: Number,
    /// How many.
    pub count: u64,
    /// Times from the moment the server saw a request until its answer, of those that were timed.
    pub latency: LatencyCounts,
}

/// What a client has had done since it connected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// By kind, without those that never came.
    pub operations: Vec<OperationCount>,
    /// Bytes of file data that it read.
    pub read_bytes: u64,
    /// Bytes of file data that it wrote.
    pub written_bytes: u64,
    /// Requests that could wait or take long, so that a thread of the pool served or finished them.
    pub to_pool: u64,
    /// Requests that only the kernel can serve; the client then makes the call through the mount.
    pub to_mount: u64,
}

/// What has become of the leases for stores of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Leases that it has.
    pub held: usize,
    /// That it got since it connected.
    pub lent: u64,
    /// Of those, that have ended, or are about to.
    pub ended: u64,
    /// Of those, whose bytes were taken away since it did not stop storing.
    pub taken_away: u64,
    /// Those of the leases that it has which lend room behind a file.
    pub tails_held: usize,
    /// Those of the leases that it got which lent room.
    pub tails_lent: u64,
    /// It did not stop in time once, and gets none any more.
    pub is_late: bool,
}

/// A client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientStatistics {
    /// Of all connections since the server started, which one this is, from 1.
    pub connection: u64,
    /// Its process.
    pub process_id: i32,
    /// What the process was called when it connected.
    pub command: String,
    /// Effective user.
    pub user: u32,
    /// How long it has been connected.
    pub connected: Duration,
    /// Files that it has open by the door.
    pub open_files: usize,
    /// It has the memory zone, for loads by itself.
    pub has_zone: bool,
    /// It has the memory zone for stores, and this is what has become of its leases.
    pub stores: Option<StoreCounts>,
    /// Ranges of files that it has mapped from the zone, also those for stores.
    pub mappings: usize,
    /// Those of them that are for stores.
    pub stored_mappings: usize,
    /// Bytes of these.
    pub stored_bytes: u64,
    /// What it has had done.
    pub counts: Counts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_place() {
        let tally = Tally::default();
        assert_eq!(tally.counts().operations, []);
        for number in Number::ALL {
            tally.end(tally.begin(*number), &Outcome::value(7));
        }
        let counts = tally.counts();
        assert_eq!(counts.operations.iter().map(|operation| operation.number).collect::<Vec<_>>(), Number::ALL);
        assert!(counts.operations.iter().all(|operation| (operation.count, operation.latency.samples()) == (1, 1)));
        assert_eq!((counts.read_bytes, counts.written_bytes, counts.to_pool, counts.to_mount), (7, 7, 0, 0));
    }

    #[test]
    fn errors_move_no_bytes() {
        let tally = Tally::default();
        let begun = tally.begin(Number::Write);
        tally.goes_to_pool();
        tally.end(begun, &Outcome::Errno(28));
        let counts = tally.counts();
        assert_eq!((counts.written_bytes, counts.to_pool, counts.operations[0].count), (0, 1, 1));
    }
}

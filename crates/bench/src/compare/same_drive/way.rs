//! The least latency of the block path so that this machine can emulate it: the peers' detour cannot be subtracted from a drive that is
//! faster than the detour.
//!
//! [WA1] A command takes at least [`COMMAND_US_LEAST`], about the detour's latency at design time. With a shorter least time where the
//!       machine allows it, the drive would differ from day to day: on one machine the shortest way was 3, 21 and 126 us within some days.
//!       A quiet machine would then favour file systems that use many block commands.

use serde::{Deserialize, Serialize};

/// Safety margin of a way: concurrent load disturbs more than its own share, and noise adds time.
const MARGIN: f64 = 0.3;

/// The way to a drive's block path, the same for all file systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Least time of a block command before data transfer, in nanoseconds.
    pub command_ns: u32,
    /// Number of concurrent block commands.
    pub commands_at_once: u32,
    /// Bandwidth limit in each direction.
    pub bytes_per_second: u64,
}

impl Way {
    /// A way on which everything takes `times` as long.
    pub fn lengthened(&self, times: f64) -> Self {
        Self {
            command_ns: (f64::from(self.command_ns) * times) as u32,
            commands_at_once: self.commands_at_once,
            bytes_per_second: (self.bytes_per_second as f64 / times) as u64,
        }
    }
}

/// Times of block requests in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// From a request's arrival until data transfer or flash read can begin, in nanoseconds.
    pub command_ns: u32,
    /// Bandwidth of the link.
    pub bytes_per_second: u64,
    /// Number of concurrent commands; `None` if unlimited.
    pub commands_at_once: Option<u32>,
    /// Time of a flash page that a request waits for, in nanoseconds; pages of several requests are read in parallel.
    pub flash_ns: u32,
}

impl Times {
    /// These times with a way in front.
    pub fn over(&self, way: &Way) -> Self {
        Self {
            command_ns: self.command_ns.max(way.command_ns),
            bytes_per_second: self.bytes_per_second.min(way.bytes_per_second),
            commands_at_once: Some(self.commands_at_once.map_or(way.commands_at_once, |own| own.min(way.commands_at_once))),
            flash_ns: self.flash_ns,
        }
    }

    /// Time of `depth` requests of `bytes` submitted together, in nanoseconds.
    pub fn batch_ns(&self, depth: u32, bytes: u64) -> f64 {
        let (command, transfer) = (f64::from(self.command_ns), bytes as f64 * 1e9 / self.bytes_per_second as f64);
        let at_once = self.commands_at_once.unwrap_or(depth).clamp(1, depth);
        let last = (0..depth).fold(0.0, |link: f64, request| link.max(f64::from(request / at_once + 1) * command) + transfer);
        last + f64::from(self.flash_ns)
    }
}

/// Measured time of a batch over the detour while the drive itself took no time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Carried {
    /// Whether it reads.
    pub is_read: bool,
    /// Size of a request, in bytes.
    pub bytes: u64,
    /// Requests.
    pub depth: u32,
    /// Until the last request completed, in nanoseconds.
    pub took_ns: f64,
}

/// The shortest way on which every batch takes longer than the machine needs for it ([WA1]); `None` if the drive's own `times` (for reads
/// and for writes) suffice.
pub fn needed(carried: &[Carried], times: impl Fn(bool) -> Times) -> Option<Way> {
    let is_carried = |batch: &Carried, way: Option<Way>| {
        let own = times(batch.is_read);
        way.map_or(own, |way| own.over(&way)).batch_ns(batch.depth, batch.bytes) >= batch.took_ns * (1.0 + MARGIN)
    };
    let is_long = [true, false].iter().all(|is_read| times(*is_read).command_ns >= COMMAND_US_LEAST * 1_000);
    if is_long && carried.iter().all(|batch| is_carried(batch, None)) {
        return None;
    }
    let size = |batch: &Carried| u64::from(batch.depth) * batch.bytes;
    let largest = carried.iter().map(size).max().unwrap_or_default();
    let rates = carried.iter().filter(|batch| size(batch) == largest).map(|batch| largest as f64 * 1e9 / (batch.took_ns * (1.0 + MARGIN)));
    let bytes_per_second = rates.fold(f64::INFINITY, f64::min).max(1e6) as u64;
    let shortest = |commands_at_once| {
        let ways = (COMMAND_US_LEAST..=COMMAND_US_MAX).map(|us| Way { command_ns: us * 1_000, commands_at_once, bytes_per_second });
        let mut carrying = ways.filter(|way| carried.iter().all(|batch| is_carried(batch, Some(*way))));
        carrying.next().unwrap_or(Way { command_ns: COMMAND_US_MAX * 1_000, commands_at_once, bytes_per_second })
    };
    let one_after_another = shortest(1);
    let limit_ns = (f64::from(one_after_another.command_ns) * LONGER_FOR_MORE_AT_ONCE) as u32;
    let more = (2..=COMMANDS_MAX).map(shortest).take_while(|way| way.command_ns <= limit_ns);
    Some(more.last().unwrap_or(one_after_another))
}

const COMMANDS_MAX: u32 = 64;
const COMMAND_US_LEAST: u32 = 40;
const COMMAND_US_MAX: u32 = 10_000;
/// How much longer a command may take if that allows more concurrent commands.
const LONGER_FOR_MORE_AT_ONCE: f64 = 1.6;

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Times = Times { command_ns: 10_000, bytes_per_second: 4_000_000_000, commands_at_once: Some(64), flash_ns: 0 };

    fn carried(bytes: u64, depth: u32, took_us: f64) -> Carried {
        Carried { is_read: false, bytes, depth, took_ns: took_us * 1e3 }
    }

    #[test]
    fn a_batch_waits_for_ways_and_for_the_link() {
        assert_eq!(FAST.batch_ns(1, 4000), 11_000.0);
        assert_eq!(FAST.batch_ns(64, 4000), 74_000.0);
        assert_eq!(FAST.batch_ns(65, 4000), 75_000.0, "the link is busy longer than a second command takes");
        let way = Way { command_ns: 30_000, commands_at_once: 2, bytes_per_second: 1_000_000_000 };
        let slow = FAST.over(&way);
        assert_eq!(slow, Times { command_ns: 30_000, bytes_per_second: 1_000_000_000, commands_at_once: Some(2), flash_ns: 0 });
        assert_eq!(slow.batch_ns(1, 4000), 34_000.0);
        assert_eq!(slow.batch_ns(4, 4000), 68_000.0);
        assert_eq!(slow.batch_ns(4, 40_000), 190_000.0);
        let flash = Times { commands_at_once: None, flash_ns: 40_000, ..FAST };
        assert_eq!((flash.batch_ns(3, 4000), flash.over(&way).commands_at_once), (53_000.0, Some(2)));
    }

    #[test]
    fn a_drive_that_is_slower_than_the_detour_keeps_its_way() {
        let slow = Times { command_ns: COMMAND_US_LEAST * 1_000, ..FAST };
        let batches = [carried(4096, 1, 8.0), carried(4096, 16, 20.0)];
        assert_eq!(needed(&batches, |_| slow), None);
        let way = needed(&batches, |_| FAST).expect("a longer way");
        assert_eq!((way.command_ns, way.commands_at_once), (COMMAND_US_LEAST * 1_000, COMMANDS_MAX), "however fast the machine is");
    }

    #[test]
    fn a_drive_that_is_faster_gets_the_shortest_way_that_the_machine_carries() {
        let batches = [(4096, 1, 25.0), (65_536, 1, 53.0), (4096, 4, 67.0), (4096, 16, 190.0), (65_536, 4, 130.0), (65_536, 16, 420.0)];
        let batches = batches.map(|(bytes, depth, took_us)| carried(bytes, depth, took_us));
        let way = needed(&batches, |_| FAST).expect("a longer way");
        assert_eq!(way, Way { command_ns: 43_000, commands_at_once: 3, bytes_per_second: 1_920_468_864 });
        let over = FAST.over(&way);
        assert!(batches.iter().all(|batch| over.batch_ns(batch.depth, batch.bytes) >= batch.took_ns * (1.0 + MARGIN)));
        // A machine that executes requests strictly one after another.
        let way = needed(&[carried(4096, 1, 5.0), carried(4096, 16, 1600.0), carried(65_536, 16, 1600.0)], |_| FAST).expect("a longer way");
        assert!(way.command_ns > 100_000 && way.bytes_per_second == 504_123_076, "{way:?}");
    }
}

//! A limit of the block path for all file systems, so that this machine can emulate it: the peers' detour cannot be subtracted from a drive
//! that is faster than the detour.
//!
//! [WA1] The time of a block command is asked for, not chosen by the speed of the machine: on one machine the shortest possible one was 3,
//!       21 and 126 us within some days, and a short one favours file systems that use many block commands. What the machine cannot carry
//!       is not measured.

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

/// Times of block requests in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

/// The way with block commands of `command_ns` on which every batch takes longer than the machine needs for it, with as many commands at
/// once as possible; `None` if the machine carries no such way ([WA1]). `times` are the drive's own, for reads and for writes.
pub fn carrying(carried: &[Carried], command_ns: u32, times: impl Fn(bool) -> Times) -> Option<Way> {
    let size = |batch: &Carried| u64::from(batch.depth) * batch.bytes;
    let largest = carried.iter().map(size).max().unwrap_or_default();
    let rates = carried.iter().filter(|batch| size(batch) == largest).map(|batch| largest as f64 * 1e9 / (batch.took_ns * (1.0 + MARGIN)));
    let bytes_per_second = rates.fold(f64::INFINITY, f64::min).clamp(1e6, 1e12) as u64;
    let is_carried = |way: &Way| {
        let takes = |batch: &Carried| times(batch.is_read).over(way).batch_ns(batch.depth, batch.bytes);
        carried.iter().all(|batch| takes(batch) >= batch.took_ns * (1.0 + MARGIN))
    };
    (1..=COMMANDS_MAX).rev().map(|commands_at_once| Way { command_ns, commands_at_once, bytes_per_second }).find(is_carried)
}

const COMMANDS_MAX: u32 = 64;

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
    fn a_latency_is_carried_with_as_many_commands_at_once_as_possible_or_not_at_all() {
        let batches = [(4096, 1, 25.0), (65_536, 1, 53.0), (4096, 4, 67.0), (4096, 16, 190.0), (65_536, 4, 130.0), (65_536, 16, 420.0)];
        let batches = batches.map(|(bytes, depth, took_us)| carried(bytes, depth, took_us));
        let at = |us: u32| carrying(&batches, us * 1_000, |_| FAST);
        assert_eq!((at(15), at(25)), (None, None), "shorter than the detour");
        let [short, long] = [50, 100].map(|us| at(us).expect("carried"));
        assert!(short.commands_at_once < long.commands_at_once && short.bytes_per_second == 1_920_468_864, "{short:?} {long:?}");
        for way in [short, long] {
            let over = FAST.over(&way);
            assert!(batches.iter().all(|batch| over.batch_ns(batch.depth, batch.bytes) >= batch.took_ns * (1.0 + MARGIN)));
            let more = FAST.over(&Way { commands_at_once: way.commands_at_once + 1, ..way });
            assert!(batches.iter().any(|batch| more.batch_ns(batch.depth, batch.bytes) < batch.took_ns * (1.0 + MARGIN)));
        }
        let fast = [carried(4096, 1, 2.0), carried(65_536, 16, 20.0)];
        assert_eq!(carrying(&fast, 10_000, |_| FAST).map(|way| way.commands_at_once), Some(COMMANDS_MAX), "the profile's own");
    }
}

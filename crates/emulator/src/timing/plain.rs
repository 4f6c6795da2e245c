//! Timing of a drive without firmware: latency by size on the byte path, channels and links on the block path ([TI2], [TI3]).
//!
//! [TI2]: super
//! [TI3]: super

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::curve::Curve;
use super::distribution::{Distribution, Draws};
use super::time::Time;
use crate::model::ModelOptions;

/// Channels that a profile may have.
const CHANNEL_COUNT_MAX: u32 = 1024;

/// Times of the block path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockTiming {
    /// From a read's arrival until its data can move, in nanoseconds.
    pub read_latency_ns: u32,
    /// The same of a write.
    pub write_latency_ns: u32,
    /// Read bandwidth of the whole drive, in bytes a second.
    pub read_bytes_per_second: u64,
    /// Write bandwidth of the whole drive, in bytes a second.
    pub write_bytes_per_second: u64,
    /// Requests that are served at once.
    pub channel_count: u32,
}

/// Times of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Loads by size.
    pub load: Curve,
    /// Stores by size.
    pub store: Curve,
    /// Bandwidth of the byte path for all threads together, in bytes a second.
    pub port_bytes_per_second: u64,
    /// The block path.
    pub block: BlockTiming,
}

impl Timing {
    /// These times with what was chosen at the drive's creation.
    pub(crate) fn chosen(mut self, options: &ModelOptions) -> Self {
        let least = options.block_command_ns_min.unwrap_or(0);
        self.block.read_latency_ns = self.block.read_latency_ns.max(least);
        self.block.write_latency_ns = self.block.write_latency_ns.max(least);
        self.block.channel_count = options.channel_count.unwrap_or(self.block.channel_count);
        self.block.channel_count = self.block.channel_count.min(options.commands_at_once.unwrap_or(u32::MAX));
        let most = options.link_bytes_per_second_max.unwrap_or(u64::MAX);
        self.block.read_bytes_per_second = self.block.read_bytes_per_second.min(most);
        self.block.write_bytes_per_second = self.block.write_bytes_per_second.min(most);
        self
    }

    /// Checks that a drive can have these numbers; values from a header are checked before use.
    pub(crate) fn is_sane(&self) -> bool {
        self.load.is_ascending()
            && self.store.is_ascending()
            && self.port_bytes_per_second > 0
            && self.block.read_bytes_per_second > 0
            && self.block.write_bytes_per_second > 0
            && (1..=CHANNEL_COUNT_MAX).contains(&self.block.channel_count)
    }
}

/// Direction of a block request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the drive.
    Read,
    /// To the drive.
    Write,
}

/// A drive's clock: when its parts are free again, in nanoseconds of its time.
#[derive(Debug)]
pub(crate) struct Clock {
    timing: Timing,
    pub(crate) time: Time,
    draws: Option<Draws>,
    port_free_at: AtomicU64,
    block: Mutex<BlockTimeline>,
}

#[derive(Debug)]
struct BlockTimeline {
    channels_free_at: Box<[u64]>,
    read_link_free_at: u64,
    write_link_free_at: u64,
}

impl Clock {
    /// `line_latency` is what loads draw from, where they do.
    pub(crate) fn new(timing: Timing, line_latency: Option<Distribution>, time: Time) -> Self {
        let channels_free_at = vec![0; timing.block.channel_count as usize].into_boxed_slice();
        let block = Mutex::new(BlockTimeline { channels_free_at, read_link_free_at: 0, write_link_free_at: 0 });
        Self { timing, time, draws: line_latency.map(Draws::new), port_free_at: AtomicU64::new(0), block }
    }

    /// Waits until a load that arrived at `arrival` would be done.
    pub(crate) fn finish_load(&self, arrival: u64, bytes: usize) {
        let latency = self.timing.load.latency_ns(bytes as u64);
        let beyond = self.draws.as_ref().map_or(0, Draws::beyond_median_ns);
        self.finish_byte_access(arrival, bytes, latency.saturating_add_signed(beyond));
    }

    /// Waits until a store that arrived at `arrival` would have been taken.
    pub(crate) fn finish_store(&self, arrival: u64, bytes: usize) {
        self.finish_byte_access(arrival, bytes, self.timing.store.latency_ns(bytes as u64));
    }

    fn finish_byte_access(&self, arrival: u64, bytes: usize, latency: u64) {
        let service = transfer_ns(bytes as u64, self.timing.port_bytes_per_second);
        let mut free_at = self.port_free_at.load(Relaxed);
        let queueing = loop {
            let start = free_at.max(arrival);
            match self.port_free_at.compare_exchange_weak(free_at, start + service, Relaxed, Relaxed) {
                Ok(_) => break start - arrival,
                Err(found) => free_at = found,
            }
        };
        self.time.stall_until(arrival + queueing + latency);
    }

    /// Takes a block request that arrived at `arrival` into the drive's queues. Returns when it will be done.
    pub(crate) fn submit(&self, arrival: u64, direction: Direction, bytes: u64) -> u64 {
        let block = &self.timing.block;
        let mut timeline = self.block.lock();
        let BlockTimeline { channels_free_at, read_link_free_at, write_link_free_at } = &mut *timeline;
        let (latency, rate, link_free_at) = match direction {
            Direction::Read => (block.read_latency_ns, block.read_bytes_per_second, read_link_free_at),
            Direction::Write => (block.write_latency_ns, block.write_bytes_per_second, write_link_free_at),
        };
        let mut ready = arrival + u64::from(latency);
        if let Some(channel_free_at) = channels_free_at.iter_mut().min() {
            ready = ready.max(*channel_free_at + u64::from(latency));
            *channel_free_at = ready;
        }
        let done = ready.max(*link_free_at) + transfer_ns(bytes, rate);
        *link_free_at = done;
        done
    }
}

/// Transfer time of bytes on a link, in nanoseconds.
pub(crate) fn transfer_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::profile;

    fn timing() -> Timing {
        profile("romefs-a").and_then(|profile| profile.timing).expect("romefs-a has a timing model")
    }

    #[test]
    fn curves_meet_the_published_points_and_stay_between_them() {
        let timing = timing();
        assert_eq!(timing.store.latency_ns(4 << 10), 2_560);
        assert_eq!(timing.load.latency_ns(1 << 20), 227_950);
        assert_eq!(timing.load.latency_ns(1), timing.load.latency_ns(64));
        for size in (1..3 << 20).step_by(997) {
            assert!(timing.store.latency_ns(size) <= timing.store.latency_ns(size + 997), "{size}");
        }
        let slope = timing.store.latency_ns(2 << 20) - timing.store.latency_ns(1 << 20);
        assert!((300_000..305_000).contains(&slope), "{slope}");
        assert!(timing.store.latency_ns(u64::MAX) > 0);
    }

    #[test]
    fn requests_of_a_batch_overlap_and_share_the_link() {
        let timing = timing();
        let clock = Clock::new(timing, None, Time::Real);
        let alone = clock.submit(0, Direction::Read, 4096);
        let latency = u64::from(timing.block.read_latency_ns);
        assert_eq!(alone, latency + 602);
        let last = (1..16).map(|_| clock.submit(0, Direction::Read, 4096)).max();
        assert_eq!(last, Some(latency + 16 * 602), "latency once, the link sixteen times");
        let write = clock.submit(0, Direction::Write, 4096);
        assert_eq!(write, u64::from(timing.block.write_latency_ns) + 1024, "the other direction is free");
    }

    #[test]
    fn a_drive_at_the_end_of_a_longer_way_is_slower_by_blocks_alone() {
        let chosen = ModelOptions {
            block_command_ns_min: Some(45_000),
            commands_at_once: Some(2),
            link_bytes_per_second_max: Some(2_000_000_000),
            ..ModelOptions::default()
        };
        let (before, after) = (timing(), timing().chosen(&chosen));
        assert_eq!((after.block.read_latency_ns, after.block.write_latency_ns), (50_000, 45_000), "a read took longer anyway");
        assert_eq!((after.load, after.store, after.block.channel_count), (before.load, before.store, 2));
        let clock = Clock::new(after, None, Time::Real);
        let last = (0..4).map(|_| clock.submit(0, Direction::Write, 4096)).last();
        assert_eq!(last, Some(2 * 45_000 + 2 * 2048), "two at once, over a link of half the rate");
    }

    #[test]
    fn a_full_drive_queues() {
        let timing = timing();
        let clock = Clock::new(timing, None, Time::Real);
        let channels = u64::from(timing.block.channel_count);
        let last = (0..=channels).map(|_| clock.submit(0, Direction::Read, 4096)).last();
        assert_eq!(last, Some(2 * u64::from(timing.block.read_latency_ns) + 602));
    }
}

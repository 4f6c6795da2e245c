//! Timing of a drive with firmware: links, dies, a write buffer ([TI6], [TI7]).
//!
//! - Byte path: lines cross the link one after another, each with the profile's latency, like uncached loads and stores; where the profile
//!   has curves of loads and stores, as memory that the CPU caches, an access takes the time of its size on them. All threads share
//!   the link of the direction with the block path. A store is posted and does not wait for the flash. A fence ends with a write-verify
//!   read (ByteFS §4.2) with the latency of the profile.
//! - Block read: the command, then all pages in parallel from their dies, then the link as they arrive.
//! - Block write: the command, then for each page the link and a slot of the write buffer. A slot is free again when the die has programmed
//!   its page, so writers wait if the dies are too slow.
//! - A store (or COMMIT) that needs room freed by a cleaning of the log waits until the cleaning's pages are in the write buffer.
//! - COMMIT and the other commands take the latency of a command.
//! - One core serves all accesses: each line of the byte path, each page of the block path and each COMMIT takes it for one look-up in the
//!   index of the log or of the cache ([`LOOK_UP_NS`]). It works beside the links and dies; an access is delayed where others keep it busy.
//!   What cleaning and garbage collection take of it is not charged, since nobody published it.
//!
//! [TI6]: super
//! [TI7]: super

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::curve::Curve;
use super::plain::{Timing, transfer_ns};
use super::resource::Resource;
use crate::medium::{FLASH_PAGE_BYTES, FlashWork, FlashWorkKind};
use tandemfs_format::LINE_BYTES;

/// Times of a drive with firmware (ByteFS Table 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirmwareTiming {
    /// A load of one line that needs no flash, in nanoseconds.
    pub line_read_ns: u32,
    /// A store of one line, posted.
    pub line_write_ns: u32,
    /// The read that ends a fence.
    pub verify_read_ns: u32,
    /// A command, from its submission until the drive works on it, and its completion.
    pub command_ns: u32,
    /// Maximum number of concurrent commands; 0 means no limit.
    pub commands_at_once: u32,
    /// Bandwidth of the link from the drive, for both paths together, in bytes a second.
    pub read_bytes_per_second: u64,
    /// The same to the drive.
    pub write_bytes_per_second: u64,
    /// A read of a flash page, in nanoseconds.
    pub flash_read_ns: u32,
    /// Programming a flash page.
    pub flash_program_ns: u32,
    /// Erasing a block.
    pub flash_erase_ns: u32,
}

impl FirmwareTiming {
    /// Checks that a drive can have these numbers.
    pub(crate) fn is_sane(&self) -> bool {
        self.read_bytes_per_second > 0 && self.write_bytes_per_second > 0 && self.commands_at_once <= COMMANDS_AT_ONCE_MAX
    }
}

/// A look-up in the firmware's index: the mean on an ARM core with a full log of 256 MiB (ByteFS §4.3). Assumed for a cache of pages, too,
/// about which the paper says nothing.
pub(crate) const LOOK_UP_NS: u64 = 89;

/// Largest limit of concurrent commands.
const COMMANDS_AT_ONCE_MAX: u32 = 1024;

/// When the parts of a drive are free again, in nanoseconds of its time.
#[derive(Debug)]
pub(crate) struct Timeline {
    times: FirmwareTiming,
    read_link: Resource,
    write_link: Resource,
    /// The firmware's processor.
    core: Resource,
    dies: Box<[Resource]>,
    /// Command slots; empty if their number has no limit.
    ways: Box<[Resource]>,
    /// When the pages in the write buffer will have been programmed.
    buffered: BinaryHeap<Reverse<u64>>,
    write_buffer_pages: usize,
    /// Loads and stores by size, where lines do not cross the link one after another.
    curves: Option<(Curve, Curve)>,
    /// Between flash and a cache that the host manages: to the cache, and from it; with their bandwidth.
    inner_links: [Resource; 2],
    inner_bytes_per_second: u64,
}

impl Timeline {
    pub(crate) fn new(times: FirmwareTiming, die_count: u32, write_buffer_pages: u32) -> Self {
        Self {
            times,
            read_link: Resource::default(),
            write_link: Resource::default(),
            core: Resource::default(),
            ways: vec![Resource::default(); times.commands_at_once as usize].into_boxed_slice(),
            dies: vec![Resource::default(); die_count as usize].into_boxed_slice(),
            buffered: BinaryHeap::new(),
            write_buffer_pages: write_buffer_pages.max(1) as usize,
            curves: None,
            inner_links: Default::default(),
            inner_bytes_per_second: u64::MAX,
        }
    }

    /// The same with latencies of loads and stores by size.
    pub(crate) fn with_curves(self, timing: Option<Timing>) -> Self {
        Self { curves: timing.map(|timing| (timing.load, timing.store)), ..self }
    }

    /// The same with a bandwidth between flash and a cache that the host manages.
    pub(crate) fn with_inner_bandwidth(self, bytes_per_second: u64) -> Self {
        Self { inner_bytes_per_second: bytes_per_second.max(1), ..self }
    }

    /// Lines to the host, from `at`. Returns when the last is there.
    pub(crate) fn read_lines(&mut self, at: u64, lines: u64) -> u64 {
        let transfer = transfer_ns(lines * LINE_BYTES as u64, self.times.read_bytes_per_second);
        let found = self.look_up(at, lines);
        self.read_link.share(at, transfer).max(at + self.lines_ns(lines, false)).max(found)
    }

    /// Lines to the drive, from `at`. Returns when the processor goes on.
    pub(crate) fn write_lines(&mut self, at: u64, lines: u64) -> u64 {
        let transfer = transfer_ns(lines * LINE_BYTES as u64, self.times.write_bytes_per_second);
        let found = self.look_up(at, lines);
        self.write_link.share(at, transfer).max(at + self.lines_ns(lines, true)).max(found)
    }

    fn lines_ns(&self, lines: u64, is_store: bool) -> u64 {
        match (&self.curves, is_store) {
            (Some((load, _)), false) => load.latency_ns(lines * LINE_BYTES as u64),
            (Some((_, store)), true) => store.latency_ns(lines * LINE_BYTES as u64),
            (None, false) => lines * u64::from(self.times.line_read_ns),
            (None, true) => lines * u64::from(self.times.line_write_ns),
        }
    }

    /// The core looks up so many lines or pages, from `at`. Returns when the last is found.
    pub(crate) fn look_up(&mut self, at: u64, count: u64) -> u64 {
        self.core.share(at, count * LOOK_UP_NS)
    }

    /// The write-verify read of a fence.
    pub(crate) fn verify(&self, at: u64) -> u64 {
        at + u64::from(self.times.verify_read_ns)
    }

    /// A command reaches the drive.
    pub(crate) fn command(&mut self, at: u64) -> u64 {
        let service = u64::from(self.times.command_ns);
        match self.ways.iter_mut().min_by_key(|way| way.free_at()) {
            Some(way) => way.reserve(at, service),
            None => at + service,
        }
    }

    /// A page to the host, which was ready at `ready`.
    pub(crate) fn send_page(&mut self, ready: u64) -> u64 {
        let transfer = transfer_ns(FLASH_PAGE_BYTES as u64, self.times.read_bytes_per_second);
        self.read_link.share(ready, transfer)
    }

    /// A page from the host into the write buffer, from `at`.
    pub(crate) fn receive_page(&mut self, at: u64) -> u64 {
        let transfer = transfer_ns(FLASH_PAGE_BYTES as u64, self.times.write_bytes_per_second);
        let arrived = self.write_link.share(at, transfer);
        self.admit(arrived)
    }

    /// A page from the flash, which was ready at `ready`, into a cache that the host manages.
    pub(crate) fn bring_in(&mut self, ready: u64) -> u64 {
        let transfer = transfer_ns(FLASH_PAGE_BYTES as u64, self.inner_bytes_per_second);
        self.inner_links[0].share(ready, transfer)
    }

    /// A page from such a cache into the write buffer, from `at`.
    pub(crate) fn write_back(&mut self, at: u64) -> u64 {
        let transfer = transfer_ns(FLASH_PAGE_BYTES as u64, self.inner_bytes_per_second);
        let arrived = self.inner_links[1].share(at, transfer);
        self.admit(arrived)
    }

    /// A page that arrived gets a place in the write buffer.
    fn admit(&mut self, arrived: u64) -> u64 {
        let mut admitted = arrived;
        while let Some(&Reverse(programmed)) = self.buffered.peek() {
            if programmed > admitted && self.buffered.len() < self.write_buffer_pages {
                break;
            }
            admitted = admitted.max(programmed);
            self.buffered.pop();
        }
        admitted
    }

    /// The flash works from `at` on, and the access waits for all of it. Returns when the last is done.
    pub(crate) fn work(&mut self, at: u64, work: &[FlashWork]) -> u64 {
        work.iter().map(|work| self.charge(at, work)).fold(at, u64::max)
    }

    /// The flash works from `at` on, and the access waits for what it needs.
    pub(crate) fn work_needed(&mut self, at: u64, work: &[FlashWork]) -> u64 {
        let needed = |work: &FlashWork, done| if work.is_waited_for { done } else { at };
        work.iter().map(|work| needed(work, self.charge(at, work))).fold(at, u64::max)
    }

    /// The flash works behind the access, which waits for nothing.
    pub(crate) fn work_behind(&mut self, at: u64, work: &[FlashWork]) -> u64 {
        self.work(at, work);
        at
    }

    /// Waits until the pages still to be programmed fit into the write buffer: the others have yet to arrive from a cleaning.
    pub(crate) fn catch_up(&mut self, at: u64) -> u64 {
        let mut done = at;
        while self.buffered.len() > self.write_buffer_pages {
            let Some(Reverse(programmed)) = self.buffered.pop() else { break };
            done = done.max(programmed);
        }
        done
    }

    fn charge(&mut self, at: u64, work: &FlashWork) -> u64 {
        let service = u64::from(match work.kind {
            FlashWorkKind::Read => self.times.flash_read_ns,
            FlashWorkKind::Program => self.times.flash_program_ns,
            FlashWorkKind::Erase => self.times.flash_erase_ns,
        });
        let count = self.dies.len();
        let done = self.dies[work.die as usize % count].reserve(at, service);
        if work.kind == FlashWorkKind::Program {
            self.buffered.push(Reverse(done));
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(commands_at_once: u32) -> Timeline {
        let bytefs = crate::profile("bytefs").and_then(|profile| profile.firmware).and_then(|model| model.timing);
        Timeline::new(FirmwareTiming { commands_at_once, ..bytefs.expect("timed") }, 4, 16)
    }

    #[test]
    fn accesses_wait_for_the_one_core() {
        let mut timeline = timeline(0);
        assert_eq!(timeline.write_lines(0, 1), 600, "alone, the look-up is hidden in the store");
        let done: Vec<u64> = (0..16).map(|_| timeline.write_lines(1000, 1)).collect();
        assert_eq!((done[0], done[15]), (1600, 1000 + 16 * LOOK_UP_NS));
        assert_eq!(timeline.look_up(1000, 2), 1000 + 18 * LOOK_UP_NS);
    }

    #[test]
    fn commands_wait_for_each_other_where_few_are_on_their_way_at_once() {
        let done = |commands_at_once| {
            let mut timeline = timeline(commands_at_once);
            [0, 0, 0, 20_000].map(|at| timeline.command(at))
        };
        assert_eq!(done(0), [4_800, 4_800, 4_800, 24_800], "no limit");
        assert_eq!(done(2), [4_800, 4_800, 9_600, 24_800]);
        assert_eq!(done(1), [4_800, 9_600, 14_400, 24_800]);
    }
}

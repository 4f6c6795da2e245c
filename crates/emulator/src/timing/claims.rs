//! Latency and bandwidth that a profile claims for an access. `device bench` shows them next to its measurements, and tests compare the
//! model with them.

use tandemfs_device::MoveDirection;
use tandemfs_format::{LINE_BYTES, SECTOR_BYTES};

use super::firmware::{FirmwareTiming, LOOK_UP_NS};
use super::plain::{Timing, transfer_ns};
use crate::model::{FirmwareModel, Staging};

/// An access of either path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A load that needs no flash read.
    Load,
    /// A store, without the fence.
    Store,
    /// A block read of pages on the flash.
    Read,
    /// A block write while the write buffer has room.
    Write,
}

/// Claim for accesses of one size and queue depth: threads on the byte path, requests of a batch on the block path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Until the last of them is done, in nanoseconds.
    pub latency_ns: u64,
    /// Of all of them together, in bytes a second.
    pub bytes_per_second: u64,
}

impl Claim {
    fn new(latency_ns: u64, bytes: u64) -> Self {
        let latency_ns = latency_ns.max(1);
        Self { latency_ns, bytes_per_second: (u128::from(bytes) * 1_000_000_000 / u128::from(latency_ns)) as u64 }
    }
}

/// `count` pieces that `servers` work on, `service_ns` each, and that then cross a link one by one. Returns when the last has crossed.
fn pipeline_ns(count: u64, servers: u64, service_ns: u64, transfer_ns: u64) -> u64 {
    let rounds = count.div_ceil(servers).max(1);
    // Either the link is behind from the first round on, or it waits for the last.
    let link_bound = service_ns + count * transfer_ns;
    let server_bound = rounds * service_ns + (count - (rounds - 1) * servers) * transfer_ns;
    link_bound.max(server_bound)
}

impl FirmwareTiming {
    /// Claim for accesses of `size_bytes`, `depth` at a time, on a drive with this number of dies.
    pub fn claim(&self, access: Access, size_bytes: u64, depth: u64, die_count: u64) -> Claim {
        let (lines, pages) = (size_bytes.div_ceil(LINE_BYTES as u64), depth * size_bytes.div_ceil(SECTOR_BYTES as u64));
        let core_ns = depth * lines * LOOK_UP_NS;
        let lines_ns = |line_ns: u32, rate| (lines * u64::from(line_ns)).max(transfer_ns(depth * size_bytes, rate)).max(core_ns);
        let page_ns = |rate| transfer_ns(SECTOR_BYTES as u64, rate);
        let command_ns = u64::from(self.command_ns) + LOOK_UP_NS;
        let latency_ns = match access {
            Access::Load => lines_ns(self.line_read_ns, self.read_bytes_per_second),
            Access::Store => lines_ns(self.line_write_ns, self.write_bytes_per_second),
            Access::Read => command_ns + pipeline_ns(pages, die_count, u64::from(self.flash_read_ns), page_ns(self.read_bytes_per_second)),
            Access::Write => command_ns + pages * page_ns(self.write_bytes_per_second),
        };
        Claim::new(latency_ns, depth * size_bytes)
    }

    /// Sustained write bandwidth in bytes a second: the lower of dies and link. Garbage collection uses part of it.
    pub fn sustained_write_bytes_per_second(&self, die_count: u64) -> u64 {
        match u64::from(self.flash_program_ns) {
            0 => self.write_bytes_per_second,
            ns => self.write_bytes_per_second.min(die_count * SECTOR_BYTES as u64 * 1_000_000_000 / ns),
        }
    }
}

impl FirmwareModel {
    /// Claim for a MOVE of so many bytes between flash and a cache that the host manages, `depth` at a time, while the write buffer has
    /// room. `None` without a timing model or such a cache.
    pub fn claim_move(&self, direction: MoveDirection, size_bytes: u64, depth: u64) -> Option<Claim> {
        let Staging::HostCache { bytes_per_second, .. } = self.staging else { return None };
        let timing = self.timing?;
        let pages = depth * size_bytes.div_ceil(SECTOR_BYTES as u64);
        let page_ns = transfer_ns(SECTOR_BYTES as u64, bytes_per_second);
        let moved_ns = match direction {
            MoveDirection::ToCache => pipeline_ns(pages, self.die_count().into(), u64::from(timing.flash_read_ns), page_ns),
            MoveDirection::ToFlash => pages * page_ns,
        };
        Some(Claim::new(u64::from(timing.command_ns) + LOOK_UP_NS + moved_ns, depth * size_bytes))
    }
}

impl Timing {
    /// Claim for accesses of `size_bytes`, `depth` at a time.
    pub fn claim(&self, access: Access, size_bytes: u64, depth: u64) -> Claim {
        let port_ns = transfer_ns(depth * size_bytes, self.port_bytes_per_second);
        let block = |latency_ns: u32, rate| {
            pipeline_ns(depth, u64::from(self.block.channel_count), u64::from(latency_ns), transfer_ns(size_bytes, rate))
        };
        let latency_ns = match access {
            Access::Load => self.load.latency_ns(size_bytes).max(port_ns),
            Access::Store => self.store.latency_ns(size_bytes).max(port_ns),
            Access::Read => block(self.block.read_latency_ns, self.block.read_bytes_per_second),
            Access::Write => block(self.block.write_latency_ns, self.block.write_bytes_per_second),
        };
        Claim::new(latency_ns, depth * size_bytes)
    }
}

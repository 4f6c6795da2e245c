//! Space allocation. Allocation maps are derived state: in host memory while mounted, saved at a clean unmount, rebuilt after a crash. So
//! an allocation costs no device write; the transaction that points to the space makes it owned.
//!
//! Only the saved maps are stored to the device here. If a region must grow, [`memory::MemoryAllocator::step`] (`regions.rs`) returns the
//! change, and `volume/space.rs` commits it; so it is with a unit that leaves a region (`departure.rs`, `volume/units.rs`).

mod aligned_pools;
mod aligned_space;
pub(crate) mod bits;
mod creatable;
mod data_area;
pub(crate) mod departure;
mod emptying;
mod extents;
mod freed_apart;
mod freed_sectors;
pub(crate) mod gathering;
mod hold;
mod large_units;
pub(crate) mod maps;
mod maxima;
pub(crate) mod memory;
mod pools;
mod region_state;
pub(crate) mod regions;
pub(crate) mod rise;
mod scattered;
pub(crate) mod sectors;
pub(crate) mod shrinking;
pub(crate) mod spare_pages;
#[cfg(test)]
mod speed;
mod table_lines;
mod unit_pages;
mod units;

use crate::health::Health;
use crate::space::Space;

/// Space was freed that was not taken: maps and metadata contradict each other, so all allocation stops.
pub(crate) fn freed_by_nobody(health: &Health, space: Space) {
    let _stopped = health.stop_because(format!("metadata contradicts the allocation maps: space was freed that nobody had ({space})"));
}

/// The purpose of an allocation (RULES R14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// New data, new names: do not use the transient room.
    Growth,
    /// Overwrites, write-back: free what they take, so they may use the transient room.
    Transient,
    /// Moves out of units that are being emptied ([EU2] of `emptying.rs`, [GA2] of `gathering.rs`, [SX3] of `scattered.rs`).
    Move,
}

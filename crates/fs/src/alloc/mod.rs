//! Space. Allocation maps are derived state: in host memory while mounted, saved at a clean unmount, rebuilt after a crash. So giving
//! space out costs no device write; what makes it owned is the transaction that points to it.
//!
//! Nothing here stores to the device but the saved maps: where a region has to grow, [`memory::MemoryAllocator::step`] (`regions.rs`) returns what has to be
//! committed for it, and `volume/space.rs` commits that.

pub(crate) mod bits;
mod data_area;
pub(crate) mod lent;
pub(crate) mod maps;
pub(crate) mod memory;
mod pools;
pub(crate) mod regions;
pub(crate) mod rise;
pub(crate) mod sectors;
mod units;

use crate::health::Health;
use crate::space::Space;

/// Space was freed that nobody had: maps and metadata contradict each other, so nothing may be given out any more.
pub(crate) fn freed_by_nobody(health: &Health, space: Space) {
    let _stopped = health.stop_because(format!("metadata contradicts the allocation maps: space was freed that nobody had ({space})"));
}

/// What space is asked for (RULES R14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// New data, new names: leaves the transient room alone.
    Growth,
    /// Overwrites, write-back: give back what they take, so they may use the transient room.
    Transient,
}

//! Space. Allocation maps are derived state: in host memory while mounted, saved at a clean unmount, rebuilt after a crash. So giving
//! space out costs no device write; what makes it owned is the transaction that points to it.

pub(crate) mod bits;
pub(crate) mod lent;
pub(crate) mod maps;
pub(crate) mod memory;
mod pools;
pub(crate) mod sectors;

/// What space is asked for (RULES R14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// New data, new names: leaves the transient room alone.
    Growth,
    /// Overwrites, write-back: give back what they take, so they may use the transient room.
    Transient,
}

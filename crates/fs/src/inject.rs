//! Allocations that fail on demand, and transaction numbers that run out, for tests of running out. Without the feature `mutants` nothing of it is compiled in; no program
//! enables it.

/// What an allocator gives out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Sectors of the block zone.
    Sectors,
    /// A slot for a data log.
    Slot,
    /// Lines of a region.
    Lines,
    /// A unit of the memory zone, for a region or for data.
    Unit,
}

impl Take {
    /// All of them.
    #[cfg(feature = "mutants")]
    pub const ALL: [Self; 4] = [Self::Sectors, Self::Slot, Self::Lines, Self::Unit];
}

#[cfg(feature = "mutants")]
thread_local! {
    static PLAN: std::cell::Cell<Option<(Take, u64)>> = const { std::cell::Cell::new(None) };
    static TAKEN: std::cell::Cell<[u64; 4]> = const { std::cell::Cell::new([0; 4]) };
}

/// Lets one allocation of this thread fail, after so many of its kind that succeed. None where there is no plan; counting starts anew.
#[cfg(feature = "mutants")]
pub fn fail_allocation(plan: Option<(Take, u64)>) {
    PLAN.set(plan);
    TAKEN.set([0; 4]);
}

/// Allocations of a kind that this thread has tried since the last plan.
#[cfg(feature = "mutants")]
pub fn allocations(take: Take) -> u64 {
    TAKEN.get()[take as usize]
}

#[cfg(feature = "mutants")]
static LAST_NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(u32::MAX);

/// Lets the numbers of the drive's transactions end here, so that a test need not wait for four thousand million of them.
#[cfg(feature = "mutants")]
pub fn end_transaction_numbers_at(last: u32) {
    LAST_NUMBER.store(last, std::sync::atomic::Ordering::SeqCst);
}

/// The last number of a transaction of the drive, before they begin again.
#[cfg(feature = "mutants")]
pub(crate) fn last_transaction_number() -> u32 {
    LAST_NUMBER.load(std::sync::atomic::Ordering::Relaxed)
}

/// The last number of a transaction of the drive, before they begin again.
#[cfg(not(feature = "mutants"))]
pub(crate) const fn last_transaction_number() -> u32 {
    u32::MAX
}

#[cfg(feature = "mutants")]
pub(crate) fn fails(take: Take) -> bool {
    let mut taken = TAKEN.get();
    taken[take as usize] += 1;
    TAKEN.set(taken);
    PLAN.get() == Some((take, taken[take as usize] - 1))
}

#[cfg(not(feature = "mutants"))]
pub(crate) const fn fails(_: Take) -> bool {
    false
}

//! For tests of exhaustion: allocations that fail on demand, and transaction numbers that end early. Only the feature `mutants` compiles
//! this in; no program enables it.

/// Kinds of allocation.
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
    /// Pages of the memory zone for an extent of a file.
    Pages,
}

impl Take {
    /// All kinds.
    #[cfg(feature = "mutants")]
    pub const ALL: [Self; 5] = [Self::Sectors, Self::Slot, Self::Lines, Self::Unit, Self::Pages];
}

#[cfg(feature = "mutants")]
thread_local! {
    static PLAN: std::cell::Cell<Option<(Take, u64)>> = const { std::cell::Cell::new(None) };
    static TAKEN: std::cell::Cell<[u64; 5]> = const { std::cell::Cell::new([0; 5]) };
}

/// Lets one allocation of this thread fail, after the given number of successful ones of its kind. `None` ends the plan. Counting restarts.
#[cfg(feature = "mutants")]
pub fn fail_allocation(plan: Option<(Take, u64)>) {
    PLAN.set(plan);
    TAKEN.set([0; 5]);
}

/// Allocations of a kind that this thread has tried since the last plan.
#[cfg(feature = "mutants")]
pub fn allocations(take: Take) -> u64 {
    TAKEN.get()[take as usize]
}

#[cfg(feature = "mutants")]
static LAST_NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(u32::MAX);

/// Ends the numbers of the drive's transactions here, so that a test does not need four thousand million transactions.
#[cfg(feature = "mutants")]
pub fn end_transaction_numbers_at(last: u32) {
    LAST_NUMBER.store(last, std::sync::atomic::Ordering::SeqCst);
}

/// The last number of a drive transaction before the numbers start again.
#[cfg(feature = "mutants")]
pub(crate) fn last_transaction_number() -> u32 {
    LAST_NUMBER.load(std::sync::atomic::Ordering::Relaxed)
}

/// The last number of a drive transaction before the numbers start again.
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

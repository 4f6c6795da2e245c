//! Deliberate bugs, which show that the tests of the C interface can fail (`docs/TESTING.md`). Without the feature `mutants` every switch is
//! `false` at compile time; no program enables it. The variable `TANDEMFS_C_MUTANT` has the name of the bug of a process.

/// A deliberate bug and the rule of `lib.rs` that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mutant {
    #[cfg(feature = "mutants")]
    None,
    /// [CAP1]: no bytes at no place are no bytes.
    NullIsEmpty,
    /// [CAP2]: a panic leaves.
    PanicLeaves,
    /// [CAP3]: a child uses what its parent has.
    ForkForgotten,
    /// [CAP4]: what only the kernel can do fails as anything else.
    CrossedUnsaid,
    /// [CAP5]: who fails clears what it would have stored.
    ClearedOnFailure,
    /// [CAP6]: a sentence fills its room.
    NoRoomForEnd,
}

#[cfg(feature = "mutants")]
static SELECTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(Mutant::None as u8);

/// Held by the unit test whose bug it is, and by those that it would disturb.
#[cfg(test)]
pub(crate) static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

#[cfg(all(test, feature = "mutants"))]
pub(crate) fn select(mutant: Mutant) {
    SELECTED.store(mutant as u8, std::sync::atomic::Ordering::SeqCst);
}

/// Selects the bug that the environment names, if it names one.
///
/// # Panics
/// If there is none of this name.
#[cfg(feature = "mutants")]
pub(crate) fn select_named() {
    use Mutant::*;
    const ALL: [Mutant; 6] = [NullIsEmpty, PanicLeaves, ForkForgotten, CrossedUnsaid, ClearedOnFailure, NoRoomForEnd];
    let Some(name) = std::env::var_os("TANDEMFS_C_MUTANT") else { return };
    let Some(mutant) = ALL.into_iter().find(|mutant| *format!("{mutant:?}") == *name) else { panic!("{name:?}: no such bug") };
    SELECTED.store(mutant as u8, std::sync::atomic::Ordering::SeqCst);
}

#[cfg(not(feature = "mutants"))]
pub(crate) const fn select_named() {}

#[cfg(feature = "mutants")]
pub(crate) fn on(mutant: Mutant) -> bool {
    SELECTED.load(std::sync::atomic::Ordering::Relaxed) == mutant as u8
}

#[cfg(not(feature = "mutants"))]
pub(crate) const fn on(_: Mutant) -> bool {
    false
}

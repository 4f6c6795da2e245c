//! Deliberate bugs, which show that the tests of the protocols can fail (`docs/TESTING.md`). Without the feature `mutants` every switch is
//! `false` at compile time; no program enables the feature.

/// A deliberate bug and the rule that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "mutants", allow(missing_docs))]
#[repr(u8)]
pub enum Mutant {
    #[cfg(feature = "mutants")]
    None,
    /// [SLT1]: the turn is stored before the head.
    TurnBeforeHead,
    /// [SLT1]: the head is read before the turn.
    HeadBeforeTurn,
    /// [SLT2]: the turn of the answer is stored before the answer.
    AnswerAfterTurn,
    /// [SLT3]: a slot is free for the daemon only after its answer was published.
    BusyPastAnswer,
    /// [SLT4]: the number of slots in use is raised after the first ring.
    UsedRaisedLate,
    /// [SLT5]: no fence between the answer and the look whether the client sleeps.
    AnswersWithoutFence,
    /// [SLT5]: the client sleeps by a value that it reads after its last look.
    SleepValueReadLate,
    /// [SLT6]: a slot whose caller has left is used again before its answer.
    AbandonedReusedEarly,
    /// [SLT6]: data areas of a caller who left are given out again before the answer.
    BuffersReturnedEarly,
    /// [SLT7]: the end does not change the words that clients sleep on.
    EndLeavesWords,
    /// [BEL1]: no fence between a request and the look at the daemon's attention.
    RingsWithoutFence,
    /// [BEL1]: no fence between the daemon's word and its last scan.
    DozesWithoutFence,
    /// [BEL2]: the daemon says that it is asleep only after its last scan.
    AsleepAfterScan,
    /// [BEL2]: the doorbell is read after the last scan.
    BellReadAfterScan,
    /// [BEL2]: no last scan.
    ScanLeftOut,
    /// [BEL3]: a client that rings stays out of the scan.
    RingIgnored,
    /// [BEL5]: a poller is handed on amid a round: what it has collected is forgotten.
    CollectedLeftBehind,
    /// [BEL5]: a poller sleeps although it is to be handed on.
    SleepsBeforeLeaving,
    /// [VER2]: a word is loaded and stored, so one of two raises may be lost.
    RaisedInTwoSteps,
    /// [VER9]: who has loaded does not look again.
    LooksOnce,
    /// [LSE1]: a lease is revoked by a load and a store.
    RevokedInTwoSteps,
    /// [LSE2]: a thread enters a lease that is revoked.
    EntersRevoked,
    /// [LSE3]: a thread enters by what it knows of an older lease.
    EpochIgnored,
    /// [LSE4]: a thread that is inside enters once more.
    EntersTwice,
    /// [LSE5]: who leaves a lease that was taken away believes that his bytes count.
    TakenUnseen,
    /// [IDL1]: an idle file is taken by a load and a store.
    IdleTakenByTwo,
    /// [IDL3]: the client compares the version words before it can be seen that a file is idle.
    IdleUnfenced,
    /// [TRU2]: a range beyond the data area is accepted.
    RangeUnchecked,
    /// [TRU2]: lengths of names are not checked.
    NamesUnchecked,
    /// [TRU1]: a checked word is read again from the shared memory.
    HeadReadTwice,
    /// [TRU3]: the number of slots in use is believed.
    UsedBelieved,
    /// [TRU4]: a client is served as long as it has requests.
    ServedWithoutEnd,
    /// [TRU5]: rings for nothing are not counted.
    EmptyRingsUncounted,
}

#[cfg(feature = "mutants")]
static SELECTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(Mutant::None as u8);

/// Selects the bug of this process; [`Mutant::None`] for none.
#[cfg(feature = "mutants")]
pub fn select(mutant: Mutant) {
    SELECTED.store(mutant as u8, std::sync::atomic::Ordering::SeqCst);
}

#[cfg(feature = "mutants")]
pub(crate) fn on(mutant: Mutant) -> bool {
    SELECTED.load(std::sync::atomic::Ordering::Relaxed) == mutant as u8
}

#[cfg(not(feature = "mutants"))]
pub(crate) const fn on(_: Mutant) -> bool {
    false
}

#[cfg(feature = "mutants")]
mod lies {
    use std::cell::{Cell, RefCell};

    type Lie = Box<dyn FnMut()>;

    thread_local! {
        static LIE: RefCell<Option<Lie>> = const { RefCell::new(None) };
        /// Looked at first: a handler of signals may leave a load for good in its middle, and the other cell would stay borrowed.
        static LIES: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs at each load from shared memory by this thread, as a client that changes words in the middle of a step.
    pub fn at_each_load(lie: Option<Box<dyn FnMut()>>) {
        LIES.set(lie.is_some());
        LIE.with(|cell| *cell.borrow_mut() = lie);
    }

    pub(crate) fn load() {
        if !LIES.try_with(Cell::get).unwrap_or(false) {
            return;
        }
        // A program may call at its thread's end, when its values are gone; none of the tests that lie does.
        let lie = LIE.try_with(|cell| cell.borrow_mut().take()).ok().flatten();
        if let Some(mut lie) = lie {
            lie();
            LIE.with(|cell| {
                cell.borrow_mut().get_or_insert(lie);
            });
        }
    }
}

#[cfg(feature = "mutants")]
pub use lies::at_each_load;
#[cfg(feature = "mutants")]
pub(crate) use lies::load;

#[cfg(not(feature = "mutants"))]
pub(crate) const fn load() {}

//! Whether the calling thread waits. A thread that serves many others from one loop must not: inside a scope of [`begin`] the file system
//! refuses what would wait, until the scope has changed something.
//!
//! Waits -(begin)-> Tries -(refuse)-> Refused; Tries, Refused -(commit)-> Committed; any -(end)-> Waits.
//!
//! A thread that may wait, but whose place somebody else then has to take, says so: inside a scope of [`begin_announcing`] the file system
//! calls a function of the scope once, before it first waits.
//!
//! Waits -(begin_announcing)-> Announces -(announce)-> Announced; both -(end)-> Waits.
//!
//! The mode belongs to a thread. Workers of virtual time ([`super::workers`]) share one thread and open no scope.

use std::cell::Cell;

/// What happened in a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// No scope is open: locks are waited for.
    Waits,
    /// Nothing has been refused or changed yet.
    Tries,
    /// Something would have waited. The scope goes on without waiting, so that it can give back what it has.
    Refused,
    /// A change is durable, so the scope cannot be repeated any more: what is left of it waits.
    Committed,
    /// The thread waits, but has to say so before.
    Announces,
    /// It has said so.
    Announced,
}

super::thread_local! {
    static PATIENCE: Cell<Patience> = const { Cell::new(Patience::Waits) };
    static TELL: Cell<fn()> = const { Cell::new(nobody) };
}

fn nobody() {}

/// What the calling thread does where it would wait.
#[inline]
pub fn patience() -> Patience {
    PATIENCE.with(Cell::get)
}

/// Whether the calling thread must not wait now.
#[inline]
pub fn tries() -> bool {
    matches!(patience(), Patience::Tries | Patience::Refused)
}

/// Whether something has to be done before the calling thread waits: to refuse, or to announce it.
#[inline]
pub fn is_bound() -> bool {
    matches!(patience(), Patience::Tries | Patience::Refused | Patience::Announces)
}

fn open(as_which: Patience) -> bool {
    PATIENCE.with(|patience| {
        let is_outermost = patience.get() == Patience::Waits;
        if is_outermost {
            patience.set(as_which);
        }
        is_outermost
    })
}

/// Opens a scope. Scopes do not nest: the outermost one counts. False if one is open already.
#[inline]
pub fn begin() -> bool {
    open(Patience::Tries)
}

/// Opens a scope in which the thread waits, but calls `tell` before it first does. False if a scope is open already.
#[inline]
pub fn begin_announcing(tell: fn()) -> bool {
    let opened = open(Patience::Announces);
    if opened {
        TELL.with(|told| told.set(tell));
    }
    opened
}

/// Says that the thread is about to wait, if that has to be said.
#[cold]
pub fn announce() {
    if patience() == Patience::Announces {
        PATIENCE.with(|patience| patience.set(Patience::Announced));
        TELL.with(Cell::get)();
    }
}

/// Ends the scope of this thread; returns what happened in it.
#[inline]
pub fn end() -> Patience {
    PATIENCE.with(|patience| patience.replace(Patience::Waits))
}

/// Notes that something would have waited.
#[cold]
pub fn refuse() {
    PATIENCE.with(|patience| patience.set(Patience::Refused));
}

/// Notes that a change became durable.
#[inline]
pub fn commit() {
    if tries() {
        PATIENCE.with(|patience| patience.set(Patience::Committed));
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use super::*;

    #[test]
    fn a_scope_tries_until_it_has_changed_something() {
        assert!(!tries() && begin() && tries());
        assert!(!begin(), "the outermost scope counts");
        refuse();
        assert!(tries(), "what was refused still does not wait");
        commit();
        assert!(!tries(), "what cannot be repeated waits");
        assert_eq!((end(), patience()), (Patience::Committed, Patience::Waits));
        commit();
        assert_eq!(patience(), Patience::Waits, "outside of a scope nothing is noted");
    }

    #[test]
    fn a_wait_is_announced_once_a_scope() {
        use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
        static TOLD: AtomicU32 = AtomicU32::new(0);
        fn tell() {
            TOLD.fetch_add(1, SeqCst);
        }
        announce();
        assert!(!is_bound() && begin_announcing(tell) && is_bound() && !tries());
        assert!(!begin(), "the outermost scope counts");
        commit();
        assert_eq!((patience(), TOLD.load(SeqCst)), (Patience::Announces, 0));
        announce();
        announce();
        assert!(!is_bound());
        assert_eq!((end(), TOLD.load(SeqCst), patience()), (Patience::Announced, 1, Patience::Waits));
    }
}

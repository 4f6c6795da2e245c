//! Whether the calling thread waits. A thread that serves many others from one loop must not: inside a scope of [`begin`] the file system
//! refuses what would wait, until the scope has changed something.
//!
//! Waits -(begin)-> Tries -(refuse)-> Refused; Tries, Refused -(commit)-> Committed; any -(end)-> Waits.
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
}

super::thread_local! {
    static PATIENCE: Cell<Patience> = const { Cell::new(Patience::Waits) };
}

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

/// Opens a scope. Scopes do not nest: the outermost one counts. False if one is open already.
#[inline]
pub fn begin() -> bool {
    PATIENCE.with(|patience| {
        let is_outermost = patience.get() == Patience::Waits;
        if is_outermost {
            patience.set(Patience::Tries);
        }
        is_outermost
    })
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
}

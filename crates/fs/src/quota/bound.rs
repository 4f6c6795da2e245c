//! Whether the operations of this thread are refused at a limit ([QT4]).
//!
//! The doors say for whom an operation runs, and how to find out whether he may exceed limits (`CAP_SYS_RESOURCE`): that may have to be read from
//! `/proc`, so it is asked only where the operation would be refused. The mode belongs to the thread, as that of `wait.rs`.

use std::cell::Cell;

/// A caller: a number that the door knows him by, and the question whether he may exceed limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    caller: u64,
    may_exceed: fn(u64) -> bool,
}

thread_local! {
    static BOUND: Cell<Option<Bound>> = const { Cell::new(None) };
}

/// Restores the mode, also after a panic.
struct Scope(Option<Bound>);

impl Drop for Scope {
    fn drop(&mut self) {
        BOUND.set(self.0);
    }
}

/// Runs an operation for a caller who is bound by limits, unless `may_exceed` says of `caller` that he is not.
pub(crate) fn bound_to<T>(caller: u64, may_exceed: fn(u64) -> bool, operation: impl FnOnce() -> T) -> T {
    on_behalf_of(Some(Bound { caller, may_exceed }), operation)
}

/// Runs work that no limit refuses: it is not the caller's, or it gives space back.
pub(crate) fn unbound<T>(work: impl FnOnce() -> T) -> T {
    on_behalf_of(None, work)
}

/// Runs an operation for who is bound by limits, or for nobody.
pub(crate) fn on_behalf_of<T>(bound: Option<Bound>, operation: impl FnOnce() -> T) -> T {
    let _scope = Scope(BOUND.replace(bound));
    operation()
}

/// Who is bound by limits in what this thread does.
pub(crate) fn current() -> Option<Bound> {
    BOUND.get()
}

/// Whether a limit may refuse what this thread does.
pub(crate) fn is_bound() -> bool {
    BOUND.get().is_some()
}

/// Whether the caller may exceed limits.
pub(super) fn may_exceed() -> bool {
    BOUND.get().is_none_or(|bound| (bound.may_exceed)(bound.caller))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_bound_inside_of_his_operation_alone() {
        assert!(!is_bound() && may_exceed());
        bound_to(
            5,
            |caller| caller == 6,
            || {
                assert!(is_bound() && !may_exceed());
                unbound(|| assert!(!is_bound()));
                bound_to(6, |caller| caller == 6, || assert!(is_bound() && may_exceed()));
                assert!(is_bound() && !may_exceed());
            },
        );
        assert!(!is_bound());
    }
}

//! The frame of every function of the interface: what it returns, and that no panic leaves it ([CAP2]).

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::failure::{Failure, Result};
use crate::mutant::{Mutant, on};

/// What the body returns, or the negative errno.
pub(crate) fn guarded<R: From<c_int>>(body: impl FnOnce() -> Result<R>) -> R {
    let done = match on(Mutant::PanicLeaves) {
        true => body(),
        // Nothing that the body has changed is looked at again, but behind locks that know no poison; what it has half made is lost.
        false => catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(Failure::of(libc::ENOTRECOVERABLE))),
    };
    done.unwrap_or_else(|failure| failure.returned().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::ALONE;

    fn panics() -> c_int {
        guarded(|| panic!("on purpose"))
    }

    #[test]
    fn a_panic_is_an_errno() {
        let _alone = ALONE.lock();
        assert_eq!(panics(), -libc::ENOTRECOVERABLE);
        assert_eq!((guarded::<i64>(|| Ok(5)), guarded::<i64>(|| Err(Failure::of(libc::ENOENT)))), (5, -i64::from(libc::ENOENT)));
        #[cfg(feature = "mutants")]
        {
            crate::mutant::select(Mutant::PanicLeaves);
            let left = catch_unwind(panics);
            crate::mutant::select(Mutant::None);
            assert!(left.is_err(), "PanicLeaves escaped");
        }
    }
}

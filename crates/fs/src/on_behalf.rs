//! For whom a thread works: his home node of memory (`numa.rs`), and whether limits of quota bind him (`quota/`).
//!
//! Both belong to the thread. A door that finishes an operation on another thread takes them there.

use crate::numa;
use crate::quota;

/// The caller that a thread works for.
#[derive(Debug, Clone, Copy)]
pub struct OnBehalf {
    node: numa::Caller,
    bound: Option<quota::Bound>,
}

impl OnBehalf {
    /// The caller that this thread works for.
    pub fn current() -> Self {
        Self { node: numa::current(), bound: quota::current() }
    }

    /// Runs operations for the caller, on any thread.
    pub fn run<T>(self, operations: impl FnOnce() -> T) -> T {
        numa::on_behalf_of(self.node, || quota::on_behalf_of(self.bound, operations))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_is_bound_as_the_one_that_began() {
        let begun = quota::bound_to(5, |_| false, OnBehalf::current);
        std::thread::scope(|scope| {
            let other = scope.spawn(move || {
                assert!(begun.run(quota::is_bound) && !quota::is_bound());
                quota::bound_to(6, |_| false, || assert!(!OnBehalf { bound: None, ..begun }.run(quota::is_bound)));
            });
            other.join().expect("no panic");
        });
    }
}

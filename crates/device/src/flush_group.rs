//! One FLUSH serves all who wait (RULES R8): who comes while one is on its way waits for the next, because a FLUSH covers only writes that
//! completed before it began.

use std::io;

use parking_lot::{Condvar, Mutex};

use crate::DeviceError;

#[derive(Debug, Default)]
struct State {
    started: u64,
    completed: u64,
    running: bool,
    /// Number and text of the last FLUSH that failed.
    failed: Option<(u64, String)>,
}

/// The FLUSHes of one drive.
#[derive(Debug, Default)]
pub(crate) struct FlushGroup {
    state: Mutex<State>,
    ended: Condvar,
}

impl FlushGroup {
    /// Returns when a FLUSH that began after this call has ended; runs it if nobody else does.
    pub(crate) fn flush(&self, device: &str, flush: impl Fn() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let needed = state.started + 1;
        loop {
            if state.completed >= needed {
                return match &state.failed {
                    Some((number, text)) if *number >= needed => {
                        let source = io::Error::other(text.clone());
                        Err(DeviceError::Block { device: device.to_owned(), operation: "flush", offset: 0, length: 0, source })
                    }
                    _ => Ok(()),
                };
            }
            if state.running {
                self.ended.wait(&mut state);
                continue;
            }
            state.running = true;
            state.started += 1;
            let number = state.started;
            drop(state);
            let result = flush();
            state = self.state.lock();
            state.running = false;
            state.completed = number;
            if let Err(error) = &result {
                state.failed = Some((number, error.to_string()));
            }
            self.ended.notify_all();
            if number >= needed {
                return result;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    use super::*;

    #[test]
    fn many_who_wait_share_a_flush_that_began_after_they_came() {
        let (group, flushes) = (FlushGroup::default(), AtomicUsize::new(0));
        let barrier = std::sync::Barrier::new(16);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    barrier.wait();
                    let flush = || {
                        flushes.fetch_add(1, SeqCst);
                        std::thread::sleep(Duration::from_millis(100));
                        Ok(())
                    };
                    group.flush("drive", flush).expect("flushes");
                });
            }
        });
        assert!((1..=3).contains(&flushes.load(SeqCst)), "{}", flushes.load(SeqCst));
        group.flush("drive", || Ok(())).expect("flushes");
    }

    #[test]
    fn a_failed_flush_fails_for_all_whom_it_served() {
        let group = FlushGroup::default();
        let fail = || Err(DeviceError::Busy { path: "x".into() });
        assert!(group.flush("drive", fail).is_err());
        assert!(group.flush("drive", || Ok(())).is_ok(), "a later one is another");
    }
}

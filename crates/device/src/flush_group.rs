//! Group flush: one FLUSH serves all threads that wait (RULES R8). A thread that arrives while a FLUSH is running waits for the next one,
//! because a FLUSH covers only writes that completed before it began.
//!
//! A failure is permanent (RULES R15): after a failed FLUSH the cached writes may be lost, and a repeated FLUSH could report success for
//! them. So all current and later callers get the first cause, until the device is opened again.

use std::io;

use crate::DeviceError;
use crate::sync::{Condvar, Mutex};

#[derive(Debug, Default)]
struct State {
    started: u64,
    completed: u64,
    running: bool,
    failure: Option<Failure>,
}

/// The first cause, kept in parts since errors cannot be copied.
#[derive(Debug)]
struct Failure {
    device: String,
    offset: u64,
    length: u64,
    code: Option<i32>,
    text: String,
}

/// Group flush of one drive.
#[derive(Debug, Default)]
pub(crate) struct FlushGroup {
    state: Mutex<State>,
    ended: Condvar,
}

impl FlushGroup {
    /// Returns when a FLUSH that began after this call has completed; issues it if no other thread does.
    pub(crate) fn flush(&self, flush: impl Fn() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let needed = state.started + 1;
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.error());
            }
            if state.completed >= needed {
                return Ok(());
            }
            if state.running {
                self.ended.wait(&mut state);
                continue;
            }
            state.running = true;
            state.started += 1;
            drop(state);
            let result = flush();
            state = self.state.lock();
            state.running = false;
            state.completed = state.started;
            if let Err(error) = &result {
                state.failure.get_or_insert_with(|| Failure::new(error));
            }
            self.ended.notify_all();
            // No other FLUSH started meanwhile, so this is the needed one or a later one.
            return result;
        }
    }
}

impl Failure {
    fn new(error: &DeviceError) -> Self {
        match error {
            DeviceError::Block { device, offset, length, source, .. } => {
                Self { device: device.clone(), offset: *offset, length: *length, code: source.raw_os_error(), text: source.to_string() }
            }
            other => Self { device: String::new(), offset: 0, length: 0, code: None, text: other.to_string() },
        }
    }

    fn error(&self) -> DeviceError {
        let source = self.code.map_or_else(|| io::Error::other(self.text.clone()), io::Error::from_raw_os_error);
        DeviceError::Block { device: self.device.clone(), operation: "flush", offset: self.offset, length: self.length, source }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    /// How many flushes sixteen threads need that come at once.
    fn flushes_of_many() -> usize {
        let (group, flushes, barrier) = (FlushGroup::default(), AtomicUsize::new(0), Barrier::new(16));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    barrier.wait();
                    let flush = || {
                        flushes.fetch_add(1, SeqCst);
                        sleep(Duration::from_millis(100));
                        Ok(())
                    };
                    group.flush(flush).expect("flushes");
                });
            }
        });
        flushes.into_inner()
    }

    #[test]
    fn many_who_wait_share_a_flush_that_began_after_they_came() {
        // On a busy machine they may come one after the other.
        let mut tries = (0..100).map(|_| flushes_of_many());
        assert!(tries.any(|flushes| (1..=3).contains(&flushes)));
    }

    #[test]
    fn a_flush_that_is_on_its_way_does_not_serve_who_comes_late() {
        let (group, flushes, begun) = (FlushGroup::default(), AtomicUsize::new(0), Barrier::new(2));
        let slow = || {
            flushes.fetch_add(1, SeqCst);
            begun.wait();
            sleep(Duration::from_millis(50));
            Ok(())
        };
        std::thread::scope(|scope| {
            scope.spawn(|| group.flush(slow).expect("flushes"));
            begun.wait();
            let own = || {
                flushes.fetch_add(1, SeqCst);
                Ok(())
            };
            group.flush(own).expect("flushes");
        });
        assert_eq!(flushes.load(SeqCst), 2);
    }

    #[test]
    fn a_failed_flush_stays_failed_with_its_first_cause() {
        let group = FlushGroup::default();
        let fail = || {
            let source = io::Error::from_raw_os_error(libc::EIO);
            Err(DeviceError::Block { device: "drive".into(), operation: "flush", offset: 0, length: 4096, source })
        };
        assert!(group.flush(fail).is_err());
        let error = group.flush(|| Ok(())).expect_err("what the failed one should have kept may be gone");
        assert!(matches!(error, DeviceError::Block { source, length: 4096, .. } if source.raw_os_error() == Some(libc::EIO)));
    }
}

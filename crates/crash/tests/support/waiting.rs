//! Threads that wait for a stuck device.

use std::sync::mpsc::{Receiver, channel};
use std::thread::Scope;

use tandemfs_crash::StuckDevice;

/// Releases what is stuck when the test ends, however it ends: threads that are joined must not wait for ever.
pub struct Release<'s>(pub &'s StuckDevice);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Runs in a thread; the receiver hears when it is done.
pub fn start<'scope, T: Send + 'scope>(scope: &'scope Scope<'scope, '_>, work: impl FnOnce() -> T + Send + 'scope) -> Receiver<T> {
    let (sender, receiver) = channel();
    scope.spawn(move || {
        let _nobody_may_listen = sender.send(work());
    });
    receiver
}

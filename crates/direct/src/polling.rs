//! The poller, which the threads of the pool hand to each other ([SRV5] of `serving.rs`).

use tandemfs_ring::Poller;

use crate::mutant::{self, Mutant};
use crate::serving::Desk;

/// Polls, until the poller stops or another thread of the pool has it.
pub(crate) fn poll(mut poller: Poller, mut desk: Desk) {
    loop {
        match poller.run_until(&mut desk, Desk::has_kept) {
            Ok(Some(running)) => poller = running,
            Ok(None) => return,
            Err(error) => return tracing::error!("the direct door is closed: {error}"),
        }
        let Some(job) = desk.take_kept() else { continue };
        if mutant::on(Mutant::PollerNotHandedOn) {
            job();
            continue;
        }
        if !desk.shared().pool.has_idle() {
            desk.shared().pool.run(job); // requests behind the kept one took the idle threads
            continue;
        }
        // Only the thread that polls gives jobs to the pool, so the idle thread is still there.
        let shared = desk.shared();
        shared.pool.run(Box::new(move || poll(poller, desk)));
        return job();
    }
}

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
            Err(error) => {
                tracing::error!("the direct door is closed: {error}");
                return desk.shared().close();
            }
        }
        let Some(job) = desk.take_kept() else { continue };
        if mutant::on(Mutant::PollerNotHandedOn) {
            job();
            continue;
        }
        let shared = desk.shared();
        match shared.pool.run_if_idle((poller, desk), |(poller, desk)| Box::new(move || poll(poller, desk))) {
            Ok(()) => return job(),
            // Requests behind the kept one, or work of the reception, took the idle threads.
            Err(kept) => {
                (poller, desk) = kept;
                shared.pool.run(job);
            }
        }
    }
}

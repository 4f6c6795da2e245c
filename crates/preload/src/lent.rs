//! Memory of the drive that this process loads from and stores to, where the daemon lends it ([PRL19] of `lib.rs`), and the signal by which the
//! kernel says that a page of it cannot be reached.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

use tandemfs_client::Mount;

use crate::mutant::{Mutant, on};
use crate::sys::{self, Signals};

/// The device layer mends faults of its copies on this processor alone.
const MENDS_FAULTS: bool = cfg!(target_arch = "x86_64");

static IS_LENT: AtomicBool = AtomicBool::new(false);
/// The program has a handler of its own for SIGBUS.
static IS_HANDLED: AtomicBool = AtomicBool::new(false);
/// This process has connected before, so the handler may be the device layer's.
static HAS_CONNECTED: AtomicBool = AtomicBool::new(false);
/// The thread that connects, whose handler for SIGBUS is the device layer's.
static CONNECTS: AtomicI32 = AtomicI32::new(0);

/// What is blocked inside ([PRL3], [PRL19]).
pub(crate) fn blocked() -> Signals {
    let mends = MENDS_FAULTS && IS_LENT.load(Relaxed) && !IS_HANDLED.load(Relaxed) && !on(Mutant::FaultsBlocked);
    if mends { Signals::ALL_BUT_FAULTS } else { Signals::ALL }
}

/// Connects to a daemon that may lend memory.
pub(crate) fn connecting<E>(connect: impl FnOnce() -> Result<Mount, E>) -> Result<Mount, E> {
    if !HAS_CONNECTED.swap(true, Relaxed) && sys::has_handler(libc::SIGBUS) {
        IS_HANDLED.store(true, Relaxed);
    }
    CONNECTS.store(sys::thread_id(), Relaxed);
    let connected = connect();
    CONNECTS.store(0, Relaxed);
    if let Ok(mount) = &connected {
        IS_LENT.store(mount.loads_by_itself() || mount.stores_by_itself(), Relaxed);
    }
    connected
}

/// Before the program gives a signal a handler.
pub(crate) fn handles(signal: c_int) {
    if signal == libc::SIGBUS && CONNECTS.load(Relaxed) != sys::thread_id() {
        IS_HANDLED.store(true, Relaxed);
    }
}

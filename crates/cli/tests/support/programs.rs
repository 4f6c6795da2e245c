//! Programs that tests start. Tests of one process run beside each other, and what one of them starts has copies of all descriptors of the process
//! until it is executed: what another test closes meanwhile is open a moment longer, its mount in use, its lock held, its program not to be run, the
//! space of a removed file taken. So starts are counted here, and who has closed something can wait for those that are under way.

use std::io;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock};

/// Read while something is started.
static STARTS: RwLock<()> = RwLock::new(());

/// Starts a program. It has been executed when this returns.
pub fn start(command: &mut Command) -> io::Result<Child> {
    let _under_way = STARTS.read().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

/// Waits until all that is being started has been executed: from then on nobody has copies of what this test has closed.
pub fn has_no_copies() {
    drop(STARTS.write().unwrap_or_else(PoisonError::into_inner));
}

/// Runs a program, of which no copies are left that this test has closed before.
pub fn run(command: &mut Command) -> Output {
    has_no_copies();
    let started = start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    started.and_then(Child::wait_with_output).unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

//! FUSE file systems of this program that serve as a reference: mounted here, served by threads of this process.

use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use tandemfs_wire::{Handler, MountGuard, Options, Session, Wanted};

use crate::failure::{Failure, Result};

/// A mounted file system. Drop unmounts it lazily: it leaves the tree at once, and ends with its last user.
pub struct Served {
    guard: MountGuard,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Served {
    /// Serves a file system mounted by [`tandemfs_wire::mount()`].
    pub fn start<H: Handler + Send + 'static>(
        (device, guard): (OwnedFd, MountGuard),
        handler: H,
        wanted: &Wanted,
        options: Options,
    ) -> Result<Self> {
        let thread = Session::start(device, handler, wanted, options)?.spawn()?;
        Ok(Self { guard, thread })
    }

    /// Waits until the file system is unmounted.
    pub fn join(self) -> Result<()> {
        let result = self.thread.join().map_err(|_| Failure::new("the thread that served the file system panicked"))?;
        if result.is_ok() {
            // Another file system may be mounted there now.
            self.guard.disarm();
        }
        Ok(result?)
    }
}

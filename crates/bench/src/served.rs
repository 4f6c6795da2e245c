//! FUSE file systems of this program that serve as a reference: mounted here, served by threads of this process.

use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use tandemfs_wire::{Handler, MountGuard, Options, Session, Wanted};

use crate::failure::{Failure, Result};

/// A file system that answers. Dropped, it is unmounted: at once from the tree, and altogether when nobody uses it any more.
pub struct Served {
    guard: MountGuard,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Served {
    /// Serves what [`tandemfs_wire::mount()`] has mounted.
    pub fn start<H: Handler + Send + 'static>(
        (device, guard): (OwnedFd, MountGuard),
        handler: H,
        wanted: &Wanted,
        options: Options,
    ) -> Result<Self> {
        let thread = Session::start(device, handler, wanted, options)?.spawn()?;
        Ok(Self { guard, thread })
    }

    /// Waits until somebody has unmounted it.
    pub fn join(self) -> Result<()> {
        let result = self.thread.join().map_err(|_| Failure::new("the thread that served the file system panicked"))?;
        if result.is_ok() {
            // Whatever is mounted there now is somebody else's.
            self.guard.disarm();
        }
        Ok(result?)
    }
}

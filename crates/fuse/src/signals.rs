//! The thread that ends a mount on a signal. It must not be a serving thread, since unmounting waits for those.
//!
//! [SGN1] A signal unmounts the mount of this daemon and no other. Where that one is not at its place any more, or another one is over it, nothing is
//!        unmounted. It counts as detached, whoever detached it.
//! [SGN2] A signal aborts the connection of a mount that is detached.
//! [SGN3] The connection is aborted by the device number of the mount, which another mount gets some time after the end of this one. So the file that aborts
//!        it is opened first, and then it is asked whether the connection stands: if it does, the file is its own, and does nothing once it has ended.
//! [SGN4] The thread ends when the connection has ended, before anything else of the mount does.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use signal_hook::iterator::{Handle, Signals};
use tandemfs_wire::MountPlace;

use crate::mounting::{self, MountError, Unmount};
use crate::mounts::{self, Mounted};
use crate::mutant::{self, Mutant};

/// A mount and what can be done about it.
trait Endable {
    fn is_in_place(&self) -> bool;
    fn unmount(&self, how: Unmount) -> Result<(), MountError>;
    fn cut_off(&self);
}

/// The thread that waits for signals.
pub(crate) struct SignalWatch {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl SignalWatch {
    /// Ends the mount at a place on signals; `is_connected` says whether its connection stands.
    pub(crate) fn start(
        mut signals: Signals,
        place: MountPlace,
        mounted: Option<Mounted>,
        is_connected: impl Fn() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let handle = signals.handle();
        let thread = std::thread::Builder::new().name("signals".into()).spawn(move || {
            let (mount, mut is_detached) = (Own { place, mounted, is_connected }, false);
            for signal in signals.forever() {
                tracing::info!(signal, "asked to end");
                is_detached = end(&mount, is_detached);
            }
        })?;
        Ok(Self { handle, thread })
    }

    /// [SGN4]
    pub(crate) fn stop(self) {
        self.handle.close();
        let _ = self.thread.join();
    }
}

/// Ends a mount as far as a signal may; whether it is detached from then on.
fn end(mount: &impl Endable, is_detached: bool) -> bool {
    if is_detached {
        mount.cut_off(); // [SGN2]
        return true;
    }
    let is_in_place = || mount.is_in_place() || mutant::on(Mutant::ForeignMountUnmounted);
    if !is_in_place() {
        tracing::warn!("the mount is not in place any more: serving what is open until it is closed; another signal cuts it off");
        return !mutant::on(Mutant::DetachedByOthersForgotten); // [SGN1]
    }
    match mount.unmount(Unmount::Normal) {
        Ok(()) => false,
        Err(MountError::InUse { .. }) => {
            tracing::warn!("files are open: serving them until they are closed; a second signal cuts them off");
            if is_in_place()
                && let Err(error) = mount.unmount(Unmount::Lazy)
            {
                tracing::warn!("{error}");
            }
            true
        }
        Err(error) => {
            tracing::warn!("{error}");
            false
        }
    }
}

/// The mount of this daemon.
struct Own<C> {
    place: MountPlace,
    mounted: Option<Mounted>,
    is_connected: C,
}

impl<C: Fn() -> bool> Endable for Own<C> {
    /// By the id of the mount, which kernels before 6.8 do not tell, and by its device number.
    fn is_in_place(&self) -> bool {
        let has_number = |mounted: &Mounted| match mounts::device_at(self.place.path()) {
            Ok(found) => found.as_ref() == Some(&mounted.device_number),
            Err(error) => {
                tracing::warn!("the list of mounts cannot be read: {error}");
                false
            }
        };
        self.place.is_in_place() && self.mounted.as_ref().is_none_or(has_number)
    }

    fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        mounting::unmount(self.place.path(), how)
    }

    /// Calls in progress fail and the serving threads return. Acknowledged data is durable.
    fn cut_off(&self) {
        let Some((_, minor)) = self.mounted.as_ref().and_then(|mounted| mounted.device_number.split_once(':')) else { return };
        let file = PathBuf::from(format!("/sys/fs/fuse/connections/{minor}/abort"));
        if let Err(error) = abort(&file, &self.is_connected) {
            tracing::warn!(%error, "the connection cannot be cut off without /sys/fs/fuse/connections; waiting for the open files");
        }
    }
}

/// Aborts a connection, if it stands ([SGN3]).
fn abort(file: &Path, is_connected: impl Fn() -> bool) -> io::Result<()> {
    let was_connected = mutant::on(Mutant::AskedBeforeOpening) && is_connected();
    let mut file = OpenOptions::new().write(true).open(file)?;
    if was_connected || is_connected() || mutant::on(Mutant::AbortedUnasked) {
        file.write_all(b"1")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::fs;

    use super::*;
    use crate::mutant::is_caught;

    /// What a signal does to a mount.
    struct Seen {
        is_in_place: Cell<bool>,
        is_in_use: bool,
        done: RefCell<Vec<&'static str>>,
    }

    impl Seen {
        fn new(is_in_place: bool, is_in_use: bool) -> Self {
            Self { is_in_place: Cell::new(is_in_place), is_in_use, done: RefCell::default() }
        }

        /// What several signals do.
        fn after(self, signals: usize) -> Vec<&'static str> {
            (0..signals).fold(false, |is_detached, _| end(&self, is_detached));
            self.done.into_inner()
        }
    }

    impl Endable for Seen {
        fn is_in_place(&self) -> bool {
            self.is_in_place.get()
        }

        fn unmount(&self, how: Unmount) -> Result<(), MountError> {
            self.done.borrow_mut().push(if how == Unmount::Normal { "unmount" } else { "detach" });
            if self.is_in_use && how == Unmount::Normal {
                return Err(MountError::InUse { path: "/mnt".into() });
            }
            self.is_in_place.set(false);
            Ok(())
        }

        fn cut_off(&self) {
            self.done.borrow_mut().push("cut off");
        }
    }

    fn own_mounts_end() {
        assert_eq!(Seen::new(true, false).after(1), ["unmount"]);
        assert_eq!(Seen::new(true, true).after(1), ["unmount", "detach"]);
        assert_eq!(Seen::new(true, true).after(2), ["unmount", "detach", "cut off"]);
    }

    fn other_mounts_stay() {
        own_mounts_end();
        assert!(Seen::new(false, false).after(1).is_empty() && Seen::new(false, true).after(1).is_empty());
    }

    fn what_others_detached_is_cut_off() {
        assert_eq!(Seen::new(false, true).after(2), ["cut off"]);
        assert_eq!(Seen::new(true, false).after(3), ["unmount", "cut off"], "somebody holds it elsewhere");
    }

    /// A file of a connection that has ended, and a new one of its number.
    fn other_connections_stay() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (file, other) = (directory.path().join("abort"), directory.path().join("other"));
        let written = || fs::read(&file).expect("read");
        fs::write(&file, "").expect("made");
        abort(&file, || false).expect("opened");
        assert!(written().is_empty());
        abort(&file, || true).expect("opened");
        assert_eq!(written(), b"1");
        let ends_behind_the_look = || {
            fs::write(&other, "").expect("made");
            fs::rename(&other, &file).expect("replaced");
            true
        };
        abort(&file, ends_behind_the_look).expect("opened");
        assert!(written().is_empty());
        fs::remove_file(&file).expect("removed");
        abort(&file, || true).expect_err("none");
    }

    #[test]
    fn signals_and_their_bugs() {
        is_caught(Mutant::ForeignMountUnmounted, other_mounts_stay);
        is_caught(Mutant::DetachedByOthersForgotten, what_others_detached_is_cut_off);
        is_caught(Mutant::AbortedUnasked, other_connections_stay);
        is_caught(Mutant::AskedBeforeOpening, other_connections_stay);
    }
}

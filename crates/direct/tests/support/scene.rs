//! A server and its client in this process, and what somebody else does by `vfs`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tandemfs_client::{Mount, Options};
use tandemfs_crash::MemoryDevice;
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_direct::{Entrants, Limits, Server};
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, make_file_system};
use tandemfs_vfs::{At, Capabilities, Credentials, Process, Settings, Vfs};

use crate::pages::Pages;
use crate::support;

pub struct Scene {
    pub vfs: Vfs,
    pub server: Server,
    pub mount: Mount,
}

/// For a whole test: the bug is that of the process, which has one connection to a server.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn scene_with(options: &Options) -> Scene {
    scene_beside(options, Arc::default())
}

pub fn scene_beside(options: &Options, pages: Arc<Pages>) -> Scene {
    let device = MemoryDevice::new(32 << 20, 16 << 20, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("formats");
    let fs = FileSystem::mount(Drive::new(Arc::new(device)), &MountOptions::default()).expect("mounts");
    let vfs = Vfs::new(Arc::new(fs), Settings::default()).beside(pages);
    let (stands, limits) = (Box::new(|| true), Limits { threads: 4, ..Limits::default() });
    let server = Server::start(vfs.clone(), support::mount_identity(), stands, Entrants::Everybody, limits).expect("starts");
    let mount = support::connect(&server, "/proc", options).expect("let in");
    Scene { vfs, server, mount }
}

pub fn scene() -> Scene {
    scene_with(&Options::default())
}

pub fn somebody() -> Process {
    Process { umask: 0, ..Process::of(Credentials::new(0, 0, &[], Capabilities::ALL)) }
}

impl Scene {
    /// Requests that the server has answered.
    pub fn served(&self) -> u64 {
        let (_, clients) = self.server.observer().clients();
        clients.iter().flat_map(|client| &client.counts.operations).map(|operation| operation.count).sum()
    }

    /// How many requests something takes.
    pub fn requests_of(&self, act: impl FnOnce()) -> u64 {
        let before = self.served();
        act();
        self.served() - before
    }

    pub fn make(&self, path: &str) {
        drop(self.vfs.open(&somebody(), At::Root, path.as_bytes(), libc::O_CREAT | libc::O_RDWR, 0o644).expect("made"));
    }
}

//! The server's life.

use std::io::{self, PipeWriter};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use tandemfs_ring::{Control, Poller, VersionWords};
use tandemfs_trace::Recorder;
use tandemfs_vfs::Vfs;

use crate::clients::Shared;
use crate::descriptors::Opener;
use crate::known::{Publishing, ServerToCome};
use crate::polling::poll;
use crate::pool::Pool;
use crate::reception::Reception;
use crate::serving::Desk;
use crate::tally::ClientStatistics;

/// The mount that the server belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountIdentity {
    /// Major number of its device.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Where it is.
    pub mountpoint: PathBuf,
    /// The user who mounted it.
    pub user: u32,
    /// It was mounted read-only.
    pub is_read_only: bool,
}

/// Whom the mount lets in ([CRD2]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entrants {
    /// Everybody (allow_other).
    Everybody,
    /// The user who mounted it.
    Only {
        /// User id.
        user: u32,
        /// Group id.
        group: u32,
        /// Root as well (allow_root).
        and_root: bool,
    },
}

/// What clients may take ([D1], [D3]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Clients at a time.
    pub clients: usize,
    /// Slots of a client.
    pub slots: u32,
    /// Open files of a client.
    pub open_files: usize,
    /// Bytes of a client's data area.
    pub data_bytes: u64,
    /// Bytes of all data areas.
    pub all_data_bytes: u64,
    /// Shorter transfers are copied by the daemon; from this size on, in bytes, the drive makes them from and to the client's memory.
    pub lent_bytes_min: u32,
    /// Threads for what may wait.
    pub threads: usize,
    /// How long the server looks for work before it sleeps.
    pub spin: Duration,
    /// Whom the memory zone is lent to ([LND1]): root, who mounted, and the members of this group. None: nobody.
    pub lends_to: Option<u32>,
    /// Mappings of a client that has the memory zone ([MAP1] of `mappings.rs`).
    pub mappings: usize,
    /// Bytes of all mappings of such a client.
    pub mapped_bytes: u64,
    /// Who may store to the memory zone ([LNS1] of `lent_stores.rs`): root, who mounted, and the members of this group. None: nobody.
    pub stores_by: Option<u32>,
    /// Most bytes that are kept back from everybody, since they were taken away from clients, while more is lent for stores.
    pub kept_back_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            clients: 64,
            slots: tandemfs_ring::SLOTS_MAX,
            open_files: 65_536,
            data_bytes: 64 << 20,
            all_data_bytes: 1 << 30,
            lent_bytes_min: 128 << 10, // mostly data logs and the ends of blocks below, which are copied in any case
            threads: (2 * cpus).clamp(4, 32),
            spin: Duration::from_micros(50),
            lends_to: None,
            mappings: 4096,
            mapped_bytes: 1 << 40,
            stores_by: None,
            kept_back_bytes: 256 << 20,
        }
    }
}

/// A running server. Dropping it ends all connections, removes the socket and waits for requests in progress.
pub struct Server {
    control: Control,
    /// Ends when nobody polls any more.
    polled: parking_lot::Mutex<Receiver<()>>,
    reception: Option<JoinHandle<()>>,
    /// Dropping it ends the reception.
    stop: Option<PipeWriter>,
    shared: Arc<Shared>,
    socket: PathBuf,
}

/// Publishes versions of the file system, for clients that answer by themselves ([KNW1]).
fn published(vfs: &Vfs) -> io::Result<(Option<Arc<VersionWords>>, ServerToCome)> {
    let (words, server) = (VersionWords::new().map_err(io::Error::other)?, ServerToCome::default());
    let is_first = vfs.file_system().publish(Box::new(Publishing { words: Arc::clone(&words), server: Arc::clone(&server) }));
    Ok((is_first.then_some(words), server))
}

impl Server {
    /// Serves from now on, in threads of its own. `stands` says whether the mount still does; once it does not, its device number and its
    /// place may be those of another.
    ///
    /// # Errors
    /// What the kernel refuses; no directory for the socket.
    pub fn start(
        vfs: Vfs,
        mount: MountIdentity,
        stands: Box<dyn Fn() -> bool + Send + Sync>,
        entrants: Entrants,
        limits: Limits,
    ) -> io::Result<Self> {
        Self::start_with(vfs, mount, stands, entrants, limits, (None, Arc::default()))
    }

    /// As [`Server::start`], with somebody who opens files by the mount, so that clients get descriptors of them, and what records operations.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_with(
        vfs: Vfs,
        mount: MountIdentity,
        stands: Box<dyn Fn() -> bool + Send + Sync>,
        entrants: Entrants,
        limits: Limits,
        (opener, recorder): (Option<Opener>, Arc<Recorder>),
    ) -> io::Result<Self> {
        let poller = Poller::new(limits.spin).map_err(io::Error::other)?;
        let (control, doorbell) = (poller.control(), poller.doorbell());
        let (versions, published) = published(&vfs)?;
        let shared = Arc::new(Shared {
            vfs,
            versions,
            mount,
            stands,
            pool: Pool::start(limits.threads + 1)?, // one polls
            limits,
            opener: opener.map(Arc::new),
            recorder,
            control: control.clone(),
            clients: parking_lot::Mutex::default(),
            left: Arc::default(),
            late: Arc::default(),
            arena_bytes: Arc::new(AtomicU64::new(0)),
            connections: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        });
        let _only_once = published.set(Arc::downgrade(&shared));
        let (reception, stop) = Reception::open(Arc::clone(&shared), entrants, doorbell)?;
        let socket = reception.path().to_owned();
        let (polls, polled) = channel();
        let polled = parking_lot::Mutex::new(polled);
        let mut server = Self { control, polled, reception: None, stop: Some(stop), shared: Arc::clone(&shared), socket };
        let desk = Desk::new(Arc::clone(&shared), polls);
        shared.pool.run(Box::new(move || poll(poller, desk)));
        server.reception = Some(std::thread::Builder::new().name("direct-reception".into()).spawn(move || reception.run())?);
        Ok(server)
    }

    /// Its socket.
    pub fn socket(&self) -> &std::path::Path {
        &self.socket
    }

    /// Clients at present, and their open files.
    pub fn clients(&self) -> (usize, usize) {
        let clients = self.shared.clients.lock();
        (clients.len(), clients.values().map(|client| client.handles.count()).sum())
    }

    /// Mappings of all clients, also of those that have ended while something may still load there ([MAP2] of `mappings.rs`).
    pub fn mappings(&self) -> usize {
        self.shared.left.pins()
    }

    /// For whoever wants to know of clients while it runs, and later.
    pub fn observer(&self) -> Observer {
        Observer(Arc::downgrade(&self.shared))
    }

    /// Bytes of all arenas, also of clients that have ended while requests of theirs run.
    pub fn arena_bytes(&self) -> u64 {
        self.shared.arena_bytes.load(Relaxed)
    }
}

/// Sees the clients of a server. It keeps nothing of the server.
#[derive(Clone)]
pub struct Observer(Weak<Shared>);

impl Observer {
    /// How many clients there have been, and what those that there are have had done, in the order in which they came.
    pub fn clients(&self) -> (u64, Vec<ClientStatistics>) {
        self.0.upgrade().map_or((0, Vec::new()), |shared| (shared.connections.load(Relaxed), shared.statistics()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let join = |thread: Option<JoinHandle<()>>| thread.is_some_and(|thread| thread.join().is_err());
        let _panicked = join(self.reception.take());
        self.control.stop();
        let _nothing_is_sent = self.polled.lock().recv();
        self.shared.close();
        self.shared.pool.stop();
        self.shared.left.clear(); // [MAP2]
    }
}

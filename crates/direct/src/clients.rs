//! What is known of each client.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;
use tandemfs_format::InodeNumber;
use tandemfs_protocol::{Handle, Number};
use tandemfs_ring::{Arena, ClientId, Control, VersionWords};
use tandemfs_trace::Recorder;
use tandemfs_vfs::{Process, Vfs};

use crate::descriptors::{Opener, Sending};
use crate::handles::Handles;
use crate::lent_stores::{Late, Storing};
use crate::mappings::{Hold, Left, Mappings};
use crate::mutant::{self, Mutant};
use crate::peers::{Identity, Peer};
use crate::pool::Pool;
use crate::server::{Limits, MountIdentity};
use crate::tally::{ClientStatistics, Counts, Tally};

/// A connection of a process.
pub(crate) struct Client {
    pub(crate) peer: Peer,
    pub(crate) identity: Identity,
    pub(crate) handles: Handles,
    pub(crate) mappings: Mappings,
    pub(crate) arena: Arc<Arena>,
    /// It has the version words.
    pub(crate) knows_versions: bool,
    pub(crate) sending: Sending,
    /// It has got the memory zone for loads ([LND1]).
    pub(crate) has_zone: bool,
    /// Bytes of the zone that it was told of, which may be larger by now: nothing behind them is lent to it ([LND4]).
    pub(crate) zone_bytes: u64,
    /// The operations that its greeting named; no other is served ([LND5]).
    pub(crate) operations: u64,
    /// What it needs to store by itself ([LNS1]).
    pub(crate) storing: Option<Storing>,
    /// Bytes of its arena, which count until the last request of it is answered.
    pub(crate) arena_bytes: u64,
    /// [`Limits::lent_bytes_min`].
    pub(crate) lent_bytes_min: u32,
    /// With the umask of its last request that had one.
    process: Mutex<Arc<Process>>,
    /// It has asked something since its credentials were read last ([CRD1]).
    pub(crate) is_active: AtomicBool,
    /// A thread of the pool looks for watches of what it stores to, or is going to ([LNS4]).
    pub(crate) is_looked_at: AtomicBool,
    /// The log has said why its connection ends.
    pub(crate) is_condemned: AtomicBool,
    /// Which connection it is, from 1.
    connection: u64,
    since: Instant,
    /// Its own, so that who looks never has the last hold of a client ([D3]).
    pub(crate) tally: Arc<Tally>,
    arenas: Arc<AtomicU64>,
}

impl Client {
    pub(crate) fn new(
        (peer, identity): (Peer, Identity),
        sending: Sending,
        (arena, arena_bytes): (Arc<Arena>, u64),
        (mount_points, leaves_watched): (HashSet<InodeNumber>, bool),
        hold: Option<(Hold, OwnedFd)>,
        shared: &Shared,
    ) -> Self {
        let (credentials, real) = (identity.credentials.clone(), identity.real.clone());
        let process = Process { credentials, real, umask: 0o777, mount_points, leaves_watched };
        let arenas = Arc::clone(&shared.arena_bytes);
        arenas.fetch_add(arena_bytes, Relaxed);
        let handles = Handles::new(shared.limits.open_files);
        let most = (shared.limits.mappings, shared.limits.mapped_bytes);
        let mappings = Mappings::new(hold, most, Arc::clone(&shared.left));
        Self {
            peer,
            identity,
            handles,
            mappings,
            arena,
            knows_versions: shared.versions.is_some(),
            sending,
            has_zone: false,
            zone_bytes: u64::MAX,
            operations: 0,
            storing: None,
            arena_bytes,
            lent_bytes_min: shared.limits.lent_bytes_min,
            process: Mutex::new(Arc::new(process)),
            is_active: AtomicBool::new(true),
            is_looked_at: AtomicBool::new(false),
            is_condemned: AtomicBool::new(false),
            connection: shared.connections.fetch_add(1, Relaxed) + 1,
            since: Instant::now(),
            tally: Arc::default(),
            arenas,
        }
    }

    /// Whether its greeting named an operation ([LND5]).
    pub(crate) fn is_served(&self, number: Number) -> bool {
        let is_left_to_others = match number {
            Number::Lend => mutant::on(Mutant::LentWithoutZone),
            Number::Map | Number::Unmap => mutant::on(Mutant::MappedWithoutZone),
            Number::MapForStores => mutant::on(Mutant::StoresMappedByAll),
            _ => false,
        };
        self.operations & number.bit() != 0 || is_left_to_others
    }

    /// The process, as `vfs` wants to know it.
    pub(crate) fn process(&self) -> Arc<Process> {
        Arc::clone(&self.process.lock())
    }

    /// The process with a umask of its own saying.
    pub(crate) fn process_under(&self, umask: u16) -> Arc<Process> {
        let mut process = self.process.lock();
        if process.umask != umask {
            *process = Arc::new(Process { umask, ..Process::clone(&process) });
        }
        Arc::clone(&process)
    }

    /// What is known of it beside its counters.
    fn described(&self) -> (ClientStatistics, Arc<Tally>) {
        let stored = self.mappings.stored();
        let described = ClientStatistics {
            connection: self.connection,
            process_id: self.peer.pid,
            command: self.peer.command.clone(),
            user: self.identity.users[1],
            connected: self.since.elapsed(),
            open_files: self.handles.count(),
            has_zone: self.has_zone,
            stores: self.storing.as_ref().map(Storing::counts),
            mappings: self.mappings.count(),
            stored_mappings: stored.0,
            stored_bytes: stored.1,
            counts: Counts::default(),
        };
        (described, Arc::clone(&self.tally))
    }

    pub(crate) fn set_mount_points(&self, mount_points: HashSet<InodeNumber>) {
        let mut process = self.process.lock();
        *process = Arc::new(Process { mount_points, ..Process::clone(&process) });
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if mutant::on(Mutant::FilesOutliveClients) {
            self.handles.leak();
        }
        self.arenas.fetch_sub(self.arena_bytes, Relaxed);
    }
}

/// What the threads of the server share.
pub(crate) struct Shared {
    pub(crate) vfs: Vfs,
    /// None where another server of the same file system publishes them.
    pub(crate) versions: Option<Arc<VersionWords>>,
    pub(crate) mount: MountIdentity,
    /// Whether the mount still stands.
    pub(crate) stands: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) limits: Limits,
    pub(crate) opener: Option<Arc<Opener>>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) pool: Pool,
    pub(crate) control: Control,
    pub(crate) clients: Mutex<HashMap<ClientId, Arc<Client>>>,
    /// Mappings of clients that have ended.
    pub(crate) left: Arc<Left>,
    /// Processes that did not stop storing in time.
    pub(crate) late: Arc<Late>,
    /// Bytes of all arenas.
    pub(crate) arena_bytes: Arc<AtomicU64>,
    /// Clients that there have been.
    pub(crate) connections: AtomicU64,
    /// Nobody polls any more, and nobody is let in.
    pub(crate) is_closed: AtomicBool,
}

impl Shared {
    /// Ends all connections, as nobody polls any more.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        let clients = std::mem::take(&mut *self.clients.lock());
        drop(clients); // without the lock: the end of a lease may wait
    }

    /// Closes files of an inode that clients keep for later use ([IDL1]–[IDL4] of the ring): it has lost its last name.
    pub(crate) fn take_idle_back(&self, inode: InodeNumber) {
        let clients: Vec<Arc<Client>> = self.clients.lock().values().map(Arc::clone).collect();
        for client in &clients {
            let file = |number| client.handles.get(Handle::of(number).ok_or(Errno::BADF)?);
            let is_of_inode = |number| file(number).is_ok_and(|file| file.inode() == inode) && !mutant::on(Mutant::IdleKept);
            for handle in client.arena.take_idle_back(inode.get(), is_of_inode).filter_map(Handle::of) {
                drop(client.handles.remove(handle));
            }
        }
        self.let_go(clients); // by whoever removes a name
    }

    /// Gives up what somebody who looks has of clients. The last hold of one is given up by the pool ([D3]).
    pub(crate) fn let_go(&self, clients: impl IntoIterator<Item = Arc<Client>>) {
        for last in clients.into_iter().filter_map(Arc::into_inner) {
            self.pool.run(Box::new(move || drop(last)));
        }
    }

    pub(crate) fn client(&self, id: ClientId) -> Option<Arc<Client>> {
        self.clients.lock().get(&id).cloned()
    }

    /// What the clients have had done, in the order in which they came.
    pub(crate) fn statistics(&self) -> Vec<ClientStatistics> {
        // Counters are read without the lock, which the poller takes.
        let mut all: Vec<_> = self.clients.lock().values().map(|client| client.described()).collect();
        all.sort_by_key(|(described, _)| described.connection);
        all.into_iter().map(|(described, tally)| ClientStatistics { counts: tally.counts(), ..described }).collect()
    }
}

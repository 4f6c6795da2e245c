//! The thread that greets clients and looks after their credentials and the list of mounts.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, IoSlice, PipeReader, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, listen, recv, sendmsg, socket_with,
};
use tandemfs_device::{LentZone, StoreZone};
use tandemfs_format::InodeNumber;
use tandemfs_protocol::{
    GREETING_BYTES, Hello, HelloError, Number, Reception as Greeting, Refusal, StorePlace, TRANSFER_BYTES_MAX, VERSION, Welcome, ZonePlace,
    socket,
};
use tandemfs_ring::{Arena, Doorbell, Lifeline, PAGE_BYTES, Sizes, VERSION_WORDS};

use crate::clients::{Client, Shared};
use crate::lent_stores::Storing;
use crate::mappings::Hold;
use crate::mountinfo::{Found, MountInfo, MountPoints};
use crate::mutant::{self, Mutant};
use crate::peers::{self, Identity, Peer};
use crate::server::Entrants;

/// How often credentials of active clients are read ([CRD1]).
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a newcomer may take to say hello, and how many may be silent at a time ([D1]).
const HELLO_WITHIN: Duration = Duration::from_secs(1);
const SILENT_MAX: usize = 64;
/// How long the thread rests where a client cannot be accepted.
const REST: Duration = Duration::from_millis(100);
const BACKLOG: i32 = 64;

/// A connection that has said nothing yet.
struct Newcomer {
    socket: OwnedFd,
    since: Instant,
}

/// The reception.
pub(crate) struct Reception {
    shared: Arc<Shared>,
    listener: OwnedFd,
    path: PathBuf,
    stopped: PipeReader,
    mount_info: MountInfo,
    found: Found,
    inner: MountPoints,
    /// As the clients know them.
    mount_points: HashSet<InodeNumber>,
    /// The list of mounts has changed since it was read, or could not be read.
    has_unread_mounts: bool,
    daemon: Identity,
    entrants: Entrants,
    doorbell: Doorbell,
    newcomers: Vec<Newcomer>,
    looked: Instant,
}

fn refusal(errno: Errno, sentence: impl Into<String>) -> Refusal {
    Refusal::new(errno.raw_os_error(), sentence)
}

impl Reception {
    /// Makes the socket. The reception ends when the returned end of a pipe is dropped.
    pub(crate) fn open(shared: Arc<Shared>, entrants: Entrants, doorbell: Doorbell) -> io::Result<(Self, PipeWriter)> {
        let (stopped, stop) = io::pipe()?;
        let mut mount_info = MountInfo::open()?;
        let found = mount_info.read(&shared.mount)?;
        let (listener, path) = listening(&shared)?;
        let daemon = peers::own()?;
        let (newcomers, looked) = (Vec::new(), Instant::now());
        let mut inner = MountPoints::default();
        let mount_points = inner.of(&found, &shared.vfs);
        let has_unread_mounts = false;
        let reception = Self {
            shared,
            listener,
            path,
            stopped,
            mount_info,
            found,
            inner,
            mount_points,
            has_unread_mounts,
            daemon,
            entrants,
            doorbell,
            newcomers,
            looked,
        };
        Ok((reception, stop))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Greets until the end.
    pub(crate) fn run(mut self) {
        while self.wait() {}
    }

    /// Waits for something and does it; false at the end. What fails is tried again: credentials are looked after in any case.
    fn wait(&mut self) -> bool {
        let is_busy =
            self.has_unread_mounts || !self.newcomers.is_empty() || self.shared.left.pins() > 0 || !self.shared.clients.lock().is_empty();
        let timeout = is_busy.then_some(Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.as_nanos() as i64 });
        let begun = Instant::now();
        let mut waiting = vec![
            PollFd::new(&self.stopped, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::from_borrowed_fd(self.mount_info.descriptor(), PollFlags::PRI),
        ];
        waiting.extend(self.newcomers.iter().map(|newcomer| PollFd::new(&newcomer.socket, PollFlags::IN)));
        let polled = poll(&mut waiting, timeout.as_ref());
        let ready: Vec<bool> = waiting.iter().map(|waits| polled.is_ok() && !waits.revents().is_empty()).collect();
        drop(waiting);
        if let Some(errno) = polled.err().filter(|errno| *errno != Errno::INTR) {
            tracing::error!("the direct door cannot wait for clients: {errno}");
            std::thread::sleep(REST);
        }
        if ready[0] {
            return false;
        }
        self.has_unread_mounts |= ready[2]; // of which the kernel tells once
        if self.has_unread_mounts
            && let Err(error) = self.read_mounts()
        {
            tracing::error!("the direct door cannot read the list of mounts: {error}");
            self.rest();
        }
        let mut spoke = ready[3..].iter();
        let (said, silent): (Vec<Newcomer>, Vec<Newcomer>) = self.newcomers.drain(..).partition(|_| spoke.next() == Some(&true));
        self.newcomers = silent;
        said.iter().for_each(|newcomer| self.greet(&newcomer.socket));
        // As of the poll: what came since, while this process may have been stopped, is heard by the next one.
        self.newcomers.retain(|newcomer| begun.saturating_duration_since(newcomer.since) < HELLO_WITHIN);
        if ready[1] {
            self.accept();
        }
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            self.look_after_credentials();
            if self.shared.left.wants_sweep() {
                let shared = Arc::clone(&self.shared);
                self.shared.pool.run(Box::new(move || shared.left.sweep())); // [MAP2]
            }
            self.look_for_watches();
        }
        true
    }

    /// Until there may be again what was not.
    fn rest(&self) {
        let time = Timespec { tv_sec: 0, tv_nsec: REST.as_nanos() as i64 };
        let _woken = poll(&mut [PollFd::new(&self.stopped, PollFlags::IN)], Some(&time));
    }

    fn accept(&mut self) {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            // A caller that is gone already is no error. Where no descriptor is left the caller stays in the queue, and the socket readable.
            Err(error) => {
                tracing::debug!(%error, "no client of the direct door can be accepted");
                self.rest();
                return;
            }
        };
        if self.newcomers.len() >= SILENT_MAX {
            self.newcomers.remove(0);
        }
        self.newcomers.push(Newcomer { socket, since: Instant::now() });
    }

    /// [CRD1]
    fn look_after_credentials(&self) {
        let clients: Vec<_> = self.shared.clients.lock().iter().map(|(id, client)| (*id, Arc::clone(client))).collect();
        for (id, client) in &clients {
            let has_answered = client.arena.has_answered_itself() && !mutant::on(Mutant::AnswerersNotLookedAfter); // [KNW2]
            if (client.is_active.swap(false, Relaxed) || has_answered) && !mutant::on(Mutant::CredentialsKept) && has_changed(client) {
                tracing::info!(
                    process = client.peer.name(),
                    "the credentials of a client of the direct door have changed; its connection ends"
                );
                self.shared.control.remove(*id);
            }
        }
        self.shared.let_go(clients.into_iter().map(|(_, client)| client));
    }

    /// Ends leases of watched files ([LNS4]).
    fn look_for_watches(&self) {
        let stores = |client: &&Arc<Client>| client.storing.as_ref().is_some_and(Storing::has_leases) && client.process().leaves_watched;
        let clients: Vec<_> = self.shared.clients.lock().values().filter(stores).map(Arc::clone).collect();
        for client in clients {
            if client.is_looked_at.swap(true, Relaxed) {
                self.shared.let_go([client]);
                continue;
            }
            let shared = Arc::clone(&self.shared);
            self.shared.pool.run(Box::new(move || {
                if let Some(storing) = &client.storing {
                    storing.end_watched(&shared.vfs, &client.process(), &client.handles);
                }
                client.is_looked_at.store(false, Relaxed);
            }));
        }
    }

    /// [CRD3], [D14]
    fn read_mounts(&mut self) -> io::Result<()> {
        self.has_unread_mounts = true;
        self.found = self.mount_info.read(&self.shared.mount)?;
        self.has_unread_mounts = false;
        if mutant::on(Mutant::ClosedMountServed) {
            self.found.closed = None;
        }
        if let Some(why) = self.found.closed {
            let clients = self.shared.clients.lock();
            if !clients.is_empty() {
                tracing::warn!("the direct door leaves this mount to the kernel: {why}");
            }
            clients.keys().for_each(|id| self.shared.control.remove(*id));
            return Ok(());
        }
        // Without the lock, which the poller takes: this may wait ([D10]).
        let mount_points = self.inner.of(&self.found, &self.shared.vfs);
        if mount_points != self.mount_points {
            let clients: Vec<Arc<Client>> = self.shared.clients.lock().values().map(Arc::clone).collect();
            clients.iter().for_each(|client| client.set_mount_points(mount_points.clone()));
            self.mount_points = mount_points;
            if !mutant::on(Mutant::MountsNotRevoked) {
                self.shared.vfs.file_system().revoke_all_answers(); // [KNW3]
            }
            self.shared.let_go(clients);
        }
        Ok(())
    }

    fn greet(&mut self, socket: &OwnedFd) {
        let mut bytes = [0; GREETING_BYTES];
        let length = match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((length, _)) if length > 0 => length,
            _ => return,
        };
        let admitted = match Hello::decode(&bytes[..length]) {
            Ok(hello) => self.admit(&hello, socket),
            Err(HelloError::Version { found }) => Err(of_version(found)),
            Err(HelloError::Unknown) => Err(refusal(Errno::PROTO, HelloError::Unknown.to_string())),
        };
        if let Err(refusal) = admitted {
            tracing::debug!(refusal.sentence, "a client of the direct door was sent away");
            let _gone = send(socket.as_fd(), &Greeting::Refusal(refusal), &[]);
        }
    }

    fn admit(&mut self, hello: &Hello, socket: &OwnedFd) -> Result<(), Refusal> {
        let failed =
            |error: io::Error| refusal(Errno::from_io_error(&error).unwrap_or(Errno::IO), format!("the door cannot be opened: {error}"));
        let peer = Peer::of(socket.as_fd()).map_err(failed)?;
        // An ordinary user's daemon cannot see the namespaces of other users' processes.
        let identity = peer
            .identity()
            .map_err(|error| refusal(Errno::ACCESS, format!("the daemon cannot see who this process is ({error}); the mount serves it")))?;
        if !peer.is_who_connected(&identity) {
            let sentence = "this process has other rights than when it connected, or capabilities without being root; the mount serves it";
            return Err(refusal(Errno::ACCESS, sentence)); // [CRD5]
        }
        if let Some(sentence) = identity.refusal(&self.daemon, self.entrants) {
            return Err(refusal(Errno::ACCESS, sentence));
        }
        // [CRD2], in this order: the number of a mount may become that of another.
        let before = peer.mount_of_root(hello.root);
        self.read_mounts().map_err(failed)?;
        let mount = peer.mount_of_root(hello.root).filter(|mount| Some(*mount) == before);
        if !(self.shared.stands)() && !mutant::on(Mutant::MountNotAsked) {
            return Err(refusal(Errno::NOTCONN, "the mount of this daemon has ended"));
        }
        if let Some(why) = self.found.closed {
            return Err(refusal(Errno::OPNOTSUPP, format!("the direct door leaves this mount to the kernel: {why}")));
        }
        if !mount.is_some_and(|mount| self.found.ids.contains(&mount) || mutant::on(Mutant::AnyRoot)) {
            return Err(refusal(
                Errno::ACCESS,
                "a client of the direct door has to show the root directory of the mount, by a writable mount of all of it",
            ));
        }
        let sizes = self.sizes(hello, peer.pid)?;
        let arena = Arena::new(sizes, self.doorbell).map_err(|error| refusal(Errno::NOMEM, format!("no memory for an arena: {error}")))?;
        let lifelines = vec![Lifeline::Socket(socket.try_clone().map_err(failed)?), Lifeline::Process(peer.lifeline().map_err(failed)?)];
        let rules = (self.mount_points.clone(), hello.leaves_watched);
        let sending = match &self.shared.opener {
            Some(opener) => Some((Arc::clone(opener), self.receiver(socket).map_err(failed)?)), // [DSC3]
            None => None,
        };
        let zone = self.zone_for(hello, &identity);
        let (storing, store_zone) = self.storing_for(hello, &identity, &peer).unzip();
        let hold = zone.as_ref().and_then(|zone| Some((self.hold(zone, peer.pid)?, socket.try_clone().ok()?)));
        let served = |number: Number, is_served: bool| if is_served { 0 } else { number.bit() };
        let operations = Number::all_bits()
            & !served(Number::Descriptor, sending.is_some())
            & !served(Number::Lend, zone.is_some())
            & !served(Number::Map, hold.is_some())
            & !served(Number::Unmap, hold.is_some())
            & !served(Number::LendStores, storing.is_some())
            & !served(Number::ReturnStores, storing.is_some())
            & !served(Number::LendTail, storing.is_some())
            & !served(Number::Appended, storing.is_some())
            & !served(Number::MapForStores, hold.is_some() && self.may_store(&identity));
        let mut client = Client::new((peer, identity), sending, (Arc::clone(&arena), sizes.data_bytes), rules, hold, &self.shared);
        client.has_zone = zone.is_some();
        let told = zone.as_ref().map(LentZone::length).into_iter().chain(store_zone.as_ref().map(StoreZone::length));
        client.zone_bytes = told.min().unwrap_or(u64::MAX);
        client.operations = operations;
        client.storing = storing;
        self.shared.vfs.file_system().introduce_caller(client.peer.pid.cast_unsigned());
        let client = Arc::new(client);
        let lease_words = client.storing.as_ref().map(|storing| storing.words().file());
        // The client asks nothing before it has its arena, so it is known when its first request comes.
        let id = {
            // Its end, which may come at once, waits here until the client is known, or nobody would take it out again.
            let mut clients = self.shared.clients.lock();
            if self.shared.is_closed.load(Relaxed) {
                return Err(refusal(Errno::IO, "the direct door of this mount has failed; the mount serves this process"));
            }
            let id = self.shared.control.add(Arc::clone(&arena), lifelines);
            clients.insert(id, Arc::clone(&client));
            id
        };
        let welcome = Welcome {
            slots: sizes.slots,
            data_bytes: sizes.data_bytes,
            operations,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            version_words: if self.shared.versions.is_some() { VERSION_WORDS } else { 0 },
            zone: zone.as_ref().map(|zone| ZonePlace { start: zone.start(), bytes: zone.length() }),
            stores: store_zone.as_ref().map(|zone| StorePlace {
                zone: ZonePlace { start: zone.start(), bytes: zone.length() },
                needs_flush: self.shared.vfs.file_system().drive().domain().needs_flush(),
            }),
        };
        let descriptors = arena.descriptors();
        let versions = self.shared.versions.as_ref().map(|versions| versions.file());
        let always = [descriptors.arena, descriptors.words];
        let zones = zone.as_ref().map(LentZone::descriptor).into_iter().chain(store_zone.as_ref().map(StoreZone::descriptor));
        let sent: Vec<BorrowedFd<'_>> =
            always.into_iter().chain(descriptors.bell).chain(versions).chain(zones).chain(lease_words).collect();
        if send(socket.as_fd(), &Greeting::Welcome(welcome), &sent).is_err() {
            self.shared.control.remove(id);
        }
        Ok(())
    }

    /// The memory zone, for who wants it and is trusted with it ([LND1]). Without version words nobody could load from it.
    fn zone_for(&self, hello: &Hello, identity: &Identity) -> Option<LentZone> {
        let group = self.shared.limits.lends_to.filter(|_| hello.wants_zone && self.shared.versions.is_some())?;
        if !identity.is_trusted(self.shared.mount.user, group) {
            return None;
        }
        let opened = self.shared.vfs.file_system().drive().lent_zone()?;
        opened.inspect_err(|error| tracing::warn!("the memory zone cannot be lent, so its bytes are read by requests: {error}")).ok()
    }

    /// The memory zone for stores, for who wants it and is trusted with it ([LNS1]).
    fn storing_for(&self, hello: &Hello, identity: &Identity, peer: &Peer) -> Option<(Storing, StoreZone)> {
        let (shared, fs) = (&self.shared, self.shared.vfs.file_system());
        if !hello.wants_stores || !self.may_store(identity) {
            return None;
        }
        let opened = peer.lifeline().and_then(|pidfd| Storing::open(fs, (peer.pid, pidfd), &shared.late, shared.limits.kept_back_bytes));
        opened.inspect_err(|error| tracing::warn!("the memory zone cannot be lent for stores: {error}")).ok().flatten()
    }

    /// Whether a client may store to the memory zone at all: under leases, or by mappings.
    fn may_store(&self, identity: &Identity) -> bool {
        let Some(group) = self.shared.limits.stores_by.filter(|_| !self.shared.vfs.file_system().is_read_only()) else { return false };
        identity.is_trusted(self.shared.mount.user, group) || mutant::on(Mutant::StoresForEverybody)
    }

    /// Tells how long a zone may be mapped ([MAP2]). The byte is of this connection alone.
    fn hold(&self, zone: &LentZone, pid: i32) -> Option<Hold> {
        if !self.shared.left.has_room(self.shared.limits.clients) {
            tracing::debug!("clients that have ended left too many mappings; a client of the direct door maps nothing");
            return None; // [MAP8]
        }
        let looks = self.shared.vfs.file_system().drive().lent_zone()?;
        let byte = u64::from(pid.cast_unsigned()) << 28 | self.shared.connections.load(Relaxed) & ((1 << 28) - 1);
        let hold = looks.and_then(|looks| Hold::of(zone, looks, byte));
        hold.inspect_err(|error| tracing::warn!("clients map nothing, as the memory zone cannot be locked: {error}")).ok()
    }

    /// Where a client's descriptors go.
    fn receiver(&self, socket: &OwnedFd) -> io::Result<OwnedFd> {
        if mutant::on(Mutant::SentToAnother) {
            let clients = self.shared.clients.lock();
            if let Some((_, other)) = clients.values().find_map(|client| client.sending.as_ref()) {
                return other.try_clone();
            }
        }
        socket.try_clone()
    }

    /// What a newcomer gets. A process has one connection: the old one of this process ends.
    fn sizes(&self, hello: &Hello, pid: i32) -> Result<Sizes, Refusal> {
        let limits = &self.shared.limits;
        let clients = self.shared.clients.lock();
        let of_process = || clients.iter().filter(|(_, client)| client.peer.pid == pid);
        of_process().for_each(|(id, _)| self.shared.control.remove(*id));
        if clients.len() - of_process().count().min(1) >= limits.clients {
            return Err(refusal(Errno::NOMEM, format!("the door has its {} clients; the mount serves this process", limits.clients)));
        }
        let wanted = hello.data_bytes.min(limits.data_bytes);
        let left = limits.all_data_bytes.saturating_sub(self.shared.arena_bytes.load(Relaxed));
        let data_bytes = wanted / PAGE_BYTES * PAGE_BYTES;
        if data_bytes > left && !mutant::on(Mutant::MemoryUnbounded) {
            return Err(refusal(Errno::NOMEM, "the memory of the door's clients is used up; the mount serves this process"));
        }
        Ok(Sizes { slots: hello.slots.clamp(1, limits.slots), data_bytes })
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // [CRD1]: nobody would look after the credentials of those who are in.
            self.shared.is_closed.store(true, Relaxed);
            self.shared.clients.lock().keys().for_each(|id| self.shared.control.remove(*id));
        }
        let _gone_already = fs::remove_file(&self.path);
    }
}

/// Whether a client has other rights than when it was let in. One whose rights cannot be seen any more may have; what this process lacks for the
/// look says nothing.
fn has_changed(client: &Client) -> bool {
    match client.peer.identity() {
        Ok(now) => now != client.identity,
        Err(error) => !matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)),
    }
}

fn of_version(found: u32) -> Refusal {
    let parts = |version: u32| format!("{}.{}", version >> 16, version & 0xffff);
    let sentence = format!(
        "the daemon speaks version {} of the direct door, this program version {}; install the same release for both",
        parts(VERSION),
        parts(found)
    );
    refusal(Errno::PROTONOSUPPORT, sentence)
}

fn send(socket: BorrowedFd<'_>, greeting: &Greeting, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(7))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    sendmsg(socket, &[IoSlice::new(&greeting.encode())], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// A socket in the first directory that can be made or is this user's.
fn listening(shared: &Shared) -> io::Result<(OwnedFd, PathBuf)> {
    let mount = &shared.mount;
    let mut last_error = io::Error::from(io::ErrorKind::NotFound);
    for directory in socket::directories(mount.user) {
        let made = public_directory(&directory).and_then(|()| {
            remove_dead(&directory, &socket::prefix(mount.major, mount.minor));
            let path = directory.join(socket::name(mount.major, mount.minor, std::process::id()));
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            let refuses = match mutant::on(Mutant::DescriptorsTaken) {
                true => Ok(()),
                false => tandemfs_ring::refuse_descriptors(listener.as_fd()),
            };
            if let Err(error) = &refuses {
                let who = if shared.limits.lends_to.is_some() {
                    "root, who mounted, and the group of the option"
                } else {
                    "root and who mounted"
                };
                tracing::warn!(
                    "this kernel cannot refuse descriptors that are sent to a socket ({error}); the direct door is for {who} alone"
                );
            }
            bind(&listener, &SocketAddrUnix::new(&path)?)?;
            permit(&path, refuses.is_ok(), shared.limits.lends_to)?;
            listen(&listener, BACKLOG)?;
            Ok((listener, path))
        });
        match made {
            Ok(made) => return Ok(made),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// Lets everybody connect, or where the kernel cannot refuse descriptors those who are trusted ([CRD6]).
fn permit(path: &Path, refuses_descriptors: bool, group: Option<u32>) -> io::Result<()> {
    let mode = match group {
        _ if refuses_descriptors => 0o666,
        Some(group) => std::os::unix::fs::chown(path, None, Some(group)).map_or(0o600, |()| 0o660),
        None => 0o600,
    };
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// A directory that everybody may enter and only this user may change. Anybody may write to /tmp, so one that exists is checked.
fn public_directory(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(directory) {
        Ok(()) => fs::set_permissions(directory, Permissions::from_mode(0o755))?,
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Err(_) => {}
    }
    if !socket::is_own(&fs::symlink_metadata(directory)?, rustix::process::geteuid().as_raw()) {
        return Err(io::Error::other(format!("{} is not a directory of this user alone", directory.display())));
    }
    Ok(())
}

/// Removes sockets of daemons that were killed: connecting to them is refused.
fn remove_dead(directory: &Path, prefix: &str) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
        if is_ours && is_dead(&path).unwrap_or(false) {
            let _gone_already = fs::remove_file(path);
        }
    }
}

fn is_dead(path: &Path) -> io::Result<bool> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    let connected = rustix::net::connect(&socket, &SocketAddrUnix::new(path)?);
    Ok(connected == Err(Errno::CONNREFUSED))
}

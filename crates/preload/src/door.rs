//! The connection of this process: when it is made, who may use it, how it ends ([PRL2], [PRL4] and [PRL6] of `lib.rs`).

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockWriteGuard};

use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tandemfs_client::{KnownAnswers, Mount, Options};

use crate::descriptions;
use crate::directories::Directories;
use crate::files::{self, Files};
use crate::lent;
use crate::mappings;
use crate::mutant::{Mutant, on};
use crate::outside;
use crate::report::Way;
use crate::settings::{self, Settings};
use crate::sys;

/// Threads of this process that may be in a call at once.
const SLOTS: u32 = 16;
/// Shared memory for data: texts of requests, values of attributes, bytes of files. 320 KiB are the slots', and the longest write that is one request
/// has room beside them. Pages that nobody has used take no memory.
const DATA_BYTES: u64 = 2 << 20;
/// How long who wants nobody inside waits, and who connects: a daemon may be slow, and then the door is not used any more.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
/// The socket, a doorbell where there is one, and the memory zone where files are mapped.
pub(crate) const DESCRIPTORS_MAX: usize = 3;
/// Where our descriptors are, below the limit of the process.
const DESCRIPTORS_BELOW_LIMIT: u64 = 24;
const DESCRIPTORS_FROM_MAX: u64 = 1000;

/// A connection.
pub(crate) struct Door {
    /// Dropped by hand, since that closes descriptors.
    parts: ManuallyDrop<Parts>,
    descriptors: [Option<(c_int, (u64, u64))>; DESCRIPTORS_MAX],
    process: i32,
    ids: (u32, u32),
    /// What is shown of it ([PRL21]), which stays; none within if as much as may stay does so already.
    shown: OnceLock<Option<&'static KnownAnswers>>,
}

struct Parts {
    directories: Mutex<Directories>,
    files: Mutex<Files>,
    mount: Mount,
}

/// The connection of the process.
enum State {
    /// None yet.
    New,
    Open(Arc<Door>),
    /// It could not be made, or ended: the mount serves this process, until its credentials change.
    Without,
}

static STATE: RwLock<State> = RwLock::new(State::New);
/// Calls on the mount so far.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// Threads in calls, and threads that want nobody there.
static INSIDE: AtomicU32 = AtomicU32::new(0);
static CLOSING: AtomicU32 = AtomicU32::new(0);
/// The process that may use the door: this one, unless it came about in a way that is not known here.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// Not any more, in this process and its forks.
static OVER: AtomicBool = AtomicBool::new(false);
/// Numbers of our descriptors, −1 for none.
pub(crate) static DESCRIPTORS: [AtomicI32; DESCRIPTORS_MAX] = [const { AtomicI32::new(-1) }; DESCRIPTORS_MAX];

fn state() -> RwLockWriteGuard<'static, State> {
    STATE.write().unwrap_or_else(PoisonError::into_inner)
}

/// What a descriptor is, to know it again.
fn identity(descriptor: c_int) -> Option<(u64, u64)> {
    let found = sys::known(descriptor, c"", libc::AT_EMPTY_PATH, libc::STATX_INO)?;
    Some((libc::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

impl Door {
    fn open(settings: &Settings) -> Option<Self> {
        let socket = connected(&settings.socket, settings.user)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(settings.mountpoint.as_c_str(), flags, Mode::empty()).ok()?;
        // [PRL1]: what is shown to the daemon, and what calls are held against, is one mount.
        if settings.mount.inode(root.as_raw_fd(), c"") != Some(settings.mount.root) {
            return None;
        }
        let options = Options {
            slots: SLOTS,
            data_bytes: DATA_BYTES,
            descriptors_from: descriptors_from(),
            leaves_watched: !on(Mutant::WatchersUntold), // [PRL17]
            loads: true,                                 // [PRL19]
            stores: settings.stores,
            maps: settings.stores, // [PRL20]
            ..Options::default()
        };
        let (process, ids) = (sys::process_id(), sys::effective_ids());
        let mount = lent::connecting(|| Mount::over(socket, root, &options)).ok()?;
        let mut descriptors = [None; DESCRIPTORS_MAX];
        for ((known, number), kept) in descriptors.iter_mut().zip(&DESCRIPTORS).zip(mount.descriptors()) {
            let kept = kept.as_raw_fd();
            *known = Some((kept, identity(kept)?));
            number.store(kept, SeqCst);
        }
        let parts = ManuallyDrop::new(Parts { directories: Mutex::default(), files: Mutex::default(), mount });
        Some(Self { parts, descriptors, process, ids, shown: OnceLock::new() })
    }

    pub(crate) fn mount(&self) -> &Mount {
        &self.parts.mount
    }

    pub(crate) fn directories(&self) -> MutexGuard<'_, Directories> {
        self.parts.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn files(&self) -> MutexGuard<'_, Files> {
        self.parts.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it knows, in memory that stays behind its end.
    pub(crate) fn shown(&self) -> Option<&'static KnownAnswers> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        *self.shown.get_or_init(|| {
            let answers = self.mount().known_answers().filter(|_| COUNT.fetch_add(1, SeqCst) < outside::CONNECTIONS_MAX)?;
            Some(Box::leak(Box::new(answers)))
        })
    }

    /// Whether each descriptor still is what it was: a program may have closed them past this library ([PRL6]).
    fn has_its_descriptors(&self) -> bool {
        self.descriptors.iter().flatten().all(|(number, was)| identity(*number) == Some(*was))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        DESCRIPTORS.iter().for_each(|number| number.store(-1, SeqCst));
        files::none_is_open();
        if self.has_its_descriptors() {
            // SAFETY: once, and nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.parts) };
        }
    }
}

/// A socket to the daemon, which is the one whose mount it is. A daemon that is stopped, with as many waiting for it as may, is waited for no longer than for its greeting.
fn connected(place: &Path, user: u32) -> Option<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, timeout, Some(PATIENCE)).ok()?;
    }
    rustix::net::connect(&socket, &SocketAddrUnix::new(place).ok()?).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&socket).ok()?;
    (peer.uid.as_raw() == user).then_some(socket)
}

fn descriptors_from() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    limit.saturating_sub(DESCRIPTORS_BELOW_LIMIT).min(DESCRIPTORS_FROM_MAX) as u32
}

/// Whether this is the process, and not one that shares its memory ([PRL2]).
pub(crate) fn is_own_process() -> bool {
    PROCESS.load(SeqCst) == sys::process_id()
}

/// Lets the calling thread into a call, all of whose signals are blocked.
pub(crate) fn enter(settings: &'static Settings) -> Result<Arc<Door>, Way> {
    if OVER.load(SeqCst) {
        return Err(Way::NoConnection);
    }
    let process = sys::process_id();
    if PROCESS.load(SeqCst) != process && !on(Mutant::ProcessNotAsked) {
        return Err(Way::OtherProcess);
    }
    let before = INSIDE.fetch_add(1, SeqCst);
    let entered = if CLOSING.load(SeqCst) != 0 {
        Err(Way::Leaving)
    } else if before >= SLOTS {
        Err(Way::Busy)
    } else {
        door(settings)
    };
    match entered {
        Ok(door) if door.process == process && door.ids == sys::effective_ids() => Ok(door),
        Ok(door) if on(Mutant::IdsRemembered) || on(Mutant::ProcessNotAsked) => Ok(door),
        Ok(door) => {
            leave(door);
            Err(Way::OtherProcess)
        }
        Err(way) => {
            INSIDE.fetch_sub(1, SeqCst);
            Err(way)
        }
    }
}

/// The end of a call.
pub(crate) fn leave(door: Arc<Door>) {
    drop(door);
    INSIDE.fetch_sub(1, SeqCst);
}

/// Lets the calling thread in, all of whose signals are blocked, to what is open already. False while nobody may enter; an error in another
/// process.
pub(crate) fn pass() -> Result<bool, Way> {
    if !is_own_process() {
        return Err(Way::OtherProcess);
    }
    INSIDE.fetch_add(1, SeqCst);
    if CLOSING.load(SeqCst) == 0 {
        return Ok(true);
    }
    INSIDE.fetch_sub(1, SeqCst);
    Ok(false)
}

/// The end of that.
pub(crate) fn passed() {
    INSIDE.fetch_sub(1, SeqCst);
}

fn door(settings: &'static Settings) -> Result<Arc<Door>, Way> {
    // Threads that are served do not wait for each other.
    let served = STATE.read().unwrap_or_else(PoisonError::into_inner);
    if on(Mutant::ForkInside) {
        (0..20).for_each(|_| sys::pause()); // a fork meets who holds this
    }
    if let State::Open(door) = &*served {
        return Ok(Arc::clone(door));
    }
    drop(served);
    let mut state = state();
    match &*state {
        State::Open(door) => return Ok(Arc::clone(door)),
        State::Without => return Err(Way::NoConnection),
        State::New if CALLS.load(SeqCst) < settings.calls_before => {
            CALLS.fetch_add(1, SeqCst);
            return Err(Way::Early);
        }
        State::New => {}
    }
    let Some(door) = Door::open(settings).map(Arc::new) else {
        *state = State::Without;
        return Err(Way::NoConnection);
    };
    *state = State::Open(Arc::clone(&door));
    Ok(door)
}

/// The connection is no more: the mount serves this process.
pub(crate) fn ended(door: &Arc<Door>) {
    let mut state = state();
    if matches!(&*state, State::Open(current) if Arc::ptr_eq(current, door)) {
        *state = State::Without;
        outside::withdraw();
    }
}

/// New files do not get these permissions from now on.
pub(crate) fn set_umask(umask: u16) {
    if is_own_process() {
        let blocked = sys::Signals::ALL.set();
        if let State::Open(door) = &*state() {
            door.mount().set_umask(umask);
        }
        blocked.set();
    }
}

/// Does something while nobody is inside and no connection is open: for what changes who this process is.
pub(crate) fn without_connection<T>(work: impl FnOnce() -> T) -> T {
    if settings::get().is_none() || on(Mutant::IdsRemembered) {
        return work();
    }
    if !is_own_process() {
        outside::no_more(); // it may go on beside us, with other ids, in this memory
        return work();
    }
    let blocked = sys::Signals::ALL.set();
    if close() {
        outside::withdraw();
        descriptions::all_real_alone(Way::Leaving);
        mappings::leave_connection();
        descriptions::forget_all(); // what could not be opened by the mount: its connection is never closed
        let was_open = std::mem::replace(&mut *state(), State::New);
        drop(was_open);
    } else {
        OVER.store(true, SeqCst);
        outside::no_more(); // who is inside could show it again
    }
    blocked.set();
    // The change of ids reaches the other threads by a signal of libc's, so they must be able to take it.
    let result = work();
    CLOSING.fetch_sub(1, SeqCst);
    result
}

/// The door is not used any more.
pub(crate) fn end() {
    if settings::get().is_none() {
        return;
    }
    outside::no_more();
    if is_own_process() {
        OVER.store(true, SeqCst);
        without_connection(|| ());
    }
}

/// Waits until nobody is inside; whether that came about. Nobody enters until `CLOSING` is lowered. For placeholders there is no other way
/// than the daemon's, so it is waited for as the mount would.
fn close() -> bool {
    CLOSING.fetch_add(1, SeqCst);
    let mut started = None;
    while INSIDE.load(SeqCst) != 0 && !on(Mutant::ForkInside) {
        if started.get_or_insert_with(std::time::Instant::now).elapsed() > PATIENCE && !descriptions::are_there() {
            return false;
        }
        sys::pause();
    }
    true
}

/// Whether this process is in a fork that is watched, and whether the thread that forks has found nobody inside.
static FORKS: AtomicBool = AtomicBool::new(false);
static IS_EMPTY: AtomicBool = AtomicBool::new(true);
/// Whether it may have had other threads.
static HAD_THREADS: AtomicBool = AtomicBool::new(false);

/// libc's byte that says whether this process has one thread, since 2.32.
static IS_ALONE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// Whether this process may have other threads.
pub(crate) fn has_threads() -> bool {
    let is_alone = IS_ALONE.load(SeqCst);
    // SAFETY: null, or libc's variable.
    is_alone.is_null() || unsafe { is_alone.read_volatile() } == 0
}

extern "C" fn before_fork() {
    if is_own_process() {
        let blocked = sys::Signals::ALL.set();
        IS_EMPTY.store(close(), SeqCst);
        if IS_EMPTY.load(SeqCst) && !on(Mutant::ForkedPlaceholders) {
            descriptions::all_real_alone(Way::Fork); // [PRL13]
            mappings::before_fork_alone(); // [PRL20]
        }
        HAD_THREADS.store(has_threads(), SeqCst);
        FORKS.store(true, SeqCst);
        blocked.set();
    }
}

extern "C" fn after_fork_here() {
    if is_own_process() {
        FORKS.store(false, SeqCst);
        CLOSING.fetch_sub(1, SeqCst);
    }
}

/// [PRL4]
extern "C" fn after_fork_in_child() {
    // Of a process that came about otherwise, nothing is known.
    if !FORKS.swap(false, SeqCst) {
        return;
    }
    CLOSING.store(0, SeqCst);
    INSIDE.store(0, SeqCst);
    CALLS.store(0, SeqCst);
    if !IS_EMPTY.load(SeqCst) {
        OVER.store(true, SeqCst); // somebody inside has our locks
        return;
    }
    // The shared memory is not here; what knows of it is left as it is.
    mappings::after_fork_in_child();
    descriptions::forget_all();
    if HAD_THREADS.load(SeqCst) {
        descriptions::no_more();
    }
    if let State::Open(door) = std::mem::replace(&mut *state(), State::New) {
        DESCRIPTORS.iter().for_each(|number| number.store(-1, SeqCst));
        files::none_is_open();
        if door.has_its_descriptors() {
            door.descriptors.iter().flatten().for_each(|(number, _)| sys::close(*number));
        }
        std::mem::forget(door);
    }
    PROCESS.store(sys::process_id(), SeqCst);
}

/// The start: this process, and its forks.
pub(crate) fn watch_forks() {
    outside::prepare();
    PROCESS.store(sys::process_id(), SeqCst);
    // SAFETY: a name that ends with NUL.
    IS_ALONE.store(unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) }.cast(), SeqCst);
    // SAFETY: three functions that stay.
    let failed = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_here), Some(after_fork_in_child)) };
    if failed != 0 {
        OVER.store(true, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_a_daemon_that_takes_nobody_was_waited_for_for_ever() {
        let place = std::env::temp_dir().join(format!("tandemfs-preload-{}.socket", std::process::id()));
        let address = SocketAddrUnix::new(&place).expect("a path");
        let socket = |flags| rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
        let daemon = socket(SocketFlags::CLOEXEC);
        rustix::net::bind(&daemon, &address).expect("bound");
        rustix::net::listen(&daemon, 0).expect("listening");
        let waiting: Vec<OwnedFd> = std::iter::repeat_with(|| socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK))
            .take_while(|socket| rustix::net::connect(socket, &address).is_ok())
            .collect();
        let user = sys::effective_ids().0;
        assert!(!waiting.is_empty() && connected(&place, user).is_none());
        let _first = rustix::net::accept(&daemon).expect("one that waits");
        assert!(connected(&place, user).is_some() && connected(&place, user + 1).is_none());
        std::fs::remove_file(&place).expect("removed");
    }
}

//! Finding the daemon of a mount and greeting it.

use std::cmp::Reverse;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use tandemfs_device::{LentZone, Mapping, PersistenceDomain, StoreZone};
use tandemfs_protocol::{GREETING_BYTES, Hello, Reception, STORE_MESSAGE_BYTES, StoreMessage, StorePlace, VERSION, Welcome, socket};
use tandemfs_ring::{Client, Leases, Versions};

use crate::ConnectError;
use crate::lent_stores::Stores;
use crate::mountinfo::{Mounted, mounted};

/// How long a daemon may take for its greeting.
const GREETING_WAIT: Duration = Duration::from_secs(5);
/// Descriptors of a welcome: arena, word file, perhaps an eventfd, version words, the memory zone, that for stores and lease words.
const DESCRIPTORS_MAX: usize = 7;

/// The socket of the daemon of a mount, connected, and where it is.
pub(crate) fn find(directory: &Path, mount: &Mounted) -> Result<(OwnedFd, PathBuf), ConnectError> {
    let (prefix, mut foreign) = (socket::prefix(mount.major, mount.minor), None);
    let is_own = |place: &PathBuf| std::fs::symlink_metadata(place).is_ok_and(|found| socket::is_own(&found, mount.user));
    for place in socket::directories(mount.user).into_iter().filter(is_own) {
        let Ok(entries) = std::fs::read_dir(&place) else { continue };
        let ours = entries.flatten().filter(|entry| entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()));
        let mut paths: Vec<PathBuf> = ours.map(|entry| entry.path()).collect();
        // The newest first: a daemon whose mount is gone may still have its socket, and the kernel gives the device number to others.
        paths.sort_by_key(|path| Reverse(std::fs::metadata(path).and_then(|found| found.modified()).ok()));
        for path in paths {
            // A daemon that was killed leaves its socket behind.
            let Ok(found) = connect_to(&path) else { continue };
            let uid = socket_peercred(&found)?.uid.as_raw();
            match uid == mount.user {
                true => return Ok((found, path)),
                false => foreign = Some(ConnectError::Foreign { found: uid, expected: mount.user }),
            }
        }
    }
    Err(foreign.unwrap_or_else(|| ConnectError::NoDoor(directory.into())))
}

/// The mount whose root a directory is, and that root, which shows the daemon that this process can reach it. The daemon is not asked: the
/// kernel knows device and mount id.
pub(crate) fn mount_of(directory: &Path) -> Result<(Mounted, OwnedFd), ConnectError> {
    let opened = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(&opened, "", flags, StatxFlags::MNT_ID)?;
    let mount = mounted(&std::fs::read("/proc/self/mountinfo")?, found.stx_mnt_id);
    let mount = mount.ok_or_else(|| ConnectError::NotMounted(directory.into()))?;
    let is_root = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    match mount.objection {
        Some(what) => Err(ConnectError::NotEntered { directory: directory.into(), what }),
        None if is_root => Ok((mount, opened)),
        None => Err(ConnectError::NotRoot(directory.into())),
    }
}

fn connect_to(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_timeouts(&socket)?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(socket)
}

fn set_timeouts(socket: &OwnedFd) -> Result<(), Errno> {
    set_socket_timeout(socket, Timeout::Send, Some(GREETING_WAIT))?;
    set_socket_timeout(socket, Timeout::Recv, Some(GREETING_WAIT))
}

/// The descriptor that has come with this number, of an open file.
pub(crate) fn received_descriptor(socket: BorrowedFd<'_>, number: u64) -> crate::Result<OwnedFd> {
    received(socket, |message| (*message == number.to_le_bytes()).then_some(())).map(|(descriptor, ())| descriptor)
}

/// The description of the memory zone that has come for a mapping, and whether lines of what is stored there are to be flushed.
pub(crate) fn received_zone(socket: BorrowedFd<'_>, mapping: NonZeroU64) -> crate::Result<(OwnedFd, bool)> {
    received(socket, |message| {
        let message = StoreMessage::decode(message).ok().filter(|message| message.mapping == mapping)?;
        Some(message.needs_flush)
    })
}

/// The descriptor that has come with a message that is meant, and what that says. Others are of calls that nobody waits for any more.
fn received<T>(socket: BorrowedFd<'_>, meant: impl Fn(&[u8]) -> Option<T>) -> crate::Result<(OwnedFd, T)> {
    loop {
        let mut bytes = [0; STORE_MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = retry_on_intr(|| rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags));
        let length = match received {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN) => return Err(Errno::PROTO.into()),
            Err(error) => return Err(error.into()),
        };
        if length == 0 {
            return Err(Errno::NOTCONN.into());
        }
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        match (meant(&bytes[..length]), rights.flatten().next()) {
            (Some(said), Some(descriptor)) => return Ok((descriptor, said)),
            // The process has no number for it left.
            (Some(_), None) => return Err(Errno::MFILE.into()),
            (None, _) => {}
        }
    }
}

/// The same descriptor with a number that is not below `least`, if there is one.
fn moved_up(descriptor: OwnedFd, least: u32) -> OwnedFd {
    match least.try_into().ok().filter(|least| *least > 0).map(|least| fcntl_dupfd_cloexec(&descriptor, least)) {
        Some(Ok(moved)) => moved,
        _ => descriptor,
    }
}

/// What a daemon has sent.
pub(crate) struct Greeted {
    pub(crate) client: Client,
    pub(crate) welcome: Welcome,
    /// The memory zone, where the daemon lends it and the client wants it.
    pub(crate) zone: Option<LentZone>,
    /// What the client stores by, under the same conditions.
    pub(crate) stores: Option<Stores>,
}

/// What a client stores by; none where it would not be durable, or cannot be mapped: then everything is written by requests.
fn stores(place: StorePlace, zone: OwnedFd, words: &OwnedFd) -> Option<Stores> {
    const FLUSHED: PersistenceDomain = PersistenceDomain::Adr;
    if place.needs_flush && Mapping::reachable_domain(FLUSHED) != FLUSHED {
        return None;
    }
    let zone = StoreZone::received(zone, place.zone.start, place.zone.bytes).map().ok()?;
    Some(Stores::new(zone, place.needs_flush, Leases::map(words.as_fd()).ok()?))
}

/// Waits until the daemon says something, or has closed the connection. The socket's own bound begins anew with each signal, so it would not end
/// a wait that signals interrupt more often.
///
/// # Errors
/// `AGAIN` after [`GREETING_WAIT`].
fn wait_for_greeting(socket: &OwnedFd) -> Result<(), Errno> {
    let end = Instant::now() + GREETING_WAIT;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(Errno::AGAIN),
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Greets the daemon at the other end of a socket and maps what it sends. Descriptors that are kept have numbers from `least` on.
pub(crate) fn greet(socket: OwnedFd, root: BorrowedFd<'_>, hello: Hello, least: u32) -> Result<Greeted, ConnectError> {
    let socket = moved_up(socket, least);
    set_timeouts(&socket)?;
    let hello = hello.showing(root);
    retry_on_intr(|| rustix::net::send(&socket, &hello.encode(), SendFlags::NOSIGNAL))?;
    wait_for_greeting(&socket)?;
    let mut bytes = [0; GREETING_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let length =
        retry_on_intr(|| rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC))?.bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if length == 0 {
        return Err(ConnectError::Protocol("it closed the connection"));
    }
    let welcome = match Reception::decode(&bytes[..length])? {
        Reception::Welcome(welcome) => welcome,
        Reception::Refusal(refusal) if refusal.version != VERSION => return Err(ConnectError::Version { found: refusal.version }),
        Reception::Refusal(refusal) => return Err(ConnectError::Refused { errno: refusal.errno, sentence: refusal.sentence }),
    };
    let stores = welcome.stores.and_then(|place| {
        let (words, zone) = (descriptors.pop()?, descriptors.pop()?);
        if hello.wants_stores { stores(place, zone, &words) } else { None }
    });
    let zone = welcome.zone.and_then(|place| Some(LentZone::received(moved_up(descriptors.pop()?, least), place.start, place.bytes)));
    let zone = zone.filter(|_| hello.wants_zone); // without it everything is asked for
    let versions = if welcome.version_words > 0 { descriptors.pop() } else { None };
    let mut descriptors = descriptors.into_iter();
    let (Some(arena), Some(words), bell) = (descriptors.next(), descriptors.next(), descriptors.next()) else {
        return Err(ConnectError::Protocol("a welcome without shared memory"));
    };
    let bell = bell.map(|bell| moved_up(bell, least));
    let client = Client::map(arena.as_fd(), words.as_fd(), bell, Some(socket))?;
    if let Some(versions) = versions {
        client.set_versions(Versions::map(versions.as_fd())?);
    }
    Ok(Greeted { client, welcome, zone, stores })
}

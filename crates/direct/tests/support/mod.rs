//! A server in the test's process: `/proc` stands for its mount, since every process sees it, and nobody asks it for files.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendmsg};
use tandemfs_client::{ConnectError, Mount, Options};
use tandemfs_direct::{MountIdentity, Server};

/// The mount that the server is told to be beside.
pub fn mount_identity() -> MountIdentity {
    let place = rustix::fs::stat("/proc").expect("there");
    MountIdentity {
        major: rustix::fs::major(place.st_dev),
        minor: rustix::fs::minor(place.st_dev),
        mountpoint: "/proc".into(),
        user: rustix::process::geteuid().as_raw(),
        is_read_only: true, // /proc may be
    }
}

/// Connects to the server, and shows it this directory as the root of the mount.
pub fn connect(server: &Server, root: &str, options: &Options) -> Result<Mount, ConnectError> {
    connect_to(server.socket(), root, options)
}

/// The same by its socket.
pub fn connect_to(path: &Path, root: &str, options: &Options) -> Result<Mount, ConnectError> {
    hello_over(socket_to(path), root, options)
}

/// A socket that is connected to the server's, and has said nothing.
pub fn socket_to(path: &Path) -> OwnedFd {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("an address")).expect("connected");
    socket
}

/// Greets the server by such a socket.
pub fn hello_over(socket: OwnedFd, root: &str, options: &Options) -> Result<Mount, ConnectError> {
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("there");
    Mount::over(socket, root.as_fd(), options)
}

/// Sends a descriptor with some bytes.
#[allow(dead_code, reason = "not in every test")]
pub fn send_descriptor(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: &OwnedFd) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let shown = [descriptor.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&shown)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
}

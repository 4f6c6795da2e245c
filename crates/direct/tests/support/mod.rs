//! A server in the test's process: `/proc` stands for its mount, since every process sees it, and nobody asks it for files.

use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
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
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    rustix::net::connect(&socket, &SocketAddrUnix::new(server.socket()).expect("an address")).expect("connected");
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("there");
    Mount::over(socket, root.as_fd(), options)
}

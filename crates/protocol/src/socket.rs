//! Where the socket of a mount is. Its name has the mount's device number, so it is found without touching a mount that may hang, and the
//! daemon's process id, since the kernel may use a device number again while the previous daemon is still ending.
//!
//! Everybody who may enter the mount finds it, so its directory is not that of the control socket, which is private. Whoever connects
//! compares the peer's user with the user of the mount (`user_id=` in mountinfo): anybody may make a directory in /tmp.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The directories in which daemons of a user may have their sockets, in order of preference. A daemon uses the first that it can make.
pub fn directories(user: u32) -> Vec<PathBuf> {
    match user {
        0 => vec!["/run/tandemfs-direct".into(), "/tmp/tandemfs-direct-0".into()],
        user => vec![format!("/run/user/{user}/tandemfs-direct").into(), format!("/tmp/tandemfs-direct-{user}").into()],
    }
}

/// Whether what was found at such a path is a directory of the user's own, which nobody else can fill: anybody can make one in /tmp, with any number
/// of sockets that never answer. A daemon makes its socket nowhere else, and a client looks nowhere else.
pub fn is_own(found: &Metadata, user: u32) -> bool {
    found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0
}

/// How the names of a mount's sockets begin.
pub fn prefix(major: u32, minor: u32) -> String {
    format!("{major}-{minor}.")
}

/// The name of a daemon's socket.
pub fn name(major: u32, minor: u32, process_id: u32) -> String {
    format!("{}{process_id}.socket", prefix(major, minor))
}

//! Id-mapped mounts for tests, which run as root.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::sys;

/// An id-mapped mount of a directory that is attached nowhere: it goes with its descriptor.
#[derive(Debug)]
pub struct IdMapped(OwnedFd);

impl IdMapped {
    /// User and group 0 of the file system by the mount.
    pub const FIRST: u32 = 100_000;
    /// How many ids are mapped.
    pub const COUNT: u32 = 65_536;

    /// Makes the mount. Panics if the kernel refuses it.
    pub fn of(directory: &Path) -> Self {
        Self(sys::id_mapped_mount(directory, &namespace()).expect("an id-mapped mount"))
    }

    /// A path by the mount, for this process and for a child before it runs another program.
    pub fn path(&self, name: &str) -> PathBuf {
        format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()).into()
    }
}

/// A user namespace, which describes the map.
fn namespace() -> File {
    let mut command = Command::new("unshare");
    let mut child = command.args(["--user", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare(1)");
    let (mut input, mut output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    // An answer means that `cat` runs in its namespace.
    input.write_all(b"x").and_then(|()| output.read_exact(&mut [0])).expect("user namespaces");
    let of_child = |file: &str| format!("/proc/{}/{file}", child.id());
    for map in ["uid_map", "gid_map"] {
        fs::write(of_child(map), format!("0 {} {}", IdMapped::FIRST, IdMapped::COUNT)).expect("mapped");
    }
    let namespace = File::open(of_child("ns/user")).expect("opened");
    drop(input);
    child.wait().expect("ended");
    namespace
}

//! What the kernel's list of mounts changes for clients ([KNW3], [CRD3] of `crates/direct`): something is mounted inside, the mount is made
//! read-only by others. Only root can do that, in a namespace of its own; the tests are a process there.

#[path = "support/pages.rs"]
mod pages;
mod support;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tandemfs_client::{Error, Options, Tree};
use tandemfs_crash::{MemoryDevice, comes_within};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_direct::{Entrants, Limits, MountIdentity, Server};
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, make_file_system};
use tandemfs_vfs::{At, Capabilities, Credentials, Process, Settings, Vfs};

const BUGS: [(&str, Mutant); 4] = [
    ("none", Mutant::None),
    ("KNW3", Mutant::MountsNotRevoked),
    ("D14", Mutant::MountPointsForgotten),
    ("CRD3", Mutant::ClosedMountServed),
];
const BUG: &str = "TANDEMFS_TEST_BUG";
/// How long a change may take to be noticed, and how long a bug is watched.
const LIMIT: Duration = Duration::from_secs(60);
const WATCHED: Duration = Duration::from_secs(2);

fn mount(arguments: &[&str]) {
    let output = Command::new("mount").args(arguments).output().expect("ran");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `/proc` stands for the mount, as in the other tests.
#[test]
#[ignore = "started by a test, in a namespace of mounts"]
fn inside() {
    let name = std::env::var(BUG).expect("which");
    let (_, bug) = BUGS.iter().find(|(known, _)| *known == name).expect("known");
    let device = MemoryDevice::new(32 << 20, 16 << 20, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("formats");
    let fs = FileSystem::mount(Drive::new(Arc::new(device)), &MountOptions::default()).expect("mounts");
    // The kernel has no pages.
    let vfs = Vfs::new(Arc::new(fs), Settings::default()).beside(Arc::<pages::Pages>::default());
    let process = Process::of(Credentials::new(0, 0, &[], Capabilities::ALL));
    vfs.make_directory(&process, At::Root, b"tty", 0o755).expect("made");
    vfs.make_directory(&process, At::Root, b"tty/driver", 0o755).expect("made");
    drop(vfs.open(&process, At::Root, b"tty/driver/file", libc::O_CREAT | libc::O_RDWR, 0o644).expect("made"));
    let identity = MountIdentity { is_read_only: false, ..support::mount_identity() };
    let server = Server::start(vfs.clone(), identity, Box::new(|| true), Entrants::Everybody, Limits::default()).expect("starts");
    mutant::select(*bug);
    let client = support::connect(&server, "/proc", &Options::default()).expect("let in");
    for _ in 0..2 {
        client.attributes("tty/driver/file").expect("there"); // and known from now on
    }
    let within = |is_its_bug| if is_its_bug { WATCHED } else { LIMIT };
    mount(&["-t", "tmpfs", "none", "/proc/tty/driver"]);
    let is_crossed =
        comes_within(within(*bug == Mutant::MountsNotRevoked), || matches!(client.attributes("tty/driver/file"), Err(Error::Crossed(_))));
    println!("crossed: {is_crossed}");
    let renamed = client.rename("tty", "moved");
    println!("left: {}", matches!(renamed, Err(Error::Crossed(_)))); // to the kernel
    // As by a client that the daemon served before it knew of the mount.
    vfs.rename(&process, (At::Root, b"tty"), (At::Root, b"moved"), 0).expect("renamed");
    let client = support::connect(&server, "/proc", &Options::default()).expect("let in");
    println!("remembered: {}", matches!(client.attributes("moved/driver/file"), Err(Error::Crossed(_))));
    mount(&["-o", "remount,ro,bind", "/proc"]);
    let has_ended = comes_within(within(*bug == Mutant::ClosedMountServed), || matches!(client.attributes("."), Err(Error::Errno(_))));
    println!("ended: {has_ended}");
}

#[test]
fn the_list_of_mounts_counts_from_its_change_on() {
    if !rustix::process::geteuid().is_root() {
        println!("not root: nothing is mounted");
        return;
    }
    for (name, bug) in BUGS {
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--"])
            .arg(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "inside", "--nocapture"])
            .env(BUG, name)
            .output()
            .expect("ran");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&output.stderr));
        let found = ["crossed", "left", "remembered", "ended"].map(|what| said.contains(&format!("{what}: true")));
        let expected = [bug != Mutant::MountsNotRevoked, true, bug != Mutant::MountPointsForgotten, bug != Mutant::ClosedMountServed];
        assert_eq!(found, expected, "{name}: {said}");
    }
}

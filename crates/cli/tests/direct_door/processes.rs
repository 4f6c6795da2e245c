//! Clients in processes of their own: the test program runs itself again.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child as Running, ChildStdout, Command, Stdio};
use std::time::Duration;

use tandemfs_protocol::{Operation, Place, Text};
use tandemfs_ring::Request;

use crate::client::{Door, Failure, socket_of};

const ROLE: &str = "TANDEMFS_DOOR_ROLE";
const MOUNTPOINT: &str = "TANDEMFS_DOOR_MOUNTPOINT";
const SOCKET: &str = "TANDEMFS_DOOR_SOCKET";

/// A child that runs the ignored test `child`.
pub struct Child {
    child: Running,
    output: BufReader<ChildStdout>,
}

impl Child {
    pub fn start(role: &str, mountpoint: &Path, user: Option<u32>) -> Self {
        // Another user may not reach the directory of the program.
        let mut command = Command::new("/proc/self/exe");
        command.args(["--ignored", "--exact", "processes::child", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(MOUNTPOINT, mountpoint).env(SOCKET, socket_of(mountpoint)).stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = crate::support::start(&mut command).expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, output }
    }

    /// Waits for a word.
    pub fn says(&mut self, word: &str) {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("read") > 0 {
            if line.contains(word) {
                return;
            }
            line.clear();
        }
        panic!("it never said '{word}'");
    }

    /// Stops it until it is killed.
    pub fn stop(&self) {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::STOP).expect("stopped");
    }

    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    pub fn succeeds(mut self) {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut said).expect("read");
        assert!(self.child.wait().expect("ended").success(), "{said}");
    }
}

#[test]
#[ignore = "started by other tests"]
fn child() {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).expect("set by the parent");
    let (mountpoint, socket) = (variable(MOUNTPOINT), variable(SOCKET));
    let connected = Door::at(&socket, &mountpoint);
    match std::env::var(ROLE).expect("a role").as_str() {
        "lies" => lie(connected.expect("let in")),
        "lies-again-and-again" => lie_again_and_again(connected.expect("let in"), &socket, &mountpoint),
        "asks-for-much" => ask_for_much(connected.expect("let in")),
        "holds" => hold(connected.expect("let in")),
        "hammers" => hammer(connected.expect("let in")),
        "other-user" => be_another_user(connected.expect("let in")),
        "opens-for-itself" => crate::descriptors::opens_for_itself(connected.expect("let in")),
        "drops-rights" => drop_rights(connected.expect("let in")),
        "is-refused" => {
            let refusal = connected.err().expect("not let in");
            assert!(refusal.errno == libc::EACCES && refusal.sentence.contains("allow_other"), "{refusal:?}");
        }
        other => panic!("no role {other}"),
    }
}

/// Closes the file without a number.
fn lie(mut door: Door) {
    door.make("lied", b"x").expect("made");
    let close = Request { handle: 0, ..Request::new(3) };
    let answer = door.call_raw(&close);
    assert!(matches!(answer, Err(Failure::Ended | Failure::Errno(libc::EIO))), "{answer:?}");
    let start = std::time::Instant::now();
    while door.stat("lied") != Err(Failure::Ended) {
        assert!(start.elapsed() < crate::support::WITHIN, "still served");
    }
}

/// A connection a lie.
fn lie_again_and_again(mut door: Door, socket: &Path, mountpoint: &Path) {
    println!("began");
    loop {
        for number in [3, 4, 9, 17] {
            let _ended = door.call_raw(&Request { handle: 0, arguments: [u64::MAX; 7], ..Request::new(number) });
        }
        door = loop {
            if let Ok(door) = Door::at(socket, mountpoint) {
                break door;
            }
        };
    }
}

/// Requests that are as long as requests may be.
fn ask_for_much(mut door: Door) {
    println!("began");
    let (own, long) = (format!("much-{}", std::process::id()), vec![7; 1 << 20]);
    let path = format!("{}{own}", "./".repeat(1900));
    loop {
        door.make(&own, &long).expect("made");
        assert_eq!(door.contents(&own).expect("read").len(), long.len());
        let stat = |path: tandemfs_ring::Range| Operation::Stat {
            subject: tandemfs_protocol::Subject::Path { at: Place::Root, path: Text::There(path), flags: 0 },
        };
        door.call_with(path.as_bytes(), 0, stat).expect("there");
    }
}

fn hold(mut door: Door) {
    for number in 0..20 {
        let name = format!("held-{}-{number}", std::process::id());
        door.make(&name, &[7; 10_000]).expect("made");
        door.open(&name, libc::O_RDWR, 0).expect("opened");
        door.unlink(&name).expect("removed");
    }
    println!("held");
    std::thread::sleep(Duration::from_secs(600));
}

fn hammer(mut door: Door) {
    println!("began");
    let own = format!("hammer-{}", std::process::id());
    for number in 0_u64.. {
        door.make(&own, &number.to_le_bytes()).expect("made");
        door.rename(&own, "hammered").expect("renamed");
        let _gone = door.unlink("hammered");
    }
}

fn be_another_user(mut door: Door) {
    assert_eq!(door.contents("secret"), Err(Failure::Errno(libc::EACCES)));
    assert_eq!(door.make("own", b"x"), Err(Failure::Errno(libc::EACCES)));
    assert_eq!(door.unlink("secret"), Err(Failure::Errno(libc::EACCES)));
    assert_eq!(
        door.call(&Operation::ChangeMode { subject: crate::client::named("secret"), mode: 0o666 }),
        Err(Failure::Errno(libc::EPERM))
    );
    door.make("all/own", b"own").expect("made");
    assert_eq!(door.contents("all/own").expect("read"), b"own");
    let into = Operation::MakeDirectory { at: Place::Root, path: Text::Here(b"all/sub"), mode: 0o777, umask: 0o77 };
    let made = door.call(&into).expect("made").attributes.expect("attributes");
    assert_eq!((made.mode & 0o7777, made.user), (0o700, 65_534));
}

/// A process that gives its rights up does not keep them at the door.
fn drop_rights(mut door: Door) {
    assert_eq!(door.contents("secret").expect("of root"), b"of root");
    // SAFETY: no memory is passed. Unlike a system call this changes all threads.
    assert_eq!(unsafe { libc::setresuid(65_534, 65_534, 65_534) }, 0);
    std::thread::sleep(Duration::from_millis(300)); // the server reads credentials of active clients every 100 ms
    let start = std::time::Instant::now();
    loop {
        match door.contents("secret") {
            Err(Failure::Ended) => return,
            other => assert!(start.elapsed() < crate::support::WITHIN, "{other:?}"),
        }
    }
}

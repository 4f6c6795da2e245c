//! Daemons that are slow, die, refuse, are of another version or lie, and memory that is scarce.

mod support;

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::files::Files;
use support::{SIZES, Server, by, connected, descriptors, done, fails, hello, memory_file, options, pair, put, refused, send, welcome};
use tandemfs_client::{Attributes, ConnectError, Crossed, Errno, Error, File, Mount, OpenOptions, Tree, Why};
use tandemfs_protocol::{Number, Operation, Outcome, Reception, Refusal, VERSION};
use tandemfs_ring::{Answer, Arena, Doorbell, Seen, Sizes, Ticket, VersionWords};

/// Opens anything and keeps what else it is asked.
fn keeps(operation: &Operation<'_>, _: &Ticket) -> support::Reply {
    match operation {
        Operation::Open { .. } => done(1),
        Operation::Close { .. } => done(0),
        _ => support::Reply::Keep,
    }
}

#[test]
fn a_slow_answer_is_waited_for() {
    let (mount, server) = by(keeps);
    let answered = std::thread::scope(|scope| {
        let call = scope.spawn(|| mount.ping());
        server.wait_for_kept(1);
        std::thread::sleep(Duration::from_millis(300));
        let ticket = server.kept.lock().expect("locked").remove(0);
        ticket.answer(&Answer::default());
        call.join().expect("it ends")
    });
    assert_eq!(answered, Ok(()));
}

#[test]
fn a_daemon_that_ends_wakes_its_callers() {
    let (mount, mut server) = by(keeps);
    let file = mount.open("f").expect("opened");
    std::thread::scope(|scope| {
        let calls = [0, 1, 2].map(|_| scope.spawn(|| mount.ping()));
        server.wait_for_kept(3);
        server.stop();
        calls.into_iter().for_each(|call| refused(call.join().expect("it ends"), Errno::NOTCONN));
    });
    refused(mount.ping(), Errno::NOTCONN);
    refused(file.read_at(&mut [0; 10], 0), Errno::NOTCONN);
    refused(file.close(), Errno::NOTCONN);
}

/// Waits in a child until it is killed.
fn until_killed() {
    println!("\nit serves");
    std::thread::sleep(Duration::from_secs(600));
}

/// A daemon in a process of its own, or another program.
struct Daemon(Child);

impl Daemon {
    /// Starts a test as one; returns when it serves, since a client does not wait long for an answer to its greeting.
    fn start(test: &str) -> (Self, OwnedFd) {
        let (ours, theirs) = pair();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", test, "--nocapture"])
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert!(lines.any(|line| line.expect("text") == "it serves"), "it ended");
        (Self(child), ours)
    }

    fn kill(&mut self) {
        self.0.kill().expect("it lived");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// A daemon that never answers anything but opens.
#[test]
#[ignore = "started by a test"]
fn child() {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("a socket");
    let _server = support::serve(socket, welcome(SIZES), keeps);
    until_killed();
}

#[test]
fn a_daemon_that_is_killed_wakes_its_callers() {
    let times: Vec<Duration> = (0..4).map(|_| woken_within()).collect();
    // A machine that stops for seconds does not do so each time.
    assert!(times.iter().any(|time| *time < Duration::from_secs(2)), "{times:?}");
}

/// How long callers wait for a daemon that was killed.
fn woken_within() -> Duration {
    let (mut daemon, ours) = Daemon::start("child");
    let mount = support::over(ours).expect("connects");
    let file = mount.open("f").expect("opened");
    let started = std::thread::scope(|scope| {
        let calls = [0, 1].map(|_| scope.spawn(|| file.read_at(&mut [0; 5000], 0)));
        std::thread::sleep(Duration::from_millis(200));
        daemon.kill();
        let started = Instant::now();
        calls.into_iter().for_each(|call| refused(call.join().expect("it ends"), Errno::NOTCONN));
        started
    });
    let woken = started.elapsed();
    refused(mount.ping(), Errno::NOTCONN);
    woken
}

/// Answers with a number that no two answers have, and which may be kept.
fn counts(versions: Arc<VersionWords>) -> impl FnMut(&Operation<'_>, &Ticket) -> support::Reply {
    let mut number = 0;
    move |operation, _| match operation {
        Operation::Stat { .. } | Operation::StatAhead { .. } => {
            number += 1;
            let attributes = Some(Attributes { node: number, ..Attributes::default() });
            support::Reply::NowFor(Answer { attributes, ..Answer::default() }, Seen::of([versions.current(7)]))
        }
        _ => done(0),
    }
}

/// A daemon whose answers may be kept.
#[test]
#[ignore = "started by a test"]
fn child_that_publishes() {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("a socket");
    let versions = VersionWords::new().expect("made");
    let _server = support::serve_publishing(socket, welcome(SIZES), Some(Arc::clone(&versions)), counts(versions));
    until_killed();
}

/// [VER7] of the ring: its words stay as they are.
#[test]
fn what_a_killed_daemon_said_is_not_said_again() {
    let (mut daemon, ours) = Daemon::start("child_that_publishes");
    let mount = support::over(ours).expect("connects");
    let node = |name: &str| mount.attributes(name).map(|attributes| attributes.node);
    assert_eq!((node("a"), node("b"), node("a"), node("b")), (Ok(1), Ok(2), Ok(1), Ok(2)));
    daemon.kill();
    std::thread::sleep(Duration::from_millis(50));
    refused(node("a"), Errno::NOTCONN);
}

#[test]
fn what_changes_and_what_ends_is_asked_for_again() {
    let versions = VersionWords::new().expect("made");
    let (ours, theirs) = pair();
    let mut server = support::serve_publishing(theirs, welcome(SIZES), Some(Arc::clone(&versions)), counts(Arc::clone(&versions)));
    let mount = support::over(ours).expect("connects");
    let node = |name: &str| mount.attributes(name).map(|attributes| attributes.node);
    assert_eq!((node("a"), node("a")), (Ok(1), Ok(1)));
    versions.raise(7);
    assert_eq!((node("a"), node("a")), (Ok(2), Ok(2)));
    server.stop();
    refused(node("a"), Errno::NOTCONN);
}

/// What a client says to a greeting.
fn greeted(answer: impl FnOnce(&OwnedFd) + Send) -> ConnectError {
    let (ours, theirs) = pair();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            hello(&theirs);
            answer(&theirs);
        });
        support::over(ours).expect_err("it is not served")
    })
}

#[test]
fn another_version_is_said_in_a_sentence() {
    let other = ((VERSION >> 16) + 1) << 16 | 7;
    let by_refusal = greeted(|socket| {
        let refusal = Refusal { version: other, errno: 71, sentence: "another version".into() };
        send(socket, &Reception::Refusal(refusal).encode(), &[]);
    });
    let by_welcome = greeted(|socket| {
        let mut bytes = Reception::Welcome(welcome(SIZES)).encode();
        bytes[8..12].copy_from_slice(&other.to_le_bytes());
        send(socket, &bytes, &[]);
    });
    for error in [by_refusal, by_welcome] {
        assert!(matches!(error, ConnectError::Version { found } if found == other), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("version {}.7", other >> 16)) && text.contains("install the same release"), "{text}");
    }
    let of_memory = greeted(|socket| {
        let arena = Arena::new(SIZES, Doorbell::Eventfd).expect("an arena");
        arena.file().expect("a file").write_all_at(&99_u32.to_le_bytes(), 8).expect("written");
        send(socket, &Reception::Welcome(welcome(SIZES)).encode(), &descriptors(&arena));
    });
    assert!(of_memory.to_string().contains("speaks version 99"), "{of_memory}");
}

#[test]
fn a_greeting_that_is_none_is_refused() {
    let sentence = "clients of this mount are limited to 16";
    let refusal = greeted(|socket| send(socket, &Reception::Refusal(Refusal::new(11, sentence)).encode(), &[]));
    assert!(matches!(refusal, ConnectError::Refused { errno: 11, .. }) && refusal.to_string() == sentence, "{refusal}");
    let is_protocol = |error: ConnectError| assert!(matches!(error, ConnectError::Protocol(_)), "{error:?}");
    is_protocol(greeted(|socket| send(socket, b"hello", &[])));
    is_protocol(greeted(|socket| send(socket, &[7; 256], &[])));
    is_protocol(greeted(|socket| send(socket, &[7; 300], &[])));
    is_protocol(greeted(|_| {})); // closes
    let bytes = Reception::Welcome(welcome(SIZES)).encode();
    is_protocol(greeted(|socket| send(socket, &bytes, &[])));
    let one = memory_file();
    is_protocol(greeted(|socket| send(socket, &bytes, &[one.as_fd()])));
    let unsealed = greeted(|socket| send(socket, &bytes, &[one.as_fd(), one.as_fd()]));
    assert!(matches!(unsealed, ConnectError::Memory(_)), "memory that could shrink under the client: {unsealed:?}");
}

#[test]
fn a_daemon_that_says_nothing_is_not_waited_for() {
    let (ours, _theirs) = pair();
    let started = Instant::now();
    let error = support::over(ours).expect_err("nobody answers");
    assert!(matches!(error, ConnectError::Silent), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(60));
}

/// Connects to a daemon that says nothing.
#[test]
#[ignore = "started by a test"]
fn child_that_connects() {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("a socket");
    let error = support::over(socket).expect_err("nobody answers");
    assert!(matches!(error, ConnectError::Silent), "{error:?}");
}

/// A program that was interrupted more often than every five seconds waited for ever.
#[test]
fn regression_signals_do_not_prolong_the_wait_for_a_silent_daemon() {
    let (_ours, theirs) = pair();
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program.args(["--ignored", "--exact", "child_that_connects"]).stdin(Stdio::from(theirs)).stdout(Stdio::null());
    let mut child = Daemon(program.spawn().expect("it starts"));
    let (process, started) = (Pid::from_child(&child.0), Instant::now());
    let status = loop {
        if let Some(status) = child.0.try_wait().expect("a child") {
            break status;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "it waits for ever");
        for signal in [Signal::STOP, Signal::CONT] {
            kill_process(process, signal).expect("sent");
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(status.success(), "{status}");
}

/// Places of other file systems; those of TandemFS are in `crates/cli/tests/client.rs`.
#[test]
fn a_place_without_a_door_is_said_in_a_sentence() {
    for path in ["/", "/proc"] {
        let error = Mount::connect(path).expect_err("no TandemFS");
        assert!(matches!(error, ConnectError::NotMounted(_)), "{error:?}");
        assert_eq!(error.to_string(), format!("{path}: no TandemFS is mounted there"));
    }
    assert!(matches!(Mount::connect("/no such place"), Err(ConnectError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound));
}

#[test]
fn errors_arrive_and_what_is_for_the_kernel_is_told_apart() {
    let crossed = Crossed { why: Why::MountPoint, argument: 1 };
    let (mount, _server) = by(move |operation: &Operation<'_>, _: &Ticket| match operation {
        Operation::Unlink { .. } => fails(Errno::PERM),
        _ => support::Reply::Now(Outcome::Crossed(crossed).encode()),
    });
    refused(mount.unlink("f"), Errno::PERM);
    assert_eq!(mount.rename("a", "b"), Err(Error::Crossed(crossed)));
    let error = std::io::Error::from(mount.rename("a", "b").expect_err("crossed"));
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    assert_eq!(std::io::Error::from(mount.unlink("f").expect_err("refused")).raw_os_error(), Some(1));
}

#[test]
fn what_the_daemon_does_not_serve_is_not_asked() {
    let without = welcome(SIZES).operations & !Number::Rename.bit();
    let few = tandemfs_protocol::Welcome { operations: without, ..welcome(SIZES) };
    let (mount, _server) = connected(few, |operation: &Operation<'_>, _: &Ticket| {
        assert!(!matches!(operation, Operation::Rename { .. }));
        done(0)
    });
    assert_eq!(mount.ping(), Ok(()));
    assert_eq!(mount.rename("a", "b"), Err(Error::Crossed(Crossed { why: Why::NotServed, argument: 0 })));
}

/// A mount whose daemon opens files and answers everything else with one answer.
fn liar(answer: Answer, leaves: Vec<u8>) -> (Mount, File, Server) {
    let (mount, server) = by(move |operation: &Operation<'_>, ticket: &Ticket| {
        match *operation {
            Operation::Open { .. } => return done(1),
            Operation::Close { .. } => return done(0),
            Operation::ReadDirectory { into, .. } | Operation::FileSystemSpace { into } | Operation::ReadLink { into, .. } => {
                put(into, &leaves, ticket);
            }
            _ => {}
        }
        support::Reply::Now(answer)
    });
    let file = mount.open("f").expect("opened");
    (mount, file, server)
}

#[test]
fn lengths_beyond_the_own_memory_are_not_believed() {
    for value in [101, 4096, SIZES.data_bytes, u64::from(u32::MAX), u64::MAX] {
        let (mount, file, _server) = liar(Answer { value, ..Answer::default() }, Vec::new());
        refused(file.read_at(&mut [0; 100], 0), Errno::PROTO);
        refused(file.write_at(&[0; 100], 0), Errno::PROTO);
        refused(file.append(&[0; 100]), Errno::PROTO);
        if value > 4095 {
            refused(mount.read_link("l"), Errno::PROTO);
        }
        if value > 1024 {
            refused(mount.extended_attribute("f", b"user.a"), Errno::PROTO);
            refused(mount.extended_attributes("f"), Errno::PROTO);
        }
        if value > 32 << 10 {
            refused(mount.read_directory(".").expect("opened").next().expect("an error"), Errno::PROTO);
        }
        refused(file.copy_range(0, &file, 200, 100), Errno::PROTO);
        refused(mount.space(), Errno::PROTO);
    }
}

#[test]
fn answers_that_do_not_fit_are_not_believed() {
    let (mount, file, _server) = liar(Answer::default(), Vec::new());
    refused(mount.attributes("f"), Errno::PROTO);
    refused(file.attributes(), Errno::PROTO);
    refused(mount.make_directory("d", 0o777), Errno::PROTO);
    for error in [4096, 1 << 16, 1 << 16 | 10, 1 << 16 | 2 << 8 | 1, u32::MAX] {
        let (mount, _file, _server) = liar(Answer { error, ..Answer::default() }, Vec::new());
        refused(mount.ping(), Errno::PROTO);
    }
    let (mount, _server) = by(|_: &Operation<'_>, _: &Ticket| done(0));
    refused(mount.open("f"), Errno::PROTO); // no handle
}

#[test]
fn a_value_that_grows_for_ever_is_given_up() {
    let (mount, _server) = by(|operation: &Operation<'_>, _: &Ticket| match operation {
        Operation::GetAttribute { into, .. } if into.length == 0 => done(2000),
        _ => fails(Errno::RANGE),
    });
    refused(mount.extended_attribute("f", b"user.a"), Errno::RANGE);
    let (mount, _server) = by(|operation: &Operation<'_>, _: &Ticket| match operation {
        Operation::GetAttribute { into, .. } if into.length == 0 => done(u64::MAX),
        _ => fails(Errno::RANGE),
    });
    refused(mount.extended_attribute("f", b"user.a"), Errno::PROTO);
}

fn entry(name: &[u8], cookie: u64) -> Vec<u8> {
    let mut writer = tandemfs_protocol::EntryWriter::new(1000);
    assert!(writer.push(&tandemfs_protocol::Listed { inode: 1, cookie, kind: 8, name }));
    writer.bytes().to_vec()
}

#[test]
fn a_listing_that_lies_ends() {
    let slash = [entry(b"good", 1), entry(b"a/b", 2)].concat();
    let cut = entry(b"a name", 1)[..24].to_vec();
    let stands_still = entry(b"again", 0);
    for leaves in [slash, cut, stands_still, vec![0; 24], vec![255; 100]] {
        let (mount, _file, _server) = liar(Answer { value: leaves.len() as u64, ..Answer::default() }, leaves);
        let mut listing = mount.read_directory(".").expect("opened");
        refused(listing.next().expect("an error"), Errno::PROTO);
        assert!(listing.next().is_none());
    }
}

/// Numbers that lie near borders more often than others.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn number(&mut self) -> u64 {
        let number = self.next();
        let borders = [0, 1, 100, 4095, 4096, 32 << 10, 64 << 10, 256 << 10, u64::from(u32::MAX), u64::MAX];
        match number % 4 {
            0 => number >> ((number >> 8) % 64),
            1 => borders[(number >> 8) as usize % borders.len()].wrapping_add(number >> 40 & 1),
            _ => (number >> 8) % 200,
        }
    }

    fn answer(&mut self) -> (Answer, Seen) {
        let error = if self.next().is_multiple_of(4) { self.number() as u32 } else { 0 };
        let attributes = self.next().is_multiple_of(2).then(tandemfs_client::Attributes::default);
        let seen = Seen::of((0..error % 9).map(|word| (word, 0)));
        (Answer { error, value: self.number(), further: self.number(), attributes }, seen)
    }

    /// A listing, or what looks a little like one.
    fn bytes(&mut self) -> Vec<u8> {
        let noise = (0..300).map(|_| if self.next().is_multiple_of(3) { self.next() as u8 } else { 0 });
        let noise: Vec<u8> = noise.collect();
        let cookie = self.next();
        if self.next().is_multiple_of(2) { [entry(b"name", cookie), noise].concat() } else { noise }
    }
}

/// Whatever a daemon says and leaves in the shared memory, each call returns.
#[test]
fn noise_for_answers_is_survived() {
    let seed = std::env::var("TANDEMFS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(7_u64).max(1);
    println!("TANDEMFS_SEED={seed}");
    let mut noise = Noise(seed);
    let (mount, _server) = by(move |operation: &Operation<'_>, ticket: &Ticket| {
        if let Operation::ReadDirectory { into, .. }
        | Operation::Read { into, .. }
        | Operation::ReadLink { into, .. }
        | Operation::GetAttribute { into, .. }
        | Operation::ListAttributes { into, .. }
        | Operation::FileSystemSpace { into } = *operation
        {
            put(into, &noise.bytes(), ticket);
        }
        let (answer, seen) = noise.answer();
        support::Reply::NowFor(answer, seen)
    });
    let (mut done, mut into) = (0, vec![0; 1 << 19]);
    let mut count = |is_done: bool| done += u32::from(is_done);
    for round in 0..400_u64 {
        count(mount.ping().is_ok());
        count(mount.attributes("f").is_ok());
        count(mount.read_link("l").is_ok());
        count(mount.extended_attribute("f", b"user.a").is_ok());
        count(mount.extended_attributes("f").is_ok());
        count(mount.rename("a", "p".repeat(1000)).is_ok());
        count(mount.space().is_ok());
        if let Ok(listing) = mount.read_directory(".") {
            count(listing.take(50).all(|entry| entry.is_ok()));
        }
        let Ok(file) = mount.open("f") else { continue };
        let into = &mut into[..1 << (round % 20)];
        count(file.read_at(into, round).is_ok_and(|moved| moved <= into.len()));
        count(file.write_at(into, round).is_ok_and(|moved| moved <= into.len()));
        count(file.append(into).is_ok_and(|(moved, _)| moved <= into.len()));
        count(file.copy_range(0, &file, 1 << 20, 100).is_ok_and(|copied| copied <= 100));
        count(file.close().is_ok());
    }
    assert!(done > 100, "{done} calls went well: noise that is always refused shows little");
}

#[test]
fn memory_in_use_is_waited_for_within_a_bound() {
    let sizes = Sizes { slots: 4, data_bytes: 64 << 10 };
    let (mount, server) = connected(welcome(sizes), keeps);
    let file = mount.open("f").expect("opened");
    std::thread::scope(|scope| {
        // All that is not the slots'.
        let first = scope.spawn(|| file.write_at(&[1; 32 << 10], 0));
        server.wait_for_kept(1);
        let times: Vec<Duration> = (0..4)
            .map(|_| {
                let started = Instant::now();
                refused(file.write_at(&[2; 30_000], 0), Errno::NOMEM); // and no part of it was written ([CN3])
                started.elapsed()
            })
            .collect();
        assert!(times.iter().all(|waited| *waited >= options().memory_wait), "{times:?}");
        assert!(times.iter().any(|waited| *waited < Duration::from_secs(5)), "{times:?}");
        scope.spawn(|| assert_eq!(mount.ping(), Ok(()))); // needs none
        server.wait_for_kept(2);
        // Memory that comes back goes to who waits for it.
        let second = scope.spawn(|| file.write_at(&[3; 30_000], 0));
        std::thread::sleep(Duration::from_millis(50));
        server.kept.lock().expect("locked").drain(..).for_each(|ticket| ticket.answer(&Answer { value: 0, ..Answer::default() }));
        assert_eq!(first.join().expect("it ends"), Ok(0));
        server.wait_for_kept(1);
        server.kept.lock().expect("locked").drain(..).for_each(|ticket| ticket.answer(&Answer { value: 7, ..Answer::default() }));
        assert_eq!(second.join().expect("it ends"), Ok(7), "a short write is a short write");
    });
}

#[test]
fn files_of_a_closed_connection_stay_quiet() {
    let (mount, mut server) = by(Files::default());
    let file = OpenOptions::new().write(true).create(true).open(&mount, "f").expect("made");
    drop(mount);
    assert_eq!(file.write_at(b"x", 0), Ok(1), "a file keeps its connection");
    server.stop();
    drop(file);
}

//! Clients in processes of their own: the test program runs itself again, with a socket as its standard input.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use tandemfs_ring::{Arena, Client, ClientId, Control, Doorbell, End, Handler, Lifeline, Poller, Request, Sizes, Ticket};

/// The variable that tells a child what to do; the number of its calls follows in the next one.
pub const ROLE: &str = "TANDEMFS_RING_ROLE";
pub const CALLS: &str = "TANDEMFS_RING_CALLS";

/// A child that runs the ignored test `child` of this program.
pub struct Process {
    pub child: Child,
    pub socket: UnixStream,
}

impl Process {
    pub fn start(role: &str, calls: u64) -> Self {
        let (socket, theirs) = UnixStream::pair().expect("a pair of sockets");
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(CALLS, calls.to_string())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        Self { child, socket }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it lives");
    }

    /// Stops it, and returns when it has stopped: until then it may still do what it was about to do.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let (_, status) = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED).expect("it is a child").expect("waited for");
        assert!(status.stopped(), "{status:?}");
    }

    /// Waits for the end; panics with the output of one that failed.
    pub fn succeed(self) -> String {
        let output = self.child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}: {text}", output.status);
        text
    }

    pub fn pidfd(&self) -> OwnedFd {
        pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).expect("it lives")
    }
}

/// Sends the descriptors of an arena.
pub fn send(socket: &UnixStream, arena: &Arena) {
    let descriptors = arena.descriptors();
    let all: Vec<BorrowedFd<'_>> = [descriptors.arena, descriptors.words].into_iter().chain(descriptors.bell).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&all)));
    rustix::net::sendmsg(socket, &[IoSlice::new(&[all.len() as u8])], &mut control, SendFlags::empty()).expect("sent");
}

/// Receives and maps an arena; the socket is the lifeline.
pub fn receive(socket: OwnedFd) -> Client {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut count = [0];
    rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut count)], &mut control, RecvFlags::CMSG_CLOEXEC).expect("received");
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let mut descriptors = rights.flatten();
    let (arena, words) = (descriptors.next().expect("an arena"), descriptors.next().expect("words"));
    Client::map(arena.as_fd(), words.as_fd(), descriptors.next(), Some(socket)).expect("maps")
}

/// A poller in a thread.
pub struct Server {
    pub control: Control,
    pub ended: mpsc::Receiver<(ClientId, End)>,
    doorbell: Doorbell,
    thread: JoinHandle<()>,
}

/// Wraps a handler and tells when clients end.
struct Telling<H>(H, mpsc::Sender<(ClientId, End)>);

impl<H: Handler> Handler for Telling<H> {
    fn request(&mut self, client: ClientId, request: &Request, ticket: Ticket) {
        self.0.request(client, request, ticket);
    }

    fn ended(&mut self, client: ClientId, end: End) {
        self.0.ended(client, end);
        let _nobody_asks_at_the_end = self.1.send((client, end));
    }
}

impl Server {
    pub fn start(doorbell: Option<Doorbell>, handler: impl Handler + Send + 'static) -> Self {
        let poller = Poller::new(Duration::from_micros(50)).expect("a poller");
        let (control, doorbell) = (poller.control(), doorbell.unwrap_or(poller.doorbell()));
        let (tell, ended) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            poller.run(&mut Telling(handler, tell)).expect("it serves");
        });
        Self { control, ended, doorbell, thread }
    }

    /// Connects a process, or this one by a socket of its own.
    pub fn connect(&self, socket: &UnixStream, sizes: Sizes, pidfd: Option<OwnedFd>) -> ClientId {
        let arena = Arena::new(sizes, self.doorbell).expect("an arena");
        send(socket, &arena);
        let socket = Lifeline::Socket(socket.try_clone().expect("a descriptor").into());
        self.control.add(arena, [socket].into_iter().chain(pidfd.map(Lifeline::Process)).collect())
    }

    pub fn stop(self) {
        self.control.stop();
        self.thread.join().expect("it ends");
    }

    /// Waits for the end of a client.
    pub fn end_of(&self, client: ClientId) -> End {
        let (id, end) = self.ended.recv_timeout(Duration::from_secs(30)).expect("it ends");
        assert_eq!(id, client);
        end
    }
}

/// What a child is told.
pub fn told() -> (String, u64) {
    let role = std::env::var(ROLE).expect("a role");
    (role, std::env::var(CALLS).expect("calls").parse().expect("a number"))
}

/// The socket of a child.
pub fn inherited_socket() -> OwnedFd {
    std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor")
}

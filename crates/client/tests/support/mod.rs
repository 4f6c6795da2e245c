//! A server in this process: the ring's own server side with answers that a test gives. It stands for a daemon where a test needs one that
//! is slow, dies, is of another version or lies; what operations do is tested with a mount.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod files;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, sendmsg, socketpair,
};
use tandemfs_client::{ConnectError, Errno, Error, Mount, Options};
use tandemfs_protocol::{GREETING_BYTES, Hello, Number, Operation, Outcome, Reception, TRANSFER_BYTES_MAX, Text, Welcome};
use tandemfs_ring::{
    Answer, Arena, ClientId, Control, End, Handler, Lifeline, Poller, Range, Request, Seen, Sizes, Ticket, VERSION_WORDS, VersionWords,
};

pub const SIZES: Sizes = Sizes { slots: 4, data_bytes: 256 << 10 };

/// What a test does with a request.
pub enum Reply {
    Now(Answer),
    /// With what it depends on.
    NowFor(Answer, Seen),
    /// Later, or never: see [`Server::kept`].
    Keep,
}

pub fn done(value: u64) -> Reply {
    Reply::Now(Answer { value, ..Answer::default() })
}

pub fn fails(number: Errno) -> Reply {
    Reply::Now(Outcome::Errno(number.raw_os_error()).encode())
}

/// Answers of a server.
pub trait Answers: Send + 'static {
    fn answer(&mut self, operation: &Operation<'_>, ticket: &Ticket) -> Reply;
}

impl<F: FnMut(&Operation<'_>, &Ticket) -> Reply + Send + 'static> Answers for F {
    fn answer(&mut self, operation: &Operation<'_>, ticket: &Ticket) -> Reply {
        self(operation, ticket)
    }
}

/// A text of a request.
pub fn text(text: Text<'_>, ticket: &Ticket) -> Vec<u8> {
    match text {
        Text::Here(bytes) => bytes.to_vec(),
        Text::There(range) => bytes(range, ticket),
    }
}

pub fn bytes(range: Range, ticket: &Ticket) -> Vec<u8> {
    let data = ticket.data(range).expect("the ring has checked it");
    let mut bytes = vec![0; data.length()];
    data.read(0, &mut bytes);
    bytes
}

/// Copies as much as fits into a request's range.
pub fn put(range: Range, bytes: &[u8], ticket: &Ticket) -> u64 {
    let data = ticket.data(range).expect("the ring has checked it");
    let length = bytes.len().min(data.length());
    if length > 0 {
        data.write(0, &bytes[..length]);
    }
    length as u64
}

struct Table<A> {
    answers: A,
    kept: Arc<Mutex<Vec<Ticket>>>,
}

impl<A: Answers> Handler for Table<A> {
    fn request(&mut self, _: ClientId, request: &Request, ticket: Ticket) {
        let operation = Operation::decode(request).expect("a client of this version says nothing else");
        match self.answers.answer(&operation, &ticket) {
            Reply::Now(answer) => ticket.answer(&answer),
            Reply::NowFor(answer, seen) => ticket.answer_for(&answer, Some(&seen)),
            Reply::Keep => self.kept.lock().expect("locked").push(ticket),
        }
    }

    fn ended(&mut self, _: ClientId, end: End) {
        assert!(!matches!(end, End::Lied(_)), "{end:?}");
    }
}

/// A server of one client.
pub struct Server {
    control: Control,
    thread: Option<JoinHandle<()>>,
    /// Requests that were not answered.
    pub kept: Arc<Mutex<Vec<Ticket>>>,
}

impl Server {
    /// Ends the connection, as a daemon that ends in order.
    pub fn stop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server failed");
        }
    }

    /// Waits until so many requests are kept.
    pub fn wait_for_kept(&self, count: usize) {
        while self.kept.lock().expect("locked").len() < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Two ends of a connection.
pub fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a pair of sockets")
}

pub fn hello(socket: &OwnedFd) -> Hello {
    let mut bytes = [0; GREETING_BYTES];
    let (length, _) = retry_on_intr(|| recv(socket, &mut bytes[..], RecvFlags::empty())).expect("received");
    Hello::decode(&bytes[..length]).expect("a hello")
}

pub fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).expect("sent");
}

pub fn welcome(sizes: Sizes) -> Welcome {
    let Sizes { slots, data_bytes } = sizes;
    Welcome {
        slots,
        data_bytes,
        operations: Number::all_bits(),
        transfer_bytes_max: TRANSFER_BYTES_MAX,
        version_words: 0,
        zone: None,
        stores: None,
    }
}

pub fn descriptors(arena: &Arena) -> Vec<BorrowedFd<'_>> {
    let all = arena.descriptors();
    [all.arena, all.words].into_iter().chain(all.bell).collect()
}

/// Serves a client at the other end of a socket.
pub fn serve(socket: OwnedFd, welcome: Welcome, answers: impl Answers) -> Server {
    serve_publishing(socket, welcome, None, answers)
}

/// Serves a client, which also gets version words.
pub fn serve_publishing(socket: OwnedFd, welcome: Welcome, versions: Option<Arc<VersionWords>>, answers: impl Answers) -> Server {
    let poller = Poller::new(Duration::from_micros(50)).expect("a poller");
    let (control, doorbell, kept) = (poller.control(), poller.doorbell(), Arc::<Mutex<Vec<Ticket>>>::default());
    let mut table = Table { answers, kept: Arc::clone(&kept) };
    let adds = control.clone();
    let thread = std::thread::spawn(move || {
        hello(&socket);
        let arena = Arena::new(Sizes { slots: welcome.slots, data_bytes: welcome.data_bytes }, doorbell).expect("an arena");
        let welcome = Welcome { version_words: if versions.is_some() { VERSION_WORDS } else { 0 }, ..welcome };
        let sent: Vec<_> = descriptors(&arena).into_iter().chain(versions.as_ref().map(|versions| versions.file())).collect();
        send(&socket, &Reception::Welcome(welcome).encode(), &sent);
        adds.add(arena, vec![Lifeline::Socket(socket)]);
        poller.run(&mut table).expect("it serves");
    });
    Server { control, thread: Some(thread), kept }
}

pub fn options() -> Options {
    Options { memory_wait: Duration::from_secs(1), umask: Some(0o022), ..Options::default() }
}

/// A client over its end of a connection.
pub fn over(socket: OwnedFd) -> Result<Mount, ConnectError> {
    Mount::over(socket, std::fs::File::open("/").expect("a directory"), &options())
}

/// A client and its server.
pub fn connected(welcome: Welcome, answers: impl Answers) -> (Mount, Server) {
    let (ours, theirs) = pair();
    let server = serve(theirs, welcome, answers);
    (over(ours).expect("connects"), server)
}

pub fn by(answers: impl Answers) -> (Mount, Server) {
    connected(welcome(SIZES), answers)
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T, Error>, expected: Errno) {
    assert_eq!(result.as_ref().err().and_then(Error::errno), Some(expected), "{result:?}");
}

pub fn memory_file() -> OwnedFd {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(1 << 20).expect("set");
    file.as_fd().try_clone_to_owned().expect("a descriptor")
}

//! `-o metrics=PLACE`: the text of `tandemfs stats --openmetrics` over HTTP/1.1, for Prometheus.
//!
//! [MTS1] Who reads never delays who serves the mount: a thread of its own asks the daemon's control socket, as `tandemfs stats` does, and has the
//!        whole text before it sends any of it.
//! [MTS2] At most [`CONNECTIONS_MAX`] connections are answered at once, each ends after [`CONNECTION_MAX`] whatever its other side or the
//!        daemon does, and a request has at most [`REQUEST_BYTES_MAX`]. Further connections get status 503, and so does who asks while the
//!        daemon is busy.
//! [MTS3] The place is taken before the file system is mounted, so that one that is in use is an error of the mount command.

use std::fmt;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use tandemfs_fuse::mounts::Mounted;

use crate::openmetrics;

const CONNECTIONS_MAX: usize = 4;
const CONNECTION_MAX: Duration = Duration::from_secs(5);
/// What is left of that when the daemon is waited for no longer, and how long who was answered is listened to.
const SENDING_MAX: Duration = Duration::from_secs(1);
const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// How long the listening thread rests where it cannot accept, for want of descriptors for instance.
const REST: Duration = Duration::from_millis(100);

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A UNIX socket.
    Unix(PathBuf),
    /// TCP.
    Address(SocketAddr),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if Path::new(path).is_absolute() => Ok(Self::Unix(path.into())),
            None if let Ok(address) = text.parse() => Ok(Self::Address(address)),
            _ => Err(format!(
                "'{text}' is neither unix:PATH with an absolute path nor an address with a port, as 127.0.0.1:9469 or [::1]:9469"
            )),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Self::Address(address) => address.fmt(formatter),
        }
    }
}

/// A connection.
trait Stream: Read + Write + Send {
    /// Bounds each call from here on.
    fn bound(&self, time: Duration) -> io::Result<()>;
    /// No call waits from here on.
    fn never_wait(&self) -> io::Result<()>;
    /// The other side sees the end of the answer.
    fn end(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn bound(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }

    fn never_wait(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for UnixStream {
    fn bound(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }

    fn never_wait(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn end(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

enum Listener {
    Unix { listener: UnixListener, _socket: Socket },
    Address(TcpListener),
}

/// The name of a UNIX socket, which goes with it.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

impl Listener {
    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix { listener, .. } => Box::new(listener.accept()?.0),
            Self::Address(listener) => Box::new(listener.accept()?.0),
        })
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix { listener, .. } => listener.as_fd(),
            Self::Address(listener) => listener.as_fd(),
        }
    }
}

/// A place that is taken; nobody answers yet.
pub struct Taken(Listener);

impl Place {
    /// Takes it ([MTS3]). The error is a sentence.
    pub fn take(&self) -> Result<Taken, String> {
        let taken = match self {
            Self::Unix(path) => unix(path),
            Self::Address(address) => TcpListener::bind(address).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(Listener::Address(listener))
            }),
        };
        taken.map(Taken).map_err(|error| format!("metrics={self}: {error}; name a place that is free"))
    }
}

/// Who may read is who may use the directory, and in it this user and group.
fn unix(path: &Path) -> io::Result<Listener> {
    let is_dead = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if is_dead {
        fs::remove_file(path)?; // of a daemon that was killed
    }
    let listener = UnixListener::bind(path)?;
    let _socket = Socket(path.to_owned());
    fs::set_permissions(path, Permissions::from_mode(0o660))?;
    listener.set_nonblocking(true)?;
    Ok(Listener::Unix { listener, _socket })
}

/// Makes the text within a time, or says why not.
type Source = dyn Fn(Duration) -> io::Result<String> + Send + Sync;

/// Answers until it is dropped.
pub struct Server {
    /// Dropping it ends the thread.
    stop: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Taken {
    /// Answers for a mount.
    pub fn answer(self, mount: Mounted) -> io::Result<Server> {
        self.answer_by(Arc::new(move |within| openmetrics::of_mount(&mount, within)))
    }

    fn answer_by(self, source: Arc<Source>) -> io::Result<Server> {
        let (stopped, stop) = io::pipe()?;
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(move || listen(&self.0, &stopped, &source))?;
        Ok(Server { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn listen(listener: &Listener, stopped: &io::PipeReader, source: &Arc<Source>) {
    let answering = Arc::<AtomicUsize>::default();
    loop {
        let descriptor = listener.as_fd();
        let mut waiting = [PollFd::new(&descriptor, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match rustix::event::poll(&mut waiting, None) {
            Ok(_) if !waiting[1].revents().is_empty() => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return tracing::warn!(%error, "metrics are not answered any more"),
        }
        match listener.accept() {
            Ok(stream) => take(stream, &answering, source),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection for metrics was not accepted");
                std::thread::sleep(REST);
            }
        }
    }
}

/// Gives a connection a thread, if there is room ([MTS2]). The thread is not waited for: it holds nothing of the mount and ends in time.
fn take(mut stream: Box<dyn Stream>, answering: &Arc<AtomicUsize>, source: &Arc<Source>) {
    let end = Instant::now() + CONNECTION_MAX;
    let place = Answering::enter(answering);
    let Some(place) = place else {
        // A buffer that nobody has filled yet takes it at once.
        let _refused =
            send(&mut *stream, Instant::now() + REST, &response("503 Service Unavailable", "text/plain", "too many at once\n", false));
        if stream.never_wait().is_ok() {
            leave(&mut *stream, end);
        }
        return;
    };
    let source = Arc::clone(source);
    let answer = move || {
        let _place = place;
        if let Err(error) = converse(&mut *stream, end, &*source) {
            tracing::debug!(%error, "a connection for metrics");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("metrics-answer".into()).spawn(answer) {
        tracing::debug!(%error, "no thread to answer metrics");
    }
}

/// One of the connections that are answered at present.
struct Answering(Arc<AtomicUsize>);

impl Answering {
    fn enter(count: &Arc<AtomicUsize>) -> Option<Self> {
        let entered = count.fetch_update(SeqCst, SeqCst, |now| (now < CONNECTIONS_MAX).then_some(now + 1));
        entered.ok().map(|_| Self(Arc::clone(count)))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn bound(stream: &dyn Stream, end: Instant) -> io::Result<()> {
    match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => stream.bound(left),
    }
}

/// One request, one answer.
fn converse(stream: &mut dyn Stream, end: Instant, source: &Source) -> io::Result<()> {
    let mut request = Vec::new();
    let answer = loop {
        let mut piece = [0; 1024];
        bound(stream, end)?;
        let count = match stream.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        request.extend_from_slice(&piece[..count]);
        if let Some(answer) = answer(&request, end, source) {
            break answer;
        }
        if request.len() >= REQUEST_BYTES_MAX {
            break response("431 Request Header Fields Too Large", "text/plain", "too long\n", false);
        }
    };
    send(stream, end, &answer)?;
    let end = end.min(Instant::now() + SENDING_MAX);
    leave(stream, end);
    Ok(())
}

/// Ends the answer and takes what is still sent: a socket that is closed with something unread takes the answer from who has not read it
/// yet.
fn leave(stream: &mut dyn Stream, end: Instant) {
    let mut piece = [0; 4096];
    let mut is_there = stream.end().is_ok();
    while is_there && bound(stream, end).is_ok() {
        is_there = match stream.read(&mut piece) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        };
    }
}

fn send(stream: &mut dyn Stream, end: Instant, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        bound(stream, end)?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The answer to a request; none if it is not all there.
fn answer(request: &[u8], end: Instant, source: &Source) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let plain = |status: &str, says: &str| response(status, "text/plain", says, parsed_head(request));
    match parsed.parse(request) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(plain("431 Request Header Fields Too Large", "too many\n")),
        Err(_) => return Some(plain("400 Bad Request", "this is not HTTP/1.1\n")),
    }
    let path = parsed.path.unwrap_or_default().split('?').next().unwrap_or_default();
    Some(match (parsed.method.unwrap_or_default(), path) {
        ("GET" | "HEAD", "/metrics") => match source((end - SENDING_MAX).saturating_duration_since(Instant::now())) {
            Ok(text) => response("200 OK", openmetrics::CONTENT_TYPE, &text, parsed_head(request)),
            Err(error) => plain("503 Service Unavailable", &format!("the daemon does not answer: {error}\n")),
        },
        ("GET" | "HEAD", _) => plain("404 Not Found", "metrics are at /metrics\n"),
        _ => plain("405 Method Not Allowed", "GET or HEAD\n"),
    })
}

/// Whether it is a HEAD, whose answer has no body.
fn parsed_head(request: &[u8]) -> bool {
    request.starts_with(b"HEAD ")
}

fn response(status: &str, kind: &str, body: &str, is_head: bool) -> Vec<u8> {
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n", body.len());
    let body = if is_head { "" } else { body };
    [head.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(place: &Path, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(place).expect("connects");
        stream.write_all(request).expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        text
    }

    fn server(directory: &Path, source: impl Fn(Duration) -> io::Result<String> + Send + Sync + 'static) -> (Server, PathBuf) {
        let path = directory.join("metrics.socket");
        let taken = Place::Unix(path.clone()).take().expect("free");
        (taken.answer_by(Arc::new(source)).expect("started"), path)
    }

    #[test]
    fn places_are_read_and_shown() {
        for text in ["unix:/run/m.socket", "127.0.0.1:9469", "[::1]:9469"] {
            assert_eq!(text.parse::<Place>().expect(text).to_string(), text);
        }
        for text in ["", "unix:", "unix:relative", "localhost:9469", "127.0.0.1", ":9469", "127.0.0.1:70000", "/run/m.socket"] {
            assert!(text.parse::<Place>().is_err_and(|error| error.contains("unix:PATH")), "{text}");
        }
    }

    #[test]
    fn requests_are_answered_by_their_kind() {
        let directory = tempfile::tempdir().expect("a directory");
        let (server, path) = server(directory.path(), |_| Ok("the text\n".into()));
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o660);
        let answer = ask(&path, b"GET /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nthe text\n"), "{answer}");
        assert!(
            answer.contains("Content-Type: application/openmetrics-text; version=1.0.0") && answer.contains("Content-Length: 9\r\n"),
            "{answer}"
        );
        let head = ask(&path, b"HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 9\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        let long = [b"GET /metrics HTTP/1.1\r\nA: ".as_slice(), &vec![b'x'; REQUEST_BYTES_MAX - 26]].concat();
        for (request, status) in [
            (b"GET / HTTP/1.1\r\n\r\n".as_slice(), "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"\x16\x03\x01 hello\r\n\r\n", "400"),
            (&long, "431"),
            (&[b"GET /metrics HTTP/1.1\r\n".as_slice(), &b"A: b\r\n".repeat(65), b"\r\n"].concat(), "431"),
        ] {
            let answer = ask(&path, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
        drop(server);
        assert!(!path.exists(), "the socket goes with its server");
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_no_answer() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_server, path) = server(directory.path(), |within| {
            std::thread::sleep(within);
            Err(io::Error::other("busy"))
        });
        let start = Instant::now();
        let answer = ask(&path, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("the daemon does not answer: busy\n"), "{answer}");
        assert!(start.elapsed() > CONNECTION_MAX / 2 && start.elapsed() < CONNECTION_MAX * 2, "{:?}", start.elapsed());
    }

    /// Who sends more than is read gets its answer all the same, not a reset.
    #[test]
    fn who_sends_too_much_is_told_so() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_server, path) = server(directory.path(), |_| Ok("the text\n".into()));
        let long = [b"GET /metrics HTTP/1.1\r\nA: ".as_slice(), &vec![b'x'; 8 * REQUEST_BYTES_MAX]].concat();
        assert!(ask(&path, &long).starts_with("HTTP/1.1 431 "));
        let body = [b"POST /metrics HTTP/1.1\r\n\r\n".as_slice(), &vec![b'x'; 8 * REQUEST_BYTES_MAX]].concat();
        assert!(ask(&path, &body).starts_with("HTTP/1.1 405 "));
    }

    /// [MTS2]: those who say nothing take all places, and have them for a bounded time.
    #[test]
    fn who_says_nothing_holds_a_place_for_a_bounded_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_server, path) = server(directory.path(), |_| Ok("the text\n".into()));
        let start = Instant::now();
        let mut silent: Vec<UnixStream> = (0..CONNECTIONS_MAX).map(|_| UnixStream::connect(&path).expect("connects")).collect();
        silent[0].write_all(b"GET /met").expect("sent");
        // The listener takes them one after another.
        let refused = loop {
            let mut text = String::new();
            let mut stream = UnixStream::connect(&path).expect("connects");
            if stream.read_to_string(&mut text).is_ok() && text.starts_with("HTTP/1.1 503 ") {
                break true;
            }
            if start.elapsed() > CONNECTION_MAX {
                break false;
            }
        };
        assert!(refused, "more were let in");
        for stream in &mut silent {
            assert_eq!(stream.read_to_end(&mut Vec::new()).expect("closed"), 0);
        }
        assert!(start.elapsed() >= CONNECTION_MAX && start.elapsed() < CONNECTION_MAX * 4, "{:?}", start.elapsed());
        assert!(ask(&path, b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    }

    /// [MTS1], [MTS2]: who does not read what it asked for is cut off, and others are answered meanwhile.
    #[test]
    fn who_does_not_read_is_cut_off() {
        let directory = tempfile::tempdir().expect("a directory");
        let (server, path) = server(directory.path(), |_| Ok("x".repeat(64 << 20)));
        let mut lazy = UnixStream::connect(&path).expect("connects");
        lazy.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("sent");
        assert!(ask(&path, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        std::thread::sleep(CONNECTION_MAX + Duration::from_secs(1));
        let mut text = Vec::new();
        let _reset = lazy.read_to_end(&mut text);
        assert!(text.len() < 64 << 20, "all was sent to somebody who did not read");
        let start = Instant::now();
        drop(server);
        assert!(start.elapsed() < CONNECTION_MAX, "the end waits for nobody");
    }

    #[test]
    fn a_place_in_use_is_refused_and_a_dead_one_taken() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let place = Place::Unix(path.clone());
        let first = place.take().expect("free");
        assert!(place.take().is_err_and(|error| error.contains("metrics=unix:") && error.contains("in use")));
        drop(first);
        drop(UnixListener::bind(&path).expect("bound")); // as a killed daemon leaves it
        drop(place.take().expect("taken over"));
        fs::write(&path, "a file").expect("written");
        assert!(place.take().is_err(), "a file is not removed");
        assert_eq!(fs::read(&path).expect("there"), b"a file");
        let address = TcpListener::bind("127.0.0.1:0").expect("bound");
        let place = Place::Address(address.local_addr().expect("an address"));
        assert!(place.take().is_err_and(|error| error.contains("in use")));
    }
}

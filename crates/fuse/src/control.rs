//! The control socket, by which other programs talk to the daemon of a mount: a UNIX socket in a directory that only its owner may enter.
//! Request and answer are one line of JSON each. A scrub, a trim or a compaction runs in a thread of its own and answers with
//! progress lines and a result line; what can take long without progress (quota, settings, growth) has a thread too. The socket's name has the mount's device number, so it is found without touching a mount that may hang. It also has the daemon's process id:
//! the kernel may reuse a device number while the previous mount's daemon is still ending.
//!
//! [CTL1] Only sockets in a directory that belongs to who mounted, and that nobody else may enter, are believed: anybody may make a directory in /tmp.
//! [CTL2] A caller has one time for all of its request, and is left when the mount ends, since one thread hears all callers.
//! [CTL3] Where no descriptor is left for a caller, the thread rests before it tries again: the caller stays in the queue, and the socket readable.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::mounts::Mounted;
use crate::mutant::{self, Mutant};

/// How long each side waits for the other's line.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long the thread rests where a caller cannot be accepted ([CTL3]).
const REST: Duration = Duration::from_millis(100);
/// How long sending a progress line may take.
const PROGRESS_WITHIN: Duration = Duration::from_secs(1);
const REQUEST_BYTES_MAX: u64 = 4096;
/// How the answer begins to a line that is no request. Callers of later builds know by it that the daemon is older.
const NOT_A_REQUEST: &str = "not a request";
/// How long a piece of a trace may take to be sent: whoever writes it to a disk waits for that at times.
const TRACED_WITHIN: Duration = Duration::from_secs(5);
/// More than a daemon sends of a trace at once.
const TRACED_BYTES_MAX: u64 = 16 << 20;

/// A request to a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The counters of `tandemfs stats`; `reset` sets them to zero afterwards.
    Stats {
        /// Set to zero after reading.
        #[serde(default)]
        reset: bool,
    },
    /// The mount's settings, and the daemon's process id.
    Info,
    /// Sets the label.
    Label {
        /// The new label.
        text: String,
    },
    /// Reads and verifies everything, as long as the caller stays connected.
    Scrub {
        /// Most bytes read per second.
        #[serde(default)]
        limit: Option<u64>,
    },
    /// Discards what is free, as long as the caller stays connected.
    Trim {
        /// Shortest contiguous free space that is discarded, in bytes.
        #[serde(default)]
        minimum: u64,
    },
    /// Lets files have homes in the memory zone: builds that do not know them refuse the device from then on.
    EnableHomes,
    /// Empties sparse units of metadata, as long as the caller stays connected.
    Compact,
    /// Records operations, until the caller sends no more ([`trace`]).
    Trace,
    /// Changes settings of the mount, all of these or none; without any says those that can be changed.
    Set {
        /// Names and values as `-o` has them: `threshold=128K`.
        #[serde(default)]
        settings: Vec<String>,
    },
    /// Grows the zones to these sizes in bytes; without sizes to those of the device.
    Resize {
        /// Of the memory zone.
        #[serde(default)]
        memory: Option<u64>,
        /// Of the block zone.
        #[serde(default)]
        block: Option<u64>,
    },
    /// What everybody uses, and the limits of quota.
    QuotaReport,
    /// The limits of one id.
    QuotaGet {
        /// `user`, `group` or `project`.
        kind: String,
        /// The id.
        id: u32,
    },
    /// Sets those limits of an id that are given; 0 is none.
    QuotaSet {
        /// `user`, `group` or `project`.
        kind: String,
        /// The id.
        id: u32,
        /// Soft and hard limit of bytes in the memory zone, of bytes in the block zone, and of inodes.
        limits: [[Option<u64>; 2]; 3],
    },
    /// Sets the grace period of a kind.
    QuotaGrace {
        /// `user`, `group` or `project`.
        kind: String,
        /// In seconds.
        seconds: u32,
    },
    /// Makes an inode, and everything below a directory, part of a project; 0 is none.
    QuotaProject {
        /// The inode's number.
        inode: u64,
        /// The project.
        project: u32,
    },
}

/// The caller of a long job: takes progress lines, and tells whether the job should end.
pub(crate) struct Listener<'s> {
    stream: &'s UnixStream,
    stopped: &'s AtomicBool,
}

impl Listener<'_> {
    /// False if the caller has disconnected or the mount ends.
    pub(crate) fn is_there(&self) -> bool {
        let mut waiting = [PollFd::new(self.stream, PollFlags::IN)];
        // A caller sends nothing after its request, so a readable socket means that the caller has disconnected.
        let gone = rustix::event::poll(&mut waiting, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
        !gone && !self.stopped.load(Relaxed)
    }

    /// The same after so long, or as soon as the caller has disconnected.
    pub(crate) fn stays_for(&self, time: Duration) -> bool {
        let mut waiting = [PollFd::new(self.stream, PollFlags::IN)];
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let gone = rustix::event::poll(&mut waiting, Some(&time)).is_ok_and(|ready| ready > 0);
        !gone && !self.stopped.load(Relaxed)
    }

    /// The caller's process.
    pub(crate) fn process(&self) -> Option<u32> {
        let peer = rustix::net::sockopt::socket_peercred(self.stream).ok()?;
        Some(peer.pid.as_raw_nonzero().get().cast_unsigned())
    }

    /// Sends bytes behind a line that says how many.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stream = self.stream;
        stream.write_all(bytes)
    }

    /// Whether the mount ends.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Sends a line of progress.
    pub(crate) fn say(&self, line: &Value) -> io::Result<()> {
        let mut stream = self.stream;
        stream.write_all(format!("{line}\n").as_bytes())
    }
}

/// Answers requests of the control socket.
pub(crate) trait Answer: Send + Sync + 'static {
    /// Answers with one line.
    fn answer(&self, request: Request) -> Value;

    /// Runs a long job; returns its last line.
    fn work(&self, request: Request, listener: &Listener<'_>) -> Value;
}

impl Request {
    fn is_long(&self) -> bool {
        let takes_time =
            matches!(self, Self::Scrub { .. } | Self::Trim { .. } | Self::Compact | Self::Trace | Self::Set { .. } | Self::Resize { .. });
        takes_time || self.is_of_quota()
    }

    /// They count what all inodes use, or walk a tree.
    pub(crate) fn is_of_quota(&self) -> bool {
        use Request::{QuotaGet, QuotaGrace, QuotaProject, QuotaReport, QuotaSet};
        matches!(self, QuotaReport | QuotaGet { .. } | QuotaSet { .. } | QuotaGrace { .. } | QuotaProject { .. })
    }
}

/// Asks the daemon of a mount.
pub fn ask(mount: &Mounted, request: Request) -> io::Result<Value> {
    let stream = send(mount, request)?;
    read_answer(&mut BufReader::new(stream))
}

/// Asks the daemon of a mount, and waits no longer than this for the whole answer.
///
/// # Errors
/// `TimedOut`; else as [`ask`].
pub fn ask_within(mount: &Mounted, request: Request, within: Duration) -> io::Result<Value> {
    let end = Instant::now() + within;
    let stream = connect(mount)?;
    let late = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "it is busy"),
        _ => error,
    };
    stream.set_write_timeout(Some(within.max(Duration::from_millis(1))))?;
    write_request(&stream, &request).and_then(|()| read_answer(&mut BufReader::new(Until { stream, end }))).map_err(late)
}

/// A connection that is read until then.
struct Until {
    stream: UnixStream,
    end: Instant,
}

impl io::Read for Until {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return Err(io::ErrorKind::WouldBlock.into()),
            left => self.stream.set_read_timeout(Some(left))?,
        }
        self.stream.read(buffer)
    }
}

/// The same, and no longer than the mount stands.
struct UntilStopped<'s> {
    stream: Until,
    stopped: Option<&'s PipeReader>,
}

impl io::Read for UntilStopped<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(stopped) = self.stopped {
            let left = self.stream.end.saturating_duration_since(Instant::now());
            let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut waiting = [PollFd::new(&self.stream.stream, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut waiting, Some(&time)))?;
            if !waiting[1].revents().is_empty() && !mutant::on(Mutant::CallersHoldTheEnd) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        self.stream.read(buffer)
    }
}

/// Asks for a scrub, hands each line of progress to `progress` and returns the result.
pub fn scrub(mount: &Mounted, limit: Option<u64>, progress: &mut dyn FnMut(&Value)) -> io::Result<Value> {
    long_job(mount, Request::Scrub { limit }, progress)
}

/// Asks for a trim, hands each line of progress to `progress` and returns the result.
pub fn trim(mount: &Mounted, minimum: u64, progress: &mut dyn FnMut(&Value)) -> io::Result<Value> {
    long_job(mount, Request::Trim { minimum }, progress)
}

/// Asks for a compaction, hands each line of progress to `progress` and returns the result.
pub fn compact(mount: &Mounted, progress: &mut dyn FnMut(&Value)) -> io::Result<Value> {
    long_job(mount, Request::Compact, progress)
}

/// Asks for one of the requests of quota, and waits as long as it takes.
pub fn quota(mount: &Mounted, request: Request) -> io::Result<Value> {
    long_job(mount, request, &mut |_| {})
}

/// Changes settings of the mount, and waits as long as it takes: a lower limit of memory is kept then ([`Request::Set`]).
pub fn set(mount: &Mounted, settings: Vec<String>) -> io::Result<Value> {
    long_job(mount, Request::Set { settings }, &mut |_| {})
}

/// Grows the zones of the file system, and waits as long as it takes ([`Request::Resize`]).
pub fn resize(mount: &Mounted, memory: Option<u64>, block: Option<u64>) -> io::Result<Value> {
    long_job(mount, Request::Resize { memory, block }, &mut |_| {})
}

/// Whether an error is that of a daemon which does not know the request: it is of an older build than the caller.
pub fn is_unknown_request(error: &io::Error) -> bool {
    let said = error.to_string();
    said.starts_with(NOT_A_REQUEST) && (said.contains("unknown variant") || said.contains("unknown field"))
}

/// Asks for a trace, and returns when operations are recorded.
pub fn trace(mount: &Mounted) -> io::Result<Tracing> {
    let stream = send(mount, Request::Trace)?;
    let stop = stream.try_clone()?;
    let mut lines = BufReader::new(stream);
    read_answer(&mut lines)?;
    stop.set_read_timeout(None)?; // Nobody may use the mount for long.
    Ok(Tracing { stop, lines })
}

/// A trace that is being recorded.
pub struct Tracing {
    stop: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Tracing {
    /// What ends the recording, for another thread.
    pub fn stopper(&self) -> io::Result<impl Fn() -> io::Result<()> + Send + use<>> {
        let stop = self.stop.try_clone()?;
        Ok(move || stop.shutdown(std::net::Shutdown::Write))
    }

    /// Waits for records, as a frame of a trace has them; none at the end, with the number of those that were dropped.
    pub fn next_records(&mut self) -> io::Result<Result<Vec<u8>, u64>> {
        let answer = read_answer(&mut self.lines)?;
        let Some(bytes) = answer["progress"]["bytes"].as_u64() else { return Ok(Err(answer["dropped"].as_u64().unwrap_or_default())) };
        let mut records = vec![0; bytes.min(TRACED_BYTES_MAX) as usize];
        io::Read::read_exact(&mut self.lines, &mut records)?;
        Ok(Ok(records))
    }
}

fn long_job(mount: &Mounted, request: Request, progress: &mut dyn FnMut(&Value)) -> io::Result<Value> {
    let stream = send(mount, request)?;
    stream.set_read_timeout(None)?; // It takes as long as the device needs.
    let mut lines = BufReader::new(stream);
    loop {
        let answer = read_answer(&mut lines)?;
        match answer.get("progress") {
            Some(value) => progress(value),
            None => return Ok(answer),
        }
    }
}

/// The daemon of a mount, whether it answers or not; `None` if it is gone. A process with its number can be another one by now.
pub fn process_id(mount: &Mounted) -> Option<i32> {
    let directories = private_directories(mount.user);
    let newest = newest(&directories, &mount.device_number).next()?;
    let name = newest.file_name()?.to_str()?;
    name.strip_suffix(".socket")?.rsplit_once('.')?.1.parse().ok()
}

fn send(mount: &Mounted, request: Request) -> io::Result<UnixStream> {
    let stream = connect(mount)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    write_request(&stream, &request)?;
    Ok(stream)
}

fn write_request(mut stream: &UnixStream, request: &Request) -> io::Result<()> {
    serde_json::to_writer(stream, request)?;
    stream.write_all(b"\n")
}

fn read_answer(lines: &mut impl BufRead) -> io::Result<Value> {
    let mut line = String::new();
    lines.read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line).map_err(|_| io::Error::other("the daemon closed the connection"))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(io::Error::other(error.to_owned())),
        None => Ok(answer),
    }
}

/// Connects to the newest socket of the mount's device number. If its daemon died, an older socket is that of another mount's daemon, which
/// is still ending.
fn connect(mount: &Mounted) -> io::Result<UnixStream> {
    connect_below(&private_directories(mount.user), &mount.device_number)
}

fn connect_below(directories: &[PathBuf], device_number: &str) -> io::Result<UnixStream> {
    let mut last_error = io::Error::from(io::ErrorKind::NotFound);
    for path in newest(directories, device_number) {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// The newest socket of a device number in each directory that has one.
fn newest(directories: &[PathBuf], device_number: &str) -> impl Iterator<Item = PathBuf> {
    directories.iter().filter_map(move |directory| sockets(directory, device_number).into_iter().next())
}

/// The sockets of a device number, newest first. The newest belongs to the mount that has the number now.
fn sockets(directory: &Path, device_number: &str) -> Vec<PathBuf> {
    let prefix = format!("{}.", device_number.replace(':', "-"));
    let ours = |path: &Path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix));
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<(SystemTime, PathBuf)> = entries
        .filter(|path| ours(path))
        .filter_map(|path| Some((fs::symlink_metadata(&path).and_then(|metadata| metadata.modified()).ok()?, path)))
        .collect();
    found.sort_unstable_by(|one, other| other.cmp(one));
    found.into_iter().map(|(_, path)| path).collect()
}

/// Those of a user's directories that are private ([CTL1]).
fn private_directories(user: u32) -> Vec<PathBuf> {
    let mut all = directories(user);
    all.retain(|directory| mutant::on(Mutant::AnySocketBelieved) || is_private(directory, user));
    all
}

/// Whether an entry is a directory that this user alone may enter.
fn is_private(directory: &Path, user: u32) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o077 == 0)
}

/// The directories in which a user's daemons may have sockets, in order of preference. A daemon uses the first that it can create.
fn directories(user: u32) -> Vec<PathBuf> {
    if user == 0 {
        return vec!["/run/tandemfs".into(), "/tmp/tandemfs-0".into()];
    }
    let own = (rustix::process::geteuid().as_raw() == user).then(|| std::env::var_os("XDG_RUNTIME_DIR")).flatten();
    let own = own.filter(|directory| Path::new(directory).is_absolute()).map(|directory| Path::new(&directory).join("tandemfs"));
    own.into_iter().chain([format!("/run/user/{user}/tandemfs").into(), format!("/tmp/tandemfs-{user}").into()]).collect()
}

fn socket_path(directory: &Path, device_number: &str, process_id: u32) -> PathBuf {
    directory.join(format!("{}.{process_id}.socket", device_number.replace(':', "-")))
}

/// Creates a directory that only this user may enter, or accepts an existing one if it is private. Anybody may write to /tmp, so an
/// existing entry is checked first.
fn private_directory(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !is_private(directory, rustix::process::geteuid().as_raw()) {
        return Err(io::Error::other(format!("{} is not a private directory of this user", directory.display())));
    }
    Ok(())
}

/// The daemon's end of the control socket. Dropping it removes the socket.
pub(crate) struct Server {
    path: PathBuf,
    /// Dropping it ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers in a separate thread until dropped.
    pub(crate) fn start(mount: &Mounted, answer: Arc<dyn Answer>) -> io::Result<Self> {
        let mut last_error = io::Error::from(io::ErrorKind::NotFound);
        for directory in directories(mount.user) {
            match private_directory(&directory).and_then(|()| listen(&directory, &mount.device_number)) {
                Ok((listener, path)) => return Self::answer(listener, path, answer),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    fn answer(listener: UnixListener, path: PathBuf, answer: Arc<dyn Answer>) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || serve(&listener, &stopped, &answer))?;
        Ok(Self { path, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn listen(directory: &Path, device_number: &str) -> io::Result<(UnixListener, PathBuf)> {
    // Remove sockets of killed daemons: connecting to them is refused.
    for path in sockets(directory, device_number) {
        if UnixStream::connect(&path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(path);
        }
    }
    let path = socket_path(directory, device_number, std::process::id());
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok((listener, path))
}

fn serve(listener: &UnixListener, stopped: &PipeReader, answer: &Arc<dyn Answer>) {
    let stop = Arc::new(AtomicBool::new(false));
    let mut jobs: Vec<JoinHandle<()>> = Vec::new();
    loop {
        let mut waiting = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match rustix::event::poll(&mut waiting, None) {
            Ok(_) if !waiting[1].revents().is_empty() => break,
            // A caller that disconnects is no error of the daemon.
            Ok(_) => {
                jobs.retain(|job| !job.is_finished());
                let accepted = accept_or_rest(stopped, || listener.accept().map(|(stream, _)| stream));
                jobs.extend(accepted.and_then(|stream| take(stream, stopped, answer, &stop).ok().flatten()));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "the control socket answers no more");
                break;
            }
        }
    }
    stop.store(true, Relaxed);
    for job in jobs {
        let _ = job.join();
    }
}

/// Accepts a caller. Where that fails it rests a moment, or until the mount ends ([CTL3]).
fn accept_or_rest(stopped: &PipeReader, accept: impl FnOnce() -> io::Result<UnixStream>) -> Option<UnixStream> {
    let error = match accept() {
        Ok(stream) => return Some(stream),
        Err(error) => error,
    };
    tracing::debug!(%error, "no caller of the control socket can be accepted");
    if !mutant::on(Mutant::AcceptsWithoutRest) {
        let time = Timespec { tv_sec: 0, tv_nsec: REST.as_nanos() as i64 };
        let _woken = rustix::event::poll(&mut [PollFd::new(stopped, PollFlags::IN)], Some(&time));
    }
    None
}

/// Answers a caller. A long job gets a thread, so that other callers are answered meanwhile.
fn take(stream: UnixStream, stopped: &PipeReader, answer: &Arc<dyn Answer>, stop: &Arc<AtomicBool>) -> io::Result<Option<JoinHandle<()>>> {
    let request = match read_request(&stream, Some(stopped), ANSWER_WITHIN)? {
        Ok(request) if request.is_long() => request,
        request => return reply(&stream, &request.map_or_else(|refused| refused, |request| answer.answer(request))).map(|()| None),
    };
    let (answer, stop) = (Arc::clone(answer), Arc::clone(stop));
    // A caller that does not read must not delay an unmount for long.
    let within = if request == Request::Trace { TRACED_WITHIN } else { PROGRESS_WITHIN };
    stream.set_write_timeout(Some(within))?;
    let work = move || {
        let last = answer.work(request, &Listener { stream: &stream, stopped: &stop });
        let _gone = reply(&stream, &last);
    };
    std::thread::Builder::new().name("long-job".into()).spawn(work).map(Some)
}

/// Reads one line from a caller and answers it with one line.
pub fn converse(stream: UnixStream, answer: &dyn Fn(Request) -> Value) -> io::Result<()> {
    let request = read_request(&stream, None, ANSWER_WITHIN)?;
    reply(&stream, &request.map_or_else(|refused| refused, answer))
}

/// A caller's request, or the error line to send back ([CTL2]).
///
/// # Errors
/// It has not come in time, or the mount ends.
fn read_request(stream: &UnixStream, stopped: Option<&PipeReader>, within: Duration) -> io::Result<Result<Request, Value>> {
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    let mut line = String::new();
    let said = UntilStopped { stream: Until { stream: stream.try_clone()?, end: Instant::now() + within }, stopped };
    BufReader::new(io::Read::take(said, REQUEST_BYTES_MAX)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line).map_err(|error| json!({ "error": format!("{NOT_A_REQUEST}: {error}") })))
}

fn reply(mut stream: &UnixStream, line: &Value) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::is_caught;

    /// Answers with the request that it got; a long job runs until the server stops or the caller leaves.
    struct Echo;

    impl Answer for Echo {
        fn answer(&self, request: Request) -> Value {
            json!({ "seen": format!("{request:?}") })
        }

        fn work(&self, _request: Request, listener: &Listener<'_>) -> Value {
            while listener.is_there() && listener.say(&json!({ "progress": {} })).is_ok() {
                std::thread::sleep(Duration::from_millis(2));
            }
            json!({ "ended": true })
        }
    }

    #[test]
    fn a_long_job_holds_nobody_up_and_ends_with_its_listener_or_the_server() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (listener, path) = listen(directory.path(), "0:98").expect("listens");
        let server = Server::answer(listener, path.clone(), Arc::new(Echo)).expect("started");
        let asks = |line: &str| {
            let mut stream = UnixStream::connect(&path).expect("connects");
            stream.write_all(format!("{line}\n").as_bytes()).expect("sent");
            BufReader::new(stream)
        };
        let line = |from: &mut BufReader<UnixStream>| {
            let mut line = String::new();
            from.read_line(&mut line).expect("read");
            line
        };
        let (mut leaves, mut stays) = (asks("{\"request\":\"scrub\"}"), asks("{\"request\":\"scrub\",\"limit\":5}"));
        for _ in 0..3 {
            assert!(line(&mut leaves).contains("progress") && line(&mut stays).contains("progress"));
        }
        assert!(line(&mut asks("{\"request\":\"info\"}")).contains("Info"), "answered beside it");
        drop(leaves);
        drop(server); // waits for both jobs
        let mut last = String::new();
        while let Some(next) = Some(line(&mut stays)).filter(|line| !line.is_empty()) {
            last = next;
        }
        assert!(last.contains("ended"), "{last}");
    }

    #[test]
    fn a_line_each_way_and_nothing_left_behind() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let private = directory.path().join("private");
        private_directory(&private).expect("made");
        private_directory(&private).expect("taken again");
        let (listener, path) = listen(&private, "0:99").expect("listens");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let server = Server::answer(listener, path.clone(), Arc::new(Echo)).expect("started");

        for (line, expected) in [
            ("{\"request\":\"stats\",\"reset\":true}", "reset: true"),
            ("{\"request\":\"info\"}", "Info"),
            ("{\"request\":\"format\"}", "not a request: unknown variant"),
            ("{\"request\":\"stats\",\"colour\":1}", "not a request: unknown field"),
            ("", "not a request"),
        ] {
            let mut stream = UnixStream::connect(&path).expect("connects");
            stream.write_all(format!("{line}\n").as_bytes()).expect("sent");
            let mut reply = String::new();
            BufReader::new(stream).read_line(&mut reply).expect("answered");
            assert!(reply.contains(expected), "{line}: {reply}");
        }
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn the_newest_socket_of_a_device_number_counts_and_dead_ones_go() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let dead = socket_path(directory.path(), "0:7", 1);
        drop(UnixListener::bind(&dead).expect("bound"));
        let ending = socket_path(directory.path(), "0:7", 2);
        let _ending = UnixListener::bind(&ending).expect("bound");
        let other = socket_path(directory.path(), "0:70", 3);
        let _other = UnixListener::bind(&other).expect("bound");
        std::thread::sleep(Duration::from_millis(20));
        let (_listener, path) = listen(directory.path(), "0:7").expect("listens");
        assert!(!dead.exists());
        assert!(path.to_str().is_some_and(|path| path.ends_with(&format!("0-7.{}.socket", std::process::id()))));
        assert_eq!(sockets(directory.path(), "0:7"), [path, ending]);
    }

    #[test]
    fn regression_the_daemon_of_an_earlier_mount_answered_for_a_dead_one() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let _ending = UnixListener::bind(socket_path(directory.path(), "0:7", 1)).expect("bound");
        let there = [directory.path().to_owned()];
        connect_below(&there, "0:7").expect("it has the number alone");
        std::thread::sleep(Duration::from_millis(20));
        drop(UnixListener::bind(socket_path(directory.path(), "0:7", 2)).expect("bound"));
        assert_eq!(connect_below(&there, "0:7").expect_err("dead").kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_daemon_of_an_older_build_is_known_by_what_it_does_not_know() {
        let other = |text: &str| io::Error::other(text.to_owned());
        let of_daemon = |line: &str| serde_json::from_str::<Request>(line).map_err(|error| other(&format!("{NOT_A_REQUEST}: {error}")));
        for line in ["{\"request\":\"later\"}", "{\"request\":\"stats\",\"later\":5}"] {
            assert!(is_unknown_request(&of_daemon(line).expect_err("unknown")), "{line}");
        }
        assert!(!is_unknown_request(&of_daemon("{").expect_err("no JSON")));
        assert!(!is_unknown_request(&other("the label has an unknown variant")));
    }

    /// A daemon that sends a byte now and then keeps nobody.
    #[test]
    fn an_answer_is_read_until_a_time() {
        let (stream, mut other) = UnixStream::pair().expect("connected");
        let sender = std::thread::spawn(move || {
            while other.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(5))
            }
        });
        let start = Instant::now();
        let error = read_answer(&mut BufReader::new(Until { stream, end: start + Duration::from_millis(200) })).expect_err("no line");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!((200..5000).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
        sender.join().expect("ended");
        let (stream, mut other) = UnixStream::pair().expect("connected");
        other.write_all(b"{}\n").expect("sent");
        assert_eq!(read_answer(&mut BufReader::new(Until { stream, end: Instant::now() + ANSWER_WITHIN })).expect("there"), json!({}));
    }

    /// [CTL2]
    fn a_silent_caller_is_left_when_the_mount_ends() {
        let (stopped, stop) = io::pipe().expect("a pipe");
        let (stream, mut caller) = UnixStream::pair().expect("connected");
        caller.write_all(b"{").expect("sent");
        drop(stop);
        let error = read_request(&stream, Some(&stopped), Duration::from_millis(200)).expect_err("left");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }

    /// [CTL2]
    #[test]
    fn regression_a_caller_that_sent_a_byte_now_and_then_held_the_control_thread() {
        let (stopped, _stop) = io::pipe().expect("a pipe");
        let (stream, mut caller) = UnixStream::pair().expect("connected");
        let sender = std::thread::spawn(move || {
            while caller.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // It would go on until it has sent all that a request may have, and then be no request.
        let error = read_request(&stream, Some(&stopped), Duration::from_millis(200)).expect_err("too late");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(stream);
        sender.join().expect("ended");
    }

    /// [CTL1]: a directory of this user in place of that of the user who mounted, and one that others may enter.
    fn sockets_of_others_are_not_believed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let own = rustix::process::geteuid().as_raw();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).expect("changed");
        assert!(is_private(directory.path(), own) && !is_private(directory.path(), own + 1));
        fs::set_permissions(directory.path(), Permissions::from_mode(0o711)).expect("changed");
        assert!(!is_private(directory.path(), own) && !is_private(&directory.path().join("absent"), own));
        // Nobody has this id, and so no directory: none is left to look into.
        assert!(private_directories(u32::MAX - 1).is_empty());
    }

    /// [CTL3]
    fn who_cannot_be_accepted_is_not_asked_for_all_the_time() {
        let (stopped, _stop) = io::pipe().expect("a pipe");
        for _ in 0..5 {
            let begun = Instant::now();
            assert!(accept_or_rest(&stopped, || Err(rustix::io::Errno::MFILE.into())).is_none());
            assert!(begun.elapsed() >= REST / 2, "{:?}", begun.elapsed());
        }
        let (stream, _other) = UnixStream::pair().expect("connected");
        assert!(accept_or_rest(&stopped, || Ok(stream)).is_some());
    }

    #[test]
    fn callers_and_their_bugs() {
        is_caught(Mutant::AcceptsWithoutRest, who_cannot_be_accepted_is_not_asked_for_all_the_time);
        is_caught(Mutant::AnySocketBelieved, sockets_of_others_are_not_believed);
        is_caught(Mutant::CallersHoldTheEnd, a_silent_caller_is_left_when_the_mount_ends);
    }

    #[test]
    fn a_directory_that_others_may_enter_is_not_trusted() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("changed");
        assert!(private_directory(directory.path()).is_err());
    }
}

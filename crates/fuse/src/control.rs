//! How programs outside talk to the daemon of a mount: a UNIX socket in a directory that only its owner may enter, one line of JSON each
//! way. It is named by the mount's device number, so it can be found without touching a mount that may hang.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::mounts::Mounted;

/// How long either side waits for the other's line.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const REQUEST_BYTES_MAX: u64 = 4096;

/// What can be asked of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The counters of `tandemfs stats`; `reset` sets them to zero afterwards.
    Stats {
        /// Set to zero after reading.
        #[serde(default)]
        reset: bool,
    },
    /// What is mounted how, and the daemon's process id.
    Info,
}

/// Asks the daemon of a mount.
pub fn ask(mount: &Mounted, request: Request) -> io::Result<Value> {
    let mut stream = connect(mount)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    serde_json::to_writer(&stream, &request)?;
    stream.write_all(b"\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line).map_err(|_| io::Error::other("the daemon closed the connection"))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(io::Error::other(error.to_owned())),
        None => Ok(answer),
    }
}

fn connect(mount: &Mounted) -> io::Result<UnixStream> {
    let mut first_error = None;
    for directory in directories(mount.user) {
        match UnixStream::connect(socket_path(&directory, &mount.device_number)) {
            Ok(stream) => return Ok(stream),
            // "Refused" and "denied" say more than "not found".
            Err(error) if first_error.is_none() || error.kind() != io::ErrorKind::NotFound => first_error = Some(error),
            Err(_) => {}
        }
    }
    Err(first_error.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// Where the sockets of a user's daemons may be, the best place first. A daemon takes the first that it can make.
fn directories(user: u32) -> Vec<PathBuf> {
    if user == 0 {
        return vec!["/run/tandemfs".into(), "/tmp/tandemfs-0".into()];
    }
    let own = (rustix::process::geteuid().as_raw() == user).then(|| std::env::var_os("XDG_RUNTIME_DIR")).flatten();
    let own = own.filter(|directory| Path::new(directory).is_absolute()).map(|directory| Path::new(&directory).join("tandemfs"));
    own.into_iter().chain([format!("/run/user/{user}/tandemfs").into(), format!("/tmp/tandemfs-{user}").into()]).collect()
}

fn socket_path(directory: &Path, device_number: &str) -> PathBuf {
    directory.join(format!("{}.socket", device_number.replace(':', "-")))
}

/// Makes a directory that only this user may enter, or takes it where it is just that. Anybody may write to /tmp, so what stands there is
/// looked at before it is trusted.
fn private_directory(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let metadata = fs::symlink_metadata(directory)?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!("{} is not a private directory of this user", directory.display())));
    }
    Ok(())
}

/// The daemon's end. Dropping it removes the socket.
pub(crate) struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers in a thread of its own until dropped.
    pub(crate) fn start(mount: &Mounted, answer: impl Fn(Request) -> Value + Send + 'static) -> io::Result<Self> {
        let mut last_error = io::Error::from(io::ErrorKind::NotFound);
        for directory in directories(mount.user) {
            match private_directory(&directory).and_then(|()| listen(&socket_path(&directory, &mount.device_number))) {
                Ok((listener, path)) => {
                    let stop = Arc::new(AtomicBool::new(false));
                    let seen = Arc::clone(&stop);
                    let thread = std::thread::Builder::new().name("control".into()).spawn(move || serve(&listener, &seen, &answer))?;
                    return Ok(Self { path, stop, thread: Some(thread) });
                }
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread out of accept().
        drop(UnixStream::connect(&self.path));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn listen(path: &Path) -> io::Result<(UnixListener, PathBuf)> {
    // A device number belongs to one mount at a time: whoever left a socket here is gone.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok((listener, path.to_owned()))
}

fn serve(listener: &UnixListener, stop: &AtomicBool, answer: &dyn Fn(Request) -> Value) {
    for stream in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        // A caller that goes away is its own affair.
        let _ = stream.and_then(|stream| converse(stream, answer));
    }
}

fn converse(mut stream: UnixStream, answer: &dyn Fn(Request) -> Value) -> io::Result<()> {
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    let mut line = String::new();
    BufReader::new(io::Read::take(&stream, REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => answer(request),
        Err(error) => json!({ "error": format!("not a request: {error}") }),
    };
    stream.write_all(format!("{reply}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_each_way_and_nothing_left_behind() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let private = directory.path().join("private");
        private_directory(&private).expect("made");
        private_directory(&private).expect("taken again");
        let (listener, path) = listen(&socket_path(&private, "0:99")).expect("listens");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = std::thread::spawn(move || serve(&listener, &seen, &|request| json!({ "seen": format!("{request:?}") })));
        let server = Server { path: path.clone(), stop, thread: Some(thread) };

        for (line, expected) in [
            ("{\"request\":\"stats\",\"reset\":true}", "reset: true"),
            ("{\"request\":\"info\"}", "Info"),
            ("{\"request\":\"format\"}", "not a request"),
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
    fn a_directory_that_others_may_enter_is_not_trusted() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("changed");
        assert!(private_directory(directory.path()).is_err());
    }
}

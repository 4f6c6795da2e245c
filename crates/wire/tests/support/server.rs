//! The process that serves a mount, and the test's handle to it. They exchange lines over a socket, which is the server's standard input.
//! When the test is gone, the server unmounts and ends.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tandemfs_wire::{
    Contents, InitFlags, MountOptions, Notifier, NotifyError, Options, RingOptions, Session, Unmount, Wanted, mount, unmount,
};

use super::memory::{Event, MemoryFs};

/// Timeout for any step, long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
const MOUNTPOINT: &str = "WIRE_TEST_MOUNTPOINT";
const HOW: &str = "WIRE_TEST_HOW";

/// Why mounts cannot be tested on this machine.
pub fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can mount here".into());
    }
    File::options().read(true).write(true).open("/dev/fuse").err().map(|error| format!("/dev/fuse: {error}"))
}

/// A mount whose requests come over io_uring, or why there is none. Tests of other programs switch io_uring on and off for all of the machine,
/// and hold a lock of the parameter as long as it is theirs; here it is held until the mount has agreed with the kernel.
pub fn over_ring(words: &str) -> Result<Served, String> {
    let none = |error: std::io::Error| format!("this kernel has no FUSE over io_uring ({error})");
    let parameter = "/sys/module/fuse/parameters/enable_uring";
    let locked = File::open(parameter).map_err(none)?;
    locked.try_lock_shared().map_err(|error| format!("another test decides on io_uring now ({error})"))?;
    if std::fs::read_to_string(parameter).map_err(none)?.trim() != "Y" {
        return Err("the module parameter fuse.enable_uring is off".into());
    }
    let served = Served::start(&format!("ring {words}"));
    assert!(served.about.contains("OVER_IO_URING"), "{}", served.about);
    Ok(served)
}

/// A mount served by another process.
pub struct Served {
    child: Child,
    lines: BufReader<UnixStream>,
    directory: Option<tempfile::TempDir>,
    /// The server's description of itself.
    pub about: String,
}

impl Served {
    /// `how` has option words of [`serve`].
    pub fn start(how: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (ours, theirs) = UnixStream::pair().expect("a socket");
        ours.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "serve", "--ignored", "--nocapture", "--test-threads=1"])
            .env(MOUNTPOINT, directory.path())
            .env(HOW, how)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .expect("a server");
        let mut served = Self { child, lines: BufReader::new(ours), directory: Some(directory), about: String::new() };
        served.about = served.line();
        assert!(served.about.starts_with("ready"), "the server says: {}", served.about);
        served
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.as_ref().expect("until the end").path().join(name)
    }

    /// Sends an order and returns the server's answer.
    pub fn ask(&mut self, order: &str) -> String {
        writeln!(self.lines.get_mut(), "{order}").expect("the server listens");
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("the server answers in time");
        line.trim_end().to_owned()
    }

    /// Unmounts and waits for the server's end.
    pub fn end(mut self) -> ExitStatus {
        // Lazily: the kernel may still be closing files.
        unmount(self.path(""), Unmount::Lazy).expect("unmounted");
        self.line(); // the session's result
        self.lines.get_mut().shutdown(std::net::Shutdown::Both).expect("shut");
        assert!(wait(&mut self.child), "the server does not end");
        self.child.wait().expect("ended")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Either may have ended already.
        let _shut = self.lines.get_mut().shutdown(std::net::Shutdown::Both);
        if !wait(&mut self.child) {
            let _killed = self.child.kill();
        }
        let _status = self.child.wait();
        let directory = self.directory.take().expect("dropped once");
        let _unmounted = unmount(directory.path(), Unmount::Lazy);
    }
}

/// Waits for a process, with a timeout.
pub fn wait(child: &mut Child) -> bool {
    if child.try_wait().is_ok_and(|status| status.is_some()) {
        return true;
    }
    let pid = Pid::from_child(child);
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let timeout = Timespec::try_from(PATIENCE).expect("short enough");
    let ready = rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)));
    ready.is_ok_and(|ready| ready > 0)
}

/// The server, run in another process as if it were a test.
pub fn serve() {
    let (Ok(mountpoint), Ok(how)) = (std::env::var(MOUNTPOINT), std::env::var(HOW)) else {
        return println!("only for other tests");
    };
    let control = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().expect("standard input"));
    let mut orders = BufReader::new(control.try_clone().expect("a clone")).lines();
    let say = Arc::new(Mutex::new(control));
    let words: Vec<&str> = how.split_whitespace().collect();

    let (device, mut guard) = mount(&mountpoint, &mount_options(&words)).expect("mounted");
    let (sender, events) = channel();
    let fs = Arc::new(MemoryFs::new(sender));
    let device = if words.contains(&"capture") { capture(device) } else { device };
    let session = Session::start(device, Arc::clone(&fs), &wanted(&words), options(&words)).expect("started");
    let about = format!("ready {:?} {:?} minor {}", session.threads(), session.agreed().flags, session.agreed().minor);
    let notifier = session.notifier();
    let thread = session.spawn().expect("a thread");
    {
        let say = Arc::clone(&say);
        // Reports the session's end to the waiting test, also after the test has unmounted.
        thread::spawn(move || {
            let result = thread.join().unwrap_or_else(|_| panic!("the session panicked"));
            answer(&say, &format!("session {}", result.map_or_else(|error| error.to_string(), |()| "ended".into())));
        });
    }
    answer(&say, &about);
    while let Some(Ok(order)) = orders.next() {
        if let Some(done) = obey(&order, &fs, &notifier, &events) {
            answer(&say, &done);
        }
    }
    // The test is gone, so the mount goes too.
    let _unmounted = guard.unmount(Unmount::Lazy);
}

fn answer(say: &Mutex<UnixStream>, text: &str) {
    // The test may be gone.
    let _unheard = writeln!(say.lock().expect("not poisoned"), "{text}");
}

fn mount_options(words: &[&str]) -> MountOptions {
    MountOptions {
        source: "memory,of=wire\\test".into(),
        subtype: Some("wire-test".into()),
        default_permissions: true,
        allow_other: true,
        read_only: words.contains(&"read-only"),
        atime: !words.contains(&"noatime"),
        ..MountOptions::default()
    }
}

fn wanted(words: &[&str]) -> Wanted {
    let mut flags = InitFlags::DO_READDIRPLUS | InitFlags::HANDLE_KILLPRIV_V2 | InitFlags::SETXATTR_EXT | InitFlags::CREATE_SUPP_GROUP;
    flags |= InitFlags::EXPORT_SUPPORT | InitFlags::PARALLEL_DIROPS | InitFlags::ABORT_ERROR;
    if words.contains(&"write-back") {
        flags |= InitFlags::WRITEBACK_CACHE;
    }
    let max_write = if words.contains(&"capture") { 32 << 10 } else { 1 << 20 };
    Wanted { flags, max_write, max_readahead: 1 << 20, ..Wanted::default() }
}

fn options(words: &[&str]) -> Options {
    let ring = words.contains(&"ring").then(|| RingOptions {
        threads_per_cpu: if words.contains(&"one-thread") { 1 } else { 2 },
        requests_per_cpu_max: if words.contains(&"parks") { 8 } else { 2 },
        keep_callers: true,
    });
    Options {
        device_threads: if words.contains(&"threads") { 4 } else { 1 },
        clone_device: words.contains(&"clone"),
        waiting_max: if words.contains(&"waits") { 2 } else { 0 },
        polled: words.contains(&"polled"),
        ring,
        only_root_and: None,
    }
}

/// Obeys an order of the test; returns the answer line.
fn obey(order: &str, fs: &MemoryFs, notifier: &Notifier, events: &Receiver<Event>) -> Option<String> {
    let mut words = order.split(' ');
    let verb = words.next()?;
    let node = words.next().and_then(|name| fs.find(name.as_bytes())).unwrap_or(999_999);
    let text = words.next().unwrap_or_default().as_bytes();
    let told = |result: Result<(), NotifyError>| result.map_or_else(|error| format!("{error:?}"), |()| "ok".into());
    Some(match verb {
        "event" => events.recv_timeout(PATIENCE).map_or_else(|error| error.to_string(), |event| format!("{event:?}")),
        "finish" => fs.finish().to_string(),
        "reads" => fs.reads.load(SeqCst).to_string(),
        "idle" => fs.idle_calls.load(SeqCst).to_string(),
        "replace" => {
            fs.replace(node, text);
            "ok".into()
        }
        "invalidate" => told(notifier.invalidate_inode(node, Contents::All)),
        "invalidate-range" => told(notifier.invalidate_inode(node, Contents::Range { offset: 0, length: 4096 })),
        "invalidate-attributes" => told(notifier.invalidate_inode(node, Contents::None)),
        "invalidate-entry" => told(notifier.invalidate_entry(1, order.split(' ').nth(1)?.as_bytes())),
        "expire-entry" => told(notifier.expire_entry(1, order.split(' ').nth(1)?.as_bytes())),
        "delete" => told(notifier.delete(1, node, order.split(' ').nth(1)?.as_bytes())),
        "store" => told(notifier.store(node, 0, text)),
        "raise-size" => told(notifier.raise_size(node, order.split(' ').nth(2)?.parse().ok()?)),
        "retrieve" => match notifier.retrieve(node, 0, 4096).and_then(|retrieval| retrieval.wait(PATIENCE)) {
            Ok(retrieved) => format!("{} {}", retrieved.offset, String::from_utf8_lossy(&retrieved.data).replace('\0', ".")),
            Err(error) => format!("{error:?}"),
        },
        "epoch" => told(notifier.increment_epoch()),
        "prune" => told(notifier.prune(&[node])),
        "resend" => told(notifier.resend()),
        _ => return None,
    })
}

/// Puts a socket between kernel and session and prints all requests to standard error. The golden requests were captured by it.
fn capture(device: OwnedFd) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
    let (device, ours) = (Arc::new(device), Arc::new(ours));
    let relay = |from: Arc<OwnedFd>, to: Arc<OwnedFd>, print: bool| {
        thread::spawn(move || {
            let mut buffer = vec![0; 256 << 10];
            while let Ok(bytes @ 1..) = rustix::io::retry_on_intr(|| rustix::io::read(&from, &mut buffer)) {
                if print {
                    let hex: String = buffer[..bytes].iter().map(|byte| format!("{byte:02x}")).collect();
                    eprintln!("request {hex}");
                }
                // The other end may be closed; then the next read ends the loop.
                let _sent = rustix::io::write(&to, &buffer[..bytes]);
            }
            let _shut = rustix::net::shutdown(&to, rustix::net::Shutdown::Both);
        });
    };
    relay(Arc::clone(&device), Arc::clone(&ours), true);
    relay(ours, device, false);
    theirs
}

/// The line of `/proc/self/mountinfo` for a mountpoint.
pub fn mount_line(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").expect("procfs");
    let path = path.to_str().expect("plain").trim_end_matches('/').to_owned();
    text.lines().rev().find(|line| line.split(' ').nth(4) == Some(&path)).map(str::to_owned)
}

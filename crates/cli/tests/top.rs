//! `tandemfs top` on a real mount: once, and on a terminal, which is left as it was.

mod support;

use std::fs;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{InputModes, LocalModes, OutputModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use support::{Mount, Place, eventually, fails, pattern, start, succeeds};
use tandemfs_client::OpenOptions;

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&succeeds(words)).expect("JSON")
}

/// A client of the direct door in this process that overwrites 4 KiB again and again, and reads them.
struct Busy {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    fn on(mount: &Mount) -> Self {
        let door = tandemfs_client::Mount::connect(mount.root()).expect("let in");
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let file = OpenOptions::new().read(true).write(true).create(true).open(&door, "busy").expect("made");
            let (data, mut back) = (pattern(3, 4096), vec![0; 4096]);
            while !stopped.load(Relaxed) {
                file.write_all_at(&data, 0).expect("written");
                file.read_exact_at(&mut back, 0).expect("read");
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

#[test]
fn once_says_what_a_client_does() {
    let place = Place::formatted();
    let (mount, mountpoint) = (place.mount("strict,direct"), place.mountpoint());
    let own = std::process::id();
    let busy = Busy::on(&mount);
    let of_busy = |view: &Value| {
        let clients = view["clients"].as_array().unwrap_or_else(|| panic!("no door: {view:#}"));
        clients.iter().find(|client| client["process_id"] == own).cloned().unwrap_or_else(|| panic!("not seen: {view:#}"))
    };
    const RATES: [&str; 3] = ["requests_per_second", "written_bytes_per_second", "read_bytes_per_second"];
    // A time in which this process gets little CPU shows nothing, or a write alone.
    let mut view = Value::Null;
    for _ in 0..20 {
        view = json(&["top", &mountpoint, "--once", "--json", "--interval", "0.5"]);
        let client = of_busy(&view);
        if RATES.iter().all(|rate| client[rate].as_f64() > Some(0.0)) {
            break;
        }
    }
    assert_eq!((view["mountpoint"].as_str(), view["mode"].as_str()), (Some(&*mountpoint), Some("strict")));
    assert!(view["interval_seconds"].as_f64() >= Some(0.5) && view["client"].is_null(), "{view:#}");
    let client = of_busy(&view);
    for rate in RATES {
        assert!(client[rate].as_f64() > Some(0.0), "{rate}: {view:#}");
    }
    assert!(client["open_files"] == 1 && client["connection"] == 1 && view["connections"] == 1, "{view:#}");
    let command = fs::read_to_string("/proc/self/comm").expect("procfs");
    assert_eq!(client["command"].as_str(), Some(command.trim_end()));
    assert!(view["operations"]["write"]["total"].as_u64() > Some(0) && view["operations"]["rmdir"]["total"] == 0, "{view:#}");
    assert!(view["memory_zone"]["used_bytes"].as_u64() > Some(0) && view["block_zone"]["total_bytes"].as_u64() > Some(0), "{view:#}");

    let of_client = json(&["top", &mountpoint, "--once", "--json", "--interval", "0.5", "--client", &own.to_string()]);
    assert_eq!(of_client["client"].as_u64(), Some(own.into()));
    let kinds: Vec<&String> = of_client["operations"].as_object().expect("kinds").keys().collect();
    assert_eq!(kinds, ["open", "read", "write"]);
    let said = succeeds(&["top", &mountpoint, "--once", "--interval", "0.1"]);
    for what in ["OPERATION", "write", "PROCESS", command.trim_end(), "memory zone", "write-back"] {
        assert!(said.contains(what), "{what}: {said}");
    }

    let stats = mount.stats();
    for times in ["/latency/operations/write", "/direct/clients/0/latency/operations/write", "/direct/clients/0/latency/operations/read"] {
        let time =
            |name: &str| stats.pointer(&format!("{times}/{name}")).and_then(Value::as_u64).unwrap_or_else(|| panic!("{times}/{name}"));
        assert!(
            time("samples") > 0 && time("p50_ns") > 0 && time("p50_ns") <= time("p99_ns") && time("p999_ns") <= time("max_ns"),
            "{stats:#}"
        );
    }
    let text = succeeds(&["stats", &mountpoint]);
    assert!(text.contains("latency.operations.write.p50_ns") && text.contains("direct.clients.1.requests_to_pool"), "{text}");
    assert!(!text.contains("buckets"), "{text}");
    succeeds(&["stats", &mountpoint, "--reset"]);
    drop(busy);

    fails(1, "process 1 is no client", &["top", &mountpoint, "--once", "--client", "1"]);
    eventually("the client's end", || mount.stats()["direct"]["clients"] == serde_json::json!([]));
    mount.unmount();
    place.check();
}

#[test]
fn without_a_door_or_a_terminal() {
    let place = Place::formatted();
    let (mount, mountpoint) = (place.mount("relaxed"), place.mountpoint());
    fs::write(mount.path("file"), "content").expect("written");
    let view = json(&["top", &mountpoint, "--once", "--json", "--interval", "0.1"]);
    assert!(view["clients"].is_null() && view["operations"]["create"]["total"] == 1, "{view:#}");
    assert!(succeeds(&["top", &mountpoint, "--once", "--interval", "0.1"]).contains("no direct door"));
    fails(1, "no direct door", &["top", &mountpoint, "--once", "--client", "1"]);
    let said = fails(2, "needs a terminal", &["top", &mountpoint]);
    assert!(said.contains("--once") && said.trim_end().lines().count() == 1, "{said}");
    fails(2, "--once", &["top", &mountpoint, "--json"]);
    for interval in ["0", "-1", "x", "1e9"] {
        fails(2, "number of seconds", &["top", &mountpoint, "--once", &format!("--interval={interval}")]);
    }
    mount.unmount();
    fails(1, "no TandemFS is mounted", &["top", &mountpoint, "--once"]);
}

/// A terminal of 24 lines, with `top` on it.
struct Terminal {
    master: File,
    top: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    before: (LocalModes, InputModes, OutputModes),
}

fn modes(terminal: &File) -> (LocalModes, InputModes, OutputModes) {
    let modes = tcgetattr(terminal).expect("a terminal");
    (modes.local_modes, modes.input_modes, modes.output_modes)
}

impl Terminal {
    fn with_top(mountpoint: &str) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("unlocked");
        let path = ptsname(&master, Vec::new()).expect("a name").into_string().expect("UTF-8");
        tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).expect("a size");
        // Not the terminal of this process, which may lead a session.
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY);
        let side = || Stdio::from(OwnedFd::from(options.open(&path).expect("opened")));
        let master = File::from(master);
        let before = modes(&master);
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandemfs"));
        command.args(["top", mountpoint, "--interval", "0.1"]).env("TERM", "xterm");
        let top = start(command.stdin(side()).stdout(side()).stderr(side())).expect("started");
        let shown = Arc::<Mutex<Vec<u8>>>::default();
        let (mut from, into) = (master.try_clone().expect("another descriptor"), Arc::clone(&shown));
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It fails when nobody has the other side any more.
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                into.lock().expect("whole").extend_from_slice(&bytes[..count]);
            }
        });
        Self { master, top, shown, reader: Some(reader), before }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("whole")).into_owned()
    }

    fn is_drawn(&self) {
        eventually("the screen", || self.shown().contains("q quit"));
        assert_ne!(modes(&self.master), self.before, "no echo, no lines");
    }

    /// What was shown in the end. The terminal is as before.
    fn ended(mut self) -> (ExitStatus, String) {
        let status = std::cell::Cell::new(None);
        let top = std::cell::RefCell::new(&mut self.top);
        eventually("the end of top", || {
            status.set(top.borrow_mut().try_wait().expect("waited"));
            status.get().is_some()
        });
        let status = status.get().expect("ended");
        self.reader.take().map(JoinHandle::join).expect("once").expect("read to the end");
        let shown = self.shown();
        let last = |what: &str| shown.rfind(what).unwrap_or_else(|| panic!("{what:?} was not sent: {shown:?}"));
        assert!(last("\x1b[?1049l") > last("\x1b[?1049h"), "the first screen is back");
        assert!(last("\x1b[?25h") > last("\x1b[?25l"), "the cursor is back");
        assert_eq!(modes(&self.master), self.before, "the terminal is as before");
        (status, shown)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ended_already = self.top.kill();
        let _reaped_already = self.top.wait();
    }
}

#[test]
fn on_a_terminal_until_q() {
    let place = Place::formatted();
    let (mount, mountpoint) = (place.mount("strict,direct"), place.mountpoint());
    let busy = Busy::on(&mount);
    let mut terminal = Terminal::with_top(&mountpoint);
    terminal.is_drawn();
    let own = std::process::id().to_string();
    eventually("the client's row", || terminal.shown().contains(&own));
    // The other table, its first row, that client alone.
    terminal.master.write_all(b"\t\x1b[B\r").expect("typed");
    eventually("the client alone", || terminal.shown().contains("of process"));
    terminal.master.write_all(b"q").expect("typed");
    let (status, _) = terminal.ended();
    assert_eq!(status.code(), Some(0));
    drop(busy);
    mount.unmount();
}

#[test]
fn a_signal_puts_the_terminal_back() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let terminal = Terminal::with_top(&place.mountpoint());
        terminal.is_drawn();
        kill_process(Pid::from_child(&terminal.top), signal).expect("sent");
        let (status, shown) = terminal.ended();
        assert_eq!(status.signal(), Some(signal.as_raw()), "{shown:?}");
    }
    mount.unmount();
}

#[test]
fn the_end_of_the_mount_ends_it_with_a_sentence() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    let terminal = Terminal::with_top(&place.mountpoint());
    terminal.is_drawn();
    mount.unmount();
    let (status, shown) = terminal.ended();
    let last = shown.rsplit("\x1b[?1049l").next().expect("a last part");
    assert!(status.code() == Some(1) && last.contains("tandemfs: ") && last.contains(&place.mountpoint()), "{status}: {shown:?}");
}

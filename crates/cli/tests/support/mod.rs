//! Shared code of tests of real mounts: images in memory, and mounts that are always unmounted, also when a test fails.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod mapped;
pub mod parameters;
mod programs;

use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use tandemfs_device::{BlockRequest, Drive, Structure};
use tandemfs_emulator::DeviceOptions;
use tandemfs_format::Sector;
use tempfile::TempDir;

pub use programs::{has_no_copies, run, start};

/// How long something may take that comes about, on a machine that does much else and stops programs for seconds.
pub const WITHIN: Duration = Duration::from_secs(60);

/// The modes in which everything has to hold.
pub const MODES: [&str; 3] = ["relaxed", "strict", "strict,atomic"];

/// Runs `tandemfs`.
pub fn tandemfs(words: &[&str]) -> Output {
    let _kept = if words.first() == Some(&"mount") { parameters::kept() } else { Vec::new() };
    run(Command::new(env!("CARGO_BIN_EXE_tandemfs")).args(words))
}

/// Runs a program that unmounts, and must succeed. The mount may be in use for a moment after the last file was closed.
pub fn unmounts(command: &mut Command) {
    let start = Instant::now();
    loop {
        let output = run(command);
        let sentence = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return;
        }
        // It is unmounted here. A program of another test has mounts of its own, and a copy of this one until it ends.
        if let Some((_, rest)) = sentence.split_once("until that ends, its daemon (process ") {
            let status = format!("/proc/{}/stat", rest.split(')').next().unwrap_or_default());
            while std::fs::read_to_string(&status).is_ok_and(|stat| !stat.contains(") Z ")) {
                assert!(start.elapsed() < WITHIN, "{command:?}: {sentence}");
                std::thread::sleep(Duration::from_millis(20));
            }
            return;
        }
        let in_use = sentence.contains("in use") || sentence.contains("busy");
        assert!(in_use && start.elapsed() < WITHIN, "{command:?}: {sentence}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `tandemfs umount` of a mountpoint, which must succeed.
pub fn umount(mountpoint: &str) {
    unmounts(Command::new(env!("CARGO_BIN_EXE_tandemfs")).args(["umount", mountpoint]));
}

/// `tandemfs run` on a mount, with further options, before the program that it shall run. Calls go by the door from the first on.
pub fn under_run(mountpoint: &str, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandemfs"));
    command.args(["run", "--mount", mountpoint]).args(options).arg("--");
    command.env("TANDEMFS_PRELOAD", preload_library()).env("TANDEMFS_RUN_AFTER", "0");
    command
}

/// The library that `tandemfs run` loads, as it is built for tests.
pub fn preload_library() -> PathBuf {
    let tests = std::env::current_exe().expect("this program");
    tests.parent().expect("a directory").join("libtandemfs_preload.so")
}

/// Runs `tandemfs`, which must succeed, and returns what it said.
pub fn succeeds(words: &[&str]) -> String {
    let output = tandemfs(words);
    assert!(output.status.success(), "tandemfs {words:?}: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Runs `tandemfs`, which must fail with a status and one sentence that holds a word; returns the sentence.
pub fn fails(status: i32, word: &str, words: &[&str]) -> String {
    failed(&tandemfs(words), status, word, &format!("tandemfs {words:?}"))
}

/// Holds a failure against a status and a word of its one sentence.
pub fn failed(output: &Output, status: i32, word: &str, what: &str) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{what}: {said}");
    assert!(said.starts_with("tandemfs: "), "{what}: {said}");
    assert!(said.contains(word), "{what} should say '{word}': {said}");
    assert!(!said.contains("panicked") && !said.contains("backtrace"), "{what}: {said}");
    if status != 2 {
        assert_eq!(said.trim_end().lines().count(), 1, "{what}: one sentence, not {said}");
    }
    said
}

/// Changes bytes of the first sector of a device's block zone.
pub fn damage_first_sector(device: &str, start: usize, length: usize) {
    let options = DeviceOptions { timing: false, ..DeviceOptions::default() };
    let drive = Drive::new(tandemfs_emulator::open_device(device, &options).expect("opens"));
    let mut sector = vec![0; 4096];
    let mut requests = [BlockRequest::Read { sector: Sector::new(0), buffer: (&mut sector).into() }];
    drop(drive.transfer(Structure::Superblock, &mut requests, &mut || {}).expect("read"));
    sector[start..start + length].iter_mut().for_each(|byte| *byte ^= 0x35);
    let mut requests = [BlockRequest::Write { sector: Sector::new(0), buffer: (&sector).into() }];
    let written = drive.transfer(Structure::Superblock, &mut requests, &mut || {}).expect("written");
    drop(drive.flush_blocks(written).expect("flushed"));
}

/// A directory in memory, with an image and a mountpoint in it.
pub struct Place {
    directory: TempDir,
}

impl Place {
    /// An empty directory.
    pub fn empty() -> Self {
        Self::empty_in("/dev/shm".as_ref())
    }

    /// Nothing yet, in a directory with more room than memory has.
    pub fn empty_in(directory: &Path) -> Self {
        let directory = tempfile::Builder::new().prefix("tandemfs-test-").tempdir_in(directory).expect("a directory");
        std::fs::create_dir(directory.path().join("mnt")).expect("a mountpoint");
        Self { directory }
    }

    /// With a formatted device.
    pub fn formatted() -> Self {
        let place = Self::empty();
        succeeds(&["device", "create", &place.image(), "--profile", "off", "--memory", "128M", "--block", "512M"]);
        succeeds(&["mkfs", &place.image()]);
        place
    }

    /// With a formatted drive with firmware.
    pub fn with_firmware() -> Self {
        let place = Self::empty();
        succeeds(&["device", "create", &place.image(), "--profile", "bytefs", "--memory", "128M", "--block", "512M"]);
        succeeds(&["mkfs", &place.image()]);
        place
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// The device.
    pub fn image(&self) -> String {
        self.path("disk.image")
    }

    /// The mountpoint.
    pub fn mountpoint(&self) -> String {
        self.path("mnt")
    }

    /// Mounts the image.
    pub fn mount(&self, options: &str) -> Mount {
        self.mount_device(&self.image(), options)
    }

    /// Mounts a device.
    pub fn mount_device(&self, device: &str, options: &str) -> Mount {
        require_fuse();
        let (mountpoint, log) = (self.mountpoint(), self.path("log"));
        succeeds(&["mount", device, &mountpoint, "-o", &format!("{options},log={log}")]);
        // From here on there is something to take down.
        let mut mount = Mount { mountpoint: mountpoint.clone().into(), daemon: None, process_id: None, taken_down: false, log: log.into() };
        let info: serde_json::Value = serde_json::from_str(&succeeds(&["info", &mountpoint, "--json"])).expect("JSON");
        let process_id = info["process_id"].as_i64().and_then(|id| Pid::from_raw(id as i32)).expect("a process");
        mount.process_id = Some(process_id);
        mount.daemon = Some(rustix::process::pidfd_open(process_id, PidfdFlags::empty()).expect("a daemon"));
        mount
    }

    /// Checks the device, which must be clean.
    pub fn check(&self) {
        succeeds(&["check", &self.image()]);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What a failed test has left mounted, and not as a `Mount`, would keep the directory.
        if std::thread::panicking() {
            let _nothing_is_mounted = tandemfs_fuse::unmount(&self.directory.path().join("mnt"), tandemfs_fuse::Unmount::Lazy);
        }
    }
}

/// A mounted device.
pub struct Mount {
    mountpoint: PathBuf,
    daemon: Option<OwnedFd>,
    process_id: Option<Pid>,
    taken_down: bool,
    log: PathBuf,
}

impl Mount {
    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mountpoint.join(name)
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.mountpoint
    }

    /// The daemon. Only to look at it or to limit it: it can end any moment.
    pub fn process_id(&self) -> Pid {
        self.process_id.expect("a daemon")
    }

    /// Unmounts where the daemon cannot put everything in its place: a sentence with a word in it, and status 1, in time.
    pub fn unmount_fails(mut self, word: &str) {
        let start = Instant::now();
        fails(1, word, &["umount", self.mountpoint.to_str().expect("UTF-8")]);
        assert!(start.elapsed() < WITHIN, "the unmount took {:?}", start.elapsed());
        assert!(self.daemon_ends_within(Duration::ZERO), "umount returns when the daemon is gone");
        self.taken_down = true;
    }

    /// Its counters.
    pub fn stats(&self) -> serde_json::Value {
        let mountpoint = self.mountpoint.to_str().expect("UTF-8");
        serde_json::from_str(&succeeds(&["stats", mountpoint, "--json"])).expect("JSON")
    }

    /// Unmounts as users do.
    pub fn unmount(mut self) {
        umount(self.mountpoint.to_str().expect("UTF-8"));
        assert!(self.daemon_ends_within(Duration::ZERO), "umount returns when the daemon is gone");
        self.taken_down = true;
    }

    /// Kills the daemon at once, and takes the dead mount away.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        assert!(self.daemon_ends_within(WITHIN), "killed");
        self.detach();
        self.taken_down = true;
    }

    /// Sends a signal to the daemon.
    pub fn signal(&self, signal: Signal) {
        rustix::process::pidfd_send_signal(self.daemon.as_ref().expect("a daemon"), signal).expect("sent");
    }

    /// Stops the daemon; returns when none of its threads runs any more.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let daemon = std::os::fd::AsRawFd::as_raw_fd(self.daemon.as_ref().expect("a daemon"));
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{daemon}")).expect("read");
        let id = info.lines().find_map(|line| line.strip_prefix("Pid:")).expect("a process").trim().to_owned();
        let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(thread.expect("listed").path().join("stat")).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
        };
        let are_stopped = || std::fs::read_dir(format!("/proc/{id}/task")).expect("listed").all(is_stopped);
        let begun = std::time::Instant::now();
        while !are_stopped() {
            assert!(begun.elapsed() < WITHIN, "it does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the daemon ends in time.
    pub fn daemon_ends_within(&self, time: Duration) -> bool {
        self.daemon.as_ref().is_none_or(|daemon| ends_within(daemon, time))
    }

    fn detach(&self) {
        let _ = tandemfs_fuse::unmount(&self.mountpoint, tandemfs_fuse::Unmount::Lazy);
    }
}

/// Whether the process of a descriptor ends in time.
pub fn ends_within(process: &OwnedFd, time: Duration) -> bool {
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let ended = rustix::io::retry_on_intr(|| rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)));
    ended.expect("poll") == 1
}

impl Drop for Mount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of the daemon:\n{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
        if self.taken_down {
            return;
        }
        self.detach();
        if let Some(daemon) = &self.daemon
            && !self.daemon_ends_within(Duration::from_secs(2))
        {
            let _ = rustix::process::pidfd_send_signal(daemon, Signal::KILL);
            self.daemon_ends_within(Duration::from_secs(10));
        }
    }
}

/// Tests of mounts do not pass without one.
pub fn require_fuse() {
    let is_device = std::fs::metadata("/dev/fuse").is_ok_and(|metadata| metadata.file_type().is_char_device());
    assert!(is_device, "this test needs /dev/fuse: load the kernel module (modprobe fuse), or give the container the device");
}

/// Whether the kernel can map ids of a FUSE mount (Linux 6.12).
pub fn maps_ids() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs");
    let mut numbers = release.split(|character: char| !character.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

/// Waits for something that comes about by itself.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WITHIN, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Copies the directory `d` of a mount to directories of another one that are named by the program, each of which carries extended attributes:
/// `cp`, `tar`, and `rsync` where it is installed. `copied` is told after each.
pub fn copy_with_attributes(source: &Mount, target: &Mount, mut copied: impl FnMut(&str)) {
    let mut copy = |by: &str, command: &mut Command| {
        std::fs::create_dir(target.path(by)).expect("made");
        let output = run(command);
        assert!(output.status.success(), "{by}: {}", String::from_utf8_lossy(&output.stderr));
        copied(by);
    };
    copy("cp", Command::new("cp").arg("-a").arg(source.path("d")).arg(target.path("cp")));
    let script = "set -e -o pipefail; tar -C \"$1\" --xattrs -c d | tar -C \"$2\" --xattrs --xattrs-include='user.*' -x";
    copy("tar", Command::new("bash").args(["-c", script, "bash"]).arg(source.root()).arg(target.path("tar")));
    if start(Command::new("rsync").arg("--version").stdout(Stdio::null()))
        .and_then(|mut rsync| rsync.wait())
        .is_ok_and(|status| status.success())
    {
        copy("rsync", Command::new("rsync").arg("-aX").arg(source.path("d")).arg(target.path("rsync")));
    } else {
        println!("not tried: there is no rsync here");
    }
}

/// Bytes that repeat in no power of two.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|position| ((position + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// The program under another name.
pub fn program_named(place: &Place, name: &str) -> String {
    let path = place.path(name);
    if !Path::new(&path).exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tandemfs"), &path).expect("linked");
    }
    path
}

/// A copy of the program in a directory that everybody may enter.
pub fn program_for_everybody(place: &Place) -> String {
    let path = place.path("tandemfs");
    std::fs::copy(env!("CARGO_BIN_EXE_tandemfs"), &path).expect("copied");
    has_no_copies(); // nobody can run what somebody has open for writing
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("changed");
    path
}

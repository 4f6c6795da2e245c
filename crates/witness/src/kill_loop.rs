//! Rounds of a mount whose daemon is killed.
//!
//! A round: possibly a mount that is killed during recovery; a mount; verification of everything acknowledged in earlier rounds; several
//! writers; then the daemon is killed during work or during the unmount, or is unmounted cleanly. After some kills, and after every clean
//! unmount, `check` must find nothing. Rounds alternate between the modes. Each device serves ten rounds; then the other kind of device
//! follows.
//!
//! After any failure no daemon, mount or writer is left behind.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use fastrand::Rng;
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tandemfs_fuse::Unmount;
use tempfile::TempDir;

use crate::plan::{Node, Profile};
use crate::power_cut::Step;
use crate::promises::{self, Mode};

/// Time limit of one step of a round; exceeding it means that something hangs.
const STEP_MAX: Duration = Duration::from_secs(60);
/// Rounds that a device serves.
const DEVICE_ROUNDS: u64 = 10;
/// Rounds whose directories are kept and verified again.
const KEPT_ROUNDS: u64 = 3;
const TICK: Duration = Duration::from_millis(1);

/// Arguments of the kill loop.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    /// The program under test
    #[arg(long)]
    pub tandemfs: PathBuf,
    /// Mounts that are killed or unmounted
    #[arg(long, default_value_t = 200)]
    pub rounds: u64,
    /// The program `mount-until-cut`: daemons are then killed at exact steps of commits, too
    #[arg(long)]
    pub mount_until_cut: Option<PathBuf>,
    /// Seed of the sequence of rounds
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only this mode instead of all modes in turn
    #[arg(long)]
    pub mode: Option<Mode>,
    /// Do damage that must be found: the loop must then fail
    #[arg(long)]
    pub canary: Option<Canary>,
    /// Where devices are made, in a directory of their own
    #[arg(long, default_value = "/dev/shm")]
    pub directory: PathBuf,
    /// Where a failed round's devices, logs and promises are put
    #[arg(long)]
    pub keep: Option<PathBuf>,
}

/// Damage that must be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Canary {
    /// In relaxed mode writers log operations as acknowledged that were never synced.
    Unsynced,
    /// After a kill one bit of an acknowledged file is changed on the device.
    Bit,
}

/// Statistics of the loop.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Rounds.
    pub rounds: u64,
    /// Of these, ended by a kill while writers worked.
    pub killed_at_work: u64,
    /// Of these, ended by a kill at one exact step of a commit.
    pub killed_at_step: BTreeMap<String, u64>,
    /// Of these, ended by a kill during the unmount.
    pub killed_in_unmount: u64,
    /// Of these, unmounted.
    pub unmounted: u64,
    /// Mounts killed right after their daemon was started.
    pub killed_in_mount: u64,
    /// Of these, killed before they were mounted: while they opened the device or recovered it.
    pub killed_in_recovery: u64,
    /// Operations that were acknowledged.
    pub promises: u64,
    /// Directories compared with their logs.
    pub verifications: u64,
    /// Runs of `check`, all of them clean.
    pub checks: u64,
    /// Time taken.
    pub seconds: f64,
    seed: u64,
}

impl Summary {
    /// On one line.
    pub fn to_json(&self) -> Value {
        json!({
            "rounds": self.rounds,
            "killed_at_work": self.killed_at_work,
            "killed_at_step": self.killed_at_step,
            "killed_in_unmount": self.killed_in_unmount,
            "unmounted": self.unmounted,
            "killed_in_mount": self.killed_in_mount,
            "killed_in_recovery": self.killed_in_recovery,
            "promises": self.promises,
            "verifications": self.verifications,
            "checks": self.checks,
            "seconds": (self.seconds * 10.0).round() / 10.0,
            "seed": self.seed,
        })
    }
}

/// Runs all rounds. `writer` is the program and its first words that take the commands of [`crate::command`].
pub fn run(arguments: &Arguments, writer: &[OsString], say: &mut dyn FnMut(String)) -> Result<Summary, String> {
    let started = Instant::now();
    let directory = tempfile::Builder::new().prefix("tandemfs-kill-loop-").tempdir_in(&arguments.directory);
    let directory = directory.map_err(|error| format!("{}: {error}", arguments.directory.display()))?;
    fs::create_dir(directory.path().join("mnt")).map_err(|error| error.to_string())?;
    let mut kill_loop = Loop {
        arguments,
        writer,
        directory,
        device: Device::default(),
        random: Rng::with_seed(arguments.seed),
        daemon: None,
        children: Vec::new(),
        promised: Vec::new(),
        summary: Summary { seed: arguments.seed, ..Summary::default() },
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted)).map_err(|error| error.to_string())?;
    }
    let mut result = Ok(());
    for round in 0..arguments.rounds {
        if interrupted.load(Relaxed) {
            result = Err(format!("interrupted before round {round}"));
            break;
        }
        result = kill_loop.round(round).map_err(|error| format!("round {round} of seed {}: {error}", arguments.seed));
        if result.is_err() {
            break;
        }
        if (round + 1) % 10 == 0 || round + 1 == arguments.rounds {
            let Summary { promises, verifications, killed_in_mount, .. } = kill_loop.summary;
            let seconds = started.elapsed().as_secs();
            say(format!(
                "{seconds:4} s: {} rounds, {killed_in_mount} killed mounts, {promises} promises, {verifications} verifications",
                round + 1
            ));
        }
    }
    let result = result.and_then(|()| kill_loop.last_look());
    kill_loop.clean_up();
    if let (Err(_), Some(keep)) = (&result, &arguments.keep) {
        kill_loop.keep(keep);
    }
    kill_loop.summary.seconds = started.elapsed().as_secs_f64();
    result.map(|()| kill_loop.summary.clone())
}

/// How a round ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    KillAtStep,
    KillAtWork,
    KillInUnmount,
    Unmount,
}

/// The kind of device below the mount.
#[derive(Debug, Clone, Default)]
struct Device {
    name: String,
    files: Vec<PathBuf>,
}

/// A writer's directory and its log.
#[derive(Debug, Clone)]
struct Promised {
    round: u64,
    name: String,
}

struct Loop<'a> {
    arguments: &'a Arguments,
    writer: &'a [OsString],
    directory: TempDir,
    device: Device,
    random: Rng,
    daemon: Option<Child>,
    children: Vec<Child>,
    promised: Vec<Promised>,
    summary: Summary,
}

impl Loop<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn mountpoint(&self) -> PathBuf {
        self.path("mnt")
    }

    fn round(&mut self, round: u64) -> Result<(), String> {
        // A seed of its own, so that the progress of an earlier round does not change this one.
        self.random = Rng::with_seed(self.arguments.seed.wrapping_mul(0x1_0000) + round);
        if round.is_multiple_of(DEVICE_ROUNDS) {
            self.last_look()?;
            self.new_device(round / DEVICE_ROUNDS)?;
        }
        let canary = self.arguments.canary;
        let mode = match (canary, self.arguments.mode) {
            (Some(Canary::Unsynced), _) => Mode::Relaxed,
            (_, Some(mode)) => mode,
            (_, None) => Mode::ALL[(round % 3) as usize],
        };
        if round > 0 && self.random.u8(..3) == 0 {
            for _ in 0..self.random.u8(1..=2) {
                self.kill_in_mount(mode)?;
            }
        }
        let ending = match self.random.u8(..10) {
            _ if canary.is_some() => Ending::KillAtWork,
            0..=2 if self.arguments.mount_until_cut.is_some() => Ending::KillAtStep,
            0..=5 => Ending::KillAtWork,
            6..=7 => Ending::KillInUnmount,
            _ => Ending::Unmount,
        };
        self.start_daemon(mode, ending == Ending::KillAtStep)?;
        self.mounted(mode)?;
        self.verify()?;
        self.remove_old(round)?;
        self.start_writers(round, mode)?;
        let clean = match ending {
            Ending::KillAtStep => self.kill_at_step().map(|()| false)?,
            Ending::KillAtWork => self.work().and_then(|()| self.kill_at_work()).map(|()| false)?,
            Ending::KillInUnmount => self.work().and_then(|()| self.kill_in_unmount())?,
            Ending::Unmount => self.work().and_then(|()| self.unmount()).map(|()| true)?,
        };
        self.count_promises(round)?;
        if canary == Some(Canary::Bit) && round > 0 {
            self.flip_a_bit()?;
        } else if clean || self.random.u8(..3) == 0 {
            self.check(clean)?;
        }
        self.summary.rounds += 1;
        Ok(())
    }

    /// A mount that verifies everything, a clean unmount, and a check.
    fn last_look(&mut self) -> Result<(), String> {
        if self.device.name.is_empty() {
            return Ok(());
        }
        self.start_daemon(Mode::Relaxed, false)?;
        self.mounted(Mode::Relaxed)?;
        self.verify()?;
        self.stop_and_unmount()?;
        self.check(true)
    }

    fn new_device(&mut self, number: u64) -> Result<(), String> {
        for file in self.device.files.drain(..) {
            fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        self.promised.clear();
        let (memory, block) = ("64M", "768M");
        self.device = if number.is_multiple_of(2) {
            let image = self.path("disk.image");
            let name = image.to_string_lossy().into_owned();
            // Of the drive with firmware the log is small, so that it is cleaned while there is work; without its times, so that there is
            // much.
            let profile: &[&str] = match number / 2 % 3 {
                0 => &["bytefs", "--write-log", "1M", "--no-timing"],
                1 => &["off"],
                _ => &["romefs-a"],
            };
            let words = ["device", "create", &name, "--memory", memory, "--block", block, "--profile"];
            self.succeeds(&[&words, profile].concat())?;
            Device { name, files: vec![image] }
        } else {
            let files = vec![self.path("memory"), self.path("block")];
            for (file, bytes) in files.iter().zip([64 << 20, 768 << 20]) {
                File::create(file).and_then(|made| made.set_len(bytes)).map_err(|error| format!("{}: {error}", file.display()))?;
            }
            Device { name: format!("memory={},block={}", files[0].display(), files[1].display()), files }
        };
        let device = self.device.name.clone();
        self.succeeds(&["mkfs", &device])
    }

    // ---- programs ------------------------------------------------------------------------------------------------------------------

    fn succeeds(&self, words: &[&str]) -> Result<(), String> {
        self.ends_well(Command::new(&self.arguments.tandemfs).args(words), &format!("tandemfs {}", words.join(" ")))
    }

    /// Runs a program, which must succeed within the time limit.
    fn ends_well(&self, command: &mut Command, what: &str) -> Result<(), String> {
        let mut output = tempfile::tempfile_in(self.directory.path()).map_err(|error| error.to_string())?;
        let streams = output.try_clone().and_then(|first| Ok((first, output.try_clone()?))).map_err(|error| error.to_string())?;
        let mut child =
            command.stdin(Stdio::null()).stdout(streams.0).stderr(streams.1).spawn().map_err(|error| format!("{what}: {error}"))?;
        let status = ended_within(&mut child, STEP_MAX);
        if status.is_none() {
            end(&mut child);
        }
        let mut said = String::new();
        let _ = output.seek(SeekFrom::Start(0)).and_then(|_| output.read_to_string(&mut said));
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{what}: {status}: {}", said.trim_end())),
            None => Err(format!("{what}: did not end within {} s: {}", STEP_MAX.as_secs(), said.trim_end())),
        }
    }

    fn witness(&self) -> Command {
        let mut command = Command::new(&self.writer[0]);
        command.args(&self.writer[1..]);
        command
    }

    // ---- the daemon ----------------------------------------------------------------------------------------------------------------

    fn start_daemon(&mut self, mode: Mode, until_step: bool) -> Result<(), String> {
        let log = File::options().create(true).append(true).open(self.path("daemon.log")).map_err(|error| error.to_string())?;
        let stepped = self.arguments.mount_until_cut.as_ref().filter(|_| until_step);
        let mut daemon = Command::new(stepped.unwrap_or(&self.arguments.tandemfs));
        if stepped.is_some() {
            for file in ["note", "armed"] {
                let _ = fs::remove_file(self.path(file));
            }
            let step = Step::value_variants()[self.random.usize(..Step::value_variants().len())].to_possible_value();
            let step = step.as_ref().map_or("record-fenced", |step| step.get_name()).to_owned();
            let after = self.random.u64(..if step.contains("superblock") { 2 } else { 500 }).to_string();
            daemon.args(["--end", "kill", "--at", &step, "--after", &after, "--mode", mode.name()]);
            daemon.arg("--note").arg(self.path("note")).arg("--arm-when").arg(self.path("armed"));
        } else {
            daemon.args(["mount", "--foreground", "-o", mode.name()]);
        }
        let daemon = daemon
            .arg(&self.device.name)
            .arg(self.mountpoint())
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|error| error.to_string())?)
            .stderr(log)
            .spawn();
        self.daemon = Some(daemon.map_err(|error| format!("the daemon: {error}"))?);
        Ok(())
    }

    fn daemon(&mut self) -> &mut Child {
        self.daemon.as_mut().expect("a daemon was started")
    }

    /// Waits until the mount answers.
    fn mounted(&mut self, mode: Mode) -> Result<(), String> {
        let device_of = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
        let outside = device_of(self.directory.path()).map_err(|error| error.to_string())?;
        let start = Instant::now();
        while !device_of(&self.mountpoint()).is_ok_and(|device| device != outside) {
            if let Some(status) = self.daemon().try_wait().map_err(|error| error.to_string())? {
                return Err(format!("the mount in mode {} failed: {status}: {}", mode.name(), self.log_end()));
            }
            if start.elapsed() > STEP_MAX {
                return Err(format!("the mount did not answer: {}", self.log_end()));
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    fn log_end(&self) -> String {
        let log = fs::read_to_string(self.path("daemon.log")).unwrap_or_default();
        log.lines().rev().take(3).collect::<Vec<_>>().join(" | ")
    }

    /// Kills the daemon with SIGKILL and removes the dead mount as a user does.
    fn kill_daemon(&mut self) -> Result<(), String> {
        let mountpoint = self.mountpoint();
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        end(&mut daemon);
        if is_mounted(&mountpoint) {
            self.succeeds(&["umount", &mountpoint.to_string_lossy()])?;
        }
        Ok(())
    }

    fn kill_in_mount(&mut self, mode: Mode) -> Result<(), String> {
        self.start_daemon(mode, false)?;
        let wait = self.moment(0.5, 30.0);
        std::thread::sleep(wait);
        if let Some(status) = self.daemon().try_wait().map_err(|error| error.to_string())? {
            return Err(format!("a mount in mode {} failed: {status}: {}", mode.name(), self.log_end()));
        }
        let answered = is_mounted(&self.mountpoint());
        self.kill_daemon()?;
        self.summary.killed_in_mount += 1;
        self.summary.killed_in_recovery += u64::from(!answered);
        Ok(())
    }

    fn kill_at_work(&mut self) -> Result<(), String> {
        self.writers_are_well()?;
        end(self.daemon());
        self.take_away_dead_mount()?;
        self.summary.killed_at_work += 1;
        Ok(())
    }

    /// The daemon kills itself at the step that it was given. One whose step does not come is killed.
    fn kill_at_step(&mut self) -> Result<(), String> {
        let work = self.moment(8.0, 200.0);
        std::thread::sleep(work);
        self.writers_are_well()?;
        File::create(self.path("armed")).map_err(|error| error.to_string())?;
        match ended_within(self.daemon(), Duration::from_secs(2)) {
            None => return self.kill_at_work(),
            Some(status) if status.signal() == Some(9) => {}
            Some(status) => return Err(format!("the daemon ended with {status}: {}", self.log_end())),
        }
        let note = fs::read_to_string(self.path("note")).map_err(|error| format!("the note of a step: {error}"))?;
        let step = note.split(' ').nth(2).unwrap_or_default().to_owned();
        self.take_away_dead_mount()?;
        *self.summary.killed_at_step.entry(step).or_default() += 1;
        Ok(())
    }

    fn take_away_dead_mount(&mut self) -> Result<(), String> {
        // The writers get errors, because their file system is gone. Only writers of the canary wait for nothing.
        if self.arguments.canary == Some(Canary::Unsynced) {
            self.children.iter_mut().for_each(end);
        }
        let mut writers = std::mem::take(&mut self.children);
        for writer in &mut writers {
            if ended_within(writer, STEP_MAX).is_none() {
                end(writer);
                return Err("a writer hangs after the daemon's death".into());
            }
        }
        self.daemon = None;
        self.succeeds(&["umount", &self.mountpoint().to_string_lossy()])
    }

    /// Whether the unmount was complete before the kill came.
    fn kill_in_unmount(&mut self) -> Result<bool, String> {
        self.stop_writers()?;
        let mountpoint = self.mountpoint();
        let umount =
            Command::new(&self.arguments.tandemfs).arg("umount").arg(&mountpoint).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut umount = umount.map_err(|error| error.to_string())?;
        let wait = self.moment(0.2, 8.0);
        std::thread::sleep(wait);
        let complete = self.daemon().try_wait().map_err(|error| error.to_string())?.is_some();
        end(self.daemon());
        if ended_within(&mut umount, STEP_MAX).is_none() {
            end(&mut umount);
            return Err("umount hangs after the daemon's death".into());
        }
        self.kill_daemon()?;
        if complete {
            self.summary.unmounted += 1;
        } else {
            self.summary.killed_in_unmount += 1;
        }
        Ok(complete)
    }

    fn unmount(&mut self) -> Result<(), String> {
        self.stop_writers()?;
        self.stop_and_unmount()?;
        self.summary.unmounted += 1;
        Ok(())
    }

    fn stop_and_unmount(&mut self) -> Result<(), String> {
        self.succeeds(&["umount", &self.mountpoint().to_string_lossy()])?;
        let log_end = self.log_end();
        let mut daemon = self.daemon.take().ok_or("no daemon")?;
        match ended_within(&mut daemon, STEP_MAX) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("the daemon ended with {status}: {log_end}")),
            None => {
                end(&mut daemon);
                Err("the daemon goes on after the unmount".into())
            }
        }
    }

    /// Runs `check`, which must find nothing. A kill may have torn the one copy of the superblock that was being written.
    fn check(&mut self, clean: bool) -> Result<(), String> {
        self.summary.checks += 1;
        let words = ["check", "--json", &self.device.name];
        let Err(said) = self.succeeds(&words) else { return Ok(()) };
        let report: Value = said.split_once('{').and_then(|(_, json)| serde_json::from_str(&format!("{{{json}")).ok()).ok_or(said)?;
        let findings = report["findings"].as_array().map_or(&[][..], Vec::as_slice);
        let counts = |finding: &&Value| finding["severity"] != "warning" && (clean || finding["finding"] != "superblock_damaged");
        let counting: Vec<String> = findings.iter().filter(counts).take(3).map(Value::to_string).collect();
        if findings.is_empty() || !counting.is_empty() {
            return Err(format!("check: {}", if findings.is_empty() { report.to_string() } else { counting.join(" ") }));
        }
        Ok(())
    }

    /// A random time between two, in milliseconds; short ones as likely as long ones.
    fn moment(&mut self, least: f64, most: f64) -> Duration {
        Duration::from_secs_f64(least * (most / least).powf(self.random.f64()) / 1000.0)
    }

    // ---- the writers ---------------------------------------------------------------------------------------------------------------

    fn start_writers(&mut self, round: u64, mode: Mode) -> Result<(), String> {
        let count = self.random.usize(2..=4);
        let mut profiles = Profile::ALL;
        self.random.shuffle(&mut profiles);
        for (index, profile) in profiles.into_iter().take(count).enumerate() {
            let name = format!("{round}-{index}");
            let directory = self.mountpoint().join(&name);
            fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
            let log = self.path(&format!("{name}.log"));
            // So that it is there, however early the writer ends.
            File::create(&log).map_err(|error| error.to_string())?;
            let output = File::create(self.path(&format!("{name}.output"))).map_err(|error| error.to_string())?;
            let seed = self.random.u64(..1 << 48).to_string();
            let unsynced = (self.arguments.canary == Some(Canary::Unsynced)).then_some("--unsynced");
            let mut writer = self.witness();
            writer.args(["write", "--mode", mode.name(), "--profile", profile.name(), "--seed", &seed]).args(unsynced);
            let writer = writer.arg(&directory).arg(&log).stdin(Stdio::null()).stdout(output).stderr(Stdio::null()).spawn();
            self.children.push(writer.map_err(|error| format!("a writer: {error}"))?);
            self.promised.push(Promised { round, name });
        }
        Ok(())
    }

    /// Lets the writers write.
    fn work(&mut self) -> Result<(), String> {
        let wait = self.moment(8.0, 1000.0);
        std::thread::sleep(wait);
        if self.arguments.canary.is_some() {
            // There must be something to be lost.
            std::thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Checks that no writer failed before the kill.
    fn writers_are_well(&mut self) -> Result<(), String> {
        let mut ended = None;
        for (index, writer) in self.children.iter_mut().enumerate() {
            if let Some(status) = writer.try_wait().map_err(|error| error.to_string())? {
                ended = Some((index, status));
            }
        }
        let Some((index, status)) = ended else { return Ok(()) };
        let name = &self.promised[self.promised.len() - self.children.len() + index].name;
        let said = fs::read_to_string(self.path(&format!("{name}.output"))).unwrap_or_default();
        Err(format!("writer {name} ended before the kill: {status}: {} (daemon: {})", said.trim_end(), self.log_end()))
    }

    fn stop_writers(&mut self) -> Result<(), String> {
        self.writers_are_well()?;
        for mut writer in std::mem::take(&mut self.children) {
            end(&mut writer);
        }
        Ok(())
    }

    fn count_promises(&mut self, round: u64) -> Result<(), String> {
        for promised in self.promised.iter().filter(|promised| promised.round == round) {
            let read = promises::read(&self.path(&format!("{}.log", promised.name)))?;
            self.summary.promises += read.map_or(0, |(_, acknowledged)| acknowledged);
        }
        Ok(())
    }

    // ---- what was promised ---------------------------------------------------------------------------------------------------------

    fn verify(&mut self) -> Result<(), String> {
        for promised in &self.promised {
            let log = self.path(&format!("{}.log", promised.name));
            let mut verifier = self.witness();
            verifier.arg("verify").arg(self.mountpoint().join(&promised.name)).arg(&log);
            self.ends_well(&mut verifier, &format!("verify {}", promised.name))?;
            self.summary.verifications += 1;
        }
        // Nothing else may exist either.
        for entry in fs::read_dir(self.mountpoint()).map_err(|error| error.to_string())? {
            let name = entry.map_err(|error| error.to_string())?.file_name().to_string_lossy().into_owned();
            if !self.promised.iter().any(|promised| promised.name == name) {
                return Err(format!("{name}: is in the root, though nobody made it or its removal was acknowledged"));
            }
        }
        Ok(())
    }

    fn remove_old(&mut self, round: u64) -> Result<(), String> {
        let (old, kept) = std::mem::take(&mut self.promised).into_iter().partition(|promised| promised.round + KEPT_ROUNDS <= round);
        self.promised = kept;
        for promised in old {
            let directory = self.mountpoint().join(&promised.name);
            fs::remove_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        }
        Ok(())
    }

    /// Finds a piece of a file that was acknowledged on the device, wherever it is, and changes one bit in every copy.
    fn flip_a_bit(&mut self) -> Result<(), String> {
        const NEEDLE_BYTES: usize = 256;
        for promised in self.promised.iter().rev() {
            let Some((writer, acknowledged)) = promises::read(&self.path(&format!("{}.log", promised.name)))? else { continue };
            let mut model = writer.model_after(acknowledged);
            let under_way = writer.next(&mut model, acknowledged);
            let mut after = model.clone();
            after.apply(&under_way, acknowledged);
            // What the operation under way leaves alone.
            let settled = model.names.iter().filter(|(name, node)| after.names.get(*name) == Some(*node));
            for (name, node) in settled {
                let Node::File(file) = node else { continue };
                let bytes = &model.files[file];
                if bytes.len() < NEEDLE_BYTES || after.files.get(file) != Some(bytes) || bytes[..NEEDLE_BYTES].iter().all(|byte| *byte == 0)
                {
                    continue;
                }
                let mut flipped = 0;
                for half in &self.device.files {
                    flipped += flip_in(half, &bytes[..NEEDLE_BYTES]).map_err(|error| format!("{}: {error}", half.display()))?;
                }
                if flipped > 0 {
                    let note = format!("canary: one bit of {}/{name}, {flipped} copies\n", promised.name);
                    return fs::write(self.path("canary"), note).map_err(|error| error.to_string());
                }
            }
        }
        Err("the canary found no file to damage".into())
    }

    // ---- the end -------------------------------------------------------------------------------------------------------------------

    fn clean_up(&mut self) {
        for child in self.children.iter_mut().chain(self.daemon.as_mut()) {
            end(child);
        }
        self.children.clear();
        self.daemon = None;
        let mountpoint = self.mountpoint();
        if is_mounted(&mountpoint) {
            let _ = tandemfs_fuse::unmount(&mountpoint, Unmount::Lazy);
        }
    }

    /// Keeps the files needed to analyse a failure.
    fn keep(&self, keep: &Path) {
        let copied = fs::create_dir_all(keep).and_then(|()| {
            for entry in fs::read_dir(self.directory.path())? {
                let entry = entry?;
                if entry.file_type()?.is_file() {
                    fs::copy(entry.path(), keep.join(entry.file_name()))?;
                }
            }
            Ok(())
        });
        match copied {
            Ok(()) => eprintln!("devices, logs and promises are in {}", keep.display()),
            Err(error) => eprintln!("{}: {error}", keep.display()),
        }
    }
}

impl Drop for Loop<'_> {
    fn drop(&mut self) {
        self.clean_up();
    }
}

/// Changes one bit inside each copy of some bytes in a file; returns the number of copies.
fn flip_in(path: &Path, needle: &[u8]) -> std::io::Result<usize> {
    let bytes = fs::read(path)?;
    let file = File::options().write(true).open(path)?;
    let mut copies = 0;
    for at in memchr::memmem::find_iter(&bytes, needle) {
        let place = at + needle.len() / 2;
        file.write_all_at(&[bytes[place] ^ 0x10], place as u64)?;
        copies += 1;
    }
    Ok(copies)
}

fn is_mounted(mountpoint: &Path) -> bool {
    tandemfs_fuse::mounts::find(mountpoint).is_ok_and(|found| found.is_some())
}

/// Kills and reaps a child process.
fn end(child: &mut Child) {
    // One that has ended already is no failure.
    let _ = child.kill();
    let _ = child.wait();
}

fn ended_within(child: &mut Child, time: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if start.elapsed() < time => std::thread::sleep(TICK),
            Ok(None) => return None,
            Err(_) => return Some(ExitStatus::from_raw(1 << 8)),
        }
    }
}

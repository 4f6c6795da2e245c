//! Programs run by cases, and servers, which are stopped at the end of a case.
//!
//! [PRG1] A program is waited for through its pidfd, so its exit is noticed at once; a signal that stops the benchmark is, too.
//! [PRG2] Every started process ends, also on errors and signals: by pid, with a normal stop signal if it may write, then SIGKILL.
//! [PRG3] A program's output goes to files in the case's scratch directory, never to a pipe: no reader is needed during the measurement.
//! [PRG4] User settings (`~/.gitconfig`, `~/.sqliterc`, the locale) have no effect: programs get their own home and the C locale.
//! [PRG6] Where a scratch directory has an environment for programs (`under_run.rs`) when they start, they get it: a command may have been made
//!       before the mount of which it speaks.
//! [PRG5] Programs do not read the terminal. Its interrupt reaches only the benchmark, which then stops them in order.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::compare;
use crate::failure::{Failure, Result};
use crate::machine::{self, comes_about};

/// File of a scratch directory: lines of NAME=VALUE ([PRG6]).
pub const ENVIRONMENT: &str = "environment";
/// Time limit of a program.
const RUN_MAX: Duration = Duration::from_secs(1800);
/// Time limit for a server to answer, or to exit when asked.
const SERVER_MAX: Duration = Duration::from_secs(60);
/// Interval of polling for conditions that cannot be waited for.
const LOOK: Duration = Duration::from_millis(5);

/// A command isolated from the user's settings and terminal ([PRG4], [PRG5]).
///
/// # Errors
/// The program is not installed.
pub fn command(name: &str, scratch: &Path) -> Result<Command> {
    let mut command = compare::command::command(name)?;
    command.env("HOME", scratch).env("LC_ALL", "C").env("TZ", "UTC").stdin(Stdio::null()).process_group(0);
    Ok(command)
}

/// The environment for programs ([PRG6]); empty if there is none of its own.
pub fn environment(scratch: &Path) -> Vec<(String, String)> {
    let lines = fs::read_to_string(scratch.join(ENVIRONMENT)).unwrap_or_default();
    lines.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Starts a program with the environment of its scratch directory ([PRG6]).
fn start(command: &mut Command, scratch: &Path) -> Result<Child> {
    let child = command.envs(environment(scratch)).spawn();
    child.map_err(|error| Failure::new(format!("{} does not start: {error}", name_of(command))))
}

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// It cannot be started, fails (the message has its last line of output), takes longer than half an hour, or a signal came.
pub fn run(command: &mut Command, scratch: &Path) -> Result<String> {
    let (output, errors) = (scratch.join("program.out"), scratch.join("program.err"));
    command.stdout(File::create(&output)?).stderr(File::create(&errors)?);
    let name = name_of(command);
    let mut running = Running::new(start(command, scratch)?, Some(Signal::KILL));
    let status =
        running.wait(RUN_MAX)?.ok_or_else(|| Failure::new(format!("{name} takes longer than {} minutes", RUN_MAX.as_secs() / 60)))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&fs::read(&output)?).into_owned());
    }
    let said = String::from_utf8_lossy(&fs::read(&errors).unwrap_or_default()).into_owned();
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim();
    let how = status.signal().map_or_else(|| status.to_string(), |signal| format!("signal {signal}"));
    Err(Failure::new(format!("{name} failed ({how}): {last}")))
}

fn name_of(command: &Command) -> String {
    Path::new(command.get_program()).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A started process, which is ended at the latest on drop ([PRG2]).
pub struct Running {
    child: Child,
    stop: Option<Signal>,
}

/// Waits until a descriptor can be read; false after the time limit.
///
/// # Errors
/// A signal came.
pub fn wait_for(descriptor: &impl AsFd, at_most: Duration) -> Result<bool> {
    let start = Instant::now();
    while start.elapsed() < at_most {
        machine::check()?;
        if is_readable(descriptor, Duration::from_millis(100))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The same, whatever signals come.
///
/// # Errors
/// It cannot be waited for.
pub fn is_readable(descriptor: &impl AsFd, at_most: Duration) -> Result<bool> {
    let start = Instant::now();
    loop {
        let left = Timespec::try_from(at_most.saturating_sub(start.elapsed()))?;
        match poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

impl Running {
    /// A process that was started, and the signal that ends it; what reads its input ends with that.
    pub fn new(child: Child, stop: Option<Signal>) -> Self {
        Self { child, stop }
    }

    /// Its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the exit; `None` after the time limit ([PRG1]).
    ///
    /// # Errors
    /// A signal came.
    pub fn wait(&mut self, at_most: Duration) -> Result<Option<std::process::ExitStatus>> {
        let descriptor = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        Ok(if wait_for(&descriptor, at_most)? { Some(self.child.wait()?) } else { None })
    }

    /// Its standard input, if it has one.
    pub fn input(&mut self) -> Option<&mut ChildStdin> {
        self.child.stdin.as_mut()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it. Returns whether it did so in time; else it was killed.
    pub fn end(&mut self) -> bool {
        drop(self.child.stdin.take());
        // After it was waited for, its pid may belong to another process.
        if let Some(stop) = self.stop.filter(|_| !self.has_ended()) {
            let _may_be_gone = kill_process(Pid::from_child(&self.child), stop);
        }
        if comes_about(SERVER_MAX, || self.has_ended()) {
            return true;
        }
        let _may_be_gone = self.child.kill();
        let _may_be_gone = self.child.wait();
        false
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// A server, which is stopped on drop.
pub struct Server {
    running: Running,
    name: String,
    errors: PathBuf,
}

impl Server {
    /// Starts it; `stop` is the signal that stops it. Its output goes to the scratch directory.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command, scratch: &Path, stop: Signal) -> Result<Self> {
        let name = name_of(command);
        let errors = scratch.join(format!("{name}.log"));
        let log = File::create(&errors)?;
        command.stdout(log.try_clone()?).stderr(log);
        Ok(Self { running: Running::new(start(command, scratch)?, Some(stop)), name, errors })
    }

    /// Waits until `answers` returns true.
    ///
    /// # Errors
    /// It exited instead (the message has its last line of output), or takes longer than a minute.
    pub fn wait_until(&mut self, mut answers: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !answers() {
            machine::check()?;
            if self.running.child.try_wait()?.is_some() {
                let said = String::from_utf8_lossy(&fs::read(&self.errors).unwrap_or_default()).into_owned();
                let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").trim().to_owned();
                return Err(Failure::new(format!("{} ended: {last}", self.name)));
            }
            if start.elapsed() > SERVER_MAX {
                return Err(Failure::new(format!("{} does not answer within a minute", self.name)));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Stops the server and waits for its exit.
    pub fn end(mut self) {
        self.running.end();
    }
}

/// A path for a server's socket in the scratch directory.
///
/// # Errors
/// The path is longer than a socket path may be.
pub fn socket(scratch: &Path, name: &str) -> Result<PathBuf> {
    let path = scratch.join(name);
    if path.as_os_str().len() > 100 {
        return Err(Failure::new(format!("{} is too long for a socket; name a shorter directory with --directory", path.display())));
    }
    Ok(path)
}

/// The number after `before` in a program's output.
///
/// # Errors
/// The output contains no such number.
pub fn number_after(said: &str, before: &str) -> Result<f64> {
    let rest = said.split_once(before).map(|(_, rest)| rest.trim_start());
    let digits = rest.map(|rest| rest.split(|letter: char| !letter.is_ascii_digit() && letter != '.').next().unwrap_or_default());
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| Failure::new(format!("no number behind `{before}` in what the program said")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> tempfile::TempDir {
        tempfile::tempdir().expect("a directory")
    }

    #[test]
    fn what_a_program_says_comes_back_and_its_failure_is_a_sentence() {
        let scratch = scratch();
        let mut echo = command("sh", scratch.path()).expect("sh");
        assert_eq!(run(echo.args(["-c", "echo said; echo $HOME >&2"]), scratch.path()).expect("run"), "said\n");
        let mut wrong = command("sh", scratch.path()).expect("sh");
        let failure = run(wrong.args(["-c", "echo first >&2; echo the reason >&2; exit 3"]), scratch.path()).expect_err("failed");
        assert_eq!(failure.to_string(), "sh failed (exit status: 3): the reason");
        assert_eq!(
            command("no-such-program", scratch.path()).err().map(|failure| failure.to_string()),
            Some("no-such-program is not installed".to_owned())
        );
    }

    #[test]
    fn regression_a_command_made_before_a_mount_runs_with_what_is_known_after_it() {
        let scratch = scratch();
        fs::write(scratch.path().join(ENVIRONMENT), "TANDEMFS_RUN_SOCKET=old\n").expect("written");
        let mut shell = command("sh", scratch.path()).expect("sh");
        shell.args(["-c", "echo $TANDEMFS_RUN_SOCKET"]);
        fs::write(scratch.path().join(ENVIRONMENT), "TANDEMFS_RUN_SOCKET=new\n").expect("written");
        assert_eq!(run(&mut shell, scratch.path()).expect("run"), "new\n");
    }

    #[test]
    fn a_server_ends_with_its_guard() {
        let scratch = scratch();
        let mut sleep = command("sleep", scratch.path()).expect("sleep");
        let mut server = Server::start(sleep.arg("300"), scratch.path(), Signal::TERM).expect("started");
        server.wait_until(|| true).expect("answers");
        let process = PathBuf::from(format!("/proc/{}", server.running.id()));
        assert!(process.exists());
        drop(server);
        assert!(!process.exists());
    }

    #[test]
    fn a_server_that_ends_by_itself_is_told_by_its_last_words() {
        let scratch = scratch();
        let mut wrong = command("sh", scratch.path()).expect("sh");
        let mut server = Server::start(wrong.args(["-c", "echo no such option >&2"]), scratch.path(), Signal::TERM).expect("started");
        let failure = server.wait_until(|| false).expect_err("ended");
        assert_eq!(failure.to_string(), "sh ended: no such option");
    }

    #[test]
    fn numbers_are_found_behind_words() {
        let said = "transactions: 1200/1200\ntps = 8123.25 (without initial connection time)\n";
        assert_eq!(number_after(said, "tps =").expect("a number"), 8123.25);
        assert_eq!(number_after(said, "transactions:").expect("a number"), 1200.0);
        assert!(number_after(said, "latency").is_err() && number_after(said, "without").is_err());
    }
}

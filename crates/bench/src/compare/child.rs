//! Processes of this program that do a part of a measurement.
//!
//! [CHD1] A process ends when its standard input is closed, so none outlives whoever started it, even if that was killed.
//! [CHD2] Questions and answers are JSON, a line each, over the standard streams.
//! [CHD3] Each has a process group of its own: an interrupt from the terminal reaches only the one who started it, which ends it in order.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cases::programs::{Running, is_readable};
use super::command::own_path;
use super::{awake, same_drive, under_run};
use crate::cases::mount_time;
use crate::failure::{Failure, Result};
use crate::{null_fs, output};

/// A test that carries out orders, and how it gets them: a test executable takes no `--child`.
const TEST: [&str; 4] = ["--exact", "--quiet", "--nocapture", "compare::child::tests::carries_out_an_order"];
const TEST_ORDER: &str = "TANDEMFS_TEST_ORDER";

/// What a process is for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Keeps a CPU from halting.
    Awake(usize),
    /// Serves the FUSE file system in memory at a mountpoint.
    NullFileSystem(PathBuf),
    /// Is the drive of kernel file systems.
    SameDrive(same_drive::protocol::Order),
    /// Does a case under `tandemfs run`.
    UnderRun(under_run::Order),
    /// Mounts an image with many files.
    Mount(mount_time::Order),
}

impl Order {
    /// Carries out an order, in the process that got it.
    ///
    /// # Errors
    /// It is none, or cannot be carried out.
    pub fn carry_out(text: &str) -> Result<()> {
        match serde_json::from_str(text)? {
            Self::Awake(cpu) => awake::serve(cpu),
            Self::NullFileSystem(mountpoint) => null_fs::serve(&mountpoint),
            Self::SameDrive(order) => same_drive::server::serve(&order),
            Self::UnderRun(order) => under_run::serve(&order),
            Self::Mount(order) => mount_time::serve(&order),
        }
    }

    /// The command that carries it out.
    ///
    /// # Errors
    /// The order is no JSON.
    pub fn command(&self) -> Result<Command> {
        let (text, mut command) = (serde_json::to_string(self)?, Command::new(own_path()));
        if cfg!(test) {
            command.args(TEST).env(TEST_ORDER, text);
        } else {
            command.args(["--child", &text]);
        }
        Ok(command)
    }
}

/// A running process; ends when dropped ([CHD1]).
pub struct Child {
    running: Running,
    said: BufReader<ChildStdout>,
}

impl Child {
    /// Starts a command; `stop` is a signal that ends it sooner than the end of its input does.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command, stop: Option<Signal>) -> Result<Self> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let said = process.stdout.take().ok_or_else(|| Failure::new("a process without output"))?;
        Ok(Self { running: Running::new(process, stop), said: BufReader::new(said) })
    }

    /// Its process ID.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Where its answers come from, to wait for one.
    pub fn answers(&self) -> &ChildStdout {
        self.said.get_ref()
    }

    /// Asks it.
    ///
    /// # Errors
    /// It has ended.
    pub fn ask(&mut self, question: &impl Serialize) -> Result<()> {
        let input = self.running.input().ok_or_else(|| Failure::new("a process whose input is closed"))?;
        Ok(input.write_all(format!("{}\n", serde_json::to_string(question)?).as_bytes())?)
    }

    /// Its next answer. Signals are not heeded meanwhile: what is to be taken down in order still answers.
    ///
    /// # Errors
    /// It ended, or says nothing in this time.
    pub fn hear<T: DeserializeOwned>(&mut self, at_most: Duration) -> Result<T> {
        loop {
            if self.said.buffer().is_empty() && !is_readable(self.said.get_ref(), at_most)? {
                return Err(Failure::new("a process of the measurement does not answer"));
            }
            let mut line = String::new();
            if self.said.read_line(&mut line)? == 0 {
                return Err(Failure::new("a process of the measurement ended"));
            }
            // Libraries, and the harness of tests, say other things.
            if line.starts_with(['{', '"']) {
                return Ok(serde_json::from_str(&line)?);
            }
        }
    }

    /// Ends it. Returns whether it did so by itself; else it was killed.
    pub fn end(&mut self) -> bool {
        self.running.end()
    }

    /// Whether it has ended.
    #[cfg(test)]
    pub fn has_ended(&mut self) -> bool {
        self.running.has_ended()
    }
}

/// Answers whoever started this process.
///
/// # Errors
/// Nobody listens.
pub fn answer(answer: &impl Serialize) -> Result<()> {
    output::say(&format!("{}\n", serde_json::to_string(answer)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not a test: a process that a test starts.
    #[test]
    fn carries_out_an_order() {
        if let Ok(order) = std::env::var(TEST_ORDER) {
            Order::carry_out(&order).expect("carried out");
            std::process::exit(0);
        }
    }
}

//! The same drive for all file systems: the block path of an emulated drive becomes a kernel block device, so that kernel file systems are
//! measured on the same drive as TandemFS.
//!
//! [SD1] The peers' drive is a second emulated drive with the same parameters, in its own process (`server.rs`). Its block path is a file
//!       of a FUSE server, with a loop device with O_DIRECT over that file.
//! [SD2] The detour through FUSE and loop device is measured (`calibrate.rs`) and subtracted from each reply (`detour.rs`). On the raw loop
//!       device fio must see the latency of TandemFS's own block path within 5 %; otherwise nothing is compared.
//! [SD3] A detour cannot be subtracted from a shorter service time. So the common drive of *all* is compared at several latencies of a block
//!       command, each with its own way ([`Way`]): a least time for each block command, for TandemFS too (and for COMMIT on a drive with
//!       transactions), and a limit on concurrent commands and on bandwidth that this machine can sustain. The byte path is unchanged. A
//!       latency that the machine cannot carry is left out.
//! [SD4] The peers use the drive's memory too. For them it is a cache in front of the block path (RomeFS §4.1, transparent cache), as large
//!       as TandemFS's memory zone or staging, and as durable as the byte path: a write is complete when it is in the cache.
//!       - Without firmware (`romefs-a`, `cmm-h`): a write costs a store of its size into the memory (RomeFS Table 3: 2.56 us for 4 KiB), and a
//!         read hit a load (`cache.rs`), not a block command. The drive writes it back behind its answer. Writes that find the cache
//!         full of data that is still written back wait for a block command. The detour cannot be subtracted from so short a time,
//!         so on this machine a cached write takes as long as the detour: this favours TandemFS, and the report says how much.
//!         TandemFS's own block path has no such hits.
//!       - With firmware (`bytefs*`, `hybrid-cache`): the DRAM of the write log or page cache is a write buffer instead: pages rewritten
//!         there are programmed once, and reads of buffered pages do not access the flash.
//! [SD5] Traffic is counted at the drive.

pub mod answers;
pub mod cache;
pub mod calibrate;
pub mod detour;
pub mod kernel_threads;
pub mod loop_device;
pub mod protocol;
pub mod server;
pub mod way;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tandemfs_emulator::{CreateOptions, ModelOptions, Staging};
use tandemfs_format::geometry::MEMORY_BYTES_MIN;
use tempfile::TempDir;

use self::detour::{DEPTHS, Detour};
use self::protocol::{Answer, Ask, Envelope, Order};
use self::way::{Carried, Times, Way};
use super::awake;
use super::backing::Backing;
use super::command::{child, own_path};
use super::record::Traffic;
use crate::failure::{Failure, Result};

/// How long the drive's process may take to answer, including loop device and mount.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const PAGE: u64 = 4096;
const MOUNTPOINT: &str = "mount";
/// Variable that makes a test executable run as a drive's process.
const TEST_ORDER: &str = "TANDEMFS_TEST_DRIVE";

/// Settings of the common drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Profile of the emulator.
    pub profile: String,
    /// TandemFS's memory zone, in bytes.
    pub memory_bytes: u64,
    /// The way to its block path ([SD3]); `None` for the profile's own.
    pub way: Option<Way>,
    /// The detour subtracted from the peers' replies; `calibrate` finds it.
    pub detour: Detour,
    /// Wake-up time of a CPU when the settings were made; `None` with one CPU.
    pub wake_up: Option<Duration>,
}

impl Settings {
    /// An unchanged profile.
    pub fn new(profile: &str, memory_bytes: u64) -> Self {
        Self { profile: profile.to_owned(), memory_bytes, way: None, detour: Detour::default(), wake_up: None }
    }

    /// Whether CPUs are kept from halting while a single client uses the peers' drive.
    pub fn is_kept_awake(&self) -> bool {
        awake::is_needed(self.wake_up)
    }

    fn model(&self) -> Result<&'static tandemfs_emulator::Profile> {
        let profile = tandemfs_emulator::profile(&self.profile).filter(|profile| profile.has_timing());
        profile.ok_or_else(|| {
            Failure::new(format!("the same drive needs a profile with a timing model, and '{}' has none; name romefs-a", self.profile))
        })
    }

    /// The latency of the profile's own block writes, in microseconds.
    ///
    /// # Errors
    /// A profile without timing.
    pub fn own_us(&self) -> Result<u32> {
        Ok((Self { way: None, ..self.clone() }.times(false)?.command_ns / 1_000).max(1))
    }

    /// These settings with block commands of so many microseconds; `None` if the machine does not carry them ([SD3]).
    ///
    /// # Errors
    /// A profile without timing.
    pub fn with_latency(&self, us: u32, carried: &[Carried]) -> Result<Option<Self>> {
        let (read, write) = (self.times(true)?, self.times(false)?);
        let way = way::carrying(carried, us * 1_000, |is_read| if is_read { read } else { write });
        Ok(way.map(|way| Self { way: Some(way), ..self.clone() }))
    }

    /// Facts on the drive for readers: name and value.
    ///
    /// # Errors
    /// A profile without timing.
    pub fn facts(&self) -> Result<Vec<(String, String)>> {
        let us = |ns: f64| format!("{:.1} us", ns / 1e3);
        let line = |line: &detour::Line| format!("{} + {} a KiB", us(line.base_ns), us(line.byte_ns * 1024.0));
        let memory = match self.model()?.firmware {
            None => format!("cache of {} MiB in front of the block path, durable at once", self.memory_bytes >> 20),
            Some(_) => "write buffer of the flash, as much as TandemFS stages in, durable at once".to_owned(),
        };
        let (read, write) = (self.times(true)?, self.times(false)?);
        let rate = |times: &Times| format!("{:.2} GB/s", times.bytes_per_second as f64 / 1e9);
        let mut facts = vec![
            ("profile", self.profile.clone()),
            ("block command, read", us(read.command_ns.into())),
            ("block command, write", us(write.command_ns.into())),
            ("link, read", rate(&read)),
            ("link, write", rate(&write)),
            ("its memory for the peers", memory),
        ];
        if let Some(wake_up) = self.wake_up {
            let kept = if self.is_kept_awake() { "CPUs are kept awake for single clients of the peers" } else { "CPUs may halt" };
            facts.push(("waking a CPU", format!("{}: {kept}", us(wake_up.as_nanos() as f64))));
        }
        if let Some(commands) = read.commands_at_once {
            facts.push(("block requests at once", commands.to_string()));
        }
        let mut facts: Vec<_> = facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        for (direction, lines) in [("reads", &self.detour.read), ("writes", &self.detour.write)] {
            for (depth, taken_back) in DEPTHS.iter().zip(lines) {
                facts.push((format!("detour of {direction} taken back, queue depth {depth}"), line(taken_back)));
            }
        }
        Ok(facts)
    }

    /// The times of a block request on this drive.
    fn times(&self, is_read: bool) -> Result<Times> {
        let profile = self.model()?;
        let plain = profile.timing.map(|timing| {
            let block = timing.block;
            let (command_ns, bytes_per_second) = match is_read {
                true => (block.read_latency_ns, block.read_bytes_per_second),
                false => (block.write_latency_ns, block.write_bytes_per_second),
            };
            Times { command_ns, bytes_per_second, commands_at_once: Some(block.channel_count), flash_ns: 0 }
        });
        let firmware = profile.firmware.and_then(|model| model.timing).map(|timing| Times {
            command_ns: timing.command_ns,
            bytes_per_second: if is_read { timing.read_bytes_per_second } else { timing.write_bytes_per_second },
            commands_at_once: Some(timing.commands_at_once).filter(|limit| *limit > 0),
            flash_ns: if is_read { timing.flash_read_ns } else { 0 },
        });
        let times = plain.or(firmware).ok_or_else(|| Failure::new(format!("'{}' has no times", self.profile)))?;
        Ok(self.way.map_or(times, |way| times.over(&way)))
    }

    /// Model options for an image of this drive.
    fn chosen(&self) -> ModelOptions {
        ModelOptions {
            block_command_ns_min: self.way.map(|way| way.command_ns),
            commands_at_once: self.way.map(|way| way.commands_at_once),
            link_bytes_per_second_max: self.way.map(|way| way.bytes_per_second),
            ..ModelOptions::default()
        }
    }

    /// Makes TandemFS's drive: the profile with the settings of the common drive ([SD3]), which are stored in the image.
    ///
    /// # Errors
    /// The profile has no timing model, or the image cannot be made.
    pub fn create_own_image(&self, path: &Path, block_bytes: u64) -> Result<()> {
        self.model()?; // a profile without times is refused
        let options = CreateOptions { profile: self.profile.clone(), memory_bytes: self.memory_bytes, block_bytes };
        tandemfs_emulator::create_with(path, &options, &self.chosen())?;
        Ok(())
    }

    /// Makes the peers' drive: the same, with memory as in [SD4]. Returns the bytes of the cache that the server models.
    fn create_peer_image(&self, path: &Path, block_bytes: u64) -> Result<u64> {
        let Some(model) = self.model()?.firmware else {
            // The memory region itself is unused: the cache is only a model, and all bytes are in the block region.
            let small = Self { memory_bytes: MEMORY_BYTES_MIN, ..self.clone() };
            small.create_own_image(path, block_bytes)?;
            return Ok(self.memory_bytes);
        };
        // The same flash. The staging DRAM of TandemFS's drive becomes write buffer; at least one page of staging remains.
        let staged = |bytes: u64| bytes.min((self.memory_bytes + block_bytes) / 4);
        let mut chosen = self.chosen();
        let dram_bytes = match model.staging {
            Staging::WriteLog { log_bytes, transaction_log_bytes, .. } => {
                (chosen.write_log_bytes, chosen.transaction_log_bytes) = (Some(PAGE), Some(PAGE));
                staged(log_bytes) + transaction_log_bytes - 2 * PAGE
            }
            Staging::Cache { cache_bytes, .. } => {
                chosen.cache_bytes = Some(PAGE);
                staged(cache_bytes) - PAGE
            }
        };
        chosen.write_buffer_pages = Some(model.write_buffer_pages + u32::try_from(dram_bytes / PAGE)?);
        let options = CreateOptions { profile: self.profile.clone(), memory_bytes: self.memory_bytes, block_bytes };
        tandemfs_emulator::create_with(path, &options, &chosen)?;
        Ok(0)
    }
}

/// Parses the `--child` order, if it is for this module.
pub fn order(text: &str) -> Option<Order> {
    serde_json::from_str(text).ok().map(|Envelope { same_drive }| same_drive)
}

/// A drive whose block path is a kernel block device; dropping removes everything.
pub struct Drive {
    loop_device: PathBuf,
    conversation: Mutex<Conversation>,
    /// Restored if the process was killed.
    kernel_threads: kernel_threads::Before,
    /// Removed after the process has exited.
    directory: TempDir,
}

struct Conversation {
    process: Child,
    /// Closing this pipe ends the process.
    questions: Option<ChildStdin>,
    answers: Receiver<String>,
}

/// Makes a fresh drive with a block zone of `bytes` in a directory and attaches it to the kernel.
///
/// # Errors
/// The profile cannot be used, there is no room, or this user cannot use FUSE or loop devices.
pub fn start(directory: &Path, bytes: u64, settings: &Settings) -> Result<Drive> {
    start_with(directory, bytes, settings, Memory::AsCache)
}

/// Use of the drive's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// A cache for the peers ([SD4]).
    AsCache,
    /// As for TandemFS: not visible on the block path.
    AsTandemfs,
}

fn start_with(directory: &Path, bytes: u64, settings: &Settings, memory: Memory) -> Result<Drive> {
    let named = |error| Failure::new(format!("{}: {error}", directory.display()));
    let directory = tempfile::Builder::new().prefix("tandemfs-drive-").tempdir_in(directory).map_err(named)?;
    let (image, mountpoint) = (directory.path().join("image"), directory.path().join(MOUNTPOINT));
    std::fs::create_dir(&mountpoint)?;
    let cache_bytes = match memory {
        Memory::AsCache => settings.create_peer_image(&image, bytes)?,
        Memory::AsTandemfs => settings.create_own_image(&image, bytes).map(|()| 0)?,
    };
    let order = Order { image, mountpoint, directory: directory.path().to_owned(), cache_bytes, detour: settings.detour };
    let mut conversation = Conversation::start(order)?;
    match conversation.next()? {
        Answer::Ready { loop_device, kernel_threads } => {
            Ok(Drive { loop_device, conversation: Mutex::new(conversation), kernel_threads, directory })
        }
        Answer::Failed(sentence) => Err(Failure::new(sentence)),
        other => Err(Failure::new(format!("the drive's process began with {other:?}"))),
    }
}

impl Drive {
    /// The process that emulates the drive: its CPU time is not the file system's.
    pub fn process_id(&self) -> u32 {
        self.conversation.lock().process.id()
    }

    /// Sets the detour that is subtracted from replies from now on.
    ///
    /// # Errors
    /// The process does not answer.
    pub fn set_detour(&self, detour: Detour) -> Result<()> {
        match self.conversation.lock().ask(Ask::Detour(detour))? {
            Answer::Done => Ok(()),
            other => Err(Failure::new(format!("the drive's process answered {other:?}"))),
        }
    }
}

impl Backing for Drive {
    fn block_device(&self) -> &Path {
        &self.loop_device
    }

    fn traffic(&self) -> Result<Traffic> {
        match self.conversation.lock().ask(Ask::Traffic)? {
            Answer::Traffic(traffic) => Ok(traffic),
            other => Err(Failure::new(format!("the drive's process answered {other:?}"))),
        }
    }

    fn process(&self) -> Option<u32> {
        Some(self.process_id())
    }
}

/// The executable of a drive's process: this program, or in tests the test executable.
fn program(order: &str) -> Command {
    if !cfg!(test) {
        return child(order);
    }
    let mut command = Command::new(own_path());
    command.args(["--exact", "--quiet", "--nocapture", "compare::same_drive::tests::process_of_a_drive"]).env(TEST_ORDER, order);
    command
}

impl Conversation {
    fn start(order: Order) -> Result<Self> {
        let text = serde_json::to_string(&Envelope { same_drive: order })?;
        // Own process group: an interrupt from the terminal reaches only the caller, which then takes the drive down in order.
        let mut process = program(&text).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn()?;
        let questions = process.stdin.take();
        let (lines, answers) = channel();
        if let Some(stdout) = process.stdout.take() {
            // Skips other output, such as that of libraries.
            let said = BufReader::new(stdout).lines().map_while(|line| line.ok()).filter(|line| line.starts_with(['{', '"']));
            std::thread::spawn(move || said.into_iter().try_for_each(|line| lines.send(line)));
        }
        Ok(Self { process, questions, answers })
    }

    fn ask(&mut self, ask: Ask) -> Result<Answer> {
        if let Some(questions) = &mut self.questions {
            questions.write_all(format!("{}\n", serde_json::to_string(&ask)?).as_bytes())?;
        }
        self.next()
    }

    fn next(&mut self) -> Result<Answer> {
        match self.answers.recv_timeout(ANSWER_WITHIN) {
            Ok(line) => Ok(serde_json::from_str(&line)?),
            Err(RecvTimeoutError::Timeout) => Err(Failure::new("the drive's process does not answer")),
            Err(RecvTimeoutError::Disconnected) => Err(Failure::new("the drive's process ended")),
        }
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if self.conversation.get_mut().end() {
            return;
        }
        self.kernel_threads.restore();
        if let Err(failure) = loop_device::clear(&self.loop_device, &self.directory.path().join(MOUNTPOINT)) {
            eprintln!("the drive behind {} is not taken down: {failure}", self.loop_device.display());
        }
    }
}

impl Conversation {
    /// Asks the process to take everything down and exit. Returns whether it did.
    fn end(&mut self) -> bool {
        // `End` says that the caller removes the files; the closed pipe ends the process in any case.
        let answer = self.ask(Ask::End);
        if let Ok(Answer::Failed(sentence)) = &answer {
            eprintln!("the drive was not taken down in order: {sentence}");
        }
        self.questions = None;
        let start = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) {
            if start.elapsed() > ANSWER_WITHIN {
                eprintln!("the drive's process {} does not end and is killed", self.process.id());
                drop(self.process.kill());
                drop(self.process.wait());
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        matches!(answer, Ok(Answer::Done))
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests;

//! Measurements around a run: time, CPU, memory, traffic, and noise of the machine.

use std::cell::Cell;
use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use procfs::process::Process;
use procfs::{CpuTime, CurrentSI, KernelStats, ticks_per_second};

use super::awake::Awake;
use super::case::StageClock;
use super::mounted::Mounted;
use super::record::Traffic;
use crate::failure::{Failure, Result};
use crate::machine;

/// Steps of the fixed computation: some milliseconds.
const STEPS: u64 = 2_000_000;
/// Initial repetitions of the computation to find its best time.
const FIRST_SPINS: usize = 20;

/// Times a fixed computation, relative to its best time so far.
pub struct Noise {
    best_seconds: Cell<f64>,
}

impl Noise {
    /// Finds the best time by some repetitions.
    pub fn new() -> Self {
        Self { best_seconds: Cell::new((0..FIRST_SPINS).map(|_| spin()).fold(f64::INFINITY, f64::min)) }
    }

    /// How much longer than the best time the computation takes now: 0.03 is 3 % longer.
    pub fn now(&self) -> f64 {
        let seconds = spin();
        self.best_seconds.set(self.best_seconds.get().min(seconds));
        seconds / self.best_seconds.get() - 1.0
    }
}

fn spin() -> f64 {
    let start = Instant::now();
    let mut value = 1_u64;
    for step in 0..STEPS {
        value = black_box(value.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ step);
    }
    black_box(value);
    start.elapsed().as_secs_f64()
}

/// Measured values of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// Seconds of the measured part.
    pub seconds: f64,
    /// CPU seconds of the whole machine, without processes that only emulate a drive.
    pub cpu_seconds: f64,
    /// Memory of daemon and client, in bytes.
    pub memory_bytes: u64,
    /// Traffic to the drive.
    pub traffic: Option<Traffic>,
    /// See [`Noise::now`]; the larger value of before and after.
    pub noise: f64,
}

/// The clock of a case's run.
pub struct RunClock<'m, 'b> {
    mounted: &'m mut Mounted<'b>,
    noise: &'m Noise,
    /// A path on the file system, to sync all of it before traffic is read.
    directory: PathBuf,
    /// The process that a case runs in.
    process: u32,
    /// Those that keep CPUs awake.
    awake: Vec<u32>,
    started: Option<Started>,
    taken: Option<Taken>,
}

struct Started {
    traffic: Option<Traffic>,
    noise: f64,
    cpu_seconds: f64,
    memory_bytes: u64,
    time: Instant,
}

impl<'m, 'b> RunClock<'m, 'b> {
    /// A clock that has not started.
    pub fn new(mounted: &'m mut Mounted<'b>, noise: &'m Noise, directory: PathBuf) -> Self {
        Self { mounted, noise, directory, process: std::process::id(), awake: Vec::new(), started: None, taken: None }
    }

    /// Does not count what the kernel does for processes that keep CPUs awake.
    pub fn beside(self, awake: Option<&Awake>) -> Self {
        Self { awake: awake.into_iter().flat_map(Awake::processes).collect(), ..self }
    }

    /// The measured values.
    ///
    /// # Errors
    /// The case measured nothing: a bug.
    pub fn taken(self) -> Result<Taken> {
        self.taken.ok_or_else(|| Failure::new("the case measured nothing; this is a bug of the benchmark"))
    }

    /// CPU seconds of the machine, without processes that only emulate a drive or keep CPUs awake.
    fn cpu_seconds(&self) -> Result<f64> {
        let awake: f64 = self.awake.iter().map(|process| system_seconds(*process)).sum();
        Ok(busy_seconds()? - self.mounted.drive().map_or(0.0, process_seconds) - awake)
    }

    fn memory_bytes(&self) -> u64 {
        private_memory_bytes(self.process) + self.mounted.daemon().map_or(0, private_memory_bytes)
    }
}

impl StageClock for RunClock<'_, '_> {
    fn make_cold(&mut self) -> Result<()> {
        machine::check()?;
        self.mounted.make_cold()
    }

    fn begin(&mut self) -> Result<()> {
        machine::check()?;
        if self.started.is_some() || self.taken.is_some() {
            return Err(Failure::new("the case measures twice; this is a bug of the benchmark"));
        }
        let traffic = self.mounted.traffic()?;
        let (noise, memory_bytes) = (self.noise.now(), self.memory_bytes());
        self.started = Some(Started { traffic, noise, cpu_seconds: self.cpu_seconds()?, memory_bytes, time: Instant::now() });
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let now = Instant::now();
        let started = self.started.take().ok_or_else(|| Failure::new("a measured part ends that did not begin"))?;
        let cpu_seconds = (self.cpu_seconds()? - started.cpu_seconds).max(0.0);
        let memory_bytes = started.memory_bytes.max(self.memory_bytes());
        let noise = started.noise.max(self.noise.now());
        // Data still cached in the kernel must be counted too, since it is written to the drive later.
        if self.mounted.file_system().is_none() {
            rustix::fs::syncfs(fs::File::open(&self.directory)?)?;
        }
        let traffic = self.mounted.traffic()?.zip(started.traffic).map(|(now, before)| now.since(&before));
        let seconds = now.duration_since(started.time).as_secs_f64();
        self.taken = Some(Taken { seconds, cpu_seconds, memory_bytes, traffic, noise });
        machine::check()
    }

    fn runs_in(&mut self, process: u32) {
        self.process = process;
    }
}

/// CPU time of the whole machine since its start, without what is *nice*: the processes that keep CPUs awake, but for the kernel's time.
fn busy_seconds() -> Result<f64> {
    let CpuTime { user, system, irq, softirq, .. } = KernelStats::current()?.total;
    Ok((user + system + irq.unwrap_or_default() + softirq.unwrap_or_default()) as f64 / ticks_per_second() as f64)
}

/// CPU time of a process, 0 if it is gone.
fn process_seconds(process: u32) -> f64 {
    let stat = Process::new(process as i32).and_then(|process| process.stat());
    stat.map_or(0.0, |stat| (stat.utime + stat.stime) as f64 / ticks_per_second() as f64)
}

/// The kernel's time for a process, 0 if it is gone.
fn system_seconds(process: u32) -> f64 {
    let stat = Process::new(process as i32).and_then(|process| process.stat());
    stat.map_or(0.0, |stat| stat.stime as f64 / ticks_per_second() as f64)
}

/// Memory of a process that is neither of a file nor shared, 0 if it is gone.
fn private_memory_bytes(process: u32) -> u64 {
    let status = Process::new(process as i32).and_then(|process| process.status());
    status.ok().and_then(|status| status.rssanon).unwrap_or_default() << 10
}

#[cfg(test)]
mod tests {
    use tandemfs_emulator::{CreateOptions, ModelOptions};

    use super::*;

    #[test]
    fn a_part_is_measured_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("image");
        let options = CreateOptions { profile: "romefs-a".into(), memory_bytes: 16 << 20, block_bytes: 64 << 20 };
        tandemfs_emulator::create_with(&image, &options, &ModelOptions::default()).expect("an image");
        let (mut mounted, noise) = (Mounted::library(&image, true).expect("opened"), Noise::new());
        let mut clock = RunClock::new(&mut mounted, &noise, directory.path().to_owned());
        assert!(clock.end().is_err());
        clock.begin().expect("begun");
        std::thread::sleep(std::time::Duration::from_millis(20));
        clock.end().expect("ended");
        assert!(clock.begin().is_err(), "once");
        let taken = clock.taken().expect("taken");
        assert!(taken.seconds >= 0.02 && taken.cpu_seconds >= 0.0 && taken.memory_bytes > 0 && taken.noise >= 0.0, "{taken:?}");
        assert_eq!(taken.traffic, Some(Traffic::default()), "nothing was written");

        let clock = RunClock::new(&mut mounted, &noise, directory.path().to_owned());
        assert!(clock.taken().is_err(), "nothing was measured");
        mounted.finish().expect("unmounted");
    }

    #[test]
    fn a_disturbance_is_seen() {
        let noise = Noise::new();
        noise.best_seconds.set(noise.best_seconds.get() / 2.0);
        assert!(noise.now() > 0.5);
    }
}

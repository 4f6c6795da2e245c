//! How the mount looks to the kernel, apart from the file system itself.

use tandemfs_wire::{Options, RingOptions};

/// With more threads than this each gets a channel of its own, so that they do not meet at the lock of one. On two CPUs no difference was
/// seen between one channel and several.
///
/// A single client's request takes some 3 us where the kernel wakes the serving thread on the client's own CPU, and some 34 us where it
/// wakes it on the other (two virtual CPUs under load). Which of the two is the scheduler's choice and holds for thousands of requests;
/// more waiting threads make the slow one likelier (in 24 runs each: about 4 with one thread, 6 with two, 13 with four), so there are no
/// more threads than CPUs.
const CLONED_CHANNELS_ABOVE: usize = 4;
/// Where each CPU has a queue of its own (FUSE over io_uring): one works, others take over while that one waits for the drive or a lock, or
/// while its request waits for what the kernel has to do first (`later.rs`). The kernel wakes the one that worked last, so more cost nothing
/// but address space. As a thread may wait, it has one request at a time ([UR4] of `wire/src/ring.rs`).
const RING_THREADS_PER_CPU: usize = 16;

/// What a write that returned promises (`docs/SEMANTICS.md`, RULES R19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Data is durable after fsync; the kernel's write-back cache holds it until then.
    #[default]
    Relaxed,
    /// Data is durable on return. No write-back cache.
    Strict,
    /// As strict, and one write of up to 1 MiB less a page is atomic: files are opened past the page cache.
    StrictAtomic,
}

impl Mode {
    /// The name in options and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Relaxed => "relaxed",
            Self::Strict => "strict",
            Self::StrictAtomic => "strict,atomic",
        }
    }
}

/// Settings of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSettings {
    /// What a write promises.
    pub mode: Mode,
    /// Nothing is written.
    pub read_only: bool,
    /// Every user may use the mount; permissions say what each may do. For ordinary users `/etc/fuse.conf` must allow it.
    pub allow_other: bool,
    /// Root may use an ordinary user's mount.
    pub allow_root: bool,
    /// Device files work.
    pub dev: bool,
    /// Set-user-id and set-group-id work.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// There are extended attributes and access control lists. They cost the kernel a question the first time that it checks or writes a
    /// file of which it knows no attributes.
    pub attributes: bool,
    /// Each change is written at once (mount(8)'s `sync`).
    pub sync: bool,
    /// Each change of a directory is written at once (mount(8)'s `dirsync`), as it is anyway.
    pub dirsync: bool,
    /// Share of both zones that only root may fill, in percent.
    pub reserved_percent: u32,
    /// The source that `findmnt` and `df` show.
    pub source: String,
    /// Threads that serve requests over the device; `None` = as many as the machine has CPUs, at least 2 and at most 16. Over io_uring each
    /// CPU has sixteen, most of which sleep, and the device one.
    pub threads: Option<usize>,
}

impl Default for MountSettings {
    fn default() -> Self {
        Self {
            mode: Mode::Relaxed,
            read_only: false,
            allow_other: false,
            allow_root: false,
            dev: false,
            suid: false,
            exec: true,
            attributes: true,
            sync: false,
            dirsync: false,
            reserved_percent: 0,
            source: "tandemfs".into(),
            threads: None,
        }
    }
}

impl MountSettings {
    /// Who serves, and whom; also for a file system that is measured beside a mount. How it is mounted is `mounting.rs`.
    pub fn serving(&self) -> Options {
        let only_root = self.allow_root && !self.allow_other;
        Options {
            device_threads: self.thread_count(),
            clone_device: self.thread_count() > CLONED_CHANNELS_ABOVE,
            polled: false,
            ring: Some(RingOptions { threads_per_cpu: RING_THREADS_PER_CPU, requests_per_cpu_max: RING_THREADS_PER_CPU }),
            only_root_and: only_root.then(|| rustix::process::geteuid().as_raw()),
        }
    }

    /// Threads that serve requests where these come over the device alone.
    pub fn thread_count(&self) -> usize {
        let automatic = || std::thread::available_parallelism().map_or(2, |cpus| cpus.get().clamp(2, 16));
        self.threads.unwrap_or_else(automatic).max(1)
    }
}

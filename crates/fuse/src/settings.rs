//! Settings of a mount towards the kernel.

use tandemfs_wire::{Options, RingOptions};

/// With more threads than this each gets a channel of its own, to avoid contention on one channel's lock. On two CPUs one channel and
/// several showed no difference.
///
/// A single client's request takes about 3 us if the kernel wakes the serving thread on the client's own CPU, and about 34 us if on the
/// other (two virtual CPUs under load). The scheduler's choice holds for thousands of requests. More waiting threads make the slow case
/// likelier (in 24 runs each: about 4 with one thread, 6 with two, 13 with four), so there are no more threads than CPUs.
const CLONED_CHANNELS_ABOVE: usize = 4;
/// Further threads per CPU for requests over the device that wait for the drive or a lock ([CRW2] of `wire/src/crew.rs`); they sleep until then.
const WAITING_PER_CPU: usize = 16;
const WAITING_MAX: usize = 64;
/// Threads per CPU with FUSE over io_uring, where each CPU has a queue. One thread works; others take over while it waits for the drive, a
/// lock, or an action of the kernel (`later.rs`). The kernel wakes the thread that worked last, so further threads cost only address space.
/// As a thread may wait, it has one request at a time ([UR4] of `wire/src/ring.rs`).
const RING_THREADS_PER_CPU: usize = 16;

/// The durability of a `write` that has returned (`docs/SEMANTICS.md`, RULES R19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Data is durable after fsync; until then the kernel's write-back cache may hold it.
    #[default]
    Relaxed,
    /// Data is durable when `write` returns. No write-back cache.
    Strict,
    /// As strict, and one write of up to 1 MiB less a page is atomic: files bypass the page cache.
    StrictAtomic,
}

impl Mode {
    /// The name in mount options and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Relaxed => "relaxed",
            Self::Strict => "strict",
            Self::StrictAtomic => "strict,atomic",
        }
    }
}

/// Settings that can change while a mount is served. The program that mounts implements it, since it knows their names and how values are written.
pub trait SettingsInUse: Send + Sync {
    /// Names, and values in force, as `-o` takes them.
    fn values(&self) -> Vec<(&'static str, String)>;

    /// Changes the settings of these words (`threshold=128K`), all or none. Returns what was adapted, in sentences; an error is a sentence, too.
    fn change(&self, words: &[String]) -> Result<Vec<String>, String>;
}

/// Settings of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSettings {
    /// The durability of writes.
    pub mode: Mode,
    /// The mount is read-only.
    pub read_only: bool,
    /// Every user may access the mount, subject to permissions. For ordinary users `/etc/fuse.conf` must allow it.
    pub allow_other: bool,
    /// Root may access an ordinary user's mount.
    pub allow_root: bool,
    /// Device files work.
    pub dev: bool,
    /// Set-user-id and set-group-id work.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Extended attributes and access control lists are supported. They cost one more request the first time that the kernel checks or
    /// writes a file whose attributes it does not know.
    pub attributes: bool,
    /// Every change is synchronous (mount(8)'s `sync`).
    pub sync: bool,
    /// Every directory change is synchronous (mount(8)'s `dirsync`), which is always so.
    pub dirsync: bool,
    /// Percentage of each zone reserved for root.
    pub reserved_percent: u32,
    /// Programs reach the files beside the mount ([`crate::serve_beside`]): the kernel caches less.
    pub direct: bool,
    /// Some of them may map files for stores: the kernel asks the daemon for each fsync where such stores have to be flushed.
    pub maps_for_stores: bool,
    /// The source shown by `findmnt` and `df`.
    pub source: String,
    /// Threads that serve requests over the device without waiting; `None` = one per CPU, at least 2 and at most 16. Up to 16 a CPU, 64 in all,
    /// serve in place of those that wait. Over io_uring each CPU has sixteen
    /// threads, most of which sleep, and the device has one.
    pub threads: Option<usize>,
    /// Names and values of the options that hold as long as the mount, for `tandemfs info` and for a remount.
    pub options: Vec<(&'static str, String)>,
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
            direct: false,
            maps_for_stores: false,
            source: "tandemfs".into(),
            threads: None,
            options: Vec::new(),
        }
    }
}

impl MountSettings {
    /// How requests are served, and for which users. Benchmarks use it too for the file system that they compare with. For mount options
    /// see `mounting.rs`.
    pub fn serving(&self) -> Options {
        Options {
            device_threads: self.thread_count(),
            clone_device: self.thread_count() > CLONED_CHANNELS_ABOVE,
            waiting_max: (WAITING_PER_CPU * cpus()).min(WAITING_MAX),
            polled: false,
            ring: Some(RingOptions {
                threads_per_cpu: RING_THREADS_PER_CPU,
                requests_per_cpu_max: RING_THREADS_PER_CPU,
                keep_callers: true,
            }),
            only_root_and: self.is_private().then(|| rustix::process::geteuid().as_raw()),
        }
    }

    /// Whether only root and the user who mounts may enter. The daemon holds others off then, not the kernel.
    pub(crate) fn is_private(&self) -> bool {
        self.allow_root && !self.allow_other
    }

    /// The number of serving threads if all requests come over the device.
    pub fn thread_count(&self) -> usize {
        self.threads.unwrap_or_else(|| cpus().clamp(2, 16)).max(1)
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}

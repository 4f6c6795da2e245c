//! The options of `-o`: ours, those of FUSE, and those that mount(8) passes on from fstab. Some of them are settings that can change while the mount is
//! in use ([`change`]): names and values are the same, and are read by the same code.

use std::path::PathBuf;
use std::time::Duration;

use tandemfs_device::{NodeSpec, PersistenceDomain};
use tandemfs_direct::Limits;
use tandemfs_format::PAGE_LINES;
use tandemfs_fs::{Discard, Engine, HomeLimit, MountOptions, Promote, SettingsChange, Threshold, Update, UpdateMode, WriteBackPolicy};
use tandemfs_fuse::{Mode, MountSettings};
use tracing::level_filters::LevelFilter;

use crate::metrics_server::Place;
use crate::names;
use crate::size;

/// Longest write that can be asked to go in place, in bytes: a page.
const IN_PLACE_BYTES_MAX: u32 = 4096;

/// Smallest limit of the host memory for metadata: the caches keep a few pages and inodes of each of their parts, whatever the limit.
const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// Reading ahead for one reader may take one part in this many of the memory limit (`fs/src/inodes/read_ahead.rs`).
const READ_AHEAD_SHARE: u64 = 32;

/// Largest share that can be reserved for root, in percent, as for ext4.
const RESERVED_PERCENT_MAX: u32 = 50;

/// The options, for `tandemfs mount --help`.
pub const HELP: &str = "\
Options (-o):
  relaxed         metadata is durable when a call returns, data after fsync
                  (default)
  strict          data is durable when write returns; fsync costs nothing
  atomic          with strict: one write of up to 1 MiB less a page is atomic;
                  files bypass the page cache
  threshold=SIZE  requests are split at multiples of this; whole blocks go by
                  blocks, the rest by bytes (default: the block size, 64K
                  unless formatted otherwise); auto: where the drive's two
                  paths meet, measured; 0: everything by blocks
  write_back=NAME which block gives its memory-zone space back first:
                  most-space (default), oldest, coldest
  write_back_limit=N%
                  write back when less than this share of the memory zone is
                  free (default 10%)
  home_limit=SIZE|N%
                  most of the memory zone that files may take whose home it is
                  (default 100%: what metadata and small writes leave)
  large_extents=SIZE
                  keep ranges of this size of the memory zone whole as long as
                  other space serves, for files that take all of one at once
                  (4M to 1G; default 0: none)
  numa=on|off     where the memory zone lies on several nodes of memory, each
                  process gets space on a home node of its own (default on)
  numa_nodes=N|SIZE:NODE[:CPUS]/...
                  the nodes that the memory zone lies on: so many equal
                  parts, or ranges in order, as 512G:0/*:1 or 64M:0:0-3/*:1:4+5
                  (default: what the kernel says)
  promote=on|off|always
                  copies of what is read often in spare space of the memory
                  zone (default off); always: of whatever is read
  update=auto|adaptive|in-place|pinned|flush|non-temporal
                  which way stores take to media of persistent memory
                  (default auto: by size and heat where the device has such
                  media)
  read_ahead=SIZE most bytes read ahead of a sequential reader that asks past
                  the page cache (default 1M; 0: none; at most 1/32 of
                  memory=)
  in_place=SIZE   writes up to this are stored in place, on a drive with
                  transactions (default 512; 0: none; at most 4K)
  modified_ratio=N/M
                  a page that comes back from the page cache goes by its
                  changed lines of 64 B where they are less than this share
                  of it (default 1/8; also N%; 0: all pages as they come)
  engine=NAME     how metadata becomes durable: journal, firmware (by the
                  drive's own transactions), or auto (default): firmware
                  where the drive has them
  discard=NAME    what is freed is discarded (TRIM): batched: in the background,
                  at most a quarter of the time; none (default): by 'tandemfs
                  trim' alone, and when the disk that holds an image is full;
                  also written discard and nodiscard
  memory=SIZE     host memory for metadata, and what that leaves for pages of
                  files (default 256M, at least 8M)
  domain=NAME     take the drive for less persistent than it says: none,
                  process, adr, eadr or gpf
  timing=on|off   an emulated drive takes the time that the real one would
                  (default off)
  threads=N       threads that serve requests without waiting, 1 to 256
                  (default: one a CPU, 2 to 16); others wait for the drive,
                  up to sixteen a CPU, 64 in all; over io_uring always
                  sixteen a CPU, most of which sleep
  log=FILE        log to this file (default: the system's journal, or else
                  /var/log/tandemfs.log for root,
                  $XDG_STATE_HOME/tandemfs/tandemfs.log for others)
  log_level=NAME  how much: error, warn, info (default), debug (as --verbose)
                  or trace
  metrics=unix:PATH|ADDRESS
                  answer /metrics over HTTP there, as 'tandemfs stats
                  --openmetrics' prints it; ADDRESS as 127.0.0.1:9469. Who
                  reaches the place may read it
  noxattr, xattr  without extended attributes and access control lists, or
                  with them (default); without, the kernel saves a question
                  for each file that it checks or writes the first time
  reserved=N%     share of both zones that only root may fill, as ext4's
                  reserved blocks: 0% (default) to 50%
  nouuid          mount although a file system with the same UUID is mounted: a
                  copy of this one, or its original
  ro, rw          read-only, or not (default)
  direct          programs may reach the files by shared memory, beside the
                  mount; the kernel then caches no names and attributes, and
                  writes are durable as with strict
  direct=GROUP    as direct; programs of root, of who mounts and of members of
                  this group may also map the drive's memory for reading if
                  they ask for it, and with it read every file
  direct_stores=GROUP
                  with direct: programs of root, of who mounts and of members of
                  this group may also store to the drive's memory by themselves
                  if they ask for it, and with it destroy every file; with
                  direct=GROUP they may map files for stores; not with strict
  direct_spin=N   microseconds for which the server of direct looks for work
                  before it sleeps (default 50; 0 to 1000000)
  direct_clients=N
                  processes that it serves at a time (default 64; 1 to 4096)
  allow_other     every user may use the mount; permissions apply (others
                  than root: see /etc/fuse.conf)
  allow_root      root may use an ordinary user's mount
  dev, nodev, suid, nosuid, exec, noexec, sync, async, dirsync
                  as in mount(8); others than root get nodev,nosuid
  remount         change ro, dev, suid, exec and sync of a mount in place
                  (root only), and what 'tandemfs set' changes; what is not
                  named stays, and options that would change anything else
                  are refused";

/// The options that are settings: they can change while a mount is in use.
pub const SETTINGS: [&str; 10] = [
    "threshold",
    "write_back",
    "write_back_limit",
    "promote",
    "read_ahead",
    "in_place",
    "modified_ratio",
    "discard",
    "memory",
    "log_level",
];

/// What the options of a mount say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// For the file system.
    pub file_system: MountOptions,
    /// For the kernel.
    pub settings: MountSettings,
    /// A lower persistence domain.
    pub domain: Option<PersistenceDomain>,
    /// The nodes of memory, instead of what the device says.
    pub nodes: Option<NodeSpec>,
    /// The emulator's timing model.
    pub timing: bool,
    /// Where to log.
    pub log: Option<PathBuf>,
    /// How much to log, if that was said.
    pub log_level: Option<LevelFilter>,
    /// Where to answer metrics over HTTP.
    pub metrics: Option<Place>,
    /// What clients of the direct door may take.
    pub direct: Limits,
    /// Whether a word said what a write promises.
    pub names_mode: bool,
    /// Mount although another device with the same UUID is mounted.
    pub nouuid: bool,
    /// A device that is not there is no error.
    pub nofail: bool,
    /// Change the flags of what is mounted.
    pub remount: bool,
    /// What was adapted to this machine, in sentences.
    pub warnings: Vec<String>,
}

impl Options {
    /// Reads the words of any number of `-o`. Later words win.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>, is_root: bool) -> Result<Self, String> {
        // A file system mounted by root serves device files and set-user-id programs, as others do. fusermount3 allows users neither.
        let settings = MountSettings { dev: is_root, suid: is_root, ..MountSettings::default() };
        let mut options = Self {
            file_system: MountOptions::default(),
            settings,
            domain: None,
            nodes: None,
            timing: false,
            log: None,
            log_level: None,
            metrics: None,
            direct: Limits::default(),
            names_mode: false,
            nouuid: false,
            nofail: false,
            remount: false,
            warnings: Vec::new(),
        };
        let mut atomic = false;
        let mut of_kernel = None;
        for word in lists.into_iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
            match word {
                "atomic" => atomic = true,
                _ if is_of_kernel(word) => of_kernel = Some(word),
                _ => options.apply(word)?,
            }
            options.names_mode |= matches!(word, "strict" | "relaxed" | "atomic");
        }
        match (options.settings.mode, atomic) {
            (Mode::Strict, true) => options.settings.mode = Mode::StrictAtomic,
            (_, true) => return Err("the option 'atomic' needs 'strict'".into()),
            (_, false) => {}
        }
        if options.settings.direct && atomic {
            return Err(
                "the options 'direct' and 'atomic' do not go together: files would bypass the page cache that 'direct' looks after".into(),
            );
        }
        if options.direct.stores_by.is_some() {
            if !options.settings.direct && !options.remount {
                return Err("the option 'direct_stores' needs 'direct'".into());
            }
            if options.settings.mode != Mode::Relaxed {
                return Err(
                    "the options 'direct_stores' and 'strict' do not go together: what a program stores in place is not atomic".into()
                );
            }
        }
        if let Some(word) = of_kernel.filter(|_| !options.remount) {
            return Err(unknown(word));
        }
        options.settings.read_only = options.file_system.read_only;
        options.settings.maps_for_stores = options.direct.lends_to.is_some() && options.direct.stores_by.is_some();
        Ok(options)
    }

    /// Lowers what is more than the machine has, and says so. It also says what the file system lowers by itself.
    pub fn fit(&mut self, machine_bytes: u64) {
        let memory_bytes = &mut self.file_system.memory_bytes;
        if *memory_bytes > machine_bytes {
            let (wanted, limit) = (size::show(*memory_bytes), size::show(machine_bytes));
            self.warnings.push(format!("memory={wanted} is more than the memory of this machine; the limit is {limit}"));
            *memory_bytes = machine_bytes;
        }
        let most = *memory_bytes / READ_AHEAD_SHARE;
        let read_ahead_bytes = self.file_system.read_ahead_bytes;
        if u64::from(read_ahead_bytes) > most && read_ahead_bytes != MountOptions::DEFAULT.read_ahead_bytes {
            let (wanted, limit) = (size::show(read_ahead_bytes.into()), size::show(most));
            self.warnings.push(format!("read_ahead={wanted} is more than 1/{READ_AHEAD_SHARE} of memory=; the limit is {limit}"));
        }
    }

    fn apply(&mut self, word: &str) -> Result<(), String> {
        let settings = &mut self.settings;
        match word.split_once('=') {
            Some(("threshold", value)) => {
                self.file_system.threshold = match value {
                    "auto" => Threshold::Auto,
                    _ => match option_size("threshold", value)? {
                        0 => Threshold::BlocksOnly,
                        bytes => Threshold::Bytes(bytes_32("threshold", value, bytes)?),
                    },
                };
            }
            Some(("write_back", value)) => self.file_system.write_back = value_of("write_back", &WRITE_BACK, value)?,
            Some(("write_back_limit", value)) => {
                let percent = value.strip_suffix('%').unwrap_or(value).parse().ok().filter(|percent| (1..=90).contains(percent));
                self.file_system.write_back_percent =
                    percent.ok_or_else(|| format!("write_back_limit={value}: a share from 1% to 90% is needed"))?;
            }
            Some(("promote", value)) => self.file_system.promote = value_of("promote", &PROMOTE, value)?,
            Some(("update", value)) => self.file_system.update = value_of("update", &UPDATES, value)?,
            Some(("read_ahead", value)) => {
                self.file_system.read_ahead_bytes = bytes_32("read_ahead", value, option_size("read_ahead", value)?)?;
            }
            Some(("in_place", value)) => {
                let bytes = option_size("in_place", value)?;
                let fits = u32::try_from(bytes).ok().filter(|bytes| *bytes <= IN_PLACE_BYTES_MAX);
                self.file_system.in_place_bytes = fits.ok_or_else(|| format!("in_place={value}: at most 4K is possible"))?;
            }
            Some(("modified_ratio", value)) => {
                let lines = modified_lines(value);
                let wrong = || format!("modified_ratio={value}: a share as 1/8 or 10% is needed, at most 1/1, or 0");
                self.file_system.modified_lines = lines.ok_or_else(wrong)?;
            }
            Some(("engine", value)) => self.file_system.engine = value_of("engine", &ENGINES, value)?,
            Some(("memory", value)) => {
                let bytes = option_size("memory", value)?;
                let fits = Some(bytes).filter(|bytes| *bytes >= MEMORY_BYTES_MIN);
                let too_small = || format!("memory={value}: at least {} are needed", size::show(MEMORY_BYTES_MIN));
                self.file_system.memory_bytes = fits.ok_or_else(too_small)?;
            }
            Some(("discard", value)) => self.file_system.discard = value_of("discard", &DISCARDS, value)?,
            Some(("home_limit", value)) => self.file_system.home_limit = home_limit(value)?,
            Some(("large_extents", value)) => self.file_system.large_extent_bytes = large_extents(value)?,
            Some(("domain", value)) => self.domain = Some(value.parse().map_err(|error| format!("domain: {error}"))?),
            Some(("numa", value)) => self.file_system.numa = value_of("numa", &NUMA, value)?,
            Some(("numa_nodes", value)) => self.nodes = Some(value.parse().map_err(|error| format!("numa_nodes: {error}"))?),
            Some(("timing", value)) => self.timing = value_of("timing", &TIMING, value)?,
            Some(("threads", value)) => {
                let threads = value.parse().ok().filter(|threads| (1..=256).contains(threads));
                settings.threads = Some(threads.ok_or_else(|| format!("threads={value}: a number from 1 to 256 is needed"))?);
            }
            Some(("reserved", value)) => {
                let percent = value.strip_suffix('%').unwrap_or(value).parse().ok().filter(|percent| *percent <= RESERVED_PERCENT_MAX);
                settings.reserved_percent = percent.ok_or_else(|| format!("reserved={value}: a share from 0% to 50% is needed"))?;
            }
            Some(("log", value)) => self.log = Some(value.into()),
            Some(("log_level", value)) => self.log_level = Some(value_of("log_level", &LOG_LEVELS, value)?),
            Some(("metrics", value)) => self.metrics = Some(value.parse().map_err(|error| format!("metrics: {error}"))?),
            Some(("direct", value)) => {
                settings.direct = true;
                self.direct.lends_to = Some(group_number("direct", value)?);
            }
            Some(("direct_stores", value)) => self.direct.stores_by = Some(group_number("direct_stores", value)?),
            Some(("direct_spin", value)) => {
                let spin = value.parse().ok().filter(|spin| *spin <= 1_000_000).map(Duration::from_micros);
                self.direct.spin = spin.ok_or_else(|| format!("direct_spin={value}: microseconds from 0 to 1000000 are needed"))?;
            }
            Some(("direct_clients", value)) => {
                let clients = value.parse().ok().filter(|clients| (1..=4096).contains(clients));
                self.direct.clients = clients.ok_or_else(|| format!("direct_clients={value}: a number from 1 to 4096 is needed"))?;
            }
            // For other programs: fstab comments, the helper of umount(8), systemd, and what FUSE mounts are given out of habit.
            Some(("comment" | "uhelper" | "fsname" | "subtype", _)) => {}
            Some((name, _)) if name.starts_with("x-") || name.starts_with("X-") => {}
            Some(_) => return Err(unknown(word)),
            None => self.apply_flag(word)?,
        }
        Ok(())
    }

    fn apply_flag(&mut self, word: &str) -> Result<(), String> {
        let settings = &mut self.settings;
        match word {
            "strict" => settings.mode = Mode::Strict,
            "relaxed" => settings.mode = Mode::Relaxed,
            "ro" => self.file_system.read_only = true,
            "rw" => self.file_system.read_only = false,
            "allow_other" => settings.allow_other = true,
            "allow_root" => settings.allow_root = true,
            "direct" => (settings.direct, self.direct.lends_to) = (true, None),
            "dev" => settings.dev = true,
            "nodev" => settings.dev = false,
            "suid" => settings.suid = true,
            "nosuid" => settings.suid = false,
            "exec" => settings.exec = true,
            "noexec" => settings.exec = false,
            "xattr" | "user_xattr" | "acl" => settings.attributes = true,
            "noxattr" => settings.attributes = false,
            "sync" => settings.sync = true,
            "async" => settings.sync = false,
            "dirsync" => settings.dirsync = true,
            // As for ext4.
            "discard" => self.file_system.discard = Discard::Batched,
            "nodiscard" => self.file_system.discard = Discard::None,
            // mount(8)'s words for what others may do imply these.
            "user" | "users" => (settings.dev, settings.suid, settings.exec) = (false, false, false),
            "owner" | "group" => (settings.dev, settings.suid) = (false, false),
            "nouuid" => self.nouuid = true,
            "nofail" => self.nofail = true,
            "remount" => self.remount = true,
            // Words of fstab that are for others, or what happens anyway.
            "defaults"
            | "auto"
            | "noauto"
            | "nouser"
            | "_netdev"
            | "default_permissions"
            | "atime"
            | "noatime"
            | "relatime"
            | "norelatime"
            | "strictatime"
            | "nostrictatime"
            | "diratime"
            | "nodiratime"
            | "lazytime"
            | "nolazytime"
            | "silent"
            | "loud"
            | "mand"
            | "nomand" => {}
            _ if word.starts_with("x-") || word.starts_with("X-") => {}
            _ => return Err(unknown(word)),
        }
        Ok(())
    }
}

/// Settings to change, as `tandemfs set` and a remount name them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Those of the file system.
    pub file_system: SettingsChange,
    /// How much to log.
    pub log_level: Option<LevelFilter>,
    /// Their names, each as often as it was named.
    pub names: Vec<&'static str>,
    /// What was adapted to this machine, in sentences.
    pub warnings: Vec<String>,
}

/// The setting that a word of `-o` is about, if it is about one.
pub fn setting_of(word: &str) -> Option<&'static str> {
    let name = match word {
        "discard" | "nodiscard" => "discard",
        _ => word.split_once('=').map_or(word, |(name, _)| name),
    };
    SETTINGS.into_iter().find(|setting| *setting == name)
}

/// Reads settings to change on a mount with these options, on a machine with so much memory. Later words win.
pub fn change<'a>(lists: impl IntoIterator<Item = &'a str>, in_force: &MountOptions, machine_bytes: u64) -> Result<Change, String> {
    let mut options = Options { file_system: in_force.clone(), ..Options::parse([], true)? };
    let mut names = Vec::new();
    for word in lists.into_iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
        let Some(name) = setting_of(word) else {
            let is_option = Options::parse(["remount", word], true).err() != Some(unknown(word));
            return Err(if is_option {
                format!("'{word}' cannot change while the mount is in use; unmount, and mount with it")
            } else {
                format!("unknown setting '{word}'; 'tandemfs set --help' lists them")
            });
        };
        if name != "discard" && !word.contains('=') {
            return Err(format!("'{word}' has no value; write {word}=VALUE"));
        }
        options.apply(word)?;
        names.push(name);
    }
    options.fit(machine_bytes);
    let is_named = |name| names.contains(&name);
    let found = &options.file_system;
    let file_system = SettingsChange {
        threshold: is_named("threshold").then_some(found.threshold),
        memory_bytes: is_named("memory").then_some(found.memory_bytes),
        write_back: is_named("write_back").then_some(found.write_back),
        write_back_percent: is_named("write_back_limit").then_some(found.write_back_percent),
        promote: is_named("promote").then_some(found.promote),
        read_ahead_bytes: is_named("read_ahead").then_some(found.read_ahead_bytes),
        in_place_bytes: is_named("in_place").then_some(found.in_place_bytes),
        modified_lines: is_named("modified_ratio").then_some(found.modified_lines),
        discard: is_named("discard").then_some(found.discard),
    };
    Ok(Change { file_system, log_level: options.log_level, names, warnings: options.warnings })
}

/// The number of a group, which is given by it or by a name.
pub fn group_number(option: &str, group: &str) -> Result<u32, String> {
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let number = group.parse().ok().or_else(|| names::number_of(&groups, group));
    number
        .ok_or_else(|| format!("{option}={group}: /etc/group has no group of this name; name one, or its number, or leave the option out"))
}

/// Names of policies.
pub const WRITE_BACK: [(&str, WriteBackPolicy); 3] =
    [("most-space", WriteBackPolicy::MostSpace), ("oldest", WriteBackPolicy::Oldest), ("coldest", WriteBackPolicy::Coldest)];
/// Names of what is promoted.
pub const PROMOTE: [(&str, Promote); 3] = [("on", Promote::Hot), ("off", Promote::Off), ("always", Promote::EveryRead)];
/// Names of ways to the media.
pub const UPDATES: [(&str, UpdateMode); 6] = [
    ("auto", UpdateMode::Auto),
    ("adaptive", UpdateMode::Adaptive),
    ("in-place", UpdateMode::Always(Update::InPlace)),
    ("pinned", UpdateMode::Always(Update::Pinned)),
    ("flush", UpdateMode::Always(Update::Flush)),
    ("non-temporal", UpdateMode::Always(Update::NonTemporal)),
];
/// Names of engines.
pub const ENGINES: [(&str, Engine); 3] = [("auto", Engine::Auto), ("journal", Engine::Journal), ("firmware", Engine::Firmware)];

/// Names of what is logged.
pub const LOG_LEVELS: [(&str, LevelFilter); 5] = [
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// Names of ways to discard.
pub const DISCARDS: [(&str, Discard); 2] = [("none", Discard::None), ("batched", Discard::Batched)];

/// Whether processes have home nodes that space comes from.
pub const NUMA: [(&str, bool); 2] = [("on", true), ("off", false)];

/// Whether emulated drives take the time of real ones.
pub const TIMING: [(&str, bool); 2] = [("on", true), ("off", false)];

/// The name of a value.
pub fn name_of<T: PartialEq>(names: &[(&str, T)], value: T) -> String {
    names.iter().find(|(_, named)| *named == value).map_or_else(String::new, |(name, _)| (*name).to_owned())
}

fn value_of<T: Copy>(option: &str, names: &[(&str, T)], word: &str) -> Result<T, String> {
    let known = || names.iter().map(|(name, _)| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    names.iter().find(|(name, _)| *name == word).map(|(_, value)| *value).ok_or_else(|| format!("{option}={word}: use one of {}", known()))
}

/// Options that the kernel shows of every FUSE mount, and that mount(8) hands back in a remount.
fn is_of_kernel(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    matches!(name, "user_id" | "group_id" | "max_read" | "blksize" | "rootmode" | "fd")
}

fn large_extents(value: &str) -> Result<u64, String> {
    let bytes = option_size("large_extents", value)?;
    let fits = bytes == 0 || bytes.is_power_of_two() && (4 << 20..=1 << 30).contains(&bytes);
    if fits { Ok(bytes) } else { Err(format!("large_extents={value}: a power of two from 4M to 1G is needed, or 0")) }
}

fn option_size(name: &str, value: &str) -> Result<u64, String> {
    size::parse(value).map_err(|error| format!("{name}: {error}"))
}

/// Fewer lines of a page than this are less than the share of it that a ratio names.
pub fn modified_lines(ratio: &str) -> Option<u32> {
    let (part, whole): (u32, u32) = match (ratio.split_once('/'), ratio.strip_suffix('%')) {
        (Some((part, whole)), _) => (part.parse().ok()?, whole.parse().ok()?),
        (None, Some(percent)) => (percent.parse().ok()?, 100),
        (None, None) => (ratio.parse().ok()?, 1),
    };
    let fits = (1..=u32::from(u16::MAX)).contains(&whole) && part <= whole;
    fits.then(|| (part * PAGE_LINES as u32).div_ceil(whole))
}

/// A size, or a share of the memory zone.
pub fn home_limit(value: &str) -> Result<HomeLimit, String> {
    let Some(percent) = value.strip_suffix('%') else { return option_size("home_limit", value).map(HomeLimit::Bytes) };
    let percent = percent.parse().ok().filter(|percent| *percent <= 100);
    percent.map(HomeLimit::Percent).ok_or_else(|| format!("home_limit={value}: a size, or a share from 0% to 100% is needed"))
}

fn bytes_32(name: &str, value: &str, bytes: u64) -> Result<u32, String> {
    u32::try_from(bytes).map_err(|_| format!("{name}={value}: less than 4G is possible"))
}

fn unknown(word: &str) -> String {
    format!("unknown mount option '{word}'; 'tandemfs mount --help' lists them")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options, String> {
        Options::parse([list], true)
    }

    #[test]
    fn nothing_said_is_relaxed_and_private() {
        let options = parse("").expect("reads");
        assert_eq!(options.settings.mode, Mode::Relaxed);
        assert_eq!(options.file_system, MountOptions::default());
        assert!(!options.settings.allow_other && !options.timing && options.settings.dev && options.settings.suid);
        let user = Options::parse([], false).expect("reads");
        assert!(!user.settings.dev && !user.settings.suid && user.settings.exec);
    }

    #[test]
    fn every_option_arrives() {
        let options = Options::parse(
            [
                "strict,threshold=128K,memory=1G,domain=adr",
                "write_back=coldest,write_back_limit=20%,promote=on,read_ahead=256K,engine=firmware,in_place=128,modified_ratio=1/4",
                "home_limit=25%,large_extents=1G,numa=off,numa_nodes=2",
                "update=flush,discard=batched,timing=on,threads=3,log=/tmp/l,log_level=debug,metrics=unix:/run/m,allow_other,allow_root,ro,nodev,nosuid,noexec,noxattr,sync,reserved=5%,nouuid",
            ],
            true,
        )
        .expect("reads");
        let file_system = MountOptions {
            read_only: true,
            threshold: Threshold::Bytes(128 << 10),
            memory_bytes: 1 << 30,
            write_back: WriteBackPolicy::Coldest,
            write_back_percent: 20,
            promote: Promote::Hot,
            read_ahead_bytes: 256 << 10,
            engine: Engine::Firmware,
            in_place_bytes: 128,
            modified_lines: 16,
            discard: Discard::Batched,
            home_limit: HomeLimit::Percent(25),
            large_extent_bytes: 1 << 30,
            numa: false,
            update: UpdateMode::Always(Update::Flush),
        };
        let settings = MountSettings {
            mode: Mode::Strict,
            read_only: true,
            allow_other: true,
            allow_root: true,
            dev: false,
            suid: false,
            exec: false,
            attributes: false,
            sync: true,
            threads: Some(3),
            reserved_percent: 5,
            ..MountSettings::default()
        };
        let expected = Options {
            file_system,
            settings,
            domain: Some(PersistenceDomain::Adr),
            nodes: Some(NodeSpec::Equal(2)),
            timing: true,
            log: Some("/tmp/l".into()),
            log_level: Some(LevelFilter::DEBUG),
            metrics: Some(Place::Unix("/run/m".into())),
            direct: Limits::default(),
            names_mode: true,
            nouuid: true,
            nofail: false,
            remount: false,
            warnings: Vec::new(),
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn later_words_win_and_words_of_fstab_are_let_through() {
        let options =
            parse("defaults,ro,rw,strict,relaxed,noauto,nofail,x-systemd.automount,x-a=b,_netdev,comment=c,uhelper=tandemfs,noatime")
                .expect("reads");
        assert!(!options.settings.read_only && !options.file_system.read_only);
        assert_eq!(options.settings.mode, Mode::Relaxed);
        assert!(!parse("users").expect("reads").settings.exec);
        assert_eq!(parse("threshold=auto").expect("reads").file_system.threshold, Threshold::Auto);
        assert_eq!(parse("threshold=0").expect("reads").file_system.threshold, Threshold::BlocksOnly);
        assert_eq!(parse("engine=firmware,engine=journal").expect("reads").file_system.engine, Engine::Journal);
        assert_eq!(parse("strict,atomic").expect("reads").settings.mode, Mode::StrictAtomic);
    }

    #[test]
    fn the_direct_door_has_limits() {
        let options = parse("direct,direct_spin=0,direct_clients=7").expect("reads");
        assert!(options.settings.direct && options.direct.spin.is_zero() && options.direct.clients == 7);
        let plain = parse("strict").expect("reads");
        assert!(!plain.settings.direct && plain.direct == Limits::default());
        for word in [
            "direct=no such group",
            "direct=",
            "direct=-1",
            "direct_spin=-1",
            "direct_spin=1000001",
            "direct_clients=0",
            "direct_clients=4097",
            "direct,strict,atomic",
            "direct,direct_stores=no such group",
            "direct_stores=0",
            "direct,strict,direct_stores=0",
        ] {
            assert!(parse(word).is_err_and(|sentence| sentence.contains("direct")), "{word}");
        }
    }

    #[test]
    fn the_memory_is_lent_to_a_group_that_is_named() {
        let options = parse("direct=54321").expect("reads");
        assert!(options.settings.direct && !options.settings.maps_for_stores && options.direct.lends_to == Some(54_321));
        assert_eq!(parse("direct=root").expect("reads").direct.lends_to, Some(0));
        assert_eq!(parse("direct=54321,direct").expect("reads").direct.lends_to, None, "the later word");
        assert_eq!(parse("direct=54321").expect("reads").direct.stores_by, None, "for loads alone");
        let options = parse("direct,direct_stores=54321,relaxed").expect("reads");
        assert_eq!((options.direct.lends_to, options.direct.stores_by), (None, Some(54_321)));
        assert!(!options.settings.maps_for_stores, "who has no zone for loads maps nothing");
        assert!(parse("direct=54321,direct_stores=54321,relaxed").expect("reads").settings.maps_for_stores);
        let groups = "root:x:0:\nstaff:x:50:a,b\nbroken:x\nodd:x:y:\n";
        assert_eq!([names::number_of(groups, "staff"), names::number_of(groups, "root")], [Some(50), Some(0)]);
        assert!(["sta", "broken", "odd", "", "x"].iter().all(|name| names::number_of(groups, name).is_none()));
    }

    #[test]
    fn a_ratio_is_a_number_of_lines() {
        for (ratio, lines) in [("1/8", 8), ("0", 0), ("1", 64), ("1/1", 64), ("100%", 64), ("10%", 7), ("1/64", 1), ("5%", 4)] {
            assert_eq!(parse(&format!("modified_ratio={ratio}")).expect("reads").file_system.modified_lines, lines, "{ratio}");
        }
    }

    #[test]
    fn a_remount_knows_whether_a_mode_was_said() {
        let options = parse("remount,ro,dirsync").expect("reads");
        assert!(options.remount && !options.names_mode && options.settings.read_only && options.settings.dirsync);
        assert!(parse("remount,strict").expect("reads").names_mode);
    }

    #[test]
    fn more_than_the_machine_has_is_lowered_with_a_sentence() {
        let fitted = |list: &str| {
            let mut options = parse(list).expect("reads");
            options.fit(1 << 30);
            (options.file_system.memory_bytes, options.warnings)
        };
        assert_eq!(fitted("memory=512M"), (512 << 20, vec![]));
        let (memory_bytes, warnings) = fitted("memory=1000G");
        assert_eq!((memory_bytes, warnings.len()), (1 << 30, 1));
        assert!(warnings[0].contains("1000 GiB") && warnings[0].contains("1 GiB"), "{warnings:?}");
        let (_, warnings) = fitted("read_ahead=3G");
        assert!(warnings.len() == 1 && warnings[0].contains("the limit is 8 MiB"), "{warnings:?}");
        assert_eq!(fitted("memory=8M"), (8 << 20, vec![]), "the default is lowered in silence");
    }

    #[test]
    fn a_change_has_what_it_names_alone() {
        let in_force = MountOptions { promote: Promote::Hot, ..MountOptions::DEFAULT };
        let changed = |lists: &[&str]| change(lists.iter().copied(), &in_force, 1 << 30);
        assert_eq!(changed(&[]), Ok(Change::default()));
        let one = changed(&["threshold=auto"]).expect("reads");
        assert_eq!(one.file_system, SettingsChange { threshold: Some(Threshold::Auto), ..SettingsChange::default() });
        assert_eq!((one.log_level, one.names), (None, vec!["threshold"]));
        let all = "threshold=128K,write_back=oldest,write_back_limit=20%,promote=off,read_ahead=0,in_place=0,modified_ratio=1/4,discard,memory=64M,memory=9G";
        let all = changed(&[all, "log_level=warn"]).expect("reads");
        let expected = SettingsChange {
            threshold: Some(Threshold::Bytes(128 << 10)),
            memory_bytes: Some(1 << 30),
            write_back: Some(WriteBackPolicy::Oldest),
            write_back_percent: Some(20),
            promote: Some(Promote::Off),
            read_ahead_bytes: Some(0),
            in_place_bytes: Some(0),
            modified_lines: Some(16),
            discard: Some(Discard::Batched),
        };
        assert_eq!((all.file_system, all.log_level), (expected, Some(LevelFilter::WARN)));
        assert!(all.warnings.len() == 1 && all.warnings[0].contains("9 GiB"), "{:?}", all.warnings);
        let mut named = all.names;
        named.dedup();
        named.sort_unstable();
        let mut settings = SETTINGS;
        settings.sort_unstable();
        assert_eq!(named, settings, "every setting can be named");
        assert_eq!(changed(&["nodiscard"]).expect("reads").file_system.discard, Some(Discard::None));
    }

    #[test]
    fn a_change_that_cannot_be_is_refused_in_a_sentence() {
        for (word, said) in [
            ("threshold=many", "threshold: 'many'"),
            ("memory=1K", "memory=1K: at least 8 MiB"),
            ("write_back_limit=91", "write_back_limit=91: a share from 1% to 90%"),
            ("log_level=loud", "log_level=loud: use one of 'error'"),
            ("promote", "'promote' has no value; write promote=VALUE"),
            ("threads=3", "'threads=3' cannot change while the mount is in use"),
            ("timing=on", "'timing=on' cannot change while the mount is in use"),
            ("strict", "'strict' cannot change while the mount is in use"),
            ("direct_stores=0", "'direct_stores=0' cannot change while the mount is in use"),
            ("ro", "'ro' cannot change while the mount is in use"),
            ("colour=red", "unknown setting 'colour=red'; 'tandemfs set --help'"),
            ("threads=0", "'threads=0' cannot change while the mount is in use"),
        ] {
            let sentence = change(["promote=on", word], &MountOptions::DEFAULT, 1 << 30).expect_err(word);
            assert!(sentence.contains(said), "{word}: {sentence}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (list, named) in [
            ("strickt", "'strickt'"),
            ("colour=red", "'colour=red'"),
            ("threshold=many", "'many'"),
            ("threshold=8G", "8G"),
            ("memory=", "memory"),
            ("memory=1K", "8 MiB"),
            ("memory=8388607", "8 MiB"),
            ("user_id=5", "'user_id=5'"),
            ("write_back=newest", "'coldest'"),
            ("write_back_limit=0", "1%"),
            ("promote=maybe", "'always'"),
            ("update=fast", "'adaptive'"),
            ("read_ahead=8G", "8G"),
            ("engine=steam", "'journal'"),
            ("discard=always", "'batched'"),
            ("in_place=5K", "4K"),
            ("home_limit=101%", "100%"),
            ("home_limit=few", "'few'"),
            ("large_extents=2M", "4M"),
            ("large_extents=12M", "power of two"),
            ("numa=maybe", "'off'"),
            ("numa_nodes=0", "neither a number"),
            ("numa_nodes=3M:0/*:1", "2 MiB"),
            ("modified_ratio=3/2", "1/8"),
            ("modified_ratio=1/0", "1/8"),
            ("modified_ratio=few", "1/8"),
            ("domain=mine", "'mine'"),
            ("timing=fast", "timing=fast"),
            ("metrics=localhost:80", "'localhost:80'"),
            ("metrics=unix:m", "absolute"),
            ("threads=0", "threads=0"),
            ("atomic", "'strict'"),
        ] {
            let error = parse(list).expect_err(list);
            assert!(error.contains(named), "{list}: {error}");
        }
    }
}

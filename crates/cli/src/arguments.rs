//! The command line. Scripts depend on it, so existing commands and options stay.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use uuid::Uuid;

use crate::size;

/// The whole line.
#[derive(Debug, Parser)]
#[command(
    name = "tandemfs",
    version,
    about = "A file system for hybrid SSDs: drives with both load/store and block access",
    max_term_width = 80,
    after_help = "A DEVICE is the image of an emulated drive, or memory=PATH,block=PATH for a pair of devices (either may be a regular file).
\
                  Sizes take K, M, G and T (binary).\n\n\
                  A first try, without any hardware:\n  \
                  tandemfs device create disk.image --profile off --memory 256M --block 1G\n  \
                  tandemfs mkfs disk.image\n  \
                  tandemfs mount disk.image /mnt\n  \
                  tandemfs umount /mnt"
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make and show emulated drives
    Device {
        /// The command.
        #[command(subcommand)]
        command: DeviceCommand,
    },
    /// Format a device
    Mkfs(MkfsArguments),
    /// Mount a device; returns when the mount is usable
    Mount(MountArguments),
    /// Unmount; returns when everything is on the device and the daemon has ended
    #[command(visible_alias = "unmount")]
    Umount(UmountArguments),
    /// Run a program, and what it starts, by the direct door of a mount
    #[command(after_help = RUN_HELP)]
    Run(RunArguments),
    /// Check, and optionally repair, a device that is not mounted
    #[command(after_help = "Exit status, as of fsck(8): 0 clean, 1 errors repaired, 4 errors left, 8 could not run, 2 usage.")]
    Check(CheckArguments),
    /// Copy out what can be read of a device, whatever its state; the device is only read
    Restore(RestoreArguments),
    /// Grow a file system, unmounted or in use, or shrink an unmounted one; also the emulated drive that it is on
    Resize(ResizeArguments),
    /// Give a file system that is not mounted the features of this build that it lacks
    Upgrade(UpgradeArguments),
    /// Show or set the label of a device or a mount
    Label(LabelArguments),
    /// Show or change settings of a mount while it is in use
    #[command(after_help = SET_HELP)]
    Set(SetArguments),
    /// Show the UUID of a device or a mount, or change that of a device
    Uuid(UuidArguments),
    /// Tell which TandemFS, or which half of one, a single device or file holds
    #[command(after_help = "Exit status: 0 found, 1 nothing found, 2 usage. Reads without a lock, also while the device is mounted.")]
    Probe(ProbeArguments),
    /// Show the properties of a device or a mount
    Info(InfoArguments),
    /// Show the counters of a mount
    Stats(StatsArguments),
    /// Show what is unusual of a device or a mount and of the machine, and what to do
    #[command(after_help = DOCTOR_HELP)]
    Doctor(DoctorArguments),
    /// Show what a mount does at present: operations, their times, zones, write-back, and programs at the direct door
    #[command(after_help = TOP_HELP)]
    Top(TopArguments),
    /// Record the operations of a mount into a file, which 'tandemfs-bench replay' runs again
    #[command(after_help = TRACE_HELP)]
    Trace(TraceArguments),
    /// Read and verify everything on a mounted device, while it is in use
    #[command(after_help = "Exit status: 0 clean, 4 damage found, 8 could not run, 2 usage. Ending the command ends the scrub.")]
    Scrub(ScrubArguments),
    /// Tell the drive which space of a mount is free, as fstrim does; an image gives it back to its disk
    Trim(TrimArguments),
    /// Move metadata of a mount together, so that small writes get the space of what was removed
    #[command(after_help = "The mount does this by itself when the memory zone gets short, and slowly when it is idle.")]
    Compact(CompactArguments),
    /// Show or set where files lie: in the memory zone or in the block zone
    Home {
        /// What to do.
        #[command(subcommand)]
        command: HomeCommand,
    },
    /// Show or set limits of users, groups and projects on the space of each zone and on inodes
    Quota {
        /// What to do.
        #[command(subcommand)]
        command: QuotaCommand,
    },
    /// Show or set which files are to lie in aligned extents of 2 MiB, which one huge page can map
    Aligned {
        /// What to do.
        #[command(subcommand)]
        command: AlignedCommand,
    },
    /// Rewrite files into aligned extents of 2 MiB, while they are in use
    #[command(after_help = DEFRAG_HELP)]
    Defrag(DefragArguments),
    /// Show on-device structures
    Dump(DumpArguments),
    /// Print a completion script for a shell
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them to a directory
    Man {
        /// Write one page for each command to this directory.
        #[arg(long, value_name = "DIR")]
        output: Option<PathBuf>,
    },
}

/// Commands on emulated drives.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Make an emulated drive in a sparse image file
    Create(DeviceCreateArguments),
    /// Show an emulated drive or an attached pair
    Info(DeviceInfoArguments),
    /// Measure latency and bandwidth of an emulated drive and compare them with its profile
    #[command(after_help = DEVICE_BENCH_HELP)]
    Bench(DeviceBenchArguments),
    /// Show lifetime statistics of an emulated drive with firmware (traffic, write amplification, wear, fill of its log) or with a model of media
    Stats(DeviceStatsArguments),
    /// List the profiles that an emulated drive can have
    Profiles {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// `device create`.
#[derive(Debug, Args)]
pub struct DeviceCreateArguments {
    /// The image to create. An existing file is refused.
    pub image: PathBuf,
    /// The drive to emulate; `tandemfs device profiles` lists them.
    #[arg(long, value_name = "NAME", default_value = "off")]
    pub profile: String,
    /// Size of the memory zone (loads and stores). Required unless the profile has firmware and thereby a default size.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,
    /// Size of the block zone (block commands). Required in the same cases as --memory.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub block: Option<u64>,
    /// Size of the write log.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = WITH_FIRMWARE)]
    pub write_log: Option<u64>,
    /// Size of the page cache.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = WITH_FIRMWARE)]
    pub cache: Option<u64>,
    /// Replacement policy of the page cache.
    #[arg(long, value_enum, help_heading = WITH_FIRMWARE)]
    pub cache_management: Option<CacheManagement>,
    /// Time to read and to program a flash page, in us.
    #[arg(long, value_name = "READ/PROGRAM", value_parser = parse_latency, help_heading = WITH_FIRMWARE)]
    pub flash_latency: Option<(u32, u32)>,
    /// Channels of the flash.
    #[arg(long, value_name = "COUNT", help_heading = WITH_FIRMWARE)]
    pub channels: Option<u32>,
    /// Over-provisioning: flash beyond the capacity.
    #[arg(long, value_name = "PERCENT", help_heading = WITH_FIRMWARE)]
    pub over_provisioning: Option<u32>,
    /// Policy by which garbage collection chooses blocks.
    #[arg(long, value_enum, help_heading = WITH_FIRMWARE)]
    pub garbage_collection: Option<GarbageCollection>,
    /// Model CPU caches and persistent memory: count what stores cost the media, and take the time of that (profiles optane and romefs-b, mounts with
    /// timing=on).
    #[arg(long, conflicts_with = "no_timing", help_heading = WITH_MEDIA)]
    pub media_model: bool,
    /// Size of the modelled CPU cache: whole sets.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "media_model", help_heading = WITH_MEDIA)]
    pub cpu_cache: Option<u64>,
    /// DIMMs, which take turns every 4 KiB.
    #[arg(long, value_name = "COUNT", requires = "media_model", help_heading = WITH_MEDIA)]
    pub dimms: Option<u32>,
    /// A power failure does not lose what is in CPU caches (eADR, CXL Global Persistent Flush): domain gpf.
    #[arg(long, requires = "media_model", help_heading = WITH_MEDIA)]
    pub persistent_caches: bool,
    /// Omit the profile's timing model: the drive is as fast as the host.
    #[arg(long)]
    pub no_timing: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const WITH_MEDIA: &str = "Options of persistent memory";
const WITH_FIRMWARE: &str = "Options of drives with firmware";

/// Replacement policy of a drive's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheManagement {
    /// The host manages the cache, which is memory, by MOVE commands (profile hybrid-cache).
    Host,
    /// The drive evicts by clock (second chance).
    Clock,
    /// The drive evicts the least recently used page.
    Lru,
}

/// Policy by which garbage collection chooses blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GarbageCollection {
    /// The block with the fewest valid pages.
    Greedy,
    /// The block with the best ratio of freed space and age to cost.
    CostBenefit,
}

/// `40/60`: microseconds to nanoseconds.
fn parse_latency(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("'{text}' is not READ/PROGRAM in us; write two numbers such as 40/60");
    let nanoseconds = |part: &str| match part.parse::<f64>() {
        Ok(us) if (0.0..=1e6).contains(&us) => Ok((us * 1000.0).round() as u32),
        _ => Err(wrong()),
    };
    let (read, program) = text.split_once('/').ok_or_else(wrong)?;
    Ok((nanoseconds(read)?, nanoseconds(program)?))
}

const DEVICE_BENCH_HELP: &str = "Overwrites the end of both zones of the drive. So a drive that contains a TandemFS is refused \
unless --force is given.

Sizes range from one line (byte path) to 64 KiB (block path), with 1 to 64 concurrent requests. The claims for \
writes hold while the drive's write buffer has room, the claims for loads if the load needs no flash read.";

/// `device bench`.
#[derive(Debug, Args)]
pub struct DeviceBenchArguments {
    /// The image of the drive.
    pub image: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Use virtual time: nothing waits, the model only adds up durations.
    #[arg(long = "virtual", conflicts_with = "no_timing")]
    pub virtual_time: bool,
    /// Without the timing model: measures the emulator itself.
    #[arg(long)]
    pub no_timing: bool,
    /// Measure the index of a full write log of this size in host memory. Writes nothing to the drive.
    #[arg(long, conflicts_with_all = ["virtual_time", "no_timing"])]
    pub index: bool,
    /// Measure even if the drive contains a file system, which is then lost.
    #[arg(short, long)]
    pub force: bool,
}

/// `device stats`.
#[derive(Debug, Args)]
pub struct DeviceStatsArguments {
    /// The image of the drive.
    pub image: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `device info`.
#[derive(Debug, Args)]
pub struct DeviceInfoArguments {
    /// The device.
    pub device: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `mkfs`.
#[derive(Debug, Args)]
pub struct MkfsArguments {
    /// The device to format.
    pub device: String,
    /// Size of a data block: a power of two from 4K to 1M.
    #[arg(short = 'b', long, value_name = "SIZE", default_value = "64K", value_parser = size::parse)]
    pub block_size: u64,
    /// Checksums of file data. Metadata always has them.
    #[arg(long, value_enum, default_value = "crc32c")]
    pub checksum: Checksum,
    /// Label of the file system, up to 64 bytes.
    #[arg(short = 'L', long, value_name = "TEXT", default_value = "")]
    pub label: String,
    /// Format even if the device contains data, which is then lost.
    #[arg(short, long)]
    pub force: bool,
    /// Do not discard the block zone first.
    #[arg(long)]
    pub no_discard: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Checksums of file data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Checksum {
    /// CRC-32C of every sector and every log.
    Crc32c,
    /// None.
    None,
}

/// `mount`.
#[derive(Debug, Default, Args)]
#[command(after_help = crate::mount_options::HELP)]
pub struct MountArguments {
    /// The device to mount.
    pub device: String,
    /// The directory to mount it on.
    pub mountpoint: PathBuf,
    /// Options, separated by commas; see below.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", allow_hyphen_values = true)]
    pub options: Vec<String>,
    /// Stay in the foreground and log to standard error.
    #[arg(short, long)]
    pub foreground: bool,
    /// Log more.
    #[arg(short, long)]
    pub verbose: bool,
    /// Read the options and do nothing.
    #[arg(long, hide = true)]
    pub fake: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The process behind a mount: standard output is the pipe to the command that waits for it.
    #[arg(long, hide = true)]
    pub daemon: bool,
}

const RUN_HELP: &str = "The mount needs -o direct. Where the door is not there, or cannot be entered, the program runs by the mount, and a sentence says \
so. Static and set-user-id programs go by the mount.\n\n\
Exit status: that of the program; 127 if there is no such program, 126 if it cannot be run.";

/// `run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// The mount; otherwise the one of the working directory, or the only one.
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Open no file by the door alone: every descriptor is one of the mount. For programs with code made at run time that calls the kernel past libc.
    #[arg(long, conflicts_with = "placeholders")]
    pub real: bool,
    /// Open files that are written by the door alone where that can be: writes at the offset, fsync and close go by the door as well (default).
    #[arg(long)]
    pub placeholders: bool,
    /// Let the program store to the drive's memory itself where that is lent (mount options direct_stores=GROUP and relaxed): overwrites of files in the
    /// memory zone need no call of the daemon then, and shared mappings are of their own pages. A stray store of the program can destroy the file system, and while it runs the device cannot be mounted
    /// again after the daemon's end.
    #[arg(long)]
    pub stores: bool,
    /// Print at the end which calls went which way, and why, to standard error.
    #[arg(long)]
    pub report: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `umount`.
#[derive(Debug, Default, Args)]
pub struct UmountArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Detach the mount now and return; the daemon ends after the last open file is closed.
    #[arg(long, conflicts_with = "force")]
    pub lazy: bool,
    /// Disconnect the daemon, which may hang, and unmount even if the mount is in use: calls of its users fail, unsynced data is
    /// lost. Root only; for other users the same as --lazy.
    #[arg(long)]
    pub force: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// If it is in use, make it read-only instead (`umount -r`).
    #[arg(skip)]
    pub or_read_only: bool,
}

/// `check`.
#[derive(Debug, Default, Args)]
#[command(
    after_help = "Exit status, as of fsck(8): 0 no errors, 1 errors repaired, 4 errors left, 8 not checked, 16 invalid command line \
(of fsck.tandemfs; 2 of tandemfs check).\n\nWhat --repair cannot read it gives up: reading such parts of files fails, and the report lists \
path, offset and length. Inodes without a name go to the directory that they name, or to /lost+found, as #NUMBER."
)]
pub struct CheckArguments {
    /// The device to check.
    pub device: String,
    /// Repair all metadata. What cannot be read of it is given up and listed.
    #[arg(long, short = 'y', conflicts_with_all = ["preen", "undo_apply"])]
    pub repair: bool,
    /// With --repair, make zeros of file data that do not match their
    /// checksums, and list them. Without it they stay, and reading them fails.
    #[arg(long, conflicts_with_all = ["preen", "undo_apply"])]
    pub zero_data: bool,
    /// Before --repair, rebuild what it cannot repair: the segment table from
    /// what the units contain, a superblock of two damaged copies, inodes whose
    /// first line is lost.
    #[arg(long, conflicts_with_all = ["preen", "undo_apply"])]
    pub rescue: bool,
    /// Repair what loses nothing; the rest is left (exit status 4).
    #[arg(long, short = 'p', conflicts_with = "undo_apply")]
    pub preen: bool,
    /// Report what --repair would do, or with -p what -p would do; write nothing.
    #[arg(long, short = 'n', conflicts_with = "undo_apply")]
    pub dry_run: bool,
    /// Do not read file data.
    #[arg(long)]
    pub metadata_only: bool,
    /// Before a repair changes anything, write the old bytes to this new file.
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub undo: Option<std::path::PathBuf>,
    /// Put back the bytes that --undo wrote to this file, and check nothing.
    #[arg(long, value_name = "FILE", conflicts_with = "undo")]
    pub undo_apply: Option<std::path::PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 everything was copied, 1 everything was read but the target refused owners, modes or the like, 4 part of \
it is damaged or missing and listed, 8 nothing was restored or the run ended early, 2 usage.\n\nBytes of files that do not match their \
checksums are left as holes, and the report lists path, offset and length. What has no name left goes to lost+found, as #NUMBER. A journal \
that waits is replayed in memory. As another user than root, what the target refuses is said: owners, devices, attributes. If the run was \
interrupted or the target is full, the same command with --force goes on: files that have their size and time of change count as complete."
)]
pub struct RestoreArguments {
    /// The device to read.
    pub device: String,
    /// The directory that gets the files; made if it does not exist.
    pub directory: PathBuf,
    /// Restore only this inode, as #NUMBER, and what is below it.
    #[arg(long, value_name = "NUMBER")]
    pub inode: Option<u64>,
    /// Copy also bytes that do not match their checksums. They are listed all the same.
    #[arg(long)]
    pub ignore_errors: bool,
    /// Read and verify everything, write nothing.
    #[arg(long, short = 'n')]
    pub dry_run: bool,
    /// Restore into a directory that is not empty; go on with an interrupted run. Files with the same names are replaced.
    #[arg(short, long)]
    pub force: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `resize`.
#[derive(Debug, Args)]
#[command(after_help = "Without sizes the file system grows to the current sizes of its devices. With one size the other zone keeps its \
size. An emulated drive without firmware grows in its file; a real pair must have the space already. A smaller size moves what lies behind \
the new end and then shrinks the zone; what does not fit is refused. A power failure leaves the old or the new sizes. A mount grows while it \
is in use; what cannot be done in use is refused, with the reason. Its daemon answers root, and the user who mounted.")]
pub struct ResizeArguments {
    /// An unmounted device, or a mount point.
    #[arg(value_name = "DEVICE|MOUNTPOINT")]
    pub place: String,
    /// New size of the memory zone.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,
    /// New size of the block zone.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub block: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `upgrade`.
#[derive(Debug, Args)]
#[command(after_help = "Mounts never add features: builds that do not know one mount the file system read-only, or ignore the feature; \
--list says which. The file system must be whole and cleanly unmounted. A command that is interrupted has added some features; \
repeated, it adds the others. There is no way back.")]
pub struct UpgradeArguments {
    /// The device, not mounted.
    pub device: String,
    /// List all features, and whether the file system has them.
    #[arg(short, long, conflicts_with = "dry_run")]
    pub list: bool,
    /// Say what would be gained; write nothing.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `label`.
#[derive(Debug, Args)]
pub struct LabelArguments {
    /// An unmounted device, or a mount point.
    #[arg(value_name = "DEVICE|MOUNTPOINT")]
    pub place: String,
    /// The new label, up to 64 bytes; "" removes it. Without this argument the label is shown.
    pub text: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const SET_HELP: &str = "\
Settings, with values as 'tandemfs mount -o' has them (see its --help):
  threshold, write_back, write_back_limit, promote, read_ahead, in_place,
  modified_ratio, discard, memory, log_level

Those of one command change together, or none does. They hold from the next
operation on until the unmount; for later mounts write them to /etc/fstab.
threshold=auto measures both paths of the drive again. A lower memory= is given
back before the command returns. All other options need a new mount.

  tandemfs set /mnt                           what can be changed, as it is now
  tandemfs set /mnt memory=1G write_back_limit=20%
  mount -o remount,memory=1G /mnt             the same by mount(8), as root

Exit status: 0 changed or shown, 1 refused by the mount, 2 an invalid value.";

/// `set`.
#[derive(Debug, Args)]
pub struct SetArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Settings to change; without one, those that can be changed are shown.
    #[arg(value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `uuid`.
#[derive(Debug, Args)]
#[command(
    after_help = "A copy of an image or a pair has the UUID of its original; both can be mounted at once after one of them has another UUID. \
Changing it needs a file system that is unmounted and clean. It does not change the UUID of the pair, which seeds all checksums."
)]
pub struct UuidArguments {
    /// A device, or a mount point (only to show its UUID).
    #[arg(value_name = "DEVICE|MOUNTPOINT")]
    pub place: String,
    /// The new UUID, or 'random'. Without this argument the UUID is shown.
    #[arg(value_name = "random|UUID", value_parser = crate::uuid::parse)]
    pub uuid: Option<Uuid>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `probe`.
#[derive(Debug, Args)]
pub struct ProbeArguments {
    /// One device: a block half, a memory half, or an image.
    pub device: String,
    /// Print the variables that blkid -o udev prints, for rules of udev.
    #[arg(long, conflicts_with = "json")]
    pub udev: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `info`.
#[derive(Debug, Args)]
pub struct InfoArguments {
    /// A device or a mount point.
    #[arg(value_name = "DEVICE|MOUNTPOINT")]
    pub place: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

const DOCTOR_HELP: &str = "Notes are good to know and do not change the exit status. Findings by name: docs/ADMINISTRATION.md.\n\n\
Exit status: 0 nothing is unusual, 4 something is, 8 could not look, 2 usage.";

/// `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// A device or a mount point.
    #[arg(value_name = "DEVICE|MOUNTPOINT")]
    pub place: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `stats`.
#[derive(Debug, Args)]
pub struct StatsArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Print the OpenMetrics text format, as Prometheus reads it.
    #[arg(long, conflicts_with_all = ["json", "reset"])]
    pub openmetrics: bool,
    /// Set the counters to zero after showing them.
    #[arg(long)]
    pub reset: bool,
}

const TOP_HELP: &str = "Keys: q quit; Tab, Left, Right the other table; Up, Down choose a row; s sort by the next column; Enter show the chosen \
client alone, Esc all of the mount again.\n\n\
Times are those inside of the daemon, of one operation in sixteen. What the columns and the fields of the JSON mean: docs/ADMINISTRATION.md.\n\n\
Exit status: 0 ended by a key, or printed; 1 the daemon does not answer, or no client has that process id; 2 no terminal and no --once.";

fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("'{text}' is no number of seconds from 0.1 to 3600")),
    }
}

/// `top`.
#[derive(Debug, Args)]
pub struct TopArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Show operations and data of this client of the direct door alone.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i64).range(1..))]
    pub client: Option<i64>,
    /// How long each look lasts.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub interval: Duration,
    /// Look once, print it as text and end; needs no terminal.
    #[arg(long)]
    pub once: bool,
    /// Print JSON.
    #[arg(long, requires = "once")]
    pub json: bool,
}

const TRACE_HELP: &str = "Records who does what, where, with what result and how long it takes, by the mount and by the direct door, until SIGINT or \
SIGTERM, or as long as is named. What programs do in memory of their own, and what the kernel answers from its caches, does not come to the daemon. \
The file has names, and no bytes of files: docs/TRACE.md.\n\n\
Exit status: 0 recorded, or that of COMMAND; 1 failed; 2 usage.";

/// `trace`.
#[derive(Debug, Args)]
pub struct TraceArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The file to write. An existing one is refused.
    pub file: PathBuf,
    /// End after so long.
    #[arg(short, long, value_name = "SECONDS", value_parser = parse_interval)]
    pub seconds: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Run a command, and end with it.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `scrub`.
#[derive(Debug, Args)]
pub struct ScrubArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Read at most this much in a second.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub limit: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `trim`.
#[derive(Debug, Args)]
pub struct TrimArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Leave out contiguous free space that is shorter than this.
    #[arg(short, long, value_name = "SIZE", default_value = "0", value_parser = size::parse)]
    pub minimum: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `compact`.
#[derive(Debug, Args)]
pub struct CompactArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Commands on quota.
#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// Set limits of a user, a group or a project
    #[command(after_help = QUOTA_SET_HELP, override_usage = "tandemfs quota set [OPTIONS] <--user|--group|--project> <MOUNTPOINT>")]
    Set(QuotaSetArguments),
    /// Show what a user, a group or a project uses, and its limits
    #[command(override_usage = "tandemfs quota get [OPTIONS] <--user|--group|--project> <MOUNTPOINT>")]
    Get(QuotaGetArguments),
    /// Show what everybody uses, and all limits
    Report(QuotaReportArguments),
    /// Set how long usage may stay above soft limits
    Grace(QuotaGraceArguments),
    /// Make a directory tree a project, whose usage is counted together
    #[command(after_help = QUOTA_PROJECT_HELP)]
    Project(QuotaProjectArguments),
}

const QUOTA_SET_HELP: &str = "\
Limits that are not named stay; 0 removes one. Usage may be above a soft limit
for the grace period (7 days, see 'tandemfs quota grace'), and is never above a
hard one. Root, and who has CAP_SYS_RESOURCE, is not limited. With the first
limit of a file system everything is counted, and builds that do not know limits
refuse the device from then on.";

const QUOTA_PROJECT_HELP: &str = "\
What is made in the tree later belongs to the project. Files of other projects
are not moved or linked into it (EXDEV): mv then copies. Project 0 is none.";

/// A user, a group or a project.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct QuotaSubject {
    /// A user, by name or number.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// A group, by name or number.
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// A project, by number.
    #[arg(long, value_name = "ID")]
    pub project: Option<u32>,
}

/// `quota set`.
#[derive(Debug, Args)]
pub struct QuotaSetArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Whose limits.
    #[command(flatten)]
    pub subject: QuotaSubject,
    /// Soft limit of bytes in the memory zone.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory_soft: Option<u64>,
    /// Hard limit of bytes in the memory zone.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory_hard: Option<u64>,
    /// Soft limit of bytes in the block zone.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub block_soft: Option<u64>,
    /// Hard limit of bytes in the block zone.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub block_hard: Option<u64>,
    /// Soft limit of inodes.
    #[arg(long, value_name = "NUMBER")]
    pub inodes_soft: Option<u64>,
    /// Hard limit of inodes.
    #[arg(long, value_name = "NUMBER")]
    pub inodes_hard: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `quota get`.
#[derive(Debug, Args)]
pub struct QuotaGetArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Whose usage and limits.
    #[command(flatten)]
    pub subject: QuotaSubject,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `quota report`.
#[derive(Debug, Args)]
pub struct QuotaReportArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `quota grace`.
#[derive(Debug, Args)]
pub struct QuotaGraceArguments {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Of which limits.
    #[arg(value_parser = ["user", "group", "project"])]
    pub kind: String,
    /// How long: 7d, 12h, 30m, 90s.
    #[arg(value_parser = crate::quota::parse_time)]
    pub time: u32,
}

/// `quota project`.
#[derive(Debug, Args)]
pub struct QuotaProjectArguments {
    /// A directory, or a file, of a mount.
    pub path: PathBuf,
    /// The project; 0 for none.
    pub project: u32,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Commands on homes.
#[derive(Debug, Subcommand)]
pub enum HomeCommand {
    /// Show the home of files and directories, and how much is still to move there
    Get(HomeGetArguments),
    /// Set the home of files, and of directories for what is made in them
    #[command(after_help = HOME_SET_HELP)]
    Set(HomeSetArguments),
}

const HOME_SET_HELP: &str = "\
auto    the file system chooses: what is new goes to the block zone, small
        changes to the memory zone until they are written back
memory  the memory zone, while it has room (mount option home_limit)
block   the block zone

What a file holds already moves in the background; --wait waits for it. What a
directory holds already keeps its home. The home is the extended attribute
user.tandemfs.home, which 'cp -a', 'rsync -X' and 'tar --xattrs' copy.";

/// `home get`.
#[derive(Debug, Args)]
pub struct HomeGetArguments {
    /// Files and directories of a mount.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `home set`.
#[derive(Debug, Args)]
pub struct HomeSetArguments {
    /// The home.
    #[arg(value_parser = ["auto", "memory", "block"])]
    pub home: String,
    /// Files and directories of a mount.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Wait until what the files hold is there.
    #[arg(long)]
    pub wait: bool,
}

/// Commands on aligned files.
#[derive(Debug, Subcommand)]
pub enum AlignedCommand {
    /// Show which files and directories are to be aligned, and how much is still to be rewritten
    Get(AlignedGetArguments),
    /// Set whether files are to be aligned, and what is made in directories from now on
    #[command(after_help = ALIGNED_SET_HELP)]
    Set(AlignedSetArguments),
}

const ALIGNED_SET_HELP: &str = "\
yes  each 2 MiB of the file gets one aligned extent with its first byte, so a
     file takes space in steps of 2 MiB
no   as all files: whole pieces of 2 MiB that are written or allocated at once
     get aligned extents, and those that small writes complete are moved

What a file holds already is rewritten in the background; --wait waits for it.
What a directory holds already stays as it is. Files that are made in it get
its hint, subdirectories do not. The hint is the extended attribute
user.tandemfs.aligned, which 'cp -a', 'rsync -X' and 'tar --xattrs' copy.";

const DEFRAG_HELP: &str = "\
Of a directory, all files below it are rewritten that have 2 MiB or more. Each
file gets the hint of 'tandemfs aligned set yes' and keeps it, so the mount
goes on by itself after an interruption, also after a crash.

Exit status: 0 all is aligned, 1 something is not, and why.";

/// `aligned get`.
#[derive(Debug, Args)]
pub struct AlignedGetArguments {
    /// Files and directories of a mount.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `aligned set`.
#[derive(Debug, Args)]
pub struct AlignedSetArguments {
    /// Whether they are to be aligned.
    #[arg(value_parser = ["yes", "no"])]
    pub aligned: String,
    /// Files and directories of a mount.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Wait until what the files hold is aligned.
    #[arg(long)]
    pub wait: bool,
}

/// `defrag`.
#[derive(Debug, Args)]
pub struct DefragArguments {
    /// Files and directories of a mount.
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
}

/// `dump`.
#[derive(Debug, Args)]
pub struct DumpArguments {
    /// The device.
    pub device: String,
    /// What to show: superblock, segments, journal, inode NUMBER, or tree [PATH].
    #[arg(value_name = "WHAT", required = true, num_args = 1..)]
    pub what: Vec<OsString>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn latencies_are_two_numbers() {
        assert_eq!(parse_latency("40/60"), Ok((40_000, 60_000)));
        assert_eq!(parse_latency("2.5/0"), Ok((2_500, 0)));
        for text in ["40", "40/", "/60", "a/b", "-1/3", "1/1e9", "nan/1"] {
            assert!(parse_latency(text).is_err_and(|error| error.contains(text)), "{text}");
        }
    }

    #[test]
    fn lines_of_the_contract_are_understood() {
        for line in [
            "tandemfs device create image --profile romefs-a --memory 1G --block 16G",
            "tandemfs device create image --profile bytefs --write-log 64M --flash-latency 3/80 --channels 4 --over-provisioning 25",
            "tandemfs device create image --profile bytefs-dual --cache 64M --cache-management clock --garbage-collection cost-benefit",
            "tandemfs device create image --profile bytefs --no-timing",
            "tandemfs device bench image --json --virtual --force",
            "tandemfs device bench image --index",
            "tandemfs device stats image --json",
            "tandemfs device info image",
            "tandemfs device profiles",
            "tandemfs mkfs image --block-size 128K --checksum none --label mail --force",
            "tandemfs mount image /mnt -o strict,threshold=64K,allow_other,ro --foreground",
            "tandemfs mount memory=/dev/dax0.0,block=/dev/nvme0n1 /mnt",
            "tandemfs umount /mnt",
            "tandemfs umount /mnt --lazy",
            "tandemfs check image --repair --json",
            "tandemfs check image --rescue --undo file",
            "tandemfs restore image copy --inode 5 --ignore-errors --dry-run --json",
            "tandemfs restore memory=/dev/dax0.0,block=/dev/nvme0n1 copy --force",
            "tandemfs resize image --memory 2G --block 32G",
            "tandemfs resize memory=/dev/dax0.0,block=/dev/nvme0n1",
            "tandemfs resize /mnt --block 32G --json",
            "tandemfs resize image --block 8G",
            "tandemfs upgrade image --dry-run --json",
            "tandemfs upgrade memory=/dev/dax0.0,block=/dev/nvme0n1 --list",
            "tandemfs label image",
            "tandemfs label /mnt mail",
            "tandemfs uuid image",
            "tandemfs uuid memory=/dev/dax0.0,block=/dev/nvme0n1 random --json",
            "tandemfs uuid image 0b5c7d1e-1111-4222-8333-444455556666",
            "tandemfs probe --udev /dev/nvme0n1",
            "tandemfs info /mnt --json",
            "tandemfs stats /mnt --json --reset",
            "tandemfs stats --openmetrics /mnt",
            "tandemfs doctor /mnt --json",
            "tandemfs trace /mnt file --seconds 5",
            "tandemfs trace /mnt file --json -- make all",
            "tandemfs doctor memory=/dev/dax0.0,block=/dev/nvme0n1",
            "tandemfs scrub /mnt --limit 100M --json",
            "tandemfs trim /mnt --minimum 1M --json",
            "tandemfs compact /mnt --json",
            "tandemfs mkfs image --no-discard",
            "tandemfs dump image superblock",
            "tandemfs dump image inode 5",
            "tandemfs dump image tree /a/b",
            "tandemfs completions bash",
            "tandemfs man --output man",
        ] {
            Arguments::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}

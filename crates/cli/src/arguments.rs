//! The command line. Scripts depend on it: what is here stays.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::size;

/// The whole line.
#[derive(Debug, Parser)]
#[command(
    name = "tandemfs",
    version,
    about = "A file system for hybrid SSDs: drives that answer loads and stores, and block commands, at once",
    after_help = "A DEVICE is the path of an emulated drive's image, or memory=PATH,block=PATH for a real pair (either may be a regular file).\n\
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
        /// Which of it.
        #[command(subcommand)]
        command: DeviceCommand,
    },
    /// Format a device
    Mkfs(MkfsArguments),
    /// Mount a device; returns when the mount answers
    Mount(MountArguments),
    /// Unmount; returns when everything is on the device and the daemon is gone
    #[command(visible_alias = "unmount")]
    Umount(UmountArguments),
    /// Check a device that is not mounted, and repair it
    #[command(after_help = "Exit status, as of fsck(8): 0 clean, 1 errors repaired, 4 errors left, 8 could not run, 2 usage.")]
    Check(CheckArguments),
    /// Show what a device or a mount is
    Info(InfoArguments),
    /// Show the counters of a mount
    Stats(StatsArguments),
    /// Read and verify everything on a mounted device, while it is in use
    #[command(after_help = "Exit status: 0 clean, 4 damage found, 8 could not run, 2 usage. Ending the command ends the scrub.")]
    Scrub(ScrubArguments),
    /// Show structures of a device as they are on it
    Dump(DumpArguments),
    /// Measure the file system, beside bare limits and as the RomeFS paper does; needs no device
    Bench(tandemfs_bench::Arguments),
    /// Print a completion script for a shell
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write all of them to a directory
    Man {
        /// Write one page a command to this directory.
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
    /// List the profiles that an emulated drive can have
    Profiles {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

/// `device create`.
#[derive(Debug, Args)]
pub struct DeviceCreateArguments {
    /// The image to make. An existing file is left alone.
    pub image: PathBuf,
    /// The drive to emulate; `tandemfs device profiles` lists them.
    #[arg(long, value_name = "NAME", default_value = "off")]
    pub profile: String,
    /// Size of the memory that loads and stores reach.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory: u64,
    /// Size of the space that block commands reach.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub block: u64,
}

/// `device info`.
#[derive(Debug, Args)]
pub struct DeviceInfoArguments {
    /// The device.
    pub device: String,
    /// As JSON.
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
    /// A name for people, up to 64 bytes.
    #[arg(short = 'L', long, value_name = "TEXT", default_value = "")]
    pub label: String,
    /// Format even if there is something on the device. It is lost.
    #[arg(short, long)]
    pub force: bool,
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
#[derive(Debug, Args)]
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
    /// The process behind a mount: standard output is the pipe to the command that waits for it.
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// `umount`.
#[derive(Debug, Args)]
pub struct UmountArguments {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Take it out of the tree now; it ends when the last open file is closed. Does not wait.
    #[arg(long, conflicts_with = "force")]
    pub lazy: bool,
    /// Cut the mount off from a daemon that hangs. Data that was not synced is lost. Root only; for others as --lazy.
    #[arg(long)]
    pub force: bool,
}

/// `check`.
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// The device to check.
    pub device: String,
    /// Repair what can be repaired without guessing.
    #[arg(long)]
    pub repair: bool,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `info`.
#[derive(Debug, Args)]
pub struct InfoArguments {
    /// A device, or a directory where one is mounted.
    #[arg(value_name = "DEVICE|MOUNTPOINT")]
    pub place: String,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `stats`.
#[derive(Debug, Args)]
pub struct StatsArguments {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    /// Set the counters to zero after showing them.
    #[arg(long)]
    pub reset: bool,
}

/// `scrub`.
#[derive(Debug, Args)]
pub struct ScrubArguments {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Read at most so much in a second.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub limit: Option<u64>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `dump`.
#[derive(Debug, Args)]
pub struct DumpArguments {
    /// The device.
    pub device: String,
    /// What to show: superblock, segments, journal, inode NUMBER, or tree [PATH].
    #[arg(value_name = "WHAT", required = true, num_args = 1..)]
    pub what: Vec<OsString>,
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
    fn lines_of_the_contract_are_understood() {
        for line in [
            "tandemfs device create image --profile romefs-a --memory 1G --block 16G",
            "tandemfs device info image",
            "tandemfs device profiles",
            "tandemfs mkfs image --block-size 128K --checksum none --label mail --force",
            "tandemfs mount image /mnt -o strict,threshold=64K,allow_other,ro --foreground",
            "tandemfs mount memory=/dev/dax0.0,block=/dev/nvme0n1 /mnt",
            "tandemfs umount /mnt",
            "tandemfs umount /mnt --lazy",
            "tandemfs check image --repair --json",
            "tandemfs info /mnt --json",
            "tandemfs stats /mnt --json --reset",
            "tandemfs scrub /mnt --limit 100M --json",
            "tandemfs dump image superblock",
            "tandemfs dump image inode 5",
            "tandemfs dump image tree /a/b",
            "tandemfs bench overwrite fuse --quick",
            "tandemfs bench romefs table4 --memory 256M --output out",
            "tandemfs completions bash",
            "tandemfs man --output man",
        ] {
            Arguments::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}

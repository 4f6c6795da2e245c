//! Mounts a TandemFS like `tandemfs mount --foreground`, on a device that cuts the power or kills the process at one exact step of a commit
//! (`power_cut.rs`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tandemfs_device::Drive;
use tandemfs_emulator::DeviceOptions;
use tandemfs_fs::{FileSystem, MountOptions};
use tandemfs_fuse::MountSettings;
use tandemfs_witness::power_cut::{End, Plan, PowerCutDevice, Step};
use tandemfs_witness::promises::Mode;

/// Mounts DEVICE until a step is reached. Prints "ready" when the mount answers.
#[derive(Debug, Parser)]
struct Arguments {
    device: String,
    mountpoint: PathBuf,
    #[arg(long, default_value = "relaxed")]
    mode: Mode,
    /// The step
    #[arg(long)]
    at: Option<Step>,
    /// Number of such steps that complete before it
    #[arg(long, default_value_t = 0)]
    after: u64,
    /// Count steps only after this file exists (so steps of the mount do not count)
    #[arg(long)]
    arm_when: Option<PathBuf>,
    /// What to end: the machine or the process
    #[arg(long, default_value = "power")]
    end: End,
    /// File that gets a line right before the end
    #[arg(long)]
    note: Option<PathBuf>,
    /// A deliberate bug after the mount: FLUSH of the drive is not passed on
    #[arg(long)]
    skip_flushes: bool,
}

fn run(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let inner = tandemfs_emulator::open_device(&arguments.device, &DeviceOptions { timing: false, ..DeviceOptions::default() })?;
    let superblock = tandemfs_fs::read_superblock(&Drive::new(Arc::clone(&inner)))?;
    let Arguments { at: step, after, end, note, .. } = arguments;
    let device = Arc::new(PowerCutDevice::new(inner, &superblock.geometry, Plan { step, after, end, note }));
    match arguments.arm_when {
        None => device.arm(),
        Some(file) => {
            let device = Arc::clone(&device);
            std::thread::spawn(move || {
                while !file.exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                device.arm();
            });
        }
    }
    let fs = Arc::new(FileSystem::mount(Drive::new(Arc::clone(&device) as _), &MountOptions::default())?);
    if arguments.skip_flushes {
        device.skip_flushes(); // a mount that did not flush its identity would be refused
    }
    let mode = match arguments.mode {
        Mode::Relaxed => tandemfs_fuse::Mode::Relaxed,
        Mode::Strict => tandemfs_fuse::Mode::Strict,
        Mode::StrictAtomic => tandemfs_fuse::Mode::StrictAtomic,
    };
    let settings = MountSettings { mode, source: arguments.device, ..MountSettings::default() };
    let served = tandemfs_fuse::serve(&fs, &arguments.mountpoint, &settings, || {
        println!("ready");
    });
    fs.unmount()?;
    Ok(served?)
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mount-until-cut: {error}");
            ExitCode::FAILURE
        }
    }
}

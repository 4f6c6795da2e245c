//! The `tandemfs` program, also called by mount(8), umount(8), mkfs(8) and fsck(8) as `mount.tandemfs`, `umount.tandemfs`, `mkfs.tandemfs`
//! and `fsck.tandemfs`.
//!
//! `arguments.rs` defines the command line for clap, `helpers.rs` the arguments of the helper names. Each command has one file. `daemon.rs`
//! is the process behind a mount, `opener.rs` one that it starts.

#![deny(unsafe_code)]

mod aligned;
mod arguments;
mod check;
mod claim;
mod compact;
mod completion;
mod daemon;
mod device;
mod device_bench;
mod device_stats;
mod direct;
mod doctor;
mod dump;
mod failure;
mod findings;
mod generate;
mod helpers;
mod home;
mod huge_pages;
mod info;
mod inherited;
mod known_code;
mod label;
mod logging;
mod metrics_server;
mod mkfs;
mod mount;
mod mount_options;
mod names;
mod opener;
mod openmetrics;
mod output;
mod placement;
mod probe;
mod quota;
mod remount;
mod resize;
mod restore;
mod run;
mod run_report;
mod scrub;
mod set;
mod settings;
mod signatures;
mod size;
mod stats;
mod times;
mod top;
mod trace;
mod trim;
mod umount;
mod upgrade;
mod uuid;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use arguments::{Command, DeviceCommand};
use failure::Failure;
use helpers::Caller;

fn main() -> ExitCode {
    let words: Vec<OsString> = env::args_os().collect();
    if words.first().is_some_and(|name| name == opener::NAME) {
        return ExitCode::from(opener::run(&words));
    }
    let caller = Caller::of(words.first());
    let result = caller.command(words).and_then(execute);
    ExitCode::from(match result {
        Ok(status) => status,
        Err(failure) => failure.report(caller),
    })
}

fn execute(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Device { command: DeviceCommand::Create(arguments) } => device::create(&arguments),
        Command::Device { command: DeviceCommand::Info(arguments) } => device::info(&arguments),
        Command::Device { command: DeviceCommand::Bench(arguments) } => device_bench::run(&arguments),
        Command::Device { command: DeviceCommand::Stats(arguments) } => device_stats::run(&arguments),
        Command::Device { command: DeviceCommand::Profiles { json } } => device::profiles(json),
        Command::Mkfs(arguments) => mkfs::run(&arguments),
        Command::Mount(arguments) if arguments.daemon => daemon::run(&arguments),
        Command::Mount(arguments) => mount::run(&arguments),
        Command::Umount(arguments) => umount::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Restore(arguments) => restore::run(&arguments),
        Command::Resize(arguments) => resize::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Probe(arguments) => probe::run(&arguments),
        Command::Uuid(arguments) => uuid::run(&arguments),
        Command::Label(arguments) => label::run(&arguments),
        Command::Set(arguments) => set::run(&arguments),
        Command::Info(arguments) => info::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Stats(arguments) => stats::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Trace(arguments) => trace::run(&arguments),
        Command::Scrub(arguments) => scrub::run(&arguments),
        Command::Trim(arguments) => trim::run(&arguments),
        Command::Compact(arguments) => compact::run(&arguments),
        Command::Home { command } => home::run(&command),
        Command::Quota { command } => quota::run(&command),
        Command::Aligned { command } => aligned::run(&command),
        Command::Defrag(arguments) => aligned::defrag(&arguments),
        Command::Dump(arguments) => dump::run(&arguments),
        Command::Completions { shell } => generate::completions(shell),
        Command::Man { output } => generate::man(output.as_deref()),
    }
}

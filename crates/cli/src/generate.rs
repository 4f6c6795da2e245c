//! Shell completions and manual pages, from the command line itself.

use std::fs;
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::completion;
use crate::failure::Failure;
use crate::mount_options;
use crate::output;

/// Prints a completion script.
pub fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "tandemfs", &mut script);
    output::print(&completion::with_mount_options(shell, &String::from_utf8_lossy(&script)))?;
    Ok(0)
}

/// Prints the manual page of the program, or writes one a command to a directory.
pub fn man(directory: Option<&Path>) -> Result<u8, Failure> {
    let command = Arguments::command();
    let Some(directory) = directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        output::print(&String::from_utf8_lossy(&page))?;
        return Ok(0);
    };
    let failed = |error| Failure::at(directory.display(), error);
    fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(command, directory).map_err(failed)?;
    for page in helper_pages() {
        let name = page.get_name().to_owned();
        let mut text = Vec::new();
        clap_mangen::Man::new(page).section("8").render(&mut text)?;
        fs::write(directory.join(format!("{name}.8")), text).map_err(failed)?;
    }
    Ok(0)
}

/// The commands of administrators, as mkfs(8), mount(8), umount(8) and fsck(8) call them (`helpers.rs`).
fn helper_pages() -> [Command; 4] {
    let device =
        || Arg::new("DEVICE").required(true).help("The image of an emulated drive, or memory=PATH,block=PATH for a pair of devices");
    let flag = |name: &'static str, help: &'static str| Arg::new(name).short(name.chars().next()).action(ArgAction::SetTrue).help(help);
    let options = || Arg::new("OPTIONS").short('o').action(ArgAction::Append).help("Options, separated by commas; see below");
    let statuses = "Exit status: 0 no errors, 1 errors repaired, 4 errors left, 8 the device could not be checked, 16 usage.";
    let mkfs = Arguments::command().find_subcommand("mkfs").cloned().unwrap_or_default();
    [
        mkfs.name("mkfs.tandemfs").version(env!("CARGO_PKG_VERSION")),
        Command::new("mount.tandemfs")
            .version(env!("CARGO_PKG_VERSION"))
            .about("Mount a TandemFS; called by mount(8) for the types tandemfs and fuse.tandemfs")
            .args([device(), Arg::new("DIR").required(true).help("The directory to mount it on"), options()])
            .args([
                flag("f", "Read the options and do nothing"),
                flag("r", "The same as -o ro"),
                flag("w", "The same as -o rw"),
                flag("v", "Log more"),
            ])
            .after_help(mount_options::HELP),
        Command::new("umount.tandemfs")
            .version(env!("CARGO_PKG_VERSION"))
            .about("Unmount a TandemFS and wait until everything is on the device; called by umount(8) for the types tandemfs and fuse.tandemfs")
            .arg(Arg::new("DIR").required(true).help("The mount point"))
            .args([
                flag("f", "Disconnect the daemon, and unmount even if the mount is in use: calls of its users fail, unsynced data is lost"),
                flag("l", "Take the mount out of the tree now and return; the daemon ends after the last open file is closed"),
                flag("r", "If the mount is in use, make it read-only instead"),
                flag("n", "Accepted"),
                flag("v", "Accepted"),
            ])
            .after_help(
                "Exit status: 0 the daemon has ended and everything is on the device, 1 usage, 32 the mount is in use, something uses the file system \
                 after it, or the device failed.\n\n'umount -i DIR' does not call it and returns at once.",
            ),
        Command::new("fsck.tandemfs")
            .version(env!("CARGO_PKG_VERSION"))
            .about("Check and repair a TandemFS that is not mounted; called by fsck(8)")
            .args([
                device(),
                flag("a", "Repair what loses nothing, and read metadata only"),
                flag("p", "The same as -a"),
                flag("y", "Repair all metadata; what cannot be read is given up and listed"),
                flag("n", "Report what a repair would do; write nothing"),
                flag("f", "With -a or -p: read file data too"),
                flag("v", "Accepted"),
                Arg::new("FD").short('C').help("Accepted: progress is shown on a terminal"),
            ])
            .after_help(statuses),
    ]
}

//! The name by which the program was called, and the arguments that mount(8), umount(8), mkfs(8) and fsck(8) pass to their helpers.

use std::ffi::OsString;
use std::path::Path;

use clap::{Args, CommandFactory, FromArgMatches, Parser};

use crate::arguments::{Arguments, CheckArguments, Command, MountArguments, RunArguments, UmountArguments};
use crate::failure::Failure;

/// The name that the program was called by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// `tandemfs`.
    User,
    /// `mount.tandemfs`, by mount(8).
    Mount,
    /// `umount.tandemfs`, by umount(8).
    Umount,
    /// `mkfs.tandemfs`, by mkfs(8).
    Mkfs,
    /// `fsck.tandemfs`, by fsck(8).
    Fsck,
}

impl Caller {
    /// Reads the name.
    pub fn of(name: Option<&OsString>) -> Self {
        match name.and_then(|name| Path::new(name).file_name()).and_then(|name| name.to_str()) {
            // mount(8) derives the second name from the type of a mount that exists, so in a remount.
            Some("mount.tandemfs" | "mount.fuse.tandemfs") => Self::Mount,
            // umount(8) knows the type from the kernel alone, so it calls the second name.
            Some("umount.tandemfs" | "umount.fuse.tandemfs") => Self::Umount,
            Some("mkfs.tandemfs") => Self::Mkfs,
            Some("fsck.tandemfs") => Self::Fsck,
            _ => Self::User,
        }
    }

    /// Exit status for an invalid command line, as mount(8), umount(8) and fsck(8) define theirs.
    pub fn usage_status(self) -> u8 {
        match self {
            Self::User | Self::Mkfs => 2,
            Self::Mount | Self::Umount => 1,
            Self::Fsck => 16,
        }
    }

    /// Exit status for a failure.
    pub fn failed_status(self) -> u8 {
        match self {
            Self::User | Self::Mkfs => 1,
            Self::Mount | Self::Umount => 32,
            Self::Fsck => 8,
        }
    }

    /// The command of a command line.
    pub fn command(self, words: Vec<OsString>) -> Result<Command, Failure> {
        let asks = |word: &OsString| matches!(word.to_str(), Some("-h" | "--help" | "-V" | "--version"));
        let rest = words.iter().skip(1);
        match self {
            Self::User if is_of_mount_fuse(&words) => mount(rest.cloned()),
            Self::User => match run_alone(&words) {
                Some(run) => Ok(Command::Run(run)),
                None => parse(words),
            },
            Self::Mkfs => parse(["tandemfs".into(), "mkfs".into()].into_iter().chain(rest.cloned())),
            Self::Mount if rest.clone().any(asks) => parse(["tandemfs", "mount", "--help"].map(OsString::from)),
            Self::Umount if rest.clone().any(asks) => parse(["tandemfs", "umount", "--help"].map(OsString::from)),
            Self::Fsck if rest.clone().any(|word| word == "-V" || word == "--version") => {
                parse(["tandemfs", "--version"].map(OsString::from))
            }
            Self::Fsck if rest.clone().any(|word| word == "--help") => parse(["tandemfs", "check", "--help"].map(OsString::from)),
            Self::Mount => mount(rest.cloned()),
            Self::Umount => umount(rest.cloned()),
            Self::Fsck => fsck(rest.cloned()),
        }
    }
}

/// Whether these words are a mount as mount.fuse(8) calls it, for mounts of type `fuse.tandemfs`: `tandemfs DEVICE DIR -o OPTIONS`.
fn is_of_mount_fuse(words: &[OsString]) -> bool {
    let [_, device, _, option, _] = words else { return false };
    let is_command = |name: &str| name == "help" || name.starts_with('-') || Arguments::command().find_subcommand(name).is_some();
    option == "-o" && !device.to_str().is_some_and(is_command)
}

/// The arguments of `tandemfs run`, for whose end a program waits to begin: to make those of all other commands takes longer. None for everything
/// that has to be explained.
fn run_alone(words: &[OsString]) -> Option<RunArguments> {
    let [_, command, rest @ ..] = words else { return None };
    if command != "run" {
        return None;
    }
    let arguments = RunArguments::augment_args(clap::Command::new("run").no_binary_name(true));
    RunArguments::from_arg_matches(&arguments.try_get_matches_from(rest).ok()?).ok()
}

fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, Failure> {
    Arguments::try_parse_from(words).map(|arguments| arguments.command).map_err(Failure::Arguments)
}

/// `mount.tandemfs DEVICE DIR [-sfnvrw] [-o OPTIONS] [-t TYPE] [-N NAMESPACE]`.
fn mount(words: impl Iterator<Item = OsString>) -> Result<Command, Failure> {
    let mut words = words.map(text);
    let (mut places, mut options, mut fake, mut verbose) = (Vec::new(), Vec::new(), false, false);
    while let Some(word) = words.next() {
        let word = word?;
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            places.push(word);
            continue;
        };
        for (position, letter) in letters.char_indices() {
            let attached = &letters[position + letter.len_utf8()..];
            match letter {
                's' | 'n' | 'i' => {}
                'v' => verbose = true,
                'f' => fake = true,
                'r' => options.push("ro".to_owned()),
                'w' => options.push("rw".to_owned()),
                'o' | 't' | 'N' => {
                    let value = if attached.is_empty() { words.next().transpose()?.unwrap_or_default() } else { attached.to_owned() };
                    if letter == 'o' {
                        options.push(value);
                    }
                    break;
                }
                other => {
                    return Err(Failure::Usage(format!("unknown option '-{other}'; usage: mount.tandemfs DEVICE DIR [-o OPTIONS]")));
                }
            }
        }
    }
    let [device, mountpoint] = <[String; 2]>::try_from(places)
        .map_err(|places| Failure::Usage(format!("a device and a directory are needed, {} given", places.len())))?;
    Ok(Command::Mount(MountArguments {
        device,
        mountpoint: mountpoint.into(),
        options,
        foreground: false,
        verbose,
        fake,
        json: false,
        daemon: false,
    }))
}

/// `umount.tandemfs DIR [-flnrv] [-t TYPE]`.
fn umount(words: impl Iterator<Item = OsString>) -> Result<Command, Failure> {
    const USAGE: &str = "usage: umount.tandemfs DIR [-f] [-l] [-r]";
    let (mut places, mut arguments) = (Vec::new(), UmountArguments::default());
    let mut words = words;
    while let Some(word) = words.next() {
        // A mount point may have any name, an option not.
        let Some(letters) = word.to_str().and_then(|word| word.strip_prefix('-')).filter(|letters| !letters.is_empty()) else {
            places.push(word);
            continue;
        };
        for (position, letter) in letters.char_indices() {
            match letter {
                'f' => arguments.force = true,
                'l' => arguments.lazy = true,
                'r' => arguments.or_read_only = true,
                'n' | 'v' => {}
                't' => {
                    if position + 1 == letters.len() {
                        words.next();
                    }
                    break;
                }
                'N' => {
                    let advice = "'umount -i -N NAMESPACE DIR' unmounts there without it, or nsenter(1) runs it there";
                    return Err(Failure::Usage(format!("umount.tandemfs unmounts in its own mount namespace; {advice}")));
                }
                other => return Err(Failure::Usage(format!("unknown option '-{other}'; {USAGE}"))),
            }
        }
    }
    let [mountpoint] = <[OsString; 1]>::try_from(places)
        .map_err(|places| Failure::Usage(format!("one directory is needed, {} given; {USAGE}", places.len())))?;
    // Both together are what --force does: it takes also a mount in use out of the tree.
    arguments.lazy &= !arguments.force;
    Ok(Command::Umount(UmountArguments { mountpoint: mountpoint.into(), ..arguments }))
}

/// `fsck.tandemfs [-a|-p|-y|-n] [-f] [-v] [-C FD] DEVICE`, as fsck(8) and administrators call e2fsck(8).
fn fsck(words: impl Iterator<Item = OsString>) -> Result<Command, Failure> {
    let mut words = words.map(text);
    let (mut devices, mut arguments, mut full) = (Vec::new(), CheckArguments::default(), false);
    while let Some(word) = words.next() {
        let word = word?;
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            devices.push(word);
            continue;
        };
        for (position, letter) in letters.char_indices() {
            match letter {
                // "Automatically" is what boots use: it repairs what loses nothing.
                'a' | 'p' => arguments.preen = true,
                'y' => arguments.repair = true,
                'n' => arguments.dry_run = true,
                // The descriptor for progress: -C0 or -C 0. Progress is shown on a terminal.
                'C' => {
                    if position + 1 == letters.len() {
                        words.next().transpose()?;
                    }
                    break;
                }
                'f' => full = true,
                // -r is what e2fsck ignores too.
                'v' | 'r' => {}
                other => {
                    let usage = "usage: fsck.tandemfs [-a|-p|-y|-n] [-f] [-v] [-C FD] DEVICE";
                    return Err(Failure::Usage(format!("unknown option '-{other}'; {usage}")));
                }
            }
        }
    }
    if arguments.dry_run && (arguments.preen || arguments.repair) {
        return Err(Failure::Usage("-n repairs nothing; leave it out, or leave out -a, -p and -y".into()));
    }
    let [device] =
        <[String; 1]>::try_from(devices).map_err(|devices| Failure::Usage(format!("one device is needed, {} given", devices.len())))?;
    if arguments.preen && arguments.repair {
        return Err(Failure::Usage("only one of -a, -p and -y can be given".into()));
    }
    // A boot does not wait until all data were read, unless it is asked to.
    arguments.metadata_only = arguments.preen && !full;
    Ok(Command::Check(CheckArguments { device, ..arguments }))
}

fn text(word: OsString) -> Result<String, Failure> {
    word.into_string().map_err(|word| Failure::Usage(format!("'{}' is not valid UTF-8", word.to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    use super::*;

    fn command(line: &str) -> Result<Command, Failure> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        Caller::of(words.first()).command(words)
    }

    #[test]
    fn run_means_the_same_alone() {
        let lines = [
            "run -- true",
            "run true -x --real",
            "run --mount /m --report -- a --mount b",
            "run --real --mount=/m -- sh -c true",
            "run --placeholders a",
            "run --unknown a",
        ];
        for line in lines.map(|line| format!("tandemfs {line}")) {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let alone = run_alone(&words).expect("arguments");
            let Ok(Command::Run(whole)) = parse(words) else { panic!("{line}") };
            assert_eq!(format!("{alone:?}"), format!("{whole:?}"));
        }
        for line in ["run", "run --", "run --help", "run --real --placeholders a", "mount a b", "run --mount"] {
            let words: Vec<OsString> = format!("tandemfs {line}").split(' ').map(OsString::from).collect();
            assert!(run_alone(&words).is_none(), "{line}");
        }
    }

    #[test]
    fn mount_calls_its_helper() {
        let Ok(Command::Mount(arguments)) = command("/sbin/mount.tandemfs disk.image /mnt -n -v -o rw,strict -o ro") else {
            panic!("a mount")
        };
        assert_eq!((arguments.device.as_str(), arguments.mountpoint.to_str()), ("disk.image", Some("/mnt")));
        assert_eq!(arguments.options, ["rw,strict", "ro"]);
        assert!(arguments.verbose && !arguments.fake && !arguments.daemon);
        let Ok(Command::Mount(arguments)) = command("mount.tandemfs -sfo strict -t tandemfs a b") else { panic!("a mount") };
        assert!(arguments.fake);
        assert_eq!(arguments.options, ["strict"]);
    }

    #[test]
    fn mount_fuse_calls_the_program_by_its_own_name() {
        for line in ["tandemfs disk.image /mnt -o rw,remount", "mount.fuse.tandemfs disk.image /mnt -o rw,remount -t fuse.tandemfs"] {
            let Ok(Command::Mount(arguments)) = command(line) else { panic!("a mount") };
            assert_eq!((arguments.device.as_str(), arguments.options), ("disk.image", vec!["rw,remount".to_owned()]));
        }
        assert!(matches!(command("tandemfs frobnicate /mnt"), Err(Failure::Arguments(_))));
        assert!(matches!(command("tandemfs umount /mnt -o x"), Err(Failure::Arguments(_))));
    }

    #[test]
    fn umount_calls_its_helper() {
        for (line, force, lazy, or_read_only) in [
            ("umount.fuse.tandemfs /mnt", false, false, false),
            ("umount.tandemfs /mnt -l", false, true, false),
            ("/sbin/umount.fuse.tandemfs /mnt -f -n -v -t fuse.tandemfs", true, false, false),
            ("umount.tandemfs -lf /mnt", true, false, false),
            ("umount.tandemfs -nrt tandemfs /mnt", false, false, true),
            ("umount.tandemfs -tfuse.tandemfs /mnt", false, false, false),
        ] {
            let Ok(Command::Umount(found)) = command(line) else { panic!("{line}") };
            assert_eq!(found.mountpoint.to_str(), Some("/mnt"), "{line}");
            assert_eq!((found.force, found.lazy, found.or_read_only), (force, lazy, or_read_only), "{line}");
        }
        let words = [OsString::from("umount.tandemfs"), OsString::from_vec(vec![b'/', 0xff])];
        let Ok(Command::Umount(found)) = Caller::of(words.first()).command(words.to_vec()) else { panic!("a name that is no text") };
        assert_eq!(found.mountpoint.as_os_str().as_bytes(), [b'/', 0xff]);
        for line in ["umount.tandemfs", "umount.tandemfs /a /b", "umount.tandemfs -x /a", "umount.tandemfs /a -N /proc/1/fd/3"] {
            assert!(matches!(command(line), Err(Failure::Usage(_))), "{line}");
        }
    }

    #[test]
    fn fsck_calls_its_helper() {
        for (line, repair, preen, dry_run, metadata_only) in [
            ("fsck.tandemfs -a /dev/x", false, true, false, true),
            ("fsck.tandemfs -C0 -y /dev/x", true, false, false, false),
            ("fsck.tandemfs -p -f -v /dev/x", false, true, false, false),
            ("fsck.tandemfs -C 0 -f /dev/x", false, false, false, false),
            ("fsck.tandemfs -fyC 3 /dev/x", true, false, false, false),
            ("fsck.tandemfs -n /dev/x", false, false, true, false),
            ("fsck.tandemfs /dev/x", false, false, false, false),
        ] {
            let Ok(Command::Check(found)) = command(line) else { panic!("{line}") };
            assert_eq!(found.device, "/dev/x", "{line}");
            let flags = (found.repair, found.preen, found.dry_run, found.metadata_only);
            assert_eq!(flags, (repair, preen, dry_run, metadata_only), "{line}");
        }
        assert!(command("fsck.tandemfs -p -y /dev/x").is_err());
    }

    #[test]
    fn mkfs_calls_its_helper() {
        let Ok(Command::Mkfs(arguments)) = command("mkfs.tandemfs -L mail -b 128K disk.image") else { panic!("a format") };
        assert_eq!((arguments.label.as_str(), arguments.block_size, arguments.force), ("mail", 128 << 10, false));
    }

    #[test]
    fn each_name_has_the_statuses_of_its_caller() {
        for (line, usage, failed) in [
            ("tandemfs mount", 2, 1),
            ("mount.tandemfs a", 1, 32),
            ("umount.tandemfs", 1, 32),
            ("fsck.tandemfs a b", 16, 8),
            ("mkfs.tandemfs", 2, 1),
        ] {
            let caller = Caller::of(line.split(' ').next().map(OsString::from).as_ref());
            assert!(matches!(command(line), Err(Failure::Usage(_) | Failure::Arguments(_))), "{line}");
            assert_eq!((caller.usage_status(), caller.failed_status()), (usage, failed), "{line}");
        }
        assert!(command("mount.tandemfs -q a b").is_err());
        assert!(command("fsck.tandemfs -q a").is_err());
        assert!(command("fsck.tandemfs -n -y a").is_err());
        assert!(matches!(command("fsck.tandemfs -V"), Err(Failure::Arguments(_))), "the version");
    }
}

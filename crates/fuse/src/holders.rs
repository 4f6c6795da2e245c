//! Users of a file system: whatever keeps its mount busy, or keeps the file system alive after its mount was detached from the tree.
//!
//! The information comes from `/proc`, `/sys` and the kernel's in-memory state, never from the file system, whose daemon may hang. A
//! process is recognised by the device number of its open files. Overlay layers and files behind loop devices are recognised by path, as
//! the kernel reports nothing else; a path that was given relative to a current directory is not found.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::mounts::{Mounted, unescape};

/// Most holders named in a sentence.
const NAMED_MAX: usize = 5;

/// A user of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A process: its id, its name, and how it uses the file system.
    Process(i32, String, BTreeSet<Use>),
    /// The file system is also mounted elsewhere, or something is mounted on one of its directories.
    Mount(PathBuf),
    /// An overlay with a layer in the file system.
    Overlay(PathBuf),
    /// A loop device whose file is in the file system.
    Loop(PathBuf, PathBuf),
    /// A mount namespace in which the file system is mounted, or below an overlay: id and name of one of its processes.
    Namespace(i32, String),
}

/// How a process uses a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// Its current directory is there.
    CurrentDirectory,
    /// Its root directory is there.
    RootDirectory,
    /// It has files open.
    OpenFiles,
    /// It has files mapped, its program among them.
    MappedFiles,
}

impl fmt::Display for Use {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::CurrentDirectory => "current directory",
            Self::RootDirectory => "root directory",
            Self::OpenFiles => "open files",
            Self::MappedFiles => "mapped files",
        })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(id, name, uses) => {
                let uses: Vec<String> = uses.iter().map(Use::to_string).collect();
                write!(formatter, "{name} (process {id}: {})", uses.join(", "))
            }
            Self::Mount(at) => write!(formatter, "the mount at {}", at.display()),
            Self::Overlay(at) => write!(formatter, "the overlay at {}", at.display()),
            Self::Loop(device, file) => write!(formatter, "{} ({})", device.display(), file.display()),
            Self::Namespace(id, name) => write!(formatter, "the mount namespace of {name} (process {id})"),
        }
    }
}

/// The holders as part of a sentence; `None` if there are none.
pub fn in_words(holders: &[Holder]) -> Option<String> {
    let (named, others) = holders.split_at(holders.len().min(NAMED_MAX));
    let named: Vec<String> = named.iter().map(Holder::to_string).collect();
    match (named.split_last()?, others.len()) {
        ((last, []), 0) => Some(last.clone()),
        ((last, rest), 0) => Some(format!("{} and {last}", rest.join(", "))),
        (_, others) => Some(format!("{} and {others} more", named.join(", "))),
    }
}

/// The users of a mount's file system, as far as this user may see them. This process is left out.
pub fn holders(mount: &Mounted) -> Vec<Holder> {
    let mut found = processes(&mount.device_number);
    let mut places = BTreeSet::from([mount.mountpoint.clone()]);
    let own = fs::read("/proc/self/mountinfo").unwrap_or_default();
    found.extend(in_namespace(&own, mount, &mut places));
    found.extend(namespaces(mount));
    found.extend(loop_devices(&places));
    found
}

/// The ids of the other processes in `/proc`.
fn process_ids() -> BTreeSet<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| i64::from(*id) != i64::from(std::process::id())).collect()
}

fn name_of(id: i32) -> String {
    fs::read_to_string(format!("/proc/{id}/comm")).map_or_else(|_| "?".to_owned(), |name| name.trim_end().to_owned())
}

fn processes(device_number: &str) -> Vec<Holder> {
    let used = |id| (id, uses(id, device_number));
    let users = process_ids().into_iter().map(used).filter(|(_, uses)| !uses.is_empty());
    users.map(|(id, uses)| Holder::Process(id, name_of(id), uses)).collect()
}

/// How a process uses a device.
fn uses(id: i32, device_number: &str) -> BTreeSet<Use> {
    let process = PathBuf::from(format!("/proc/{id}"));
    let is_there = |link: &Path| device_of(link).is_ok_and(|device| device == device_number);
    let has_open = || fs::read_dir(process.join("fd")).into_iter().flatten().flatten().any(|entry| is_there(&entry.path()));
    let found = [
        (Use::CurrentDirectory, is_there(&process.join("cwd"))),
        (Use::RootDirectory, is_there(&process.join("root"))),
        (Use::OpenFiles, has_open()),
        (Use::MappedFiles, fs::read(process.join("maps")).is_ok_and(|maps| maps_from(&maps, device_number))),
    ];
    found.into_iter().filter(|(_, is_so)| *is_so).map(|(usage, _)| usage).collect()
}

/// The device number of the target of a `/proc` link. Only cached attributes are read, so no request goes to the daemon. It also works for
/// users without permission to enter the file system.
fn device_of(link: &Path) -> io::Result<String> {
    let status = rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT, StatxFlags::empty())?;
    Ok(format!("{}:{}", status.stx_dev_major, status.stx_dev_minor))
}

/// Whether a process has a file of a device mapped. Lines are `START-END RIGHTS OFFSET MAJOR:MINOR INODE PATH`, numbers hexadecimal.
fn maps_from(maps: &[u8], device_number: &str) -> bool {
    let hexadecimal = || -> Option<String> {
        let (major, minor) = device_number.split_once(':')?;
        Some(format!("{:02x}:{:02x}", major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    let Some(wanted) = hexadecimal() else { return false };
    let device = |line: &[u8]| line.split(|byte| *byte == b' ').nth(3).is_some_and(|field| field == wanted.as_bytes());
    maps.split(|byte| *byte == b'\n').any(device)
}

/// A line of a `mountinfo`.
struct Line<'l> {
    id: &'l [u8],
    parent: &'l [u8],
    device_number: &'l [u8],
    mountpoint: PathBuf,
    file_system: &'l [u8],
    options: &'l [u8],
}

fn lines(mountinfo: &[u8]) -> impl Iterator<Item = Line<'_>> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let (id, parent, device_number) = (fields.next()?, fields.next()?, fields.next()?);
        let mountpoint = unescape(fields.nth(1)?).into();
        let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
        let file_system = behind.next()?;
        Some(Line { id, parent, device_number, mountpoint, file_system, options: behind.nth(1)? })
    })
}

/// Mounts of one namespace that hold a file system. Its mountpoints are added to `places`.
fn in_namespace(mountinfo: &[u8], mount: &Mounted, places: &mut BTreeSet<PathBuf>) -> Vec<Holder> {
    let is_own = |line: &Line<'_>| line.device_number == mount.device_number.as_bytes();
    let own: BTreeMap<&[u8], PathBuf> = lines(mountinfo).filter(is_own).map(|line| (line.id, line.mountpoint)).collect();
    places.extend(own.values().cloned());
    lines(mountinfo)
        .filter_map(|line| {
            if is_own(&line) {
                (line.mountpoint != mount.mountpoint).then_some(Holder::Mount(line.mountpoint))
            } else if own.contains_key(line.parent) {
                Some(Holder::Mount(line.mountpoint))
            } else {
                let has_layer = line.file_system == b"overlay" && layers(line.options).iter().any(|layer| is_below(layer, places));
                has_layer.then_some(Holder::Overlay(line.mountpoint))
            }
        })
        .collect()
}

fn is_below(path: &Path, places: &BTreeSet<PathBuf>) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

/// The directories of an overlay. Only `lowerdir` holds several, separated by colons; a colon within a path is escaped by a backslash.
fn layers(options: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for option in options.split(|byte| *byte == b',') {
        let Some(equals) = option.iter().position(|byte| *byte == b'=') else { continue };
        let value = unescape(&option[equals + 1..]);
        match &option[..equals] {
            b"lowerdir" => found.extend(split_at_colons(value.as_bytes())),
            b"lowerdir+" | b"datadir" | b"datadir+" | b"upperdir" | b"workdir" => found.push(value.into()),
            _ => {}
        }
    }
    found
}

fn split_at_colons(bytes: &[u8]) -> Vec<PathBuf> {
    let (mut parts, mut part, mut is_escaped) = (Vec::new(), Vec::new(), false);
    for &byte in bytes {
        match byte {
            b'\\' if !is_escaped => {
                is_escaped = true;
                continue;
            }
            b':' if !is_escaped => parts.push(std::mem::take(&mut part)),
            _ => part.push(byte),
        }
        is_escaped = false;
    }
    parts.push(part);
    parts.into_iter().map(|part| OsString::from_vec(part).into()).collect()
}

/// Other mount namespaces that hold the file system, each with one of its processes.
fn namespaces(mount: &Mounted) -> Vec<Holder> {
    let namespace_of = |id: &str| fs::read_link(format!("/proc/{id}/ns/mnt")).ok();
    let mut seen: BTreeSet<PathBuf> = namespace_of("self").into_iter().collect();
    let mut found = Vec::new();
    for id in process_ids() {
        let Some(namespace) = namespace_of(&id.to_string()) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        let mountinfo = fs::read(format!("/proc/{id}/mountinfo")).unwrap_or_default();
        // In another namespace the own mountpoint counts too.
        let is_mounted = lines(&mountinfo).any(|line| line.device_number == mount.device_number.as_bytes());
        if is_mounted || !in_namespace(&mountinfo, mount, &mut BTreeSet::from([mount.mountpoint.clone()])).is_empty() {
            found.push(Holder::Namespace(id, name_of(id)));
        }
    }
    found
}

fn loop_devices(places: &BTreeSet<PathBuf>) -> Vec<Holder> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let backed = |name: OsString| {
        let file = fs::read(Path::new("/sys/block").join(&name).join("loop/backing_file")).ok()?;
        let file = PathBuf::from(OsStr::from_bytes(file.strip_suffix(b"\n").unwrap_or(&file)));
        is_below(&file, places).then(|| Holder::Loop(Path::new("/dev").join(name), file))
    };
    devices.filter_map(backed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount() -> Mounted {
        Mounted { mountpoint: "/mnt/a b".into(), device_number: "0:52".into(), source: "/image".into(), user: 0, flags: Vec::new() }
    }

    fn found(mountinfo: &str) -> Vec<Holder> {
        in_namespace(mountinfo.as_bytes(), &mount(), &mut BTreeSet::from([mount().mountpoint]))
    }

    #[test]
    fn mounts_that_hold_a_file_system_are_found() {
        let list = "22 1 8:1 / / rw - ext4 /dev/sda rw\n\
            74 22 0:52 / /mnt/a\\040b rw - fuse.tandemfs /image rw,user_id=0\n\
            75 22 0:52 /dir /bound rw shared:1 - fuse.tandemfs /image rw,user_id=0\n\
            76 74 0:60 / /mnt/a\\040b/below rw - tmpfs tmpfs rw\n\
            77 22 0:61 / /merged rw - overlay overlay rw,lowerdir=/x:/mnt/a\\040b/lower,upperdir=/u,workdir=/w\n\
            78 22 0:62 / /other rw - overlay overlay rw,lowerdir=/mnt/a:/mnt,upperdir=/u,workdir=/w\n\
            79 22 0:63 / /upper rw - overlay overlay rw,lowerdir=/x,upperdir=/bound/u,workdir=/bound/w\n";
        let expected = [
            Holder::Mount("/bound".into()),
            Holder::Mount("/mnt/a b/below".into()),
            Holder::Overlay("/merged".into()),
            Holder::Overlay("/upper".into()),
        ];
        assert_eq!(found(list), expected);
        assert_eq!(found("22 1 8:1 / / rw - ext4 /dev/sda rw\ngarbage\n"), []);
        // Detached from the tree, but still below an overlay.
        let overlay = "77 22 0:61 / /merged rw - overlay overlay rw,lowerdir+=/mnt/a\\040b,lowerdir+=/x\n";
        assert_eq!(found(overlay), [Holder::Overlay("/merged".into())]);
    }

    #[test]
    fn layers_with_odd_names_are_split_where_the_kernel_splits_them() {
        let expected: [PathBuf; 4] = ["/a:b".into(), "/c,d".into(), "/e f:g".into(), "/h:i".into()];
        let options = b"rw,lowerdir=/a\\134:b:/c\\054d,upperdir=/e\\040f:g,index=off,lowerdir+=/h:i";
        assert_eq!(layers(options), expected);
    }

    #[test]
    fn mapped_files_are_known_by_their_device() {
        let maps = b"55d0-55d1 r--p 00000000 00:34 123 /mnt/program\n7f00-7f01 rw-p 00000000 00:00 0 [heap]\n";
        assert!(maps_from(maps, "0:52") && !maps_from(maps, "0:34") && !maps_from(maps, "nothing"));
    }

    #[test]
    fn a_sentence_names_some_and_counts_the_rest() {
        let process = |id| Holder::Process(id, "sh".into(), BTreeSet::from([Use::OpenFiles, Use::CurrentDirectory]));
        assert_eq!(in_words(&[]), None);
        assert_eq!(in_words(&[process(7)]).expect("words"), "sh (process 7: current directory, open files)");
        let two = [Holder::Overlay("/o".into()), Holder::Loop("/dev/loop0".into(), "/mnt/file".into())];
        assert_eq!(in_words(&two).expect("words"), "the overlay at /o and /dev/loop0 (/mnt/file)");
        let many: Vec<Holder> = (0..8).map(|index| Holder::Mount(format!("/{index}").into())).collect();
        assert!(in_words(&many).expect("words").ends_with("the mount at /4 and 3 more"));
    }

    #[test]
    fn a_process_is_known_by_what_it_has_open() {
        let directory = tempfile::tempdir().expect("a directory");
        let device = device_of(directory.path()).expect("there");
        let mut child = std::process::Command::new("cat")
            .current_dir(directory.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("cat");
        let id = child.id() as i32;
        // Between fork and exec the child still runs this program, in this program's directory.
        let start = std::time::Instant::now();
        while name_of(id) != "cat" && start.elapsed() < std::time::Duration::from_secs(60) {
            std::thread::yield_now();
        }
        assert!(uses(id, &device).contains(&Use::CurrentDirectory));
        assert!(uses(id, "0:99999").is_empty());
        let found = processes(&device);
        assert!(found.iter().any(|holder| matches!(holder, Holder::Process(other, name, _) if *other == id && name == "cat")), "{found:?}");
        drop(child.stdin.take());
        child.wait().expect("ended");
    }
}

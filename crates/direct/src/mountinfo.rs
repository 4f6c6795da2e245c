//! What the kernel's list of mounts says about this mount: whether the door may serve it ([CRD3]), and where something else is mounted in it
//! ([D14]). All clients are in the daemon's mount namespace, so one list is everybody's.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use tandemfs_format::InodeNumber;
use tandemfs_vfs::{At, Capabilities, Credentials, Process, Subject, Vfs};

use crate::mutant::{self, Mutant};
use crate::server::MountIdentity;

/// The list, which can be polled for changes.
pub(crate) struct MountInfo(File);

/// What it says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Found {
    /// Why the door cannot serve the mount now.
    pub(crate) closed: Option<&'static str>,
    /// Mounts of the file system that clients may come by: whole ones, as writable as the daemon's.
    pub(crate) ids: Vec<u64>,
    /// Paths in the file system on which something is mounted, with the number of that mount.
    inner: Vec<(u64, Vec<u8>)>,
}

impl MountInfo {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self(File::open("/proc/self/mountinfo")?))
    }

    /// Has priority data (POLLPRI) when the list has changed since it was read.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn read(&mut self, mount: &MountIdentity) -> io::Result<Found> {
        let mut text = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut text)?;
        Ok(found(&text, mount))
    }
}

/// The inodes on which something is mounted, each as long as that mount is there: the list has paths as the kernel knows them, which what others
/// have renamed by the door no longer has.
#[derive(Default)]
pub(crate) struct MountPoints(HashMap<u64, Vec<InodeNumber>>);

impl MountPoints {
    /// Those of a list. May wait.
    pub(crate) fn of(&mut self, found: &Found, vfs: &Vfs) -> HashSet<InodeNumber> {
        let everybody = Process::of(Credentials::new(0, 0, &[], Capabilities::ALL));
        let mut before = std::mem::take(&mut self.0);
        for (id, path) in &found.inner {
            let mut inodes = before.remove(id).filter(|_| !mutant::on(Mutant::MountPointsForgotten)).unwrap_or_default();
            let now = vfs.stat(&everybody, Subject::unfollowed(At::Root, path)).map(|attributes| attributes.inode);
            // The number may be that of another mount already: both count.
            inodes.extend(now.ok().filter(|now| !inodes.contains(now)));
            self.0.insert(*id, inodes);
        }
        self.0.values().flatten().copied().collect()
    }
}

struct Line {
    id: u64,
    parent: u64,
    device: Vec<u8>,
    root: Vec<u8>,
    place: Vec<u8>,
    flags: Vec<u8>,
    of_file_system: Vec<u8>,
}

fn line(text: &[u8]) -> Option<Line> {
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    let mut fields = text.split(|byte| *byte == b' ');
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let (device, root, place) = (fields.next()?.to_vec(), unescaped(fields.next()?), unescaped(fields.next()?));
    let flags = fields.next()?.to_vec();
    let of_file_system = fields.skip_while(|field| *field != b"-").nth(3)?.to_vec();
    Some(Line { id, parent, device, root, place, flags, of_file_system })
}

/// Without the kernel's octal escapes, as `\040`.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match digits {
            Some(digits) => {
                bytes.push(digits.iter().fold(0_u8, |value, digit| value.wrapping_mul(8) + (digit - b'0')));
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

fn found(text: &[u8], mount: &MountIdentity) -> Found {
    let lines: Vec<Line> = text.split(|byte| *byte == b'\n').filter_map(line).collect();
    let device = format!("{}:{}", mount.major, mount.minor).into_bytes();
    let ours = || lines.iter().filter(|line| line.device == device);
    let main = ours().find(|line| line.root == b"/" && line.place == mount.mountpoint.as_os_str().as_bytes());
    let has = |list: &[u8], flag: &[u8]| list.split(|byte| *byte == b',').any(|word| word == flag);
    let closed = match main {
        None => Some("it is not in the list of mounts any more"),
        Some(main) if !mount.is_read_only && (has(&main.flags, b"ro") || has(&main.of_file_system, b"ro")) => Some("it was made read-only"),
        Some(_) if ours().any(|line| has(&line.flags, b"idmapped")) => Some("it is idmapped"),
        Some(_) => None,
    };
    let is_whole = |line: &&Line| line.root == b"/" && (mount.is_read_only || !has(&line.flags, b"ro"));
    let ids = ours().filter(is_whole).map(|line| line.id).collect();
    let inner = ours().flat_map(|outer| {
        let below = lines.iter().filter(|line| line.parent == outer.id && line.id != outer.id);
        below.filter_map(|line| Some((line.id, inside(outer, &line.place)?)))
    });
    Found { closed, ids, inner: inner.collect() }
}

/// The path in the file system, without a leading slash, of a place below one of its mounts.
fn inside(outer: &Line, place: &[u8]) -> Option<Vec<u8>> {
    let below = match outer.place.as_slice() {
        b"/" => place.strip_prefix(b"/")?,
        outer => place.strip_prefix(outer)?.strip_prefix(b"/")?,
    };
    let root = outer.root.strip_prefix(b"/")?;
    let path = if root.is_empty() { below.to_vec() } else { [root, b"/", below].concat() };
    (!path.is_empty()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "30 1 8:1 / / rw - ext4 /dev/sda rw\n";

    fn said(lines: &str) -> Found {
        let mount = MountIdentity { major: 0, minor: 57, mountpoint: "/mnt/a b".into(), user: 0, is_read_only: false };
        found(format!("{BEFORE}{lines}").as_bytes(), &mount)
    }

    #[test]
    fn what_is_mounted_inside_is_found_also_below_a_bind_mount() {
        let ours = "40 30 0:57 / /mnt/a\\040b rw,nosuid shared:1 - fuse.tandemfs x rw,user_id=0\n";
        assert_eq!(said(ours), Found { ids: vec![40], ..Found::default() });
        let all = said(&format!(
            "{ours}41 40 0:60 / /mnt/a\\040b/sub/deep rw - tmpfs t rw\n42 30 0:57 /sub /elsewhere rw - fuse.tandemfs x rw\n\
             43 42 0:61 / /elsewhere/x rw - tmpfs t rw\n44 30 0:62 / /mnt/a\\040bc rw - tmpfs t rw\n\
             45 30 0:57 / /again rw - fuse.tandemfs x rw\n46 30 0:57 / /readable ro - fuse.tandemfs x rw\n"
        ));
        assert_eq!(all, Found { closed: None, ids: vec![40, 45], inner: vec![(41, b"sub/deep".to_vec()), (43, b"sub/x".to_vec())] });
    }

    #[test]
    fn a_mount_that_others_have_changed_is_left_to_the_kernel() {
        let with = |flags, of_file_system| {
            said(&format!("40 30 0:57 / /mnt/a\\040b {flags} shared:1 - fuse.tandemfs x {of_file_system}\n")).closed
        };
        assert_eq!(with("rw", "rw,user_id=0"), None);
        assert_eq!(with("ro", "rw"), Some("it was made read-only"));
        assert_eq!(with("rw", "ro"), Some("it was made read-only"));
        assert_eq!(with("rw,idmapped", "rw"), Some("it is idmapped"));
        assert_eq!(said("").closed, Some("it is not in the list of mounts any more"));
    }
}

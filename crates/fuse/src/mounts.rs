//! The mounted TandemFS, read from `/proc/self/mountinfo`. That works even if a daemon hangs, or if permissions keep this user out of the
//! mount.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file system type of TandemFS mounts.
const FILE_SYSTEM_TYPE: &str = "fuse.tandemfs";
/// The part of the type after `fuse.`.
pub(crate) const SUBTYPE: &str = "tandemfs";

/// A mounted TandemFS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The mountpoint.
    pub mountpoint: PathBuf,
    /// Device number, `major:minor`.
    pub device_number: String,
    /// The source, as `findmnt` shows it.
    pub source: OsString,
    /// The user who mounted it.
    pub user: u32,
    /// The flags that the kernel has of the mount now: `ro` or `rw`, `nosuid`, `nodev`, `noexec`, `noatime`, `sync`, `dirsync` and so on. A
    /// remount changes them without the daemon.
    pub flags: Vec<String>,
}

impl Mounted {
    /// Whether the kernel has a flag of it.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|has| has == flag)
    }
}

/// The TandemFS mounted at a path; if there are several, the topmost. Symbolic links are followed.
pub fn find(path: &Path) -> io::Result<Option<Mounted>> {
    let absolute = resolve(path)?;
    Ok(mounted()?.into_iter().rev().find(|mount| mount.mountpoint == absolute))
}

/// The TandemFS that a file is in, and its path with symbolic links followed.
pub fn containing(path: &Path) -> io::Result<Option<(Mounted, PathBuf)>> {
    let absolute = path.canonicalize()?;
    let device = fs::metadata(&absolute)?.dev();
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    Ok(mounted()?.into_iter().rev().find(|mount| mount.device_number == number).map(|mount| (mount, absolute)))
}

/// All mounted TandemFS, in mount order.
pub fn mounted() -> io::Result<Vec<Mounted>> {
    Ok(fs::read("/proc/self/mountinfo")?.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// The device number of what is mounted at an absolute path, whatever it is; the topmost, if there are several.
pub(crate) fn device_at(mountpoint: &Path) -> io::Result<Option<String>> {
    Ok(topmost(&fs::read("/proc/self/mountinfo")?, mountpoint))
}

fn topmost(list: &[u8], mountpoint: &Path) -> Option<String> {
    let at = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let device_number = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
        (Path::new(&unescape(fields.nth(1)?)) == mountpoint).then_some(device_number)
    };
    list.rsplit(|byte| *byte == b'\n').find_map(at)
}

/// The absolute path of a mountpoint. If the mountpoint itself cannot be resolved, since its daemon died, only its parent directory is.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Ok(absolute) => Ok(absolute),
        Err(error) => match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if error.kind() != io::ErrorKind::NotFound => {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                Ok(parent.canonicalize()?.join(name))
            }
            _ => Err(error),
        },
    }
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device_number = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let mountpoint = unescape(fields.nth(1)?);
    let of_mount = String::from_utf8_lossy(fields.next()?).into_owned();
    let mut after = fields.skip_while(|field| *field != b"-").skip(1);
    if after.next()? != FILE_SYSTEM_TYPE.as_bytes() {
        return None;
    }
    let source = unescape(after.next()?);
    let options = String::from_utf8_lossy(after.next()?).into_owned();
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")).and_then(|user| user.parse().ok())?;
    let flags = flags(&of_mount, &options);
    Some(Mounted { mountpoint: mountpoint.into(), device_number, source, user, flags })
}

/// The flags of a mount and those of its file system: each has a `ro` of its own, and either forbids writing.
fn flags(of_mount: &str, of_file_system: &str) -> Vec<String> {
    let both = || of_mount.split(',').chain(of_file_system.split(','));
    let access = if both().any(|flag| flag == "ro") { "ro" } else { "rw" };
    let of_file_system = of_file_system.split(',').filter(|flag| matches!(*flag, "sync" | "dirsync"));
    let others = of_mount.split(',').filter(|flag| !matches!(*flag, "ro" | "rw")).chain(of_file_system);
    std::iter::once(access).chain(others).map(str::to_owned).collect()
}

/// Decodes the kernel's octal escapes, as `\040`.
pub(crate) fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let escaped = (*first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_found_with_odd_names() {
        let line = b"74 29 0:52 / /mnt/a\\040b rw,nosuid,nodev shared:7 - fuse.tandemfs /images/x\\134y rw,user_id=1000,group_id=100";
        let flags = ["rw", "nosuid", "nodev"].map(str::to_owned).to_vec();
        let expected =
            Mounted { mountpoint: "/mnt/a b".into(), device_number: "0:52".into(), source: "/images/x\\y".into(), user: 1000, flags };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(b"74 29 0:52 / /mnt rw - ext4 /dev/sda rw"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn what_is_mounted_at_a_path_is_the_topmost_of_any_kind() {
        let list = b"74 29 0:52 / /mnt/a\\040b rw - fuse.tandemfs x rw\n75 29 0:53 / /mnt/a\\040b rw - tmpfs x rw\n76 29 0:54 / /mnt rw - ext4 x rw\n";
        assert_eq!(topmost(list, Path::new("/mnt/a b")), Some("0:53".into()));
        assert_eq!((topmost(list, Path::new("/mnt")), topmost(list, Path::new("/"))), (Some("0:54".into()), None));
    }

    #[test]
    fn flags_are_those_of_the_mount_and_of_its_file_system() {
        assert_eq!(flags("rw,nosuid,noatime", "ro,sync,dirsync,user_id=0"), ["ro", "nosuid", "noatime", "sync", "dirsync"]);
        assert_eq!(flags("ro,nodev", "rw,user_id=0"), ["ro", "nodev"]);
    }

    #[test]
    fn paths_that_exist_resolve_and_absent_ones_say_so() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("exists");
        assert_eq!(resolve(&root.join(".")).expect("exists"), root);
        assert_eq!(resolve(&root.join("absent")).expect_err("absent").kind(), io::ErrorKind::NotFound);
    }
}

//! Where a path begins ([PRL1] of `lib.rs`, [D14]).

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::descriptions;
use crate::mutant::{Mutant, on};
use crate::report::Way;
use crate::settings::Settings;

/// Longer paths, with their NUL, are refused by the kernel.
const PATH_BYTES_MAX: usize = 4096;
/// Most parts of a path that the kernel is asked about, and their length with a NUL: a signal handler's stack may be small.
const PART_BYTES_MAX: usize = 1024;
const PARTS_MAX: usize = 3;

/// Where a path begins.
#[derive(Clone, Copy)]
pub(crate) enum At {
    /// The root of the mount.
    Root,
    /// A directory that the kernel has open under a number, and its inode.
    Directory(c_int, u64),
    /// A directory that the door has open under the number of a placeholder.
    Placeholder(c_int),
}

/// A path of a call, which begins on the mount.
#[derive(Clone, Copy)]
pub(crate) struct Begun<'p> {
    pub(crate) at: At,
    /// The path from there on.
    pub(crate) path: &'p Path,
}

/// The text of a path; none for what the kernel refuses.
///
/// # Safety
/// Null, or a text that ends with NUL and stays as it is.
unsafe fn text<'p>(path: *const c_char) -> Option<&'p [u8]> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's text.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    (!path.is_empty() && path.len() < PATH_BYTES_MAX).then_some(path)
}

/// What remains of an absolute path behind the mountpoint; none if it does not lead there without links and `..`, or only there.
pub(crate) fn inside<'p>(settings: &Settings, path: &'p [u8]) -> Option<&'p [u8]> {
    behind(settings.mountpoint.as_bytes(), path)
}

fn behind<'p>(mountpoint: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let mut rest = path;
    for expected in mountpoint.split(|byte| *byte == b'/').filter(|component| !component.is_empty()) {
        rest = without_slashes(rest)?;
        rest = rest.strip_prefix(expected)?;
    }
    let rest = without_slashes(rest)?;
    (!rest.is_empty()).then_some(rest)
}

/// The path behind slashes and `.`, of which there is at least one slash.
fn without_slashes(path: &[u8]) -> Option<&[u8]> {
    let mut rest = path.strip_prefix(b"/")?;
    loop {
        rest = match rest {
            [b'/', after @ ..] => after,
            [b'.', after @ ..] if after.first().is_none_or(|byte| *byte == b'/') => after,
            _ => return Some(rest),
        }
    }
}

/// Before the kernel follows a path that may name a descriptor, as `/dev/stdin` and `/proc/self/fd/3`, there are no placeholders ([PRL13]).
pub(crate) fn before_path(path: &[u8]) {
    const NAMES: [&[u8]; 3] = [b"/proc/", b"/dev/fd", b"/dev/std"];
    if descriptions::are_there() && NAMES.iter().any(|name| path.starts_with(name)) {
        descriptions::all_real(Way::KernelNeeded);
    }
}

/// Asks the kernel where a path begins; none if that is not on the mount. A placeholder of a directory stays one: whoever leaves the call to the
/// mount afterwards makes it real.
///
/// # Safety
/// `path` is null, or a text that ends with NUL and stays as it is.
pub(crate) unsafe fn of<'p>(settings: &Settings, descriptor: c_int, path: *const c_char) -> Option<Begun<'p>> {
    // SAFETY: the caller's text.
    let Some(path) = (unsafe { text(path) }) else {
        descriptions::real(descriptor); // it is meant itself
        return None;
    };
    before_path(path);
    let from = |at, rest| Begun { at, path: Path::new(OsStr::from_bytes(rest)) };
    if path[0] == b'/' {
        if let Some(rest) = inside(settings, path) {
            return settings.mount.is_at(libc::AT_FDCWD, &settings.mountpoint).then(|| from(At::Root, rest));
        }
    } else if descriptions::is_directory(descriptor) {
        return Some(from(At::Placeholder(descriptor), path));
    } else {
        descriptions::real(descriptor); // no directory
        if let Some(inode) = inode_of(settings, descriptor) {
            let at = if inode == settings.mount.root { At::Root } else { At::Directory(descriptor, inode) };
            return Some(from(at, path));
        }
    }
    through(settings, descriptor, path).map(|rest| from(At::Root, rest))
}

/// The inode where a relative path begins; none if that is elsewhere.
fn inode_of(settings: &Settings, descriptor: c_int) -> Option<u64> {
    static REMEMBERED: AtomicU64 = AtomicU64::new(0);
    let is_remembered = on(Mutant::DirectoryRemembered) && descriptor == libc::AT_FDCWD;
    if is_remembered && REMEMBERED.load(Relaxed) != 0 {
        return Some(REMEMBERED.load(Relaxed));
    }
    let inode = settings.mount.inode(descriptor, c"")?;
    if is_remembered {
        REMEMBERED.store(inode, Relaxed);
    }
    Some(inode)
}

/// What remains behind a part of the path that leads to the root of the mount. Only parts that end like the mountpoint are tried.
fn through<'p>(settings: &Settings, descriptor: c_int, path: &'p [u8]) -> Option<&'p [u8]> {
    let mountpoint = settings.mountpoint.as_bytes();
    let name = mountpoint.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty())?;
    let mut ends = ends_of(path, name).take_while(|end| *end < PART_BYTES_MAX).take(PARTS_MAX).peekable();
    ends.peek()?;
    let mut buffer = [0; PART_BYTES_MAX];
    ends.find_map(|end| {
        let rest = without_slashes(&path[end..]).filter(|rest| !rest.is_empty())?;
        buffer[..end].copy_from_slice(&path[..end]);
        buffer[end] = 0;
        let part = CStr::from_bytes_until_nul(&buffer).ok()?;
        settings.mount.is_at(descriptor, part).then_some(rest)
    })
}

/// Where components of this name end that something follows.
fn ends_of<'p>(path: &'p [u8], name: &'p [u8]) -> impl Iterator<Item = usize> + 'p {
    let ends = (name.len()..path.len()).filter(|end| path[*end] == b'/');
    ends.filter(|end| path[..*end].ends_with(name) && (*end == name.len() || path[end - name.len() - 1] == b'/'))
}

#[cfg(test)]
mod tests {
    use super::{behind, ends_of};

    #[test]
    fn parts_that_end_like_the_mountpoint_are_found() {
        let ends = |path: &'static str| ends_of(path.as_bytes(), b"mt").collect::<Vec<_>>();
        assert_eq!(ends("mt/a/mt/b/mt"), [2, 7]);
        assert_eq!(ends("/x/mt//a"), [5]);
        assert_eq!((ends("mt"), ends("amt/b"), ends("mta/b"), ends("")), (vec![], vec![], vec![], vec![]));
    }

    #[test]
    fn paths_behind_the_mountpoint_are_found() {
        let found = |path: &'static str| behind(b"/mnt/t", path.as_bytes()).map(|rest| std::str::from_utf8(rest).expect("text"));
        assert_eq!(found("/mnt/t/a"), Some("a"));
        assert_eq!(found("//mnt/./t//./a/"), Some("a/"));
        assert_eq!(found("/mnt/t/../t/a"), Some("../t/a"), "the daemon says that it leads out");
        assert_eq!(found("/mnt/t/.a"), Some(".a"));
        for other in ["/mnt/t", "/mnt/t/", "/mnt/t/.", "/mnt/ta", "/mnt", "/", "/x/../mnt/t/a", "/mnt/../mnt/t/a", "/.mnt/t/a", "/mnt.t/a"]
        {
            assert_eq!(found(other), None, "{other}");
        }
    }
}

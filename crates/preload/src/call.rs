//! A call with one path or two: by the door, or not.

use std::ffi::{c_char, c_int};
use std::path::Path;
use std::sync::Arc;

use tandemfs_client::{AtFlags, Attributes, Errno, Error, File, KnownStart, Result, Start, Tree, Why};

use crate::descriptions::{self, Description};
use crate::door::Door;
use crate::inside::Inside;
use crate::mutant::{Mutant, on};
use crate::report::{Call, Way, count};
use crate::settings::{self, Settings};
use crate::start::{self, At, Begun};
use crate::{directories, door, outside};

/// What a call does to the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing: it may be made again.
    Looks,
    /// It must not be made twice ([PRL5] of `lib.rs`).
    Changes,
}

/// A descriptor and a path, as a program gives them.
pub(crate) type Named = (c_int, *const c_char);

/// A call by the door; none if the mount has to do it, or the path is elsewhere.
///
/// # Safety
/// The path is null, or a text that ends with NUL and stays as it is during the call.
pub(crate) unsafe fn by_path<T>(
    call: Call,
    kind: Kind,
    named: Named,
    work: impl FnOnce(Start<'_>, &Path) -> Result<T>,
) -> Option<std::result::Result<T, Errno>> {
    // SAFETY: the caller's text.
    unsafe { by_path_and_door(call, kind, named, |_, start, path| work(start, path)) }
}

/// As [`by_path`], for work that also needs what the connection keeps.
///
/// # Safety
/// As [`by_path`].
pub(crate) unsafe fn by_path_and_door<T>(
    call: Call,
    kind: Kind,
    named: Named,
    work: impl FnOnce(&Door, Start<'_>, &Path) -> Result<T>,
) -> Option<std::result::Result<T, Errno>> {
    // SAFETY: the caller's text.
    unsafe { by_path_or_not(call, kind, named, |door, start, path| Ok(work(door, start, path))) }
}

/// As [`by_path_and_door`], for work that may leave the call to the mount.
///
/// # Safety
/// As [`by_path`].
pub(crate) unsafe fn by_path_or_not<T>(
    call: Call,
    kind: Kind,
    (descriptor, path): Named,
    work: impl FnOnce(&Arc<Door>, Start<'_>, &Path) -> std::result::Result<Result<T>, Way>,
) -> Option<std::result::Result<T, Errno>> {
    let settings = settings::get()?;
    // SAFETY: the caller's text.
    let begun = unsafe { start::of(settings, descriptor, path) }?;
    by_begun(settings, call, kind, descriptor, &begun, work)
}

/// As [`by_path_or_not`], where it was asked before where the path begins.
pub(crate) fn by_begun<T>(
    settings: &'static Settings,
    call: Call,
    kind: Kind,
    descriptor: c_int,
    begun: &Begun<'_>,
    work: impl FnOnce(&Arc<Door>, Start<'_>, &Path) -> std::result::Result<Result<T>, Way>,
) -> Option<std::result::Result<T, Errno>> {
    let done = by_door(settings, call, kind, |inside| {
        let place = Place::of(inside, settings, begun)?;
        work(inside.door(), place.start(inside), begun.path)
    });
    done.or_else(|| descriptions::real_directory(descriptor).map(Err))
}

/// What is known of a path without entering ([PRL21]).
fn known(begun: &Begun<'_>, flags: AtFlags) -> Option<std::result::Result<Attributes, Errno>> {
    let start = || match begun.at {
        At::Root => Some(KnownStart::ROOT),
        At::Directory(_, inode) => outside::directory(inode),
        At::Placeholder(_) => None, // whose number has to be looked up inside
    };
    outside::attributes(start, begun.path, flags)
}

/// Whether it is known that a path leads nowhere: then nothing can be opened there that is not made ([PRL21]).
pub(crate) fn is_known_absent(begun: &Begun<'_>, follows: bool) -> bool {
    let flags = if follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    matches!(known(begun, flags), Some(Err(Errno::NOENT)))
}

/// The attributes of what is at a path, with flags of fstatat(2): known ones without entering ([PRL21]).
///
/// # Safety
/// As [`by_path`].
pub(crate) unsafe fn attributes(call: Call, named: Named, flags: AtFlags) -> Option<std::result::Result<Attributes, Errno>> {
    let settings = settings::get()?;
    // SAFETY: the caller's text.
    let begun = unsafe { start::of(settings, named.0, named.1) }?;
    if let Some(told) = known(&begun, flags) {
        count(call, Way::Door);
        return Some(told);
    }
    by_begun(settings, call, Kind::Looks, named.0, &begun, |door, start, path| {
        let found = start.target(path, flags).attributes();
        outside::show(door);
        Ok(found)
    })
}

/// As [`by_path`], with two paths, for work that may leave the call to the mount.
///
/// # Safety
/// Each path is null, or a text that ends with NUL and stays as it is during the call.
pub(crate) unsafe fn by_paths<T>(
    call: Call,
    kind: Kind,
    first: Named,
    second: Named,
    work: impl FnOnce((Start<'_>, &Path), (Start<'_>, &Path)) -> std::result::Result<Result<T>, Way>,
) -> Option<std::result::Result<T, Errno>> {
    let settings = settings::get()?;
    // SAFETY: the caller's texts.
    let begun = unsafe { start::of(settings, first.0, first.1).zip(start::of(settings, second.0, second.1)) };
    let done = begun.and_then(|(from, to)| {
        by_door(settings, call, kind, |inside| {
            let (old, new) = (Place::of(inside, settings, &from)?, Place::of(inside, settings, &to)?);
            work((old.start(inside), from.path), (new.start(inside), to.path))
        })
    });
    done.or_else(|| [first.0, second.0].into_iter().find_map(descriptions::real_directory).map(Err))
}

/// Counts a call on the mount whose arguments are left to the kernel.
///
/// # Safety
/// As [`by_path`].
pub(crate) unsafe fn leave_to_kernel(call: Call, named: Named) {
    // SAFETY: the caller's text.
    unsafe { leave_to_kernel_because(Way::Arguments, call, named) };
}

/// As [`leave_to_kernel`], for another reason; whether it is a call on the mount.
///
/// # Safety
/// As [`by_path`].
pub(crate) unsafe fn leave_to_kernel_because(why: Way, call: Call, (descriptor, path): Named) -> bool {
    let Some(settings) = settings::get() else { return false };
    // SAFETY: the caller's text.
    let is_ours = unsafe { start::of(settings, descriptor, path) }.is_some();
    if is_ours {
        count(call, why);
        descriptions::real(descriptor);
    }
    is_ours
}

/// A call by the door, or none if `work` or the state of the connection leaves it to the mount. What `work` has said to the daemon before it
/// leaves the call must have changed nothing.
pub(crate) fn by_door<T>(
    settings: &'static Settings,
    call: Call,
    kind: Kind,
    work: impl FnOnce(&Inside) -> std::result::Result<Result<T>, Way>,
) -> Option<std::result::Result<T, Errno>> {
    let inside = match Inside::enter(settings) {
        Ok(inside) => inside,
        Err(way) => {
            count(call, way);
            return None;
        }
    };
    // Nothing was said yet, so the mount may still do it.
    if kind == Kind::Changes && inside.door().mount().has_ended() {
        door::ended(inside.door());
        count(call, Way::Ended);
        return None;
    }
    let way = match work(&inside) {
        Err(way) => way,
        Ok(Ok(result)) => {
            count(call, Way::Door);
            return Some(Ok(result));
        }
        Ok(Err(Error::Crossed(crossed))) => match crossed.why {
            Why::Absolute => Way::Absolute,
            Why::AboveRoot => Way::AboveRoot,
            Why::MountPoint => Way::MountPoint,
            Why::RemovedDirectory => Way::RemovedDirectory,
            Why::SpecialFile => Way::SpecialFile,
            Why::NotServed => Way::NotServed,
            Why::Cached => Way::Pages,
            Why::Grows => Way::Grows,
            Why::Watched => Way::Watched,
        },
        Ok(Err(Error::Errno(Errno::NOTCONN | Errno::PROTO))) => {
            door::ended(inside.door());
            if kind == Kind::Changes && !on(Mutant::ChangeRepeated) {
                count(call, Way::Door);
                return Some(Err(Errno::NOTCONN)); // [PRL5]
            }
            Way::Ended
        }
        Ok(Err(Error::Errno(Errno::NOMEM))) if kind == Kind::Looks => Way::NoMemory,
        // The mount waits for space that is about to be free; nothing was changed.
        Ok(Err(Error::Errno(Errno::NOSPC))) => Way::NoSpace,
        Ok(Err(Error::Errno(number))) => {
            count(call, Way::Door);
            return Some(Err(number));
        }
    };
    count(call, way);
    None
}

/// Where a path begins, for the door.
enum Place {
    Root,
    Directory(Arc<File>),
    Placeholder(Arc<Description>),
}

impl Place {
    fn of(inside: &Inside, settings: &Settings, begun: &Begun<'_>) -> std::result::Result<Self, Way> {
        match begun.at {
            At::Root => Ok(Self::Root),
            At::Directory(descriptor, inode) => {
                directories::handle(inside.door(), settings, descriptor, inode).map(Self::Directory).ok_or(Way::UnknownDirectory)
            }
            // It may have become real since it was looked at.
            At::Placeholder(number) => descriptions::directory(number).map(Self::Placeholder).ok_or(Way::OtherFile),
        }
    }

    fn start<'s>(&'s self, inside: &'s Inside) -> Start<'s> {
        match self {
            Self::Root => Start::Root(inside.door().mount()),
            Self::Directory(file) => Start::Directory(file),
            Self::Placeholder(open) => Start::Directory(&open.file),
        }
    }
}

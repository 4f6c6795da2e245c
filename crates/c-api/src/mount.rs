//! Connections, and what concerns the whole mount.

use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use tandemfs_client::Mount;

use crate::failure::{Failure, Result};
use crate::guard::guarded;
use crate::held::MountHandle;
use crate::memory::{Answer, handle, path, room, store_text, take, value};
use crate::mutant;
use crate::types::{
    Options, Space, TANDEMFS_DESCRIPTORS, TANDEMFS_KEEPS_NOTHING, TANDEMFS_LEAVES_WATCHED, TANDEMFS_LOADS, TANDEMFS_MAPS,
    TANDEMFS_MAPS_FOR_STORES, TANDEMFS_STORES, TANDEMFS_UMASK, TANDEMFS_VERSION,
};

const OPTION_FLAGS: u32 =
    TANDEMFS_LOADS | TANDEMFS_STORES | TANDEMFS_MAPS | TANDEMFS_LEAVES_WATCHED | TANDEMFS_KEEPS_NOTHING | TANDEMFS_UMASK;

/// Why a connection was not made, with a sentence.
struct Refusal(Failure, String);

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self(failure, format!("an argument is null, or not valid: {}", std::io::Error::from_raw_os_error(-failure.returned())))
    }
}

/// A number, or another one for 0.
fn or<T: Default + PartialEq>(number: T, default: T) -> T {
    if number == T::default() { default } else { number }
}

/// # Safety
/// The pointer is null or points to options, as far as their size says.
unsafe fn options(chosen: *const Options) -> Result<tandemfs_client::Options> {
    let defaults = tandemfs_client::Options::default();
    if chosen.is_null() {
        return Ok(defaults);
    }
    // SAFETY: the size is the first of all options of this and any other version.
    let size = unsafe { chosen.cast::<usize>().read() };
    if size != size_of::<Options>() {
        return Err(Failure::of(libc::EINVAL));
    }
    // SAFETY: by the caller's promise.
    let chosen = unsafe { value(chosen) }?;
    let has = |flag| chosen.flags & flag != 0;
    if chosen.flags & !OPTION_FLAGS != 0 || chosen.umask > 0o777 {
        return Err(Failure::of(libc::EINVAL));
    }
    Ok(tandemfs_client::Options {
        slots: or(chosen.slots, defaults.slots),
        data_bytes: or(chosen.data_bytes, defaults.data_bytes),
        memory_wait: or(Duration::from_millis(chosen.memory_wait_ms.into()), defaults.memory_wait),
        umask: has(TANDEMFS_UMASK).then_some(chosen.umask as u16),
        keeps_answers: !has(TANDEMFS_KEEPS_NOTHING),
        loads: has(TANDEMFS_LOADS),
        stores: has(TANDEMFS_STORES),
        maps: has(TANDEMFS_MAPS),
        leaves_watched: has(TANDEMFS_LEAVES_WATCHED),
        ..defaults
    })
}

/// The interface of the library that runs, as `TANDEMFS_VERSION` is that of the header.
#[unsafe(no_mangle)]
pub extern "C" fn tandemfs_version() -> u32 {
    TANDEMFS_VERSION
}

/// The release of the library, as "0.1.0". It stays.
#[unsafe(no_mangle)]
pub extern "C" fn tandemfs_release() -> *const c_char {
    const RELEASE: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(release) => release,
        Err(_) => c"",
    };
    RELEASE.as_ptr()
}

/// Connects to the mount whose mountpoint is `directory`, and stores a handle in `*mount`. `options` may be null. A process has one connection
/// to a mount: if it has one already, that is meant, as it is, and `options` say nothing.
///
/// Where it fails and `sentence` is not null, a sentence that says why is stored there, in at most `sentence_bytes` bytes with the NUL. The mount
/// itself can still be used. `ENODEV`: no TandemFS is mounted there. `EINVAL`: not the root of a mount, or options that cannot be.
/// `ECONNREFUSED`: the mount has no direct door (`-o direct`). `EREMOTE`: this way to the mount has rules that the door does not know. `EPERM`,
/// and others that the daemon says: it refuses this process. `EPROTONOSUPPORT`: the daemon is of another release. `EPROTO`, `ETIMEDOUT`: it
/// answers wrongly, or not at all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_connect(
    directory: *const c_char,
    options: *const Options,
    mount: *mut *mut MountHandle,
    sentence: *mut c_char,
    sentence_bytes: usize,
) -> c_int {
    guarded(|| {
        mutant::select_named();
        let connect = || {
            // SAFETY: as the header says.
            let (directory, options, mount) = unsafe { (path(directory)?, self::options(options)?, Answer::at(mount)?) };
            let connected = Mount::connect_with(directory, &options);
            let connected = connected.map_err(|error| Refusal(Failure::from(&error), error.to_string()))?;
            Ok::<_, Refusal>(mount.give(Ok(connected))?)
        };
        connect().map_err(|Refusal(failure, why)| {
            // SAFETY: as the header says.
            if let Ok(room) = unsafe { room(sentence.cast(), sentence_bytes) } {
                store_text(&why, room);
            }
            failure
        })?;
        Ok(0)
    })
}

/// Frees a handle. The connection ends with the last handle of it and of its files; those stay usable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_disconnect(mount: *mut MountHandle) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        drop(unsafe { take(mount) }?);
        Ok(0)
    })
}

/// Asks the daemon for nothing. `ENOTCONN`: it is gone, or has ended this connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_ping(mount: *const MountHandle) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        unsafe { handle(mount) }?.ping()?;
        Ok(0)
    })
}

/// Stores in `*abilities` what this connection can do: `TANDEMFS_LOADS`, `TANDEMFS_STORES`, `TANDEMFS_MAPS`, `TANDEMFS_MAPS_FOR_STORES`,
/// `TANDEMFS_DESCRIPTORS`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_abilities(mount: *const MountHandle, abilities: *mut u32) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, abilities) = unsafe { (handle(mount)?, Answer::at(abilities)?) };
        let all = [
            (TANDEMFS_LOADS, mount.loads_by_itself()),
            (TANDEMFS_STORES, mount.stores_by_itself()),
            (TANDEMFS_MAPS, mount.maps()),
            (TANDEMFS_MAPS_FOR_STORES, mount.maps_for_stores()),
            (TANDEMFS_DESCRIPTORS, mount.sends_descriptors()),
        ];
        abilities.store(all.into_iter().filter(|(_, has)| *has).fold(0, |all, (ability, _)| all | ability));
        Ok(0)
    })
}

/// Permissions that files made from now on do not get, up to 0777. The connection does not follow umask(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_umask(mount: *const MountHandle, umask: u32) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let mount = unsafe { handle(mount) }?;
        if umask > 0o777 {
            return Err(Failure::of(libc::EINVAL));
        }
        mount.set_umask(umask as u16);
        Ok(0)
    })
}

/// As statvfs(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_statvfs(mount: *const MountHandle, space: *mut Space) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        let (mount, space) = unsafe { (handle(mount)?, Answer::at(space)?) };
        space.store(mount.space()?.into());
        Ok(0)
    })
}

/// As syncfs(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tandemfs_syncfs(mount: *const MountHandle) -> c_int {
    guarded(|| {
        // SAFETY: as the header says.
        unsafe { handle(mount) }?.sync()?;
        Ok(0)
    })
}

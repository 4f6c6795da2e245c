//! What went which way and why, counted for all processes of a command in one file that they map (`tandemfs run --report`). The file names its
//! own rows and columns, so its reader needs to know neither.
//!
//! 0 magic `TFSRUNS\0` (8), 8 calls (4), 12 ways (4), then a name for each call (24 bytes each) and each way (64 bytes each), ended by NUL; then
//! from the next multiple of 8 on a counter (8) for each call and way.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};

macro_rules! numbered {
    ($(#[$attribute:meta])* $name:ident { $($variant:ident = $text:literal,)* }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $name { $($variant),* }

        impl $name {
            const NAMES: &'static [&'static str] = &[$($text),*];
        }
    };
}

numbered!(
    /// Calls, by the names of the system calls that they are.
    Call {
        Stat = "stat",
        Statx = "statx",
        Access = "access",
        Unlink = "unlink",
        RemoveDirectory = "rmdir",
        MakeDirectory = "mkdir",
        Rename = "rename",
        Link = "link",
        MakeLink = "symlink",
        ReadLink = "readlink",
        ChangeMode = "chmod",
        ChangeOwner = "chown",
        SetTimes = "utimensat",
        GetAttribute = "getxattr",
        SetAttribute = "setxattr",
        ListAttributes = "listxattr",
        RemoveAttribute = "removexattr",
        Read = "pread",
        Write = "pwrite",
        Open = "open",
        ReadNext = "read",
        WriteNext = "write",
        Seek = "lseek",
        StatOpen = "fstat",
        Resize = "ftruncate",
        Allocate = "fallocate",
        Sync = "fsync",
        ChangeOpen = "fchmod",
        Terminal = "isatty",
        Advise = "fadvise",
        Copy = "copy_file_range",
        CloneFile = "ioctl_ficlone",
        Map = "mmap",
        Duplicate = "dup",
        ListOpen = "getdents64",
        Close = "close",
        Real = "real",
    }
);

numbered!(
    /// Which way a call on the mount went; by the mount for the reason that is named.
    Way {
        Door = "door",
        Early = "mount: one of the first calls of a process",
        NoConnection = "mount: no connection",
        OtherProcess = "mount: another process or other ids than the connection's",
        Leaving = "mount: a fork or a change of credentials at the same time",
        Busy = "mount: as many threads in calls as the connection has slots",
        UnknownDirectory = "mount: a directory that cannot be opened by its path",
        Arguments = "mount: arguments that are left to the kernel",
        MovedDirectory = "mount: a directory is moved",
        Absolute = "mount: an absolute link",
        AboveRoot = "mount: .. above the root",
        MountPoint = "mount: something is mounted there",
        RemovedDirectory = "mount: .. of a removed directory",
        SpecialFile = "mount: a device, pipe or socket",
        NotServed = "mount: the daemon does not serve it",
        NoMemory = "mount: no shared memory",
        Ended = "mount: the connection ended",
        Pages = "mount: the kernel keeps pages of the file",
        Grows = "mount: the file grows",
        Watched = "mount: somebody watches the file or directory",
        Access = "mount: how the descriptor was opened",
        UnknownFile = "mount: a file that cannot be opened by its path",
        OtherFile = "mount: the descriptor was closed at the same time",
        NoSpace = "mount: no space at the moment",
        NotRegular = "mount: no regular file",
        Executable = "mount: a program is opened for writing",
        NoNumber = "mount: a number that no placeholder can have",
        MostlyReal = "mount: most files of this process become real",
        KernelNeeded = "mount: a call that needs the kernel's file",
        Fork = "mount: a fork, or another program",
        Loads = "mount: code is being loaded",
        OwnCalls = "mount: code that calls the kernel past libc",
        NotMadeReal = "nobody: the daemon could not open it by the mount",
    }
);

const MAGIC: [u8; 8] = *b"TFSRUNS\0";
const CALL_BYTES: usize = 24;
const WAY_BYTES: usize = 64;
const CALLS_AT: usize = 16;
const WAYS_AT: usize = CALLS_AT + Call::NAMES.len() * CALL_BYTES;
const COUNTERS_AT: usize = (WAYS_AT + Way::NAMES.len() * WAY_BYTES).next_multiple_of(8);
const BYTES: usize = COUNTERS_AT + 8 * Call::NAMES.len() * Way::NAMES.len();

static COUNTERS: OnceLock<&'static [AtomicU64]> = OnceLock::new();

/// Counts a call.
pub(crate) fn count(call: Call, way: Way) {
    if let Some(counters) = COUNTERS.get() {
        counters[call as usize * Way::NAMES.len() + way as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The part of the file before the counters, which every process writes alike.
fn head() -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&(Call::NAMES.len() as u32).to_le_bytes());
    head.extend_from_slice(&(Way::NAMES.len() as u32).to_le_bytes());
    for (names, bytes) in [(Call::NAMES, CALL_BYTES), (Way::NAMES, WAY_BYTES)] {
        for name in names {
            let end = head.len() + bytes;
            head.extend_from_slice(name.as_bytes());
            head.resize(end, 0);
        }
    }
    head.resize(COUNTERS_AT, 0);
    head
}

/// Counts from now on, if the file can be had: it is the user's who runs the command.
pub(crate) fn open(path: &OsStr) {
    let Ok(file) = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
    let is_ready = rustix::fs::fstat(file.as_fd()).is_ok_and(|found| found.st_size >= BYTES as i64);
    // Only the first process makes it grow; counters of others are behind what is written.
    if !is_ready && rustix::fs::ftruncate(&file, BYTES as u64).is_err() || rustix::io::pwrite(&file, &head(), 0) != Ok(COUNTERS_AT) {
        return;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: a new mapping of a file that is long enough; nobody shortens it while the command runs.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, descriptor, 0) };
    if start == libc::MAP_FAILED {
        return;
    }
    // SAFETY: inside the mapping, which stays; aligned to 8; other processes change these words as atomics, too.
    let counters = unsafe { std::slice::from_raw_parts(start.cast::<u8>().add(COUNTERS_AT).cast(), Call::NAMES.len() * Way::NAMES.len()) };
    let _once = COUNTERS.set(counters);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit() {
        assert!(Call::NAMES.iter().all(|name| name.len() < CALL_BYTES) && Way::NAMES.iter().all(|name| name.len() < WAY_BYTES));
        assert_eq!(head().len(), COUNTERS_AT);
    }

    #[test]
    fn counters_of_two_openings_are_one() {
        let path = std::env::temp_dir().join(format!("tandemfs-report-{}", std::process::id()));
        std::fs::write(&path, []).expect("made");
        open(path.as_os_str());
        count(Call::Write, Way::NoSpace);
        open(path.as_os_str());
        count(Call::Write, Way::NoSpace);
        let bytes = std::fs::read(&path).expect("there");
        std::fs::remove_file(&path).expect("removed");
        let at = COUNTERS_AT + 8 * (Call::Write as usize * Way::NAMES.len() + Way::NoSpace as usize);
        assert_eq!((bytes.len(), &bytes[at..at + 8]), (BYTES, &2_u64.to_le_bytes()[..]));
    }
}

//! The environment of a test: its directory, and the capabilities of its host.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;

/// Where TandemFS differs from ext4, each a line of `docs/SEMANTICS.md`. The tests assert these as they assert the rules ([PX1]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// With the write-back cache the kernel reports the whole file as data.
    HolesAreData,
    /// Collapse and insert do not work through the mount (RULES R22).
    NoCollapse,
    /// Reads do not change atime: cached reads never reach the daemon (RULES R22).
    AccessTimesKept,
    /// A directory can have more subdirectories than `st_nlink` can count on ext4.
    ManySubdirectories,
    /// The names of a file's attributes are limited to 64 KiB; ext4 limits all attributes to 4 KiB.
    ManyAttributes,
    /// Files reach 2^63 - 1 B; those of ext4 end at 16 TiB.
    SixteenTebibytes,
    /// With the write-back cache the kernel shows an out-of-range time unchanged until it forgets the inode; then the clamped time.
    TimesOutOfRange,
    /// Attributes have up to 64 KiB each; ext4 has room for 4 KiB of them in all.
    LargeAttributes,
    /// With the write-back cache, bytes that a mapping stored behind the end may appear when a truncation or a write behind a gap extends the file:
    /// the kernel sends the page after the new size and reports neither before.
    StoredBehindTheEnd,
    /// Without it, but through the kernel's cache, the same after a write behind a gap that begins in the page: the kernel sends the page whole.
    StoredBehindTheEndInThePage,
    /// A write past the cache leaves zeros before it, whatever was stored behind the end; ext4 (Linux 6.18) may show it.
    ZerosBeforeDirectWrites,
    /// With the write-back cache the kernel accepts writes without space; their data is dropped, and the next write or fsync reports it.
    CachedWritesMayNotFit,
    /// A call that returns ENOSPC has changed nothing; on ext4 a part of its range may be done.
    NoSpaceChangesNothing,
    /// epoll accepts regular files, which are always ready: the kernel requires a poll method, and regular files of FUSE have one.
    EpollTakesFiles,
    /// Through the kernel's cache without write-back a mapping shows the bytes of a write that found no space until the page is mapped or read
    /// anew, and loses what was stored there and not synchronised: the kernel puts the bytes into the page before it asks.
    RefusedBytesAreLoaded,
    /// On an id-mapped mount, whether a write takes the set-group-id bit of a file without group execute permission depends on the caller's groups
    /// without the map: requests do not tell by which mount they come.
    GroupsAreNotMapped,
    /// On an id-mapped mount, who is not mapped leaves no whiteout where a file is replaced; ext4 (Linux 6.18) makes one of no valid owner.
    NobodyMakesNoWhiteout,
    /// A write with RWF_NOAPPEND to a file that clients of the direct door have changed appends: the kernel's request does not tell it from others of
    /// the descriptor.
    NoAppendIgnored,
    /// What a program changes past the kernel (`tandemfs run`) just after a watch began may go unnoticed.
    WatchesNoticedLater,
}

/// Host memory of a file system in user space, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Resident now, files and shared memory aside.
    pub resident_bytes: u64,
    /// The limit.
    pub resident_bytes_max: u64,
}

/// A file system that the tests run on.
pub trait Host {
    /// Its name in the names of tests.
    fn name(&self) -> &str;

    /// A directory on it. Everybody may enter it.
    fn root(&self) -> &Path;

    /// Whether it differs from ext4 in this.
    fn differs(&self, _difference: Difference) -> bool {
        false
    }

    /// Whether [`Host::remount`] can be called.
    fn can_remount(&self) -> bool {
        false
    }

    /// Unmounts it and mounts it again, with further options in the words of mount(8).
    fn remount(&self, _options: &str) {
        unreachable!("can_remount says no");
    }

    /// Whether mounts of it can be id-mapped.
    fn can_map_ids(&self) -> bool {
        true
    }

    /// Host memory of the serving process and its limit; `None` if unknown.
    fn memory(&self) -> Option<Memory> {
        None
    }

    /// Whether [`Host::crash`] can be called.
    fn can_crash(&self) -> bool {
        false
    }

    /// Kills the daemon and mounts again.
    fn crash(&self) {
        unreachable!("can_crash says no");
    }
}

/// A test's directory on its host.
pub struct Scene<'h> {
    host: &'h dyn Host,
    directory: PathBuf,
}

impl<'h> Scene<'h> {
    /// Makes the directory, runs the test, removes the directory, also when the test fails.
    pub(crate) fn run(host: &'h dyn Host, name: &str, test: fn(&Scene<'_>)) {
        let directory = host.root().join(name.replace("::", "-"));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("changed");
        let scene = Scene { host, directory };
        let removal = Removal(scene.directory.clone());
        test(&scene);
        drop(removal);
    }

    /// A path in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn root(&self) -> &Path {
        self.host.root()
    }

    pub(crate) fn differs(&self, difference: Difference) -> bool {
        self.host.differs(difference)
    }

    pub(crate) fn can_remount(&self) -> bool {
        self.host.can_remount()
    }

    pub(crate) fn remount(&self, options: &str) {
        self.host.remount(options);
    }

    pub(crate) fn crash(&self) {
        self.host.crash();
    }

    /// A file with these bytes.
    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        path
    }

    pub(crate) fn subdirectory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        path
    }
}

/// Removes a tree regardless of its permissions: the tests run as root.
struct Removal(PathBuf);

impl Drop for Removal {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Asserts that a call was refused with an errno.
#[track_caller]
pub(crate) fn refused<T, E: Into<io::Error>>(result: Result<T, E>, expected: Errno) {
    match result {
        Ok(_) => panic!("done, where {expected:?} was due"),
        Err(error) => {
            let error: io::Error = error.into();
            assert_eq!(error.raw_os_error(), Some(expected.raw_os_error()), "{error} where {expected:?} was due");
        }
    }
}

/// An unprivileged user with groups.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: &'static [u32],
}

pub(crate) const ALICE: User = User { uid: 41_001, gid: 41_001, groups: &[] };
pub(crate) const BOB: User = User { uid: 41_002, gid: 41_002, groups: &[] };
/// The shared group.
pub(crate) const SHARED: u32 = 41_100;
/// In thirty-one groups and, the last, the shared one.
pub(crate) const CAROL: User = User {
    uid: 41_003,
    gid: 41_003,
    groups: &[
        42_000, 42_001, 42_002, 42_003, 42_004, 42_005, 42_006, 42_007, 42_008, 42_009, 42_010, 42_011, 42_012, 42_013, 42_014, 42_015,
        42_016, 42_017, 42_018, 42_019, 42_020, 42_021, 42_022, 42_023, 42_024, 42_025, 42_026, 42_027, 42_028, 42_029, 42_030, SHARED,
    ],
};

impl User {
    /// Runs a closure as this user, in its own thread, since Linux credentials belong to threads.
    pub(crate) fn does<T: Send>(self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
                rustix::thread::set_thread_groups(&groups).expect("root may");
                let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
                rustix::thread::set_thread_res_gid(gid, gid, gid).expect("root may");
                rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root may");
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

//! A file system in memory, users, and the calls that tests make again and again.

#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;

use rustix::io::Errno;
use tandemfs_crash::MemoryDevice;
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, make_file_system};
use tandemfs_vfs::{At, Capabilities, Credentials, OpenFile, Process, Refused, Result, Settings, Subject, Vfs};

pub const ROOT: At<'static> = At::Root;

/// An empty file system whose root everybody may write.
pub fn empty() -> Vfs {
    with(Settings::default())
}

/// The same on a drive that is memory alone.
pub fn without_blocks() -> Vfs {
    on(0, Settings::default())
}

pub fn with(settings: Settings) -> Vfs {
    on(16 << 20, settings)
}

fn on(block_zone_bytes: u64, settings: Settings) -> Vfs {
    let device = Arc::new(MemoryDevice::new(32 << 20, block_zone_bytes, PersistenceDomain::Gpf));
    make_file_system(&Drive::new(device.clone()), &FormatOptions::default()).expect("formats");
    let fs = FileSystem::mount(Drive::new(device), &MountOptions::default()).expect("mounts");
    let vfs = Vfs::new(Arc::new(fs), settings);
    vfs.change_mode(&root(), Subject::Path { at: ROOT, path: b".", follows: true, may_be_empty: false }, 0o777).expect("changed");
    vfs
}

pub fn root() -> Process {
    Process::of(Credentials::new(0, 0, &[], Capabilities::ALL))
}

/// A user whose group has the same number.
pub fn user(id: u32, groups: &[u32]) -> Process {
    Process::of(Credentials::new(id, id, groups, Capabilities::NONE))
}

/// A file, or what there was of it, as a process makes it.
pub fn file(vfs: &Vfs, process: &Process, path: &[u8], mode: u32) -> OpenFile {
    let process = Process { umask: 0, ..process.clone() };
    vfs.open(&process, ROOT, path, libc::O_CREAT | libc::O_RDWR, mode).expect("opened")
}

pub fn directory(vfs: &Vfs, process: &Process, path: &[u8], mode: u32) {
    vfs.make_directory(&Process { umask: 0, ..process.clone() }, ROOT, path, mode & 0o1777).expect("made");
    vfs.change_mode(process, Subject::followed(ROOT, path), mode).expect("changed");
}

pub fn link(vfs: &Vfs, target: &[u8], path: &[u8]) {
    vfs.make_link(&root(), target, ROOT, path).expect("made");
}

pub fn mode(vfs: &Vfs, path: &[u8]) -> u16 {
    vfs.stat(&root(), Subject::unfollowed(ROOT, path)).expect("there").mode & 0o7777
}

/// The errno of a refusal.
#[track_caller]
pub fn refused<T>(result: Result<T>, expected: Errno) {
    match result {
        Ok(_) => panic!("done, where {expected:?} was due"),
        Err(refused) => assert_eq!(refused.errno(), Some(expected), "{refused:?}"),
    }
}

/// What is left to the kernel.
#[track_caller]
pub fn crossed<T>(result: Result<T>) -> tandemfs_vfs::Crossed {
    match result {
        Err(Refused::Crossed(crossed)) => *crossed,
        Err(other) => panic!("refused: {other:?}"),
        Ok(_) => panic!("done"),
    }
}

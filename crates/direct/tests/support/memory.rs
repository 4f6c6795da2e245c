//! A file system on memory alone, and what tests of clients that reach that memory have in common.

use std::fs::File as HostFile;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandemfs_crash::Random;
use tandemfs_device::Drive;
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, make_file_system};
use tandemfs_vfs::{Capabilities, Credentials, Process};

/// Nobody is a member.
pub const GROUP: u32 = 54_321;
/// How long something may take on a machine that does much else.
#[allow(dead_code, reason = "not in every test")]
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Until this is dropped, no other test of the program runs: the bug is that of the process, which has one connection to a server.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mounted file system on a file of so many bytes, which has no name any more; and that file.
pub fn file_system(bytes: u64) -> (FileSystem, HostFile) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = std::env::temp_dir().join(format!("tandemfs-door-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed)));
    let image = HostFile::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    image.set_len(bytes).expect("sized");
    let device = open_device(&format!("memory={}", path.display()), &DeviceOptions::default());
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let drive = Drive::new(device.expect("opens"));
    make_file_system(&drive, &FormatOptions::default()).expect("formats");
    (FileSystem::mount(drive, &MountOptions::default()).expect("mounts"), image)
}

/// Who may do anything.
pub fn somebody() -> Process {
    Process { umask: 0, ..Process::of(Credentials::new(0, 0, &[], Capabilities::ALL)) }
}

/// So many random bytes.
pub fn filled(random: &mut Random, length: usize) -> Vec<u8> {
    (0..length.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(length).collect()
}

//! The behaviour tests on ext4, which shows that the tests are right; with `TANDEMFS_TEST_DIR` on any other directory, which is left as it
//! was.
//!
//! Without the standard harness: one file system is made for all tests and always unmounted after them.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tandemfs_posix::{Arguments, Difference, Guardian, Host, NamedDirectory, run, whole_size};

/// ext4 on a loop device over a file in memory.
struct Ext4 {
    _guardian: Guardian,
    directory: tempfile::TempDir,
    root: PathBuf,
}

impl Ext4 {
    fn new() -> Self {
        // Whole sizes do not fit into memory.
        let above = if whole_size() { std::env::temp_dir() } else { "/dev/shm".into() };
        let directory = tempfile::Builder::new().prefix("tandemfs-posix-").tempdir_in(above).expect("a directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("changed");
        let root = directory.path().join("mnt");
        fs::create_dir(&root).expect("a mountpoint");
        let size = if whole_size() { 20 << 30 } else { 1 << 30 };
        File::create(directory.path().join("image")).expect("an image").set_len(size).expect("its size");
        let ext4 = Self { _guardian: Guardian::new(&root, directory.path()), directory, root };
        let image = ext4.image();
        succeeds(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096", "-I", "256", "-N", "1200000"]).arg(image));
        ext4.mount("");
        ext4
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn mount(&self, options: &str) {
        let options = ["loop", options].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(",");
        succeeds(Command::new("mount").args(["-t", "ext4", "-o", &options]).arg(self.image()).arg(&self.root));
    }
}

impl Host for Ext4 {
    fn name(&self) -> &str {
        "ext4"
    }

    fn root(&self) -> &Path {
        &self.root
    }

    /// ext4 is what the others differ from; its own accounting is all that is asked of no other.
    fn differs(&self, _difference: Difference) -> bool {
        false
    }

    fn can_remount(&self) -> bool {
        true
    }

    fn remount(&self, options: &str) {
        succeeds(Command::new("umount").arg(&self.root));
        self.mount(options);
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        // umount(8) frees the loop device as well.
        let done = Command::new("umount").arg(&self.root).status().is_ok_and(|status| status.success());
        if !done {
            let _ = Command::new("umount").arg("--lazy").arg(&self.root).status();
        }
    }
}

/// Gives this process mounts of its own. A program of another test that copies its mounts meanwhile would otherwise keep ext4 mounted after
/// umount(8), and the same image could not be mounted with other options.
fn leave_mounts_of_others() {
    // SAFETY: the process has one thread, and its descriptors stay.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("mounts of its own");
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).expect("mounts that others do not see");
    // Copies of what tests beside this one have mounted would last as long as this process, and with them daemons and loop devices.
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("procfs");
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    for point in points.filter(|point| is_of_a_test(point)).collect::<Vec<_>>().iter().rev() {
        let _gone_already = unmount(*point, UnmountFlags::DETACH);
    }
}

/// Whether a path is in a temporary directory of a test.
fn is_of_a_test(path: &Path) -> bool {
    let below = [Path::new("/dev/shm"), &std::env::temp_dir()].into_iter().find_map(|above| path.strip_prefix(above).ok());
    let first = below.and_then(|below| below.components().next()).map(|name| name.as_os_str().to_string_lossy().into_owned());
    first.is_some_and(|name| ["tandemfs-", ".tmp"].iter().any(|prefix| name.starts_with(prefix)))
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn main() -> ExitCode {
    let arguments = Arguments::of_process();
    let named = std::env::var_os("TANDEMFS_TEST_DIR").map(PathBuf::from);
    let name = if named.is_some() { "directory" } else { "ext4" };
    if arguments.lists(&[name]) || !arguments.wants_any(name) {
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() {
        println!("tests of other file systems: not run, only root may mount ext4 and act as others");
        return ExitCode::SUCCESS;
    }
    let failed = match named {
        Some(directory) => run(&NamedDirectory(&directory), &arguments),
        None => {
            leave_mounts_of_others();
            run(&Ext4::new(), &arguments)
        }
    };
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

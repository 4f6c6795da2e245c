//! File systems, made and mounted as users do it; unmounted when dropped, also after errors and signals.
//!
//! [MT1] Every unmount waits until it is complete, since the drive below is removed right after it.
//! [MT2] Every peer gets its default options, with two exceptions: mkfs discards nothing, so that the pages of a drive in memory stay; ext4
//!       initialises inode tables and journal at mkfs, not in the background during the measurement.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::FileSystem;
use tandemfs_fuse::Unmount;

use super::available::kernel_type;
use super::backing::Backing;
use super::command::{child, command, run, tandemfs};
use super::peer::Peer;
use super::record::Traffic;
use crate::failure::{Failure, Result};
use crate::null_fs;
use crate::scene;

/// How long an unmount may fail with EBUSY: kernel threads release the file system a little after its last user.
const BUSY_WITHIN: Duration = Duration::from_secs(10);
/// How long a daemon may take to exit after its unmount.
const END_WITHIN: Duration = Duration::from_secs(60);
/// Page size of an emulated drive's flash.
const FLASH_PAGE_BYTES: u64 = 4096;
const POLL: Duration = Duration::from_millis(5);

/// A file system that can be measured.
pub trait Mounted {
    /// Makes everything durable and drops every cache that can be dropped.
    ///
    /// # Errors
    /// The file system cannot be unmounted or mounted.
    fn make_cold(&mut self) -> Result<()>;

    /// The process that emulates its drive; its CPU time is not the file system's.
    fn drive(&self) -> Option<u32> {
        None
    }

    /// The daemon that serves it.
    fn daemon(&self) -> Option<u32> {
        None
    }

    /// Resets the traffic counters.
    ///
    /// # Errors
    /// The drive or the daemon does not answer.
    fn begin_traffic(&mut self) -> Result<()>;

    /// Traffic to the drive since then, if it is counted.
    ///
    /// # Errors
    /// The drive or the daemon does not answer.
    fn traffic(&mut self) -> Result<Option<Traffic>>;

    /// The file system as a library.
    fn library(&self) -> Option<Arc<FileSystem>> {
        None
    }

    /// Takes the file system down.
    ///
    /// # Errors
    /// It could not be taken down cleanly: some written data may not be durable.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Drops clean pages, dentries and inodes of all kernel file systems. Requires root; for other users they stay cached.
pub fn drop_caches() -> Result<()> {
    match fs::write("/proc/sys/vm/drop_caches", "3") {
        Err(error) if rustix::process::geteuid().is_root() => Err(Failure::new(format!("the kernel's caches cannot be dropped: {error}"))),
        _ => Ok(()),
    }
}

/// A mount directory; the file system may be mounted or not.
struct Mountpoint {
    path: PathBuf,
    is_mounted: bool,
}

impl Mountpoint {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), is_mounted: false }
    }

    fn unmount(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            match tandemfs_fuse::unmount(&self.path, Unmount::Normal) {
                Ok(()) => {
                    self.is_mounted = false;
                    return Ok(());
                }
                Err(tandemfs_fuse::MountError::InUse { .. }) if start.elapsed() < BUSY_WITHIN => std::thread::sleep(POLL),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(failure) = self.unmount()
        {
            eprintln!("tandemfs: {failure}");
            let _out_of_the_tree_at_least = tandemfs_fuse::unmount(&self.path, Unmount::Lazy);
        }
    }
}

/// A file system of the kernel.
pub struct KernelMount<'b> {
    mountpoint: Mountpoint,
    peer: Peer,
    /// Dropped after the mountpoint.
    backing: Box<dyn Backing + 'b>,
}

impl<'b> KernelMount<'b> {
    /// Formats a drive and mounts it; ext4 with `inodes` if its default is not enough.
    ///
    /// # Errors
    /// The error message of mkfs or mount.
    pub fn start(peer: Peer, backing: Box<dyn Backing + 'b>, mountpoint: &Path, inodes: Option<u64>) -> Result<Self> {
        let (program, words): (&str, &[&str]) = match peer {
            Peer::Xfs => ("mkfs.xfs", &["-q", "-f", "-K"]),
            Peer::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-K"]),
            _ => ("mkfs.ext4", &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]),
        };
        let mut mkfs = command(program)?;
        mkfs.args(words);
        if let (Peer::Ext4 | Peer::Ext4Journal, Some(inodes)) = (peer, inodes) {
            mkfs.args(["-N", &inodes.to_string()]);
        }
        run(mkfs.arg(backing.block_device()))?;
        let mut mount = Self { mountpoint: Mountpoint::new(mountpoint), peer, backing };
        mount.mount()?;
        Ok(mount)
    }

    fn mount(&mut self) -> Result<()> {
        let mut mount = command("mount")?;
        mount.args(["-t", kernel_type(self.peer).unwrap_or_default()]);
        if self.peer == Peer::Ext4Journal {
            mount.args(["-o", "data=journal"]);
        }
        run(mount.arg(self.backing.block_device()).arg(&self.mountpoint.path))?;
        self.mountpoint.is_mounted = true;
        Ok(())
    }
}

impl Mounted for KernelMount<'_> {
    fn drive(&self) -> Option<u32> {
        self.backing.process()
    }

    fn make_cold(&mut self) -> Result<()> {
        self.mountpoint.unmount()?;
        drop_caches()?;
        self.mount()
    }

    fn begin_traffic(&mut self) -> Result<()> {
        self.backing.begin_traffic()
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        self.backing.traffic()
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.mountpoint.unmount()
    }
}

/// TandemFS, through the commands of this program.
pub struct TandemfsMount {
    image: PathBuf,
    mountpoint: Mountpoint,
    options: String,
    daemon: Option<u32>,
    since: Value,
}

impl TandemfsMount {
    /// Formats an image and mounts it.
    ///
    /// # Errors
    /// The error message of `mkfs` or `mount`.
    pub fn start(image: &Path, mountpoint: &Path, options: String) -> Result<Self> {
        // The drive may have been used before.
        run(tandemfs().args(["mkfs", "--force"]).arg(image))?;
        let mut mount =
            Self { image: image.to_owned(), mountpoint: Mountpoint::new(mountpoint), options, daemon: None, since: Value::Null };
        mount.mount()?;
        Ok(mount)
    }

    fn mount(&mut self) -> Result<()> {
        run(tandemfs().arg("mount").arg(&self.image).arg(&self.mountpoint.path).args(["-o", &self.options]))?;
        self.mountpoint.is_mounted = true;
        let info = self.ask("info")?;
        self.daemon = info["process_id"].as_u64().and_then(|id| u32::try_from(id).ok());
        Ok(())
    }

    fn ask(&self, what: &str) -> Result<Value> {
        Ok(serde_json::from_str(&run(tandemfs().arg(what).arg(&self.mountpoint.path).arg("--json"))?)?)
    }

    /// Unmounts as users do; returns when the daemon has exited.
    fn unmount(&mut self) -> Result<()> {
        run(tandemfs().arg("umount").arg(&self.mountpoint.path))?;
        self.mountpoint.is_mounted = false;
        Ok(())
    }
}

impl Mounted for TandemfsMount {
    fn make_cold(&mut self) -> Result<()> {
        self.unmount()?;
        drop_caches()?;
        self.mount()
    }

    fn daemon(&self) -> Option<u32> {
        self.daemon
    }

    fn begin_traffic(&mut self) -> Result<()> {
        self.since = self.ask("stats")?;
        Ok(())
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        Ok(Some(traffic_between(&self.since, &self.ask("stats")?)))
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.unmount()
    }
}

impl Drop for TandemfsMount {
    fn drop(&mut self) {
        if self.mountpoint.is_mounted && self.unmount().is_err() {
            // After a signal to both, the daemon may be gone already. The guard detaches a mount that is left.
            let _said_before = tandemfs_fuse::unmount(&self.mountpoint.path, Unmount::Lazy);
            self.mountpoint.is_mounted = false;
        }
        if let Some(process) = self.daemon {
            end(process);
        }
    }
}

/// Waits for a daemon that is about to exit.
fn end(process: u32) {
    let start = Instant::now();
    while is_alive(process) && start.elapsed() < END_WITHIN {
        std::thread::sleep(POLL);
    }
    if is_alive(process) {
        eprintln!("tandemfs: the daemon {process} did not end");
    }
}

/// Whether a process still runs; false for a zombie.
fn is_alive(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("State:")).is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
}

/// TandemFS in this process.
pub struct TandemfsLibrary {
    fs: Option<Arc<FileSystem>>,
    since: Value,
}

impl TandemfsLibrary {
    /// Formats an image and opens it, with or without the drive's timing model.
    ///
    /// # Errors
    /// The image cannot be formatted or opened.
    pub fn start(image: &Path, timing: bool) -> Result<Self> {
        let name = image.to_str().ok_or_else(|| Failure::new("the directory's name is not Unicode; name another with --directory"))?;
        let fs = scene::make(scene::open(name, timing)?, ChecksumKind::Crc32c)?;
        Ok(Self { fs: Some(fs), since: Value::Null })
    }

    fn stats(&self) -> Value {
        self.fs.as_ref().map_or(Value::Null, |fs| tandemfs_fuse::stats(fs))
    }
}

impl Mounted for TandemfsLibrary {
    fn make_cold(&mut self) -> Result<()> {
        Err(Failure::new("a case for the library cannot ask for cold caches: the file system is in use"))
    }

    fn begin_traffic(&mut self) -> Result<()> {
        self.since = self.stats();
        Ok(())
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        Ok(Some(traffic_between(&self.since, &self.stats())))
    }

    fn library(&self) -> Option<Arc<FileSystem>> {
        self.fs.clone()
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        Ok(self.fs.take().map_or(Ok(()), |fs| fs.unmount())?)
    }
}

impl Drop for TandemfsLibrary {
    fn drop(&mut self) {
        if let Some(fs) = self.fs.take()
            && let Err(error) = fs.unmount()
        {
            eprintln!("tandemfs: {error}");
        }
    }
}

/// Traffic between two results of `stats`.
fn traffic_between(before: &Value, after: &Value) -> Traffic {
    let since = |path: &str| {
        let number = |value: &Value| value.pointer(path).and_then(Value::as_u64).unwrap_or_default();
        number(after).saturating_sub(number(before))
    };
    let both = |what: &str| since(&format!("/byte_path/{what}")) + since(&format!("/block_path/{what}"));
    // A drive without counters reports zeros.
    let counts = |group: &str| after[group].as_object().is_some_and(|group| group.values().any(|value| value.as_u64() != Some(0)));
    let has_flash = counts("flash") || counts("firmware");
    let flash = |what: &str| has_flash.then(|| since(&format!("/flash/{what}")) * FLASH_PAGE_BYTES);
    Traffic {
        read_bytes: both("read_bytes"),
        written_bytes: both("written_bytes"),
        flushes: since("/block_path/flushes"),
        flash_programmed_bytes: flash("pages_programmed"),
        flash_read_bytes: flash("pages_read"),
    }
}

/// The in-memory FUSE file system, in its own process.
pub struct NullMount {
    mountpoint: Mountpoint,
    process: Child,
    /// Closing it ends the process.
    held: Option<ChildStdin>,
}

/// Parses the `--child` order for the process of [`NullMount`].
pub fn null_order(text: &str) -> Option<PathBuf> {
    let order: Value = serde_json::from_str(text).ok()?;
    order["null_file_system"].as_str().map(PathBuf::from)
}

impl NullMount {
    /// Starts the process and waits for its mount.
    ///
    /// # Errors
    /// The process cannot be started, or cannot mount.
    pub fn start(mountpoint: &Path) -> Result<Self> {
        let order = json!({ "null_file_system": mountpoint }).to_string();
        // Own process group: an interrupt from the terminal reaches only the caller, which then takes it down in order.
        let mut command = child(&order);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut process = command.spawn()?;
        let (held, stdout) = (process.stdin.take(), process.stdout.take());
        let mut mount = Self { mountpoint: Mountpoint::new(mountpoint), process, held };
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.trim_end() != null_fs::READY {
            return Err(Failure::new("the process of the null file system ended before its mount answered"));
        }
        mount.mountpoint.is_mounted = true;
        Ok(mount)
    }
}

impl Mounted for NullMount {
    /// An unmount would lose its content: only kernel caches are dropped.
    fn make_cold(&mut self) -> Result<()> {
        rustix::fs::syncfs(fs::File::open(&self.mountpoint.path)?)?;
        drop_caches()
    }

    fn daemon(&self) -> Option<u32> {
        Some(self.process.id())
    }

    fn begin_traffic(&mut self) -> Result<()> {
        Ok(())
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        Ok(None)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.mountpoint.unmount()
    }
}

impl Drop for NullMount {
    fn drop(&mut self) {
        if self.mountpoint.is_mounted
            && let Err(failure) = self.mountpoint.unmount()
        {
            eprintln!("tandemfs: {failure}");
        }
        drop(self.held.take());
        let start = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) {
            if start.elapsed() > END_WITHIN {
                let _it_is_this_one = self.process.kill();
                let _ended = self.process.wait();
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_what_came_between_two_answers() {
        let stats = |bytes: u64| {
            json!({
                "byte_path": { "read_bytes": 10, "written_bytes": 100 + bytes },
                "block_path": { "read_bytes": 4096, "written_bytes": 2 * bytes, "flushes": bytes / 50 },
            })
        };
        let traffic = traffic_between(&stats(0), &stats(100));
        assert_eq!((traffic.read_bytes, traffic.written_bytes, traffic.flushes), (0, 300, 2));
        assert_eq!(traffic.flash_programmed_bytes, None);
    }

    #[test]
    fn orders_of_others_are_not_taken_for_ours() {
        assert_eq!(null_order(r#"{"null_file_system":"/mnt"}"#), Some(PathBuf::from("/mnt")));
        assert_eq!((null_order(r#"{"image":"x"}"#), null_order("nonsense")), (None, None));
    }
}

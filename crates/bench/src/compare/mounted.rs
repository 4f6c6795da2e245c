//! File systems, made and mounted as users do it; unmounted when dropped, also after errors and signals.
//!
//! [MT1] Every unmount waits until it is complete, since the drive below is removed right after it.
//! [MT2] Every peer gets its default options, with two exceptions: mkfs discards nothing, so that the pages of a drive in memory stay; ext4
//!       initialises inode tables and journal at mkfs, not in the background during the measurement.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use procfs::process::Process;
use serde_json::Value;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::FileSystem;
use tandemfs_fuse::Unmount;

use super::available::kernel_type;
use super::backing::Backing;
use super::child::{Child, Order};
use super::command::{command, run, tandemfs};
use super::peer::Peer;
use super::record::Traffic;
use super::under_run;
use crate::failure::{Failure, Result};
use crate::machine::comes_about;
use crate::scene;

/// How long an unmount may fail with EBUSY: kernel threads release the file system a little after its last user.
const BUSY_WITHIN: Duration = Duration::from_secs(10);
/// How long a daemon may take to exit after its unmount.
const END_WITHIN: Duration = Duration::from_secs(60);
/// Page size of an emulated drive's flash.
const FLASH_PAGE_BYTES: u64 = 4096;

/// Drops clean pages, dentries and inodes of all kernel file systems. Requires root; for other users they stay cached.
pub fn drop_caches() -> Result<()> {
    match fs::write("/proc/sys/vm/drop_caches", "3") {
        Err(error) if rustix::process::geteuid().is_root() => Err(Failure::new(format!("the kernel's caches cannot be dropped: {error}"))),
        _ => Ok(()),
    }
}

/// Whether mounts are for the programs of all users, for those that refuse to run as root.
pub fn is_for_all() -> bool {
    rustix::process::geteuid().is_root()
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
        let mut result = Ok(());
        comes_about(BUSY_WITHIN, || {
            result = tandemfs_fuse::unmount(&self.path, Unmount::Normal);
            !matches!(result, Err(tandemfs_fuse::MountError::InUse { .. }))
        });
        self.is_mounted = result.is_err();
        Ok(result?)
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(failure) = self.unmount()
        {
            // Out of the tree at least; the daemon may have unmounted it already.
            let is_gone = matches!(tandemfs_fuse::unmount(&self.path, Unmount::Lazy), Err(tandemfs_fuse::MountError::NotMounted { .. }));
            if !is_gone {
                eprintln!("tandemfs-bench: {failure}");
            }
        }
    }
}

/// A file system that is measured.
pub struct Mounted<'b> {
    /// Unmounted before what is below it goes.
    mountpoint: Mountpoint,
    kind: Kind<'b>,
}

enum Kind<'b> {
    /// A file system of the kernel.
    Kernel { peer: Peer, backing: Box<dyn Backing + 'b> },
    /// TandemFS, through the commands of its program.
    Tandemfs {
        image: PathBuf,
        options: String,
        daemon: Daemon,
        /// Where programs find how to enter its direct door, if they shall.
        entered_from: Option<PathBuf>,
    },
    /// TandemFS in this process.
    Library(Library),
    /// The in-memory FUSE file system, in its own process.
    Null(Child),
}

impl<'b> Mounted<'b> {
    /// Formats a drive with a file system of the kernel and mounts it.
    ///
    /// # Errors
    /// The error message of mkfs or mount.
    pub fn kernel(peer: Peer, backing: Box<dyn Backing + 'b>, mountpoint: &Path) -> Result<Self> {
        let (program, words): (&str, &[&str]) = match peer {
            Peer::Xfs => ("mkfs.xfs", &["-q", "-f", "-K"]),
            Peer::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-K"]),
            _ => ("mkfs.ext4", &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]),
        };
        let mut mkfs = command(program)?;
        mkfs.args(words);
        run(mkfs.arg(backing.block_device()))?;
        Self { mountpoint: Mountpoint::new(mountpoint), kind: Kind::Kernel { peer, backing } }.mounted()
    }

    /// Formats an image with TandemFS and mounts it. The programs of a case whose scratch directory is `entered_from` go by its direct door.
    ///
    /// # Errors
    /// The error message of `mkfs` or `mount`; the door cannot be entered.
    pub fn tandemfs(image: &Path, mountpoint: &Path, mut options: String, entered_from: Option<&Path>) -> Result<Self> {
        if is_for_all() {
            options += ",allow_other";
        }
        // The drive may have been used before.
        run(tandemfs().args(["mkfs", "--force"]).arg(image))?;
        let entered_from = entered_from.map(Path::to_owned);
        let kind = Kind::Tandemfs { image: image.to_owned(), options, daemon: Daemon(None), entered_from };
        Self { mountpoint: Mountpoint::new(mountpoint), kind }.mounted()
    }

    /// Formats an image with TandemFS and opens it in this process, with the times of its drive or without.
    ///
    /// # Errors
    /// The image cannot be formatted or opened.
    pub fn library(image: &Path, timing: bool) -> Result<Self> {
        let fs = scene::make(scene::open(scene::path_text(image)?, timing)?, ChecksumKind::Crc32c)?;
        Ok(Self { mountpoint: Mountpoint::new(Path::new("")), kind: Kind::Library(Library(Some(fs))) })
    }

    /// Starts the in-memory FUSE file system and waits for its mount.
    ///
    /// # Errors
    /// Its process cannot be started, or cannot mount.
    pub fn null(mountpoint: &Path) -> Result<Self> {
        let mut process = Child::start(&mut Order::NullFileSystem(mountpoint.to_owned()).command()?, None)?;
        process.hear::<String>(END_WITHIN)?; // it is mounted
        Ok(Self { mountpoint: Mountpoint { path: mountpoint.to_owned(), is_mounted: true }, kind: Kind::Null(process) })
    }

    fn mounted(mut self) -> Result<Self> {
        self.mount()?;
        Ok(self)
    }

    fn mount(&mut self) -> Result<()> {
        let path = &self.mountpoint.path;
        match &mut self.kind {
            Kind::Kernel { peer, backing } => {
                let mut mount = command("mount")?;
                mount.args(["-t", kernel_type(*peer).unwrap_or_default()]);
                if *peer == Peer::Ext4Journal {
                    mount.args(["-o", "data=journal"]);
                }
                run(mount.arg(backing.block_device()).arg(path))?;
                self.mountpoint.is_mounted = true;
            }
            Kind::Tandemfs { image, options, daemon, entered_from } => {
                run(tandemfs().arg("mount").arg(image).arg(path).args(["-o", options]))?;
                self.mountpoint.is_mounted = true;
                let info = ask(&self.mountpoint.path, "info")?;
                daemon.0 = info["process_id"].as_u64().and_then(|id| u32::try_from(id).ok());
                if let Some(scratch) = entered_from {
                    under_run::enter(&self.mountpoint.path, scratch)?;
                }
            }
            Kind::Library(_) | Kind::Null(_) => {}
        }
        Ok(())
    }

    /// Unmounts as users do; TandemFS's daemon has exited then.
    fn unmount(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Kernel { .. } | Kind::Null(_) => self.mountpoint.unmount(),
            Kind::Tandemfs { .. } => {
                run(tandemfs().arg("umount").arg(&self.mountpoint.path))?;
                self.mountpoint.is_mounted = false;
                Ok(())
            }
            Kind::Library(library) => Ok(library.0.take().map_or(Ok(()), |fs| fs.unmount())?),
        }
    }

    /// Makes everything durable and drops every cache that can be dropped.
    ///
    /// # Errors
    /// The file system cannot be unmounted or mounted.
    pub fn make_cold(&mut self) -> Result<()> {
        match self.kind {
            Kind::Library(_) => Err(Failure::new("a case for the library cannot ask for cold caches: the file system is in use")),
            // An unmount would lose its content: only kernel caches are dropped.
            Kind::Null(_) => {
                rustix::fs::syncfs(fs::File::open(&self.mountpoint.path)?)?;
                drop_caches()
            }
            Kind::Kernel { .. } | Kind::Tandemfs { .. } => {
                self.unmount()?;
                drop_caches()?;
                self.mount()
            }
        }
    }

    /// The process that emulates its drive; its CPU time is not the file system's.
    pub fn drive(&self) -> Option<u32> {
        match &self.kind {
            Kind::Kernel { backing, .. } => backing.process(),
            _ => None,
        }
    }

    /// The daemon that serves it.
    pub fn daemon(&self) -> Option<u32> {
        match &self.kind {
            Kind::Tandemfs { daemon, .. } => daemon.0,
            Kind::Null(process) => Some(process.id()),
            Kind::Kernel { .. } | Kind::Library(_) => None,
        }
    }

    /// All traffic to the drive since the mount, or longer, if it is counted.
    ///
    /// # Errors
    /// The drive or the daemon does not answer.
    pub fn traffic(&self) -> Result<Option<Traffic>> {
        Ok(match &self.kind {
            Kind::Kernel { backing, .. } => Some(backing.traffic()?),
            Kind::Tandemfs { .. } => Some(traffic_of(&ask(&self.mountpoint.path, "stats")?)),
            Kind::Library(library) => library.0.as_ref().map(|fs| traffic_of(&tandemfs_fuse::stats(fs))),
            Kind::Null(_) => None,
        })
    }

    /// Processes that have been at its direct door since it was mounted, if programs enter it.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn connections(&self) -> Result<Option<u64>> {
        match &self.kind {
            Kind::Tandemfs { entered_from: Some(_), .. } => Ok(ask(&self.mountpoint.path, "stats")?["direct"]["connections"].as_u64()),
            _ => Ok(None),
        }
    }

    /// The file system as a library.
    pub fn file_system(&self) -> Option<Arc<FileSystem>> {
        match &self.kind {
            Kind::Library(library) => library.0.clone(),
            _ => None,
        }
    }

    /// Takes the file system down.
    ///
    /// # Errors
    /// It could not be taken down cleanly: some written data may not be durable.
    pub fn finish(mut self) -> Result<()> {
        self.unmount()
    }
}

/// What TandemFS's program says of a mount.
fn ask(mountpoint: &Path, what: &str) -> Result<Value> {
    Ok(serde_json::from_str(&run(tandemfs().arg(what).arg(mountpoint).arg("--json"))?)?)
}

/// TandemFS's daemon, whose end is waited for when dropped.
struct Daemon(Option<u32>);

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(process) = self.0
            && !comes_about(END_WITHIN, || !is_alive(process))
        {
            eprintln!("tandemfs-bench: the daemon {process} did not end");
        }
    }
}

/// Whether a process still runs; false for a zombie.
fn is_alive(process: u32) -> bool {
    Process::new(process as i32).and_then(|process| process.stat()).is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// TandemFS in this process; unmounted when dropped.
struct Library(Option<Arc<FileSystem>>);

impl Drop for Library {
    fn drop(&mut self) {
        if let Some(fs) = self.0.take()
            && let Err(error) = fs.unmount()
        {
            eprintln!("tandemfs: {error}");
        }
    }
}

/// Traffic according to `stats`.
fn traffic_of(stats: &Value) -> Traffic {
    let number = |path: &str| stats.pointer(path).and_then(Value::as_u64).unwrap_or_default();
    let both = |what: &str| number(&format!("/byte_path/{what}")) + number(&format!("/block_path/{what}"));
    // A drive without counters reports zeros.
    let counts = |group: &str| stats[group].as_object().is_some_and(|group| group.values().any(|value| value.as_u64() != Some(0)));
    let has_flash = counts("flash") || counts("firmware");
    let flash = |what: &str| has_flash.then(|| number(&format!("/flash/{what}")) * FLASH_PAGE_BYTES);
    Traffic {
        read_bytes: both("read_bytes"),
        written_bytes: both("written_bytes"),
        flushes: number("/block_path/flushes"),
        flash_programmed_bytes: flash("pages_programmed"),
        flash_read_bytes: flash("pages_read"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn traffic_is_what_came_between_two_answers() {
        let stats = |bytes: u64| {
            json!({
                "byte_path": { "read_bytes": 10, "written_bytes": 100 + bytes },
                "block_path": { "read_bytes": 4096, "written_bytes": 2 * bytes, "flushes": bytes / 50 },
            })
        };
        let traffic = traffic_of(&stats(100)).since(&traffic_of(&stats(0)));
        assert_eq!((traffic.read_bytes, traffic.written_bytes, traffic.flushes), (0, 300, 2));
        assert_eq!(traffic.flash_programmed_bytes, None);
    }
}

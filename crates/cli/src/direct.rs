//! The direct door of a mount (`-o direct`).

use std::sync::Arc;

use tandemfs_direct::{Entrants, Limits, MountIdentity, Server};
use tandemfs_fs::FileSystem;
use tandemfs_fuse::mounts::Mounted;
use tandemfs_fuse::{Beside, MountSettings};
use tandemfs_vfs::{Protected, Reserve, Settings, Vfs};

/// Opens the door. Without it the mount serves everybody.
pub fn open(fs: &Arc<FileSystem>, settings: &MountSettings, limits: &Limits, beside: Beside<'_>) -> Option<Server> {
    let Beside { mounted, caches, stands } = beside;
    let rules = Settings {
        extended_attributes: settings.attributes,
        reserve: Reserve::new(settings.reserved_percent),
        protected: Protected::of_this_machine(),
    };
    let vfs = Vfs::new(Arc::clone(fs), rules).beside(caches);
    let mount = identity(settings, mounted)?;
    Server::start(vfs, mount, stands, entrants(settings, mounted.user), limits.clone())
        .inspect_err(|error| tracing::warn!("no direct door, so programs go by the mount: {error}"))
        .ok()
}

fn identity(settings: &MountSettings, mounted: &Mounted) -> Option<MountIdentity> {
    let (major, minor) = mounted.device_number.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    Some(MountIdentity { major, minor, mountpoint: mounted.mountpoint.clone(), user: mounted.user, is_read_only: settings.read_only })
}

fn entrants(settings: &MountSettings, user: u32) -> Entrants {
    match settings.allow_other {
        true => Entrants::Everybody,
        false => Entrants::Only { user, group: rustix::process::getegid().as_raw(), and_root: settings.allow_root },
    }
}

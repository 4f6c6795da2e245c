//! What the file systems here that are still served by `fuser` agree on with the kernel, as `tandemfs_fuse::wanted` and
//! `MountSettings::serving` have it for mounts of TandemFS.

use fuser::{Config, InitFlags, KernelConfig};
use tandemfs_fuse::MountSettings;
use tandemfs_wire::InitFlags as Ability;

/// Sizes and abilities.
pub(crate) fn negotiate(config: &mut KernelConfig, write_back_cache: bool, access_lists: bool, request_bytes_max: u32) {
    let wanted = tandemfs_fuse::wanted(write_back_cache, access_lists, request_bytes_max);
    let (low, high) = (wanted.flags | Ability::OVER_IO_URING).words();
    for flag in InitFlags::from_bits_retain(u64::from(low) | u64::from(high) << 32).iter() {
        // What the kernel lacks is left out.
        let _ = config.add_capabilities(flag);
    }
    // The nearest possible value where the kernel allows less.
    if let Err(possible) = config.set_max_write(wanted.max_write) {
        let _ = config.set_max_write(possible);
    }
    if let Err(possible) = config.set_max_readahead(wanted.max_readahead) {
        let _ = config.set_max_readahead(possible);
    }
    let _ = config.set_max_background(wanted.max_background);
}

/// Who serves.
pub(crate) fn set_threads(config: &mut Config, settings: &MountSettings) {
    let serving = settings.serving();
    config.n_threads = Some(serving.device_threads);
    config.clone_fd = serving.clone_device;
    config.n_ring_threads_per_cpu = serving.ring.map(|ring| ring.threads_per_cpu);
}

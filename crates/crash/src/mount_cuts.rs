//! Cuts of mounts and of commands that change superblock and identity: every state mounts, and so does every state of a cut of that mount.

use std::sync::Arc;

use tandemfs_device::Drive;
use tandemfs_fs::MountOptions;

use crate::harness::mount;
use crate::memory_device::MemoryDevice;
use crate::random::Random;
use crate::soundness::check_device;
use crate::states::each_state;
use crate::tree::Tree;

/// States of each cut, at each depth.
const STATES: [u64; 3] = [6, 2, 1];

/// Cuts a change everywhere. Each state is a file system with this tree for `check` and for a mount, which is cut as well, and so on
/// `depth` times. Returns the number of states.
///
/// # Errors
/// What the first state that is refused, or has another tree, says.
pub fn cut_everywhere(
    start: &MemoryDevice,
    change: &mut dyn FnMut(&Drive) -> Result<(), String>,
    tree: &Tree,
    depth: usize,
    random: &mut Random,
    visit: &mut dyn FnMut(&MemoryDevice) -> Result<(), String>,
) -> Result<u64, String> {
    let device = start.fork();
    device.start_recording();
    change(&Drive::new(Arc::new(device.clone())))?;
    let events = device.stop_recording();
    let (mut result, mut count) = (Ok(()), 0);
    let mut inner = random.clone();
    let budget = STATES[STATES.len().saturating_sub(depth + 1)];
    each_state(start, &events, 0, budget, random, &mut |cut, state| {
        if result.is_ok() {
            count += 1;
            let looked = look(&state.device, tree, depth, &mut inner, visit);
            result = looked.map(|more| count += more).map_err(|what| format!("{what}\n{cut:?} of {} events, depth {depth}", events.len()));
        }
    });
    result.map(|()| count)
}

fn look(
    device: &MemoryDevice,
    tree: &Tree,
    depth: usize,
    random: &mut Random,
    visit: &mut dyn FnMut(&MemoryDevice) -> Result<(), String>,
) -> Result<u64, String> {
    visit(&device.fork())?;
    let options = MountOptions { memory_bytes: 4 << 20, ..MountOptions::default() };
    if depth > 0 {
        let mut mount_only =
            |drive: &Drive| tandemfs_fs::FileSystem::mount(drive.clone(), &options).map(drop).map_err(|error| format!("mount: {error}"));
        return cut_everywhere(device, &mut mount_only, tree, depth - 1, random, &mut |_| Ok(()));
    }
    let (kept, read_only) = (device.fork(), MountOptions { read_only: true, ..options.clone() });
    mount(&kept, &read_only).map_err(|what| format!("read-only {what}"))?;
    let fs = mount(device, &options)?;
    if let Some(difference) = Tree::read(&fs)?.difference(tree) {
        return Err(difference);
    }
    check_device(&kept, true)?;
    Ok(0)
}

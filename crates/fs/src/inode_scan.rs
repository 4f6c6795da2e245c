//! Going through the slots of all inodes, in use or free.

use tandemfs_format::inode::INODE_LINES;
use tandemfs_format::{LineAddress, UNIT_LINES};

use crate::error::{Error, Result};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Mutex, scan_threads};
use crate::volume::Volume;

/// Slots that a thread goes through at a time: 1 MiB of lines.
const STEP_INODES: u64 = 8192;
/// Slots of a unit.
const UNIT_INODES: u64 = UNIT_LINES / INODE_LINES;

/// Slots that lie one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Number of the first one, which may be 0.
    pub(crate) first: u64,
    /// Its first line.
    pub(crate) address: LineAddress,
    /// How many, at most [`STEP_INODES`].
    pub(crate) count: u64,
}

/// Calls `look` for each run of slots below the marks of their units, by as many threads as scans may have. Ends after the first failure.
///
/// # Errors
/// The first failure of `look`.
pub(crate) fn each_run(volume: &Volume, look: impl Fn(Run) -> Result<()> + Sync) -> Result<()> {
    let limit = volume.memory.inode_limit();
    let next = AtomicU64::new(0);
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let scan = || {
        loop {
            let first = next.fetch_add(STEP_INODES, Relaxed);
            if first >= limit || failure.lock().is_some() {
                return;
            }
            if let Err(error) = each_run_of(volume, first, (first + STEP_INODES).min(limit), &look) {
                failure.lock().get_or_insert(error);
            }
        }
    };
    let threads = scan_threads().min(limit.div_ceil(STEP_INODES) as usize);
    if threads <= 1 {
        scan();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(scan);
            }
        });
    }
    failure.into_inner().map_or(Ok(()), Err)
}

fn each_run_of(volume: &Volume, first: u64, end: u64, look: &impl Fn(Run) -> Result<()>) -> Result<()> {
    let mut number = first;
    while number < end {
        let Some((address, slots)) = volume.memory.inode_slots_from(number) else {
            number = (number / UNIT_INODES + 1) * UNIT_INODES; // above the mark of its unit
            continue;
        };
        let count = slots.min(end - number);
        look(Run { first: number, address, count })?;
        number += count;
    }
    Ok(())
}

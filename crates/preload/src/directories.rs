//! Open directories of the door for directories that the program has open, or stands in.

use std::ffi::{OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use tandemfs_client::{File, Tree};

use crate::door::Door;
use crate::settings::Settings;
use crate::{outside, sys};

/// Handles that are kept. Each holds its directory, also when another process removes it.
const KEPT_MAX: usize = 32;

const PATH_BYTES_MAX: usize = 4096;

/// Handles by inode.
#[derive(Default)]
pub(crate) struct Directories {
    kept: Vec<(u64, Arc<File>)>,
    /// The one that goes next.
    hand: usize,
}

/// The handle of a directory, which the kernel says has this inode. None if it cannot be opened by its path.
pub(crate) fn handle(door: &Door, settings: &Settings, descriptor: c_int, inode: u64) -> Option<Arc<File>> {
    let directories = door.directories();
    if let Some((_, file)) = directories.kept.iter().find(|(kept, _)| *kept == inode) {
        outside::is_open(inode, file);
        return Some(Arc::clone(file));
    }
    drop(directories);
    let file = Arc::new(opened(door, settings, descriptor, inode)?);
    let mut directories = door.directories();
    let new = (inode, Arc::clone(&file));
    let replaced = if directories.kept.len() < KEPT_MAX {
        directories.kept.push(new);
        None
    } else {
        let hand = directories.hand;
        directories.hand = (hand + 1) % KEPT_MAX;
        Some(std::mem::replace(&mut directories.kept[hand], new))
    };
    if let Some((inode, _)) = &replaced {
        outside::is_closed(*inode);
    }
    outside::is_open(inode, &file);
    drop(directories); // before the one that is replaced is closed
    Some(file)
}

impl Directories {
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Gives up a directory, which was removed: its space comes back when nobody holds it.
    pub(crate) fn give_up(&mut self, inode: u64) -> Option<Arc<File>> {
        let at = self.kept.iter().position(|(kept, _)| *kept == inode)?;
        outside::is_closed(inode);
        Some(self.kept.swap_remove(at).1)
    }
}

/// Opens the directory by the path that the kernel has for it, and holds its inode against what the kernel said ([PRL1] of `lib.rs`).
fn opened(door: &Door, settings: &Settings, descriptor: c_int, inode: u64) -> Option<File> {
    let mut buffer = vec![0; PATH_BYTES_MAX];
    let path = sys::path_of(descriptor, &mut buffer)?;
    let path = crate::start::inside(settings, path)?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let (file, found) = door.mount().open_and_stat(Path::new(OsStr::from_bytes(path)), flags, 0).ok()?;
    (found.node == inode).then_some(file)
}

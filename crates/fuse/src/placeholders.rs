//! What the kernel sees of inodes that are damaged.
//!
//! Before it removes or replaces a name the kernel looks it up. If that failed, nobody could remove a damaged file through a mount. So the
//! look-up succeeds with an inode of which only number and type are known, the type from the name ([DO7] of `door.rs`). The kernel may keep
//! neither the name nor the attributes of such an inode, and every request about it fails with `EUCLEAN`, `stat` among them: an empty file
//! in its place would be copied into backups as one. Only of a directory `stat` shows the placeholder, without permissions: `rm -r`
//! removes what it cannot list, but not what has no type, and whoever lists it gets the error then.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_wire::{Attributes, Entry};

/// Damaged directories that the kernel has looked up. There are never more than damaged inodes.
#[derive(Debug, Default)]
pub(crate) struct Placeholders {
    directories: Mutex<HashSet<u64>>,
}

impl Placeholders {
    fn directories(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reply to a look-up.
    pub(crate) fn entry(&self, number: InodeNumber, kind: u16) -> Entry {
        if kind == file_type::DIRECTORY {
            self.directories().insert(number.get());
        }
        Entry { node: number.get(), attributes: attributes(number, kind), ..Entry::absent(Duration::ZERO) }
    }

    /// What `stat` shows of a damaged directory; `None` of anything else.
    pub(crate) fn attributes(&self, number: InodeNumber) -> Option<Attributes> {
        let is_directory = self.directories().contains(&number.get());
        is_directory.then(|| attributes(number, file_type::DIRECTORY))
    }
}

fn attributes(number: InodeNumber, kind: u16) -> Attributes {
    let nlink = if kind == file_type::DIRECTORY { 2 } else { 1 };
    Attributes { ino: number.get(), mode: kind.into(), nlink, ..Attributes::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_can_be_seen() {
        let placeholders = Placeholders::default();
        let (file, directory) = (InodeNumber::new(5), InodeNumber::new(6));
        let entry = placeholders.entry(file, file_type::REGULAR);
        assert_eq!((entry.node, entry.attributes.mode, entry.attributes.size), (5, 0o100_000, 0));
        assert_eq!((entry.entry_valid, entry.attributes_valid), (Duration::ZERO, Duration::ZERO));
        assert_eq!(placeholders.attributes(directory).map(|found| found.mode), None);
        placeholders.entry(directory, file_type::DIRECTORY);
        assert_eq!(placeholders.attributes(file).map(|found| found.mode), None);
        assert_eq!(placeholders.attributes(directory).map(|found| found.mode), Some(0o040_000));
    }
}

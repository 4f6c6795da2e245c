//! The path of an inode, for readers of a log.
//!
//! [PA1] Callers must hold no inode lock: directories are read here.
//! [PA2] The directory that is recorded in the inode is searched first, and its ancestors are followed up. A file that was renamed or has
//!       several names may be elsewhere, and a damaged inode names no directory. Then the tree is searched from the root, breadth first.
//! [PA3] At most [`ENTRIES_MAX`] entries are visited, and larger directories are skipped: a path is worth some milliseconds, not more.

use std::collections::VecDeque;

use tandemfs_format::InodeNumber;
use tandemfs_format::LINE_BYTES;
use tandemfs_format::inode::file_type;

use crate::file_system::FileSystem;

/// Most directory entries that are visited for one path.
const ENTRIES_MAX: u64 = 100_000;
/// Most directories that a path leads through.
const DEPTH_MAX: usize = 1024;

impl FileSystem {
    /// A path of an inode from the root of the file system. `near` is a directory that may name it. `None` if it has none, or if none is
    /// found soon ([PA3]).
    pub fn path_of(&self, number: InodeNumber, near: Option<InodeNumber>) -> Option<Vec<u8>> {
        let mut left = ENTRIES_MAX;
        let own = self.parent_of(number).into_iter().chain(near).find_map(|directory| self.path_in(number, directory, &mut left));
        own.or_else(|| self.search(number, &mut left))
    }

    /// The parent directory that is recorded in an inode.
    fn parent_of(&self, number: InodeNumber) -> Option<InodeNumber> {
        let file = self.inode(number).ok()?;
        let state = file.state.read().ok()?;
        (!state.removed && state.inode.nlink > 0).then_some(state.inode.parent)
    }

    /// The path of an inode, if this directory names it.
    fn path_in(&self, number: InodeNumber, mut directory: InodeNumber, left: &mut u64) -> Option<Vec<u8>> {
        let (mut at, mut names) = (number, Vec::new());
        while at != InodeNumber::ROOT {
            names.push(self.name_in(directory, at, left)?);
            at = directory;
            if at != InodeNumber::ROOT {
                directory = self.parent_of(at)?;
            }
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        names.reverse();
        Some([&b"/"[..], &names.join(&b'/')].concat())
    }

    fn name_in(&self, directory: InodeNumber, number: InodeNumber, left: &mut u64) -> Option<Vec<u8>> {
        let mut name = None;
        self.entries(directory, left, &mut |entry, found, _| {
            if entry == number {
                name = Some(found.to_vec());
            }
            name.is_none()
        });
        name
    }

    /// Visits the names of a directory until `visit` returns false, unless there are too many ([PA3]).
    fn entries(&self, directory: InodeNumber, left: &mut u64, visit: &mut dyn FnMut(InodeNumber, &[u8], u16) -> bool) {
        let size = self.inode(directory).and_then(|file| Ok(file.state.read()?.inode.size)).unwrap_or(u64::MAX);
        if size / LINE_BYTES as u64 > ENTRIES_MAX {
            return;
        }
        // A directory that cannot be read names nothing.
        let _damaged = self.read_directory(directory, 2, &mut |entry| {
            *left = left.saturating_sub(1);
            *left > 0 && visit(entry.inode, entry.name, u16::from(entry.file_type) << 12)
        });
    }

    fn search(&self, number: InodeNumber, left: &mut u64) -> Option<Vec<u8>> {
        if number == InodeNumber::ROOT {
            return Some(b"/".to_vec());
        }
        let mut waiting = VecDeque::from([(InodeNumber::ROOT, Vec::new())]);
        let mut found = None;
        while let Some((directory, path)) = waiting.pop_front().filter(|_| found.is_none() && *left > 0) {
            self.entries(directory, left, &mut |entry, name, kind| {
                let path = || [&path[..], b"/", name].concat();
                if entry == number {
                    found = Some(path());
                } else if kind == file_type::DIRECTORY {
                    waiting.push_back((entry, path()));
                }
                found.is_none()
            });
        }
        found
    }

    /// The path as text for a log, with control characters escaped.
    pub fn path_text(&self, number: InodeNumber, near: Option<InodeNumber>) -> String {
        let Some(path) = self.path_of(number, near) else { return "(no path found)".into() };
        let mut text = String::new();
        for character in String::from_utf8_lossy(&path).chars() {
            if character.is_control() { text.extend(character.escape_default()) } else { text.push(character) }
        }
        text
    }
}

//! Which names the files of a trace have, while its operations go by.

use std::collections::HashMap;

/// A directory, and a name in it; a path below it where what is between is not known.
pub type Name = (u64, Vec<u8>);

/// Names of inodes, and inodes of names.
#[derive(Debug, Default)]
pub struct Names {
    /// Of each file that has some; the last one is the newest.
    names: HashMap<u64, Vec<Name>>,
    /// The other way round.
    files: HashMap<Name, u64>,
}

impl Names {
    /// What has a name.
    pub fn file(&self, name: &Name) -> Option<u64> {
        self.files.get(name).copied()
    }

    /// A name of a file.
    pub fn name(&self, inode: u64) -> Option<&Name> {
        self.names.get(&inode)?.last()
    }

    /// Whether a file has one name alone.
    pub fn has_one(&self, inode: u64) -> bool {
        self.names.get(&inode).is_some_and(|names| names.len() == 1)
    }

    /// A file has a name; whatever had it, has it no more.
    pub fn add(&mut self, inode: u64, name: Name) {
        if name.1.is_empty() || name.1.rsplit(|byte| *byte == b'/').next() == Some(b"..") {
            return; // the directory itself, or one above it: that is no name to find it by later
        }
        if let Some(earlier) = self.files.insert(name.clone(), inode).filter(|earlier| *earlier != inode) {
            self.forget(earlier, &name);
        }
        let names = self.names.entry(inode).or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }

    /// A path has led to a file, maybe by a symbolic link: that is a name of its own only if no other one is known.
    pub fn add_first(&mut self, inode: u64, name: Name) {
        if self.name(inode).is_none() {
            self.add(inode, name);
        }
    }

    fn forget(&mut self, inode: u64, name: &Name) {
        if let Some(names) = self.names.get_mut(&inode) {
            names.retain(|known| known != name);
            if names.is_empty() {
                self.names.remove(&inode);
            }
        }
    }

    /// A name goes. Returns what had it.
    pub fn take(&mut self, name: &Name) -> Option<u64> {
        let inode = self.files.remove(name)?;
        self.forget(inode, name);
        Some(inode)
    }

    /// All names of a file go: its number is another one's now.
    pub fn clear(&mut self, inode: u64) {
        for name in self.names.remove(&inode).unwrap_or_default() {
            self.files.remove(&name);
        }
    }

    /// A name becomes another one; with `swapped` that one becomes this.
    pub fn moved(&mut self, from: Name, to: Name, swapped: bool) {
        if self.files.get(&from) == self.files.get(&to) {
            return; // two names of one file: nothing happens
        }
        let (one, other) = (self.take(&from), self.take(&to));
        if let Some(inode) = one {
            self.add(inode, to);
        }
        if let Some(inode) = other.filter(|_| swapped) {
            self.add(inode, from);
        }
    }

    /// The directory and the last name of a path below a directory, as far as its parts are known.
    pub fn last(&self, inode: u64, path: &[u8]) -> Name {
        let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
        let mut at = inode;
        while parts.len() > 1 {
            let Some(child) = self.files.get(&(at, parts[0].to_vec())) else { break };
            (at, parts) = (*child, parts.split_off(1));
        }
        (at, parts.join(&b'/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(directory: u64, name: &str) -> Name {
        (directory, name.into())
    }

    #[test]
    fn names_are_swapped_replaced_and_found_by_paths() {
        let mut names = Names::default();
        names.add(2, name(1, "a"));
        names.add(3, name(1, "b"));
        names.moved(name(1, "a"), name(1, "b"), true);
        assert_eq!([2, 3].map(|inode| names.name(inode).cloned()), [Some(name(1, "b")), Some(name(1, "a"))]);
        names.moved(name(1, "a"), name(1, "b"), false);
        assert_eq!((names.name(2), names.file(&name(1, "b")), names.file(&name(1, "a"))), (None, Some(3), None));
        names.add(4, name(3, "c"));
        assert_eq!(names.last(1, b"./b//c/d"), name(4, "d"));
        assert_eq!(names.last(1, b"unknown/d"), name(1, "unknown/d"));
        names.clear(3);
        assert_eq!(names.last(1, b"b/c"), name(1, "b/c"));
    }

    #[test]
    fn a_path_by_a_link_or_upwards_is_no_name() {
        let mut names = Names::default();
        names.add(2, name(1, "file"));
        names.add(3, name(1, "link"));
        names.add_first(2, name(1, "link"));
        names.add(1, name(2, ".."));
        names.add(2, name(2, ""));
        assert_eq!((names.file(&name(1, "link")), names.name(2).cloned(), names.has_one(2)), (Some(3), Some(name(1, "file")), true));
        assert_eq!(names.name(1), None);
    }
}

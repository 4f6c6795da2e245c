//! Where the files of a trace are in the directory that it runs again in: inodes of the trace, names and open files there.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tandemfs_trace::Known;

/// Files that are kept open.
const OPEN_MAX: usize = 256;

/// Directory, and a name in it; a path below it where what is between is not known.
type Name = (u64, Vec<u8>);

#[derive(Default)]
struct State {
    /// Of each file that has some.
    names: HashMap<u64, Vec<Name>>,
    /// The other way round.
    files: HashMap<Name, u64>,
    open: HashMap<u64, Arc<File>>,
    /// Files without names that are used on.
    nameless: HashMap<u64, Arc<File>>,
}

/// The directory.
pub struct Places {
    directory: PathBuf,
    /// Inode of the trace's root.
    root: u64,
    state: Mutex<State>,
}

impl State {
    fn add(&mut self, inode: u64, name: Name) {
        if let Some(earlier) = self.files.insert(name.clone(), inode).filter(|earlier| *earlier != inode) {
            self.forget(earlier, &name);
        }
        let names = self.names.entry(inode).or_default();
        if !names.contains(&name) {
            names.push(name);
        }
    }

    /// A file loses a name.
    fn forget(&mut self, inode: u64, name: &Name) {
        if let Some(names) = self.names.get_mut(&inode) {
            names.retain(|known| known != name);
            if names.is_empty() {
                self.names.remove(&inode);
            }
        }
    }

    fn take(&mut self, name: &Name) -> Option<u64> {
        let inode = self.files.remove(name)?;
        self.forget(inode, name);
        Some(inode)
    }

    /// The directory and the last name of a path below a directory, as far as its parts are known.
    fn last(&self, inode: u64, path: &[u8]) -> Name {
        let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
        let mut at = inode;
        while parts.len() > 1 {
            let Some(child) = self.files.get(&(at, parts[0].to_vec())) else { break };
            (at, parts) = (*child, parts.split_off(1));
        }
        (at, parts.join(&b'/'))
    }
}

fn absent() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error())
}

impl Places {
    /// An empty directory for a trace with this root.
    pub fn new(directory: &Path, root: u64) -> Self {
        Self { directory: directory.to_owned(), root, state: Mutex::default() }
    }

    fn path_of(&self, state: &State, inode: u64, depth: usize) -> Option<PathBuf> {
        if inode == self.root {
            return Some(self.directory.clone());
        }
        let (parent, name) = state.names.get(&inode)?.last()?;
        // A damaged trace may have circles.
        let parent = (depth < 1000).then(|| self.path_of(state, *parent, depth + 1))??;
        Some(parent.join(OsStr::from_bytes(name)))
    }

    /// Where a file is.
    pub fn path(&self, inode: u64) -> io::Result<PathBuf> {
        self.path_of(&self.state.lock(), inode, 0).ok_or_else(absent)
    }

    /// Where a name in a directory, or a path below it, is; without a name, the file itself.
    pub fn named(&self, inode: u64, name: &[u8]) -> io::Result<PathBuf> {
        let path = self.path(inode)?;
        Ok(if name.is_empty() { path } else { path.join(OsStr::from_bytes(name)) })
    }

    /// A file has a name, which may be a path below the directory.
    pub fn learn(&self, inode: u64, directory: u64, path: &[u8]) {
        if inode == self.root || path.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let name = state.last(directory, path);
        state.add(inode, name);
    }

    /// A file is made, and has nothing of what had its number before.
    pub fn made(&self, inode: u64, directory: u64, path: &[u8], file: Option<File>) {
        {
            let mut state = self.state.lock();
            for name in state.names.remove(&inode).unwrap_or_default() {
                state.files.remove(&name);
            }
            state.nameless.remove(&inode);
            state.open.remove(&inode);
        }
        if path.is_empty() {
            self.state.lock().nameless.extend(file.map(|file| (inode, Arc::new(file))));
        } else {
            self.learn(inode, directory, path);
            self.state.lock().open.extend(file.map(|file| (inode, Arc::new(file))));
        }
    }

    /// Before a name goes: if it is the last one of a regular file that is used later, the file is kept open.
    pub fn before_loss(&self, directory: u64, path: &[u8]) {
        let inode = {
            let state = self.state.lock();
            let inode = state.files.get(&state.last(directory, path)).copied();
            inode.filter(|inode| state.names.get(inode).is_some_and(|names| names.len() == 1))
        };
        let Some(inode) = inode else { return };
        if self.path(inode).and_then(fs::symlink_metadata).is_ok_and(|found| found.is_file())
            && let Ok(file) = self.file(inode)
        {
            self.state.lock().nameless.insert(inode, file);
        }
    }

    /// A name has gone.
    pub fn lost(&self, directory: u64, path: &[u8]) {
        let mut state = self.state.lock();
        let name = state.last(directory, path);
        if let Some(inode) = state.take(&name) {
            state.open.remove(&inode);
        }
    }

    /// A name has become another one; with `swapped` that one became this.
    pub fn moved(&self, from: (u64, &[u8]), to: (u64, &[u8]), swapped: bool) {
        let mut state = self.state.lock();
        let (from, to) = (state.last(from.0, from.1), state.last(to.0, to.1));
        if state.files.get(&from) == state.files.get(&to) {
            return; // two names of one file: nothing happens
        }
        let (one, other) = (state.take(&from), state.take(&to));
        if let Some(inode) = one {
            state.add(inode, to);
        }
        if let Some(inode) = other.filter(|_| swapped) {
            state.add(inode, from);
        }
    }

    /// A regular file, open for what it allows.
    pub fn file(&self, inode: u64) -> io::Result<Arc<File>> {
        let path = {
            let state = self.state.lock();
            if let Some(file) = state.nameless.get(&inode).or_else(|| state.open.get(&inode)) {
                return Ok(Arc::clone(file));
            }
            self.path_of(&state, inode, 0).ok_or_else(absent)?
        };
        let opened = OpenOptions::new().read(true).write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(&path);
        let file = Arc::new(match opened {
            Ok(file) => file,
            Err(_) => File::open(&path)?,
        });
        let mut state = self.state.lock();
        if state.open.len() >= OPEN_MAX {
            state.open.clear();
        }
        state.open.insert(inode, Arc::clone(&file));
        Ok(file)
    }

    /// Makes the names that were there when the trace began; `known` has directories before what is in them.
    pub fn create(&self, known: &[&Known]) -> io::Result<()> {
        for known in known {
            if known.inode == self.root {
                continue;
            }
            let earlier = self.path(known.inode).ok();
            self.learn(known.inode, known.parent, &known.name);
            let path = self.named(known.parent, &known.name)?;
            create(&path, known, earlier.as_deref())
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        }
        Ok(())
    }
}

fn create(path: &Path, known: &Known, earlier: Option<&Path>) -> io::Result<()> {
    if let Some(earlier) = earlier {
        return fs::hard_link(earlier, path);
    }
    let permissions = Mode::from_raw_mode(known.mode & 0o7777);
    match FileType::from_raw_mode(known.mode) {
        FileType::Directory => fs::create_dir(path)?,
        FileType::Symlink => return std::os::unix::fs::symlink(OsStr::from_bytes(&known.target), path),
        FileType::RegularFile => File::options().write(true).create_new(true).open(path)?.set_len(known.size)?,
        kind @ (FileType::Fifo | FileType::Socket) => mknodat(CWD, path, kind, permissions, 0)?,
        // Devices need rights, and are nothing to work on.
        _ => drop(File::create_new(path)?),
    }
    // Who runs it again uses the files whatever their owners could.
    fs::set_permissions(path, fs::Permissions::from_mode(known.mode & 0o777 | if known.mode & 0o040_000 != 0 { 0o700 } else { 0o600 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(inode: u64, parent: u64, name: &str, mode: u32, size: u64) -> Known {
        Known { inode, parent, size, mode, name: name.into(), target: b"to".to_vec() }
    }

    #[test]
    fn the_tree_is_made_and_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let all = [
            known(1, 0, "", 0o040_755, 0),
            known(2, 1, "d", 0o040_755, 0),
            known(3, 2, "file", 0o100_400, 7000),
            known(3, 1, "also", 0o100_400, 7000),
            known(4, 2, "link", 0o120_777, 0),
        ];
        let places = Places::new(directory.path(), 1);
        places.create(&all.iter().collect::<Vec<_>>()).expect("made");
        let path = |name: &str| directory.path().join(name);
        assert_eq!(
            (fs::metadata(path("d/file")).expect("there").len(), fs::read_link(path("d/link")).expect("there")),
            (7000, "to".into())
        );
        assert_eq!(std::os::unix::fs::MetadataExt::nlink(&fs::metadata(path("also")).expect("there")), 2);

        fs::rename(path("d"), path("e")).expect("moved");
        places.moved((1, b"d"), (1, b"e"), false);
        assert_eq!(places.path(4).expect("known"), path("e/link"));
        places.learn(9, 1, b"e/deep");
        assert_eq!(places.path(9).expect("known"), path("e/deep"));
        fs::rename(path("e"), path("f")).expect("moved");
        places.moved((1, b"e"), (1, b"f"), false);
        assert_eq!(places.path(9).expect("known"), path("f/deep"), "its directory was known");

        places.lost(1, b"also");
        assert_eq!(places.path(3).expect("known"), path("f/file"));
        places.before_loss(2, b"file");
        fs::remove_file(path("f/file")).expect("removed");
        places.lost(1, b"f/file");
        assert!(places.path(3).is_err());
        assert_eq!(places.file(3).expect("kept").metadata().expect("there").len(), 7000);
        places.made(3, 1, b"anew", Some(File::create(path("anew")).expect("made")));
        assert_eq!(places.file(3).expect("open").metadata().expect("there").len(), 0);
    }

    #[test]
    fn names_are_swapped_and_replaced() {
        let places = Places::new(Path::new("/x"), 1);
        places.learn(2, 1, b"a");
        places.learn(3, 1, b"b");
        places.moved((1, b"a"), (1, b"b"), true);
        assert_eq!([2, 3].map(|inode| places.path(inode).expect("known")), ["/x/b", "/x/a"].map(PathBuf::from));
        places.moved((1, b"a"), (1, b"b"), false);
        assert!(places.path(2).is_err() && places.path(3).expect("known") == Path::new("/x/b"));
    }
}

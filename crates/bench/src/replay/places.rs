//! Where the files of a trace are in the directory that it runs again in: inodes of the trace, names and open files there.
//!
//! [RPP1] A trace is what somebody sent: nothing outside of the directory is read or changed, whatever its names, paths and symbolic links
//!        say. The kernel resolves each path with the directory as its root; what takes a name then gets the directory that it is in, and
//!        its last part alone.
//! [RPP2] Not more than [`OPEN_MAX`] files with names are kept open, and of those without a name only the ones that are used later
//!        ([RPO4]).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tandemfs_trace::Known;

use super::names::Names;
use super::order::Life;

/// Files that are kept open.
const OPEN_MAX: usize = 256;
/// How often a path is resolved again that something was moved on meanwhile.
const ATTEMPTS: usize = 100;
/// Directories above a file; a damaged trace may have circles.
const DEPTH_MAX: usize = 1000;

#[derive(Default)]
struct State {
    names: Names,
    open: HashMap<u64, Arc<File>>,
    /// Files without names that are used on.
    nameless: HashMap<u64, Arc<File>>,
    /// How many operations are still to come about each file that is nameless at some time.
    uses: HashMap<Life, usize>,
}

/// The directory.
pub struct Places {
    directory: OwnedFd,
    /// Inode of the trace's root.
    root: u64,
    /// Flags of every open file.
    added: OFlags,
    state: Mutex<State>,
}

/// A directory, and a name in it.
pub struct Spot {
    pub directory: OwnedFd,
    /// With the slashes behind it. Where it is `..`, the calls that take a name refuse it.
    pub name: Vec<u8>,
}

impl State {
    fn path(&self, root: u64, inode: u64, depth: usize) -> Option<Vec<u8>> {
        if inode == root {
            return Some(Vec::new());
        }
        let (parent, name) = self.names.name(inode)?;
        let mut path = (depth < DEPTH_MAX).then(|| self.path(root, *parent, depth + 1))??;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Some(path)
    }

    fn keep(&mut self, inode: u64, file: Arc<File>) {
        if self.open.len() >= OPEN_MAX {
            self.open.clear();
        }
        self.open.insert(inode, file);
    }
}

fn absent() -> io::Error {
    Errno::NOENT.into()
}

impl Places {
    /// An empty directory for a trace with this root; `uses` are of files that will be nameless.
    pub fn new(directory: &Path, root: u64, uses: HashMap<Life, usize>, is_synchronous: bool) -> io::Result<Self> {
        let directory = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let added = if is_synchronous { OFlags::DSYNC } else { OFlags::empty() };
        Ok(Self { directory, root, added, state: Mutex::new(State { uses, ..State::default() }) })
    }

    /// Where a file is, from the directory on.
    fn path(&self, inode: u64) -> io::Result<Vec<u8>> {
        self.state.lock().path(self.root, inode, 0).ok_or_else(absent)
    }

    /// Where a name in a directory, or a path below it, is; without a name, the file itself.
    fn named(&self, inode: u64, name: &[u8]) -> io::Result<Vec<u8>> {
        let mut path = self.path(inode)?;
        if !name.is_empty() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path)
    }

    /// Opens a path with the directory as its root ([RPP1]).
    fn resolve(&self, path: &[u8], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        let flags = if flags.contains(OFlags::PATH) { flags } else { flags | self.added };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let mut attempts = 0;
        loop {
            match rustix::fs::openat2(&self.directory, path, flags | OFlags::CLOEXEC, mode, resolve) {
                Err(Errno::AGAIN) if attempts < ATTEMPTS => attempts += 1,
                result => return Ok(result?),
            }
        }
    }

    /// Opens what a name in a directory, a path below it, or the inode itself is.
    pub fn open(&self, inode: u64, name: &[u8], flags: OFlags, mode: Mode) -> io::Result<File> {
        self.resolve(&self.named(inode, name)?, flags, mode).map(File::from)
    }

    /// The same, whatever it is, for calls on it alone.
    pub fn object(&self, inode: u64, name: &[u8], follows: bool) -> io::Result<OwnedFd> {
        let last = if follows { OFlags::empty() } else { OFlags::NOFOLLOW };
        self.resolve(&self.named(inode, name)?, OFlags::PATH | last, Mode::empty())
    }

    /// For calls that take a name.
    pub fn spot(&self, inode: u64, name: &[u8]) -> io::Result<Spot> {
        let path = self.named(inode, name)?;
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        if end == 0 {
            return Err(Errno::BUSY.into()); // the root has no name
        }
        let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let directory = self.resolve(&path[..start], OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Spot { directory, name: path[start..].to_vec() })
    }

    /// What its operations have told of names.
    pub fn names<T>(&self, run: impl FnOnce(&mut Names) -> T) -> T {
        run(&mut self.state.lock().names)
    }

    /// A file is made, and has nothing of what had its number before.
    pub fn made(&self, inode: u64, directory: u64, path: &[u8], file: Option<File>) {
        let mut state = self.state.lock();
        state.names.clear(inode);
        state.nameless.remove(&inode);
        state.open.remove(&inode);
        let name = state.names.last(directory, path);
        state.names.add(inode, name);
        if let Some(file) = file {
            state.keep(inode, Arc::new(file));
        }
    }

    /// A file is made without a name, and used later.
    pub fn made_nameless(&self, inode: u64, file: File) {
        self.made(inode, self.root, b"", None);
        self.state.lock().nameless.insert(inode, Arc::new(file));
    }

    /// Before a name goes: if it is the last one of a regular file that is used later, the file is kept open.
    pub fn before_loss(&self, directory: u64, path: &[u8]) {
        let inode = {
            let state = self.state.lock();
            let inode = state.names.file(&state.names.last(directory, path));
            inode.filter(|inode| state.names.has_one(*inode))
        };
        let Some(inode) = inode else { return };
        let is_file = |found: Stat| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if self.object(inode, b"", false).and_then(|object| Ok(rustix::fs::fstat(object)?)).is_ok_and(is_file)
            && let Ok(file) = self.file(inode)
        {
            self.state.lock().nameless.insert(inode, file);
        }
    }

    /// A name has gone.
    pub fn lost(&self, directory: u64, path: &[u8]) {
        let mut state = self.state.lock();
        let name = state.names.last(directory, path);
        if let Some(inode) = state.names.take(&name) {
            state.open.remove(&inode);
        }
    }

    /// A name has become another one; with `swapped` that one became this.
    pub fn moved(&self, from: (u64, &[u8]), to: (u64, &[u8]), swapped: bool) {
        let mut state = self.state.lock();
        let (from, to) = (state.names.last(from.0, from.1), state.names.last(to.0, to.1));
        let replaced = state.names.file(&to).filter(|file| !swapped && state.names.file(&from) != Some(*file));
        state.names.moved(from, to, swapped);
        replaced.map(|inode| state.open.remove(&inode));
    }

    /// An operation is over that was about these files.
    pub fn used(&self, files: &[Life]) {
        if files.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for file in files {
            let left = state.uses.get_mut(file).map_or(0, |left| {
                *left = left.saturating_sub(1);
                *left
            });
            if left == 0 {
                state.nameless.remove(&file.0);
            }
        }
    }

    /// A regular file or a directory, open for what it allows.
    pub fn file(&self, inode: u64) -> io::Result<Arc<File>> {
        let path = {
            let state = self.state.lock();
            if let Some(file) = state.nameless.get(&inode).or_else(|| state.open.get(&inode)) {
                return Ok(Arc::clone(file));
            }
            state.path(self.root, inode, 0).ok_or_else(absent)?
        };
        let open = |access: OFlags| self.resolve(&path, access | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty());
        let file = Arc::new(File::from(open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY))?));
        self.state.lock().keep(inode, Arc::clone(&file));
        Ok(file)
    }

    /// Makes the names that were there when the trace began; `known` has directories before what is in them. Returns how many could not be
    /// made: the walk that found them ran while operations did, and saw some of them twice, or without what they were in.
    pub fn create(&self, known: &[&Known]) -> io::Result<usize> {
        let mut left_out = 0;
        for known in known.iter().filter(|known| known.inode != self.root) {
            let has_place = self.names(|names| {
                let is_directory = FileType::from_raw_mode(known.mode) == FileType::Directory;
                let is_again = is_directory && names.name(known.inode).is_some();
                !is_again && names.file(&(known.parent, known.name.clone())).is_none()
            });
            let made = if has_place { self.create_one(known) } else { Err(Errno::EXIST.into()) };
            match made {
                Ok(()) => self.names(|names| names.add(known.inode, (known.parent, known.name.clone()))),
                Err(error) if is_of_the_walk(&error) => left_out += 1,
                Err(error) => {
                    let path = self.named(known.parent, &known.name).unwrap_or_default();
                    return Err(io::Error::new(error.kind(), format!("{}: {error}", String::from_utf8_lossy(&path))));
                }
            }
        }
        Ok(left_out)
    }

    fn create_one(&self, known: &Known) -> io::Result<()> {
        let Spot { directory, name } = self.spot(known.parent, &known.name)?;
        if self.names(|names| names.name(known.inode).is_some()) {
            let earlier = self.spot(known.inode, b"")?;
            return Ok(rustix::fs::linkat(&earlier.directory, &*earlier.name, &directory, &*name, AtFlags::empty())?);
        }
        // Who runs it again uses the files whatever their owners could.
        let kept = if FileType::from_raw_mode(known.mode) == FileType::Directory { 0o700 } else { 0o600 };
        let mode = Mode::from_raw_mode(known.mode & 0o777 | kept);
        let file = || {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&directory, &*name, flags, mode).map(File::from)
        };
        match FileType::from_raw_mode(known.mode) {
            FileType::Directory => rustix::fs::mkdirat(&directory, &*name, mode)?,
            FileType::Symlink => return Ok(rustix::fs::symlinkat(&*known.target, &directory, &*name)?),
            FileType::RegularFile => file()?.set_len(known.size)?,
            kind @ (FileType::Fifo | FileType::Socket) => rustix::fs::mknodat(&directory, &*name, kind, mode, 0)?,
            // Devices need rights, and are nothing to work on.
            _ => drop(file()?),
        }
        // Past the mask of this process. It is no symbolic link: it was made here.
        Ok(rustix::fs::chmodat(&directory, &*name, mode, AtFlags::empty())?)
    }
}

/// What a walk beside operations leads to, and no fault of the directory.
fn is_of_the_walk(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists)
}

/// A name by which calls that take only paths come to an open file, whatever it is.
pub fn of_open(file: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn known(inode: u64, parent: u64, name: &str, mode: u32, size: u64) -> Known {
        Known { inode, parent, size, mode, name: name.into(), target: b"to".to_vec() }
    }

    fn places(directory: &Path, known: &[Known]) -> (Places, usize) {
        let places = Places::new(directory, 1, HashMap::new(), false).expect("a directory");
        let left_out = places.create(&known.iter().collect::<Vec<_>>()).expect("made");
        (places, left_out)
    }

    fn path(places: &Places, inode: u64) -> Option<String> {
        places.path(inode).ok().map(|path| String::from_utf8(path).expect("UTF-8"))
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
        let (places, left_out) = places(directory.path(), &all);
        assert_eq!(left_out, 0);
        let at = |name: &str| directory.path().join(name);
        assert_eq!((fs::metadata(at("d/file")).expect("there").len(), fs::read_link(at("d/link")).expect("there")), (7000, "to".into()));
        let also = fs::metadata(at("also")).expect("there");
        assert_eq!((also.nlink(), also.mode() & 0o777), (2, 0o600), "who runs it again uses it");

        fs::rename(at("d"), at("e")).expect("moved");
        places.moved((1, b"d"), (1, b"e"), false);
        assert_eq!(path(&places, 4).as_deref(), Some("e/link"));
        places.names(|names| names.add(9, names.last(1, b"e/deep")));
        fs::rename(at("e"), at("f")).expect("moved");
        places.moved((1, b"e"), (1, b"f"), false);
        assert_eq!(path(&places, 9).as_deref(), Some("f/deep"), "its directory was known");

        places.lost(1, b"also");
        assert_eq!(path(&places, 3).as_deref(), Some("f/file"));
        places.before_loss(2, b"file");
        fs::remove_file(at("f/file")).expect("removed");
        places.lost(1, b"f/file");
        assert_eq!(path(&places, 3), None);
        assert_eq!(places.file(3).expect("kept").metadata().expect("there").len(), 7000);
        places.made(3, 1, b"anew", Some(File::create(at("anew")).expect("made")));
        assert_eq!(places.file(3).expect("open").metadata().expect("there").len(), 0);
    }

    /// [RPP2]
    #[test]
    fn few_files_stay_open() {
        let directory = tempfile::tempdir().expect("a directory");
        let (places, _) = places(directory.path(), &[]);
        for inode in 2..2 + 3 * OPEN_MAX as u64 {
            let name = inode.to_string();
            let flags = OFlags::RDWR | OFlags::CREATE;
            let file = places.open(1, name.as_bytes(), flags, Mode::from_raw_mode(0o600)).expect("made");
            places.made(inode, 1, name.as_bytes(), Some(file));
            assert!(places.state.lock().open.len() <= OPEN_MAX);
        }
        places.state.lock().uses = HashMap::from([((5, 0), 2)]);
        places.before_loss(1, b"5");
        places.lost(1, b"5");
        places.used(&[(5, 0)]);
        places.file(5).expect("used once more");
        places.used(&[(5, 0)]);
        assert_eq!(places.file(5).expect_err("closed").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn names_that_a_walk_saw_in_motion_are_left_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let all = [
            known(2, 1, "d", 0o040_755, 0),
            known(2, 1, "moved", 0o040_755, 0), // a directory seen twice
            known(3, 1, "d", 0o100_644, 5),     // its name is another one's already
            known(4, 77, "lost", 0o100_644, 5), // its directory was seen no more
            known(5, 1, "file", 0o100_644, 5),
            known(6, 5, "below", 0o100_644, 5), // the directory's number is a file's now
            known(5, 2, "link", 0o100_644, 5),
        ];
        let (places, left_out) = places(directory.path(), &all);
        assert_eq!(left_out, 4);
        assert_eq!([2, 3, 4, 5, 6].map(|inode| path(&places, inode)), [Some("d".into()), None, None, Some("d/link".into()), None]);
        assert!(directory.path().join("d/link").is_file() && !directory.path().join("moved").exists());
        let damaged = known(8, 1, &"x".repeat(300), 0o100_644, 5);
        let error = places.create(&[&damaged]).expect_err("too long").to_string();
        assert!(error.starts_with("/xxx"), "{error}");
    }

    /// [RPP1]
    #[test]
    fn no_path_leads_out_of_the_directory() {
        let ground = tempfile::tempdir().expect("a directory");
        let (inside, outside) = (ground.path().join("inside"), ground.path().join("outside"));
        for directory in [&inside, &outside] {
            fs::create_dir(directory).expect("made");
            fs::File::create(directory.join("file")).and_then(|mut file| file.write_all(b"old")).expect("written");
        }
        std::os::unix::fs::symlink(&outside, inside.join("link")).expect("made");
        std::os::unix::fs::symlink("../outside/file", inside.join("short")).expect("made");
        let (places, _) = places(&inside, &[]);
        let write = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mode = Mode::from_raw_mode(0o600);
        let absolute = outside.join("file");
        for path in [b"link/file".as_slice(), b"short", absolute.as_os_str().as_encoded_bytes()] {
            assert!(places.open(1, path, write, mode).is_err(), "{path:?}");
            assert!(places.object(1, path, true).is_err());
        }
        // Above it there is the directory itself.
        places.open(1, b"../../made", write, mode).expect("inside");
        let spot = places.spot(1, b"../..//also/").expect("inside");
        assert_eq!(spot.name, b"also/");
        rustix::fs::mkdirat(&spot.directory, &*spot.name, Mode::from_raw_mode(0o700)).expect("made");
        assert!(inside.join("made").is_file() && inside.join("also").is_dir());
        assert!(places.spot(1, b"link/other").is_err(), "a name outside");
        assert_eq!(places.spot(1, b"//").err().and_then(|error| error.raw_os_error()), Some(Errno::BUSY.raw_os_error()));
        assert_eq!(fs::read(outside.join("file")).expect("there"), b"old");
        assert_eq!(fs::read_dir(&outside).expect("there").count(), 1);
    }
}

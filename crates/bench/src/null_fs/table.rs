//! The file system's state: nodes by number, names in directories, bytes of files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use hashbrown::HashMap;
use parking_lot::RwLock;
use rustix::fs::RenameFlags;
use tandemfs_wire::{Attributes, Errno, SetAttributes, SetTime, Time};

/// Smaller cookies are those of `.` and `..`.
pub(super) const COOKIE_FIRST: u64 = 3;

pub(super) struct Table {
    nodes: HashMap<u64, Node>,
    last: u64,
}

pub(super) struct Node {
    /// File type and permissions.
    pub(super) mode: u32,
    uid: u32,
    gid: u32,
    device: u32,
    links: u32,
    times: Times,
    /// Lookup count: entries given to the kernel and not yet forgotten.
    pub(super) looked_up: u64,
    pub(super) content: Content,
}

#[derive(Clone, Copy)]
struct Times {
    accessed: Time,
    modified: Time,
    changed: Time,
}

pub(super) enum Content {
    File(Arc<Bytes>),
    Directory(Box<Directory>),
    Link(Vec<u8>),
    Nothing,
}

/// Bytes of a file. Missing bytes read as zeros.
#[derive(Default)]
pub(super) struct Bytes {
    size: AtomicU64,
    kept: RwLock<Vec<u8>>,
}

pub(super) struct Directory {
    parent: u64,
    names: HashMap<Vec<u8>, u64>,
    entries: BTreeMap<u64, (Vec<u8>, u64)>,
    next: u64,
}

pub(super) type Answer<T> = std::result::Result<T, Errno>;

impl Bytes {
    pub(super) fn write(&self, offset: u64, data: &[u8]) {
        let mut kept = self.kept.write();
        let (start, end) = (offset as usize, offset as usize + data.len());
        if kept.len() < start {
            kept.resize(start, 0);
        }
        let overlap = kept.len().min(end) - start;
        kept[start..start + overlap].copy_from_slice(&data[..overlap]);
        kept.extend_from_slice(&data[overlap..]);
        self.size.fetch_max(end as u64, Relaxed);
    }

    /// Passes the bytes of a range, up to the file's size, to `then`. Missing bytes are zeros.
    pub(super) fn read<T>(&self, offset: u64, length: usize, then: impl FnOnce(&[u8]) -> T) -> T {
        let kept = self.kept.read();
        let end = self.size.load(Relaxed).min(offset + length as u64) as usize;
        let start = (offset as usize).min(end);
        if end <= kept.len() {
            return then(&kept[start..end]);
        }
        let mut padded = kept[start.min(kept.len())..].to_vec();
        padded.resize(end - start, 0);
        then(&padded)
    }

    pub(super) fn resize(&self, size: u64) {
        let mut kept = self.kept.write();
        kept.truncate(size as usize);
        self.size.store(size, Relaxed);
    }
}

impl Directory {
    pub(super) fn empty(parent: u64) -> Content {
        Content::Directory(Box::new(Self { parent, names: HashMap::new(), entries: BTreeMap::new(), next: COOKIE_FIRST }))
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<u64> {
        Some(self.entries.get(self.names.get(name)?)?.1)
    }

    fn insert(&mut self, name: &[u8], number: u64) {
        self.names.insert(name.to_vec(), self.next);
        self.entries.insert(self.next, (name.to_vec(), number));
        self.next += 1;
    }

    fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let cookie = self.names.remove(name)?;
        Some(self.entries.remove(&cookie)?.1)
    }
}

fn now() -> Time {
    SystemTime::now().into()
}

impl Node {
    pub(super) fn new(mode: u32, owner: (u32, u32), device: u32, content: Content) -> Self {
        let times = Times { accessed: now(), modified: now(), changed: now() };
        let links = if matches!(content, Content::Directory(_)) { 2 } else { 1 };
        Self { mode, uid: owner.0, gid: owner.1, device, links, times, looked_up: 0, content }
    }

    pub(super) fn attributes(&self, number: u64) -> Attributes {
        let size = match &self.content {
            Content::File(bytes) => bytes.size.load(Relaxed),
            Content::Directory(directory) => directory.entries.len() as u64 * 64,
            Content::Link(target) => target.len() as u64,
            Content::Nothing => 0,
        };
        Attributes {
            ino: number,
            size,
            blocks: size.div_ceil(512),
            atime: self.times.accessed,
            mtime: self.times.modified,
            ctime: self.times.changed,
            birth: None,
            mode: self.mode,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.device,
            block_bytes: 4096,
            flags: 0,
        }
    }
}

fn time(wanted: SetTime) -> Time {
    match wanted {
        SetTime::At(time) => time,
        SetTime::Now => now(),
    }
}

impl Table {
    pub(super) fn new(root: Node) -> Self {
        Self { nodes: HashMap::from([(1, root)]), last: 1 }
    }

    pub(super) fn node(&mut self, number: u64) -> Answer<&mut Node> {
        self.nodes.get_mut(&number).ok_or(Errno::ESTALE)
    }

    pub(super) fn directory(&mut self, number: u64) -> Answer<&mut Directory> {
        match &mut self.node(number)?.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn file(&mut self, number: u64) -> Answer<Arc<Bytes>> {
        match &self.node(number)?.content {
            Content::File(bytes) => Ok(bytes.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn set(&mut self, number: u64, set: &SetAttributes) -> Answer<Attributes> {
        let node = self.node(number)?;
        node.mode = set.mode.map_or(node.mode, |mode| node.mode & !0o7777 | mode & 0o7777);
        (node.uid, node.gid) = (set.uid.unwrap_or(node.uid), set.gid.unwrap_or(node.gid));
        if let (Some(size), Content::File(bytes)) = (set.size, &node.content) {
            bytes.resize(size);
        }
        let Times { accessed, modified, .. } = node.times;
        node.times = Times {
            accessed: set.atime.map_or(accessed, time),
            modified: set.mtime.map_or_else(|| if set.size.is_some() { now() } else { modified }, time),
            changed: set.ctime.unwrap_or_else(now),
        };
        Ok(node.attributes(number))
    }

    /// Attributes for an entry reply: increments the node's lookup count.
    pub(super) fn entry(&mut self, number: u64) -> Answer<Attributes> {
        let node = self.node(number)?;
        node.looked_up += 1;
        Ok(node.attributes(number))
    }

    /// The same by name; `None` if the name does not exist.
    pub(super) fn lookup(&mut self, parent: u64, name: &[u8]) -> Answer<Option<Attributes>> {
        self.directory(parent)?.find(name).map(|number| self.entry(number)).transpose()
    }

    /// Updates a directory's times after a change of names, and its link count if a subdirectory was added or removed.
    fn touch(&mut self, directory: u64, links: i32) -> Answer<()> {
        let node = self.node(directory)?;
        node.times.modified = now();
        node.times.changed = node.times.modified;
        node.links = node.links.saturating_add_signed(links);
        Ok(())
    }

    pub(super) fn add(&mut self, parent: u64, name: &[u8], node: Node) -> Answer<Attributes> {
        if self.directory(parent)?.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        self.last += 1;
        let number = self.last;
        let links = i32::from(matches!(node.content, Content::Directory(_)));
        self.directory(parent)?.insert(name, number);
        self.nodes.insert(number, node);
        self.touch(parent, links)?;
        self.entry(number)
    }

    pub(super) fn link(&mut self, number: u64, parent: u64, name: &[u8]) -> Answer<Attributes> {
        if self.directory(parent)?.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        self.node(number)?.links += 1;
        self.directory(parent)?.insert(name, number);
        self.touch(parent, 0)?;
        self.entry(number)
    }

    pub(super) fn remove(&mut self, parent: u64, name: &[u8]) -> Answer<()> {
        let number = self.directory(parent)?.find(name).ok_or(Errno::ENOENT)?;
        self.release(number)?;
        self.directory(parent)?.remove(name);
        let was_directory = self.nodes.get(&number).is_some_and(|node| matches!(node.content, Content::Directory(_)));
        self.touch(parent, -i32::from(was_directory))?;
        self.forget(number, 0);
        Ok(())
    }

    /// Removes a link; an empty directory loses all its links.
    fn release(&mut self, number: u64) -> Answer<()> {
        let node = self.node(number)?;
        match &node.content {
            Content::Directory(directory) if !directory.entries.is_empty() => return Err(Errno::ENOTEMPTY),
            Content::Directory(_) => node.links = 0,
            _ => node.links -= 1,
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), flags: RenameFlags) -> Answer<()> {
        let number = self.directory(from.0)?.find(from.1).ok_or(Errno::ENOENT)?;
        let target = self.directory(to.0)?.find(to.1);
        if flags.intersects(RenameFlags::EXCHANGE | RenameFlags::WHITEOUT) {
            return Err(Errno::EINVAL);
        }
        if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return Err(Errno::EEXIST);
        }
        if target == Some(number) {
            return Ok(());
        }
        if target.is_some() {
            self.remove(to.0, to.1)?;
        }
        self.directory(from.0)?.remove(from.1);
        self.directory(to.0)?.insert(to.1, number);
        let links = match &mut self.node(number)?.content {
            Content::Directory(directory) => {
                directory.parent = to.0;
                1
            }
            _ => 0,
        };
        self.touch(from.0, -links)?;
        self.touch(to.0, links)
    }

    pub(super) fn forget(&mut self, number: u64, count: u64) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.looked_up = node.looked_up.saturating_sub(count);
            if node.looked_up == 0 && node.links == 0 {
                self.nodes.remove(&number);
            }
        }
    }

    /// Passes entries from a cookie on to `add`, until it returns false.
    pub(super) fn list(&mut self, number: u64, cookie: u64, mut add: impl FnMut(&[u8], u64, u64, &mut Node) -> bool) -> Answer<()> {
        let parent = self.directory(number)?.parent;
        for (position, number, name) in [(1, number, &b"."[..]), (2, parent, b"..")] {
            if cookie < position && !add(name, position, number, self.node(number)?) {
                return Ok(());
            }
        }
        let mut next = cookie.max(COOKIE_FIRST - 1) + 1;
        loop {
            let Some((position, (name, number))) = self.directory(number)?.entries.range(next..).next() else { return Ok(()) };
            let (position, name, number) = (*position, name.clone(), *number);
            if !add(&name, position, number, self.node(number)?) {
                return Ok(());
            }
            next = position + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table::new(Node::new(0o040_755, (0, 0), 0, Directory::empty(1)))
    }

    fn file() -> Node {
        Node::new(0o100_644, (0, 0), 0, Content::File(Arc::default()))
    }

    #[test]
    fn bytes_are_kept_and_gaps_are_zero() {
        let bytes = Bytes::default();
        bytes.write(3, b"abc");
        bytes.write(4, b"xyz");
        bytes.resize(9);
        assert_eq!(bytes.read(0, 100, <[u8]>::to_vec), b"\0\0\0axyz\0\0");
        assert_eq!(bytes.read(8, 100, <[u8]>::to_vec), b"\0");
        assert_eq!(bytes.read(9, 100, <[u8]>::to_vec), b"");
        bytes.resize(4);
        bytes.resize(6);
        assert_eq!(bytes.read(0, 100, <[u8]>::to_vec), b"\0\0\0a\0\0", "what was cut does not come back");
        bytes.write(5, b"!");
        assert_eq!(bytes.read(2, 100, <[u8]>::to_vec), b"\0a\0!");
    }

    #[test]
    fn names_are_taken_moved_and_given_back() {
        let mut table = table();
        let (a, b) = (&b"a"[..], &b"b"[..]);
        let number = table.add(1, a, file()).expect("added").ino;
        assert!(table.add(1, a, file()).is_err(), "once");
        let directory = table.add(1, b, Node::new(0o040_755, (0, 0), 0, Directory::empty(1))).expect("added").ino;
        assert_eq!(table.node(1).expect("root").links, 3);
        table.rename((1, a), (directory, b), RenameFlags::empty()).expect("moved");
        assert_eq!((table.directory(1).expect("root").find(a), table.directory(directory).expect("below").find(b)), (None, Some(number)));
        assert!(table.remove(1, b).is_err(), "not empty");
        table.remove(directory, b).expect("removed");
        assert!(table.nodes.contains_key(&number), "the kernel still holds it");
        table.forget(number, 1);
        assert!(!table.nodes.contains_key(&number));
        table.remove(1, b).expect("removed");
        assert_eq!(table.node(1).expect("root").links, 2);
    }

    #[test]
    fn a_rename_replaces() {
        let mut table = table();
        let (a, b) = (&b"a"[..], &b"b"[..]);
        let kept = table.add(1, a, file()).expect("added").ino;
        let replaced = table.add(1, b, file()).expect("added").ino;
        assert!(table.rename((1, a), (1, b), RenameFlags::NOREPLACE).is_err());
        table.rename((1, a), (1, b), RenameFlags::empty()).expect("moved");
        assert_eq!((table.directory(1).expect("root").find(b), table.node(replaced).expect("held").links), (Some(kept), 0));
    }
}

//! A small in-memory file system, with some files that misbehave on purpose:
//!
//! `/slow` parks its reads and writes until the test orders `finish`, `/dropped` drops the replies to its reads, `/panic` panics in them.
//! Reads of `/waits…` wait in their thread for `finish`, after they have said so; those of `/holds…` do not say so.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tandemfs_wire::{
    Attributes, Entry, Errno, Handler, Interruption, Opened, Operation, ParkedReply, Reply, Request, SetAttributes, SetTime, Statfs, Time,
    kind_of, will_wait,
};

const VALID: Duration = Duration::from_secs(3600);
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const KIND: u32 = 0o170_000;
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;

#[derive(Default)]
struct Node {
    attributes: Attributes,
    names: BTreeMap<Vec<u8>, u64>,
    data: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Default)]
struct Tree {
    nodes: HashMap<u64, Node>,
    last: u64,
}

/// Events that a test waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Parked,
    Waits,
    Interrupted,
    Group(u32),
}

pub struct MemoryFs {
    tree: Mutex<Tree>,
    parked: Mutex<Vec<(ParkedReply, Answer)>>,
    events: Sender<Event>,
    slow: u64,
    pub idle_calls: AtomicU64,
    pub reads: AtomicU64,
    /// How often `finish` was ordered.
    finished: Mutex<u64>,
    finishes: Condvar,
}

/// The answer to a parked request.
enum Answer {
    Data(Vec<u8>),
    Written(u32),
}

/// Files whose readers wait.
const WAITING: [(&[u8], &[u8]); 4] = [(b"waits-1", b"1"), (b"waits-2", b"2"), (b"waits-3", b"3"), (b"holds", b"4")];

type Outcome<T> = Result<T, Errno>;

fn now() -> Time {
    SystemTime::now().into()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryFs {
    pub fn new(events: Sender<Event>) -> Self {
        let mut tree = Tree { last: 1, ..Tree::default() };
        let attributes = Attributes { ino: 1, mode: DIRECTORY | 0o755, nlink: 2, birth: Some(now()), ..Attributes::default() };
        tree.nodes.insert(1, Node { attributes, ..Node::default() });
        let files = [(&b"slow"[..], &b"at last"[..]), (b"dropped", b"x"), (b"panic", b"x"), (b"steady", b"old")];
        for (name, data) in files.into_iter().chain(WAITING) {
            let node = tree.add(1, name, REGULAR | 0o644, (0, 0)).expect("a fresh name");
            tree.get_mut(node).expect("just made").data = data.to_vec();
            tree.resize(node, data.len() as u64).expect("a file");
        }
        let (idle_calls, reads) = (AtomicU64::new(0), AtomicU64::new(0));
        let slow = tree.nodes[&1].names[&b"slow"[..]];
        Self {
            tree: Mutex::new(tree),
            parked: Mutex::default(),
            events,
            slow,
            idle_calls,
            reads,
            finished: Mutex::default(),
            finishes: Condvar::new(),
        }
    }

    /// Answers all parked reads.
    pub fn finish(&self) -> usize {
        let parked = std::mem::take(&mut *locked(&self.parked));
        let count = parked.len();
        *locked(&self.finished) += 1;
        self.finishes.notify_all();
        for (reply, answer) in parked {
            reply.finish(|reply| match answer {
                Answer::Written(bytes) => reply.written(bytes),
                Answer::Data(data) => reply.fill(data.len(), |buffer| {
                    buffer.copy_from_slice(&data);
                    Ok(data.len())
                }),
            });
        }
        count
    }

    /// Changes a file without the kernel's knowledge.
    pub fn replace(&self, node: u64, data: &[u8]) {
        let mut tree = locked(&self.tree);
        tree.get_mut(node).expect("a file").data = data.to_vec();
    }

    pub fn find(&self, name: &[u8]) -> Option<u64> {
        locked(&self.tree).nodes[&1].names.get(name).copied()
    }

    fn tell(&self, event: Event) {
        // The test may have ended.
        let _unheard = self.events.send(event);
    }

    /// Waits in this thread until the test orders `finish`.
    fn wait(&self, node: u64) {
        let finished = locked(&self.finished);
        let before = *finished;
        if !self.is_named(node, b"holds") {
            will_wait();
        }
        self.tell(Event::Waits);
        drop(self.finishes.wait_while(finished, |finished| *finished == before).unwrap_or_else(PoisonError::into_inner));
    }

    fn is_named(&self, node: u64, name: &[u8]) -> bool {
        self.find(name) == Some(node)
    }

    fn read(&self, request: &Request<'_>, offset: u64, size: u32, reply: Reply<'_>) {
        self.reads.fetch_add(1, SeqCst);
        if self.is_named(request.node, b"dropped") {
            return drop(reply);
        }
        assert!(!self.is_named(request.node, b"panic"), "a read of /panic, as it should");
        if WAITING.iter().any(|(name, _)| self.is_named(request.node, name)) {
            self.wait(request.node);
        }
        let tree = locked(&self.tree);
        let rest = |node: &Node| node.data.get(offset as usize..).unwrap_or_default().to_vec();
        if self.slow == request.node {
            let mut data = rest(&tree.nodes[&request.node]);
            data.truncate(size as usize);
            return self.park(reply, Answer::Data(data));
        }
        reply.fill(size as usize, |buffer| {
            let data = rest(tree.get(request.node)?);
            let bytes = data.len().min(buffer.len());
            buffer[..bytes].copy_from_slice(&data[..bytes]);
            Ok(bytes)
        });
    }

    fn park(&self, reply: Reply<'_>, answer: Answer) {
        locked(&self.parked).push((reply.park(), answer));
        self.tell(Event::Parked);
    }

    fn entry(&self, result: impl FnOnce(&mut Tree) -> Outcome<u64>, reply: Reply<'_>) {
        let mut tree = locked(&self.tree);
        match result(&mut tree).and_then(|node| tree.entry(node)) {
            Ok(entry) => reply.entry(&entry),
            Err(error) => reply.error(error),
        }
    }

    fn done(&self, result: impl FnOnce(&mut Tree) -> Outcome<()>, reply: Reply<'_>) {
        match result(&mut locked(&self.tree)) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn create(&self, result: impl FnOnce(&mut Tree) -> Outcome<u64>, reply: Reply<'_>) {
        let mut tree = locked(&self.tree);
        match result(&mut tree).and_then(|node| tree.entry(node)) {
            Ok(entry) => reply.create(&entry, Opened { handle: 7, ..Opened::default() }),
            Err(error) => reply.error(error),
        }
    }
}

impl Handler for MemoryFs {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let node = request.node;
        let owner = (request.uid, request.gid);
        request.extensions.groups.iter().for_each(|group| self.tell(Event::Group(group)));
        match request.operation {
            Operation::Lookup { name } => match locked(&self.tree).lookup(node, name) {
                Ok(entry) => reply.entry(&entry),
                Err(Errno::ENOENT) => reply.entry(&Entry::absent(VALID)),
                Err(error) => reply.error(error),
            },
            Operation::Forget { .. } | Operation::BatchForget(_) => reply.none(),
            Operation::Getattr { .. } => match locked(&self.tree).get(node) {
                Ok(found) => reply.attributes(&found.attributes, VALID),
                Err(error) => reply.error(error),
            },
            Operation::Statx { .. } => match locked(&self.tree).get(node) {
                Ok(found) => reply.statx(&found.attributes, VALID),
                Err(error) => reply.error(error),
            },
            Operation::Setattr(set) => match locked(&self.tree).set(node, &set) {
                Ok(attributes) => reply.attributes(&attributes, VALID),
                Err(error) => reply.error(error),
            },
            Operation::Readlink => match locked(&self.tree).get(node) {
                Ok(found) => reply.bytes(&found.data),
                Err(error) => reply.error(error),
            },
            Operation::Symlink { name, target } => self.entry(
                |tree| {
                    let made = tree.add(node, name, SYMLINK | 0o777, owner)?;
                    tree.get_mut(made)?.data = target.to_vec();
                    Ok(made)
                },
                reply,
            ),
            Operation::Mknod { name, mode, .. } => self.entry(|tree| tree.add(node, name, mode, owner), reply),
            Operation::Mkdir { name, mode, .. } => {
                self.entry(|tree| tree.add(node, name, DIRECTORY | mode & 0o7777, owner), reply);
            }
            Operation::Unlink { name } | Operation::Rmdir { name } => self.done(|tree| tree.remove(node, name), reply),
            Operation::Rename { name, new_parent, new_name, flags } => {
                self.done(|tree| tree.rename((node, name), (new_parent, new_name), flags), reply);
            }
            Operation::Link { target, name } => self.entry(
                |tree| {
                    tree.get_mut(target)?.attributes.nlink += 1;
                    tree.get_mut(node)?.names.insert(name.to_vec(), target);
                    Ok(target)
                },
                reply,
            ),
            Operation::Open { .. } | Operation::Opendir { .. } => reply.open(Opened { handle: 7, ..Opened::default() }),
            Operation::Create { name, mode, .. } => self.create(|tree| tree.add(node, name, mode, owner), reply),
            Operation::Tmpfile { mode, .. } => self.create(|tree| Ok(tree.make(mode, owner)), reply),
            Operation::Read { offset, size, .. } => self.read(request, offset, size, reply),
            Operation::Write(write) => match locked(&self.tree).write(node, write.offset, write.data) {
                Ok(()) if self.slow == node => self.park(reply, Answer::Written(write.data.len() as u32)),
                Ok(()) => reply.written(write.data.len() as u32),
                Err(error) => reply.error(error),
            },
            Operation::Statfs => {
                reply.statfs(&Statfs { blocks: 1000, block_bytes: 4096, fragment_bytes: 4096, name_bytes_max: 255, ..Statfs::default() });
            }
            Operation::Readdir { offset, size, .. } | Operation::Readdirplus { offset, size, .. } => {
                let plus = matches!(request.operation, Operation::Readdirplus { .. });
                locked(&self.tree).list(node, offset, size, plus, reply);
            }
            Operation::Setxattr { name, value, .. } => self.done(
                |tree| {
                    tree.get_mut(node)?.xattrs.insert(name.to_vec(), value.to_vec());
                    Ok(())
                },
                reply,
            ),
            Operation::Getxattr { name, size } => match locked(&self.tree).get(node).map(|found| found.xattrs.get(name)) {
                Ok(Some(value)) => reply.xattr(size, value),
                Ok(None) => reply.error(Errno::ENODATA),
                Err(error) => reply.error(error),
            },
            Operation::Listxattr { size } => {
                let names = locked(&self.tree)
                    .get(node)
                    .map(|found| found.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect::<Vec<_>>());
                match names {
                    Ok(names) => reply.xattr(size, &names),
                    Err(error) => reply.error(error),
                }
            }
            Operation::Removexattr { name } => {
                self.done(|tree| tree.get_mut(node)?.xattrs.remove(name).map(drop).ok_or(Errno::ENODATA), reply);
            }
            Operation::Fallocate { offset, length, .. } => self.done(
                |tree| {
                    let size = tree.get(node)?.attributes.size.max(offset + length);
                    tree.resize(node, size)
                },
                reply,
            ),
            Operation::Lseek { offset, whence, .. } => {
                let size = locked(&self.tree).get(node).map_or(0, |found| found.attributes.size);
                // The whole file is data.
                reply.offset(if whence == 3 { offset } else { size });
            }
            Operation::CopyFileRange(copy) => {
                let mut tree = locked(&self.tree);
                let data = tree.get(node).map(|from| {
                    let end = (copy.offset + copy.length).min(from.data.len() as u64);
                    from.data.get(copy.offset as usize..end as usize).unwrap_or_default().to_vec()
                });
                let copied = data.and_then(|data| tree.write(copy.target, copy.target_offset, &data).map(|()| data.len()));
                match copied {
                    Ok(bytes) => reply.copied(bytes as u64),
                    Err(error) => reply.error(error),
                }
            }
            Operation::Release { .. } | Operation::Releasedir { .. } | Operation::Fsync { .. } | Operation::Flush { .. } => reply.ok(),
            _ => reply.error(Errno::ENOSYS),
        }
    }

    fn interrupted(&self, unique: u64) -> Interruption {
        let mut parked = locked(&self.parked);
        let Some(index) = parked.iter().position(|(reply, _)| reply.unique() == unique) else { return Interruption::TryAgain };
        let (reply, _) = parked.swap_remove(index);
        // The event comes first: the answer may cause the next request, which another thread reports.
        self.tell(Event::Interrupted);
        reply.finish(|reply| reply.error(Errno::EINTR));
        Interruption::Noted
    }

    fn idle(&self) {
        self.idle_calls.fetch_add(1, SeqCst);
        std::thread::yield_now();
    }
}

impl Tree {
    fn get(&self, node: u64) -> Outcome<&Node> {
        self.nodes.get(&node).ok_or(Errno::ESTALE)
    }

    fn get_mut(&mut self, node: u64) -> Outcome<&mut Node> {
        self.nodes.get_mut(&node).ok_or(Errno::ESTALE)
    }

    fn entry(&self, node: u64) -> Outcome<Entry> {
        let attributes = self.get(node)?.attributes;
        Ok(Entry { node, generation: 0, entry_valid: VALID, attributes_valid: VALID, attributes })
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Outcome<Entry> {
        self.get(parent)?.names.get(name).ok_or(Errno::ENOENT).and_then(|&node| self.entry(node))
    }

    fn make(&mut self, mode: u32, (uid, gid): (u32, u32)) -> u64 {
        self.last += 1;
        let time = now();
        let attributes = Attributes {
            ino: self.last,
            mode: if mode & KIND == 0 { REGULAR | mode } else { mode },
            nlink: 1 + u32::from(mode & KIND == DIRECTORY),
            uid,
            gid,
            atime: time,
            mtime: time,
            ctime: time,
            birth: Some(time),
            block_bytes: 4096,
            ..Attributes::default()
        };
        self.nodes.insert(self.last, Node { attributes, ..Node::default() });
        self.last
    }

    fn add(&mut self, parent: u64, name: &[u8], mode: u32, owner: (u32, u32)) -> Outcome<u64> {
        if self.get(parent)?.names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let node = self.make(mode, owner);
        self.get_mut(parent)?.names.insert(name.to_vec(), node);
        Ok(node)
    }

    /// Nodes are kept for the whole test.
    fn remove(&mut self, parent: u64, name: &[u8]) -> Outcome<()> {
        let node = *self.get(parent)?.names.get(name).ok_or(Errno::ENOENT)?;
        if !self.get(node)?.names.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.get_mut(node)?.attributes.nlink -= 1;
        self.get_mut(parent)?.names.remove(name);
        Ok(())
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Outcome<()> {
        let moved = *self.get(from.0)?.names.get(from.1).ok_or(Errno::ENOENT)?;
        let there = self.get(to.0)?.names.get(to.1).copied();
        match (flags, there) {
            (RENAME_NOREPLACE, Some(_)) => return Err(Errno::EEXIST),
            (RENAME_EXCHANGE, None) => return Err(Errno::ENOENT),
            (RENAME_EXCHANGE, Some(other)) => {
                self.get_mut(from.0)?.names.insert(from.1.to_vec(), other);
            }
            _ => {
                self.get_mut(from.0)?.names.remove(from.1);
            }
        }
        self.get_mut(to.0)?.names.insert(to.1.to_vec(), moved);
        Ok(())
    }

    fn resize(&mut self, node: u64, size: u64) -> Outcome<()> {
        let node = self.get_mut(node)?;
        node.data.resize(size as usize, 0);
        node.attributes.size = size;
        node.attributes.blocks = size.div_ceil(512);
        Ok(())
    }

    fn write(&mut self, node: u64, offset: u64, data: &[u8]) -> Outcome<()> {
        let end = offset + data.len() as u64;
        if end > self.get(node)?.attributes.size {
            self.resize(node, end)?;
        }
        self.get_mut(node)?.data[offset as usize..end as usize].copy_from_slice(data);
        Ok(())
    }

    fn set(&mut self, node: u64, set: &SetAttributes) -> Outcome<Attributes> {
        if let Some(size) = set.size {
            self.resize(node, size)?;
        }
        let attributes = &mut self.get_mut(node)?.attributes;
        let time = |set: Option<SetTime>, old| match set {
            Some(SetTime::Now) => now(),
            Some(SetTime::At(time)) => time,
            None => old,
        };
        attributes.mode = set.mode.map_or(attributes.mode, |mode| attributes.mode & KIND | mode & 0o7777);
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        attributes.atime = time(set.atime, attributes.atime);
        attributes.mtime = time(set.mtime, attributes.mtime);
        Ok(*attributes)
    }

    fn list(&self, node: u64, offset: u64, size: u32, plus: bool, reply: Reply<'_>) {
        let Ok(directory) = self.get(node) else { return reply.error(Errno::ESTALE) };
        let dots = [(&b"."[..], node), (b"..", 1)];
        let all = dots.into_iter().chain(directory.names.iter().map(|(name, &node)| (name.as_slice(), node)));
        let mut listing = reply.directory(size);
        for (next, (name, node)) in (1..).zip(all).skip(offset as usize) {
            let Ok(entry) = self.entry(node) else { continue };
            let added = match plus {
                true => listing.add_plus(name, next, &entry),
                false => listing.add(name, node, kind_of(entry.attributes.mode), next),
            };
            if !added {
                break;
            }
        }
        listing.send();
    }
}

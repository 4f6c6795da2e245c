//! A FUSE file system that does nothing: the bare limit of the mount. It keeps names, kinds and sizes so that its replies make sense to the
//! kernel, and discards data. It has the mount settings, ENOSYS replies and cache times of the TandemFS mount, so the kernel sends the same
//! requests to both. It does not support access lists, set-id bits or export.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tandemfs_fuse::{Mode, MountSettings};
use tandemfs_wire::{Attributes, Entry, Errno, Handler, MountOptions, OpenFlags, Opened, Operation, Reply, Request, Statfs};

use crate::failure::Result;
use crate::served::Served;

const VALID: Duration = Duration::from_secs(3600);
const OPENED: Opened = Opened { handle: 0, flags: OpenFlags::KEEP_CACHE };
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
/// What reads return. Allocated at the first read: a constant would add a MiB to the executable.
static NOTHING: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; tandemfs_fuse::request_bytes_max() as usize]);

/// The file system.
///
/// It is the limit, so it makes no system calls of its own: the owner of its files is read once.
struct NullFs {
    relaxed: bool,
    owner: (u32, u32),
    table: Mutex<Table>,
}

struct Table {
    names: HashMap<(u64, Vec<u8>), u64>,
    nodes: HashMap<u64, Node>,
    last: u64,
}

#[derive(Clone, Copy)]
struct Node {
    mode: u32,
    size: u64,
}

type Answer<T> = std::result::Result<T, Errno>;

/// Mounts it; dropping the result unmounts it.
pub fn mount(mountpoint: &Path, settings: &MountSettings) -> Result<Served> {
    let root = Node { mode: DIRECTORY, size: 0 };
    let table = Table { names: HashMap::new(), nodes: HashMap::from([(1, root)]), last: 1 };
    let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let file_system = NullFs { relaxed: settings.mode == Mode::Relaxed, owner, table: Mutex::new(table) };
    // Without access lists, which it does not have: the limit is the smallest number of requests.
    let wanted = tandemfs_fuse::wanted(file_system.relaxed, false, tandemfs_fuse::request_bytes_max());
    let options = MountOptions { source: "null".into(), default_permissions: true, atime: false, ..MountOptions::default() };
    Served::start(tandemfs_wire::mount(mountpoint, &options)?, file_system, &wanted, settings.serving())
}

impl Table {
    fn node(&mut self, number: u64) -> Answer<&mut Node> {
        self.nodes.get_mut(&number).ok_or(Errno::ESTALE)
    }

    fn add(&mut self, parent: u64, name: &[u8], node: Node) -> u64 {
        self.last += 1;
        self.names.insert((parent, name.to_vec()), self.last);
        self.nodes.insert(self.last, node);
        self.last
    }

    fn remove(&mut self, parent: u64, name: &[u8]) -> Answer<()> {
        let number = self.names.remove(&(parent, name.to_vec())).ok_or(Errno::ENOENT)?;
        self.nodes.remove(&number);
        Ok(())
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Answer<()> {
        let number = self.names.remove(&(from.0, from.1.to_vec())).ok_or(Errno::ENOENT)?;
        self.names.insert((to.0, to.1.to_vec()), number);
        Ok(())
    }
}

impl NullFs {
    fn attributes(&self, number: u64, node: Node) -> Attributes {
        Attributes {
            ino: number,
            size: node.size,
            blocks: node.size.div_ceil(512),
            mode: node.mode,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            block_bytes: 4096,
            ..Attributes::default()
        }
    }

    fn entry(&self, number: u64, node: Node) -> Entry {
        let attributes = self.attributes(number, node);
        Entry { node: number, generation: 0, entry_valid: VALID, attributes_valid: VALID, attributes }
    }

    fn lookup(&self, parent: u64, name: &[u8], reply: Reply<'_>) {
        let found = {
            let table = self.table.lock();
            table.names.get(&(parent, name.to_vec())).and_then(|number| Some((*number, *table.nodes.get(number)?)))
        };
        reply.entry(&found.map_or_else(|| Entry::absent(VALID), |(number, node)| self.entry(number, node)));
    }

    /// Sends attributes, after setting a new size if there is one.
    fn resize(&self, number: u64, size: Option<u64>, reply: Reply<'_>) {
        let found = self.table.lock().node(number).map(|found| {
            found.size = size.unwrap_or(found.size);
            *found
        });
        match found {
            Ok(found) => reply.attributes(&self.attributes(number, found), VALID),
            Err(error) => reply.error(error),
        }
    }

    fn add(&self, parent: u64, name: &[u8], mode: u32) -> Entry {
        let node = Node { mode, size: 0 };
        let number = self.table.lock().add(parent, name, node);
        self.entry(number, node)
    }

    fn write(&self, number: u64, offset: u64, bytes: usize, reply: Reply<'_>) {
        if let Ok(found) = self.table.lock().node(number) {
            found.size = found.size.max(offset + bytes as u64);
        }
        reply.written(bytes as u32);
    }
}

fn done(result: Answer<()>, reply: Reply<'_>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

impl Handler for NullFs {
    fn handle(&self, request: &Request<'_>, reply: Reply<'_>) {
        let node = request.node;
        match request.operation {
            Operation::Lookup { name } => self.lookup(node, name, reply),
            Operation::Forget { .. } | Operation::BatchForget(_) => reply.none(),
            Operation::Getattr { .. } => self.resize(node, None, reply),
            Operation::Setattr(set) => self.resize(node, set.size, reply),
            Operation::Mkdir { name, .. } => reply.entry(&self.add(node, name, DIRECTORY)),
            Operation::Create { name, .. } => reply.create(&self.add(node, name, FILE), OPENED),
            Operation::Unlink { name } | Operation::Rmdir { name } => {
                let result = self.table.lock().remove(node, name);
                done(result, reply);
            }
            Operation::Rename { name, new_parent, new_name, .. } => {
                let result = self.table.lock().rename((node, name), (new_parent, new_name));
                done(result, reply);
            }
            Operation::Open { .. } if self.relaxed => reply.open(OPENED),
            Operation::Read { size, .. } => reply.bytes(&NOTHING[..(size as usize).min(NOTHING.len())]),
            Operation::Write(write) => self.write(node, write.offset, write.data.len(), reply),
            Operation::Fsync { .. } if self.relaxed => reply.ok(),
            Operation::Release { .. } | Operation::Releasedir { .. } => reply.ok(),
            Operation::Statfs => reply.statfs(&Statfs { block_bytes: 512, name_bytes_max: 255, ..Statfs::default() }),
            // Further opens, FLUSH and extended attributes: after ENOSYS the kernel does not ask again.
            _ => reply.error(Errno::ENOSYS),
        }
    }
}

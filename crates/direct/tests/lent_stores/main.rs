//! Bytes that clients store to the memory zone themselves ([LNS1]–[LNS7] of `lent_stores.rs`, [STR1]–[STR8] of the client), through the server, the
//! shared memory and the client: what is stored is what others read, and what others do ends a lease first (`leases.rs`); the same of appends in lent room (`tails.rs`). Clients of other processes that
//! are killed or stopped inside of a lease, lie, or keep their description of the zone (`processes.rs`). Who gets the zone, who does not, and how much
//! (`bounds.rs`).
//!
//! Server and client are in this process, but for those clients; see `server.rs`. The bug is that of the process: the tests run one after the
//! other. What a durable overwrite costs is a measurement:
//!
//!     cargo test --profile soak -p tandemfs-direct --test lent_stores -- --ignored --nocapture cost

mod bounds;
mod cost;
#[path = "../support/greeting.rs"]
mod greeting;
mod leases;
#[path = "../support/memory.rs"]
mod memory;
mod processes;
mod raw;
#[path = "../support/mod.rs"]
mod support;
mod tails;

use std::fs::File as HostFile;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use memory::{GROUP, PATIENCE, file_system, somebody};
use tandemfs_client::{File, Mount, OpenOptions, Options};
use tandemfs_crash::comes_within;
use tandemfs_direct::{Entrants, Limits, Server, StoreCounts};
use tandemfs_format::InodeNumber;
use tandemfs_protocol::Number;
use tandemfs_vfs::{At, Caches, Change, OpenFile, Settings, Vfs};

const ZONE_BYTES: u64 = 64 << 20;
const PAGE: usize = 4096;
/// How long a bug is watched.
const WATCHED: Duration = Duration::from_secs(2);
/// Requests before a window is asked for, which is one more.
const BEFORE: usize = 4;

/// A kernel that has no pages; somebody may watch everything by it.
#[derive(Default)]
struct Kernel {
    watches: AtomicBool,
}

struct Nothing;

impl Change for Nothing {
    fn ends_at_once(&mut self) -> bool {
        true
    }
}

impl Caches for Kernel {
    fn settle(&self, _: InodeNumber) -> tandemfs_fs::Result<()> {
        Ok(())
    }

    fn change(self: Arc<Self>, _: InodeNumber, _: Range<u64>) -> tandemfs_fs::Result<Box<dyn Change>> {
        Ok(Box::new(Nothing))
    }

    fn has_pages(&self, _: InodeNumber) -> bool {
        false
    }

    fn is_watched(&self, _: &[InodeNumber]) -> tandemfs_fs::Result<bool> {
        Ok(self.watches.load(SeqCst))
    }

    fn name_gone(&self, _: InodeNumber, _: &[u8]) {}
}

/// A file system on memory alone, and a server.
struct Scene {
    vfs: Vfs,
    server: Server,
    kernel: Arc<Kernel>,
    /// The memory, which has no name any more.
    image: HostFile,
}

fn scene_with(limits: Limits) -> Scene {
    let (fs, image) = file_system(ZONE_BYTES);
    let kernel = Arc::<Kernel>::default();
    let vfs = Vfs::new(Arc::new(fs), Settings::default()).beside(kernel.clone());
    let limits = Limits { threads: 4, ..limits };
    let server = Server::start(vfs.clone(), support::mount_identity(), Box::new(|| true), Entrants::Everybody, limits).expect("starts");
    Scene { vfs, server, kernel, image }
}

fn scene() -> Scene {
    scene_with(Limits { stores_by: Some(GROUP), ..Limits::default() })
}

fn storing() -> Options {
    Options { stores: true, ..Options::default() }
}

impl Scene {
    fn connect(&self, options: &Options) -> Mount {
        support::connect(&self.server, "/proc", options).expect("let in")
    }

    fn count(&self, is_counted: impl Fn(Number) -> bool) -> u64 {
        let (_, clients) = self.server.observer().clients();
        let counts = clients.iter().flat_map(|client| &client.counts.operations);
        counts.filter(|of| is_counted(of.number)).map(|of| of.count).sum()
    }

    /// How many requests something takes.
    fn requests_of(&self, act: impl FnOnce()) -> u64 {
        let before = self.count(|_| true);
        act();
        self.count(|_| true) - before
    }

    /// What has become of the leases of the last client.
    fn counts(&self) -> StoreCounts {
        let (_, clients) = self.server.observer().clients();
        clients.last().and_then(|client| client.stores).expect("a client that stores")
    }

    fn lent(&self) -> (usize, u64) {
        self.vfs.file_system().stores_lent()
    }

    fn open(&self, path: &str) -> OpenFile {
        self.vfs.open(&somebody(), At::Root, path.as_bytes(), libc::O_CREAT | libc::O_RDWR, 0o644).expect("opened")
    }

    fn write(&self, file: &OpenFile, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            done += self.vfs.write_at(&somebody(), file, (offset + done as u64) as i64, &bytes[done..], 0).expect("written");
        }
    }

    fn read(&self, file: &OpenFile, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; length];
        let done = self.vfs.read_at(file, offset as i64, &mut bytes).expect("read");
        bytes.truncate(done);
        bytes
    }

    /// A file of so many bytes in the memory zone.
    fn made(&self, path: &str, length: usize) -> OpenFile {
        let file = self.open(path);
        self.write(&file, 0, &vec![1; length]);
        self.vfs.file_system().write_back_all().expect("written back");
        file
    }

    /// Waits until something is so; false if that does not come.
    fn comes(&self, is_so: impl Fn(&Self) -> bool) -> bool {
        comes_within(PATIENCE, || is_so(self))
    }
}

fn opened(mount: &Mount, path: &str) -> File {
    OpenOptions::new().read(true).write(true).open(mount, path).expect("opened")
}

/// Writes until the window is leased.
fn leased(scene: &Scene, file: &File, offset: u64) {
    let before = scene.lent().0;
    (0..BEFORE).for_each(|_| file.write_all_at(&[9; 8], offset).expect("written"));
    assert_eq!(scene.lent().0, before + 1, "a lease");
}

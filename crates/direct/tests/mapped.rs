//! Ranges of files that clients map from the memory zone ([MAP1]–[MAP9] of `mappings.rs`, [CMP1]–[CMP4] of the client), through the server, the
//! shared memory and the client. Who has no zone: `lent.rs`.
//!
//! Server and client are in this process; see `server.rs`. The bug is that of the process: the tests run one after the other. What a mapped
//! gigabyte costs, in page faults and time, is a measurement:
//!
//!     cargo test --profile soak -p tandemfs-direct --test mapped -- --ignored --nocapture cost

#[path = "support/greeting.rs"]
mod greeting;
#[path = "support/memory.rs"]
mod memory;
#[path = "support/pages.rs"]
mod pages;
mod support;

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use tandemfs_client::mutant::{self as client_mutant, Mutant as ClientMutant};
use tandemfs_client::{Errno, Error, File, Mapping, Mount, OpenOptions, Options, Tree, Why};
use tandemfs_crash::{Random, comes_within};
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_direct::{Entrants, Limits, Server};
use tandemfs_protocol::{Handle, Hello, Number, Operation, Outcome, Place, Text};
use tandemfs_ring::{Client, Range as ArenaRange};
use tandemfs_vfs::{At, OpenFile, Settings, Subject, Vfs};

use greeting::greeted;
use memory::{GROUP, PATIENCE, alone, file_system, filled, somebody};
use pages::Pages;

const ZONE_BYTES: u64 = 64 << 20;
/// How long a bug is given to show itself, and how often: it needs a server that gets to look in time.
const WATCHED: Duration = Duration::from_secs(1);
const TRIES: usize = 10;

/// A file system on memory alone, and a server.
struct Scene {
    vfs: Vfs,
    server: Server,
    pages: Arc<Pages>,
}

fn scene_of(zone_bytes: u64, limits: Limits) -> Scene {
    scene_lending(zone_bytes, Limits { stores_by: Some(GROUP), ..limits })
}

fn scene_lending(zone_bytes: u64, limits: Limits) -> Scene {
    let (fs, _image) = file_system(zone_bytes);
    let pages = Arc::<Pages>::default();
    let vfs = Vfs::new(Arc::new(fs), Settings::default()).beside(pages.clone());
    let limits = Limits { threads: 4, lends_to: Some(GROUP), ..limits };
    let server = Server::start(vfs.clone(), support::mount_identity(), Box::new(|| true), Entrants::Everybody, limits).expect("starts");
    Scene { vfs, server, pages }
}

fn scene() -> Scene {
    scene_of(ZONE_BYTES, Limits::default())
}

impl Scene {
    fn connect(&self) -> Mount {
        support::connect(&self.server, "/proc", &Options { maps: true, ..Options::default() }).expect("let in")
    }

    fn open(&self, path: &str) -> OpenFile {
        self.vfs.open(&somebody(), At::Root, path.as_bytes(), libc::O_CREAT | libc::O_RDWR, 0o644).expect("opened")
    }

    fn write(&self, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<(), tandemfs_vfs::Refused> {
        let mut done = 0;
        while done < bytes.len() {
            done += self.vfs.write_at(&somebody(), file, (offset + done as u64) as i64, &bytes[done..], 0)?;
        }
        Ok(())
    }

    /// Writes a file, and opens it as a client.
    fn file(&self, mount: &Mount, bytes: &[u8]) -> File {
        self.write(&self.open("f"), 0, bytes).expect("written");
        mount.open("f").expect("opened")
    }

    /// Waits until there are so many mappings; false if that does not come.
    fn has_mappings(&self, count: usize) -> bool {
        comes_within(PATIENCE, || self.server.mappings() == count)
    }

    /// Gives the server time to look at what clients have left, which it forgets if it has a bug.
    fn is_looked_after(&self) {
        comes_within(WATCHED, || self.server.mappings() == 0);
    }
}

fn bytes_of(mapping: &Mapping) -> Vec<u8> {
    let mut bytes = vec![0xee; mapping.length() as usize];
    mapping.load(0, &mut bytes).expect("loaded");
    bytes
}

#[test]
fn a_mapping_has_the_bytes_of_the_file_whoever_changes_them() {
    let _alone = alone();
    let (scene, mut random) = (scene(), Random::new(1));
    let mount = scene.connect();
    assert!(mount.maps() && mount.maps_for_stores() && !mount.loads_by_itself());
    let mut model = filled(&mut random, (3 << 20) + 1000);
    let file = scene.file(&mount, &model);
    let mapping = file.map(0..model.len() as u64).expect("mapped");
    let part = file.map(8192..20_000).expect("mapped");
    drop(file);
    assert!(bytes_of(&mapping) == model && bytes_of(&part) == model[8192..20_000]);
    let writer = scene.open("f");
    for round in 0..200 {
        let offset = random.below(model.len() as u64 - 1) as usize;
        let length = (1 + random.below(100_000) as usize).min(model.len() - offset);
        let bytes = filled(&mut random, length);
        scene.write(&writer, offset as u64, &bytes).expect("written");
        model[offset..offset + length].copy_from_slice(&bytes);
        if round % 20 == 0 {
            scene.vfs.file_system().write_back_all().expect("written back");
        }
        assert!(bytes_of(&mapping) == model && bytes_of(&part) == model[8192..20_000], "round {round}");
    }
    assert_eq!(
        (mapping.load(model.len() as u64, &mut [0]), mapping.load(u64::MAX, &mut [0])),
        (Err(Errno::INVAL.into()), Err(Errno::INVAL.into()))
    );
    scene.vfs.truncate(&somebody(), Subject::Open(&writer), 100_000).expect("cut");
    model[100_000..].fill(0);
    assert!(bytes_of(&mapping) == model, "what was cut off is zeros");
    scene.vfs.truncate(&somebody(), Subject::Open(&writer), model.len() as i64).expect("grown");
    scene.write(&writer, 2 << 20, b"again").expect("written");
    model[2 << 20..][..5].copy_from_slice(b"again");
    assert!(bytes_of(&mapping) == model, "and is the file's again");
    assert_eq!(scene.server.mappings(), 2);
    drop((mapping, part));
    assert_eq!(scene.server.mappings(), 0);
}

/// [CMP1]
#[test]
fn the_daemon_is_told_that_a_mapping_is_gone() {
    let _alone = alone();
    fn left() -> usize {
        let scene = scene();
        let mount = scene.connect();
        drop(scene.file(&mount, &[1; 10_000]).map(0..10_000).expect("mapped"));
        scene.server.mappings()
    }
    assert_eq!(left(), 0);
    client_mutant::select(ClientMutant::UnmapNotTold);
    let found = left();
    client_mutant::select(ClientMutant::None);
    assert_eq!(found, 1, "UnmapNotTold escaped");
}

/// What has been unmapped, or put elsewhere, by others than the library; and a mapping that stays when its connection ends.
#[test]
fn mappings_whose_addresses_or_connection_others_end() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect();
    drop(scene.file(&mount, &[1; 10_000]));
    let file = OpenOptions::new().read(true).write(true).open(&mount, "f").expect("opened");
    for stores in [false, true] {
        let mapping = if stores { file.map_writable(0..10_000) } else { file.map(0..10_000) }.expect("mapped");
        let start = mapping.as_ptr();
        assert_eq!(scene.server.mappings(), 1);
        // SAFETY: the mapping's own pages, which nobody uses any more.
        assert_eq!(unsafe { libc::munmap(start.cast_mut().cast(), 12_288) }, 0);
        mapping.replaced();
        assert!(scene.has_mappings(0), "stores: {stores}");
    }
    let mut mapping = file.map_writable(0..10_000).expect("mapped");
    mapping.leave_connection();
    drop((file, mount));
    assert!(eventually(|| scene.server.clients().0 == 0), "it keeps the connection");
    mapping.store(100, b"later").expect("stored");
    mapping.sync(0, 10_000).expect("durable");
    assert_eq!(scene.server.mappings(), 1);
    let mut found = [0; 5];
    assert_eq!(scene.vfs.read_at(&scene.open("f"), 100, &mut found).expect("read"), 5);
    assert_eq!(&found, b"later");
    drop(mapping);
    assert!(scene.has_mappings(0));
}

fn eventually(is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > Duration::from_secs(10) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// [MAP2]: a further connection of this process ends the first one, whose mapping is still there.
#[test]
fn pages_stay_while_they_are_mapped_whatever_has_ended() {
    let _alone = alone();
    fn stay() -> bool {
        let scene = scene();
        let mount = scene.connect();
        let mapping = scene.file(&mount, &[1; 1 << 20]).map(0..1 << 20).expect("mapped");
        let other = support::connect(&scene.server, "/proc", &Options::default()).expect("let in");
        while !mount.has_ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        other.ping().expect("answered");
        scene.vfs.unlink(&somebody(), At::Root, b"f").expect("removed");
        scene.is_looked_after();
        let filler = scene.open("filler");
        let mut at = 0;
        while scene.write(&filler, at, &[2; 1 << 20]).is_ok() {
            at += 1 << 20;
        }
        let stayed = bytes_of(&mapping) == [1; 1 << 20] && scene.server.mappings() == 1;
        drop((mapping, mount));
        assert!(scene.has_mappings(0), "they are kept for ever");
        stayed
    }
    assert!(stay());
    mutant::select(Mutant::PinsEndWithClients);
    let found = (0..TRIES).any(|_| !stay());
    mutant::select(Mutant::None);
    assert!(found, "PinsEndWithClients escaped");
}

/// The server ends before who maps.
#[test]
fn a_server_that_ends_keeps_nothing() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect();
    let mapping = scene.file(&mount, &[1; 10_000]).map(0..10_000).expect("mapped");
    let Scene { vfs, server, .. } = scene;
    drop(server);
    assert!(mount.has_ended());
    vfs.file_system()
        .map(vfs.stat(&somebody(), Subject::at(At::Root, b"f", 0).expect("a path")).expect("there").inode, 0, 1, false)
        .expect("mapped");
    assert_eq!(bytes_of(&mapping), [1; 10_000]);
}

#[test]
fn what_cannot_be_mapped_is_refused() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect();
    let file = scene.file(&mount, &[1; 10_000]);
    let errno = |result: Result<Mapping, Error>| match result {
        Err(Error::Errno(errno)) => errno,
        other => panic!("{other:?}"),
    };
    for (range, what) in [
        (0..0, "empty"),
        (100..200, "not at a page"),
        (0..10_001, "behind the end"),
        (12_288..12_289, "behind the end"),
        (Range { start: 4096, end: 0 }, "backwards"),
        (u64::MAX - 4095..u64::MAX, "no offset"),
    ] {
        assert_eq!(errno(file.map(range)), Errno::INVAL, "{what}");
    }
    assert_eq!(errno(file.map(0..u64::MAX)), Errno::NOMEM, "more than a client may map");
    assert_eq!(errno(file.map(0..1 << 40)), Errno::INVAL, "not refused for its length alone");
    assert_eq!(errno(mount.open(".").expect("opened").map(0..4096)), Errno::INVAL, "a directory");
    let written = OpenOptions::new().write(true).open(&mount, "f").expect("opened");
    assert_eq!(errno(written.map(0..4096)), Errno::BADF);
    scene.pages.0.store(true, SeqCst);
    let crossed = file.map(0..4096);
    assert!(matches!(&crossed, Err(Error::Crossed(crossed)) if crossed.why == Why::Cached), "{crossed:?}"); // [MAP4]
    scene.pages.0.store(false, SeqCst);
    scene.pages.1.store(true, SeqCst);
    let for_both = OpenOptions::new().read(true).write(true).open(&mount, "f").expect("opened");
    let crossed = for_both.map_writable(0..4096);
    assert!(matches!(&crossed, Err(Error::Crossed(crossed)) if crossed.why == Why::Cached), "{crossed:?}"); // [KV9] of `vfs`
    drop(file.map(0..4096).expect("for loads"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(2));
            scene.pages.1.store(false, SeqCst);
        });
        drop(for_both.map_writable(0..4096).expect("its end is waited for"));
    });
    file.map(0..10_000).expect("mapped");
    assert_eq!(scene.server.mappings(), 0, "what was refused is not kept");
    let mount = support::connect(&scene.server, "/proc", &Options { loads: true, ..Options::default() }).expect("let in");
    let crossed = mount.open("f").expect("opened").map(0..4096);
    assert!(matches!(&crossed, Err(Error::Crossed(crossed)) if crossed.why == Why::NotServed), "{crossed:?}");
}

/// [MAP1]
#[test]
fn mappings_are_bounded() {
    let _alone = alone();
    fn last(limits: Limits) -> Result<(), Error> {
        let scene = scene_of(ZONE_BYTES, limits);
        let mount = scene.connect();
        let file = scene.file(&mount, &[1; 10_000]);
        let all: Vec<Mapping> = (0..3).map(|_| file.map(0..10_000).expect("mapped")).collect();
        let last = file.map(0..10_000).map(drop);
        drop(all);
        file.map(0..10_000).expect("there is room again");
        last
    }
    let few = || Limits { mappings: 3, ..Limits::default() };
    let small = || Limits { mapped_bytes: 39_999, ..Limits::default() };
    assert_eq!(last(Limits::default()), Ok(()));
    assert_eq!((last(few()), last(small())), (Err(Errno::NOMEM.into()), Err(Errno::NOMEM.into())));
    mutant::select(Mutant::MappingsUnbounded);
    let found = (last(few()), last(small()));
    mutant::select(Mutant::None);
    assert_eq!(found, (Ok(()), Ok(())), "MappingsUnbounded escaped");
}

fn writable(scene: &Scene, mount: &Mount, name: &str, bytes: &[u8]) -> Mapping {
    scene.write(&scene.open(name), 0, bytes).expect("written");
    let file = OpenOptions::new().read(true).write(true).open(mount, name).expect("opened");
    file.map_writable(0..bytes.len() as u64).expect("mapped")
}

/// What calls read of a file.
fn read(scene: &Scene, name: &str, length: usize) -> Vec<u8> {
    let (file, mut bytes, mut done) = (scene.open(name), vec![0xee; length], 0);
    while done < length {
        match scene.vfs.read_at(&file, done as i64, &mut bytes[done..]).expect("read") {
            0 => break,
            moved => done += moved,
        }
    }
    bytes.truncate(done);
    bytes
}

#[test]
fn stores_by_a_mapping_are_the_files() {
    let _alone = alone();
    let (scene, mut random) = (scene(), Random::new(2));
    let mount = scene.connect();
    let mut model = filled(&mut random, (2 << 20) + 1000);
    let mapping = writable(&scene, &mount, "f", &model);
    let reading = mount.open("f").and_then(|file| file.map(0..model.len() as u64)).expect("mapped");
    assert!(mapping.is_writable() && !reading.is_writable() && reading.as_mut_ptr().is_null());
    assert_eq!((reading.store(0, &[1]), reading.store_word(0, 1)), (Err(Errno::ACCESS.into()), Err(Errno::ACCESS.into())));
    let writer = scene.open("f");
    for round in 0..200 {
        let offset = random.below(model.len() as u64 - 1) as usize;
        let length = (1 + random.below(100_000) as usize).min(model.len() - offset);
        let bytes = filled(&mut random, length);
        match round % 3 {
            0 => scene.write(&writer, offset as u64, &bytes).expect("written"),
            _ => mapping.store(offset as u64, &bytes).expect("stored"),
        }
        model[offset..offset + length].copy_from_slice(&bytes);
        mapping.sync(offset as u64, length as u64).expect("durable");
        if round % 20 == 0 {
            scene.vfs.file_system().write_back_all().expect("written back");
            assert!(bytes_of(&mapping) == model && bytes_of(&reading) == model && read(&scene, "f", 4 << 20) == model, "round {round}");
        }
    }
    mapping.store_word(80, u64::from_le_bytes(*b"a word. ")).expect("stored");
    model[80..88].copy_from_slice(b"a word. ");
    let end = model.len() as u64;
    let outside = [mapping.store(end, &[1]), mapping.store_word(81, 1), mapping.store_word(end - 4, 1), mapping.sync(end, 1)];
    assert_eq!(outside, [const { Err(Error::Errno(Errno::INVAL)) }; 4]);
    // Cut, grown and punched under it.
    scene.vfs.truncate(&somebody(), Subject::Open(&writer), 100_000).expect("cut");
    mapping.store(300_000, b"behind the end").expect("no fault");
    assert_eq!(read(&scene, "f", 4 << 20), model[..100_000]);
    scene.vfs.truncate(&somebody(), Subject::Open(&writer), model.len() as i64).expect("grown");
    model[100_000..].fill(0);
    assert!(read(&scene, "f", 4 << 20) == model && bytes_of(&mapping) == model, "nothing of what was stored behind the end");
    scene.vfs.allocate(&somebody(), &writer, 3, 8192, 50_000).expect("punched");
    model[8192..58_192].fill(0);
    mapping.store(9000, b"in the hole").expect("stored");
    model[9000..9011].copy_from_slice(b"in the hole");
    assert!(read(&scene, "f", 4 << 20) == model && bytes_of(&mapping) == model);
    drop((mapping, reading, writer));
    assert!(scene.has_mappings(0) && read(&scene, "f", 4 << 20) == model);
    let Scene { vfs, server, .. } = scene;
    drop(server);
    vfs.file_system().unmount().expect("unmounts");
}

#[test]
fn a_hole_gets_space_and_the_end_of_a_mapping_is_a_change() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect();
    let file = OpenOptions::new().read(true).write(true).create(true).mode(0o600).open(&mount, "f").expect("made");
    file.set_length(8 << 20).expect("sized");
    assert_eq!(file.attributes().expect("there").space_512, 0);
    let mapping = file.map_writable(0..8 << 20).expect("mapped");
    assert_eq!(bytes_of(&mapping), vec![0; 8 << 20]);
    assert!(file.attributes().expect("there").space_512 >= 8 << 11);
    std::thread::sleep(Duration::from_millis(20));
    let modified = file.attributes().expect("there").modified;
    mapping.store(5 << 20, b"stored").expect("stored");
    file.sync_all().expect("durable");
    drop(mapping);
    assert_ne!(file.attributes().expect("there").modified, modified);
    assert_eq!(&read(&scene, "f", 8 << 20)[5 << 20..][..6], b"stored");
}

#[test]
fn who_may_not_write_maps_nothing_for_stores() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect();
    let errno = |result: Result<Mapping, Error>| result.map(drop).expect_err("refused").errno();
    let file = scene.file(&mount, &[1; 10_000]);
    assert_eq!(errno(file.map_writable(0..10_000)), Some(Errno::ACCESS), "not open for writing");
    let both = OpenOptions::new().read(true).write(true).open(&mount, "f").expect("opened");
    let only = OpenOptions::new().write(true).open(&mount, "f").expect("opened");
    assert_eq!(errno(only.map_writable(0..10_000)), Some(Errno::BADF));
    for range in [0..0, 100..200, 0..10_001] {
        assert_eq!(errno(both.map_writable(range)), Some(Errno::INVAL));
    }
    scene.pages.0.store(true, SeqCst);
    let crossed = both.map_writable(0..4096);
    assert!(matches!(&crossed, Err(Error::Crossed(crossed)) if crossed.why == Why::Cached), "{crossed:?}"); // [MAP4]
    scene.pages.0.store(false, SeqCst);
    assert_eq!(scene.server.mappings(), 0);
    drop(both.map_writable(0..10_000).expect("mapped"));
    let mount = support::connect(&scene.server, "/proc", &Options { loads: true, ..Options::default() }).expect("let in");
    let crossed = OpenOptions::new().read(true).write(true).open(&mount, "f").expect("opened").map_writable(0..4096);
    assert!(matches!(&crossed, Err(Error::Crossed(crossed)) if crossed.why == Why::NotServed), "{crossed:?}");
}

/// [MAP7], [LND5]: a client that was lent the zone for loads alone asks for a mapping for stores all the same.
#[test]
fn who_may_only_load_gets_no_description_for_stores() {
    let _alone = alone();
    fn asked(limits: Limits) -> (bool, Result<(), Outcome>, bool, bool) {
        let scene = scene_lending(ZONE_BYTES, limits);
        scene.write(&scene.open("f"), 0, &[1; 10_000]).expect("written");
        let socket = support::socket_to(scene.server.socket());
        let (welcome, mut descriptors) = greeted(socket.as_fd(), Hello::new(1, 1 << 20).wanting_zone(true));
        assert!(welcome.zone.is_some(), "the zone for loads");
        let is_named = welcome.operations & Number::MapForStores.bit() != 0;
        let _zone = descriptors.pop();
        let bell = if descriptors.len() > 3 { Some(descriptors.remove(2)) } else { None };
        let again = socket.try_clone().expect("cloned");
        let client = Client::map(descriptors[0].as_fd(), descriptors[1].as_fd(), bell, Some(socket)).expect("mapped");
        let mut slot = client.slot().expect("a slot");
        let mut ask = |operation: Operation<'_>| {
            Outcome::decode(slot.call(&operation.encode().expect("short")).expect("answered")).expect("an outcome")
        };
        let open = Operation::Open {
            at: Place::Root,
            path: Text::Here(b"f"),
            flags: libc::O_RDWR,
            mode: 0,
            umask: 0,
            into: ArenaRange::default(),
        };
        let Outcome::Done(opened) = ask(open) else { panic!("opened") };
        let handle = Handle::of(opened.value).expect("a handle");
        let buffer = client.buffer(4096).expect("room");
        let mapped = match ask(Operation::MapForStores { handle, offset: 0, length: 4096, into: buffer.range() }) {
            Outcome::Done(_) => Ok(()),
            other => Err(other),
        };
        let is_sent = rustix::net::recv(&again, &mut [0_u8; 64][..], RecvFlags::DONTWAIT).is_ok();
        (is_named, mapped, is_sent, scene.vfs.file_system().drive().is_zone_held())
    }
    let loads_alone = Limits::default;
    assert_eq!(asked(Limits { stores_by: Some(GROUP), ..loads_alone() }), (true, Ok(()), true, false), "taken from the socket, and gone");
    assert_eq!(asked(loads_alone()), (false, Err(Outcome::Errno(libc::ENOSYS)), false, false));
    mutant::select(Mutant::StoresMappedByAll);
    let found = asked(loads_alone());
    mutant::select(Mutant::None);
    assert_eq!((found.1, found.2), (Ok(()), true), "StoresMappedByAll escaped");
}

/// Removes `f`, whose pages somebody may still store to, and fills the file system.
fn fill(scene: &Scene) -> usize {
    scene.vfs.unlink(&somebody(), At::Root, b"f").expect("removed");
    scene.is_looked_after();
    let (filler, mut at) = (scene.open("filler"), 0);
    while scene.write(&filler, at as u64, &[2; 64 << 10]).is_ok() {
        at += 64 << 10;
    }
    at
}

/// [MAP6]: the connection has ended, and the mapping is stored to.
#[test]
fn nobody_gets_pages_that_a_client_that_has_ended_can_store_to() {
    let _alone = alone();
    fn is_alone() -> bool {
        let scene = scene();
        let mount = scene.connect();
        let mapping = writable(&scene, &mount, "f", &[1; 1 << 20]);
        let other = support::connect(&scene.server, "/proc", &Options::default()).expect("let in");
        while !mount.has_ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        other.ping().expect("answered");
        let bytes = fill(&scene);
        mapping.store(0, &[3; 1 << 20]).expect("stored");
        let is_alone = read_checked(&scene, bytes) && scene.server.mappings() == 1;
        drop((mapping, mount));
        assert!(scene.has_mappings(0), "they are kept for ever");
        is_alone
    }
    assert!(is_alone());
    mutant::select(Mutant::EndsBelieved);
    let found = (0..TRIES).any(|_| !is_alone());
    mutant::select(Mutant::None);
    assert!(found, "EndsBelieved escaped");
}

/// Whether what fills the file system is what was written; stores of others are damage.
fn read_checked(scene: &Scene, bytes: usize) -> bool {
    let (file, mut block) = (scene.open("filler"), vec![0; 64 << 10]);
    (0..bytes >> 16).all(|at| {
        let done = scene.vfs.read_at(&file, (at << 16) as i64, &mut block);
        done.is_ok_and(|done| done == block.len()) && block.iter().all(|byte| *byte == 2)
    })
}

/// [MAP6]: a child that was forked keeps the mapping, and stores when the one that made it has unmapped it and said so.
#[test]
fn nobody_gets_pages_that_a_forked_child_can_store_to() {
    let _alone = alone();
    fn is_alone() -> bool {
        let scene = scene();
        let mount = scene.connect();
        let mapping = writable(&scene, &mount, "f", &[1; 1 << 20]);
        let (go, going) = std::io::pipe().map(|(reader, writer)| (writer, reader)).expect("a pipe");
        let (wait, start) = (going.as_raw_fd(), mapping.as_mut_ptr());
        // SAFETY: the child makes system calls and stores to the mapping that it has inherited, nothing else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; the range is the child's own.
            unsafe {
                let mut byte = 0_u8;
                libc::read(wait, (&raw mut byte).cast(), 1);
                libc::memset(start.cast(), 3, 1 << 20);
                libc::_exit(0);
            }
        }
        assert!(child > 0, "forked");
        drop(mapping);
        let bytes = fill(&scene);
        let before = scene.server.mappings();
        std::io::Write::write_all(&mut &go, &[1]).expect("it goes on");
        let mut status = 0;
        // SAFETY: the child is this test's.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has stored");
        let is_alone = read_checked(&scene, bytes) && before == 1;
        assert!(scene.has_mappings(0), "they are kept for ever");
        is_alone
    }
    assert!(is_alone());
    mutant::select(Mutant::EndsBelieved);
    let found = (0..TRIES).any(|_| !is_alone());
    mutant::select(Mutant::None);
    assert!(found, "EndsBelieved escaped");
}

/// [MAP8]
#[test]
fn mappings_that_are_left_are_bounded() {
    let _alone = alone();
    fn last() -> Option<Errno> {
        let scene = scene_of(ZONE_BYTES, Limits { mappings: 2, ..Limits::default() });
        let mut all = Vec::new();
        let mut connect = || {
            let mount = scene.connect();
            let mappings: Vec<_> = (0..2).map(|_| writable(&scene, &mount, "f", &[1; 4096])).collect();
            all.push((mount, mappings));
        };
        connect();
        let mount = scene.connect(); // which ends the other
        while scene.server.mappings() > 2 || scene.server.clients().0 > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(100)); // the end of the other
        let file = OpenOptions::new().read(true).write(true).open(&mount, "f").expect("opened");
        let last = file.map_writable(0..4096).map(drop).err().and_then(|error| error.errno());
        all.clear();
        assert!(scene.has_mappings(0));
        file.map_writable(0..4096).expect("there is room again");
        last
    }
    assert_eq!(last(), Some(Errno::NOMEM));
    mutant::select(Mutant::MappingsUnbounded);
    let found = last();
    mutant::select(Mutant::None);
    assert_eq!(found, None, "MappingsUnbounded escaped");
}

/// [MAP8]: each connection of this process ends the one before, whose mappings stay; of so many mappings, or so many connections.
#[test]
fn mappings_for_loads_that_are_left_are_bounded() {
    let _alone = alone();
    const ROUNDS: usize = 6;
    fn left(limits: Limits) -> (usize, Vec<Error>) {
        let scene = scene_of(ZONE_BYTES, limits);
        scene.write(&scene.open("f"), 0, &[1; 4096]).expect("written");
        let (mut all, mut ends) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let mount = scene.connect(); // which ends the one before
            assert!(eventually(|| scene.server.clients().0 == 1), "round {round}");
            std::thread::sleep(Duration::from_millis(100)); // what that one had is left, by the pool
            match mount.open("f").expect("opened").map(0..4096) {
                Ok(mapping) => all.push((mount, mapping)),
                Err(error) => ends.push(error),
            }
        }
        let most = scene.server.mappings();
        drop(all);
        assert!(scene.has_mappings(0));
        let mount = scene.connect();
        mount.open("f").expect("opened").map(0..4096).expect("there is room again");
        (most, ends)
    }
    let mappings = || Limits { mappings: 3, ..Limits::default() };
    let clients = || Limits { clients: 2, ..Limits::default() };
    let (most, ends) = left(mappings());
    assert_eq!((most, ends), (3, vec![Errno::NOMEM.into(); ROUNDS - 3]));
    let (most, ends) = left(clients());
    assert!((2..=3).contains(&most) && ends.len() == ROUNDS - most, "{most}: {ends:?}"); // one ends beside the greeting of the next
    mutant::select(Mutant::LoadsLeftUnbounded);
    let found = (left(mappings()).0, left(clients()).0);
    mutant::select(Mutant::None);
    assert_eq!(found, (ROUNDS, ROUNDS), "LoadsLeftUnbounded escaped");
}

/// [MAP9], [FM8] of `crates/fs`: the pages of a removed file are given to nobody, and the next mount waits until they cannot be stored to.
#[test]
fn a_server_that_ends_leaves_what_can_be_stored_to() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect();
    let mapping = writable(&scene, &mount, "f", &[1; 1 << 20]);
    scene.vfs.unlink(&somebody(), At::Root, b"f").expect("removed");
    let Scene { vfs, server, .. } = scene;
    drop(server);
    assert!(mount.has_ended());
    let fs = vfs.file_system();
    let used = fs.space().memory.extent_bytes;
    fs.unmount().expect("unmounts");
    assert!(used >= 1 << 20 && fs.space().memory.extent_bytes == used, "its space is kept");
    mapping.store(0, &[3; 1 << 20]).expect("stored");
    assert!(!fs.superblock().clean && fs.drive().is_zone_held(), "the next mount would be refused");
    drop(mapping);
    assert!(!fs.drive().is_zone_held());
}

/// Page faults of this process so far.
fn faults() -> u64 {
    let line = std::fs::read_to_string("/proc/self/stat").expect("there");
    let fields: Vec<&str> = line.rsplit(')').next().expect("a line").split_whitespace().collect();
    [7, 9].map(|index: usize| fields[index].parse::<u64>().expect("a number")).iter().sum() // minflt and majflt
}

/// Page faults and rate of a mapped file of 1 GiB, read once in order and once again, in copies of 1 MiB.
#[test]
#[ignore = "a measurement"]
fn cost() {
    const FILE_BYTES: u64 = 1 << 30;
    let _alone = alone();
    let scene = scene_of(FILE_BYTES + (256 << 20), Limits::default());
    let mount = scene.connect();
    let (writer, mut bytes) = (scene.open("f"), vec![1; 1 << 20]);
    (0..FILE_BYTES >> 20).for_each(|at| scene.write(&writer, at << 20, &bytes).expect("written"));
    let file = mount.open("f").expect("opened");
    let (begun, before) = (Instant::now(), faults());
    let mapping = file.map(0..FILE_BYTES).expect("mapped");
    println!("map: {} us, {} faults", begun.elapsed().as_micros(), faults() - before);
    for round in ["first", "second"] {
        let (begun, before) = (Instant::now(), faults());
        (0..FILE_BYTES >> 20).for_each(|at| mapping.load(at << 20, &mut bytes).expect("loaded"));
        let rate = FILE_BYTES as f64 / begun.elapsed().as_secs_f64() / 1e9;
        println!("{round} time: {rate:.2} GB/s, {} faults", faults() - before);
    }
}

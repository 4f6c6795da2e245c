//! Files that a client keeps for the next open ([KNW6] of `known.rs`, [IDF1]–[IDF5] of the client, [IDL1]–[IDL4] of the ring), through the server, the shared
//! memory and the client. What it opens is held against `vfs`, and what has lost its last name takes no space.
//!
//! The bug is that of the process: the tests run one after the other.

#[path = "support/pages.rs"]
mod pages;
#[path = "support/scene.rs"]
mod scene;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use tandemfs_client::mutant::{self as client_mutant, Mutant as ClientMutant};
use tandemfs_client::{Errno, OpenOptions, Options, Tree};
use tandemfs_crash::{Random, comes_within, rounds_or, seed_or};
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_fs::mutant::{self as fs_mutant, Mutant as FsMutant};
use tandemfs_vfs::{At, Subject};

use pages::Pages;
use scene::{Scene, alone, scene, scene_beside, somebody};

impl Scene {
    fn write(&self, path: &str, bytes: &[u8]) {
        let file =
            self.vfs.open(&somebody(), At::Root, path.as_bytes(), libc::O_CREAT | libc::O_TRUNC | libc::O_RDWR, 0o644).expect("made");
        self.vfs.write_at(&somebody(), &file, 0, bytes, 0).expect("written");
    }

    /// What a client reads of a file: its inode, and its bytes.
    fn read(&self, path: &str) -> Result<(u64, Vec<u8>), Errno> {
        let errno = |error: tandemfs_client::Error| error.errno().expect("nothing is for the kernel");
        let (file, found) = self.mount.open_and_stat(path, 0, 0).map_err(errno)?;
        let mut bytes = vec![0; 100_000];
        let length = file.read_at(&mut bytes, 0).map_err(errno)?;
        assert_eq!(length as u64, found.size_bytes, "{path}");
        bytes.truncate(length);
        Ok((found.node, bytes))
    }

    /// What `vfs` says of the same.
    fn truth(&self, path: &str) -> Result<(u64, Vec<u8>), Errno> {
        let errno = |refused: tandemfs_vfs::Refused| refused.errno().expect("nothing is for the kernel");
        let file = self.vfs.open(&somebody(), At::Root, path.as_bytes(), libc::O_RDONLY, 0).map_err(errno)?;
        let mut bytes = vec![0; 100_000];
        let length = self.vfs.read_at(&file, 0, &mut bytes).map_err(errno)?;
        bytes.truncate(length);
        Ok((file.inode().get(), bytes))
    }

    fn open_files(&self) -> usize {
        self.server.clients().1
    }
}

#[test]
fn the_second_open_asks_nobody() {
    let _alone = alone();
    let scene = scene();
    scene.write("small", b"few bytes");
    scene.make("empty");
    scene.write("large", &[7; 50_000]);
    for (path, of_reads) in [("small", 0), ("empty", 0), ("large", 1)] {
        assert_eq!(scene.read(path), scene.truth(path), "{path}");
        let again = scene.requests_of(|| assert_eq!(scene.read(path), scene.truth(path), "{path}"));
        assert!(again <= of_reads, "{again} requests for {path}");
    }
    assert_eq!(scene.open_files(), 3);
    // Two at once are two files, of which one is kept.
    let (one, two) = (scene.mount.open("small").expect("opened"), scene.mount.open("small").expect("opened"));
    assert_eq!(scene.open_files(), 4);
    drop((one, two));
    assert_eq!(scene.open_files(), 3);
    // Other flags are another open.
    let file = OpenOptions::new().read(true).write(true).open(&scene.mount, "small").expect("opened");
    file.write_all_at(b"MANY", 0).expect("written");
    drop(file);
    assert_eq!(scene.read("small").expect("there").1, b"MANYbytes");
    let file = scene.mount.open("small").expect("opened");
    file.set_flags(libc::O_NONBLOCK).expect("set");
    let open = scene.open_files();
    drop(file);
    assert_eq!(scene.open_files(), open - 1, "[IDF3]");
}

/// [VS9] of the file system.
#[test]
fn what_has_lost_its_last_name_is_closed() {
    fn left(by_rename: bool) -> (usize, usize) {
        let scene = scene();
        let without_names = || scene.vfs.file_system().inodes_without_names().len();
        scene.write("f", b"bytes");
        scene.vfs.link(&somebody(), (At::Root, b"f"), (At::Root, b"other"), 0).expect("linked");
        scene.read("f").expect("there");
        assert_eq!(scene.open_files(), 1);
        scene.vfs.unlink(&somebody(), At::Root, b"other").expect("removed");
        assert_eq!(scene.open_files(), 1, "it has a name");
        if by_rename {
            scene.write("new", b"new");
            scene.vfs.rename(&somebody(), (At::Root, b"new"), (At::Root, b"f"), 0).expect("replaced");
        } else {
            scene.vfs.unlink(&somebody(), At::Root, b"f").expect("removed");
        }
        let left = (scene.open_files(), without_names());
        assert_eq!(scene.read("f"), scene.truth("f"));
        // One that is in use stays.
        scene.write("g", b"bytes");
        drop(scene.mount.open("g").expect("opened"));
        let file = scene.mount.open("g").expect("opened again");
        scene.vfs.unlink(&somebody(), At::Root, b"g").expect("removed");
        let mut bytes = [0; 5];
        file.read_exact_at(&mut bytes, 0).expect("there");
        assert_eq!(&bytes, b"bytes");
        drop(file);
        assert_eq!(without_names(), 0, "whatever the daemon does");
        left
    }
    let _alone = alone();
    for by_rename in [false, true] {
        assert_eq!(left(by_rename), (0, 0));
        mutant::select(Mutant::IdleKept);
        let found = left(by_rename);
        mutant::select(Mutant::None);
        assert_ne!(found, (0, 0), "IdleKept escaped");
        fs_mutant::select(FsMutant::NamelessUntold);
        let found = left(by_rename);
        fs_mutant::select(FsMutant::None);
        assert_ne!(found, (0, 0), "NamelessUntold escaped");
    }
}

/// [KNW6], [VS8] of the file system.
#[test]
fn opens_that_somebody_may_be_told_of_are_requests() {
    fn requests() -> u64 {
        let pages = Arc::new(Pages::default());
        let scene = scene_beside(&Options { leaves_watched: true, ..Options::default() }, Arc::clone(&pages));
        let read = || drop(scene.read("f").expect("there"));
        scene.write("f", b"bytes");
        read();
        assert_eq!(scene.requests_of(read), 0);
        scene.vfs.file_system().watchers_come();
        assert!(scene.requests_of(read) > 0, "who begins to watch says so first");
        assert_eq!(scene.requests_of(read), 0);
        pages.2.store(true, SeqCst);
        scene.vfs.file_system().watchers_come();
        read();
        scene.requests_of(read)
    }
    let _alone = alone();
    assert!(requests() > 0);
    mutant::select(Mutant::WatchersUnasked);
    let found = requests();
    mutant::select(Mutant::None);
    assert_eq!(found, 0, "WatchersUnasked escaped");
}

const PATHS: [&str; 8] = ["a", "b", "d/a", "d/b", "e/a", "d/../a", "link", "d/e/a"];

/// A change by somebody else; most fail.
fn change(scene: &Scene, random: &mut Random) {
    let process = somebody();
    let path = |random: &mut Random| PATHS[random.below(8) as usize].as_bytes();
    let subject = |path: &'static [u8]| Subject::followed(At::Root, path);
    let one = path(random);
    let _most_fail = match random.below(9) {
        0 => scene.vfs.unlink(&process, At::Root, one).map_err(drop),
        1 => scene.vfs.rename(&process, (At::Root, one), (At::Root, path(random)), 0).map_err(drop),
        2 => scene.vfs.rename(&process, (At::Root, b"d"), (At::Root, b"e"), 2).map_err(drop),
        3 => scene.vfs.truncate(&process, subject(one), random.below(30_000) as i64).map_err(drop),
        4 => scene.vfs.link(&process, (At::Root, one), (At::Root, path(random)), 0).map_err(drop),
        5 => scene.vfs.change_mode(&process, subject(one), 0o600 | random.below(8) as u32).map_err(drop),
        6 => scene.vfs.make_link(&process, b"d/a", At::Root, b"link").map(drop).map_err(drop),
        _ => match scene.vfs.open(&process, At::Root, one, libc::O_CREAT | libc::O_RDWR, 0o644) {
            Ok(file) => {
                scene.vfs.write_at(&process, &file, random.below(10_000) as i64, &[random.below(256) as u8; 100], 0).map(drop).map_err(drop)
            }
            Err(_) => Err(()),
        },
    };
}

/// Returns how many of the opens were known.
fn play(seed: u64) -> Result<f64, String> {
    let (scene, mut random) = (scene(), Random::new(seed));
    for directory in ["d", "e", "d/e"] {
        scene.vfs.make_directory(&somebody(), At::Root, directory.as_bytes(), 0o755).expect("made");
    }
    let (mut known, mut opens) = (0, 0);
    for _ in 0..300 {
        if random.one_in(3) {
            change(&scene, &mut random);
        }
        let path = PATHS[random.below(8) as usize];
        let (before, said) = (scene.served(), scene.read(path));
        (opens, known) = (opens + 1, known + u64::from(scene.served() == before));
        let truth = scene.truth(path);
        if said != truth {
            let short =
                |found: &Result<(u64, Vec<u8>), Errno>| found.as_ref().map(|(node, bytes)| (*node, bytes.len())).map_err(|errno| *errno);
            return Err(format!("seed {seed}, {path}: {:?}, and not {:?}", short(&said), short(&truth)));
        }
    }
    for directory in ["", "d/", "e/", "d/e/", "e/e/"] {
        for name in ["a", "b", "link"] {
            let _some_are_not_there = scene.vfs.unlink(&somebody(), At::Root, format!("{directory}{name}").as_bytes());
        }
    }
    match (scene.open_files(), scene.vfs.file_system().inodes_without_names().len()) {
        (0, 0) => Ok(known as f64 / opens as f64),
        (open, nameless) => Err(format!("seed {seed}: {open} open files and {nameless} nameless ones at the end")),
    }
}

#[test]
fn what_is_opened_again_is_what_is_there() {
    let _alone = alone();
    let first = seed_or(0);
    for seed in first..first + rounds_or(30) {
        let share = play(seed).unwrap_or_else(|what| panic!("{what}"));
        assert!(share > 0.2, "only {share} of the opens were known");
    }
    client_mutant::select(ClientMutant::IdleNotCompared);
    let found = (0..20).find_map(|seed| play(seed).err());
    client_mutant::select(ClientMutant::None);
    println!("{}", found.expect("IdleNotCompared escaped"));
}

/// [IDF4]
#[test]
fn no_more_are_kept_than_there_are_places_for() {
    let _alone = alone();
    let scene = scene();
    let name = |number: u32| format!("file-{number}");
    let count = 6000;
    (0..count).for_each(|number| scene.write(&name(number), &number.to_le_bytes()));
    for _ in 0..2 {
        for number in 0..count {
            assert_eq!(scene.read(&name(number)).expect("there").1, number.to_le_bytes());
        }
    }
    let open = scene.open_files();
    assert!((3000..=4096).contains(&open), "{open} open files");
    let requests = scene.requests_of(|| {
        (count - 500..count).for_each(|number| assert_eq!(scene.read(&name(number)).expect("there").1, number.to_le_bytes()));
    });
    assert!(requests < 500, "the latest are kept: {requests} requests");
    (0..count).for_each(|number| scene.vfs.unlink(&somebody(), At::Root, name(number).as_bytes()).expect("removed"));
    assert_eq!(scene.open_files(), 0);
}

/// Each file says in its bytes which one it is; threads of the client open some while others are replaced.
#[test]
fn threads_open_what_is_there_while_names_change() {
    let _alone = alone();
    let scene = Arc::new(scene());
    let name = |number: u64| format!("file-{number}");
    (0..16).for_each(|number| scene.write(&name(number), format!("{number} 0").as_bytes()));
    let ends = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|seed| {
            let (scene, ends) = (Arc::clone(&scene), Arc::clone(&ends));
            std::thread::spawn(move || {
                let (mut random, mut latest) = (Random::new(seed), [0_u64; 16]);
                while !ends.load(SeqCst) {
                    let number = random.below(16);
                    let Ok((_, bytes)) = scene.read(&name(number)) else { continue };
                    let text = String::from_utf8(bytes).expect("text");
                    let (of, version) = text.split_once(' ').expect("two numbers");
                    let version: u64 = version.parse().expect("a number");
                    assert_eq!(of, number.to_string());
                    assert!(version >= latest[number as usize], "an older file is opened");
                    latest[number as usize] = version;
                }
            })
        })
        .collect();
    let mut random = Random::new(9);
    for version in 1..rounds_or(1500) {
        let number = random.below(16);
        let new = format!("new-{version}");
        scene.write(&new, format!("{number} {version}").as_bytes());
        scene.vfs.rename(&somebody(), (At::Root, new.as_bytes()), (At::Root, name(number).as_bytes()), 0).expect("replaced");
    }
    ends.store(true, SeqCst);
    readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
    (0..16).for_each(|number| scene.vfs.unlink(&somebody(), At::Root, name(number).as_bytes()).expect("removed"));
    assert!(comes_within(Duration::from_secs(10), || scene.open_files() == 0), "{} files are left open", scene.open_files());
    assert!(scene.vfs.file_system().inodes_without_names().is_empty());
}

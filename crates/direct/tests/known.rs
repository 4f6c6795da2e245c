//! Answers that clients give themselves ([KNW1]–[KNW4] of `known.rs`), through the server, the shared memory and the client: changes by
//! somebody else, by the client itself and by threads, and the end of the server. What the client says is held against the same call of `vfs`.
//!
//! Server and client are in this process; see `server.rs`. The bug is that of the process: the tests run one after the other.

#[path = "support/pages.rs"]
mod pages;
#[path = "support/scene.rs"]
mod scene;
mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::fs::AtFlags;
use tandemfs_client::mutant::{self as client_mutant, Mutant as ClientMutant};
use tandemfs_client::{Attributes, Directory, Errno, Error, File, OpenOptions, Options, Tree};
use tandemfs_crash::{Random, comes_within, rounds_or, seed_or};
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_format::InodeNumber;
use tandemfs_fs::mutant::{self as fs_mutant, Mutant as FsMutant};
use tandemfs_protocol::Number;
use tandemfs_vfs::{At, OpenFile, Subject, Vfs};

use pages::Pages;
use scene::{Scene, alone, scene, scene_beside, scene_with, somebody};

impl Scene {
    /// What `vfs` says of a path.
    fn truth(&self, path: &str, follows: bool) -> Result<Attributes, Errno> {
        let path = path.as_bytes();
        let subject = if follows { Subject::followed(At::Root, path) } else { Subject::unfollowed(At::Root, path) };
        match self.vfs.stat(&somebody(), subject) {
            Ok(found) => Ok(Attributes {
                node: found.inode.get(),
                size_bytes: found.size,
                mode: found.mode.into(),
                links: found.nlink,
                user: found.uid,
                group: found.gid,
                ..Attributes::default()
            }),
            Err(refused) => Err(refused.errno().expect("nothing is for the kernel")),
        }
    }

    fn said(&self, path: &str, follows: bool) -> Result<Attributes, Errno> {
        let flags = if follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        match self.mount.target(path.as_ref(), flags).attributes() {
            Ok(Attributes { node, size_bytes, mode, links, user, group, .. }) => {
                Ok(Attributes { node, size_bytes, mode, links, user, group, ..Attributes::default() })
            }
            Err(error) => Err(error.errno().expect("nothing is for the kernel")),
        }
    }
}

#[test]
fn the_second_time_nobody_is_asked() {
    let _alone = alone();
    let scene = scene();
    scene.vfs.make_directory(&somebody(), At::Root, b"d", 0o755).expect("made");
    scene.make("d/f");
    let file = OpenOptions::new().read(true).open(&scene.mount, "d/f").expect("opened");
    let all = || {
        scene.said("d/f", true).expect("there");
        scene.said("d/f", false).expect("there");
        assert_eq!(scene.said("d/absent", true), Err(Errno::NOENT));
        assert_eq!(scene.said("d/f/x", true), Err(Errno::NOTDIR));
        scene.mount.access("d/f", 4, false).expect("allowed");
        assert_eq!(scene.mount.access("d/f", 1, true).err().and_then(|error| error.errno()), Some(Errno::ACCESS));
        assert_eq!(scene.mount.open("d/none").err().and_then(|error| error.errno()), Some(Errno::NOENT));
        file.attributes().expect("there");
    };
    assert_eq!(scene.requests_of(all), 8);
    assert_eq!(scene.requests_of(all), 0);
    // What an absent name's stat has said, its open knows, and the other way.
    assert_eq!(scene.requests_of(|| assert!(scene.mount.open("d/absent").is_err())), 0);
    assert_eq!(scene.requests_of(|| assert_eq!(scene.said("d/none", true), Err(Errno::NOENT))), 0);
    // A file that is made is found, also by the client itself.
    drop(scene.mount.create("d/absent").expect("made"));
    scene.said("d/absent", true).expect("there");
    scene.make("d/none");
    drop(scene.mount.open("d/none").expect("opened"));
    // Another name of the directory leaves what is known of its files.
    scene.said("d/f", true).expect("there");
    scene.make("d/other");
    assert_eq!(scene.requests_of(|| assert!(scene.said("d/f", true).is_ok())), 0);
}

/// [AHD1], [AHD3]; [AHC1], [AHC2] of the client.
#[test]
fn answers_about_a_directory_come_with_the_first_ones() {
    let _alone = alone();
    let scene = scene();
    for directory in ["d", "d/e"] {
        scene.vfs.make_directory(&somebody(), At::Root, directory.as_bytes(), 0o755).expect("made");
    }
    let names: Vec<String> = (0..100).map(|number| format!("d/e/name-{number}")).collect();
    names.iter().for_each(|name| scene.make(name));
    scene.vfs.make_link(&somebody(), b"name-1", At::Root, b"d/e/link").expect("made");
    let all = |follows: bool| {
        let names = names.iter().rev().map(String::as_str).chain(["d/e/link"]);
        names.for_each(|name| assert_eq!(scene.said(name, follows), scene.truth(name, follows), "{name}"));
    };
    for follows in [true, false] {
        let requests = scene.requests_of(|| all(follows));
        assert!((4..=8).contains(&requests), "{requests} requests for 101 answers, 32 at a time");
        assert_eq!(scene.requests_of(|| all(follows)), 0);
    }
    // One that has changed is asked for, one that is gone, and one that is new; the others are still known.
    scene.vfs.truncate(&somebody(), Subject::followed(At::Root, b"d/e/name-50"), 77).expect("longer");
    scene.vfs.unlink(&somebody(), At::Root, b"d/e/name-51").expect("removed");
    assert_eq!(scene.requests_of(|| all(true)), 2);
    // By an open directory, as the programs spell it.
    let directory = scene.mount.open("d/e").expect("opened");
    let told = |name: &str| directory.target(name.as_ref(), AtFlags::empty()).attributes().map(|found| found.node);
    let requests = scene.requests_of(|| (0..50).for_each(|number| assert!(told(&format!("name-{number}")).is_ok())));
    assert!((2..=8).contains(&requests), "{requests} requests");
}

/// Another user's process: prints how many requests it took to ask about twenty names of a directory that it may not list.
#[test]
#[ignore = "started by a test"]
fn stranger() {
    let socket = std::env::var_os("TANDEMFS_TEST_SOCKET").expect("where");
    let mount = support::connect_to(socket.as_ref(), "/proc", &Options::default()).expect("let in");
    assert_eq!(mount.open_with("d", libc::O_RDONLY, 0).err().and_then(|error| error.errno()), Some(Errno::ACCESS));
    (0..20).for_each(|number| assert!(mount.target(format!("d/{number}").as_ref(), AtFlags::empty()).attributes().is_ok()));
    println!("asked");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("read");
}

/// Another user's process: asks for a name that is not there, in a directory that it may list and not search.
#[test]
#[ignore = "started by a test"]
fn searcher() {
    let socket = std::env::var_os("TANDEMFS_TEST_SOCKET").expect("where");
    let mount = support::connect_to(socket.as_ref(), "/proc", &Options::default()).expect("let in");
    let entries: Result<Vec<_>, _> = mount.read_directory("d").expect("opened").collect();
    assert_eq!(entries.expect("listed").len(), 3, "with dots");
    let said = mount.attributes("d/absent").err().and_then(|error| error.errno());
    println!("{}", if said == Some(Errno::ACCESS) { "refused" } else { "told" });
}

/// [AHD4], by a process of another user, which root alone can start.
#[test]
fn who_may_not_search_a_directory_is_not_told_what_is_absent() {
    /// What a stranger says.
    fn said() -> String {
        let scene = scene();
        scene.vfs.make_directory(&somebody(), At::Root, b"d", 0o744).expect("made");
        scene.make("d/a");
        let program = std::env::temp_dir().join(format!("tandemfs-door-search-child-{}", std::process::id())); // where others may run it
        std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("copied");
        let output = Command::new(&program)
            .args(["--ignored", "--exact", "searcher", "--nocapture"])
            .env("TANDEMFS_TEST_SOCKET", scene.server.socket())
            .current_dir("/")
            .uid(65_534)
            .gid(65_534)
            .output()
            .expect("started");
        std::fs::remove_file(&program).expect("removed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        println!("not root: no processes of other users");
        return;
    }
    let right = said();
    assert!(right.contains("refused"), "{right}");
    mutant::select(Mutant::ListedUnsearched);
    let wrong = said();
    mutant::select(Mutant::None);
    assert!(wrong.contains("told"), "ListedUnsearched escaped: {wrong}");
}

/// [AHD2], by a process of another user, which root alone can start.
#[test]
fn who_may_not_list_a_directory_is_told_of_what_he_asks_for_alone() {
    /// Questions that a stranger had to ask.
    fn asked() -> u64 {
        let scene = scene();
        scene.vfs.make_directory(&somebody(), At::Root, b"d", 0o711).expect("made");
        (0..20).for_each(|number| scene.make(&format!("d/{number}")));
        let program = std::env::temp_dir().join(format!("tandemfs-door-known-child-{}", std::process::id())); // where others may run it
        std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("copied");
        let mut child = Command::new(&program)
            .args(["--ignored", "--exact", "stranger", "--nocapture"])
            .env("TANDEMFS_TEST_SOCKET", scene.server.socket())
            .current_dir("/")
            .uid(65_534)
            .gid(65_534)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut said = BufReader::new(child.stdout.take().expect("piped")).lines();
        let has_asked = said.any(|line| line.is_ok_and(|line| line.contains("asked")));
        let (_, clients) = scene.server.observer().clients();
        let of_child = clients.iter().filter(|client| client.process_id == child.id() as i32).flat_map(|client| &client.counts.operations);
        let is_stat = |number| matches!(number, Number::Stat | Number::StatAhead);
        let count = of_child.filter(|operation| is_stat(operation.number)).map(|operation| operation.count).sum();
        drop(child.stdin.take());
        said.for_each(drop);
        child.wait().expect("ended");
        std::fs::remove_file(&program).expect("removed");
        assert!(has_asked, "it could not ask");
        count
    }
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        println!("not root: no processes of other users");
        return;
    }
    assert_eq!(asked(), 20);
    mutant::select(Mutant::ForetoldToAll);
    let found = asked();
    mutant::select(Mutant::None);
    assert!(found < 20, "ForetoldToAll escaped");
}

/// [KN6] of the client.
#[test]
fn what_has_nothing_extended_is_known_by_its_attributes() {
    fn found() -> Result<(), String> {
        const LIST: &[u8] = b"system.posix_acl_access";
        let scene = scene();
        let subject = Subject::followed(At::Root, b"f");
        scene.make("f");
        scene.vfs.make_link(&somebody(), b"f", At::Root, b"link").expect("made");
        let value = |path: &str, flags, name: &[u8]| scene.mount.target(path.as_ref(), flags).extended_attribute(name);
        let (follow, link) = (AtFlags::empty(), AtFlags::SYMLINK_NOFOLLOW);
        let is_absent = |said: tandemfs_client::Result<Vec<u8>>| said.err().and_then(|error| error.errno()) == Some(Errno::NODATA);
        for path in ["f", "link"] {
            scene.said(path, false).expect("there");
        }
        let requests = scene.requests_of(|| assert!(is_absent(value("f", follow, LIST)) && is_absent(value("f", link, b"security.x"))));
        assert_eq!(requests, 0);
        let requests = scene.requests_of(|| assert!(is_absent(value("f", follow, b"user.x")) && is_absent(value("link", follow, LIST))));
        assert_eq!(requests, 2, "rights are looked at, and what a link leads to");
        assert_eq!(value("link", link, LIST).err().and_then(|error| error.errno()), Some(Errno::OPNOTSUPP));
        let list =
            [&2_u32.to_le_bytes()[..], &entry(1, 6, !0), &entry(2, 6, 7), &entry(4, 4, !0), &entry(16, 6, !0), &entry(32, 4, !0)].concat();
        scene.vfs.set_extended_attribute(&somebody(), subject, LIST, &list, 0).expect("set");
        scene.vfs.set_extended_attribute(&somebody(), subject, b"security.x", b"v", 0).expect("set");
        scene.said("f", false).expect("there");
        match (value("f", link, b"security.x"), value("f", follow, LIST)) {
            (Ok(security), Ok(found)) if security == b"v" && !found.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }
    fn entry(tag: u16, rights: u16, id: u32) -> [u8; 8] {
        let (tag, rights, id) = (tag.to_le_bytes(), rights.to_le_bytes(), id.to_le_bytes());
        [tag[0], tag[1], rights[0], rights[1], id[0], id[1], id[2], id[3]]
    }
    let _alone = alone();
    found().expect("right");
    client_mutant::select(ClientMutant::ExtendedNotSought);
    let caught = found();
    client_mutant::select(ClientMutant::None);
    println!("{}", caught.expect_err("ExtendedNotSought escaped"));
}

/// [AHD4]; [FEN1] of the client.
#[test]
fn the_first_entries_of_a_directory_come_when_it_is_opened() {
    let _alone = alone();
    let scene = scene();
    scene.vfs.make_directory(&somebody(), At::Root, b"d", 0o755).expect("made");
    ["d/a", "d/b", "d/c"].iter().for_each(|name| scene.make(name));
    let listed = |directory: Directory| -> Vec<String> {
        let mut names: Vec<_> = directory.map(|entry| entry.expect("listed").name().to_str().expect("text").to_owned()).collect();
        names.sort();
        names
    };
    let all = [".", "..", "a", "b", "c"];
    // One request opens and lists it, and one closes it.
    let open_and_list = || assert_eq!(listed(scene.mount.read_directory("d").expect("opened")), all);
    assert_eq!(scene.requests_of(open_and_list), 2);
    // Who comes back to the start asks.
    let twice = || {
        let mut directory = scene.mount.read_directory("d").expect("opened");
        let first = directory.next().expect("one").expect("listed");
        directory.seek(0);
        assert_eq!(directory.next().expect("one").expect("listed"), first);
    };
    assert_eq!(scene.requests_of(twice), 3);
    // What is there when it is listed counts, not what was when it was opened.
    let finds_what_was_removed = || {
        let directory = scene.mount.read_directory("d").expect("opened");
        scene.vfs.unlink(&somebody(), At::Root, b"d/a").expect("removed");
        let found = listed(directory).contains(&"a".to_owned());
        scene.make("d/a");
        found
    };
    assert!(!finds_what_was_removed());
    client_mutant::select(ClientMutant::EntriesNotCompared);
    let found = finds_what_was_removed();
    client_mutant::select(ClientMutant::None);
    assert!(found, "EntriesNotCompared escaped");
    // A name that is not among all of them is absent, as long as there is no other.
    drop(scene.mount.read_directory("d").expect("opened"));
    let absent = || {
        ["d/x", "d/y", "d/z"].iter().for_each(|name| assert_eq!(scene.said(name, false), Err(Errno::NOENT)));
        assert_eq!(scene.mount.open("d/.hidden").err().and_then(|error| error.errno()), Some(Errno::NOENT));
        assert_eq!(scene.mount.access("d/w", 4, false).err().and_then(|error| error.errno()), Some(Errno::NOENT));
    };
    assert_eq!(scene.requests_of(absent), 0);
    scene.make("d/x");
    assert!(scene.said("d/x", false).is_ok());
    assert_eq!(scene.said("d/y", false), Err(Errno::NOENT));
    scene.vfs.unlink(&somebody(), At::Root, b"d/x").expect("removed");
    assert_eq!(scene.said(&format!("d/{}", "x".repeat(90)), false), Err(Errno::NOENT));
    // Of a directory with more than that the rest is asked for, and each name comes once.
    (0..500).for_each(|number| scene.make(&format!("d/a-long-name-of-a-file-{number}")));
    let finds_all = |spelled: &str| {
        assert_eq!(listed(scene.mount.read_directory(spelled).expect("opened")).len(), all.len() + 500);
        (0..500).all(|number| scene.said(&format!("{spelled}/a-long-name-of-a-file-{number}"), false).is_ok())
    };
    assert!(finds_all("d"));
    client_mutant::select(ClientMutant::PartsCountAsAll);
    let found = finds_all("d/."); // of which nothing is known
    client_mutant::select(ClientMutant::None);
    assert!(!found, "PartsCountAsAll escaped");
}

#[test]
fn who_does_not_want_to_keep_answers_asks() {
    let _alone = alone();
    let scene = scene_with(&Options { keeps_answers: false, ..Options::default() });
    scene.make("f");
    assert_eq!(scene.requests_of(|| (0..5).for_each(|_| assert!(scene.said("f", true).is_ok()))), 5);
}

const PATHS: [&str; 12] = ["a", "b", "c", "a/a", "a/b", "b/a", "a/b/c", "b/c", "a/..", "a/../b", "c/", "a/b/../a"];

/// A change by somebody else, or by the client; most fail.
fn change(scene: &Scene, random: &mut Random) {
    let (vfs, process, mount) = (&scene.vfs, somebody(), &scene.mount);
    let (path, other) = (PATHS[random.below(8) as usize], PATHS[random.below(8) as usize]);
    let (name, subject) = (path.as_bytes(), Subject::followed(At::Root, path.as_bytes()));
    let by_client = random.one_in(2);
    match (random.below(9), by_client) {
        (0, false) => drop(vfs.open(&process, At::Root, name, libc::O_CREAT | libc::O_RDWR, 0o644)),
        (0, true) => drop(mount.create(path)),
        (1 | 2, false) => drop(vfs.make_directory(&process, At::Root, name, 0o755)),
        (1 | 2, true) => drop(mount.make_directory(path, 0o755)),
        (3, false) => drop(vfs.unlink(&process, At::Root, name)),
        (3, true) => drop(mount.unlink(path)),
        (4, false) => drop(vfs.remove_directory(&process, At::Root, name)),
        (4, true) => drop(mount.remove_directory(path)),
        (5, false) => drop(vfs.rename(&process, (At::Root, name), (At::Root, other.as_bytes()), 0)),
        (5, true) => drop(mount.rename(path, other)),
        (6, false) => drop(vfs.truncate(&process, subject, random.below(9999) as i64)),
        (6, true) => drop(mount.set_length(path, random.below(9999))),
        (7, false) => drop(vfs.make_link(&process, other.as_bytes(), At::Root, name)),
        (7, true) => drop(mount.link(other, path)),
        (_, false) => drop(vfs.change_mode(&process, subject, random.below(0o777) as u32)),
        (_, true) => drop(mount.set_mode(path, random.below(0o777) as u32)),
    }
}

const DIRECTORIES: [&str; 4] = [".", "a", "b", "a/b"];

/// Entries of a directory as `vfs` lists them.
fn true_entries(vfs: &Vfs, directory: &OpenFile) -> Result<Vec<(String, u64)>, Option<Errno>> {
    let mut entries = Vec::new();
    let listed = vfs.read_directory_behind(directory, 0, &mut |entry| {
        entries.push((String::from_utf8_lossy(entry.name).into_owned(), entry.inode.get()));
        true
    });
    listed.map(|()| entries).map_err(|refused| refused.errno())
}

/// Returns which part of the answers nobody was asked for.
fn play(seed: u64) -> Result<f64, String> {
    let (scene, mut random) = (scene(), Random::new(seed));
    let mut asked = 0;
    let before = scene.served();
    let mut changes = 0;
    for step in 0..300 {
        // Directories that are opened before a change, with their entries, and listed behind it.
        let mut opened = Vec::new();
        changes += scene.requests_of(|| {
            for path in DIRECTORIES.into_iter().filter(|_| random.one_in(2)) {
                let directory = scene.mount.read_directory(path).ok();
                let same = scene.vfs.open(&somebody(), At::Root, path.as_bytes(), libc::O_RDONLY | libc::O_DIRECTORY, 0).ok();
                opened.extend(directory.zip(same).map(|(directory, same)| (path, directory, same)));
            }
            change(&scene, &mut random);
        });
        let mut wrong = None;
        changes += scene.requests_of(|| {
            for (path, directory, same) in opened {
                let said: Result<Vec<_>, _> = directory
                    .map(|entry| {
                        entry.map(|entry| (entry.name().to_string_lossy().into_owned(), entry.inode())).map_err(|error| error.errno())
                    })
                    .collect();
                let truth = true_entries(&scene.vfs, &same);
                if said != truth {
                    wrong = Some(format!("seed {seed}, step {step}, entries of {path}: {said:?} was said, {truth:?} is so"));
                }
            }
        });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        for (path, follows) in PATHS.into_iter().flat_map(|path| [(path, true), (path, false)]) {
            asked += 1;
            let (said, truth) = (scene.said(path, follows), scene.truth(path, follows));
            if said != truth {
                return Err(format!("seed {seed}, step {step}, {path}: {said:?} was said, {truth:?} is so"));
            }
        }
    }
    Ok(1.0 - (scene.served() - before - changes) as f64 / f64::from(asked))
}

#[test]
fn what_clients_say_is_so() {
    let _alone = alone();
    for round in 0..rounds_or(5) {
        let share = play(seed_or(1) + round).expect("right");
        println!("{share:.3} of the answers were known");
        assert!(share > 0.5, "only {share} of the answers were known");
    }
    for bug in [Mutant::AttributesNotSeen, Mutant::ForetoldByTheAsked] {
        mutant::select(bug);
        let found = (0..20).find_map(|seed| play(seed).err());
        mutant::select(Mutant::None);
        println!("{}", found.unwrap_or_else(|| panic!("{bug:?} escaped")));
    }
    fs_mutant::select(FsMutant::EntriesNotRaised);
    let found = (0..20).find_map(|seed| play(seed).err());
    fs_mutant::select(FsMutant::None);
    println!("{}", found.expect("EntriesNotRaised escaped"));
    let bugs =
        [ClientMutant::FlagsNotAsked, ClientMutant::AnswersNotCompared, ClientMutant::EntriesNotCompared, ClientMutant::AheadFlagsLost];
    for bug in bugs {
        client_mutant::select(bug);
        let found = (0..20).find_map(|seed| play(seed).err());
        client_mutant::select(ClientMutant::None);
        println!("{}", found.unwrap_or_else(|| panic!("{bug:?} escaped")));
    }
}

/// Two threads of a client and one of somebody else: a name that is there or not, and a file that grows. Nobody says what was before.
#[test]
fn threads_say_nothing_that_was_before() {
    let _alone = alone();
    let scene = scene();
    scene.make("f");
    let (floor, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let rounds = rounds_or(3000);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(SeqCst) {
                    let least = floor.load(SeqCst);
                    let size = scene.said("f", true).expect("there").size_bytes;
                    assert!(size >= least, "{size} bytes, but {least} were seen before");
                    floor.fetch_max(size, SeqCst);
                }
            });
        }
        for size in 1..=rounds {
            match size % 2 {
                0 => scene.vfs.truncate(&somebody(), Subject::followed(At::Root, b"f"), size as i64).expect("grown"),
                _ => scene.mount.set_length("f", size).expect("grown"),
            }
            floor.fetch_max(size, SeqCst);
            scene.make("name");
            scene.said("name", true).expect("there");
            scene.vfs.unlink(&somebody(), At::Root, b"name").expect("removed");
            assert_eq!(scene.said("name", true), Err(Errno::NOENT));
        }
        ends.store(true, SeqCst);
    });
}

#[test]
fn nothing_is_known_of_a_server_that_has_ended() {
    let _alone = alone();
    let Scene { server, mount, vfs } = scene();
    drop(vfs);
    mount.attributes(".").expect("there");
    mount.attributes(".").expect("known");
    drop(server);
    assert_eq!(mount.attributes(".").map(drop), Err(Error::Errno(Errno::NOTCONN)));
}

/// [KNW2]
#[test]
fn who_answers_itself_is_looked_after() {
    let _alone = alone();
    fn set_limit(bytes: Option<u64>) {
        let limit = rustix::process::Rlimit { current: bytes, maximum: None };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("set");
    }
    /// Whether the connection ends when the process has another limit ([CRD4]) and asks nothing.
    fn ends(within: Duration) -> bool {
        let scene = scene();
        scene.mount.attributes(".").expect("there");
        std::thread::sleep(Duration::from_millis(400)); // looked at since
        set_limit(Some(1 << 30));
        let has_ended = comes_within(within, || scene.mount.attributes(".").is_err());
        set_limit(None);
        has_ended
    }
    assert!(ends(Duration::from_secs(60)), "nobody looks at who answers itself");
    mutant::select(Mutant::AnswerersNotLookedAfter);
    // Where it was not looked at in those 400 ms, the bug does not show.
    let found = (0..10).any(|_| !ends(Duration::from_secs(2)));
    mutant::select(Mutant::None);
    assert!(found, "AnswerersNotLookedAfter escaped");
}

#[test]
fn bytes_that_are_read_again_and_again_are_known() {
    let _alone = alone();
    let scene = scene();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&scene.mount, "f").expect("made");
    file.write_all_at(&[1; 5000], 0).expect("written");
    let read = |offset, length| {
        let mut bytes = vec![0; length];
        let done = file.read_at(&mut bytes, offset).expect("read");
        bytes.truncate(done);
        bytes
    };
    let twice = |offset, length| (0..2).for_each(|_| drop(read(offset, length)));
    twice(4096, 4096);
    twice(100, 200);
    assert_eq!(scene.requests_of(|| assert_eq!(read(4096, 4096), [1; 904])), 0);
    assert_eq!(scene.requests_of(|| assert_eq!((read(4196, 4096).len(), read(150, 100)), (804, vec![1; 100]))), 0, "parts");
    assert_eq!(scene.requests_of(|| assert_eq!(read(150, 200), [1; 200])), 1, "more than is known");
    // By the client, by somebody else, at the end.
    file.write_all_at(&[2], 160).expect("written");
    assert_eq!(read(160, 1), [2]);
    let other = scene.vfs.open(&somebody(), At::Root, b"f", libc::O_RDWR, 0).expect("opened");
    twice(100, 200);
    assert_eq!(read(160, 1), [2]);
    scene.vfs.write_at(&somebody(), &other, 161, &[3], 0).expect("written");
    assert_eq!(read(161, 1), [3]);
    twice(4096, 4096);
    scene.vfs.write_at(&somebody(), &other, 9000, &[4], 0).expect("written");
    assert_eq!(read(4096, 4096)[903..], [vec![1], vec![0; 3192]].concat());
    // Another descriptor, and one with O_DIRECT, for which nothing is kept.
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&scene.mount, "f").expect("opened");
    let mut bytes = [0; 100];
    assert_eq!(scene.requests_of(|| (0..4).for_each(|_| assert_eq!(direct.read_at(&mut bytes, 100), Ok(100)))), 4);
}

/// [WHO1] of `crates/client`, [AHD5]
#[test]
fn small_files_come_with_their_opens() {
    fn read(file: &File, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let done = file.read_at(&mut bytes, offset).expect("read");
        bytes.truncate(done);
        bytes
    }
    fn is_right() -> bool {
        let scene = scene();
        let of = |name: &str| OpenOptions::new().read(true).write(true).create(true).open(&scene.mount, name).expect("made");
        let write = |name: &str, length| of(name).write_all_at(&vec![1; length], 0).expect("written");
        write("f", 5000);
        write("long", 32 << 10);
        let open_read_and_close = |name: &str, length: usize| {
            scene.requests_of(|| {
                let file = scene.mount.open(name).expect("opened");
                assert_eq!((read(&file, 0, 4000), read(&file, 4000, 1 << 20).len()), (vec![1; 4000], length - 4000));
                assert_eq!(
                    (read(&file, 4100, 100), read(&file, length as u64, 10), read(&file, u64::MAX / 2 - 10, 10)),
                    (vec![1; 100], vec![], vec![])
                );
            })
        };
        assert_eq!((open_read_and_close("f", 5000), open_read_and_close("long", 32 << 10)), (1, 6), "they stay open for the next time");
        let writable = OpenOptions::new().write(true).open(&scene.mount, "f").expect("opened");
        assert_eq!(writable.read_at(&mut [0; 10], 0).map_err(|error| error.errno()), Err(Some(Errno::BADF)));
        // By somebody else, by the client, and cut.
        let file = OpenOptions::new().read(true).write(true).open(&scene.mount, "f").expect("opened");
        let other = scene.vfs.open(&somebody(), At::Root, b"f", libc::O_RDWR, 0).expect("opened");
        scene.vfs.write_at(&somebody(), &other, 150, &[3; 100], 0).expect("written");
        let mut is_right = read(&file, 100, 100) == [[1; 50], [3; 50]].concat();
        let file = OpenOptions::new().read(true).write(true).open(&scene.mount, "f").expect("opened");
        file.write_all_at(&[4; 10], 5000).expect("written");
        is_right &= read(&file, 4990, 100) == [[1; 10], [4; 10]].concat();
        let file = scene.mount.open("f").expect("opened");
        scene.mount.set_length("f", 10).expect("cut");
        is_right & (read(&file, 0, 100) == [1; 10])
    }
    let _alone = alone();
    assert!(is_right());
    client_mutant::select(ClientMutant::WholeNotCompared);
    let found = !is_right();
    client_mutant::select(ClientMutant::None);
    assert!(found, "WholeNotCompared escaped");
}

/// [WHO2], [WHO3] of `crates/client`
#[test]
fn files_that_nobody_reads_do_not_come_with_their_opens() {
    let _alone = alone();
    let scene = scene();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&scene.mount, "f").expect("made");
    file.write_all_at(&[1; 16_384], 0).expect("written");
    // For writing as well, so that each open is a request.
    let open = || OpenOptions::new().read(true).write(true).open(&scene.mount, "f").expect("opened");
    let open_and_look = || {
        let file = open();
        let came = scene.requests_of(|| assert_eq!(file.read_at(&mut [0; 16_384], 0), Ok(16_384))) == 0;
        (file, came)
    };
    let comes = || open_and_look().1;
    let first = comes();
    assert!(first || comes(), "where a read has to wait, it is in host memory afterwards");
    (0..40).for_each(|_| drop(open()));
    assert!(!comes());
    let after = (1..100).find(|_| comes()).expect("asked for at last");
    assert!(after <= 32 && comes(), "{after} opens");
    let all: Vec<_> = (0..2100).map(|_| open_and_look()).collect();
    let count = all.iter().filter(|(_, came)| *came).count();
    assert_eq!(count, (32 << 20) / 16_384);
    drop(all);
    assert!((0..32).any(|_| comes()));
}

/// [KN2], [KBY2] of `crates/client`
#[test]
fn bytes_that_are_known_are_right() {
    let _alone = alone();
    fn is_right() -> bool {
        let scene = scene();
        let file = OpenOptions::new().read(true).write(true).create(true).open(&scene.mount, "f").expect("made");
        file.write_all_at(&[1; 5000], 0).expect("written");
        let read = |length| {
            let mut bytes = vec![0; length];
            let done = file.read_at(&mut bytes, 100).expect("read");
            bytes.truncate(done);
            bytes
        };
        let known = [read(100), read(100), read(200)];
        let other = scene.vfs.open(&somebody(), At::Root, b"f", libc::O_RDWR, 0).expect("opened");
        scene.vfs.write_at(&somebody(), &other, 150, &[3; 9000], 0).expect("written");
        known == [vec![1; 100], vec![1; 100], vec![1; 200]] && read(100) == [[1; 50], [3; 50]].concat()
    }
    assert!(is_right());
    for bug in [ClientMutant::BytesNotCompared, ClientMutant::EndNotKnown] {
        client_mutant::select(bug);
        let found = !is_right();
        client_mutant::select(ClientMutant::None);
        assert!(found, "{bug:?} escaped");
    }
}

/// [KNW5]
#[test]
fn bytes_are_not_kept_where_the_kernel_has_pages() {
    let _alone = alone();
    fn requests() -> u64 {
        let pages = Arc::<Pages>::default();
        let scene = scene_beside(&Options::default(), Arc::clone(&pages));
        let file = OpenOptions::new().read(true).write(true).create(true).open(&scene.mount, "f").expect("made");
        file.write_all_at(&[1; 100], 0).expect("written");
        let reads = |count| scene.requests_of(|| (0..count).for_each(|_| assert_eq!(file.read_at(&mut [0; 10], 0), Ok(10))));
        assert_eq!(reads(4), 2, "the kernel has none yet");
        pages.0.store(true, SeqCst);
        scene.vfs.file_system().revoke_bytes(InodeNumber::new(file.attributes().expect("there").node));
        let whole = scene.mount.open("f").expect("opened");
        reads(5) + scene.requests_of(|| assert_eq!(whole.read_at(&mut [0; 100], 0), Ok(100)))
    }
    assert_eq!(requests(), 6);
    mutant::select(Mutant::KernelPagesKept);
    let found = requests();
    mutant::select(Mutant::None);
    assert!(found < 5, "KernelPagesKept escaped: {found}");
}

//! What is appended in room lent behind the end of a file ([LNS8] of `lent_stores.rs`, [APN1]–[APN7] of the client's `tail.rs`).

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use tandemfs_client::mutant::{self as client_mutant, Mutant as ClientMutant};
use tandemfs_client::{Errno, Error, File, Mount, OpenOptions, Options, Tree};
use tandemfs_crash::{Random, comes_within, rounds_or, seed_or};
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_fs::IDLE_MAX;
use tandemfs_fs::mutant::{self as fs_mutant, Mutant as FsMutant};
use tandemfs_protocol::Number;
use tandemfs_vfs::{At, Subject};

use crate::memory::{PATIENCE, alone, filled, somebody};
use crate::processes::{Told, timed};
use crate::raw::Raw;
use crate::{PAGE, Scene, WATCHED, opened, scene, storing};

/// Appends by requests before the tail is asked for, which is one more.
const BEFORE: usize = 8;
const BLOCK: u64 = 64 << 10;

impl Scene {
    /// The size that others see.
    fn size(&self, path: &str) -> u64 {
        self.vfs.stat(&somebody(), Subject::followed(At::Root, path.as_bytes())).expect("there").size
    }
}

fn appending(mount: &Mount, path: &str) -> File {
    OpenOptions::new().read(true).append(true).create(true).open(mount, path).expect("opened")
}

fn appended(file: &File, bytes: &[u8]) {
    assert_eq!(file.append(bytes).expect("appended").0, bytes.len());
}

/// Appends until the tail is lent; a byte each.
fn tailed(scene: &Scene, file: &File) {
    let before = scene.counts().tails_lent;
    (0..BEFORE).for_each(|_| appended(file, &[9]));
    assert_eq!(scene.counts().tails_lent, before + 1, "a tail");
}

/// Three ways to append, and what others see meanwhile.
#[test]
fn what_is_appended_is_there_without_a_request() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect(&storing());
    type Append = fn(&File, &[u8], u64) -> u64;
    let ways: [(&str, bool, Append); 3] = [
        ("RWF_APPEND", false, |file, bytes, _| file.append(bytes).expect("appended").1),
        ("O_APPEND", true, |file, bytes, end| end + file.write_at(bytes, 0).expect("appended") as u64),
        ("at the end", false, |file, bytes, end| end + file.write_at(bytes, end).expect("appended") as u64),
    ];
    for (name, flag, append) in ways {
        let other = scene.open(name);
        let file = if flag { appending(&mount, name) } else { opened(&mount, name) };
        let (mut random, mut model) = (Random::new(1), Vec::new());
        let mut add = |model: &mut Vec<u8>, length: usize| {
            let bytes = filled(&mut random, length);
            let end = model.len() as u64;
            model.extend(&bytes);
            assert_eq!(append(&file, &bytes, end), model.len() as u64, "{name}");
        };
        (0..BEFORE).for_each(|_| add(&mut model, 100));
        assert_eq!((scene.counts().tails_held, scene.counts().held), (1, 1), "{name}");
        let requests = scene.requests_of(|| {
            for length in [1, 7, 64, 100, 4096, 1, 10_000, 333] {
                add(&mut model, length);
                let mut found = vec![0; length + 50];
                let offset = (model.len() - length) as u64;
                assert_eq!(file.read_at(&mut found, offset), Ok(length), "{name}: up to the end");
                assert!(found[..length] == model[offset as usize..]);
                assert_eq!(file.read_at(&mut found, model.len() as u64), Ok(0));
            }
        });
        assert_eq!(requests, 0, "{name}");
        assert_eq!(scene.size(name), model.len() as u64, "{name}: others see the size");
        assert_eq!(file.attributes().expect("told").size_bytes, model.len() as u64);
        assert_eq!(scene.counts().tails_held, 1, "{name}: which ends nothing");
        assert_eq!(scene.requests_of(|| add(&mut model, 50)), 0, "{name}");
        assert!(scene.read(&other, 0, model.len() + 1) == model, "{name}: what others read");
        assert_eq!(scene.counts().tails_held, 0, "{name}");
        add(&mut model, 50);
        assert!(scene.read(&other, 0, model.len() + 1) == model, "{name}: afterwards");
        drop(file);
    }
    let counts = scene.counts();
    assert_eq!((counts.lent, counts.ended, counts.taken_away), (counts.tails_lent, counts.lent, 0));
    drop(mount);
    scene.vfs.file_system().unmount().expect("unmounts");
}

/// The room is used up again and again; a request for each block, and what it takes to have the next tail.
#[test]
fn a_log_goes_on_over_many_blocks() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect(&storing());
    let (file, other) = (appending(&mount, "log"), scene.open("log"));
    let (mut random, mut model) = (Random::new(2), Vec::new());
    let requests = scene.requests_of(|| {
        while (model.len() as u64) < 20 * BLOCK {
            let length = 1 + random.below(200) as usize;
            let bytes = filled(&mut random, length);
            assert_eq!(file.append(&bytes), Ok((length, (model.len() + length) as u64)));
            model.extend(bytes);
        }
    });
    assert!(requests <= BEFORE as u64 + 3 * 20, "{requests} requests");
    assert!(scene.counts().tails_lent >= 20);
    assert!(scene.read(&other, 0, model.len() + 1) == model);
    // What is in the way of the tail is not stored by it.
    tailed_again(&scene, &file);
    let end = scene.size("log");
    assert_eq!(file.write_at_with(&[5; 10], 3, no_append()), Ok(10));
    assert_eq!((scene.read(&other, 0, 14)[3..13].to_vec(), scene.size("log")), (vec![5; 10], end));
    assert_eq!(file.append(&vec![6; 2 * BLOCK as usize]), Ok((2 * BLOCK as usize, end + 2 * BLOCK)), "longer than all room");
    assert_eq!(scene.size("log"), end + 2 * BLOCK);
    drop((file, mount));
    scene.vfs.file_system().unmount().expect("unmounts");
}

fn no_append() -> rustix::io::ReadWriteFlags {
    rustix::io::ReadWriteFlags::from_bits_retain(0x20) // RWF_NOAPPEND
}

/// Until it has a tail, however often it had one of no use.
fn tailed_again(scene: &Scene, file: &File) {
    let before = scene.counts().tails_lent;
    assert!(
        (0..5000).any(|_| file.append(&[9]).is_ok() && (scene.counts().tails_held > 0 || scene.counts().tails_lent > before)),
        "a tail"
    );
}

/// What else happens to the file while its tail is lent.
#[test]
fn who_else_comes_ends_the_lease_first() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect(&storing());
    let (file, by_name) = (appending(&mount, "f"), opened(&mount, "f"));
    let other = scene.open("f");
    let mut model = Vec::new();
    let add = |model: &mut Vec<u8>, byte: u8, length: usize| {
        assert_eq!(file.append(&vec![byte; length]), Ok((length, (model.len() + length) as u64)));
        model.extend(vec![byte; length]);
    };
    type Act<'a> = &'a dyn Fn(&mut Vec<u8>);
    let acts: [(&str, Act<'_>); 8] = [
        ("a read by another file", &|model| assert_eq!(by_name.read_at(&mut [0; 10], model.len() as u64 - 5), Ok(5))),
        ("an append by another file", &|model| {
            assert_eq!(by_name.append(&[3; 10]), Ok((10, model.len() as u64 + 10)));
            model.extend([3; 10]);
        }),
        ("a write behind the end", &|model| {
            scene.write(&other, model.len() as u64 + 100, &[4; 10]);
            model.extend([0; 100]);
            model.extend([4; 10]);
        }),
        ("a truncation", &|model| {
            scene.vfs.truncate(&somebody(), Subject::Open(&other), model.len() as i64 - 20).expect("cut");
            model.truncate(model.len() - 20);
        }),
        ("a truncation to nothing", &|model| {
            scene.vfs.truncate(&somebody(), Subject::Open(&other), 0).expect("cut");
            model.clear();
        }),
        ("growth", &|model| {
            scene.vfs.truncate(&somebody(), Subject::Open(&other), model.len() as i64 + 200_000).expect("grown");
            model.resize(model.len() + 200_000, 0);
        }),
        ("space behind the end", &|model| {
            scene.vfs.allocate(&somebody(), &other, 0, model.len() as i64 + 100, 1000).expect("allocated");
            model.resize(model.len() + 1100, 0);
        }),
        ("O_DIRECT", &|_| {
            file.set_flags(libc::O_DIRECT | libc::O_APPEND).expect("set");
            file.set_flags(libc::O_APPEND).expect("set");
        }),
    ];
    for (name, act) in acts {
        for _ in 0..2000 {
            add(&mut model, 1, 3);
            if scene.counts().tails_held > 0 {
                break;
            }
        }
        assert_eq!(scene.counts().tails_held, 1, "{name}: lent");
        assert_eq!(scene.requests_of(|| (0..30).for_each(|_| add(&mut model, 2, 5))), 0, "{name}");
        act(&mut model);
        assert_eq!(scene.lent(), (0, 0), "{name}");
        add(&mut model, 7, 4);
        assert!(scene.read(&other, 0, model.len() + 1) == model, "{name}");
    }
    for _ in 0..2000 {
        file.append(&[1]).expect("appended");
        if scene.counts().tails_held > 0 {
            break;
        }
    }
    mount.rename("f", "g").expect("moved");
    file.attributes().expect("told");
    file.sync_all().expect("durable");
    assert_eq!(scene.counts().tails_held, 1, "names, attributes and syncs end nothing");
    mount.unlink("g").expect("removed");
    let end = file.attributes().expect("open").size_bytes;
    assert_eq!(file.append(&[8; 9]), Ok((9, end + 9)), "nor does the end of its name");
    scene.vfs.file_system().start_background().expect("starts");
    std::thread::sleep(IDLE_MAX);
    assert!(scene.comes(|scene| scene.lent() == (0, 0)), "nothing was appended for a while");
    assert_eq!(file.attributes().expect("open").size_bytes, end + 9);
    drop((file, by_name, mount));
}

/// What is read by whoever, and the size, after changes by the client and by somebody else.
#[test]
fn random_appends_are_seen_by_all() {
    let _alone = alone();
    let scene = scene();
    let (seed, rounds) = (seed_or(11), rounds_or(6000));
    let mut random = Random::new(seed);
    let (mount, other) = (scene.connect(&Options { loads: true, ..storing() }), scene.open("f"));
    let file = opened(&mount, "f");
    let mut model: Vec<u8> = Vec::new();
    let (mut stored, mut asked) = (0, 0);
    for round in 0..rounds {
        let what = format!("seed {seed}, round {round}");
        let near_end = |random: &mut Random, model: &[u8]| (model.len() as u64).saturating_sub(random.below(3000));
        match random.below(400) {
            0..2 => {
                let bytes = filled(&mut random, 700);
                scene.vfs.write_at(&somebody(), &other, 0, &bytes, libc::RWF_APPEND).expect("appended");
                model.extend(bytes);
            }
            2 => {
                let size = near_end(&mut random, &model);
                scene.vfs.truncate(&somebody(), Subject::Open(&other), size as i64).expect("cut");
                model.truncate(size as usize);
            }
            3 => {
                let size = model.len() + random.below(9000) as usize;
                file.set_length(size as u64).expect("grown");
                model.resize(size, 0);
            }
            4 => drop(scene.vfs.file_system().write_back_all().expect("written back")),
            5 => scene.write(&scene.open("other"), 0, &filled(&mut random, 100_000)),
            6..8 => assert!(scene.read(&other, 0, model.len() + 1) == model, "{what}: others read"),
            8..20 => assert_eq!(scene.size("f"), model.len() as u64, "{what}"),
            20..60 => {
                let offset = near_end(&mut random, &model) as usize;
                let mut found = vec![0; 1 + random.below(4000) as usize];
                let done = file.read_at(&mut found, offset as u64).expect("read");
                let there = &model[offset..model.len().min(offset + found.len())];
                assert!(&found[..done] == there, "{what}: the client reads");
            }
            _ => {
                let bytes = {
                    let length = 1 + random.below(300) as usize;
                    filled(&mut random, length)
                };
                let offset = match random.below(6) {
                    0 => near_end(&mut random, &model) as usize,
                    _ => model.len(),
                };
                let requests = scene.requests_of(|| match random.one_in(2) && offset == model.len() {
                    true => assert_eq!(file.append(&bytes).expect("appended").1, (offset + bytes.len()) as u64, "{what}"),
                    false => file.write_all_at(&bytes, offset as u64).expect("written"),
                });
                (stored, asked) = if requests == 0 { (stored + 1, asked) } else { (stored, asked + 1) };
                let end = model.len().max(offset + bytes.len());
                model.resize(end, 0);
                model[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
        }
    }
    println!("{stored} writes were stored, for {asked} something was asked");
    assert!(stored > asked && asked > 0);
    assert!(scene.read(&other, 0, model.len() + 1) == model);
    drop((file, mount));
    scene.vfs.file_system().unmount().expect("unmounts");
}

/// [APN2], [APN3]: records of several threads and of somebody else: each is there once, whole, and those of a thread in their order. Somebody else appends
/// whenever some more were stored, so that leases are of use and end at any load of the machine.
#[test]
fn records_are_whole_and_each_is_there_once() {
    const RECORD: usize = 24;
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 12_000;
    const STORED_BETWEEN: u64 = 64;
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect(&storing());
    let (file, other) = (appending(&mount, "log"), scene.open("log"));
    let appended = AtomicU64::new(0);
    let asked = || scene.count(|number| number == Number::Write);
    let record = |thread: u64, round: u64| [thread.to_le_bytes(), round.to_le_bytes(), (thread ^ round).to_le_bytes()].concat();
    let by_somebody = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (file, appended) = (&file, &appended);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        assert_eq!(file.append(&record(thread, round)).expect("appended").0, RECORD);
                        appended.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        let mut round = 0;
        while writers.iter().any(|writer| !writer.is_finished()) {
            if appended.load(Relaxed).saturating_sub(asked()) >= STORED_BETWEEN * (round + 1) {
                let bytes = record(THREADS, round);
                assert_eq!(scene.vfs.write_at(&somebody(), &other, 0, &bytes, libc::RWF_APPEND).expect("appended"), RECORD);
                assert!(scene.size("log").is_multiple_of(RECORD as u64));
                round += 1;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        writers.into_iter().for_each(|writer| writer.join().expect("it ends"));
        round
    });
    let found = scene.read(&other, 0, scene.size("log") as usize);
    let mut next: HashMap<u64, u64> = HashMap::new();
    for (at, words) in found.chunks(RECORD).enumerate() {
        let words: Vec<u64> = words.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!(words[0] ^ words[1], words[2], "record {at}");
        let expected = next.entry(words[0]).or_default();
        assert_eq!(words[1], *expected, "record {at} of {}", words[0]);
        *expected += 1;
    }
    assert!((0..THREADS).all(|thread| next[&thread] == ROUNDS));
    assert_eq!(next.get(&THREADS).copied().unwrap_or_default(), by_somebody);
    println!("{} of {} appends were requests, {} tails, {by_somebody} by somebody", asked(), THREADS * ROUNDS, scene.counts().tails_lent);
    assert!(by_somebody > 8 && scene.counts().tails_lent > 8, "{by_somebody}");
    assert_eq!(scene.counts().taken_away, 0);
}

/// [APN7]
#[test]
fn what_is_written_once_asks_for_no_tail() {
    let _alone = alone();
    fn asked(length: usize, files: usize, pieces: usize) -> u64 {
        let scene = scene();
        let mount = scene.connect(&storing());
        for name in 0..files {
            let file = OpenOptions::new().write(true).create(true).open(&mount, format!("{name}")).expect("made");
            (0..pieces).for_each(|piece| file.write_all_at(&vec![1; length], (piece * length) as u64).expect("written"));
        }
        scene.count(|number| number == Number::LendTail)
    }
    assert_eq!((asked(PAGE + 1, 1, 600), asked(100, 50, BEFORE - 1), asked(64 << 10, 2, 100)), (0, 0, 0));
    assert_eq!(asked(100, 1, 50), 1);
    client_mutant::select(ClientMutant::LongAppendsCount);
    let found = asked(PAGE + 1, 1, 600);
    client_mutant::select(ClientMutant::None);
    assert!(found > 0, "LongAppendsCount escaped");
}

/// [LNS3], [LNS4], [APN6]
#[test]
fn only_what_may_be_appended_to_is_lent() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect(&Options { leaves_watched: true, ..storing() });
    scene.open("f");
    for flags in [libc::O_DIRECT, libc::O_SYNC, libc::O_SYNC | libc::O_APPEND] {
        let file = OpenOptions::new().write(true).custom_flags(flags).open(&mount, "f").expect("opened");
        assert!(scene.requests_of(|| (0..50).for_each(|_| appended(&file, &[1]))) >= 50, "{flags:#o}");
        assert_eq!((scene.lent(), scene.counts().lent), ((0, 0), 0));
    }
    // A set-user-id file: each write by who is not trusted with that would take the right away.
    scene.open("rights");
    scene.vfs.change_mode(&somebody(), Subject::followed(At::Root, b"rights"), 0o4755).expect("changed");
    let rights = opened(&mount, "rights");
    (0..50).for_each(|_| appended(&rights, &[1]));
    assert_eq!(scene.lent(), (0, 0));
    let file = OpenOptions::new().write(true).append(true).custom_flags(libc::O_DSYNC).open(&mount, "f").expect("opened");
    tailed(&scene, &file);
    assert_eq!(file.read_at(&mut [0; 10], 0), Err(Error::Errno(Errno::BADF)));
    scene.kernel.watches.store(true, SeqCst);
    let crossed = || matches!(file.append(&[1; 8]), Err(Error::Crossed(_)));
    assert!(comes_within(PATIENCE, crossed) && (0..20).all(|_| crossed()), "what is watched");
    scene.kernel.watches.store(false, SeqCst);
    drop(file);
    for (ends_client, bug) in [(false, Mutant::LeasesOutliveFiles), (true, Mutant::LeasesOutliveClients)] {
        let lent = |within: Duration| {
            let scene = crate::scene();
            scene.write(&scene.open("f"), 0, &[1; 10]);
            if ends_client {
                Raw::connect(scene.server.socket()).tail().expect("a tail");
                assert!(scene.comes(|scene| scene.server.clients().0 == 0));
                comes_within(within, || scene.lent() == (0, 0));
                return scene.lent();
            }
            let mount = scene.connect(&storing());
            let file = appending(&mount, "f");
            tailed(&scene, &file);
            drop(file);
            scene.lent()
        };
        assert_eq!(lent(PATIENCE), (0, 0));
        mutant::select(bug);
        let found = lent(WATCHED);
        mutant::select(Mutant::None);
        assert_eq!(found, (1, 0), "{bug:?} escaped");
    }
}

/// [APN5]
#[test]
fn where_bytes_go_is_as_the_flags_say() {
    let _alone = alone();
    fn written() -> (u64, Vec<u8>) {
        let scene = scene();
        let (mount, other) = (scene.connect(&storing()), scene.open("f"));
        let file = opened(&mount, "f");
        (0..BEFORE).for_each(|at| file.write_all_at(&[1], at as u64).expect("written"));
        assert_eq!(scene.counts().tails_held, 1);
        file.set_flags(libc::O_APPEND).expect("set");
        (0..2 * BEFORE).for_each(|_| appended(&file, &[2]));
        assert_eq!(scene.counts().tails_held, 1);
        assert_eq!(file.write_at(&[3], 1), Ok(1));
        file.set_flags(0).expect("set");
        assert_eq!(file.write_at(&[4], 0), Ok(1));
        (scene.size("f"), scene.read(&other, 0, 100))
    }
    let expected = (3 * BEFORE as u64 + 1, [&[4_u8][..], &[1; BEFORE - 1], &[2; 2 * BEFORE], &[3]].concat());
    assert_eq!(written(), expected);
    client_mutant::select(ClientMutant::AppendFlagKept);
    let found = written();
    client_mutant::select(ClientMutant::None);
    assert_ne!(found, expected, "AppendFlagKept escaped");
}

/// A file that is overwritten near its start and appended to: both by leases ([SL1] of the file system).
#[test]
fn a_header_and_a_log_are_stored_at_once() {
    let _alone = alone();
    fn stored() -> (bool, usize, usize) {
        let scene = scene();
        let other = scene.made("f", 200_000);
        let mount = scene.connect(&storing());
        let file = opened(&mount, "f");
        (0..400).for_each(|_| {
            file.write_all_at(&[3; 50], 100).expect("written");
            file.append(&[4; 20]).expect("appended");
        });
        let requests = scene.requests_of(|| {
            (0..500).for_each(|_| {
                file.write_all_at(&[5; 50], 100).expect("written");
                file.append(&[6; 20]).expect("appended");
            });
        });
        let counts = scene.counts();
        let found = scene.read(&other, 0, 300_000);
        assert_eq!(found.len(), 200_000 + 900 * 20);
        assert!(found[100..150] == [5; 50] && found[200_000..208_000] == [4; 8000] && found[208_000..] == [6; 10_000]);
        (requests == 0, counts.held, counts.tails_held)
    }
    assert_eq!(stored(), (true, 2, 1));
    fs_mutant::select(FsMutant::OwnRoomTaken);
    let found = stored();
    fs_mutant::select(FsMutant::None);
    assert!(!found.0, "OwnRoomTaken escaped");
}

/// [STR9]
#[test]
fn a_sync_of_appends_is_no_request() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect(&storing());
    let file = appending(&mount, "f");
    tailed(&scene, &file);
    file.sync_data().expect("durable");
    let requests = scene.requests_of(|| {
        (0..100).for_each(|_| {
            file.append(&[1; 100]).expect("appended");
            file.sync_data().expect("durable");
        });
    });
    assert_eq!(requests, 0);
    assert_eq!(scene.requests_of(|| file.sync_all().expect("durable")), 1, "times are the daemon's");
}

#[test]
fn times_are_those_of_the_appends() {
    let _alone = alone();
    let scene = scene();
    let mount = scene.connect(&storing());
    let file = appending(&mount, "f");
    tailed(&scene, &file);
    let told = || {
        let told = file.attributes().expect("told");
        (told.size_bytes, told.modified)
    };
    let before = told();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(told(), before);
    file.append(&[1]).expect("appended");
    let after = told();
    assert!(after.0 == before.0 + 1 && after.1 != before.1);
    assert_eq!(scene.counts().tails_held, 1);
}

/// [LNS8]: who is inside when the lease is taken away is told how far its appends count, and not before that is decided.
#[test]
fn how_far_appends_count_is_told_when_the_lease_has_ended() {
    let _alone = alone();
    /// What the client is told, that its bytes were taken away, and what the file has, with a word that was stored before or one that comes too late.
    fn told(is_early: bool) -> (u64, bool, u64, Vec<u8>) {
        let scene = scene();
        let other = scene.open("f");
        scene.write(&other, 0, &[1; 1000]);
        let mut raw = Raw::connect(scene.server.socket());
        let (token, tail) = raw.tail().expect("a tail");
        assert_eq!(tail.size(), 1000);
        let append = |raw: &Raw| {
            raw.map.store(tail.last.zone_offset + 1000, &[2; 50]).expect("stored");
            raw.map.store(tail.word_offset, &(tail.word + 50).to_le_bytes()).expect("stored");
        };
        let leases = tandemfs_ring::Leases::map(std::os::fd::AsFd::as_fd(&raw.words)).expect("mapped");
        let inside = leases.enter(token).expect("lent");
        if is_early {
            append(&raw);
        }
        let told = std::thread::scope(|scope| {
            let reader = scope.spawn(|| scene.read(&other, 990, 100));
            assert!(comes_within(PATIENCE, || !leases.is_lent(token)), "revoked");
            if !is_early {
                // It is stopped until its bytes are gone.
                assert!(comes_within(PATIENCE, || scene.counts().taken_away == 1));
                reader.join().expect("it reads");
                append(&raw);
            }
            (raw.appended(token).expect("told"), !inside.leave())
        });
        let size = scene.size("f");
        (told.0, told.1, size, scene.read(&other, 995, 100))
    }
    let early = (1050, true, 1050, [vec![1; 5], vec![2; 50]].concat());
    assert_eq!(told(true), early);
    assert_eq!(told(false), (1000, true, 1000, vec![1; 5]));
    mutant::select(Mutant::AppendedAtOnce);
    let found = told(true);
    mutant::select(Mutant::None);
    assert_ne!(found, early, "AppendedAtOnce escaped");
}

/// A client of another process is killed, or stopped, between the bytes and the word, and behind the word.
#[test]
fn a_client_that_is_killed_inside_of_an_append_leaves_all_of_it_or_nothing() {
    let _alone = alone();
    for (steps, expected) in [(&["append bytes"][..], 1000), (&["append bytes", "append word"][..], 1050)] {
        for is_killed in [true, false] {
            let scene = scene();
            let other = scene.open("f");
            scene.write(&other, 0, &[1; 1000]);
            let mut told = Told::start(&scene);
            assert_eq!((told.tell("tail"), told.tell("enter")), ("tail 1000".into(), "inside".into()));
            steps.iter().for_each(|step| assert_eq!(told.tell(step), "stored"));
            if is_killed {
                told.kill();
                let (found, _, took) = timed(|| scene.read(&other, 0, 2000));
                assert_eq!((found.len(), scene.size("f")), (expected, expected as u64));
                assert!(found[1000..].iter().all(|byte| *byte == 2) && took < Duration::from_millis(900), "{took:?}");
            } else {
                told.stop();
                assert_eq!(scene.size("f"), expected as u64, "who asks for the size waits for nobody");
                let (found, took, _) = timed(|| scene.read(&other, 0, 2000));
                assert_eq!(found.len(), expected);
                assert!(took >= Duration::from_millis(900), "{took:?}");
                // Somebody else appends where it would.
                assert_eq!(scene.vfs.write_at(&somebody(), &other, 0, &[3; 20], libc::RWF_APPEND).expect("appended"), 20);
                told.go_on();
                assert_eq!((told.tell("append word"), told.tell("leave")), ("stored".into(), "left false".into()));
                assert_eq!(told.tell("appended"), format!("appended {expected}"));
                assert_eq!(told.tell("tail"), "tail none", "it gets none any more");
                let found = scene.read(&other, 0, 2000);
                assert_eq!((found.len(), &found[expected..]), (expected + 20, &[3; 20][..]), "a late word says nothing");
                told.kill();
            }
            assert!(scene.comes(|scene| {
                scene.vfs.file_system().space();
                scene.lent() == (0, 0)
            }));
            scene.vfs.file_system().unmount().expect("unmounts");
        }
    }
}

/// A word beyond the room, and words of every kind, harm the client's own appends alone.
#[test]
fn a_client_that_lies_about_its_word_harms_itself_alone() {
    let _alone = alone();
    let scene = scene();
    let (other, quiet) = (scene.open("f"), scene.open("g"));
    scene.write(&other, 0, &[1; 1000]);
    scene.write(&quiet, 0, &[7; 1000]);
    let mut random = Random::new(3);
    for round in 0..40 {
        let mut raw = Raw::connect(scene.server.socket());
        let (token, tail) = raw.tail().expect("a tail");
        let size = scene.size("f");
        let word = match round % 4 {
            0 => tail.word + tail.room_bytes + 1,
            1 => u64::MAX,
            2 => tail.word + (1 << 40),
            _ => random.next(),
        };
        let inside = raw.leases.enter(token).expect("lent");
        raw.map.store(tail.word_offset, &word.to_le_bytes()).expect("stored");
        drop(inside);
        let room = (tail.word..=tail.word + tail.room_bytes).contains(&word);
        assert!(scene.size("f") == size || room, "round {round}: {word:#x}");
        assert_eq!(raw.appended(token), Err(libc::EINVAL), "it was not taken away");
        assert!(scene.read(&quiet, 0, 2000) == [7; 1000]);
        drop(raw);
        assert!(scene.comes(|scene| scene.lent() == (0, 0)));
    }
    let mut raw = Raw::connect(scene.server.socket());
    assert_eq!(raw.appended(tandemfs_ring::LeaseToken { index: 3, epoch: 9 }), Err(libc::EINVAL), "not its");
    scene.write(&other, 0, &vec![1; BLOCK as usize]);
    scene.vfs.truncate(&somebody(), Subject::Open(&other), BLOCK as i64).expect("cut");
    assert!(raw.tail().is_none(), "a file that ends with a block");
    drop(raw);
    assert_eq!(scene.lent(), (0, 0));
    scene.comes(|scene| scene.server.clients().0 == 0);
    scene.vfs.file_system().unmount().expect("unmounts");
}

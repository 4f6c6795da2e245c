//! What is stored under a lease, what ends it, and what it leaves.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tandemfs_client::mutant::{self as client_mutant, Mutant as ClientMutant};
use tandemfs_client::{Errno, Error, OpenOptions, Options, Tree};
use tandemfs_crash::{Random, comes_within, rounds_or, seed_or};
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_format::InodeNumber;
use tandemfs_fs::IDLE_MAX;
use tandemfs_fs::mutant::{self as fs_mutant, Mutant as FsMutant};
use tandemfs_protocol::{Handle, Number, Operation, Place, Text};
use tandemfs_ring::Range;
use tandemfs_vfs::Subject;

use crate::memory::{PATIENCE, alone, filled, somebody};
use crate::raw::{Raw, answered};
use crate::{PAGE, Scene, WATCHED, leased, opened, scene, storing};

#[test]
fn what_is_leased_is_written_and_read_without_a_request() {
    const BYTES: usize = (2 << 20) + 5000;
    let _alone = alone();
    let scene = scene();
    let other = scene.made("f", BYTES);
    let mount = scene.connect(&storing());
    assert!(mount.stores_by_itself() && !mount.loads_by_itself());
    let file = opened(&mount, "f");
    let (mut random, mut model) = (Random::new(1), vec![1; BYTES]);
    for window in 0..3_u64 {
        leased(&scene, &file, window << 20);
        model[(window << 20) as usize..][..8].fill(9);
    }
    assert_eq!((scene.count(|number| number == Number::LendStores), scene.counts().held), (3, 3));
    let requests = scene.requests_of(|| {
        for round in 0..300 {
            let (window, most) = (random.below(3) << 20, if round % 7 == 0 { 300_000 } else { 5000 });
            let room = (BYTES as u64 - window).min(1 << 20);
            let offset = random.below(room);
            let length = (1 + random.below(most)).min(room - offset) as usize;
            let (bytes, at) = (filled(&mut random, length), (window + offset) as usize);
            assert_eq!(file.write_at(&bytes, at as u64), Ok(length));
            model[at..at + length].copy_from_slice(&bytes);
            let mut found = vec![0; length];
            assert_eq!(file.read_at(&mut found, at as u64), Ok(length));
            assert!(found == bytes, "round {round}");
        }
    });
    assert_eq!(requests, 0);
    assert!(scene.read(&other, 0, BYTES + 1) == model, "what others read");
    let counts = scene.counts();
    assert_eq!((counts.held, counts.lent, counts.ended, counts.taken_away, counts.is_late), (0, 3, 3, 0, false));
    assert_eq!(scene.lent(), (0, 0));
    assert_eq!(file.write_at(&[7; 10], BYTES as u64 - 5), Ok(10), "growth is the daemon's");
    assert_eq!(scene.read(&other, BYTES as u64 - 5, 100), [7; 10]);
    drop((file, mount));
    scene.vfs.file_system().unmount().expect("unmounts");
}

/// What is read by whoever, after changes by the client and by somebody else, with leases and without.
#[test]
fn random_changes_are_seen_by_all() {
    const FILE_BYTES: u64 = (2 << 20) + 5000;
    let _alone = alone();
    let scene = scene();
    let (seed, rounds) = (seed_or(7), rounds_or(4000));
    let mut random = Random::new(seed);
    let mut model = filled(&mut random, FILE_BYTES as usize);
    let other = scene.open("f");
    scene.write(&other, 0, &model);
    let (mount, second) = (scene.connect(&Options { loads: true, ..storing() }), ());
    let file = opened(&mount, "f");
    let (mut stored, mut asked) = (0, 0);
    for round in 0..rounds {
        let offset = random.below(FILE_BYTES);
        let most = if random.one_in(6) { 200_000 } else { 9000 };
        let length = (1 + random.below(most)).min(FILE_BYTES - offset);
        let part = offset as usize..(offset + length) as usize;
        let set = |model: &mut Vec<u8>, bytes: &[u8]| {
            model.resize(model.len().max(part.end), 0);
            model[part.clone()].copy_from_slice(bytes);
        };
        match random.below(60) {
            0 => {
                let bytes = filled(&mut random, part.len());
                set(&mut model, &bytes);
                scene.write(&other, offset, &bytes);
            }
            1 if random.one_in(3) => {
                model.resize(offset as usize, 0);
                scene.vfs.truncate(&somebody(), Subject::Open(&other), offset as i64).expect("cut");
            }
            2 => {
                let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                scene.vfs.allocate(&somebody(), &other, flags as u32, offset as i64, length as i64).expect("punched");
                let end = part.end.min(model.len());
                model[part.start.min(end)..end].fill(0);
            }
            3 => drop(scene.vfs.file_system().write_back_all().expect("written back")),
            // Freed pages go to another file.
            4 => scene.write(&scene.open("other"), 0, &filled(&mut random, part.len())),
            5 => {
                let there = &model[part.start.min(model.len())..part.end.min(model.len())];
                assert!(scene.read(&other, offset, part.len()) == there, "seed {seed}, round {round}: others read");
            }
            6..12 => {
                let there = &model[part.start.min(model.len())..part.end.min(model.len())];
                let mut found = vec![0; part.len()];
                let done = file.read_at(&mut found, offset).expect("read");
                assert!(&found[..done] == there, "seed {seed}, round {round}: the client reads");
            }
            _ => {
                let bytes = filled(&mut random, part.len());
                set(&mut model, &bytes);
                let requests = scene.requests_of(|| file.write_all_at(&bytes, offset).expect("written"));
                (stored, asked) = if requests == 0 { (stored + 1, asked) } else { (stored, asked + 1) };
            }
        }
    }
    println!("{stored} writes were stored, for {asked} something was asked");
    assert!(stored > 0 && asked > 0);
    assert!(scene.read(&other, 0, model.len() + 1) == model);
    drop((file, mount, second));
    scene.vfs.file_system().unmount().expect("unmounts");
}

/// A lease of one client, and another client, or its own process by another file.
#[test]
fn who_else_reads_or_writes_ends_the_lease_first() {
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", 100_000);
    let mount = scene.connect(&storing());
    let file = opened(&mount, "f");
    let by_name = mount.open("f").expect("opened");
    for (what, act) in [
        ("a read", &(|| assert_eq!(by_name.read_at(&mut [0; 10], 5000), Ok(10))) as &dyn Fn()),
        ("a write", &|| assert_eq!(opened(&mount, "f").write_at(&[3; 10], 5000), Ok(10))),
        ("a truncation", &|| file.set_length(90_000).expect("cut")),
        ("a mapping of the library", &|| {
            let inode = InodeNumber::new(file.attributes().expect("there").node);
            drop(scene.vfs.file_system().map(inode, 0, 4096, false).expect("mapped"));
        }),
        ("O_APPEND", &|| {
            file.set_flags(libc::O_APPEND).expect("set");
            file.set_flags(0).expect("set");
        }),
        ("O_DIRECT", &|| {
            file.set_flags(libc::O_DIRECT).expect("set");
            file.set_flags(0).expect("set");
        }),
    ] {
        leased(&scene, &file, 4096);
        assert_eq!(scene.requests_of(|| file.write_all_at(&[4; 100], 5000).expect("written")), 0);
        act();
        assert_eq!(scene.lent(), (0, 0), "{what}");
        assert!(scene.requests_of(|| file.write_all_at(&[5; 100], 5000).expect("written")) > 0, "{what}");
        // The next lease comes with few requests again only after much use.
        (0..200).for_each(|_| file.write_all_at(&[5; 100], 5000).expect("written"));
        (0..100).for_each(|_| file.write_all_at(&[5; 100], 5000).expect("written"));
        by_name.read_at(&mut [0; 10], 5000).expect("read");
        assert_eq!(scene.lent(), (0, 0));
    }
    leased(&scene, &file, 4096);
    file.attributes().expect("told");
    mount.attributes("f").expect("told");
    mount.rename("f", "g").expect("moved");
    assert_eq!(scene.lent().0, 1, "names and attributes end no lease");
    file.sync_all().expect("durable");
    assert_eq!(scene.lent().0, 1, "nor does fsync");
    scene.vfs.file_system().start_background().expect("starts");
    std::thread::sleep(IDLE_MAX);
    assert!(scene.comes(|scene| scene.lent() == (0, 0)), "nothing was stored for a while");
}

#[test]
fn times_are_those_of_the_stores() {
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", 100_000);
    let mount = scene.connect(&storing());
    let file = opened(&mount, "f");
    leased(&scene, &file, 0);
    let modified = || file.attributes().expect("told").modified;
    let before = modified();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(modified(), before);
    let mut bytes = [0; 10];
    assert_eq!(scene.requests_of(|| assert_eq!(file.read_at(&mut bytes, 100), Ok(10))), 0);
    assert_eq!(modified(), before, "a load is no change");
    assert_eq!(scene.requests_of(|| assert_eq!(file.write_at(&bytes, 100), Ok(10))), 0);
    assert_ne!(modified(), before);
    assert_eq!(scene.lent().0, 1);
}

/// [STR9], [VS6] of the file system: after a sync none is asked for while the client alone stores; a mapping of somebody else's may have stored.
#[test]
fn a_sync_is_asked_for_where_others_may_have_stored() {
    let _alone = alone();
    /// Requests of syncs: at first, again, after a store, beside a mapping twice, behind it twice, after somebody else's write.
    fn asked() -> [u64; 8] {
        let scene = scene();
        let other = scene.made("f", 3 << 20);
        let mount = scene.connect(&storing());
        let file = opened(&mount, "f");
        leased(&scene, &file, 0);
        let sync = || scene.requests_of(|| file.sync_data().expect("durable"));
        let inode = InodeNumber::new(file.attributes().expect("there").node);
        let (first, again) = (sync(), sync());
        assert_eq!(scene.requests_of(|| file.write_all_at(&[4; 100], 5000).expect("written")), 0);
        let stored = sync();
        let mapping = scene.vfs.file_system().map(inode, 2 << 20, 4096, true).expect("mapped");
        let beside = [sync(), sync()];
        drop(mapping);
        let behind = [sync(), sync()];
        scene.write(&other, 2 << 20, &[1; 10]);
        let asked = [first, again, stored, beside[0], beside[1], behind[0], behind[1], sync()];
        assert_eq!(scene.requests_of(|| file.sync_all().expect("durable")), 1, "times are the daemon's");
        assert_eq!(scene.lent().0, 1, "none of it ends a lease of another window");
        asked
    }
    let expected = [1, 0, 0, 1, 1, 1, 0, 1];
    assert_eq!(asked(), expected);
    client_mutant::select(ClientMutant::SyncNotCompared);
    let found = asked();
    client_mutant::select(ClientMutant::None);
    assert_eq!(found, [1, 0, 0, 0, 0, 0, 0, 0], "SyncNotCompared escaped");
    fs_mutant::select(FsMutant::SyncedThoughMapped);
    let found = asked();
    fs_mutant::select(FsMutant::None);
    assert_eq!(found[4], 0, "SyncedThoughMapped escaped: {found:?}");
}

/// [STR6]: a lease is of no use where a file is written once.
#[test]
fn growth_asks_for_no_lease() {
    let _alone = alone();
    fn asked() -> u64 {
        let scene = scene();
        let mount = scene.connect(&storing());
        let file = OpenOptions::new().write(true).create(true).open(&mount, "new").expect("made");
        (0..600).for_each(|page| file.write_all_at(&[1; PAGE], page * PAGE as u64).expect("written"));
        (0..20).for_each(|_| file.write_all_at(&[1; 100 << 10], 0).expect("written")); // longer than what counts
        let asked = scene.count(|number| number == Number::LendStores);
        if asked == 0 {
            leased(&scene, &file, 0);
        }
        asked
    }
    assert_eq!(asked(), 0);
    client_mutant::select(ClientMutant::GrowthLeased);
    let found = asked();
    client_mutant::select(ClientMutant::None);
    assert!(found > 0, "GrowthLeased escaped");
}

/// [LNS3], [STR4]
#[test]
fn only_what_may_be_stored_is_lent() {
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", 100_000);
    let mount = scene.connect(&storing());
    for flags in [libc::O_APPEND, libc::O_DIRECT, libc::O_SYNC] {
        // Longer than appends for which the end is lent.
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&mount, "f").expect("opened");
        assert!(scene.requests_of(|| (0..20).for_each(|_| file.write_all_at(&[1; PAGE + 1], 0).expect("written"))) >= 20, "{flags:#o}");
        assert_eq!(scene.lent(), (0, 0));
    }
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(&mount, "f").expect("opened");
    leased(&scene, &file, 0);
    let reads = || file.read_at(&mut [0; 10], 0);
    assert_eq!(reads(), Err(Error::Errno(Errno::BADF)));
    client_mutant::select(ClientMutant::LoadsUnread);
    let found = reads();
    client_mutant::select(ClientMutant::None);
    assert_eq!(found, Ok(10), "LoadsUnread escaped");
    assert_eq!(mount.open(".").expect("opened").write_at(&[1], 0), Err(Error::Errno(Errno::BADF)));
}

/// [LNS3]: a lease is asked for while its file is closed, by two threads of a client that does what no library does.
#[test]
fn a_file_that_is_closed_while_it_is_lent_is_closed_once() {
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", 100_000);
    let mut raw = Raw::connect(scene.server.socket());
    let mut closing = raw.client.slot().expect("another slot");
    let into = raw.client.buffer(4096).expect("room").range();
    for round in 0..rounds_or(2000) {
        let open =
            Operation::Open { at: Place::Root, path: Text::Here(b"f"), flags: libc::O_RDWR, mode: 0, umask: 0, into: Range::default() };
        let handle = Handle::of(answered(&mut raw.slot, &open).expect("opened").value).expect("a handle");
        let (lent, closed) = std::thread::scope(|scope| {
            let lends = scope.spawn(|| answered(&mut raw.slot, &Operation::LendStores { handle, offset: 0, into }).map(drop));
            (0..round % 40 * 100).for_each(|_| std::hint::spin_loop());
            let closed = answered(&mut closing, &Operation::Close { handle }).map(drop);
            (lends.join().expect("answered"), closed)
        });
        assert!(lent.is_ok() || lent == Err(libc::EBADF), "round {round}: {lent:?}");
        assert_eq!((closed, scene.lent()), (Ok(()), (0, 0)), "round {round}");
    }
}

/// [LNS3]
#[test]
fn a_lease_ends_with_its_file_and_with_its_client() {
    let _alone = alone();
    fn lent(ends_client: bool, within: Duration) -> (usize, u64) {
        let scene = scene();
        let _made = scene.made("f", 100_000);
        if ends_client {
            // It closes nothing.
            Raw::connect(scene.server.socket()).lease().expect("a lease");
            assert!(scene.comes(|scene| scene.server.clients().0 == 0));
            comes_within(within, || scene.lent() == (0, 0));
            return scene.lent();
        }
        let mount = scene.connect(&storing());
        let file = opened(&mount, "f");
        leased(&scene, &file, 0);
        drop(file);
        scene.lent()
    }
    for (ends_client, bug) in [(false, Mutant::LeasesOutliveFiles), (true, Mutant::LeasesOutliveClients)] {
        assert_eq!(lent(ends_client, PATIENCE), (0, 0));
        mutant::select(bug);
        let found = lent(ends_client, WATCHED);
        mutant::select(Mutant::None);
        assert_eq!(found, (1, 0), "{bug:?} escaped");
    }
}

/// [LNS4]
#[test]
fn what_is_watched_is_not_stored_to() {
    let _alone = alone();
    fn is_told(within: Duration) -> bool {
        let scene = scene();
        let _made = scene.made("f", 100_000);
        let mount = scene.connect(&Options { leaves_watched: true, ..storing() });
        let file = opened(&mount, "f");
        leased(&scene, &file, 0);
        scene.kernel.watches.store(true, SeqCst);
        let crossed = || matches!(file.write_at(&[1; 8], 0), Err(Error::Crossed(_)));
        let is_told = comes_within(within, crossed);
        assert!((0..20).all(|_| crossed() == is_told), "told: {is_told}");
        scene.kernel.watches.store(false, SeqCst);
        is_told
    }
    assert!(is_told(PATIENCE));
    mutant::select(Mutant::WatchedStoredTo);
    let found = is_told(WATCHED);
    mutant::select(Mutant::None);
    assert!(!found, "WatchedStoredTo escaped");
}

/// [STR7], [STR8]: behind the end of the server.
#[test]
fn nothing_is_stored_behind_the_end_of_the_server() {
    let _alone = alone();
    fn keeps_the_zone() -> bool {
        let scene = scene();
        let other = scene.made("f", 100_000);
        let mount = scene.connect(&storing());
        let file = opened(&mount, "f");
        leased(&scene, &file, 0);
        assert!(scene.vfs.file_system().drive().is_zone_held());
        let Scene { vfs, server, .. } = scene;
        drop(server);
        assert_eq!(vfs.file_system().stores_lent(), (0, 0));
        let before = vfs.file_system().drive().is_zone_held();
        assert_eq!(file.write_at(&[7; 8], 0), Err(Error::Errno(Errno::NOTCONN)));
        let mut found = [0; 8];
        assert_eq!(vfs.read_at(&other, 0, &mut found).expect("read"), 8);
        assert_eq!((found, before), ([9; 8], true));
        vfs.file_system().drive().is_zone_held()
    }
    assert!(!keeps_the_zone());
    client_mutant::select(ClientMutant::ZoneKept);
    let found = keeps_the_zone();
    client_mutant::select(ClientMutant::None);
    assert!(found, "ZoneKept escaped");
}

/// Records of several threads under leases, beside somebody who reads whenever some more were stored, so that leases are of use and end at any load of the
/// machine.
#[test]
fn records_are_whole_and_none_is_lost() {
    const THREADS: usize = 2;
    const ROUNDS: u64 = 20_000;
    const STORED_BETWEEN: u64 = 64;
    let _alone = alone();
    let scene = scene();
    let other = scene.made("f", 64 * PAGE);
    let mount = scene.connect(&storing());
    let file = opened(&mount, "f");
    let record = |round: u64| round.to_le_bytes().repeat(PAGE / 8);
    let place = |thread: usize| (thread * 5 * PAGE + 77) as u64;
    let done: [AtomicU64; THREADS] = Default::default();
    let before = scene.count(|number| number == Number::Write);
    let asked = || scene.count(|number| number == Number::Write) - before;
    let looks = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (file, done) = (&file, &done);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        file.write_all_at(&record(round), place(thread)).expect("written");
                        done[thread].store(round, SeqCst);
                        if round % 64 == 0 {
                            let mut found = vec![0; PAGE];
                            file.read_exact_at(&mut found, place(thread)).expect("read");
                            assert!(found == record(round), "its own");
                        }
                    }
                })
            })
            .collect();
        let mut looks = 0;
        while writers.iter().any(|writer| !writer.is_finished()) {
            std::thread::sleep(Duration::from_micros(100));
            let written: u64 = done.iter().map(|done| done.load(SeqCst)).sum();
            if written.saturating_sub(asked()) < STORED_BETWEEN * (looks + 1) {
                continue;
            }
            let thread = looks as usize % THREADS;
            let least = done[thread].load(SeqCst);
            let found = scene.read(&other, place(thread), PAGE);
            let rounds: Vec<u64> = found.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
            let first = if least == 0 { rounds[0] } else { least };
            assert!(rounds.iter().all(|round| *round == rounds[0] && *round >= first), "{:?} behind {least}", &rounds[..4]);
            looks += 1;
        }
        writers.into_iter().for_each(|writer| writer.join().expect("it ends"));
        looks
    });
    println!("{} of {} writes were requests, {looks} looks", asked(), ROUNDS * THREADS as u64);
    assert!(looks > 8, "no lease was used");
    for thread in 0..THREADS {
        assert!(scene.read(&other, place(thread), PAGE) == record(ROUNDS), "the last record of thread {thread}");
    }
    assert_eq!(scene.counts().taken_away, 0);
}

/// The image is cut short behind the daemon's back: the daemon has an error, and so has the client, which goes on.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_zone_that_fails_is_the_daemons_error() {
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", 100_000);
    let mount = scene.connect(&storing());
    let file = opened(&mount, "f");
    leased(&scene, &file, 0);
    scene.image.set_len(0).expect("cut");
    assert_eq!(file.write_at(&[1; PAGE], 0), Err(Error::Errno(Errno::IO)));
    mount.ping().expect("the connection lives");
}

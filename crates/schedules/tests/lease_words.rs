//! Lease words (`tandemfs_ring`) under explored schedules: threads of a program store to lent bytes and acknowledge that, while others have the
//! lease ended, wait or take the bytes away to another place, and lend again. Nothing that was acknowledged is lost, and nobody stores to
//! bytes that are not lent. A deliberate bug for each rule must be caught.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};

use shuttle::sync::atomic::AtomicU64;
use shuttle::thread;
use tandemfs_crash::Random;
use tandemfs_ring::mutant::{self, Mutant};
use tandemfs_ring::{LeaseToken, LeaseWord, LeaseWords, Leases};
use tandemfs_schedules::{Explored, explore, rounds_or};

const THREADS: usize = 2;
/// Versions that each thread writes of its bytes.
const WRITES: u64 = 3;
/// Places that the bytes may have: each time that they are taken away they get the next one.
const PLACES: usize = 1 + THREADS * WRITES as usize;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A word for each thread, as bytes of a file.
type Place = [AtomicU64; THREADS];

/// What the daemon knows, under its lock.
struct File {
    place: usize,
    lease: Option<LeaseWord>,
}

struct Scene {
    places: [Place; PLACES],
    file: shuttle::sync::Mutex<File>,
    acknowledged: [AtomicU64; THREADS],
    words: Arc<LeaseWords>,
    takes: bool,
    /// Threads that have left say so.
    left: (shuttle::sync::Mutex<()>, shuttle::sync::Condvar),
}

impl Scene {
    /// Ends the lease, as the daemon does before anybody else has the bytes.
    fn end_lease(&self, file: &mut File) {
        let Some(lease) = file.lease.take() else { return };
        lease.revoke();
        if self.takes && lease.is_storing() {
            lease.take_away();
            for (old, new) in self.places[file.place].iter().zip(&self.places[file.place + 1]) {
                new.store(old.load(SeqCst), SeqCst);
            }
            file.place += 1;
            return;
        }
        let mut left = self.left.0.lock().expect("not poisoned");
        while lease.is_storing() {
            left = self.left.1.wait(left).expect("not poisoned");
        }
    }

    fn has_left(&self) {
        let _left = self.left.0.lock().expect("not poisoned");
        self.left.1.notify_all();
    }

    /// A write by the daemon, which then lends again. Returns what the thread may keep.
    fn write(&self, thread: usize, value: u64) -> Option<(LeaseToken, usize)> {
        let mut file = self.file.lock().expect("not poisoned");
        self.end_lease(&mut file);
        let place = &self.places[file.place];
        let least = self.acknowledged.each_ref().map(|value| value.load(SeqCst));
        let before = place.each_ref().map(|value| value.load(SeqCst));
        assert!(before.iter().zip(least).all(|(found, least)| *found >= least), "{before:?} behind {least:?}");
        thread::yield_now();
        assert_eq!(place.each_ref().map(|value| value.load(SeqCst)), before, "somebody stores to bytes that are not lent");
        place[thread].store(value, SeqCst);
        self.acknowledged[thread].store(value, SeqCst);
        file.lease = self.words.lend();
        file.lease.as_ref().map(|lease| (lease.token(), file.place))
    }

    /// A write by the program itself, if it has a lease.
    fn store(&self, leases: &Leases, thread: usize, value: u64, known: Option<(LeaseToken, usize)>) -> bool {
        let Some((token, place)) = known else { return false };
        let Some(inside) = leases.enter(token) else {
            self.has_left();
            return false;
        };
        let word = &self.places[place][thread];
        if !self.takes {
            word.store(0, SeqCst); // torn; what is taken away may be
        }
        if value.is_multiple_of(2) {
            assert!(leases.enter(token).is_none(), "a handler of a signal enters where its thread is inside");
        }
        thread::yield_now();
        word.store(value, SeqCst);
        let counts = inside.leave();
        self.has_left();
        if counts {
            self.acknowledged[thread].store(value, SeqCst);
        }
        counts
    }
}

fn leases(random: &mut Random) -> Result<(), String> {
    tandemfs_ring::begin();
    let words = LeaseWords::new().map_err(|error| error.to_string())?;
    let scene = Arc::new(Scene {
        places: Default::default(),
        file: shuttle::sync::Mutex::new(File { place: 0, lease: None }),
        acknowledged: Default::default(),
        words,
        takes: random.one_in(2),
        left: Default::default(),
    });
    let threads = [0, 1].map(|thread| {
        let scene = Arc::clone(&scene);
        thread::spawn(move || {
            let leases = scene.words.beside();
            let mut known = None;
            for value in 1..=WRITES {
                if !scene.store(&leases, thread, value, known) {
                    known = scene.write(thread, value);
                }
            }
            tandemfs_ring::finish();
        })
    });
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread".to_owned()))?;
    let mut file = scene.file.lock().expect("not poisoned");
    scene.end_lease(&mut file);
    match scene.places[file.place].each_ref().map(|value| value.load(SeqCst)) {
        [WRITES, WRITES] => Ok(()),
        found => Err(format!("{found:?} at the end")),
    }
}

fn explored(schedules: u64) -> Result<Explored, String> {
    explore("leases", schedules, leases)
}

#[test]
fn what_was_acknowledged_under_a_lease_stays() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match explored(rounds_or(3000)) {
        Ok(explored) => println!("{explored:?}"),
        Err(what) => panic!("{what}"),
    }
}

#[test]
fn every_bug_is_caught() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let bugs = [Mutant::RevokedInTwoSteps, Mutant::EntersRevoked, Mutant::EpochIgnored, Mutant::EntersTwice, Mutant::TakenUnseen];
    let mut escaped = Vec::new();
    for bug in bugs {
        mutant::select(bug);
        let result = explored(20_000);
        mutant::select(Mutant::None);
        match result {
            Err(what) => println!("{bug:?}: {}", what.lines().next().unwrap_or_default()),
            Ok(_) => escaped.push(bug),
        }
    }
    assert!(escaped.is_empty(), "{escaped:?} escaped");
}

//! Idle files (`tandemfs_ring`) under explored schedules: a client opens a file, stops using it, and uses it again, while the daemon takes its last name
//! away. Nobody uses a file that was taken back, and none that has lost its name stays idle. A deliberate bug for each rule must be caught.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};

use shuttle::sync::atomic::AtomicU64;
use shuttle::thread;
use tandemfs_crash::Random;
use tandemfs_ring::mutant::{self, Mutant};
use tandemfs_ring::{Arena, Client, Doorbell, Seen, Sizes, VersionWords, idle_places};
use tandemfs_schedules::{Explored, explore, rounds_or};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const NAME: u64 = 1;
const NODE: u64 = 77;
/// Steps of the client between two uses, in which the daemon may do all that it does.
const LATER: u32 = 12;

/// What the daemon knows, under its lock.
#[derive(Default)]
struct File {
    has_name: bool,
    /// Numbers of the client's open files.
    open: Vec<u64>,
    last: u64,
}

struct Scene {
    file: shuttle::sync::Mutex<File>,
    arena: Arc<Arena>,
    versions: Arc<VersionWords>,
    /// The number of the file that the client uses now.
    used: AtomicU64,
}

impl Scene {
    /// A request to open.
    fn open(&self) -> Option<(u64, Seen)> {
        let mut file = self.file.lock().expect("not poisoned");
        if !file.has_name {
            return None;
        }
        file.last += 1;
        let number = file.last;
        file.open.push(number);
        Some((number, Seen::of([self.versions.current(NAME)])))
    }

    /// A request to close, and what the daemon does with a file that it takes back.
    fn close(&self, number: u64) {
        let mut file = self.file.lock().expect("not poisoned");
        let at = file.open.iter().position(|open| *open == number).expect("a file is closed once");
        file.open.swap_remove(at);
    }

    fn unlink(&self) {
        let mut file = self.file.lock().expect("not poisoned");
        self.versions.raise(NAME);
        file.has_name = false;
        drop(file);
        let is_ours = |number| self.file.lock().expect("not poisoned").open.contains(&number);
        for number in self.arena.take_idle_back(NODE, is_ours) {
            self.close(number);
            assert_ne!(self.used.load(SeqCst), number, "a file is closed that the client uses");
        }
    }

    fn client(&self, client: &Client, rounds: u64) {
        let mut idle: Option<(u64, usize, Seen)> = None;
        for _ in 0..rounds {
            let again = match idle.take() {
                Some((number, place, seen)) => {
                    let is_so = client.is_still_so(&seen);
                    match client.take_idle(place, number) {
                        true if is_so => Some((number, seen)),
                        true => {
                            self.close(number);
                            None
                        }
                        false => None,
                    }
                }
                None => None,
            };
            let Some((number, seen)) = again.or_else(|| self.open()) else { return };
            self.used.store(number, SeqCst);
            thread::yield_now();
            assert!(self.file.lock().expect("not poisoned").open.contains(&number), "a file is used that was closed");
            self.used.store(0, SeqCst);
            let place = idle_places(NODE).find(|place| client.is_idle_free(*place)).expect("one file has eight places");
            client.set_idle(place, number);
            match client.is_still_so(&seen) {
                true => idle = Some((number, place, seen)),
                false if client.take_idle(place, number) => self.close(number),
                false => {}
            }
            (0..LATER).for_each(|_| thread::yield_now());
        }
    }
}

fn played(random: &mut Random) -> Result<(), String> {
    tandemfs_ring::begin();
    let arena = Arena::new(Sizes { slots: 1, data_bytes: 4096 }, Doorbell::Futex).map_err(|error| error.to_string())?;
    let versions = VersionWords::new().map_err(|error| error.to_string())?;
    let scene = Arc::new(Scene {
        file: shuttle::sync::Mutex::new(File { has_name: true, ..File::default() }),
        arena,
        versions,
        used: AtomicU64::new(0),
    });
    let rounds = 1 + random.below(3);
    let client = {
        let client = Client::beside(&scene.arena).expect("mapped");
        client.set_versions(scene.versions.beside());
        tandemfs_ring::finish(); // what was made is seen by all
        let scene = Arc::clone(&scene);
        thread::spawn(move || {
            scene.client(&client, rounds);
            tandemfs_ring::finish();
        })
    };
    scene.unlink();
    tandemfs_ring::finish();
    client.join().map_err(|_| "the client".to_owned())?;
    let left = scene.file.lock().expect("not poisoned").open.len();
    if left == 0 { Ok(()) } else { Err(format!("{left} open files of a file without a name")) }
}

fn explored(schedules: u64) -> Result<Explored, String> {
    explore("idle files", schedules, played)
}

#[test]
fn an_idle_file_is_used_again_or_given_back() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match explored(rounds_or(3000)) {
        Ok(explored) => println!("{explored:?}"),
        Err(what) => panic!("{what}"),
    }
}

#[test]
fn every_bug_is_caught() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut escaped = Vec::new();
    for bug in [Mutant::IdleTakenByTwo, Mutant::IdleUnfenced] {
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

//! The protocols between a client and the daemon (`tandemfs_ring`) under explored schedules with delayed stores: requests and answers whole,
//! nobody sleeps for ever, nothing is used again too early. A deliberate bug for each order that matters must be caught.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use shuttle::sync::mpsc;
use shuttle::thread;
use tandemfs_crash::Random;
use tandemfs_ring::mutant::{self, Mutant};
use tandemfs_ring::{
    Answer, Arena, Attributes, Client, ClientId, Control, Doorbell, End, Handler, Names, Poller, Range, Request, Seen, Sizes, Slot, Ticket,
    VersionWords,
};
use tandemfs_schedules::{Explored, explore, rounds_or};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const SIZES: Sizes = Sizes { slots: 3, data_bytes: 4096 };

/// A request of which every field says the same.
fn request(number: u64) -> Request {
    let name = [number as u8; 9];
    Request {
        operation: number as u16,
        node: number,
        length: number,
        arguments: [number, 0, 0, 0, 0, 0, number],
        names: Names::new(&name, &name).expect("short"),
        ..Request::default()
    }
}

/// An answer of which every field says the same.
fn answer(number: u64) -> Answer {
    let attributes = Attributes { node: number, block_bytes: number as u32, ..Attributes::default() };
    Answer { error: number as u32, value: number, further: !number, attributes: Some(attributes) }
}

/// The words that such an answer depends on: in the first line and behind the attributes.
fn seen(number: u64) -> Seen {
    Seen::of((0..8).map(|word| (number as u32 % 9 + word, number)))
}

/// Checks requests, and answers some of them by another thread.
struct Checking {
    pool: mpsc::Sender<Option<(u64, Range, Ticket)>>,
    one_in: u64,
    count: u64,
}

impl Handler for Checking {
    fn request(&mut self, _: ClientId, seen: &Request, ticket: Ticket) {
        let number = seen.node;
        let whole = Request { ranges: seen.ranges, ..request(number) };
        assert_eq!(*seen, whole, "a torn request");
        self.count += 1;
        if self.one_in > 0 && self.count.is_multiple_of(self.one_in) {
            self.pool.send(Some((number, seen.ranges[0], ticket))).expect("the pool lives");
        } else {
            serve(number, seen.ranges[0], ticket);
        }
    }

    fn ended(&mut self, _: ClientId, end: End) {
        assert_eq!(end, End::Removed);
    }
}

fn serve(number: u64, range: Range, ticket: Ticket) {
    if range.length > 0 {
        ticket.data(range).expect("validated").write(0, &[number as u8]);
    }
    ticket.answer_for(&answer(number), Some(&seen(number)));
}

/// A daemon with one client, and what the client does.
fn played(one_in: u64, act: impl FnOnce(&Client, &Control)) -> Result<(), String> {
    tandemfs_ring::begin();
    let arena = Arena::new(SIZES, Doorbell::Futex).map_err(|error| error.to_string())?;
    let client = Client::beside(&arena).map_err(|error| error.to_string())?;
    let poller = Poller::new(std::time::Duration::ZERO).map_err(|error| error.to_string())?;
    let control = poller.control();
    control.add(arena, Vec::new());
    let (pool, tickets) = mpsc::channel();
    let mut handler = Checking { pool: pool.clone(), one_in, count: 0 };
    let serving = thread::spawn(move || {
        poller.run(&mut handler).expect("it serves");
        tandemfs_ring::finish();
    });
    let pooled = thread::spawn(move || {
        while let Ok(Some((number, range, ticket))) = tickets.recv() {
            serve(number, range, ticket);
        }
        tandemfs_ring::finish();
    });
    act(&client, &control);
    control.stop();
    serving.join().map_err(|_| "the poller")?;
    pool.send(None).map_err(|_| "the pool")?;
    pooled.join().map_err(|_| "the pool".into())
}

/// Keeps some requests for the thread that polls, which hands the poller on before it answers them.
struct Keeping {
    one_in: u64,
    count: u64,
    kept: Option<(u64, Ticket)>,
}

impl Handler for Keeping {
    fn request(&mut self, _: ClientId, seen: &Request, ticket: Ticket) {
        let number = seen.node;
        assert_eq!(*seen, request(number), "a torn request");
        self.count += 1;
        if self.kept.is_none() && self.count.is_multiple_of(self.one_in) {
            self.kept = Some((number, ticket));
        } else {
            serve(number, Range::default(), ticket);
        }
    }

    fn ended(&mut self, _: ClientId, end: End) {
        assert_eq!(end, End::Removed);
    }
}

/// The poller goes from one thread to another whenever a request is kept; two clients, of which one may have gone to sleep, ask meanwhile.
fn handed_on(random: &mut Random) -> Result<(), String> {
    type Baton = Option<(Poller, Keeping)>;
    let (counts, one_in) = ([1 + random.below(4), random.below(3)], 1 + random.below(2));
    tandemfs_ring::begin();
    let poller = Poller::new(std::time::Duration::ZERO).map_err(|error| error.to_string())?;
    let control = poller.control();
    let callers = counts.map(|count| -> Result<_, String> {
        let arena = Arena::new(SIZES, Doorbell::Futex).map_err(|error| error.to_string())?;
        let client = Client::beside(&arena).map_err(|error| error.to_string())?;
        control.add(arena, Vec::new());
        Ok(thread::spawn(move || {
            let mut slot = client.slot().expect("a slot");
            (1..=count).for_each(|number| call(&mut slot, number));
            tandemfs_ring::finish();
        }))
    });
    let channels: [(mpsc::Sender<Baton>, mpsc::Receiver<Baton>); 3] = std::array::from_fn(|_| mpsc::channel());
    let senders: Vec<_> = channels.iter().map(|(sender, _)| sender.clone()).collect();
    senders[0].send(Some((poller, Keeping { one_in, count: 0, kept: None }))).map_err(|_| "nobody polls")?;
    let threads: Vec<_> = (0..)
        .zip(channels)
        .map(|(index, (_, batons))| {
            let senders = senders.clone();
            thread::spawn(move || {
                while let Ok(Some((poller, mut keeping))) = batons.recv() {
                    match poller.run_until(&mut keeping, |keeping| keeping.kept.is_some()).expect("it serves") {
                        Some(poller) => {
                            let (number, ticket) = keeping.kept.take().expect("the reason to leave");
                            tandemfs_ring::finish(); // a channel orders stores; the runtime's does not know of them
                            senders[(index + 1) % senders.len()].send(Some((poller, keeping))).expect("it waits");
                            serve(number, Range::default(), ticket);
                        }
                        None => senders.iter().for_each(|sender| drop(sender.send(None))),
                    }
                }
                tandemfs_ring::finish();
            })
        })
        .collect();
    for caller in callers {
        caller?.join().map_err(|_| "a caller")?;
    }
    control.stop();
    threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a poller".into()))
}

fn call(slot: &mut Slot, number: u64) {
    assert_eq!(slot.call(&request(number)), Ok(answer(number)), "a torn answer, or that of another request");
    assert_eq!(slot.seen(), seen(number), "words of another answer");
}

/// Two threads of a client, each with a slot, one of which it may give back and take again.
fn calls(random: &mut Random) -> Result<(), String> {
    let counts = [1 + random.below(3), random.below(4)];
    played(random.below(3), |client, _| {
        let threads = counts.map(|count| {
            let client = client.clone();
            thread::spawn(move || {
                let mut slot = client.slot().expect("a slot a thread");
                for turn in 0..count {
                    call(&mut slot, 1 + turn + (count << 4));
                    if turn == 0 {
                        drop(slot);
                        slot = client.slot().expect("a slot a thread");
                    }
                }
                tandemfs_ring::finish();
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    })
}

/// Calls in one slot that another thread answers.
fn pooled(_: &mut Random) -> Result<(), String> {
    played(1, |client, _| {
        let mut slot = client.slot().expect("a slot");
        (1..=6).for_each(|number| call(&mut slot, number));
    })
}

/// A caller leaves in the middle. Its slot and its buffer are taken again as soon as they can be had.
fn leaving(random: &mut Random) -> Result<(), String> {
    let (keeps_slot, tries) = (random.one_in(2), 1 + random.below(20));
    played(random.below(3), |client, _| {
        let mut slot = client.slot().expect("a slot");
        let buffer = client.buffer(4096).expect("all of it");
        let first = Request { ranges: [buffer.range(), Range::default()], ..request(7) };
        drop(slot.submit(&first, vec![buffer]).expect("served"));
        let mut slot = if keeps_slot {
            slot
        } else {
            drop(slot);
            client.slot().expect("this one or another")
        };
        for _ in 0..tries {
            if let Some(mut buffer) = client.buffer(4096) {
                buffer.write(0, &[1]);
                thread::yield_now();
                thread::yield_now();
                let mut byte = [0];
                buffer.read(0, &mut byte);
                assert_eq!(byte, [1], "the daemon writes into a buffer of another request");
                break;
            }
        }
        call(&mut slot, 9);
    })
}

/// The daemon ends amid calls: each is answered or ends.
fn ending(random: &mut Random) -> Result<(), String> {
    let count = 1 + random.below(3);
    played(random.below(3), |client, control| {
        let mut slot = client.slot().expect("a slot");
        let caller = thread::spawn(move || {
            for number in 1..=count {
                match slot.call(&request(number)) {
                    Ok(given) => assert_eq!(given, answer(number)),
                    Err(tandemfs_ring::Ended) => break,
                }
            }
            tandemfs_ring::finish();
        });
        control.stop();
        caller.join().expect("it ends");
    })
}

/// Things of two locks that share one version word, changed by two threads; two clients give answers that they know, or look. What anybody
/// has said of a thing, or its changer has been told, is the least that others say afterwards.
fn versions(random: &mut Random) -> Result<(), String> {
    const THINGS: usize = 2;
    tandemfs_ring::begin();
    let words = VersionWords::new().map_err(|error| error.to_string())?;
    let order = Order { late: BEHIND_LOCK.load(Relaxed) == 1, noted_late: BEHIND_LOCK.load(Relaxed) == 2 };
    let counts: [u64; THINGS] = [1 + random.below(3), 1 + random.below(3)];
    let things: Arc<[shuttle::sync::Mutex<u64>; THINGS]> = Arc::default();
    let floors: Arc<[shuttle::sync::atomic::AtomicU64; THINGS]> = Arc::default();
    let changers = counts.into_iter().enumerate().map(|(thing, count)| {
        let (words, things, floors) = (Arc::clone(&words), Arc::clone(&things), Arc::clone(&floors));
        thread::spawn(move || {
            for value in 1..=count {
                let mut state = things[thing].lock().expect("not poisoned");
                if !order.late {
                    words.raise(7); // both hash to it
                }
                *state = value;
                drop(state);
                if order.late {
                    thread::yield_now();
                    words.raise(7);
                }
                floors[thing].fetch_max(value, SeqCst);
            }
            tandemfs_ring::finish();
        })
    });
    let changers: Vec<_> = changers.collect();
    let clients = [0, 1].map(|_| {
        let (words, things, floors) = (Arc::clone(&words), Arc::clone(&things), Arc::clone(&floors));
        thread::spawn(move || {
            let view = words.beside();
            let mut known: [Option<(u64, Seen)>; THINGS] = [None; THINGS];
            for turn in 0..6 {
                let thing = turn % THINGS;
                let least = floors[thing].load(SeqCst);
                let said = match known[thing] {
                    Some((value, seen)) if view.agree(&seen) => value,
                    _ => {
                        let state = things[thing].lock().expect("not poisoned");
                        let value = *state;
                        let noted = (!order.noted_late).then(|| words.current(7));
                        drop(state);
                        let noted = noted.unwrap_or_else(|| {
                            thread::yield_now();
                            words.current(7)
                        });
                        known[thing] = Some((value, Seen::of([noted])));
                        value
                    }
                };
                assert!(said >= least, "{said} is said of a thing that was seen at {least}");
                floors[thing].fetch_max(said, SeqCst);
            }
            tandemfs_ring::finish();
        })
    });
    changers.into_iter().chain(clients).try_for_each(|thread| thread.join().map_err(|_| "a thread".into()))
}

/// Bytes that a thread changes behind its raise, and two clients load: what they take is whole, and no older than what was acknowledged.
fn loads(random: &mut Random) -> Result<(), String> {
    const WORDS: usize = 3;
    tandemfs_ring::begin();
    let words = VersionWords::new().map_err(|error| error.to_string())?;
    let bytes: Arc<[shuttle::sync::atomic::AtomicU64; WORDS]> = Arc::default();
    let state: Arc<shuttle::sync::Mutex<()>> = Arc::default();
    let acknowledged: Arc<shuttle::sync::atomic::AtomicU64> = Arc::default();
    let count = 1 + random.below(3);
    let changer = {
        let (words, bytes, state, acknowledged) = (Arc::clone(&words), Arc::clone(&bytes), Arc::clone(&state), Arc::clone(&acknowledged));
        thread::spawn(move || {
            for value in 1..=count {
                let alone = state.lock().expect("not poisoned");
                words.raise(7);
                bytes.iter().for_each(|word| word.store(value, SeqCst));
                drop(alone);
                acknowledged.store(value, SeqCst);
            }
            tandemfs_ring::finish();
        })
    };
    let clients = [0, 1].map(|_| {
        let (words, bytes, state, acknowledged) = (Arc::clone(&words), Arc::clone(&bytes), Arc::clone(&state), Arc::clone(&acknowledged));
        thread::spawn(move || {
            let arena = Arena::new(Sizes { slots: 1, data_bytes: 4096 }, Doorbell::Futex).expect("made");
            let client = Client::beside(&arena).expect("mapped");
            client.set_versions(words.beside());
            let lent = || {
                let _alone = state.lock().expect("not poisoned");
                Seen::of([words.current(7)])
            };
            let mut seen = lent();
            for _ in 0..4 {
                let least = acknowledged.load(SeqCst);
                match client.load_while_so(&seen, || Some(bytes.each_ref().map(|word| word.load(SeqCst)))) {
                    Some(loaded) => {
                        assert!(loaded == [loaded[0]; WORDS], "{loaded:?} is of several changes");
                        assert!(loaded[0] >= least, "{} was loaded behind {least}", loaded[0]);
                    }
                    None => seen = lent(),
                }
            }
            tandemfs_ring::finish();
        })
    });
    clients.into_iter().chain([changer]).try_for_each(|thread| thread.join().map_err(|_| "a thread".into()))
}

/// A wrong order of the scene itself: 1 a word is raised when the change can be seen already ([VER3]), 2 it is loaded when the thing may have
/// changed since it was read ([VER4]).
static BEHIND_LOCK: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

#[derive(Clone, Copy)]
struct Order {
    late: bool,
    noted_late: bool,
}

#[test]
fn a_word_behind_its_lock_is_caught() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for wrong in [1, 2] {
        BEHIND_LOCK.store(wrong, Relaxed);
        let result = explored("wrong order", versions, 20_000);
        BEHIND_LOCK.store(0, Relaxed);
        println!("{}", result.expect_err("it escaped").lines().next().unwrap_or_default());
    }
}

type Scene = fn(&mut Random) -> Result<(), String>;

fn explored(name: &str, scene: Scene, schedules: u64) -> Result<Explored, String> {
    explore(name, schedules, scene)
}

#[test]
fn no_schedule_breaks_a_protocol() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let scenes: [(&str, Scene); 7] = [
        ("calls", calls),
        ("pooled", pooled),
        ("leaving", leaving),
        ("ending", ending),
        ("versions", versions),
        ("loads", loads),
        ("handed on", handed_on),
    ];
    for (name, scene) in scenes {
        match explored(name, scene, rounds_or(1500)) {
            Ok(explored) => println!("{name}: {explored:?}"),
            Err(what) => panic!("{what}"),
        }
    }
}

#[test]
fn every_wrong_order_is_caught() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let bugs: [(Mutant, Scene); 19] = [
        (Mutant::TurnBeforeHead, calls),
        (Mutant::HeadBeforeTurn, calls),
        (Mutant::AnswerAfterTurn, calls),
        (Mutant::BusyPastAnswer, pooled),
        (Mutant::UsedRaisedLate, calls),
        (Mutant::AnswersWithoutFence, calls),
        (Mutant::SleepValueReadLate, calls),
        (Mutant::AbandonedReusedEarly, leaving),
        (Mutant::BuffersReturnedEarly, leaving),
        (Mutant::EndLeavesWords, ending),
        (Mutant::RingsWithoutFence, calls),
        (Mutant::DozesWithoutFence, calls),
        (Mutant::AsleepAfterScan, calls),
        (Mutant::BellReadAfterScan, calls),
        (Mutant::ScanLeftOut, calls),
        (Mutant::RaisedInTwoSteps, versions),
        (Mutant::LooksOnce, loads),
        (Mutant::CollectedLeftBehind, handed_on),
        (Mutant::SleepsBeforeLeaving, handed_on),
    ];
    let mut escaped = Vec::new();
    for (bug, scene) in bugs.into_iter().chain([(Mutant::RingIgnored, calls as Scene)]) {
        mutant::select(bug);
        let result = explored("mutant", scene, 20_000);
        mutant::select(Mutant::None);
        match result {
            Err(what) => println!("{bug:?}: {}", what.lines().next().unwrap_or_default()),
            Ok(_) => escaped.push(bug),
        }
    }
    assert!(escaped.is_empty(), "{escaped:?} escaped");
}

/// Shared by the threads of a scene, the poller's thread included.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Arc<Arena>>();
    is_shared::<Client>();
    is_shared::<Control>();
};

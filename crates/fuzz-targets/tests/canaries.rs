//! Every target can fail: its checks are given wrong answers. A target that checks the file system as a whole runs with a deliberate bug in
//! it (`crates/fs/src/mutant.rs`). A mutant is global to the process, so one test runs them all.

mod support;

use std::panic::catch_unwind;
use std::time::Duration;

use support::Guard;
use tandemfs_fs::mutant::{self, Mutant};
use tandemfs_fuzz_targets::TARGETS;
use tandemfs_ring::mutant::Mutant as RingMutant;
use tandemfs_ring::{Arena, ClientId, Doorbell, End, Handler, Poller, Request, Sizes, Ticket};

/// Deliberate bugs that the corpus of a target must detect.
const MUTANTS: &[(&str, Mutant)] = &[
    ("image", Mutant::SecondSuperblockSkipped),
    ("image", Mutant::OrphansForgotten),
    ("image", Mutant::MapBeyondMarkTaken),
    ("operations", Mutant::StaleTailForgotten),
    ("operations", Mutant::OrphansForgotten),
    ("operations", Mutant::RecordNotFlushed),
    ("operations", Mutant::BlocksNotFlushed),
    ("links", Mutant::CandidateOfAnotherInode),
    ("door", Mutant::SecondSuperblockSkipped),
];

#[test]
fn every_lie_is_noticed() {
    for target in TARGETS {
        let judged_as_a_whole = MUTANTS.iter().any(|(name, _)| *name == target.name);
        assert!(!target.lies.is_empty() || judged_as_a_whole, "nothing shows that '{}' can fail", target.name);
        for (name, lie) in target.lies {
            assert!(catch_unwind(lie).is_err(), "{}: {name}", target.name);
        }
    }
}

/// The same for the ring, whose bugs are its own.
const RING_MUTANTS: &[RingMutant] = &[
    RingMutant::RangeUnchecked,
    RingMutant::NamesUnchecked,
    RingMutant::HeadReadTwice,
    RingMutant::UsedBelieved,
    RingMutant::ServedWithoutEnd,
];

#[test]
fn every_deliberate_bug_of_the_ring_is_met_by_its_corpus() {
    let target = TARGETS.iter().find(|target| target.name == "ring").expect("a target");
    let corpus = (target.corpus)();
    let mut missed = Vec::new();
    for bug in RING_MUTANTS {
        tandemfs_ring::mutant::select(*bug);
        let caught = corpus.iter().position(|input| Guard::attempt(target.run, input).is_err());
        tandemfs_ring::mutant::select(RingMutant::None);
        match caught {
            Some(index) => println!("ring: {bug:?} met by input {index} of {}", corpus.len()),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
    // A bug that takes more rounds than an input has.
    assert!(rings_for_nothing_end());
    tandemfs_ring::mutant::select(RingMutant::EmptyRingsUncounted);
    let ends = rings_for_nothing_end();
    tandemfs_ring::mutant::select(RingMutant::None);
    assert!(!ends, "EmptyRingsUncounted");
}

#[derive(Default)]
struct Ends(usize);

impl Handler for Ends {
    fn request(&mut self, _: ClientId, _: &Request, _: Ticket) {}

    fn ended(&mut self, _: ClientId, _: End) {
        self.0 += 1;
    }
}

/// [TRU5] of the ring: whether a client that rings and asks nothing is found out.
fn rings_for_nothing_end() -> bool {
    let mut poller = Poller::new(Duration::ZERO).expect("a poller");
    let sizes = Sizes { slots: 4, data_bytes: 8192 };
    let arena = Arena::new(sizes, Doorbell::Eventfd).expect("an arena");
    let bell = arena.descriptors().bell.expect("an eventfd").try_clone_to_owned().expect("a descriptor");
    poller.control().add(arena, Vec::new());
    let mut ends = Ends::default();
    // It dozes only when it looks at the clock, every some dozens of rounds.
    (0..50_000).any(|_| {
        rustix::io::write(&bell, &1_u64.to_ne_bytes()).expect("it rings");
        poller.round(&mut ends).expect("a round");
        ends.0 > 0
    })
}

#[test]
fn every_deliberate_bug_is_met_by_the_corpus() {
    // Creates the image shapes before any bug is active.
    TARGETS.iter().filter(|target| target.name == "image").for_each(|image| Guard::run(image, &[]));
    let mut missed = Vec::new();
    for (name, bug) in MUTANTS {
        let target = TARGETS.iter().find(|target| target.name == *name).expect("a target");
        let corpus = (target.corpus)();
        mutant::select(*bug);
        let caught = corpus.iter().position(|input| Guard::attempt(target.run, input).is_err());
        mutant::select(Mutant::None);
        match caught {
            Some(index) => println!("{name}: {bug:?} met by input {index} of {}", corpus.len()),
            None => missed.push((name, bug)),
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

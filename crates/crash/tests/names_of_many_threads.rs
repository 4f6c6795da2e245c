//! Real threads on names: rounds of a few calls each; some sequential order of its calls must explain every round (linearizability).

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use tandemfs_crash::{
    Bound, Call, History, MemoryDevice, Model, Operation, PausingDevice, Random, Setting, Step, Tree, check_device, mount, mount_device,
    seed_or,
};
use tandemfs_device::PersistenceDomain;
use tandemfs_fs::{FileSystem, RenameMode};

use Operation::*;
use Step::{Do, List, Look};

const THREADS: usize = 4;
const CALLS: usize = 3;
const ROUNDS: usize = 250;

const DIRECTORIES: [&str; 2] = ["p", "q"];
const NAMES: [&str; 8] = ["p/a", "p/b", "p/c", "p/d", "q/a", "q/b", "q/c", "q/d"];

/// A step on few names, so that threads meet. Only names that stood when the round began are bound, and linked.
fn draw(random: &mut Random, bound: &[&'static str]) -> Step {
    let one = |random: &mut Random, of: &[&'static str]| -> &'static str { of[random.below(of.len() as u64) as usize] };
    let name = |random: &mut Random| one(random, &NAMES);
    match random.below(12) {
        0..=2 => Do(Create(name(random))),
        3..=4 => Do(Unlink(name(random))),
        5..=6 => Do(Rename(name(random), name(random), RenameMode::Replace)),
        7 => Do(Rename(name(random), name(random), RenameMode::Exchange)),
        8 if !bound.is_empty() => Do(Link(one(random, bound), name(random))),
        8 => Do(Rename(name(random), name(random), RenameMode::NoReplace)),
        9..=10 => Look(name(random)),
        _ => List(one(random, &DIRECTORIES)),
    }
}

/// Runs one list of steps a thread; times are ticks of one counter.
fn run(fs: &FileSystem, bound: &Bound, steps: &[Vec<Step>]) -> Result<History, String> {
    let (clock, barrier, calls) = (AtomicUsize::new(0), Barrier::new(steps.len()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let running: Vec<_> = steps
            .iter()
            .enumerate()
            .map(|(thread, steps)| {
                let (clock, barrier, calls) = (&clock, &barrier, &calls);
                scope.spawn(move || -> Result<(), String> {
                    barrier.wait();
                    for step in steps {
                        let begun = clock.fetch_add(1, SeqCst);
                        let answer = bound.perform(fs, step)?;
                        let returned = clock.fetch_add(1, SeqCst);
                        let call = Call { thread, step: *step, begun, returned: Some((returned, answer)) };
                        calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
                    }
                    Ok(())
                })
            })
            .collect();
        running.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
    })?;
    Ok(History(calls.into_inner().unwrap_or_else(PoisonError::into_inner)))
}

/// How many calls overlapped another one's time.
fn overlapping(history: &History) -> usize {
    let times = |call: &Call| (call.begun, call.returned.as_ref().map_or(usize::MAX, |(returned, _)| *returned));
    let overlaps = |a: &Call, b: &Call| a != b && times(a).0 < times(b).1 && times(b).0 < times(a).1;
    history.0.iter().filter(|call| history.0.iter().any(|other| overlaps(call, other))).count()
}

#[test]
fn every_round_is_linearizable() {
    let seed = seed_or(31);
    let mut random = Random::new(seed);
    let setting = Setting::small(PersistenceDomain::Gpf, 4 << 10);
    let device: MemoryDevice = setting.format();
    // Others go on while the device works; else threads of few cores hardly meet.
    let slow = PausingDevice::new(device.clone(), std::thread::yield_now);
    let fs = mount_device(Arc::new(slow), &setting.mount).expect("mounts");
    let mut model = Model::default();
    let directories = Bound::new(&fs, &[]).expect("the root");
    for path in DIRECTORIES {
        directories.perform(&fs, &Do(MakeDirectory(path))).expect("makes");
        model.apply(&MakeDirectory(path)).expect("makes");
    }
    let (mut calls, mut overlapped) = (0, 0);
    for round in 0..ROUNDS {
        let tree = model.tree();
        let there: Vec<&'static str> = NAMES.into_iter().filter(|name| tree.0.contains_key(name.as_bytes())).collect();
        let paths = [&DIRECTORIES[..], &there].concat();
        model.bind(&paths);
        let bound = Bound::new(&fs, &paths).expect("what the model has is there");
        let steps: Vec<Vec<Step>> = (0..THREADS).map(|_| (0..CALLS).map(|_| draw(&mut random, &there)).collect()).collect();
        let explained = run(&fs, &bound, &steps).and_then(|history| {
            calls += history.0.len();
            overlapped += overlapping(&history);
            history.explain(&model, &Tree::read(&fs)?)
        });
        model = explained.unwrap_or_else(|what| panic!("TANDEMFS_SEED={seed}, round {round}: {what}"));
        // An inode number may belong to another file after a checkpoint, and bound ones must not within a round.
        fs.checkpoint().expect("checkpoints");
    }
    println!("{ROUNDS} rounds, {calls} calls, {overlapped} of them beside another");
    assert!(overlapped > calls / 20, "the threads hardly met: {overlapped} of {calls} calls");
    let recovered = mount(&device.fork(), &setting.mount).expect("mounts after a crash");
    assert_eq!(Tree::read(&recovered).expect("reads").difference(&model.tree()), None);
    assert_eq!(recovered.space(), fs.space());
    fs.unmount().expect("unmounts");
    check_device(&device, false).expect("nothing to find");
}

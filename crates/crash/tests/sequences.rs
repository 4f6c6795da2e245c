//! Crash states of all sequences of one and two operations over a bounded set, in the manner of ACE, and of sampled longer ones: in each
//! domain, in both modes, and with zones and rings at their limits.

use tandemfs_crash::{Effort, Explorer, Operation, Random, Scene, Setting, explore_sequences, pairs, seed_or, settings, singles, triples};
use tandemfs_device::PersistenceDomain;

const BLOCK: u32 = 64 << 10;

/// Explores every sequence, the cuts in its last operation.
fn explore(scene: &Scene, sequences: &[Vec<Operation>], effort: Effort) {
    let seed = seed_or(7);
    let setting = &scene.setting;
    let mode = if setting.write_back_cache { "relaxed" } else { "strict" };
    match explore_sequences(scene, sequences, effort, seed) {
        Ok(tried) => {
            println!("{}, {}, {mode}, blocks of {}, seed {seed}: {tried:?}", scene.name, setting.domain, setting.format.block_bytes)
        }
        Err(what) => panic!("{}, seed {seed}: {what}", scene.name),
    }
}

fn small(domain: PersistenceDomain) -> Scene {
    Scene::small(&Setting::small(domain, BLOCK))
}

fn relaxed(domain: PersistenceDomain) -> Scene {
    Scene::small(&Setting::small(domain, BLOCK).relaxed())
}

#[test]
fn single_operations_adr() {
    explore(&small(PersistenceDomain::Adr), &singles(), Effort { states: 1 << 8, ..Effort::EXHAUSTIVE });
}

#[test]
fn single_operations_gpf() {
    explore(&small(PersistenceDomain::Gpf), &singles(), Effort { states: 1 << 5, ..Effort::EXHAUSTIVE });
}

#[test]
fn single_operations_process() {
    explore(&small(PersistenceDomain::Process), &singles(), Effort { states: 1 << 4, ..Effort::EXHAUSTIVE });
}

#[test]
fn single_operations_in_every_setting() {
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for setting in settings(domain) {
            explore(&Scene::small(&setting), &singles(), Effort { states: 4, ..Effort::QUICK });
        }
    }
}

#[test]
fn single_operations_at_the_limits() {
    for (domain, block_bytes) in [(PersistenceDomain::Adr, BLOCK), (PersistenceDomain::Gpf, BLOCK), (PersistenceDomain::Adr, 4 << 10)] {
        for scene in Scene::all(&Setting::small(domain, block_bytes)).unwrap_or_else(|what| panic!("{what}")) {
            explore(&scene, &singles(), Effort { states: 4, recovery_one_in: 300, ..Effort::QUICK });
        }
    }
}

#[test]
fn pairs_of_operations_adr() {
    explore(&small(PersistenceDomain::Adr), &pairs(), Effort::QUICK);
}

#[test]
fn pairs_of_operations_gpf() {
    explore(&small(PersistenceDomain::Gpf), &pairs(), Effort { states: 3, ..Effort::QUICK });
}

#[test]
fn pairs_of_operations_process() {
    explore(&small(PersistenceDomain::Process), &pairs(), Effort { states: 2, ..Effort::QUICK });
}

#[test]
fn pairs_of_operations_relaxed_adr() {
    explore(&relaxed(PersistenceDomain::Adr), &pairs(), Effort { states: 4, ..Effort::QUICK });
}

#[test]
fn pairs_of_operations_relaxed_gpf() {
    explore(&relaxed(PersistenceDomain::Gpf), &pairs(), Effort { states: 2, ..Effort::QUICK });
}

#[test]
fn sampled_triples() {
    let mut random = Random::new(seed_or(13));
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        explore(&small(domain), &triples(150, &mut random), Effort { states: 4, ..Effort::QUICK });
    }
}

/// Longer workloads on the smallest zones: full zones, growing regions, checkpoints and write-back in the middle of the last operations.
#[test]
fn random_workloads() {
    let seed = seed_or(11);
    for (domain, block_bytes) in [
        (PersistenceDomain::Adr, 64 << 10),
        (PersistenceDomain::Gpf, 4 << 10),
        (PersistenceDomain::Adr, 4 << 10),
        (PersistenceDomain::Process, 64 << 10),
    ] {
        let effort = Effort { states: 8, recovery_one_in: 200, ..Effort::QUICK };
        let mut explorer = Explorer::new(&Scene::small(&Setting::small(domain, block_bytes)), effort, seed).expect("prepares");
        for _ in 0..20 {
            if let Err(what) = explorer.explore_random(40, 8) {
                panic!("TANDEMFS_SEED={seed}: {what}");
            }
        }
        println!("{domain}, blocks of {block_bytes}, seed {seed}: {:?}", explorer.tried);
    }
}

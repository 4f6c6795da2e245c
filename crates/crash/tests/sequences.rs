//! Crash states of all sequences of one and two operations over a bounded set, in the manner of ACE.

use tandemfs_crash::{ALPHABET, Effort, Explorer, PREPARATION, Setting, seed_or};
use tandemfs_device::PersistenceDomain;

/// Explores every sequence; returns a summary or the first failure.
fn explore(domain: PersistenceDomain, pairs: bool, effort: Effort) -> Result<String, String> {
    let seed = seed_or(7);
    let mut explorer = Explorer::new(&Setting::small(domain, 64 << 10), PREPARATION, effort, seed)?;
    for first in ALPHABET {
        if !pairs {
            explorer.explore(&[*first], 0)?;
            continue;
        }
        for second in ALPHABET {
            explorer.explore(&[*first, *second], 1)?;
        }
    }
    Ok(format!("{domain}, seed {seed}: {:?}", explorer.tried))
}

fn must(result: Result<String, String>) {
    match result {
        Ok(summary) => println!("{summary}"),
        Err(what) => panic!("{what}"),
    }
}

#[test]
fn single_operations_adr() {
    must(explore(PersistenceDomain::Adr, false, Effort { states: 1 << 8, ..Effort::EXHAUSTIVE }));
}

#[test]
fn single_operations_gpf() {
    must(explore(PersistenceDomain::Gpf, false, Effort { states: 1 << 5, ..Effort::EXHAUSTIVE }));
}

#[test]
fn pairs_of_operations_adr() {
    must(explore(PersistenceDomain::Adr, true, Effort::QUICK));
}

#[test]
fn pairs_of_operations_gpf() {
    must(explore(PersistenceDomain::Gpf, true, Effort { states: 3, ..Effort::QUICK }));
}

/// Longer workloads on the smallest zones: full zones, growing regions, checkpoints and write-back in the middle of the last operations.
#[test]
fn random_workloads() {
    let seed = seed_or(11);
    for (domain, block_bytes) in [(PersistenceDomain::Adr, 64 << 10), (PersistenceDomain::Gpf, 4 << 10), (PersistenceDomain::Adr, 4 << 10)]
    {
        let effort = Effort { states: 8, recovery_one_in: 200, ..Effort::QUICK };
        let mut explorer = Explorer::new(&Setting::small(domain, block_bytes), PREPARATION, effort, seed).expect("prepares");
        for _ in 0..20 {
            if let Err(what) = explorer.explore_random(40, 8) {
                panic!("TANDEMFS_SEED={seed}: {what}");
            }
        }
        println!("{domain}, blocks of {block_bytes}, seed {seed}: {:?}", explorer.tried);
    }
}

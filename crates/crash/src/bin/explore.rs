//! Explores crash states for as long as told: `cargo run --release -p tandemfs-crash --bin explore -- [SECONDS] [SEED]`.
//!
//! First every single operation exhaustively, then every pair, then sampled triples and random workloads with rising seeds. It prints what
//! it has tried after each round and ends with the first failure, whose seed and operations repeat it.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tandemfs_crash::{ALPHABET, Effort, Explorer, Operation, PREPARATION, Random, Setting};
use tandemfs_device::PersistenceDomain;

/// Sequences that are explored in one round.
fn round(explorer: &mut Explorer, round: u64, random: &mut Random, until: Instant) -> Result<(), String> {
    let mut sequences: Vec<Vec<Operation>> = match round {
        0 => ALPHABET.iter().map(|operation| vec![*operation]).collect(),
        1 => ALPHABET.iter().flat_map(|first| ALPHABET.iter().map(|second| vec![*first, *second])).collect(),
        _ => (0..100).map(|_| (0..3).map(|_| *random.pick(ALPHABET)).collect()).collect(),
    };
    if round > 1 {
        for _ in 0..20 {
            explorer.explore_random(60, 10)?;
        }
    }
    for sequence in sequences.drain(..) {
        if Instant::now() > until {
            break;
        }
        let last = sequence.len() - 1;
        explorer.explore(&sequence, last)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (seconds, seed) = match (arguments.next(), arguments.next()) {
        (None, _) => (60, 1),
        (Some(Ok(seconds)), None) => (seconds, 1),
        (Some(Ok(seconds)), Some(Ok(seed))) => (seconds, seed),
        _ => {
            eprintln!("usage: explore [SECONDS] [SEED]");
            return ExitCode::from(2);
        }
    };
    let start = Instant::now();
    let until = start + Duration::from_secs(seconds);
    for step in 0.. {
        for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf] {
            for block_bytes in [64 << 10, 4 << 10] {
                if Instant::now() > until {
                    return ExitCode::SUCCESS;
                }
                let seed = seed + step;
                let effort = match (step, domain) {
                    (0, PersistenceDomain::Adr) => Effort::EXHAUSTIVE,
                    (0, _) => Effort { states: 64, ..Effort::EXHAUSTIVE },
                    _ => Effort { states: 16, work_one_in: 10, recovery_one_in: 100, ..Effort::EXHAUSTIVE },
                };
                let explored = Explorer::new(&Setting::small(domain, block_bytes), PREPARATION, effort, seed).and_then(|mut explorer| {
                    round(&mut explorer, step, &mut Random::new(seed), until)?;
                    Ok(explorer.tried)
                });
                match explored {
                    Ok(tried) => println!(
                        "{:5} s, round {step}, {domain}, blocks of {block_bytes}, seed {seed}: {tried:?}",
                        start.elapsed().as_secs()
                    ),
                    Err(what) => {
                        eprintln!("round {step}, {domain}, blocks of {block_bytes}, seed {seed}:\n{what}");
                        return ExitCode::FAILURE;
                    }
                }
            }
        }
    }
    ExitCode::SUCCESS
}

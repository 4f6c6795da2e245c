//! Every target on its corpus and on seeded random inputs, for a bounded time. `TANDEMFS_FUZZ_RUNS` multiplies the number of executions,
//! `TANDEMFS_SEED` sets the first seed, `TANDEMFS_FUZZ_TARGET` chooses one target. A failure prints the input; `TANDEMFS_FUZZ_INPUT=1,2,3`
//! (with the target) runs that input again.

mod support;

use std::time::Instant;

use support::Guard;
use tandemfs_crash::{Random, seed_or};
use tandemfs_fuzz_targets::{TARGETS, Target};

/// Executions of an ordinary run.
fn executions(target: &Target) -> u64 {
    let factor = std::env::var("TANDEMFS_FUZZ_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    factor
        * match target.name {
            "image" => 500,
            "operations" => 300,
            "links" => 150,
            "door" => 300,
            "wire" => 1000,
            "header" => 300,
            "drive" => 100,
            "ring" => 1000,
            _ => 5000,
        }
}

/// A changed corpus input, two joined inputs, or random bytes.
fn draw(corpus: &[Vec<u8>], random: &mut Random, longest: usize) -> Vec<u8> {
    let mut input = match random.below(4) {
        0 => Vec::new(),
        1 => [&random.pick(corpus)[..], &random.pick(corpus)[..]].concat(),
        _ => random.pick(corpus).clone(),
    };
    for _ in 0..random.below(6) {
        if !input.is_empty() {
            let at = random.below(input.len() as u64) as usize;
            input[at] = random.next() as u8;
        }
    }
    let noise = random.below(longest as u64 / 2);
    input.extend((0..noise).map(|_| random.next() as u8));
    input.truncate(longest);
    input
}

fn wanted() -> impl Iterator<Item = &'static Target> {
    let only = std::env::var("TANDEMFS_FUZZ_TARGET").ok();
    TARGETS.iter().filter(move |target| only.as_ref().is_none_or(|only| only == target.name))
}

/// The input from the environment, as a failure prints it.
fn given() -> Option<Vec<u8>> {
    let text = std::env::var("TANDEMFS_FUZZ_INPUT").ok()?;
    let numbers = text.trim_matches(['&', '[', ']']).split(',').map(|number| number.trim().parse());
    Some(numbers.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("TANDEMFS_FUZZ_INPUT={text}: {error}")))
}

#[test]
fn corpora_run_clean() {
    for target in wanted() {
        let (start, corpus) = (Instant::now(), (target.corpus)());
        for input in &corpus {
            assert!(input.len() <= target.input_bytes_max, "{}: an input of {} B", target.name, input.len());
            Guard::run(target, input);
        }
        println!("{}: {} inputs of the corpus in {:.1} s", target.name, corpus.len(), start.elapsed().as_secs_f64());
    }
}

#[test]
fn drawn_inputs_find_nothing() {
    let seed = seed_or(1);
    for target in wanted() {
        if let Some(input) = given() {
            Guard::run(target, &input);
            continue;
        }
        let (start, corpus, count) = (Instant::now(), (target.corpus)(), executions(target));
        for execution in 0..count {
            let mut random = Random::new(seed.wrapping_mul(0x1_0000_0000).wrapping_add(execution));
            let input = draw(&corpus, &mut random, target.input_bytes_max);
            Guard::run(target, &input);
        }
        println!("{}: {count} executions from TANDEMFS_SEED={seed} in {:.1} s", target.name, start.elapsed().as_secs_f64());
    }
}

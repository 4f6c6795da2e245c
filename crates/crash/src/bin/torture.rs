//! Runs crash states, workloads against the model and faults for a given time: `cargo run --release -p tandemfs-crash --bin torture --
//! --help`.
//!
//! The work is a numbered list of units: all single operations exhaustively in every setting and at every limit, then all pairs, then,
//! without end, triples, random workloads and model runs with rising seeds. A state file names the next unit, so a run continues where the
//! last one stopped. A unit that fails stays the next one.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use serde::{Deserialize, Serialize};
use tandemfs_crash::{
    ALPHABET, Compared, Effort, Explorer, Random, Scene, Setting, Tried, compare_with_model, explore_sequences, pairs_of, settings,
    singles, stay_on_one_cpu, triples,
};
use tandemfs_device::PersistenceDomain;

/// Explores crash states and random workloads; stops at the first failure, which it prints with what repeats it.
#[derive(Debug, Parser)]
struct Arguments {
    /// How long to run; the current unit is completed.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the first unit; later units use consecutive seeds. Only with a new state file.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// State file: the next unit, and statistics.
    #[arg(long)]
    state: Option<PathBuf>,
    /// Use a drive with firmware, with its transactions instead of the journal. Needs its own state file.
    #[arg(long)]
    firmware: bool,
    /// Run only this unit, regardless of the state file.
    #[arg(long)]
    unit: Option<u64>,
}

/// What the state file keeps.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    seed: u64,
    next_unit: u64,
    seconds: f64,
    crash: Tried,
    model: Compared,
}

const DOMAINS: [PersistenceDomain; 3] = [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process];
const SETTINGS: usize = 7;
const SCENES: usize = 6;
/// Block sizes of the scenes and pairs.
const BLOCKS: [u32; 2] = [64 << 10, 4 << 10];

/// One piece of the work.
#[derive(Debug)]
enum Unit {
    /// Single operations, every state of each call up to 2^12.
    Singles(PersistenceDomain, usize),
    /// Single operations where a zone or a ring is at its limit.
    Limits(PersistenceDomain, u32, usize),
    /// Pairs that begin with this operation of the set.
    Pairs(PersistenceDomain, u32, bool, usize),
    /// Triples of this seed.
    Triples(PersistenceDomain, usize, u64),
    /// Random workloads of this seed.
    Random(PersistenceDomain, u32, u64),
    /// Comparisons with the model, seeds from this one on.
    Model(u64),
}

/// The unit of a number.
fn unit(number: u64, seed: u64) -> Unit {
    let singles = DOMAINS.len() * SETTINGS;
    let limits = DOMAINS.len() * BLOCKS.len() * SCENES;
    let pairs = DOMAINS.len() * BLOCKS.len() * 2 * ALPHABET.len();
    let index = number as usize;
    if index < singles {
        return Unit::Singles(DOMAINS[index / SETTINGS], index % SETTINGS);
    }
    if index < singles + limits {
        let (rest, scene) = ((index - singles) / SCENES, (index - singles) % SCENES);
        return Unit::Limits(DOMAINS[rest / BLOCKS.len()], BLOCKS[rest % BLOCKS.len()], scene);
    }
    if index < singles + limits + pairs {
        let (rest, first) = ((index - singles - limits) / ALPHABET.len(), (index - singles - limits) % ALPHABET.len());
        return Unit::Pairs(DOMAINS[rest / 2 / BLOCKS.len()], BLOCKS[rest / 2 % BLOCKS.len()], rest % 2 == 1, first);
    }
    let mut random = Random::new(seed.wrapping_add(number));
    let domain = *random.pick(&DOMAINS);
    match number % 3 {
        0 => Unit::Triples(domain, random.below(SETTINGS as u64) as usize, random.next()),
        1 => Unit::Random(domain, *random.pick(&BLOCKS), random.next()),
        _ => Unit::Model(random.next() >> 16),
    }
}

fn run(unit: &Unit, seed: u64, firmware: bool) -> Result<(Tried, Compared), String> {
    let on = |setting: Setting| if firmware { setting.with_firmware() } else { setting };
    // A quarter of what is drawn keeps its files in memory.
    let drawn = |setting: Setting, seed: u64| if seed.is_multiple_of(4) { on(setting).with_memory_homes() } else { on(setting) };
    let thorough = |domain| Effort { states: if domain == PersistenceDomain::Adr { 1 << 12 } else { 64 }, ..Effort::EXHAUSTIVE };
    let some = Effort { states: 16, work_one_in: 10, recovery_one_in: 100, ..Effort::EXHAUSTIVE };
    let tried = match *unit {
        Unit::Singles(domain, setting) => {
            explore_sequences(&Scene::small(&on(settings(domain)[setting].clone())), &singles(), thorough(domain), seed)?
        }
        Unit::Limits(domain, block_bytes, scene) => {
            let scenes = Scene::all(&on(Setting::small(domain, block_bytes)))?;
            // A drive with firmware has no ring, so a scene less.
            let Some(scene) = scenes.get(scene) else { return Ok(Default::default()) };
            explore_sequences(scene, &singles(), Effort { states: 64, ..some }, seed)?
        }
        Unit::Pairs(domain, block_bytes, relaxed, first) => {
            let setting = on(Setting::small(domain, block_bytes));
            let scene = Scene::small(&if relaxed { setting.relaxed() } else { setting });
            explore_sequences(&scene, &pairs_of(ALPHABET[first]), some, seed)?
        }
        Unit::Triples(domain, setting, seed) => {
            let scene = Scene::small(&drawn(settings(domain)[setting].clone(), seed));
            explore_sequences(&scene, &triples(100, &mut Random::new(seed)), some, seed)?
        }
        Unit::Random(domain, block_bytes, seed) => {
            let mut explorer = Explorer::new(&Scene::small(&drawn(Setting::small(domain, block_bytes), seed)), some, seed)?;
            for _ in 0..10 {
                explorer.explore_random(60, 10)?;
            }
            explorer.tried
        }
        Unit::Model(seed) => {
            let mut sum = Compared::default();
            for seed in seed..seed + 8 {
                let compared = compare_with_model(seed)?;
                sum.operations += compared.operations;
                sum.refused += compared.refused;
            }
            return Ok((Tried::default(), sum));
        }
    };
    Ok((tried, Compared::default()))
}

fn load(arguments: &Arguments) -> Result<State, String> {
    let fresh = State { seed: arguments.seed, ..State::default() };
    let Some(path) = &arguments.state else { return Ok(fresh) };
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}; remove it to start anew", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(fresh),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn save(arguments: &Arguments, state: &State) -> Result<(), String> {
    let Some(path) = &arguments.state else { return Ok(()) };
    let text = serde_json::to_string_pretty(state).map_err(|error| error.to_string())?;
    let new = path.with_extension("new");
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).map_err(|error| format!("{}: {error}", path.display()))
}

fn work(arguments: &Arguments) -> Result<(), String> {
    stay_on_one_cpu()?;
    let mut state = load(arguments)?;
    let start = Instant::now();
    loop {
        let number = arguments.unit.unwrap_or(state.next_unit);
        let unit = unit(number, state.seed);
        let begun = Instant::now();
        let firmware = if arguments.firmware { " --firmware" } else { "" };
        let repeat = format!("--seed {} --unit {number}{firmware}", state.seed);
        let (tried, compared) = run(&unit, state.seed.wrapping_add(number), arguments.firmware)
            .map_err(|what| format!("{unit:?}, repeat with {repeat}:\n{what}"))?;
        println!("{:6} s  unit {number} ({repeat}): {unit:?}: {tried:?} {compared:?}", start.elapsed().as_secs());
        if arguments.unit.is_some() {
            return Ok(());
        }
        state.next_unit += 1;
        state.seconds += begun.elapsed().as_secs_f64();
        state.crash.add(&tried);
        state.model.operations += compared.operations;
        state.model.refused += compared.refused;
        save(arguments, &state)?;
        if start.elapsed() >= Duration::from_secs(arguments.seconds) {
            println!("in all: {}", serde_json::to_string(&state).map_err(|error| error.to_string())?);
            return Ok(());
        }
    }
}

fn main() -> ExitCode {
    match work(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("torture: {what}");
            ExitCode::FAILURE
        }
    }
}

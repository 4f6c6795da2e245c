//! Random sequences, with and without power failures. `TANDEMFS_SEED` and `TANDEMFS_ROUNDS` choose others and more; a failure prints its
//! seed.

use super::operation::{Draw, Operation};
use super::rig::{End, Rig, SHAPES, Shape, Totals};

/// Operations after which the whole drive is compared.
const COMPARED_EVERY: u64 = 40;

fn told(shape: &Shape, seed: u64, number: u64, operation: &Operation) -> impl Fn(String) -> String {
    let told = format!("{}, seed {seed}, operation {number}, {}", shape.name, operation.told());
    move |what| format!("{told}: {what}")
}

/// Random operations without power failures.
pub(super) fn run_plain(shape: Shape, seed: u64, count: u64) -> Result<Totals, String> {
    let mut rig = Rig::new(shape);
    let mut draw = Draw(seed);
    for number in 0..count {
        let operation = Operation::draw(&mut draw, &rig);
        let told = told(&shape, seed, number, &operation);
        match rig.step(&operation).map_err(&told)? {
            End::Done => {}
            End::WornOut => {
                rig.retire(&operation).map_err(&told)?;
                return Ok(rig.totals);
            }
            End::Cut { .. } => return Err(told("the power failed by itself".into())),
        }
        if number % COMPARED_EVERY == 0 {
            rig.compare().map_err(told)?;
        }
    }
    rig.finish().map_err(|what| format!("{}, seed {seed}: {what}", shape.name))
}

/// Random operations, the power failing again and again, also while the drive is opened and recovers.
pub(super) fn run_cut(shape: Shape, seed: u64, count: u64) -> Result<Totals, String> {
    let mut rig = Rig::new(shape);
    let mut draw = Draw(seed ^ 0xc075);
    let cut = |draw: &mut Draw| {
        // Most steps copy pages, so many failures come soon; a log fills in some ten thousand steps.
        let limits = if seed.is_multiple_of(2) { [100, 1500, 4000] } else { [4000, 40_000, 40_000] };
        let limit = limits[draw.below(3) as usize];
        Some(1 + draw.below(limit))
    };
    rig.medium.cut_after(cut(&mut draw));
    for number in 0..count {
        let operation = Operation::draw(&mut draw, &rig);
        let told = told(&shape, seed, number, &operation);
        match rig.step(&operation).map_err(&told)? {
            End::Done => {}
            End::WornOut => {
                rig.medium.cut_after(None);
                rig.retire(&operation).map_err(told)?;
                return Ok(rig.totals);
            }
            End::Cut { is_acknowledged } => {
                let further: Vec<u64> = (0..draw.below(4)).map(|_| draw.below(1500)).collect();
                if rig.revive(&operation, is_acknowledged, &further).map_err(told)? == End::WornOut {
                    return Ok(rig.totals);
                }
                rig.medium.cut_after(cut(&mut draw));
            }
        }
    }
    rig.finish().map_err(|what| format!("{}, seed {seed}: {what}", shape.name))
}

/// A drive in the middle of its life; from there the same few operations, cut after every single step of the medium. Answers how many steps
/// there were.
pub(super) fn run_every_cut(shape: Shape, seed: u64, before: u64, count: u64) -> Result<u64, String> {
    let mut worn = Rig::new(shape);
    let mut draw = Draw(seed ^ 0xe4e4);
    for number in 0..before {
        let operation = Operation::draw(&mut draw, &worn);
        if worn.step(&operation).map_err(told(&shape, seed, number, &operation))? == End::WornOut {
            return Ok(0);
        }
    }
    worn.step(&Operation::Reopen { recovers: false })?;
    for cut in 0.. {
        let mut rig = worn.copy()?;
        let mut draw = draw.clone();
        rig.medium.cut_after(Some(cut));
        let mut was_cut = false;
        for number in 0..count {
            let operation = Operation::draw(&mut draw, &rig);
            let told = |what| format!("{}, seed {seed}, cut after {cut}, operation {number}, {}: {what}", shape.name, operation.told());
            match rig.step(&operation).map_err(told)? {
                End::Done => {}
                End::WornOut => return Ok(cut),
                End::Cut { is_acknowledged } => {
                    rig.revive(&operation, is_acknowledged, &[cut % 37, cut % 1031]).map_err(told)?;
                    was_cut = true;
                    break;
                }
            }
        }
        if !was_cut {
            return Ok(cut);
        }
    }
    Ok(0)
}

pub(super) fn number_of(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn seeds(default_first: u64, default_rounds: u64) -> impl Iterator<Item = u64> {
    let first = number_of("TANDEMFS_SEED", default_first);
    println!("seeds from {first} (TANDEMFS_SEED)");
    first..first + number_of("TANDEMFS_ROUNDS", default_rounds)
}

fn all(default_rounds: u64, run: impl Fn(Shape, u64) -> Result<Totals, String>) -> Totals {
    let mut totals = Totals::default();
    for seed in seeds(1, default_rounds) {
        for shape in SHAPES {
            totals.add(&run(shape, seed).unwrap_or_else(|what| panic!("{what}")));
        }
    }
    println!("{totals:?}");
    totals
}

#[test]
fn a_drive_is_as_a_plain_array() {
    let totals = all(12, |shape, seed| run_plain(shape, seed, 600));
    assert!(totals.cleanings > 100 && totals.commits > 500 && totals.refusals > 100, "{totals:?}");
    assert!(totals.evictions > 1000 && totals.erased > 1000 && totals.moved > 500, "{totals:?}");
    assert!(totals.retired > 10 && totals.worn_out > 5, "{totals:?}");
}

#[test]
fn power_failures_leave_what_was_acknowledged() {
    let totals = all(12, |shape, seed| run_cut(shape, seed, 600));
    assert!(totals.cuts > 2000 && totals.cleanings > 10 && totals.moved > 200, "{totals:?}");
}

#[test]
fn a_power_failure_after_every_step() {
    // A seed whose operations write and discard pages on every shape.
    for seed in seeds(3, 1) {
        for shape in SHAPES {
            let steps = run_every_cut(shape, seed, 150, 8).unwrap_or_else(|what| panic!("{what}"));
            println!("{}: cut after each of {steps} steps", shape.name);
            assert!(steps > 1000 || seed != 3, "{}: {steps} steps", shape.name);
        }
    }
}

/// The page that the first line of a store was completed from was taken for its last line too, although in between a cleaning had merged lines
/// of the log into it.
#[test]
fn regression_a_long_store_forgot_what_a_cleaning_within_it_had_merged() {
    for filling in 30..64 {
        let mut rig = Rig::new(SHAPES[0]);
        let (page, line) = (7 * 4096, 64);
        let mut steps = vec![Operation::Store { offset: page + 11 * line + 50, bytes: vec![1; 8] }];
        steps.extend((0..filling).map(|number| Operation::Store { offset: number % 2 * 4096 + number / 2 * line, bytes: vec![2; 64] }));
        steps.push(Operation::Store { offset: page + 5 * line + 10, bytes: vec![3; 6 * 64] });
        for operation in &steps {
            let end = rig.step(operation).unwrap_or_else(|what| panic!("after {filling} lines, {}: {what}", operation.told()));
            assert_eq!(end, End::Done);
        }
    }
}

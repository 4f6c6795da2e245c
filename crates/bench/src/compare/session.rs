//! `tandemfs-bench compare`: options, all runs, and the results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::available::{available, versions};
use super::backing::{Kind, Place};
use super::case::Cases;
use super::command::find;
use super::laboratory::Laboratory;
use super::peer::Peer;
use super::plan::{Plan, Planned};
use super::record::{Header, VERSION};
use super::settings::Settings;
use super::store::Store;
use super::{cases, report};
use crate::arguments::CompareArguments;
use crate::failure::{Failure, Result};
use crate::machine;
use crate::output::say;
use crate::table::Table;

/// Name of the results file in its directory.
pub const RESULTS: &str = "results.json";

/// Microseconds of a block command at the points of a curve, beside the profile's own.
pub const LATENCIES: [u32; 4] = [15, 25, 50, 100];

/// Share of the work in `--full`: about 1,600 runs a round, each with formatting and setup, must finish within ninety minutes.
const FULL_SCALE: f64 = 0.05;

/// Extent of a comparison.
struct Extent {
    name: &'static str,
    rounds: u32,
    scale: f64,
    /// Whether a case does more work if its runs would be too short.
    keeps_least: bool,
    /// No run begins after this time, except those that decide a target.
    budget: Option<Duration>,
}

impl Extent {
    fn of(arguments: &CompareArguments) -> Self {
        let seconds = |seconds: u64| Some(Duration::from_secs(seconds));
        // Less than promised, for the round that is running then and for the report.
        let mut extent = match (arguments.quick, arguments.full) {
            (true, _) => Self { name: "quick", rounds: 5, scale: 0.1, keeps_least: false, budget: seconds(255) },
            (_, true) => Self { name: "full", rounds: 5, scale: FULL_SCALE, keeps_least: true, budget: seconds(75 * 60) },
            _ => Self { name: "usual", rounds: 5, scale: 0.25, keeps_least: true, budget: None },
        };
        extent.rounds = arguments.rounds.unwrap_or(extent.rounds);
        extent.budget = arguments.minutes.map_or(extent.budget, |minutes| seconds(minutes * 60));
        match arguments.scale {
            Some(scale) => Self { scale, keeps_least: false, ..extent },
            None => extent,
        }
    }
}

/// Runs `tandemfs-bench compare`.
///
/// # Errors
/// The requested comparison is impossible here, or a signal came.
pub fn compare(arguments: &CompareArguments) -> Result<()> {
    if arguments.list {
        return list(arguments);
    }
    let extent = Extent::of(arguments);
    let chosen = chosen_cases(&arguments.cases, arguments.quick)?;
    let (peers, mut left_out) = available(&Peer::taking_part(&arguments.peer))?;
    let chosen = with_programs(chosen, &mut left_out)?;
    let settings = Settings { share: extent.scale, keeps_least_share: extent.keeps_least, ..arguments.settings.clone() };

    fs::create_dir_all(&arguments.output).map_err(|error| Failure::new(format!("{}: {error}", arguments.output.display())))?;
    let results = arguments.output.join(RESULTS);
    let programs = chosen.iter().flat_map(|case| case.programs.iter().copied()).collect();
    let header = header(&extent, &settings, versions(&peers, &programs), left_out);
    let mut store = if arguments.resume { Store::resume(&results, header)? } else { Store::create(&results, header)? };
    let kinds = match (arguments.place.is_empty(), arguments.full) {
        (false, _) => arguments.place.as_slice(),
        (true, true) => &[Kind::Free, Kind::Same],
        (true, false) => &[Kind::Free],
    };
    let mut laboratory = Laboratory::new(&settings)?;
    let places = places(kinds, &arguments.latency, &mut laboratory, &mut store)?;
    let plan = Plan { cases: &chosen, places: &places, peers: &peers, rounds: extent.rounds, is_limited: extent.budget.is_some() };
    let failed = measure(&plan, extent.budget, &mut laboratory, &mut store, arguments.json)?;
    let text = report::write(&results, &arguments.output)?;
    if !arguments.json {
        say(&text)?;
    }
    if failed == 0 {
        Ok(())
    } else {
        Err(Failure::new(format!("{failed} of the runs failed; the report names them among what is left out")))
    }
}

/// The drives to measure on: the free one, and the same one at each latency of a block command that this machine carries. Those that it
/// does not carry are left out by name.
///
/// # Errors
/// No drive is left, or a signal came.
fn places(kinds: &[Kind], latencies: &[u32], laboratory: &mut Laboratory, store: &mut Store) -> Result<Vec<Place>> {
    let mut places: Vec<Place> = [Place::Free, Place::Untimed].into_iter().filter(|place| kinds.contains(&place.kind())).collect();
    if !kinds.contains(&Kind::Same) {
        return Ok(places);
    }
    let mut points = latencies.to_vec();
    points.push(laboratory.own_us()?);
    points.sort_unstable();
    points.dedup();
    for us in points {
        match laboratory.calibrate(us, store.same_drive(us)) {
            Ok(found) => {
                store.calibrated(us, found)?;
                store.decided_at(us)?;
                places.push(Place::Same(us));
            }
            Err(failure) => {
                machine::check()?;
                eprintln!("tandemfs-bench: same drive, {us} us: {failure}");
                store.leave_out(format!("same drive, {us} us"), failure.to_string())?;
            }
        }
    }
    // What was not asked for, but could have been measured, leaves verdicts undecided.
    for us in LATENCIES.into_iter().filter(|us| !latencies.contains(us)) {
        if laboratory.carries(us)? {
            store.decided_at(us)?;
        }
    }
    if places.is_empty() {
        return Err(Failure::new("the same drive can be made equal for all at none of these latencies; name a longer one with --latency"));
    }
    Ok(places)
}

/// Makes all runs of a plan that are not done. Returns the number of failures.
fn measure(plan: &Plan<'_>, budget: Option<Duration>, laboratory: &mut Laboratory, store: &mut Store, as_json: bool) -> Result<usize> {
    let runs = plan.runs(&store.done());
    let (start, bar, mut failed) = (Instant::now(), progress_bar(runs.len()), BTreeSet::new());
    let mut left = runs.as_slice();
    for round_of_case in runs.chunk_by(|run, next| (run.case, run.place, run.round) == (next.case, next.place, next.round)) {
        let Planned { case, place, round, is_due, .. } = round_of_case[0];
        if !is_due && budget.is_some_and(|budget| start.elapsed() >= budget) {
            break;
        }
        left = &left[round_of_case.len()..];
        for run in round_of_case {
            bar.inc(1);
            if failed.contains(&(case, place, run.peer)) {
                continue;
            }
            let what = format!("{}, {}, {}", plan.cases[case].name, place.name(), run.peer.name());
            bar.set_message(what.clone());
            match laboratory.run(&plan.cases[case], place, run.peer, round) {
                Ok(_) if round.is_none() => {}
                Ok(record) => {
                    if as_json {
                        say(&format!("{}\n", serde_json::to_string(&record)?))?;
                    }
                    store.add(record);
                }
                Err(failure) => {
                    store.save()?;
                    // A signal also unmounts a run's file system, so its failure is not the cause.
                    machine::check()?;
                    bar.suspend(|| eprintln!("tandemfs-bench: {what}: {failure}"));
                    store.leave_out(what, failure.to_string())?;
                    failed.insert((case, place, run.peer));
                }
            }
        }
        store.save()?;
    }
    bar.finish_and_clear();
    let given_up = left.iter().map(|run| (run.case, run.place)).collect::<BTreeSet<_>>().len();
    if given_up > 0 {
        let rounds = plan.rounds;
        let few = format!("{given_up} cases have fewer than {rounds} rounds, as more would have taken too long; --resume makes the rest");
        eprintln!("tandemfs-bench: {few}");
        store.leave_out("rounds".to_owned(), few)?;
    }
    Ok(failed.len())
}

/// A progress bar with the present run and the estimated rest; hidden if standard error is not a terminal.
fn progress_bar(runs: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(runs as u64), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("{wide_bar} {pos}/{len}, {eta} left  {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn list(arguments: &CompareArguments) -> Result<()> {
    let chosen = chosen_cases(&arguments.cases, arguments.quick)?;
    let mut table = Table::new(["case", "quick", "what"]);
    for case in &chosen {
        table.row([case.name.clone(), if case.is_quick { "yes" } else { "" }.to_owned(), case.description.clone()]);
    }
    say(&table.markdown())
}

/// Cases by name; without names, all cases of the extent.
fn chosen_cases(words: &[String], is_quick: bool) -> Result<Cases> {
    let chosen = cases::named(words).map_err(|word| no_such_case(&word))?;
    Ok(chosen.into_iter().filter(|case| !words.is_empty() || !is_quick || case.is_quick).collect())
}

fn no_such_case(word: &str) -> Failure {
    Failure::new(format!("there is no case '{word}'; 'tandemfs-bench compare --list' shows them"))
}

/// The cases whose programs are installed; the others are listed in `left_out`.
fn with_programs(chosen: Cases, left_out: &mut Vec<(String, String)>) -> Result<Cases> {
    let (present, missing): (Cases, Cases) =
        chosen.into_iter().partition(|case| case.programs.iter().all(|program| find(program).is_some()));
    for case in missing {
        let absent: Vec<&str> = case.programs.iter().copied().filter(|program| find(program).is_none()).collect();
        left_out.push((case.name.clone(), format!("not installed: {}", absent.join(", "))));
    }
    if present.is_empty() {
        return Err(Failure::new("none of the programs that these cases run is installed"));
    }
    Ok(present)
}

fn header(extent: &Extent, settings: &Settings, programs: Vec<(String, String)>, left_out: Vec<(String, String)>) -> Header {
    let mut named = settings.named();
    named.insert(0, ("extent".to_owned(), extent.name.to_owned()));
    named.insert(1, ("rounds".to_owned(), extent.rounds.to_string()));
    if let Some(budget) = extent.budget {
        named.push(("time".to_owned(), format!("nothing begins after {} s, but for what decides a target", budget.as_secs())));
    }
    Header {
        version: VERSION,
        machine: machine::facts().into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        programs,
        settings: named,
        left_out,
        same_drives: BTreeMap::new(),
        decisive_us: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_without_their_programs_are_left_out_by_name() {
        let mut left_out = Vec::new();
        let all = cases::all();
        let count = all.len();
        let present = with_programs(all, &mut left_out).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(present.len() + left_out.len(), count);
    }

    #[test]
    fn quick_cases_are_those_that_say_so() {
        let quick = chosen_cases(&[], true).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(!quick.is_empty() && quick.iter().all(|case| case.is_quick));
        let named = chosen_cases(&["rmdir-c1".to_owned()], true).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(named.len(), 1, "who names a case gets it");
    }
}

//! `tandemfs-bench romefs` and `tandemfs-bench bytefs` at a tiny scale: every experiment runs, prints its measurements, and writes files
//! that programs can parse.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ROMEFS: [&str; 8] = ["table4", "writes", "breakdown", "reads", "threads", "overhead", "graph", "threshold"];
const BYTEFS: [&str; 9] = ["loads", "traffic", "flash", "breakdown", "latency", "log-size", "recovery", "create", "discard"];

/// Runs the experiment that `words` begin with. Returns its records.
fn run(paper: &str, words: &[&str], output: &Path) -> Vec<Value> {
    let tiny = if paper == "romefs" { &["--quick", "--memory", "24M", "--scale", "0.01"][..] } else { &["--scale", "0.0002"] };
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandemfs-bench"));
    let run = command.arg(paper).args(words).args(tiny).arg("--output").arg(output).output().expect("the program runs");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && errors.is_empty(), "{words:?}: {errors}");
    let shown = String::from_utf8(run.stdout).expect("text");
    let is_head = shown.contains(&format!("## {}: ", words[0])) && shown.contains("figures mean nothing");
    assert!(is_head || shown.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{shown}");
    let lines = fs::read_to_string(output.join(format!("{}.jsonl", words[0]))).expect("lines");
    let mut values = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    assert!(values.next().expect("a head")["machine"].is_string(), "{lines}");
    let values: Vec<Value> = values.collect();
    assert!(!values.is_empty() && values.iter().all(|value| value["experiment"] == words[0]), "{lines}");
    values
}

#[test]
fn every_experiment_writes_tables_and_lines() {
    for (paper, experiments) in [("romefs", &ROMEFS[..]), ("bytefs", &BYTEFS)] {
        let output = tempfile::tempdir().expect("a directory");
        for experiment in experiments {
            run(paper, &[experiment], output.path());
            let read = |name: &str| fs::read_to_string(output.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(read(&format!("{experiment}.md")).contains("|--"));
        }
    }
}

#[test]
fn a_cache_that_the_host_manages_is_measured_beside_one_that_the_drive_manages() {
    let output = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandemfs-bench"));
    let run = command.args(["hybrid", "--quick", "--output"]).arg(output.path()).output().expect("the program runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let lines = fs::read_to_string(output.path().join("writes.jsonl")).expect("lines");
    let runs: Vec<Value> = lines.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(runs.len(), 8 * 4 + 5 + 5 * 5, "blocks from 4 KiB on");
    let of = |way: &str| runs.iter().find(|run| run["way"] == way && run["size_bytes"] == 4096).expect("a run");
    let number = |way: &str, name: &str| of(way)[name].as_f64().unwrap_or_else(|| panic!("{name} of {way}"));
    // In virtual time: who waits for the flash by MOVE does not stall for it.
    assert!(number("drive, missed", "stalled_s_per_gib") > number("host, MOVE", "stalled_s_per_gib"), "{lines}");
    assert_eq!(number("blocks", "stalled_s_per_gib"), 0.0);
}

#[test]
fn the_split_is_that_of_the_requests() {
    let output = tempfile::tempdir().expect("a directory");
    let cells = run("romefs", &["table4", "--json"], output.path());
    assert_eq!(cells.len(), 30);
    for cell in &cells {
        let number = |name: &str| cell[name].as_f64().unwrap_or_else(|| panic!("{name} in {cell}"));
        assert_eq!(number("byte_path_bytes") + number("block_path_bytes"), number("user_bytes"), "{cell}");
        assert!((number("byte_path_percent") - number("split_percent")).abs() < 1.5, "{cell}");
    }
}

#[test]
fn freed_sectors_are_discarded_where_that_is_measured() {
    let output = tempfile::tempdir().expect("a directory");
    let values = run("bytefs", &["discard"], output.path());
    assert_eq!(values.len(), 6, "{values:?}");
    for pair in values.chunks(2) {
        let number = |value: &Value, name: &str| value[name].as_u64().unwrap_or_else(|| panic!("{name} of {value}"));
        let [without, with] = pair else { unreachable!() };
        assert!(number(without, "discarded_bytes") == 0 && number(with, "discarded_bytes") > 0, "{pair:?}");
        // On so small a drive freed sectors are soon written again, and what the discards themselves cost is all that is left of a difference.
        assert!(number(with, "pages_programmed") * 100 <= number(without, "pages_programmed") * 101, "{pair:?}");
    }
}

/// The same seed is the same load, and on a reckoned clock the same figures.
#[test]
fn figures_in_reckoned_time_come_again() {
    let output = tempfile::tempdir().expect("a directory");
    let varmail = |seed: &str| {
        let values = run("bytefs", &["traffic", "--load", "varmail", "--seed", seed], output.path());
        values.into_iter().map(|value| (value["reckoned_ns"].clone(), value["by_structure"].clone())).collect::<Vec<_>>()
    };
    let first = varmail("1");
    assert!(first.len() == 2 && first[0].0.as_u64() > Some(0));
    assert_eq!(first, varmail("1"));
    assert_ne!(first, varmail("2"));
    let writes = || run("romefs", &["writes"], output.path());
    let first = writes();
    assert!(first.iter().all(|value| value["all_told_ns"].as_f64() > Some(0.0)), "{first:?}");
    assert!(first.iter().any(|value| value["block_write_backs"].as_u64() > Some(0)), "the background works");
    assert_eq!(first, writes());
}

/// Metadata by the drive's transactions has no journal, and one that is open when the process dies is discarded.
#[test]
fn engines_are_those_of_their_names() {
    let output = tempfile::tempdir().expect("a directory");
    for value in run("bytefs", &["traffic", "--load", "create"], output.path()) {
        let journal = value["by_structure"]["journal"]["byte_written_bytes"].as_u64().expect("bytes");
        assert_eq!(journal == 0, value["variant"] == "+ transactions", "{value}");
        assert_eq!(value["firmware"]["commits"].as_u64() > Some(0), value["variant"] == "+ transactions", "{value}");
    }
    for value in run("bytefs", &["recovery"], output.path()) {
        let (fill, kept) = (value["fill_percent"].as_u64().expect("a fill"), value["lines_kept"].as_u64().expect("lines"));
        assert!(value["lines_discarded"] == 256 && (fill == 0) == (kept == 0), "{value}");
    }
}

#[test]
fn loads_run_on_a_directory() {
    let (output, below) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let values = run("bytefs", &["loads", "--load", "varmail,oltp", "--on", below.path().to_str().expect("UTF-8")], output.path());
    assert_eq!(values.len(), 2);
    assert_eq!(fs::read_dir(below.path()).expect("listed").count(), 0, "nothing is left");
}

#[test]
fn what_cannot_be_measured_is_refused_in_a_sentence() {
    for (paper, words, reason) in [
        ("bytefs", &["--scale", "7"][..], "a share of the paper's load"),
        ("bytefs", &["traffic", "--on", "/tmp"], "only 'loads' runs on a directory"),
        ("bytefs", &["breakdown", "--load", "mkdir"], "this experiment has varmail"),
        ("bytefs", &["traffic", "--directory", "/nowhere"], "/nowhere: "),
        ("romefs", &["--memory", "24M", "--directory", "/nowhere", "table4"], "/nowhere: "),
        ("romefs", &["--memory", "64G", "--quick", "writes"], "GiB to spare and this needs"),
        ("romefs", &["--memory", "7M"], "a multiple of 2 MiB"),
    ] {
        let run = Command::new(env!("CARGO_BIN_EXE_tandemfs-bench")).arg(paper).args(words).output().expect("the program runs");
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.code() == Some(1) && errors.contains(reason) && errors.lines().count() == 1, "{errors}");
    }
}

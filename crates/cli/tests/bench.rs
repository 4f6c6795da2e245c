//! `tandemfs bench romefs` at a tiny scale: every experiment runs, says what it measured, and writes files that programs read.

use std::fs;
use std::path::Path;
use std::process::Command;

const EXPERIMENTS: [&str; 7] = ["table4", "writes", "breakdown", "reads", "threads", "fragmentation", "overhead"];
/// At most this many plots each, and at least one where there is a course or a comparison to draw.
const PLOTS: [usize; 7] = [0, 6, 4, 2, 2, 2, 0];

fn romefs(words: &[&str], output: &Path) -> String {
    let tiny = ["--quick", "--memory", "24M", "--scale", "0.01", "--output"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandemfs"));
    let run = command.args(["bench", "romefs"]).args(words).args(tiny).arg(output).output().expect("the program runs");
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && errors.is_empty(), "{words:?}: {errors}");
    String::from_utf8(run.stdout).expect("text")
}

#[test]
fn every_experiment_writes_tables_lines_and_plots() {
    let output = tempfile::tempdir().expect("a directory");
    for (experiment, plots) in EXPERIMENTS.into_iter().zip(PLOTS) {
        let shown = romefs(&[experiment], output.path());
        assert!(shown.contains(&format!("## {experiment}: ")) && shown.contains("figures mean nothing"), "{shown}");

        let read = |name: &str| fs::read_to_string(output.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(read(&format!("{experiment}.md")).contains("|--"));
        let lines = read(&format!("{experiment}.jsonl"));
        let values: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert!(values.len() > 1 && values[0]["machine"].is_string(), "{lines}");
        assert!(values[1..].iter().all(|value| value["experiment"] == experiment), "{lines}");

        let names =
            fs::read_dir(output.path()).expect("listed").map(|entry| entry.expect("read").file_name().into_string().expect("UTF-8"));
        let svgs: Vec<String> = names.filter(|name| name.starts_with(experiment) && name.ends_with(".svg")).collect();
        assert_eq!(svgs.len(), plots, "{svgs:?}");
        for name in svgs {
            let svg = read(&name);
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.matches("<text").count() > 6, "{name}");
        }
    }
}

#[test]
fn the_split_is_that_of_the_requests() {
    let output = tempfile::tempdir().expect("a directory");
    let shown = romefs(&["table4", "--json"], output.path());
    let cells: Vec<serde_json::Value> = shown.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(cells.len(), 30);
    for cell in &cells {
        let number = |name: &str| cell[name].as_f64().unwrap_or_else(|| panic!("{name} in {cell}"));
        assert_eq!(number("byte_path_bytes") + number("block_path_bytes"), number("user_bytes"), "{cell}");
        assert!((number("byte_path_percent") - number("split_percent")).abs() < 1.5, "{cell}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_in_a_sentence() {
    for (words, reason) in [
        (&["--memory", "24M", "--directory", "/nowhere", "table4"][..], "/nowhere: "),
        (&["--memory", "64G", "--quick", "writes"][..], "GiB to spare and this needs"),
        (&["--memory", "7M"][..], "a multiple of 2 MiB"),
    ] {
        let run = Command::new(env!("CARGO_BIN_EXE_tandemfs")).args(["bench", "romefs"]).args(words).output().expect("the program runs");
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.code() == Some(1) && errors.contains(reason) && errors.lines().count() == 1, "{errors}");
    }
}

//! Reads a results file.
//!
//! [RU1] A killed run may leave a partial last line: it is left out with a note. Any other unreadable line is an error.
//! [RU2] Runs with zero time or zero units have no ratio: they are left out with a note.
//! [RU3] Of two lines for the same run the later one counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::compare::backing::Place;
use crate::compare::peer::Peer;
use crate::compare::record::{Header, Line, Record, VERSION};
use crate::failure::{Failure, Result};

/// Content of a results file.
#[derive(Debug)]
pub struct Results {
    /// The header.
    pub header: Header,
    /// The runs, in the order in which they were made.
    pub records: Vec<Record>,
    /// What was left out, in sentences.
    pub notes: Vec<String>,
}

/// Reads a file of results.
///
/// # Errors
/// It cannot be read, is empty, or has another version.
pub fn read(path: &Path) -> Result<Results> {
    let bytes = fs::read(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    parse(&String::from_utf8_lossy(&bytes)).map_err(|failure| Failure::new(format!("{}: {failure}", path.display())))
}

/// The content of such a file.
///
/// # Errors
/// Those of [`read`].
pub fn parse(text: &str) -> Result<Results> {
    let mut header = None;
    let mut runs: Vec<Record> = Vec::new();
    let mut index: BTreeMap<(String, Place, Peer, u32), usize> = BTreeMap::new();
    let mut notes = Vec::new();
    let is_whole = text.is_empty() || text.ends_with('\n');
    let count = text.lines().count();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str::<Line>(line) {
            Ok(Line::Header(found)) => {
                if found.version != VERSION {
                    return Err(Failure::new(format!("results of version {}; this program reads version {VERSION}", found.version)));
                }
                header = Some(found);
            }
            Ok(Line::Run(record)) if header.is_some() => {
                if let Some(reason) = unusable(&record) {
                    notes.push(format!("left out: {}, {reason}", run_name(&record)));
                    continue;
                }
                match index.get(&(record.case.clone(), record.place, record.peer, record.round)) {
                    Some(earlier) => {
                        notes.push(format!("{}: recorded twice, the later one counts", run_name(&record)));
                        runs[*earlier] = *record;
                    }
                    None => {
                        index.insert((record.case.clone(), record.place, record.peer, record.round), runs.len());
                        runs.push(*record);
                    }
                }
            }
            Ok(Line::Run(_)) => return Err(Failure::new("the first line is a run; these results have no header")),
            // [RU1]
            Err(_) if number == count && !is_whole && header.is_some() => {
                notes.push("the last line is not whole: its run was interrupted, and is left out".to_owned());
            }
            Err(error) => return Err(Failure::new(format!("line {number} is no line of results: {error}"))),
        }
    }
    let header = header.ok_or_else(|| Failure::new("holds no results, not even their header: nothing was measured"))?;
    Ok(Results { header, records: runs, notes })
}

/// [RU2]
fn unusable(record: &Record) -> Option<&'static str> {
    let is_amount = |value: f64| value.is_finite() && value > 0.0;
    match (is_amount(record.units), is_amount(record.seconds), record.cpu_seconds.is_finite() && record.noise.is_finite()) {
        (true, true, true) => None,
        (false, ..) => Some("which did nothing"),
        (_, false, _) => Some("which took no time"),
        _ => Some("whose figures are no numbers"),
    }
}

/// Display name of a run.
pub fn run_name(record: &Record) -> String {
    format!("{}, {}, {}, round {}", record.case, record.place.title(), record.peer.title(), record.round + 1)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The lines of a results file.
    pub fn lines(header: &Header, records: &[Record]) -> String {
        let line = |line: &Line| serde_json::to_string(line).expect("a line") + "\n";
        let runs: String = records.iter().map(|record| line(&Line::Run(Box::new(record.clone())))).collect();
        line(&Line::Header(header.clone())) + &runs
    }

    /// A minimal header.
    pub fn header() -> Header {
        Header {
            version: VERSION,
            machine: vec![("cpu".into(), "one".into())],
            programs: vec![("fio".into(), "3.33".into())],
            settings: vec![("rounds".into(), "3".into())],
            left_out: vec![],
            calibration: vec![],
            decisive_us: None,
        }
    }

    use crate::compare::statistics::tests::record;

    #[test]
    fn half_a_line_at_the_end_is_left_out_and_said() {
        let text = lines(&header(), &[record("x", Peer::Ext4, 0, 1.0), record("x", Peer::Ext4, 1, 1.0)]);
        let results = parse(&text[..text.len() - 9]).expect("read");
        assert_eq!((results.records.len(), results.notes.len()), (1, 1));
        assert!(results.notes[0].contains("not whole"), "{:?}", results.notes);
        assert_eq!(parse(&text).expect("read").notes, Vec::<String>::new());
    }

    #[test]
    fn what_is_no_file_of_results_is_one_sentence() {
        let run = lines(&header(), &[record("x", Peer::Ext4, 0, 1.0)]);
        let mut old = header();
        old.version = 0;
        for (text, words) in [
            (String::new(), "nothing was measured"),
            ("\n\n".to_owned(), "nothing was measured"),
            (run.lines().nth(1).unwrap_or_default().to_owned() + "\n", "no header"),
            (lines(&old, &[]), "version 0"),
            (format!("{{}}\n{run}"), "line 1 is no line"),
            (format!("{run}nonsense\n"), "line 3 is no line"),
            ("{\"line\":\"hea".to_owned(), "line 1 is no line"),
        ] {
            let sentence = parse(&text).expect_err("refused").to_string();
            assert!(sentence.contains(words) && !sentence.contains('\n'), "{text}: {sentence}");
        }
        let missing = read(Path::new("/nonexistent/results.jsonl")).expect_err("refused").to_string();
        assert!(missing.contains("/nonexistent/results.jsonl"), "{missing}");
    }

    #[test]
    fn runs_without_time_or_work_are_named_and_repeated_ones_replaced() {
        let mut timeless = record("timeless", Peer::Ext4, 0, 1.0);
        timeless.seconds = 0.0;
        let records = [record("idle", Peer::Ext4, 0, 0.0), timeless, record("x", Peer::Xfs, 0, 1.0), record("x", Peer::Xfs, 0, 2.0)];
        let results = parse(&lines(&header(), &records)).expect("read");
        assert_eq!(results.records.iter().map(|record| record.units).collect::<Vec<_>>(), [2.0]);
        assert_eq!(results.notes.len(), 3, "{:?}", results.notes);
        assert!(results.notes[0].contains("idle") && results.notes[1].contains("timeless") && results.notes[2].contains("twice"));
    }
}

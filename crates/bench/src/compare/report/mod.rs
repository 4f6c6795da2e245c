//! The report of a comparison: an HTML page and a Markdown file, made only from the lines of results.
//!
//! [REP1] Cases that TandemFS loses come first, then targets, then all results.
//! [REP2] Every case and every run is in the report, or listed with a reason among the left-out ones.
//! [REP3] A value has a unit and three digits; a ratio has its interval; values from a disturbed machine are marked and decide nothing.
//! [REP4] Names come from a file that anybody may have written: they are always treated as text.
//!
//! `results.rs` reads the file, `subject.rs` compares. Each chapter has a file that makes its blocks (`losses.rs`, `targets.rs`,
//! `groups.rs`, `bytes.rs`, `background.rs`); `html.rs` and `markdown.rs` write them; `plots/` draws.

mod background;
#[cfg(test)]
mod browser;
mod bytes;
mod document;
mod figures;
mod groups;
mod html;
mod losses;
mod markdown;
mod names;
mod plots;
mod results;
#[cfg(test)]
mod sample;
mod subject;
mod targets;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use self::document::{Block, Document};
use self::groups::Material;
use self::results::Results;
use super::session::RESULTS;
use super::statistics::summaries;
use super::{cases, targets as comparison_targets};
use crate::arguments::ReportArguments;
use crate::failure::{Failure, Result};
use crate::output::say;

const PAGE: &str = "report.html";
const TABLES: &str = "report.md";
/// Chapters printed on the terminal: losses and targets.
const CHAPTERS_SHOWN: usize = 2;

/// `tandemfs-bench report`.
///
/// # Errors
/// Those of [`write`]; standard output is closed.
pub fn run(arguments: &ReportArguments) -> Result<()> {
    let (results, directory) = places(arguments);
    say(&write(&results, &directory)?)
}

/// The results file, and the directory of its report.
fn places(arguments: &ReportArguments) -> (PathBuf, PathBuf) {
    let named = &arguments.results;
    let results = if named.is_dir() { named.join(RESULTS) } else { named.clone() };
    let beside = || results.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned();
    let directory = arguments.output.clone().unwrap_or_else(beside);
    (results, directory)
}

/// Makes `report.html` and `report.md` in a directory from a file of results. Returns the first chapters as Markdown, for the terminal.
///
/// # Errors
/// A sentence: the results cannot be read, or the report cannot be written.
pub fn write(results: &Path, directory: &Path) -> Result<String> {
    let document = document(&results::read(results)?, &descriptions())?;
    fs::create_dir_all(directory).map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
    let write = |name: &str, content: &str| {
        let path = directory.join(name);
        fs::write(&path, content).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    };
    write(PAGE, &html::page(&document))?;
    write(TABLES, &markdown::text(&document))?;
    let summary = markdown::blocks(first_chapters(&document), 2);
    Ok(format!("{summary}The whole report: {} and {}\n", directory.join(PAGE).display(), directory.join(TABLES).display()))
}

/// Descriptions of this program's cases, by name.
fn descriptions() -> BTreeMap<String, String> {
    cases::all().iter().map(|case| (case.name(), case.description())).collect()
}

fn first_chapters(document: &Document) -> &[Block] {
    let chapters = document.blocks.iter().enumerate().filter(|(_, block)| matches!(block, Block::Chapter { .. }));
    let end = chapters.map(|(index, _)| index).nth(CHAPTERS_SHOWN).unwrap_or(document.blocks.len());
    &document.blocks[..end]
}

fn document(results: &Results, descriptions: &BTreeMap<String, String>) -> Result<Document> {
    let summaries = summaries(&results.records);
    let subjects = subject::subjects(&summaries);
    let judgements = comparison_targets::judge(&summaries);
    let mut blocks = Vec::new();
    if results.records.is_empty() {
        blocks.push(Block::Warning("No run has been recorded yet: these results hold their header only.".into()));
    }
    blocks.extend(losses::chapter(&subjects, &judgements, background::left_out(results, &subjects).len()));
    blocks.extend(targets::chapter(&judgements));
    let material = Material { subjects: &subjects, judgements: &judgements, descriptions };
    for group in names::GROUPS {
        blocks.extend(groups::chapter(group, &material)?);
    }
    blocks.extend(bytes::chapter(&subjects, &judgements)?);
    blocks.extend(background::calibration(&results.header.calibration));
    blocks.extend(background::chapter(results, &subjects));
    Ok(Document { title: "TandemFS beside ext4, XFS and Btrfs".into(), blocks })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::sample::{HOSTILE, NOISY, WORST};
    use super::*;
    use crate::compare::peer::Peer;
    use crate::compare::record::{Header, Record};
    use crate::compare::statistics::tests::record;

    /// Results, page and tables made from them, and the terminal output.
    struct Made {
        page: String,
        tables: String,
        shown: String,
    }

    fn made(header: &Header, records: &[Record]) -> Made {
        let directory = tempfile::tempdir().expect("a directory");
        let results = directory.path().join(RESULTS);
        fs::write(&results, results::tests::lines(header, records)).expect("written");
        let shown = write(&results, &directory.path().join("made")).unwrap_or_else(|failure| panic!("{failure}"));
        let read = |name: &str| fs::read_to_string(directory.path().join("made").join(name)).expect("made");
        Made { page: read(PAGE), tables: read(TABLES), shown }
    }

    fn parsed(page: &str) -> roxmltree::Document<'_> {
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        roxmltree::Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}"))
    }

    fn text(node: roxmltree::Node<'_, '_>) -> String {
        node.descendants().filter(roxmltree::Node::is_text).filter_map(|node| node.text()).collect()
    }

    #[test]
    fn the_page_is_whole_well_formed_and_names_every_case() {
        let made = made(&sample::header(), &sample::records());
        let page = parsed(&made.page);
        let elements = || page.descendants().filter(roxmltree::Node::is_element);
        assert!(elements().all(|node| !["script", "link", "img", "iframe", "object"].contains(&node.tag_name().name())));
        let leads_away = |node: &roxmltree::Node<'_, '_>| {
            node.attributes().any(|attribute| ["src", "href"].contains(&attribute.name()) && !attribute.value().starts_with('#'))
        };
        assert_eq!(elements().filter(leads_away).count(), 0, "[HT1]");
        let ids: Vec<&str> = elements().filter_map(|node| node.attribute("id")).collect();
        let unique: BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(ids.len(), unique.len(), "{ids:?}");
        for link in elements().filter_map(|node| node.attribute("href")) {
            assert!(unique.contains(&link[1..]), "{link} leads nowhere");
        }
        let rows: BTreeSet<String> = elements().filter(|node| node.attribute("scope") == Some("row")).map(text).collect();
        let summaries: BTreeSet<String> = elements().filter(|node| node.tag_name().name() == "summary").map(text).collect();
        for record in sample::records() {
            assert!(
                rows.contains(&record.case) && summaries.iter().any(|summary| summary.starts_with(&record.case)),
                "[REP2] {}",
                record.case
            );
            assert!(rows.contains(names::peer(record.peer)), "{:?}", record.peer);
        }
        assert!(elements().filter(|node| node.tag_name().name() == "svg").count() > 30);
        assert!(!made.page.contains("NaN"));
    }

    #[test]
    fn what_is_lost_comes_first_and_the_worst_of_it_before_the_rest() {
        let made = made(&sample::header(), &sample::records());
        let page = parsed(&made.page);
        let titles: Vec<String> = page.descendants().filter(|node| node.tag_name().name() == "h2").map(text).collect();
        assert_eq!(titles[..2], ["What TandemFS loses", "Targets"], "[REP1]");
        let table = page.descendants().find(|node| node.tag_name().name() == "tbody").expect("a table");
        let first: Vec<String> = table.children().filter(roxmltree::Node::is_element).map(text).collect();
        assert!(first[0].starts_with(WORST) && first[1].starts_with(WORST), "{first:?}");
        // 0.12, 0.71, 0.90, 0.97 and 0.99 times the rate of ext4 on the free drive; the yardstick's choice changes none of them here.
        assert_eq!(first.len(), 6, "untar on both, three on the free drive, and what the mount takes: {first:?}");
        assert!(!first.iter().any(|row| row.starts_with("varmail")));
        assert!(made.shown.find("What TandemFS loses") < made.shown.find(WORST) && made.shown.contains("missed"), "{}", made.shown);
        assert!(!made.shown.contains("Single operations"), "the terminal shows the first chapters alone");
        assert!(made.tables.contains("## Single operations") && made.tables.starts_with("# "), "Markdown has all");
    }

    #[test]
    fn names_of_cases_are_text() {
        let made = made(&sample::header(), &sample::records());
        assert!(!made.page.contains("<script") && made.page.contains("&lt;script&gt;alert("), "[REP4]");
        assert!(!made.tables.contains("<script") && !made.shown.contains("<script"));
        assert!(text(parsed(&made.page).root_element()).contains(HOSTILE));
    }

    #[test]
    fn noisy_runs_are_named_and_decide_nothing() {
        let made = made(&sample::header(), &sample::records());
        let page = parsed(&made.page);
        let runs = page.descendants().find(|node| node.attribute("id") == Some("noisy")).map(text).expect("named");
        assert!(runs.contains(&format!("{NOISY}, same drive, ext4, round 2: 28.4 %")), "{runs}");
        for words in ["noisy: decides nothing", "undecided: the machine was too noisy"] {
            let says = |line: &str| line.starts_with(&format!("| {NOISY} ")) && line.contains(words);
            assert!(made.tables.lines().any(says), "[REP3] {words}: {}", made.tables);
        }
    }

    #[test]
    fn results_without_runs_or_with_one_make_an_honest_report() {
        let none = made(&sample::header(), &[]);
        assert!(none.page.contains("No run has been recorded yet") && none.shown.contains("nothing to compare yet"), "{}", none.shown);
        parsed(&none.page);
        for peer in Peer::ALL {
            let one = made(&sample::header(), &[record("lonely", peer, 0, 5.0)]);
            assert!(text(parsed(&one.page).root_element()).contains("lonely") && one.tables.contains("lonely"));
            assert!(one.shown.contains("nothing to compare yet"), "{}", one.shown);
            assert_eq!(one.shown.contains("but not on TandemFS"), peer.is_yardstick(), "{peer:?}");
        }
    }

    #[test]
    fn what_was_left_out_and_what_does_not_fit_is_said() {
        let mut records = sample::records();
        records.retain(|record| record.round < 2 || record.case != "varmail" || record.peer != Peer::Xfs);
        let made = made(&sample::header(), &records);
        assert!(made.tables.contains("rocksdb-fillsync: db_bench is not installed"));
        assert!(made.tables.contains("varmail, same drive: fewer rounds than the 3 of others (XFS 2)"), "{}", made.tables);
        let calibration = made.tables.lines().find(|line| line.contains("4 KiB write + flush")).expect("a row");
        assert!(calibration.contains("1.19×") && calibration.ends_with("no |"), "{calibration}");
    }

    #[test]
    fn a_report_goes_beside_its_results_or_where_it_is_asked_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let directory = directory.path();
        let asked = |results: &Path, output: Option<&Path>| {
            places(&ReportArguments { results: results.to_owned(), output: output.map(Path::to_owned) })
        };
        let file = directory.join(RESULTS);
        assert_eq!(asked(directory, None), (file.clone(), directory.to_owned()));
        assert_eq!(asked(&file, Some(Path::new("else/where"))), (file, "else/where".into()));
        assert_eq!(asked(Path::new("other.jsonl"), None), ("other.jsonl".into(), ".".into()));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_one_sentence() {
        let directory = tempfile::tempdir().expect("a directory");
        let results = directory.path().join(RESULTS);
        fs::write(&results, results::tests::lines(&sample::header(), &[])).expect("written");
        let sentence = write(&results, &results.join("below")).expect_err("a file is no directory").to_string();
        assert!(sentence.contains("below") && !sentence.contains('\n'), "{sentence}");
    }
}

//! The table *operation, promise, test* of `docs/SEMANTICS.md` names only existing tests, and it names every behaviour test.

use std::collections::BTreeSet;
use std::path::Path;

/// Words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn every_promise_names_tests_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/SEMANTICS.md")).expect("the page");
    let (_, table) = text.split_once("## Operation, promise, test").expect("the table");
    let there: BTreeSet<&str> = tandemfs_posix::tests().iter().map(|test| test.name).collect();
    let mut named: BTreeSet<&str> = BTreeSet::new();
    let mut rows = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let (_, tests) = row.trim_end_matches(" |").rsplit_once(" | ").expect("three columns");
        let (mut module, mut files) = ("", "");
        let mut any = false;
        for word in quoted(tests) {
            if word.contains('/') || word.ends_with(".rs") {
                let path = if word.contains('/') { word.to_owned() } else { format!("{files}/{word}") };
                assert!(root.join(&path).is_file(), "{path} of: {row}");
                files = word.rsplit_once('/').map_or(files, |(directory, _)| directory);
                any = true;
            } else if word.starts_with("make ") {
                any = true;
            } else {
                let name = word.rsplit_once("::").map_or(word, |(of, name)| {
                    module = of;
                    name
                });
                let found: Vec<&str> = there
                    .iter()
                    .filter(|test| test.split_once("::").is_some_and(|(of, test)| of == module && (name == "*" || test == name)))
                    .copied()
                    .collect();
                assert!(!found.is_empty(), "{module}::{name} of: {row}");
                named.extend(found);
                any = true;
            }
        }
        assert!(any, "no test: {row}");
        rows += 1;
    }
    assert!(rows > 30, "{rows} rows");
    let unnamed: Vec<&&str> = there.difference(&named).collect();
    assert!(unnamed.is_empty(), "no row names {unnamed:?}");
}

//! Checks the tags of rules: `[J1]` at the head of a module, `R8` in `docs/RULES.md`. Each tag is defined once in the whole tree, and every
//! cited tag is defined.
//!
//! A definition is a line of a module's head that begins with the tag: `//! [J1] A record …`, or `//! * J1: A record …` where rustdoc would
//! take the brackets for a link. A rule is a heading of `docs/RULES.md`: `### R8 Data, flush, record`. Citations are: tags in brackets in a
//! comment, a string or a document; tags in the first column of a table of rules; and every word like `R8`.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::rust_text::comments_and_strings;
use crate::tree::{File, Tree};

const RULES: &str = "docs/RULES.md";
/// Not checked: the tests of this crate contain wrong tags on purpose.
const SELF: &str = "crates/xtask/";

/// A file, and the checked text of each of its lines.
struct Source<'t> {
    file: &'t File,
    lines: Vec<String>,
}

struct Place {
    path: String,
    line: usize,
}

/// Checks definitions, then citations.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let sources = tree.sources.iter().filter(|file| !file.path.starts_with(SELF));
    let sources = sources.map(|file| Source { file, lines: comments_and_strings(&file.text) });
    let documents = tree.documents.iter().map(|file| Source { file, lines: file.text.lines().map(str::to_owned).collect() });
    let all: Vec<Source<'_>> = sources.chain(documents).collect();
    let mut findings = Vec::new();
    let defined = definitions(&all, &mut findings);
    for source in &all {
        citations(source, &defined, &mut findings);
    }
    findings
}

fn definitions(all: &[Source<'_>], findings: &mut Vec<Finding>) -> BTreeMap<String, Place> {
    let mut defined: BTreeMap<String, Place> = BTreeMap::new();
    for source in all {
        for (index, line) in source.lines.iter().enumerate() {
            let Some(tag) = defined_by(&source.file.path, line) else { continue };
            let here = Place { path: source.file.path.clone(), line: index + 1 };
            if is_rule(tag) && here.path != RULES {
                let sentence = format!("[{tag}] looks like a rule of {RULES}; choose another prefix");
                findings.push(Finding { path: here.path, line: here.line, sentence });
            } else if let Some(first) = defined.get(tag) {
                let sentence =
                    format!("[{tag}] is defined at {}:{} already; a tag is one file's, choose another prefix", first.path, first.line);
                findings.push(Finding { path: here.path, line: here.line, sentence });
            } else {
                defined.insert(tag.to_owned(), here);
            }
        }
    }
    defined
}

/// The tag that a line defines.
fn defined_by<'l>(path: &str, line: &'l str) -> Option<&'l str> {
    if path == RULES {
        let tag = line.strip_prefix("### ")?.split(' ').next()?;
        return is_rule(tag).then_some(tag);
    }
    let head = line.trim_start().strip_prefix("//! ").filter(|_| path.ends_with(".rs"))?;
    let tag = match head.strip_prefix("* ") {
        Some(item) => item.split_once(": ")?.0,
        None => head.strip_prefix('[')?.split_once("] ")?.0,
    };
    is_tag(tag).then_some(tag)
}

fn citations(source: &Source<'_>, defined: &BTreeMap<String, Place>, findings: &mut Vec<Finding>) {
    let mut is_table_of_rules = false;
    for (index, line) in source.lines.iter().enumerate() {
        let mut cited = in_brackets(line);
        cited.extend(words(line).filter(|word| is_rule(word)));
        is_table_of_rules = line.starts_with('|') && (is_table_of_rules || line.starts_with("| rule |"));
        if is_table_of_rules && let Some(cell) = line.split('|').nth(1) {
            cited.extend(words(cell).filter(|word| is_tag(word)));
        }
        cited.sort_unstable();
        cited.dedup();
        for tag in cited.into_iter().filter(|tag| !defined.contains_key(*tag)) {
            let sentence = match is_rule(tag) {
                true => format!("{tag} is no rule of {RULES}"),
                false => format!("[{tag}] is defined at the head of no file"),
            };
            findings.push(Finding { path: source.file.path.clone(), line: index + 1, sentence });
        }
    }
}

fn in_brackets(line: &str) -> Vec<&str> {
    line.match_indices('[').filter_map(|(at, _)| line[at + 1..].split_once(']')).map(|(tag, _)| tag).filter(|tag| is_tag(tag)).collect()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|character: char| !character.is_alphanumeric() && character != '_')
}

/// One to three capitals and a number.
fn is_tag(word: &str) -> bool {
    let capitals = word.bytes().take_while(u8::is_ascii_uppercase).count();
    let digits = &word[capitals..];
    (1..=3).contains(&capitals) && (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_rule(word: &str) -> bool {
    word.starts_with('R') && word[1..].starts_with(|next: char| next.is_ascii_digit()) && is_tag(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    const RULE: (&str, &str) = ("docs/RULES.md", "### R8 Data, flush, record\n");

    #[test]
    fn what_is_defined_may_be_cited() {
        let head = "//! [AB1] One.\n//! * AB2: Two.\n//!\n//! [AB1]: super\nfn f() {} // [AB2], RULES R8\n";
        let other = "/// ([AB1]–[AB2] of `a.rs`; R8)\nfn f() { g(\"[AB1]\") }\n";
        let table = "Rules [AB1].\n\n| rule | bug |\n|---|---|\n| AB1, R8 | x |\n| – | y |\n";
        assert_eq!(found(&[RULE, ("crates/a/src/a.rs", head), ("crates/a/src/b.rs", other), ("docs/TESTING.md", table)]), [""; 0]);
    }

    #[test]
    fn a_citation_of_nothing_is_found() {
        let source = "//! Head.\n\nfn f() {} // [PC1]\n/// RULES R7\nfn g() { assert!(true, \"[PC2]\") }\n";
        let expected = [
            "crates/a/src/a.rs:3: [PC1] is defined at the head of no file",
            "crates/a/src/a.rs:4: R7 is no rule of docs/RULES.md",
            "crates/a/src/a.rs:5: [PC2] is defined at the head of no file",
            "docs/TESTING.md:3: R9 is no rule of docs/RULES.md",
            "docs/TESTING.md:3: [WL5] is defined at the head of no file",
        ];
        let table = "| rule | bug |\n|---|---|\n| R9, WL5 | x |\n";
        assert_eq!(found(&[RULE, ("crates/a/src/a.rs", source), ("docs/TESTING.md", table)]), expected);
    }

    #[test]
    fn code_cites_nothing() {
        assert_eq!(found(&[RULE, ("crates/a/src/a.rs", "fn f<R1>(x: [u8; 4]) -> [N1; 2] { x[I2] }\n")]), [""; 0]);
    }

    #[test]
    fn a_tag_of_two_files_is_found() {
        let files = [("crates/a/src/a.rs", "//! [C1] One.\n"), ("crates/b/src/b.rs", "//! Head.\n//! [C1] Other.\n")];
        let expected = "crates/b/src/b.rs:2: [C1] is defined at crates/a/src/a.rs:1 already; a tag is one file's, choose another prefix";
        assert_eq!(found(&files), [expected]);
    }

    #[test]
    fn a_tag_that_shadows_a_rule_is_found() {
        let expected = "crates/a/src/a.rs:1: [R8] looks like a rule of docs/RULES.md; choose another prefix";
        assert_eq!(found(&[RULE, ("crates/a/src/a.rs", "//! [R8] A reply.\n")]), [expected]);
    }

    #[test]
    fn a_rule_that_stands_twice_is_found() {
        let twice = "docs/RULES.md:2: [R8] is defined at docs/RULES.md:1 already; a tag is one file's, choose another prefix";
        assert_eq!(found(&[("docs/RULES.md", "### R8 One\n### R8 Two\n")]), [twice]);
    }
}

//! Checks the book that `docs/` is (`docs/book.toml`): its summary names each page once, and nothing that is no page. mdBook makes no page of
//! what the summary leaves out, and of two entries for one page it would make one.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::links::from_document;
use crate::markdown::{links, without_code};
use crate::tree::Tree;

/// The pages of the book.
pub(crate) const FOLDER: &str = "docs/";
/// The contents of the book, in order.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// Checks the summary against the pages.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let is_page = |path: &str| path.starts_with(FOLDER) && path != SUMMARY;
    let pages: Vec<&str> = tree.documents.iter().map(|file| file.path.as_str()).filter(|path| is_page(path)).collect();
    let text = tree.documents.iter().find(|file| file.path == SUMMARY).map_or("", |file| &file.text);
    let mut findings = Vec::new();
    let mut found = |line, sentence| findings.push(Finding { path: SUMMARY.to_owned(), line, sentence });
    let mut named: BTreeMap<String, usize> = BTreeMap::new();
    for link in links(&without_code(text)) {
        match from_document(SUMMARY, link.target).filter(|path| pages.contains(&path.as_str())) {
            None => found(link.line, format!("{} is no page of {FOLDER}; name one, without an anchor", link.target)),
            Some(page) => match named.get(&page) {
                Some(first) => found(link.line, format!("{page} is named in line {first} already; a page has one place")),
                None => drop(named.insert(page, link.line)),
            },
        }
    }
    for page in pages.into_iter().filter(|page| !named.contains_key(*page)) {
        found(1, format!("{page} is a page that the summary does not name; give it a place"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(summary: &str) -> Vec<String> {
        let files = [(SUMMARY, summary), ("docs/one.md", ""), ("docs/papers/two.md", ""), ("docs/zones.svg", ""), ("README.md", "")];
        check(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_page_once_is_right() {
        assert_eq!(found("# Summary\n\n[One](one.md)\n\n# Papers\n\n- [Two](./papers/two.md)\n"), [""; 0]);
    }

    #[test]
    fn a_page_that_is_missing_is_found() {
        let missing = |page: &str| format!("docs/SUMMARY.md:1: {page} is a page that the summary does not name; give it a place");
        assert_eq!(found("- [One](one.md)\n"), [missing("docs/papers/two.md")]);
        assert_eq!(found("- [One](one.md)\n```\n- [Two](papers/two.md)\n```\n"), [missing("docs/papers/two.md")]);
        let without: Vec<String> = check(&Tree::of(&[("docs/one.md", "")])).iter().map(ToString::to_string).collect();
        assert_eq!(without, [missing("docs/one.md")], "without a summary");
    }

    #[test]
    fn a_page_that_stands_twice_is_found() {
        let expected = "docs/SUMMARY.md:3: docs/one.md is named in line 1 already; a page has one place";
        assert_eq!(found("- [One](one.md)\n- [Two](papers/two.md)\n- [Once more](papers/../one.md)\n"), [expected]);
    }

    #[test]
    fn what_is_no_page_is_found() {
        for target in ["gone.md", "../README.md", "zones.svg", "one.md#head", "SUMMARY.md", "papers", ""] {
            let expected = format!("docs/SUMMARY.md:3: {target} is no page of docs/; name one, without an anchor");
            assert_eq!(found(&format!("- [One](one.md)\n- [Two](papers/two.md)\n- [x]({target})\n")), [expected], "{target}");
        }
    }
}

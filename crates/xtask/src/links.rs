//! Checks the links and pictures of documents. A link without a scheme leads to a file of the repository, and its anchor to a heading there. A
//! picture has a text, for who cannot see it. A page of `docs/` links to files below `docs/` alone: these pages are a book, and mdBook makes
//! links to other documents dead.

use std::collections::{BTreeMap, BTreeSet};

use crate::book;
use crate::finding::Finding;
use crate::markdown::{Link, anchors, links, without_code};
use crate::paths::HISTORY;
use crate::tree::{File, Tree};

/// The anchors of each document, by its path.
type Anchors<'t> = BTreeMap<&'t str, BTreeSet<String>>;

/// Checks every document. The links of the summary are those of the book ([`book`]).
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let known: Anchors<'_> = tree.documents.iter().map(|file| (file.path.as_str(), anchors(&file.text))).collect();
    let checked = tree.documents.iter().filter(|file| file.path != HISTORY && file.path != book::SUMMARY);
    checked.flat_map(|file| of_document(tree, &known, file)).collect()
}

fn of_document(tree: &Tree, known: &Anchors<'_>, file: &File) -> Vec<Finding> {
    let prose = without_code(&file.text);
    let mut findings = Vec::new();
    for link in links(&prose) {
        let sentences = [without_a_text(&link), wrong_target(tree, known, &file.path, link.target)];
        for sentence in sentences.into_iter().flatten() {
            findings.push(Finding { path: file.path.clone(), line: link.line, sentence });
        }
    }
    findings
}

fn without_a_text(picture: &Link<'_>) -> Option<String> {
    let is_without = picture.is_picture && picture.text.trim().is_empty();
    is_without.then(|| "a picture without a text; say between the brackets what it shows".to_owned())
}

/// What is wrong with a target, as a sentence.
fn wrong_target(tree: &Tree, known: &Anchors<'_>, document: &str, target: &str) -> Option<String> {
    if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (link, anchor) = target.split_once('#').map_or((target, None), |(link, anchor)| (link, Some(anchor)));
    let path = if link.is_empty() { Some(document.to_owned()) } else { from_document(document, link) };
    let Some(path) = path.filter(|path| tree.paths.contains(path)) else {
        return Some(format!("{link} is not in the repository; name the file that is meant"));
    };
    if !tree.has_file(&path) {
        return Some(format!("{link} is a folder; name the file that is meant"));
    }
    if document.starts_with(book::FOLDER) && !path.starts_with(book::FOLDER) {
        return Some(format!("{link} is no file of the book; name it in backticks instead of a link"));
    }
    match (anchor, known.get(path.as_str())) {
        (Some(anchor), None) => Some(format!("the headings of {path} are not checked; link to it without #{anchor}")),
        (Some(anchor), Some(anchors)) if !anchors.contains(anchor) => {
            Some(format!("{path} has no heading with the anchor #{anchor}; name one of its headings"))
        }
        _ => None,
    }
}

/// The path of a link from the root of the repository. `None` where it leads out of it.
pub(crate) fn from_document(document: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            other => parts.push(other),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "# The format\n## Zones, units\n";

    fn found(path: &str, text: &str) -> Vec<String> {
        let files = [(path, text), ("docs/FORMAT.md", FORMAT), ("docs/pictures/zones.svg", ""), ("crates/fs/src/journal/tx.rs", "")];
        check(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_there_is_not_found() {
        let text = "# Here\n[a](docs/FORMAT.md) [b](docs/FORMAT.md#zones-units) [c](https://example.org/x.md#y) [d](#here)\n\
                    [e](mailto:a@example.org) [f](crates/fs/src/journal/tx.rs) `[g](gone.md)`\n```\n[h](gone.md)\n```\n";
        assert_eq!(found("README.md", text), [""; 0]);
        let page = "[a](FORMAT.md#the-format) ![zones](pictures/zones.svg) [b](./FORMAT.md)\n";
        assert_eq!(found("docs/TESTING.md", page), [""; 0]);
        let below = "[a](../FORMAT.md#zones-units)\n![zones](../pictures/zones.svg)\n";
        assert_eq!(found("docs/papers/one.md", below), [""; 0]);
        assert_eq!(found(HISTORY, "[a](docs/GONE.md)\n"), [""; 0], "may name files that no longer exist");
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        let expected = |link: &str| format!("README.md:2: {link} is not in the repository; name the file that is meant");
        for link in ["docs/GONE.md", "FORMAT.md", "journal/tx.rs", "../book/docs/FORMAT.md", "/docs/FORMAT.md"] {
            assert_eq!(found("README.md", &format!("\n[a\nb]({link})\n")), [expected(link)], "{link}");
            assert_eq!(found("README.md", &format!("\n<a href=\"{link}\">a</a>\n")), [expected(link)], "{link}");
        }
        assert_eq!(found("README.md", "\n[a]: docs/GONE.md\n"), [expected("docs/GONE.md")]);
        let folder = "README.md:1: docs/pictures is a folder; name the file that is meant";
        assert_eq!(found("README.md", "[a](docs/pictures)\n"), [folder]);
        let below = "docs/papers/one.md:1: FORMAT.md is not in the repository; name the file that is meant";
        assert_eq!(found("docs/papers/one.md", "[a](FORMAT.md)\n"), [below]);
    }

    #[test]
    fn an_anchor_without_a_heading_is_found() {
        let expected =
            |path: &str, anchor: &str| format!("README.md:1: {path} has no heading with the anchor #{anchor}; name one of its headings");
        assert_eq!(found("README.md", "[a](docs/FORMAT.md#zones)\n"), [expected("docs/FORMAT.md", "zones")]);
        assert_eq!(found("README.md", "[a](docs/FORMAT.md#Zones-units)\n"), [expected("docs/FORMAT.md", "Zones-units")]);
        assert_eq!(found("README.md", "[a](#zones-units)\n"), [expected("README.md", "zones-units")]);
        let source = "README.md:1: the headings of crates/fs/src/journal/tx.rs are not checked; link to it without #L1";
        assert_eq!(found("README.md", "[a](crates/fs/src/journal/tx.rs#L1)\n"), [source]);
    }

    #[test]
    fn a_link_out_of_the_book_is_found() {
        let expected = "docs/RULES.md:1: ../crates/fs/src/journal/tx.rs is no file of the book; name it in backticks instead of a link";
        assert_eq!(found("docs/RULES.md", "[a](../crates/fs/src/journal/tx.rs)\n"), [expected]);
    }

    #[test]
    fn a_picture_without_a_text_is_found() {
        let expected = "docs/RULES.md:2: a picture without a text; say between the brackets what it shows";
        for picture in [
            "![](pictures/zones.svg)",
            "![ ](pictures/zones.svg)",
            "![][zones]",
            "<img src=\"pictures/zones.svg\">",
            "<img src=\"pictures/zones.svg\" alt=\"\">",
        ] {
            assert_eq!(found("docs/RULES.md", &format!("\n{picture}\n")), [expected], "{picture}");
        }
        let gone = "docs/RULES.md:1: zones.svg is not in the repository; name the file that is meant";
        assert_eq!(found("docs/RULES.md", "![zones](zones.svg)\n"), [gone]);
    }
}

//! Checks that paths named in documents exist in the repository. Links are checked by `links.rs`.
//!
//! A path is a word in backticks that has the extension of a source, document, script or manifest, or begins with a folder of the repository.
//! A path that begins with a folder of the root is complete; any other path may leave out leading folders (`journal/tx.rs`).

use crate::finding::Finding;
use crate::tree::{File, Tree};

const ENDS: [&str; 4] = [".rs", ".md", ".sh", ".toml"];
const FOLDERS: [&str; 5] = ["crates/", "docs/", "scripts/", "fuzz/", "tests/"];
/// Files that commands create: `make fuzz`, and measurements in their folder of results.
const MADE: [&str; 4] = ["fuzz/artifacts", "fuzz/corpus", "report.md", "NAME.md"];
/// May name files that no longer exist.
pub(crate) const HISTORY: &str = "CHANGELOG.md";

/// Checks every document.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.documents.iter().filter(|file| file.path != HISTORY).flat_map(|file| of_document(tree, file)).collect()
}

fn of_document(tree: &Tree, file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let words = line.split('`').skip(1).step_by(2).flat_map(expanded);
        for path in words.filter_map(|word| path_of(&word).map(str::to_owned)).filter(|path| !is_named(tree, path)) {
            let sentence = format!("{path} is not in the repository; name the file that is meant");
            findings.push(Finding { path: file.path.clone(), line: index + 1, sentence });
        }
    }
    findings
}

/// A word once for each part in its braces: `a/{b,c}.rs` is `a/b.rs` and `a/c.rs`.
fn expanded(word: &str) -> Vec<String> {
    let braces = word.split_once('{').and_then(|(front, after)| after.split_once('}').map(|(parts, back)| (front, parts, back)));
    match braces {
        Some((front, parts, back)) => parts.split(',').flat_map(|part| expanded(&format!("{front}{part}{back}"))).collect(),
        None => vec![word.to_owned()],
    }
}

/// A word in backticks that names a file of the repository; a line number behind it is left out.
fn path_of(word: &str) -> Option<&str> {
    let path = word.split(':').next().unwrap_or(word);
    let is_plain = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte)) && !path.starts_with(['/', '.']);
    let is_ours =
        ENDS.iter().any(|end| path.ends_with(end) && path.len() > end.len()) || FOLDERS.iter().any(|folder| path.starts_with(folder));
    (is_plain && is_ours).then_some(path)
}

fn is_named(tree: &Tree, path: &str) -> bool {
    let is_whole = FOLDERS.iter().any(|folder| path.starts_with(folder));
    exists(tree, path)
        || is_made(path)
        || !is_whole && tree.paths.iter().any(|known| known.strip_suffix(path).is_some_and(|front| front.ends_with('/')))
}

fn is_made(path: &str) -> bool {
    MADE.iter().any(|folder| path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

fn exists(tree: &Tree, path: &str) -> bool {
    tree.paths.contains(path.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let files = [(path, text), ("docs/FORMAT.md", ""), ("crates/fs/src/journal/tx.rs", ""), ("scripts/run.sh", ""), ("Cargo.toml", "")];
        check(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_there_is_not_found() {
        let text = "`docs/FORMAT.md`, `crates/fs/`, `journal/tx.rs`, `tx.rs:12`, `fs/src/journal/tx.rs`, `scripts/run.sh`, `fuzz/corpus`\n\
                    `Cargo.toml`\n";
        assert_eq!(found("README.md", text), [""; 0]);
    }

    #[test]
    fn what_is_not_there_is_found() {
        let expected = |path: &str| format!("README.md:2: {path} is not in the repository; name the file that is meant");
        for path in
            ["docs/RULES.md", "journal/ring.rs", "x.rs", "crates/gone", "src/journal/tx.sh", "ournal/tx.rs", "tests/a/b", "fuzz/corpus2"]
        {
            assert_eq!(found("README.md", &format!("\n`{path}`\n")), [expected(path)], "{path}");
        }
        assert_eq!(found("README.md", "\n`crates/{fs,gone}/src/journal/tx.rs`\n"), [expected("crates/gone/src/journal/tx.rs")]);
    }

    #[test]
    fn what_is_no_path_of_the_repository_is_left_alone() {
        assert_eq!(found("README.md", "`/etc/fstab.sh` `~/.cargo/config.toml` `NAME/*.rs` `make run` `a b.rs` `.rs` `st_mode`\n"), [""; 0]);
    }
}

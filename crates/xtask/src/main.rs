//! Checks of this repository that the compiler does not make: `cargo run -p xtask -- lint`, part of `make lint`.
//!
//! A check gets the files as texts ([`tree::Tree`]) and returns findings. To add a check, write a module with such a function and add a
//! line to [`CHECKS`].

mod book;
mod finding;
mod floors;
mod links;
mod markdown;
mod paths;
mod rust_text;
mod tags;
mod tree;

use std::process::ExitCode;

use finding::Finding;
use tree::Tree;

/// All checks, in the order in which their findings are printed.
const CHECKS: [fn(&Tree) -> Vec<Finding>; 5] = [tags::check, paths::check, links::check, book::check, floors::check];

fn main() -> ExitCode {
    match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [command] if command == "lint" => lint(),
        _ => {
            eprintln!("usage: cargo run -p xtask -- lint");
            ExitCode::from(2)
        }
    }
}

fn lint() -> ExitCode {
    let tree = match tree::root().and_then(|root| Tree::load(&root)) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("the repository cannot be read: {error}");
            return ExitCode::from(2);
        }
    };
    let findings = check(&tree);
    for finding in &findings {
        eprintln!("{finding}");
    }
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(tree: &Tree) -> Vec<Finding> {
    CHECKS.iter().flat_map(|check| check(tree)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn this_repository_passes() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let findings: Vec<String> = check(&Tree::load(&root).expect("reads")).iter().map(ToString::to_string).collect();
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }
}

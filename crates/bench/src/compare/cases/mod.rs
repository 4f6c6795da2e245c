//! What is measured: a file a group of cases, each with a function `cases` that this registry calls.

mod applications;
mod buffered;
pub mod clients;
mod filebench;
mod fio;
mod micro;
mod postgres;
pub mod programs;
mod redis;
mod rocksdb;
mod scale;
mod sqlite;
#[cfg(test)]
pub mod support;
mod tree;

use super::case::{Case, Cases};

/// All cases, in the order of the report.
pub fn all() -> Cases {
    [micro::cases(), buffered::cases(), filebench::cases(), applications::cases(), scale::cases()].into_iter().flatten().collect()
}

/// The cases that words of the command line choose: a name, or the beginning of names.
///
/// # Errors
/// The word that is no case.
pub fn named(words: &[String]) -> Result<Cases, String> {
    let unknown = words.iter().find(|word| !all().iter().any(|case| is_named(&**case, word)));
    match unknown {
        Some(word) => Err(word.clone()),
        None => Ok(all().into_iter().filter(|case| words.is_empty() || words.iter().any(|word| is_named(&**case, word))).collect()),
    }
}

fn is_named(case: &dyn Case, word: &str) -> bool {
    case.name().starts_with(word)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_fit_a_command_line() {
        let names: Vec<String> = all().iter().map(|case| case.name()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        for name in &names {
            assert!(name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-'), "{name}");
        }
    }

    #[test]
    fn a_word_chooses_by_the_beginning_of_names() {
        let chosen = named(&["durable-".to_owned()]).unwrap_or_else(|word| panic!("{word}"));
        assert!(!chosen.is_empty() && chosen.iter().all(|case| case.name().starts_with("durable-")));
        assert_eq!(named(&["durable-".to_owned(), "nonsense".to_owned()]).err(), Some("nonsense".to_owned()));
        assert_eq!(named(&[]).unwrap_or_default().len(), all().len());
    }
}

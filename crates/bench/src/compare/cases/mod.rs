//! The registry of cases: one file for each group of cases, each with a function `cases`.

mod buffered;
pub mod clients;
mod filebench;
pub mod fio;
mod library;
mod names;
mod postgres;
pub mod programs;
mod redis;
mod rocksdb;
mod sqlite;
#[cfg(test)]
pub mod support;
mod tree;

use super::case::Cases;

/// All cases, in the order of the report.
pub fn all() -> Cases {
    let applications = [redis::cases(), sqlite::cases(), postgres::cases(), rocksdb::cases()];
    let groups = [fio::cases(), names::cases(), buffered::cases(), filebench::cases()];
    groups.into_iter().chain(applications).flatten().collect()
}

/// The cases selected by words of the command line: an exact name, otherwise a prefix of names.
///
/// # Errors
/// The word that matches no case.
pub fn named(words: &[String]) -> Result<Cases, String> {
    let cases = all();
    let names: Vec<String> = cases.iter().map(|case| case.name.clone()).collect();
    let is_meant = |name: &str, word: &String| name == word || (!names.contains(word) && name.starts_with(word.as_str()));
    match words.iter().find(|word| !names.iter().any(|name| is_meant(name, word))) {
        Some(word) => Err(word.clone()),
        None => {
            let is_chosen = |name: &String| words.is_empty() || words.iter().any(|word| is_meant(name, word));
            Ok(cases.into_iter().zip(&names).filter(|(_, name)| is_chosen(name)).map(|(case, _)| case).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_fit_a_command_line() {
        let names: Vec<String> = all().iter().map(|case| case.name.clone()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        for name in &names {
            assert!(name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-'), "{name}");
        }
    }

    #[test]
    fn a_word_chooses_by_the_beginning_of_names() {
        let chosen = named(&["durable-".to_owned()]).unwrap_or_else(|word| panic!("{word}"));
        assert!(!chosen.is_empty() && chosen.iter().all(|case| case.name.starts_with("durable-")));
        let one = named(&["durable-overwrite-4k-c1".to_owned()]).unwrap_or_else(|word| panic!("{word}"));
        assert_eq!(one.len(), 1, "not -c16 as well");
        assert_eq!(named(&["durable-".to_owned(), "nonsense".to_owned()]).err(), Some("nonsense".to_owned()));
        assert_eq!(named(&[]).unwrap_or_default().len(), all().len());
    }
}

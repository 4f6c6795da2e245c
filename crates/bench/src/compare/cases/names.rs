//! Operations on names, of which fio has none or only some: new files with an fsync, renames, creations, removals, attributes.
//!
//! [OPN1] The number of operations is the same for all file systems and any number of clients, who share them; each has its own directories.
//! [OPN2] Afterwards names are counted, and the last new file is read back.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::clients::{scaled, timed};
use super::library;
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};
use crate::workloads::content;
use crate::workloads::random::Random;

/// Names per directory.
const NAMES_PER_DIRECTORY: u64 = 10_000;
/// Files that are asked about.
const LOOKED_AT: u64 = 1000;
const PAGE: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    CreateDurable,
    RenameDurable,
    Create,
    Delete,
    MakeDirectory,
    RemoveDirectory,
    Look,
}

/// Kind, name, operations at scale 1, clients, whether `--quick` has it with one client, and the operation in words.
type Line = (Kind, &'static str, u64, &'static [u32], bool, &'static str);

const LINES: [Line; 7] = [
    (Kind::CreateDurable, "create-write-fsync-4k", 4000, &[1, 2, 4, 16], true, "new files of 4 KiB, each with fsync and close"),
    (Kind::RenameDurable, "rename-fsync", 4000, &[1, 2, 4, 16], false, "renames, each with fsync of the directory"),
    (Kind::Create, "create-files", 100_000, &[1, 4], true, "empty files created, no fsync"),
    (Kind::Delete, "delete-files", 100_000, &[1, 4], false, "empty files deleted, no fsync"),
    (Kind::MakeDirectory, "mkdir", 20_000, &[1], false, "directories made, no fsync"),
    (Kind::RemoveDirectory, "rmdir", 20_000, &[1], false, "directories removed, no fsync"),
    (Kind::Look, "getattr-warm", 400_000, &[1, 4], true, "calls of stat on 1,000 files that were looked at before"),
];

/// The cases of this file.
pub fn cases() -> Cases {
    let names = |line: Line| line.3.iter().map(move |clients| Names { line, clients: *clients }.case());
    LINES.into_iter().flat_map(names).collect()
}

#[derive(Clone, Copy)]
struct Names {
    line: Line,
    clients: u32,
}

impl Names {
    fn case(self) -> Case {
        let (kind, name, count, _, is_quick, what) = self.line;
        let description = format!("{count} {what}; at most {NAMES_PER_DIRECTORY} names in a directory; clients: {}", self.clients);
        Case {
            clients: self.clients,
            has_library_form: library::form(name).is_some(),
            is_durable: matches!(kind, Kind::CreateDurable | Kind::RenameDurable),
            share_least: match kind {
                Kind::CreateDurable | Kind::RenameDurable => 1.0,
                Kind::Look => 0.5,
                _ => 0.1,
            },
            is_quick: is_quick && self.clients == 1,
            bytes_needed: 512 << 20,
            ..Case::new(Group::Micro, format!("{name}-c{}", self.clients), description, move |stage| self.run(stage))
        }
    }

    fn run(self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let (kind, clients) = (self.line.0, u64::from(self.clients));
        let count = scaled(self.line.2, stage.scale, clients) / clients;
        if let (Some(fs), Some(form)) = (stage.library, library::form(self.line.1)) {
            return library::run(form, stage, fs, self.clients, count);
        }
        let names = match kind {
            Kind::RenameDurable => count + 1,
            Kind::Look => LOOKED_AT,
            _ => count,
        };
        let mut trees = (0..clients).map(|client| Tree::make(stage.directory, client, names)).collect::<Result<Vec<_>>>()?;
        for path in trees.iter().flat_map(|tree| &tree.names) {
            match kind {
                Kind::Delete | Kind::Look => drop(File::create_new(path)?),
                Kind::RemoveDirectory => fs::create_dir(path)?,
                Kind::RenameDurable if path.ends_with("name-000000") => File::create_new(path)?.sync_all()?,
                _ => {}
            }
        }
        if kind == Kind::Look {
            trees.iter().flat_map(|tree| &tree.names).try_for_each(|path| fs::metadata(path).map(drop))?;
        }
        let (seed, is_durable) = (stage.seed, stage.is_durable);
        let outcome = timed(stage, &mut trees, |tree, watch| {
            let (mut random, mut page) = (Random::new(seed, tree.client), vec![0; PAGE]);
            let opened = is_durable.then(|| File::open(&tree.directories[0])).transpose()?;
            for operation in 0..count as usize {
                let path = if kind == Kind::Look { &tree.names[random.below(LOOKED_AT) as usize] } else { &tree.names[operation] };
                if kind == Kind::CreateDurable {
                    content::fill(tree.client, operation as u64, &mut page);
                }
                watch.time(|| operate(kind, path, tree.names.get(operation + 1), &page, opened.as_ref()))?;
            }
            Ok(())
        })?;
        trees.iter().try_for_each(|tree| self.check(tree, count))?;
        Ok(outcome)
    }

    /// [OPN2]
    fn check(self, tree: &Tree, count: u64) -> Result<()> {
        let found: u64 = tree.directories.iter().map(|path| Ok(fs::read_dir(path)?.count() as u64)).sum::<Result<u64>>()?;
        let expected = match self.line.0 {
            Kind::Delete | Kind::RemoveDirectory => 0,
            Kind::RenameDurable => 1,
            Kind::Look => LOOKED_AT,
            _ => count,
        };
        let last = &tree.names[tree.names.len() - 1];
        let is_last = match self.line.0 {
            Kind::CreateDurable => fs::read(last)?.len() == PAGE && content::is(tree.client, count - 1, &fs::read(last)?),
            Kind::RenameDurable => last.exists(),
            _ => true,
        };
        match found == expected && is_last {
            true => Ok(()),
            false => Err(Failure::new(format!(
                "{}: {found} names are listed where there should be {expected}, or the last is wrong",
                self.line.1
            ))),
        }
    }
}

/// One operation; `next` is the name behind this one, and `directory` the open one of a rename; none where nothing is to be made durable.
fn operate(kind: Kind, path: &Path, next: Option<&PathBuf>, page: &[u8], directory: Option<&File>) -> Result<()> {
    match (kind, next) {
        (Kind::CreateDurable, _) => {
            let file = File::create_new(path)?;
            file.write_all_at(page, 0)?;
            directory.map_or(Ok(()), |_| file.sync_all())?;
        }
        (Kind::RenameDurable, Some(next)) => {
            fs::rename(path, next)?;
            directory.map_or(Ok(()), File::sync_all)?;
        }
        (Kind::RenameDurable, None) => return Err(Failure::new("a rename has no name to go to; this is a bug of the benchmark")),
        (Kind::Create, _) => drop(File::create_new(path)?),
        (Kind::Delete, _) => fs::remove_file(path)?,
        (Kind::MakeDirectory, _) => fs::create_dir(path)?,
        (Kind::RemoveDirectory, _) => fs::remove_dir(path)?,
        (Kind::Look, _) => {
            if !fs::metadata(path)?.is_file() {
                return Err(Failure::new("stat took a file for something else"));
            }
        }
    }
    Ok(())
}

/// A client's directories, and the names that it uses.
struct Tree {
    client: u64,
    directories: Vec<PathBuf>,
    names: Vec<PathBuf>,
}

impl Tree {
    fn make(below: &Path, client: u64, count: u64) -> Result<Self> {
        let directories: Vec<PathBuf> =
            (0..count.div_ceil(NAMES_PER_DIRECTORY)).map(|number| below.join(format!("client-{client}-{number}"))).collect();
        directories.iter().try_for_each(fs::create_dir)?;
        let name = |number: u64| directories[(number / NAMES_PER_DIRECTORY) as usize].join(format!("name-{number:06}"));
        Ok(Self { client, names: (0..count).map(name).collect(), directories })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_all;
    use crate::compare::peer::Peer;

    #[test]
    fn every_operation_is_done_once_and_timed() {
        run_all(&cases(), 0.002, |case, outcome, _| {
            assert_eq!(outcome.latencies.map(|latencies| latencies.count as f64), Some(outcome.units), "{}", case.name);
        });
    }

    #[test]
    fn the_library_takes_part_in_what_is_made_durable() {
        let all = cases();
        let library: Vec<&str> = all.iter().filter(|case| case.applies_to(Peer::TandemfsLibrary)).map(|case| case.name.as_str()).collect();
        assert_eq!(library, [1, 2, 4, 16].map(|clients| format!("create-write-fsync-4k-c{clients}")));
    }
}

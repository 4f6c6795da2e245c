//! Creates and removes hundreds of thousands of files and directories, and lists a large directory, without fsync.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::MIB;
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::compare::cases::clients::{scaled, share, timed};
use crate::failure::{Failure, Result};

const NAMES: u64 = 100_000;
const NAMES_OF_DIRECTORIES: u64 = 20_000;
/// Names per directory.
const NAMES_PER_DIRECTORY: u64 = 10_000;

/// The cases of this file.
pub fn cases() -> Cases {
    let mut cases = Cases::new();
    for kind in [Kind::Create, Kind::Delete] {
        cases.extend([1, 4].map(|clients| Box::new(Namespace { kind, clients }) as Box<dyn Case>));
    }
    cases.extend([Kind::MakeDirectory, Kind::RemoveDirectory].map(|kind| Box::new(Namespace { kind, clients: 1 }) as Box<dyn Case>));
    cases
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Create,
    Delete,
    MakeDirectory,
    RemoveDirectory,
}

struct Namespace {
    kind: Kind,
    clients: u32,
}

impl Case for Namespace {
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Create => "create-files",
            Kind::Delete => "delete-files",
            Kind::MakeDirectory => "mkdir",
            Kind::RemoveDirectory => "rmdir",
        };
        format!("{kind}-c{}", self.clients)
    }

    fn group(&self) -> Group {
        Group::Micro
    }

    fn description(&self) -> String {
        let what = match self.kind {
            Kind::Create => "empty files created",
            Kind::Delete => "empty files deleted",
            Kind::MakeDirectory => "directories made",
            Kind::RemoveDirectory => "directories removed",
        };
        format!("{} {what}, at most {NAMES_PER_DIRECTORY} in a directory, no fsync; clients: {}", self.names(), self.clients)
    }

    fn clients(&self) -> u32 {
        self.clients
    }

    fn share_least(&self) -> f64 {
        0.1
    }

    fn is_quick(&self) -> bool {
        self.kind == Kind::Create && self.clients == 1
    }

    fn bytes_needed(&self, _share: f64) -> u64 {
        512 * MIB
    }

    fn run(&self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let count = share(scaled(self.names(), stage.scale, u64::from(self.clients)), self.clients);
        let mut clients = (0..self.clients).map(|client| Tree::make(stage.directory, client, count)).collect::<Result<Vec<_>>>()?;
        let makes: fn(&Path) -> Result<()> = match self.kind {
            Kind::Create | Kind::Delete => |path| Ok(File::create_new(path).map(drop)?),
            Kind::MakeDirectory | Kind::RemoveDirectory => |path| Ok(fs::create_dir(path)?),
        };
        let removes: fn(&Path) -> Result<()> = match self.kind {
            Kind::Create | Kind::Delete => |path| Ok(fs::remove_file(path)?),
            Kind::MakeDirectory | Kind::RemoveDirectory => |path| Ok(fs::remove_dir(path)?),
        };
        let is_removed = matches!(self.kind, Kind::Delete | Kind::RemoveDirectory);
        if is_removed {
            clients.iter().flat_map(|tree| &tree.names).try_for_each(|path| makes(path))?;
        }
        let operation = if is_removed { removes } else { makes };
        let samples = timed(stage, &mut clients, |tree, watch| tree.names.iter().try_for_each(|path| watch.time(|| operation(path))))?;
        let left: usize = clients.iter().map(Tree::count).sum::<Result<usize>>()?;
        let expected = if is_removed { 0 } else { count as usize * clients.len() };
        if left != expected {
            return Err(Failure::new(format!("{}: {left} names are listed where there should be {expected}", self.name())));
        }
        let units = (count * u64::from(self.clients)) as f64;
        Ok(Outcome { units, unit: "operations", latencies: Some(samples), own_time: None })
    }
}

impl Namespace {
    fn names(&self) -> u64 {
        match self.kind {
            Kind::Create | Kind::Delete => NAMES,
            Kind::MakeDirectory | Kind::RemoveDirectory => NAMES_OF_DIRECTORIES,
        }
    }
}

/// A client's directories, and the names that it uses.
struct Tree {
    directories: Vec<PathBuf>,
    names: Vec<PathBuf>,
}

impl Tree {
    fn make(below: &Path, client: u32, count: u64) -> Result<Self> {
        let directories: Vec<PathBuf> =
            (0..count.div_ceil(NAMES_PER_DIRECTORY)).map(|number| below.join(format!("client-{client}-{number}"))).collect();
        directories.iter().try_for_each(fs::create_dir)?;
        let name = |number: u64| directories[(number / NAMES_PER_DIRECTORY) as usize].join(format!("name-{number:06}"));
        Ok(Self { names: (0..count).map(name).collect(), directories })
    }

    fn count(&self) -> Result<usize> {
        self.directories.iter().map(|path| Ok(fs::read_dir(path)?.count())).sum()
    }
}

//! Buffered work on many small files: a source tree like the kernel's ([`super::tree`]), processed by Debian's programs.
//!
//! [BU1] The measured time is that of the program. Data that is still dirty then is written by the unmount. `sync-untar` includes the
//!       write-back, so the two together show how much a file system defers.
//! [BU2] Cold: everything written, unmounted, mounted, kernel caches dropped. Warm: the same program ran once before.
//! [BU3] Results are verified: number and size of all files, and bytes of all files in small runs, of one in [`COMPARED_EVERY`] in large
//!       ones. A program's output is counted.
//! [BU4] Source files are in the host's memory (`untar`) or in the same file system (`cp -r`).
//! [BU5] A repository has a quarter of the tree. Its objects are not compressed, since zlib's cost is not the file system's. Its index is
//!       newer than its files, so git trusts it and does not read the files again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::clients::scaled;
use super::programs;
use super::tree::{FILES, NEEDLE, Tree, count_files};
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};

/// In large runs one of this many files is compared byte by byte.
const COMPARED_EVERY: usize = 16;
/// Largest tree of which every byte is compared.
const COMPARED_ALL_MAX: usize = 4000;
/// Number of `git status` calls in the warm case.
const WARM_TIMES: u64 = 5;
/// Size of a repository relative to the tree ([BU5]).
const REPOSITORY_SHARE: f64 = 0.25;

/// The cases of this file.
pub fn cases() -> Cases {
    use Work::{Checkout, Copy, Find, Grep, List, Remove, Status, Untar};
    [
        Untar { sync: false },
        Untar { sync: true },
        Copy,
        Remove,
        Grep { cold: true },
        Grep { cold: false },
        Find,
        List,
        Status { cold: true },
        Status { cold: false },
        Checkout,
    ]
    .into_iter()
    .map(|work| Box::new(work) as Box<dyn Case>)
    .collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Untar { sync: bool },
    Copy,
    Remove,
    Grep { cold: bool },
    Find,
    List,
    Status { cold: bool },
    Checkout,
}

impl Case for Work {
    fn name(&self) -> String {
        match self {
            Self::Untar { sync: false } => "untar",
            Self::Untar { sync: true } => "sync-untar",
            Self::Copy => "cp-r",
            Self::Remove => "rm-r",
            Self::Grep { cold: true } => "grep-cold",
            Self::Grep { cold: false } => "grep-warm",
            Self::Find => "readdir-cold",
            Self::List => "list-cold",
            Self::Status { cold: true } => "git-status-cold",
            Self::Status { cold: false } => "git-status-warm",
            Self::Checkout => "git-checkout",
        }
        .to_owned()
    }

    fn group(&self) -> Group {
        Group::Buffered
    }

    fn description(&self) -> String {
        let tree = format!("a tree like a kernel's, {FILES} files of 15 KiB on average (median 5 KiB) in 5,000 directories");
        let repository = format!("a repository of {} files like a kernel's", FILES as f64 * REPOSITORY_SHARE);
        match self {
            Self::Untar { sync: false } => format!("tar -x of {tree}, from memory; nothing is synchronised"),
            Self::Untar { sync: true } => format!("tar -x of {tree}, from memory, and sync at the end"),
            Self::Copy => format!("cp -r of {tree}, within the file system"),
            Self::Remove => format!("rm -r of {tree}, after a mount"),
            Self::Grep { cold: true } => format!("grep -r of a word in {tree}, after a mount"),
            Self::Grep { cold: false } => format!("grep -r of a word in {tree}, the second time"),
            Self::Find => format!("find -type f in {tree}, after a mount"),
            Self::List => format!("ls -lR of {tree}, after a mount"),
            Self::Status { cold: true } => format!("git status in {repository}, after a mount"),
            Self::Status { cold: false } => format!("git status in {repository}, {WARM_TIMES} times, after one that is not counted"),
            Self::Checkout => format!("git checkout of another commit in {repository}: 10 % of the files change, 2 % go and come"),
        }
    }

    fn programs(&self) -> &'static [&'static str] {
        match self {
            Self::Untar { .. } => &["tar"],
            Self::Copy => &["cp"],
            Self::Remove => &["rm"],
            Self::Grep { .. } => &["grep"],
            Self::Find => &["find"],
            Self::List => &["ls"],
            Self::Status { .. } | Self::Checkout => &["git"],
        }
    }

    fn is_quick(&self) -> bool {
        matches!(self, Self::Untar { sync: false } | Self::Status { cold: false })
    }

    fn share_least(&self) -> f64 {
        0.12
    }

    fn bytes_needed(&self, share: f64) -> u64 {
        // 15 KiB, and the unused rest of a block, per file.
        let tree = Tree::count(share) * (18 << 10);
        match self {
            Self::Copy => 2 * tree,
            _ => tree * 5 / 4,
        }
    }

    fn run(&self, stage: &mut Stage<'_>) -> Result<Outcome> {
        match self {
            Self::Status { .. } | Self::Checkout => self.run_in_repository(stage),
            _ => self.run_on_tree(stage),
        }
    }
}

impl Work {
    fn run_on_tree(self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let tree = Tree::new(stage.scale);
        let (directory, scratch) = (stage.directory.to_owned(), stage.scratch.to_owned());
        let [source, copy] = ["tree", "copy"].map(|name| directory.join(name));
        let archive = scratch.join("tree.tar");
        fs::create_dir(&source)?;
        match self {
            Self::Untar { .. } => tree.archive(&archive)?,
            _ => tree.lay_out(&source)?,
        }
        let mut command = programs::command(self.programs()[0], &scratch)?;
        match self {
            Self::Untar { .. } => command.arg("-xf").arg(&archive).arg("-C").arg(&source),
            Self::Copy => command.arg("-r").arg(&source).arg(&copy),
            Self::Remove => command.arg("-r").arg(&source),
            Self::Grep { .. } => command.args(["-r", NEEDLE]).arg(&source),
            Self::Find => command.arg(&source).args(["-type", "f"]),
            _ => command.args(["-l", "-R"]).arg(&source),
        };
        match self {
            // [BU2].
            Self::Grep { cold: false } => drop(programs::run(&mut command, &scratch)?),
            // Nothing exists yet that could be cached.
            Self::Untar { .. } => {}
            _ => stage.make_cold()?,
        }
        let said = stage.time(|| {
            let said = programs::run(&mut command, &scratch)?;
            if self == (Self::Untar { sync: true }) {
                rustix::fs::syncfs(File::open(&source)?)?;
            }
            Ok(said)
        })?;
        let files = tree.files.len() as u64;
        let every = if tree.files.len() <= COMPARED_ALL_MAX { 1 } else { COMPARED_EVERY };
        match self {
            Self::Untar { .. } => tree.compare(&source, every)?,
            Self::Copy => tree.compare(&copy, every)?,
            Self::Remove if source.exists() => return Err(Failure::new("rm -r has left something")),
            Self::Remove => {}
            Self::Grep { .. } => counted(said.lines().filter(|line| line.contains(NEEDLE)).count() as u64, tree.needles(), "lines")?,
            Self::Find => counted(said.lines().count() as u64, files, "files")?,
            _ => counted(said.lines().filter(|line| line.starts_with('-')).count() as u64, files, "files")?,
        }
        Ok(Outcome { units: files as f64, unit: "files", latencies: None, own_time: None })
    }

    fn run_in_repository(self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let tree = Tree::with_files(scaled((FILES as f64 * REPOSITORY_SHARE) as u64, stage.scale, 200));
        let (scratch, repository) = (stage.scratch.to_owned(), stage.directory.join("repository"));
        fs::create_dir(&repository)?;
        let history = scratch.join("history");
        let touched = tree.history(&history)?;
        git(&repository, &scratch, &["init", "-q", "-b", "none", "."])?;
        let mut import = git_command(&repository, &scratch)?;
        import.args(["fast-import", "--quiet", "--done"]).stdin(File::open(&history)?);
        programs::run(&mut import, &scratch)?;
        fs::remove_file(&history)?;
        git(&repository, &scratch, &["checkout", "-q", "first"])?;
        trust_index(&repository)?;
        match self {
            Self::Status { cold: false } => drop(git(&repository, &scratch, &["status", "--porcelain"])?),
            _ => stage.make_cold()?,
        }
        let arguments: &[&str] = if self == Self::Checkout { &["checkout", "-q", "second"] } else { &["status", "--porcelain"] };
        // When warm it takes some milliseconds, partly for git's start.
        let times = if self == (Self::Status { cold: false }) { WARM_TIMES } else { 1 };
        let said = stage.time(|| (0..times).map(|_| git(&repository, &scratch, arguments)).collect::<Result<String>>())?;
        if !said.is_empty() {
            return Err(Failure::new(format!("git says `{}` about a tree that nobody changed", said.lines().next().unwrap_or_default())));
        }
        let files = tree.files.len() as u64;
        if self != Self::Checkout {
            return Ok(Outcome { units: (files * times) as f64, unit: "files", latencies: None, own_time: None });
        }
        let clean = git(&repository, &scratch, &["status", "--porcelain"])?;
        let head = git(&repository, &scratch, &["rev-parse", "--abbrev-ref", "HEAD"])?;
        if !clean.is_empty() || head.trim() != "second" {
            return Err(Failure::new("the second commit was not checked out whole"));
        }
        let administration = count_files(&repository.join(".git"))?;
        counted(count_files(&repository)? - administration, files, "files")?;
        Ok(Outcome { units: touched as f64, unit: "files", latencies: None, own_time: None })
    }
}

fn counted(found: u64, expected: u64, what: &str) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => Err(Failure::new(format!("{found} {what} were found instead of {expected}"))),
    }
}

fn git_command(repository: &Path, scratch: &Path) -> Result<std::process::Command> {
    let mut command = programs::command("git", scratch)?;
    command.current_dir(repository).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_OPTIONAL_LOCKS", "0").env_remove("GIT_DIR");
    command.args(["-c", "core.compression=0", "-c", "gc.auto=0", "-c", "safe.directory=*", "-c", "advice.detachedHead=false"]);
    Ok(command)
}

fn git(repository: &Path, scratch: &Path, arguments: &[&str]) -> Result<String> {
    programs::run(git_command(repository, scratch)?.args(arguments), scratch)
}

/// [BU5].
fn trust_index(repository: &Path) -> Result<()> {
    let index: PathBuf = repository.join(".git/index");
    Ok(File::options().write(true).open(index)?.set_modified(SystemTime::now() + Duration::from_secs(5))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_once;

    #[test]
    fn every_program_does_its_work_and_is_checked() {
        for case in cases() {
            let (outcome, clock) = run_once(&*case, 1e-3).unwrap_or_else(|failure| panic!("{}: {failure}", case.name()));
            let is_cold = !case.name().ends_with("-warm") && !case.name().contains("untar");
            let expected = match case.name().as_str() {
                "git-checkout" => 24.0,
                "git-status-warm" => 1000.0,
                _ => 200.0,
            };
            assert_eq!((outcome.units, clock.ended, clock.cold), (expected, 1, u32::from(is_cold)), "{}", case.name());
        }
    }
}

//! Buffered work on many small files: a source tree like the kernel's ([`super::tree`]), processed by Debian's programs.
//!
//! [BU1] The measured time is that of the program. Data that is still dirty then is written by the unmount. `sync-untar` includes the
//!       write-back, so the two together show how much a file system defers.
//! [BU2] Cold: everything written, unmounted, mounted, kernel caches dropped. Warm: the same program ran once before.
//! [BU3] Results are verified: copies by `diff -r` with the tree in the host's memory, the output of programs by its number of lines.
//! [BU4] Source files are in the host's memory (`untar`) or in the same file system (`cp -r`).
//! [BU5] A repository has a quarter of the tree. Its objects are not compressed, since zlib's cost is not the file system's. Its index is
//!       newer than its files, so git trusts it and does not read the files again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::clients::scaled;
use super::programs;
use super::tree::{FILES, NEEDLE, SHRINKS, Tree};
use crate::compare::case::{Case, Cases, Group, Outcome, Stage};
use crate::failure::{Failure, Result};

/// Name of the tree's root.
const TREE: &str = "tree";
/// Number of `git status` calls in the warm case.
const WARM_TIMES: u64 = 5;
/// Size of a repository relative to the tree ([BU5]).
const REPOSITORY_SHARE: f64 = 0.25;

/// What must hold after a program has run.
#[derive(Clone, Copy)]
enum Check {
    /// A directory holds the tree.
    Same(&'static str),
    /// The tree is gone.
    Gone,
    /// The program printed as many such lines as the tree has files.
    Files(fn(&str) -> bool),
    /// It printed as many such lines as the tree has needles.
    Needles(fn(&str) -> bool),
}

/// A program on the tree, which is called `tree` in its working directory.
#[derive(Clone, Copy)]
struct Program {
    name: &'static str,
    /// The operation, before and after the tree in a sentence.
    what: (&'static str, &'static str),
    program: &'static [&'static str],
    arguments: &'static [&'static str],
    start: Start,
    check: Check,
    synchronizes: bool,
    is_quick: bool,
}

/// The tree when a program starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// An archive in memory, on the program's standard input.
    Archive,
    Cold,
    /// The same program has run before.
    Warm,
}

const UNTAR: Program = Program {
    name: "untar",
    what: ("tar -x of", ", from memory; nothing is synchronised"),
    program: &["tar"],
    arguments: &["-x", "-f", "-", "-C", TREE],
    start: Start::Archive,
    check: Check::Same(TREE),
    synchronizes: false,
    is_quick: true,
};
const GREP: Program = Program {
    name: "grep-cold",
    what: ("grep -r of a word in", ", after a mount"),
    program: &["grep"],
    arguments: &["-r", NEEDLE, TREE],
    check: Check::Needles(|line| line.contains(NEEDLE)),
    ..COLD
};
const COLD: Program = Program { start: Start::Cold, is_quick: false, ..UNTAR };

const PROGRAMS: [Program; 8] = [
    UNTAR,
    Program { name: "sync-untar", what: ("tar -x of", ", from memory, and sync at the end"), synchronizes: true, is_quick: false, ..UNTAR },
    Program {
        name: "cp-r",
        what: ("cp -r of", ", within the file system"),
        program: &["cp"],
        arguments: &["-r", TREE, "copy"],
        check: Check::Same("copy"),
        ..COLD
    },
    Program { name: "rm-r", what: ("rm -r of", ", after a mount"), program: &["rm"], arguments: &["-r", TREE], check: Check::Gone, ..COLD },
    GREP,
    Program { name: "grep-warm", what: ("grep -r of a word in", ", the second time"), start: Start::Warm, ..GREP },
    Program {
        name: "readdir-cold",
        what: ("find -type f in", ", after a mount"),
        program: &["find"],
        arguments: &[TREE, "-type", "f"],
        check: Check::Files(|_| true),
        ..COLD
    },
    Program {
        name: "list-cold",
        what: ("ls -lR of", ", after a mount"),
        program: &["ls"],
        arguments: &["-l", "-R", TREE],
        check: Check::Files(|line| line.starts_with('-')),
        ..COLD
    },
];

/// The cases of this file.
pub fn cases() -> Cases {
    let of_git = [(false, "git-status-cold", "after a mount"), (true, "git-status-warm", "five times, after one that is not counted")];
    let of_git = of_git.map(|(is_warm, name, how)| {
        let description = format!("git status in a repository of {} files like a kernel's, {how}", FILES as f64 * REPOSITORY_SHARE);
        case(name, description, &["git"], is_warm, move |stage| run_git_status(is_warm, stage))
    });
    let of_trees = PROGRAMS.map(|program| {
        let (before, after) = program.what;
        let tree = format!("a tree like a kernel's, {FILES} files of 15 KiB on average (median 5 KiB) in 5,000 directories");
        let run = move |stage: &mut Stage<'_>| program.run(stage);
        case(program.name, format!("{before} {tree}{after}"), program.program, program.is_quick, run)
    });
    of_trees.into_iter().chain(of_git).collect()
}

fn case(
    name: &str,
    description: String,
    programs: &'static [&'static str],
    is_quick: bool,
    run: impl Fn(&mut Stage<'_>) -> Result<Outcome> + Sync + 'static,
) -> Case {
    Case {
        programs,
        is_quick,
        share_least: 0.12,
        // 15 KiB, and the unused rest of a block, per file; and a copy of all.
        bytes_needed: FILES * (18 << 10) * if name == "cp-r" { 2 } else { 1 } * 5 / 4,
        bytes_exponent: SHRINKS,
        ..Case::new(Group::Buffered, name.to_owned(), description, run)
    }
}

impl Program {
    fn run(self, stage: &mut Stage<'_>) -> Result<Outcome> {
        let tree = Tree::new(stage.scale);
        let (directory, scratch) = (stage.directory, stage.scratch);
        let (source, [kept, archive]) = (directory.join(TREE), ["kept", "tree.tar"].map(|name| scratch.join(name)));
        if matches!(self.check, Check::Same(_)) {
            fs::create_dir(&kept)?;
            tree.lay_out(&kept)?;
        }
        fs::create_dir(&source)?;
        let mut command = programs::command(self.program[0], scratch)?;
        command.args(self.arguments).current_dir(directory);
        match self.start {
            Start::Archive => {
                programs::run(programs::command("tar", scratch)?.arg("-cf").arg(&archive).arg("-C").arg(&kept).arg("."), scratch)?;
                command.stdin(File::open(&archive)?);
            }
            Start::Cold => {
                tree.lay_out(&source)?;
                stage.make_cold()?;
            }
            Start::Warm => {
                tree.lay_out(&source)?;
                programs::run(&mut command, scratch)?; // [BU2]
            }
        }
        let said = stage.time(|| {
            let said = programs::run(&mut command, scratch)?;
            if self.synchronizes {
                rustix::fs::syncfs(File::open(&source)?)?;
            }
            Ok(said)
        })?;
        let files = tree.files.len() as u64;
        let lines = |is_meant: fn(&str) -> bool| said.lines().filter(|line| is_meant(line)).count() as u64;
        match self.check {
            Check::Same(copy) => {
                drop(programs::run(programs::command("diff", scratch)?.arg("-r").arg(&kept).arg(directory.join(copy)), scratch)?);
            }
            Check::Gone if source.exists() => return Err(Failure::new("rm -r has left something")),
            Check::Gone => {}
            Check::Files(is_meant) => counted(lines(is_meant), files, "files")?,
            Check::Needles(is_meant) => counted(lines(is_meant), tree.needles(), "lines")?,
        }
        Ok(Outcome::counted(files, "files"))
    }
}

/// `git status` in a repository, so many times.
fn run_git_status(is_warm: bool, stage: &mut Stage<'_>) -> Result<Outcome> {
    let tree = Tree::with_files(scaled((FILES as f64 * REPOSITORY_SHARE) as u64, stage.scale, 200));
    let (scratch, repository) = (stage.scratch, stage.directory.join("repository"));
    fs::create_dir(&repository)?;
    tree.lay_out(&repository)?;
    let git = |arguments: &[&str]| programs::run(git_command(&repository, scratch)?.args(arguments), scratch);
    git(&["init", "-q", "."])?;
    git(&["add", "-A"])?;
    git(&["commit", "-q", "-m", "all"])?;
    trust_index(&repository)?;
    if is_warm {
        git(&["status", "--porcelain"])?;
    } else {
        stage.make_cold()?;
    }
    // When warm it takes some milliseconds, partly for git's start.
    let times = if is_warm { WARM_TIMES } else { 1 };
    let said = stage.time(|| (0..times).map(|_| git(&["status", "--porcelain"])).collect::<Result<String>>())?;
    if !said.is_empty() {
        return Err(Failure::new(format!("git says `{}` about a tree that nobody changed", said.lines().next().unwrap_or_default())));
    }
    counted(git(&["ls-files"])?.lines().count() as u64, tree.files.len() as u64, "files")?;
    Ok(Outcome::counted(tree.files.len() as u64 * times, "files"))
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
    command.args([
        "-c",
        "core.compression=0",
        "-c",
        "gc.auto=0",
        "-c",
        "safe.directory=*",
        "-c",
        "user.name=bench",
        "-c",
        "user.email=bench@localhost",
    ]);
    Ok(command)
}

/// [BU5].
fn trust_index(repository: &Path) -> Result<()> {
    let index: PathBuf = repository.join(".git/index");
    Ok(File::options().write(true).open(index)?.set_modified(SystemTime::now() + Duration::from_secs(5))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::cases::support::run_all;

    #[test]
    fn every_program_does_its_work_and_is_checked() {
        run_all(&cases(), 1e-3, |case, outcome, clock| {
            let is_cold = !case.name.ends_with("-warm") && !case.name.contains("untar");
            let expected = match case.name.as_str() {
                "git-status-warm" => 1000.0,
                _ => 200.0,
            };
            assert_eq!((outcome.units, clock.cold), (expected, u32::from(is_cold)), "{}", case.name);
        });
    }
}

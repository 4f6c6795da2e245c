//! Runs the commands of `docs/tutorial.md` as its reader types them: in order, in one shell, in an empty directory. Blocks marked `sh,ignore`
//! install what is needed and are not run. What blocks of `text` show has to be printed, in their order. As root: the commands mount, and enter the direct door.

mod support;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{Place, eventually, parameters, preload_library, require_fuse, run, tandemfs};

const TUTORIAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tutorial.md");
/// How lines of a block that is not run begin: they install packages, and build and find the program.
const INSTALLS: [&str; 4] = ["apt-get ", "rustup ", "make build", "export PATH="];

/// A fenced block of code.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// Where it begins, counted from 1.
    line: usize,
    /// What is behind its fence.
    kind: String,
    /// Its lines.
    text: String,
}

/// All code of a document, which has to be in fenced blocks, so that none is passed over.
fn blocks(document: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (index, line) in document.lines().enumerate() {
        let line_number = index + 1;
        match (line.strip_prefix("```"), is_open) {
            (Some(kind), false) => blocks.push(Block { line: line_number, kind: kind.to_owned(), text: String::new() }),
            (Some(end), true) => assert_eq!(end, "", "line {line_number}: no end of a block"),
            (None, true) => blocks.last_mut().expect("a block").text.push_str(&format!("{line}\n")),
            (None, false) => assert!(!line.starts_with("    "), "line {line_number}: code without a fence is not run: {line}"),
        }
        is_open ^= line.starts_with("```");
    }
    assert!(!is_open, "the last block does not end");
    blocks
}

/// What all blocks that are run have as one script, which says on standard error where each begins.
fn script(blocks: &[Block]) -> String {
    let run = blocks.iter().filter(|block| block.kind == "sh");
    run.map(|block| format!("echo 'tutorial.md:{}' >&2\n{}", block.line, block.text)).collect()
}

/// Who types commands. The mount goes with the reader, also when a test fails.
struct Reader {
    place: Place,
}

impl Reader {
    fn new() -> Self {
        require_fuse();
        Self { place: Place::empty() }
    }

    /// Runs a script in the reader's directory, until the first command that fails.
    fn types(&self, script: &str) -> Output {
        let _kept = parameters::kept();
        let programs = Path::new(env!("CARGO_BIN_EXE_tandemfs")).parent().expect("a directory");
        let path = format!("{}:{}", programs.display(), env::var("PATH").expect("a path"));
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", script]).current_dir(self.place.path(""));
        run(shell.env("PATH", path).env("TANDEMFS_PRELOAD", preload_library()))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mountpoint = self.place.mountpoint();
        if is_mounted(&mountpoint) {
            // Also where something holds the mount. Returns when the daemon has ended.
            let _ = tandemfs(&["umount", "--force", &mountpoint]);
        }
    }
}

fn is_mounted(mountpoint: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("procfs");
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(mountpoint))
}

/// Processes that have a file mapped, as daemons have their images.
fn users(image: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").expect("procfs").filter_map(|entry| Some(entry.ok()?.path()));
    let uses = |process: &PathBuf| fs::read_to_string(process.join("maps")).is_ok_and(|maps| maps.contains(image));
    processes.filter(uses).map(|process| process.display().to_string()).collect()
}

#[test]
fn each_command_of_the_tutorial_works() {
    let document = fs::read_to_string(TUTORIAL).expect("a document");
    let blocks = blocks(&document);
    for block in &blocks {
        let is_known = matches!(block.kind.as_str(), "sh" | "sh,ignore" | "text");
        assert!(is_known, "tutorial.md:{}: a block of '{}' would not be run", block.line, block.kind);
    }
    for block in blocks.iter().filter(|block| block.kind == "sh,ignore") {
        let installs = |line: &str| INSTALLS.iter().any(|start| line.starts_with(start));
        assert!(block.text.lines().all(installs), "tutorial.md:{}: only installation is not run", block.line);
    }

    let reader = Reader::new();
    let output = reader.types(&script(&blocks));
    let (said, errors) = (format!("\n{}", String::from_utf8_lossy(&output.stdout)), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{errors}\n{said}", output.status);
    assert!(!errors.contains("the program runs by the mount"), "nothing went by the direct door:\n{errors}");
    let mut after = said.as_str();
    for block in blocks.iter().filter(|block| block.kind == "text") {
        let place = after.find(&format!("\n{}", block.text)); // whole lines
        after = &after[place.unwrap_or_else(|| panic!("tutorial.md:{}: not printed here:\n{said}", block.line))..];
    }
    assert!(!is_mounted(&reader.place.mountpoint()), "the tutorial unmounts");
    assert_eq!(users(&reader.place.path("drive.image")), [""; 0], "its daemon has ended");
}

#[test]
fn a_tutorial_that_fails_leaves_no_mount_and_no_daemon() {
    let reader = Reader::new();
    let (mountpoint, image) = (reader.place.mountpoint(), reader.place.path("drive.image"));
    let script = "tandemfs device create drive.image --memory 64M --block 64M\ntandemfs mkfs drive.image\n\
                  tandemfs mount drive.image mnt -o log=daemon.log\nfalse\ntandemfs umount mnt\n";
    let output = reader.types(script);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(is_mounted(&mountpoint) && !users(&image).is_empty(), "the command behind the one that failed was not run");
    drop(reader);
    assert!(!is_mounted(&mountpoint), "taken away");
    eventually("the daemon's end", || users(&image).is_empty());
}

#[test]
fn blocks_are_found() {
    let block = |line, kind: &str, text: &str| Block { line, kind: kind.to_owned(), text: text.to_owned() };
    let document = "# A\n```sh,ignore\napt-get update\n```\nb\n```sh\ntrue\n    false\n```\n\n```text\n```\n";
    let found = blocks(document);
    assert_eq!(found, [block(2, "sh,ignore", "apt-get update\n"), block(6, "sh", "true\n    false\n"), block(11, "text", "")]);
    assert_eq!(script(&found), "echo 'tutorial.md:6' >&2\ntrue\n    false\n");
    let wrong = ["```sh\ntrue\n", "a\n\n    true\n", "```sh\ntrue\n```sh\n```\n"];
    for document in wrong {
        assert!(std::panic::catch_unwind(|| blocks(document)).is_err(), "{document}");
    }
}

//! `tandemfs-bench replay`: a program's trace, run again elsewhere, gives the same tree and the same results.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use support::{PROGRAM, failed, preload, require_mounts};

fn tandemfs() -> PathBuf {
    Path::new(PROGRAM).with_file_name("tandemfs")
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().expect("started");
    assert!(output.status.success(), "{command:?}: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn replay(words: &[&str]) -> Output {
    Command::new(PROGRAM).arg("replay").args(words).output().expect("started")
}

/// A mount in memory, with room beside it.
struct Ground {
    directory: tempfile::TempDir,
    is_mounted: bool,
}

impl Ground {
    fn mounted(options: &str) -> Self {
        require_mounts();
        let directory = tempfile::Builder::new().prefix("tandemfs-test-").tempdir_in("/dev/shm").expect("/dev/shm");
        let mut ground = Self { directory, is_mounted: false };
        for name in ["mnt", "again"] {
            fs::create_dir(ground.path(name)).expect("made");
        }
        let (image, mountpoint) = (ground.path("image"), ground.path("mnt"));
        succeeds(Command::new(tandemfs()).args(["device", "create", &image, "--memory", "64M", "--block", "256M"]));
        succeeds(Command::new(tandemfs()).args(["mkfs", &image]));
        succeeds(Command::new(tandemfs()).args(["mount", &image, &mountpoint, "-o", &format!("{options},log={}", ground.path("log"))]));
        ground.is_mounted = true;
        ground
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("UTF-8").to_owned()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if self.is_mounted {
            let _gone = Command::new(tandemfs()).args(["umount", &self.path("mnt")]).status();
        }
    }
}

/// Kind, size and link count of every name; sizes of directories are up to a file system.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, u64, u64)> {
    let mut names = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("read").map(|entry| entry.expect("read")) {
            let (path, found) = (entry.path(), fs::symlink_metadata(entry.path()).expect("there"));
            let links = if found.is_dir() { 0 } else { found.nlink() };
            let size = if found.is_dir() { 0 } else { found.len() };
            names.insert(path.strip_prefix(root).expect("within").to_owned(), (found.mode() & 0o170_000, size, links));
            if found.is_dir() {
                directories.push(path);
            }
        }
    }
    names
}

const SCRIPT: &str = r#"
cd "$1" || exit 1
mkdir -p a/b/c && cd a
printf 'some text' > b/one
dd if=/dev/zero of=b/large bs=64k count=7 2> /dev/null
printf 'more' >> ../old/kept
truncate -s 5000 ../old/cut
mv b/one b/c/two
ln b/c/two hard
ln -s b/c/two soft
cat soft ../old/kept > joined
mkdir gone && rmdir gone
rm b/large
dd if=/dev/zero of=sparse bs=1 seek=1000000 count=1 conv=notrunc 2> /dev/null
mv ../old/moved here
cat absent 2> /dev/null
rmdir b 2> /dev/null
mkdir b 2> /dev/null
ls -lR > listing
( for i in 1 2 3 4 5; do echo $i > p$i; done ) &
( for i in 1 2 3 4 5; do echo $i > q$i; mv q$i r$i; done ) &
wait
sync joined
true
"#;

fn same_tree_and_results(options: &str, by_door: bool) {
    let ground = Ground::mounted(options);
    let (mountpoint, again, trace) = (ground.path("mnt"), ground.path("again"), ground.path("trace"));
    fs::create_dir(ground.path("mnt/old")).expect("made");
    for (name, bytes) in [("kept", 10_000), ("cut", 70_000), ("moved", 3)] {
        fs::write(ground.path(&format!("mnt/old/{name}")), vec![1; bytes]).expect("written");
    }
    let mut recorder = Command::new(tandemfs());
    recorder.args(["trace", &mountpoint, &trace, "--json", "--"]);
    if by_door {
        recorder
            .arg(tandemfs())
            .args(["run", "--mount", &mountpoint, "--"])
            .env("TANDEMFS_PRELOAD", preload())
            .env("TANDEMFS_RUN_AFTER", "0");
    }
    let said = succeeds(recorder.args(["sh", "-c", SCRIPT, "sh", &mountpoint]));
    let recorded: Value = serde_json::from_str(said.trim()).expect("JSON");
    assert_eq!(recorded["dropped"], 0);
    for speed in [None, Some("20")] {
        let words: Vec<&str> =
            [trace.as_str(), &again, "--json", "--all"].into_iter().chain(speed.into_iter().flat_map(|speed| ["--speed", speed])).collect();
        let output = replay(&words);
        let result: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(result["operations"], recorded["recorded"], "{result:#}");
        assert_eq!((&result["differ"], &result["complete"]), (&0.into(), &true.into()), "{result:#}");
        assert!(result["operations"].as_u64() > Some(60), "{result:#}");
        if by_door {
            let is_direct = |kind: &Value| kind["way"] == "direct" && kind["count"].as_u64() > Some(0);
            assert!(result["kinds"].as_array().is_some_and(|kinds| kinds.iter().any(is_direct)), "{result:#}");
        }
        assert_eq!(tree(again.as_ref()), tree(mountpoint.as_ref()));
        fs::remove_dir_all(&again).expect("removed");
        fs::create_dir(&again).expect("made");
    }
    // Without --all only what is needed is made, and the results are the same.
    let table = replay(&[&trace, &again]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains(" 0 with another result") && table.contains("operation"), "{table}");
}

#[test]
fn a_trace_of_a_strict_mount_is_repeated() {
    same_tree_and_results("strict", false);
}

#[test]
fn a_trace_of_a_relaxed_mount_is_repeated() {
    same_tree_and_results("relaxed", false);
}

#[test]
fn a_trace_of_the_direct_door_is_repeated() {
    same_tree_and_results("relaxed,direct", true);
}

#[test]
fn what_cannot_be_repeated_is_refused_in_one_sentence() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    fs::create_dir(path("empty")).expect("made");
    fs::write(path("text"), "this is no trace, and long enough to be one").expect("written");
    failed(&replay(&[&path("absent"), &path("empty")]), "absent", "no file");
    failed(&replay(&[&path("text"), &path("empty")]), "no trace of TandemFS", "another file");
    let mut trace = Vec::new();
    tandemfs_trace::Writer::new(&mut trace, 0).and_then(|writer| writer.end(tandemfs_trace::End::default()).map(drop)).expect("written");
    fs::write(path("trace"), &trace).expect("written");
    failed(&replay(&[&path("trace"), directory.path().to_str().expect("UTF-8")]), "name an empty directory", "a full directory");
    failed(&replay(&[&path("trace"), &path("no-directory")]), "name an empty directory", "no directory");
    assert!(replay(&[&path("trace"), &path("empty")]).status.success(), "an empty trace");
    let last = trace.len() - 1;
    trace[last] ^= 1;
    fs::write(path("damaged"), &trace).expect("written");
    failed(&replay(&[&path("damaged"), &path("empty")]), "checksum", "damage");
    let status = replay(&[&path("trace"), &path("empty"), "--speed", "0"]).status;
    assert_eq!(status.code(), Some(2));
}

//! `tandemfs-bench replay`: a program's trace, run again elsewhere, gives the same tree and the same results.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{PROGRAM, eventually, failed, preload, require_mounts};
use tandemfs_trace::record::set;
use tandemfs_trace::{Door, End, Known, Operation, Record, Writer};

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

/// A trace that was not recorded, and an empty directory.
struct Made {
    directory: tempfile::TempDir,
    known: Vec<Known>,
    records: Vec<Record<'static>>,
}

impl Made {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("again")).expect("made");
        Self { directory, known: Vec::new(), records: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn known(&mut self, inode: u64, parent: u64, name: &str, mode: u32) -> &mut Known {
        self.known.push(Known { inode, parent, size: 10, mode, name: name.into(), target: Vec::new() });
        self.known.last_mut().expect("pushed")
    }

    /// One after another, by one thread.
    fn operation(&mut self, operation: Operation, door: Door, inode: u64, name: &str) -> &mut Record<'static> {
        let started_ns = 10 * self.records.len() as u64;
        self.records.push(Record {
            started_ns,
            took_ns: 5,
            thread: 7,
            name: name.as_bytes().to_vec().into(),
            ..Record::new(operation, door, inode)
        });
        self.records.last_mut().expect("pushed")
    }

    fn write(&self) -> (String, String) {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, 0).expect("written");
        writer.tree(&self.known).expect("written");
        for records in self.records.chunks(1000) {
            let mut encoded = Vec::new();
            records.iter().for_each(|record| record.encode(&mut encoded));
            writer.operations(&encoded).expect("written");
        }
        writer.end(End { recorded: self.records.len() as u64, dropped: 0 }).expect("written");
        fs::write(self.path("trace"), bytes).expect("written");
        let path = |name: &str| self.path(name).to_str().expect("UTF-8").to_owned();
        (path("trace"), path("again"))
    }

    fn replay(&self) -> Value {
        let (trace, again) = self.write();
        result(&replay(&[&trace, &again, "--json"]))
    }
}

fn result(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// Paths upwards, absolute ones and those through symbolic links lead to the directory that the trace runs in, and no further.
#[test]
fn a_hostile_trace_changes_nothing_outside() {
    let mut made = Made::new();
    let outside = made.path("outside");
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("file"), "old").expect("written");
    fs::set_permissions(outside.join("file"), fs::Permissions::from_mode(0o640)).expect("set");
    let outside = outside.to_str().expect("UTF-8").to_owned();
    let absolute = format!("{outside}/file");
    made.known(70, 1, "link", 0o120_777).target = outside.clone().into();
    made.known(71, 70, "below", 0o100_644);
    made.known(72, 1, "real", 0o100_644);
    for (name, target) in [("out", outside.as_str()), ("up", "../outside"), ("proc", "/proc/self/cwd")] {
        made.operation(Operation::Symlink, Door::Direct, 1, name).other_name = target.as_bytes().to_vec().into();
    }
    made.operation(Operation::Mkdir, Door::Direct, 1, "outside").value = 90;
    let mut inode = 100;
    for path in ["out/file", "up/file", "link/file", "../outside/file", "real/../../outside/file", &absolute] {
        inode += 1;
        let open = made.operation(Operation::Open, Door::Direct, 1, path);
        (open.flags, open.value) = (0o1002, inode); // to be truncated
        made.operation(Operation::Write, Door::Direct, inode, "").length = 100;
        let create = made.operation(Operation::Create, Door::Direct, 1, &path.replace("file", "new"));
        (create.flags, create.mode, create.value) = (0o101, 0o600, inode + 1000);
        let cut = made.operation(Operation::Setattr, Door::Direct, 1, path);
        cut.set = set::SIZE | set::ACCESSED | set::MODIFIED;
        let mode = made.operation(Operation::Setattr, Door::Direct, 1, path);
        (mode.set, mode.mode) = (set::MODE, 0o777);
        let attribute = made.operation(Operation::Setxattr, Door::Direct, 1, path);
        (attribute.other_name, attribute.length) = (b"user.x".as_slice().into(), 5);
        made.operation(Operation::Mkdir, Door::Direct, 1, &path.replace("file", "directory"));
        let link = made.operation(Operation::Link, Door::Direct, 1, "hard");
        (link.other, link.other_name) = (1, path.as_bytes().to_vec().into());
        let over = made.operation(Operation::Rename, Door::Direct, 1, "real");
        (over.other, over.other_name) = (1, path.as_bytes().to_vec().into());
        let away = made.operation(Operation::Rename, Door::Direct, 1, path);
        (away.other, away.other_name) = (1, b"taken".as_slice().into());
        made.operation(Operation::Unlink, Door::Direct, 1, path);
        made.operation(Operation::Rmdir, Door::Direct, 1, &path.replace("/file", ""));
    }
    let before = fs::metadata(&absolute).expect("there");
    let result = made.replay();
    assert_eq!(result["names_left_out"], 1, "what lies behind a link: {result:#}");
    assert_eq!(fs::read_to_string(&absolute).expect("there"), "old");
    let after = fs::metadata(&absolute).expect("there");
    let seen = |found: &fs::Metadata| (found.mode(), found.nlink(), found.mtime_nsec(), found.ctime_nsec());
    assert_eq!(seen(&after), seen(&before));
    let names: Vec<_> = fs::read_dir(&outside).expect("read").map(|entry| entry.expect("read").file_name()).collect();
    assert_eq!(names, ["file"]);
    let beside: std::collections::BTreeSet<_> =
        fs::read_dir(made.directory.path()).expect("read").map(|entry| entry.expect("read").file_name()).collect();
    assert_eq!(beside.len(), 3, "{beside:?}");
    for inside in ["again/outside/new", "again/taken"] {
        assert!(made.path(inside).is_file(), "{inside}: what leads out of the directory leads to it");
    }
}

#[test]
fn names_that_no_file_can_have_are_refused() {
    for name in ["..", ".", "", "a/b", "../outside"] {
        let mut made = Made::new();
        made.known(5, 1, name, 0o100_644);
        let (trace, again) = made.write();
        failed(&replay(&[&trace, &again]), "is no name that a file can have", name);
        for operation in [Operation::Create, Operation::Unlink, Operation::Rename] {
            let mut made = Made::new();
            let record = made.operation(operation, Door::Mount, 1, if operation == Operation::Rename { "fine" } else { name });
            record.other_name = name.as_bytes().to_vec().into();
            let (trace, again) = made.write();
            failed(&replay(&[&trace, &again]), "is no name that a file can have", name);
        }
        assert_eq!(fs::read_dir(made.path("again")).expect("read").count(), 0);
    }
    let mut made = Made::new();
    made.operation(Operation::Lookup, Door::Mount, 1, "..").value = 1;
    assert_eq!(made.replay()["differ"], 0, "as a server of NFS has it looked up");
}

/// More files than a process may have open are made, removed and made again; only those that are used without a name stay open.
#[test]
fn many_files_are_made_and_removed_with_few_descriptors() {
    const FILES: u64 = 2000;
    let mut made = Made::new();
    for file in 0..FILES {
        let (name, inode) = (format!("f{file}"), 10 + file % 1500);
        let create = made.operation(Operation::Create, Door::Mount, 1, &name);
        (create.value, create.mode) = (inode, 0o600);
        let write = made.operation(Operation::Write, Door::Mount, inode, "");
        (write.length, write.value) = (10, 10);
        made.operation(Operation::Unlink, Door::Mount, 1, &name);
        if file % 7 == 0 {
            let read = made.operation(Operation::Read, Door::Mount, inode, "");
            (read.length, read.value) = (20, 10);
        }
        let replaced = made.operation(Operation::Create, Door::Mount, 1, "next");
        (replaced.value, replaced.mode) = (5000 + file, 0o600);
        made.operation(Operation::Rename, Door::Mount, 1, "next").other = 1;
        made.records.last_mut().expect("pushed").other_name = b"last".as_slice().into();
        let without = made.operation(Operation::Tmpfile, Door::Mount, 1, "");
        (without.value, without.mode) = (9000 + file, 0o600);
    }
    let (trace, again) = made.write();
    let script = "ulimit -n 320 && exec \"$0\" replay \"$1\" \"$2\" --json";
    let output = Command::new("sh").args(["-c", script, PROGRAM, &trace, &again]).output().expect("started");
    let result = result(&output);
    assert_eq!(result["differ"], 0, "{result:#}");
    assert_eq!(fs::read_dir(&again).expect("read").count(), 1);
}

#[test]
fn numbers_of_any_size_and_what_failed_are_repeated() {
    let mut made = Made::new();
    made.known(5, 1, "file", 0o100_644);
    made.known(6, 1, "other", 0o100_644);
    // Bytes are copied onto themselves: an error everywhere.
    let copy = made.operation(Operation::CopyRange, Door::Mount, 5, "");
    (copy.other, copy.length, copy.other_offset, copy.errno) = (5, 10, 2, 22);
    let copy = made.operation(Operation::CopyRange, Door::Mount, 5, "");
    (copy.other, copy.length, copy.value) = (6, 10, 10);
    let copy = made.operation(Operation::CopyRange, Door::Mount, 5, "");
    (copy.other, copy.offset, copy.length) = (6, 10, 10); // at the end of the file
    // The kernel was told to do without: it copied by what follows, and opened by itself.
    let left = made.operation(Operation::CopyRange, Door::Mount, 5, "");
    (left.other, left.length, left.other_offset, left.errno) = (6, 10, 100, 18);
    made.operation(Operation::Open, Door::Mount, 5, "").errno = 38;
    let read = made.operation(Operation::Read, Door::Mount, 6, "");
    (read.offset, read.length, read.value) = (0, 200, 10);
    made.operation(Operation::Lookup, Door::Mount, 5, ".").value = 5; // by its number
    made.operation(Operation::Mkdir, Door::Mount, 1, "closed").value = 8;
    let node = made.operation(Operation::Mknod, Door::Mount, 1, "node");
    (node.value, node.mode) = (9, 0o100_000);
    let attribute = made.operation(Operation::Getxattr, Door::Mount, 5, "");
    (attribute.other_name, attribute.length, attribute.errno) = (b"user.none".as_slice().into(), u64::MAX, 61);
    assert_eq!(made.replay()["differ"], 0);
    let mode = |name: &str| fs::metadata(made.path("again").join(name)).expect("there").mode() & 0o777;
    assert_eq!((mode("closed"), mode("node")), (0o700, 0o600), "who runs it again uses them");

    let mut made = Made::new();
    made.known(5, 1, "file", 0o100_644);
    for operation in [Operation::CopyRange, Operation::Read, Operation::Write, Operation::Lseek, Operation::Setattr, Operation::Setxattr] {
        let record = made.operation(operation, Door::Mount, 5, "");
        (record.offset, record.other_offset, record.value, record.other) = (u64::MAX, u64::MAX, u64::MAX, 5);
        (record.length, record.set, record.other_name) = (u64::MAX, set::SIZE, b"user.x".as_slice().into());
    }
    let last = made.records.last_mut().expect("some");
    (last.started_ns, last.took_ns) = (u64::MAX, u64::MAX);
    assert_eq!(made.replay()["operations"], 6);
}

#[test]
fn a_signal_ends_a_pause_and_says_where_the_rest_is() {
    let mut made = Made::new();
    made.operation(Operation::Mkdir, Door::Mount, 1, "made").value = 5;
    made.operation(Operation::Getattr, Door::Mount, 1, "").started_ns = 3_600_000_000_000;
    let (trace, again) = made.write();
    let mut child: Child = Command::new(PROGRAM)
        .args(["replay", &trace, &again, "--speed", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    eventually("the first operation", || made.path("again/made").is_dir());
    kill_process(Pid::from_child(&child), Signal::INT).expect("sent");
    let start = Instant::now();
    while child.try_wait().expect("waited").is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().expect("killed");
            panic!("it sleeps on");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    failed(&child.wait_with_output().expect("ended"), &format!("what was made so far is in {again}"), "a signal");
}

//! `tandemfs-bench compare` at a tiny scale: they print figures, resume results, and leave nothing behind.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory in memory. That nothing of it is mounted or attached afterwards is asked in [`Drop`].
struct Ground(TempDir);

impl Ground {
    fn new() -> Self {
        support::require_mounts();
        Self(tempfile::Builder::new().prefix("tandemfs-test-").tempdir_in("/dev/shm").expect("/dev/shm"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn bench(&self, words: &[&str]) -> Command {
        let mut command = Command::new(support::PROGRAM);
        command.args(words).args(["--directory", &self.path(""), "--memory", "64M", "--drive", "64M"]);
        command.env("TANDEMFS_PRELOAD", support::preload());
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.bench(words).output().expect("the program runs")
    }

    fn succeeds(&self, words: &[&str]) -> String {
        let output = self.output(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{words:?}: {errors}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn fails(&self, words: &[&str], reason: &str) {
        let output = self.output(words);
        support::failed(&output, reason, &format!("{words:?}"));
    }

    /// Mounts, loop devices and directories below this one that a comparison made.
    fn left_behind(&self) -> Vec<String> {
        let own = self.path("");
        let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
        let mut left: Vec<String> = mounts.lines().filter(|line| line.contains(&own)).map(str::to_owned).collect();
        for device in fs::read_dir("/sys/block").expect("devices") {
            let file = device.expect("a device").path().join("loop/backing_file");
            left.extend(fs::read_to_string(file).ok().filter(|file| file.contains(&own)));
        }
        let names = fs::read_dir(self.0.path()).expect("listed").map(|entry| entry.expect("an entry").file_name());
        left.extend(names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with("tandemfs-")));
        left
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let left = self.left_behind();
        if !std::thread::panicking() {
            assert!(left.is_empty(), "left behind: {left:?}");
        }
    }
}

fn has_loop_devices() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists() && Path::new("/usr/sbin/mkfs.ext4").exists()
}

/// The records of one round of a case, by peer.
fn measured(ground: &Ground, case: &str, peers: &str, scale: &str) -> Vec<Value> {
    let output = ground.path(&format!("{case}-{peers}"));
    let said = ground.succeeds(&["compare", case, "--peer", peers, "--scale", scale, "--rounds", "1", "--json", "--output", &output]);
    let records: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(records.len(), peers.split(',').count(), "{said}");
    assert!(records.iter().all(|record| (&record["case"], &record["place"]) == (&json!(case), &json!("free"))), "{said}");
    records
}

#[test]
fn a_run_says_what_it_measured() {
    let ground = Ground::new();
    let of_kernel = if has_loop_devices() { ",ext4,ext4-journal" } else { "" };
    for record in
        measured(&ground, "append-fsync-4k-c2", &format!("tandemfs-relaxed,tandemfs-strict,tandemfs-library,null{of_kernel}"), "0.005")
    {
        let operations = if record["peer"] == "tandemfs-library" { 200 } else { 20 };
        let counted = (record["units"].as_f64(), record["latency_ns"]["count"].as_u64());
        assert_eq!(counted, (Some(operations as f64), Some(operations)), "{record}");
        let number = |name: &str| record[name].as_f64().unwrap_or_else(|| panic!("{name} of {record}"));
        assert!(number("seconds") > 0.0 && number("memory_bytes") > 0.0 && number("noise") >= 0.0, "{record}");
        let written = record["traffic"]["written_bytes"].as_u64();
        assert!(if record["peer"] == "null" { written.is_none() } else { written >= Some(20 * 4096) }, "{record}");
    }
}

/// Programs, loads of the bench itself, and what comes after a new mount, with a daemon that polls and one that sleeps.
#[test]
fn a_case_runs_under_tandemfs_run() {
    let ground = Ground::new();
    for (case, operations) in [("append-fsync-4k-c2", 20.0), ("create-write-fsync-4k-c2", 20.0), ("read-4k-random-cold-c1", 40.0)] {
        for record in measured(&ground, case, "tandemfs-direct,tandemfs-direct-asleep", "0.005") {
            assert_eq!(record["units"].as_f64(), Some(operations), "{record}");
            let connections = record["connections"].as_u64();
            assert!(connections >= Some(u64::from(!case.starts_with("read"))) && record["seconds"].as_f64() > Some(0.0), "{record}");
        }
    }
    let words = ["compare", "append-fsync-4k-c1", "--peer", "tandemfs-direct-asleep", "--rounds", "1", "--scale", "0.005", "--output"];
    let mut without = ground.bench(&[&words[..], &[&ground.path("without")]].concat());
    let output = without.env("TANDEMFS_PRELOAD", "/none.so").output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("/none.so"), "nothing goes on by the mount: {said}");
}

#[test]
fn caches_are_cold_where_a_case_says_so() {
    let record = &measured(&Ground::new(), "read-4k-random-cold-c1", "tandemfs-relaxed", "0.01")[0];
    // Some of 80 reads meet the same page, and read-ahead brings others; without a cold cache it would be nothing.
    assert!(record["traffic"]["read_bytes"].as_u64() >= Some(40 * 4096), "{record}");
}

/// The content of a results file; null if there is none yet.
fn content(results: &str) -> Value {
    fs::read(results).map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).expect("JSON"))
}

fn runs(results: &Value) -> Vec<(String, u64)> {
    let run = |run: &Value| (run["peer"].as_str().expect("a peer").to_owned(), run["round"].as_u64().expect("a round"));
    results["runs"].as_array().map_or_else(Vec::new, |runs| runs.iter().map(run).collect())
}

#[test]
fn a_comparison_is_resumed_where_it_ended() {
    let ground = Ground::new();
    let (output, results) = (ground.path("out"), ground.path("out/results.json"));
    let words = |more: &[&'static str]| {
        let mut words = vec!["compare", "getattr-warm-c1", "--peer", "tandemfs-relaxed,null", "--rounds", "3", "--scale", "0.0005"];
        words.extend(more);
        words
    };
    let with_output = |more: &[&'static str]| [words(more), vec!["--output", &output]].concat();
    let shown = ground.succeeds(&with_output(&[]));
    assert!(shown.contains("report.md") && fs::metadata(ground.path("out/report.md")).is_ok(), "{shown}");
    let all = runs(&content(&results));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 6, "{all:?}");
    assert_eq!(all.iter().map(|(_, round)| *round).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2], "interleaved");
    assert_ne!(all[0].0, all[2].0, "in an order that turns");

    // Interrupted after its third run.
    let mut kept = content(&results);
    kept["runs"].as_array_mut().expect("runs").truncate(3);
    fs::write(&results, kept.to_string()).expect("written");
    ground.succeeds(&with_output(&["--resume"]));
    let resumed = content(&results);
    assert_eq!(resumed["runs"].as_array().expect("runs")[..3], kept["runs"].as_array().expect("runs")[..], "what was measured stays");
    assert_eq!(runs(&resumed), all);
    ground.succeeds(&with_output(&["--resume"]));
    assert!(content(&results)["runs"] == resumed["runs"], "nothing was left to measure");

    ground.fails(&with_output(&[]), "--resume");
    ground.fails(&with_output(&["--resume", "--seed", "7"]), "seed 1, not 7");
}

#[test]
fn a_signal_ends_a_comparison_without_leaving_anything() {
    let ground = Ground::new();
    let peers = if has_loop_devices() { "tandemfs-strict,ext4,null" } else { "tandemfs-strict,null" };
    let (output, results) = (ground.path("out"), ground.path("out/results.json"));
    let words = ["compare", "getattr-warm-c1", "--peer", peers, "--rounds", "500", "--scale", "0.0005", "--output", &output];
    let mut child = ground.bench(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
    let start = Instant::now();
    while runs(&content(&results)).len() < 2 {
        assert!(start.elapsed() < Duration::from_secs(100) && child.try_wait().expect("asked").is_none(), "no runs came");
        std::thread::sleep(Duration::from_millis(7));
    }
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("sent");
    let ended = child.wait_with_output().expect("ended");
    assert_eq!(ended.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("interrupted"), "{ended:?}");
    assert_eq!(ground.left_behind(), [""; 0]);
}

#[test]
fn what_cannot_be_compared_is_refused_in_a_sentence() {
    let ground = Ground::new();
    ground.fails(&["compare", "nonsense", "--output", &ground.path("out")], "there is no case 'nonsense'");
    let list = ground.succeeds(&["compare", "--list"]);
    assert!(list.contains("| durable-overwrite-4k-c1 "), "{list}");
}

/// The FUSE file system that keeps everything in memory, as a comparison starts it.
struct Null {
    process: Child,
}

impl Null {
    fn start(mountpoint: &str) -> Self {
        let order = json!({ "null_file_system": mountpoint }).to_string();
        let mut command = Command::new(support::PROGRAM);
        let mut process = command.args(["--child", &order]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut line).expect("read");
        assert_eq!(line, "\"ready\"\n");
        Self { process }
    }
}

#[test]
fn programs_work_on_the_null_file_system() {
    let ground = Ground::new();
    let (mountpoint, source) = (ground.path("mnt"), ground.path("source"));
    fs::create_dir(&mountpoint).expect("made");
    fs::create_dir_all(format!("{source}/a/b")).expect("made");
    for number in 0..300 {
        fs::write(format!("{source}/a/b/file-{number}"), format!("needle {number}\n").repeat(number)).expect("written");
    }
    std::os::unix::fs::symlink("b/file-7", format!("{source}/a/link")).expect("linked");
    let mut null = Null::start(&mountpoint);
    let shell = |script: &str| {
        let output = Command::new("sh").args(["-ec", script]).current_dir(&mountpoint).env("S", &source).output().expect("a shell");
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    shell("cp -r $S/a copied && diff -r $S/a copied");
    shell("tar cf packed.tar -C $S a && mkdir out && tar xf packed.tar -C out && diff -r $S/a out/a");
    assert_eq!(shell("grep -rl 'needle 123' out | sort"), "out/a/b/file-123\n");
    assert_eq!(shell("mv out/a/b out/c && ls out/c | wc -l"), "300\n");
    assert_eq!(shell("ln copied/b/file-5 hard && stat -c %h hard"), "2\n");
    shell("truncate -s 100000 hole && echo end >> hole && cmp -n 100000 hole /dev/zero && tail -n 1 hole | grep -q end");
    shell("touch -d 2001-01-01 hard && test $(stat -c %Y hard) -lt 1000000000 && chmod 600 hard && test -r hard");
    shell("cp packed.tar again && sync again && cmp packed.tar again");
    shell("rm -r copied out hard hole packed.tar again && test -z \"$(ls -A)\"");

    // Nobody holds it any more: it goes by itself.
    drop(null.process.stdin.take());
    assert!(null.process.wait().expect("ended").success());
}

#[test]
fn the_null_file_system_ends_with_a_mount_in_use() {
    let ground = Ground::new();
    let mountpoint = ground.path("mnt");
    fs::create_dir(&mountpoint).expect("made");
    let mut null = Null::start(&mountpoint);
    let mut file = fs::File::create(format!("{mountpoint}/file")).expect("created");
    file.write_all(b"held").expect("written");
    drop(null.process.stdin.take());
    support::eventually("the end of the mount", || ground.left_behind().is_empty());
    drop(file);
    assert!(null.process.wait().expect("ended").success());
}

#[test]
fn what_keeps_a_cpu_awake_is_of_the_lowest_priority_and_ends_with_who_started_it() {
    let mut command = Command::new(support::PROGRAM);
    command.args(["--child", &json!({ "awake": 0 }).to_string()]).stdin(Stdio::piped());
    let mut process = command.spawn().expect("started");
    let niceness = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.id())).expect("it runs");
        let after_name = stat.rsplit_once(')').expect("a name").1.to_owned();
        after_name.split_ascii_whitespace().nth(16).expect("a field").to_owned()
    };
    let start = Instant::now();
    while niceness() != "19" {
        assert!(start.elapsed() < Duration::from_secs(60), "it keeps the CPU from others");
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(process.stdin.take());
    let start = Instant::now();
    while process.try_wait().expect("asked").is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "it goes on without anybody");
        std::thread::sleep(Duration::from_millis(2));
    }
}

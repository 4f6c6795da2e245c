//! What a mount says to Prometheus: the text, its place on the network, and the rules and the dashboard in `contrib/`.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Mount, Place, eventually, fails, pattern, succeeds};

/// A Python that can read OpenMetrics; none where the package is not installed.
fn python() -> Option<&'static str> {
    let can = |python: &&str| {
        let imports = Command::new(python).args(["-c", "import prometheus_client.openmetrics.parser"]).stderr(Stdio::null()).status();
        imports.is_ok_and(|status| status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(can)
}

/// Holds a text against the parser of prometheus_client, which nobody here wrote. Returns the names of its samples.
fn parsed(text: &str) -> Option<BTreeSet<String>> {
    let Some(python) = python() else {
        println!("not held against a parser: python3-prometheus-client is not installed (scripts/setup.sh test installs it)");
        return None;
    };
    const SCRIPT: &str = "import sys\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
        for family in parse(sys.stdin.read()):\n\
        \x20   assert family.documentation, family.name\n\
        \x20   for sample in family.samples: print(sample.name)\n";
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("ended");
    assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect())
}

/// The names of samples, without a parser.
fn samples(text: &str) -> BTreeSet<String> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(['{', ' ']).next().unwrap_or_default().to_owned()).collect()
}

/// The value of a sample whose line begins so.
fn value(text: &str, start: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no {start} in\n{text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

/// Work of every kind: names, data, durable writes, some that fail.
fn work(mount: &Mount) {
    for number in 0..40 {
        let path = mount.path(&format!("file{number}"));
        fs::write(&path, pattern(number, 100_000)).expect("written");
        let file = fs::OpenOptions::new().write(true).open(&path).expect("opens");
        std::os::unix::fs::FileExt::write_all_at(&file, b"small", 5).expect("written");
        file.sync_all().expect("durable");
        assert!(fs::metadata(mount.path("absent")).is_err());
    }
    fs::rename(mount.path("file0"), mount.path("moved")).expect("moved");
    assert_eq!(fs::read(mount.path("moved")).expect("read").len(), 100_000);
}

#[test]
fn the_text_is_openmetrics_and_says_what_stats_say() {
    let place = Place::with_firmware();
    let mount = place.mount("strict,direct");
    work(&mount);
    let mountpoint = place.mountpoint();
    let text = succeeds(&["stats", "--openmetrics", &mountpoint]);
    let stats = mount.stats();
    if let Some(names) = parsed(&text) {
        assert_eq!(names, samples(&text));
    }
    let label = format!("{{mountpoint=\"{mountpoint}\"");
    let written = stats["file_system"]["operations"]["write"].as_u64().expect("a count") as f64;
    assert_eq!(value(&text, &format!("tandemfs_operations_total{label},operation=\"write\"}}")), written);
    assert_eq!(value(&text, &format!("tandemfs_stopped{label}}}")), 0.0);
    let flushed = format!("tandemfs_user_written_bytes_total{label}}}");
    assert!(value(&text, &flushed) >= 40.0 * 100_000.0, "{text}");
    // Operations, both paths and the waits of commits are always timed.
    for kind in ["operation_duration_seconds_count", "access_duration_seconds_count", "wait_duration_seconds_count"] {
        let sum: f64 = text
            .lines()
            .filter(|line| line.starts_with(&format!("tandemfs_{kind}")))
            .map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()).expect("a number"))
            .sum();
        assert!(sum > 0.0, "no {kind} in\n{text}");
    }
    for (path, access) in [("byte", "store"), ("block", "write")] {
        let count = format!("tandemfs_access_duration_seconds_count{label},path=\"{path}\",access=\"{access}\"}}");
        assert!(value(&text, &count) > 0.0, "{path} {access}");
    }
    assert!(value(&text, &format!("tandemfs_wait_duration_seconds_count{label},wait=\"journal\"}}")) > 0.0);
    let waits = stats["latency"]["waits"]["journal"].clone();
    assert!(waits["p50_ns"].as_u64() > Some(0) && waits["sampled_1_in"] == 16, "{waits}");
    fails(2, "--json", &["stats", "--openmetrics", "--json", &mountpoint]);
    fails(1, "no TandemFS", &["stats", "--openmetrics", "/proc"]);
    mount.unmount();
    place.check();
}

/// Names of metrics in a text of rules or of a dashboard.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_';
    let words = text.split(|character| !is_part(character));
    words.filter(|word| word.starts_with("tandemfs_")).map(str::to_owned).collect()
}

fn contrib(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_metric_of_the_rules_and_the_dashboard_is_there() {
    let place = Place::with_firmware();
    let mount = place.mount("strict,direct");
    work(&mount);
    let there = samples(&succeeds(&["stats", "--openmetrics", &place.mountpoint()]));
    let (rules, dashboard) = (contrib("prometheus/tandemfs.rules.yml"), contrib("grafana/tandemfs.json"));
    let panels: Value = serde_json::from_str(&dashboard).expect("JSON");
    assert!(panels["panels"].as_array().is_some_and(|panels| panels.len() > 20));
    for (text, least) in [(&rules, 14), (&dashboard, 25)] {
        let named = named(text);
        assert!(named.len() >= least, "{named:?}");
        let missing: Vec<&String> = named.iter().filter(|name| !there.contains(*name)).collect();
        assert!(missing.is_empty(), "not in the output: {missing:?}");
    }
    for alert in ["Stopped", "Quarantine", "ChecksumErrors", "BlockZoneFull", "MemoryZoneShort", "Worn", "WriteBackBehind"] {
        assert!(rules.contains(&format!("alert: Tandemfs{alert}")), "{alert}");
    }
    mount.unmount();
}

/// The document has each family.
#[test]
fn the_document_names_every_metric() {
    let place = Place::with_firmware();
    let mount = place.mount("strict,direct");
    work(&mount);
    let text = succeeds(&["stats", "--openmetrics", &place.mountpoint()]);
    mount.unmount();
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ADMINISTRATION.md")).expect("a document");
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    // Those of the drive and the engine's work are named as in `stats`.
    let is_of_stats = |name: &str| ["tandemfs_firmware_", "tandemfs_flash_"].iter().any(|start| name.starts_with(start));
    let work = mount_work();
    let missing: Vec<&str> = families
        .filter(|name| !is_of_stats(name) && !work.contains(&name.trim_start_matches("tandemfs_").to_owned()))
        .filter(|name| !document.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "docs/ADMINISTRATION.md lacks {missing:?}");
}

/// Names of the engine's counters.
fn mount_work() -> Vec<String> {
    tandemfs_fs::WorkCounts::default().entries().into_iter().map(|(name, _)| name.to_owned()).collect()
}

fn over_http(mut stream: impl Read + Write, path: &str) -> (String, String) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

#[test]
fn metrics_are_answered_on_a_unix_socket_as_long_as_the_mount() {
    let place = Place::formatted();
    let socket = place.path("metrics");
    let mount = place.mount(&format!("relaxed,metrics=unix:{socket}"));
    work(&mount);
    let (head, body) = over_http(UnixStream::connect(&socket).expect("connects"), "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("openmetrics-text; version=1.0.0"), "{head}");
    assert_eq!(samples(&body), samples(&succeeds(&["stats", "--openmetrics", &place.mountpoint()])));
    parsed(&body);
    assert!(over_http(UnixStream::connect(&socket).expect("connects"), "/").0.starts_with("HTTP/1.1 404 "));
    let info: Value = serde_json::from_str(&succeeds(&["info", "--json", &place.mountpoint()])).expect("JSON");
    assert_eq!(info["options"]["metrics"], format!("unix:{socket}"));

    // Who connects and says nothing keeps nobody from the mount, nor the mount from ending.
    let silent: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(&socket).expect("connects")).collect();
    work_again(&mount);
    mount.unmount();
    assert!(!Path::new(&socket).exists(), "the socket ends with the mount");
    drop(silent);

    // A socket that a killed daemon left is taken over.
    let mount = place.mount(&format!("metrics=unix:{socket}"));
    mount.kill();
    assert!(Path::new(&socket).exists());
    let mount = place.mount(&format!("metrics=unix:{socket}"));
    assert!(over_http(UnixStream::connect(&socket).expect("connects"), "/metrics").0.starts_with("HTTP/1.1 200 "));
    mount.unmount();
    place.check();
}

fn work_again(mount: &Mount) {
    fs::write(mount.path("again"), pattern(1, 5000)).expect("written");
    assert_eq!(fs::read(mount.path("again")).expect("read"), pattern(1, 5000));
}

#[test]
fn metrics_are_answered_on_the_loopback() {
    let place = Place::formatted();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let mount = place.mount(&format!("metrics={free}"));
    let (head, body) = over_http(TcpStream::connect(free).expect("connects"), "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && body.ends_with("# EOF\n"), "{head}");
    mount.unmount();
    eventually("the port is free", || TcpStream::connect(free).is_err());
}

#[test]
fn a_place_that_cannot_be_had_is_refused_in_one_sentence() {
    let place = Place::formatted();
    let (image, mountpoint) = (place.image(), place.mountpoint());
    let refused =
        |status: i32, word: &str, metrics: &str| fails(status, word, &["mount", &image, &mountpoint, "-o", &format!("metrics={metrics}")]);
    for bad in ["localhost:9469", "unix:relative", "9469", "127.0.0.1:99999"] {
        refused(2, "unix:PATH", bad);
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    refused(1, "in use", &taken.local_addr().expect("an address").to_string());
    let file = place.path("file");
    fs::write(&file, "mine").expect("written");
    refused(1, "metrics=unix:", &format!("unix:{file}"));
    assert_eq!(fs::read(&file).expect("there"), b"mine");
    refused(1, "metrics=unix:", &format!("unix:{}/no/such/directory", place.path("x")));
    let absent: PathBuf = place.path("x").into();
    assert!(!absent.exists());
    place.mount("relaxed").unmount(); // nothing of it stays
    place.check();
}

//! What commands print: help that fits a terminal, JSON, and messages without numbers of errors.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use serde_json::Value;
use support::{Place, fails, run, succeeds};

/// All commands, by what help lists.
fn commands(path: &[&str]) -> Vec<Vec<String>> {
    let help = succeeds(&[path, &["--help"]].concat());
    let listed = help.split("Commands:\n").nth(1).map(|rest| rest.split("\n\n").next().unwrap_or_default()).unwrap_or_default();
    let own: Vec<String> = path.iter().map(|word| (*word).to_owned()).collect();
    let mut all = vec![own.clone()];
    for line in listed.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
        let name = line.split_whitespace().next().expect("a name");
        if name != "help" {
            let below: Vec<&str> = path.iter().copied().chain([name]).collect();
            all.extend(commands(&below));
        }
    }
    all
}

#[test]
fn help_of_every_command_fits_eighty_columns() {
    let all = commands(&[]);
    assert!(all.len() > 20 && all.contains(&vec!["device".to_owned(), "create".to_owned()]), "{all:?}");
    for path in all {
        for flag in ["-h", "--help"] {
            let output = run(Command::new(env!("CARGO_BIN_EXE_tandemfs")).args(&path).arg(flag));
            let help = String::from_utf8(output.stdout).expect("UTF-8");
            assert!(output.status.success() && help.contains("Usage:"), "{path:?}");
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{path:?} {flag}: {} columns: {line}", line.chars().count());
            }
        }
    }
}

#[test]
fn every_command_that_does_something_prints_json() {
    let place = Place::empty();
    let (image, at) = (place.image(), place.mountpoint());
    let json = |words: &[&str]| -> Value {
        let text = succeeds(words);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
    };
    let made = json(&["device", "create", &image, "--memory", "64M", "--block", "256M", "--json"]);
    assert_eq!((&made["memory_bytes"], &made["block_bytes"]), (&(64 << 20).into(), &(256 << 20).into()));
    let formatted = json(&["mkfs", &image, "--label", "mail", "--json"]);
    assert_eq!((&formatted["label"], &formatted["block_size_bytes"]), (&"mail".into(), &(64 << 10).into()));
    assert_eq!(json(&["label", &image, "--json"])["label"], "mail");
    assert_eq!(json(&["label", &image, "spool", "--json"])["label"], "spool");
    let grown = json(&["resize", &image, "--block", "512M", "--json"]);
    assert_eq!((&grown["grown"], &grown["block_bytes"]), (&true.into(), &(512 << 20).into()));
    assert!(json(&["dump", &image, "superblock", "--json"])["lines"].as_array().is_some_and(|lines| lines.len() > 3));
    let log = place.path("log");
    support::require_fuse();
    let mounted = json(&["mount", &image, &at, "-o", &format!("log={log}"), "--json"]);
    let label = json(&["label", &at, "--json"]);
    let scrub = json(&["scrub", &at, "--json"]);
    let unmounted = json(&["umount", &at, "--json"]);
    assert_eq!((&mounted["mountpoint"], &label["label"]), (&at.clone().into(), &"spool".into()));
    assert_eq!(unmounted["daemon_ended"], true);
    let check = json(&["check", &image, "--json"]);
    for name in ["device", "consistent", "exit_status", "findings", "findings_left_out", "repaired"] {
        assert!(check.get(name).is_some() && scrub.get(name).is_some(), "{name} of check and scrub");
    }
}

#[test]
fn words_that_name_nothing_are_quoted_with_what_could_be_named() {
    let place = Place::formatted();
    let said = fails(2, "unknown structure 'foo'; use superblock", &["dump", &place.image(), "foo"]);
    assert!(said.contains("tree [PATH]"), "{said}");
    fails(2, "use one of 'most-space', 'oldest', 'coldest'", &["mount", &place.image(), "/", "-o", "write_back=newest"]);
}

/// Damage over many blocks of a file is one line of check and of scrub, and the same finding in the JSON of both.
#[test]
fn a_run_of_damaged_blocks_is_one_line() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    fs::write(mount.path("file"), support::pattern(1, 10 << 20)).expect("written");
    mount.unmount();
    // Whole blocks of the pattern, wherever they are.
    let wanted = support::pattern(1, 10 << 20);
    let image = File::options().read(true).write(true).open(place.image()).expect("opened");
    let bytes = fs::read(place.image()).expect("read");
    let mut damaged = 0;
    for block in wanted.chunks(64 << 10) {
        for (number, found) in bytes.chunks(4096).enumerate() {
            if *found == block[..4096] {
                image.write_all_at(&[0xEE; 64], number as u64 * 4096 + 100).expect("damaged");
                damaged += 1;
            }
        }
    }
    assert!(damaged >= 100, "{damaged}");
    let output = support::tandemfs(&["check", &place.image()]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(4), "{text}");
    let lines = text.lines().filter(|line| line.contains("checksum mismatch")).count();
    assert!((1..=3).contains(&lines), "{lines} lines for {damaged} damaged sectors: {text}");
    let output = support::tandemfs(&["check", &place.image(), "--json"]);
    let check: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let finding = &check["findings"][0];
    assert!(finding["inode"].is_u64() && finding["file_offset"].is_u64() && finding["length"].is_u64(), "{finding}");
    assert_eq!((&finding["severity"], &finding["path"]), (&"error".into(), &"/file".into()));
}

#[test]
fn no_message_has_the_number_of_an_error() {
    let place = Place::formatted();
    let (image, at) = (place.image(), place.mountpoint());
    for words in [
        &["info", "/proc/1/mem"][..],
        &["mount", "/absent", &at],
        &["mount", &image, "/absent"],
        &["umount", "/absent"],
        &["mkfs", "/dev/null"],
        &["mkfs", "/"],
        &["label", "/absent"],
        &["device", "create", "/absent/image", "--memory", "64M", "--block", "256M"],
        &["device", "create", "/proc/image", "--memory", "64M", "--block", "256M"],
        &["man", "--output", "/proc/man"],
        &["resize", &image, "--memory", "1M"],
    ] {
        let output = support::tandemfs(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && !said.is_empty() && !said.contains("os error"), "{words:?}: {said}");
    }
}

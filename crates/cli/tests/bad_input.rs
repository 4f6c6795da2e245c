//! Every bad input gets one sentence that names the cause, and the right exit status.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use support::{Place, fails, has_no_copies, run, start, succeeds};

#[test]
fn command_lines_without_meaning_are_usage_errors() {
    let place = Place::formatted();
    let (image, mountpoint) = (place.image(), place.mountpoint());
    for (word, words) in [
        ("Usage", vec!["frobnicate"]),
        ("Usage", vec![]),
        ("DEVICE", vec!["mkfs"]),
        ("'12Q'", vec!["mkfs", &image, "--block-size", "12Q"]),
        ("blake3", vec!["mkfs", &image, "--checksum", "blake3"]),
        ("'colour=red'", vec!["mount", &image, &mountpoint, "-o", "strict,colour=red"]),
        ("'many'", vec!["mount", &image, &mountpoint, "-o", "threshold=many"]),
        ("'strict'", vec!["mount", &image, &mountpoint, "-o", "atomic"]),
        ("superblock", vec!["dump", &image, "inode", "five"]),
        ("--memory", vec!["device", "create", "x"]),
    ] {
        let output = support::tandemfs(&words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(word) || word == "Usage", "{words:?}: {said}");
    }
}

#[test]
fn mountpoints_that_do_not_serve_are_named() {
    support::require_fuse();
    let place = Place::formatted();
    let image = place.image();
    fails(1, "/absent/place", &["mount", &image, "/absent/place"]);
    fails(1, "not a directory", &["mount", &image, &image]);
    fails(1, "no TandemFS is mounted", &["umount", &place.mountpoint()]);
    fails(1, "no TandemFS is mounted", &["stats", &place.mountpoint()]);
    fails(1, "a directory is no device", &["info", &place.mountpoint()]);
    fails(1, "/absent", &["umount", "/absent"]);
    // One with files in it is fine; they are seen again afterwards.
    fs::write(place.path("mnt/below"), "x").expect("written");
    let mount = place.mount("relaxed");
    assert!(!mount.path("below").exists());
    mount.unmount();
    assert!(fs::exists(place.path("mnt/below")).expect("looked"));
}

#[test]
fn devices_that_do_not_serve_are_named_and_left_alone() {
    support::require_fuse();
    let place = Place::empty();
    let (image, mountpoint) = (place.image(), place.mountpoint());
    fails(1, &image, &["mount", &image, &mountpoint]);
    fails(1, &image, &["mkfs", &image]);
    fails(8, &image, &["check", &image]);
    fails(1, &image, &["info", &image]);

    fs::write(&image, "").expect("written");
    fails(1, &image, &["mount", &image, &mountpoint]);
    fs::write(&image, support::pattern(1, 1 << 20)).expect("written");
    for words in [vec!["mount", &image, &mountpoint], vec!["info", &image], vec!["dump", &image, "superblock"]] {
        fails(1, &image, &words);
    }
    fails(8, &image, &["check", &image]);
    assert!(fs::read(&image).expect("read") == support::pattern(1, 1 << 20), "left as it was");

    // A drive without a file system.
    let drive = place.path("drive.image");
    succeeds(&["device", "create", &drive, "--memory", "64M", "--block", "256M"]);
    assert_eq!(fs::metadata(&drive).expect("there").permissions().mode() & 0o777, 0o600);
    fails(1, "no TandemFS", &["mount", &drive, &mountpoint]);
    fails(1, &drive, &["device", "create", &drive, "--memory", "64M", "--block", "256M"]);
    succeeds(&["mkfs", &drive]);
    fails(1, "--force", &["mkfs", &drive]);
    succeeds(&["mkfs", &drive, "--force"]);
    // Cut off.
    let file = fs::OpenOptions::new().write(true).open(&drive).expect("opened");
    file.set_len(file.metadata().expect("there").len() / 2).expect("cut");
    fails(1, &drive, &["mount", &drive, &mountpoint]);
    fails(8, &drive, &["check", &drive]);
}

#[test]
fn sizes_that_hold_no_file_system_are_refused() {
    let place = Place::empty();
    let small = place.path("small.image");
    fails(1, "4 KiB is too small", &["device", "create", &small, "--memory", "4K", "--block", "4K"]);
    assert!(!fs::exists(&small).expect("looked"), "nothing is left behind");
    fails(1, "nosuch", &["device", "create", &small, "--profile", "nosuch", "--memory", "64M", "--block", "256M"]);
    fails(1, "2 MiB is too small", &["device", "create", &small, "--memory", "2M", "--block", "256M"]);
    for (half, bytes) in [("memory", 2 << 20), ("block", 2 << 20)] {
        fs::File::create(place.path(half)).and_then(|file| file.set_len(bytes)).expect("made");
    }
    let pair = format!("memory={},block={}", place.path("memory"), place.path("block"));
    fails(1, &place.path("memory"), &["mkfs", &pair]);
    let drive = place.path("drive.image");
    succeeds(&["device", "create", &drive, "--memory", "64M", "--block", "256M"]);
    fails(1, "block", &["mkfs", &drive, "--block-size", "3K"]);
    fails(1, "64 B", &["mkfs", &drive, "--label", &"l".repeat(65)]);
}

#[test]
fn a_domain_is_lowered_never_raised() {
    support::require_fuse();
    let place = Place::formatted();
    fails(1, "domain=gpf", &["mount", &place.image(), &place.mountpoint(), "-o", "domain=gpf"]);
}

#[test]
fn a_reader_who_has_seen_enough_is_no_error() {
    let output = run(Command::new("sh")
        .args(["-c", "\"$0\" completions bash | head -c 10 > /dev/null; \"$0\" man > /dev/null"])
        .arg(env!("CARGO_BIN_EXE_tandemfs")));
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut closed = Command::new(env!("CARGO_BIN_EXE_tandemfs"));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    has_no_copies();
    let started = start(closed.args(["completions", "zsh"]).stdout(Stdio::from(writer)).stderr(Stdio::piped()));
    let output = started.and_then(Child::wait_with_output).expect("run");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn manual_pages_and_completions_are_written() {
    let place = Place::empty();
    let directory = place.path("man");
    succeeds(&["man", "--output", &directory]);
    for page in ["tandemfs.1", "tandemfs-mount.1", "tandemfs-mkfs.1", "tandemfs-check.1", "tandemfs-umount.1"] {
        let text = fs::read_to_string(format!("{directory}/{page}")).expect(page);
        assert!(!text.contains("daemon-fd") && !text.contains("\\-\\-daemon"), "{page} shows what is hidden");
    }
    for (page, words) in [
        ("mkfs.tandemfs.8", ["block\\-size", "label"]),
        ("mount.tandemfs.8", ["threshold=SIZE", "remount"]),
        ("umount.tandemfs.8", ["daemon has ended", "\\-l"]),
        ("fsck.tandemfs.8", ["what cannot be read is given up", "\\-n"]),
    ] {
        let text = fs::read_to_string(format!("{directory}/{page}")).expect(page);
        assert!(text.contains(&format!(".TH {} 8", page.trim_end_matches(".8"))), "{page}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{page}: {text}");
    }
    assert!(succeeds(&["completions", "fish"]).contains("tandemfs"));
    assert!(succeeds(&["--help"]).contains("hybrid SSDs"));
    assert!(succeeds(&["mount", "--help"]).contains("threshold=SIZE"));
}

#[test]
fn a_log_that_cannot_be_written_is_named() {
    support::require_fuse();
    let place = Place::formatted();
    fs::set_permissions(place.image(), Permissions::from_mode(0o600)).expect("changed");
    fails(1, "/proc/no/log", &["mount", &place.image(), &place.mountpoint(), "-o", "log=/proc/no/log"]);
}

#[test]
fn drives_and_profiles_are_shown() {
    let place = Place::empty();
    let drive = place.path("drive.image");
    succeeds(&["device", "create", &drive, "--profile", "romefs-a", "--memory", "64M", "--block", "256M"]);
    let info: serde_json::Value = serde_json::from_str(&succeeds(&["device", "info", &drive, "--json"])).expect("JSON");
    assert_eq!(
        (&info["profile"], &info["memory_bytes"], &info["block_bytes"]),
        (&"romefs-a".into(), &(64 << 20).into(), &(256 << 20).into())
    );
    assert!(succeeds(&["device", "info", &drive]).contains("64 MiB"));
    let profiles: serde_json::Value = serde_json::from_str(&succeeds(&["device", "profiles", "--json"])).expect("JSON");
    assert!(profiles.as_array().is_some_and(|all| all.iter().any(|profile| profile["name"] == "off")));
    assert!(succeeds(&["device", "profiles"]).contains("romefs-a"));
    fails(1, "/absent", &["device", "info", "/absent"]);
}

#[test]
fn halves_of_two_pairs_are_not_mounted_together() {
    support::require_fuse();
    let place = Place::empty();
    let pair = |memory: &str, block: &str| format!("memory={},block={}", place.path(memory), place.path(block));
    for (memory, block) in [("memory-1", "block-1"), ("memory-2", "block-2")] {
        fs::File::create(place.path(memory)).and_then(|file| file.set_len(64 << 20)).expect("made");
        fs::File::create(place.path(block)).and_then(|file| file.set_len(256 << 20)).expect("made");
        succeeds(&["mkfs", &pair(memory, block)]);
    }
    fails(1, "pair", &["mount", &pair("memory-1", "block-2"), &place.mountpoint()]);
    fails(8, "pair", &["check", &pair("memory-1", "block-2")]);
    fails(1, "memory half is missing", &["mount", &format!("block={}", place.path("block-1")), &place.mountpoint()]);
    succeeds(&["check", &pair("memory-1", "block-1")]);
}

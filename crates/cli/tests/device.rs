//! Drives with firmware on the command line: created, measured, counted, refused.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use rustix::fs::SeekFrom;
use serde_json::Value;
use support::{Place, fails, run, succeeds};

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&succeeds(words)).expect("JSON")
}

fn created(place: &Place, more: &[&str]) -> String {
    let image = place.image();
    let mut words = vec!["device", "create", &image, "--memory", "32M", "--block", "256M"];
    words.extend(more);
    succeeds(&words);
    image
}

#[test]
fn a_drive_is_what_was_asked_for() {
    let place = Place::empty();
    let more = ["--profile", "bytefs", "--write-log", "8M", "--flash-latency", "3/80", "--channels", "4", "--over-provisioning", "25"];
    let image = created(&place, &[&more[..], &["--garbage-collection", "cost-benefit"]].concat());
    let info = json(&["device", "info", &image, "--json"]);
    assert_eq!(info["firmware"]["write_log"]["log_bytes"], 8 << 20);
    assert_eq!(info["firmware"]["flash"]["channels"], 4);
    assert_eq!(info["firmware"]["flash"]["over_provisioning_percent"], 25);
    assert_eq!(info["firmware"]["flash"]["garbage_collection"], "cost-benefit");
    assert_eq!(
        (&info["firmware"]["times"]["flash_read_ns"], &info["firmware"]["times"]["flash_program_ns"]),
        (&3_000.into(), &80_000.into())
    );
    assert!(info["has_timing"] == true && info["firmware"]["cache"].is_null());
    let profiles = json(&["device", "profiles", "--json"]);
    let with_firmware = profiles.as_array().expect("all").iter().filter(|profile| profile["has_firmware"] == true).count();
    assert_eq!(with_firmware, 4);
}

#[test]
fn a_drive_whose_cache_the_host_manages_says_so() {
    let place = Place::empty();
    let cache = |more: &[&str]| {
        let image = created(&place, &[&["--profile", "hybrid-cache"], more].concat());
        let info = json(&["device", "info", &image, "--json"]);
        std::fs::remove_file(&image).expect("removed");
        (info["firmware"]["cache"]["management"].clone(), info["firmware"]["cache"]["cache_bytes"].clone())
    };
    assert_eq!(cache(&[]), ("host".into(), (2 << 20).into()));
    assert_eq!(cache(&["--cache", "16M", "--cache-management", "host"]), ("host".into(), (16 << 20).into()));
    assert_eq!(cache(&["--cache-management", "clock"]), ("clock".into(), (2 << 20).into()), "the drive itself, for comparison");
}

/// Fills the cache of a device behind its memory zone, and says what is there.
fn in_cache(device: &str, fill: Option<u8>) -> Vec<u8> {
    let opened = tandemfs_emulator::open_device(device, &tandemfs_emulator::DeviceOptions::default()).expect("opened");
    let cache = opened.description().cache();
    assert!(cache.length > 0, "{device}");
    let mut bytes = vec![fill.unwrap_or(0); cache.length as usize];
    match fill {
        Some(_) => opened.byte_path().store(cache.offset, &bytes).expect("stored"),
        None => opened.byte_path().load(cache.offset, &mut bytes).expect("loaded"),
    }
    bytes
}

/// A file system works beside the cache and leaves it alone: on an emulated drive and on a pair.
#[test]
fn file_systems_leave_the_cache_of_the_host_alone() {
    let place = Place::empty();
    let image = created(&place, &["--profile", "hybrid-cache"]);
    let (memory, block) = (place.path("memory"), place.path("block"));
    File::create(&memory).and_then(|file| file.set_len(36 << 20)).expect("a file");
    File::create(&block).and_then(|file| file.set_len(64 << 20)).expect("a file");
    let pair = format!("memory={memory},block={block},cache=4M");
    for device in [&image, &pair] {
        in_cache(device, Some(0xc5));
        succeeds(&["mkfs", device]);
        let content = support::pattern(3, 9 << 20);
        let mount = place.mount_device(device, "strict");
        std::fs::write(mount.path("file"), &content).expect("written");
        mount.kill();
        succeeds(&["check", device]);
        let mount = place.mount_device(device, "relaxed");
        assert!(std::fs::read(mount.path("file")).expect("read") == content);
        mount.unmount();
        succeeds(&["check", device]);
        assert!(in_cache(device, None).iter().all(|byte| *byte == 0xc5), "{device}");
    }
    // Without its cache the pair is a larger one, with a larger cache it is too small.
    let without = format!("memory={memory},block={block}");
    place.mount_device(&without, "strict").unmount();
    assert!(in_cache(&pair, None).iter().all(|byte| *byte == 0xc5));
    let larger = format!("{without},cache=8M");
    fails(8, "its superblock says 32 MiB", &["check", &larger]);
    for (device, said) in [("memory=a,block=b,cache=x", "'x' is not a size"), ("memory=a,cache=1G", "to and from a block half")] {
        fails(1, said, &["info", device]);
    }
}

/// `device create` and `doctor` agree on whether a tmpfs gives huge pages: its own option decides, not what the machine says of other memory.
#[test]
fn places_that_give_base_pages_only_are_said() {
    let Ok(setting) = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled") else {
        return println!("skipped: this kernel has no huge pages for files in memory");
    };
    const SCRIPT: &str = r#"
        set -eu
        mount -t tmpfs -o "size=256M,huge=$1" tmpfs "$2"
        "$3" device create "$2/image" --profile off --memory 32M --block 64M
        "$3" device create "$2/second" --profile off --memory 32M --block 64M --json
        "$3" mkfs "$2/image" >&2
        "$3" doctor --json "$2/image" >"$2/found" || test $? = 4
        grep -c no_huge_pages "$2/found" || true
    "#;
    for (option, by_option) in [("never", true), ("advise", true), ("always", false), ("within_size", false)] {
        let place = Place::empty();
        let directory = place.mountpoint();
        std::fs::create_dir_all(&directory).expect("a directory");
        let is_root = rustix::process::geteuid().is_root();
        let namespaces: &[&str] = if is_root { &["--mount"] } else { &["--user", "--map-root-user", "--mount"] };
        let words = ["--propagation", "private", "sh", "-c", SCRIPT, "sh", option, &directory, env!("CARGO_BIN_EXE_tandemfs")];
        let output = run(Command::new("unshare").args(namespaces).args(words));
        let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !is_root && !output.status.success() && said.is_empty() {
            return println!("skipped: this user has no namespaces, or mounts no tmpfs with huge={option}: {failed}");
        }
        assert!(output.status.success(), "huge={option}: {said}{failed}");
        let expected = (by_option || setting.contains("[deny]")) && !setting.contains("[force]");
        assert_eq!(
            said.contains("/image is in a tmpfs") && said.contains("base pages only, no huge ones"),
            expected,
            "huge={option}: {said}"
        );
        assert_eq!(said.contains("\"base_pages_only\": true"), expected, "huge={option}: {said}");
        assert_eq!(said.trim_end().ends_with("\n1"), expected, "huge={option}, doctor: {said}");
    }
}

#[test]
fn drives_that_make_no_sense_are_refused() {
    let place = Place::empty();
    let image = place.image();
    let refused = |status: i32, word: &str, more: &[&str]| {
        let mut words = vec!["device", "create", &image, "--memory", "32M", "--block", "256M"];
        words.extend(more);
        fails(status, word, &words);
        assert!(!std::fs::exists(&image).expect("looked"), "{more:?} left an image behind");
    };
    refused(1, "is larger than the drive", &["--profile", "bytefs", "--write-log", "1G"]);
    refused(1, "zero channels", &["--profile", "bytefs", "--channels", "0"]);
    refused(1, "0 % of over-provisioning", &["--profile", "bytefs", "--over-provisioning", "0"]);
    refused(1, "no page cache", &["--profile", "bytefs", "--cache", "1M"]);
    refused(1, "no write log", &["--profile", "bytefs-dual", "--write-log", "1M"]);
    refused(1, "name profile hybrid-cache", &["--profile", "bytefs-dual", "--cache-management", "host"]);
    refused(1, "a cache of 1 GiB is larger than the drive", &["--profile", "hybrid-cache", "--cache", "1G"]);
    refused(1, "has no firmware", &["--profile", "romefs-a", "--over-provisioning", "10"]);
    refused(2, "'40' is not READ/PROGRAM", &["--profile", "bytefs", "--flash-latency", "40"]);
    refused(2, "sometimes", &["--profile", "bytefs", "--garbage-collection", "sometimes"]);
    fails(2, "--block is missing", &["device", "create", &image, "--memory", "32M"]);
}

#[test]
fn a_drive_is_measured_beside_its_claims() {
    let place = Place::empty();
    for profile in ["bytefs", "bytefs-dual", "hybrid-cache", "romefs-a", "off"] {
        let image = created(&place, &["--profile", profile]);
        if profile == "off" {
            fails(1, "no timing model", &["device", "bench", &image, "--virtual"]);
            break;
        }
        let found = json(&["device", "bench", &image, "--virtual", "--json"]);
        let rows = found["rows"].as_array().expect("rows");
        let of = |operation: &str| rows.iter().filter(|row| row["operation"] == operation).count();
        assert_eq!((of("store"), of("load"), of("read"), of("write")), (4, 4, 12, 12), "{profile}");
        assert_eq!(of("tagged, COMMIT"), usize::from(profile == "bytefs"));
        // Garbage collection takes its share of writes to a drive that is this small; a cache has misses.
        assert_eq!((of("MOVE to cache"), of("MOVE to flash")), if profile == "hybrid-cache" { (3, 3) } else { (0, 0) });
        let is_exact = |row: &&Value| row["operation"] == "read" || row["path"] == "bytes" && profile != "bytefs-dual";
        for row in rows.iter().filter(is_exact) {
            let (Some(latency), Some(claimed)) = (row["latency_ns"].as_f64(), row["claimed_latency_ns"].as_f64()) else { continue };
            assert!((latency - claimed).abs() <= claimed * 0.05, "{profile}: {row}");
        }
        assert!(succeeds(&["device", "bench", &image, "--virtual"]).lines().count() == rows.len() + 1);
        std::fs::remove_file(&image).expect("removed");
    }
}

#[test]
fn the_index_of_a_full_log_is_measured() {
    let place = Place::empty();
    let image = created(&place, &["--profile", "bytefs", "--write-log", "1M"]);
    let found = json(&["device", "bench", &image, "--index", "--json"]);
    for figures in found["indexes"].as_array().expect("both") {
        assert!(figures["hit_ns"].as_f64() > Some(0.0) && figures["index_bytes"].as_u64() > Some(16_384), "{figures}");
    }
    let plain = place.path("plain");
    succeeds(&["device", "create", &plain, "--memory", "32M", "--block", "256M"]);
    fails(1, "has no write log", &["device", "bench", &plain, "--index"]);
}

#[test]
fn a_drive_with_a_file_system_is_not_measured_unless_it_may_be_lost() {
    let place = Place::empty();
    let image = created(&place, &["--profile", "bytefs"]);
    succeeds(&["mkfs", &image]);
    fails(1, "contains a TandemFS", &["device", "bench", &image, "--virtual"]);
    succeeds(&["check", &image]);
    succeeds(&["device", "bench", &image, "--virtual", "--force"]);
}

#[test]
fn a_drive_counts_over_its_life() {
    let place = Place::empty();
    let image = created(&place, &["--profile", "bytefs", "--no-timing"]);
    let fresh = json(&["device", "stats", &image, "--json"]);
    assert!(fresh["flash"]["pages_written"] == 0 && fresh["write_amplification"].is_null());
    let mut before = 0;
    for _ in 0..2 {
        succeeds(&["device", "bench", &image, "--no-timing"]);
        let found = json(&["device", "stats", &image, "--json"]);
        let written = found["flash"]["pages_written"].as_u64().expect("a count");
        assert!(written > before && found["firmware"]["commits"].as_u64() > Some(0), "{found}");
        assert!(found["wear"]["blocks"].as_u64() > Some(0) && found["log"]["capacity_lines"] == 72 * (1 << 20) / 64, "{found}");
        before = written;
    }
    assert!(succeeds(&["device", "stats", &image]).contains("write_amplification"));
    let plain = place.path("plain");
    succeeds(&["device", "create", &plain, "--memory", "32M", "--block", "256M"]);
    fails(1, "has no firmware that counts", &["device", "stats", &plain]);
    fails(1, "does not exist", &["device", "stats", &place.path("absent")]);
}

#[test]
fn a_drive_with_a_model_of_media_counts_what_stores_cost() {
    let place = Place::empty();
    let image = place.path("media");
    let model = ["--media-model", "--persistent-caches", "--cpu-cache", "768K", "--dimms", "2"];
    succeeds(&[&["device", "create", &image, "--profile", "optane", "--memory", "32M"][..], &model].concat());
    let info = json(&["device", "info", &image, "--json"]);
    assert!(info["media"]["cpu_cache_bytes"] == 768 << 10 && info["media"]["dimms"] == 2 && info["profile_domain"] == "gpf", "{info}");
    assert!(json(&["device", "stats", &image, "--json"])["media"]["write_amplification"].is_null());
    succeeds(&["device", "bench", &image, "--virtual"]);
    let found = json(&["device", "stats", &image, "--json"]);
    let other = &found["media"]["by_structure"]["other"];
    assert!(other["stored_bytes"].as_u64() > Some(0) && other["evicted_bytes"].as_u64() > Some(0), "{found}");
    assert!(succeeds(&["device", "stats", &image]).contains("media.by_structure.journal.flushed"));
    let plain = place.path("without");
    fails(1, "no model of CPU caches", &["device", "create", &plain, "--memory", "32M", "--block", "64M", "--media-model"]);
    fails(2, "--media-model", &["device", "create", &plain, "--profile", "optane", "--memory", "32M", "--dimms", "2"]);
}

/// Pages of a sparse file that are not zeros, each with its place. (Pages that were only read may count as written.)
fn written(path: &str) -> Vec<(u64, [u8; 4096])> {
    let file = File::open(path).expect("opened");
    let mut pages = Vec::new();
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, SeekFrom::Hole(start)).expect("data ends");
        for page in (start / 4096 * 4096..at).step_by(4096) {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, page).expect("read");
            if bytes != [0; 4096] {
                pages.push((page, bytes));
            }
        }
    }
    pages
}

/// The limit counts memory that a process has for itself, private mappings with their whole size among it: as if the machine had no more.
#[test]
fn regression_an_image_larger_than_memory_could_not_be_checked() {
    const LIMIT_KIB: u64 = 2 << 20;
    let place = Place::empty_in(&std::env::temp_dir());
    let image = place.image();
    succeeds(&["device", "create", &image, "--profile", "bytefs", "--no-timing"]);
    assert!(std::fs::metadata(&image).expect("made").len() > 8 * (LIMIT_KIB << 10));
    succeeds(&["mkfs", &image]);
    // A daemon that died leaves lines in the drive's log.
    let mount = place.mount("strict");
    for number in 0..200 {
        std::fs::write(mount.path(&format!("file{number}")), vec![number as u8; 3000 * number]).expect("written");
    }
    mount.kill();
    let before = written(&image);
    for (words, expected) in
        [(&["check", &image][..], "200 files"), (&["dump", &image, "tree"], "file199"), (&["dump", &image, "journal"], "")]
    {
        let limited = format!("ulimit -d {LIMIT_KIB} && exec \"$@\"");
        let output = run(Command::new("sh").args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_tandemfs")]).args(words));
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(expected), "{words:?}: {}{said}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(written(&image) == before, "reading has changed the image");
}

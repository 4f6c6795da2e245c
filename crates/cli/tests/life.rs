//! The life cycle of a mount: killed, signalled, busy, read-only, mounted twice, asked for its counters.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use support::{MODES, Place, failed, fails, pattern, run, start, succeeds, tandemfs, umount, unmounts};

#[test]
fn what_was_acknowledged_survives_a_killed_daemon() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        fs::create_dir(mount.path("dir")).expect("made");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.path("dir/file")).expect("created");
        for round in 0..50 {
            file.write_all_at(&pattern(round, 5000), round * 5000).expect("written");
            if mode == "relaxed" {
                file.sync_data().expect("synced");
            }
        }
        fs::write(mount.path("old"), "x").expect("written");
        fs::rename(mount.path("old"), mount.path("new")).expect("renamed");
        let unlinked = File::create(mount.path("unlinked")).expect("created");
        unlinked.write_all_at(&pattern(0, 100_000), 0).expect("written");
        fs::remove_file(mount.path("unlinked")).expect("removed");
        mount.kill();
        drop((file, unlinked));

        let mount = place.mount(mode);
        let bytes = fs::read(mount.path("dir/file")).expect("read");
        assert_eq!(bytes.len(), 250_000, "{mode}");
        for round in 0..50 {
            assert!(bytes[round as usize * 5000..][..5000] == pattern(round, 5000)[..], "{mode}: round {round}");
        }
        assert!(mount.path("new").exists() && !mount.path("old").exists() && !mount.path("unlinked").exists());
        mount.unmount();
        place.check();
    }
}

#[test]
fn a_device_is_in_use_once() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    let (image, mountpoint, other) = (place.image(), place.mountpoint(), place.path("other"));
    fs::create_dir(&other).expect("made");
    fails(1, "in use", &["mount", &image, &other]);
    fails(1, "mounted there already", &["mount", &image, &mountpoint]);
    fails(1, "in use", &["mkfs", &image, "--force"]);
    fails(8, "in use", &["check", &image]);
    fails(1, "in use", &["dump", &image, "superblock"]);
    fs::write(mount.path("works"), "on").expect("written");
    mount.unmount();
    place.mount("strict").unmount();
}

#[test]
fn a_signal_unmounts_and_frees_the_device() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let place = Place::formatted();
        let mount = place.mount("relaxed");
        fs::write(mount.path("file"), pattern(1, 100_000)).expect("written");
        mount.signal(signal);
        assert!(mount.daemon_ends_within(support::WITHIN), "{signal:?}");
        place.check();
        let again = place.mount("relaxed");
        assert!(fs::read(again.path("file")).expect("read") == pattern(1, 100_000));
        again.unmount();
    }
}

#[test]
fn a_mount_in_use_is_not_unmounted_but_ends_after_a_signal_when_it_is_left() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    let file = File::create(mount.path("open")).expect("created");
    fails(1, "in use", &["umount", &place.mountpoint()]);
    mount.signal(Signal::TERM);
    support::eventually("the mountpoint is free", || fs::read_dir(place.mountpoint()).is_ok_and(|mut entries| entries.next().is_none()));
    file.write_all_at(b"served to the end", 0).expect("written");
    drop(file);
    assert!(mount.daemon_ends_within(support::WITHIN));
    let mount = place.mount("relaxed");
    assert_eq!(fs::read(mount.path("open")).expect("read"), b"served to the end");
    let file = File::open(mount.path("open")).expect("opened");
    succeeds(&["umount", "--lazy", &place.mountpoint()]);
    drop(file);
    assert!(mount.daemon_ends_within(support::WITHIN));
    place.check();
}

/// A daemon has a descriptor or more for each client, whatever limit it was started with.
#[test]
fn a_daemon_may_have_as_many_descriptors_as_the_system_lets_it() {
    let place = Place::formatted();
    let script = "ulimit -Sn 256 && exec \"$0\" mount \"$1\" \"$2\" -o \"log=$3\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tandemfs"), &place.image(), &place.mountpoint(), &place.path("log")]);
    let _kept = support::parameters::kept();
    let output = run(&mut command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let info: serde_json::Value = serde_json::from_str(&succeeds(&["info", &place.mountpoint(), "--json"])).expect("JSON");
    let limits = fs::read_to_string(format!("/proc/{}/limits", info["process_id"])).expect("a process");
    let descriptors = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit");
    let words: Vec<_> = descriptors.split_whitespace().collect();
    assert!(words[0] == words[1] && words[0] != "256", "{words:?}");
    umount(&place.mountpoint());
}

/// Sends a signal to a detached mount, which cuts off its open file, where the kernel's control of connections is mounted ([SGN2] of `signals.rs`).
/// Otherwise the daemon says so and ends with the file.
fn cut_off(mount: &support::Mount, file: File, log: &str) {
    let can_cut_off = fs::read_dir("/sys/fs/fuse/connections").is_ok_and(|mut connections| connections.next().is_some());
    mount.signal(Signal::TERM);
    if can_cut_off {
        assert!(mount.daemon_ends_within(support::WITHIN), "the file keeps the daemon");
        assert!(file.write_all_at(b"x", 0).and_then(|()| file.sync_all()).is_err(), "nobody serves it");
    } else {
        println!("not cut off: there is no /sys/fs/fuse/connections");
        support::eventually("a word", || fs::read_to_string(log).is_ok_and(|log| log.contains("cannot be cut off")));
    }
    drop(file);
    assert!(mount.daemon_ends_within(support::WITHIN));
}

/// [SGN1] of `signals.rs`
#[test]
fn regression_a_signal_took_away_another_mount_at_the_same_place() {
    let (place, other) = (Place::formatted(), Place::formatted());
    let detached = place.mount("relaxed");
    let file = File::create(detached.path("open")).expect("created");
    succeeds(&["umount", "--lazy", &place.mountpoint()]);
    let mount = place.mount_device(&other.image(), "relaxed");
    fs::write(mount.path("of the other"), "x").expect("written");
    let in_use = File::open(mount.path("of the other")).expect("opened");
    detached.signal(Signal::TERM);
    let log = || fs::read_to_string(place.path("log")).expect("a log");
    support::eventually("the signal is noticed", || log().contains("not in place"));
    file.write_all_at(b"served to the end", 0).expect("written");
    assert_eq!(fs::read(mount.path("of the other")).expect("it stands"), b"x", "while it is in use");
    drop(in_use);
    cut_off(&detached, file, &place.path("log"));
    assert_eq!(fs::read(mount.path("of the other")).expect("it stands"), b"x", "while it is not");
    mount.unmount();
    drop(detached);
    place.check();
    other.check();
}

#[test]
fn regression_no_signal_cut_off_a_mount_that_was_detached_by_hand() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    let file = File::create(mount.path("open")).expect("created");
    succeeds(&["umount", "--lazy", &place.mountpoint()]);
    mount.signal(Signal::TERM);
    support::eventually("the signal is noticed", || fs::read_to_string(place.path("log")).is_ok_and(|log| log.contains("asked to end")));
    file.write_all_at(b"served", 0).expect("written");
    cut_off(&mount, file, &place.path("log"));
    place.check();
}

#[test]
fn others_may_unmount_too() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    fs::write(mount.path("file"), "x").expect("written");
    unmounts(Command::new("umount").arg(place.mountpoint()));
    assert!(mount.daemon_ends_within(support::WITHIN));
    place.check();
}

#[test]
fn a_dead_mount_is_taken_away() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    mount.signal(Signal::KILL);
    assert!(mount.daemon_ends_within(support::WITHIN));
    fails(1, "mounted there already", &["mount", &place.image(), &place.mountpoint()]);
    fails(1, "its daemon died; unmount it and mount it again", &["stats", &place.mountpoint()]);
    umount(&place.mountpoint());
    place.mount("relaxed").unmount();
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    fs::write(mount.path("file"), "kept").expect("written");
    mount.unmount();
    let before = fs::read(place.image()).expect("read");
    let mount = place.mount("ro");
    assert_eq!(fs::read(mount.path("file")).expect("read"), b"kept");
    assert_eq!(fs::write(mount.path("other"), "x").expect_err("read-only").raw_os_error(), Some(30));
    assert_eq!(fs::set_permissions(mount.path("file"), fs::Permissions::from_mode(0o600)).expect_err("read-only").raw_os_error(), Some(30));
    mount.unmount();
    assert!(fs::read(place.image()).expect("read") == before, "not one byte changed");
}

#[test]
fn counters_have_the_names_of_the_contract() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    for index in 0..10 {
        fs::write(mount.path(&format!("file-{index}")), pattern(index, 1000)).expect("written");
    }
    fs::write(mount.path("large"), pattern(1, 1 << 20)).expect("written");
    let stats = mount.stats();
    let names = |path: &str, names: &str| {
        for name in names.split(' ') {
            assert!(stats.pointer(&format!("{path}/{name}")).is_some_and(serde_json::Value::is_u64), "{path}/{name}: {stats:#}");
        }
    };
    names("/byte_path", "read_bytes written_bytes flushed_lines fences");
    names("/block_path", "read_bytes written_bytes reads writes flushes");
    names("/firmware", "tagged_stores commits log_cleanings");
    names("/flash", "pages_read pages_programmed blocks_erased");
    for structure in ["superblock", "allocation_map", "inode", "dentry", "mapping", "journal", "data_log", "data"] {
        names(&format!("/by_structure/{structure}"), "byte_read_bytes byte_written_bytes block_read_bytes block_written_bytes");
    }
    names("/file_system", "user_read_bytes user_written_bytes transactions checkpoints merges block_write_backs early_terminations");
    names(
        "/file_system/operations",
        "create mkdir symlink mknod link unlink rmdir rename lookup getattr setattr read write readdir fsync fallocate lseek",
    );
    names("/threshold", "bytes chosen_bytes");
    assert_eq!((stats["threshold"]["bytes"].as_u64(), stats["threshold"]["reason"].as_str()), (Some(65_536), Some("the block size")));
    names("/memory_zone", "total_bytes free_bytes data_log_bytes");
    names("/block_zone", "total_bytes free_bytes data_log_bytes");
    assert_eq!(stats["file_system"]["operations"]["create"], 11);
    assert_eq!(stats["file_system"]["user_written_bytes"], 10 * 1000 + (1 << 20));
    assert!(stats["block_path"]["written_bytes"].as_u64() >= Some(15 << 16), "whole blocks go by blocks");
    assert!(stats["byte_path"]["written_bytes"].as_u64() >= Some(10_000), "small writes go by bytes");

    succeeds(&["stats", &place.mountpoint(), "--json", "--reset"]);
    assert_eq!(mount.stats()["file_system"]["operations"]["create"], 0);
    assert!(succeeds(&["stats", &place.mountpoint()]).contains("block_path.writes"));
    mount.unmount();
}

/// Zones that do not go together are formatted with a warning; a zone that is short is told with what helps.
#[test]
fn odd_sizes_and_short_zones_are_told() {
    let place = Place::empty();
    succeeds(&["device", "create", &place.image(), "--profile", "off", "--memory", "64M", "--block", "32M"]);
    let made = tandemfs(&["mkfs", &place.image(), "--json"]);
    assert!(made.status.success());
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(said.contains("warning: the block zone (32 MiB) is smaller than the memory zone (64 MiB)"), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&made.stdout).expect("JSON");
    let numbers = ["has_bytes", "recommended_bytes"].map(|name| json["warnings"][0][name].as_u64());
    assert_eq!((&json["warnings"][0]["zone"], numbers), (&"block".into(), [Some(32 << 20), Some(64 << 20)]));
    let mount = place.mount("strict");
    assert_eq!(mount.stats()["short"], serde_json::json!([]));
    let full = (0..40).find(|number| std::fs::write(mount.path(&format!("file{number}")), vec![1; 1 << 20]).is_err());
    assert!(full.is_some(), "the zone was filled");
    assert_eq!(mount.stats()["short"][0]["zone"], "block", "{:#}", mount.stats()["short"]);
    assert!(succeeds(&["info", &place.mountpoint()]).contains("tandemfs resize --block"));
    mount.unmount();
}

#[test]
fn info_shows_mounts_and_devices() {
    let place = Place::formatted();
    let device: serde_json::Value = serde_json::from_str(&succeeds(&["info", &place.image(), "--json"])).expect("JSON");
    let mount = place.mount("strict");
    let mounted: serde_json::Value = serde_json::from_str(&succeeds(&["info", &place.mountpoint(), "--json"])).expect("JSON");
    assert_eq!((&device["mounted"], &mounted["mounted"]), (&false.into(), &true.into()));
    assert_eq!(device["pair"], mounted["pair"]);
    assert_eq!((&mounted["mode"], &mounted["mountpoint"]), (&"strict".into(), &place.mountpoint().into()));
    assert!(succeeds(&["info", &place.mountpoint()]).contains("mode"));
    mount.unmount();
}

#[test]
fn mount_and_fsck_call_the_program_by_their_names() {
    support::require_fuse();
    let place = Place::formatted();
    let program = |name: &str| Command::new(support::program_named(&place, name));
    let (image, mountpoint) = (place.image(), place.mountpoint());
    let wrong = run(program("mount.tandemfs").args([&image, &mountpoint, "-o", "rw,colour=red"]));
    failed(&wrong, 1, "colour=red", "mount.tandemfs");
    let absent = run(program("mount.tandemfs").args([image.as_str(), "/absent", "-o", "rw"]));
    failed(&absent, 32, "/absent", "mount.tandemfs");
    let log = format!("rw,noatime,x-systemd.automount,strict,log={}", place.path("log"));
    let mounted = run(program("mount.tandemfs").args([&image, &mountpoint, "-n", "-o", &log]));
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    let written = fs::write(place.path("mnt/file"), "x");
    let busy = run(program("fsck.tandemfs").args(["-a", &image]));
    umount(&mountpoint);
    assert!(written.is_ok());
    failed(&busy, 8, "in use", "fsck.tandemfs");
    let clean = run(program("fsck.tandemfs").args(["-a", "-C0", &image]));
    assert_eq!(clean.status.code(), Some(0), "{}", String::from_utf8_lossy(&clean.stderr));
}

#[test]
fn a_device_shows_its_structures_and_its_check() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    fs::create_dir(mount.path("directory")).expect("made");
    fs::write(mount.path("directory/file"), pattern(1, 100_000)).expect("written");
    mount.unmount();
    let dump = |what: &[&str]| succeeds(&[&["dump", &place.image()], what].concat());
    assert!(dump(&["superblock"]).contains("pair"));
    assert!(dump(&["segments"]).contains("segment"));
    assert!(dump(&["tree"]).contains("file"));
    assert!(dump(&["inode", "1"]).contains("directory"));
    dump(&["journal"]);
    fails(1, "inode 4000", &["dump", &place.image(), "inode", "4000"]);
    assert!(succeeds(&["check", &place.image()]).contains("clean"));
    let report: serde_json::Value = serde_json::from_str(&succeeds(&["check", &place.image(), "--json"])).expect("JSON");
    assert_eq!((&report["consistent"], &report["exit_status"], &report["counts"]["files"]), (&true.into(), &0.into(), &1.into()));
}

#[test]
fn a_pair_of_files_is_a_device() {
    support::require_fuse();
    let place = Place::empty();
    for (half, bytes) in [("memory", 64 << 20), ("block", 256 << 20)] {
        File::create(place.path(half)).and_then(|file| file.set_len(bytes)).expect("made");
    }
    let pair = format!("memory={},block={}", place.path("memory"), place.path("block"));
    succeeds(&["mkfs", &pair, "--label", "pair"]);
    let mount = place.mount_device(&pair, "strict");
    fs::write(mount.path("file"), pattern(1, 300_000)).expect("written");
    fails(1, "in use", &["mkfs", &pair, "--force"]);
    mount.kill();
    let mount = place.mount_device(&pair, "relaxed");
    assert!(fs::read(mount.path("file")).expect("read") == pattern(1, 300_000));
    mount.unmount();
    succeeds(&["check", &pair]);
    assert!(succeeds(&["device", "info", &pair]).contains("attached"));
    assert!(succeeds(&["info", &pair]).contains("pair"));
}

#[test]
fn an_automatic_threshold_says_what_it_chose_and_why() {
    let place = Place::formatted();
    let mount = place.mount("strict,threshold=auto");
    let threshold = &mount.stats()["threshold"];
    let measured = threshold["measured"].as_array().expect("measured");
    assert!(measured.iter().any(|latency| latency["size_bytes"] == threshold["chosen_bytes"]), "{threshold:#}");
    assert!(threshold["reason"].as_str().is_some_and(|reason| reason.contains("block path")), "{threshold:#}");
    mount.unmount();
    place.check();
}

/// Replies that come too late are nothing for its log. Several callers and mounts: once the kernel has heard that a daemon knows no INTERRUPT
/// it sends it no more, so each mount has one moment in which a reply can come too late. Most meet it.
#[test]
fn killed_callers_leave_no_word_in_the_log() {
    let place = Place::with_firmware();
    for round in 0..6 {
        let mount = place.mount("relaxed,threads=8");
        let start = |name: String| {
            let to = format!("of={name}");
            let words = ["if=/dev/zero", &to, "bs=4k", "count=10000", "oflag=direct", "status=none"];
            start(Command::new("dd").args(words).current_dir(mount.root())).expect("dd")
        };
        let mut writers: Vec<_> = (0..8).map(|writer| start(format!("file{writer}"))).collect();
        support::eventually("every writer writes", || {
            let written = |writer| fs::metadata(mount.path(&format!("file{writer}"))).is_ok_and(|metadata| metadata.len() > 0);
            (0..writers.len()).all(written)
        });
        writers.iter_mut().for_each(|writer| writer.kill().expect("killed"));
        for writer in &mut writers {
            writer.wait().expect("ended");
        }
        for entry in fs::read_dir(mount.root()).expect("listed") {
            fs::remove_file(entry.expect("an entry").path()).expect("removed");
        }
        mount.unmount();
        let said = fs::read_to_string(place.path("log")).expect("a log");
        assert!(!said.contains("ERROR") && !said.contains("WARN"), "round {round}: {said}");
    }
}

/// umount(8) returns before the daemon has ended.
#[test]
fn regression_commands_right_after_umount_found_the_device_in_use() {
    if !rustix::process::geteuid().is_root() {
        return; // umount(8) of an ordinary user goes by fusermount3
    }
    let place = Place::formatted();
    for round in 0..8 {
        let mount = place.mount("relaxed");
        fs::write(mount.path(&format!("{round}")), pattern(round, 2 << 20)).expect("written");
        unmounts(Command::new("umount").arg(place.mountpoint()));
        if round % 2 == 0 {
            place.check();
        }
    }
    // While it is mounted nobody waits, which would take ten seconds each time.
    let mount = place.mount("relaxed");
    let all: Vec<Duration> = (0..4)
        .map(|_| {
            let start = std::time::Instant::now();
            fails(8, "in use", &["check", &place.image()]);
            start.elapsed()
        })
        .collect();
    assert!(all.iter().any(|took| *took < Duration::from_secs(8)), "{all:?}");
    mount.unmount();
}

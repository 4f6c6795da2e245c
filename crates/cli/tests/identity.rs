//! Halves of different times, upgrades and UUIDs at the command line.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;

use serde_json::Value;
use support::{Place, fails, succeeds, umount};
use tandemfs_format::checksum::crc32c;
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::superblock::ro_compat;

/// A formatted pair of files.
struct Pair {
    place: Place,
}

impl Pair {
    fn new() -> Self {
        let pair = Self { place: Place::empty() };
        for (half, bytes) in [("memory", 32 << 20), ("block", 64 << 20)] {
            fs::File::create(pair.place.path(half)).and_then(|file| file.set_len(bytes)).expect("made");
        }
        succeeds(&["mkfs", &pair.device()]);
        pair
    }

    fn device(&self) -> String {
        self.named("memory", "block")
    }

    fn named(&self, memory: &str, block: &str) -> String {
        format!("memory={},block={}", self.place.path(memory), self.place.path(block))
    }

    fn mounted_once(&self) {
        succeeds(&["mount", &self.device(), &self.place.mountpoint()]);
        umount(&self.place.mountpoint());
    }

    /// Takes the features away that `tandemfs upgrade` adds: as an earlier build made it.
    fn age(&self) {
        let memory = fs::OpenOptions::new().read(true).write(true).open(self.place.path("memory")).expect("there");
        for offset in SUPERBLOCK_OFFSETS {
            let mut superblock = [0; 1024];
            memory.read_exact_at(&mut superblock, offset).expect("read");
            superblock[24..32].copy_from_slice(&ro_compat::COVERED_LOGS_UNCOUNTED.to_le_bytes());
            superblock[188..340].fill(0);
            superblock[16..24].fill(0);
            let crc = crc32c(&superblock[4..]);
            superblock[..4].copy_from_slice(&crc.to_le_bytes());
            memory.write_all_at(&superblock, offset).expect("written");
        }
        let block = fs::OpenOptions::new().read(true).write(true).open(self.place.path("block")).expect("there");
        let mut identity = [0; 64];
        block.read_exact_at(&mut identity, 0).expect("read");
        identity[32..].fill(0);
        let crc = crc32c(&identity[4..]);
        identity[..4].copy_from_slice(&crc.to_le_bytes());
        block.write_all_at(&identity, 0).expect("written");
    }
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&succeeds(words)).expect("JSON")
}

#[test]
fn an_older_copy_of_one_half_is_refused_with_what_to_do() {
    support::require_fuse();
    let pair = Pair::new();
    for half in ["memory", "block"] {
        fs::copy(pair.place.path(half), pair.place.path(&format!("{half} of yesterday"))).expect("copied");
    }
    pair.mounted_once();
    for device in [pair.named("memory", "block of yesterday"), pair.named("memory of yesterday", "block")] {
        let mountpoint = pair.place.mountpoint();
        for words in [
            &["mount", &device, &mountpoint][..],
            &["mount", &device, &mountpoint, "-o", "ro"],
            &["info", &device],
            &["label", &device],
            &["label", &device, "new"],
            &["dump", &device, "superblock"],
            &["resize", &device],
            &["upgrade", &device],
            &["upgrade", &device, "--list"],
        ] {
            let said = fails(1, "different times", words);
            assert!(said.contains("older copy") && said.contains("put the halves back that belong together"), "{said}");
        }
        fails(8, "different times", &["check", &device]);
        fails(8, "different times", &["check", &device, "--repair"]);
        // The one command that reads them: what verifies belongs together.
        let copies = pair.place.path(&format!("copies of {}", device.replace('/', "-")));
        let restored = support::tandemfs(&["restore", &device, &copies]);
        let said = String::from_utf8_lossy(&restored.stdout).into_owned();
        assert!(said.contains("different times") && said.contains("copied"), "{said} {}", String::from_utf8_lossy(&restored.stderr));
        assert!(matches!(restored.status.code(), Some(0 | 4)), "{said}");
    }
    pair.mounted_once();
    succeeds(&["check", &pair.named("memory of yesterday", "block of yesterday")]);
}

#[test]
fn an_upgrade_says_what_it_adds_and_adds_it_once() {
    support::require_fuse();
    let pair = Pair::new();
    let device = pair.device();
    assert!(succeeds(&["upgrade", &device]).contains("nothing to do"), "a new file system has all features");
    pair.age();
    let before = json(&["info", &device, "--json"]);
    let list = json(&["upgrade", &device, "--list", "--json"]);
    let is_missing = |feature: &Value| feature["is_there"] == false && feature["older_builds"].is_string() && feature["gain"].is_string();
    assert!(list["features"].as_array().is_some_and(|features| features.len() > 1 && features.iter().all(is_missing)), "{list}");
    assert!(succeeds(&["upgrade", &device, "--list"]).contains("missing"));

    let planned = succeeds(&["upgrade", &device, "--dry-run"]);
    assert!(planned.contains("would gain 'stamp'") && planned.contains("older builds mount only read-only"), "{planned}");
    assert_eq!(json(&["info", &device, "--json"]), before, "a dry run writes nothing");

    // Not while it is mounted, and not after a crash.
    let mountpoint = pair.place.mountpoint();
    succeeds(&["mount", &device, &mountpoint]);
    fails(1, "in use", &["upgrade", &device]);
    umount(&mountpoint);

    let gained = json(&["upgrade", &device, "--json"]);
    let names: Vec<&str> = gained["gained"].as_array().expect("a list").iter().filter_map(|feature| feature["feature"].as_str()).collect();
    assert_eq!(names[..2], ["stamp", "volume UUID"]);
    assert!(succeeds(&["upgrade", &device]).contains("nothing to do"));
    let after = json(&["info", &device, "--json"]);
    assert_eq!((&after["pair"], &after["label"]), (&before["pair"], &before["label"]));
    succeeds(&["check", &device]);
    pair.mounted_once();
}

#[test]
fn what_is_damaged_is_not_upgraded() {
    let pair = Pair::new();
    pair.age();
    // The first line of the segment table.
    let memory = fs::OpenOptions::new().write(true).open(pair.place.path("memory")).expect("there");
    memory.write_all_at(&[0x5a; 4], (128 << 10) + 12).expect("written");
    let before = fs::read(pair.place.path("memory")).expect("read");
    let said = fails(1, "is damaged", &["upgrade", &pair.device()]);
    assert!(said.contains("run tandemfs check --repair first"), "{said}");
    assert!(before == fs::read(pair.place.path("memory")).expect("read"), "nothing was changed");
}

#[test]
fn the_uuid_is_shown_and_changed_while_nothing_is_mounted() {
    support::require_fuse();
    let pair = Pair::new();
    let (device, mountpoint) = (pair.device(), pair.place.mountpoint());
    let uuid = |place: &str| succeeds(&["uuid", place]).trim_end().to_owned();
    let before = uuid(&device);
    assert_ne!(json(&["info", &device, "--json"])["pair"], before.as_str(), "the pair has a UUID of its own");
    let new = "0b5c7d1e-1111-4222-8333-444455556666";
    assert_eq!(json(&["uuid", &device, new, "--json"])["uuid"], new);
    succeeds(&["mount", &device, &mountpoint]);
    assert_eq!((uuid(&mountpoint).as_str(), json(&["info", &mountpoint, "--json"])["uuid"].as_str()), (new, Some(new)));
    fails(1, "is mounted", &["uuid", &mountpoint, "random"]);
    fails(1, "in use", &["uuid", &device, "random"]);
    umount(&mountpoint);
    assert_eq!(json(&["check", &device, "--json"])["uuid"], new);
    assert_eq!(succeeds(&["uuid", &device, "random"]).trim_end(), uuid(&device));
    assert!(uuid(&device) != new && uuid(&device) != before);
    fails(2, "'rendom'", &["uuid", &device, "rendom"]);
    pair.age();
    assert_eq!(json(&["info", &device, "--json"])["pair"], uuid(&device).as_str(), "an older file system shows the pair's");
    fails(1, "tandemfs upgrade", &["uuid", &device, "random"]);
}

#[test]
fn an_unclean_file_system_keeps_its_uuid() {
    support::require_fuse();
    let pair = Pair::new();
    let (device, mountpoint) = (pair.device(), pair.place.mountpoint());
    succeeds(&["mount", &device, &mountpoint]);
    let process = json(&["info", &mountpoint, "--json"])["process_id"].as_i64().expect("a number") as i32;
    rustix::process::kill_process(rustix::process::Pid::from_raw(process).expect("a process"), rustix::process::Signal::KILL)
        .expect("killed");
    umount(&mountpoint);
    fails(1, "was not unmounted cleanly", &["uuid", &device, "random"]);
    fails(1, "was not unmounted cleanly", &["upgrade", &device]);
    pair.mounted_once();
    succeeds(&["uuid", &device, "random"]);
}

#[test]
fn a_copy_is_mounted_beside_its_original_only_by_nouuid_or_with_another_uuid() {
    support::require_fuse();
    let place = Place::formatted();
    let (copy, beside) = (place.path("copy.image"), place.path("beside"));
    fs::copy(place.image(), &copy).expect("copied");
    fs::create_dir(&beside).expect("a mountpoint");
    succeeds(&["mount", &place.image(), &place.mountpoint()]);
    for options in ["rw", "ro"] {
        let said = fails(1, "same UUID", &["mount", &copy, &beside, "-o", options]);
        assert!(said.contains("-o nouuid") && said.contains("tandemfs uuid"), "{said}");
    }
    succeeds(&["mount", &copy, &beside, "-o", "nouuid"]);
    assert_eq!(json(&["info", &beside, "--json"])["options"]["nouuid"], "on");
    umount(&beside);
    succeeds(&["uuid", &copy, "random"]);
    succeeds(&["mount", &copy, &beside]);
    umount(&place.mountpoint());
    umount(&beside);
    // The same device twice, for reading.
    succeeds(&["mount", &copy, &beside, "-o", "ro"]);
    succeeds(&["mount", &copy, &place.mountpoint(), "-o", "ro"]);
    umount(&place.mountpoint());
    umount(&beside);
}

#[test]
fn a_damaged_header_of_an_image_is_said_and_repaired() {
    support::require_fuse();
    let place = Place::formatted();
    let image = fs::OpenOptions::new().write(true).open(place.image()).expect("there");
    image.write_all_at(b"gone", 0).expect("written");
    drop(image);
    let said = |words: &[&str], status: i32| {
        let output = support::tandemfs(words);
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert!(said(&["check", &place.image()], 4).contains("header is damaged, its copy is used"));
    place.mount("relaxed").unmount();
    assert!(said(&["check", "--dry-run", &place.image()], 4).contains("header is damaged"), "opening writes nothing");
    assert!(said(&["check", "--preen", &place.image()], 1).contains("written again from its copy"));
    assert_eq!(json(&["check", &place.image(), "--json"])["image_header"], "whole");
}

/// Each part of the identity, and all of it: said to be damaged, and not to be of another pair. An empty file system has no data that could
/// prove whose half it is, but an image has one half only.
#[test]
fn a_damaged_identity_of_an_image_is_said_and_rebuilt() {
    support::require_fuse();
    for profile in ["off", "bytefs"] {
        let place = Place::empty();
        succeeds(&["device", "create", &place.image(), "--profile", profile, "--memory", "32M", "--block", "512M"]);
        succeeds(&["mkfs", &place.image()]);
        for (start, length) in [(0, 4), (4, 8), (12, 4), (16, 16), (32, 8), (40, 16), (56, 8), (0, 64)] {
            support::damage_first_sector(&place.image(), start, length);
            let said = fails(1, "identity", &["mount", &place.image(), &place.mountpoint()]);
            assert!(said.contains("damaged") && said.contains("check --repair") && !said.contains("name two halves"), "{said}");
            fails(1, "identity", &["info", &place.image()]);
            assert_eq!(support::tandemfs(&["check", &place.image()]).status.code(), Some(4), "{start}");
            assert_eq!(support::tandemfs(&["check", "--repair", &place.image()]).status.code(), Some(1), "{start}");
            place.mount("relaxed").unmount();
            place.check();
        }
    }
}

#[test]
fn a_probe_names_each_half_and_an_image() {
    let pair = Pair::new();
    succeeds(&["label", &pair.device(), "my mail"]);
    let uuid = succeeds(&["uuid", &pair.device()]).trim_end().to_owned();
    let block = succeeds(&["probe", "--udev", &pair.place.path("block")]);
    assert_eq!(block, format!("ID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}\nID_FS_TYPE=tandemfs\nID_FS_USAGE=filesystem\n"));
    let memory = succeeds(&["probe", "--udev", &pair.place.path("memory")]);
    assert!(memory.contains("ID_FS_TYPE=tandemfs_memory\n") && memory.contains("ID_FS_LABEL_ENC=my\\x20mail\n"), "{memory}");
    assert_eq!(json(&["probe", &pair.place.path("memory"), "--json"])["part"], "memory half");

    let place = Place::formatted();
    assert_eq!(json(&["probe", &place.image(), "--json"])["uuid"], succeeds(&["uuid", &place.image()]).trim_end());
    assert!(succeeds(&["probe", "--udev", &place.image()]).contains("ID_FS_TYPE=tandemfs\n"));
    let nothing = support::tandemfs(&["probe", "--udev", "/dev/zero"]);
    assert!(nothing.status.code() == Some(1) && nothing.stdout.is_empty() && nothing.stderr.is_empty(), "{nothing:?}");
    fs::write(pair.place.path("text"), "nothing of ours").expect("written");
    fails(1, "no TandemFS", &["probe", &pair.place.path("text")]);
    fails(1, "No such file", &["probe", &pair.place.path("absent")]);
}

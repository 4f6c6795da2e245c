//! Compaction on a real mount: after most names are gone, the memory zone of those that are left is free again, by itself and by command.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use support::{Mount, Place, fails, pattern, succeeds};

const MIB: u64 = 1 << 20;

/// A directory with a file: a page of the memory zone.
fn make(mount: &Mount, number: usize) -> std::io::Result<()> {
    let directory = mount.path(&number.to_string());
    fs::create_dir(&directory)?;
    File::create(directory.join("file"))?.write_all(&pattern(number as u64, 60))
}

/// Removes all but every twentieth, from both halves in turn, so that no unit is empty.
fn remove_most(mount: &Mount, count: usize) {
    let half = count.div_ceil(2);
    for number in (0..half).flat_map(|number| [number, number + half]).filter(|number| number % 20 > 0 && *number < count) {
        fs::remove_dir_all(mount.path(&number.to_string())).expect("removed");
    }
}

fn holds_the_rest(mount: &Mount, count: usize) {
    for number in (0..count).step_by(20) {
        let found = fs::read(mount.path(&number.to_string()).join("file")).expect("read");
        assert_eq!(found, pattern(number as u64, 60), "{number}");
    }
    assert_eq!(fs::read_dir(mount.root()).expect("listed").count(), count.div_ceil(20));
}

fn number(mount: &Mount, part: &str, name: &str) -> u64 {
    mount.stats()[part][name].as_u64().unwrap_or_else(|| panic!("{part}.{name}: {}", mount.stats()))
}

#[test]
fn a_full_memory_zone_is_free_again_after_most_is_removed() {
    let place = Place::empty();
    succeeds(&["device", "create", &place.image(), "--profile", "off", "--memory", "32M", "--block", "128M"]);
    succeeds(&["mkfs", &place.image()]);
    let mount = place.mount("strict");
    let free = number(&mount, "memory_zone", "free_bytes");
    let full = (0..).find(|number| make(&mount, *number).is_err()).expect("it is full");
    let _part = fs::remove_dir_all(mount.path(&full.to_string()));
    // Write-back of the small files may have freed a unit meanwhile.
    assert!(number(&mount, "memory_zone", "free_bytes") < free / 4, "{}", mount.stats());
    remove_most(&mount, full);
    // Some units at once, since the zone is short, and the others when the mount looks again.
    let start = Instant::now();
    while number(&mount, "memory_zone", "free_bytes") < free / 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", mount.stats());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(number(&mount, "file_system", "compacted_bytes") > 0, "{}", mount.stats());
    holds_the_rest(&mount, full);
    fs::write(mount.path("small"), pattern(1, 2000)).expect("written");
    assert!(number(&mount, "memory_zone", "data_log_bytes") >= 2000, "the byte path");
    fs::remove_file(mount.path("small")).expect("removed");
    mount.unmount();
    place.check();
    let mount = place.mount("strict");
    holds_the_rest(&mount, full);
    mount.unmount();
}

#[test]
fn a_compaction_by_hand_says_what_it_freed() {
    const COUNT: usize = 1700;
    let place = Place::formatted();
    let mount = place.mount("strict");
    let at_first = number(&mount, "file_system", "units_given_back");
    (0..COUNT).for_each(|number| make(&mount, number).expect("made"));
    remove_most(&mount, COUNT);
    let before = number(&mount, "file_system", "units_given_back");
    let text = succeeds(&["compact", &place.mountpoint(), "--json"]);
    let result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(result["mountpoint"], place.mountpoint());
    // The mount may have begun by itself, or on a slow machine have done all of it.
    let (freed, given) = (result["freed_bytes"].as_u64().expect("a number"), number(&mount, "file_system", "units_given_back"));
    assert!(given > at_first && given >= before + freed / (2 * MIB), "{text}: {at_first}, {before} and {given} units");
    assert!(number(&mount, "file_system", "compacted_bytes") >= result["moved_bytes"].as_u64().expect("a number"));
    holds_the_rest(&mount, COUNT);
    let again = succeeds(&["compact", &place.mountpoint()]);
    assert!(again.ends_with(": 0 B of metadata moved, 0 B of the memory zone freed\n"), "{again}");
    mount.unmount();
    place.check();
    let mount = place.mount("ro");
    holds_the_rest(&mount, COUNT);
    fails(1, "read-only", &["compact", &place.mountpoint()]);
    mount.unmount();
    fails(1, "no TandemFS", &["compact", &place.mountpoint()]);
}

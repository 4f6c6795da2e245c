//! The file system: by what its daemon says of a mount, or by the superblock of a device that is not mounted.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tandemfs_device::Drive;
use tandemfs_format::superblock::{ChecksumKind, Superblock};

use super::finding::{Finding, Level};
use super::machine::Machine;
use crate::failure::Failure;
use crate::mount::machine_bytes;
use crate::size;

/// A scrub a month, and a week of grace.
const SCRUB_EVERY: Duration = Duration::from_secs(38 * 86_400);
/// Errors of the last month matter.
const ERRORS_MATTER: Duration = Duration::from_secs(30 * 86_400);
/// Less than this share of the memory zone for the small writes of a moment, in percent, is little.
const WRITE_BACK_LIMIT_MIN: u64 = 5;

/// What is unusual of a device that is not mounted.
pub fn of_device(drive: &Drive, superblock: &Superblock) -> Result<Vec<Finding>, Failure> {
    let mut found = Vec::new();
    let has_checksums = superblock.checksum_kind != ChecksumKind::None;
    about_domain(drive.domain().name(), drive.description().domain.name(), &mut found);
    if !superblock.clean {
        found.push(Finding::note("not_clean", "it was not unmounted cleanly; the next mount recovers", "nothing"));
    }
    if !has_checksums {
        found.push(Finding::unusual(
            "no_checksums",
            "file data has no checksums, so damage of the drive goes unnoticed",
            "copy the files to a file system that was made without --checksum=none",
        ));
    }
    for odd in tandemfs_fs::odd_zones(&superblock.geometry, has_checksums) {
        found.push(Finding::unusual(
            "zones_odd",
            odd.message,
            format!("tandemfs resize --{} {}", odd.zone, size::word(odd.recommended_bytes)),
        ));
    }
    // What it lacks is told of a clean one alone.
    let missing = if superblock.clean { tandemfs_fs::missing_features(drive).map_err(Failure::because)? } else { Vec::new() };
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|feature| feature.name).collect();
        found.push(Finding::note("features_missing", format!("it lacks features of this build: {}", names.join(", ")), "tandemfs upgrade"));
    }
    let counters = superblock.error_counters;
    let errors = counters.metadata_damaged + counters.data_damaged + counters.device_reads_failed + counters.device_writes_failed;
    about_errors(errors, counters.last_error_seconds, &mut found);
    about_scrubs(counters.scrub_seconds.max(superblock.created_seconds), &mut found);
    Ok(found)
}

/// What is unusual of a mount, by the answers of its daemon.
pub fn of_mount(machine: &Machine, info: &Value, stats: &Value) -> Vec<Finding> {
    let mut found = Vec::new();
    let word = |name: &str| info["options"][name].as_str().unwrap_or_default();
    // The daemon may be one of an earlier build, which does not say everything: what is not there is not judged.
    if let (Some(is), Some(own)) = (info["persistence_domain"].as_str(), info["drive"]["domain"].as_str()) {
        about_domain(is, own, &mut found);
    }
    about_health(info, stats, &mut found);
    about_space(info, stats, &mut found);
    if info["requests_over"] == "device" && machine.offers_fuse_uring() {
        found.push(Finding::unusual(
            "fuse_uring_unused",
            "FUSE over io_uring is on, and this mount does not use it",
            "mount again; if that does not help, its log says why",
        ));
    }
    if info["engine"] == "journal" && info["drive"]["transactions"] == true {
        let advice = "leave the option engine= away, unless you compare";
        found.push(Finding::unusual("engine_chosen", "the drive has transactions, and the journal is used", advice));
    }
    if word("timing") == "on" {
        let advice = "leave the option timing= away, unless you measure";
        found.push(Finding::unusual("timing_on", "the emulated drive takes the time that the real one would", advice));
    }
    if !matches!(word("direct"), "" | "off") && stats["direct"].is_null() {
        found.push(Finding::unusual("direct_closed", "the mount was to have a direct door, and it has none", "its log says why"));
    }
    let memory_bytes = size::parse(word("memory")).unwrap_or_default();
    if memory_bytes > machine_bytes() / 2 {
        let what = format!("the limit of the host memory for caches is {}, more than half of the machine's", size::show(memory_bytes));
        found.push(Finding::unusual("memory_large", what, "name less by memory="));
    }
    found
}

fn about_domain(is: &str, own: &str, found: &mut Vec<Finding>) {
    if is != own {
        found.push(Finding::unusual(
            "domain_lowered",
            format!("the persistence domain is '{is}', and the drive keeps '{own}'"),
            "leave the option domain= away, unless the drive is less than it says",
        ));
    }
    if own == "none" {
        found.push(Finding::unusual(
            "domain_none",
            "stores to the memory half survive nothing: it is volatile memory",
            "name persistent memory, or a CXL drive in a persistent mode",
        ));
    }
}

fn is_longer_ago(seconds: u64, time: Duration) -> bool {
    // A time that is none is of no past.
    let then = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    then.is_some_and(|then| SystemTime::now().duration_since(then).is_ok_and(|since| since > time))
}

/// Counters are of the whole life of the file system; old errors are a note.
fn about_errors(errors: u64, last_seconds: u64, found: &mut Vec<Finding>) {
    if errors > 0 {
        let what = format!("{errors} errors of the drive or of what it holds were counted since the file system was made");
        let advice = "tandemfs info shows which and when; tandemfs scrub finds what is damaged now";
        let is_old = last_seconds > 0 && is_longer_ago(last_seconds, ERRORS_MATTER);
        let finding = Finding::unusual("errors_counted", what, advice);
        found.push(if is_old { Finding { level: Level::Note, ..finding } } else { finding });
    }
}

fn about_scrubs(last_seconds: u64, found: &mut Vec<Finding>) {
    if is_longer_ago(last_seconds, SCRUB_EVERY) {
        let advice = "tandemfs scrub, and a timer for it (contrib/systemd/tandemfs-scrub@.timer)";
        found.push(Finding::note("scrub_late", "nobody has read and verified everything for more than a month", advice));
    }
}

fn about_health(info: &Value, stats: &Value, found: &mut Vec<Finding>) {
    if let Some(cause) = info["stopped"].as_str() {
        let what = format!("it has stopped writing: {cause}");
        found.push(Finding::unusual("stopped", what, "see the log, repair the drive, unmount, and mount again"));
    }
    let damage = &stats["damage"];
    if damage["objects"].as_u64() > Some(0) || damage["holds_back"] == true {
        let objects = damage["objects"].as_u64().unwrap_or_default();
        let what = format!("{objects} files or directories have damaged metadata, and space that it may name is held back");
        found.push(Finding::unusual("damaged", what, "copy what can be read, unmount, and run tandemfs check --repair"));
    }
    if let Some(pieces) = stats["quarantined_pieces"].as_u64().filter(|pieces| *pieces > 0) {
        let what = format!("{pieces} pieces of space are in quarantine, because the drive failed an access to them");
        found.push(Finding::unusual("quarantine", what, "look at the health of the drive (smartctl, nvme smart-log)"));
    }
    let count = |name: &str| stats["errors"][name].as_u64().unwrap_or_default();
    let errors = ["metadata_damaged", "data_damaged", "device_reads_failed", "device_writes_failed"].map(count).iter().sum();
    about_errors(errors, count("last_error_time_seconds"), found);
    // A file system that was never scrubbed says nothing of its age here.
    if count("scrub_time_seconds") > 0 {
        about_scrubs(count("scrub_time_seconds"), found);
    }
    let wear = &stats["wear"];
    if let (Some(mean), Some(most)) = (wear["erasures_mean"].as_f64(), wear["endurance_erasures"].as_f64())
        && mean > 0.8 * most
    {
        let what = format!("the flash is worn: {mean:.0} erasures of each block, of {most:.0}");
        found.push(Finding::unusual("worn", what, "replace the drive soon"));
    }
}

fn about_space(info: &Value, stats: &Value, found: &mut Vec<Finding>) {
    for short in info["short"].as_array().into_iter().flatten() {
        let field = |name: &str| short[name].as_str().unwrap_or_default();
        found.push(Finding::unusual("zone_short", format!("the {} zone is short: {}", field("zone"), field("what")), field("advice")));
    }
    let percent = |name: &str| stats["write_back"][name].as_u64();
    if let (Some(free), Some(limit)) = (percent("free_percent"), percent("limit_percent")) {
        about_write_back(free, limit, found);
    }
    if info["options"]["reserved"] == "0%" && info["options"]["allow_other"] == "on" {
        let advice = "mount with reserved=5%, if others than root write there";
        found.push(Finding::note("no_reserve", "every user can fill the zones to the last byte", advice));
    }
}

fn about_write_back(free: u64, limit: u64, found: &mut Vec<Finding>) {
    if limit < WRITE_BACK_LIMIT_MIN {
        found.push(Finding::unusual(
            "reserve_small",
            format!("write-back begins when less than {limit} % of the memory zone is free: a burst of small writes then finds none"),
            "leave the option write_back_limit= away, or name 5% or more",
        ));
    }
    if free < limit {
        found.push(Finding::note(
            "write_back_runs",
            format!("{free} % of the memory zone is free for small writes, less than the {limit} % at which write-back begins"),
            "if that lasts, the block half does not keep up: small writes take the slower block path",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::names;
    use super::*;
    use serde_json::json;

    fn answers() -> (Value, Value) {
        let info = json!({
            "persistence_domain": "gpf", "drive": { "domain": "gpf", "transactions": false }, "requests_over": "io_uring", "engine": "journal",
            "stopped": null, "short": [],
            "options": { "timing": "off", "direct": "off", "memory": "8M", "reserved": "0%", "allow_other": "off" },
        });
        let stats = json!({
            "direct": null, "damage": { "objects": 0, "holds_back": false }, "quarantined_pieces": 0, "errors": { "data_damaged": 0 },
            "wear": { "erasures_mean": 10.0, "endurance_erasures": 100 }, "write_back": { "free_percent": 90, "limit_percent": 10 },
        });
        (info, stats)
    }

    #[test]
    fn each_answer_that_is_unusual_is_found_alone() {
        let root = tempfile::tempdir().expect("a directory");
        let parameters = root.path().join("sys/module/fuse/parameters");
        std::fs::create_dir_all(&parameters).expect("made");
        std::fs::write(parameters.join("enable_uring"), "Y\n").expect("written");
        let machine = Machine::at(root.path(), true);
        let (info, stats) = answers();
        assert_eq!(of_mount(&machine, &info, &stats), []);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("later").as_secs();
        for (of_info, path, value, name) in [
            (true, "/persistence_domain", json!("process"), "domain_lowered"),
            (true, "/requests_over", json!("device"), "fuse_uring_unused"),
            (true, "/drive/transactions", json!(true), "engine_chosen"),
            (true, "/stopped", json!("a write failed"), "stopped"),
            (true, "/options/timing", json!("on"), "timing_on"),
            (true, "/options/direct", json!("on"), "direct_closed"),
            (true, "/options/memory", json!("100T"), "memory_large"),
            (true, "/options/allow_other", json!("on"), "no_reserve"),
            (true, "/short", json!([{ "zone": "block", "what": "w", "advice": "a" }]), "zone_short"),
            (false, "/damage/objects", json!(1), "damaged"),
            (false, "/damage/holds_back", json!(true), "damaged"),
            (false, "/quarantined_pieces", json!(2), "quarantine"),
            (false, "/errors", json!({ "data_damaged": 1 }), "errors_counted"),
            (false, "/errors", json!({ "scrub_time_seconds": 1 }), "scrub_late"),
            (false, "/wear/erasures_mean", json!(90.0), "worn"),
            (false, "/write_back/limit_percent", json!(4), "reserve_small"),
            (false, "/write_back/free_percent", json!(9), "write_back_runs"),
        ] {
            let (mut info, mut stats) = (info.clone(), stats.clone());
            *(if of_info { &mut info } else { &mut stats }).pointer_mut(path).expect(path) = value;
            assert_eq!(names(&of_mount(&machine, &info, &stats)), [name]);
        }
        for seconds in [now, u64::MAX] {
            let mut stats = stats.clone();
            stats["errors"] = json!({ "scrub_time_seconds": seconds });
            assert_eq!(of_mount(&machine, &info, &stats), []);
        }
    }

    #[test]
    fn what_a_daemon_of_an_earlier_build_does_not_say_is_not_judged() {
        let root = tempfile::tempdir().expect("a directory");
        let machine = Machine::at(root.path(), true);
        let (info, stats) = answers();
        for field in info.as_object().expect("an object").keys() {
            let mut info = info.clone();
            info.as_object_mut().expect("an object").remove(field);
            assert_eq!(of_mount(&machine, &info, &stats), [], "without {field}");
        }
        for field in stats.as_object().expect("an object").keys() {
            let mut stats = stats.clone();
            stats.as_object_mut().expect("an object").remove(field);
            assert_eq!(of_mount(&machine, &info, &stats), [], "without {field}");
        }
        assert_eq!(of_mount(&machine, &json!({}), &json!({})), []);
    }

    #[test]
    fn memory_that_keeps_nothing_is_found() {
        let mut found = Vec::new();
        about_domain("none", "none", &mut found);
        assert_eq!(names(&found), ["domain_none"]);
    }
}

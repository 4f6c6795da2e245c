//! What a mount says of itself, as OpenMetrics: the counters of `tandemfs stats` and some properties of `tandemfs info`, for Prometheus and what reads
//! its format. Names are a stable interface; docs/ADMINISTRATION.md says what they mean, `contrib/` has rules and a dashboard for them.

mod text;

use std::io;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts::Mounted;

use crate::times::counts;
pub use text::CONTENT_TYPE;
use text::{Label, Text};

/// Asks the daemon of a mount, and waits no longer than this for all of its answers.
pub fn of_mount(mount: &Mounted, within: Duration) -> io::Result<String> {
    let end = Instant::now() + within;
    let ask = |request| control::ask_within(mount, request, end.saturating_duration_since(Instant::now()));
    let (stats, info) = (ask(Request::Stats { reset: false })?, ask(Request::Info)?);
    Ok(metrics(&mount.mountpoint.to_string_lossy(), &stats, &info))
}

/// The text for what a daemon has answered.
pub fn metrics(mountpoint: &str, stats: &Value, info: &Value) -> String {
    let mut text = Text::new(("mountpoint", mountpoint));
    mount(&mut text, info);
    operations(&mut text, stats);
    traffic(&mut text, stats);
    times(&mut text, &stats["latency"]);
    space(&mut text, stats, info);
    health(&mut text, stats, info);
    flash(&mut text, stats);
    door(&mut text, &stats["direct"]);
    text.finish()
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64()
}

fn yes(is: bool) -> Option<f64> {
    Some(f64::from(u8::from(is)))
}

fn fields(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter).map(|(name, value)| (name.as_str(), value))
}

/// The counters among the fields, each with a label.
fn labelled<'v>(label: &'v str, value: &'v Value) -> impl Iterator<Item = (Vec<Label<'v>>, u64)> {
    fields(value).filter_map(move |(name, value)| Some((vec![(label, name)], value.as_u64()?)))
}

fn mount(text: &mut Text, info: &Value) {
    let word = |name: &str| info[name].as_str().unwrap_or_default();
    let labels = [
        ("device", word("device")),
        ("uuid", word("uuid")),
        ("label", word("label")),
        ("mode", word("mode")),
        ("engine", word("engine")),
        ("persistence_domain", word("persistence_domain")),
        ("version", env!("CARGO_PKG_VERSION")),
    ];
    text.information("tandemfs_mount", "The mount and its settings.", &labels);
    text.gauge("tandemfs_mounted_seconds", "Time since the mount.", number(&info["mounted_seconds"]));
    text.gauge("tandemfs_read_only", "1 if the mount is read-only.", yes(info["read_only"] == true));
    let recovery = info["recovery"]["milliseconds"].as_f64().map(|milliseconds| milliseconds / 1e3);
    text.gauge("tandemfs_recovery_seconds", "What the recovery of this mount took.", recovery);
}

fn operations(text: &mut Text, stats: &Value) {
    let of_engine = &stats["file_system"];
    text.counters("tandemfs_operations", "Operations that ended.", labelled("operation", &of_engine["operations"]));
    for (name, value) in fields(of_engine) {
        text.counter(&format!("tandemfs_{name}"), "Work of the engine: see WorkCounts of the library.", value.as_u64());
    }
    text.gauge("tandemfs_threshold_bytes", "Requests are split at multiples of this.", number(&stats["threshold"]["bytes"]));
    let numa = &stats["numa"];
    let written = [("local", "local_written_bytes"), ("remote", "remote_written_bytes")];
    let written = written.iter().filter_map(|(node, name)| Some((vec![("node", *node)], numa[*name].as_u64()?)));
    text.counters("tandemfs_numa_written_bytes", "Bytes that processes wrote on their home nodes of memory, and on others.", written);
}

fn traffic(text: &mut Text, stats: &Value) {
    const PATHS: [(&str, &str, &str); 4] = [
        ("byte", "read", "byte_read_bytes"),
        ("byte", "write", "byte_written_bytes"),
        ("block", "read", "block_read_bytes"),
        ("block", "write", "block_written_bytes"),
    ];
    let bytes = fields(&stats["by_structure"]).flat_map(|(structure, bytes)| {
        PATHS.iter().filter_map(move |(path, access, name)| {
            Some((vec![("path", *path), ("access", *access), ("structure", structure)], bytes[*name].as_u64()?))
        })
    });
    text.counters("tandemfs_drive_bytes", "Bytes sent to and read from the drive, by path and structure.", bytes);
    let (byte_path, block_path) = (&stats["byte_path"], &stats["block_path"]);
    text.counter("tandemfs_flushed_lines", "Lines of 64 B flushed from the caches of CPUs.", byte_path["flushed_lines"].as_u64());
    text.counter("tandemfs_fences", "Fences of the byte path.", byte_path["fences"].as_u64());
    let commands = [("read", "reads"), ("write", "writes"), ("flush", "flushes")];
    let commands = commands.iter().filter_map(|(command, name)| Some((vec![("command", *command)], block_path[*name].as_u64()?)));
    text.counters("tandemfs_block_commands", "Commands of the block path.", commands);
}

fn times(text: &mut Text, latency: &Value) {
    let of = |label: &'static str, kinds: &Value| -> Vec<(Vec<(&'static str, String)>, _)> {
        fields(kinds).map(|(name, times)| (vec![(label, name.to_owned())], counts(times))).collect()
    };
    let paths = fields(&latency["paths"]).map(|(name, times)| {
        let (path, access) = name.split_once('_').unwrap_or((name, ""));
        (vec![("path", path.to_owned()), ("access", access.to_owned())], counts(times))
    });
    let families = [
        (
            "tandemfs_operation_duration_seconds",
            "Times of operations inside of the daemon, of one in 16.",
            of("operation", &latency["operations"]),
        ),
        (
            "tandemfs_access_duration_seconds",
            "Times of accesses to the drive: of one in 64 on the byte path, of one in 16 on the block path.",
            paths.collect(),
        ),
        (
            "tandemfs_wait_duration_seconds",
            "Waits: for locks that others held, the journal (of one in 16), checkpoints, batches of write-back, space.",
            of("wait", &latency["waits"]),
        ),
    ];
    for (name, help, kinds) in families {
        let kinds =
            kinds.iter().map(|(labels, counts)| (labels.iter().map(|(label, value)| (*label, value.as_str())).collect(), counts.clone()));
        text.histograms(name, help, kinds);
    }
}

fn space(text: &mut Text, stats: &Value, info: &Value) {
    const ZONES: [(&str, &str); 2] = [("memory", "memory_zone"), ("block", "block_zone")];
    const SPACES: [(&str, &str); 5] = [
        ("total_bytes", "Size of the zone."),
        ("free_bytes", "Free."),
        ("available_bytes", "Free for growth: without what overwriting needs for a moment."),
        ("data_log_bytes", "Taken by data logs."),
        ("promoted_bytes", "Taken by copies that are given up for any other use."),
    ];
    for (name, help) in SPACES {
        let zones = ZONES.iter().filter_map(|(zone, field)| Some((vec![("zone", *zone)], number(&stats[*field][name])?)));
        text.gauges(&format!("tandemfs_zone_{name}"), help, zones);
    }
    let is_short = |zone: &str| stats["short"].as_array().is_some_and(|short| short.iter().any(|short| short["zone"] == zone));
    let short = ZONES.iter().filter_map(|(zone, _)| Some((vec![("zone", *zone)], yes(is_short(zone))?)));
    text.gauges("tandemfs_zone_short", "1 if little of the zone is left.", short);
    text.gauge("tandemfs_inodes_used", "Inodes in use.", number(&info["inodes"]["used"]));
    text.gauge("tandemfs_inodes_free", "Inodes that can still be made.", number(&info["inodes"]["free"]));
    text.gauge("tandemfs_home_bytes", "What files take of the memory zone whose home it is.", number(&stats["homes"]["bytes"]));
    text.gauge("tandemfs_home_limit_bytes", "What they may take.", number(&stats["homes"]["limit_bytes"]));
    let moving = [("moving", "moving_files"), ("waiting", "waiting_files")];
    let moving = moving.iter().filter_map(|(state, name)| Some((vec![("state", *state)], number(&stats["homes"][*name])?)));
    text.gauges("tandemfs_home_files", "Files that move to their homes, or wait for room.", moving);
    let share = |name: &str| number(&stats["write_back"][name]).map(|percent| percent / 100.0);
    text.gauge("tandemfs_write_back_free_ratio", "Free share of the memory zone's room for data logs.", share("free_percent"));
    text.gauge("tandemfs_write_back_limit_ratio", "Write-back runs while less than this share is free.", share("limit_percent"));
}

fn health(text: &mut Text, stats: &Value, info: &Value) {
    text.gauge(
        "tandemfs_stopped",
        "1 if the file system has stopped writing after an error of the drive.",
        yes(!info["stopped"].is_null()),
    );
    let damage = &stats["damage"];
    text.gauge(
        "tandemfs_damaged_objects",
        "Files and directories with damaged metadata that this mount has met.",
        number(&damage["objects"]),
    );
    text.gauge("tandemfs_held_back", "1 if space is held back because damaged metadata may name it.", yes(damage["holds_back"] == true));
    let held = [("memory", "held_memory_bytes"), ("block", "held_block_bytes")];
    let held = held.iter().filter_map(|(zone, name)| Some((vec![("zone", *zone)], number(&damage[*name])?)));
    text.gauges("tandemfs_held_back_bytes", "Space that is held back.", held);
    let quarantined = number(&stats["quarantined_pieces"]);
    text.gauge("tandemfs_quarantined_pieces", "Pieces of space in quarantine, because the drive failed an access to them.", quarantined);
    let errors = &stats["errors"];
    const ERRORS: [&str; 4] = ["metadata_damaged", "data_damaged", "device_reads_failed", "device_writes_failed"];
    let kinds = ERRORS.iter().filter_map(|kind| Some((vec![("kind", *kind)], errors[*kind].as_u64()?)));
    text.counters("tandemfs_errors", "Errors since the file system was made. data_damaged: reads that did not match a checksum.", kinds);
    text.counter("tandemfs_repairs", "Changes that repairs made.", errors["repairs"].as_u64());
    text.gauge(
        "tandemfs_last_error_time_seconds",
        "Time of the last error, seconds since 1970; 0 never.",
        number(&errors["last_error_time_seconds"]),
    );
    text.gauge(
        "tandemfs_scrub_time_seconds",
        "Time at which the last scrub ended, seconds since 1970; 0 never.",
        number(&errors["scrub_time_seconds"]),
    );
    text.gauge("tandemfs_scrub_findings", "What the last scrub found.", number(&errors["scrub_findings"]));
    text.gauge("tandemfs_scrub_bytes", "What the last scrub read.", number(&errors["scrub_bytes"]));
    text.gauge(
        "tandemfs_check_time_seconds",
        "Time of the last check that repaired, seconds since 1970; 0 never.",
        number(&errors["check_time_seconds"]),
    );
    text.gauge("tandemfs_check_findings", "What that check had found.", number(&errors["check_findings"]));
}

fn flash(text: &mut Text, stats: &Value) {
    const PARTS: [(&str, &str); 2] = [("firmware", "tandemfs_firmware"), ("flash", "tandemfs_flash")];
    // A drive that counts nothing has zeros in `stats`: they would say that it does nothing.
    let counts = |part: &str| fields(&stats[part]).any(|(_, value)| value.as_u64() > Some(0));
    let has_counters = !stats["wear"].is_null() || PARTS.iter().any(|(part, _)| counts(part));
    for (part, what) in PARTS.into_iter().filter(|_| has_counters) {
        for (name, value) in fields(&stats[part]) {
            text.counter(
                &format!("{what}_{name}"),
                "Counters of the drive, where it has some: see `tandemfs device stats`.",
                value.as_u64(),
            );
        }
    }
    let wear = &stats["wear"];
    text.gauge("tandemfs_flash_erasures_mean", "Mean erasures of the flash blocks in use.", number(&wear["erasures_mean"]));
    text.gauge("tandemfs_flash_erasures_max", "Erasures of the flash block that was erased most.", number(&wear["erasures_max"]));
    text.gauge("tandemfs_flash_endurance_erasures", "Erasures that a flash block is made for.", number(&wear["endurance_erasures"]));
    text.gauge("tandemfs_flash_blocks", "Flash blocks.", number(&wear["blocks"]));
    text.gauge(
        "tandemfs_flash_bad_blocks_grown",
        "Flash blocks taken out of use since the drive was made.",
        number(&wear["bad_blocks_grown"]),
    );
}

fn door(text: &mut Text, direct: &Value) {
    let clients = direct["clients"].as_array();
    text.gauge("tandemfs_direct_clients", "Programs at the direct door.", clients.map(|clients| clients.len() as f64));
    let open = clients.map(|clients| clients.iter().filter_map(|client| client["open_files"].as_f64()).sum());
    text.gauge("tandemfs_direct_open_files", "Files that they have open.", open);
    text.counter("tandemfs_direct_connections", "Programs that have been at the door since the mount.", direct["connections"].as_u64());
    text.gauge(
        "tandemfs_direct_store_leases",
        "Leases by which programs store to memory themselves.",
        number(&direct["store_leases"]["held"]),
    );
    let kept_back = number(&direct["store_leases"]["kept_back_bytes"]);
    text.gauge("tandemfs_direct_kept_back_bytes", "Memory that nobody gets, since a program can still store to it.", kept_back);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use serde_json::json;

    #[test]
    fn nothing_known_is_nothing_said_and_every_family_comes_once() {
        let stats = json!({
            "file_system": { "operations": { "write": 3 }, "user_read_bytes": 5 },
            "latency": { "operations": { "write": { "buckets": [[128, 1]] } }, "paths": { "block_read": { "buckets": [[4096, 2]] } } },
            "memory_zone": { "free_bytes": 7 }, "wear": null, "direct": null,
        });
        let text = metrics("/m", &stats, &json!({ "device": "a\"b", "stopped": "why" }));
        for line in [
            "tandemfs_operations_total{mountpoint=\"/m\",operation=\"write\"} 3",
            "tandemfs_user_read_bytes_total{mountpoint=\"/m\"} 5",
            "tandemfs_zone_free_bytes{mountpoint=\"/m\",zone=\"memory\"} 7",
            "tandemfs_stopped{mountpoint=\"/m\"} 1",
            "tandemfs_access_duration_seconds_count{mountpoint=\"/m\",path=\"block\",access=\"read\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(text.contains("device=\"a\\\"b\"") && !text.contains("direct_clients") && !text.contains("erasures"), "{text}");
        for absent in ["tandemfs_numa_written", "tandemfs_block_commands", "tandemfs_firmware", "tandemfs_flash"] {
            assert!(!text.contains(absent), "{absent} is not known, and no zero:\n{text}");
        }
        let families: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert_eq!(families.iter().collect::<HashSet<_>>().len(), families.len(), "{families:?}");
        assert!(text.ends_with("\n# EOF\n"));
    }

    #[test]
    fn only_a_drive_that_counts_has_counters() {
        let says = |stats: Value| metrics("/m", &stats, &json!({})).contains("tandemfs_flash_pages_read_total");
        let zeros = json!({ "firmware": { "log_appends": 0 }, "flash": { "pages_read": 0 } });
        assert!(!says(zeros.clone()));
        let with = |name: &str, value: Value| {
            let mut stats = zeros.clone();
            stats[name] = value;
            stats
        };
        assert!(says(with("wear", json!({ "blocks": 5 }))), "since a reset it has done nothing");
        assert!(says(with("firmware", json!({ "log_appends": 1 }))));
    }
}

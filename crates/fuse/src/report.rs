//! The answers of `tandemfs stats` and `tandemfs info`. The names are a stable interface: names may be added but not changed or removed.

use std::time::Instant;

use serde_json::{Map, Value, json};
use tandemfs_device::{FlashWear, KindTimes, LATENCY_SAMPLED_1_IN, LatencyCounts, Structure};
use tandemfs_fs::{FileSystem, PathLatency, ZoneSpace};

use crate::settings::MountSettings;

/// The counters since the mount or the last reset.
pub fn stats(fs: &FileSystem) -> Value {
    let drive = fs.drive().counters().snapshot();
    let statistics = fs.statistics();
    let space = fs.space();
    let of_drive = fs.drive_counts();
    let by_structure: Map<String, Value> = Structure::ALL
        .iter()
        .zip(drive.by_structure)
        .map(|(structure, bytes)| {
            let value = json!({
                "byte_read_bytes": bytes.byte_read_bytes,
                "byte_written_bytes": bytes.byte_written_bytes,
                "block_read_bytes": bytes.block_read_bytes,
                "block_written_bytes": bytes.block_written_bytes,
            });
            (structure.name().to_owned(), value)
        })
        .collect();
    let mut file_system = counters(statistics.work.entries());
    file_system.insert("operations".into(), Value::Object(counters(statistics.operations.entries())));
    let mut latency = latencies(fs.latencies());
    latency["paths"] = times(&fs.drive().counters().times());
    latency["waits"] = times(&fs.waits());
    let sum = |bytes: fn(&tandemfs_device::PathBytes) -> u64| drive.by_structure.iter().map(bytes).sum::<u64>();
    json!({
        "byte_path": {
            "read_bytes": sum(|bytes| bytes.byte_read_bytes),
            "written_bytes": sum(|bytes| bytes.byte_written_bytes),
            "flushed_lines": drive.flushed_lines,
            "fences": drive.fences,
        },
        "block_path": {
            "read_bytes": sum(|bytes| bytes.block_read_bytes),
            "written_bytes": sum(|bytes| bytes.block_written_bytes),
            "reads": drive.block_reads,
            "writes": drive.block_writes,
            "flushes": drive.block_flushes,
        },
        // Zeros if the drive has no counters of its own.
        "firmware": counters(of_drive.firmware.entries()),
        "flash": counters(of_drive.flash.entries()),
        "by_structure": by_structure,
        "threshold": threshold(fs),
        "file_system": file_system,
        "latency": latency,
        // Null if no pass is under way.
        "compaction": fs.compaction_progress().map(|(done, total)| json!({ "done_inodes": done, "total_inodes": total })),
        "homes": homes(fs),
        "numa": numa(fs),
        "damage": damage(fs),
        "quarantined_pieces": fs.quarantined_pieces(),
        "errors": counters(fs.error_counters().entries()),
        "write_back": write_back(fs),
        // Null if the drive does not say.
        "wear": fs.drive().wear().map(wear),
        "memory_zone": zone(&space.memory),
        "block_zone": zone(&space.block),
        "short": short(fs),
    })
}

/// How far write-back is.
fn write_back(fs: &FileSystem) -> Value {
    let report = fs.write_back_report();
    json!({ "free_percent": report.free_percent, "limit_percent": report.limit_percent })
}

fn wear(wear: FlashWear) -> Value {
    json!({
        "erasures_mean": wear.erasures_mean,
        "erasures_max": wear.erasures_max,
        "endurance_erasures": wear.endurance_erasures,
        "blocks": wear.blocks,
        "bad_blocks_grown": wear.bad_blocks_grown,
    })
}

/// How long operations took, by kind, without those that were never timed.
pub fn latencies<N: Into<String>>(kinds: impl IntoIterator<Item = (N, LatencyCounts)>) -> Value {
    let timed = kinds.into_iter().filter(|(_, counts)| counts.samples() > 0);
    let operations: Map<String, Value> = timed.map(|(name, counts)| (name.into(), latency(&counts))).collect();
    json!({ "sampled_1_in": LATENCY_SAMPLED_1_IN, "operations": operations })
}

/// The times of kinds that are sampled each in its own way, without those that were never timed.
fn times(kinds: &[KindTimes]) -> Value {
    let timed = kinds.iter().filter(|kind| kind.counts.samples() > 0);
    let kinds = timed.map(|kind| {
        let mut times = latency(&kind.counts);
        times["sampled_1_in"] = kind.sampled_1_in.into();
        (kind.name.to_owned(), times)
    });
    Value::Object(kinds.collect())
}

/// The times of one kind. Each bucket is its upper bound in nanoseconds and how many lie in it, so that a reader can tell two answers apart.
fn latency(counts: &LatencyCounts) -> Value {
    json!({
        "samples": counts.samples(),
        "p50_ns": counts.percentile(0.5),
        "p90_ns": counts.percentile(0.9),
        "p99_ns": counts.percentile(0.99),
        "p999_ns": counts.percentile(0.999),
        "max_ns": counts.percentile(1.0),
        "buckets": counts.0.iter().map(|(end_ns, count)| json!([end_ns, count])).collect::<Vec<_>>(),
    })
}

/// What files take of the memory zone and may take, and which move to their homes.
fn homes(fs: &FileSystem) -> Value {
    let moves = fs.home_moves();
    json!({
        "enabled": fs.has_homes(),
        "bytes": moves.bytes,
        "limit_bytes": moves.limit_bytes,
        "moving_files": moves.files,
        "waiting_files": moves.waiting_files,
        // Null if no search for files to move is under way.
        "search": moves.search.map(|(done, total)| json!({ "done_inodes": done, "total_inodes": total })),
    })
}

/// The nodes that the memory zone lies on, and what processes wrote on their home nodes and on others.
fn numa(fs: &FileSystem) -> Value {
    let report = fs.numa();
    let nodes = report.nodes.iter().map(|node| {
        json!({
            "number": node.number,
            "total_bytes": node.total_bytes,
            "free_bytes": node.free_bytes,
            "processes": node.processes,
        })
    });
    json!({
        "places": report.places,
        "local_written_bytes": report.local_written_bytes,
        "remote_written_bytes": report.remote_written_bytes,
        "nodes": nodes.collect::<Vec<_>>(),
    })
}

/// Zones with little space left, and what helps.
fn short(fs: &FileSystem) -> Value {
    fs.short_zones().iter().map(|short| json!({ "zone": short.zone, "what": short.what, "advice": short.advice })).collect()
}

/// Damaged metadata that this mount knows of, and the space that is held back because of it.
fn damage(fs: &FileSystem) -> Value {
    let found = fs.damage();
    json!({
        "objects": found.objects,
        "holds_back": found.holds_back,
        "held_memory_bytes": found.held_memory_bytes,
        "held_block_bytes": found.held_block_bytes,
    })
}

/// The threshold at which writes are split between the paths, and its reason.
fn threshold(fs: &FileSystem) -> Value {
    let report = fs.threshold();
    let measured = report.measured.iter().map(|latency| {
        let PathLatency { size_bytes, byte_path_ns, block_path_ns } = latency;
        json!({ "size_bytes": size_bytes, "byte_path_ns": byte_path_ns, "block_path_ns": block_path_ns })
    });
    json!({
        "bytes": report.bytes,
        "chosen_bytes": report.chosen_bytes,
        "reason": report.reason,
        "measured": measured.collect::<Vec<_>>(),
    })
}

/// Resets the counters, including the drive's.
pub(crate) fn reset(fs: &FileSystem) {
    fs.reset_statistics();
}

/// The mount and its settings.
pub(crate) fn info(fs: &FileSystem, settings: &MountSettings, mounted_since: Instant) -> Value {
    let superblock = fs.superblock();
    let description = fs.drive().description();
    let recovery = fs.recovery();
    let space = fs.space();
    json!({
        "mounted": true,
        "process_id": std::process::id(),
        "device": description.name,
        "uuid": superblock.uuid(),
        "pair": superblock.pair,
        "label": superblock.label,
        "mode": settings.mode.name(),
        "engine": if fs.commits_on_drive() { "firmware" } else { "journal" },
        "read_only": settings.read_only,
        "reserved_percent": settings.reserved_percent,
        "persistence_domain": fs.drive().domain().name(),
        "drive": drive(fs),
        "block_bytes": superblock.geometry.block_bytes(),
        "requests_over": "device",
        "threads": settings.thread_count(),
        "options": settings.options.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<Map<_, _>>(),
        "mounted_seconds": mounted_since.elapsed().as_secs(),
        "stopped": fs.stopped(),
        "recovery": {
            "clean": recovery.clean,
            "records_replayed": recovery.records_replayed,
            "orphans_removed": recovery.orphans_removed,
            "milliseconds": recovery.duration.as_secs_f64() * 1e3,
            "drive": recovery.drive.map(|drive| json!({
                "lines_kept": drive.lines_kept,
                "lines_discarded": drive.lines_discarded,
                "transactions": drive.transactions,
                "milliseconds": drive.duration.as_secs_f64() * 1e3,
            })),
        },
        "homes": homes(fs),
        "damage": damage(fs),
        "errors": counters(fs.error_counters().entries()),
        "memory_zone": zone(&space.memory),
        "block_zone": zone(&space.block),
        "inodes": { "used": space.inodes_used, "free": space.inodes_free },
        "short": short(fs),
    })
}

/// What the drive can do.
fn drive(fs: &FileSystem) -> Value {
    let (drive, description) = (fs.drive(), fs.drive().description());
    json!({
        "domain": description.domain.name(),
        "volatile_write_cache": description.volatile_write_cache,
        "discard": description.discard,
        "request_bytes": description.request_bytes,
        "transactions": drive.has_transactions(),
        "mapping_unit_bytes": drive.mapping_unit(),
    })
}

fn zone(space: &ZoneSpace) -> Value {
    json!({
        "total_bytes": space.total_bytes,
        "free_bytes": space.free_bytes,
        "available_bytes": space.available_bytes,
        "data_log_bytes": space.data_log_bytes,
        "promoted_bytes": space.promoted_bytes,
    })
}

fn counters(entries: impl IntoIterator<Item = (&'static str, u64)>) -> Map<String, Value> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

//! `tandemfs device stats`: the lifetime counters of an emulated drive with firmware, or with a model of CPU caches and persistent memory.

use serde_json::{Map, Value, json};
use tandemfs_device::{Mechanism, MediaBytes, MediaCounts};
use tandemfs_emulator::{DriveStatistics, media_statistics, statistics};

use crate::arguments::DeviceStatsArguments;
use crate::failure::Failure;
use crate::output;

/// Shows the counters of a drive that nobody has open to write.
pub fn run(arguments: &DeviceStatsArguments) -> Result<u8, Failure> {
    let found = match media_statistics(&arguments.image).map_err(Failure::because)? {
        Some(counts) => json!({ "media": of_media(&counts) }),
        None => shown(&statistics(&arguments.image).map_err(Failure::because)?),
    };
    if arguments.json {
        output::print_json(&found)?;
    } else {
        output::print_rows(&output::rows(&found))?;
    }
    Ok(0)
}

fn of_media(counts: &MediaCounts) -> Value {
    let bytes = |bytes: &MediaBytes| {
        let written =
            Mechanism::ALL.iter().zip(bytes.written_bytes).map(|(mechanism, bytes)| (format!("{}_bytes", mechanism.name()), bytes));
        let others = [("stored_bytes", bytes.stored_bytes), ("read_bytes", bytes.read_bytes), ("merge_read_bytes", bytes.merge_read_bytes)];
        let all = others.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).chain(written);
        Value::Object(all.map(|(name, bytes)| (name, bytes.into())).collect())
    };
    let by_structure: Map<String, Value> = counts.by_structure().map(|(name, of)| (name.to_owned(), bytes(of))).collect();
    json!({
        "by_structure": by_structure,
        "hit_lines": counts.hit_lines,
        "missed_lines": counts.missed_lines,
        "write_amplification": counts.write_amplification(),
    })
}

fn shown(found: &DriveStatistics) -> Value {
    let counters = |entries: Vec<(&str, u64)>| entries.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let (firmware, flash): (Map<String, Value>, Map<String, Value>) =
        (counters(found.lifetime.firmware.entries()), counters(found.lifetime.flash.entries()));
    let wear = &found.wear;
    // Counters are of the whole life, the rest is as it is now.
    json!({
        "read_only": found.read_only_reason,
        "firmware": firmware,
        "flash": flash,
        "buffered_pages": found.buffered_pages,
        "write_amplification": found.write_amplification(),
        "wear": {
            "erasures_min": wear.erasures_min,
            "erasures_mean": wear.erasures_mean,
            "erasures_max": wear.erasures_max,
            "endurance_erasures": wear.endurance_erasures,
            "blocks": wear.blocks,
            "free_blocks": wear.free_blocks,
            "bad_blocks_from_factory": wear.bad_blocks_from_factory,
            "bad_blocks_grown": wear.bad_blocks_grown,
            "histogram_step_erasures": wear.histogram_step_erasures,
            "histogram_blocks": wear.histogram,
        },
        "log": found.log.map(|log| json!({
            "lines": log.lines,
            "capacity_lines": log.capacity_lines,
            "uncommitted_lines": log.uncommitted_lines,
            "pages": log.pages,
            "transactions": log.transactions,
            "capacity_transactions": log.capacity_transactions,
            "index_bytes": log.index_bytes,
        })),
        "cache": found.cached_pages.map(|(pages, capacity_pages)| json!({ "pages": pages, "capacity_pages": capacity_pages })),
    })
}

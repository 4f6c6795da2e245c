//! The daemon's side of `tandemfs compact`: empties sparse units of metadata, at a limited rate, beside the mount's work.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_fs::{CompactionRun, FileSystem};

use crate::control::Listener;

/// The interval of progress lines.
const EVERY: Duration = Duration::from_millis(100);
/// Steps without a pause. They take at most half of the time, so that other threads get through.
const STEPS: Duration = Duration::from_millis(10);

/// Compacts while the listener stays. Returns the last line for the listener.
pub(crate) fn run(fs: &FileSystem, listener: &Listener<'_>) -> Value {
    let start = Instant::now();
    let mut compaction = CompactionRun::default();
    let mut told: Option<Instant> = None;
    loop {
        if !listener.is_there() {
            let why = if listener.is_stopped() { "the mount ended before the compaction did" } else { "nobody waits for the compaction" };
            return json!({ "error": why });
        }
        let began = Instant::now();
        let goes_on = loop {
            match fs.compact_step(&mut compaction) {
                Ok(true) if began.elapsed() < STEPS => {}
                Ok(goes_on) => break goes_on,
                Err(error) => return json!({ "error": error.to_string() }),
            }
        };
        if !goes_on {
            break;
        }
        if told.is_none_or(|told| told.elapsed() >= EVERY)
            && let Some((done, total)) = fs.compaction_progress()
        {
            told = Some(Instant::now());
            let line = json!({ "progress": { "done_inodes": done, "total_inodes": total, "moved_bytes": compaction.moved_bytes } });
            if listener.say(&line).is_err() {
                return json!({ "error": "nobody waits for the compaction" });
            }
        }
        std::thread::sleep(began.elapsed());
    }
    let (moved, freed) = (compaction.moved_bytes, compaction.freed_bytes);
    tracing::info!(moved, freed, elapsed = ?start.elapsed(), "compaction by hand ends");
    json!({ "moved_bytes": moved, "freed_bytes": freed, "milliseconds": start.elapsed().as_secs_f64() * 1e3 })
}

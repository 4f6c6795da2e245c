//! The daemon's side of `tandemfs trim`: discards what is free, at a limited rate, beside the mount's work.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_fs::FileSystem;

use crate::control::Listener;

/// The interval of progress lines.
const EVERY: Duration = Duration::from_millis(100);
/// Commands of discards take at most half of the time, so that reads and writes get through.
const PAUSES_PER_STEP: u32 = 1;
/// The longest pause: one slow command is no reason to wait for long.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Discards free runs of at least `minimum` bytes while the listener stays. Returns the last line for the listener.
pub(crate) fn run(fs: &FileSystem, minimum: u64, listener: &Listener<'_>) -> Value {
    let start = Instant::now();
    let mut trim = fs.trim(minimum);
    let mut told: Option<Instant> = None;
    loop {
        if !listener.is_there() {
            let why = if listener.is_stopped() { "the mount ended before the trim did" } else { "nobody waits for the trim any more" };
            return json!({ "error": why });
        }
        let began = Instant::now();
        match fs.trim_step(&mut trim) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => return json!({ "error": error.to_string() }),
        }
        if told.is_none_or(|told| told.elapsed() >= EVERY) {
            told = Some(Instant::now());
            let (done, total) = fs.trim_progress(&trim);
            let line = json!({ "progress": { "done_bytes": done, "total_bytes": total, "discarded_bytes": trim.discarded_bytes() } });
            if listener.say(&line).is_err() {
                return json!({ "error": "nobody waits for the trim any more" });
            }
        }
        std::thread::sleep((began.elapsed() * PAUSES_PER_STEP).min(PAUSE_MAX));
    }
    tracing::info!(bytes = trim.discarded_bytes(), elapsed = ?start.elapsed(), "trim ends");
    json!({ "discarded_bytes": trim.discarded_bytes(), "milliseconds": start.elapsed().as_secs_f64() * 1e3 })
}

//! The daemon's side of `tandemfs scrub`: a scrub at a limited rate, its progress and its result.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tandemfs_fs::{FileSystem, Scrub, ScrubFinding};

use crate::control::Listener;

/// The interval of progress lines, and the longest time by which a pausing scrub may delay the end of the mount.
const EVERY: Duration = Duration::from_millis(100);

/// Reads and verifies everything, at most `limit` bytes per second, while the listener stays. Returns the last line for the listener.
pub(crate) fn run(fs: &FileSystem, limit: Option<u64>, listener: &Listener<'_>) -> Value {
    let start = Instant::now();
    let mut scrub = fs.scrub();
    tracing::info!(limit, "scrub begins");
    if progress(&scrub, listener).is_err() {
        return ended(&scrub, listener);
    }
    let mut told = Instant::now();
    loop {
        if !listener.is_there() {
            return ended(&scrub, listener);
        }
        let more = fs.scrub_step(&mut scrub);
        loop {
            if told.elapsed() >= EVERY {
                told = Instant::now();
                if progress(&scrub, listener).is_err() {
                    return ended(&scrub, listener);
                }
            }
            let early = ahead(scrub.counts().bytes, limit, start.elapsed());
            if early.is_zero() || !listener.is_there() {
                break;
            }
            std::thread::sleep(early.min(EVERY));
        }
        if !more {
            break;
        }
    }
    fs.note_scrub(&scrub);
    let result = result(fs, &scrub, start.elapsed());
    tracing::info!(bytes = scrub.counts().bytes, findings = scrub.findings().len(), elapsed = ?start.elapsed(), "scrub ends");
    result
}

/// How long to pause so that `bytes` do not exceed the limit.
fn ahead(bytes: u64, limit: Option<u64>, elapsed: Duration) -> Duration {
    let due = limit.map_or(0.0, |limit| bytes as f64 / limit.max(1) as f64);
    Duration::from_secs_f64((due - elapsed.as_secs_f64()).clamp(0.0, 3600.0))
}

fn progress(scrub: &Scrub, listener: &Listener<'_>) -> std::io::Result<()> {
    let (done, findings) = (scrub.counts().bytes, scrub.findings().len() as u64 + scrub.findings_left_out());
    listener.say(&json!({ "progress": { "done_bytes": done, "total_bytes": scrub.total_bytes().max(done), "findings": findings } }))
}

fn ended(scrub: &Scrub, listener: &Listener<'_>) -> Value {
    let why = if listener.is_stopped() { "the mount ended before the scrub did" } else { "nobody waits for the scrub any more" };
    tracing::info!(bytes = scrub.counts().bytes, findings = scrub.findings().len(), "scrub ends early: {why}");
    json!({ "error": why })
}

fn result(fs: &FileSystem, scrub: &Scrub, elapsed: Duration) -> Value {
    let counts = scrub.counts();
    let mut inodes: Vec<_> = scrub.findings().iter().filter_map(|finding| finding.inode).collect();
    inodes.sort_unstable();
    inodes.dedup();
    let paths = if inodes.is_empty() { Default::default() } else { fs.paths_of(&inodes) };
    let found = |finding: &ScrubFinding| {
        let path = finding.inode.and_then(|inode| paths.get(&inode.get())).map(|path| String::from_utf8_lossy(path));
        if let Some(path) = &path {
            tracing::error!(%path, "scrub: {finding}");
        }
        json!({
            "what": finding.kind.name(),
            "inode": finding.inode.map(|inode| inode.get()),
            "path": path,
            "file_offset": finding.file_offset,
            "device_offset": finding.device_offset,
            "length": finding.length,
            "cause": finding.cause,
            "text": finding.to_string(),
        })
    };
    json!({
        "device": fs.drive().description().name,
        "clean": scrub.findings().is_empty(),
        "findings": scrub.findings().iter().map(found).collect::<Vec<Value>>(),
        "findings_left_out": scrub.findings_left_out(),
        "inodes": counts.inodes,
        "lines": counts.lines,
        "lines_not_home": counts.lines_not_home,
        "open_pages": counts.open_pages,
        "logs": counts.logs,
        "sectors": counts.sectors,
        "read_bytes": counts.bytes,
        "milliseconds": elapsed.as_secs_f64() * 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_kept_over_the_whole_time() {
        assert_eq!(ahead(1 << 30, None, Duration::ZERO), Duration::ZERO);
        assert_eq!(ahead(500, Some(100), Duration::from_secs(3)), Duration::from_secs(2));
        assert_eq!(ahead(500, Some(100), Duration::from_secs(6)), Duration::ZERO);
        assert_eq!(ahead(u64::MAX, Some(0), Duration::ZERO), Duration::from_secs(3600));
    }
}

//! The loads on a directory (a mount, another file system) in real time.

use std::path::Path;

use serde_json::json;

use super::setting::Setting;
use crate::failure::{Failure, Result};
use crate::output::Outcome;
use crate::table::Table;
use crate::workloads::{DirectoryTarget, Durability, Target, Worker, Workload, lay_out, run_on_threads};

/// Runs all loads on a directory, one thread per worker.
pub fn run(setting: &Setting, directory: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::new("loads", format!("operations a second below {} (Fig. 6)", directory.display()));
    let mut table = Table::new(["load", "files", "threads", "operations", "seconds", "a second", "with sync"]);
    for workload in setting.loads(&Workload::ALL)? {
        let load = setting.load(workload);
        let root = tempfile::Builder::new()
            .prefix("tandemfs-bench-")
            .tempdir_in(directory)
            .map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
        let target = DirectoryTarget::new(root.path(), Durability::Data);
        lay_out(&load, &target)?;
        target.drop_caches()?;
        let start = std::time::Instant::now();
        let (done, elapsed) = run_on_threads(&mut Worker::all(&load), &target)?;
        target.synchronize_all()?;
        let all = start.elapsed();
        let rate = |seconds: f64| format!("{:.0}", done.operations() as f64 / seconds);
        table.row([
            workload.name().to_owned(),
            load.files.to_string(),
            load.workers.to_string(),
            done.operations().to_string(),
            format!("{:.2}", elapsed.as_secs_f64()),
            rate(elapsed.as_secs_f64()),
            rate(all.as_secs_f64()),
        ]);
        outcome.record(json!({
            "load": workload.name(), "files": load.files, "workers": load.workers, "operations": done.operations(),
            "user_written_bytes": done.written_bytes, "user_read_bytes": done.read_bytes,
            "seconds": elapsed.as_secs_f64(), "seconds_with_sync": all.as_secs_f64(),
        }));
    }
    outcome.table("In real time, a thread a worker, after the kernel was told to forget the files", table);
    Ok(outcome)
}

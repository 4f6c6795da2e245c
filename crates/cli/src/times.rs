//! Times in the answers of a daemon (`latency` of `tandemfs stats --json`).

use serde_json::Value;
use tandemfs_device::LatencyCounts;

/// The histogram of one kind; empty where it was never timed.
pub fn counts(times: &Value) -> LatencyCounts {
    let buckets = times["buckets"].as_array().into_iter().flatten();
    LatencyCounts(buckets.filter_map(|bucket| Some((bucket[0].as_u64()?, bucket[1].as_u64()?))).collect())
}

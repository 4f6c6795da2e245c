//! `tandemfs stats`: the counters of a mount.

use std::time::Duration;

use serde_json::Value;
use tandemfs_fuse::control::{self, Request};

use crate::arguments::StatsArguments;
use crate::failure::{Failure, no_answer};
use crate::openmetrics;
use crate::output;
use crate::umount;

/// How long the text for Prometheus is waited for, which takes two answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// Shows the counters.
pub fn run(arguments: &StatsArguments) -> Result<u8, Failure> {
    let mount = umount::find(&arguments.mountpoint)?;
    if arguments.openmetrics {
        let text = openmetrics::of_mount(&mount, ANSWERS_WITHIN).map_err(|error| no_answer(&mount, &error))?;
        return output::print(&text).map(|()| 0);
    }
    let stats = control::ask(&mount, Request::Stats { reset: arguments.reset }).map_err(|error| no_answer(&mount, &error))?;
    if arguments.json {
        output::print_json(&stats)?;
    } else {
        output::print_rows(&output::rows(&without_buckets(stats)))?;
    }
    Ok(0)
}

/// Histograms are for programs; percentiles remain.
fn without_buckets(mut stats: Value) -> Value {
    match &mut stats {
        Value::Object(fields) => {
            fields.remove("buckets");
            fields.values_mut().for_each(|value| *value = without_buckets(value.take()));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| *value = without_buckets(value.take())),
        _ => {}
    }
    stats
}

//! Fig. 6: durable unaligned random writes of six sizes, a load of 5 and of 10 times the memory zone; and whether throughput settles.

use std::sync::Arc;

use serde_json::json;
use tandemfs_device::Device;

use super::contest::{self, Contestant, Operation, Standing};
use super::requests::{Alignment, Requests, SIZES, Size};
use super::setting::{Setting, Variant, Volume};
use crate::failure::Result;
use crate::output::Outcome;
use crate::plot::{self, Bars, Labels, Series};
use crate::report::time;
use crate::scene::{MIB, Scene};
use crate::table::Table;

const RATIOS: [u64; 2] = [5, 10];

/// Both loads.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("writes", "durable unaligned random writes, one thread (Fig. 6)");
    // Both loads before the first, so that nobody waits for the second to be refused.
    setting.require(setting.timed_device_bytes(setting.load_bytes(RATIOS[1])) * Variant::ALL.len() as u64)?;
    for ratio in RATIOS {
        one_load(setting, ratio, &mut outcome)?;
    }
    explain(&mut outcome);
    Ok(outcome)
}

/// The words that tables of contests need.
pub fn explain(outcome: &mut Outcome) {
    outcome.note("mean, median and p99 are of the requests alone; *all told* adds the work behind them that was left at the end of a slice, and is what ratios compare");
    outcome.note("blocks only: threshold=0, read, modified and written; LRU cache: all writes to the memory zone, coldest block first back, every read promoted");
}

fn one_load(setting: &Setting, ratio: u64, outcome: &mut Outcome) -> Result<()> {
    let load_bytes = setting.load_bytes(ratio);
    let scene = Scene::new(&setting.common)?;
    let devices = devices(setting, &scene, load_bytes)?;
    let mut results = Vec::new();
    for size in SIZES {
        let mut contestants = Vec::new();
        for (variant, device) in Variant::ALL.into_iter().zip(&devices) {
            let volume = Volume::laid_out(device, load_bytes, &variant.options())?;
            contestants.push(Contestant::new(variant.name(), volume, Requests::new(ratio, size, Alignment::Byte, load_bytes)));
        }
        results.push((size, contest::run(contestants, Operation::Write, load_bytes)?));
    }
    publish(outcome, &format!("1-{ratio}"), &format!("memory zone : load = 1 : {ratio} ({} MiB)", load_bytes / MIB), &results)?;

    let ours = |of: &dyn Fn(&Standing) -> Vec<(f64, f64)>| -> Vec<Series<(f64, f64)>> {
        results.iter().map(|(size, standings)| Series::new(size.name(), of(&standings[0]))).collect()
    };
    let mib = MIB as f64;
    let throughput = ours(&|standing| standing.throughput().into_iter().map(|(bytes, rate)| (bytes / mib, rate)).collect());
    let labels = Labels::new(format!("RomeFS over a load of 1:{ratio}"), "written [MiB]", "throughput [MB/s]");
    outcome.plot(&format!("throughput-1-{ratio}"), plot::lines(&labels, &throughput)?);
    let memory = ours(&|standing| {
        standing.course.iter().map(|point| (point.bytes as f64 / mib, point.memory_bytes as f64 / mib)).collect::<Vec<_>>()
    });
    let labels = Labels::new(format!("RomeFS over a load of 1:{ratio}"), "written [MiB]", "memory zone in use [MiB]");
    outcome.plot(&format!("memory-1-{ratio}"), plot::lines(&labels, &memory)?);
    Ok(())
}

/// One device a variant.
pub fn devices(setting: &Setting, scene: &Scene, file_bytes: u64) -> Result<Vec<Arc<dyn Device>>> {
    (0..Variant::ALL.len()).map(|index| setting.timed_device(scene, &format!("device-{index}"), file_bytes)).collect()
}

/// The table of a contest, its records and its bars. The first variant is ours.
pub fn publish(outcome: &mut Outcome, part: &str, caption: &str, results: &[(Size, Vec<Standing>)]) -> Result<()> {
    let mut head = vec!["size".to_owned()];
    for (index, variant) in Variant::ALL.into_iter().enumerate() {
        head.extend(["mean", "median", "p99", "all told"].map(|what| format!("{}: {what}", variant.name())));
        if index > 0 {
            head.push("ratio".into());
        }
    }
    head.push("RomeFS: last / second quarter".into());
    let mut table = Table::new(head);
    for (size, standings) in results {
        let mut cells = vec![size.name()];
        for (index, standing) in standings.iter().enumerate() {
            let samples = &standing.samples;
            cells.extend([samples.mean_ns(), samples.median_ns(), samples.p99_ns(), standing.all_told_ns].map(time));
            if index > 0 {
                cells.push(format!("{:.2} x", standing.all_told_ns / standings[0].all_told_ns));
            }
            let mut record = standing.json();
            record["part"] = part.into();
            record["size"] = size.name().into();
            record["ratio"] = json!(standing.all_told_ns / standings[0].all_told_ns);
            outcome.record(record);
        }
        cells.push(format!("{:.0} %", standings[0].settled() * 100.0));
        table.row(cells);
    }
    outcome.table(caption, table);
    let groups: Vec<String> = results.iter().map(|(size, _)| size.name()).collect();
    let series: Vec<Series<f64>> = Variant::ALL
        .iter()
        .enumerate()
        .map(|(index, variant)| {
            let ratio = |standings: &Vec<Standing>| standings[index].all_told_ns / standings[0].all_told_ns;
            Series::new(variant.name(), results.iter().map(|(_, standings)| ratio(standings)))
        })
        .collect();
    let labels = Labels::new(caption, "request size", "time a request, all told [RomeFS = 1]");
    outcome.plot(part, plot::bars(&labels, &groups, &series, Bars::Grouped)?);
    Ok(())
}

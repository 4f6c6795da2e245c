//! Fig. 6: durable unaligned random writes of six sizes, with loads of 5 and of 10 times the memory zone; and whether throughput settles.

use std::sync::Arc;

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
/// Slices of a load of five memory zones.
const SLICES_EACH_RATIO: u64 = 4;

/// Runs both loads.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("writes", "durable unaligned random writes, one thread (Fig. 6)");
    // Checks the room for both loads first, so that the second is not refused after the first has run.
    setting.require(setting.timed_device_bytes(setting.file_bytes(RATIOS[1])) * Variant::ALL.len() as u64)?;
    for ratio in RATIOS {
        one_load(setting, ratio, &mut outcome)?;
    }
    explain(&mut outcome);
    Ok(outcome)
}

/// Adds notes that explain tables of contests.
pub fn explain(outcome: &mut Outcome) {
    outcome.note("mean, median and p99 are of the requests alone; *all told* adds the work behind them that was left at the end of a slice, and is what ratios compare");
    outcome.note("blocks only: threshold=0, read, modified and written, with blocks of 64 KiB and of 4 KiB; LRU cache: all writes to the memory zone, coldest block first back, every read promoted");
}

fn one_load(setting: &Setting, ratio: u64, outcome: &mut Outcome) -> Result<()> {
    let (file_bytes, load_bytes) = (setting.file_bytes(ratio), setting.load_bytes(ratio));
    let scene = Scene::new(&setting.common)?;
    let devices = devices(setting, &scene, file_bytes)?;
    let (mut results, mut alone) = (Vec::new(), Vec::new());
    for size in SIZES {
        let requests = || Requests::new(ratio, size, Alignment::Byte, file_bytes);
        let mut contestants = Vec::new();
        for (variant, device) in Variant::ALL.into_iter().zip(&devices) {
            let volume = Volume::laid_out_in(device, variant.block_bytes(), file_bytes, &variant.options())?;
            contestants.push(Contestant::new(variant.name(), volume, requests()));
        }
        let volumes: Vec<Volume> = contestants.iter().map(|contestant| contestant.volume.clone()).collect();
        results.push((size, contest::run(contestants, Operation::Write, load_bytes, SLICES_EACH_RATIO * ratio / 5)?));
        volumes.into_iter().try_for_each(|volume| volume.fs.unmount())?;
        let volume = Volume::laid_out(&devices[0], file_bytes, &Variant::Default.options())?;
        let contestant = Contestant::new("RomeFS alone", volume.clone(), requests());
        alone.extend(contest::run(vec![contestant], Operation::Write, load_bytes, 1)?);
        volume.fs.unmount()?;
    }
    let part = format!("1-{ratio}");
    publish(outcome, &part, &format!("memory zone : load = 1 : {ratio} ({} MiB)", load_bytes / MIB), &results)?;

    let mut table = Table::new(["size", "mean", "all told", "last / second quarter", "logs merged", "blocks written back"]);
    for (size, standing) in SIZES.into_iter().zip(&alone) {
        table.row([
            size.name(),
            time(standing.samples.mean_ns()),
            time(standing.all_told_ns),
            format!("{:.0} %", standing.settled() * 100.0),
            standing.work.merges.to_string(),
            standing.work.block_write_backs.to_string(),
        ]);
        outcome.record(standing.json(&part, size, None));
    }
    outcome.table(format!("RomeFS alone, without slices, 1 : {ratio}: throughput of the last quarter over that of the second"), table);

    let ours = |of: &dyn Fn(&Standing) -> Vec<(f64, f64)>| -> Vec<Series<(f64, f64)>> {
        SIZES.iter().zip(&alone).map(|(size, standing)| Series::new(size.name(), of(standing))).collect()
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

/// One device per variant.
pub fn devices(setting: &Setting, scene: &Scene, file_bytes: u64) -> Result<Vec<Arc<dyn Device>>> {
    (0..Variant::ALL.len()).map(|index| setting.timed_device(scene, &format!("device-{index}"), file_bytes)).collect()
}

/// Adds a contest's table, records and bars. The first variant is ours.
pub fn publish(outcome: &mut Outcome, part: &str, caption: &str, results: &[(Size, Vec<Standing>)]) -> Result<()> {
    let [ours, others @ ..] = Variant::ALL.map(Variant::name);
    let mut ratios = Table::new(["all told", ours].into_iter().chain(others.into_iter().flat_map(|name| [name, "ratio"])));
    let mut times = Table::new(["requests: mean / median / p99"].into_iter().chain(Variant::ALL.map(Variant::name)));
    for (size, standings) in results {
        let (mut cells, ours) = (vec![size.name()], standings[0].all_told_ns);
        let ratio = |standing: &Standing| standing.all_told_ns / ours;
        for (index, standing) in standings.iter().enumerate() {
            cells.push(time(standing.all_told_ns));
            if index > 0 {
                cells.push(format!("{:.2} x", ratio(standing)));
            }
            outcome.record(standing.json(part, *size, Some(ratio(standing))));
        }
        ratios.row(cells);
        let each = |standing: &Standing| {
            let samples = &standing.samples;
            [samples.mean_ns(), samples.median_ns(), samples.p99_ns()].map(time).join(" / ")
        };
        times.row([size.name()].into_iter().chain(standings.iter().map(each)));
    }
    outcome.table(caption, ratios);
    outcome.table(format!("The requests alone, {caption}"), times);
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

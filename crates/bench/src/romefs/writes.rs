//! Fig. 6: durable unaligned random writes of six sizes, with loads of 5 and of 10 times the memory zone; and whether throughput settles.

use super::contest::{self, Load, Operation, Standing};
use super::requests::{Alignment, SIZES, Size};
use super::setting::{Setting, Variant, Volume};
use crate::failure::Result;
use crate::figures::time;
use crate::output::Outcome;
use crate::scene::MIB;
use crate::table::Table;

const RATIOS: [u64; 2] = [5, 10];

/// Runs both loads.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("writes", "durable unaligned random writes, one thread, in virtual time (Fig. 6)");
    // Checks the room for both loads first, so that the second is not refused after the first has run.
    setting.require(setting.device_bytes(setting.file_bytes(RATIOS[1])))?;
    for ratio in RATIOS {
        one_load(setting, ratio, &mut outcome)?;
    }
    explain(&mut outcome);
    Ok(outcome)
}

/// Adds notes that explain tables of contests.
pub fn explain(outcome: &mut Outcome) {
    outcome.note("mean, median and p99 are of the requests alone; *all told* adds the background work that was left at the end, and is what ratios compare");
    outcome.note("blocks only: threshold=0, read, modified and written, with blocks of 64 KiB and of 4 KiB; LRU cache: all writes to the memory zone, coldest block first back, every read promoted");
}

fn one_load(setting: &Setting, ratio: u64, outcome: &mut Outcome) -> Result<()> {
    let (file_bytes, load_bytes) = (setting.file_bytes(ratio), setting.load_bytes(ratio));
    let mut results = Vec::new();
    for size in SIZES {
        let load = Load { operation: Operation::Write, size, alignment: Alignment::Byte, threads: 1, bytes: load_bytes, seed: ratio };
        let on = |variant: Variant| {
            let (_scene, device) = setting.virtual_device(file_bytes)?;
            let volume = Volume::laid_out_in(&device, variant.block_bytes(), file_bytes, &variant.options())?;
            let standing = contest::run(variant.name(), &volume, &*device, load)?;
            volume.fs.unmount()?;
            Ok(standing)
        };
        results.push((size, Variant::ALL.into_iter().map(on).collect::<Result<Vec<Standing>>>()?));
    }
    let part = format!("1-{ratio}");
    publish(outcome, &part, &format!("memory zone : load = 1 : {ratio} ({} MiB)", load_bytes / MIB), &results);

    let mut table = Table::new(["size", "last / second quarter", "logs merged", "blocks written back"]);
    for (size, standings) in &results {
        let Standing { work, .. } = &standings[0];
        let settled = format!("{:.0} %", standings[0].settled() * 100.0);
        table.row([size.name(), settled, work.merges.to_string(), work.block_write_backs.to_string()]);
    }
    outcome.table(format!("RomeFS, 1 : {ratio}: throughput of the last quarter over that of the second"), table);
    Ok(())
}

/// Adds a contest's tables and records. The first variant is ours.
pub fn publish(outcome: &mut Outcome, part: &str, caption: &str, results: &[(Size, Vec<Standing>)]) {
    let [ours, others @ ..] = Variant::ALL.map(Variant::name);
    let mut ratios = Table::new(["all told", ours].into_iter().chain(others.into_iter().flat_map(|name| [name, "ratio"])));
    let mut times = Table::new(["requests: mean / median / p99"].into_iter().chain(Variant::ALL.map(Variant::name)));
    for (size, standings) in results {
        let (mut cells, ours) = (vec![size.name()], standings[0].all_told_ns());
        let ratio = |standing: &Standing| standing.all_told_ns() / ours;
        for (index, standing) in standings.iter().enumerate() {
            cells.push(time(standing.all_told_ns()));
            if index > 0 {
                cells.push(format!("{:.2} x", ratio(standing)));
            }
            outcome.record(standing.json(part, *size, ratio(standing)));
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
}

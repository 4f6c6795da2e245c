//! Fig. 10 and 11: flash pages read and programmed, and write amplification.

use tandemfs_device::FlashCounts;

use super::course::{self, Course};
use super::rig::{Rig, Variant};
use super::setting::Setting;
use crate::failure::{Failure, Result};
use crate::output::Outcome;
use crate::plot::{self, Bars, Labels, Series};
use crate::table::Table;
use crate::workloads::Workload;

const PAGE_BYTES: u64 = 4096;

/// Runs all loads on the drive with a page cache, with the write log, and with transactions.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("flash", "flash pages read and programmed (Fig. 10, 11)");
    let workloads = setting.loads(&Workload::ALL)?;
    let mut of_variants: Vec<Vec<(Course, FlashCounts)>> = Vec::new();
    for variant in Variant::ALL {
        let rig = Rig::new(setting, variant);
        let mut table = Table::new([
            variant.name(),
            "pages read, 1,000 operations",
            "programmed",
            "written",
            "moved",
            "blocks erased",
            "write amplification",
            "programmed / user wrote",
            "log cleanings",
        ]);
        let mut courses = Vec::new();
        for workload in &workloads {
            let load = setting.load(*workload);
            let course = course::run(setting, &rig, &load)?;
            let drive = course.drive.ok_or_else(|| Failure::new("the drive counts nothing"))?;
            let FlashCounts { pages_read, pages_programmed, pages_written, pages_moved, blocks_erased, .. } = drive.flash;
            let thousand = |pages: u64| format!("{:.1}", 1e3 * course.each(pages));
            let ratio = |of: u64, to: u64| if to == 0 { "–".to_owned() } else { format!("{:.2}", of as f64 / to as f64) };
            table.row([
                workload.name().to_owned(),
                thousand(pages_read),
                thousand(pages_programmed),
                thousand(pages_written),
                thousand(pages_moved),
                blocks_erased.to_string(),
                ratio(pages_programmed, pages_written),
                ratio(pages_programmed * PAGE_BYTES, course.done.written_bytes),
                drive.firmware.log_cleanings.to_string(),
            ]);
            outcome.record(course.json(&load, &rig));
            courses.push((course, drive.flash));
        }
        outcome.table(format!("Flash, {}", variant.name()), table);
        of_variants.push(courses);
    }
    let groups: Vec<String> = workloads.iter().map(|workload| workload.name().to_owned()).collect();
    for (part, of) in [("read", (|flash| flash.pages_read) as fn(&FlashCounts) -> u64), ("programmed", |flash| flash.pages_programmed)] {
        let series: Vec<Series<f64>> = Variant::ALL
            .iter()
            .zip(&of_variants)
            .map(|(variant, courses)| Series::new(variant.name(), courses.iter().map(|(course, flash)| 1e3 * course.each(of(flash)))))
            .collect();
        let labels = Labels::new(format!("Flash pages {part}"), "load", "pages for 1,000 operations");
        outcome.plot(part, plot::bars(&labels, &groups, &series, Bars::Grouped)?);
    }
    outcome.note("counted from the start of the load until everything is durable on the drive; what its log, cache and write buffer still hold then was not programmed, and what the lay-out left in them was, so that they go full into a run and come full out of it");
    outcome.note("write amplification: pages programmed for each that the host or the cleaning of the log wrote, a little below 1 where pages still wait in the write buffer or were overwritten there; garbage collection has little to do where a drive is filled less than once");
    outcome.note("the paper: 2.9, 2.1, 3.2 and 2.2 times fewer flash accesses than ext4, F2FS, NOVA and PMFS on average; here the other side is this file system on a drive with a page cache");
    Ok(outcome)
}

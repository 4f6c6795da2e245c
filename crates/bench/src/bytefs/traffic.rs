//! Fig. 8 and 9: bytes between host and drive, by path and structure.

use tandemfs_device::Structure;

use super::course::{self, Course, is_data};
use super::rig::{Rig, Variant};
use super::setting::Setting;
use crate::failure::Result;
use crate::output::Outcome;
use crate::plot::{self, Bars, Labels, Series};
use crate::table::Table;
use crate::workloads::Workload;

/// With transactions, and with the journal on the same drive.
const VARIANTS: [Variant; 2] = [Variant::Whole, Variant::Log];

/// Runs all loads.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("traffic", "bytes between host and drive (Fig. 8, 9)");
    let workloads = setting.loads(&Workload::ALL)?;
    let mut courses: Vec<Vec<Course>> = Vec::new();
    for variant in VARIANTS {
        let rig = Rig::new(setting, variant);
        let mut of_variant = Vec::new();
        for workload in &workloads {
            let load = setting.load(*workload);
            let course = course::run(setting, &rig, &load)?;
            outcome.record(course.json(&load, &rig));
            of_variant.push(course);
        }
        publish(&mut outcome, variant, &workloads, &of_variant)?;
        courses.push(of_variant);
    }
    let mut table = Table::new(["metadata bytes an operation", "transactions", "journal", "journal / transactions"]);
    for (index, workload) in workloads.iter().enumerate() {
        let metadata = |variant: usize| {
            let course: &Course = &courses[variant][index];
            let bytes = course.bytes(|structure| !is_data(structure));
            course.each(bytes.byte_written_bytes + bytes.block_written_bytes + bytes.byte_read_bytes + bytes.block_read_bytes)
        };
        let (ours, journal) = (metadata(0), metadata(1));
        table.row([workload.name().to_owned(), format!("{ours:.0}"), format!("{journal:.0}"), format!("{:.2} x", journal / ours.max(1.0))]);
    }
    outcome.table("Metadata, both ways and both paths", table);
    outcome.note("an operation is a file or directory of the small loads, a call other than close of the others; bytes of the user are those that programs wrote and read, whether or not the page cache kept them from the drive");
    outcome.note(
        "a run ends when everything is durable and metadata is home; what a file lost by its removal before that never reached the drive",
    );
    outcome.note("the paper compares with ext4, F2FS, NOVA and PMFS on the same drive, of which only figures are given: metadata traffic 11.4 and 6.1 times less on average than ext4 and F2FS; here the other side is the same file system with its journal");
    Ok(outcome)
}

fn publish(outcome: &mut Outcome, variant: Variant, workloads: &[Workload], courses: &[Course]) -> Result<()> {
    let caption = match variant {
        Variant::Whole => "the drive's transactions",
        _ => "the journal",
    };
    let head = ["bytes an operation", "user wrote", "user read"];
    let mut paths = Table::new(head.into_iter().chain([
        "data: stored",
        "written by blocks",
        "loaded",
        "read by blocks",
        "metadata: stored",
        "written by blocks",
        "loaded",
        "read by blocks",
        "written / user",
    ]));
    let mut structures = Table::new(["written, bytes an operation"].into_iter().chain(Structure::ALL.map(Structure::name)));
    for (workload, course) in workloads.iter().zip(courses) {
        let show = |bytes: u64| format!("{:.0}", course.each(bytes));
        let mut cells = vec![workload.name().to_owned(), show(course.done.written_bytes), show(course.done.read_bytes)];
        for wanted in [true, false] {
            let bytes = course.bytes(|structure| is_data(structure) == wanted);
            cells.extend([bytes.byte_written_bytes, bytes.block_written_bytes, bytes.byte_read_bytes, bytes.block_read_bytes].map(show));
        }
        let all = course.bytes(|_| true);
        cells.push(match course.done.written_bytes {
            0 => "–".to_owned(),
            user => format!("{:.2}", (all.byte_written_bytes + all.block_written_bytes) as f64 / user as f64),
        });
        paths.row(cells);
        structures.row([workload.name().to_owned()].into_iter().chain(Structure::ALL.map(|structure| {
            let bytes = course.bytes(|each| each == structure);
            show(bytes.byte_written_bytes + bytes.block_written_bytes)
        })));
    }
    outcome.table(format!("By path, {caption}"), paths);
    outcome.table(format!("By structure, both paths, {caption}"), structures);

    let part = if variant == Variant::Whole { "transactions" } else { "journal" };
    let groups: Vec<String> = workloads.iter().map(|workload| workload.name().to_owned()).collect();
    let share = |course: &Course, bytes: u64| {
        let all = course.bytes(|_| true);
        let all = all.byte_written_bytes + all.block_written_bytes + all.byte_read_bytes + all.block_read_bytes;
        100.0 * bytes as f64 / all.max(1) as f64
    };
    let kinds = [("data", true), ("metadata", false)].into_iter().flat_map(|(kind, wanted)| {
        let bytes = move |course: &Course| course.bytes(|structure| is_data(structure) == wanted);
        let series = |way: &str, of: &dyn Fn(&Course) -> u64| {
            Series::new(format!("{kind} {way}"), courses.iter().map(|course| share(course, of(course))).collect::<Vec<_>>())
        };
        [
            series("stored", &|course| bytes(course).byte_written_bytes),
            series("written by blocks", &|course| bytes(course).block_written_bytes),
            series("loaded", &|course| bytes(course).byte_read_bytes),
            series("read by blocks", &|course| bytes(course).block_read_bytes),
        ]
    });
    let series: Vec<Series<f64>> = kinds.collect();
    let labels = Labels::new(format!("Bytes between host and drive, {caption}"), "load", "share of the bytes [%]");
    outcome.plot(part, plot::bars(&labels, &groups, &series, Bars::Stacked)?);
    Ok(())
}

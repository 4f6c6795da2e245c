//! Fig. 6 and 8 to 14: the same loads on drives that differ. Each figure names its loads and drives; [`Figure::run`] runs them all, and a
//! function shows what came of it.

use tandemfs_device::{FlashCounts, Structure};

use super::course::{self, Course, is_data};
use super::rig::{Rig, Variant};
use super::setting::Setting;
use crate::failure::Result;
use crate::output::Outcome;
use crate::scene::MIB;
use crate::table::Table;
use crate::workloads::{Load, Workload};

const PAGE_BYTES: u64 = 4096;
/// In the order of [`Course::bytes`].
const WAYS: [&str; 4] = ["stored", "written by blocks", "loaded", "read by blocks"];
/// Sizes of the write log in the paper, in MiB.
const SIZES_MIB: [u64; 5] = [64, 128, 256, 512, 1024];
const US: u32 = 1000;
/// Profile of the emulator instead of the variant's own, and read and program time of a page in nanoseconds (§5.6).
const LATENCIES: [(&str, Option<&str>, (u32, u32)); 4] = [
    ("25/200 us", None, (25 * US, 200 * US)),
    ("40/60 us", None, (40 * US, 60 * US)),
    ("3/80 us", None, (3 * US, 80 * US)),
    ("3/80 us, CXL", Some("bytefs-cxl"), (3 * US, 80 * US)),
];

/// A figure of the paper.
pub struct Figure {
    name: &'static str,
    title: &'static str,
    loads: &'static [Workload],
    drives: fn(&Setting) -> Vec<(&'static str, Rig)>,
    show: fn(&Runs, &mut Outcome),
    notes: &'static [&'static str],
}

/// The runs of a figure: each load on each drive.
struct Runs {
    loads: Vec<Load>,
    drives: Vec<Driven>,
}

/// A drive, and the course of each load on it.
struct Driven {
    name: &'static str,
    rig: Rig,
    courses: Vec<Course>,
}

/// Operations a second of each load.
pub const LOADS: Figure = Figure {
    name: "loads",
    title: "operations a second (Fig. 6)",
    loads: &Workload::ALL,
    drives: |setting| vec![("whole", Rig::new(setting, Variant::Whole))],
    show: show_loads,
    notes: &[
        "reckoned: what the drive allows as many workers as there are; the processor's work takes no time, so the rate is a bound that the host's speed comes under; *of it sync*: the share of the time in which pages are written back at the end",
        "host: what the library, the page cache of the benchmark and the emulator took together, on one thread",
    ],
};

/// Bytes between host and drive, by path and structure: with transactions, and with the journal on the same drive.
pub const TRAFFIC: Figure = Figure {
    name: "traffic",
    title: "bytes between host and drive (Fig. 8, 9)",
    loads: &Workload::ALL,
    drives: |setting| vec![("transactions", Rig::new(setting, Variant::Whole)), ("journal", Rig::new(setting, Variant::Log))],
    show: show_traffic,
    notes: &[
        "an operation is a file or directory of the small loads, a call other than close of the others; bytes of the user are those that programs wrote and read, whether or not the page cache kept them from the drive",
        "a run ends when everything is durable and metadata is home; what a file lost by its removal before that never reached the drive",
        "the paper compares with ext4, F2FS, NOVA and PMFS on the same drive, of which only figures are given: metadata traffic 11.4 and 6.1 times less on average than ext4 and F2FS; here the other side is the same file system with its journal",
    ],
};

/// Flash pages read and programmed, and write amplification.
pub const FLASH: Figure = Figure {
    name: "flash",
    title: "flash pages read and programmed (Fig. 10, 11)",
    loads: &Workload::ALL,
    drives: variants,
    show: show_flash,
    notes: &[
        "counted from the start of the load until everything is durable on the drive; what its log, cache and write buffer still hold then was not programmed, and what the lay-out left in them was, so that they go full into a run and come full out of it",
        "write amplification: pages programmed for each that the host or the cleaning of the log wrote, a little below 1 where pages still wait in the write buffer or were overwritten there; garbage collection has little to do where a drive is filled less than once",
        "the paper: 2.9, 2.1, 3.2 and 2.2 times fewer flash accesses than ext4, F2FS, NOVA and PMFS on average; here the other side is this file system on a drive with a page cache",
    ],
};

/// What each part of ByteFS adds to throughput.
pub const BREAKDOWN: Figure = Figure {
    name: "breakdown",
    title: "operations a second with each part of ByteFS (Fig. 12)",
    loads: &Workload::MACRO,
    drives: variants,
    show: show_breakdown,
    notes: &[
        "dual interface only: profile bytefs-dual (a cache of pages in the drive, as large as the log) and the journal; + write log: profile bytefs and the journal; + transactions: profile bytefs and the drive's transactions",
        "the paper gives a figure only: varmail and fileserver gain by both, webproxy mostly by the interface, OLTP by the log and the choice of the interface",
    ],
};

/// Throughput at several flash latencies, and over CXL: complete ByteFS, then its dual interface alone.
pub const LATENCY: Figure = Figure {
    name: "latency",
    title: "operations a second by the latency of the flash (Fig. 13)",
    loads: &Workload::MACRO,
    drives: |setting| {
        let drive = |variant, (name, profile, flash_ns): (_, Option<_>, _)| {
            let rig = Rig { flash_ns: Some(flash_ns), ..Rig::new(setting, variant) };
            (name, Rig { profile: profile.unwrap_or(rig.profile), ..rig })
        };
        let whole = LATENCIES.into_iter().map(|latency| drive(Variant::Whole, latency));
        let dual = LATENCIES.into_iter().filter(|(_, profile, _)| profile.is_none()).map(|latency| drive(Variant::Dual, latency));
        whole.chain(dual).collect()
    },
    show: show_latency,
    notes: &[
        "there is no profile of a drive with only a page cache behind CXL",
        "the paper gives a figure only: the gain over others is larger where programming takes longer, and CXL helps what loads and stores",
    ],
};

/// Throughput at several sizes of the write log.
pub const LOG_SIZE: Figure = Figure {
    name: "log-size",
    title: "operations a second by the size of the write log (Fig. 14)",
    loads: &Workload::MACRO,
    drives: |setting| {
        let names = ["64 MiB", "128 MiB", "256 MiB", "512 MiB", "1024 MiB"];
        let rig = |size| Rig { staging_bytes: setting.log_bytes(size * MIB), ..Rig::new(setting, Variant::Whole) };
        names.into_iter().zip(SIZES_MIB.map(rig)).collect()
    },
    show: show_log_size,
    notes: &["the paper gives a figure only, normalised to 64 MiB: most loads gain, OLTP little since its locality is good already"],
};

fn variants(setting: &Setting) -> Vec<(&'static str, Rig)> {
    Variant::ALL.map(|variant| (variant.name(), Rig::new(setting, variant))).to_vec()
}

impl Figure {
    /// Runs each load on each drive, and shows the result.
    pub fn run(&self, setting: &Setting) -> Result<Outcome> {
        let mut outcome = Outcome::new(self.name, self.title);
        let loads: Vec<Load> = setting.loads(self.loads)?.into_iter().map(|workload| setting.load(workload)).collect();
        let mut drives = Vec::new();
        for (name, rig) in (self.drives)(setting) {
            let mut courses = Vec::new();
            for load in &loads {
                let course = course::run(setting, &rig, load)?;
                let mut record = course.json(load, &rig);
                record["point"] = name.into();
                outcome.record(record);
                courses.push(course);
            }
            drives.push(Driven { name, rig, courses });
        }
        (self.show)(&Runs { loads, drives }, &mut outcome);
        self.notes.iter().for_each(|note| outcome.note(*note));
        Ok(outcome)
    }
}

impl Runs {
    fn names(&self) -> impl Iterator<Item = String> {
        self.loads.iter().map(|load| load.workload.name().to_owned())
    }

    /// A table with a row for each load; `cells` follow the load's name.
    fn table(&self, head: impl IntoIterator<Item = impl Into<String>>, cells: impl Fn(usize) -> Vec<String>) -> Table {
        let mut table = Table::new(head);
        self.names().enumerate().for_each(|(load, name)| table.row([name].into_iter().chain(cells(load))));
        table
    }

    /// Operations a second.
    fn rate(&self, drive: usize, load: usize) -> f64 {
        self.drives[drive].courses[load].operations_a_second()
    }
}

fn show_loads(runs: &Runs, outcome: &mut Outcome) {
    let head = ["load", "files", "workers", "operations", "a second, reckoned", "of it sync", "host, an operation"];
    let table = runs.table(head, |index| {
        let (load, course) = (&runs.loads[index], &runs.drives[0].courses[index]);
        let operations = course.operations();
        vec![
            load.files.to_string(),
            load.workers.to_string(),
            operations.to_string(),
            format!("{:.0}", course.operations_a_second()),
            format!("{:.0} %", 100.0 * (course.elapsed_ns - course.calls_ns) as f64 / course.elapsed_ns as f64),
            format!("{:.2} us", course.host.as_nanos() as f64 / operations as f64 / 1e3),
        ]
    });
    outcome.table("Each load by itself on a drive of its own", table);
}

fn written(bytes: [u64; 4]) -> u64 {
    bytes[0] + bytes[1]
}

fn show_traffic(runs: &Runs, outcome: &mut Outcome) {
    for drive in &runs.drives {
        let name = drive.name;
        let ways = ["data", "metadata"].into_iter().flat_map(|kind| WAYS.map(|way| format!("{kind} {way}")));
        let head = ["bytes an operation", "user wrote", "user read"].map(str::to_owned).into_iter();
        let table = runs.table(head.chain(ways).chain(["written / user".to_owned()]), |load| {
            let course = &drive.courses[load];
            let user = course.done.written_bytes;
            let bytes = [user, course.done.read_bytes].into_iter().chain(course.bytes(is_data)).chain(course.bytes(|each| !is_data(each)));
            let share = match user {
                0 => "–".to_owned(),
                user => format!("{:.2}", written(course.bytes(|_| true)) as f64 / user as f64),
            };
            bytes.map(|bytes| format!("{:.0}", course.each(bytes))).chain([share]).collect()
        });
        outcome.table(format!("By path, {name}"), table);
        let head = ["written, bytes an operation"].into_iter().chain(Structure::ALL.map(Structure::name));
        let table = runs.table(head, |load| {
            let course = &drive.courses[load];
            Structure::ALL.map(|structure| format!("{:.0}", course.each(written(course.bytes(|each| each == structure))))).to_vec()
        });
        outcome.table(format!("By structure, both paths, {name}"), table);
    }
    let table = runs.table(["metadata bytes an operation", "transactions", "journal", "journal / transactions"], |load| {
        let metadata = |drive: usize| {
            let course = &runs.drives[drive].courses[load];
            course.each(course.bytes(|structure| !is_data(structure)).iter().sum())
        };
        let (ours, journal) = (metadata(0), metadata(1));
        vec![format!("{ours:.0}"), format!("{journal:.0}"), format!("{:.2} x", journal / ours.max(1.0))]
    });
    outcome.table("Metadata, both ways and both paths", table);
}

fn show_flash(runs: &Runs, outcome: &mut Outcome) {
    for drive in &runs.drives {
        let head = [
            drive.name,
            "pages read, 1,000 operations",
            "programmed",
            "written",
            "moved",
            "blocks erased",
            "write amplification",
            "programmed / user wrote",
            "log cleanings",
        ];
        let table = runs.table(head, |load| {
            let course = &drive.courses[load];
            let FlashCounts { pages_read, pages_programmed, pages_written, pages_moved, blocks_erased, .. } = course.drive.flash;
            let ratio = |of: u64, to: u64| if to == 0 { "–".to_owned() } else { format!("{:.2}", of as f64 / to as f64) };
            let pages = [pages_read, pages_programmed, pages_written, pages_moved];
            let counts = [
                blocks_erased.to_string(),
                ratio(pages_programmed, pages_written),
                ratio(pages_programmed * PAGE_BYTES, course.done.written_bytes),
                course.drive.firmware.log_cleanings.to_string(),
            ];
            pages.map(|pages| format!("{:.1}", 1e3 * course.each(pages))).into_iter().chain(counts).collect()
        });
        outcome.table(format!("Flash, {}", drive.name), table);
    }
}

fn show_breakdown(runs: &Runs, outcome: &mut Outcome) {
    let head = ["load"].into_iter().chain(Variant::ALL.map(Variant::name)).chain(["log / dual", "whole / dual"]);
    let table = runs.table(head, |load| {
        let rates = [0, 1, 2].map(|drive| runs.rate(drive, load));
        let gains = [1, 2].map(|drive| format!("{:.2} x", rates[drive] / rates[0]));
        rates.map(|rate| format!("{rate:.0}")).into_iter().chain(gains).collect()
    });
    outcome.table("Operations a second, reckoned", table);
}

fn show_latency(runs: &Runs, outcome: &mut Outcome) {
    let head = |first: &'static str| [first].into_iter().chain(LATENCIES.map(|(name, ..)| name));
    for (variant, first) in [(Variant::Whole, 0), (Variant::Dual, LATENCIES.len())] {
        let table = runs.table(head(variant.name()), |load| {
            let rate = |index: usize| match runs.drives.get(first + index) {
                Some(_) => format!("{:.0}", runs.rate(first + index, load)),
                None => "–".to_owned(),
            };
            (0..LATENCIES.len()).map(rate).collect()
        });
        outcome.table(format!("Operations a second, reckoned, {}", variant.name()), table);
    }
    let gains = runs.table(head("whole / dual"), |load| {
        let gain = |index: usize| match runs.drives.get(LATENCIES.len() + index) {
            Some(_) => format!("{:.2} x", runs.rate(index, load) / runs.rate(LATENCIES.len() + index, load)),
            None => "–".to_owned(),
        };
        (0..LATENCIES.len()).map(gain).collect()
    });
    outcome.table("What the log and the transactions add at each latency", gains);
}

fn show_log_size(runs: &Runs, outcome: &mut Outcome) {
    let drives = 0..runs.drives.len();
    let relative = |drive: usize, load: usize| runs.rate(drive, load) / runs.rate(0, load);
    let head = ["log of the paper"].into_iter().chain(runs.drives.iter().map(|drive| drive.name));
    let mut table = runs.table(head, |load| {
        drives.clone().map(|drive| format!("{:.0} ({:.2} x)", runs.rate(drive, load), relative(drive, load))).collect()
    });
    let here = runs.drives.iter().map(|drive| format!("{:.2} MiB", drive.rig.staging_bytes as f64 / MIB as f64));
    table.row(["log of this run".to_owned()].into_iter().chain(here));
    outcome.table("Operations a second, reckoned, and as a ratio to the smallest log", table);
}

//! Bytes written to the drive by one file creation: metadata by structure, and the total.

use tandemfs_device::{CountersSnapshot, Structure};
use tandemfs_format::InodeNumber;

use super::rig::{Rig, Variant};
use super::setting::Setting;
use crate::failure::Result;
use crate::output::Outcome;
use crate::report::{self, Row, RowTarget};
use crate::scene::{self, MIB};
use crate::table::Table;

/// Limit for the total bytes of a creation.
const BYTES_MAX: f64 = 512.0;
/// Lengths of names: one that fits the entry's line, a usual one, one of two lines, and the longest.
const NAME_BYTES: [usize; 4] = [8, 24, 60, 255];
/// The length that is judged: typical for file names of programs.
const USUAL: usize = 24;
const VARIANTS: [Variant; 2] = [Variant::Whole, Variant::Log];

/// Both engines, with names of four lengths.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("create", "metadata bytes written to the drive for a creation");
    let count = setting.count(20_000);
    let mut rows = Vec::new();
    let head = ["written, bytes a creation", "all"].into_iter().chain(Structure::ALL.map(Structure::name)).chain(["of all by blocks"]);
    let mut table = Table::new(head);
    for variant in VARIANTS {
        for name_bytes in NAME_BYTES {
            let counted = creations(setting, variant, name_bytes, count)?;
            let each = |bytes: u64| bytes as f64 / count as f64;
            let of = |structure: Structure| {
                let bytes = counted.by_structure[structure as usize];
                each(bytes.byte_written_bytes + bytes.block_written_bytes)
            };
            let all: f64 = Structure::ALL.into_iter().map(of).sum();
            let by_blocks: f64 = counted.by_structure.iter().map(|bytes| each(bytes.block_written_bytes)).sum();
            let name = format!("{}, name of {name_bytes} B", if variant == Variant::Whole { "transactions" } else { "journal" });
            let cells = Structure::ALL.map(|structure| format!("{:.1}", of(structure)));
            table.row([name.clone(), format!("{all:.1}")].into_iter().chain(cells).chain([format!("{by_blocks:.1}")]));
            let is_judged = variant == Variant::Whole && name_bytes == USUAL;
            let row = Row { target: if is_judged { RowTarget::BytesAtMost(BYTES_MAX) } else { RowTarget::Shown }, ..Row::value(name, all) };
            outcome.record(row.json("create"));
            if is_judged {
                rows.push(row);
            }
        }
    }
    outcome.table(format!("{count} files in one directory: mean of all, pages and tables that grow included"), table);
    outcome.table("Judged", report::table("create", &rows));
    outcome.note("counted until metadata is home; names are of one length, all different");
    Ok(outcome)
}

fn creations(setting: &Setting, variant: Variant, name_bytes: usize, count: u64) -> Result<CountersSnapshot> {
    let rig = Rig::new(setting, variant);
    let memory_bytes = (64 * MIB + count * 2048).next_multiple_of(2 * MIB);
    let (_scene, _, device) = rig.formatted(setting, memory_bytes, 64 * MIB)?;
    let fs = rig.mount(device)?;
    let directory = fs.create(InodeNumber::ROOT, b"directory", &scene::new_directory())?.inode;
    fs.reset_statistics();
    for number in 0..count {
        crate::machine::check()?;
        let name = format!("{number:0>name_bytes$}");
        fs.create(directory, name.as_bytes(), &scene::new_file())?;
    }
    fs.checkpoint()?;
    let counted = fs.drive().counters().snapshot();
    fs.unmount()?;
    Ok(counted)
}

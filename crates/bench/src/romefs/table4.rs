//! Table 4: the share of bytes on each path, from the drive's counters.
//!
//! The file is large and mostly holes, so requests rarely overlap and blocks have few logs: only the split of requests is counted, without
//! merges and write-back. The file is emptied before the memory zone is half full. Timing is off, since it does not affect bytes.

use serde_json::json;
use tandemfs_device::Structure;
use tandemfs_fs::{MountOptions, SetAttributes, Threshold};

use super::requests::{Alignment, REQUEST_BYTES_MAX, Requests, SIZES, Size, aligned_bytes};
use super::setting::{Setting, Volume, pattern};
use crate::failure::Result;
use crate::machine;
use crate::output::Outcome;
use crate::scene::{DeviceShape, MIB, Scene};
use crate::table::Table;

const THRESHOLDS: [u32; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const BLOCK_BYTES_MAX: u32 = 64 << 10;
/// Share of the byte path in percent: one row per threshold, one column per size.
const PAPER: [[f64; 6]; 5] = [
    [97.0, 24.8, 6.2, 1.6, 0.4, 0.8],
    [100.0, 97.0, 24.8, 6.2, 1.6, 3.1],
    [100.0, 100.0, 97.0, 24.8, 6.2, 12.4],
    [100.0, 100.0, 100.0, 97.0, 24.8, 50.1],
    [100.0, 100.0, 100.0, 100.0, 97.0, 100.0],
];
/// A larger difference is explained, in percentage points.
const POINTS: f64 = 1.5;
const FILE_BYTES: u64 = 16 << 30;

/// Counts for one cell of the table.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    byte_path: u64,
    block_path: u64,
    /// Bytes that the split sends over the byte path, and all requested bytes.
    split: u64,
    user: u64,
    merges: u64,
    write_backs: u64,
}

impl Cell {
    /// Percentage of the traffic to the device.
    fn share(&self) -> f64 {
        100.0 * self.byte_path as f64 / (self.byte_path + self.block_path).max(1) as f64
    }

    fn split_share(&self) -> f64 {
        100.0 * self.split as f64 / self.user.max(1) as f64
    }
}

/// Measures all cells.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let writes = setting.count(4000, 1000);
    let mut outcome = Outcome::new("table4", "shares of the byte and the block path");
    let mut table = Table::new(["threshold \\ size".to_owned()].into_iter().chain(SIZES.map(Size::name)));
    let (mut worst, mut off_split, mut merges, mut write_backs) = (0.0_f64, 0.0_f64, 0, 0);
    for (row, threshold) in THRESHOLDS.into_iter().enumerate() {
        let name = format!("{} KiB", threshold >> 10);
        let mut cells = vec![name.clone()];
        for (column, size) in SIZES.into_iter().enumerate() {
            let cell = measure(setting, threshold, size, writes)?;
            let paper = PAPER[row][column];
            let difference = cell.share() - paper;
            let marked = difference.abs() > POINTS;
            cells.push(format!("{:.1} / {paper:.1} ({difference:+.1}){}", cell.share(), if marked { " *" } else { "" }));
            if !marked {
                worst = worst.max(difference.abs());
            }
            off_split = off_split.max((cell.share() - cell.split_share()).abs());
            (merges, write_backs) = (merges + cell.merges, write_backs + cell.write_backs);
            outcome.record(json!({
                "threshold_bytes": threshold, "size": size.name(), "writes": writes,
                "byte_path_percent": cell.share(), "paper_percent": paper, "difference_points": difference,
                "split_percent": cell.split_share(), "byte_path_bytes": cell.byte_path, "block_path_bytes": cell.block_path,
                "user_bytes": cell.user, "merges": cell.merges, "block_write_backs": cell.write_backs,
            }));
        }
        table.row(cells);
    }
    outcome.table(
        format!("Byte path's share in percent, ours / the paper's (difference); the block path has the rest. {writes} writes a cell."),
        table,
    );
    outcome.note(format!("cells without a mark differ from the paper's by at most {worst:.1} points ({POINTS} are allowed)"));
    outcome.note(format!(
        "what the drive counted differs from the split of the same requests alone by at most {off_split:.2} points; in all cells together \
         {merges} logs were merged and {write_backs} blocks written back"
    ));
    outcome.note("*: further from the paper's. Its figure for (0, 1 MiB) and a threshold of 256 KiB is the threshold over the mean size, as if each request left a whole threshold of bytes to the byte path; one that is shorter leaves only itself");
    outcome.note("block size: the threshold, 64 KiB at most; file: 16 GiB of holes, emptied whenever half of the memory zone is taken");
    Ok(outcome)
}

fn measure(setting: &Setting, threshold: u32, size: Size, writes: usize) -> Result<Cell> {
    machine::check()?;
    let scene = Scene::new(&setting.common)?;
    // Before the file is emptied, each zone may use this much.
    let batch_bytes = setting.memory_bytes / 2;
    setting.require(setting.memory_bytes * 3)?;
    let shape = DeviceShape::plain(setting.memory_bytes, setting.memory_bytes * 2);
    let options = MountOptions { threshold: Threshold::Bytes(threshold), ..MountOptions::default() };
    let volume = Volume::empty(scene.device("device", shape)?, threshold.min(BLOCK_BYTES_MAX), &options)?;
    let mut requests = Requests::new(u64::from(threshold) + size.mean_bytes(), size, Alignment::Byte, FILE_BYTES);
    let data = pattern(REQUEST_BYTES_MAX);
    let mut cell = Cell::default();
    let empty = |size| volume.fs.set_attributes(volume.file, &SetAttributes { size: Some(size), ..SetAttributes::default() });
    empty(FILE_BYTES)?;
    let (mut since, mut emptying) = (0, (0, 0));
    volume.fs.reset_statistics();
    for number in 0..writes {
        let (offset, length) = requests.draw();
        volume.write(offset, &data[..length as usize])?;
        cell.user += length;
        cell.split += length - aligned_bytes(offset, length, threshold.into());
        since += length;
        // Slots are larger than their logs, and mapping pages larger than their entries.
        if number % 8 == 0 && (volume.memory_in_use() > batch_bytes || since > batch_bytes + 16 * MIB) {
            machine::check()?;
            let before = volume.fs.drive().counters().snapshot();
            empty(0)?;
            empty(FILE_BYTES)?;
            volume.fs.checkpoint()?; // Freed mapping pages come back.
            let after = volume.fs.drive().counters().snapshot();
            let ((logs, blocks), (logs_before, blocks_before)) = (stored(&after), stored(&before));
            emptying = (emptying.0 + logs - logs_before, emptying.1 + blocks - blocks_before);
            since = 0;
        }
    }
    // Writes made by emptying the file are excluded.
    let (byte_path, block_path) = stored(&volume.fs.drive().counters().snapshot());
    (cell.byte_path, cell.block_path) = (byte_path - emptying.0, block_path - emptying.1);
    let work = volume.fs.statistics().work;
    (cell.merges, cell.write_backs) = (work.merges, work.block_write_backs);
    volume.fs.unmount()?;
    Ok(cell)
}

/// Bytes of file data on each path.
fn stored(counters: &tandemfs_device::CountersSnapshot) -> (u64, u64) {
    let of = |structure: Structure| counters.by_structure[structure as usize];
    (of(Structure::DataLog).byte_written_bytes, of(Structure::Data).block_written_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_has_a_figure_for_each_cell() {
        for (row, threshold) in THRESHOLDS.into_iter().enumerate() {
            for (column, size) in SIZES.into_iter().enumerate() {
                // A request of at least the threshold leaves about the threshold's bytes; a smaller one leaves all its bytes.
                let model = (100.0 * f64::from(threshold) / size.mean_bytes() as f64).min(100.0);
                assert!((PAPER[row][column] - model).abs() <= 3.1, "{threshold}, {size:?}: {model}");
            }
        }
    }

    #[test]
    fn a_cell_knows_its_shares() {
        let cell = Cell { byte_path: 30, block_path: 10, split: 20, user: 40, ..Cell::default() };
        assert_eq!((cell.share(), cell.split_share()), (75.0, 50.0));
    }
}

//! What a region has: its segments, its units, and lines that wait for the watermark ([ME1] of `memory.rs`).

use std::collections::VecDeque;

use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::{LineAddress, UNIT_LINES};

use super::emptying::Emptying;

/// The state of one region.
#[derive(Default)]
pub(super) struct RegionState {
    /// Segments with their index in the table, in region order.
    pub(super) segments: Vec<(u64, Segment)>,
    /// Units in region order, with the lines of each that lie below the high-water mark.
    pub(super) units: Vec<(u64, u64)>,
    /// Where the next search starts.
    pub(super) hint: usize,
    /// Freed by transactions that the watermark has not passed ([ME1]).
    pub(super) pending: VecDeque<(u64, LineAddress, u64)>,
    /// Units that were empty at the last look, and at both last looks ([GU5] of `departure.rs`).
    pub(super) empty: Vec<u64>,
    pub(super) empty_twice: Vec<u64>,
    pub(super) emptying: Emptying,
}

impl RegionState {
    /// Lines above the high-water marks.
    pub(super) fn lines_above_mark(&self) -> u64 {
        self.segments.iter().map(|(_, segment)| segment.unit_count * UNIT_LINES - segment.high_water_lines).sum()
    }

    /// Derives the units from the segments.
    pub(super) fn rebuild_units(&mut self) {
        self.units.clear();
        for (_, segment) in &self.segments {
            for unit in 0..segment.unit_count {
                let below = segment.high_water_lines.saturating_sub(unit * UNIT_LINES).min(UNIT_LINES);
                self.units.push((segment.start_unit + unit, below));
            }
        }
    }
}

/// The index of a region.
pub(super) fn slot(region: Region) -> usize {
    usize::from(region.number()) - 1
}

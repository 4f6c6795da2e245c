//! Region growth: finds the mark to raise, or the unit to add, when a region has no free lines ([ME2] of `memory.rs`).

use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::{LineAddress, UNIT_LINES};

use super::Need;
use super::memory::MemoryAllocator;
use super::region_state::{RegionState, slot};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering::SeqCst;

/// Lines by which a high-water mark rises: 256 KiB.
pub(super) const HIGH_WATER_STEP: u64 = 4096;

/// A region's answer to a request for lines.
pub(crate) enum Step<'m> {
    /// The lines now belong to the caller.
    Taken(LineAddress),
    /// A mark must rise first; ask again after that.
    Rise(Rise<'m>),
    /// There are none. `waits`: freed lines wait for the watermark.
    Short { waits: bool },
}

/// A mark about to rise. The region is locked while this value lives; dropping it without [`Rise::done`] changes nothing.
pub(crate) struct Rise<'m> {
    memory: &'m MemoryAllocator,
    state: MutexGuard<'m, RegionState>,
    pub(crate) region: Region,
    /// The segment's place in the region; `None` for a new segment, which comes last.
    position: Option<usize>,
    /// The segment's line in the segment table.
    pub(crate) index: u64,
    /// The segment with its current mark.
    segment: Segment,
    /// The unit that is added to the region.
    taken: Option<u64>,
    /// Metadata is near the end of its units ([ME3] of `memory.rs`).
    pub(crate) wants_write_back: bool,
}

impl Rise<'_> {
    /// The lines that come below the mark: they must be zeroed before it rises.
    pub(crate) fn fresh_lines(&self) -> (LineAddress, u64) {
        (LineAddress::new(self.segment.start_unit * UNIT_LINES + self.segment.high_water_lines), self.step())
    }

    /// Lines by which the mark rises. A repair may have left it anywhere, so a whole step could pass the segment's end.
    fn step(&self) -> u64 {
        HIGH_WATER_STEP.min(self.segment.unit_count * UNIT_LINES - self.segment.high_water_lines)
    }

    /// The segment to commit.
    pub(crate) fn risen(&self) -> Segment {
        Segment { high_water_lines: self.segment.high_water_lines + self.step(), ..self.segment }
    }

    /// After a commit of which nobody knows whether it is durable ([TX6] of `journal/tx.rs`): the unit stays taken.
    pub(crate) fn stay_taken(mut self) {
        self.taken = None;
    }

    /// After the commit: gives the lines to the region.
    pub(crate) fn done(mut self) {
        let segment = (self.index, self.risen());
        let (memory, region, lines) = (self.memory, self.region, self.step());
        self.taken = None;
        match self.position {
            Some(position) => self.state.segments[position] = segment,
            None => self.state.segments.push(segment),
        }
        self.state.rebuild_units();
        if let Some(last) = self.state.units.iter().rposition(|(_, below)| *below > 0) {
            self.state.hint = last;
        }
        if region == Region::Inodes {
            *memory.inode_units.write() = self.state.units.clone();
        }
        memory.region_free[slot(region)].fetch_add(lines, SeqCst);
    }
}

impl Drop for Rise<'_> {
    fn drop(&mut self) {
        if let Some(unit) = self.taken {
            if self.position.is_none() {
                self.memory.units.lock().give(self.index); // it was not written
            }
            self.memory.return_unit(unit);
        }
    }
}

impl MemoryAllocator {
    /// Finds a mark that can rise, or a unit that can be added. `None` if there is no space.
    pub(super) fn plan_rise<'m>(&'m self, region: Region, state: MutexGuard<'m, RegionState>, need: Need) -> Option<Rise<'m>> {
        let rising = state.segments.iter().position(|(_, segment)| segment.high_water_lines < segment.unit_count * UNIT_LINES);
        if let Some(position) = rising {
            let (index, segment) = state.segments[position];
            return Some(Rise {
                memory: self,
                state,
                region,
                position: Some(position),
                index,
                segment,
                taken: None,
                wants_write_back: false,
            });
        }
        let unit = self.take_unit(region, need)?;
        let wants_write_back = self.is_metadata_short();
        let (position, index, segment) = match state.segments.last() {
            Some((index, last)) if last.start_unit + last.unit_count == unit => {
                (Some(state.segments.len() - 1), *index, Segment { unit_count: last.unit_count + 1, ..*last })
            }
            _ => {
                let region_unit = state.segments.iter().map(|(_, segment)| segment.unit_count).sum();
                let line = self.units.lock().take();
                let Some(line) = line else {
                    self.return_unit(unit);
                    return None;
                };
                (None, line, Segment { region, start_unit: unit, unit_count: 1, region_unit, high_water_lines: 0 })
            }
        };
        Some(Rise { memory: self, state, region, position, index, segment, taken: Some(unit), wants_write_back })
    }
}

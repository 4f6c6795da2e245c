//! How a region grows: which mark has to rise, or which unit joins the region, for lines that it has not ([ME2] of `memory.rs`).

use tandemfs_format::geometry::SEGMENT_TABLE_LINES;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::{LineAddress, UNIT_LINES};

use super::Need;
use super::memory::MemoryAllocator;
use super::regions::{RegionState, slot};
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering::SeqCst;

/// Lines by which a high-water mark rises: 256 KiB.
const HIGH_WATER_STEP: u64 = 4096;

/// What a region answers to who asks it for lines.
pub(crate) enum Step<'m> {
    /// They are the caller's.
    Taken(LineAddress),
    /// A mark has to rise before there are any; ask again after that.
    Rise(Rise<'m>),
    /// There are none; `waits`: freed lines wait for the watermark.
    Short { waits: bool },
}

/// A mark that is about to rise. The region is locked as long as this lives; dropped without [`Rise::done`] it leaves everything as it was.
pub(crate) struct Rise<'m> {
    memory: &'m MemoryAllocator,
    state: MutexGuard<'m, RegionState>,
    pub(crate) region: Region,
    /// The segment's place in the region; a new one's is behind all others.
    position: Option<usize>,
    /// The segment's line in the table.
    pub(crate) index: u64,
    /// The segment with the mark as it is.
    segment: Segment,
    /// The unit that joins the region.
    taken: Option<u64>,
    /// Metadata has come near the end of its units ([ME3] of `memory.rs`).
    pub(crate) wants_write_back: bool,
}

impl Rise<'_> {
    /// The lines that come below the mark: they are to be zeroed before it rises.
    pub(crate) fn fresh_lines(&self) -> (LineAddress, u64) {
        (LineAddress::new(self.segment.start_unit * UNIT_LINES + self.segment.high_water_lines), HIGH_WATER_STEP)
    }

    /// The segment as it is to be committed.
    pub(crate) fn risen(&self) -> Segment {
        Segment { high_water_lines: self.segment.high_water_lines + HIGH_WATER_STEP, ..self.segment }
    }

    /// It is committed: the region has the lines.
    pub(crate) fn done(mut self) {
        let segment = (self.index, self.risen());
        let (memory, region) = (self.memory, self.region);
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
        memory.region_free[slot(region)].fetch_add(HIGH_WATER_STEP, SeqCst);
    }
}

impl Drop for Rise<'_> {
    fn drop(&mut self) {
        if let Some(unit) = self.taken {
            self.memory.return_unit(unit); // its line in the table was not written; the line stays unused
        }
    }
}

impl MemoryAllocator {
    /// A mark that can rise, or a unit that can join. `None` where there is no room.
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
                let mut next = self.units.lock();
                if *next == SEGMENT_TABLE_LINES {
                    drop(next);
                    self.return_unit(unit);
                    return None;
                }
                *next += 1;
                (None, *next - 1, Segment { region, start_unit: unit, unit_count: 1, region_unit, high_water_lines: 0 })
            }
        };
        Some(Rise { memory: self, state, region, position, index, segment, taken: Some(unit), wants_write_back })
    }
}

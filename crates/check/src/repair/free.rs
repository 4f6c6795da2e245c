//! Finds lines, inode slots, slots of logs and sectors that nobody claims, for what a repair makes anew ([RP6]), and that no inode has that it saves ([HV3]).
//! Lines are taken below the high-water
//! marks; a region without free lines there gets more of its segment, by a mark that is raised once the new lines are zeroed.

use std::collections::BTreeSet;

use tandemfs_format::mapping::SlotClass;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::{EMPTY_LINE, Line, LineAddress, PAGE_LINES, Sector, UNIT_LINES};

use crate::checker::Inspection;
use crate::claims::Claims;
use crate::finding::Target;
use crate::mutant::{Mutant, on};

/// A mark to raise: the segment's line in the table, the segment with its new mark, the lines to zero.
#[derive(Debug, Clone)]
pub(crate) struct Raise {
    pub(crate) segment: u64,
    pub(crate) to: Segment,
    pub(crate) first: LineAddress,
    pub(crate) zeros: Vec<Line>,
}

/// Free space, as far as the plan has not taken it.
pub(crate) struct Free<'i> {
    inspection: &'i Inspection<'i>,
    segments: Vec<(u64, Segment)>,
    taken: Claims,
    taken_sectors: Claims,
    /// Where the search of each region goes on: region, line.
    searched: [u64; 6],
    /// The same for slots of each size: unit, line in it.
    searched_slots: [(u64, u64); SlotClass::ALL.len()],
    /// Units that get their first slots from the plan.
    slot_units: BTreeSet<u64>,
    next_sector: u64,
}

impl<'i> Free<'i> {
    pub(crate) fn new(inspection: &'i Inspection<'i>) -> Self {
        Self {
            inspection,
            segments: inspection.image.segments.all().copied().collect(),
            taken: Claims::default(),
            taken_sectors: Claims::default(),
            searched: [0; 6],
            slot_units: BTreeSet::new(),
            searched_slots: [(0, 0); SlotClass::ALL.len()],
            next_sector: 1,
        }
    }

    /// Takes nothing of what these claim, although nobody else does ([RP6]).
    pub(crate) fn spare(&mut self, lines: &Claims, sectors: &Claims) {
        if !on(Mutant::HalvesOverwritten) {
            self.taken.claim_all(lines);
            self.taken_sectors.claim_all(sectors);
        }
    }

    /// Whether nobody claims these lines and no plan has taken them.
    fn is_free(&self, first: u64, count: u64) -> bool {
        self.inspection.lines.is_free(first, count) && self.taken.is_free(first, count)
    }

    /// A run of `count` lines, aligned to that number, of a region. The second part has to be done first.
    fn lines(&mut self, region: Region, count: u64) -> Option<(LineAddress, Option<Raise>)> {
        let from = self.searched.get(region as usize).copied().unwrap_or(0);
        let mut found = None;
        for (_, segment) in self.segments.iter().filter(|(_, segment)| segment.region == region) {
            let start = segment.start_unit * UNIT_LINES;
            let end = start + segment.high_water_lines;
            let mut candidates = (start.max(from)..end).step_by(count as usize).filter(|line| line + count <= end);
            found = candidates.find(|line| self.is_free(*line, count));
            if found.is_some() {
                break;
            }
        }
        let (line, raise) = match found {
            Some(line) => (line, None),
            None => {
                let raise = self.raise(region)?;
                (raise.first.number(), Some(raise))
            }
        };
        self.taken.claim(line, count);
        if let Some(searched) = self.searched.get_mut(region as usize).filter(|_| raise.is_none()) {
            *searched = line; // segments are in the order of their units, so nothing before this is free
        }
        Some((LineAddress::new(line), raise))
    }

    fn raise(&mut self, region: Region) -> Option<Raise> {
        let room =
            |segment: &Segment| segment.high_water_lines.next_multiple_of(PAGE_LINES) + PAGE_LINES <= segment.unit_count * UNIT_LINES;
        let (index, segment) = self.segments.iter_mut().find(|(_, segment)| segment.region == region && room(segment))?;
        let old = segment.high_water_lines;
        let first = old.next_multiple_of(PAGE_LINES);
        segment.high_water_lines = first + PAGE_LINES;
        let start = segment.start_unit * UNIT_LINES;
        let zeros = vec![EMPTY_LINE; (first + PAGE_LINES - old) as usize];
        Some(Raise { segment: *index, to: *segment, first: LineAddress::new(start + old), zeros })
    }

    /// A page of a region.
    pub(crate) fn page(&mut self, region: Region) -> Option<(LineAddress, Option<Raise>)> {
        let (line, raise) = self.lines(region, PAGE_LINES)?;
        let aligned = LineAddress::new(line.number().next_multiple_of(PAGE_LINES));
        self.taken.claim(aligned.number(), PAGE_LINES);
        Some((aligned, raise))
    }

    /// Checksum lines, aligned to their number.
    pub(crate) fn checksum_lines(&mut self, count: u64) -> Option<(LineAddress, Option<Raise>)> {
        let (line, raise) = self.lines(Region::Leaves, count)?;
        let aligned = LineAddress::new(line.number().next_multiple_of(count));
        self.taken.claim(aligned.number(), count);
        Some((aligned, raise))
    }

    /// A slot for a log: in a unit that has some, or in one of which nothing is in use.
    pub(crate) fn slot(&mut self, class: SlotClass) -> Option<LineAddress> {
        let image = &self.inspection.image;
        let lines = class.lines();
        let index = SlotClass::ALL.iter().position(|other| *other == class).unwrap_or(0);
        let (mut unit, mut from) = self.searched_slots.get(index).copied().unwrap_or_default();
        let mut found = None;
        while unit < image.geometry.memory_units() && found.is_none() {
            let first = unit * UNIT_LINES;
            let is_empty = self.inspection.lines.group(unit).is_none() && self.taken.group(unit).is_none();
            let is_of_logs = match self.inspection.data_units.get(&unit) {
                Some(target) => *target == Target::Slot,
                None => is_empty || self.slot_units.contains(&unit),
            };
            let may_be = image.geometry.holds_lines(LineAddress::new(first), UNIT_LINES) && image.segments.of_unit(unit).is_none();
            if may_be && is_of_logs {
                found = (first + from..first + UNIT_LINES).step_by(lines as usize).find(|line| self.is_free(*line, lines));
            }
            if found.is_none() {
                (unit, from) = (unit + 1, 0);
            }
        }
        if let Some(searched) = self.searched_slots.get_mut(index) {
            *searched = (unit, found.map_or(0, |line| line % UNIT_LINES));
        }
        let line = found?;
        self.taken.claim(line, lines);
        self.slot_units.insert(unit);
        Some(LineAddress::new(line))
    }

    /// The number and first line of a free inode slot.
    pub(crate) fn inode(&mut self) -> Option<(u64, LineAddress, Option<Raise>)> {
        let (line, raise) = self.lines(Region::Inodes, 2)?;
        let line = LineAddress::new(line.number().next_multiple_of(2));
        self.taken.claim(line.number(), 2);
        let (_, segment) = self.segments.iter().find(|(_, segment)| {
            let start = segment.start_unit * UNIT_LINES;
            segment.region == Region::Inodes && (start..start + segment.unit_count * UNIT_LINES).contains(&line.number())
        })?;
        let number = (segment.region_unit * UNIT_LINES + line.number() - segment.start_unit * UNIT_LINES) / 2;
        Some((number, line, raise))
    }

    /// Sectors in a row.
    pub(crate) fn sectors(&mut self, count: u64) -> Option<Sector> {
        let end = self.inspection.image.geometry.block_sectors();
        let is_free = |first: &u64| self.inspection.sectors.is_free(*first, count) && self.taken_sectors.is_free(*first, count);
        let first = (self.next_sector..(end + 1).saturating_sub(count)).find(is_free)?;
        self.taken_sectors.claim(first, count);
        if count == 1 {
            self.next_sector = first + 1;
        }
        Some(Sector::new(first))
    }
}

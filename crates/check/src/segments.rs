//! The segment table: the owner of each unit. Every pointer into the memory zone is compared with it before it is followed ([CK2]).

use std::collections::BTreeMap;

use tandemfs_device::Structure;
use tandemfs_format::geometry::{Geometry, SEGMENT_TABLE_LINES};
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::{LineAddress, PAGE_LINES, UNIT_LINES};

use crate::finding::{Damage, Finding};
use crate::image::{Image, line_of};
use crate::rescue::missing_regions;

/// The segments of an image. If two name one unit, the first is used.
#[derive(Debug, Default, Clone)]
pub(crate) struct Segments {
    /// By first unit: line of the table, segment.
    by_unit: BTreeMap<u64, (u64, Segment)>,
    /// Those of the inode region, in order, without overlap.
    inodes: Vec<Segment>,
    /// Units that no segment names may belong to any region ([`Segments::open`]).
    open: Option<Geometry>,
}

impl Segments {
    /// Reads the table; its errors go to `found`.
    pub(crate) fn read(image: &Image<'_>, found: &mut Vec<Finding>) -> Self {
        let mut decoded = Vec::new();
        for first in (0..SEGMENT_TABLE_LINES).step_by(PAGE_LINES as usize) {
            let Ok(page) = image.page(Structure::AllocationMap, image.geometry.segment_line(first)) else {
                found.push(Finding::SegmentDamaged { segment: first, damage: Damage::Unreadable });
                continue;
            };
            for index in 0..PAGE_LINES.min(SEGMENT_TABLE_LINES - first) {
                let address = image.geometry.segment_line(first + index);
                match Segment::decode(&line_of(page.as_slice(), index as usize), image.pair, address, image.geometry.memory_units()) {
                    Ok(Some(segment)) => decoded.push((first + index, segment)),
                    Ok(None) => {}
                    Err(corrupt) => found.push(Finding::SegmentDamaged { segment: first + index, damage: corrupt.into() }),
                }
            }
        }
        let mut segments = Self::default();
        for (index, segment) in &decoded {
            segments.insert(*index, *segment, &image.geometry, found);
        }
        for region in Region::ALL {
            check_positions(&decoded, region, found);
        }
        segments.order_inodes();
        // Where a line of the table is damaged, that says it already.
        if found.is_empty() {
            found.extend(missing_regions(&segments).map(|region| Finding::RegionMissing { region: region.number() }));
        }
        segments
    }

    /// These segments, by the lines of the table that they are for; none names a unit that another names.
    pub(crate) fn of(all: impl Iterator<Item = (u64, Segment)>) -> Self {
        let mut segments = Self::default();
        segments.by_unit.extend(all.map(|(index, segment)| (segment.start_unit, (index, segment))));
        segments.order_inodes();
        segments
    }

    /// The same, where units that no segment names may belong to any region: only checksums tell what is in them.
    pub(crate) fn open(self, geometry: Geometry) -> Self {
        Self { open: Some(geometry), ..self }
    }

    fn order_inodes(&mut self) {
        let mut inodes: Vec<Segment> =
            self.by_unit.values().map(|(_, segment)| *segment).filter(|segment| segment.region == Region::Inodes).collect();
        inodes.sort_by_key(|segment| segment.region_unit);
        for segment in inodes {
            if self.inodes.last().is_none_or(|last| last.region_unit + last.unit_count <= segment.region_unit) {
                self.inodes.push(segment);
            }
        }
    }

    fn insert(&mut self, index: u64, segment: Segment, geometry: &Geometry, found: &mut Vec<Finding>) {
        if let Some(unit) = (segment.start_unit..segment.start_unit + segment.unit_count).find(|unit| geometry.is_fixed(*unit)) {
            found.push(Finding::SegmentInFixedPart { segment: index, unit });
            return;
        }
        let end = segment.start_unit + segment.unit_count;
        let overlap = self.by_unit.range(..end).next_back().filter(|(start, (_, other))| *start + other.unit_count > segment.start_unit);
        if let Some((start, (other, _))) = overlap {
            found.push(Finding::SegmentsOverlap { segment: index, other: *other, unit: segment.start_unit.max(*start) });
            return;
        }
        self.by_unit.insert(segment.start_unit, (index, segment));
    }

    /// All segments: line of the table, segment; in the order of their units.
    pub(crate) fn all(&self) -> impl Iterator<Item = &(u64, Segment)> {
        self.by_unit.values()
    }

    /// The segments of the inode region, in order.
    pub(crate) fn inodes(&self) -> &[Segment] {
        &self.inodes
    }

    /// The segment that has a unit.
    pub(crate) fn of_unit(&self, unit: u64) -> Option<&Segment> {
        let (_, segment) = self.by_unit.range(..=unit).next_back().map(|(_, found)| found)?;
        (unit < segment.start_unit + segment.unit_count).then_some(segment)
    }

    /// Whether lines lie in a region, below its high-water mark.
    pub(crate) fn holds(&self, region: Region, address: LineAddress, lines: u64) -> bool {
        match self.of_unit(address.unit()) {
            Some(segment) => {
                let offset = address.number() - segment.start_unit * UNIT_LINES;
                segment.region == region && offset + lines <= segment.high_water_lines
            }
            None => self.open.is_some_and(|geometry| geometry.holds_lines(address, lines)),
        }
    }

    /// The first line of an inode, if its number is below the high-water mark.
    pub(crate) fn inode_address(&self, number: u64) -> Option<LineAddress> {
        let line = number.checked_mul(2)?;
        let unit = line / UNIT_LINES;
        let segment = self.inodes.iter().rev().find(|segment| segment.region_unit <= unit)?;
        let offset = line - segment.region_unit * UNIT_LINES;
        (number > 0 && offset + 2 <= segment.high_water_lines).then(|| LineAddress::new(segment.start_unit * UNIT_LINES + offset))
    }
}

/// Checks that the segments of one region are consecutive from 0.
fn check_positions(decoded: &[(u64, Segment)], region: Region, found: &mut Vec<Finding>) {
    let mut own: Vec<&(u64, Segment)> = decoded.iter().filter(|(_, segment)| segment.region == region).collect();
    own.sort_by_key(|(_, segment)| segment.region_unit);
    let mut expected = 0;
    for (index, segment) in own {
        if segment.region_unit != expected {
            found.push(Finding::SegmentGap { segment: *index, found: segment.region_unit, expected });
        }
        expected = segment.region_unit + segment.unit_count;
    }
}

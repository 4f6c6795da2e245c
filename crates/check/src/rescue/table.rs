//! The segment table from what the units contain.
//!
//! [TB1] Segments that verify stay as they are. Others come from evidence (`evidence.rs`): inodes first, since everything else hangs from
//!       them, then what they point to.
//! [TB2] A mark covers every line that something points to, and no more than the page where that line ends: lines beyond were perhaps never
//!       zeroed. In regions 2 to 5 units that follow each other become one segment, as their free lines may hold anything.
//! [TB3] A unit that nothing speaks for stays with the data area. It becomes an empty unit of a region only where the region needs one: to
//!       have a unit at all, or so that numbers of inodes behind a lost unit stay what they are. Such a unit has the mark 0; the first of the
//!       inodes has a page, for a new root, which is zeroed before.
//! [TB4] The result depends only on the contents, so an interrupted rescue is repeated with the same result.

use std::collections::{BTreeMap, BTreeSet};

use tandemfs_format::geometry::SEGMENT_TABLE_LINES;
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::{EMPTY_LINE, Line, LineAddress, PAGE_LINES, UNIT_LINES};

use crate::checker::damage_of;
use crate::finding::Finding;
use crate::generations::Numbers;
use crate::image::Image;
use crate::mutant::{Mutant, on};
use crate::segments::Segments;

use super::evidence::{self, Evidence, InodeUnit};
use super::lost_units::lost_units;

/// Regions that have a unit from the start.
const FROM_THE_START: [Region; 4] = [Region::Inodes, Region::Dentries, Region::Mappings, Region::Leaves];

/// A rebuilt table.
pub(crate) struct Rebuilt {
    /// All segments, by their lines in the table, in order.
    pub(crate) segments: Vec<(u64, Segment)>,
    /// Those that the table did not have.
    pub(crate) added: Vec<Segment>,
    /// The first line of a page that must be zeroed before.
    pub(crate) zeroed: Option<LineAddress>,
    /// Units with evidence for several uses, and what they were taken for.
    contradictory: Vec<(u64, Option<Region>)>,
    /// Positions of the inode region whose unit was not found: their inodes are lost.
    lost_positions: Vec<u64>,
    /// Units of inodes for whose position there is a better one.
    surplus: Vec<u64>,
    /// Segments for which the table has no line.
    unplaced: Vec<Segment>,
}

impl Rebuilt {
    /// What was rebuilt and what was not, for people.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let name = |region: Option<Region>| region.map_or("data".to_owned(), |region| format!("{region:?}").to_lowercase());
        let units = |segment: &Segment| match segment.unit_count {
            1 => format!("unit {}", segment.start_unit),
            count => format!("units {} to {}", segment.start_unit, segment.start_unit + count - 1),
        };
        let mut said: Vec<String> = Vec::new();
        for segment in &self.added {
            let (units, region) = (units(segment), name(Some(segment.region)));
            said.push(match segment.high_water_lines {
                0 => format!("segment table: {units} given to the region {region}, empty"),
                lines => format!("segment table: {units} found to be of the region {region}, {lines} lines"),
            });
        }
        for (unit, region) in &self.contradictory {
            said.push(format!("segment table: pointers disagree about unit {unit}; taken for {}", name(*region)));
        }
        for unit in &self.surplus {
            said.push(format!("segment table: unit {unit} holds inodes of a position that another unit has; left out"));
        }
        for position in &self.lost_positions {
            let first = position * UNIT_LINES / 2;
            said.push(format!("segment table: inodes {first} to {} were not found", first + UNIT_LINES / 2 - 1));
        }
        for segment in &self.unplaced {
            said.push(format!("segment table: it has no line for {} of the region {}", units(segment), name(Some(segment.region))));
        }
        said
    }
}

/// Whether the table cannot be relied on.
pub(super) fn is_suspect(image: &Image<'_>, found: &[Finding]) -> bool {
    found.iter().any(is_of_table)
        || missing_regions(&image.segments).next().is_some()
        || !lost_units(image, damage_of(image).findings.iter()).is_empty()
}

/// Findings of the segment table.
pub(crate) fn is_of_table(finding: &Finding) -> bool {
    matches!(
        finding,
        Finding::SegmentDamaged { .. }
            | Finding::SegmentsOverlap { .. }
            | Finding::SegmentInFixedPart { .. }
            | Finding::SegmentGap { .. }
            | Finding::RegionMissing { .. }
            | Finding::UnitLost { .. }
    )
}

/// Regions without a unit that must have one.
pub(crate) fn missing_regions(segments: &Segments) -> impl Iterator<Item = Region> {
    FROM_THE_START.into_iter().filter(|region| !segments.all().any(|(_, segment)| segment.region == *region))
}

/// Rebuilds the table of an image; its own segments are changed on the way.
pub(crate) fn rebuild(image: &mut Image<'_>) -> Rebuilt {
    let kept: Vec<(u64, Segment)> = std::mem::take(&mut image.segments).all().copied().collect();
    let mut rebuilt = Rebuilt {
        segments: kept,
        added: Vec::new(),
        zeroed: None,
        contradictory: Vec::new(),
        lost_positions: Vec::new(),
        surplus: Vec::new(),
        unplaced: Vec::new(),
    };
    let mut new = find_inodes(image, &mut rebuilt);
    // With the units open, everything that the inodes lead to is reached and verified in one pass ([TB1]).
    let known = rebuilt.segments.iter().map(|(_, segment)| *segment).chain(new.values().copied());
    image.segments = Segments::of((0..).zip(known)).open(image.geometry);
    let evidence = evidence::collect(image);
    for (unit, found) in &evidence {
        if let Some(region) = found.region() {
            let high_water_lines = mark(found.lines);
            new.insert(*unit, Segment { region, start_unit: *unit, unit_count: 1, region_unit: 0, high_water_lines });
        }
    }
    rebuilt.contradictory =
        evidence.iter().filter(|(_, found)| found.is_contradictory()).map(|(unit, found)| (*unit, found.region())).collect();
    fill(image, &mut rebuilt, &mut new, &evidence);
    number(&mut rebuilt, new.into_values().collect());
    rebuilt
}

fn mark(lines: u64) -> u64 {
    lines.next_multiple_of(PAGE_LINES) - if on(Mutant::MarksTooLow) { PAGE_LINES } else { 0 }
}

/// Searches all units that no segment names for inodes.
fn find_inodes(image: &Image<'_>, rebuilt: &mut Rebuilt) -> BTreeMap<u64, Segment> {
    let numbers = Numbers::new(image.pair);
    let known = Segments::of(rebuilt.segments.iter().copied());
    let mut by_position: BTreeMap<u64, (u64, InodeUnit)> = BTreeMap::new();
    for unit in (0..image.geometry.memory_units()).filter(|unit| !image.geometry.is_fixed(*unit) && known.of_unit(*unit).is_none()) {
        let Some(found) = evidence::inodes_of(image, &numbers, unit) else { continue };
        let is_taken =
            known.inodes().iter().any(|segment| (segment.region_unit..segment.region_unit + segment.unit_count).contains(&found.position));
        if is_taken {
            rebuilt.surplus.push(unit);
            continue;
        }
        match by_position.get(&found.position) {
            Some((_, other)) if other.proofs >= found.proofs => rebuilt.surplus.push(unit),
            Some((other, _)) => {
                rebuilt.surplus.push(*other);
                by_position.insert(found.position, (unit, found));
            }
            None => {
                by_position.insert(found.position, (unit, found));
            }
        }
    }
    let segment = |(position, (unit, found)): (u64, (u64, InodeUnit))| {
        let high_water_lines = mark(found.lines);
        (unit, Segment { region: Region::Inodes, start_unit: unit, unit_count: 1, region_unit: position, high_water_lines })
    };
    by_position.into_iter().map(segment).collect()
}

/// Gives regions the empty units that they need ([TB3]).
fn fill(image: &Image<'_>, rebuilt: &mut Rebuilt, new: &mut BTreeMap<u64, Segment>, evidence: &BTreeMap<u64, Evidence>) {
    let known = Segments::of(rebuilt.segments.iter().copied());
    let surplus: BTreeSet<u64> = rebuilt.surplus.iter().copied().collect();
    let mut free: Vec<u64> = (0..image.geometry.memory_units())
        .filter(|unit| {
            !image.geometry.is_fixed(*unit)
                && known.of_unit(*unit).is_none()
                && !new.contains_key(unit)
                && !evidence.contains_key(unit)
                && !surplus.contains(unit)
        })
        .collect();
    let empty = |region, start_unit, region_unit| Segment { region, start_unit, unit_count: 1, region_unit, high_water_lines: 0 };
    let mut positions: BTreeSet<u64> =
        known.inodes().iter().flat_map(|segment| segment.region_unit..segment.region_unit + segment.unit_count).collect();
    positions.extend(new.values().filter(|segment| segment.region == Region::Inodes).map(|segment| segment.region_unit));
    let end = positions.last().map_or(1, |last| last + 1);
    for position in (0..end).filter(|position| !positions.contains(position)) {
        rebuilt.lost_positions.push(position);
        if let Some(unit) = free.pop() {
            let mut segment = empty(Region::Inodes, unit, position);
            if position == 0 {
                segment.high_water_lines = PAGE_LINES;
                rebuilt.zeroed = Some(image.geometry.unit(unit));
            }
            new.insert(unit, segment);
        }
    }
    for region in FROM_THE_START {
        let has = known.all().map(|(_, segment)| segment).chain(new.values()).any(|segment| segment.region == region);
        if !has && let Some(unit) = free.pop() {
            new.insert(unit, empty(region, unit, 0));
        }
    }
}

/// Gives the segments their positions and lines of the table.
fn number(rebuilt: &mut Rebuilt, new: Vec<Segment>) {
    let mut added = joined(new);
    for region in Region::ALL.into_iter().filter(|region| *region != Region::Inodes) {
        // The order in these regions means nothing, only that there is no gap.
        let mut own: Vec<&mut Segment> =
            rebuilt.segments.iter_mut().map(|(_, segment)| segment).filter(|segment| segment.region == region).collect();
        own.sort_by_key(|segment| segment.region_unit);
        let mut next = 0;
        for segment in own.into_iter().chain(added.iter_mut().filter(|segment| segment.region == region)) {
            segment.region_unit = next;
            next += segment.unit_count;
        }
    }
    let used: BTreeSet<u64> = rebuilt.segments.iter().map(|(index, _)| *index).collect();
    let mut lines = (0..SEGMENT_TABLE_LINES).filter(|index| !used.contains(index));
    for segment in added {
        match lines.next() {
            Some(index) => {
                rebuilt.segments.push((index, segment));
                rebuilt.added.push(segment);
            }
            None => rebuilt.unplaced.push(segment),
        }
    }
    rebuilt.segments.sort_by_key(|(index, _)| *index);
}

/// Units in a row as one segment ([TB2]). Those of inodes only if all lines of the first are used.
fn joined(new: Vec<Segment>) -> Vec<Segment> {
    let mut joined: Vec<Segment> = Vec::new();
    for segment in new {
        match joined.last_mut() {
            Some(last)
                if last.region == segment.region
                    && last.start_unit + last.unit_count == segment.start_unit
                    && segment.high_water_lines > 0
                    && (last.region != Region::Inodes
                        || last.region_unit + last.unit_count == segment.region_unit
                            && last.high_water_lines == last.unit_count * UNIT_LINES) =>
            {
                last.high_water_lines = last.unit_count * UNIT_LINES + segment.high_water_lines;
                last.unit_count += 1;
            }
            _ => joined.push(segment),
        }
    }
    joined
}

/// The lines of the table that have to change, with their new bytes.
pub(crate) fn changes(image: &Image<'_>, rebuilt: &Rebuilt) -> BTreeMap<u64, Line> {
    let by_index: BTreeMap<u64, Segment> = rebuilt.segments.iter().copied().collect();
    let mut changed = BTreeMap::new();
    for index in 0..SEGMENT_TABLE_LINES {
        let address = image.geometry.segment_line(index);
        let wanted = by_index.get(&index).map_or(EMPTY_LINE, |segment| segment.encode(image.pair, address));
        if image.line(tandemfs_device::Structure::AllocationMap, address).ok() != Some(wanted) {
            changed.insert(address.number(), wanted);
        }
    }
    changed
}

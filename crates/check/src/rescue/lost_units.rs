//! Units that no segment names although they are of a region: their line of the table reads as zeros, which is valid where a line was never
//! used.
//!
//! [LU1] They are looked for only where a pointer leads to a unit that no segment names, or a name to an inode of such a unit. The proof is
//!       that of a rescue ([EV1], [EV2]), so a rescue finds exactly these units again. A repair that did not know of them would give up all that
//!       they hold.

use std::collections::{BTreeMap, BTreeSet};

use tandemfs_format::segment::Region;
use tandemfs_format::{LineAddress, UNIT_LINES};

use crate::finding::Finding;
use crate::generations::Numbers;
use crate::image::Image;
use crate::mutant::{Mutant, on};

use super::evidence;

/// The units without a segment, and the regions that they are of.
pub(crate) fn lost_units<'f>(image: &Image<'_>, findings: impl Iterator<Item = &'f Finding>) -> BTreeMap<u64, Region> {
    let (mut units, mut positions) = (BTreeSet::new(), BTreeSet::new());
    if on(Mutant::LostUnitsUnseen) {
        return BTreeMap::new();
    }
    for finding in findings {
        match finding {
            Finding::PointerMisplaced { line, .. } | Finding::AttributesMisplaced { line, .. } => {
                units.insert(LineAddress::new(*line).unit());
            }
            Finding::EntryDangling { inode, .. } => {
                positions.extend(inode.checked_mul(2).map(|line| line / UNIT_LINES));
            }
            _ => {}
        }
    }
    let is_open =
        |unit: u64| unit < image.geometry.memory_units() && !image.geometry.is_fixed(unit) && image.segments.of_unit(unit).is_none();
    units.retain(|unit| is_open(*unit));
    let known = |position: u64| {
        let mut inodes = image.segments.inodes().iter();
        inodes.any(|segment| (segment.region_unit..segment.region_unit + segment.unit_count).contains(&position))
    };
    positions.retain(|position| *position < image.geometry.memory_units() && !known(*position));
    let mut lost = BTreeMap::new();
    if !units.is_empty() {
        let mut opened = image.copied();
        opened.segments = std::mem::take(&mut opened.segments).open(image.geometry);
        let proved = evidence::collect(&opened).into_iter().filter(|(unit, found)| units.contains(unit) && found.is_proved());
        lost.extend(proved.filter_map(|(unit, found)| Some((unit, found.region()?))));
    }
    if !positions.is_empty() {
        let numbers = Numbers::new(image.pair);
        let of_inodes = |unit: &u64| evidence::inodes_of(image, &numbers, *unit).is_some_and(|found| positions.contains(&found.position));
        let found = (0..image.geometry.memory_units()).filter(|unit| is_open(*unit)).filter(of_inodes);
        lost.extend(found.map(|unit| (unit, Region::Inodes)));
    }
    lost
}

//! Writes a rebuilt segment table (`crate::rescue`).
//!
//! [WT1] Lines that do not verify change last. As long as one is left, every other repair takes the tree for hidden and changes nothing, so a
//!       rescue that was interrupted between two records only has to be repeated.

use std::collections::BTreeMap;

use tandemfs_device::Structure;
use tandemfs_format::journal::TX_LINES_MAX;
use tandemfs_format::segment::Segment;
use tandemfs_format::{EMPTY_LINE, Line, LineAddress, PAGE_LINES};

use crate::checker::Inspection;
use crate::rescue;

use super::plan::{Group, Plan};

/// The changes of the table, empty if it is as its contents say; and what was found, for people.
pub(crate) fn plan<'i>(inspection: &'i Inspection<'i>) -> (Plan<'i>, Vec<String>) {
    let found = &inspection.image;
    let mut image = found.copied();
    let rebuilt = rescue::rebuild(&mut image);
    let changes = rescue::changes(&image, &rebuilt);
    let is_damaged = |line: u64| {
        let (address, units) = (LineAddress::new(line), found.geometry.memory_units());
        let decoded = found.line(Structure::AllocationMap, address).map(|line| Segment::decode(&line, found.pair, address, units).is_ok());
        !decoded.unwrap_or(false)
    };
    let mut plan = Plan::new(inspection);
    if let Some(first) = rebuilt.zeroed {
        plan.put_aside(first, [EMPTY_LINE; PAGE_LINES as usize]);
    }
    for group in groups(&changes, is_damaged, TX_LINES_MAX) {
        plan.add(group);
    }
    (plan, rebuilt.sentences())
}

/// Records of at most `lines_max` lines, the damaged ones last ([WT1]).
fn groups(changes: &BTreeMap<u64, Line>, is_damaged: impl Fn(u64) -> bool, lines_max: usize) -> Vec<Group> {
    let (last, first): (Vec<_>, Vec<_>) = changes.iter().partition(|(line, _)| is_damaged(**line));
    let chunks = [first, last].into_iter().flat_map(|part| part.chunks(lines_max).map(<[_]>::to_vec).collect::<Vec<_>>());
    chunks.map(|chunk| chunk.into_iter().map(|(line, bytes)| (*line, *bytes)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_long_as_a_line_is_left_to_write_a_damaged_one_is_left() {
        let changes: BTreeMap<u64, Line> = (0..20).map(|line| (line, EMPTY_LINE)).collect();
        let is_damaged = |line: u64| line % 7 == 3;
        let groups = groups(&changes, is_damaged, 6);
        assert_eq!(groups.iter().map(Group::len).sum::<usize>(), 20);
        for (index, group) in groups.iter().enumerate() {
            let is_last = index + 1 == groups.len();
            assert!(group.len() <= 6 && (is_last || !group.keys().any(|line| is_damaged(*line))), "{index}");
        }
    }
}

//! Merge-on-write: which data logs a small write adds, extends or replaces (RomeFS §3.5.1, Algorithm 2).
//!
//! [LG1] Append in place stays inside the log's slot and changes only bytes beyond the recorded length; the new checksum *extends* the
//!       recorded one (RULES R10).
//! [LG2] Everything else is written out of place: logs that the write overlaps are merged into new ones.
//! [LG3] A log that ends where the write starts and has a slot below 4 KiB is merged too, into a larger slot: small appends copy each byte
//!       at most three times and never exhaust the leaf's entries.
//! [LG4] If entries run out, logs adjacent to the write that fit one slot with it are merged too, before the block is rewritten. Large
//!       writes at odd offsets meet inside a page, and would otherwise rewrite the block at each meeting.
//!
//! [LG5] At last, pieces of 4 KiB from where the merged bytes start, not at multiples of 4 KiB: new bytes for bytes of logs then never need
//!       more entries than these logs have.
//!
//! Planning moves no bytes and allocates no space.

use smallvec::SmallVec;
use tandemfs_device::Source;
use tandemfs_format::mapping::{LOG_BYTES_MAX, LogEntry, SlotClass};

use crate::index::block::LogSlots;

/// New bytes for a block, from `offset` in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part<'d> {
    pub(crate) offset: u32,
    pub(crate) data: Source<'d>,
}

impl Part<'_> {
    pub(crate) fn end(&self) -> u32 {
        self.offset + self.data.len() as u32
    }

    /// The bytes from this offset in the block on.
    pub(crate) fn from(&self, offset: u32) -> Option<Self> {
        let skip = offset.saturating_sub(self.offset);
        (self.end() > offset).then(|| Self { offset: self.offset + skip, data: self.data.slice(skip as usize..self.data.len()) })
    }

    /// The bytes up to this offset in the block.
    pub(crate) fn up_to(&self, offset: u32) -> Option<Self> {
        let length = (offset.checked_sub(self.offset)? as usize).min(self.data.len());
        Some(Self { data: self.data.slice(0..length), ..*self })
    }
}

/// The change of one leaf slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Append: the log gets the bytes of a part in place ([LG1]).
    Append { log: LogEntry, part: usize },
    /// A new log of this range, from parts and from the logs in `merged`.
    Write { offset: u32, length: u32, merged: SmallVec<[LogEntry; 2]> },
}

/// The plan for one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogPlan {
    /// Logs that stay as they are, in their slots.
    pub(crate) kept: LogSlots,
    /// The steps, each with its leaf slot.
    pub(crate) steps: SmallVec<[(usize, Step); 4]>,
    /// Logs merged into newer ones, for the counters.
    pub(crate) merges: u64,
}

impl LogPlan {
    /// Slots of the leaf, up to the last one in use.
    pub(crate) fn slots(&self) -> usize {
        let kept = self.kept.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.steps.iter().map(|(slot, _)| slot + 1).fold(kept, usize::max)
    }
}

/// Offset and length of a new log, and the logs that are merged into it.
type NewLog = (u32, u32, SmallVec<[LogEntry; 2]>);

/// Plans logs for `parts` (sorted, not overlapping) over a block's logs. `None` if 16 entries are too few; then the whole block is
/// rewritten (RomeFS Algorithm 2, line 10).
pub(crate) fn plan(old: &LogSlots, parts: &[Part<'_>]) -> Option<LogPlan> {
    for (merges_neighbours, at_multiples) in [(false, true), (true, true), (false, false)] {
        let mut plan = LogPlan { kept: *old, steps: SmallVec::new(), merges: 0 };
        if fits(&mut plan, old, parts, merges_neighbours, at_multiples) {
            return Some(plan);
        }
    }
    None
}

/// Plans with or without merging all logs adjacent to a part ([LG4]), and with pieces at multiples of 4 KiB or not ([LG5]), beginning with a
/// plan that keeps all logs. False if the entries are too few.
fn fits(plan: &mut LogPlan, old: &LogSlots, parts: &[Part<'_>], merges_neighbours: bool, at_multiples: bool) -> bool {
    let mut writes: SmallVec<[NewLog; 4]> = SmallVec::new();
    for (index, part) in parts.iter().enumerate() {
        let found = Around::of(&plan.kept, part);
        if let (0, Some(slot)) = (found.overlapped, found.before)
            && let Some(log) = plan.kept[slot].filter(|log| log.length as usize + part.data.len() <= log.class.bytes())
        {
            plan.kept[slot] = None;
            plan.steps.push((slot, Step::Append { log, part: index }));
            continue;
        }
        let mut merging = found.overlapped;
        for slot in [found.before, found.behind].into_iter().flatten() {
            let Some(log) = plan.kept[slot] else { continue };
            let (start, end) = (part.offset.min(log.offset), part.end().max(log.end()));
            let grows = Some(slot) == found.before && log.class != SlotClass::Page && (end - start) as usize <= LOG_BYTES_MAX; // [LG3]
            if grows || merges_neighbours && share_a_page(&log, part) {
                merging |= 1 << slot;
            }
        }
        let (mut start, mut end) = (part.offset, part.end());
        let mut merged = SmallVec::new();
        for slot in bits(merging) {
            let Some(log) = plan.kept[slot].take() else { continue };
            (start, end) = (start.min(log.offset), end.max(log.end()));
            plan.merges += 1;
            if log.offset < part.offset || log.end() > part.end() {
                merged.push(log); // otherwise the write covers the log, and nothing of it is read
            }
        }
        if (end - start) as usize <= LOG_BYTES_MAX {
            writes.push((start, end - start, merged));
            continue;
        }
        let mut at = start;
        while at < end {
            // Pieces start at multiples of 4 KiB of the block, so that a later overwrite of a page overlaps one log.
            let before = if at_multiples { at % LOG_BYTES_MAX as u32 } else { 0 };
            let next = (at - before + LOG_BYTES_MAX as u32).min(end);
            let sources = merged.iter().filter(|log| log.offset < next && at < log.end()).copied().collect();
            writes.push((at, next - at, sources));
            at = next;
        }
    }
    let mut taken = mask(&plan.kept) | plan.steps.iter().fold(0, |taken, (slot, _)| taken | 1 << slot);
    let had = mask(old);
    for (offset, length, merged) in writes {
        // Prefers a slot that held a replaced log: then only one line of the leaf changes.
        let Some(slot) = bits(had & !taken).next().or_else(|| bits(!taken).next()) else { return false };
        taken |= 1 << slot;
        plan.steps.push((slot, Step::Write { offset, length, merged }));
    }
    true
}

/// One bit per slot that holds a log.
fn mask(logs: &LogSlots) -> u16 {
    (0..).zip(logs).fold(0, |mask, (slot, log)| mask | u16::from(log.is_some()) << slot)
}

/// The indexes of the set bits.
fn bits(mut mask: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(bit)
    })
}

/// The logs of a block around a part, found in one pass.
#[derive(Default)]
struct Around {
    /// A bit for each slot whose log overlaps the part.
    overlapped: u16,
    /// The slot of the log that ends at the part's start.
    before: Option<usize>,
    /// The slot of the log that starts at the part's end.
    behind: Option<usize>,
}

impl Around {
    fn of(logs: &LogSlots, part: &Part<'_>) -> Self {
        let mut found = Self::default();
        for (slot, log) in logs.iter().enumerate() {
            let Some(log) = log else { continue };
            if log.offset < part.end() && part.offset < log.end() {
                found.overlapped |= 1 << slot;
            } else if log.end() == part.offset {
                found.before = Some(slot);
            } else if log.offset == part.end() {
                found.behind = Some(slot);
            }
        }
        found
    }
}

/// Whether a log adjacent to a part lies in one page of the block together with a byte of the part.
fn share_a_page(log: &LogEntry, part: &Part<'_>) -> bool {
    const PAGE: u32 = LOG_BYTES_MAX as u32;
    let (first, last) = (log.offset / PAGE, (log.end() - 1) / PAGE);
    first == last && if log.end() == part.offset { part.offset / PAGE == first } else { (part.end() - 1) / PAGE == first }
}

#[cfg(test)]
mod tests {
    use tandemfs_format::LineAddress;

    use super::*;

    fn log(offset: u32, length: u32, class: SlotClass) -> LogEntry {
        LogEntry { address: LineAddress::new(u64::from(offset) + 70_000), crc: 0, offset, length, class }
    }

    fn slots(logs: &[LogEntry]) -> LogSlots {
        let mut slots = [None; 16];
        for (slot, log) in slots.iter_mut().zip(logs) {
            *slot = Some(*log);
        }
        slots
    }

    fn part(offset: u32, data: &[u8]) -> Part<'_> {
        Part { offset, data: data.into() }
    }

    #[test]
    fn an_append_that_fits_stays_in_its_slot() {
        let old = log(0, 100, SlotClass::Quarter);
        let plan = plan(&slots(&[old]), &[part(100, &[1; 156])]).expect("room");
        assert_eq!(plan.steps.as_slice(), &[(0, Step::Append { log: old, part: 0 })]);
    }

    /// Logs that lie at odd offsets, without a gap, with a write over the end of one and the start of the next: cut at multiples of 4 KiB, they would
    /// need 17 entries ([LG5]).
    #[test]
    fn what_replaces_bytes_of_logs_needs_no_more_entries() {
        let full: Vec<LogEntry> = (0..16).map(|index| log(1000 + index * 4096, 4096, SlotClass::Page)).collect();
        let new = [1; 2000];
        let plan = plan(&slots(&full), &[part(1000 + 4096 - 700, &new)]).expect("as many entries");
        let written: Vec<(usize, u32, u32)> = plan
            .steps
            .iter()
            .map(|(slot, step)| match step {
                Step::Write { offset, length, .. } => (*slot, *offset, *length),
                Step::Append { .. } => panic!("{step:?}"),
            })
            .collect();
        assert_eq!(written, [(0, 1000, 4096), (1, 1000 + 4096, 4096)]);
        assert_eq!(plan.merges, 2);
    }

    #[test]
    fn parts_are_cut_at_offsets() {
        let data = [1, 2, 3, 4];
        let part = part(10, &data);
        assert_eq!((part.up_to(10).map(|part| part.data.len()), part.from(14)), (Some(0), None));
        assert_eq!((part.up_to(9), part.up_to(12)), (None, Some(Part { offset: 10, data: (&data[..2]).into() })));
        assert_eq!((part.from(9), part.from(12)), (Some(part), Some(Part { offset: 12, data: (&data[2..]).into() })));
    }

    #[test]
    fn an_append_that_does_not_fit_moves_to_a_larger_slot() {
        let old = log(0, 200, SlotClass::Quarter);
        let plan = plan(&slots(&[old]), &[part(200, &[1; 100])]).expect("room");
        assert_eq!(plan.steps.as_slice(), &[(0, Step::Write { offset: 0, length: 300, merged: [old].into_iter().collect() })]);
    }

    #[test]
    fn overlapped_logs_are_merged_and_covered_ones_are_not_read() {
        let (left, inside, right) = (log(0, 100, SlotClass::Quarter), log(200, 50, SlotClass::Line), log(290, 64, SlotClass::Line));
        let plan = plan(&slots(&[left, inside, right]), &[part(90, &[1; 210])]).expect("room");
        let merged = [left, right].into_iter().collect();
        assert_eq!(plan.steps.as_slice(), &[(0, Step::Write { offset: 0, length: 354, merged })]);
        assert_eq!(plan.kept, [None; 16]);
        assert_eq!(plan.merges, 3);
    }

    #[test]
    fn a_long_part_is_cut_at_pages_of_the_block() {
        let data = [1; 9000];
        let plan = plan(&[None; 16], &[part(1000, &data)]).expect("room");
        let ranges: Vec<(u32, u32)> = plan
            .steps
            .iter()
            .map(|(_, step)| match step {
                Step::Write { offset, length, .. } => (*offset, *length),
                Step::Append { .. } => unreachable!("nothing to append to"),
            })
            .collect();
        assert_eq!(ranges, [(1000, 3096), (4096, 4096), (8192, 1808)]);
    }

    #[test]
    fn where_entries_run_out_neighbours_in_a_page_become_one_log() {
        // The head of one large write from byte 1000 on; the tail of another write up to byte 1000.
        let mut logs: Vec<LogEntry> = (1..16).map(|page| log(page * 4096, 4096, SlotClass::Page)).collect();
        logs.push(log(1000, 3096, SlotClass::Page));
        let merged = plan(&slots(&logs), &[part(0, &[1; 1000])]).expect("one page, one log");
        let write = Step::Write { offset: 0, length: 4096, merged: [logs[15]].into_iter().collect() };
        assert_eq!((merged.steps.as_slice(), merged.merges), ([(15, write)].as_slice(), 1));
        // The reverse case, over several pages.
        logs[15] = log(0, 1000, SlotClass::Kilobyte);
        let data = [1; 65_536 - 1000];
        let merged = plan(&slots(&logs), &[part(1000, &data)]).expect("sixteen pages");
        assert_eq!(merged.steps.len(), 16);
        assert!(merged.steps.iter().any(|(_, step)| matches!(step, Step::Write { offset: 0, length: 4096, .. })));
        // While entries are free, nothing is copied.
        let plan = plan(&slots(&logs[15..]), &[part(4096, &[1; 10])]).expect("room");
        assert_eq!(plan.merges, 0);
    }

    #[test]
    fn a_full_leaf_has_no_plan() {
        let logs: Vec<LogEntry> = (0..16).map(|i| log(i * 4096, 64, SlotClass::Line)).collect();
        assert!(plan(&slots(&logs), &[part(100, &[1; 10])]).is_none());
        assert!(plan(&slots(&logs), &[part(4096, &[1; 10])]).is_some(), "an overwrite takes the place of what it replaces");
    }
}

//! Whole pages that a kernel's page cache writes back: if the old copy is cached and few lines differ, only these lines are written (ByteFS
//! §4.6: a modified ratio R < 1/8; pages of mapped files come the same way).
//!
//! [MR1] A line is left out only if the cached copy shows that it already has its new content. Pages are correct ([FP1], [FP2] of
//!       `cache/file_pages.rs`), and none is used for bytes beyond the old end of the file: those are always written.
//! [MR2] Lines left out move no bytes and take no space; size, times and set-id bits are updated as for the whole write.
//! [MR3] Lines that cannot go in place become data logs, which must cost less than the page: at most [`RUNS_MAX`] runs per page, none of
//!       which touches an old log (merging it would cost what leaving lines out saves), and leaf entries must remain for others. A block
//!       that would go whole by blocks still does, unless less than the ratio of *the block* is to be written.
//! [MR4] If there is no entry or slot for the runs in the end, the write continues with its original bytes.

use smallvec::SmallVec;
use tandemfs_device::modified_lines;
use tandemfs_format::mapping::LEAF_ENTRIES_MAX;
use tandemfs_format::{LINE_BYTES, PAGE_BYTES};

use super::FileView;
use super::log_plan::Part;
use super::policy::WritePolicy;
use super::target::Target;
use crate::cache::file_pages::{PageBytes, Taken};
use crate::index::block::Base;
use crate::statistics::{add, count};
use crate::volume::Volume;

/// Maximum runs of modified lines per page that become data logs ([MR3]).
const RUNS_MAX: usize = 4;
/// Maximum runs of one write: a transaction is bounded (RULES R11).
const WRITE_RUNS_MAX: usize = 64;
const PAGE: u64 = PAGE_BYTES as u64;
const LINE: u64 = LINE_BYTES as u64;

/// A write that came from a page cache.
pub(super) struct Returned<'d, 'o> {
    /// Offset in the file, and the bytes.
    pub(super) offset: u64,
    pub(super) data: &'d [u8],
    /// The available cached copies.
    pub(super) old: &'o Taken,
    pub(super) policy: &'o WritePolicy,
}

/// Reduces the parts of targets to their changed lines. Drops targets without changed lines.
pub(super) fn leave_out_unmodified<'d>(
    volume: &Volume,
    view: &FileView,
    write: &Returned<'d, '_>,
    targets: &mut SmallVec<[Target<'d>; 2]>,
) {
    let block_bytes = u64::from(volume.geometry.block_bytes());
    let mut runs_left = WRITE_RUNS_MAX;
    let end = write.offset + write.data.len() as u64;
    targets.retain(|target| {
        // Zeros for a stale tail are a separate part beside the data ([MR1]).
        let [part] = target.parts.as_slice() else { return true };
        let block_start = target.block * block_bytes;
        let (from, to) = (block_start + u64::from(part.offset), block_start + u64::from(part.end()));
        if from < write.offset || to > end {
            return true; // the stale tail alone
        }
        let part = *part;
        let mut pages = Pages {
            write,
            view,
            target,
            runs_left,
            parts: SmallVec::new(),
            whole_from: None,
            left_out: 0,
            entries_left: 0,
            in_place: false,
        };
        pages.entries_left = LEAF_ENTRIES_MAX - pages.target.old.logs().count();
        pages.in_place =
            write.policy.stores_in_place() && matches!(pages.target.old.base, Base::Written(_)) && !pages.target.old.base.is_in_memory();
        let mut at = from;
        while at < to {
            let next = ((at / PAGE + 1) * PAGE).min(to);
            pages.page(volume, block_start, at, next);
            at = next;
        }
        pages.close_whole(block_start, to);
        let (parts, left_out, left) = (pages.parts, pages.left_out, pages.runs_left);
        let written: u64 = parts.iter().map(|part| part.data.len() as u64).sum();
        if left_out == 0 || write.policy.keeps_whole(&(write.offset..end), block_start, written) {
            return true;
        }
        runs_left = left;
        add(&volume.live.work.pages_by_lines, left_out);
        target.as_it_came = vec![part];
        target.parts = parts;
        !target.parts.is_empty()
    });
}

/// The pages of one block.
struct Pages<'w, 'd> {
    write: &'w Returned<'d, 'w>,
    view: &'w FileView,
    target: &'w Target<'d>,
    runs_left: usize,
    entries_left: usize,
    /// Lines of the block can be stored in place.
    in_place: bool,
    parts: SmallVec<[Part<'d>; 2]>,
    /// File offset where the pending bytes, which are written unreduced, start.
    whole_from: Option<u64>,
    /// Number of pages with lines left out.
    left_out: u64,
}

impl<'d> Pages<'_, 'd> {
    /// Handles one page of the write, or the part of it that the write covers.
    fn page(&mut self, volume: &Volume, block_start: u64, at: u64, to: u64) {
        let runs = self.runs(volume, block_start, at, to);
        let Some(runs) = runs else {
            self.whole_from.get_or_insert(at);
            return;
        };
        self.close_whole(block_start, at);
        self.left_out += 1;
        self.runs_left -= runs.len();
        self.entries_left -= if self.in_place { 0 } else { runs.len() };
        for (first, length) in runs {
            let (from, to) = (at + first * LINE, (at + (first + length) * LINE).min(to));
            self.push(block_start, from, to);
        }
    }

    /// Makes the pending unreduced bytes up to `to` a part.
    fn close_whole(&mut self, block_start: u64, to: u64) {
        if let Some(from) = self.whole_from.take() {
            self.push(block_start, from, to);
        }
    }

    fn push(&mut self, block_start: u64, from: u64, to: u64) {
        let data = &self.write.data[(from - self.write.offset) as usize..(to - self.write.offset) as usize];
        self.parts.push(Part { offset: (from - block_start) as u32, data: data.into() });
    }

    /// First line and length of each changed run; `None` if the page is written unreduced.
    fn runs(&self, volume: &Volume, block_start: u64, at: u64, to: u64) -> Option<SmallVec<[(u64, u64); 8]>> {
        let old = self.write.old.page(at / PAGE).filter(|_| at.is_multiple_of(PAGE) && at < self.view.size)?;
        let bytes = &self.write.data[(at - self.write.offset) as usize..(to - self.write.offset) as usize];
        count(&volume.live.work.pages_compared);
        let mut padded: PageBytes;
        let new = match bytes.try_into() {
            Ok(whole) => whole,
            Err(_) => {
                // The end of the file or of the write: bytes that are not written have not changed.
                padded = *old;
                padded[..bytes.len()].copy_from_slice(bytes);
                &padded
            }
        };
        let mut mask = modified_lines(old, new);
        if to > self.view.size {
            // [MR1]
            let (first, last) = ((self.view.size - at) / LINE, (to - 1 - at) / LINE);
            mask |= (u64::MAX << first) & (u64::MAX >> (63 - last));
        }
        if !self.write.policy.takes_lines(mask.count_ones()) {
            return None;
        }
        let runs = runs_of(mask, if self.in_place { 0 } else { 1 });
        let meets_a_log = |(first, length): &(u64, u64)| {
            let from = (at + first * LINE - block_start) as u32;
            let to = ((at + (first + length) * LINE).min(to) - block_start) as u32;
            self.target.old.logs().any(|log| log.offset < to && from < log.end())
        };
        let runs_max = if self.in_place { self.runs_left } else { self.runs_left.min(RUNS_MAX).min(self.entries_left) };
        (runs.len() <= runs_max && !runs.iter().any(meets_a_log)).then_some(runs)
    }
}

/// First bit and length of each run of ones; runs separated by at most `gap` zeros are joined.
fn runs_of(mut mask: u64, gap: u32) -> SmallVec<[(u64, u64); 8]> {
    let mut runs: SmallVec<[(u64, u64); 8]> = SmallVec::new();
    while mask != 0 {
        let first = u64::from(mask.trailing_zeros());
        let length = u64::from((mask >> first).trailing_ones());
        mask &= if first + length == 64 { 0 } else { u64::MAX << (first + length) };
        match runs.last_mut() {
            Some((start, bits)) if first - (*start + *bits) <= u64::from(gap) => *bits = first + length - *start,
            _ => runs.push((first, length)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_and_joined_over_gaps() {
        assert_eq!(runs_of(0, 1).as_slice(), []);
        assert_eq!(runs_of(0b1011_0001, 0).as_slice(), [(0, 1), (4, 2), (7, 1)]);
        assert_eq!(runs_of(0b1011_0001, 1).as_slice(), [(0, 1), (4, 4)]);
        assert_eq!(runs_of(u64::MAX, 0).as_slice(), [(0, 64)]);
        assert_eq!(runs_of(1 << 63 | 1, 0).as_slice(), [(0, 1), (63, 1)]);
    }
}

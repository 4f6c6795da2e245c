//! Places in a row for whole blocks of a file that get theirs one after the other.
//!
//! [AR1] The blocks from k * 2 MiB to (k + 1) * 2 MiB of a file get an aligned extent if all of them are asked for by one call. Everything
//!       else comes from holes as long as one has a block, also the end of a large file: so a small file takes no aligned extent. Files with
//!       the hint *aligned* are another matter ([AH2] of `hint.rs`), and pieces that small writes complete move afterwards ([AS1] of
//!       `grown.rs`).
//! [AR2] Blocks follow the one before them in the same 2 MiB of the file if the place there is free. Otherwise they begin in the first hole
//!       with half of what is asked for, or else with a quarter, and so on, and take as much of it as they need: to ask for all of it first
//!       would leave short holes behind for good. Who gets none takes a block alone.
//! [AR3] Where the mount keeps large extents, that many bytes at a multiple of them get one if all of them are asked for by one call.
//! [AR4] Only what a transaction takes over has an owner. The rest goes back when the call ends, or goes on elsewhere in the file.

use std::ops::Range;

use tandemfs_format::{DataAddress, PAGE_LINES, UNIT_BYTES, UNIT_LINES};

use crate::space::{self, Zone};
use crate::volume::Volume;

pub(super) struct Rows<'v> {
    volume: &'v Volume,
    /// Free places in a row, and the blocks of the file that they are for.
    left: Option<(DataAddress, Range<u64>)>,
}

impl<'v> Rows<'v> {
    pub(super) fn new(volume: &'v Volume) -> Self {
        Self { volume, left: None }
    }

    /// Begins with places in a row that were taken for these blocks.
    pub(super) fn of(volume: &'v Volume, at: DataAddress, blocks: Range<u64>) -> Self {
        Self { volume, left: Some((at, blocks)) }
    }

    /// The zone of the places that are left; none if there are none.
    pub(super) fn zone(&self) -> Option<Zone> {
        self.left.as_ref().map(|(at, _)| Zone::of(*at))
    }

    /// The place of the first of these whole blocks in its home; the others are asked for next. The caller's transaction takes it over.
    /// `before` finds where the block before it begins.
    pub(super) fn next(&mut self, zone: Zone, blocks: Range<u64>, before: impl FnOnce() -> Option<DataAddress>) -> Option<DataAddress> {
        let is_there = |(at, left): &(DataAddress, Range<u64>)| left.contains(&blocks.start) && Zone::of(*at) == zone;
        if !self.left.as_ref().is_some_and(is_there) {
            self.give_back();
            self.left = self.take(zone, blocks.clone(), before);
        }
        let each = self.volume.geometry.block_sectors_each();
        let (at, left) = self.left.take()?;
        let skipped = blocks.start - left.start;
        self.give_back_row(at, skipped * each);
        let place = at.nth(skipped * each);
        let rest = blocks.start + 1..left.end;
        if !rest.is_empty() {
            self.left = Some((place.nth(each), rest));
        }
        Some(place)
    }

    /// Takes a row that begins with the first of these blocks.
    fn take(&self, zone: Zone, blocks: Range<u64>, before: impl FnOnce() -> Option<DataAddress>) -> Option<(DataAddress, Range<u64>)> {
        let each = self.volume.geometry.block_sectors_each();
        let unit = UNIT_BYTES / u64::from(self.volume.geometry.block_bytes());
        let (first, is_first) = (blocks.start, blocks.start.is_multiple_of(unit));
        let count = blocks.end.min((first / unit + 1) * unit).saturating_sub(first);
        if let Some(large) = self.volume.large_extent_pages().filter(|_| zone == Zone::Memory).map(|pages| pages / each)
            && first.is_multiple_of(large)
            && blocks.end - first >= large
            && let Some(at) = self.volume.take_large_extent()
        {
            return Some((at, first..first + large)); // [AR3]
        }
        if count == unit
            && let Some((at, _)) = self.volume.take_row(zone, unit * each..=unit * each, false)
        {
            return Some((at, first..first + unit)); // [AR1]
        }
        if count < 2 {
            return None;
        }
        if !is_first
            && let Some(at) = before().map(|at| at.nth(each)).filter(|at| Zone::of(*at) == zone)
            && self.volume.take_row_at(at, count * each)
        {
            return Some((at, first..first + count)); // [AR2]
        }
        let mut least = count.div_ceil(2);
        loop {
            if let Some((at, taken)) = self.volume.take_row(zone, least * each..=count * each, false) {
                return Some((at, first..first + taken / each));
            }
            if least == 1 {
                return None;
            }
            least /= 2;
        }
    }

    /// Gives back what is left ([AR4]).
    fn give_back(&mut self) {
        if let Some((at, blocks)) = self.left.take() {
            self.give_back_row(at, (blocks.end - blocks.start) * self.volume.geometry.block_sectors_each());
        }
    }

    /// Gives back so many sectors or pages: those of a large extent unit by unit, the first of which it may begin in.
    fn give_back_row(&self, mut at: DataAddress, mut count: u64) {
        while count > 0 {
            let here = match at {
                DataAddress::Page(page) => count.min((UNIT_LINES - page.number() % UNIT_LINES) / PAGE_LINES),
                DataAddress::Sector(_) => count,
            };
            self.volume.give_back(space::data(at, here));
            (at, count) = (at.nth(here), count - here);
        }
    }
}

impl Drop for Rows<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

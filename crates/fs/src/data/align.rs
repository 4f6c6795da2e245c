//! Rewrites files into aligned extents, beside readers and writers (WineFS §3.6, *reactive rewriting*). The mover does it (`moves.rs`).
//!
//! [AE1] What is rewritten are pieces: each 2 MiB at a multiple of 2 MiB of the file that lies whole inside the file, has space, and is not one
//!       aligned extent of the file's home. A piece is one transaction (RULES R11, as [MP1] of `move_pieces.rs`): all of it lies in the
//!       new extent or nothing does. What has no data there becomes unwritten space of it.
//! [AE2] The new extent is an aligned one that is free, in the file's home; without one the piece stays and its file waits ([MV2] of
//!       `moves.rs`). Nothing is overwritten, so R8 and [RW7] hold as for every rewrite: each byte is verified before it gets another place.
//! [AE3] The piece is copied without a lock. Its range is watched from before the lookup, and then locked: if anybody held some of it
//!       exclusively meanwhile, what was read may be of two times, and what it was read from may belong to others. Then nothing of it is used,
//!       whatever it was, and the copy is made again, at last with the range locked from the lookup on: so a piece that is always
//!       written to is rewritten too.
//! [AE4] A piece with damaged or lost blocks stays as it is, and so does one with a lease.
//!
//! Mappings on a device of large steps also rewrite the piece with the file's end, and give aligned extents to holes (`mapped_steps.rs` [MG1]).

use std::ops::{ControlFlow, Range};

use smallvec::SmallVec;
use tandemfs_format::{DataAddress, InodeNumber, SECTOR_BYTES, UNIT_BYTES, UNIT_LINES};

use super::FileView;
use super::home::is_elsewhere;
use super::move_pieces::piece_blocks;
use super::rewrite::Job;
use super::rows::Rows;
use super::target::{Action, Target};
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, Block};
use crate::index::tree::{self, Found};
use crate::inodes::InCoreInode;
use crate::inodes::range_lock::RangeGuard;
use crate::space;
use crate::statistics::{add, count};
use crate::types::Home;
use crate::volume::{Tx, Volume};

/// Copies without a lock before one with it ([AE3]).
const FREE_TRIES: u32 = 3;
/// Pieces that one look passes.
const LOOK_PIECES: u64 = 64;

/// Why a piece is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Its file has the hint.
    Hint,
    /// Its file grew over it. Also one that is aligned is written anew if write-back would take it apart.
    Complete,
    /// It is to be mapped as a whole, also where the file has nothing, and behind its end.
    Mapping,
}

/// What became of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aligned {
    /// It is an aligned extent now, or always was, or has nothing to align.
    Done,
    /// It has a lease.
    InUse,
    /// No aligned extent is free.
    NoExtent,
}

/// What a look at some pieces of a file found.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// The first block of the first piece that is not aligned.
    pub(super) piece: Option<u64>,
    /// The block to go on with; `None` at the end of the last whole piece.
    pub(super) next: Option<u64>,
}

/// A piece that is not aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotAligned {
    /// Its first block.
    pub(super) first: u64,
    /// How many of its blocks are no holes.
    pub(super) blocks: u64,
    /// How many rows of sectors or pages these lie in.
    pub(super) rows: u64,
}

/// The blocks of a piece as far as they were looked at.
#[derive(Debug, Default)]
struct Piece {
    blocks: u64,
    /// How many rows they lie in.
    rows: u64,
    /// Blocks that follow one another from the start of an aligned extent, and the place of the next one.
    in_place: u64,
    next: Option<DataAddress>,
    /// There are data logs over written blocks: their write-back takes these elsewhere.
    has_logs: bool,
}

impl Piece {
    fn add(&mut self, volume: &Volume, index: u64, base: &Base) {
        let at = base.whole_run(&volume.geometry);
        let is_next = at.is_some() && at == self.next;
        self.blocks += 1;
        self.rows += u64::from(!is_next);
        if index == self.in_place && (is_next || index == 0 && at.is_some_and(is_aligned)) {
            self.in_place += 1;
        }
        self.next = at.map(|at| at.nth(volume.geometry.block_sectors_each()));
    }

    /// What it is if it is not aligned.
    fn not_aligned(&self, volume: &Volume, number: u64, why: Why) -> Option<NotAligned> {
        let unit = piece_blocks(volume);
        let found = NotAligned { first: number * unit, blocks: self.blocks, rows: self.rows };
        let is_wanted = match why {
            Why::Hint => self.blocks > 0 && self.in_place < unit,
            Why::Complete => self.blocks > 0 && (self.in_place < unit || self.has_logs),
            Why::Mapping => self.in_place < unit,
        };
        is_wanted.then_some(found)
    }
}

/// Whether an aligned extent can begin here.
fn is_aligned(at: DataAddress) -> bool {
    match at {
        DataAddress::Page(page) => page.number().is_multiple_of(UNIT_LINES),
        DataAddress::Sector(sector) => sector.number().is_multiple_of(UNIT_BYTES / SECTOR_BYTES as u64),
    }
}

impl FileSystem {
    /// Bytes of a file with the hint *aligned* that lie in no aligned extent yet, as far as they are to ([AE1]).
    ///
    /// # Errors
    /// `Stale`; damage of the mapping.
    pub fn bytes_not_aligned(&self, number: InodeNumber) -> Result<u64> {
        let file = self.inodes.get(&self.volume, number)?;
        let (mut from, mut bytes) = (Some(0), 0);
        while let Some(block) = from {
            let look = self.next_not_aligned(&file, block)?;
            bytes += look.piece.map_or(0, |_| UNIT_BYTES);
            from = look.next;
        }
        Ok(bytes)
    }

    /// Looks at the pieces of a file with the hint, from that of `block` on, up to the first that is not aligned ([AE1]).
    pub(super) fn next_not_aligned(&self, file: &InCoreInode, block: u64) -> Result<Look> {
        let view = self.view(file)?;
        let unit = piece_blocks(&self.volume);
        let end = view.size / UNIT_BYTES * unit;
        let from = block / unit * unit;
        if !view.is_aligned || from >= end {
            return Ok(Look::default());
        }
        let to = end.min(from + LOOK_PIECES * unit);
        match self.first_not_aligned(file, &view, from..to, Why::Hint)? {
            Some(NotAligned { first, .. }) => Ok(Look { piece: Some(first), next: (first + unit < end).then_some(first + unit) }),
            None => Ok(Look { piece: None, next: (to < end).then_some(to) }),
        }
    }

    /// The first of these whole pieces that is not aligned. Lost blocks cannot be ([AE4]).
    pub(super) fn first_not_aligned(
        &self,
        file: &InCoreInode,
        view: &FileView,
        blocks: Range<u64>,
        why: Why,
    ) -> Result<Option<NotAligned>> {
        let (volume, unit) = (&self.volume, piece_blocks(&self.volume));
        let (mut current, mut piece, mut found) = (blocks.start / unit, Piece::default(), None);
        let home = {
            let state = file.state.read()?;
            if !state.has_blocks() {
                return Ok(piece.not_aligned(volume, current, why));
            }
            Home::of(&state.inode)
        };
        let mut visit = |found_there: Found| {
            let Found::Block(number, record) = found_there else { return Ok(ControlFlow::Continue(())) };
            if number / unit != current {
                found = std::mem::take(&mut piece).not_aligned(volume, current, why);
                if found.is_some() {
                    return Ok(ControlFlow::Break(()));
                }
                current = number / unit;
            }
            let base = Base::of_record(volume, view.owner, &record)?;
            piece.has_logs |= matches!(base, Base::Written(_)) && Block::record_has_movable_logs(&record);
            piece.add(volume, number % unit, if is_elsewhere(home, &base) { &Base::Hole } else { &base });
            Ok(ControlFlow::Continue(()))
        };
        let ended = self.mapped(file, view, |root| tree::walk_range(volume, view.owner, root, blocks, &mut visit))?;
        Ok(if ended.is_continue() { piece.not_aligned(volume, current, why) } else { found })
    }

    /// Rewrites the piece that begins with a block into an aligned extent, unless it is one.
    ///
    /// # Errors
    /// `DamagedData`, `LostData`, `Damaged`: the piece stays ([AE4]). `NoSpace` for metadata. Errors of devices; `Stale`.
    pub(super) fn align_piece(&self, file: &InCoreInode, first: u64, why: Why) -> Result<Aligned> {
        let last = first + piece_blocks(&self.volume) - 1;
        for _ in 0..FREE_TRIES {
            let watch = file.ranges.watch(first, last);
            if let Some(done) = self.try_align(file, (first..last + 1, why), None, watch, RangeGuard::exclusive_if_unchanged)? {
                return Ok(done);
            }
            count(&self.volume.live.work.aligned_again);
        }
        let Some(range) = file.ranges.exclusive_unless_leased(first, last) else { return Ok(Aligned::InUse) };
        self.try_align(file, (first..last + 1, why), None, range, Some).map(|done| done.unwrap_or(Aligned::InUse))
    }

    /// Copies a piece, then commits the copy if `lock` makes a lock of the guard, so nothing changed meanwhile. `None` if something did.
    /// With a `given` aligned extent it moves there, wherever it lies.
    pub(super) fn try_align<'v, G>(
        &'v self,
        file: &InCoreInode,
        (blocks, why): (Range<u64>, Why),
        given: Option<Rows<'v>>,
        guard: G,
        lock: impl FnOnce(G) -> Option<G>,
    ) -> Result<Option<Aligned>> {
        let volume = &self.volume;
        let view = self.view(file)?;
        let is_inside = why == Why::Mapping || blocks.end * u64::from(volume.geometry.block_bytes()) <= view.size;
        let rows = match given {
            Some(rows) => rows,
            None => {
                if !is_inside || self.first_not_aligned(file, &view, blocks.clone(), why)?.is_none() {
                    return Ok(Some(Aligned::Done));
                }
                let count = (blocks.end - blocks.start) * volume.geometry.block_sectors_each();
                let old = self.block_of(file, &view, blocks.start)?;
                let first = old.base.run().and_then(|run| run.at.page());
                let taken = volume.memory.numa.near(first, || volume.take_row(view.zone, count..=count, false));
                let Some((at, _)) = taken else { return Ok(Some(Aligned::NoExtent)) };
                Rows::of(volume, at, blocks.clone())
            }
        };
        let mut tx = Tx::new(volume);
        let mut mismatches = 0;
        let copied = self.plan_piece(&mut tx, file, &view, &blocks, rows).and_then(|(jobs, others, moved_blocks)| {
            let copied = self.store_unlocked(&mut tx, jobs, &mut mismatches)?;
            Ok((copied, others, moved_blocks))
        });
        let Some(_range) = lock(guard) else {
            volume.errors.data_not_damaged(mismatches); // [AE3]
            return Ok(None);
        };
        let (copied, others, moved_blocks) = copied?;
        if self.view(file)?.owner != view.owner {
            return Err(Error::Stale(file.number));
        }
        self.commit_copied(tx, file, copied, others)?;
        add(&volume.live.work.aligned_bytes, UNIT_BYTES);
        add(&volume.live.work.home_moved_bytes, moved_blocks * u64::from(volume.geometry.block_bytes()));
        Ok(Some(Aligned::Done))
    }

    /// The blocks of a piece with their places in the new extent: those whose bytes are copied, and those that are unwritten there. And how
    /// many of them come to their file's home by it.
    fn plan_piece<'v, 'f>(
        &'v self,
        tx: &mut Tx<'v>,
        file: &'f InCoreInode,
        view: &FileView,
        blocks: &Range<u64>,
        mut rows: Rows<'v>,
    ) -> Result<(Vec<Job<'v, 'f>>, Vec<Target<'static>>, u64)> {
        let (volume, home) = (&self.volume, self.home(file.number)?);
        let each = volume.geometry.block_sectors_each();
        let (mut jobs, mut others, mut moved_blocks) = (Vec::new(), Vec::new(), 0);
        let zone = rows.zone().unwrap_or(view.zone); // of a given row: the file may have got another home since it was taken
        for block in blocks.clone() {
            let old = self.block_of(file, view, block)?;
            moved_blocks += u64::from(is_elsewhere(home, &old.base));
            let Some(place) = rows.next(zone, block..blocks.end, || None) else { unreachable!("the row is as long as the piece") };
            if old.has_logs() || matches!(old.base, Base::Written(_) | Base::Lost(_)) {
                tx.took(space::data(place, each));
                jobs.push(Job::whole(volume, file, *view, block, old, place));
                continue;
            }
            let base = old.reserve(tx, volume, (view.zone, None), each as u32, Some(place))?;
            let action = Action::Logs { merges: 0, slots: old.logs, stores: SmallVec::new(), base };
            others.push(Target::changed(block, old, action));
        }
        Ok((jobs, others, moved_blocks))
    }
}

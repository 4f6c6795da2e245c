//! Mappings on a device that maps no single pages but steps of 2 MiB, as a devdax of that alignment does.
//!
//! [MG1] Such a mapping begins at a multiple of 2 MiB of the file and is made of whole aligned extents. What of its range is none is rewritten
//!       first as `align.rs` does it, one transaction a piece of 2 MiB: pieces inside the file beside readers and writers, the rest with the
//!       range held. A piece without data gets an aligned extent, too. If none is free the mapping is refused.
//! [MG2] The last piece may reach beyond the end of the file. Its blocks there are unwritten space of the file and mapped with the others, just
//!       as a truncation leaves them ([MC1] of `mapped_change.rs`): what is stored there means nothing, growth makes them written ([MC4]). Their
//!       pages may hold bytes of other files, so they are zeroed before anybody sees them. The file keeps that space until it is truncated.
//! [MG3] If the range finds no room, aligned extents that it took where the file had nothing go back.
//! [MG4] On a device of larger steps, and a mount that keeps large extents of that size (`alloc/large_units.rs`), all this holds for these: each of
//!       the file's is made of one of the device's, piece by piece, with the range held.

use std::ops::Range;

use tandemfs_format::{DataAddress, PAGE_BYTES, UNIT_BYTES};

use super::FileView;
use super::align::{Aligned, Why};
use super::move_pieces::piece_blocks;
use super::rows::Rows;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, DataRun};
use crate::inodes::InCoreInode;
use crate::mutant::{Mutant, on};
use crate::space::Zone;

const NO_EXTENT: Error = Error::NoSpace { zone: "memory" };

impl FileSystem {
    /// The granule of mappings of files, in bytes: a page, or 2 MiB ([MG1]).
    pub(super) fn mapping_step(&self) -> Result<u64> {
        match (self.volume.drive.mapping_unit(), self.large_extent_bytes()) {
            (Some(unit), _) if unit <= PAGE_BYTES as u64 => Ok(PAGE_BYTES as u64),
            (Some(unit), _) if unit <= UNIT_BYTES => Ok(UNIT_BYTES),
            (Some(unit), Some(large)) if unit <= large => Ok(large),
            (Some(_), _) => Err(Error::NotSupported("this device maps in steps of more than 2 MiB, and files have no larger extents")),
            (None, _) => Err(Error::NotSupported("this drive maps no ranges of its memory")),
        }
    }

    /// Bytes of a large extent, where the mount keeps such ([LX1] of `alloc/large_units.rs`).
    fn large_extent_bytes(&self) -> Option<u64> {
        self.volume.large_extent_pages().map(|pages| pages * PAGE_BYTES as u64)
    }

    /// Rewrites the pieces of a range that lie inside the file and are not aligned, while others use the file ([MG1]). The caller holds no
    /// range.
    pub(super) fn align_beside_others(&self, file: &InCoreInode, blocks: &Range<u64>, step: u64) -> Result<()> {
        let view = self.view(file)?;
        if view.zone != Zone::Memory || step > UNIT_BYTES || on(Mutant::StepsNotAligned) {
            return Ok(());
        }
        let inside = blocks.start..blocks.end.min(view.size / UNIT_BYTES * piece_blocks(&self.volume));
        for piece in self.pieces(&inside, UNIT_BYTES) {
            if self.align_piece(file, piece.start, Why::Hint)? == Aligned::NoExtent {
                return Err(NO_EXTENT);
            }
        }
        Ok(())
    }

    /// Makes aligned extents of all steps of a range ([MG1]), which the caller holds, and hides what others left behind the file's end ([MG2]).
    pub(super) fn align_to_map(&self, file: &InCoreInode, view: &FileView, blocks: &Range<u64>, step: u64) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        if on(Mutant::StepsNotAligned) {
            return self.reserve(file, blocks.start * block_bytes, blocks.end * block_bytes);
        }
        self.check_room(file, blocks, blocks.end * block_bytes)?;
        let mut taken: Vec<Range<u64>> = Vec::new();
        for piece in self.pieces(blocks, step) {
            if self.has_nothing_in(file, view, &piece)? {
                taken.push(piece.clone());
            }
            let aligned = match step {
                UNIT_BYTES => self.align_locked(file, piece, None),
                _ => self.align_large(file, view, piece, step),
            };
            if let Err(error) = aligned {
                self.give_back_pieces(file, taken);
                return Err(error);
            }
        }
        self.zero_behind_file(file, view, blocks)
    }

    fn align_locked<'v>(&'v self, file: &InCoreInode, piece: Range<u64>, given: Option<Rows<'v>>) -> Result<()> {
        match self.try_align(file, (piece, Why::Mapping), given, (), Some)? {
            Some(Aligned::Done) => Ok(()),
            _ => Err(NO_EXTENT),
        }
    }

    /// Makes one large extent of a range of the file, unless it is one ([MG4]).
    fn align_large(&self, file: &InCoreInode, view: &FileView, blocks: Range<u64>, step: u64) -> Result<()> {
        if self.is_large_extent(file, view, &blocks, step)? {
            return Ok(());
        }
        let at = self.volume.take_large_extent().ok_or(NO_EXTENT)?;
        let unit_pages = UNIT_BYTES / PAGE_BYTES as u64;
        let pieces = (0..).zip(self.pieces(&blocks, UNIT_BYTES));
        let rows: Vec<_> =
            pieces.map(|(index, piece)| (piece.clone(), Rows::of(&self.volume, at.nth(index * unit_pages), piece))).collect();
        rows.into_iter().try_for_each(|(piece, rows)| self.align_locked(file, piece, Some(rows)))
    }

    fn is_large_extent(&self, file: &InCoreInode, view: &FileView, blocks: &Range<u64>, step: u64) -> Result<bool> {
        let (mut next_block, mut next) = (blocks.start, None);
        self.each_block(file, view, blocks, &mut |number, block| {
            let Some(at @ DataAddress::Page(page)) = block.base.whole_run(&self.volume.geometry) else { return Ok(()) };
            let goes_on = next.map_or_else(|| page.offset_bytes().is_multiple_of(step), |next| next == at);
            if number == next_block && goes_on {
                (next_block, next) = (number + 1, Some(at.nth(self.volume.geometry.block_sectors_each())));
            }
            Ok(())
        })?;
        Ok(next_block == blocks.end)
    }

    /// [MG3]
    fn give_back_pieces(&self, file: &InCoreInode, taken: Vec<Range<u64>>) {
        for piece in taken.into_iter().filter(|_| !on(Mutant::StepExtentsKept)) {
            if let Err(error) = self.free_range(file, piece, &mut || {}) {
                tracing::warn!(%error, inode = file.number.get(), "space that a mapping took and does not need stays given out");
            }
        }
    }

    /// [MG2]; what somebody else has mapped already stays as it is.
    fn zero_behind_file(&self, file: &InCoreInode, view: &FileView, blocks: &Range<u64>) -> Result<()> {
        let first = view.size.div_ceil(self.volume.geometry.block_bytes().into()).max(blocks.start);
        if first >= blocks.end || on(Mutant::StepsShowOthers) {
            return Ok(());
        }
        let mut pages = Vec::new();
        self.each_block(file, view, &(first..blocks.end), &mut |number, block| {
            if let Base::Unwritten(DataRun { at: DataAddress::Page(page), count, .. }) = block.base
                && file.ranges.pins(number, number).is_empty()
            {
                pages.push((page, count.into()));
            }
            Ok(())
        })?;
        self.zero_runs(&pages)
    }

    /// The pieces of so many bytes of a range of whole ones.
    fn pieces(&self, blocks: &Range<u64>, bytes: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let each = bytes / u64::from(self.volume.geometry.block_bytes());
        blocks.clone().step_by(each as usize).map(move |first| first..first + each)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain};
    use tandemfs_format::InodeNumber;
    use tandemfs_format::inode::file_type;

    use super::*;
    use crate::types::Home;
    use crate::{FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

    /// A piece of a large extent went to the block zone, or nowhere, if the file got its home there while it was mapped.
    #[test]
    fn regression_a_given_row_is_used_whatever_the_home_is_by_then() {
        let drive = Drive::new(Arc::new(MemoryDevice::new(64 << 20, 64 << 20, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        fs.set_home(InodeNumber::ROOT, Home::Memory).expect("has a home");
        let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let number = fs.create(InodeNumber::ROOT, b"f", &new).expect("made").inode;
        let bytes = vec![7; UNIT_BYTES as usize];
        fs.write(number, 0, &bytes, WriteOptions::default()).expect("written");
        let file = fs.inodes.get(&fs.volume, number).expect("there");
        let piece = 0..piece_blocks(&fs.volume);
        let pages = UNIT_BYTES / PAGE_BYTES as u64;
        let (at, _) = fs.volume.take_row(Zone::Memory, pages..=pages, false).expect("room");
        let rows = Rows::of(&fs.volume, at, piece.clone());
        fs.set_home(number, Home::Block).expect("has another home");
        let range = file.ranges.exclusive_to_map(piece.start, piece.end - 1).expect("free");
        fs.align_locked(&file, piece.clone(), Some(rows)).expect("moved");
        let view = fs.view(&file).expect("there");
        let mut next = at;
        for block in piece {
            let base = fs.block_of(&file, &view, block).expect("read").base;
            assert_eq!(base.run().map(|run| run.at), Some(next), "block {block}");
            next = next.nth(fs.volume.geometry.block_sectors_each());
        }
        drop(range);
        let mut found = vec![0; bytes.len()];
        fs.read(number, 0, &mut found).expect("read");
        assert_eq!(found, bytes);
    }
}

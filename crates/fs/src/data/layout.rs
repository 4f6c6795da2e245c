//! Layouts: where the bytes of a file are on the device, for holders that read them there. The promise of a layout is a lease: `lease.rs`
//! [LY1]–[LY8].
//!
//! The look-up locks the range as a reader does, and visits at most [`RECORDS_MAX`] records, a few of them under one hold of the inode's
//! lock: a layout of a large file delays its writers by about a millisecond.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use tandemfs_format::inode::FILE_BYTES_MAX;
use tandemfs_format::mapping::Record;
use tandemfs_format::{InodeNumber, SECTOR_BYTES};

use super::FileView;
use super::rewrite::Scratch;
use super::write_back::Pass;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, Block};
use crate::index::tree::{self, Found};
use crate::inodes::InCoreInode;
use crate::lease::Lease;
use crate::space::Run;
use crate::types::{LayoutExtent, LayoutOptions, LayoutPlace};
use crate::wait::may_wait;

/// Most extents of a layout.
pub const LAYOUT_EXTENTS_MAX: usize = 256;
/// Most extents that one block and the holes around it add.
const BLOCK_EXTENTS_MAX: usize = 4;
/// Most records of blocks that one layout looks at.
const RECORDS_MAX: usize = 16_384;
/// Records looked at under one hold of the inode's lock.
const STEP_RECORDS: usize = 256;

/// The layout of a range of a file, and the lease on it. Dropping it returns the lease.
pub struct Layout {
    extents: Vec<LayoutExtent>,
    next_offset: Option<u64>,
    file_size: u64,
    file: Arc<InCoreInode>,
    lease: Arc<Lease>,
}

impl Layout {
    /// The extents, in order and without gaps, from the start of the first block of the range on. Bytes behind the end of the file in its
    /// last sector are undefined.
    pub fn extents(&self) -> &[LayoutExtent] {
        &self.extents
    }

    /// Where the extents end, if that is before the end of the range: the next layout starts there.
    pub fn next_offset(&self) -> Option<u64> {
        self.next_offset
    }

    /// The size of the file when the layout was granted, in bytes.
    pub fn file_size(&self) -> u64 {
        self.file_size
    }

    /// Whether a change waits for the layout to be dropped. The callback of a recall may run before [`FileSystem::layout`] has returned, so
    /// a holder asks this once it has noted the layout.
    pub fn is_recalled(&self) -> bool {
        self.lease.is_recalled()
    }

    /// Whether the extents still hold. A holder that has read sectors asks this after the read: if true, these were the file's bytes.
    pub fn is_valid(&self) -> bool {
        self.lease.is_valid()
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { extents, next_offset, file_size, lease, .. } = self;
        let mut layout = formatter.debug_struct("Layout");
        layout.field("extents", extents).field("next_offset", next_offset).field("file_size", file_size).field("lease", lease);
        layout.finish_non_exhaustive()
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        self.lease.forget_callback();
        self.file.ranges.returned(&self.lease);
        self.lease.returned();
    }
}

impl FileSystem {
    /// The layout of a range of a file, rounded out to blocks, and a lease on it: until the result is dropped, its extents stay as they are
    /// (`lease.rs` [LY1]). Behind the end of the file are holes and unwritten sectors. A layout has at most [`LAYOUT_EXTENTS_MAX`] extents
    /// and covers at most 16,384 blocks that are no holes; [`Layout::next_offset`] says where to go on.
    ///
    /// `recall` is called at most once, by the thread of the operation that is about to change the file there, which then waits up to
    /// [`RECALL_MAX`](crate::RECALL_MAX) for the layout to be dropped. It should return soon. It may read the file, and drop the layout; it
    /// must not ask for a layout of the same range, which would wait for that operation. If the layout is not dropped in time, it is revoked:
    /// [`Layout::is_valid`] is false, and its sectors may get newer bytes of the file, but no other file's until it is dropped.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty range and for a file that is not regular; `TooManyLayouts`; `Stopped`; `Unmounting`; damage of the
    /// mapping.
    pub fn layout(
        &self,
        number: InodeNumber,
        offset: u64,
        length: u64,
        options: LayoutOptions,
        recall: impl FnOnce() + Send + 'static,
    ) -> Result<Layout> {
        may_wait()?;
        // A mount that writes nothing has layouts too.
        if let Err(error @ Error::Stopped { .. }) = self.volume.health.check_writable() {
            return Err(error);
        }
        let end = offset.saturating_add(length).min(FILE_BYTES_MAX);
        if offset >= end {
            return Err(Error::InvalidArgument("an empty range"));
        }
        let file = self.inodes.get(&self.volume, number)?;
        file.must_be_regular("only regular files have a layout")?;
        self.note_stores(&file)?; // [LR4] of `lent_room.rs`
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let blocks = offset / block_bytes..end.div_ceil(block_bytes);
        if options.settle && !self.is_read_only() {
            self.settle(&file, blocks.clone())?;
        }
        let range = file.ranges.to_grant(blocks.start, blocks.end - 1)?;
        let view = self.view(&file)?;
        let found = self.find_extents(&file, &view, blocks.clone())?;
        let lease = self.volume.leases.grant(found.leased_blocks(), found.sectors(), Box::new(recall))?;
        let next_offset = (found.end < blocks.end * block_bytes).then_some(found.end);
        let layout = Layout { extents: found.extents, next_offset, file_size: view.size, file: file.clone(), lease: lease.clone() };
        range.grant(&lease)?;
        Ok(layout)
    }

    /// The extents of a range that the caller has locked.
    fn find_extents(&self, file: &InCoreInode, view: &FileView, blocks: Range<u64>) -> Result<Extents> {
        let mut found = Extents::from(blocks.start, self.volume.geometry.block_bytes().into());
        let (mut at, mut looked) = (blocks.start, 0);
        while at < blocks.end && looked < RECORDS_MAX && !found.is_full() {
            at = self.visit_blocks(file, view, at..blocks.end, &mut |number, block| {
                found.push(number, block);
                looked += 1;
                !found.is_full()
            })?;
        }
        found.hole_to(at);
        Ok(found)
    }

    /// Passes the next blocks of a range that are no holes to `visit`, until it returns false or a step is done. Returns the first block that
    /// was not looked at.
    fn visit_blocks(
        &self,
        file: &InCoreInode,
        view: &FileView,
        blocks: Range<u64>,
        visit: &mut dyn FnMut(u64, &Block) -> bool,
    ) -> Result<u64> {
        let (mut looked, mut next) = (0, blocks.end);
        let _ended = self.mapped(file, view, |root| {
            tree::walk_range(&self.volume, view.owner, root, blocks, &mut |found| {
                let (blocks, record) = match found {
                    Found::Page { .. } | Found::Run(..) => return Ok(ControlFlow::Continue(())),
                    Found::Block(number, record) => (number..number + 1, record),
                    Found::Lost(blocks) => (blocks, Record::LOST),
                };
                let block = Block::of_record(&self.volume, view.owner, record)?;
                for number in blocks {
                    looked += 1;
                    if !visit(number, &block) || looked >= STEP_RECORDS {
                        next = number + 1;
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(ControlFlow::Continue(()))
            })
        })?;
        Ok(next)
    }

    /// Writes data logs back, of as many blocks as a layout looks at. What cannot be written back keeps its logs.
    fn settle(&self, file: &Arc<InCoreInode>, blocks: Range<u64>) -> Result<()> {
        let (mut at, mut looked) = (blocks.start, 0);
        let (mut scratch, mut pass) = (Scratch::default(), Pass::default());
        while at < blocks.end && looked < RECORDS_MAX {
            let mut with_logs = Vec::new();
            let view = self.view(file)?;
            at = self.visit_blocks(file, &view, at..blocks.end, &mut |number, block| {
                looked += 1;
                if block.has_logs() {
                    with_logs.push((file.clone(), number));
                }
                true
            })?;
            for batch in with_logs.chunks(self.batch_blocks()) {
                self.write_back_blocks(batch, &mut scratch, &mut pass)?;
            }
        }
        if let Some((inode, error)) = pass.failed.or(pass.damaged) {
            tracing::debug!(inode = inode.get(), %error, "a block of a layout keeps its data logs");
        }
        Ok(())
    }
}

/// Extents under construction.
struct Extents {
    extents: Vec<LayoutExtent>,
    /// Where they end in the file.
    end: u64,
    block_bytes: u64,
}

impl Extents {
    fn from(block: u64, block_bytes: u64) -> Self {
        Self { extents: Vec::new(), end: block * block_bytes, block_bytes }
    }

    /// Whether another block may not fit.
    fn is_full(&self) -> bool {
        self.extents.len() + BLOCK_EXTENTS_MAX > LAYOUT_EXTENTS_MAX
    }

    /// Adds a block, and the hole before it.
    fn push(&mut self, number: u64, block: &Block) {
        self.hole_to(number);
        if block.has_logs() || matches!(block.base, Base::Lost(_)) || block.base.is_in_memory() {
            return self.add(self.block_bytes, LayoutPlace::ThroughFileSystem);
        }
        if let Some(sector) = block.base.run().and_then(|run| run.at.sector()) {
            let is_written = matches!(block.base, Base::Written(_));
            let place = if is_written { LayoutPlace::Sectors { sector } } else { LayoutPlace::Unwritten { sector } };
            self.add(block.base.bytes().into(), place);
        }
        self.hole_to(number + 1);
    }

    /// Fills up to the start of a block with a hole.
    fn hole_to(&mut self, block: u64) {
        let bytes = block * self.block_bytes - self.end;
        if bytes > 0 {
            self.add(bytes, LayoutPlace::Hole);
        }
    }

    fn add(&mut self, bytes: u64, place: LayoutPlace) {
        let file_offset = self.end;
        self.end += bytes;
        match self.extents.last_mut().filter(|last| goes_on(last, place)) {
            Some(last) => last.bytes += bytes,
            None => self.extents.push(LayoutExtent { file_offset, bytes, place }),
        }
    }

    /// The blocks of all extents but those that are read through the file system, first and last ([LY5] of `lease.rs`).
    fn leased_blocks(&self) -> Vec<(u64, u64)> {
        let mut blocks: Vec<(u64, u64)> = Vec::new();
        for extent in self.extents.iter().filter(|extent| extent.place != LayoutPlace::ThroughFileSystem) {
            let (first, last) = (extent.file_offset / self.block_bytes, (extent.file_offset + extent.bytes - 1) / self.block_bytes);
            match blocks.last_mut().filter(|range| first <= range.1 + 1) {
                Some(range) => range.1 = last,
                None => blocks.push((first, last)),
            }
        }
        blocks
    }

    /// The sectors of all extents.
    fn sectors(&self) -> Vec<Run> {
        let sectors = |extent: &LayoutExtent| match extent.place {
            LayoutPlace::Hole | LayoutPlace::ThroughFileSystem => None,
            LayoutPlace::Unwritten { sector } | LayoutPlace::Sectors { sector } => Some((sector, extent.bytes / SECTOR_BYTES as u64)),
        };
        self.extents.iter().filter_map(sectors).collect()
    }
}

/// Whether bytes at `place` that follow an extent in the file also follow it on the device.
fn goes_on(extent: &LayoutExtent, place: LayoutPlace) -> bool {
    use LayoutPlace::{Hole, Sectors, ThroughFileSystem, Unwritten};
    match (extent.place, place) {
        (Hole, Hole) | (ThroughFileSystem, ThroughFileSystem) => true,
        (Sectors { sector }, Sectors { sector: next }) | (Unwritten { sector }, Unwritten { sector: next }) => {
            sector.nth(extent.bytes / SECTOR_BYTES as u64) == next
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain};
    use tandemfs_format::inode::file_type;

    use super::*;
    use crate::data::rewrite::Rewrite;
    use crate::{FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

    /// A block may have to be rewritten without a change of the file, to leave the transient room.
    #[test]
    fn rewriting_leaves_leased_blocks_alone() {
        let drive = Drive::new(Arc::new(MemoryDevice::new(16 << 20, 16 << 20, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let number = fs.create(InodeNumber::ROOT, b"file", &new).expect("made").inode;
        fs.write(number, 0, &[1; 5000], WriteOptions::default()).expect("written");
        let layout = || fs.layout(number, 0, 1, LayoutOptions { settle: true }, || panic!("rewriting recalls")).expect("granted");
        let held = layout();
        let bytes: Vec<u64> = held.extents().iter().map(|extent| extent.bytes).collect();
        assert_eq!(bytes, [8192, 57_344], "two sectors, and a hole behind the end");
        let file = fs.inodes.get(&fs.volume, number).expect("there");
        let lengthen = || fs.rewrite_block(&file, 0, Rewrite::Lengthen(3)).expect("works");
        assert!(!lengthen() && file.ranges.try_exclusive(0, 0).is_none());
        assert!(held.is_valid() && layout().extents() == held.extents());
        drop(held);
        assert!(lengthen());
        let bytes: Vec<u64> = layout().extents().iter().map(|extent| extent.bytes).collect();
        assert_eq!(bytes, [12_288, 53_248]);
    }
}

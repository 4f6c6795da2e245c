//! Files mapped into the process: loads and stores of a file's own pages, without calls.
//!
//! [FM1] A mapping is made of the file's extents in the memory zone: a list of file offset, place on the device and length, which the device
//!       maps one behind the other. Data logs over the range become pages first, holes and unwritten space become pages of zeros, aligned
//!       extents where a whole one is missing (`rows.rs`). So all its bytes are there, and they are the only ones: calls that read find them.
//!       A device that maps no single pages needs more ([MG1] of `mapped_steps.rs`).
//! [FM2] A mapping is a *pin* of its blocks in the file's range lock, set before the range is unlocked and until the mapping is gone. Who
//!       wants such a block exclusively does not get it: write-back, moves, gathering, compaction and rewriting pass it over. A write reaches
//!       its pages (`mapped_write.rs`); truncation, growth, punching and zeroing leave them in place (`mapped_change.rs`); collapsing and
//!       inserting are refused with `Mapped`. So its pages stay where they are, and the file's, and no data log lies over them.
//! [FM3] Pages that a writable mapping covers are open before it exists (`open_pages.rs` [OG1]). Pages of zeros are fenced before the record
//!       that has them (RULES R8), and so are the zeros behind the end of the file in its last page.
//! [FM4] A mapping ends at the latest with the last page of the file, or the last step of the device. What programs store behind the end,
//!       there or where a truncation has left mapped pages, is no part of the file, and does not become one ([MC2], [MC3] of
//!       `mapped_change.rs`).
//! [FM5] When a writable mapping goes, the pages that no other one covers are closed, and the file's times say that it changed, also where
//!       there is nothing to close: without checksums, or under another mapping. What cannot be closed now is noted as unchecked. Stores are
//!       durable when [`FileMapping::sync`], [`FileSystem::sync_mapped`] or the unmap has returned; without any a crash leaves lines of 64 B,
//!       each with its old or a newer content.
//! [FM6] A mapping holds its file like an open one: an unlinked file lives as long. An unmount is refused while there are mappings, and none is
//!       made afterwards.
//!       A mapping for a program of another process ([`FileSystem::map_elsewhere`]) is the pin alone: that process maps the
//!       extents, and whoever gives the pin up knows that it no longer does.
//! [FM8] Where an unmount comes while such a program may still store ([`MappedElsewhere::leave`]), the pin stays, and so does an unlinked file:
//!       nothing of it is given to anybody. The in-core inode, which has the pin, stays in memory for that. Its pages stay open, without checksums, and the file system is not marked clean. So the next
//!       mount, which is refused while anybody can store to the device ([SZ2] of the device layer), finds them as after a crash.
//! [FM7] Who maps 2 MiB or more gets the hint *aligned* for the file (`hint.rs`): what could not be mapped by huge pages is rewritten once it
//!       is not mapped any more.

use std::any::Any;
use std::fmt;
use std::ops::{ControlFlow, Deref, Range};
use std::sync::Arc;

use tandemfs_device::{Fenced, Flushed, MappedMemory, MemoryRange, Structure};
use tandemfs_format::inode::{FILE_BYTES_MAX, state};
use tandemfs_format::mapping::BlockChecksum;
use tandemfs_format::{DataAddress, InodeNumber, LINE_BYTES, LineAddress, PAGE_BYTES, SECTOR_BYTES, UNIT_BYTES};

use super::FileView;
use super::commit::changed;
use super::home::Moved;
use super::rewrite::Rewrite;
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, BaseChange, Block, DataRun, NewExtent};
use crate::index::tree::{self, Found};
use crate::inodes::InCoreInode;
use crate::inodes::range_lock::{Pinning, RangeGuard};
use crate::mutant::{Mutant, on};
use crate::quota::unbound;
use crate::space::Zone;
use crate::statistics::add;
use crate::tuning::mappings::MappedPages;
use crate::types::Home;
use crate::volume::Tx;
use crate::wait::may_wait;

const PAGE: u64 = PAGE_BYTES as u64;
/// Blocks whose space one transaction fills with zeros (RULES R11), ...
const FILL_BLOCKS: usize = 64;
/// ... and most of their bytes: checksums of zeros take lines.
const FILL_BYTES: u64 = 4 << 20;
/// Blocks that a walk looks at under one lock of the inode.
const WALK_BLOCKS: usize = 4096;

/// A part of a mapped file, and where its bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedExtent {
    /// Offset in the file, in bytes; a multiple of 4096.
    pub file_offset: u64,
    /// Offset in the memory zone, in bytes; a multiple of 4096.
    pub device_offset: u64,
    /// Length in bytes, a multiple of 4096.
    pub bytes: u64,
}

/// A mapped range of a file ([`FileSystem::map`]). Offsets are bytes from its start. Accesses by several threads, by other mappings and by
/// calls are like those of several processors to memory: aligned words of 8 bytes are whole.
pub struct FileMapping<'f> {
    memory: Box<dyn MappedMemory>,
    length: u64,
    extents: Vec<MappedExtent>,
    pin: Pinned<&'f FileSystem>,
}

/// A range of a file that a program of another process maps ([`FileSystem::map_elsewhere`]). Its pages stay where they are until this is
/// dropped.
pub struct MappedElsewhere {
    length: u64,
    extents: Vec<MappedExtent>,
    pin: Pinned<Arc<FileSystem>>,
}

impl MappedElsewhere {
    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Where its pages are, as [`FileMapping::extents`].
    pub fn extents(&self) -> &[MappedExtent] {
        &self.extents
    }

    /// Gives it up before an unmount, though it may still be stored to ([FM8]).
    pub fn leave(mut self) {
        self.pin.is_left = !on(Mutant::StoresLeftUnpinned);
    }
}

impl fmt::Debug for MappedElsewhere {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { length, extents, pin } = self;
        formatter
            .debug_struct("MappedElsewhere")
            .field("inode", &pin.file.number)
            .field("writable", &pin.writable)
            .field("length", length)
            .field("extents", extents)
            .finish()
    }
}

/// The pages of a mapping, and where they are.
type Placed = (Box<dyn MappedMemory>, Vec<MappedExtent>);

/// Keeps the blocks of a mapping ([FM2]) and its file ([FM6]).
struct Pinned<F: Deref<Target = FileSystem>> {
    file_system: F,
    file: Arc<InCoreInode>,
    blocks: Range<u64>,
    writable: bool,
    /// The pin, once it is set, until it is given up.
    id: Option<u64>,
    /// The pin stays ([FM8]).
    is_left: bool,
}

impl FileMapping<'_> {
    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Where its pages are, in order. The last one ends with a whole page, or a whole step of the device.
    pub fn extents(&self) -> &[MappedExtent] {
        &self.extents
    }

    /// Bytes of it that pages of so many bytes can map: whole ones whose place in the file and on the device agree.
    pub fn bytes_in_pages_of(&self, page_bytes: u64) -> u64 {
        let agrees = |extent: &&MappedExtent| extent.file_offset % page_bytes == extent.device_offset % page_bytes;
        let whole = |extent: &MappedExtent| {
            let (first, end) = (extent.device_offset.next_multiple_of(page_bytes), (extent.device_offset + extent.bytes) / page_bytes);
            (end * page_bytes).saturating_sub(first)
        };
        self.extents.iter().filter(agrees).map(whole).sum()
    }

    /// The memory itself. Behind [`length`](Self::length) it goes on to the end of the page, or of the device's step; what is stored there
    /// behind the file's end is no part of the file ([FM4]).
    pub fn memory(&self) -> &dyn MappedMemory {
        &*self.memory
    }

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// `InvalidArgument` behind its end; errors of the device.
    pub fn load(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.must_hold(offset, into.len() as u64)?;
        Ok(self.memory.copy_out(offset, into)?)
    }

    /// Copies bytes into it. Others see them at once; [`sync`](Self::sync) makes them durable.
    ///
    /// # Errors
    /// `InvalidArgument` behind its end; `ReadOnly` if it is not writable; errors of the device.
    pub fn store(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.must_be_writable()?;
        self.must_hold(offset, from.len() as u64)?;
        Ok(self.memory.copy_in(offset, from)?)
    }

    /// Stores 8 bytes at a multiple of 8, at once.
    ///
    /// # Errors
    /// As [`store`](Self::store); `InvalidArgument` at another offset.
    pub fn store_word(&self, offset: u64, word: u64) -> Result<()> {
        self.must_be_writable()?;
        self.must_hold(offset, size_of::<u64>() as u64)?;
        if !offset.is_multiple_of(size_of::<u64>() as u64) {
            return Err(Error::InvalidArgument("a word is stored at a multiple of 8 B"));
        }
        Ok(self.memory.store_word(offset, word)?)
    }

    /// Makes what was stored to a range durable ([FM5]).
    ///
    /// # Errors
    /// `InvalidArgument` behind its end; errors of the device.
    pub fn sync(&self, offset: u64, length: u64) -> Result<()> {
        self.must_hold(offset, length)?;
        if self.pin.file_system.volume.drive.domain().needs_flush() {
            let first = offset / LINE_BYTES as u64 * LINE_BYTES as u64;
            self.memory.flush(first, offset + length - first)?;
        }
        self.memory.fence();
        Ok(())
    }

    /// Ends the mapping, as dropping it does, and says whether its pages have checksums again.
    ///
    /// # Errors
    /// Those of closing the pages ([FM5]): the mapping is gone all the same.
    pub fn unmap(self) -> Result<()> {
        let Self { memory, mut pin, .. } = self;
        drop(memory);
        pin.end()
    }

    fn must_hold(&self, offset: u64, length: u64) -> Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(Error::InvalidArgument("a mapping ends with the range that it was made for")),
        }
    }

    fn must_be_writable(&self) -> Result<()> {
        if self.pin.writable { Ok(()) } else { Err(Error::ReadOnly) }
    }
}

impl fmt::Debug for FileMapping<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { length, extents, pin, .. } = self;
        let (inode, writable) = (pin.file.number, pin.writable);
        let mut mapping = formatter.debug_struct("FileMapping");
        mapping.field("inode", &inode).field("writable", &writable).field("length", length).field("extents", extents);
        mapping.finish_non_exhaustive()
    }
}

impl<F: Deref<Target = FileSystem>> Pinned<F> {
    /// [FM5]
    fn end(&mut self) -> Result<()> {
        let Some(id) = self.id.take() else { return Ok(()) };
        let (first, last) = (self.blocks.start, self.blocks.end - 1);
        let ranges = &self.file.ranges;
        let range = ranges.exclusive_to_map(first, last);
        ranges.unpin(id);
        let result = match &range {
            _ if !self.writable => Ok(true),
            Err(_) => Err(Error::WouldWait),
            Ok(_) => self.close(),
        };
        if result.is_err() {
            self.file_system.unchecked.lock().add(self.file.number);
        }
        let mappings = &self.file_system.mappings;
        let flushed = match result {
            Ok(true) => Ok(()),
            _ if on(Mutant::UnmappedUnflushed) => Ok(()),
            _ => self.file_system.flush_stored(&mappings.pages_of(self.file.number, id)),
        };
        mappings.stores_end(self.file.number, id); // until here an fsync by others flushes them
        result.and(flushed)
    }

    /// Whether all pages are closed, and so durable.
    fn close(&self) -> Result<bool> {
        let (mut at, mut closed) = (self.blocks.start, 0);
        let mut others = self.file.ranges.pins(self.blocks.start, self.blocks.end - 1);
        others.retain(|pin| pin.writable);
        others.sort_by_key(|pin| pin.first);
        let are_closed = self.file_system.volume.checksums && others.is_empty();
        for pin in others {
            if at < pin.first {
                closed += self.file_system.close_blocks(&self.file, at..pin.first, true)?;
            }
            at = at.max(pin.last.saturating_add(1));
        }
        if at < self.blocks.end {
            closed += self.file_system.close_blocks(&self.file, at..self.blocks.end, true)?;
        }
        if closed == 0 && !on(Mutant::MappingsUntimed) {
            self.file_system.commit_size(&self.file, changed)?; // [FM5]
        }
        Ok(are_closed)
    }
}

impl<F: Deref<Target = FileSystem>> Drop for Pinned<F> {
    fn drop(&mut self) {
        if self.is_left && self.writable {
            let in_core: Arc<dyn Any + Send + Sync> = if on(Mutant::LeftPinEvicted) { Arc::new(()) } else { self.file.clone() };
            return self.file_system.mappings.leave_behind(self.file.number, in_core); // [FM8]
        }
        if let Err(error) = self.end() {
            tracing::warn!(inode = self.file.number.get(), %error, "mapped pages have no checksums until they are closed");
        }
        self.file_system.mappings.leave();
        self.file_system.forget(self.file.number, 1);
    }
}

impl FileSystem {
    /// Maps a range of a regular file whose home is the memory zone ([FM1]). It begins at a multiple of 4096 B (on a device that maps in
    /// steps of 2 MiB, of 2 MiB) and ends at the latest with the file. Data of the range that lies elsewhere, in data logs or in the block
    /// zone, is moved first; holes get space.
    ///
    /// While the mapping lives, calls read its bytes, and those that write bytes write its pages. Truncation and punching zero its pages in
    /// place; pages behind a new end stay mapped, and are the file's again when it grows. Collapsing and inserting are refused.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty range, one that begins or ends elsewhere, and for what is no regular file. `NotSupported` for a file of
    /// another home, on a drive whose loads and stores mean more than those of memory, and on one that maps in steps of more than 2 MiB.
    /// `NoSpace` if the memory zone has no room for what has to be there, or no aligned extents where the device maps nothing else.
    /// `DamagedData`, `LostData`, `Damaged`: what is damaged is not mapped. `Device` if the device cannot map the file's
    /// extents. `Mapped` if blocks are in use otherwise. `ReadOnly`, `Stopped`, `Unmounting`.
    pub fn map(&self, number: InodeNumber, offset: u64, length: u64, writable: bool) -> Result<FileMapping<'_>> {
        let ((memory, extents), pin) = self.map_for(self, number, offset..offset.saturating_add(length), writable)?;
        Ok(FileMapping { memory, length, extents, pin })
    }

    /// As [`map`](Self::map), for a program of another process, which maps the extents itself. Who drops it knows that they are no longer
    /// mapped there; where it is not writable, it is enough that nobody minds what is loaded.
    ///
    /// # Errors
    /// Those of [`map`](Self::map).
    pub fn map_elsewhere(self: &Arc<Self>, number: InodeNumber, offset: u64, length: u64, writable: bool) -> Result<MappedElsewhere> {
        let ((memory, extents), pin) = self.map_for(Arc::clone(self), number, offset..offset.saturating_add(length), writable)?;
        drop(memory); // the pin keeps the pages
        Ok(MappedElsewhere { length, extents, pin })
    }

    /// Whether a file is mapped for stores, by a program or by this one.
    pub fn is_mapped_for_stores(&self, number: InodeNumber) -> bool {
        self.mappings.is_stored_to(number)
    }

    /// Whether programs may have stored bytes to a file, or to any one, that a power failure would still take: then
    /// [`sync_mapped`](Self::sync_mapped) takes its time.
    pub fn has_mapped_to_sync(&self, number: Option<InodeNumber>) -> bool {
        self.volume.drive.domain().needs_flush() && !self.mappings.stored_pages(number).is_empty()
    }

    /// Notes, inside of [`noting`](Self::noting), what has to stay as it is so that a file whose data are synced now need not be synced again.
    ///
    /// # Errors
    /// `Stale` if the number is not in use; errors of the device.
    pub fn note_synced(&self, number: InodeNumber) -> Result<()> {
        let file = self.inodes.get(&self.volume, number)?;
        self.volume.versions.note_synced(number, || file.ranges.is_mapped()); // [VS6] of `versions.rs`
        Ok(())
    }

    /// Makes durable what was stored by mappings of a file, or of all, whosever they are ([FM5]): their lines are flushed where the drive's
    /// persistence domain asks for that. It takes as long as flushing all that is mapped.
    ///
    /// # Errors
    /// `Stopped`; `WouldWait` where there is something to flush, for who does not wait.
    pub fn sync_mapped(&self, number: Option<InodeNumber>) -> Result<()> {
        self.sync()?;
        if !self.has_mapped_to_sync(number) || on(Mutant::MappedNotSynced) {
            return Ok(());
        }
        may_wait()?;
        // Pages of a mapping that ends meanwhile may become somebody else's; flushing changes no bytes.
        self.flush_stored(&self.mappings.stored_pages(number))
    }

    /// Makes what was stored to pages durable.
    fn flush_stored(&self, mappings: &[MappedPages]) -> Result<()> {
        let drive = &self.volume.drive;
        if mappings.is_empty() || !drive.domain().needs_flush() {
            return Ok(());
        }
        for (page, bytes) in mappings.iter().flat_map(|pages| pages.iter()) {
            drop(drive.fence(drive.flush_lines(drive.mapped_lines(*page, *bytes))));
        }
        Ok(drive.flushed()?)
    }

    fn map_for<F: Deref<Target = Self>>(
        &self,
        file_system: F,
        number: InodeNumber,
        bytes: Range<u64>,
        writable: bool,
    ) -> Result<(Placed, Pinned<F>)> {
        let (offset, length) = (bytes.start, bytes.end - bytes.start);
        may_wait()?;
        self.volume.health.check_writable()?;
        if length == 0 {
            return Err(Error::InvalidArgument("an empty range"));
        }
        let step = self.mapping_step()?;
        if !offset.is_multiple_of(step) {
            return Err(Error::InvalidArgument(match step {
                PAGE => "a mapping begins at a multiple of 4096 B",
                UNIT_BYTES => "on this device a mapping begins at a multiple of 2 MiB",
                _ => "on this device a mapping begins at a multiple of a large extent",
            }));
        }
        let file = self.inodes.get(&self.volume, number)?;
        file.must_be_regular("only regular files are mapped")?;
        let end = Some(bytes.end).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge)?;
        let blocks = self.blocks_to_map(&(offset..end), step);
        self.mappings.enter()?;
        self.inodes.hold(number, 1);
        let mut pin = Pinned { file_system, file: file.clone(), blocks, writable, id: None, is_left: false };
        let (id, extents, memory) = self.with_room(|| {
            self.map_once(&file, offset..end, step, writable).inspect_err(|_| self.unchecked.lock().add(number)) // what it has opened
        })?;
        pin.id = Some(id);
        if writable {
            let pages = extents.iter().map(|extent| (LineAddress::new(extent.device_offset / LINE_BYTES as u64), extent.bytes));
            self.mappings.stores_begin(number, id, pages.collect());
        }
        if length >= UNIT_BYTES {
            self.note_mapped(number)?; // [FM7]
        }
        Ok(((memory, extents), pin))
    }

    /// The blocks of a mapping: those of its bytes, to the end of the device's step.
    fn blocks_to_map(&self, bytes: &Range<u64>, step: u64) -> Range<u64> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        bytes.start / block_bytes..bytes.end.next_multiple_of(step).div_ceil(block_bytes)
    }

    fn map_once(
        &self,
        file: &InCoreInode,
        bytes: Range<u64>,
        step: u64,
        writable: bool,
    ) -> Result<(u64, Vec<MappedExtent>, Box<dyn MappedMemory>)> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let blocks = self.blocks_to_map(&bytes, step);
        self.bring_home(file, &blocks)?;
        if step > PAGE {
            self.align_beside_others(file, &blocks, step)?;
        }
        let (range, view) = self.range_to_map(file, &blocks)?;
        if bytes.end > view.size {
            return Err(Error::InvalidArgument("a mapping ends with the file at the latest"));
        }
        if view.zone != Zone::Memory {
            return Err(Error::NotSupported("only a file whose home is the memory zone is mapped"));
        }
        self.fold_logs(file, &view, &blocks)?;
        if step > PAGE {
            self.align_to_map(file, &view, &blocks, step)?;
        } else {
            self.reserve_to_map(file, &view, &blocks)?;
        }
        self.fill_blocks(file, blocks.start..blocks.end.min(view.size.div_ceil(block_bytes)), Fill::Zeros { writable, grows: None })?;
        if writable {
            self.open_blocks(file, blocks.clone())?;
        }
        let extents = self.extents_of(file, &view, &blocks, bytes.start..bytes.end.next_multiple_of(step))?;
        if blocks.end * block_bytes > view.size {
            // What gave the last block its pages may have zeroed what was behind the end.
            let view = if on(Mutant::MappedEndOfOldView) { view } else { self.view(file)? };
            self.prepare_end(file, &view, step, writable)?;
        }
        let ranges: Vec<MemoryRange> =
            extents.iter().map(|extent| MemoryRange { offset: extent.device_offset, length: extent.bytes }).collect();
        let memory = self.volume.drive.map(&ranges, writable)?;
        file.pages.forget(blocks.start * block_bytes, blocks.end.saturating_mul(block_bytes)); // [FP3] of `cache/file_pages.rs`, before [VS4]
        let id = range.pin(blocks.start, blocks.end - 1, writable); // [FM2]
        self.volume.versions.bytes_change(file.number); // [VS4] of `versions.rs`
        Ok((id, extents, memory))
    }

    /// Locks the blocks of a mapping, and all behind them if the end of the file is among them or before ([MC8] of `mapped_change.rs`).
    fn range_to_map<'f>(&self, file: &'f InCoreInode, blocks: &Range<u64>) -> Result<(RangeGuard<'f>, FileView)> {
        let end = blocks.end.saturating_mul(self.volume.geometry.block_bytes().into());
        loop {
            let has_end = end > self.view(file)?.size && !on(Mutant::MappedEndUnlocked);
            let range = file.ranges.exclusive_to_map(blocks.start, if has_end { u64::MAX } else { blocks.end - 1 })?;
            let view = self.view(file)?;
            if has_end || end <= view.size || on(Mutant::MappedEndUnlocked) {
                return Ok((range, view));
            }
        }
    }

    /// Moves what lies in the block zone, as a move to the home of the file does, without the caller's limits ([QT4] of `quota/`).
    fn bring_home(&self, file: &InCoreInode, blocks: &Range<u64>) -> Result<()> {
        if self.view(file)?.zone != Zone::Memory || !self.volume.geometry.has_block_zone() {
            return Ok(());
        }
        drop(file.ranges.exclusive_to_map(blocks.start, blocks.end - 1)?); // leases are recalled
        let mut from = Some(blocks.start);
        while let Some(at) = from.filter(|at| *at < blocks.end) {
            let elsewhere = self.blocks_elsewhere(file, Some(Home::Memory), at)?;
            let inside: Vec<u64> = elsewhere.blocks.into_iter().filter(|block| blocks.contains(block)).collect();
            let mut move_home = |block| match self.move_block_home(file, block)? {
                Moved::Bytes | Moved::AtHome => Ok(()),
                Moved::InUse => Err(Error::Mapped),
            };
            unbound(|| self.move_piece(file, &inside, &mut move_home))?;
            from = elsewhere.next;
        }
        Ok(())
    }

    /// Visits the blocks of a range that are no holes, some at a time. The caller holds the range.
    pub(super) fn each_block(
        &self,
        file: &InCoreInode,
        view: &FileView,
        blocks: &Range<u64>,
        visit: &mut dyn FnMut(u64, Block) -> Result<()>,
    ) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let (mut found, mut next) = (Vec::new(), blocks.end);
            let _ended = self.mapped(file, view, |root| {
                tree::walk_range(&self.volume, view.owner, root, at..blocks.end, &mut |item| {
                    match item {
                        Found::Block(block, record) => found.push((block, Block::of_record(&self.volume, view.owner, record)?)),
                        Found::Lost(lost) => {
                            let offset = lost.start * u64::from(self.volume.geometry.block_bytes());
                            return Err(Error::LostData { inode: file.number, offset });
                        }
                        Found::Page { .. } | Found::Run(..) => {}
                    }
                    if found.len() < WALK_BLOCKS {
                        return Ok(ControlFlow::Continue(()));
                    }
                    next = found.last().map_or(blocks.end, |(block, _)| block + 1);
                    Ok(ControlFlow::Break(()))
                })
            })?;
            found.into_iter().try_for_each(|(number, block)| visit(number, block))?;
            at = next;
        }
        Ok(())
    }

    /// Makes pages of blocks that have data logs, without the caller's limits ([QT4] of `quota/`). Those of mapped blocks stay where they are
    /// ([MW6] of `mapped_write.rs`).
    pub(super) fn fold_logs(&self, file: &InCoreInode, view: &FileView, blocks: &Range<u64>) -> Result<()> {
        self.each_block(file, view, blocks, &mut |number, block| {
            if let Some(byte) = block.first_lost(0..block.base.data_bytes(), |_| None) {
                let offset = number * u64::from(self.volume.geometry.block_bytes()) + u64::from(byte);
                return Err(Error::LostData { inode: file.number, offset });
            }
            let sectors = self.whole_sectors(view, &block, number);
            if block.has_logs() {
                if !file.ranges.pins(number, number).is_empty() && !on(Mutant::MappedLogsFolded) {
                    return Err(Error::Mapped); // [MW6]
                }
                // Write-back alone would leave small logs over no pages to the block zone.
                let is_short = block.base.sectors() < sectors;
                let rewrite = if is_short { Rewrite::Lengthen(sectors) } else { Rewrite::WriteBack };
                unbound(|| self.rewrite_locked(file, number, rewrite))?;
            }
            Ok(())
        })
    }

    /// Makes the unwritten pages of a range written ones.
    pub(super) fn fill_blocks(&self, file: &InCoreInode, blocks: Range<u64>, fill: Fill) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            at = self.fill_step(file, at..blocks.end, fill)?;
        }
        Ok(())
    }

    /// Some of them. Returns the block to go on with.
    fn fill_step(&self, file: &InCoreInode, blocks: Range<u64>, fill: Fill) -> Result<u64> {
        let volume = &self.volume;
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let (owner, old_root) = (state.owner(file.number), state.root());
        let (mut unwritten, mut next, mut bytes) = (Vec::new(), blocks.end, 0);
        let _ended = tree::walk_range(volume, owner, old_root, blocks.clone(), &mut |item| {
            let Found::Block(number, record) = item else { return Ok(ControlFlow::Continue(())) };
            let block = Block::of_record(volume, owner, record)?;
            if let Base::Unwritten(run) = block.base {
                let DataAddress::Page(page) = run.at else { return Err(Error::NoSpace { zone: "memory" }) };
                bytes += u64::from(block.base.bytes());
                unwritten.push((number, block, run, page));
            }
            if unwritten.len() < FILL_BLOCKS && bytes < FILL_BYTES {
                return Ok(ControlFlow::Continue(()));
            }
            next = number + 1;
            Ok(ControlFlow::Break(()))
        })?;
        if unwritten.is_empty() {
            return Ok(next);
        }
        drop(state); // the range keeps them; no lock of an inode is held while the device works (RULES R9)
        let mut fenced = Fenced::nothing_stored();
        for (page, count) in in_rows(unwritten.iter().map(|(_, _, run, page)| (*page, run.count.into()))) {
            match fill {
                Fill::Kept => {}
                Fill::Zeros { grows: Some(_), .. } if on(Mutant::RegrownNotZeroed) => {}
                Fill::Zeros { .. } => fenced = zero(self, page, count)?, // [FM3]
            }
        }
        let (opens, grows) = match fill {
            Fill::Zeros { writable, grows } => (writable, grows),
            Fill::Kept => (true, None),
        };
        let is_stored_to = opens;
        let opens = opens && volume.checksums && !on(Mutant::OpenMarkForgotten);
        let zero_checksum = volume.data_checksum(&[0; SECTOR_BYTES]);
        state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let (mut tx, mut new, mut root) = (Tx::new(volume), state.inode.clone(), state.root());
        for (number, old, run, _) in &unwritten {
            let base = match (opens, run.checksum.vector()) {
                (true, vector) => BaseChange::To(Base::Written(DataRun { checksum: BlockChecksum::Open(vector), overlaid: false, ..*run })),
                (false, _) => {
                    let checksums = if volume.checksums {
                        std::iter::repeat_n(zero_checksum, run.count as usize).collect()
                    } else {
                        Default::default()
                    };
                    BaseChange::Fill(NewExtent { at: run.at, count: run.count, checksums })
                }
            };
            old.replace(&mut tx, volume, owner, &mut root, *number, base, &old.logs, Need::Transient)?;
        }
        let reached = grows.map_or(0, |size| size.min(next.saturating_mul(volume.geometry.block_bytes().into())));
        if reached > new.size {
            let is_stored_to = is_stored_to && !reached.is_multiple_of(volume.geometry.block_bytes().into());
            new.size = reached;
            new.state = new.state & !state::TAIL_STALE | if is_stored_to { state::TAIL_STALE } else { 0 };
        }
        new.root = root.to_bytes();
        changed(&mut new);
        file.commit(tx, &mut state, new, fenced, Flushed::nothing_written())?;
        add(&volume.live.work.home_written_bytes, bytes);
        Ok(next)
    }

    /// The extents of a range of whole blocks in the memory zone, cut to `bytes`, which are whole pages. Behind the file's end they may be
    /// unwritten ([MG2] of `mapped_steps.rs`).
    fn extents_of(&self, file: &InCoreInode, view: &FileView, blocks: &Range<u64>, bytes: Range<u64>) -> Result<Vec<MappedExtent>> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let (mut extents, mut at): (Vec<MappedExtent>, u64) = (Vec::new(), bytes.start);
        let end = bytes.end;
        self.each_block(file, view, blocks, &mut |number, block| {
            let start = number * block_bytes;
            let run = match block.base {
                Base::Written(run) => Some(run),
                Base::Unwritten(run) if start >= view.size => Some(run),
                _ => None,
            };
            let Some(DataRun { at: DataAddress::Page(page), count, .. }) = run else {
                return Err(Error::NoSpace { zone: "memory" }); // it went to the block zone for want of room
            };
            let to = (start + u64::from(count) * PAGE).min(end);
            if block.has_logs() || start > at || to <= at {
                return Err(Error::Mapped); // it is in use otherwise
            }
            let (device_offset, length) = (page.offset_bytes() + (at - start), to - at);
            match extents.last_mut().filter(|last| last.device_offset + last.bytes == device_offset) {
                Some(last) => last.bytes += length,
                None => extents.push(MappedExtent { file_offset: at, device_offset, bytes: length }),
            }
            at = to;
            Ok(())
        })?;
        if at < end { Err(Error::Mapped) } else { Ok(extents) }
    }

    /// Space for all blocks of a range, and all pages of the last one of the file where there is room ([MC7] of `mapped_change.rs`).
    fn reserve_to_map(&self, file: &InCoreInode, view: &FileView, blocks: &Range<u64>) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let (start, end) = (blocks.start * block_bytes, blocks.end * block_bytes);
        let is_mapped = !file.ranges.pins(blocks.end - 1, blocks.end - 1).is_empty(); // then its pages stay
        if end > view.size && !is_mapped {
            match self.reserve(file, start, end) {
                Err(error) if error.is_for_want_of_space() => {}
                other => return other,
            }
        }
        self.reserve(file, start, view.size.min(end))
    }

    /// Prepares the last block of the file, which is mapped: zeroes what is behind the end if that may be anything ([FM3]), and marks it as
    /// such if somebody may store there from now on ([MC3] of `mapped_change.rs`).
    fn prepare_end(&self, file: &InCoreInode, view: &FileView, step: u64, writable: bool) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let block = view.size / block_bytes;
        // What is mapped of the last block: the page with the end, or all of it.
        let granule = if step > PAGE { block_bytes } else { PAGE };
        if view.tail_stale {
            self.open_blocks(file, block..block + 1)?; // they change under their record
            self.zero_behind_end(file, view)?;
            if !writable && Pinning::of(&file.ranges.pins(block, block), block) != Pinning::Stores {
                self.close_blocks(file, block..block + 1, false)?;
            }
        } else if writable && !view.size.is_multiple_of(granule) {
            let mut state = file.state.write()?;
            let mut new = state.inode.clone();
            new.state |= state::TAIL_STALE;
            file.commit_moved(Tx::new(&self.volume), &mut state, new, Fenced::nothing_stored())?;
        }
        Ok(())
    }
}

/// What unwritten pages become ([`FileSystem::fill_blocks`]).
#[derive(Debug, Clone, Copy)]
pub(super) enum Fill {
    /// Zeros.
    Zeros {
        /// They are open, as they will be stored to.
        writable: bool,
        /// The transaction moves the end of the file over them, at most to some size ([MC4] of `mapped_change.rs`).
        grows: Option<u64>,
    },
    /// What they hold, which is the file's, as open pages ([MC5]).
    Kept,
}

/// Pages in rows, from extents in the order of the file.
pub(super) fn in_rows(extents: impl Iterator<Item = (LineAddress, u64)>) -> Vec<(LineAddress, u64)> {
    let mut rows: Vec<(LineAddress, u64)> = Vec::new();
    for (page, count) in extents {
        match rows.last_mut().filter(|(first, pages)| DataAddress::Page(*first).nth(*pages) == DataAddress::Page(page)) {
            Some((_, pages)) => *pages += count,
            None => rows.push((page, count)),
        }
    }
    rows
}

/// Zeroes pages, durably. The bug: nothing is flushed.
pub(super) fn zero(fs: &FileSystem, page: LineAddress, count: u64) -> Result<Fenced> {
    let drive = &fs.volume.drive;
    if on(Mutant::FillNotFenced) {
        let _lost = drive.store(Structure::Data, page, &vec![0; count as usize * PAGE_BYTES])?;
        return Ok(Fenced::nothing_stored());
    }
    Ok(drive.zero_pages(Structure::Data, page, count)?)
}

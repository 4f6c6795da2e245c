//! Truncation: shrinking and growing are one transaction each (RULES R11, [X3] of the tree); shrinking never allocates (RULES R13).
//!
//! Shrinking cuts logs at the new end (their checksums are recomputed from verified bytes) and frees whole sectors beyond it. Bytes of a
//! kept sector beyond the end stay on the device; the inode records that (`TAIL_STALE`), reads clip at the size, and growing zeroes them
//! first. Space kept beyond the end is freed, even if the size does not change.
//!
//! [TC1] Damage of the mapping behind the cut does not stop a truncation: what can be found there is freed, the rest stays taken ([SA4] of
//!       `index/salvage.rs`, [HB4] of `held_back.rs`), and the inode's space is counted anew. A damaged line that may also name a block
//!       before the cut is not given up; a truncation to zero always works.
//! [TC2] A cut changes lines of one page of each height, and of the block that it goes through (RULES R11).

use std::ops::{ControlFlow, Range};

use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::inode::{FILE_BYTES_MAX, Inode, state};
use tandemfs_format::journal::TX_LINES_MAX;
use tandemfs_format::mapping::{HEIGHT_MAX, LogEntry, RecordBytes};
use tandemfs_format::{InodeNumber, PAGE_LINES, SECTOR_BYTES};

use super::FileView;
use super::commit::count_space;
use super::compose::load_log;
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, BaseChange, Block, LogSlots};
use crate::index::salvage;
use crate::index::tree::{self, Found};
use crate::inodes::attribute_set::AttributeSet;
use crate::inodes::{InCoreInode, State};
use crate::mutant::{Mutant, on};
use crate::quota::unbound;
use crate::volume::{Owner, Tx, Volume};

/// Lines that a cut changes besides those of mapping pages, at most: leaf, checksum vector, inode.
const CUT_LINES_MAX: u64 = 32;
const _: () = assert!(HEIGHT_MAX as u64 * PAGE_LINES + CUT_LINES_MAX <= TX_LINES_MAX as u64); // [TC2]

impl FileSystem {
    /// Sets the size of a regular file; `change` makes the operation's other changes to the inode.
    pub(crate) fn truncate(&self, file: &InCoreInode, size: u64, change: impl Fn(&mut Inode)) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(Error::FileTooLarge);
        }
        self.with_room(|| self.truncate_once(file, size, &change))
    }

    fn truncate_once(&self, file: &InCoreInode, size: u64, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        loop {
            let before = self.view(file)?;
            let (_range, pins) = file.ranges.exclusive_beside_pins(before.size.min(size) / block_bytes, u64::MAX)?;
            let view = self.view(file)?;
            if view.size != before.size {
                continue;
            }
            return match view.size.cmp(&size) {
                std::cmp::Ordering::Less => self.grow_beside_pins(file, &view, size, &pins, change),
                _ => unbound(|| self.shrink_beside_pins(file, &view, size, &pins, change)),
            };
        }
    }

    /// Grows a file to at least `size` by a hole; if the file is large enough already, its size and times do not change.
    ///
    /// # Errors
    /// `Stale` if the number is not in use, `IsDirectory` and `InvalidArgument` if it is not a regular file, `FileTooLarge`, `NoSpace` if
    /// there is no space for the metadata.
    pub fn grow_over(&self, number: InodeNumber, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(Error::FileTooLarge);
        }
        let file = self.inodes.get(&self.volume, number)?;
        file.must_be_regular("only regular files have a size to grow over")?;
        self.with_room(|| self.grow_over_once(&file, size))
    }

    fn grow_over_once(&self, file: &InCoreInode, size: u64) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        loop {
            let before = self.view(file)?;
            if before.size >= size {
                return Ok(());
            }
            let (_range, pins) = file.ranges.exclusive_beside_pins(before.size / block_bytes, u64::MAX)?;
            let view = self.view(file)?;
            if view.size != before.size {
                continue;
            }
            return self.grow_beside_pins(file, &view, size, &pins, |_| {});
        }
    }

    pub(super) fn shrink(&self, file: &InCoreInode, view: &FileView, size: u64, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let volume = &self.volume;
        let block_bytes = u64::from(volume.geometry.block_bytes());
        file.pages.forget(size, u64::MAX);
        let _leaving = self.leaving.enter();
        let mut guard = file.state.write()?;
        if guard.removed {
            return Err(Error::Stale(file.number));
        }
        let mut new = guard.inode.clone();
        let mut root = new.root_record();
        let first_gone = size.div_ceil(block_bytes);
        let old_root = root;
        let mut tx = Tx::new(volume);
        let cleared = free_blocks(&mut tx, self, view.owner, old_root, first_gone..u64::MAX)
            .and_then(|freed_512| tree::clear(&mut tx, view.owner, &mut root, &(first_gone..u64::MAX)).map(|()| freed_512));
        let space_512 = match cleared {
            Ok(freed_512) if first_gone > 0 => new.space_512.saturating_sub(freed_512),
            Ok(freed_512) => {
                let left = new.space_512.saturating_sub(freed_512);
                let own = AttributeSet::space_512(volume, view.owner, &guard).unwrap_or(left);
                if own != left {
                    volume.held_back.begin(); // zeros where a line may be empty hid something ([SY3] of `survey.rs`)
                }
                own
            }
            Err(Error::Damaged { .. }) => {
                (tx, root) = (Tx::new(volume), old_root);
                salvage::cut(&mut tx, volume, view.owner, &mut root, first_gone)?; // [TC1]
                volume.held_back.begin();
                self.space_512_before(view.owner, &guard, old_root, first_gone)?
            }
            Err(error) => return Err(error),
        };
        new.space_512 = space_512;
        put_cut_block(&mut tx, self, view, &mut new, &mut root, size)?;
        new.size = size;
        new.root = root.to_bytes();
        change(&mut new);
        file.commit(tx, &mut guard, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        Ok(())
    }

    /// The space of a file whose blocks from `end` on are cut off, counted anew: what its inode counts includes lost space ([TC1]).
    fn space_512_before(&self, owner: Owner, state: &State, root: RecordBytes, end: u64) -> Result<u64> {
        let volume = &self.volume;
        let mut space_512 = match AttributeSet::space_512(volume, owner, state) {
            Err(Error::Damaged { .. }) => return Ok(state.inode.space_512), // not known either: check counts it
            other => other?,
        };
        let _ended = tree::walk_range(volume, owner, root, 0..end, &mut |found| {
            if let Found::Block(_, record) = found {
                space_512 += Block::of_record(volume, owner, record)?.space_512(volume.log_counting);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(space_512)
    }
}

/// Frees all space of the blocks of a range. Returns that space in 512 B units. The records are freed with their pages ([`tree::clear`]).
pub(crate) fn free_blocks(tx: &mut Tx<'_>, fs: &FileSystem, owner: Owner, root: RecordBytes, blocks: Range<u64>) -> Result<u64> {
    let mut freed = 0;
    let _ended = tree::walk_range(&fs.volume, owner, root, blocks, &mut |found| {
        match found {
            Found::Page { .. } | Found::Run(..) | Found::Lost(_) => {}
            Found::Block(_, record) => {
                let block = Block::of_record(&fs.volume, owner, record)?;
                freed += block.space_512(fs.volume.log_counting);
                block.free_all(tx, &fs.volume);
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(freed)
}

/// Puts the cut of the block that a new end goes through into a transaction, and its marks into the inode. The root is that of the inode, or
/// what the transaction has made of it.
pub(super) fn put_cut_block(
    tx: &mut Tx<'_>,
    fs: &FileSystem,
    view: &FileView,
    new: &mut Inode,
    root: &mut RecordBytes,
    size: u64,
) -> Result<()> {
    let volume = &fs.volume;
    let block_bytes = u64::from(volume.geometry.block_bytes());
    if size.is_multiple_of(block_bytes) {
        if size < view.size {
            new.state &= !state::TAIL_STALE;
        }
        return Ok(());
    }
    let block = size / block_bytes;
    let old = Block::lookup(volume, view.owner, new.root_record(), block)?;
    let (kept, stale) = cut_block(tx, fs, view, &old, block, (size % block_bytes) as u32)?;
    if size < view.size {
        if stale && !on(Mutant::StaleTailForgotten) {
            new.state |= state::TAIL_STALE;
        } else {
            new.state &= !state::TAIL_STALE;
        }
    }
    count_space(new, old.space_512(volume.log_counting), kept.space_512(volume.log_counting));
    if kept != old {
        fs.note_opened(view.owner.inode, &old);
        old.replace(tx, volume, view.owner, root, block, BaseChange::To(kept.base), &kept.logs, Need::Transient)?;
    }
    Ok(())
}

/// The logs of a block that begins at `start`, cut at `end` bytes of it. `Block::replace` frees those that are gone.
pub(super) fn logs_before(volume: &Volume, owner: Owner, start: u64, logs: &LogSlots, end: u32) -> Result<LogSlots> {
    let mut kept = *logs;
    for slot in &mut kept {
        let Some(log) = *slot else { continue };
        if log.offset >= end {
            *slot = None;
        } else if log.end() > end {
            let mut bytes = vec![0; log.length as usize];
            load_log(volume, owner.inode, start, &log, &mut bytes)?;
            let length = end - log.offset;
            *slot = Some(LogEntry { length, crc: volume.data_checksum(&bytes[..length as usize]), ..log });
        }
    }
    Ok(kept)
}

/// Cuts a block at `end` bytes, and frees the sectors beyond. Also returns whether stale bytes stay in its last sector.
fn cut_block(tx: &mut Tx<'_>, fs: &FileSystem, view: &FileView, old: &Block, block: u64, end: u32) -> Result<(Block, bool)> {
    let volume = &fs.volume;
    let start = block * u64::from(volume.geometry.block_bytes());
    let mut kept = old.clone();
    kept.logs = logs_before(volume, view.owner, start, &old.logs, end)?;
    let sectors = end.div_ceil(SECTOR_BYTES as u32);
    if sectors < old.base.sectors() {
        kept.base = old.cut_base(tx, volume, view.owner, sectors)?;
    }
    let stale = match old.base {
        Base::Hole | Base::Unwritten(_) | Base::Lost(_) => false,
        Base::Written(run) => sectors <= run.count && !(end as usize).is_multiple_of(SECTOR_BYTES),
    };
    Ok((kept, stale))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{BytePath, Drive, PersistenceDomain};
    use tandemfs_format::inode::file_type;
    use tandemfs_format::mapping::Record;
    use tandemfs_format::{LINE_BYTES, LineAddress};

    use super::*;
    use crate::alloc::Need;
    use crate::{FormatOptions, MountOptions, NewInode, SetAttributes, WriteOptions, make_file_system};

    fn mount(device: &MemoryDevice) -> FileSystem {
        FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default()).expect("mounts")
    }

    /// A file with a tree of the greatest height whose block 0 has a leaf, and the pages that lead to that block.
    fn tallest(device: &MemoryDevice) -> (InodeNumber, Vec<LineAddress>) {
        let options = FormatOptions { block_bytes: 4096, ..FormatOptions::default() };
        make_file_system(&Drive::new(Arc::new(device.clone())), &options).expect("mkfs");
        let fs = mount(device);
        let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let number = fs.create(InodeNumber::ROOT, b"tall", &new).expect("made").inode;
        for offset in [0, 1000, 2000] {
            fs.write(number, offset, &[7; 300], WriteOptions::default()).expect("written");
        }
        let file = fs.inodes.get(&fs.volume, number).expect("there");
        let mut state = file.state.write_waiting();
        let (owner, mut tx, mut root, mut new) = (state.owner(number), Tx::new(&fs.volume), state.root(), state.inode.clone());
        let record = tree::lookup(&fs.volume, owner, root, 0).expect("read");
        assert!(matches!(record, Record::Block { leaf: Some(_), .. }), "{record:?}");
        // Something behind the path in each page, in the line of the path too.
        for block in (0..HEIGHT_MAX).map(tree::capacity) {
            tree::set(&mut tx, &fs.volume, owner, &mut root, block, Record::LOST, Need::Growth).expect("set");
        }
        (new.root, new.size) = (root.to_bytes(), FILE_BYTES_MAX);
        file.commit_moved(tx, &mut state, new, Fenced::nothing_stored()).expect("committed");
        let mut pages = Vec::new();
        let _all = tree::walk_range(&fs.volume, owner, root, 0..1, &mut |found| {
            if let Found::Page { page, .. } = found {
                pages.push(page);
            }
            Ok(ControlFlow::Continue(()))
        });
        drop(state);
        fs.unmount().expect("unmounts");
        (number, pages)
    }

    /// [TC2]: with pages of one height more, this truncation asked for more lines than a transaction has.
    #[test]
    fn regression_a_cut_through_the_tallest_tree_of_damaged_lines_is_one_transaction() {
        let device = MemoryDevice::new(64 << 20, 64 << 20, PersistenceDomain::Gpf);
        let (number, pages) = tallest(&device);
        assert_eq!(pages.len(), HEIGHT_MAX as usize);
        for line in pages.iter().flat_map(|page| (1..PAGE_LINES).map(|index| page.nth(index))) {
            device.store(line.offset_bytes(), &[0xa5; LINE_BYTES]).expect("damaged");
        }
        let fs = mount(&device);
        let size = SetAttributes { size: Some(1100), ..SetAttributes::default() };
        fs.set_attributes(number, &size).expect("truncated");
        let mut bytes = vec![1; 2000];
        assert_eq!(fs.read(number, 0, &mut bytes).expect("read"), 1100);
        assert!(bytes[..300] == [7; 300] && bytes[300..1000] == [0; 700] && bytes[1000..1100] == [7; 100]);
        fs.unmount().expect("unmounts");
    }
}

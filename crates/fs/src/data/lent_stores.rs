//! Memory lent for stores: blocks of a file that one program overwrites in place, by stores of its own, until the lease is ended.
//!
//! A program that changes bytes without asking cannot look afterwards whether it was allowed to, as one that loads does (`lent.rs`). So a
//! lease for stores is exclusive, and it is ended: by who wants the blocks, by the program, by the clock, or by an unmount. The file system
//! does not know how a program says that it is storing; it asks a [`StoreAccess`].
//!
//! [SL1] Lent are blocks in the memory zone that lie next to each other in the file, without data logs, below the end of the file: to overwrite,
//!       and to grow only in room that is lent behind the end (`lent_room.rs`). Blocks around an offset end before the block whose room the same
//!       program has, so that it overwrites and appends by two leases. Their bytes are verified first (RULES R10), and their pages are open, durably, before the program is told of them
//!       ([OG1] of `open_pages.rs`). So a crash leaves aligned words of 8 B, each as it was or as it was stored, and what the program has
//!       flushed and fenced by the domain stays.
//! [SL2] A lease holds the range of its blocks like an exclusive holder (RULES R7, R9), so no operation can forget it: who wants some of the
//!       range, for reading too, ends the lease first, holding nothing else. Who only tries, and who works in the background, passes
//!       the blocks over. In `no_wait` nothing is ended, and the call would wait.
//! [SL3] To end a lease, its access is revoked, which nobody can refuse and which waits for nobody. Then the end waits until no thread of the
//!       program is storing, at most [`STORES_END_MAX`]. The pages are closed ([OG3]), and the range is free. Time in which who waits did not
//!       run itself does not count: where the daemon or the machine was stopped, nobody knows whether the program could have gone on.
//! [SL4] Who does not stop in time has the bytes taken away: its access says so first; then every block is copied to fresh pages, with checksums
//!       of what was copied; then the range is free. A thread of the program that comes back stores to pages that are no part of the file,
//!       and learns from its access that it does not know whether its bytes count. Until it has had them written by a call, the file may have a part
//!       of them. If there is no room for the copy, the call that
//!       wanted the range fails with `Mapped`, and the next one tries again.
//! [SL5] Pages that were taken away are not given out again while the access says that somebody may store to them (`lent_pages.rs`). After
//!       that the program gets no lease any more, and what else it has is ended without waiting. So a program keeps back at most
//!       [`STORE_LEASES_MAX`] windows, and costs others at most the one wait. An unmount is refused while pages are kept back: nobody could keep them
//!       from the next mount. After a crash a mount that writes is refused while the kernel knows of a program that can store ([SZ2] of the
//!       device layer).
//! [SL6] The times of the file change where somebody looks: when a lease ends, when the attributes are read, and with each round of the
//!       background thread, if anything was stored since the last look. While there is a lease, no answer with the attributes is kept, and the versions of bytes and
//!       attributes are raised when it is made ([VS1], [VS4] of `versions.rs`).
//! [SL7] A lease holds its file like an open one. It ends by itself when nothing was stored for [`IDLE_MAX`].
//! [SL8] A file that gives rights to who starts it (set-user-id, set-group-id, capabilities of a program) is not lent: a write takes them away, a
//!       store would not. Whoever gives a file such rights ends its leases afterwards, and who lends looks for them behind the lease.
//! [SL9] A lease is in the list of all before it has its range: from then on anybody may end it, and takes it off the list.
//!
//! A wait of [SL3] is one of a thread. Whoever serves many programs from one thread is told `WouldWait` and hands the call to others; as
//! each program makes others wait once in its life, their number bounds nothing but how many programs can be late at the same time.

use std::ops::Range;
use std::sync::Arc;

use tandemfs_format::{DataAddress, InodeNumber};

use super::commit::changed;
use super::lent::LENT_BYTES;
use super::rewrite::Rewrite;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, DataRun};
use crate::inodes::InCoreInode;
use crate::inodes::range_lock::RangeGuard;
use crate::mutant::{Mutant, on};
use crate::quota::unbound;
use crate::space::Zone;
use crate::store_lease::{Borrower, StoreAccess, StoreLease};
use crate::types::LentExtent;
use crate::wait::may_wait;

impl FileSystem {
    /// As [`lend_stores`](Self::lend_stores), the last block of a file with the room behind its end ([LR1] of `lent_room.rs`): the program may append
    /// there. The lease is without room where there is none, as in a file that ends with a block.
    ///
    /// # Errors
    /// As [`lend_stores`](Self::lend_stores).
    pub fn lend_stores_to_append(
        self: &Arc<Self>,
        borrower: &Arc<Borrower>,
        access: &Arc<dyn StoreAccess>,
        number: InodeNumber,
    ) -> Result<Option<Arc<StoreLease>>> {
        self.lend_part(borrower, access, number, Part::End)
    }

    /// Lends a program the blocks around an offset of a file, for stores ([SL1]); none if they lie elsewhere, or the program has
    /// as many leases as it can have, or gets none any more. The lease lasts until somebody ends it; what is dropped here ends nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no regular file. `NotSupported` on a drive whose stores mean more than those of memory. `ReadOnly`,
    /// `Stopped`, `Unmounting`, `WouldWait`; no space for what lay in data logs; damage; errors of the device.
    pub fn lend_stores(
        self: &Arc<Self>,
        borrower: &Arc<Borrower>,
        access: &Arc<dyn StoreAccess>,
        number: InodeNumber,
        offset: u64,
    ) -> Result<Option<Arc<StoreLease>>> {
        self.lend_part(borrower, access, number, Part::Around(offset))
    }

    fn lend_part(
        self: &Arc<Self>,
        borrower: &Arc<Borrower>,
        access: &Arc<dyn StoreAccess>,
        number: InodeNumber,
        part: Part,
    ) -> Result<Option<Arc<StoreLease>>> {
        may_wait()?;
        self.volume.health.check_writable()?;
        if self.volume.drive.mapping_unit().is_none() {
            return Err(Error::NotSupported("this drive lends none of its memory"));
        }
        let file = self.inodes.get(&self.volume, number)?;
        file.must_be_regular("only regular files are lent")?;
        if !borrower.enter() {
            return Ok(None);
        }
        let lent = self.store_leases.enter().and_then(|()| {
            self.inodes.hold(number, 1); // [SL7]
            let lent = self.with_room(|| self.lend_once(&file, borrower, access, part));
            if let Ok(Some(lease)) = &lent
                && on(Mutant::LeaseListedLate)
            {
                self.store_leases.add(lease);
            }
            self.store_leases.entered();
            if !matches!(lent, Ok(Some(_))) {
                self.forget(number, 1);
            }
            lent
        });
        match lent {
            Ok(Some(lease)) if self.gives_rights(&file).unwrap_or(true) && !on(Mutant::RightsLent) => {
                self.end_stores(&lease)?; // [SL8]
                Ok(None)
            }
            Ok(Some(lease)) => Ok(Some(lease)),
            other => {
                borrower.leave();
                other
            }
        }
    }

    /// Ends all leases of a file.
    ///
    /// # Errors
    /// As [`FileSystem::end_stores`].
    pub(crate) fn end_stores_of(&self, file: &InCoreInode) -> Result<()> {
        file.ranges.store_leases().iter().try_for_each(|lease| self.end_stores(lease))
    }

    /// Gives a file the times of what was stored to it so far, if it is lent ([SL6]).
    ///
    /// # Errors
    /// `Stale` if the number is not in use; `WouldWait`; errors of the device.
    pub fn note_times_of_stores(&self, number: InodeNumber) -> Result<()> {
        let file = self.inodes.get(&self.volume, number)?;
        self.note_stores(&file)
    }

    fn lend_once(
        self: &Arc<Self>,
        file: &Arc<InCoreInode>,
        borrower: &Arc<Borrower>,
        access: &Arc<dyn StoreAccess>,
        part: Part,
    ) -> Result<Option<Arc<StoreLease>>> {
        let Some((range, offset, blocks)) = self.range_to_lend(file, borrower, part)? else { return Ok(None) };
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let view = self.view(file)?;
        if view.zone != Zone::Memory || range.is_wanted() {
            return Ok(None);
        }
        self.fold_logs(file, &view, &blocks)?;
        if part == Part::End {
            self.lengthen_last_block(file, blocks.start)?;
        }
        let view = self.view(file)?;
        let extents = around(self.lendable(file, &view, &blocks)?, offset);
        let (Some(first), Some(last)) = (extents.first(), extents.last()) else { return Ok(None) };
        let blocks = first.file_offset / block_bytes..(last.file_offset + last.bytes).div_ceil(block_bytes);
        match self.open_blocks(file, blocks.clone()) {
            Err(Error::DamagedData { .. } | Error::LostData { .. }) => return Ok(None), // [OG7] of `open_pages.rs`
            other => other.inspect_err(|_| self.unchecked.lock().add(file.number))?,    // some may be
        }
        file.pages.forget(blocks.start * block_bytes, blocks.end * block_bytes); // [FP3] of `cache/file_pages.rs`, before [VS4]
        let room =
            if part == Part::End { self.lend_room(file, &view).inspect_err(|_| self.unchecked.lock().add(file.number))? } else { None };
        let (fs, own) = (Arc::downgrade(self), file.clone());
        let ender = move |lease: &Arc<StoreLease>| fs.upgrade().map_or(Ok(()), |fs| fs.end_claimed(&own, lease));
        let lease = StoreLease::new((file.number, blocks), (extents, room), (access.clone(), borrower.clone()), Arc::new(ender));
        if !on(Mutant::LeaseListedLate) {
            self.store_leases.add(&lease); // [SL9]
        }
        range.lend(&lease);
        let state = file.state.write_waiting();
        self.volume.versions.stores_begin(file.number); // [SL6]
        drop(state);
        Ok(Some(lease))
    }

    /// Locks what is to be lent. Returns also an offset in it, and its blocks.
    fn range_to_lend<'f>(
        &self,
        file: &'f InCoreInode,
        borrower: &Arc<Borrower>,
        part: Part,
    ) -> Result<Option<(RangeGuard<'f>, u64, Range<u64>)>> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        loop {
            let size = self.view(file)?.size;
            let (offset, blocks, last) = match part {
                Part::Around(offset) => {
                    let window_blocks = (LENT_BYTES / block_bytes).max(1);
                    let first = offset / LENT_BYTES * window_blocks;
                    let end = (first + window_blocks).min(size.div_ceil(block_bytes));
                    let blocks = first..before_own_room(file, borrower, offset / block_bytes, end);
                    (offset, blocks.clone(), blocks.end.wrapping_sub(1))
                }
                Part::End => {
                    let offset = size.saturating_sub(1);
                    (offset, offset / block_bytes..size.div_ceil(block_bytes), u64::MAX)
                }
            };
            if blocks.is_empty() {
                return Ok(None);
            }
            let range = match file.ranges.exclusive(blocks.start, last) {
                Err(Error::Mapped) => return Ok(None),
                other => other?,
            };
            if part != Part::End || self.view(file)?.size == size {
                return Ok(Some((range, offset, blocks)));
            }
        }
    }

    /// Ends a lease; nothing happens if it has ended.
    ///
    /// # Errors
    /// `Mapped`: it could not be ended ([SL4]). `WouldWait`.
    pub fn end_stores(&self, lease: &StoreLease) -> Result<()> {
        may_wait()?;
        match self.inodes.get(&self.volume, lease.inode()) {
            Err(Error::Stale(_)) => Ok(()),
            file => file?.ranges.end_stores(lease),
        }
    }

    /// Ends a lease of a file for who has claimed that, without his limits ([QT4] of `quota/`): he may be anybody.
    fn end_claimed(&self, file: &InCoreInode, lease: &Arc<StoreLease>) -> Result<()> {
        unbound(|| self.settle_lease(file, lease))?;
        file.ranges.give_up(lease);
        self.store_leases.remove(lease);
        lease.borrower.leave();
        lease.forget();
        self.forget(file.number, 1); // [SL7]
        Ok(())
    }

    /// How many leases for stores there are, and how many bytes are kept back since they were taken away from programs ([SL5]).
    pub fn stores_lent(&self) -> (usize, u64) {
        (self.store_leases.all().len(), self.volume.lent_pages.bytes())
    }

    /// [SL3], [SL4]: afterwards nobody stores to blocks of the file by this lease.
    fn settle_lease(&self, file: &InCoreInode, lease: &StoreLease) -> Result<()> {
        lease.access.revoke();
        let has_ended = lease.wait_until_ended();
        if !has_ended {
            lease.take_away();
        }
        if let Err(error) = self.fold_at_end(file, lease) {
            if !is_of_the_end(&error) {
                tracing::error!(inode = file.number.get(), %error, "the size that a program has reached could not be kept");
                return Err(Error::Mapped); // [LR5] of `lent_room.rs`
            }
            tracing::warn!(inode = file.number.get(), %error, "lent pages have no checksums");
            return if matches!(error, Error::Stale(_)) { self.take_room_back(lease, !has_ended) } else { Ok(()) };
        }
        let settled = match has_ended {
            true => self.close_blocks(file, lease.block_range(), false).map(drop).and(self.take_room_back(lease, false)),
            false if on(Mutant::LentSlotKeptForCopy) => self.take_away(file, lease).and_then(|()| self.take_room_back(lease, true)),
            false => self.take_room_back(lease, true).and_then(|()| self.take_away(file, lease)), // [LR7] of `lent_room.rs`
        };
        match settled {
            Ok(()) => Ok(()),
            Err(error @ (Error::Stopped { .. } | Error::ReadOnly | Error::Stale(_))) => {
                tracing::warn!(inode = file.number.get(), %error, "lent pages have no checksums");
                Ok(()) // nothing is written any more
            }
            Err(error) if has_ended => {
                self.unchecked.lock().add(file.number);
                tracing::warn!(inode = file.number.get(), %error, "lent pages have no checksums until they are closed");
                Ok(())
            }
            Err(error) => {
                tracing::error!(inode = file.number.get(), %error, "bytes could not be taken away from a program that does not stop storing");
                Err(Error::Mapped)
            }
        }
    }

    /// The size and the times of a file to which nobody stores by a lease any more ([LR5], [LR7] of `lent_room.rs`, [SL6]).
    fn fold_at_end(&self, file: &InCoreInode, lease: &StoreLease) -> Result<()> {
        // [LR7] of `lent_room.rs`, also where nobody stores by now: the end before this one may have failed.
        if lease.is_taken_away()
            && let Some(room) = lease.room()
        {
            room.take(|| self.load_word(room.slot()))?;
        }
        let is_untimed = lease.take_untimed();
        if !self.fold_room(file, lease)? && is_untimed {
            self.commit_size(file, changed).inspect_err(|_| lease.stays_untimed())?;
        }
        lease.room().inspect(|room| room.settle()); // [LR9] of `lent_room.rs`
        Ok(())
    }

    /// Ends the leases of a file that have room behind its end. One that cannot be ended stays, as far as [SL4] says.
    pub fn end_rooms(&self, number: InodeNumber) {
        let Ok(file) = self.inodes.get(&self.volume, number) else { return };
        if !file.ranges.has_store_leases() {
            return;
        }
        for lease in file.ranges.store_leases().iter().filter(|lease| lease.room().is_some()) {
            if let Err(error) = self.end_stores(lease) {
                tracing::warn!(inode = number.get(), %error, "room behind a file stays lent");
            }
        }
    }

    /// Copies what is lent to other pages ([SL4]).
    fn take_away(&self, file: &InCoreInode, lease: &StoreLease) -> Result<()> {
        if lease.begin_taking() {
            let access = lease.access.clone();
            self.volume.lent_pages.keep(lease.pages(), Box::new(move || access.is_possible())); // [SL5]
            tracing::warn!(inode = file.number.get(), blocks = ?lease.block_range(), "a program did not stop storing in time; its bytes are copied elsewhere");
        }
        for block in lease.block_range() {
            let view = self.view(file)?;
            match self.block_of(file, &view, block)?.base {
                Base::Written(DataRun { at: DataAddress::Page(page), .. }) if lease.has_page(page) => {
                    self.rewrite_locked(file, block, Rewrite::TakeAway)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The size and the times of a file that is stored to change, if something was ([LR4] of `lent_room.rs`, [SL6]).
    pub(crate) fn note_stores(&self, file: &InCoreInode) -> Result<()> {
        let leases: Vec<_> = file.ranges.store_leases();
        let untimed: Vec<_> = leases.iter().filter(|lease| lease.take_untimed()).collect();
        let noted = leases
            .iter()
            .try_fold(false, |is_timed, lease| Ok(self.fold_room(file, lease)? || is_timed))
            .and_then(|is_timed| if is_timed || untimed.is_empty() { Ok(()) } else { self.commit_size(file, changed) });
        noted.inspect_err(|_| untimed.iter().for_each(|lease| lease.stays_untimed()))
    }

    /// A round of the background thread: times ([SL6]), and leases that are not used ([SL7]).
    pub(crate) fn end_idle_stores(&self) {
        for lease in self.store_leases.all() {
            let noted = self.inodes.get(&self.volume, lease.inode()).and_then(|file| self.note_stores(&file));
            if let Err(error) = noted.and_then(|()| if lease.is_idle() { self.end_stores(&lease) } else { Ok(()) }) {
                tracing::warn!(inode = lease.inode().get(), %error, "a lease for stores");
            }
        }
    }

    /// Ends all leases before an unmount, and lets none be made ([SL5]).
    ///
    /// # Errors
    /// `StoresHeld`: nothing was changed but the ends of leases, and the call can be repeated.
    pub(crate) fn end_all_stores(&self) -> Result<()> {
        let is_closed = self.store_leases.close();
        let ended = self.store_leases.all().iter().try_for_each(|lease| self.end_stores(lease));
        self.volume.release_returned();
        let bytes = self.volume.lent_pages.bytes();
        if is_closed && ended.is_ok() && bytes == 0 {
            return Ok(());
        }
        self.store_leases.open();
        Err(Error::StoresHeld { bytes })
    }
}

/// What of a file is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The window that has an offset.
    Around(u64),
    /// The last block, and the room behind the end.
    End,
}

/// Whether an error says that nothing is written any more, to this file or at all.
fn is_of_the_end(error: &Error) -> bool {
    matches!(error, Error::Stopped { .. } | Error::ReadOnly | Error::Stale(_))
}

/// Where blocks around one of them end, to be lent to who may have room behind the end of the file already ([SL1]).
fn before_own_room(file: &InCoreInode, borrower: &Arc<Borrower>, block: u64, end: u64) -> u64 {
    let leases = file.ranges.store_leases();
    let own = leases.iter().filter(|lease| lease.room().is_some() && Arc::ptr_eq(&lease.borrower, borrower));
    let firsts = own.map(|lease| lease.block_range().start).filter(|first| *first > block && !on(Mutant::OwnRoomTaken));
    firsts.fold(end, u64::min)
}

/// Those extents around an offset that lie next to each other in the file.
fn around(extents: Vec<LentExtent>, offset: u64) -> Vec<LentExtent> {
    let has = |row: &[LentExtent]| match (row.first(), row.last()) {
        (Some(first), Some(last)) => (first.file_offset..last.file_offset + last.bytes).contains(&offset),
        _ => false,
    };
    let mut row: Vec<LentExtent> = Vec::new();
    for extent in extents {
        let goes_on = row.last().is_some_and(|last| last.file_offset + last.bytes == extent.file_offset);
        if !goes_on {
            if has(&row) {
                break;
            }
            row.clear();
        }
        row.push(extent);
    }
    if has(&row) { row } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_has_no_gap_in_the_file() {
        let extent = |file_offset, device_offset, bytes| LentExtent { file_offset, device_offset, bytes };
        let all = [extent(0, 900, 10), extent(10, 500, 10), extent(30, 100, 5), extent(35, 700, 5)];
        for (offset, found) in [(0, 0..2), (19, 0..2), (30, 2..4), (39, 2..4), (20, 0..0), (29, 0..0), (40, 0..0)] {
            assert_eq!(around(all.to_vec(), offset), all[found], "at {offset}");
        }
    }
}

//! Room behind the end of a file, lent with a lease for stores: a program appends by stores of its own, and one word of 8 B makes the new size
//! durable.
//!
//! A slot of the table (FORMAT, *Lent room*) goes *unused -(lend)-> in use -(end of the lease, or the next mount)-> unused*.
//!
//! [LR1] Lent is what the pages of the file's last block have behind its end, which the block is lengthened for. These pages are open, and the inode
//!       says that they may hold anything behind the end ([MC3] of `mapped_change.rs`), durably, before the program is told of them. So whatever a
//!       crash leaves there is no part of the file until a size says so.
//! [LR2] The slot says which file, its size and the room; its word says length zero. Both are durable before the eight bytes that put the line into
//!       use, which are durable before the program is told. So a crash leaves a slot that is in use and right, or unused.
//! [LR3] A program stores bytes, makes them durable as the domain asks, stores the word and makes that durable. The word is believed within the room,
//!       by the epoch of the lease, and never makes a file smaller.
//! [LR4] Such a lease holds its blocks and all behind them: who changes the size, or reads where the program may have appended, ends it first ([SL2]
//!       of `lent_stores.rs`). Who only asks for the size has it *folded*: the word is read, and the size that it says is committed; the
//!       program goes on. Whoever uses a size without holding a range up to it folds first.
//! [LR5] The end of a lease folds, then closes the pages, which zeroes what is behind the end ([OG4] of `open_pages.rs`), then makes the slot unused,
//!       durably, and then the range is free: no later change of the file can meet a word that is believed. Where the size cannot be
//!       committed the lease does not end; where the file system has stopped, the slot stays for the next mount.
//! [LR6] A mount that writes gives each file with a slot in use the size that the word says, before anything else changes the file, and makes
//!       the slot unused when that is durable; repeating it changes nothing. A mount that does not write does the first in memory. A line
//!       that does not verify says nothing, and the next mount that writes makes it unused. The slot of a file whose inode is damaged stays.
//! [LR7] Where bytes are taken away from a program ([SL4]), the word is read once, after the program could see that: what it says then is the file's,
//!       and [`StoreLease::appended_to`] tells the program. Later stores to the word mean nothing, since the slot is unused; it is not lent
//!       again while somebody may store to it.
//!       Its slot is unused, durably, before the bytes are copied: what the program still stores in the meantime is not in the copy, and no mount
//!       may believe a word about it.
//! [LR9] Who asks for the size has no range, so the lease may end, and the file be cut, between his look at the word and his commit. Behind the last fold,
//!       before the range is free, the room is *settled*: who finds it so under the lock of the inode folds nothing.
//! [LR8] Builds that do not know the table would lose appended bytes: its feature bit is durable before the first slot is used, and the table is
//!       zeros before that.

use tandemfs_device::{DeviceError, Fenced, Flushed, Structure};
use tandemfs_format::inode::{Inode, state};
use tandemfs_format::lent_room::{
    LENT_MARK_BYTES, LENT_SLOT_LINES, LENT_TABLE_BYTES, LentRoom, epoch_of, lent_line, lent_slots, lent_word, next_epoch,
};
use tandemfs_format::superblock::incompat;
use tandemfs_format::{DataAddress, LINE_BYTES, PAGE_BYTES};

use super::FileView;
use super::commit::changed;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, DataRun};
use crate::inodes::InCoreInode;
use crate::mutant::{Mutant, on};
use crate::store_lease::{Room, Slot, StoreLease};
use crate::volume::Tx;

const SLOT_BYTES: usize = LENT_SLOT_LINES as usize * LINE_BYTES;

impl FileSystem {
    // ---- lending ----------------------------------------------------------------------------------------------------------------------

    /// Gives the last block of a file all its pages, if there is room for them ([LR1]). The caller holds it, and it has no logs.
    pub(super) fn lengthen_last_block(&self, file: &InCoreInode, block: u64) -> Result<()> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        match self.reserve(file, block * block_bytes, (block + 1) * block_bytes) {
            Err(error) if error.is_for_want_of_space() => Ok(()),
            other => other,
        }
    }

    /// Lends the room in the last block of a file, whose pages are open; none if there is none, or all slots are in use. The caller holds the block and
    /// all behind it.
    pub(super) fn lend_room(&self, file: &InCoreInode, view: &FileView) -> Result<Option<Room>> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let Some(block) = view.size.checked_sub(1).map(|last| last / block_bytes) else { return Ok(None) };
        let Base::Written(DataRun { at: DataAddress::Page(_), count, .. }) = self.block_of(file, view, block)?.base else {
            return Ok(None);
        };
        let bytes = (block * block_bytes + u64::from(count) * PAGE_BYTES as u64).saturating_sub(view.size);
        if bytes == 0 {
            return Ok(None);
        }
        self.mark_end_stale(file)?;
        self.make_table()?;
        let Some(slot) = self.lent_rooms.take() else { return Ok(None) };
        let lent =
            self.put_in_use(slot, LentRoom { inode: file.number, generation: view.owner.generation, epoch: 1, size: view.size, bytes });
        match lent {
            Ok(lent) => Ok(Some(Room::new(slot, lent))),
            Err(error) => {
                self.lent_rooms.leave(slot, Slot::Unused);
                Err(self.volume.health.stop("lending room behind a file", &error))
            }
        }
    }

    /// The inode says that anything may be behind the end ([LR1]).
    fn mark_end_stale(&self, file: &InCoreInode) -> Result<()> {
        let mut state = file.state.write()?;
        if state.inode.state & state::TAIL_STALE != 0 || on(Mutant::LentEndUnmarked) {
            return Ok(());
        }
        let mut new = state.inode.clone();
        new.state |= state::TAIL_STALE;
        file.commit_moved(Tx::new(&self.volume), &mut state, new, Fenced::nothing_stored())
    }

    /// [LR8]
    fn make_table(&self) -> Result<()> {
        let mut slots = self.lent_rooms.0.lock();
        if slots.has_table {
            return Ok(());
        }
        let volume = &self.volume;
        let zeroed = volume.drive.persist(Structure::Superblock, lent_line(0), &[0; LENT_TABLE_BYTES])?;
        if !on(Mutant::LentBitForgotten) {
            volume.journal.update_superblock(&volume.line_store, zeroed, |superblock| superblock.incompat |= incompat::LENT_ROOM)?;
        }
        slots.has_table = true;
        Ok(())
    }

    /// [LR2]
    fn put_in_use(&self, slot: u64, room: LentRoom) -> std::result::Result<LentRoom, DeviceError> {
        let (drive, line) = (&self.volume.drive, lent_line(slot));
        let before = self.load_word(slot)?;
        let is_stale = on(Mutant::LentWordStale) && before != 0;
        let room = LentRoom { epoch: if is_stale { epoch_of(before) } else { next_epoch(before) }, ..room };
        let sealed = room.encode(self.volume.pair, line);
        let mut both = [0; SLOT_BYTES];
        both[LENT_MARK_BYTES..LINE_BYTES].copy_from_slice(&sealed[LENT_MARK_BYTES..]);
        let word = if is_stale { before } else { lent_word(room.epoch, 0) };
        both[LINE_BYTES..LINE_BYTES + 8].copy_from_slice(&word.to_le_bytes());
        if on(Mutant::LentLineAtOnce) {
            both[..LENT_MARK_BYTES].copy_from_slice(&sealed[..LENT_MARK_BYTES]);
            drop::<Fenced>(drive.persist(Structure::Superblock, line, &both)?);
            return Ok(room);
        }
        drop::<Fenced>(drive.persist(Structure::Superblock, line, &both)?);
        drop::<Fenced>(drive.persist(Structure::Superblock, line, &sealed[..LENT_MARK_BYTES])?);
        Ok(room)
    }

    /// Makes a slot unused, durably.
    fn put_out_of_use(&self, slot: u64) -> Result<()> {
        let stored = self.volume.drive.persist(Structure::Superblock, lent_line(slot), &[0; LENT_MARK_BYTES]);
        stored.map(drop).map_err(|error| self.volume.health.stop("taking back room behind a file", &error))
    }

    /// The word of a slot, which a program may be storing: eight aligned bytes are loaded at once.
    pub(super) fn load_word(&self, slot: u64) -> std::result::Result<u64, DeviceError> {
        let mut word = [0; 8];
        self.volume.drive.load(Structure::Superblock, lent_line(slot).nth(1), &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    // ---- folding ----------------------------------------------------------------------------------------------------------------------

    /// Gives a file the size that a program has reached by a lease ([LR4]). Returns whether that is another one.
    pub(super) fn fold_room(&self, file: &InCoreInode, lease: &StoreLease) -> Result<bool> {
        let Some(room) = lease.room() else { return Ok(false) };
        let reached = room.reached(|| self.load_word(room.slot()))?;
        if file.state.read()?.inode.size >= reached || on(Mutant::LentSizeForgotten) {
            return Ok(false);
        }
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        if state.inode.size >= reached || room.is_settled() {
            return Ok(false);
        }
        let mut new = state.inode.clone();
        self.grow_to(&mut new, reached);
        changed(&mut new);
        file.commit(Tx::new(&self.volume), &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        Ok(true)
    }

    /// The room is behind the new end, or there is none left.
    fn grow_to(&self, inode: &mut Inode, size: u64) {
        inode.size = size;
        if size.is_multiple_of(self.volume.geometry.block_bytes().into()) {
            inode.state &= !state::TAIL_STALE;
        }
    }

    /// The lease has ended, and the size is committed ([LR5]).
    pub(super) fn take_room_back(&self, lease: &StoreLease, is_taken_away: bool) -> Result<()> {
        let Some(room) = lease.room().filter(|room| room.goes_back()) else { return Ok(()) };
        if !on(Mutant::LentSlotLeft) {
            self.put_out_of_use(room.slot())?;
        }
        self.lent_rooms.leave(room.slot(), if is_taken_away { Slot::TakenAway(lease.access.clone()) } else { Slot::Unused });
        Ok(())
    }

    // ---- after a crash ----------------------------------------------------------------------------------------------------------------

    /// Gives files the sizes that programs had reached when the last mount ended ([LR6]).
    pub(crate) fn adopt_lent_rooms(&self) -> Result<()> {
        if !self.volume.journal.superblock().has_lent_rooms() || on(Mutant::LentRoomsNotAdopted) {
            return Ok(());
        }
        self.lent_rooms.0.lock().has_table = true;
        let writes = !self.volume.health.is_read_only();
        let mut table = Box::new([0; LENT_TABLE_BYTES]);
        self.volume.drive.load(Structure::Superblock, lent_line(0), &mut *table)?;
        for (slot, line, word) in lent_slots(&table) {
            let is_settled = match LentRoom::decode(&line, self.volume.pair, lent_line(slot)) {
                Ok(None) => continue,
                Ok(Some(room)) => self.adopt(room, word)?,
                Err(damage) => {
                    self.volume.errors.metadata_damaged();
                    tracing::error!("the table of lent room: {damage}; bytes that a program had appended may be lost");
                    true
                }
            };
            if !is_settled {
                self.lent_rooms.keep(slot);
                continue;
            }
            if writes {
                self.put_out_of_use(slot)?;
            }
        }
        Ok(())
    }

    /// False if the file cannot be read now: its slot stays for a mount that can.
    fn adopt(&self, room: LentRoom, word: u64) -> Result<bool> {
        let number = room.inode;
        let Some(size) = room.size_by(word) else {
            tracing::error!(inode = number.get(), "a program said that it had appended more than the room that it was lent");
            return Ok(true);
        };
        let file = match self.inodes.get(&self.volume, number) {
            Err(error @ (Error::Stale(_) | Error::Damaged { .. })) => {
                tracing::warn!(inode = number.get(), %error, "a file to which a program was appending");
                return Ok(matches!(error, Error::Stale(_)));
            }
            other => other?,
        };
        let mut state = file.state.write()?;
        if state.inode.generation != room.generation || !(room.size..size).contains(&state.inode.size) {
            return Ok(true);
        }
        let mut new = state.inode.clone();
        self.grow_to(&mut new, size);
        if self.volume.health.is_read_only() {
            state.inode = new;
            drop(state);
            self.inodes.hold(number, 1); // no line has its size
            return Ok(true);
        }
        changed(&mut new);
        file.commit(Tx::new(&self.volume), &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        Ok(true)
    }
}

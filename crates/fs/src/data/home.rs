//! Homes of files: which zone their blocks lie in.
//!
//! [HM1] The feature *memory home* is durable in the superblock before the first inode names the memory zone as its home, so before the first
//!       record that has pages, and it is never cleared: builds that do not know it refuse the device from then on.
//! [HM2] A home is where *new* extents go; where the memory zone has no room the block zone serves. Setting it changes no data: that moves
//!       later (`moves.rs`). A file is not set to a home that has no room for it, and what is refused gives no feature.
//! [HM3] Moving is one transaction a piece (`move_pieces.rs`) or a block, under its range lock, and a record says where its block lies: a move
//!       that was interrupted, by a crash or by another home, is continued by moving what lies elsewhere. Times and bytes of the file do
//!       not change.
//! [HM4] Without a block zone all files lie in the memory zone, whatever their home, and none can have the other one as its home.

use std::ops::ControlFlow;

use tandemfs_device::{Fenced, Flushed};
use tandemfs_format::inode::{Inode, file_type, flags};
use tandemfs_format::superblock::incompat;
use tandemfs_format::{InodeNumber, SECTOR_BYTES};

use super::FileView;
use super::move_pieces::piece_blocks;
use super::rewrite::Rewrite;
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, BaseChange, Block};
use crate::index::tree::{self, Found};
use crate::inodes::{InCoreInode, State};
use crate::mutant::{Mutant, on};
use crate::space::Zone;
use crate::statistics::add;
use crate::types::{Home, SetAttributeMode};
use crate::volume::{Tx, now};
use crate::wait::may_wait;

/// Blocks that one step of a move looks at, if none of them lies elsewhere.
const STEP_BLOCKS: u64 = 512;

/// What became of a block that was to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    /// It moved.
    Bytes,
    /// It is at home.
    AtHome,
    /// It has a lease, so it stays.
    InUse,
}

/// The next blocks of a file that lie elsewhere, all in one piece ([MP1] of `move_pieces.rs`).
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    pub(super) blocks: Vec<u64>,
    /// Their bytes.
    pub(super) bytes: u64,
    /// The block to go on with; `None` if the rest of the file is at home.
    pub(super) next: Option<u64>,
}

impl Home {
    /// The home that the flags of an inode name.
    pub(crate) fn of(inode: &Inode) -> Self {
        match inode.flags {
            flags if flags & flags::HOME_MEMORY != 0 => Self::Memory,
            flags if flags & flags::HOME_BLOCK != 0 => Self::Block,
            _ => Self::Auto,
        }
    }

    fn flags(self) -> u32 {
        match self {
            Self::Auto => 0,
            Self::Memory => flags::HOME_MEMORY,
            Self::Block => flags::HOME_BLOCK,
        }
    }
}

impl FileSystem {
    /// Where new extents of a file go ([HM2]).
    pub(super) fn zone_of(&self, inode: &Inode) -> Zone {
        let is_at_home = Home::of(inode) == Home::Memory && self.volume.has_memory_homes();
        let has_blocks = self.volume.geometry.has_block_zone() || on(Mutant::MissingZoneIgnored);
        if is_at_home || !has_blocks { Zone::Memory } else { Zone::Block }
    }

    /// The home of a file or directory.
    ///
    /// # Errors
    /// `Stale`; damage of the inode.
    pub fn home(&self, number: InodeNumber) -> Result<Home> {
        let file = self.inodes.get(&self.volume, number)?;
        let state = file.state.read()?;
        if state.removed { Err(Error::Stale(number)) } else { Ok(Home::of(&state.inode)) }
    }

    /// Sets the home of a file, or of a directory for what is made in it from now on. Existing data moves in the background (`moves.rs`).
    ///
    /// # Errors
    /// `InvalidArgument` for what is neither a regular file nor a directory; `NoSpace` if the memory zone has no room for what the file has:
    /// nothing was changed; `ReadOnly`, `Stopped`, `Stale`.
    pub fn set_home(&self, number: InodeNumber, home: Home) -> Result<()> {
        may_wait()?;
        self.volume.health.check_writable()?;
        if home != Home::Auto && !self.has_homes() {
            self.check_home(number, home, SetAttributeMode::Any)?;
            self.gain_memory_homes()?;
        }
        self.put_home(number, home, SetAttributeMode::Any)
    }

    /// The reasons for which [`put_home`](Self::put_home) would refuse a home, before the file system has the feature ([HM2]).
    pub(crate) fn check_home(&self, number: InodeNumber, home: Home, mode: SetAttributeMode) -> Result<()> {
        let file = self.inodes.get(&self.volume, number)?;
        self.must_have_zone(home)?;
        may_be_set(number, &*file.state.read()?, mode)?;
        if home == Home::Memory { self.with_room(|| self.must_have_room(&file)) } else { Ok(()) }
    }

    /// Sets a home on a file system that has the feature, or none on any. `mode` takes *auto* for no home.
    pub(crate) fn put_home(&self, number: InodeNumber, home: Home, mode: SetAttributeMode) -> Result<()> {
        let file = self.inodes.get(&self.volume, number)?;
        self.must_have_zone(home)?;
        if home == Home::Memory {
            self.with_room(|| self.must_have_room(&file))?;
        }
        let mut state = file.state.write()?;
        may_be_set(number, &state, mode)?;
        let mut new = state.inode.clone();
        new.flags = new.flags & !(flags::HOME_MEMORY | flags::HOME_BLOCK) | home.flags();
        if new.flags != state.inode.flags {
            new.ctime = now();
            file.commit(Tx::new(&self.volume), &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())?;
        }
        if home != Home::Auto && !state.inode.is_directory() {
            drop(state);
            self.moves.lock().add(number);
        }
        Ok(())
    }

    /// Refuses a home in a zone that is not there ([HM4]).
    fn must_have_zone(&self, home: Home) -> Result<()> {
        match home {
            Home::Block if !self.volume.geometry.has_block_zone() => Err(Error::NotSupported("the file system has no block zone")),
            _ => Ok(()),
        }
    }

    /// Refuses a file whose bytes in the block zone have no room in the memory zone.
    fn must_have_room(&self, file: &InCoreInode) -> Result<()> {
        let room = self.volume.memory.available_for_extents();
        let (is_file, most) = {
            let state = file.state.read()?;
            (state.inode.file_type() == file_type::REGULAR, state.inode.space_512 * 512)
        };
        if !is_file || most <= room {
            return Ok(());
        }
        let (mut from, mut bytes) = (Some(0), 0);
        while let Some(block) = from {
            let elsewhere = self.blocks_elsewhere(file, Some(Home::Memory), block)?;
            bytes += elsewhere.bytes;
            if bytes > room {
                return Err(Error::NoSpace { zone: "memory" });
            }
            from = elsewhere.next;
        }
        Ok(())
    }

    /// Whether this file system can have homes other than *auto*.
    pub fn has_homes(&self) -> bool {
        self.volume.has_memory_homes()
    }

    /// Gives the file system the feature that homes need. Builds that do not know it refuse the device from then on.
    ///
    /// # Errors
    /// `ReadOnly`, `Stopped`.
    pub fn enable_homes(&self) -> Result<()> {
        may_wait()?;
        self.volume.health.check_writable()?;
        self.gain_memory_homes()
    }

    /// Makes the feature bit durable ([HM1]).
    fn gain_memory_homes(&self) -> Result<()> {
        let volume = &self.volume;
        if volume.has_memory_homes() {
            return Ok(());
        }
        if !on(Mutant::HomeBitForgotten) {
            let gain = |superblock: &mut tandemfs_format::superblock::Superblock| superblock.incompat |= incompat::MEMORY_HOME;
            volume.journal.update_superblock(&volume.line_store, Fenced::nothing_stored(), gain)?;
        }
        volume.note_memory_homes();
        Ok(())
    }

    /// Moves the next blocks of a file, from `block` on, that lie in another zone than its home ([HM3]). Returns the block to go on with;
    /// `None` if the rest of the file is at home. A file of home *auto* is at home anywhere. Blocks with a lease are left out.
    ///
    /// # Errors
    /// `NoSpace` if the home has no room: what was moved stays moved. `DamagedData`, `LostData`: that block stays where it is. Errors of
    /// devices; `Stale`.
    pub fn move_home(&self, number: InodeNumber, block: u64) -> Result<Option<u64>> {
        may_wait()?;
        self.volume.health.check_writable()?;
        let file = self.inodes.get(&self.volume, number)?;
        file.must_be_regular("only regular files have blocks to move")?;
        let elsewhere = self.blocks_elsewhere(&file, None, block)?;
        self.move_piece(&file, &elsewhere.blocks, &mut |block| self.with_room(|| self.move_block_home(&file, block)).map(drop))?;
        Ok(elsewhere.next)
    }

    /// Blocks that lie elsewhere than in `home`, or in the file's own: those of the next piece from `block` on that has some.
    pub(super) fn blocks_elsewhere(&self, file: &InCoreInode, home: Option<Home>, block: u64) -> Result<Elsewhere> {
        let state = file.state.read()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let (owner, home) = (state.owner(file.number), home.unwrap_or_else(|| Home::of(&state.inode)));
        let (mut found_elsewhere, mut seen) = (Elsewhere::default(), 0);
        let piece_of = |block| block / piece_blocks(&self.volume);
        if home == Home::Auto || !state.has_blocks() {
            return Ok(found_elsewhere);
        }
        let _ended = tree::walk_range(&self.volume, owner, state.root(), block..u64::MAX, &mut |found| {
            let Found::Block(number, record) = found else { return Ok(ControlFlow::Continue(())) };
            let is_over = found_elsewhere.blocks.first().map_or(seen == STEP_BLOCKS, |first| piece_of(*first) != piece_of(number));
            if is_over {
                found_elsewhere.next = Some(number);
                return Ok(ControlFlow::Break(()));
            }
            seen += 1;
            let base = Base::of_record(&self.volume, owner, &record)?;
            if is_elsewhere(home, &base) {
                found_elsewhere.blocks.push(number);
                found_elsewhere.bytes += u64::from(base.sectors()) * SECTOR_BYTES as u64;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found_elsewhere)
    }

    /// Moves one block to its home, if it is elsewhere.
    pub(super) fn move_block_home(&self, file: &InCoreInode, block: u64) -> Result<Moved> {
        let Some(_range) = file.ranges.exclusive_unless_leased(block, block) else { return Ok(Moved::InUse) };
        let view = self.view(file)?;
        let old = self.block_of(file, &view, block)?;
        if !is_elsewhere(self.home(file.number)?, &old.base) {
            return Ok(Moved::AtHome);
        }
        let bytes = u64::from(old.base.sectors()) * SECTOR_BYTES as u64;
        match &old.base {
            Base::Unwritten(run) => self.move_unwritten(file, &view, block, &old, run.count)?,
            _ => drop(self.rewrite_locked(file, block, Rewrite::Home(None))?),
        }
        add(&self.volume.live.work.home_moved_bytes, bytes);
        Ok(Moved::Bytes)
    }

    /// Exchanges unwritten space for space in the home.
    fn move_unwritten(&self, file: &InCoreInode, view: &FileView, block: u64, old: &Block, count: u32) -> Result<()> {
        let volume = &self.volume;
        let mut tx = Tx::new(volume);
        let base = old.reserve(&mut tx, volume, (view.zone, None), count, None)?;
        let mut state = file.state.write()?;
        if state.removed {
            return Err(Error::Stale(file.number));
        }
        let mut new = state.inode.clone();
        let mut root = new.root_record();
        old.replace(&mut tx, volume, view.owner, &mut root, block, BaseChange::To(base), &old.logs, Need::Transient)?;
        new.root = root.to_bytes();
        file.commit(tx, &mut state, new, Fenced::nothing_stored(), Flushed::nothing_written())
    }
}

/// Refuses a home that an inode cannot have, or not by this `mode`, which takes *auto* for no home.
fn may_be_set(number: InodeNumber, state: &State, mode: SetAttributeMode) -> Result<()> {
    if state.removed {
        return Err(Error::Stale(number));
    }
    if !matches!(state.inode.file_type(), file_type::REGULAR | file_type::DIRECTORY) {
        return Err(Error::InvalidArgument("only regular files and directories have a home"));
    }
    match (mode, Home::of(&state.inode)) {
        (SetAttributeMode::Create, Home::Memory | Home::Block) => Err(Error::Exists),
        (SetAttributeMode::Replace, Home::Auto) => Err(Error::NoData),
        _ => Ok(()),
    }
}

/// Whether a base lies in another zone than the home asks for.
pub(super) fn is_elsewhere(home: Home, base: &Base) -> bool {
    match home {
        Home::Auto => false,
        Home::Memory => base.run().is_some() && !base.is_in_memory(),
        Home::Block => base.is_in_memory(),
    }
}

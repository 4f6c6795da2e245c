//! Moving files to their homes in the background (`home.rs` says what a home is, and how a block moves), and rewriting files with the hint
//! *aligned* (`align.rs`), which comes first.
//!
//! [MV1] No list of moves is stored. What is to be moved follows from the inodes and the records ([HM3] of `home.rs`, [AE1] of `align.rs`): a
//!       mount of a file system with homes searches all inodes for files with a home or the hint, so a crash or an unmount forgets no move.
//!       Homes and hints that are set later add their file to a list. A file that is fragmented afterwards is not looked for.
//! [MV2] What is leased, has no room at home or no free aligned extent, stays, and its file is tried again, at growing intervals. If new data went to the block
//!       zone for want of room ([HM2]), all files with a home are searched as soon as there is room. Damaged blocks stay as well; they are
//!       tried again by the next mount only.
//! [MV3] A step moves one piece (`move_pieces.rs`) and holds no lock afterwards: an unmount ends the thread after a step. The home is looked
//!       up anew under the range of each piece or block, so a home that was set meanwhile counts.
//! [MV4] The background thread moves for a share of the time, smaller while others commit, and stops for whoever asks it for something else,
//!       but not before one step: a writer that never rests asks for checkpoints all the time. It rewrites for the smaller share always:
//!       loads of who has mapped a file are not seen, and must not get slower. It takes no measure to get room itself: compaction behind
//!       does, if something waits for it ([CZ8] of `compaction/`).

use std::time::{Duration, Instant};

use tandemfs_format::inode::{file_type, flags};
use tandemfs_format::{InodeNumber, UNIT_BYTES};

use super::align::{Aligned, Why};
use super::home::Moved;
use super::move_pieces::is_of_a_block;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::inodes::InCoreInode;
use crate::sync::atomic::Ordering::Relaxed;
use crate::tuning::moves::{MoveStep, MovedFile, Moves};
use crate::types::{Home, HomeMoves};

/// Inode numbers that one step of a search passes.
const LOOK_NUMBERS: u64 = 256;
/// The background thread moves once in this time, ...
const INTERVAL: Duration = Duration::from_millis(900);
/// ... for at most this time, ...
const SHARE_QUIET: Duration = Duration::from_millis(450);
/// ... and for at most this if others committed more than so many transactions since.
const SHARE_BUSY: Duration = Duration::from_millis(50);
const QUIET_TRANSACTIONS: u64 = 100;

impl FileSystem {
    /// How much of the memory zone files take, and which files are being moved.
    pub fn home_moves(&self) -> HomeMoves {
        let memory = self.volume.memory.space();
        let moves = self.moves.lock();
        let limit = self.volume.memory.inode_limit();
        HomeMoves {
            bytes: memory.extent_bytes,
            limit_bytes: self.settings.mounted().home_limit.of(memory.total_bytes),
            files: moves.files.len() as u64,
            waiting_files: moves.waiting_files(),
            search: moves.search.map(|next| (next.min(limit), limit)),
        }
    }

    /// Bytes of a file that lie elsewhere than at its home.
    ///
    /// # Errors
    /// `Stale`; damage of the mapping.
    pub fn bytes_from_home(&self, number: InodeNumber) -> Result<u64> {
        let file = self.inodes.get(&self.volume, number)?;
        if file.state.read()?.inode.file_type() != file_type::REGULAR {
            return Ok(0);
        }
        let (mut from, mut bytes) = (Some(0), 0);
        while let Some(block) = from {
            let elsewhere = self.blocks_elsewhere(&file, None, block)?;
            bytes += elsewhere.bytes;
            from = elsewhere.next;
        }
        Ok(bytes)
    }

    /// Moves some blocks now, or looks for files to move. False if nothing is to be done before the next try of what waits.
    ///
    /// # Errors
    /// `ReadOnly`, `Stopped`.
    pub fn move_homes(&self) -> Result<bool> {
        self.volume.health.check_writable()?;
        self.move_step()
    }

    /// Takes up what waits now, as the background thread does from time to time.
    pub fn retry_moves(&self) {
        self.retry_waiting(&mut self.moves.lock(), true);
    }

    fn retry_waiting(&self, moves: &mut Moves, now: bool) {
        let memory = &self.volume.memory;
        if memory.take_refusal_of_extents() {
            moves.refused();
        }
        moves.retry(now, memory.available_for_extents() >= u64::from(self.volume.geometry.block_bytes()));
    }

    /// Whether files wait for room at home in the memory zone, which whole units would give ([MV2]).
    pub(crate) fn do_homes_want_units(&self) -> bool {
        self.volume.has_memory_homes() && self.volume.memory.available_for_extents() < UNIT_BYTES && self.moves.lock().wants_room()
    }

    /// A share of background work ([MV4]).
    pub(crate) fn move_homes_behind(&self) -> Result<()> {
        let share = {
            let mut moves = self.moves.lock();
            self.retry_waiting(&mut moves, false);
            if moves.files.is_empty() && moves.search.is_none() || moves.worked_at.is_some_and(|at| at.elapsed() < INTERVAL) {
                return Ok(());
            }
            let transactions = self.volume.live.work.transactions.value();
            let is_rewriting = moves.files.front().is_some_and(|file| file.step != MoveStep::Home);
            let is_quiet = !is_rewriting && transactions.saturating_sub(moves.transactions) <= QUIET_TRANSACTIONS;
            if is_quiet { SHARE_QUIET } else { SHARE_BUSY }
        };
        if self.volume.held_back.stops_write_back() {
            return Ok(());
        }
        let start = Instant::now();
        let mut result = self.move_step();
        while matches!(result, Ok(true)) && start.elapsed() < share && !self.is_asked() && !self.write_back.stop.load(Relaxed) {
            result = self.move_step();
        }
        let mut moves = self.moves.lock();
        moves.transactions = self.volume.live.work.transactions.value();
        moves.worked_at = Some(Instant::now());
        result.map(drop)
    }

    /// Moves some blocks of a file, or looks at some inodes ([MV3]). False if there is nothing to do.
    fn move_step(&self) -> Result<bool> {
        let next = {
            let mut moves = self.moves.lock();
            match moves.files.pop_front() {
                Some(file) => file,
                None => {
                    let Some(from) = moves.search else { return Ok(false) };
                    let searches = moves.searches;
                    drop(moves); // it waits for inodes
                    self.search_step(from, searches);
                    return Ok(true);
                }
            }
        };
        let after = self.move_some(next)?;
        let mut moves = self.moves.lock();
        let is_set_anew = moves.files.iter().any(|file| file.number == next.number && file.step != MoveStep::Once);
        match after {
            _ if is_set_anew => {}
            Some(file) => moves.files.push_front(file),
            None => {}
        }
        Ok(true)
    }

    /// Looks at the next inodes of a search, up to a file with a home ([MV1]). If another one began meanwhile, it goes on from its start.
    fn search_step(&self, from: u64, searches: u64) {
        let memory = &self.volume.memory;
        let limit = memory.inode_limit();
        let end = from.saturating_add(LOOK_NUMBERS).min(limit);
        let has_home = |number: &u64| {
            memory.is_inode_taken(InodeNumber::new(*number))
                && self.inodes.get(&self.volume, InodeNumber::new(*number)).is_ok_and(|file| {
                    let state = file.state.read_waiting();
                    let is_wanted = Home::of(&state.inode) != Home::Auto || state.inode.flags & flags::ALIGNED != 0;
                    !state.removed && state.inode.file_type() == file_type::REGULAR && is_wanted
                })
        };
        let found = (from..end).find(has_home);
        let next = found.map_or(end, |number| number + 1);
        let mut moves = self.moves.lock();
        if (moves.searches, moves.search) == (searches, Some(from)) {
            moves.files.extend(found.map(|number| MovedFile::all_of(InodeNumber::new(number))));
            moves.search = (next < limit).then_some(next);
        }
    }

    /// Moves the next blocks of a file. Returns where to go on; `None` if that was the rest.
    fn move_some(&self, moved: MovedFile) -> Result<Option<MovedFile>> {
        let MovedFile { number, block, step, mut is_left } = moved;
        let has_hint = step != MoveStep::Align || self.is_aligned(number).unwrap_or(false);
        let step = if has_hint { step } else { MoveStep::Home };
        let next = match self.try_some(number, block, step, &mut is_left) {
            Err(error @ (Error::Stopped { .. } | Error::ReadOnly)) => return Err(error),
            // It was removed, or its mapping is damaged.
            Err(error) => {
                tracing::debug!(%error, inode = number.get(), "a file stays where it is");
                None
            }
            Ok(next) => next,
        };
        match (next, step, is_left) {
            (Some(_), ..) | (None, MoveStep::Once, _) => {}
            (None, MoveStep::Align, _) => return Ok(Some(MovedFile { number, block: 0, step: MoveStep::Home, is_left })),
            (None, MoveStep::Home, true) => self.moves.lock().wait(number), // [MV2]
            (None, MoveStep::Home, false) => self.moves.lock().moved(),
        }
        Ok(next.map(|block| MovedFile { number, block, step, is_left }))
    }

    fn try_some(&self, number: InodeNumber, from: u64, step: MoveStep, is_left: &mut bool) -> Result<Option<u64>> {
        let file = self.inodes.get(&self.volume, number)?;
        match step {
            MoveStep::Align => {
                let look = self.next_not_aligned(&file, from)?;
                match look.piece {
                    Some(piece) if self.align_some(&file, piece, Why::Hint, is_left)? => Ok(look.next),
                    Some(_) => Ok(None),
                    None => Ok(look.next),
                }
            }
            MoveStep::Once if self.is_grown_piece(&file, from)? => self.align_some(&file, from, Why::Complete, is_left).map(|_| None),
            MoveStep::Once => Ok(None),
            MoveStep::Home => self.try_home(&file, from, is_left),
        }
    }

    /// Aligns a piece. False if there is no aligned extent for it, nor for the next ones.
    fn align_some(&self, file: &InCoreInode, piece: u64, why: Why, is_left: &mut bool) -> Result<bool> {
        let aligned = match self.align_piece(file, piece, why) {
            Err(error) if is_of_a_block(&error) => {
                tracing::warn!(%error, inode = file.number.get(), block = piece, "a piece stays where it is");
                return Ok(true);
            }
            Err(Error::NoSpace { .. }) => Aligned::NoExtent,
            other => other?,
        };
        *is_left |= aligned != Aligned::Done;
        Ok(aligned != Aligned::NoExtent)
    }

    fn try_home(&self, file: &InCoreInode, from: u64, is_left: &mut bool) -> Result<Option<u64>> {
        let number = file.number;
        let elsewhere = self.blocks_elsewhere(file, None, from)?;
        let mut move_alone = |block| {
            match self.move_block_home(file, block) {
                Ok(Moved::Bytes | Moved::AtHome) => {}
                Ok(Moved::InUse) => *is_left = true,
                Err(error) if is_of_a_block(&error) => {
                    tracing::warn!(%error, inode = number.get(), block, "a block stays where it is");
                }
                Err(error) => return Err(error),
            }
            Ok(())
        };
        match self.move_piece(file, &elsewhere.blocks, &mut move_alone) {
            Ok(()) => Ok(elsewhere.next),
            Err(Error::NoSpace { .. }) => {
                *is_left = true;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain};

    use super::*;
    use crate::{FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

    /// [MV4]: nothing was rewritten while a writer that never rests had the background thread asked for checkpoints.
    #[test]
    fn regression_rewriting_starved_beside_constant_writes() {
        let drive = Drive::new(Arc::new(MemoryDevice::new(64 << 20, 64 << 20, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let file = fs.create(InodeNumber::ROOT, b"file", &new).expect("made").inode;
        let data = vec![7; 64 << 10];
        // From the end to the beginning, so that no piece of 2 MiB lies in one extent.
        for block in (0..128_u64).rev() {
            fs.write(file, block * data.len() as u64, &data, WriteOptions::default()).expect("written");
        }
        fs.set_aligned(file, true).expect("queued");
        let elsewhere = fs.bytes_not_aligned(file).expect("known");
        assert!(elsewhere > 2 * UNIT_BYTES, "{elsewhere}");
        for _ in 0..1000 {
            fs.volume.journal.notifier.requests.lock().checkpoint = true;
            fs.moves.lock().worked_at = None; // another second
            fs.move_homes_behind().expect("works");
            if fs.bytes_not_aligned(file).expect("known") == 0 {
                return;
            }
        }
        panic!("{} of {elsewhere} bytes are left", fs.bytes_not_aligned(file).expect("known"));
    }
}

//! Open pages: pages of the memory zone that change without a transaction, so that they have no checksums meanwhile.
//!
//! [OG1] A record says of its pages that they are *open*. That is durable before the first byte of them may be stored by a mapping: who asks
//!       for one gets it after the transactions. Pages of a file system without checksums need no mark, and get none.
//! [OG2] Who maps open pages is known to host memory alone (the pins of `inodes/range_lock.rs`). After a crash nobody does: the same mark
//!       then means *unchecked*. Recovery neither reads nor writes such pages. Where it walks all mappings, after a crash, it notes their
//!       files; the background thread, or an unmount, closes them and says so. A scrub notes those that it meets, too.
//! [OG3] To close pages is to give them checksums again, with their range locked and no pin on it, so nobody stores. Their lines are
//!       flushed and fenced first: a mapping may have left bytes in the CPU's caches, and a checksum of bytes that a power failure takes
//!       would be taken for damage. One transaction a run or block then has the checksums and ends the mark, so a crash leaves either.
//! [OG4] Programs may store behind the end of a file, in the block that the end goes through (`mapped_change.rs` [MC3]). Who closes that block
//!       first zeroes what is behind the end, in place and durably, as the format asks for, and then `TAIL_STALE` goes.
//! [OG5] Open pages are read as they are. What changes an unchecked block, that is not mapped any more, treats it like every block without
//!       checksums; what it writes has some again. This is the exception from [CO1] and [RW7].
//! [OG6] Opening and closing take no space: open pages keep the lines that their checksums need ([BL4] is about the same).
//! [OG7] What is opened was read with its checksums before, its range locked: whoever closes it gives no damage a checksum (RULES R10). What is
//!       damaged is not opened.

use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tandemfs_device::{Fenced, Flushed, Sink, Structure};
use tandemfs_format::inode::state::TAIL_STALE;
use tandemfs_format::mapping::{BlockChecksum, vector_lines};
use tandemfs_format::run::Run;
use tandemfs_format::{DataAddress, InodeNumber, LineAddress, PAGE_BYTES};

use super::commit::changed;
use super::extent_io::checksums_of;
use super::lent::VERIFIED_BYTES;
use super::move_pieces::is_of_a_block;
use crate::alloc::Need;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, BaseChange, Block, DataRun, NewExtent};
use crate::index::tree::{self, Found};
use crate::inodes::{InCoreInode, State};
use crate::mutant::{Mutant, on};
use crate::statistics::add;
use crate::sync::atomic::Ordering::Relaxed;
use crate::volume::{Owner, Tx};

/// Runs and blocks whose records one transaction marks: at most two lines each, and the lines on the path to them (RULES R11).
const STEP_ITEMS: usize = 96;
/// The background thread closes for at most this time at once.
const SHARE: Duration = Duration::from_millis(250);

/// What has one mark.
#[derive(Debug, Clone)]
enum Marked {
    Run(Run),
    Block(Box<Block>),
}

impl Marked {
    fn is_open(&self) -> bool {
        match self {
            Self::Run(run) => run.open,
            Self::Block(block) => block.base.is_open(),
        }
    }

    /// Whether it could be open: written pages of the memory zone that have checksums.
    fn has_mark(&self) -> bool {
        match self {
            Self::Run(run) => run.vector.is_some(),
            Self::Block(block) => {
                matches!(block.base, Base::Written(DataRun { at: DataAddress::Page(_), checksum, .. }) if checksum != BlockChecksum::None)
            }
        }
    }

    fn blocks(&self) -> u64 {
        match self {
            Self::Run(run) => run.blocks.into(),
            Self::Block(_) => 1,
        }
    }

    /// Bytes of its pages.
    fn bytes(&self, block_bytes: u64) -> u64 {
        match self {
            Self::Run(run) => u64::from(run.blocks) * block_bytes,
            Self::Block(block) => block.base.data_bytes().into(),
        }
    }
}

/// What was closed of a file at once.
struct Step {
    /// The block to go on with; `None` if no page is left.
    end: Option<u64>,
    pages: u64,
}

impl FileSystem {
    /// Opens all written pages of a range of blocks ([OG1]). The caller holds the range, whose blocks have no logs.
    pub(super) fn open_blocks(&self, file: &InCoreInode, blocks: Range<u64>) -> Result<()> {
        if !self.volume.checksums || on(Mutant::OpenMarkForgotten) {
            return Ok(());
        }
        self.split_runs(file, &blocks)?;
        self.verify_to_open(file, &blocks)?; // [OG7]
        let mut at = blocks.start;
        while at < blocks.end {
            let mut state = file.state.write()?;
            let (owner, old_root) = (live_owner(file, &state)?, state.root());
            let (found, next) = self.marked(owner, &state, at..blocks.end, STEP_ITEMS, &|marked| !marked.is_open() && marked.has_mark())?;
            let (mut tx, mut new, mut root) = (Tx::new(&self.volume), state.inode.clone(), old_root);
            for (first, marked) in &found {
                match marked {
                    Marked::Run(run) => tree::mark_run(&mut tx, owner, root, *first, Run { open: true, ..*run })?,
                    Marked::Block(old) => {
                        let Base::Written(run) = old.base else { continue };
                        let base = Base::Written(run.opened());
                        let need = Need::Transient;
                        old.replace(&mut tx, &self.volume, owner, &mut root, *first, BaseChange::To(base), &old.logs, need)?;
                    }
                }
            }
            if !found.is_empty() {
                new.root = root.to_bytes();
                file.commit_moved(tx, &mut state, new, Fenced::nothing_stored())?;
            }
            at = next;
        }
        Ok(())
    }

    /// Reads the pages of a range that have checksums ([OG7]).
    fn verify_to_open(&self, file: &InCoreInode, blocks: &Range<u64>) -> Result<()> {
        if on(Mutant::OpenedUnverified) {
            return Ok(());
        }
        let (view, block_bytes) = (self.view(file)?, u64::from(self.volume.geometry.block_bytes()));
        let (mut at, mut buffer) = (blocks.start, Vec::new());
        while at < blocks.end {
            let (found, next) = {
                let state = file.state.read()?;
                let has_checksums = |marked: &Marked| !marked.is_open() && marked.has_mark();
                self.marked(live_owner(file, &state)?, &state, at..blocks.end, STEP_ITEMS, &has_checksums)?
            };
            for (first, marked) in found {
                let (mut at, end) = (first * block_bytes, first * block_bytes + marked.bytes(block_bytes));
                while at < end {
                    let part = VERIFIED_BYTES.min((end - at) as usize);
                    buffer.resize(VERIFIED_BYTES, 0);
                    self.fetch(file, &view, at, Sink::Private(&mut buffer[..part]), false)?;
                    at += part as u64;
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Closes all open pages of a range of blocks ([OG3]). The caller holds the range, on which is no writable pin. Returns their number.
    pub(super) fn close_blocks(&self, file: &InCoreInode, blocks: Range<u64>, is_changed: bool) -> Result<u64> {
        self.split_runs(file, &blocks)?;
        let (mut at, mut pages) = (blocks.start, 0);
        while at < blocks.end {
            let found = {
                let state = file.state.read()?;
                self.marked(live_owner(file, &state)?, &state, at..blocks.end, 1, &Marked::is_open)?
            };
            let (found, next) = found;
            for (first, marked) in found {
                pages += self.close_one(file, first, &marked, is_changed)?;
            }
            at = next;
        }
        Ok(pages)
    }

    /// Runs and blocks of a range that `wants`, in order, at most so many, and the block to go on with. A run begins with the range or in it.
    fn marked(
        &self,
        owner: Owner,
        state: &State,
        blocks: Range<u64>,
        most: usize,
        wants: &dyn Fn(&Marked) -> bool,
    ) -> Result<(Vec<(u64, Marked)>, u64)> {
        let (mut found, mut next, mut of_run) = (Vec::new(), blocks.end, blocks.start);
        if !state.has_blocks() {
            return Ok((found, next));
        }
        let _ended = tree::walk_range(&self.volume, owner, state.root(), blocks, &mut |item| {
            let (first, marked) = match item {
                Found::Run(first, run) => (first, Marked::Run(run)),
                Found::Block(block, record) if block >= of_run => {
                    (block, Marked::Block(Box::new(Block::of_record(&self.volume, owner, record)?)))
                }
                Found::Block(..) | Found::Page { .. } | Found::Lost(_) => return Ok(ControlFlow::Continue(())),
            };
            of_run = first + marked.blocks();
            if wants(&marked) {
                next = of_run;
                found.push((first, marked));
            }
            Ok(if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        let next = if found.len() == most { next } else { u64::MAX };
        Ok((found, next))
    }

    /// The blocks of a file whose logs were being copied home ([KP5] of `kept_place.rs`).
    pub(super) fn overlaid_blocks(&self, file: &InCoreInode) -> Result<Vec<u64>> {
        let state = file.state.read()?;
        let is_overlaid = |marked: &Marked| matches!(marked, Marked::Block(block) if block.base.is_overlaid());
        let (found, _) = self.marked(live_owner(file, &state)?, &state, 0..u64::MAX, usize::MAX, &is_overlaid)?;
        Ok(found.into_iter().map(|(block, _)| block).collect())
    }

    /// Splits runs across the ends of a range.
    fn split_runs(&self, file: &InCoreInode, blocks: &Range<u64>) -> Result<()> {
        let mut state = file.state.write()?;
        let (owner, root) = (live_owner(file, &state)?, state.root());
        if !state.has_blocks() {
            return Ok(());
        }
        let is_across = |block: u64| match block.checked_sub(1) {
            Some(before) => {
                Ok(tree::run_of(&self.volume, owner, root, before)?.is_some_and(|(first, run)| first + u64::from(run.blocks) > block))
            }
            None => Ok::<_, Error>(false),
        };
        let (start, end) = (is_across(blocks.start)?, is_across(blocks.end)?);
        if !start && !end {
            return Ok(());
        }
        let (mut tx, new) = (Tx::new(&self.volume), state.inode.clone());
        tree::split_run(&mut tx, owner, root, blocks.start)?;
        tree::split_run(&mut tx, owner, root, blocks.end)?;
        file.commit_moved(tx, &mut state, new, Fenced::nothing_stored())
    }

    /// Closes a run or a block ([OG3]). Returns its pages.
    fn close_one(&self, file: &InCoreInode, first: u64, marked: &Marked, is_changed: bool) -> Result<u64> {
        let volume = &self.volume;
        let each = volume.geometry.block_sectors_each();
        let (page, count) = match marked {
            Marked::Run(run) => (run.first, u64::from(run.blocks) * each),
            Marked::Block(block) => match block.base {
                Base::Written(DataRun { at: DataAddress::Page(page), count, .. }) => (page, u64::from(count)),
                _ => return Ok(0),
            },
        };
        let size = self.view(file)?.size;
        let within = size.checked_sub(first * u64::from(volume.geometry.block_bytes()));
        let within = within.filter(|within| (1..count * PAGE_BYTES as u64).contains(within) && !on(Mutant::ClosedBehindEnd));
        if let Some(within) = within {
            self.zero_from(page, count, within)?; // [OG4]
        }
        let (checksums, fenced) = self.settled_checksums(page, count)?;
        let mut state = file.state.write()?;
        let owner = live_owner(file, &state)?;
        let (mut tx, mut new, mut root) = (Tx::new(volume), state.inode.clone(), state.root());
        if within.is_some() && size == new.size {
            new.state &= !TAIL_STALE;
        }
        match marked {
            Marked::Run(run) => {
                let shape = run.shape(&volume.geometry);
                let Some(vector) = run.vector else { return Ok(0) };
                for (index, group) in (0..).zip(checksums.chunks((shape.group_blocks * each) as usize)) {
                    for (line, image) in (index * shape.group_lines..).zip(vector_lines(group, shape.group_lines)) {
                        tx.put(Structure::Mapping, vector.nth(line), image)?;
                    }
                }
                tree::mark_run(&mut tx, owner, root, first, Run { open: false, ..*run })?;
            }
            Marked::Block(old) => {
                let fill = BaseChange::Fill(NewExtent { at: DataAddress::Page(page), count: count as u32, checksums });
                old.replace(&mut tx, volume, owner, &mut root, first, fill, &old.logs, Need::Transient)?;
            }
        }
        new.root = root.to_bytes();
        if is_changed {
            changed(&mut new);
            file.commit(tx, &mut state, new, fenced, Flushed::nothing_written())?;
        } else {
            file.commit_moved(tx, &mut state, new, fenced)?;
        }
        add(&volume.live.work.pages_closed, count);
        Ok(count)
    }

    /// The checksums of pages, whose bytes are durable now, also those that a mapping stored ([OG3]).
    fn settled_checksums(&self, page: LineAddress, count: u64) -> Result<(SmallVec<[u32; 16]>, Fenced)> {
        let drive = &self.volume.drive;
        let mut bytes = vec![0; count as usize * PAGE_BYTES];
        let fenced = match on(Mutant::ClosedUnflushed) {
            true => Fenced::nothing_stored(),
            false => drive.fence(drive.flush_lines(drive.mapped_lines(page, bytes.len() as u64))),
        };
        drive.load(Structure::Data, page, &mut bytes)?;
        Ok((checksums_of(&self.volume, bytes[..].into()), fenced))
    }

    // ---- behind ([OG2]) ---------------------------------------------------------------------------------------------------------------

    /// Closes some pages that are open and not mapped. False if none are known.
    ///
    /// # Errors
    /// `ReadOnly`, `Stopped`.
    pub fn close_open_pages(&self) -> Result<bool> {
        self.volume.health.check_writable()?;
        let Some((number, from)) = self.unchecked.lock().take() else { return Ok(false) };
        let step = self.close_next(number, from);
        let next = match &step {
            Ok(Step { end, .. }) => *end,
            Err(Error::Stopped { .. } | Error::ReadOnly) => Some(from),
            Err(_) => None, // the file is gone, or its mapping is damaged
        };
        self.unchecked.lock().has_closed(number, next);
        match step {
            Ok(Step { pages, .. }) if pages > 0 => {
                tracing::debug!(inode = number.get(), pages, "pages that were open have checksums again")
            }
            Ok(_) => {}
            Err(error @ (Error::Stopped { .. } | Error::ReadOnly)) => return Err(error),
            Err(error) if is_of_a_block(&error) => tracing::warn!(inode = number.get(), %error, "pages stay without checksums"),
            Err(_) => {}
        }
        Ok(true)
    }

    /// Closes the next open run or block of a file, from a block on.
    fn close_next(&self, number: InodeNumber, from: u64) -> Result<Step> {
        let file = self.inodes.get(&self.volume, number)?;
        let next_open = |file: &InCoreInode| -> Result<Option<(u64, u64)>> {
            let state = file.state.read()?;
            let (found, _) = self.marked(live_owner(file, &state)?, &state, from..u64::MAX, 1, &Marked::is_open)?;
            Ok(found.first().map(|(first, marked)| (*first, first + marked.blocks())))
        };
        let Some((first, end)) = next_open(&file)? else { return Ok(Step { end: None, pages: 0 }) };
        let Some(_range) = file.ranges.exclusive_unless_leased(first, end - 1) else {
            self.unchecked.lock().add_later(number); // it is mapped, or has a lease
            let of_pins = file.ranges.pins(first, end - 1).iter().map(|pin| pin.last.saturating_add(1)).max();
            return Ok(Step { end: Some(of_pins.unwrap_or(end).max(end)), pages: 0 });
        };
        let pages = match self.close_blocks(&file, first..end, false) {
            // Those behind it are closed all the same.
            Err(error) if is_of_a_block(&error) && !on(Mutant::UnreadableEndsClosing) => {
                tracing::warn!(inode = number.get(), block = first, %error, "pages stay without checksums");
                0
            }
            other => other?,
        };
        Ok(Step { end: Some(end), pages })
    }

    /// A share of background work.
    pub(crate) fn close_open_pages_behind(&self) -> Result<()> {
        if !self.unchecked.lock().begin_round() {
            return Ok(());
        }
        let start = Instant::now();
        while start.elapsed() < SHARE && !self.write_back.stop.load(Relaxed) && self.close_open_pages()? {}
        Ok(())
    }

    /// Closes what can be closed, before an unmount: a mount of a clean file system walks no mappings.
    pub(crate) fn close_all_open_pages(&self) -> Result<()> {
        while self.close_open_pages()? {}
        Ok(())
    }
}

/// The owner of a file's lines, while the file is there.
fn live_owner(file: &InCoreInode, state: &State) -> Result<Owner> {
    if state.removed { Err(Error::Stale(file.number)) } else { Ok(state.owner(file.number)) }
}

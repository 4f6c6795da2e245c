//! The read path: reads sectors and data logs in parallel.
//!
//! 0. If all bytes are in host memory, copy them: no range is locked, and the drive is not asked ([FP4] of `cache/file_pages.rs`).
//! 1. Lock the range of blocks, shared, over the I/O (RULES R7): space named by a record cannot be reallocated meanwhile. For a sequential
//!    reader the range is longer, if no writer holds it ([`crate::inodes::read_ahead`]).
//! 2. Look each block up; its logs come with its record. If the logs cover the requested bytes, the sectors are not read: the early
//!    termination of RomeFS Algorithm 1. Promoted sectors are read by the byte path ([`super::promote`]).
//! 3. Read sectors by blocks, straight into the caller's buffer where it holds whole sectors; load the logs while the reads are in flight.
//! 4. Verify each log when it is loaded and each sector when its request completes, while others are still in flight. Copy the logs over
//!    the sectors. Unverified bytes are never returned.
//! 5. For readers who keep nothing themselves, pages are read whole, into private memory, and kept before the range is released ([FP1]).
//!
//! [SM4] Whole sectors also go straight into memory that is shared with others ([`Sink::Shared`]), and are verified there by private copies,
//!       a sector each. Others may see them before, and change them afterwards, so nothing is made of them once more: no promoted copy, no
//!       page that is kept, no bytes read ahead. Everything else is read into private memory and copied.

use smallvec::SmallVec;
use tandemfs_device::{BlockRequest, Sink, Source, Structure};
use tandemfs_format::mapping::{LOG_BYTES_MAX, LogEntry, Record};
use tandemfs_format::{DataAddress, InodeNumber, PAGE_BYTES, SECTOR_BYTES, Sector};

use super::FileView;
use super::compose::{load_log, load_logs, verify_sectors};
use super::interface::load_slots;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::index::block::{Base, Block};
use crate::index::tree;
use crate::inodes::InCoreInode;
use crate::inodes::range_lock::RangeGuard;
use crate::mutant::{Mutant, on};
use crate::statistics::{add, count, counted};
use crate::sync::patience;
use crate::types::{Kept, ReadOptions};
use crate::volume::Volume;
use crate::wait::may_wait;

const PAGE: u64 = PAGE_BYTES as u64;

/// The bytes `from..to` of one block, which go to `start` in the caller's buffer.
struct Wanted {
    block: Block,
    block_start: u64,
    from: usize,
    to: usize,
    start: usize,
    /// Sectors or pages to read: the first on the device, index in the block, count.
    sectors: Option<(DataAddress, usize, usize)>,
    /// The caller's buffer does not hold these sectors whole: they are read into a bounce buffer.
    bounced: bool,
    /// They were loaded from the memory zone into the bounce buffer.
    promoted: bool,
}

impl Wanted {
    fn direct(&self) -> bool {
        !self.bounced && !self.promoted
    }

    /// The first sector to read by blocks.
    fn sector(&self) -> Option<Sector> {
        self.sectors.filter(|_| !self.promoted)?.0.sector()
    }
}

/// For whom the drive is read.
struct Reader {
    /// Who keeps the bytes.
    kept: Kept,
    /// How many bytes to read ahead.
    ahead: u64,
    /// Some of the file is mapped.
    is_of_mapped: bool,
}

impl FileSystem {
    /// Reads up to `into.len()` bytes; fewer at the end of the file.
    ///
    /// # Errors
    /// `DamagedData` if a sector or log fails its checksum, `LostData` if a repair gave up some of the bytes.
    pub fn read(&self, number: InodeNumber, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.read_with(number, offset, into, ReadOptions::default())
    }

    /// Like [`FileSystem::read`], with options.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    pub fn read_with(&self, number: InodeNumber, offset: u64, into: &mut [u8], options: ReadOptions) -> Result<usize> {
        self.read_into(number, offset, into.into(), options)
    }

    /// Like [`FileSystem::read_with`], also into memory that others use: they may see bytes that were not verified, until it returns.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    pub fn read_into(&self, number: InodeNumber, offset: u64, mut into: Sink<'_>, options: ReadOptions) -> Result<usize> {
        let _counted = counted(&self.volume.live.operations.read);
        let volume = &self.volume;
        let file = self.inodes.get(volume, number)?;
        if let Some(length) = self.read_kept(&file, offset, &mut into, options.kept)? {
            return Ok(length);
        }
        if file.state.read()?.inode.is_directory() {
            return Err(Error::IsDirectory);
        }
        if into.is_empty() {
            return Ok(0);
        }
        let ahead = self.read_ahead.step(&file, offset, into.len() as u64);
        let (range, ahead) = self.lock_to_read(&file, offset, into.len() as u64, ahead)?;
        {
            let _state = file.state.read()?;
            self.volume.versions.note_bytes(number, || file.ranges.is_mapped()); // [VS4] of `versions.rs`
        }
        let view = self.view(&file)?;
        let length = view.size.saturating_sub(offset).min(into.len() as u64) as usize;
        if !file.state.read()?.inode.has_mapping() || length == 0 {
            return Ok(0);
        }
        let mut into = into.part(0..length);
        let is_of_mapped = range.is_of_mapped && !on(Mutant::PagesOfMappedKept); // [FP3]
        let range = range.unless(Mutant::ReadRangeReleasedEarly);
        let mut reader = Reader { kept: options.kept, ahead: if is_of_mapped { 0 } else { ahead }, is_of_mapped };
        if reader.kept == Kept::ToCompare && self.settings.modified_lines() == 0 {
            reader.kept = Kept::Nowhere;
        }
        let (done, found) = file.pages.copy_start(offset, &mut into, options.kept == Kept::Here);
        if found.is_ahead {
            count(&volume.live.work.read_ahead_hits);
        }
        if done < length {
            self.fetch_and_keep(&file, &view, offset + done as u64, into.part(done..length), &reader)?;
        }
        drop(range);
        add(&volume.live.work.user_read_bytes, length as u64);
        Ok(length)
    }

    /// 0. Answers a read from pages in host memory, if all of it is there.
    fn read_kept(&self, file: &InCoreInode, offset: u64, into: &mut Sink<'_>, kept: Kept) -> Result<Option<usize>> {
        if !file.pages.has_any() {
            return Ok(None);
        }
        let state = file.state.read()?;
        let size = state.inode.size;
        let state = (!on(Mutant::PageEndApart)).then_some(state); // [FP4]
        if state.as_ref().is_some_and(|state| state.removed) {
            return Ok(None);
        }
        let length = size.saturating_sub(offset).min(into.len() as u64) as usize;
        if length == 0 {
            return Ok(None);
        }
        let note = || {
            if !on(Mutant::PageNotNoted) {
                self.volume.versions.note_bytes(file.number, || file.ranges.is_mapped()); // [VS4] of `versions.rs`
            }
        };
        let Some(found) = file.pages.copy(offset, &mut into.part(0..length), kept == Kept::Here, note) else { return Ok(None) };
        let work = &self.volume.live.work;
        count(&work.page_hits);
        if found.is_ahead {
            count(&work.read_ahead_hits);
        }
        add(&work.user_read_bytes, length as u64);
        Ok(Some(length))
    }

    /// 1. Locks the blocks of a range. Also locks the next `ahead` bytes, unless a writer holds one of their blocks ([RA3]).
    fn lock_to_read<'f>(&self, file: &'f InCoreInode, offset: u64, length: u64, ahead: u64) -> Result<(RangeGuard<'f>, u64)> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let last = |end: u64| (end - 1) / block_bytes;
        let (first, end) = (offset / block_bytes, offset.saturating_add(length));
        if ahead > 0
            && let Some(range) = file.ranges.try_shared(first, last(end.saturating_add(ahead)))
        {
            return Ok((range, ahead));
        }
        Ok((file.ranges.shared(first, last(end))?, 0))
    }

    /// Reads a locked range, and what a sequential reader asks for next, and keeps pages for this reader (5).
    fn fetch_and_keep(&self, file: &InCoreInode, view: &FileView, offset: u64, mut into: Sink<'_>, reader: &Reader) -> Result<()> {
        let (volume, end) = (&self.volume, offset + into.len() as u64);
        let ahead_end = match reader.ahead {
            0 => end,
            ahead => self.end_of_sectors(file, view, offset, end, (end + ahead) / PAGE * PAGE)?.max(end),
        };
        if reader.kept == Kept::Here {
            count(&volume.live.work.page_misses);
        }
        let keeps = !reader.is_of_mapped
            && match reader.kept {
                Kept::Here => into.len() as u64 <= volume.pages.files.read_bytes_max(),
                Kept::ToCompare => true,
                Kept::Nowhere => false,
            };
        // Who does not wait gets what he asked for: the rest of a page may lie behind a request.
        let widens = keeps && reader.kept == Kept::Here && !patience::tries();
        let is_ahead = ahead_end > end;
        let start = if widens || is_ahead { offset / PAGE * PAGE } else { offset };
        let wide = start..if widens { ahead_end.max(end.next_multiple_of(PAGE)).min(view.size) } else { ahead_end };
        if wide == (offset..end) && !(keeps && into.is_shared()) {
            let fetched = self.fetch(file, view, offset, into.reborrow(), true);
            if fetched.is_ok() || on(Mutant::UnverifiedKept) {
                self.keep_pages(file, view, offset, into.private().map(|bytes| &*bytes).filter(|_| keeps));
            }
            return fetched.inspect(|()| self.read_ahead.reached(file, offset, end));
        }
        if is_ahead {
            may_wait()?; // sectors
        }
        let fetched = self.read_ahead.with_room((wide.end - wide.start) as usize, |bytes| {
            self.fetch(file, view, wide.start, Sink::Private(&mut *bytes), !is_ahead)?;
            let asked = (offset - wide.start) as usize;
            into.copy_from(0, &bytes[asked..asked + into.len()]);
            let own_end = if is_ahead { (end / PAGE * PAGE).max(wide.start) } else { wide.end };
            let (own, ahead) = bytes.split_at((own_end - wide.start) as usize);
            self.keep_pages(file, view, wide.start, Some(own).filter(|_| keeps));
            if !reader.is_of_mapped {
                volume.pages.files.keep_ahead(&file.pages, view.size, own_end, ahead, &volume.live.work);
            }
            Ok(())
        });
        match fetched {
            Ok(()) => {
                self.read_ahead.reached(file, offset, wide.end);
                Ok(())
            }
            Err(Error::WouldWait) => Err(Error::WouldWait),
            Err(error) if wide == (offset..end) => Err(error),
            Err(_) => self.fetch(file, view, offset, into, true), // [RA3]
        }
    }

    /// Keeps the pages of bytes that were read. The caller has their range ([FP1]).
    fn keep_pages(&self, file: &InCoreInode, view: &FileView, offset: u64, bytes: Option<&[u8]>) {
        if let Some(bytes) = bytes {
            self.volume.pages.files.keep_read(&file.pages, view.size, offset, bytes, &self.volume.live.work);
        }
    }

    /// The end of the contiguous blocks with sectors from `offset`, at most `limit`. Logs need no readahead: they are fast to read.
    fn end_of_sectors(&self, file: &InCoreInode, view: &FileView, offset: u64, end: u64, limit: u64) -> Result<u64> {
        let block_bytes = u64::from(self.volume.geometry.block_bytes());
        let limit = limit.min(view.size);
        if limit <= end {
            return Ok(offset.min(limit));
        }
        let blocks = offset / block_bytes..limit.div_ceil(block_bytes);
        let records = self.mapped(file, view, |root| tree::lookup_range(&self.volume, view.owner, root, blocks.clone()))?;
        // Of the memory zone nothing is read ahead: a load waits for no request.
        let is_behind_requests = |base: Base| base.data_bytes() > 0 && !base.is_in_memory();
        let is_written = |record: &Record| Base::of_record(&self.volume, view.owner, record).is_ok_and(is_behind_requests);
        let written = records.iter().take_while(|record| is_written(record)).count() as u64;
        Ok(if written == 0 { offset } else { ((blocks.start + written) * block_bytes).min(limit) })
    }

    /// Reads bytes inside the file. The caller has locked their blocks. If `hot`, the sectors may be promoted.
    pub(super) fn fetch(&self, file: &InCoreInode, view: &FileView, offset: u64, mut into: Sink<'_>, hot: bool) -> Result<()> {
        let mut wanted = self.want_all(file, view, offset, into.len())?;
        let mut bounces = self.bounces(view, offset, &mut wanted, into.len());
        let pieces = log_pieces(&wanted);
        load_pages(&self.volume, view, &wanted, &mut bounces, &mut into)?;
        if !wanted.iter().any(|wanted| wanted.sector().is_some()) {
            wanted.iter().zip(&bounces).for_each(|(wanted, bounce)| lay_sectors(wanted, bounce, &mut into));
            return load_pieces(&self.volume, view.owner.inode, &pieces, &mut into);
        }
        may_wait()?;
        let log_bytes = transfer(&self.volume, view, &wanted, &pieces, &mut bounces, into.reborrow())?;
        let length = into.len();
        if hot && self.is_promoted(length) {
            for (wanted, bounce) in wanted.iter().zip(&bounces) {
                let (Some(sector), Some((_, _, sectors))) = (wanted.sector(), wanted.sectors) else { continue };
                match into.private() {
                    _ if !wanted.direct() => self.promote(length, sector, bounce),
                    Some(into) => self.promote(length, sector, &into[wanted.start..wanted.start + sectors * SECTOR_BYTES]),
                    None => {} // [SM4]
                }
            }
        }
        wanted.iter().zip(&bounces).for_each(|(wanted, bounce)| lay_sectors(wanted, bounce, &mut into));
        let mut rest = &log_bytes[..];
        for piece in &pieces {
            let (bytes, further) = rest.split_at(piece.log.length as usize);
            into.copy_from(piece.start, &bytes[piece.skip..piece.skip + piece.length]);
            rest = further;
        }
        Ok(())
    }

    /// 2. The requested bytes of each block of a range.
    fn want_all(&self, file: &InCoreInode, view: &FileView, offset: u64, length: usize) -> Result<SmallVec<[Wanted; 2]>> {
        let volume = &self.volume;
        let block_bytes = u64::from(volume.geometry.block_bytes());
        let (first, end) = (offset / block_bytes, (offset + length as u64).div_ceil(block_bytes));
        let mut wanted: SmallVec<[Wanted; 2]> = SmallVec::new();
        let mut done = 0;
        self.mapped(file, view, |root| {
            for (block, record) in (first..).zip(tree::lookup_range(volume, view.owner, root, first..end)?) {
                let block_start = block * block_bytes;
                let from = offset.saturating_sub(block_start) as usize;
                let to = (from + length - done).min(block_bytes as usize);
                let found = Block::of_record(volume, view.owner, record)?;
                if let Some(byte) = found.first_lost(from as u32..to as u32, |_| None) {
                    return Err(Error::LostData { inode: view.owner.inode, offset: block_start + u64::from(byte) });
                }
                wanted.push(self.want(found, block_start, from, to, done));
                done += to - from;
            }
            Ok(())
        })?;
        Ok(wanted)
    }

    /// One bounce buffer for each block whose sectors cannot go straight to the caller's buffer. Promoted sectors are loaded here.
    fn bounces(&self, view: &FileView, offset: u64, wanted: &mut [Wanted], length: usize) -> SmallVec<[Vec<u8>; 2]> {
        let (volume, has_copies, policy) = (&self.volume, self.is_promoted(length), self.settings.write_back());
        let first = offset / u64::from(volume.geometry.block_bytes());
        let mut bounces = SmallVec::new();
        for (block, want) in (first..).zip(wanted) {
            self.write_back.heat.read(policy, &volume.journal, view.owner.inode, block);
            let mut bounce = Vec::new();
            if let Some((at, first, sectors)) = want.sectors {
                let promoted = |sector| volume.load_promoted(view.owner, want.block_start, &want.block, sector, first as u64, sectors);
                if let Some(bytes) = at.sector().filter(|_| has_copies).and_then(promoted) {
                    (bounce, want.promoted) = (bytes, true);
                } else if want.bounced {
                    bounce = vec![0; sectors * SECTOR_BYTES];
                }
            }
            bounces.push(bounce);
        }
        bounces
    }

    /// 2. Which sectors of a block must be read.
    fn want(&self, block: Block, block_start: u64, from: usize, to: usize, start: usize) -> Wanted {
        let covered: usize = block.logs().map(|log| (log.end() as usize).min(to).saturating_sub((log.offset as usize).max(from))).sum();
        let mut wanted = Wanted { block, block_start, from, to, start, sectors: None, bounced: false, promoted: false };
        let run = match wanted.block.base {
            Base::Hole | Base::Unwritten(_) | Base::Lost(_) => return wanted, // logs cover what is wanted of a lost block
            Base::Written(run) => run,
        };
        if covered == to - from {
            count(&self.volume.live.work.early_terminations); // logs do not overlap, so the sum is exact
            return wanted;
        }
        let (first, end) = (from / SECTOR_BYTES, to.div_ceil(SECTOR_BYTES).min(run.count as usize));
        if first >= end {
            return wanted;
        }
        wanted.sectors = Some((run.at.nth(first as u64), first, end - first));
        wanted.bounced = !from.is_multiple_of(SECTOR_BYTES) || end * SECTOR_BYTES > to;
        wanted
    }
}

/// 3 and 4 for blocks in the memory zone: loads their pages, into the caller's buffer or into the bounce buffer, and verifies them.
fn load_pages(volume: &Volume, view: &FileView, wanted: &[Wanted], bounces: &mut [Vec<u8>], into: &mut Sink<'_>) -> Result<()> {
    let mut copy = Vec::new();
    for (wanted, bounce) in wanted.iter().zip(bounces) {
        let Some((DataAddress::Page(page), first, count)) = wanted.sectors else { continue };
        let range = wanted.start..wanted.start + count * SECTOR_BYTES;
        let is_copied = !wanted.bounced && into.is_shared(); // [SM4]
        let bytes = match into.private() {
            _ if wanted.bounced => &mut bounce[..],
            Some(into) => &mut into[range.clone()],
            None => {
                copy.resize(range.len(), 0);
                &mut copy[..]
            }
        };
        load_slots(volume, Structure::Data, page, bytes)?;
        verify_sectors(volume, view.owner, wanted.block_start, &wanted.block, first as u64, Source::Private(bytes))?;
        if is_copied {
            into.copy_from(range.start, &copy);
        }
    }
    Ok(())
}

/// A log that overlaps the requested bytes: its bytes from `skip` go to `start` in the caller's buffer.
struct LogPiece {
    log: LogEntry,
    block_start: u64,
    skip: usize,
    start: usize,
    length: usize,
}

/// In file order, so that adjacent logs are loaded together and the lowest damaged offset is found first.
fn log_pieces(wanted: &[Wanted]) -> SmallVec<[LogPiece; 4]> {
    let mut pieces: SmallVec<[LogPiece; 4]> = SmallVec::new();
    for wanted in wanted {
        for log in wanted.block.logs() {
            let (from, to) = ((log.offset as usize).max(wanted.from), (log.end() as usize).min(wanted.to));
            if from < to {
                pieces.push(LogPiece {
                    log: *log,
                    block_start: wanted.block_start,
                    skip: from - log.offset as usize,
                    start: wanted.start + from - wanted.from,
                    length: to - from,
                });
            }
        }
    }
    pieces.sort_unstable_by_key(|piece| piece.start);
    pieces
}

/// 3 and 4. Reads sectors by blocks and meanwhile logs by bytes, and verifies all. Returns the bytes of the logs, concatenated.
fn transfer(
    volume: &Volume,
    view: &FileView,
    wanted: &[Wanted],
    pieces: &[LogPiece],
    bounces: &mut [Vec<u8>],
    into: Sink<'_>,
) -> Result<Vec<u8>> {
    let mut loaded = Ok(());
    let mut damage = None;
    let (runs, mut requests) = read_requests(wanted, bounces, into);
    let mut log_bytes = Vec::new();
    let mut load_pieces = || {
        let logs: SmallVec<[_; 16]> = pieces.iter().map(|piece| (piece.block_start, piece.log)).collect();
        log_bytes.resize(logs.iter().map(|(_, log)| log.length as usize).sum(), 0);
        loaded = load_logs(volume, view.owner.inode, &logs, &mut log_bytes);
    };
    let mut verify = |index: usize, at: usize, bytes: Source<'_>| {
        let run: &Run = &runs[index];
        for wanted in &wanted[run.first..run.end] {
            if let Err(error) = verify_part(volume, view, wanted, wanted.start.saturating_sub(run.start), at, bytes) {
                first_damage(&mut damage, error);
            }
        }
    };
    drop(volume.drive.transfer_each(Structure::Data, &mut requests, &mut load_pieces, &mut verify)?);
    drop(requests);
    if let Err(error) = loaded {
        first_damage(&mut damage, error);
    }
    damage.map_or(Ok(log_bytes), Err)
}

/// Loads logs only. Whole logs that are adjacent in the file and on the device go straight into the caller's buffer.
fn load_pieces(volume: &Volume, inode: InodeNumber, pieces: &[LogPiece], into: &mut Sink<'_>) -> Result<()> {
    let is_whole = |piece: &LogPiece| piece.length == piece.log.length as usize;
    let goes_on = |one: &LogPiece, next: &LogPiece| {
        is_whole(one) && is_whole(next) && one.start + one.length == next.start && next.log.follows(&one.log)
    };
    for run in pieces.chunk_by(goes_on) {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let mut target = into.part(first.start..last.start + last.length);
        if is_whole(first) {
            let logs: SmallVec<[_; 16]> = run.iter().map(|piece| (piece.block_start, piece.log)).collect();
            match target.private() {
                Some(target) => load_logs(volume, inode, &logs, target)?,
                None => {
                    let mut bytes = vec![0; target.len()];
                    load_logs(volume, inode, &logs, &mut bytes)?;
                    target.copy_from(0, &bytes); // [SM4]
                }
            }
        } else {
            let mut buffer = [0; LOG_BYTES_MAX];
            let bytes = &mut buffer[..first.log.length as usize];
            load_log(volume, inode, first.block_start, &first.log, bytes)?;
            target.copy_from(0, &bytes[first.skip..first.skip + first.length]);
        }
    }
    Ok(())
}

/// One request: blocks `first..end` of the wanted list, from `start` in the caller's buffer.
struct Run {
    first: usize,
    end: usize,
    start: usize,
}

/// 3. Requests for the sectors of all blocks. Blocks adjacent on the device and in the buffer share one request.
fn read_requests<'b>(wanted: &[Wanted], bounces: &'b mut [Vec<u8>], into: Sink<'b>) -> (Vec<Run>, Vec<BlockRequest<'b>>) {
    let mut runs: Vec<Run> = Vec::with_capacity(wanted.len());
    let mut requests: Vec<BlockRequest<'b>> = Vec::with_capacity(wanted.len());
    // Runs of direct reads: sector, start in the buffer, length in bytes.
    let mut places: SmallVec<[(Sector, usize, usize); 4]> = SmallVec::new();
    for (index, wanted) in wanted.iter().enumerate() {
        let (Some(sector), Some((_, _, number))) = (wanted.sector().filter(|_| wanted.direct()), wanted.sectors) else { continue };
        match places.last_mut() {
            Some((run, start, length))
                if run.offset_bytes() + *length as u64 == sector.offset_bytes() && *start + *length == wanted.start =>
            {
                *length += number * SECTOR_BYTES;
                if let Some(run) = runs.last_mut() {
                    run.end = index + 1;
                }
            }
            _ => {
                places.push((sector, wanted.start, number * SECTOR_BYTES));
                runs.push(Run { first: index, end: index + 1, start: wanted.start });
            }
        }
    }
    let mut rest = into;
    let mut consumed = 0;
    for (sector, start, length) in places {
        let (_, tail) = rest.split_at(start - consumed);
        let (buffer, tail) = tail.split_at(length);
        requests.push(BlockRequest::Read { sector, buffer });
        rest = tail;
        consumed = start + length;
    }
    for ((index, wanted), buffer) in wanted.iter().enumerate().zip(bounces) {
        if let Some(sector) = wanted.sector().filter(|_| wanted.bounced) {
            runs.push(Run { first: index, end: index + 1, start: wanted.start });
            requests.push(BlockRequest::Read { sector, buffer: buffer.into() });
        }
    }
    (runs, requests)
}

/// Step 4 for a completed part of a request, at `at` in the request's buffer: verifies the bytes that belong to the block whose sectors
/// start at `block_at` in that buffer.
fn verify_part(volume: &Volume, view: &FileView, wanted: &Wanted, block_at: usize, at: usize, bytes: Source<'_>) -> Result<()> {
    let Some((_, first, sectors)) = wanted.sectors else { return Ok(()) };
    let (from, to) = (at.max(block_at), (at + bytes.len()).min(block_at + sectors * SECTOR_BYTES));
    let is_passed_over = at > 0 && on(Mutant::LaterPartsNotVerified) || bytes.private().is_none() && on(Mutant::SharedPartsNotVerified);
    if from >= to || is_passed_over {
        return Ok(());
    }
    let first = first + (from - block_at) / SECTOR_BYTES;
    verify_sectors(volume, view.owner, wanted.block_start, &wanted.block, first as u64, bytes.slice(from - at..to - at))
}

/// Keeps the error to return. Among damaged-data errors, that is the lowest offset, in whatever order requests complete.
fn first_damage(kept: &mut Option<Error>, error: Error) {
    match (&*kept, &error) {
        (Some(Error::DamagedData { offset: kept, .. }), Error::DamagedData { offset, .. }) if kept <= offset => {}
        (Some(Error::DamagedData { .. }) | None, _) => *kept = Some(error),
        (Some(_), _) => {}
    }
}

/// 4. Fills holes with zeros, and copies from the bounce buffer.
fn lay_sectors(wanted: &Wanted, bounce: &[u8], into: &mut Sink<'_>) {
    let length = wanted.to - wanted.from;
    let mut target = into.part(wanted.start..wanted.start + length);
    match wanted.sectors {
        None => target.fill_zeros(0..length),
        Some((_, first, number)) => {
            let end = ((first + number) * SECTOR_BYTES).min(wanted.to);
            if !wanted.direct() {
                let skip = wanted.from - first * SECTOR_BYTES;
                target.copy_from(0, &bounce[skip..skip + end - wanted.from]);
            }
            target.fill_zeros(end - wanted.from..length);
        }
    }
}

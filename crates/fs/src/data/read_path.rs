//! A read: from where the bytes are, both paths in parallel.
//!
//! 1. Lock the range of blocks, shared, over the I/O (RULES R7): what a record names cannot be given to anyone else meanwhile.
//! 2. Look each block up: its logs come with its record. Where the logs cover what is asked for, the sectors are not read: the early
//!    termination of RomeFS Algorithm 1.
//! 3. Read sectors by blocks, straight into the caller's buffer where it holds whole sectors; while they are in flight load the logs.
//! 4. Verify every sector and log; lay the logs over the sectors. Nothing unverified is returned.

use smallvec::SmallVec;
use tandemfs_device::{BlockRequest, Structure};
use tandemfs_format::mapping::LogEntry;
use tandemfs_format::{InodeNumber, SECTOR_BYTES, Sector};

use super::compose::{load_log, verify_sectors};
use crate::index::block::Block;
use crate::mutant::{Mutant, on};
use crate::statistics::{add, count};
use crate::{Error, FileSystem, Result};

/// What is wanted of one block: bytes `from..to` of it, at `start` in the caller's buffer.
struct Wanted {
    block: Block,
    block_start: u64,
    from: usize,
    to: usize,
    start: usize,
    /// Sectors to read: first index in the block, number.
    sectors: Option<(Sector, usize, usize)>,
    /// Where they go when the caller's buffer does not hold them whole.
    bounce: Vec<u8>,
}

impl Wanted {
    fn direct(&self) -> bool {
        self.bounce.is_empty()
    }
}

impl FileSystem {
    /// Reads up to `into.len()` bytes; fewer at the end of the file.
    ///
    /// # Errors
    /// `DamagedData` where a sector or log does not fit its checksum.
    pub fn read(&self, number: InodeNumber, offset: u64, into: &mut [u8]) -> Result<usize> {
        count(&self.volume.live.operations.read);
        let volume = &self.volume;
        let handle = self.inodes.get(volume, number)?;
        if handle.state.read().inode.is_directory() {
            return Err(Error::IsDirectory);
        }
        if into.is_empty() {
            return Ok(0);
        }
        let block_bytes = u64::from(volume.geometry.block_bytes());
        let last = offset.saturating_add(into.len() as u64 - 1) / block_bytes;
        let range = handle.ranges.shared(offset / block_bytes, last);
        let view = self.view(&handle)?;
        let length = view.size.saturating_sub(offset).min(into.len() as u64) as usize;
        if !handle.state.read().inode.has_mapping() || length == 0 {
            return Ok(0);
        }
        let into = &mut into[..length];

        let mut wanted: SmallVec<[Wanted; 2]> = SmallVec::new();
        let mut done = 0;
        while done < length {
            let at = offset + done as u64;
            let from = (at % block_bytes) as usize;
            let to = (from + length - done).min(block_bytes as usize);
            let block = Block::lookup(volume, view.owner, view.root, at / block_bytes)?;
            self.write_back.heat.read(volume, number, at / block_bytes);
            wanted.push(self.want(block, at - from as u64, from, to, done));
            done += to - from;
        }
        let _range = (!on(Mutant::ReadRangeReleasedEarly)).then_some(range);
        let pieces = log_pieces(&wanted);
        if wanted.iter().any(|wanted| wanted.sectors.is_some()) {
            let mut loaded: Vec<Result<Vec<u8>>> = Vec::with_capacity(pieces.len());
            let mut requests = read_requests(&mut wanted, into);
            drop(volume.drive.transfer(Structure::Data, &mut requests, &mut || {
                loaded.extend(pieces.iter().map(|piece| {
                    let mut bytes = vec![0; piece.log.length as usize];
                    load_log(volume, number, piece.block_start, &piece.log, &mut bytes).map(|()| bytes)
                }));
            })?);
            drop(requests);
            for wanted in &wanted {
                let Some((_, first, sectors)) = wanted.sectors else { continue };
                let read = if wanted.direct() { &into[wanted.start..wanted.start + sectors * SECTOR_BYTES] } else { &wanted.bounce };
                verify_sectors(volume, view.owner, wanted.block_start, &wanted.block, first as u64, read)?;
            }
            wanted.iter().for_each(|wanted| lay_sectors(wanted, into));
            for (piece, bytes) in pieces.iter().zip(loaded) {
                into[piece.start..piece.start + piece.length].copy_from_slice(&bytes?[piece.skip..piece.skip + piece.length]);
            }
        } else {
            wanted.iter().for_each(|wanted| lay_sectors(wanted, into));
            let mut buffer = [0; 4096];
            for piece in &pieces {
                let target = &mut into[piece.start..piece.start + piece.length];
                if piece.length == piece.log.length as usize {
                    load_log(volume, number, piece.block_start, &piece.log, target)?;
                } else {
                    let bytes = &mut buffer[..piece.log.length as usize];
                    load_log(volume, number, piece.block_start, &piece.log, bytes)?;
                    target.copy_from_slice(&bytes[piece.skip..piece.skip + piece.length]);
                }
            }
        }
        add(&volume.live.work.user_read_bytes, length as u64);
        Ok(length)
    }

    /// 2. Which sectors of a block are needed.
    fn want(&self, block: Block, block_start: u64, from: usize, to: usize, start: usize) -> Wanted {
        let covered: usize = block.logs().map(|log| (log.end() as usize).min(to).saturating_sub((log.offset as usize).max(from))).sum();
        let mut wanted = Wanted { block, block_start, from, to, start, sectors: None, bounce: Vec::new() };
        let Some(extent) = wanted.block.extent.filter(|extent| !extent.unwritten) else { return wanted };
        if covered == to - from {
            count(&self.volume.live.work.early_terminations); // logs do not overlap, so the sum says it
            return wanted;
        }
        let (first, end) = (from / SECTOR_BYTES, to.div_ceil(SECTOR_BYTES).min(extent.count as usize));
        if first >= end {
            return wanted;
        }
        wanted.sectors = Some((extent.sector.nth(first as u64), first, end - first));
        if !from.is_multiple_of(SECTOR_BYTES) || end * SECTOR_BYTES > to {
            wanted.bounce = vec![0; (end - first) * SECTOR_BYTES];
        }
        wanted
    }
}

/// A log that overlaps what is wanted: its bytes from `skip` go to `start` in the caller's buffer.
struct LogPiece {
    log: LogEntry,
    block_start: u64,
    skip: usize,
    start: usize,
    length: usize,
}

fn log_pieces(wanted: &[Wanted]) -> SmallVec<[LogPiece; 4]> {
    let mut pieces = SmallVec::new();
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
    pieces
}

/// 3. Requests for the sectors of all blocks. Blocks that lie side by side on the device and in the buffer are one request.
fn read_requests<'b>(wanted: &'b mut [Wanted], into: &'b mut [u8]) -> Vec<BlockRequest<'b>> {
    let mut requests: Vec<BlockRequest<'b>> = Vec::with_capacity(wanted.len());
    // Runs of direct reads: sector, start in the buffer, bytes.
    let mut runs: SmallVec<[(Sector, usize, usize); 4]> = SmallVec::new();
    for wanted in wanted.iter_mut() {
        let Some((sector, _, number)) = wanted.sectors else { continue };
        let bytes = number * SECTOR_BYTES;
        if !wanted.direct() {
            requests.push(BlockRequest::Read { sector, buffer: &mut wanted.bounce });
            continue;
        }
        match runs.last_mut() {
            Some((run, start, length))
                if run.offset_bytes() + *length as u64 == sector.offset_bytes() && *start + *length == wanted.start =>
            {
                *length += bytes;
            }
            _ => runs.push((sector, wanted.start, bytes)),
        }
    }
    let mut rest = into;
    let mut consumed = 0;
    for (sector, start, length) in runs {
        let (_, tail) = rest.split_at_mut(start - consumed);
        let (buffer, tail) = tail.split_at_mut(length);
        requests.push(BlockRequest::Read { sector, buffer });
        rest = tail;
        consumed = start + length;
    }
    requests
}

/// 4. Zeros where there are no sectors, and what was read into a bounce buffer.
fn lay_sectors(wanted: &Wanted, into: &mut [u8]) {
    let target = &mut into[wanted.start..wanted.start + wanted.to - wanted.from];
    match wanted.sectors {
        None => target.fill(0),
        Some((_, first, number)) => {
            let end = ((first + number) * SECTOR_BYTES).min(wanted.to);
            if !wanted.direct() {
                let skip = wanted.from - first * SECTOR_BYTES;
                target[..end - wanted.from].copy_from_slice(&wanted.bounce[skip..skip + end - wanted.from]);
            }
            target[end - wanted.from..].fill(0);
        }
    }
}

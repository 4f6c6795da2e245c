//! A file with the old bytes of everything that a repair changes, and the way back.
//!
//! A header of 64 B, then entries of 32 B and their bytes: runs of lines or sectors, each place at most once.
//!
//! [UD1] An entry is durable in the file before the device changes there. A repair that ends adds an end mark. Without that mark the
//!       entries from the first torn one on have changed nothing, and are ignored; with it every entry has to verify.
//! [UD2] All entries are verified before the first is put back. Putting back is repeatable: after a cut it starts again.
//! [UD3] A line or sector that the device cannot read has no old bytes; the file has bytes for it that fit no checksum. So it is damaged once
//!       they are put back, as it was before. What the repair wrote there would verify beside older bytes: as a superblock it would count.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use tandemfs_device::{BlockRequest, DeviceError, Drive, Structure};
use tandemfs_format::checksum::crc32c;
use tandemfs_format::superblock::Superblock;
use tandemfs_format::{LINE_BYTES, LineAddress, SECTOR_BYTES, Sector};

use crate::claims::Claims;
use crate::error::CheckError;
use crate::image::UNREADABLE;
use crate::mutant::{Mutant, on};

const MAGIC: &[u8; 8] = b"TandemUn";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 32;
const KIND_LINES: u64 = 1;
const KIND_SECTORS: u64 = 2;
const KIND_END: u64 = 3;
/// Most bytes of one entry.
const RUN_BYTES_MAX: u64 = 1 << 20;

fn failure(path: &Path, reason: impl Into<String>) -> CheckError {
    CheckError::Undo { path: path.display().to_string(), reason: reason.into() }
}

fn header(superblock: &Superblock) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..32].copy_from_slice(superblock.pair.as_bytes());
    header[32..40].copy_from_slice(&superblock.geometry.memory_bytes().to_le_bytes());
    header[40..48].copy_from_slice(&superblock.geometry.block_sectors().to_le_bytes());
    let crc = crc32c(&header[..HEADER_BYTES - 4]);
    header[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The file while a repair runs.
pub(crate) struct Undo {
    path: std::path::PathBuf,
    file: File,
    lines: Claims,
    sectors: Claims,
    bytes: u64,
}

impl Undo {
    /// Makes the file.
    pub(crate) fn create(path: &Path, superblock: &Superblock) -> Result<Self, CheckError> {
        let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| failure(path, error.to_string()))?;
        let mut undo = Self { path: path.to_owned(), file, lines: Claims::default(), sectors: Claims::default(), bytes: 0 };
        undo.append(&header(superblock))?;
        undo.sync()?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(|error| failure(path, error.to_string()))?;
        Ok(undo)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Everything that was changed is kept.
    pub(crate) fn finish(&mut self) -> Result<(), CheckError> {
        self.append_entry(KIND_END, 0, &[])?;
        self.sync()
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), CheckError> {
        self.file.write_all(bytes).map_err(|error| failure(&self.path, error.to_string()))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn sync(&self) -> Result<(), CheckError> {
        self.file.sync_all().map_err(|error| failure(&self.path, error.to_string()))
    }

    /// Keeps lines that are not kept yet, given in rising order ([UD1]).
    pub(crate) fn keep_lines(&mut self, drive: &Drive, lines: &mut dyn Iterator<Item = u64>) -> Result<(), CheckError> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for line in lines {
            if !self.lines.is_free(line, 1) {
                continue;
            }
            self.lines.claim(line, 1);
            match runs.last_mut() {
                Some((first, count)) if *first + *count == line && *count < RUN_BYTES_MAX / LINE_BYTES as u64 => *count += 1,
                _ => runs.push((line, 1)),
            }
        }
        for (first, count) in &runs {
            let mut bytes = vec![0; *count as usize * LINE_BYTES];
            let first = LineAddress::new(*first);
            if drive.load(Structure::Mapping, first, &mut bytes).is_err() {
                for (index, line) in (0..).zip(bytes.chunks_mut(LINE_BYTES)) {
                    or_unreadable(drive.load(Structure::Mapping, first.nth(index), line), line)?;
                }
            }
            self.append_entry(KIND_LINES, first.number(), &bytes)?;
        }
        if runs.is_empty() { Ok(()) } else { self.sync() }
    }

    /// Keeps sectors that are not kept yet.
    pub(crate) fn keep_sectors(&mut self, drive: &Drive, first: Sector, count: u64) -> Result<(), CheckError> {
        let end = first.number() + count;
        for sector in (first.number()..end).filter(|sector| self.sectors.is_free(*sector, 1)).collect::<Vec<_>>() {
            self.sectors.claim(sector, 1);
            let mut bytes = vec![0; SECTOR_BYTES];
            let mut requests = [BlockRequest::Read { sector: Sector::new(sector), buffer: (&mut bytes).into() }];
            let read = drive.transfer(Structure::Data, &mut requests, &mut || {}).map(drop);
            or_unreadable(read, &mut bytes)?;
            self.append_entry(KIND_SECTORS, sector, &bytes)?;
        }
        self.sync()
    }

    fn append_entry(&mut self, kind: u64, first: u64, bytes: &[u8]) -> Result<(), CheckError> {
        let mut entry = [0; ENTRY_BYTES];
        entry[4..8].copy_from_slice(&crc32c(bytes).to_le_bytes());
        entry[8..16].copy_from_slice(&kind.to_le_bytes());
        entry[16..24].copy_from_slice(&first.to_le_bytes());
        entry[24..32].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        let crc = crc32c(&entry[4..]);
        entry[..4].copy_from_slice(&crc.to_le_bytes());
        self.append(&entry)?;
        self.append(bytes)
    }
}

/// Bytes for what could not be read ([UD3]). Other errors stay errors.
fn or_unreadable(read: Result<(), DeviceError>, bytes: &mut [u8]) -> Result<(), DeviceError> {
    match read {
        Err(DeviceError::Poisoned { .. } | DeviceError::Block { .. }) if !on(Mutant::UndoNeedsBytes) => {
            bytes.fill(UNREADABLE);
            Ok(())
        }
        other => other,
    }
}

/// What was put back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Undone {
    /// Lines of the memory zone.
    pub lines: u64,
    /// Sectors of the block zone.
    pub sectors: u64,
}

/// One entry of the file.
struct Entry {
    kind: u64,
    first: u64,
    bytes: Vec<u8>,
}

/// Puts the bytes of a file made by [`crate::CheckOptions::undo`] back. The device must not be mounted, and must not have been changed since.
///
/// # Errors
/// `Undo` if the file is not one, is damaged before its last entry, or is of another device; errors of the device.
pub fn undo(drive: &Drive, path: &Path) -> Result<Undone, CheckError> {
    drive.recover()?;
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(|error| failure(path, error.to_string()))?;
    let (memory_bytes, block_sectors) = verify_header(drive, path, &bytes)?;
    let entries = read_entries(path, bytes.get(HEADER_BYTES..).unwrap_or_default())?; // [UD2]
    for entry in &entries {
        let (unit, limit) =
            if entry.kind == KIND_LINES { (LINE_BYTES, memory_bytes / LINE_BYTES as u64) } else { (SECTOR_BYTES, block_sectors) };
        let count = (entry.bytes.len() / unit) as u64;
        if entry.bytes.len() % unit != 0 || entry.first.checked_add(count).is_none_or(|end| end > limit) {
            return Err(failure(path, "an entry lies outside the device; the file belongs to another file system"));
        }
    }
    let mut undone = Undone::default();
    for entry in &entries {
        if entry.kind == KIND_LINES {
            drop(drive.persist(Structure::Mapping, LineAddress::new(entry.first), &entry.bytes)?);
            undone.lines += (entry.bytes.len() / LINE_BYTES) as u64;
        } else {
            let mut requests = [BlockRequest::Write { sector: Sector::new(entry.first), buffer: (&entry.bytes).into() }];
            let written = drive.transfer(Structure::Data, &mut requests, &mut || {})?;
            drop(drive.flush_blocks(written)?);
            undone.sectors += (entry.bytes.len() / SECTOR_BYTES) as u64;
        }
    }
    Ok(undone)
}

/// The sizes of the zones in the header.
fn verify_header(drive: &Drive, path: &Path, bytes: &[u8]) -> Result<(u64, u64), CheckError> {
    let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err(failure(path, "is too short; it is not a file of check --undo"));
    };
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    if header[..8] != *MAGIC || crc32c(&header[..HEADER_BYTES - 4]) != word(HEADER_BYTES - 4) {
        return Err(failure(path, "is not a file of check --undo, or its header is damaged"));
    }
    if word(8) != VERSION {
        return Err(failure(path, format!("has version {}; this build reads version {VERSION}", word(8))));
    }
    let (memory_bytes, block_sectors) = (long(32), long(40));
    let description = drive.description();
    if description.memory_bytes < memory_bytes || description.block_bytes / (SECTOR_BYTES as u64) < block_sectors {
        return Err(failure(path, "is of a larger device"));
    }
    // The superblock says whose device it is. If none can be read there is nothing to compare with.
    if let Ok(heads) = crate::superblock::read(drive)
        && header[16..32] != *heads.superblock.pair.as_bytes()
    {
        return Err(failure(path, format!("is of another pair than {}", description.name)));
    }
    Ok((memory_bytes, block_sectors))
}

fn read_entries(path: &Path, bytes: &[u8]) -> Result<Vec<Entry>, CheckError> {
    let end = bytes.len().checked_sub(ENTRY_BYTES).and_then(|at| bytes.get(at..)).and_then(next_entry);
    let is_finished = end.is_some_and(|(entry, _)| entry.kind == KIND_END);
    let (mut entries, mut rest) = (Vec::new(), bytes);
    while let Some((entry, after)) = next_entry(rest) {
        rest = after;
        if entry.kind == KIND_END {
            break;
        }
        entries.push(entry);
    }
    if is_finished && !rest.is_empty() && !on(Mutant::UndoUnverified) {
        return Err(failure(path, format!("entry {} is damaged; nothing was put back", entries.len())));
    }
    Ok(entries)
}

/// The entry at the start of these bytes, if it verifies, and what follows.
fn next_entry(bytes: &[u8]) -> Option<(Entry, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<ENTRY_BYTES>()?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let (payload, after) = rest.split_at_checked(usize::try_from(long(24)).ok()?)?;
    let verifies = crc32c(&head[4..]) == word(0) && crc32c(payload) == word(4) && (KIND_LINES..=KIND_END).contains(&long(8));
    verifies.then(|| (Entry { kind: long(8), first: long(16), bytes: payload.to_vec() }, after))
}

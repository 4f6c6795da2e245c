//! Open files.

use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};
use tandemfs_protocol::{Handle, Operation, Outcome, Place, TimeToSet, Unless, Whence};
use tandemfs_ring::{Answer, Attributes, Seen};

use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::directory::FirstEntries;
use crate::idle::KnownOpen;
use crate::known::KnownStart;
use crate::mapping::Mapping;
use crate::mutant::{self, Mutant};
use crate::subject::{Name, Target};
use crate::tail::{Tail, Where};
use crate::tree::{Ahead, names_of, sealed::Base};
use crate::whole::WholeFile;
use crate::{Error, Result};

/// Most bytes of a call, as the kernel's limit.
const CALL_BYTES_MAX: usize = 0x7fff_f000;
/// Longest overwrite that makes a lease worth asking for ([STR6] of `lent_stores.rs`).
const OVERWRITE_BYTES_MAX: usize = 64 << 10;

/// An open file. It is closed when it is dropped. An open directory is a place where paths begin: see [`Tree`](crate::Tree).
///
/// There is no offset: each call says where. With O_APPEND ([`OpenOptions::append`](crate::OpenOptions::append)), writes go to the end
/// whatever they say, as on Linux.
#[derive(Debug)]
pub struct File {
    connection: Arc<Connection>,
    handle: Handle,
    /// It may be read.
    reads: bool,
    /// It has O_APPEND.
    appends: AtomicBool,
    is_open: AtomicBool,
    /// It had so many bytes when it was opened, or when this wrote or cut it last: writes inside overwrite, as far as that is known here.
    end: AtomicU64,
    /// Its end, where that is lent.
    tail: Tail,
    /// While this is so, all data of the file are durable ([STR9] of `lent_stores.rs`).
    synced: RwLock<Seen>,
    /// What came with the answer, of a directory.
    listed: Mutex<Option<FirstEntries>>,
    /// All of it, if that came with the answer.
    whole: Option<Arc<WholeFile>>,
    /// Its open, if that can be repeated by this file ([IDF1] of `idle.rs`).
    known: Mutex<Option<Box<KnownOpen>>>,
}

/// As the kernel: a range ends where offsets do, whatever of it a call would transfer.
fn is_range(offset: u64, bytes: usize) -> Result<()> {
    let is_one = offset.checked_add(bytes as u64).is_some_and(|end| i64::try_from(end).is_ok());
    if is_one { Ok(()) } else { Err(Errno::INVAL.into()) }
}

fn offset_of(offset: u64) -> Result<i64> {
    offset.try_into().map_err(|_| Errno::INVAL.into())
}

/// A transfer in pieces: as a system call, what was done before an error counts more than the error.
fn in_pieces(length: usize, mut piece: impl FnMut(usize) -> Result<(usize, usize)>) -> Result<usize> {
    let mut done = 0;
    loop {
        match piece(done) {
            Ok((moved, asked)) => {
                done += moved;
                if moved < asked || done >= length || moved == 0 {
                    return Ok(done);
                }
            }
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
    }
}

impl File {
    /// Opened, with so many bytes.
    pub(crate) fn new(
        connection: Arc<Connection>,
        handle: Handle,
        flags: i32,
        bytes: u64,
        ahead: Ahead,
        known: Option<Box<KnownOpen>>,
    ) -> Self {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let access = flags & OFlags::ACCMODE;
        let reads = access == OFlags::RDONLY || access == OFlags::RDWR;
        let (end, is_open, appends) = (AtomicU64::new(bytes), AtomicBool::new(true), AtomicBool::new(flags.contains(OFlags::APPEND)));
        let (listed, whole) = match ahead {
            Ahead::Nothing => (None, None),
            Ahead::Entries(first) => (Some(first), None),
            Ahead::Whole(whole) => (None, Some(whole)),
        };
        let (tail, synced, listed) = (Tail::default(), RwLock::default(), Mutex::new(listed));
        Self { connection, handle, reads, appends, is_open, end, tail, synced, listed, whole, known: Mutex::new(known) }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// The first entries, if they came and were not given yet.
    pub(crate) fn take_first_entries(&self) -> Option<FirstEntries> {
        self.listed.lock().take()
    }

    /// Where paths below this directory begin, for [`KnownAnswers`](crate::KnownAnswers). No later file gets the same.
    pub fn known_start(&self) -> KnownStart {
        KnownStart::open(self.handle)
    }

    fn send(&self, operation: &Operation<'_>) -> Result<Answer> {
        self.connection.begin()?.send(operation)
    }

    fn target(&self) -> Target<'_> {
        Target { connection: &self.connection, name: Name::Open(self.handle) }
    }

    /// Reads at an offset; returns how many bytes, 0 at the end.
    ///
    /// # Errors
    /// As pread(2).
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        self.read_at_unless(into, offset, Unless::default())
    }

    /// As [`File::read_at`]; under some conditions the call is left to the mount.
    ///
    /// # Errors
    /// As [`File::read_at`]; [`Error::Crossed`] under those conditions.
    pub fn read_at_unless(&self, into: &mut [u8], offset: u64, unless: Unless) -> Result<usize> {
        is_range(offset, into.len())?;
        let length = into.len().min(CALL_BYTES_MAX);
        let into = &mut into[..length];
        if let Some(known) = self.whole.as_ref().and_then(|whole| whole.read(self.connection.ring(), offset, into)) {
            return Ok(known);
        }
        if let Some(known) = self.connection.read(self.handle, offset, into) {
            return Ok(known);
        }
        in_pieces(length, |done| {
            let offset = offset_of(offset.checked_add(done as u64).ok_or(Errno::INVAL)?)?;
            let part = (length - done).min(self.connection.transfer_bytes as usize);
            let reads = self.reads || mutant::on(Mutant::LoadsUnread);
            if reads && let Some(moved) = self.connection.load_by(&self.tail, offset.cast_unsigned(), &mut into[done..done + part]) {
                return Ok((moved, part)); // [APN6] of `tail.rs`
            }
            if reads && self.connection.load_leased(self.handle, offset.cast_unsigned(), &mut into[done..done + part]).is_some() {
                return Ok((part, part)); // [STR4] of `lent_stores.rs`
            }
            if self.connection.load(self.handle, offset.cast_unsigned(), &mut into[done..done + part]).is_some() {
                return Ok((part, part));
            }
            let mut call = self.connection.begin()?;
            let piece = call.part_of(length - done)?;
            let (answer, seen) = call.send_and_see(&Operation::Read { handle: self.handle, offset, into: piece.range, unless });
            let moved = Outcome::bytes(&answer?, piece.range)? as usize;
            call.get(piece, &mut into[done..done + moved]);
            if piece.range.length as usize == length {
                self.connection.known_bytes.keep(self.handle, offset.cast_unsigned(), &into[..moved], length, seen);
            }
            drop(call);
            // Who leaves reads to the mount as soon as its kernel has pages has few for the door.
            if moved > 0 && !unless.cached {
                self.connection.was_read(self.handle, offset.cast_unsigned());
            }
            Ok((moved, piece.range.length as usize))
        })
    }

    /// Maps a range of the file for loads, which see the file's own bytes as all others change them. It begins at a multiple of 4096 B (2 MiB on a
    /// device that maps in such steps) and ends with the file at the latest. Data of it that lies elsewhere is moved to the memory zone first.
    ///
    /// # Errors
    /// [`Error::Crossed`] where the mount has to serve it: the connection maps nothing ([`Mount::maps`](crate::Mount::maps)), or the kernel has
    /// pages of the file. `EBADF` if it is not open for reading; `EINVAL` for an empty range, for one that begins elsewhere or ends behind the file,
    /// and for what is no regular file; `EOPNOTSUPP` for a file whose home is not the memory zone; `ENOSPC` if there is no room for its bytes
    /// there; `ENOMEM` if it lies in more pieces than a process may map, or the connection has too many mappings; `EIO` for damage; `EROFS`.
    pub fn map(&self, range: Range<u64>) -> Result<Mapping> {
        let length = range.end.checked_sub(range.start).ok_or(Errno::INVAL)?;
        let mapped = self.connection.map(self.handle, range.start, length)?;
        Ok(Mapping::new(Arc::clone(&self.connection), mapped, length))
    }

    /// As [`File::map`], for loads and stores. Holes of the range get space, aligned where there is some. What is stored is the file's at once, and
    /// durable when [`Mapping::sync`] or a sync of the file has returned. Forked children have the mapping, too.
    ///
    /// # Errors
    /// As [`File::map`]; `EACCES` if it is not open for writing.
    pub fn map_writable(&self, range: Range<u64>) -> Result<Mapping> {
        let length = range.end.checked_sub(range.start).ok_or(Errno::INVAL)?;
        let mapped = self.connection.map_for_stores(self.handle, range.start, length)?;
        Ok(Mapping::new(Arc::clone(&self.connection), mapped, length))
    }

    /// Reads into a part of a buffer by one request; returns how many bytes, 0 at the end.
    ///
    /// # Errors
    /// As pread(2); `EINVAL` if the buffer has no such part or is of another connection.
    pub fn read_buffer_at(&self, into: &mut Buffer, within: Range<usize>, offset: u64) -> Result<usize> {
        let (into, offset) = (into.part(&self.connection, &within)?, offset_of(offset)?);
        let answer = self.send(&Operation::Read { handle: self.handle, offset, into, unless: Unless::default() })?;
        Ok(Outcome::bytes(&answer, into)? as usize)
    }

    /// Writes a part of a buffer by one request; returns how many bytes.
    ///
    /// # Errors
    /// As pwrite(2); `EINVAL` if the buffer has no such part or is of another connection.
    pub fn write_buffer_at(&self, from: &Buffer, within: Range<usize>, offset: u64) -> Result<usize> {
        let (from, offset) = (from.part(&self.connection, &within)?, offset_of(offset)?);
        let answer = self.send(&Operation::Write { handle: self.handle, offset, from, flags: 0, unless: Unless::default() })?;
        Ok(Outcome::bytes(&answer, from)? as usize)
    }

    /// Reads exactly as many bytes as there is room for.
    ///
    /// # Errors
    /// As [`File::read_at`]; `ENODATA` if the file ends before.
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            match self.read_at(&mut into[done..], offset + done as u64)? {
                0 => return Err(Errno::NODATA.into()),
                moved => done += moved,
            }
        }
        Ok(())
    }

    /// Writes at an offset; returns how many bytes. What is durable then is what the mount promises of a write in its mode.
    ///
    /// # Errors
    /// As pwrite(2).
    pub fn write_at(&self, from: &[u8], offset: u64) -> Result<usize> {
        self.write_at_unless(from, offset, Unless::default())
    }

    /// As [`File::write_at`]; under some conditions the call is left to the mount.
    ///
    /// # Errors
    /// As [`File::write_at`]; [`Error::Crossed`] under those conditions.
    pub fn write_at_unless(&self, from: &[u8], offset: u64, unless: Unless) -> Result<usize> {
        is_range(offset, from.len())?;
        self.write(from, ReadWriteFlags::empty(), unless, |done| offset.checked_add(done as u64)).map(|(done, _)| done)
    }

    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_all_at(&self, from: &[u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < from.len() {
            match self.write_at(&from[done..], offset + done as u64)? {
                0 => return Err(Errno::IO.into()),
                moved => done += moved,
            }
        }
        Ok(())
    }

    /// Writes at the end of the file; returns how many bytes, and the offset behind them. Up to
    /// [`Mount::transfer_bytes_max`](crate::Mount::transfer_bytes_max) bytes, or half of [`Options::data_bytes`](crate::Options::data_bytes) if that is less,
    /// no write of others comes between.
    ///
    /// # Errors
    /// As pwritev2(2) with RWF_APPEND.
    pub fn append(&self, from: &[u8]) -> Result<(usize, u64)> {
        self.write(from, ReadWriteFlags::APPEND, Unless::default(), |_| Some(0))
    }

    /// As [`File::write_at`] with flags of pwritev2(2): `RWF_APPEND`, `RWF_NOAPPEND`.
    ///
    /// # Errors
    /// As pwritev2(2); `EOPNOTSUPP` for other flags than those of writes that go through a cache.
    pub fn write_at_with(&self, from: &[u8], offset: u64, flags: ReadWriteFlags) -> Result<usize> {
        is_range(offset, from.len())?;
        self.write(from, flags, Unless::default(), |done| offset.checked_add(done as u64)).map(|(done, _)| done)
    }

    fn write(&self, from: &[u8], flags: ReadWriteFlags, unless: Unless, offset_at: impl Fn(usize) -> Option<u64>) -> Result<(usize, u64)> {
        let from = &from[..from.len().min(CALL_BYTES_MAX)];
        let own = flags - ReadWriteFlags::DSYNC;
        let appends = own == ReadWriteFlags::APPEND || self.appends.load(Acquire);
        let is_stored = own.is_empty() || own == ReadWriteFlags::APPEND;
        let may_grow = is_stored && !unless.grows;
        let flags = flags.bits().cast_signed();
        let mut end = 0;
        let done = in_pieces(from.len(), |done| {
            let offset = offset_of(offset_at(done).ok_or(Errno::INVAL)?)?;
            let part = (from.len() - done).min(self.connection.write_bytes as usize);
            let place = if appends { Where::End } else { Where::At(offset.cast_unsigned()) };
            if may_grow && let Some(reached) = self.connection.store_by(&self.tail, place, &from[done..done + part])? {
                end = reached;
                self.end.fetch_max(reached, Relaxed);
                return Ok((part, part)); // [APN1] of `tail.rs`
            }
            if is_stored && !appends && self.connection.store(self.handle, offset.cast_unsigned(), &from[done..done + part]).is_some() {
                return Ok((part, part));
            }
            let mut call = self.connection.begin()?;
            // [CN3]: of a read, less than there is memory for is asked; what is written is not torn.
            let piece = if mutant::on(Mutant::WritesTorn) { call.part_of(part)? } else { call.room(part)? };
            let asked = piece.range.length as usize;
            call.put(piece, &from[done..done + asked]);
            let answer = call.send(&Operation::Write { handle: self.handle, offset, from: piece.range, flags, unless })?;
            end = answer.further;
            let moved = Outcome::bytes(&answer, piece.range)? as usize;
            drop(call);
            let begun = if appends { end.saturating_sub(moved as u64) } else { offset.cast_unsigned() };
            let before = self.end.fetch_max(begun.saturating_add(moved as u64), Relaxed);
            if may_grow && moved == asked && (appends || begun == before) {
                self.connection.was_appended(self.handle, &self.tail, moved); // [APN7] of `tail.rs`
            }
            let is_overwrite = !appends && before >= begun.saturating_add(moved as u64) || mutant::on(Mutant::GrowthLeased);
            if is_stored && moved == asked && is_overwrite && moved <= OVERWRITE_BYTES_MAX {
                self.connection.was_written(self.handle, begun, moved); // [STR6]
            }
            Ok((moved, asked))
        })?;
        Ok((done, end))
    }

    /// fstat(2).
    ///
    /// # Errors
    /// As fstat(2).
    pub fn attributes(&self) -> Result<Attributes> {
        self.target().attributes()
    }

    /// ftruncate(2).
    ///
    /// # Errors
    /// As ftruncate(2).
    pub fn set_length(&self, length: u64) -> Result<()> {
        self.target().set_length(length)?;
        self.end.store(length, Relaxed);
        Ok(())
    }

    /// fsync(2).
    ///
    /// # Errors
    /// As fsync(2).
    pub fn sync_all(&self) -> Result<()> {
        self.send(&Operation::Sync { handle: self.handle, data_only: false }).map(drop)
    }

    /// fdatasync(2). It is a request where somebody may have written since the last one, but for stores of this connection.
    ///
    /// # Errors
    /// As fdatasync(2).
    pub fn sync_data(&self) -> Result<()> {
        let is_synced = |seen: &Seen| self.connection.is_still_so(seen) || !seen.is_none() && mutant::on(Mutant::SyncNotCompared);
        if self.synced.try_read().is_some_and(|seen| is_synced(&seen)) {
            return Ok(());
        }
        let (answer, seen) = self.connection.begin()?.send_and_see(&Operation::Sync { handle: self.handle, data_only: true });
        answer?;
        if self.connection.stores()
            && let Some(mut synced) = self.synced.try_write()
        {
            *synced = seen;
        }
        Ok(())
    }

    /// fallocate(2), with its flags.
    ///
    /// # Errors
    /// As fallocate(2).
    pub fn allocate(&self, flags: u32, offset: u64, length: u64) -> Result<()> {
        let (offset, length) = (offset_of(offset)?, offset_of(length)?);
        self.send(&Operation::Allocate { handle: self.handle, flags, offset, length }).map(drop)
    }

    /// The next byte at or behind an offset that may have been written: SEEK_DATA.
    ///
    /// # Errors
    /// `ENXIO` if there is none.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.seek(offset, Whence::Data)
    }

    /// The next hole at or behind an offset: SEEK_HOLE. The end of the file counts as one.
    ///
    /// # Errors
    /// `ENXIO` behind the end.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.seek(offset, Whence::Hole)
    }

    fn seek(&self, offset: u64, whence: Whence) -> Result<u64> {
        let offset = offset_of(offset)?;
        Ok(self.send(&Operation::Seek { handle: self.handle, offset, whence })?.value)
    }

    /// copy_file_range(2); returns how much was copied, which may be less than asked for.
    ///
    /// # Errors
    /// As copy_file_range(2); `EXDEV` for a file of another connection.
    pub fn copy_range(&self, offset: u64, target: &Self, target_offset: u64, length: u64) -> Result<u64> {
        if !Arc::ptr_eq(&self.connection, &target.connection) {
            return Err(Errno::XDEV.into());
        }
        let (from, to) = ((self.handle, offset_of(offset)?), (target.handle, offset_of(target_offset)?));
        match self.send(&Operation::CopyRange { from, to, length, flags: 0 })?.value {
            copied if copied <= length => Ok(copied),
            _ => Err(Errno::PROTO.into()),
        }
    }

    /// fchmod(2).
    ///
    /// # Errors
    /// As fchmod(2).
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        self.target().set_mode(mode)
    }

    /// fchown(2).
    ///
    /// # Errors
    /// As fchown(2).
    pub fn set_owner(&self, user: Option<u32>, group: Option<u32>) -> Result<()> {
        self.target().set_owner(user, group)
    }

    /// futimens(3).
    ///
    /// # Errors
    /// As futimens(3).
    pub fn set_times(&self, accessed: TimeToSet, modified: TimeToSet) -> Result<()> {
        self.target().set_times(accessed, modified)
    }

    /// fgetxattr(2).
    ///
    /// # Errors
    /// As fgetxattr(2).
    pub fn extended_attribute(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.target().extended_attribute(name)
    }

    /// flistxattr(2).
    ///
    /// # Errors
    /// As flistxattr(2).
    pub fn extended_attributes(&self) -> Result<Vec<OsString>> {
        Ok(names_of(&self.target().extended_attributes()?))
    }

    /// fsetxattr(2), with its flags.
    ///
    /// # Errors
    /// As fsetxattr(2).
    pub fn set_extended_attribute(&self, name: &[u8], value: &[u8], flags: i32) -> Result<()> {
        self.target().set_extended_attribute(name, value, flags)
    }

    /// fremovexattr(2).
    ///
    /// # Errors
    /// As fremovexattr(2).
    pub fn remove_extended_attribute(&self, name: &[u8]) -> Result<()> {
        self.target().remove_extended_attribute(name)
    }

    /// fcntl(2) with F_SETFL.
    ///
    /// # Errors
    /// As fcntl(2).
    pub fn set_flags(&self, flags: i32) -> Result<()> {
        *self.known.lock() = None; // [IDF3] of `idle.rs`
        self.send(&Operation::SetFlags { handle: self.handle, flags })?;
        if !mutant::on(Mutant::AppendFlagKept) {
            self.appends.store(OFlags::from_bits_retain(flags.cast_unsigned()).contains(OFlags::APPEND), Release); // [APN5] of `tail.rs`
        }
        Ok(())
    }

    /// A descriptor of the mount for this file, with the same access and flags and an offset of its own. Also of a file without a name.
    ///
    /// # Errors
    /// `EINVAL` for what is neither a regular file nor a directory; [`Error::Crossed`] where [`Mount::sends_descriptors`](crate::Mount::sends_descriptors) says no;
    /// what the mount refuses, as `ETXTBSY`.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        *self.known.lock() = None; // its end will be told by that descriptor ([IDF3] of `idle.rs`)
        self.connection.descriptor(self.handle)
    }

    /// Closes the file and says what went wrong, which a drop does not.
    ///
    /// # Errors
    /// As close(2). The file is closed in any case.
    pub fn close(self) -> Result<()> {
        self.end()
    }

    /// Closes the file before it is dropped, unless somebody is to be told of that by the kernel ([`Options::leaves_watched`](crate::Options::leaves_watched)): then it
    /// stays open, for a descriptor that is closed in its place. Nobody else may use it.
    ///
    /// # Errors
    /// [`Error::Crossed`] if it is open still; otherwise it is closed, and this is what close(2) says.
    pub fn finish(&self) -> Result<()> {
        match self.try_end() {
            Err(crossed @ Error::Crossed(_)) => {
                self.is_open.store(true, Relaxed);
                Err(crossed)
            }
            other => other,
        }
    }

    fn try_end(&self) -> Result<()> {
        match self.is_open.swap(false, Relaxed) {
            true => {
                let [own, other] = match self.known.lock().take() {
                    Some(open) => self.connection.idle_files.keep(self.connection.ring(), self.handle, open),
                    None => [Some(self.handle), None],
                };
                other.into_iter().for_each(|other| self.connection.close_for_good(other));
                own.map_or(Ok(()), |own| self.connection.close(own))
            }
            false => Ok(()),
        }
    }

    fn end(&self) -> Result<()> {
        match self.finish() {
            Err(Error::Crossed(_)) => self.try_end(), // it is handed back once
            other => other,
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // The daemon closes the files of a connection that ended by itself.
        let _closed_or_ended: std::result::Result<(), Error> = self.end();
    }
}

impl Base for File {
    fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    fn place(&self) -> Place {
        Place::Open(self.handle)
    }
}

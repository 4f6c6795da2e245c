//! A connection: its slots, and one call.

use std::num::NonZeroU64;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};
use rustix::io::Errno;
use tandemfs_device::{LentZone, StoreZone};
use tandemfs_protocol::{
    Handle, LENT_RANGE_BYTES, LENT_RANGES_MAX, LENT_TAIL_BYTES, LENT_WINDOW_BYTES, LentRange, LentTail, MAPPED_RANGES_MAX, Number,
    Operation, Outcome, StoreLease, TEXT_BYTES_MAX, TRANSFER_BYTES_MAX, Text,
};
use tandemfs_ring::{Answer, Attributes, Buffer, Client, NAME_BYTES_MAX, PAGE_BYTES, Range, Request, SLOTS_MAX, Seen, Slot};

use crate::area::{Piece, Waiting, Wanted};
use crate::bytes::KnownBytes;
use crate::connect::{Greeted, received_descriptor, received_zone};
use crate::idle::IdleFiles;
use crate::known::{Known, KnownAnswers, Question, Told};
use crate::lent::Lent;
use crate::lent_stores::Stores;
use crate::mapping::Mapped;
use crate::mutant::{self, Mutant};
use crate::tail::{Stored, Tail, Where};
use crate::whole::WholeFiles;
use crate::{Error, Options, Result};

/// Most shared memory that a slot keeps between calls, for texts and small data, among it a file that comes with its open.
const KEPT_BYTES_MAX: u64 = 20 << 10;
/// Bytes of a look-up's answer.
const LOOKED_UP_BYTES: u32 = (LENT_RANGES_MAX * LENT_RANGE_BYTES) as u32;
/// Parts of a buffer begin at its multiples.
const ALIGNMENT: u32 = 64;

/// A number for each thread, so that each begins its search for a slot at another one.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

/// A slot, claimed when it is first needed, and the memory that it keeps.
#[derive(Debug, Default)]
struct Locker {
    slot: Option<Slot>,
    request: Request,
    /// Taken at the start ([CN3] of `lib.rs`); none where it would have no bytes.
    kept: Option<Buffer>,
}

/// A connection of this process to a daemon.
#[derive(Debug)]
pub struct Connection {
    ring: Client,
    /// Operations that the daemon serves.
    operations: u64,
    /// Most bytes of a request that reads or writes.
    pub(crate) transfer_bytes: u32,
    /// Most bytes of a write from memory of the caller ([CN3] of `lib.rs`).
    pub(crate) write_bytes: u32,
    kept_bytes: u32,
    lockers: Box<[Mutex<Locker>]>,
    waiting: Waiting,
    memory_wait: std::time::Duration,
    pub(crate) umask: AtomicU16,
    pub(crate) known: Arc<Known>,
    pub(crate) known_bytes: KnownBytes,
    pub(crate) whole_files: Arc<WholeFiles>,
    pub(crate) idle_files: IdleFiles,
    /// Where the daemon has lent the memory zone.
    pub(crate) lent: Option<Lent>,
    /// The zone itself, for mappings of files, where they were asked for.
    zone: Option<LentZone>,
    /// What it stores by ([STR7] of `lent_stores.rs`); none inside once the connection has ended.
    stores: Option<RwLock<Option<Stores>>>,
    /// Held by who takes a descriptor from the socket.
    receiving: Mutex<()>,
}

impl Connection {
    pub(crate) fn new(greeted: Greeted, options: &Options, umask: u16) -> Self {
        let Greeted { client: ring, welcome, zone, stores } = greeted;
        let slots = welcome.slots.clamp(1, SLOTS_MAX);
        let transfer_bytes = welcome.transfer_bytes_max.clamp(1, TRANSFER_BYTES_MAX);
        let kept = (welcome.data_bytes / (2 * u64::from(slots))).min(KEPT_BYTES_MAX) as u32;
        // From a page on it lies at a page.
        let unit = if u64::from(kept) < PAGE_BYTES { ALIGNMENT } else { PAGE_BYTES as u32 };
        let kept_bytes = kept / unit * unit;
        let can_look_up = welcome.operations & Number::Lend.bit() != 0 && kept_bytes >= LOOKED_UP_BYTES;
        let can_be_lent = welcome.operations & Number::LendStores.bit() != 0 && kept_bytes >= LOOKED_UP_BYTES;
        // All at once, at the end of the memory: one that is taken later might come to lie in the middle, and divide the rest for good.
        let kept = || if kept_bytes > 0 && !mutant::on(Mutant::KeptTakenLate) { ring.kept_buffer(kept_bytes) } else { None };
        let lockers = (0..slots).map(|_| Mutex::new(Locker { kept: kept(), ..Locker::default() })).collect();
        Self {
            ring,
            lent: zone.as_ref().filter(|_| options.loads && can_look_up).and_then(|zone| zone.map().ok()).map(Lent::new),
            // Otherwise its descriptor is closed here: a map is all that is kept of the drive.
            zone: zone.filter(|_| options.maps && welcome.operations & Number::Map.bit() != 0),
            operations: welcome.operations,
            transfer_bytes,
            write_bytes: u64::from(transfer_bytes).min((welcome.data_bytes / 2).max(1)) as u32,
            kept_bytes,
            lockers,
            waiting: Waiting::default(),
            memory_wait: options.memory_wait,
            umask: AtomicU16::new(umask & 0o777),
            known: Arc::new(Known::new(options.keeps_answers)),
            known_bytes: KnownBytes::new(options.keeps_answers),
            whole_files: Arc::default(),
            idle_files: IdleFiles::new(options.keeps_answers),
            stores: stores.filter(|_| options.stores && can_be_lent).map(|stores| RwLock::new(Some(stores))),
            receiving: Mutex::default(),
        }
    }

    /// Whether the daemon answers.
    pub(crate) fn is_alive(&self) -> bool {
        self.begin().and_then(|mut call| call.send(&Operation::Nothing)).is_ok()
    }

    pub(crate) fn has_ended(&self) -> bool {
        let has_ended = self.ring.has_ended();
        if has_ended {
            self.drop_stores();
        }
        has_ended
    }

    pub(crate) fn ring(&self) -> &Client {
        &self.ring
    }

    /// Closes a file at the daemon.
    pub(crate) fn close(&self, handle: Handle) -> Result<()> {
        self.known.closed(handle);
        self.begin()?.send(&Operation::Close { handle }).map(drop)
    }

    /// Closes an idle file, of whose end everybody was told who had to be: it is handed back once at most.
    pub(crate) fn close_for_good(&self, handle: Handle) {
        if let Err(Error::Crossed(_)) = self.close(handle) {
            let _closed_or_ended = self.close(handle);
        }
    }

    /// Whether it stores by itself.
    pub(crate) fn stores(&self) -> bool {
        self.stores.is_some()
    }

    /// The connection has ended ([STR7] of `lent_stores.rs`). Who stores this moment leaves it to the next call.
    fn drop_stores(&self) {
        if let Some(mut stores) = self.stores.as_ref().and_then(RwLock::try_write)
            && !mutant::on(Mutant::ZoneKept)
        {
            *stores = None;
        }
    }

    /// Stores bytes of an open file, all of them, if their window is leased.
    #[inline]
    pub(crate) fn store(&self, handle: Handle, offset: u64, from: &[u8]) -> Option<()> {
        self.stores.as_ref()?.try_read()?.as_ref()?.store(&self.ring, handle, offset, from)
    }

    /// Loads bytes of an open file that may be read, all of them, if their window is leased.
    #[inline]
    pub(crate) fn load_leased(&self, handle: Handle, offset: u64, into: &mut [u8]) -> Option<()> {
        self.stores.as_ref()?.try_read()?.as_ref()?.load(&self.ring, handle, offset, into)
    }

    /// Bytes were written by a request: perhaps their window is asked for, so that the next ones can be stored.
    pub(crate) fn was_written(&self, handle: Handle, offset: u64, length: usize) {
        let Some(stores) = self.stores.as_ref().and_then(RwLock::try_read) else { return };
        let Some(stores) = stores.as_ref().filter(|stores| stores.is_wanted(handle, offset, length)) else { return };
        let ask = || -> Result<_> {
            let mut call = self.begin()?;
            let into = call.room_at_once(LOOKED_UP_BYTES).ok_or(Errno::NOMEM)?;
            let answer = call.send(&Operation::LendStores { handle, offset: offset.cast_signed(), into: into.range })?;
            let bytes = call.returned(&answer, into)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let (lease, window) = (StoreLease::decode(answer.further)?, offset / LENT_WINDOW_BYTES * LENT_WINDOW_BYTES);
            Ok(Some((lease, LentRange::decode(&bytes, window, stores.zone_bytes())?)))
        };
        // A daemon that lends nothing, or says what no daemon says, is asked to write.
        let lent = ask().unwrap_or_default();
        self.give_back(stores.keep(handle, offset, lent));
    }

    /// A lease that there is no place for.
    fn give_back(&self, lease: Option<StoreLease>) {
        if let Some(lease) = lease.and_then(StoreLease::number) {
            let _ended = self.begin().and_then(|mut call| call.send(&Operation::ReturnStores { lease }));
        }
    }

    /// Writes bytes of an open file by its tail, all of them, if they are lent; the offset behind them.
    ///
    /// # Errors
    /// It is not known whether they were appended, or (EIO) they were and may be lost with the power.
    #[inline]
    pub(crate) fn store_by(&self, tail: &Tail, place: Where, from: &[u8]) -> Result<Option<u64>> {
        let stored = match self.stores.as_ref().filter(|_| tail.may_have(place)).and_then(RwLock::try_read).as_deref() {
            Some(Some(stores)) => tail.store(stores.access(), &self.ring, place, from),
            _ => Stored::Nothing,
        };
        match stored {
            Stored::All(reached) => Ok(Some(reached)),
            Stored::Volatile => Err(Errno::IO.into()),
            Stored::Nothing => Ok(None),
            Stored::TakenAway(lease, reached) => self.counts(lease, reached), // [APN2] of `tail.rs`
        }
    }

    /// Whether appends up to an offset count, by a lease that was taken away.
    #[cold]
    fn counts(&self, lease: StoreLease, reached: u64) -> Result<Option<u64>> {
        let lease = lease.number().ok_or(Errno::IO)?;
        // Nothing here may look like a call that was not begun: who takes it for one would append again.
        let unknown = |error| match error {
            Error::Crossed(_) | Error::Errno(Errno::NOMEM | Errno::NOSPC) => Errno::IO.into(),
            other => other,
        };
        let size = self.begin().and_then(|mut call| call.send(&Operation::Appended { lease })).map_err(unknown)?.value;
        Ok((size >= reached).then_some(reached))
    }

    /// Loads bytes of an open file that may be read by its tail, up to the end of the file; how many.
    #[inline]
    pub(crate) fn load_by(&self, tail: &Tail, offset: u64, into: &mut [u8]) -> Option<usize> {
        let stores = self.stores.as_ref().filter(|_| tail.may_have(Where::At(offset)))?.try_read()?;
        tail.load(stores.as_ref()?.access(), &self.ring, offset, into)
    }

    /// Bytes were appended by a request: perhaps the tail is asked for, so that the next ones can be stored.
    pub(crate) fn was_appended(&self, handle: Handle, tail: &Tail, length: usize) {
        let Some(stores) = self.stores.as_ref().and_then(RwLock::try_read) else { return };
        let Some(stores) = stores.as_ref().filter(|stores| tail.is_wanted(&stores.access().leases, length)) else { return };
        let ask = || -> Result<_> {
            let mut call = self.begin()?;
            let into = call.room_at_once(LENT_TAIL_BYTES as u32).ok_or(Errno::NOMEM)?;
            let answer = call.send(&Operation::LendTail { handle, into: into.range })?;
            let bytes = call.returned(&answer, into)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            Ok(Some((StoreLease::decode(answer.further)?, LentTail::decode(&bytes, stores.zone_bytes())?)))
        };
        self.give_back(tail.keep(ask().unwrap_or_default()));
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ring.descriptors().chain(self.zone.as_ref().map(LentZone::descriptor))
    }

    /// Memory for data that stays between calls.
    pub(crate) fn memory(&self, bytes: u32) -> Result<Buffer> {
        let wanted = Wanted { bytes, may_split: false, has_some: true };
        self.waiting.take(&self.ring, wanted, self.memory_wait)
    }

    /// Memory of [`Connection::memory`] was given back.
    pub(crate) fn memory_returned(&self) {
        self.waiting.wake();
    }

    /// The answer to a question, if it is known.
    #[inline]
    pub(crate) fn told(&self, question: Option<&Question<'_>>) -> Option<Told> {
        self.known.told(self.ring.standing(), question?)
    }

    /// What it knows, for who looks things up outside of it; none if it keeps no answers.
    pub(crate) fn known_answers(&self) -> Option<KnownAnswers> {
        self.known.is_wanted().then(|| KnownAnswers::new(&self.known, &self.ring))
    }

    /// Whether what was seen is so still, and may be said without asking.
    #[inline]
    pub(crate) fn is_still_so(&self, seen: &Seen) -> bool {
        !seen.is_none() && self.ring.is_still_so(seen)
    }

    /// A small read, if it is known.
    #[inline]
    pub(crate) fn read(&self, handle: Handle, offset: u64, into: &mut [u8]) -> Option<usize> {
        self.known_bytes.read(&self.ring, handle, offset, into)
    }

    /// Bytes of an open file, all of them, if they can be loaded.
    #[inline]
    pub(crate) fn load(&self, handle: Handle, offset: u64, into: &mut [u8]) -> Option<()> {
        self.lent.as_ref()?.read(&self.ring, handle, offset, into)
    }

    /// Bytes were read by a request: perhaps their window is looked up, so that the next ones can be loaded.
    pub(crate) fn was_read(&self, handle: Handle, offset: u64) {
        let Some(lent) = self.lent.as_ref().filter(|lent| lent.is_wanted(&self.ring, handle, offset)) else { return };
        let look_up = || -> Result<_> {
            let mut call = self.begin()?;
            let into = call.room_at_once(LOOKED_UP_BYTES).ok_or(Errno::NOMEM)?;
            let (answer, seen) = call.send_and_see(&Operation::Lend { handle, offset: offset.cast_signed(), into: into.range });
            let bytes = call.returned(&answer?, into)?;
            let window = offset / LENT_WINDOW_BYTES * LENT_WINDOW_BYTES;
            Ok((LentRange::decode(&bytes, window, lent.zone_bytes())?, seen))
        };
        // A daemon that does not lend it, or says what no daemon says, is asked for the bytes.
        let (ranges, seen) = look_up().unwrap_or_default();
        lent.keep(handle, offset, ranges, seen);
    }

    pub(crate) fn serves(&self, number: Number) -> bool {
        self.operations & number.bit() != 0
    }

    /// Whether files can be mapped.
    pub(crate) fn maps(&self) -> bool {
        self.zone.is_some()
    }

    /// Maps a range of an open file from the memory zone ([CMP1] of `mapping.rs`).
    pub(crate) fn map(&self, handle: Handle, offset: u64, length: u64) -> Result<Mapped> {
        let zone = self.mapped_zone()?;
        let (number, bytes) = self.mapped(offset, length, |offset, into| Operation::Map { handle, offset, length, into })?;
        let mapped = LentRange::decode_mapped(&bytes, (offset, length), zone.length())
            .map_err(|_| Errno::PROTO)
            .and_then(|ranges| Mapped::new(zone, &ranges, number).map_err(|_| Errno::NOMEM));
        self.or_unmapped(number, mapped)
    }

    /// As [`Connection::map`], for stores: the description of this mapping is on the socket before the answer ([CMP3] of `mapping.rs`).
    pub(crate) fn map_for_stores(&self, handle: Handle, offset: u64, length: u64) -> Result<Mapped> {
        let zone = self.mapped_zone()?;
        let alone = self.receiving.lock();
        let (number, bytes) = self.mapped(offset, length, |offset, into| Operation::MapForStores { handle, offset, length, into })?;
        let received = self.ring.lifeline().ok_or(Errno::PROTO.into()).and_then(|socket| received_zone(socket, number));
        drop(alone);
        let mapped = received.and_then(|(descriptor, needs_flush)| {
            let ranges = LentRange::decode_mapped(&bytes, (offset, length), zone.length()).map_err(|_| Errno::PROTO)?;
            let own = StoreZone::received(descriptor, zone.start(), zone.length());
            Ok(Mapped::for_stores(own, &ranges, number, needs_flush).map_err(|_| Errno::NOMEM)?)
        });
        self.or_unmapped(number, mapped)
    }

    fn mapped_zone(&self) -> Result<&LentZone> {
        self.zone.as_ref().ok_or(Error::Crossed(crate::Crossed { why: crate::Why::NotServed, argument: 0 }))
    }

    /// A mapping that the daemon has made: its number and its list of ranges.
    fn mapped<'o>(&self, offset: u64, length: u64, operation: impl FnOnce(i64, Range) -> Operation<'o>) -> Result<(NonZeroU64, Vec<u8>)> {
        let most = (length / PAGE_BYTES + 1).min(MAPPED_RANGES_MAX as u64) as usize;
        let mut call = self.begin()?;
        let into = call.room((most * LENT_RANGE_BYTES).min(self.transfer_bytes as usize))?;
        let offset_asked = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let answer = call.send(&operation(offset_asked, into.range))?;
        let bytes = call.returned(&answer, into)?;
        Ok((NonZeroU64::new(answer.further).ok_or(Errno::PROTO)?, bytes))
    }

    /// A mapping, of which the daemon is told where it could not be made here.
    fn or_unmapped<E: Into<Error>>(&self, number: NonZeroU64, mapped: std::result::Result<Mapped, E>) -> Result<Mapped> {
        mapped.map_err(|error| {
            self.unmap(number);
            error.into()
        })
    }

    /// Says that a mapping is gone. A daemon that does not hear it has ended the connection, and sees for itself.
    pub(crate) fn unmap(&self, mapping: NonZeroU64) {
        let _ended = self.begin().and_then(|mut call| call.send(&Operation::Unmap { mapping }));
    }

    /// A descriptor of the mount for an open file. It is on the socket before the answer.
    pub(crate) fn descriptor(&self, handle: Handle) -> Result<OwnedFd> {
        let _alone = self.receiving.lock();
        self.begin()?.send(&Operation::Descriptor { handle })?;
        let socket = self.ring.lifeline().ok_or(Errno::PROTO)?;
        received_descriptor(socket, handle.get())
    }

    /// Begins a call: the thread's own slot, or one that is free, or, if all are in use, the next.
    pub(crate) fn begin(&self) -> Result<Call<'_>> {
        let (count, first) = (self.lockers.len(), thread_number());
        let free = (0..count).find_map(|step| self.lockers[(first + step) % count].try_lock());
        let mut locker = free.unwrap_or_else(|| self.lockers[first % count].lock());
        if locker.slot.is_none() {
            locker.slot = Some(self.ring.slot().ok_or(Errno::NOMEM)?);
        }
        Ok(Call { connection: self, locker, used: 0, buffers: Vec::new() })
    }
}

/// A call: a slot and memory, given back at its end.
pub(crate) struct Call<'c> {
    connection: &'c Connection,
    locker: MutexGuard<'c, Locker>,
    /// Bytes in use of what the slot keeps.
    used: u32,
    buffers: Vec<Buffer>,
}

impl Call<'_> {
    /// Memory for so many bytes.
    pub(crate) fn room(&mut self, bytes: usize) -> Result<Piece> {
        self.take(u32::try_from(bytes).map_err(|_| Errno::NOMEM)?, false)
    }

    /// Memory for as many bytes of a read as one request may have and as there is memory for.
    pub(crate) fn part_of(&mut self, bytes: usize) -> Result<Piece> {
        let most = self.connection.transfer_bytes;
        self.take(u32::try_from(bytes).map_or(most, |bytes| bytes.min(most)), true)
    }

    /// Memory for an answer that is of use and not needed: none where a request could not have so many bytes, or would wait for them.
    pub(crate) fn room_at_once(&mut self, bytes: u32) -> Option<Piece> {
        if bytes > self.connection.transfer_bytes {
            return None;
        }
        self.kept(bytes).or_else(|| {
            let connection = self.connection;
            let buffer = connection.waiting.take_at_once(&connection.ring, bytes)?;
            Some(self.added(buffer))
        })
    }

    fn take(&mut self, bytes: u32, may_split: bool) -> Result<Piece> {
        if bytes == 0 {
            return Ok(Piece::none());
        }
        if let Some(piece) = self.kept(bytes) {
            return Ok(piece);
        }
        let wanted = Wanted { bytes, may_split, has_some: !self.buffers.is_empty() };
        let buffer = self.connection.waiting.take(&self.connection.ring, wanted, self.connection.memory_wait)?;
        Ok(self.added(buffer))
    }

    /// A part of what the slot keeps, if that has room.
    fn kept(&mut self, bytes: u32) -> Option<Piece> {
        if bytes <= self.connection.kept_bytes - self.used {
            let locker = &mut *self.locker;
            if locker.kept.is_none() && mutant::on(Mutant::KeptTakenLate) {
                locker.kept = self.connection.ring.kept_buffer(self.connection.kept_bytes);
            }
            if let Some(kept) = &locker.kept {
                let piece = Piece::of(kept, None, self.used, bytes);
                self.used = (self.used + bytes).next_multiple_of(ALIGNMENT).min(self.connection.kept_bytes);
                return Some(piece);
            }
        }
        None
    }

    fn added(&mut self, buffer: Buffer) -> Piece {
        let piece = Piece::of(&buffer, Some(self.buffers.len()), 0, buffer.range().length);
        self.buffers.push(buffer);
        piece
    }

    fn buffer(&mut self, piece: Piece) -> Option<&mut Buffer> {
        match piece.buffer {
            Some(index) => self.buffers.get_mut(index),
            None => self.locker.kept.as_mut(),
        }
    }

    /// Copies bytes into the first part of a piece, which has room for them.
    pub(crate) fn put(&mut self, piece: Piece, bytes: &[u8]) {
        if let Some(buffer) = self.buffer(piece).filter(|_| !bytes.is_empty()) {
            buffer.write(piece.from as usize, bytes);
        }
    }

    /// Copies the first part of a piece out; `into` is not longer than the piece.
    pub(crate) fn get(&mut self, piece: Piece, into: &mut [u8]) {
        if let Some(buffer) = self.buffer(piece).filter(|_| !into.is_empty()) {
            buffer.read(piece.from as usize, into);
        }
    }

    /// As many bytes of a piece as an answer says ([CN1] of `lib.rs`).
    pub(crate) fn returned(&mut self, answer: &Answer, piece: Piece) -> Result<Vec<u8>> {
        let mut bytes = vec![0; Outcome::bytes(answer, piece.range)? as usize];
        self.get(piece, &mut bytes);
        Ok(bytes)
    }

    /// A text of a request: in the slot, or else in memory.
    pub(crate) fn text<'t>(&mut self, text: &'t [u8]) -> Result<Text<'t>> {
        if text.len() <= NAME_BYTES_MAX {
            return Ok(Text::Here(text));
        }
        if text.len() > TEXT_BYTES_MAX as usize {
            return Err(Errno::NAMETOOLONG.into());
        }
        let piece = self.room(text.len())?;
        self.put(piece, text);
        Ok(Text::There(piece.range))
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn send(&mut self, operation: &Operation<'_>) -> Result<Answer> {
        self.answer(operation).and_then(meant)
    }

    /// As [`Call::send`]; also what the answer depends on, if it may be kept.
    pub(crate) fn send_and_see(&mut self, operation: &Operation<'_>) -> (Result<Answer>, Seen) {
        match self.answer(operation) {
            Err(error) => (Err(error), Seen::default()),
            Ok(answer) => (meant(answer), self.locker.slot.as_ref().map_or_else(Seen::default, Slot::seen)),
        }
    }

    fn answer(&mut self, operation: &Operation<'_>) -> Result<Answer> {
        let number = operation.number();
        if self.connection.operations & number.bit() == 0 {
            return Err(Error::Crossed(crate::Crossed { why: crate::Why::NotServed, argument: 0 }));
        }
        let Locker { slot, request, .. } = &mut *self.locker;
        operation.encode_to(request).map_err(|_| Errno::NAMETOOLONG)?;
        let answer = slot.as_mut().ok_or(Errno::NOTCONN)?.call(request);
        if answer.is_err() {
            self.connection.drop_stores();
        }
        Ok(answer?)
    }

    /// Sends a request whose answer has attributes.
    pub(crate) fn send_for_attributes(&mut self, operation: &Operation<'_>) -> Result<Attributes> {
        self.send(operation)?.attributes.ok_or(Errno::PROTO.into())
    }
}

fn meant(answer: Answer) -> Result<Answer> {
    match Outcome::decode(answer)? {
        Outcome::Done(answer) => Ok(answer),
        Outcome::Errno(number) => Err(Errno::from_raw_os_error(number).into()),
        Outcome::Crossed(crossed) => Err(Error::Crossed(crossed)),
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.buffers.is_empty() {
            self.buffers.clear();
            self.connection.waiting.wake();
        }
    }
}

//! A device that fails: on the n-th access of a kind, or on every access to a bad place.
//!
//! The fault model: a failed load, store or read changes nothing on the device. A failed write leaves its sectors as they were. A failed
//! FLUSH makes nothing durable, and a failed COMMIT commits nothing. A permanent fault fails every access of the kind from the n-th on. A
//! bad place fails permanently, or until a write to it if writes heal it. A MOVE is taken and fails in its completion; the first half of its
//! pages, or its one page, was moved. Flushes of lines and fences cannot fail on a CPU.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandemfs_device::{
    BlockPath, BlockRequest, BytePath, CacheMove, CacheMoves, Device, DeviceError, Firmware, Layer, MoveDirection, MoveState, MoveTicket,
    TxId,
};
use tandemfs_format::Sector;

use crate::memory_device::MemoryDevice;
use crate::random::Random;

/// Kinds of accesses that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// From the memory zone.
    Load,
    /// To the memory zone.
    Store,
    /// Of sectors.
    Read,
    /// Of sectors.
    Write,
    /// FLUSH of the drive.
    Flush,
    /// Of lines, as part of a transaction of the drive.
    StoreTagged,
    /// COMMIT of a transaction of the drive.
    Commit,
    /// MOVE from the flash to the cache.
    MoveToCache,
    /// MOVE from the cache to the flash.
    MoveToFlash,
}

impl Access {
    /// How many kinds there are.
    const COUNT: usize = Self::MoveToFlash as usize + 1;
    /// Accesses of drives without a cache that the host manages; the last two are of drives with firmware.
    pub const ALL: [Self; 7] = [Self::Load, Self::Store, Self::Read, Self::Write, Self::Flush, Self::StoreTagged, Self::Commit];
    /// A MOVE command.
    pub(crate) fn of_move(command: &CacheMove) -> Self {
        match command.direction {
            MoveDirection::ToCache => Self::MoveToCache,
            MoveDirection::ToFlash => Self::MoveToFlash,
        }
    }

    /// MOVE commands.
    pub const MOVES: [Self; 2] = [Self::MoveToCache, Self::MoveToFlash];
    /// Accesses that every device has.
    pub const PLAIN: [Self; 5] = [Self::Load, Self::Store, Self::Read, Self::Write, Self::Flush];
}

/// Bytes of one zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Of the memory zone, from its start.
    Memory(Range<u64>),
    /// Of the block zone, from its start.
    Blocks(Range<u64>),
}

impl Place {
    /// Whether both share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Memory(one), Self::Memory(other)) | (Self::Blocks(one), Self::Blocks(other)) => {
                one.start < other.end && other.start < one.end
            }
            _ => false,
        }
    }
}

/// The planned fault.
#[derive(Debug)]
enum Plan {
    /// Nothing: the device only counts.
    Nothing,
    /// One access of a kind after so many that succeed; all later ones if it is lasting.
    Nth { access: Access, succeed: u64, lasting: bool },
    /// Every access to the place fails. Writing it heals it if that is allowed.
    Place { place: Place, heals: bool, healed: AtomicBool },
}

/// A device with one planned fault.
#[derive(Debug)]
pub struct FaultDevice {
    inner: MemoryDevice,
    plan: Plan,
    /// Accesses so far, by [`Access`].
    counts: [AtomicU64; Access::COUNT],
    hit: AtomicBool,
    /// MOVEs under way that will fail, by ticket.
    failing_moves: Mutex<HashMap<u64, CacheMove>>,
    touched: Mutex<Vec<Place>>,
}

impl FaultDevice {
    /// Fails the access after `succeed` accesses of its kind, and all later ones if the fault is lasting.
    pub fn new(inner: MemoryDevice, access: Access, succeed: u64, lasting: bool) -> Self {
        Self::with(inner, Plan::Nth { access, succeed, lasting })
    }

    /// Fails nothing, counts accesses and notes the places that are read.
    pub fn counting(inner: MemoryDevice) -> Self {
        Self::with(inner, Plan::Nothing)
    }

    /// Fails everything that touches a place; until it is written, where a write `heals` it.
    pub fn at(inner: MemoryDevice, place: Place, heals: bool) -> Self {
        Self::with(inner, Plan::Place { place, heals, healed: AtomicBool::new(false) })
    }

    fn with(inner: MemoryDevice, plan: Plan) -> Self {
        Self {
            inner,
            plan,
            counts: Default::default(),
            hit: AtomicBool::new(false),
            failing_moves: Mutex::default(),
            touched: Mutex::default(),
        }
    }

    /// Whether the fault has happened.
    pub fn hit(&self) -> bool {
        self.hit.load(SeqCst)
    }

    /// Whether a write has healed the bad place.
    pub fn is_healed(&self) -> bool {
        matches!(&self.plan, Plan::Place { healed, .. } if healed.load(SeqCst))
    }

    /// Accesses of a kind so far.
    pub fn count(&self, access: Access) -> u64 {
        self.counts[access as usize].load(SeqCst)
    }

    fn failing_moves(&self) -> MutexGuard<'_, HashMap<u64, CacheMove>> {
        self.failing_moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a MOVE, which is a failure where it was to fail.
    fn end_move(&self, number: u64, state: MoveState) -> MoveState {
        let MoveState::Done(result) = state else { return state };
        match self.failing_moves().remove(&number) {
            Some(command) => MoveState::Done(Err(command.failed("fault device", io::Error::other("an injected fault")))),
            None => MoveState::Done(result),
        }
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.touched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a [`FaultDevice::counting`] device was asked to load and read since the last call.
    pub fn take_touched(&self) -> Vec<Place> {
        std::mem::take(&mut self.places())
    }

    /// A place as its own zone has it, where both paths reach both zones.
    fn own_place(&self, place: Place) -> Place {
        let description = self.inner.description();
        let moved = |range: Range<u64>, by: u64| range.start - by..range.end - by;
        match place {
            Place::Memory(range) if range.start >= description.memory_bytes => Place::Blocks(moved(range, description.memory_bytes)),
            Place::Blocks(range) if range.start >= description.block_bytes => Place::Memory(moved(range, description.block_bytes)),
            own => own,
        }
    }

    /// Whether an access of a place fails. A FLUSH has none.
    fn fails(&self, access: Access, place: Option<Place>) -> bool {
        let place = place.map(|place| self.own_place(place));
        let before = self.counts[access as usize].fetch_add(1, SeqCst);
        let fails = match &self.plan {
            Plan::Nothing => {
                if let (Some(place), Access::Load | Access::Read) = (place, access) {
                    self.places().push(place);
                }
                false
            }
            Plan::Nth { access: planned, succeed, lasting } => {
                access == *planned && (before == *succeed || (*lasting && before > *succeed))
            }
            Plan::Place { place: bad, heals, healed } => {
                let touches = place.is_some_and(|place| place.overlaps(bad)) && !healed.load(SeqCst);
                if touches && *heals && matches!(access, Access::Write | Access::MoveToFlash) {
                    healed.store(true, SeqCst);
                }
                touches && !healed.load(SeqCst)
            }
        };
        if fails {
            self.hit.store(true, SeqCst);
        }
        fails
    }

    fn poisoned(&self, offset: u64) -> DeviceError {
        DeviceError::Poisoned { device: "fault device".into(), offset }
    }

    fn error(&self, operation: &'static str, offset: u64, length: usize) -> DeviceError {
        let source = io::Error::other("an injected fault");
        DeviceError::Block { device: "fault device".into(), operation, offset, length: length as u64, source }
    }
}

impl Layer for FaultDevice {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn store_tagged(&self, transaction: TxId, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        if self.fails(Access::StoreTagged, Some(Place::Memory(offset..offset + from.len() as u64))) {
            return Err(self.poisoned(offset));
        }
        self.inner.store_tagged(transaction, offset, from)
    }

    fn commit(&self, transaction: TxId) -> Result<(), DeviceError> {
        if self.fails(Access::Commit, None) {
            let reason = "an injected fault".to_owned();
            return Err(DeviceError::Firmware { device: "fault device".into(), command: "COMMIT", reason });
        }
        self.inner.commit(transaction)
    }

    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        if self.fails(Access::Load, Some(Place::Memory(offset..offset + into.len() as u64))) {
            // A failed load leaves the buffer unspecified, so fill it with a pattern.
            into.copy_from_slice(&crate::random::fill(Random::new(offset).next(), into.len()));
            return Err(self.poisoned(offset));
        }
        self.inner.load(offset, into)
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        if self.fails(Access::Store, Some(Place::Memory(offset..offset + from.len() as u64))) {
            return Err(self.poisoned(offset));
        }
        self.inner.store(offset, from)
    }

    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        let mut first = None;
        let mut done = Vec::new();
        for (index, request) in requests.iter_mut().enumerate() {
            let (access, name, sector, length) = match request {
                BlockRequest::Read { sector, buffer } => (Access::Read, "read", *sector, buffer.len()),
                BlockRequest::Write { sector, buffer } => (Access::Write, "write", *sector, buffer.len()),
            };
            let offset = sector.offset_bytes();
            if self.fails(access, Some(Place::Blocks(offset..offset + length as u64))) {
                first.get_or_insert(self.error(name, offset, length));
                continue;
            }
            self.inner.transfer(std::slice::from_mut(request), &mut || {})?;
            done.push(index);
        }
        meanwhile();
        done.into_iter().for_each(|index| completed(index, &requests[index]));
        first.map_or(Ok(()), Err)
    }

    fn flush_blocks(&self) -> Result<(), DeviceError> {
        if self.fails(Access::Flush, None) {
            return Err(self.error("flush", 0, 0));
        }
        BlockPath::flush(&self.inner)
    }

    fn discard(&self, sector: Sector, count: u64) -> Result<(), DeviceError> {
        self.inner.discard(sector, count)
    }

    fn submit_move(&self, command: &CacheMove) -> Result<Option<MoveTicket>, DeviceError> {
        let memory = command.check(self.inner.description())?;
        let sectors = command.sector.offset_bytes()..command.sector.offset_bytes() + command.bytes();
        let (access, place) = (Access::of_move(command), Place::Blocks(sectors));
        let pages = Place::Memory(memory.offset..memory.offset + memory.length);
        let is_bad_memory = || matches!(&self.plan, Plan::Place { place, .. } if place.overlaps(&pages));
        if !self.fails(access, Some(place)) && !is_bad_memory() {
            return CacheMoves::submit(&self.inner, command);
        }
        self.hit.store(true, SeqCst);
        // The inner device does half of it: a queue has room for the command or not, whether it fails or not.
        let half = CacheMove { count: (command.count / 2).max(1), ..*command };
        let Some(ticket) = CacheMoves::submit(&self.inner, &half)? else { return Ok(None) };
        self.failing_moves().insert(ticket.number(), *command);
        Ok(Some(ticket))
    }

    fn poll_move(&self, ticket: MoveTicket) -> MoveState {
        let number = ticket.number();
        self.end_move(number, CacheMoves::poll(&self.inner, ticket))
    }

    fn wait_for_move(&self, ticket: MoveTicket, timeout: Duration) -> MoveState {
        let number = ticket.number();
        self.end_move(number, CacheMoves::wait(&self.inner, ticket, timeout))
    }
}

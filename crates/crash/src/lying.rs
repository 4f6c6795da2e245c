//! A device that once returns wrong bytes for a load or a read without an error, or brings wrong bytes to the cache that the host manages. Its
//! other contents stay correct.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandemfs_device::{
    BlockPath, BlockRequest, BytePath, CacheMove, CacheMoves, Device, DeviceError, Layer, MoveDirection, MoveState, MoveTicket,
};

use crate::fault::Place;
use crate::memory_device::{MemoryDevice, Zone};
use crate::random::Random;

/// Kind of a wrong answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// The right bytes with one bit flipped, in a byte that is not zero if there is one. The number chooses the bit.
    FlippedBit(u64),
    /// Zeros.
    Zeros,
    /// The contents of the older image.
    Older,
    /// The contents of another place: the next one of the same length that differs and is not empty.
    Elsewhere,
}

/// A wrong answer that was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// What was asked for.
    pub place: Place,
    /// The right bytes.
    pub truth: Vec<u8>,
    /// The bytes returned.
    pub answer: Vec<u8>,
}

/// The device.
#[derive(Debug)]
pub struct LyingDevice {
    inner: MemoryDevice,
    older: MemoryDevice,
    lie: Lie,
    /// Number of loads and reads that are answered correctly first.
    succeed: u64,
    count: AtomicU64,
    told: Mutex<Option<Told>>,
    /// MOVEs to the cache that are under way, by ticket.
    moving: Mutex<HashMap<u64, CacheMove>>,
}

impl LyingDevice {
    /// Lies once, after `succeed` loads, reads and MOVEs to the cache. `older` is the image that [`Lie::Older`] answers from.
    pub fn new(inner: MemoryDevice, older: MemoryDevice, lie: Lie, succeed: u64) -> Self {
        Self { inner, older, lie, succeed, count: AtomicU64::new(0), told: Mutex::new(None), moving: Mutex::default() }
    }

    /// Loads, reads and MOVEs to the cache so far.
    pub fn count(&self) -> u64 {
        self.count.load(SeqCst)
    }

    /// The wrong answer, once it was given and differed from the right bytes.
    pub fn told(&self) -> Option<Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Spoils the answer `into` of an access.
    fn answer(&self, zone: Zone, offset: u64, into: &mut [u8]) {
        if self.count.fetch_add(1, SeqCst) != self.succeed || into.is_empty() {
            return;
        }
        let truth = into.to_vec();
        match self.lie {
            Lie::Zeros => into.fill(0),
            Lie::Older => self.older.peek(zone, offset, into),
            Lie::FlippedBit(seed) => {
                let used: Vec<usize> = (0..truth.len()).filter(|at| truth[*at] != 0).collect();
                let mut random = Random::new(seed);
                let at = if used.is_empty() { random.below(truth.len() as u64) as usize } else { *random.pick(&used) };
                into[at] ^= 1 << random.below(8);
            }
            Lie::Elsewhere => {
                let length = into.len() as u64;
                let size = match zone {
                    Zone::Memory => self.inner.description().memory_bytes,
                    Zone::Blocks => self.inner.description().block_bytes,
                };
                let other = (1..256).map(|step| offset + step * length).take_while(|at| at + length <= size).find(|at| {
                    self.inner.peek(zone, *at, into);
                    *into != truth[..] && into.iter().any(|byte| *byte != 0)
                });
                if other.is_none() {
                    into.copy_from_slice(&truth);
                }
            }
        }
        if *into != truth[..] {
            let range = offset..offset + into.len() as u64;
            let place = if zone == Zone::Memory { Place::Memory(range) } else { Place::Blocks(range) };
            let told = Told { place, truth, answer: into.to_vec() };
            *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
        }
    }
}

impl LyingDevice {
    fn moving(&self) -> MutexGuard<'_, HashMap<u64, CacheMove>> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A MOVE to the cache that is complete: what it brought may be wrong.
    fn moved(&self, number: u64, state: MoveState) -> MoveState {
        if let MoveState::Done(Ok(())) = state
            && let Some(command) = self.moving().remove(&number)
        {
            let mut bytes = vec![0; command.bytes() as usize];
            self.inner.peek(Zone::Blocks, command.sector.offset_bytes(), &mut bytes);
            self.answer(Zone::Blocks, command.sector.offset_bytes(), &mut bytes);
            self.inner.poke(Zone::Memory, self.inner.cache_offset(&command), &bytes);
        }
        state
    }
}

impl Layer for LyingDevice {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.load(offset, into)?;
        self.answer(Zone::Memory, offset, into);
        Ok(())
    }

    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        self.inner.transfer(requests, meanwhile)?;
        for request in requests.iter_mut() {
            if let BlockRequest::Read { sector, buffer } = request {
                buffer.with_private(|bytes| self.answer(Zone::Blocks, sector.offset_bytes(), bytes));
            }
        }
        requests.iter().enumerate().for_each(|(index, request)| completed(index, request));
        Ok(())
    }

    fn submit_move(&self, command: &CacheMove) -> Result<Option<MoveTicket>, DeviceError> {
        let ticket = CacheMoves::submit(&self.inner, command)?;
        if let (Some(ticket), MoveDirection::ToCache) = (&ticket, command.direction) {
            self.moving().insert(ticket.number(), *command);
        }
        Ok(ticket)
    }

    fn poll_move(&self, ticket: MoveTicket) -> MoveState {
        let number = ticket.number();
        self.moved(number, CacheMoves::poll(&self.inner, ticket))
    }

    fn wait_for_move(&self, ticket: MoveTicket, timeout: Duration) -> MoveState {
        let number = ticket.number();
        self.moved(number, CacheMoves::wait(&self.inner, ticket, timeout))
    }
}

//! MOVE on a pair: no hardware connects the two halves, so threads of the host copy with ordinary block I/O, as the prototype of Habicht et
//! al. does (§5).
//!
//! [PMV1] Threads start with the first MOVE and end with the device. They take commands in order and complete them in any order; a command
//!       is copied in parts, each by one block request.
//! [PMV2] A MOVE to the cache is flushed from the CPU's caches and fenced before its completion, where the domain needs that ([CMV3]). One to
//!       the flash is a completed block write ([CMV2]).
//! [PMV3] A device that is closed waits for the copies under way. Commands that no thread has taken are dropped: nobody can take their
//!       completion.
//!
//! [CMV2]: crate::CacheMoves
//! [CMV3]: crate::CacheMoves

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use tandemfs_format::SECTOR_BYTES;

use super::block_half::BlockHalf;
use super::memory_half::MemoryHalf;
use crate::sync::{Condvar, Mutex};
use crate::{BlockRequest, CacheMove, CacheMoves, DeviceDescription, DeviceError, MoveDirection, MoveState, MoveTicket};

/// Commands under way at once.
const QUEUE_DEPTH: u32 = 64;
/// Threads that copy: their block requests are in flight at the same time.
const THREAD_COUNT: usize = 4;
/// Largest part of a command that one block request copies, in bytes.
const PART_BYTES: usize = 128 << 10;

/// What is copied between.
#[derive(Debug)]
pub(super) struct Halves {
    pub(super) name: String,
    pub(super) domain: crate::PersistenceDomain,
    pub(super) memory: Arc<MemoryHalf>,
    pub(super) block: Arc<BlockHalf>,
}

#[derive(Debug, Default)]
struct State {
    next_number: u64,
    /// Commands that no thread has taken: ticket, command, where the pages are in the memory half.
    waiting: VecDeque<(u64, CacheMove, u64)>,
    /// Those whose completion was not taken; `None` where there is none yet.
    under_way: HashMap<u64, Option<Result<(), DeviceError>>>,
    ends: bool,
}

#[derive(Debug)]
struct Shared {
    halves: Halves,
    state: Mutex<State>,
    /// There is a command, or the end.
    submitted: Condvar,
    /// There is a completion.
    completed: Condvar,
}

/// Threads that copy, and their queue.
#[derive(Debug)]
pub(super) struct Mover {
    description: DeviceDescription,
    read_only: bool,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Mover {
    /// Of a pair with this description.
    pub(super) fn new(halves: Halves, description: DeviceDescription, read_only: bool) -> Self {
        let (state, submitted, completed) = (Mutex::new(State::default()), Condvar::default(), Condvar::default());
        let shared = Arc::new(Shared { halves, state, submitted, completed });
        Self { description, read_only, shared, threads: Mutex::new(Vec::new()) }
    }

    /// [PMV1]
    fn start(&self) -> std::io::Result<()> {
        let mut threads = self.threads.lock();
        while threads.len() < THREAD_COUNT {
            let shared = Arc::clone(&self.shared);
            threads.push(Builder::new().name("tandemfs-move".into()).spawn(move || shared.run())?);
        }
        Ok(())
    }
}

impl CacheMoves for Mover {
    fn queue_depth(&self) -> u32 {
        QUEUE_DEPTH
    }

    fn submit(&self, command: &CacheMove) -> Result<Option<MoveTicket>, DeviceError> {
        let offset = command.check(&self.description)?.offset;
        if self.read_only {
            return Err(command.failed(&self.description.name, rustix::io::Errno::ROFS.into()));
        }
        self.start().map_err(|source| command.failed(&self.shared.halves.name, source))?;
        let mut state = self.shared.state.lock();
        if state.under_way.len() >= QUEUE_DEPTH as usize {
            return Ok(None);
        }
        state.next_number += 1;
        let number = state.next_number;
        state.under_way.insert(number, None);
        state.waiting.push_back((number, *command, offset));
        drop(state);
        self.shared.submitted.notify_one();
        Ok(Some(MoveTicket::new(number)))
    }

    fn poll(&self, ticket: MoveTicket) -> MoveState {
        self.shared.taken(&mut self.shared.state.lock(), ticket)
    }

    fn wait(&self, ticket: MoveTicket, timeout: Duration) -> MoveState {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.shared.state.lock();
        while matches!(state.under_way.get(&ticket.number()), Some(None)) {
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => break,
                Some(left) => {
                    self.shared.completed.wait_for(&mut state, left);
                }
                None => self.shared.completed.wait(&mut state),
            }
        }
        self.shared.taken(&mut state, ticket)
    }
}

impl Drop for Mover {
    /// [PMV3]
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.ends = true;
            state.waiting.clear();
        }
        self.shared.submitted.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            let _panicked = thread.join();
        }
    }
}

impl Shared {
    fn taken(&self, state: &mut State, ticket: MoveTicket) -> MoveState {
        match state.under_way.remove(&ticket.number()) {
            Some(Some(result)) => MoveState::Done(result),
            Some(None) => {
                state.under_way.insert(ticket.number(), None);
                MoveState::Pending(ticket)
            }
            None => MoveState::unknown(&self.halves.name),
        }
    }

    fn run(&self) {
        let mut buffer = vec![0; PART_BYTES];
        let mut state = self.state.lock();
        while !state.ends {
            let Some((number, command, offset)) = state.waiting.pop_front() else {
                self.submitted.wait(&mut state);
                continue;
            };
            drop(state);
            let result = self.halves.copy(&command, offset, &mut buffer);
            state = self.state.lock();
            state.under_way.insert(number, Some(result));
            self.completed.notify_all();
        }
    }
}

impl Halves {
    fn copy(&self, command: &CacheMove, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let part_sectors = (buffer.len() / SECTOR_BYTES) as u64;
        let count = u64::from(command.count);
        for first in (0..count).step_by(part_sectors as usize) {
            let buffer = &mut buffer[..(part_sectors.min(count - first) as usize) * SECTOR_BYTES];
            let (sector, at) = (command.sector.nth(first), offset + first * SECTOR_BYTES as u64);
            match command.direction {
                MoveDirection::ToCache => {
                    self.transfer(command, BlockRequest::Read { sector, buffer: (&mut *buffer).into() })?;
                    self.memory.store(at, buffer, self.domain)?;
                }
                MoveDirection::ToFlash => {
                    self.memory.mapping().load(at, buffer)?;
                    self.transfer(command, BlockRequest::Write { sector, buffer: (&*buffer).into() })?;
                }
            }
        }
        if command.direction == MoveDirection::ToCache && self.domain.needs_flush() {
            self.memory.mapping().flush(offset, command.bytes()); // [PMV2]
            self.memory.mapping().fence();
        }
        Ok(())
    }

    /// One block request. Its failure is the command's.
    fn transfer(&self, command: &CacheMove, request: BlockRequest<'_>) -> Result<(), DeviceError> {
        self.block.transfer_each(&mut [request], &mut || {}, &mut |_, _| {}).map_err(|error| match error {
            DeviceError::Block { source, .. } => command.failed(&self.name, source),
            other => other,
        })
    }
}

//! A device on which one chosen request does not complete until the test releases it. A MOVE is taken, and its completion does not come.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tandemfs_device::{
    BlockPath, BlockRequest, BytePath, CacheMove, CacheMoves, Device, DeviceError, Firmware, Layer, MoveState, MoveTicket, TxId,
};

use crate::awake::comes_within;
use crate::fault::Access;
use crate::memory_device::MemoryDevice;

/// The access that will not complete: the next one of a kind, of at least so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trap {
    access: Access,
    length_min: u64,
}

#[derive(Debug, Default)]
struct State {
    trap: Option<Trap>,
    /// Whether a thread waits in the trap.
    stuck: bool,
    released: bool,
    /// The MOVE that does not complete, by its ticket.
    stuck_move: Option<u64>,
}

/// The device.
#[derive(Debug)]
pub struct StuckDevice {
    inner: MemoryDevice,
    state: Mutex<State>,
    changed: Condvar,
}

impl StuckDevice {
    /// Nothing is stuck until [`StuckDevice::set_trap`].
    pub fn new(inner: MemoryDevice) -> Arc<Self> {
        Arc::new(Self { inner, state: Mutex::default(), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the next access of a kind, of at least `length_min` bytes. Other accesses continue.
    pub fn set_trap(&self, access: Access, length_min: u64) {
        *self.state() = State { trap: Some(Trap { access, length_min }), ..State::default() };
    }

    /// Waits until a request is stuck. Returns false if none is stuck in time, in which the process ran.
    pub fn is_stuck_within(&self, time: Duration) -> bool {
        comes_within(time, || self.state().stuck)
    }

    /// Releases the stuck request.
    pub fn release(&self) {
        self.state().released = true;
        self.changed.notify_all();
    }

    /// Whether an access meets the trap, which is closed then.
    fn closes(&self, access: Access, length: u64) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state();
        state.trap.take_if(|trap| trap.access == access && length >= trap.length_min)?;
        state.stuck = true;
        self.changed.notify_all();
        Some(state)
    }

    fn pass(&self, access: Access, length: u64) {
        let Some(mut state) = self.closes(access, length) else { return };
        while !state.released {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.stuck = false;
    }
}

impl Layer for StuckDevice {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn store_tagged(&self, transaction: TxId, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.pass(Access::StoreTagged, from.len() as u64);
        self.inner.store_tagged(transaction, offset, from)
    }

    fn commit(&self, transaction: TxId) -> Result<(), DeviceError> {
        self.pass(Access::Commit, 0);
        self.inner.commit(transaction)
    }

    fn load(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.pass(Access::Load, into.len() as u64);
        self.inner.load(offset, into)
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.pass(Access::Store, from.len() as u64);
        self.inner.store(offset, from)
    }

    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        for request in requests.iter() {
            match request {
                BlockRequest::Read { buffer, .. } => self.pass(Access::Read, buffer.len() as u64),
                BlockRequest::Write { buffer, .. } => self.pass(Access::Write, buffer.len() as u64),
            }
        }
        self.inner.transfer_each(requests, meanwhile, completed)
    }

    fn flush_blocks(&self) -> Result<(), DeviceError> {
        self.pass(Access::Flush, 0);
        BlockPath::flush(&self.inner)
    }

    fn submit_move(&self, command: &CacheMove) -> Result<Option<MoveTicket>, DeviceError> {
        let ticket = CacheMoves::submit(&self.inner, command)?;
        if let Some(ticket) = &ticket
            && let Some(mut state) = self.closes(Access::of_move(command), command.bytes())
        {
            state.stuck_move = Some(ticket.number());
        }
        Ok(ticket)
    }

    fn poll_move(&self, ticket: MoveTicket) -> MoveState {
        if self.holds(&self.state(), &ticket) {
            return MoveState::Pending(ticket);
        }
        CacheMoves::poll(&self.inner, ticket)
    }

    fn wait_for_move(&self, ticket: MoveTicket, timeout: Duration) -> MoveState {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, timeout, |state| self.holds(state, &ticket));
        let is_held = self.holds(&waited.unwrap_or_else(PoisonError::into_inner).0, &ticket);
        if is_held {
            return MoveState::Pending(ticket);
        }
        CacheMoves::wait(&self.inner, ticket, timeout)
    }
}

impl StuckDevice {
    /// Whether the completion of a MOVE does not come yet.
    fn holds(&self, state: &State, ticket: &MoveTicket) -> bool {
        state.stuck_move == Some(ticket.number()) && !state.released
    }
}

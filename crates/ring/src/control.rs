//! What other threads of the daemon tell a poller.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arena::Arena;
use crate::poller::{ClientId, Lifeline};
use crate::sync::{Mutex, Waker};

#[derive(Debug)]
pub(crate) enum Command {
    Add(ClientId, Arc<Arena>, Vec<Lifeline>),
    Remove(ClientId),
    Stop,
}

/// Adds and removes clients of a running poller.
#[derive(Debug, Clone)]
pub struct Control {
    commands: Arc<Mutex<Vec<Command>>>,
    /// The number of the next client.
    next: Arc<AtomicU64>,
    waker: Waker,
}

impl Control {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { commands: Arc::default(), next: Arc::new(AtomicU64::new(1)), waker }
    }

    /// Serves a client from now on, until one of its lifelines says that it has ended.
    pub fn add(&self, arena: Arc<Arena>, lifelines: Vec<Lifeline>) -> ClientId {
        let id = ClientId(self.next.fetch_add(1, Ordering::Relaxed));
        self.tell(Command::Add(id, arena, lifelines));
        id
    }

    /// Ends a client's connection.
    pub fn remove(&self, client: ClientId) {
        self.tell(Command::Remove(client));
    }

    /// Ends the poller.
    pub fn stop(&self) {
        self.tell(Command::Stop);
    }

    fn tell(&self, command: Command) {
        self.commands.lock().push(command);
        self.waker.wake();
    }

    pub(crate) fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *self.commands.lock())
    }
}

//! The poller's side: requests are handed on, ends are noted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use tandemfs_protocol::{Malformed, Operation, Outcome};
use tandemfs_ring::{Answer, ClientId, End, Handler, Request, Ticket};

use crate::calls;
use crate::clients::{Client, Shared};

/// Serves the requests of all clients, in the poller's thread ([D9], [D10]).
pub(crate) struct Desk {
    shared: Arc<Shared>,
    /// Those of [`Shared::clients`] that have asked something.
    known: HashMap<ClientId, Arc<Client>>,
}

impl Desk {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, known: HashMap::new() }
    }

    fn client(&mut self, id: ClientId) -> Option<&Arc<Client>> {
        if !self.known.contains_key(&id) {
            let client = self.shared.client(id)?;
            self.known.insert(id, client);
        }
        self.known.get(&id)
    }
}

impl Handler for Desk {
    fn request(&mut self, id: ClientId, request: &Request, ticket: Ticket) {
        let shared = Arc::clone(&self.shared);
        let Some(client) = self.client(id) else { return }; // it has ended; the ticket answers
        client.is_active.store(true, Relaxed);
        match Operation::decode(request) {
            Ok(Operation::Nothing) => ticket.answer(&Answer::default()),
            Ok(_) => {
                let (client, request) = (Arc::clone(client), Box::new(request.clone()));
                let worker = Arc::clone(&shared);
                shared.pool.run(move || {
                    let outcome = calls::serve(&worker.vfs, &client, &request, &ticket);
                    drop(client); // before the answer: what was closed is gone when its closer goes on
                    ticket.answer(&outcome.encode());
                });
            }
            Err(Malformed::Operation(_)) => ticket.answer(&Outcome::Errno(Errno::NOSYS.raw_os_error()).encode()),
            Err(Malformed::Field(what)) => {
                tracing::warn!(
                    process = client.peer.name(),
                    "a client of the direct door sent what no program sends: {what}; its connection ends"
                );
                shared.control.remove(id);
            }
        }
    }

    fn ended(&mut self, id: ClientId, end: End) {
        let clients = [self.known.remove(&id), self.shared.clients.lock().remove(&id)];
        let Some(client) = clients.into_iter().flatten().next() else { return };
        if let End::Lied(lie) = end {
            tracing::warn!(
                process = client.peer.name(),
                "a client of the direct door wrote what no client writes: {lie}; its connection ends"
            );
        }
        self.shared.pool.run(move || drop(client)); // [D3]
    }
}

//! The poller's side: what it can do at once it does, the rest is handed on; ends are noted.
//!
//! [SRV1] The poller serves an operation by itself inside of `no_wait` of `vfs` ([KV7]), which bounds what one request may take, and a client
//!        has at most eight requests served before it is the next one's turn ([TRU4] of the ring). An operation that is refused has changed
//!        nothing and goes to the pool as it came, with its ticket.
//! [SRV2] An open file gets its number only when its call can not be refused any more: one that is repeated opens one file.
//! [SRV3] Before the answer, what the operation left to be done is done, by the pool: pages of the mount that came in during a change are
//!        dropped, files whose last holder went are removed. So who goes on sees neither.
//! [SRV4] The poller writes no log and reads no `/proc`, since both may wait: the pool does, with the ticket, so that it is not asked more
//!        often than a client has slots.
//! [SRV5] While one client alone asks and a thread of the pool is idle, the polling thread runs by itself what goes to the pool, and hands
//!        the poller to that thread first (`polling.rs`): then the poller waits until a thread has woken up, and not the request. Beside
//!        other clients it stays with the poller, for which they would wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;

use rustix::io::Errno;
use tandemfs_protocol::{Malformed, Operation, Outcome};
use tandemfs_ring::{Answer, ClientId, End, Handler, Request, Ticket};
use tandemfs_vfs::{Owed, Vfs};

use crate::calls::{self, Served};
use crate::clients::{Client, Shared};
use crate::mutant::{self, Mutant};
use crate::pool::Job;
use crate::tally::{Begun, Tally};

/// A client that asked so often in a row is alone ([SRV5]).
const ALONE_REQUESTS: u32 = 8;

/// Serves the requests of all clients, in the poller's thread ([D9], [D10]).
pub(crate) struct Desk {
    shared: Arc<Shared>,
    /// Those of [`Shared::clients`] that have asked something.
    known: HashMap<ClientId, Arc<Client>>,
    /// What this thread will run when it has handed the poller on ([SRV5]).
    kept: Option<Job>,
    /// Who asked last, and how many requests in a row.
    last: Option<(ClientId, u32)>,
    _polls: Sender<()>,
}

impl Desk {
    /// `polls` is dropped with the desk.
    pub(crate) fn new(shared: Arc<Shared>, polls: Sender<()>) -> Self {
        Self { shared, _polls: polls, known: HashMap::new(), kept: None, last: None }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(crate) fn has_kept(&self) -> bool {
        self.kept.is_some()
    }

    pub(crate) fn take_kept(&mut self) -> Option<Job> {
        self.kept.take()
    }

    fn assign(&mut self, job: Job) {
        let is_alone = self.last.is_some_and(|(_, in_a_row)| in_a_row >= ALONE_REQUESTS);
        if self.kept.is_none() && is_alone && self.shared.pool.has_idle() {
            self.kept = Some(job);
        } else {
            self.shared.pool.run(job);
        }
    }

    fn client(&mut self, id: ClientId) -> Option<&Arc<Client>> {
        if !self.known.contains_key(&id) {
            let client = self.shared.client(id)?;
            self.known.insert(id, client);
        }
        self.known.get(&id)
    }
}

impl Desk {
    /// Serves a request; returns what is left of it to a thread that may wait.
    fn serve(&mut self, id: ClientId, request: &Request, ticket: Ticket) -> Option<Job> {
        let shared = Arc::clone(&self.shared);
        let client = self.client(id)?; // else it has ended; the ticket answers
        client.is_active.store(true, Relaxed);
        match Operation::decode(request) {
            Ok(Operation::Nothing) => ticket.answer(&Answer::default()),
            // [LND5]
            Ok(operation) if !client.is_served(operation.number()) => ticket.answer(&Outcome::Errno(Errno::NOSYS.raw_os_error()).encode()),
            Ok(operation) if calls::is_for_the_pool(&operation) => {
                let begun = client.tally.begin(operation.number());
                return Some(hand_on(&shared, client, request, (ticket, begun), Owed::default()));
            }
            Ok(operation) => {
                let (may_leave_files, begun) = (may_leave_files(&operation), client.tally.begin(operation.number()));
                let caller = client.peer.pid.cast_unsigned();
                let vfs = &shared.vfs;
                let serve = || bound(vfs, client, || calls::try_serve(vfs, &shared.recorder, client, operation, &ticket));
                match vfs.file_system().for_caller(caller, serve) {
                    (None, owed) => return Some(hand_on(&shared, client, request, (ticket, begun), owed)), // [SRV1]
                    (Some(served), owed) => {
                        let leaves = may_leave_files && shared.vfs.file_system().has_left_behind() && !mutant::on(Mutant::FilesLeft);
                        if owed.is_nothing() && !leaves && served.failure.is_none() {
                            client.tally.end(begun, &served.outcome);
                            served.answer(ticket);
                        } else {
                            return Some(finish_later(&shared, &client.tally, served, owed, (ticket, begun)));
                        }
                    }
                }
            }
            Err(Malformed::Operation(_)) => ticket.answer(&Outcome::Errno(Errno::NOSYS.raw_os_error()).encode()),
            Err(Malformed::Field(what)) => {
                let (client, worker) = (Arc::clone(client), Arc::clone(&shared));
                shared.pool.run(Box::new(move || {
                    if !client.is_condemned.swap(true, Relaxed) {
                        tracing::warn!(
                            process = client.peer.name(),
                            "a client of the direct door sent what no program sends: {what}; its connection ends"
                        );
                    }
                    worker.control.remove(id);
                    drop(ticket); // [SRV4]
                }));
            }
        }
        None
    }
}

impl Handler for Desk {
    fn request(&mut self, id: ClientId, request: &Request, ticket: Ticket) {
        self.last = match self.last {
            Some((last, in_a_row)) if last == id => Some((id, in_a_row.saturating_add(1))),
            _ => Some((id, 1)),
        };
        if let Some(job) = self.serve(id, request, ticket) {
            self.assign(job);
        }
    }

    fn ended(&mut self, id: ClientId, end: End) {
        let clients = [self.known.remove(&id), self.shared.clients.lock().remove(&id)];
        let Some(client) = clients.into_iter().flatten().next() else { return };
        self.shared.pool.run(Box::new(move || {
            if let End::Lied(lie) = end {
                tracing::warn!(
                    process = client.peer.name(),
                    "a client of the direct door wrote what no client writes: {lie}; its connection ends"
                );
            }
            drop(client); // [D3]
        }));
    }
}

/// Whether an operation may take the last hold of a removed file.
fn may_leave_files(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Close { .. } | Operation::Unlink { .. } | Operation::RemoveDirectory { .. } | Operation::Rename { .. })
}

fn log(served: &Served) {
    if let Some(failure) = &served.failure {
        tracing::error!("a call through the direct door failed: {failure}");
    }
}

/// Serves a client within the limits of quota. Without limits nobody asks who he is.
fn bound<T>(vfs: &Vfs, client: &Client, serve: impl FnOnce() -> T) -> T {
    if vfs.file_system().counts_usage() { vfs.bound_by_quota(&client.process().credentials, serve) } else { serve() }
}

/// What serves a request in the pool.
fn hand_on(shared: &Arc<Shared>, client: &Arc<Client>, request: &Request, (ticket, begun): (Ticket, Begun), owed: Owed) -> Job {
    client.tally.goes_to_pool();
    let (client, request) = (Arc::clone(client), Box::new(request.clone()));
    let worker = Arc::clone(shared);
    Box::new(move || {
        drop(owed);
        let caller = client.peer.pid.cast_unsigned();
        let serve = || bound(&worker.vfs, &client, || calls::serve(&worker.vfs, &worker.recorder, &client, &request, &ticket));
        let served = worker.vfs.file_system().for_caller(caller, serve);
        log(&served);
        client.tally.end(begun, &served.outcome);
        drop(client); // before the answer: what was closed is gone when its closer goes on
        served.answer(ticket);
    })
}

/// What answers in the pool ([SRV3]).
fn finish_later(shared: &Arc<Shared>, tally: &Arc<Tally>, served: Served, owed: Owed, (ticket, begun): (Ticket, Begun)) -> Job {
    tally.goes_to_pool();
    let (worker, tally) = (Arc::clone(shared), Arc::clone(tally));
    Box::new(move || {
        if mutant::on(Mutant::AnsweredBeforeOwed) {
            served.answer(ticket);
            std::thread::sleep(std::time::Duration::from_millis(100));
            drop(owed);
            return;
        }
        drop(owed);
        worker.vfs.file_system().remove_left_behind();
        log(&served);
        tally.end(begun, &served.outcome);
        served.answer(ticket);
    })
}

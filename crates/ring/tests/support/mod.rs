//! A poller that is turned by hand, with one client whose shared memory the test may change through its file.
#![allow(dead_code, reason = "each test file uses its part")]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use tandemfs_ring::{Answer, Arena, Client, ClientId, Control, Doorbell, End, Handler, Poller, Request, Sizes, Ticket};

pub const SIZES: Sizes = Sizes { slots: 4, data_bytes: 64 << 10 };

/// Answers with the sum of a request's numbers and the attributes that it asks for; keeps what it saw.
#[derive(Debug, Default)]
pub struct Echo {
    pub seen: Vec<Request>,
    pub ended: Vec<(ClientId, End)>,
    /// Whether tickets are kept instead of answered.
    pub keeps: bool,
    pub kept: Vec<Ticket>,
}

/// What [`Echo`] answers.
pub fn echo(request: &Request) -> Answer {
    let value = request.node ^ request.handle ^ request.offset ^ request.length ^ request.arguments.iter().sum::<u64>();
    Answer { error: request.flags, value, further: !value, ..Answer::default() }
}

impl Handler for Echo {
    fn request(&mut self, _: ClientId, request: &Request, ticket: Ticket) {
        for range in request.ranges {
            let data = ticket.data(range).expect("validated");
            let mut bytes = vec![0; data.length()];
            data.read(0, &mut bytes);
            bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            data.write(0, &bytes);
        }
        self.seen.push(request.clone());
        match self.keeps {
            true => self.kept.push(ticket),
            false => ticket.answer(&echo(request)),
        }
    }

    fn ended(&mut self, client: ClientId, end: End) {
        self.ended.push((client, end));
    }
}

/// A client of an arena in this process.
pub fn client_of(arena: &Arena, lifeline: Option<OwnedFd>) -> Client {
    let descriptors = arena.descriptors();
    let bell = descriptors.bell.map(|bell| bell.try_clone_to_owned().expect("a descriptor"));
    Client::map(descriptors.arena, descriptors.words, bell, lifeline).expect("maps")
}

pub struct Rig {
    pub poller: Poller,
    pub control: Control,
    pub handler: Echo,
    pub arena: Arc<Arena>,
    pub client: Client,
    pub id: ClientId,
    /// A client that has ended.
    nobody: ClientId,
}

impl Rig {
    /// The client stays active.
    pub fn new(doorbell: Doorbell) -> Self {
        let poller = Poller::new(Duration::from_secs(3600)).expect("a poller");
        let (control, arena) = (poller.control(), Arena::new(SIZES, doorbell).expect("an arena"));
        let client = client_of(&arena, None);
        let id = control.add(arena.clone(), Vec::new());
        let nobody = control.add(Arena::new(SIZES, doorbell).expect("an arena"), Vec::new());
        let mut rig = Self { poller, control, handler: Echo::default(), arena, client, id, nobody };
        rig.turn();
        rig.handler.ended.clear();
        rig
    }

    /// One round, which does not sleep, since a client is to be removed.
    pub fn turn(&mut self) {
        self.control.remove(self.nobody);
        self.poller.round(&mut self.handler).expect("a round");
    }

    /// Changes bytes of the arena.
    pub fn change(&self, at: u64, bytes: &[u8]) {
        self.arena.file().expect("a file").write_all_at(bytes, at).expect("written");
    }

    pub fn bytes(&self, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.arena.file().expect("a file").read_exact_at(&mut bytes, at).expect("read");
        bytes
    }

    pub fn word_file(&self) -> OwnedFd {
        self.arena.descriptors().words.as_fd().try_clone_to_owned().expect("a descriptor")
    }
}

//! A client that changes any word of its shared memory at any time: between the daemon's steps, and before any load in the middle of one.
//! What the daemon passes on must fit, what it does in a round must be bounded, what belongs to the client it must not write, and another
//! client must be served as ever.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tandemfs_ring::mutant::at_each_load;
use tandemfs_ring::{
    Answer, Arena, Attributes, Client, ClientId, Control, Doorbell, End, Handler, NAME_BYTES_MAX, Poller, Request, Sizes, Slot, Ticket,
};

use crate::Input;

const SIZES: Sizes = Sizes { slots: 4, data_bytes: 8192 };
const SLOTS_AT: u64 = 256;
const SLOT_BYTES: u64 = 1024;
/// What the client writes of a slot.
const REQUEST_BYTES: usize = 640;
/// Requests of a client in a round.
const BATCH_MAX: usize = 8;
/// Loads of a round: each slot's request and answer once, for two clients.
const LOADS_MAX: usize = 2 * 4 * (2 + 7 + 8 + 64 + 1) + 32;
/// Bytes of the header and the slots.
const HEAD_BYTES: usize = 8192;

/// A store of the client.
#[derive(Debug, Clone, Copy)]
struct Change {
    at: u64,
    value: u32,
}

/// The liar's memory through its file, and what the liar has written there.
struct Liar {
    file: File,
    written: Vec<u8>,
    turn: u32,
    /// Changes before the loads of the next round, by the number of the load.
    plan: Vec<(usize, Change)>,
    loads: usize,
}

impl Liar {
    fn put(&mut self, Change { at, value }: Change) {
        let bytes = value.to_le_bytes();
        self.file.write_all_at(&bytes, at).unwrap_or_else(|error| panic!("a sealed file: {error}"));
        if let Some(place) = self.written.get_mut(at as usize..at as usize + 4) {
            place.copy_from_slice(&bytes);
        }
    }

    fn before_load(&mut self) {
        self.loads += 1;
        let now = self.loads;
        let due: Vec<Change> = self.plan.iter().filter(|(load, _)| *load == now).map(|(_, change)| *change).collect();
        due.into_iter().for_each(|change| self.put(change));
    }

    fn head(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        self.file.read_exact_at(&mut bytes, 0).unwrap_or_else(|error| panic!("a sealed file: {error}"));
        bytes
    }
}

/// Checks what it gets.
struct Judge {
    liar: ClientId,
    requests: usize,
    honest: u64,
    has_ended: bool,
    keeps: bool,
    kept: Vec<Ticket>,
}

impl Handler for Judge {
    fn request(&mut self, client: ClientId, request: &Request, ticket: Ticket) {
        if client != self.liar {
            self.honest += 1;
            ticket.answer(&Answer { value: request.node + 1, ..Answer::default() });
            return;
        }
        assert!(!self.has_ended, "a request of a client that has ended");
        self.requests += 1;
        check_count(self.requests);
        check_request(request);
        for range in request.ranges {
            let data = ticket.data(range).unwrap_or_else(|| panic!("{range:?} is not in the data area"));
            data.write(0, &vec![0xdd; data.length()]);
        }
        match self.keeps {
            true => self.kept.push(ticket),
            false => ticket.answer(&Answer { attributes: Some(Attributes::default()), ..Answer::default() }),
        }
    }

    fn ended(&mut self, client: ClientId, end: End) {
        assert!(client != self.liar || matches!(end, End::Lied(_)), "{end:?}");
        self.has_ended |= client == self.liar;
    }
}

fn check_count(requests: usize) {
    assert!(requests <= BATCH_MAX, "{requests} requests of one client in a round");
}

fn check_request(request: &Request) {
    for range in request.ranges {
        assert!(u64::from(range.start) + u64::from(range.length) <= SIZES.data_bytes, "{range:?}");
    }
    for index in 0..2 {
        assert!(request.names.get(index).len() <= NAME_BYTES_MAX, "a name of {} bytes", request.names.get(index).len());
    }
}

fn check_loads(loads: usize) {
    assert!(loads <= LOADS_MAX, "{loads} loads in a round");
}

/// The daemon writes answers alone.
fn check_unwritten(written: &[u8], found: &[u8]) {
    let slots = (0..SIZES.slots as usize).map(|slot| SLOTS_AT as usize + slot * SLOT_BYTES as usize);
    let places = std::iter::once(0..SLOTS_AT as usize).chain(slots.map(|at| at..at + REQUEST_BYTES));
    for place in places {
        assert!(written.get(place.clone()) == found.get(place.clone()), "the daemon wrote into the client's lines at {place:?}");
    }
}

/// The daemon with two clients.
struct Scene {
    poller: Poller,
    control: Control,
    judge: Judge,
    liar: Rc<RefCell<Liar>>,
    honest: Slot,
    nobody: ClientId,
}

fn arena(doorbell: Doorbell) -> Arc<Arena> {
    Arena::new(SIZES, doorbell).unwrap_or_else(|error| panic!("an arena: {error}"))
}

impl Scene {
    fn new(doorbell: Doorbell) -> Self {
        let poller = Poller::new(Duration::from_secs(3600)).unwrap_or_else(|error| panic!("a poller: {error}"));
        let (control, hostile, other) = (poller.control(), arena(doorbell), arena(doorbell));
        let descriptors = other.descriptors();
        let bell = descriptors.bell.map(|bell| bell.try_clone_to_owned().unwrap_or_else(|error| panic!("{error}")));
        let client = Client::map(descriptors.arena, descriptors.words, bell, None).unwrap_or_else(|error| panic!("{error}"));
        let honest = client.slot().unwrap_or_else(|| panic!("a slot"));
        let file = hostile.file().unwrap_or_else(|error| panic!("{error}"));
        let mut liar = Liar { file, written: Vec::new(), turn: 0, plan: Vec::new(), loads: 0 };
        liar.written = liar.head();
        let judge =
            Judge { liar: control.add(hostile, Vec::new()), requests: 0, honest: 0, has_ended: false, keeps: false, kept: Vec::new() };
        control.add(other, Vec::new());
        let nobody = control.add(arena(doorbell), Vec::new());
        let mut scene = Self { poller, control, judge, liar: Rc::new(RefCell::new(liar)), honest, nobody };
        scene.round();
        scene
    }

    /// One round. It does not sleep, since a client is to be removed.
    fn round(&mut self) {
        self.control.remove(self.nobody);
        self.judge.requests = 0;
        self.liar.borrow_mut().loads = 0;
        let liar = Rc::clone(&self.liar);
        at_each_load(Some(Box::new(move || liar.borrow_mut().before_load())));
        let result = self.poller.round(&mut self.judge);
        at_each_load(None);
        assert!(result.is_ok(), "{result:?}");
        let mut liar = self.liar.borrow_mut();
        liar.plan.clear();
        check_loads(liar.loads);
        check_unwritten(&liar.written, &liar.head());
    }

    /// A call of the other client is answered at most two rounds after it.
    fn honest_call(&mut self, number: u64) {
        let before = self.judge.honest;
        let request = Request { node: number, ..Request::new(1) };
        let Scene { poller, control, judge, honest, nobody, .. } = self;
        let pending = honest.submit(&request, Vec::new()).unwrap_or_else(|error| panic!("{error}"));
        for _ in 0..2 {
            control.remove(*nobody);
            judge.requests = 0;
            assert!(poller.round(judge).is_ok());
        }
        assert_eq!(judge.honest, before + 1, "another client waits");
        let answer = pending.wait().unwrap_or_else(|error| panic!("{error}")).0;
        assert_eq!(answer.value, number + 1);
    }
}

/// A place that means something, or any word of the head.
fn place(input: &mut Input<'_>) -> u64 {
    const IN_SLOT: [u64; 14] = [0, 4, 8, 12, 16, 20, 24, 56, 60, 64, 68, 72, 128, 640];
    match input.byte() {
        choice @ 0..200 => SLOTS_AT + SLOT_BYTES * u64::from(choice % 4) + *input.pick(&IN_SLOT),
        200..220 => 64,
        220..230 => 128,
        _ => 4 * input.below(HEAD_BYTES / 4) as u64,
    }
}

fn change(input: &mut Input<'_>) -> Change {
    Change { at: place(input), value: input.border(4) as u32 }
}

/// A request that fits.
fn submit(liar: &mut Liar, input: &mut Input<'_>) {
    let slot = SLOTS_AT + SLOT_BYTES * u64::from(input.byte() % 4);
    let (more, first, second) = (u32::from(input.byte() % 9), u32::from(input.byte()), u32::from(input.byte()));
    let (start, length) = (input.below(4096) as u32, input.below(4096) as u32);
    liar.turn += 1;
    let words = [(8, 7 | more << 16), (12, first | second << 16), (16, 0), (20, 0), (56, start), (60, length), (64, 0), (68, 0)];
    words.into_iter().for_each(|(at, value)| liar.put(Change { at: slot + at, value }));
    liar.put(Change { at: 64, value: 4 });
    let turn = liar.turn;
    liar.put(Change { at: slot, value: turn });
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let doorbell = if input.byte().is_multiple_of(2) { Doorbell::Futex } else { Doorbell::Eventfd };
    let mut scene = Scene::new(doorbell);
    while !input.is_empty() {
        match input.byte() % 6 {
            0 => submit(&mut scene.liar.borrow_mut(), &mut input),
            1 => scene.liar.borrow_mut().put(change(&mut input)),
            2 => {
                let load = usize::from(input.byte());
                let change = change(&mut input);
                scene.liar.borrow_mut().plan.push((load, change));
            }
            3 => scene.round(),
            4 => scene.honest_call(input.byte().into()),
            _ => {
                scene.judge.keeps = !scene.judge.keeps;
                scene.judge.kept.drain(..).for_each(|ticket| ticket.answer(&Answer::default()));
            }
        }
    }
    scene.round();
    scene.judge.kept.clear();
    scene.honest_call(1);
}

/// Valid requests of all slots, rounds, and a change of a word of the first slot before each of the first loads.
pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let valid = |slot: u8| vec![0, slot, 8, 255, 255, 0, 1, 0, 0, 2, 0];
    let mut all = vec![vec![0], vec![1, 4, 7, 4, 9]];
    all.push([vec![0], valid(0), valid(1), valid(2), valid(3), vec![3, 4, 1, 3]].concat());
    all.push([vec![1, 5], valid(0), valid(1), vec![3, 4, 1], valid(0), vec![3, 5, 3, 4, 1]].concat());
    // The number of slots, a name, the count of arguments, a range: 2 is the largest number.
    for word in [[200, 2, 0], [0, 3, 2], [0, 2, 2], [0, 7, 2], [0, 8, 2], [0, 5, 2], [0, 9, 2], [0, 10, 2]] {
        let at = &word[..if word[0] == 200 { 1 } else { 2 }];
        all.push([&[0][..], &valid(0), &[1], at, &[2, 3, 4, 1]].concat());
        for load in 1..16 {
            all.push([&[0][..], &valid(0), &[2, load], at, &[2, 3, 4, 1]].concat());
        }
    }
    // A new turn before every load.
    let turns = (1..=200).flat_map(|load| [2, load, 0, 0, 6, load]);
    let short = [0_u8; 11];
    all.push([0].into_iter().chain(short).chain(turns).chain([3, 4, 1]).collect());
    all
}

/// See [`crate::Target::lies`].
pub(crate) const LIES: &[(&str, fn())] = &[
    ("a range beyond the data area", || {
        let range = tandemfs_ring::Range { start: 8000, length: 193 };
        check_request(&Request { ranges: [range, range], ..Request::new(1) });
    }),
    ("a ninth request", || check_count(9)),
    ("loads without end", || check_loads(10_000)),
    ("a word of the client's changed", || {
        let (written, mut found) = (vec![0; HEAD_BYTES], vec![0; HEAD_BYTES]);
        found[SLOTS_AT as usize + 639] = 1;
        check_unwritten(&written, &found);
    }),
];

//! One thread of the daemon that looks at all clients or sleeps.
//!
//! A client is *active* while its slots are scanned; its word then says *polling* or *awake*. Others have their doorbell in the io_uring.
//!
//! Active -(no work for `spin`, or no CPU to poll on)-> dozing -(doorbell)-> active; any -(hang-up, lie, removal)-> ended.
//!
//! [BEL1] A client stores the turn, then looks at the daemon's word (a full fence between both), and rings if it says *asleep*. The daemon
//!        stores *asleep*, then scans the slots once more (a full fence between both). So one of them sees the other.
//! [BEL2] The order of dozing: *asleep*, the doorbell's value, the last scan, the wait by that value. A ring after the value was read makes
//!        the wait end at once; a ring before it had its turn stored before the scan.
//! [BEL3] A client that rings is scanned from then on.
//! [BEL4] The daemon polls while active clients are fewer than the CPUs that it may use. Otherwise the clients need the CPU: it dozes as soon
//!        as it finds nothing. While the pool runs a request of the only active client, the daemon polls on, for [`SERVING_MAX`] behind its last
//!        request at most. It yields the CPU to the pool between two looks at the clock. So the next request of a large transfer wakes nobody.
//! [BEL5] A poller goes to another thread between two rounds alone: everything that was collected has been handled. It does not sleep before
//!        that, since the thread has something to do. Until the other thread goes on, requests wait in their slots and rings in the io_uring.
//!
//! [TRU4] A client gets at most eight requests served before it is the next one's turn.
//! [TRU5] Who rings without a request more often than it has threads is lying, and its connection ends: a ring costs the client an addition.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::arena::{Arena, Lie, Ticket};
use crate::control::{Command, Control};
use crate::layout::{Doorbell, SLOTS_MAX, header};
use crate::message::Request;
use crate::mutant::{self, Mutant};
use crate::placement::Placement;
use crate::sync::{self, Events, Moment, ROUNDS_BETWEEN_CLOCKS, WOKEN};
use crate::{Attention, RingError};

/// [BEL4]
const SERVING_MAX: Duration = Duration::from_millis(1);
/// [TRU4]
const BATCH: usize = 8;
/// [TRU5]
const EMPTY_RINGS_MAX: u32 = 2 * SLOTS_MAX;

/// A client of a poller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub(crate) u64);

/// How the daemon learns that a client has ended.
#[derive(Debug)]
pub enum Lifeline {
    /// A socket, by its hang-up.
    Socket(OwnedFd),
    /// A process, by its pidfd.
    Process(OwnedFd),
}

/// Why a client is not served any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A lifeline said so.
    Gone,
    /// It wrote what no client writes.
    Lied(Lie),
    /// [`Control::remove`], or the poller stops.
    Removed,
}

/// Serves requests. Its functions are called by the poller's thread and must not wait.
pub trait Handler {
    /// A request. The ticket may be answered later and by another thread.
    fn request(&mut self, client: ClientId, request: &Request, ticket: Ticket);

    /// A descriptor of [`Poller::watch`] can be read. It is watched again afterwards.
    fn readable(&mut self, key: u32) {
        let _ = key;
    }

    /// A client is not served any more. Tickets of it may still be answered.
    fn ended(&mut self, client: ClientId, end: End);
}

/// What a key of the io_uring means: the number of a client or of a watched descriptor, and what of it.
mod key {
    pub(super) const BELL: u64 = 1;
    pub(super) const WATCH: u64 = 2;
    pub(super) const LIFELINE: u64 = 3;

    pub(super) fn of(number: u64, part: u64) -> u64 {
        number << 8 | part
    }

    pub(super) fn parts(key: u64) -> (u64, u64) {
        (key >> 8, key & 0xff)
    }
}

#[derive(Debug)]
struct Served {
    id: ClientId,
    arena: Arc<Arena>,
    lifelines: Vec<Lifeline>,
    is_active: bool,
    next_slot: usize,
    has_worked: bool,
    last_request: Moment,
    /// The last request, or the last look at which one was still run.
    last_work: Moment,
    /// [CPU2] of `placement.rs`, as last seen.
    shared_cpu_count: u32,
    empty_rings: u32,
}

/// One thread's clients.
#[derive(Debug)]
pub struct Poller {
    events: Events,
    control: Control,
    spin: Duration,
    cpus: usize,
    placement: Placement,
    clients: HashMap<ClientId, Served>,
    /// [`Served::is_active`], taken out of the map for the scan.
    active: Vec<Served>,
    attention: Attention,
    watched: HashMap<u32, OwnedFd>,
    request: Box<Request>,
    happened: Vec<u64>,
    rounds: u32,
    is_stopping: bool,
}

impl Poller {
    /// A poller that looks for work during `spin` after the last.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn new(spin: Duration) -> Result<Self, RingError> {
        let events = Events::new()?;
        Ok(Self {
            control: Control::new(events.waker()),
            events,
            spin,
            cpus: sync::cpus(),
            placement: Placement::default(),
            clients: HashMap::new(),
            active: Vec::new(),
            attention: Attention::Awake,
            watched: HashMap::new(),
            request: Box::default(),
            happened: Vec::new(),
            rounds: 0,
            is_stopping: false,
        })
    }

    /// The doorbell for new arenas.
    pub fn doorbell(&self) -> Doorbell {
        if self.events.has_futexes() { Doorbell::Futex } else { Doorbell::Eventfd }
    }

    /// How other threads add and remove clients.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Calls [`Handler::readable`] whenever a descriptor can be read.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn watch(&mut self, key: u32, descriptor: OwnedFd) -> io::Result<()> {
        self.events.readable(descriptor.as_fd(), key::of(key.into(), key::WATCH))?;
        self.watched.insert(key, descriptor);
        Ok(())
    }

    /// Serves until [`Control::stop`]. Then all clients end.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn run(self, handler: &mut impl Handler) -> io::Result<()> {
        self.run_until(handler, |_| false).map(drop)
    }

    /// As [`Poller::run`]; returns the poller when `is_to_leave` says so behind a round, so that another thread may go on with it.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn run_until<H: Handler>(mut self, handler: &mut H, is_to_leave: impl Fn(&H) -> bool) -> io::Result<Option<Self>> {
        let result = loop {
            match self.round_unless(handler, &is_to_leave) {
                Ok(()) if self.is_stopping => break Ok(None),
                Ok(()) if is_to_leave(handler) => {
                    if mutant::on(Mutant::CollectedLeftBehind) {
                        self.events.collect(false, &mut Vec::new())?;
                    }
                    return Ok(Some(self)); // [BEL5]
                }
                Ok(()) => {}
                Err(error) => break Err(error),
            }
        };
        self.clients.extend(self.active.drain(..).map(|served| (served.id, served)));
        for served in std::mem::take(&mut self.clients).into_values() {
            self.end(served, End::Removed, handler)?;
        }
        result
    }

    /// Looks at every active client once, and at what has happened. Sleeps if there is nobody to look at.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn round(&mut self, handler: &mut impl Handler) -> io::Result<()> {
        self.round_unless(handler, &|_| false)
    }

    /// As [`Poller::round`], but does not sleep if it is to leave.
    fn round_unless<H: Handler>(&mut self, handler: &mut H, is_to_leave: &impl Fn(&H) -> bool) -> io::Result<()> {
        let work = self.scan(handler)?;
        self.rounds = self.rounds.wrapping_add(1);
        if work == 0 && self.active.len() >= self.cpus {
            self.doze(|_| true)?; // [BEL4]
        }
        if self.rounds.is_multiple_of(ROUNDS_BETWEEN_CLOCKS) {
            let (now, spin, is_alone) = (Moment::now(), self.spin, self.active.len() == 1);
            let mut gives_way = false;
            self.doze(|served| {
                if std::mem::take(&mut served.has_worked) {
                    (served.last_request, served.last_work) = (now, now);
                } else if is_alone && !now.is_past(served.last_request, SERVING_MAX) && served.arena.is_serving() {
                    served.last_work = now;
                    gives_way = true;
                }
                now.is_past(served.last_work, spin)
            })?;
            if gives_way {
                sync::give_way();
            }
            self.place(now)?;
        }
        let mut happened = std::mem::take(&mut self.happened);
        let sleeps = self.active.is_empty() && (!is_to_leave(handler) || mutant::on(Mutant::SleepsBeforeLeaving));
        self.events.collect(sleeps, &mut happened)?;
        for key in happened.drain(..) {
            self.handle(key, handler)?;
        }
        self.happened = happened;
        self.attend();
        Ok(())
    }

    /// Serves each active client; returns the number of requests.
    fn scan(&mut self, handler: &mut impl Handler) -> io::Result<usize> {
        let (mut work, mut index) = (0, 0);
        while let Some(served) = self.active.get_mut(index) {
            match served.serve(&mut self.request, handler) {
                Ok(count) => {
                    work += count;
                    index += 1;
                }
                Err(lie) => {
                    let served = self.active.swap_remove(index);
                    self.end(served, End::Lied(lie), handler)?;
                }
            }
        }
        Ok(work)
    }

    /// Lets those active clients doze that are to and have no request.
    fn doze(&mut self, mut is_to: impl FnMut(&mut Served) -> bool) -> io::Result<()> {
        let mut index = 0;
        while let Some(served) = self.active.get_mut(index) {
            if is_to(served) && served.doze(&mut self.events, self.attention)? {
                let served = self.active.swap_remove(index);
                self.clients.insert(served.id, served);
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// [CPU1], [CPU3]
    fn place(&mut self, now: Moment) -> io::Result<()> {
        let mut is_shared = false;
        for served in &mut self.active {
            let count = served.arena.shared_cpu_count();
            is_shared |= std::mem::replace(&mut served.shared_cpu_count, count) != count;
        }
        // If the scheduler has moved the thread since it said where it is, what clients say is no longer so.
        let mut has_moved = self.placement.look();
        if is_shared && !has_moved {
            if self.placement.move_away(now, self.cpus) {
                has_moved = self.placement.look();
            } else {
                self.doze(|_| true)?;
            }
        }
        if has_moved {
            let cpu = self.placement.told();
            self.active.iter().for_each(|served| served.arena.set_cpu(cpu));
            sync::fence(); // What clients said while the thread moved is of its CPU before.
            self.active.iter_mut().for_each(|served| served.shared_cpu_count = served.arena.shared_cpu_count());
        }
        Ok(())
    }

    /// Tells the active clients whether the daemon polls ([BEL4]).
    fn attend(&mut self) {
        let attention = if self.active.len() < self.cpus { Attention::Polling } else { Attention::Awake };
        if attention != self.attention {
            self.attention = attention;
            self.active.iter().for_each(|served| served.arena.set_attention(attention));
        }
    }

    fn handle(&mut self, key: u64, handler: &mut impl Handler) -> io::Result<()> {
        if key == WOKEN {
            return self.obey(handler);
        }
        let (number, part) = key::parts(key);
        match part {
            key::WATCH => {
                handler.readable(number as u32);
                let Some(descriptor) = self.watched.get(&(number as u32)) else { return Ok(()) };
                self.events.readable(descriptor.as_fd(), key)
            }
            key::BELL => self.rung(ClientId(number), handler),
            _ => self.remove(ClientId(number), End::Gone, handler), // a lifeline
        }
    }

    /// [BEL3]
    fn rung(&mut self, id: ClientId, handler: &mut impl Handler) -> io::Result<()> {
        let Some(mut served) = self.clients.remove(&id) else { return Ok(()) };
        if mutant::on(Mutant::RingIgnored) {
            self.clients.insert(id, served);
            return Ok(());
        }
        served.arena.silence();
        served.empty_rings += u32::from(!mutant::on(Mutant::EmptyRingsUncounted));
        if served.empty_rings > EMPTY_RINGS_MAX {
            let lie = Lie::EmptyRings(served.empty_rings);
            return self.end(served, End::Lied(lie), handler);
        }
        self.activate(served);
        Ok(())
    }

    fn activate(&mut self, mut served: Served) {
        served.is_active = true;
        served.last_work = Moment::now();
        served.last_request = served.last_work;
        served.arena.set_cpu(self.placement.told());
        served.arena.set_attention(self.attention);
        self.active.push(served);
    }

    fn obey(&mut self, handler: &mut impl Handler) -> io::Result<()> {
        for command in self.control.take() {
            match command {
                Command::Add(id, arena, lifelines) => self.add(id, arena, lifelines)?,
                Command::Remove(id) => self.remove(id, End::Removed, handler)?,
                Command::Stop => self.is_stopping = true,
            }
        }
        Ok(())
    }

    fn add(&mut self, id: ClientId, arena: Arc<Arena>, lifelines: Vec<Lifeline>) -> io::Result<()> {
        for (lifeline, part) in lifelines.iter().zip(key::LIFELINE..) {
            match lifeline {
                Lifeline::Socket(socket) => self.events.hung_up(socket.as_fd(), key::of(id.0, part))?,
                Lifeline::Process(process) => self.events.readable(process.as_fd(), key::of(id.0, part))?,
            }
        }
        self.activate(Served {
            id,
            arena,
            lifelines,
            is_active: true,
            next_slot: 0,
            has_worked: false,
            last_request: Moment::now(),
            last_work: Moment::now(),
            shared_cpu_count: 0,
            empty_rings: 0,
        });
        Ok(())
    }

    fn remove(&mut self, id: ClientId, end: End, handler: &mut impl Handler) -> io::Result<()> {
        let position = self.active.iter().position(|served| served.id == id);
        let served = position.map(|index| self.active.swap_remove(index)).or_else(|| self.clients.remove(&id));
        served.map_or(Ok(()), |served| self.end(served, end, handler))
    }

    /// Its mapping lives as long as tickets of it.
    fn end(&mut self, served: Served, end: End, handler: &mut impl Handler) -> io::Result<()> {
        served.arena.end();
        if !served.is_active {
            self.events.cancel(key::of(served.id.0, key::BELL))?;
        }
        for (_, part) in served.lifelines.iter().zip(key::LIFELINE..) {
            self.events.cancel(key::of(served.id.0, part))?;
        }
        handler.ended(served.id, end);
        Ok(())
    }
}

impl Served {
    /// Serves up to [`BATCH`] requests, beginning behind the slot where the last batch ended.
    fn serve(&mut self, request: &mut Request, handler: &mut impl Handler) -> Result<usize, Lie> {
        let used = self.arena.slots_used();
        let first = if self.next_slot < used { self.next_slot } else { 0 };
        let mut work = 0;
        for index in (first..used).chain(0..first) {
            while let Some(ticket) = self.arena.take(index, request)? {
                handler.request(self.id, request, ticket);
                work += 1;
                if !mutant::on(Mutant::ServedWithoutEnd) {
                    break;
                }
            }
            if work >= BATCH {
                self.next_slot = index + 1;
                break;
            }
        }
        if work > 0 {
            self.has_worked = true;
            self.empty_rings = 0;
        }
        Ok(work)
    }

    /// [BEL1], [BEL2]. Returns whether it dozes now.
    fn doze(&mut self, events: &mut Events, attention: Attention) -> io::Result<bool> {
        let arena = &self.arena;
        if !mutant::on(Mutant::AsleepAfterScan) {
            arena.set_attention(Attention::Asleep);
        }
        if !mutant::on(Mutant::DozesWithoutFence) {
            sync::fence();
        }
        let mut value = arena.bell_value();
        if !mutant::on(Mutant::ScanLeftOut) && arena.is_pending() {
            arena.set_attention(attention);
            return Ok(false);
        }
        if mutant::on(Mutant::BellReadAfterScan) {
            value = arena.bell_value();
        }
        if mutant::on(Mutant::AsleepAfterScan) {
            arena.set_attention(Attention::Asleep);
        }
        let key = key::of(self.id.0, key::BELL);
        match arena.descriptors().bell {
            None => events.word(arena.memory(), header::BELL, value, key)?,
            Some(bell) => events.readable(bell, key)?,
        }
        self.is_active = false;
        Ok(true)
    }
}

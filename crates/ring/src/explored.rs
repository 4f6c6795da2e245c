//! The runtime of explored schedules: `shuttle` chooses the next thread at every access to shared memory, every fence and every futex.
//!
//! Stores are delayed as by a CPU with a store buffer (x86; total store order): a thread's stores become visible in their order, at moments
//! that the schedule chooses, at the latest at its next fence, atomic addition, unlock, or system call. A thread sees its own stores at once. So a
//! fence that is left out is found, which plain interleavings would hide.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex as PlainMutex, PoisonError};
use std::time::Duration;

use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};
use shuttle::rand::RngCore;
use shuttle::thread::ThreadId;
use shuttle_parking_lot::{Mutex as InnerMutex, MutexGuard as InnerGuard};

use crate::memory::Memory;
use crate::sys::Mapping;

pub(crate) mod atomic {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
}

pub(crate) const LOOKS_BETWEEN_CLOCKS: u32 = 1;
pub(crate) const ROUNDS_BETWEEN_CLOCKS: u32 = 2;

/// The key of [`Waker::wake`].
pub(crate) const WOKEN: u64 = 0;

/// A store that no other thread sees yet.
#[derive(Debug)]
struct Store {
    mapping: Arc<Mapping>,
    at: usize,
    value: Value,
}

#[derive(Debug, Clone, Copy)]
enum Value {
    Word(u32),
    Long(u64),
}

impl Store {
    fn commit(self) {
        match self.value {
            Value::Word(value) => self.mapping.word32(self.at).store(value, Ordering::SeqCst),
            Value::Long(value) => self.mapping.word64(self.at).store(value, Ordering::SeqCst),
        }
    }

    fn is_of(&self, mapping: &Arc<Mapping>, at: usize) -> bool {
        self.at == at && Arc::ptr_eq(&self.mapping, mapping)
    }
}

/// Who sleeps on a word.
#[derive(Debug)]
struct Sleeper {
    mapping: Arc<Mapping>,
    at: usize,
    wakes: Wakes,
}

#[derive(Debug)]
enum Wakes {
    Thread(Arc<BatchSemaphore>),
    Events(Arc<Queue>, u64),
}

/// The store buffers and futexes of one execution, which runs on one thread of the system.
#[derive(Debug, Default)]
struct Machine {
    buffers: Vec<(ThreadId, VecDeque<Store>)>,
    sleepers: Vec<Sleeper>,
}

thread_local! {
    static MACHINE: RefCell<Machine> = RefCell::default();
}

fn with<T>(act: impl FnOnce(&mut Machine) -> T) -> T {
    MACHINE.with(|machine| act(&mut machine.borrow_mut()))
}

/// Begins an execution: nothing of the one before is left.
pub fn begin() {
    let _before = MACHINE.with(|machine| machine.replace(Machine::default()));
}

/// A lock. What a holder has stored is visible to the next.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(InnerMutex<T>);

#[derive(Debug)]
pub(crate) struct MutexGuard<'m, T>(InnerGuard<'m, T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(InnerMutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(self.0.lock())
    }
}

impl<T> std::ops::Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> std::ops::DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        with(Machine::drain);
    }
}

/// What the calling thread has stored is visible; to be called at its end.
pub fn finish() {
    fence();
}

fn random(below: u64) -> u64 {
    shuttle::rand::thread_rng().next_u64() % below
}

impl Machine {
    fn buffer(&mut self) -> &mut VecDeque<Store> {
        let me = shuttle::thread::current().id();
        let index = self.buffers.iter().position(|(id, _)| *id == me).unwrap_or_else(|| {
            self.buffers.push((me, VecDeque::new()));
            self.buffers.len() - 1
        });
        &mut self.buffers[index].1
    }

    fn drain(&mut self) {
        self.buffer().drain(..).for_each(Store::commit);
    }

    /// Some stores of each thread become visible.
    fn commit_some(&mut self) {
        for (_, buffer) in &mut self.buffers {
            while !buffer.is_empty() && random(4) == 0 {
                buffer.pop_front().into_iter().for_each(Store::commit);
            }
        }
    }
}

/// Other threads may run here.
fn point() {
    shuttle::thread::yield_now();
    with(Machine::commit_some);
}

fn own(mapping: &Arc<Mapping>, at: usize) -> Option<Value> {
    with(|machine| machine.buffer().iter().rev().find(|store| store.is_of(mapping, at)).map(|store| store.value))
}

pub(crate) fn load32(mapping: &Arc<Mapping>, at: usize) -> u32 {
    point();
    match own(mapping, at) {
        Some(Value::Word(value)) => value,
        _ => mapping.word32(at).load(Ordering::SeqCst),
    }
}

pub(crate) fn load64(mapping: &Arc<Mapping>, at: usize) -> u64 {
    point();
    match own(mapping, at) {
        Some(Value::Long(value)) => value,
        _ => mapping.word64(at).load(Ordering::SeqCst),
    }
}

fn store(mapping: &Arc<Mapping>, at: usize, value: Value) {
    point();
    with(|machine| machine.buffer().push_back(Store { mapping: Arc::clone(mapping), at, value }));
}

pub(crate) fn store32(mapping: &Arc<Mapping>, at: usize, value: u32) {
    store(mapping, at, Value::Word(value));
}

pub(crate) fn store64(mapping: &Arc<Mapping>, at: usize, value: u64) {
    store(mapping, at, Value::Long(value));
}

pub(crate) fn increment(mapping: &Arc<Mapping>, at: usize) {
    fence();
    mapping.word32(at).fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn raise(mapping: &Arc<Mapping>, at: usize) {
    fence();
    mapping.word64(at).fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn load_version(mapping: &Arc<Mapping>, at: usize) -> u64 {
    load64(mapping, at)
}

pub(crate) fn add64(mapping: &Arc<Mapping>, at: usize, value: u64) -> u64 {
    fence();
    mapping.word64(at).fetch_add(value, Ordering::SeqCst)
}

pub(crate) fn or64(mapping: &Arc<Mapping>, at: usize, bits: u64) -> u64 {
    fence();
    mapping.word64(at).fetch_or(bits, Ordering::SeqCst)
}

pub(crate) fn and64(mapping: &Arc<Mapping>, at: usize, bits: u64) -> u64 {
    fence();
    mapping.word64(at).fetch_and(bits, Ordering::SeqCst)
}

pub(crate) fn exchange64(mapping: &Arc<Mapping>, at: usize, from: u64, to: u64) -> bool {
    fence();
    mapping.word64(at).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

shuttle::thread_local! {
    static IS_INSIDE: Cell<bool> = Cell::new(false);
}

pub(crate) fn begin_inside() -> bool {
    IS_INSIDE.with(|is_inside| !is_inside.replace(true))
}

pub(crate) fn end_inside() {
    IS_INSIDE.with(|is_inside| is_inside.set(false));
}

/// As if the scheduler moved threads at any moment.
pub(crate) fn cpu() -> usize {
    random(2) as usize
}

pub(crate) fn leave_cpu(_: usize) -> bool {
    random(2) == 0
}

pub(crate) fn ready_threads() -> Option<usize> {
    Some(random(4) as usize)
}

/// Explored schedules have no clock.
pub(crate) fn milliseconds() -> u64 {
    0
}

pub(crate) fn fence() {
    point();
    with(Machine::drain);
}

/// Loads are in order here.
pub(crate) fn loads_fence() {}

pub(crate) fn bytes() {
    fence();
}

/// Without an end in time: a lost wake-up is a deadlock.
pub(crate) fn sleep(mapping: &Arc<Mapping>, at: usize, value: u32) {
    fence();
    if mapping.word32(at).load(Ordering::SeqCst) == value {
        let woken = Arc::new(BatchSemaphore::new(0, Fairness::StrictlyFair));
        let wakes = Wakes::Thread(Arc::clone(&woken));
        with(|machine| machine.sleepers.push(Sleeper { mapping: Arc::clone(mapping), at, wakes }));
        let _never_closed = woken.acquire_blocking(1);
    }
}

pub(crate) fn wake(mapping: &Arc<Mapping>, at: usize) {
    fence();
    let is_here = |sleeper: &mut Sleeper| sleeper.at == at && Arc::ptr_eq(&sleeper.mapping, mapping);
    let woken: Vec<Sleeper> = with(|machine| machine.sleepers.extract_if(.., is_here).collect());
    for sleeper in woken {
        match sleeper.wakes {
            Wakes::Thread(semaphore) => semaphore.release(1),
            Wakes::Events(queue, key) => queue.push(key),
        }
    }
}

pub(crate) fn relax() {
    point();
}

pub(crate) fn give_way() {
    point();
}

/// Explored schedules have no clock: any time may have passed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment;

impl Moment {
    pub(crate) fn now() -> Self {
        Self
    }

    pub(crate) fn is_past(self, _: Self, _: Duration) -> bool {
        random(2) == 0
    }
}

/// One to three, so that the daemon polls for all, some or none.
pub(crate) fn cpus() -> usize {
    1 + random(3) as usize
}

/// Keys of what has happened.
#[derive(Debug)]
struct Queue {
    keys: PlainMutex<VecDeque<u64>>,
    count: BatchSemaphore,
}

impl Queue {
    fn push(&self, key: u64) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).push_back(key);
        self.count.release(1);
    }

    fn pop(&self) -> Option<u64> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// A wait for a word that is not handed over yet.
#[derive(Debug)]
struct Wait {
    mapping: Arc<Mapping>,
    at: usize,
    value: u32,
    key: u64,
}

/// As `events.rs`, with waits for words and wake-ups alone.
#[derive(Debug)]
pub(crate) struct Events {
    queue: Arc<Queue>,
    new: Vec<Wait>,
}

#[derive(Debug, Clone)]
pub(crate) struct Waker(Arc<Queue>);

impl Waker {
    pub(crate) fn wake(&self) {
        fence();
        self.0.push(WOKEN);
    }
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        let queue = Queue { keys: PlainMutex::default(), count: BatchSemaphore::new(0, Fairness::StrictlyFair) };
        Ok(Self { queue: Arc::new(queue), new: Vec::new() })
    }

    pub(crate) fn has_futexes(&self) -> bool {
        true
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.queue))
    }

    pub(crate) fn word(&mut self, memory: &Memory, at: usize, value: u32, key: u64) -> io::Result<()> {
        self.new.push(Wait { mapping: Arc::clone(&memory.0), at, value, key });
        Ok(())
    }

    pub(crate) fn readable(&mut self, _: BorrowedFd<'_>, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn hung_up(&mut self, _: BorrowedFd<'_>, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn cancel(&mut self, key: u64) -> io::Result<()> {
        self.new.retain(|wait| wait.key != key);
        let is_it = |sleeper: &Sleeper| matches!(&sleeper.wakes, Wakes::Events(_, other) if *other == key);
        with(|machine| machine.sleepers.retain(|sleeper| !is_it(sleeper)));
        Ok(())
    }

    pub(crate) fn collect(&mut self, wait: bool, into: &mut Vec<u64>) -> io::Result<()> {
        if wait || !self.new.is_empty() {
            fence();
        } else {
            point();
        }
        for Wait { mapping, at, value, key } in self.new.drain(..) {
            if mapping.word32(at).load(Ordering::SeqCst) == value {
                let wakes = Wakes::Events(Arc::clone(&self.queue), key);
                with(|machine| machine.sleepers.push(Sleeper { mapping, at, wakes }));
            } else {
                self.queue.push(key);
            }
        }
        if wait {
            let _never_closed = self.queue.count.acquire_blocking(1);
            into.extend(self.queue.pop());
        }
        while self.queue.count.try_acquire(1).is_ok() {
            into.extend(self.queue.pop());
        }
        Ok(())
    }
}

/// No eventfd here.
pub(crate) fn drain(_: BorrowedFd<'_>) {}

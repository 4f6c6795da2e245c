//! Workers in virtual time: coroutines of one thread that wait for the locks of [`super`] as threads would (feature `workers`).
//!
//! [VW1] The worker whose clock is earliest runs; equal clocks take turns. An access that advances a worker's clock beyond another's suspends
//!       it. So accesses reach the drive in the order of virtual time, and the same workers give the same times again on any machine.
//! [VW2] A worker that finds a lock taken is suspended until the lock is released, and goes on at the releaser's time. Workers that wait are
//!       served in the order in which they came: a releaser is suspended until they had their turn.
//! [VW3] A condition variable wakes workers at the notifier's time. Timeouts never pass.
//! [VW4] Computation takes no time, and each worker has a CPU of its own out of [`CPUS`].

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::ptr;

use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::VirtualTime;

/// CPUs of the host that virtual time stands for: those of ByteFS §5.1.
pub const CPUS: usize = 28;

/// What a worker does.
pub type Work<'w> = Box<dyn FnOnce() + 'w>;

/// Why a worker is suspended.
enum Pause {
    /// Another's clock is earlier, or others wait for what it released.
    Turn,
    /// It is in a queue of [`WAITERS`].
    Wait,
}

thread_local! {
    /// Of the running worker; null outside of workers.
    static YIELDER: Cell<*const Yielder<(), Pause>> = const { Cell::new(ptr::null()) };
    static RUNNING: Cell<usize> = const { Cell::new(0) };
    /// Up to this time no other worker's clock is earlier than the running one's.
    static HORIZON: Cell<u64> = const { Cell::new(0) };
    /// Workers that wait, by the address of the lock or condition variable.
    static WAITERS: RefCell<HashMap<usize, VecDeque<usize>>> = RefCell::default();
    /// Workers that the running one has woken.
    static WOKEN: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    static MODELS_HOST: Cell<bool> = const { Cell::new(false) };
}

/// While this lives, the calling thread takes the machine for one with [`CPUS`] CPUs, so pools and rings do not depend on the real one.
#[derive(Debug)]
pub struct ModelledHost(());

impl ModelledHost {
    /// From now on.
    #[expect(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> Self {
        MODELS_HOST.set(true);
        Self(())
    }
}

impl Drop for ModelledHost {
    fn drop(&mut self) {
        MODELS_HOST.set(false);
    }
}

/// The CPUs of a modelled host.
pub(super) fn modelled_cpus() -> Option<usize> {
    MODELS_HOST.get().then_some(CPUS)
}

/// The CPU of the running worker.
pub(super) fn modelled_cpu() -> Option<usize> {
    modelled_cpus().map(|cpus| RUNNING.get() % cpus)
}

/// Runs workers until all have returned, from the calling thread's clock on. Returns the nanoseconds until the last has returned, and sets
/// the clock to that time.
///
/// # Panics
/// If workers wait for each other.
pub fn run(time: &dyn VirtualTime, workers: Vec<Work<'_>>) -> u64 {
    let start = time.now_ns();
    let mut left = workers.len();
    let mut coroutines: Vec<Coroutine<(), Pause, ()>> = workers.into_iter().map(coroutine).collect();
    let mut ready: BinaryHeap<Reverse<(u64, usize, usize)>> = (0..left).map(|index| Reverse((start, index, index))).collect();
    let (mut turn, mut end) = (left, start);
    while let Some(Reverse((at, _, index))) = ready.pop() {
        time.set_now_ns(at);
        HORIZON.set(ready.peek().map_or(u64::MAX, |Reverse((next, ..))| *next));
        RUNNING.set(index);
        let result = coroutines[index].resume(());
        YIELDER.set(ptr::null());
        let now = time.now_ns();
        let is_ready = matches!(result, CoroutineResult::Yield(Pause::Turn)).then_some(index);
        for woken in WOKEN.take().into_iter().chain(is_ready) {
            ready.push(Reverse((now, turn, woken)));
            turn += 1;
        }
        if matches!(result, CoroutineResult::Return(())) {
            left -= 1;
            end = end.max(now);
        }
    }
    assert_eq!(left, 0, "workers wait for each other");
    time.set_now_ns(end);
    RUNNING.set(0);
    end - start
}

fn coroutine(work: Work<'_>) -> Coroutine<(), Pause, ()> {
    // SAFETY: `run` drops all coroutines before it returns, and what `work` borrows lives longer than the call of `run`.
    let work: Work<'static> = unsafe { std::mem::transmute(work) };
    Coroutine::new(move |yielder: &Yielder<(), Pause>, ()| {
        YIELDER.set(yielder);
        work();
    })
}

fn suspend(pause: Pause) {
    let yielder = YIELDER.get();
    // SAFETY: not null (every caller has asked `is_inside`), so it is of the coroutine that runs, whose stack it lives on.
    unsafe { (*yielder).suspend(pause) };
    YIELDER.set(yielder);
}

fn is_inside() -> bool {
    !YIELDER.get().is_null() && !std::thread::panicking()
}

/// A clock was advanced to `now_ns` ([VW1]). The caller holds no lock but those of [`super`].
pub fn advanced(now_ns: u64) {
    if now_ns > HORIZON.get() && is_inside() {
        suspend(Pause::Turn);
    }
}

/// Suspends the running worker until [`wake`] is called for the address; false outside of workers.
pub(super) fn wait(address: usize) -> bool {
    let inside = is_inside();
    if inside {
        WAITERS.with_borrow_mut(|waiters| waiters.entry(address).or_default().push_back(RUNNING.get()));
        suspend(Pause::Wait);
    }
    inside
}

/// As [`wait`], beside a lock that `unlocked` releases for the time of the wait: the queue is joined before, so no notification is missed.
pub(super) fn wait_unlocked(address: usize, unlocked: impl FnOnce(&mut dyn FnMut())) -> bool {
    let inside = is_inside();
    if inside {
        WAITERS.with_borrow_mut(|waiters| waiters.entry(address).or_default().push_back(RUNNING.get()));
        unlocked(&mut || suspend(Pause::Wait));
    }
    inside
}

/// Whether workers wait for this address.
pub(super) fn is_awaited(address: usize) -> bool {
    is_inside() && WAITERS.with_borrow(|waiters| waiters.contains_key(&address))
}

/// Wakes those that wait for the address, at most so many, and lets them have their turn ([VW2], [VW3]). Returns whether there were any.
pub(super) fn wake(address: usize, most: usize) -> bool {
    if !is_awaited(address) {
        return false;
    }
    WAITERS.with_borrow_mut(|waiters| {
        let Some(queue) = waiters.get_mut(&address) else { return };
        let count = most.min(queue.len());
        WOKEN.with_borrow_mut(|woken| woken.extend(queue.drain(..count)));
        if queue.is_empty() {
            waiters.remove(&address);
        }
    });
    suspend(Pause::Turn);
    true
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use super::super::{Condvar, Mutex, RwLock, current_cpu, parallelism};
    use super::*;

    #[derive(Default)]
    struct Time(AtomicU64);

    impl VirtualTime for Time {
        fn now_ns(&self) -> u64 {
            self.0.load(SeqCst)
        }
        fn set_now_ns(&self, now: u64) {
            self.0.store(now, SeqCst);
        }
        fn latest_ns(&self) -> u64 {
            self.now_ns()
        }
    }

    impl Time {
        /// An access.
        fn pass(&self, ns: u64) {
            self.set_now_ns(self.now_ns() + ns);
            advanced(self.now_ns());
        }
    }

    /// What a worker does with a function that notes something.
    type Noting<'w> = Box<dyn Fn(&dyn Fn(&'static str)) + 'w>;

    /// Runs workers that begin together and note when something happened.
    fn noted<'w>(time: &'w Time, works: Vec<Noting<'w>>) -> (Vec<(u64, &'static str)>, u64) {
        let notes = Mutex::new(Vec::new());
        let note = |what: &'static str| notes.lock().push((time.now_ns(), what));
        let workers = works.iter().map(|work| Box::new(|| work(&note)) as Work<'_>).collect();
        let elapsed = run(time, workers);
        (notes.into_inner(), elapsed)
    }

    #[test]
    fn accesses_come_in_the_order_of_virtual_time() {
        let time = Time::default();
        let (notes, elapsed) = noted(
            &time,
            vec![
                Box::new(|note| {
                    (0..3).for_each(|_| {
                        time.pass(10);
                        note("slow");
                    })
                }),
                Box::new(|note| {
                    (0..3).for_each(|_| {
                        time.pass(4);
                        note("fast");
                    })
                }),
            ],
        );
        assert_eq!(notes, [(4, "fast"), (8, "fast"), (10, "slow"), (12, "fast"), (20, "slow"), (30, "slow")]);
        assert_eq!((elapsed, time.now_ns()), (30, 30));
    }

    #[test]
    fn a_lock_that_is_held_over_an_access_makes_others_wait_in_their_order() {
        let (time, lock) = (Time::default(), Mutex::new(()));
        let (notes, _) = noted(
            &time,
            vec![
                Box::new(|note| {
                    (0..2).for_each(|_| {
                        let _held = lock.lock();
                        time.pass(100);
                        note("a");
                    })
                }),
                Box::new(|note| {
                    time.pass(20);
                    let _held = lock.lock();
                    note("b has it");
                    time.pass(5);
                }),
                Box::new(|note| {
                    time.pass(10);
                    let _held = lock.lock();
                    note("c has it");
                    time.pass(30);
                }),
            ],
        );
        assert_eq!(notes, [(100, "a"), (100, "c has it"), (130, "b has it"), (235, "a")], "the second turn of a comes last");
    }

    #[test]
    fn readers_share_and_wait_behind_a_writer() {
        let (time, lock) = (Time::default(), RwLock::new(()));
        let reader = |at: u64, name: &'static str| {
            let (time, lock) = (&time, &lock);
            Box::new(move |note: &dyn Fn(&'static str)| {
                time.pass(at);
                let _held = lock.read();
                note(name);
                time.pass(50);
            }) as Noting<'_>
        };
        let writer = Box::new(|note: &dyn Fn(&'static str)| {
            time.pass(20);
            let _held = lock.write();
            note("writer");
            time.pass(5);
        });
        let (notes, elapsed) = noted(&time, vec![reader(0, "first"), reader(10, "second"), reader(30, "late"), writer]);
        assert_eq!(notes, [(0, "first"), (10, "second"), (60, "writer"), (65, "late")]);
        assert_eq!(elapsed, 115);
    }

    #[test]
    fn a_condition_wakes_at_the_time_of_its_notifier() {
        let (time, state, changed) = (Time::default(), Mutex::new(0), Condvar::default());
        let waiter = |name: &'static str| {
            let (state, changed) = (&state, &changed);
            Box::new(move |note: &dyn Fn(&'static str)| {
                let mut state = state.lock();
                while *state == 0 {
                    changed.wait(&mut state);
                }
                *state -= 1;
                note(name);
            }) as Noting<'_>
        };
        let notifier = Box::new(|_: &dyn Fn(&'static str)| {
            time.pass(7);
            *state.lock() += 1;
            changed.notify_one();
            time.pass(7);
            *state.lock() += 2;
            changed.notify_all();
        });
        let (notes, _) = noted(&time, vec![waiter("a"), waiter("b"), waiter("c"), notifier]);
        assert_eq!(notes, [(7, "a"), (14, "b"), (14, "c")]);
    }

    #[test]
    #[should_panic(expected = "workers wait for each other")]
    fn a_deadlock_is_an_error() {
        let (time, changed, state) = (Time::default(), Condvar::default(), Mutex::new(()));
        run(&time, vec![Box::new(|| changed.wait(&mut state.lock()))]);
    }

    #[test]
    fn threads_lock_as_ever() {
        let (count, changed) = (RwLock::new(0), Condvar::default());
        let state = Mutex::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        *count.write() += 1;
                        assert!(*count.read() > 0);
                        *state.lock() += 1;
                    }
                    changed.notify_all();
                });
            }
            let mut state = state.lock();
            while *state < 4000 {
                changed.wait_for(&mut state, std::time::Duration::from_secs(60));
            }
        });
        assert_eq!(*count.read(), 4000);
    }

    #[test]
    fn each_worker_has_a_cpu() {
        let host = ModelledHost::new();
        let (time, seen) = (Time::default(), Mutex::new(Vec::new()));
        run(&time, (0..3).map(|_| Box::new(|| seen.lock().push(current_cpu())) as Work<'_>).collect());
        assert_eq!((seen.into_inner(), parallelism()), (vec![0, 1, 2], CPUS));
        drop(host);
        assert_eq!(modelled_cpus(), None);
    }
}

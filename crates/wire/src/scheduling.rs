//! The scheduling policy of the threads that serve io_uring.
//!
//! Such a thread is bound to a CPU and wakes its caller there. The scheduler then moves the caller to an idle CPU, although the thread is
//! about to sleep: waking an idle CPU can take longer than the whole request, several times longer in a virtual machine. The scheduler
//! leaves the caller where it is if its CPU has only threads of the policy `SCHED_IDLE` (`sched_idle_cpu` in the kernel's
//! `kernel/sched/fair.c`). But such threads get next to no time on a CPU that others keep busy.
//!
//! [KC1] Threads are `SCHED_IDLE` only while many requests arrive and the machine has idle CPU time. Without idle time the scheduler moves
//!       no caller, and nothing would be gained.
//! [KC2] If a CPU's threads answer no request for two intervals although one of them could run, and get next to no time, they return to
//!       `SCHED_OTHER`, for a time that doubles with each repetition.
//! [KC3] With few requests the threads return to `SCHED_OTHER`, and then the watcher sleeps: starved threads could not wake it.
//! [KC4] Threads whose policy is not `SCHED_OTHER` at the start, or that may not return to it (neither root nor `RLIMIT_NICE`), keep their
//!       policy.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::param::clock_ticks_per_second;
use rustix::thread::{Pid, gettid};

use crate::sys::{Policy, policy_of, set_policy};

/// Time between two looks at the threads. A request waits for a starved thread about three of these at most ([KC2]).
const INTERVAL: Duration = Duration::from_millis(10);
/// Idle time is compared over so many intervals: the kernel counts it in steps of 10 ms.
const WINDOW_INTERVALS: u32 = 5;
/// Requests in a window that make a CPU's threads `SCHED_IDLE`: 1,000 a second.
const BUSY_REQUESTS: u64 = 50;
/// With fewer requests in a window they return to `SCHED_OTHER` ([KC3]).
const QUIET_REQUESTS: u64 = 10;
/// Threads that get less than this share of an interval are starved ([KC2]): 1 ms.
const STARVED_SHARE: u32 = 10;
/// Windows without a busy CPU until the watcher sleeps.
const QUIET_WINDOWS: u32 = 20;
/// A thread wakes the watcher once in so many requests.
const REQUESTS_PER_CALL: u64 = 64;
/// How long a CPU's threads stay `SCHED_OTHER` after they were starved ([KC2]).
const BAR_MIN: Duration = Duration::from_secs(1);
const BAR_MAX: Duration = Duration::from_secs(64);

/// One CPU's serving threads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Served {
    /// Requests so far. It never decreases, since the watcher subtracts.
    requests: AtomicU64,
    threads: Mutex<Vec<Pid>>,
}

/// What serving threads tell the watcher.
#[derive(Debug)]
pub(crate) struct Watch {
    cpus: Vec<Served>,
    is_asleep: AtomicBool,
    has_ended: Mutex<bool>,
    called: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// For CPUs below `cpus`.
    pub(crate) fn new(cpus: usize) -> Self {
        let cpus = (0..cpus).map(|_| Served::default()).collect();
        Self { cpus, is_asleep: AtomicBool::new(false), has_ended: Mutex::new(false), called: Condvar::new() }
    }

    /// The calling thread serves the requests of this CPU from now on.
    pub(crate) fn enter(&self, cpu: usize) {
        if let Some(served) = self.cpus.get(cpu) {
            locked(&served.threads).push(gettid());
        }
    }

    /// The calling thread has served a request of this CPU.
    pub(crate) fn served(&self, cpu: usize) {
        let Some(served) = self.cpus.get(cpu) else { return };
        let requests = served.requests.fetch_add(1, Relaxed) + 1;
        if requests.is_multiple_of(REQUESTS_PER_CALL) && self.is_asleep.load(Relaxed) {
            let _ended = locked(&self.has_ended);
            self.is_asleep.store(false, Relaxed);
            self.called.notify_all();
        }
    }

    /// Makes [`Watch::run`] return.
    pub(crate) fn end(&self) {
        *locked(&self.has_ended) = true;
        self.called.notify_all();
    }

    /// Watches until [`Watch::end`].
    pub(crate) fn run(&self) {
        if !may_return() {
            return; // [KC4]
        }
        let start = Instant::now();
        let mut course = Course::new(self.cpus.len());
        loop {
            let step = course.step(start.elapsed(), self);
            let mut ended = locked(&self.has_ended);
            match step {
                Step::Watch if !*ended => (ended, _) = self.called.wait_timeout(ended, INTERVAL).unwrap_or_else(PoisonError::into_inner),
                Step::Watch => {}
                Step::Sleep => {
                    self.is_asleep.store(true, Relaxed);
                    let asleep = self.called.wait_while(ended, |ended| !*ended && self.is_asleep.load(Relaxed));
                    ended = asleep.unwrap_or_else(PoisonError::into_inner);
                    course.wake(start.elapsed(), self);
                }
            }
            if *ended {
                return;
            }
        }
    }
}

/// Whether a thread of this process may become `SCHED_IDLE` and then `SCHED_OTHER` again. A thread of its own tries it, since it might not
/// come back.
fn may_return() -> bool {
    let attempt = || policy_of(None) == Some(Policy::Other) && set_policy(None, Policy::Idle) && set_policy(None, Policy::Other);
    let tried = thread::Builder::new().name("fuse-policy".into()).spawn(attempt);
    tried.is_ok_and(|attempt| attempt.join().unwrap_or(false))
}

/// What the watcher's decisions depend on, and what they change.
trait Machine {
    /// Requests of a CPU so far.
    fn requests(&self, cpu: usize) -> u64;
    /// Idle time of all CPUs together since the system's start.
    fn idle(&self) -> Option<Duration>;
    /// If one of a CPU's threads runs or waits for its CPU: how long all of them have run so far.
    fn runnable(&self, cpu: usize) -> Option<Duration>;
    /// Changes the policy of a CPU's threads.
    fn set(&self, cpu: usize, policy: Policy);
}

impl Machine for Watch {
    fn requests(&self, cpu: usize) -> u64 {
        self.cpus.get(cpu).map_or(0, |served| served.requests.load(Relaxed))
    }

    fn idle(&self) -> Option<Duration> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        // A thread that waits in io_uring makes its CPU's idle time `iowait`.
        let ticks: u64 = text.lines().next()?.split_ascii_whitespace().skip(4).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        Some(Duration::from_secs(ticks) / u32::try_from(clock_ticks_per_second()).ok()?)
    }

    fn runnable(&self, cpu: usize) -> Option<Duration> {
        let read =
            |thread: Pid, file: &str| fs::read_to_string(format!("/proc/self/task/{}/{file}", thread.as_raw_nonzero())).unwrap_or_default();
        let threads = locked(&self.cpus.get(cpu)?.threads).clone();
        let is_runnable = |thread: &Pid| read(*thread, "stat").rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'));
        threads.iter().any(is_runnable).then(|| {
            let run_ns = |&thread: &Pid| read(thread, "schedstat").split(' ').next().and_then(|run| run.parse().ok()).unwrap_or(0);
            Duration::from_nanos(threads.iter().map(run_ns).sum())
        })
    }

    fn set(&self, cpu: usize, policy: Policy) {
        let threads = self.cpus.get(cpu).map(|served| locked(&served.threads).clone()).unwrap_or_default();
        // A thread that has ended meanwhile needs none.
        let changed = threads.into_iter().filter(|&thread| set_policy(Some(thread), policy)).count();
        tracing::debug!(cpu, ?policy, changed, "threads that serve requests");
    }
}

/// What the watcher does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Looks again after [`INTERVAL`].
    Watch,
    /// Sleeps until requests arrive.
    Sleep,
}

/// One CPU's threads, as the watcher knows them.
#[derive(Debug, Clone)]
struct Cpu {
    policy: Policy,
    /// Requests at the last look, and at the start of the window.
    requests: u64,
    window_requests: u64,
    /// What [`Machine::runnable`] said at the last look, if no request has been answered since the look before.
    stuck: Option<Duration>,
    /// The end of the last bar, and its length ([KC2]).
    barred_until: Duration,
    bar: Duration,
}

/// The watcher's decisions. Times are since its start.
#[derive(Debug)]
struct Course {
    cpus: Vec<Cpu>,
    window_start: Duration,
    /// Idle time at the start of the window; `None` if it cannot be read.
    idle: Option<Duration>,
    quiet_windows: u32,
}

impl Course {
    fn new(cpus: usize) -> Self {
        let cpu =
            Cpu { policy: Policy::Other, requests: 0, window_requests: 0, stuck: None, barred_until: Duration::ZERO, bar: Duration::ZERO };
        Self { cpus: vec![cpu; cpus], window_start: Duration::ZERO, idle: None, quiet_windows: QUIET_WINDOWS }
    }

    /// The watcher has slept: a window begins.
    fn wake(&mut self, now: Duration, machine: &impl Machine) {
        for (number, cpu) in self.cpus.iter_mut().enumerate() {
            cpu.requests = machine.requests(number);
            cpu.window_requests = cpu.requests;
        }
        (self.window_start, self.idle, self.quiet_windows) = (now, machine.idle(), 0);
    }

    fn step(&mut self, now: Duration, machine: &impl Machine) -> Step {
        for (number, cpu) in self.cpus.iter_mut().enumerate() {
            let requests = machine.requests(number);
            let stuck = if cpu.policy == Policy::Idle && requests == cpu.requests { machine.runnable(number) } else { None };
            if let (Some(before), Some(now_run)) = (cpu.stuck, stuck)
                && now_run.saturating_sub(before) < INTERVAL / STARVED_SHARE
            {
                // [KC2]
                cpu.bar = if now > cpu.barred_until + BAR_MAX { BAR_MIN } else { (cpu.bar * 2).clamp(BAR_MIN, BAR_MAX) };
                cpu.barred_until = now + cpu.bar;
                cpu.change(number, Policy::Other, machine);
            }
            (cpu.requests, cpu.stuck) = (requests, stuck);
        }
        if now >= self.window_start + INTERVAL * WINDOW_INTERVALS {
            self.end_window(now, machine);
        }
        let is_watched = self.quiet_windows < QUIET_WINDOWS || self.cpus.iter().any(|cpu| cpu.policy == Policy::Idle);
        if is_watched { Step::Watch } else { Step::Sleep }
    }

    /// [KC1], [KC3]
    fn end_window(&mut self, now: Duration, machine: &impl Machine) {
        let idle = machine.idle();
        let has_idle = match (self.idle, idle) {
            // Half of a CPU.
            (Some(before), Some(idle)) => idle.saturating_sub(before) * 2 >= now - self.window_start,
            _ => false,
        };
        let mut is_busy = false;
        for (number, cpu) in self.cpus.iter_mut().enumerate() {
            let requests = cpu.requests - cpu.window_requests;
            cpu.window_requests = cpu.requests;
            is_busy |= requests >= BUSY_REQUESTS;
            if !has_idle || requests < QUIET_REQUESTS {
                cpu.change(number, Policy::Other, machine);
            } else if requests >= BUSY_REQUESTS && now >= cpu.barred_until {
                cpu.change(number, Policy::Idle, machine);
            }
        }
        self.quiet_windows = if is_busy { 0 } else { self.quiet_windows.saturating_add(1) };
        (self.window_start, self.idle) = (now, idle);
    }
}

impl Cpu {
    fn change(&mut self, number: usize, policy: Policy, machine: &impl Machine) {
        if self.policy != policy {
            self.policy = policy;
            machine.set(number, policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A machine with one CPU for requests, whose clock each look moves on by an interval.
    #[derive(Default)]
    struct Fake {
        now: Cell<Duration>,
        idle: Cell<Duration>,
        requests: Cell<u64>,
        run: Cell<Option<Duration>>,
        changes: RefCell<Vec<Policy>>,
    }

    impl Machine for Fake {
        fn requests(&self, _: usize) -> u64 {
            self.requests.get()
        }
        fn idle(&self) -> Option<Duration> {
            Some(self.idle.get())
        }
        fn runnable(&self, _: usize) -> Option<Duration> {
            self.run.get()
        }
        fn set(&self, _: usize, policy: Policy) {
            self.changes.borrow_mut().push(policy);
        }
    }

    /// The threads of a CPU interrupt each other between any two instructions. A request that is lost makes the count fall.
    #[test]
    fn regression_requests_of_several_threads_are_all_counted() {
        const EACH: u64 = 100_000;
        let watch = Watch::new(1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..EACH).for_each(|_| watch.served(0)));
            }
        });
        assert_eq!(watch.requests(0), 4 * EACH);
    }

    /// Looks so often, with so many requests and so much idle time in each interval. Returns the changes and the last step.
    fn go(course: &mut Course, machine: &Fake, intervals: u32, requests: u64, idle: Duration) -> (Vec<Policy>, Step) {
        let mut step = Step::Watch;
        for _ in 0..intervals {
            machine.now.set(machine.now.get() + INTERVAL);
            machine.idle.set(machine.idle.get() + idle);
            machine.requests.set(machine.requests.get() + requests);
            step = course.step(machine.now.get(), machine);
        }
        (machine.changes.take(), step)
    }

    fn woken() -> (Course, Fake) {
        let (mut course, machine) = (Course::new(1), Fake::default());
        assert_eq!(course.step(Duration::ZERO, &machine), Step::Sleep, "nothing to do at first");
        course.wake(Duration::ZERO, &machine);
        (course, machine)
    }

    const ONE_CPU_IDLE: Duration = INTERVAL;

    #[test]
    fn threads_are_idle_while_requests_arrive_and_a_cpu_is_free() {
        let (mut course, machine) = woken();
        assert_eq!(go(&mut course, &machine, 5, 100, ONE_CPU_IDLE).0, [Policy::Idle]);
        assert_eq!(go(&mut course, &machine, 100, 100, ONE_CPU_IDLE), (vec![], Step::Watch));
        assert_eq!(go(&mut course, &machine, 5, 100, ONE_CPU_IDLE / 4).0, [Policy::Other], "every CPU works");
        assert_eq!(go(&mut course, &machine, 5, 100, ONE_CPU_IDLE).0, [Policy::Idle]);
        assert_eq!(go(&mut course, &machine, 5, 5, ONE_CPU_IDLE).0, [], "fewer requests keep them");
        let (changes, step) = go(&mut course, &machine, 150, 0, ONE_CPU_IDLE);
        assert_eq!((changes, step), (vec![Policy::Other], Step::Sleep));
    }

    #[test]
    fn a_few_requests_change_nothing() {
        let (mut course, machine) = woken();
        assert_eq!(go(&mut course, &machine, 200, 5, ONE_CPU_IDLE), (vec![], Step::Sleep));
    }

    #[test]
    fn starved_threads_return_for_longer_each_time() {
        let (mut course, machine) = woken();
        let mut bars = Vec::new();
        for _ in 0..8 {
            let before = machine.now.get();
            while go(&mut course, &machine, 1, 100, ONE_CPU_IDLE).0 != [Policy::Idle] {}
            bars.push((machine.now.get() - before).as_secs());
            machine.run.set(Some(Duration::from_secs(7)));
            assert_eq!(go(&mut course, &machine, 1, 0, ONE_CPU_IDLE).0, []);
            assert_eq!(go(&mut course, &machine, 1, 0, ONE_CPU_IDLE).0, [Policy::Other]);
        }
        assert_eq!(bars, [0, 1, 2, 4, 8, 16, 32, 64]);
        go(&mut course, &machine, 13_000, 100, ONE_CPU_IDLE);
        assert_eq!(go(&mut course, &machine, 2, 0, ONE_CPU_IDLE).0, [Policy::Other]);
        assert_eq!(go(&mut course, &machine, 110, 100, ONE_CPU_IDLE).0, [Policy::Idle], "after a long calm it begins anew");
    }

    #[test]
    fn a_thread_that_works_for_long_is_not_starved() {
        let (mut course, machine) = woken();
        assert_eq!(go(&mut course, &machine, 6, 100, ONE_CPU_IDLE).0, [Policy::Idle]);
        for interval in 0..3 {
            machine.run.set(Some(INTERVAL * interval));
            assert_eq!(go(&mut course, &machine, 1, 0, ONE_CPU_IDLE).0, []);
        }
    }

    #[test]
    fn the_policy_of_a_thread_is_changed_and_changed_back() {
        if !may_return() {
            return println!("skipped: not root");
        }
        let watch = Watch::new(1);
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                watch.enter(0);
                let seen = [Policy::Idle, Policy::Other].map(|policy| {
                    watch.set(0, policy);
                    policy_of(None)
                });
                assert_eq!(seen, [Some(Policy::Idle), Some(Policy::Other)]);
            });
            worker.join().expect("no panic");
        });
        watch.set(0, Policy::Idle); // of a thread that has ended
        assert_eq!(policy_of(None), Some(Policy::Other));
    }

    #[test]
    fn the_watcher_sees_its_threads_and_ends() {
        let watch = Watch::new(1);
        watch.enter(0);
        let before = watch.runnable(0).expect("this thread runs");
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(20) {}
        assert!(watch.runnable(0).expect("it still runs") > before);
        assert!(watch.idle().is_some());
        thread::scope(|scope| {
            let watcher = scope.spawn(|| watch.run());
            // It sleeps, is called, and sleeps again after a while without requests.
            (0..1000).for_each(|_| watch.served(0));
            watch.end();
            watcher.join().expect("no panic");
        });
    }
}

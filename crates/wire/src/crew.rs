//! The threads that serve the device, and who takes the place of one that waits.
//!
//! [CRW1] So many threads as [`crate::Options::device_threads`] says have a *place*: they read requests, or serve one without waiting. With
//!       more readers it would be likelier that the kernel wakes one on another CPU than the caller's. Further threads are *spare*.
//! [CRW2] A thread that is about to wait for something else than a request gives its place up first ([`will_wait`]). It keeps its request,
//!       its buffers and its channel, and sends the reply itself: nothing is copied and nothing begins twice. A spare thread is called only
//!       if fewer than half of the places are taken then, so a single caller's waits wake nobody.
//! [CRW3] A thread that has answered takes a place again if one is free; otherwise it is spare.
//! [CRW4] The number of threads is bounded. Without a spare one, requests wait until a thread has answered.
//! [CRW5] The end of any of these threads ends the spare ones. Threads that wait end with their answers, the others with the connection.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The threads of a session that serve the device.
#[derive(Debug)]
pub(crate) struct Crew {
    places: usize,
    state: Mutex<State>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Places that are taken, or promised to a spare thread that was called.
    taken: usize,
    spare: usize,
    /// Spare threads that were called and are on their way.
    calls: usize,
    has_ended: bool,
}

thread_local! {
    static POST: RefCell<Option<Post>> = const { RefCell::new(None) };
}

/// What a thread of a crew knows of itself.
struct Post {
    crew: Arc<Crew>,
    has_place: bool,
}

/// Says that the calling thread is about to wait for something else than a request: for a drive, a lock, another thread. If the thread
/// serves `/dev/fuse`, another one serves requests in its place until it has answered ([`crate::Options::waiting_max`]); over io_uring, and in
/// other threads, this does nothing. To be called by a handler before its first wait, with any locks held; further calls cost a few
/// nanoseconds.
pub fn will_wait() {
    POST.with_borrow_mut(|post| {
        if let Some(post) = post.as_mut().filter(|post| post.has_place) {
            post.has_place = false;
            post.crew.leave();
        }
    });
}

impl Crew {
    pub(crate) fn new(places: usize) -> Self {
        Self { places: places.max(1), state: Mutex::default(), called: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [CRW2]
    fn leave(&self) {
        let mut state = self.lock();
        state.taken -= 1;
        if state.taken < self.places.div_ceil(2) && state.spare > state.calls {
            state.calls += 1;
            state.taken += 1;
            drop(state);
            self.called.notify_one();
        }
    }

    /// Takes a place, or waits as a spare thread until it is called; false at the end ([CRW3]).
    fn take_place(&self) -> bool {
        let mut state = self.lock();
        if state.taken < self.places {
            state.taken += 1;
            return true;
        }
        state.spare += 1;
        let waiting = self.called.wait_while(state, |state| state.calls == 0 && !state.has_ended);
        let mut state = waiting.unwrap_or_else(PoisonError::into_inner);
        state.spare -= 1;
        if state.has_ended {
            return false;
        }
        state.calls -= 1;
        true
    }

    /// Ends the spare threads ([CRW5]).
    pub(crate) fn end(&self) {
        self.lock().has_ended = true;
        self.called.notify_all();
    }
}

/// The calling thread as one of a crew, until this is dropped.
pub(crate) struct Member<'a>(&'a Crew);

impl<'a> Member<'a> {
    /// Waits for a place; none if the crew ends before.
    pub(crate) fn enter(crew: &'a Arc<Crew>) -> Option<Self> {
        POST.set(Some(Post { crew: Arc::clone(crew), has_place: false }));
        let member = Self(crew);
        member.goes_on().then_some(member)
    }

    /// Behind an answer: whether the thread serves on. A thread whose place is taken waits here for another one.
    pub(crate) fn goes_on(&self) -> bool {
        if POST.with_borrow(|post| post.as_ref().is_some_and(|post| post.has_place)) {
            return true;
        }
        let has_place = self.0.take_place();
        POST.with_borrow_mut(|post| post.iter_mut().for_each(|post| post.has_place = has_place));
        has_place
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        POST.set(None);
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::Scope;
    use std::time::{Duration, Instant};

    use super::*;

    /// Longer than anything takes that is not held up.
    const LIMIT: Duration = Duration::from_secs(60);

    /// What a thread of a crew is told to do: to wait, to go on serving, or to end.
    enum Order {
        Wait,
        GoOn,
        End,
    }

    /// Starts a thread that says its number when it has a place, and then does as it is told.
    fn thread<'s>(scope: &'s Scope<'s, '_>, crew: &'s Arc<Crew>, number: u32, has_place: &Sender<u32>) -> Sender<Order> {
        let (order, orders) = channel();
        let has_place = has_place.clone();
        scope.spawn(move || {
            let Some(member) = Member::enter(crew) else { return };
            has_place.send(number).expect("heard");
            for order in orders {
                match order {
                    Order::Wait => {
                        will_wait();
                        will_wait(); // once is enough
                    }
                    Order::GoOn if !member.goes_on() => return,
                    Order::GoOn => has_place.send(number).expect("heard"),
                    Order::End => return,
                }
            }
        });
        order
    }

    fn next(heard: &Receiver<u32>) -> u32 {
        heard.recv_timeout(LIMIT).expect("a thread has a place")
    }

    fn nobody(heard: &Receiver<u32>) {
        assert!(heard.recv_timeout(Duration::from_millis(50)).is_err(), "more threads than places");
    }

    #[test]
    fn a_spare_thread_takes_the_place_of_one_that_waits() {
        let crew = Arc::new(Crew::new(1));
        std::thread::scope(|scope| {
            let (has_place, heard) = channel();
            let threads: Vec<_> = (0..3).map(|number| thread(scope, &crew, number, &has_place)).collect();
            let tell = |number: u32, order| threads[number as usize].send(order).expect("it lives");
            let first = next(&heard);
            nobody(&heard);
            tell(first, Order::Wait);
            let second = next(&heard);
            tell(second, Order::Wait);
            let third = next(&heard);
            assert_eq!(first + second + third, 3, "three threads");
            tell(third, Order::Wait); // [CRW4]: nobody is spare
            tell(second, Order::GoOn);
            assert_eq!(next(&heard), second, "[CRW3]: the place is free again");
            tell(first, Order::GoOn);
            tell(third, Order::GoOn);
            nobody(&heard);
            tell(second, Order::End); // [CRW5]: ends all
        });
    }

    #[test]
    fn nobody_is_called_while_half_of_the_places_are_taken() {
        let crew = Arc::new(Crew::new(2));
        std::thread::scope(|scope| {
            let (has_place, heard) = channel();
            let threads: Vec<_> = (0..3).map(|number| thread(scope, &crew, number, &has_place)).collect();
            let tell = |number: u32, order| threads[number as usize].send(order).expect("it lives");
            let (first, second) = (next(&heard), next(&heard));
            // A thread that enters only now would find the place of `first` free.
            let started = Instant::now();
            while crew.lock().spare == 0 {
                assert!(started.elapsed() < LIMIT, "the third thread is not spare");
                std::thread::yield_now();
            }
            tell(first, Order::Wait);
            nobody(&heard);
            tell(second, Order::Wait);
            let third = next(&heard);
            tell(second, Order::GoOn);
            assert_eq!(next(&heard), second);
            tell(first, Order::GoOn);
            nobody(&heard);
            tell(third, Order::End);
            tell(second, Order::End);
        });
    }

    #[test]
    fn no_call_is_lost_among_many_threads() {
        const THREADS: usize = 12;
        const ROUNDS: u32 = 2_000;
        let crew = Arc::new(Crew::new(3));
        let served = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let Some(member) = Member::enter(&crew) else { return };
                    while served.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < ROUNDS {
                        will_wait();
                        if !member.goes_on() {
                            return;
                        }
                    }
                });
            }
        });
        let state = crew.lock();
        assert!(state.has_ended && state.spare == 0, "{state:?}");
        assert!(served.into_inner() >= ROUNDS);
    }
}

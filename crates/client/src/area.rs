//! Shared memory of a call: what it sends and where its answer goes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use tandemfs_ring::{Buffer, Client, Range};

use crate::mutant::{self, Mutant};
use crate::{Error, Result};

/// The least that a read is content with while memory is scarce.
const SCARCE_BYTES: u32 = 4096;

/// Who waits for memory, in order.
#[derive(Debug, Default)]
struct Queue {
    next: u64,
    waiting: VecDeque<u64>,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) bytes: u32,
    /// A transfer may be split: at least a page is enough.
    pub(crate) may_split: bool,
    /// Who asks may have some already, and others may be waiting for that: it waits for nobody before it.
    pub(crate) has_some: bool,
}

impl Wanted {
    /// A buffer, of less than is wanted if that is enough and there is no more.
    fn look(self, ring: &Client) -> Option<Buffer> {
        let mut bytes = self.bytes;
        loop {
            match ring.buffer(bytes) {
                None if self.may_split && bytes > SCARCE_BYTES => bytes = (bytes / 2).max(SCARCE_BYTES),
                other => return other,
            }
        }
    }
}

/// Waits for memory that other calls give back ([CN2], [CN4] of `lib.rs`).
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Held from a look for memory to the sleep, so that no wake is lost in between.
    queue: Mutex<Queue>,
    returned: Condvar,
    /// How many wait.
    waiting: AtomicUsize,
}

impl Waiting {
    /// A buffer. There is no wait for more than there ever is.
    pub(crate) fn take(&self, ring: &Client, wanted: Wanted, wait: Duration) -> Result<Buffer> {
        let passes = wanted.has_some || mutant::on(Mutant::NewcomersFirst);
        if (passes || self.is_nobody_there())
            && let Some(buffer) = wanted.look(ring)
        {
            return Ok(buffer);
        }
        if !wanted.may_split && u64::from(wanted.bytes) > ring.data_bytes() {
            return Err(Errno::NOMEM.into());
        }
        let until = Instant::now() + wait;
        let mut queue = self.queue.lock();
        let own = queue.next;
        queue.next += 1;
        queue.waiting.push_back(own);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            let is_next = passes || queue.waiting.front() == Some(&own);
            if is_next && let Some(buffer) = wanted.look(ring) {
                break Ok(buffer);
            }
            if self.returned.wait_until(&mut queue, until).timed_out() {
                break wanted.look(ring).ok_or(Error::Errno(Errno::NOMEM));
            }
        };
        queue.waiting.retain(|ticket| *ticket != own);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.returned.notify_all(); // there may be enough for the next one
        found
    }

    /// A buffer for what is only of use: none while somebody waits.
    pub(crate) fn take_at_once(&self, ring: &Client, bytes: u32) -> Option<Buffer> {
        if self.is_nobody_there() { ring.buffer(bytes) } else { None }
    }

    fn is_nobody_there(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }

    /// Memory was given back.
    pub(crate) fn wake(&self) {
        if !self.is_nobody_there() {
            let _queue = self.queue.lock();
            self.returned.notify_all();
        }
    }
}

/// A part of a call's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// Which buffer of the call; none for the one that its slot keeps.
    pub(crate) buffer: Option<usize>,
    /// Where in the buffer.
    pub(crate) from: u32,
    /// Where in the data area, as the daemon is told.
    pub(crate) range: Range,
}

impl Piece {
    /// A part of a buffer. `from` and `length` are within it.
    pub(crate) fn of(buffer: &Buffer, index: Option<usize>, from: u32, length: u32) -> Self {
        Self { buffer: index, from, range: Range { start: buffer.range().start + from, length } }
    }

    pub(crate) fn none() -> Self {
        Self { buffer: None, from: 0, range: Range::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Mutex as Ordered;

    use tandemfs_ring::{Arena, Doorbell, Sizes};

    use super::*;

    /// Longer than any test takes.
    const WAIT: Duration = Duration::from_secs(600);

    fn wanted(bytes: u32) -> Wanted {
        Wanted { bytes, may_split: false, has_some: false }
    }

    /// The order in which a long one and short ones that come after it get memory, which comes back in two parts.
    fn order() -> Vec<&'static str> {
        let arena = Arena::new(Sizes { slots: 1, data_bytes: 64 << 10 }, Doorbell::Futex).expect("an arena");
        let files = arena.descriptors();
        let ring = Client::map(files.arena.as_fd(), files.words.as_fd(), None, None).expect("mapped");
        let (waiting, order) = (Waiting::default(), Ordered::new(Vec::new()));
        let waits = |count| {
            while waiting.waiting.load(Ordering::SeqCst) < count {
                std::thread::yield_now();
            }
        };
        let give_back = |buffer: Buffer| {
            drop(buffer);
            waiting.wake();
        };
        std::thread::scope(|scope| {
            let held = [0; 2].map(|_| waiting.take(&ring, wanted(24 << 10), WAIT).expect("room"));
            let take = |name, wanted| {
                let (ring, waiting, order, give_back) = (&ring, &waiting, &order, &give_back);
                move || {
                    let buffer = waiting.take(ring, wanted, WAIT).expect("room");
                    order.lock().expect("locked").push(name);
                    give_back(buffer);
                }
            };
            let long = scope.spawn(take("long", wanted(64 << 10)));
            waits(1);
            // There is room for these.
            assert!(waiting.take_at_once(&ring, 100).is_none(), "somebody waits");
            let some = waiting.take(&ring, Wanted { has_some: true, ..wanted(4 << 10) }, WAIT).expect("room");
            let short = scope.spawn(take("short", wanted(4 << 10)));
            let part = scope.spawn(take("part", Wanted { may_split: true, ..wanted(32 << 10) }));
            if !mutant::on(Mutant::NewcomersFirst) {
                waits(3);
            } else {
                while order.lock().expect("locked").len() < 2 {
                    std::thread::yield_now();
                }
            }
            give_back(some);
            held.into_iter().for_each(give_back);
            [long, short, part].into_iter().for_each(|thread| thread.join().expect("no panic"));
            assert!(waiting.is_nobody_there() && waiting.take_at_once(&ring, 64 << 10).is_some());
        });
        order.into_inner().expect("not poisoned")
    }

    #[test]
    fn regression_who_asked_for_much_waited_for_all_who_came_later() {
        #[cfg(feature = "mutants")]
        let _alone = mutant::ALONE.lock();
        assert_eq!(order()[0], "long");
        #[cfg(feature = "mutants")]
        {
            mutant::select(Mutant::NewcomersFirst);
            let order = order();
            mutant::select(Mutant::None);
            assert_eq!(order[2], "long", "NewcomersFirst escaped");
        }
    }

    #[test]
    fn nothing_waits_without_an_end() {
        #[cfg(feature = "mutants")]
        let _alone = mutant::ALONE.lock();
        let arena = Arena::new(Sizes { slots: 1, data_bytes: 64 << 10 }, Doorbell::Futex).expect("an arena");
        let files = arena.descriptors();
        let ring = Client::map(files.arena.as_fd(), files.words.as_fd(), None, None).expect("mapped");
        let waiting = Waiting::default();
        let held = waiting.take(&ring, wanted(60 << 10), WAIT).expect("room");
        let refused = |bytes, wait| waiting.take(&ring, wanted(bytes), wait).err();
        assert_eq!(refused(8 << 10, Duration::from_millis(5)), Some(Error::Errno(Errno::NOMEM)));
        assert_eq!(refused(65 << 10, WAIT), Some(Error::Errno(Errno::NOMEM)), "more than there is");
        drop(held);
        assert!(waiting.take_at_once(&ring, 64 << 10).is_some(), "nobody is left behind");
    }
}

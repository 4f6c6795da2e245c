//! The client's side: slots, data areas, submitting and waiting. The protocol of a slot is [SLT1]–[SLT7] of `arena.rs`, that of the doorbell
//! [BEL1]–[BEL3] of `poller.rs`.
//!
//! [WAI1] A thread spins for its answer while no other thread of the process waits and the daemon polls: the daemon has a CPU of its own then.
//!        Otherwise it looks once and sleeps. Yielding the CPU between looks is no way to wait beside others: on Linux 6.18.44 programs of
//!        four and more threads fell to a thirtieth in some runs. Only [CPU2] of `placement.rs` yields, for a millisecond at most.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};

use crate::layout::{self, Range, Sizes, header, slot, words};
use crate::memory::{Memory, ReadOnly};
use crate::message::{Answer, Attributes, Request};
use crate::mutant::{self, Mutant};
use crate::placement;
use crate::space::Space;
use crate::standing::Standing;
use crate::sync::{self, Moment, Mutex};
use crate::sys::Mapping;
use crate::versions::{Seen, Versions};
use crate::{Attention, RingError};

/// [WAI1]: how long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(10);
/// How long it looks on while the daemon's thread leaves its CPU ([CPU2] of `placement.rs`).
const LOOK_ON: Duration = Duration::from_millis(1);

/// The daemon does not serve this client any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the daemon of this mount has ended, or it has closed this connection")]
pub struct Ended;

/// A connection of a process.
#[derive(Debug, Clone)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    memory: Memory,
    sizes: Sizes,
    bell: Option<OwnedFd>,
    /// The socket to the daemon: it hangs up when the daemon dies.
    lifeline: Option<OwnedFd>,
    standing: Arc<Standing>,
    slots: Mutex<Slots>,
    space: Mutex<Space>,
    /// Threads that wait for an answer ([WAI1]).
    waiting: AtomicU64,
}

#[derive(Debug)]
struct Slots {
    /// A bit for each slot that nobody has.
    free: u64,
    used: u32,
    /// The last turn of each.
    turns: Vec<u32>,
    left: Vec<Left>,
}

/// A slot whose caller has left before the answer ([SLT6]).
#[derive(Debug)]
struct Left {
    index: usize,
    ranges: Vec<Range>,
}

/// The size of a file that nobody can shrink.
pub(crate) fn sealed_bytes(file: BorrowedFd<'_>, further: SealFlags) -> Result<usize, RingError> {
    let needed = SealFlags::SHRINK | further;
    if !fcntl_get_seals(file).map_err(|_| RingError::NoArena("a file without seals"))?.contains(needed) {
        return Err(RingError::NoArena("a file that is not sealed"));
    }
    usize::try_from(fstat(file)?.st_size).map_err(|_| RingError::NoArena("a file of no size"))
}

impl Client {
    /// Maps what the daemon has sent. `lifeline` is the socket that it came by; if it hangs up, calls end with [`Ended`].
    ///
    /// # Errors
    /// [`RingError::Version`], [`RingError::NoArena`], or what the kernel refuses.
    pub fn map(
        arena: BorrowedFd<'_>,
        word_file: BorrowedFd<'_>,
        bell: Option<OwnedFd>,
        lifeline: Option<OwnedFd>,
    ) -> Result<Self, RingError> {
        let (arena_bytes, word_bytes) = (sealed_bytes(arena, SealFlags::empty())?, sealed_bytes(word_file, SealFlags::FUTURE_WRITE)?);
        if arena_bytes < layout::SLOTS_OFFSET || word_bytes != words::BYTES {
            return Err(RingError::NoArena("a file that is too short"));
        }
        let word_memory = ReadOnly(Memory(Arc::new(Mapping::new(word_file, word_bytes, false)?)));
        if word_memory.load_long(words::MAGIC) != layout::MAGIC {
            return Err(RingError::NoArena("a word file without its magic"));
        }
        let memory = Memory(Arc::new(Mapping::new(arena, arena_bytes, true)?));
        Self::over(memory, word_memory, arena_bytes, bell, lifeline)
    }

    fn over(memory: Memory, words: ReadOnly, bytes: usize, bell: Option<OwnedFd>, lifeline: Option<OwnedFd>) -> Result<Self, RingError> {
        if memory.load_long(header::MAGIC) != layout::MAGIC {
            return Err(RingError::NoArena("no magic"));
        }
        let found = memory.load(header::VERSION);
        if found != layout::VERSION {
            return Err(RingError::Version { found, expected: layout::VERSION });
        }
        let sizes = Sizes { slots: memory.load(header::SLOTS), data_bytes: memory.load_long(header::DATA_BYTES) }.check()?;
        if sizes.total_bytes() != bytes || memory.load_long(header::DATA_OFFSET) != sizes.data_offset() as u64 {
            return Err(RingError::NoArena("sizes that do not fit the file"));
        }
        if (memory.load(header::DOORBELL) != 0) != bell.is_some() {
            return Err(RingError::NoArena("another doorbell than it names"));
        }
        let free = u64::MAX >> (64 - sizes.slots);
        let slots = Slots { free, used: 0, turns: vec![0; sizes.slots as usize], left: Vec::new() };
        let space = Mutex::new(Space::new(sizes.data_bytes));
        let standing = Arc::new(Standing::new(memory.clone(), words, lifeline.as_ref()));
        let (slots, waiting) = (Mutex::new(slots), AtomicU64::new(0));
        Ok(Self(Arc::new(Inner { memory, sizes, bell, lifeline, standing, slots, space, waiting })))
    }

    /// A client in the daemon's own process, on the same mapping: explored schedules know words by their address.
    ///
    /// # Errors
    /// As [`Client::map`].
    #[cfg(feature = "schedules")]
    pub fn beside(arena: &crate::Arena) -> Result<Self, RingError> {
        Self::over(arena.memory().clone(), ReadOnly(arena.word_memory().clone()), arena.sizes().total_bytes(), None, None)
    }

    /// Takes the version words, by which the client can answer by itself.
    pub fn set_versions(&self, versions: Versions) {
        self.0.standing.set_versions(versions);
    }

    /// Whether what an answer said is so now, and may be said without asking ([VER5], [VER7], [VER8] of `versions.rs`).
    #[inline]
    pub fn is_still_so(&self, seen: &Seen) -> bool {
        self.0.standing.is_still_so(seen)
    }

    /// What it compares, which outlives the connection.
    pub fn standing(&self) -> &Arc<Standing> {
        &self.0.standing
    }

    /// Whether the daemon is there, and looks after this client, so that it may do without asking what it was allowed to ([VER7], [VER8] of
    /// `versions.rs`).
    #[inline]
    pub fn may_answer_itself(&self) -> bool {
        self.0.standing.may_answer_itself()
    }

    /// Loads memory that is what was said while an answer is right; none if it is not any more, whatever was loaded ([VER9] of
    /// `versions.rs`).
    #[inline]
    pub fn load_while_so<T>(&self, seen: &Seen, load: impl FnOnce() -> Option<T>) -> Option<T> {
        if !self.is_still_so(seen) {
            return None;
        }
        let loaded = load()?;
        sync::loads_fence();
        (mutant::on(Mutant::LooksOnce) || self.is_still_so(seen)).then_some(loaded)
    }

    /// A slot for a thread; none if all are in use.
    pub fn slot(&self) -> Option<Slot> {
        self.reclaim();
        let mut slots = self.0.slots.lock();
        let index = slots.free.trailing_zeros();
        if index >= self.0.sizes.slots {
            return None;
        }
        slots.free &= !(1 << index);
        if !mutant::on(Mutant::UsedRaisedLate) {
            slots.raise_used(&self.0.memory, index); // [SLT4]
        }
        let turn = slots.turns[index as usize];
        Some(Slot { client: self.clone(), index: index as usize, turn, is_open: false, kept: Vec::new() })
    }

    /// Slots whose caller has left are free after their answer ([SLT6]).
    fn reclaim(&self) {
        let is_answered = |left: &mut Left, turns: &[u32]| {
            mutant::on(Mutant::AbandonedReusedEarly) || self.0.answered_turn(left.index) == turns[left.index]
        };
        let mut slots = self.0.slots.lock();
        let Slots { left, turns, .. } = &mut *slots;
        let answered: Vec<Left> = left.extract_if(.., |left| is_answered(left, turns)).collect();
        answered.iter().for_each(|left| slots.free |= 1 << left.index);
        drop(slots);
        let mut space = self.0.space.lock();
        answered.iter().flat_map(|left| &left.ranges).for_each(|range| space.give_back(*range));
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.0.memory
    }

    pub(crate) fn sizes(&self) -> Sizes {
        self.0.sizes
    }

    /// Length of the data area in bytes.
    pub fn data_bytes(&self) -> u64 {
        self.0.sizes.data_bytes
    }

    /// A part of the data area; none while there is no room.
    pub fn buffer(&self, bytes: u32) -> Option<Buffer> {
        self.buffer_by(|space| space.take(bytes))
    }

    /// As [`Client::buffer`], of what is kept for long: such parts lie together at the end, so that long ones find room before them.
    pub fn kept_buffer(&self, bytes: u32) -> Option<Buffer> {
        self.buffer_by(|space| space.take_last(bytes))
    }

    fn buffer_by(&self, take: impl Fn(&mut Space) -> Option<Range>) -> Option<Buffer> {
        let taken = take(&mut self.0.space.lock());
        let range = taken.or_else(|| {
            self.reclaim();
            take(&mut self.0.space.lock())
        })?;
        Some(Buffer { client: self.clone(), range })
    }
}

impl Slots {
    fn raise_used(&mut self, memory: &Memory, index: u32) {
        if index >= self.used {
            self.used = index + 1;
            memory.store(header::SLOTS_USED, self.used);
        }
    }
}

impl Inner {
    fn attention(&self) -> Attention {
        self.standing.attention()
    }

    fn answered_turn(&self, index: usize) -> u32 {
        self.memory.load(self.sizes.word(index, slot::ANSWER_TURN))
    }

    fn write(&self, index: usize, request: &Request) {
        let at = |offset| self.sizes.word(index, offset);
        let put = |offset: usize, words: &mut dyn Iterator<Item = u64>| {
            words.enumerate().for_each(|(word, value)| self.memory.store_long(at(offset + 8 * word), value));
        };
        put(slot::HEAD, &mut request.head().into_iter());
        put(slot::MORE, &mut request.more().into_iter().take(request.more_used()));
        put(slot::NAMES, &mut request.name_words());
    }

    fn ring(&self) {
        match &self.bell {
            None => {
                self.memory.increment(header::BELL);
                self.memory.wake(header::BELL);
            }
            Some(bell) => {
                let _full_counter_rings_too = rustix::io::write(bell, &1_u64.to_ne_bytes());
            }
        }
    }

    /// Whether the daemon's thread is on this CPU ([CPU2]).
    fn shares_cpu(&self) -> bool {
        self.standing.daemons_cpu() == placement::word_of(sync::cpu())
    }

    /// [CPU2]
    fn tell_shared_cpu(&self) {
        self.memory.increment(header::SHARED_CPU);
    }

    /// Looks for an answer while that is shorter than sleeping ([WAI1], [CPU2]).
    #[inline]
    fn look(&self, index: usize, turn: u32) -> bool {
        let (mut started, mut has_told) = (None, false);
        loop {
            match self.attention() {
                Attention::Polling if self.waiting.load(Relaxed) <= 1 => {}
                Attention::Polling | Attention::Awake => return self.answered_turn(index) == turn,
                Attention::Asleep | Attention::Ended => return false,
            }
            let is_shared = started.is_some() && self.shares_cpu();
            if is_shared && !std::mem::replace(&mut has_told, true) {
                self.tell_shared_cpu();
            }
            for _ in 0..if is_shared { 1 } else { sync::LOOKS_BETWEEN_CLOCKS } {
                if self.answered_turn(index) == turn {
                    return true;
                }
                sync::relax();
            }
            let most = if has_told { LOOK_ON } else { SPIN };
            if Moment::now().is_past(*started.get_or_insert_with(Moment::now), most) {
                return false;
            }
            if is_shared {
                sync::give_way();
            }
        }
    }

    /// [SLT5]
    fn wait(&self, index: usize, turn: u32) -> Result<(), Ended> {
        self.waiting.fetch_add(1, Relaxed);
        let result = if self.look(index, turn) { Ok(()) } else { self.sleep(index, turn) };
        self.waiting.fetch_sub(1, Relaxed);
        result
    }

    /// [SLT5]
    fn sleep(&self, index: usize, turn: u32) -> Result<(), Ended> {
        let at = |offset| self.sizes.word(index, offset);
        self.memory.store(at(slot::SLEEPS), 1);
        sync::fence(); // Linux orders this in the futex as well, but futex(2) does not promise it
        let mut has_slept = false;
        let result = loop {
            let mut seen = self.answered_turn(index);
            if seen == turn {
                break Ok(());
            }
            if self.attention() == Attention::Ended || has_slept && !self.standing.is_alive() {
                break Err(Ended);
            }
            if mutant::on(Mutant::SleepValueReadLate) {
                seen = self.answered_turn(index);
            }
            self.memory.sleep(at(slot::ANSWER_TURN), seen);
            has_slept = true;
        };
        self.memory.store(at(slot::SLEEPS), 0);
        result
    }

    fn answer(&self, index: usize) -> Answer {
        let at = |offset| self.sizes.word(index, offset);
        let attribute = |word| self.memory.load_long(at(slot::ATTRIBUTES + 8 * word));
        let has_attributes = self.memory.load(at(slot::HAS_ATTRIBUTES)) != 0;
        Answer {
            error: self.memory.load(at(slot::ERROR)),
            value: self.memory.load_long(at(slot::VALUE)),
            further: self.memory.load_long(at(slot::FURTHER)),
            attributes: has_attributes.then(|| Attributes::of_words(std::array::from_fn(attribute))),
        }
    }

    fn seen(&self, index: usize) -> Seen {
        let at = |offset| self.sizes.word(index, offset);
        let word = |index| self.memory.load(at(slot::seen_word(index)));
        Seen::found(self.memory.load(at(slot::SEEN)), self.memory.load_long(at(slot::SEEN_SUM)), word)
    }
}

/// A slot: one request at a time.
#[derive(Debug)]
pub struct Slot {
    client: Client,
    index: usize,
    turn: u32,
    /// Whether the last request is not answered yet.
    is_open: bool,
    /// Data areas of a request whose caller left.
    kept: Vec<Range>,
}

impl Slot {
    /// Submits a request and waits for its answer.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn call(&mut self, request: &Request) -> Result<Answer, Ended> {
        self.begin(request)?;
        self.finish()
    }

    /// The words that the last answer depends on; none if it is not to be kept, or if the last request was not answered.
    pub fn seen(&self) -> Seen {
        if self.is_open { Seen::default() } else { self.client.0.seen(self.index) }
    }

    /// Submits a request. The buffers of its ranges belong to it until the answer.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn submit(&mut self, request: &Request, buffers: Vec<Buffer>) -> Result<Pending<'_>, Ended> {
        self.begin(request)?;
        Ok(Pending { slot: self, buffers })
    }

    fn begin(&mut self, request: &Request) -> Result<(), Ended> {
        let client = Arc::clone(&self.client.0);
        if self.is_open && !mutant::on(Mutant::AbandonedReusedEarly) {
            client.wait(self.index, self.turn)?; // [SLT6]
            self.release();
        }
        let at = client.sizes.word(self.index, slot::TURN);
        self.turn = self.turn.wrapping_add(1);
        self.is_open = true;
        if mutant::on(Mutant::TurnBeforeHead) {
            client.memory.store(at, self.turn);
        }
        client.write(self.index, request);
        client.memory.store(at, self.turn); // [SLT1]
        if !mutant::on(Mutant::RingsWithoutFence) {
            sync::fence(); // [BEL1]
        }
        match client.attention() {
            Attention::Asleep => {
                if client.shares_cpu() {
                    client.tell_shared_cpu();
                }
                client.ring();
            }
            Attention::Ended => return Err(Ended),
            Attention::Awake | Attention::Polling => {}
        }
        if mutant::on(Mutant::UsedRaisedLate) {
            client.slots.lock().raise_used(&client.memory, self.index as u32);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Answer, Ended> {
        self.client.0.wait(self.index, self.turn)?;
        self.release();
        Ok(self.client.0.answer(self.index))
    }

    /// The last request is answered.
    fn release(&mut self) {
        self.is_open = false;
        if !self.kept.is_empty() {
            let mut space = self.client.0.space.lock();
            self.kept.drain(..).for_each(|range| space.give_back(range));
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.client.0.slots.lock();
        slots.turns[self.index] = self.turn;
        if self.is_open {
            slots.left.push(Left { index: self.index, ranges: std::mem::take(&mut self.kept) });
        } else {
            slots.free |= 1 << self.index;
        }
    }
}

/// A submitted request. A caller may leave by dropping it.
#[derive(Debug)]
pub struct Pending<'a> {
    slot: &'a mut Slot,
    buffers: Vec<Buffer>,
}

impl Pending<'_> {
    /// Waits for the answer and gives the buffers back.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn wait(mut self) -> Result<(Answer, Vec<Buffer>), Ended> {
        let answer = self.slot.finish()?;
        Ok((answer, std::mem::take(&mut self.buffers)))
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.slot.is_open && !mutant::on(Mutant::BuffersReturnedEarly) {
            let buffers = std::mem::take(&mut self.buffers);
            self.slot.kept.extend(buffers.into_iter().map(Buffer::into_range));
        }
    }
}

/// A part of the data area, given back when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    client: Client,
    range: Range,
}

impl Buffer {
    /// Its place, for [`Request::ranges`].
    pub fn range(&self) -> Range {
        self.range
    }

    fn place(&self, from: usize, bytes: usize) -> usize {
        let length = self.range.length as usize;
        assert!(from.checked_add(bytes).is_some_and(|end| end <= length), "{bytes} bytes at {from} of {length}");
        self.client.0.sizes.data_offset() + self.range.start as usize + from
    }

    /// Copies bytes in, to an offset.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn write(&mut self, from: usize, bytes: &[u8]) {
        self.client.0.memory.copy_in(self.place(from, bytes.len()), bytes);
    }

    /// Copies bytes out, from an offset on.
    ///
    /// # Panics
    /// If the buffer is shorter.
    pub fn read(&self, from: usize, bytes: &mut [u8]) {
        self.client.0.memory.copy_out(self.place(from, bytes.len()), bytes);
    }

    /// The bytes themselves. The daemon may change them meanwhile.
    pub fn atomics(&self) -> &[AtomicU8] {
        let length = self.range.length as usize;
        self.client.0.memory.atomics(self.place(0, length), length)
    }

    /// The range, which is not given back any more.
    fn into_range(mut self) -> Range {
        std::mem::take(&mut self.range)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.range != Range::default() {
            self.client.0.space.lock().give_back(self.range);
        }
    }
}

/// The client's socket, for those who poll it themselves.
impl Client {
    /// The socket that the arena came by.
    pub fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.0.lifeline.as_ref().map(AsFd::as_fd)
    }

    /// All descriptors that the client keeps.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.lifeline.iter().chain(&self.0.bell).map(AsFd::as_fd)
    }

    /// Whether the daemon has hung up.
    pub fn has_ended(&self) -> bool {
        self.0.attention() == Attention::Ended || !self.0.standing.is_alive()
    }
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use super::*;
    use crate::{Arena, Doorbell, Sizes, VersionWords};

    /// [VER7], [VER8] of `versions.rs`
    #[test]
    fn a_client_answers_itself_while_it_is_served_and_says_so() {
        let arena = Arena::new(Sizes { slots: 1, data_bytes: 4096 }, Doorbell::Futex).expect("made");
        let descriptors = arena.descriptors();
        let client = Client::map(descriptors.arena, descriptors.words, None, None).expect("mapped");
        let words = VersionWords::new().expect("made");
        let seen = Seen::of([words.current(1)]);
        assert!(!client.is_still_so(&seen), "it has no words yet");
        client.set_versions(Versions::map(words.file()).expect("mapped"));
        assert!(!arena.has_answered_itself());
        for _ in 0..3 {
            assert!(client.is_still_so(&seen) && client.is_still_so(&seen));
            assert!(arena.has_answered_itself() && !arena.has_answered_itself());
        }
        words.raise(1);
        assert!(!client.is_still_so(&seen));
        let seen = Seen::of([words.current(1)]);
        assert!(client.is_still_so(&seen));
        arena.end();
        assert!(!client.is_still_so(&seen), "its connection has ended");
    }

    #[test]
    fn a_daemon_that_hangs_up_is_seen() {
        let arena = Arena::new(Sizes { slots: 1, data_bytes: 4096 }, Doorbell::Futex).expect("made");
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let descriptors = arena.descriptors();
        let client = Client::map(descriptors.arena, descriptors.words, None, Some(ours.into())).expect("mapped");
        let words = VersionWords::new().expect("made");
        client.set_versions(Versions::map(words.file()).expect("mapped"));
        let seen = Seen::of([words.current(1)]);
        assert!(client.is_still_so(&seen));
        drop(theirs);
        std::thread::sleep(Duration::from_millis(3 * crate::standing::ALIVE_FOR));
        assert!(!client.is_still_so(&seen) && !client.is_still_so(&seen));
    }
}

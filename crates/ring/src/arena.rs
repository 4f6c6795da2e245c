//! The daemon's side of a client's shared memory. Nothing that stands there is believed.
//!
//! [TRU1] A request's head is copied to private memory once. Checks and everything after them use the copy.
//! [TRU2] Lengths and ranges are checked against this client's own data area.
//! [TRU3] The client's count of slots in use bounds nothing beyond the slots that the arena has.
//!
//! The protocol of a slot:
//!
//! [SLT1] The client stores the head, then the next turn. The daemon loads the turn, then the head.
//! [SLT2] The daemon stores the answer, then its turn. The client loads the turn, then the answer.
//! [SLT3] A slot is taken by the daemon until its answer. It is given back before the answer is published: the next request may come at once,
//!        and a scan that skipped it would be the last one before the daemon sleeps.
//! [SLT4] A slot counts as in use before its client looks whether it has to ring.
//! [SLT5] Before it sleeps, the client says so, then looks at the answer's turn once more (a full fence between both) and sleeps only while
//!        the turn has the value that it saw. The daemon stores the turn, then looks whether the client sleeps (a full fence between both).
//! [SLT6] A caller that leaves in the middle leaves the slot and its data areas behind; both are used again only after the answer.
//! [SLT7] The end of an arena: the daemon says *ended*, then changes the turns that are slept on, then wakes. A changed turn answers nobody.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::layout::{self, Doorbell, Range, Sizes, header, slot, words};
use crate::memory::Memory;
use crate::message::{Answer, Request};
use crate::mutant::{self, Mutant};
use crate::sync;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sys::Mapping;
use crate::versions::Seen;
use crate::{Attention, RingError};

/// What a client did wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lie {
    /// A head that does not fit.
    #[error("slot {slot}: {what}")]
    Head {
        /// The slot.
        slot: usize,
        /// What does not fit.
        what: &'static str,
    },
    /// A range that is not in the data area.
    #[error("slot {slot}: bytes {start} to {end} of a data area of {data_bytes} bytes")]
    Range {
        /// The slot.
        slot: usize,
        /// First byte.
        start: u64,
        /// Byte behind the last.
        end: u64,
        /// What there is.
        data_bytes: u64,
    },
    /// The doorbell rang again and again without a request.
    #[error("the doorbell rang {0} times without a request")]
    EmptyRings(u32),
}

/// The descriptors of an arena, for the client.
#[derive(Debug, Clone, Copy)]
pub struct Descriptors<'a> {
    /// The arena itself.
    pub arena: BorrowedFd<'a>,
    /// The word file.
    pub words: BorrowedFd<'a>,
    /// The eventfd, if the doorbell is one.
    pub bell: Option<BorrowedFd<'a>>,
}

/// What the daemon knows of a slot by itself.
#[derive(Debug, Default)]
struct Taken {
    /// The turn that was taken last.
    turn: AtomicU32,
    /// Whether it is not answered yet.
    is_busy: AtomicBool,
}

/// The shared memory of a client, as the daemon holds it.
#[derive(Debug)]
pub struct Arena {
    memory: Memory,
    words: Memory,
    files: [OwnedFd; 2],
    bell: Option<OwnedFd>,
    sizes: Sizes,
    taken: Box<[Taken]>,
}

/// A file in memory of a fixed size, mapped.
pub(crate) fn sealed(name: &str, bytes: usize, further: SealFlags) -> Result<(OwnedFd, Memory), RingError> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes as u64)?;
    let mapping = Mapping::new(file.as_fd(), bytes, true)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | further)?;
    Ok((file, Memory(Arc::new(mapping))))
}

impl Arena {
    /// Makes the shared memory of one client.
    ///
    /// # Errors
    /// [`RingError::Sizes`], or what the kernel refuses.
    pub fn new(sizes: Sizes, doorbell: Doorbell) -> Result<Arc<Self>, RingError> {
        let sizes = sizes.check()?;
        let (arena, memory) = sealed("tandemfs-arena", sizes.total_bytes(), SealFlags::empty())?;
        let (word_file, word_memory) = sealed("tandemfs-words", words::BYTES, SealFlags::FUTURE_WRITE)?; // [SHM1]
        let bell = match doorbell {
            Doorbell::Futex => None,
            Doorbell::Eventfd => Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        };
        memory.store_long(header::MAGIC, layout::MAGIC);
        memory.store(header::VERSION, layout::VERSION);
        memory.store(header::SLOTS, sizes.slots);
        memory.store_long(header::DATA_OFFSET, sizes.data_offset() as u64);
        memory.store_long(header::DATA_BYTES, sizes.data_bytes);
        memory.store(header::DOORBELL, u32::from(bell.is_some()));
        word_memory.store_long(words::MAGIC, layout::MAGIC);
        word_memory.store(words::VERSION, layout::VERSION);
        word_memory.store(words::LOOK, 1);
        let taken = (0..sizes.slots).map(|_| Taken::default()).collect();
        Ok(Arc::new(Self { memory, words: word_memory, files: [arena, word_file], bell, sizes, taken }))
    }

    /// What is sent to the client.
    pub fn descriptors(&self) -> Descriptors<'_> {
        let [arena, words] = self.files.each_ref().map(AsFd::as_fd);
        Descriptors { arena, words, bell: self.bell.as_ref().map(AsFd::as_fd) }
    }

    /// Another descriptor of the arena, as a file.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn file(&self) -> std::io::Result<File> {
        Ok(File::from(self.files[0].try_clone()?))
    }

    /// Its sizes.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    #[cfg(feature = "schedules")]
    pub(crate) fn word_memory(&self) -> &Memory {
        &self.words
    }

    /// Slots that are to be looked at ([TRU3]).
    #[inline]
    pub(crate) fn slots_used(&self) -> usize {
        let used = self.memory.load(header::SLOTS_USED);
        if mutant::on(Mutant::UsedBelieved) {
            return used as usize;
        }
        used.min(self.sizes.slots) as usize
    }

    /// The turn of a request that is not taken.
    #[inline]
    fn pending(&self, index: usize) -> Option<u32> {
        let Some(taken) = self.taken.get(index) else {
            panic!("slot {index} of {}", self.sizes.slots);
        };
        let turn = self.memory.load(self.sizes.word(index, slot::TURN));
        (turn != taken.turn.load(Ordering::Relaxed) && !taken.is_busy.load(Ordering::Acquire)).then_some(turn)
    }

    /// Whether a request was taken and is not answered.
    pub(crate) fn is_serving(&self) -> bool {
        self.taken.iter().any(|taken| taken.is_busy.load(Ordering::Relaxed))
    }

    /// Whether any slot has a request that is not taken.
    pub(crate) fn is_pending(&self) -> bool {
        (0..self.slots_used()).any(|index| self.pending(index).is_some())
    }

    /// Takes the request of a slot, if it has a new one, into `request`.
    ///
    /// # Errors
    /// The lie of a client whose request does not fit; the slot stays taken.
    pub(crate) fn take(self: &Arc<Self>, index: usize, request: &mut Request) -> Result<Option<Ticket>, Lie> {
        let early = mutant::on(Mutant::HeadBeforeTurn).then(|| self.copy(index, request));
        let Some(turn) = self.pending(index) else { return Ok(None) };
        let taken = &self.taken[index];
        taken.is_busy.store(true, Ordering::Relaxed);
        taken.turn.store(turn, Ordering::Relaxed);
        early.unwrap_or_else(|| self.copy(index, request))?; // [SLT1]
        Ok(Some(Ticket { arena: Arc::clone(self), index, turn, is_answered: false }))
    }

    /// [TRU1], [TRU2]: every word is loaded once.
    fn copy(&self, index: usize, request: &mut Request) -> Result<(), Lie> {
        let at = |offset| self.sizes.word(index, offset);
        let head = std::array::from_fn(|word| self.memory.load_long(at(slot::HEAD + 8 * word)));
        let used = request.set_head(head, !mutant::on(Mutant::NamesUnchecked)).map_err(|what| Lie::Head { slot: index, what })?;
        for word in 0..used.more {
            request.set_more(word, self.memory.load_long(at(slot::MORE + 8 * word)));
        }
        for word in 0..used.names {
            request.set_name_word(word, self.memory.load_long(at(slot::NAMES + 8 * word)));
        }
        let data_bytes = self.sizes.data_bytes;
        let beyond = request.ranges.iter().find(|range| !range.is_within(data_bytes));
        if let Some(range) = beyond.filter(|_| !mutant::on(Mutant::RangeUnchecked)) {
            let (start, end) = (range.start.into(), u64::from(range.start) + u64::from(range.length));
            return Err(Lie::Range { slot: index, start, end, data_bytes });
        }
        if mutant::on(Mutant::HeadReadTwice) {
            request.ranges[0] = Range::of_word(self.memory.load_long(at(slot::HEAD + 48)));
        }
        Ok(())
    }

    fn answer(&self, index: usize, turn: u32, answer: &Answer, seen: Option<&Seen>) {
        let at = |offset| self.sizes.word(index, offset);
        let publish = || self.memory.store(at(slot::ANSWER_TURN), turn);
        if mutant::on(Mutant::AnswerAfterTurn) {
            publish();
        }
        self.memory.store(at(slot::ERROR), answer.error);
        self.memory.store_long(at(slot::VALUE), answer.value);
        self.memory.store_long(at(slot::FURTHER), answer.further);
        self.memory.store(at(slot::HAS_ATTRIBUTES), u32::from(answer.attributes.is_some()));
        if let Some(attributes) = answer.attributes {
            let place = |word| at(slot::ATTRIBUTES + 8 * word);
            attributes.to_words().into_iter().enumerate().for_each(|(word, value)| self.memory.store_long(place(word), value));
        }
        let (words, sum) = seen.map_or((&[][..], 0), Seen::parts);
        self.memory.store(at(slot::SEEN), words.len() as u32);
        if !words.is_empty() {
            self.memory.store_long(at(slot::SEEN_SUM), sum);
            words.iter().enumerate().for_each(|(index, word)| self.memory.store(at(slot::seen_word(index)), *word));
        }
        let give_back = || self.taken[index].is_busy.store(false, Ordering::Release);
        if !mutant::on(Mutant::BusyPastAnswer) {
            give_back(); // [SLT3]
        }
        publish(); // [SLT2]
        if !mutant::on(Mutant::AnswersWithoutFence) {
            sync::fence(); // [SLT5]
        }
        if self.memory.load(at(slot::SLEEPS)) != 0 {
            self.memory.wake(at(slot::ANSWER_TURN));
        }
        if mutant::on(Mutant::BusyPastAnswer) {
            give_back();
        }
    }

    /// Bytes of the data area; none for a range that is not in it.
    pub fn data(&self, range: Range) -> Option<Data<'_>> {
        range.is_within(self.sizes.data_bytes).then_some(Data { arena: self, range })
    }

    /// [CPU1] of `placement.rs`
    pub(crate) fn set_cpu(&self, word: u32) {
        self.words.store(words::CPU, word);
    }

    /// How often the client found itself on the daemon's CPU ([CPU2]).
    pub(crate) fn shared_cpu_count(&self) -> u32 {
        self.memory.load(header::SHARED_CPU)
    }

    /// Tells the client what it may expect.
    pub(crate) fn set_attention(&self, attention: Attention) {
        self.words.store(words::ATTENTION, attention as u32);
    }

    /// Whether the client has given answers by itself since the last call, and begins anew ([VER8] of `versions.rs`). For one thread at a time.
    pub fn has_answered_itself(&self) -> bool {
        let look = self.words.load(words::LOOK);
        let has = self.memory.load(header::ANSWERED) == look;
        if has {
            self.words.store(words::LOOK, look.wrapping_add(1).max(1));
        }
        has
    }

    /// The value of the doorbell word.
    pub(crate) fn bell_value(&self) -> u32 {
        self.memory.load(header::BELL)
    }

    /// Takes note of rings by an eventfd.
    pub(crate) fn silence(&self) {
        if let Some(bell) = &self.bell {
            sync::drain(bell.as_fd());
        }
    }

    /// [SLT7]: nobody serves this client any more. Its sleepers wake.
    pub(crate) fn end(&self) {
        self.set_attention(Attention::Ended);
        sync::fence();
        for index in 0..self.sizes.slots as usize {
            let at = self.sizes.word(index, slot::ANSWER_TURN);
            if !mutant::on(Mutant::EndLeavesWords) {
                let pending = self.memory.load(self.sizes.word(index, slot::TURN));
                self.memory.store(at, pending.wrapping_add(1 << 31));
            }
            self.memory.wake(at);
        }
    }
}

/// A request that was taken and is to be answered, by any thread. One that is dropped is answered with [`DROPPED`].
#[derive(Debug)]
pub struct Ticket {
    arena: Arc<Arena>,
    index: usize,
    turn: u32,
    is_answered: bool,
}

/// The error of a request that nobody answered: EIO.
pub const DROPPED: u32 = 5;

impl Ticket {
    /// Answers. This never waits.
    pub fn answer(self, answer: &Answer) {
        self.answer_for(answer, None);
    }

    /// Answers; the client may keep the answer while the words that it depends on are as they were.
    pub fn answer_for(mut self, answer: &Answer, seen: Option<&Seen>) {
        self.is_answered = true;
        self.arena.answer(self.index, self.turn, answer, seen);
    }

    /// Bytes of the client's data area.
    pub fn data(&self, range: Range) -> Option<Data<'_>> {
        self.arena.data(range)
    }

    /// The client's memory.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_answered {
            self.arena.answer(self.index, self.turn, &Answer { error: DROPPED, ..Answer::default() }, None);
        }
    }
}

/// Bytes of a client's data area. The client may change them at any time.
#[derive(Debug, Clone, Copy)]
pub struct Data<'a> {
    arena: &'a Arena,
    range: Range,
}

impl<'a> Data<'a> {
    fn place(&self, from: usize, bytes: usize) -> usize {
        let length = self.range.length as usize;
        assert!(from.checked_add(bytes).is_some_and(|end| end <= length), "{bytes} bytes at {from} of {length}");
        self.arena.sizes.data_offset() + self.range.start as usize + from
    }

    /// Their number.
    pub fn length(&self) -> usize {
        self.range.length as usize
    }

    /// Copies bytes out, from an offset on.
    ///
    /// # Panics
    /// If the range is shorter.
    pub fn read(&self, from: usize, bytes: &mut [u8]) {
        self.arena.memory.copy_out(self.place(from, bytes.len()), bytes);
    }

    /// Copies bytes in, to an offset.
    ///
    /// # Panics
    /// If the range is shorter.
    pub fn write(&self, from: usize, bytes: &[u8]) {
        self.arena.memory.copy_in(self.place(from, bytes.len()), bytes);
    }

    /// The bytes themselves, for transfers of a device. The client may change them meanwhile.
    pub fn atomics(&self) -> &'a [AtomicU8] {
        self.arena.memory.atomics(self.place(0, self.length()), self.length())
    }
}

//! The layout of the shared memory. One version number covers both files and the messages.
//!
//! [SHM1] A client has two files in memory. The *arena* is writable by both sides; its size is sealed, so a mapping of it never faults.
//!        The *word file* is written by the daemon alone: it is sealed against further writable mappings before it is given away.
//! [SHM2] Words of different writers lie in different lines of 64 B.
//! [SHM3] All integers are little-endian words of 4 or 8 bytes at their natural alignment.
//!
//! Arena:
//!
//! | offset | bytes | writer | meaning |
//! |---|---|---|---|
//! | 0 | 8 | daemon | magic `TFSRING\0` |
//! | 8 | 4 | daemon | version |
//! | 12 | 4 | daemon | number of slots, 1 to 64 |
//! | 16 | 8 | daemon | offset of the data area, whole pages |
//! | 24 | 8 | daemon | bytes of the data area, whole pages, below 4 GiB |
//! | 32 | 4 | daemon | doorbell: 0 futex, 1 eventfd |
//! | 64 | 4 | client | slots in use: those below this number are looked at |
//! | 68 | 4 | client | how often a thread found itself on the daemon's CPU ([CPU2] of `placement.rs`) |
//! | 128 | 4 | client | doorbell word |
//! | 192 | 4 | client | the daemon's last look during which the client gave answers that it knew ([VER8] of `versions.rs`) |
//! | 256 | 1024 each | | slots |
//! | behind the slots | 8 each | both | 4096 words of idle files (`idle.rs`) |
//!
//! Slot:
//!
//! | offset | bytes | writer | meaning |
//! |---|---|---|---|
//! | 0 | 4 | client | turn of the request |
//! | 4 | 4 | client | 1 while the client sleeps until the answer |
//! | 8 | 2, 2, 2, 2 | client | operation, number of words at 64 in use, lengths of two names |
//! | 16 | 4, 4 | client | flags, zero |
//! | 24 | 8 each | client | node, handle, offset, length |
//! | 56 | 4, 4 | client | first range of the data area: start, length |
//! | 64 | 4, 4 | client | second range |
//! | 72 | 8 each | client | seven arguments |
//! | 128 | 512 | client | names, one behind the other |
//! | 640 | 4 | daemon | turn of the answer |
//! | 644 | 4 | daemon | error, 0 for none |
//! | 648 | 8 | daemon | value |
//! | 656 | 4 | daemon | 1 if there are attributes |
//! | 660 | 4 | daemon | words that the answer depends on, 0 if it is not to be kept (`versions.rs`) |
//! | 664 | 8 | daemon | further value |
//! | 672 | 8 | daemon | sum of the values of those words |
//! | 680 | 4 each | daemon | the first six of them, so that most answers without attributes are one line |
//! | 704 | 104 | daemon | attributes (`message.rs`) |
//! | 832 | 4 each | daemon | 26 further words |
//!
//! Word file: 0 magic (8), 8 version (4), 64 the daemon's attention to this client (4): 0 asleep, 1 awake, 2 polling, 3 ended;
//! 128 the number of its looks at the client's credentials (4); 192 the CPU on which its thread is, from 1, or 0 (4; [CPU1] of `placement.rs`).

use crate::RingError;

/// `TFSRING\0`.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"TFSRING\0");
/// The version of the layout and of the messages.
pub const VERSION: u32 = 5;
/// Most slots of a client: one a thread; threads beyond them share.
pub const SLOTS_MAX: u32 = 64;
/// The most bytes of a data area.
pub const DATA_BYTES_MAX: u64 = (1 << 32) - PAGE_BYTES;
/// The unit of the data area's place and size.
pub const PAGE_BYTES: u64 = 4096;
/// The room for the names of a request: two of the longest.
pub const NAMES_BYTES: usize = 512;
/// Longest name.
pub const NAME_BYTES_MAX: usize = 255;
/// Most words that an answer depends on and can be kept: paths of up to 14 components.
pub const SEEN_MAX: usize = 32;
/// Version words, a power of two: 2 MiB. A million raises a second reach one that an answer of eight words depends on after 30 ms.
pub const VERSION_WORDS: u32 = 1 << 18;
/// Arguments of a request.
pub const ARGUMENTS: usize = 7;

pub(crate) const LINE: usize = 64;

pub(crate) mod header {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const SLOTS: usize = 12;
    pub(crate) const DATA_OFFSET: usize = 16;
    pub(crate) const DATA_BYTES: usize = 24;
    pub(crate) const DOORBELL: usize = 32;
    pub(crate) const SLOTS_USED: usize = 64;
    pub(crate) const SHARED_CPU: usize = 68;
    pub(crate) const BELL: usize = 128;
    pub(crate) const ANSWERED: usize = 192;
}

pub(crate) mod slot {
    pub(crate) const TURN: usize = 0;
    pub(crate) const SLEEPS: usize = 4;
    pub(crate) const HEAD: usize = 8;
    pub(crate) const HEAD_WORDS: usize = 7;
    pub(crate) const MORE: usize = 64;
    pub(crate) const MORE_WORDS: usize = 8;
    pub(crate) const NAMES: usize = 128;
    pub(crate) const ANSWER_TURN: usize = 640;
    pub(crate) const ERROR: usize = 644;
    pub(crate) const VALUE: usize = 648;
    pub(crate) const HAS_ATTRIBUTES: usize = 656;
    pub(crate) const SEEN: usize = 660;
    pub(crate) const FURTHER: usize = 664;
    pub(crate) const SEEN_SUM: usize = 672;
    pub(crate) const SEEN_FIRST: usize = 680;
    pub(crate) const SEEN_FIRST_WORDS: usize = 6;
    pub(crate) const ATTRIBUTES: usize = 704;
    pub(crate) const ATTRIBUTE_WORDS: usize = 13;
    pub(crate) const SEEN_REST: usize = 832;
    pub(crate) const BYTES: usize = 1024;

    /// Where one of the words is that an answer depends on.
    pub(crate) fn seen_word(index: usize) -> usize {
        match index.checked_sub(SEEN_FIRST_WORDS) {
            None => SEEN_FIRST + 4 * index,
            Some(further) => SEEN_REST + 4 * further,
        }
    }
}

pub(crate) const SLOTS_OFFSET: usize = 256;

/// Sets of words of idle files, and words of each ([IDL2] of `idle.rs`).
pub(crate) const IDLE_SETS: usize = 512;
pub(crate) const IDLE_WAYS: usize = 8;

pub(crate) mod words {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const ATTENTION: usize = 64;
    pub(crate) const LOOK: usize = 128;
    pub(crate) const CPU: usize = 192;
    pub(crate) const BYTES: usize = 4096;
}

// [SHM2]
const _: () = {
    assert!(header::DOORBELL < LINE && header::SLOTS_USED / LINE != header::BELL / LINE && header::BELL + LINE <= header::ANSWERED);
    assert!(header::SHARED_CPU / LINE == header::SLOTS_USED / LINE);
    assert!(header::ANSWERED + LINE <= SLOTS_OFFSET && VERSION_WORDS.is_power_of_two());
    assert!(slot::HEAD + 8 * slot::HEAD_WORDS == slot::MORE && slot::MORE + 8 * slot::MORE_WORDS == slot::NAMES);
    assert!(slot::NAMES + NAMES_BYTES == slot::ANSWER_TURN && slot::ANSWER_TURN.is_multiple_of(LINE));
    assert!(
        slot::HAS_ATTRIBUTES < slot::SEEN
            && slot::SEEN < slot::FURTHER
            && slot::FURTHER < slot::SEEN_SUM
            && slot::SEEN_FIRST + 4 * slot::SEEN_FIRST_WORDS == slot::ATTRIBUTES
            && slot::ATTRIBUTES + 8 * slot::ATTRIBUTE_WORDS <= slot::SEEN_REST
            && slot::SEEN_REST + 4 * (SEEN_MAX - slot::SEEN_FIRST_WORDS) <= slot::BYTES
    );
    assert!(slot::BYTES.is_multiple_of(2 * LINE) && SLOTS_OFFSET.is_multiple_of(2 * LINE));
    assert!(8 * IDLE_WAYS == LINE);
    assert!(2 * NAME_BYTES_MAX <= NAMES_BYTES && NAMES_BYTES.is_multiple_of(8));
};

/// How a client rings for the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doorbell {
    /// A futex in the arena, which the daemon's io_uring waits for (Linux 6.7).
    Futex,
    /// An eventfd.
    Eventfd,
}

/// The sizes of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Slots, 1 to [`SLOTS_MAX`].
    pub slots: u32,
    /// Bytes of the data area, whole pages, at most [`DATA_BYTES_MAX`].
    pub data_bytes: u64,
}

impl Sizes {
    /// # Errors
    /// [`RingError::Sizes`] if no arena has these sizes.
    pub(crate) fn check(self) -> Result<Self, RingError> {
        let is_possible = (1..=SLOTS_MAX).contains(&self.slots) && self.data_bytes <= DATA_BYTES_MAX;
        if !is_possible || !self.data_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(RingError::Sizes { slots: self.slots, data_bytes: self.data_bytes });
        }
        Ok(self)
    }

    pub(crate) fn data_offset(self) -> usize {
        self.idle_word(IDLE_SETS * IDLE_WAYS).next_multiple_of(PAGE_BYTES as usize)
    }

    /// Where a word of idle files is.
    pub(crate) fn idle_word(self, place: usize) -> usize {
        SLOTS_OFFSET + self.slots as usize * slot::BYTES + 8 * place
    }

    pub(crate) fn total_bytes(self) -> usize {
        self.data_offset() + self.data_bytes as usize
    }

    /// Where a word of a slot is.
    pub(crate) fn word(self, index: usize, offset: usize) -> usize {
        debug_assert!(index < self.slots as usize && offset < slot::BYTES);
        SLOTS_OFFSET + index * slot::BYTES + offset
    }
}

/// A part of a data area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// First byte, from the start of the data area.
    pub start: u32,
    /// Bytes; 0 for no range.
    pub length: u32,
}

impl Range {
    /// Whether it lies in a data area of this size.
    pub fn is_within(self, data_bytes: u64) -> bool {
        u64::from(self.start) + u64::from(self.length) <= data_bytes
    }

    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.start) | u64::from(self.length) << 32
    }

    pub(crate) fn of_word(word: u64) -> Self {
        Self { start: word as u32, length: (word >> 32) as u32 }
    }
}

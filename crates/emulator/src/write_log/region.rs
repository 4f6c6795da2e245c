//! Layout of the write log in the persistent DRAM: a header, the TxLog, descriptors, lines.
//!
//! | part | bytes | content |
//! |---|---|---|
//! | header | 4096 | 8 B words: magic, lines, TxLog entries, logical pages, tail, TxLog tail, TxLog head |
//! | TxLog | 4 an entry | TxIDs in commit order; a ring |
//! | descriptors | 16 a line | lap << 32 \| TxID; hidden << 63 \| line number in the byte window |
//! | lines | 64 a line | a ring |
//!
//! A sequence is a position in the ring that never restarts: slot = sequence mod lines, lap = sequence / lines. The low 32 bits of the lap
//! are stored; each lap writes every slot, so an older lap always differs from the current one. Laps begin at 1, so DRAM of zeros holds no
//! line.

use std::sync::Arc;

use tandemfs_device::DeviceError;
use tandemfs_format::{LINE_BYTES, Line};

use super::WriteLogOptions;
use crate::medium::Medium;

const HEADER_BYTES: u64 = 4096;
const DESCRIPTOR_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 4;
const MAGIC: u64 = u64::from_le_bytes(*b"TFSWLOG1");
const HIDDEN: u64 = 1 << 63;
/// Sequences that no drive reaches: they are stamps, which the flash keeps in fewer than 64 bits.
const SEQUENCE_MAX: u64 = 1 << 60;
/// Descriptors that a scan loads at once.
pub(super) const SCAN: usize = 64;

/// A word of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Magic,
    Lines,
    Entries,
    LogicalPages,
    /// Sequence of the oldest line.
    Tail,
    /// Number of the oldest TxLog entry, counted from the first commit ever.
    TransactionTail,
    /// Number of the next one.
    TransactionHead,
}

/// What the log says of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// 0 for none.
    pub(super) transaction: u32,
    /// Number in the byte window.
    pub(super) line: u64,
    /// Not visible before its transaction is committed: something that was committed later lies over it.
    pub(super) is_hidden: bool,
}

/// The persistent part of the log.
#[derive(Debug)]
pub(super) struct Region<M: Medium> {
    medium: Arc<M>,
    offset: u64,
    /// Lines of the ring.
    pub(super) lines: u64,
    /// Entries of the TxLog.
    pub(super) entries: u64,
}

/// Persistent DRAM for these sizes, in bytes.
pub(super) fn dram_bytes(options: &WriteLogOptions) -> u64 {
    let lines = options.log_bytes / LINE_BYTES as u64;
    (HEADER_BYTES + options.transaction_log_bytes + lines * DESCRIPTOR_BYTES).next_multiple_of(4096) + options.log_bytes
}

impl<M: Medium> Region<M> {
    pub(super) fn new(medium: Arc<M>, offset: u64, options: &WriteLogOptions) -> Self {
        let (lines, entries) = (options.log_bytes / LINE_BYTES as u64, options.transaction_log_bytes / ENTRY_BYTES);
        Self { medium, offset, lines, entries }
    }

    /// Makes an empty log of whatever is there. The magic comes last: a format that was cut is none.
    pub(super) fn format(&self, logical_pages: u64) -> Result<(), DeviceError> {
        self.set(Word::Magic, 0)?;
        let mut descriptors = [0; SCAN * DESCRIPTOR_BYTES as usize];
        let zeros = descriptors;
        for first in (0..self.lines).step_by(SCAN) {
            let bytes = (self.lines - first).min(SCAN as u64) * DESCRIPTOR_BYTES;
            self.medium.load(self.descriptor_at(first), &mut descriptors[..bytes as usize])?;
            // A new image is sparse: what is zero already is not stored.
            if descriptors[..bytes as usize] != zeros[..bytes as usize] {
                self.medium.store(self.descriptor_at(first), &zeros[..bytes as usize])?;
            }
        }
        self.set(Word::Lines, self.lines)?;
        self.set(Word::Entries, self.entries)?;
        self.set(Word::LogicalPages, logical_pages)?;
        self.set(Word::Tail, self.lines)?;
        self.set(Word::TransactionTail, 0)?;
        self.set(Word::TransactionHead, 0)?;
        self.set(Word::Magic, MAGIC)
    }

    /// Whether a log of this geometry is there. Err: what is wrong.
    pub(super) fn check(&self, logical_pages: u64) -> Result<Result<(), String>, DeviceError> {
        if self.word(Word::Magic)? != MAGIC {
            return Ok(Err("there is no write log in its memory".into()));
        }
        let own = [
            (Word::Lines, self.lines, "lines"),
            (Word::Entries, self.entries, "TxLog entries"),
            (Word::LogicalPages, logical_pages, "pages"),
        ];
        for (word, expected, what) in own {
            let found = self.word(word)?;
            if found != expected {
                return Ok(Err(format!("its write log was made for {found} {what}, not for {expected}")));
            }
        }
        let (tail, head) = (self.word(Word::TransactionTail)?, self.word(Word::TransactionHead)?);
        let is_transaction_log = head < SEQUENCE_MAX && head.checked_sub(tail).is_some_and(|used| used <= self.entries);
        if !(self.lines..SEQUENCE_MAX).contains(&self.word(Word::Tail)?) || !is_transaction_log {
            return Ok(Err("the header of its write log is damaged".into()));
        }
        Ok(Ok(()))
    }

    pub(super) fn word(&self, word: Word) -> Result<u64, DeviceError> {
        self.load_word(self.offset + word as u64 * 8)
    }

    /// One store of 8 B.
    pub(super) fn set(&self, word: Word, value: u64) -> Result<(), DeviceError> {
        self.medium.store(self.offset + word as u64 * 8, &value.to_le_bytes())
    }

    /// Stores a line's bytes and where it belongs; it is not valid before [`Region::publish`].
    pub(super) fn store_line(&self, slot: u32, line: u64, is_hidden: bool, bytes: &Line) -> Result<(), DeviceError> {
        self.medium.store(self.line_at(slot), bytes)?;
        let place = line | if is_hidden { HIDDEN } else { 0 };
        self.medium.store(self.descriptor_at(slot.into()) + 8, &place.to_le_bytes())
    }

    /// Makes the line of this sequence valid: one store of 8 B.
    pub(super) fn publish(&self, slot: u32, lap: u32, transaction: u32) -> Result<(), DeviceError> {
        let word = u64::from(lap) << 32 | u64::from(transaction);
        self.medium.store(self.descriptor_at(slot.into()), &word.to_le_bytes())
    }

    pub(super) fn load_line(&self, slot: u32, into: &mut [u8]) -> Result<(), DeviceError> {
        self.medium.load(self.line_at(slot), into)
    }

    /// Transaction of a line; 0 for an untagged one.
    pub(super) fn transaction(&self, slot: u32) -> Result<u32, DeviceError> {
        Ok(self.load_word(self.descriptor_at(slot.into()))? as u32)
    }

    pub(super) fn is_hidden(&self, slot: u32) -> Result<bool, DeviceError> {
        Ok(self.load_word(self.descriptor_at(slot.into()) + 8)? & HIDDEN != 0)
    }

    /// Calls with the valid lines from `tail` on, in the order of their sequences, some at a time, with the sequence of the first; answers
    /// the sequence of the next one.
    pub(super) fn scan(&self, tail: u64, mut some: impl FnMut(u64, &[Descriptor]) -> Result<(), DeviceError>) -> Result<u64, DeviceError> {
        let mut bytes = [0; SCAN * DESCRIPTOR_BYTES as usize];
        let mut descriptors = Vec::with_capacity(SCAN);
        let mut sequence = tail;
        while sequence < tail + self.lines {
            let slot = sequence % self.lines;
            let count = (self.lines - slot).min(tail + self.lines - sequence).min(SCAN as u64);
            let loaded = &mut bytes[..(count * DESCRIPTOR_BYTES) as usize];
            self.medium.load(self.descriptor_at(slot), loaded)?;
            let lap = (sequence / self.lines) as u32;
            let words = loaded.as_chunks::<8>().0.as_chunks::<2>().0.iter().map(|words| words.map(u64::from_le_bytes));
            descriptors.clear();
            descriptors.extend(words.take_while(|[owner, _]| (owner >> 32) as u32 == lap).map(|[owner, place]| Descriptor {
                transaction: owner as u32,
                line: place & !HIDDEN,
                is_hidden: place & HIDDEN != 0,
            }));
            some(sequence, &descriptors)?;
            sequence += descriptors.len() as u64;
            if (descriptors.len() as u64) < count {
                break;
            }
        }
        Ok(sequence)
    }

    /// The TxID of an entry of the TxLog.
    pub(super) fn entry(&self, number: u64) -> Result<u32, DeviceError> {
        let mut bytes = [0; ENTRY_BYTES as usize];
        self.medium.load(self.entry_at(number), &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub(super) fn set_entry(&self, number: u64, transaction: u32) -> Result<(), DeviceError> {
        self.medium.store(self.entry_at(number), &transaction.to_le_bytes())
    }

    fn load_word(&self, at: u64) -> Result<u64, DeviceError> {
        let mut bytes = [0; 8];
        self.medium.load(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn entry_at(&self, number: u64) -> u64 {
        self.offset + HEADER_BYTES + number % self.entries * ENTRY_BYTES
    }

    fn descriptor_at(&self, slot: u64) -> u64 {
        self.offset + HEADER_BYTES + self.entries * ENTRY_BYTES + slot * DESCRIPTOR_BYTES
    }

    fn line_at(&self, slot: u32) -> u64 {
        let lines = (HEADER_BYTES + self.entries * ENTRY_BYTES + self.lines * DESCRIPTOR_BYTES).next_multiple_of(4096);
        self.offset + lines + u64::from(slot) * LINE_BYTES as u64
    }
}

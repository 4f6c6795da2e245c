//! Derives choices from bytes. It never fails: after the end of the bytes every choice is the first one. So every input is valid, and a
//! short input means a short run.

/// Bytes that are consumed as choices.
#[derive(Debug, Clone)]
pub struct Input<'b>(&'b [u8]);

impl<'b> Input<'b> {
    /// Starts at the first byte.
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// Whether all bytes are consumed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// At most `length` bytes.
    pub fn take(&mut self, length: usize) -> &'b [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// An integer of `bytes` bytes.
    pub fn number(&mut self, bytes: usize) -> u64 {
        let mut word = [0; 8];
        let taken = self.take(bytes.min(8));
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.number(1) as u8
    }

    /// An integer of two bytes.
    pub fn short(&mut self) -> u16 {
        self.number(2) as u16
    }

    /// An integer below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        let number = if limit > 256 { self.number(3) } else { self.number(1) };
        number as usize % limit.max(1)
    }

    /// One of several items; the list must not be empty.
    pub fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }

    /// True once in `one_in`; false after the end of the bytes.
    pub fn one_in(&mut self, one_in: u8) -> bool {
        !self.is_empty() && self.byte() % one_in.max(1) == one_in.max(1) - 1
    }

    /// An integer of this size that is likely to be a boundary value: zero, the maximum, one off, a power of two, or any value.
    pub fn border(&mut self, bytes: usize) -> u64 {
        let mask = if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 };
        let value = match self.below(8) {
            0 => 0,
            1 => 1,
            2 => mask,
            3 => mask >> 1,
            4 => 1_u64 << self.below(8 * bytes.min(8)),
            5 => (1_u64 << self.below(8 * bytes.min(8))).wrapping_sub(1),
            6 => self.byte().into(),
            _ => self.number(bytes),
        };
        value & mask
    }
}

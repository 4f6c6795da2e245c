//! Reads a message piece by piece, never beyond its end.

use std::mem::size_of;

use zerocopy::FromBytes;

/// The message length does not match its parts, or a string has no NUL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The rest of a message. Over the device it is in one piece; over io_uring its fixed part is separate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    fixed: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(fixed: &'a [u8], rest: &'a [u8]) -> Self {
        Self { fixed, rest }
    }

    /// The next bytes; no piece spans both parts.
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let part = if self.fixed.is_empty() { &mut self.rest } else { &mut self.fixed };
        let (taken, left) = part.split_at_checked(count).ok_or(Malformed)?;
        *part = left;
        Ok(taken)
    }

    /// A kernel structure.
    pub(crate) fn structure<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        T::read_from_bytes(self.take(size_of::<T>())?).map_err(|_| Malformed)
    }

    /// A string up to its NUL, which is skipped.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let part = if self.fixed.is_empty() { self.rest } else { self.fixed };
        let length = part.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
        let taken = self.take(length + 1)?;
        taken.get(..length).ok_or(Malformed)
    }

    /// A non-empty string: the name of an entry or attribute.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        self.string().and_then(|name| if name.is_empty() { Err(Malformed) } else { Ok(name) })
    }

    /// Removes and returns the last bytes.
    pub(crate) fn take_end(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let part = if self.rest.is_empty() { &mut self.fixed } else { &mut self.rest };
        let start = part.len().checked_sub(count).ok_or(Malformed)?;
        let (left, taken) = part.split_at_checked(start).ok_or(Malformed)?;
        *part = left;
        Ok(taken)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fixed.is_empty() && self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_the_same_in_one_piece_and_in_two() {
        let bytes = [7, 0, 0, 0, b'a', b'b', 0, 0, 9];
        for (fixed, rest) in [bytes.split_at(9), bytes.split_at(4), bytes.split_at(0)] {
            let mut cursor = Cursor::new(fixed, rest);
            assert_eq!(cursor.take_end(1), Ok(&[9][..]));
            assert_eq!(cursor.structure::<u32>(), Ok(u32::from_ne_bytes([7, 0, 0, 0])));
            assert_eq!(cursor.name(), Ok(&b"ab"[..]));
            assert_eq!(cursor.name(), Err(Malformed), "no name is empty");
            assert!(cursor.is_empty());
        }
    }

    #[test]
    fn nothing_is_read_past_the_end() {
        let mut cursor = Cursor::new(b"abc", b"");
        assert_eq!((cursor.take(4), cursor.string(), cursor.take_end(4)), (Err(Malformed), Err(Malformed), Err(Malformed)));
        assert_eq!(cursor.structure::<u64>(), Err(Malformed));
        assert_eq!(cursor.take(3), Ok(&b"abc"[..]));
    }
}

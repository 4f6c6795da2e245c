//! Entries of a directory in a data area: each 24 bytes (inode 8, cookie 8, kind 1, zero 1, length of the name 2, zero 4), the name, and zeros up
//! to a multiple of 8.

use crate::Malformed;

const HEAD_BYTES: usize = 24;
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// Most bytes of an entry: a listing that leaves room for one more has reached the end, unless it is empty for want of room.
pub const LISTED_BYTES_MAX: usize = (HEAD_BYTES + NAME_BYTES_MAX).next_multiple_of(8);

/// An entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Its inode.
    pub inode: u64,
    /// Listing goes on behind the entry from here.
    pub cookie: u64,
    /// Type of the file: the `DT_` number of getdents64(2).
    pub kind: u8,
    /// Its name.
    pub name: &'a [u8],
}

/// What comes with the answer to an open, the first entries of a directory or a whole small file: 0 number of bytes (4), 4 two bits: whether they are
/// all, and whether the open is known; zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstListed {
    /// Number of bytes.
    pub bytes: u32,
    /// There are no others.
    pub are_all: bool,
    /// The open is known as well: who finds the words of the answer as they were would be answered alike, and may take the file that he has.
    pub is_open_known: bool,
}

impl FirstListed {
    /// As the number in an answer.
    pub fn encode(self) -> u64 {
        u64::from(self.bytes) | u64::from(self.are_all) << 32 | u64::from(self.is_open_known) << 33
    }

    /// From such a number; none where nothing came, or nothing that a daemon says.
    pub fn decode(number: u64) -> Option<Self> {
        let (bytes, are_all, is_open_known) = (number as u32, number >> 32 & 1 == 1, number >> 33 & 1 == 1);
        (number >> 34 == 0 && (bytes > 0 || is_open_known)).then_some(Self { bytes, are_all, is_open_known })
    }
}

/// Collects entries up to a length.
#[derive(Debug)]
pub struct EntryWriter {
    bytes: Vec<u8>,
    room: usize,
}

impl EntryWriter {
    /// For a buffer of this length.
    pub fn new(room: usize) -> Self {
        Self { bytes: Vec::new(), room }
    }

    /// Appends an entry; false if it does not fit.
    pub fn push(&mut self, entry: &Listed<'_>) -> bool {
        let end = (self.bytes.len() + HEAD_BYTES + entry.name.len()).next_multiple_of(8);
        if end > self.room || entry.name.len() > NAME_BYTES_MAX {
            return false;
        }
        self.bytes.extend_from_slice(&entry.inode.to_le_bytes());
        self.bytes.extend_from_slice(&entry.cookie.to_le_bytes());
        let [low, high] = (entry.name.len() as u16).to_le_bytes();
        self.bytes.extend_from_slice(&[entry.kind, 0, low, high, 0, 0, 0, 0]);
        self.bytes.extend_from_slice(entry.name);
        self.bytes.resize(end, 0);
        true
    }

    /// What was collected.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The name of so many bytes that begins there; none if they are cut off.
pub(crate) fn name_of(bytes: &[u8], length: usize) -> Result<Option<&[u8]>, Malformed> {
    if !(1..=NAME_BYTES_MAX).contains(&length) {
        return Err(Malformed::Field("an entry without a name, or with one that is too long"));
    }
    match bytes.get(..length) {
        Some(name) if name.contains(&0) || name.contains(&b'/') => Err(Malformed::Field("a name that no file has")),
        name => Ok(name),
    }
}

/// Takes entries out of bytes that were copied from the data area ([MSG4] of `lib.rs`).
#[derive(Debug, Clone)]
pub struct Listing<'a>(&'a [u8]);

impl<'a> Listing<'a> {
    /// Of as many bytes as the daemon returned.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self) -> Result<Listed<'a>, Malformed> {
        let cut = Malformed::Field("a listing that is cut off");
        let (head, rest) = self.0.split_first_chunk::<HEAD_BYTES>().ok_or(cut)?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| head[at + index]));
        let length = usize::from(u16::from_le_bytes([head[18], head[19]]));
        let name = name_of(rest, length)?.ok_or(cut)?;
        self.0 = self.0.get((HEAD_BYTES + length).next_multiple_of(8)..).ok_or(cut)?;
        Ok(Listed { inode: long(0), cookie: long(8), kind: head[16], name })
    }
}

impl<'a> Iterator for Listing<'a> {
    type Item = Result<Listed<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.take();
        if entry.is_err() {
            self.0 = &[];
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_first_survives_its_number() {
        for (bytes, are_all, is_open_known) in [(1, false, false), (u32::MAX, true, false), (0, false, true), (7, true, true)] {
            let first = FirstListed { bytes, are_all, is_open_known };
            assert_eq!(FirstListed::decode(first.encode()), Some(first));
        }
        assert!([0, 1 << 32, 1 | 1 << 34, u64::MAX].iter().all(|number| FirstListed::decode(*number).is_none()));
    }
}

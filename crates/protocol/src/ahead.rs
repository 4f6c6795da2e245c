//! Answers ahead of their questions in a data area: attributes of further names of a directory, each with what it depends on. Each has 16
//! bytes (length of the name 2, number of version words 2, zero 4, sum of their values 8), the attributes, the indexes of the words (4 each), the
//! name, and zeros up to a multiple of 8.

use tandemfs_ring::{ATTRIBUTE_WORDS, Attributes, Seen};

use crate::Malformed;
use crate::listing::{NAME_BYTES_MAX, name_of};

const HEAD_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 8 * ATTRIBUTE_WORDS;

/// Attributes of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foretold<'a> {
    /// The name in its directory.
    pub name: &'a [u8],
    /// What stat(2) of it shows.
    pub attributes: Attributes,
    /// What that depends on.
    pub seen: Seen,
}

/// Collects answers up to a length.
#[derive(Debug)]
pub struct AheadWriter {
    bytes: Vec<u8>,
    room: usize,
}

impl AheadWriter {
    /// For a buffer of this length.
    pub fn new(room: usize) -> Self {
        Self { bytes: Vec::new(), room }
    }

    /// Appends an answer; false if it does not fit.
    pub fn push(&mut self, answer: &Foretold<'_>) -> bool {
        let (indexes, sum) = answer.seen.parts();
        let end = self.bytes.len() + HEAD_BYTES + ATTRIBUTE_BYTES + 4 * indexes.len() + answer.name.len();
        let end = end.next_multiple_of(8);
        if end > self.room || answer.name.len() > NAME_BYTES_MAX {
            return false;
        }
        self.bytes.extend_from_slice(&(answer.name.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&(indexes.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&sum.to_le_bytes());
        answer.attributes.to_words().iter().for_each(|word| self.bytes.extend_from_slice(&word.to_le_bytes()));
        indexes.iter().for_each(|index| self.bytes.extend_from_slice(&index.to_le_bytes()));
        self.bytes.extend_from_slice(answer.name);
        self.bytes.resize(end, 0);
        true
    }

    /// What was collected.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Takes answers out of bytes that were copied from the data area ([MSG4] of `lib.rs`).
#[derive(Debug, Clone)]
pub struct Ahead<'a>(&'a [u8]);

impl<'a> Ahead<'a> {
    /// Of as many bytes as the daemon returned.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self) -> Result<Foretold<'a>, Malformed> {
        let cut = Malformed::Field("answers that are cut off");
        let (head, rest) = self.0.split_first_chunk::<HEAD_BYTES>().ok_or(cut)?;
        let [name_length, count] = [0, 2].map(|at| usize::from(u16::from_le_bytes([head[at], head[at + 1]])));
        let sum = u64::from_le_bytes(std::array::from_fn(|index| head[8 + index]));
        let (attributes, rest) = rest.split_first_chunk::<ATTRIBUTE_BYTES>().ok_or(cut)?;
        let (words, _) = attributes.as_chunks::<8>();
        let attributes = Attributes::of_words(std::array::from_fn(|index| u64::from_le_bytes(words[index])));
        let (indexes, rest) = rest.split_at_checked(4 * count).ok_or(cut)?;
        let (indexes, _) = indexes.as_chunks::<4>();
        let seen = Seen::found(count as u32, sum, |index| u32::from_le_bytes(indexes[index]));
        let name = name_of(rest, name_length)?.ok_or(cut)?;
        let whole = (HEAD_BYTES + ATTRIBUTE_BYTES + 4 * count + name_length).next_multiple_of(8);
        self.0 = self.0.get(whole..).ok_or(cut)?;
        Ok(Foretold { name, attributes, seen })
    }
}

impl<'a> Iterator for Ahead<'a> {
    type Item = Result<Foretold<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let answer = self.take();
        if answer.is_err() {
            self.0 = &[];
        }
        Some(answer)
    }
}

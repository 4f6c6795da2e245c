//! Requests and answers. The ring carries typed fields; what an operation does with them, it does not know. A node, a handle, an operation
//! or an error is a number here.

use crate::layout::{ARGUMENTS, NAME_BYTES_MAX, NAMES_BYTES, Range, slot};

/// A request: what a client fills in, and the daemon's private, validated copy of it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// Which operation.
    pub operation: u16,
    /// Flags of the operation.
    pub flags: u32,
    /// The inode.
    pub node: u64,
    /// An open file.
    pub handle: u64,
    /// Where in the file.
    pub offset: u64,
    /// How much.
    pub length: u64,
    /// Parts of the data area.
    pub ranges: [Range; 2],
    /// Further numbers.
    pub arguments: [u64; ARGUMENTS],
    /// Names.
    pub names: Names,
}

/// Two names, one behind the other. An empty one is none.
#[derive(Clone)]
pub struct Names {
    bytes: [u8; NAMES_BYTES],
    lengths: [u16; 2],
}

impl Default for Names {
    fn default() -> Self {
        Self { bytes: [0; NAMES_BYTES], lengths: [0; 2] }
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        [0, 1].iter().all(|index| self.get(*index) == other.get(*index))
    }
}

impl Eq for Names {}

impl std::fmt::Debug for Request {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Request")
            .field("operation", &self.operation)
            .field("flags", &self.flags)
            .field("node", &self.node)
            .field("handle", &self.handle)
            .field("offset", &self.offset)
            .field("length", &self.length)
            .field("ranges", &self.ranges)
            .field("arguments", &self.arguments)
            .field("names", &[0, 1].map(|index| String::from_utf8_lossy(self.names.get(index))))
            .finish()
    }
}

/// A name is longer than 255 bytes. Longer texts go by the data area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name of {bytes} bytes is longer than {NAME_BYTES_MAX}")]
pub struct NameTooLong {
    /// Its length.
    pub bytes: usize,
}

impl Names {
    /// Both names.
    ///
    /// # Errors
    /// [`NameTooLong`].
    pub fn new(first: &[u8], second: &[u8]) -> Result<Self, NameTooLong> {
        let mut names = Self::default();
        names.set(first, second)?;
        Ok(names)
    }

    /// Takes other names in their place.
    ///
    /// # Errors
    /// [`NameTooLong`].
    pub fn set(&mut self, first: &[u8], second: &[u8]) -> Result<(), NameTooLong> {
        if let Some(bytes) = [first.len(), second.len()].into_iter().find(|bytes| *bytes > NAME_BYTES_MAX) {
            return Err(NameTooLong { bytes });
        }
        self.lengths = [first.len() as u16, second.len() as u16];
        let (head, tail) = self.bytes.split_at_mut(first.len());
        head.copy_from_slice(first);
        tail[..second.len()].copy_from_slice(second);
        Ok(())
    }

    /// A name, by index 0 or 1; empty if there is none.
    pub fn get(&self, index: usize) -> &[u8] {
        let [first, second] = self.lengths.map(usize::from);
        let range = if index == 0 { 0..first } else { first..first + second };
        &self.bytes[range]
    }
}

impl Request {
    /// A request without arguments and names.
    pub fn new(operation: u16) -> Self {
        Self { operation, ..Self::default() }
    }

    /// Makes it as [`Request::new`] does, in place.
    pub fn reset(&mut self, operation: u16) {
        (self.operation, self.flags) = (operation, 0);
        [self.node, self.handle, self.offset, self.length] = [0; 4];
        (self.ranges, self.arguments) = ([Range::default(); 2], [0; ARGUMENTS]);
        self.names.lengths = [0; 2];
    }

    /// The first line: seven words.
    pub(crate) fn head(&self) -> [u64; slot::HEAD_WORDS] {
        let [first, second] = self.names.lengths.map(u64::from);
        let shape = u64::from(self.operation) | (self.more_used() as u64) << 16 | first << 32 | second << 48;
        [shape, self.flags.into(), self.node, self.handle, self.offset, self.length, self.ranges[0].to_word()]
    }

    /// The second line.
    pub(crate) fn more(&self) -> [u64; slot::MORE_WORDS] {
        let mut words = [0; slot::MORE_WORDS];
        words[0] = self.ranges[1].to_word();
        words[1..].copy_from_slice(&self.arguments);
        words
    }

    /// Words of the second line up to the last that is not zero.
    pub(crate) fn more_used(&self) -> usize {
        self.more().iter().rposition(|word| *word != 0).map_or(0, |last| last + 1)
    }

    /// The names as words, up to the last byte.
    pub(crate) fn name_words(&self) -> impl Iterator<Item = u64> {
        let count = usize::from(self.names.lengths[0] + self.names.lengths[1]).div_ceil(8);
        self.names.bytes.as_chunks().0.iter().take(count).map(|word| u64::from_le_bytes(*word))
    }

    /// Takes over a first line. Returns how many words of the second line and of the names are in use, or what is wrong with them.
    pub(crate) fn set_head(&mut self, words: [u64; slot::HEAD_WORDS], names_checked: bool) -> Result<Used, &'static str> {
        let [shape, flags, node, handle, offset, length, range] = words;
        let [operation, more, first, second] = [0, 16, 32, 48].map(|shift| (shape >> shift) as u16);
        if usize::from(more) > slot::MORE_WORDS {
            return Err("more arguments than there are");
        }
        if names_checked && usize::from(first.max(second)) > NAME_BYTES_MAX {
            return Err("a name that is too long");
        }
        if flags >> 32 != 0 {
            return Err("a field that must be zero");
        }
        self.operation = operation;
        self.flags = flags as u32;
        [self.node, self.handle, self.offset, self.length] = [node, handle, offset, length];
        self.ranges = [Range::of_word(range), Range::default()];
        self.arguments = [0; ARGUMENTS];
        self.names.lengths = [first, second];
        let names = (usize::from(first) + usize::from(second)).div_ceil(8);
        Ok(Used { more: more.into(), names: names.min(NAMES_BYTES / 8) })
    }

    pub(crate) fn set_more(&mut self, index: usize, word: u64) {
        match index.checked_sub(1) {
            None => self.ranges[1] = Range::of_word(word),
            Some(index) => self.arguments[index] = word,
        }
    }

    pub(crate) fn set_name_word(&mut self, index: usize, word: u64) {
        self.names.bytes.as_chunks_mut().0[index] = word.to_le_bytes();
    }
}

/// Words behind the first line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) more: usize,
    pub(crate) names: usize,
}

/// A time: seconds since 1970 and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// Words that attributes take in shared memory.
pub const ATTRIBUTE_WORDS: usize = slot::ATTRIBUTE_WORDS;

/// What `stat` shows of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Attributes {
    pub node: u64,
    pub size_bytes: u64,
    pub space_512: u64,
    pub mode: u32,
    pub links: u32,
    pub user: u32,
    pub group: u32,
    pub device_number: u64,
    pub block_bytes: u32,
    pub flags: u32,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub created: Time,
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn split(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Attributes {
    /// In `flags`: the inode has no extended attribute, nor an access control list.
    pub const NOTHING_EXTENDED: u32 = 1;

    /// As words of shared memory.
    pub fn to_words(self) -> [u64; ATTRIBUTE_WORDS] {
        let times = [self.accessed, self.modified, self.changed, self.created];
        let [accessed, modified, changed, created] = times.map(|time| time.seconds.cast_unsigned());
        let [a, m, c, b] = times.map(|time| time.nanoseconds);
        let (mode, owner) = (pair(self.mode, self.links), pair(self.user, self.group));
        let block = pair(self.block_bytes, self.flags);
        let (node, size, space) = (self.node, self.size_bytes, self.space_512);
        [node, size, space, mode, owner, self.device_number, block, accessed, modified, changed, created, pair(a, m), pair(c, b)]
    }

    /// Of such words.
    pub fn of_words(words: [u64; ATTRIBUTE_WORDS]) -> Self {
        let [node, size_bytes, space_512, mode, owner, device_number, block, a, m, c, b, first, second] = words;
        let ((mode, links), (user, group), (block_bytes, flags)) = (split(mode), split(owner), split(block));
        let time = |seconds: u64, nanoseconds| Time { seconds: seconds.cast_signed(), nanoseconds };
        let (accessed, modified) = (time(a, split(first).0), time(m, split(first).1));
        let (changed, created) = (time(c, split(second).0), time(b, split(second).1));
        Self {
            node,
            size_bytes,
            space_512,
            mode,
            links,
            user,
            group,
            device_number,
            block_bytes,
            flags,
            accessed,
            modified,
            changed,
            created,
        }
    }
}

/// An answer. Longer ones are in the data area of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answer {
    /// 0, or the number of an error.
    pub error: u32,
    /// What the operation returns.
    pub value: u64,
    /// What it returns besides.
    pub further: u64,
    /// Of the inode that it concerns.
    pub attributes: Option<Attributes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_their_words() {
        let mut request = Request { flags: 7, node: 1, handle: 2, offset: 3, length: 4, ..Request::new(9) };
        request.ranges = [Range { start: 5, length: 6 }, Range { start: 7, length: 8 }];
        request.arguments[4] = 11;
        request.names = Names::new(&[b'a'; 255], &[b'b'; 255]).expect("both fit");
        let mut copy = Request::new(77);
        copy.arguments = [9; ARGUMENTS];
        let used = copy.set_head(request.head(), true).expect("valid");
        assert_eq!((used.more, used.names), (6, 64));
        request.more().iter().take(used.more).enumerate().for_each(|(index, word)| copy.set_more(index, *word));
        request.name_words().enumerate().for_each(|(index, word)| copy.set_name_word(index, word));
        assert_eq!(copy, request);
        assert_eq!((copy.names.get(0), copy.names.get(1)), (&[b'a'; 255][..], &[b'b'; 255][..]));
    }

    #[test]
    fn attributes_survive_their_words() {
        let words: [u64; slot::ATTRIBUTE_WORDS] = std::array::from_fn(|index| 0x0101_0101_0101_0101 * (index as u64 + 1));
        assert_eq!(Attributes::of_words(words).to_words(), words);
    }

    #[test]
    fn heads_that_do_not_fit_are_refused() {
        let refused = |head: [u64; 7]| Request::default().set_head(head, true).err();
        assert_eq!(refused([9 << 16, 0, 0, 0, 0, 0, 0]), Some("more arguments than there are"));
        assert_eq!(refused([256 << 32, 0, 0, 0, 0, 0, 0]), Some("a name that is too long"));
        assert_eq!(refused([256 << 48, 0, 0, 0, 0, 0, 0]), Some("a name that is too long"));
        assert_eq!(refused([0, 1 << 32, 0, 0, 0, 0, 0]), Some("a field that must be zero"));
        assert_eq!(Names::new(&[0; 256], b"").err(), Some(NameTooLong { bytes: 256 }));
    }
}

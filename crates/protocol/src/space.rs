//! What statfs(2) shows, in a data area: seven integers of 8 bytes.

use crate::Malformed;

/// Bytes of [`Space`] in a data area.
pub const SPACE_BYTES: usize = 56;

/// Space of the file system, in units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// Units in all.
    pub units: u64,
    /// Free units.
    pub free: u64,
    /// Units that are free for users.
    pub available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name.
    pub name_bytes_max: u64,
}

impl Space {
    /// As bytes.
    pub fn encode(&self) -> [u8; SPACE_BYTES] {
        let words = [self.unit_bytes, self.units, self.free, self.available, self.files, self.files_free, self.name_bytes_max];
        let mut bytes = [0; SPACE_BYTES];
        bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// [`Malformed`] for another length.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; SPACE_BYTES] = bytes.try_into().map_err(|_| Malformed::Field("space of another length"))?;
        let word = |index: usize| u64::from_le_bytes(bytes.as_chunks().0[index]);
        let [unit_bytes, units, free, available, files, files_free, name_bytes_max] = std::array::from_fn(word);
        Ok(Self { unit_bytes, units, free, available, files, files_free, name_bytes_max })
    }
}

//! Counters of a drive's whole life, in a page of the image between its header and the header's copy, where nothing else is. They are written from time
//! to time and when the drive is closed: a process that dies loses the last of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use tandemfs_device::MediaCounts;

/// Offset of the page in the file, in bytes.
const OFFSET: u64 = 64 << 10;
const WORD: usize = size_of::<u64>();

/// Counters of a drive's whole life.
#[derive(Debug)]
pub(crate) struct Lifetime {
    file: File,
    read_only: bool,
    /// From before the drive was opened.
    before: MediaCounts,
}

impl Lifetime {
    /// Of an image that was opened.
    pub(crate) fn open(file: File, read_only: bool) -> io::Result<Self> {
        let before = Self::read(&file)?;
        Ok(Self { file, read_only, before })
    }

    /// What an image says; zeros where it was never used.
    pub(crate) fn read(file: &File) -> io::Result<MediaCounts> {
        let mut bytes = [0; MediaCounts::WORDS * WORD];
        file.read_exact_at(&mut bytes, OFFSET)?;
        Ok(MediaCounts::from_words(bytes.chunks_exact(WORD).map(|word| word.try_into().map_or(0, u64::from_le_bytes))))
    }

    /// Stores everything up to now, given what was counted since the drive was opened. Nothing fails if it cannot be written.
    pub(crate) fn store(&self, opened: &MediaCounts) {
        if !self.read_only {
            let bytes: Vec<u8> = self.before.plus(opened).words().into_iter().flat_map(u64::to_le_bytes).collect();
            let _ = self.file.write_all_at(&bytes, OFFSET);
        }
    }
}

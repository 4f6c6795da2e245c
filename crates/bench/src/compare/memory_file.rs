//! Files in memory that serve as drives.
//!
//! [MF1] Their pages are touched once before any measurement and reused by the next run, so no run pays for the host's page allocation.
//!       Data of an earlier run remains, as on any used drive; each run formats again.
//! [MF2] [`MemoryFile::renew`] restores the file's initial content: zeros, and its initial data (an emulated drive's header).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::failure::{Failure, Result};
use crate::machine;

const PIECE_BYTES: usize = 1 << 20;

/// A file and its initial content. Removed when dropped.
pub struct MemoryFile {
    path: PathBuf,
    bytes: u64,
    beginnings: Vec<(u64, Vec<u8>)>,
}

impl MemoryFile {
    /// A new file of zeros with all pages touched ([MF1]).
    ///
    /// # Errors
    /// The file cannot be created, memory is full, or a signal came.
    pub fn new(path: PathBuf, bytes: u64) -> Result<Self> {
        let made = File::create_new(&path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        let file = Self { path, bytes, beginnings: Vec::new() };
        made.set_len(bytes)?;
        file.renew()?;
        Ok(file)
    }

    /// Adopts an existing file; [`Self::renew`] restores its present content. Its pages are touched ([MF1]). `path` is removed on drop.
    ///
    /// # Errors
    /// The file cannot be read, memory is full, or a signal came.
    pub fn adopt(path: PathBuf) -> Result<Self> {
        let file = File::open(&path)?;
        let mut adopted = Self { bytes: file.metadata()?.len(), path, beginnings: Vec::new() };
        let mut offset = 0;
        while let Some(start) = found(seek(&file, SeekFrom::Data(offset)))? {
            let end = found(seek(&file, SeekFrom::Hole(start)))?.unwrap_or(adopted.bytes);
            adopted.keep(&file, start, end)?;
            offset = end;
        }
        adopted.renew()?;
        Ok(adopted)
    }

    /// Saves the nonzero parts of a range. Preallocated space reads as zeros.
    fn keep(&mut self, file: &File, start: u64, end: u64) -> Result<()> {
        let mut buffer = vec![0; PIECE_BYTES];
        let mut offset = start;
        while offset < end {
            let piece = &mut buffer[..PIECE_BYTES.min((end - offset) as usize)];
            file.read_exact_at(piece, offset)?;
            for (index, page) in piece.chunks(4096).enumerate() {
                if page.iter().any(|byte| *byte != 0) {
                    self.beginnings.push((offset + index as u64 * 4096, page.to_vec()));
                }
            }
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes zeros everywhere, then the initial content ([MF2]).
    ///
    /// # Errors
    /// The memory is full, or a signal came.
    pub fn renew(&self) -> Result<()> {
        let file = File::options().write(true).open(&self.path)?;
        let zeros = vec![0; PIECE_BYTES];
        for offset in (0..self.bytes).step_by(PIECE_BYTES) {
            machine::check()?;
            file.write_all_at(&zeros[..PIECE_BYTES.min((self.bytes - offset) as usize)], offset)?;
        }
        self.beginnings.iter().try_for_each(|(offset, bytes)| file.write_all_at(bytes, *offset))?;
        Ok(())
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        let _it_may_be_gone = std::fs::remove_file(&self.path);
    }
}

/// ENXIO (no more data or holes) is a valid answer.
fn found(result: std::result::Result<u64, Errno>) -> Result<Option<u64>> {
    match result {
        Ok(offset) => Ok(Some(offset)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_file_is_as_it_began() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
        let path = directory.path().join("drive");
        let made = File::create_new(&path).expect("made");
        made.set_len(3 * PIECE_BYTES as u64 + 100).expect("sized");
        made.write_all_at(b"header", 4096).expect("written");
        made.write_all_at(b"trailer", 2 * PIECE_BYTES as u64).expect("written");
        let before = std::fs::read(&path).expect("read");

        let file = MemoryFile::adopt(path.clone()).expect("adopted");
        assert_eq!((file.bytes(), file.beginnings.len()), (before.len() as u64, 2));
        made.write_all_at(&[7; 100_000], 1000).expect("written");
        made.write_all_at(&[7; 100], 3 * PIECE_BYTES as u64).expect("written");
        file.renew().expect("renewed");
        assert!(std::fs::read(&path).expect("read") == before);
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_has_all_its_pages() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
        let file = MemoryFile::new(directory.path().join("drive"), 4 << 20).expect("made");
        assert_eq!(std::fs::metadata(file.path()).expect("there").blocks(), (4 << 20) / 512);
    }
}

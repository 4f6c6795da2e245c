//! Files in memory that serve as drives.
//!
//! [MF1] Their pages are touched once before any measurement and reused by the next run, so no run pays for the host's page allocation.
//!       Data of an earlier run remains, as on any used drive; each run formats again.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::machine;

const PIECE_BYTES: u64 = 1 << 20;

/// A file in memory. Removed when dropped.
pub struct MemoryFile {
    path: PathBuf,
    bytes: u64,
}

impl MemoryFile {
    /// A new file of zeros with all pages touched ([MF1]).
    ///
    /// # Errors
    /// The file cannot be created, memory is full, or a signal came.
    pub fn new(path: PathBuf, bytes: u64) -> Result<Self> {
        let made = File::create_new(&path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        made.set_len(bytes)?;
        Self::adopt(path)
    }

    /// An existing file, whose pages are touched ([MF1]). `path` is removed on drop.
    ///
    /// # Errors
    /// The file cannot be read, memory is full, or a signal came.
    pub fn adopt(path: PathBuf) -> Result<Self> {
        let file = File::options().read(true).write(true).open(&path)?;
        let adopted = Self { path, bytes: file.metadata()?.len() };
        let mut buffer = vec![0; PIECE_BYTES as usize];
        for offset in (0..adopted.bytes).step_by(PIECE_BYTES as usize) {
            machine::check()?;
            let piece = &mut buffer[..PIECE_BYTES.min(adopted.bytes - offset) as usize];
            file.read_exact_at(piece, offset)?;
            file.write_all_at(piece, offset)?;
        }
        Ok(adopted)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        let _it_may_be_gone = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_has_all_its_pages_and_keeps_its_content() {
        let directory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
        let path = directory.path().join("drive");
        let made = File::create_new(&path).expect("made");
        made.set_len(3 * PIECE_BYTES + 4096).expect("sized");
        made.write_all_at(b"trailer", 2 * PIECE_BYTES).expect("written");
        let before = std::fs::read(&path).expect("read");
        let adopted = MemoryFile::adopt(path.clone()).expect("adopted");
        assert!(std::fs::read(&path).expect("read") == before && adopted.bytes() == before.len() as u64);
        let made = MemoryFile::new(directory.path().join("other"), 4 << 20).expect("made");
        for file in [&adopted, &made] {
            assert_eq!(std::fs::metadata(file.path()).expect("there").blocks(), file.bytes() / 512);
        }
        drop(adopted);
        assert!(!path.exists());
    }
}

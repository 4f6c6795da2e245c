//! Fills a file system temporarily, so that little space is left.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::scene::Scene;

/// With less space than this a mount of 256 MiB switches to its low-space behaviour: a sixteenth.
pub(crate) const LITTLE_BYTES: u64 = 16 << 20;

const PIECE_BYTES_MAX: u64 = 256 << 20;
const PIECE_BYTES_MIN: u64 = 64 << 10;

/// Takes all space for data but some, until it is dropped.
pub(crate) struct Filled {
    file: File,
    path: PathBuf,
}

impl Filled {
    /// Leaves this much.
    pub(crate) fn but(scene: &Scene<'_>, left_bytes: u64) -> Self {
        let path = scene.path("filler");
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).expect("opened");
        let filled = Self { file, path };
        // Cached data of other writers gets its space first; if some of it finds none, those writers get the error.
        match rustix::fs::syncfs(&filled.file) {
            Ok(()) | Err(Errno::NOSPC) => {}
            Err(error) => panic!("synchronising: {error}"),
        }
        let (mut taken, mut piece) = (0, PIECE_BYTES_MAX);
        while piece >= PIECE_BYTES_MIN {
            match rustix::fs::fallocate(&filled.file, FallocateFlags::empty(), taken, piece) {
                Ok(()) => taken += piece,
                Err(Errno::NOSPC) => piece /= 2,
                Err(error) => panic!("filling: {error}"),
            }
        }
        assert!(taken > left_bytes, "there were {taken} B free");
        filled.file.set_len(taken - left_bytes).expect("given back");
        rustix::fs::syncfs(&filled.file).expect("synced");
        filled
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        let _ = self.file.set_len(0);
        let _ = fs::remove_file(&self.path);
    }
}

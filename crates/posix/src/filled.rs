//! A file system with little space left, for a while.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::scene::Scene;

/// Less than this is left where a mount is to go over to what it does with little space: a sixteenth of 256 MiB.
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
        // What the kernel holds back takes its space first; that some of it finds none is an affair of those who wrote it.
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

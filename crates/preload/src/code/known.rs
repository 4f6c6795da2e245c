//! What was found in objects, for other processes of the same user: a file that `tandemfs run` makes. An object is known by its build ID, which
//! linkers make of its contents, and by how it is laid out; not by a path, which may lead to another file since it was loaded.
//!
//! The file is a table of words of eight bytes: a hash, whose last bit says what was found. A word is replaced by whatever comes next to its
//! place; zero is none. The file is believed if it is of the user whose process this is, and nobody else can write it.

use std::ffi::CStr;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::object::Object;
use crate::sys;

const WORD_BYTES: u64 = 8;
/// It changes with what is looked for.
const GENERATION: u32 = 1;

/// An open table.
pub(super) struct Known {
    file: i32,
    words: u64,
}

impl Drop for Known {
    fn drop(&mut self) {
        sys::close(self.file);
    }
}

impl Known {
    /// None if there is none that can be believed.
    pub(super) fn open(path: &CStr) -> Option<Self> {
        let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        // SAFETY: the path ends with NUL.
        let file = unsafe { sys::call(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0]) };
        let mut known = Self { file: i32::try_from(file).ok().filter(|file| *file >= 0)?, words: 0 };
        let mask = libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_UID | libc::STATX_SIZE;
        let found = sys::known(known.file, c"", libc::AT_EMPTY_PATH, mask)?;
        let is_private = u32::from(found.stx_mode) & (libc::S_IFMT | 0o022) == libc::S_IFREG && found.stx_uid == sys::effective_ids().0;
        known.words = found.stx_size / WORD_BYTES;
        (is_private && known.words > 0).then_some(known)
    }

    fn place(&self, key: u64) -> u64 {
        (key >> 1) % self.words * WORD_BYTES
    }

    /// What was found in the object of a key.
    pub(super) fn get(&self, key: u64) -> Option<bool> {
        let mut word = [0; WORD_BYTES as usize];
        let arguments = [self.file as usize, word.as_mut_ptr() as usize, word.len(), self.place(key) as usize, 0];
        // SAFETY: the kernel writes into the word, whose length it is told.
        let read = unsafe { sys::call(libc::SYS_pread64, arguments) };
        let word = u64::from_le_bytes(word);
        (read == WORD_BYTES as isize && word & !1 == key).then_some(word & 1 == 1)
    }

    pub(super) fn set(&self, key: u64, found: bool) {
        let word = (key | u64::from(found)).to_le_bytes();
        let arguments = [self.file as usize, word.as_ptr() as usize, word.len(), self.place(key) as usize, 0];
        // SAFETY: the kernel reads the word. If it is not written, it is found again.
        unsafe { sys::call(libc::SYS_pwrite64, arguments) };
    }
}

/// The key of an object, whose last bit is zero; none for objects that are looked through in each process. Short ones
/// have keys as well: the decoder's first instruction costs 0.6 ms, for its tables.
pub(super) fn key(object: &Object<'_>) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    (GENERATION, env!("CARGO_PKG_VERSION"), object.build_id()?).hash(&mut hasher);
    object.layout().for_each(|segment| segment.hash(&mut hasher));
    Some(hasher.finish() & !1).filter(|key| *key != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_table_keeps_what_was_found_and_is_of_one_user() {
        let path = std::env::temp_dir().join(format!("tandemfs-code-{}", std::process::id()));
        std::fs::write(&path, [0; 64]).expect("made");
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
        mode(0o600);
        let known = Known::open(&name).expect("open");
        assert_eq!((known.get(6), known.get(8)), (None, None));
        known.set(6, true);
        known.set(8, false);
        assert_eq!((known.get(6), known.get(8), known.get(6 + 16)), (Some(true), Some(false), None));
        known.set(6 + 16, false);
        assert_eq!((known.get(6), known.get(6 + 16)), (None, Some(false)), "of the same place");
        mode(0o622);
        assert!(Known::open(&name).is_none(), "others write it");
        mode(0o600);
        std::fs::write(&path, []).expect("cut");
        assert!(Known::open(&name).is_none() && known.get(8).is_none());
        std::fs::remove_file(&path).expect("removed");
        assert!(Known::open(&name).is_none());
    }
}

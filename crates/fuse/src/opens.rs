//! Which files are open by the mount, where programs may map files for stores past it.
//!
//! [FOP1] Such a mount answers OPEN, and so hears of each open, of CREATE too, until its RELEASE, which comes when nobody has the file open or
//!        mapped by it. It costs a request for each open and each end. Other mounts of this mode answer ENOSYS, and hear of none.
//! [FOP2] Whoever opens a file is counted first, and then it is asked whether the file is mapped for stores. Whoever maps it makes that known first,
//!        and then asks whether it is open. So where both come at once the mapping is refused, or the open goes past the kernel's cache, or both.
//! [FOP3] An open that goes past the cache does not count: its reads and writes are requests, and the kernel refuses to map it for all to see (ENODEV).
//!        It stays so until its RELEASE, whether the file is still mapped for stores or not. Pages that a private mapping of it brings in are dropped
//!        ([BS11] of `beside.rs`).

use std::collections::HashMap;

use tandemfs_format::InodeNumber;
use tandemfs_wire::{OpenFlags, Opened};

use crate::mutant::{self, Mutant};
use crate::notes::Shards;

/// Handles of opens that count, and of those past the cache.
const COUNTED: u64 = 2;
const PAST_THE_CACHE: u64 = 3;

/// Opens that count, by file.
#[derive(Debug, Default)]
pub(crate) struct Opens(Shards<HashMap<InodeNumber, u32>>);

impl Opens {
    /// A file is opened, with these flags if it is not mapped for stores ([FOP2]).
    pub(crate) fn open(&self, file: InodeNumber, flags: OpenFlags, is_mapped: impl FnOnce() -> bool) -> Opened {
        let count = || *self.0.of(file).lock().entry(file).or_default() += 1;
        let is_late = mutant::on(Mutant::OpenCountedLate);
        if !is_late {
            count();
        }
        if is_mapped() {
            if !is_late {
                self.release(file, COUNTED);
            }
            return Opened { handle: PAST_THE_CACHE, flags: OpenFlags::DIRECT_IO };
        }
        if is_late {
            count();
        }
        Opened { handle: COUNTED, flags }
    }

    /// An open has ended.
    pub(crate) fn release(&self, file: InodeNumber, handle: u64) {
        if handle == PAST_THE_CACHE && !mutant::on(Mutant::AllReleasesCounted) {
            return; // [FOP3]
        }
        let mut files = self.0.of(file).lock();
        let Some(count) = files.get_mut(&file) else { return };
        *count -= 1;
        if *count == 0 {
            files.remove(&file);
        }
    }

    /// Whether a file is open so that the kernel may keep pages of it.
    pub(crate) fn is_any(&self, file: InodeNumber) -> bool {
        self.0.of(file).lock().contains_key(&file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::is_caught;

    const FILE: InodeNumber = InodeNumber::new(7);

    fn an_open_is_counted_before_the_look() {
        let opens = Opens::default();
        let opened = opens.open(FILE, OpenFlags::KEEP_CACHE, || {
            assert!(opens.is_any(FILE), "who maps the file now would not see it");
            false
        });
        assert_eq!((opened.handle, opened.flags), (COUNTED, OpenFlags::KEEP_CACHE));
    }

    fn opens_past_the_cache_do_not_count() {
        let opens = Opens::default();
        let opened = |is_mapped| opens.open(FILE, OpenFlags::KEEP_CACHE, || is_mapped);
        let past = opened(true);
        assert_eq!((past.flags, opens.is_any(FILE)), (OpenFlags::DIRECT_IO, false));
        let (first, second) = (opened(false), opened(false));
        opens.release(FILE, past.handle);
        opens.release(FILE, first.handle);
        assert!(opens.is_any(FILE) && !opens.is_any(InodeNumber::new(8)));
        opens.release(FILE, second.handle);
        assert!(!opens.is_any(FILE));
    }

    #[test]
    fn opens_and_their_bugs() {
        is_caught(Mutant::OpenCountedLate, an_open_is_counted_before_the_look);
        is_caught(Mutant::AllReleasesCounted, opens_past_the_cache_do_not_count);
    }
}

//! Pages that were dropped while a WRITE of them was under way.
//!
//! A `write` through the page cache changes the cached page and lets go of it; then its WRITE comes. If the page is dropped in between, and a
//! READ brings it in again before the file system has the bytes of the WRITE, then the page has older bytes, and keeps them behind the reply.
//!
//! [OT1] A file is marked before the kernel is told to drop pages of it. READs that fill pages of a marked file are recorded before they
//!       read. The end of a drop ends the records of READs that began before the drop. Of READs that began during a drop it is not known
//!       whether their pages are left, so the drop is repeated.
//! [OT2] A WRITE through the page cache takes the mark after it changed the file, unless pages are still being dropped. The kernel holds the
//!       inode lock from the change of the page until the reply, so of one file there is one such WRITE, and the one whose page was
//!       dropped finds the mark. What is read from then on has its bytes.
//! [OT3] If pages of the WRITE are recorded, they are dropped before the reply. A drop waits for READs of the page, which is locked until
//!       they are answered.
//! [OT4] The page may be locked for this WRITE itself: if it is not whole there, and was taken away after the READ by the kernel itself (for
//!       want of memory) or by a drop that has not ended. Such a page has no older bytes. But then the READ came before the `write`, so the
//!       kernel gave it a lower number than the WRITE. If all READs have lower numbers, the reply waits [`BEFORE_WAITS_MAX`] at most, which
//!       is longer than a drop takes that waits for no WRITE. Otherwise it waits [`BEHIND_WAITS_MAX`] at most.
//! [OT6] While the kernel is told bytes for a page during a SETATTR ([DR4] of `data_requests.rs`), no drop of the file is under way and none begins. A drop
//!       holds the page locked until a WRITE of it is answered, which the kernel sends behind the SETATTR, and the bytes wait for the lock. Where a drop is
//!       under way no bytes are told.
//! [OT7] Who stores by a mapping holds a page locked while the kernel writes it back, which it does behind the SETATTR too. So the bytes of [OT6] are waited
//!       for [`BEFORE_WAITS_MAX`] at most. Then they are taken back, as later ones would come over what the program stores behind its `ftruncate`, and
//!       what it stored behind the end of the file before that stays in the page.
//! [OT5] A mark goes when nobody has the file any more, as [NT1] of `notes.rs` says. If too many are left (over half a million files), every
//!       file counts as marked ([NT2]), and every page of it as read again before the WRITE.
//!
//! Over io_uring the rules are the same, by reading the source of one kernel since 6.14. It was not tried there: the kernels at hand have
//! none of it, or it is off. [OT1] and [OT2] take nothing from the order in which requests of several queues arrive, and the inode lock does
//! not depend on the way. The number of [OT4] comes from one counter of the connection, whichever way a request goes, when it is queued; a
//! READ that was answered before the `write` was queued before its WRITE. With a counter for each CPU, as was proposed for Linux, numbers
//! would say nothing: then a reply may wait [`BEHIND_WAITS_MAX`] for nothing, or only [`BEFORE_WAITS_MAX`] for a READ behind it. A reply that
//! cannot be parked ([LT3] of `later.rs`, [UR6] of `wire/src/ring.rs`) comes before its pages are dropped, as that of a direct WRITE does.

use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tandemfs_format::InodeNumber;

use crate::mutant::{self, Mutant};
use crate::notes::{IsHeld, Note, Notes, Shards};
use crate::page_cache::{PAGE_BYTES, page_of};

/// How long a reply waits at most for a drop that may wait for the reply ([OT4]): where all READs have lower numbers than the WRITE.
pub(crate) const BEFORE_WAITS_MAX: Duration = Duration::from_millis(100);
/// The same where one has a higher number.
const BEHIND_WAITS_MAX: Duration = Duration::from_secs(10);
/// READs of a file that are told apart; more of them count as one.
const READS_MAX: usize = 64;

/// Marked files, and the READs of each since it was marked.
#[derive(Debug, Default)]
pub(crate) struct Overtaken(Shards<Files>);

#[derive(Debug, Default)]
struct Files {
    /// The last number of a READ, or of a WRITE that waits.
    last: u64,
    marked: Notes<Marked>,
    /// Pages that are to be dropped before a WRITE is answered.
    waiting: Vec<Waiting>,
}

#[derive(Debug, Default)]
struct Marked {
    reads: Vec<Recorded>,
    /// Drops that have not ended.
    dropping: u32,
    /// The kernel is told bytes for its pages ([OT6]).
    is_filled: bool,
}

impl Note for Marked {
    fn is_under_way(&self) -> bool {
        self.dropping > 0 || self.is_filled
    }
}

/// A READ, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Recorded {
    number: u64,
    /// The kernel's number of the request, the highest one of several.
    unique: u64,
    pages: Range<u64>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    file: InodeNumber,
    reads: Vec<Recorded>,
}

/// Pages of a WRITE that were read again ([OT3]).
#[derive(Debug)]
pub(crate) struct ReadAgain {
    overtaken: Arc<Overtaken>,
    number: u64,
    file: InodeNumber,
    parts: Vec<Range<u64>>,
    waits_max: Duration,
}

/// The pages of a range, as a range of bytes.
fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    page_of(bytes.start)..page_of(bytes.end.saturating_add(PAGE_BYTES - 1))
}

impl Overtaken {
    /// Pages of a file are about to be dropped ([OT1]). Returns which READs began before.
    pub(crate) fn drop_begins(&self, file: InodeNumber, is_held: &IsHeld<'_>) -> u64 {
        let shard = self.0.of(file);
        let is_filled =
            |files: &mut Files| files.marked.get_mut(file).is_some_and(|marked| marked.is_filled) && !mutant::on(Mutant::DropsWhileFilled);
        let mut files = shard.changed.wait_while(shard.lock(), is_filled).unwrap_or_else(PoisonError::into_inner); // [OT6]
        if let Some(marked) = files.marked.note(file, is_held) {
            marked.dropping += 1;
        }
        files.last
    }

    /// The kernel is about to be told bytes for a page, if no drop is under way ([OT6]).
    pub(crate) fn begin_filling(self: &Arc<Self>, file: InodeNumber, is_held: &IsHeld<'_>) -> Option<Filling> {
        let mut files = self.0.of(file).lock();
        let is_marked = files.marked.get(file).is_some();
        let marked = files.marked.note(file, is_held).filter(|marked| marked.dropping == 0 && !marked.is_filled)?;
        marked.is_filled = true;
        drop(files);
        Some(Filling { overtaken: Arc::clone(self), file, is_marked })
    }

    /// They are dropped, where READs that began before had filled them. Whether others began meanwhile.
    pub(crate) fn drop_ends(&self, file: InodeNumber, bytes: &Range<u64>, begun: u64) -> bool {
        let (shard, dropped) = (self.0.of(file), pages_of(bytes));
        let began_during = |read: &Recorded| read.number > begun && !mutant::on(Mutant::EndsAllReads);
        let is_left = |read: &Recorded| began_during(read) || read.pages.start < dropped.start || read.pages.end > dropped.end;
        let mut files = shard.lock();
        let is_read_again = files.marked.get_mut(file).is_some_and(|marked| {
            marked.dropping = marked.dropping.saturating_sub(1);
            marked.reads.retain(is_left);
            marked.reads.iter().any(|read| read.number > begun && read.pages.start < dropped.end && dropped.start < read.pages.end)
        });
        files.waiting.iter_mut().filter(|write| write.file == file).for_each(|write| write.reads.retain(is_left));
        drop(files);
        shard.changed.notify_all();
        is_read_again
    }

    /// The kernel has not dropped them.
    pub(crate) fn drop_fails(&self, file: InodeNumber) {
        if let Some(marked) = self.0.of(file).lock().marked.get_mut(file) {
            marked.dropping = marked.dropping.saturating_sub(1);
        }
    }

    /// Somebody has the file no more ([OT5]).
    pub(crate) fn forget(&self, file: InodeNumber, is_held: &IsHeld<'_>) {
        self.0.of(file).lock().marked.forget(file, is_held);
    }

    /// A READ of pages begins ([OT1]).
    pub(crate) fn read_begins(&self, file: InodeNumber, bytes: &Range<u64>, unique: u64) {
        let mut files = self.0.of(file).lock();
        let Files { last, marked, .. } = &mut *files;
        let Some(Marked { reads, .. }) = marked.get_mut(file).filter(|_| !mutant::on(Mutant::ReadsUnrecorded)) else { return };
        *last += 1;
        if reads.len() >= READS_MAX {
            let joined = reads.drain(..).reduce(|one, other| Recorded {
                number: other.number,
                unique: one.unique.max(other.unique),
                pages: one.pages.start.min(other.pages.start)..one.pages.end.max(other.pages.end),
            });
            reads.extend(joined);
        }
        reads.push(Recorded { number: *last, unique, pages: pages_of(bytes) });
    }

    /// A WRITE through the page cache has changed the file ([OT2]). The pages of it that were read again since pages were dropped, if any.
    pub(crate) fn written(self: &Arc<Self>, file: InodeNumber, bytes: &Range<u64>, unique: u64) -> Option<ReadAgain> {
        let mut files = self.0.of(file).lock();
        let written = pages_of(bytes);
        files.last += 1;
        let number = files.last;
        let is_full = files.marked.is_full();
        let mut reads = match files.marked.get_mut(file) {
            Some(marked) if marked.is_filled || marked.dropping > 0 && !mutant::on(Mutant::MarkTakenDuringDrop) => {
                std::mem::take(&mut marked.reads)
            }
            Some(_) => files.marked.remove(file).unwrap_or_default().reads,
            None if is_full => vec![Recorded { number, unique: 0, pages: written.clone() }], // [OT5]; perhaps all are locked for it
            None => return None,
        };
        for read in &mut reads {
            read.pages = read.pages.start.max(written.start)..read.pages.end.min(written.end);
        }
        reads.retain(|read| !read.pages.is_empty());
        if reads.is_empty() {
            return None;
        }
        let parts = reads.iter().map(|read| read.pages.clone()).collect();
        let is_behind = |read: &Recorded| read.unique > unique && !mutant::on(Mutant::AllReadsBefore);
        let waits_max = if reads.iter().any(is_behind) { BEHIND_WAITS_MAX } else { BEFORE_WAITS_MAX };
        files.waiting.push(Waiting { number, file, reads });
        Some(ReadAgain { overtaken: Arc::clone(self), number, file, parts, waits_max })
    }
}

/// Ends a filling ([OT6]).
#[derive(Debug)]
pub(crate) struct Filling {
    overtaken: Arc<Overtaken>,
    file: InodeNumber,
    /// The file was marked before.
    is_marked: bool,
}

impl Drop for Filling {
    fn drop(&mut self) {
        let shard = self.overtaken.0.of(self.file);
        let mut files = shard.lock();
        match files.marked.get_mut(self.file) {
            Some(marked) if self.is_marked || marked.dropping > 0 => marked.is_filled = false,
            // No page was dropped.
            _ => drop(files.marked.remove(self.file)),
        }
        drop(files);
        shard.changed.notify_all();
    }
}

impl ReadAgain {
    pub(crate) fn parts(&self) -> &[Range<u64>] {
        &self.parts
    }

    /// Waits until the pages are dropped, by whomever, or as long as it may ([OT4]). Whether they are.
    pub(crate) fn wait_until_dropped(&self) -> bool {
        let shard = self.overtaken.0.of(self.file);
        let is_cached = |files: &mut Files| files.waiting.iter().any(|write| write.number == self.number && !write.reads.is_empty());
        if mutant::on(Mutant::WaitsForNone) {
            return true;
        }
        let waited = shard.changed.wait_timeout_while(shard.lock(), self.waits_max, is_cached);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for ReadAgain {
    fn drop(&mut self) {
        self.overtaken.0.of(self.file).lock().waiting.retain(|write| write.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutant::is_caught;
    use crate::notes::{NOTES_MAX, SHARDS};

    const FILE: InodeNumber = InodeNumber::new(7);
    const OTHER: InodeNumber = InodeNumber::new(8);
    const HELD: fn(InodeNumber) -> bool = |_| true;

    fn parts(again: Option<ReadAgain>) -> Vec<Range<u64>> {
        again.iter().flat_map(|again| again.parts().to_vec()).collect()
    }

    fn dropped(overtaken: &Overtaken) {
        let begun = overtaken.drop_begins(FILE, &HELD);
        assert!(!overtaken.drop_ends(FILE, &(0..1 << 20), begun));
    }

    /// [OT6]
    fn drops_wait_for_bytes_that_the_kernel_is_told() {
        let overtaken = Arc::<Overtaken>::default();
        let begun = overtaken.drop_begins(FILE, &HELD);
        assert!(overtaken.begin_filling(FILE, &HELD).is_none(), "a drop is under way");
        overtaken.drop_ends(FILE, &(0..1 << 20), begun);
        let filling = overtaken.begin_filling(FILE, &HELD).expect("none is");
        assert!(overtaken.written(FILE, &(0..4096), 1).is_none() && overtaken.begin_filling(FILE, &HELD).is_none(), "the mark stays");
        let is_told = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                is_told.store(true, std::sync::atomic::Ordering::SeqCst);
                drop(filling);
            });
            dropped_other(&overtaken);
            let begun = overtaken.drop_begins(FILE, &HELD);
            assert!(is_told.load(std::sync::atomic::Ordering::SeqCst), "a drop began meanwhile");
            overtaken.drop_ends(FILE, &(0..1 << 20), begun);
        });
    }

    /// [OT6]
    #[test]
    fn bytes_that_the_kernel_was_told_leave_no_mark() {
        let overtaken = Arc::<Overtaken>::default();
        let filled_and_read = || {
            drop(overtaken.begin_filling(FILE, &HELD).expect("no drop"));
            overtaken.read_begins(FILE, &(0..4096), 2);
        };
        filled_and_read();
        assert!(overtaken.written(FILE, &(0..100), 3).is_none(), "nothing was dropped");
        dropped(&overtaken);
        filled_and_read();
        assert_eq!(parts(overtaken.written(FILE, &(0..100), 3)), vec![0..4096], "the mark of the drop stays");
    }

    fn dropped_other(overtaken: &Overtaken) {
        let begun = overtaken.drop_begins(OTHER, &HELD);
        overtaken.drop_ends(OTHER, &(0..1 << 20), begun);
    }

    #[test]
    fn drops_wait_for_bytes_and_their_bug() {
        is_caught(Mutant::DropsWhileFilled, drops_wait_for_bytes_that_the_kernel_is_told);
    }

    #[test]
    fn a_write_leaves_the_mark_of_a_drop_that_has_not_ended() {
        let overtaken = Arc::<Overtaken>::default();
        let begun = overtaken.drop_begins(FILE, &HELD);
        assert!(overtaken.written(FILE, &(0..100), 3).is_none());
        // The next WRITE has changed the page, and only now the kernel drops it.
        overtaken.read_begins(FILE, &(0..4096), 2);
        overtaken.drop_ends(FILE, &(8192..8193), begun);
        assert_eq!(parts(overtaken.written(FILE, &(0..100), 3)), vec![0..4096]);
        assert!(overtaken.written(FILE, &(0..100), 3).is_none(), "the mark is taken");
    }

    #[test]
    fn pages_read_since_a_drop_concern_one_write() {
        let overtaken = Arc::<Overtaken>::default();
        overtaken.read_begins(FILE, &(0..4096), 2);
        assert!(overtaken.written(FILE, &(0..100), 3).is_none(), "nothing was dropped");
        dropped(&overtaken);
        overtaken.read_begins(OTHER, &(0..4096), 2);
        overtaken.read_begins(FILE, &(4096..8192), 2);
        assert!(overtaken.written(OTHER, &(0..8192), 3).is_none());
        assert_eq!(parts(overtaken.written(FILE, &(100..5000), 3)), vec![4096..8192]);
        assert!(overtaken.written(FILE, &(100..5000), 3).is_none(), "the mark is taken");
        dropped(&overtaken);
        overtaken.read_begins(FILE, &(0..4096), 2);
        assert!(overtaken.written(FILE, &(4096..5000), 3).is_none(), "another page");
    }

    #[test]
    fn pages_that_were_dropped_again_do_not_count() {
        let overtaken = Arc::<Overtaken>::default();
        dropped(&overtaken);
        overtaken.read_begins(FILE, &(0..4096), 2);
        overtaken.read_begins(FILE, &(4096..8192), 2);
        let begun = overtaken.drop_begins(FILE, &HELD);
        overtaken.read_begins(FILE, &(8192..12_288), 2);
        assert!(overtaken.drop_ends(FILE, &(5000..1 << 20), begun), "to be repeated");
        assert_eq!(parts(overtaken.written(FILE, &(100..1 << 20), 3)), [0..4096, 8192..12_288]);
    }

    #[test]
    fn many_reads_become_one() {
        let overtaken = Arc::<Overtaken>::default();
        dropped(&overtaken);
        for page in 10..200 {
            overtaken.read_begins(FILE, &(page * 4096..(page + 1) * 4096), 2);
        }
        let parts = parts(overtaken.written(FILE, &(0..1 << 20), 3));
        let ends = (parts.iter().map(|part| part.start).min(), parts.iter().map(|part| part.end).max());
        assert!(parts.len() <= READS_MAX && ends == (Some(10 * 4096), Some(200 * 4096)), "{parts:?}");
    }

    #[test]
    fn a_write_waits_until_its_pages_are_dropped_by_whomever() {
        let overtaken = Arc::<Overtaken>::default();
        let before = overtaken.drop_begins(FILE, &HELD);
        overtaken.read_begins(FILE, &(0..8192), 2);
        let again = overtaken.written(FILE, &(0..10), 3).expect("read");
        overtaken.drop_ends(FILE, &(0..1 << 20), before);
        assert!(!again.wait_until_dropped(), "that drop began before the READ");
        let begun = overtaken.drop_begins(FILE, &HELD);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| again.wait_until_dropped());
            overtaken.drop_ends(OTHER, &(0..1 << 20), begun);
            overtaken.drop_ends(FILE, &(0..10), begun);
            assert!(waiter.join().expect("no panic"));
        });
        drop(again);
        assert!(overtaken.0.of(FILE).lock().waiting.is_empty());
    }

    /// [OT4]
    #[test]
    fn a_read_behind_the_write_is_waited_for_longer() {
        let waits = |uniques: &[u64]| {
            let overtaken = Arc::<Overtaken>::default();
            dropped(&overtaken);
            uniques.iter().for_each(|unique| overtaken.read_begins(FILE, &(0..4096), *unique));
            overtaken.written(FILE, &(0..100), 5).expect("read").waits_max
        };
        assert_eq!([waits(&[2]), waits(&[2, 4])], [BEFORE_WAITS_MAX; 2]);
        assert_eq!([waits(&[6]), waits(&[2, 6])], [BEHIND_WAITS_MAX; 2]);
    }

    #[test]
    fn bugs_are_caught() {
        is_caught(Mutant::ReadsUnrecorded, pages_read_since_a_drop_concern_one_write);
        is_caught(Mutant::EndsAllReads, pages_that_were_dropped_again_do_not_count);
        is_caught(Mutant::MarkTakenDuringDrop, a_write_leaves_the_mark_of_a_drop_that_has_not_ended);
        is_caught(Mutant::WaitsForNone, a_write_waits_until_its_pages_are_dropped_by_whomever);
        is_caught(Mutant::AllReadsBefore, a_read_behind_the_write_is_waited_for_longer);
    }

    /// [OT5]
    #[test]
    fn marks_of_files_that_nobody_has_make_room() {
        let of_one_shard = |index: usize| InodeNumber::new((index * SHARDS) as u64);
        for (is_held, is_read) in [(false, false), (true, true)] {
            let overtaken = Arc::<Overtaken>::default();
            for index in 1..=NOTES_MAX + 1 {
                let begun = overtaken.drop_begins(of_one_shard(index), &|_| is_held);
                overtaken.drop_ends(of_one_shard(index), &(0..1), begun);
            }
            let unknown = of_one_shard(NOTES_MAX + 9);
            assert_eq!(overtaken.written(unknown, &(5..10), 3).is_some(), is_read);
        }
        let overtaken = Arc::<Overtaken>::default();
        let begun = overtaken.drop_begins(FILE, &HELD);
        overtaken.forget(FILE, &|_| false);
        assert!(!overtaken.drop_ends(FILE, &(0..1), begun));
        overtaken.forget(FILE, &HELD);
        assert!(overtaken.0.of(FILE).lock().marked.is_noted(FILE));
        overtaken.forget(FILE, &|_| false);
        assert!(overtaken.0.of(FILE).lock().marked.is_empty());
    }
}

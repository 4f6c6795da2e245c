//! What is noted of files while clients reach them without the kernel: by the rules [BS3], [BS5], [BS7], [BS10], [BS13] and [BS14] of `beside.rs`, which says when
//! it is asked and changed.

use std::ops::Range;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;

use crate::mutant::{self, Mutant};
use crate::notes::{IsHeld, Note, Notes, Shards};

/// How long after the error of a direct WRITE the kernel may cut the file ([BS13]).
const CUT_WITHIN: Duration = Duration::from_secs(1);
/// How often a small file is left to the mount ([BS14]).
const LEFT_MAX: u8 = 4;
/// Size of the largest small file, in bytes.
pub(crate) const SMALL_BYTES_MAX: u64 = 64 << 10;

/// Files of which the kernel may have pages ([BS3]).
#[derive(Debug, Default)]
pub(crate) struct Noted(Shards<Files>);

#[derive(Debug, Default)]
struct Files {
    states: Notes<State>,
    /// Files of which the kernel has had pages ([BS7]).
    read: Notes<()>,
    /// Files that clients have changed ([BS5]). One that is not named where there is no more room counts as being changed now.
    changed: Notes<ByClients>,
    /// Direct WRITEs that have failed ([BS13]).
    failed: Vec<Failed>,
}

/// A direct WRITE that has failed.
#[derive(Debug)]
struct Failed {
    file: InodeNumber,
    thread: u32,
    bytes: Range<u64>,
    /// The kernel is told how far clients reach ([BS7]).
    is_told: bool,
    since: Instant,
}

/// What clients do to a file.
#[derive(Debug, Clone, Copy, Default)]
struct ByClients {
    under_way: u32,
    /// Of which file of the number the end is.
    generation: u32,
    /// The largest size that the file had after a change, or after a WRITE that was moved behind one.
    end: u64,
    /// A change has made it shorter, so the kernel's end may be behind the file's.
    is_cut: bool,
}

impl ByClients {
    fn reach(&mut self, size: u64, generation: u32) {
        let is_same = self.generation == generation;
        (self.end, self.is_cut) = if is_same { (self.end.max(size), self.is_cut) } else { (size, false) };
        self.generation = generation;
    }
}

impl Note for ByClients {
    fn is_under_way(&self) -> bool {
        self.under_way > 0
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    is_noted: bool,
    is_dropping: bool,
    /// How often clients were sent to the mount ([BS14]).
    left: u8,
}

impl Note for State {
    fn is_under_way(&self) -> bool {
        self.is_dropping
    }
}

impl Noted {
    /// Notes a file.
    pub(crate) fn note(&self, file: InodeNumber, is_held: &IsHeld<'_>) {
        let mut files = self.0.of(file).lock();
        files.read.note(file, is_held);
        if let Some(state) = files.states.note(file, is_held) {
            state.is_noted = true;
        }
    }

    /// Notes a file, and then has its pages dropped behind the READ or WRITE if a program has it mapped for stores ([BS11]): who maps a file looks at the
    /// note once it is mapped.
    pub(crate) fn note_and_drop_mapped(
        &self,
        file: InodeNumber,
        is_held: &IsHeld<'_>,
        is_mapped: impl FnOnce() -> bool,
        drop_behind: impl FnOnce(),
    ) {
        let asked_early = mutant::on(Mutant::MappedAskedBeforeNote);
        if !asked_early {
            self.note(file, is_held);
        }
        let is_mapped = is_mapped();
        if asked_early {
            self.note(file, is_held);
        }
        if is_mapped && !mutant::on(Mutant::MappedPagesKept) {
            drop_behind();
        }
    }

    /// Whether the kernel has had pages of a file.
    pub(crate) fn has_been_read(&self, file: InodeNumber) -> bool {
        self.0.of(file).lock().read.is_noted(file)
    }

    /// Somebody has the file no more ([BS10]).
    pub(crate) fn forget(&self, file: InodeNumber, is_held: &IsHeld<'_>) {
        let mut files = self.0.of(file).lock();
        files.states.forget(file, is_held);
        files.read.forget(file, is_held);
        files.changed.forget(file, is_held);
    }

    /// The kernel is told sizes of a file from now on ([BS7]).
    pub(crate) fn note_read(&self, file: InodeNumber, is_held: &IsHeld<'_>) {
        self.0.of(file).lock().read.note(file, is_held);
    }

    /// A client is about to change a file ([BS5]).
    pub(crate) fn change_begins(&self, file: InodeNumber, is_held: &IsHeld<'_>) {
        if let Some(by_clients) = self.0.of(file).lock().changed.note(file, is_held) {
            by_clients.under_way += 1;
        }
    }

    /// It has, and the file, which had the size `before`, has this size and generation; none if it is gone.
    pub(crate) fn change_ends(&self, file: InodeNumber, reached: Option<(u64, u32)>, before: u64) {
        let mut files = self.0.of(file).lock();
        let Some(by_clients) = files.changed.get_mut(file) else { return };
        by_clients.under_way = by_clients.under_way.saturating_sub(1);
        match reached {
            Some((size, generation)) => {
                by_clients.reach(size, generation);
                by_clients.is_cut |= size < before && !mutant::on(Mutant::CutsForgotten);
            }
            None if by_clients.under_way == 0 => drop(files.changed.remove(file)),
            None => {}
        }
    }

    /// From now on a client appends to a file by stores, so where it has reached is not known ([BS5]).
    pub(crate) fn appends_by_stores(&self, file: InodeNumber, generation: u32, is_held: &IsHeld<'_>) {
        if let Some(by_clients) = self.0.of(file).lock().changed.note(file, is_held) {
            by_clients.reach(u64::MAX, generation);
        }
    }

    /// A WRITE of the kernel went behind what clients have written, whereupon the file has this size and generation ([BS5]).
    pub(crate) fn is_moved(&self, file: InodeNumber, size: u64, generation: u32) {
        if let Some(by_clients) = self.0.of(file).lock().changed.get_mut(file) {
            by_clients.reach(size, generation);
        }
    }

    /// What clients may have written of a file ends before this; 0 if they have changed nothing.
    pub(crate) fn end_by_clients(&self, file: InodeNumber, generation: u32) -> u64 {
        let files = self.0.of(file).lock();
        match files.changed.get(file) {
            None if files.changed.is_full() => u64::MAX,
            None => 0,
            Some(by_clients) if by_clients.under_way > 0 && !mutant::on(Mutant::ChangesUnderWayIgnored) => u64::MAX,
            Some(by_clients) if by_clients.generation == generation || mutant::on(Mutant::GenerationIgnored) => by_clients.end,
            Some(_) => 0,
        }
    }

    /// A direct WRITE has failed ([BS13]).
    pub(crate) fn direct_write_failed(&self, file: InodeNumber, thread: u32, mut bytes: Range<u64>) {
        let mut files = self.0.of(file).lock();
        if files.changed.get(file).is_none() && !files.changed.is_full() {
            return; // the kernel's end is the file's
        }
        let is_of_call = |failed: &Failed| failed.file == file && failed.thread == thread && failed.since.elapsed() < CUT_WITHIN;
        if let Some(pieces) = files.failed.iter().find(|failed| is_of_call(failed)) {
            bytes = pieces.bytes.start.min(bytes.start)..pieces.bytes.end.max(bytes.end);
        }
        files.failed.retain(|failed| failed.thread != thread && failed.since.elapsed() < CUT_WITHIN);
        let is_told = files.read.is_noted(file);
        files.failed.push(Failed { file, thread, bytes, is_told, since: Instant::now() });
    }

    /// Whether a thread's SETATTR of a size is the kernel's behind such a WRITE ([BS13]).
    pub(crate) fn take_failed(&self, file: InodeNumber, thread: u32, size: u64) -> bool {
        let mut files = self.0.of(file).lock();
        let Some(at) = files.failed.iter().position(|failed| failed.file == file && failed.thread == thread) else { return false };
        let failed = files.failed.swap_remove(at);
        let is_end = if failed.is_told { size == failed.bytes.start } else { failed.bytes.contains(&size) };
        is_end && failed.since.elapsed() < CUT_WITHIN
    }

    /// Whether clients have made a file shorter since the kernel learned of it, or may have.
    fn have_clients_cut(&self, file: InodeNumber, generation: u32) -> bool {
        let files = self.0.of(file).lock();
        match files.changed.get(file) {
            None => files.changed.is_full(),
            Some(by_clients) => by_clients.is_cut && by_clients.generation == generation,
        }
    }

    /// Whether clients are why the kernel takes this offset for the end of a file of this size ([BS5]).
    pub(crate) fn is_wrong_end(&self, file: InodeNumber, generation: u32, (offset, is_direct): (u64, bool), size: u64) -> bool {
        if is_direct && offset > size && !mutant::on(Mutant::PiecesOutOfOrder) {
            return false;
        }
        offset < self.end_by_clients(file, generation) || offset > size && self.have_clients_cut(file, generation)
    }

    /// Whether nothing is noted and nobody drops pages.
    pub(crate) fn is_settled(&self, file: InodeNumber) -> bool {
        let files = self.0.of(file).lock();
        let state = files.states.get(file).copied().unwrap_or_default();
        let is_dropping = state.is_dropping && !mutant::on(Mutant::DroppingIsSettled);
        !(is_dropping || state.is_noted || files.states.is_full())
    }

    /// Whether a client is sent to the mount, which has pages of a file ([BS14]).
    pub(crate) fn leaves(&self, file: InodeNumber, is_small: impl FnOnce() -> bool) -> bool {
        if self.is_settled(file) {
            return false;
        }
        let is_small = is_small();
        let mut files = self.0.of(file).lock();
        let Some(state) = files.states.get_mut(file).filter(|_| is_small) else { return true };
        state.left = state.left.saturating_add(1);
        state.left <= LEFT_MAX
    }

    /// Drops the pages of a noted file by `drop_pages`; returns when nobody drops them any more and the note is gone.
    pub(crate) fn settle(&self, file: InodeNumber, drop_pages: impl FnOnce()) {
        let shard = self.0.of(file);
        let mut files = shard.lock();
        loop {
            let state = files.states.get(file).copied().unwrap_or_default();
            match (state.is_dropping, state.is_noted || files.states.is_full()) {
                (true, _) => files = shard.changed.wait(files).unwrap_or_else(PoisonError::into_inner),
                (false, false) => return,
                (false, true) => break,
            }
        }
        *files.states.note_in_any_case(file) = State { is_dropping: true, ..State::default() };
        drop(files);
        drop_pages();
        let mut files = shard.lock();
        match files.states.get_mut(file) {
            Some(state) if state.is_noted && !mutant::on(Mutant::UnnotedBehindDrop) => state.is_dropping = false,
            _ => drop(files.states.remove(file)),
        }
        drop(files);
        shard.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    use super::*;
    use crate::mutant::is_caught;
    use crate::notes::{NOTES_MAX, SHARDS};

    const FILE: InodeNumber = InodeNumber::new(7);
    const HELD: fn(InodeNumber) -> bool = |_| true;
    const NOT_HELD: fn(InodeNumber) -> bool = |_| false;

    #[test]
    fn a_note_costs_one_drop() {
        let (noted, drops) = (Noted::default(), AtomicUsize::new(0));
        let settle = |file| {
            noted.settle(file, || {
                drops.fetch_add(1, SeqCst);
            })
        };
        settle(FILE);
        assert_eq!(drops.load(SeqCst), 0);
        noted.note(FILE, &HELD);
        settle(InodeNumber::new(8));
        assert_eq!(drops.load(SeqCst), 0);
        settle(FILE);
        settle(FILE);
        assert_eq!(drops.load(SeqCst), 1);
        noted.settle(FILE, || panic!("no note"));
        noted.note(FILE, &HELD);
        noted.settle(FILE, || noted.note(FILE, &HELD)); // a READ that came meanwhile
        settle(FILE);
        assert_eq!(drops.load(SeqCst), 2);
    }

    #[test]
    fn too_many_notes_count_for_every_file() {
        let noted = Noted::default();
        let of_one_shard = |index: usize| InodeNumber::new((index * SHARDS) as u64);
        (1..=NOTES_MAX + 1).for_each(|index| noted.note(of_one_shard(index), &HELD));
        let drops = AtomicUsize::new(0);
        for _ in 0..2 {
            noted.settle(of_one_shard(NOTES_MAX + 1), || {
                drops.fetch_add(1, SeqCst);
            });
        }
        assert_eq!(drops.load(SeqCst), 2);
    }

    #[test]
    fn a_second_reader_waits_until_the_pages_are_written_back() {
        let noted = Arc::new(Noted::default());
        noted.note(FILE, &HELD);
        let is_dropped = Arc::new(AtomicUsize::new(0));
        let (began, begins) = std::sync::mpsc::channel();
        let first = {
            let (noted, is_dropped) = (Arc::clone(&noted), Arc::clone(&is_dropped));
            std::thread::spawn(move || {
                noted.settle(FILE, || {
                    began.send(()).expect("somebody waits");
                    std::thread::sleep(Duration::from_millis(50));
                    is_dropped.store(1, SeqCst);
                });
            })
        };
        begins.recv().expect("it drops");
        noted.settle(FILE, || panic!("one drop is enough"));
        assert_eq!(is_dropped.load(SeqCst), 1);
        first.join().expect("no panic");
    }

    /// [BS5], [BS10]
    #[test]
    fn what_clients_reach_is_known_until_nobody_has_the_file() {
        let noted = Noted::default();
        assert_eq!(noted.end_by_clients(FILE, 1), 0);
        noted.change_begins(FILE, &HELD);
        noted.change_begins(FILE, &HELD);
        noted.change_ends(FILE, Some((100, 1)), 0);
        noted.forget(FILE, &NOT_HELD);
        assert_eq!(noted.end_by_clients(FILE, 1), u64::MAX, "one is under way still, and may change anything");
        assert!(!noted.have_clients_cut(FILE, 1));
        noted.change_ends(FILE, Some((50, 1)), 100);
        assert!(noted.have_clients_cut(FILE, 1) && !noted.have_clients_cut(FILE, 2), "it was 100 bytes long before");
        noted.forget(FILE, &HELD);
        assert_eq!((noted.end_by_clients(FILE, 1), noted.end_by_clients(InodeNumber::new(8), 1)), (100, 0));
        noted.forget(FILE, &NOT_HELD);
        assert_eq!(noted.end_by_clients(FILE, 1), 0);
    }

    /// [BS13]
    #[test]
    fn one_cut_behind_a_failed_direct_write_is_the_kernels() {
        let noted = Noted::default();
        noted.direct_write_failed(FILE, 5, 4096..8192);
        assert!(!noted.take_failed(FILE, 5, 4096), "no client has changed it");
        noted.change_begins(FILE, &HELD);
        noted.change_ends(FILE, Some((20_000, 1)), 0);
        noted.direct_write_failed(FILE, 5, 4096..8192);
        assert!(!noted.take_failed(FILE, 6, 4096) && !noted.take_failed(InodeNumber::new(8), 5, 4096));
        assert!(noted.take_failed(FILE, 5, 4096));
        assert!(!noted.take_failed(FILE, 5, 4096), "the next one is the program's");
        // Pieces of one call, in any order; the kernel knew an end within the first.
        for piece in [8192..12_288, 0..8192] {
            noted.direct_write_failed(FILE, 5, piece);
        }
        assert!(noted.take_failed(FILE, 5, 4096));
        noted.direct_write_failed(FILE, 5, 8192..12_288);
        assert!(!noted.take_failed(FILE, 5, 4096), "the kernel cuts off nothing there");
        // It knows the end, so that call let nothing grow: the cut is the program's.
        noted.note_read(FILE, &HELD);
        noted.direct_write_failed(FILE, 5, 4096..8192);
        assert!(!noted.take_failed(FILE, 5, 5000));
        noted.direct_write_failed(FILE, 5, 4096..8192);
        assert!(noted.take_failed(FILE, 5, 4096));
    }

    /// [BS5]
    #[test]
    fn a_direct_write_behind_a_cut_may_be_a_later_piece() {
        let noted = Noted::default();
        noted.change_begins(FILE, &HELD);
        noted.change_ends(FILE, Some((0, 1)), 10_000);
        assert!(noted.is_wrong_end(FILE, 1, (10_000, false), 0), "through the cache they come one after the other");
        assert!(!noted.is_wrong_end(FILE, 1, (10_000, true), 0));
        noted.change_begins(FILE, &HELD);
        assert!(noted.is_wrong_end(FILE, 1, (10_000, true), 20_000) && !noted.is_wrong_end(FILE, 1, (30_000, true), 20_000));
    }

    /// [BS5]: the kernel has known neither of the first two files, so it does not forget them.
    #[test]
    fn what_clients_reach_is_of_one_generation() {
        let noted = Noted::default();
        let change = |reached| {
            noted.change_begins(FILE, &HELD);
            noted.change_ends(FILE, reached, 0);
        };
        change(Some((100, 1)));
        assert_eq!(noted.end_by_clients(FILE, 2), 0);
        change(Some((10, 2)));
        assert_eq!(noted.end_by_clients(FILE, 2), 10, "not that of the file before");
        change(None);
        assert!(noted.0.of(FILE).lock().changed.is_empty());
    }

    /// [BS10]
    #[test]
    fn a_note_goes_with_the_last_who_has_the_file() {
        let noted = Noted::default();
        noted.note(FILE, &HELD);
        noted.forget(FILE, &HELD);
        assert!(!noted.is_settled(FILE) && noted.has_been_read(FILE));
        noted.forget(FILE, &NOT_HELD);
        assert!(noted.is_settled(FILE) && !noted.has_been_read(FILE));
    }

    /// [BS10]
    #[test]
    fn notes_of_files_that_nobody_has_make_room() {
        let of_one_shard = |index: usize| InodeNumber::new((index * SHARDS) as u64);
        for (is_held, reached) in [(NOT_HELD, 0), (HELD, u64::MAX)] {
            let noted = Noted::default();
            for file in (1..=NOTES_MAX + 1).map(of_one_shard) {
                noted.note_read(file, &is_held);
                noted.change_begins(file, &is_held);
                noted.change_ends(file, Some((100, 1)), 0);
            }
            let unknown = of_one_shard(NOTES_MAX + 9);
            assert_eq!(noted.end_by_clients(unknown, 1), reached, "nobody can be told apart where all stay");
            assert_eq!(noted.has_been_read(unknown), reached > 0);
            assert_eq!(noted.end_by_clients(of_one_shard(NOTES_MAX), 1), if reached > 0 { 100 } else { 0 });
        }
    }

    #[test]
    fn bugs_are_caught() {
        is_caught(Mutant::UnnotedBehindDrop, a_note_costs_one_drop);
        is_caught(Mutant::DroppingIsSettled, a_note_is_not_settled_where_nobody_waits);
        is_caught(Mutant::PiecesOutOfOrder, a_direct_write_behind_a_cut_may_be_a_later_piece);
        is_caught(Mutant::CutsForgotten, what_clients_reach_is_known_until_nobody_has_the_file);
        is_caught(Mutant::ChangesUnderWayIgnored, what_clients_reach_is_known_until_nobody_has_the_file);
        is_caught(Mutant::GenerationIgnored, what_clients_reach_is_of_one_generation);
        is_caught(Mutant::MappedPagesKept, pages_of_a_file_that_is_mapped_for_stores_are_dropped);
        is_caught(Mutant::MappedAskedBeforeNote, pages_of_a_file_that_is_mapped_for_stores_are_dropped);
    }

    /// [BS11]
    #[test]
    fn pages_of_a_file_that_is_mapped_for_stores_are_dropped() {
        for is_mapped in [true, false] {
            let (noted, drops) = (Noted::default(), std::cell::Cell::new(0));
            let asked = || {
                assert!(!noted.is_settled(FILE), "who maps it now sees that the kernel may get pages");
                is_mapped
            };
            noted.note_and_drop_mapped(FILE, &HELD, asked, || drops.set(drops.get() + 1));
            assert_eq!((drops.get(), noted.is_settled(FILE)), (u32::from(is_mapped), false));
        }
    }

    /// [BS14]
    #[test]
    fn small_files_are_left_to_the_mount_some_times() {
        let noted = Noted::default();
        assert!(!noted.leaves(FILE, || true));
        for _ in 0..2 {
            noted.note(FILE, &HELD);
            assert!((0..100).all(|_| noted.leaves(FILE, || false)), "a long file is");
            assert_eq!((0..100).filter(|_| noted.leaves(FILE, || true)).count(), usize::from(LEFT_MAX));
            noted.settle(FILE, || {});
            assert!(!noted.leaves(FILE, || true));
        }
    }

    /// [BS6]
    #[test]
    fn a_note_is_not_settled_where_nobody_waits() {
        let noted = Noted::default();
        assert!(noted.is_settled(FILE));
        noted.note(FILE, &HELD);
        assert!(!noted.is_settled(FILE) && noted.is_settled(InodeNumber::new(8)));
        noted.settle(FILE, || assert!(!noted.is_settled(FILE), "while pages are dropped"));
        assert!(noted.is_settled(FILE));
    }
}

//! Which files are aligned and move to their homes next (`data/moves.rs`).

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use tandemfs_format::InodeNumber;

use crate::mutant::{Mutant, on};

/// Most files of each list. What does not fit is found by a search.
const FILES_MAX: usize = 4096;
/// How soon files that could not move are tried again; each time in vain doubles it, ...
const RETRY_FIRST: Duration = Duration::from_secs(5);
/// ... up to this.
const RETRY_LAST: Duration = Duration::from_secs(600);

/// What is done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MoveStep {
    /// What has the hint *aligned* is rewritten, then all moves home.
    Align,
    /// What lies elsewhere moves home.
    Home,
    /// The one piece that begins with the block is rewritten.
    Once,
}

/// A file, and the block to go on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MovedFile {
    pub(crate) number: InodeNumber,
    pub(crate) block: u64,
    /// What is done with it from that block on.
    pub(crate) step: MoveStep,
    /// Blocks before that one could not move.
    pub(crate) is_left: bool,
}

impl MovedFile {
    /// All of a file, from its start.
    pub(crate) fn all_of(number: InodeNumber) -> Self {
        Self { number, block: 0, step: MoveStep::Align, is_left: false }
    }
}

/// Files to move, and when the background thread works.
#[derive(Debug)]
pub(crate) struct Moves {
    pub(crate) files: VecDeque<MovedFile>,
    /// Files with blocks that could not move ([MV2] of `data/moves.rs`).
    waiting: HashSet<u64>,
    waiting_overflowed: bool,
    /// New data went to the block zone for want of room ([MV2]): it is not known which files' data that was.
    is_refused: bool,
    retry_at: Option<Instant>,
    retry_after: Duration,
    /// The next inode of the search that is under way ([MV1]).
    pub(crate) search: Option<u64>,
    /// How many began.
    pub(crate) searches: u64,
    /// When the background thread last worked, and how many transactions were committed by then.
    pub(crate) worked_at: Option<Instant>,
    pub(crate) transactions: u64,
}

impl Moves {
    /// A mount searches for moves that were interrupted, if there are homes ([MV1]).
    pub(crate) fn at_mount(has_homes: bool) -> Self {
        Self {
            files: VecDeque::new(),
            waiting: HashSet::new(),
            waiting_overflowed: false,
            is_refused: false,
            retry_at: None,
            retry_after: RETRY_FIRST,
            search: (has_homes && !on(Mutant::InterruptedMoveForgotten)).then_some(1),
            searches: 0,
            worked_at: None,
            transactions: 0,
        }
    }

    fn begin_search(&mut self) {
        self.search = Some(1);
        self.searches += 1;
    }

    /// A file got another home, or the hint *aligned*.
    pub(crate) fn add(&mut self, number: InodeNumber) {
        self.files.retain(|file| file.number != number || file.step == MoveStep::Once); // from its start
        self.waiting.remove(&number.get());
        self.retry_after = RETRY_FIRST;
        if self.files.len() < FILES_MAX {
            self.files.push_back(MovedFile::all_of(number));
        } else {
            self.begin_search();
        }
    }

    /// A piece of a file is to be aligned once, if there is time for it.
    pub(crate) fn add_piece(&mut self, number: InodeNumber, block: u64) {
        let piece = MovedFile { number, block, step: MoveStep::Once, is_left: false };
        if self.files.len() < FILES_MAX && !self.files.contains(&piece) {
            self.files.push_back(piece);
        }
    }

    /// Some blocks of a file could not move.
    pub(crate) fn wait(&mut self, number: InodeNumber) {
        if on(Mutant::WaitingMoveForgotten) {
            return;
        }
        if self.waiting.len() < FILES_MAX {
            self.waiting.insert(number.get());
        } else {
            self.waiting_overflowed = true;
        }
        self.retry_at.get_or_insert_with(|| Instant::now() + self.retry_after);
    }

    /// New data of some file found no room in the memory zone.
    pub(crate) fn refused(&mut self) {
        if on(Mutant::WaitingMoveForgotten) {
            return;
        }
        self.is_refused = true;
        self.retry_at.get_or_insert_with(|| Instant::now() + self.retry_after);
    }

    /// All of a file is at home: others may have their turn soon.
    pub(crate) fn moved(&mut self) {
        self.retry_after = RETRY_FIRST;
    }

    /// Takes up again what waited, if it is time, or `now`. Without room in the memory zone nothing is searched for that would move there.
    pub(crate) fn retry(&mut self, now: bool, has_room: bool) {
        if self.retry_at.is_none_or(|at| !now && Instant::now() < at) {
            return;
        }
        self.retry_at = None;
        self.retry_after = (self.retry_after * 2).min(RETRY_LAST);
        if self.is_refused && has_room {
            self.is_refused = false;
            self.begin_search();
        } else if self.is_refused {
            self.retry_at = Some(Instant::now() + self.retry_after);
        }
        let room = FILES_MAX - self.files.len().min(FILES_MAX);
        let mut waiting: Vec<u64> = self.waiting.drain().collect();
        waiting.sort_unstable();
        if waiting.len() > room || self.waiting_overflowed {
            self.begin_search();
        }
        self.waiting_overflowed = false;
        let again = waiting.into_iter().take(room).map(|number| MovedFile::all_of(InodeNumber::new(number)));
        self.files.extend(again);
    }

    /// Whether something waits for room.
    pub(crate) fn wants_room(&self) -> bool {
        self.is_refused || !self.waiting.is_empty() || self.waiting_overflowed
    }

    pub(crate) fn waiting_files(&self) -> u64 {
        self.waiting.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_place_in_a_list_are_found_by_a_search() {
        let mut moves = Moves::at_mount(false);
        (1..=FILES_MAX as u64).for_each(|number| moves.add(InodeNumber::new(number)));
        moves.add(InodeNumber::new(5));
        assert!(moves.search.is_none() && moves.files.len() == FILES_MAX, "it was there already");
        moves.add(InodeNumber::new(9999));
        assert!(moves.search.take().is_some() && moves.files.len() == FILES_MAX);
        moves.files.clear();
        (0..FILES_MAX as u64 + 1).for_each(|number| moves.wait(InodeNumber::new(number)));
        moves.retry(true, false);
        assert!(moves.search.is_some() && moves.files.len() == FILES_MAX && moves.waiting_files() == 0);
    }

    #[test]
    fn what_could_not_move_is_tried_again_less_and_less_often() {
        let mut moves = Moves::at_mount(false);
        moves.wait(InodeNumber::new(7));
        moves.retry(false, false);
        assert!(moves.files.is_empty(), "not at once");
        for _ in 0..20 {
            moves.retry_at = Some(Instant::now());
            moves.retry(false, false);
            assert_eq!(moves.files.pop_front().map(|file| file.number), Some(InodeNumber::new(7)));
            moves.wait(InodeNumber::new(7));
        }
        assert_eq!(moves.retry_after, RETRY_LAST);
        moves.moved();
        assert_eq!(moves.retry_after, RETRY_FIRST);
    }

    #[test]
    fn refused_data_is_searched_for_when_there_is_room() {
        let mut moves = Moves::at_mount(false);
        moves.retry(true, true);
        assert!(moves.search.is_none());
        moves.refused();
        moves.retry(true, false);
        assert!(moves.search.is_none());
        moves.retry(false, true);
        assert!(moves.search.is_none(), "not at once");
        moves.retry(true, true);
        assert!(moves.search.take().is_some());
        moves.retry(true, true);
        assert!(moves.search.is_none());
    }
}

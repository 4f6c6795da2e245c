//! A table of answers that is read without locks: who reads may be overtaken, interrupted, or leave for good at any moment (a signal's handler
//! that jumps), and nobody notices.
//!
//! [ANS1] A set has a turn, which is odd while somebody changes the set. Who reads takes what it finds only if the turn was even before, and is
//!        the same behind.
//! [ANS2] Nobody waits: who finds the turn odd finds nothing, and changes nothing.
//! [ANS3] Answers are words of atomics, so one that is changed meanwhile is no data race, only a wrong value, which [ANS1] rejects.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use rustix::io::Errno;
use tandemfs_ring::{ATTRIBUTE_WORDS, Attributes, SEEN_MAX, Seen};

use crate::known::{AllNames, PATH_BYTES_MAX, Question, Told};
use crate::mutant::{self, Mutant};

const SETS: usize = 2048;
const WAYS: usize = 4;

/// Words of an answer: of its question, with its kind in one of them, ...
const KIND_AT: usize = 3;
const PATH_AT: usize = 4;
const PATH_WORDS: usize = PATH_BYTES_MAX / 8;
/// ... what was told, ...
const ATTRIBUTES_AT: usize = PATH_AT + PATH_WORDS;
/// ... and what it depends on: count, sum, two indexes a word.
const SEEN_AT: usize = ATTRIBUTES_AT + ATTRIBUTE_WORDS;
const WORDS: usize = SEEN_AT + 2 + SEEN_MAX / 2;

/// Kinds of answers. None: the way is free.
const NOTHING: u64 = 0;
const ATTRIBUTES: u64 = 1;
const ALLOWED: u64 = 2;
const ERRNO: u64 = 3;
const NAMES: u64 = 4;

#[derive(Debug)]
struct Way {
    /// 0 hash, 1 where the path begins, 2 what is asked, 3 flags (32 bits), length of the path (8), kind (8), errno (16).
    words: [AtomicU64; WORDS],
    /// It came ahead (`ahead.rs`), and was not asked for yet.
    is_unasked: AtomicBool,
}

impl Default for Way {
    fn default() -> Self {
        Self { words: [const { AtomicU64::new(0) }; WORDS], is_unasked: AtomicBool::new(false) }
    }
}

fn question_word(question: &Question<'_>, kind: u64, errno: u64) -> u64 {
    u64::from(question.flags) | (question.path.len() as u64) << 32 | kind << 40 | errno << 48
}

/// The words of a path, the last one filled up with zeros.
fn path_words(path: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (words, rest) = path.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().copied().chain((!rest.is_empty()).then_some(last)).map(u64::from_le_bytes)
}

impl Way {
    fn load(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    fn store(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Relaxed);
    }

    fn kind(&self) -> u64 {
        self.load(KIND_AT) >> 40 & 0xff
    }

    fn is_of(&self, question: &Question<'_>) -> bool {
        const OF_QUESTION: u64 = (1 << 40) - 1;
        let asked = [question.hash, question.start, question.which];
        self.kind() != NOTHING
            && asked.iter().enumerate().all(|(word, value)| self.load(word) == *value)
            && self.load(KIND_AT) & OF_QUESTION == question_word(question, 0, 0)
            && path_words(question.path).enumerate().all(|(word, value)| self.load(PATH_AT + word) == value) // [KN1]
    }

    fn answer(&self) -> Option<(Told, Seen)> {
        let told = match self.kind() {
            ATTRIBUTES => Told::Attributes(Attributes::of_words(std::array::from_fn(|word| self.load(ATTRIBUTES_AT + word)))),
            ALLOWED => Told::Allowed,
            NAMES => Told::Names(AllNames(std::array::from_fn(|word| self.load(ATTRIBUTES_AT + word)))),
            ERRNO => Told::Errno(Errno::from_raw_os_error((self.load(KIND_AT) >> 48) as i32)),
            _ => return None,
        };
        let index = |at: usize| (self.load(SEEN_AT + 2 + at / 2) >> (32 * (at % 2))) as u32;
        Some((told, Seen::found(self.load(SEEN_AT) as u32, self.load(SEEN_AT + 1), index)))
    }

    fn fill(&self, question: &Question<'_>, told: Told, seen: &Seen, is_unasked: bool) {
        let (kind, errno) = match told {
            Told::Attributes(_) => (ATTRIBUTES, 0),
            Told::Allowed => (ALLOWED, 0),
            Told::Errno(errno) => (ERRNO, errno.raw_os_error() as u64),
            Told::Names(_) => (NAMES, 0),
        };
        [question.hash, question.start, question.which, question_word(question, kind, errno)]
            .into_iter()
            .enumerate()
            .for_each(|(word, value)| self.store(word, value));
        path_words(question.path).enumerate().for_each(|(word, value)| self.store(PATH_AT + word, value));
        let words = match told {
            Told::Attributes(attributes) => Some(attributes.to_words()),
            Told::Names(names) => Some(names.0),
            _ => None,
        };
        if let Some(words) = words {
            words.into_iter().enumerate().for_each(|(word, value)| self.store(ATTRIBUTES_AT + word, value));
        }
        let (indexes, sum) = seen.parts();
        self.store(SEEN_AT, indexes.len() as u64);
        self.store(SEEN_AT + 1, sum);
        for (word, two) in indexes.chunks(2).enumerate() {
            self.store(SEEN_AT + 2 + word, u64::from(two[0]) | u64::from(two.get(1).copied().unwrap_or(0)) << 32);
        }
        self.is_unasked.store(is_unasked, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Set {
    turn: AtomicU64,
    ways: [Way; WAYS],
    /// The way that loses its answer next; of who changes the set.
    next: AtomicU64,
}

impl Set {
    /// What is found while nobody changes the set ([ANS1]).
    fn read<T>(&self, find: impl FnOnce(&[Way; WAYS]) -> Option<T>) -> Option<T> {
        let turn = self.turn.load(Ordering::Acquire);
        if turn % 2 == 1 && !mutant::on(Mutant::TurnNotCompared) {
            return None; // [ANS2]
        }
        let found = find(&self.ways)?;
        fence(Ordering::Acquire);
        (self.turn.load(Ordering::Relaxed) == turn || mutant::on(Mutant::TurnNotCompared)).then_some(found)
    }

    /// Changes the set, unless somebody does ([ANS2]).
    fn change(&self, change: impl FnOnce(&[Way; WAYS])) {
        let turn = self.turn.load(Ordering::Relaxed);
        let is_free = turn.is_multiple_of(2);
        if !is_free || self.turn.compare_exchange(turn, turn + 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        fence(Ordering::Release); // the odd turn is seen before what is stored behind it
        change(&self.ways);
        self.turn.store(turn + 2, Ordering::Release);
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct Answers {
    /// Made when they are needed.
    sets: Box<[OnceLock<Box<Set>>]>,
}

impl Answers {
    /// An empty one, or one that stays empty.
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self { sets: (0..if is_wanted { SETS } else { 0 }).map(|_| OnceLock::new()).collect() }
    }

    /// Whether it keeps anything.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.sets.is_empty()
    }

    fn set(&self, question: &Question<'_>) -> Option<&OnceLock<Box<Set>>> {
        self.sets.get(question.hash as usize % SETS)
    }

    /// The answer to a question, if it is right by what it depends on; and whether it came ahead and is asked for the first time.
    #[inline]
    pub(crate) fn find(&self, question: &Question<'_>, is_right: impl FnOnce(&Seen) -> bool) -> Option<(Told, bool)> {
        let set = self.set(question)?.get()?;
        let (way, told, seen) = set.read(|ways| {
            let (at, way) = ways.iter().enumerate().find(|(_, way)| way.is_of(question))?;
            way.answer().map(|(told, seen)| (at, told, seen))
        })?;
        let is_unasked = &set.ways[way].is_unasked;
        is_right(&seen).then(|| (told, is_unasked.load(Ordering::Relaxed) && is_unasked.swap(false, Ordering::Relaxed)))
    }

    /// Keeps an answer, in place of the one to the same question, or of another.
    pub(crate) fn keep(&self, question: &Question<'_>, told: Told, seen: &Seen, is_unasked: bool) {
        let Some(set) = self.set(question).map(|set| set.get_or_init(Box::default)) else { return };
        set.change(|ways| {
            let same = ways.iter().position(|way| way.is_of(question)).or_else(|| ways.iter().position(|way| way.kind() == NOTHING));
            let place = same.unwrap_or_else(|| set.next.fetch_add(1, Ordering::Relaxed) as usize % WAYS);
            ways[place].fill(question, told, seen, is_unasked);
        });
    }

    /// Forgets an answer.
    pub(crate) fn forget(&self, question: &Question<'_>) {
        let Some(set) = self.set(question).and_then(OnceLock::get) else { return };
        set.change(|ways| ways.iter().filter(|way| way.is_of(question)).for_each(|way| way.store(KIND_AT, 0)));
    }

    /// Most answers that are kept.
    #[cfg(test)]
    pub(crate) const MOST: usize = SETS * WAYS;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Name;
    use tandemfs_protocol::Place;

    fn question(path: &str) -> Question<'_> {
        Question::attributes(Name::Path { at: Place::Root, path: path.as_bytes(), flags: 0 }).expect("short")
    }

    /// [ANS1]
    #[test]
    fn what_is_changed_while_it_is_read_is_not_found() {
        /// What readers find whom a change overtakes, or who come into the middle of one.
        fn found() -> (Option<(u64, u64)>, bool) {
            let (answers, seen) = (Answers::new(true), Seen::of([(1, 1), (7, 2), (9, 3)]));
            let keep = |node| {
                let attributes = Attributes { node, size_bytes: node, ..Attributes::default() };
                answers.keep(&question("a"), Told::Attributes(attributes), &seen, false);
            };
            keep(1);
            let set = answers.set(&question("a")).and_then(OnceLock::get).expect("made");
            let read = |meanwhile: &dyn Fn()| {
                set.read(|ways| {
                    let first = ways[0].load(ATTRIBUTES_AT);
                    meanwhile();
                    Some((first, ways[0].load(ATTRIBUTES_AT + 1)))
                })
            };
            assert_eq!(read(&|| ()), Some((1, 1)));
            let overtaken = read(&|| keep(2));
            let mut in_the_middle = false;
            set.change(|_| {
                in_the_middle = read(&|| ()).is_some();
                keep(3);
            });
            assert_eq!(read(&|| ()), Some((2, 2)), "[ANS2]: who came in between changed nothing");
            (overtaken, in_the_middle)
        }
        let _alone = mutant::ALONE.lock();
        assert_eq!(found(), (None, false));
        mutant::select(Mutant::TurnNotCompared);
        let torn = found();
        mutant::select(Mutant::None);
        assert_eq!(torn, (Some((1, 2)), true), "TurnNotCompared escaped");
    }

    #[test]
    fn threads_that_read_and_change_find_whole_answers() {
        let (answers, stop) = (Answers::new(true), AtomicBool::new(false));
        let found = std::thread::scope(|scope| {
            for first in [0, 1] {
                let (answers, stop) = (&answers, &stop);
                scope.spawn(move || {
                    for node in (first..).step_by(2).take_while(|_| !stop.load(Ordering::Relaxed)) {
                        let attributes = Attributes { node, size_bytes: node, space_512: node, ..Attributes::default() };
                        let seen = Seen::of((0..node % 32 + 1).map(|index| (index as u32, node)));
                        answers.keep(&question("a"), Told::Attributes(attributes), &seen, false);
                    }
                });
            }
            let mut found = 0_u32;
            while found < 10_000 {
                let mut sum = 0;
                let is_right = |seen: &Seen| {
                    sum = seen.parts().1;
                    seen.parts().0.len() as u64 == (sum / seen.parts().0.len() as u64) % 32 + 1
                };
                if let Some((Told::Attributes(told), _)) = answers.find(&question("a"), is_right) {
                    assert_eq!((told.node, told.node), (told.size_bytes, told.space_512));
                    assert_eq!(sum, told.node * (told.node % 32 + 1));
                    found += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
            found
        });
        assert!(found > 0);
    }
}

//! Answers that the client knows: what it was told stays right until a version word has changed ([VER1]–[VER8] of the ring), and is said again
//! without asking.
//!
//! [KN1] A question is known by all of it: what is asked, where its path begins, each byte of the path. A hash only says where to look.
//! [KN2] An answer is given only while its words are as they were, and they are compared after the call has begun.
//! [KN3] Bounded: 2048 sets of four answers, made when they are needed, 3.2 MB when all are; paths of up to 104 bytes. A set that is full
//!       loses its answers in turn.
//! [KN4] Nobody waits for anybody here: where another thread changes the set, the daemon is asked, and nothing is kept. So a signal handler
//!       that comes in between is as safe as another thread.
//! [KN6] Attributes also say whether an inode has any extended attribute: that an access control list, or an attribute of security modules,
//!       which anybody may read, is not there. Attributes of a path without its last link are those of the path, unless they are of a link.
//! [KN5] What is kept goes with the connection, since the answers are those to its credentials.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::RwLock;
use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use tandemfs_protocol::{Handle, Place};
use tandemfs_ring::{Attributes, Client, Seen};

use crate::Result;
use crate::ahead::{Following, Spoken};
use crate::mutant::{self, Mutant};
use crate::subject::Name;

const SETS: usize = 2048;
const WAYS: usize = 4;
const PATH_BYTES_MAX: usize = 104;

/// Flags of a call that change its answer.
const FLAGS: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::EMPTY_PATH);
/// Flags that do not.
const IGNORED: AtFlags = AtFlags::NO_AUTOMOUNT.union(AtFlags::STATX_FORCE_SYNC).union(AtFlags::STATX_DONT_SYNC);

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Attributes,
    Access { mode: u32, effective: bool },
    AttributesOfOpen,
}

/// A question whose answer may be known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    what: What,
    flags: u32,
    /// Where the path begins, 0 for the root; the open file.
    start: u64,
    path: &'a [u8],
    hash: u64,
}

fn start(at: Place) -> u64 {
    match at {
        Place::Root => 0,
        Place::Open(handle) => handle.get(),
    }
}

impl<'a> Question<'a> {
    fn of(what: What, name: Name<'a>) -> Option<Self> {
        let (what, flags, start, path) = match (what, name) {
            (What::Attributes, Name::Open(handle)) => (What::AttributesOfOpen, AtFlags::empty(), handle.get(), &[][..]),
            (_, Name::Open(_)) => return None,
            (what, Name::Path { at, path, flags }) => {
                (what, AtFlags::from_bits_retain(flags.cast_unsigned()).difference(IGNORED), start(at), path)
            }
        };
        if path.len() > PATH_BYTES_MAX || !FLAGS.contains(flags) {
            return None;
        }
        let flags = if mutant::on(Mutant::FlagsNotAsked) { 0 } else { flags.bits() };
        let which = match what {
            What::Attributes => 1,
            What::Access { mode, effective } => 2 | u64::from(effective) << 2 | u64::from(mode) << 3,
            What::AttributesOfOpen => 3,
        };
        Some(Self { what, flags, start, path, hash: hash(which ^ u64::from(flags) << 40, start, path) })
    }

    /// stat and fstat.
    pub(crate) fn attributes(name: Name<'a>) -> Option<Self> {
        Self::of(What::Attributes, name)
    }

    /// The directory that a question about attributes of a name in it speaks of, and the length of the path before the name.
    pub(crate) fn directory(&self) -> Option<(Spoken, usize)> {
        let before = self.path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let is_of_name = self.what == What::Attributes && !matches!(&self.path[before..], b"" | b"." | b"..");
        let is_plain = self.flags & AtFlags::EMPTY_PATH.bits() == 0;
        (is_of_name && is_plain).then(|| (Spoken(hash(u64::from(self.flags), self.start, &self.path[..before])), before))
    }

    pub(crate) fn access(name: Name<'a>, mode: u32, effective: bool) -> Option<Self> {
        Self::of(What::Access { mode, effective }, name)
    }

    /// Whether there is anything to open, which is what stat says; none for what makes files.
    pub(crate) fn absence(at: Place, path: &'a [u8], flags: i32) -> Option<Self> {
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        if flags.intersects(OFlags::CREATE.union(OFlags::TMPFILE.difference(OFlags::DIRECTORY))) {
            return None;
        }
        let flags = if flags.contains(OFlags::NOFOLLOW) { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
        Self::of(What::Attributes, Name::Path { at, path, flags: flags.bits().cast_signed() })
    }
}

/// Eight bytes at a time; who looks is this process alone, so nobody gains by paths that collide.
fn hash(which: u64, start: u64, path: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let (words, rest) = path.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let begun = mix(mix(path.len() as u64, which), start);
    let hash = words.iter().fold(begun, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let hash = mix(hash, u64::from_le_bytes(last)).wrapping_mul(FACTOR);
    hash ^ hash >> 32
}

/// What was answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Told {
    Attributes(Attributes),
    Allowed,
    Errno(Errno),
}

#[derive(Debug)]
struct Kept {
    hash: u64,
    start: u64,
    what: What,
    flags: u32,
    length: u8,
    path: [u8; PATH_BYTES_MAX],
    told: Told,
    seen: Seen,
    /// It came ahead (`ahead.rs`), and was not asked for yet.
    is_unasked: AtomicBool,
}

impl Kept {
    fn is_of(&self, question: &Question<'_>) -> bool {
        let is_there = self.hash == question.hash;
        let is_asked = (self.what, self.flags, self.start) == (question.what, question.flags, question.start);
        is_there && is_asked && self.path[..usize::from(self.length)] == *question.path // [KN1]
    }

    fn new(question: &Question<'_>, told: Told, seen: Seen) -> Self {
        let mut path = [0; PATH_BYTES_MAX];
        path[..question.path.len()].copy_from_slice(question.path);
        let Question { what, flags, start, hash, .. } = *question;
        let is_unasked = AtomicBool::new(false);
        Self { hash, start, what, flags, length: question.path.len() as u8, path, told, seen, is_unasked }
    }
}

#[derive(Debug, Default)]
struct Set {
    kept: [Option<Kept>; WAYS],
    next: usize,
}

/// The answers that a connection knows.
#[derive(Debug)]
pub(crate) struct Known {
    sets: Box<[OnceLock<Box<RwLock<Set>>>]>,
    pub(crate) following: Following,
}

impl Known {
    /// None are known yet; none ever if they are not `wanted`.
    pub(crate) fn new(wanted: bool) -> Self {
        Self { sets: (0..if wanted { SETS } else { 0 }).map(|_| OnceLock::new()).collect(), following: Following::default() }
    }

    /// Whether answers are kept.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.sets.is_empty()
    }

    fn set(&self, question: &Question<'_>) -> Option<&OnceLock<Box<RwLock<Set>>>> {
        self.sets.get(question.hash as usize % SETS)
    }

    /// The answer to a question, if it is known and right now ([KN2]).
    #[inline]
    pub(crate) fn told(&self, ring: &Client, question: &Question<'_>) -> Option<Told> {
        let set = self.set(question)?.get()?.try_read()?; // [KN4]
        let kept = set.kept.iter().flatten().find(|kept| kept.is_of(question))?;
        if !ring.is_still_so(&kept.seen) && !mutant::on(Mutant::AnswersNotCompared) {
            return None;
        }
        if kept.is_unasked.load(Relaxed) && kept.is_unasked.swap(false, Relaxed) {
            self.following.was_used();
        }
        Some(kept.told)
    }

    /// Keeps an answer, if it may be kept.
    pub(crate) fn keep(&self, question: &Question<'_>, told: Told, seen: Seen) {
        self.keep_one(question, told, seen, false);
    }

    /// As [`Known::keep`], of one that came ahead.
    pub(crate) fn keep_ahead(&self, question: &Question<'_>, attributes: Attributes, seen: Seen) {
        self.keep_one(question, Told::Attributes(attributes), seen, true);
    }

    fn keep_one(&self, question: &Question<'_>, told: Told, seen: Seen, is_unasked: bool) {
        if seen.is_none() {
            return;
        }
        let Some(mut set) = self.set(question).and_then(|set| set.get_or_init(Box::default).try_write()) else { return };
        let Set { kept, next } = &mut *set;
        let place = kept.iter().position(|kept| kept.as_ref().is_none_or(|kept| kept.is_of(question)));
        let place = place.unwrap_or_else(|| {
            *next = (*next + 1) % WAYS;
            *next
        });
        kept[place] = Some(Kept { is_unasked: AtomicBool::new(is_unasked), ..Kept::new(question, told, seen) });
    }

    /// As [`Known::keep`], of attributes.
    pub(crate) fn keep_attributes(&self, question: &Question<'_>, result: &Result<Attributes>, seen: Seen) {
        match result {
            Ok(attributes) => self.keep(question, Told::Attributes(*attributes), seen),
            Err(error) => self.keep_error(question, error, seen),
        }
    }

    /// As [`Known::keep`], of a failure.
    pub(crate) fn keep_error(&self, question: &Question<'_>, error: &crate::Error, seen: Seen) {
        if let crate::Error::Errno(errno) = error {
            self.keep(question, Told::Errno(*errno), seen);
        }
    }

    /// A file is closed; its number is not given to another one, so this only makes room.
    pub(crate) fn closed(&self, handle: Handle) {
        let question = Question::attributes(Name::Open(handle));
        let set = question.as_ref().and_then(|question| self.set(question)?.get()?.try_write());
        if let (Some(question), Some(mut set)) = (question, set) {
            set.kept.iter_mut().filter(|kept| kept.as_ref().is_some_and(|kept| kept.is_of(&question))).for_each(|kept| *kept = None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> Name<'_> {
        Name::Path { at: Place::Root, path: path.as_bytes(), flags: 0 }
    }

    fn kept<'k>(known: &'k Known, question: &Question<'_>) -> Option<parking_lot::MappedRwLockReadGuard<'k, Told>> {
        let set = known.set(question)?.get()?.read();
        parking_lot::RwLockReadGuard::try_map(set, |set| set.kept.iter().flatten().find(|kept| kept.is_of(question)).map(|kept| &kept.told))
            .ok()
    }

    fn attributes(node: u64) -> Told {
        Told::Attributes(Attributes { node, ..Attributes::default() })
    }

    #[test]
    fn questions_differ_by_all_that_is_asked() {
        let nofollow = AtFlags::SYMLINK_NOFOLLOW.bits().cast_signed();
        let (one, two) = (Handle::of(1).expect("a number"), Handle::of(2).expect("a number"));
        let below = |at, flags| Name::Path { at: Place::Open(at), path: b"a", flags };
        let questions = [
            Question::attributes(path("a")),
            Question::attributes(path("a/")),
            Question::attributes(path("")),
            Question::attributes(Name::Path { at: Place::Root, path: b"a", flags: nofollow }),
            Question::attributes(below(one, 0)),
            Question::attributes(below(two, 0)),
            Question::attributes(Name::Open(one)),
            Question::attributes(Name::Open(two)),
            Question::access(path("a"), 4, false),
            Question::access(path("a"), 4, true),
            Question::access(path("a"), 2, false),
        ];
        let (known, seen) = (Known::new(true), Seen::of([(1, 1)]));
        for (number, question) in (0..).zip(&questions) {
            known.keep(&question.expect("short"), attributes(number), seen);
        }
        for (number, question) in (0..).zip(&questions) {
            let question = question.expect("short");
            // All of them hash to one place, if they must.
            let found = kept(&known, &question).map(|told| match *told {
                Told::Attributes(attributes) => attributes.node,
                _ => u64::MAX,
            });
            assert_eq!(found, Some(number), "{question:?}");
        }
        let other = Question { path: b"b", ..questions[0].expect("short") };
        assert!(kept(&known, &other).is_none(), "[KN1]: another path at the same place");
        assert!(Question::attributes(Name::Path { at: Place::Root, path: b"a", flags: 1 << 20 }).is_none(), "an unknown flag");
        assert!(Question::attributes(path(&"a".repeat(PATH_BYTES_MAX + 1))).is_none(), "too long");
        known.closed(one);
        assert!(kept(&known, &questions[6].expect("short")).is_none() && kept(&known, &questions[7].expect("short")).is_some());
    }

    #[test]
    fn as_much_is_kept_as_there_is_room_for() {
        let (known, seen) = (Known::new(true), Seen::of([(1, 1)]));
        let names: Vec<String> = (0..20_000).map(|number| format!("directory/file-{number}")).collect();
        for name in &names {
            known.keep(&Question::attributes(path(name)).expect("short"), Told::Allowed, seen);
        }
        let count = names.iter().filter(|name| kept(&known, &Question::attributes(path(name)).expect("short")).is_some()).count();
        assert!(count <= SETS * WAYS && count > SETS * WAYS * 9 / 10, "{count} of {}: the hash spreads", SETS * WAYS);
        known.keep(&Question::attributes(path("x")).expect("short"), Told::Allowed, Seen::default());
        assert!(kept(&known, &Question::attributes(path("x")).expect("short")).is_none(), "an answer that is not to be kept");
    }
}

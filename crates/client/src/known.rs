//! Answers that the client knows: what it was told stays right until a version word has changed ([VER1]–[VER8] of the ring), and is said again
//! without asking.
//!
//! [KN1] A question is known by all of it: what is asked, where its path begins, each byte of the path. A hash only says where to look.
//! [KN2] An answer is given only while its words are as they were, and they are compared after the call has begun.
//! [KN3] Bounded: 2048 sets of four answers, made when they are needed, 3.3 MB when all are; paths of up to 104 bytes. A set that is full
//!       loses its answers in turn.
//! [KN4] Nobody waits for anybody here (`answers.rs`): where another thread changes the set, the daemon is asked, and nothing is kept. So a signal
//!       handler that comes in between is as safe as another thread, and may jump out of it.
//! [KN6] Attributes also say whether an inode has any extended attribute: that an access control list, or an attribute of security modules,
//!       which anybody may read, is not there. Attributes of a path without its last link are those of the path, unless they are of a link.
//! [KN7] Where all names of a directory came when it was opened, one that is not among them is absent: whether a path below leads anywhere is known until
//!       one of its names changes. It is kept under the path as it was spelled, so questions that spell it alike find it. Of the names a set of bits is kept,
//!       in which a name may seem to be that is not there; then the daemon is asked.
//! [KN5] What is kept goes with the connection, since the answers are those to its credentials. Who looks things up outside of it
//!       ([`KnownAnswers`]) takes care of that.

use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use tandemfs_protocol::{Handle, Place};
use tandemfs_ring::{ATTRIBUTE_WORDS, Attributes, Client, Seen, Standing};

use crate::Result;
use crate::ahead::{Following, Spoken};
use crate::answers::Answers;
use crate::mutant::{self, Mutant};
use crate::subject::Name;

/// Longest path of a question, in bytes.
pub(crate) const PATH_BYTES_MAX: usize = 104;

/// Longest name that a directory can have; longer ones are refused otherwise.
const LISTED_NAME_BYTES_MAX: usize = 255;

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
    Names,
}

/// A question whose answer may be known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    /// What is asked, as a number.
    pub(crate) which: u64,
    pub(crate) flags: u32,
    /// Where the path begins, 0 for the root; the open file.
    pub(crate) start: u64,
    pub(crate) path: &'a [u8],
    pub(crate) hash: u64,
}

/// Attributes of a name, as a number.
const ATTRIBUTES_OF_NAME: u64 = 1;
/// All names of a directory, as a number that no question of access is.
const NAMES_OF_DIRECTORY: u64 = 1 << 40;

pub(crate) fn start(at: Place) -> u64 {
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
            What::Attributes => ATTRIBUTES_OF_NAME,
            What::Access { mode, effective } => 2 | u64::from(effective) << 2 | u64::from(mode) << 3,
            What::AttributesOfOpen => 3,
            What::Names => NAMES_OF_DIRECTORY,
        };
        Some(Self { which, flags, start, path, hash: hash(which ^ u64::from(flags) << 40, start, path) })
    }

    /// stat and fstat.
    pub(crate) fn attributes(name: Name<'a>) -> Option<Self> {
        Self::of(What::Attributes, name)
    }

    /// The directory that a question about attributes of a name in it speaks of, and the length of the path before the name.
    pub(crate) fn directory(&self) -> Option<(Spoken, usize)> {
        let before = self.path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let is_of_name = self.which == ATTRIBUTES_OF_NAME && !matches!(&self.path[before..], b"" | b"." | b"..");
        let is_plain = self.flags & AtFlags::EMPTY_PATH.bits() == 0;
        (is_of_name && is_plain).then(|| (Spoken(hash(u64::from(self.flags), self.start, &self.path[..before])), before))
    }

    /// All names of a directory, by its path.
    pub(crate) fn names(at: Place, path: &'a [u8]) -> Option<Self> {
        Self::of(What::Names, Name::Path { at, path: without_ends(path), flags: 0 })
    }

    /// Who knows whether the last name of the path is there: the question about all names of its directory, and the name. None where it ends with
    /// what is no name.
    fn of_siblings(&self) -> Option<(Self, &'a [u8])> {
        if self.which == NAMES_OF_DIRECTORY || self.flags & AtFlags::EMPTY_PATH.bits() != 0 {
            return None;
        }
        let before = self.path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (directory, name) = self.path.split_at(before);
        if matches!(name, b"" | b"." | b"..") || name.len() > LISTED_NAME_BYTES_MAX || directory.first() == Some(&b'/') {
            return None;
        }
        let at = Handle::of(self.start).map_or(Place::Root, Place::Open);
        Some((Self::names(at, directory)?, name))
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

/// A path of a directory without slashes at its end, empty for the directory where it begins.
fn without_ends(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    if &path[..end] == b"." { b"" } else { &path[..end] }
}

/// Names of all entries of a directory, as bits: a name whose bits are not all there is not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AllNames(pub(crate) [u64; ATTRIBUTE_WORDS]);

impl AllNames {
    fn bits(name: &[u8]) -> impl Iterator<Item = (usize, u64)> {
        let hash = hash(NAMES_OF_DIRECTORY, 0, name);
        [hash as u32, (hash >> 32) as u32].into_iter().map(|part| {
            let bit = ((u64::from(part) * (64 * ATTRIBUTE_WORDS as u64)) >> 32) as usize;
            (bit / 64, 1 << (bit % 64))
        })
    }

    pub(crate) fn add(&mut self, name: &[u8]) {
        Self::bits(name).for_each(|(word, bit)| self.0[word] |= bit);
    }

    fn surely_lack(&self, name: &[u8]) -> bool {
        Self::bits(name).any(|(word, bit)| self.0[word] & bit == 0)
    }
}

/// What was answered.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Told {
    Attributes(Attributes),
    Allowed,
    Errno(Errno),
    /// [KN7]
    Names(AllNames),
}

/// The answers that a connection knows.
#[derive(Debug)]
pub(crate) struct Known {
    answers: Answers,
    pub(crate) following: Following,
}

impl Known {
    /// None are known yet; none ever if they are not `wanted`.
    pub(crate) fn new(wanted: bool) -> Self {
        Self { answers: Answers::new(wanted), following: Following::default() }
    }

    /// Whether answers are kept.
    pub(crate) fn is_wanted(&self) -> bool {
        self.answers.is_wanted()
    }

    /// The answer to a question, if it is known and right now ([KN2]).
    #[inline]
    pub(crate) fn told(&self, standing: &Standing, question: &Question<'_>) -> Option<Told> {
        let Some((told, is_first)) = self.found(standing, question) else { return self.absent(standing, question) };
        if is_first {
            self.following.was_used();
        }
        Some(told)
    }

    /// That there is no such name, if all names of its directory are known ([KN7]).
    fn absent(&self, standing: &Standing, question: &Question<'_>) -> Option<Told> {
        let (of_all, name) = question.of_siblings()?;
        match self.found(standing, &of_all)?.0 {
            Told::Names(names) if names.surely_lack(name) => Some(Told::Errno(Errno::NOENT)),
            _ => None,
        }
    }

    /// What is kept about a question and still so ([KN2]), and whether it is the first time that it is used.
    #[inline]
    fn found(&self, standing: &Standing, question: &Question<'_>) -> Option<(Told, bool)> {
        self.answers.find(question, |seen| standing.is_still_so(seen) || mutant::on(Mutant::AnswersNotCompared))
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
        if !seen.is_none() {
            self.answers.keep(question, told, &seen, is_unasked);
        }
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
        if let Some(question) = Question::attributes(Name::Open(handle)) {
            self.answers.forget(&question);
        }
    }
}

/// Where a path begins, for [`KnownAnswers`]: the root of the mount, or an open directory ([`File::known_start`](crate::File::known_start)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownStart(u64);

impl KnownStart {
    /// The root of the mount.
    pub const ROOT: Self = Self(0);

    pub(crate) fn open(handle: Handle) -> Self {
        Self(handle.get())
    }

    /// As a number, for memory of atomics.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// Of such a number.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    fn place(self) -> Place {
        Handle::of(self.0).map_or(Place::Root, Place::Open)
    }
}

/// What a connection knows, to be looked up by who must not wait, allocate, or hold anything: at any moment the caller may leave for good.
///
/// It keeps memory of the connection, and nothing else of it. *The answers are those to the connection's credentials*: who looks them up beyond
/// its end, or for somebody else, takes care of that himself. Of files whose names were changed since, nothing wrong is said as long
/// as the daemon lives.
#[derive(Debug, Clone)]
pub struct KnownAnswers {
    known: Arc<Known>,
    standing: Arc<Standing>,
}

impl KnownAnswers {
    pub(crate) fn new(known: &Arc<Known>, ring: &Client) -> Self {
        Self { known: Arc::clone(known), standing: Arc::clone(ring.standing()) }
    }

    /// The attributes of a path, with flags of fstatat(2), or why there are none; `None` if that is not known.
    #[inline]
    pub fn attributes(&self, start: KnownStart, path: &[u8], flags: AtFlags) -> Option<std::result::Result<Attributes, Errno>> {
        let name = Name::Path { at: start.place(), path, flags: flags.bits().cast_signed() };
        match self.known.told(&self.standing, &Question::attributes(name)?)? {
            Told::Attributes(attributes) => Some(Ok(attributes)),
            Told::Errno(errno) => Some(Err(errno)),
            Told::Allowed | Told::Names(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> Name<'_> {
        Name::Path { at: Place::Root, path: path.as_bytes(), flags: 0 }
    }

    fn kept(known: &Known, question: &Question<'_>) -> Option<Told> {
        known.answers.find(question, |_| true).map(|(told, _)| told)
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
            let found = kept(&known, &question).map(|told| match told {
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
        assert!(count <= Answers::MOST && count > Answers::MOST * 9 / 10, "{count} of {}: the hash spreads", Answers::MOST);
        known.keep(&Question::attributes(path("x")).expect("short"), Told::Allowed, Seen::default());
        assert!(kept(&known, &Question::attributes(path("x")).expect("short")).is_none(), "an answer that is not to be kept");
    }
}

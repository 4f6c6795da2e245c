//! Appends that the client stores itself, in room that the daemon has lent behind the end of a file ([LNS8] of `crates/direct`, [LR1]–[LR8] of
//! `crates/fs`).
//!
//! Each open file has a tail: *none -(small appends by requests, LendTail)-> lent -(the room is used up, or somebody ends the lease)-> none*.
//!
//! [APN1] An append is stored inside of the lease, to the places that came with its epoch: the bytes, made durable as the domain asks; then the word, which
//!       says how much of the room is the file's; that is made durable, too. So a crash leaves all of an append or nothing, and what has returned is there.
//! [APN2] It counts if the thread leaves and the lease was not taken away. Otherwise the daemon says how far appends count ([LNS8]), and what does not
//!       count is appended by a request: once in either case. Who says where his bytes go has them written there by a request.
//! [APN3] Writes by a tail exclude each other and loads of it, in this process: each append begins where the last one ended. A thread that cannot have it
//!       within [`WAIT`] asks the daemon.
//! [APN4] What does not fit into the room goes by a request, all of it. So no word says more than was lent, and an append is in one piece.
//! [APN5] Who appends, as O_APPEND and RWF_APPEND have it, appends at the end that the lease has reached: nobody else can have changed that. Who says where his
//!       bytes go stores them there, from the lent bytes before the end on to the end at most; the file grows by what lies behind it.
//! [APN6] Lent bytes are loaded under the lease, by a file that may be read; a read ends at the end of the file. A request would end the lease.
//! [APN7] A tail is asked for when a file was appended to by requests for the eighth time, by at most 4 KiB each, and at once when one that was of use has come to
//!       its end. A file that is written once in longer pieces gets none. One by which fewer than 16 appends were stored doubles the requests
//!       before the next, up to 1024.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;
use tandemfs_protocol::{LentTail, StoreLease};
use tandemfs_ring::{Client, Leases};

use crate::mutant::{self, Mutant};
use crate::store_access::{StoreAccess, Zone};

/// How long a thread waits for others that have the tail ([APN3]).
const WAIT: Duration = Duration::from_millis(2);
/// Longest append that counts ([APN7]).
const SMALL_BYTES: usize = 4096;
/// Appends by requests before a tail is asked for, and the most that it grows to.
const WANTED_MIN: u32 = 8;
const WANTED_MAX: u32 = 1024;
/// Appends that make a lease worth while.
const USES: u32 = 16;
/// Where the lent bytes begin while there are none.
const NOWHERE: u64 = u64::MAX;

/// Where a write goes ([APN5]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// To this offset.
    At(u64),
    /// To the end of the file, wherever that is.
    End,
}

/// What has become of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// It counts; the offset behind its bytes.
    All(u64),
    /// It counts, and may be lost with the power.
    Volatile,
    /// The daemon has to do it.
    Nothing,
    /// It was appended up to this offset, and the daemon knows whether that counts ([APN2]).
    TakenAway(StoreLease, u64),
}

/// What the daemon has lent.
#[derive(Debug)]
struct Lent {
    lease: StoreLease,
    tail: LentTail,
    /// The size that the file has by now.
    end: u64,
}

impl Lent {
    /// Where in the zone bytes at an offset lie, if all of them are lent and none lies behind a gap.
    fn place(&self, offset: u64, length: usize) -> Option<u64> {
        let within = offset.checked_sub(self.tail.last.file_offset)?;
        let room = if mutant::on(Mutant::RoomExceeded) { u64::MAX / 2 } else { self.tail.room_bytes };
        let fits = within.checked_add(length as u64)? <= self.tail.last.bytes + room;
        (fits && offset <= self.end).then_some(self.tail.last.zone_offset + within)
    }

    /// The word that says this size.
    fn word(&self, size: u64) -> u64 {
        self.tail.word + (size - self.tail.size())
    }
}

#[derive(Debug)]
struct State {
    lent: Option<Lent>,
    uses: u32,
    /// Small appends by requests since it was asked for, and with how many it is asked for again.
    misses: u32,
    wanted: u32,
}

/// The tail of an open file.
#[derive(Debug)]
pub(crate) struct Tail {
    /// Where the lent bytes begin, for a look without the lock.
    first: AtomicU64,
    state: RwLock<State>,
}

impl Default for Tail {
    fn default() -> Self {
        let state = State { lent: None, uses: 0, misses: 0, wanted: WANTED_MIN };
        Self { first: AtomicU64::new(NOWHERE), state: RwLock::new(state) }
    }
}

impl Tail {
    /// Whether bytes that go there may be lent.
    #[inline]
    pub(crate) fn may_have(&self, place: Where) -> bool {
        let first = self.first.load(Relaxed);
        match place {
            Where::At(offset) => offset >= first && first != NOWHERE,
            Where::End => first != NOWHERE,
        }
    }

    /// Writes bytes by stores, durably, all of them or none.
    #[inline]
    pub(crate) fn store<Z: Zone>(&self, access: &StoreAccess<Z>, ring: &Client, place: Where, from: &[u8]) -> Stored {
        let Some(mut state) = self.state.try_write_for(WAIT) else { return Stored::Nothing };
        let State { lent: Some(lent), uses, .. } = &mut *state else { return Stored::Nothing };
        let offset = if let Where::At(offset) = place { offset } else { lent.end };
        let reached = offset + from.len() as u64;
        let Some(at) = lent.place(offset, from.len()).filter(|_| ring.may_answer_itself()) else { return Stored::Nothing }; // [STR8]
        let Some(inside) = access.leases.enter(lent.lease.0) else { return Stored::Nothing };
        let mut is_durable = true;
        let mut said = || -> Option<()> {
            let grows = reached > lent.end;
            if grows && mutant::on(Mutant::WordBeforeBytes) {
                access.put_word(lent.tail.word_offset, lent.word(reached))?;
                access.persist()?;
            }
            access.put(at, from)?;
            access.persist()?; // [APN1]: before the word
            if grows {
                access.put_word(lent.tail.word_offset, lent.word(reached))?;
                // From here on it is appended for all to see, so it counts.
                is_durable = access.persist().is_some();
            }
            Some(())
        };
        let said = said();
        let counts = inside.leave() || mutant::on(Mutant::TakenAppendsCount);
        if !counts {
            let lease = lent.lease;
            state.lent = None;
            self.first.store(NOWHERE, Relaxed);
            return match (said, place) {
                (Some(()), Where::End) if !mutant::on(Mutant::TakenAppendsAgain) => Stored::TakenAway(lease, reached), // [APN2]
                _ => Stored::Nothing,
            };
        }
        if said.is_none() {
            return Stored::Nothing;
        }
        if !mutant::on(Mutant::EndForgotten) {
            lent.end = lent.end.max(reached);
        }
        *uses = uses.saturating_add(1);
        if is_durable { Stored::All(reached) } else { Stored::Volatile }
    }

    /// Loads bytes of a file that may be read, up to its end; how many ([APN6]).
    pub(crate) fn load<Z: Zone>(&self, access: &StoreAccess<Z>, ring: &Client, offset: u64, into: &mut [u8]) -> Option<usize> {
        let state = self.state.try_read_for(WAIT)?;
        let lent = state.lent.as_ref()?;
        let there = usize::try_from(lent.end.saturating_sub(offset)).map_or(into.len(), |there| there.min(into.len()));
        let at = lent.place(offset.min(lent.end), there).filter(|_| ring.may_answer_itself())?;
        let inside = access.leases.enter_to_load(lent.lease.0)?;
        let loaded = access.zone.load(at, &mut into[..there]);
        loaded.filter(|()| inside.leave()).map(|()| there)
    }

    /// Bytes were appended by a request; whether the tail is to be asked for now ([APN7]).
    pub(crate) fn is_wanted(&self, leases: &Leases, length: usize) -> bool {
        let Some(mut state) = self.state.try_write() else { return false };
        if length > SMALL_BYTES && !mutant::on(Mutant::LongAppendsCount) {
            state.misses = 0;
            return false;
        }
        if state.lent.as_ref().is_some_and(|lent| leases.is_lent(lent.lease.0)) {
            return false;
        }
        state.misses += 1;
        let wanted = if state.uses >= USES { 1 } else { state.wanted };
        if state.misses < wanted {
            return false;
        }
        state.misses = 0;
        true
    }

    /// Keeps what the daemon said: a lease with its places, or that no room is lent. Returns a lease that cannot be kept.
    pub(crate) fn keep(&self, lent: Option<(StoreLease, LentTail)>) -> Option<StoreLease> {
        let Some(mut state) = self.state.try_write_for(WAIT) else { return lent.map(|(lease, _)| lease) };
        state.wanted = if state.uses >= USES { WANTED_MIN } else { (2 * state.wanted).min(WANTED_MAX) };
        (state.uses, state.misses) = (0, 0);
        state.lent = lent.map(|(lease, tail)| Lent { lease, tail, end: tail.size() });
        let first = state.lent.as_ref().map_or(NOWHERE, |lent| lent.tail.last.file_offset);
        self.first.store(first, Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use parking_lot::Mutex;
    use tandemfs_protocol::LentRange;
    use tandemfs_ring::{LeaseWord, LeaseWords};

    use super::*;
    use crate::store_access::weak::{PAGE, Weak, living};

    const WORD_AT: u64 = 64;
    const WORD: u64 = 5 << tandemfs_protocol::TAIL_LENGTH_BITS;
    const FIRST: u64 = 3 * PAGE;
    /// The file has 100 bytes of its last page, which is the seventh of the zone.
    const SIZE: u64 = FIRST + 100;
    const ROOM: u64 = PAGE - 100;

    /// Memory that notices a word which says more than is durable.
    struct Watched<F> {
        weak: Weak<F>,
        is_early: AtomicBool,
    }

    impl<F: Fn()> Zone for Watched<F> {
        fn length(&self) -> u64 {
            self.weak.length()
        }

        fn load(&self, at: u64, into: &mut [u8]) -> Option<()> {
            self.weak.load(at, into)
        }

        fn store(&self, at: u64, from: &[u8]) -> Option<()> {
            if at == WORD_AT {
                let length = u64::from_le_bytes(from.try_into().expect("a word")) - WORD;
                let end = 7 * PAGE + 100 + length;
                let bytes = self.weak.bytes.lock()[7 * PAGE as usize + 100..end as usize].to_vec();
                let lines = self.weak.lines.lock();
                let is_durable = lines.0.is_empty() && lines.1.is_empty() && !bytes.contains(&0);
                self.is_early.fetch_or(!is_durable, SeqCst);
            }
            self.weak.store(at, from)
        }

        fn store_streaming(&self, at: u64, from: &[u8]) -> Option<()> {
            self.store(at, from)
        }

        fn flush(&self, at: u64, length: u64) {
            self.weak.flush(at, length);
        }

        fn fence(&self) {
            self.weak.fence();
        }
    }

    struct Scene<F> {
        ring: Client,
        access: StoreAccess<Watched<F>>,
        tail: Tail,
        lease: std::sync::Arc<LeaseWord>,
        _arena: std::sync::Arc<tandemfs_ring::Arena>,
    }

    impl<F: Fn()> Scene<F> {
        /// A file whose tail is lent.
        fn new(at_stores: impl FnOnce(std::sync::Arc<LeaseWord>) -> F) -> Self {
            let (ring, arena) = living();
            let words = LeaseWords::new().expect("made");
            let lease = std::sync::Arc::new(words.lend().expect("a word"));
            let zone = Watched { weak: Weak::new(at_stores(lease.clone())), is_early: AtomicBool::new(false) };
            let access = StoreAccess::new(zone, true, Leases::map(words.file()).expect("mapped"));
            let last = LentRange { file_offset: FIRST, zone_offset: 7 * PAGE, bytes: 100 };
            let tail = Tail::default();
            let lent = LentTail { last, room_bytes: ROOM, word_offset: WORD_AT, word: WORD };
            assert_eq!(tail.keep(Some((StoreLease(lease.token()), lent))), None);
            Self { ring, access, tail, lease, _arena: arena }
        }

        fn store(&self, place: Where, from: &[u8]) -> Stored {
            if self.tail.may_have(place) { self.tail.store(&self.access, &self.ring, place, from) } else { Stored::Nothing }
        }

        fn load(&self, offset: u64, length: usize) -> Option<Vec<u8>> {
            let mut bytes = vec![0xee; length];
            let done = self.tail.load(&self.access, &self.ring, offset, &mut bytes)?;
            Some(bytes[..done].to_vec())
        }

        /// The bytes of the page, and how many of the room the word says.
        fn kept(&self) -> (Vec<u8>, u64) {
            let bytes = self.access.zone.weak.bytes.lock();
            let word = bytes[WORD_AT as usize..][..8].try_into().expect("eight bytes");
            (bytes[7 * PAGE as usize..][..PAGE as usize].to_vec(), u64::from_le_bytes(word).wrapping_sub(WORD))
        }
    }

    fn caught<T: PartialEq + std::fmt::Debug>(expected: &T, bug: Mutant, run: impl Fn() -> T) {
        mutant::select(bug);
        let found = run();
        mutant::select(Mutant::None);
        assert_ne!(found, *expected, "{bug:?} escaped");
    }

    /// [APN1], [APN3]
    #[test]
    fn a_word_says_what_is_durable() {
        /// Nothing is early, nothing is left undone, and one append follows the other.
        fn is_sound() -> (bool, bool, bool) {
            let scene = Scene::new(|_| || ());
            let results =
                [scene.store(Where::End, &[1; 300]), scene.store(Where::End, &[2; 7]), scene.store(Where::At(SIZE + 307), &[3; 50])];
            let lines = scene.access.zone.weak.lines.lock();
            let is_clean = lines.0.is_empty() && lines.1.is_empty();
            drop(lines);
            let ends = [300, 307, 357].map(|length| Stored::All(SIZE + length));
            let (bytes, length) = scene.kept();
            let follow = bytes[100..400] == [1; 300] && bytes[400..407] == [2; 7] && bytes[407..457] == [3; 50] && length == 357;
            (!scene.access.zone.is_early.load(SeqCst), is_clean, follow && results == ends)
        }
        let _alone = mutant::ALONE.lock();
        let sound = is_sound();
        assert_eq!(sound, (true, true, true));
        for bug in [Mutant::WordBeforeBytes, Mutant::WordUnflushed, Mutant::StoresUnflushed, Mutant::StoresUnfenced, Mutant::EndForgotten] {
            caught(&sound, bug, is_sound);
        }
    }

    /// [APN2]
    #[test]
    fn who_was_taken_away_asks() {
        fn stored() -> [Stored; 3] {
            let at = |place| {
                let scene = Scene::new(|lease| move || lease.take_away());
                let stored = scene.store(place, &[1; 300]);
                assert_eq!(scene.store(Where::End, &[1; 300]), Stored::Nothing, "it is gone");
                stored
            };
            let failing = Scene::new(|lease| move || lease.revoke());
            [at(Where::End), at(Where::At(SIZE)), failing.store(Where::End, &[1; 300])]
        }
        let _alone = mutant::ALONE.lock();
        let expected = stored();
        let lease = StoreLease(tandemfs_ring::LeaseToken { index: 0, epoch: 1 });
        // Who is inside when the lease is revoked, is waited for.
        assert_eq!(expected, [Stored::TakenAway(lease, SIZE + 300), Stored::Nothing, Stored::All(SIZE + 300)]);
        caught(&expected, Mutant::TakenAppendsAgain, stored);
        mutant::select(Mutant::TakenAppendsCount);
        let scene = Scene::new(|lease| move || lease.take_away());
        let found = scene.store(Where::End, &[1; 300]);
        mutant::select(Mutant::None);
        assert_eq!(found, Stored::All(SIZE + 300), "TakenAppendsCount escaped");
    }

    /// [APN4]
    #[test]
    fn no_more_is_appended_than_there_is_room_for() {
        fn stored() -> ([Stored; 4], u64) {
            let scene = Scene::new(|_| || ());
            let rest = ROOM as usize - 1000;
            let appended = [(1000, Where::End), (rest + 1, Where::End), (rest, Where::End), (1, Where::End)];
            let stored = appended.map(|(length, place)| scene.store(place, &vec![1; length]));
            (stored, scene.kept().1)
        }
        let _alone = mutant::ALONE.lock();
        let expected = stored();
        assert_eq!(expected, ([Stored::All(SIZE + 1000), Stored::Nothing, Stored::All(SIZE + ROOM), Stored::Nothing], ROOM));
        caught(&expected, Mutant::RoomExceeded, stored);
    }

    /// [APN5], [APN6]
    #[test]
    fn lent_bytes_are_overwritten_and_loaded() {
        let _alone = mutant::ALONE.lock();
        let scene = Scene::new(|_| || ());
        for (offset, length) in [(FIRST - 1, 1), (FIRST - 1, 10), (0, 1), (SIZE + 1, 1), (u64::MAX / 2, 1)] {
            assert_eq!(scene.store(Where::At(offset), &vec![9; length]), Stored::Nothing, "{length} at {offset}");
        }
        assert_eq!(scene.store(Where::At(FIRST + 10), &[1; 20]), Stored::All(FIRST + 30));
        assert_eq!(scene.store(Where::At(SIZE - 5), &[2; 10]), Stored::All(SIZE + 5));
        assert_eq!(scene.store(Where::End, &[3; 4]), Stored::All(SIZE + 9));
        let (bytes, length) = scene.kept();
        let mut expected = vec![0; 109];
        expected[10..30].fill(1);
        expected[95..105].fill(2);
        expected[105..].fill(3);
        assert_eq!((&bytes[..109], length), (&expected[..], 9));
        assert_eq!(scene.load(FIRST, 109), Some(expected.clone()));
        assert_eq!(scene.load(FIRST + 100, 500), Some(expected[100..].to_vec()), "up to the end");
        assert_eq!((scene.load(SIZE + 9, 5), scene.load(SIZE + 5000, 5)), (Some(Vec::new()), Some(Vec::new())));
        assert_eq!(scene.load(FIRST - 1, 5), None);
        scene.lease.revoke();
        assert_eq!((scene.load(FIRST, 5), scene.store(Where::End, &[1])), (None, Stored::Nothing));
    }

    /// [APN3]: a second thread comes in the middle of an append.
    #[test]
    fn appends_and_loads_exclude_each_other() {
        let _alone = mutant::ALONE.lock();
        let (enters, entered) = std::sync::mpsc::channel();
        let (leaves, left) = std::sync::mpsc::channel();
        let (enters, left) = (Mutex::new(Some(enters)), Mutex::new(left));
        let stops_once = || {
            let first = enters.lock().take();
            if let Some(enters) = first {
                enters.send(()).expect("it waits");
                left.lock().recv().expect("told");
            }
        };
        let scene = Scene::new(|_| stops_once);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| scene.store(Where::End, &[5; 100]));
            entered.recv().expect("told");
            assert_eq!((scene.store(Where::End, &[6; 100]), scene.load(SIZE, 10)), (Stored::Nothing, None));
            leaves.send(()).expect("it waits");
            assert_eq!(first.join().expect("it ends"), Stored::All(SIZE + 100));
        });
    }

    /// [APN7]
    #[test]
    fn small_appends_ask_and_leases_without_use_grow_rare() {
        fn asked_by(length: usize) -> bool {
            let (tail, words) = (Tail::default(), LeaseWords::new().expect("made"));
            let leases = Leases::map(words.file()).expect("mapped");
            (0..3000).any(|_| tail.is_wanted(&leases, length))
        }
        let _alone = mutant::ALONE.lock();
        assert!(asked_by(1) && asked_by(SMALL_BYTES) && !asked_by(SMALL_BYTES + 1));
        caught(&false, Mutant::LongAppendsCount, || asked_by(SMALL_BYTES + 1));
        let scene = Scene::new(|_| || ());
        let leases = &scene.access.leases;
        let misses = || (1..5000).find(|_| scene.tail.is_wanted(leases, 100)).expect("wanted at last");
        assert!((0..5000).all(|_| !scene.tail.is_wanted(leases, 100)), "it has the lease");
        (0..USES).for_each(|_| assert!(matches!(scene.store(Where::End, &[1]), Stored::All(_))));
        scene.lease.revoke();
        let mut all = Vec::new();
        for _ in 0..10 {
            all.push(misses());
            assert_eq!(scene.tail.keep(None), None);
        }
        assert_eq!((all[0], all[1], all[2], all[9]), (1, WANTED_MIN, 2 * WANTED_MIN, WANTED_MAX));
        assert!(!(0..5).any(|_| scene.tail.is_wanted(leases, 100)) && !scene.tail.is_wanted(leases, 5000));
        assert_eq!(misses(), WANTED_MAX, "a long one begins anew");
    }
}

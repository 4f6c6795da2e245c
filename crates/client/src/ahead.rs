//! When answers about further names of a directory are asked for with that about one ([`Operation::StatAhead`](tandemfs_protocol::Operation)).
//!
//! [AHC1] What comes is kept under the question that a program would ask: its own spelling of the path before the name, and its flags
//!        ([KN1] of `known.rs`).
//! [AHC2] It begins with the second question about a directory that nobody knew the answer to (with the first one while most answers that came
//!        were asked for), goes through the listing once, and begins anew when as many questions as it had names had to be asked one by one.
//! [AHC3] It must pay: where fewer than one in [`USED_LEAST`] of the answers were asked for, nothing comes ahead for [`PAUSE`] questions.
//! [AHC4] Nobody waits for anybody here ([KN4]); who finds the table in use asks for one answer.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;

/// Directories whose questions are followed.
const DIRECTORIES: usize = 8;
/// After so many answers it is looked whether they were of use: ...
const ANSWERS: u32 = 128;
/// ... one in so many must have been asked for, ...
const USED_LEAST: u32 = 8;
/// ... or as many questions are asked one by one.
const PAUSE: u32 = 1024;

/// A directory, as a program speaks of it: where the path begins, a hash of the path before the name, and of the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spoken(pub(crate) u64);

#[derive(Debug, Clone, Copy)]
struct Followed {
    directory: Spoken,
    /// Behind which entry it goes on.
    cookie: u64,
    /// Answers that came since the start of the listing.
    came: u32,
    /// Questions since its end; none before that.
    since: Option<u32>,
}

#[derive(Debug, Default)]
struct Table {
    followed: Vec<Followed>,
    /// The one that goes next.
    hand: usize,
    /// Answers that came since it was last looked whether they are of use.
    came: u32,
    pause: u32,
    /// Most of the last ones were asked for.
    is_eager: bool,
}

/// What a connection follows.
#[derive(Debug, Default)]
pub(crate) struct Following {
    table: Mutex<Table>,
    /// Answers that came ahead and were asked for, since it was last looked.
    used: AtomicU32,
}

impl Following {
    /// A question about a name in this directory has no known answer: behind which entry others are to come with it, if they are.
    pub(crate) fn wanted(&self, directory: Spoken) -> Option<u64> {
        let mut table = self.table.try_lock()?; // [AHC4]
        if table.pause > 0 {
            table.pause -= 1;
            return None;
        }
        let Some(at) = table.followed.iter().position(|followed| followed.directory == directory) else {
            let new = Followed { directory, cookie: 0, came: 0, since: None };
            if table.followed.len() < DIRECTORIES {
                table.followed.push(new);
            } else {
                let hand = table.hand;
                table.followed[hand] = new;
                table.hand = (hand + 1) % DIRECTORIES;
            }
            return table.is_eager.then_some(0);
        };
        let followed = &mut table.followed[at];
        if let Some(since) = &mut followed.since {
            *since += 1;
            if *since <= followed.came {
                return None;
            }
            (followed.cookie, followed.came, followed.since) = (0, 0, None); // [AHC2]
        }
        Some(followed.cookie)
    }

    /// So many answers came; the next ones stand behind an entry, or there are none.
    pub(crate) fn came(&self, directory: Spoken, answers: u32, next: u64) {
        let Some(mut table) = self.table.try_lock() else { return };
        if let Some(followed) = table.followed.iter_mut().find(|followed| followed.directory == directory) {
            followed.came = followed.came.saturating_add(answers);
            followed.cookie = next;
            followed.since = (next == 0).then_some(0);
        }
        table.came += answers;
        if table.came >= ANSWERS {
            let (came, used) = (std::mem::take(&mut table.came), self.used.swap(0, Relaxed));
            table.is_eager = used > came / 2;
            if used < came / USED_LEAST {
                table.pause = PAUSE; // [AHC3]
            }
        }
    }

    /// An answer that came ahead was asked for, for the first time.
    pub(crate) fn was_used(&self) {
        self.used.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Spoken = Spoken(1);

    #[test]
    fn a_listing_is_gone_through_once_and_again_when_answers_are_missed() {
        let following = Following::default();
        assert_eq!((following.wanted(ONE), following.wanted(Spoken(2))), (None, None), "a name alone");
        assert_eq!(following.wanted(ONE), Some(0));
        following.came(ONE, 32, 77);
        assert_eq!(following.wanted(ONE), Some(77));
        following.came(ONE, 3, 0);
        assert_eq!((0..35).filter_map(|_| following.wanted(ONE)).count(), 0, "it is over");
        assert_eq!(following.wanted(ONE), Some(0), "and begins anew");
    }

    #[test]
    fn what_nobody_asks_for_stops_coming() {
        let following = Following::default();
        following.wanted(ONE);
        for round in 0..u64::from(ANSWERS / 32) {
            assert_eq!(following.wanted(ONE), Some(round));
            (0..if round == 0 { ANSWERS / USED_LEAST } else { 0 }).for_each(|_| following.was_used());
            following.came(ONE, 32, round + 1);
        }
        assert_eq!(following.wanted(Spoken(2)), None, "not most of them");
        for round in u64::from(ANSWERS / 32)..u64::from(ANSWERS / 16) {
            assert_eq!(following.wanted(ONE), Some(round), "as many as needed were asked for");
            following.came(ONE, 32, round + 1);
        }
        assert_eq!((0..PAUSE).filter_map(|_| following.wanted(ONE)).count(), 0, "[AHC3]");
        assert!(following.wanted(ONE).is_some(), "it is tried again");
    }

    #[test]
    fn while_most_answers_are_asked_for_they_come_with_the_first_one() {
        let following = Following::default();
        following.wanted(ONE);
        (0..ANSWERS / 2 + 1).for_each(|_| following.was_used());
        following.came(ONE, ANSWERS, 0);
        assert_eq!((following.wanted(Spoken(2)), following.wanted(Spoken(3))), (Some(0), Some(0)));
        following.came(Spoken(2), ANSWERS / 2, 0);
        following.came(Spoken(3), ANSWERS / 2, 0);
        assert_eq!(following.wanted(Spoken(4)), None);
    }

    #[test]
    fn as_many_directories_are_followed_as_there_is_room_for() {
        let following = Following::default();
        (0..1000).for_each(|number| assert_eq!(following.wanted(Spoken(number)), None));
        assert!(following.table.lock().followed.len() == DIRECTORIES && following.wanted(Spoken(999)) == Some(0));
        assert_eq!(following.wanted(Spoken(1)), None, "it was forgotten");
    }
}

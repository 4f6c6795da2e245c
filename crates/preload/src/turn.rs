//! Whose turn a file is: whether its bytes go by the door, or by the mount, whose kernel keeps pages of what was read and written ([PRL10] of
//! `lib.rs`). The door is fast for writes; a page that the kernel has is faster than anything, and a write by the door drops it.

use tandemfs_client::Unless;

/// A file that is written by the mount has its turn by the door after so many writes inside of it.
const WRITES_BEFORE: u32 = 8;
const WRITES_BEFORE_MAX: u32 = 4096;
/// So many writes make up for a read by the door, which the kernel's pages would have served.
const WRITES_PER_READ: u32 = 4;
/// Most reads in a row by the door.
const READS_MAX: u32 = 16;
/// So many calls make up for pages that were dropped for them.
const WORTHWHILE: u32 = 256;

/// Of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    is_door: bool,
    /// By the mount: writes that are left until the door is tried.
    left: u32,
    /// Writes that the door is tried after, and where that begins.
    before: u32,
    least: u32,
    /// By the door: calls so far, and writes that reads can draw on.
    served: u32,
    saved: u32,
}

impl Turn {
    /// Of a file that was not written yet. `first`: writes by the mount at the start, no more than usual; 0 for the door at each write.
    pub(crate) fn new(first: u32) -> Self {
        let least = first.min(WRITES_BEFORE);
        Self { is_door: false, left: least, before: least, least, served: 0, saved: 0 }
    }

    /// A read; none if it is for the mount.
    pub(crate) fn read(&mut self) -> Option<Unless> {
        if !self.is_door {
            self.left = (self.left + WRITES_PER_READ).min(self.before);
            return None;
        }
        if self.saved < WRITES_PER_READ {
            self.ends();
            return None;
        }
        self.saved -= WRITES_PER_READ;
        self.served = self.served.saturating_add(1);
        Some(Unless { cached: true, grows: false })
    }

    /// A write inside of the file; none if it is for the mount.
    pub(crate) fn write(&mut self) -> Option<Unless> {
        if self.is_door {
            self.saved = (self.saved + 1).min(READS_MAX * WRITES_PER_READ);
            self.served = self.served.saturating_add(1);
            return Some(Unless { cached: true, grows: true });
        }
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return None;
        }
        (self.is_door, self.served, self.saved) = (true, 0, READS_MAX * WRITES_PER_READ);
        Some(Unless { cached: false, grows: true }) // the kernel's pages are dropped once
    }

    /// By the mount: how many of the next writes need no look, which then count as made, and the most that there may be.
    pub(crate) fn passed(&mut self) -> (u32, u32) {
        let count = if self.is_door { 0 } else { self.left.saturating_sub(1) };
        self.left -= count;
        (count, self.before)
    }

    /// The kernel has pages again, or would serve reads by them.
    pub(crate) fn ends(&mut self) {
        self.before = if self.served < WORTHWHILE { (2 * self.before).min(WRITES_BEFORE_MAX) } else { self.least };
        self.leave();
    }

    /// It cannot be opened by the door.
    pub(crate) fn refused(&mut self) {
        self.before = WRITES_BEFORE_MAX;
        self.leave();
    }

    fn leave(&mut self) {
        (self.is_door, self.left) = (false, self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes_until_door(turn: &mut Turn) -> u32 {
        (1..=1 << 20).find(|_| turn.write().is_some()).expect("some time")
    }

    #[test]
    fn a_file_that_is_written_comes_to_the_door_and_stays() {
        let mut turn = Turn::new(16);
        assert_eq!(writes_until_door(&mut turn), WRITES_BEFORE);
        let is_served =
            |turn: &mut Turn| (0..4).all(|_| turn.write() == Some(Unless { cached: true, grows: true })) && turn.read().is_some();
        assert!((0..10_000).all(|_| is_served(&mut turn)));
        let mut turn = Turn::new(0);
        for _ in 0..100 {
            assert_eq!(turn.write(), Some(Unless { cached: false, grows: true }), "at once, with the kernel's pages dropped");
            turn.ends();
        }
    }

    #[test]
    fn writes_that_need_no_look_count() {
        let mut turn = Turn::new(WRITES_BEFORE);
        assert!(turn.write().is_none());
        assert_eq!(turn.passed(), (WRITES_BEFORE - 2, WRITES_BEFORE));
        assert!(turn.write().is_some());
        let kept = turn.clone();
        assert_eq!((turn.passed(), turn), ((0, WRITES_BEFORE), kept));
    }

    #[test]
    fn reads_alone_are_the_kernels() {
        let mut turn = Turn::new(WRITES_BEFORE);
        assert!((0..100).all(|_| turn.read().is_none()));
        assert_eq!(writes_until_door(&mut turn), WRITES_BEFORE);
        let before = turn.clone();
        assert_eq!((0..1000).take_while(|_| turn.read().is_some()).count(), READS_MAX as usize);
        assert!((0..100).all(|_| turn.read().is_none()));
        assert_eq!(turn.before, 2 * before.before, "pages were dropped for nothing");
        // More reads than writes pay for.
        assert!((0..1000).all(|_| turn.write().is_none() && turn.read().is_none()));
    }

    #[test]
    fn pages_that_come_back_keep_a_file_from_the_door_ever_longer() {
        let mut turn = Turn::new(WRITES_BEFORE);
        assert_eq!(writes_until_door(&mut turn), WRITES_BEFORE);
        for doublings in 1..20 {
            assert!(turn.write().is_some());
            turn.ends();
            assert_eq!(writes_until_door(&mut turn), (WRITES_BEFORE << doublings).min(WRITES_BEFORE_MAX));
        }
        (0..WORTHWHILE).for_each(|_| assert!(turn.write().is_some()));
        turn.ends();
        assert_eq!(writes_until_door(&mut turn), WRITES_BEFORE, "it was worth it");
    }
}

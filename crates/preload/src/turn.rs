//! Whose turn a file is: whether its bytes go by the door, or by the mount, whose kernel keeps pages of what was read and written ([PRL10] of
//! `lib.rs`). The door is fast for writes; a page that the kernel has is faster than anything, and a write by the door drops it.

use tandemfs_client::Unless;

/// A file that is written by the mount has its turn by the door after so many writes inside of it; each two reads count against one.
const WRITES_BEFORE: u32 = 8;
const WRITES_BEFORE_MAX: u32 = 4096;
/// Most reads in a row by the door, and reads for each write in the long run.
const READS_MAX: u32 = 64;
const READS_PER_WRITE: u32 = 2;
/// So many calls make up for pages that were dropped for them.
const WORTHWHILE: u32 = 64;

/// Of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    is_door: bool,
    /// By the mount: what is left until the door is tried, in halves of writes.
    left: u32,
    /// Writes that the door is tried after, and where that begins.
    before: u32,
    least: u32,
    /// By the door: calls so far, and reads that are granted.
    served: u32,
    reads: u32,
}

impl Turn {
    /// Of a file that was not written yet. `first`: writes by the mount at the start, no more than usual; 0 for the door at each write.
    pub(crate) fn new(first: u32) -> Self {
        let least = first.min(WRITES_BEFORE);
        Self { is_door: false, left: 2 * least, before: least, least, served: 0, reads: 0 }
    }

    /// A read; none if it is for the mount.
    pub(crate) fn read(&mut self) -> Option<Unless> {
        if !self.is_door {
            self.left = (self.left + 1).min(2 * self.before);
            return None;
        }
        if self.reads == 0 {
            self.leave();
            return None;
        }
        self.reads -= 1;
        self.served += 1;
        Some(Unless { cached: true, grows: false })
    }

    /// A write inside of the file; none if it is for the mount.
    pub(crate) fn write(&mut self) -> Option<Unless> {
        if self.is_door {
            self.reads = (self.reads + READS_PER_WRITE).min(READS_MAX);
            self.served = self.served.saturating_add(1);
            return Some(Unless { cached: true, grows: true });
        }
        self.left = self.left.saturating_sub(2);
        if self.left > 0 {
            return None;
        }
        (self.is_door, self.served, self.reads) = (true, 0, READS_MAX);
        Some(Unless { cached: false, grows: true }) // the kernel's pages are dropped once
    }

    /// The kernel has pages again.
    pub(crate) fn cached(&mut self) {
        self.before = if self.served < WORTHWHILE { (2 * self.before).min(WRITES_BEFORE_MAX) } else { self.least };
        self.leave();
    }

    /// It cannot be opened by the door.
    pub(crate) fn refused(&mut self) {
        self.before = WRITES_BEFORE_MAX;
        self.leave();
    }

    fn leave(&mut self) {
        (self.is_door, self.left) = (false, 2 * self.before);
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
        assert!((0..10_000).all(|_| turn.write() == Some(Unless { cached: true, grows: true }) && turn.read().is_some()));
        let mut turn = Turn::new(0);
        for _ in 0..100 {
            assert_eq!(turn.write(), Some(Unless { cached: false, grows: true }), "at once, with the kernel's pages dropped");
            turn.cached();
        }
    }

    #[test]
    fn reads_alone_are_the_kernels() {
        let mut turn = Turn::new(WRITES_BEFORE);
        assert!((0..100).all(|_| turn.read().is_none()));
        assert_eq!(writes_until_door(&mut turn), WRITES_BEFORE);
        assert_eq!((0..1000).take_while(|_| turn.read().is_some()).count(), READS_MAX as usize);
        assert!((0..100).all(|_| turn.read().is_none()));
        // More reads than writes pay for.
        assert!((0..1000).all(|_| turn.write().is_none() && (0..2).all(|_| turn.read().is_none())));
    }

    #[test]
    fn pages_that_come_back_keep_a_file_from_the_door_ever_longer() {
        let mut turn = Turn::new(WRITES_BEFORE);
        assert_eq!(writes_until_door(&mut turn), WRITES_BEFORE);
        for doublings in 1..20 {
            assert!(turn.write().is_some());
            turn.cached();
            assert_eq!(writes_until_door(&mut turn), (WRITES_BEFORE << doublings).min(WRITES_BEFORE_MAX));
        }
        (0..WORTHWHILE).for_each(|_| assert!(turn.write().is_some()));
        turn.cached();
        assert_eq!(writes_until_door(&mut turn), WRITES_BEFORE, "it was worth it");
    }
}

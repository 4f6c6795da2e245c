//! Descriptors whose next calls go by the mount without a look at what they are. That is right for every descriptor, so a number that has
//! become another file meanwhile costs time at most ([PRL7] of `lib.rs`).

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a read adds: the mount's pages are of use.
const PER_READ: u64 = 4;
const COUNT_MAX: u64 = 0x7fff;
const PLACES: usize = 256;

/// The number (32 bits), whether it was a file of the mount (1), most calls to pass (15), calls to pass (16).
static HINTS: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

fn place(descriptor: c_int) -> Option<&'static AtomicU64> {
    Some(&HINTS[usize::try_from(descriptor).ok()? % PLACES])
}

fn packed(descriptor: c_int, is_ours: bool, most: u64, count: u64) -> u64 {
    u64::from(descriptor.cast_unsigned()) << 32 | u64::from(is_ours) << 31 | most << 16 | count
}

/// The next writes of a number pass. `is_ours`: it is a file of the mount.
pub(crate) fn pass(descriptor: c_int, is_ours: bool, count: u32, most: u32) {
    if let Some(place) = place(descriptor).filter(|_| count > 0) {
        let most = u64::from(most).min(COUNT_MAX);
        place.store(packed(descriptor, is_ours, most, u64::from(count).min(most)), Relaxed);
    }
}

/// Whether a call passes; then also whether the number was a file of the mount.
pub(crate) fn passes(descriptor: c_int, is_read: bool) -> Option<bool> {
    let place = place(descriptor)?;
    let hint = place.load(Relaxed);
    let (count, most, is_ours) = (hint & 0xffff, hint >> 16 & COUNT_MAX, hint >> 31 & 1 != 0);
    if count == 0 || hint >> 32 != u64::from(descriptor.cast_unsigned()) {
        return None;
    }
    let left = if is_read { (count + PER_READ).min(most) } else { count - 1 };
    place.store(packed(descriptor, is_ours, most, left), Relaxed); // threads may lose counts of each other
    Some(is_ours)
}

/// A number is closed.
pub(crate) fn forget(descriptor: c_int) {
    if let Some(place) = place(descriptor)
        && place.load(Relaxed) != 0
    {
        place.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_pass_as_often_as_was_said_and_reads_let_more_pass() {
        let writes = |number| (0..1000).take_while(|_| passes(number, false) == Some(true)).count();
        pass(7, true, 5, 8);
        assert_eq!((passes(7 + PLACES as c_int, false), passes(6, false), passes(-1, false)), (None, None, None));
        assert_eq!((writes(7), writes(7)), (5, 0));
        pass(7, true, 5, 8);
        assert!((0..100).all(|_| passes(7, true) == Some(true)));
        assert_eq!(writes(7), 8);
        pass(7, false, 100_000, 100_000);
        assert_eq!(passes(7, false), Some(false));
        forget(7);
        assert_eq!(passes(7, false), None);
        pass(7, true, 0, 8);
        assert_eq!(passes(7, true), None);
    }
}

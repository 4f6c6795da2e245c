//! Space that an operation took before the device failed it. The allocators give out the nearest free space, so without this the next
//! attempt would meet the same bad sector or poisoned line, and so would everybody's.
//!
//! [QU1] It is not given out again at once; the next attempt gets other space. Nothing on the medium names it.
//! [QU2] It is bounded: the oldest comes back when the list is full. All of it comes back when a zone has nothing else to give, and before
//!       maps are saved, which therefore never know of it.
//!
//! This is the list alone; `volume/space.rs` puts space in and gives it back.

use std::collections::VecDeque;

use crate::space::Space;
use crate::sync::Mutex;

/// Most pieces of space that are held back.
pub(crate) const PIECES_MAX: usize = 256;

/// The list.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    pieces: Mutex<VecDeque<Space>>,
}

impl Quarantine {
    /// Holds space back ([QU1]). Returns what the caller gives back for it: the oldest, where the list is full.
    pub(crate) fn hold(&self, space: Space) -> Option<Space> {
        let mut pieces = self.pieces.lock();
        pieces.push_back(space);
        if pieces.len() > PIECES_MAX { pieces.pop_front() } else { None }
    }

    /// Everything, for the caller to give back ([QU2]).
    pub(crate) fn take_all(&self) -> VecDeque<Space> {
        std::mem::take(&mut *self.pieces.lock())
    }
}

//! Space that an operation took before the device failed it. The allocators give out the nearest free space, so without this the next
//! attempt would meet the same bad sector or poisoned line, and so would everybody's.
//!
//! [QU1] It is not given out again at once; the next attempt gets other space. Nothing on the medium names it.
//! [QU2] It is bounded: the oldest comes back when the list is full. All of it comes back when a zone has nothing else to give, and before
//!       maps are saved, which therefore never know of it.

use std::collections::VecDeque;

use crate::journal::Space;
use crate::sync::Mutex;
use crate::volume::Volume;

/// Most pieces of space that are held back.
pub(crate) const PIECES_MAX: usize = 256;

/// The list.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    pieces: Mutex<VecDeque<Space>>,
}

impl Volume {
    /// Holds space back ([QU1]).
    pub(crate) fn quarantine(&self, space: Space) {
        if let Space::Slot { address, .. } = space {
            self.memory.avoid_page_of_slot(address); // a device fails whole pages, and the next slot would be of the same one
        }
        let oldest = {
            let mut pieces = self.quarantine.pieces.lock();
            pieces.push_back(space);
            if pieces.len() > PIECES_MAX { pieces.pop_front() } else { None }
        };
        if let Some(oldest) = oldest {
            self.give_back(oldest);
        }
    }

    /// Gives everything back ([QU2]). False where there was nothing.
    pub(crate) fn release_quarantine(&self) -> bool {
        let pieces = std::mem::take(&mut *self.quarantine.pieces.lock());
        let any = !pieces.is_empty();
        for space in pieces {
            self.give_back(space);
        }
        any
    }
}

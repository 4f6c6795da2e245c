//! Space that is held back because the device failed an access to it. The allocators give out the nearest free space, so without this list
//! the next attempt, by any thread, would get the same bad sector or poisoned line.
//!
//! [QU1] Such space is not given out again at once; the next attempt gets other space. No structure on the device refers to it.
//! [QU2] The list is bounded: when it is full, the oldest piece is freed. All pieces are freed when a zone has nothing else to give, and
//!       before maps are saved, so saved maps never contain them.
//!
//! This module is the list alone; `volume/space.rs` adds and frees pieces.

use std::collections::VecDeque;

use crate::space::Space;
use crate::sync::Mutex;

/// Most pieces that are held back.
pub(crate) const PIECES_MAX: usize = 256;

/// The list.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    pieces: Mutex<VecDeque<Space>>,
}

impl Quarantine {
    /// Holds space back ([QU1]). Returns the oldest piece, for the caller to free, if the list is full.
    pub(crate) fn hold(&self, space: Space) -> Option<Space> {
        let mut pieces = self.pieces.lock();
        pieces.push_back(space);
        if pieces.len() > PIECES_MAX { pieces.pop_front() } else { None }
    }

    /// How many pieces are held back.
    pub(crate) fn count(&self) -> usize {
        self.pieces.lock().len()
    }

    /// Takes all pieces, for the caller to free ([QU2]).
    pub(crate) fn take_all(&self) -> VecDeque<Space> {
        std::mem::take(&mut *self.pieces.lock())
    }
}

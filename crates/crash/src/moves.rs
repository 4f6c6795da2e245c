//! MOVE commands of the memory device that were submitted and not completed.

use std::collections::HashMap;

use tandemfs_device::{CacheMove, MoveTicket};

/// Commands that the device takes at once.
pub const MOVES_AT_ONCE: u32 = 8;

#[derive(Debug)]
struct UnderWay {
    command: CacheMove,
    /// What the source had at the submission.
    bytes: Vec<u8>,
    was_looked_at: bool,
}

/// Commands by ticket.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    last_number: u64,
    under_way: HashMap<u64, UnderWay>,
}

impl Moves {
    /// Takes a command, if there is a place.
    pub(crate) fn enter(&mut self, command: CacheMove, bytes: Vec<u8>) -> Option<MoveTicket> {
        if self.under_way.len() >= MOVES_AT_ONCE as usize {
            return None;
        }
        self.last_number += 1;
        self.under_way.insert(self.last_number, UnderWay { command, bytes, was_looked_at: false });
        Some(MoveTicket::new(self.last_number))
    }

    /// Whether nobody has asked for it yet; false for a ticket of nobody.
    pub(crate) fn is_first_look(&mut self, ticket: &MoveTicket) -> bool {
        self.under_way.get_mut(&ticket.number()).is_some_and(|under_way| !std::mem::replace(&mut under_way.was_looked_at, true))
    }

    /// Takes a completion: the command, and the bytes that its target gets.
    pub(crate) fn take(&mut self, ticket: MoveTicket) -> Option<(CacheMove, Vec<u8>)> {
        self.under_way.remove(&ticket.number()).map(|under_way| (under_way.command, under_way.bytes))
    }
}

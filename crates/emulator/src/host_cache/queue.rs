//! The MOVE commands of a drive whose completions were not taken yet.

use std::collections::HashMap;

use tandemfs_device::{DeviceError, MoveTicket};

/// When a MOVE is done, and how.
#[derive(Debug)]
struct UnderWay {
    done_at: u64,
    result: Result<(), DeviceError>,
}

/// Commands by ticket, at most so many as the drive takes at once.
#[derive(Debug)]
pub(super) struct MoveQueue {
    depth: u32,
    next_number: u64,
    under_way: HashMap<u64, UnderWay>,
}

impl MoveQueue {
    pub(super) fn new(depth: u32) -> Self {
        Self { depth, next_number: 1, under_way: HashMap::new() }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() >= self.depth as usize
    }

    /// Takes a place for a MOVE that will be done at this time of the drive.
    pub(super) fn enter(&mut self, done_at: u64, result: Result<(), DeviceError>) -> MoveTicket {
        let number = self.next_number;
        self.next_number += 1;
        self.under_way.insert(number, UnderWay { done_at, result });
        MoveTicket::new(number)
    }

    pub(super) fn done_at(&self, ticket: &MoveTicket) -> Option<u64> {
        self.under_way.get(&ticket.number()).map(|under_way| under_way.done_at)
    }

    /// Takes a completion and gives its place back.
    pub(super) fn take(&mut self, ticket: MoveTicket) -> Option<Result<(), DeviceError>> {
        self.under_way.remove(&ticket.number()).map(|under_way| under_way.result)
    }
}

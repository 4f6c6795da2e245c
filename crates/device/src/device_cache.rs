//! [`DeviceCache`]: the handle of a cache that the host manages ([CMV1]–[CMV7] of `cache_moves.rs`). What a completed MOVE proves is a type, as
//! for stores and block writes: a page that is in the cache is [`Fenced`], one that is in the flash is [`Written`] and needs a FLUSH.

use std::marker::PhantomData;
use std::time::Duration;

use tandemfs_format::{LineAddress, PAGE_LINES, Sector};

use crate::{CacheMove, CacheMoves, DeviceError, Drive, Fenced, MemoryRange, MoveDirection, MoveState, MoveTicket, Written};

/// A MOVE under way, whose completion is a `Proof`.
#[must_use = "nothing is promised of a MOVE until its completion was taken"]
#[derive(Debug)]
pub struct Moving<Proof> {
    command: CacheMove,
    ticket: MoveTicket,
    proof: PhantomData<Proof>,
}

/// What became of a MOVE that was asked for.
#[must_use = "a MOVE that is pending is to be asked for again"]
#[derive(Debug)]
pub enum Moved<Proof> {
    /// It is still under way.
    Pending(Moving<Proof>),
    /// It is complete.
    Done(Result<Proof, DeviceError>),
}

/// What the completion of a MOVE proves.
pub trait MoveProof: sealed::Made {}
impl MoveProof for Fenced {}
impl MoveProof for Written {}

pub(crate) mod sealed {
    pub trait Made {
        fn made() -> Self;
    }
}

/// The cache of a drive that leaves its management to the host.
#[derive(Clone, Copy)]
pub struct DeviceCache<'d> {
    drive: &'d Drive,
    moves: &'d dyn CacheMoves,
}

impl<'d> DeviceCache<'d> {
    pub(crate) fn of(drive: &'d Drive, moves: &'d dyn CacheMoves) -> Self {
        Self { drive, moves }
    }

    /// Pages that it has room for.
    pub fn page_count(&self) -> u64 {
        self.drive.description().cache_bytes / tandemfs_format::PAGE_BYTES as u64
    }

    /// Where it is in the range of loads and stores, for [`Drive::map`].
    pub fn range(&self) -> MemoryRange {
        self.drive.description().cache()
    }

    /// The first line of a page, for loads and stores by the drive.
    pub fn address(&self, page: u64) -> LineAddress {
        LineAddress::new(self.range().offset / tandemfs_format::LINE_BYTES as u64 + page * PAGE_LINES)
    }

    /// Commands that the drive takes at once.
    pub fn queue_depth(&self) -> u32 {
        self.moves.queue_depth()
    }

    /// Brings sectors into pages of the cache; `None` where the drive takes no more commands at present. `_stored` proves that no store to
    /// these pages is on its way ([CMV3]).
    ///
    /// # Errors
    /// Those of [`CacheMoves::submit`].
    pub fn bring_in(&self, sector: Sector, page: u64, count: u32, _stored: &Fenced) -> Result<Option<Moving<Fenced>>, DeviceError> {
        self.submit(CacheMove { direction: MoveDirection::ToCache, cache_page: page, sector, count })
    }

    /// Writes pages of the cache to sectors; `None` as above. `_stored` proves that what the pages are to take along was fenced ([CMV2]).
    ///
    /// # Errors
    /// Those of [`CacheMoves::submit`].
    pub fn write_back(&self, page: u64, sector: Sector, count: u32, _stored: &Fenced) -> Result<Option<Moving<Written>>, DeviceError> {
        self.submit(CacheMove { direction: MoveDirection::ToFlash, cache_page: page, sector, count })
    }

    /// Whether it is complete; does not wait.
    pub fn poll<Proof: MoveProof>(&self, moving: Moving<Proof>) -> Moved<Proof> {
        self.seen(moving.command, self.moves.poll(moving.ticket))
    }

    /// Waits for its completion, so long at most.
    pub fn wait<Proof: MoveProof>(&self, moving: Moving<Proof>, timeout: Duration) -> Moved<Proof> {
        self.seen(moving.command, self.moves.wait(moving.ticket, timeout))
    }

    fn submit<Proof>(&self, command: CacheMove) -> Result<Option<Moving<Proof>>, DeviceError> {
        let ticket = self.moves.submit(&command)?;
        if ticket.is_some() {
            self.drive.counters().moved(command.direction, command.bytes());
        }
        Ok(ticket.map(|ticket| Moving { command, ticket, proof: PhantomData }))
    }

    fn seen<Proof: MoveProof>(&self, command: CacheMove, state: MoveState) -> Moved<Proof> {
        match state {
            MoveState::Pending(ticket) => Moved::Pending(Moving { command, ticket, proof: PhantomData }),
            MoveState::Done(Ok(())) => Moved::Done(Ok(Proof::made())),
            MoveState::Done(Err(error)) => {
                // Of a pair, what is poisoned is the memory half: where a move to the cache stores, and one to the flash loads.
                self.drive.counters().failed(command.direction == MoveDirection::ToFlash, &error);
                Moved::Done(Err(error))
            }
        }
    }
}

//! A block of a write during its steps: split off with its parts, planned, transferred, committed. This file has data only. Each step has
//! its own file (`plan.rs`, `transfer.rs`, `commit.rs`), and these files do not depend on each other.

use smallvec::SmallVec;
use tandemfs_device::{SharedBytes, Source};
use tandemfs_format::mapping::LogEntry;
use tandemfs_format::{InodeNumber, LineAddress, SECTOR_BYTES};

use super::in_place::InPlace;
use super::log_plan::Part;
use crate::index::block::{Base, Block, LogSlots, NewExtent};
use crate::volume::Volume;

/// The blocks of a write.
pub(super) type Targets<'d> = SmallVec<[Target<'d>; 2]>;

/// One block of a write.
pub(super) struct Target<'d> {
    pub(super) block: u64,
    pub(super) old: Block,
    pub(super) parts: SmallVec<[Part<'d>; 2]>,
    /// The parts before unchanged lines were left out ([MR4] of `modified.rs`) and in-place parts were removed; empty if neither happened.
    pub(super) as_it_came: Vec<Part<'d>>,
    /// Lines of its sectors that are written in place.
    pub(super) in_place: InPlace,
    pub(super) action: Action<'d>,
}

/// The new state of a block.
pub(super) enum Action<'d> {
    /// Not planned yet.
    Undecided,
    /// Other logs over `base`, the new base of the block. The slots are filled as the logs are stored.
    Logs { merges: u64, slots: LogSlots, stores: SmallVec<[Store<'d>; 2]>, base: Base },
    /// New sectors or pages for the block, or its own unwritten ones; the logs in `slots` stay over or beyond them, and those of `stores` are added as
    /// they are stored.
    Extent { new: NewExtent, fill: bool, bytes: Bytes<'d>, slots: LogSlots, stores: SmallVec<[Store<'d>; 2]> },
}

/// A log to be stored, and its entry in the leaf.
pub(super) struct Store<'d> {
    pub(super) slot: usize,
    pub(super) entry: LogEntry,
    /// Bytes of the entry that are on the device already: an append in place does not touch them.
    pub(super) skip: u32,
    pub(super) bytes: Bytes<'d>,
}

/// Bytes that are to be stored.
pub(super) enum Bytes<'d> {
    Borrowed(&'d [u8]),
    /// Memory that others may change, of a block that goes by a request ([SM3] of `write_path.rs`).
    Shared(SharedBytes<'d>),
    Owned(Vec<u8>),
    /// New bytes merged with logs of this file, which are loaded while block writes are in flight.
    Merged(InodeNumber, Vec<LogEntry>),
}

impl<'d> Bytes<'d> {
    /// Bytes that nobody changes: shared ones are copied ([SM3] of `write_path.rs`).
    pub(super) fn private(source: Source<'d>) -> Self {
        match source {
            Source::Private(bytes) => Self::Borrowed(bytes),
            Source::Shared(_) => Self::Owned(source.to_vec()),
        }
    }

    pub(super) fn get(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
            Self::Shared(_) => unreachable!("only requests take bytes from shared memory"),
            Self::Merged(..) => unreachable!("logs are merged before their bytes are asked for"),
        }
    }

    /// For a request.
    pub(super) fn source(&self) -> Source<'_> {
        match self {
            Self::Shared(bytes) => Source::Shared(*bytes),
            private => Source::Private(private.get()),
        }
    }
}

impl<'d> Target<'d> {
    /// A block that receives new bytes.
    pub(super) fn new(block: u64, old: Block, part: Part<'d>) -> Self {
        Self { parts: SmallVec::from_iter([part]), ..Self::changed(block, old, Action::Undecided) }
    }

    /// A block that changes without new bytes of a caller.
    pub(super) fn changed(block: u64, old: Block, action: Action<'d>) -> Self {
        Self { block, old, parts: SmallVec::new(), as_it_came: Vec::new(), in_place: InPlace::default(), action }
    }

    /// Restores the parts as the caller wrote them; nothing is written in place.
    pub(super) fn restore(&mut self) {
        if !self.as_it_came.is_empty() {
            self.parts = std::mem::take(&mut self.as_it_came).into();
            self.in_place = InPlace::default();
        }
    }

    /// Whether the block's own sectors are enough for the parts. A log that crosses their end stays, so it must not hide new bytes.
    pub(super) fn fits(&self) -> bool {
        let own = self.old.base.sectors();
        own > 0 && self.covered_sectors() <= own && !self.hides(own * SECTOR_BYTES as u32)
    }

    /// The logs of which bytes lie behind this offset in the block.
    pub(super) fn logs_behind(&self, offset: u32) -> LogSlots {
        self.old.logs.map(|slot| slot.filter(|log| log.end() > offset))
    }

    /// Number of sectors, from the block's start, that the parts reach into.
    fn covered_sectors(&self) -> u32 {
        self.parts.iter().map(Part::end).max().unwrap_or(0).div_ceil(SECTOR_BYTES as u32)
    }

    /// Whether a log across `end` lies over bytes of the parts.
    fn hides(&self, end: u32) -> bool {
        let across = |log: &&LogEntry| log.offset < end && log.end() > end;
        let hides = |log: &LogEntry| self.parts.iter().any(|part| log.offset < part.end() && part.offset < log.end());
        self.old.logs().filter(across).any(hides)
    }

    /// Whether every byte of the parts already has space. New bytes in a block's holes are growth, whatever else the block has: if they
    /// took transient room, no space would come back for it (RULES R14).
    pub(super) fn replaces(&self) -> bool {
        let of_base = self.old.base.bytes();
        self.parts.iter().all(|part| {
            let mut at = part.offset.max(of_base);
            while at < part.end() {
                match self.old.logs().find(|log| log.offset <= at && at < log.end()) {
                    Some(log) => at = log.end(),
                    None => return false,
                }
            }
            true
        })
    }

    /// The first of its pages, if the block becomes `pages` fresh pages of the memory zone and nothing else.
    pub(super) fn fresh_pages(&self, pages: u64) -> Option<LineAddress> {
        match &self.action {
            Action::Extent { new, fill: false, slots, stores, .. } => {
                let is_alone = u64::from(new.count) == pages && stores.is_empty() && slots.iter().all(Option::is_none);
                new.at.page().filter(|_| is_alone)
            }
            _ => None,
        }
    }

    /// The checksums of its new sectors or pages.
    pub(super) fn checksums(&self) -> &[u32] {
        if let Action::Extent { new, .. } = &self.action { &new.checksums } else { &[] }
    }

    /// Whether its new sectors belong to the transient room.
    pub(super) fn is_in_room(&self, volume: &Volume) -> bool {
        matches!(&self.action, Action::Extent { new, .. } if new.at.sector().is_some_and(|sector| volume.sectors.is_in_room(sector)))
    }
}

//! Saves and loads allocation maps: one piece for each unit of the memory zone and each group of sectors.
//!
//! [MA1] Pieces are written before the superblock says *clean*, and carry the generation of the mount that wrote them (RULES R25). A piece
//!       of which only some lines are new is verified by the checksum in its head, like any other.
//! [MA2] If one piece fails verification, cannot be read, or marks impossible space as taken, all pieces are discarded and the maps
//!       rebuilt.
//! [MA3] After growth, the pieces describe old space as the old pieces did. New space is free, and so is the space of pieces that moved.
//!       Only units that were fixed or free can become fixed.

use tandemfs_device::{Fenced, InFlight, Lines, Structure};
use tandemfs_format::allocation_map::{PIECE_BYTES, PieceKind, decode, encode};
use tandemfs_format::geometry::{Geometry, PIECE_LINES};
use tandemfs_format::{LINE_BYTES, Line};

use super::memory::MemoryAllocator;
use super::sectors::SectorAllocator;
use super::units::UnitOwner;
use crate::cache::{LineStore, load_bulk};
use crate::error::Result;
use crate::mutant::{Mutant, on};

/// Number of pieces loaded at once.
const BATCH: u64 = 256;

/// The allocators of both zones, and the drive that stores their maps.
pub(crate) struct Maps<'a> {
    pub(crate) line_store: &'a LineStore,
    pub(crate) memory: &'a MemoryAllocator,
    pub(crate) sectors: &'a SectorAllocator,
}

impl Maps<'_> {
    /// Writes all pieces ([MA1]) for these sizes: the current sizes, or those that the file system grows to ([MA3]). They carry the
    /// generation of the mount. Returns the proof that they are durable.
    pub(crate) fn save(&self, geometry: &Geometry, generation: u64) -> Result<Fenced> {
        let drive = &self.line_store.drive;
        let mut in_flight = Lines::<InFlight>::none();
        let mut buffer = Vec::with_capacity(LINE_BYTES + PIECE_BYTES);
        // If pages can be read by blocks, only changed lines are stored: the head, and groups of 512 bits (ByteFS Table 3).
        let mut knows_pages = drive.description().overlapping;
        let mut saved = Vec::new();
        for index in 0..geometry.piece_count() {
            let (kind, bits) = self.piece_of(geometry, index)?;
            buffer.clear();
            buffer.extend_from_slice(&encode(self.line_store.pair, kind, index, generation, &bits));
            buffer.extend_from_slice(&bits);
            let address = geometry.piece(index);
            if knows_pages && index % BATCH == 0 {
                let batch = BATCH.min(geometry.piece_count() - index);
                saved.resize(batch as usize * buffer.len(), 0);
                knows_pages = load_bulk(drive, Structure::AllocationMap, address, &mut saved).is_ok();
            }
            let old = knows_pages.then(|| &saved[(index % BATCH) as usize * buffer.len()..][..buffer.len()]);
            let is_same = |line: usize| old.is_some_and(|old| old[line..line + LINE_BYTES] == buffer[line..line + LINE_BYTES]);
            let changed: Vec<usize> = (0..buffer.len()).step_by(LINE_BYTES).filter(|line| !is_same(*line)).collect();
            for run in changed.chunk_by(|one, next| one + LINE_BYTES == *next) {
                let (start, end) = (run[0], run[run.len() - 1] + LINE_BYTES);
                let lines = drive.store(Structure::AllocationMap, address.nth((start / LINE_BYTES) as u64), &buffer[start..end])?;
                in_flight = in_flight.and(drive.flush_lines(lines));
            }
        }
        Ok(drive.fence(in_flight))
    }

    /// Builds one piece from the allocators' state ([MA3]).
    fn piece_of(&self, geometry: &Geometry, index: u64) -> Result<(PieceKind, Vec<u8>)> {
        let (units, old_units) = (geometry.memory_units(), self.line_store.geometry.memory_units());
        let empty = || vec![0; PIECE_BYTES];
        if let Some(group) = index.checked_sub(units) {
            return Ok((PieceKind::Sectors, self.sectors.group_of(group, geometry.block_sectors())));
        }
        let owner = if index < old_units { self.memory.map().owner(index) } else { UnitOwner::Free };
        let bits = |kind| (kind, if index < old_units { self.memory.map().unit_bytes(index) } else { empty() });
        Ok(match (owner, geometry.is_fixed(index)) {
            (UnitOwner::Fixed | UnitOwner::Free, true) => (PieceKind::Fixed, empty()),
            (UnitOwner::Fixed, false) => (PieceKind::Free, empty()),
            (UnitOwner::Free, false) => bits(PieceKind::Free),
            (UnitOwner::Region(_), false) => bits(PieceKind::Region),
            (UnitOwner::Pool(_), false) => bits(PieceKind::Data),
            (UnitOwner::Extents(_), false) => bits(PieceKind::Extents),
            (owner, true) => {
                let cause = format!("the maps were to lie in unit {index}, which {owner:?} has");
                return Err(self.line_store.health.stop_because(cause));
            }
        })
    }

    /// Loads the pieces that the last mount saved. If one fails verification ([MA2]), returns false and loads none.
    pub(crate) fn load(&self, generation: u64) -> bool {
        let LineStore { drive, pair, geometry, .. } = self.line_store;
        let units = geometry.memory_units();
        let count = geometry.piece_count();
        let piece_bytes = (PIECE_LINES * LINE_BYTES as u64) as usize;
        let mut pieces: Vec<(u64, PieceKind, Vec<u8>)> = Vec::new();
        let mut buffer = vec![0; piece_bytes * BATCH as usize];
        for start in (0..count).step_by(BATCH as usize) {
            let batch = BATCH.min(count - start);
            let bytes = &mut buffer[..piece_bytes * batch as usize];
            if let Err(error) = load_bulk(drive, Structure::AllocationMap, geometry.piece(start), bytes) {
                tracing::warn!(%error, "the saved maps cannot be read");
                return false;
            }
            for (index, piece) in (start..).zip(bytes.chunks_exact(piece_bytes)) {
                let (header, bits) = piece.split_at(LINE_BYTES);
                let mut line: Line = [0; LINE_BYTES];
                line.copy_from_slice(header);
                let Some(kind) = decode(*pair, index, generation, &line, bits) else { return false };
                let owner = (index < units).then(|| self.memory.map().owner(index));
                let fits =
                    matches!(
                        (kind, owner),
                        (PieceKind::Data | PieceKind::Extents | PieceKind::Free, Some(UnitOwner::Free))
                            | (PieceKind::Region, Some(UnitOwner::Region(_)))
                            | (PieceKind::Fixed, Some(UnitOwner::Fixed))
                            | (PieceKind::Sectors, None)
                    ) && (kind != PieceKind::Region || on(Mutant::MapBeyondMarkTaken) || self.memory.map().is_below_mark(index, bits));
                if !fits {
                    return false;
                }
                if !matches!(kind, PieceKind::Free | PieceKind::Fixed) {
                    pieces.push((index, kind, bits.to_vec()));
                }
            }
        }
        for (index, kind, bits) in pieces {
            match kind {
                PieceKind::Sectors => self.sectors.load_group((index - units) as usize, &bits),
                _ => self.memory.load_unit(index, kind, &bits),
            }
        }
        true
    }
}

//! Saving and loading allocation maps: one piece for each unit of the memory zone and each group of sectors.
//!
//! [A1] Pieces are written before the superblock says *clean*, and carry the generation of the mount that wrote them (RULES R25).
//! [A2] One piece that does not verify, cannot be read, or takes what nothing can have taken makes all of them worthless: the maps are
//!      rebuilt.

use tandemfs_device::{Fenced, InFlight, Lines, Structure};
use tandemfs_format::allocation_map::{PIECE_BYTES, PieceKind, decode, encode};
use tandemfs_format::geometry::PIECE_LINES;
use tandemfs_format::{LINE_BYTES, Line};

use super::memory::UnitOwner;
use crate::Result;
use crate::mutant::{Mutant, on};
use crate::volume::Volume;

impl Volume {
    /// Writes all pieces ([A1]). Returns the proof that they are durable.
    pub(crate) fn save_maps(&self) -> Result<Fenced> {
        let generation = self.journal.superblock_generation();
        let units = self.geometry.memory_units();
        let mut in_flight = Lines::<InFlight>::none();
        let mut buffer = Vec::with_capacity(LINE_BYTES + PIECE_BYTES);
        for index in 0..self.geometry.piece_count() {
            let (kind, bits) = if index < units {
                let kind = match self.memory.map().owner(index) {
                    UnitOwner::Free => PieceKind::Free,
                    UnitOwner::Fixed => PieceKind::Fixed,
                    UnitOwner::Region(_) => PieceKind::Region,
                    UnitOwner::Pool(_) => PieceKind::Data,
                };
                (kind, self.memory.map().unit_bytes(index))
            } else {
                (PieceKind::Sectors, self.sectors.group_bytes((index - units) as usize))
            };
            buffer.clear();
            buffer.extend_from_slice(&encode(self.pair, kind, index, generation, &bits));
            buffer.extend_from_slice(&bits);
            let lines = self.drive.store(Structure::AllocationMap, self.geometry.piece(index), &buffer)?;
            in_flight = in_flight.and(self.drive.flush_lines(lines));
        }
        Ok(self.drive.fence(in_flight))
    }

    /// Takes the saved pieces of the last mount. False where one of them does not verify ([A2]); then nothing was taken.
    pub(crate) fn load_maps(&self, generation: u64) -> bool {
        let units = self.geometry.memory_units();
        let count = self.geometry.piece_count();
        let piece_bytes = (PIECE_LINES * LINE_BYTES as u64) as usize;
        const BATCH: u64 = 256;
        let mut pieces: Vec<(u64, PieceKind, Vec<u8>)> = Vec::new();
        let mut buffer = vec![0; piece_bytes * BATCH as usize];
        for start in (0..count).step_by(BATCH as usize) {
            let batch = BATCH.min(count - start);
            let bytes = &mut buffer[..piece_bytes * batch as usize];
            if let Err(error) = self.drive.load(Structure::AllocationMap, self.geometry.piece(start), bytes) {
                tracing::warn!(%error, "the saved maps cannot be read");
                return false;
            }
            for (index, piece) in (start..).zip(bytes.chunks_exact(piece_bytes)) {
                let (header, bits) = piece.split_at(LINE_BYTES);
                let mut line: Line = [0; LINE_BYTES];
                line.copy_from_slice(header);
                let Some(kind) = decode(self.pair, index, generation, &line, bits) else { return false };
                let owner = (index < units).then(|| self.memory.map().owner(index));
                let fits =
                    matches!(
                        (kind, owner),
                        (PieceKind::Data | PieceKind::Free, Some(UnitOwner::Free))
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
                _ => self.memory.load_unit(index, kind == PieceKind::Data, &bits),
            }
        }
        true
    }
}

//! Compares the saved allocation maps of a clean image with the space that the tree uses.
//!
//! [OM1] A piece that verifies for the superblock's generation says what an unmount left, also where the clean flag is not set: an unmount
//!       writes pieces after its last transaction, and a mount that writes raises the generation in the write that clears the flag. So
//!       either the unmount was cut before it set the flag, or a repair has cleared it, which raises the generation last ([RP8]). For a
//!       repair and a copy that is evidence about what they cannot read; nobody allocates by such maps.

use tandemfs_device::Structure;
use tandemfs_format::allocation_map::{PIECE_BYTES, PieceKind, decode};
use tandemfs_format::geometry::{PIECE_LINES, PIECE_SECTORS};
use tandemfs_format::{LINE_BYTES, LineAddress, PAGE_LINES, UNIT_LINES};

use crate::checker::{Checker, Stage};
use crate::claims::Claims;
use crate::finding::{Finding, Target};
use crate::image::{Image, line_of};
use crate::mutant::{Mutant, on};

/// Pieces that a look for maps reads.
const LOOKED_AT_MAX: u64 = 64;

/// The bits of a piece, if it verifies for this generation.
fn bits_of(image: &Image<'_>, generation: u64, index: u64) -> Option<Vec<u8>> {
    let mut piece = vec![0; PIECE_LINES as usize * LINE_BYTES];
    image.load(Structure::AllocationMap, image.geometry.piece(index), &mut piece).ok()?;
    let bits = piece.split_off(LINE_BYTES);
    decode(image.pair, index, generation, &line_of(&piece, 0), &bits)?;
    Some(bits)
}

/// Whether there are maps of the superblock's generation ([OM1]), as far as the first pieces show it.
pub(crate) fn are_there(image: &Image<'_>) -> bool {
    (0..image.geometry.piece_count().min(LOOKED_AT_MAX)).any(|index| bits_of(image, image.superblock.generation, index).is_some())
}

/// Whether a page is in use, as the maps say that an unmount saved with this generation ([OM1]). `None` if there are none for it.
pub(crate) fn is_page_in_use(image: &Image<'_>, generation: u64, page: LineAddress) -> Option<bool> {
    let bits = bits_of(image, generation, page.unit())?;
    let first = (page.number() % UNIT_LINES) as usize / 8;
    Some(bits.get(first..first + PAGE_LINES as usize / 8)?.iter().all(|byte| *byte == 0xff))
}

impl Checker<'_> {
    /// Checks every piece of a clean image. Compares pieces with the tree only if the whole tree was read ([CK3]).
    pub(crate) fn check_maps(&mut self) {
        let image = self.image;
        if !image.superblock.clean || on(Mutant::MapsIgnored) {
            return;
        }
        self.claim_what_has_no_owner();
        let (count, units) = (image.geometry.piece_count(), image.geometry.memory_units());
        let mut piece = vec![0; PIECE_LINES as usize * LINE_BYTES];
        for index in 0..count {
            if index % 64 == 0 {
                self.progress(Stage::Maps, index, count);
            }
            let read = image.load(Structure::AllocationMap, image.geometry.piece(index), &mut piece);
            let bits = piece.get(LINE_BYTES..).filter(|bits| bits.len() == PIECE_BYTES);
            let kind = match (read, bits) {
                (Ok(()), Some(bits)) => decode(image.pair, index, image.superblock.generation, &line_of(&piece, 0), bits),
                _ => None,
            };
            let (Some(kind), Some(bits)) = (kind, bits) else {
                self.find(Finding::MapDamaged { piece: index });
                continue;
            };
            if !self.kind_fits(index, kind) {
                self.find(Finding::MapKind { piece: index });
                continue;
            }
            if kind == PieceKind::Fixed || !self.tree_whole {
                continue;
            }
            let (claims, group): (&Claims, u64) = if index < units { (&self.lines, index) } else { (&self.sectors, index - units) };
            let (free_but_used, used_but_free) = differences(claims, group, bits);
            if free_but_used > 0 || used_but_free > 0 {
                self.find(Finding::MapWrong { piece: index, free_but_used, used_but_free });
            }
        }
        self.progress(Stage::Maps, count, count);
    }

    /// Slot 0 of the inodes, the identity, and the sectors of the last piece beyond the zone's end.
    pub(crate) fn claim_what_has_no_owner(&mut self) {
        let image = self.image;
        if let Some(first) = image.segments.inodes().first().filter(|first| first.region_unit == 0 && first.high_water_lines > 0) {
            self.lines.claim(first.start_unit * UNIT_LINES, 2);
        }
        let total = image.geometry.block_sectors();
        if total > 0 {
            self.sectors.claim(0, 1);
            self.sectors.claim(total, total.next_multiple_of(PIECE_SECTORS) - total);
        }
    }

    fn kind_fits(&self, index: u64, kind: PieceKind) -> bool {
        let image = self.image;
        if index >= image.geometry.memory_units() {
            return kind == PieceKind::Sectors;
        }
        if image.geometry.is_fixed(index) {
            return kind == PieceKind::Fixed;
        }
        if image.segments.of_unit(index).is_some() {
            return kind == PieceKind::Region;
        }
        let own = self.data_units.get(&index);
        match kind {
            PieceKind::Data => own != Some(&Target::Pages),
            PieceKind::Extents => own != Some(&Target::Slot) && image.superblock.has_memory_homes(),
            PieceKind::Free => true,
            PieceKind::Region | PieceKind::Fixed | PieceKind::Sectors => false,
        }
    }
}

/// Numbers of bits that are used but marked free, and free but marked used.
fn differences(claims: &Claims, group: u64, bits: &[u8]) -> (u32, u32) {
    let truth = claims.group(group);
    let (mut free_but_used, mut used_but_free) = (0, 0);
    for (index, chunk) in bits.chunks_exact(8).enumerate() {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        let saved = u64::from_le_bytes(word);
        let used = truth.and_then(|truth| truth.get(index)).copied().unwrap_or(0);
        free_but_used += (used & !saved).count_ones();
        used_but_free += (saved & !used).count_ones();
    }
    (free_but_used, used_but_free)
}

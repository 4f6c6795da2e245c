//! Units of 2 MiB of the memory zone: the owner of each unit, and which of its lines are taken.

use tandemfs_format::geometry::Geometry;
use tandemfs_format::segment::Region;
use tandemfs_format::{PAGE_LINES, UNIT_LINES};

use super::bits::{Bits, WORDS};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

const OWNER_FREE: u32 = 0;
const OWNER_FIXED: u32 = 1;
const OWNER_REGION: u32 = 2;
const OWNER_POOL: u32 = 16;
const OWNER_EXTENTS: u32 = 1 << 16;

/// The owner of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnitOwner {
    Free,
    Fixed,
    Region(Region),
    /// The data area: slots of data logs, of this pool.
    Pool(u32),
    /// The data area: extents of files, of this pool of `extents.rs`.
    Extents(u32),
}

/// Owners and bits of all units.
pub(crate) struct UnitMap {
    owners: Vec<AtomicU32>,
    /// For a region's unit: the lines below the high-water mark when the segment table was read. No line beyond can have been taken then.
    pub(super) lines_at_mount: Vec<AtomicU32>,
    pub(super) bits: Vec<Mutex<Bits>>,
}

impl UnitMap {
    pub(super) fn new(geometry: &Geometry) -> Self {
        let units = geometry.memory_units() as usize;
        let owner = |unit| if geometry.is_fixed(unit) { OWNER_FIXED } else { OWNER_FREE };
        Self {
            owners: (0..geometry.memory_units()).map(|unit| AtomicU32::new(owner(unit))).collect(),
            lines_at_mount: (0..units).map(|_| AtomicU32::new(UNIT_LINES as u32)).collect(),
            bits: (0..units).map(|_| Mutex::new(Bits::new())).collect(),
        }
    }

    /// Whether saved bits of a region's unit mark no line beyond the high-water mark as taken.
    pub(crate) fn is_below_mark(&self, unit: u64, bytes: &[u8]) -> bool {
        let below = self.lines_at_mount[unit as usize].load(Relaxed) as usize;
        let (whole, rest) = (below / 8, below % 8);
        bytes[whole..].iter().enumerate().all(|(at, byte)| if at == 0 { byte >> rest == 0 } else { *byte == 0 })
    }

    pub(crate) fn owner(&self, unit: u64) -> UnitOwner {
        match self.owners[unit as usize].load(SeqCst) {
            OWNER_FREE => UnitOwner::Free,
            OWNER_FIXED => UnitOwner::Fixed,
            pool if pool >= OWNER_EXTENTS => UnitOwner::Extents(pool - OWNER_EXTENTS),
            pool if pool >= OWNER_POOL => UnitOwner::Pool(pool - OWNER_POOL),
            region => UnitOwner::Region(Region::ALL[(region - OWNER_REGION) as usize]),
        }
    }

    pub(super) fn set_owner(&self, unit: u64, owner: UnitOwner) {
        let word = match owner {
            UnitOwner::Free => OWNER_FREE,
            UnitOwner::Fixed => OWNER_FIXED,
            UnitOwner::Region(region) => OWNER_REGION + u32::from(region.number()) - 1,
            UnitOwner::Pool(pool) => OWNER_POOL + pool,
            UnitOwner::Extents(pool) => OWNER_EXTENTS + pool,
        };
        self.owners[unit as usize].store(word, SeqCst);
    }

    pub(crate) fn unit_bytes(&self, unit: u64) -> Vec<u8> {
        self.bits[unit as usize].lock().to_bytes()
    }

    /// Takes a slot in a page, if the pool still owns the unit and the page has space.
    pub(crate) fn take_in_page(&self, pool: u32, page: DataPage, lines: u32) -> Option<u64> {
        if self.owner(page.unit.into()) != UnitOwner::Pool(pool) {
            return None;
        }
        let found = self.bits[page.unit as usize].lock().take_in_word(page.word.into(), lines, true)?;
        Some(found.index())
    }

    /// Whether the pool owns the page and the page has no slots.
    pub(crate) fn is_free_page(&self, pool: u32, page: DataPage) -> bool {
        self.owner(page.unit.into()) == UnitOwner::Pool(pool) && self.bits[page.unit as usize].lock().word(page.word.into()) == 0
    }

    /// Finds a page of the unit without slots.
    pub(crate) fn free_word(&self, pool: u32, unit: u32) -> Option<usize> {
        if self.owner(unit.into()) != UnitOwner::Pool(pool) {
            return None;
        }
        let bits = self.bits[unit as usize].lock();
        if bits.free() < PAGE_LINES as u32 {
            return None;
        }
        (0..WORDS).find(|word| bits.word(*word) == 0)
    }
}

/// A 4 KiB page of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataPage {
    pub(crate) unit: u32,
    pub(crate) word: u16,
}

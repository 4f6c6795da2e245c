//! Units of 2 MiB of the memory zone: the owner of each unit, and which of its lines are taken.

use std::sync::OnceLock;

use tandemfs_device::Growing;
use tandemfs_format::geometry::Geometry;
use tandemfs_format::segment::Region;
use tandemfs_format::{PAGE_LINES, UNIT_LINES};

use super::bits::{Bits, WORDS};
use super::large_units::LargeUnits;
use super::shrinking::Doomed;
use crate::numa::Numa;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

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
    owners: Growing<AtomicU32>,
    /// For a region's unit: the lines below the high-water mark when the segment table was read. No line beyond can have been taken then.
    pub(super) lines_at_mount: Growing<AtomicU32>,
    pub(super) bits: Growing<Mutex<Bits>>,
    /// Units of the data area that are being emptied ([GA1] of `gathering.rs`).
    emptied: Growing<AtomicBool>,
    emptied_count: AtomicU64,
    /// The class of large extents, if there is one ([LX2] of `large_units.rs`).
    pub(super) large: Option<LargeUnits>,
    /// The node of each unit, and the free units of each node; empty with one node.
    nodes: Vec<u8>,
    free_on_nodes: Vec<AtomicU64>,
    /// Units that are to be left for good ([DZ1] of `shrinking.rs`).
    pub(super) doomed: OnceLock<Doomed>,
    /// Units that became free while they were being emptied.
    pub(super) gathered: AtomicU64,
}

impl UnitMap {
    pub(super) fn new(geometry: &Geometry, numa: &Numa) -> Self {
        let units = geometry.memory_units() as usize;
        let owner = |unit| if geometry.is_fixed(unit) { OWNER_FIXED } else { OWNER_FREE };
        let (mut nodes, mut free_on_nodes) = (Vec::new(), Vec::new());
        if numa.is_on() {
            nodes = (0..geometry.memory_units()).map(|unit| numa.of_unit(unit) as u8).collect();
            let free = |node| (0..units).filter(|unit| nodes[*unit] as usize == node && !geometry.is_fixed(*unit as u64)).count();
            free_on_nodes = (0..numa.count()).map(|node| AtomicU64::new(free(node) as u64)).collect();
        }
        Self {
            nodes,
            free_on_nodes,
            owners: (0..geometry.memory_units()).map(|unit| AtomicU32::new(owner(unit))).collect(),
            lines_at_mount: (0..units).map(|_| AtomicU32::new(UNIT_LINES as u32)).collect(),
            bits: (0..units).map(|_| Mutex::new(Bits::new())).collect(),
            emptied: (0..units).map(|_| AtomicBool::new(false)).collect(),
            emptied_count: AtomicU64::new(0),
            large: None,
            doomed: OnceLock::new(),
            gathered: AtomicU64::new(0),
        }
    }

    /// So many units from now on; the new ones are nobody's yet ([ON4] of `growing.rs`). Only where no node and no class of large extents counts them.
    pub(super) fn grow(&self, units: usize) {
        self.lines_at_mount.grow(units, |_| AtomicU32::new(UNIT_LINES as u32));
        self.bits.grow(units, |_| Mutex::new(Bits::new()));
        self.emptied.grow(units, |_| AtomicBool::new(false));
        self.owners.grow(units, |_| AtomicU32::new(OWNER_FIXED));
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

    /// Whether a unit is to be left for good.
    pub(super) fn is_doomed(&self, unit: u64) -> bool {
        self.doomed.get().is_some_and(|doomed| doomed.has(unit))
    }

    pub(super) fn set_owner(&self, unit: u64, owner: UnitOwner) {
        let word = match owner {
            UnitOwner::Free if self.is_doomed(unit) => OWNER_FIXED,
            UnitOwner::Free => OWNER_FREE,
            UnitOwner::Fixed => OWNER_FIXED,
            UnitOwner::Region(region) => OWNER_REGION + u32::from(region.number()) - 1,
            UnitOwner::Pool(pool) => OWNER_POOL + pool,
            UnitOwner::Extents(pool) => OWNER_EXTENTS + pool,
        };
        let before = self.owners[unit as usize].swap(word, SeqCst);
        if let Some(node) = self.nodes.get(unit as usize) {
            let free = &self.free_on_nodes[*node as usize];
            match (before == OWNER_FREE, word == OWNER_FREE) {
                (true, false) => _ = free.fetch_sub(1, SeqCst),
                (false, true) => _ = free.fetch_add(1, SeqCst),
                _ => {}
            }
        }
        if let Some(large) = &self.large {
            large.note(unit, owner == UnitOwner::Free);
        }
        if owner == UnitOwner::Free && self.clear_emptied(unit) {
            self.gathered.fetch_add(1, SeqCst);
        }
    }

    /// The free unit that is to be taken next: what `other` finds, where there is no class of large extents. The caller gives it an owner.
    pub(super) fn next_free(&self, other: impl FnOnce() -> Option<u64>) -> Option<u64> {
        match &self.large {
            Some(large) => large.take_unit(),
            None => other(),
        }
    }

    /// Free units of a node, where there are several.
    pub(super) fn free_units_on(&self, node: usize) -> u64 {
        self.free_on_nodes[node].load(SeqCst)
    }

    /// Nobody gets anything in a unit of the data area from now on, until it is free.
    pub(super) fn set_emptied(&self, unit: u64) {
        if !self.emptied[unit as usize].swap(true, SeqCst) {
            self.emptied_count.fetch_add(1, SeqCst);
        }
    }

    /// False if the unit was not being emptied.
    pub(super) fn clear_emptied(&self, unit: u64) -> bool {
        let was = self.is_emptied(unit) && self.emptied[unit as usize].swap(false, SeqCst);
        if was {
            self.emptied_count.fetch_sub(1, SeqCst);
        }
        was
    }

    pub(super) fn is_any_emptied(&self) -> bool {
        self.emptied_count.load(SeqCst) > 0
    }

    /// Whether a unit of the data area is being emptied; none beyond the zone is.
    pub(super) fn is_emptied(&self, unit: u64) -> bool {
        self.is_any_emptied() && self.emptied.get(unit as usize).is_some_and(|emptied| emptied.load(SeqCst))
    }

    /// The units of the data area that are being emptied.
    pub(super) fn emptied_units(&self) -> Vec<u64> {
        if self.is_any_emptied() { (0..self.emptied.len() as u64).filter(|unit| self.is_emptied(*unit)).collect() } else { Vec::new() }
    }

    /// Whether the pool owns a unit and gives slots in it.
    fn serves(&self, pool: u32, unit: u32) -> bool {
        self.owner(unit.into()) == UnitOwner::Pool(pool) && !self.is_emptied(unit.into())
    }

    pub(crate) fn unit_bytes(&self, unit: u64) -> Vec<u8> {
        self.bits[unit as usize].lock().to_bytes()
    }

    /// Takes a slot in a page, if the pool still gives slots in its unit and the page has space.
    pub(crate) fn take_in_page(&self, pool: u32, page: DataPage, lines: u32) -> Option<u64> {
        if !self.serves(pool, page.unit) {
            return None;
        }
        let found = self.bits[page.unit as usize].lock().take_in_word(page.word.into(), lines, true)?;
        Some(found.index())
    }

    /// Whether the pool gives slots in the page, and it has none yet.
    pub(crate) fn is_free_page(&self, pool: u32, page: DataPage) -> bool {
        self.serves(pool, page.unit) && self.bits[page.unit as usize].lock().word(page.word.into()) == 0
    }

    /// Finds a page of the unit without slots.
    pub(crate) fn free_word(&self, pool: u32, unit: u32) -> Option<usize> {
        if !self.serves(pool, unit) {
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

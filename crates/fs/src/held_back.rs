//! Damage of metadata: which objects have it, and the space that is held back because a damaged line may name it.
//!
//! [HB1] Space of a kind that a damaged line may name and that nothing else proves free is marked as taken when the maps are rebuilt
//!       (`recovery.rs` [RE4]). So no allocator gives it out, whatever happens. Space that verified metadata frees afterwards was its own,
//!       and may be used again.
//! [HB2] Space that two claim stays taken when one of them frees it: [`HeldBack::keeps`] is asked about everything that is freed.
//! [HB3] An inode whose space another one has too is *shut off*: it answers `Damaged` like one whose own lines are damaged.
//! [HB4] While anything is held back, or an operation left space behind that it could not find, an unmount saves no maps and leaves `clean`
//!       0: the next mount searches again. So space that nothing names any more comes back as soon as nothing is damaged.
//! [HB5] Nothing here is stored on the device. Each rebuild starts from the lines alone, so damage does not grow from mount to mount.
//!
//! `quarantine.rs` is about the device: it holds back space that nobody owns, and gives it back on shortage. Here the owner is unknown.

use std::collections::{BTreeMap, BTreeSet};

use tandemfs_format::{InodeNumber, LINE_BYTES, PAGE_LINES, SECTOR_BYTES};

use crate::space::{Kinds, Space};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// What a mount knows about damaged metadata.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DamageReport {
    /// Inodes with damage that this mount has met: files, directories and others.
    pub objects: u64,
    /// The maps are not exact, because damaged metadata may name more space: an unmount will not be clean.
    pub holds_back: bool,
    /// Space of the memory zone that is held back, in bytes.
    pub held_memory_bytes: u64,
    /// Space of the block zone that is held back, in bytes.
    pub held_block_bytes: u64,
}

/// Ranges of one zone: starts, and the ends behind them.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, start: u64, count: u64) {
        let end = self.0.entry(start).or_default();
        *end = (*end).max(start + count);
    }

    /// No range that is added is longer than a block or a page, but ranges may overlap: all that start before the end are looked at.
    fn touches(&self, start: u64, count: u64) -> bool {
        self.0.range(..start + count).any(|(_, end)| *end > start)
    }
}

#[derive(Debug, Default)]
struct Shared {
    lines: Ranges,
    sectors: Ranges,
}

/// The structure.
#[derive(Debug, Default)]
pub(crate) struct HeldBack {
    is_any: AtomicBool,
    has_shared: AtomicBool,
    shared: Mutex<Shared>,
    has_shut_off: AtomicBool,
    shut_off: Mutex<BTreeSet<u64>>,
    damaged: Mutex<BTreeSet<u64>>,
    stops_write_back: AtomicBool,
    lines: AtomicU64,
    sectors: AtomicU64,
    told: AtomicBool,
}

impl HeldBack {
    /// Whether the maps mark more than what verified metadata names ([HB4]).
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(SeqCst)
    }

    /// Notes that the maps are not exact from now on ([HB4]).
    pub(crate) fn begin(&self) {
        self.is_any.store(true, SeqCst);
    }

    /// Counts space of these kinds that was marked as taken ([HB1]).
    pub(crate) fn hold(&self, kinds: Kinds, lines: u64, sectors: u64) {
        self.begin();
        self.lines.fetch_add(lines, Relaxed);
        self.sectors.fetch_add(sectors, Relaxed);
        if kinds.has(Kinds::SECTORS) {
            self.stops_write_back.store(true, Relaxed);
        }
    }

    /// Whether write-back would find no sectors but those that operations free.
    pub(crate) fn stops_write_back(&self) -> bool {
        self.stops_write_back.load(Relaxed)
    }

    /// Keeps space that two claim ([HB2]).
    pub(crate) fn share(&self, space: Space) {
        self.begin();
        let mut shared = self.shared.lock();
        match space {
            Space::Region { address, lines, .. } | Space::Slot { address, lines } => shared.lines.add(address.number(), lines),
            Space::Pages { address, count } => shared.lines.add(address.number(), count * PAGE_LINES),
            Space::Sectors { sector, count } => shared.sectors.add(sector.number(), count),
        }
        self.has_shared.store(true, SeqCst);
    }

    /// Whether this space stays taken although its owner frees it ([HB2]).
    pub(crate) fn keeps(&self, space: Space) -> bool {
        if !self.has_shared.load(SeqCst) {
            return false;
        }
        let shared = self.shared.lock();
        match space {
            Space::Region { address, lines, .. } | Space::Slot { address, lines } => shared.lines.touches(address.number(), lines),
            Space::Pages { address, count } => shared.lines.touches(address.number(), count * PAGE_LINES),
            Space::Sectors { sector, count } => shared.sectors.touches(sector.number(), count),
        }
    }

    /// Shuts an inode off ([HB3]).
    pub(crate) fn shut_off(&self, number: InodeNumber) {
        self.shut_off.lock().insert(number.get());
        self.has_shut_off.store(true, SeqCst);
    }

    /// Whether an inode is shut off.
    pub(crate) fn is_shut_off(&self, number: InodeNumber) -> bool {
        self.has_shut_off.load(SeqCst) && self.shut_off.lock().contains(&number.get())
    }

    /// Notes that an inode has damage. True if it was not known.
    pub(crate) fn note(&self, number: InodeNumber) -> bool {
        self.damaged.lock().insert(number.get())
    }

    /// Inodes that are known to have damage.
    pub(crate) fn damaged(&self) -> Vec<InodeNumber> {
        self.damaged.lock().iter().map(|number| InodeNumber::new(*number)).collect()
    }

    /// True once: an operation was refused for space while some is held back, and the log shall say why.
    pub(crate) fn tell_shortage(&self) -> bool {
        self.is_any() && !self.told.swap(true, Relaxed)
    }

    pub(crate) fn report(&self) -> DamageReport {
        DamageReport {
            objects: self.damaged.lock().len() as u64,
            holds_back: self.is_any(),
            held_memory_bytes: self.lines.load(Relaxed) * LINE_BYTES as u64,
            held_block_bytes: self.sectors.load(Relaxed) * SECTOR_BYTES as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_format::segment::Region;
    use tandemfs_format::{LineAddress, Sector};

    use super::*;
    use crate::space;

    #[test]
    fn what_two_claim_is_kept_whatever_part_of_it_is_freed() {
        let held = HeldBack::default();
        assert!(!held.is_any() && !held.keeps(space::sectors(Sector::new(16), 16)));
        held.share(space::sectors(Sector::new(20), 2));
        held.share(space::slot(LineAddress::new(640), 64));
        assert!(held.is_any());
        for (sector, count, kept) in [(16, 16, true), (16, 4, false), (21, 1, true), (22, 8, false), (0, 20, false)] {
            assert_eq!(held.keeps(space::sectors(Sector::new(sector), count)), kept, "{count} from {sector}");
        }
        assert!(held.keeps(space::region(Region::Leaves, LineAddress::new(700), 4)));
        assert!(!held.keeps(space::slot(LineAddress::new(704), 64)) && !held.keeps(space::slot(LineAddress::new(20), 4)));
    }

    #[test]
    fn damage_alone_holds_nothing_back() {
        let held = HeldBack::default();
        assert!(held.note(InodeNumber::new(5)) && !held.note(InodeNumber::new(5)));
        assert_eq!(held.report(), DamageReport { objects: 1, ..DamageReport::default() });
        assert!(!held.tell_shortage());
        held.hold(Kinds::OF_FILE, 2, 3);
        let report = DamageReport { objects: 1, holds_back: true, held_memory_bytes: 128, held_block_bytes: 12_288 };
        assert_eq!(held.report(), report);
        assert!(held.tell_shortage() && !held.tell_shortage() && held.stops_write_back());
    }
}

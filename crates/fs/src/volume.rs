//! What every part of the engine shares: the drive, the pair's seed and geometry, host copies of metadata, journal, allocators.

use tandemfs_device::{Drive, Structure};
use tandemfs_format::geometry::Geometry;
use tandemfs_format::inode::Timestamp;
use tandemfs_format::{InodeNumber, Line, LineAddress, PairSeed, Place};

use crate::alloc::memory::MemoryAllocator;
use crate::alloc::sectors::SectorAllocator;
use crate::cache::PageCache;
use crate::health::Health;
use crate::journal::Journal;
use crate::quarantine::Quarantine;
use crate::statistics::Live;
use crate::{Error, Result};

pub(crate) struct Volume {
    pub(crate) drive: Drive,
    pub(crate) pair: PairSeed,
    pub(crate) geometry: Geometry,
    /// Whether file data carries checksums.
    pub(crate) checksums: bool,
    pub(crate) health: Health,
    pub(crate) pages: PageCache,
    pub(crate) journal: Journal,
    pub(crate) memory: MemoryAllocator,
    pub(crate) sectors: SectorAllocator,
    pub(crate) quarantine: Quarantine,
    pub(crate) live: Live,
}

/// Whose lines are read or changed: goes into the checksum of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) inode: InodeNumber,
    pub(crate) generation: u32,
}

impl Volume {
    pub(crate) fn place(&self, owner: Owner, address: LineAddress) -> Place {
        Place { pair: self.pair, address, inode: owner.inode, generation: owner.generation }
    }

    /// A line from its host copy, not verified.
    pub(crate) fn raw_line(&self, structure: Structure, address: LineAddress) -> Result<Line> {
        Ok(self.pages.page(&self.drive, &self.live.work, structure, address)?.line(address))
    }

    /// Hands lines that follow each other to `each`, from their host copies, not verified. A page that holds several is looked up once.
    pub(crate) fn raw_lines(
        &self,
        structure: Structure,
        first: LineAddress,
        count: u64,
        mut each: impl FnMut(LineAddress, &Line) -> Result<()>,
    ) -> Result<()> {
        let mut held = None;
        for address in (0..count).map(|line| first.nth(line)) {
            let page = match held.take() {
                Some((start, page)) if start == address.page() => page,
                _ => self.pages.page(&self.drive, &self.live.work, structure, address)?,
            };
            each(address, &page.line(address))?;
            held = Some((address.page(), page));
        }
        Ok(())
    }

    /// A line that belongs to `owner`, verified.
    pub(crate) fn line(&self, owner: Owner, structure: Structure, address: LineAddress) -> Result<Line> {
        self.check_address(owner, address)?;
        let line = self.raw_line(structure, address)?;
        self.verify(owner, address, &line)?;
        Ok(line)
    }

    pub(crate) fn verify(&self, owner: Owner, address: LineAddress, line: &Line) -> Result<()> {
        self.place(owner, address).verify(line).map_err(|source| Error::Damaged { inode: owner.inode, source })
    }

    /// Refuses a pointer that leads out of the zone before anything follows it.
    pub(crate) fn check_address(&self, owner: Owner, address: LineAddress) -> Result<()> {
        if self.geometry.holds_lines(address, 1) {
            return Ok(());
        }
        let source = tandemfs_format::Corrupt::Field { address, field: "address", found: address.number() };
        Err(Error::Damaged { inode: owner.inode, source })
    }

    /// Checksum of file data, 0 where the file system has none.
    pub(crate) fn data_checksum(&self, bytes: &[u8]) -> u32 {
        if self.checksums { self.pair.data(bytes) } else { 0 }
    }
}

/// The time of an operation, as coarse as the kernel's own file times.
pub(crate) fn now() -> Timestamp {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec as u32 }
}

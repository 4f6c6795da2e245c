//! Promotion: copies of frequently read sectors, in unused pages of the memory zone (`alloc/spare_pages.rs`). `policy.rs` and
//! `tuning/admission.rs` decide which sectors are worth it.
//!
//! [PR1] A promoted sector is only a copy. No metadata names its page, so it needs no transaction, flush or fence. A crash loses it;
//!       eviction just forgets it.
//! [PR2] Copies are indexed by *sector*, not by file and offset. A sector that a record names as written does not change until it is freed;
//!       or made unwritten and filled in place; or lines of it are stored in place by a drive transaction. So copies are dropped in three
//!       places: `Volume::give_back`, for every freed sector; `Block::replace`, for every filled one; and the commit of a
//!       transaction with such lines ([TX5]). All run under the exclusive range lock of the block, and copies are made and read under the
//!       shared one, so no stale copy can appear in between.
//! [PR3] Each read verifies a copy by the sector's own checksum. A copy that fails it, or cannot be loaded, is forgotten, and the sector is
//!       read.

use smallvec::SmallVec;
use tandemfs_device::Structure;
use tandemfs_format::{LINE_BYTES, LineAddress, SECTOR_BYTES, Sector};

use super::compose::verify_sectors;
use super::policy::{Promotion, promotion};
use crate::file_system::FileSystem;
use crate::index::block::Block;
use crate::statistics::count as tally;
use crate::types::Promote;
use crate::volume::{Owner, Volume};

/// Copies whose pages follow each other go in one load or store.
fn adjacent<T>((_, one, _): &(u32, LineAddress, T), (_, next, _): &(u32, LineAddress, T)) -> bool {
    one.nth((SECTOR_BYTES / LINE_BYTES) as u64) == *next
}

impl Volume {
    /// The verified bytes of `count` sectors of a block from `first` on, if all of them are promoted ([PR3]).
    pub(crate) fn load_promoted(&self, owner: Owner, at: u64, block: &Block, sector: Sector, first: u64, count: usize) -> Option<Vec<u8>> {
        let spare_pages = &self.memory.spare_pages;
        let pins: SmallVec<[_; 16]> =
            spare_pages.pin(sector, count)?.into_iter().zip(first..).map(|((index, at), number)| (index, at, number)).collect();
        let mut bytes = vec![0; count * SECTOR_BYTES];
        let (mut all, mut rest) = (true, &mut bytes[..]);
        for run in pins.chunk_by(adjacent) {
            let (into, further) = rest.split_at_mut(run.len() * SECTOR_BYTES);
            let loaded = self.drive.load(Structure::Data, run[0].1, into).is_ok();
            for ((index, _, number), sector) in run.iter().zip(into.chunks_exact(SECTOR_BYTES)) {
                let good = loaded && verify_sectors(self, owner, at, block, *number, sector.into()).is_ok();
                spare_pages.unpin(&self.memory, *index, good);
                all &= good;
            }
            rest = further;
        }
        if all {
            tally(&self.live.work.promoted_reads);
        }
        all.then_some(bytes)
    }
}

impl FileSystem {
    /// Whether copies serve a read of this length, and are made after it.
    pub(super) fn is_promoted(&self, read_bytes: usize) -> bool {
        promotion(self.settings.promote(), read_bytes) != Promotion::None
    }

    /// Copies sectors that are worth it after a read of `read_bytes` has verified them. The caller holds the range lock of their block
    /// ([PR2]).
    pub(super) fn promote(&self, read_bytes: usize, sector: Sector, bytes: &[u8]) {
        let volume = &self.volume;
        let spare_pages = &volume.memory.spare_pages;
        let mode = self.settings.promote();
        let is_worth_it = |number| match promotion(mode, read_bytes) {
            Promotion::None => false,
            Promotion::ReadAgain => self.promotion.is_read_again(number),
            Promotion::All => true,
        };
        if mode == Promote::Off || volume.health.check_writable().is_err() {
            return;
        }
        let copies: SmallVec<[_; 16]> = (sector.number()..)
            .zip(0..bytes.len() / SECTOR_BYTES)
            .filter(|(number, _)| is_worth_it(*number))
            .filter_map(|(number, at)| spare_pages.begin(&volume.memory, number).map(|(index, address)| (index, address, at)))
            .collect();
        for run in copies.chunk_by(|one, next| adjacent(one, next) && one.2 + 1 == next.2) {
            let from = run[0].2 * SECTOR_BYTES;
            // Not flushed: nothing depends on it ([PR1]).
            let stored = volume.drive.store(Structure::Data, run[0].1, &bytes[from..from + run.len() * SECTOR_BYTES]).is_ok();
            for (index, ..) in run {
                spare_pages.unpin(&volume.memory, *index, stored);
                if stored {
                    tally(&volume.live.work.promotions);
                }
            }
        }
    }
}

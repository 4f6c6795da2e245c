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

use tandemfs_device::Structure;
use tandemfs_format::{SECTOR_BYTES, Sector};

use super::compose::verify_sectors;
use super::policy::{Promotion, promotion};
use crate::file_system::FileSystem;
use crate::index::block::Block;
use crate::statistics::count as tally;
use crate::types::Promote;
use crate::volume::{Owner, Volume};

impl Volume {
    /// The verified bytes of `count` sectors of a block from `first` on, if all of them are promoted ([PR3]).
    pub(crate) fn load_promoted(&self, owner: Owner, at: u64, block: &Block, sector: Sector, first: u64, count: usize) -> Option<Vec<u8>> {
        let spare_pages = &self.memory.spare_pages;
        let pins = spare_pages.pin(sector, count)?;
        let mut bytes = vec![0; count * SECTOR_BYTES];
        let mut all = true;
        for (((index, address), into), number) in pins.into_iter().zip(bytes.chunks_exact_mut(SECTOR_BYTES)).zip(first..) {
            let good =
                self.drive.load(Structure::Data, address, into).is_ok() && verify_sectors(self, owner, at, block, number, into).is_ok();
            spare_pages.unpin(&self.memory, index, good);
            all &= good;
        }
        if all {
            tally(&self.live.work.promoted_reads);
        }
        all.then_some(bytes)
    }
}

impl FileSystem {
    /// Copies read and verified sectors that are worth it. The caller holds the range lock of their block ([PR2]).
    pub(super) fn promote(&self, sector: Sector, bytes: &[u8]) {
        let volume = &self.volume;
        let spare_pages = &volume.memory.spare_pages;
        if self.promotion.mode == Promote::Off || volume.health.check_writable().is_err() {
            return;
        }
        let sectors = bytes.len() / SECTOR_BYTES;
        for (number, bytes) in (sector.number()..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
            let is_worth_it = match promotion(self.promotion.mode, sectors) {
                Promotion::None => false,
                Promotion::ReadAgain => self.promotion.is_read_again(number),
                Promotion::All => true,
            };
            if !is_worth_it {
                continue;
            }
            let Some((index, address)) = spare_pages.begin(&volume.memory, number) else { continue };
            // Not flushed: nothing depends on it ([PR1]).
            let stored = volume.drive.store(Structure::Data, address, bytes).map(drop);
            spare_pages.unpin(&volume.memory, index, stored.is_ok());
            if stored.is_ok() {
                tally(&volume.live.work.promotions);
            }
        }
    }
}

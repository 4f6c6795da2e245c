//! Promotion: copies of sectors that are read often, in pages of the memory zone that nothing else needs (`alloc/lent.rs`). Which are worth it
//! say `policy.rs` and `tuning/admission.rs`.
//!
//! [PR1] A promoted sector is a copy and nothing more. No metadata names its page: it needs no transaction, no flush and no fence, a crash
//!       forgets it, and evicting it is forgetting it.
//! [PR2] Copies are known by the *sector*, not by file and offset. A sector that a record names as written never changes until it is freed
//!       or, unwritten in between, filled in place, or lines of it go in place by a transaction of the drive. So there are three places where
//!       copies are dropped: `Volume::give_back`, through which every freed sector goes, `Block::replace`, through which every filled one
//!       goes, and the commit of a transaction with such lines ([TX5]). All run under the exclusive lock of the block's range, copies are made
//!       and read under the shared one: none can come back in between.
//! [PR3] A copy is verified by the sector's own checksum at each read. One that does not fit, or cannot be loaded, is forgotten and the
//!       sector is read.

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
    /// The bytes of sectors of a block, `first` and further in it, where all of them are promoted and small enough; verified ([PR3]).
    pub(crate) fn load_promoted(&self, owner: Owner, at: u64, block: &Block, sector: Sector, first: u64, count: usize) -> Option<Vec<u8>> {
        let lent = &self.memory.lent;
        let pins = lent.pin(sector, count)?;
        let mut bytes = vec![0; count * SECTOR_BYTES];
        let mut all = true;
        for (((index, address), into), number) in pins.into_iter().zip(bytes.chunks_exact_mut(SECTOR_BYTES)).zip(first..) {
            let good =
                self.drive.load(Structure::Data, address, into).is_ok() && verify_sectors(self, owner, at, block, number, into).is_ok();
            lent.unpin(&self.memory, index, good);
            all &= good;
        }
        if all {
            tally(&self.live.work.promoted_reads);
        }
        all.then_some(bytes)
    }
}

impl FileSystem {
    /// Copies sectors that were read and verified, and are worth it. The caller has their block's range locked ([PR2]).
    pub(super) fn promote(&self, sector: Sector, bytes: &[u8]) {
        let volume = &self.volume;
        let lent = &volume.memory.lent;
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
            let Some((index, address)) = lent.begin(&volume.memory, number) else { continue };
            // Not flushed: nothing depends on it ([PR1]).
            let stored = volume.drive.store(Structure::Data, address, bytes).map(drop);
            lent.unpin(&volume.memory, index, stored.is_ok());
            if stored.is_ok() {
                tally(&volume.live.work.promotions);
            }
        }
    }
}

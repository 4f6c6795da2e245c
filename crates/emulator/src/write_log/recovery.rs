//! Opening the log after a power failure, and RECOVER ([WL8] of the parent; ByteFS §4.7).

use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use tandemfs_device::{DeviceError, DriveRecovery};
use tandemfs_format::PAGE_LINES;

use super::region::{Descriptor, SCAN};
use super::versions::{Transaction, Version};
use super::{Region, Word, WriteLog, WriteLogOptions, refused_opening};
use crate::medium::{FLASH_PAGE_BYTES, Medium, Pages};
use crate::mutant::{Mutant, on};

impl<M: Medium> WriteLog<M> {
    /// Opens the log at `dram_offset`: scans it and rebuilds the index. Stores nothing. Uncommitted lines are visible until
    /// [`WriteLog::recover`].
    ///
    /// # Errors
    /// [`DeviceError::Open`] where no log of this geometry is there, or a line names a place outside the drive.
    pub(crate) fn open(
        medium: Arc<M>,
        dram_offset: u64,
        options: WriteLogOptions,
        logical_pages: u64,
        pages: &mut impl Pages,
    ) -> Result<Self, DeviceError> {
        options.check(logical_pages).map_err(refused_opening)?;
        let region = Region::new(Arc::clone(&medium), dram_offset, &options);
        region.check(logical_pages)?.map_err(refused_opening)?;
        let mut log = Self::empty(region, options, logical_pages)?;
        for number in log.transaction_tail..log.transaction_head {
            log.transactions.insert(log.region.entry(number)?, Transaction::COMMITTED);
        }
        let mut descriptors = Vec::new();
        let head = log.region.scan(log.tail, |_, some| {
            if let Some(outside) = some.iter().map(|found| found.line / PAGE_LINES).find(|page| *page >= logical_pages) {
                return Err(refused_opening(format!("a line of its write log is for page {outside}, outside the drive")));
            }
            descriptors.extend_from_slice(some);
            Ok(())
        })?;
        let needed = log.needed(&descriptors);
        for (first, some) in (0..).step_by(SCAN).zip(descriptors.chunks(SCAN)) {
            let is_needed = |index: &usize| needed[(first + index) / 64] >> ((first + index) % 64) & 1 == 1;
            std::hint::black_box(log.index.warm((0..some.len()).filter(is_needed).map(|index| some[index].line)));
            for index in (0..some.len()).filter(is_needed) {
                let (found, sequence) = (some[index], log.tail + (first + index) as u64);
                if sequence >= pages.stamp(found.line / PAGE_LINES)? || on(Mutant::StampIgnored) {
                    let slot = (sequence % log.region.lines) as u32;
                    log.link(found.line, slot, found.transaction, found.is_hidden)?;
                }
            }
        }
        log.set_head(head);
        Ok(log)
    }

    /// A bit for each line of the log that its index needs ([VE1] of `versions.rs`): not those that lie below a newer committed version.
    /// Most stores go to few lines, and whether one is needed is found out faster than it is linked and dropped again. (A stale version
    /// hides stale ones only: what is older than a line below its page's stamp is below it as well.)
    fn needed(&self, descriptors: &[Descriptor]) -> Vec<u64> {
        let mut needed = vec![0_u64; descriptors.len().div_ceil(64)];
        // Of each page the lines of which a committed version was met.
        let mut met: HashMap<u64, u64> = HashMap::new();
        for (index, found) in descriptors.iter().enumerate().rev() {
            let is_new = !self.is_committed(found.transaction) || {
                let lines = met.entry(found.line / PAGE_LINES).or_default();
                let line = 1 << (found.line % PAGE_LINES);
                let is_first = *lines & line == 0;
                *lines |= line;
                is_first
            };
            needed[index / 64] |= u64::from(is_new) << (index % 64);
        }
        needed
    }

    /// RECOVER: discards what was not committed, writes the rest to the flash, empties log and TxLog. A drive that is open for reading only
    /// hides what was not committed.
    ///
    /// # Errors
    /// Errors of the flash; then stores are refused ([WL9]), and the next RECOVER continues.
    pub(crate) fn recover(&mut self, pages: &mut impl Pages, read_only: bool) -> Result<DriveRecovery, DeviceError> {
        let begun = Instant::now();
        let mut recovery = DriveRecovery { transactions: self.transaction_head - self.transaction_tail, ..DriveRecovery::default() };
        self.cleaning = None;
        if on(Mutant::UncommittedKept) {
            self.transactions.values_mut().for_each(|state| *state = Transaction::COMMITTED);
        }
        let flushed = if read_only { Ok(()) } else { self.flush(pages, &mut recovery) };
        // What a flash that refuses left, or everything on a drive that is only read.
        self.discard_uncommitted(&mut recovery)?;
        if let Err(error) = flushed {
            self.refusal = Some(format!("the write log cannot be cleaned ({error})"));
            return Err(error);
        }
        if !read_only {
            self.refusal = None;
        }
        recovery.duration = begun.elapsed();
        Ok(recovery)
    }

    /// Leaves the latest committed version of each line in the index, and nothing else.
    fn discard_uncommitted(&mut self, recovery: &mut DriveRecovery) -> Result<(), DeviceError> {
        let mut from = 0;
        while let Some(page) = self.index.next_page(from) {
            from = page + 1;
            let tops: Vec<_> = self.index.chunks(page).collect();
            for (at, top) in tops {
                let versions = self.versions(top).collect::<Result<Vec<Version>, _>>()?;
                recovery.lines_discarded += versions.iter().filter(|version| !version.is_committed).count() as u64;
                let line = Self::line_of(page, at);
                let kept = versions.iter().find(|version| version.is_committed);
                for version in &versions {
                    self.older.remove(&version.slot);
                }
                match kept {
                    Some(kept) => {
                        recovery.lines_kept += 1;
                        self.index.insert(line, kept.slot);
                    }
                    None => self.index.remove_line(line),
                }
            }
        }
        self.transactions.retain(|_, state| state.is_committed());
        self.overlaid.clear();
        self.uncommitted = 0;
        Ok(())
    }

    /// Writes every page that has committed lines and gives the log back ([WL8]).
    fn flush(&mut self, pages: &mut impl Pages, recovery: &mut DriveRecovery) -> Result<(), DeviceError> {
        if on(Mutant::EmptiedBeforeFlush) {
            self.region.set(Word::Tail, self.head)?;
        }
        let mut from = 0;
        while let Some(page) = self.index.next_page(from) {
            from = page + 1;
            let mut versions = self.page_versions(page)?;
            if on(Mutant::OldestRecovered) {
                versions.reverse();
            }
            let mut image = [0; FLASH_PAGE_BYTES];
            let kept = self.merge_committed(pages, page, &versions, &mut image)?;
            if kept > 0 {
                pages.write(page, &image, self.head)?;
            }
            recovery.lines_kept += kept;
            recovery.lines_discarded += versions.iter().filter(|(_, version)| !version.is_committed).count() as u64;
            self.unlink_page(page)?;
        }
        self.region.set(Word::Tail, self.head)?;
        self.tail = self.head;
        if !on(Mutant::TransactionLogKept) {
            self.region.set(Word::TransactionTail, self.transaction_head)?;
        }
        self.transaction_tail = self.transaction_head;
        self.transactions.clear();
        self.reused_from = None;
        Ok(())
    }
}

//! Opening the log after a power failure, and RECOVER ([L8] of the parent; ByteFS §4.7).

use std::sync::Arc;
use std::time::Instant;

use tandemfs_device::{DeviceError, DriveRecovery};
use tandemfs_format::PAGE_LINES;

use super::versions::{Transaction, Version};
use super::{Region, Word, WriteLog, WriteLogOptions, refused_opening};
use crate::medium::{FLASH_PAGE_BYTES, Medium, Pages};
use crate::mutant::{Mutant, on};

impl<M: Medium> WriteLog<M> {
    /// Opens the log that is at `dram_offset`: scans it and rebuilds the index. Stores nothing. What was not committed is visible until
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
        // Another view of the region, since linking a line needs the whole log.
        let scanned = Region::new(medium, dram_offset, &options);
        let head = scanned.scan(log.tail, |first_sequence, descriptors| {
            std::hint::black_box(log.index.warm(descriptors.iter().map(|descriptor| descriptor.line)));
            for (sequence, descriptor) in (first_sequence..).zip(descriptors) {
                let page = descriptor.line / PAGE_LINES;
                if page >= logical_pages {
                    return Err(refused_opening(format!("a line of its write log is for page {page}, outside the drive")));
                }
                if sequence >= pages.stamp(page)? || on(Mutant::StampIgnored) {
                    let slot = (sequence % scanned.lines) as u32;
                    log.link(descriptor.line, slot, descriptor.transaction, descriptor.is_hidden)?;
                }
            }
            Ok(())
        })?;
        log.set_head(head);
        Ok(log)
    }

    /// RECOVER: discards what was not committed, writes the rest to the flash, empties log and TxLog. A drive that is open for reading only
    /// hides what was not committed.
    ///
    /// # Errors
    /// What the flash says; stores are refused then ([L9]), and the next RECOVER goes on.
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

    /// Writes every page that has committed lines and gives the log back ([L8]).
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

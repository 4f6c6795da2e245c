//! Cleaning of the log: Algorithm 1 of ByteFS, in bounded steps ([WL5]–[WL7] of the parent).

use tandemfs_device::DeviceError;
use tandemfs_format::{LINE_BYTES, Line, PAGE_LINES};

use super::versions::Version;
use super::{Word, WriteLog};
use crate::medium::{FLASH_PAGE_BYTES, Medium, PageBytes, Pages};
use crate::mutant::{Mutant, on};

/// Pages, and blocks of TxLog entries, that an access does at once where it must wait.
const BURST_PAGES: u64 = 64;
/// TxLog entries that are given back in one step.
const RELEASED_ENTRIES: u64 = 256;

/// A cleaning in progress.
#[derive(Debug)]
pub(super) struct Cleaning {
    /// The old part of the log ends here.
    mark: u64,
    /// The entries that the TxLog had.
    transaction_mark: u64,
    /// Pages before this one are done.
    cursor: u64,
    /// Remaining pages, from which an access's share is computed.
    pub(super) pages_left: u64,
    /// Slots kept back for lines that may have to be appended again ([WL7]).
    pub(super) reserve: u64,
    /// Whether the tail has moved; what remains is the TxLog.
    is_released: bool,
}

impl<M: Medium> WriteLog<M> {
    /// Slots that stores may take, one for an untagged line and two for a tagged one ([WL7]).
    fn slack(&self) -> u64 {
        let free = self.region.lines - (self.head - self.tail);
        free.saturating_sub(match &self.cleaning {
            Some(cleaning) if !cleaning.is_released => cleaning.reserve,
            _ => self.uncommitted,
        })
    }

    fn start_cleaning(&mut self) -> Result<(), DeviceError> {
        self.cleaning = Some(Cleaning {
            mark: self.head,
            transaction_mark: self.transaction_head,
            cursor: 0,
            pages_left: self.index.pages(),
            reserve: self.uncommitted,
            is_released: false,
        });
        if on(Mutant::TransactionLogEmptiedEarly) {
            self.region.set(Word::TransactionTail, self.transaction_head)?;
        }
        if on(Mutant::TailBeforePages) {
            self.region.set(Word::Tail, self.head)?;
        }
        Ok(())
    }

    /// Does an access's share of the cleaning, and completes the cleaning if the line would otherwise have no room.
    pub(super) fn make_room(&mut self, pages: &mut impl Pages, slots: u64) -> Result<(), DeviceError> {
        let slack = self.slack();
        if self.cleaning.is_none() {
            if slack >= self.start_slack {
                return Ok(());
            }
            self.start_cleaning()?;
        }
        self.do_share(pages, slack / 2)?;
        for _ in 0..2 {
            if self.slack() >= slots {
                return Ok(());
            }
            self.has_waited = true;
            if self.cleaning.is_none() {
                self.start_cleaning()?;
            }
            self.finish_cleaning(pages)?;
        }
        if self.slack() >= slots { Ok(()) } else { Err(self.refused("store", "the write log is full of open transactions".into())) }
    }

    /// The same for an entry of the TxLog (R17).
    pub(super) fn make_transaction_room(&mut self, pages: &mut impl Pages) -> Result<(), DeviceError> {
        let (used, entries) = (self.transaction_head - self.transaction_tail, self.region.entries);
        if on(Mutant::TransactionLogFillIgnored) {
            return Ok(());
        }
        if self.cleaning.is_none() && used * 100 >= entries * u64::from(self.options.clean_at_percent) && self.refusal.is_none() {
            self.start_cleaning()?;
        }
        if self.refusal.is_none() {
            // A COMMIT with room continues although the log cannot be cleaned; later stores report the error ([WL9]).
            let _ = self.do_share(pages, entries - used);
        }
        while self.transaction_head - self.transaction_tail >= entries {
            self.has_waited = true;
            if self.cleaning.is_none() {
                self.start_cleaning()?;
            }
            self.finish_cleaning(pages)?;
        }
        Ok(())
    }

    /// Remaining work of the cleaning divided by the remaining accesses.
    fn do_share(&mut self, pages: &mut impl Pages, accesses_left: u64) -> Result<(), DeviceError> {
        match &self.cleaning {
            Some(cleaning) => {
                let budget = cleaning.pages_left.div_ceil(accesses_left.max(1)).max(1);
                self.step(pages, budget)
            }
            None => Ok(()),
        }
    }

    fn finish_cleaning(&mut self, pages: &mut impl Pages) -> Result<(), DeviceError> {
        while self.cleaning.is_some() {
            self.step(pages, BURST_PAGES)?;
        }
        Ok(())
    }

    /// A bounded step of the cleaning in progress, if any: at most so many pages.
    ///
    /// # Errors
    /// Errors of the flash; stores are refused from then on ([WL9]).
    pub(crate) fn settle(&mut self, pages: &mut impl Pages, budget_pages: u32) -> Result<(), DeviceError> {
        if self.refusal.is_some() { Ok(()) } else { self.step(pages, budget_pages.into()) }
    }

    /// CLEAN: everything that is committed goes to the flash, now; the log and the TxLog are empty then.
    ///
    /// # Errors
    /// [`DeviceError::Firmware`] while a transaction is open; errors of the flash.
    pub(crate) fn clean(&mut self, pages: &mut impl Pages) -> Result<(), DeviceError> {
        if let Some(open) = self.transactions.iter().filter(|(_, state)| !state.is_committed()).map(|(number, _)| number).min() {
            return Err(self.refused("CLEAN", format!("transaction {open} is open")));
        }
        self.finish_cleaning(pages)?;
        if self.head > self.tail || self.transaction_head > self.transaction_tail {
            self.start_cleaning()?;
            self.finish_cleaning(pages)?;
        }
        self.refusal = None;
        Ok(())
    }

    fn step(&mut self, pages: &mut impl Pages, budget_pages: u64) -> Result<(), DeviceError> {
        let Some(mut cleaning) = self.cleaning.take() else { return Ok(()) };
        let done = self.clean_pages(pages, &mut cleaning, budget_pages);
        match &done {
            Ok(true) => self.counts.log_cleanings += 1,
            Ok(false) => self.cleaning = Some(cleaning),
            Err(error) => {
                self.refusal = Some(format!("the write log cannot be cleaned ({error})"));
                self.cleaning = Some(cleaning);
            }
        }
        done.map(drop)
    }

    /// Cleans so many pages at most; whether that was all.
    fn clean_pages(&mut self, pages: &mut impl Pages, cleaning: &mut Cleaning, budget_pages: u64) -> Result<bool, DeviceError> {
        if !cleaning.is_released {
            for _ in 0..budget_pages {
                let Some(page) = self.index.next_page(cleaning.cursor) else {
                    cleaning.pages_left = 0;
                    break;
                };
                self.clean_page(pages, cleaning, page)?;
                cleaning.cursor = page + 1;
                cleaning.pages_left = cleaning.pages_left.saturating_sub(1);
            }
            if self.index.next_page(cleaning.cursor).is_some() {
                return Ok(false);
            }
            // No line below the mark is in the index: its page has a higher stamp, or it was appended again ([WL5], [WL6]).
            self.region.set(Word::Tail, cleaning.mark)?;
            self.reused_from.get_or_insert(self.tail + self.region.lines);
            self.tail = cleaning.mark;
            cleaning.is_released = true;
        }
        let end = cleaning.transaction_mark.min(self.transaction_tail + RELEASED_ENTRIES * budget_pages.max(1));
        let released = (self.transaction_tail..end).map(|number| self.region.entry(number)).collect::<Result<Vec<_>, _>>()?;
        self.region.set(Word::TransactionTail, end)?;
        self.transaction_tail = end;
        for transaction in released {
            self.transactions.remove(&transaction);
        }
        Ok(end == cleaning.transaction_mark)
    }

    /// Merges the latest committed version of each line of a page into it, if it has a line in the old part (Algorithm 1, lines 3–12).
    fn clean_page(&mut self, pages: &mut impl Pages, cleaning: &mut Cleaning, page: u64) -> Result<(), DeviceError> {
        let versions = self.page_versions(page)?;
        if !versions.iter().any(|(_, version)| self.sequence(version.slot) < cleaning.mark) {
            return Ok(());
        }
        let stamp = self.head;
        let mut image: PageBytes = [0; FLASH_PAGE_BYTES];
        let committed = self.merge_committed(pages, page, &versions, &mut image)?;
        let mut kept = Vec::new();
        for of_line in versions.chunk_by(|(one, _), (other, _)| one == other) {
            let latest = of_line.iter().position(|(_, version)| version.is_committed).unwrap_or(of_line.len());
            for (depth, (at, version)) in of_line.iter().enumerate().rev().filter(|(_, (_, version))| !version.is_committed) {
                if on(Mutant::UncommittedDropped) {
                    continue;
                }
                let is_hidden = (depth > latest || self.region.is_hidden(version.slot)?) && !on(Mutant::HiddenShown);
                let mut bytes: Line = [0; _];
                self.region.load_line(version.slot, &mut bytes)?;
                let line = Self::line_of(page, *at);
                kept.push((line, self.store(version.transaction, line, is_hidden, &bytes)?, version.transaction, is_hidden));
                cleaning.reserve = cleaning.reserve.saturating_sub(1);
            }
        }
        if committed > 0 {
            pages.write(page, &image, stamp)?;
        }
        self.unlink_page(page)?;
        for (line, slot, transaction, is_hidden) in kept {
            self.link(line, slot, transaction, is_hidden)?;
        }
        Ok(())
    }

    /// The page with the latest committed version of each line; how many lines have one. The flash is read only where they do not cover it.
    pub(super) fn merge_committed(
        &self,
        pages: &mut impl Pages,
        page: u64,
        versions: &[(u32, Version)],
        image: &mut PageBytes,
    ) -> Result<u64, DeviceError> {
        let mut committed: Vec<(u32, u32)> = Vec::with_capacity(versions.len());
        for (at, version) in versions.iter().filter(|(_, version)| version.is_committed || on(Mutant::LatestTaken)) {
            if committed.last().is_none_or(|(before, _)| before != at) {
                committed.push((*at, version.slot));
            }
        }
        if committed.is_empty() {
            return Ok(0);
        }
        if (committed.len() as u64) < PAGE_LINES {
            pages.read(page, image)?;
        }
        for (at, slot) in &committed {
            self.region.load_line(*slot, &mut image[*at as usize * LINE_BYTES..][..LINE_BYTES])?;
        }
        Ok(committed.len() as u64)
    }
}

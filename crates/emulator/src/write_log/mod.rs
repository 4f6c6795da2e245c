//! The write log of the firmware: stores of the byte path in persistent DRAM, in arrival order, until a cleaning merges them into flash
//! pages; and the transactions of the drive (ByteFS §4.3, Algorithm 1, §4.7; RULES R16, R17).
//!
//! What must hold: after a power failure between any two steps (a step is a store of 8 B, [MD1] of the medium, or a page switched by
//! [`Pages::write`]), opening and RECOVER find every line as its last *commit* left it, and nothing uncommitted. An untagged store is
//! committed by its append. COMMIT commits all lines of a transaction at that moment, and they override lines that others stored in
//! between.
//!
//! [WL1] *Append.* The bytes and the line number are stored into a free slot, then one 8 B store of lap and TxID makes the slot valid.
//!       Before that store the slot has an older lap and ends the scan. The head is where the scan ends, so there is no second store that
//!       could disagree with it.
//! [WL2] *Order.* Every appended line has a sequence, its position in the ring, which never restarts. Of the committed versions of a line,
//!       the one with the highest sequence was committed last: if another store has overwritten a line of an open transaction, COMMIT first
//!       appends that line again. So "in the order of the commits" (§4.7) is the order of the log. Once no transaction is open, the visible
//!       version (the highest sequence that is not hidden, [WL6]) is the one that survives a power failure.
//! [WL3] *Commit.* The TxID is stored behind the TxLog's head, then one 8 B store of the head commits. A transaction in the TxLog accepts
//!       no further lines and no second COMMIT (R17), so the meaning of an entry cannot change.
//! [WL4] *Stamps.* A line whose sequence is below its page's stamp is older than the page; a scan of the log ignores it. So a block write,
//!       a discard and the cleaning of a page each invalidate their lines in the single step that switches the page, without a store to the
//!       log.
//! [WL5] *Cleaning.* The log is double-buffered: when a cleaning starts, `mark` is set to the head. Lines below `mark` are the old part,
//!       new lines follow behind it. Page by page, the latest committed version of each line is merged, and the page is written with a
//!       stamp above all of them. When no page is left, one store moves the tail to `mark`. Only then the TxLog drops the entries that it
//!       had when the cleaning began. All lines of those transactions were below `mark`, since a committed transaction gets no further
//!       lines. An entry without lines does no harm.
//! [WL6] *Uncommitted lines* in the old part are appended again, with sequences at or above the stamp, *before* their page is written. An
//!       uncommitted version below a committed one is hidden from then on; its transaction's COMMIT makes it visible again ([WL2]).
//! [WL7] *Room.* Slots for all lines that a cleaning may have to append again are reserved, and open transactions may hold at most a
//!       quarter of the log. So a cleaning can always complete and always frees room. Each append and COMMIT does a share of the cleaning:
//!       the remaining work divided by the remaining room, so that the old part is empty before the new one is full. If that fails, the
//!       append completes the cleaning. (A host that continues after a power failure without RECOVER may find the log full of lines that an
//!       interrupted cleaning appended again. Then stores are refused, [WL9], and RECOVER, which appends nothing, frees the log.)
//! [WL8] *Recovery* follows the same steps: it writes pages with the head as their stamp, as in [WL5], then moves the tail to the head,
//!       then the TxLog's tail to its head. If it is interrupted anywhere, the next scan finds the remaining and the uncommitted lines
//!       again.
//! [WL9] *Refusals.* A failed cleaning leaves index, log and TxLog as they were, except for lines appended again, which repeat the same
//!       contents. From then on stores are refused with the cleaning's error; loads, block reads and COMMITs continue.

mod cleaning;
mod index;
mod measure;
mod recovery;
mod region;
#[cfg(test)]
mod tests;
mod versions;

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use tandemfs_device::{DeviceError, FirmwareCounts};
use tandemfs_format::{LINE_BYTES, Line, PAGE_BYTES, PAGE_LINES};

use self::cleaning::Cleaning;
use self::index::{Index, SLOTS_MAX};
use self::region::{Region, Word};
use self::versions::Transaction;
use crate::medium::{Medium, PageBytes, Pages};
use crate::mutant::{Mutant, on};

pub(crate) use self::measure::measure;

/// Sizes of the log and when it is cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteLogOptions {
    /// Bytes of lines that the log holds: whole pages.
    pub(crate) log_bytes: u64,
    /// Bytes of the TxLog: 4 B a transaction; a multiple of 64.
    pub(crate) transaction_log_bytes: u64,
    /// Fill of the log, or of the TxLog, at which a cleaning starts, in percent.
    pub(crate) clean_at_percent: u32,
}

impl Default for WriteLogOptions {
    /// The sizes of ByteFS §4.3.
    fn default() -> Self {
        Self { log_bytes: 256 << 20, transaction_log_bytes: 2 << 20, clean_at_percent: 85 }
    }
}

impl WriteLogOptions {
    /// Persistent DRAM that it takes, in bytes: a multiple of 4 KiB.
    pub(crate) fn dram_bytes(&self) -> u64 {
        region::dram_bytes(self)
    }

    /// Checks the sizes for a drive of so many pages; the error says what is wrong.
    pub(crate) fn check(&self, logical_pages: u64) -> Result<(), String> {
        let (page, line) = (PAGE_BYTES as u64, LINE_BYTES as u64);
        if self.log_bytes == 0 || !self.log_bytes.is_multiple_of(page) || self.log_bytes / line > SLOTS_MAX {
            return Err(format!("a write log of {} B is not 4 KiB to 4 GiB - 4 KiB, in whole pages", self.log_bytes));
        }
        if self.log_bytes / page > logical_pages {
            return Err(format!("a write log of {} B is larger than the drive with its {logical_pages} pages", self.log_bytes));
        }
        if self.transaction_log_bytes == 0 || !self.transaction_log_bytes.is_multiple_of(64) || self.transaction_log_bytes > 1 << 30 {
            return Err(format!("a TxLog of {} B is not 64 B to 1 GiB, a multiple of 64 B", self.transaction_log_bytes));
        }
        if !(50..=95).contains(&self.clean_at_percent) {
            return Err(format!("a cleaning at {} % of the write log is not at 50 to 95 %", self.clean_at_percent));
        }
        Ok(())
    }
}

/// How full the log is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogFill {
    /// Lines that take room in the log, valid or not.
    pub(crate) lines: u64,
    pub(crate) capacity_lines: u64,
    /// Lines of transactions that are not committed.
    pub(crate) uncommitted_lines: u64,
    /// Pages that have lines in the log.
    pub(crate) pages: u64,
    /// Transactions that the TxLog names.
    pub(crate) transactions: u64,
    pub(crate) capacity_transactions: u64,
    /// Host memory of the index, older versions included.
    pub(crate) index_bytes: u64,
    pub(crate) is_cleaning: bool,
}

/// The write log ([WL1]–[WL9]).
#[derive(Debug)]
pub(crate) struct WriteLog<M: Medium> {
    name: String,
    options: WriteLogOptions,
    logical_pages: u64,
    region: Region<M>,
    index: Index,
    /// The version of a line below the one in a slot, where it is still needed.
    older: HashMap<u32, u32>,
    /// Transactions that are open or in the TxLog.
    transactions: HashMap<u32, Transaction>,
    /// Lines of open transactions that others overwrote, and hidden lines: COMMIT appends them again ([WL2]).
    overlaid: HashSet<(u32, u64)>,
    tail: u64,
    /// The sequence of the next line, its slot and its lap.
    head: u64,
    head_slot: u32,
    head_lap: u32,
    transaction_tail: u64,
    transaction_head: u64,
    /// Lines of open transactions.
    uncommitted: u64,
    /// A cleaning starts when fewer slots are free.
    start_slack: u64,
    cleaning: Option<Cleaning>,
    refusal: Option<String>,
    /// The first sequence whose slot the last cleaning freed.
    reused_from: Option<u64>,
    has_waited: bool,
    counts: FirmwareCounts,
}

impl<M: Medium> WriteLog<M> {
    /// Makes an empty log at `dram_offset` of the DRAM, a multiple of 4 KiB.
    pub(crate) fn format(medium: Arc<M>, dram_offset: u64, options: WriteLogOptions, logical_pages: u64) -> Result<Self, DeviceError> {
        options.check(logical_pages).map_err(refused_opening)?;
        let region = Region::new(medium, dram_offset, &options);
        region.format(logical_pages)?;
        Self::empty(region, options, logical_pages)
    }

    /// A log as its header says, with nothing in its index.
    fn empty(region: Region<M>, options: WriteLogOptions, logical_pages: u64) -> Result<Self, DeviceError> {
        let tail = region.word(Word::Tail)?;
        let mut log = Self {
            name: "the drive".into(),
            options,
            logical_pages,
            index: Index::new(region.lines, logical_pages),
            older: HashMap::new(),
            transactions: HashMap::new(),
            overlaid: HashSet::new(),
            tail,
            head: tail,
            head_slot: 0,
            head_lap: 0,
            transaction_tail: region.word(Word::TransactionTail)?,
            transaction_head: region.word(Word::TransactionHead)?,
            uncommitted: 0,
            start_slack: region.lines - region.lines * u64::from(options.clean_at_percent) / 100,
            cleaning: None,
            refusal: None,
            reused_from: None,
            has_waited: false,
            counts: FirmwareCounts::default(),
            region,
        };
        log.set_head(tail);
        Ok(log)
    }

    /// The name of the drive, for errors.
    pub(crate) fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// Stores a line ([WL1]) of a transaction, or of none: 0. It is visible at once.
    ///
    /// # Errors
    /// [`DeviceError::Firmware`] where the transaction is in the TxLog ([WL3]), open transactions hold all that they may ([WL7]), or the log
    /// cannot be cleaned ([WL9]). Nothing is stored then.
    pub(crate) fn append(&mut self, pages: &mut impl Pages, transaction: u32, line: u64, bytes: &Line) -> Result<(), DeviceError> {
        if line / PAGE_LINES >= self.logical_pages {
            let (length, size) = (LINE_BYTES as u64, self.logical_pages * PAGE_BYTES as u64);
            return Err(DeviceError::OutOfRange { device: self.name.clone(), offset: line.saturating_mul(length), length, size });
        }
        if let Some(reason) = &self.refusal {
            return Err(self.refused("store", reason.clone()));
        }
        let is_tagged = transaction != 0;
        if is_tagged {
            self.admit(transaction)?;
        }
        // Prefetch the index's memory while the line is stored.
        std::hint::black_box(self.index.warm(std::iter::once(line)));
        self.make_room(pages, 1 + u64::from(is_tagged))?;
        self.place(transaction, line, false, bytes)?;
        self.counts.tagged_stores += u64::from(is_tagged);
        Ok(())
    }

    /// Whether a transaction may store another line.
    fn admit(&self, transaction: u32) -> Result<(), DeviceError> {
        if self.transactions.get(&transaction).is_some_and(Transaction::is_committed) {
            let reason = format!("transaction {transaction} is committed and still in the TxLog; its number is free after a CLEAN");
            return Err(self.refused("store", reason));
        }
        if self.uncommitted >= self.region.lines / 4 {
            let reason = format!("transactions that are not committed hold {} lines, a quarter of the write log", self.uncommitted);
            return Err(self.refused("store", reason));
        }
        Ok(())
    }

    /// Appends a line into the room that is there and makes it the newest version.
    fn place(&mut self, transaction: u32, line: u64, is_hidden: bool, bytes: &Line) -> Result<(), DeviceError> {
        let slot = self.store(transaction, line, is_hidden, bytes)?;
        if let Some(cleaning) = &mut self.cleaning
            && transaction != 0
        {
            cleaning.reserve += 1;
        }
        self.link(line, slot, transaction, is_hidden)
    }

    /// Appends a line; the index does not know it yet.
    fn store(&mut self, transaction: u32, line: u64, is_hidden: bool, bytes: &Line) -> Result<u32, DeviceError> {
        if self.head - self.tail >= self.region.lines {
            return Err(self.refused("store", "the write log is full".into()));
        }
        if self.reused_from.is_some_and(|from| self.head >= from) {
            self.reused_from = None;
            self.has_waited = true;
        }
        let (slot, lap) = (self.head_slot, self.head_lap);
        if on(Mutant::ValidBeforeBytes) {
            self.region.publish(slot, lap, transaction)?;
        }
        self.region.store_line(slot, line, is_hidden, bytes)?;
        self.region.publish(slot, lap, transaction)?;
        self.head += 1;
        self.head_slot += 1;
        if u64::from(self.head_slot) == self.region.lines {
            self.set_head(self.head);
        }
        self.counts.log_appends += 1;
        Ok(slot)
    }

    fn set_head(&mut self, head: u64) {
        self.head = head;
        self.head_slot = (head % self.region.lines) as u32;
        self.head_lap = (head / self.region.lines) as u32;
    }

    /// Whether an append or COMMIT since the last question could not go on before the flash has done all that cleanings asked of it: its line
    /// takes the first place that the last cleaning gave back, or the cleaning was ended for it. The cleaning itself is done in time
    /// logically ([WL7]), so this is where a flash that is slower than the host holds the host up.
    pub(crate) fn take_waited(&mut self) -> bool {
        std::mem::take(&mut self.has_waited)
    }

    /// The newest version of a line, where the log has one.
    pub(crate) fn load(&mut self, line: u64, into: &mut Line) -> Result<bool, DeviceError> {
        let Some(slot) = self.index.top(line) else { return Ok(false) };
        let Some(slot) = self.visible(slot)? else { return Ok(false) };
        self.region.load_line(slot, into)?;
        self.counts.log_hits += 1;
        Ok(true)
    }

    /// Copies the newest version of each line of a page that the log has over the page's bytes; answers how many.
    pub(crate) fn merge(&mut self, page: u64, into: &mut PageBytes) -> Result<u32, DeviceError> {
        let mut merged = 0;
        for (at, slot) in self.index.chunks(page) {
            if let Some(slot) = self.visible(slot)? {
                self.region.load_line(slot, &mut into[at as usize * LINE_BYTES..][..LINE_BYTES])?;
                merged += 1;
            }
        }
        self.counts.log_hits += u64::from(merged > 0);
        Ok(merged)
    }

    /// Whether lines of the log cover the whole page, so that a block read needs no flash.
    pub(crate) fn covers(&self, page: u64) -> bool {
        self.overlaid.is_empty() && self.index.chunks(page).count() as u64 == PAGE_LINES
    }

    /// Whether the log may have lines of the page.
    pub(crate) fn has_lines(&self, page: u64) -> bool {
        !self.overlaid.is_empty() || self.index.chunks(page).next().is_some()
    }

    /// The sequence that the next line will have: the stamp of a block write or discard ([WL4]).
    pub(crate) fn next_sequence(&self) -> u64 {
        self.head
    }

    /// Forgets the lines of a page that was written or discarded with [`WriteLog::next_sequence`] as its stamp ([WL4]).
    pub(crate) fn forget_page(&mut self, page: u64) -> Result<(), DeviceError> {
        self.counts.log_invalidations += self.unlink_page(page)?;
        Ok(())
    }

    /// COMMIT ([WL3]).
    ///
    /// # Errors
    /// [`DeviceError::Firmware`] for a transaction that stored nothing or is committed already; what [`WriteLog::append`] and the flash may
    /// say, where room must be made first. The transaction is open as before then.
    pub(crate) fn commit(&mut self, pages: &mut impl Pages, transaction: u32) -> Result<(), DeviceError> {
        match self.transactions.get(&transaction) {
            Some(state) if !state.is_committed() => {}
            Some(_) => return Err(self.refused("COMMIT", format!("transaction {transaction} is committed already"))),
            None => return Err(self.refused("COMMIT", format!("transaction {transaction} is unknown: it stored nothing"))),
        }
        self.make_transaction_room(pages)?;
        if !on(Mutant::CommitOrderIgnored) {
            self.raise(pages, transaction)?;
        }
        self.region.set_entry(self.transaction_head, transaction)?;
        self.region.set(Word::TransactionHead, self.transaction_head + 1)?;
        self.transaction_head += 1;
        self.commit_in_memory(transaction);
        self.counts.commits += 1;
        Ok(())
    }

    /// How full the log is.
    pub(crate) fn fill(&self) -> LogFill {
        LogFill {
            lines: self.head - self.tail,
            capacity_lines: self.region.lines,
            uncommitted_lines: self.uncommitted,
            pages: self.index.pages(),
            transactions: self.transaction_head - self.transaction_tail,
            capacity_transactions: self.region.entries,
            index_bytes: self.index.bytes() + self.older.allocation_size() as u64,
            is_cleaning: self.cleaning.is_some(),
        }
    }

    /// What it did since it was opened.
    pub(crate) fn counts(&self) -> FirmwareCounts {
        self.counts
    }

    /// Why stores are refused, where they are ([WL9]).
    pub(crate) fn read_only_reason(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    fn refused(&self, command: &'static str, reason: String) -> DeviceError {
        DeviceError::Firmware { device: self.name.clone(), command, reason }
    }

    /// The sequence of a slot that is in use.
    fn sequence(&self, slot: u32) -> u64 {
        let distance = u64::from(slot) + self.region.lines - self.tail % self.region.lines;
        self.tail + if distance >= self.region.lines { distance - self.region.lines } else { distance }
    }
}

fn refused_opening(reason: String) -> DeviceError {
    DeviceError::Open { path: "write log".into(), reason }
}

//! The firmware of a drive: a staging area for stores (write log or page cache), the flash below it, and the timing of accesses.
//!
//! [CT1] Behind both windows are logical pages: first those of the memory zone, then the sectors of the block zone. Nothing here depends on
//!       the window that an access used.
//! [CT2] A store appends whole lines to the log, or changes its page in the cache. A store to part of a line reads the line, changes it and
//!       appends the whole line.
//! [CT3] A block read returns the flash page merged with all lines of the log. If lines cover the whole page, the flash is not read.
//! [CT4] A block write gives the page the stamp of the next sequence. In this one step the page becomes new and all its lines in the log
//!       become obsolete (`medium::Pages`); then the log's index drops them. A discard does the same without a page.
//! [CT5] Every access ends with bounded steps of background work: cleaning the log, garbage collection (RULES R24). Flash work of these
//!       steps makes its dies busy but does not delay the current access. A drive opened read-only leaves this work to the next opening,
//!       because its changes would only be in host memory ([PT2] of `part.rs`).
//! [CT6] An access waits for flash work that its result needs: pages that it reads, and a cleaning that frees the room that it needs
//!       (`WriteLog::take_waited`).

use std::ops::Range;
use std::sync::Arc;

use tandemfs_device::{DeviceError, DriveCounts, DriveRecovery};
use tandemfs_format::{LINE_BYTES, Line};

use crate::flash::{Flash, Wear};
use crate::layout::DramLayout;
use crate::lifetime::Lifetime;
use crate::medium::{FLASH_PAGE_BYTES, FlashWork, Medium, PageBytes, Pages};
use crate::model::{FirmwareModel, Staging};
use crate::mutant::{Mutant, on};
use crate::page_cache::PageCache;
use crate::part::pieces;
use crate::timing::Timeline;
use crate::write_log::{LogFill, WriteLog, WriteLogOptions};

const LINES_A_PAGE: u64 = FLASH_PAGE_BYTES as u64 / LINE_BYTES as u64;
/// Pages cleaned after each access, in addition to the share of cleaning that each append does.
const CLEANED_PAGES: u32 = 1;

/// The staging area of stores.
#[derive(Debug)]
enum Stage<M: Medium> {
    Log(Box<WriteLog<M>>),
    Cache(Box<PageCache<M>>),
}

/// The firmware.
#[derive(Debug)]
pub(crate) struct Controller<M: Medium> {
    name: String,
    logical_pages: u64,
    flash: Flash<M>,
    stage: Stage<M>,
    lifetime: Lifetime<M>,
    timeline: Option<Timeline>,
    /// Open for reading only.
    read_only: bool,
    /// When the pages of a block read are ready; kept to reuse the allocation.
    ready: Vec<u64>,
    page: Box<PageBytes>,
}

/// State of a drive besides its counters.
#[derive(Debug, Clone)]
pub(crate) struct Condition {
    pub(crate) lifetime: DriveCounts,
    pub(crate) wear: Wear,
    pub(crate) buffered_pages: u32,
    pub(crate) log: Option<LogFill>,
    pub(crate) cached_pages: Option<(u64, u64)>,
    pub(crate) read_only_reason: Option<String>,
}

impl<M: Medium> Controller<M> {
    /// Formats a drive whose DRAM is all zeros and whose flash is erased. The first `memory_pages` logical pages are the memory zone.
    pub(crate) fn format(medium: &Arc<M>, model: &FirmwareModel, memory_pages: u64, logical_pages: u64) -> Result<(), DeviceError> {
        let layout = DramLayout::new(model, memory_pages * FLASH_PAGE_BYTES as u64, logical_pages);
        drop(Flash::format(Arc::clone(medium), layout.flash, model.geometry(logical_pages), model.flash_options(memory_pages))?);
        match model.staging.write_log() {
            Some(options) => WriteLog::format(Arc::clone(medium), layout.staging, options, logical_pages).map(drop),
            // All zeros is an empty cache.
            None => Ok(()),
        }
    }

    /// Opens a drive: rebuilds volatile state and completes operations that a power failure interrupted.
    pub(crate) fn open(
        medium: &Arc<M>,
        name: &str,
        model: &FirmwareModel,
        memory_pages: u64,
        logical_pages: u64,
        timeline: Option<Timeline>,
    ) -> Result<Self, DeviceError> {
        let layout = DramLayout::new(model, memory_pages * FLASH_PAGE_BYTES as u64, logical_pages);
        let mut flash = Flash::open(Arc::clone(medium), layout.flash, model.geometry(logical_pages), model.flash_options(memory_pages))?;
        let stage = match model.staging {
            Staging::WriteLog { log_bytes, transaction_log_bytes, clean_at_percent } => {
                let options = WriteLogOptions { log_bytes, transaction_log_bytes, clean_at_percent };
                let mut log = WriteLog::open(Arc::clone(medium), layout.staging, options, logical_pages, &mut flash)?;
                log.set_name(name);
                Stage::Log(Box::new(log))
            }
            Staging::Cache { cache_bytes, replacement } => {
                Stage::Cache(Box::new(PageCache::open(Arc::clone(medium), layout.staging, cache_bytes, replacement, name, logical_pages)?))
            }
            Staging::HostCache { .. } => {
                let reason = "its memory is the host's to manage: it has no firmware that stages stores".to_owned();
                return Err(DeviceError::Open { path: name.to_owned(), reason });
            }
        };
        let lifetime = Lifetime::open(Arc::clone(medium), layout.lifetime)?;
        flash.work().clear();
        flash.record_work(timeline.is_some());
        Ok(Self {
            name: name.to_owned(),
            logical_pages,
            flash,
            stage,
            lifetime,
            timeline,
            read_only: false,
            ready: Vec::new(),
            page: Box::new([0; FLASH_PAGE_BYTES]),
        })
    }

    /// Marks the drive as opened read-only.
    pub(crate) fn set_read_only(&mut self, read_only: bool) {
        self.read_only = read_only;
    }

    /// Whether it has transactions.
    pub(crate) fn has_transactions(&self) -> bool {
        matches!(self.stage, Stage::Log(_))
    }

    /// Copies bytes from the byte window. Returns the time at which an access that starts at `at` completes, like all functions below.
    pub(crate) fn load(&mut self, at: u64, offset: u64, into: &mut [u8]) -> Result<u64, DeviceError> {
        let mut at = at;
        for (page, within, range) in pieces(offset, into.len()) {
            let part = &mut into[range];
            let lines = lines_touched(within, part.len());
            match &mut self.stage {
                Stage::Log(log) => {
                    let mut is_read = false;
                    for (index, skip, range) in lines_of(within, part.len()) {
                        let mut line: Line = [0; LINE_BYTES];
                        load_line(log, &mut self.flash, &mut self.page, &mut is_read, page * LINES_A_PAGE + index as u64, &mut line)?;
                        let length = range.len();
                        part[range].copy_from_slice(&line[skip..skip + length]);
                    }
                }
                Stage::Cache(cache) => cache.load(&mut self.flash, page, within, part)?,
            }
            at = self.wait_for_reads(at);
            if let Some(timeline) = &mut self.timeline {
                at = timeline.read_lines(at, lines);
            }
        }
        self.settle(at);
        Ok(at)
    }

    /// Copies bytes to the byte window ([CT2]); `transaction` is 0 for none, else `from` are whole lines.
    pub(crate) fn store(&mut self, at: u64, transaction: u32, offset: u64, from: &[u8]) -> Result<u64, DeviceError> {
        let mut at = at;
        for (page, within, range) in pieces(offset, from.len()) {
            let part = &from[range];
            let lines = lines_touched(within, part.len());
            let mut result = Ok(());
            match &mut self.stage {
                Stage::Log(log) => {
                    for (index, skip, range) in lines_of(within, part.len()) {
                        let mut line: Line = [0; LINE_BYTES];
                        let number = page * LINES_A_PAGE + index as u64;
                        if range.len() < LINE_BYTES && on(Mutant::PartialLineFromFlash) {
                            self.flash.read(page, &mut self.page)?;
                            line.copy_from_slice(&self.page[index * LINE_BYTES..][..LINE_BYTES]);
                        } else if range.len() < LINE_BYTES {
                            // Read again for the last line of a store: appends in between may have cleaned this page.
                            load_line(log, &mut self.flash, &mut self.page, &mut false, number, &mut line)?;
                        }
                        line[skip..skip + range.len()].copy_from_slice(&part[range]);
                        result = log.append(&mut self.flash, transaction, number, &line);
                        if result.is_err() {
                            break;
                        }
                    }
                }
                Stage::Cache(cache) => cache.store(&mut self.flash, page, within, part)?,
            }
            let waited = self.takes_waited();
            if let Some(timeline) = &mut self.timeline {
                let work = self.flash.work();
                at = match (&self.stage, waited) {
                    (Stage::Cache(_), _) => timeline.work_needed(at, work),
                    (Stage::Log(_), true) => {
                        let read = timeline.work_needed(at, work);
                        timeline.catch_up(read)
                    }
                    // The store is posted: the flash read for a partial line does not delay the processor.
                    (Stage::Log(_), false) => timeline.work_behind(at, work),
                };
                work.clear();
                at = timeline.write_lines(at, lines);
            }
            result?;
        }
        self.settle(at);
        Ok(at)
    }

    /// The write-verify read of a fence (ByteFS §4.2).
    pub(crate) fn fence(&mut self, at: u64) -> u64 {
        self.timeline.as_ref().map_or(at, |timeline| timeline.verify(at))
    }

    /// Reads whole pages ([CT3]) from `first` on; page 0 follows the last page.
    pub(crate) fn read_pages(&mut self, at: u64, first: u64, into: &mut [u8]) -> Result<u64, DeviceError> {
        let at = self.command(at);
        self.ready.clear();
        for (page, into) in self.pages_from(first).zip(into.as_chunks_mut::<FLASH_PAGE_BYTES>().0) {
            match &mut self.stage {
                Stage::Log(log) => {
                    if !log.covers(page) {
                        self.flash.read(page, into)?;
                    }
                    if !on(Mutant::BlockReadNotMerged) {
                        log.merge(page, into)?;
                    }
                }
                Stage::Cache(cache) => cache.read_page(&mut self.flash, page, into)?,
            }
            let found = self.look_up(at, 1);
            let ready = self.wait_for_reads(found);
            self.ready.push(ready);
        }
        let mut done = at;
        if let Some(timeline) = &mut self.timeline {
            self.ready.sort_unstable();
            done = self.ready.iter().map(|&ready| timeline.send_page(ready)).fold(at, u64::max);
        }
        self.settle(done);
        Ok(done)
    }

    /// Writes whole pages ([CT4]), numbered as in [`Controller::read_pages`].
    pub(crate) fn write_pages(&mut self, at: u64, first: u64, from: &[u8]) -> Result<u64, DeviceError> {
        let mut at = self.command(at);
        let mut done = at;
        for (page, from) in self.pages_from(first).zip(from.as_chunks::<FLASH_PAGE_BYTES>().0) {
            if let Some(timeline) = &mut self.timeline {
                at = timeline.receive_page(at);
            }
            let written = match &mut self.stage {
                Stage::Log(log) => {
                    let stamp = if on(Mutant::BlockWriteWithoutStamp) { 0 } else { log.next_sequence() };
                    let written = self.flash.write(page, from, stamp);
                    if on(Mutant::BlockWriteKeepsLines) { written } else { written.and_then(|()| log.forget_page(page)) }
                }
                Stage::Cache(cache) => cache.write_page(&mut self.flash, page, from),
            };
            done = done.max(self.look_up(at, 1));
            at = self.work_behind(at);
            written?;
            self.settle(at);
        }
        Ok(done.max(at))
    }

    /// Discards whole pages ([CT4]), numbered as in [`Controller::read_pages`].
    pub(crate) fn discard(&mut self, at: u64, first: u64, count: u64) -> Result<u64, DeviceError> {
        let at = self.command(at);
        let at = self.look_up(at, count);
        for page in self.pages_from(first).take(count as usize) {
            match &mut self.stage {
                Stage::Log(log) => {
                    // A page without a place and without lines in the log is discarded already.
                    if self.flash.is_mapped(page)? || log.has_lines(page) && !on(Mutant::DiscardOfLoggedPageSkipped) {
                        let stamp = log.next_sequence();
                        self.flash.discard(page, stamp)?;
                        if !on(Mutant::DiscardKeepsLines) {
                            log.forget_page(page)?;
                        }
                    }
                }
                Stage::Cache(cache) => cache.discard(&mut self.flash, page)?,
            }
        }
        let at = self.work_behind(at);
        self.settle(at);
        Ok(at)
    }

    /// COMMIT.
    pub(crate) fn commit(&mut self, at: u64, transaction: u32) -> Result<u64, DeviceError> {
        let at = self.command(at);
        let at = self.look_up(at, 1);
        let result = match &mut self.stage {
            Stage::Log(log) => log.commit(&mut self.flash, transaction),
            Stage::Cache(_) => Err(self.has_no("COMMIT", "transactions")),
        };
        let at = if self.takes_waited() {
            let read = self.wait_for_reads(at);
            self.timeline.as_mut().map_or(read, |timeline| timeline.catch_up(read))
        } else {
            self.work_behind(at)
        };
        result?;
        self.settle(at);
        Ok(at)
    }

    /// RECOVER. The reported time includes that of the flash.
    pub(crate) fn recover(&mut self, at: u64) -> Result<(u64, DriveRecovery), DeviceError> {
        let begun = self.command(at);
        let result = match &mut self.stage {
            Stage::Log(log) => log.recover(&mut self.flash, self.read_only),
            Stage::Cache(_) => Err(self.has_no("RECOVER", "transactions")),
        };
        let done = self.wait_for_all(begun);
        let mut recovery = result?;
        recovery.duration = recovery.duration.max(std::time::Duration::from_nanos(done - at));
        self.settle(done);
        Ok((done, recovery))
    }

    /// CLEAN: writes all committed lines, or all dirty pages of a page cache, to the flash now.
    pub(crate) fn clean(&mut self, at: u64) -> Result<u64, DeviceError> {
        let at = self.command(at);
        let result = match &mut self.stage {
            Stage::Log(log) => log.clean(&mut self.flash),
            Stage::Cache(cache) => cache.clean(&mut self.flash),
        };
        let at = self.wait_for_all(at);
        result?;
        self.settle(at);
        Ok(at)
    }

    /// Counters since the drive was opened.
    pub(crate) fn counts(&self) -> DriveCounts {
        let firmware = match &self.stage {
            Stage::Log(log) => log.counts(),
            Stage::Cache(cache) => cache.counts(),
        };
        DriveCounts { firmware, flash: self.flash.counts() }
    }

    pub(crate) fn wear(&self) -> Wear {
        self.flash.wear()
    }

    pub(crate) fn condition(&self) -> Condition {
        let (log, cached_pages) = match &self.stage {
            Stage::Log(log) => (Some(log.fill()), None),
            Stage::Cache(cache) => (None, Some(cache.fill())),
        };
        let reason = match &self.stage {
            Stage::Log(log) => log.read_only_reason().or(self.flash.read_only_reason()),
            Stage::Cache(_) => self.flash.read_only_reason(),
        };
        let read_only_reason = reason.map(str::to_owned);
        Condition {
            lifetime: self.lifetime.total(&self.counts()),
            wear: self.flash.wear(),
            buffered_pages: self.flash.buffered_pages(),
            log,
            cached_pages,
            read_only_reason,
        }
    }

    /// Stores the counters when the drive is closed.
    pub(crate) fn close(&mut self) {
        if self.read_only {
            return;
        }
        // Only statistics are lost if this fails.
        let _ = self.lifetime.store(&self.counts());
    }

    fn pages_from(&self, first: u64) -> impl Iterator<Item = u64> + use<M> {
        let logical_pages = self.logical_pages;
        (0..).map(move |index| (first + index) % logical_pages)
    }

    fn has_no(&self, command: &'static str, what: &str) -> DeviceError {
        DeviceError::Firmware { device: self.name.clone(), command, reason: format!("the drive has no {what}") }
    }

    fn command(&mut self, at: u64) -> u64 {
        self.timeline.as_mut().map_or(at, |timeline| timeline.command(at))
    }

    fn look_up(&mut self, at: u64, count: u64) -> u64 {
        self.timeline.as_mut().map_or(at, |timeline| timeline.look_up(at, count))
    }

    fn takes_waited(&mut self) -> bool {
        match &mut self.stage {
            Stage::Log(log) => log.take_waited(),
            Stage::Cache(_) => false,
        }
    }

    /// Charges the time of flash operations; the access waits for those that it needs ([CT6]).
    fn wait_for_reads(&mut self, at: u64) -> u64 {
        self.charge(at, Timeline::work_needed)
    }

    fn wait_for_all(&mut self, at: u64) -> u64 {
        self.charge(at, Timeline::work)
    }

    fn work_behind(&mut self, at: u64) -> u64 {
        self.charge(at, Timeline::work_behind)
    }

    fn charge(&mut self, at: u64, how: fn(&mut Timeline, u64, &[FlashWork]) -> u64) -> u64 {
        let Some(timeline) = &mut self.timeline else { return at };
        let work = self.flash.work();
        let done = how(timeline, at, work);
        work.clear();
        done
    }

    /// Background steps ([CT5]). An error here recurs in the access that needs the room, which reports it.
    fn settle(&mut self, at: u64) {
        if self.read_only {
            return;
        }
        if let Stage::Log(log) = &mut self.stage {
            let _ = log.settle(&mut self.flash, CLEANED_PAGES);
        }
        let _ = self.flash.settle();
        self.work_behind(at);
        if self.lifetime.is_due() {
            let _ = self.lifetime.store(&self.counts());
        }
    }
}

/// The current contents of a line: from the log, else from the flash page, which is read once for all its lines.
fn load_line<M: Medium>(
    log: &mut WriteLog<M>,
    flash: &mut Flash<M>,
    page: &mut PageBytes,
    is_read: &mut bool,
    number: u64,
    into: &mut Line,
) -> Result<(), DeviceError> {
    if log.load(number, into)? {
        return Ok(());
    }
    if !*is_read {
        flash.read(number / LINES_A_PAGE, page)?;
        *is_read = true;
    }
    let start = (number % LINES_A_PAGE) as usize * LINE_BYTES;
    into.copy_from_slice(&page[start..start + LINE_BYTES]);
    Ok(())
}

/// The lines that a byte range of one page touches: index in the page, first byte in the line, and the part of the range.
fn lines_of(within: usize, length: usize) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    (within / LINE_BYTES..(within + length).div_ceil(LINE_BYTES)).map(move |line| {
        let from = within.max(line * LINE_BYTES);
        let to = (within + length).min((line + 1) * LINE_BYTES);
        (line, from - line * LINE_BYTES, from - within..to - within)
    })
}

fn lines_touched(within: usize, length: usize) -> u64 {
    ((within + length).div_ceil(LINE_BYTES) - within / LINE_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_fall_into_lines() {
        let found: Vec<_> = lines_of(60, 70).collect();
        assert_eq!(found, [(0, 60, 0..4), (1, 0, 4..68), (2, 0, 68..70)]);
        assert_eq!(lines_touched(60, 70), 3);
        assert_eq!(lines_touched(64, 64), 1);
    }
}

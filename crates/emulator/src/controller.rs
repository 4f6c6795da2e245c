//! The firmware of a drive put together: what stages stores (a write log or a page cache) over the flash, and the time that it takes.
//!
//! [CT1] Behind both windows are logical pages, first those of the memory zone, then the sectors of the block zone. Nothing here knows
//!       which window an access came through.
//! [CT2] A store appends whole lines to the log, or changes its page in the cache. Part of a line is read, changed and appended as a line.
//! [CT3] A block read is the flash page with all lines of the log merged into it; where lines cover the page, no flash is read.
//! [CT4] A block write gives the page the stamp of the next sequence, so that in one step the page is new and all lines that the log has of
//!       it are old (`medium::Pages`); then the log forgets them. A discard is the same without a page.
//! [CT5] Every access ends with bounded steps of what goes on behind: cleaning the log, garbage collection (RULES R24). What the flash does
//!       in them makes its dies busy and delays nobody now. A drive that is open for reading leaves it all to the next opening: what it
//!       changed would be kept in host memory for nobody ([PT2] of `part.rs`).
//! [CT6] Flash work of an access is waited for where the answer needs it: pages that are read; and a cleaning, by who needs the room that
//!       it gives back (`WriteLog::take_waited`).

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
/// Pages that are cleaned behind an access, beside the share that the log does with what it takes.
const CLEANED_PAGES: u32 = 1;

/// What stages stores.
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
    /// When the pages of a block read are ready, kept to be used again.
    ready: Vec<u64>,
    page: Box<PageBytes>,
}

/// What a drive says of itself beside its counters.
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
    /// Makes a drive of DRAM that is all zeros and flash that is erased.
    pub(crate) fn format(medium: &Arc<M>, model: &FirmwareModel, logical_pages: u64) -> Result<(), DeviceError> {
        let layout = DramLayout::new(model, logical_pages);
        drop(Flash::format(Arc::clone(medium), layout.flash, model.geometry(logical_pages), model.flash_options())?);
        match model.staging.write_log() {
            Some(options) => WriteLog::format(Arc::clone(medium), layout.staging, options, logical_pages).map(drop),
            // All zeros is an empty cache.
            None => Ok(()),
        }
    }

    /// Takes a drive into use: rebuilds what is volatile and finishes what a power failure cut.
    pub(crate) fn open(
        medium: &Arc<M>,
        name: &str,
        model: &FirmwareModel,
        logical_pages: u64,
        timeline: Option<Timeline>,
    ) -> Result<Self, DeviceError> {
        let layout = DramLayout::new(model, logical_pages);
        let mut flash = Flash::open(Arc::clone(medium), layout.flash, model.geometry(logical_pages), model.flash_options())?;
        let stage = match model.staging {
            Staging::WriteLog { log_bytes, transaction_log_bytes, clean_at_percent } => {
                let options = WriteLogOptions { log_bytes, transaction_log_bytes, clean_at_percent };
                let mut log = WriteLog::open(Arc::clone(medium), layout.staging, options, logical_pages, &mut flash)?;
                log.set_name(name);
                Stage::Log(Box::new(log))
            }
            Staging::Cache { cache_bytes, management } => {
                Stage::Cache(Box::new(PageCache::open(Arc::clone(medium), layout.staging, cache_bytes, management, name, logical_pages)?))
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

    /// Says that it was opened for reading only.
    pub(crate) fn set_read_only(&mut self, read_only: bool) {
        self.read_only = read_only;
    }

    /// Whether it has transactions.
    pub(crate) fn has_transactions(&self) -> bool {
        matches!(self.stage, Stage::Log(_))
    }

    /// Whether the host manages its cache.
    pub(crate) fn has_host_cache(&self) -> bool {
        matches!(&self.stage, Stage::Cache(cache) if cache.is_managed_by_host())
    }

    /// Copies bytes from the byte window. Returns when that is done, beginning at `at`; so do all of these.
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
                            // Read anew for the last line of a store: the appends between may have cleaned this very page.
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
                    // Posted: the page that a part of a line needs is read behind the processor's back.
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

    /// Reads whole pages ([CT3]): those from `first` on, behind the last comes page 0.
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
            let ready = self.wait_for_reads(at);
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

    /// Writes whole pages ([CT4]), as [`Controller::read_pages`] counts them.
    pub(crate) fn write_pages(&mut self, at: u64, first: u64, from: &[u8]) -> Result<u64, DeviceError> {
        let mut at = self.command(at);
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
            at = self.work_behind(at);
            written?;
            self.settle(at);
        }
        Ok(at)
    }

    /// Forgets whole pages ([CT4]), as [`Controller::read_pages`] counts them.
    pub(crate) fn discard(&mut self, at: u64, first: u64, count: u64) -> Result<u64, DeviceError> {
        let at = self.command(at);
        for page in self.pages_from(first).take(count as usize) {
            match &mut self.stage {
                Stage::Log(log) => {
                    // A page that is nowhere, of which the log has no lines, is forgotten already.
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

    /// RECOVER. The flash's share of the time is part of what it says.
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

    /// CLEAN: everything committed to the flash, now. Of a page cache: every page that was changed.
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

    /// Moves a page into the cache, or out of it, for a host that manages it.
    pub(crate) fn move_page(&mut self, at: u64, page: u64, into_cache: bool) -> Result<u64, DeviceError> {
        let at = self.command(at);
        let result = match &mut self.stage {
            Stage::Cache(cache) if cache.is_managed_by_host() => {
                if into_cache {
                    cache.move_in(&mut self.flash, page)
                } else {
                    cache.move_out(&mut self.flash, page)
                }
            }
            _ => Err(self.has_no("MOVE", "cache that the host manages")),
        };
        let at = self.wait_for_reads(at);
        result?;
        self.settle(at);
        Ok(at)
    }

    /// What was counted since the drive was opened.
    pub(crate) fn counts(&self) -> DriveCounts {
        let firmware = match &self.stage {
            Stage::Log(log) => log.counts(),
            Stage::Cache(cache) => cache.counts(),
        };
        DriveCounts { firmware, flash: self.flash.counts() }
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

    /// Stores what is counted, for a drive that is closed.
    pub(crate) fn close(&mut self) {
        if self.read_only {
            return;
        }
        // Statistics: who cannot store them loses nothing else.
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

    fn takes_waited(&mut self) -> bool {
        match &mut self.stage {
            Stage::Log(log) => log.take_waited(),
            Stage::Cache(_) => false,
        }
    }

    /// Charges what the flash did; the access waits for what it needs ([CT6]).
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

    /// [CT5]. What fails here is met again, and said, by the access that needs the room.
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

/// A line as it is now: from the log, else from the flash page, which is read once for all lines of it.
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

/// The lines that bytes of one page touch: number in the page, first byte within, and which of the bytes lie there.
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

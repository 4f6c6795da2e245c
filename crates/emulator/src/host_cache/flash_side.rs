//! The flash of a drive whose memory belongs to the host: block commands and MOVEs, with the timing of both ([HMC2]–[HMC4]).
//!
//! [HMC2]: super
//! [HMC4]: super

use std::sync::Arc;

use tandemfs_device::{CacheMove, DeviceError, DriveCounts, FirmwareCounts, MoveDirection};

use crate::controller::Condition;
use crate::flash::{Flash, Wear};
use crate::layout::DramLayout;
use crate::lifetime::Lifetime;
use crate::medium::{FLASH_PAGE_BYTES, FlashWork, Medium, PageBytes, Pages};
use crate::model::FirmwareModel;
use crate::mutant::{Mutant, on};
use crate::timing::Timeline;

/// Formats a drive whose DRAM is all zeros and whose flash is erased.
pub(crate) fn format<M: Medium>(medium: &Arc<M>, model: &FirmwareModel, memory_bytes: u64, logical_pages: u64) -> Result<(), DeviceError> {
    let layout = DramLayout::new(model, memory_bytes, logical_pages);
    Flash::format(Arc::clone(medium), layout.flash, model.geometry(logical_pages), model.flash_options(0)).map(drop)
}

/// Flash, its times and counters.
#[derive(Debug)]
pub(super) struct FlashSide<M: Medium> {
    medium: Arc<M>,
    flash: Flash<M>,
    lifetime: Lifetime<M>,
    timeline: Option<Timeline>,
    read_only: bool,
    moved: FirmwareCounts,
    page: Box<PageBytes>,
    /// When the pages of a read are ready; kept to reuse the allocation.
    ready: Vec<u64>,
}

impl<M: Medium> FlashSide<M> {
    pub(super) fn open(
        medium: &Arc<M>,
        layout: &DramLayout,
        model: &FirmwareModel,
        logical_pages: u64,
        timeline: Option<Timeline>,
        read_only: bool,
    ) -> Result<Self, DeviceError> {
        let mut flash = Flash::open(Arc::clone(medium), layout.flash, model.geometry(logical_pages), model.flash_options(0))?;
        flash.work().clear();
        flash.record_work(timeline.is_some());
        Ok(Self {
            flash,
            lifetime: Lifetime::open(Arc::clone(medium), layout.lifetime)?,
            timeline,
            read_only,
            moved: FirmwareCounts::default(),
            page: Box::new([0; FLASH_PAGE_BYTES]),
            ready: Vec::new(),
            medium: Arc::clone(medium),
        })
    }

    /// Counters since the drive was opened.
    pub(super) fn counts(&self) -> DriveCounts {
        DriveCounts { firmware: self.moved, flash: self.flash.counts() }
    }

    pub(super) fn wear(&self) -> Wear {
        self.flash.wear()
    }

    pub(super) fn condition(&self) -> Condition {
        Condition {
            lifetime: self.lifetime.total(&self.counts()),
            wear: self.flash.wear(),
            buffered_pages: self.flash.buffered_pages(),
            log: None,
            cached_pages: None,
            read_only_reason: self.flash.read_only_reason().map(str::to_owned),
        }
    }

    /// Reads whole pages. Returns when a command that starts at `at` is done, like all functions below.
    pub(super) fn read_pages(&mut self, at: u64, first: u64, into: &mut [u8]) -> Result<u64, DeviceError> {
        let at = self.command(at);
        self.ready.clear();
        for (page, into) in (first..).zip(into.as_chunks_mut::<FLASH_PAGE_BYTES>().0) {
            self.flash.read(page, into)?;
            let found = self.look_up(at, 1);
            let ready = self.charge(found, Timeline::work_needed);
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

    /// Writes whole pages.
    pub(super) fn write_pages(&mut self, at: u64, first: u64, from: &[u8]) -> Result<u64, DeviceError> {
        let mut at = self.command(at);
        let mut done = at;
        for (page, from) in (first..).zip(from.as_chunks::<FLASH_PAGE_BYTES>().0) {
            if let Some(timeline) = &mut self.timeline {
                at = timeline.receive_page(at);
            }
            self.flash.write(page, from, 0)?;
            done = done.max(self.look_up(at, 1));
            self.settle(at);
        }
        Ok(done.max(at))
    }

    /// Discards whole pages.
    pub(super) fn discard(&mut self, at: u64, first: u64, count: u64) -> Result<u64, DeviceError> {
        let at = self.command(at);
        let at = self.look_up(at, count);
        for page in first..first + count {
            if self.flash.is_mapped(page)? {
                self.flash.discard(page, 0)?;
            }
        }
        self.settle(at);
        Ok(at)
    }

    /// Does a MOVE with pages of the DRAM from `memory_at` on. Returns when it is done, and how.
    pub(super) fn carry_out(&mut self, at: u64, command: &CacheMove, memory_at: u64) -> (u64, Result<(), DeviceError>) {
        let at = self.command(at);
        let mut done = at;
        for index in 0..u64::from(command.count) {
            if index > 0 && index + 1 == u64::from(command.count) && on(Mutant::MovedPageForgotten) {
                break;
            }
            let (page, memory) = (command.sector.number() + index, memory_at + index * FLASH_PAGE_BYTES as u64);
            let found = self.look_up(at, 1);
            let moved = match command.direction {
                MoveDirection::ToCache => self.move_to_cache(found, page, memory),
                MoveDirection::ToFlash => self.move_to_flash(found, page, memory),
            };
            match moved {
                Ok(moved) => done = done.max(moved),
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(()))
    }

    fn move_to_cache(&mut self, at: u64, page: u64, memory: u64) -> Result<u64, DeviceError> {
        self.flash.read(page, &mut self.page)?;
        self.medium.store(memory, &self.page[..])?;
        self.moved.pages_moved_to_cache += 1;
        let ready = self.charge(at, Timeline::work_needed);
        let done = self.timeline.as_mut().map_or(ready, |timeline| timeline.bring_in(ready));
        self.settle(done);
        Ok(done)
    }

    fn move_to_flash(&mut self, at: u64, page: u64, memory: u64) -> Result<u64, DeviceError> {
        self.medium.load(memory, &mut self.page[..])?;
        let done = self.timeline.as_mut().map_or(at, |timeline| timeline.write_back(at));
        self.flash.write(page, &self.page, 0)?;
        if on(Mutant::MoveClearsSource) {
            self.medium.store(memory, &[0; FLASH_PAGE_BYTES])?;
        }
        self.moved.pages_moved_to_flash += 1;
        self.settle(done);
        Ok(done)
    }

    fn command(&mut self, at: u64) -> u64 {
        self.timeline.as_mut().map_or(at, |timeline| timeline.command(at))
    }

    fn look_up(&mut self, at: u64, count: u64) -> u64 {
        self.timeline.as_mut().map_or(at, |timeline| timeline.look_up(at, count))
    }

    fn charge(&mut self, at: u64, how: fn(&mut Timeline, u64, &[FlashWork]) -> u64) -> u64 {
        let Some(timeline) = &mut self.timeline else { return at };
        let work = self.flash.work();
        let done = how(timeline, at, work);
        work.clear();
        done
    }

    /// Background steps in bounded pieces (RULES R24). An error here recurs in the command that needs the room, which reports it.
    fn settle(&mut self, at: u64) {
        self.charge(at, Timeline::work_behind);
        if self.read_only {
            return;
        }
        let _ = self.flash.settle();
        self.charge(at, Timeline::work_behind);
        if self.lifetime.is_due() {
            let _ = self.lifetime.store(&self.counts());
        }
    }
}

impl<M: Medium> Drop for FlashSide<M> {
    /// Stores the counters; only statistics are lost if this fails.
    fn drop(&mut self) {
        if !self.read_only {
            let _ = self.lifetime.store(&self.counts());
        }
    }
}

//! The translation layer: reading, writing and discarding logical pages, and opening the drive.

use std::sync::Arc;

use tandemfs_device::{DeviceError, FlashCounts};

use super::buffer::WriteBuffer;
use super::collection::Job;
use super::geometry::{FlashGeometry, FlashOptions, SPARE_BLOCKS_MIN};
use super::host_space::Placed;
use super::layout::{BlockRecord, BlockState, Place, STAMP_MAX, Tables, open_error};
use super::pool::{Pool, Stream};
use super::wear::Wear;
use crate::medium::{FLASH_PAGE_BYTES, FlashWork, FlashWorkKind, Medium, PageBytes, Pages, PhysicalPage, Spare};
use crate::mutant::{self, Mutant};

/// Programming attempts for one page, at different places, before the drive gives up.
const PROGRAM_ATTEMPTS: u32 = 8;
/// Pages that collection moves in a step of [`Flash::settle`]: a settled drive keeps pace up to a write amplification of this and one.
const MOVES_A_STEP: u32 = 8;

/// Flash with its translation layer.
#[derive(Debug)]
pub(crate) struct Flash<M: Medium> {
    pub(super) medium: Arc<M>,
    pub(super) geometry: FlashGeometry,
    pub(super) options: FlashOptions,
    pub(super) tables: Tables<M>,
    pub(super) pool: Pool,
    pub(super) placed: Placed,
    buffer: WriteBuffer,
    /// The block that is being emptied.
    pub(super) job: Option<Job>,
    /// Blocks emptied for their dead pages since cold data was moved last.
    pub(super) collected_since_levelling: u32,
    pub(super) counts: FlashCounts,
    work: Option<Vec<FlashWork>>,
    no_work: Vec<FlashWork>,
    pub(super) read_only: Option<String>,
    /// The page that is on its way from the buffer or another block.
    pub(super) transfer: Box<PageBytes>,
}

fn check(geometry: &FlashGeometry, options: &FlashOptions) -> Result<(), DeviceError> {
    geometry.check().and_then(|()| options.check()).map_err(open_error)
}

/// A pseudo-random number from 0 to 999,999 (splitmix64).
fn draw_ppm(seed: u64, what: u64) -> u32 {
    let mut mixed = seed ^ what.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(factor);
    }
    ((mixed ^ (mixed >> 31)) % 1_000_000) as u32
}

impl<M: Medium> Flash<M> {
    /// Makes the flash of a new drive. Its DRAM from `dram_offset` on ([`FlashGeometry::dram_bytes`]) must be zeros, its cells erased.
    ///
    /// # Errors
    /// A geometry that makes no sense or has too few good blocks; those of the medium, also where the host's disk has no room for what an
    /// empty drive needs ([HF2] of `host_space.rs`).
    pub(crate) fn format(medium: Arc<M>, dram_offset: u64, geometry: FlashGeometry, options: FlashOptions) -> Result<Self, DeviceError> {
        check(&geometry, &options)?;
        let tables = Tables::new(Arc::clone(&medium), dram_offset, &geometry, &options);
        let is_bad = |block: &u64| draw_ppm(options.seed, *block) < options.factory_bad_blocks_ppm;
        let bad_blocks: Vec<u64> = (0..geometry.blocks()).filter(is_bad).collect();
        let good_blocks = geometry.blocks() - bad_blocks.len() as u64;
        if good_blocks < geometry.logical_blocks() + SPARE_BLOCKS_MIN {
            return Err(open_error(format!(
                "{} of {} blocks of flash are bad from the start, too many for {} logical pages; give more over-provisioning",
                bad_blocks.len(),
                geometry.blocks(),
                geometry.logical_pages
            )));
        }
        for block in bad_blocks {
            tables.set_block(block as u32, BlockRecord { state: BlockState::BadFromFactory, ..BlockRecord::default() })?;
        }
        tables.store_header(&geometry, &options)?;
        let mut flash = Self::open(medium, dram_offset, geometry, options)?;
        flash.reserve_needed()?;
        Ok(flash)
    }

    /// Opens the flash of a drive: derives what is volatile from its tables ([FL5]) and finishes erasures that were cut ([FL4]).
    ///
    /// # Errors
    /// Flash that was never formatted, has another geometry, or whose tables are damaged; those of the medium.
    pub(crate) fn open(medium: Arc<M>, dram_offset: u64, geometry: FlashGeometry, options: FlashOptions) -> Result<Self, DeviceError> {
        check(&geometry, &options)?;
        let mut tables = Tables::new(Arc::clone(&medium), dram_offset, &geometry, &options);
        tables.load(&geometry, &options)?;
        let mut records = Vec::with_capacity(geometry.blocks() as usize);
        for block in 0..geometry.blocks() as u32 {
            records.push((tables.block(block)?, 0));
        }
        if let Some(block) = records.iter().position(|(record, _)| u32::from(record.begun) > geometry.pages_per_block) {
            return Err(open_error(format!("flash block {block} is said to hold more pages than a block has")));
        }
        let pages_per_block = u64::from(geometry.pages_per_block);
        let mut waiting = vec![];
        let mut placed = Placed::default();
        tables.for_each_place(|logical, place| {
            if !matches!(place, Place::Nowhere { .. }) {
                placed.count(logical < options.window_pages, true);
            }
            match place {
                Place::Cells(page) => {
                    let entry = records.get_mut(usize::try_from(page.0 / pages_per_block).unwrap_or(usize::MAX));
                    match entry {
                        Some((record, valid)) if u64::from(record.begun) > page.0 % pages_per_block => *valid += 1,
                        _ => return Err(open_error(format!("logical page {logical} is said to be in {page:?}, which holds nothing"))),
                    }
                }
                Place::Slot(slot) => {
                    let found = if slot < options.write_buffer_pages { tables.slot(slot)? } else { Spare::default() };
                    if found.logical_plus_one != logical + 1 {
                        return Err(open_error(format!("logical page {logical} is said to be in slot {slot}, which does not hold it")));
                    }
                    waiting.push((found.stamp, slot, logical));
                }
                Place::Nowhere { .. } => {}
            }
            Ok(())
        })?;
        // Their stamps give approximately the order of arrival.
        waiting.sort_unstable();
        let waiting: Vec<(u32, u64)> = waiting.into_iter().map(|(_, slot, logical)| (slot, logical)).collect();
        let mut erased = 0;
        for (block, (record, valid)) in records.iter_mut().enumerate() {
            if *valid > u32::from(record.begun) {
                return Err(open_error(format!("flash block {block} is said to hold more logical pages than it has pages")));
            }
            if record.state == BlockState::Erasing {
                if *valid != 0 {
                    return Err(open_error(format!("flash block {block} is being erased, but {valid} logical pages are said to be in it")));
                }
                let first = PhysicalPage(block as u64 * pages_per_block);
                if !mutant::on(Mutant::CutErasureForgotten) {
                    medium.erase(first, pages_per_block)?;
                }
                *record = BlockRecord { erasures: record.erasures.saturating_add(1), begun: 0, state: BlockState::Good };
                tables.set_block(block as u32, *record)?;
                erased += 1;
            }
        }
        let mut flash = Self {
            pool: Pool::new(geometry, records),
            placed,
            medium,
            geometry,
            options,
            tables,
            buffer: WriteBuffer::new(options.write_buffer_pages, &waiting),
            job: None,
            collected_since_levelling: 0,
            counts: FlashCounts { blocks_erased: erased, ..FlashCounts::default() },
            work: None,
            no_work: vec![],
            read_only: None,
            transfer: Box::new([0; FLASH_PAGE_BYTES]),
        };
        flash.check_spare();
        // A full disk is no reason to refuse the drive: new pages are refused then.
        for block in flash.pool.open_now() {
            let _ = flash.reserve_block(block);
        }
        let _ = flash.reserve_needed();
        Ok(flash)
    }

    /// Does a bounded step of what can wait: programs a stripe where the buffer is nearly full, or moves pages of the block that is
    /// being emptied. Pages stay in the buffer for as long as that is not needed: they may be rewritten.
    ///
    /// # Errors
    /// Those of the medium. A drive that becomes read-only is no error here.
    pub(crate) fn settle(&mut self) -> Result<(), DeviceError> {
        if self.read_only.is_some() {
            return Ok(());
        }
        let result = if self.buffer.waiting_count() > self.options.write_buffer_pages - self.options.write_buffer_pages / 8 {
            self.program_stripe()
        } else {
            self.collect(MOVES_A_STEP, false).map(|_| ())
        };
        if self.read_only.is_some() { Ok(()) } else { result }
    }

    /// Counters since the drive was opened.
    pub(crate) fn counts(&self) -> FlashCounts {
        self.counts
    }

    /// How worn the blocks are. Looks at all of them.
    pub(crate) fn wear(&self) -> Wear {
        Wear::of(self.pool.blocks(), self.options.endurance_erasures)
    }

    /// Pages that wait to be programmed.
    pub(crate) fn buffered_pages(&self) -> u32 {
        self.buffer.waiting_count()
    }

    /// Turns recording of flash operations on or off.
    pub(crate) fn record_work(&mut self, is_recorded: bool) {
        self.work = is_recorded.then(Vec::new);
    }

    /// Recorded operations since the last call, in order.
    pub(crate) fn work(&mut self) -> &mut Vec<FlashWork> {
        self.work.as_mut().unwrap_or(&mut self.no_work)
    }

    /// The reason why the drive is read-only, if it is.
    pub(crate) fn read_only_reason(&self) -> Option<&str> {
        self.read_only.as_deref()
    }

    pub(super) fn note(&mut self, block: u32, kind: FlashWorkKind, is_waited_for: bool) {
        if let Some(work) = &mut self.work {
            work.push(FlashWork { die: self.geometry.die_of(block), kind, is_waited_for });
        }
    }

    /// Makes the drive read-only where too few good blocks are left ([FL6]).
    pub(super) fn check_spare(&mut self) {
        if self.read_only.is_none() && self.pool.spare_blocks() < SPARE_BLOCKS_MIN {
            self.stop_writing("no spare block is left");
        }
    }

    fn stop_writing(&mut self, what: &str) {
        let all = self.pool.blocks().len();
        let bad = all - self.pool.usable() as usize;
        self.read_only = Some(format!("{what} ({bad} of {all} blocks of flash are bad); the drive can only be read from now on"));
    }

    fn refuse(&self, command: &'static str) -> Result<(), DeviceError> {
        match &self.read_only {
            Some(reason) => Err(DeviceError::Firmware { device: "flash".into(), command, reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn check_range(&self, logical: u64) -> Result<(), DeviceError> {
        if logical < self.geometry.logical_pages {
            return Ok(());
        }
        let page_bytes = FLASH_PAGE_BYTES as u64;
        Err(DeviceError::OutOfRange {
            device: "flash".into(),
            offset: logical.saturating_mul(page_bytes),
            length: page_bytes,
            size: self.geometry.logical_pages * page_bytes,
        })
    }

    fn check_stamp(command: &'static str, stamp: u64) -> Result<(), DeviceError> {
        if stamp <= STAMP_MAX {
            return Ok(());
        }
        Err(DeviceError::Firmware { device: "flash".into(), command, reason: format!("the stamp {stamp} is above {STAMP_MAX}") })
    }

    /// The spare area of a flash page, checked against the entry that names the page.
    fn spare_of(&self, logical: u64, page: PhysicalPage) -> Result<Spare, DeviceError> {
        let spare = self.medium.spare(page)?;
        if spare.logical_plus_one == logical + 1 {
            return Ok(spare);
        }
        let reason = match spare.logical_plus_one {
            0 => format!("logical page {logical} should be in {page:?}, which holds nothing"),
            other => format!("logical page {logical} should be in {page:?}, which holds logical page {}", other - 1),
        };
        Err(DeviceError::Firmware { device: "flash".into(), command: "read", reason })
    }

    /// Marks a place that no entry names any more as invalid.
    pub(super) fn release(&mut self, place: Place) {
        match place {
            Place::Cells(page) => self.pool.drop_valid(self.pool.block_of(page)),
            Place::Slot(slot) => self.buffer.release(slot),
            Place::Nowhere { .. } => {}
        }
    }

    /// Programs the pages that wait for longest, one on each channel, and lets collection move as many.
    fn program_stripe(&mut self) -> Result<(), DeviceError> {
        for _ in 0..self.geometry.channel_count {
            let Some((slot, logical)) = self.buffer.oldest() else { break };
            self.make_room_for_host()?;
            let spare = self.tables.slot(slot)?;
            self.tables.load_slot(slot, &mut self.transfer)?;
            self.put(Stream::Host, logical, spare, false)?;
            self.buffer.release(slot);
        }
        self.collect(self.geometry.channel_count, false)?;
        Ok(())
    }

    /// Collects in the foreground until the host's stream may take a page.
    fn make_room_for_host(&mut self) -> Result<(), DeviceError> {
        self.reserve_ahead();
        while !self.pool.has_page_for_host() {
            let has_progressed = self.collect(u32::MAX, true)?;
            if !has_progressed && self.read_only.is_none() {
                self.stop_writing("no free block is left to move pages to");
            }
            self.refuse("write")?;
        }
        Ok(())
    }

    /// Programs the transferred page and switches its logical page to it ([FL1], [FL4]). A program that fails costs its block.
    pub(super) fn put(&mut self, stream: Stream, logical: u64, spare: Spare, is_waited_for: bool) -> Result<(), DeviceError> {
        for _ in 0..PROGRAM_ATTEMPTS {
            let Some(page) = self.pool.take(&self.tables, stream)? else { break };
            let block = self.pool.block_of(page);
            if mutant::on(Mutant::SwitchedBeforeProgrammed) {
                self.tables.set_place(logical, Place::Cells(page))?;
            }
            self.note(block, FlashWorkKind::Program, is_waited_for);
            match self.program(block, page, spare) {
                Ok(()) => {
                    self.counts.pages_programmed += 1;
                    self.tables.set_place(logical, Place::Cells(page))?;
                    self.pool.add_valid(block);
                    return Ok(());
                }
                Err(DeviceError::Firmware { .. }) => {
                    self.pool.retire(&self.tables, block)?;
                    self.check_spare();
                }
                // The host's file failed, for example on a full disk. That is no fault of the block, and may repeat.
                Err(error) => {
                    self.pool.give_back(&self.tables, page)?;
                    return Err(error);
                }
            }
        }
        if self.read_only.is_none() {
            self.stop_writing("a page could be programmed nowhere");
        }
        self.refuse("write")
    }

    fn program(&self, block: u32, page: PhysicalPage, spare: Spare) -> Result<(), DeviceError> {
        if self.options.program_failures_ppm > 0 {
            let erasures = u64::from(self.pool.block(block).record.erasures);
            if draw_ppm(self.options.seed ^ !page.0, erasures) < self.options.program_failures_ppm {
                let reason = format!("programming {page:?} failed");
                return Err(DeviceError::Firmware { device: "flash".into(), command: "program", reason });
            }
        }
        self.medium.program_page(page, &self.transfer, spare)
    }
}

impl<M: Medium> Pages for Flash<M> {
    fn read(&mut self, logical: u64, into: &mut PageBytes) -> Result<(), DeviceError> {
        self.check_range(logical)?;
        match self.tables.place(logical)? {
            Place::Nowhere { .. } => into.fill(0),
            Place::Slot(slot) => self.tables.load_slot(slot, into)?,
            Place::Cells(page) => {
                self.spare_of(logical, page)?;
                self.medium.read_page(page, into)?;
                self.counts.pages_read += 1;
                self.note(self.pool.block_of(page), FlashWorkKind::Read, true);
            }
        }
        Ok(())
    }

    fn write(&mut self, logical: u64, from: &PageBytes, stamp: u64) -> Result<(), DeviceError> {
        self.check_range(logical)?;
        Self::check_stamp("write", stamp)?;
        self.refuse("write")?;
        if matches!(self.tables.place(logical)?, Place::Nowhere { .. }) {
            self.admit(logical)?;
        }
        let slot = match self.buffer.free_slot() {
            Some(slot) => slot,
            None => {
                self.program_stripe()?;
                self.refuse("write")?;
                self.buffer.free_slot().ok_or_else(|| open_error("its write buffer has no slot".into()))?
            }
        };
        let old = self.tables.place(logical)?;
        if let (Place::Slot(slot), true) = (old, mutant::on(Mutant::BufferedPageOverwritten)) {
            return self.tables.store_slot(slot, from, Spare { logical_plus_one: logical + 1, stamp });
        }
        self.tables.store_slot(slot, from, Spare { logical_plus_one: logical + 1, stamp })?;
        self.tables.set_place(logical, Place::Slot(slot))?;
        self.buffer.fill(slot, logical);
        if matches!(old, Place::Nowhere { .. }) {
            self.placed.count(self.is_in_window(logical), true);
        }
        self.release(old);
        self.counts.pages_written += 1;
        Ok(())
    }

    fn stamp(&self, logical: u64) -> Result<u64, DeviceError> {
        self.check_range(logical)?;
        Ok(match self.tables.place(logical)? {
            Place::Nowhere { stamp } => stamp,
            Place::Slot(slot) => self.tables.slot(slot)?.stamp,
            Place::Cells(page) => self.spare_of(logical, page)?.stamp,
        })
    }

    fn discard(&mut self, logical: u64, stamp: u64) -> Result<(), DeviceError> {
        self.check_range(logical)?;
        Self::check_stamp("discard", stamp)?;
        self.refuse("discard")?;
        let old = self.tables.place(logical)?;
        let stamp = if mutant::on(Mutant::DiscardStampLost) { 0 } else { stamp };
        self.tables.set_place(logical, Place::Nowhere { stamp })?;
        if !matches!(old, Place::Nowhere { .. }) {
            self.placed.count(self.is_in_window(logical), false);
        }
        self.release(old);
        Ok(())
    }

    /// A page in the write buffer counts: it would be in the cells but for time.
    fn is_mapped(&self, logical: u64) -> Result<bool, DeviceError> {
        self.check_range(logical)?;
        Ok(!matches!(self.tables.place(logical)?, Place::Nowhere { .. }))
    }
}

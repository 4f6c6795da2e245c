//! A small drive and its model: the required results of operations, and the allowed states after a power failure.

use std::sync::Arc;

use tandemfs_device::{
    BlockPath, BlockRequest, BytePath, DeviceDescription, DeviceError, Firmware, MemoryNodes, PersistenceDomain, REQUEST_BYTES, TxId,
};
use tandemfs_format::{LINE_BYTES, Sector};

use super::model::{Atom, Model};
use super::operation::Operation;
use crate::controller::Controller;
use crate::firmware_drive::FirmwareDrive;
use crate::flash::FlashGeometry;
use crate::layout::DramLayout;
use crate::medium::FLASH_PAGE_BYTES;
use crate::medium::test_medium::TestMedium;
use crate::model::{FirmwareModel, GarbageCollection, Replacement, Staging};
use crate::profiles::profile;
use crate::timing::Timeline;

/// Pages of the memory zone and of the block zone.
pub(super) const MEMORY_PAGES: u64 = 6;
pub(super) const BLOCK_PAGES: u64 = 20;
pub(super) const PAGES: u64 = MEMORY_PAGES + BLOCK_PAGES;
const PAGE: u64 = FLASH_PAGE_BYTES as u64;

/// What a drive is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    staging: Staging,
    channel_count: u32,
    pages_per_block: u32,
    over_provisioning_percent: u32,
    garbage_collection: GarbageCollection,
    write_buffer_pages: u32,
    endurance_erasures: u32,
    has_timeline: bool,
}

const fn log(pages: u64, transaction_log_bytes: u64, clean_at_percent: u32) -> Staging {
    Staging::WriteLog { log_bytes: pages * PAGE, transaction_log_bytes, clean_at_percent }
}

const fn cache(pages: u64, replacement: Replacement) -> Staging {
    Staging::Cache { cache_bytes: pages * PAGE, replacement }
}

const LOG: Shape = Shape {
    name: "a log of 64 lines",
    staging: log(1, 64, 85),
    channel_count: 2,
    pages_per_block: 4,
    over_provisioning_percent: 30,
    garbage_collection: GarbageCollection::Greedy,
    write_buffer_pages: 4,
    endurance_erasures: 1_000_000,
    has_timeline: false,
};

/// Small in every way, so that what is rare on a drive happens all the time.
pub(super) const SHAPES: [Shape; 7] = [
    LOG,
    Shape {
        name: "a log of 192 lines over cost-benefit collection, with times",
        staging: log(3, 128, 60),
        channel_count: 1,
        garbage_collection: GarbageCollection::CostBenefit,
        write_buffer_pages: 2,
        has_timeline: true,
        ..LOG
    },
    Shape { name: "a log on flash that wears out", staging: log(2, 64, 95), over_provisioning_percent: 100, endurance_erasures: 3, ..LOG },
    Shape { name: "a TxLog of 16 entries that fills before its log", staging: log(16, 64, 85), ..LOG },
    Shape { name: "a cache with a clock", staging: cache(4, Replacement::Clock), ..LOG },
    Shape {
        name: "a cache that evicts the least recently used, with times",
        staging: cache(5, Replacement::Lru),
        has_timeline: true,
        ..LOG
    },
    Shape {
        name: "a cache on flash that wears out",
        staging: cache(2, Replacement::Lru),
        over_provisioning_percent: 100,
        endurance_erasures: 3,
        ..LOG
    },
];

impl Shape {
    pub(super) fn has_transactions(&self) -> bool {
        matches!(self.staging, Staging::WriteLog { .. })
    }

    /// Lines that open transactions may hold: a quarter of the log.
    fn uncommitted_max(&self) -> u64 {
        self.staging.write_log().map_or(0, |log| log.log_bytes / LINE_BYTES as u64 / 4)
    }

    fn model(&self) -> FirmwareModel {
        let base = profile("bytefs").and_then(|profile| profile.firmware).expect("a profile");
        let flash = FlashGeometry::for_capacity(PAGES, self.channel_count, 1, 1, self.pages_per_block, self.over_provisioning_percent);
        let model = FirmwareModel {
            staging: self.staging,
            channel_count: self.channel_count,
            dies_per_channel: 1,
            planes_per_die: 1,
            blocks_per_plane: flash.blocks_per_plane,
            pages_per_block: self.pages_per_block,
            over_provisioning_percent: self.over_provisioning_percent,
            garbage_collection: self.garbage_collection,
            write_buffer_pages: self.write_buffer_pages,
            endurance_erasures: self.endurance_erasures,
            ..base
        };
        model.check(PAGES).expect("a drive");
        model
    }
}

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Done,
    /// The power failed. Whether the operation was acknowledged before.
    Cut {
        is_acknowledged: bool,
    },
    /// The drive can only be read from now on.
    WornOut,
}

/// What happened on a drive, so that a test can say that something did.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Totals {
    pub(super) cuts: u64,
    pub(super) cleanings: u64,
    pub(super) commits: u64,
    pub(super) refusals: u64,
    pub(super) evictions: u64,
    pub(super) erased: u64,
    pub(super) moved: u64,
    pub(super) retired: u64,
    pub(super) worn_out: u64,
}

impl Totals {
    pub(super) fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.cleanings += other.cleanings;
        self.commits += other.commits;
        self.refusals += other.refusals;
        self.evictions += other.evictions;
        self.erased += other.erased;
        self.moved += other.moved;
        self.retired += other.retired;
        self.worn_out += other.worn_out;
    }
}

type Drive = FirmwareDrive<TestMedium>;

/// The drive, its medium, and what it must hold.
pub(super) struct Rig {
    pub(super) shape: Shape,
    pub(super) medium: Arc<TestMedium>,
    drive: Option<Drive>,
    pub(super) model: Model,
    pub(super) totals: Totals,
}

fn text(error: DeviceError) -> String {
    error.to_string()
}

fn transaction(number: u32) -> TxId {
    TxId::new(number).expect("not zero")
}

impl Rig {
    pub(super) fn new(shape: Shape) -> Self {
        let firmware = shape.model();
        let medium = Arc::new(TestMedium::new(DramLayout::new(&firmware, MEMORY_PAGES * PAGE, PAGES).end));
        Controller::format(&medium, &firmware, MEMORY_PAGES, PAGES).expect("formatted");
        let drive = open(shape, &medium, false).expect("opened");
        Self { shape, medium, drive: Some(drive), model: Model::new((PAGES * PAGE) as usize), totals: Totals::default() }
    }

    /// Another drive with the same content, as if this one's power had failed now and come back.
    pub(super) fn copy(&self) -> Result<Self, String> {
        let medium = Arc::new(self.medium.copy());
        let drive = open(self.shape, &medium, false).map_err(text)?;
        Ok(Self { shape: self.shape, medium, drive: Some(drive), model: self.model.clone(), totals: Totals::default() })
    }

    /// A drive with other content in the place of this one's.
    pub(super) fn over(&self, medium: TestMedium) -> Result<Self, String> {
        let medium = Arc::new(medium);
        let drive = open(self.shape, &medium, false).map_err(text)?;
        Ok(Self { shape: self.shape, medium, drive: Some(drive), model: self.model.clone(), totals: Totals::default() })
    }

    /// Does an operation whatever comes of it; of a drive that is opened again and refuses, nothing is left.
    pub(super) fn dare(&mut self, operation: &Operation) {
        if self.drive.is_some() {
            let _ = self.act(operation);
        }
    }

    /// Where the tables are in the DRAM, without the pages and lines themselves: offsets, in bytes.
    pub(super) fn tables(&self) -> Vec<(u64, u64)> {
        let layout = DramLayout::new(&self.shape.model(), MEMORY_PAGES * PAGE, PAGES);
        // Of the flash: header, touched pieces, translation, blocks, slots, each at the start of a page. Of the log: header, TxLog,
        // descriptors. Of a cache: its words.
        let parts = [(0, 64), (4096, 8), (8192, PAGES * 8), (12_288, 24 * 8), (16_384, 4 * 16)];
        let staging = [(0, 64), (0, 64), (4096, 128), (4096, 2048)];
        let at = |start: u64| move |(offset, length): (u64, u64)| (start + offset, start + offset + length);
        parts.map(at(layout.flash)).into_iter().chain(staging.map(at(layout.staging))).chain([(layout.lifetime, layout.spares)]).collect()
    }

    fn drive(&self) -> &Drive {
        self.drive.as_ref().expect("it is open")
    }

    /// Closes the drive, or lets it go where the power has failed.
    fn close(&mut self) {
        if let Some(drive) = self.drive.take() {
            let condition = drive.condition();
            let counts = tandemfs_device::Device::counts(&drive).expect("they are counted");
            self.totals.add(&Totals {
                cleanings: counts.firmware.log_cleanings,
                commits: counts.firmware.commits,
                evictions: counts.firmware.cache_evictions,
                erased: counts.flash.blocks_erased,
                moved: counts.flash.pages_moved,
                retired: counts.flash.blocks_retired,
                worn_out: u64::from(condition.read_only_reason.is_some() && !self.medium.is_off()),
                ..Totals::default()
            });
        }
    }

    /// Does an operation with the drive alone; answers what it read.
    fn act(&mut self, operation: &Operation) -> Result<Option<Vec<u8>>, DeviceError> {
        if let Operation::Reopen { recovers } = operation {
            self.close();
            self.drive = Some(open(self.shape, &self.medium, false)?);
            if *recovers {
                self.drive().recover()?;
            }
            return Ok(None);
        }
        let drive = self.drive();
        match operation {
            Operation::Store { offset, bytes } => drive.store(*offset, bytes)?,
            Operation::StoreTagged { transaction: number, offset, bytes } => drive.store_tagged(transaction(*number), *offset, bytes)?,
            Operation::Commit { transaction: number } => drive.commit(transaction(*number))?,
            Operation::Load { offset, length } => {
                let mut into = vec![0xee; *length as usize];
                drive.load(*offset, &mut into)?;
                return Ok(Some(into));
            }
            Operation::Read { sector, count } => return read(drive, *sector, *count).map(Some),
            Operation::Write { sector, bytes } => {
                let mut requests = [BlockRequest::Write { sector: Sector::new(*sector), buffer: bytes.into() }];
                drive.transfer(&mut requests, &mut || ())?;
            }
            Operation::Discard { sector, count } => drive.discard(Sector::new(*sector), *count)?,
            Operation::Fence => drive.fence(),
            Operation::Clean => drive.clean()?,
            Operation::Recover => drop(drive.recover()?),
            Operation::Reopen { .. } | Operation::Copy { .. } => {}
        }
        Ok(None)
    }

    /// Whether it must be refused, or may be.
    fn refusal(&self, operation: &Operation) -> (bool, bool) {
        match operation {
            Operation::Commit { transaction } => (!self.model.open.contains_key(transaction), false),
            Operation::Clean => (!self.model.open.is_empty(), false),
            Operation::StoreTagged { transaction, .. } => (false, self.model.used.contains(transaction)),
            _ => (false, false),
        }
    }

    /// An operation with the model beside it ([WD1], [WD4]).
    ///
    /// [WD1]: super
    pub(super) fn step(&mut self, operation: &Operation) -> Result<End, String> {
        if let Operation::Copy { read_only } = operation {
            return self.compare_copy(*read_only).map(|()| End::Done);
        }
        let atoms = operation.atoms(self.shape.has_transactions());
        let admitted = self.model.admitted(&atoms, self.shape.uncommitted_max());
        let (must_refuse, may_refuse) = self.refusal(operation);
        if may_refuse && admitted < atoms.len() {
            return Ok(End::Done); // It might be refused for either reason.
        }
        let result = self.act(operation);
        let is_off = self.medium.is_off();
        match result {
            Err(_) if is_off => return Ok(End::Cut { is_acknowledged: false }),
            Err(_) if self.is_worn_out() => return Ok(End::WornOut),
            Err(DeviceError::Firmware { .. }) if must_refuse || may_refuse || admitted < atoms.len() => {
                self.totals.refusals += 1;
                let done = if admitted < atoms.len() { admitted } else { 0 };
                atoms[..done].iter().for_each(|atom| self.model.apply(atom));
            }
            Err(error) => return Err(format!("an error: {error}")),
            Ok(_) if must_refuse || admitted < atoms.len() => return Err("it was not refused".into()),
            Ok(found) => {
                if let Some(found) = found {
                    self.check_read(operation, &found)?;
                }
                atoms.iter().for_each(|atom| self.model.apply(atom));
                match operation {
                    Operation::Clean => self.model.clean(),
                    Operation::Recover | Operation::Reopen { recovers: true } => self.model.recover(),
                    Operation::Reopen { recovers: false } => self.model.open_again(),
                    _ => {}
                }
            }
        }
        if is_off {
            return Ok(End::Cut { is_acknowledged: true });
        }
        self.check_state(operation)?;
        Ok(End::Done)
    }

    fn is_worn_out(&self) -> bool {
        self.drive.as_ref().is_some_and(|drive| drive.condition().read_only_reason.is_some())
    }

    fn check_read(&self, operation: &Operation, found: &[u8]) -> Result<(), String> {
        let expected: Vec<u8> = match operation {
            Operation::Load { offset, length } => self.model.visible[*offset as usize..(offset + length) as usize].to_vec(),
            Operation::Read { sector, count } => {
                let page = |sector: u64| ((sector + MEMORY_PAGES) % PAGES * PAGE) as usize;
                (*sector..sector + count).flat_map(|sector| self.model.visible[page(sector)..][..FLASH_PAGE_BYTES].to_vec()).collect()
            }
            _ => return Ok(()),
        };
        same(found, &expected)
    }

    /// What must be true between any two operations: the pages that it touched, beside what the drive says of its log.
    fn check_state(&mut self, operation: &Operation) -> Result<(), String> {
        let mut pages = vec![];
        for atom in operation.atoms(true) {
            match atom {
                Atom::Store { offset, .. } => pages.push(offset / PAGE),
                Atom::Page { page, .. } => pages.push(page),
                Atom::Commit(_) => pages.extend(0..PAGES),
            }
        }
        if matches!(operation, Operation::Recover | Operation::Reopen { .. } | Operation::Clean) {
            pages.extend(0..PAGES);
        }
        pages.dedup();
        for page in pages {
            self.check_page(page)?;
        }
        let Some(fill) = self.drive().condition().log else { return Ok(()) };
        ensure!(fill.lines <= fill.capacity_lines && fill.transactions <= fill.capacity_transactions, "over the brim: {fill:?}");
        let open = self.model.uncommitted_lines();
        ensure!(fill.uncommitted_lines == open, "the log has {} uncommitted lines, not {open}", fill.uncommitted_lines);
        if matches!(operation, Operation::Clean | Operation::Recover) && self.model.open.is_empty() {
            ensure!(fill.lines == 0 && fill.transactions == 0 && fill.pages == 0, "it left {fill:?}");
        }
        Ok(())
    }

    fn check_page(&self, page: u64) -> Result<(), String> {
        let found = read(self.drive(), (page + BLOCK_PAGES) % PAGES, 1).map_err(text)?;
        same(&found, &self.model.visible[(page * PAGE) as usize..][..FLASH_PAGE_BYTES]).map_err(|what| format!("page {page}: {what}"))
    }

    /// All of the drive, by blocks and by loads.
    pub(super) fn compare(&self) -> Result<(), String> {
        self.compare_with(&self.model.visible)
    }

    fn compare_with(&self, expected: &[u8]) -> Result<(), String> {
        compare(self.drive(), expected)
    }

    /// What a power failure would leave now, while the drive goes on ([WD2]).
    ///
    /// [WD2]: super
    fn compare_copy(&self, read_only: bool) -> Result<(), String> {
        let medium = Arc::new(self.medium.copy());
        let drive = open(self.shape, &medium, read_only).map_err(text)?;
        recover(self.shape, &drive).map_err(text)?;
        compare(&drive, &self.model.committed)?;
        if read_only {
            ensure!(drive.store(64, &[1; 64]).is_err(), "a drive that is open for reading only took a store");
            ensure!(drive.discard(Sector::new(0), 1).is_err(), "a drive that is open for reading only took a discard");
            compare(&drive, &self.model.committed)?;
        }
        Ok(())
    }

    /// After a power failure within an operation: opens the drive and recovers it, with further failures after so many steps each, and
    /// compares ([WD2], [WD3]).
    ///
    /// [WD2]: super
    /// [WD3]: super
    pub(super) fn revive(&mut self, operation: &Operation, is_acknowledged: bool, cuts: &[u64]) -> Result<End, String> {
        self.totals.cuts += 1;
        for cut in cuts.iter().map(|cut| Some(*cut)).chain([None]) {
            self.medium.cut_after(Some(0));
            self.close();
            self.medium.cut_after(cut);
            let opened = open(self.shape, &self.medium, false).and_then(|drive| recover(self.shape, &drive).map(|()| drive));
            match opened {
                Ok(drive) => {
                    self.drive = Some(drive);
                    if !self.medium.is_off() {
                        break;
                    }
                }
                Err(_) if self.medium.is_off() => {}
                Err(error) => return Err(format!("it does not open or recover: {error}")),
            }
        }
        self.medium.cut_after(None);
        let mut found = vec![];
        for sector in 0..PAGES {
            found.extend(read(self.drive(), (sector + BLOCK_PAGES) % PAGES, 1).map_err(text)?);
        }
        // What was acknowledged is in the model already.
        let atoms = if is_acknowledged { vec![] } else { operation.atoms(self.shape.has_transactions()) };
        let is_found = |model: &Model| model.committed == found;
        let mut candidate = self.model.clone();
        let mut is_one = is_found(&candidate);
        for atom in &atoms {
            if is_one {
                break;
            }
            candidate.apply(atom);
            is_one = is_found(&candidate);
        }
        if !is_one {
            let before = same(&found, &self.model.committed).err().unwrap_or_default();
            let after = same(&found, &candidate.committed).err().unwrap_or_default();
            return Err(format!("a power failure left neither what was before ({before}) nor after ({after}) nor a part in its order"));
        }
        candidate.recover();
        self.model = candidate;
        self.compare()?;
        Ok(if self.is_worn_out() { End::WornOut } else { End::Done })
    }

    /// After the drive refused because it is worn out: the operation may have been done in part; reads go on, now and once it is opened
    /// again ([WD5]).
    ///
    /// [WD5]: super
    pub(super) fn retire(&mut self, operation: &Operation) -> Result<(), String> {
        if matches!(operation, Operation::Recover | Operation::Reopen { .. }) {
            self.model.recover();
        }
        let mut found = vec![];
        for page in 0..PAGES {
            found.extend(read(self.drive(), (page + BLOCK_PAGES) % PAGES, 1).map_err(text)?);
        }
        let mut candidate = self.model.clone();
        for atom in operation.atoms(self.shape.has_transactions()) {
            if candidate.visible == found {
                break;
            }
            candidate.apply(&atom);
        }
        same(&found, &candidate.visible).map_err(|what| format!("worn out: {what}"))?;
        // Opened again: everything is seen that was, until a RECOVER that may be refused.
        self.close();
        self.drive = Some(open(self.shape, &self.medium, false).map_err(text)?);
        recover(self.shape, self.drive()).map_err(text)?;
        candidate.recover();
        self.compare_with(&candidate.committed).map_err(|what| format!("worn out and opened again: {what}"))
    }

    /// Closes the drive in order, opens it and compares; what happened on it.
    pub(super) fn finish(mut self) -> Result<Totals, String> {
        self.medium.cut_after(None);
        self.close();
        self.drive = Some(open(self.shape, &self.medium, false).map_err(text)?);
        self.model.open_again();
        self.compare().map_err(|what| format!("closed and opened: {what}"))?;
        self.close();
        Ok(self.totals)
    }
}

fn open(shape: Shape, medium: &Arc<TestMedium>, read_only: bool) -> Result<Drive, DeviceError> {
    let model = shape.model();
    let timeline = model.timing.filter(|_| shape.has_timeline);
    let timeline = timeline.map(|times| Timeline::new(times, model.die_count(), model.write_buffer_pages));
    let controller = Controller::open(medium, "test", &model, MEMORY_PAGES, PAGES, timeline)?;
    let description = DeviceDescription {
        name: "test".into(),
        memory_bytes: MEMORY_PAGES * PAGE,
        block_bytes: BLOCK_PAGES * PAGE,
        cache_bytes: 0,
        domain: PersistenceDomain::Adr,
        volatile_write_cache: false,
        discard: true,
        discard_zeroes: true,
        overlapping: true,
        request_bytes: REQUEST_BYTES,
        nodes: MemoryNodes::default(),
    };
    Ok(FirmwareDrive::new(controller, description, None, read_only))
}

/// RECOVER, where there are transactions. One that is refused by flash that is worn out hides what was not committed nevertheless.
fn recover(shape: Shape, drive: &Drive) -> Result<(), DeviceError> {
    match drive.recover() {
        Err(_) if !shape.has_transactions() => Ok(()),
        Err(_) if drive.condition().wear.bad_blocks_grown > 0 && drive.condition().read_only_reason.is_some() => Ok(()),
        result => result.map(drop),
    }
}

fn read(drive: &Drive, sector: u64, count: u64) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0xee; (count * PAGE) as usize];
    // As two requests where there are several pages.
    let (first, second) = bytes.split_at_mut((count.div_ceil(2) * PAGE) as usize);
    let second_sector = Sector::new(sector + count.div_ceil(2));
    let mut requests = vec![BlockRequest::Read { sector: Sector::new(sector), buffer: first.into() }];
    if !second.is_empty() {
        requests.push(BlockRequest::Read { sector: second_sector, buffer: second.into() });
    }
    drive.transfer(&mut requests, &mut || ())?;
    Ok(bytes)
}

fn compare(drive: &Drive, expected: &[u8]) -> Result<(), String> {
    for (page, expected) in (0..PAGES).zip(expected.chunks_exact(FLASH_PAGE_BYTES)) {
        let found = read(drive, (page + BLOCK_PAGES) % PAGES, 1).map_err(text)?;
        same(&found, expected).map_err(|what| format!("page {page} by blocks: {what}"))?;
        let mut found = vec![0xee; FLASH_PAGE_BYTES];
        drive.load(page * PAGE, &mut found).map_err(text)?;
        same(&found, expected).map_err(|what| format!("page {page} by loads: {what}"))?;
    }
    Ok(())
}

fn same(found: &[u8], expected: &[u8]) -> Result<(), String> {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => {
            let end = (at + 8).min(found.len());
            Err(format!("from byte {at} on it is {:02x?}, not {:02x?}", &found[at..end], &expected[at..end]))
        }
    }
}

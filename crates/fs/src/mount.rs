//! Mounting and unmounting.
//!
//! [MO1] `clean = false`, a new generation and the new stamp (`stamp.rs`) are durable before the first record (RULES R25).
//! [MO2] A read-only mount writes nothing: the journal is replayed into the host copies only.
//! [MO3] An unmount removes orphans, writes everything home, lets empty units leave their regions and writes that home too, saves the
//!       maps, and only then sets the clean flag. If space is held back ([HB4] of `held_back.rs`), the maps are not exact: they are not
//!       saved, and the flag stays 0.
//! [MO4] The drive recovers before the mount reads anything: that discards what a crash left uncommitted. Then the rings are replayed,
//!       whichever engine ran last: after a mount that used the drive's transactions they are empty (ByteFS §4.7).

use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashSet;
use tandemfs_device::{Drive, Fenced, Replaced, Structure};
use tandemfs_format::geometry::{Geometry, SUPERBLOCK_OFFSETS};
use tandemfs_format::identity::BlockIdentity;
use tandemfs_format::superblock::{ChecksumKind, Superblock, SuperblockError, Tail};
use tandemfs_format::{Corrupt, InodeNumber, LINE_BYTES, LineAddress, PairSeed, SECTOR_BYTES, UNIT_BYTES};

use crate::alloc::departure::Pace;
use crate::alloc::memory::MemoryAllocator;
use crate::alloc::sectors::SectorAllocator;
use crate::alloc::spare_pages::SparePages;
use crate::cache::{LineStore, PageCache};
use crate::error::{Error, Result};
use crate::error_counts::ErrorCounts;
use crate::file_system::FileSystem;
use crate::health::Health;
use crate::held_back::HeldBack;
use crate::inodes::InodeTable;
use crate::inodes::read_ahead::ReadAhead;
use crate::journal::{Journal, replay};
use crate::leaving::Leaving;
use crate::lent_pages::LentPages;
use crate::mutant::{Mutant, on};
use crate::numa::Numa;
use crate::quarantine::Quarantine;
use crate::quota::Quota;
use crate::recovery::{self, Loaded, RecoveryReport};
use crate::settings::Settings;
use crate::stamp;
use crate::statistics::Live;
use crate::store_lease::{LentRooms, StoreLeases};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use crate::sync::{Mutex, parallelism};
use crate::tuning::admission::Admission;
use crate::tuning::mappings::Mappings;
use crate::tuning::moves::Moves;
use crate::tuning::threshold::Splitting;
use crate::tuning::unchecked::Unchecked;
use crate::tuning::updates;
use crate::tuning::write_back::WriteBack;
use crate::types::{Engine, MountOptions, Promote, Threshold};
use crate::updates::Updates;
use crate::volume::{Discards, Volume};
use crate::wait::{LongMutex, may_wait};

/// Damaged objects that a mount logs one by one.
const DAMAGE_LOGGED_MAX: usize = 16;

/// What metadata pages and file pages may take of the memory option, in bytes.
pub(crate) fn page_cache_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 2 - ReadAhead::bytes_max(memory_bytes)
}

/// Whether this is a limit of write-back.
pub(crate) fn check_write_back_percent(percent: u8) -> Result<()> {
    let fits = (1..=90).contains(&percent);
    if fits { Ok(()) } else { Err(Error::InvalidArgument("the limit of write-back is a share from 1 to 90 percent")) }
}

/// Both superblock copies and the first sector of the block half as on the device. A copy that cannot be read is empty if the other can.
pub(crate) fn read_halves(drive: &Drive) -> Result<([Vec<u8>; 2], Vec<u8>)> {
    let memory_bytes = drive.description().memory_bytes;
    let mut copies = [Vec::new(), Vec::new()];
    let mut failure = None;
    for (copy, offset) in copies.iter_mut().zip(SUPERBLOCK_OFFSETS) {
        if offset + 1024 <= memory_bytes {
            let mut bytes = vec![0; 1024];
            match drive.load(Structure::Superblock, LineAddress::new(offset / LINE_BYTES as u64), &mut bytes) {
                Ok(()) => *copy = bytes,
                Err(error) => {
                    tracing::error!(%error, "a copy of the superblock cannot be read");
                    failure = Some(error);
                }
            }
        }
    }
    if let Some(error) = failure
        && copies.iter().all(|copy| Superblock::decode(copy).is_err())
    {
        return Err(error.into());
    }
    let has_sector = drive.description().block_bytes >= SECTOR_BYTES as u64;
    Ok((copies, if has_sector { stamp::read_first_sector(drive)? } else { vec![0; SECTOR_BYTES] }))
}

/// Describes what a drive holds, for `mkfs`; `None` if it holds nothing.
pub(crate) fn occupant(drive: &Drive) -> Result<Option<String>> {
    let (copies, sector) = read_halves(drive)?;
    Ok(match Superblock::choose([&copies[0], &copies[1]]) {
        Ok(superblock) => Some(format!("the TandemFS {} '{}'", superblock.uuid(), superblock.label)),
        Err(SuperblockError::Foreign) => match BlockIdentity::decode(&sector) {
            Some(identity) => Some(format!("the block half of TandemFS {}", identity.uuid())),
            None if sector.iter().all(|byte| *byte == 0) => None,
            None => Some("data in the first sector of its block half".into()),
        },
        Err(error) => Some(format!("a TandemFS that this build does not read ({error})")),
    })
}

/// Reads and verifies the superblock; checks that both halves belong to one pair, are of one time and large enough.
///
/// # Errors
/// `Superblock` (foreign, damaged, newer), `Truncated`, `PairMismatch`, `StampMismatch`, `IdentityDamaged`.
pub fn read_superblock(drive: &Drive) -> Result<Superblock> {
    let device = || drive.description().name.clone();
    let (copies, sector) = read_halves(drive)?;
    let superblock = Superblock::choose([&copies[0], &copies[1]]).map_err(|source| Error::Superblock { device: device(), source })?;
    let sizes = [
        ("memory", drive.description().memory_bytes, superblock.geometry.memory_bytes()),
        ("block", drive.description().block_bytes, superblock.geometry.block_sectors() * SECTOR_BYTES as u64),
    ];
    for (zone, found, expected) in sizes {
        if found < expected {
            return Err(Error::Truncated { device: device(), zone, found, expected });
        }
    }
    stamp::verify(drive, &superblock, &sector)?;
    Ok(superblock)
}

impl FileSystem {
    /// Mounts: replays the journal, loads or rebuilds the allocation maps, removes orphans.
    ///
    /// # Errors
    /// Those of [`read_superblock`]; `Stopped` if the journal or the metadata is so damaged that writing would lose data (a read-only mount
    /// may still work); `ProgramsLeft`.
    pub fn mount(drive: Drive, options: &MountOptions) -> Result<Self> {
        let start = Instant::now();
        let on_drive = match options.engine {
            Engine::Auto => drive.has_transactions(),
            Engine::Journal => false,
            Engine::Firmware if drive.has_transactions() => true,
            Engine::Firmware => {
                let reason = "engine=firmware needs a drive with transactions, which this one has not; use engine=journal or engine=auto";
                return Err(Error::InvalidArgument(reason));
            }
        };
        if !options.read_only && drive.is_zone_held() && !on(Mutant::ProgramsLeftIgnored) {
            return Err(Error::ProgramsLeft { device: drive.description().name.clone() }); // [SL5] of `data/lent_stores.rs`
        }
        let drive_recovery = if on(Mutant::RecoverSkipped) { None } else { drive.recover()? }; // [MO4]
        let mut superblock = read_superblock(&drive)?;
        let unknown = superblock.unknown_to_write();
        if unknown != 0 && !options.read_only {
            let source = SuperblockError::WriteFeatures { unknown };
            return Err(Error::Superblock { device: drive.description().name.clone(), source });
        }
        let geometry = superblock.geometry;
        check_write_back_percent(options.write_back_percent)?;
        let large = options.large_extent_bytes;
        if large != 0 && !(large.is_power_of_two() && (2 * UNIT_BYTES..=512 * UNIT_BYTES).contains(&large)) {
            return Err(Error::InvalidArgument("large extents have a power of two from 4 MiB to 1 GiB"));
        }
        Splitting::check(options.threshold, geometry.block_bytes())?;
        let splitting = Splitting::new(geometry.block_bytes());
        let pools = parallelism();
        let read_ahead = ReadAhead::new(options.memory_bytes, options.read_ahead_bytes);
        let records = if superblock.clean { Vec::new() } else { replay::read_records(&drive, &geometry, &superblock, options.read_only)? };
        if !options.read_only {
            stamp::renew(&drive, &mut superblock)?;
        }
        let errors = ErrorCounts::since(superblock.error_counters, &drive);
        let line_store = LineStore {
            pair: PairSeed::new(superblock.pair),
            geometry: Replaced::new(geometry),
            health: Health::new(options.read_only),
            pages: PageCache::new(page_cache_bytes(options.memory_bytes)),
            live: Live { drive_before: Mutex::new(drive.drive_counts().unwrap_or_default()), ..Live::default() },
            updates: Updates::new(&drive, options.update),
            drive,
            holes: superblock.hole_lines(),
            memory_homes: AtomicBool::new(superblock.has_memory_homes()),
            errors,
        };
        let numa = Numa::new(line_store.drive.nodes().clone(), options.numa);
        if large != 0 && numa.nodes().count() > 1 {
            return Err(Error::InvalidArgument("large extents need a memory zone on one node of memory"));
        }
        let mut memory = MemoryAllocator::new(&geometry, pools, numa, SparePages::new(options.memory_bytes, options.write_back_percent));
        if large != 0 {
            memory.keep_large_extents(&geometry, pools, large);
        }
        memory.limit_extents(options.home_limit.of(geometry.memory_units() * UNIT_BYTES));
        let volume = Volume {
            line_store,
            checksums: superblock.checksum_kind == ChecksumKind::Crc32c,
            log_counting: superblock.log_counting(),
            journal: Journal::new(superblock.clone(), on_drive),
            memory,
            sectors: SectorAllocator::new(&geometry, pools),
            quarantine: Quarantine::default(),
            lent_pages: LentPages::default(),
            leases: Arc::default(),
            held_back: HeldBack::default(),
            quota: Quota::default(),
            discards: Discards::default(),
            versions: Arc::default(),
        };
        let last_txid = volume.journal.replay(&volume.line_store, &records)?;
        volume.journal.set_last_txid(last_txid);
        if !options.read_only {
            // The commit point of recovery: replayed lines are home, the old records are no longer needed ([MO1]).
            let home = volume.journal.write_home(&volume.line_store, &volume.pages.take_dirty())?;
            volume.journal.update_superblock(&volume.line_store, home, |superblock| {
                superblock.stamps = stamp::settled(superblock.stamps); // [IS4] of `stamp.rs`
                superblock.clean = superblock.clean && on(Mutant::CleanKept);
                superblock.generation += 1;
                superblock.watermark = volume.journal.durable_watermark(last_txid);
                superblock.tails.fill(Tail::default());
            })?;
            volume.journal.set_watermark(last_txid);
        }
        let Loaded { clean, mut orphans, damaged, open, copies } = recovery::load_space(&volume, &superblock)?;
        orphans.retain(|_| !on(Mutant::OrphansForgotten));
        if !options.read_only {
            if options.threshold == Threshold::Auto {
                splitting.calibrate(&volume);
            }
            updates::calibrate(&volume);
        }
        let copies_max = volume.memory.spare_pages.copies_max();
        let mut file_system = Self {
            volume,
            inodes: InodeTable::new(options.memory_bytes),
            settings: Settings::new(options),
            splitting,
            read_ahead,
            promotion: Admission::new(if options.read_only { Promote::Off } else { options.promote }, copies_max),
            rename_lock: LongMutex::default(),
            orphans: Mutex::new(orphans.iter().map(|number| number.get()).collect::<HashSet<u64>>()),
            nameable: Mutex::default(),
            late_orphans: Mutex::default(),
            generation: AtomicU32::new((last_txid as u32).wrapping_add(1)),
            spare_generations: Mutex::default(),
            spare_generations_count: AtomicUsize::new(0),
            leaving: Leaving::default(),
            write_back: WriteBack::new(options, last_txid),
            compaction: Mutex::default(),
            moves: Mutex::new(Moves::at_mount(superblock.has_memory_homes() && !options.read_only)),
            unchecked: Mutex::new(if options.read_only { Unchecked::default() } else { Unchecked::of(&open) }),
            mappings: Mappings::default(),
            store_leases: StoreLeases::default(),
            lent_rooms: LentRooms::default(),
            looked_for_units: Mutex::default(),
            told_full: Mutex::default(),
            background: Mutex::default(),
            unmounted: LongMutex::default(),
            recovery: RecoveryReport::default(),
        };
        file_system.adopt_lent_rooms()?; // [LR6] of `data/lent_room.rs`
        file_system.begin_counting_at_mount();
        if !options.read_only {
            for number in &orphans {
                file_system.remove_orphan(*number)?;
            }
            file_system.end_copies(copies.iter().filter(|number| !orphans.contains(number)))?;
            file_system.give_back_at_ends()?;
        }
        file_system.log_damage(&damaged);
        file_system.recovery = RecoveryReport {
            clean,
            drive: drive_recovery,
            records_replayed: records.len() as u64,
            orphans_removed: orphans.len() as u64,
            duration: start.elapsed(),
        };
        if let Some(found) = drive_recovery {
            let (kept, discarded, elapsed) = (found.lines_kept, found.lines_discarded, found.duration);
            tracing::info!(kept, discarded, transactions = found.transactions, ?elapsed, "the drive recovered its write log");
        }
        tracing::info!(clean, records = records.len(), orphans = orphans.len(), elapsed = ?start.elapsed(), "mounted");
        Ok(file_system)
    }

    /// Writes everything home, saves the maps and marks the device clean. Nothing changes after that. A second call does nothing. Layouts
    /// are recalled first ([LY6] of `lease.rs`). A change by another thread meanwhile is done before, or refused with `ReadOnly`; space that a refused one
    /// had taken may be saved as taken.
    ///
    /// # Errors
    /// `MappingsHeld` if files are mapped, `LayoutsHeld` if a holder did not return its layout in time, and `StoresHeld` if a program may still store to memory that was lent to it: nothing was changed, and the call can be repeated. `Stopped` if the file system had stopped, or if the device fails now: the device then stays as after a crash.
    pub fn unmount(&self) -> Result<()> {
        may_wait()?;
        let mut is_unmounted = self.unmounted.lock()?;
        self.end(&mut is_unmounted, &self.volume.geometry)
    }

    /// Unmounts the file system and gives it these sizes (`resize.rs` [RS4], [RS5]).
    pub(crate) fn unmount_as(&self, geometry: &Geometry) -> Result<()> {
        self.end(&mut *self.unmounted.lock()?, geometry)
    }

    fn end(&self, is_unmounted: &mut bool, geometry: &Geometry) -> Result<()> {
        self.end_all_stores()?; // [SL5] of `data/lent_stores.rs`
        let closed = self.mappings.close().and_then(|()| self.volume.leases.close()); // [FM6] of `data/mapped.rs`
        closed.inspect_err(|_| self.store_leases.open())?;
        if self.volume.health.is_read_only() {
            return Ok(());
        }
        if !*is_unmounted {
            self.unmount_once(geometry)?;
            *is_unmounted = true;
        }
        Ok(())
    }

    fn unmount_once(&self, geometry: &Geometry) -> Result<()> {
        self.stop_background();
        self.volume.end_discards(); // [DQ4]
        let left = self.mappings.left(); // [FM8] of `data/mapped.rs`
        let orphans: Vec<u64> = self.orphans.lock().iter().copied().filter(|number| !left.contains(number)).collect();
        for number in orphans {
            let number = InodeNumber::new(number);
            self.inodes.release(number, u64::MAX);
            if let Err(error) = self.remove_orphan(number) {
                self.volume.health.check_writable()?;
                tracing::warn!(inode = number.get(), %error, "a removed file keeps its space until the next mount");
                self.volume.held_back.begin();
            }
        }
        self.close_all_open_pages()?;
        if let Err(error) = self.store_grace_periods(true) {
            self.volume.health.check_writable()?;
            tracing::warn!(%error, "when soft limits of quota were passed is not stored: their grace periods begin again");
        }
        self.volume.checkpoint()?;
        if self.volume.held_back.is_any() && !on(Mutant::CleanWhileHeldBack) {
            self.volume.health.close(); // [HB4]
            tracing::warn!("damaged metadata holds space back: the next mount searches again; run tandemfs check --repair before it");
            return Ok(());
        }
        if !left.is_empty() {
            self.volume.health.close(); // [FM8] of `data/mapped.rs`
            tracing::warn!(
                files = left.len(),
                "programs still have files mapped for stores: the next mount recovers, once they have ended"
            );
            return Ok(());
        }
        self.volume.release_pending();
        self.volume.release_quarantine();
        self.volume.release_returned();
        self.give_back_at_ends()?;
        self.volume.last_checkpoint()?; // also of what left before one that could not
        self.volume.sectors.empty_room();
        self.volume.memory.spare_pages.close(&self.volume.memory);
        let too_early = on(Mutant::GrownBeforeMaps) && *geometry != *self.volume.geometry;
        let saved = if too_early { Ok(Fenced::nothing_stored()) } else { self.save_maps(geometry) };
        let saved = saved.map_err(|error| self.volume.health.stop_because(format!("saving the maps failed: {error}")))?;
        self.volume.journal.update_superblock(&self.volume.line_store, saved, |superblock| {
            superblock.geometry = *geometry;
            superblock.clean = true; // [MO3]
            superblock.watermark = self.volume.journal.last_txid();
        })?;
        if too_early {
            drop(self.save_maps(geometry)?);
        }
        self.volume.health.close();
        Ok(())
    }

    /// Logs what recovery found damaged, the first objects with their paths.
    fn log_damage(&self, damaged: &[(InodeNumber, Corrupt)]) {
        for (number, what) in damaged.iter().take(DAMAGE_LOGGED_MAX) {
            let path = self.path_text(*number, None);
            tracing::error!(inode = number.get(), path, "damaged metadata: {what}; run tandemfs check");
        }
        if damaged.is_empty() {
            return;
        }
        let held = self.volume.held_back.report();
        let (memory, block) = (held.held_memory_bytes, held.held_block_bytes);
        tracing::error!(objects = damaged.len(), memory, block, "damaged metadata; space in bytes that is held back because of it");
    }

    /// Lets empty units leave their regions, at a mount or an unmount. What keeps them there is no reason for either to fail, unless the file
    /// system stopped.
    fn give_back_at_ends(&self) -> Result<()> {
        match self.volume.give_back_units(if self.are_units_short() { Pace::Short } else { Pace::Ends }) {
            Err(error) if self.volume.health.check_writable().is_ok() => {
                tracing::warn!(%error, "empty units of metadata stay in their regions");
                Ok(())
            }
            given => given.map(drop),
        }
    }

    fn save_maps(&self, geometry: &Geometry) -> Result<Fenced> {
        self.volume.maps().save(geometry, self.volume.journal.superblock_generation())
    }
}

//! Shrinking the zones of a file system that is not mounted: what lies behind the new ends moves, then one write changes the sizes.
//!
//! [SR1] Only a whole file system shrinks: it is mounted as any mount does it, and of which damaged metadata holds space back, or an object cannot be
//!       moved, keeps its sizes ([RS1] of `resize.rs`).
//! [SR2] What lies behind the new ends moves, and so does what lies where map pieces shall be. It moves as in a compaction ([CZ2], [GT2]): each object
//!       in a transaction of its own. A crash leaves it in one of both places, with the old sizes. Repeating the command goes on with what is left.
//! [SR3] Inodes do not move, since their number is their place; their unit does. When all lines are home, its lines are copied to a free unit and
//!       sealed for their new addresses. When the copy is durable, one transaction names the new unit in the segment table ([DZ4] of
//!       `alloc/shrinking.rs`). A crash leaves the old unit, or the new one with the same inodes. A damaged line ends it: it would get a checksum.
//! [SR4] The mount that moved things ends as by a crash. The next one rebuilds the maps from what is on the device. Only if these say that nothing is
//!       behind the new ends, the unmount saves the maps for the new sizes, and then writes the superblock with them, as for a growth ([RS4], [RS5]).
//! [SR5] Whether everything has room is estimated before anything moves. Where that was wrong, for want of room in a row, what has moved stays moved,
//!       and the sizes stay.

use std::time::Instant;

use tandemfs_device::{Drive, Fenced, Lines, Structure};
use tandemfs_format::geometry::{Geometry, GeometryError};
use tandemfs_format::inode::{INODE_LINES, Inode};
use tandemfs_format::segment::Region;
use tandemfs_format::{EMPTY_LINE, InodeNumber, LINE_BYTES, PAGE_BYTES, PAGE_LINES, SECTOR_BYTES, UNIT_BYTES, UNIT_LINES};

use crate::alloc::departure::Pace;
use crate::alloc::memory::MemoryAllocator;
use crate::alloc::shrinking::Replacement;
use crate::cache::{Owner, damaged, load_bulk};
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::mutant::{Mutant, on};
use crate::resize::mounted_whole;
use crate::types::Growth;

/// How often things are moved: what recovery frees or takes may change what is where.
const ROUNDS: u32 = 3;

/// Shrinks the zones of a file system that is not mounted to the sizes that are given. Returns its sizes before and after.
///
/// # Errors
/// `InvalidArgument` (a size is larger than the zone; damaged metadata), `Geometry`, `DoesNotFit`: the sizes are what they were ([SR5]). Those of
/// [`FileSystem::mount`] and of the device.
pub fn shrink(drive: &Drive, sizes: &Growth) -> Result<(Geometry, Geometry)> {
    for round in 0..=ROUNDS {
        let fs = mounted_whole(drive)?; // [SR1]
        let before = *fs.volume.geometry;
        let planned = fs.planned_to_shrink(sizes).and_then(|after| {
            let is_clear = fs.is_clear_for(&after) || on(Mutant::ShrunkUnmoved);
            if is_clear || round == 0 { fs.check_room_after(&after).map(|()| (after, is_clear)) } else { Ok((after, is_clear)) }
        });
        let (after, is_clear) = match planned {
            Ok(planned) => planned,
            Err(error) => {
                fs.unmount()?;
                return Err(error);
            }
        };
        if is_clear {
            fs.unmount_as(&after)?; // [SR4]
            return Ok((before, after));
        }
        if round == ROUNDS {
            fs.unmount()?;
            return Err(fs.does_not_fit("memory", after.memory_bytes()));
        }
        let begun = Instant::now();
        let cleared = fs.clear_for(&after);
        drop(fs); // [SR4]
        tracing::info!(elapsed = ?begun.elapsed(), ok = cleared.is_ok(), "moved what lies behind the new ends");
        if let Err(error) = cleared {
            FileSystem::mount(drive.clone(), &crate::types::MountOptions::default())?.unmount()?;
            return Err(error);
        }
    }
    unreachable!("the last round returns")
}

impl FileSystem {
    /// The sizes after a shrink, and the place of the map pieces: where they are, or at the new end.
    fn planned_to_shrink(&self, sizes: &Growth) -> Result<Geometry> {
        let before = *self.volume.geometry;
        let size = |wanted: Option<u64>, current: u64, granule: u64| match wanted.map(|wanted| wanted / granule * granule) {
            Some(whole) if whole > current => {
                Err(Error::InvalidArgument("one zone cannot grow while the other one shrinks; run the command once for each zone"))
            }
            whole => Ok(whole.unwrap_or(current)),
        };
        let sector = SECTOR_BYTES as u64;
        let memory_bytes = size(sizes.memory_bytes, before.memory_bytes(), UNIT_BYTES)?;
        let block_bytes = size(sizes.block_bytes, before.block_sectors() * sector, sector)?;
        if block_bytes == 0 && before.has_block_zone() {
            return Err(Error::InvalidArgument("a block zone cannot be taken away as a whole"));
        }
        let at = |unit| {
            let (rings, each) = (before.ring_count(), before.ring_bytes());
            Geometry::with_map_at(unit, memory_bytes, block_bytes, before.block_bytes(), rings, each)
        };
        let refused = |source| Error::Geometry { device: self.volume.drive.description().name.clone(), source };
        let after = match (before.map_unit(), at(before.map_unit())) {
            (0, after) => after,
            (_, Ok(after)) => Ok(after),
            // The fewest units at the new end that hold the pieces.
            (_, Err(error)) => {
                let units = memory_bytes / UNIT_BYTES;
                (1..=before.map_unit_count()).filter_map(|count| at(units.checked_sub(count)?).ok()).next().ok_or(error)
            }
        };
        let after = after.map_err(refused)?;
        let needed = after.metadata_bytes_worst(self.volume.checksums);
        if after.memory_bytes() < before.memory_bytes() && needed > after.memory_bytes() / 10 * 6 {
            return Err(refused(GeometryError::MetadataTooLarge { needed, memory: after.memory_bytes() }));
        }
        Ok(after)
    }

    /// Whether nothing lies behind the new ends or where map pieces shall lie.
    fn is_clear_for(&self, after: &Geometry) -> bool {
        self.volume.memory.units_behind(after).is_empty() && self.volume.sectors.is_free_from(after.block_sectors())
    }

    fn does_not_fit(&self, zone: &'static str, wanted: u64) -> Error {
        Error::DoesNotFit { device: self.volume.drive.description().name.clone(), zone, wanted }
    }

    /// [SR5]
    fn check_room_after(&self, after: &Geometry) -> Result<()> {
        let blocks = self.volume.sectors.space();
        let (used, bytes) = (blocks.total_bytes - blocks.free_bytes, after.block_sectors() * SECTOR_BYTES as u64);
        let kept = blocks.free_bytes - blocks.available_bytes;
        if after.block_sectors() < self.volume.geometry.block_sectors() && used + kept > bytes - SECTOR_BYTES as u64 {
            return Err(self.does_not_fit("block", bytes));
        }
        let map = after.map_units();
        let needed = self.volume.memory.units_needed() + after.fixed_units() + (map.end - map.start);
        if after.memory_bytes() < self.volume.geometry.memory_bytes() && needed > after.memory_units() {
            return Err(self.does_not_fit("memory", after.memory_bytes()));
        }
        Ok(())
    }

    /// Moves what lies behind the new ends ([SR2], [SR3]). Nothing else may be done with this mount afterwards.
    fn clear_for(&self, after: &Geometry) -> Result<()> {
        let volume = &self.volume;
        volume.checkpoint()?;
        volume.release_pending();
        volume.give_back_units(Pace::Short)?;
        volume.memory.doom(after);
        volume.sectors.doom(after.block_sectors());
        if self.empty_doomed()? > 0 {
            let zone = if volume.sectors.is_any_left_to_gather() { "block" } else { "memory" };
            let wanted = if zone == "block" { after.block_sectors() * SECTOR_BYTES as u64 } else { after.memory_bytes() };
            return Err(self.does_not_fit(zone, wanted));
        }
        volume.give_back_units(Pace::Short)?;
        volume.checkpoint()?; // all lines are home ([SR3])
        for region in Region::ALL {
            for unit in volume.memory.doomed_units_of(region) {
                let planned = volume.memory.plan_replacement(region, unit);
                self.replace_unit(planned.ok_or_else(|| self.does_not_fit("memory", after.memory_bytes()))?)?;
            }
        }
        Ok(())
    }

    /// [SR3]
    fn replace_unit(&self, replacement: Replacement) -> Result<()> {
        let copied = match replacement.region {
            Region::Inodes if on(Mutant::InodesNotCopied) => Fenced::nothing_stored(),
            Region::Inodes => self.copy_inodes(&replacement)?,
            region => {
                let (first, lines) = (MemoryAllocator::line_of_unit(replacement.to), replacement.below_then);
                self.volume.zero_fresh_pages(crate::alloc::regions::structure_of(region), first, lines.next_multiple_of(PAGE_LINES))?
            }
        };
        self.volume.commit_table(&replacement.changes, copied)?;
        self.volume.memory.replaced(replacement);
        Ok(())
    }

    /// Copies the inodes of a unit, and seals them for their new place.
    fn copy_inodes(&self, Replacement { from, to, position, below, .. }: &Replacement) -> Result<Fenced> {
        let volume = &self.volume;
        let (from, to) = (MemoryAllocator::line_of_unit(*from), MemoryAllocator::line_of_unit(*to));
        let mut in_flight = Lines::none();
        let mut bytes = vec![0; PAGE_BYTES];
        for page in (0..below.next_multiple_of(PAGE_LINES)).step_by(PAGE_LINES as usize) {
            load_bulk(&volume.drive, Structure::Inode, from.nth(page), &mut bytes)?;
            for (line, bytes) in (page..).zip(bytes.as_chunks_mut::<LINE_BYTES>().0) {
                let number = InodeNumber::new((position * UNIT_LINES + line) / INODE_LINES);
                if line >= *below || number.get() == 0 {
                    *bytes = EMPTY_LINE; // beyond the mark, or of the slot that is never used
                } else if *bytes != EMPTY_LINE {
                    let place = |unit: tandemfs_format::LineAddress| Inode::place(volume.pair, number, unit.nth(line));
                    let is_whole = place(from).verify(bytes).is_ok();
                    if !is_whole {
                        return Err(damaged(Owner { inode: number, generation: 0 }, from.nth(line), "checksum"));
                    }
                    *bytes = place(to).seal(*bytes);
                }
            }
            let stored = volume.drive.store(Structure::Inode, to.nth(page), &bytes)?;
            in_flight = in_flight.and(volume.drive.flush_lines(stored));
        }
        Ok(volume.drive.fence(in_flight))
    }
}

//! Growing the zones of a file system to what its device has, offline (in use: `growing.rs`); and its label, offline or mounted.
//!
//! [RS1] The file system is mounted as any mount does it: it is recovered, and `clean` is 0, before anything is decided. A file system that
//!       this build cannot mount for writing, or of which damaged metadata holds space back, is left unchanged.
//! [RS2] The added space belongs to nobody: units and sectors behind the last ones. No structure moves except the map pieces, which are
//!       derived state: nobody reads them while `clean` is 0.
//! [RS3] Map pieces that no longer fit where they are get whole free units (`format::geometry` [GE1]): new ones, or old ones that nothing
//!       uses.
//! [RS4] The unmount saves the maps of the new sizes in their new place, fenced. A power cut before [RS5] leaves the old sizes and `clean`
//!       0, as in any mount: the next mount rebuilds the maps of the old sizes from the tree.
//! [RS5] Then one superblock write makes the whole change: sizes, place of the map pieces, `clean` 1. Both copies are written, each fenced,
//!       so either the old or the new sizes count, each with everything that they need.
//! [RS6] Setting a label is one superblock write too; `clean` stays as it is.

use tandemfs_device::{Drive, Fenced};
use tandemfs_format::geometry::{Geometry, GeometryError};
use tandemfs_format::superblock::{Superblock, SuperblockError};
use tandemfs_format::{SECTOR_BYTES, UNIT_BYTES};

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::journal::checkpoint::write_superblock;
use crate::mount::read_superblock;
use crate::mutant::{Mutant, on};
use crate::types::{Growth, MountOptions};

/// Why a file system does not grow of which damaged metadata holds space back.
pub(crate) const HELD_BACK: &str = "metadata is damaged, so it is not known which space is free; run tandemfs check --repair first";

/// Longest label, in bytes.
const LABEL_BYTES_MAX: usize = 64;

/// Checks that a superblock can hold a label.
pub(crate) fn check_label(label: &str) -> Result<()> {
    if label.len() > LABEL_BYTES_MAX || label.contains('\0') { Err(Error::Label) } else { Ok(()) }
}

/// Sets the label of a file system that is not mounted.
///
/// # Errors
/// `Label`; those of [`read_superblock`] and of the device.
pub fn set_label(drive: &Drive, label: &str) -> Result<()> {
    check_label(label)?;
    drive.recover()?; // an earlier owner may have left transactions open
    let mut superblock = read_superblock(drive)?;
    check_writable(drive, &superblock)?;
    label.clone_into(&mut superblock.label);
    superblock.sequence += 1;
    Ok(write_superblock(drive, &superblock)?) // [RS6]
}

/// Grows a file system that is not mounted. Returns its sizes before and after; equal if there was nothing to do.
///
/// # Errors
/// `Shrinks`, `BeyondDevice`, `Geometry`, `NoRoomForMaps`, `InvalidArgument` (damaged metadata): nothing was changed. Those of [`FileSystem::mount`] and `unmount`: if one comes
/// after the change, the next mount finds the new sizes.
pub fn grow(drive: &Drive, growth: &Growth) -> Result<(Geometry, Geometry)> {
    let fs = mounted_whole(drive)?; // [RS1]
    let before = *fs.volume.geometry;
    let after = match fs.planned(growth, |_, found| found, |units| fs.volume.memory.free_run(units)) {
        Ok(after) => after,
        Err(error) => {
            fs.unmount()?;
            return Err(error);
        }
    };
    fs.unmount_as(&after)?; // [RS4], [RS5]
    Ok((before, after))
}

/// Checks that a file system that is not mounted could grow this way if its device had the room. Recovers it, and changes nothing else.
///
/// # Errors
/// Those of [`grow`].
pub fn could_grow(drive: &Drive, growth: &Growth) -> Result<()> {
    let fs = mounted_whole(drive)?;
    let room = |wanted: Option<u64>, found: u64| wanted.unwrap_or(found).max(found);
    let grown = fs.planned(growth, room, |units| fs.volume.memory.free_run(units));
    fs.unmount()?;
    grown.map(drop)
}

/// The file system, mounted, if its maps are exact ([HB4] of `held_back.rs`): only exact maps can be saved for other sizes.
pub(crate) fn mounted_whole(drive: &Drive) -> Result<FileSystem> {
    let fs = FileSystem::mount(drive.clone(), &MountOptions::default())?;
    if !fs.damage().holds_back {
        return Ok(fs);
    }
    fs.unmount()?;
    Err(Error::InvalidArgument(HELD_BACK))
}

/// Checks that this build can write a file system.
pub(crate) fn check_writable(drive: &Drive, superblock: &Superblock) -> Result<()> {
    let unknown = superblock.unknown_to_write();
    if unknown == 0 {
        return Ok(());
    }
    let source = SuperblockError::WriteFeatures { unknown };
    Err(Error::Superblock { device: drive.description().name.clone(), source })
}

impl FileSystem {
    /// Sets the label of a mounted file system ([RS6]).
    ///
    /// # Errors
    /// `Label`, `ReadOnly`, `Stopped`.
    pub fn set_label(&self, label: &str) -> Result<()> {
        check_label(label)?;
        self.volume.health.check_writable()?;
        self.volume
            .journal
            .update_superblock(&self.volume.line_store, Fenced::nothing_stored(), |superblock| label.clone_into(&mut superblock.label))
    }

    /// The sizes after a growth, and the place of the map pieces. `room` says what the device has of a zone by what is asked for and what it has
    /// now, `free_run` which units serve where so many are needed in the zone as it is.
    pub(crate) fn planned(
        &self,
        growth: &Growth,
        room: impl Fn(Option<u64>, u64) -> u64,
        free_run: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<Geometry> {
        let before = *self.volume.geometry;
        let description = self.volume.drive.description();
        let (memory_found, block_found) =
            (room(growth.memory_bytes, description.memory_bytes), room(growth.block_bytes, description.block_bytes));
        let device = || description.name.clone();
        let sector = SECTOR_BYTES as u64;
        let everything = growth.memory_bytes.is_none() && growth.block_bytes.is_none();
        let size = |zone, wanted: Option<u64>, current: u64, found: u64, granule: u64| {
            let Some(wanted) = wanted.or(everything.then_some(found)) else { return Ok(current) };
            let whole = wanted / granule * granule;
            match whole {
                _ if whole < current => Err(Error::Shrinks { device: device(), zone, current, wanted }),
                _ if wanted > found => Err(Error::BeyondDevice { device: device(), zone, found, wanted }),
                _ => Ok(whole),
            }
        };
        let memory_bytes = size("memory", growth.memory_bytes, before.memory_bytes(), memory_found, UNIT_BYTES)?;
        let block_bytes = match growth.block_bytes {
            None if !before.has_block_zone() => 0,
            Some(1..) if !before.has_block_zone() => return Err(Error::InvalidArgument("a file system without a block zone gets none")),
            wanted => size("block", wanted, before.block_sectors() * sector, block_found, sector)?,
        };
        let at = |unit| {
            let (rings, each) = (before.ring_count(), before.ring_bytes());
            Geometry::with_map_at(unit, memory_bytes, block_bytes, before.block_bytes(), rings, each)
        };
        let refused = |source| Error::Geometry { device: device(), source };
        // The map pieces stay where they are if they take no more units than before.
        let is_same_place = |after: &Geometry| {
            after.fixed_units() == before.fixed_units() && after.map_units().end <= before.map_units().end || on(Mutant::MapGrowsInPlace)
        };
        let after = match at(before.map_unit()).ok().filter(is_same_place) {
            Some(after) => after,
            None => {
                // Any place gives the number of units that the pieces fill. Whether they fit is checked for the place that they get.
                let new = before.memory_units();
                let units = at(new).or_else(|_| at(0)).map_err(refused)?.map_unit_count();
                let fits = memory_bytes / UNIT_BYTES >= new + units;
                let unit = if fits { Some(new) } else { free_run(units) }; // [RS3]
                at(unit.ok_or_else(|| Error::NoRoomForMaps { device: device(), units })?).map_err(refused)?
            }
        };
        let needed = after.metadata_bytes_worst(self.volume.checksums);
        if after.block_sectors() > before.block_sectors() && needed > after.memory_bytes() / 10 * 6 {
            return Err(refused(GeometryError::MetadataTooLarge { needed, memory: after.memory_bytes() }));
        }
        Ok(after)
    }
}

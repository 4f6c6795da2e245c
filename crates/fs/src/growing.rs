//! Growing the zones of a file system in use. What a growth is, and where map pieces go: `resize.rs`.
//!
//! [ON1] The device is larger before the file system is ([`Drive::grow`](tandemfs_device::Drive::grow)): a larger device with an old file system is
//!       whole, a file system that is larger than its device is refused.
//! [ON2] One superblock write makes the change (RULES R30), with `clean` 0 as during any mount: sizes, and the place of the map pieces. Map pieces mean
//!       nothing while `clean` is 0, so they are not written: the unmount saves those of the new sizes, and after a crash the maps are rebuilt.
//! [ON3] Units of the old zone that map pieces shall lie in are taken from the allocator before that write. No record and no pointer names a line of
//!       a free unit ([GU1] of `alloc/departure.rs`, RULES R7), and from then on nobody gets one there. Units that map pieces leave stay nobody's until the next
//!       mount.
//! [ON4] The maps have entries for the new space before that write, so that nothing can fail behind it; all of it is taken. It becomes free when the
//!       write is durable: otherwise a record could name space that after a crash does not exist.
//! [ON5] Growths come one after the other, and an unmount waits for one. Operations wait for none: who finds no space meanwhile waits as for a
//!       thread that frees some ([NS3] of `shortage.rs`).
//! [ON6] Where damaged metadata may name free space ([HB1] of `held_back.rs`), nothing grows: new space would be the only space that it does not name.

use std::cell::Cell;

use tandemfs_device::{DeviceError, Fenced};
use tandemfs_format::UNIT_BYTES;
use tandemfs_format::geometry::Geometry;

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::mutant::{Mutant, on};
use crate::resize::HELD_BACK;
use crate::types::{Grown, Growth};
use crate::wait::may_wait;

/// Why units cannot be added in use.
const COUNTED_UNITS: &str = "has a memory zone on several nodes of memory, or a class of large extents, which cannot grow in use";

impl FileSystem {
    /// Grows the zones while the file system is in use. Without sizes: to those of its device, as far as that can be done in use.
    ///
    /// # Errors
    /// `BeyondDevice`, `Geometry`, `NoRoomForMaps`, `GrowsUnmounted`, `InvalidArgument` (damaged metadata), `ReadOnly`, `Stopped`, `WouldWait`; those
    /// of the device: the sizes are what they were. `Stopped` also if the superblock could not be written.
    pub fn grow_zones(&self, growth: &Growth) -> Result<Grown> {
        may_wait()?;
        let is_unmounted = self.unmounted.lock()?; // [ON5]
        self.volume.health.check_writable()?;
        if *is_unmounted {
            return Err(Error::ReadOnly);
        }
        if self.volume.held_back.is_any() {
            return Err(Error::InvalidArgument(HELD_BACK)); // [ON6]
        }
        let before = *self.volume.geometry;
        let could = self.planned(growth, |wanted, found| wanted.unwrap_or(found).max(found), |units| self.volume.memory.free_run(units));
        let could = could.map_err(|error| match error {
            Error::Shrinks { device, zone, .. } => {
                Error::GrowsUnmounted { device, reason: format!("has a {zone} zone that cannot shrink in use") }
            }
            error => error,
        })?;
        self.check_in_use(growth, &could)?;
        let grown = self.volume.drive.grow(growth.memory_bytes, growth.block_bytes); // [ON1]
        grown.map_err(|error| match error {
            DeviceError::Open { path, reason } => Error::GrowsUnmounted { device: path, reason },
            error => Error::Device(error),
        })?;
        let taken = Cell::new(None);
        let place = |units| {
            let first = self.volume.memory.take_map_units(units)?; // [ON3]
            taken.set(Some((first, units)));
            Some(first)
        };
        let growth = self.in_use(growth);
        let done = self.planned(&growth, |_, found| found, place).and_then(|after| {
            self.check_in_use(&growth, &after)?;
            if after != before {
                self.take_sizes(&after)?;
            }
            Ok(after)
        });
        match done {
            Ok(after) => Ok(Grown { before, after, is_memory_left: self.is_memory_left(&after) }),
            Err(error) => {
                if let Some((first, units)) = taken.get().filter(|_| self.volume.health.check_writable().is_ok()) {
                    self.volume.memory.return_map_units(first, units);
                }
                Err(error)
            }
        }
    }

    fn take_sizes(&self, after: &Geometry) -> Result<()> {
        let volume = &self.volume;
        let _leaving = self.leaving.enter(); // [ON5]
        volume.memory.prepare_growth(after);
        volume.sectors.prepare_growth(after); // [ON4]
        if !on(Mutant::GrownUnwritten) {
            volume.journal.update_superblock(&volume.line_store, Fenced::nothing_stored(), |superblock| superblock.geometry = *after)?; // [ON2]
        }
        volume.geometry.replace(*after);
        volume.memory.grow(after, self.options().home_limit.of(after.memory_units() * UNIT_BYTES));
        volume.sectors.grow(after);
        Ok(())
    }

    /// What is asked for, without the memory zone where that cannot grow in use and nobody asked for it by name.
    fn in_use(&self, growth: &Growth) -> Growth {
        let is_left = growth.memory_bytes.is_none() && growth.block_bytes.is_none() && !self.volume.memory.can_grow();
        let (now, device) = (&*self.volume.geometry, self.volume.drive.description());
        match is_left {
            true => Growth { memory_bytes: Some(now.memory_bytes()), block_bytes: now.has_block_zone().then_some(device.block_bytes) },
            false => *growth,
        }
    }

    /// Whether the device has more memory than the zone, and that cannot grow in use.
    fn is_memory_left(&self, after: &Geometry) -> bool {
        !self.volume.memory.can_grow() && self.volume.drive.description().memory_bytes >= after.memory_bytes() + UNIT_BYTES
    }

    /// Refuses a growth that cannot be done in use.
    fn check_in_use(&self, growth: &Growth, after: &Geometry) -> Result<()> {
        let wants_memory = growth.memory_bytes.is_some() && after.memory_bytes() > self.volume.geometry.memory_bytes();
        if wants_memory && !self.volume.memory.can_grow() {
            let device = self.volume.drive.description().name.clone();
            return Err(Error::GrowsUnmounted { device, reason: COUNTED_UNITS.into() });
        }
        Ok(())
    }
}

//! Features that a file system gains by `tandemfs upgrade`, and the UUID that users see. Both only where it is not mounted.
//!
//! A mount gives no features: a file system that an older build uses as well stays as it is until its administrator decides otherwise.
//!
//! [UG1] Only a file system that was unmounted cleanly and that this build can write is changed. Whoever calls also checks it first.
//! [UG2] Features are added one after the other, each with an atomic change whose last step makes it count: a write of the superblock with
//!       its bit. A crash leaves a file system with some of the features, whole; the next upgrade adds the others. If only the last of the
//!       writes is missing, it is made up for.
//! [UG3] A feature that changes the identity is added with a new stamp (`stamp.rs`), so that a torn identity is told from a damaged one.

use tandemfs_device::{Drive, Fenced};
use tandemfs_format::identity::Stamps;
use tandemfs_format::superblock::{Superblock, compat, ro_compat};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::journal::checkpoint::write_superblock;
use crate::mount::{read_halves, read_superblock};
use crate::resize::check_writable;
use crate::seal::seal_mappings;
use crate::stamp;

/// The feature bit of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureBit {
    /// A build that does not know it ignores it.
    Compat(u64),
    /// A build that does not know it mounts read-only.
    RoCompat(u64),
}

/// A feature that a file system can gain.
#[derive(Debug, Clone, Copy)]
pub struct Feature {
    /// Its name, as in `docs/FORMAT.md`.
    pub name: &'static str,
    /// Its bit.
    pub bit: FeatureBit,
    /// What it is good for.
    pub gain: &'static str,
    /// Adds it to a file system that lacks it ([UG2]); the superblock is that on the device.
    add: fn(&Drive, &mut Superblock) -> Result<()>,
}

/// All of them, in the order in which they are added.
pub const FEATURES: &[Feature] = &[
    Feature {
        name: "stamp",
        bit: FeatureBit::RoCompat(ro_compat::STAMP),
        gain: "an older copy of one half beside the other half is refused",
        add: add_stamp,
    },
    Feature {
        name: "volume UUID",
        bit: FeatureBit::RoCompat(ro_compat::VOLUME_UUID),
        gain: "the UUID can be changed (tandemfs uuid)",
        add: add_volume_uuid,
    },
    Feature {
        name: "sealed holes",
        bit: FeatureBit::RoCompat(ro_compat::SEALED_HOLES),
        gain: "a lost line of a mapping is damage, and does not read as zeros",
        add: add_sealed_holes,
    },
    Feature {
        name: "lost records",
        bit: FeatureBit::RoCompat(ro_compat::LOST_RECORDS),
        gain: "what a repair gives up of a file is listed from then on, and does not read as zeros",
        add: add_lost_records,
    },
    Feature {
        name: "error counters",
        bit: FeatureBit::Compat(compat::ERROR_COUNTERS),
        gain: "errors are counted, and the last scrub is known",
        add: add_error_counters,
    },
];

impl Feature {
    /// Whether a file system has it.
    pub fn is_of(&self, superblock: &Superblock) -> bool {
        match self.bit {
            FeatureBit::Compat(bit) => superblock.compat & bit != 0,
            FeatureBit::RoCompat(bit) => superblock.has(bit),
        }
    }

    /// What a build that does not know it does.
    pub fn older_builds(&self) -> &'static str {
        match self.bit {
            FeatureBit::Compat(_) => "ignore it",
            FeatureBit::RoCompat(_) => "mount only read-only",
        }
    }
}

/// Features that [`upgrade`] would add.
///
/// # Errors
/// Those of [`upgrade`] before it writes.
pub fn missing_features(drive: &Drive) -> Result<Vec<&'static Feature>> {
    let superblock = whole_superblock(drive)?;
    Ok(FEATURES.iter().filter(|feature| !feature.is_of(&superblock)).collect())
}

/// Adds all features that a file system lacks, and returns them.
///
/// # Errors
/// `NotClean`, `Superblock` (features that this build cannot write) and the other errors of [`read_superblock`]: nothing was changed. Errors
/// of the device: some features were added, and a second call adds the others.
pub fn upgrade(drive: &Drive) -> Result<Vec<&'static Feature>> {
    let missing = missing_features(drive)?;
    for feature in &missing {
        let mut superblock = read_superblock(drive)?;
        (feature.add)(drive, &mut superblock)?;
    }
    if missing.is_empty() && is_interrupted(drive)? {
        write_identity_and_superblock(drive, &mut read_superblock(drive)?)?;
    }
    Ok(missing)
}

/// Whether a change of superblock and identity did not end ([UG2]).
fn is_interrupted(drive: &Drive) -> Result<bool> {
    let (copies, _) = read_halves(drive)?;
    let [first, second] = copies.map(|copy| Superblock::decode(&copy));
    Ok(first != second || first.is_ok_and(|superblock| superblock.stamps.is_changing()))
}

/// Sets the UUID that users see.
///
/// # Errors
/// `NeedsFeature` without the feature; `NotClean` and the other errors of [`upgrade`].
pub fn set_uuid(drive: &Drive, uuid: Uuid) -> Result<()> {
    let mut superblock = whole_superblock(drive)?;
    if !superblock.has(ro_compat::VOLUME_UUID) {
        return Err(Error::NeedsFeature { device: drive.description().name.clone(), feature: "volume UUID" });
    }
    superblock.volume_uuid = uuid;
    write_identity_and_superblock(drive, &mut superblock)
}

/// The superblock of a file system that may be changed ([UG1]).
fn whole_superblock(drive: &Drive) -> Result<Superblock> {
    drive.recover()?; // an earlier owner may have left transactions open
    let superblock = read_superblock(drive)?;
    check_writable(drive, &superblock)?;
    match superblock.clean {
        true => Ok(superblock),
        false => Err(Error::NotClean { device: drive.description().name.clone() }),
    }
}

/// The identity of a file system without the feature has the stamp 0.
fn add_stamp(drive: &Drive, superblock: &mut Superblock) -> Result<()> {
    superblock.ro_compat |= ro_compat::STAMP;
    superblock.stamps = Stamps::settled(0);
    write_identity_and_superblock(drive, superblock)
}

/// Users keep the UUID that they know.
fn add_volume_uuid(drive: &Drive, superblock: &mut Superblock) -> Result<()> {
    superblock.ro_compat |= ro_compat::VOLUME_UUID;
    superblock.volume_uuid = superblock.pair;
    write_identity_and_superblock(drive, superblock)
}

/// The bit is set when all lines are sealed ([HS1] of `seal.rs`).
fn add_sealed_holes(drive: &Drive, superblock: &mut Superblock) -> Result<()> {
    drop::<Fenced>(seal_mappings(drive)?);
    add_bit(drive, superblock, ro_compat::SEALED_HOLES)
}

fn add_lost_records(drive: &Drive, superblock: &mut Superblock) -> Result<()> {
    add_bit(drive, superblock, ro_compat::LOST_RECORDS)
}

fn add_error_counters(drive: &Drive, superblock: &mut Superblock) -> Result<()> {
    superblock.compat |= compat::ERROR_COUNTERS;
    add_bit(drive, superblock, 0)
}

/// Sets a bit that says nothing about the identity.
fn add_bit(drive: &Drive, superblock: &mut Superblock, bit: u64) -> Result<()> {
    superblock.ro_compat |= bit;
    superblock.sequence += 1;
    Ok(write_superblock(drive, superblock)?)
}

/// Makes a superblock and the identity that goes with it durable, with a new stamp. The first write of the superblock has the whole change.
fn write_identity_and_superblock(drive: &Drive, superblock: &mut Superblock) -> Result<()> {
    stamp::renew(drive, superblock)?;
    superblock.stamps = stamp::settled(superblock.stamps);
    superblock.sequence += 1;
    Ok(write_superblock(drive, superblock)?)
}

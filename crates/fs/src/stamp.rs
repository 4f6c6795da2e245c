//! The stamp: proof that two halves are of one time.
//!
//! Every mount that writes, and every command that changes the identity of the block half, draws a random number and leaves it in the
//! superblock and in the identity. A half that was copied at another time has another stamp and is refused. The superblock has two stamps,
//! the identity one: the halves belong together if the identity's is one of the two.
//!
//! [IS1] The number is drawn anew each time. One that was fixed in advance, by an unmount for example, would be in the copy as well.
//! [IS2] The new stamp is durable as `stamp_pending` in both copies of the superblock before the identity is written. `stamp` is then the
//!       one that the identity has.
//! [IS3] The identity with the new stamp is durable before `stamp` changes to it. The rest of its sector stays as it was.
//! [IS4] A mount sets `stamp` in the write that precedes its first record (RULES R25). So before anything is stored by a mount, an older
//!       copy of either half has become foreign, and the stamp costs one write of the superblock.
//! [IS5] If the superblock has two different stamps, an earlier change was interrupted: then the identity that was read may be in a volatile
//!       cache of the drive, or torn. It is written again and flushed before [IS2] replaces the other stamp.
//! [IS6] Without a block zone there is no identity, and no other half that could be of another time: the stamp of `mkfs` stays.
//!
//! A crash leaves an accepted pair at every instant: before [IS2] is durable both halves have the old stamp; until the identity is durable
//! it has the old or the new one (or is torn, [`BlockHalf::Torn`]), and every copy of the superblock names both, or the old one twice if the
//! second copy was not reached and the identity not begun; until `stamp` is written in both copies each of them names the new one.

use tandemfs_device::{BlockRequest, Drive, Flushed, Structure};
use tandemfs_format::identity::{BlockHalf, BlockIdentity, Stamps};
use tandemfs_format::superblock::{Superblock, ro_compat};
use tandemfs_format::{SECTOR_BYTES, Sector};
use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::error::{Error, Result};
use crate::journal::checkpoint::write_superblock;
use crate::mutant::{Mutant, on};

/// A random stamp.
pub(crate) fn draw() -> u64 {
    loop {
        let (high, low) = Uuid::new_v4().as_u64_pair();
        // The bits of a UUID that say its version are at different places of the two halves.
        let stamp = high ^ low.rotate_left(32);
        if stamp != 0 {
            return stamp;
        }
    }
}

/// Reads the first sector of the block zone.
pub(crate) fn read_first_sector(drive: &Drive) -> Result<Vec<u8>> {
    let mut sector = vec![0; SECTOR_BYTES];
    let mut requests = [BlockRequest::Read { sector: Sector::new(0), buffer: (&mut sector).into() }];
    drop(drive.transfer(Structure::Superblock, &mut requests, &mut || {})?);
    Ok(sector)
}

/// Checks that the block half with this first sector belongs to the superblock. Returns the stamp that it has, or gets.
///
/// # Errors
/// `PairMismatch`, `StampMismatch`, `IdentityDamaged`.
pub(crate) fn verify(drive: &Drive, superblock: &Superblock, sector: &[u8]) -> Result<u64> {
    if !superblock.geometry.has_block_zone() {
        return Ok(superblock.stamps.current); // [IS6]
    }
    let device = drive.description().name.clone();
    let expected = superblock.pair;
    match superblock.block_half(sector) {
        BlockHalf::Partner { stamp, .. } => Ok(stamp),
        BlockHalf::Torn => Ok(superblock.stamps.current),
        BlockHalf::OtherTime { stamp } => Err(Error::StampMismatch { device, found: stamp, expected: superblock.stamps.current }),
        BlockHalf::OtherPair { pair } => Err(Error::PairMismatch { device, found: pair, expected }),
        BlockHalf::Damaged { .. } => Err(Error::IdentityDamaged { device, pair: expected }),
    }
}

/// Gives the identity a new stamp ([IS2], [IS3]). The caller writes the superblock with [`settled`] next.
///
/// # Errors
/// Those of [`verify`] and of the device. What is on the device is an accepted pair.
pub(crate) fn renew(drive: &Drive, superblock: &mut Superblock) -> Result<()> {
    if !superblock.has(ro_compat::STAMP) || !superblock.geometry.has_block_zone() {
        return Ok(());
    }
    let mut sector = read_first_sector(drive)?;
    let found = verify(drive, superblock, &sector)?;
    if superblock.stamps.is_changing() && !on(Mutant::InterruptedStampKept) {
        write_identity(drive, superblock, found, &mut sector)?; // [IS5]
    }
    let pending = draw();
    let current = if on(Mutant::InterruptedStampKept) { superblock.stamps.current } else { found };
    superblock.stamps = Stamps { current, pending };
    superblock.sequence += 1;
    if on(Mutant::IdentityBeforePending) {
        write_identity(drive, superblock, pending, &mut sector)?;
    }
    write_superblock(drive, superblock)?; // [IS2]
    write_identity(drive, superblock, pending, &mut sector) // [IS3]
}

/// The identity has the pending stamp, durably.
pub(crate) fn settled(stamps: Stamps) -> Stamps {
    Stamps::settled(stamps.pending)
}

/// Writes the identity, durably. The rest of the sector stays.
fn write_identity(drive: &Drive, superblock: &Superblock, stamp: u64, sector: &mut [u8]) -> Result<()> {
    sector[..size_of::<BlockIdentity>()].copy_from_slice(BlockIdentity::stamped(superblock, stamp).as_bytes());
    let mut requests = [BlockRequest::Write { sector: Sector::new(0), buffer: sector.into() }];
    let written = drive.transfer(Structure::Superblock, &mut requests, &mut || {})?;
    if !on(Mutant::IdentityNotFlushed) {
        drop::<Flushed>(drive.flush_blocks(written)?);
    }
    Ok(())
}

//! Superblocks and identity, without which nothing else can be read.

use tandemfs_device::{BlockRequest, Drive, Structure};
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::identity::{BlockHalf, BlockIdentity};
use tandemfs_format::superblock::{Superblock, SuperblockBytes, SuperblockError};
use tandemfs_format::{LINE_BYTES, LineAddress, SECTOR_BYTES, Sector, UNIT_BYTES};
use zerocopy::IntoBytes;

use crate::error::CheckError;
use crate::finding::Finding;
use crate::rescue::heads;

/// Longest label, in bytes.
const LABEL_BYTES_MAX: usize = 64;

/// Contents of the two superblock copies and the identity.
pub(crate) struct Heads {
    /// The valid newer superblock.
    pub(crate) superblock: Superblock,
    /// Its bytes as they stand.
    pub(crate) bytes: [u8; size_of::<SuperblockBytes>()],
    /// Copies that should be written from it.
    pub(crate) stale_copies: Vec<usize>,
    /// One copy is torn or older, as a power cut leaves it.
    pub(crate) copy_is_behind: bool,
    /// Whether a damaged identity still shows the magic number or the pair.
    pub(crate) identity_resembles: bool,
    /// The identity is torn, or behind the superblock, as a power cut leaves it.
    pub(crate) identity_is_behind: bool,
    /// Neither copy verifies; the superblock was rebuilt from both.
    pub(crate) is_rebuilt: bool,
    /// What the rebuilt one lost, for people.
    pub(crate) rebuilt_without: Option<String>,
    /// The halves are of different times; only a reader with [`Reading::Restore`] sees that.
    pub(crate) times_differ: bool,
    /// Findings.
    pub(crate) findings: Vec<Finding>,
}

/// What a reader does about damage that keeps others from going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Nothing: it is an error.
    Strict,
    /// Two damaged copies are put together to one that verifies.
    Rescue,
    /// That too; what is behind the end of a truncated device is only unreadable; and the halves may be of different times, since their
    /// checksums show what still belongs together.
    Restore,
}

/// The first line of a superblock copy.
pub(crate) fn copy_address(copy: usize) -> LineAddress {
    LineAddress::new(SUPERBLOCK_OFFSETS.get(copy).copied().unwrap_or(0) / LINE_BYTES as u64)
}

/// Reads and compares both copies and the identity.
///
/// # Errors
/// No superblock that this build can read, a zone smaller than the superblock says, halves of two pairs or of different times.
pub(crate) fn read(drive: &Drive) -> Result<Heads, CheckError> {
    read_as(drive, Reading::Strict)
}

/// The same, for readers that can do with less.
///
/// # Errors
/// As [`read`], except what `reading` says.
pub(crate) fn read_as(drive: &Drive, reading: Reading) -> Result<Heads, CheckError> {
    let device = &drive.description().name;
    let mut copies = [[0; size_of::<SuperblockBytes>()]; 2];
    let mut failure = None;
    let mut unreadable = [false; 2];
    for (copy, bytes) in copies.iter_mut().enumerate() {
        let fits = copy_address(copy).offset_bytes() + bytes.len() as u64 <= drive.description().memory_bytes;
        match if fits { drive.load(Structure::Superblock, copy_address(copy), bytes) } else { Ok(()) } {
            Ok(()) => {}
            Err(error) => {
                bytes.fill(0);
                unreadable[copy] = true;
                failure = Some(error);
            }
        }
    }
    let decoded = [Superblock::decode(&copies[0]), Superblock::decode(&copies[1])];
    let chosen = Superblock::choose([&copies[0], &copies[1]]);
    let is_damaged = matches!(chosen, Err(SuperblockError::Damaged | SuperblockError::Foreign));
    let rebuilt = if is_damaged && reading != Reading::Strict { heads::rebuild(&copies, &known(drive)) } else { None };
    let is_rebuilt = rebuilt.is_some();
    let rebuilt_without = rebuilt.as_ref().and_then(|rebuilt| rebuilt.lost.clone());
    let counting = usize::from(decoded[0].as_ref().ok() != chosen.as_ref().ok());
    let (mut superblock, bytes) = match (chosen, rebuilt, failure) {
        (_, Some(rebuilt), _) => (rebuilt.superblock, rebuilt.bytes),
        (Ok(superblock), None, _) => (superblock, copies[counting]),
        (Err(_), None, Some(error)) => return Err(error.into()),
        (Err(source), None, None) => return Err(CheckError::Superblock { device: device.clone(), source }),
    };
    if reading != Reading::Restore {
        check_sizes(drive, &superblock)?;
    }
    // Invalid UTF-8 in a label grows when it is decoded lossily; the result must still fit when it is written again.
    while superblock.label.len() > LABEL_BYTES_MAX {
        superblock.label.pop();
    }
    let mut heads = Heads {
        superblock,
        bytes,
        stale_copies: Vec::new(),
        copy_is_behind: false,
        identity_resembles: false,
        identity_is_behind: false,
        is_rebuilt,
        rebuilt_without,
        times_differ: false,
        findings: Vec::new(),
    };
    // The copies are written one after the other: without a clean unmount, or while the stamp changes, a power cut may have left one torn
    // or older, and the next mount rewrites it first.
    let is_cut = !heads.superblock.clean || heads.superblock.stamps.is_changing();
    for (copy, decoded) in decoded.iter().enumerate() {
        if decoded.is_err() {
            heads.stale_copies.push(copy);
            if is_cut && !unreadable[copy] && !is_rebuilt {
                heads.copy_is_behind = true;
            } else {
                heads.findings.push(Finding::SuperblockDamaged { copy: copy as u8 });
            }
        }
    }
    if let [Ok(first), Ok(second)] = &decoded
        && first != second
    {
        heads.stale_copies.push(1 - counting);
        if is_cut {
            heads.copy_is_behind = true;
        } else {
            heads.findings.push(Finding::SuperblocksDiffer { first: first.sequence, second: second.sequence });
        }
    }
    read_identity(drive, &mut heads, reading)?;
    Ok(heads)
}

/// What the rest of the device says about its superblock.
fn known(drive: &Drive) -> heads::Known {
    let description = drive.description();
    let mut sector = vec![0; SECTOR_BYTES];
    let mut requests = [BlockRequest::Read { sector: Sector::new(0), buffer: (&mut sector).into() }];
    let is_read = description.block_bytes > 0 && drive.transfer(Structure::Superblock, &mut requests, &mut || {}).is_ok();
    heads::Known {
        identity: BlockIdentity::decode(&sector).filter(|_| is_read),
        memory_bytes: description.memory_bytes / UNIT_BYTES * UNIT_BYTES,
        block_sectors: description.block_bytes / SECTOR_BYTES as u64,
    }
}

fn check_sizes(drive: &Drive, superblock: &Superblock) -> Result<(), CheckError> {
    let description = drive.description();
    let expected_blocks = superblock.geometry.block_sectors().saturating_mul(SECTOR_BYTES as u64);
    let zones =
        [("memory", description.memory_bytes, superblock.geometry.memory_bytes()), ("block", description.block_bytes, expected_blocks)];
    for (zone, found, expected) in zones {
        if found < expected {
            return Err(CheckError::Truncated { device: description.name.clone(), zone, found, expected });
        }
    }
    Ok(())
}

fn read_identity(drive: &Drive, heads: &mut Heads, reading: Reading) -> Result<(), CheckError> {
    if !heads.superblock.geometry.has_block_zone() {
        return Ok(());
    }
    let mut sector = vec![0; SECTOR_BYTES];
    let mut requests = [BlockRequest::Read { sector: Sector::new(0), buffer: (&mut sector).into() }];
    let read = drive.transfer(Structure::Superblock, &mut requests, &mut || {});
    if read.is_err() {
        sector.fill(0);
    }
    let device = || drive.description().name.clone();
    let superblock = &heads.superblock;
    let is_as_written = |stamp| sector.get(..size_of::<BlockIdentity>()) == Some(BlockIdentity::stamped(superblock, stamp).as_bytes());
    match superblock.block_half(&sector) {
        BlockHalf::OtherPair { pair } => return Err(CheckError::PairMismatch { device: device(), found: pair, expected: superblock.pair }),
        BlockHalf::OtherTime { .. } if reading == Reading::Restore => heads.times_differ = true,
        BlockHalf::OtherTime { stamp } => {
            return Err(CheckError::StampMismatch { device: device(), found: stamp, expected: superblock.stamps.current });
        }
        BlockHalf::Partner { stamp, .. } if is_as_written(stamp) => {}
        // A change of the identity was cut off: the next mount writes it again.
        BlockHalf::Torn => heads.identity_is_behind = true,
        BlockHalf::Partner { .. } if superblock.stamps.is_changing() => heads.identity_is_behind = true,
        other => {
            heads.findings.push(Finding::IdentityDamaged {});
            heads.identity_resembles = !matches!(other, BlockHalf::Damaged { resembles: false });
        }
    }
    Ok(())
}

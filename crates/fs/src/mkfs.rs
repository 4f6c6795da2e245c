//! Making a file system: fixed structures, the first segment of each region, the root directory.
//!
//! Old superblocks are wiped first and the new ones written last, so a power cut in between leaves no file system rather than half of one.
//! Then the file system is mounted and unmounted once: that saves the maps and proves that it mounts.

use tandemfs_device::{BlockRequest, Drive, Flushed, Lines, Structure};
use tandemfs_format::error_counters::ErrorCounters;
use tandemfs_format::geometry::{Geometry, GeometryError, SEGMENT_TABLE_LINES, SUPERBLOCK_OFFSETS};
use tandemfs_format::identity::{BlockIdentity, Stamps};
use tandemfs_format::inode::{Inode, file_type};
use tandemfs_format::segment::{Region, Segment};
use tandemfs_format::superblock::{ChecksumKind, Superblock, Tail, compat, incompat, ro_compat};
use tandemfs_format::{InodeNumber, LINE_BYTES, LineAddress, PairSeed, SECTOR_BYTES, Sector};
use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::alloc::regions::structure_of;
use crate::cache::zero_pages;
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::inodes::new_inode;
use crate::journal::checkpoint::write_superblock;
use crate::types::{FormatOptions, MountOptions, NewInode};
use crate::volume::now;
use crate::{mount, resize, stamp};

/// Lines of each first segment that are zeroed: 256 KiB.
const FIRST_HIGH_WATER: u64 = 4096;

/// Sectors that one discard names: 1 GiB.
const DISCARD_SECTORS: u64 = 256 << 10;

/// Regions that have a segment from the start.
const FIRST_REGIONS: [Region; 4] = [Region::Inodes, Region::Dentries, Region::Mappings, Region::Leaves];

/// Tells whether [`make_file_system`] would accept this drive with these options. Writes nothing.
///
/// # Errors
/// `Occupied` if the drive contains a TandemFS and `force` is not set; `Geometry` if the sizes do not fit; `Label`.
pub fn check_format(drive: &Drive, options: &FormatOptions) -> Result<()> {
    plan(drive, options).map(drop)
}

fn plan(drive: &Drive, options: &FormatOptions) -> Result<Geometry> {
    resize::check_label(&options.label)?;
    drive.recover()?; // an earlier owner may have left transactions open
    let description = drive.description();
    let geometry = |source: GeometryError| Error::Geometry { device: description.name.clone(), source };
    let (ring_count, ring_bytes) = Geometry::default_rings(description.memory_bytes);
    let places =
        Geometry::new(description.memory_bytes, description.block_bytes, options.block_bytes, ring_count, ring_bytes).map_err(geometry)?;
    let needed = places.metadata_bytes_worst(options.checksum_kind == ChecksumKind::Crc32c);
    if needed > places.memory_bytes() / 10 * 6 {
        return Err(geometry(GeometryError::MetadataTooLarge { needed, memory: places.memory_bytes() }));
    }
    if !options.force
        && let Some(found) = mount::occupant(drive)?
    {
        return Err(Error::Occupied { device: description.name.clone(), found });
    }
    Ok(places)
}

/// Makes a file system on a drive and returns its superblock.
///
/// # Errors
/// Those of [`check_format`], before anything is written.
pub fn make_file_system(drive: &Drive, options: &FormatOptions) -> Result<Superblock> {
    let places = plan(drive, options)?;
    let unchecked = if options.checksum_kind == ChecksumKind::None { incompat::UNCHECKED_DATA } else { 0 };
    let superblock = Superblock {
        pair: Uuid::new_v4(),
        label: options.label.clone(),
        geometry: places,
        checksum_kind: options.checksum_kind,
        incompat: if places.has_block_zone() { unchecked } else { unchecked | incompat::MEMORY_HOME },
        ro_compat: ro_compat::KNOWN,
        compat: compat::KNOWN,
        clean: false,
        created_seconds: now().seconds.max(0) as u64,
        sequence: 1,
        watermark: 0,
        generation: 1,
        tails: vec![Tail::default(); places.ring_count() as usize],
        stamps: Stamps::settled(stamp::draw()),
        volume_uuid: Uuid::new_v4(),
        error_counters: ErrorCounters::default(),
    };
    write_first_state(drive, &superblock, options)?;
    write_superblock(drive, &superblock)?;
    let file_system = FileSystem::mount(drive.clone(), &MountOptions::default())?;
    file_system.unmount()?;
    Ok(file_system.superblock())
}

fn write_first_state(drive: &Drive, superblock: &Superblock, options: &FormatOptions) -> Result<()> {
    let (uid, gid) = options.root_owner;
    let geometry = &superblock.geometry;
    let pair = PairSeed::new(superblock.pair);
    for offset in SUPERBLOCK_OFFSETS {
        drop(drive.persist(Structure::Superblock, LineAddress::new(offset / LINE_BYTES as u64), &[0; 1024])?);
    }
    if geometry.has_block_zone() {
        if options.discard {
            discard_all(drive, geometry.block_sectors());
        }
        write_identity(drive, superblock)?;
    }
    drop(zero_pages(drive, Structure::AllocationMap, geometry.segment_line(0), SEGMENT_TABLE_LINES)?);
    for (index, region) in (0..).zip(FIRST_REGIONS) {
        drop(zero_pages(drive, structure_of(region), geometry.unit(geometry.fixed_units() + index), FIRST_HIGH_WATER)?);
    }
    let mut in_flight = Lines::none();
    let mut store = |structure, address, bytes: &[u8]| -> Result<()> {
        let lines = drive.flush_lines(drive.store(structure, address, bytes)?);
        in_flight = std::mem::replace(&mut in_flight, Lines::none()).and(lines);
        Ok(())
    };
    for (index, region) in (0..).zip(FIRST_REGIONS) {
        let start_unit = geometry.fixed_units() + index;
        let segment = Segment { region, start_unit, unit_count: 1, region_unit: 0, high_water_lines: FIRST_HIGH_WATER };
        let line = geometry.segment_line(index);
        store(Structure::AllocationMap, line, &segment.encode(pair, line))?;
    }
    let root = NewInode { mode: file_type::DIRECTORY | 0o755, uid, gid, rdev: 0, target: b"" };
    let root = new_inode(&root, InodeNumber::ROOT);
    let address = geometry.unit(geometry.fixed_units()).nth(2 * InodeNumber::ROOT.get());
    store(Structure::Inode, address, &root.encode_hot(&Inode::place(pair, InodeNumber::ROOT, address)))?;
    store(Structure::Inode, address.nth(1), &root.encode_cold(&Inode::place(pair, InodeNumber::ROOT, address.nth(1))))?;
    drop(drive.fence(in_flight));
    Ok(())
}

fn write_identity(drive: &Drive, superblock: &Superblock) -> Result<()> {
    let mut sector = vec![0; SECTOR_BYTES];
    sector[..size_of::<BlockIdentity>()].copy_from_slice(BlockIdentity::of(superblock).as_bytes());
    let mut requests = [BlockRequest::Write { sector: Sector::new(0), buffer: (&sector).into() }];
    let written = drive.transfer(Structure::Superblock, &mut requests, &mut || {})?;
    drop::<Flushed>(drive.flush_blocks(written)?);
    Ok(())
}

/// Discards the block zone. A drive that refuses is formatted without.
fn discard_all(drive: &Drive, sectors: u64) {
    for first in (0..sectors).step_by(DISCARD_SECTORS as usize) {
        if let Err(error) = drive.discard(Sector::new(first), DISCARD_SECTORS.min(sectors - first)) {
            tracing::warn!(%error, "the drive's old contents are not discarded");
            return;
        }
    }
}

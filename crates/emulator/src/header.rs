//! The first page of an image: type and sizes of its regions. Written when the image is created and when it grows, and copied
//! (`header_copy.rs`).
//!
//! Version 1 is a drive without firmware. Version 2 adds the fields after `channel_count`: a distribution of latencies, and firmware. An
//! image that needs neither is still written as version 1, so that older programs can open it. Version 3 adds the places of the regions,
//! for an image that has grown (`grow.rs`) so that they are no longer adjacent. Version 4 adds
//! what a cache that the host manages has beside its size; only such drives are of that version. Version 5 adds the parameters of a model of CPU
//! caches and persistent memory, for drives without firmware that have one; they may have grown too.
//!
//! This is the only persistent structure outside `format`: it belongs to the emulated drive as a label belongs to a real one, and no file
//! system sees it.

use std::mem::offset_of;

use tandemfs_device::PersistenceDomain;
use tandemfs_format::checksum::crc32c;
use tandemfs_format::geometry::{BLOCK_BYTES_MIN, MEMORY_BYTES_MIN};
use tandemfs_format::integer::{U32, U64};
use tandemfs_format::size::size;
use tandemfs_format::{SECTOR_BYTES, UNIT_BYTES};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::DramLayout;
use crate::media::MediaModel;
use crate::medium::FLASH_PAGE_BYTES;
use crate::model::{FirmwareModel, GarbageCollection, Replacement, Staging};
use crate::timing::{BlockTiming, Curve, Distribution, FirmwareTiming, LatencyPoint, POINT_COUNT, QUANTILE_COUNT, Quantile, Timing};

/// Size of the header, in bytes.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Newest version of the image's layout that this program writes and reads.
pub(crate) const VERSION: u32 = 5;
/// The version of drives without firmware.
const VERSION_PLAIN: u32 = 1;
/// The version of drives with firmware, or with a distribution of latencies, whose regions follow each other.
const VERSION_FIRMWARE: u32 = 2;
/// The version of drives whose regions are in places of their own.
const VERSION_PLACES: u32 = 3;
/// The version of drives with a cache that the host manages.
const VERSION_HOST_CACHE: u32 = 4;
/// The version of drives with a model of persistent memory.
const VERSION_MEDIA: u32 = 5;
/// Offset of the memory region in the file, in bytes: a huge page can map its start.
pub(crate) const MEMORY_OFFSET: u64 = UNIT_BYTES;
/// Largest region, in bytes: what the format's 40-bit line addresses reach.
const REGION_BYTES_MAX: u64 = 1 << 46;
const MAGIC: [u8; 8] = *b"TNDMIMG\n";
const NAME_BYTES: usize = 32;

/// Contents of an image's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInfo {
    /// Name of the profile that it was created with.
    pub profile: String,
    /// Size of the memory region, in bytes, a multiple of 2 MiB.
    pub memory_bytes: u64,
    /// Size of the block region, in bytes, a multiple of 4 KiB.
    pub block_bytes: u64,
    /// The domain that it emulates.
    pub domain: PersistenceDomain,
    /// Its timing model, as the profile had it at creation; of a drive with firmware that of loads and stores alone, where it is not that
    /// of the firmware.
    pub timing: Option<Timing>,
    /// Distribution of the latency of a line load.
    pub line_latency: Option<Distribution>,
    /// Parameters of the firmware, if any: those of the profile and those chosen at creation.
    pub firmware: Option<FirmwareModel>,
    /// The model of CPU caches and persistent memory, if it was made with one. Then it has `timing`.
    pub media: Option<MediaModel>,
    /// Where its regions are, where the block region does not follow the memory region.
    pub places: Option<Places>,
}

/// Where the regions of an image are that has grown: offsets in the file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// The memory region.
    pub memory: u64,
    /// The block region.
    pub blocks: u64,
}

impl Places {
    /// Where they are from creation on.
    pub(crate) fn usual(memory_bytes: u64) -> Self {
        Self { memory: MEMORY_OFFSET, blocks: MEMORY_OFFSET.saturating_add(memory_bytes) }
    }
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct PointBytes {
    size_bytes: U32,
    latency_ns: U32,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct QuantileBytes {
    parts_per_million: U32,
    latency_ns: U32,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct DistributionBytes {
    /// 1 where there is one.
    is_there: U32,
    quantiles: [QuantileBytes; QUANTILE_COUNT],
    seed: U64,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct FirmwareBytes {
    /// 1 where there is firmware.
    is_there: U32,
    /// 1 a write log, 2 a cache of pages that the drive manages, 3 one that the host manages.
    staging: U32,
    /// Of a cache that the drive manages: 2 clock, 3 least recently used. 1 was one that the host filled and the drive mapped: it has
    /// the same tables, and is taken as 2.
    management: U32,
    clean_at_percent: U32,
    /// Of the log, or of the cache.
    staging_bytes: U64,
    transaction_log_bytes: U64,
    channel_count: U32,
    dies_per_channel: U32,
    planes_per_die: U32,
    blocks_per_plane: U32,
    pages_per_block: U32,
    over_provisioning_percent: U32,
    /// 1 greedy, 2 cost-benefit.
    garbage_collection: U32,
    write_buffer_pages: U32,
    endurance_erasures: U32,
    /// 1 where the times that follow hold a model.
    has_timing: U32,
    line_read_ns: U32,
    line_write_ns: U32,
    verify_read_ns: U32,
    command_ns: U32,
    read_bytes_per_second: U64,
    write_bytes_per_second: U64,
    flash_read_ns: U32,
    flash_program_ns: U32,
    flash_erase_ns: U32,
    /// 0 means no limit, also in images made before this field existed.
    commands_at_once: U32,
    /// Result of the fields above: the regions of the file.
    dram_bytes: U64,
    physical_pages: U64,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct MediaBytes {
    /// 1 where there is a model.
    is_there: U32,
    cache_bytes: U64,
    cache_ways: U32,
    reservable_ways: U32,
    dimm_count: U32,
    buffer_bytes: U32,
    read_bytes_per_second: U64,
    write_bytes_per_second: U64,
    hit_ns: U32,
    flush_ns: U32,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct HeaderBytes {
    magic: [u8; 8],
    version: U32,
    /// CRC-32C of the page with this field zero.
    crc: U32,
    memory_bytes: U64,
    block_bytes: U64,
    profile: [u8; NAME_BYTES],
    domain: U32,
    /// 1 where the timing fields hold a model, 0 where they are zero.
    has_timing: U32,
    load: [PointBytes; POINT_COUNT],
    store: [PointBytes; POINT_COUNT],
    port_bytes_per_second: U64,
    read_bytes_per_second: U64,
    write_bytes_per_second: U64,
    read_latency_ns: U32,
    write_latency_ns: U32,
    channel_count: U32,
    distribution: DistributionBytes,
    firmware: FirmwareBytes,
    memory_offset: U64,
    block_offset: U64,
    /// Of a cache that the host manages: MOVE commands at once, and their bandwidth.
    queue_depth: U32,
    move_bytes_per_second: U64,
    media: MediaBytes,
    zero: [u8; HEADER_BYTES - 480],
}
const _: () = {
    assert!(size_of::<HeaderBytes>() == HEADER_BYTES);
    assert!(offset_of!(HeaderBytes, memory_bytes) == 16);
    assert!(offset_of!(HeaderBytes, load) == 72);
    assert!(offset_of!(HeaderBytes, distribution) == 204);
    assert!(offset_of!(HeaderBytes, firmware) == 264);
    assert!(offset_of!(HeaderBytes, memory_offset) == 400);
    assert!(offset_of!(HeaderBytes, queue_depth) == 416);
    assert!(offset_of!(HeaderBytes, media) == 428);
    assert!(offset_of!(HeaderBytes, zero) == 480);
};

impl ImageInfo {
    /// Whether the drive has a timing model.
    pub fn has_timing(&self) -> bool {
        self.timing.is_some() || self.firmware.is_some_and(|model| model.timing.is_some())
    }

    /// Pages of the memory zone.
    pub(crate) fn memory_pages(&self) -> u64 {
        self.memory_bytes / FLASH_PAGE_BYTES as u64
    }

    /// Pages that the flash offers; without firmware, that both zones have.
    pub(crate) fn logical_pages(&self) -> u64 {
        let both = || (self.memory_bytes + self.block_bytes) / FLASH_PAGE_BYTES as u64;
        self.firmware.map_or_else(both, |model| model.logical_pages(self.memory_bytes, self.block_bytes))
    }

    /// Size of the cache that the host manages, in bytes; 0 where there is none.
    pub fn host_cache_bytes(&self) -> u64 {
        self.firmware.map_or(0, |model| model.staging.host_cache_bytes())
    }

    /// Layout of the DRAM of a drive with firmware.
    pub(crate) fn dram(&self) -> Option<DramLayout> {
        self.firmware.map(|model| DramLayout::new(&model, self.memory_bytes, self.logical_pages()))
    }

    /// Bytes of the region that is mapped: the memory region, or the drive's DRAM.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.dram().map_or(self.memory_bytes, |dram| dram.end)
    }

    /// Offset in the file, in bytes, of what is read and written by offset: the block region, or the flash.
    pub(crate) fn block_offset(&self) -> u64 {
        self.places.map_or(MEMORY_OFFSET.saturating_add(self.mapped_bytes()), |places| places.blocks)
    }

    /// Offset in the file, in bytes, of the memory region, or of the drive's DRAM.
    pub(crate) fn memory_offset(&self) -> u64 {
        self.places.map_or(MEMORY_OFFSET, |places| places.memory)
    }

    /// Size of the whole file, in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        let flash = |model: FirmwareModel| model.geometry(self.logical_pages()).physical_pages().saturating_mul(FLASH_PAGE_BYTES as u64);
        let blocks_end = self.block_offset().saturating_add(self.firmware.map_or(self.block_bytes, flash));
        blocks_end.max(self.memory_offset().saturating_add(self.mapped_bytes()))
    }

    /// Whether regions elsewhere lie behind the header, aligned, and beside each other. Of drives without firmware alone.
    fn has_sane_places(&self) -> bool {
        self.places.is_none_or(|Places { memory, blocks }| {
            let is_whole = |offset: u64| offset >= MEMORY_OFFSET && offset.is_multiple_of(UNIT_BYTES) && offset <= 1 << 60;
            let apart = memory.saturating_add(self.memory_bytes) <= blocks || blocks.saturating_add(self.block_bytes) <= memory;
            is_whole(memory) && is_whole(blocks) && apart && self.firmware.is_none()
        })
    }

    /// One sentence that says why no image can have these sizes, if so.
    pub(crate) fn check_sizes(memory_bytes: u64, block_bytes: u64) -> Result<(), String> {
        let region = |name, found: u64, least: u64, unit: u64| {
            if found < least || found > REGION_BYTES_MAX {
                let how = if found < least { "small" } else { "large" };
                let (found, least, most) = (size(found), size(least), size(REGION_BYTES_MAX));
                return Err(format!("a {name} region of {found} is too {how} ({least} to {most})"));
            }
            if !found.is_multiple_of(unit) {
                let below = found / unit * unit;
                let (found, unit, below, above) = (size(found), size(unit), size(below), size(below + unit));
                return Err(format!("a {name} region of {found} is not a multiple of {unit}; {below} and {above} are"));
            }
            Ok(())
        };
        region("memory", memory_bytes, MEMORY_BYTES_MIN, UNIT_BYTES)?;
        if block_bytes == 0 {
            return Ok(()); // a memory region alone
        }
        region("block", block_bytes, BLOCK_BYTES_MIN, SECTOR_BYTES as u64)
    }

    /// The header page.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut header = HeaderBytes::new_zeroed();
        header.magic = MAGIC;
        let is_plain = self.firmware.is_none() && self.line_latency.is_none();
        if let Some(places) = self.places {
            header.memory_offset = places.memory.into();
            header.block_offset = places.blocks.into();
        }
        if let Some(model) = &self.media {
            header.media = media_bytes(model);
        }
        header.version = match self.places {
            _ if self.media.is_some() => VERSION_MEDIA,
            Some(_) => VERSION_PLACES,
            None if self.firmware.is_some_and(|model| model.staging.is_host_cache()) => VERSION_HOST_CACHE,
            None if is_plain => VERSION_PLAIN,
            None => VERSION_FIRMWARE,
        }
        .into();
        header.memory_bytes = self.memory_bytes.into();
        header.block_bytes = self.block_bytes.into();
        let name = self.profile.as_bytes();
        let length = name.len().min(NAME_BYTES - 1);
        header.profile[..length].copy_from_slice(&name[..length]);
        header.domain = domain_code(self.domain).into();
        if let Some(timing) = &self.timing {
            header.has_timing = 1.into();
            header.load = curve_bytes(&timing.load);
            header.store = curve_bytes(&timing.store);
            header.port_bytes_per_second = timing.port_bytes_per_second.into();
            header.read_bytes_per_second = timing.block.read_bytes_per_second.into();
            header.write_bytes_per_second = timing.block.write_bytes_per_second.into();
            header.read_latency_ns = timing.block.read_latency_ns.into();
            header.write_latency_ns = timing.block.write_latency_ns.into();
            header.channel_count = timing.block.channel_count.into();
        }
        if let Some(line_latency) = &self.line_latency {
            header.distribution = distribution_bytes(line_latency);
        }
        if let Some(model) = &self.firmware {
            header.firmware = firmware_bytes(model);
            if let Staging::HostCache { queue_depth, bytes_per_second, .. } = model.staging {
                (header.queue_depth, header.move_bytes_per_second) = (queue_depth.into(), bytes_per_second.into());
            }
            header.firmware.dram_bytes = self.mapped_bytes().into();
            header.firmware.physical_pages = model.geometry(self.logical_pages()).physical_pages().into();
        }
        header.crc = crc32c(header.as_bytes()).into();
        let mut page = [0; HEADER_BYTES];
        page.copy_from_slice(header.as_bytes());
        page
    }

    /// Whether the page is a header of any version, with a checksum that fits.
    pub(crate) fn is_sealed(page: &[u8; HEADER_BYTES]) -> bool {
        let Ok(mut header) = HeaderBytes::read_from_bytes(page) else { return false };
        let crc = header.crc.get();
        header.crc = 0.into();
        header.magic == MAGIC && crc32c(header.as_bytes()) == crc
    }

    /// Parses a header page. The error is a sentence that says what was found and what to do.
    pub(crate) fn decode(page: &[u8; HEADER_BYTES]) -> Result<Self, String> {
        let damaged = |what: &str| Err(format!("the image's header is damaged ({what}); restore the image from a copy or create it anew"));
        let Ok(mut header) = HeaderBytes::read_from_bytes(page) else { return damaged("its size") };
        if header.magic != MAGIC {
            return Err(
                "is not an emulated drive; create one with 'tandemfs device create', or name a real pair as memory=PATH,block=PATH".into(),
            );
        }
        let version = header.version.get();
        if version > VERSION {
            return Err(format!("is an image of version {version}, this program reads up to version {VERSION}; use a newer tandemfs"));
        }
        let crc = header.crc.get();
        header.crc = 0.into();
        if version == 0 || crc32c(header.as_bytes()) != crc {
            return damaged("its checksum does not fit");
        }
        let (memory_bytes, block_bytes) = (header.memory_bytes.get(), header.block_bytes.get());
        if Self::check_sizes(memory_bytes, block_bytes).is_err() {
            return damaged("its sizes have no meaning");
        }
        let Some(domain) = domain_of(header.domain.get()) else { return damaged("its persistence domain has no meaning") };
        let timing = (header.has_timing.get() != 0).then(|| timing_of(&header));
        if timing.is_some_and(|timing| !timing.is_sane()) {
            return damaged("its timing model has no meaning");
        }
        let name = header.profile.split(|&byte| byte == 0).next().unwrap_or_default();
        let profile = String::from_utf8_lossy(name).into_owned();
        let mut image =
            Self { profile, memory_bytes, block_bytes, domain, timing, line_latency: None, firmware: None, media: None, places: None };
        let is_modelled = version >= VERSION_MEDIA && header.media.is_there.get() != 0;
        if version == VERSION_PLACES || (is_modelled && header.memory_offset.get() != 0) {
            image.places = Some(Places { memory: header.memory_offset.get(), blocks: header.block_offset.get() });
        }
        if version == VERSION_PLAIN {
            return Ok(image);
        }
        image.line_latency = (header.distribution.is_there.get() != 0).then(|| distribution_of(&header.distribution));
        if image.line_latency.is_some_and(|distribution| !distribution.is_sane()) {
            return damaged("its distribution of latencies has no meaning");
        }
        if header.firmware.is_there.get() != 0 {
            let Some(model) = firmware_of(&header) else { return damaged("its firmware has no meaning") };
            let contradicts =
                |why: String| Err(format!("its geometry contradicts its header: {why}; restore it from a copy or create it anew"));
            image.firmware = Some(model);
            if let Err(why) = model.check(image.logical_pages()) {
                return contradicts(why);
            }
            let physical_pages = model.geometry(image.logical_pages()).physical_pages();
            for (what, said, comes_to) in [
                ("bytes of DRAM", header.firmware.dram_bytes.get(), image.mapped_bytes()),
                ("pages of flash", header.firmware.physical_pages.get(), physical_pages),
            ] {
                if said != comes_to {
                    return contradicts(format!("it says {said} {what} and its parts come to {comes_to}"));
                }
            }
        }
        if is_modelled {
            let model = media_of(&header.media);
            if image.firmware.is_some() || image.timing.is_none() || model.check().is_err() {
                return damaged("its model of persistent memory has no meaning");
            }
            image.media = Some(model);
        }
        if !image.has_sane_places() {
            return damaged("the places of its regions have no meaning");
        }
        Ok(image)
    }
}

fn curve_bytes(curve: &Curve) -> [PointBytes; POINT_COUNT] {
    curve.points.map(|point| PointBytes { size_bytes: point.size_bytes.into(), latency_ns: point.latency_ns.into() })
}

fn curve_of(points: [PointBytes; POINT_COUNT]) -> Curve {
    Curve { points: points.map(|point| LatencyPoint { size_bytes: point.size_bytes.get(), latency_ns: point.latency_ns.get() }) }
}

fn timing_of(header: &HeaderBytes) -> Timing {
    Timing {
        load: curve_of(header.load),
        store: curve_of(header.store),
        port_bytes_per_second: header.port_bytes_per_second.get(),
        block: BlockTiming {
            read_latency_ns: header.read_latency_ns.get(),
            write_latency_ns: header.write_latency_ns.get(),
            read_bytes_per_second: header.read_bytes_per_second.get(),
            write_bytes_per_second: header.write_bytes_per_second.get(),
            channel_count: header.channel_count.get(),
        },
    }
}

fn media_bytes(model: &MediaModel) -> MediaBytes {
    MediaBytes {
        is_there: 1.into(),
        cache_bytes: model.cache_bytes.into(),
        cache_ways: model.cache_ways.into(),
        reservable_ways: model.reservable_ways.into(),
        dimm_count: model.dimm_count.into(),
        buffer_bytes: model.buffer_bytes.into(),
        read_bytes_per_second: model.read_bytes_per_second.into(),
        write_bytes_per_second: model.write_bytes_per_second.into(),
        hit_ns: model.hit_ns.into(),
        flush_ns: model.flush_ns.into(),
    }
}

fn media_of(bytes: &MediaBytes) -> MediaModel {
    MediaModel {
        cache_bytes: bytes.cache_bytes.get(),
        cache_ways: bytes.cache_ways.get(),
        reservable_ways: bytes.reservable_ways.get(),
        dimm_count: bytes.dimm_count.get(),
        buffer_bytes: bytes.buffer_bytes.get(),
        read_bytes_per_second: bytes.read_bytes_per_second.get(),
        write_bytes_per_second: bytes.write_bytes_per_second.get(),
        hit_ns: bytes.hit_ns.get(),
        flush_ns: bytes.flush_ns.get(),
    }
}

fn distribution_bytes(distribution: &Distribution) -> DistributionBytes {
    let point =
        |quantile: Quantile| QuantileBytes { parts_per_million: quantile.parts_per_million.into(), latency_ns: quantile.latency_ns.into() };
    DistributionBytes { is_there: 1.into(), quantiles: distribution.quantiles.map(point), seed: distribution.seed.into() }
}

fn distribution_of(bytes: &DistributionBytes) -> Distribution {
    let point =
        |quantile: QuantileBytes| Quantile { parts_per_million: quantile.parts_per_million.get(), latency_ns: quantile.latency_ns.get() };
    Distribution { quantiles: bytes.quantiles.map(point), seed: bytes.seed.get() }
}

fn firmware_bytes(model: &FirmwareModel) -> FirmwareBytes {
    let mut bytes = FirmwareBytes::new_zeroed();
    bytes.is_there = 1.into();
    match model.staging {
        Staging::WriteLog { log_bytes, transaction_log_bytes, clean_at_percent } => {
            bytes.staging = 1.into();
            bytes.staging_bytes = log_bytes.into();
            bytes.transaction_log_bytes = transaction_log_bytes.into();
            bytes.clean_at_percent = clean_at_percent.into();
        }
        Staging::Cache { cache_bytes, replacement } => {
            bytes.staging = 2.into();
            bytes.staging_bytes = cache_bytes.into();
            bytes.management = match replacement {
                Replacement::Clock => 2,
                Replacement::Lru => 3,
            }
            .into();
        }
        Staging::HostCache { cache_bytes, .. } => {
            bytes.staging = 3.into();
            bytes.staging_bytes = cache_bytes.into();
        }
    }
    bytes.channel_count = model.channel_count.into();
    bytes.dies_per_channel = model.dies_per_channel.into();
    bytes.planes_per_die = model.planes_per_die.into();
    bytes.blocks_per_plane = model.blocks_per_plane.into();
    bytes.pages_per_block = model.pages_per_block.into();
    bytes.over_provisioning_percent = model.over_provisioning_percent.into();
    bytes.garbage_collection = code_of(&COLLECTIONS, model.garbage_collection).into();
    bytes.write_buffer_pages = model.write_buffer_pages.into();
    bytes.endurance_erasures = model.endurance_erasures.into();
    if let Some(timing) = &model.timing {
        bytes.has_timing = 1.into();
        bytes.line_read_ns = timing.line_read_ns.into();
        bytes.line_write_ns = timing.line_write_ns.into();
        bytes.verify_read_ns = timing.verify_read_ns.into();
        bytes.command_ns = timing.command_ns.into();
        bytes.read_bytes_per_second = timing.read_bytes_per_second.into();
        bytes.write_bytes_per_second = timing.write_bytes_per_second.into();
        bytes.flash_read_ns = timing.flash_read_ns.into();
        bytes.flash_program_ns = timing.flash_program_ns.into();
        bytes.flash_erase_ns = timing.flash_erase_ns.into();
        bytes.commands_at_once = timing.commands_at_once.into();
    }
    bytes
}

/// Decodes the bytes. Does not check whether a drive can have these parameters.
fn firmware_of(header: &HeaderBytes) -> Option<FirmwareModel> {
    let bytes = &header.firmware;
    let staging = match bytes.staging.get() {
        1 => Staging::WriteLog {
            log_bytes: bytes.staging_bytes.get(),
            transaction_log_bytes: bytes.transaction_log_bytes.get(),
            clean_at_percent: bytes.clean_at_percent.get(),
        },
        2 => Staging::Cache {
            cache_bytes: bytes.staging_bytes.get(),
            replacement: match bytes.management.get() {
                1 | 2 => Replacement::Clock,
                3 => Replacement::Lru,
                _ => return None,
            },
        },
        3 => Staging::HostCache {
            cache_bytes: bytes.staging_bytes.get(),
            queue_depth: header.queue_depth.get(),
            bytes_per_second: header.move_bytes_per_second.get(),
        },
        _ => return None,
    };
    let timing = FirmwareTiming {
        line_read_ns: bytes.line_read_ns.get(),
        line_write_ns: bytes.line_write_ns.get(),
        verify_read_ns: bytes.verify_read_ns.get(),
        command_ns: bytes.command_ns.get(),
        read_bytes_per_second: bytes.read_bytes_per_second.get(),
        write_bytes_per_second: bytes.write_bytes_per_second.get(),
        flash_read_ns: bytes.flash_read_ns.get(),
        flash_program_ns: bytes.flash_program_ns.get(),
        flash_erase_ns: bytes.flash_erase_ns.get(),
        commands_at_once: bytes.commands_at_once.get(),
    };
    let has_timing = bytes.has_timing.get() != 0;
    if has_timing && !timing.is_sane() {
        return None;
    }
    Some(FirmwareModel {
        staging,
        channel_count: bytes.channel_count.get(),
        dies_per_channel: bytes.dies_per_channel.get(),
        planes_per_die: bytes.planes_per_die.get(),
        blocks_per_plane: bytes.blocks_per_plane.get(),
        pages_per_block: bytes.pages_per_block.get(),
        over_provisioning_percent: bytes.over_provisioning_percent.get(),
        garbage_collection: *of_code(&COLLECTIONS, bytes.garbage_collection.get())?,
        write_buffer_pages: bytes.write_buffer_pages.get(),
        endurance_erasures: bytes.endurance_erasures.get(),
        timing: has_timing.then_some(timing),
    })
}

/// By their codes, from 1.
const COLLECTIONS: [GarbageCollection; 2] = [GarbageCollection::Greedy, GarbageCollection::CostBenefit];

fn code_of<T: PartialEq>(all: &[T], one: T) -> u32 {
    all.iter().zip(1..).find(|(each, _)| **each == one).map_or(0, |(_, code)| code)
}

fn of_code<T>(all: &[T], code: u32) -> Option<&T> {
    all.get((code as usize).checked_sub(1)?)
}

fn domain_code(domain: PersistenceDomain) -> u32 {
    match domain {
        PersistenceDomain::None => 0,
        PersistenceDomain::Process => 1,
        PersistenceDomain::Adr => 2,
        PersistenceDomain::Gpf => 3,
    }
}

fn domain_of(code: u32) -> Option<PersistenceDomain> {
    [PersistenceDomain::None, PersistenceDomain::Process, PersistenceDomain::Adr, PersistenceDomain::Gpf]
        .into_iter()
        .find(|&domain| domain_code(domain) == code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelOptions;
    use crate::profiles::profiles;

    fn images() -> impl Iterator<Item = ImageInfo> {
        profiles().iter().map(|profile| {
            let mut image = ImageInfo {
                profile: profile.name.to_owned(),
                memory_bytes: 16 << 20,
                block_bytes: 512 << 20,
                domain: profile.domain,
                timing: profile.timing,
                line_latency: profile.line_latency,
                firmware: None,
                media: None,
                places: None,
            };
            let chosen =
                |model: FirmwareModel| model.chosen(&ModelOptions::default(), image.memory_bytes, image.block_bytes).expect("a drive");
            image.firmware = profile.firmware.map(chosen);
            image
        })
    }

    #[test]
    fn headers_round_trip() {
        for image in images() {
            assert_eq!(ImageInfo::decode(&image.encode()), Ok(image));
        }
    }

    #[test]
    fn drives_without_firmware_are_still_of_version_1() {
        for image in images() {
            let version = match &*image.profile {
                "off" | "romefs-a" | "romefs-b" | "optane" => 1,
                "hybrid-cache" => 4,
                _ => 2,
            };
            assert_eq!(image.encode()[8..12], u32::to_le_bytes(version), "{}", image.profile);
        }
    }

    #[test]
    fn places_round_trip_and_nonsense_is_refused() {
        let image = images().find(|image| image.profile == "off").expect("a profile");
        let at = |memory: u64, blocks: u64| ImageInfo { places: Some(Places { memory, blocks }), ..image.clone() };
        let moved = at(600 << 20, 18 << 20);
        assert_eq!(moved.encode()[8..12], 3_u32.to_le_bytes());
        assert_eq!(ImageInfo::decode(&moved.encode()), Ok(moved));
        for (memory, blocks) in [(0, 18 << 20), (2 << 20, 16 << 20), (2 << 20, (18 << 20) + 1), (100 << 20, 2 << 20), (u64::MAX, 2 << 20)] {
            assert!(ImageInfo::decode(&at(memory, blocks).encode()).is_err_and(|why| why.contains("places")), "{memory} {blocks}");
        }
    }

    #[test]
    fn a_model_of_persistent_memory_round_trips_and_nonsense_is_refused() {
        let model = profiles().iter().find_map(|profile| profile.media).expect("a profile");
        let image = ImageInfo { media: Some(model), ..images().find(|image| image.profile == "optane").expect("a profile") };
        assert_eq!(image.encode()[8..12], 5_u32.to_le_bytes());
        assert_eq!(ImageInfo::decode(&image.encode()), Ok(image.clone()));
        let grown = ImageInfo { places: Some(Places { memory: 600 << 20, blocks: 18 << 20 }), ..image.clone() };
        assert_eq!(ImageInfo::decode(&grown.encode()), Ok(grown));
        for (at, value) in [
            (offset_of!(MediaBytes, cache_bytes), 7_u32),
            (offset_of!(MediaBytes, cache_ways), 0),
            (offset_of!(MediaBytes, reservable_ways), 12),
            (offset_of!(MediaBytes, dimm_count), u32::MAX),
            (offset_of!(MediaBytes, buffer_bytes), 255),
            (offset_of!(MediaBytes, write_bytes_per_second), 0),
        ] {
            let reason = ImageInfo::decode(&with_field(&image, offset_of!(HeaderBytes, media) + at, value)).expect_err("refused");
            assert!(reason.contains("persistent memory has no meaning"), "{at}: {reason}");
        }
        let untimed = ImageInfo { timing: None, ..image };
        assert!(ImageInfo::decode(&untimed.encode()).is_err_and(|why| why.contains("persistent memory")));
    }

    fn with_field(image: &ImageInfo, at: usize, value: u32) -> [u8; HEADER_BYTES] {
        let mut page = image.encode();
        page[at..at + 4].copy_from_slice(&value.to_le_bytes());
        page[12..16].fill(0);
        let crc = crc32c(&page);
        page[12..16].copy_from_slice(&crc.to_le_bytes());
        page
    }

    /// `hybrid-cache` was a cache that the host filled and the drive mapped, with the tables of the caches that drives manage.
    #[test]
    fn an_older_image_whose_host_filled_the_cache_is_taken_as_one_with_a_clock() {
        let image = images().find(|image| image.profile == "bytefs-dual").expect("a profile");
        let at = offset_of!(HeaderBytes, firmware) + offset_of!(FirmwareBytes, management);
        let staging = |code| ImageInfo::decode(&with_field(&image, at, code)).map(|image| image.firmware.expect("firmware").staging);
        let cache_bytes = 132 << 20;
        assert_eq!(staging(1), Ok(Staging::Cache { cache_bytes, replacement: Replacement::Clock }));
        assert_eq!(staging(1), staging(2));
        assert_eq!(staging(3), Ok(Staging::Cache { cache_bytes, replacement: Replacement::Lru }));
        assert!(staging(0).is_err() && staging(4).is_err());
    }

    #[test]
    fn a_cache_of_the_host_that_no_drive_has_is_refused() {
        let image = images().find(|image| image.profile == "hybrid-cache").expect("a profile");
        for (at, value) in [(offset_of!(HeaderBytes, queue_depth), 0), (offset_of!(HeaderBytes, queue_depth), 1 << 20)] {
            let reason = ImageInfo::decode(&with_field(&image, at, value)).expect_err("refused");
            assert!(reason.contains("MOVE commands at once") && !reason.contains('\n'), "{reason}");
        }
    }

    /// Geometry that its own parts contradict, under a checksum that fits.
    #[test]
    fn a_header_that_contradicts_itself_is_refused() {
        let image = images().find(|image| image.profile == "bytefs").expect("a profile");
        let firmware = offset_of!(HeaderBytes, firmware);
        let field = |at: usize| firmware + at;
        for (at, value, said) in [
            (field(offset_of!(FirmwareBytes, staging)), 7_u32, "its firmware has no meaning"),
            (field(offset_of!(FirmwareBytes, garbage_collection)), 0, "its firmware has no meaning"),
            (field(offset_of!(FirmwareBytes, read_bytes_per_second)), 0, "its firmware has no meaning"),
            (field(offset_of!(FirmwareBytes, channel_count)), 0, "contradicts its header"),
            (field(offset_of!(FirmwareBytes, channel_count)), 9, "contradicts its header"),
            (field(offset_of!(FirmwareBytes, blocks_per_plane)), 1 << 20, "contradicts its header"),
            (field(offset_of!(FirmwareBytes, pages_per_block)), u32::MAX, "contradicts its header"),
            (field(offset_of!(FirmwareBytes, staging_bytes)), 1 << 30, "larger than the drive"),
            (field(offset_of!(FirmwareBytes, dram_bytes)), 4096, "it says 4096 bytes of DRAM"),
            (field(offset_of!(FirmwareBytes, write_buffer_pages)), u32::MAX, "contradicts its header"),
        ] {
            let reason = ImageInfo::decode(&with_field(&image, at, value)).expect_err("refused");
            assert!(reason.contains(said) && !reason.contains('\n'), "{value} at {at}: {reason}");
        }
    }

    #[test]
    fn every_damaged_byte_is_found() {
        let image = images().last().expect("a profile");
        for index in 0..HEADER_BYTES {
            let mut page = image.encode();
            page[index] ^= 0x40;
            assert!(ImageInfo::decode(&page).is_err(), "byte {index}");
        }
    }

    #[test]
    fn sizes_that_make_no_image_are_refused_in_a_sentence() {
        for (memory_bytes, block_bytes, said) in [
            (0, 64 << 20, "a memory region of 0 B is too small (16 MiB to 64 TiB)"),
            ((16 << 20) + 4096, 64 << 20, "16 MiB and 18 MiB are"),
            (u64::MAX, 64 << 20, "too large"),
            (16 << 20, 4096, "a block region of 4 KiB is too small"),
            (16 << 20, (64 << 20) + 1, "not a multiple of 4 KiB"),
        ] {
            let reason = ImageInfo::check_sizes(memory_bytes, block_bytes).expect_err("refused");
            assert!(reason.contains(said), "{reason}");
        }
    }
}

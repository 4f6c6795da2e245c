//! The first page of an image: what it is and how large its regions are. Written once, at creation.
//!
//! This is the only persistent structure outside `format`: it belongs to the emulated drive as a label to a real one, and no file system
//! ever sees it.

use std::mem::offset_of;

use tandemfs_device::PersistenceDomain;
use tandemfs_format::checksum::crc32c;
use tandemfs_format::geometry::{BLOCK_BYTES_MIN, MEMORY_BYTES_MIN};
use tandemfs_format::integer::{U32, U64};
use tandemfs_format::{SECTOR_BYTES, UNIT_BYTES};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::timing::{BlockTiming, Curve, LatencyPoint, POINT_COUNT, Timing};

/// Size of the header, in bytes.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Version of the image's layout that this program writes and reads.
pub(crate) const VERSION: u32 = 1;
/// Offset of the memory region in the file, in bytes: a huge page can map its start.
pub(crate) const MEMORY_OFFSET: u64 = UNIT_BYTES;
/// Largest region, in bytes: what the format's 40-bit line addresses reach.
const REGION_BYTES_MAX: u64 = 1 << 46;
const MAGIC: [u8; 8] = *b"TNDMIMG\n";
const NAME_BYTES: usize = 32;

/// What an image is, as its header says.
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
    /// Its timing model, as the profile had it at creation.
    pub timing: Option<Timing>,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct PointBytes {
    size_bytes: U32,
    latency_ns: U32,
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
    zero: [u8; HEADER_BYTES - 204],
}
const _: () = {
    assert!(size_of::<HeaderBytes>() == HEADER_BYTES);
    assert!(offset_of!(HeaderBytes, memory_bytes) == 16);
    assert!(offset_of!(HeaderBytes, load) == 72);
    assert!(offset_of!(HeaderBytes, zero) == 204);
};

impl ImageInfo {
    /// Offset of the block region in the file, in bytes.
    pub(crate) fn block_offset(&self) -> u64 {
        MEMORY_OFFSET + self.memory_bytes
    }

    /// Size of the whole file, in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.block_offset() + self.block_bytes
    }

    /// Says in a sentence why no image has these sizes.
    pub(crate) fn check_sizes(memory_bytes: u64, block_bytes: u64) -> Result<(), String> {
        let region = |name, found: u64, least: u64, unit: u64| {
            if found < least || found > REGION_BYTES_MAX {
                return Err(format!("a {name} region of {found} B is outside {least} B to {REGION_BYTES_MAX} B; name another size"));
            }
            if !found.is_multiple_of(unit) {
                let below = found / unit * unit;
                return Err(format!("a {name} region of {found} B is not a multiple of {unit} B; {below} B and {} B are", below + unit));
            }
            Ok(())
        };
        region("memory", memory_bytes, MEMORY_BYTES_MIN, UNIT_BYTES)?;
        region("block", block_bytes, BLOCK_BYTES_MIN, SECTOR_BYTES as u64)
    }

    /// The header page.
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut header = HeaderBytes::new_zeroed();
        header.magic = MAGIC;
        header.version = VERSION.into();
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
        header.crc = crc32c(header.as_bytes()).into();
        let mut page = [0; HEADER_BYTES];
        page.copy_from_slice(header.as_bytes());
        page
    }

    /// What a header page says; otherwise a sentence about what was found instead and what to do.
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
        Ok(Self { profile: String::from_utf8_lossy(name).into_owned(), memory_bytes, block_bytes, domain, timing })
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
    use crate::profiles::profiles;

    fn images() -> impl Iterator<Item = ImageInfo> {
        profiles().iter().map(|profile| ImageInfo {
            profile: profile.name.to_owned(),
            memory_bytes: 16 << 20,
            block_bytes: 64 << 20,
            domain: profile.domain,
            timing: profile.timing,
        })
    }

    #[test]
    fn headers_round_trip() {
        for image in images() {
            assert_eq!(ImageInfo::decode(&image.encode()), Ok(image));
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
            (0, 64 << 20, "a memory region of 0 B is outside"),
            ((16 << 20) + 4096, 64 << 20, "16777216 B and 18874368 B are"),
            (u64::MAX, 64 << 20, "outside"),
            (16 << 20, 4096, "a block region of 4096 B is outside"),
            (16 << 20, (64 << 20) + 1, "not a multiple of 4096 B"),
        ] {
            let reason = ImageInfo::check_sizes(memory_bytes, block_bytes).expect_err("refused");
            assert!(reason.contains(said), "{reason}");
        }
    }
}

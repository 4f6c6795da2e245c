//! The drives that can be emulated, with their parameters and the sources of these.

use tandemfs_device::PersistenceDomain;

use crate::media::MediaModel;
use crate::model::{FirmwareModel, GarbageCollection, Replacement, Staging};
use crate::timing::{BlockTiming, Curve, Distribution, FirmwareTiming, LatencyPoint, POINT_COUNT, QUANTILE_COUNT, Quantile, Timing};

/// A drive that can be emulated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Name on the command line, at most 31 bytes.
    pub name: &'static str,
    /// One sentence for people.
    pub description: &'static str,
    /// Persistence domain in the failure that the profile emulates.
    pub domain: PersistenceDomain,
    /// Timing of a drive without firmware, or of loads and stores where it is not the firmware's; `None` adds no time to the host's.
    pub timing: Option<Timing>,
    /// Distribution of line loads around the curve; `None` for constant latency.
    pub line_latency: Option<Distribution>,
    /// Parameters of a drive with firmware.
    pub firmware: Option<FirmwareModel>,
    /// A CPU's cache and the media behind it, where the profile can be made with a model of them.
    pub media: Option<MediaModel>,
    /// Size of the memory region where none is named, in bytes.
    pub default_memory_bytes: u64,
    /// Size of the block region where none is named, in bytes.
    pub default_block_bytes: u64,
}

impl Profile {
    /// Whether the drive has a timing model.
    pub fn has_timing(&self) -> bool {
        self.timing.is_some() || self.firmware.is_some_and(|model| model.timing.is_some())
    }
}

const fn curve(points: [(u32, u32); POINT_COUNT]) -> Curve {
    let mut curve = Curve { points: [LatencyPoint { size_bytes: 0, latency_ns: 0 }; POINT_COUNT] };
    let mut index = 0;
    while index < POINT_COUNT {
        curve.points[index] = LatencyPoint { size_bytes: points[index].0, latency_ns: points[index].1 };
        index += 1;
    }
    curve
}

/// CXL-SSD A of RomeFS (§4.1): DDR4 with the latency of a CXL memory beside a Samsung PM9A3.
///
/// *Published:* the five latencies from 4 KiB to 1 MiB (Table 3); 6.8 GB/s and 4 GB/s of the block path; 8 GB/s as the limit of each path
/// (PCIe 4.0 x4).
///
/// *Assumed*, since the paper gives nothing below 4 KiB and no latency of the block path:
/// - a load of one line takes 300 ns, the upper end of the 140–300 ns that the paper cites for CXL memories; from there a straight line to
///   the figure for 4 KiB makes each further line cost 42 ns, since the loads of a copy overlap.
/// - a store of one line takes 100 ns. It is posted: the processor waits for a place in its buffers, not for the round trip. The straight
///   line to 4 KiB (39 ns a further line) leaves long stores bound by the link, as published.
/// - a block write takes 10 us before its bytes move (a datacenter NVMe that answers from a buffer with capacitors, so it also has no
///   volatile write cache), a block read 50 us (one flash read). The 10 us are *fitted*: they were chosen so that both paths take about the
///   same time at 64 KiB (23 and 26 us), the paper's threshold (§3.3). So nothing that is measured on this profile confirms the threshold.
/// - 64 requests are served at once. Sustained random writes of a PM9A3 are slower than this model: it has no flash behind the buffer.
const ROMEFS_A: Timing = Timing {
    load: curve([(64, 300), (4 << 10, 2_930), (16 << 10, 5_850), (64 << 10, 17_250), (256 << 10, 59_580), (1 << 20, 227_950)]),
    store: curve([(64, 100), (4 << 10, 2_560), (16 << 10, 6_830), (64 << 10, 23_410), (256 << 10, 81_930), (1 << 20, 308_400)]),
    port_bytes_per_second: 8_000_000_000,
    block: BlockTiming {
        read_latency_ns: 50_000,
        write_latency_ns: 10_000,
        read_bytes_per_second: 6_800_000_000,
        write_bytes_per_second: 4_000_000_000,
        channel_count: 64,
    },
};

/// CXL-SSD B of RomeFS (§4.1): Optane persistent memory beside the same Samsung PM9A3.
///
/// *Published* elsewhere, for one module (Yang et al., FAST 2020): 305 ns for a random load of a line, 90 ns for a store of one that goes
/// around the caches, 6.6 GB/s of loads and 2.3 GB/s of stores.
///
/// *Assumed*, since the RomeFS paper has no latency of it: one module; each further line of a copy takes 20 ns to load (one thread does not
/// reach the module's bandwidth) and 28 ns to store (it does). Both directions share a port of 6.6 GB/s, so threads that store together are
/// faster than the module. Stores must be flushed to be persistent. The block path is that of [`ROMEFS_A`], with its fitted write latency.
const ROMEFS_B: Timing = Timing {
    load: curve([(64, 305), (4 << 10, 1_565), (16 << 10, 5_405), (64 << 10, 20_765), (256 << 10, 82_205), (1 << 20, 327_965)]),
    store: curve([(64, 90), (4 << 10, 1_854), (16 << 10, 7_230), (64 << 10, 28_734), (256 << 10, 114_750), (1 << 20, 458_814)]),
    port_bytes_per_second: 6_600_000_000,
    ..ROMEFS_A
};

/// The CPU and the module of [`ROMEFS_B`], for images that are made with a model of CPU caches and media.
///
/// *Published:* media lines of 256 B and a buffer of about 16 KB in each DIMM (FusionFS §1, after Yang et al., FAST 2020); a last-level cache of 42 MB (FusionFS
/// §3.1, a Xeon Gold 6348, whose cache has 12 ways); 6.6 GB/s of reads and 2.3 GB/s of writes of one DIMM, 62 ns for a store of a line that is flushed and fenced
/// (Yang et al.), of which the store is a hit.
///
/// *Assumed:* one DIMM; half of the ways can be reserved; the cache is one level, least recently used, and fetches a line before it is stored to; 5 ns for a line in it.
/// What was read is in a buffer of its own, of the same size. Lines that are fetched, and stores past the caches, take the latencies of [`ROMEFS_B`].
const OPTANE_MEDIA: MediaModel = MediaModel {
    cache_bytes: 42 << 20,
    cache_ways: 12,
    reservable_ways: 6,
    dimm_count: 1,
    buffer_bytes: 16 << 10,
    read_bytes_per_second: 6_600_000_000,
    write_bytes_per_second: 2_300_000_000,
    hit_ns: 5,
    flush_ns: 57,
};

const fn distribution(quantiles: [(u32, u32); QUANTILE_COUNT], seed: u64) -> Distribution {
    let mut distribution = Distribution { quantiles: [Quantile { parts_per_million: 0, latency_ns: 0 }; QUANTILE_COUNT], seed };
    let mut index = 0;
    while index < QUANTILE_COUNT {
        distribution.quantiles[index] = Quantile { parts_per_million: quantiles[index].0, latency_ns: quantiles[index].1 };
        index += 1;
    }
    distribution
}

/// A CMM-H by CXL, as others measured it.
///
/// *Measured* elsewhere: a load of one line takes 771 ns (median), about 980 ns (95 %), 28 to 37 us (99 %), 57 to 63 us (99.9 %), 400 us at
/// most, and 4 % of loads more than 5 us. Loads that its cache does not answer are in these numbers, so no cache is simulated beside them.
///
/// *Assumed*: the link, the stores and the block path of [`ROMEFS_A`], each further line of a load costing what it costs there.
const CMM_H: Timing = Timing {
    load: curve([(64, 771), (4 << 10, 3_401), (16 << 10, 6_321), (64 << 10, 17_721), (256 << 10, 60_051), (1 << 20, 228_421)]),
    ..ROMEFS_A
};

/// See [`CMM_H`]; the middle of what is given as a range.
const CMM_H_LINES: Distribution =
    distribution([(500_000, 771), (950_000, 980), (960_000, 5_000), (990_000, 32_500), (999_000, 60_000), (1_000_000, 400_000)], 6);

/// The emulated drive of ByteFS (Table 4).
///
/// *Published:* 40/60 us for reading and programming a flash page of 4 KiB, 8 channels, 4.8/0.6 us for a load and a store of a line,
/// 3.5/2.5 GB/s of the link, 256 MiB of log, 2 MiB of TxLog, cleaning at 85 %.
///
/// *Assumed:*
/// - 8 dies on a channel, one plane each, 256 pages a block, 2 ms for an erasure, 7 % of over-provisioning: FEMU, which their emulator is
///   made of, has such flash. The channel's bus takes no time: it is part of the 40/60 us.
/// - the write-verify read that ends a fence takes a load's 4.8 us: it crosses the link and comes back (the paper gives no number).
/// - a command takes 4.8 us, the same round trip: the drive fetches it from the host. So does COMMIT.
/// - 1,024 pages of write buffer (4 MiB), 3,000 erasures.
const BYTEFS: FirmwareModel = FirmwareModel {
    staging: Staging::WriteLog { log_bytes: 256 << 20, transaction_log_bytes: 2 << 20, clean_at_percent: 85 },
    channel_count: 8,
    dies_per_channel: 8,
    planes_per_die: 1,
    blocks_per_plane: 0,
    pages_per_block: 256,
    over_provisioning_percent: 7,
    garbage_collection: GarbageCollection::Greedy,
    write_buffer_pages: 1024,
    endurance_erasures: 3_000,
    timing: Some(FirmwareTiming {
        line_read_ns: 4_800,
        line_write_ns: 600,
        verify_read_ns: 4_800,
        command_ns: 4_800,
        commands_at_once: 0,
        read_bytes_per_second: 3_500_000_000,
        write_bytes_per_second: 2_500_000_000,
        flash_read_ns: 40_000,
        flash_program_ns: 60_000,
        flash_erase_ns: 2_000_000,
    }),
};

/// ByteFS by CXL (§5.6): 175 ns a line, both ways, and flash of 3/80 us. Everything else as [`BYTEFS`].
const BYTEFS_CXL: FirmwareModel = FirmwareModel {
    timing: Some(FirmwareTiming {
        line_read_ns: 175,
        line_write_ns: 175,
        verify_read_ns: 175,
        command_ns: 4_800,
        commands_at_once: 0,
        read_bytes_per_second: 3_500_000_000,
        write_bytes_per_second: 2_500_000_000,
        flash_read_ns: 3_000,
        flash_program_ns: 80_000,
        flash_erase_ns: 2_000_000,
    }),
    ..BYTEFS
};

/// What ByteFS is compared with (§5.1, Fig. 12): the same DRAM as a cache of pages that the drive manages.
const BYTEFS_DUAL: FirmwareModel =
    FirmwareModel { staging: Staging::Cache { cache_bytes: 256 << 20, replacement: Replacement::Lru }, ..BYTEFS };

/// The drive that Habicht et al. propose (§3.1): a cache that is memory of the host's address space, and MOVE commands between it and the
/// flash. The cache is 4 GiB a TiB of the block zone: the paper says few GiB a TiB.
///
/// *Assumed*, since such a drive cannot be bought and the paper's prototype moved pages by the host: the flash and the link of the block path
/// of [`BYTEFS_CXL`]; a MOVE takes a command (4.8 us) as a block command does, then the flash and 8 GB/s inside of the drive, and crosses no
/// link; 64 MOVEs at once.
const HYBRID_CACHE: FirmwareModel =
    FirmwareModel { staging: Staging::HostCache { cache_bytes: 0, queue_depth: 64, bytes_per_second: 8_000_000_000 }, ..BYTEFS_CXL };

/// Loads and stores of the same drive.
///
/// *Published* (§6.1): a load of a line takes 358 ns.
///
/// *Assumed*, as of [`ROMEFS_A`]: a further line of a copy costs 42 ns to load, a posted store 100 ns and 39 ns for each further line, and
/// 8 GB/s of all threads together. The block path is that of the firmware.
const HYBRID_CACHE_MEMORY: Timing = Timing {
    load: curve([(64, 358), (4 << 10, 2_988), (16 << 10, 5_908), (64 << 10, 17_308), (256 << 10, 59_638), (1 << 20, 228_008)]),
    ..ROMEFS_A
};

const PLAIN: Profile = Profile {
    name: "off",
    description: "no timing model, for plain use: as fast as the host; what was stored survives the process, not the host's power",
    domain: PersistenceDomain::Process,
    timing: None,
    line_latency: None,
    firmware: None,
    media: None,
    default_memory_bytes: 256 << 20,
    default_block_bytes: 8 << 30,
};

const fn with_firmware(name: &'static str, description: &'static str, domain: PersistenceDomain, model: FirmwareModel) -> Profile {
    let firmware = Some(model);
    Profile { name, description, domain, firmware, default_memory_bytes: 2 << 30, default_block_bytes: 30 << 30, ..PLAIN }
}

static PROFILES: [Profile; 9] = [
    PLAIN,
    Profile {
        name: "romefs-a",
        description: "CXL-SSD A of the RomeFS paper: CXL memory over DDR4 beside a PCIe 4 NVMe of 6.8/4 GB/s, persistent by GPF",
        domain: PersistenceDomain::Gpf,
        timing: Some(ROMEFS_A),
        default_memory_bytes: 10 << 30,
        default_block_bytes: 3_840_000_000_000 / (2 << 20) * (2 << 20),
        ..PLAIN
    },
    Profile {
        name: "romefs-b",
        description: "CXL-SSD B of the RomeFS paper: Optane persistent memory beside the same NVMe, persistent once fenced",
        domain: PersistenceDomain::Adr,
        timing: Some(ROMEFS_B),
        media: Some(OPTANE_MEDIA),
        default_memory_bytes: 20 << 30,
        default_block_bytes: 3_840_000_000_000 / (2 << 20) * (2 << 20),
        ..PLAIN
    },
    Profile {
        name: "cmm-h",
        description: "a measured CMM-H: loads mostly of 0.8 us, some of tens of us, beside the block path of romefs-a, persistent by GPF",
        domain: PersistenceDomain::Gpf,
        timing: Some(CMM_H),
        line_latency: Some(CMM_H_LINES),
        default_memory_bytes: 10 << 30,
        default_block_bytes: 3_840_000_000_000 / (2 << 20) * (2 << 20),
        ..PLAIN
    },
    with_firmware(
        "bytefs",
        "the SSD of the ByteFS paper: write log with transactions over flash of 40/60 us, 4.8/0.6 us a line, persistent once fenced",
        PersistenceDomain::Adr,
        BYTEFS,
    ),
    with_firmware("bytefs-cxl", "the same by CXL: 175 ns a line, flash of 3/80 us", PersistenceDomain::Adr, BYTEFS_CXL),
    with_firmware(
        "bytefs-dual",
        "the same as bytefs with a cache of pages in place of the write log, and no transactions",
        PersistenceDomain::Adr,
        BYTEFS_DUAL,
    ),
    Profile {
        timing: Some(HYBRID_CACHE_MEMORY),
        ..with_firmware(
            "hybrid-cache",
            "flash behind the block path, and a cache that is memory of the host by CXL (358 ns), filled and emptied by MOVE, persistent by GPF",
            PersistenceDomain::Gpf,
            HYBRID_CACHE,
        )
    },
    Profile {
        name: "optane",
        description: "persistent memory alone, as that of romefs-b: no block region, so a file system of files in memory; persistent once fenced",
        domain: PersistenceDomain::Adr,
        timing: Some(ROMEFS_B),
        media: Some(OPTANE_MEDIA),
        default_memory_bytes: 20 << 30,
        default_block_bytes: 0,
        ..PLAIN
    },
];

/// All profiles.
pub fn profiles() -> &'static [Profile] {
    &PROFILES
}

/// The profile of this name.
pub fn profile(name: &str) -> Option<&'static Profile> {
    profiles().iter().find(|profile| profile.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_can_be_made() {
        for profile in profiles() {
            assert!(profile.name.len() < 32 && profile.timing.is_none_or(|timing| timing.is_sane()), "{}", profile.name);
            assert!(profile.media.is_none_or(|model| model.check().is_ok() && profile.timing.is_some()), "{}", profile.name);
            assert!(profile.default_memory_bytes % (2 << 20) == 0 && profile.default_block_bytes % 4096 == 0, "{}", profile.name);
        }
    }
}

//! The drives that can be emulated, with the numbers they were given and where those come from.

use tandemfs_device::PersistenceDomain;

use crate::timing::{BlockTiming, Curve, LatencyPoint, POINT_COUNT, Timing};

/// A drive that can be emulated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Name on the command line, at most 31 bytes.
    pub name: &'static str,
    /// One sentence for people.
    pub description: &'static str,
    /// What becomes of stores in the failure that the profile emulates.
    pub domain: PersistenceDomain,
    /// How long accesses take; none adds nothing to what the host takes.
    pub timing: Option<Timing>,
    /// Size of the memory region where none is named, in bytes.
    pub default_memory_bytes: u64,
    /// Size of the block region where none is named, in bytes.
    pub default_block_bytes: u64,
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
///   volatile write cache), a block read 50 us (one flash read). With 10 us the two paths cost about the same at 64 KiB (23 and 26 us),
///   which is where the paper says that they meet (§3.3).
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

static PROFILES: [Profile; 2] = [
    Profile {
        name: "off",
        description: "no timing model, for plain use: as fast as the host; what was stored survives the process, not the host's power",
        domain: PersistenceDomain::Process,
        timing: None,
        default_memory_bytes: 256 << 20,
        default_block_bytes: 8 << 30,
    },
    Profile {
        name: "romefs-a",
        description: "CXL-SSD A of the RomeFS paper: CXL memory over DDR4 beside a PCIe 4 NVMe of 6.8/4 GB/s, persistent by GPF",
        domain: PersistenceDomain::Gpf,
        timing: Some(ROMEFS_A),
        default_memory_bytes: 10 << 30,
        default_block_bytes: 3_840_000_000_000 / (2 << 20) * (2 << 20),
    },
];

/// All profiles.
pub fn profiles() -> &'static [Profile] {
    &PROFILES
}

/// The profile of this name.
pub fn profile(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_can_be_made() {
        for profile in profiles() {
            assert!(profile.name.len() < 32 && profile.timing.is_none_or(|timing| timing.is_sane()), "{}", profile.name);
            assert!(profile.default_memory_bytes % (2 << 20) == 0 && profile.default_block_bytes % 4096 == 0, "{}", profile.name);
        }
    }
}

//! Whether the zones of a new file system go together, for a warning of `mkfs`. `docs/ADMINISTRATION.md`, *Sizing*, has the numbers behind it.

use tandemfs_format::SECTOR_BYTES;
use tandemfs_format::geometry::Geometry;
use tandemfs_format::size::size;

/// The mapping and the checksums of a full block zone should take no more than this part (1/N) of the memory zone: the rest is for names,
/// inodes and small writes.
const METADATA_PART: u64 = 4;

/// A zone whose size is odd beside the other one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OddZone {
    /// `memory` or `block`.
    pub zone: &'static str,
    /// Its size in bytes.
    pub has_bytes: u64,
    /// The least size that goes with the other zone.
    pub recommended_bytes: u64,
    /// What will happen, with numbers.
    pub message: String,
}

/// Zones that are too small for the other one.
pub fn odd_zones(geometry: &Geometry, checksums: bool) -> Vec<OddZone> {
    let (memory, block) = (geometry.memory_bytes(), geometry.block_sectors() * SECTOR_BYTES as u64);
    let mut odd = Vec::new();
    let needed = geometry.metadata_bytes_worst(checksums).next_multiple_of(1 << 20);
    if needed * METADATA_PART > memory {
        let recommended_bytes = needed * METADATA_PART;
        odd.push(OddZone {
            zone: "memory",
            has_bytes: memory,
            recommended_bytes,
            message: format!(
                "the memory zone is small for the block zone: mapping and checksums of a full block zone ({}) take {} of {}, {} %; a memory \
                 zone of {} or larger blocks leave room for files and small writes",
                size(block),
                size(needed),
                size(memory),
                needed * 100 / memory,
                size(recommended_bytes)
            ),
        });
    }
    if block > 0 && block < memory {
        odd.push(OddZone {
            zone: "block",
            has_bytes: block,
            recommended_bytes: memory,
            message: format!(
                "the block zone ({}) is smaller than the memory zone ({}): small writes are written back to it, and stop where it is full",
                size(block),
                size(memory)
            ),
        });
    }
    odd
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_odd_proportion_is_told_with_numbers() {
        const MIB: u64 = 1 << 20;
        let odd = |memory_bytes, block_zone_bytes, block_bytes| {
            let (rings, each) = Geometry::default_rings(memory_bytes);
            odd_zones(&Geometry::new(memory_bytes, block_zone_bytes, block_bytes, rings, each).expect("valid"), true)
        };
        assert_eq!(odd(64 * MIB, 4096 * MIB, 65_536), []);
        let small = &odd(64 * MIB, 4096 * MIB, 4096)[0];
        assert_eq!((small.zone, small.has_bytes), ("memory", 64 * MIB));
        assert!(small.recommended_bytes > 85 * MIB && small.recommended_bytes < 95 * MIB, "{small:?}");
        assert!(small.message.contains("22 MiB of 64 MiB, 34 %"), "{small:?}");
        let small = &odd(64 * MIB, 32 * MIB, 65_536)[0];
        assert_eq!((small.zone, small.has_bytes, small.recommended_bytes), ("block", 32 * MIB, 64 * MIB));
    }
}

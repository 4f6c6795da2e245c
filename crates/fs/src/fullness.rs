//! Which zone has little space left, what that means, and what helps: for `tandemfs info` and `tandemfs stats`.

use crate::file_system::FileSystem;
use crate::types::{ShortZone, Space};

/// A zone is short when less than this part (1/N) of it is available.
const SHORT_PART: u64 = 20;
/// Files that can be made below which the memory zone is short, whatever its size.
const FEW_FILES: u64 = 1000;

impl FileSystem {
    /// Zones with little space left; the one that matters most comes first.
    pub fn short_zones(&self) -> Vec<ShortZone> {
        short_zones(&self.space(), self.large_file_bytes(), u64::from(self.volume.geometry.block_bytes()))
    }
}

fn short_zones(space: &Space, large_file_bytes: u64, block_bytes: u64) -> Vec<ShortZone> {
    let memory = |what| ShortZone {
        zone: "memory",
        what,
        advice: "delete files, or enlarge it with tandemfs resize --memory; what is deleted comes back within half a minute",
    };
    let is_short = |available: u64, total: u64| available < total / SHORT_PART;
    let is_block_short = is_short(space.block.available_bytes, space.block.total_bytes);
    let mut short = Vec::new();
    if space.inodes_free < FEW_FILES.max(space.inodes_used / 100) {
        short.push(memory("few files can still be made"));
    }
    if !is_block_short && large_file_bytes + block_bytes < space.block.available_bytes / 2 {
        short.push(memory("it has no room for the mapping and the checksums of what the block zone could still hold"));
    }
    if is_block_short {
        let advice = "delete files, or enlarge it with tandemfs resize --block";
        short.push(ShortZone { zone: "block", what: "little space is left for file data", advice });
    }
    if short.is_empty() && is_short(space.memory.available_bytes + space.memory.data_log_bytes, space.memory.total_bytes) {
        let has_blocks = space.block.total_bytes > 0;
        short.push(memory(if has_blocks { "small writes take the slower block path" } else { "little space is left for file data" }));
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ZoneSpace;

    #[test]
    fn each_shortage_is_told_from_the_others() {
        const MIB: u64 = 1 << 20;
        let zone =
            |total_bytes, available_bytes| ZoneSpace { total_bytes, available_bytes, free_bytes: available_bytes, ..ZoneSpace::default() };
        let space = |memory, block, inodes_free| Space {
            memory: zone(256 * MIB, memory),
            block: zone(8192 * MIB, block),
            inodes_used: 1000,
            inodes_free,
        };
        let told = |space: Space, large| {
            let short = short_zones(&space, large, 65_536);
            short.iter().map(|short| (short.zone, short.what.split(' ').next().unwrap_or_default())).collect::<Vec<_>>()
        };
        assert_eq!(told(space(200 * MIB, 8000 * MIB, 100_000), 7900 * MIB), []);
        assert_eq!(told(space(200 * MIB, 100 * MIB, 100_000), 90 * MIB), [("block", "little")]);
        assert_eq!(told(space(2 * MIB, 8000 * MIB, 10), 7900 * MIB), [("memory", "few")]);
        assert_eq!(told(space(2 * MIB, 8000 * MIB, 10), 100 * MIB), [("memory", "few"), ("memory", "it")]);
        assert_eq!(told(space(2 * MIB, 8000 * MIB, 100_000), 7900 * MIB), [("memory", "small")]);
        assert_eq!(told(space(2 * MIB, 100 * MIB, 10), 0), [("memory", "few"), ("block", "little")]);
    }
}

//! The segment table as stored on a device: where metadata is, and how much.

use tandemfs_device::Device;
use tandemfs_format::geometry::{Geometry, SEGMENT_TABLE_LINES};
use tandemfs_format::segment::Segment;
use tandemfs_format::{LINE_BYTES, PairSeed};

use crate::failure::{Failure, Result};

/// All segments. The table must be up to date on the device: run a checkpoint first.
pub fn segments(device: &dyn Device, geometry: &Geometry, pair: PairSeed) -> Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for index in 0..SEGMENT_TABLE_LINES {
        let address = geometry.segment_line(index);
        let mut line = [0; LINE_BYTES];
        device.byte_path().load(address.offset_bytes(), &mut line)?;
        let segment = Segment::decode(&line, pair, address, geometry.memory_units());
        segments.extend(segment.map_err(|error| Failure::new(format!("the segment table: {error}")))?);
    }
    Ok(segments)
}

/// Total high-water mark of the segments, in bytes.
pub fn metadata_bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.high_water_lines * LINE_BYTES as u64).sum()
}

//! Check, which shares no engine code, finds images that the engine made consistent.

mod support;

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use support::*;
use tandemfs_check::Severity;

fn golden(name: &str) -> std::sync::Arc<MemoryDevice> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fs/tests/golden").join(name);
    let mut bytes = Vec::new();
    GzDecoder::new(std::fs::File::open(path).expect("is kept")).read_to_end(&mut bytes).expect("is whole");
    let blocks = bytes.split_off(bytes.len() - (4 << 20));
    MemoryDevice::new(bytes, blocks)
}

#[test]
fn images_of_the_engine_are_consistent() {
    let images = ["clean", "unchecked", "crashed", "grown"].map(|kind| (kind, kind != "crashed"));
    for (generation, (kind, clean)) in
        ["1", "1-covered", "1-stamped", "1-lost", "1-counted"].iter().flat_map(|generation| images.map(|image| (generation, image)))
    {
        let name = &format!("format-{generation}-{kind}.gz");
        let report = report(&golden(name), false);
        let found: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        assert_eq!(found, [] as [String; 0], "{name}");
        assert_eq!(report.clean, clean, "{name}");
        // Data without checksums is not read.
        let reads = report.counts.data_bytes > 200_000 || name.ends_with("unchecked.gz");
        assert!(report.counts.inodes > 4 && report.counts.sectors >= 49 && reads, "{name}: {:?}", report.counts);
    }
}

#[test]
fn the_damaged_image_of_the_engine_is_not() {
    for generation in ["1", "1-covered", "1-stamped", "1-lost", "1-counted"] {
        let name = format!("format-{generation}-damaged.gz");
        assert!(report(&golden(&name), false).count(Severity::Error) > 0, "{name}");
    }
}

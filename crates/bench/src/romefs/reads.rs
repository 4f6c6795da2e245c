//! Fig. 8: random reads of a file; the share of its data in data logs is about the size of the memory zone.

use super::contest::{self, Load, Operation};
use super::requests::{Alignment, SIZES, Size};
use super::setting::{Setting, Variant, Volume};
use super::writes;
use crate::failure::Result;
use crate::output::Outcome;
use crate::scene::MIB;

const RATIOS: [u64; 2] = [5, 10];
/// Most requests per size: more small requests add no information.
const REQUESTS_MAX: u64 = 100_000;
/// Size of the requests that created the file (§4.2.1).
const MADE_BY: Size = Size::About(512 << 10);

/// Runs both loads.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("reads", "random reads aligned to 4 KiB, one thread, in virtual time (Fig. 8)");
    setting.require(setting.device_bytes(setting.file_bytes(RATIOS[1])))?;
    for ratio in RATIOS {
        let (file_bytes, load_bytes) = (setting.file_bytes(ratio), setting.load_bytes(ratio));
        let mut results = SIZES.map(|size| (size, Vec::new()));
        let mut in_logs = 0;
        for variant in Variant::ALL {
            let (_scene, device) = setting.virtual_device(file_bytes)?;
            let mut volume = Volume::laid_out_in(&device, variant.block_bytes(), file_bytes, &Variant::Default.options())?;
            // For blocks only, such writes would leave the data where it was initially.
            if !matches!(variant, Variant::BlocksOnly | Variant::SmallBlocksOnly) {
                volume.fill_memory(MADE_BY)?;
                in_logs = volume.fs.space().memory.data_log_bytes;
            }
            volume = volume.mounted_again(&device, &variant.options())?;
            for (size, standings) in &mut results {
                let bytes = load_bytes.min(REQUESTS_MAX * size.mean_bytes());
                let load = Load { operation: Operation::Read, size: *size, alignment: Alignment::Sector, threads: 1, bytes, seed: ratio };
                standings.push(contest::run(variant.name(), &volume, &*device, load)?);
            }
            volume.fs.unmount()?;
        }
        let caption = format!(
            "memory zone : file and load = 1 : {ratio} ({} MiB), {} MiB of it in data logs at the start",
            load_bytes / MIB,
            in_logs / MIB
        );
        writes::publish(&mut outcome, &format!("1-{ratio}"), &caption, &results);
    }
    writes::explain(&mut outcome);
    outcome.note(format!("a size has the whole load or {REQUESTS_MAX} requests; the cache keeps what the sizes before it read"));
    Ok(outcome)
}

//! Fig. 8: random reads of a file; the share of its data in data logs is about the size of the memory zone.

use super::contest::{self, Contestant, Operation};
use super::requests::{Alignment, Requests, SIZES, Size};
use super::setting::{Setting, Variant, Volume};
use super::writes;
use crate::failure::Result;
use crate::output::Outcome;
use crate::scene::{MIB, Scene};

const RATIOS: [u64; 2] = [5, 10];
/// Most requests per size: more small requests add no information.
const REQUESTS_MAX: u64 = 100_000;
const SLICES: u64 = 8;
/// Size of the requests that created the file (§4.2.1).
const MADE_BY: Size = Size::About(512 << 10);

/// Runs both loads.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("reads", "random reads aligned to 4 KiB, one thread (Fig. 8)");
    setting.require(setting.timed_device_bytes(setting.file_bytes(RATIOS[1])) * Variant::ALL.len() as u64)?;
    for ratio in RATIOS {
        let (file_bytes, load_bytes) = (setting.file_bytes(ratio), setting.load_bytes(ratio));
        let scene = Scene::new(&setting.common)?;
        let devices = writes::devices(setting, &scene, file_bytes)?;
        let mut volumes = Vec::new();
        for (variant, device) in Variant::ALL.into_iter().zip(&devices) {
            volumes.push((variant, Volume::laid_out_in(device, variant.block_bytes(), file_bytes, &Variant::Default.options())?));
            // For blocks only, such writes would leave the data where it was initially.
            if !matches!(variant, Variant::BlocksOnly | Variant::SmallBlocksOnly) {
                volumes[volumes.len() - 1].1.fill_memory(MADE_BY)?;
            }
        }
        let in_logs = volumes[0].1.fs.space().memory.data_log_bytes;
        for ((variant, volume), device) in volumes.iter_mut().zip(&devices) {
            *volume = volume.clone().mounted_again(device, &variant.options())?;
        }
        let mut results = Vec::new();
        for size in SIZES {
            let contestant = |(variant, volume): &(Variant, Volume)| {
                Contestant::new(variant.name(), volume.clone(), Requests::new(ratio, size, Alignment::Sector, file_bytes))
            };
            let bytes = load_bytes.min(REQUESTS_MAX * size.mean_bytes());
            results.push((size, contest::run(volumes.iter().map(contestant).collect(), Operation::Read, bytes, SLICES)?));
        }
        volumes.into_iter().try_for_each(|(_, volume)| volume.fs.unmount())?;
        let caption = format!(
            "memory zone : file and load = 1 : {ratio} ({} MiB), {} MiB of it in data logs at the start",
            load_bytes / MIB,
            in_logs / MIB
        );
        writes::publish(&mut outcome, &format!("1-{ratio}"), &caption, &results)?;
    }
    writes::explain(&mut outcome);
    outcome.note(format!("a size has the whole load or {REQUESTS_MAX} requests; the cache keeps what the sizes before it read"));
    Ok(outcome)
}

//! Fig. 8: random reads of a file of which about the memory zone's share is in data logs.

use super::contest::{self, Contestant, Operation};
use super::requests::{Alignment, Requests, SIZES, Size};
use super::setting::{Setting, Variant, Volume};
use super::writes;
use crate::failure::Result;
use crate::output::Outcome;
use crate::scene::{MIB, Scene};

const RATIOS: [u64; 2] = [5, 10];
/// Requests that made the file (§4.2.1).
const MADE_BY: Size = Size::About(512 << 10);

/// Both loads.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("reads", "random reads aligned to 4 KiB, one thread (Fig. 8)");
    setting.require(setting.timed_device_bytes(setting.load_bytes(RATIOS[1])) * Variant::ALL.len() as u64)?;
    for ratio in RATIOS {
        let load_bytes = setting.load_bytes(ratio);
        let scene = Scene::new(&setting.common)?;
        let devices = writes::devices(setting, &scene, load_bytes)?;
        let (mut results, mut in_logs) = (Vec::new(), 0);
        for size in SIZES {
            let mut contestants = Vec::new();
            for (variant, device) in Variant::ALL.into_iter().zip(&devices) {
                let mut volume = Volume::laid_out(device, load_bytes, &variant.options())?;
                // By blocks only, what was written that way is where it was laid out.
                if variant != Variant::BlocksOnly {
                    volume = volume.mounted_again(device, &Variant::Default.options())?;
                    volume.fill_memory(MADE_BY)?;
                    volume = volume.mounted_again(device, &variant.options())?;
                    in_logs = volume.fs.space().memory.data_log_bytes;
                }
                contestants.push(Contestant::new(variant.name(), volume, Requests::new(ratio, size, Alignment::Sector, load_bytes)));
            }
            results.push((size, contest::run(contestants, Operation::Read, load_bytes)?));
        }
        let caption = format!(
            "memory zone : file and load = 1 : {ratio} ({} MiB), {} MiB of it in data logs at the start",
            load_bytes / MIB,
            in_logs / MIB
        );
        writes::publish(&mut outcome, &format!("1-{ratio}"), &caption, &results)?;
    }
    writes::explain(&mut outcome);
    Ok(outcome)
}

//! §3.3: what the threshold is worth, over the latency of a block command: `threshold=auto` beside the block size, the default.

use std::sync::Arc;

use serde_json::json;
use tandemfs_device::Drive;
use tandemfs_device::sync::workers::ModelledHost;
use tandemfs_emulator::ModelOptions;
use tandemfs_format::InodeNumber;
use tandemfs_fs::{FileSystem, MountOptions, Threshold, WriteOptions};

use super::requests::{Alignment, REQUEST_BYTES_MAX, Requests, SIZES, Size};
use super::setting::{Setting, pattern};
use crate::failure::Result;
use crate::output::Outcome;
use crate::scene::{self, MIB, Scene};
use crate::table::Table;

/// Profiles, and the least latency of a block command in microseconds; 10 is the profiles' own for writes.
const DRIVES: [(&str, u32); 5] = [("romefs-a", 10), ("romefs-a", 25), ("romefs-a", 50), ("romefs-a", 100), ("romefs-b", 10)];
/// Loads in memory zones: before write-back begins, and in its steady state.
const LOADS: [(f64, &str); 2] = [(0.4, "the zone has room"), (5.0, "five times the zone")];

/// Runs all drives and loads.
pub fn run(setting: &Setting) -> Result<Outcome> {
    let mut outcome = Outcome::new("threshold", "durable unaligned writes by threshold, one thread, in virtual time (§3.3)");
    let memory_bytes = if setting.scale < 1.0 { 32 * MIB } else { setting.memory_bytes.min(64 * MIB) };
    let _host = ModelledHost::new();
    for (zones, caption) in LOADS {
        let sizes = SIZES.map(Size::name);
        let head = ["drive, us a command", "auto chooses"].into_iter().map(str::to_owned);
        let mut table = Table::new(head.chain(sizes.map(|size| format!("{size}: block size, auto, us"))));
        for (profile, command_us) in DRIVES {
            let (mut cells, mut chosen) = (Vec::new(), 0);
            for size in SIZES {
                let load_bytes = (memory_bytes as f64 * zones * setting.scale) as u64;
                let mut means = Vec::new();
                for threshold in [Threshold::BlockSize, Threshold::Auto] {
                    let (mean_us, chosen_bytes) = writes(setting, profile, command_us, memory_bytes, load_bytes, size, threshold)?;
                    means.push(mean_us);
                    chosen = chosen_bytes;
                }
                outcome.record(json!({
                    "profile": profile, "command_us": command_us, "zones": zones, "size": size.name(), "block_size_us": means[0],
                    "auto_us": means[1], "chosen_bytes": chosen,
                }));
                cells.push(format!("{:.1}, {:.1} ({:.2} x)", means[0], means[1], means[0] / means[1]));
            }
            table.row([format!("{profile}, {command_us}"), format!("{} KiB", chosen >> 10)].into_iter().chain(cells));
        }
        outcome.table(format!("memory zone of {} MiB; {caption}", memory_bytes / MIB), table);
    }
    outcome.note("mean of a request with its share of the write-back, up to the last data log; x: how much faster auto is");
    outcome.note("the profiles' write latency of 10 us is fitted so that the paths meet at 64 KiB (`emulator/src/profiles.rs`): that auto chooses 64 KiB there confirms nothing");
    Ok(outcome)
}

/// Mean time of a write in microseconds, and the threshold that the mount chose.
fn writes(
    setting: &Setting,
    profile: &str,
    command_us: u32,
    memory_bytes: u64,
    load_bytes: u64,
    size: Size,
    threshold: Threshold,
) -> Result<(f64, u32)> {
    let file_bytes = (load_bytes.min(4 * memory_bytes)).next_multiple_of(MIB).max(8 * MIB);
    let block_bytes = Setting::block_bytes(file_bytes);
    setting.require(memory_bytes + block_bytes)?;
    let scene = Scene::new(&setting.common)?;
    let chosen = ModelOptions { block_command_ns_min: Some(command_us * 1000), ..ModelOptions::default() };
    let drive = Drive::new(scene.virtual_device(profile, &chosen, memory_bytes, block_bytes)?);
    let fs = Arc::new(FileSystem::mount(drive.clone(), &MountOptions { threshold, ..MountOptions::default() })?);
    let file = fs.create(InodeNumber::ROOT, b"file", &scene::new_file())?.inode;
    let data = pattern(REQUEST_BYTES_MAX);
    let write = |offset, length: u64| scene::write(&fs, file, offset, &data[..length as usize], WriteOptions::default());
    (0..file_bytes / MIB).try_for_each(|number| write(number * MIB, MIB))?;
    let mut requests = Requests::new(3, size, Alignment::Byte, file_bytes);
    let (start, mut bytes, mut count) = (drive.now_ns(), 0, 0_u64);
    while bytes < load_bytes {
        crate::machine::check()?;
        let (offset, length) = requests.draw();
        write(offset, length)?;
        (bytes, count) = (bytes + length, count + 1);
    }
    let chosen = fs.threshold().chosen_bytes;
    fs.write_back_all()?;
    fs.checkpoint()?;
    let mean_us = (drive.now_ns() - start) as f64 / count.max(1) as f64 / 1e3;
    fs.unmount()?;
    Ok((mean_us, chosen))
}

//! Random workloads on the file system and on the model, compared after every operation. A failure is shrunk to the operations that it
//! needs.

use tandemfs_device::PersistenceDomain;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::Promote;

use crate::cpu::stay_on_one_cpu;
use crate::harness::{Harness, Setting};
use crate::model::Model;
use crate::operation::{LONG, Mix, Operation};
use crate::random::Random;

/// Statistics of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Compared {
    /// Operations.
    pub operations: u64,
    /// Operations that found a zone full.
    pub refused: u64,
}

/// Runs operations on a fresh file system and compares after each; then removes everything and compares space.
fn run(setting: &Setting, operations: &[Operation], seed: u64) -> Result<Harness, String> {
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?;
    harness.follow(seed);
    let fresh = harness.fs.space();
    for (index, operation) in operations.iter().enumerate() {
        let compare = |harness: &Harness| {
            // A tree of many MiB is not read after every single operation.
            let step = 1 + harness.model.file_bytes() / (512 << 10);
            if (index as u64).is_multiple_of(step) { harness.compare() } else { Ok(()) }
        };
        harness.apply(operation).and_then(|()| compare(&harness)).map_err(|what| format!("operation {index}: {what}"))?;
    }
    if harness.overwrites_refused > 0 {
        return Err(format!("{} overwrites refused (R14), space {:?}", harness.overwrites_refused, harness.fs.space()));
    }
    harness.compare()?;
    harness.compare_space().and_then(|()| harness.compare())?;
    harness.remove_everything().and_then(|()| harness.compare_space())?;
    let empty = harness.fs.space();
    if (empty.block, empty.inodes_used, empty.memory.data_log_bytes) != (fresh.block, fresh.inodes_used, fresh.memory.data_log_bytes) {
        return Err(format!("space was lost: {fresh:?} when fresh, {empty:?} when empty again"));
    }
    Ok(harness)
}

/// The same; a panic is a failure too.
fn fails(setting: &Setting, operations: &[Operation], seed: u64) -> Option<String> {
    match std::panic::catch_unwind(|| run(setting, operations, seed).map(|harness| harness.refused_for_space)) {
        Ok(Ok(_)) => None,
        Ok(Err(what)) => Some(what),
        Err(panic) => Some(format!("panic: {:?}", panic.downcast_ref::<String>())),
    }
}

/// Removes operations that the failure does not need: the list for a regression test.
fn shrink(setting: &Setting, mut operations: Vec<Operation>, seed: u64) -> Vec<Operation> {
    let mut size = operations.len().div_ceil(2);
    loop {
        let mut start = 0;
        while start < operations.len() {
            let mut fewer = operations.clone();
            fewer.drain(start..(start + size).min(fewer.len()));
            if fails(setting, &fewer, seed).is_some() {
                operations = fewer;
            } else {
                start += size;
            }
        }
        if size == 1 {
            return operations;
        }
        size = size.div_ceil(2);
    }
}

fn draw_setting(random: &mut Random) -> Setting {
    let domain = *random.pick(&[PersistenceDomain::Adr, PersistenceDomain::Gpf]);
    let block_bytes = *random.pick(&[4 << 10, 64 << 10, 64 << 10, 1 << 20]);
    let mut setting = Setting::small(domain, block_bytes);
    setting.block_zone_bytes = *random.pick(&[4 << 20, 8 << 20, 16 << 20]);
    if block_bytes == 1 << 20 {
        setting.block_zone_bytes = 16 << 20;
    }
    setting.mount.memory_bytes = *random.pick(&[256 << 10, 4 << 20]);
    if random.one_in(5) {
        setting.format.checksum_kind = ChecksumKind::None;
    }
    if random.one_in(4) && block_bytes < 1 << 20 {
        setting.mount.threshold = tandemfs_fs::Threshold::Bytes(block_bytes * 4);
    }
    setting
}

/// One random workload, drawn from a seed.
///
/// # Errors
/// The difference, with the seed, the setting and the shortest list of operations found that shows it.
pub fn compare_with_model(seed: u64) -> Result<Compared, String> {
    stay_on_one_cpu()?;
    let mut random = Random::new(seed);
    let mut setting = draw_setting(&mut random);
    // From a source of its own, so that a seed draws the operations that it always drew.
    let mut of_reads = Random::new(seed.rotate_left(32));
    setting.mount.promote = *of_reads.pick(&[Promote::Off, Promote::Hot, Promote::EveryRead]);
    setting.mount.read_ahead_bytes = *of_reads.pick(&[0, 16 << 10, 1 << 20]);
    match Random::new(seed.rotate_left(16)).below(5) {
        0 | 1 => setting = setting.with_firmware(),
        2 => setting = setting.with_idle_firmware(),
        _ => {}
    }
    let mut of_discards = Random::new(seed.rotate_left(48));
    let mix = Mix::draw(&mut random, setting.block_zone_bytes);
    let mut list = match random.below(3) {
        0 => Vec::new(),
        _ => vec![Operation::MakeDirectory("d"), Operation::MakeDirectory("d/d"), Operation::MakeDirectory("e"), Operation::Create("a")],
    };
    list.extend((0..400).map(|_| mix.next(&mut random)));
    if of_discards.below(2) == 0 {
        for _ in 0..80 {
            list.insert(of_discards.below(list.len() as u64 + 1) as usize, Operation::Discard);
        }
    }
    // A file system whose files have homes, which change.
    let mut of_homes = Random::new(seed.rotate_left(8));
    if of_homes.one_in(4) {
        setting = setting.with_memory_homes();
        for _ in 0..60 {
            list.insert(of_homes.below(list.len() as u64 + 1) as usize, Mix::of_homes(&mut of_homes));
        }
    }
    let operations = list.len() as u64;
    match std::panic::catch_unwind(|| run(&setting, &list, seed).map(|harness| harness.refused_for_space)) {
        Ok(Ok(refused)) => Ok(Compared { operations, refused }),
        other => {
            let list = shrink(&setting, list, seed);
            let shown = format!("{list:?}").replace(&format!("{LONG:?}"), "LONG");
            Err(format!("TANDEMFS_SEED={seed} TANDEMFS_ROUNDS=1\n{other:?}\n{setting:?}\n{:?}\n{shown}", fails(&setting, &list, seed)))
        }
    }
}

//! The file system on the emulated drive with firmware, instead of the crash harness's memory device: write log, cleaning, translation
//! layer and garbage collection below, the drive's transactions above. The power fails at random steps of the drive's memory and flash,
//! also while the drive is opened and the file system is mounted again. The result is correct if the tree is one that the oracle of
//! `explore.rs` allows and `tandemfs_check` finds nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tandemfs_check::{CheckOptions, check};
use tandemfs_crash::{
    Harness, MemoryDevice, Mix, Model, Operation, PREPARATION, Random, Setting, Tree, mount_device, rounds_or, seed_or, stay_on_one_cpu,
};
use tandemfs_device::{BlockRequest, Device, Drive, DriveCounts, PersistenceDomain};
use tandemfs_emulator::mutant::{self, Mutant};
use tandemfs_emulator::{DriveInMemory, ModelOptions};
use tandemfs_format::{SECTOR_BYTES, Sector};
use tandemfs_fs::{Error, FileSystem, FormatOptions, MountOptions, make_file_system};

/// Operations of a workload.
const OPERATIONS: usize = 25;

/// A small log that is cleaned all the time, a TxLog that fills, few spare blocks.
fn new_drive(setting: &Setting) -> DriveInMemory {
    let chosen = ModelOptions {
        write_log_bytes: Some(512 << 10),
        transaction_log_bytes: Some(256),
        channel_count: Some(1),
        over_provisioning_percent: Some(3),
        ..ModelOptions::default()
    };
    let drive = DriveInMemory::new(setting.memory_bytes, setting.block_zone_bytes, &chosen, 16).expect("a drive");
    // It was in use before: every page is somewhere, and all over the flash there are pages of no use, so that blocks are collected at once.
    let device = drive.open().expect("opened");
    let pages = device.description().block_window_bytes() / SECTOR_BYTES as u64;
    let mut random = Random::new(1);
    for number in 0..pages + 2000 {
        let sector = Sector::new(if number < pages { number } else { random.below(pages) });
        let mut requests = [BlockRequest::Write { sector, buffer: (&[0xdd; SECTOR_BYTES]).into() }];
        device.block_path().transfer(&mut requests, &mut || ()).expect("written");
    }
    drive
}

fn mounted(drive: &DriveInMemory, options: &MountOptions) -> Result<(Arc<dyn Device>, FileSystem), Error> {
    let device = drive.open().map_err(Error::Device)?;
    let fs = mount_device(Arc::clone(&device), options)?;
    Ok((device, fs))
}

fn harness(fs: FileSystem, setting: &Setting, model: Model) -> Harness {
    // The harness works on `fs` alone: operations that take its own device are left out.
    let none = MemoryDevice::new(setting.memory_bytes, setting.block_zone_bytes, setting.domain);
    Harness::over(none, fs, &setting.mount, model).with_write_back_cache(setting.write_back_cache)
}

/// A drive with a small tree on it, its power cut off.
fn prepare(setting: &Setting) -> Result<(DriveInMemory, Model), String> {
    let drive = new_drive(setting);
    let device = drive.open().map_err(|error| error.to_string())?;
    make_file_system(&Drive::new(device), &FormatOptions { force: true, ..setting.format.clone() }).map_err(|error| error.to_string())?;
    let (_device, fs) = mounted(&drive, &setting.mount).map_err(|error| error.to_string())?;
    let mut harness = harness(fs, setting, Model::default());
    PREPARATION.iter().try_for_each(|operation| harness.apply(operation))?;
    Ok((drive.copy(), harness.model))
}

#[derive(Debug, Default)]
struct Done {
    cuts_within: u64,
    cuts_between: u64,
    cuts_in_recovery: u64,
    counts: DriveCounts,
}

/// One workload, cut at a random step of it.
fn run(base: &DriveInMemory, model: &Model, setting: &Setting, seed: u64, done: &mut Done) -> Result<(), String> {
    let mut random = Random::new(seed);
    let drive = base.copy();
    let (device, fs) = mounted(&drive, &setting.mount).map_err(|error| format!("the first mount: {error}"))?;
    let mut harness = harness(fs, setting, model.clone());
    let mix = Mix::draw(&mut random, setting.block_zone_bytes);
    let parts = (0..OPERATIONS).flat_map(|_| mix.next(&mut random).parts()).collect::<Vec<_>>();
    // Most steps copy bytes, so that most operations are thousands of them.
    let limit = [300, 5000, 20_000, 150_000][random.below(4) as usize];
    drive.cut_after(Some(1 + random.below(limit)));
    let mut allowed = vec![harness.model.tree()];
    let mut last = None;
    for operation in parts.iter().filter(|operation| !matches!(operation, Operation::Crash | Operation::Remount)) {
        let before = harness.model.tree();
        let within = harness.model.allowed(operation);
        let answered = harness.apply(operation);
        last = Some(*operation);
        let after = harness.model.tree();
        if drive.is_off() {
            // An operation that the cut refused may have been done in part; one that was answered is done.
            let is_answered = answered.is_ok() && after != before;
            done.cuts_within += u64::from(!is_answered);
            done.cuts_between += u64::from(is_answered);
            allowed = if is_answered { vec![after] } else { within };
            break;
        }
        answered?;
        allowed = vec![after];
    }
    let counts = device.counts().unwrap_or_default();
    done.counts = DriveCounts { firmware: done.counts.firmware.plus(&counts.firmware), flash: done.counts.flash.plus(&counts.flash) };
    drive.cut_after(Some(0));
    drop((harness, device));

    let told = |what: String| format!("seed {seed}, cut in {last:?}: {what}");
    for _ in 0..random.below(3) {
        drive.cut_after(Some(random.below(6000)));
        let result = mounted(&drive, &setting.mount_again(&mut random)).map(drop);
        if let (Err(error), false) = (&result, drive.is_off()) {
            return Err(told(format!("a mount that nobody cut: {error}")));
        }
        done.cuts_in_recovery += u64::from(drive.is_off());
        drive.cut_after(Some(0));
    }
    drive.cut_after(None);
    let (device, fs) = mounted(&drive, &setting.mount_again(&mut random)).map_err(|error| told(format!("mount: {error}")))?;
    let tree = Tree::read(&fs).map_err(told)?;
    if !allowed.contains(&tree) {
        let differences: Vec<String> = allowed.iter().filter_map(|allowed| tree.difference(allowed)).collect();
        return Err(told(format!("the tree is none of {} allowed: {}", allowed.len(), differences.join("; or "))));
    }
    fs.unmount().map_err(|error| told(format!("unmount: {error}")))?;
    drop((fs, device));
    let device = drive.open().map_err(|error| told(error.to_string()))?;
    let report = check(&Drive::new(device), &CheckOptions { threads: 1, ..CheckOptions::default() }, &mut |_| {});
    let report = report.map_err(|error| told(error.to_string()))?;
    match report.findings.first() {
        None => Ok(()),
        Some(finding) => Err(told(format!("check: {finding:?}"))),
    }
}

/// What a bug of the drive does to the file system on it.
#[test]
fn deliberate_bugs_of_the_drive_are_caught() {
    stay_on_one_cpu().expect("pinned");
    let bugs = [
        Mutant::UncommittedKept,
        Mutant::EmptiedBeforeFlush,
        Mutant::TransactionLogEmptiedEarly,
        Mutant::TransactionLogKept,
        Mutant::TailBeforePages,
        Mutant::DeadPageRevived,
        Mutant::BlockReadNotMerged,
    ];
    let mut missed = vec![];
    for bug in bugs {
        let found = settings().into_iter().find_map(|setting| {
            mutant::select(Mutant::None);
            let (base, model) = prepare(&setting).unwrap_or_else(|what| panic!("{what}"));
            mutant::select(bug);
            (1..40).find_map(|seed| {
                let run = || run(&base, &model, &setting, seed, &mut Done::default());
                catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("a panic".into())).err()
            })
        });
        mutant::select(Mutant::None);
        println!("{bug:?}: {found:.200?}");
        if found.is_none() {
            missed.push(bug);
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

fn settings() -> Vec<Setting> {
    let small = |block_bytes| Setting::small(PersistenceDomain::Adr, block_bytes).with_firmware();
    vec![small(4 << 10), small(64 << 10), small(64 << 10).relaxed(), Setting::small(PersistenceDomain::Adr, 4 << 10).with_idle_firmware()]
}

#[test]
fn a_power_failure_at_any_step_of_the_drive_leaves_a_tree_that_is_allowed() {
    stay_on_one_cpu().expect("pinned");
    let first = seed_or(1);
    println!("TANDEMFS_SEED={first}");
    for setting in settings() {
        let (base, model) = prepare(&setting).unwrap_or_else(|what| panic!("{what}"));
        let mut done = Done::default();
        for seed in first..first + rounds_or(40) {
            run(&base, &model, &setting, seed, &mut done).unwrap_or_else(|what| panic!("TANDEMFS_SEED={seed} {setting:?}: {what}"));
        }
        println!("{:?}, blocks of {}: {done:?}", setting.mount.engine, setting.format.block_bytes);
        assert!(
            done.cuts_within > rounds_or(40) / 4 && done.counts.firmware.log_appends > 1000 && done.counts.flash.pages_moved > 100,
            "{done:?}"
        );
    }
}

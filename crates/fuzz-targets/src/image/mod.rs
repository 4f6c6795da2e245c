//! Whole images: the input changes a valid image, with or without recomputed checksums. Then `check`, dump, both kinds of mount and repair
//! examine it.
//!
//! [IM1] Nothing panics or hangs, and no allocation depends on a number that the image claims.
//! [IM2] If `check` finds nothing, both kinds of mount work, all data can be read, changes succeed, and `check` finds nothing afterwards.
//! [IM3] If a mount or a read fails, `check` has reported a finding.
//! [IM4] Repair of a consistent image changes nothing, and a second check agrees with the repair's report. An image that is consistent
//!       after a repair can be mounted and changed. Otherwise an image that could be mounted read-only still can. One that could be mounted
//!       for writing still can, unless that mount had relied on saved maps (a repair drops them, and rebuilding them reads all metadata).

mod anatomy;
mod mutation;
mod shapes;
mod tour;

use std::collections::BTreeSet;
use std::sync::Arc;

use tandemfs_check::{CheckOptions, Dump, Finding, Report, check};
use tandemfs_crash::MemoryDevice;
use tandemfs_device::Drive;
use tandemfs_format::superblock::SuperblockError;
use tandemfs_fs::{Error, FileSystem, MountOptions};

use crate::Input;
use anatomy::Anatomy;

const OUTPUT_BYTES_MAX: usize = 8 << 20;

/// The first byte chooses the shape, the second whether checksums are recomputed (mostly) and the mount's memory; then changes follow.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let shapes = shapes::all();
    let shape = &shapes[input.below(shapes.len())];
    let flags = input.byte();
    let mut anatomy = Anatomy::of(shape);
    mutation::apply(&mut anatomy, &mut input, flags & 3 != 3);
    let memory_bytes = if flags & 4 == 0 { 4 << 20 } else { 256 << 10 };
    examine(&anatomy.device, memory_bytes);
}

/// A device of one of the shapes.
pub(crate) fn device(choice: usize) -> MemoryDevice {
    let shapes = shapes::all();
    shapes[choice % shapes.len()].anatomy.device.fork()
}

pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let whole = (0..shapes::all().len() as u8).map(|shape| vec![shape, 0]);
    whole.chain(mutation::examples()).collect()
}

fn inspect(device: &MemoryDevice, repair: bool) -> Result<Report, String> {
    let options = CheckOptions { repair, threads: 1, findings_max: 10_000, ..CheckOptions::default() };
    check(&Drive::new(Arc::new(device.clone())), &options, &mut |_| {}).map_err(|error| error.to_string())
}

fn mount(device: &MemoryDevice, read_only: bool, memory_bytes: u64) -> Result<FileSystem, Error> {
    FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions { read_only, memory_bytes, ..MountOptions::default() })
}

/// The sentences of a report.
fn said(report: &Result<Report, String>) -> Vec<String> {
    match report {
        Ok(report) => report.findings.iter().map(ToString::to_string).collect(),
        Err(refusal) => vec![refusal.clone()],
    }
}

/// Inodes of which an earlier repair gave up ranges: these cannot be read.
fn lost_inodes(report: &Report) -> BTreeSet<u64> {
    report.lost_before.iter().map(|range| range.inode).collect()
}

/// Runs all examinations of an image, and checks that their results agree.
pub(crate) fn examine(device: &MemoryDevice, memory_bytes: u64) {
    let report = inspect(device, false);
    let whole = report.as_ref().is_ok_and(Report::is_consistent);
    let findings = said(&report);
    let lost = report.as_ref().map(lost_inodes).unwrap_or_default();
    dump(device);

    let mut readable = false;
    match mount(&device.fork(), true, memory_bytes) {
        Ok(fs) => {
            readable = true;
            if let Err(what) = tour::read(&fs, &lost) {
                assert!(!whole, "check finds nothing, reading fails: {what}");
            }
            fs.unmount().unwrap_or_else(|error| panic!("unmounting a read-only mount: {error}"));
        }
        Err(error) => assert!(!whole, "check finds nothing, a read-only mount says: {error}"),
    }

    let mountable = work(&device.fork(), memory_bytes, whole, &findings, &lost);
    // The image is marked clean but has journal records: a repair applies them, with any effect.
    let contradicts =
        |report: &Report| report.findings.iter().any(|found| matches!(found.finding, Finding::RecordAfterCleanUnmount { .. }));
    let (clean, contradicts) = report.map_or((true, true), |report| (report.clean, contradicts(&report)));
    repair(device, whole, readable && !contradicts, mountable && !clean, memory_bytes);
}

fn dump(device: &MemoryDevice) {
    let drive = Drive::new(Arc::new(device.clone()));
    let Ok(dump) = Dump::open(&drive) else { return };
    let mut out = Vec::new();
    for number in 0..24 {
        drop(dump.inode(number, &mut out));
    }
    drop((dump.superblock(&mut out), dump.segments(&mut out), dump.journal(&mut out), dump.tree("/", &mut out)));
    assert!(out.len() < OUTPUT_BYTES_MAX, "{} B of output", out.len());
}

/// Mounts for writing, makes changes, unmounts and checks. Returns whether the mount worked.
fn work(device: &MemoryDevice, memory_bytes: u64, whole: bool, findings: &[String], lost: &BTreeSet<u64>) -> bool {
    let fs = match mount(device, false, memory_bytes) {
        Ok(fs) => fs,
        // An image that this build may only read is consistent but cannot be mounted for writing.
        Err(Error::Superblock { source: SuperblockError::WriteFeatures { .. }, .. }) => return false,
        Err(error) => {
            assert!(!whole, "check finds nothing, mount says: {error}");
            return false;
        }
    };
    let worked = tour::read(&fs, lost).and_then(|tree| tour::work(&fs, &tree, lost));
    let unmounted = fs.unmount();
    drop(fs);
    let after = said(&inspect(device, false));
    if whole {
        worked.unwrap_or_else(|what| panic!("check finds nothing, work fails: {what}"));
        unmounted.unwrap_or_else(|error| panic!("check finds nothing, unmount fails: {error}"));
        assert!(after.is_empty(), "check found nothing before the work, but after it: {after:?}");
    } else {
        assert!(!findings.is_empty(), "nothing said, and not whole");
    }
    true
}

fn repair(device: &MemoryDevice, whole: bool, readable: bool, mountable: bool, memory_bytes: u64) {
    let copy = device.fork();
    let Ok(repaired) = inspect(&copy, true) else { return };
    if whole {
        assert!(repaired.repaired.is_empty() && repaired.is_consistent(), "repaired what was whole: {:?}", repaired.repaired);
        assert!(copy.zones() == device.zones(), "repair of what was whole has written");
        return;
    }
    let again = inspect(&copy, false).unwrap_or_else(|error| panic!("after a repair nothing can be checked: {error}"));
    let left = |report: &Report| report.findings.iter().map(|located| located.finding.clone()).collect::<Vec<_>>();
    let (told, found) = (left(&repaired), left(&again));
    assert!(
        told.len() == found.len() && found.iter().all(|finding| told.contains(finding)),
        "repair left {told:?}, a second check finds {found:?}"
    );
    let mended: Vec<String> = repaired.repaired.iter().take(3).map(ToString::to_string).collect();
    let whole = again.is_consistent();
    if let Err(error) = mount(&copy.fork(), true, memory_bytes) {
        assert!(!readable && !whole, "after a repair ({mended:?}) that left {found:?} a read-only mount says: {error}");
    }
    let fs = match mount(&copy, false, memory_bytes) {
        Ok(fs) => fs,
        Err(error) => {
            assert!(!mountable && !whole, "after a repair ({mended:?}) that left {found:?} the mount says: {error}");
            return;
        }
    };
    let lost = lost_inodes(&again);
    let worked = tour::read(&fs, &lost).and_then(|tree| tour::work(&fs, &tree, &lost));
    let unmounted = fs.unmount();
    if whole {
        worked.unwrap_or_else(|what| panic!("repaired ({mended:?}) and whole, but work fails: {what}"));
        unmounted.unwrap_or_else(|error| panic!("repaired ({mended:?}) and whole, but unmount fails: {error}"));
        let after = said(&inspect(&copy, false));
        assert!(after.is_empty(), "repaired ({mended:?}) and whole, but after work check finds {after:?}");
    }
}

//! A scrub compared with `tandemfs check`: both find the same damage of the device, and faults during a scrub stop nothing.

mod support;

use std::sync::Arc;

use tandemfs_check::{CheckOptions, check};
use tandemfs_crash::{Access, FaultDevice, Harness, MemoryDevice, Operation, PREPARATION, Setting, Tree, chosen, mount, mount_device};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_fs::{FileSystem, MountOptions, Scrub};

use Operation::*;

const LINE: usize = 64;
const SECTOR: usize = 4096;
/// Superblocks, segment table, journal, saved maps; behind them everything belongs to inodes.
const FIXED_BYTES: usize = 2 << 20;

fn scrub(fs: &FileSystem) -> Scrub {
    let mut scrub = fs.scrub();
    while fs.scrub_step(&mut scrub) {}
    scrub
}

/// An image with everything in it, unmounted cleanly.
fn image() -> (MemoryDevice, MountOptions) {
    let setting = Setting::small(PersistenceDomain::Adr, 64 << 10);
    let mut harness = Harness::new(setting.format(), &setting.mount, tandemfs_crash::Model::default()).expect("mounts");
    for operation in PREPARATION.iter().chain(support::WORKLOAD) {
        harness.apply(operation).expect("prepared");
    }
    for operation in [Scatter("b", 70_000, 12, 5000, 90, 3), Write("b", 400_000, 140_000, 9), CreateMany("", 0, 150)] {
        harness.apply(&operation).expect("prepared");
    }
    harness.fs.unmount().expect("unmounts");
    (harness.device, setting.mount)
}

/// One flipped bit in each of many lines and sectors: where `check` of the device says something, a scrub of the mounted device says it of
/// that very place, and where `check` is silent so is the scrub.
#[test]
fn a_scrub_and_a_check_find_the_same_damage() {
    let (device, options) = image();
    let zones = device.zones();
    let is_used = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    let lines: Vec<usize> =
        (FIXED_BYTES / LINE..zones.memory.len() / LINE).filter(|line| is_used(&zones.memory[line * LINE..][..LINE])).collect();
    let sectors: Vec<usize> =
        (0..zones.blocks.len() / SECTOR).filter(|sector| is_used(&zones.blocks[sector * SECTOR..][..SECTOR])).collect();
    let (mut found, mut silent) = (0, 0);
    let places = [(true, LINE, &lines, 260), (false, SECTOR, &sectors, 60)];
    for (in_memory, unit, used, most) in places {
        for index in chosen(if in_memory { "lines" } else { "sectors" }, used.len() as u64, most) {
            let start = used[index as usize] * unit;
            let what = format!("a bit at {start:#x} of the {} zone", if in_memory { "memory" } else { "block" });
            let damaged = device.fork();
            damaged.damage(|zones| if in_memory { zones.memory[start + 9] ^= 4 } else { zones.blocks[start + 9] ^= 4 });
            let drive = Drive::new(Arc::new(damaged.clone()));
            let report = check(&drive, &CheckOptions { threads: 1, ..CheckOptions::default() }, &mut |_| {});
            let fs = match mount(&damaged, &options) {
                Ok(fs) => fs,
                Err(error) => {
                    assert!(report.is_err() || report.is_ok_and(|report| !report.findings.is_empty()), "{what}: {error}");
                    continue;
                }
            };
            let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
            let scrubbed = scrub(&fs);
            assert_eq!(
                report.findings.is_empty(),
                scrubbed.findings().is_empty(),
                "{what}: check {:?}, scrub {:?}",
                report.findings,
                scrubbed.findings()
            );
            if report.findings.is_empty() {
                silent += 1;
                continue;
            }
            found += 1;
            // A line of checksums has none itself: its sectors are what does not fit.
            let covers = |finding: &tandemfs_fs::ScrubFinding| {
                finding.device_offset <= start as u64 && (start as u64) < finding.device_offset + finding.length
            };
            let sectors_instead = |finding: &tandemfs_fs::ScrubFinding| finding.kind == tandemfs_fs::ScrubbedKind::Sectors;
            assert!(
                scrubbed.findings().iter().any(|finding| covers(finding) || (in_memory && sectors_instead(finding))),
                "{what}: {:?}",
                scrubbed.findings()
            );
            assert_eq!(fs.stopped(), None, "{what}");
        }
    }
    println!("{found} damaged places found by both, {silent} of no meaning to either");
    assert!(found > 100, "{found}");
}

/// Every access of a scrub fails, once or permanently: the scrub still completes, and the file system still works.
#[test]
fn a_fault_during_a_scrub_stops_nothing() {
    let (prepared, options) = image();
    for access in [Access::Load, Access::Read] {
        let counted = Arc::new(FaultDevice::counting(prepared.fork()));
        let fs = mount_device(counted.clone(), &options).expect("mounts");
        let before = counted.count(access);
        let whole = scrub(&fs);
        assert_eq!(whole.findings(), []);
        let count = counted.count(access) - before;
        assert!(count > 2, "{access:?}: {count}");
        let expected = Tree::read(&fs).expect("reads");
        for lasting in [false, true] {
            let mut findings = 0;
            for index in chosen(&format!("{access:?} of a scrub"), count, 60) {
                let device = prepared.fork();
                let faulty = Arc::new(FaultDevice::new(device.clone(), access, before + index, lasting));
                let fs = mount_device(faulty.clone(), &options).expect("mounts");
                let scrubbed = scrub(&fs);
                assert!(faulty.hit(), "{access:?} {index}");
                findings += scrubbed.findings().len();
                assert!(!lasting || !scrubbed.findings().is_empty(), "{access:?} {index} for good");
                assert!(scrubbed.findings().iter().all(|finding| finding.cause.contains("fault device")), "{:?}", scrubbed.findings());
                assert_eq!(fs.stopped(), None);
                if !lasting {
                    assert_eq!(scrub(&fs).findings(), [], "{access:?} {index}: the fault is gone");
                    assert_eq!(Tree::read(&fs).expect("reads").difference(&expected), None);
                    fs.unmount().expect("unmounts");
                }
            }
            println!("{access:?}, lasting: {lasting}: {findings} findings");
        }
    }
}

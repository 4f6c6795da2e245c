//! Deliberate bugs of in-place writes and of file pages, each caught; and cuts of such writes, which show that mixed writes are atomic
//! (ByteFS §4.6).
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use support::bugs::{Catcher, alone, is_caught, run};
use tandemfs_crash::{Effort, Explorer, Harness, Model, Operation, Scene, Setting, fill, mount};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Kept, NewInode, ReadOptions, WriteOptions};

use Operation::*;

const BLOCK: u64 = 64 << 10;

fn setting(domain: PersistenceDomain) -> Setting {
    Setting { block_zone_bytes: 16 << 20, ..Setting::small(domain, BLOCK as u32).with_firmware() }
}

/// Operations beside the model, and the content of every file after a remount.
fn agree(setting: &Setting, operations: &[Operation]) -> Result<(), String> {
    let mut harness = Harness::new(setting.format(), &setting.mount, Model::default())?.with_write_back_cache(setting.write_back_cache);
    for operation in operations {
        harness.apply(operation)?;
    }
    harness.compare()
}

/// Overwrites in place, over logs, and growth over a stale tail.
fn beside_the_model() -> Result<(), String> {
    let operations = [
        Create("f"),
        Write("f", 0, 2 * BLOCK as u32, 1),
        Write("f", 1000, 100, 2),  // in place
        Write("f", 5000, 600, 3),  // a log
        Write("f", 5100, 50, 4),   // in it
        Write("f", 4990, 20, 5),   // across its start
        Truncate("f", 70_000),     // leaves bytes behind the end
        Write("f", 70_100, 10, 6), // grows over them
    ];
    agree(&setting(PersistenceDomain::Gpf), &operations)
}

/// Pages that came back, were cut off, and come back as they were; then the drive alone has them.
fn pages_that_come_back() -> Result<(), String> {
    let block = BLOCK as u32;
    let operations = [
        Create("f"),
        Write("f", 0, block, 1),
        Write("f", 100, 10, 2),
        Truncate("f", 10),
        Truncate("f", BLOCK),
        Write("f", 0, block, 1),
        Remount,
    ];
    agree(&setting(PersistenceDomain::Gpf).relaxed(), &operations)
}

/// A line that lies half below a log, where the page is at hand.
fn line_below_a_log() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Gpf);
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let failed = |error: tandemfs_fs::Error| error.to_string();
    let inode = fs.create(InodeNumber::ROOT, b"f", &new).map_err(failed)?.inode;
    let mut content = fill(1, BLOCK as usize);
    let page = |bytes: &mut [u8]| fs.read_with(inode, 4096, bytes, ReadOptions { kept: Kept::ToCompare });
    let options = WriteOptions::default();
    fs.write(inode, 0, &content, options).map_err(failed)?;
    for (offset, bytes) in [(6000, fill(2, 600)), (6610, fill(3, 10))] {
        fs.write(inode, offset as u64, &bytes, options).map_err(failed)?;
        content[offset..offset + bytes.len()].copy_from_slice(&bytes);
        page(&mut [0; 4096]).map_err(failed)?;
    }
    if fs.statistics().work.in_place_lines != 1 {
        return Err("the line did not go in place".into());
    }
    let mut found = vec![0; BLOCK as usize];
    fs.read(inode, 0, &mut found).map_err(failed)?;
    if found == content { Ok(()) } else { Err("other bytes".into()) }
}

/// Every cut of a small write, of one over two sectors, and of one whose ends go in place around a block that is redirected.
fn cuts(domain: PersistenceDomain) -> Result<(), String> {
    let preparation = vec![Create("f"), Write("f", 0, 4 * BLOCK as u32, 1)];
    let scene = Scene { preparation, ..Scene::small(&setting(domain)) };
    let effort = Effort { states: 24, recovery_one_in: 60, recovery_depth: 1, recovery_states: 4, work_one_in: 10, empty_one_in: 0 };
    let mut explorer = Explorer::new(&scene, effort, 3)?;
    for write in [Write("f", 1000, 100, 2), Write("f", 4090, 300, 3), Write("f", BLOCK - 100, BLOCK as u32 + 300, 4)] {
        explorer.explore(&[write], 0)?;
    }
    // Twice the same lines: the older version never comes back.
    explorer.explore(&[Write("f", 1000, 100, 2), Write("f", 1010, 60, 5)], 1)
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    let catchers: [Catcher; 5] =
        [beside_the_model, pages_that_come_back, line_below_a_log, || cuts(PersistenceDomain::Adr), || cuts(PersistenceDomain::Gpf)];
    for (index, catcher) in catchers.into_iter().enumerate() {
        if let Err(what) = run(Mutant::None, catcher) {
            panic!("catcher {index}: {what}");
        }
    }
}

#[test]
fn r18_checksum_not_renewed() {
    is_caught(Mutant::ChecksumNotRenewed, &[beside_the_model, || cuts(PersistenceDomain::Gpf)]);
}

#[test]
fn in_place_over_log() {
    is_caught(Mutant::InPlaceOverLog, &[beside_the_model]);
}

#[test]
fn r13_stale_tail_in_place() {
    is_caught(Mutant::StaleTailInPlace, &[beside_the_model]);
}

#[test]
fn in_place_before_commit() {
    is_caught(Mutant::InPlaceBeforeCommit, &[|| cuts(PersistenceDomain::Adr), || cuts(PersistenceDomain::Gpf)]);
}

#[test]
fn old_line_under_log() {
    is_caught(Mutant::OldLineUnderLog, &[line_below_a_log]);
}

#[test]
fn fp2_page_outlives_change() {
    is_caught(Mutant::PageOutlivesChange, &[pages_that_come_back]);
}

//! Long writes over many blocks with data logs: a transaction has room for the leaves of all of them, or the rest takes the block path ([LW1] of
//! `crates/fs/src/data/plan.rs`).

mod support;

use support::bugs::{Catcher, alone, find_nothing, is_caught};
use tandemfs_crash::{Setting, check_device, content, fill, mount};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{MountOptions, NewInode, Threshold, WriteOptions};

const MIB: usize = 1 << 20;

/// Blocks with as many logs as their leaves hold, all of which one write replaces by logs.
fn over_full_leaves(block_bytes: u32, logs: usize) -> Result<(), String> {
    let setting = Setting {
        memory_bytes: 64 << 20,
        block_zone_bytes: 64 << 20,
        mount: MountOptions { threshold: Threshold::Bytes(1 << 20), ..Setting::small(PersistenceDomain::Gpf, block_bytes).mount },
        ..Setting::small(PersistenceDomain::Gpf, block_bytes)
    };
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let failed = |error: tandemfs_fs::Error| error.to_string();
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).map_err(failed)?.inode;
    let mut expected = fill(1, MIB);
    fs.write(file, 0, &expected, WriteOptions::default()).map_err(failed)?;
    let mut write = |at: usize, seed: u64, bytes: usize| {
        let bytes = fill(seed, bytes);
        expected[at..at + bytes.len()].copy_from_slice(&bytes);
        fs.write(file, at as u64, &bytes, WriteOptions::default()).map_err(failed)
    };
    for block in 0..MIB / block_bytes as usize {
        for log in 0..logs {
            write(block * block_bytes as usize + log * block_bytes as usize / logs, (block * logs + log) as u64, 16)?;
        }
    }
    write(0, 7, MIB - 64)?;
    write(3, 8, MIB - 100)?;
    if content(&fs, file).map_err(failed)? != expected {
        return Err("other bytes than were written".into());
    }
    fs.unmount().map_err(failed)?;
    check_device(&device, false).map(drop)
}

const CATCHERS: [Catcher; 3] = [|| over_full_leaves(4096, 16), || over_full_leaves(8192, 16), || over_full_leaves(4096, 10)];

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    find_nothing(&CATCHERS);
    find_nothing(&[|| over_full_leaves(4096, 5), || over_full_leaves(16 << 10, 16), || over_full_leaves(64 << 10, 16)]);
}

#[test]
fn leaves_unbounded() {
    is_caught(Mutant::LeavesUnbounded, &CATCHERS);
}

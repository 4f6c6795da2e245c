//! Metadata that the device cannot read: what is removed or unmounted meanwhile, mounts that only read, and writes that a drive has lost.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::sync::Arc;

use support::bugs::{alone, find_nothing, is_caught};
use tandemfs_crash::{FaultDevice, MemoryDevice, Place, Setting, check_device, content, fill, mount, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{FileSystem, MountOptions, NewInode, WriteOptions};

/// Superblocks, segment table, journal and saved maps lie before it.
const FIXED_BYTES: u64 = 2 << 20;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn setting() -> Setting {
    Setting::small(PersistenceDomain::Process, 4096)
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(text)
}

/// Files with mappings and logs.
fn files(fs: &FileSystem) -> Result<(), String> {
    for (index, name) in [b"one", b"two"].into_iter().enumerate() {
        let file = create(fs, name)?;
        for at in [0, 100_000, 300_000] {
            fs.write(file, at, &fill(at + index as u64, 20_100), WriteOptions::default()).map_err(text)?;
        }
    }
    Ok(())
}

/// Pages of metadata that something loads from a device.
fn loaded(device: &MemoryDevice, options: &MountOptions, work: impl Fn(&FileSystem) -> Result<(), String>) -> Result<Vec<u64>, String> {
    let counting = Arc::new(FaultDevice::counting(device.fork()));
    let fs = mount_device(counting.clone(), options).map_err(text)?;
    work(&fs)?;
    let mut pages: Vec<u64> = Vec::new();
    for place in counting.take_touched() {
        if let Place::Memory(bytes) = place {
            pages.extend((bytes.start / 4096..bytes.end.div_ceil(4096)).filter(|page| page * 4096 >= FIXED_BYTES));
        }
    }
    pages.sort_unstable();
    pages.dedup();
    Ok(pages)
}

/// [SA5]: an open file is removed, of whose mapping a line cannot be read. The unmount succeeds, also if it is called again, and so does the
/// next mount that writes.
fn removed() -> Result<(), String> {
    let setting = setting();
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    files(&fs)?;
    fs.unmount().map_err(text)?;
    let remove = |fs: &FileSystem| -> Result<(), String> {
        let file = fs.lookup(InodeNumber::ROOT, b"one").map_err(text)?.inode;
        fs.unlink(InodeNumber::ROOT, b"one").map_err(text)?;
        fs.forget(file, 1);
        Ok(())
    };
    let mut tried = 0;
    for page in loaded(&device, &setting.mount, remove)? {
        let inner = device.fork();
        let faulty = Arc::new(FaultDevice::at(inner.clone(), Place::Memory(page * 4096..page * 4096 + 64), false));
        let Ok(fs) = mount_device(faulty.clone(), &setting.mount) else { continue };
        if remove(&fs).is_err() {
            continue; // the name or the inode cannot be read
        }
        tried += u64::from(faulty.hit());
        fs.unmount().map_err(|error| format!("page {page}: {error}"))?;
        fs.unmount().map_err(|error| format!("page {page}, once more: {error}"))?;
        let fs = mount_device(faulty, &setting.mount).map_err(|error| format!("page {page}, the next mount: {error}"))?;
        let other = fs.lookup(InodeNumber::ROOT, b"two").map_err(text)?.inode;
        content(&fs, other).map_err(text)?;
        fs.unmount().map_err(text)?;
        check_device(&inner, false).map_err(|found| format!("page {page}: {found}"))?;
    }
    if tried == 0 { Err("no line of a mapping was tried".into()) } else { Ok(()) }
}

/// [RE5]: after a crash, whichever line of a page cannot be read that records of the journal change: a mount that only reads serves the rest.
fn only_read() -> Result<(), String> {
    let setting = setting();
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    files(&fs)?;
    fs.checkpoint().map_err(text)?;
    files_again(&fs)?;
    let device = device.fork();
    drop(fs);
    let options = MountOptions { read_only: true, ..setting.mount.clone() };
    let mut served = 0;
    let pages = loaded(&device, &options, |_| Ok(()))?;
    for page in &pages {
        let faulty = Arc::new(FaultDevice::at(device.fork(), Place::Memory(page * 4096 + 63 * 64..page * 4096 + 4096), false));
        let fs = mount_device(faulty, &options).map_err(|error| format!("page {page}: {error}"))?;
        let found = |name: &[u8]| fs.lookup(InodeNumber::ROOT, name).and_then(|found| content(&fs, found.inode)).is_ok();
        served += u64::from(found(b"one") || found(b"two"));
    }
    if served * 2 < pages.len() as u64 { Err(format!("files could be read with {served} of {} pages", pages.len())) } else { Ok(()) }
}

/// Changes of many pages, which are in the journal alone.
fn files_again(fs: &FileSystem) -> Result<(), String> {
    for name in [b"one", b"two"] {
        let file = fs.lookup(InodeNumber::ROOT, name).map_err(text)?.inode;
        fs.write(file, 50_000, &fill(9, 20_100), WriteOptions::default()).map_err(text)?;
    }
    create(fs, b"three").map(drop)
}

/// [SC2]: a copy of the superblock from which a drive has lost writes verifies, and is a finding all the same.
fn lost_writes() -> Result<(), String> {
    let setting = setting();
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let findings = |fs: &FileSystem| {
        let mut scrub = fs.scrub();
        while fs.scrub_step(&mut scrub) {}
        scrub.findings().len()
    };
    let old = device.zones();
    files(&fs)?;
    fs.checkpoint().map_err(text)?;
    if findings(&fs) != 0 {
        return Err("a finding without a fault".into());
    }
    for offset in SUPERBLOCK_OFFSETS {
        let (bytes, new) = (offset as usize..offset as usize + 1024, device.zones());
        device.damage(|zones| zones.memory[bytes.clone()].copy_from_slice(&old.memory[bytes.clone()]));
        if findings(&fs) != 1 {
            return Err(format!("the copy at {offset} counts as right"));
        }
        device.damage(|zones| zones.memory[bytes.clone()].copy_from_slice(&new.memory[bytes.clone()]));
    }
    fs.unmount().map_err(text)
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    find_nothing(&[removed, only_read, lost_writes]);
}

#[test]
fn sa5_unreadable_keeps_inodes() {
    is_caught(Mutant::UnreadableKeepsInodes, &[removed]);
}

#[test]
fn re5_unreadable_refuses_readers() {
    is_caught(Mutant::UnreadableRefusesReaders, &[only_read]);
}

#[test]
fn sc2_lost_writes_unnoticed() {
    is_caught(Mutant::LostWritesUnnoticed, &[lost_writes]);
}

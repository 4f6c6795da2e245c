//! Quota: operations of several users, and what is counted of them.

use std::sync::Arc;

use tandemfs_check::{CheckOptions, Usage, check};
use tandemfs_crash::{MemoryDevice, Random, fill};
use tandemfs_device::Drive;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_format::quota::{Limit, QuotaKind};
use tandemfs_fs::{AllocateMode, Error, FileSystem, Home, NewInode, QuotaSet, RenameMode, SetAttributes, WriteOptions};

pub const FILE: u16 = file_type::REGULAR | 0o644;
pub const TREE: u16 = file_type::DIRECTORY | 0o755;
/// Nobody may exceed limits.
pub const NOBODY: fn(u64) -> bool = |_| false;

pub fn limit(soft: u64, hard: u64) -> Limit {
    Limit { soft, hard }
}

pub fn set_limits(fs: &FileSystem, kind: QuotaKind, id: u32, limits: [Limit; 3]) {
    fs.set_quota(&QuotaSet { kind, limits: Some((id, limits)), grace_seconds: None }).expect("set");
}

/// An operation for a caller who is bound by limits unless `may_exceed` says otherwise.
pub fn bound<T>(fs: &FileSystem, may_exceed: fn(u64) -> bool, operation: impl FnOnce() -> T) -> T {
    fs.bound_by_quota(0, may_exceed, operation)
}

/// Everything that is used, as the mount counts it.
pub fn counted(fs: &FileSystem) -> Vec<Usage> {
    let entries = fs.quota_entries().expect("counted").into_iter().map(|entry| Usage {
        kind: entry.kind.name(),
        id: entry.id,
        memory_bytes: entry.memory.used,
        block_bytes: entry.block.used,
        inodes: entry.inodes.used,
    });
    entries.filter(|usage| usage.memory_bytes + usage.block_bytes + usage.inodes > 0).collect()
}

/// Bytes of the memory zone, of the block zone, and inodes of an id.
pub fn usage_of(fs: &FileSystem, kind: QuotaKind, id: u32) -> [u64; 3] {
    let found = counted(fs).into_iter().find(|usage| (usage.kind, usage.id) == (kind.name(), id));
    found.map_or([0; 3], |usage| [usage.memory_bytes, usage.block_bytes, usage.inodes])
}

/// The limits that there are.
pub fn kept(fs: &FileSystem) -> Vec<(QuotaKind, u32, [Limit; 3])> {
    let entries = fs.quota_entries().expect("counted").into_iter();
    let limits = entries.map(|entry| (entry.kind, entry.id, [entry.memory.limit, entry.block.limit, entry.inodes.limit]));
    limits.filter(|(_, _, limits)| limits.iter().any(|limit| !limit.is_none())).collect()
}

/// Compares what the mount counts with what `tandemfs_check` counts anew.
///
/// # Errors
/// What differs.
pub fn compare(device: &MemoryDevice, fs: &FileSystem) -> Result<(), String> {
    let options = CheckOptions { threads: 1, data: false, ..CheckOptions::default() };
    let report = check(&Drive::new(Arc::new(device.fork())), &options, &mut |_| {}).map_err(|error| error.to_string())?;
    let (found, expected) = (counted(fs), report.usage);
    let differs = |usage: &&Usage| !expected.contains(usage);
    match found.iter().find(differs) {
        Some(wrong) => Err(format!("{wrong:?}; check counts {:?}", expected.iter().find(|it| (it.kind, it.id) == (wrong.kind, wrong.id)))),
        None if found.len() != expected.len() => Err(format!("{found:?}; check counts {expected:?}")),
        None => Ok(()),
    }
}

/// How many operations were refused for limits, and how many were done.
pub struct Counted {
    pub refused: u64,
    pub done: u64,
}

/// Operations at random on a few names; what does not fit the present state fails. `each` is called behind each one with its kind.
pub fn changes(fs: &FileSystem, random: &mut Random, count: usize, each: &mut dyn FnMut(u64)) -> Counted {
    let mut counted = Counted { refused: 0, done: 0 };
    for _ in 0..count {
        let kind = random.below(18);
        match bound(fs, NOBODY, || change(fs, random, kind)) {
            Ok(()) => counted.done += 1,
            Err(Error::QuotaExceeded { .. }) => counted.refused += 1,
            Err(Error::Damaged { .. } | Error::Device(_) | Error::Stopped { .. } | Error::WouldWait) => panic!("operation {kind}"),
            Err(_) => {}
        }
        each(kind);
    }
    counted
}

fn change(fs: &FileSystem, random: &mut Random, kind: u64) -> Result<(), Error> {
    let root = InodeNumber::ROOT;
    let directories = [None, Some(b"d0"), Some(b"d1")];
    let directory = |fs: &FileSystem, random: &mut Random| match random.pick(&directories) {
        Some(name) => fs.lookup(root, *name).map_or(root, |found| found.inode),
        None => root,
    };
    let (parent, target) = (directory(fs, random), directory(fs, random));
    let names: [&[u8]; 4] = [b"a", b"b", b"d0", b"d1"];
    let (name, other) = (*random.pick(&names), *random.pick(&names));
    // Most operations need something that is there.
    let parents = [root, parent, target];
    let there: Vec<(InodeNumber, &[u8])> = parents.iter().flat_map(|parent| names.map(|name| (*parent, name))).collect();
    let there: Vec<_> = there.into_iter().filter(|(parent, name)| fs.lookup(*parent, name).is_ok()).collect();
    let (parent, name) = if kind < 4 || there.is_empty() { (parent, name) } else { *random.pick(&there) };
    let id = |random: &mut Random| 1 + random.below(3) as u32;
    let new = |mode, random: &mut Random| NewInode { mode, uid: id(random), gid: 10 + id(random), rdev: 0, target: b"" };
    let (offset, length) = (random.below(200_000), 1 + random.below(70_000));
    let options = WriteOptions::default();
    match kind {
        0 | 1 => fs.create(parent, name, &new(FILE, random)).map(drop),
        2 => fs.create(root, names[2 + random.below(2) as usize], &new(TREE, random)).map(drop),
        3 => {
            let target = vec![b'x'; 1 + random.below(3000) as usize];
            fs.create(parent, name, &NewInode { target: &target, ..new(file_type::SYMLINK | 0o777, random) }).map(drop)
        }
        4 | 5 => fs.write(fs.lookup(parent, name)?.inode, offset, &fill(offset, length as usize), options).map(drop),
        6 => fs.write(fs.lookup(parent, name)?.inode, offset, &fill(offset, 700), options).map(drop),
        7 => {
            let size = SetAttributes { size: Some(offset), ..SetAttributes::default() };
            fs.set_attributes(fs.lookup(parent, name)?.inode, &size).map(drop)
        }
        8 => {
            let modes = [
                AllocateMode::Allocate { keep_size: true },
                AllocateMode::Zero { keep_size: false },
                AllocateMode::Punch,
                AllocateMode::Collapse,
                AllocateMode::Insert,
            ];
            let (offset, length) = (offset / 65_536 * 65_536, length.next_multiple_of(65_536));
            fs.allocate(fs.lookup(parent, name)?.inode, offset, length, *random.pick(&modes))
        }
        9 => {
            let (uid, gid) = (random.one_in(2).then(|| id(random)), random.one_in(2).then(|| 10 + id(random)));
            fs.set_attributes(fs.lookup(parent, name)?.inode, &SetAttributes { uid, gid, ..SetAttributes::default() }).map(drop)
        }
        10 if random.one_in(2) => Ok(()),
        10 => fs.unlink(parent, name),
        11 => fs.remove_directory(parent, name),
        12 => fs.rename(parent, name, target, other, *random.pick(&[RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange])),
        13 => fs.link(fs.lookup(parent, name)?.inode, target, other).map(drop),
        14 => {
            let value = vec![7; random.below(6000) as usize];
            let file = fs.lookup(parent, name)?.inode;
            match random.one_in(3) {
                true => fs.remove_extended_attribute(file, b"user.x"),
                false => fs.set_extended_attribute(file, b"user.x", &value, Default::default()),
            }
        }
        15 => fs.write_back().map(drop),
        16 => {
            let project = *random.pick(&[0, 5, 6]);
            fs.set_project_of_tree(fs.lookup(parent, name)?.inode, project, &mut || true).map(drop)
        }
        _ => match random.below(3) {
            0 => fs.rename_leaving_whiteout((parent, name), (target, other), RenameMode::Replace, (id(random), 11)),
            1 => fs.set_home(fs.lookup(parent, name)?.inode, *random.pick(&Home::ALL)),
            _ => {
                let made = fs.create_nameless(parent, &new(FILE, random), 0)?.inode;
                let written = fs.write(made, 0, &fill(1, 5000), options).map(drop);
                let named = if random.one_in(2) { fs.link(made, parent, name).map(drop) } else { Ok(()) };
                fs.forget(made, 1);
                written.and(named)
            }
        },
    }
}

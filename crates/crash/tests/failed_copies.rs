//! A write by a call to a mapped block whose copy to the mapped pages fails, so that its data logs stay over them: the block is mapped once
//! more, and the file is truncated and grows. A truncation that fails under a mapping for loads. Each store of the call fails in its turn. And
//! the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::sync::Arc;

use support::bugs::{alone, find_nothing, is_caught};
use tandemfs_crash::{Access, FaultDevice, MemoryDevice, Setting, check_device, content, fill, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Error, FileMapping, FileSystem, NewInode, SetAttributes, WriteOptions};

const BLOCK: usize = 16 << 10;
const LENGTH: usize = 3 * BLOCK;
/// Where the call writes.
const AT: usize = 5000;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(text)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: usize, bytes: &[u8]) -> Result<(), Error> {
    fs.write(file, offset as u64, bytes, WriteOptions::default()).map(drop)
}

fn set_size(fs: &FileSystem, file: InodeNumber, size: usize) -> Result<(), String> {
    fs.set_attributes(file, &SetAttributes { size: Some(size as u64), ..SetAttributes::default() }).map(drop).map_err(text)
}

/// What follows the failure: the file is mapped, and reads as `bytes`.
type Then = fn(&FileSystem, InodeNumber, FileMapping<'_>, Vec<u8>) -> Result<(), String>;

/// A file that does not lie where one huge page could map it, durable.
fn prepared(faulty: &Arc<FaultDevice>, setting: &Setting) -> Result<(FileSystem, InodeNumber, Vec<u8>), String> {
    let fs = mount_device(faulty.clone(), &setting.mount).map_err(text)?;
    write(&fs, create(&fs, b"before")?, 0, &[5; BLOCK]).map_err(text)?;
    let (file, bytes) = (create(&fs, b"f")?, fill(1, LENGTH));
    write(&fs, file, 0, &bytes).map_err(text)?;
    fs.checkpoint().map_err(text)?;
    Ok((fs, file, bytes))
}

/// A device whose store fails that comes after so many behind the mapping of the file.
fn failing(device: &MemoryDevice, setting: &Setting, writable: bool, succeed: u64) -> Result<Arc<FaultDevice>, String> {
    let counting = Arc::new(FaultDevice::counting(device.fork()));
    let (fs, file, _) = prepared(&counting, setting)?;
    let _mapping = fs.map(file, 0, LENGTH as u64, writable).map_err(text)?;
    Ok(Arc::new(FaultDevice::new(device.clone(), Access::Store, counting.count(Access::Store) + succeed, false)))
}

/// What was done before the call; none if the store has failed already, as the background thread stores when it likes.
fn unless_hit<T>(faulty: &FaultDevice, done: Result<T, String>) -> Result<Option<T>, String> {
    if faulty.hit() { Ok(None) } else { done.map(Some) }
}

/// Makes the store fail that comes after so many, amid a write to a mapped block. None if the call has made fewer. Whether its logs were left.
fn failed(succeed: u64, then: Then) -> Result<Option<bool>, String> {
    let setting = Setting::small(PersistenceDomain::Gpf, BLOCK as u32).with_memory_homes();
    let device = setting.format();
    let faulty = failing(&device, &setting, true, succeed)?;
    let Some((fs, file, mut bytes)) = unless_hit(&faulty, prepared(&faulty, &setting))? else { return Ok(Some(false)) };
    let Some(mapping) = unless_hit(&faulty, fs.map(file, 0, LENGTH as u64, true).map_err(text))? else { return Ok(Some(false)) };
    let new = fill(2, 300);
    match write(&fs, file, AT, &new) {
        Ok(()) if !faulty.hit() => return Ok(None),
        Ok(()) | Err(Error::Stopped { .. }) => return Ok(Some(false)), // somebody else's store, or one that ends all
        Err(Error::Device(_)) if fs.stopped().is_some() => return Ok(Some(false)),
        Err(Error::Device(_)) => {}
        Err(error) => return Err(text(error)),
    }
    let mut seen = vec![0; new.len()];
    mapping.load(AT as u64, &mut seen).map_err(text)?;
    let found = content(&fs, file).map_err(text)?;
    if found == bytes {
        return Ok(Some(false)); // the call has done nothing
    }
    bytes[AT..AT + new.len()].copy_from_slice(&new);
    if found != bytes {
        return Err("a part of the call is there".into());
    }
    let is_left = seen != new;
    then(&fs, file, mapping, bytes)?;
    fs.unmount().map_err(text)?;
    check_device(&device, false)?;
    Ok(Some(is_left))
}

/// Each store of the call fails in its turn.
fn each_store(then: Then) -> Result<(), String> {
    let (mut succeed, mut left) = (0, 0);
    while let Some(is_left) = failed(succeed, then).map_err(|what| format!("after {succeed} stores: {what}"))? {
        left += u64::from(is_left);
        succeed += 1;
    }
    if left > 0 { Ok(()) } else { Err(format!("none of {succeed} stores was the copy")) }
}

/// Somebody maps the file once more: its pages stay where the first mapping has them, and no other file gets them.
fn mapped_again() -> Result<(), String> {
    each_store(|fs, file, mapping, mut bytes| {
        match fs.map(file, 0, LENGTH as u64, true) {
            Err(Error::Mapped) => {}
            Ok(other) if other.extents() == mapping.extents() => {}
            Ok(_) => return Err("its pages have moved".into()),
            Err(error) => return Err(text(error)),
        }
        let (other, expected) = (create(fs, b"other")?, fill(3, 8 * BLOCK));
        write(fs, other, 0, &expected).map_err(text)?;
        let stored = fill(4, 3000);
        mapping.store(0, &stored).and_then(|()| mapping.sync(0, 3000)).map_err(text)?;
        bytes[..3000].copy_from_slice(&stored);
        if content(fs, other).map_err(text)? != expected {
            return Err("another file was stored to".into());
        }
        if content(fs, file).map_err(text)? != bytes {
            return Err("a store is not read".into());
        }
        mapping.unmap().map_err(text)?;
        let again = fs.map(file, 0, LENGTH as u64, false).map_err(text)?;
        let mut seen = vec![0; LENGTH];
        again.load(0, &mut seen).map_err(text)?;
        if seen == bytes { Ok(()) } else { Err("a later mapping shows other bytes".into()) }
    })
}

/// The file is cut within what the call wrote, or before it, and grows when it is mapped no more.
fn cut_and_grown() -> Result<(), String> {
    fn cut(fs: &FileSystem, file: InodeNumber, mapping: FileMapping<'_>, mut bytes: Vec<u8>, size: usize) -> Result<(), String> {
        set_size(fs, file, size)?;
        bytes.truncate(size);
        if content(fs, file).map_err(text)? != bytes {
            return Err(format!("it was cut to {size} and reads otherwise"));
        }
        mapping.unmap().map_err(text)?;
        set_size(fs, file, LENGTH)?;
        bytes.resize(LENGTH, 0);
        match content(fs, file).map_err(text)?.iter().zip(&bytes).position(|(found, expected)| found != expected) {
            Some(at) => Err(format!("it was cut to {size}, and has old bytes at {at} now")),
            None => Ok(()),
        }
    }
    each_store(|fs, file, mapping, bytes| cut(fs, file, mapping, bytes, 1000))?;
    each_store(|fs, file, mapping, bytes| cut(fs, file, mapping, bytes, AT + 100))
}

/// A truncation fails that has opened pages which are mapped for loads: after an unmount they have checksums.
fn closed_again() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, BLOCK as u32).with_memory_homes();
    let (mut succeed, mut failures) = (0, 0);
    loop {
        let device = setting.format();
        let faulty = failing(&device, &setting, false, succeed)?;
        succeed += 1;
        let Some((fs, file, _)) = unless_hit(&faulty, prepared(&faulty, &setting))? else { continue };
        let Some(mapping) = unless_hit(&faulty, fs.map(file, 0, LENGTH as u64, false).map_err(text))? else { continue };
        let cut = set_size(&fs, file, 1000);
        if !faulty.hit() {
            break;
        }
        if cut.is_ok() || fs.stopped().is_some() {
            continue;
        }
        failures += 1;
        mapping.unmap().map_err(text)?;
        fs.unmount().map_err(text)?;
        let counts = check_device(&device, false)?;
        if counts.open_pages > 0 {
            return Err(format!("after {succeed} stores {} pages stay open", counts.open_pages));
        }
    }
    if failures > 0 { Ok(()) } else { Err(format!("none of {succeed} stores was to the pages")) }
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    find_nothing(&[mapped_again, cut_and_grown, closed_again]);
}

#[test]
fn mw6_mapped_logs_folded() {
    is_caught(Mutant::MappedLogsFolded, &[mapped_again]);
}

#[test]
fn mw6_mapped_end_keeps_logs() {
    is_caught(Mutant::MappedEndKeepsLogs, &[cut_and_grown]);
}

#[test]
fn mw4_failed_stays_open() {
    is_caught(Mutant::FailedStaysOpen, &[closed_again]);
}

//! Small overwrites of aligned extents, which stay where they are: every cut of overwrites and of their write-back in each domain, many
//! overwrites of one file, and the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::sync::Arc;

use support::bugs::{alone, is_caught, run};
use tandemfs_crash::{Access, FaultDevice, MemoryDevice, Random, Setting, check_device, content, each_state, fill, mount, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_format::mapping::LEAF_ENTRIES_MAX;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, FileSystem, MountOptions, NewInode, WriteOptions};

const STATES: u64 = 4;
const UNIT: usize = 2 << 20;
const ENTRIES: usize = LEAF_ENTRIES_MAX;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn write(fs: &FileSystem, file: InodeNumber, offset: usize, bytes: &[u8]) -> Result<(), String> {
    fs.write(file, offset as u64, bytes, WriteOptions::default()).map(drop).map_err(text)
}

/// A file of aligned extents.
fn aligned(fs: &FileSystem, length: usize) -> Result<(InodeNumber, Vec<u8>), String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"f", &new).map_err(text)?.inode;
    fs.allocate(file, 0, length as u64, AllocateMode::Allocate { keep_size: false }).map_err(text)?;
    let bytes = fill(1, length);
    write(fs, file, 0, &bytes)?;
    Ok((file, bytes))
}

/// Whole 2 MiB of the file that one huge page could map.
fn aligned_units(fs: &FileSystem, file: InodeNumber, length: usize) -> Result<usize, String> {
    let mapping = fs.map(file, 0, length as u64, false).map_err(text)?;
    let unit = UNIT as u64;
    let units = mapping.extents().iter().map(|extent| {
        let skip = extent.file_offset.next_multiple_of(unit) - extent.file_offset;
        let fits = (extent.device_offset + skip) % unit == 0 && extent.bytes >= skip;
        if fits { (extent.bytes - skip) / unit } else { 0 }
    });
    Ok(units.sum::<u64>() as usize)
}

/// Every cut of overwrites and of a write-back of them.
fn cuts(domain: PersistenceDomain, block_bytes: u32) -> Result<(), String> {
    let setting = Setting::small(domain, block_bytes).with_memory_homes();
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let (file, mut bytes) = aligned(&fs, UNIT)?;
    fs.checkpoint().map_err(text)?;
    let start = device.fork();
    device.start_recording();
    let block = block_bytes as usize;
    let mut versions = vec![bytes.clone()];
    let changes = [(100, 300), (4096, 4096), (block - 50, 100), (block / 2, 200), (3 * block, block.min(20_000)), (3 * block + 7, 1)];
    for (call, (at, length)) in changes.into_iter().enumerate() {
        bytes[at..at + length].copy_from_slice(&fill(call as u64 + 5, length));
        device.mark(call);
        write(&fs, file, at, &bytes[at..at + length])?;
        device.mark_return(call);
        versions.push(bytes.clone());
    }
    device.mark(changes.len());
    fs.write_back_all().map_err(text)?;
    device.mark_return(changes.len());
    device.mark(changes.len() + 1);
    fs.checkpoint().map_err(text)?;
    let events = device.stop_recording();
    if fs.statistics().work.kept_places == 0 {
        return Err("nothing was written back in place".into());
    }
    if content(&fs, file).map_err(text)? != bytes || aligned_units(&fs, file, UNIT)? != 1 {
        return Err("it is not what it was".into());
    }
    let mut failure = None;
    each_state(&start, &events, 0, STATES, &mut Random::new(7), &mut |cut, state| {
        let found = || -> Result<(), String> {
            let device = state.device;
            let counts = check_device(&device, true).map_err(|found| format!("check after the cut: {found}"))?;
            if counts.open_pages > 0 {
                return Err(format!("{} pages have no checksum", counts.open_pages));
            }
            let unchanged = {
                let fs = mount(&device.fork(), &MountOptions { read_only: true, ..setting.mount.clone() })?;
                scrubbed(&fs)?;
                content(&fs, file).map_err(text)?
            };
            let fs = mount(&device, &setting.mount)?;
            let found = content(&fs, file).map_err(text)?;
            if found != unchanged {
                return Err("a mount that writes reads other bytes than one that does not".into());
            }
            let last = cut.call.map_or(0, |call| (call + 1).min(changes.len()));
            let first = if cut.between { last } else { last.saturating_sub(1).min(cut.call.unwrap_or(0)) };
            if !versions[first..=last].contains(&found) {
                return Err(format!("it is of no version from {first} to {last}"));
            }
            fs.write_back_all().map_err(text)?;
            fs.unmount().map_err(text)?;
            let counts = check_device(&device, false).map_err(|found| format!("check after an unmount: {found}"))?;
            if counts.open_pages > 0 {
                return Err(format!("{} pages stay open", counts.open_pages));
            }
            let fs = mount(&device, &setting.mount)?;
            if content(&fs, file).map_err(text)? == found { Ok(()) } else { Err("it reads differently later".into()) }
        };
        if failure.is_none() {
            failure = found().err().map(|what| format!("{cut:?}: {what}"));
        }
    });
    failure.map_or(Ok(()), Err)
}

/// A scrub finds nothing wrong with any file.
fn scrubbed(fs: &FileSystem) -> Result<(), String> {
    let mut scrub = fs.scrub();
    while fs.scrub_step(&mut scrub) {}
    match scrub.findings().iter().find(|finding| finding.inode.is_some()) {
        None => Ok(()),
        Some(found) => Err(format!("a scrub finds {found:?}")),
    }
}

/// One wrong byte below data logs that are being copied home is found, whatever instant it comes at: by `check`, by a read of a mount that
/// changes nothing, and by one of a mount that went on with other logs over the page.
fn damage_is_seen(domain: PersistenceDomain, block_bytes: u32) -> Result<(), String> {
    let setting = Setting::small(domain, block_bytes).with_memory_homes();
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let (file, mut bytes) = aligned(&fs, UNIT)?;
    let first = fs.map(file, 0, 1, false).map_err(text)?.extents().first().map(|extent| extent.device_offset).ok_or("not mapped")?;
    bytes[100..400].copy_from_slice(&fill(5, 300));
    write(&fs, file, 100, &bytes[100..400])?;
    fs.checkpoint().map_err(text)?;
    let start = device.fork();
    device.start_recording();
    device.mark(0);
    fs.write_back_all().map_err(text)?;
    device.mark_return(0);
    let events = device.stop_recording();
    if fs.statistics().work.kept_places != 1 {
        return Err("nothing was written back in place".into());
    }
    let (mut failure, mut cuts) = (None, 0);
    each_state(&start, &events, 0, STATES, &mut Random::new(9), &mut |cut, state| {
        let device = state.device;
        device.damage(|zones| zones.memory[first as usize + 50] ^= 4);
        let found = || -> Result<(), String> {
            check_device(&device, true).err().ok_or("check finds nothing")?;
            let is_seen = |fs: &FileSystem| matches!(fs.read(file, 0, &mut [0; 64]), Err(tandemfs_fs::Error::DamagedData { .. }));
            let fs = mount(&device.fork(), &MountOptions { read_only: true, ..setting.mount.clone() })?;
            if !is_seen(&fs) || scrubbed(&fs).is_ok() {
                return Err("a mount that changes nothing does not see it".into());
            }
            let fs = mount(&device, &setting.mount)?;
            write(&fs, file, 200, &[7; 30])?; // other logs than those that were being copied
            if !is_seen(&fs) {
                return Err("it is not seen after an overwrite".into());
            }
            let _may_fail = fs.write_back_all();
            if is_seen(&fs) { Ok(()) } else { Err("write-back in place has made a checksum for it".into()) }
        };
        cuts += 1;
        if failure.is_none() {
            failure = found().err().map(|what| format!("{cut:?}: {what}"));
        }
    });
    if cuts < 5 {
        return Err(format!("{cuts} states are not before, amid and after a copy"));
    }
    failure.map_or(Ok(()), Err)
}

/// Overwrites of a file on a zone that has room for few data logs.
fn many(block_bytes: u32, overwrites: u64) -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Gpf, block_bytes).with_memory_homes();
    let device: MemoryDevice = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let length = 2 * UNIT;
    let (file, mut bytes) = aligned(&fs, length)?;
    let units = aligned_units(&fs, file, length)?;
    if units != 2 {
        return Err(format!("{units} units are aligned at first"));
    }
    let rewritten = || fs.statistics().work.aligned_bytes;
    let before = rewritten();
    let mut random = Random::new(3);
    let new = fill(8, 16_384);
    for round in 0..overwrites {
        let size = [64, 100, 700, 4096, 9000][random.below(5) as usize];
        let at = random.below((length - size) as u64) as usize;
        let from = random.below((new.len() - size) as u64) as usize;
        write(&fs, file, at, &new[from..from + size])?;
        bytes[at..at + size].copy_from_slice(&new[from..from + size]);
        if round % 4096 == 0 {
            fs.write_back_all().map_err(text)?;
        }
    }
    if content(&fs, file).map_err(text)? != bytes {
        return Err("it has other bytes".into());
    }
    fs.write_back_all().map_err(text)?;
    let units = aligned_units(&fs, file, length)?;
    if units != 2 {
        return Err(format!("{units} units of 2 are still aligned after {overwrites} overwrites"));
    }
    // The file got the hint when it was mapped, so the background makes whole again what left its place ([AS3]).
    if rewritten() != before {
        return Err(format!("{} B left their place and were rewritten", rewritten() - before));
    }
    fs.unmount().map_err(text)?;
    check_device(&device, false)?;
    let fs = mount(&device, &setting.mount)?;
    if content(&fs, file).map_err(text)? == bytes { Ok(()) } else { Err("it has other bytes after an unmount".into()) }
}

/// Overwrites of each page of a file on a zone that has no room for so many data logs: the last ones take the transient room ([KP4]).
fn without_slots(block_bytes: u32) -> Result<(), String> {
    const UNITS: usize = 7;
    let setting = Setting::small(PersistenceDomain::Gpf, block_bytes).with_memory_homes();
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let (file, mut bytes) = aligned(&fs, UNITS * UNIT)?;
    let kept = || fs.statistics().work.kept_places;
    let (mut first, mut of_log) = (None, 0);
    for (page, at) in (0..bytes.len()).step_by(4096).enumerate() {
        bytes[at..at + 4096].copy_from_slice(&fill(page as u64 + 9, 4096));
        write(&fs, file, at, &bytes[at..at + 4096])?;
        first = first.or_else(|| (kept() > 0).then_some(page));
        of_log = of_log.max(fs.space().memory.data_log_bytes);
    }
    let units = aligned_units(&fs, file, UNITS * UNIT)?;
    if units != UNITS {
        return Err(format!("{units} units of {UNITS} are still aligned, {} blocks were written back", kept()));
    }
    // Before it there were slots, and behind it more logs of 4 KiB than the room has.
    let pages = bytes.len() / 4096;
    if !first.is_some_and(|page| page > 0 && page + 100 < pages) {
        return Err(format!("of {pages} overwrites that of {first:?} was the first without a slot; {of_log} B in logs"));
    }
    if content(&fs, file).map_err(text)? != bytes {
        return Err("it has other bytes".into());
    }
    fs.unmount().map_err(text)?;
    check_device(&device, false)?;
    let fs = mount(&device, &setting.mount)?;
    if content(&fs, file).map_err(text)? == bytes { Ok(()) } else { Err("it has other bytes after an unmount".into()) }
}

/// One store of a write-back in place fails, which an overwrite has asked for that finds no entry. Whatever is over the pages then, and what a
/// later overwrite puts in place of one of the logs, reads as it was written.
fn failed_copies(block_bytes: u32) -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Adr, block_bytes).with_memory_homes();
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    let (file, mut bytes) = aligned(&fs, UNIT)?;
    let place = |index: usize| index * (block_bytes as usize / ENTRIES) + 7;
    for index in 0..ENTRIES {
        bytes[place(index)..place(index) + 64].fill(index as u8);
        write(&fs, file, place(index), &[index as u8; 64])?;
    }
    fs.checkpoint().map_err(text)?;
    drop(fs);
    let one_more = place(0) + 80;
    let stores = |what: &dyn Fn(&FileSystem) -> Result<(), String>| -> Result<u64, String> {
        let counted = Arc::new(FaultDevice::counting(device.fork()));
        what(&mount_device(counted.clone(), &setting.mount).map_err(text)?)?;
        Ok(counted.count(Access::Store))
    };
    let (first, end) = (stores(&|_| Ok(()))?, stores(&|fs| write(fs, file, one_more, &[0x77; 64]))?);
    bytes[place(1)..place(1) + 64].fill(0x55);
    let mut with = bytes.clone();
    with[one_more..one_more + 64].fill(0x77);
    let mut opened = 0;
    for store in first..end {
        let device = device.fork();
        let fs = mount_device(Arc::new(FaultDevice::new(device.clone(), Access::Store, store, false)), &setting.mount).map_err(text)?;
        if write(&fs, file, one_more, &[0x77; 64]).is_ok() || write(&fs, file, place(1), &[0x55; 64]).is_err() {
            continue; // or a record could not be stored, and the file system has stopped
        }
        let told = |what: String| format!("store {store} of {first} to {end}: {what}");
        opened += check_device(&device, true).map_err(told)?.open_pages;
        let found = content(&fs, file).map_err(|error| told(text(error)))?;
        if found != bytes && found != with {
            return Err(told("it has other bytes".into()));
        }
        fs.write_back_all().map_err(|error| told(text(error)))?;
        fs.unmount().map_err(|error| told(text(error)))?;
        let counts = check_device(&device, false).map_err(told)?;
        if counts.open_pages > 0 {
            return Err(told(format!("{} pages stay open", counts.open_pages)));
        }
        if content(&mount(&device, &setting.mount)?, file).map_err(text)? != found {
            return Err(told("it has other bytes later".into()));
        }
    }
    if opened > 0 { Ok(()) } else { Err(format!("none of the stores {first} to {end} left pages with checksums of other logs")) }
}

fn failed_copies_of_blocks() -> Result<(), String> {
    failed_copies(16 << 10)
}

fn cuts_of_blocks() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 16 << 10)
}

fn cuts_of_pages() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 4096)
}

fn damage_of_blocks() -> Result<(), String> {
    damage_is_seen(PersistenceDomain::Adr, 16 << 10)
}

fn damage_of_pages() -> Result<(), String> {
    damage_is_seen(PersistenceDomain::Adr, 4096)
}

fn some_overwrites() -> Result<(), String> {
    many(16 << 10, 500)
}

/// So many overwrites of each block between two write-backs that its leaf runs out of entries ([KP4]).
/// Rings and pools are of CPUs: beside others one of forty runs met no full leaf.
fn overwrites_of_large_blocks() -> Result<(), String> {
    (0..6).try_for_each(|_| many(1 << 20, 500))
}

fn overwrites_without_slots() -> Result<(), String> {
    without_slots(16 << 10)
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for block_bytes in [4096, 64 << 10] {
            let result = run(Mutant::None, || cuts(domain, block_bytes));
            result.unwrap_or_else(|what| panic!("{domain}, blocks of {block_bytes}: {what}"));
        }
    }
}

#[test]
fn no_instant_of_a_copy_is_unchecked() {
    let _alone = alone();
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for block_bytes in [4096, 64 << 10] {
            let result = run(Mutant::None, || damage_is_seen(domain, block_bytes));
            result.unwrap_or_else(|what| panic!("{domain}, blocks of {block_bytes}: {what}"));
        }
    }
}

#[test]
fn a_file_stays_aligned_under_many_small_overwrites() {
    let _alone = alone();
    for block_bytes in [4096, 16 << 10, 64 << 10, 1 << 20] {
        run(Mutant::None, || many(block_bytes, 20_000)).unwrap_or_else(|what| panic!("blocks of {block_bytes}: {what}"));
    }
}

/// As the test above, for minutes.
#[test]
#[ignore = "takes minutes"]
fn a_file_stays_aligned_under_a_million_small_overwrites() {
    let _alone = alone();
    run(Mutant::None, || many(64 << 10, 1_000_000)).unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn kp1_places_lost() {
    is_caught(Mutant::PlacesLost, &[some_overwrites]);
}

#[test]
fn kp2_kept_home_not_fenced() {
    is_caught(Mutant::KeptHomeNotFenced, &[cuts_of_blocks, cuts_of_pages]);
}

#[test]
fn kp2_kept_checksums_old() {
    is_caught(Mutant::KeptChecksumsOld, &[cuts_of_blocks, some_overwrites]);
}

#[test]
fn kp2_copied_unmarked() {
    is_caught(Mutant::CopiedUnmarked, &[cuts_of_blocks, cuts_of_pages]);
}

#[test]
fn a_copy_that_fails_loses_nothing() {
    let _alone = alone();
    for block_bytes in [4096, 16 << 10, 64 << 10] {
        run(Mutant::None, || failed_copies(block_bytes)).unwrap_or_else(|what| panic!("blocks of {block_bytes}: {what}"));
    }
}

#[test]
fn kp2_copied_unverified() {
    is_caught(Mutant::CopiedUnverified, &[damage_of_blocks, damage_of_pages]);
}

#[test]
fn bl7_overlaid_by_others() {
    is_caught(Mutant::OverlaidByOthers, &[failed_copies_of_blocks]);
}

#[test]
fn kp3_overlaid_read_bare() {
    is_caught(Mutant::OverlaidReadBare, &[cuts_of_blocks, cuts_of_pages]);
}

#[test]
fn kp4_entries_not_made() {
    is_caught(Mutant::EntriesNotMade, &[overwrites_of_large_blocks]);
}

#[test]
fn a_file_stays_aligned_where_no_slots_are_left() {
    let _alone = alone();
    for block_bytes in [4096, 16 << 10, 64 << 10] {
        run(Mutant::None, || without_slots(block_bytes)).unwrap_or_else(|what| panic!("blocks of {block_bytes}: {what}"));
    }
}

#[test]
fn kp4_transient_logs_kept() {
    is_caught(Mutant::TransientLogsKept, &[overwrites_without_slots]);
}

#[test]
fn kp5_interrupted_copy_left() {
    is_caught(Mutant::InterruptedCopyLeft, &[damage_of_blocks, damage_of_pages]);
}

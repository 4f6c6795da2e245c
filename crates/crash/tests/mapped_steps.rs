//! Files on a device that maps in steps of 2 MiB: every cut of a mapping that rewrites a fragmented file first, and the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use support::bugs::{alone, find_nothing, is_caught, run};
use tandemfs_crash::{Random, Setting, check_device, content, each_state, fill, mount};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, Error, FileSystem, NewInode, SetAttributes, WriteOptions};

const STATES: u64 = 1;
const STEP: usize = 2 << 20;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(text)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: usize, bytes: &[u8]) -> Result<(), String> {
    fs.write(file, offset as u64, bytes, WriteOptions::default()).map(drop).map_err(text)
}

fn setting(domain: PersistenceDomain, block_bytes: u32) -> Setting {
    Setting { memory_bytes: 48 << 20, block_zone_bytes: 48 << 20, ..Setting::small(domain, block_bytes) }.with_memory_homes()
}

/// A file of a piece and a part that lie in holes, with data logs and a hole of its own, whose end is in the second piece.
fn fragmented(fs: &FileSystem) -> Result<(InodeNumber, Vec<u8>), String> {
    let (file, other) = (create(fs, b"f")?, create(fs, b"other")?);
    let mut bytes = fill(1, STEP + 70_000);
    for piece in (0..bytes.len().div_ceil(300_000)).rev() {
        let (at, end) = (piece * 300_000, bytes.len().min((piece + 1) * 300_000));
        write(fs, file, at, &bytes[at..end])?;
        write(fs, other, at, &[9; 20_000])?;
    }
    fs.allocate(file, 1 << 20, 200_000, AllocateMode::Punch).map_err(text)?;
    bytes[1 << 20..(1 << 20) + 200_000].fill(0);
    let end = bytes.len();
    for (at, length) in [(500, 300), (STEP - 50, 100), (end - 20, 20)] {
        bytes[at..at + length].copy_from_slice(&fill(at as u64, length));
        write(fs, file, at, &bytes[at..at + length])?;
    }
    Ok((file, bytes))
}

/// Every cut of a mapping, and of its end, leaves the bytes of the file.
fn cuts(domain: PersistenceDomain, block_bytes: u32) -> Result<(), String> {
    let setting = setting(domain, block_bytes);
    let device = setting.format().mapped_in_steps_of(STEP as u64);
    let fs = mount(&device, &setting.mount)?;
    let (file, bytes) = fragmented(&fs)?;
    fs.checkpoint().map_err(text)?;
    let start = device.fork();
    device.start_recording();
    device.mark(0);
    let mapping = fs.map(file, 0, bytes.len() as u64, true).map_err(text)?;
    device.mark_return(0);
    device.mark(1);
    mapping.unmap().map_err(text)?;
    device.mark_return(1);
    let events = device.stop_recording();
    if fs.statistics().work.aligned_bytes < 2 * STEP as u64 {
        return Err("it was not rewritten".into());
    }
    let mut failure = None;
    each_state(&start, &events, 0, STATES, &mut Random::new(5), &mut |cut, state| {
        let found = || -> Result<(), String> {
            let device = state.device;
            check_device(&device, true).map_err(|found| format!("check after the cut: {found}"))?;
            let fs = mount(&device, &setting.mount)?;
            if content(&fs, file).map_err(text)? != bytes {
                return Err("it has other bytes".into());
            }
            let mapping = fs.map(file, 0, bytes.len() as u64, false).map_err(text)?;
            let mut seen = vec![0; bytes.len()];
            mapping.load(0, &mut seen).map_err(text)?;
            if seen != bytes {
                return Err("a mapping shows other bytes".into());
            }
            drop(mapping);
            fs.unmount().map_err(text)?;
            let counts = check_device(&device, false).map_err(|found| format!("check after an unmount: {found}"))?;
            if counts.open_pages == 0 { Ok(()) } else { Err(format!("{} pages stay open", counts.open_pages)) }
        };
        if failure.is_none() {
            failure = found().err().map(|what| format!("{cut:?}: {what}"));
        }
    });
    failure.map_or(Ok(()), Err)
}

fn mapped_at_all() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Gpf, 16 << 10);
    let fs = mount(&setting.format().mapped_in_steps_of(STEP as u64), &setting.mount)?;
    let (file, bytes) = fragmented(&fs)?;
    fs.map(file, 0, bytes.len() as u64, true).map(drop).map_err(text)
}

/// What a file that is gone held is not behind the end of another.
fn others_are_not_seen() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Gpf, 16 << 10);
    let fs = mount(&setting.format().mapped_in_steps_of(STEP as u64), &setting.mount)?;
    // The first time leaves out what is kept for metadata; the second time takes that, and leaves out what has been written.
    for _ in 0..2 {
        let secret = create(&fs, b"secret")?;
        let mut at = 0;
        while write(&fs, secret, at, &vec![0x5e; STEP]).is_ok() {
            at += STEP;
        }
        fs.unlink(InodeNumber::ROOT, b"secret").map_err(text)?;
    }
    let file = create(&fs, b"f")?;
    write(&fs, file, 0, b"short")?;
    let mapping = fs.map(file, 0, 5, false).map_err(text)?;
    let mut behind = vec![0; STEP - 5];
    mapping.memory().copy_out(5, &mut behind).map_err(text)?;
    match behind.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} behind the end is {:#x}", behind[at])),
    }
}

/// What finds no room leaves the space as it was.
fn nothing_is_kept() -> Result<(), String> {
    let setting = setting(PersistenceDomain::Gpf, 16 << 10);
    let fs = mount(&setting.format().mapped_in_steps_of(STEP as u64), &setting.mount)?;
    let (file, filler) = (create(&fs, b"f")?, create(&fs, b"filler")?);
    let most = fs.space().memory.total_bytes;
    fs.set_attributes(file, &SetAttributes { size: Some(most), ..SetAttributes::default() }).map_err(text)?;
    // The block zone has room for the bytes, so what is missing shows when the aligned extents end.
    write(&fs, filler, 0, &[1; 100_000])?;
    let before = fs.space().memory.extent_bytes;
    let length = fs.space().memory.available_bytes + (8 << 20);
    match fs.map(file, 0, length.min(most), true).map(drop) {
        Err(Error::NoSpace { .. }) => {}
        other => return Err(format!("it is {other:?}")),
    }
    match fs.space().memory.extent_bytes {
        after if after == before => Ok(()),
        after => Err(format!("{} B stay taken", after - before)),
    }
}

#[test]
fn every_cut_of_a_mapping_leaves_the_bytes() {
    let _alone = alone();
    run(Mutant::None, || cuts(PersistenceDomain::Adr, 64 << 10)).unwrap_or_else(|what| panic!("{what}"));
}

/// As the test above, where a cut comes before each store.
#[test]
#[ignore = "takes minutes"]
fn every_cut_of_a_mapping_leaves_the_bytes_in_each_domain() {
    let _alone = alone();
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for block_bytes in [16 << 10, 64 << 10] {
            let result = run(Mutant::None, || cuts(domain, block_bytes));
            result.unwrap_or_else(|what| panic!("{domain}, blocks of {block_bytes}: {what}"));
        }
    }
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    find_nothing(&[mapped_at_all, others_are_not_seen, nothing_is_kept]);
}

#[test]
fn mg1_steps_not_aligned() {
    is_caught(Mutant::StepsNotAligned, &[mapped_at_all]);
}

#[test]
fn mg2_steps_show_others() {
    is_caught(Mutant::StepsShowOthers, &[others_are_not_seen]);
}

#[test]
fn mg3_step_extents_kept() {
    is_caught(Mutant::StepExtentsKept, &[nothing_is_kept]);
}

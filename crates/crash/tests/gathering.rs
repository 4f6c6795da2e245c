//! Sparse units of the data area that are emptied (`alloc/gathering.rs`, `data/gather.rs` of `fs`): every cut, in each domain and block size, with
//! a block zone and without one; and the deliberate bugs. A mutant is global to the process, so the tests of this file run one after the
//! other.

mod support;

use support::bugs::{alone, find_nothing, is_caught, run};
use tandemfs_crash::{MemoryDevice, Random, Setting, Tree, check_device, each_state, fill, mount, rounds_or, stay_on_one_cpu, works};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, CompactionRun, Error, FileSystem, NewInode, WriteOptions};

const ROOT: InodeNumber = InodeNumber::ROOT;
const MIB: u64 = 1 << 20;
/// Small files, of which one in twenty stays: logs of more than two units.
const FILES: u64 = 1100;
/// States of a recording that are looked at.
const STATES: u64 = 20;

fn text(error: Error) -> String {
    error.to_string()
}

fn make(fs: &FileSystem, name: &str) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(ROOT, name.as_bytes(), &new).map(|made| made.inode).map_err(|error| format!("{name}: {error}"))
}

fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: &[u8]) -> Result<(), String> {
    match fs.write(file, offset, bytes, WriteOptions::default()) {
        Ok(length) if length == bytes.len() => Ok(()),
        other => Err(format!("writing at {offset}: {other:?}")),
    }
}

/// Sparse units of logs and of extents: single blocks, a run, unwritten ones, and logs over them.
fn make_sparse(fs: &FileSystem, block: u64, files: u64) -> Result<(), String> {
    stay_on_one_cpu()?; // a CPU has its own pools of units: with those of two, fewer units are sparse
    (0..files).try_for_each(|number| write(fs, make(fs, &format!("s{number}"))?, number % 3, &fill(number, 3000)))?;
    let [kept, gone] = ["kept", "gone"].map(|name| make(fs, name));
    let (kept, gone) = (kept?, gone?);
    let blocks = 5 * MIB / block;
    for at in 0..blocks {
        let file = if at % 8 == 0 { kept } else { gone };
        write(fs, file, at * block, &fill(at, block as usize))?;
    }
    fs.allocate(kept, 6 * MIB, 3 * block, AllocateMode::Allocate { keep_size: false }).map_err(text)?;
    write(fs, kept, 7 * MIB, &fill(7, (MIB / 2) as usize))?;
    for log in 0..6 {
        write(fs, kept, log * 8 * block + 100, &fill(log, 200))?;
    }
    write(fs, kept, 6 * MIB + 300, &fill(9, 100))?;
    for number in (0..files).filter(|number| number % 20 > 0) {
        fs.unlink(ROOT, format!("s{number}").as_bytes()).map_err(text)?;
    }
    fs.unlink(ROOT, b"gone").map_err(text)?;
    fs.checkpoint().map_err(text)
}

fn compact(fs: &FileSystem) -> Result<CompactionRun, String> {
    let mut run = CompactionRun::default();
    while fs.compact_step(&mut run).map_err(text)? {}
    Ok(run)
}

fn same(fs: &FileSystem, expected: &Tree) -> Result<(), String> {
    Tree::read(fs)?.difference(expected).map_or(Ok(()), |difference| Err(difference.to_string()))
}

fn cuts(setting: &Setting) -> Result<(), String> {
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    make_sparse(&fs, setting.format.block_bytes.into(), FILES)?;
    let (expected, before) = (Tree::read(&fs)?, fs.space().memory);
    let start = device.fork();
    device.start_recording();
    let run = compact(&fs)?;
    let events = device.stop_recording();
    if run.freed_bytes < 2 * 2 * MIB {
        return Err(format!("{run:?}, {before:?}"));
    }
    same(&fs, &expected)?;
    let look = |device: &MemoryDevice| {
        check_device(device, true)?;
        let fs = mount(device, &setting.mount)?;
        same(&fs, &expected)?;
        works(&fs, &expected)?;
        fs.unmount().map_err(text)?;
        check_device(device, false).map(drop)
    };
    let one_in = (events.len() as u64 / (STATES * rounds_or(1))).max(1);
    let (mut random, mut chosen, mut result, mut looked) = (Random::new(1), Random::new(2), Ok(()), 0);
    let mut states = 0_u64;
    each_state(&start, &events, 0, 1, &mut random, &mut |cut, state| {
        states += 1;
        // Chance alone would choose hardly any in some recordings.
        if result.is_ok() && (chosen.one_in(one_in) || states.is_power_of_two()) {
            looked += 1;
            result = look(&state.device).map_err(|what| format!("cut before event {} of {}: {what}", cut.event, events.len()));
        }
    });
    result?;
    assert!(looked > 5, "{looked} states");
    let live = fs.space();
    let crashed = mount(&device.fork(), &setting.mount)?;
    if crashed.space().memory != live.memory {
        return Err(format!("live {live:?}, rebuilt {:?}", crashed.space()));
    }
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

/// A large file that needs the units of small ones.
fn refilled() -> Result<(), String> {
    let setting = Setting { memory_bytes: 48 * MIB, ..Setting::small(PersistenceDomain::Adr, 4096).without_blocks() };
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    make_sparse(&fs, 4096, 3 * FILES)?;
    let room = fs.space().memory.free_bytes;
    let large = make(&fs, "large")?;
    let piece = fill(3, (MIB / 4) as usize);
    let length = (0..).find(|at| write(&fs, large, at * MIB / 4, &piece).is_err()).unwrap_or(0) * MIB / 4;
    if length + 8 * MIB < room { Err(format!("{length} of {room} B")) } else { Ok(()) }
}

/// Extents of which two of three are removed: one pass by hand cannot bring together all that is left.
fn scattered() -> Result<(), String> {
    let setting = Setting { memory_bytes: 96 * MIB, ..Setting::small(PersistenceDomain::Adr, 64 << 10).without_blocks() };
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    stay_on_one_cpu()?;
    let block = u64::from(setting.format.block_bytes);
    for number in 0..1100 {
        let file = make(&fs, &format!("e{number}"))?;
        fs.allocate(file, 0, block, AllocateMode::Allocate { keep_size: false }).map_err(text)?;
    }
    for number in (0..1100).filter(|number| number % 3 > 0) {
        fs.unlink(ROOT, format!("e{number}").as_bytes()).map_err(text)?;
    }
    fs.checkpoint().map_err(text)?;
    let run = compact(&fs)?;
    let (aligned, free) = (fs.aligned_free_bytes().0, fs.space().memory.free_bytes);
    fs.unmount().map_err(text)?;
    check_device(&device, false)?;
    if aligned * 100 < free * 95 { Err(format!("{aligned} of {free} B, {run:?}")) } else { Ok(()) }
}

/// A log with a wrong bit, in a unit that is emptied.
fn damaged() -> Result<(), String> {
    let setting = Setting::small(PersistenceDomain::Adr, 4096).without_blocks();
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    make_sparse(&fs, 4096, FILES)?;
    fs.unmount().map_err(text)?;
    // In each of them: not all units of logs are emptied.
    let victims: Vec<u64> = (0..FILES).step_by(20).collect();
    device.damage(|zones| {
        for line in zones.memory.chunks_exact_mut(64) {
            if victims.iter().any(|number| line[..] == fill(*number, 64)[..]) {
                line[0] ^= 1;
            }
        }
    });
    let fs = mount(&device, &setting.mount)?;
    let run = compact(&fs)?;
    for number in victims {
        let file = fs.lookup(ROOT, format!("s{number}").as_bytes()).map_err(text)?.inode;
        match fs.read(file, 0, &mut [0; 4096]) {
            Err(Error::DamagedData { .. }) => {}
            found => return Err(format!("{run:?}; damaged file s{number}: {found:?}")),
        }
    }
    Ok(())
}

#[test]
fn every_cut_of_a_gathering_is_sound() {
    let _alone = alone();
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for block_bytes in [4 << 10, 16 << 10, 64 << 10] {
            let small = Setting::small(domain, block_bytes);
            for setting in [small.clone().with_memory_homes(), small.without_blocks()] {
                run(Mutant::None, || cuts(&setting)).unwrap_or_else(|what| panic!("{setting:?}: {what}"));
            }
        }
    }
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    find_nothing(&[refilled, scattered, damaged]);
}

#[test]
fn ga3_sparse_units_kept() {
    is_caught(Mutant::SparseUnitsKept, &[refilled]);
}

#[test]
fn ga7_gathering_ends_early() {
    is_caught(Mutant::GatheringEndsEarly, &[scattered]);
}

#[test]
fn gt3_gathered_unverified() {
    is_caught(Mutant::GatheredUnverified, &[damaged]);
}

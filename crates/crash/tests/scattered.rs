//! Sparse units of the block zone that are emptied so that aligned extents stay (`alloc/scattered.rs`, `data/gather.rs` of `fs`): every cut, in
//! each domain and block size; damage, writers and a full zone meanwhile; and the deliberate bugs. A mutant is global to the process, so the
//! tests of this file run one after the other.

mod support;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use support::bugs::{alone, find_nothing, is_caught, run};
use tandemfs_crash::{MemoryDevice, Random, Setting, Tree, check_device, each_state, fill, mount, rounds_or, stay_on_one_cpu, works};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{AllocateMode, CompactionRun, Error, FileSystem, NewInode, WriteOptions};

const ROOT: InodeNumber = InodeNumber::ROOT;
const MIB: u64 = 1 << 20;
const UNIT: u64 = 2 * MIB;
/// Units that are filled, of which the first four stay half full, and one block in sixteen of the others.
const UNITS: u64 = 10;
/// States of a recording that are looked at.
const STATES: u64 = 20;

fn text(error: Error) -> String {
    error.to_string()
}

fn setting(domain: PersistenceDomain, block_bytes: u32) -> Setting {
    Setting { block_zone_bytes: 16 * UNIT, ..Setting::small(domain, block_bytes) }
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

/// The bytes of a block of the file that stays.
fn block_of(at: u64, block: u64) -> Vec<u8> {
    fill(at, block as usize)
}

/// Sparse units: written blocks, some with data logs over them, unwritten ones, and short ends of files.
fn scatter(fs: &FileSystem, block: u64) -> Result<(), String> {
    stay_on_one_cpu()?; // a CPU has its own pool of units
    let [kept, gone] = ["kept", "gone"].map(|name| make(fs, name));
    let (kept, gone) = (kept?, gone?);
    let of_unit = UNIT / block;
    for at in 0..UNITS * of_unit {
        let one_in = if at < 4 * of_unit { 2 } else { 16 };
        let file = if at % one_in == 0 { kept } else { gone };
        match at % 48 {
            32 => fs.allocate(file, at * block, block, AllocateMode::Allocate { keep_size: false }).map_err(text)?,
            _ => write(fs, file, at * block, &block_of(at, block))?,
        }
        if block > 4096 && at % 64 == 48 {
            write(fs, make(fs, &format!("end{at}"))?, 0, &fill(at, 4096))?;
        }
    }
    for at in (4 * of_unit..UNITS * of_unit).step_by(48) {
        write(fs, kept, at / 16 * 16 * block + 100, &fill(at, 200))?;
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
    scatter(&fs, setting.format.block_bytes.into())?;
    let (expected, free, aligned) = (Tree::read(&fs)?, fs.space().block.free_bytes, fs.aligned_free_bytes().1);
    let start = device.fork();
    device.start_recording();
    let run = compact(&fs)?;
    let events = device.stop_recording();
    let gained = fs.aligned_free_bytes().1.saturating_sub(aligned);
    if gained < 4 * UNIT || run.freed_bytes < gained || run.moved_bytes == 0 || fs.space().block.free_bytes != free {
        return Err(format!("{gained} B became aligned of {free} free: {run:?}"));
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
    if crashed.space().block != live.block {
        return Err(format!("live {live:?}, rebuilt {:?}", crashed.space()));
    }
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

/// A block with a wrong bit, in a unit that is emptied: it stays, and a read says so.
fn damaged() -> Result<(), String> {
    let block = 16 << 10;
    let setting = setting(PersistenceDomain::Adr, block as u32);
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    scatter(&fs, block)?;
    fs.unmount().map_err(text)?;
    let victims: Vec<u64> = (4 * UNIT / block..UNITS * UNIT / block).filter(|at| at % 16 == 0 && at % 48 == 16).collect();
    let mut count = 0;
    device.damage(|zones| {
        for sector in zones.blocks.chunks_exact_mut(4096) {
            if victims.iter().any(|at| sector[..] == block_of(*at, block)[4096..8192]) {
                sector[7] ^= 1;
                count += 1;
            }
        }
    });
    if count != victims.len() {
        return Err(format!("{count} of {} blocks are damaged", victims.len()));
    }
    let fs = mount(&device, &setting.mount)?;
    let run = compact(&fs)?;
    let kept = fs.lookup(ROOT, b"kept").map_err(text)?.inode;
    for at in victims {
        match fs.read(kept, at * block + 4096, &mut [0; 4096]) {
            Err(Error::DamagedData { .. }) => {}
            found => return Err(format!("{run:?}; damaged block {at}: {found:?}")),
        }
    }
    Ok(())
}

/// A writer that overwrites half of what moves: what is overwritten leaves its unit by itself, so with all of it nothing might be left to move.
fn beside_writers() -> Result<(), String> {
    let block = 16 << 10;
    let setting = setting(PersistenceDomain::Gpf, block as u32);
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    scatter(&fs, block)?;
    let kept = fs.lookup(ROOT, b"kept").map_err(text)?.inode;
    let has_begun = AtomicBool::new(false);
    let mut written = std::collections::BTreeMap::new();
    let run = std::thread::scope(|scope| -> Result<CompactionRun, String> {
        let passes = scope.spawn(|| {
            let mut run = CompactionRun::default();
            while fs.compact_step(&mut run).map_err(text)? {
                has_begun.store(run.passes > 0, Relaxed);
            }
            Ok(run)
        });
        let mut random = Random::new(5);
        while !has_begun.load(Relaxed) && !passes.is_finished() {
            std::thread::yield_now();
        }
        for round in 0.. {
            if round >= 3000 && passes.is_finished() {
                break;
            }
            let at = (4 * UNIT / block + random.below(6 * UNIT / block)) / 32 * 32;
            let bytes = fill(round, block as usize);
            write(&fs, kept, at * block, &bytes)?;
            written.insert(at, bytes);
        }
        passes.join().expect("no panic")
    })?;
    if run.moved_bytes == 0 {
        return Err(format!("nothing moved: {run:?}"));
    }
    for (at, bytes) in &written {
        let mut found = vec![0; block as usize];
        fs.read(kept, at * block, &mut found).map_err(text)?;
        if found != *bytes {
            return Err(format!("block {at} has other bytes"));
        }
    }
    let expected = Tree::read(&fs)?;
    check_device(&device, true)?;
    fs.unmount().map_err(text)?;
    check_device(&device, false)?;
    same(&mount(&device, &setting.mount)?, &expected)
}

/// A zone that becomes full after a pass has begun: each byte of it can be had.
fn filled_meanwhile() -> Result<(), String> {
    let block = 16 << 10;
    let setting = setting(PersistenceDomain::Gpf, block as u32);
    let device = setting.format();
    let fs = mount(&device, &setting.mount)?;
    scatter(&fs, block)?;
    let mut run = CompactionRun::default();
    fs.compact_step(&mut run).map_err(text)?;
    let (available, large) = (fs.space().block.available_bytes, make(&fs, "large")?);
    let bytes = fill(3, block as usize);
    let count = (0..).find(|at| write(&fs, large, at * block, &bytes).is_err()).unwrap_or(0);
    let passes = run.passes;
    while fs.compact_step(&mut run).map_err(text)? {}
    if passes == 0 || count * block + 2 * block < available {
        return Err(format!("{} of {available} B, {run:?}", count * block));
    }
    let expected = Tree::read(&fs)?;
    fs.unmount().map_err(text)?;
    check_device(&device, false)?;
    same(&mount(&device, &setting.mount)?, &expected)
}

fn cuts_of_blocks() -> Result<(), String> {
    cuts(&setting(PersistenceDomain::Adr, 16 << 10))
}

#[test]
fn every_cut_of_a_pass_is_sound() {
    let _alone = alone();
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for block_bytes in [4 << 10, 16 << 10, 64 << 10] {
            let setting = setting(domain, block_bytes);
            run(Mutant::None, || cuts(&setting)).unwrap_or_else(|what| panic!("{setting:?}: {what}"));
        }
    }
}

/// The same where the drive commits.
#[test]
fn every_cut_is_sound_on_a_drive_with_transactions() {
    let _alone = alone();
    let setting = setting(PersistenceDomain::Gpf, 16 << 10).with_firmware();
    run(Mutant::None, || cuts(&setting)).unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    find_nothing(&[damaged, beside_writers, filled_meanwhile]);
}

#[test]
fn sx1_scattered_space_kept() {
    is_caught(Mutant::ScatteredSpaceKept, &[cuts_of_blocks, filled_meanwhile]);
}

#[test]
fn sx3_hidden_for_good() {
    is_caught(Mutant::HiddenForGood, &[filled_meanwhile]);
}

#[test]
fn rw1_batch_not_flushed() {
    is_caught(Mutant::BatchNotFlushed, &[cuts_of_blocks]);
}

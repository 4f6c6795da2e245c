//! Data in memory that others change ([SM1]–[SM4]): written from it and read into it, while its bytes change at chosen instants, or all the
//! time. What is damaged then are the blocks that were in flight, and nothing else.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};

use support::bugs::{Catcher, alone, is_caught, run};
use tandemfs_crash::{MemoryDevice, Random, Recorded, check_device, fill};
use tandemfs_device::{BlockPath, BlockRequest, BytePath, Device, DeviceError, Drive, Layer, PersistenceDomain, SharedBytes, Sink, Source};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{Error, FileSystem, FormatOptions, MountOptions, NewInode, ReadOptions, WriteOptions, make_file_system};

const MIB: usize = 1 << 20;
const BLOCK: usize = 64 << 10;

/// When the memory changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Never,
    /// While block requests are in flight, after the device has taken its bytes.
    InFlight,
    /// After each store.
    Stores,
}

/// A device beside which memory changes.
struct Meddler {
    inner: MemoryDevice,
    memory: Arc<[AtomicU8]>,
    at: At,
}

impl Meddler {
    fn change(&self, at: At) {
        if self.at == at {
            self.memory.iter().for_each(|byte| _ = byte.fetch_add(1, SeqCst));
        }
    }
}

impl Layer for Meddler {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn store(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        BytePath::store(&self.inner, offset, from)?;
        self.change(At::Stores);
        Ok(())
    }

    fn transfer_each(
        &self,
        requests: &mut [BlockRequest<'_>],
        meanwhile: &mut dyn FnMut(),
        completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    ) -> Result<(), DeviceError> {
        let mut changed = || {
            self.change(At::InFlight);
            meanwhile();
        };
        self.inner.transfer_each(requests, &mut changed, completed)
    }
}

fn text(error: Error) -> String {
    error.to_string()
}

fn holds(is_so: bool, otherwise: &str) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(otherwise.into()) }
}

fn memory(bytes: &[u8]) -> Arc<[AtomicU8]> {
    bytes.iter().map(|byte| AtomicU8::new(*byte)).collect()
}

fn now(memory: &[AtomicU8]) -> Vec<u8> {
    memory.iter().map(|byte| byte.load(SeqCst)).collect()
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(text)
}

fn device(block_zone: bool, firmware: bool) -> MemoryDevice {
    let blocks = if block_zone { 32 << 20 } else { 0 };
    let device = match firmware {
        true => MemoryDevice::with_firmware(32 << 20, blocks, PersistenceDomain::Gpf),
        false => MemoryDevice::new(32 << 20, blocks, PersistenceDomain::Gpf),
    };
    let options = FormatOptions { block_bytes: BLOCK as u32, ..FormatOptions::default() };
    make_file_system(&Drive::new(Arc::new(device.clone())), &options).expect("mkfs");
    device
}

fn mounted(device: &MemoryDevice, memory: &Arc<[AtomicU8]>, at: At) -> Result<FileSystem, String> {
    let meddler = Meddler { inner: device.clone(), memory: Arc::clone(memory), at };
    FileSystem::mount(Drive::new(Arc::new(meddler)), &MountOptions::default()).map_err(text)
}

fn write_shared(fs: &FileSystem, file: InodeNumber, offset: usize, bytes: &[AtomicU8], options: WriteOptions) -> Result<(), String> {
    let from = Source::Shared(SharedBytes::new(bytes));
    let (done, end) = fs.write_from(file, Some(offset as u64), from, options).map_err(text)?;
    holds((done, end) == (bytes.len(), (offset + bytes.len()) as u64), "a short write")
}

fn read_shared(fs: &FileSystem, file: InodeNumber, offset: usize, into: &[AtomicU8]) -> Result<usize, Error> {
    fs.read_into(file, offset as u64, Sink::Shared(SharedBytes::new(into)), ReadOptions::default())
}

fn read(fs: &FileSystem, file: InodeNumber, range: Range<usize>) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; range.len()];
    let done = fs.read(file, range.start as u64, &mut bytes)?;
    bytes.truncate(done);
    Ok(bytes)
}

/// Ranges of all shapes, beside a model: each kind of drive, what is written shared is read by both ways, and the other way round.
fn arrives() -> Result<(), String> {
    for (block_zone, firmware) in [(true, false), (true, true), (false, false)] {
        let device = device(block_zone, firmware);
        let nothing = memory(&[]);
        let fs = mounted(&device, &nothing, At::Never)?;
        let file = create(&fs, b"file")?;
        let mut model = vec![0; 2 * MIB];
        let mut length = 0;
        let ranges = [(0, MIB), (1000, 300_000), (BLOCK, 3 * BLOCK), (MIB - 5000, 200_000), (4096, 4096), (7, 100), (BLOCK * 3, BLOCK + 1)];
        for (round, (offset, count)) in ranges.into_iter().chain(ranges).enumerate() {
            let bytes = fill(round as u64 + 1, count);
            model[offset..offset + count].copy_from_slice(&bytes);
            length = length.max(offset + count);
            if round % 3 == 2 {
                fs.write(file, offset as u64, &bytes, WriteOptions::default()).map_err(text)?;
            } else {
                write_shared(&fs, file, offset, &memory(&bytes), WriteOptions::default())?;
            }
            let whole = memory(&vec![0xee; 2 * MIB]);
            let done = read_shared(&fs, file, 0, &whole).map_err(text)?;
            holds(done == length && now(&whole)[..done] == model[..done], &format!("round {round}: other bytes by shared memory"))?;
            holds(read(&fs, file, 0..2 * MIB).map_err(text)? == model[..length], &format!("round {round}: other bytes"))?;
            let part = memory(&vec![0xee; count + 3000]);
            let at = offset.saturating_sub(1500);
            let done = read_shared(&fs, file, at, &part).map_err(text)?;
            let found = now(&part);
            holds(
                found[..done] == model[at..at + done] && found[done..].iter().all(|byte| *byte == 0xee),
                &format!("round {round}: a part"),
            )?;
        }
        // An append, whose end only the file system knows.
        let more = fill(99, 200_000);
        let appended =
            fs.write_from(file, None, Source::Shared(SharedBytes::new(&memory(&more))), WriteOptions::default()).map_err(text)?;
        holds(appended == (200_000, (length + 200_000) as u64), "an append elsewhere")?;
        holds(read(&fs, file, length..length + 200_000).map_err(text)? == more, "other bytes at the end")?;
        fs.unmount().map_err(text)?;
        check_device(&device, false)?;
    }
    Ok(())
}

/// Bytes change while they are written: whole blocks are damaged, and are whole again when they are overwritten; their neighbours, which
/// went by the byte path, have the bytes from before.
fn only_blocks_in_flight_are_damaged(at: At) -> Result<(), String> {
    let (offset, count) = (1000, 250_000);
    let old = fill(1, count);
    let memory = memory(&old);
    let device = device(true, false);
    let fs = mounted(&device, &memory, at)?;
    let (file, other) = (create(&fs, b"file")?, create(&fs, b"other")?);
    fs.write(other, 0, &fill(2, 300_000), WriteOptions::default()).map_err(text)?;
    memory.iter().zip(&old).for_each(|(byte, old)| byte.store(*old, SeqCst));
    write_shared(&fs, file, offset, &memory, WriteOptions::default())?;
    let end = offset + count;
    let (first, last) = (offset.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
    let head = read(&fs, file, offset..first).map_err(text)?;
    holds(head == old[..first - offset], "the head has other bytes")?;
    let tail = read(&fs, file, last..end).map_err(text)?;
    holds(tail == old[last - offset..], "the tail has other bytes")?;
    for block in (first..last).step_by(BLOCK) {
        match read(&fs, file, block..block + BLOCK) {
            Err(Error::DamagedData { offset, .. }) if (block..block + BLOCK).contains(&(offset as usize)) => {}
            found => return Err(format!("block at {block}: {:?}", found.map(|bytes| bytes.len()))),
        }
    }
    let (own, whole) = (fill(3, last - first), read(&fs, other, 0..300_000).map_err(text)?);
    holds(whole == fill(2, 300_000), "another file has other bytes")?;
    fs.write(file, first as u64, &own, WriteOptions::default()).map_err(text)?;
    holds(read(&fs, file, first..last).map_err(text)? == own, "what was written again has other bytes")?;
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

fn changes_in_flight() -> Result<(), String> {
    only_blocks_in_flight_are_damaged(At::InFlight)
}

fn changes_between_stores() -> Result<(), String> {
    only_blocks_in_flight_are_damaged(At::Stores)
}

/// Memory changes after it was written. A page cache then writes what it has now: bytes that are not on the device.
fn written_back_after_a_change() -> Result<(), String> {
    let old = fill(1, BLOCK);
    let memory = memory(&old);
    let device = device(true, false);
    let fs = mounted(&device, &memory, At::Stores)?;
    let file = create(&fs, b"file")?;
    let compare = WriteOptions { compare: true, ..WriteOptions::default() };
    let before = now(&memory);
    write_shared(&fs, file, 0, &memory, compare)?;
    let new = now(&memory);
    holds(before != new, "the memory did not change")?;
    fs.write(file, 0, &new, compare).map_err(text)?;
    fs.drop_file_pages(file).map_err(text)?;
    holds(read(&fs, file, 0..BLOCK).map_err(text)? == new, "what was written is not there")
}

/// Sectors that are damaged on the device are not returned.
fn damaged_on_the_device() -> Result<(), String> {
    let bytes = fill(1, 4 * BLOCK);
    let device = device(true, false);
    let nothing = memory(&[]);
    let fs = mounted(&device, &nothing, At::Never)?;
    let file = create(&fs, b"file")?;
    fs.write(file, 0, &bytes, WriteOptions::default()).map_err(text)?;
    fs.unmount().map_err(text)?;
    let sector = &bytes[2 * BLOCK + 4096..2 * BLOCK + 8192];
    device.damage(|zones: &mut Recorded| {
        let found = zones.blocks.chunks_exact_mut(4096).find(|other| *other == sector);
        found.expect("on the device")[9] ^= 1;
    });
    let fs = mounted(&device, &nothing, At::Never)?;
    match read_shared(&fs, file, 0, &memory(&vec![0; 4 * BLOCK])) {
        Err(Error::DamagedData { offset, .. }) => holds(offset as usize == 2 * BLOCK + 4096, "another offset"),
        found => Err(format!("a damaged sector was read: {found:?}")),
    }
}

/// A client that changes its memory at any moment: each read gets bytes or the error of damage, and nobody else notices.
fn changes_at_any_moment() -> Result<(), String> {
    let memory = memory(&fill(1, MIB));
    let device = device(true, false);
    let fs = mounted(&device, &memory, At::Never)?;
    let (file, other) = (create(&fs, b"file")?, create(&fs, b"other")?);
    fs.write(other, 0, &fill(2, 300_000), WriteOptions::default()).map_err(text)?;
    let is_done = AtomicBool::new(false);
    let rounds = || {
        let mut random = Random::new(7);
        for _ in 0..100 {
            let (offset, count) = (random.below(MIB as u64) as usize, 1 + random.below(MIB as u64 - 1) as usize);
            write_shared(&fs, file, offset, &memory[..count], WriteOptions::default())?;
            let into = random.below((MIB - count + 1) as u64) as usize;
            for found in
                [read_shared(&fs, file, offset, &memory[into..into + count]), read(&fs, file, offset..offset + count).map(|b| b.len())]
            {
                match found {
                    Ok(done) if done == count => {}
                    Err(Error::DamagedData { .. }) => {}
                    other => return Err(format!("{other:?}")),
                }
            }
        }
        Ok(())
    };
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(8);
            while !is_done.load(SeqCst) {
                memory[random.below(MIB as u64) as usize].fetch_add(1, SeqCst);
            }
        });
        let result = rounds();
        is_done.store(true, SeqCst);
        result
    });
    result?;
    holds(read(&fs, other, 0..300_000).map_err(text)? == fill(2, 300_000), "another file has other bytes")?;
    fs.write(file, 0, &fill(3, 2 * MIB), WriteOptions::default()).map_err(text)?;
    holds(read(&fs, file, 0..2 * MIB).map_err(text)? == fill(3, 2 * MIB), "what was written again has other bytes")?;
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

const CATCHERS: [Catcher; 6] =
    [arrives, changes_in_flight, changes_between_stores, written_back_after_a_change, damaged_on_the_device, changes_at_any_moment];

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    for (index, catcher) in CATCHERS.into_iter().enumerate() {
        if let Err(what) = run(Mutant::None, catcher) {
            panic!("catcher {index}: {what}");
        }
    }
}

#[test]
fn sm3_shared_log_read_again() {
    is_caught(Mutant::SharedLogReadAgain, &[changes_between_stores]);
}

#[test]
fn sm3_shared_pages_kept() {
    is_caught(Mutant::SharedPagesKept, &[written_back_after_a_change]);
}

#[test]
fn sm4_shared_parts_not_verified() {
    is_caught(Mutant::SharedPartsNotVerified, &[damaged_on_the_device]);
}

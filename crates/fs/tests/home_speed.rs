//! What files in the memory zone cost by the library, beside the memory alone: a measurement, not a test of limits.
//!
//!     cargo test --profile soak -p tandemfs-fs --test home_speed -- --ignored --nocapture --test-threads 1
//!
//! Each subject takes its turn in each round, so a change of the machine's speed meets all of them. Two devices of each kind, in /dev/shm:
//! the domain *adr*, whose flushes and fences are executed, on memory that does not need them; and *gpf*, which needs none.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandemfs_device::{BlockPath, BytePath, Device, DeviceDescription, Drive, PersistenceDomain, Structure};
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_format::{InodeNumber, LINE_BYTES, LineAddress, UNIT_BYTES};
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, NewInode, SetAttributes, WriteOptions, make_file_system};

const MIB: usize = 1 << 20;
const MEMORY: u64 = 256 << 20;
const FILE: usize = 64 * MIB;
/// Operations of one turn.
const TURN: usize = 16;

/// A device in another persistence domain.
struct InDomain(Arc<dyn Device>, DeviceDescription);

impl Device for InDomain {
    fn byte_path(&self) -> &dyn BytePath {
        self.0.byte_path()
    }

    fn block_path(&self) -> &dyn BlockPath {
        self.0.block_path()
    }

    fn description(&self) -> &DeviceDescription {
        &self.1
    }
}

/// A memory half alone, whose pages are there.
fn drive(name: &str, domain: PersistenceDomain) -> Drive {
    let path = format!("/dev/shm/tandemfs-home-speed-{}-{name}", std::process::id());
    std::fs::File::create_new(&path).and_then(|file| file.set_len(MEMORY)).expect("room in /dev/shm");
    let device = open_device(&format!("memory={path}"), &DeviceOptions::default());
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let device = device.expect("opens");
    let zeros = vec![0; MIB];
    (0..MEMORY).step_by(MIB).for_each(|offset| device.byte_path().store(offset, &zeros).expect("stored"));
    let description = DeviceDescription { domain, ..device.description().clone() };
    Drive::new(Arc::new(InDomain(device, description)))
}

struct Subject {
    fs: FileSystem,
    file: InodeNumber,
}

fn subject(name: &str, domain: PersistenceDomain, block_bytes: u32, checksum_kind: ChecksumKind) -> Subject {
    let drive = drive(name, domain);
    let options = FormatOptions { block_bytes, checksum_kind, ..FormatOptions::default() };
    make_file_system(&drive, &options).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).expect("made").inode;
    Subject { fs, file }
}

impl Subject {
    fn write(&self, offset: usize, bytes: &[u8]) {
        assert_eq!(self.fs.write(self.file, offset as u64, bytes, WriteOptions::default()).expect("written"), bytes.len());
    }

    fn empty(&self) {
        self.fs.set_attributes(self.file, &SetAttributes { size: Some(0), ..SetAttributes::default() }).expect("cut");
        self.fs.checkpoint().expect("home");
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Turns of subjects, interleaved: the median time of each in microseconds. `at` of the operations goes on from turn to turn.
fn interleaved(rounds: usize, subjects: &mut [&mut dyn FnMut(usize)], before: &mut dyn FnMut(usize)) -> Vec<f64> {
    let mut times = vec![Vec::new(); subjects.len()];
    for round in 0..rounds + rounds / 10 {
        before(round);
        for (index, subject) in subjects.iter_mut().enumerate() {
            for turn in 0..TURN {
                let start = Instant::now();
                subject(round * TURN + turn);
                let time = start.elapsed();
                if round >= rounds / 10 {
                    times[index].push(time);
                }
            }
        }
    }
    times.into_iter().map(median).collect()
}

fn persist(drive: &Drive, offset: usize, bytes: &[u8]) {
    // Units that no file system has: the device has none.
    let address = LineAddress::new(((UNIT_BYTES as usize + offset) / LINE_BYTES) as u64);
    drop(drive.persist(Structure::Data, address, bytes).expect("stored"));
}

fn small(domain: PersistenceDomain, checksum_kind: ChecksumKind) {
    let (fresh, over) = (subject("fresh", domain, 4096, checksum_kind), subject("over", domain, 4096, checksum_kind));
    let bare = drive("bare", domain);
    let data = vec![0x5a; 4096];
    let blocks = FILE / 4096;
    (0..FILE / MIB).for_each(|piece| over.write(piece * MIB, &vec![1; MIB]));
    let line = [7; 256];
    let found = interleaved(
        4000,
        &mut [
            &mut |at| fresh.write(at % blocks * 4096, &data),
            &mut |at| over.write(at * 7919 % blocks * 4096, &data),
            &mut |at| persist(&bare, at % blocks * 4096, &data),
            &mut |at| {
                // What a journaled overwrite in place would cost at least: two copies and two records.
                persist(&bare, at % blocks * 4096, &data);
                persist(&bare, FILE + at % 1024 * 256, &line);
                persist(&bare, at * 7919 % blocks * 4096, &data);
                persist(&bare, FILE + MIB + at % 1024 * 256, &line);
            },
        ],
        &mut |round| {
            if (round * TURN).is_multiple_of(blocks) {
                fresh.empty();
            }
        },
    );
    let [fresh_us, over_us, bare_us, twice_us] = found[..] else { unreachable!("four subjects") };
    println!(
        "4 KiB, {domain}, {checksum_kind:?}: fresh {fresh_us:.2} us, copy + flush + fence {bare_us:.2}: {:+.2} us (limit +0.30)",
        fresh_us - bare_us
    );
    println!("    overwrite {over_us:.2} us, two copies and two records {twice_us:.2}: {:+.2} us", over_us - twice_us);
}

fn large(domain: PersistenceDomain, checksum_kind: ChecksumKind) {
    let [fresh, over] = ["fresh", "over"].map(|name| subject(name, domain, 64 << 10, checksum_kind));
    let bare = drive("bare", domain);
    let data: Vec<u8> = (0..MIB).map(|byte| (byte / 7) as u8).collect();
    let pieces = FILE / MIB;
    (0..pieces).for_each(|piece| over.write(piece * MIB, &data));
    (0..pieces).for_each(|piece| persist(&bare, piece * MIB, &data));
    let (mut into, mut bare_into) = (vec![0; MIB], vec![0; MIB]);
    let found = interleaved(
        60,
        &mut [
            &mut |at| fresh.write(at % pieces * MIB, &data),
            &mut |at| over.write(at * 37 % pieces * MIB, &data),
            &mut |at| persist(&bare, at % pieces * MIB, &data),
            &mut |at| assert_eq!(over.fs.read(over.file, (at % pieces * MIB) as u64, &mut into).expect("read"), MIB),
            &mut |at| {
                let address = LineAddress::new(((UNIT_BYTES as usize + at % pieces * MIB) / LINE_BYTES) as u64);
                bare.load(Structure::Data, address, black_box(&mut bare_into)).expect("loaded");
            },
        ],
        &mut |round| {
            if (round * TURN).is_multiple_of(pieces) {
                fresh.empty();
            }
        },
    );
    let [fresh_us, over_us, store_us, read_us, load_us] = found[..] else { unreachable!("five subjects") };
    let share = |bare: f64, own: f64| bare * 100.0 / own;
    println!(
        "1 MiB, {domain}, {checksum_kind:?}: fresh {fresh_us:.0} us of {store_us:.0}: {:.0} % (limit 90); overwrite {over_us:.0} us: {:.0} % (limit 45); read \
         {read_us:.0} us of {load_us:.0}: {:.0} % (limit 90)",
        share(store_us, fresh_us),
        share(store_us, over_us),
        share(load_us, read_us)
    );
}

fn each(measure: fn(PersistenceDomain, ChecksumKind)) {
    for domain in [PersistenceDomain::Gpf, PersistenceDomain::Adr] {
        for checksum_kind in [ChecksumKind::Crc32c, ChecksumKind::None] {
            measure(domain, checksum_kind);
        }
    }
}

#[test]
#[ignore = "a measurement: some seconds, and a quiet machine"]
fn writes_of_4_kib_beside_the_memory_alone() {
    each(small);
}

#[test]
#[ignore = "a measurement: half a minute, and a quiet machine"]
fn requests_of_1_mib_beside_the_memory_alone() {
    each(large);
}

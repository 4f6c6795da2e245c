//! Lent memory by real threads on mapped memory: what is loaded while the versions stay is one whole version of a block, and no old one. What such
//! a load costs beside a call is a measurement:
//!
//!     cargo test --profile soak -p tandemfs-fs --test lent -- --ignored --nocapture

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Instant;

use tandemfs_crash::Random;
use tandemfs_device::{Drive, MappedMemory, MemoryRange};
use tandemfs_emulator::{DeviceOptions, open_device};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileSystem, FormatOptions, LentExtent, MountOptions, NewInode, Versions, WriteOptions, make_file_system};

const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
const ZONE_BYTES: u64 = 64 << 20;
const WORDS: usize = 1 << 15;

/// As the daemon publishes them.
struct Words(Vec<AtomicU64>);

struct Publishing(Arc<Words>);

fn place(thing: u64) -> u32 {
    (thing.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49) as u32
}

impl Versions for Publishing {
    fn raise(&self, thing: u64) {
        self.0.0[place(thing) as usize].fetch_add(1, SeqCst);
    }

    fn current(&self, thing: u64) -> (u32, u64) {
        (place(thing), self.0.0[place(thing) as usize].load(Acquire))
    }
}

/// A window and its versions, as a program holds them.
struct Held {
    extents: Vec<LentExtent>,
    seen: Vec<(u32, u64)>,
}

impl Held {
    fn lend(fs: &FileSystem, file: InodeNumber) -> Self {
        fs.noting(|| fs.lend(file, 0), |extents, noted| Self { extents: extents.expect("lent"), seen: noted.versions(None).collect() })
    }

    fn is_valid(&self, words: &Words) -> bool {
        self.seen.iter().all(|(place, version)| words.0[*place as usize].load(Acquire) == *version)
    }

    /// Loads a block. None if it is not lent, or is not any more.
    fn load(&self, words: &Words, zone: &dyn MappedMemory, block: usize, into: &mut [u8]) -> Option<()> {
        let offset = (block * BLOCK) as u64;
        let extent = self.extents.iter().find(|extent| (extent.file_offset..extent.file_offset + extent.bytes).contains(&offset))?;
        if !self.is_valid(words) {
            return None;
        }
        zone.copy_out(extent.device_offset + (offset - extent.file_offset), into).expect("mapped");
        fence(Acquire);
        self.is_valid(words).then_some(())
    }
}

fn create(fs: &FileSystem, name: &str) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name.as_bytes(), &new).expect("made").inode
}

/// Each word says which version of which block it is of.
fn content(block: usize, version: u64) -> Vec<u8> {
    ((block as u64) << 32 | version).to_le_bytes().repeat(BLOCK / 8)
}

fn mounted(name: &str) -> (FileSystem, Arc<Words>, Box<dyn MappedMemory>, InodeNumber) {
    let path = std::env::temp_dir().join(format!("tandemfs-lent-{}-{name}", std::process::id()));
    std::fs::File::create_new(&path).and_then(|file| file.set_len(ZONE_BYTES)).expect("a file");
    let device = open_device(&format!("memory={}", path.display()), &DeviceOptions::default());
    std::fs::remove_file(&path).expect("removed; the device keeps it");
    let drive = Drive::new(device.expect("opens"));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let words = Arc::new(Words((0..WORDS).map(|_| AtomicU64::new(0)).collect()));
    assert!(fs.publish(Box::new(Publishing(words.clone()))));
    let zone = fs.drive().map(&[MemoryRange { offset: 0, length: ZONE_BYTES }], false).expect("maps");
    let file = create(&fs, "file");
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(|block| content(block, 0)).collect();
    assert_eq!(fs.write(file, 0, &bytes, WriteOptions::default()).expect("written"), bytes.len());
    fs.write_back_all().expect("written back");
    (fs, words, zone, file)
}

/// Ends the other threads, also where this one fails.
struct Ends<'e>(&'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn what_threads_load_is_whole_and_not_old() {
    const LOOKS: usize = 20_000;
    let (fs, words, zone, file) = mounted("threads");
    let (begun, done): (Vec<_>, Vec<_>) = (0..BLOCKS).map(|_| (AtomicU64::new(0), AtomicU64::new(0))).unzip();
    let ends = AtomicBool::new(false);
    let mut loaded = vec![0; BLOCK];
    let mut check = |held: &Held, block: usize| {
        let least = done[block].load(SeqCst);
        held.load(&words, &*zone, block, &mut loaded)?;
        let most = begun[block].load(SeqCst);
        let found = u64::from_le_bytes(loaded[..8].try_into().expect("eight bytes"));
        assert_eq!((found >> 32) as usize, block, "the bytes are of another place");
        let version = found & u64::from(u32::MAX);
        assert!((least..=most).contains(&version), "version {version} of block {block}, not {least} to {most}");
        assert!(loaded == content(block, version), "block {block} is of several versions");
        Some(())
    };
    let mut valid = 0;
    std::thread::scope(|scope| {
        let _ends = Ends(&ends);
        scope.spawn(|| {
            let mut random = Random::new(1);
            let mut version = 0;
            while !ends.load(Relaxed) {
                version += 1;
                let block = random.below(BLOCKS as u64) as usize;
                begun[block].store(version, SeqCst);
                fs.write(file, (block * BLOCK) as u64, &content(block, version), WriteOptions::default()).expect("written");
                done[block].store(version, SeqCst);
                if random.one_in(4) {
                    fs.write_back_all().expect("written back");
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(|| {
            while !ends.load(Relaxed) {
                let other = create(&fs, "other");
                fs.write(other, 0, &content(1 << 20, 7).repeat(16), WriteOptions::default()).expect("written");
                fs.unlink(InodeNumber::ROOT, b"other").expect("removed");
            }
        });
        let mut random = Random::new(2);
        let mut held = Held::lend(&fs, file);
        for _ in 0..LOOKS {
            match check(&held, random.below(BLOCKS as u64) as usize) {
                Some(()) => valid += 1,
                None if held.is_valid(&words) => {} // a data log lies over it
                None => held = Held::lend(&fs, file),
            }
        }
    });
    println!("{valid} of {LOOKS} loads were valid");
    fs.write_back_all().expect("written back");
    let held = Held::lend(&fs, file);
    assert!((0..BLOCKS).all(|block| check(&held, block).is_some()), "nobody changes it any more");
    drop(zone);
    fs.unmount().expect("unmounts");
}

#[test]
#[ignore = "a measurement"]
fn cost() {
    const ROUNDS: usize = 100_000;
    let (fs, words, zone, file) = mounted("cost");
    let held = Held::lend(&fs, file);
    let mut bytes = vec![0; BLOCK];
    let mut ns = |each: &mut dyn FnMut(usize, &mut [u8])| {
        let mut all: Vec<f64> = (0..5)
            .map(|_| {
                let begun = Instant::now();
                (0..ROUNDS).for_each(|round| each(round * 7 % BLOCKS, black_box(&mut bytes)));
                begun.elapsed().as_nanos() as f64 / ROUNDS as f64
            })
            .collect();
        all.sort_by(f64::total_cmp);
        all[2]
    };
    let copy = ns(&mut |block, into| zone.copy_out(held.extents[0].device_offset + (block * BLOCK) as u64, into).expect("copied"));
    let lent = ns(&mut |block, into| held.load(&words, &*zone, block, into).expect("valid"));
    let call = ns(&mut |block, into| assert_eq!(fs.read(file, (block * BLOCK) as u64, into).expect("read"), BLOCK));
    let lend = ns(&mut |_, _| drop(black_box(Held::lend(&fs, file))));
    println!("4 KiB, medians: copy {copy:.0} ns, lent {lent:.0} ns, call {call:.0} ns; to lend {} KiB {lend:.0} ns", BLOCKS * BLOCK / 1024);
    drop(zone);
    fs.unmount().expect("unmounts");
}

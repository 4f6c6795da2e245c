//! Random operations on a file compared with a byte array, like fsx, through the library: what the kernel sends a FUSE daemon, and
//! collapsed, inserted and unshared ranges, which it does not send. Files are closed and the file system is mounted again in between.
//!
//!     TANDEMFS_SEED=N TANDEMFS_STEPS=1000000 cargo test --release -p tandemfs-fs --test exerciser -- --nocapture

use std::sync::Arc;

use tandemfs_crash::{MemoryDevice, Random, check_device, fill, seed_or};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    AllocateMode, Error, FileSystem, FormatOptions, MountOptions, NewInode, SeekTo, SetAttributes, WriteOptions, make_file_system,
};

/// Largest file, in bytes: four pages of records where blocks have 4 KiB.
const FILE_BYTES_MAX: u64 = 3 << 20;
/// Steps between two mounts.
const MOUNT_STEPS: u64 = 2000;

fn steps() -> u64 {
    std::env::var("TANDEMFS_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(1500)
}

struct Exerciser {
    device: MemoryDevice,
    fs: FileSystem,
    inode: InodeNumber,
    bytes: Vec<u8>,
    block_bytes: u64,
    random: Random,
    /// How often each mode that the kernel does not send changed something.
    shifted: [u64; 2],
}

fn mounted(device: &MemoryDevice) -> FileSystem {
    FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default()).expect("mounts")
}

impl Exerciser {
    fn new(block_bytes: u32, firmware: bool, seed: u64) -> Self {
        let device = MemoryDevice::new(32 << 20, 32 << 20, PersistenceDomain::Gpf).given_firmware(firmware);
        let format = FormatOptions { block_bytes, ..FormatOptions::default() };
        make_file_system(&Drive::new(Arc::new(device.clone())), &format).expect("mkfs");
        let fs = mounted(&device);
        let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        let inode = fs.create(InodeNumber::ROOT, b"file", &new).expect("creates").inode;
        let (random, bytes) = (Random::new(seed), Vec::new());
        Self { device, fs, inode, bytes, block_bytes: block_bytes.into(), random, shifted: [0; 2] }
    }

    fn place(&mut self) -> u64 {
        let unit = *self.random.pick(&[1, 512, 4096, self.block_bytes]);
        self.random.below(FILE_BYTES_MAX / unit) * unit
    }

    fn length(&mut self) -> u64 {
        let most = *self.random.pick(&[100, 5000, 70_000, 300_000]);
        1 + self.random.below(most)
    }

    /// A range of whole blocks.
    fn blocks(&mut self) -> (u64, u64) {
        let blocks = self.bytes.len() as u64 / self.block_bytes + 1;
        let most = *self.random.pick(&[1, 3, blocks]);
        (self.random.below(blocks) * self.block_bytes, (1 + self.random.below(most)) * self.block_bytes)
    }

    fn grow(&mut self, end: u64) {
        self.bytes.resize(self.bytes.len().max(end as usize), 0);
    }

    fn zero(&mut self, offset: u64, end: u64) {
        let end = (end as usize).min(self.bytes.len());
        if (offset as usize) < end {
            self.bytes[offset as usize..end].fill(0);
        }
    }

    fn step(&mut self) -> String {
        let (offset, length) = (self.place(), self.length());
        let end = (offset + length).min(FILE_BYTES_MAX);
        let length = end - offset;
        let keep_size = self.random.one_in(2);
        match self.random.below(12) {
            0..=2 => {
                let data = fill(self.random.next() % 1000, length as usize);
                let written = self.fs.write(self.inode, offset, &data, WriteOptions::default()).expect("writes");
                assert_eq!(written as u64, length);
                self.grow(end);
                self.bytes[offset as usize..end as usize].copy_from_slice(&data);
                format!("wrote {offset}..{end}")
            }
            3 => {
                self.fs.set_attributes(self.inode, &SetAttributes { size: Some(offset), ..SetAttributes::default() }).expect("truncates");
                self.bytes.resize(offset as usize, 0);
                format!("truncated to {offset}")
            }
            4 => {
                let mode = match self.random.one_in(3) {
                    true => AllocateMode::Unshare { keep_size },
                    false => AllocateMode::Allocate { keep_size },
                };
                self.fs.allocate(self.inode, offset, length, mode).expect("there is room");
                if !keep_size {
                    self.grow(end);
                }
                format!("{mode:?} {offset}..{end}")
            }
            5 => {
                self.fs.allocate(self.inode, offset, length, AllocateMode::Punch).expect("punches");
                self.zero(offset, end);
                format!("punched {offset}..{end}")
            }
            6 => {
                self.fs.allocate(self.inode, offset, length, AllocateMode::Zero { keep_size }).expect("zeroes");
                self.zero(offset, end);
                if !keep_size {
                    self.grow(end);
                }
                format!("zeroed {offset}..{end}")
            }
            7 => {
                let target = self.place();
                let length = length.min(FILE_BYTES_MAX - target);
                let expected = length.min((self.bytes.len() as u64).saturating_sub(offset));
                let overlaps = offset < target + expected && target < offset + expected;
                let copied = self.fs.copy_range((self.inode, offset), (self.inode, target), length, WriteOptions::default());
                if overlaps && expected > 0 {
                    assert!(matches!(copied, Err(Error::InvalidArgument(_))), "{copied:?}");
                    return "refused to copy".into();
                }
                assert_eq!(copied.expect("copies"), expected);
                let data = self.bytes[(offset as usize).min(self.bytes.len())..][..expected as usize].to_vec();
                if expected > 0 {
                    self.grow(target + expected);
                    self.bytes[target as usize..(target + expected) as usize].copy_from_slice(&data);
                }
                format!("copied {expected} B from {offset} to {target}")
            }
            8 | 9 => {
                let (offset, length) = self.blocks();
                let result = self.fs.allocate(self.inode, offset, length, AllocateMode::Collapse);
                if offset + length >= self.bytes.len() as u64 {
                    assert!(matches!(result, Err(Error::InvalidArgument(_))), "{result:?}");
                    return "refused to collapse".into();
                }
                result.expect("collapses");
                self.bytes.drain(offset as usize..(offset + length) as usize);
                self.shifted[0] += 1;
                format!("collapsed {length} B at {offset}")
            }
            10 => {
                let (offset, length) = self.blocks();
                if self.bytes.len() as u64 + length > FILE_BYTES_MAX {
                    return "nothing".into();
                }
                let result = self.fs.allocate(self.inode, offset, length, AllocateMode::Insert);
                if offset >= self.bytes.len() as u64 {
                    assert!(matches!(result, Err(Error::InvalidArgument(_))), "{result:?}");
                    return "refused to insert".into();
                }
                result.expect("inserts");
                let at = offset as usize;
                self.bytes.splice(at..at, std::iter::repeat_n(0, length as usize));
                self.shifted[1] += 1;
                format!("inserted {length} B at {offset}")
            }
            _ => {
                let mut read = vec![0xaa; length as usize];
                let got = self.fs.read(self.inode, offset, &mut read).expect("reads");
                let from = (offset as usize).min(self.bytes.len());
                let to = (end as usize).min(self.bytes.len());
                assert!(read[..got] == self.bytes[from..to], "{offset}..{end} reads otherwise");
                format!("read {offset}..{end}")
            }
        }
    }

    fn compare(&self, after: &str) {
        let mut found = vec![0; self.bytes.len() + 1];
        let length = self.fs.read(self.inode, 0, &mut found).expect("reads");
        assert_eq!((length, self.fs.attributes(self.inode).expect("there").size), (self.bytes.len(), length as u64), "{after}");
        if let Some(at) = (0..length).find(|at| found[*at] != self.bytes[*at]) {
            panic!("{after}: byte {at} is {:#x} instead of {:#x}", found[at], self.bytes[at]);
        }
        // A hole of the mapping reads as zeros.
        let mut at = 0;
        while let Some(hole) = self.fs.seek(self.inode, at, SeekTo::Hole).expect("sought").filter(|hole| (*hole as usize) < length) {
            let data = self.fs.seek(self.inode, hole, SeekTo::Data).expect("sought").unwrap_or(length as u64);
            assert!(self.bytes[hole as usize..data as usize].iter().all(|byte| *byte == 0), "{after}: {hole}..{data} is no hole");
            at = data;
        }
    }

    fn mount_again(&mut self) {
        self.fs.unmount().expect("unmounts");
        check_device(&self.device, false).expect("clean");
        self.fs = mounted(&self.device);
    }

    fn run(&mut self, steps: u64) {
        for step in 1..=steps {
            let done = self.step();
            if step.is_multiple_of(20) || done.contains("ed ") {
                self.compare(&format!("step {step}, {done}"));
            }
            if step.is_multiple_of(MOUNT_STEPS) {
                self.mount_again();
                self.compare(&format!("mounted after step {step}"));
            }
        }
        self.mount_again();
        self.compare("at the end");
        self.fs.unlink(InodeNumber::ROOT, b"file").expect("removed");
        self.mount_again();
        assert_eq!(self.fs.space().memory.data_log_bytes, 0);
        assert!(self.shifted.iter().all(|count| *count > steps / 40), "{:?}", self.shifted);
    }
}

fn exercise(block_bytes: u32, firmware: bool) {
    let seed = seed_or(21);
    for seed in seed..seed + 3 {
        println!("TANDEMFS_SEED={seed}, blocks of {block_bytes}, firmware: {firmware}");
        Exerciser::new(block_bytes, firmware, seed).run(steps() / 3);
    }
}

#[test]
fn blocks_of_4_kib() {
    exercise(4 << 10, false);
}

#[test]
fn blocks_of_64_kib() {
    exercise(64 << 10, false);
}

#[test]
fn blocks_of_4_kib_on_a_drive_with_firmware() {
    exercise(4 << 10, true);
}

#[test]
fn blocks_of_64_kib_on_a_drive_with_firmware() {
    exercise(64 << 10, true);
}

//! `allocate` gives a large file as much as `large_file_bytes` shows, and not clearly more.

use std::sync::Arc;

use tandemfs_crash::{MemoryDevice, Random, fill, seed_or};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::ChecksumKind;
use tandemfs_fs::{AllocateMode, Error, FileSystem, FormatOptions, MountOptions, NewInode, SetAttributes, WriteOptions, make_file_system};

const ALLOCATE: AllocateMode = AllocateMode::Allocate { keep_size: false };
/// Blocks that a unit of the memory zone maps at least, with a vector for each.
const UNIT_BLOCKS: u64 = 32_768;

struct World {
    fs: FileSystem,
    block_bytes: u64,
    files: Vec<Vec<u8>>,
}

impl World {
    fn new(memory_bytes: u64, block_zone_bytes: u64, block_bytes: u32, checksum_kind: ChecksumKind) -> Self {
        let drive = Drive::new(Arc::new(MemoryDevice::new(memory_bytes, block_zone_bytes, PersistenceDomain::Gpf)));
        make_file_system(&drive, &FormatOptions { block_bytes, checksum_kind, ..FormatOptions::default() }).expect("mkfs");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        Self { fs, block_bytes: block_bytes.into(), files: Vec::new() }
    }

    fn make(&self, name: &[u8]) -> InodeNumber {
        let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
        self.fs.create(InodeNumber::ROOT, name, &new).expect("made").inode
    }

    /// Creates, removes and changes files, so that both zones become fragmented.
    fn age(&mut self, random: &mut Random, steps: u64) {
        for step in 0..steps {
            let name = format!("file {step}").into_bytes();
            let file = self.make(&name);
            let length = random.below(6 * self.block_bytes) + 1;
            let done = match random.below(3) {
                0 => self.fs.write(file, random.below(1 << 20), &fill(step, length as usize), WriteOptions::default()).map(drop),
                1 => self.fs.allocate(file, 0, length, ALLOCATE),
                _ => self.fs.write(file, random.below(1 << 40), b"far away", WriteOptions::default()).map(drop),
            };
            match done {
                Ok(()) | Err(Error::NoSpace { .. }) => self.files.push(name),
                Err(error) => panic!("{error}"),
            }
            let one = random.below(self.files.len() as u64) as usize;
            match random.below(4) {
                0 => self.fs.unlink(InodeNumber::ROOT, &self.files.swap_remove(one)).expect("removed"),
                1 => {
                    let inode = self.fs.lookup(InodeNumber::ROOT, &self.files[one]).expect("there").inode;
                    let size = Some(random.below(3 * self.block_bytes));
                    match self.fs.set_attributes(inode, &SetAttributes { size, ..SetAttributes::default() }) {
                        Ok(_) | Err(Error::NoSpace { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                _ => {}
            }
        }
        self.fs.write_back_all().expect("no logs hold units");
        self.fs.checkpoint().expect("home");
        self.fs.space();
    }

    /// Space of the block zone that is available for growth, in bytes.
    fn of_zone(&self) -> u64 {
        self.fs.space().block.available_bytes
    }

    /// Allocates as much as is shown for a new file, and returns it; then checks that more is refused.
    fn take_all(&self, what: &str) -> u64 {
        let bytes = self.fs.large_file_bytes();
        assert!(bytes.is_multiple_of(self.block_bytes) && bytes <= self.of_zone(), "{what}: {bytes} B");
        assert!(self.take(bytes, what), "{what}: {bytes} B are shown, and refused; {:?}", self.fs.space());
        // If the memory zone is the limit, the shown value may be a unit short.
        let more = bytes + bytes / 4 + UNIT_BLOCKS * self.block_bytes;
        let is_exact = || !self.take(bytes + self.block_bytes, what);
        assert!(
            is_exact() || bytes < self.of_zone() / 10 * 9 && !self.take(more, what),
            "{what}: {bytes} B are shown, clearly more are given"
        );
        bytes
    }

    /// Whether a new file gets that many bytes. The file is removed again.
    fn take(&self, bytes: u64, what: &str) -> bool {
        let file = self.make(b"large");
        let given = if bytes == 0 { Ok(()) } else { self.fs.allocate(file, 0, bytes, ALLOCATE) };
        if given.is_ok() {
            assert!(self.fs.large_file_bytes() <= self.block_bytes * UNIT_BLOCKS, "{what}: as much again is not there");
        }
        self.fs.unlink(InodeNumber::ROOT, b"large").expect("removed");
        self.fs.checkpoint().expect("home");
        self.fs.space();
        match given {
            Ok(()) => true,
            Err(Error::NoSpace { .. }) => false,
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

#[test]
fn a_fresh_file_system_gives_what_it_shows() {
    for (memory_bytes, block_zone_bytes, block_bytes) in [
        (16 << 20, 8 << 20, 4 << 10),
        (16 << 20, 8 << 20, 64 << 10),
        (16 << 20, 300 << 20, 64 << 10),
        (32 << 20, 130 << 20, 1 << 20),
        (64 << 20, 1 << 30, 4 << 10),
        (64 << 20, 8 << 30, 64 << 10),
    ] {
        for checksum_kind in [ChecksumKind::Crc32c, ChecksumKind::None] {
            let world = World::new(memory_bytes, block_zone_bytes, block_bytes, checksum_kind);
            let what = format!("{memory_bytes} B, {block_zone_bytes} B, blocks of {block_bytes} B, {checksum_kind:?}");
            let before = world.of_zone();
            assert!(world.take_all(&what) + 2 * u64::from(block_bytes) > before, "{what}: the block zone is the limit");
        }
    }
}

#[test]
fn a_memory_zone_full_of_names_is_the_limit() {
    for (block_bytes, kind, limits) in [
        (4 << 10, ChecksumKind::Crc32c, true),
        (4 << 10, ChecksumKind::None, true),
        (16 << 10, ChecksumKind::Crc32c, true),
        (64 << 10, ChecksumKind::None, false),
    ] {
        let world = World::new(16 << 20, 1500 << 20, block_bytes, kind);
        for name in 0..30_000 {
            world.make(format!("{name}").as_bytes());
        }
        world.fs.checkpoint().expect("home");
        let what = format!("blocks of {block_bytes} B, {kind:?}");
        let before = world.of_zone();
        let bytes = world.take_all(&what);
        assert_eq!(bytes < before / 10 * 9, limits, "{what}: {bytes} B of {before} B");
    }
}

#[test]
fn a_used_file_system_gives_what_it_shows() {
    let mut random = Random::new(seed_or(11));
    for round in 0..24 {
        let block_bytes = *random.pick(&[4 << 10, 16 << 10, 64 << 10, 256 << 10]);
        let memory_bytes = *random.pick(&[16 << 20, 24 << 20, 64 << 20]);
        let block_zone_bytes = *random.pick(&[12 << 20, 100 << 20, 150 << 20]);
        let kind = *random.pick(&[ChecksumKind::Crc32c, ChecksumKind::None]);
        let mut world = World::new(memory_bytes, block_zone_bytes, block_bytes, kind);
        let steps = 1 + random.below(400);
        world.age(&mut random, steps);
        world.take_all(&format!(
            "round {round}: {steps} steps, {memory_bytes} B, {block_zone_bytes} B, blocks of {block_bytes} B, {kind:?}"
        ));
    }
}

//! File systems, and files in the memory zone that are written, read and mapped, for the tests of mappings, lent memory and sizes.
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;

use tandemfs_crash::MemoryDevice;
use tandemfs_device::Drive;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileMapping, FileSystem, Growth, Home, Kept, MountOptions, NewInode, ReadOptions, WriteOptions};

/// A drive over a device, which others may have too.
pub fn drive(device: &MemoryDevice) -> Drive {
    Drive::new(Arc::new(device.clone()))
}

pub fn mount(device: &MemoryDevice) -> FileSystem {
    FileSystem::mount(drive(device), &MountOptions::default()).expect("mounts")
}

/// Sizes in MiB.
pub fn sizes(memory: Option<u64>, block: Option<u64>) -> Growth {
    let bytes = |mebibytes: u64| mebibytes << 20;
    Growth { memory_bytes: memory.map(bytes), block_bytes: block.map(bytes) }
}

pub fn mounted(device: &Arc<MemoryDevice>) -> FileSystem {
    let fs = FileSystem::mount(Drive::new(device.clone()), &MountOptions::default()).expect("mounts");
    fs.set_home(InodeNumber::ROOT, Home::Memory).expect("has a home");
    fs
}

pub fn create(fs: &FileSystem, name: &[u8]) -> InodeNumber {
    let new = NewInode { mode: file_type::REGULAR | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).expect("made").inode
}

pub fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: &[u8]) {
    assert_eq!(fs.write(file, offset, bytes, WriteOptions::default()).expect("written"), bytes.len());
}

/// Reads as somebody without a cache; file pages keep the bytes where they may.
pub fn read(fs: &FileSystem, file: InodeNumber, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let count = fs.read_with(file, offset, &mut bytes, ReadOptions { kept: Kept::Here }).expect("read");
    bytes.truncate(count);
    bytes
}

pub fn load(mapping: &FileMapping<'_>, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    mapping.load(offset, &mut bytes).expect("loaded");
    bytes
}

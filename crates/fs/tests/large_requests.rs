//! Large aligned requests reach the drive as few large requests.

use std::sync::Arc;

use tandemfs_crash::MemoryDevice;
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

#[test]
fn a_mebibyte_that_was_written_at_once_is_read_at_once() {
    let drive = Drive::new(Arc::new(MemoryDevice::new(16 << 20, 32 << 20, PersistenceDomain::Gpf)));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let new = NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(InodeNumber::ROOT, b"file", &new).expect("creates").inode;
    let mut bytes = vec![7; 1 << 20];
    for piece in 0..8 {
        fs.write(file, piece << 20, &bytes, WriteOptions::default()).expect("writes");
    }
    fs.reset_statistics();
    for piece in 0..8 {
        fs.read(file, piece << 20, &mut bytes).expect("reads");
    }
    let reads = fs.drive().counters().snapshot().block_reads;
    assert!(reads <= 10, "{reads} requests for 8 MiB");
}

//! What is shown of the space is what there is: files that can be made, and which zone is short.

use std::sync::Arc;

use tandemfs_crash::{MemoryDevice, Random, stay_on_one_cpu};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, FormatOptions, MountOptions, NewInode, WriteOptions, make_file_system};

fn mounted(memory_bytes: u64, block_zone_bytes: u64) -> FileSystem {
    let drive = Drive::new(Arc::new(MemoryDevice::new(memory_bytes, block_zone_bytes, PersistenceDomain::Gpf)));
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    FileSystem::mount(drive, &MountOptions::default()).expect("mounts")
}

fn make(fs: &FileSystem, parent: InodeNumber, name: &str, kind: u16) -> Result<InodeNumber, Error> {
    let new = NewInode { mode: kind | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(parent, name.as_bytes(), &new).map(|made| made.inode)
}

/// As many files can be made as is shown, whatever used the space before; and not many more, which pages of names have room for.
#[test]
fn as_many_files_can_be_made_as_is_shown() {
    stay_on_one_cpu().expect("pinned"); // in a zone of eight units each CPU's pool of slots counts
    let mut random = Random::new(3);
    for round in 0..6 {
        let fs = mounted(*random.pick(&[16 << 20, 20 << 20, 32 << 20]), 64 << 20);
        let before = make(&fs, InodeNumber::ROOT, "before", file_type::DIRECTORY).expect("made");
        for name in 0..random.below(9000) {
            let file = make(&fs, before, &name.to_string(), file_type::REGULAR).expect("made");
            if random.one_in(8) {
                fs.write(file, 192 * 65_536, &[1; 300], WriteOptions::default()).expect("written");
            }
        }
        for name in 0..random.below(5000) {
            let _gone = fs.unlink(before, name.to_string().as_bytes());
        }
        fs.checkpoint().expect("home");
        let directory = make(&fs, InodeNumber::ROOT, "directory", file_type::DIRECTORY).expect("made");
        let shown = fs.space().inodes_free;
        let made = (0..).find(|name: &u64| make(&fs, directory, &name.to_string(), file_type::REGULAR).is_err()).expect("it is full");
        assert!(made >= shown && made <= shown + shown / 4 + 16_384, "round {round}: {made} made, {shown} shown");
        assert!(fs.space().inodes_free < 64, "round {round}: {:?}", fs.space());
        let short = fs.short_zones();
        assert!(short.iter().any(|short| short.zone == "memory" && short.what.contains("files")), "{short:?}");
    }
}

#[test]
fn a_block_zone_full_of_data_is_told() {
    let fs = mounted(64 << 20, 64 << 20);
    assert_eq!(fs.short_zones(), []);
    let file = make(&fs, InodeNumber::ROOT, "file", file_type::REGULAR).expect("made");
    let bytes = vec![1; 1 << 20];
    for at in 0.. {
        if fs.write(file, at << 20, &bytes, WriteOptions::default()).is_err() {
            break;
        }
    }
    let short = fs.short_zones();
    assert!(short.iter().any(|short| short.zone == "block" && short.advice.contains("--block")), "{short:?}");
    fs.unlink(InodeNumber::ROOT, b"file").expect("removed");
    fs.checkpoint().expect("home");
    assert_eq!(fs.short_zones(), []);
}

//! Golden images: file systems of this stage of the format, kept compressed, that must mount and read the same for ever after.
//!
//! While images carry the *development* bit they are made anew when the format changes:
//! `TANDEMFS_MAKE_GOLDEN=1 cargo test -p tandemfs-fs --test golden_images`. Once Format 1 is declared, a file here never changes.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use tandemfs_crash::{MemoryDevice, Recorded};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::checksum::crc32c;
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::{SuperblockError, VERSION};
use tandemfs_fs::{Error, FileSystem, FormatOptions, Growth, MountOptions, NewInode, WriteOptions, grow, make_file_system};

const MEMORY_BYTES: usize = 16 << 20;
const BLOCK_BYTES: usize = 4 << 20;
/// The memory zone of the image that has grown: 22 units at first, whose map pieces leave room for eight more, and 32 now.
const GROWN_MEMORY_BYTES: [usize; 2] = [44 << 20, 64 << 20];
const SMALL: &[u8] = b"a golden image is read by every later build";

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn large() -> Vec<u8> {
    (0..200_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn file() -> NewInode<'static> {
    NewInode { mode: file_type::REGULAR | 0o640, uid: 7, gid: 8, rdev: 0, target: b"" }
}

fn save(name: &str, zones: &Recorded) {
    let mut encoder = GzEncoder::new(File::create(path(name)).expect("creates"), Compression::best());
    encoder.write_all(&zones.memory).expect("writes");
    encoder.write_all(&zones.blocks).expect("writes");
    encoder.finish().expect("finishes");
}

fn load(name: &str) -> Drive {
    load_zones(name, MEMORY_BYTES)
}

fn load_zones(name: &str, memory_bytes: usize) -> Drive {
    let file = File::open(path(name)).unwrap_or_else(|error| {
        panic!("{name}: {error}; make it by TANDEMFS_MAKE_GOLDEN=1 cargo test -p tandemfs-fs --test golden_images")
    });
    let mut decoder = GzDecoder::new(file);
    let mut zones = Recorded { memory: vec![0; memory_bytes], blocks: vec![0; BLOCK_BYTES] };
    decoder.read_exact(&mut zones.memory).expect("is whole");
    decoder.read_exact(&mut zones.blocks).expect("is whole");
    Drive::new(Arc::new(MemoryDevice::from_zones(zones, PersistenceDomain::Gpf)))
}

/// Makes the images, where the environment asks for it. Called by each test first, so that one command makes all.
fn make_if_asked() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    if std::env::var_os("TANDEMFS_MAKE_GOLDEN").is_some() {
        ONCE.call_once(make);
    }
}

fn make() {
    make_grown();
    let (device, fs) = filled(MEMORY_BYTES);
    save("format-0-crashed.gz", &device.zones());
    fs.unmount().expect("unmounts");
    save("format-0-clean.gz", &device.zones());
    make_damaged(&device, &fs);
}

/// One whose map pieces have no more room behind the rings.
fn make_grown() {
    let (device, fs) = filled(GROWN_MEMORY_BYTES[0]);
    fs.unmount().expect("unmounts");
    let mut zones = device.zones();
    zones.memory.resize(GROWN_MEMORY_BYTES[1], 0);
    let device = MemoryDevice::from_zones(zones, PersistenceDomain::Gpf);
    let (_, after) = grow(&Drive::new(Arc::new(device.clone())), &Growth::default()).expect("grows");
    assert_eq!((after.map_unit(), after.memory_units()), (22, 32));
    save("format-0-grown.gz", &device.zones());
}

/// A file system of each kind of files, mounted.
fn filled(memory_bytes: usize) -> (MemoryDevice, FileSystem) {
    let device = MemoryDevice::new(memory_bytes as u64, BLOCK_BYTES as u64, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    let options = FormatOptions { label: "golden".into(), ..FormatOptions::default() };
    make_file_system(&drive, &options).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let root = InodeNumber::ROOT;
    let directory = NewInode { mode: file_type::DIRECTORY | 0o755, ..file() };
    let inner = fs.create(root, b"directory", &directory).expect("creates").inode;
    let small = fs.create(inner, b"small", &file()).expect("creates").inode;
    fs.write(small, 0, SMALL, WriteOptions::default()).expect("writes");
    fs.link(small, root, b"hard link").expect("links");
    let big = fs.create(root, &[b'L'; 200], &file()).expect("creates").inode;
    fs.write(big, 0, &large(), WriteOptions::default()).expect("writes");
    fs.write(big, 1 << 30, SMALL, WriteOptions::default()).expect("writes far out");
    let link = NewInode { mode: file_type::SYMLINK | 0o777, target: b"directory/small", ..file() };
    fs.create(root, b"symbolic link", &link).expect("creates");
    (device, fs)
}

fn make_damaged(device: &MemoryDevice, fs: &FileSystem) {
    let mut damaged = device.zones();
    for line in 0..4 {
        // The second inode line of each of the first inodes after the root's.
        let at = fs.superblock().geometry.unit(fs.superblock().geometry.fixed_units()).offset_bytes() as usize + 64 * (2 * (2 + line) + 1);
        damaged.memory[at + 20] ^= 0x10;
    }
    save("format-0-damaged.gz", &damaged);
    let mut newer = device.zones();
    for offset in SUPERBLOCK_OFFSETS {
        let superblock = &mut newer.memory[offset as usize..offset as usize + 1024];
        superblock[12..16].copy_from_slice(&(VERSION + 1).to_le_bytes());
        let crc = crc32c(&superblock[4..]);
        superblock[..4].copy_from_slice(&crc.to_le_bytes());
    }
    save("format-newer.gz", &newer);
}

fn look(fs: &FileSystem) {
    let root = InodeNumber::ROOT;
    let inner = fs.lookup(root, b"directory").expect("there").inode;
    let small = fs.lookup(inner, b"small").expect("there");
    assert_eq!((small.nlink, small.mode, small.uid, small.gid), (2, file_type::REGULAR | 0o640, 7, 8));
    let mut bytes = vec![0; 100];
    let length = fs.read(fs.lookup(root, b"hard link").expect("there").inode, 0, &mut bytes).expect("reads");
    assert_eq!(&bytes[..length], SMALL);
    let big = fs.lookup(root, &[b'L'; 200]).expect("there");
    assert_eq!(big.size, (1 << 30) + SMALL.len() as u64);
    let mut bytes = vec![0xff; 300_000];
    assert_eq!(fs.read(big.inode, 0, &mut bytes).expect("reads"), 300_000);
    assert!(bytes[..200_000] == large() && bytes[200_000..].iter().all(|byte| *byte == 0));
    let link = fs.lookup(root, b"symbolic link").expect("there").inode;
    assert_eq!(fs.read_link(link).expect("reads"), b"directory/small");
}

#[test]
fn a_clean_image_mounts_and_goes_on() {
    make_if_asked();
    let drive = load("format-0-clean.gz");
    let fs = FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts");
    assert!(fs.recovery().clean);
    look(&fs);
    fs.create(InodeNumber::ROOT, b"new", &file()).expect("creates");
    fs.unmount().expect("unmounts");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    look(&fs);
    fs.lookup(InodeNumber::ROOT, b"new").expect("there");
}

#[test]
fn a_grown_image_mounts_and_goes_on() {
    make_if_asked();
    let drive = load_zones("format-0-grown.gz", GROWN_MEMORY_BYTES[1]);
    for round in 0..2_u8 {
        let fs = FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts");
        assert!(fs.recovery().clean, "round {round}");
        assert_eq!(fs.superblock().geometry.map_units(), 22..23);
        look(&fs);
        fs.create(InodeNumber::ROOT, &[b'n', b'0' + round], &file()).expect("creates");
        fs.unmount().expect("unmounts");
    }
}

#[test]
fn a_crashed_image_is_recovered() {
    make_if_asked();
    let fs = FileSystem::mount(load("format-0-crashed.gz"), &MountOptions::default()).expect("mounts");
    assert!(!fs.recovery().clean && fs.recovery().records_replayed > 0);
    look(&fs);
}

#[test]
fn a_damaged_image_fails_where_it_is_damaged_and_nowhere_else() {
    make_if_asked();
    let fs = FileSystem::mount(load("format-0-damaged.gz"), &MountOptions::default()).expect("mounts: the saved maps are whole");
    assert!(matches!(fs.lookup(InodeNumber::ROOT, b"directory"), Err(Error::Damaged { .. })));
    let mut names = 0;
    fs.read_directory(InodeNumber::ROOT, 2, &mut |_| {
        names += 1;
        true
    })
    .expect("the root is whole");
    assert_eq!(names, 4);
}

#[test]
fn a_newer_image_is_refused_and_left_alone() {
    make_if_asked();
    let refused = FileSystem::mount(load("format-newer.gz"), &MountOptions::default()).map(drop);
    assert!(matches!(refused, Err(Error::Superblock { source: SuperblockError::Version { found }, .. }) if found == VERSION + 1));
}

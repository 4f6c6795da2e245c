//! Golden images of file systems with files in the memory zone, runs among them: with a block zone, and on a memory half alone.
//!
//! A kept image never changes (`golden_images.rs`). `TANDEMFS_MAKE_GOLDEN=1 cargo test -p tandemfs-fs --test golden_homes` makes those that do
//! not exist yet.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use tandemfs_crash::{MemoryDevice, Recorded, Storing, Window, check_device};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::incompat;
use tandemfs_fs::{AllocateMode, FileSystem, FormatOptions, Home, MountOptions, NewInode, WriteOptions, make_file_system, read_superblock};

const MEMORY_BYTES: usize = 24 << 20;
const ROOT: InodeNumber = InodeNumber::ROOT;
/// Name, size of the block zone, size of a block.
const IMAGES: [(&str, usize, u32); 3] = [("homes", 4 << 20, 64 << 10), ("pages", 4 << 20, 4 << 10), ("alone", 0, 16 << 10)];

fn path(name: &str, kind: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("format-1-{name}-{kind}.gz"))
}

/// 2 MiB whose pages differ, and compress well.
fn large() -> Vec<u8> {
    (0..512_u32).flat_map(|page| [page as u8, (page >> 8) as u8 + 1].repeat(2048)).collect()
}

fn save(name: &str, kind: &str, zones: &Recorded) {
    let mut encoder = GzEncoder::new(File::create_new(path(name, kind)).expect("is new"), Compression::best());
    encoder.write_all(&zones.memory).and_then(|()| encoder.write_all(&zones.blocks)).expect("writes");
    encoder.finish().expect("finishes");
}

fn load(name: &str, kind: &str) -> MemoryDevice {
    let mut memory = Vec::new();
    let file = File::open(path(name, kind))
        .unwrap_or_else(|error| panic!("{name}: {error}; make it by TANDEMFS_MAKE_GOLDEN=1 cargo test -p tandemfs-fs --test golden_homes"));
    GzDecoder::new(file).read_to_end(&mut memory).expect("is whole");
    let blocks = memory.split_off(MEMORY_BYTES);
    MemoryDevice::from_zones(Recorded { memory, blocks }, PersistenceDomain::Gpf)
}

/// Each test calls it first, so one command makes all images.
fn make_if_asked() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    if std::env::var_os("TANDEMFS_MAKE_GOLDEN").is_some() {
        ONCE.call_once(|| {
            IMAGES.iter().filter(|(name, ..)| !path(name, "clean").exists()).for_each(make);
            OPEN.iter().filter(|(name, ..)| !path(name, "crashed").exists()).for_each(make_open);
            if !path("room", "crashed").exists() {
                make_room();
            }
        });
    }
}

/// Images that a crash left while files were mapped: name, size of a block.
const OPEN: [(&str, u32); 2] = [("open", 64 << 10), ("open-pages", 4 << 10)];

fn make_open((name, block_bytes): &(&str, u32)) {
    let device = MemoryDevice::new(MEMORY_BYTES as u64, 0, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, &FormatOptions { block_bytes: *block_bytes, ..FormatOptions::default() }).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let new = NewInode { mode: file_type::REGULAR | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(ROOT, b"mapped", &new).expect("made").inode;
    // Runs, parts of one, and a block alone.
    fs.write(file, 0, &large(), WriteOptions::default()).expect("written");
    fs.write(file, 2 << 20, &[1; 5000], WriteOptions::default()).expect("written");
    let mapping = fs.map(file, 256 << 10, (7 << 18) + 5000, true).expect("mapped");
    mapping.store(1000, b"stored before the crash").expect("stored");
    mapping.store(7 << 18, b"and at the end").expect("stored");
    save(name, "crashed", &device.zones());
}

#[test]
fn images_with_open_pages_mount_and_close_them() {
    make_if_asked();
    let mut expected = large();
    expected.extend([1; 5000]);
    expected[(256 << 10) + 1000..][..23].copy_from_slice(b"stored before the crash");
    expected[2 << 20..][..14].copy_from_slice(b"and at the end");
    for (name, _) in OPEN {
        let device = load(name, "crashed");
        let counts = check_device(&device, true).unwrap_or_else(|found| panic!("{name}: {found}"));
        assert!((440..512).contains(&counts.open_pages), "{name}: {counts:?}");
        for step in ["mounted", "mounted again"] {
            let fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default()).expect("mounts");
            let mut bytes = vec![0; expected.len() + 1];
            let file = fs.lookup(ROOT, b"mapped").expect("there").inode;
            assert_eq!(fs.read(file, 0, &mut bytes).expect("read"), expected.len());
            assert!(bytes[..expected.len()] == expected, "{name}, {step}");
            fs.unmount().expect("unmounts");
            let counts = check_device(&device, false).unwrap_or_else(|found| panic!("{name}, {step}: {found}"));
            assert_eq!(counts.open_pages, 0, "{name}, {step}");
        }
    }
}

/// Two files with room lent behind their ends; a program has appended to one of them, and stored bytes to the other that no word says.
fn make_room() {
    let device = MemoryDevice::new(MEMORY_BYTES as u64, 0, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, &FormatOptions { block_bytes: 16 << 10, ..FormatOptions::default() }).expect("mkfs");
    let fs = Arc::new(FileSystem::mount(drive, &MountOptions::default()).expect("mounts"));
    let new = NewInode { mode: file_type::REGULAR | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" };
    for name in [&b"appended"[..], b"unsaid"] {
        let file = fs.create(ROOT, name, &new).expect("made").inode;
        fs.write(file, 0, &[1; 20_000], WriteOptions::default()).expect("written");
        let (storing, access) = Storing::new();
        let lease = fs.lend_stores_to_append(&Arc::default(), &access, file).expect("it can be asked for").expect("lent");
        let window = Window::of(fs.drive(), &lease).expect("mapped");
        assert!(storing.enter());
        match name {
            b"appended" => window.append(20_000, b"appended"),
            _ => window.store(20_000, b"unsaid"),
        }
        .expect("stored");
        assert!(storing.leave());
    }
    save("room", "crashed", &device.zones());
}

#[test]
fn an_image_with_lent_room_has_what_was_appended() {
    make_if_asked();
    let device = load("room", "crashed");
    assert!(read_superblock(&Drive::new(Arc::new(device.clone()))).expect("reads").has_lent_rooms());
    check_device(&device, true).expect("in order");
    for step in ["mounted", "mounted again"] {
        let fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default()).expect("mounts");
        for (name, end) in [(&b"appended"[..], &b"appended"[..]), (b"unsaid", b"")] {
            let (file, mut bytes) = (fs.lookup(ROOT, name).expect("there").inode, vec![0; 20_100]);
            assert_eq!(fs.read(file, 0, &mut bytes).expect("read"), 20_000 + end.len(), "{step}");
            assert!(bytes[..20_000] == [1; 20_000] && &bytes[20_000..20_000 + end.len()] == end, "{step}");
        }
        fs.unmount().expect("unmounts");
        check_device(&device, false).unwrap_or_else(|found| panic!("{step}: {found}"));
    }
}

fn make((name, block_zone_bytes, block_bytes): &(&str, usize, u32)) {
    let device = MemoryDevice::new(MEMORY_BYTES as u64, *block_zone_bytes as u64, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, &FormatOptions { block_bytes: *block_bytes, ..FormatOptions::default() }).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let create = |parent, name: &[u8], kind| {
        fs.create(parent, name, &NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" }).expect("made").inode
    };
    let write = |file, offset, bytes: &[u8]| {
        assert_eq!(fs.write(file, offset, bytes, WriteOptions::default()).expect("written"), bytes.len());
    };
    let inner = create(ROOT, b"memory", file_type::DIRECTORY);
    fs.set_home(inner, Home::Memory).expect("has a home");
    // A run for each transaction, logs over blocks of one, a run that lost blocks in its middle.
    let whole = create(inner, b"whole", file_type::REGULAR);
    write(whole, 0, &large());
    let split = create(inner, b"split", file_type::REGULAR);
    write(split, 0, &large()[..1 << 20]);
    write(split, 300_000, &large()[300_000..300_200]);
    fs.allocate(split, 400_000, 200_000, AllocateMode::Punch).expect("punched");
    create(ROOT, b"elsewhere", file_type::REGULAR);
    if *block_zone_bytes > 0 {
        let moved = create(ROOT, b"moved", file_type::REGULAR);
        write(moved, 0, &large()[..300_000]);
        fs.set_home(moved, Home::Memory).expect("has a home");
        while fs.move_homes().expect("moves") {}
        fs.set_home(create(ROOT, b"block", file_type::REGULAR), Home::Block).expect("has a home");
    }
    save(name, "crashed", &device.zones());
    fs.unmount().expect("unmounts");
    save(name, "clean", &device.zones());
}

fn look(fs: &FileSystem, has_blocks: bool) {
    let find = |parent, name: &[u8]| fs.lookup(parent, name).expect("there").inode;
    let read = |file, length: usize| {
        let mut bytes = vec![0; length + 1];
        let count = fs.read(file, 0, &mut bytes).expect("read");
        bytes.truncate(count);
        bytes
    };
    let inner = find(ROOT, b"memory");
    assert!(read(find(inner, b"whole"), 2 << 20) == large());
    let mut split = large()[..1 << 20].to_vec();
    split[400_000..600_000].fill(0);
    assert!(read(find(inner, b"split"), 1 << 20) == split);
    assert_eq!((fs.home(inner).expect("there"), fs.home(find(inner, b"whole")).expect("there")), (Home::Memory, Home::Memory));
    assert_eq!(fs.home(find(ROOT, b"elsewhere")).expect("there"), Home::Auto);
    if has_blocks {
        let moved = find(ROOT, b"moved");
        assert!(read(moved, 300_000) == large()[..300_000] && fs.bytes_from_home(moved).expect("known") == 0);
        assert_eq!(fs.home(find(ROOT, b"block")).expect("there"), Home::Block);
    }
}

#[test]
fn images_with_files_in_memory_mount_and_go_on() {
    make_if_asked();
    for (name, block_zone_bytes, _) in IMAGES {
        for kind in ["clean", "crashed"] {
            let device = load(name, kind);
            let counts = check_device(&device, kind == "crashed").unwrap_or_else(|found| panic!("{name}-{kind}: {found}"));
            assert!(counts.runs > 1 && counts.pages > 700, "{name}-{kind}: {counts:?}");
            let drive = Drive::new(Arc::new(device.clone()));
            let superblock = read_superblock(&drive).expect("whole");
            assert_ne!(superblock.incompat & incompat::MEMORY_HOME, 0);
            assert_eq!(superblock.geometry.has_block_zone(), block_zone_bytes > 0);
            let fs = FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts");
            assert_eq!(fs.recovery().clean, kind == "clean");
            look(&fs, block_zone_bytes > 0);
            let file = fs.create(ROOT, b"new", &NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" });
            fs.write(file.expect("made").inode, 0, &large(), WriteOptions::default()).expect("written");
            fs.unmount().expect("unmounts");
            check_device(&device, false).unwrap_or_else(|found| panic!("{name}-{kind}, written: {found}"));
            look(&FileSystem::mount(drive, &MountOptions::default()).expect("mounts"), block_zone_bytes > 0);
        }
    }
}

//! Golden images of file systems with files in the memory zone, runs among them: with a block zone, and on a memory half alone; with open and
//! overlaid pages, and with the hint *aligned*.
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
use tandemfs_crash::{MemoryDevice, Random, Recorded, Storing, Window, check_device, each_state};
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
            if !path("overlaid", "crashed").exists() {
                make_overlaid();
            }
            if !path("hint", "clean").exists() {
                make_hint();
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

/// Overwrites of one block of an aligned extent that were being copied home when the power failed, and the file with them.
const OVERWRITES: [(usize, usize, u8); 3] = [(100, 300, 0xa1), (4096, 4096, 0xa2), (9000, 50, 0xa3)];

fn overwritten() -> Vec<u8> {
    let mut bytes = large();
    OVERWRITES.iter().for_each(|(at, length, byte)| bytes[*at..at + length].fill(*byte));
    bytes
}

/// Whether each overwrite is in the pages themselves, which lie in a row from `first` on.
fn copied_home(zones: &Recorded, first: usize) -> [bool; 3] {
    OVERWRITES.map(|(at, length, byte)| zones.memory[first + at..first + at + length].iter().all(|found| *found == byte))
}

fn is_amid(copied: [bool; 3]) -> bool {
    copied.contains(&true) && copied.contains(&false)
}

fn make_overlaid() {
    let device = MemoryDevice::new(MEMORY_BYTES as u64, 0, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, &FormatOptions { block_bytes: 16 << 10, ..FormatOptions::default() }).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let new = NewInode { mode: file_type::REGULAR | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" };
    let file = fs.create(ROOT, b"overwritten", &new).expect("made").inode;
    fs.write(file, 0, &large(), WriteOptions::default()).expect("written");
    let first = fs.map(file, 0, 4096, false).expect("mapped").extents()[0].device_offset as usize;
    for (at, length, byte) in OVERWRITES {
        fs.write(file, at as u64, &vec![byte; length], WriteOptions::default()).expect("written");
    }
    fs.checkpoint().expect("home");
    let start = device.fork();
    device.start_recording();
    fs.write_back_all().expect("written back");
    let mut is_saved = false;
    each_state(&start, &device.stop_recording(), 0, 16, &mut Random::new(1), &mut |_, state| {
        let zones = state.device.zones();
        if !is_saved && is_amid(copied_home(&zones, first)) {
            save("overlaid", "crashed", &zones);
            is_saved = true;
        }
    });
    assert!(is_saved, "no cut amid the copy");
}

#[test]
fn an_image_with_an_interrupted_copy_home_has_what_was_written() {
    make_if_asked();
    let device = load("overlaid", "crashed");
    check_device(&device, true).expect("in order");
    let (zones, unchanged) = (device.zones(), 5 * 4096..6 * 4096);
    let is_extent = |at: &usize| zones.memory[at + unchanged.start..at + unchanged.end] == large()[unchanged.clone()];
    let first = (0..MEMORY_BYTES).step_by(2 << 20).find(is_extent).expect("an aligned extent");
    assert!(is_amid(copied_home(&zones, first)), "{:?}", copied_home(&zones, first));
    let content = |fs: &FileSystem| {
        let (file, mut bytes) = (fs.lookup(ROOT, b"overwritten").expect("there").inode, vec![0; (2 << 20) + 1]);
        let length = fs.read(file, 0, &mut bytes).expect("read");
        bytes.truncate(length);
        bytes
    };
    let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::mount(Drive::new(Arc::new(device.fork())), &read_only).expect("mounts");
    assert!(content(&fs) == overwritten(), "without a change");
    drop(fs);
    for step in ["mounted", "mounted again"] {
        let fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default()).expect("mounts");
        assert!(content(&fs) == overwritten(), "{step}");
        fs.unmount().expect("unmounts");
        check_device(&device, false).unwrap_or_else(|found| panic!("{step}: {found}"));
        assert_eq!(copied_home(&device.zones(), first), [true; 3], "{step}: the copy was ended");
    }
}

/// A directory, a file and a directory without the hint *aligned* beside those that have it.
fn make_hint() {
    let device = MemoryDevice::new(MEMORY_BYTES as u64, 4 << 20, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, &FormatOptions { block_bytes: 16 << 10, ..FormatOptions::default() }).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let create = |parent, name: &[u8], kind| {
        fs.create(parent, name, &NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"" }).expect("made").inode
    };
    let directory = create(ROOT, b"aligned", file_type::DIRECTORY);
    fs.set_aligned(directory, true).expect("has the hint");
    fs.set_home(directory, Home::Memory).expect("has a home");
    let file = create(directory, b"file", file_type::REGULAR);
    for at in (0..300_000).step_by(50_000) {
        fs.write(file, at as u64, &large()[at..at + 50_000], WriteOptions::default()).expect("written");
    }
    create(directory, b"below", file_type::DIRECTORY);
    let without = create(directory, b"without", file_type::REGULAR);
    fs.set_aligned(without, false).expect("has none");
    save("hint", "crashed", &device.zones());
    fs.unmount().expect("unmounts");
    save("hint", "clean", &device.zones());
}

#[test]
fn images_with_the_hint_keep_it() {
    make_if_asked();
    for kind in ["clean", "crashed"] {
        let device = load("hint", kind);
        check_device(&device, kind == "crashed").unwrap_or_else(|found| panic!("{kind}: {found}"));
        for step in ["mounted", "mounted again"] {
            let fs = FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default()).expect("mounts");
            let find = |parent, name: &[u8]| fs.lookup(parent, name).expect("there").inode;
            let directory = find(ROOT, b"aligned");
            let file = find(directory, b"file");
            let has = |inode| fs.is_aligned(inode).expect("known");
            assert!(has(directory) && has(file) && !has(find(directory, b"without")) && !has(find(directory, b"below")), "{kind}, {step}");
            let mut bytes = vec![0; 300_001];
            assert_eq!(fs.read(file, 0, &mut bytes).expect("read"), 300_000);
            assert!(bytes[..300_000] == large()[..300_000], "{kind}, {step}");
            // All of its 2 MiB are its own, and one huge page could map them.
            assert_eq!(fs.attributes(file).expect("there").space_512, (2 << 20) / 512, "{kind}, {step}");
            fs.unmount().expect("unmounts");
            check_device(&device, false).unwrap_or_else(|found| panic!("{kind}, {step}: {found}"));
        }
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

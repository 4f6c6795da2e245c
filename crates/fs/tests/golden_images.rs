//! Golden images: compressed file systems of every declared version of the format, and of every set of features that mkfs gave it. Every
//! later build mounts, reads, writes, recovers and checks them (`crates/check/tests/golden.rs`), or refuses them as `docs/FORMAT.md` says.
//!
//! A kept image never changes. A new version or feature gets images of its own, beside the others: `TANDEMFS_MAKE_GOLDEN=1 cargo test -p
//! tandemfs-fs --test golden_images` makes the images of this build that do not exist yet.

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
use tandemfs_format::error_counters::ErrorCounters;
use tandemfs_format::geometry::SUPERBLOCK_OFFSETS;
use tandemfs_format::inode::file_type;
use tandemfs_format::superblock::{ChecksumKind, SuperblockError, VERSION, compat, ro_compat};
use tandemfs_fs::{
    AllocateMode, Error, FileSystem, FormatOptions, Growth, MountOptions, NewInode, RenameMode, SeekTo, SetExtendedAttribute, WriteOptions,
    grow, make_file_system, read_superblock, upgrade,
};

const MEMORY_BYTES: usize = 16 << 20;
const BLOCK_BYTES: usize = 4 << 20;
/// The memory zone of the grown image: first 22 units, whose map pieces leave room for eight more; now 32.
const GROWN_MEMORY_BYTES: [usize; 2] = [44 << 20, 64 << 20];
const SMALL: &[u8] = b"a golden image is read by every later build";
const ROOT: InodeNumber = InodeNumber::ROOT;
/// Generations with images: version (with a feature set since), and all features needed to write. This build makes the last, which differs from
/// the one before in a feature that any build may ignore.
const STAMPED: u64 = ro_compat::COVERED_LOGS_UNCOUNTED | ro_compat::STAMP | ro_compat::VOLUME_UUID;
const GENERATIONS: [(&str, u64); 5] = [
    ("1", 0),
    ("1-covered", ro_compat::COVERED_LOGS_UNCOUNTED),
    ("1-stamped", STAMPED),
    ("1-lost", ro_compat::KNOWN),
    (NEWEST, ro_compat::KNOWN),
];
const NEWEST: &str = "1-counted";
const ATTRIBUTE: SetExtendedAttribute = SetExtendedAttribute { mode: tandemfs_fs::SetAttributeMode::Any, kill_set_group_id: false };
/// A default access control list: all rights for the owner and user 7, fewer for the group and others.
const DEFAULT_LIST: [(u16, u16, u32); 5] = [(1, 7, u32::MAX), (2, 7, 7), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn large() -> Vec<u8> {
    (0..200_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn list() -> Vec<u8> {
    let entries = DEFAULT_LIST
        .iter()
        .flat_map(|(tag, permissions, id)| [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat());
    2_u32.to_le_bytes().into_iter().chain(entries).collect()
}

fn file() -> NewInode<'static> {
    NewInode { mode: file_type::REGULAR | 0o640, uid: 7, gid: 8, rdev: 0, target: b"" }
}

fn save(name: &str, zones: &Recorded) {
    assert!(!path(name).exists(), "{name} is kept and never changes");
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

/// Makes the images of this build if the environment asks for it. Each test calls it first, so one command makes all images.
fn make_if_asked() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    if std::env::var_os("TANDEMFS_MAKE_GOLDEN").is_some() && !path(&format!("format-{NEWEST}-clean.gz")).exists() {
        ONCE.call_once(make);
    }
}

fn make() {
    let labelled = FormatOptions { label: "golden".into(), ..FormatOptions::default() };
    make_grown(&labelled);
    let (device, fs) = filled(MEMORY_BYTES, &labelled);
    let nameless = fs.create_nameless(ROOT, &file(), 0).expect("creates").inode;
    fs.write(nameless, 0, &large(), WriteOptions::default()).expect("writes");
    save(&format!("format-{NEWEST}-crashed.gz"), &device.zones());
    fs.unmount().expect("unmounts");
    save(&format!("format-{NEWEST}-clean.gz"), &device.zones());
    let mut damaged = device.zones();
    for line in 0..4 {
        // The second inode line of each of the first inodes after the root's.
        let at = fs.superblock().geometry.unit(fs.superblock().geometry.fixed_units()).offset_bytes() as usize + 64 * (2 * (2 + line) + 1);
        damaged.memory[at + 20] ^= 0x10;
    }
    save(&format!("format-{NEWEST}-damaged.gz"), &damaged);
    let unchecked = FormatOptions { block_bytes: 4 << 10, checksum_kind: ChecksumKind::None, ..FormatOptions::default() };
    let (device, fs) = filled(MEMORY_BYTES, &unchecked);
    fs.unmount().expect("unmounts");
    save(&format!("format-{NEWEST}-unchecked.gz"), &device.zones());
}

/// An image whose map pieces have no more room behind the rings.
fn make_grown(options: &FormatOptions) {
    let (device, fs) = filled(GROWN_MEMORY_BYTES[0], options);
    fs.unmount().expect("unmounts");
    let mut zones = device.zones();
    zones.memory.resize(GROWN_MEMORY_BYTES[1], 0);
    let device = MemoryDevice::from_zones(zones, PersistenceDomain::Gpf);
    let (_, after) = grow(&Drive::new(Arc::new(device.clone())), &Growth::default()).expect("grows");
    assert_eq!((after.map_unit(), after.memory_units()), (22, 32));
    save(&format!("format-{NEWEST}-grown.gz"), &device.zones());
}

/// A file system with everything that the format has.
fn filled(memory_bytes: usize, options: &FormatOptions) -> (MemoryDevice, FileSystem) {
    let device = MemoryDevice::new(memory_bytes as u64, BLOCK_BYTES as u64, PersistenceDomain::Gpf);
    let drive = Drive::new(Arc::new(device.clone()));
    make_file_system(&drive, options).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let directory = NewInode { mode: file_type::DIRECTORY | 0o755, ..file() };
    let inner = fs.create(ROOT, b"directory", &directory).expect("creates").inode;
    let small = fs.create(inner, b"small", &file()).expect("creates").inode;
    fs.write(small, 0, SMALL, WriteOptions::default()).expect("writes");
    fs.link(small, ROOT, b"hard link").expect("links");
    // Sectors with a vector of checksums, logs over them, holes, and a mapping of several levels.
    let big = fs.create(ROOT, &[b'L'; 200], &file()).expect("creates").inode;
    fs.write(big, 0, &large(), WriteOptions::default()).expect("writes");
    for offset in [100, 70_000, 130_000] {
        fs.write(big, offset, &large()[offset as usize..][..300], WriteOptions::default()).expect("writes a log");
    }
    fs.write(big, 1 << 30, SMALL, WriteOptions::default()).expect("writes far out");
    let link = NewInode { mode: file_type::SYMLINK | 0o777, target: b"directory/small", ..file() };
    fs.create(ROOT, b"symbolic link", &link).expect("creates");
    fs.create(ROOT, b"long link", &NewInode { target: &[b'x'; 3000], ..link }).expect("creates");
    fs.create(ROOT, b"device", &NewInode { mode: file_type::CHARACTER | 0o600, rdev: 0x0103, ..file() }).expect("creates");
    fs.create(ROOT, b"moved", &file()).expect("creates");
    fs.rename_leaving_whiteout((ROOT, b"moved"), (inner, b"moved"), RenameMode::Replace, (0, 0)).expect("moves");
    // Room before and behind the end of the file.
    let room = fs.create(ROOT, b"room", &file()).expect("creates").inode;
    fs.allocate(room, 0, 150_000, AllocateMode::Allocate { keep_size: false }).expect("room");
    fs.allocate(room, 400_000, 70_000, AllocateMode::Allocate { keep_size: true }).expect("room");
    // Attributes in the set, apart from it, and inherited.
    fs.set_extended_attribute(small, b"user.near", b"value", ATTRIBUTE).expect("set");
    fs.set_extended_attribute(small, b"user.apart", &large()[..65_536], ATTRIBUTE).expect("set");
    fs.set_extended_attribute(small, b"trusted.of four lines", &large()[..200], ATTRIBUTE).expect("set");
    fs.set_extended_attribute(inner, b"system.posix_acl_default", &list(), ATTRIBUTE).expect("set");
    fs.create(inner, b"inherits", &file()).expect("creates");
    if options.checksum_kind == ChecksumKind::Crc32c {
        count_errors(&device, &fs);
    }
    (device, fs)
}

/// Damages a sector for as long as a read and a scrub take, so that the counters of the image are not zero.
fn count_errors(device: &MemoryDevice, fs: &FileSystem) {
    let sector = &large()[8192..12_288];
    let at = device.zones().blocks.chunks(4096).position(|found| found == sector).expect("on the device") * 4096;
    let flip = || device.damage(|zones| zones.blocks[at] ^= 1);
    flip();
    let big = fs.lookup(ROOT, &[b'L'; 200]).expect("there").inode;
    assert!(matches!(fs.read(big, 8192, &mut [0; 4096]), Err(Error::DamagedData { .. })));
    for findings in [1, 0] {
        let mut scrub = fs.scrub();
        while fs.scrub_step(&mut scrub) {}
        assert_eq!(scrub.findings().len(), findings);
        fs.note_scrub(&scrub);
        if findings == 1 {
            flip();
        }
    }
}

#[test]
fn counted_errors_and_the_last_scrub_are_kept() {
    make_if_asked();
    for kind in ["clean", "crashed", "damaged"] {
        let drive = load(&format!("format-1-counted-{kind}.gz"));
        let superblock = read_superblock(&drive).expect("whole");
        assert_eq!(superblock.compat, compat::ERROR_COUNTERS);
        let before = superblock.error_counters;
        assert!(before.data_damaged >= 1 && before.scrub_seconds > 1_700_000_000 && before.scrub_bytes > 200_000, "{kind}: {before:?}");
        assert_eq!((before.scrub_findings, before.device_reads_failed, before.repairs), (0, 0, 0));
        let fs = FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts");
        assert_eq!(fs.error_counters(), before, "{kind}");
        fs.unmount().expect("unmounts");
        assert_eq!(read_superblock(&drive).expect("whole").error_counters, before);
    }
    let lost = read_superblock(&load("format-1-lost-clean.gz")).expect("whole");
    assert_eq!((lost.compat, lost.error_counters), (0, ErrorCounters::default()), "before the feature there were none");
}

fn look(fs: &FileSystem) {
    let inner = fs.lookup(ROOT, b"directory").expect("there").inode;
    let small = fs.lookup(inner, b"small").expect("there");
    assert_eq!((small.nlink, small.mode, small.uid, small.gid), (2, file_type::REGULAR | 0o640, 7, 8));
    let mut bytes = vec![0; 100];
    let length = fs.read(fs.lookup(ROOT, b"hard link").expect("there").inode, 0, &mut bytes).expect("reads");
    assert_eq!(&bytes[..length], SMALL);
    let big = fs.lookup(ROOT, &[b'L'; 200]).expect("there");
    assert_eq!(big.size, (1 << 30) + SMALL.len() as u64);
    let mut bytes = vec![0xff; 300_000];
    assert_eq!(fs.read(big.inode, 0, &mut bytes).expect("reads"), 300_000);
    assert!(bytes[..200_000] == large() && bytes[200_000..].iter().all(|byte| *byte == 0));
    let target = |name: &[u8]| fs.read_link(fs.lookup(ROOT, name).expect("there").inode).expect("reads");
    assert_eq!((target(b"symbolic link"), target(b"long link")), (b"directory/small".to_vec(), vec![b'x'; 3000]));
    let of = |name: &[u8]| fs.lookup(ROOT, name).map(|found| (found.mode, found.rdev)).expect("there");
    assert_eq!((of(b"device"), of(b"moved")), ((file_type::CHARACTER | 0o600, 0x0103), (file_type::CHARACTER, 0)));
    fs.lookup(inner, b"moved").expect("there");
    let room = fs.lookup(ROOT, b"room").expect("there");
    assert_eq!((room.size, fs.seek(room.inode, 0, SeekTo::Data).expect("sought")), (150_000, None));
    assert!(room.space_512 * 512 >= 220_000, "{}", room.space_512);
    let attribute = |inode, name: &[u8]| fs.extended_attribute(inode, name).expect("there");
    assert_eq!(attribute(small.inode, b"user.near"), b"value");
    assert!(attribute(small.inode, b"user.apart") == large()[..65_536]);
    assert!(attribute(small.inode, b"trusted.of four lines") == large()[..200]);
    assert_eq!(attribute(inner, b"system.posix_acl_default"), list());
    let inherits = fs.lookup(inner, b"inherits").expect("there").inode;
    assert_eq!(attribute(inherits, b"system.posix_acl_access").len(), list().len());
}

#[test]
fn every_version_that_was_declared_has_its_images() {
    make_if_asked();
    assert_eq!(NEWEST.split('-').next(), Some(VERSION.to_string().as_str()));
    for (name, features) in GENERATIONS {
        for kind in ["clean", "crashed", "damaged", "unchecked"] {
            let name = format!("format-{name}-{kind}.gz");
            assert!(path(&name).is_file(), "{name} is kept for ever");
            if kind != "crashed" {
                assert_eq!(read_superblock(&load(&name)).expect("whole").ro_compat, features, "{name}");
            }
        }
    }
}

#[test]
fn clean_images_mount_and_go_on() {
    make_if_asked();
    let images =
        GENERATIONS.iter().flat_map(|(name, features)| ["clean", "unchecked"].map(|kind| (format!("format-{name}-{kind}.gz"), features)));
    for (name, features) in images {
        let drive = load(&name);
        let fs = FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts");
        assert!(fs.recovery().clean, "{name}");
        look(&fs);
        fs.create(ROOT, b"new", &file()).expect("creates");
        // A log over sectors counts by the rule of the image's features.
        let big = fs.lookup(ROOT, &[b'L'; 200]).expect("there");
        fs.write(big.inode, 40_000, &large()[40_000..40_200], WriteOptions::default()).expect("writes a log");
        let counted = u64::from(features & ro_compat::COVERED_LOGS_UNCOUNTED == 0);
        assert_eq!(fs.attributes(big.inode).expect("there").space_512, big.space_512 + counted, "{name}");
        fs.unmount().expect("unmounts");
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        look(&fs);
        fs.lookup(ROOT, b"new").expect("there");
    }
}

#[test]
fn older_images_gain_the_features_of_this_build_by_an_upgrade_alone() {
    make_if_asked();
    for (name, features) in GENERATIONS {
        let drive = load(&format!("format-{name}-clean.gz"));
        FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts").unmount().expect("unmounts");
        let before = read_superblock(&drive).expect("whole");
        assert_eq!(before.ro_compat, features, "{name}: a mount adds nothing");
        upgrade(&drive).expect("upgrades");
        let after = read_superblock(&drive).expect("whole");
        // How logs are counted does not change: each inode would have to.
        assert_eq!(after.ro_compat | ro_compat::COVERED_LOGS_UNCOUNTED, ro_compat::KNOWN, "{name}");
        assert_eq!((after.uuid(), after.pair), (before.uuid(), before.pair));
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
        assert!(fs.recovery().clean);
        look(&fs);
    }
}

#[test]
fn grown_images_mount_and_go_on() {
    make_if_asked();
    for (name, _) in GENERATIONS {
        let drive = load_zones(&format!("format-{name}-grown.gz"), GROWN_MEMORY_BYTES[1]);
        for round in 0..2_u8 {
            let fs = FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts");
            assert!(fs.recovery().clean, "round {round}");
            assert_eq!(fs.superblock().geometry.map_units(), 22..23);
            look(&fs);
            fs.create(ROOT, &[b'n', b'0' + round], &file()).expect("creates");
            fs.unmount().expect("unmounts");
        }
    }
}

#[test]
fn crashed_images_are_recovered() {
    make_if_asked();
    for (name, _) in GENERATIONS {
        let fs = FileSystem::mount(load(&format!("format-{name}-crashed.gz")), &MountOptions::default()).expect("mounts");
        assert!(!fs.recovery().clean && fs.recovery().records_replayed > 0);
        look(&fs);
    }
}

#[test]
fn damaged_images_fail_where_they_are_damaged_and_nowhere_else() {
    make_if_asked();
    for (name, _) in GENERATIONS {
        let drive = load(&format!("format-{name}-damaged.gz"));
        let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts: the saved maps are whole");
        assert!(matches!(fs.lookup(ROOT, b"directory"), Err(Error::Damaged { .. })));
        let mut names = 0;
        fs.read_directory(ROOT, 2, &mut |_| {
            names += 1;
            true
        })
        .expect("the root is whole");
        assert_eq!(names, 8);
    }
}

/// Changes the bytes of both copies of the superblock.
fn edit_superblocks(drive: &Drive, change: impl Fn(&mut [u8])) {
    for offset in SUPERBLOCK_OFFSETS {
        let mut superblock = vec![0; 1024];
        let address = tandemfs_format::LineAddress::new(offset / 64);
        drive.load(tandemfs_device::Structure::Superblock, address, &mut superblock).expect("loads");
        change(&mut superblock);
        let crc = crc32c(&superblock[4..]);
        superblock[..4].copy_from_slice(&crc.to_le_bytes());
        drop(drive.persist(tandemfs_device::Structure::Superblock, address, &superblock).expect("stores"));
    }
}

#[test]
fn images_with_features_that_cannot_be_written_are_only_read() {
    make_if_asked();
    let drive = load(&format!("format-{NEWEST}-clean.gz"));
    let unknown = 1 << 40;
    edit_superblocks(&drive, |superblock| superblock[24..32].copy_from_slice(&(ro_compat::KNOWN | unknown).to_le_bytes()));
    let refused = FileSystem::mount(drive.clone(), &MountOptions::default()).map(drop);
    let is_it = |source: &SuperblockError| *source == SuperblockError::WriteFeatures { unknown };
    assert!(matches!(&refused, Err(Error::Superblock { source, .. }) if is_it(source)), "{refused:?}");
    let refused = grow(&drive, &Growth::default()).map(drop);
    assert!(matches!(&refused, Err(Error::Superblock { source, .. }) if is_it(source)), "{refused:?}");
    look(&FileSystem::mount(drive, &MountOptions { read_only: true, ..MountOptions::default() }).expect("mounts read-only"));
}

#[test]
fn images_of_other_formats_are_refused_and_left_alone() {
    make_if_asked();
    // An image from before Format 1.
    let refused = FileSystem::mount(load("format-0-clean.gz"), &MountOptions::default()).map(drop);
    assert!(matches!(refused, Err(Error::Superblock { source: SuperblockError::Development, .. })), "{refused:?}");
    let newest = load(&format!("format-{NEWEST}-clean.gz"));
    edit_superblocks(&newest, |superblock| superblock[12..16].copy_from_slice(&(VERSION + 1).to_le_bytes()));
    let refused = FileSystem::mount(newest, &MountOptions::default()).map(drop);
    assert!(matches!(refused, Err(Error::Superblock { source: SuperblockError::Version { found }, .. }) if found == VERSION + 1));
}

//! The hint *aligned* as an extended attribute, what it refuses, and how a mapping sets it. Where the bytes lie: `crates/crash/tests/aligned.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandemfs_crash::{MemoryDevice, fill};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::inode::file_type;
use tandemfs_format::{InodeNumber, UNIT_BYTES};
use tandemfs_fs::{
    ALIGNED_ATTRIBUTE, ALIGNED_LEFT_ATTRIBUTE, Error, FileSystem, FormatOptions, Home, MountOptions, NewInode, SetAttributeMode,
    SetExtendedAttribute, WriteOptions, make_file_system,
};

const MIB: u64 = 1 << 20;

fn device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(48 * MIB, 48 * MIB, PersistenceDomain::Adr));
    make_file_system(&Drive::new(device.clone()), &FormatOptions::default()).expect("mkfs");
    device
}

fn mounted(device: &Arc<MemoryDevice>, read_only: bool) -> FileSystem {
    FileSystem::mount(Drive::new(device.clone()), &MountOptions { read_only, ..MountOptions::default() }).expect("mounts")
}

fn create(fs: &FileSystem, parent: InodeNumber, name: &[u8], kind: u16) -> InodeNumber {
    fs.create(parent, name, &NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"x" }).expect("made").inode
}

fn set(fs: &FileSystem, file: InodeNumber, value: &[u8], mode: SetAttributeMode) -> Result<(), Error> {
    fs.set_extended_attribute(file, ALIGNED_ATTRIBUTE, value, SetExtendedAttribute { mode, ..SetExtendedAttribute::default() })
}

fn listed(fs: &FileSystem, file: InodeNumber) -> Vec<String> {
    let mut names = Vec::new();
    fs.extended_attributes(file, &mut |name, _| names.push(String::from_utf8_lossy(name).into_owned())).expect("listed");
    names
}

/// A file whose pieces do not follow one another.
fn fragmented(fs: &FileSystem, name: &[u8], bytes: u64) -> (InodeNumber, Vec<u8>) {
    let file = create(fs, InodeNumber::ROOT, name, file_type::REGULAR);
    let content = fill(name[0].into(), bytes as usize);
    for at in (0..content.len()).step_by(128 << 10).rev() {
        fs.write(file, at as u64, &content[at..at + (128 << 10)], WriteOptions::default()).expect("written");
    }
    (file, content)
}

fn rewrite_everything(fs: &FileSystem) {
    while fs.move_homes().expect("moves") {}
}

#[test]
fn the_hint_is_an_attribute_that_is_listed_where_it_is_set() {
    let device = device();
    let fs = mounted(&device, false);
    fs.enable_homes().expect("has the feature");
    let directory = create(&fs, InodeNumber::ROOT, b"d", file_type::DIRECTORY);
    assert!(matches!(fs.extended_attribute(directory, ALIGNED_ATTRIBUTE), Err(Error::NoData)));
    assert!(matches!(set(&fs, directory, b"yes", SetAttributeMode::Replace), Err(Error::NoData)));
    set(&fs, directory, b"yes", SetAttributeMode::Create).expect("has it");
    assert!(matches!(set(&fs, directory, b"yes", SetAttributeMode::Create), Err(Error::Exists)));
    fs.set_home(directory, Home::Memory).expect("has a home");
    let (file, link) = (create(&fs, directory, b"f", file_type::REGULAR), create(&fs, directory, b"l", file_type::SYMLINK));
    let below = create(&fs, directory, b"d", file_type::DIRECTORY);
    fs.unmount().expect("unmounts");
    let fs = mounted(&device, false);
    for inode in [directory, file] {
        assert_eq!(fs.extended_attribute(inode, ALIGNED_ATTRIBUTE).expect("there"), b"yes");
        assert_eq!(listed(&fs, inode), ["user.tandemfs.home", "user.tandemfs.aligned"]);
    }
    assert!(!fs.is_aligned(create(&fs, below, b"f", file_type::REGULAR)).expect("known"), "files of the directory alone inherit it");
    assert_eq!((fs.is_aligned(below).expect("known"), listed(&fs, below)), (false, vec!["user.tandemfs.home".to_owned()]));
    assert!(listed(&fs, link).is_empty() && matches!(set(&fs, link, b"yes", SetAttributeMode::Any), Err(Error::NotPermitted)));
    fs.remove_extended_attribute(file, ALIGNED_ATTRIBUTE).expect("removed");
    assert!(matches!(fs.remove_extended_attribute(file, ALIGNED_ATTRIBUTE), Err(Error::NoData)));
    set(&fs, directory, b"no", SetAttributeMode::Any).expect("taken away");
    assert_eq!((fs.is_aligned(file).expect("known"), fs.home(file).expect("known")), (false, Home::Memory), "the home stays");
    assert_eq!(listed(&fs, directory), ["user.tandemfs.home"]);
}

#[test]
fn what_is_no_hint_is_refused_and_changes_nothing() {
    let device = device();
    let fs = mounted(&device, false);
    let file = create(&fs, InodeNumber::ROOT, b"f", file_type::REGULAR);
    let before = (fs.attributes(file).expect("there"), fs.superblock().incompat);
    // Without the feature: an attribute that is copied gives none.
    assert!(matches!(set(&fs, file, b"yes", SetAttributeMode::Any), Err(Error::NotSupported(_))));
    set(&fs, file, b"no", SetAttributeMode::Any).expect("as it is");
    for value in [&b""[..], b"Yes", b"yes\n", b"1"] {
        assert!(matches!(set(&fs, file, value, SetAttributeMode::Any), Err(Error::InvalidArgument(_))), "{value:?}");
    }
    let left = fs.set_extended_attribute(file, ALIGNED_LEFT_ATTRIBUTE, b"0", SetExtendedAttribute::default());
    assert!(matches!(left, Err(Error::NotSupported(_))));
    assert_eq!((fs.attributes(file).expect("there"), fs.superblock().incompat), before);
    fs.note_mapped(file).expect("nothing happens");
    assert!(!fs.is_aligned(file).expect("known"));
    fs.set_aligned(file, true).expect("has it");
    fs.unmount().expect("unmounts");
    let fs = mounted(&device, true);
    assert!(matches!(set(&fs, file, b"no", SetAttributeMode::Any), Err(Error::ReadOnly)));
    fs.note_mapped(file).expect("nothing happens");
    assert!(fs.is_aligned(file).expect("known"));
}

#[test]
fn what_is_left_is_known_and_a_mapping_has_it_rewritten() {
    let device = device();
    let fs = mounted(&device, false);
    fs.enable_homes().expect("has the feature");
    let (file, content) = fragmented(&fs, b"f", 7 * MIB);
    let left = |fs: &FileSystem| {
        let text = fs.extended_attribute(file, ALIGNED_LEFT_ATTRIBUTE).expect("a number");
        String::from_utf8(text).expect("text").parse::<u64>().expect("a number")
    };
    assert_eq!(left(&fs), 0, "no hint");
    fs.note_mapped(file).expect("noted");
    assert_eq!((left(&fs), listed(&fs, file)), (3 * UNIT_BYTES, vec!["user.tandemfs.aligned".to_owned()]));
    assert!(fs.move_homes().expect("rewrites"));
    assert_eq!(left(&fs), 2 * UNIT_BYTES);
    rewrite_everything(&fs);
    assert_eq!((left(&fs), fs.statistics().work.aligned_bytes), (0, 3 * UNIT_BYTES));
    // What was fragmented without the hint is rewritten when it is mapped again.
    fs.set_aligned(file, false).expect("taken away");
    fs.write(file, MIB, &content[MIB as usize..2 * MIB as usize], WriteOptions::default()).expect("written");
    rewrite_everything(&fs);
    assert_eq!(fs.statistics().work.aligned_bytes, 3 * UNIT_BYTES, "nobody asked for it");
    fs.note_mapped(file).expect("noted");
    assert_eq!(left(&fs), UNIT_BYTES);
    rewrite_everything(&fs);
    assert_eq!(left(&fs), 0);
    let mut bytes = vec![0; content.len()];
    fs.read(file, 0, &mut bytes).expect("read");
    assert!(bytes == content);
}

/// Overwrites of a file with the hint: long ones take an aligned extent apart until it is rewritten, once for all of them; short ones and
/// whole pieces do not ([AS3] of `data/grown.rs`).
#[test]
fn what_long_overwrites_take_apart_is_rewritten() {
    let fs = mounted(&device(), false);
    fs.enable_homes().expect("has the feature");
    let (file, mut content) = fragmented(&fs, b"f", 6 * MIB);
    fs.set_home(file, Home::Memory).expect("set");
    fs.set_aligned(file, true).expect("set");
    rewrite_everything(&fs);
    let before = fs.statistics().work.aligned_bytes;
    assert_eq!(fs.bytes_not_aligned(file).expect("known"), 0);
    let mut write = |at: u64, bytes: u64| {
        let data = fill(at % 251, bytes as usize);
        fs.write(file, at, &data, WriteOptions::default()).expect("written");
        content[at as usize..(at + bytes) as usize].copy_from_slice(&data);
        fs.bytes_not_aligned(file).expect("known")
    };
    assert_eq!(write(100, 32 << 10), 0, "a short one");
    assert_eq!(write(4 * MIB, UNIT_BYTES), 0, "a whole piece");
    rewrite_everything(&fs);
    assert_eq!(fs.statistics().work.aligned_bytes, before);
    assert_eq!(write(128 << 10, 128 << 10), UNIT_BYTES);
    assert_eq!(write(MIB + 5, 300 << 10), UNIT_BYTES);
    assert_eq!(write(2 * MIB - (192 << 10), 384 << 10), 2 * UNIT_BYTES, "two pieces");
    rewrite_everything(&fs);
    assert_eq!(fs.bytes_not_aligned(file).expect("known"), 0);
    assert_eq!(fs.statistics().work.aligned_bytes, before + 2 * UNIT_BYTES, "each once");
    let mut bytes = vec![0; content.len()];
    fs.read(file, 0, &mut bytes).expect("read");
    assert!(bytes == content);
}

#[test]
fn the_background_thread_rewrites_beside_writers() {
    let device = device();
    let fs = Arc::new(mounted(&device, false));
    fs.start_background().expect("a thread");
    let (file, mut content) = fragmented(&fs, b"f", 8 * MIB);
    fs.set_aligned(file, true).expect("has it");
    let (start, mut round) = (Instant::now(), 0);
    while fs.bytes_not_aligned(file).expect("known") > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "{} B left", fs.bytes_not_aligned(file).expect("known"));
        let at = round * 7 % 120 * 65_536 + round % 1000;
        let bytes = fill(round as u64, 100);
        fs.write(file, at as u64, &bytes, WriteOptions::default()).expect("written");
        content[at..at + 100].copy_from_slice(&bytes);
        round += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut bytes = vec![0; content.len()];
    fs.read(file, 0, &mut bytes).expect("read");
    assert!(bytes == content);
    fs.unmount().expect("unmounts");
}

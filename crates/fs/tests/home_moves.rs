//! Homes as extended attributes, the limit of what they take, and moving in the background.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandemfs_crash::{MemoryDevice, fill};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    Error, FileSystem, FormatOptions, HOME_ATTRIBUTE, HOME_LEFT_ATTRIBUTE, Home, HomeLimit, LayoutOptions, MountOptions, NewInode,
    SetAttributeMode, SetExtendedAttribute, WriteOptions, make_file_system,
};

const BLOCK: usize = 64 << 10;
const MIB: u64 = 1 << 20;

fn device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(32 * MIB, 32 * MIB, PersistenceDomain::Adr));
    make_file_system(&Drive::new(device.clone()), &FormatOptions::default()).expect("mkfs");
    device
}

fn mounted(device: &Arc<MemoryDevice>) -> FileSystem {
    limited(device, HomeLimit::Percent(100))
}

fn limited(device: &Arc<MemoryDevice>, home_limit: HomeLimit) -> FileSystem {
    FileSystem::mount(Drive::new(device.clone()), &MountOptions { home_limit, ..MountOptions::default() }).expect("mounts")
}

/// A file system with homes.
fn with_homes() -> FileSystem {
    let fs = mounted(&device());
    fs.enable_homes().expect("has homes");
    fs
}

fn create(fs: &FileSystem, parent: InodeNumber, name: &[u8], kind: u16) -> InodeNumber {
    fs.create(parent, name, &NewInode { mode: kind | 0o700, uid: 0, gid: 0, rdev: 0, target: b"x" }).expect("made").inode
}

/// A file of so many blocks in the block zone.
fn file_of(fs: &FileSystem, name: &[u8], blocks: usize) -> (InodeNumber, Vec<u8>) {
    let file = create(fs, InodeNumber::ROOT, name, file_type::REGULAR);
    let content = fill(name[0].into(), blocks * BLOCK);
    fs.write(file, 0, &content, WriteOptions::default()).expect("written");
    (file, content)
}

fn holds(fs: &FileSystem, file: InodeNumber, content: &[u8]) {
    let mut bytes = vec![0; content.len() + 1];
    assert_eq!(fs.read(file, 0, &mut bytes).expect("read"), content.len());
    assert!(bytes[..content.len()] == *content);
}

fn set(fs: &FileSystem, file: InodeNumber, home: &str, mode: SetAttributeMode) -> Result<(), Error> {
    fs.set_extended_attribute(file, HOME_ATTRIBUTE, home.as_bytes(), SetExtendedAttribute { mode, ..SetExtendedAttribute::default() })
}

fn get(fs: &FileSystem, file: InodeNumber) -> Result<String, Error> {
    fs.extended_attribute(file, HOME_ATTRIBUTE).map(|value| String::from_utf8(value).expect("text"))
}

fn left(fs: &FileSystem, file: InodeNumber) -> u64 {
    let text = fs.extended_attribute(file, HOME_LEFT_ATTRIBUTE).expect("a number");
    String::from_utf8(text).expect("text").parse().expect("a number")
}

fn listed(fs: &FileSystem, file: InodeNumber) -> Vec<String> {
    let mut names = Vec::new();
    fs.extended_attributes(file, &mut |name, _| names.push(String::from_utf8_lossy(name).into_owned())).expect("listed");
    names
}

fn move_everything(fs: &FileSystem) {
    while fs.move_homes().expect("moves") {}
}

fn pages(fs: &FileSystem) -> u64 {
    fs.space().memory.extent_bytes / 4096
}

#[test]
fn a_home_is_an_attribute_that_is_listed_where_it_is_not_auto() {
    let device = device();
    let fs = mounted(&device);
    fs.enable_homes().expect("has homes");
    let directory = create(&fs, InodeNumber::ROOT, b"d", file_type::DIRECTORY);
    assert!(matches!(get(&fs, directory), Err(Error::NoData)) && listed(&fs, directory).is_empty());
    assert!(matches!(set(&fs, directory, "memory", SetAttributeMode::Replace), Err(Error::NoData)));
    set(&fs, directory, "memory", SetAttributeMode::Create).expect("has a home");
    assert!(matches!(set(&fs, directory, "block", SetAttributeMode::Create), Err(Error::Exists)));
    let file = create(&fs, directory, b"file", file_type::REGULAR);
    let link = create(&fs, directory, b"link", file_type::SYMLINK);
    fs.set_extended_attribute(file, b"user.a", b"b", SetExtendedAttribute::default()).expect("set");
    fs.unmount().expect("unmounts");
    let fs = mounted(&device);
    assert_eq!((get(&fs, directory).expect("there"), get(&fs, file).expect("inherited")), ("memory".into(), "memory".into()));
    assert_eq!(listed(&fs, file), ["user.tandemfs.home", "user.a"]);
    assert!(listed(&fs, link).is_empty() && matches!(set(&fs, link, "memory", SetAttributeMode::Any), Err(Error::NotPermitted)));
    set(&fs, file, "block", SetAttributeMode::Replace).expect("another home");
    assert_eq!(fs.home(file).expect("there"), Home::Block);
    fs.remove_extended_attribute(file, HOME_ATTRIBUTE).expect("removed");
    assert!(matches!(fs.remove_extended_attribute(file, HOME_ATTRIBUTE), Err(Error::NoData)));
    set(&fs, directory, "auto", SetAttributeMode::Any).expect("no home");
    assert_eq!((fs.home(file).expect("there"), listed(&fs, file)), (Home::Auto, vec!["user.a".to_owned()]));
    assert!(listed(&fs, directory).is_empty());
}

#[test]
fn what_is_no_home_is_refused_and_changes_nothing() {
    let fs = with_homes();
    let (file, _) = file_of(&fs, b"a", 1);
    let before = fs.attributes(file).expect("there");
    for value in ["", "Memory", "memory\n", "memory\0", "block zone"] {
        assert!(matches!(set(&fs, file, value, SetAttributeMode::Any), Err(Error::InvalidArgument(_))), "{value:?}");
    }
    let left = fs.set_extended_attribute(file, HOME_LEFT_ATTRIBUTE, b"0", SetExtendedAttribute::default());
    assert!(matches!(left, Err(Error::NotSupported(_))));
    assert_eq!(fs.attributes(file).expect("there"), before);
}

#[test]
fn an_attribute_gives_a_file_system_no_feature() {
    let fs = mounted(&device());
    let (file, content) = file_of(&fs, b"a", 2);
    let before = fs.superblock().incompat;
    for home in ["memory", "block"] {
        assert!(matches!(set(&fs, file, home, SetAttributeMode::Any), Err(Error::NotSupported(_))), "{home}");
    }
    set(&fs, file, "auto", SetAttributeMode::Any).expect("as it is");
    assert!(fs.superblock().incompat == before && !fs.has_homes() && listed(&fs, file).is_empty());
    fs.enable_homes().expect("has homes");
    set(&fs, file, "memory", SetAttributeMode::Any).expect("has a home");
    move_everything(&fs);
    assert_eq!(pages(&fs), 2 * 16);
    holds(&fs, file, &content);
}

#[test]
fn nothing_is_set_on_a_read_only_mount() {
    let device = device();
    let fs = mounted(&device);
    let (file, _) = file_of(&fs, b"a", 1);
    fs.set_home(file, Home::Block).expect("has a home");
    fs.unmount().expect("unmounts");
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::mount(Drive::new(device), &options).expect("mounts");
    assert_eq!(get(&fs, file).expect("there"), "block");
    assert!(matches!(set(&fs, file, "memory", SetAttributeMode::Any), Err(Error::ReadOnly)));
    assert!(matches!(fs.remove_extended_attribute(file, HOME_ATTRIBUTE), Err(Error::ReadOnly)));
    assert!(matches!((fs.enable_homes(), fs.move_homes()), (Err(Error::ReadOnly), Err(Error::ReadOnly))));
    assert_eq!(get(&fs, file).expect("there"), "block");
}

#[test]
fn existing_data_moves_in_steps_and_what_is_left_is_known() {
    let fs = with_homes();
    let (file, content) = file_of(&fs, b"a", 80);
    let attributes = fs.attributes(file).expect("there");
    set(&fs, file, "memory", SetAttributeMode::Any).expect("has a home");
    assert_eq!((left(&fs, file), fs.home_moves().files, pages(&fs)), (80 * BLOCK as u64, 1, 0));
    assert!(fs.move_homes().expect("moves"));
    let after_one = left(&fs, file);
    assert!(after_one > 0 && after_one < 80 * BLOCK as u64, "{after_one} B after a step");
    // Another home counts from the next block on.
    set(&fs, file, "block", SetAttributeMode::Any).expect("has a home");
    assert_eq!(left(&fs, file), 80 * BLOCK as u64 - after_one);
    move_everything(&fs);
    assert_eq!((left(&fs, file), pages(&fs)), (0, 0));
    set(&fs, file, "memory", SetAttributeMode::Any).expect("has a home");
    move_everything(&fs);
    assert_eq!((left(&fs, file), pages(&fs), fs.home_moves().files), (0, 80 * 16, 0));
    assert!(fs.statistics().work.home_moved_bytes > 80 * BLOCK as u64);
    holds(&fs, file, &content);
    let now = fs.attributes(file).expect("there");
    assert_eq!((now.mtime, now.size, now.space_512), (attributes.mtime, attributes.size, attributes.space_512));
}

#[test]
fn a_move_that_was_interrupted_is_found_again() {
    for crashes in [false, true] {
        let device = device();
        let fs = mounted(&device);
        let (one, first) = file_of(&fs, b"a", 40);
        let (two, second) = file_of(&fs, b"b", 30);
        let (three, _) = file_of(&fs, b"c", 3);
        for file in [one, two] {
            fs.set_home(file, Home::Memory).expect("has a home");
        }
        assert!(fs.move_homes().expect("moves"));
        if !crashes {
            fs.unmount().expect("unmounts");
        }
        drop(fs);
        let fs = mounted(&device);
        assert_eq!(fs.recovery().clean, !crashes);
        assert!(left(&fs, one) + left(&fs, two) > 0 && fs.home_moves().search.is_some());
        move_everything(&fs);
        assert_eq!((left(&fs, one), left(&fs, two), pages(&fs)), (0, 0, 70 * 16));
        assert!(fs.home_moves().search.is_none() && left(&fs, three) == 0);
        holds(&fs, one, &first);
        holds(&fs, two, &second);
    }
}

#[test]
fn a_file_system_without_homes_is_not_searched() {
    let device = device();
    let fs = mounted(&device);
    file_of(&fs, b"a", 1);
    fs.unmount().expect("unmounts");
    assert!(!mounted(&device).move_homes().expect("nothing to do"));
}

#[test]
fn the_limit_holds_for_new_data_and_for_moves() {
    let device = device();
    let limit = 10 * BLOCK as u64;
    let fs = limited(&device, HomeLimit::Bytes(limit));
    fs.enable_homes().expect("has homes");
    let (large, content) = file_of(&fs, b"a", 11);
    let before = fs.attributes(large).expect("there");
    assert!(matches!(set(&fs, large, "memory", SetAttributeMode::Any), Err(Error::NoSpace { zone: "memory" })));
    assert_eq!((fs.attributes(large).expect("there"), fs.home(large).expect("there")), (before, Home::Auto));
    let (small, _) = file_of(&fs, b"b", 6);
    set(&fs, small, "memory", SetAttributeMode::Any).expect("there is room");
    move_everything(&fs);
    let new = create(&fs, InodeNumber::ROOT, b"new", file_type::REGULAR);
    set(&fs, new, "memory", SetAttributeMode::Any).expect("has a home");
    fs.write(new, 0, &content, WriteOptions::default()).expect("the block zone serves");
    let moves = fs.home_moves();
    assert_eq!((moves.bytes, moves.limit_bytes), (limit, limit));
    // At the limit: an overwrite still finds room, and what was written elsewhere moves when room comes.
    fs.write(small, 0, &content[..BLOCK], WriteOptions::default()).expect("written");
    assert_eq!((fs.home_moves().bytes, left(&fs, new)), (limit, 7 * BLOCK as u64));
    move_everything(&fs);
    assert_eq!((fs.home_moves().waiting_files, left(&fs, new)), (1, 7 * BLOCK as u64), "it waits");
    set(&fs, small, "block", SetAttributeMode::Any).expect("has a home");
    move_everything(&fs);
    fs.retry_moves();
    move_everything(&fs);
    assert_eq!((fs.home_moves().bytes, left(&fs, new)), (limit, BLOCK as u64));
    holds(&fs, new, &content);
    fs.unmount().expect("unmounts");
    assert_eq!(limited(&device, HomeLimit::Percent(25)).home_moves().limit_bytes, 8 * MIB);
}

#[test]
fn what_was_written_without_room_moves_when_room_comes() {
    let fs = limited(&device(), HomeLimit::Bytes(10 * BLOCK as u64));
    let (one, two) =
        (create(&fs, InodeNumber::ROOT, b"one", file_type::REGULAR), create(&fs, InodeNumber::ROOT, b"two", file_type::REGULAR));
    for file in [one, two] {
        fs.set_home(file, Home::Memory).expect("has a home");
    }
    move_everything(&fs);
    let content = fill(1, 8 * BLOCK);
    for file in [one, two] {
        fs.write(file, 0, &content, WriteOptions::default()).expect("written");
    }
    assert_eq!((left(&fs, one), left(&fs, two)), (0, 6 * BLOCK as u64));
    fs.retry_moves();
    assert!(!fs.move_homes().expect("moves"), "there is no room, so nothing is searched");
    fs.unlink(InodeNumber::ROOT, b"one").expect("removed");
    fs.retry_moves();
    move_everything(&fs);
    assert_eq!(left(&fs, two), 0);
    holds(&fs, two, &content);
}

#[test]
fn a_block_with_a_lease_moves_later() {
    let fs = with_homes();
    let (file, content) = file_of(&fs, b"a", 4);
    let layout = fs.layout(file, 0, BLOCK as u64, LayoutOptions::default(), || {}).expect("given");
    set(&fs, file, "memory", SetAttributeMode::Any).expect("has a home");
    move_everything(&fs);
    assert_eq!((left(&fs, file), fs.home_moves().waiting_files), (BLOCK as u64, 1));
    drop(layout);
    fs.retry_moves();
    move_everything(&fs);
    assert_eq!((left(&fs, file), fs.home_moves().waiting_files), (0, 0));
    holds(&fs, file, &content);
}

#[test]
fn the_background_thread_moves_beside_writers_and_ends_with_the_mount() {
    let device = device();
    let fs = Arc::new(mounted(&device));
    fs.start_background().expect("a thread");
    let (file, mut content) = file_of(&fs, b"a", 64);
    fs.set_home(file, Home::Memory).expect("has a home");
    let (start, mut round) = (Instant::now(), 0);
    while left(&fs, file) > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "{} B left", left(&fs, file));
        let at = round * 7 % 64 * BLOCK + round % 1000;
        let bytes = fill(round as u64, 100);
        fs.write(file, at as u64, &bytes, WriteOptions::default()).expect("written");
        content[at..at + 100].copy_from_slice(&bytes);
        round += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    holds(&fs, file, &content);
    fs.set_home(file, Home::Block).expect("has a home");
    fs.unmount().expect("unmounts at once");
    drop(fs);
    let fs = mounted(&device);
    holds(&fs, file, &content);
    move_everything(&fs);
    assert_eq!((left(&fs, file), pages(&fs)), (0, 0));
    holds(&fs, file, &content);
}

/// A first home that is refused leaves the file system as it was: older builds still mount it.
#[test]
fn a_home_that_is_refused_gives_no_feature() {
    let fs = limited(&device(), HomeLimit::Bytes(BLOCK as u64));
    let (file, content) = file_of(&fs, b"a", 2);
    let link = create(&fs, InodeNumber::ROOT, b"link", file_type::SYMLINK);
    let before = fs.superblock().incompat;
    assert!(matches!(fs.set_home(file, Home::Memory), Err(Error::NoSpace { zone: "memory" })));
    assert!(matches!(fs.set_home(link, Home::Memory), Err(Error::InvalidArgument(_))));
    assert!(
        matches!(set(&fs, file, "memory", SetAttributeMode::Any), Err(Error::NoSpace { zone: "memory" })),
        "not asked to have homes first"
    );
    assert!(matches!(set(&fs, file, "memory", SetAttributeMode::Replace), Err(Error::NoData)));
    assert!(fs.superblock().incompat == before && !fs.has_homes());
    holds(&fs, file, &content);
    fs.set_home(file, Home::Block).expect("has a home");
    assert!(fs.has_homes());
}

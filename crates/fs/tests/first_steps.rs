//! A file system is made, mounted, worked on, unmounted, mounted again.

use std::sync::Arc;

use tandemfs_crash::MemoryDevice;
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, FormatOptions, MountOptions, NewInode, RenameMode, SetAttributes, WriteOptions, make_file_system};

fn drive() -> (MemoryDevice, Drive) {
    let device = MemoryDevice::new(16 << 20, 16 << 20, PersistenceDomain::Adr);
    let drive = Drive::new(Arc::new(device.clone()));
    (device, drive)
}

fn file() -> NewInode<'static> {
    NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" }
}

fn directory() -> NewInode<'static> {
    NewInode { mode: file_type::DIRECTORY | 0o755, ..file() }
}

fn names(fs: &FileSystem, number: InodeNumber) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    fs.read_directory(number, 2, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .expect("lists");
    names.sort();
    names
}

fn content(fs: &FileSystem, number: InodeNumber) -> Vec<u8> {
    let size = fs.attributes(number).expect("there").size as usize;
    let mut bytes = vec![0xaa; size + 10];
    let length = fs.read(number, 0, &mut bytes).expect("reads");
    assert_eq!(length, size);
    bytes.truncate(length);
    bytes
}

#[test]
fn what_was_written_is_there_after_unmount_and_after_a_crash() {
    let (device, drive) = drive();
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts");
    assert!(fs.recovery().clean);
    let root = InodeNumber::ROOT;
    let a = fs.create(root, b"a", &file()).expect("creates").inode;
    let d = fs.create(root, b"d", &directory()).expect("creates").inode;
    let long = vec![b'x'; 255];
    let b = fs.create(d, &long, &file()).expect("creates").inode;
    let small: Vec<u8> = (0..1000).map(|i| i as u8).collect();
    let large: Vec<u8> = (0..300_000_u32).map(|i| (i / 7) as u8).collect();
    assert_eq!(fs.write(a, 5, &small, WriteOptions::default()).expect("writes"), 1000);
    assert_eq!(fs.write(b, 0, &large, WriteOptions::default()).expect("writes"), 300_000);
    assert_eq!(fs.write(b, 70_000, &small, WriteOptions::default()).expect("writes"), 1000);
    let mut expected_a = vec![0; 5];
    expected_a.extend_from_slice(&small);
    let mut expected_b = large.clone();
    expected_b[70_000..71_000].copy_from_slice(&small);
    let look = |fs: &FileSystem| {
        assert_eq!(names(fs, root), [b"a".to_vec(), b"d".to_vec()]);
        assert_eq!(names(fs, d), std::slice::from_ref(&long));
        assert_eq!(content(fs, a), expected_a);
        assert!(content(fs, b) == expected_b);
        assert_eq!(fs.lookup(root, b"d").expect("there").nlink, 2);
        assert_eq!(fs.lookup(root, b".").expect("there").nlink, 3);
    };
    look(&fs);
    let crashed = MemoryDevice::from_zones(device.zones(), PersistenceDomain::Adr);
    fs.unmount().expect("unmounts");
    assert!(matches!(fs.create(root, b"late", &file()), Err(Error::ReadOnly)));
    drop(fs);
    let space = {
        let fs = FileSystem::mount(drive.clone(), &MountOptions::default()).expect("mounts");
        assert!(fs.recovery().clean);
        look(&fs);
        fs.space()
    };
    let crashed = Drive::new(Arc::new(crashed));
    let read_only = FileSystem::mount(crashed.clone(), &MountOptions { read_only: true, ..MountOptions::default() }).expect("mounts");
    look(&read_only);
    let fs = FileSystem::mount(crashed, &MountOptions::default()).expect("mounts");
    assert!(!fs.recovery().clean && fs.recovery().records_replayed > 0);
    look(&fs);
    assert_eq!(fs.space(), space);
}

#[test]
fn names_move_and_go() {
    let (_, drive) = drive();
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let root = InodeNumber::ROOT;
    let before = fs.space();
    let d = fs.create(root, b"d", &directory()).expect("creates").inode;
    let e = fs.create(d, b"e", &directory()).expect("creates").inode;
    let f = fs.create(d, b"f", &file()).expect("creates").inode;
    let g = fs.create(root, b"g", &file()).expect("creates").inode;
    assert!(matches!(fs.rename(root, b"d", e, b"x", RenameMode::Replace), Err(Error::IntoItself)));
    assert!(matches!(fs.rename(root, b"g", d, b"f", RenameMode::NoReplace), Err(Error::Exists)));
    fs.rename(root, b"g", d, b"f", RenameMode::Exchange).expect("exchanges");
    assert_eq!(fs.lookup(root, b"g").expect("there").inode, f);
    fs.remember(g, fs.attributes(g).expect("there").generation, 1).expect("there");
    fs.write(g, 0, b"still here", WriteOptions::default()).expect("writes");
    fs.rename(root, b"g", d, b"f", RenameMode::Replace).expect("replaces");
    assert_eq!(content(&fs, g), b"still here");
    fs.forget(g, 1);
    assert!(matches!(fs.attributes(g), Err(Error::Stale(_))));
    fs.rename(d, b"e", root, b"e", RenameMode::Replace).expect("moves");
    assert_eq!(fs.lookup(e, b"..").expect("there").inode, root);
    assert_eq!((fs.attributes(root).expect("there").nlink, fs.attributes(d).expect("there").nlink), (4, 2));
    assert!(matches!(fs.remove_directory(root, b"d"), Err(Error::NotEmpty)));
    fs.link(f, e, b"again").expect("links");
    fs.unlink(d, b"f").expect("unlinks");
    fs.remove_directory(root, b"d").expect("removes");
    assert_eq!(fs.lookup(e, b"again").expect("there").nlink, 1);
    let link = NewInode { mode: file_type::SYMLINK | 0o777, target: b"a/target/longer/than/twenty/bytes", ..file() };
    let s = fs.create(e, b"s", &link).expect("creates").inode;
    assert_eq!(fs.read_link(s).expect("reads"), link.target);
    fs.unlink(e, b"s").expect("unlinks");
    fs.unlink(e, b"again").expect("unlinks");
    fs.remove_directory(root, b"e").expect("removes");
    fs.checkpoint().expect("checkpoints");
    let after = fs.space();
    assert_eq!((after.block, after.inodes_used), (before.block, before.inodes_used));
    assert_eq!(after.memory.data_log_bytes, before.memory.data_log_bytes);
}

#[test]
fn truncation_zeroes_what_comes_back() {
    let (_, drive) = drive();
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = FileSystem::mount(drive, &MountOptions::default()).expect("mounts");
    let f = fs.create(InodeNumber::ROOT, b"f", &file()).expect("creates").inode;
    fs.write(f, 0, &vec![7; 200_000], WriteOptions::default()).expect("writes");
    let size = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
    for (down, up) in [(150_001, 180_000), (66_000, 66_100), (65_536, 70_000), (10, 5000), (0, 100)] {
        fs.set_attributes(f, &size(down)).expect("truncates");
        fs.set_attributes(f, &size(up)).expect("grows");
        let bytes = content(&fs, f);
        assert!(bytes[..down as usize].iter().all(|byte| *byte == 7), "{down}");
        assert!(bytes[down as usize..].iter().all(|byte| *byte == 0), "{down}");
        fs.set_attributes(f, &size(down)).expect("truncates");
    }
}

/// A second start must not start a second background thread: one of the two would never see the stop flag.
#[test]
fn regression_a_second_start_of_the_thread_behind_is_none() {
    let (_, drive) = drive();
    make_file_system(&drive, &FormatOptions::default()).expect("mkfs");
    let fs = Arc::new(FileSystem::mount(drive, &MountOptions::default()).expect("mounts"));
    fs.start_background().expect("starts");
    fs.start_background().expect("is there");
    let (ended, end) = std::sync::mpsc::channel();
    let unmounting = std::thread::spawn(move || ended.send(fs.unmount()));
    end.recv_timeout(std::time::Duration::from_secs(60)).expect("the unmount ends").expect("unmounts");
    unmounting.join().expect("ended").expect("heard");
}

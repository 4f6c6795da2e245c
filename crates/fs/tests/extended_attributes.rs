//! Extended attributes and access control lists through the library.

use std::collections::BTreeMap;
use std::sync::Arc;

use tandemfs_crash::{MemoryDevice, Random};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::attributes::{ATTRIBUTE_VALUE_MAX, NEAR_VALUE_MAX};
use tandemfs_format::inode::file_type;
use tandemfs_fs::{
    Error, FileSystem, FormatOptions, MountOptions, NewInode, ScrubbedKind, SetAttributeMode, SetAttributes, SetExtendedAttribute,
    WriteOptions, make_file_system,
};

const ROOT: InodeNumber = InodeNumber::ROOT;
const ANY: SetExtendedAttribute = SetExtendedAttribute { mode: SetAttributeMode::Any, kill_set_group_id: false };
const CREATE: SetExtendedAttribute = SetExtendedAttribute { mode: SetAttributeMode::Create, kill_set_group_id: false };
const REPLACE: SetExtendedAttribute = SetExtendedAttribute { mode: SetAttributeMode::Replace, kill_set_group_id: false };
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn device() -> MemoryDevice {
    let device = MemoryDevice::new(32 << 20, 16 << 20, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("formats");
    device
}

fn mount(device: &MemoryDevice) -> FileSystem {
    FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default()).expect("mounts")
}

fn make(fs: &FileSystem, parent: InodeNumber, name: &[u8], mode: u16) -> InodeNumber {
    let target: &[u8] = if mode & file_type::MASK == file_type::SYMLINK { b"target" } else { b"" };
    fs.create(parent, name, &NewInode { mode, uid: 1, gid: 2, rdev: 0, target }).expect("creates").inode
}

fn file(fs: &FileSystem, name: &[u8]) -> InodeNumber {
    make(fs, ROOT, name, file_type::REGULAR | 0o644)
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(131) ^ seed.wrapping_mul(0x9e37) ^ (at >> 7)) as u8).collect()
}

fn all(fs: &FileSystem, inode: InodeNumber) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = Vec::new();
    fs.extended_attributes(inode, &mut |name, length| names.push((name.to_vec(), length))).expect("lists");
    let read = |(name, length): (Vec<u8>, usize)| {
        let value = fs.extended_attribute(inode, &name).expect("there");
        assert_eq!(value.len(), length);
        (name, value)
    };
    names.into_iter().map(read).collect()
}

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

const NONE: u32 = u32::MAX;

/// A list with these permissions: owner, user 1000, group, mask, others.
fn named(owner: u16, user: u16, group: u16, mask: u16, others: u16) -> Vec<u8> {
    list(&[(1, owner, NONE), (2, user, 1000), (4, group, NONE), (16, mask, NONE), (32, others, NONE)])
}

fn minimal(owner: u16, group: u16, others: u16) -> Vec<u8> {
    list(&[(1, owner, NONE), (4, group, NONE), (32, others, NONE)])
}

fn mode(fs: &FileSystem, inode: InodeNumber) -> u16 {
    fs.attributes(inode).expect("there").mode & 0o7777
}

/// Any set of attributes of any size behaves like a map, over remounts and crashes; in the end no space is lost.
#[test]
fn attributes_are_a_map() {
    let device = device();
    let mut fs = mount(&device);
    let inode = file(&fs, b"f");
    let fresh = fs.space();
    let mut random = Random::new(tandemfs_crash::seed_or(5));
    let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for step in 0..600 {
        let name = match random.below(4) {
            0 => format!("trusted.{}", "n".repeat(1 + random.below(247) as usize)),
            kind => format!("{}.{}", if kind == 1 { "security" } else { "user" }, random.below(12)),
        };
        let length = *random.pick(&[0, 1, 44, 60, 61, 500, NEAR_VALUE_MAX, NEAR_VALUE_MAX + 1, 3840, 3841, 20_000, ATTRIBUTE_VALUE_MAX]);
        let value = bytes(step, length);
        match random.below(8) {
            0 | 1 => {
                let removed = fs.remove_extended_attribute(inode, name.as_bytes());
                assert_eq!(removed.is_ok(), expected.remove(name.as_bytes()).is_some(), "{removed:?}");
            }
            2 if step % 5 == 0 => {
                fs.unmount().expect("unmounts");
                fs = mount(&device);
            }
            3 if step % 5 == 0 => {
                drop(fs);
                fs = mount(&device);
                assert!(!fs.recovery().clean);
            }
            _ => match fs.set_extended_attribute(inode, name.as_bytes(), &value, ANY) {
                Ok(()) => drop(expected.insert(name.into_bytes(), value)),
                Err(Error::AttributesFull | Error::NoSpace { .. }) => {}
                Err(error) => panic!("{error}"),
            },
        }
        assert_eq!(all(&fs, inode), expected, "step {step}");
        let attributes = fs.attributes(inode).expect("there");
        assert!(attributes.space_512.is_multiple_of(8));
    }
    for name in expected.keys() {
        fs.remove_extended_attribute(inode, name).expect("removes");
    }
    assert_eq!(fs.attributes(inode).expect("there").space_512, 0);
    fs.checkpoint().expect("writes");
    let (before, after) = (fresh.memory.data_log_bytes, fs.space().memory.data_log_bytes);
    assert_eq!(before, after);
}

#[test]
fn flags_names_and_sizes_are_refused_as_linux_refuses_them() {
    let device = device();
    let fs = mount(&device);
    let inode = file(&fs, b"f");
    let set = |name: &[u8], value: &[u8], how| fs.set_extended_attribute(inode, name, value, how);
    assert!(matches!(set(b"user.a", b"1", REPLACE), Err(Error::NoData)));
    set(b"user.a", b"1", CREATE).expect("new");
    assert!(matches!(set(b"user.a", b"2", CREATE), Err(Error::Exists)));
    set(b"user.a", b"3", REPLACE).expect("there");
    assert_eq!(fs.extended_attribute(inode, b"user.a").expect("there"), b"3");
    assert!(matches!(fs.extended_attribute(inode, b"user.b"), Err(Error::NoData)));
    assert!(matches!(fs.remove_extended_attribute(inode, b"user.b"), Err(Error::NoData)));

    let long = [&b"user."[..], &[b'x'; 250]].concat();
    set(&long, b"", ANY).expect("255 B");
    let longer = [&long[..], b"x"].concat();
    for (name, what) in [(&b""[..], "empty"), (&longer, "256 B")] {
        assert!(matches!(set(name, b"", ANY), Err(Error::AttributeNameLength)), "{what}");
        assert!(matches!(fs.extended_attribute(inode, name), Err(Error::AttributeNameLength)), "{what}");
    }
    assert!(matches!(set(b"system.else", b"", ANY), Err(Error::NotSupported(_))));
    assert!(matches!(set(b"plain", b"", ANY), Err(Error::NotSupported(_))));
    assert!(matches!(set(b"user.", b"", ANY), Err(Error::InvalidArgument(_))));
    assert!(matches!(set(b"user.a\0b", b"", ANY), Err(Error::InvalidArgument(_))));
    set(b"user.large", &bytes(1, ATTRIBUTE_VALUE_MAX), ANY).expect("64 KiB");
    assert!(matches!(set(b"user.large", &bytes(1, ATTRIBUTE_VALUE_MAX + 1), ANY), Err(Error::AttributeTooLarge)));
    assert_eq!(fs.extended_attribute(inode, b"user.large").expect("there"), bytes(1, ATTRIBUTE_VALUE_MAX), "nothing changed");

    let fifo = make(&fs, ROOT, b"fifo", file_type::FIFO | 0o644);
    let link = make(&fs, ROOT, b"link", file_type::SYMLINK | 0o777);
    assert!(matches!(fs.set_extended_attribute(fifo, b"user.a", b"", ANY), Err(Error::NotPermitted)));
    assert!(matches!(fs.set_extended_attribute(link, b"user.a", b"", ANY), Err(Error::NotPermitted)));
    fs.set_extended_attribute(link, b"trusted.a", b"1", ANY).expect("links have those");
    assert!(matches!(fs.set_extended_attribute(link, ACCESS, &minimal(7, 7, 7), ANY), Err(Error::NotSupported(_))));
    assert!(matches!(fs.set_extended_attribute(inode, DEFAULT, &minimal(7, 7, 7), ANY), Err(Error::NotForFiles)));
    fs.unlink(ROOT, b"link").expect("goes");
}

#[test]
fn as_many_as_one_listing_carries_and_no_more() {
    let device = device();
    let fs = mount(&device);
    let inode = file(&fs, b"f");
    let mut count = 0;
    let refused = loop {
        let name = format!("user.{count:0>250}");
        match fs.set_extended_attribute(inode, name.as_bytes(), b"v", ANY) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::AttributesFull), "{refused}");
    assert_eq!(count, 256, "64 KiB of names of 255 B with a NUL each");
    assert_eq!(all(&fs, inode).len(), 256);
    fs.unlink(ROOT, b"f").expect("goes");
    // Larger values are limited by the size of the set: values of 1 KiB are stored in it.
    let inode = file(&fs, b"g");
    let set = |index: usize| fs.set_extended_attribute(inode, format!("user.{index}").as_bytes(), &bytes(3, NEAR_VALUE_MAX), ANY);
    let count = (0..).find(|index| set(*index).is_err()).expect("ends");
    assert!((240..256).contains(&count), "{count}");
    fs.remove_extended_attribute(inode, b"user.0").expect("goes");
    set(0).expect("there is room again");
}

/// Once an inode's attributes were read, no request of the kernel reads them from the device.
#[test]
fn checks_read_no_device_once_the_inode_is_in_memory() {
    let device = device();
    let fs = mount(&device);
    let (with, without) = (file(&fs, b"with"), file(&fs, b"without"));
    fs.set_extended_attribute(with, ACCESS, &named(7, 6, 5, 7, 0), ANY).expect("sets");
    fs.set_extended_attribute(with, b"security.capability", &bytes(1, 20), ANY).expect("sets");
    fs.unmount().expect("unmounts");
    let fs = mount(&device);
    let look = || {
        for inode in [with, without] {
            for name in [ACCESS, b"security.capability", b"user.absent"] {
                let _found = fs.extended_attribute(inode, name);
            }
        }
    };
    look();
    fs.reset_statistics();
    look();
    let read: u64 = fs.drive().counters().snapshot().by_structure.iter().map(|of| of.byte_read_bytes + of.block_read_bytes).sum();
    assert_eq!((read, fs.statistics().work.metadata_page_loads), (0, 0));
}

#[test]
fn a_file_without_attributes_takes_no_space_for_them() {
    let device = device();
    let fs = mount(&device);
    let before = fs.space();
    let inode = file(&fs, b"f");
    assert!(matches!(fs.extended_attribute(inode, b"user.a"), Err(Error::NoData)));
    assert_eq!(fs.space().memory, before.memory, "nothing but the inode and the name, whose regions have room");
}

#[test]
fn an_access_list_and_the_mode_say_the_same() {
    let device = device();
    let fs = mount(&device);
    let inode = file(&fs, b"f");
    let ctime = fs.attributes(inode).expect("there").ctime;
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs.set_extended_attribute(inode, ACCESS, &named(7, 6, 4, 5, 1), ANY).expect("sets");
    assert_eq!(mode(&fs, inode), 0o751, "the group's bits are the mask's");
    assert!(fs.attributes(inode).expect("there").ctime > ctime);
    let permissions = |bits| SetAttributes { permissions: Some(bits), ..SetAttributes::default() };
    fs.set_attributes(inode, &permissions(0o640)).expect("sets");
    assert_eq!(fs.extended_attribute(inode, ACCESS).expect("there"), named(6, 6, 4, 4, 0), "chmod sets the mask");
    // Also with a size in the same request.
    fs.set_attributes(inode, &SetAttributes { size: Some(100), ..permissions(0o600) }).expect("sets");
    assert_eq!(fs.extended_attribute(inode, ACCESS).expect("there"), named(6, 6, 4, 0, 0));
    assert_eq!(fs.attributes(inode).expect("there").size, 100);
    fs.set_extended_attribute(inode, ACCESS, &minimal(6, 4, 4), ANY).expect("sets");
    assert!(matches!(fs.extended_attribute(inode, ACCESS), Err(Error::NoData)), "a minimal list is not kept");
    assert_eq!(mode(&fs, inode), 0o644);
    fs.set_extended_attribute(inode, ACCESS, &named(7, 6, 4, 5, 1), ANY).expect("sets");
    fs.set_extended_attribute(inode, ACCESS, &list(&[]), ANY).expect("a list without entries goes");
    assert!(matches!(fs.extended_attribute(inode, ACCESS), Err(Error::NoData)));
    assert_eq!(mode(&fs, inode), 0o751, "its mode stays");

    let before = (mode(&fs, inode), all(&fs, inode));
    for wrong in [&b""[..], b"\x02", &named(7, 6, 4, 5, 1)[..30], &list(&[(1, 7, NONE)]), &bytes(3, 44)] {
        assert!(fs.set_extended_attribute(inode, ACCESS, wrong, ANY).is_err());
        assert!(fs.set_extended_attribute(ROOT, DEFAULT, wrong, ANY).is_err());
    }
    assert_eq!((mode(&fs, inode), all(&fs, inode)), before, "nothing changed");

    fs.set_attributes(inode, &permissions(0o2755)).expect("sets");
    let kill = SetExtendedAttribute { kill_set_group_id: true, ..ANY };
    fs.set_extended_attribute(inode, ACCESS, &named(7, 6, 4, 5, 1), ANY).expect("sets");
    assert_eq!(mode(&fs, inode), 0o2751);
    fs.set_extended_attribute(inode, ACCESS, &named(7, 6, 4, 5, 1), kill).expect("sets");
    assert_eq!(mode(&fs, inode), 0o751);
}

#[test]
fn what_is_made_in_a_directory_inherits_its_default_list() {
    let device = device();
    let mut fs = mount(&device);
    let directory = make(&fs, ROOT, b"d", file_type::DIRECTORY | 0o755);
    let create = |fs: &FileSystem, name: &[u8], mode, umask| {
        let target: &[u8] = if mode & file_type::MASK == file_type::SYMLINK { b"t" } else { b"" };
        let new = NewInode { mode, uid: 1, gid: 2, rdev: 0, target };
        fs.create_under_umask(directory, name, &new, umask).expect("creates").inode
    };
    let plain = create(&fs, b"plain", file_type::REGULAR | 0o666, 0o027);
    assert_eq!(mode(&fs, plain), 0o640, "the umask");
    fs.set_extended_attribute(directory, DEFAULT, &named(7, 6, 5, 7, 1), ANY).expect("sets");
    assert_eq!(mode(&fs, directory), 0o755, "says nothing of the directory itself");

    let child = create(&fs, b"file", file_type::REGULAR | 0o664, 0o077);
    let below = create(&fs, b"below", file_type::DIRECTORY | 0o770, 0o077);
    let fifo = create(&fs, b"fifo", file_type::FIFO | 0o600, 0);
    let link = create(&fs, b"link", file_type::SYMLINK | 0o777, 0);
    let new = NewInode { mode: file_type::REGULAR | 0o640, uid: 1, gid: 2, rdev: 0, target: b"" };
    let nameless = fs.create_nameless(directory, &new, 0o077).expect("creates").inode;
    fs.link(nameless, directory, b"named").expect("links");
    for _ in 0..2 {
        assert_eq!((mode(&fs, child), all(&fs, child)), (0o660, BTreeMap::from([(ACCESS.to_vec(), named(6, 6, 5, 6, 0))])));
        let expected = BTreeMap::from([(ACCESS.to_vec(), named(7, 6, 5, 7, 0)), (DEFAULT.to_vec(), named(7, 6, 5, 7, 1))]);
        assert_eq!((mode(&fs, below), all(&fs, below)), (0o770, expected));
        assert_eq!((mode(&fs, fifo), all(&fs, fifo)), (0o600, BTreeMap::from([(ACCESS.to_vec(), named(6, 6, 5, 0, 0))])));
        assert_eq!((mode(&fs, nameless), all(&fs, nameless)), (0o640, BTreeMap::from([(ACCESS.to_vec(), named(6, 6, 5, 4, 0))])));
        assert_eq!((mode(&fs, link), all(&fs, link).len()), (0o777, 0));
        drop(fs); // leaves the device as a crash does
        fs = mount(&device);
    }
    fs.set_extended_attribute(directory, DEFAULT, &minimal(7, 5, 0), ANY).expect("sets");
    let child = create(&fs, b"file2", file_type::REGULAR | 0o666, 0o077);
    assert_eq!((mode(&fs, child), all(&fs, child).len()), (0o640, 0), "no more than a mode");
    let below = create(&fs, b"below2", file_type::DIRECTORY | 0o777, 0o077);
    assert_eq!((mode(&fs, below), all(&fs, below)), (0o750, BTreeMap::from([(DEFAULT.to_vec(), minimal(7, 5, 0))])));
}

#[test]
fn space_of_attributes_comes_back_with_the_file_and_after_a_crash() {
    let device = device();
    let mut fs = mount(&device);
    for round in 0..40 {
        let inode = file(&fs, b"f");
        for name in 0..4_u64 {
            let name = format!("user.{name}");
            fs.set_extended_attribute(inode, name.as_bytes(), &bytes(round, ATTRIBUTE_VALUE_MAX), ANY).expect("there is room");
        }
        assert_eq!(fs.attributes(inode).expect("there").space_512, 4 * 18 * 8);
        if round % 3 == 0 {
            drop(fs);
            fs = mount(&device);
        }
        fs.unlink(ROOT, b"f").expect("goes");
        if round % 4 == 0 {
            fs.unmount().expect("unmounts");
            fs = mount(&device);
        }
    }
}

#[test]
fn a_removal_works_where_nothing_more_can_be_set() {
    let device = device();
    let fs = mount(&device);
    let inode = file(&fs, b"f");
    for name in 0..8 {
        fs.set_extended_attribute(inode, format!("user.{name}").as_bytes(), &bytes(name, 200), ANY).expect("sets");
    }
    let mut count = 0;
    'full: for number in 0.. {
        let other = match fs.create(
            ROOT,
            format!("o{number}").as_bytes(),
            &NewInode { mode: file_type::REGULAR, uid: 0, gid: 0, rdev: 0, target: b"" },
        ) {
            Ok(other) => other.inode,
            Err(Error::NoSpace { .. }) => break,
            Err(error) => panic!("{error}"),
        };
        for name in 0..40 {
            match fs.set_extended_attribute(other, format!("user.{name}").as_bytes(), &bytes(name, ATTRIBUTE_VALUE_MAX), ANY) {
                Ok(()) => count += 1,
                Err(Error::NoSpace { .. }) => break 'full,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(count > 100, "{count}");
    for name in 0..8 {
        fs.remove_extended_attribute(inode, format!("user.{name}").as_bytes()).expect("gives back what it takes");
    }
}

/// The region of attributes gets its first unit even if data logs have all units.
#[test]
fn the_first_attribute_finds_room_where_logs_fill_the_zone() {
    let device = MemoryDevice::new(16 << 20, 16 << 20, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("formats");
    let fs = mount(&device);
    let inode = file(&fs, b"logs");
    let mut offset = 0;
    // Until writes take the block path, which takes nothing of the memory zone.
    let logs = |fs: &FileSystem| fs.space().memory.data_log_bytes;
    let mut before = u64::MAX;
    while logs(&fs) != before && offset < 12 << 20 {
        before = logs(&fs);
        for _ in 0..64 {
            fs.write(inode, offset, &bytes(offset, 3000), WriteOptions::default()).expect("writes");
            offset += 4096;
        }
    }
    assert!(logs(&fs) > 1 << 20, "{:?}", fs.space());
    for number in 0..1000 {
        fs.set_extended_attribute(inode, format!("user.{number}").as_bytes(), b"value", ANY).expect("there is room");
    }
    fs.unmount().expect("unmounts");
    tandemfs_crash::check_device(&device, false).expect("clean");
}

#[test]
fn damage_is_an_error_of_the_attributes_and_not_of_the_file() {
    let device = device();
    let fs = mount(&device);
    let inode = file(&fs, b"f");
    fs.write(inode, 0, b"data", tandemfs_fs::WriteOptions::default()).expect("writes");
    let large = bytes(9, 5000);
    fs.set_extended_attribute(inode, b"user.large", &large, ANY).expect("sets");
    fs.set_extended_attribute(inode, b"user.small", b"small value that", ANY).expect("sets");
    fs.unmount().expect("unmounts");
    // The lines of both values hold their bytes in runs of 60; the newest copy of the small one is in the set.
    let flip = |bytes: &[u8]| {
        device.damage(|zones| {
            let found: Vec<usize> = (0..zones.memory.len() - bytes.len()).filter(|at| zones.memory[*at..].starts_with(bytes)).collect();
            assert!(!found.is_empty());
            found.iter().for_each(|at| zones.memory[*at] ^= 0x20);
        });
    };
    flip(&large[4980..]);
    let fs = mount(&device);
    let mut scrub = fs.scrub();
    while fs.scrub_step(&mut scrub) {}
    let found: Vec<_> = scrub.findings().iter().map(|found| (found.kind, found.inode, found.file_offset, found.length)).collect();
    assert_eq!(found, [(ScrubbedKind::Line, Some(inode), None, 64)], "a scrub finds the line that is damaged");
    assert!(matches!(fs.extended_attribute(inode, b"user.large"), Err(Error::Damaged { .. })));
    assert_eq!(fs.extended_attribute(inode, b"user.small").expect("there"), b"small value that");
    fs.unmount().expect("unmounts");
    flip(b"small value that");
    let fs = mount(&device);
    assert!(matches!(fs.extended_attribute(inode, b"user.small"), Err(Error::Damaged { .. })));
    let mut read = [0; 4];
    fs.read(inode, 0, &mut read).expect("reads");
    assert_eq!(&read, b"data");
    assert_eq!(fs.attributes(inode).expect("there").size, 4);
}

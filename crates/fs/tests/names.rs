//! Tests of names that need the library, or are faster there: names that no kernel sends, 65,000 links, files without names, whiteouts.

use std::sync::Arc;

use tandemfs_crash::MemoryDevice;
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::{LINK_MAX, Timestamp, file_type};
use tandemfs_fs::{Error, FileSystem, FormatOptions, MountOptions, NewInode, RenameMode, SetAttributes, WriteOptions, make_file_system};

const ROOT: InodeNumber = InodeNumber::ROOT;

fn file() -> NewInode<'static> {
    NewInode { mode: file_type::REGULAR | 0o644, uid: 0, gid: 0, rdev: 0, target: b"" }
}

fn formatted() -> MemoryDevice {
    let device = MemoryDevice::new(64 << 20, 64 << 20, PersistenceDomain::Gpf);
    make_file_system(&Drive::new(Arc::new(device.clone())), &FormatOptions::default()).expect("mkfs");
    device
}

fn mounted(device: &MemoryDevice) -> FileSystem {
    FileSystem::mount(Drive::new(Arc::new(device.clone())), &MountOptions::default()).expect("mounts")
}

#[test]
fn names_that_no_kernel_sends_are_refused_and_change_nothing() {
    let fs = mounted(&formatted());
    let there = fs.create(ROOT, b"there", &file()).expect("created").inode;
    let before = (fs.attributes(ROOT).expect("there"), fs.space());
    let long = [b'n'; 256];
    for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b", b"\0", &long] {
        let refusals = [
            fs.create(ROOT, name, &file()).map(drop),
            fs.link(there, ROOT, name).map(drop),
            fs.unlink(ROOT, name),
            fs.remove_directory(ROOT, name),
            fs.rename(ROOT, b"there", ROOT, name, RenameMode::Replace),
            fs.rename(ROOT, name, ROOT, b"new", RenameMode::Replace),
            fs.rename_leaving_whiteout((ROOT, b"there"), (ROOT, name), RenameMode::Replace, (0, 0)),
        ];
        for refusal in refusals {
            let expected =
                if name.len() > 255 { matches!(refusal, Err(Error::NameTooLong)) } else { matches!(refusal, Err(Error::InvalidName)) };
            assert!(expected, "{name:?}: {refusal:?}");
        }
    }
    assert_eq!((fs.attributes(ROOT).expect("there"), fs.space()), before);
}

#[test]
fn a_file_has_65_000_names_and_no_more() {
    let device = formatted();
    let fs = mounted(&device);
    let number = fs.create(ROOT, b"0", &file()).expect("created").inode;
    let name = |index: u32| index.to_string().into_bytes();
    for index in 1..LINK_MAX {
        fs.link(number, ROOT, &name(index)).unwrap_or_else(|error| panic!("link {index}: {error}"));
    }
    assert_eq!(fs.attributes(number).expect("there").nlink, 65_000);
    let before = fs.space();
    assert!(matches!(fs.link(number, ROOT, &name(LINK_MAX)), Err(Error::TooManyLinks)));
    assert!(matches!(fs.lookup(ROOT, &name(LINK_MAX)), Err(Error::NotFound)));
    assert_eq!((fs.attributes(number).expect("there").nlink, fs.space()), (65_000, before));
    fs.rename(ROOT, b"1", ROOT, b"other", RenameMode::NoReplace).expect("a rename needs no link");
    fs.unlink(ROOT, b"2").expect("removed");
    fs.link(number, ROOT, &name(LINK_MAX)).expect("there is room for one again");
    fs.unmount().expect("unmounts");
    assert_eq!(mounted(&device).attributes(number).expect("there").nlink, 65_000);
}

#[test]
fn a_nameless_file_is_named_once_or_goes_with_its_holder() {
    let device = formatted();
    let fs = mounted(&device);
    let used = |fs: &FileSystem| fs.space().inodes_used;
    let before = used(&fs);
    let nameless = fs.create_nameless(ROOT, &file(), 0).expect("created");
    assert_eq!((nameless.nlink, used(&fs)), (0, before + 1));
    fs.write(nameless.inode, 0, &[7; 100_000], WriteOptions::default()).expect("written");
    fs.forget(nameless.inode, 1);
    assert!(matches!(fs.attributes(nameless.inode), Err(Error::Stale(_))));
    assert_eq!(used(&fs), before, "it went with its holder");

    let named = fs.create_nameless(ROOT, &file(), 0).expect("created").inode;
    assert_eq!(fs.link(named, ROOT, b"named").expect("named").nlink, 1);
    fs.forget(named, 1);
    assert_eq!(fs.lookup(ROOT, b"named").expect("there").inode, named);
    // An inode that lost its last name gets no new one.
    fs.remember(named, fs.attributes(named).expect("there").generation, 1).expect("held");
    fs.unlink(ROOT, b"named").expect("removed");
    assert!(matches!(fs.link(named, ROOT, b"again"), Err(Error::NotFound)));
    fs.forget(named, 1);
    assert_eq!(used(&fs), before);

    assert!(matches!(fs.create_nameless(named, &file(), 0), Err(Error::Stale(_))));
    let directory = NewInode { mode: file_type::DIRECTORY | 0o755, ..file() };
    assert!(matches!(fs.create_nameless(ROOT, &directory, 0), Err(Error::InvalidArgument(_))));

    // A crash removes a file without a name and keeps one with a name.
    let lost = fs.create_nameless(ROOT, &file(), 0).expect("created").inode;
    let kept = fs.create_nameless(ROOT, &file(), 0).expect("created").inode;
    fs.write(kept, 0, b"kept", WriteOptions::default()).expect("written");
    fs.link(kept, ROOT, b"kept").expect("named");
    drop(fs);
    let fs = mounted(&device);
    assert!(matches!(fs.attributes(lost), Err(Error::Stale(_))));
    assert_eq!((fs.recovery().orphans_removed, used(&fs)), (1, before + 1));
    let mut bytes = [0; 4];
    fs.read(fs.lookup(ROOT, b"kept").expect("there").inode, 0, &mut bytes).expect("read");
    assert_eq!(&bytes, b"kept");
}

#[test]
fn a_whiteout_takes_the_place_of_what_moved_away() {
    let device = formatted();
    let fs = mounted(&device);
    let directory = fs.create(ROOT, b"directory", &NewInode { mode: file_type::DIRECTORY | 0o755, ..file() }).expect("created").inode;
    let one = fs.create(ROOT, b"one", &file()).expect("created").inode;
    let two = fs.create(directory, b"two", &file()).expect("created").inode;
    let away = |from: (InodeNumber, &[u8]), to: (InodeNumber, &[u8]), mode| fs.rename_leaving_whiteout(from, to, mode, (5, 6));
    assert!(matches!(away((ROOT, b"one"), (directory, b"two"), RenameMode::NoReplace), Err(Error::Exists)));
    assert!(matches!(away((ROOT, b"one"), (directory, b"two"), RenameMode::Exchange), Err(Error::InvalidArgument(_))));
    away((ROOT, b"one"), (directory, b"two"), RenameMode::Replace).expect("renamed");
    assert!(matches!(fs.attributes(two), Err(Error::Stale(_))));
    assert_eq!(fs.lookup(directory, b"two").expect("there").inode, one);
    let whiteout = fs.lookup(ROOT, b"one").expect("there");
    assert_eq!((whiteout.mode, whiteout.rdev, whiteout.uid, whiteout.gid, whiteout.nlink), (file_type::CHARACTER, 0, 5, 6, 1));
    // A directory into another directory, and over a whiteout.
    let inner = fs.create(directory, b"inner", &NewInode { mode: file_type::DIRECTORY | 0o755, ..file() }).expect("created").inode;
    away((directory, b"inner"), (ROOT, b"moved"), RenameMode::NoReplace).expect("renamed");
    assert_eq!(fs.lookup(inner, b"..").expect("there").inode, ROOT);
    let links = |number| fs.attributes(number).expect("there").nlink;
    assert_eq!((links(ROOT), links(directory)), (4, 2));
    away((directory, b"two"), (ROOT, b"one"), RenameMode::Replace).expect("over a whiteout");
    fs.unmount().expect("unmounts");
    let fs = mounted(&device);
    assert_eq!(fs.lookup(ROOT, b"one").expect("there").inode, one);
    for name in [&b"two"[..], b"inner"] {
        assert_eq!(fs.lookup(directory, name).expect("there").mode, file_type::CHARACTER);
    }
}

/// A kernel with a write-back cache sends the ctime of the removal for every file that loses its last name.
#[test]
fn the_last_ctime_of_a_file_without_names_takes_no_transaction_and_other_changes_do() {
    let device = formatted();
    let fs = mounted(&device);
    let ctime = Timestamp { seconds: 1_800_000_000, nanoseconds: 7 };
    let at_ctime = SetAttributes { ctime: Some(ctime), ..SetAttributes::default() };
    let inode = fs.create(ROOT, b"f", &file()).expect("created");
    let transactions = |set: &SetAttributes| {
        let before = fs.statistics().work.transactions;
        let shown = fs.set_attributes(inode.inode, set).expect("set");
        assert_eq!(shown.ctime, ctime);
        fs.statistics().work.transactions - before
    };
    assert_eq!(transactions(&at_ctime), 1, "it has a name");
    fs.remember(inode.inode, inode.generation, 1).expect("held");
    fs.unlink(ROOT, b"f").expect("unlinked");
    assert_eq!(transactions(&at_ctime), 0);
    assert_eq!(transactions(&SetAttributes { permissions: Some(0o600), ..at_ctime }), 1);
    assert_eq!(fs.attributes(inode.inode).expect("held").mode & 0o777, 0o600);
    fs.forget(inode.inode, 1);

    // A file without a name may get one later.
    let nameless = fs.create_nameless(ROOT, &file(), 0).expect("created");
    fs.remember(nameless.inode, nameless.generation, 1).expect("held");
    fs.set_attributes(nameless.inode, &at_ctime).expect("set");
    fs.link(nameless.inode, ROOT, b"named").expect("linked");
    let shown = fs.attributes(nameless.inode).expect("there");
    fs.forget(nameless.inode, 1);
    drop(fs);
    assert_eq!(mounted(&device).lookup(ROOT, b"named").expect("there"), shown);
}

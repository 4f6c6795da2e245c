//! An attribute with the name of the home, stored by a build that did not know homes ([HX3] of `namespace/home_attribute.rs`). The switch
//! that makes this build such a one is of the whole process, so this file is a program of its own with one test.

use std::sync::Arc;

use tandemfs_crash::MemoryDevice;
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::{self, Mutant};
use tandemfs_fs::{Error, FileSystem, FormatOptions, HOME_ATTRIBUTE, Home, MountOptions, NewInode, SetExtendedAttribute, make_file_system};

fn mounted(device: &Arc<MemoryDevice>) -> FileSystem {
    FileSystem::mount(Drive::new(device.clone()), &MountOptions::default()).expect("mounts")
}

fn set(fs: &FileSystem, file: InodeNumber, value: &[u8]) -> Result<(), Error> {
    fs.set_extended_attribute(file, HOME_ATTRIBUTE, value, SetExtendedAttribute::default())
}

fn names(fs: &FileSystem, file: InodeNumber) -> Vec<String> {
    let mut names = Vec::new();
    fs.extended_attributes(file, &mut |name, _| names.push(String::from_utf8_lossy(name).into_owned())).expect("listed");
    names.sort();
    names
}

#[test]
fn an_attribute_that_an_older_build_stored_has_no_effect_and_is_hidden() {
    let device = Arc::new(MemoryDevice::new(32 << 20, 32 << 20, PersistenceDomain::Adr));
    make_file_system(&Drive::new(device.clone()), &FormatOptions::default()).expect("formats");

    // An older build stores it as any other, also a value that is no home.
    mutant::select(Mutant::HomesUnknown);
    let fs = mounted(&device);
    let make = |name: &[u8]| {
        let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
        fs.create(InodeNumber::ROOT, name, &new).expect("made").inode
    };
    let (file, other) = (make(b"f"), make(b"g"));
    set(&fs, file, b"memory").expect("stored");
    set(&fs, other, b"no home at all").expect("stored");
    fs.set_extended_attribute(file, b"user.kept", b"1", SetExtendedAttribute::default()).expect("stored");
    assert_eq!(names(&fs, file), ["user.kept", "user.tandemfs.home"]);
    assert_eq!(fs.extended_attribute(other, HOME_ATTRIBUTE).expect("there"), b"no home at all");
    fs.unmount().expect("unmounts");
    mutant::select(Mutant::None);

    let fs = mounted(&device);
    assert!(!fs.has_homes(), "the attribute did not give the file system homes");
    for file in [file, other] {
        assert_eq!(fs.home(file).expect("read"), Home::Auto);
        assert!(matches!(fs.extended_attribute(file, HOME_ATTRIBUTE), Err(Error::NoData)));
        assert!(!names(&fs, file).contains(&"user.tandemfs.home".to_owned()));
    }
    assert_eq!(names(&fs, file), ["user.kept"]);
    mutant::select(Mutant::OldHomeShown);
    assert_eq!(names(&fs, file), ["user.kept", "user.tandemfs.home"], "the deliberate bug is found");
    mutant::select(Mutant::None);

    // What is set now is the home, not the attribute that was stored.
    fs.enable_homes().expect("has homes");
    set(&fs, file, b"block").expect("set");
    assert_eq!((fs.home(file).expect("read"), names(&fs, file)), (Home::Block, vec!["user.kept".into(), "user.tandemfs.home".into()]));
    fs.remove_extended_attribute(file, HOME_ATTRIBUTE).expect("removed");
    assert_eq!((fs.home(file).expect("read"), names(&fs, file)), (Home::Auto, vec!["user.kept".into()]));
    fs.unmount().expect("unmounts");
    tandemfs_crash::check_device(&device, false).expect("nothing is found");
}

//! Extended attributes, access control lists and file capabilities.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use rustix::fs::{CWD, Mode, XattrFlags, getxattr, lgetxattr, listxattr, lsetxattr, removexattr, setxattr};
use rustix::io::Errno;

use super::sizes::pattern;
use crate::scene::{ALICE, BOB, CAROL, Difference, SHARED, Scene, refused};
use crate::sys;

const ANY: XattrFlags = XattrFlags::empty();
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const CAPABILITY: &str = "security.capability";

fn get(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; 70_000];
    let length = getxattr(path, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

/// The names, in order, but for those that a security module adds.
fn names(path: &Path) -> Vec<String> {
    let mut list = vec![0; 70_000];
    let length = listxattr(path, &mut list[..]).expect("listed");
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<String> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.retain(|name| name != "security.selinux");
    names.sort();
    names
}

pub(crate) fn set_replaced_listed_removed(scene: &Scene<'_>) {
    let path = scene.file("file", "bytes");
    let before = fs::metadata(&path).expect("there");
    std::thread::sleep(std::time::Duration::from_millis(20));
    refused(get(&path, "user.one"), Errno::NODATA);
    refused(setxattr(&path, "user.one", b"1", XattrFlags::REPLACE), Errno::NODATA);
    setxattr(&path, "user.one", b"first", XattrFlags::CREATE).expect("created");
    refused(setxattr(&path, "user.one", b"2", XattrFlags::CREATE), Errno::EXIST);
    setxattr(&path, "user.one", b"second", XattrFlags::REPLACE).expect("replaced");
    setxattr(&path, "user.empty", b"", ANY).expect("set");
    setxattr(&path, "trusted.root", &[0, 255, 10], ANY).expect("set");
    assert_eq!((get(&path, "user.one"), get(&path, "user.empty")), (Ok(b"second".to_vec()), Ok(Vec::new())));
    assert_eq!(names(&path), ["trusted.root", "user.empty", "user.one"]);
    // Sizes are asked for with no room at all; too little is an error.
    assert_eq!(sys::attribute_size(&path, c"user.one").expect("asked"), 6);
    refused(getxattr(&path, "user.one", &mut [0; 5][..]), Errno::RANGE);
    let length = sys::attribute_names_size(&path).expect("asked");
    refused(listxattr(&path, &mut vec![0; length - 1][..]), Errno::RANGE);
    assert!(listxattr(&path, &mut vec![0; length][..]).is_ok());
    let after = fs::metadata(&path).expect("there");
    assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));
    assert!((before.ctime(), before.ctime_nsec()) < (after.ctime(), after.ctime_nsec()));
    // They are the file's, not the name's.
    fs::hard_link(&path, scene.path("other")).expect("linked");
    fs::rename(&path, scene.path("moved")).expect("renamed");
    assert_eq!(get(&scene.path("other"), "user.one"), Ok(b"second".to_vec()));
    removexattr(scene.path("moved"), "user.one").expect("removed");
    refused(removexattr(scene.path("other"), "user.one"), Errno::NODATA);
    assert_eq!(names(&scene.path("other")), ["trusted.root", "user.empty"]);
}

pub(crate) fn names_values_and_namespaces(scene: &Scene<'_>) {
    let path = scene.file("file", "bytes");
    let long = format!("user.{}", "n".repeat(250));
    setxattr(&path, &long, b"1", ANY).expect("255 bytes");
    refused(setxattr(&path, format!("{long}n"), b"1", ANY), Errno::RANGE);
    refused(setxattr(&path, "", b"1", ANY), Errno::RANGE);
    refused(setxattr(&path, "other.name", b"1", ANY), Errno::OPNOTSUPP);
    refused(setxattr(&path, "plain", b"1", ANY), Errno::OPNOTSUPP);
    refused(setxattr(&path, "user.", b"1", ANY), Errno::INVAL);
    refused(setxattr(&path, "user.large", &vec![0; 65_537], ANY), Errno::TOOBIG);
    removexattr(&path, &long).expect("removed");
    let large = pattern(3, 65_536);
    match setxattr(&path, "user.large", &large, ANY) {
        Err(Errno::NOSPC) if !scene.differs(Difference::LargeAttributes) => refused(get(&path, "user.large"), Errno::NODATA),
        set => {
            set.expect("64 KiB");
            assert!(get(&path, "user.large").expect("there") == large);
        }
    }
    // Only files and directories have attributes of users.
    symlink("file", scene.path("link")).expect("linked");
    rustix::fs::mkfifoat(CWD, scene.path("fifo"), Mode::RUSR).expect("made");
    refused(lsetxattr(scene.path("link"), "user.name", b"1", ANY), Errno::PERM);
    refused(setxattr(scene.path("fifo"), "user.name", b"1", ANY), Errno::PERM);
    lsetxattr(scene.path("link"), "trusted.name", b"of the link", ANY).expect("set");
    let mut value = [0; 100];
    assert_eq!(lgetxattr(scene.path("link"), "trusted.name", &mut value[..]), Ok(11));
    refused(get(&scene.path("link"), "trusted.name"), Errno::NODATA);
    setxattr(scene.subdirectory("directory"), "user.name", b"1", ANY).expect("set");
}

pub(crate) fn who_may(scene: &Scene<'_>) {
    let path = scene.file("file", "bytes");
    chown(&path, Some(ALICE.uid), Some(ALICE.gid)).expect("given");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("changed");
    setxattr(&path, "trusted.hidden", b"1", ANY).expect("root may");
    ALICE.does(|| setxattr(&path, "user.hers", b"1", ANY)).expect("the owner may");
    BOB.does(|| {
        assert_eq!(get(&path, "user.hers"), Ok(b"1".to_vec()), "who may read the file reads them");
        refused(setxattr(&path, "user.his", b"1", ANY), Errno::ACCESS);
        refused(removexattr(&path, "user.hers"), Errno::ACCESS);
        refused(setxattr(&path, ACCESS, &list(7, 7, 7, 7, 7), ANY), Errno::PERM);
    });
    ALICE.does(|| {
        assert_eq!(names(&path), ["user.hers"], "those of root are not shown");
        refused(get(&path, "trusted.hidden"), Errno::NODATA);
        refused(setxattr(&path, "trusted.hers", b"1", ANY), Errno::PERM);
        refused(setxattr(&path, CAPABILITY, &capability(), ANY), Errno::PERM);
    });
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("changed");
    refused(BOB.does(|| get(&path, "user.hers")), Errno::ACCESS);
    // In a sticky directory only its owner sets attributes of it.
    let directory = scene.subdirectory("directory");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).expect("changed");
    refused(BOB.does(|| setxattr(&directory, "user.his", b"1", ANY)), Errno::PERM);
}

/// A list for owner, BOB, group, mask and others.
fn list(owner: u16, bob: u16, group: u16, mask: u16, others: u16) -> Vec<u8> {
    of_entries(&[(1, owner, u32::MAX), (2, bob, BOB.uid), (4, group, u32::MAX), (16, mask, u32::MAX), (32, others, u32::MAX)])
}

fn of_entries(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").mode() & 0o7777
}

pub(crate) fn access_lists(scene: &Scene<'_>) {
    let path = scene.file("file", "bytes");
    chown(&path, Some(ALICE.uid), Some(SHARED)).expect("given");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("changed");
    let reads = |user: crate::scene::User| user.does(|| File::open(&path)).is_ok();
    let writes = |user: crate::scene::User| user.does(|| OpenOptions::new().write(true).open(&path)).is_ok();
    assert_eq!((reads(BOB), reads(CAROL), writes(CAROL)), (false, true, false));
    setxattr(&path, ACCESS, &list(6, 6, 0, 6, 0), ANY).expect("set");
    assert_eq!(mode(&path), 0o660, "the mask is what the mode shows of the group");
    assert_eq!((reads(BOB), writes(BOB), reads(CAROL)), (true, true, false));
    // chmod sets the mask; raising the mask restores the rights that it had masked.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("changed");
    assert_eq!(get(&path, ACCESS), Ok(list(6, 6, 0, 4, 4)));
    assert_eq!((reads(BOB), writes(BOB)), (true, false));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("changed");
    assert_eq!((reads(BOB), reads(CAROL)), (false, false));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).expect("changed");
    assert!(writes(BOB));
    // A list that says no more than a mode becomes one.
    setxattr(&path, ACCESS, &of_entries(&[(1, 6, u32::MAX), (4, 4, u32::MAX), (32, 0, u32::MAX)]), ANY).expect("set");
    assert_eq!((mode(&path), get(&path, ACCESS)), (0o640, Err(Errno::NODATA)));
    // A malformed list changes nothing.
    setxattr(&path, ACCESS, &list(6, 4, 4, 4, 0), ANY).expect("set");
    let before = (mode(&path), get(&path, ACCESS));
    for wrong in [
        &b"x"[..],
        &list(6, 4, 4, 4, 0)[..43],
        &of_entries(&[(1, 6, u32::MAX), (32, 0, u32::MAX)]),
        &of_entries(&[(1, 6, u32::MAX), (2, 4, BOB.uid), (4, 4, u32::MAX), (32, 0, u32::MAX)]),
        &of_entries(&[(1, 9, u32::MAX), (4, 4, u32::MAX), (32, 0, u32::MAX)]),
        &of_entries(&[(4, 4, u32::MAX), (1, 6, u32::MAX), (32, 0, u32::MAX)]),
        &of_entries(&[(1, 6, u32::MAX), (4, 4, u32::MAX), (64, 0, u32::MAX)]),
    ] {
        refused(setxattr(&path, ACCESS, wrong, ANY), Errno::INVAL);
    }
    let other_version = [&1_u32.to_le_bytes(), &list(6, 4, 4, 4, 0)[4..]].concat();
    refused(setxattr(&path, ACCESS, &other_version, ANY), Errno::OPNOTSUPP);
    refused(setxattr(&path, DEFAULT, &list(7, 7, 7, 7, 7), ANY), Errno::ACCESS);
    assert_eq!((mode(&path), get(&path, ACCESS)), before);
    removexattr(&path, ACCESS).expect("removed");
    refused(get(&path, ACCESS), Errno::NODATA);
}

pub(crate) fn default_lists_are_inherited(scene: &Scene<'_>) {
    let directory = scene.subdirectory("directory");
    setxattr(&directory, DEFAULT, &list(7, 7, 5, 7, 5), ANY).expect("set");
    let made = directory.join("file");
    let old = rustix::process::umask(Mode::from_raw_mode(0o077));
    let file = OpenOptions::new().write(true).create_new(true).open(&made);
    let inner = fs::create_dir(directory.join("inner"));
    rustix::process::umask(old);
    file.expect("made");
    inner.expect("made");
    // The umask counts only where there is no list; what was asked for is not exceeded.
    assert_eq!((mode(&made), get(&made, ACCESS)), (0o664, Ok(list(6, 7, 5, 6, 4))));
    refused(get(&made, DEFAULT), Errno::NODATA);
    let inner = directory.join("inner");
    assert_eq!((get(&inner, ACCESS), get(&inner, DEFAULT)), (Ok(list(7, 7, 5, 7, 5)), Ok(list(7, 7, 5, 7, 5))));
    symlink("x", directory.join("link")).expect("linked");
    refused(lgetxattr(directory.join("link"), ACCESS, &mut [0; 100][..]), Errno::OPNOTSUPP);
    let nameless = rustix::fs::open(&directory, rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR, Mode::from_raw_mode(0o600));
    let mut value = [0; 100];
    let length = rustix::fs::fgetxattr(nameless.expect("made"), ACCESS, &mut value[..]).expect("inherited");
    assert_eq!(value[..length], list(6, 7, 5, 0, 0));
    removexattr(&directory, DEFAULT).expect("removed");
    fs::write(directory.join("plain"), "x").expect("made");
    refused(get(&directory.join("plain"), ACCESS), Errno::NODATA);
}

/// `cap_net_raw=ep`, version 2.
fn capability() -> Vec<u8> {
    [0x0200_0001_u32, 1 << 13, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect()
}

pub(crate) fn capabilities_go_with_a_change(scene: &Scene<'_>) {
    let path = scene.file("file", "bytes");
    type Change<'a> = (&'static str, &'a dyn Fn());
    let open = || OpenOptions::new().write(true).open(&path).expect("opened");
    let changes: [Change<'_>; 5] = [
        ("write", &|| open().write_all(b"x").expect("written")),
        ("truncate", &|| open().set_len(3).expect("truncated")),
        ("O_TRUNC", &|| drop(File::create(&path).expect("opened"))),
        ("fallocate", &|| rustix::fs::fallocate(open(), rustix::fs::FallocateFlags::empty(), 0, 9000).expect("allocated")),
        ("chown", &|| chown(&path, Some(ALICE.uid), None).expect("given")),
    ];
    for (what, change) in changes {
        setxattr(&path, CAPABILITY, &capability(), ANY).expect("set");
        assert_eq!(get(&path, CAPABILITY), Ok(capability()));
        change();
        assert_eq!(get(&path, CAPABILITY), Err(Errno::NODATA), "{what}");
    }
    setxattr(&path, CAPABILITY, &capability(), ANY).expect("set");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("changed");
    fs::read(&path).expect("read");
    assert_eq!(get(&path, CAPABILITY), Ok(capability()), "neither chmod nor a read takes them");
}

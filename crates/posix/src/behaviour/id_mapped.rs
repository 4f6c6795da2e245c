//! Id-mapped mounts: the file system has its own ids, and who comes by the mount has others.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags, getxattr, linkat, listxattr, mknodat, open, renameat_with,
    setxattr,
};
use rustix::io::Errno;

use crate::id_map::IdMapped;
use crate::scene::{ALICE, BOB, CAROL, Difference, SHARED, Scene, User, refused};
use crate::sys::Aligned;

const FIRST: u32 = IdMapped::FIRST;
/// How ids that are not mapped are shown.
const OVERFLOW: u32 = 65_534;
/// An id that is not mapped.
const FAR: u32 = 4_000_000_000;

/// The users whom the mount maps to those of the file system.
const MAPPED_ALICE: User = User { uid: FIRST + ALICE.uid, gid: FIRST + ALICE.gid, groups: &[] };
const MAPPED_BOB: User = User { uid: FIRST + BOB.uid, gid: FIRST + BOB.gid, groups: &[] };
const MAPPED_CAROL: User = User { uid: FIRST + CAROL.uid, gid: FIRST + CAROL.gid, groups: &[FIRST + SHARED] };

/// User, group and permissions.
fn of(path: &Path) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

/// A file by its own ids.
fn file_of(scene: &Scene<'_>, name: &str, (uid, gid): (u32, u32), mode: u32) {
    let path = scene.file(name, "bytes");
    chown(&path, Some(uid), Some(gid)).expect("given");
    set_mode(&path, mode);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
}

fn reads(user: User, path: &Path) -> bool {
    user.does(|| File::open(path)).is_ok()
}

fn writes(user: User, path: &Path) -> bool {
    user.does(|| OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(b"B"))).is_ok()
}

pub(crate) fn what_is_made_has_mapped_owners(scene: &Scene<'_>) {
    let mapped = IdMapped::of(scene.directory());
    let path = |name: &str| mapped.path(name);
    let nameless = MAPPED_ALICE.does(|| {
        fs::write(path("file"), "x").expect("made");
        fs::create_dir(path("directory")).expect("made");
        fs::write(path("directory/below"), "x").expect("made");
        symlink("x", path("link")).expect("made");
        mknodat(CWD, path("fifo"), FileType::Fifo, Mode::RUSR, 0).expect("made");
        mknodat(CWD, path("node"), FileType::RegularFile, Mode::RUSR, 0).expect("made");
        UnixListener::bind(path("socket")).expect("bound");
        let nameless = open(path("."), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).expect("made");
        linkat(CWD, format!("/proc/self/fd/{}", nameless.as_raw_fd()), CWD, path("named"), AtFlags::SYMLINK_FOLLOW).expect("named");
        nameless
    });
    let found = rustix::fs::fstat(&nameless).expect("open");
    assert_eq!((found.st_uid, found.st_gid), (MAPPED_ALICE.uid, MAPPED_ALICE.gid));
    for name in ["file", "directory", "directory/below", "link", "fifo", "node", "socket", "named"] {
        let (uid, gid, mode) = of(&path(name));
        assert_eq!((uid, gid), (MAPPED_ALICE.uid, MAPPED_ALICE.gid), "{name} by the mount");
        assert_eq!(of(&scene.path(name)), (ALICE.uid, ALICE.gid, mode), "{name} itself");
    }
    // Who is not mapped can make nothing, root included.
    for user in [ALICE, User { uid: 0, gid: 0, groups: &[] }, User { uid: FIRST + ALICE.uid, gid: 0, groups: &[] }] {
        user.does(|| {
            refused(fs::write(path("new"), "x"), Errno::OVERFLOW);
            refused(fs::create_dir(path("new")), Errno::OVERFLOW);
            refused(symlink("x", path("new")), Errno::OVERFLOW);
            refused(mknodat(CWD, path("new"), FileType::Fifo, Mode::RUSR, 0), Errno::OVERFLOW);
            refused(open(path("."), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR), Errno::OVERFLOW);
        });
    }
    refused(fs::symlink_metadata(scene.path("new")), Errno::NOENT);
    // The first of the mapped ids is root's in the file system, and has no rights of root.
    let first = User { uid: FIRST, gid: FIRST, groups: &[] };
    first.does(|| fs::write(path("first"), "x")).expect("made");
    assert_eq!(of(&scene.path("first")).0, 0);
    refused(first.does(|| mknodat(CWD, path("device"), FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 3))), Errno::PERM);
    refused(first.does(|| chown(path("file"), Some(FIRST), None)), Errno::PERM);
    // By the other way at the same time.
    let beside = scene.path("beside");
    ALICE.does(|| fs::write(&beside, "x")).expect("made");
    assert_eq!((of(&beside).0, of(&path("beside")).0), (ALICE.uid, MAPPED_ALICE.uid));
}

pub(crate) fn owners_are_given_by_mapped_ids(scene: &Scene<'_>) {
    let mapped = IdMapped::of(scene.directory());
    file_of(scene, "file", (ALICE.uid, ALICE.gid), 0o6755);
    let (file, itself) = (mapped.path("file"), scene.path("file"));
    assert_eq!(of(&file), (MAPPED_ALICE.uid, MAPPED_ALICE.gid, 0o6755));
    chown(&file, Some(MAPPED_CAROL.uid), None).expect("given by root");
    assert_eq!(of(&itself), (CAROL.uid, ALICE.gid, 0o755), "set-id bits go");
    refused(MAPPED_CAROL.does(|| chown(&file, Some(MAPPED_BOB.uid), None)), Errno::PERM);
    refused(MAPPED_CAROL.does(|| chown(&file, None, Some(MAPPED_BOB.gid))), Errno::PERM);
    MAPPED_CAROL.does(|| chown(&file, None, Some(FIRST + SHARED))).expect("to a group of one's own");
    assert_eq!((of(&itself), of(&file)), ((CAROL.uid, SHARED, 0o755), (MAPPED_CAROL.uid, FIRST + SHARED, 0o755)));
    refused(chown(&file, Some(5), None), Errno::OVERFLOW);
    refused(chown(&file, None, Some(FIRST + IdMapped::COUNT)), Errno::OVERFLOW);
    symlink("file", scene.path("link")).expect("linked");
    std::os::unix::fs::lchown(mapped.path("link"), Some(FIRST + 5), Some(FIRST + 6)).expect("given");
    let link = of(&scene.path("link"));
    assert_eq!((link.0, link.1, of(&itself).0), (5, 6, CAROL.uid));
    // The set-group-id bit is for members of the group, as the mount maps it.
    MAPPED_CAROL.does(|| fs::set_permissions(&file, fs::Permissions::from_mode(0o2755))).expect("a member");
    assert_eq!(of(&itself).2, 0o2755);
    chown(&itself, Some(ALICE.uid), None).expect("given");
    MAPPED_ALICE.does(|| fs::set_permissions(&file, fs::Permissions::from_mode(0o2755))).expect("done without the bit");
    assert_eq!(of(&itself).2, 0o755);
    refused(MAPPED_BOB.does(|| fs::set_permissions(&file, fs::Permissions::from_mode(0o777))), Errno::PERM);
    refused(ALICE.does(|| fs::set_permissions(&file, fs::Permissions::from_mode(0o777))), Errno::PERM);
    // An owner outside of the map is nobody, and such a file is neither written nor removed, not even by root.
    file_of(scene, "far", (FAR, FAR), 0o666);
    let far = mapped.path("far");
    assert_eq!(of(&far), (OVERFLOW, OVERFLOW, 0o666));
    assert_eq!(fs::read(&far).expect("read"), b"bytes");
    refused(OpenOptions::new().write(true).open(&far), Errno::ACCESS);
    refused(fs::remove_file(&far), Errno::OVERFLOW);
}

pub(crate) fn rights_are_those_of_mapped_ids(scene: &Scene<'_>) {
    let mapped = IdMapped::of(scene.directory());
    file_of(scene, "file", (ALICE.uid, SHARED), 0o640);
    let file = mapped.path("file");
    let rights = |user| (reads(user, &file), writes(user, &file));
    assert_eq!([MAPPED_ALICE, MAPPED_CAROL, MAPPED_BOB].map(rights), [(true, true), (true, false), (false, false)]);
    assert_eq!([ALICE, CAROL, BOB].map(rights), [(false, false); 3], "whom the mount does not map");
    let may = |user: User, access| user.does(|| rustix::fs::accessat(CWD, &file, access, AtFlags::EACCESS)).is_ok();
    assert_eq!([MAPPED_ALICE, MAPPED_CAROL, ALICE].map(|user| may(user, Access::READ_OK)), [true, true, false]);
    assert!(reads(ALICE, &scene.path("file")), "by the other way");

    let private = scene.subdirectory("private");
    scene.file("private/inner", "x");
    chown(&private, Some(ALICE.uid), Some(ALICE.gid)).expect("given");
    set_mode(&private, 0o700);
    let private = mapped.path("private");
    let lists = |user: User| user.does(|| fs::read_dir(&private).map(Iterator::count)).ok();
    assert_eq!([MAPPED_ALICE, MAPPED_BOB, ALICE].map(lists), [Some(1), None, None]);
    MAPPED_ALICE.does(|| fs::write(private.join("new"), "x")).expect("made");
    refused(MAPPED_BOB.does(|| fs::write(private.join("other"), "x")), Errno::ACCESS);

    let sticky = scene.subdirectory("sticky");
    set_mode(&sticky, 0o1777);
    let sticky = mapped.path("sticky");
    for (name, owner) in [("hers", MAPPED_ALICE), ("his", MAPPED_BOB)] {
        owner.does(|| fs::write(sticky.join(name), "x")).expect("made");
    }
    refused(MAPPED_BOB.does(|| fs::remove_file(sticky.join("hers"))), Errno::PERM);
    refused(MAPPED_BOB.does(|| fs::rename(sticky.join("his"), sticky.join("hers"))), Errno::PERM);
    MAPPED_BOB.does(|| fs::remove_file(sticky.join("his"))).expect("one's own");
}

pub(crate) fn directories_hand_their_group_on(scene: &Scene<'_>) {
    let mapped = IdMapped::of(scene.directory());
    let directory = scene.subdirectory("directory");
    chown(&directory, Some(0), Some(SHARED)).expect("given");
    set_mode(&directory, 0o2777);
    let path = |name: &str| mapped.path("directory").join(name);
    let program = |name| OpenOptions::new().write(true).create_new(true).mode(0o2755).open(path(name)).expect("made");
    MAPPED_ALICE.does(|| {
        fs::create_dir(path("inner")).expect("made");
        fs::write(path("inner/below"), "x").expect("made");
        symlink("x", path("link")).expect("made");
        program("program");
    });
    MAPPED_CAROL.does(|| program("members"));
    for (name, owner, bit) in [
        ("inner", ALICE, 0o2000),
        ("inner/below", ALICE, 0),
        ("link", ALICE, 0),
        // Only a member of the group makes a set-group-id program of it.
        ("program", ALICE, 0),
        ("members", CAROL, 0o2000),
    ] {
        let (uid, gid, mode) = of(&directory.join(name));
        assert_eq!((uid, gid, mode & 0o7000), (owner.uid, SHARED, bit), "{name} itself");
        assert_eq!(of(&path(name)), (FIRST + owner.uid, FIRST + SHARED, mode), "{name} by the mount");
    }
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// A list for owner, a user, group, mask and others.
fn list(owner: u16, (user, of_user): (u32, u16), group: u16, mask: u16, others: u16) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    let entries = [(1_u16, owner, u32::MAX), (2, of_user, user), (4, group, u32::MAX), (16, mask, u32::MAX), (32, others, u32::MAX)];
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn attribute(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = [0; 200];
    getxattr(path, name, &mut value[..]).map(|length| value[..length].to_vec())
}

fn set(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    setxattr(path, name, value, XattrFlags::empty())
}

pub(crate) fn access_lists_are_mapped(scene: &Scene<'_>) {
    let mapped = IdMapped::of(scene.directory());
    file_of(scene, "file", (ALICE.uid, SHARED), 0o600);
    let (file, itself) = (mapped.path("file"), scene.path("file"));
    assert!(!reads(MAPPED_BOB, &file));
    refused(MAPPED_BOB.does(|| set(&file, ACCESS, &list(6, (MAPPED_BOB.uid, 6), 0, 6, 0))), Errno::PERM);
    MAPPED_ALICE.does(|| set(&file, ACCESS, &list(6, (MAPPED_BOB.uid, 4), 0, 6, 0))).expect("set");
    assert_eq!(attribute(&itself, ACCESS), Ok(list(6, (BOB.uid, 4), 0, 6, 0)));
    assert_eq!(attribute(&file, ACCESS), Ok(list(6, (MAPPED_BOB.uid, 4), 0, 6, 0)));
    assert_eq!((reads(MAPPED_BOB, &file), writes(MAPPED_BOB, &file), reads(BOB, &file)), (true, false, false));
    set(&itself, ACCESS, &list(6, (BOB.uid, 6), 0, 6, 0)).expect("set");
    assert!(writes(MAPPED_BOB, &file));

    let directory = scene.subdirectory("directory");
    set_mode(&directory, 0o777);
    set(&mapped.path("directory"), DEFAULT, &list(7, (MAPPED_BOB.uid, 7), 5, 7, 0)).expect("set");
    MAPPED_ALICE.does(|| fs::write(mapped.path("directory/made"), "x")).expect("made");
    assert_eq!(attribute(&directory, DEFAULT), Ok(list(7, (BOB.uid, 7), 5, 7, 0)));
    assert_eq!(attribute(&directory.join("made"), ACCESS), Ok(list(6, (BOB.uid, 7), 5, 6, 0)));
    assert!(writes(MAPPED_BOB, &mapped.path("directory/made")));

    // A new list takes the set-group-id bit, but not from members of the group as the mount maps it.
    for (owner, mapped_owner, bit) in [(ALICE, MAPPED_ALICE, 0), (CAROL, MAPPED_CAROL, 0o2000)] {
        file_of(scene, "program", (owner.uid, SHARED), 0o2750);
        let program = mapped.path("program");
        mapped_owner.does(|| set(&program, ACCESS, &list(7, (MAPPED_BOB.uid, 5), 5, 5, 0))).expect("set");
        assert_eq!(of(&program).2 & 0o7000, bit);
        fs::remove_file(scene.path("program")).expect("removed");
    }
}

pub(crate) fn names_and_attributes(scene: &Scene<'_>) {
    let mapped = IdMapped::of(scene.directory());
    let path = |name: &str| mapped.path(name);
    let rename = |from, to, flags| renameat_with(CWD, path(from), CWD, path(to), flags);
    MAPPED_ALICE.does(|| {
        fs::write(path("one"), "1").expect("made");
        set(&path("one"), "user.hers", b"value").expect("set");
        fs::hard_link(path("one"), path("two")).expect("linked");
        fs::rename(path("two"), path("three")).expect("renamed");
        fs::write(path("four"), "4").expect("made");
        rename("three", "four", RenameFlags::EXCHANGE).expect("exchanged");
        refused(rename("three", "four", RenameFlags::NOREPLACE), Errno::EXIST);
        rename("three", "moved", RenameFlags::WHITEOUT).expect("renamed");
        fs::write(path("moved"), "more").expect("written");
    });
    let of_scene = |name: &str| fs::symlink_metadata(scene.path(name)).expect("there");
    assert_eq!((of_scene("one").ino(), of_scene("one").nlink()), (of_scene("four").ino(), 2));
    assert_eq!(
        (attribute(&scene.path("four"), "user.hers"), attribute(&path("four"), "user.hers")),
        (Ok(b"value".into()), Ok(b"value".into()))
    );
    let whiteout = of_scene("three");
    assert_eq!((whiteout.uid(), whiteout.gid(), whiteout.rdev(), whiteout.mode() & 0o170_000), (ALICE.uid, ALICE.gid, 0, 0o020_000));
    assert_eq!(fs::read(scene.path("moved")).expect("read"), b"more");
    let names = |directory: &Path| {
        let mut names: Vec<_> = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&path(".")), names(scene.directory()));
    assert_eq!(names(&path(".")), ["four", "moved", "one", "three"]);
    // Root, who is not mapped, makes neither names nor whiteouts.
    refused(renameat_with(CWD, path("moved"), CWD, path("elsewhere"), RenameFlags::WHITEOUT), Errno::OVERFLOW);
    refused(fs::rename(path("moved"), path("elsewhere")), Errno::OVERFLOW);
    MAPPED_ALICE.does(|| fs::write(path("other"), "x")).expect("made");
    if scene.differs(Difference::NobodyMakesNoWhiteout) {
        refused(renameat_with(CWD, path("moved"), CWD, path("other"), RenameFlags::WHITEOUT), Errno::OVERFLOW);
    }
    fs::rename(path("moved"), path("other")).expect("no name is made");
    // `trusted.` is for root of the machine, however it is mapped.
    set(&scene.path("one"), "trusted.of-root", b"secret").expect("set");
    let listed = |user: Option<User>| {
        let list = || {
            let mut names = [0; 200];
            let length = listxattr(path("one"), &mut names[..]).expect("listed");
            String::from_utf8_lossy(&names[..length]).contains("trusted.of-root")
        };
        user.map_or_else(list, |user| user.does(list))
    };
    let first = User { uid: FIRST, gid: FIRST, groups: &[] };
    assert_eq!([None, Some(first), Some(MAPPED_ALICE)].map(listed), [true, false, false]);
    refused(first.does(|| attribute(&path("one"), "trusted.of-root")), Errno::NODATA);
    refused(MAPPED_BOB.does(|| fs::remove_file(path("nothing"))), Errno::NOENT);
    MAPPED_ALICE.does(|| fs::remove_file(path("one"))).expect("removed");
    assert_eq!(of_scene("four").nlink(), 1);
}

pub(crate) fn set_id_bits_go_with_a_write(scene: &Scene<'_>) {
    let mapped = IdMapped::of(scene.directory());
    let file = mapped.path("file");
    let direct = |path: &Path| {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).expect("opened");
        assert_eq!(rustix::io::pwrite(&file, Aligned::new(4096).slice(), 0), Ok(4096));
    };
    let cached = |path: &Path| OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(b"B")).expect("written");
    let cut = |path: &Path| OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(2)).expect("truncated");
    let after = |gid, mode, user: Option<User>, action: &(dyn Fn(&Path) + Sync)| {
        file_of(scene, "file", (ALICE.uid, gid), mode);
        match user {
            Some(user) => user.does(|| action(&file)),
            None => action(&file),
        }
        let (_, _, mode) = of(&scene.path("file"));
        fs::remove_file(scene.path("file")).expect("removed");
        mode
    };
    for (what, action) in [("direct", &direct as &(dyn Fn(&Path) + Sync)), ("cached", &cached), ("truncated", &cut)] {
        for (before, expected) in [(0o6777, 0o777), (0o4777, 0o777), (0o2777, 0o777), (0o2666, 0o666), (0o1666, 0o1666)] {
            assert_eq!(after(SHARED, before, Some(MAPPED_BOB), action), expected, "{what}: {before:o}");
        }
        assert_eq!(after(SHARED, 0o6777, None, action), 0o6777, "{what}: root keeps them");
    }
    // The bit without group execute permission grants nothing. Members of the group keep it.
    let kept = |is_kept: bool| if is_kept { 0o2666 } else { 0o666 };
    let is_blind = scene.differs(Difference::GroupsAreNotMapped);
    assert_eq!(after(SHARED, 0o2666, Some(MAPPED_CAROL), &direct), kept(!is_blind), "a member as the mount maps it");
    assert_eq!(after(SHARED, 0o2666, Some(CAROL), &direct), kept(is_blind), "a member of the group of that number elsewhere");
}

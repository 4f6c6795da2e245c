//! Owners and rights.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FallocateFlags, Mode};
use rustix::io::Errno;

use crate::scene::{ALICE, BOB, CAROL, SHARED, Scene, User, refused};
use crate::sys::Aligned;

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("there").mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
}

/// A file of an owner and a group with a mode.
fn file_of(scene: &Scene<'_>, name: &str, uid: u32, gid: u32, mode: u32) -> PathBuf {
    let path = scene.file(name, "bytes");
    chown(&path, Some(uid), Some(gid)).expect("given");
    set_mode(&path, mode);
    path
}

fn writes(path: &Path) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(b"B"))
}

pub(crate) fn permissions_of_three_classes(scene: &Scene<'_>) {
    // The owner's bits are the owner's, the group's the group's, whatever the others may.
    let cases: [(User, u32, u32); 4] = [(ALICE, ALICE.uid, 0), (CAROL, 0, SHARED), (BOB, 0, 0), (ALICE, ALICE.uid, ALICE.gid)];
    for (number, (user, uid, gid)) in cases.into_iter().enumerate() {
        let shift = [6, 3, 0, 6][number];
        for bits in 0..8 {
            let everyone_else = 0o777 & !(0o7 << shift);
            let path = file_of(scene, &format!("file-{number}-{bits}"), uid, gid, everyone_else | bits << shift);
            let (read, write) = user.does(|| (File::open(&path).map(drop), writes(&path)));
            assert_eq!((read.is_ok(), write.is_ok()), (bits & 4 != 0, bits & 2 != 0), "case {number}, bits {bits}");
            let may = |access| user.does(|| rustix::fs::accessat(CWD, &path, access, AtFlags::EACCESS));
            let asked = [Access::READ_OK, Access::WRITE_OK, Access::EXEC_OK].map(|access| may(access).is_ok());
            assert_eq!(asked, [bits & 4 != 0, bits & 2 != 0, bits & 1 != 0], "access, case {number}, bits {bits}");
            for refusal in [read.err(), write.err()].into_iter().flatten() {
                assert_eq!(refusal.raw_os_error(), Some(libc::EACCES));
            }
        }
    }
    let directory = scene.subdirectory("directory");
    scene.file("directory/file", "x");
    let inner = directory.join("file");
    for (mode, lists, enters, makes) in [
        (0o700, false, false, false),
        (0o704, true, false, false),
        (0o701, false, true, false),
        (0o707, true, true, true),
        (0o706, true, false, false),
        (0o703, false, true, true),
    ] {
        set_mode(&directory, mode);
        let new = directory.join("new");
        let done = ALICE.does(|| (fs::read_dir(&directory).is_ok(), fs::metadata(&inner).is_ok(), fs::write(&new, "x").is_ok()));
        assert_eq!(done, (lists, enters, makes), "{mode:o}");
        let removed = ALICE.does(|| fs::remove_file(&inner).is_ok());
        assert_eq!(removed, makes, "{mode:o}: removal needs the directory's rights, not the file's");
        scene.file("directory/file", "x");
    }
}

pub(crate) fn groups_beyond_the_first(scene: &Scene<'_>) {
    let path = file_of(scene, "file", 0, SHARED, 0o660);
    CAROL.does(|| writes(&path)).expect("the thirty-second group");
    refused(ALICE.does(|| writes(&path)), Errno::ACCESS);
    let directory = scene.subdirectory("directory");
    chown(&directory, Some(0), Some(SHARED)).expect("given");
    set_mode(&directory, 0o2770);
    let made = directory.join("made");
    CAROL.does(|| fs::write(&made, "x")).expect("made");
    let metadata = fs::metadata(&made).expect("there");
    assert_eq!((metadata.uid(), metadata.gid()), (CAROL.uid, SHARED));
}

pub(crate) fn owners_change_by_the_rules(scene: &Scene<'_>) {
    let path = file_of(scene, "file", CAROL.uid, CAROL.gid, 0o644);
    let owner = || fs::metadata(&path).map(|metadata| (metadata.uid(), metadata.gid())).expect("there");
    let give = |user: User, uid, gid| user.does(|| chown(&path, uid, gid));
    refused(give(CAROL, Some(ALICE.uid), None), Errno::PERM);
    refused(give(CAROL, None, Some(ALICE.gid)), Errno::PERM);
    refused(give(ALICE, None, Some(ALICE.gid)), Errno::PERM);
    refused(give(ALICE, Some(ALICE.uid), None), Errno::PERM);
    give(CAROL, Some(CAROL.uid), Some(SHARED)).expect("to a group of one's own");
    assert_eq!(owner(), (CAROL.uid, SHARED));
    give(CAROL, None, None).expect("nothing");
    chown(&path, Some(ALICE.uid), None).expect("root may");
    assert_eq!(owner(), (ALICE.uid, SHARED));
    chown(&path, None, Some(4_000_000_000)).expect("any number");
    assert_eq!(owner(), (ALICE.uid, 4_000_000_000));
    // A link is given away itself.
    std::os::unix::fs::symlink("file", scene.path("link")).expect("linked");
    std::os::unix::fs::lchown(scene.path("link"), Some(5), Some(6)).expect("given");
    assert_eq!((owner().0, fs::symlink_metadata(scene.path("link")).expect("there").uid()), (ALICE.uid, 5));
    refused(BOB.does(|| fs::set_permissions(&path, fs::Permissions::from_mode(0o777))), Errno::PERM);
    ALICE.does(|| fs::set_permissions(&path, fs::Permissions::from_mode(0o600))).expect("the owner may");
    // The set-group-id bit is for members of the group.
    ALICE.does(|| fs::set_permissions(&path, fs::Permissions::from_mode(0o2755))).expect("done without the bit");
    assert_eq!(mode_of(&path), 0o755);
    chown(&path, Some(CAROL.uid), Some(SHARED)).expect("given");
    CAROL.does(|| fs::set_permissions(&path, fs::Permissions::from_mode(0o2755))).expect("a member");
    assert_eq!(mode_of(&path), 0o2755);
}

/// The mode of a file before something, and what it is after it.
fn loses(scene: &Scene<'_>, what: &str, before: u32, after: u32, action: impl Fn(&Path) + Sync) {
    let path = file_of(scene, "file", ALICE.uid, ALICE.gid, 0o666);
    set_mode(&path, before);
    BOB.does(|| action(&path));
    assert_eq!(mode_of(&path), after, "{what} of {before:o}");
    fs::remove_file(path).expect("removed");
}

pub(crate) fn set_id_bits_go_with_a_write(scene: &Scene<'_>) {
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path).expect("opened");
    type Action<'a> = (&'static str, Box<dyn Fn(&Path) + Sync + 'a>);
    let actions: [Action<'_>; 8] = [
        ("write", Box::new(|path| writes(path).expect("written"))),
        (
            "write, fsync",
            Box::new(|path| {
                let mut file = open(path);
                file.write_all(b"x").expect("written");
                file.sync_all().expect("synced");
            }),
        ),
        ("append", Box::new(|path| OpenOptions::new().append(true).open(path).expect("opened").write_all(b"x").expect("written"))),
        ("truncate", Box::new(|path| open(path).set_len(2).expect("truncated"))),
        ("O_TRUNC", Box::new(|path| drop(OpenOptions::new().write(true).truncate(true).open(path).expect("opened")))),
        (
            "O_DSYNC",
            Box::new(|path| {
                let file = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(path).expect("opened");
                rustix::io::pwrite(&file, b"x", 0).expect("written");
            }),
        ),
        (
            "O_DIRECT",
            Box::new(|path| {
                let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).expect("opened");
                assert_eq!(rustix::io::pwrite(&file, Aligned::new(4096).slice(), 0), Ok(4096));
            }),
        ),
        ("fallocate", Box::new(|path| rustix::fs::fallocate(open(path), FallocateFlags::empty(), 0, 9000).expect("allocated"))),
    ];
    for (what, action) in &actions {
        loses(scene, what, 0o4777, 0o777, action);
        loses(scene, what, 0o6777, 0o777, action);
        loses(scene, what, 0o2777, 0o777, action);
        // Without group execute permission the set-group-id bit means mandatory locking; the kernel keeps it for members of the group.
        loses(scene, what, 0o1666, 0o1666, action);
    }
    loses(scene, "read", 0o6777, 0o6777, |path| drop(fs::read(path).expect("read")));
    loses(scene, "open", 0o6777, 0o6777, |path| drop(open(path)));
    loses(scene, "write of nothing", 0o6777, 0o6777, |path| assert_eq!(rustix::io::write(open(path), b""), Ok(0)));
    // Root keeps them.
    let path = file_of(scene, "roots", 0, 0, 0o6755);
    writes(&path).expect("written");
    assert_eq!(mode_of(&path), 0o6755);
    // Copying into a file writes it.
    let source = scene.file("source", "source");
    set_mode(&source, 0o644);
    loses(scene, "copy_file_range", 0o6777, 0o777, move |path| {
        let from = File::open(&source).expect("opened");
        rustix::fs::copy_file_range(from, Some(&mut 0), open(path), Some(&mut 0), 6).expect("copied");
    });
}

/// A file without group execute permission loses the set-group-id bit when a non-member of the group changes it, and keeps it for a member.
fn loses_set_group_id(scene: &Scene<'_>, what: &str, action: &(dyn Fn(&Path) + Sync)) {
    loses(scene, what, 0o2666, 0o666, action);
    loses(scene, what, 0o2766, 0o766, action);
    loses(scene, what, 0o6666, 0o666, action);
    let path = file_of(scene, "members", ALICE.uid, SHARED, 0o2666);
    CAROL.does(|| action(&path));
    assert_eq!(mode_of(&path), 0o2666, "{what} by a member of the group");
    fs::remove_file(path).expect("removed");
    let path = file_of(scene, "roots", ALICE.uid, ALICE.gid, 0o2666);
    action(&path);
    assert_eq!(mode_of(&path), 0o2666, "{what} by root");
    fs::remove_file(path).expect("removed");
}

fn open_both_ways(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("opened")
}

pub(crate) fn set_group_id_goes_with_a_write_from_outside(scene: &Scene<'_>) {
    let source = scene.file("source", "source");
    set_mode(&source, 0o644);
    loses_set_group_id(scene, "write", &|path| writes(path).expect("written"));
    loses_set_group_id(scene, "append", &|path| {
        OpenOptions::new().append(true).open(path).expect("opened").write_all(b"x").expect("written");
    });
    loses_set_group_id(scene, "O_DIRECT", &|path| {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).expect("opened");
        assert_eq!(rustix::io::pwrite(&file, Aligned::new(4096).slice(), 0), Ok(4096));
    });
    loses_set_group_id(scene, "truncate", &|path| open_both_ways(path).set_len(2).expect("truncated"));
    loses_set_group_id(scene, "O_TRUNC", &|path| drop(OpenOptions::new().write(true).truncate(true).open(path).expect("opened")));
    loses_set_group_id(scene, "copy_file_range", &|path| {
        let from = File::open(&source).expect("opened");
        assert_eq!(rustix::fs::copy_file_range(from, Some(&mut 0), open_both_ways(path), Some(&mut 0), 6), Ok(6));
    });
}

pub(crate) fn set_group_id_goes_with_an_allocation_from_outside(scene: &Scene<'_>) {
    let keep = FallocateFlags::KEEP_SIZE;
    for (what, mode, offset) in [
        ("fallocate", FallocateFlags::empty(), 0),
        ("fallocate, the size kept", keep, 8192),
        ("punch", FallocateFlags::PUNCH_HOLE | keep, 0),
        ("zero range", FallocateFlags::ZERO_RANGE, 0),
        ("zero range, the size kept", FallocateFlags::ZERO_RANGE | keep, 0),
    ] {
        loses_set_group_id(scene, what, &|path| rustix::fs::fallocate(open_both_ways(path), mode, offset, 4096).expect("allocated"));
    }
}

pub(crate) fn set_id_bits_go_with_a_new_owner(scene: &Scene<'_>) {
    for (uid, gid) in [(Some(BOB.uid), None), (None, Some(BOB.gid)), (Some(ALICE.uid), Some(ALICE.gid))] {
        for (before, after) in [(0o6755, 0o755), (0o4711, 0o711), (0o2755, 0o755), (0o2745, 0o2745), (0o1777, 0o1777)] {
            let path = file_of(scene, "file", ALICE.uid, ALICE.gid, before);
            assert_eq!(mode_of(&path), before);
            chown(&path, uid, gid).expect("given");
            assert_eq!(mode_of(&path), after, "{before:o} given to {uid:?}, {gid:?}");
        }
    }
    // By the owner, to another group of the owner's.
    let path = file_of(scene, "own", CAROL.uid, CAROL.gid, 0o6755);
    CAROL.does(|| chown(&path, None, Some(SHARED))).expect("given");
    assert_eq!(mode_of(&path), 0o755);
    // A directory keeps its bit.
    let directory = scene.subdirectory("directory");
    set_mode(&directory, 0o2755);
    chown(&directory, Some(ALICE.uid), Some(ALICE.gid)).expect("given");
    assert_eq!(mode_of(&directory), 0o2755);
}

pub(crate) fn sticky_directories(scene: &Scene<'_>) {
    let directory = scene.subdirectory("directory");
    set_mode(&directory, 0o1777);
    let file = |name: &str, owner: User| {
        let path = directory.join(name);
        owner.does(|| fs::write(&path, "x")).expect("made");
        path
    };
    let (hers, his) = (file("hers", ALICE), file("his", BOB));
    refused(BOB.does(|| fs::remove_file(&hers)), Errno::PERM);
    refused(BOB.does(|| fs::rename(&hers, directory.join("taken"))), Errno::PERM);
    refused(BOB.does(|| fs::rename(&his, &hers)), Errno::PERM);
    let exchange = || rustix::fs::renameat_with(CWD, &his, CWD, &hers, rustix::fs::RenameFlags::EXCHANGE);
    refused(BOB.does(exchange), Errno::PERM);
    BOB.does(|| fs::rename(&his, directory.join("moved"))).expect("one's own");
    ALICE.does(|| fs::remove_file(&hers)).expect("one's own");
    // The directory's owner may remove all.
    chown(&directory, Some(ALICE.uid), None).expect("given");
    ALICE.does(|| fs::remove_file(directory.join("moved"))).expect("in one's own directory");
    let inner = directory.join("inner");
    BOB.does(|| fs::create_dir(&inner)).expect("made");
    refused(CAROL.does(|| fs::remove_dir(&inner)), Errno::PERM);
}

pub(crate) fn directories_hand_their_group_on(scene: &Scene<'_>) {
    let directory = scene.subdirectory("directory");
    chown(&directory, Some(0), Some(SHARED)).expect("given");
    set_mode(&directory, 0o2777);
    let path = |name: &str| directory.join(name);
    let of = |name: &str| {
        fs::symlink_metadata(path(name)).map(|metadata| (metadata.uid(), metadata.gid(), metadata.mode() & 0o7000)).expect("there")
    };
    ALICE.does(|| {
        fs::create_dir(path("inner")).expect("made");
        fs::write(path("file"), "x").expect("made");
        std::os::unix::fs::symlink("x", path("link")).expect("made");
        rustix::fs::mkfifoat(CWD, path("fifo"), Mode::RUSR).expect("made");
        fs::write(path("inner/below"), "x").expect("made");
        OpenOptions::new().write(true).create_new(true).mode(0o2755).open(path("program")).expect("made");
        rustix::fs::mknodat(CWD, path("node"), rustix::fs::FileType::RegularFile, Mode::from_raw_mode(0o2755), 0).expect("made");
    });
    assert_eq!((of("inner"), of("file"), of("inner/below")), ((ALICE.uid, SHARED, 0o2000), (ALICE.uid, SHARED, 0), (ALICE.uid, SHARED, 0)));
    assert_eq!((of("link").1, of("fifo").1), (SHARED, SHARED));
    // A non-member of the group cannot create a set-group-id program (Linux 5.19 and later).
    assert_eq!((of("program"), of("node")), ((ALICE.uid, SHARED, 0), (ALICE.uid, SHARED, 0)));
    CAROL.does(|| OpenOptions::new().write(true).create_new(true).mode(0o2755).open(path("members")).map(drop)).expect("made");
    assert_eq!(of("members"), (CAROL.uid, SHARED, 0o2000));
    // Without the bit a file gets its maker's group.
    set_mode(&directory, 0o777);
    ALICE.does(|| fs::write(path("plain"), "x")).expect("made");
    assert_eq!(of("plain"), (ALICE.uid, ALICE.gid, 0));
}

pub(crate) fn the_umask_applies(scene: &Scene<'_>) {
    let old = rustix::process::umask(Mode::from_raw_mode(0o027));
    let restore = Restore(old);
    OpenOptions::new().write(true).create_new(true).mode(0o6777).open(scene.path("file")).expect("made");
    rustix::fs::mkdirat(CWD, scene.path("directory"), Mode::from_raw_mode(0o1777)).expect("made");
    rustix::fs::mkfifoat(CWD, scene.path("fifo"), Mode::from_raw_mode(0o666)).expect("made");
    let nameless = rustix::fs::open(scene.directory(), rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR, Mode::from_raw_mode(0o666));
    drop(restore);
    assert_eq!([mode_of(&scene.path("file")), mode_of(&scene.path("directory")), mode_of(&scene.path("fifo"))], [0o6750, 0o1750, 0o640]);
    assert_eq!(rustix::fs::fstat(nameless.expect("O_TMPFILE")).expect("open").st_mode & 0o7777, 0o640);
}

struct Restore(Mode);

impl Drop for Restore {
    fn drop(&mut self) {
        rustix::process::umask(self.0);
    }
}

/// Root has full access.
pub(crate) fn root_may(scene: &Scene<'_>) {
    let path = file_of(scene, "file", ALICE.uid, ALICE.gid, 0);
    assert_eq!(fs::read(&path).expect("read"), b"bytes");
    writes(&path).expect("written");
    let directory = scene.subdirectory("directory");
    set_mode(&directory, 0);
    fs::write(directory.join("new"), "x").expect("made");
    assert_eq!(fs::metadata(directory.join("new")).expect("there").uid(), 0);
    refused(std::process::Command::new(&path).spawn(), Errno::ACCESS);
}

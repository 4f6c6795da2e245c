//! Open files: flags of open, offsets, appending, listing, removal while open; names that are made, moved and removed.

mod support;

use rustix::io::Errno;
use support::{ROOT, crossed, directory, empty, file, link, mode, refused, root, user};
use tandemfs_vfs::{At, Seek, Subject, Vfs, Why};

fn names(vfs: &Vfs, path: &[u8]) -> Vec<String> {
    let opened = vfs.open(&root(), ROOT, path, libc::O_RDONLY | libc::O_DIRECTORY, 0).expect("opened");
    let mut found = Vec::new();
    vfs.read_directory(&opened, &mut |entry| {
        found.push(String::from_utf8(entry.name.to_vec()).expect("UTF-8"));
        true
    })
    .expect("listed");
    found.sort();
    found
}

#[test]
fn the_flags_of_open_do_what_they_say() {
    let vfs = empty();
    directory(&vfs, &root(), b"d", 0o755);
    link(&vfs, b"made", b"l");
    let open = |path: &[u8], flags: i32| vfs.open(&root(), ROOT, path, flags, 0o640);
    refused(open(b"made", libc::O_RDONLY), Errno::NOENT);
    drop(open(b"l", libc::O_CREAT | libc::O_WRONLY).expect("made through the link"));
    assert_eq!(mode(&vfs, b"made"), 0o640);
    refused(open(b"made", libc::O_CREAT | libc::O_EXCL), Errno::EXIST);
    refused(open(b"l", libc::O_CREAT | libc::O_EXCL), Errno::EXIST);
    refused(open(b"l", libc::O_NOFOLLOW), Errno::LOOP);
    refused(open(b"l", libc::O_NOFOLLOW | libc::O_DIRECTORY), Errno::NOTDIR);
    refused(open(b"made", libc::O_DIRECTORY), Errno::NOTDIR);
    refused(open(b"d", libc::O_WRONLY), Errno::ISDIR);
    refused(open(b"d", libc::O_CREAT), Errno::ISDIR);
    refused(open(b"new/", libc::O_CREAT), Errno::ISDIR);
    refused(open(b".", libc::O_CREAT | libc::O_EXCL), Errno::EXIST);
    refused(vfs.open(&user(7, &[]), ROOT, b"made", libc::O_RDONLY | libc::O_NOATIME, 0), Errno::ACCESS);
    let place = open(b"l", libc::O_PATH | libc::O_NOFOLLOW).expect("opened");
    refused(vfs.read(&place, &mut [0]), Errno::BADF);
    refused(vfs.change_mode(&root(), Subject::Open(&place), 0o600), Errno::BADF);
    assert_eq!(vfs.read_link(&root(), At::Open(&place), b"").expect("read"), b"made");
    for (path, kind) in [(&b"pipe"[..], 0o010_000), (b"null", 0o020_000)] {
        vfs.make_node(&root(), ROOT, path, kind | 0o600, 0x103).expect("made");
        refused(vfs.open(&user(7, &[]), ROOT, path, libc::O_RDONLY, 0), Errno::ACCESS);
        let left = crossed(open(path, libc::O_RDONLY));
        assert_eq!((left.why, &left.remaining[..]), (Why::SpecialFile, path));
        assert!(open(path, libc::O_PATH).is_ok());
    }
    vfs.make_node(&root(), ROOT, b"socket", 0o140_666, 0).expect("made");
    refused(open(b"socket", libc::O_RDONLY), Errno::NXIO);
    directory(&vfs, &root(), b"tmp", 0o1777);
    vfs.make_node(&user(7, &[]), ROOT, b"tmp/socket", 0o140_666, 0).expect("made");
    refused(open(b"tmp/socket", libc::O_CREAT), Errno::ACCESS);
    refused(vfs.make_node(&user(7, &[]), ROOT, b"disk", 0o060_600, 0x800), Errno::PERM);
}

#[test]
fn who_leaves_growth_and_pages_to_the_kernel_is_told_where_they_are() {
    let vfs = empty();
    let file = file(&vfs, &root(), b"f", 0o600);
    vfs.write_at(&root(), &file, 0, &[1; 100], 0).expect("written");
    for (offset, length) in [(0, 100), (99, 1), (100, 0), (0, 0)] {
        assert!(vfs.leaves_growth(&file, offset, length).is_ok(), "{length} at {offset}");
    }
    for (offset, length) in [(0, 101), (100, 1), (-1, 1), (i64::MAX, 1), (1, u64::MAX)] {
        assert_eq!(crossed(vfs.leaves_growth(&file, offset, length)).why, Why::Grows, "{length} at {offset}");
    }
    assert!(vfs.leaves_pages(&file).is_ok(), "nobody keeps any");
}

#[test]
fn reads_and_writes_move_one_offset() {
    let vfs = empty();
    let opened = file(&vfs, &root(), b"f", 0o644);
    assert_eq!(vfs.write(&root(), &opened, b"0123456789").expect("written"), 10);
    assert_eq!(vfs.seek(&opened, -4, Seek::End).expect("sought"), 6);
    let mut bytes = [0; 8];
    assert_eq!((vfs.read(&opened, &mut bytes).expect("read"), &bytes[..4]), (4, &b"6789"[..]));
    assert_eq!(vfs.read_at(&opened, 2, &mut bytes[..3]).expect("read"), 3);
    assert_eq!(vfs.seek(&opened, 0, Seek::Current).expect("told"), 10, "read_at moves nothing");
    vfs.write_at(&root(), &opened, 1, b"xy", 0).expect("written");
    vfs.seek(&opened, 0, Seek::Start).expect("sought");
    vfs.read(&opened, &mut bytes[..4]).expect("read");
    assert_eq!(&bytes[..4], b"0xy3");
    refused(vfs.seek(&opened, -1, Seek::Start), Errno::INVAL);
    refused(vfs.seek(&opened, 10, Seek::Data), Errno::NXIO);
    refused(vfs.write_at(&root(), &opened, -1, b"x", 0), Errno::INVAL);
    refused(vfs.write_at(&root(), &opened, i64::MAX, b"x", 0), Errno::INVAL);
    let reader = vfs.open(&root(), ROOT, b"f", libc::O_RDONLY, 0).expect("opened");
    refused(vfs.write(&root(), &reader, b"x"), Errno::BADF);
    refused(vfs.truncate(&root(), Subject::Open(&reader), 0), Errno::INVAL);
}

#[test]
fn appends_go_to_the_end_whatever_the_offset() {
    let vfs = empty();
    let plain = file(&vfs, &root(), b"f", 0o644);
    let appending = vfs.open(&root(), ROOT, b"f", libc::O_WRONLY | libc::O_APPEND, 0).expect("opened");
    vfs.write(&root(), &plain, b"abc").expect("written");
    vfs.write(&root(), &appending, b"def").expect("written");
    assert_eq!(vfs.seek(&appending, 0, Seek::Current).expect("told"), 6);
    vfs.write_at(&root(), &appending, 0, b"ghi", 0).expect("written");
    vfs.write_at(&root(), &appending, 0, b"ABC", 0x20).expect("RWF_NOAPPEND");
    vfs.write_at(&root(), &plain, 0, b"jkl", libc::RWF_APPEND).expect("written");
    vfs.set_flags(&root(), &appending, 0).expect("set");
    vfs.write_at(&root(), &appending, 3, b"DEF", 0).expect("written");
    let mut bytes = [0; 20];
    assert_eq!(vfs.read_at(&plain, 0, &mut bytes).expect("read"), 12);
    assert_eq!(&bytes[..12], b"ABCDEFghijkl");
    refused(vfs.write_at(&root(), &plain, 0, b"x", 0x4000_0000), Errno::OPNOTSUPP);
}

#[test]
fn a_directory_is_listed_in_parts() {
    let vfs = empty();
    directory(&vfs, &root(), b"d", 0o755);
    for number in 0..50 {
        drop(file(&vfs, &root(), format!("d/{number}").as_bytes(), 0o644));
    }
    let opened = vfs.open(&root(), ROOT, b"d", libc::O_RDONLY, 0).expect("opened");
    let mut found = Vec::new();
    loop {
        let before = found.len();
        vfs.read_directory(&opened, &mut |entry| {
            let has_room = found.len() < before + 7;
            if has_room {
                found.push(entry.name.to_vec());
            }
            has_room
        })
        .expect("listed");
        if found.len() == before {
            break;
        }
    }
    assert_eq!((found.len(), &found[0][..], &found[1][..]), (52, &b"."[..], &b".."[..]));
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 52, "each once");
    vfs.seek(&opened, 0, Seek::Start).expect("rewound");
    let mut first = Vec::new();
    vfs.read_directory(&opened, &mut |entry| {
        first.push(entry.name.to_vec());
        false
    })
    .expect("listed");
    assert_eq!(first, [b"."]);
}

#[test]
fn an_open_file_stays_when_its_name_goes() {
    let vfs = empty();
    let opened = file(&vfs, &root(), b"f", 0o644);
    vfs.write(&root(), &opened, b"still here").expect("written");
    vfs.unlink(&root(), ROOT, b"f").expect("removed");
    assert_eq!(opened.attributes().expect("there").nlink, 0);
    let mut bytes = [0; 10];
    assert_eq!(vfs.read_at(&opened, 0, &mut bytes).expect("read"), 10);
    refused(vfs.link(&root(), (At::Open(&opened), b""), (ROOT, b"again"), libc::AT_EMPTY_PATH), Errno::NOENT);
    let used = vfs.statfs().files - vfs.statfs().files_free;
    drop(opened);
    assert_eq!(vfs.statfs().files - vfs.statfs().files_free, used - 1, "the last close frees it");
}

#[test]
fn a_nameless_file_gets_a_name_unless_that_was_excluded() {
    let vfs = empty();
    let nameless = vfs.open(&root(), ROOT, b".", libc::O_TMPFILE | libc::O_RDWR, 0o600).expect("opened");
    vfs.write(&root(), &nameless, b"x").expect("written");
    let by_somebody_else = vfs.link(&user(7, &[]), (At::Open(&nameless), b""), (ROOT, b"named"), libc::AT_EMPTY_PATH);
    refused(by_somebody_else, Errno::NOENT);
    vfs.link(&root(), (At::Open(&nameless), b""), (ROOT, b"named"), libc::AT_EMPTY_PATH).expect("named");
    assert_eq!((mode(&vfs, b"named"), nameless.attributes().expect("there").nlink), (0o600, 1));
    let excluded = vfs.open(&root(), ROOT, b".", libc::O_TMPFILE | libc::O_RDWR | libc::O_EXCL, 0o600).expect("opened");
    refused(vfs.link(&root(), (At::Open(&excluded), b""), (ROOT, b"never"), libc::AT_EMPTY_PATH), Errno::NOENT);
    refused(vfs.open(&root(), ROOT, b"named", libc::O_TMPFILE | libc::O_RDWR, 0o600), Errno::NOTDIR);
}

#[test]
fn names_move_where_they_may() {
    let vfs = empty();
    for path in [&b"a"[..], b"a/b", b"a/b/c", b"e"] {
        directory(&vfs, &root(), path, 0o755);
    }
    drop(file(&vfs, &root(), b"f", 0o644));
    let rename = |from: &[u8], to: &[u8], flags: u32| vfs.rename(&root(), (ROOT, from), (ROOT, to), flags);
    refused(rename(b"a", b"a/b/x", 0), Errno::INVAL);
    refused(rename(b"a", b"a/x", 0), Errno::INVAL);
    refused(rename(b"a/b/c", b"a", 0), Errno::NOTEMPTY);
    refused(rename(b"a/b/c", b"a", libc::RENAME_EXCHANGE), Errno::INVAL);
    refused(rename(b"f", b"e", 0), Errno::ISDIR);
    refused(rename(b"e", b"f", 0), Errno::NOTDIR);
    refused(rename(b"f/", b"g", 0), Errno::NOTDIR);
    refused(rename(b"f", b"g/", 0), Errno::NOTDIR);
    refused(rename(b"f", b"e", libc::RENAME_NOREPLACE), Errno::EXIST);
    refused(rename(b"f", b"x", libc::RENAME_EXCHANGE), Errno::NOENT);
    refused(rename(b"a/.", b"x", 0), Errno::BUSY);
    refused(rename(b"f", b"g", libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE), Errno::INVAL);
    rename(b"f", b"e", libc::RENAME_EXCHANGE).expect("exchanged");
    rename(b"f/", b"a/b/c/", 0).expect("over an empty directory");
    assert_eq!(names(&vfs, b"."), [".", "..", "a", "e"]);
    assert_eq!(names(&vfs, b"a/b"), [".", "..", "c"]);
    rename(b"e", b"e", 0).expect("itself");
}

#[test]
fn a_directory_that_moves_must_be_writable_itself() {
    let vfs = empty();
    let owner = user(1001, &[]);
    directory(&vfs, &owner, b"to", 0o755);
    directory(&vfs, &owner, b"d", 0o555);
    refused(vfs.rename(&owner, (ROOT, b"d"), (ROOT, b"to/d"), 0), Errno::ACCESS);
    vfs.rename(&owner, (ROOT, b"d"), (ROOT, b"d2"), 0).expect("its parent stays");
}

#[test]
fn removal_says_what_is_wrong_with_a_name() {
    let vfs = empty();
    directory(&vfs, &root(), b"d", 0o755);
    directory(&vfs, &root(), b"d/e", 0o755);
    drop(file(&vfs, &root(), b"f", 0o644));
    let (unlink, rmdir) = (|path: &[u8]| vfs.unlink(&root(), ROOT, path), |path: &[u8]| vfs.remove_directory(&root(), ROOT, path));
    for (path, of_file, of_directory) in [
        (&b"d"[..], Errno::ISDIR, Errno::NOTEMPTY),
        (b"d/", Errno::ISDIR, Errno::NOTEMPTY),
        (b"f/", Errno::NOTDIR, Errno::NOTDIR),
        (b".", Errno::ISDIR, Errno::INVAL),
        (b"d/..", Errno::ISDIR, Errno::NOTEMPTY),
        (b"x", Errno::NOENT, Errno::NOENT),
    ] {
        refused(unlink(path), of_file);
        refused(rmdir(path), of_directory);
    }
    refused(rmdir(b"f"), Errno::NOTDIR);
    refused(vfs.make_directory(&root(), ROOT, b"d/e/..", 0o755), Errno::EXIST);
    refused(vfs.make_node(&root(), ROOT, b"new/", 0o644, 0), Errno::NOENT);
    refused(vfs.make_link(&root(), b"", ROOT, b"l"), Errno::NOENT);
    rmdir(b"d/e/").expect("removed");
    rmdir(b"d").expect("removed");
    unlink(b"f").expect("removed");
    assert_eq!(names(&vfs, b"."), [".", ".."]);
}

#[test]
fn ranges_are_allocated_punched_and_copied() {
    let vfs = empty();
    let (opened, target) = (file(&vfs, &root(), b"f", 0o644), file(&vfs, &root(), b"g", 0o644));
    vfs.write(&root(), &opened, &[7; 10_000]).expect("written");
    let punch = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
    vfs.allocate(&root(), &opened, punch, 4096, 4096).expect("punched");
    assert_eq!((vfs.seek(&opened, 0, Seek::Hole).expect("found"), vfs.seek(&opened, 4096, Seek::Data).expect("found")), (4096, 8192));
    assert_eq!(vfs.copy_range(&root(), (&opened, 4000), (&target, 0), 100_000, 0).expect("copied"), 6000);
    refused(vfs.copy_range(&root(), (&opened, 0), (&opened, 5), 100, 0), Errno::INVAL);
    refused(vfs.allocate(&root(), &opened, libc::FALLOC_FL_PUNCH_HOLE as u32, 0, 1), Errno::OPNOTSUPP);
    refused(vfs.allocate(&root(), &opened, libc::FALLOC_FL_COLLAPSE_RANGE as u32, 0, 4096), Errno::OPNOTSUPP);
    refused(vfs.allocate(&root(), &opened, 0, 0, 0), Errno::INVAL);
    refused(vfs.allocate(&root(), &opened, 0, 1, i64::MAX), Errno::FBIG);
}

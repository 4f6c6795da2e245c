//! Paths: links, dots, slashes, limits, and where a walk hands over to the kernel.

mod support;

use rustix::io::Errno;
use support::{ROOT, crossed, directory, empty, file, link, refused, root, user};
use tandemfs_format::InodeNumber;
use tandemfs_vfs::{At, Process, Protected, Settings, Subject, Vfs, Why};

fn inode(vfs: &Vfs, path: &[u8]) -> u64 {
    vfs.stat(&root(), Subject::followed(ROOT, path)).expect("there").inode.get()
}

/// `/d/e/f`, and `/d/to_f`, `/to_d`, `/d/e/up` as links.
fn tree() -> Vfs {
    let vfs = empty();
    directory(&vfs, &root(), b"d", 0o755);
    directory(&vfs, &root(), b"d/e", 0o755);
    drop(file(&vfs, &root(), b"d/e/f", 0o644));
    link(&vfs, b"e/f", b"d/to_f");
    link(&vfs, b"d/", b"to_d");
    link(&vfs, b"..", b"d/e/up");
    vfs
}

#[test]
fn links_dots_and_slashes_lead_to_the_same_file() {
    let vfs = tree();
    let expected = inode(&vfs, b"d/e/f");
    for path in [&b"d/./e//f"[..], b"d/../d/e/f", b"d/to_f", b"to_d/to_f", b"to_d//e/up/to_f", b"d/e/up/e/f", b"./d/e/../e/f"] {
        assert_eq!(inode(&vfs, path), expected, "{}", String::from_utf8_lossy(path));
    }
    let itself = vfs.stat(&root(), Subject::unfollowed(ROOT, b"d/to_f")).expect("there");
    assert_eq!((itself.mode & 0o170_000, itself.size), (0o120_000, 3));
    let followed = vfs.stat(&root(), Subject::unfollowed(ROOT, b"to_d/")).expect("there");
    assert_eq!(followed.inode.get(), inode(&vfs, b"d"), "a slash follows the link");
}

#[test]
fn files_are_no_directories_and_what_is_not_there_is_not_found() {
    let vfs = tree();
    let stat = |path: &[u8]| vfs.stat(&root(), Subject::followed(ROOT, path));
    for path in [&b"d/e/f/"[..], b"d/e/f/x", b"d/e/f/.", b"d/e/f/..", b"d/to_f/"] {
        refused(stat(path), Errno::NOTDIR);
    }
    for path in [&b""[..], b"x", b"x/", b"d/x/f", b"d/e/f2"] {
        refused(stat(path), Errno::NOENT);
    }
    link(&vfs, b"nothing", b"dangling");
    refused(stat(b"dangling"), Errno::NOENT);
    refused(stat(b"d\0"), Errno::INVAL);
}

#[test]
fn names_paths_and_links_have_limits() {
    let vfs = empty();
    let stat = |path: &[u8]| vfs.stat(&root(), Subject::followed(ROOT, path));
    refused(stat(&[b'n'; 256]), Errno::NAMETOOLONG);
    refused(stat(&[b'n'; 255]), Errno::NOENT);
    assert!(stat(&b"./".repeat(2047)).is_ok(), "4,094 bytes");
    refused(stat(&b"./".repeat(2048)), Errno::NAMETOOLONG);
    drop(file(&vfs, &root(), b"l0", 0o644));
    for number in 1..=41 {
        link(&vfs, format!("l{}", number - 1).as_bytes(), format!("l{number}").as_bytes());
    }
    assert!(stat(b"l40").is_ok());
    refused(stat(b"l41"), Errno::LOOP);
    link(&vfs, b"circle/x", b"circle");
    refused(stat(b"circle"), Errno::LOOP);
}

#[test]
fn every_directory_on_the_way_must_be_searchable() {
    let vfs = empty();
    let (alice, bob) = (user(1001, &[]), user(1002, &[]));
    directory(&vfs, &alice, b"private", 0o700);
    drop(file(&vfs, &alice, b"private/f", 0o666));
    link(&vfs, b"private/f", b"by_link");
    for path in [&b"private/f"[..], b"private/.", b"private/..", b"private/x", b"by_link"] {
        refused(vfs.stat(&bob, Subject::followed(ROOT, path)), Errno::ACCESS);
    }
    assert!(vfs.stat(&bob, Subject::followed(ROOT, b"private")).is_ok(), "its own name is in the root");
    assert!(vfs.stat(&alice, Subject::followed(ROOT, b"private/f")).is_ok());
    let inside = vfs.open(&root(), ROOT, b"private", libc::O_PATH, 0).expect("opened");
    refused(vfs.stat(&bob, Subject::followed(At::Open(&inside), b"f")), Errno::ACCESS);
}

#[test]
fn absolute_links_the_root_and_mount_points_are_for_the_kernel() {
    let vfs = tree();
    link(&vfs, b"/etc/passwd", b"absolute");
    link(&vfs, b"/srv", b"d/srv");
    let open = |process: &Process, path: &[u8]| vfs.open(process, ROOT, path, libc::O_RDONLY, 0);
    let seen = |path: &[u8]| {
        let crossed = crossed(open(&root(), path));
        (crossed.why, crossed.directory.get(), String::from_utf8(crossed.remaining).expect("UTF-8"), crossed.argument)
    };
    let of = |path: &[u8]| inode(&vfs, path);
    assert_eq!(seen(b"/x"), (Why::Absolute, InodeNumber::ROOT.get(), "/x".into(), 0));
    assert_eq!(seen(b"absolute"), (Why::Absolute, InodeNumber::ROOT.get(), "/etc/passwd".into(), 0));
    assert_eq!(seen(b"d/srv//a/b/"), (Why::Absolute, of(b"d"), "/srv/a/b/".into(), 0));
    assert_eq!(seen(b"d/../../y/z"), (Why::AboveRoot, InodeNumber::ROOT.get(), "../y/z".into(), 0));
    assert_eq!(seen(b".."), (Why::AboveRoot, InodeNumber::ROOT.get(), "..".into(), 0));
    let mounted = Process { mount_points: [InodeNumber::new(of(b"d/e"))].into(), ..root() };
    let crossed_there = crossed(open(&mounted, b"to_d/e/f"));
    assert_eq!((crossed_there.why, crossed_there.directory.get(), &crossed_there.remaining[..]), (Why::MountPoint, of(b"d"), &b"e/f"[..]));
    let second = crossed(vfs.rename(&root(), (ROOT, b"d/e/f"), (ROOT, b"../f"), 0));
    assert_eq!((second.argument, &second.remaining[..]), (1, &b"../f"[..]));
    assert!(open(&root(), b"d/e/f").is_ok(), "nothing has moved");
}

/// [KV4]
#[test]
fn directories_above_a_mount_point_are_moved_by_the_kernel() {
    let vfs = tree();
    directory(&vfs, &root(), b"other", 0o755);
    let renamed = |mounted: &[u8], from: &[u8], to: &[u8], flags| {
        let process = Process { mount_points: [InodeNumber::new(inode(&vfs, mounted))].into(), ..root() };
        vfs.rename(&process, (ROOT, from), (ROOT, to), flags)
    };
    for (mounted, from, to, flags) in [
        (&b"d/e"[..], &b"d"[..], &b"moved"[..], 0),
        (b"d/e", b"other", b"d", libc::RENAME_EXCHANGE),
        (b"d/e", b"d", b"other", libc::RENAME_EXCHANGE),
        (b"d/e/f", b"d/e", b"moved", 0), // on a file: nobody knows where it is
        (b"d/e/f", b"other", b"moved", 0),
    ] {
        assert_eq!(crossed(renamed(mounted, from, to, flags)).why, Why::MountPoint, "{mounted:?} {from:?} {to:?}");
    }
    assert!(vfs.stat(&root(), Subject::followed(ROOT, b"d/e/f")).is_ok(), "nothing has moved");
    renamed(b"d/e", b"other", b"d/other", 0).expect("nothing is mounted below it");
    renamed(b"d/e/f", b"to_d", b"to_d2", 0).expect("no directory");
}

#[test]
fn what_a_removed_directory_had_above_is_for_the_kernel() {
    let vfs = tree();
    directory(&vfs, &root(), b"gone", 0o755);
    let gone = vfs.open(&root(), ROOT, b"gone", libc::O_RDONLY | libc::O_DIRECTORY, 0).expect("opened");
    vfs.remove_directory(&root(), ROOT, b"gone").expect("removed");
    assert_eq!(crossed(vfs.stat(&root(), Subject::followed(At::Open(&gone), b"../d"))).why, Why::RemovedDirectory);
    refused(vfs.open(&root(), At::Open(&gone), b"new", libc::O_CREAT | libc::O_WRONLY, 0o644), Errno::NOENT);
    refused(vfs.read_directory(&gone, &mut |_| true), Errno::NOENT);
}

#[test]
fn links_of_others_in_shared_directories_are_followed_by_the_rule_of_the_machine() {
    let protected = Some(Protected { symlinks: 1, ..Protected::default() });
    for (settings, is_refused) in [(Settings::default(), false), (Settings { protected, ..Settings::default() }, true)] {
        let vfs = support::with(settings);
        let (alice, bob) = (user(1001, &[]), user(1002, &[]));
        directory(&vfs, &root(), b"tmp", 0o1777);
        drop(file(&vfs, &root(), b"target", 0o644));
        vfs.make_link(&alice, b"../target", ROOT, b"tmp/link").expect("made");
        let opened = vfs.open(&bob, ROOT, b"tmp/link", libc::O_RDONLY, 0);
        if is_refused {
            refused(opened, Errno::ACCESS)
        } else {
            assert!(opened.is_ok())
        }
        assert!(vfs.open(&alice, ROOT, b"tmp/link", libc::O_RDONLY, 0).is_ok(), "her own");
    }
}

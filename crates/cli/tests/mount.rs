//! Programs on a real mount, in every mode.

mod support;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;
use support::{MODES, Mount, Place, pattern};

fn in_every_mode(test: impl Fn(&Place, Mount, &str)) {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        test(&place, mount, mode);
    }
}

#[test]
fn files_of_any_shape_come_back_after_a_remount() {
    in_every_mode(|place, mount, mode| {
        let sizes = [0, 1, 63, 64, 100, 4095, 4096, 4097, 65_535, 65_536, 65_537, 200_000, 1 << 20, 3_000_001];
        for size in sizes {
            fs::write(mount.path(&format!("file-{size}")), pattern(size as u64, size)).expect("written");
        }
        let read_back = |mount: &Mount| {
            for size in sizes {
                let path = mount.path(&format!("file-{size}"));
                assert!(fs::read(&path).expect("read") == pattern(size as u64, size), "{mode}: {size} bytes");
                assert_eq!(fs::metadata(&path).expect("there").len(), size as u64);
            }
        };
        read_back(&mount);
        mount.unmount();
        place.check();
        let mount = place.mount(mode);
        read_back(&mount);
        mount.unmount();
    });
}

#[test]
fn writes_inside_a_file_leave_the_rest_alone() {
    in_every_mode(|place, mount, mode| {
        let mut expected = pattern(1, 300_000);
        let path = mount.path("file");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("created");
        file.write_all_at(&expected, 0).expect("written");
        for (offset, length) in
            [(0, 10), (100, 6000), (65_530, 12), (65_536, 65_536), (70_000, 64), (4096, 4096), (299_990, 10), (131_000, 140_000)]
        {
            let bytes = pattern(offset + 7, length);
            file.write_all_at(&bytes, offset).expect("written");
            expected[offset as usize..][..length].copy_from_slice(&bytes);
        }
        // Beyond the end: a hole between.
        file.write_all_at(b"far", 1_000_000).expect("written");
        expected.resize(1_000_000, 0);
        expected.extend(b"far");
        file.sync_all().expect("synced");
        drop(file);
        assert!(fs::read(&path).expect("read") == expected, "{mode}: before the remount");
        mount.unmount();
        place.check();
        let mount = place.mount(mode);
        assert!(fs::read(mount.path("file")).expect("read") == expected, "{mode}: after the remount");
        mount.unmount();
    });
}

#[test]
fn truncated_files_grow_zeroes() {
    in_every_mode(|place, mount, _| {
        let path = mount.path("file");
        fs::write(&path, pattern(3, 150_000)).expect("written");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
        for (size, grown) in [(100_001, 120_000), (65_536, 70_000), (5, 4096), (0, 10)] {
            file.set_len(size).expect("shrunk");
            file.set_len(grown).expect("grown");
            let bytes = fs::read(&path).expect("read");
            assert_eq!(bytes.len() as u64, grown);
            assert!(bytes[..size as usize] == pattern(3, size as usize)[..], "what was kept at {size}");
            assert!(bytes[size as usize..].iter().all(|byte| *byte == 0), "zeroes from {size}");
            file.write_all_at(&pattern(3, 150_000), 0).expect("written");
        }
        File::create(&path).expect("opened with O_TRUNC");
        assert_eq!(fs::metadata(&path).expect("there").len(), 0);
        drop(file);
        mount.unmount();
        place.check();
    });
}

#[test]
fn appends_of_two_openers_go_one_after_the_other() {
    in_every_mode(|_, mount, mode| {
        let open = || OpenOptions::new().append(true).create(true).open(mount.path("log")).expect("opened");
        let (mut first, mut second) = (open(), open());
        for _ in 0..100 {
            first.write_all(&[b'a'; 150]).expect("appended");
            second.write_all(&[b'b'; 150]).expect("appended");
        }
        let bytes = fs::read(mount.path("log")).expect("read");
        assert_eq!(bytes.len(), 30_000, "{mode}");
        for (index, piece) in bytes.chunks(150).enumerate() {
            let letter = if index % 2 == 0 { b'a' } else { b'b' };
            assert!(piece.iter().all(|byte| *byte == letter), "{mode}: piece {index}");
        }
    });
}

#[test]
fn renames_replace_refuse_and_exchange() {
    in_every_mode(|_, mount, _| {
        let path = |name: &str| mount.path(name);
        fs::write(path("one"), "1").expect("written");
        fs::write(path("two"), "2").expect("written");
        let with = |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, path(from), CWD, path(to), flags);
        assert_eq!(with("one", "two", RenameFlags::NOREPLACE), Err(Errno::EXIST));
        with("one", "two", RenameFlags::EXCHANGE).expect("exchanged");
        assert_eq!((fs::read(path("one")).unwrap(), fs::read(path("two")).unwrap()), (b"2".to_vec(), b"1".to_vec()));
        with("one", "three", RenameFlags::NOREPLACE).expect("renamed");
        fs::rename(path("three"), path("two")).expect("replaced");
        assert_eq!(fs::read(path("two")).expect("read"), b"2");
        assert_eq!(fs::metadata(path("three")).expect_err("gone").kind(), ErrorKind::NotFound);

        fs::create_dir_all(path("a/b/c")).expect("made");
        fs::create_dir(path("empty")).expect("made");
        fs::write(path("a/b/c/deep"), "x").expect("written");
        assert_eq!(fs::rename(path("a"), path("a/b/c/d")).expect_err("into itself").raw_os_error(), Some(22));
        assert_eq!(fs::rename(path("empty"), path("a")).expect_err("full").kind(), ErrorKind::DirectoryNotEmpty);
        assert_eq!(fs::rename(path("two"), path("empty")).expect_err("a directory").kind(), ErrorKind::IsADirectory);
        fs::rename(path("a/b"), path("empty")).expect("a directory over an empty one");
        assert_eq!(fs::read(path("empty/c/deep")).expect("read"), b"x");
        // `..` followed the move.
        assert_eq!(fs::metadata(path("empty/..")).unwrap().ino(), fs::metadata(mount.root()).unwrap().ino());
        assert_eq!(fs::metadata(path("a")).expect("there").nlink(), 2);
    });
}

#[test]
fn large_directories_list_every_name_once() {
    in_every_mode(|place, mount, mode| {
        let directory = mount.path("many");
        fs::create_dir(&directory).expect("made");
        let names: BTreeSet<String> = (0..2500).map(|index| format!("name-{index}-{}", "x".repeat(index % 200))).collect();
        for name in &names {
            File::create(directory.join(name)).expect("created");
        }
        let list = |directory: &std::path::Path| -> Vec<String> {
            fs::read_dir(directory).expect("listed").map(|entry| entry.expect("entry").file_name().into_string().unwrap()).collect()
        };
        let listed = list(&directory);
        assert_eq!(listed.len(), names.len());
        assert!(listed.into_iter().collect::<BTreeSet<_>>() == names, "{mode}: names");
        // Removing while listing, as rm does.
        for entry in fs::read_dir(&directory).expect("listed") {
            let entry = entry.expect("entry");
            assert!(entry.metadata().expect("there").is_file());
            fs::remove_file(entry.path()).expect("removed");
        }
        assert!(list(&directory).is_empty());
        fs::remove_dir(&directory).expect("removed");
        mount.unmount();
        place.check();
    });
}

#[test]
fn an_unlinked_file_lives_until_it_is_closed() {
    in_every_mode(|place, mount, _| {
        let path = mount.path("file");
        fs::write(&path, pattern(9, 100_000)).expect("written");
        let mut file = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
        fs::remove_file(&path).expect("removed");
        assert_eq!(file.metadata().expect("open").nlink(), 0);
        file.write_all_at(b"still", 50).expect("written");
        file.seek(SeekFrom::Start(50)).expect("sought");
        let mut bytes = [0; 5];
        file.read_exact(&mut bytes).expect("read");
        assert_eq!(&bytes, b"still");
        drop(file);
        // A directory that is somebody's place goes the same way.
        fs::create_dir(mount.path("dir")).expect("made");
        let held = File::open(mount.path("dir")).expect("opened");
        fs::remove_dir(mount.path("dir")).expect("removed");
        drop(held);
        mount.unmount();
        place.check();
    });
}

#[test]
fn links_and_special_files_are_kept() {
    in_every_mode(|place, mount, mode| {
        fs::write(mount.path("file"), "linked").expect("written");
        fs::hard_link(mount.path("file"), mount.path("second")).expect("linked");
        assert_eq!(fs::metadata(mount.path("file")).expect("there").nlink(), 2);
        fs::remove_file(mount.path("file")).expect("removed");
        let long = "x/".repeat(1500);
        std::os::unix::fs::symlink("short", mount.path("to-short")).expect("linked");
        std::os::unix::fs::symlink(&long, mount.path("to-long")).expect("linked");
        let fifo = mount.path("fifo");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o640), 0).expect("made");
        mount.unmount();
        place.check();
        let mount = place.mount(mode);
        assert_eq!(fs::read(mount.path("second")).expect("read"), b"linked");
        assert_eq!(fs::metadata(mount.path("second")).expect("there").nlink(), 1);
        assert_eq!(fs::read_link(mount.path("to-short")).expect("read").to_str(), Some("short"));
        assert_eq!(fs::read_link(mount.path("to-long")).expect("read").to_str(), Some(long.as_str()));
        assert!(fs::symlink_metadata(mount.path("fifo")).expect("there").file_type().is_fifo());
        mount.unmount();
    });
}

#[test]
fn attributes_are_kept() {
    in_every_mode(|place, mount, mode| {
        let path = mount.path("file");
        fs::write(&path, "x").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).expect("changed");
        let times = Timestamps {
            last_access: Timespec { tv_sec: -2, tv_nsec: 250_000_000 },
            last_modification: Timespec { tv_sec: 1_700_000_000, tv_nsec: 123_456_789 },
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).expect("changed");
        let seen = |mount: &Mount| {
            let metadata = fs::metadata(mount.path("file")).expect("there");
            assert_eq!(metadata.mode(), 0o104_751);
            assert_eq!((metadata.atime(), metadata.atime_nsec()), (-2, 250_000_000), "{mode}");
            assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (1_700_000_000, 123_456_789), "{mode}");
            assert!(metadata.ctime() > 1_700_000_000);
        };
        seen(&mount);
        mount.unmount();
        let mount = place.mount(mode);
        seen(&mount);
        // A copy keeps times although its data is written back later (RULES R20).
        let copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(mount.path("copy")).expect("created");
        copy.write_all_at(&pattern(1, 10_000), 0).expect("written");
        let then = UNIX_EPOCH + Duration::from_nanos(1_600_000_000_000_000_001);
        copy.set_modified(then).expect("changed");
        drop(copy);
        mount.unmount();
        let mount = place.mount(mode);
        let metadata = fs::metadata(mount.path("copy")).expect("there");
        assert_eq!((metadata.modified().expect("a time"), metadata.len(), metadata.mode()), (then, 10_000, 0o100_600), "{mode}");
        // A write moves them on.
        fs::write(mount.path("copy"), "new").expect("written");
        assert!(fs::metadata(mount.path("copy")).expect("there").modified().expect("a time") + Duration::from_secs(60) > SystemTime::now());
        mount.unmount();
        place.check();
    });
}

#[test]
fn a_set_group_id_directory_passes_its_group_on() {
    in_every_mode(|_, mount, _| {
        let directory = mount.path("shared");
        fs::create_dir(&directory).expect("made");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&directory, None, Some(4242)).expect("given");
        }
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o2775)).expect("changed");
        let group = fs::metadata(&directory).expect("there").gid();
        fs::create_dir(directory.join("inner")).expect("made");
        fs::write(directory.join("file"), "x").expect("written");
        let (inner, file) = (fs::metadata(directory.join("inner")).unwrap(), fs::metadata(directory.join("file")).unwrap());
        assert_eq!((inner.gid(), inner.mode() & 0o2000), (group, 0o2000));
        assert_eq!((file.gid(), file.mode() & 0o2000), (group, 0));
    });
}

#[test]
fn errors_are_those_that_programs_test_for() {
    in_every_mode(|_, mount, _| {
        let path = |name: &str| mount.path(name);
        fs::create_dir(path("directory")).expect("made");
        fs::write(path("directory/file"), "x").expect("written");
        let code = |result: std::io::Result<()>| result.expect_err("fails").raw_os_error();
        assert_eq!(code(fs::read(path("absent")).map(drop)), Some(2), "ENOENT");
        // Twice: the second answer comes from the kernel.
        assert_eq!(code(fs::read(path("absent")).map(drop)), Some(2), "ENOENT");
        fs::write(path("absent"), "x").expect("an absent name can be made");
        assert_eq!(code(File::create_new(path("absent")).map(drop)), Some(17), "EEXIST");
        assert_eq!(code(fs::create_dir(path("directory"))), Some(17), "EEXIST");
        assert_eq!(code(fs::remove_dir(path("directory"))), Some(39), "ENOTEMPTY");
        assert_eq!(code(fs::remove_dir(path("directory/file"))), Some(20), "ENOTDIR");
        assert_eq!(code(fs::remove_file(path("directory"))), Some(21), "EISDIR");
        assert_eq!(code(fs::read(path("directory/file/below")).map(drop)), Some(20), "ENOTDIR");
        assert_eq!(code(fs::write(path(&"n".repeat(256)), "x")), Some(36), "ENAMETOOLONG");
        fs::write(path(&"n".repeat(255)), "x").expect("255 bytes are a name");
        assert_eq!(code(fs::hard_link(path("directory"), path("hard"))), Some(1), "EPERM");
    });
}

#[test]
fn space_is_shown_and_comes_back() {
    in_every_mode(|_, mount, mode| {
        let before = rustix::fs::statvfs(mount.root()).expect("statvfs");
        assert_eq!((before.f_bsize, before.f_namemax), (4096, 255));
        assert!(before.f_blocks * 4096 > 400 << 20 && before.f_bavail <= before.f_bfree && before.f_bfree <= before.f_blocks);
        let file = File::create(mount.path("file")).expect("created");
        file.write_all_at(&pattern(1, 32 << 20), 0).expect("written");
        file.sync_all().expect("synced");
        let during = rustix::fs::statvfs(mount.root()).expect("statvfs");
        assert!(before.f_bfree - during.f_bfree >= (32 << 20) / 4096, "{mode}: 32 MiB are taken");
        // With the write-back cache the kernel learns of it a little later.
        support::eventually("the file takes space", || fs::metadata(mount.path("file")).expect("there").blocks() >= (32 << 20) / 512);
        drop(file);
        fs::remove_file(mount.path("file")).expect("removed");
        support::eventually("the space", || {
            let after = rustix::fs::statvfs(mount.root()).expect("statvfs");
            before.f_bfree - after.f_bfree < (4 << 20) / 4096
        });
    });
}

#[test]
fn a_remount_changes_what_the_kernel_can_change() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    let (device, mountpoint, root) = (place.image(), place.mountpoint(), rustix::process::geteuid().is_root());
    let remount = |options: &str| support::tandemfs(&["mount", &device, &mountpoint, "-o", &format!("remount,{options}")]);
    if !root {
        return drop(support::failed(&remount("ro"), 1, "permitted", "a remount"));
    }
    fs::write(mount.path("file"), "x").expect("written");
    assert!(remount("strict,ro").status.success());
    assert_eq!(fs::write(mount.path("file"), "y").expect_err("read-only").raw_os_error(), Some(30));
    assert!(remount("rw").status.success());
    fs::write(mount.path("file"), "y").expect("written");
    support::failed(&remount("relaxed,ro"), 1, "strict", "a remount to another mode");
    let open = File::options().write(true).open(mount.path("file")).expect("opened");
    support::failed(&remount("ro"), 1, "in use", "a remount under a writer");
    drop(open);
    mount.unmount();
    support::failed(&remount("ro"), 1, "nothing to remount", "a remount of nothing");
    let mount = place.mount("ro");
    support::failed(&remount("rw"), 1, "unmount", "a remount of a device that is open for reading");
    mount.unmount();
}

//! Space allocated before its data is written, and holes: on a real mount, in every mode, by system calls and by common programs.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use support::{MODES, Mount, Place, pattern, run};

const MIB: u64 = 1 << 20;
const SIZE: usize = 1 << 20;

fn in_every_mode(test: impl Fn(&Place, Mount, &str)) {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        test(&place, mount, mode);
    }
}

fn new_file(mount: &Mount, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(mount.path(name)).expect("created")
}

fn program(words: &[&str], path: &Path) {
    let output = run(Command::new(words[0]).args(&words[1..]).arg(path));
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn kibibytes(path: &Path) -> u64 {
    fs::metadata(path).expect("there").blocks() / 2
}

#[test]
fn fallocate_gives_space_that_reads_as_zeros_and_stays() {
    in_every_mode(|place, mount, mode| {
        let (sized, kept) = (mount.path("sized"), mount.path("kept"));
        program(&["fallocate", "-l", "10M"], &sized);
        fs::write(&kept, pattern(1, 100_000)).expect("written");
        program(&["fallocate", "-n", "-l", "10M"], &kept);
        let seen = |mount: &Mount| {
            let (sized, kept) = (mount.path("sized"), mount.path("kept"));
            assert_eq!((fs::metadata(&sized).expect("there").len(), kibibytes(&sized)), (10 * MIB, 10 * 1024), "{mode}");
            assert!(fs::read(&sized).expect("read").iter().all(|byte| *byte == 0), "{mode}");
            support::eventually("the space behind the end", || kibibytes(&kept) >= 10 * 1024);
            assert!(fs::read(&kept).expect("read") == pattern(1, 100_000), "{mode}");
        };
        seen(&mount);
        mount.unmount();
        place.check();
        let mount = place.mount(mode);
        seen(&mount);
        // Writes go into the space, whatever their shape; what they leave out is zeros still.
        let file = OpenOptions::new().read(true).write(true).open(mount.path("sized")).expect("opened");
        let mut expected = vec![0; 10 * SIZE];
        for (offset, length) in [(5, 100), (70_000, 300), (3 * SIZE - 7, 70_000), (5 * SIZE, SIZE), (10 * SIZE - 100, 100)] {
            let bytes = pattern(offset as u64, length);
            file.write_all_at(&bytes, offset as u64).expect("written");
            expected[offset..][..length].copy_from_slice(&bytes);
        }
        file.sync_all().expect("synced");
        assert!(fs::read(mount.path("sized")).expect("read") == expected, "{mode}");
        let before = kibibytes(&mount.path("sized"));
        assert_eq!(before, 10 * 1024, "{mode}: KiB, logs over the space are not counted");
        drop(file);
        // A truncation takes what is behind the end, also one to the size that the file has.
        program(&["truncate", "-s", "100000"], &mount.path("kept"));
        support::eventually("the space comes back", || kibibytes(&mount.path("kept")) < 256);
        assert!(fs::read(mount.path("kept")).expect("read") == pattern(1, 100_000), "{mode}");
        mount.unmount();
        place.check();
        let mount = place.mount(mode);
        assert!(fs::read(mount.path("sized")).expect("read") == expected, "{mode}: after the remount");
        mount.unmount();
    });
}

#[test]
fn punched_and_zeroed_ranges_read_as_zeros_at_once_and_later() {
    in_every_mode(|place, mount, mode| {
        let path = mount.path("file");
        let mut expected = pattern(7, 2 * SIZE);
        let file = new_file(&mount, "file");
        file.write_all_at(&expected, 0).expect("written");
        // Nothing is synced: the kernel's cache may hold all of it, and some of it is read back through the cache below.
        let ranges: [(usize, usize); 8] = [
            (10, 100),
            (4096, 4096),
            (65_536, 65_536),
            (200_000, 300_000),
            (131_000, 140),
            (600_001, 50_000),
            (2 * SIZE - 5000, 5000),
            (700_000, 1),
        ];
        for (turn, (offset, length)) in ranges.into_iter().enumerate() {
            let flags = match turn % 2 {
                0 => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                _ => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            };
            fallocate(&file, flags, offset as u64, length as u64).expect("zeroed");
            expected[offset..][..length].fill(0);
            assert!(fs::read(&path).expect("read") == expected, "{mode}: {offset} + {length}");
            // Bytes beside it, and inside it again.
            let again = pattern(offset as u64, 64);
            let at = offset.saturating_sub(32);
            file.write_all_at(&again, at as u64).expect("written");
            expected[at..][..64].copy_from_slice(&again);
        }
        assert!(fs::read(&path).expect("read") == expected, "{mode}: before the sync");
        file.sync_all().expect("synced");
        let before = kibibytes(&path);
        program(&["fallocate", "-p", "-o", "262144", "-l", "1048576"], &path);
        expected[262_144..][..SIZE].fill(0);
        support::eventually("the punched space", || kibibytes(&path) + 800 <= before);
        // Zeroing beyond the end makes the file longer, and gives it space.
        program(&["fallocate", "-z", "-o", "2000000", "-l", "1000000"], &path);
        expected.truncate(2_000_000);
        expected.resize(3_000_000, 0);
        assert!(fs::read(&path).expect("read") == expected, "{mode}");
        drop(file);
        mount.unmount();
        place.check();
        let mount = place.mount(mode);
        assert!(fs::read(mount.path("file")).expect("read") == expected, "{mode}: after the remount");
        mount.unmount();
    });
}

#[test]
fn holes_are_found_and_sparse_copies_keep_every_byte() {
    in_every_mode(|place, mount, mode| {
        let file = new_file(&mount, "file");
        let mut expected = vec![0; 4 * SIZE];
        for (offset, length) in [(SIZE, 65_536), (2 * SIZE + 100, 64)] {
            file.write_all_at(&pattern(9, length), offset as u64).expect("written");
            expected[offset..][..length].copy_from_slice(&pattern(9, length));
        }
        file.set_len(4 * MIB).expect("longer");
        fallocate(&file, FallocateFlags::empty(), 3 * MIB, 65_536).expect("given out");
        // Copied while it is open and, with the write-back cache, nowhere but in the kernel.
        program(&["cp", "--sparse=auto", mount.path("file").to_str().expect("UTF-8")], &mount.path("first"));
        assert!(fs::read(mount.path("first")).expect("read") == expected, "{mode}: copy of what was just written");
        let is_hole = |offset: u64| seek(&file, SeekFrom::Hole(offset));
        let is_data = |offset: u64| seek(&file, SeekFrom::Data(offset));
        if mode == "relaxed" {
            // Only the kernel knows what its cache holds: all is data up to its size.
            assert_eq!((is_data(0), is_hole(0)), (Ok(0), Ok(4 * MIB)));
        } else {
            assert_eq!((is_data(0), is_hole(0)), (Ok(MIB), Ok(0)));
            assert_eq!((is_data(MIB + 5), is_hole(MIB + 5)), (Ok(MIB + 5), Ok(MIB + 65_536)));
            assert_eq!((is_data(MIB + 65_536), is_hole(2 * MIB + 100)), (Ok(2 * MIB), Ok(2 * MIB + 4096)));
            assert_eq!(is_data(2 * MIB + 4096), Err(Errno::NXIO), "space without data is a hole");
        }
        assert_eq!((is_data(4 * MIB), is_hole(5 * MIB)), (Err(Errno::NXIO), Err(Errno::NXIO)), "{mode}");
        program(&["cp", "--sparse=always", mount.path("file").to_str().expect("UTF-8")], &mount.path("second"));
        assert!(fs::read(mount.path("second")).expect("read") == expected, "{mode}");
        support::eventually("a sparse copy", || kibibytes(&mount.path("second")) <= 256);
        drop(file);
        mount.unmount();
        place.check();
    });
}

#[test]
fn space_that_was_given_out_is_written_on_a_full_device() {
    in_every_mode(|place, mount, mode| {
        let file = new_file(&mount, "file");
        fallocate(&file, FallocateFlags::empty(), 0, 64 * MIB).expect("room");
        fallocate(&file, FallocateFlags::KEEP_SIZE, 64 * MIB, 16 * MIB).expect("room");
        assert_eq!(fallocate(new_file(&mount, "large"), FallocateFlags::empty(), 0, 1 << 40), Err(Errno::NOSPC), "{mode}");
        assert_eq!(kibibytes(&mount.path("large")), 0, "a call without room takes none");
        // All that is left goes to another file, in steps down to a sector.
        let (filler, mut filled) = (new_file(&mount, "filler"), 0);
        for step in [64 * MIB, 4 * MIB, 256 << 10, 64 << 10, 4 << 10] {
            while fallocate(&filler, FallocateFlags::empty(), filled, step).is_ok() {
                filled += step;
            }
        }
        assert!(filled > 350 * MIB, "{mode}: {filled}");
        assert_eq!(fallocate(new_file(&mount, "more"), FallocateFlags::empty(), 0, 65_536), Err(Errno::NOSPC), "{mode}");
        // The whole of it, the part behind the end too, in pieces of other sizes than blocks.
        let expected = pattern(3, 80 * SIZE);
        for (index, piece) in expected.chunks(300_000).enumerate() {
            file.write_all_at(piece, index as u64 * 300_000).expect("space was given out");
        }
        file.sync_all().expect("synced");
        assert!(fs::read(mount.path("file")).expect("read") == expected, "{mode}");
        // Punching gives back what it takes.
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 1000, 200_000).expect("punched");
        fallocate(new_file(&mount, "again"), FallocateFlags::empty(), 0, 65_536).expect("space came back");
        drop((file, filler));
        mount.unmount();
        place.check();
    });
}

#[test]
fn what_there_is_not_says_so() {
    in_every_mode(|_, mount, mode| {
        let file = new_file(&mount, "file");
        file.write_all_at(&pattern(1, 200_000), 0).expect("written");
        for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE, FallocateFlags::UNSHARE_RANGE] {
            assert_eq!(fallocate(&file, flags, 0, 65_536), Err(Errno::OPNOTSUPP), "{mode}: {flags:?}");
        }
        fallocate(&file, FallocateFlags::empty(), 0, 65_536).expect("the others are there still");
        assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 0), Err(Errno::INVAL), "{mode}");
        assert_eq!(fallocate(&file, FallocateFlags::empty(), i64::MAX as u64, 65_536), Err(Errno::FBIG), "{mode}");
        assert!(mount.stats()["file_system"]["operations"]["fallocate"].as_u64() >= Some(1));
    });
}

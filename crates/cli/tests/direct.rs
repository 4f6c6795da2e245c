//! I/O that bypasses the page cache or forces durability: O_DIRECT, O_SYNC, O_DSYNC, RWF_DSYNC, sync_file_range, msync, copy_file_range.
//! Data that a call has acknowledged as durable exists after the daemon was killed.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use rustix::mm::MsyncFlags;
use support::mapped::Mapped;
use support::parameters::Parameter;
use support::{MODES, Mount, Place, pattern, run};

const BLOCK: usize = 64 << 10;
const EIO: Option<i32> = Some(5);

fn open(path: &Path, flags: OFlags) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags.bits() as i32);
    options.open(path).expect("opened")
}

fn read(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let read = file.read_at(&mut bytes, offset).expect("read");
    bytes.truncate(read);
    bytes
}

#[test]
fn direct_io_is_taken_as_it_comes_aligned_or_not() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        let file = open(&mount.path("file"), OFlags::DIRECT);
        let mut expected = pattern(1, 300_000);
        file.write_all_at(&expected, 0).expect("written");
        for (offset, length) in [(0, 4096), (4096, BLOCK), (1, 1), (100, 777), (65_535, 2), (70_001, 140_003), (299_999, 5), (400_000, 512)]
        {
            let bytes = pattern(offset + 3, length);
            file.write_all_at(&bytes, offset).expect("written");
            expected.resize(expected.len().max(offset as usize + length), 0);
            expected[offset as usize..][..length].copy_from_slice(&bytes);
            let odd = offset.saturating_sub(33);
            let end = expected.len().min(odd as usize + length + 70);
            assert!(read(&file, odd, length + 70) == expected[odd as usize..end], "{mode}: {length} B at {offset}");
        }
        assert_eq!(file.metadata().expect("there").len(), 400_512);
        assert!(read(&file, 400_500, 100) == expected[400_500..], "short at the end");
        assert_eq!(read(&file, 500_000, 10), b"");
        // Appending past the cache.
        let mut appends =
            OpenOptions::new().append(true).custom_flags(OFlags::DIRECT.bits() as i32).open(mount.path("file")).expect("opened");
        for piece in 0..5 {
            let bytes = pattern(piece, 777);
            appends.write_all(&bytes).expect("appended");
            expected.extend(bytes);
        }
        assert!(fs::read(mount.path("file")).expect("read") == expected, "{mode}");
        drop((file, appends));
        mount.kill();
        let mount = place.mount(mode);
        assert!(fs::read(mount.path("file")).expect("read") == expected, "{mode}: after the daemon was killed");
        mount.unmount();
        place.check();
    }
}

#[test]
fn direct_cached_and_mapped_bytes_are_the_same_bytes() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        let (cached, direct) = (open(&mount.path("file"), OFlags::empty()), open(&mount.path("file"), OFlags::DIRECT));
        let mut expected = pattern(1, 4 * BLOCK);
        cached.write_all_at(&expected, 0).expect("written");
        assert!(read(&direct, 0, 4 * BLOCK) == expected, "{mode}: a direct read of what is in the cache");
        let mapped = Mapped::new(&cached, 4 * BLOCK);
        for round in 0..40_u64 {
            let offset = (round * 7919 * 13) as usize % (4 * BLOCK - 9000);
            let bytes = pattern(round, 1 + (round as usize * 997) % 8999);
            match round % 3 {
                0 => direct.write_all_at(&bytes, offset as u64).expect("written"),
                1 => cached.write_all_at(&bytes, offset as u64).expect("written"),
                // In the page cache, which a direct read or write of the same pages writes back first.
                _ => mapped.store(offset, &bytes),
            }
            expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
            let around = offset.saturating_sub(5000)..(offset + bytes.len() + 5000).min(4 * BLOCK);
            let what = format!("{mode}, round {round}");
            assert!(read(&direct, around.start as u64, around.len()) == expected[around.clone()], "{what}: direct");
            assert!(read(&cached, around.start as u64, around.len()) == expected[around.clone()], "{what}: cached");
            assert!(mapped.load(around.start, around.len()) == expected[around], "{what}: mapped");
        }
        mapped.sync(MsyncFlags::SYNC).expect("synced");
        drop((mapped, cached, direct));
        mount.unmount();
        let mount = place.mount(mode);
        assert!(fs::read(mount.path("file")).expect("read") == expected, "{mode}: after a remount");
        mount.unmount();
    }
}

/// Ways to make a write durable; each gets a file that is overwritten in the middle and grows at its end.
const WAYS: [&str; 10] =
    ["O_DSYNC", "O_SYNC", "O_DIRECT|O_DSYNC", "O_DIRECT", "RWF_DSYNC", "RWF_SYNC", "fdatasync", "fsync", "sync_file_range", "msync"];

fn write_durably(way: &str, path: &Path, offset: u64, bytes: &[u8]) {
    let flags = match way {
        "O_DSYNC" => OFlags::DSYNC,
        "O_SYNC" => OFlags::SYNC,
        "O_DIRECT|O_DSYNC" => OFlags::DIRECT | OFlags::DSYNC,
        "O_DIRECT" => OFlags::DIRECT,
        _ => OFlags::empty(),
    };
    let file = open(path, flags);
    match way {
        "RWF_DSYNC" | "RWF_SYNC" => {
            let flags = if way == "RWF_SYNC" { ReadWriteFlags::SYNC } else { ReadWriteFlags::DSYNC };
            assert_eq!(rustix::io::pwritev2(&file, &[IoSlice::new(bytes)], offset, flags).expect("written"), bytes.len());
        }
        "msync" => {
            let end = offset as usize + bytes.len();
            if file.metadata().expect("there").len() < end as u64 {
                file.set_len(end as u64).expect("grown");
            }
            let mapped = Mapped::new(&file, end);
            mapped.store(offset as usize, bytes);
            mapped.sync(MsyncFlags::SYNC).expect("synced");
            std::mem::forget((mapped, file)); // nothing may be written by closing
            return;
        }
        _ => file.write_all_at(bytes, offset).expect("written"),
    }
    match way {
        "fdatasync" => file.sync_data().expect("synced"),
        "fsync" => file.sync_all().expect("synced"),
        "sync_file_range" => {
            let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            // SAFETY: a plain call on a file that is open.
            let done = unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, bytes.len() as i64, flags) };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        }
        _ => {}
    }
    std::mem::forget(file);
}

#[test]
fn what_was_acknowledged_as_durable_outlives_the_daemon() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        let base = pattern(1, 3 * BLOCK);
        let mut expected = Vec::new();
        for way in WAYS {
            fs::write(mount.path(way), &base).and_then(|()| File::open(mount.path(way))?.sync_all()).expect("prepared");
        }
        for (index, way) in WAYS.iter().enumerate() {
            let mut bytes = base.clone();
            // In the middle of a page; whole blocks; over the end.
            for (offset, length) in [(1000 + index as u64, 500), (BLOCK as u64, BLOCK), (3 * BLOCK as u64 - 100, 9000 + index)] {
                let new = pattern(offset + 50, length);
                write_durably(way, &mount.path(way), offset, &new);
                bytes.resize(bytes.len().max(offset as usize + length), 0);
                bytes[offset as usize..][..length].copy_from_slice(&new);
            }
            expected.push(bytes);
        }
        mount.kill();
        let mount = place.mount(mode);
        for (way, expected) in WAYS.iter().zip(&expected) {
            let found = fs::read(mount.path(way)).expect("read");
            assert_eq!(found.len(), expected.len(), "{mode}, {way}");
            assert!(found == *expected, "{mode}, {way}: other bytes");
        }
        mount.unmount();
        place.check();
    }
}

/// The other side of the test above: what nobody asked to be durable is so in strict modes, and old or new, page by page, in relaxed mode.
#[test]
fn a_write_alone_is_durable_in_strict_modes() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        let (old, new) = (pattern(1, 2 * BLOCK), pattern(2, 2 * BLOCK));
        let file = open(&mount.path("file"), OFlags::empty());
        file.write_all_at(&old, 0).and_then(|()| file.sync_all()).expect("prepared");
        file.write_all_at(&new, 0).expect("written");
        std::mem::forget(file); // closing it would write back
        mount.kill();
        let mount = place.mount(mode);
        let found = fs::read(mount.path("file")).expect("read");
        let lost = (0..2 * BLOCK).step_by(4096).filter(|at| found[*at..at + 4096] == old[*at..at + 4096]).count();
        let kept = (0..2 * BLOCK).step_by(4096).filter(|at| found[*at..at + 4096] == new[*at..at + 4096]).count();
        println!("{mode}: {lost} pages lost, {kept} kept");
        assert_eq!(lost + kept, 2 * BLOCK / 4096, "{mode}");
        assert!(mode == "relaxed" || lost == 0, "{mode}: {lost} pages lost");
        mount.unmount();
    }
}

/// Later pages, dirty ones of the same file among them, do not hold it up, and MS_ASYNC promises nothing but harms nothing.
#[test]
fn asynchronous_msync_leaves_old_or_new_pages() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        let (old, new) = (pattern(1, 2 * BLOCK), pattern(2, 2 * BLOCK));
        let file = open(&mount.path("file"), OFlags::empty());
        file.write_all_at(&old, 0).and_then(|()| file.sync_all()).expect("prepared");
        let mapped = Mapped::new(&file, 2 * BLOCK);
        mapped.store(0, &new);
        mapped.sync(MsyncFlags::ASYNC).expect("asked");
        assert!(read(&file, 0, 2 * BLOCK) == new, "{mode}: a read sees the stores");
        std::mem::forget((mapped, file));
        mount.kill();
        let mount = place.mount(mode);
        let found = fs::read(mount.path("file")).expect("read");
        for (index, page) in found.chunks(4096).enumerate() {
            let at = index * 4096..index * 4096 + 4096;
            assert!(page == &old[at.clone()] || page == &new[at], "{mode}: page {index} is neither");
        }
        mount.unmount();
        place.check();
    }
}

/// A daemon that is gone fails the call that would promise.
#[test]
fn nothing_is_promised_by_a_daemon_that_is_gone() {
    for mode in ["relaxed", "strict"] {
        let place = Place::formatted();
        let mount = place.mount(mode);
        let direct = open(&mount.path("file"), OFlags::DIRECT | OFlags::DSYNC);
        let synced = open(&mount.path("file"), OFlags::DSYNC);
        direct.write_all_at(&pattern(1, 8192), 0).expect("written");
        mount.kill();
        for file in [&direct, &synced] {
            let refused = file.write_all_at(&pattern(2, 4096), 0).err().and_then(|error| error.raw_os_error());
            // Over io_uring a queue outlives the daemon for a moment, and what comes to it meanwhile is called off.
            let is_gone = matches!(refused, Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED));
            assert!(refused == EIO || is_gone, "{mode}: {refused:?}");
        }
        drop((direct, synced));
        let mount = place.mount(mode);
        assert!(fs::read(mount.path("file")).expect("read") == pattern(1, 8192), "{mode}");
        mount.unmount();
    }
}

// ---- copy_file_range -------------------------------------------------------------------------------------------------------------------

/// Copies a range as a program does, until nothing more comes.
fn copy(from: &File, mut from_offset: u64, to: &File, mut to_offset: u64, length: usize) -> usize {
    let mut done = 0;
    while done < length {
        let copied = rustix::fs::copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), length - done).expect("copied");
        if copied == 0 {
            break;
        }
        done += copied;
    }
    done
}

/// A file with data, holes of several sizes and a hole at its end, of which the kernel may still hold a part.
fn sparse(mount: &Mount) -> (File, Vec<u8>) {
    let file = open(&mount.path("sparse"), OFlags::empty());
    let mut expected = vec![0; 40 * BLOCK + 77];
    for (offset, length) in [(0, 100), (5000, 70_000), (10 * BLOCK, 2 * BLOCK), (30 * BLOCK + 123, 64)] {
        let bytes = pattern(offset as u64, length);
        file.write_all_at(&bytes, offset as u64).expect("written");
        expected[offset..offset + length].copy_from_slice(&bytes);
    }
    file.set_len(expected.len() as u64).expect("grown");
    (file, expected)
}

#[test]
fn copies_within_the_mount_are_what_cp_makes() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        let (from, expected) = sparse(&mount);
        let before = mount.stats()["file_system"]["operations"]["copy_range"].as_u64();
        let to = open(&mount.path("copied"), OFlags::empty());
        assert_eq!(copy(&from, 0, &to, 0, 1 << 30), expected.len(), "{mode}");
        assert!(mount.stats()["file_system"]["operations"]["copy_range"].as_u64() > before, "{mode}: the daemon copied");
        for (name, reflink) in [("cp", "auto"), ("never", "never")] {
            let output = run(Command::new("cp").arg(format!("--reflink={reflink}")).args([mount.path("sparse"), mount.path(name)]));
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        for name in ["copied", "cp", "never"] {
            assert!(fs::read(mount.path(name)).expect("read") == expected, "{mode}: {name}");
        }
        assert!(to.metadata().expect("there").blocks() * 512 <= 8 * BLOCK as u64, "{mode}: holes stay holes");
        // Over what is there, part of it dirty in the cache, at places that fit nothing.
        let mut target = pattern(9, 20 * BLOCK);
        let over = open(&mount.path("over"), OFlags::empty());
        over.write_all_at(&target, 0).expect("written");
        for (from_offset, to_offset, length) in
            [(0, 100, 9000), (4097, 65_000, 200_001), (9 * BLOCK, 12 * BLOCK + 1, 4 * BLOCK), (30 * BLOCK, 7, 200)]
        {
            over.write_all_at(b"dirty before", to_offset as u64 + 3).expect("written");
            target[to_offset + 3..to_offset + 15].copy_from_slice(b"dirty before");
            over.write_all_at(b"dirty behind", (to_offset + length) as u64).expect("written");
            target[to_offset + length..to_offset + length + 12].copy_from_slice(b"dirty behind");
            assert_eq!(copy(&from, from_offset as u64, &over, to_offset as u64, length), length);
            target[to_offset..to_offset + length].copy_from_slice(&expected[from_offset..from_offset + length]);
            assert!(fs::read(mount.path("over")).expect("read") == target, "{mode}: {length} B to {to_offset}");
        }
        // Within one file, and refused where the ranges overlap.
        assert_eq!(copy(&over, 0, &over, 15 * BLOCK as u64, 5 * BLOCK), 5 * BLOCK);
        target.copy_within(0..5 * BLOCK, 15 * BLOCK);
        let refused = rustix::fs::copy_file_range(&over, Some(&mut 0), &over, Some(&mut 4000), 5000);
        assert_eq!(refused.err(), Some(rustix::io::Errno::INVAL), "{mode}");
        assert!(fs::read(mount.path("over")).expect("read") == target, "{mode}");
        drop((from, to, over));
        mount.unmount();
        place.check();
        let mount = place.mount(mode);
        assert!(
            fs::read(mount.path("copied")).expect("read") == expected && fs::read(mount.path("over")).expect("read") == target,
            "{mode}"
        );
        mount.unmount();
    }
}

/// The kernel knows the size that a source will have, the daemon does not yet: only a kernel that writes back all behind the range helps.
#[test]
fn a_hole_below_pages_that_are_not_written_back_is_copied() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        let (from, to) = (open(&mount.path("from"), OFlags::empty()), open(&mount.path("to"), OFlags::empty()));
        from.write_all_at(&pattern(1, 4096), 0).and_then(|()| from.write_all_at(b"far", 1 << 20)).expect("written");
        assert_eq!(copy(&from, 0, &to, 0, BLOCK), BLOCK, "{mode}");
        let found = fs::read(mount.path("to")).expect("read");
        assert!(found[..4096] == pattern(1, 4096) && found[4096..].iter().all(|byte| *byte == 0) && found.len() == BLOCK, "{mode}");
        drop((from, to));
        mount.unmount();
    }
}

#[test]
fn a_copy_has_the_times_of_a_write_and_keeps_those_set_after_it() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        let (from, to) = (open(&mount.path("from"), OFlags::empty()), open(&mount.path("to"), OFlags::empty()));
        from.write_all_at(&pattern(1, 100_000), 0).expect("written");
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        to.set_modified(long_ago).expect("set");
        copy(&from, 0, &to, 0, 50_000);
        let after = to.metadata().and_then(|metadata| metadata.modified()).expect("there");
        assert!(after > long_ago + Duration::from_secs(1_000_000), "{mode}: {after:?}");
        copy(&from, 0, &to, 50_000, 50_000);
        to.set_modified(long_ago).expect("set");
        drop((from, to));
        mount.unmount();
        let mount = place.mount(mode);
        assert_eq!(fs::metadata(mount.path("to")).and_then(|metadata| metadata.modified()).expect("there"), long_ago, "{mode}");
        assert!(fs::read(mount.path("to")).expect("read") == [&pattern(1, 50_000)[..]; 2].concat(), "{mode}");
        mount.unmount();
    }
}

/// A copy is durable as a write past the cache is: when it returns.
#[test]
fn a_copy_outlives_the_daemon() {
    for mode in MODES {
        let place = Place::formatted();
        let mount = place.mount(mode);
        let (from, expected) = sparse(&mount);
        let to = open(&mount.path("to"), OFlags::empty());
        copy(&from, 0, &to, 0, 1 << 30);
        mount.kill();
        drop((from, to));
        let mount = place.mount(mode);
        assert!(fs::read(mount.path("to")).expect("read") == expected, "{mode}");
        mount.unmount();
    }
}

/// Bytes that crossed to the drive, by both paths.
fn written(mount: &Mount) -> u64 {
    let stats = mount.stats();
    let path = |name: &str| stats[name]["written_bytes"].as_u64().expect("a number");
    path("byte_path") + path("block_path")
}

#[test]
fn one_changed_byte_of_a_page_that_comes_back_moves_a_few_lines() {
    let modes = ["relaxed", "strict", "relaxed,modified_ratio=0"];
    for (mode, has_firmware) in modes.map(|mode| (mode, false)).into_iter().chain(modes.map(|mode| (mode, true))) {
        let place = if has_firmware { Place::with_firmware() } else { Place::formatted() };
        let mount = place.mount(mode);
        let mut expected = pattern(4, if mode == "strict" { 1 << 17 } else { 1 << 18 });
        fs::write(mount.path("file"), &expected).expect("written");
        mount.unmount();
        let mount = place.mount(mode); // the kernel has no page of the file, and reads them
        let file = OpenOptions::new().read(true).write(true).open(mount.path("file")).expect("opened");
        let settle = |file: &File| {
            file.sync_all().expect("synced");
            written(&mount)
        };
        // What one page costs: its lines, and the same with the times of the file, which the kernel sends by themselves.
        let mut moved = Vec::new();
        for at in [5 * 4096 + 100, 9 * 4096 + 4095] {
            let before = settle(&file);
            if mode == "strict" {
                let mapped = Mapped::new(&file, expected.len());
                mapped.store(at, b"!");
                mapped.sync(MsyncFlags::SYNC).expect("synced");
            } else {
                file.write_all_at(b"!", at as u64).expect("written");
            }
            expected[at] = b'!';
            moved.push(settle(&file) - before);
        }
        if mode == "relaxed" {
            let mapped = Mapped::new(&file, expected.len());
            let before = settle(&file);
            mapped.store(20 * 4096, b"?");
            mapped.sync(MsyncFlags::SYNC).expect("synced");
            expected[20 * 4096] = b'?';
            moved.push(settle(&file) - before);
        }
        println!("{mode}, firmware {has_firmware}: {moved:?} B");
        if has_firmware && mode != "relaxed,modified_ratio=0" {
            // The line, its sector's checksum, and the inode: twice where the kernel sends the file's times by themselves.
            assert!(moved.iter().all(|bytes| *bytes <= 256), "{mode}: {moved:?} B");
            assert_eq!(mount.stats()["file_system"]["in_place_lines"].as_u64(), Some(moved.len() as u64));
        }
        let few = mode != "relaxed,modified_ratio=0";
        assert!(moved.iter().all(|bytes| (*bytes < 1024) == few), "{mode}: {moved:?} B");
        drop(file);
        assert!(fs::read(mount.path("file")).expect("read") == expected);
        mount.unmount();
        let mount = place.mount(mode);
        assert!(fs::read(mount.path("file")).expect("read") == expected, "{mode}: after a remount");
        mount.unmount();
        place.check();
    }
}

/// Requests become larger where the kernel's parameter allows it. By default they have 1 MiB.
#[test]
fn requests_are_as_large_as_the_kernel_allows() {
    const PAGE: usize = 4096;
    const MIB: usize = 1 << 20;
    assert_eq!(rustix::param::page_size(), PAGE, "the pages of this test");
    let memory = pattern(7, 8 * MIB + PAGE + 1);
    let start = memory.as_ptr().align_offset(PAGE);
    for (mode, ring) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        if ring && Parameter::over_io_uring(ring).is_none() {
            println!("{mode} over io_uring: not run, this kernel has none");
            continue;
        }
        for (pages, requests, of_odd_memory) in [(256, 8, 2), (512, 4, 1), (1024, 2, 1), (4096, 2, 1)] {
            let place = Place::formatted();
            let over_ring = Parameter::over_io_uring(ring);
            let Some(limit) = Parameter::pages_limit(pages) else { return println!("skipped: no such parameter, or not root") };
            let mount = place.mount(mode);
            drop((limit, over_ring));
            let what = format!("{mode}, io_uring {ring}, {pages} pages");
            let file = open(&mount.path("file"), OFlags::DIRECT);
            let writes = || mount.stats()["file_system"]["operations"]["write"].as_u64().expect("a count");
            let before = writes();
            file.write_all_at(&memory[start..start + 8 * MIB], 0).expect("written");
            let between = writes();
            assert_eq!(between - before, requests, "{what}");
            // A mebibyte that begins within a page of memory has a part in one page more.
            file.write_all_at(&memory[start + 1..start + 1 + MIB], 3 * MIB as u64 + 17).expect("written");
            assert_eq!(writes() - between, of_odd_memory, "{what}: odd memory");
            let mut expected = memory[start..start + 8 * MIB].to_vec();
            expected[3 * MIB + 17..4 * MIB + 17].copy_from_slice(&memory[start + 1..start + 1 + MIB]);
            assert!(read(&file, 0, 9 * MIB) == expected, "{what}: read past the cache");
            drop(file);
            // Through the cache, where there is one: written back and read in.
            let file = open(&mount.path("cached"), OFlags::empty());
            file.write_all_at(&expected, 5).and_then(|()| file.sync_all()).expect("written");
            drop(file);
            mount.unmount();
            let over_ring = Parameter::over_io_uring(ring);
            let mount = place.mount(mode);
            drop(over_ring);
            assert!(fs::read(mount.path("cached")).expect("read")[5..] == expected, "{what}: through the cache");
            assert!(fs::read(mount.path("file")).expect("read") == expected, "{what}: after a remount");
            mount.unmount();
            place.check();
        }
    }
}

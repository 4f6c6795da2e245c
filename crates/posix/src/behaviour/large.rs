//! Many names, deep trees, many open files, large files, many attributes: scaled down for a test run, full size with `TANDEMFS_WHOLE_SIZE`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, XattrFlags};
use rustix::io::Errno;

use super::sizes::{open, pattern};
use crate::scene::{Difference, Scene};
use crate::{sys, whole_size};

/// Names and inode numbers of a directory, read with a buffer of this size.
pub(crate) fn list(path: &Path, buffer_bytes: usize) -> Vec<(Vec<u8>, u64)> {
    let directory = rustix::fs::open(path, OFlags::DIRECTORY, Mode::empty()).expect("opened");
    let mut buffer = vec![std::mem::MaybeUninit::uninit(); buffer_bytes];
    let (mut reader, mut listed) = (RawDir::new(&directory, &mut buffer), Vec::new());
    while let Some(entry) = reader.next() {
        let entry = entry.expect("listed");
        listed.push((entry.file_name().to_bytes().to_vec(), entry.ino()));
    }
    listed
}

fn touch(path: &Path) {
    rustix::fs::mknodat(CWD, path, rustix::fs::FileType::RegularFile, Mode::RUSR, 0)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

pub(crate) fn many_names(scene: &Scene<'_>) {
    let count = if whole_size() { 1_000_000 } else { 3000 };
    let directory = scene.subdirectory("many");
    let name = |number: usize| directory.join(format!("name-{number}{}", &"-with-a-longer-tail"[..number % 19]));
    for number in 0..count {
        touch(&name(number));
    }
    let listed: BTreeSet<Vec<u8>> = list(&directory, 32 << 10).into_iter().map(|entry| entry.0).collect();
    assert_eq!(listed.len(), count + 2);
    for number in (0..count).step_by(7) {
        rustix::fs::statat(CWD, name(number), AtFlags::empty()).expect("found");
        assert!(listed.contains(name(number).file_name().expect("a name").as_bytes()));
    }
    for number in 0..count {
        fs::remove_file(name(number)).expect("removed");
    }
    assert_eq!(list(&directory, 4096).len(), 2);
    fs::remove_dir(&directory).expect("empty");
}

/// Asserts that every name that stays was listed once, and none twice.
#[track_caller]
fn assert_stayed(listed: impl Iterator<Item = Vec<u8>>, stay: usize, round: usize) {
    let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    listed.for_each(|name| *seen.entry(name).or_insert(0) += 1);
    let twice: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).map(|(name, _)| String::from_utf8_lossy(name)).collect();
    assert!(twice.is_empty(), "round {round}: twice {twice:?}");
    let stayed = seen.keys().filter(|name| name.starts_with(b"stays-")).count();
    assert_eq!(stayed, stay, "round {round}");
}

/// While others create, remove and rename, a reader sees every name that stays once, and none twice.
pub(crate) fn names_that_stay_are_listed_once(scene: &Scene<'_>) {
    let (stay, rounds) = if whole_size() { (100_000, 10) } else { (800, 4) };
    let directory = scene.subdirectory("changing");
    for number in 0..stay {
        touch(&directory.join(format!("stays-{number}")));
        if number % 3 == 0 {
            touch(&directory.join(format!("goes-{number}")));
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0;
            while !done.load(SeqCst) {
                let (new, moved) = (directory.join(format!("new-{number}")), directory.join(format!("moved-{number}")));
                touch(&new);
                fs::rename(&new, &moved).expect("renamed");
                if number >= 50 {
                    fs::remove_file(directory.join(format!("moved-{}", number - 50))).expect("removed");
                }
                let _ = fs::remove_file(directory.join(format!("goes-{}", number * 3)));
                number += 1;
            }
        });
        // Two at a time: they share what the kernel keeps of the listing, and lose it to each other.
        let read = |buffers: [usize; 4]| {
            for round in 0..rounds {
                let buffer_bytes = buffers[round % 4];
                assert_stayed(list(&directory, buffer_bytes).into_iter().map(|entry| entry.0), stay, round);
            }
        };
        let other = scope.spawn(move || read([32 << 10, 2000, 700, 4096]));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read([400, 1024, 4096, 32 << 10])));
        let other = other.join();
        done.store(true, SeqCst);
        writer.join().expect("ended");
        for failed in [result, other] {
            failed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    // rm removes what it lists.
    for (name, _) in list(&directory, 1024) {
        if !matches!(&name[..], b"." | b"..") {
            fs::remove_file(directory.join(std::ffi::OsStr::from_bytes(&name))).expect("removed");
        }
    }
    fs::remove_dir(&directory).expect("empty");
}

/// A listing continues at its cookie after any changes between two calls: names made, removed and renamed, the directory closed, the file
/// system remounted.
pub(crate) fn a_listing_goes_on_after_changes_and_remounts(scene: &Scene<'_>) {
    let (stay, pieces) = if whole_size() { (100_000, 40) } else { (600, 9) };
    let directory = scene.subdirectory("changing");
    for number in 0..stay {
        touch(&directory.join(format!("stays-{number}-{}", &"with-a-longer-tail-of-another-line-or-so"[..number % 40])));
        touch(&directory.join(format!("goes-{number}")));
    }
    let (mut listed, mut cookie, mut ended) = (Vec::new(), 0, false);
    for piece in 0.. {
        let opened = rustix::fs::open(&directory, OFlags::DIRECTORY, Mode::empty()).expect("opened");
        sys::seek_directory(&opened, cookie).expect("sought");
        let mut buffer = vec![std::mem::MaybeUninit::uninit(); 1500];
        let mut reader = RawDir::new(&opened, &mut buffer);
        let wanted = 2 * stay / pieces + piece % 5;
        for _ in 0..wanted {
            let Some(entry) = reader.next() else {
                ended = true;
                break;
            };
            let entry = entry.expect("listed");
            cookie = entry.next_entry_cookie() as i64;
            listed.push(entry.file_name().to_bytes().to_vec());
        }
        drop(opened);
        if ended {
            break;
        }
        // Before and behind the cookie some go, and their places are taken: by shorter and longer names, by files and by moved ones.
        for number in (piece..stay).step_by(pieces) {
            let goes = directory.join(format!("goes-{number}"));
            match number % 3 {
                0 => drop(fs::remove_file(&goes)),
                1 => drop(fs::rename(&goes, directory.join(format!("moved-{piece}-{number}-{}", "n".repeat(number % 100))))),
                _ => touch(&directory.join(format!("new-{piece}-{number}"))),
            }
        }
        if piece % 3 == 0 {
            scene.remount("");
        }
        assert!(piece < 4 * pieces, "it ends");
    }
    assert_stayed(listed.into_iter(), stay, 0);
}

pub(crate) fn hundred_levels(scene: &Scene<'_>) {
    let mut path = scene.path("d");
    for _ in 1..100 {
        path.push("d");
    }
    fs::create_dir_all(&path).expect("made");
    fs::write(path.join("deep"), "deep").expect("written");
    fs::rename(scene.path("d/d/d"), scene.path("e")).expect("renamed");
    let moved: std::path::PathBuf = std::iter::once(scene.path("e")).chain((0..97).map(|_| "d".into())).collect();
    assert_eq!(fs::read(moved.join("deep")).expect("read"), b"deep");
    fs::remove_dir_all(scene.path("e")).expect("removed");
}

pub(crate) fn many_open_files(scene: &Scene<'_>) {
    let (count, at_once) = if whole_size() { (1_000_000, 1000) } else { (1000, 300) };
    let directory = scene.subdirectory("files");
    let mut held = std::collections::VecDeque::new();
    for number in 0..count {
        let file = File::create(directory.join(number.to_string())).expect("created");
        file.write_all_at(&(number as u32).to_le_bytes(), 0).expect("written");
        held.push_back(file);
        if held.len() > at_once {
            held.pop_front();
        }
    }
    drop(held);
    for number in (0..count).step_by(11) {
        assert_eq!(fs::read(directory.join(number.to_string())).expect("read"), (number as u32).to_le_bytes());
    }
    fs::remove_dir_all(&directory).expect("removed");
}

pub(crate) fn large_files(scene: &Scene<'_>) {
    let mebibytes: u64 = if whole_size() { 10 << 10 } else { 48 };
    let file = open(scene, "file");
    let mut piece = pattern(1, 1 << 20);
    for number in 0..mebibytes {
        piece[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all_at(&piece, number << 20).expect("written");
    }
    file.sync_all().expect("synced");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
    let mut found = vec![0; 1 << 20];
    for number in (0..mebibytes).rev() {
        file.read_exact_at(&mut found, number << 20).expect("read");
        piece[..8].copy_from_slice(&number.to_le_bytes());
        assert!(found == piece, "mebibyte {number}");
    }
}

/// As many attributes on one file as its list can name, then as many again over many files; all there after a remount.
pub(crate) fn many_attributes(scene: &Scene<'_>) {
    let get = |path: &Path, name: &str| {
        let mut value = [0; 64];
        rustix::fs::getxattr(path, name, &mut value[..]).map(|length| value[..length].to_vec())
    };
    let names_of = |path: &Path| {
        let mut names = vec![0; 64 << 10];
        let length = rustix::fs::listxattr(path, &mut names[..]).expect("listed");
        names.truncate(length);
        names
    };
    // Names of ten bytes with their end.
    let name = |number: usize| format!("user.{number:04}");
    let value = |number: usize| format!("value {number}").into_bytes();
    let file = scene.file("file", "x");
    let wanted = if whole_size() { usize::MAX } else { 500 };
    let mut count = 0;
    let refusal = loop {
        match rustix::fs::setxattr(&file, &*name(count), &value(count), XattrFlags::CREATE) {
            Ok(()) => count += 1,
            Err(error) => break Some(error),
        }
        if count == wanted {
            break None;
        }
    };
    let most = (64 << 10) / 10;
    match (scene.differs(Difference::ManyAttributes), whole_size()) {
        (true, true) => assert_eq!((count, refusal), (most, Some(Errno::NOSPC)), "the list has 64 KiB"),
        (true, false) => assert_eq!((count, refusal), (wanted, None)),
        (false, _) => assert!((50..500).contains(&count) && refusal == Some(Errno::NOSPC), "{count} attributes, {refusal:?}"),
    }
    assert_eq!(get(&file, &name(count)), Err(Errno::NODATA), "nothing of what was refused");

    let (files, each) = if whole_size() { (8192, 8) } else { (64, 8) };
    let directory = scene.subdirectory("files");
    let path = |number: usize| directory.join(number.to_string());
    for number in 0..files {
        touch(&path(number));
        for attribute in 0..each {
            rustix::fs::setxattr(path(number), &*name(attribute), &value(number + attribute), XattrFlags::CREATE).expect("set");
        }
    }
    scene.remount("");
    let listed = names_of(&file);
    let listed: BTreeSet<&[u8]> = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    assert_eq!(listed.len(), count);
    for number in 0..count {
        assert!(listed.contains(name(number).as_bytes()), "{number}");
        if number % 7 == 0 {
            assert_eq!(get(&file, &name(number)), Ok(value(number)), "{number}");
        }
    }
    for number in 0..files {
        assert_eq!(names_of(&path(number)).len(), each * 10);
        let attribute = number % each;
        assert_eq!(get(&path(number), &name(attribute)), Ok(value(number + attribute)), "file {number}");
    }
    // One that goes leaves room for one.
    if refusal.is_some() {
        rustix::fs::removexattr(&file, &*name(count / 2)).expect("removed");
        rustix::fs::setxattr(&file, &*name(count), &value(count / 2), XattrFlags::CREATE).expect("there is room for one again");
        assert_eq!(names_of(&file).len(), count * 10);
    }
}

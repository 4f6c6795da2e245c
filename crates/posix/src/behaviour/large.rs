//! Many names, deep trees, many open files, large files: scaled for a test run, whole with `TANDEMFS_WHOLE_SIZE`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir};

use super::sizes::{open, pattern};
use crate::scene::Scene;
use crate::whole_size;

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
        for round in 0..rounds {
            let mut seen: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
            for (name, _) in list(&directory, [400, 1024, 4096, 32 << 10][round % 4]) {
                *seen.entry(name).or_insert(0) += 1;
            }
            let of_those = |prefix: &[u8]| seen.iter().filter(|(name, _)| name.starts_with(prefix)).collect::<Vec<_>>();
            let stayed = of_those(b"stays-");
            assert!(stayed.len() == stay && stayed.iter().all(|(_, count)| **count == 1), "round {round}: {} of {stay}", stayed.len());
            let twice: Vec<_> = seen.iter().filter(|(_, count)| **count > 1).collect();
            assert!(twice.is_empty(), "round {round}: {twice:?}");
        }
        done.store(true, SeqCst);
        writer.join().expect("ended");
    });
    // rm removes what it lists.
    for (name, _) in list(&directory, 1024) {
        if !matches!(&name[..], b"." | b"..") {
            fs::remove_file(directory.join(std::ffi::OsStr::from_bytes(&name))).expect("removed");
        }
    }
    fs::remove_dir(&directory).expect("empty");
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

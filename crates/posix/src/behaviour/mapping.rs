//! Memory mappings.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::sizes::{contents, open, pattern};
use crate::scene::{Scene, refused};
use crate::sys::Mapping;

pub(crate) fn shared_is_coherent(scene: &Scene<'_>) {
    let file = open(scene, "file");
    file.write_all_at(&pattern(1, 200_000), 0).expect("written");
    let mapping = Mapping::new(&file, 200_000, true, true).expect("mapped");
    let other_file = open(scene, "file");
    let other = Mapping::new(&other_file, 200_000, true, true).expect("mapped");
    assert!(mapping.get(0, 200_000) == pattern(1, 200_000), "read by mapping");
    for offset in [0_usize, 4095, 65_530, 131_071, 199_990] {
        let mut bytes = [0; 4];
        mapping.set(offset, b"MAP!");
        other_file.read_exact_at(&mut bytes, offset as u64).expect("read");
        assert_eq!((&bytes, other.get(offset, 4)), (b"MAP!", b"MAP!".to_vec()), "stored, then read, at {offset}");
        other_file.write_all_at(b"WRIT", offset as u64).expect("written");
        assert_eq!(
            (mapping.get(offset, 4), other.get(offset, 4)),
            (b"WRIT".to_vec(), b"WRIT".to_vec()),
            "written, then loaded, at {offset}"
        );
    }
    mapping.set(70_000, b"synced");
    mapping.sync().expect("synced");
    drop((mapping, other, file, other_file));
    assert_eq!(&fs::read(scene.path("file")).expect("read")[70_000..70_006], b"synced");
    // Stores without a word reach the file as well.
    let file = open(scene, "file");
    let mapping = Mapping::new(&file, 200_000, true, true).expect("mapped");
    mapping.set(100_000, b"unsynced");
    drop((mapping, file));
    assert_eq!(&fs::read(scene.path("file")).expect("read")[100_000..100_008], b"unsynced");
}

pub(crate) fn private_is_private(scene: &Scene<'_>) {
    let file = open(scene, "file");
    file.write_all_at(&pattern(1, 20_000), 0).expect("written");
    let read_only = File::open(scene.path("file")).expect("opened");
    let mapping = Mapping::new(&read_only, 20_000, false, true).expect("a private one may be written");
    mapping.set(5000, b"mine");
    assert_eq!(mapping.get(5000, 4), b"mine");
    assert!(contents(&file) == pattern(1, 20_000), "the file knows nothing of it");
    file.write_all_at(b"theirs", 10_000).expect("written");
    assert_eq!(mapping.get(10_000, 6), b"theirs", "a page that was not stored to follows the file");
}

pub(crate) fn beyond_the_end(scene: &Scene<'_>) {
    let file = open(scene, "file");
    file.write_all_at(&pattern(1, 5000), 0).expect("written");
    let mapping = Mapping::new(&file, 16_384, true, true).expect("mapped");
    assert!(mapping.get(5000, 8192 - 5000).iter().all(|byte| *byte == 0), "zeros to the end of the page");
    refused(mapping.probe(8192, 1), Errno::FAULT);
    file.set_len(12_000).expect("grown");
    assert_eq!(mapping.probe(8192, 100).expect("now it is there"), 100);
    mapping.set(11_999, b"x");
    file.set_len(4096).expect("shrunk");
    refused(mapping.probe(4096, 1), Errno::FAULT);
    assert_eq!(mapping.probe(0, 4096).expect("there"), 4096);
    file.set_len(12_000).expect("grown");
    assert_eq!(mapping.get(11_999, 1), [0], "what was cut off does not come back");
}

pub(crate) fn rights(scene: &Scene<'_>) {
    scene.file("file", pattern(1, 4096));
    let read_only = File::open(scene.path("file")).expect("opened");
    refused(Mapping::new(&read_only, 4096, true, true).map(drop), Errno::ACCESS);
    let write_only = OpenOptions::new().write(true).open(scene.path("file")).expect("opened");
    refused(Mapping::new(&write_only, 4096, false, false).map(drop), Errno::ACCESS);
    refused(Mapping::new(&File::open(scene.directory()).expect("opened"), 4096, false, false).map(drop), Errno::NODEV);
    refused(Mapping::at(&read_only, 100, 4096, false, false).map(drop), Errno::INVAL);
    // It lives longer than its descriptor.
    let mapping = Mapping::new(&read_only, 4096, true, false).expect("mapped");
    drop(read_only);
    assert!(mapping.get(0, 4096) == pattern(1, 4096));
}

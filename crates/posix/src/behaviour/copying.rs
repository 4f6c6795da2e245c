//! copy_file_range.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::sizes::{contents, open, pattern};
use crate::scene::{Scene, refused};

/// As every caller has to: until all is copied or nothing more comes.
fn copy(from: &File, mut from_offset: u64, to: &File, mut to_offset: u64, length: usize) -> rustix::io::Result<usize> {
    let mut done = 0;
    while done < length {
        let copied = rustix::fs::copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), length - done)?;
        if copied == 0 {
            break;
        }
        done += copied;
    }
    Ok(done)
}

pub(crate) fn ranges(scene: &Scene<'_>) {
    let (from, to) = (open(scene, "from"), open(scene, "to"));
    let bytes = pattern(5, 400_000);
    from.write_all_at(&bytes, 0).expect("written");
    let mut expected = Vec::new();
    for (at, target, length) in [(0, 0, 400_000), (1000, 10, 5), (65_536, 131_072, 65_536), (399_990, 500_000, 10), (7, 300_001, 99_999)] {
        assert_eq!(copy(&from, at as u64, &to, target as u64, length), Ok(length));
        expected.resize(expected.len().max(target + length), 0);
        expected[target..target + length].copy_from_slice(&bytes[at..at + length]);
        assert!(contents(&to) == expected, "{length} B from {at} to {target}");
    }
    assert_eq!(copy(&from, 399_999, &to, 0, 100), Ok(1), "it ends with its source");
    assert_eq!(copy(&from, 400_000, &to, 0, 100), Ok(0));
    // What the cache holds only is copied too, and a mapping sees the copy.
    let mapping = crate::sys::Mapping::new(&to, 4096, true, true).expect("mapped");
    from.write_all_at(b"fresh", 0).expect("written");
    assert_eq!(copy(&from, 0, &to, 100, 5), Ok(5));
    assert_eq!(mapping.get(100, 5), b"fresh");
    // Inside one file.
    let mut expected = contents(&from);
    assert_eq!(copy(&from, 0, &from, 200_000, 100_000), Ok(100_000));
    let (head, tail) = expected.split_at_mut(200_000);
    tail[..100_000].copy_from_slice(&head[..100_000]);
    assert!(contents(&from) == expected, "inside one file");
    // A hole stays zeros.
    let sparse = open(scene, "sparse");
    sparse.set_len(1 << 20).expect("grown");
    let target = open(scene, "target");
    target.write_all_at(&bytes, 0).expect("written");
    assert_eq!(copy(&sparse, 0, &target, 0, 300_000), Ok(300_000));
    assert!(contents(&target)[..300_000].iter().all(|byte| *byte == 0));
}

pub(crate) fn refusals(scene: &Scene<'_>) {
    let (from, to) = (open(scene, "from"), open(scene, "to"));
    from.write_all_at(&pattern(5, 10_000), 0).expect("written");
    refused(copy(&from, 0, &from, 5000, 6000), Errno::INVAL);
    let read_only = File::open(scene.path("to")).expect("opened");
    refused(copy(&from, 0, &read_only, 0, 10), Errno::BADF);
    let append = OpenOptions::new().append(true).open(scene.path("to")).expect("opened");
    refused(copy(&from, 0, &append, 0, 10), Errno::BADF);
    let write_only = OpenOptions::new().write(true).open(scene.path("from")).expect("opened");
    refused(copy(&write_only, 0, &to, 0, 10), Errno::BADF);
    let directory = File::open(scene.directory()).expect("opened");
    refused(copy(&directory, 0, &to, 0, 10), Errno::ISDIR);
    assert_eq!(fs::metadata(scene.path("to")).expect("there").len(), 0);
}

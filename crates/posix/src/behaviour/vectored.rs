//! readv, writev and their flags.

use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::{Errno, ReadWriteFlags};

use super::sizes::{contents, open, pattern};
use crate::scene::{Scene, refused};

pub(crate) fn flags(scene: &Scene<'_>) {
    let file = open(scene, "file");
    file.write_all_at(&pattern(1, 10_000), 0).expect("written");
    let write = |bytes: &[u8], offset, flags| rustix::io::pwritev2(&file, &[IoSlice::new(bytes)], offset, flags);
    for flags in [ReadWriteFlags::DSYNC, ReadWriteFlags::SYNC, ReadWriteFlags::SYNC | ReadWriteFlags::DSYNC] {
        assert_eq!(write(b"sync", 5000, flags), Ok(4));
    }
    assert_eq!(write(b"end", 0, ReadWriteFlags::APPEND), Ok(3), "at the end, whatever the offset");
    assert_eq!(contents(&file)[9999..].len(), 4);
    assert_eq!(&contents(&file)[10_000..], b"end");
    // At the descriptor's own position, which moves; RWF_APPEND alone leaves it with an offset.
    rustix::fs::seek(&file, SeekFrom::Start(100)).expect("sought");
    assert_eq!(write(b"here", u64::MAX, ReadWriteFlags::empty()), Ok(4));
    assert_eq!((rustix::fs::tell(&file), &contents(&file)[100..104]), (Ok(104), &b"here"[..]));
    let mut bytes = [0; 4];
    let read = |bytes: &mut [u8], offset, flags| rustix::io::preadv2(&file, &mut [IoSliceMut::new(bytes)], offset, flags);
    assert_eq!(read(&mut bytes, 100, ReadWriteFlags::empty()), Ok(4));
    assert_eq!(&bytes, b"here");
    // Data that is not available at once may be refused, but never answered wrongly.
    match read(&mut bytes, 100, ReadWriteFlags::NOWAIT) {
        Ok(count) => assert!(count == 4 && &bytes == b"here"),
        Err(error) => assert!(matches!(error, Errno::AGAIN | Errno::OPNOTSUPP), "{error}"),
    }
    refused(write(b"x", 0, ReadWriteFlags::from_bits_retain(1 << 30)), Errno::OPNOTSUPP);
    refused(read(&mut bytes, 0, ReadWriteFlags::from_bits_retain(1 << 30)), Errno::OPNOTSUPP);
}

pub(crate) fn vectors(scene: &Scene<'_>) {
    let file = open(scene, "file");
    let pieces: Vec<Vec<u8>> = (0..1024).map(|number| pattern(number, number as usize % 97)).collect();
    let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let all = pieces.concat();
    assert_eq!(rustix::io::pwritev(&file, &slices, 10), Ok(all.len()));
    assert!(contents(&file)[10..] == all, "1,024 pieces in order");
    let (mut first, mut second) = (vec![0; 5000], vec![0; all.len()]);
    let read = rustix::io::preadv(&file, &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)], 10).expect("read");
    assert_eq!(read, all.len());
    assert!(first == all[..5000] && second[..all.len() - 5000] == all[5000..], "two pieces");
    assert_eq!(rustix::io::pwritev(&file, &[], 0), Ok(0));
    assert_eq!(file.write_at(b"", 1 << 30).expect("nothing"), 0);
    assert_eq!(contents(&file).len(), 10 + all.len(), "writing nothing grows nothing");
}

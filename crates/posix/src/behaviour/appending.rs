//! Where an O_APPEND descriptor writes, for all other flags and all interfaces.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::io::Errno;

use super::sizes::{contents, open, pattern};
use crate::asynchronous::{Interface, Queue};
use crate::filled::Filled;
use crate::scene::Scene;
use crate::sys::Aligned;

const BLOCK: usize = 4096;
const MEBIBYTE: usize = 1 << 20;

fn appender(scene: &Scene<'_>, name: &str, flags: i32) -> File {
    OpenOptions::new().append(true).create(true).custom_flags(flags).open(scene.path(name)).expect("opened")
}

/// Blocks that bear the numbers of their places in the file.
fn numbered(first: usize, count: usize) -> Vec<u8> {
    let mut bytes = pattern((first * BLOCK) as u64, count * BLOCK);
    for (index, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        block[..8].copy_from_slice(&((first + index) as u64).to_le_bytes());
    }
    bytes
}

#[track_caller]
fn assert_numbered(scene: &Scene<'_>, name: &str, count: usize) {
    let found = fs::read(scene.path(name)).expect("read");
    let numbers: Vec<u64> = found.chunks_exact(BLOCK).map(|block| u64::from_le_bytes(block[..8].try_into().expect("eight"))).collect();
    if let Some(at) = numbers.iter().enumerate().position(|(place, number)| place as u64 != *number) {
        panic!("{name}: block {} lies at {at} of {}", numbers[at], numbers.len());
    }
    assert_eq!(found.len(), count * BLOCK, "{name}: size");
    assert!(found == numbered(0, count), "{name}: bytes");
}

/// Direct appends land at the end in order, also if one write is larger than the file system's largest request.
pub(crate) fn large_direct_writes(scene: &Scene<'_>) {
    let mut file = appender(scene, "written", libc::O_DIRECT);
    let mut blocks = 0;
    for length in [4 * MEBIBYTE, 8 * MEBIBYTE, BLOCK, 3 * MEBIBYTE + BLOCK] {
        let mut buffer = Aligned::of(&numbered(blocks, length / BLOCK));
        file.write_all(buffer.slice()).expect("appended");
        blocks += length / BLOCK;
    }
    for length in [4 * MEBIBYTE, 8 * MEBIBYTE] {
        // The offset of a pwrite does not count.
        let mut buffer = Aligned::of(&numbered(blocks, length / BLOCK));
        assert_eq!(rustix::io::pwrite(&file, buffer.slice(), 0), Ok(length));
        blocks += length / BLOCK;
    }
    assert_numbered(scene, "written", blocks);
}

/// The same with several requests in flight, which are appended in the order in which they were made.
pub(crate) fn asynchronous_direct_writes(scene: &Scene<'_>) {
    let (depth, rounds, each) = (4, 3, 4 * MEBIBYTE / BLOCK);
    let file = appender(scene, "aio", libc::O_DIRECT);
    let mut queue = Queue::new(Interface::Aio, depth).expect("libaio is always there");
    for round in 0..rounds {
        let first = |index: u32| (round * depth + index) as usize * each;
        for index in 0..depth {
            queue.write(&file, 0, Aligned::of(&numbered(first(index), each)));
        }
        for _ in 0..depth {
            assert_eq!(queue.complete().result.expect("appended"), 4 * MEBIBYTE);
        }
    }
    assert_numbered(scene, "aio", (rounds * depth) as usize * each);
}

/// What another descriptor has in the cache counts for the end.
pub(crate) fn direct_behind_cached(scene: &Scene<'_>) {
    for (number, cached) in [2 * BLOCK, 64 * BLOCK, BLOCK].into_iter().enumerate() {
        let name = format!("file-{number}");
        let (mut buffered, mut direct) = (appender(scene, &name, 0), appender(scene, &name, libc::O_DIRECT));
        let bytes = pattern(1, cached);
        buffered.write_all(&bytes).expect("appended");
        let mut record = Aligned::of(&pattern(2, BLOCK));
        assert_eq!(direct.write(record.slice()).expect("appended"), BLOCK);
        buffered.write_all(b"tail").expect("appended");
        assert_eq!(buffered.metadata().expect("open").len(), (cached + BLOCK + 4) as u64);
        let expected = [&bytes[..], record.slice(), b"tail"].concat();
        assert!(fs::read(scene.path(&name)).expect("read") == expected, "the record lies at {cached}");
    }
}

/// Two writers take turns, one that opened the file before space got low and one that did so after it.
pub(crate) fn by_turns_with_little_space(scene: &Scene<'_>) {
    let lengths = [1, 2 * BLOCK, 5000];
    let mut early = lengths.map(|length| appender(scene, &length.to_string(), 0));
    let filled = Filled::but(scene, crate::filled::LITTLE_BYTES / 2);
    for (length, early) in lengths.into_iter().zip(&mut early) {
        let name = length.to_string();
        let mut late = appender(scene, &name, 0);
        let pieces: Vec<Vec<u8>> = (b'a'..=b'f').map(|letter| vec![letter; length]).collect();
        for (number, piece) in pieces.iter().enumerate() {
            let writer = if number % 2 == 0 { &mut *early } else { &mut late };
            writer.write_all(piece).expect("appended");
            assert_eq!(
                late.metadata().expect("open").len(),
                ((number + 1) * length) as u64,
                "stat after {} pieces of {length} B",
                number + 1
            );
        }
        assert!(fs::read(scene.path(&name)).expect("read") == pieces.concat(), "six pieces of {length} B");
        drop(late);
        assert!(contents(&open(scene, &name)) == pieces.concat(), "six pieces of {length} B, when one writer has closed");
    }
    drop((early, filled));
    for length in lengths {
        let expected: Vec<u8> = (b'a'..=b'f').flat_map(|letter| vec![letter; length]).collect();
        assert!(fs::read(scene.path(&length.to_string())).expect("read") == expected, "six pieces of {length} B, when all have closed");
    }
}

/// pwritev2(2) by the C library, whose calls can be taken over by another library.
fn write_with_flags(file: &File, bytes: &[u8], offset: i64, flags: i32) -> Result<usize, Errno> {
    let parts = [IoSlice::new(bytes)];
    // SAFETY: one part, laid out as C's structure, that lives during the call.
    let done = unsafe { libc::pwritev2(file.as_raw_fd(), parts.as_ptr().cast(), 1, offset, flags) };
    usize::try_from(done).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).expect("an error of the call"))
}

/// A flag of one write overrides that of its descriptor, either way.
pub(crate) fn flags_of_one_write(scene: &Scene<'_>) {
    let at = write_with_flags;
    let no_append = libc::RWF_NOAPPEND;
    for (name, flags) in [("cached", 0), ("synchronous", libc::O_DSYNC)] {
        let mut appending = appender(scene, name, flags);
        appending.write_all(b"0123456789").expect("appended");
        match at(&appending, b"at", 2, no_append) {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => return println!("  not RWF_NOAPPEND, which this kernel does not know"),
            written => assert_eq!(written, Ok(2)),
        }
        assert_eq!(contents(&open(scene, name)), b"01at456789", "{name}: at its offset");
        appending.write_all(b"end").expect("appended");
        let plain = OpenOptions::new().write(true).custom_flags(flags).open(scene.path(name)).expect("opened");
        assert_eq!(at(&plain, b"+", 0, libc::RWF_APPEND), Ok(1));
        plain.write_all_at(b"X", 0).expect("written");
        assert_eq!(contents(&open(scene, name)), b"X1at456789end+", "{name}");
    }
    // Past the cache, in whole blocks.
    let direct = appender(scene, "direct", libc::O_DIRECT);
    let mut buffer = Aligned::of(&numbered(0, 3));
    assert_eq!(at(&direct, buffer.slice(), 0, 0), Ok(3 * BLOCK));
    assert_eq!(at(&direct, &buffer.slice()[2 * BLOCK..], BLOCK as i64, no_append), Ok(BLOCK));
    let (first, third) = (&numbered(0, 1)[..], &numbered(2, 1)[..]);
    let expected = [first, third, third].concat();
    assert!(contents(&open(scene, "direct")) == expected, "past the cache at its offset");
}

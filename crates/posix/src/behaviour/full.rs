//! A full file system: space of removed files is available at once, and writers get errors in time.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::sizes::{open, pattern};
use crate::filled::Filled;
use crate::scene::{Difference, Scene};
use crate::sys::{Aligned, Mapping};

const MEBIBYTE: u64 = 1 << 20;
/// What the tests have to themselves.
const SPACE_BYTES: u64 = 64 * MEBIBYTE;
const ROUNDS: usize = 30;

/// Room as left beside nearly all of [`SPACE_BYTES`]: what maps and proves it.
const NEARLY_BYTES: u64 = SPACE_BYTES - 6 * MEBIBYTE;

/// Makes a file again and again, lets `fill` take nearly all space by it, and removes it.
fn fill_and_remove(scene: &Scene<'_>, rounds: usize, fill: impl Fn(&File) -> io::Result<()>) {
    let filled = Filled::but(scene, SPACE_BYTES);
    for round in 0..rounds {
        let file = File::create_new(scene.path("file")).expect("made");
        fill(&file).unwrap_or_else(|error| panic!("round {round}: {error}"));
        // In turns the name goes first, or the descriptor.
        if round % 2 == 0 {
            fs::remove_file(scene.path("file")).expect("removed");
            drop(file);
        } else {
            drop(file);
            fs::remove_file(scene.path("file")).expect("removed");
        }
    }
    drop(filled);
}

/// When `unlink` and `close` have returned, a new file gets the space.
pub(crate) fn removed_space_is_there_for_fallocate(scene: &Scene<'_>) {
    fill_and_remove(scene, ROUNDS, |file| Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), 0, NEARLY_BYTES)?));
}

/// The same for writes.
pub(crate) fn removed_space_is_there_for_writes(scene: &Scene<'_>) {
    let piece = pattern(1, MEBIBYTE as usize);
    fill_and_remove(scene, ROUNDS / 5, |file| {
        for offset in (0..NEARLY_BYTES).step_by(MEBIBYTE as usize) {
            file.write_all_at(&piece, offset).map_err(|error| io::Error::new(error.kind(), format!("at {offset}: {error}")))?;
        }
        file.sync_all()
    });
}

/// And by a rename over it, which removes a file as well.
pub(crate) fn replaced_space_is_there_at_once(scene: &Scene<'_>) {
    let filled = Filled::but(scene, SPACE_BYTES);
    let small = scene.path("small");
    for round in 0..ROUNDS {
        let file = File::create(scene.path("file")).expect("made");
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, NEARLY_BYTES).unwrap_or_else(|error| panic!("round {round}: {error}"));
        drop(file);
        fs::write(&small, "small").expect("made");
        fs::rename(&small, scene.path("file")).expect("replaced");
    }
    drop(filled);
}

/// More than a kernel keeps of a small file system's writes before it sends them.
const WRITTEN_BYTES_MAX: u64 = 512 * MEBIBYTE;
const PIECE: usize = 64 << 10;

/// What the piece at an offset holds.
fn piece_at(offset: u64) -> Vec<u8> {
    let mut bytes = pattern(offset / PIECE as u64, PIECE);
    bytes[..8].copy_from_slice(&offset.to_le_bytes());
    bytes
}

fn is_no_space(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOSPC.raw_os_error())
}

/// Writes on and on from a descriptor that was opened while there was room; where it was told that there is none, and what it had
/// synchronised.
struct Written {
    told_at: u64,
    synchronised: u64,
}

fn write_until_told(file: &File) -> Written {
    let mut written = Written { told_at: 0, synchronised: 0 };
    while written.told_at < WRITTEN_BYTES_MAX {
        if let Err(error) = file.write_all_at(&piece_at(written.told_at), written.told_at) {
            assert!(is_no_space(&error), "{error}");
            return written;
        }
        written.told_at += PIECE as u64;
        if written.told_at == 16 * MEBIBYTE {
            file.sync_all().expect("there is room for 16 MiB");
            written.synchronised = written.told_at;
        }
    }
    panic!("{} MiB were taken where {} MiB are free, and nobody said so", WRITTEN_BYTES_MAX >> 20, (SPACE_BYTES + LARGE_BYTES) >> 20);
}

/// Beside [`SPACE_BYTES`], so that there is room enough when the file is opened.
const LARGE_BYTES: u64 = 32 * MEBIBYTE;

/// All bytes up to the size are there and can be read; of those that were written each is what it was, or, where cached writes may be
/// dropped, nothing; what was synchronised is there.
fn assert_size_is_true(scene: &Scene<'_>, written: &Written, when: &str) -> u64 {
    let file = File::open(scene.path("file")).expect("opened");
    let size = file.metadata().expect("open").len();
    assert!(size >= written.synchronised, "{when}: {size} B, where {} were synchronised", written.synchronised);
    assert!(size <= written.told_at + PIECE as u64, "{when}: {size} B, where {} were written", written.told_at);
    let mut found = vec![0; PIECE];
    for offset in (0..size).step_by(PIECE) {
        let length = PIECE.min((size - offset) as usize);
        file.read_exact_at(&mut found[..length], offset).unwrap_or_else(|error| panic!("{when}: at {offset} of {size}: {error}"));
        let expected = piece_at(offset);
        let dropped = offset >= written.synchronised && scene.differs(Difference::CachedWritesMayNotFit);
        // A piece that the end of space cut may be zeros behind the cut.
        let whole = offset + length as u64 <= written.told_at;
        let right = (0..length).all(|at| found[at] == expected[at] || (found[at] == 0 && (dropped || !whole)));
        assert!(right, "{when}: the piece at {offset} of {size}, {} synchronised, told at {}", written.synchronised, written.told_at);
    }
    assert_eq!(file.read_at(&mut found, size).expect("read"), 0, "{when}: the end");
    size
}

/// A file system fills up under a writer that has opened its file while there was room. It is told soon, and the file's size is true.
pub(crate) fn a_writer_is_told_in_time(scene: &Scene<'_>) {
    let filled = Filled::but(scene, SPACE_BYTES + LARGE_BYTES);
    let file = open(scene, "file");
    let written = write_until_told(&file);
    let synced = file.sync_all();
    if !scene.differs(Difference::CachedWritesMayNotFit) {
        synced.expect("what was taken has its room");
    } else if let Err(error) = synced {
        assert!(is_no_space(&error), "{error}");
    }
    let size = assert_size_is_true(scene, &written, "at once");
    drop(file);
    assert_eq!(assert_size_is_true(scene, &written, "when closed"), size);
    drop(filled);
    // With room again the file can be written on, and nothing is left of the error.
    let file = OpenOptions::new().write(true).open(scene.path("file")).expect("opened");
    file.write_all_at(b"more", size).expect("there is room again");
    file.sync_all().expect("nothing is left of it");
    file.set_len(size).expect("as before");
    drop(file);
    if scene.can_remount() {
        scene.remount("");
        assert_eq!(assert_size_is_true(scene, &written, "after a remount"), size);
    }
}

/// What a file holds can be written over where nothing is left, in pieces of other lengths than it came in, through the cache, past it and
/// by a mapping.
pub(crate) fn what_is_there_is_written_over(scene: &Scene<'_>) {
    let filled = Filled::but(scene, 3 * MEBIBYTE);
    let file = open(scene, "file");
    // Small pieces until there is no room, or more than there was.
    let (piece, mut size) = (4096, 0);
    while size < 8 * MEBIBYTE {
        match file.write_all_at(&pattern(size, piece), size) {
            Ok(()) => size += piece as u64,
            Err(error) if is_no_space(&error) => break,
            Err(error) => panic!("{error}"),
        }
    }
    file.sync_all().expect("what was taken has its room");
    file.set_len(size).expect("without what a refused piece left");
    let hog = open(scene, "hog");
    let mut hogged = 0;
    while hogged < 64 * MEBIBYTE && rustix::fs::fallocate(&hog, FallocateFlags::KEEP_SIZE, hogged, 64 << 10).is_ok() {
        hogged += 64 << 10;
    }
    let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(scene.path("file")).expect("opened");
    let mapping = Mapping::new(&file, size as usize, true, true).expect("mapped");
    for (round, length) in [4096, 160 << 10, 1 << 20, 200 << 10].into_iter().enumerate() {
        let parts = || (0..size).step_by(length).map(|offset| (offset, length.min((size - offset) as usize)));
        let holds = |seed: u64, how: &str| {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
            let mut found = vec![0; size as usize];
            file.read_exact_at(&mut found, 0).expect("read");
            let right = parts().all(|(offset, length)| found[offset as usize..][..length] == pattern(seed + offset, length));
            assert!(right, "{how}, in pieces of {length} B");
        };
        let seed = round as u64 * 1000;
        for (offset, length) in parts() {
            file.write_all_at(&pattern(seed + offset, length), offset).unwrap_or_else(|error| panic!("{length} B at {offset}: {error}"));
        }
        file.sync_all().unwrap_or_else(|error| panic!("fsync after pieces of {length} B: {error}"));
        holds(seed, "written");
        for (offset, length) in parts() {
            let mut buffer = Aligned::of(&pattern(seed + 1 + offset, length));
            direct.write_all_at(buffer.slice(), offset).unwrap_or_else(|error| panic!("{length} B past the cache at {offset}: {error}"));
        }
        holds(seed + 1, "written past the cache");
        for (offset, length) in parts() {
            mapping.set(offset as usize, &pattern(seed + 2 + offset, length));
            if offset as usize / length % 3 == 2 {
                mapping.sync().unwrap_or_else(|error| panic!("msync after {length} B at {offset}: {error}"));
            }
        }
        mapping.sync().unwrap_or_else(|error| panic!("msync after pieces of {length} B: {error}"));
        holds(seed + 2, "stored");
    }
    drop((hog, filled));
}

//! Many writers append to one file: no record is torn or lost, and each writer's records are in its order.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Barrier;

use rustix::io::Errno;

use super::exerciser::Random;
use super::sizes::open;
use crate::asynchronous::{Interface, Queue};
use crate::filled::Filled;
use crate::scene::Scene;

/// Writer, number, length and checksum, eight bytes each.
const HEAD: usize = 32;
const BLOCK: usize = 4096;

/// A record that proves itself.
fn record(writer: u64, number: u64, length: usize) -> Vec<u8> {
    let mut bytes = super::sizes::pattern(writer << 20 | number, length);
    for (index, word) in [writer, number, length as u64, 0].into_iter().enumerate() {
        bytes[index * 8..index * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
    let sum = checksum(&bytes);
    bytes[24..32].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// FNV-1a of all but the checksum's place.
fn checksum(bytes: &[u8]) -> u64 {
    let fold = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
    bytes[HEAD..].iter().fold(bytes[..24].iter().fold(0xCBF2_9CE4_8422_2325, fold), fold)
}

/// Reads a file record by record and holds it against how many each writer was told are there.
#[track_caller]
fn assert_whole(path: &Path, acknowledged: &[u64]) {
    let bytes = fs::read(path).expect("read");
    let mut next = vec![0; acknowledged.len()];
    let mut at = 0;
    while at < bytes.len() {
        let word = |index: usize| {
            let word = bytes.get(at + index * 8..at + index * 8 + 8).unwrap_or_else(|| panic!("{}: {at} is no record", path.display()));
            u64::from_le_bytes(word.try_into().expect("eight"))
        };
        let (writer, number, length) = (word(0), word(1), word(2) as usize);
        let whole = length >= HEAD
            && (writer as usize) < next.len()
            && bytes.get(at..at.saturating_add(length)).is_some_and(|record| checksum(record) == word(3));
        assert!(whole, "{}: {at} of {} is no record; {next:?} of {acknowledged:?} were before it", path.display(), bytes.len());
        assert_eq!(number, next[writer as usize], "{}: writer {writer} at {at}", path.display());
        next[writer as usize] += 1;
        at += length;
    }
    assert_eq!(next, acknowledged, "{}: records of each writer", path.display());
}

/// What a writer appends by.
#[derive(Debug, Clone, Copy)]
struct Kind {
    interface: Interface,
    flags: i32,
}

const CACHED: Kind = Kind { interface: Interface::Calls, flags: 0 };
const SYNCHRONOUS: Kind = Kind { interface: Interface::Calls, flags: libc::O_DSYNC };
const DIRECT: Kind = Kind { interface: Interface::Calls, flags: libc::O_DIRECT };
const DIRECT_AIO: Kind = Kind { interface: Interface::Aio, flags: libc::O_DIRECT };
const DIRECT_RING: Kind = Kind { interface: Interface::IoUring, flags: libc::O_DIRECT };
const CACHED_RING: Kind = Kind { interface: Interface::IoUring, flags: 0 };

/// Records of a writer: how many, how many of them a write has, and how long each is.
struct Plan<'a> {
    count: u64,
    of_write: u64,
    length: &'a (dyn Fn(u64, u64) -> usize + Sync),
}

/// Appends records until there are enough or there is no space; how many were acknowledged.
fn append(path: &Path, kind: Kind, writer: u64, plan: &Plan<'_>) -> u64 {
    let interface = Queue::new(kind.interface, 1).map_or(Interface::Calls, |_| kind.interface);
    let mut queue = Queue::new(interface, 1).expect("as just now");
    let file = OpenOptions::new().append(true).custom_flags(kind.flags).open(path).expect("opened");
    let mut acknowledged = 0;
    while acknowledged < plan.count {
        let numbers = acknowledged..acknowledged + plan.of_write;
        let records: Vec<Vec<u8>> = numbers.map(|number| record(writer, number, (plan.length)(writer, number))).collect();
        let mut written = match queue.write_now(&file, 0, &records.concat()) {
            Ok(written) => written,
            Err(error) if error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) => break,
            Err(error) => panic!("writer {writer}, {kind:?}: record {acknowledged}: {error}"),
        };
        // Where the space ends it may be fewer than were given, whole ones all the same.
        for record in &records {
            if written > 0 {
                assert!(written >= record.len(), "writer {writer}, {kind:?}: {written} B of record {acknowledged}");
                written -= record.len();
                acknowledged += 1;
            }
        }
    }
    acknowledged
}

/// A writer of each kind, all at once.
fn together(scene: &Scene<'_>, name: &str, kinds: &[Kind], plan: &Plan<'_>) -> Vec<u64> {
    let path = scene.path(name);
    let holder = open(scene, name);
    let start = Barrier::new(kinds.len());
    let work = |writer: u64, kind: Kind| {
        start.wait();
        append(&path, kind, writer, plan)
    };
    let acknowledged: Vec<u64> = std::thread::scope(|scope| {
        let work = &work;
        let writers: Vec<_> = (0..).zip(kinds).map(|(writer, kind)| scope.spawn(move || work(writer, *kind))).collect();
        writers.into_iter().map(|writer| writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    assert_whole(&path, &acknowledged);
    holder.sync_all().expect("synced");
    rustix::fs::fadvise(&holder, 0, None, rustix::fs::Advice::DontNeed).expect("forgotten");
    assert_whole(&path, &acknowledged);
    acknowledged
}

/// Through the cache, lengths of every kind: within a page, over several, over many requests.
pub(crate) fn cached_records_of_any_length(scene: &Scene<'_>) {
    let length = |writer: u64, number: u64| {
        let mut random = Random::of(1 + writer * 1000 + number);
        HEAD + random.below([100, 5000, 40_000][number as usize % 3]) as usize
    };
    let counts =
        together(scene, "log", &[CACHED, CACHED, SYNCHRONOUS, CACHED, CACHED_RING], &Plan { count: 120, of_write: 1, length: &length });
    assert_eq!(counts, [120; 5]);
}

/// Through the cache and past it, whole blocks, some records longer than a request to the file system.
pub(crate) fn cached_and_direct_records(scene: &Scene<'_>) {
    let length = |writer: u64, number: u64| {
        let blocks = Random::of(7 + writer * 1000 + number).below(if number % 8 == 5 { 700 } else { 20 });
        BLOCK * (1 + blocks as usize)
    };
    let counts = together(
        scene,
        "log",
        &[CACHED, DIRECT, CACHED_RING, DIRECT_AIO, DIRECT_RING, DIRECT],
        &Plan { count: 40, of_write: 1, length: &length },
    );
    assert_eq!(counts, [40; 6]);
}

/// Until space runs out. A writer that gets ENOSPC has lost nothing acknowledged before, and neither has any other writer.
pub(crate) fn at_the_end_of_space(scene: &Scene<'_>) {
    let filled = Filled::but(scene, 4 << 20);
    let counts = together(
        scene,
        "log",
        &[CACHED, DIRECT, CACHED_RING, DIRECT_AIO, SYNCHRONOUS],
        &Plan { count: u64::MAX, of_write: 16, length: &|_, _| BLOCK },
    );
    let acknowledged = counts.iter().sum::<u64>() * BLOCK as u64;
    assert!(acknowledged > 1 << 20, "{counts:?} records of 4 KiB into 4 MiB");
    // With free space again, appends continue at the end of the file.
    let before = fs::metadata(scene.path("log")).expect("there").len();
    assert_eq!(before, acknowledged);
    drop(filled);
    let more = record(0, counts[0], BLOCK);
    let mut file = OpenOptions::new().append(true).open(scene.path("log")).expect("opened");
    io::Write::write_all(&mut file, &more).expect("there is room again");
    drop(file);
    let mut counts = counts;
    counts[0] += 1;
    assert_whole(&scene.path("log"), &counts);
    drop(File::open(scene.path("log")).expect("opened"));
}

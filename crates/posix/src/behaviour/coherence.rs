//! Cached and direct I/O see the same bytes, through every interface.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::sizes::{contents, open};
use crate::asynchronous::{Interface, Queue};
use crate::filled::{Filled, LITTLE_BYTES};
use crate::scene::Scene;
use crate::sys::{Aligned, Mapping};

const MEBIBYTE: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// The range that is written and read repeatedly.
const RANGE: usize = 16 * BLOCK;
const ROUNDS: u64 = 300;

fn direct(scene: &Scene<'_>, name: &str) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(scene.path(name)).expect("opened")
}

/// A read past the cache of the hole before bytes that only the cache has is a read of zeros, not of the end.
pub(crate) fn a_hole_before_cached_bytes(scene: &Scene<'_>) {
    for interface in Interface::ALL {
        let name = format!("{interface:?}");
        let Some(mut queue) = Queue::new(interface, 1) else { continue };
        let cached = open(scene, &name);
        cached.write_all_at(b"hello", MEBIBYTE).expect("written");
        let direct = direct(scene, &name);
        let found = queue.read_now(&direct, 0, 64 << 10).expect("read");
        assert_eq!((found.len(), found.iter().all(|byte| *byte == 0)), (64 << 10, true), "{name}: 64 KiB of zeros");
        // The end is where the cached bytes end.
        let found = queue.read_now(&direct, MEBIBYTE, BLOCK).expect("read");
        assert_eq!(found, b"hello", "{name}: what the cache has");
        assert_eq!(queue.read_now(&direct, 2 * MEBIBYTE, BLOCK).expect("read"), b"", "{name}: behind the end");
    }
}

/// The same by a plain read of a descriptor that was opened when space had got low.
pub(crate) fn a_hole_before_cached_bytes_with_little_space(scene: &Scene<'_>) {
    let early = open(scene, "file");
    let filled = Filled::but(scene, LITTLE_BYTES / 2);
    early.write_all_at(b"hello", MEBIBYTE).expect("written");
    let mut late = open(scene, "file");
    let (mut found, mut part) = (Vec::new(), vec![1; 64 << 10]);
    loop {
        let count = late.read(&mut part).expect("read");
        if count == 0 {
            break;
        }
        found.extend_from_slice(&part[..count]);
    }
    assert_eq!(found.len() as u64, MEBIBYTE + 5);
    assert!(found[..MEBIBYTE as usize].iter().all(|byte| *byte == 0) && found.ends_with(b"hello"));
    drop((early, late, filled));
    assert!(fs::read(scene.path("file")).expect("read") == found);
}

/// Every word of a range says in which round it was written.
fn of_round(round: u64) -> Vec<u8> {
    round.to_le_bytes().repeat(RANGE / 8)
}

/// The oldest round that is in a block's first word.
fn oldest(bytes: &[u8]) -> u64 {
    bytes.chunks_exact(BLOCK).map(|block| u64::from_le_bytes(block[..8].try_into().expect("eight"))).min().expect("some")
}

/// Readers through the cache read the same pages all the time while they are written past it. What a write replaced is never read again
/// once the write is known to be done.
fn no_old_bytes(scene: &Scene<'_>, interface: Interface, depth: usize) {
    let name = format!("{interface:?}-{depth}");
    let Some(mut queue) = Queue::new(interface, depth as u32) else { return };
    let file = open(scene, &name);
    file.write_all_at(&of_round(0), 0).expect("written");
    file.sync_all().expect("synced");
    let (direct, mapping) = (direct(scene, &name), Mapping::new(&file, RANGE, true, false).expect("mapped"));
    let (acknowledged, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let read = |what: &str, load: &dyn Fn() -> u64| {
        let known = acknowledged.load(SeqCst);
        let found = load();
        assert!(found >= known, "{name}: {what} of round {found}, when {known} was acknowledged");
    };
    let buffered = |file: &File| {
        let mut bytes = vec![0; RANGE];
        file.read_exact_at(&mut bytes, 0).expect("read");
        oldest(&bytes)
    };
    let mapped = || (0..RANGE).step_by(BLOCK).map(|at| u64::from_le(mapping.word(at).load(SeqCst))).min().expect("some");
    let path = scene.path(&name);
    std::thread::scope(|scope| {
        let end = EndsOnDrop(&ended);
        scope.spawn(|| {
            let own = File::open(&path).expect("opened");
            while !ended.load(SeqCst) {
                read("a read beside", &|| buffered(&own));
                read("a load beside", &mapped);
            }
        });
        for round in 1..=ROUNDS {
            // In parts, so that several are in flight.
            let (bytes, part) = (of_round(round), RANGE / depth);
            for index in 0..depth {
                queue.write(&direct, (index * part) as u64, Aligned::of(&bytes[index * part..][..part]));
            }
            for _ in 0..depth {
                assert_eq!(queue.complete().result.expect("written"), part);
            }
            acknowledged.store(round, SeqCst);
            read("the next read", &|| buffered(&file));
            read("the next load", &mapped);
        }
        drop(end);
    });
    assert!(contents(&file) == of_round(ROUNDS));
}

/// Ends the readers also where an assertion fails.
struct EndsOnDrop<'a>(&'a AtomicBool);

impl Drop for EndsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

pub(crate) fn cached_reads_beside_direct_writes(scene: &Scene<'_>) {
    no_old_bytes(scene, Interface::Calls, 1);
}

pub(crate) fn cached_reads_beside_libaio(scene: &Scene<'_>) {
    no_old_bytes(scene, Interface::Aio, 1);
    no_old_bytes(scene, Interface::Aio, 4);
}

pub(crate) fn cached_reads_beside_io_uring(scene: &Scene<'_>) {
    no_old_bytes(scene, Interface::IoUring, 1);
    no_old_bytes(scene, Interface::IoUring, 4);
}

//! [CN3]: what is written is one request, however little memory is free.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use rustix::io::ReadWriteFlags;
use support::{connected, done, refused, welcome};
use tandemfs_client::mutant::{self, Mutant};
use tandemfs_client::{Errno, Tree};
use tandemfs_protocol::Operation;
use tandemfs_ring::{Sizes, Ticket};

static WRITES: AtomicUsize = AtomicUsize::new(0);
/// Deliberate bugs are of the process, and numbers of threads count for all of it.
static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// Writes while most of the memory is in use; how many requests that were.
fn writes_of_one_call(is_refused: bool) -> usize {
    WRITES.store(0, SeqCst);
    let (mount, _server) =
        connected(welcome(Sizes { slots: 2, data_bytes: 256 << 10 }), |operation: &Operation<'_>, _: &Ticket| match operation {
            Operation::Write { from, .. } => {
                WRITES.fetch_add(1, SeqCst);
                done(from.length.into())
            }
            _ => done(1),
        });
    let file = mount.open("f").expect("opened");
    let held = mount.buffer(180 << 10).expect("room");
    match is_refused {
        true => refused(file.write_at(&[1; 100_000], 0), Errno::NOMEM),
        false => assert_eq!(file.write_at(&[1; 100_000], 0), Ok(100_000)),
    }
    let writes = WRITES.load(SeqCst);
    drop(held);
    WRITES.store(0, SeqCst);
    assert_eq!(file.write_at(&[1; 128 << 10], 0), Ok(128 << 10), "half of the memory is there");
    assert_eq!(WRITES.load(SeqCst), 1);
    writes
}

#[test]
fn regression_what_was_written_while_memory_was_scarce_was_torn() {
    let _alone = ALONE.lock();
    assert_eq!(writes_of_one_call(true), 0);
    mutant::select(Mutant::WritesTorn);
    let writes = writes_of_one_call(false);
    mutant::select(Mutant::None);
    assert!(writes > 1, "WritesTorn escaped");
}

/// A long write behind small ones by two slots, the first of which was made while the end of the memory was in use.
fn long_write_behind_small_ones() -> tandemfs_client::Result<usize> {
    let (mount, _server) =
        connected(welcome(Sizes { slots: 2, data_bytes: 256 << 10 }), |operation: &Operation<'_>, _: &Ticket| match operation {
            Operation::Write { from, .. } => done(from.length.into()),
            _ => done(1),
        });
    let [first, second] = [140 << 10, 76 << 10].map(|bytes| mount.buffer(bytes).expect("room"));
    let third = mount.buffer(40 << 10); // the end, if that is nobody's
    drop(first);
    let file = mount.open("f").expect("opened");
    assert_eq!(file.write_at(&[1; 100], 0), Ok(100));
    drop((second, third));
    // The next thread has the next slot.
    std::thread::scope(|scope| scope.spawn(|| assert_eq!(file.write_at(&[1; 100], 0), Ok(100))).join().expect("no panic"));
    file.write_at(&[1; 128 << 10], 0)
}

/// What slots keep came to lie in the middle of the memory for good, so that long writes found no room any more.
#[test]
fn regression_memory_that_slots_keep_divided_the_rest() {
    let _alone = ALONE.lock();
    assert_eq!(long_write_behind_small_ones(), Ok(128 << 10));
    mutant::select(Mutant::KeptTakenLate);
    let written = long_write_behind_small_ones();
    mutant::select(Mutant::None);
    refused(written, Errno::NOMEM);
}

/// The kernel refuses them before the file system sees them.
#[test]
fn regression_writes_beyond_the_end_of_offsets_were_too_large_or_cut() {
    let _alone = ALONE.lock();
    let (mount, _server) =
        connected(welcome(Sizes { slots: 2, data_bytes: 256 << 10 }), |operation: &Operation<'_>, _: &Ticket| match operation {
            Operation::Write { from, .. } => done(from.length.into()),
            _ => done(1),
        });
    let (file, end) = (mount.open("f").expect("opened"), i64::MAX as u64);
    for (offset, bytes) in [(end, 1), (end - 9, 10 + 1), (end - 10, 300_000), (end + 1, 1), (u64::MAX, 1), (end + 1, 0)] {
        refused(file.write_at(&vec![1; bytes], offset), Errno::INVAL);
        refused(file.write_at_with(&vec![1; bytes], offset, ReadWriteFlags::empty()), Errno::INVAL);
        refused(file.read_at(&mut vec![1; bytes], offset), Errno::INVAL);
    }
    assert_eq!((file.write_at(&[1; 10], end - 10), file.write_at(&[], end)), (Ok(10), Ok(0)));
}

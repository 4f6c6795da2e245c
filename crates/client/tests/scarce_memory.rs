//! [CN3]: what is written is one request, however little memory is free.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use support::{connected, done, refused, welcome};
use tandemfs_client::mutant::{self, Mutant};
use tandemfs_client::{Errno, Tree};
use tandemfs_protocol::Operation;
use tandemfs_ring::{Sizes, Ticket};

static WRITES: AtomicUsize = AtomicUsize::new(0);

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
    assert_eq!(writes_of_one_call(true), 0);
    mutant::select(Mutant::WritesTorn);
    let writes = writes_of_one_call(false);
    mutant::select(Mutant::None);
    assert!(writes > 1, "WritesTorn escaped");
}
